//! TCP segments in: to the connection, the handshake, TIME-WAIT or the listener that they are for,
//! or back with a reset.

use std::net::IpAddr;

use millrace_tcp::{
    Error, Events, HalfOpen, HalfOpenVerdict, Instant, Open, Settings, State, TimeWaitVerdict,
    refuse,
};
use millrace_wire::ethernet::Mac;
use millrace_wire::tcp::{Flags, Segment, Seq};

use crate::config::Buffers;
use crate::connection_table::{Pair, Place, Tuple};
use crate::counters::Counters;
use crate::error::errno;
use crate::ip::family::Family;
use crate::memory::Memory;
use crate::memory::send_memory::SendMemory;
use crate::output::reply_queue::Reply;
use crate::shard::Shard;
use crate::socket::note_changed;
use crate::socket::receive_ring::Sink;
use crate::socket::{Kind, Marks, Options, Socket, SocketId};
use crate::tcp::autotuning;
use crate::tcp::fast_open::Verdict;
use crate::tcp::segment::IpFields;
use crate::tcp::syn_cookie;
use crate::tcp::syn_received::HalfOpenConnection;
use crate::tcp::time_wait::TimeWaitEntry;
use millrace_wire::offload::ChecksumState;
use millrace_wire::tcp::PROTOCOL as PROTOCOL_TCP;

/// The length of the IP and TCP headers without options, in bytes.
const HEADERS_LEN_V4: u16 = 40;
const HEADERS_LEN_V6: u16 = 60;
/// Segments for a peer that does not say what it takes: what the least MTU of each family leaves
/// (RFC 9293 3.7.1).
const DEFAULT_SEGMENT_V4: u16 = 576 - HEADERS_LEN_V4;
const DEFAULT_SEGMENT_V6: u16 = 1_280 - HEADERS_LEN_V6;

impl<M: Memory> Shard<M> {
    #[inline]
    pub(crate) fn tcp_input<A: Family>(
        &mut self,
        (local, remote): (A, A),
        bytes: &[u8],
        checksum: ChecksumState,
        marked: bool,
        from: Mac,
        now: Instant,
    ) {
        self.base.env.counters.segments_in += 1;
        if checksum == ChecksumState::Unchecked && !A::verify(remote, local, PROTOCOL_TCP, bytes) {
            self.base.env.counters.tcp_checksum += 1;
            return;
        }
        let Ok(mut segment) = Segment::parse(bytes) else {
            self.base.env.counters.tcp_malformed += 1;
            return;
        };
        segment.marked = marked;
        let tuple = A::tuple(Pair {
            local,
            remote,
            local_port: segment.dst_port,
            remote_port: segment.src_port,
        });
        self.segment_input(&tuple, &segment, Some(from), now);
    }

    /// Processes a segment. `tuple` is as we see it; `from` is the station that sent it, none when
    /// that is this host.
    pub(crate) fn segment_input(
        &mut self,
        tuple: &Tuple,
        segment: &Segment<'_>,
        from: Option<Mac>,
        now: Instant,
    ) {
        let place = match tuple {
            Tuple::V4(pair) => self.table.get_v4(pair),
            Tuple::V6(_) => self.table.get(tuple),
        };
        match place {
            Some(Place::Stream(index)) => self.stream_input(index, segment, from, now),
            Some(Place::HalfOpen(index)) => self.half_open_input(index, segment, from, now),
            Some(Place::TimeWait(index)) => self.time_wait_input(index, tuple, segment, now),
            None if from.is_some() && self.base.is_misrouted(tuple) => {}
            None => self.listener_input(tuple, segment, from, None, now),
        }
    }

