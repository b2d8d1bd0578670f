//! `millrace nic` between two kernels: one sends over a veth pair, at whose other end the card
//! stands in front of the other one.

use std::path::Path;
use std::process::Stdio;

use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::directory::Directory;
use millrace_e2e::namespace::Namespace;
use millrace_e2e::{
    Context as _, Ended, Process, Result, command, compile, ensure, scenario, seconds, wait_until,
    world,
};
use rustix::process::Signal;
use serde_json::Value;

const PYTHON: &str = "/usr/bin/python3";
const FAR: &str = "10.55.0.1";
const NEAR: &str = "10.55.0.2";
const FAR_V6: &str = "fd55::1";
const NEAR_V6: &str = "fd55::2";

/// A host on its kernel's stack, and another one with the card between it and the wire.
struct Lab {
    far: Namespace,
    near: Namespace,
    /// Where frames are mishandled, if they are.
    between: Option<(Namespace, Process)>,
    card: Process,
    directory: Directory,
}

/// By which means the card has its wire.
const BY_PACKET: &str = "packet:wire0";
const BY_XDP: &str = "xdp:wire0";

/// What the wire is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    /// The sender leaves cutting and checksums to the wire, which leaves them, too.
    Unfinished,
    /// Frames are as on a real one.
    Plain,
    /// Likewise, and some are lost, late, doubled or damaged.
    Impaired,
}

impl Lab {
    fn new(wire: Wire, more: &[&str]) -> Result<Lab> {
        Lab::by(BY_PACKET, wire, more)
    }

    fn by(means: &str, wire: Wire, more: &[&str]) -> Result<Lab> {
        scenario::prepare()?;
        let (far, near) = (Namespace::create()?, Namespace::create()?);
        let directory = Directory::create()?;
        let between = if wire == Wire::Impaired {
            let middle = Namespace::create()?;
            veth((&far, "veth0"), (&middle, "m0"), 1)?;
            veth((&middle, "m1"), (&near, "wire0"), 1)?;
            for device in ["m0", "m1"] {
                middle.ip(&format!("link set {device} up"))?;
                plain(&middle, device)?;
            }
            Some(middle)
        } else {
            // What a device spreads over several may arrive in another order.
            let queues = if more.contains(&"--shards") { 2 } else { 1 };
            veth((&far, "veth0"), (&near, "wire0"), queues)?;
            None
        };
        far.ip(&format!("addr add {FAR}/24 dev veth0"))?;
        far.ip(&format!("addr add {FAR_V6}/64 dev veth0 nodad"))?;
        far.ip("link set veth0 up")?;
        near.ip("link set wire0 up")?;
        near.set("ipv4.conf.wire0.arp_ignore", "1")?;
        if wire != Wire::Unfinished {
            plain(&far, "veth0")?;
            plain(&near, "wire0")?;
        }
        let between = match between {
            Some(middle) => {
                let script = compile::script("impair.py");
                let words = [PYTHON, &script, "m0", "m1", "7"];
                let relay = Process::spawn(&middle, &directory, command(&words))?;
                Some((middle, relay))
            }
            None => None,
        };
        let card = start_card(&near, &directory, means, more)?;
        near.ip(&format!("addr add {NEAR}/24 dev nic0"))?;
        near.ip(&format!("addr add {NEAR_V6}/64 dev nic0 nodad"))?;
        near.ip("link set nic0 up")?;
        Ok(Lab {
            far,
            near,
            between,
            card,
            directory,
        })
    }

