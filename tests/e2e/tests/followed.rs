//! The kernel's own addresses of both families shared with it, and followed: addresses, routes,
//! gateways and neighbours that change while programs run.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;

use millrace_e2e::world::NEIGHBOUR;
use millrace_e2e::{
    PEER, Process, Result, World, compile, ensure, http, load, over_xdp, seconds, wait_until,
};

over_xdp!(
    servers_of_both_are_side_by_side_in_both_families,
    connections_go_out_from_both_over_ipv6,
    a_port_is_one_sides_in_both_families,
    errors_find_who_sent_over_ipv6,
    the_kernels_neighbours_are_followed_over_ipv6,
    routes_that_change_are_followed,
    addresses_that_change_are_followed,
    an_address_of_ipv6_that_the_kernel_does_not_have_is_said,
);

const LINK: &str = "xdp:veth0,address=shared";
const PYTHON: &str = "/usr/bin/python3";
/// The kernel's address that is shared, and its peer's.
const OWN_V6: &str = "fd00:9::3";
const PEER_V6: &str = "fd00:9::1";

/// An echo server at all addresses of both families, for as long as its input is open.
const ECHO: &str = "import socket, sys, threading\n\
    l = socket.create_server(('', int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)\n\
    def serve(c):\n    while b := c.recv(4096):\n        c.sendall(b)\n    c.close()\n\
    def accept():\n    while True:\n        threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()\n\
    threading.Thread(target=accept, daemon=True).start()\nprint('ready')\nsys.stdin.read()\n";

/// Connects wherever it is told, and says who it is then.
const CLIENT: &str = "import socket, sys\nprint('ready')\nkept = []\n\
    for line in sys.stdin:\n    host, port = line.split()\n    try:\n        s = socket.create_connection((host, int(port)), 5)\n        \
    kept.append(s)\n        print('from', s.getsockname()[0])\n    except OSError as e:\n        print('error', e.errno)\n";

fn with_v6(world: &World) -> Result<()> {
    for (namespace, address) in [
        (world.subject_namespace(), OWN_V6),
        (world.peer_namespace(), PEER_V6),
    ] {
        namespace.ip(&format!("addr add {address}/64 dev veth0 nodad"))?;
    }
    Ok(())
}

fn at_v6(port: u16) -> SocketAddr {
    SocketAddr::new(OWN_V6.parse().expect("an address"), port)
}

fn at(port: u16) -> SocketAddr {
    (NEIGHBOUR, port).into()
}

/// A script of Python's on an engine with the kernel's addresses, or beside it on the kernel; it
/// has said "ready".
fn script(world: &World, on_millrace: bool, words: &[&str]) -> Result<Process> {
    let shards = world.shards.to_string();
    let python = [PYTHON, "-u", "-c"];
    let mut command = if on_millrace {
        let mut run = world.millrace(&["run", "--link", LINK, "--shards", &shards, "--"]);
        run.args(python);
        run
    } else {
        millrace_e2e::command(&python)
    };
    command.args(words).stdin(Stdio::piped());
    let mut running = world.start_on_subject(command)?;
    wait_until("it is ready", seconds(20), || {
        running.ensure_not_failed()?;
        Ok(running.stdout().contains("ready\n"))
    })?;
    Ok(running)
}

/// Ends a script that goes on as long as its input does.
fn end(mut script: Process) -> Result<()> {
    drop(script.stdin());
    script.wait(seconds(15))?.success().map(drop)
}

/// What `millrace ss` shows.
fn shown(world: &World) -> Result<String> {
    let shown = world.start_on_subject(world.millrace(&["ss"]))?;
    Ok(shown.wait(seconds(10))?.text())
}

/// Echo requests of the peer's, in one piece and in fragments.
fn ping(world: &World, address: &str) -> Result<()> {
    let script = compile::script("ping.py");
    let words = [PYTHON, &script, address];
    world.run_on_peer(&words, seconds(20)).map(drop)
}

