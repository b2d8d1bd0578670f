//! How long the calls of sockets that any thread may use wait.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use millrace::{Builder, Engine};

const SHORT: Option<Duration> = Some(Duration::from_millis(5));

fn engine() -> Engine {
    Builder::new().start(2, |_, _| async {}).expect("an engine")
}

fn free() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn kind<T>(outcome: std::io::Result<T>) -> ErrorKind {
    outcome.err().expect("it cannot be").kind()
}

#[test]
fn a_stream_waits_as_long_as_it_was_told() {
    let engine = engine();
    let listener = engine.listen(free()).expect("a free port");
    let mut client = engine.connect(listener.local_addr()).expect("connected");
    let (mut server, _) = listener.accept().expect("it has come");
    let mut room = [0; 8];
    assert_eq!(
        kind(client.set_read_timeout(Some(Duration::ZERO))),
        ErrorKind::InvalidInput
    );
    client.set_read_timeout(SHORT).expect("a time");
    assert_eq!(
        (client.read_timeout(), client.write_timeout()),
        (SHORT, None)
    );
    assert_eq!(kind(client.read(&mut room)), ErrorKind::WouldBlock);
    client.set_nonblocking(true);
    assert_eq!(kind(client.read(&mut room)), ErrorKind::WouldBlock);
    // Nothing is lost by what was given up.
    server.write_all(b"hello").expect("room");
    client.set_nonblocking(false);
    client.set_read_timeout(None).expect("for ever");
    client.read_exact(&mut room[..5]).expect("it comes");
    assert_eq!(&room[..5], b"hello");
    // Nobody reads: until there is no more room.
    server.set_write_timeout(SHORT).expect("a time");
    let full = vec![7; 1 << 20];
    let mut sent = 0;
    let error = loop {
        match server.write(&full) {
            Ok(len) => sent += len,
            Err(error) => break error,
        }
        assert!(sent < 1 << 30, "there is an end");
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    server.set_nonblocking(true);
    assert_eq!(kind(server.write(&full)), ErrorKind::WouldBlock);
    drop(server);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect("the end");
    assert_eq!(rest.len(), sent);
}

#[test]
fn one_thread_may_look_while_another_waits() {
    let engine = engine();
    let listener = engine.listen(free()).expect("a free port");
    let socket = engine.bind_datagrams(free()).expect("a free port");
    let (began, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (listener, socket) = (&listener, &socket);
        let tell = began.clone();
        let accepting = scope.spawn(move || {
            tell.send(()).expect("heard");
            listener.accept().map(drop)
        });
        let hearing = scope.spawn(move || {
            began.send(()).expect("heard");
            socket.recv(&mut [0; 8])
        });
        for _ in 0..2 {
            told.recv().expect("it was said");
        }
        listener.set_nonblocking(true);
        assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
        socket.set_read_timeout(SHORT).expect("a time");
        assert_eq!(kind(socket.recv(&mut [0; 8])), ErrorKind::WouldBlock);
        assert_eq!(socket.read_timeout(), SHORT);
        // Which of them it is does not matter: one waits no longer.
        let _client = engine.connect(listener.local_addr()).expect("connected");
        let client = engine.datagrams(socket.local_addr()).expect("a port");
        client.set_nonblocking(true);
        assert_eq!(kind(client.recv(&mut [0; 8])), ErrorKind::WouldBlock);
        client.send(b"hello").expect("room");
        // Who had begun before may have been told either, too.
        let accepted = accepting.join().expect("no panic");
        assert!(accepted.is_ok() || kind(accepted) == ErrorKind::WouldBlock);
        let heard = hearing.join().expect("no panic");
        assert!(matches!(heard, Ok(5)) || kind(heard) == ErrorKind::WouldBlock);
    });
    drop(engine);
    assert_eq!(kind(socket.recv(&mut [0; 8])), ErrorKind::NotConnected);
}