    fn start(&self, on: &Namespace, line: &str) -> Result<Process> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = command(&words);
        command.stdin(Stdio::null());
        Process::spawn(on, &self.directory, command)
    }

    fn run(&self, on: &Namespace, line: &str) -> Result<Ended> {
        self.start(on, line)?.wait(seconds(160))?.success()
    }

    /// What the card says of itself.
    fn card_says(&self) -> Result<Value> {
        let millrace = world::millrace();
        let line = format!("{} nic --stats nic0 --json", millrace.display());
        let said = self.run(&self.near, &line)?.text();
        serde_json::from_str(&said).context("reading what the card says")
    }

    fn counter(&self, name: &str) -> Result<u64> {
        let said = self.card_says()?;
        said["offload"][name].as_u64().context("a counter")
    }

    /// A file from `from`, by HTTP, to a client at the other end, compared byte for byte.
    fn fetch(&self, from: &Namespace, to: &Namespace, address: &str, len: usize) -> Result<()> {
        let served = self.directory.join("served");
        std::fs::create_dir_all(&served)?;
        write_file(&served.join("file"), len as u64, len)?;
        let line = format!(
            "{PYTHON} -u -m http.server --bind {address} --directory {} 8000",
            served.display()
        );
        let server = self.start(from, &line)?;
        wait_until("the server listens", seconds(20), || {
            Ok(server.stdout().contains("Serving"))
        })?;
        let got = self.directory.join("got");
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.to_owned()
        };
        let line = format!(
            "curl -sS --globoff --max-time 150 -o {} http://{host}:8000/file",
            got.display()
        );
        self.run(to, &line)?;
        ensure_same(&served.join("file"), &got)?;
        server.stop(Signal::TERM, seconds(10)).map(drop)
    }

    /// Ends everything, and looks at what is left.
    fn finish(mut self) -> Result<()> {
        ensure!(
            self.card.is_running()?,
            "the card has ended: {}",
            self.card.stderr()
        );
        if let Some((_, relay)) = &mut self.between {
            ensure!(
                relay.is_running()?,
                "the relay has ended: {}",
                relay.stderr()
            );
        }
        self.card.stop(Signal::TERM, seconds(10))?;
        ensure!(
            self.near.devices()? == ["wire0"],
            "left: {:?}",
            self.near.devices()?
        );
        Ok(())
    }
}

fn start_card(near: &Namespace, directory: &Path, means: &str, more: &[&str]) -> Result<Process> {
    let millrace = world::millrace();
    let millrace = millrace.to_string_lossy();
    let words = [&*millrace, "nic", "--wire", means, "--host", "tap:nic0"];
    let words = [&words[..], more].concat();
    let card = Process::spawn(near, directory, command(&words))?;
    wait_until("the card is ready", seconds(20), || {
        Ok(card.stdout().contains("ready nic0"))
    })?;
    Ok(card)
}

/// A pair of devices with so many queues, each way.
fn veth(
    (one, name): (&Namespace, &str),
    (two, other): (&Namespace, &str),
    queues: u16,
) -> Result<()> {
    one.ip(&format!(
        "link add {name} numtxqueues {queues} numrxqueues {queues} type veth peer name {other} numtxqueues {queues} numrxqueues {queues} netns {}",
        two.name()
    ))
    .map(drop)
}

/// Makes a veth device behave like a wire.
fn plain(on: &Namespace, device: &str) -> Result<()> {
    let words = format!("ethtool -K {device} tso off gso off gro off tx off rx off");
    let words: Vec<&str> = words.split_whitespace().collect();
    let directory = Directory::create()?;
    let ended = Process::spawn(on, &directory, command(&words))?;
    ended.wait(seconds(10))?.success().map(drop)
}

fn check(result: Result<()>) {
    if let Err(error) = result {
        panic!("{error:#}");
    }
}

/// iperf3 in both directions; `host` is the card's side.
fn iperf(lab: &Lab, host: &str, more: &str) -> Result<()> {
    for direction in ["", "-R"] {
        // One for each: between two tests a server does not listen for a moment.
        let server = lab.start(&lab.near, &format!("iperf3 -s -1 -B {host} --forceflush"))?;
        wait_until("iperf3 listens", seconds(10), || {
            Ok(server.stdout().contains("listening"))
        })?;
        let line = format!("iperf3 -c {host} -t 2 --json {more} {direction}");
        let said: Value = serde_json::from_str(&lab.run(&lab.far, &line)?.text())?;
        let bytes = said["end"]["sum_received"]["bytes"].as_u64();
        ensure!(bytes > Some(1 << 20), "iperf3 {direction}: {said}");
        server.wait(seconds(20))?.success()?;
    }
    Ok(())
}

#[test]
fn bulk_both_ways_over_both_families() {
    check((|| {
        let lab = Lab::new(Wire::Plain, &[])?;
        iperf(&lab, NEAR, "")?;
        iperf(&lab, NEAR_V6, "-P 4")?;
        let (segments, units) = (lab.counter("segments")?, lab.counter("units")?);
        ensure!(segments > 2 * units, "{segments} segments in {units} units");
        lab.finish()
    })());
}

