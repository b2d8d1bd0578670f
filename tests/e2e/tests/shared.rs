//! The kernel's own address shared with it: programs of both at one address, and neither in the
//! other's way.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;

use millrace_e2e::programs::Nginx;
use millrace_e2e::world::NEIGHBOUR;
use millrace_e2e::{
    PEER, Process, Result, World, command, compile, engine, ensure, http, load, over_xdp, seconds,
    wait_until,
};
use rustix::process::Signal;

over_xdp!(
    servers_of_both_are_side_by_side,
    connections_go_out_from_both,
    a_port_is_one_sides_and_is_given_back,
    errors_find_who_sent,
    the_kernels_neighbours_are_followed,
    the_kernels_routes_are_taken,
    killing_the_engine_gives_everything_back,
    what_the_kernel_does_not_have_is_said,
    an_mtu_above_the_devices_is_lowered_and_that_is_said,
);

const LINK: &str = "xdp:veth0,address=shared";
const PYTHON: &str = "/usr/bin/python3";

/// The command that runs `words` on an engine with the kernel's address.
fn run(world: &World, words: &[&str]) -> Result<Process> {
    let shards = world.shards.to_string();
    let mut run = world.millrace(&["run", "--link", LINK, "--shards", &shards, "--"]);
    run.args(words).stdin(Stdio::piped());
    world.start_on_subject(run)
}

/// The same for a script of Python's; it has said "ready".
fn run_script(world: &World, script: &str) -> Result<Process> {
    let mut running = run(world, &[PYTHON, "-u", "-c", script])?;
    wait_until("it is ready", seconds(20), || {
        running.ensure_not_failed()?;
        Ok(running.stdout().contains("ready"))
    })?;
    Ok(running)
}

fn at(port: u16) -> SocketAddr {
    (NEIGHBOUR, port).into()
}

/// Waits until the peer can connect to the shared address.
fn wait_for(world: &World, server: &mut Process, port: u16) -> Result<()> {
    wait_until("it takes connections", seconds(20), || {
        server.ensure_not_failed()?;
        let peer = world.peer_namespace();
        Ok(peer.enter(|| http::connect(at(port))).is_ok())
    })
}

/// An echo server of the kernel's at the shared address.
fn echo_of_kernel(world: &World, port: u16) -> Result<Process> {
    let program = compile::program("server")?;
    let words = [
        &program[..],
        "echo",
        &NEIGHBOUR.to_string(),
        &port.to_string(),
    ];
    let mut server = world.start_on_subject(command(&words))?;
    wait_for(world, &mut server, port)?;
    Ok(server)
}

fn servers_of_both_are_side_by_side(world: &World) -> Result<()> {
    let kernels = echo_of_kernel(world, 7400)?;
    std::fs::create_dir_all(world.directory().join("www"))?;
    std::fs::write(world.directory().join("www/small"), b"of nginx")?;
    let words = Nginx {
        port: 80,
        main: "daemon off;",
        http: "",
        server: "",
    }
    .configure(world)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut server = run(world, &words)?;
    wait_for(world, &mut server, 80)?;
    let peer = world.peer_namespace();
    load::fetch_while(peer, at(80), "/small", b"of nginx", (4, 4), || {
        peer.enter(|| -> Result<()> {
            let mut stays = load::hold(at(7400), 8)?;
            for _ in 0..200 {
                load::echo_on_all(&mut stays)?;
                load::short_conversations(at(7400), 4)?;
            }
            Ok(())
        })
    })?;
    server.stop(Signal::TERM, seconds(15))?;
    kernels.stop(Signal::TERM, seconds(10)).map(drop)
}

