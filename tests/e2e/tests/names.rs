//! Datagrams of real programs: dnsmasq and BIND answer dig, each on either side, and iperf3 sends
//! as fast as it is told.

use millrace_e2e::{
    Context as _, PEER, Process, Result, SUBJECT, Stack, World, ensure,
    on_both_stacks_and_two_shards, seconds, wait_until,
};
use rustix::process::Signal;
use serde_json::Value;

on_both_stacks_and_two_shards!(
    dnsmasq_serves,
    dnsmasq_finds_its_addresses,
    bind_finds_its_addresses,
    dig_is_served,
    iperf3_takes_datagrams,
    iperf3_sends_datagrams,
);

const PORT: u16 = 5300;
/// Names that are asked for in a row.
const NAMES: usize = 100;

/// The words of a server that knows a few names, one of them with more to say than a packet holds.
fn server(listening: &str) -> Vec<String> {
    let mut words: Vec<String> = format!(
        "dnsmasq --keep-in-foreground --conf-file=/dev/null --user=root --pid-file --log-facility=- --no-resolv --no-hosts \
         --port={PORT} {listening} --edns-packet-max=4096 --address=/host.test/10.1.2.3 --address=/host.test/fd00::5"
    )
    .split_whitespace()
    .map(String::from)
    .collect();
    let strings: Vec<String> = (0..10)
        .map(|i| char::from(b'a' + i).to_string().repeat(250))
        .collect();
    words.push(format!("--txt-record=long.test,{}", strings.join(",")));
    words
}

fn dig(address: std::net::Ipv4Addr, question: &str) -> Vec<String> {
    format!("dig @{address} -p {PORT} +short +notcp +ignore +tries=5 +time=2 {question}")
        .split_whitespace()
        .map(String::from)
        .collect()
}

/// Asks for what the server knows, and for what it does not.
fn ask(address: std::net::Ipv4Addr, run: impl Fn(&[String]) -> Result<String>) -> Result<()> {
    let asked = |question: &str| run(&dig(address, question)).context(question.to_owned());
    ensure!(asked("host.test A")?.trim() == "10.1.2.3", "the address");
    ensure!(
        asked("host.test AAAA")?.trim() == "fd00::5",
        "the IPv6 address"
    );
    ensure!(asked("unknown.test A")?.trim().is_empty(), "what is not");
    let long = asked("+bufsize=4096 long.test TXT")?;
    for letter in 'a'..='j' {
        let string = letter.to_string().repeat(250);
        ensure!(long.contains(&string), "the strings, cut: {long}");
    }
    let many = "host.test A ".repeat(NAMES);
    let answers = asked(&many)?;
    let right = answers.lines().filter(|line| *line == "10.1.2.3").count();
    ensure!(right == NAMES, "{right} of {NAMES} were answered");
    let over_tcp = asked("+tcp host.test A")?;
    ensure!(over_tcp.trim() == "10.1.2.3", "over TCP: {over_tcp}");
    Ok(())
}

/// Waits until the server says that it has begun.
fn wait_until_begun(server: &mut Process) -> Result<()> {
    wait_until("dnsmasq has begun", seconds(10), || {
        server.ensure_not_failed()?;
        Ok(server.stderr().contains("started") || server.stdout().contains("started"))
    })
}

fn dnsmasq_serves(world: &World) -> Result<()> {
    let mut server = world.subject(&server(&format!(
        "--bind-interfaces --listen-address={SUBJECT}"
    )))?;
    wait_until_begun(&mut server)?;
    ask(SUBJECT, |words| {
        Ok(world.run_on_peer(words, seconds(60))?.text())
    })?;
    server.stop(Signal::TERM, seconds(10)).map(|_| ())
}

/// It looks for its addresses by netlink, and drops TCP connections to others.
fn dnsmasq_finds_its_addresses(world: &World) -> Result<()> {
    for listening in ["", "--bind-interfaces", "--bind-dynamic"] {
        let mut server = world.subject(&server(listening))?;
        wait_until_begun(&mut server)?;
        for over in ["+notcp", "+tcp"] {
            let words = dig(SUBJECT, &format!("{over} host.test A"));
            let answer = world.run_on_peer(&words, seconds(30))?.text();
            ensure!(answer.trim() == "10.1.2.3", "{listening} {over}: {answer}");
        }
        server.stop(Signal::TERM, seconds(10))?;
        if world.stack == Stack::Millrace {
            wait_until("the engine has ended", seconds(20), || {
                Ok(world.peer_namespace().devices()?.is_empty())
            })?;
        }
    }
    Ok(())
}

