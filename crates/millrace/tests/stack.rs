//! A stack on the caller's thread, blocking and with tasks.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use millrace::congestion::{Acked, Controller, Custom, Window};
use millrace::{
    Algorithm, Builder, Instant, Link, Stack, TcpListener, TcpOptions, TcpStream, UdpSocket,
};

fn loopback() -> Stack {
    Builder::new().build().expect("a stack")
}

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Two hosts on one wire, 10.0.0.1 and 10.0.0.2.
fn hosts() -> (Stack, Stack) {
    let (one, two) = Link::pair(1500);
    let host = |link, last| {
        Builder::new()
            .link(link)
            .address(Ipv4Addr::new(10, 0, 0, last), 24)
            .build()
            .expect("a host")
    };
    (host(one, 1), host(two, 2))
}

/// Runs both hosts until `future`, a task of the first, is over.
fn run<T: 'static>(one: &Stack, two: &Stack, future: impl Future<Output = T> + 'static) -> T {
    let handle = one.spawn(future);
    for _ in 0..1_000_000 {
        one.poll();
        two.poll();
        if handle.is_finished() {
            return one.block_on(handle);
        }
    }
    panic!("it does not end");
}

#[test]
fn a_blocking_read_waits_and_times_out() {
    let stack = loopback();
    let listener = TcpListener::bind(&stack, at(80)).expect("free");
    let mut client = TcpStream::connect(&stack, at(80)).expect("connected");
    let (mut server, from) = listener.accept().expect("one waits");
    assert_eq!(from, client.local_addr().expect("open"));
    client
        .set_read_timeout(Some(Duration::from_millis(5)))
        .expect("a time");
    let error = client.read(&mut [0; 10]).expect_err("nothing comes");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(client.set_read_timeout(Some(Duration::ZERO)).is_err());
    server.write_all(b"x").expect("room");
    server.shutdown(Shutdown::Write).expect("connected");
    let mut all = Vec::new();
    client.read_to_end(&mut all).expect("the end");
    assert_eq!(all, b"x");
}

/// Nobody is at the other end of the wire.
#[test]
fn a_connect_is_given_up_in_time() {
    let (stack, _silent) = hosts();
    let address = SocketAddr::from(([10, 0, 0, 2], 80));
    for (span_ms, kind) in [(5, ErrorKind::TimedOut), (0, ErrorKind::InvalidInput)] {
        let span = Duration::from_millis(span_ms);
        let error = TcpStream::connect_timeout(&stack, &address, span).expect_err("nobody");
        assert_eq!(error.kind(), kind);
    }
    stack.poll();
    assert_eq!(stack.usage().sockets, 0);
}

#[test]
fn datagrams_to_all_are_permitted_first() {
    let (stack, _other) = hosts();
    let socket = UdpSocket::bind(&stack, "10.0.0.1:0").expect("free");
    let error = socket.send_to(b"all", "10.0.0.255:7").expect_err("not yet");
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    socket.set_broadcast(true).expect("an option");
    assert_eq!(
        socket.send_to(b"all", "10.0.0.255:7").expect("permitted"),
        3
    );
}

#[test]
fn what_fails_says_so_as_linux_does() {
    let stack = loopback();
    let refused = TcpStream::connect(&stack, at(81)).expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let nowhere = TcpStream::connect(&stack, "192.0.2.1:80").expect_err("no link");
    assert_eq!(nowhere.kind(), ErrorKind::NetworkUnreachable);
    let one = TcpListener::bind(&stack, at(0)).expect("free");
    let taken = TcpListener::bind(&stack, one.local_addr().expect("open")).expect_err("taken");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    one.set_nonblocking(true);
    assert_eq!(
        one.accept().expect_err("none").kind(),
        ErrorKind::WouldBlock
    );
    let foreign = TcpListener::bind(&stack, "192.0.2.1:80").expect_err("not ours");
    assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
}

#[test]
fn a_builder_says_what_does_not_fit() {
    let say = |builder: Builder| builder.build().expect_err("it does not fit").to_string();
    assert!(say(Builder::new().link(Link::pair(1500).0)).contains("`address`"));
    assert!(say(Builder::new().address(Ipv4Addr::new(10, 0, 0, 1), 24)).contains("`link`"));
    let linked = || {
        Builder::new()
            .link(Link::pair(1500).0)
            .address(Ipv4Addr::new(10, 0, 0, 1), 24)
    };
    assert!(say(linked().mtu(9000)).contains("9000"));
    assert!(say(linked().address(Ipv4Addr::new(10, 0, 0, 1), 33)).contains("33"));
    let v6 = std::net::Ipv6Addr::LOCALHOST;
    assert!(say(linked().route(v6, 0, Ipv4Addr::new(10, 0, 0, 9))).contains("families"));
    let two = linked().start(2, |_, _| async {}).expect_err("one queue");
    assert!(two.to_string().contains("2 shards"));
}

