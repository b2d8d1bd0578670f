//! The engine on a TAP device, with the kernel's stack at the other end. The test needs the
//! privilege to make a network namespace.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use common::{Program, byte, end, engine_of};
use millrace_context::Status;
use millrace_engine::config::Link;

/// A network namespace for the calling thread and its children. Devices in it end with it.
fn own_namespace() {
    // SAFETY: it changes only this thread's view of the network.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
        .expect("this test makes a network namespace of its own: run it as root");
}

fn link() -> Link {
    Link {
        device: "tap:mr0".parse().unwrap(),
        shared: None,
        addresses: vec![("10.9.0.2".parse().unwrap(), 24)],
        hosts: vec![("10.9.0.1".parse().unwrap(), 24)],
        routes: Vec::new(),
        vlan: None,
        mtu: 1500,
    }
}

#[test]
fn the_kernel_and_a_program_exchange_streams() {
    own_namespace();
    let thread = engine_of("link", Some(link()), 1);
    let program = Program::attach("link");
    let listener = program.listener(8000);
    let len = 20_000_000;
    let kernel = std::thread::spawn(move || {
        let mut stream = TcpStream::connect("10.9.0.2:8000").unwrap();
        let data: Vec<u8> = (0..len).map(byte).collect();
        stream.write_all(&data).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == data, "what came back differs");
    });
    let server = program.accept(listener);
    let mut data = Vec::new();
    while data.len() < len {
        data.extend(program.receive(server));
        assert!(
            data.len() == len
                || !program
                    .region
                    .slot(server.index)
                    .unwrap()
                    .engine
                    .status()
                    .contains(Status::READ_CLOSED)
                || {
                    data.extend(program.receive(server));
                    data.len() == len
                },
            "the stream ended at {}",
            data.len()
        );
    }
    assert!(data.iter().enumerate().all(|(at, seen)| *seen == byte(at)));
    let mut sent = 0;
    while sent < len {
        sent += program.send(server, &data[sent..len.min(sent + 100_000)]);
    }
    program.close(server);
    kernel.join().unwrap();
    drop(program);
    end("link", thread);
}

/// The kernel puts frames into either queue. Each connection still belongs to one shard, and one
/// listener accepts the connections of both.
#[test]
fn two_shards_serve_the_kernel() {
    own_namespace();
    let thread = engine_of("two", Some(link()), 2);
    let program = Program::attach("two");
    let listener = program.listener(8000);
    let kernel = std::thread::spawn(move || {
        let mut streams: Vec<TcpStream> = (0..32)
            .map(|_| TcpStream::connect("10.9.0.2:8000").unwrap())
            .collect();
        for stream in &mut streams {
            let data: Vec<u8> = (0..200_000).map(byte).collect();
            stream.write_all(&data).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            assert_eq!(back, b"done");
        }
    });
    let servers: Vec<_> = (0..32).map(|_| program.accept(listener)).collect();
    for shard in 0..2 {
        assert!(servers.iter().any(|slot| program.shard_of(*slot) == shard));
    }
    let mut got = vec![0; servers.len()];
    while got.iter().any(|got| *got < 200_000) {
        for (slot, got) in servers
            .iter()
            .zip(&mut got)
            .filter(|(_, got)| **got < 200_000)
        {
            for seen in program.receive(*slot) {
                assert_eq!(seen, byte(*got), "at {got}");
                *got += 1;
            }
            if *got == 200_000 {
                assert_eq!(program.send(*slot, b"done"), 4);
                program.close(*slot);
            }
        }
    }
    kernel.join().unwrap();
    drop(program);
    end("two", thread);
}

/// The device belongs to the engine and ends with it.
#[test]
fn nothing_is_left_behind() {
    own_namespace();
    let thread = engine_of("gone", Some(link()), 2);
    let devices = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    assert!(devices().contains("mr0:"));
    end("gone", thread);
    assert!(!devices().contains("mr0:"));
}
