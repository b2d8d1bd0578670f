//! Everything that leaves: ARP and neighbour discovery, answers, and what connections have to send,
//! in turn.

pub mod reply_queue;

use std::net::IpAddr;
use std::num::NonZeroU32;

use millrace_tcp::{FastOutgoing, Instant, Limits, Outgoing, State};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::offload::{Capabilities, Offload};

use crate::connection_table::Tuple;
use crate::counters::Counters;
use crate::error::errno;
use crate::ip::route::Route;
use crate::ip::v6::group_station;
use crate::link::ethernet::Egress;
use crate::link::ethernet::{Stations, send_frame};
use crate::link::neighbour::{Handle, Lookup, Settled};
use crate::memory::Memory;
use crate::output::reply_queue::Reply;
use crate::shard::Shard;
use crate::socket::note_changed;
use crate::socket::send_ring::SendRing;
use crate::socket::{Kind, Marks, Socket, SocketId, Stream};
use crate::tcp::segment::{self, PAYLOAD_MAX, SegmentJob};

/// Segments (or segmentation units) that a connection sends before it is another's turn.
const TURN: usize = 2;
/// Segments that turn round inside the shard in one transmit; the rest waits for the next.
const LOCAL_TURN: u32 = 256;

/// The largest unit that a connection gives to the port.
const LIMITS: Limits = Limits {
    max_payload: PAYLOAD_MAX,
};

/// A segment that a full port did not take, or not all of.
pub(crate) struct Stalled {
    socket: u32,
    generation: NonZeroU32,
    outgoing: Outgoing,
    /// Payload bytes that were taken.
    sent: usize,
}

/// How serving a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    /// It has no more to send for now.
    Idle,
    /// Its turn is over; it may have more.
    More,
    /// The port is full.
    Full,
}

impl<M: Memory> Shard<M> {
    /// Sends everything that may leave now: ARP and answers first, then connections with control
    /// segments and ACKs, then those with data, in turn. Stops when the port is full; the rest
    /// stays for the next call. Traffic to this host itself is delivered on the way, a bounded
    /// number of segments in one call.
    pub fn transmit(&mut self, egress: &mut impl Egress, now: Instant) {
        let capabilities = egress.capabilities();
        let mut local_budget = LOCAL_TURN;
        self.blocked = !self.transmit_until_full(egress, &capabilities, &mut local_budget, now);
    }

    fn transmit_until_full(
        &mut self,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        local_budget: &mut u32,
        now: Instant,
    ) -> bool {
        if let Some(stalled) = self.stalled.take()
            && !self.resume(stalled, egress, capabilities, now)
        {
            return false;
        }
        loop {
            while let Some(settled) = self.base.network.neighbours.take_settled() {
                self.release_waiting(settled, now);
            }
            while *local_budget > 0
                && let Some(reply) = self.base.network.replies.pop()
            {
                if !self.send_reply(reply, egress, capabilities, local_budget, now) {
                    return false;
                }
            }
            if !self
                .base
                .network
                .send_link_packets(&mut self.base.env, egress)
            {
                return false;
            }
            if self.udp.has_output()
                && !self
                    .udp
                    .send_datagrams(&mut self.base, egress, capabilities, now)
            {
                return false;
            }
            if *local_budget == 0 {
                return true;
            }
            let mut idle = !self.udp.has_output() && self.base.network.replies.is_empty();
            let mut known = None;
            // Connections one after the other, as long as nothing comes up that goes first.
            while self.base.network.replies.is_empty()
                && *local_budget > 0
                && let Some(index) = self.ready.pop()
            {
                idle = false;
                match self.serve(index, &mut known, egress, capabilities, local_budget, now) {
                    Served::Idle => {}
                    Served::More => self.mark_ready(index),
                    Served::Full => {
                        self.mark_ready(index);
                        return false;
                    }
                }
            }
            if idle {
                return true;
            }
        }
    }