    #[inline(never)]
    fn stream_input(&mut self, index: u32, segment: &Segment<'_>, from: Option<Mac>, now: Instant) {
        let Some((socket, generation)) = self.base.sockets.get_mut_with_generation(index) else {
            return;
        };
        let Socket {
            owner,
            marks,
            kind: Kind::Stream(stream),
            ..
        } = socket
        else {
            return;
        };
        let mut sink = Sink {
            ring: &mut stream.recv,
            memory: &mut self.base.memory,
            owner: *owner,
            open: !marks.contains(Marks::ORPHAN),
            counters: &mut self.base.env.counters,
        };
        let acked = stream.connection.acked();
        let block = sink.ring.block();
        stream
            .connection
            .on_segment(&self.base.env.config.tcp, segment, &mut sink, now);
        // Whoever reads the ring must learn that it has moved, also when only bytes out of order
        // came.
        let moved = sink.ring.block() != block;
        if let Some(from) = from
            && stream.connection.acked() > acked
        {
            self.base.network.neighbours.confirm(stream.hop, from, now);
        }
        let events = stream.connection.take_events();
        let opened = events.contains(Events::ESTABLISHED);
        if !events.is_empty() {
            self.base.env.counters.note(events, *marks);
            socket.note(
                events,
                &self.base.env.config.buffers,
                &mut self.base.send_memory,
            );
        }
        if moved || !events.is_empty() {
            note_changed(
                &mut self.base.changed,
                SocketId::new(index, generation),
                socket,
            );
        }
        let fast = opened && socket.is_opened_fast();
        self.ready.add(index, socket);
        if fast {
            self.note_fast_open(index, now);
        }
    }

    /// Takes note of what has happened to a connection, and puts it in line to be served.
    pub(crate) fn apply_state_change(&mut self, index: u32) {
        let Some((socket, generation)) = self.base.sockets.get_mut_with_generation(index) else {
            return;
        };
        let Some(stream) = socket.stream_mut() else {
            return;
        };
        let events = stream.connection.take_events();
        if !events.is_empty() {
            self.base.env.counters.note(events, socket.marks);
            socket.note(
                events,
                &self.base.env.config.buffers,
                &mut self.base.send_memory,
            );
            note_changed(
                &mut self.base.changed,
                SocketId::new(index, generation),
                socket,
            );
        }
        self.ready.add(index, socket);
    }

    fn half_open_input(
        &mut self,
        index: u32,
        segment: &Segment<'_>,
        from: Option<Mac>,
        now: Instant,
    ) {
        let Some(pending) = self.half_open.get_mut(index) else {
            return;
        };
        if pending.asked {
            // It has not been answered: only that it is taken back says something.
            if pending.state.is_taken_back(segment) {
                self.forget_half_open(index);
            }
            return;
        }
        match pending
            .state
            .on_segment(&self.base.env.config.tcp, segment, now)
        {
            HalfOpenVerdict::Ignore => {}
            HalfOpenVerdict::Reply(outgoing) => {
                let tuple = pending.tuple;
                self.base
                    .network
                    .reply(&mut self.base.env.counters, Reply::Segment(tuple, outgoing));
            }
            HalfOpenVerdict::Drop => self.forget_half_open(index),
            HalfOpenVerdict::Establish => {
                let (listener, tuple, state) =
                    (pending.listener, pending.tuple, pending.state.clone());
                if let Some(stream) = self.establish(listener, tuple, &state, now) {
                    if let Some(listener) = self
                        .base
                        .sockets
                        .get_mut(listener)
                        .and_then(Socket::listener_mut)
                    {
                        listener.half_open -= 1;
                    }
                    self.half_open.remove(index);
                    self.stream_input(stream, segment, from, now);
                }
            }
        }
    }

    fn time_wait_input(&mut self, index: u32, tuple: &Tuple, segment: &Segment<'_>, now: Instant) {
        let Some(waiting) = self.time_wait.get_mut(index) else {
            return;
        };
        let deadline = waiting.state.deadline();
        let verdict = waiting
            .state
            .on_segment(&self.base.env.config.tcp, segment, now);
        let renewed = waiting.state.deadline() != deadline;
        match verdict {
            TimeWaitVerdict::Ignore => {}
            TimeWaitVerdict::Reply(outgoing) => self.base.network.reply(
                &mut self.base.env.counters,
                Reply::Segment(*tuple, outgoing),
            ),
            TimeWaitVerdict::Reopen { after } => {
                if self.listener_for(tuple).is_some() {
                    self.forget_time_wait(index);
                    self.listener_input(tuple, segment, None, Some(after), now);
                    return;
                }
            }
        }
        if renewed {
            self.time_wait.renew(index);
        }
    }

    /// Forgets a connection in TIME-WAIT before its time.
    pub(crate) fn forget_time_wait(&mut self, index: u32) -> Option<TimeWaitEntry> {
        let waiting = self.time_wait.remove(index)?;
        self.forget_tuple(&waiting.tuple);
        self.ports
            .remove_connection(waiting.tuple.local(), waiting.reuse);
        Some(waiting)
    }

