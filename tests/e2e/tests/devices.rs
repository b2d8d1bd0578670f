//! AF_XDP and macvtap on a veth device that the kernel has too: real programs, what of the device
//! stays the kernel's, and what is said when it cannot be had.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::programs::{Nginx, redis};
use millrace_e2e::world::NEIGHBOUR;
use millrace_e2e::{
    Context as _, Link, PEER, Process, Result, SUBJECT, World, command, compile, engine, ensure,
    http, load, over_devices, scenario, seconds, wait_until,
};
use rustix::process::{Signal, kill_process};

over_devices!(
    nginx_serves_files,
    curl_fetches_files,
    redis_takes_its_benchmark,
    iperf3_goes_both_ways,
    killing_the_engine_leaves_the_device_as_it_was,
    large_packets_come_and_go_in_pieces,
    both_families_are_served,
);

const PORT: u16 = 7300;

/// nginx on the stack under test, or where `start` starts it, with a file of `size` bytes to serve.
fn nginx(world: &World, size: usize) -> Result<Vec<String>> {
    fs::create_dir_all(world.directory().join("www"))?;
    write_file(&world.directory().join("www/file"), 5, size)?;
    Nginx {
        port: 80,
        main: "daemon off;",
        http: "",
        server: "listen [::]:80;",
    }
    .configure(world)
}

/// Fetches the file from `host` by the command that `run` makes of curl's words, and compares.
fn fetch(
    world: &World,
    host: &str,
    run: impl Fn(&World, &[&str]) -> Result<Process>,
) -> Result<()> {
    let got = world.directory().join("got");
    let (name, url) = (got.to_string_lossy(), format!("http://{host}/file"));
    let words = ["curl", "-sS", "--fail", "-o", &name, &url];
    run(world, &words)?.wait(seconds(60))?.success()?;
    ensure_same(&world.directory().join("www/file"), &got)
}

fn nginx_serves_files(world: &World) -> Result<()> {
    let server = world.serve(&nginx(world, 20_000_000)?, 80)?;
    for _ in 0..3 {
        fetch(world, &SUBJECT.to_string(), |world, words| {
            world.peer(words)
        })?;
    }
    let expected = fs::read(world.directory().join("www/file"))?;
    let expected = &expected[..1000];
    fs::write(world.directory().join("www/small"), expected)?;
    let (peer, address) = (world.peer_namespace(), world.at(80));
    load::fetch_while(peer, address, "/small", expected, (8, 800), || Ok(()))?;
    server.stop(Signal::TERM, seconds(15)).map(drop)
}

fn curl_fetches_files(world: &World) -> Result<()> {
    let server = world.serve_on_peer(&nginx(world, 20_000_000)?, 80)?;
    for _ in 0..2 {
        fetch(world, &PEER.to_string(), |world, words| {
            world.subject(words)
        })?;
    }
    server.stop(Signal::TERM, seconds(15)).map(drop)
}

fn redis_takes_its_benchmark(world: &World) -> Result<()> {
    let server = world.serve(&redis(world, &SUBJECT.to_string(), 6379, ""), 6379)?;
    let line = format!("redis-benchmark -h {SUBJECT} --csv -n 20000 -t set,get,lrange_100,mset");
    let words: Vec<&str> = line.split(' ').collect();
    let said = world.run_on_peer(&words, seconds(60))?.text();
    ensure!(said.lines().count() >= 5, "{said}");
    let line = format!("redis-cli -h {SUBJECT} dbsize");
    let words: Vec<&str> = line.split(' ').collect();
    let keys = world.run_on_peer(&words, seconds(10))?.text();
    ensure!(keys.trim() != "0", "{keys}");
    server.stop(Signal::TERM, seconds(15)).map(drop)
}