fn servers_of_both_are_side_by_side_in_both_families(world: &World) -> Result<()> {
    with_v6(world)?;
    let kernels = script(world, false, &[ECHO, "7420"])?;
    let ours = script(world, true, &[ECHO, "7421"])?;
    let peer = world.peer_namespace();
    let all = [at(7420), at_v6(7420), at(7421), at_v6(7421)];
    let mut stays = Vec::new();
    for address in all {
        stays.push(peer.enter(|| load::hold(address, 4))?);
    }
    for _ in 0..50 {
        for (address, stays) in all.iter().zip(&mut stays) {
            load::echo_on_all(stays)?;
            peer.enter(|| load::short_conversations(*address, 2))?;
        }
    }
    let listed = shown(world)?;
    ensure!(
        listed.contains("7421") && !listed.contains("7420"),
        "{listed}"
    );
    ensure!(listed.contains(OWN_V6), "{listed}");
    // What is neither's is the kernel's: echo requests, and the refusal of a port that nobody has.
    ping(world, OWN_V6)?;
    ping(world, &NEIGHBOUR.to_string())?;
    let refused = peer.enter(|| TcpStream::connect_timeout(&at_v6(7422), seconds(10)));
    ensure!(refused.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused));
    drop(stays);
    end(ours)?;
    end(kernels)
}

fn connections_go_out_from_both_over_ipv6(world: &World) -> Result<()> {
    with_v6(world)?;
    let listener = world
        .peer_namespace()
        .enter(|| TcpListener::bind((PEER_V6, 0)))?;
    let to = listener.local_addr()?;
    let rounds = 100;
    let words = format!(
        "import socket\nprint('ready')\nfor _ in range({rounds}):\n    s = socket.create_connection(('{PEER_V6}', {}), 10)\n    \
         assert s.getsockname()[0] == '{OWN_V6}' and s.recv(9) == b'x'\n    s.close()\n",
        to.port()
    );
    let answering = std::thread::spawn(move || -> Result<usize> {
        let mut ports = std::collections::HashSet::new();
        for _ in 0..2 * rounds {
            let (mut stream, from) = listener.accept()?;
            ports.insert(from.port());
            stream.write_all(b"x")?;
        }
        Ok(ports.len())
    });
    let ours = script(world, true, &[&words])?;
    world.subject_namespace().enter(|| -> Result<()> {
        for _ in 0..rounds {
            http::connect(to)?.read_exact(&mut [0])?;
        }
        Ok(())
    })?;
    ours.wait(seconds(30))?.success()?;
    let ports = answering
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    ensure!(ports > rounds, "{ports} ports");
    Ok(())
}

fn a_port_is_one_sides_in_both_families(world: &World) -> Result<()> {
    with_v6(world)?;
    let subject = world.subject_namespace();
    // The kernel has a port in one family: then it is not to be had in the other.
    let kernels = subject.enter(|| TcpListener::bind(at_v6(7423)))?;
    let words = "import socket\n\
        def bind(family, port):\n    s = socket.socket(family)\n    s.bind(('', port))\n    s.listen()\n    return s\n\
        for family in (socket.AF_INET, socket.AF_INET6):\n    try:\n        bind(family, 7423)\n        print('taken!')\n    except OSError as e:\n        print(e.errno)\n\
        four, six = bind(socket.AF_INET, 7424), bind(socket.AF_INET6, 7425)\nprint('ready')\ninput()\n";
    let ours = script(world, true, &[words])?;
    ensure!(ours.stdout().starts_with("98\n98\n"), "{}", ours.stdout());
    for port in [7424, 7425] {
        for address in [at(port), at_v6(port)] {
            let bound = subject.enter(|| TcpListener::bind(address).map(drop));
            let error = bound.expect_err("it is millrace's").kind();
            ensure!(error == std::io::ErrorKind::AddrInUse, "{address}: {error}");
        }
    }
    drop(kernels);
    let mut ours = ours;
    ours.stdin().expect("a pipe").write_all(b"\n")?;
    ours.wait(seconds(15))?.success().map(drop)
}