    /// A segment that belongs to no connection (RFC 9293 3.10.7.1 and .2). `after`: our sequence
    /// numbers must lie beyond.
    fn listener_input(
        &mut self,
        tuple: &Tuple,
        segment: &Segment<'_>,
        from: Option<Mac>,
        after: Option<Seq>,
        now: Instant,
    ) {
        let Some(listener) = self.listener_for(tuple) else {
            self.base.env.counters.tcp_no_socket += 1;
            self.reset(tuple, segment, now);
            return;
        };
        match segment.flags & (Flags::RST | Flags::ACK | Flags::SYN | Flags::FIN) {
            Flags::SYN => self.open_half(listener, tuple, segment, after, now),
            flags if flags.contains(Flags::RST) => {}
            // The segment that completes the handshake may carry payload and a FIN.
            flags
                if flags | Flags::FIN == Flags::ACK | Flags::FIN
                    && self.accept_cookie(listener, tuple, segment, from, now) => {}
            flags if flags.contains(Flags::ACK) => self.reset(tuple, segment, now),
            _ => {}
        }
    }

    /// Answers a SYN to a listener.
    fn open_half(
        &mut self,
        index: u32,
        tuple: &Tuple,
        syn: &Segment<'_>,
        after: Option<Seq>,
        now: Instant,
    ) {
        let Some(Socket {
            owner,
            kind: Kind::Listener(listener),
            ..
        }) = self.base.sockets.get_mut(index)
        else {
            return;
        };
        // As on Linux: no new handshakes while those that are done cannot be handed over.
        let (asks, owner) = (listener.asks, *owner);
        let unasked = listener.requests.len() > listener.backlog.limit as usize;
        if unasked || listener.backlog.is_full(&self.base.memory, owner) {
            self.base.env.counters.listen_overflows += 1;
            return;
        }
        let Some(Socket { options, .. }) = self.base.sockets.get(index) else {
            return;
        };
        let Some(mut open) = self.open_parameters(tuple, options, now) else {
            self.base.env.counters.ip_no_route += 1;
            return;
        };
        if let Some(after) = after {
            open.begin_after(after);
        }
        if !self.half_open.has_room(owner) {
            self.base.env.counters.half_open_limited += u64::from(!self.half_open.is_full());
            // Whoever is asked first cannot be asked about a cookie.
            if asks {
                self.base.env.counters.listen_overflows += 1;
            } else {
                self.send_cookie(index, tuple, syn, open, now);
            }
            return;
        }
        let state = HalfOpen::new(&self.base.env.config.tcp, &options.tcp, open, syn, now);
        let fast = options.fast_open > 0 && !asks;
        let mut reply = state.reply(now);
        if fast {
            match self.judge_fast_open(index, tuple, syn) {
                Verdict::Early(another) => {
                    if self.open_early(index, (tuple, syn), &state, another, now) {
                        return;
                    }
                }
                Verdict::Give(cookie) => reply.options.set_fast_open(cookie),
                Verdict::Plain => {}
            }
        }
        let pending = HalfOpenConnection {
            tuple: *tuple,
            listener: index,
            owner,
            state,
            asked: asks,
        };
        let Some(half_open) = self.half_open.insert(pending, now) else {
            return;
        };
        self.table.add(*tuple, Place::HalfOpen(half_open));
        if let Some(listener) = self
            .base
            .sockets
            .get_mut(index)
            .and_then(Socket::listener_mut)
        {
            listener.half_open += 1;
        }
        if asks {
            self.note_request(index, half_open);
        } else {
            self.base
                .network
                .reply(&mut self.base.env.counters, Reply::Segment(*tuple, reply));
        }
    }

    /// Answers a SYN without remembering it.
    fn send_cookie(
        &mut self,
        index: u32,
        tuple: &Tuple,
        syn: &Segment<'_>,
        mut open: Open,
        now: Instant,
    ) {
        let Some(socket) = self.base.sockets.get_mut(index) else {
            return;
        };
        let options = socket.options.clone();
        let Some(listener) = socket.listener_mut() else {
            return;
        };
        listener.cookies_until = now + syn_cookie::LIFETIME;
        open.iss = syn_cookie::sequence(&self.base.env.secrets, tuple, syn, now);
        let mut reply =
            HalfOpen::new(&self.base.env.config.tcp, &options.tcp, open, syn, now).reply(now);
        match &mut reply.options.timestamps {
            Some(timestamps) => {
                let ecn = reply.flags.contains(Flags::ECE);
                timestamps.value = syn_cookie::timestamp(timestamps.value, &syn.options, ecn);
            }
            None => reply.flags.remove(Flags::ECE),
        }
        self.base.env.counters.cookies_sent += 1;
        self.base
            .network
            .reply(&mut self.base.env.counters, Reply::Segment(*tuple, reply));
    }

