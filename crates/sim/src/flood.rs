//! A flood of connection requests from addresses that do not exist, and a client in the midst of it
//! (RFC 4987).

use std::net::Ipv4Addr;

use millrace_shard::Via;
use millrace_tcp::Duration;
use millrace_wire::checksum::{Sum, pseudo_v4};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ipv4;
use millrace_wire::tcp::{self, Flags, Header, Options, Seq};

use crate::link::Link;
use crate::network::Network;
use crate::nic::Nic;
use crate::program::{Client, Server};
use crate::rng::Rng;
use crate::talk::Plan;

/// Requests in each millisecond.
const IN_A_MILLISECOND: u64 = 50;

/// Clients that come while it lasts.
const CLIENTS: usize = 4;

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// From when a client asked until it had its answer and all was closed, in microseconds: the
    /// one that took longest.
    pub served_us: u64,
    /// The most half-open connections at any time, and their limit.
    pub half_open: [usize; 2],
    /// The most bytes in receive rings at any time.
    pub rings: u64,
    /// Requests that were answered with a cookie.
    pub cookies: u64,
}

/// Floods a server with so many requests; clients come at each fifth of the flood.
///
/// # Panics
/// When the server accepts a connection that no client made, or keeps something in the end.
pub fn run(requests: u64) -> Outcome {
    let mut network = Network::new(1);
    let flooder = network.add_station(Link::default());
    let (mac, address) = network.station_address(flooder);
    let link = Link {
        delay: Duration::from_millis(5),
        ..Link::default()
    };
    // What it answers to addresses that do not exist goes to the gateway, which is the flooder, and
    // there it stays.
    let server = network.add_host_with(Nic::Plain, link, |config| {
        config.routes = vec![Via {
            prefix: Ipv4Addr::UNSPECIFIED,
            prefix_len: 0,
            gateway: address,
        }];
    });
    let client = network.add_host(Nic::Plain, link);
    let config = network.stack(server).config();
    let (target, limit) = ((config.mac, config.address()), config.limits.half_open);
    let at = network.address_of(server, 80);
    let plan = Plan::exchange(1_000, 1_000);
    // One more than comes while the flood lasts, so that the server goes on.
    network.run_program(server, Server::new(at, plan, CLIENTS + 1));

    let mut rng = network.rng().fork();
    let (mut asked, mut longest_us, mut clients) = (None, 0, 0);
    let (mut half_open, mut rings) = (0, 0);
    let mut made = 0;
    while made < requests {
        for _ in 0..IN_A_MILLISECOND {
            network.send_from(flooder, request(&mut rng, mac, target));
        }
        made += IN_A_MILLISECOND;
        network.run_for(Duration::from_millis(1));
        network.take_received(flooder);
        if let Some(since) = asked {
            longest_us = longest_us.max((network.now() - since).as_micros());
            let mut busy = 0;
            network
                .stack(client)
                .for_each_socket(network.now(), |socket| {
                    busy += u32::from(socket.id.is_some());
                });
            asked = asked.filter(|_| busy > 0);
        }
        if asked.is_none() && clients < CLIENTS && made >= requests * (clients as u64 + 1) / 5 {
            network.run_program(client, Client::new(at, plan, 1, 1));
            clients += 1;
            asked = Some(network.now());
        }
        let stack = network.stack(server);
        half_open = half_open.max(stack.usage().half_open);
        rings = rings.max(stack.memory().in_use());
    }
    let cookies = network.stack(server).counters().cookies_sent;
    network.run_program(client, Client::new(at, plan, 1, 1));
    network.run_until_done();
    network.settle();
    Outcome {
        served_us: longest_us,
        half_open: [half_open, limit as usize],
        rings,
        cookies,
    }
}

/// A SYN from somewhere.
fn request(rng: &mut Rng, mac: Mac, (target_mac, target): (Mac, Ipv4Addr)) -> Vec<u8> {
    const TCP_AT: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
    // Of networks that are used, and not of the one here.
    let source =
        Ipv4Addr::from_bits((rng.between(11, 126) << 24) as u32 | rng.below(1 << 24) as u32);
    let header = Header {
        src_port: rng.between(1_024, 65_535) as u16,
        dst_port: 80,
        seq: Seq(rng.next() as u32),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 65_535,
        urgent: 0,
        options: Options {
            mss: Some(1_460),
            ..Options::default()
        },
    };
    let len = header.header_len();
    let mut frame = vec![0; TCP_AT + len];
    ethernet::Header {
        dst: target_mac,
        src: mac,
        ethertype: EtherType::IPV4,
    }
    .emit(&mut frame);
    ipv4::Header::new(source, target, tcp::PROTOCOL, len as u16)
        .emit(&mut frame[ethernet::HEADER_LEN..]);
    header.emit(&mut frame[TCP_AT..]);
    let sum = pseudo_v4(source, target, tcp::PROTOCOL, len as u16) + Sum::of(&frame[TCP_AT..]);
    frame[TCP_AT + tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&sum.finish().to_be_bytes());
    frame
}