fn errors_find_who_sent_over_ipv6(world: &World) -> Result<()> {
    with_v6(world)?;
    world.peer_namespace().set("ipv6.icmp.ratelimit", "0")?;
    let words = format!(
        "import socket\ns = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\ns.settimeout(5)\ns.connect(('{PEER_V6}', 7426))\ns.send(b'x')\n\
         try:\n    s.recv(9)\nexcept ConnectionRefusedError:\n    print('ready')\n"
    );
    script(world, true, &[&words])?
        .wait(seconds(15))?
        .success()?;
    // The kernel's own.
    let refused = world.subject_namespace().enter(|| -> Result<bool> {
        let socket = UdpSocket::bind((OWN_V6, 0))?;
        socket.connect((PEER_V6, 7426))?;
        socket.set_read_timeout(Some(seconds(5)))?;
        socket.send(b"x")?;
        let got = socket.recv(&mut [0; 9]);
        Ok(got.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused))
    })?;
    ensure!(refused);
    Ok(())
}

fn the_kernels_neighbours_are_followed_over_ipv6(world: &World) -> Result<()> {
    with_v6(world)?;
    let ours = script(world, true, &[ECHO, "7427"])?;
    let (subject, peer) = (world.subject_namespace(), world.peer_namespace());
    let mut streams = [peer.enter(|| http::connect(at_v6(7427)))?];
    load::echo_on_all(&mut streams)?;
    // The peer has another card, and the kernel is told.
    peer.ip("link set veth0 address 02:00:00:00:00:99")?;
    subject.ip(&format!(
        "neigh replace {PEER_V6} lladdr 02:00:00:00:00:99 dev veth0 nud reachable"
    ))?;
    load::echo_on_all(&mut streams)?;
    drop(streams);
    end(ours)
}

/// Has the client connect until that goes by millrace and from the address `own`: what the kernel
/// has done is followed a moment later. The end of the listener's.
fn connect_until_ours(
    world: &World,
    client: &mut Client,
    listener: &TcpListener,
    own: &str,
) -> Result<TcpStream> {
    let to = listener.local_addr()?;
    let mut ours = None;
    wait_until("millrace connects", seconds(30), || {
        let said = client.connect(to)?;
        if said.starts_with("error") {
            return Ok(false);
        }
        ensure!(said == format!("from {own}"), "{said}");
        let (stream, from) = listener.accept()?;
        ours = shown(world)?.contains(&from.to_string()).then_some(stream);
        Ok(ours.is_some())
    })?;
    Ok(ours.expect("it was waited for"))
}

struct Client {
    process: Process,
    input: std::process::ChildStdin,
    /// How much of what it has said was looked at.
    seen: usize,
}

impl Client {
    fn start(world: &World) -> Result<Client> {
        let mut process = script(world, true, &[CLIENT])?;
        let input = process.stdin().expect("a pipe");
        let seen = "ready\n".len();
        Ok(Client {
            process,
            input,
            seen,
        })
    }

    fn connect(&mut self, to: SocketAddr) -> Result<String> {
        writeln!(self.input, "{} {}", to.ip(), to.port())?;
        wait_until("the client has tried", seconds(20), || {
            self.process.ensure_not_failed()?;
            Ok(self.process.stdout()[self.seen..].contains('\n'))
        })?;
        let said = self.process.stdout()[self.seen..].to_owned();
        self.seen += said.len();
        Ok(said.trim().to_owned())
    }
}