fn iperf3_goes_both_ways(world: &World) -> Result<()> {
    let server = world.subject(&["iperf3", "-s", "-B", &SUBJECT.to_string(), "--forceflush"])?;
    for (before, more) in ["", "-R", "-P 4", "-P 4 -R"].into_iter().enumerate() {
        // It listens anew for each.
        wait_until("iperf3 listens", seconds(20), || {
            Ok(server.stdout().matches("listening").count() > before)
        })?;
        let line = format!("iperf3 -c {SUBJECT} -t 2 --json {more}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let said = world.run_on_peer(&words, seconds(30))?.text();
        let report: serde_json::Value = serde_json::from_str(&said).context("iperf3")?;
        let bytes = report["end"]["sum_received"]["bytes"].as_u64();
        ensure!(bytes.unwrap_or(0) > 1 << 20, "{more}: {said}");
    }
    server.stop(Signal::TERM, seconds(15)).map(drop)
}

/// What `ip` tells of the device: flags, address, programs, and whether somebody wants more than
/// its own frames.
fn device(world: &World) -> Result<String> {
    let namespace = world.subject_namespace();
    let shown = namespace.ip("-details link show dev veth0")?;
    Ok(shown + &namespace.ip("maddress show dev veth0")? + &namespace.ip("addr show dev veth0")?)
}

fn killing_the_engine_leaves_the_device_as_it_was(world: &World) -> Result<()> {
    // The kernel is done with its own addresses before.
    wait_until("the device's addresses are settled", seconds(10), || {
        let shown = device(world)?;
        Ok(shown.contains("state UP") && !shown.contains("tentative"))
    })?;
    let before = device(world)?;
    let program = compile::program("server")?;
    let echo = |address: &str| command(&[&program[..], "echo", address, &PORT.to_string()]);
    // A server of the kernel's, on the same device.
    let mut beside = world.start_on_subject(echo(&NEIGHBOUR.to_string()))?;
    let (peer, address) = (world.peer_namespace(), (NEIGHBOUR, PORT).into());
    wait_until("the kernel's server listens", seconds(10), || {
        beside.ensure_not_failed()?;
        Ok(peer.enter(|| http::connect(address)).is_ok())
    })?;
    // One connection that stays, and a new one each time: none may fail, whatever happens to the
    // engine.
    let stays = Mutex::new(peer.enter(|| load::hold(address, 1))?);
    let traffic = |_| {
        let mut stays = stays.lock().unwrap_or_else(PoisonError::into_inner);
        load::echo_on_all(&mut stays).context("on the connection that stays")?;
        load::short_conversations(address, 1)
    };
    let rounds = || -> Result<()> {
        for _ in 0..2 {
            let words = nginx(world, 1_000_000)?;
            let server = world.serve(&words, 80)?;
            let line = format!("ab -c 32 -n 10000000 http://{SUBJECT}/file");
            let words: Vec<&str> = line.split(' ').collect();
            let burden = world.peer(&words)?;
            std::thread::sleep(Duration::from_millis(500));
            ensure!(device(world)? != before, "the engine shows on the device");
            engine::kill(world)?;
            wait_until("the device is as it was", seconds(5), || {
                Ok(device(world)? == before)
            })?;
            drop(burden);
            server.signal(Signal::TERM)?;
            server.wait(seconds(15))?;
        }
        Ok(())
    };
    load::work_while(peer, (1, 10), traffic, rounds)?;
    beside.stop(Signal::TERM, seconds(10)).map(drop)
}

fn large_packets_come_and_go_in_pieces(world: &World) -> Result<()> {
    for namespace in [world.subject_namespace(), world.peer_namespace()] {
        namespace.ip("link set veth0 mtu 9000")?;
    }
    let words = nginx(world, 20_000_000)?;
    let mut run = world.millrace(&["run", "--mtu", "9000"]);
    run.args(world.link_arguments()).arg("--").args(&words);
    let mut server = world.start_on_subject(run)?;
    world.wait_for_port(&mut server, 80)?;
    fetch(world, &SUBJECT.to_string(), |world, words| {
        world.peer(words)
    })?;
    // And the other way: a body of many full packets.
    let name = world.directory().join("www/file");
    let line = format!(
        "curl -sS -o /dev/null -w %{{http_code}} --data-binary @{} http://{SUBJECT}/file",
        name.display()
    );
    let words: Vec<&str> = line.split(' ').collect();
    let said = world.run_on_peer(&words, seconds(60))?.text();
    ensure!(said == "413" || said == "405", "{said}");
    server.stop(Signal::TERM, seconds(15)).map(drop)
}

fn both_families_are_served(world: &World) -> Result<()> {
    world
        .peer_namespace()
        .ip("addr add fd00:9::1/64 dev veth0 nodad")?;
    let words = nginx(world, 3_000_000)?;
    let mut run = world.millrace(&["run", "--addr", "fd00:9::2/64"]);
    run.args(world.link_arguments()).arg("--").args(&words);
    let mut server = world.start_on_subject(run)?;
    world.wait_for_port(&mut server, 80)?;
    for host in [SUBJECT.to_string(), "[fd00:9::2]".to_owned()] {
        fetch(world, &host, |world, words| world.peer(words))?;
    }
    server.stop(Signal::TERM, seconds(15)).map(drop)
}

/// What `millrace run` says when the engine does not start.
fn refused(world: &World, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let mut run = world.millrace(&["run"]);
    run.args(words).args(["--", "true"]);
    let ended = world.start_on_subject(run)?.wait(seconds(20))?;
    ensure!(ended.status.code() == Some(125), "{line}: {ended:?}");
    Ok(ended.error_text())
}

/// Each says what it met, and the next step.
#[test]
fn what_cannot_be_had_is_said() {
    scenario::run_over(Link::Xdp, 1, |world| {
        let host = world.subject_namespace();
        let addr = format!("--addr {SUBJECT}/24");
        let check = |link: &str, said: &[&str]| -> Result<()> {
            let message = refused(world, &format!("--link {link} {addr}"))?;
            for part in said {
                ensure!(message.contains(part), "{link}: {message}");
            }
            Ok(())
        };
        check("xdp:none0", &["no network device `none0`", "ip link"])?;
        check("xdp:lo", &["does not carry Ethernet frames"])?;
        check(
            "xdp:veth0,mode=zerocopy",
            &["does not share its memory", "mode=copy"],
        )?;
        check(
            "xdp:veth0,mode=generic,busy-poll=on",
            &["cannot be busy-polled", "generic mode", "busy-poll=off"],
        )?;
        check("xdp:veth0,queues=2", &["queues=2", "choose 1 to 1"])?;
        check(
            "xdp:veth0 --shards 2 --topology rtc",
            &["ethtool -L veth0 combined 2", "--shards 1"],
        )?;
        check("xdp:veth0 --vlan 7", &["packet:veth0"])?;
        host.ip("link set veth0 down")?;
        check("xdp:veth0", &["is down", "ip link set veth0 up"])?;
        host.ip("link set veth0 up")?;
        // A second engine meets the first one's program.
        let first = world.subject(&["sleep", "60"])?;
        wait_until("the first has attached", seconds(10), || {
            Ok(host.ip("link show veth0")?.contains("xdp"))
        })?;
        check(
            "xdp:veth0",
            &[
                "another XDP program is attached",
                "ip link set dev veth0 xdp off",
            ],
        )?;
        first.stop(Signal::TERM, seconds(20))?;
        // And without privileges.
        for (link, named) in [
            ("xdp", "CAP_BPF"),
            ("packet", "CAP_NET_RAW"),
            ("macvtap", "CAP_NET_ADMIN"),
        ] {
            let line = format!(
                "setpriv --bounding-set -all --inh-caps -all --no-new-privs --reuid 65534 --regid 65534 --clear-groups {} run --link {link}:veth0 {addr} -- true",
                millrace_e2e::world::millrace().display()
            );
            let words: Vec<&str> = line.split(' ').collect();
            let ended = world.start_on_subject(command(&words))?.wait(seconds(20))?;
            let said = ended.error_text();
            ensure!(
                said.contains("no privilege") && said.contains(named),
                "{link}: {said}"
            );
        }
        Ok(())
    });
}

/// A queue that somebody's socket has without a program, which nothing else shows. The kernel gives
/// it back a while after that socket is closed.
#[test]
fn a_queue_that_is_held_is_asked_for_again_and_then_said() {
    scenario::run_over(Link::Xdp, 1, |world| {
        let program = compile::program("xdp_holder")?;
        let mut holder = world.start_on_subject(command(&[&program[..], "veth0"]))?;
        wait_until("the queue is held", seconds(10), || {
            holder.ensure_not_failed()?;
            Ok(holder.stdout().contains("holds it"))
        })?;
        let addr = format!("--addr {SUBJECT}/24");
        let message = refused(world, &format!("--link xdp:veth0 {addr}"))?;
        for part in ["queue 0 of `veth0` is in use", "ss --xdp"] {
            ensure!(message.contains(part), "{message}");
        }
        holder.stop(Signal::KILL, seconds(10))?;
        world.subject(&["true"])?.wait(seconds(20))?.success()?;
        Ok(())
    });
}

/// The rounds that all threads of an engine have run, and the links that they have lost.
fn rounds_and_losses(world: &World) -> Result<(u64, u64)> {
    Ok((counted(world, "rounds")?, counted(world, "links_lost")?))
}

/// Sums a counter over the threads that own the device's queues, wherever they list it.
fn counted(world: &World, name: &str) -> Result<u64> {
    let counters = engine::counters(world)?;
    let lists = [("shards", "/worker"), ("io_threads", "")];
    let threads = lists.iter().flat_map(|(list, within)| {
        let threads = counters[list].as_array().into_iter().flatten();
        threads.filter_map(move |thread| thread.pointer(within))
    });
    Ok(threads.filter_map(|thread| thread[name].as_u64()).sum())
}

/// Sums what the kernel counts at the device's queues, whoever owns them; each of so many is listed
/// once.
fn counted_at_queues(world: &World, name: &str, queues: u64) -> Result<u64> {
    let counters = engine::counters(world)?;
    let mut numbers = Vec::new();
    let mut sum = 0;
    for list in ["shards", "io_threads"] {
        for thread in counters[list].as_array().into_iter().flatten() {
            for queue in thread["queues"].as_array().into_iter().flatten() {
                numbers.push(queue["queue"].as_u64().context("a number")?);
                sum += queue[name].as_u64().with_context(|| format!("{queue}"))?;
            }
        }
    }
    numbers.sort_unstable();
    ensure!(numbers.into_iter().eq(0..queues), "{counters}");
    Ok(sum)
}

/// A device's ring, which is not as large as a burst of the engine's, is no reason to lose frames;
/// what receives them has a thread of its own here, so that bursts are faster.
#[test]
fn bursts_larger_than_the_ring_of_veth_lose_nothing() {
    scenario::run_over(Link::Xdp, 1, |world| {
        let (port, ip) = (PORT.to_string(), SUBJECT.to_string());
        for (mode, words) in [
            ("echo", "pingpong -c 600 --sources 30"),
            ("source", "out -c 4"),
        ] {
            let program = compile::program("server")?;
            let server = world.serve(&[&program[..], mode, &ip, &port], PORT)?;
            let name = world.subject_namespace().name();
            let line = "echo 1 >/sys/class/net/veth0/threaded";
            let threaded = command(&["ip", "netns", "exec", name, "sh", "-c", line]);
            let threaded = world.start_on_subject(threaded)?;
            threaded.wait(seconds(10))?.success()?;
            let (workload, rest) = words.split_once(' ').context("words")?;
            let all = format!(
                "load {workload} {ip}:{port} {rest} --link xdp:veth0 --addr 10.9.0.100/24 --duration 1 --json"
            );
            let all: Vec<&str> = all.split(' ').collect();
            let load = world.start_on_peer(world.millrace(&all))?;
            let ended = load.wait(seconds(60))?.success()?;
            let report: serde_json::Value = serde_json::from_slice(&ended.stdout)?;
            ensure!(report["send_dropped"] == 0, "{words}: {report}");
            let dropped = counted(world, "send_dropped")?;
            ensure!(dropped == 0, "{words}: {dropped} frames lost");
            server.stop(Signal::TERM, seconds(15))?;
        }
        Ok(())
    });
}

/// What is lost at either end of a queue is counted, and the first of it said: frames that the
/// engine did not take in time, and those that a device without a cable takes.
#[test]
fn what_is_lost_is_counted_and_said_once() {
    for (io_threads, shards) in [(0, 1), (1, 2)] {
        scenario::run_on_pipeline(Link::Xdp, io_threads, shards, |world| {
            let program = format!(
                "import socket, time\nwhile True:\n try: socket.create_connection(('{PEER}', 9), 1)\n except OSError: time.sleep(0.02)"
            );
            let mut running = world.subject(&["python3", "-c", &program])?;
            let known = format!("neigh show {SUBJECT}");
            wait_until("the peer knows the engine", seconds(20), || {
                running.ensure_not_failed()?;
                Ok(world.peer_namespace().ip(&known)?.contains("lladdr"))
            })?;
            ensure!(counted(world, "frames_dropped")? == 0, "nothing yet");
            let engine = engine::pid(world)?;
            kill_process(engine, Signal::STOP)?;
            // More than there is memory for.
            let flood = format!(
                "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nfor _ in range(6000): s.sendto(b'x', ('{SUBJECT}', 9))"
            );
            let flooded = world.run_on_peer(&["python3", "-c", &flood], seconds(60));
            kill_process(engine, Signal::CONT)?;
            flooded?;
            let at = |name: &str| counted_at_queues(world, name, shards.into());
            let at_queues = at("rx_dropped")? + at("rx_ring_full")?;
            ensure!(at_queues > 1000, "{at_queues} frames did not fit");
            let dropped = counted(world, "frames_dropped")?;
            ensure!(dropped >= at_queues, "{dropped} of {at_queues}");
            ensure!(counted(world, "send_dropped")? == 0, "nothing yet");
            world.peer_namespace().ip("link set veth0 down")?;
            wait_until("frames are lost", seconds(30), || {
                running.ensure_not_failed()?;
                Ok(counted(world, "send_dropped")? > 0)
            })?;
            let lost = "frames that its device took and dropped";
            wait_until("that is said", seconds(30), || {
                Ok(running.stderr().contains(lost))
            })?;
            let ended = running.stop(Signal::TERM, seconds(20))?;
            let said = ended.error_text();
            for line in [lost, "frames that came faster than it took them"] {
                ensure!(said.matches(line).count() == 1, "{line}: {said}");
            }
            Ok(())
        });
    }
}

/// Deletes the device under an engine: it goes on, and its threads sleep, though a descriptor that
/// is ready for ever is what the kernel leaves of some.
fn a_device_that_is_deleted_keeps_nobody_busy(
    world: &World,
    device: &str,
) -> Result<(Process, u64)> {
    let mut running = world.subject(&["sleep", "120"])?;
    wait_until("the engine is there", seconds(20), || {
        running.ensure_not_failed()?;
        Ok(rounds_and_losses(world).is_ok())
    })?;
    world
        .subject_namespace()
        .ip(&format!("link delete {device}"))?;
    std::thread::sleep(Duration::from_millis(200));
    let (before, _) = rounds_and_losses(world)?;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(50));
        rounds_and_losses(world)?;
    }
    let (after, lost) = rounds_and_losses(world)?;
    // A few for each time they were asked. One that does not sleep does thousands.
    ensure!(after - before < 1000, "{} rounds", after - before);
    ensure!(running.is_running()?, "the program goes on");
    Ok((running, lost))
}

