//! Links and addresses: what is chosen when nothing is said, loopback beside a link, a gateway,
//! more than one shard.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::programs::Nginx;
use millrace_e2e::world::DEVICE;
use millrace_e2e::{
    PEER, Process, Result, SUBJECT, World, compile, ensure, http, on_millrace, seconds, wait_until,
};
use rustix::process::Signal;

on_millrace!(
    defaults_are_chosen_and_said,
    an_engine_has_its_own_congestion_control,
    loopback_stays_the_kernels_without_the_flag,
    loopback_and_link_in_one_engine,
    loopback_alone_makes_no_device,
    a_gateway_leads_off_the_link,
    several_addresses_and_several_ways_off_the_link,
    ping_is_answered,
    a_virtual_lan_on_a_tap_device_reaches_the_kernel_through_a_switch,
    virtual_lans_on_one_device_are_apart,
    an_address_that_another_station_has_is_refused,
    r2_a_device_that_is_there_serves,
);

const PORT: u16 = 7002;
const PYTHON: &str = "/usr/bin/python3";

/// `both_ways.py` run by `millrace` with these arguments; ready when it has connected to each of
/// `addresses`.
fn both_ways(world: &World, arguments: &[&str], addresses: &[&str]) -> Result<Process> {
    let (script, port) = (compile::script("both_ways.py"), PORT.to_string());
    let mut command = world.millrace(arguments);
    command
        .arg("--")
        .args([PYTHON, &script, &port])
        .args(addresses)
        .stdin(Stdio::piped());
    let mut running = world.start_on_subject(command)?;
    wait_until("it has connected to itself", seconds(20), || {
        ensure!(
            running.is_running()?,
            "it has ended:\n{}{}",
            running.stdout(),
            running.stderr()
        );
        Ok(running.stdout().contains("ready"))
    })?;
    Ok(running)
}

