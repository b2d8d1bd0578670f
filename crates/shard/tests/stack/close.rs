//! Endings: orderly, abrupt, half, and what a program sees of each.

use millrace_shard::{Error, How, Opt, Poll, ViewFlags, errno};
use millrace_tcp::State;
use millrace_wire::tcp::Flags;

use crate::net::{A, B, Net};

#[test]
fn rfc9293_3_6_normal_close_leaves_time_wait_where_it_began() {
    let mut net = Net::new();
    let (client, server, listener) = net.pair();
    net.close(A, client);
    net.run(10_000);
    assert_eq!(net.view(B, server).state, Some(State::CloseWait));
    assert!(
        net.view(B, server)
            .poll()
            .contains(Poll::IN | Poll::RDHUP | Poll::OUT)
    );
    assert!(!net.view(B, server).poll().contains(Poll::HUP));
    assert_eq!(net.shards[B].recv(server, &mut [0; 4], net.now()), Ok(0));
    net.close(B, server);
    net.run(10_000);
    assert_eq!(
        (
            net.shards[A].usage().time_wait,
            net.shards[B].usage().time_wait
        ),
        (1, 0)
    );
    assert_eq!(
        (net.shards[A].usage().sockets, net.shards[B].usage().sockets),
        (0, 1)
    );
    net.run(61_000_000);
    assert_eq!(net.shards[A].usage().time_wait, 0);
    net.close(B, listener);
    net.assert_clean();
}

#[test]
fn a_closed_id_is_gone_at_once() {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    net.close(A, client);
    assert_eq!(net.shards[A].send(client, b"x", true), Err(Error::NoSocket));
    assert_eq!(net.shards[A].view(client), None);
    let next = net.connect(80);
    assert_ne!(next, client);
}

#[test]
fn what_was_written_before_close_arrives() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    let bytes = vec![9; 60_000];
    assert_eq!(net.send(A, client, &bytes), 60_000);
    net.close(A, client);
    let mut received = Vec::new();
    for _ in 0..100 {
        net.run(1_000);
        received.extend(net.recv(B, server));
    }
    assert_eq!(received, bytes);
    assert!(net.view(B, server).flags.contains(ViewFlags::END_OF_STREAM));
}

#[test]
fn half_close_lets_the_other_side_finish() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.send(A, client, b"request");
    let now = net.now();
    net.shards[A].shutdown(client, How::Write, now).unwrap();
    assert_eq!(
        net.shards[A].send(client, b"x", true),
        Err(Error::BrokenPipe)
    );
    net.run(10_000);
    assert_eq!(net.view(A, client).state, Some(State::FinWait2));
    assert_eq!(net.recv(B, server), b"request");
    net.send(B, server, b"response");
    net.close(B, server);
    net.run(10_000);
    assert_eq!(net.recv(A, client), b"response");
    let view = net.view(A, client);
    assert!(view.poll().contains(Poll::IN | Poll::RDHUP | Poll::HUP));
    assert_eq!(net.shards[A].usage().time_wait, 1);
    net.close(A, client);
    assert_eq!(net.shards[A].usage().sockets, 0);
}

#[test]
fn rfc2525_2_17_close_with_unread_data_resets() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.send(A, client, b"never read");
    net.run(10_000);
    net.close(B, server);
    net.run(10_000);
    assert_eq!(net.view(A, client).error, errno::ECONNRESET);
    assert_eq!(net.shards[B].counters().aborted_on_close, 1);
    assert_eq!(net.shards[B].usage().sockets, 1);
    assert_eq!(net.shards[B].memory().in_use(), 0);
}

#[test]
fn data_after_close_is_answered_with_reset() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.close(B, server);
    net.run(10_000);
    net.send(A, client, b"too late");
    net.run(10_000);
    assert_eq!(net.count(B, Flags::RST), 1);
    // The end of the stream was seen: Linux says EPIPE.
    assert_eq!(
        net.shards[A].send(client, b"x", true),
        Err(Error::Connection(errno::EPIPE))
    );
    assert_eq!(
        net.shards[A].send(client, b"x", true),
        Err(Error::BrokenPipe)
    );
    assert_eq!(net.shards[B].usage().orphans, 0);
    assert_eq!(net.shards[B].memory().in_use(), 0);
}

#[test]
fn i5_linger_zero_resets() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    let now = net.now();
    net.shards[A]
        .set_option(client, Opt::Linger(Some(0)), now)
        .unwrap();
    net.send(A, client, b"dropped");
    net.close(A, client);
    net.run(10_000);
    assert_eq!(net.count(A, Flags::RST), 1);
    assert_eq!(net.shards[A].usage().sockets, 0);
    assert_eq!(net.view(B, server).error, errno::ECONNRESET);
}

#[test]
fn so_error_is_reported_once() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    let now = net.now();
    net.shards[A].abort(client, now).unwrap();
    net.run(10_000);
    let view = net.view(B, server);
    assert!(
        view.poll()
            .contains(Poll::ERR | Poll::HUP | Poll::IN | Poll::OUT | Poll::RDHUP)
    );
    assert_eq!(net.shards[B].take_error(server), errno::ECONNRESET);
    assert_eq!(net.shards[B].take_error(server), 0);
    assert!(!net.view(B, server).poll().contains(Poll::ERR));
    assert_eq!(net.shards[B].recv(server, &mut [0; 4], now), Ok(0));
    net.close(B, server);
}