    /// Makes a connection of an ACK that brings a good cookie back; false when it does not.
    fn accept_cookie(
        &mut self,
        index: u32,
        tuple: &Tuple,
        ack: &Segment<'_>,
        from: Option<Mac>,
        now: Instant,
    ) -> bool {
        let Some(Socket {
            options,
            kind: Kind::Listener(listener),
            ..
        }) = self.base.sockets.get(index)
        else {
            return false;
        };
        if listener.cookies_until < now {
            return false;
        }
        let Some(syn) = syn_cookie::recall(&self.base.env.secrets, tuple, ack, now) else {
            self.base.env.counters.cookies_refused += 1;
            return false;
        };
        let Some(mut open) = self.open_parameters(tuple, options, now) else {
            return false;
        };
        open.iss = ack.ack - 1;
        let sent = syn_cookie::sent_at(ack, open.timestamp_offset, now);
        // The handshake is over: there is nothing to defer.
        let settings = Settings {
            defer_accept: 0,
            ..options.tcp
        };
        let mut state = HalfOpen::new(&self.base.env.config.tcp, &settings, open, &syn, sent);
        if state.on_segment(&self.base.env.config.tcp, ack, now) != HalfOpenVerdict::Establish {
            return false;
        }
        // When the listener has no room, the peer comes again.
        if let Some(stream) = self.establish(index, *tuple, &state, now) {
            self.base.env.counters.cookies_accepted += 1;
            self.stream_input(stream, ack, from, now);
        }
        true
    }

    /// The parameters of a new connection over `tuple`; `None` when there is no route.
    pub(crate) fn open_parameters(
        &self,
        tuple: &Tuple,
        options: &Options,
        now: Instant,
    ) -> Option<Open> {
        let mss = self.segment_size(tuple.remote_ip(), options)?;
        let numbers = self.base.env.secrets.numbers(tuple, now);
        Some(Open {
            iss: Seq(numbers.sequence),
            timestamp_offset: numbers.timestamp_offset,
            mss,
            default_mss: match tuple {
                Tuple::V4(_) => DEFAULT_SEGMENT_V4,
                Tuple::V6(_) => DEFAULT_SEGMENT_V6,
            },
            receive_limit: autotuning::first_limits(options, &self.base.env.config.buffers, mss).1,
        })
    }

    /// The largest segment that we announce to `remote`; `None` when there is no route.
    pub(crate) fn segment_size(&self, remote: IpAddr, options: &Options) -> Option<u16> {
        let mss = self.base.network.first_mtu(&self.base.env, remote)? - headers_len(remote);
        Some(options.tcp.max_segment.map_or(mss, |limit| limit.min(mss)))
    }

    /// The largest packet that is known to reach the peer of a connection: as large as the first
    /// link takes, or what a router said (`IP_MTU`).
    ///
    /// # Errors
    /// [`crate::Error::NoSocket`], [`crate::Error::NotConnected`].
    pub fn path_mtu(&self, id: SocketId, now: Instant) -> Result<u16, crate::Error> {
        let socket = self
            .base
            .sockets
            .get(self.base.check(id)?)
            .ok_or(crate::Error::NoSocket)?;
        let remote = match socket.stream() {
            Some(stream) if !socket.marks.contains(Marks::DEAD) => {
                stream.endpoints.tuple().remote_ip()
            }
            _ => return Err(crate::Error::NotConnected),
        };
        let first = self
            .base
            .network
            .first_mtu(&self.base.env, remote)
            .ok_or(crate::Error::NotConnected)?;
        let known = self.base.network.path_mtus.get(remote, now);
        Ok(known.map_or(first, |mtu| first.min(mtu)))
    }