fn connections_go_out_from_both(world: &World) -> Result<()> {
    let listener = world
        .peer_namespace()
        .enter(|| TcpListener::bind((PEER, 0)))?;
    let to = listener.local_addr()?;
    let rounds = 200;
    let script = format!(
        "import socket\nprint('ready')\nports = set()\nfor _ in range({rounds}):\n    \
         s = socket.create_connection(('{PEER}', {}), 10)\n    ports.add(s.getsockname()[1])\n    \
         assert s.getsockname()[0] == '{NEIGHBOUR}' and s.recv(9) == b'x'\n    s.close()\nprint(len(ports))\n",
        to.port()
    );
    let answering = std::thread::spawn(move || -> Result<usize> {
        let mut ports = std::collections::HashMap::<u16, usize>::new();
        for _ in 0..2 * rounds {
            let (mut stream, from) = listener.accept()?;
            *ports.entry(from.port()).or_default() += 1;
            stream.write_all(b"x")?;
        }
        Ok(ports.len())
    });
    let ours = run_script(world, &script)?;
    let mut kernels = 0;
    world.subject_namespace().enter(|| -> Result<()> {
        for _ in 0..rounds {
            let mut stream = http::connect(to)?;
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            kernels += 1;
        }
        Ok(())
    })?;
    ours.wait(seconds(30))?.success()?;
    let ports = answering
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    ensure!(kernels == rounds && ports > rounds, "{ports} ports");
    Ok(())
}

fn a_port_is_one_sides_and_is_given_back(world: &World) -> Result<()> {
    let subject = world.subject_namespace();
    let kernels = subject.enter(|| TcpListener::bind(("0.0.0.0", 7401)))?;
    let script = "import socket\n\
        def bind(port, kind=socket.SOCK_STREAM):\n    s = socket.socket(type=kind)\n    \
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n    s.bind(('', port))\n    return s\n\
        try:\n    bind(7401)\n    print('taken!')\nexcept OSError as e:\n    print(e.errno)\n\
        tcp, udp = bind(7402), bind(7403, socket.SOCK_DGRAM)\ntcp.listen()\nprint('ready')\ninput()\n\
        tcp.close()\nudp.close()\nprint('closed')\ninput()\n";
    let mut ours = run_script(world, script)?;
    ensure!(ours.stdout().starts_with("98\n"), "{}", ours.stdout());
    let is_taken = |kind: &str| -> Result<bool> {
        let outcome = subject.enter(|| match kind {
            "tcp" => TcpListener::bind(at(7402)).map(drop),
            _ => UdpSocket::bind(("0.0.0.0", 7403)).map(drop),
        });
        Ok(outcome.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse))
    };
    ensure!(is_taken("tcp")? && is_taken("udp")?);
    let mut input = ours.stdin().expect("a pipe");
    input.write_all(b"\n")?;
    wait_until("the kernel can have them", seconds(10), || {
        Ok(!is_taken("tcp")? && !is_taken("udp")?)
    })?;
    // And what goes there now is the kernel's.
    let again = subject.enter(|| TcpListener::bind(at(7402)))?;
    let peer = world.peer_namespace();
    let stream = peer.enter(|| TcpStream::connect_timeout(&at(7402), seconds(5)))?;
    ensure!(again.accept()?.1 == stream.local_addr()?);
    drop((kernels, again, stream));
    input.write_all(b"\n")?;
    drop(input);
    ours.wait(seconds(15))?.success().map(drop)
}

fn errors_find_who_sent(world: &World) -> Result<()> {
    world.peer_namespace().set("ipv4.icmp_ratelimit", "0")?;
    let script = format!(
        "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.settimeout(5)\ns.connect(('{PEER}', 7404))\ns.send(b'x')\n\
         try:\n    s.recv(9)\nexcept ConnectionRefusedError:\n    print('ready')\n"
    );
    run_script(world, &script)?.wait(seconds(15))?.success()?;
    // The kernel's own.
    let refused = world.subject_namespace().enter(|| -> Result<bool> {
        let socket = UdpSocket::bind((NEIGHBOUR, 0))?;
        socket.connect((PEER, 7404))?;
        socket.set_read_timeout(Some(seconds(5)))?;
        socket.send(b"x")?;
        let got = socket.recv(&mut [0; 9]);
        Ok(got.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused))
    })?;
    ensure!(refused);
    Ok(())
}

fn the_kernels_neighbours_are_followed(world: &World) -> Result<()> {
    let script = format!(
        "import socket\nl = socket.create_server(('{NEIGHBOUR}', 7405))\nprint('ready')\nc = l.accept()[0]\n\
         while True:\n    b = c.recv(64)\n    if not b:\n        break\n    c.sendall(b)\n"
    );
    let ours = run_script(world, &script)?;
    let (subject, peer) = (world.subject_namespace(), world.peer_namespace());
    let mut stream = peer.enter(|| http::connect(at(7405)))?;
    let mut exchange = || -> Result<()> {
        stream.write_all(b"x")?;
        Ok(stream.read_exact(&mut [0])?)
    };
    exchange()?;
    // The peer has another card, and the kernel is told.
    peer.ip("link set veth0 address 02:00:00:00:00:99")?;
    subject.ip(&format!(
        "neigh replace {PEER} lladdr 02:00:00:00:00:99 dev veth0 nud reachable"
    ))?;
    exchange()?;
    drop(stream);
    ours.wait(seconds(15))?.success().map(drop)
}

