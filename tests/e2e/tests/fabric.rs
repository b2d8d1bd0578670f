//! Messages between two hosts over a veth pair, by packet sockets.

use std::path::Path;

use millrace_e2e::directory::Directory;
use millrace_e2e::namespace::Namespace;
use millrace_e2e::{
    Context as _, Process, Result, command, ensure, scenario, seconds, wait_until, world,
};

/// Two hosts with devices `veth0` that lead to each other.
struct Lab {
    one: Namespace,
    two: Namespace,
    directory: Directory,
}

impl Lab {
    fn new() -> Result<Lab> {
        scenario::prepare()?;
        let (one, two) = (Namespace::create()?, Namespace::create()?);
        one.link("10.66.0.1/24", &two, "10.66.0.2/24")?;
        Ok(Lab {
            one,
            two,
            directory: Directory::create()?,
        })
    }

    /// `millrace` on a host, with words that are separated by spaces.
    fn millrace(&self, host: &Namespace, words: &str) -> Result<Process> {
        let program = world::millrace();
        let program = program.to_str().context("the path of millrace")?;
        let words: Vec<&str> = [program].into_iter().chain(words.split(' ')).collect();
        Process::spawn(host, &self.directory, command(&words))
    }
}

#[test]
fn two_hosts_exchange_messages_over_veth() -> Result<()> {
    let lab = Lab::new()?;
    let mut server = lab.millrace(&lab.two, "fabric serve 7.1 --link packet:veth0")?;
    wait_until("the port answers", seconds(10), || {
        server.ensure_not_failed()?;
        Ok(server.stdout().contains("port 7.1 answers"))
    })?;
    for (words, wanted) in [
        ("ping 7.1 --count 100", "100 round trips of 64 B to 7.1"),
        (
            "bandwidth 7.1 --count 200 --size 100000",
            "200 messages of 100000 B to 7.1",
        ),
    ] {
        let client = lab.millrace(&lab.one, &format!("fabric {words} --link packet:veth0"))?;
        let text = client.wait(seconds(60))?.success()?.text();
        ensure!(text.contains(wanted), "{words}: {text}");
    }
    server.ensure_not_failed()
}

#[test]
fn a_node_that_is_not_there_is_named() -> Result<()> {
    let lab = Lab::new()?;
    let words = "fabric ping 9.1 --count 1 --link packet:veth0";
    let ended = lab.millrace(&lab.one, words)?.wait(seconds(60))?;
    let said = ended.error_text();
    ensure!(
        said.contains("port 9.1") && said.contains("does not answer"),
        "{said}"
    );
    Ok(())
}

/// Addresses of the hosts on the fabric.
const IPS: [&str; 2] = ["10.66.9.1", "10.66.9.2"];

/// A device of the kernel's on each host, by the fabric with these options.
fn devices(lab: &Lab, options: [&str; 2]) -> Result<Vec<Process>> {
    let mut bridges = Vec::new();
    for (at, host) in [&lab.one, &lab.two].into_iter().enumerate() {
        let (node, options, ip) = (at + 1, options[at], IPS[at]);
        let words = format!("fabric ip fabric:{node}{options} --addr {ip}/24");
        bridges.push(lab.millrace(host, &words)?);
    }
    wait_until("both hosts reach each other", seconds(20), || {
        for bridge in &mut bridges {
            bridge.ensure_not_failed()?;
        }
        // Nobody listens there: the answer is a RST.
        let to = std::net::SocketAddr::new(IPS[1].parse()?, 9);
        let tried = lab
            .one
            .enter(|| std::net::TcpStream::connect_timeout(&to, seconds(1)));
        let error = tried.expect_err("nobody listens");
        Ok(error.kind() == std::io::ErrorKind::ConnectionRefused)
    })?;
    Ok(bridges)
}

/// Unmodified programs of the kernel's stack run over the fabric.
fn run_programs(lab: &Lab) -> Result<()> {
    let large = lab.directory.join("large");
    millrace_e2e::content::write_file(&large, 19, 3_000_000)?;
    let place = lab
        .directory
        .to_str()
        .context("the path of the directory")?;
    let serve = ["/usr/bin/python3", "-m", "http.server", "8000", "-d", place];
    let mut server = Process::spawn(&lab.two, &lab.directory, command(&serve))?;
    let copy = format!("{place}/copy");
    let url = format!("http://{}:8000/large", IPS[1]);
    let fetch = [
        "curl",
        "-sf",
        "--retry",
        "20",
        "--retry-connrefused",
        "--retry-delay",
        "1",
    ];
    let fetch: Vec<&str> = fetch.into_iter().chain(["-o", &copy, &url]).collect();
    let fetched = Process::spawn(&lab.one, &lab.directory, command(&fetch))?;
    fetched.wait(seconds(60))?.success()?;
    server.ensure_not_failed()?;
    millrace_e2e::content::ensure_same(&large, Path::new(&copy))?;
    for direction in ["-4", "-R"] {
        let serve = ["iperf3", "-s", "-1", "--forceflush"];
        let server = Process::spawn(&lab.two, &lab.directory, command(&serve))?;
        wait_until("iperf3 listens", seconds(10), || {
            Ok(server.stdout().contains("listening"))
        })?;
        let client = ["iperf3", "-c", IPS[1], "-n", "20M", direction];
        let client = Process::spawn(&lab.one, &lab.directory, command(&client))?;
        client.wait(seconds(60))?.success()?;
        server.wait(seconds(20))?.success()?;
    }
    Ok(())
}

#[test]
fn programs_of_two_hosts_run_over_messages_over_veth() -> Result<()> {
    let lab = Lab::new()?;
    let mut bridges = devices(&lab, [",over=packet:veth0"; 2])?;
    run_programs(&lab)?;
    bridges.iter_mut().try_for_each(Process::ensure_not_failed)
}

#[test]
fn programs_of_two_namespaces_run_over_shared_memory() -> Result<()> {
    let lab = Lab::new()?;
    let place = format!(",dir={}", lab.directory.join("ports").display());
    let mut bridges = devices(&lab, [&place; 2])?;
    run_programs(&lab)?;
    bridges.iter_mut().try_for_each(Process::ensure_not_failed)
}

#[test]
fn programs_run_with_all_that_is_fast_switched_off() -> Result<()> {
    let lab = Lab::new()?;
    let place = lab.directory.join("ports");
    let options = format!(
        ",mtu=1500,inline=off,elide=off,batch=off,dir={}",
        place.display()
    );
    let mut bridges = devices(&lab, [&options; 2])?;
    run_programs(&lab)?;
    bridges.iter_mut().try_for_each(Process::ensure_not_failed)
}
