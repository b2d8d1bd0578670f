//! Programs in C that choose the ports of their connections, on two shards, with a server of the
//! kernel's as their peer.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use millrace_e2e::namespace::Namespace;
use millrace_e2e::{Directory, Process, Result, command, compile, ensure, scenario, seconds};

/// Says back what it hears, until the peer goes.
fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 64];
    while let Ok(len) = stream.read(&mut bytes) {
        if len == 0 || stream.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}

fn connect(file: Option<&str>) -> Result<()> {
    scenario::prepare()?;
    let (namespace, directory) = (Namespace::create()?, Directory::create()?);
    let listener = namespace.enter(|| TcpListener::bind("0.0.0.0:7"))?;
    // It ends with this process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(|| echo(stream));
        }
    });
    let mut words = command(&[&compile::with_library("tests/tap", "bound")?]);
    if let Some(text) = file {
        let path = directory.join("mtcp.conf");
        fs::write(&path, text)?;
        words.arg(path);
    }
    let process = Process::spawn(&namespace, &directory, words)?;
    let said = process.wait(seconds(60))?.success()?.text();
    ensure!(said == "40 connected\n", "{said}");
    Ok(())
}

#[test]
fn by_sockets() {
    connect(None).expect("connected from every port");
}

#[test]
fn by_contexts() {
    let file = "io = tap\nport = tap\nnum_cores = 2\nhost = 10.77.0.1/24\naddress = 10.77.0.2/24\n";
    connect(Some(file)).expect("connected from every port");
}