fn the_kernels_routes_are_taken(world: &World) -> Result<()> {
    let peer = world.peer_namespace();
    peer.ip("addr add 10.99.0.1/32 dev lo")?;
    world
        .subject_namespace()
        .ip(&format!("route add 10.99.0.0/16 via {PEER}"))?;
    let listener = peer.enter(|| TcpListener::bind(("10.99.0.1", 0)))?;
    let port = listener.local_addr()?.port();
    let script = format!(
        "import socket\ns = socket.create_connection(('10.99.0.1', {port}), 10)\nprint('ready')\ninput()\n"
    );
    let mut ours = run_script(world, &script)?;
    ensure!(listener.accept()?.1.ip() == NEIGHBOUR);
    let shown = world.start_on_subject(world.millrace(&["ss"]))?;
    let shown = shown.wait(seconds(10))?.text();
    ensure!(shown.contains("10.99.0.1"), "the kernel's: {shown}");
    drop(ours.stdin());
    ours.wait(seconds(15)).map(drop)
}

fn killing_the_engine_gives_everything_back(world: &World) -> Result<()> {
    let subject = world.subject_namespace();
    let before = subject.ip("-details link show dev veth0")?;
    let kernels = echo_of_kernel(world, 7406)?;
    let mut ours = run_script(
        world,
        "import socket\nl = socket.create_server(('', 7407))\nprint('ready')\nl.accept()[0].recv(9)\n",
    )?;
    let peer = world.peer_namespace();
    let mut stays = peer.enter(|| load::hold(at(7406), 4))?;
    let stream = peer.enter(|| http::connect(at(7407)))?;
    engine::kill(world)?;
    wait_until("the device is as it was", seconds(5), || {
        Ok(subject.ip("-details link show dev veth0")? == before)
    })?;
    wait_until("the port is the kernel's", seconds(5), || {
        Ok(subject.enter(|| TcpListener::bind(at(7407))).is_ok())
    })?;
    load::echo_on_all(&mut stays)?;
    drop((stays, stream));
    drop(ours.stdin());
    ours.signal(Signal::TERM)?;
    ours.wait(seconds(15))?;
    kernels.stop(Signal::TERM, seconds(10)).map(drop)
}

fn what_the_kernel_does_not_have_is_said(world: &World) -> Result<()> {
    let refused = |words: &[&str]| -> Result<String> {
        let mut run = world.millrace(&["run", "--link", LINK]);
        run.args(words).args(["--", "true"]);
        let ended = world.start_on_subject(run)?.wait(seconds(15))?;
        ensure!(ended.status.code() == Some(125), "{ended:?}");
        Ok(ended.error_text())
    };
    let said = refused(&["--addr", "10.9.0.9/24"])?;
    ensure!(
        said.contains("does not have 10.9.0.9/24") && said.contains("10.9.0.3/24"),
        "{said}"
    );
    world.subject_namespace().ip("addr flush dev veth0")?;
    let said = refused(&[])?;
    ensure!(said.contains("ip addr add"), "{said}");
    Ok(())
}

fn an_mtu_above_the_devices_is_lowered_and_that_is_said(world: &World) -> Result<()> {
    let said = |mtu: &str| -> Result<String> {
        let words = ["run", "--link", LINK, "--mtu", mtu, "--", "true"];
        let run = world.start_on_subject(world.millrace(&words))?;
        Ok(run.wait(seconds(15))?.success()?.error_text())
    };
    let text = said("1500")?;
    ensure!(!text.contains("at most"), "{text}");
    let text = said("9000")?;
    let larger = "packets on veth0 are of 1500 bytes at most, its MTU, not of the 9000 of --mtu";
    ensure!(text.contains(larger), "{text}");
    ensure!(text.contains("ip link set dev veth0 mtu 9000"), "{text}");
    Ok(())
}