#[test]
fn bulk_on_two_shards() {
    check((|| {
        let lab = Lab::new(Wire::Plain, &["--shards", "2"])?;
        iperf(&lab, NEAR, "-P 8")?;
        ensure!(lab.card_says()?["shards"] == 2, "two shards");
        lab.finish()
    })());
}

#[test]
fn units_that_the_sender_leaves_unfinished_pass() {
    check((|| {
        let lab = Lab::new(Wire::Unfinished, &[])?;
        iperf(&lab, NEAR, "")?;
        lab.fetch(&lab.far, &lab.near, FAR, 30_000_001)?;
        lab.fetch(&lab.near, &lab.far, NEAR_V6, 30_000_001)?;
        lab.finish()
    })());
}

#[test]
fn over_af_xdp_all_frames_of_the_device_are_the_cards() {
    check((|| {
        for (wire, more) in [
            (Wire::Unfinished, &[][..]),
            (Wire::Plain, &["--shards", "2"]),
            (Wire::Impaired, &["--active-ack"]),
        ] {
            let lab = Lab::by(BY_XDP, wire, more)?;
            // Nothing that comes by the device reaches the kernel that has it.
            lab.near.ip("addr add 10.57.0.2/24 dev wire0")?;
            lab.far.ip("addr add 10.57.0.1/24 dev veth0")?;
            let asked = lab.start(&lab.far, "curl -sS --max-time 2 http://10.57.0.2:9/")?;
            let said = asked.wait(seconds(20))?.error_text();
            ensure!(said.contains("timed out"), "{wire:?}: it answers: {said}");
            let lens = match wire {
                Wire::Impaired => [2_000_001; 3],
                _ => {
                    iperf(&lab, NEAR, "-P 4")?;
                    [30_000_001, 30_000_001, 3_000_001]
                }
            };
            lab.fetch(&lab.far, &lab.near, FAR, lens[0])?;
            lab.fetch(&lab.near, &lab.far, NEAR, lens[1])?;
            lab.fetch(&lab.far, &lab.near, FAR_V6, lens[2])?;
            let (segments, units) = (lab.counter("segments")?, lab.counter("units")?);
            ensure!(segments > units, "{segments} segments in {units} units");
            lab.finish()?;
        }
        Ok(())
    })());
}

#[test]
fn paced_segments_arrive_whole() {
    check((|| {
        for (means, wire) in [(BY_PACKET, Wire::Plain), (BY_XDP, Wire::Impaired)] {
            let lab = Lab::by(means, wire, &["--pace", "--active-ack"])?;
            lab.fetch(&lab.near, &lab.far, NEAR, 3_000_001)?;
            lab.fetch(&lab.near, &lab.far, NEAR_V6, 3_000_001)?;
            lab.fetch(&lab.far, &lab.near, FAR, 2_000_001)?;
            ensure!(
                lab.card_says()?["pacing"]["paced"].as_u64() > Some(0),
                "paced"
            );
            lab.finish()?;
        }
        Ok(())
    })());
}

#[test]
fn files_arrive_whole() {
    check((|| {
        for more in [&[][..], &["--aggregate", "9000"], &["--aggregate", "0"]] {
            let lab = Lab::new(Wire::Plain, more)?;
            lab.fetch(&lab.far, &lab.near, FAR, 30_000_001)?;
            lab.fetch(&lab.near, &lab.far, NEAR, 30_000_001)?;
            lab.fetch(&lab.far, &lab.near, FAR_V6, 3_000_001)?;
            lab.finish()?;
        }
        Ok(())
    })());
}

#[test]
fn files_arrive_whole_over_a_bad_wire() {
    check((|| {
        let lab = Lab::new(Wire::Impaired, &[])?;
        lab.fetch(&lab.far, &lab.near, FAR, 4_000_001)?;
        lab.fetch(&lab.near, &lab.far, NEAR, 2_000_001)?;
        lab.fetch(&lab.far, &lab.near, FAR_V6, 2_000_001)?;
        for counter in ["reordered", "bad_tcp_checksum", "segments"] {
            ensure!(lab.counter(counter)? > 0, "no {counter}");
        }
        lab.finish()
    })());
}