    /// The fields of the IP headers of a segment without a socket.
    pub(crate) fn default_fields(&self, tuple: &Tuple) -> IpFields {
        self.fields(tuple, &Options::default())
    }

    /// The fields of the IP headers of a connection with these options.
    pub(crate) fn fields(&self, tuple: &Tuple, options: &Options) -> IpFields {
        let flow_label = match tuple {
            Tuple::V4(_) => 0,
            Tuple::V6(_) => self.base.env.secrets.flow_label(tuple),
        };
        IpFields::new(tuple, options, flow_label)
    }

    /// Answers a segment of no connection with a reset, within the limit.
    fn reset(&mut self, tuple: &Tuple, segment: &Segment<'_>, now: Instant) {
        let Some(outgoing) = refuse(segment) else {
            return;
        };
        if !self.reset_limit.allow(now) {
            self.base.env.counters.resets_limited += 1;
            return;
        }
        self.base.env.counters.resets_out += 1;
        self.base.network.reply(
            &mut self.base.env.counters,
            Reply::Segment(*tuple, outgoing),
        );
    }

    /// Takes the connection at `index` out of the tables: it is over, and its last segment is out.
    /// A socket that a program still holds keeps what was received.
    pub(crate) fn end_connection(&mut self, index: u32, now: Instant) {
        let Some(Socket {
            owner,
            marks,
            options,
            kind: Kind::Stream(stream),
        }) = self.base.sockets.get_mut(index)
        else {
            return;
        };
        let (tuple, reuse, owner) = (stream.endpoints.tuple(), options.reuse.address, *owner);
        self.wheel.cancel(index);
        stream.send.free(&mut self.base.send_memory, owner);
        let state = stream.connection.state();
        let time_wait = if state == State::TimeWait {
            stream.connection.time_wait(&self.base.env.config.tcp, now)
        } else {
            None
        };
        let early = marks.contains(Marks::EARLY);
        marks.remove(Marks::ENDING | Marks::READY);
        marks.insert(Marks::DEAD);
        let (orphan, counted) = (
            marks.contains(Marks::ORPHAN),
            marks.contains(Marks::COUNTED),
        );
        if orphan {
            stream.recv.free(&mut self.base.memory, owner);
        }
        if early {
            self.note_fast_open(index, now);
        }
        let Some(stream) = self
            .base
            .sockets
            .get_mut(index)
            .and_then(Socket::stream_mut)
        else {
            return;
        };
        let waiting = time_wait.and_then(|state| {
            let timestamps = stream.connection.timestamps();
            let place = self.time_wait.insert(tuple, state, reuse, timestamps, now);
            if place.is_some() {
                self.base.env.counters.time_waits += 1;
            } else {
                self.base.env.counters.time_wait_overflow += 1;
            }
            place
        });
        match waiting {
            Some(waiting) => self.table.insert(tuple, Place::TimeWait(waiting)),
            None => {
                self.forget_tuple(&tuple);
                self.ports.remove_connection(tuple.local(), reuse);
            }
        }
        if orphan {
            self.base.sockets.discard(index);
            if counted {
                self.orphans.give(owner);
            }
        } else {
            self.base.mark_changed(index);
        }
    }
}

impl Socket {
    /// Takes note of what has happened to its connection.
    #[inline]
    pub(super) fn note(&mut self, events: Events, buffers: &Buffers, memory: &mut SendMemory) {
        let Kind::Stream(stream) = &mut self.kind else {
            return;
        };
        if stream
            .send
            .release(stream.connection.acked(), memory, self.owner)
            && self.options.send_buffer.is_none()
        {
            stream.tune_send(buffers);
        }
        let milestones = Events::ESTABLISHED | Events::PEER_CLOSED | FAILURES | OVER;
        if !events.intersects(milestones) {
            return;
        }
        if events.intersects(FAILURES) {
            let error = match stream.connection.error() {
                // Linux tells a program that has seen the end of the stream that its pipe is
                // broken.
                Some(Error::ConnectionReset) if self.marks.contains(Marks::PEER_CLOSED) => {
                    errno::EPIPE
                }
                Some(error) => error.errno(),
                None => 0,
            };
            stream.error = error as u16;
        }
        self.marks.set(
            Marks::ESTABLISHED,
            self.marks.contains(Marks::ESTABLISHED) || events.contains(Events::ESTABLISHED),
        );
        self.marks.set(
            Marks::PEER_CLOSED,
            self.marks.contains(Marks::PEER_CLOSED) || events.contains(Events::PEER_CLOSED),
        );
        self.marks.set(
            Marks::ENDING,
            self.marks.contains(Marks::ENDING) || events.intersects(OVER),
        );
    }
}