#[test]
fn options_are_set_and_read_and_inherited() {
    let stack = loopback();
    let options = TcpOptions::new().congestion(Algorithm::Bbr).nodelay(true);
    let listener = TcpListener::bind_with(&stack, at(80), options).expect("free");
    let client = TcpStream::connect(&stack, at(80)).expect("connected");
    let (server, _) = listener.accept().expect("one waits");
    assert!(server.nodelay().expect("open") && !client.nodelay().expect("open"));
    assert_eq!(server.congestion().expect("open"), Algorithm::Bbr);
    client
        .set_keepalive_time(Duration::ZERO)
        .expect_err("out of range");
    client.set_congestion(Algorithm::NewReno).expect("set");
    let info = client.info().expect("connected");
    assert_eq!(info.state, millrace::State::Established);
}

/// Two segments more than asked for, for the sake of a difference.
#[derive(Debug)]
struct Quick;

impl Controller for Quick {
    fn start(&mut self, window: &mut Window, mss: u32) {
        window.cwnd += 2 * mss;
    }

    fn on_ack(&mut self, window: &mut Window, acked: &Acked, _now: Instant) {
        window.slow_start(acked.bytes);
    }

    fn reduced(&mut self, _: &Window, flight: u32, _mss: u32, _now: Instant) -> u32 {
        flight
    }

    fn on_timeout(&mut self) {}
}

#[test]
fn congestion_control_is_the_stacks_the_listeners_or_the_connections() {
    let mut builder = Builder::new();
    let quick = builder.add_congestion(Custom::new("quick", || Box::new(Quick)));
    let stack = builder.congestion(quick).build().expect("loopback");
    assert_eq!(stack.congestion("quick"), Some(quick));
    let _all = TcpListener::bind(&stack, at(80)).expect("free");
    let reno = TcpOptions::new().congestion(Algorithm::NewReno);
    let some = TcpListener::bind_with(&stack, at(81), reno).expect("free");
    let client = TcpStream::connect(&stack, at(80)).expect("connected");
    let option = |stream: &TcpStream| stream.congestion().expect("open");
    assert_eq!(option(&client), quick);
    let other = TcpStream::connect_nonblocking(&stack, at(81), reno).expect("a port is free");
    let (server, _) = some.accept().expect("one waits");
    assert_eq!(option(&other), Algorithm::NewReno);
    assert_eq!(option(&server), Algorithm::NewReno);
    let window = |stream: &TcpStream| stream.info().expect("connected").cwnd;
    assert_eq!(window(&client) - window(&other), 2 * 65_483);
    client.set_congestion(Algorithm::Bbr).expect("set");
    assert_eq!(option(&client), Algorithm::Bbr);
    // Another stack does not have it.
    let mut other = Builder::new();
    other.add_congestion(Custom::new("quick", || Box::new(Quick)));
    let second = other.add_congestion(Custom::new("second", || Box::new(Quick)));
    client.set_congestion(second).expect_err("EINVAL");
    let unknown = TcpOptions::new().congestion(second);
    TcpListener::bind_with(&stack, at(82), unknown).expect_err("EINVAL");
    TcpStream::connect_nonblocking(&stack, at(80), unknown).expect_err("EINVAL");
    let error = Builder::new()
        .congestion(second)
        .build()
        .expect_err("not its");
    assert!(error.to_string().contains("add_congestion"), "{error}");
}

#[test]
fn bytes_are_read_and_written_where_they_are() {
    let stack = loopback();
    let listener = TcpListener::bind(&stack, at(80)).expect("free");
    let client = TcpStream::connect(&stack, at(80)).expect("connected");
    let (server, _) = listener.accept().expect("one waits");
    client.set_nodelay(true).expect("open");
    let byte = |offset: usize| (offset * 7 % 251) as u8;
    let (mut written, mut read) = (0, 0);
    // Sizes that make both rings wrap at odd places.
    for step in (1..200).map(|n| n * 37 % 1009 + 1) {
        let done = client
            .write_with(step, |[first, second]| {
                // Less than there is room for is fine.
                for (at, place) in first.iter_mut().chain(second).take(step - 1).enumerate() {
                    *place = byte(written + at);
                }
                step - 1
            })
            .expect("room");
        written += done;
        stack.poll();
        stack.poll();
        read += server
            .read_with(|[first, second]| {
                for (at, &found) in first.iter().chain(second).enumerate() {
                    assert_eq!(found, byte(read + at));
                }
                (first.len() + second.len()).saturating_sub(step % 3)
            })
            .or_else(|error| match error.kind() {
                ErrorKind::WouldBlock => Ok(0),
                _ => Err(error),
            })
            .expect("open");
    }
    client.shutdown(Shutdown::Write).expect("connected");
    stack.block_on(async {
        loop {
            server.readable_async().await.expect("open");
            let rest = server.read_with(|[first, second]| first.len() + second.len());
            match rest.expect("open") {
                0 => break,
                rest => read += rest,
            }
        }
    });
    assert_eq!(written, read);
}

