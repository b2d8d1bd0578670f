//! Messages between two hosts over a veth pair, by packet sockets.

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
