//! The library's examples, with the kernel's programs as their peers.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream, UdpSocket};

use millrace_e2e::namespace::Namespace;
use millrace_e2e::{
    Context as _, Directory, Process, Result, command, compile, content, ensure, example, scenario,
    seconds, wait_until,
};
use rustix::process::Signal;

/// An example that is ready, at 10.77.0.2 in a namespace of its own.
struct Server {
    namespace: Namespace,
    directory: Directory,
    process: Process,
}

impl Server {
    fn start(name: &str, arguments: &[&str], directory: Directory) -> Result<Server> {
        Server::run(&example(name)?, arguments, directory)
    }

    fn run(program: &str, arguments: &[&str], directory: Directory) -> Result<Server> {
        scenario::prepare()?;
        let namespace = Namespace::create()?;
        let mut words = command(&[program]);
        words.args(arguments);
        let mut process = Process::spawn(&namespace, &directory, words)?;
        wait_until("the example is ready", seconds(10), || {
            process.ensure_not_failed()?;
            Ok(process.stdout().contains("ready"))
        })?;
        Ok(Server {
            namespace,
            directory,
            process,
        })
    }

    /// Runs a command beside it, which must succeed; what it said.
    fn beside(&self, words: &str) -> Result<String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let process = Process::spawn(&self.namespace, &self.directory, command(&words))?;
        Ok(process.wait(seconds(60))?.success()?.text())
    }

    fn end(self) -> Result<()> {
        self.process.stop(Signal::TERM, seconds(10))?;
        let left = self.namespace.devices()?;
        ensure!(left.is_empty(), "left behind: {left:?}");
        Ok(())
    }
}

/// Sends bytes from a seed in one thread and reads them back in another.
fn say_and_hear(server: &Server, seed: u64) -> Result<()> {
    let sent = content::Bytes::from_seed(seed).take(1 << 20);
    let mut stream = server
        .namespace
        .enter(|| TcpStream::connect("10.77.0.2:7"))?;
    let mut writer = stream.try_clone()?;
    let heard = std::thread::scope(|scope| -> Result<Vec<u8>> {
        let sending = scope.spawn(|| -> std::io::Result<()> {
            writer.write_all(&sent)?;
            writer.shutdown(Shutdown::Write)
        });
        let mut heard = Vec::new();
        stream.set_read_timeout(Some(seconds(30)))?;
        stream.read_to_end(&mut heard)?;
        sending.join().expect("it does not panic")?;
        Ok(heard)
    })?;
    ensure!(heard == sent, "{} of {} bytes", heard.len(), sent.len());
    Ok(())
}

fn echo_to_one_after_the_other() -> Result<()> {
    let server = Server::start("echo", &[], Directory::create()?)?;
    for seed in 0..3 {
        say_and_hear(&server, seed)?;
    }
    server.end()
}

/// Eight conversations at once, a megabyte each way in each.
fn say_and_hear_at_once(server: &Server) -> Result<()> {
    std::thread::scope(|scope| -> Result<()> {
        let all: Vec<_> = (0..8)
            .map(|seed| scope.spawn(move || say_and_hear(server, seed)))
            .collect();
        for each in all {
            each.join().expect("it does not panic")?;
        }
        Ok(())
    })
}

fn echo_in_c_on(shards: &str) -> Result<()> {
    let server = Server::run(&compile::embedded("echo")?, &[shards], Directory::create()?)?;
    say_and_hear_at_once(&server)?;
    server.end()
}

fn echo_to_many_at_once() -> Result<()> {
    let server = Server::start("echo_async", &[], Directory::create()?)?;
    say_and_hear_at_once(&server)?;
    let socket = server.namespace.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
    socket.connect("10.77.0.2:7")?;
    socket.set_read_timeout(Some(seconds(10)))?;
    for len in [0, 1, 1472, 9000] {
        socket.send(&vec![7; len])?;
        let mut buffer = vec![0; 10_000];
        let heard = socket.recv(&mut buffer).context("an answer")?;
        ensure!(buffer[..heard] == vec![7; len], "{heard} of {len} bytes");
    }
    server.end()
}