#[test]
fn a_tap_device_that_is_deleted_is_said_and_counted() {
    for io_threads in [0, 1] {
        let shards = 1 + io_threads;
        scenario::run_on_pipeline(Link::Tap, io_threads, shards, |world| {
            let device = millrace_e2e::world::DEVICE;
            let (running, lost) = a_device_that_is_deleted_keeps_nobody_busy(world, device)?;
            ensure!(lost == 1, "{lost} links lost");
            let ended = running.stop(Signal::TERM, seconds(20))?;
            let said = ended.error_text();
            ensure!(said.contains("has lost its link"), "{said}");
            Ok(())
        });
    }
}

#[test]
fn devices_that_are_deleted_keep_nobody_busy() {
    for link in [Link::Xdp, Link::Macvtap] {
        scenario::run_over(link, 1, |world| {
            let (running, _) = a_device_that_is_deleted_keeps_nobody_busy(world, "veth0")?;
            running.stop(Signal::TERM, seconds(20)).map(drop)
        });
    }
}

#[test]
fn what_macvtap_cannot_have_is_said() {
    scenario::run_over(Link::Macvtap, 1, |world| {
        let addr = format!("--addr {SUBJECT}/24");
        for (link, said) in [
            ("macvtap:none0", "no network device `none0`"),
            ("macvtap:lo", "does not carry Ethernet frames"),
            ("macvtap:veth0 --vlan 7", "packet:veth0"),
        ] {
            let message = refused(world, &format!("--link {link} {addr}"))?;
            ensure!(message.contains(said), "{link}: {message}");
        }
        Ok(())
    });
}