#[test]
fn what_the_card_acknowledges_arrives_whole() {
    check((|| {
        for wire in [Wire::Plain, Wire::Impaired] {
            let lab = Lab::new(wire, &["--active-ack"])?;
            lab.fetch(&lab.far, &lab.near, FAR, 6_000_001)?;
            lab.fetch(&lab.near, &lab.far, NEAR, 2_000_001)?;
            lab.fetch(&lab.far, &lab.near, FAR_V6, 6_000_001)?;
            // No ECN is asked for by the kernels here, which the card would leave alone.
            ensure!(lab.counter("active_acks")? > 0, "acknowledged by the card");
            let said = lab.card_says()?;
            for flow in said["flows"].as_array().into_iter().flatten() {
                ensure!(flow["ahead"] == 0, "the kernel has all of it: {flow}");
            }
            lab.finish()?;
        }
        Ok(())
    })());
}

/// A share of files, by SMB.
fn samba(wire: Wire, more: &[&str], len: u64) -> Result<()> {
    let lab = Lab::new(wire, more)?;
    let root = lab.directory.join("samba");
    for part in ["share", "state"] {
        std::fs::create_dir_all(root.join(part))?;
    }
    let file = root.join("share/file");
    write_file(&file, 9, len as usize)?;
    let state = root.join("state");
    let state = state.display();
    let text = format!(
        "[global]\nserver role = standalone server\nmap to guest = Bad User\nguest account = root\ndisable netbios = yes\nsmb ports = 445\n\
         load printers = no\nprivate dir = {state}\nlock directory = {state}\nstate directory = {state}\ncache directory = {state}\n\
         pid directory = {state}\nncalrpc dir = {state}/rpc\nlog file = {state}/log\n[share]\npath = {}\nguest ok = yes\nread only = no\n",
        root.join("share").display()
    );
    let config = lab.directory.join("smb.conf");
    std::fs::write(&config, text)?;
    let server = lab.start(
        &lab.far,
        &format!(
            "/usr/sbin/smbd -F --no-process-group -s {}",
            config.display()
        ),
    )?;
    wait_until("smbd answers", seconds(30), || {
        let line = format!("smbclient -s {} //{FAR}/share -N -c ls", config.display());
        let ended = lab.start(&lab.near, &line)?.wait(seconds(30))?;
        Ok(ended.status.success())
    })?;
    let got = lab.directory.join("got");
    let script = lab.directory.join("commands");
    std::fs::write(
        &script,
        format!("get file {0}\nput {0} back\n", got.display()),
    )?;
    let words = [
        "sh",
        "-c",
        &format!(
            "exec smbclient -s {} //{FAR}/share -N < {}",
            config.display(),
            script.display()
        ),
    ];
    let ended = Process::spawn(&lab.near, &lab.directory, command(&words))?;
    ended.wait(seconds(60))?.success()?;
    ensure_same(&file, &got)?;
    ensure_same(&file, &root.join("share/back"))?;
    server.stop(Signal::KILL, seconds(10))?;
    lab.finish()
}

#[test]
fn samba_carries_files() {
    check(samba(Wire::Plain, &[], 20_000_003));
}

#[test]
fn samba_carries_files_over_a_bad_wire() {
    check(samba(Wire::Impaired, &["--active-ack"], 2_000_003));
}

#[test]
fn small_messages_are_answered() {
    check((|| {
        let lab = Lab::new(Wire::Plain, &[])?;
        let script = compile::script("messages.py");
        let server = lab.start(&lab.near, &format!("{PYTHON} -u {} serve {NEAR}", script))?;
        wait_until("it listens", seconds(20), || {
            Ok(server.stdout().contains("ready"))
        })?;
        // TCP messages as a terminal's, datagrams up to many fragments: each comes back.
        lab.run(&lab.far, &format!("{PYTHON} {} ask {NEAR}", script))?;
        ensure!(lab.counter("flush_push")? >= 500, "messages are pushed");
        server.stop(Signal::TERM, seconds(10))?;
        lab.finish()
    })());
}

