//! Socket options: what is set is in effect, and reads as on Linux.

use millrace_shard::{Error, Opt, OptName, Options, Poll, SocketState};
use millrace_tcp::State;

use crate::net::{A, B, Net, OWNER};

#[test]
fn options_read_back_and_buffers_double() {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    let now = net.now();
    let shard = &mut net.shards[A];
    for (option, name) in [
        (Opt::NoDelay(true), OptName::NoDelay),
        (Opt::Cork(true), OptName::Cork),
        (Opt::KeepAlive(true), OptName::KeepAlive),
        (Opt::KeepIdle(30), OptName::KeepIdle),
        (Opt::KeepInterval(5), OptName::KeepInterval),
        (Opt::KeepCount(3), OptName::KeepCount),
        (Opt::UserTimeout(5000), OptName::UserTimeout),
        (Opt::Linger(Some(7)), OptName::Linger),
        (Opt::Linger2(30), OptName::Linger2),
        (Opt::Linger2(-1), OptName::Linger2),
        (Opt::SynCount(3), OptName::SynCount),
        (Opt::QuickAck(false), OptName::QuickAck),
        (Opt::DeferAccept(7), OptName::DeferAccept),
        (Opt::MaxPacingRate(1 << 40), OptName::MaxPacingRate),
        (Opt::ReuseAddress(true), OptName::ReuseAddress),
        (Opt::ReusePort(true), OptName::ReusePort),
    ] {
        shard.set_option(client, option, now).unwrap();
        assert_eq!(shard.option(client, name), Ok(option));
    }
    shard
        .set_option(client, Opt::SendBuffer(50_000), now)
        .unwrap();
    assert_eq!(
        shard.option(client, OptName::SendBuffer),
        Ok(Opt::SendBuffer(100_000))
    );
    assert_eq!(shard.view(client).unwrap().send_limit, 50_000);
}

#[test]
fn values_out_of_range_are_refused() {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    let now = net.now();
    let wrong = [
        Opt::KeepIdle(0),
        Opt::KeepCount(128),
        Opt::KeepInterval(40_000),
        Opt::MaxSegment(20),
        Opt::SynCount(0),
    ];
    for option in wrong {
        assert_eq!(
            net.shards[A].set_option(client, option, now),
            Err(Error::Invalid),
            "{option:?}"
        );
    }
}

#[test]
fn a_set_receive_buffer_bounds_what_the_peer_may_send() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let now = net.now();
    net.shards[B]
        .set_option(listener, Opt::ReceiveBuffer(20_000), now)
        .unwrap();
    let client = net.connect(80);
    net.run(10_000);
    let server = net.shards[B].accept(listener).unwrap();
    net.send(A, client, &[1; 60_000]);
    net.run(5_000_000);
    let received = net.view(B, server).received;
    assert!((15_000..=20_000).contains(&received), "{received}");
}

/// Sockets that have the same options share them until one sets another.
#[test]
fn what_is_set_on_one_socket_is_not_set_on_another() {
    let mut net = Net::new();
    net.listen(80, 8);
    let clients: Vec<_> = (0..40).map(|_| net.connect(80)).collect();
    net.run(10_000);
    let now = net.now();
    let shard = &mut net.shards[A];
    for &client in &clients {
        shard.set_option(client, Opt::NoDelay(true), now).unwrap();
    }
    for (timeout, &client) in (1..).zip(&clients[20..]) {
        let option = Opt::UserTimeout(timeout);
        shard.set_option(client, option, now).unwrap();
    }
    for (i, &client) in (0..).zip(&clients) {
        let set = shard.options(client).unwrap().tcp;
        assert!(set.nodelay);
        let own = (i >= 20).then(|| i - 19);
        assert_eq!(set.user_timeout_ms, own);
    }
    shard
        .set_option(clients[0], Opt::NoDelay(false), now)
        .unwrap();
    let is_set = |client| shard.option(client, OptName::NoDelay);
    assert_eq!(is_set(clients[0]), Ok(Opt::NoDelay(false)));
    assert_eq!(is_set(clients[1]), Ok(Opt::NoDelay(true)));
}

#[test]
fn accepted_sockets_inherit_from_the_listener() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let now = net.now();
    net.shards[B]
        .set_option(listener, Opt::NoDelay(true), now)
        .unwrap();
    net.shards[B]
        .set_option(listener, Opt::KeepAlive(true), now)
        .unwrap();
    net.connect(80);
    net.run(10_000);
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(
        net.shards[B].option(server, OptName::NoDelay),
        Ok(Opt::NoDelay(true))
    );
    assert_eq!(
        net.shards[B].option(server, OptName::KeepAlive),
        Ok(Opt::KeepAlive(true))
    );
}

#[test]
fn options_set_before_connect_are_in_effect() {
    let mut net = Net::new();
    net.listen(80, 16);
    let now = net.now();
    let id = net.shards[A].socket(OWNER, &Options::default()).unwrap();
    net.shards[A]
        .set_option(id, Opt::MaxSegment(600), now)
        .unwrap();
    net.shards[A]
        .connect_bound(id, "10.0.0.2:80".parse().unwrap(), now)
        .unwrap();
    net.run(10_000);
    let mss = net.shards[A].tcp_info(id, now).unwrap().send_mss;
    assert!(mss <= 600, "{mss}");
}