    /// Gives a connection its turn. `known` is the last neighbour that was looked up in this burst.
    #[inline(always)]
    fn serve(
        &mut self,
        index: u32,
        known: &mut Option<(Handle, Mac)>,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        local_budget: &mut u32,
        now: Instant,
    ) -> Served {
        let Some((socket, generation)) = self.base.sockets.get_mut_with_generation(index) else {
            return Served::Idle;
        };
        let marks = socket.marks;
        // An index can be in the list for a socket that is gone.
        if !marks.contains(Marks::READY) || marks.contains(Marks::DEAD) {
            return Served::Idle;
        }
        socket.marks.remove(Marks::READY);
        if marks.contains(Marks::LOCAL) {
            return self.serve_local(index, local_budget, now);
        }
        let Some(mut stream) = socket.stream_mut() else {
            return Served::Idle;
        };
        let plain = !marks.contains(Marks::NOTSENT_LOW);
        // A connection that has not looked up its neighbour yet does so even without output.
        if plain && !stream.connection.has_output() && stream.hop != Handle::NONE {
            if stream.send.len() > 0 {
                self.active_senders.note(&mut stream.counted, now);
            }
            if marks.contains(Marks::ENDING) {
                self.end_connection(index, now);
            } else {
                stream.arm(&mut self.wheel, index);
            }
            return Served::Idle;
        }
        let lookup = match *known {
            Some((hop, mac)) if hop == stream.hop => Lookup::Known(mac),
            _ => self.base.network.neighbours.resolve(stream.hop, now),
        };
        let to = match lookup {
            Lookup::Known(to) => to,
            _ => {
                let Some(to) = self.resolve_or_drop(index, lookup, now) else {
                    return Served::Idle;
                };
                let Some(found) = self
                    .base
                    .sockets
                    .get_mut(index)
                    .and_then(Socket::stream_mut)
                else {
                    return Served::Idle;
                };
                stream = found;
                to
            }
        };
        *known = Some((stream.hop, to));
        if plain
            && let Some(plain) = stream
                .connection
                .poll_transmit_fast(&self.base.env.config.tcp, now)
        {
            if stream.send.len() > 0 {
                self.active_senders.note(&mut stream.counted, now);
            }
            let stations = Stations {
                to,
                from: self.base.env.config.mac,
            };
            let counters = &mut self.base.env.counters;
            if send_predicted(counters, egress, capabilities, &stations, stream, &plain) {
                if marks.contains(Marks::ENDING) {
                    self.end_connection(index, now);
                } else {
                    stream.arm(&mut self.wheel, index);
                }
                return Served::Idle;
            }
            self.stalled = Some(Stalled {
                socket: index,
                generation,
                outgoing: plain.into(),
                sent: 0,
            });
            return Served::Full;
        }
        self.send_turn(index, to, egress, capabilities, now)
    }

    /// The station that leads to the peer of the socket at `index`, after the lookup of its hop did
    /// not find it; `None` when the connection has to wait, or nothing leads there.
    #[inline(never)]
    fn resolve_or_drop(&mut self, index: u32, lookup: Lookup, now: Instant) -> Option<Mac> {
        match self.resolve_further(index, lookup, now) {
            Lookup::Known(to) => Some(to),
            Lookup::Wait => None,
            Lookup::Gone => {
                self.drop_unroutable(index, now);
                None
            }
        }
    }

    #[inline(never)]
    fn send_turn(
        &mut self,
        index: u32,
        to: Mac,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        now: Instant,
    ) -> Served {
        let Some((socket, generation)) = self.base.sockets.get_mut_with_generation(index) else {
            return Served::Idle;
        };
        let ending = socket.marks.contains(Marks::ENDING);
        // A program with `TCP_NOTSENT_LOWAT` learns that bytes are sent.
        if socket.marks.contains(Marks::NOTSENT_LOW) {
            note_changed(
                &mut self.base.changed,
                SocketId::new(index, generation),
                socket,
            );
        }
        let Some(stream) = socket.stream_mut() else {
            return Served::Idle;
        };
        if stream.send.len() > 0 {
            self.active_senders.note(&mut stream.counted, now);
        }
        let mut served = Served::More;
        for _ in 0..TURN {
            let Some(outgoing) =
                stream
                    .connection
                    .poll_transmit(&self.base.env.config.tcp, &LIMITS, now)
            else {
                served = Served::Idle;
                break;
            };
            let job = SegmentJob {
                to,
                from: self.base.env.config.mac,
                tuple: &stream.endpoints.tuple(),
                fields: stream.fields,
                outgoing: &outgoing,
                payload: stream.send.slices(outgoing.payload.clone()),
            };
            let counters = &mut self.base.env.counters;
            let sent = job.run(0, capabilities, |head, payload, offload| {
                send(counters, egress, head, payload, offload)
            });
            if sent != Some(outgoing.payload_len()) {
                self.stalled = Some(Stalled {
                    socket: index,
                    generation,
                    outgoing,
                    sent: sent.unwrap_or(0),
                });
                return Served::Full;
            }
        }
        if served == Served::Idle && ending {
            self.end_connection(index, now);
        } else {
            stream.arm(&mut self.wheel, index);
        }
        served
    }