fn files_on_two_shards() -> Result<()> {
    let directory = Directory::create()?;
    let root = directory.join("root");
    std::fs::create_dir(&root)?;
    content::write_file(&root.join("large"), 3, 8 << 20)?;
    std::fs::write(root.join("index.html"), "front")?;
    std::fs::write(directory.join("secret"), "not for all")?;
    let path = root.display().to_string();
    let server = Server::start("web", &[&path, "2"], directory)?;
    ensure!(server.beside("curl -sSf http://10.77.0.2/")? == "front");
    let got = server.directory.join("got");
    for _ in 0..4 {
        let out = got.display();
        server.beside(&format!("curl -sSf -o {out} http://10.77.0.2/large"))?;
        content::ensure_same(&root.join("large"), &got)?;
    }
    for (options, target, status) in [
        ("", "/missing", "404"),
        ("--path-as-is", "/../secret", "404"),
        ("-X POST", "/", "405"),
        ("-I", "/large", "200"),
    ] {
        let answer = server.beside(&format!(
            "curl -sS {options} -o /dev/null -w %{{http_code}} http://10.77.0.2{target}"
        ))?;
        ensure!(answer == status, "{options} {target}: {answer}");
    }
    let report = server.beside("ab -q -k -n 20000 -c 50 http://10.77.0.2/index.html")?;
    ensure!(report.contains("Failed requests:        0"), "{report}");
    server.end()
}

/// The kernel talks to both links at once, and to itself from one to the other.
fn two_networks_on(shards: &str) -> Result<()> {
    let directory = Directory::create()?;
    let root = directory.join("root");
    std::fs::create_dir(&root)?;
    content::write_file(&root.join("large"), 5, 16 << 20)?;
    let path = root.display().to_string();
    let server = Server::start("two_links", &["10.78.0.1:8000", shards], directory)?;
    let words = format!("python3 -m http.server 8000 --bind 10.78.0.1 --directory {path}");
    let words: Vec<&str> = words.split(' ').collect();
    let files = Process::spawn(&server.namespace, &server.directory, command(&words))?;
    let ask = |net: u8| -> Result<()> {
        let out = server.directory.join(format!("got{net}"));
        for _ in 0..5 {
            let said = server.beside(&format!("curl -sSf http://10.{net}.0.2/"))?;
            let (from, at) = (format!("10.{net}.0.1:"), format!("at 10.{net}.0.2:80"));
            ensure!(said.starts_with(&from) && said.contains(&at), "{said}");
            let got = out.display();
            server.beside(&format!(
                "curl -sSf --retry 20 --retry-connrefused --retry-all-errors --retry-delay 1 -o {got} http://10.{net}.0.2:8080/large"
            ))?;
            content::ensure_same(&root.join("large"), &out)?;
        }
        let socket = server.namespace.enter(|| UdpSocket::bind("0.0.0.0:0"))?;
        socket.connect(format!("10.{net}.0.2:7"))?;
        socket.set_read_timeout(Some(seconds(10)))?;
        for len in [0, 1, 1472, 9000] {
            socket.send(&vec![net; len])?;
            let mut buffer = vec![0; 10_000];
            let heard = socket.recv(&mut buffer).context("an answer")?;
            ensure!(buffer[..heard] == vec![net; len], "{heard} of {len} bytes");
        }
        Ok(())
    };
    let ask = &ask;
    std::thread::scope(|scope| -> Result<()> {
        let both = [77, 78].map(|net| scope.spawn(move || ask(net)));
        for each in both {
            each.join().expect("it does not panic")?;
        }
        Ok(())
    })?;
    files.stop(Signal::TERM, seconds(10))?;
    server.end()
}