#[test]
fn received_data_outlives_a_reset() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.send(A, client, b"last words");
    net.run(10_000);
    let now = net.now();
    net.shards[A].abort(client, now).unwrap();
    net.run(10_000);
    let mut buffer = [0; 100];
    assert_eq!(net.shards[B].recv(server, &mut buffer, now), Ok(10));
    assert_eq!(
        net.shards[B].recv(server, &mut buffer, now),
        Err(Error::Connection(errno::ECONNRESET))
    );
}

#[test]
fn a_refused_connect_reports_and_may_try_again() {
    let mut net = Net::new();
    let client = net.connect(81);
    net.run(10_000);
    let view = net.view(A, client);
    assert!(view.poll().contains(Poll::ERR | Poll::HUP));
    assert_eq!(net.shards[A].take_error(client), errno::ECONNREFUSED);
    net.listen(81, 5);
    let now = net.now();
    net.shards[A]
        .connect_bound(client, view.remote, now)
        .unwrap();
    net.run(10_000);
    assert!(net.view(A, client).flags.contains(ViewFlags::CONNECTED));
}

#[test]
fn an_unconnected_socket_looks_like_linux_has_it() {
    let mut net = Net::new();
    let id = net.shards[A]
        .socket(crate::net::OWNER, &Default::default())
        .unwrap();
    assert_eq!(net.view(A, id).poll(), Poll::OUT | Poll::HUP);
    assert_eq!(net.shards[A].send(id, b"x", true), Err(Error::BrokenPipe));
    assert_eq!(
        net.shards[A].recv(id, &mut [0; 4], net.now()),
        Err(Error::NotConnected)
    );
    assert_eq!(
        net.shards[A].shutdown(id, How::Both, net.now()),
        Err(Error::NotConnected)
    );
    let connecting = net.connect(80);
    assert_eq!(net.view(A, connecting).poll(), Poll::empty());
    assert_eq!(
        net.shards[A].send(connecting, b"x", true),
        Err(Error::WouldBlock)
    );
    assert_eq!(
        net.shards[A].recv(connecting, &mut [0; 4], net.now()),
        Err(Error::WouldBlock)
    );
    net.close(A, connecting);
    net.close(A, id);
    net.assert_clean();
}

#[test]
fn closing_a_connect_in_progress_leaves_nothing() {
    let mut net = Net::new();
    let client = net.connect(80);
    net.close(A, client);
    net.run(1_000);
    assert_eq!(net.shards[A].usage().sockets, 0);
    net.assert_clean();
}

#[test]
fn f4_a_new_connection_takes_the_place_of_one_in_time_wait() {
    let mut net = Net::new();
    let (client, server, listener) = net.pair();
    // The server closes first and keeps TIME-WAIT; the client comes again from the same port.
    net.close(B, server);
    net.run(10_000);
    let local = net.view(A, client).local;
    let remote = net.view(A, client).remote;
    net.close(A, client);
    net.run(2_000_000);
    assert_eq!(net.shards[B].usage().time_wait, 1);
    let now = net.now();
    let again = net.shards[A]
        .connect(
            crate::net::OWNER,
            Some(local),
            remote,
            &Default::default(),
            now,
        )
        .unwrap();
    net.run(10_000);
    assert!(net.view(A, again).flags.contains(ViewFlags::CONNECTED));
    assert!(net.shards[B].accept(listener).is_ok());
    assert_eq!(net.shards[B].usage().time_wait, 0);
}

#[test]
fn a_lost_last_ack_is_repeated_from_time_wait() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.close(A, client);
    net.run(10_000);
    // The ACK of the server's FIN is lost once.
    let mut lost = false;
    net.hand = Box::new(move |side, flying| {
        let is_ack = side == A
            && flying
                .tcp()
                .is_some_and(|(_, segment)| segment.flags == Flags::ACK);
        let drop = is_ack && !lost;
        lost |= drop;
        !drop
    });
    net.close(B, server);
    net.run(10_000);
    assert_eq!(net.shards[B].usage().sockets, 2);
    net.run(2_000_000);
    assert_eq!(net.shards[B].usage().sockets, 1);
    assert_eq!(net.shards[A].usage().time_wait, 1);
}

#[test]
fn simultaneous_close_ends_in_time_wait_on_both_sides() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.close(A, client);
    net.close(B, server);
    net.run(10_000);
    assert_eq!(
        (
            net.shards[A].usage().time_wait,
            net.shards[B].usage().time_wait
        ),
        (1, 1)
    );
}

#[test]
fn e6_an_orphan_in_fin_wait_2_is_freed_in_a_fixed_time() {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    net.close(A, client);
    net.run(10_000);
    assert_eq!(net.shards[A].usage().orphans, 1);
    net.run(61_000_000);
    assert_eq!(net.shards[A].usage().orphans, 0);
    assert_eq!(net.shards[A].usage().table, 0);
}

#[test]
fn a_dead_peer_is_given_up_and_reported() {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    net.hand = Box::new(|_, flying| flying.tcp().is_none());
    net.send(A, client, b"anybody there?");
    net.run(1_100_000_000);
    assert_eq!(net.shards[A].take_error(client), errno::ETIMEDOUT);
    assert_eq!(net.shards[A].counters().timed_out, 1);
    assert_eq!(net.shards[A].usage().send_memory, 0);
}

#[test]
fn a_connect_without_answer_times_out() {
    let mut net = Net::new();
    net.hand = Box::new(|_, flying| flying.tcp().is_none());
    let client = net.connect(80);
    net.run(126_000_000);
    assert_eq!(net.view(A, client).state, Some(State::SynSent));
    net.run(4_000_000);
    assert_eq!(net.shards[A].take_error(client), errno::ETIMEDOUT);
    assert_eq!(net.count(A, Flags::SYN), 7);
}
