//! Stacks on several threads, and the sockets that any thread may use.

use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millrace::{Builder, Link, TcpListener, TcpOptions, TcpStream};

use void::Void;

mod void;

#[test]
fn every_shard_runs_its_task_once() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let engine = Builder::new()
        .start(3, move |_, shard| {
            let counted = counted.clone();
            async move {
                counted.fetch_add(1 << (8 * shard), Ordering::Relaxed);
            }
        })
        .expect("an engine");
    assert_eq!(engine.shards(), 3);
    engine.join();
    assert_eq!(runs.load(Ordering::Relaxed), 0x01_01_01);
}

#[test]
fn a_task_that_panics_does_not_keep_the_engine() {
    let engine = Builder::new()
        .start(2, |_, shard| async move {
            assert!(shard == 1, "on purpose");
        })
        .expect("an engine");
    engine.join();
}

#[test]
fn a_thread_that_panics_does_not_keep_the_engine() {
    let engine = Builder::new()
        .start(2, |stack, shard| async move {
            // One that would never be over.
            if shard == 0 {
                let listener = TcpListener::bind(&stack, (Ipv4Addr::LOCALHOST, 80));
                let _ = listener.expect("a free port").accept_async().await;
            }
        })
        .expect("an engine");
    engine.with_stack(0, |_| panic!("on purpose"));
    engine.join();
}

#[test]
fn threads_share_listeners_and_streams() {
    let engine = Builder::new().start(2, |_, _| async {}).expect("an engine");
    let listener = engine
        .listen((Ipv4Addr::LOCALHOST, 0).into())
        .expect("a free port");
    let address = listener.local_addr();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            for _ in 0..4 {
                let (mut stream, from) = listener.accept().expect("listening");
                assert_eq!(stream.peer_addr(), from);
                scope.spawn(move || {
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).expect("open");
                    stream.write_all(&all).expect("open");
                });
            }
        });
        for number in 0..4u8 {
            let engine = &engine;
            scope.spawn(move || {
                let mut stream = engine.connect(address).expect("connected");
                let sent = vec![number; 300_000];
                let mut back = Vec::new();
                let mut writer = &stream;
                writer.write_all(&sent).expect("open");
                stream.shutdown(std::net::Shutdown::Write).expect("open");
                stream.read_to_end(&mut back).expect("open");
                assert!(back == sent, "{} bytes came back", back.len());
            });
        }
        server.join().expect("no panic");
    });
    drop(listener);
    // It is gone from every shard, some time soon.
    for _ in 0..1000 {
        match engine.connect(address) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
            _ => std::thread::yield_now(),
        }
    }
    panic!("somebody still listens");
}

#[test]
fn what_outlives_its_engine_says_so() {
    let engine = Builder::new().start(2, |_, _| async {}).expect("an engine");
    let listener = engine
        .listen((Ipv4Addr::LOCALHOST, 0).into())
        .expect("a free port");
    let mut stream = engine.connect(listener.local_addr()).expect("connected");
    drop(engine);
    assert_eq!(
        stream.read(&mut [0; 1]).expect_err("over").kind(),
        ErrorKind::NotConnected
    );
    let (mut late, _) = listener.accept().expect("it was accepted before");
    assert!(late.write(b"x").is_err());
    assert_eq!(
        listener.accept().map(drop).expect_err("over").kind(),
        ErrorKind::NotConnected
    );
}

#[test]
fn a_shard_does_not_wait_for_itself() {
    let (tell, told) = std::sync::mpsc::channel();
    let engine = Arc::new(Builder::new().start(1, |_, _| async {}).expect("an engine"));
    let listener = engine
        .listen((Ipv4Addr::LOCALHOST, 0).into())
        .expect("a free port");
    let address = listener.local_addr();
    let other = Arc::downgrade(&engine);
    engine.with_stack(0, move |_| {
        let engine = other.upgrade().expect("it runs");
        tell.send(engine.connect(address).map(drop)).expect("heard");
    });
    let outcome = told.recv().expect("an answer");
    assert_eq!(outcome.expect_err("refused").kind(), ErrorKind::Deadlock);
}

#[test]
fn a_listener_of_each_shard_accepts_what_is_its_own() {
    let engine = Builder::new()
        .start(2, |stack, _| async move {
            let listener = TcpListener::bind(&stack, (Ipv4Addr::LOCALHOST, 80)).expect("free");
            let to = listener.local_addr().expect("open");
            for _ in 0..50 {
                let stream = millrace::TcpStream::connect_async(&stack, to).await;
                let stream = stream.expect("connected");
                let (_accepted, from) = listener.accept_async().await.expect("its own");
                assert_eq!(from, stream.local_addr().expect("open"));
            }
        })
        .expect("an engine");
    engine.join();
}