    /// The turn of a connection whose peer is on this host.
    fn serve_local(&mut self, index: u32, budget: &mut u32, now: Instant) -> Served {
        if let Some((socket, generation)) = self.base.sockets.get_mut_with_generation(index)
            && socket.marks.contains(Marks::NOTSENT_LOW)
        {
            note_changed(
                &mut self.base.changed,
                SocketId::new(index, generation),
                socket,
            );
        }
        if let Some(stream) = self
            .base
            .sockets
            .get_mut(index)
            .and_then(Socket::stream_mut)
            && stream.send.len() > 0
        {
            self.active_senders.note(&mut stream.counted, now);
        }
        for _ in 0..TURN {
            if !self.send_local(index, now) {
                self.finish(index, now);
                return Served::Idle;
            }
            *budget = budget.saturating_sub(1);
        }
        Served::More
    }

    /// A connection has nothing more to send: it is buried when it is over; otherwise its timer is
    /// armed.
    fn finish(&mut self, index: u32, now: Instant) {
        let Some(socket) = self.base.sockets.get_mut(index) else {
            return;
        };
        if socket.marks.contains(Marks::ENDING) {
            self.end_connection(index, now);
        } else if let Some(stream) = socket.stream_mut() {
            stream.arm(&mut self.wheel, index);
        }
    }

    /// Nothing leads to the peer now: what the connection has to send is lost, as it would be on a
    /// broken link. Its timers try again, and give up in the end.
    fn drop_unroutable(&mut self, index: u32, now: Instant) {
        let Some(stream) = self
            .base
            .sockets
            .get_mut(index)
            .and_then(Socket::stream_mut)
        else {
            return;
        };
        while stream
            .connection
            .poll_transmit(&self.base.env.config.tcp, &LIMITS, now)
            .is_some()
        {
            self.base.env.counters.ip_no_route += 1;
        }
        self.finish(index, now);
    }

    /// Sends the rest of a segment that the port did not take before; false when it still does not.
    fn resume(
        &mut self,
        mut stalled: Stalled,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        now: Instant,
    ) -> bool {
        let Lookup::Known(to) =
            (if self.base.sockets.generation(stalled.socket) == stalled.generation {
                self.resolve(stalled.socket, now)
            } else {
                Lookup::Gone
            })
        else {
            return true;
        };
        let Some(stream) = self
            .base
            .sockets
            .get(stalled.socket)
            .and_then(Socket::stream)
        else {
            return true;
        };
        let outgoing = &stalled.outgoing;
        // Acknowledged in the meantime (it was a retransmission), or dropped with its connection.
        if outgoing.payload_len() > 0
            && outgoing.payload.start < stream.send.start(outgoing.payload.start)
        {
            return true;
        }
        let job = SegmentJob {
            to,
            from: self.base.env.config.mac,
            tuple: &stream.endpoints.tuple(),
            fields: stream.fields,
            outgoing,
            payload: stream.send.slices(outgoing.payload.clone()),
        };
        let counters = &mut self.base.env.counters;
        let sent = job.run(stalled.sent, capabilities, |head, payload, offload| {
            send(counters, egress, head, payload, offload)
        });
        if sent == Some(outgoing.payload_len()) {
            return true;
        }
        stalled.sent = sent.unwrap_or(stalled.sent);
        self.stalled = Some(stalled);
        false
    }

    /// The hardware address that leads to the peer of the socket at `index`. While it is not known
    /// the socket is parked.
    fn resolve(&mut self, index: u32, now: Instant) -> Lookup {
        let Some(stream) = self.base.sockets.get(index).and_then(Socket::stream) else {
            return Lookup::Gone;
        };
        let lookup = self.base.network.neighbours.resolve(stream.hop, now);
        self.resolve_further(index, lookup, now)
    }

