use millrace::{Builder, Link};

use super::*;
use crate::epoll::{Control, Set};
use void::Void;

// That of the library's own tests.
#[path = "../../../millrace/tests/void/mod.rs"]
mod void;

/// A port that the program chose does for a connection only if its answers come back to the shard.
#[test]
fn a_bound_port_whose_answers_go_elsewhere_is_refused() {
    let parts = Builder::new()
        .link(Link::custom(vec![
            Box::new(Void { floods: false }),
            Box::new(Void { floods: false }),
        ]))
        .address(Ipv4Addr::new(10, 0, 0, 1), 24)
        .parts(2)
        .expect("two shards");
    let hosts = parts.into_iter().map(|part| {
        let stack = part.stack().expect("descriptors");
        Host::new(stack, false, None)
    });
    let hosts: Vec<Host> = hosts.collect();
    let remote = SocketAddr::from(([10, 0, 0, 2], 80));
    for port in 1000..1050 {
        let begun = hosts.iter().filter(|host| {
            let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
            let key = host.socket(libc::AF_INET, kind, 0).expect("room");
            let local = SocketAddr::from(([10, 0, 0, 1], port));
            host.bind(key, local).expect("free");
            match host.connect(key, Some(remote)) {
                Err(libc::EINPROGRESS) => true,
                Err(libc::EADDRNOTAVAIL) => false,
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(begun.count(), 1, "port {port}");
    }
}

/// One that the program left to the stack is chosen anew if need be, and the address stays.
#[test]
fn a_port_that_was_not_named_leads_back() {
    let address = Ipv4Addr::new(10, 0, 0, 1);
    let parts = Builder::new()
        .link(Link::custom(vec![
            Box::new(Void { floods: false }),
            Box::new(Void { floods: false }),
        ]))
        .address(address, 24)
        .parts(2)
        .expect("two shards");
    for part in parts {
        let host = Host::new(part.stack().expect("descriptors"), false, None);
        let mut kept = 0;
        for remote in 0..40u16 {
            let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
            let key = host.socket(libc::AF_INET, kind, 0).expect("room");
            host.bind(key, (address, 0).into()).expect("a free port");
            let (bound, _) = host.name(key, false).expect("an address");
            let remote = SocketAddr::from(([10, 0, 0, 2], 1000 + remote));
            assert_eq!(host.connect(key, Some(remote)), Err(libc::EINPROGRESS));
            let (local, _) = host.name(key, false).expect("an address");
            assert!(local.ip() == address && local.port() != 0, "{local}");
            kept += u16::from(local == bound);
            let mut out = [0; crate::options::VALUE_MAX];
            let (level, name) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
            assert_eq!(host.option(key, level, name, &mut out), Ok(4));
            assert_eq!(out[0], 0);
        }
        assert!((1..40).contains(&kept), "{kept}");
    }
}

/// Under traffic that never pauses a wait ends when it is to end, and what is there by then is told.
#[test]
fn a_wait_ends_under_a_flood() {
    let parts = Builder::new()
        .link(Link::custom(vec![Box::new(Void { floods: true })]))
        .address(Ipv4Addr::new(10, 0, 0, 1), 24)
        .parts(1);
    let part = parts.expect("a shard").pop().expect("a shard");
    let host = Host::new(part.stack().expect("descriptors"), false, None);
    let key = host.socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
    let key = key.expect("room");
    host.bind(key, ([10, 0, 0, 1], 53).into()).expect("free");
    let set = host.things.borrow_mut().insert(Thing::Set(Set::default()));
    let watch = Control::Add(libc::EPOLLIN as u32, 7);
    host.control(set, key, watch).expect("a socket");
    assert_eq!(host.wait_for(set, 1, 2, |_| ()), Ok(0));
    let mut out = [0; 8];
    host.look(key, |socket| socket.patience = [2000; 2])
        .expect("a socket");
    let read = host.receive(key, &mut out, Receive::default());
    assert_eq!(read, Err(libc::EAGAIN));
    host.end(2);
}