/// curl trusts the certificate that the server was given, keeps the connection, and agrees on what
/// is best; with another certificate there is no answer.
fn https_to_curl() -> Result<()> {
    let directory = Directory::create()?;
    for name in ["own", "other"] {
        let words = "openssl req -x509 -newkey ed25519 -nodes -days 2 -subj /CN=millrace -addext subjectAltName=IP:10.77.0.2";
        let words: Vec<&str> = words.split(' ').collect();
        let mut words = command(&words);
        words
            .arg("-keyout")
            .arg(directory.join(format!("{name}.key")));
        words.arg("-out").arg(directory.join(format!("{name}.pem")));
        let made = words.output().context("openssl")?;
        ensure!(made.status.success(), "openssl: {made:?}");
    }
    let file = |name: &str| directory.join(name).display().to_string();
    let [own, key, other] = ["own.pem", "own.key", "other.pem"].map(file);
    let server = Server::start("tls", &[&own, &key], directory)?;
    for (version, suite) in [
        ("1.3", "TLSv1_3 TLS13_AES_256_GCM_SHA384"),
        ("1.2", "TLSv1_2 TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    ] {
        let said = server.beside(&format!(
            "curl -sSf --tlsv{version} --tls-max {version} --cacert {own} https://10.77.0.2/one https://10.77.0.2/two"
        ))?;
        let lines: Vec<&str> = said.lines().collect();
        ensure!(
            matches!(lines[..], [first, from, "GET /one HTTP/1.1", second, again, "GET /two HTTP/1.1"]
                if first == suite && second == suite && from == again && from.starts_with("10.77.0.1:")),
            "{version}: {said}"
        );
    }
    let refused = server.beside(&format!("curl -sS --cacert {other} https://10.77.0.2/"));
    ensure!(refused.is_err(), "another certificate is not trusted");
    let plain = server.beside("curl -sS http://10.77.0.2:443/");
    ensure!(plain.is_err(), "what is not TLS has no answer");
    server.beside(&format!("curl -sSf --cacert {own} https://10.77.0.2/"))?;
    server.end()
}

/// Those that need no network: they check themselves, and say what came of it.
fn in_virtual_time(name: &str, argument: &[&str], lines: usize) -> Result<()> {
    let mut words = command(&[example(name)?]);
    let output = words.args(argument).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{output:?}");
    ensure!(said.lines().count() == lines, "{said}");
    Ok(())
}

/// The kernel's end echoes; with nobody there it says that.
fn load_on_the_kernel() -> Result<()> {
    scenario::prepare()?;
    let (namespace, directory) = (Namespace::create()?, Directory::create()?);
    let program = compile::program("server")?;
    let mut words = command(&[&program[..], "echo", "0.0.0.0", "7"]);
    let mut server = Process::spawn(&namespace, &directory, words)?;
    wait_until("the server is ready", seconds(10), || {
        server.ensure_not_failed()?;
        Ok(server.stdout().contains("ready"))
    })?;
    for (port, good) in [("7", true), ("8", false)] {
        words = command(&[example("load")?, format!("10.77.0.1:{port}")]);
        words.args(["20", "1"]);
        let ended = Process::spawn(&namespace, &directory, words)?.wait(seconds(30))?;
        let said = format!("{}{}", ended.text(), String::from_utf8_lossy(&ended.stderr));
        ensure!(ended.success().is_ok() == good, "{said}");
        ensure!(said.contains("per second") == good, "{said}");
        ensure!(good || said.contains("20 failed"), "{said}");
    }
    server.stop(Signal::TERM, seconds(10)).map(drop)
}

/// A key that is none is named.
fn tls_names_what_it_cannot_read() -> Result<()> {
    scenario::prepare()?;
    let output = command(&[example("tls")?, "/dev/null".into(), "/dev/null".into()]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "there is no certificate");
    ensure!(said.contains("/dev/null"), "{said}");
    Ok(())
}

#[test]
fn tls() {
    https_to_curl().expect("TLS");
}

#[test]
fn tls_without_a_certificate() {
    tls_names_what_it_cannot_read().expect("an error");
}

#[test]
fn vegas() {
    in_virtual_time("vegas", &[], 2).expect("congestion control");
}

#[test]
fn simulate() {
    in_virtual_time("simulate", &["20"], 20).expect("the same again");
}

#[test]
fn load() {
    load_on_the_kernel().expect("a load");
}

#[test]
fn pingpong() {
    in_virtual_time("pingpong", &["direct", "1000"], 1).expect("exchanges");
    in_virtual_time("pingpong", &["tasks", "1000"], 1).expect("exchanges");
}

#[test]
fn echo() {
    echo_to_one_after_the_other().expect("what was said");
}

#[test]
fn two_links() {
    two_networks_on("1").expect("both networks");
}

#[test]
fn two_links_on_two_shards() {
    two_networks_on("2").expect("both networks");
}

#[test]
fn echo_in_c() {
    echo_in_c_on("1").expect("what was said");
}

#[test]
fn echo_in_c_on_two_shards() {
    echo_in_c_on("2").expect("what was said");
}

#[test]
fn echo_async() {
    echo_to_many_at_once().expect("what was said");
}

#[test]
fn web() {
    files_on_two_shards().expect("files");
}