    /// As [`Shard::resolve`], after looking where the socket's hop has led.
    #[inline(never)]
    fn resolve_further(&mut self, index: u32, mut lookup: Lookup, now: Instant) -> Lookup {
        let Some(socket) = self.base.sockets.get(index) else {
            return Lookup::Gone;
        };
        let (parked, owner) = (socket.marks.contains(Marks::PARKED), socket.owner);
        let Some(stream) = socket.stream() else {
            return Lookup::Gone;
        };
        let (mut hop, remote) = (stream.hop, stream.endpoints.tuple().remote_ip());
        if lookup == Lookup::Gone {
            let Some(Route::Link(next)) = self.base.network.route(remote) else {
                return Lookup::Gone;
            };
            let found = self.base.network.neighbours.find(
                next,
                Some(owner),
                now,
                &mut self.base.env.counters,
            );
            let Some(found) = found else {
                return Lookup::Gone;
            };
            hop = found;
            lookup = self.base.network.neighbours.resolve(hop, now);
        }
        if lookup == Lookup::Wait && !parked {
            self.base.network.neighbours.wait_socket(hop, index);
        }
        if let Some(socket) = self.base.sockets.get_mut(index) {
            socket
                .marks
                .set(Marks::PARKED, parked || lookup == Lookup::Wait);
            if let Some(stream) = socket.stream_mut() {
                stream.hop = hop;
            }
        }
        lookup
    }

    /// Those that waited for a neighbour go on, or learn that it does not answer.
    fn release_waiting(&mut self, settled: Settled, now: Instant) {
        for index in settled.sockets {
            let Some(socket) = self.base.sockets.get_mut(index) else {
                continue;
            };
            if !socket.marks.contains(Marks::PARKED) {
                continue;
            }
            socket.marks.remove(Marks::PARKED);
            match socket.stream_mut() {
                // Linux's `arp_error_report`: a connect fails at once, an established connection
                // goes on trying.
                Some(stream)
                    if settled.mac.is_none() && stream.connection.state() == State::SynSent =>
                {
                    stream.error = errno::EHOSTUNREACH as u16;
                    stream.connection.abort();
                    self.base.env.counters.failed_opens += 1;
                    self.apply_state_change(index);
                }
                Some(_) if settled.mac.is_none() => self.drop_unroutable(index, now),
                _ => self.mark_ready(index),
            }
        }
        for reply in settled.replies {
            if settled.mac.is_some() {
                self.base.network.reply(&mut self.base.env.counters, reply);
            } else {
                self.base.env.counters.neighbour_queue_dropped += 1;
                self.base.network.replies.recycle(reply);
            }
        }
    }

    /// Sends an answer, parks it with its neighbour, or delivers it on this host; false when the
    /// port is full.
    fn send_reply(
        &mut self,
        reply: Reply,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        local_budget: &mut u32,
        now: Instant,
    ) -> bool {
        let destination = match &reply {
            Reply::Segment(tuple, _) => tuple.remote_ip(),
            Reply::Packet(packet) => destination(packet),
        };
        let station = match destination {
            IpAddr::V6(destination) => group_station(destination),
            IpAddr::V4(group) => group.is_multicast().then(|| Mac::of_group_v4(group)),
        };
        if let Some(to) = station {
            let sent = self.send_reply_to(to, &reply, egress, capabilities);
            self.put_away(reply, sent);
            return sent;
        }
        let next = match self.base.network.route(destination) {
            Some(Route::Link(next)) => next,
            Some(Route::Local) => {
                if let Reply::Segment(tuple, outgoing) = &reply {
                    *local_budget -= 1;
                    self.base.env.counters.segments_local += 1;
                    self.segment_input(
                        &tuple.reversed(),
                        &segment::as_received(tuple, outgoing, 0, &[], true),
                        None,
                        now,
                    );
                }
                self.base.network.replies.recycle(reply);
                return true;
            }
            None => {
                self.base.env.counters.ip_no_route += 1;
                self.base.network.replies.recycle(reply);
                return true;
            }
        };
        let Some(hop) =
            self.base
                .network
                .neighbours
                .find(next, None, now, &mut self.base.env.counters)
        else {
            self.base.network.replies.recycle(reply);
            return true;
        };
        let Lookup::Known(to) = self.base.network.neighbours.resolve_for_answer(hop, now) else {
            if let Some(oldest) = self.base.network.neighbours.wait_reply(hop, reply) {
                self.base.env.counters.neighbour_queue_dropped += 1;
                self.base.network.replies.recycle(oldest);
            }
            return true;
        };
        let sent = self.send_reply_to(to, &reply, egress, capabilities);
        self.put_away(reply, sent);
        sent
    }

    /// An answer is out, or has to wait until the port is no longer full.
    #[inline]
    fn put_away(&mut self, reply: Reply, sent: bool) {
        if sent {
            self.base.network.replies.recycle(reply);
        } else {
            self.base.network.replies.unpop(reply);
        }
    }