#[test]
fn keepalive_finds_a_dead_peer() {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    let now = net.now();
    for option in [
        Opt::KeepIdle(10),
        Opt::KeepInterval(2),
        Opt::KeepCount(3),
        Opt::KeepAlive(true),
    ] {
        net.shards[A].set_option(client, option, now).unwrap();
    }
    net.run(30_000_000);
    assert_eq!(net.view(A, client).error, 0);
    net.hand = Box::new(|_, _| false);
    net.run(30_000_000);
    assert_eq!(
        net.shards[A].take_error(client),
        millrace_shard::errno::ETIMEDOUT
    );
}

#[test]
fn corked_bytes_wait_for_a_full_segment_or_the_uncorking() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    let now = net.now();
    net.shards[A]
        .set_option(client, Opt::Cork(true), now)
        .unwrap();
    net.send(A, client, b"head");
    net.run(1_000);
    assert_eq!(net.view(B, server).received, 0);
    let now = net.now();
    net.shards[A]
        .set_option(client, Opt::Cork(false), now)
        .unwrap();
    net.run(1_000);
    assert_eq!(net.view(B, server).received, 4);
}

#[test]
fn the_list_of_sockets_has_queues_and_states() {
    let mut net = Net::new();
    let (client, server, listener) = net.pair();
    net.send(A, client, &[1; 100]);
    net.run(10_000);
    net.connect(80);
    net.run(10_000);
    let mut seen = Vec::new();
    net.shards[B].for_each_socket(net.now(), |info| seen.push(info.clone()));
    let of = |id| seen.iter().find(|info| info.id == Some(id)).unwrap();
    assert_eq!(
        (
            of(listener).state,
            of(listener).receive_queue,
            of(listener).send_queue
        ),
        (SocketState::Listen, 1, 16)
    );
    assert_eq!(
        (of(server).state, of(server).receive_queue),
        (SocketState::Tcp(State::Established), 100)
    );
    assert!(of(server).tcp.as_ref().unwrap().srtt_us > 0);
    assert_eq!(seen.iter().filter(|info| info.id.is_none()).count(), 1);
}

/// Linux's `TCP_NOTSENT_LOWAT`: what the network has not taken yet bounds what is taken from the
/// program.
#[test]
fn a_bound_on_what_was_not_sent_yet_holds_writing_back() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    let now = net.now();
    const LOW: u32 = 20_000;
    net.shards[A]
        .set_option(client, Opt::NotSentLowWater(LOW), now)
        .unwrap();
    assert_eq!(
        net.shards[A].option(client, OptName::NotSentLowWater),
        Ok(Opt::NotSentLowWater(LOW))
    );
    // The peer does not read: its window fills, then nothing more is sent.
    let mut queued = 0;
    while let Ok(sent) = net.shards[A].send(client, &[7; 1_000], true) {
        queued += sent as u64;
        net.run(1_000);
    }
    let view = net.view(A, client);
    assert_eq!(view.queued, queued);
    assert!(
        view.queued - view.sent >= u64::from(LOW)
            && view.queued - view.sent < u64::from(LOW) + 1_000
    );
    assert!(!view.poll().contains(Poll::OUT));
    assert!(
        u64::from(view.send_limit) > view.queued - view.acked + 1_000,
        "there is room"
    );
    assert_eq!(net.shards[A].send(client, &[], true), Ok(0));
    // Once less than half of it is left the program hears of it.
    let mut changed = Vec::new();
    net.shards[A].take_changed(&mut changed);
    changed.clear();
    while net.view(A, client).sent + u64::from(LOW) / 2 <= queued {
        assert!(!net.view(A, client).poll().contains(Poll::OUT));
        assert!(!net.recv(B, server).is_empty());
        net.run(100);
    }
    assert!(net.view(A, client).poll().contains(Poll::OUT));
    net.shards[A].take_changed(&mut changed);
    assert!(changed.contains(&client));
    assert!(net.shards[A].send(client, &[7; 1_000], true).is_ok());
}

/// Linux's `tcp_set_rcvlowat`: who waits for much can be sent that much.
#[test]
fn a_low_water_mark_beyond_the_buffer_makes_the_buffer_larger() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    let now = net.now();
    const LOW: u32 = 1_000_000;
    net.shards[B]
        .set_option(server, Opt::ReceiveLowWater(LOW), now)
        .unwrap();
    let mut sent = 0;
    while sent < u64::from(LOW) {
        sent += net.shards[A]
            .send(client, &[1; 50_000], true)
            .unwrap_or_default() as u64;
        net.run(1_000);
        assert!(net.now() < now + millrace_tcp::Duration::from_secs(20));
    }
    net.run(100_000);
    assert!(net.view(B, server).received >= u64::from(LOW));
    // What the largest buffer, or the one that was set, cannot hold is cut.
    let shard = &mut net.shards[B];
    shard
        .set_option(server, Opt::ReceiveLowWater(1 << 30), now)
        .unwrap();
    let most = shard.config().buffers.receive_max / 2;
    assert_eq!(
        shard.option(server, OptName::ReceiveLowWater),
        Ok(Opt::ReceiveLowWater(most))
    );
    shard
        .set_option(server, Opt::ReceiveBuffer(20_000), now)
        .unwrap();
    shard
        .set_option(server, Opt::ReceiveLowWater(LOW), now)
        .unwrap();
    assert_eq!(
        shard.option(server, OptName::ReceiveLowWater),
        Ok(Opt::ReceiveLowWater(20_000))
    );
}