/// The driver's own way is preferred; the kernel's copy serves where it is asked for.
#[test]
fn the_generic_mode_serves() {
    scenario::run_over(Link::Xdp, 1, |world| {
        let words = nginx(world, 5_000_000)?;
        let mut run = world.millrace(&["run", "--link", "xdp:veth0,mode=generic"]);
        run.args(["--addr", &format!("{SUBJECT}/24"), "--"])
            .args(&words);
        let mut server = world.start_on_subject(run)?;
        world.wait_for_port(&mut server, 80)?;
        let shown = world.subject_namespace().ip("link show veth0")?;
        ensure!(shown.contains("xdpgeneric"), "{shown}");
        fetch(world, &SUBJECT.to_string(), |world, words| {
            world.peer(words)
        })?;
        server.stop(Signal::TERM, seconds(15)).map(drop)
    });
}

#[test]
fn the_doctor_looks_at_a_device() {
    scenario::run_over(Link::Xdp, 1, |world| {
        let ask = |words: &[&str]| {
            let mut doctor = world.millrace(&["doctor"]);
            doctor.args(words);
            world.start_on_subject(doctor)?.wait(seconds(10))
        };
        let said = ask(&["--link", "xdp:veth0"])?.success()?.text();
        for part in [
            "veth0: XDP",
            "driver veth",
            "copied once more",
            "veth0: busy polling",
            "privileges for xdp",
        ] {
            ensure!(said.contains(part), "{said}");
        }
        let every = ask(&["--json"])?.text();
        let every: serde_json::Value = serde_json::from_str(&every)?;
        let subjects = every.as_array().context("a list")?.iter();
        let subjects: Vec<_> = subjects
            .filter_map(|found| found["subject"].as_str())
            .collect();
        ensure!(
            subjects.contains(&"cores") && subjects.contains(&"veth0"),
            "{subjects:?}"
        );
        world.subject_namespace().ip("link set veth0 down")?;
        let ended = ask(&["--link", "xdp:veth0"])?;
        ensure!(
            ended.status.code() == Some(1) && ended.text().contains("ip link set veth0 up"),
            "{ended:?}"
        );
        Ok(())
    });
}