/// Whatever shard a datagram comes to, a socket that is bound on all of them hears it, and those of
/// one sender in their order.
#[test]
fn threads_share_sockets_for_datagrams() {
    const CLIENTS: usize = 8;
    const EACH: u8 = 40;
    let engine = Builder::new().start(3, |_, _| async {}).expect("an engine");
    let server = engine
        .bind_datagrams((Ipv4Addr::LOCALHOST, 0).into())
        .expect("a free port");
    let address = server.local_addr();
    assert_eq!(
        server.peer_addr().expect_err("none").kind(),
        ErrorKind::NotConnected
    );
    // EDESTADDRREQ
    assert_eq!(
        server.send(b"x").expect_err("to nobody").raw_os_error(),
        Some(89)
    );
    std::thread::scope(|scope| {
        let server = &server;
        // Two threads take what comes.
        let heard = [0; 2].map(|_| {
            scope.spawn(move || {
                for _ in 0..CLIENTS * usize::from(EACH) / 2 {
                    let mut buffer = [0; 8];
                    let (len, from) = server.recv_from(&mut buffer).expect("open");
                    server.send_to(&buffer[..len], from).expect("sent");
                }
            })
        });
        for number in 0..CLIENTS {
            let engine = &engine;
            scope.spawn(move || {
                let client = engine.datagrams(address).expect("a port");
                assert_eq!(client.peer_addr().expect("one"), address);
                for turn in 0..EACH {
                    client.send(&[number as u8, turn]).expect("sent");
                    let mut buffer = [0; 8];
                    let (len, from) = client.recv_from(&mut buffer).expect("open");
                    assert_eq!((&buffer[..len], from), (&[number as u8, turn][..], address));
                }
            });
        }
        for thread in heard {
            thread.join().expect("no panic");
        }
    });
}

/// What no thread takes waits in the shards' sockets, up to their limit, and the socket closes all
/// the same.
#[test]
fn datagrams_that_nobody_takes_do_not_pile_up() {
    let engine = Builder::new().start(1, |_, _| async {}).expect("an engine");
    let server = engine
        .bind_datagrams((Ipv4Addr::LOCALHOST, 0).into())
        .expect("a free port");
    let address = server.local_addr();
    let client = engine.datagrams(address).expect("a port");
    for _ in 0..2000 {
        client.send(&[0; 1000]).expect("sent");
    }
    let (tell, told) = std::sync::mpsc::channel();
    engine.with_stack(0, move |stack| {
        let _ = tell.send(stack.counters().udp_receive_full);
    });
    assert!(told.recv().expect("an answer") > 0, "the socket is full");
    server.recv(&mut [0; 8]).expect("the oldest");
    drop(server);
    // Its port is free again, some time soon.
    for _ in 0..1000 {
        if engine.bind_datagrams(address).is_ok() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("somebody still hears");
}

/// A port that the program chose does for a connection only if its answers come back to the shard;
/// what goes no further than this host always does.
#[test]
fn a_port_whose_answers_go_to_another_shard_is_refused_before_anything_is_sent() {
    let own = Ipv4Addr::new(10, 0, 0, 1);
    let parts = Builder::new()
        .link(Link::custom(vec![
            Box::new(Void { floods: false }),
            Box::new(Void { floods: false }),
        ]))
        .address(own, 24)
        .parts(2)
        .expect("two shards");
    let stacks: Vec<millrace::Stack> = parts
        .into_iter()
        .map(|part| part.stack().expect("descriptors"))
        .collect();
    let remote = SocketAddr::from(([10, 0, 0, 2], 80));
    let begin = |stack, port, remote| {
        let local = Some(SocketAddr::from((own, port)));
        TcpStream::connect_nonblocking_from(stack, local, remote, TcpOptions::new())
    };
    for port in 1000..1050 {
        let outcomes = stacks.iter().map(|stack| begin(stack, port, remote));
        let [mut begun, mut refused] = [0; 2];
        for outcome in outcomes {
            match outcome.map_err(|error| error.kind()) {
                Ok(_) => begun += 1,
                Err(ErrorKind::AddrNotAvailable) => refused += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!((begun, refused), (1, 1), "port {port}");
        begin(&stacks[0], port + 1000, (own, 80).into()).expect("to oneself");
        begin(&stacks[1], 0, remote).expect("a port that leads back");
    }
}

/// Which marker traits a type has: a method of its own is found before the same of a trait's, where
/// its bound holds.
struct Probe<T>(PhantomData<T>);

impl<T: Send> Probe<T> {
    fn is_send(&self) -> bool {
        true
    }
}

impl<T: Sync> Probe<T> {
    fn is_sync(&self) -> bool {
        true
    }
}

trait Otherwise {
    fn is_send(&self) -> bool {
        false
    }

    fn is_sync(&self) -> bool {
        false
    }
}

impl<T> Otherwise for Probe<T> {}

/// A stack and all that is in it is one thread's; what may go elsewhere says so.
#[test]
fn types_cross_threads_as_they_may() {
    macro_rules! both {
        ($($type:ty),+) => {
            [$({
                let probe = Probe::<$type>(PhantomData);
                (stringify!($type), probe.is_send(), probe.is_sync())
            }),+]
        };
    }
    for (name, send, sync) in both![
        millrace::Stack,
        millrace::TcpStream,
        millrace::TcpListener,
        millrace::UdpSocket,
        millrace::Incoming,
        millrace::Descriptor<std::fs::File>,
        millrace::JoinHandle<()>
    ] {
        assert!(!send && !sync, "{name}");
    }
    for (name, send, sync) in both![
        millrace::Engine,
        millrace::shared::TcpStream,
        millrace::shared::TcpListener,
        millrace::shared::UdpSocket,
        std::task::Waker
    ] {
        assert!(send && sync, "{name}");
    }
    for (name, send, sync) in both![millrace::Link, millrace::Builder, millrace::Part] {
        assert!(send && !sync, "{name}");
    }
}
