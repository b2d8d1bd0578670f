//! The example `tun_proxy`: all that leaves a namespace, carried to the kernel's sockets of
//! another.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use millrace_e2e::namespace::Namespace;
use millrace_e2e::{
    Context as _, Directory, Process, Result, command, content, ensure, example, scenario, seconds,
    wait_until,
};
use rustix::process::Signal;

/// What is sent through, in bytes.
const LARGE: usize = 100 << 20;
/// Connections at once.
const MANY: usize = 1000;

/// A sandbox whose way out is the proxy, and where that leads.
struct World {
    sandbox: Namespace,
    outside: Namespace,
    directory: Directory,
    proxy: Process,
}

impl World {
    fn create(shards: &str) -> Result<World> {
        scenario::prepare()?;
        let (sandbox, outside) = (Namespace::create()?, Namespace::create()?);
        let directory = Directory::create()?;
        outside.ip("address add 203.0.113.7/32 dev lo")?;
        outside.ip("address add 2001:db8:7::7/128 dev lo nodad")?;
        let mut words = command(&[example("tun_proxy")?]);
        words.args(["--netns", sandbox.name(), "--shards", shards]);
        let mut proxy = Process::spawn(&outside, &directory, words)?;
        wait_until("the proxy is ready", seconds(10), || {
            proxy.ensure_not_failed()?;
            Ok(proxy.stdout().contains("ready"))
        })?;
        // The stack asks whether anybody has its IPv6 address.
        wait_until("IPv6 leads out", seconds(10), || {
            let to: SocketAddr = "[2001:db8:7::7]:9".parse()?;
            let refused = sandbox.enter(|| TcpStream::connect_timeout(&to, seconds(1)));
            Ok(refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
        })?;
        Ok(World {
            sandbox,
            outside,
            directory,
            proxy,
        })
    }

    fn serve(&self, words: &str) -> Result<Process> {
        let words: Vec<&str> = words.split_whitespace().collect();
        Process::spawn(&self.outside, &self.directory, command(&words))
    }

    /// Runs a command inside, which must succeed; what it said.
    fn inside(&self, words: &str) -> Result<String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let process = Process::spawn(&self.sandbox, &self.directory, command(&words))?;
        Ok(process.wait(seconds(60))?.success()?.text())
    }

    fn end(self) -> Result<()> {
        let World { sandbox, proxy, .. } = self;
        proxy.stop(Signal::TERM, seconds(10))?;
        ensure!(
            sandbox.devices()?.is_empty(),
            "the device goes with the proxy"
        );
        Ok(())
    }
}

/// A file by curl over both families, the same at both ends.
fn curl_fetches_a_large_file(shards: &str) -> Result<()> {
    let world = World::create(shards)?;
    let directory = &world.directory;
    let served = directory.join("served");
    std::fs::create_dir(&served)?;
    content::write_file(&served.join("large"), 7, LARGE)?;
    let root = served.display();
    let server = world.serve(&format!(
        "python3 -m http.server 80 --bind :: --directory {root}"
    ))?;
    for host in ["203.0.113.7", "[2001:db8:7::7]"] {
        let got = directory.join("got");
        let out = got.display();
        world.inside(&format!(
            "curl -sSf -g --retry 20 --retry-connrefused --retry-delay 1 -o {out} http://{host}/large"
        ))?;
        content::ensure_same(&served.join("large"), &got).context(host)?;
    }
    server.stop(Signal::TERM, seconds(10))?;
    world.end()
}

/// Names by datagrams, and a closed port by them.
fn dig_asks_a_name_server(shards: &str) -> Result<()> {
    let world = World::create(shards)?;
    let mut server = world.serve(
        "dnsmasq --keep-in-foreground --conf-file=/dev/null --user=root --pid-file --log-facility=- --no-resolv --no-hosts \
         --port=53 --listen-address=203.0.113.7 --listen-address=2001:db8:7::7 --bind-interfaces --address=/host.test/10.1.2.3",
    )?;
    wait_until("dnsmasq has begun", seconds(10), || {
        server.ensure_not_failed()?;
        Ok(server.stderr().contains("started") || server.stdout().contains("started"))
    })?;
    for host in ["203.0.113.7", "2001:db8:7::7"] {
        for _ in 0..20 {
            let answer = world.inside(&format!(
                "dig @{host} +short +notcp +tries=5 +time=2 host.test A"
            ))?;
            ensure!(answer.trim() == "10.1.2.3", "{host} says {answer:?}");
        }
    }
    server.stop(Signal::TERM, seconds(10))?;
    world.end()
}

/// Many at once, each with bytes of its own; and who is refused outside is refused inside.
fn a_thousand_connections(shards: &str) -> Result<()> {
    let world = World::create(shards)?;
    let listener = world.outside.enter(|| TcpListener::bind("203.0.113.7:7"))?;
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        let mut streams = Vec::new();
        for _ in 0..MANY {
            streams.push(listener.accept()?.0);
        }
        for stream in &mut streams {
            let mut bytes = [0; 8];
            stream.read_exact(&mut bytes)?;
            stream.write_all(&bytes)?;
        }
        // Until all have gone.
        for stream in &mut streams {
            stream.read_to_end(&mut Vec::new())?;
        }
        Ok(())
    });
    let mut streams = world.sandbox.enter(|| {
        (0..MANY)
            .map(|_| TcpStream::connect("203.0.113.7:7"))
            .collect::<std::io::Result<Vec<_>>>()
    })?;
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&(number as u64).to_ne_bytes())?;
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        stream.set_read_timeout(Some(seconds(30)))?;
        stream.read_exact(&mut bytes)?;
        ensure!(
            u64::from_ne_bytes(bytes) == number as u64,
            "number {number}"
        );
    }
    drop(streams);
    server.join().expect("it does not panic")?;
    let closed = world
        .sandbox
        .enter(|| TcpStream::connect("203.0.113.7:8"))
        .expect_err("nobody listens");
    ensure!(closed.kind() == ErrorKind::ConnectionRefused, "{closed}");
    world.end()
}

/// One whom nobody has made a device for is told what to do.
fn without_a_device_it_says_why() -> Result<()> {
    scenario::prepare()?;
    let output = Command::new(example("tun_proxy")?)
        .args(["--netns", "mr-no-such"])
        .output()?;
    ensure!(!output.status.success(), "there is no such namespace");
    Ok(())
}

#[test]
fn curl() {
    curl_fetches_a_large_file("1").expect("a file through the proxy");
}

#[test]
fn curl_on_two_shards() {
    curl_fetches_a_large_file("2").expect("a file through the proxy");
}

#[test]
fn dig() {
    dig_asks_a_name_server("1").expect("names through the proxy");
}

#[test]
fn dig_on_two_shards() {
    dig_asks_a_name_server("2").expect("names through the proxy");
}

#[test]
fn many() {
    a_thousand_connections("1").expect("connections through the proxy");
}

#[test]
fn many_on_two_shards() {
    a_thousand_connections("2").expect("connections through the proxy");
}

#[test]
fn refused() {
    without_a_device_it_says_why().expect("an error");
}