#[test]
fn tasks_of_two_hosts_talk() {
    let (client, server) = hosts();
    let listener = TcpListener::bind(&server, "10.0.0.2:7").expect("free");
    let stack = server.clone();
    server.spawn(async move {
        loop {
            let (stream, _) = listener.accept_async().await.expect("listening");
            stack.spawn(async move {
                let mut buffer = [0; 1000];
                while let Ok(len @ 1..) = stream.read_async(&mut buffer).await {
                    stream.write_all_async(&buffer[..len]).await.expect("open");
                }
            });
        }
    });
    let here = client.clone();
    let echoed = run(&client, &server, async move {
        let mut handles = Vec::new();
        for number in 0..20u8 {
            let stack = here.clone();
            handles.push(here.spawn(async move {
                let stream = TcpStream::connect_async(&stack, "10.0.0.2:7".parse().expect("one"))
                    .await
                    .expect("connected");
                let sent = vec![number; 50_000];
                let mut back = vec![0; 50_000];
                for (out, back) in sent.chunks(5000).zip(back.chunks_mut(5000)) {
                    stream.write_all_async(out).await.expect("open");
                    stream.read_exact_async(back).await.expect("open");
                }
                sent == back
            }));
        }
        let mut good = 0;
        for handle in handles {
            good += u32::from(handle.await);
        }
        good
    });
    assert_eq!(echoed, 20);
}

#[test]
fn time_outs_and_sleeps_are_timers_of_the_stack() {
    let stack = loopback();
    let listener = TcpListener::bind(&stack, at(80)).expect("free");
    let never = stack.block_on(stack.timeout(Duration::from_millis(2), listener.accept_async()));
    assert!(never.is_none());
    let before = stack.now();
    stack.block_on(stack.sleep(Duration::from_millis(3)));
    assert!((stack.now() - before).as_micros() >= 3_000);
    let answer = stack.block_on(stack.timeout(Duration::from_secs(3600), async { 7 }));
    assert_eq!(answer, Some(7));
    assert_eq!(stack.usage().timers, 0);
}

#[test]
fn a_task_that_panics_ends_alone() {
    let stack = loopback();
    let bad = stack.spawn(async { panic!("on purpose") });
    let good = stack.spawn(async { 5 });
    assert_eq!(stack.block_on(good), 5);
    assert!(bad.is_finished());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stack.block_on(bad)));
    assert!(caught.is_err(), "the panic goes on where it is waited for");
}

