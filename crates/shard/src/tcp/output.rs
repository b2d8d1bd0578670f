//! Everything that leaves: ARP and neighbour discovery, answers, and what connections have to send,
//! in turn.

use std::net::IpAddr;

use millrace_tcp::{FastOutgoing, Instant, Limits, State};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::offload::{Capabilities, Offload};

use crate::base::Base;
use crate::connection_table::Tuple;
use crate::counters::Counters;
use crate::error::errno;
use crate::ip::route::Route;
use crate::ip::v6::group_station;
use crate::link::ethernet::Egress;
use crate::link::ethernet::{Stations, send_frame};
use crate::link::neighbour::{Handle, Lookup, Settled};
use crate::memory::Memory;
use crate::network::reply_queue::Reply;
use crate::socket::note_changed;
use crate::socket::send_ring::SendRing;
use crate::socket::{Kind, Marks, Socket, SocketId, Stream};
use crate::tcp::segment::{self, PAYLOAD_MAX, SegmentJob};
use crate::tcp::stalled::Stalled;
use crate::tcp::state::Tcp;

/// Segments (or segmentation units) that a connection sends before it is another's turn.
const TURN: usize = 2;

/// The largest unit that a connection gives to the port.
const LIMITS: Limits = Limits {
    max_payload: PAYLOAD_MAX,
};

/// How serving a connection ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// It has no more to send for now.
    Idle,
    /// Its turn is over; it may have more.
    More,
    /// The port is full.
    Full,
}