/// It listens on each address that getifaddrs shows, and on no other.
fn bind_finds_its_addresses(world: &World) -> Result<()> {
    let directory = world.directory().display();
    let config = world.directory().join("named.conf");
    let zone = world.directory().join("zone");
    std::fs::write(
        &zone,
        "$TTL 60\n@ SOA ns root 1 60 60 60 60\n@ NS ns\nns A 10.1.2.4\nhost A 10.1.2.3\n",
    )?;
    std::fs::write(
        &config,
        format!(
            "options {{ directory \"{directory}\"; pid-file none; session-keyfile none; recursion no; dnssec-validation no;\n\
             listen-on port {PORT} {{ any; }}; listen-on-v6 {{ none; }}; }};\n\
             controls {{ }};\nzone \"test\" {{ type primary; file \"{}\"; }};\n",
            zone.display()
        ),
    )?;
    let line = format!("/usr/sbin/named -g -u root -n 2 -c {}", config.display());
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut server = world.subject(&words)?;
    wait_until("BIND has begun", seconds(20), || {
        server.ensure_not_failed()?;
        Ok(server
            .stderr()
            .lines()
            .any(|line| line.ends_with(" running")))
    })?;
    for over in ["+notcp", "+tcp"].repeat(3) {
        let words = dig(SUBJECT, &format!("{over} host.test A"));
        let answer = world.run_on_peer(&words, seconds(60))?.text();
        ensure!(answer.trim() == "10.1.2.3", "{over}: {answer}");
    }
    server.stop(Signal::TERM, seconds(20)).map(|_| ())
}

fn dig_is_served(world: &World) -> Result<()> {
    let mut server = world.peer(&server(""))?;
    wait_until_begun(&mut server)?;
    ask(PEER, |words| {
        Ok(world.run_on_subject(words, seconds(60))?.text())
    })?;
    server.stop(Signal::TERM, seconds(10)).map(|_| ())
}

/// Datagrams at a rate that any machine bears, in both directions; most arrive, and none that was
/// not sent.
fn send_datagrams(
    server: &Process,
    run: impl Fn(&[String]) -> Result<String>,
    address: std::net::Ipv4Addr,
) -> Result<()> {
    for (before, more) in ["", "-R"].into_iter().enumerate() {
        // After each test it makes its listener anew, and says so.
        wait_until("iperf3 listens", seconds(10), || {
            Ok(server.stdout().matches("listening").count() > before)
        })?;
        let words: Vec<String> =
            format!("iperf3 -u -b 20M -l 1400 -c {address} -t 2 --json {more}")
                .split_whitespace()
                .map(String::from)
                .collect();
        let said = run(&words).with_context(|| format!("with {more:?}"))?;
        let report: Value = serde_json::from_str(&said).context("reading what iperf3 says")?;
        ensure!(report["error"].is_null(), "iperf3: {}", report["error"]);
        let sum = &report["end"]["sum"];
        let number = |name: &str| sum[name].as_f64().unwrap_or(f64::NAN);
        let (packets, lost) = (number("packets"), number("lost_packets"));
        ensure!(packets > 1_000.0, "{packets} datagrams: {sum}");
        ensure!(lost < packets / 2.0, "{lost} of {packets} are lost");
    }
    Ok(())
}

fn iperf3_takes_datagrams(world: &World) -> Result<()> {
    let server = world.subject(&["iperf3", "-s", "-B", &SUBJECT.to_string(), "--forceflush"])?;
    send_datagrams(
        &server,
        |words| Ok(world.run_on_peer(words, seconds(30))?.text()),
        SUBJECT,
    )?;
    server.stop(Signal::TERM, seconds(10)).map(|_| ())
}

fn iperf3_sends_datagrams(world: &World) -> Result<()> {
    let server = world.peer(&["iperf3", "-s", "--forceflush"])?;
    send_datagrams(
        &server,
        |words| Ok(world.run_on_subject(words, seconds(30))?.text()),
        PEER,
    )?;
    server.stop(Signal::TERM, seconds(10)).map(|_| ())
}