impl Counters {
    /// Counts what has happened to a connection.
    #[inline]
    pub(super) fn note(&mut self, events: Events, marks: Marks) {
        if events.intersects(FAILURES) {
            self.resets_in += u64::from(events.contains(Events::RESET));
            self.timed_out += u64::from(events.contains(Events::TIMED_OUT));
            self.failed_opens += u64::from(!marks.contains(Marks::ESTABLISHED));
        }
    }
}

/// The largest segment in a packet of so many bytes.
pub(crate) fn largest_segment(mtu: u16, remote: IpAddr) -> u16 {
    mtu.saturating_sub(headers_len(remote))
}

/// The length of the IP and TCP headers of a packet to `remote`, in bytes.
pub(crate) fn headers_len(remote: IpAddr) -> u16 {
    match remote {
        IpAddr::V4(_) => HEADERS_LEN_V4,
        IpAddr::V6(_) => HEADERS_LEN_V6,
    }
}

/// Events that end a connection with an error.
const FAILURES: Events = Events::RESET
    .union(Events::REFUSED)
    .union(Events::TIMED_OUT);
/// Events after which a connection has nothing more to say but its last segment.
const OVER: Events = Events::TIME_WAIT.union(Events::CLOSED);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use millrace_wire::offload::{Capabilities, Frame, Offload};

    use super::*;
    use crate::Config;
    use crate::link::ethernet::Egress;
    use crate::link::ethernet::Stations;
    use crate::memory::{HeapMemory, Owner};
    use crate::socket::Reuse;
    use crate::tcp::segment::send_fast_path;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const CAPABILITIES: Capabilities = Capabilities::plain(MAC, 1500);

    struct Nowhere;

    impl Egress for Nowhere {
        fn send(&mut self, _: &[u8], _: [&[u8]; 2], _: Offload) -> bool {
            true
        }
        fn capabilities(&self) -> Capabilities {
            CAPABILITIES
        }
    }

    /// Word for word what one end of a connection of this host with itself would say next to the
    /// other, but from the link.
    #[test]
    fn rfc1122_3_2_1_3_nobody_on_the_link_speaks_for_this_host() {
        let now = Instant::from_micros(1_000_000);
        let mut config = Config::new(OWN, 24, MAC, [7; 32]);
        config.loopback = true;
        let mut shard = Shard::new(config, HeapMemory::new(1 << 20), now);
        let end = SocketAddr::new(OWN.into(), 80);
        let listener = shard.listen(Owner(1), end, 1, Reuse::default());
        let client = shard.connect(Owner(1), None, end, &Options::default(), now);
        let (listener, client) = (listener.expect("free"), client.expect("reached"));
        for _ in 0..4 {
            shard.transmit(&mut Nowhere, now);
        }
        let server = shard.accept(listener).expect("connected");
        shard.send(client, b"forged", true).expect("room");
        let socket = shard.base.sockets.get_mut(client.index());
        let stream = socket.and_then(Socket::stream_mut).expect("a connection");
        let plain = stream
            .connection
            .poll_transmit_fast(&shard.base.env.config.tcp, now);
        let plain = plain.expect("a segment");
        let stations = Stations {
            to: MAC,
            from: Mac([2, 0, 0, 0, 0, 66]),
        };
        let (tuple, fields) = (&stream.endpoints.tuple(), &stream.fields);
        let payload = stream.send.slices(plain.payload.clone());
        let mut bytes = Vec::new();
        let take = |head: &[u8], payload: [&[u8]; 2], _: Offload| {
            bytes = [head, payload[0], payload[1]].concat();
            true
        };
        assert!(send_fast_path(
            &stations,
            tuple,
            fields,
            &plain,
            payload,
            &CAPABILITIES,
            take
        ));
        let frame = Frame {
            bytes: &bytes,
            checksum: Default::default(),
            segment_size: 0,
        };
        shard.input(&frame, now);
        assert_eq!(shard.counters().ip_bad_source, 1);
        assert_eq!(shard.view(server).map(|view| view.received), Some(0));
    }
}