/// Files from a server, by FTP, over connections that either end opens.
fn ftp(wire: Wire, more: &[&str], len: usize) -> Result<()> {
    let lab = Lab::new(wire, more)?;
    let root = lab.directory.join("ftp");
    std::fs::create_dir_all(root.join("pub"))?;
    let file = root.join("pub/file");
    write_file(&file, 5, len)?;
    let config = lab.directory.join("vsftpd.conf");
    let text = format!(
        "listen=YES\nbackground=NO\nanonymous_enable=YES\nno_anon_password=YES\nanon_root={}\nsecure_chroot_dir={}\nseccomp_sandbox=NO\nnopriv_user=nobody\n",
        root.display(),
        root.display()
    );
    std::fs::write(&config, text)?;
    let server = lab.start(&lab.far, &format!("/usr/sbin/vsftpd {}", config.display()))?;
    let got = lab.directory.join("got");
    for mode in ["", "--ftp-port -"] {
        let line = format!(
            "curl -sS --retry 20 --retry-connrefused --retry-delay 1 --max-time 50 {mode} -o {} ftp://{FAR}/pub/file",
            got.display()
        );
        lab.run(&lab.near, &line)?;
        ensure_same(&file, &got)?;
    }
    server.stop(Signal::KILL, seconds(10))?;
    lab.finish()
}

#[test]
fn ftp_carries_files() {
    check(ftp(Wire::Plain, &[], 20_000_003));
}

#[test]
fn ftp_carries_files_over_a_bad_wire() {
    check(ftp(Wire::Impaired, &[], 2_000_003));
}

#[test]
fn ftp_carries_files_that_are_acknowledged_ahead_over_a_bad_wire() {
    check(ftp(Wire::Impaired, &["--active-ack"], 2_000_003));
}

#[test]
fn frames_of_virtual_lans_keep_their_tags() {
    check((|| {
        for means in [BY_PACKET, BY_XDP] {
            let lab = Lab::by(means, Wire::Plain, &[])?;
            let script = compile::script("tagged.py");
            for (from, device, to, other) in [
                (&lab.far, "veth0", &lab.near, "nic0"),
                (&lab.near, "nic0", &lab.far, "veth0"),
            ] {
                let hears = lab.start(to, &format!("{PYTHON} -u {script} hear {other}"))?;
                wait_until("it hears", seconds(20), || {
                    Ok(hears.stdout().contains("ready"))
                })?;
                lab.run(from, &format!("{PYTHON} {script} say {device}"))?;
                hears.wait(seconds(20))?.success()?;
            }
            lab.finish()?;
        }
        Ok(())
    })());
}

#[test]
fn another_mtu() {
    check((|| {
        let lab = Lab::new(Wire::Plain, &[])?;
        // Smaller than the wire's, then larger than it was at the start, on both ends.
        lab.near.ip("link set nic0 mtu 1000")?;
        lab.fetch(&lab.near, &lab.far, NEAR, 3_000_001)?;
        lab.fetch(&lab.far, &lab.near, FAR, 3_000_001)?;
        for (on, device) in [
            (&lab.far, "veth0"),
            (&lab.near, "wire0"),
            (&lab.near, "nic0"),
        ] {
            on.ip(&format!("link set {device} mtu 4000"))?;
        }
        lab.fetch(&lab.near, &lab.far, NEAR, 3_000_001)?;
        lab.fetch(&lab.far, &lab.near, FAR, 3_000_001)?;
        lab.finish()
    })());
}

#[test]
fn another_address() {
    check((|| {
        let lab = Lab::new(Wire::Plain, &["--shards", "2"])?;
        lab.near.set("ipv4.conf.nic0.arp_notify", "1")?;
        for address in ["02:00:00:00:77:01", "02:00:00:00:77:02"] {
            lab.near.ip(&format!("link set nic0 address {address}"))?;
            for _ in 0..4 {
                lab.fetch(&lab.near, &lab.far, NEAR, 1_000_001)?;
                lab.fetch(&lab.far, &lab.near, FAR, 1_000_001)?;
            }
        }
        lab.finish()
    })());
}