impl Tcp {
    /// Gives a connection its turn. `known` is the last neighbour that was looked up in this burst.
    #[inline(always)]
    pub(crate) fn serve<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        known: &mut Option<(Handle, Mac)>,
        (egress, capabilities): (&mut impl Egress, &Capabilities),
        local_budget: &mut u32,
        now: Instant,
    ) -> Served {
        let Some((socket, generation)) = base.sockets.get_mut_with_generation(index) else {
            return Served::Idle;
        };
        let marks = socket.marks;
        // An index can be in the list for a socket that is gone.
        if !marks.contains(Marks::READY) || marks.contains(Marks::DEAD) {
            return Served::Idle;
        }
        socket.marks.remove(Marks::READY);
        if marks.contains(Marks::LOCAL) {
            return self.serve_local(base, index, local_budget, now);
        }
        let Some(mut stream) = socket.stream_mut() else {
            return Served::Idle;
        };
        let fast = !marks.contains(Marks::NOTSENT_LOW);
        // A connection that has not looked up its neighbour yet does so even without output.
        if fast && !stream.connection.has_output() && stream.hop != Handle::NONE {
            self.active_senders.note_stream(stream, now);
            if marks.contains(Marks::ENDING) {
                self.end_connection(base, index, now);
            } else {
                stream.arm(&mut self.wheel, index);
            }
            return Served::Idle;
        }
        let lookup = match *known {
            Some((hop, mac)) if hop == stream.hop => Lookup::Known(mac),
            _ => base.network.neighbours.resolve(stream.hop, now),
        };
        let to = match lookup {
            Lookup::Known(to) => to,
            _ => {
                let Some(to) = self.resolve_or_drop(base, index, lookup, now) else {
                    return Served::Idle;
                };
                let Some(found) = base.sockets.get_mut(index).and_then(Socket::stream_mut) else {
                    return Served::Idle;
                };
                stream = found;
                to
            }
        };
        *known = Some((stream.hop, to));
        if fast
            && let Some(outgoing) = stream
                .connection
                .poll_transmit_fast(&base.env.config.tcp, now)
        {
            self.active_senders.note_stream(stream, now);
            let stations = (to, base.env.config.mac);
            let counters = &mut base.env.counters;
            if send_predicted(counters, egress, capabilities, stations, stream, &outgoing) {
                if marks.contains(Marks::ENDING) {
                    self.end_connection(base, index, now);
                } else {
                    stream.arm(&mut self.wheel, index);
                }
                return Served::Idle;
            }
            self.stalled = Some(Stalled {
                socket: index,
                generation,
                outgoing: outgoing.into(),
                sent: 0,
            });
            return Served::Full;
        }
        self.send_turn(base, index, to, egress, capabilities, now)
    }

    /// The station that leads to the peer of the socket at `index`, after the lookup of its hop did
    /// not find it; `None` when the connection has to wait, or nothing leads there.
    #[inline(never)]
    fn resolve_or_drop<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        lookup: Lookup,
        now: Instant,
    ) -> Option<Mac> {
        match self.resolve_further(base, index, lookup, now) {
            Lookup::Known(to) => Some(to),
            Lookup::Wait => None,
            Lookup::Gone => {
                self.drop_unroutable(base, index, now);
                None
            }
        }
    }

    #[inline(never)]
    fn send_turn<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        to: Mac,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        now: Instant,
    ) -> Served {
        let Some((socket, generation)) = base.sockets.get_mut_with_generation(index) else {
            return Served::Idle;
        };
        let ending = socket.marks.contains(Marks::ENDING);
        // A program with `TCP_NOTSENT_LOWAT` learns that bytes are sent.
        if socket.marks.contains(Marks::NOTSENT_LOW) {
            note_changed(&mut base.changed, SocketId::new(index, generation), socket);
        }
        let Some(stream) = socket.stream_mut() else {
            return Served::Idle;
        };
        self.active_senders.note_stream(stream, now);
        let mut served = Served::More;
        for _ in 0..TURN {
            let Some(outgoing) =
                stream
                    .connection
                    .poll_transmit(&base.env.config.tcp, &LIMITS, now)
            else {
                served = Served::Idle;
                break;
            };
            let job = SegmentJob {
                to,
                from: base.env.config.mac,
                tuple: &stream.endpoints.tuple(),
                fields: stream.fields,
                outgoing: &outgoing,
                payload: stream.send.slices(outgoing.payload.clone()),
            };
            let counters = &mut base.env.counters;
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
            self.end_connection(base, index, now);
        } else {
            stream.arm(&mut self.wheel, index);
        }
        served
    }

    /// The turn of a connection whose peer is on this host.
    fn serve_local<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        budget: &mut u32,
        now: Instant,
    ) -> Served {
        if let Some((socket, generation)) = base.sockets.get_mut_with_generation(index)
            && socket.marks.contains(Marks::NOTSENT_LOW)
        {
            note_changed(&mut base.changed, SocketId::new(index, generation), socket);
        }
        if let Some(stream) = base.sockets.get_mut(index).and_then(Socket::stream_mut) {
            self.active_senders.note_stream(stream, now);
        }
        for _ in 0..TURN {
            if !self.send_local(base, index, now) {
                self.finish(base, index, now);
                return Served::Idle;
            }
            *budget = budget.saturating_sub(1);
        }
        Served::More
    }

    /// A connection has nothing more to send: it is buried when it is over; otherwise its timer is
    /// armed.
    fn finish<M: Memory>(&mut self, base: &mut Base<M>, index: u32, now: Instant) {
        let Some(socket) = base.sockets.get_mut(index) else {
            return;
        };
        if socket.marks.contains(Marks::ENDING) {
            self.end_connection(base, index, now);
        } else if let Some(stream) = socket.stream_mut() {
            stream.arm(&mut self.wheel, index);
        }
    }

    /// Nothing leads to the peer now: what the connection has to send is lost, as it would be on a
    /// broken link. Its timers try again, and give up in the end.
    fn drop_unroutable<M: Memory>(&mut self, base: &mut Base<M>, index: u32, now: Instant) {
        let Some(stream) = base.sockets.get_mut(index).and_then(Socket::stream_mut) else {
            return;
        };
        while stream
            .connection
            .poll_transmit(&base.env.config.tcp, &LIMITS, now)
            .is_some()
        {
            base.env.counters.ip_no_route += 1;
        }
        self.finish(base, index, now);
    }

    /// Sends the rest of a segment that the port did not take before, if there is one; false when
    /// it still does not.
    #[inline]
    pub(crate) fn resume<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        now: Instant,
    ) -> bool {
        let Some(mut stalled) = self.stalled.take() else {
            return true;
        };
        let Lookup::Known(to) = (if base.sockets.generation(stalled.socket) == stalled.generation {
            self.resolve(base, stalled.socket, now)
        } else {
            Lookup::Gone
        }) else {
            return true;
        };
        let Some(stream) = base.sockets.get(stalled.socket).and_then(Socket::stream) else {
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
            from: base.env.config.mac,
            tuple: &stream.endpoints.tuple(),
            fields: stream.fields,
            outgoing,
            payload: stream.send.slices(outgoing.payload.clone()),
        };
        let counters = &mut base.env.counters;
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
    fn resolve<M: Memory>(&mut self, base: &mut Base<M>, index: u32, now: Instant) -> Lookup {
        let Some(stream) = base.sockets.get(index).and_then(Socket::stream) else {
            return Lookup::Gone;
        };
        let lookup = base.network.neighbours.resolve(stream.hop, now);
        self.resolve_further(base, index, lookup, now)
    }

    /// As `resolve`, after looking where the socket's hop has led.
    #[inline(never)]
    fn resolve_further<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        mut lookup: Lookup,
        now: Instant,
    ) -> Lookup {
        let Some(socket) = base.sockets.get(index) else {
            return Lookup::Gone;
        };
        let (parked, owner) = (socket.marks.contains(Marks::PARKED), socket.owner);
        let Some(stream) = socket.stream() else {
            return Lookup::Gone;
        };
        let (mut hop, remote) = (stream.hop, stream.endpoints.tuple().remote_ip());
        if lookup == Lookup::Gone {
            let Some(Route::Link(next)) = base.network.route(remote) else {
                return Lookup::Gone;
            };
            let found =
                base.network
                    .neighbours
                    .find(next, Some(owner), now, &mut base.env.counters);
            let Some(found) = found else {
                return Lookup::Gone;
            };
            hop = found;
            lookup = base.network.neighbours.resolve(hop, now);
        }
        if lookup == Lookup::Wait && !parked {
            base.network.neighbours.wait_socket(hop, index);
        }
        if let Some(socket) = base.sockets.get_mut(index) {
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
    pub(crate) fn release_waiting<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        settled: Settled,
        now: Instant,
    ) {
        for index in settled.sockets {
            let Some(socket) = base.sockets.get_mut(index) else {
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
                    base.env.counters.failed_opens += 1;
                    self.apply_state_change(base, index);
                }
                Some(_) if settled.mac.is_none() => self.drop_unroutable(base, index, now),
                _ => self.mark_ready(base, index),
            }
        }
        for reply in settled.replies {
            if settled.mac.is_some() {
                base.network.reply(&mut base.env.counters, reply);
            } else {
                base.env.counters.neighbour_queue_dropped += 1;
                base.network.replies.recycle(reply);
            }
        }
    }

    /// Sends an answer, parks it with its neighbour, or delivers it on this host; false when the
    /// port is full.
    pub(crate) fn send_reply<M: Memory>(
        &mut self,
        base: &mut Base<M>,
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
            let sent = self.send_reply_to(base, to, &reply, egress, capabilities);
            self.put_away(base, reply, sent);
            return sent;
        }
        let next = match base.network.route(destination) {
            Some(Route::Link(next)) => next,
            Some(Route::Local) => {
                if let Reply::Segment(tuple, outgoing) = &reply {
                    *local_budget -= 1;
                    base.env.counters.segments_local += 1;
                    self.segment_input(
                        base,
                        &tuple.reversed(),
                        &segment::as_received(tuple, outgoing, 0, &[], true),
                        None,
                        now,
                    );
                }
                base.network.replies.recycle(reply);
                return true;
            }
            None => {
                base.env.counters.ip_no_route += 1;
                base.network.replies.recycle(reply);
                return true;
            }
        };
        let Some(hop) = base
            .network
            .neighbours
            .find(next, None, now, &mut base.env.counters)
        else {
            base.network.replies.recycle(reply);
            return true;
        };
        let Lookup::Known(to) = base.network.neighbours.resolve_for_answer(hop, now) else {
            if let Some(oldest) = base.network.neighbours.wait_reply(hop, reply) {
                base.env.counters.neighbour_queue_dropped += 1;
                base.network.replies.recycle(oldest);
            }
            return true;
        };
        let sent = self.send_reply_to(base, to, &reply, egress, capabilities);
        self.put_away(base, reply, sent);
        sent
    }

    /// An answer is out, or has to wait until the port is no longer full.
    #[inline]
    fn put_away<M: Memory>(&mut self, base: &mut Base<M>, reply: Reply, sent: bool) {
        if sent {
            base.network.replies.recycle(reply);
        } else {
            base.network.replies.unpop(reply);
        }
    }

    /// Sends an answer to a station; false when the port is full.
    #[inline]
    fn send_reply_to<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        to: Mac,
        reply: &Reply,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
    ) -> bool {
        match reply {
            Reply::Segment(tuple, outgoing) => {
                let job = SegmentJob {
                    to,
                    from: base.env.config.mac,
                    tuple,
                    fields: self.default_fields(base, tuple),
                    outgoing,
                    payload: [&[], &[]],
                };
                let counters = &mut base.env.counters;
                job.run(0, capabilities, |head, payload, offload| {
                    send(counters, egress, head, payload, offload)
                })
                .is_some()
            }
            Reply::Packet(packet) => {
                let mut head = [0; ethernet::HEADER_LEN];
                ethernet::Header {
                    dst: to,
                    src: base.env.config.mac,
                    ethertype: if packet[0] >> 4 == 6 {
                        EtherType::IPV6
                    } else {
                        EtherType::IPV4
                    },
                }
                .emit(&mut head);
                send_frame(
                    &mut base.env.counters,
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
    fn send_local<M: Memory>(&mut self, base: &mut Base<M>, index: u32, now: Instant) -> bool {
        let Some(Socket {
            owner,
            kind: Kind::Stream(stream),
            ..
        }) = base.sockets.get_mut(index)
        else {
            return false;
        };
        let owner = *owner;
        let Some(outgoing) = stream
            .connection
            .poll_transmit(&base.env.config.tcp, &LIMITS, now)
        else {
            return false;
        };
        let tuple = stream.endpoints.tuple();
        let peer: Tuple = tuple.reversed();
        base.env.counters.segments_local += 1;
        if outgoing.payload_len() == 0 {
            self.segment_input(
                base,
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
            base,
            &peer,
            &segment::as_received(&tuple, &outgoing, 0, first, second.is_empty()),
            None,
            now,
        );
        if !second.is_empty() {
            self.segment_input(
                base,
                &peer,
                &segment::as_received(&tuple, &outgoing, first.len(), second, true),
                None,
                now,
            );
        }
        match base.sockets.get_mut(index).and_then(Socket::stream_mut) {
            Some(stream) => stream.send.put_back(lent, &mut base.send_memory, owner),
            None => SendRing::default().put_back(lent, &mut base.send_memory, owner),
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
    (to, from): (Mac, Mac),
    stream: &Stream,
    outgoing: &FastOutgoing,
) -> bool {
    let payload = stream.send.slices(outgoing.payload.clone());
    segment::send_fast_path(
        &Stations { to, from },
        &stream.endpoints.tuple(),
        &stream.fields,
        outgoing,
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