    /// Sends an answer to a station; false when the port is full.
    #[inline]
    fn send_reply_to(
        &mut self,
        to: Mac,
        reply: &Reply,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
    ) -> bool {
        match reply {
            Reply::Segment(tuple, outgoing) => {
                let job = SegmentJob {
                    to,
                    from: self.base.env.config.mac,
                    tuple,
                    fields: self.default_fields(tuple),
                    outgoing,
                    payload: [&[], &[]],
                };
                let counters = &mut self.base.env.counters;
                job.run(0, capabilities, |head, payload, offload| {
                    send(counters, egress, head, payload, offload)
                })
                .is_some()
            }
            Reply::Packet(packet) => {
                let mut head = [0; ethernet::HEADER_LEN];
                ethernet::Header {
                    dst: to,
                    src: self.base.env.config.mac,
                    ethertype: if packet[0] >> 4 == 6 {
                        EtherType::IPV6
                    } else {
                        EtherType::IPV4
                    },
                }
                .emit(&mut head);
                send_frame(
                    &mut self.base.env.counters,
                    egress,
                    &head,
                    [packet, &[]],
                    Offload::None,
                )
            }
        }
    }

    /// Delivers the next segment of a connection whose peer is on this host; false when it has
    /// none.
    fn send_local(&mut self, index: u32, now: Instant) -> bool {
        let Some(Socket {
            owner,
            kind: Kind::Stream(stream),
            ..
        }) = self.base.sockets.get_mut(index)
        else {
            return false;
        };
        let owner = *owner;
        let Some(outgoing) =
            stream
                .connection
                .poll_transmit(&self.base.env.config.tcp, &LIMITS, now)
        else {
            return false;
        };
        let tuple = stream.endpoints.tuple();
        let peer: Tuple = tuple.reversed();
        self.base.env.counters.segments_local += 1;
        if outgoing.payload_len() == 0 {
            self.segment_input(
                &peer,
                &segment::as_received(&tuple, &outgoing, 0, &[], true),
                None,
                now,
            );
            return true;
        }
        // The bytes go straight from one ring to the other.
        let lent = stream.send.lend();
        let [first, second] = lent.slices(outgoing.payload.clone());
        self.segment_input(
            &peer,
            &segment::as_received(&tuple, &outgoing, 0, first, second.is_empty()),
            None,
            now,
        );
        if !second.is_empty() {
            self.segment_input(
                &peer,
                &segment::as_received(&tuple, &outgoing, first.len(), second, true),
                None,
                now,
            );
        }
        match self
            .base
            .sockets
            .get_mut(index)
            .and_then(Socket::stream_mut)
        {
            Some(stream) => stream
                .send
                .put_back(lent, &mut self.base.send_memory, owner),
            None => SendRing::default().put_back(lent, &mut self.base.send_memory, owner),
        }
        true
    }
}

/// Sends a segment that the connection has built on its fast path; returns false when the port is
/// full.
#[inline(always)]
fn send_predicted(
    counters: &mut Counters,
    egress: &mut impl Egress,
    capabilities: &Capabilities,
    stations: &Stations,
    stream: &Stream,
    plain: &FastOutgoing,
) -> bool {
    let payload = stream.send.slices(plain.payload.clone());
    segment::send_fast_path(
        stations,
        &stream.endpoints.tuple(),
        &stream.fields,
        plain,
        payload,
        capabilities,
        |head, payload, offload| send(counters, egress, head, payload, offload),
    )
}

/// Hands a TCP segment to the port and counts it.
#[inline(always)]
fn send(
    counters: &mut Counters,
    egress: &mut impl Egress,
    head: &[u8],
    payload: [&[u8]; 2],
    offload: Offload,
) -> bool {
    if !egress.send(head, payload, offload) {
        counters.egress_full += 1;
        return false;
    }
    counters.frames_out += 1;
    counters.segments_out += 1;
    counters.bytes_out += (head.len() + payload[0].len() + payload[1].len()) as u64;
    true
}

/// Where an IP packet of ours goes.
fn destination(packet: &[u8]) -> IpAddr {
    if packet[0] >> 4 == 6 {
        let octets: [u8; 16] = packet[24..40].try_into().expect("sixteen bytes");
        octets.into()
    } else {
        let octets: [u8; 4] = packet[16..20].try_into().expect("four bytes");
        octets.into()
    }
}