/// Kills the card while it carries bulk, and looks at what is left.
fn kill_under_load(means: &str, more: &[&str]) -> Result<()> {
    let lab = Lab::by(means, Wire::Plain, more)?;
    // What the far end has sent and the near end has read, byte by byte.
    let script = compile::script("steady.py");
    let reader = lab.start(&lab.near, &format!("{PYTHON} -u {script} read {NEAR}"))?;
    wait_until("the reader listens", seconds(20), || {
        Ok(reader.stdout().contains("ready"))
    })?;
    let writer = lab.start(&lab.far, &format!("{PYTHON} -u {script} write {NEAR}"))?;
    wait_until("the card is at work", seconds(20), || {
        Ok(lab.counter("segments")? > 10_000)
    })?;
    if more.contains(&"--active-ack") {
        // A kernel that takes nothing any more: what is acknowledged now is lost with the card.
        lab.near.ip("link set nic0 down")?;
        wait_until("the card is ahead of the kernel", seconds(20), || {
            let said = lab.card_says()?;
            let mut flows = said["flows"].as_array().into_iter().flatten();
            Ok(flows.any(|flow| flow["ahead"].as_u64() > Some(0)))
        })?;
    }
    lab.card.signal(Signal::KILL)?;
    wait_until("the interface is gone", seconds(10), || {
        Ok(lab.near.devices()? == ["wire0"])
    })?;
    // The connection stalls, and what was read until then is what was sent.
    writer.stop(Signal::KILL, seconds(10))?;
    let read = reader.stop(Signal::TERM, seconds(10))?;
    ensure!(
        read.text().contains("all as sent") && read.error_text().is_empty(),
        "{read:?}"
    );
    // The device of the wire serves on, and so does another card on it.
    lab.near.ip("addr add 10.57.0.2/24 dev wire0")?;
    lab.far.ip("addr add 10.57.0.1/24 dev veth0")?;
    lab.fetch(&lab.far, &lab.near, "10.57.0.1", 3_000_001)?;
    let card = start_card(&lab.near, &lab.directory, means, more)?;
    lab.near.ip(&format!("addr add {NEAR}/24 dev nic0"))?;
    lab.near.ip("link set nic0 up")?;
    lab.fetch(&lab.far, &lab.near, FAR, 3_000_001)?;
    card.stop(Signal::TERM, seconds(10)).map(drop)
}

#[test]
fn only_what_is_named_is_acknowledged_ahead() {
    check((|| {
        for (flows, acknowledged) in [(":8000,10.0.0.0/30", true), (":9,10.0.0.0/30", false)] {
            let lab = Lab::new(Wire::Plain, &[&format!("--active-ack={flows}")])?;
            lab.fetch(&lab.far, &lab.near, FAR, 3_000_001)?;
            let acks = lab.counter("active_acks")?;
            ensure!((acks > 0) == acknowledged, "{flows}: {acks}");
            lab.finish()?;
        }
        Ok(())
    })());
}

#[test]
fn killed_under_load_it_harms_nothing_else() {
    check(kill_under_load(BY_PACKET, &[]));
}

#[test]
fn killed_under_load_it_harms_nothing_else_though_it_has_acknowledged() {
    check(kill_under_load(BY_PACKET, &["--active-ack"]));
}

#[test]
fn killed_under_load_over_af_xdp_it_leaves_the_device_to_the_kernel() {
    check(kill_under_load(BY_XDP, &["--active-ack"]));
}

#[test]
fn what_cannot_be_is_said() {
    check((|| {
        scenario::prepare()?;
        let (near, directory) = (Namespace::create()?, Directory::create()?);
        let millrace = world::millrace();
        for (more, said) in [
            ("--wire packet:none0", "none0"),
            ("--wire tap:x", "tap:x"),
            ("--wire xdp:none0", "none0"),
            ("--wire xdp:lo,address=shared", "address=shared"),
            ("--wire packet:lo --aggregate 99", "576"),
            ("--stats", "no `millrace nic` runs here"),
            ("--flows none", "none"),
            ("--wire packet:lo --active-ack=host:80", "PREFIX:PORT"),
            ("", "--wire"),
        ] {
            let line = format!("{} nic {more}", millrace.display());
            let words: Vec<&str> = line.split_whitespace().collect();
            let ended = Process::spawn(&near, &directory, command(&words))?;
            let ended = ended.wait(seconds(20))?;
            ensure!(!ended.status.success(), "{more}");
            ensure!(
                ended.error_text().contains(said),
                "{more}: {}",
                ended.error_text()
            );
        }
        ensure!(near.devices()?.is_empty(), "nothing is left");
        Ok(())
    })());
}