/// One exchange with `both_ways.py` from the peer's kernel.
fn ask(world: &World, address: &str) -> Result<String> {
    world.peer_namespace().enter(|| -> Result<String> {
        let mut stream: TcpStream = http::connect(format!("{address}:{PORT}").parse()?)?;
        stream.write_all(b"from the peer")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
}

fn stop(mut running: Process) -> Result<()> {
    drop(running.stdin());
    running.wait(seconds(15))?.success().map(|_| ())
}

fn link() -> [String; 7] {
    [
        "run",
        "--link",
        &format!("tap:{DEVICE}"),
        "--addr",
        &format!("{SUBJECT}/24"),
        "--host-addr",
        &format!("{PEER}/24"),
    ]
    .map(String::from)
}

fn defaults_are_chosen_and_said(world: &World) -> Result<()> {
    let running = world.start_on_subject(world.millrace(&["run", "--", "sleep", "5"]))?;
    wait_until("a device is there", seconds(10), || {
        Ok(!world.subject_namespace().devices()?.is_empty())
    })?;
    let devices = world.subject_namespace().devices()?;
    wait_until("it says what it chose", seconds(10), || {
        let said = running.stderr();
        Ok(said.contains(&devices[0])
            && said.contains("10.9.0.2/24")
            && said.contains("10.9.0.1/24"))
    })?;
    running.stop(Signal::TERM, seconds(10)).map(|_| ())
}

fn an_engine_has_its_own_congestion_control(world: &World) -> Result<()> {
    let link = link();
    let mut arguments: Vec<&str> = link.iter().map(String::as_str).collect();
    arguments.extend(["--loopback", "--congestion", "bbr"]);
    let script = format!(
        "import socket\nname = lambda s: s.getsockopt(6, socket.TCP_CONGESTION, 16).rstrip(b'\\0').decode()\n\
         listener = socket.create_server(('{SUBJECT}', {PORT}))\n\
         fresh, chosen = socket.socket(), socket.socket()\n\
         chosen.setsockopt(6, socket.TCP_CONGESTION, b'reno')\n\
         for one in (fresh, chosen):\n    before = name(one)\n    one.connect(('{SUBJECT}', {PORT}))\n    \
         accepted = listener.accept()[0]\n    print(before, name(one), name(accepted), name(listener))\n"
    );
    let mut command = world.millrace(&arguments);
    command.args(["--", PYTHON, "-c", &script]);
    let said = world
        .start_on_subject(command)?
        .wait(seconds(15))?
        .success()?
        .text();
    ensure!(said == "bbr bbr bbr bbr\nreno reno bbr bbr\n", "{said:?}");
    let refused = world
        .start_on_subject(world.millrace(&["run", "--congestion", "vegas", "--", "true"]))?
        .wait(seconds(15))?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(said.contains("one of cubic, reno, bbr, dctcp"), "{said}");
    Ok(())
}

fn loopback_stays_the_kernels_without_the_flag(world: &World) -> Result<()> {
    let link = link();
    let arguments: Vec<&str> = link.iter().map(String::as_str).collect();
    // Who listens on every address is on millrace alone; the kernel knows nothing of it.
    let script = format!(
        "import socket\nlistener = socket.create_server(('0.0.0.0', {PORT}))\n\
         kernel = socket.socket()\n\
         try:\n    kernel.connect(('127.0.0.1', {PORT}))\nexcept ConnectionRefusedError:\n    print('refused')\n\
         inner = socket.create_server(('127.0.0.1', 0))\nclient = socket.create_connection(inner.getsockname())\n\
         inner.accept()[0].sendall(b'x')\nassert client.recv(1) == b'x'\nprint('inner')\n"
    );
    let mut command = world.millrace(&arguments);
    command.args(["--", PYTHON, "-c", &script]);
    let said = world
        .start_on_subject(command)?
        .wait(seconds(15))?
        .success()?
        .text();
    ensure!(said == "refused\ninner\n", "{said:?}");
    Ok(())
}

fn loopback_and_link_in_one_engine(world: &World) -> Result<()> {
    let link = link();
    let mut arguments: Vec<&str> = link.iter().map(String::as_str).collect();
    arguments.push("--loopback");
    let own = SUBJECT.to_string();
    let running = both_ways(
        world,
        &arguments,
        &["127.0.0.1", "127.0.0.2", "localhost", &own],
    )?;
    ensure!(
        running.stdout().contains("127.0.0.1 127.0.0.1 127.0.0.1"),
        "{}",
        running.stdout()
    );
    ensure!(
        running.stdout().contains(&format!("{own} {own} {own}")),
        "{}",
        running.stdout()
    );
    ensure!(ask(world, &own)? == "FROM THE PEER");
    // And not to be reached at the kernel's loopback.
    ensure!(ask(world, "127.0.0.1").is_err());
    stop(running)
}

fn loopback_alone_makes_no_device(world: &World) -> Result<()> {
    let running = both_ways(world, &["run", "--loopback"], &["127.0.0.1", "localhost"])?;
    ensure!(world.subject_namespace().devices()?.is_empty());
    stop(running)
}

fn a_gateway_leads_off_the_link(world: &World) -> Result<()> {
    world.peer_namespace().ip("addr add 10.99.0.1/32 dev lo")?;
    fs::create_dir_all(world.directory().join("www"))?;
    let file = world.directory().join("www/file");
    write_file(&file, 1, 1_000_000)?;
    let words = Nginx {
        port: 80,
        main: "daemon off;",
        http: "",
        server: "",
    }
    .configure(world)?;
    let server = world.serve_on_peer(&words, 80)?;
    let link = link();
    let got = world.directory().join("got");
    let (gateway, got_name) = (PEER.to_string(), got.to_string_lossy().into_owned());
    let curl = [
        "curl",
        "-sS",
        "--fail",
        "-w",
        "%{local_ip}",
        "-o",
        &got_name,
        "http://10.99.0.1/file",
    ];
    for (more, local) in [
        (vec!["--gateway", &gateway[..]], SUBJECT.to_string()),
        (vec![], "10.99.0.1".to_string()),
    ] {
        // With a gateway it is millrace that goes there, without one it is the kernel.
        let mut command = world.millrace(&link);
        command.args(more).arg("--").args(curl);
        let said = world
            .start_on_subject(command)?
            .wait(seconds(20))?
            .success()?
            .text();
        ensure!(said == local, "from {said}, not {local}");
        ensure_same(&file, &got)?;
    }
    server.stop(Signal::TERM, seconds(10)).map(|_| ())
}

fn several_addresses_and_several_ways_off_the_link(world: &World) -> Result<()> {
    let peer = world.peer_namespace();
    for far in ["10.99.0.1", "10.98.0.1"] {
        peer.ip(&format!("addr add {far}/32 dev lo"))?;
    }
    let listener = peer.enter(|| TcpListener::bind(("0.0.0.0", 0)))?;
    let port = listener.local_addr()?.port();
    // What is behind each gateway is spoken to from the address of the gateway's prefix, unless the
    // program is bound to another.
    let script = format!(
        "import socket\n\
         def local(far, *bound):\n    \
             with socket.create_connection((far, {port}), 10, bound or None) as s:\n        \
                 return s.getsockname()[0]\n\
         print(*[local(far) for far in ('10.9.0.1', '172.20.0.1', '10.99.0.1', '10.98.0.1')])\n\
         print(local('10.98.0.1', '172.20.0.3', 0), local('10.99.0.1', '10.9.0.2', 0))\n\
         listener = socket.create_server(('0.0.0.0', {PORT}), backlog=8)\n\
         one = socket.create_server(('172.20.0.3', {PORT} + 1))\n\
         print('ready', flush=True)\n\
         for _ in range(3):\n    \
             c = listener.accept()[0]\n    c.sendall(c.getsockname()[0].encode())\n    c.close()\n"
    );
    let arguments = "run --link tap:mr0 --addr 10.9.0.2/24 --addr 172.20.0.2/16 --addr 172.20.0.3/16 --host-addr 10.9.0.1/24 \
                     --host-addr 172.20.0.1/16 --gateway 10.9.0.1 --route 10.99.0.0/16 via 172.20.0.1 --route 10.99.1.0/24 via 10.9.0.1";
    for shards in ["1", "2"] {
        let mut command = world.millrace(&arguments.split_whitespace().collect::<Vec<_>>());
        command.args(["--shards", shards, "--", PYTHON, "-c", &script]);
        let mut running = world.start_on_subject(command)?;
        wait_until("it listens", seconds(20), || {
            ensure!(running.is_running()?, "it has ended:\n{}", running.stderr());
            Ok(running.stdout().contains("ready"))
        })?;
        let said = running.stdout();
        ensure!(
            said.starts_with("10.9.0.2 172.20.0.2 172.20.0.2 10.9.0.2\n172.20.0.3 10.9.0.2\n"),
            "{said}"
        );
        for own in ["10.9.0.2", "172.20.0.2", "172.20.0.3"] {
            let (at, mut answer) = (format!("{own}:{PORT}").parse()?, String::new());
            let mut stream = peer.enter(|| http::connect(at))?;
            stream.read_to_string(&mut answer)?;
            ensure!(answer == own, "{answer} at {own}");
        }
        running.wait(seconds(15))?.success()?;
    }
    Ok(())
}

fn ping_is_answered(world: &World) -> Result<()> {
    let program = compile::program("server")?;
    let server = world.serve(
        &[&program, "echo", &SUBJECT.to_string(), &PORT.to_string()],
        PORT,
    )?;
    let ping = compile::script("ping.py");
    world.run_on_peer(&[PYTHON, &ping, &SUBJECT.to_string()], seconds(20))?;
    server.stop(Signal::TERM, seconds(10)).map(|_| ())
}

/// nginx at port 80 with a file of `size` bytes to serve: the words to start it with.
fn file_server(world: &World, size: usize) -> Result<Vec<String>> {
    fs::create_dir_all(world.directory().join("www"))?;
    write_file(&world.directory().join("www/file"), 3, size)?;
    Nginx {
        port: 80,
        main: "daemon off;",
        http: "",
        server: "listen [::]:80;",
    }
    .configure(world)
}

/// Waits until nginx at `address` takes connections from the peer's kernel.
fn wait_for_server(world: &World, running: &mut Process, address: &str) -> Result<()> {
    let address = address.parse()?;
    wait_until("nginx takes connections", seconds(20), || {
        ensure!(running.is_running()?, "it has ended:\n{}", running.stderr());
        let peer = world.peer_namespace();
        Ok(peer.enter(|| http::connect(address)).is_ok())
    })
}

fn a_virtual_lan_on_a_tap_device_reaches_the_kernel_through_a_switch(world: &World) -> Result<()> {
    let peer = world.peer_namespace();
    let words = file_server(world, 20_000_000)?;
    let mut command = world.millrace(&["run", "--link", "tap:mr0", "--vlan", "7"]);
    command
        .args([
            "--addr",
            &format!("{SUBJECT}/24"),
            "--addr",
            "fd00:9::2/64",
            "--",
        ])
        .args(&words);
    let mut running = world.start_on_subject(command)?;
    wait_until("the device is up", seconds(10), || {
        Ok(running.is_running()? && running.stderr().contains("VLAN 7"))
    })?;
    let relay = compile::script("vlan_relay.py");
    let switch = world.peer(&[PYTHON, &relay, "mr0", "mr-seven", "7"])?;
    wait_until("the switch is there", seconds(10), || {
        Ok(switch.stdout().contains("ready"))
    })?;
    peer.ip(&format!("addr add {PEER}/24 dev mr-seven"))?;
    peer.ip("addr add fd00:9::1/64 dev mr-seven nodad")?;
    peer.ip("link set mr-seven up")?;
    wait_for_server(world, &mut running, &format!("{SUBJECT}:80"))?;
    let got = world.directory().join("got");
    let got_name = got.to_string_lossy().into_owned();
    for host in [SUBJECT.to_string(), "[fd00:9::2]".to_owned()] {
        let url = format!("http://{host}/file");
        let curl = ["curl", "-sS", "--fail", "-o", &got_name, &url];
        world.run_on_peer(&curl, seconds(60))?;
        ensure_same(&world.directory().join("www/file"), &got)?;
    }
    // What the kernel says on the device without a tag was not for the engine, and is counted.
    let said = world
        .start_on_subject(world.millrace(&["ss", "--counters"]))?
        .wait(seconds(10))?
        .success()?
        .text();
    let foreign = said.split("\"frames_foreign\":").nth(1).unwrap_or_default();
    ensure!(!foreign.is_empty() && !foreign.starts_with("0,"), "{said}");
    switch.stop(Signal::KILL, seconds(5))?;
    running.stop(Signal::TERM, seconds(15)).map(|_| ())
}

/// Two engines of one virtual LAN at the ends of a veth pair, and one of another that they do not
/// hear.
fn virtual_lans_on_one_device_are_apart(world: &World) -> Result<()> {
    let host = world.peer_namespace();
    host.ip("link add mr-here type veth peer name mr-there")?;
    host.ip("link set mr-here up")?;
    host.ip("link set mr-there up")?;
    let words = file_server(world, 5_000_000)?;
    let engine = |device: &str, vlan: &str, address: &str, words: &[String]| {
        let mut command = world.millrace(&["run", "--link", &format!("packet:{device}")]);
        command.args(["--vlan", vlan, "--addr", &format!("{address}/24"), "--"]);
        command.args(words);
        command
    };
    let mut server = world.start_on_subject(engine("mr-here", "7", "10.9.0.2", &words))?;
    wait_until("nginx has started", seconds(30), || {
        ensure!(server.is_running()?, "it has ended:\n{}", server.stderr());
        let said = world
            .start_on_subject(world.millrace(&["ss"]))?
            .wait(seconds(10))?
            .text();
        Ok(said.contains(":80"))
    })?;
    let got = world.directory().join("got");
    let got_name = got.to_string_lossy().into_owned();
    let curl = [
        "curl",
        "-sS",
        "--fail",
        "--connect-timeout",
        "8",
        "-o",
        &got_name,
        "http://10.9.0.2/file",
    ]
    .map(String::from);
    let of_eight = world.start_on_subject(engine("mr-there", "8", "10.9.0.8", &curl))?;
    let ended = of_eight.wait(seconds(60))?;
    ensure!(ended.success().is_err(), "another LAN is another network");
    let of_seven = world.start_on_subject(engine("mr-there", "7", "10.9.0.7", &curl))?;
    of_seven.wait(seconds(60))?.success()?;
    ensure_same(&world.directory().join("www/file"), &got)?;
    server.stop(Signal::TERM, seconds(15))?;
    host.ip("link del mr-here").map(drop)
}

fn an_address_that_another_station_has_is_refused(world: &World) -> Result<()> {
    let host = world.peer_namespace();
    host.ip("link add mr-here type veth peer name mr-there")?;
    host.ip(&format!("addr add {PEER}/24 dev mr-there"))?;
    host.ip("addr add fd00:9::1/64 dev mr-there nodad")?;
    host.ip("link set mr-here up")?;
    host.ip("link set mr-there up")?;
    for taken in [PEER.to_string(), "fd00:9::1".to_owned()] {
        let mut command = world.millrace(&["run", "--link", "packet:mr-here"]);
        command.args(["--addr", &format!("{SUBJECT}/24")]);
        // One of both is the other station's.
        match taken.contains(':') {
            true => command.args(["--addr", &format!("{taken}/64")]),
            false => command.args(["--addr", &format!("{taken}/24")]),
        };
        command.args(["--", "true"]);
        let ended = world.start_on_subject(command)?.wait(seconds(30))?;
        let said = format!("{taken} is in use on the link");
        ensure!(
            ended.status.code() == Some(125)
                && String::from_utf8_lossy(&ended.stderr).contains(&said),
            "{ended:?}"
        );
    }
    host.ip("link del mr-here").map(drop)
}

/// nginx by packet sockets on one end of a veth pair; the kernel, which has the other, and a second
/// program of its own on the same device.
fn r2_a_device_that_is_there_serves(world: &World) -> Result<()> {
    let host = world.peer_namespace();
    host.ip("link add mr-here type veth peer name mr-there")?;
    host.ip(&format!("addr add {PEER}/24 dev mr-there"))?;
    host.ip("link set mr-here up")?;
    host.ip("link set mr-there up")?;
    fs::create_dir_all(world.directory().join("www"))?;
    let file = world.directory().join("www/file");
    write_file(&file, 2, 20_000_000)?;
    let words = Nginx {
        port: 80,
        main: "daemon off;",
        http: "",
        server: "",
    }
    .configure(world)?;
    for shards in ["1", "2"] {
        let mut command = world.millrace(&["run", "--link", "packet:mr-here", "--shards", shards]);
        command
            .args(["--addr", &format!("{SUBJECT}/24"), "--"])
            .args(&words);
        let mut running = world.start_on_subject(command)?;
        wait_until("nginx takes connections", seconds(20), || {
            ensure!(running.is_running()?, "it has ended:\n{}", running.stderr());
            Ok(host.enter(|| http::connect(world.at(80))).is_ok())
        })?;
        let got = world.directory().join("got");
        let url = format!("http://{SUBJECT}/file");
        let got_name = got.to_string_lossy().into_owned();
        for _ in 0..3 {
            world.run_on_peer(
                &["curl", "-sS", "--fail", "-o", &got_name, &url],
                seconds(30),
            )?;
            ensure_same(&file, &got)?;
        }
        running.stop(Signal::TERM, seconds(15))?;
    }
    ensure!(
        host.devices()?.iter().any(|name| name == "mr-here"),
        "the device stays"
    );
    host.ip("link del mr-here").map(drop)
}