#[test]
fn two_tasks_may_wait_for_one_socket() {
    let stack = loopback();
    let listener = std::rc::Rc::new(TcpListener::bind(&stack, at(80)).expect("free"));
    let accept = |listener: std::rc::Rc<TcpListener>| async move {
        listener.accept_async().await.expect("listening").1
    };
    let handles = [
        stack.spawn(accept(listener.clone())),
        stack.spawn(accept(listener.clone())),
    ];
    stack.poll();
    let _one = TcpStream::connect(&stack, at(80)).expect("connected");
    let _two = TcpStream::connect(&stack, at(80)).expect("connected");
    for handle in handles {
        stack.block_on(handle);
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_waited_once_is_not_woken_for_who_waits_now() {
    let stack = loopback();
    let listener = TcpListener::bind(&stack, at(80)).expect("free");
    let client = TcpStream::connect(&stack, at(80)).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    // Or the second would wait for what the first is answered with (RFC 1122 4.2.3.4).
    server.set_nodelay(true).expect("connected");
    let counts = [(); 2].map(|()| Arc::<Count>::default());
    let woken = || [0, 1].map(|at: usize| counts[at].0.load(Ordering::Relaxed));
    let waits = |at: usize| {
        let waker = Waker::from(counts[at].clone());
        let polled = client.poll_read(&Context::from_waker(&waker), &mut [0; 8]);
        assert!(polled.is_pending());
    };
    let says = || {
        server.try_write(b"hello").expect("connected");
        while stack.poll() > 0 {}
    };
    let hears = || assert_eq!(client.try_read(&mut [0; 8]).expect("it has come"), 5);
    waits(0);
    says();
    assert_eq!(woken(), [1, 0]);
    says();
    assert_eq!(woken(), [1, 0], "it waits no longer");
    assert_eq!(client.try_read(&mut [0; 16]).expect("both"), 10);
    waits(0);
    says();
    hears();
    assert_eq!(woken(), [2, 0], "the same again");
    waits(1);
    says();
    hears();
    assert_eq!(woken(), [2, 1], "another");
    waits(0);
    waits(1);
    waits(1);
    says();
    hears();
    assert_eq!(woken(), [3, 2], "both, each once");
    waits(1);
    drop(client);
    assert_eq!(woken(), [3, 3], "who waits for what is closed");
    assert_eq!(
        counts.each_ref().map(Arc::strong_count),
        [1, 1],
        "nobody is remembered"
    );
}

#[test]
fn another_thread_wakes_a_task() {
    let stack = loopback();
    let (tell, told) = std::sync::mpsc::channel();
    let waker = std::sync::Arc::new(std::sync::Mutex::new(None));
    let (inside, outside) = (waker.clone(), waker);
    let handle = stack.spawn(std::future::poll_fn(move |cx| match told.try_recv() {
        Ok(value) => std::task::Poll::Ready(value),
        Err(_) => {
            *inside.lock().expect("sound") = Some(cx.waker().clone());
            std::task::Poll::Pending
        }
    }));
    let thread = std::thread::spawn(move || {
        loop {
            if let Some(waker) = outside.lock().expect("sound").take() {
                tell.send(11).expect("it waits");
                let waker: std::task::Waker = waker;
                waker.wake();
                return;
            }
            std::thread::yield_now();
        }
    });
    assert_eq!(stack.block_on(handle), 11);
    thread.join().expect("no panic");
}

#[test]
fn datagrams_wait_their_turn() {
    let stack = loopback();
    let server = UdpSocket::bind(&stack, at(53)).expect("free");
    let client = UdpSocket::connected(&stack, at(53)).expect("a port");
    for length in [0, 1, 1472, 60_000] {
        assert_eq!(client.send(&vec![9; length]).expect("room"), length);
    }
    let mut buffer = vec![0; 2000];
    for length in [0, 1, 1472, 60_000] {
        let received = server.recv_with_info(&mut buffer).expect("it came");
        assert_eq!(
            (received.full_len, received.len),
            (length, length.min(2000))
        );
        assert_eq!(received.from, client.local_addr().expect("bound"));
    }
    server
        .set_read_timeout(Some(Duration::from_millis(2)))
        .expect("a time");
    assert_eq!(
        server.recv(&mut buffer).expect_err("nothing").kind(),
        ErrorKind::WouldBlock
    );
    drop(server);
    client.send(b"anybody?").expect("room");
    let error = client.recv(&mut buffer).expect_err("nobody");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn everything_goes_when_it_is_dropped() {
    let (one, two) = hosts();
    let listener = TcpListener::bind(&two, "10.0.0.2:9").expect("free");
    let stack = one.clone();
    let stream = run(&one, &two, async move {
        TcpStream::connect_async(&stack, "10.0.0.2:9".parse().expect("one"))
            .await
            .expect("connected")
    });
    listener.set_nonblocking(true);
    let (server, _) = listener.accept().expect("it waits");
    drop(server);
    drop(stream);
    drop(listener);
    for _ in 0..10 {
        one.poll();
        two.poll();
    }
    assert_eq!((one.usage().sockets, two.usage().sockets), (0, 0));
}

#[test]
fn tasks_that_are_cancelled_are_gone_for_those_who_would_wake_them() {
    let stack = loopback();
    let listener = Rc::new(TcpListener::bind(&stack, at(80)).expect("free"));
    for _ in 0..3 {
        for _ in 0..4 {
            let (listener, here) = (listener.clone(), stack.clone());
            stack.spawn(async move {
                let waits = here.timeout(Duration::from_secs(1), listener.accept_async());
                waits.await
            });
        }
        // One that is over leaves its place to another.
        stack.spawn(async {});
        stack.poll();
        stack.cancel_tasks();
        // It wakes those who waited.
        let _client = TcpStream::connect(&stack, at(80)).expect("connected");
        stack.poll();
        listener.accept().expect("it is nobody else's");
        assert_eq!(stack.block_on(stack.spawn(async { 7 })), 7);
    }
}

#[test]
fn a_task_may_cancel_all_and_itself() {
    let stack = loopback();
    let told = Rc::new(Cell::new(0));
    for _ in 0..2 {
        let (here, told) = (stack.clone(), told.clone());
        stack.spawn(async move {
            here.cancel_tasks();
            told.set(told.get() + 1);
            here.sleep(Duration::from_secs(1)).await;
            told.set(told.get() + 100);
        });
    }
    for _ in 0..3 {
        stack.poll();
    }
    assert_eq!(told.get(), 1, "the first one, until it waits");
    assert_eq!(stack.block_on(stack.spawn(async { 7 })), 7);
}
