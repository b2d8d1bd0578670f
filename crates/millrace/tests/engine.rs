//! Stacks on several threads, and the sockets that any thread may use.

use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millrace::{Builder, TcpListener};

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