fn routes_that_change_are_followed(world: &World) -> Result<()> {
    with_v6(world)?;
    let (subject, peer) = (world.subject_namespace(), world.peer_namespace());
    for (far, network, gateway, nobody, own) in [
        (
            "10.99.0.1",
            "10.99.0.0/16",
            PEER.to_string(),
            "10.9.0.66",
            NEIGHBOUR.to_string(),
        ),
        (
            "fd99::1",
            "fd99::/32",
            PEER_V6.to_owned(),
            "fd00:9::66",
            OWN_V6.to_owned(),
        ),
    ] {
        let far: IpAddr = far.parse()?;
        let bits = if far.is_ipv4() {
            "32 dev lo"
        } else {
            "128 dev lo nodad"
        };
        peer.ip(&format!("addr add {far}/{bits}"))?;
        let listener = peer.enter(|| TcpListener::bind((far, 0)))?;
        let to = listener.local_addr()?;
        let mut client = Client::start(world)?;
        // Without a route nobody reaches it; with one millrace does.
        let said = client.connect(to)?;
        ensure!(said.starts_with("error"), "{said}");
        subject.ip(&format!("route add {network} via {gateway} dev veth0"))?;
        let mut stream = connect_until_ours(world, &mut client, &listener, &own)?;
        // By way of another gateway, where nobody is: the kernel is asked for that.
        subject.ip(&format!("route replace {network} via {nobody} dev veth0"))?;
        wait_until("the other gateway is asked for", seconds(30), || {
            // Each byte has to be acknowledged, which makes the engine look for the way.
            stream.write_all(b"x")?;
            Ok(subject.ip("neigh show dev veth0")?.contains(nobody))
        })?;
        // And back: a connection is to be had again, and the old one goes on.
        subject.ip(&format!("route replace {network} via {gateway} dev veth0"))?;
        connect_until_ours(world, &mut client, &listener, &own)?;
        let left = shown(world)?;
        ensure!(left.contains(&stream.peer_addr()?.to_string()), "{left}");
        subject.ip(&format!("route del {network}"))?;
        wait_until("no way leads there", seconds(30), || {
            Ok(client.connect(to)?.starts_with("error"))
        })?;
        drop(client.input);
        client.process.wait(seconds(20))?.success()?;
    }
    Ok(())
}

fn addresses_that_change_are_followed(world: &World) -> Result<()> {
    let (subject, peer) = (world.subject_namespace(), world.peer_namespace());
    peer.ip(&format!("addr add {PEER_V6}/64 dev veth0 nodad"))?;
    let ours = script(world, true, &[ECHO, "7428"])?;
    let mut stays = [peer.enter(|| http::connect(at(7428)))?];
    load::echo_on_all(&mut stays)?;
    for (added, bits) in [("10.9.0.4", 24), (OWN_V6, 64)] {
        let added: IpAddr = added.parse()?;
        let here = SocketAddr::new(added, 7428);
        subject.ip(&format!(
            "addr add {added}/{bits} dev veth0 {}",
            if bits == 64 { "nodad" } else { "" }
        ))?;
        wait_until("it is heard at the new address", seconds(20), || {
            Ok(peer
                .enter(|| -> Result<()> {
                    let mut stream = [http::connect(here)?];
                    load::echo_on_all(&mut stream)
                })
                .is_ok())
        })?;
        let bound = subject.enter(|| TcpListener::bind(here).map(drop));
        let error = bound.expect_err("it is millrace's").kind();
        ensure!(error == std::io::ErrorKind::AddrInUse, "{error}");
        // The kernel goes on there, too.
        ping(world, &added.to_string())?;
        load::echo_on_all(&mut stays)?;
        let listed = || -> Result<bool> {
            let mut described = world.millrace(&["ss", "--counters"]);
            described.stdin(Stdio::null());
            let text = world.start_on_subject(described)?.wait(seconds(10))?.text();
            Ok(text.contains(&format!("\"{added}\"")))
        };
        ensure!(listed()?);
        subject.ip(&format!("addr del {added}/{bits} dev veth0"))?;
        wait_until("it is gone", seconds(20), || Ok(!listed()?))?;
        load::echo_on_all(&mut stays)?;
    }
    drop(stays);
    end(ours)
}

fn an_address_of_ipv6_that_the_kernel_does_not_have_is_said(world: &World) -> Result<()> {
    with_v6(world)?;
    let refused = |address: &str| -> Result<String> {
        let run = world.millrace(&["run", "--link", LINK, "--addr", address, "--", "true"]);
        let ended = world.start_on_subject(run)?.wait(seconds(15))?;
        ensure!(ended.status.code() == Some(125), "{ended:?}");
        Ok(ended.error_text())
    };
    let said = refused("fd00:9::9/64")?;
    ensure!(
        said.contains("does not have fd00:9::9/64") && said.contains("fd00:9::3/64"),
        "{said}"
    );
    // One that it has can be named alone.
    let words = [
        "run",
        "--link",
        LINK,
        "--addr",
        "fd00:9::3/64",
        "--",
        "true",
    ];
    world
        .start_on_subject(world.millrace(&words))?
        .wait(seconds(15))?
        .success()
        .map(drop)
}
