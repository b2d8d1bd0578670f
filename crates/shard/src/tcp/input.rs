//! TCP segments in: to the connection, the handshake, TIME-WAIT or the listener that they are for,
//! or back with a reset.

use std::net::IpAddr;

use millrace_tcp::{
    Error, Events, HalfOpen, HalfOpenVerdict, IcmpError, Instant, Open, Settings, State,
    TimeWaitVerdict, refuse,
};
use millrace_wire::ethernet::Mac;
use millrace_wire::tcp::{Flags, Segment, Seq};

use crate::base::Base;
use crate::config::Buffers;
use crate::connection_table::{Pair, Place, Tuple};
use crate::counters::Counters;
use crate::error::errno;
use crate::ip::family::Family;
use crate::memory::Memory;
use crate::memory::send_memory::SendMemory;
use crate::network::reply_queue::Reply;
use crate::socket::note_changed;
use crate::socket::receive_ring::Sink;
use crate::socket::{Kind, Marks, Options, Socket, SocketId};
use crate::tcp::autotuning;
use crate::tcp::fast_open::Verdict;
use crate::tcp::segment::IpFields;
use crate::tcp::state::Tcp;
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

impl Tcp {
    #[inline]
    pub(crate) fn tcp_input<M: Memory, A: Family>(
        &mut self,
        base: &mut Base<M>,
        (local, remote): (A, A),
        bytes: &[u8],
        (checksum, marked): (ChecksumState, bool),
        from: Mac,
        now: Instant,
    ) {
        base.env.counters.segments_in += 1;
        if checksum == ChecksumState::Unchecked && !A::verify(remote, local, PROTOCOL_TCP, bytes) {
            base.env.counters.tcp_checksum += 1;
            return;
        }
        let Ok(mut segment) = Segment::parse(bytes) else {
            base.env.counters.tcp_malformed += 1;
            return;
        };
        segment.marked = marked;
        let tuple = A::tuple(Pair {
            local,
            remote,
            local_port: segment.dst_port,
            remote_port: segment.src_port,
        });
        self.segment_input(base, &tuple, &segment, Some(from), now);
    }

    /// Processes a segment. `tuple` is as we see it; `from` is the station that sent it, none when
    /// that is this host.
    pub(crate) fn segment_input<M: Memory>(
        &mut self,
        base: &mut Base<M>,
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
            Some(Place::Stream(index)) => self.stream_input(base, index, segment, from, now),
            Some(Place::HalfOpen(index)) => self.half_open_input(base, index, segment, from, now),
            Some(Place::TimeWait(index)) => self.time_wait_input(base, index, tuple, segment, now),
            None if from.is_some() && base.is_misrouted(tuple) => {}
            None => self.listener_input(base, tuple, segment, from, None, now),
        }
    }

    #[inline(never)]
    fn stream_input<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        segment: &Segment<'_>,
        from: Option<Mac>,
        now: Instant,
    ) {
        let Some((socket, generation)) = base.sockets.get_mut_with_generation(index) else {
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
            memory: &mut base.memory,
            owner: *owner,
            open: !marks.contains(Marks::ORPHAN),
            counters: &mut base.env.counters,
        };
        let acked = stream.connection.acked();
        let block = sink.ring.block();
        stream
            .connection
            .on_segment(&base.env.config.tcp, segment, &mut sink, now);
        // Whoever reads the ring must learn that it has moved, also when only bytes out of order
        // came.
        let moved = sink.ring.block() != block;
        if let Some(from) = from
            && stream.connection.acked() > acked
        {
            base.network.neighbours.confirm(stream.hop, from, now);
        }
        let events = stream.connection.take_events();
        let opened = events.contains(Events::ESTABLISHED);
        if !events.is_empty() {
            base.env.counters.note(events, *marks);
            socket.note(events, &base.env.config.buffers, &mut base.send_memory);
        }
        if moved || !events.is_empty() {
            note_changed(&mut base.changed, SocketId::new(index, generation), socket);
        }
        let fast = opened && socket.is_opened_fast();
        self.ready.add(index, socket);
        if fast {
            self.note_fast_open(base, index, now);
        }
    }

    /// Takes note of what has happened to a connection, and puts it in line to be served.
    pub(crate) fn apply_state_change<M: Memory>(&mut self, base: &mut Base<M>, index: u32) {
        let Some((socket, generation)) = base.sockets.get_mut_with_generation(index) else {
            return;
        };
        let Some(stream) = socket.stream_mut() else {
            return;
        };
        let events = stream.connection.take_events();
        if !events.is_empty() {
            base.env.counters.note(events, socket.marks);
            socket.note(events, &base.env.config.buffers, &mut base.send_memory);
            note_changed(&mut base.changed, SocketId::new(index, generation), socket);
        }
        self.ready.add(index, socket);
    }

    fn half_open_input<M: Memory>(
        &mut self,
        base: &mut Base<M>,
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
                self.forget_half_open(base, index);
            }
            return;
        }
        match pending.state.on_segment(&base.env.config.tcp, segment, now) {
            HalfOpenVerdict::Ignore => {}
            HalfOpenVerdict::Reply(outgoing) => {
                let tuple = pending.tuple;
                base.network
                    .reply(&mut base.env.counters, Reply::Segment(tuple, outgoing));
            }
            HalfOpenVerdict::Drop => self.forget_half_open(base, index),
            HalfOpenVerdict::Establish => {
                let (listener, tuple, state) =
                    (pending.listener, pending.tuple, pending.state.clone());
                if let Some(stream) = self.establish(base, listener, tuple, &state, now) {
                    if let Some(listener) = base
                        .sockets
                        .get_mut(listener)
                        .and_then(Socket::listener_mut)
                    {
                        listener.half_open -= 1;
                    }
                    self.half_open.remove(index);
                    self.stream_input(base, stream, segment, from, now);
                }
            }
        }
    }

    fn time_wait_input<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        tuple: &Tuple,
        segment: &Segment<'_>,
        now: Instant,
    ) {
        let Some(waiting) = self.time_wait.get_mut(index) else {
            return;
        };
        let deadline = waiting.state.deadline();
        let verdict = waiting.state.on_segment(&base.env.config.tcp, segment, now);
        let renewed = waiting.state.deadline() != deadline;
        match verdict {
            TimeWaitVerdict::Ignore => {}
            TimeWaitVerdict::Reply(outgoing) => base
                .network
                .reply(&mut base.env.counters, Reply::Segment(*tuple, outgoing)),
            TimeWaitVerdict::Reopen { after } => {
                if self.listener_for(base, tuple).is_some() {
                    self.forget_time_wait(base, index);
                    self.listener_input(base, tuple, segment, None, Some(after), now);
                    return;
                }
            }
        }
        if renewed {
            self.time_wait.renew(index);
        }
    }

    /// Forgets a connection in TIME-WAIT before its time.
    pub(crate) fn forget_time_wait<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
    ) -> Option<TimeWaitEntry> {
        let waiting = self.time_wait.remove(index)?;
        self.forget_tuple(base, &waiting.tuple);
        self.ports
            .remove_connection(waiting.tuple.local(), waiting.reuse);
        Some(waiting)
    }

    /// A segment that belongs to no connection (RFC 9293 3.10.7.1 and .2). `after`: our sequence
    /// numbers must lie beyond.
    fn listener_input<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        tuple: &Tuple,
        segment: &Segment<'_>,
        from: Option<Mac>,
        after: Option<Seq>,
        now: Instant,
    ) {
        let Some(listener) = self.listener_for(base, tuple) else {
            base.env.counters.tcp_no_socket += 1;
            self.reset(base, tuple, segment, now);
            return;
        };
        match segment.flags & (Flags::RST | Flags::ACK | Flags::SYN | Flags::FIN) {
            Flags::SYN => self.open_half(base, listener, tuple, segment, after, now),
            flags if flags.contains(Flags::RST) => {}
            // The segment that completes the handshake may carry payload and a FIN.
            flags
                if flags | Flags::FIN == Flags::ACK | Flags::FIN
                    && self.accept_cookie(base, listener, tuple, segment, from, now) => {}
            flags if flags.contains(Flags::ACK) => self.reset(base, tuple, segment, now),
            _ => {}
        }
    }

    /// Answers a SYN to a listener.
    fn open_half<M: Memory>(
        &mut self,
        base: &mut Base<M>,
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
        }) = base.sockets.get_mut(index)
        else {
            return;
        };
        // As on Linux: no new handshakes while those that are done cannot be handed over.
        let (asks, owner) = (listener.asks, *owner);
        let unasked = listener.requests.len() > listener.backlog.limit as usize;
        if unasked || listener.backlog.is_full(&base.memory, owner) {
            base.env.counters.listen_overflows += 1;
            return;
        }
        let Some(Socket { options, .. }) = base.sockets.get(index) else {
            return;
        };
        let Some(mut open) = self.open_parameters(base, tuple, options, now) else {
            base.env.counters.ip_no_route += 1;
            return;
        };
        if let Some(after) = after {
            open.begin_after(after);
        }
        if !self.half_open.has_room(owner) {
            base.env.counters.half_open_limited += u64::from(!self.half_open.is_full());
            // Whoever is asked first cannot be asked about a cookie.
            if asks {
                base.env.counters.listen_overflows += 1;
            } else {
                self.send_cookie(base, index, tuple, syn, open, now);
            }
            return;
        }
        let state = HalfOpen::new(&base.env.config.tcp, &options.tcp, open, syn, now);
        let fast = options.fast_open > 0 && !asks;
        let mut reply = state.reply(now);
        if fast {
            match self.judge_fast_open(base, index, tuple, syn) {
                Verdict::Early(another) => {
                    if self.open_early(base, index, (tuple, syn), &state, another, now) {
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
        if let Some(listener) = base.sockets.get_mut(index).and_then(Socket::listener_mut) {
            listener.half_open += 1;
        }
        if asks {
            self.note_request(base, index, half_open);
        } else {
            base.network
                .reply(&mut base.env.counters, Reply::Segment(*tuple, reply));
        }
    }

    /// Answers a SYN without remembering it.
    fn send_cookie<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        tuple: &Tuple,
        syn: &Segment<'_>,
        mut open: Open,
        now: Instant,
    ) {
        let Some(socket) = base.sockets.get_mut(index) else {
            return;
        };
        let options = socket.options.clone();
        let Some(listener) = socket.listener_mut() else {
            return;
        };
        listener.cookies_until = now + syn_cookie::LIFETIME;
        open.iss = syn_cookie::sequence(&base.env.secrets, tuple, syn, now);
        let mut reply =
            HalfOpen::new(&base.env.config.tcp, &options.tcp, open, syn, now).reply(now);
        match &mut reply.options.timestamps {
            Some(timestamps) => {
                let ecn = reply.flags.contains(Flags::ECE);
                timestamps.value = syn_cookie::timestamp(timestamps.value, &syn.options, ecn);
            }
            None => reply.flags.remove(Flags::ECE),
        }
        base.env.counters.cookies_sent += 1;
        base.network
            .reply(&mut base.env.counters, Reply::Segment(*tuple, reply));
    }

    /// Makes a connection of an ACK that brings a good cookie back; false when it does not.
    fn accept_cookie<M: Memory>(
        &mut self,
        base: &mut Base<M>,
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
        }) = base.sockets.get(index)
        else {
            return false;
        };
        if listener.cookies_until < now {
            return false;
        }
        let Some(syn) = syn_cookie::recall(&base.env.secrets, tuple, ack, now) else {
            base.env.counters.cookies_refused += 1;
            return false;
        };
        let Some(mut open) = self.open_parameters(base, tuple, options, now) else {
            return false;
        };
        open.iss = ack.ack - 1;
        let sent = syn_cookie::sent_at(ack, open.timestamp_offset, now);
        // The handshake is over: there is nothing to defer.
        let settings = Settings {
            defer_accept: 0,
            ..options.tcp
        };
        let mut state = HalfOpen::new(&base.env.config.tcp, &settings, open, &syn, sent);
        if state.on_segment(&base.env.config.tcp, ack, now) != HalfOpenVerdict::Establish {
            return false;
        }
        // When the listener has no room, the peer comes again.
        if let Some(stream) = self.establish(base, index, *tuple, &state, now) {
            base.env.counters.cookies_accepted += 1;
            self.stream_input(base, stream, ack, from, now);
        }
        true
    }

    /// The parameters of a new connection over `tuple`; `None` when there is no route.
    pub(crate) fn open_parameters<M: Memory>(
        &self,
        base: &Base<M>,
        tuple: &Tuple,
        options: &Options,
        now: Instant,
    ) -> Option<Open> {
        let mss = self.segment_size(base, tuple.remote_ip(), options)?;
        let numbers = base.env.secrets.numbers(tuple, now);
        Some(Open {
            iss: Seq(numbers.sequence),
            timestamp_offset: numbers.timestamp_offset,
            mss,
            default_mss: match tuple {
                Tuple::V4(_) => DEFAULT_SEGMENT_V4,
                Tuple::V6(_) => DEFAULT_SEGMENT_V6,
            },
            receive_limit: autotuning::first_limits(options, &base.env.config.buffers, mss).1,
        })
    }

    /// The largest segment that we announce to `remote`; `None` when there is no route.
    pub(crate) fn segment_size<M: Memory>(
        &self,
        base: &Base<M>,
        remote: IpAddr,
        options: &Options,
    ) -> Option<u16> {
        let mss = base.network.first_mtu(&base.env, remote)? - headers_len(remote);
        Some(options.tcp.max_segment.map_or(mss, |limit| limit.min(mss)))
    }

    /// The largest packet that is known to reach the peer of a connection.
    pub(crate) fn path_mtu<M: Memory>(
        &self,
        base: &Base<M>,
        id: SocketId,
        now: Instant,
    ) -> Result<u16, crate::Error> {
        let socket = base
            .sockets
            .get(base.check(id)?)
            .ok_or(crate::Error::NoSocket)?;
        let remote = match socket.stream() {
            Some(stream) if !socket.marks.contains(Marks::DEAD) => {
                stream.endpoints.tuple().remote_ip()
            }
            _ => return Err(crate::Error::NotConnected),
        };
        let first = base
            .network
            .first_mtu(&base.env, remote)
            .ok_or(crate::Error::NotConnected)?;
        let known = base.network.path_mtus.get(remote, now);
        Ok(known.map_or(first, |mtu| first.min(mtu)))
    }

    /// The fields of the IP headers of a segment without a socket.
    pub(crate) fn default_fields<M: Memory>(&self, base: &Base<M>, tuple: &Tuple) -> IpFields {
        self.fields(base, tuple, &Options::default())
    }

    /// The fields of the IP headers of a connection with these options.
    pub(crate) fn fields<M: Memory>(
        &self,
        base: &Base<M>,
        tuple: &Tuple,
        options: &Options,
    ) -> IpFields {
        let flow_label = match tuple {
            Tuple::V4(_) => 0,
            Tuple::V6(_) => base.env.secrets.flow_label(tuple),
        };
        IpFields::new(tuple, options, flow_label)
    }

    /// Answers a segment of no connection with a reset, within the limit.
    fn reset<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        tuple: &Tuple,
        segment: &Segment<'_>,
        now: Instant,
    ) {
        let Some(outgoing) = refuse(segment) else {
            return;
        };
        if !self.reset_limit.allow(now) {
            base.env.counters.resets_limited += 1;
            return;
        }
        base.env.counters.resets_out += 1;
        base.network
            .reply(&mut base.env.counters, Reply::Segment(*tuple, outgoing));
    }

    /// Takes the connection at `index` out of the tables: it is over, and its last segment is out.
    /// A socket that a program still holds keeps what was received.
    pub(crate) fn end_connection<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        now: Instant,
    ) {
        let Some(Socket {
            owner,
            marks,
            options,
            kind: Kind::Stream(stream),
        }) = base.sockets.get_mut(index)
        else {
            return;
        };
        let (tuple, reuse, owner) = (stream.endpoints.tuple(), options.reuse.address, *owner);
        self.wheel.cancel(index);
        stream.send.free(&mut base.send_memory, owner);
        let state = stream.connection.state();
        let time_wait = if state == State::TimeWait {
            stream.connection.time_wait(&base.env.config.tcp, now)
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
            stream.recv.free(&mut base.memory, owner);
        }
        if early {
            self.note_fast_open(base, index, now);
        }
        let Some(stream) = base.sockets.get_mut(index).and_then(Socket::stream_mut) else {
            return;
        };
        let waiting = time_wait.and_then(|state| {
            let timestamps = stream.connection.timestamps();
            let place = self.time_wait.insert(tuple, state, reuse, timestamps, now);
            if place.is_some() {
                base.env.counters.time_waits += 1;
            } else {
                base.env.counters.time_wait_overflow += 1;
            }
            place
        });
        match waiting {
            Some(waiting) => self.table.insert(tuple, Place::TimeWait(waiting)),
            None => {
                self.forget_tuple(base, &tuple);
                self.ports.remove_connection(tuple.local(), reuse);
            }
        }
        if orphan {
            base.sockets.discard(index);
            if counted {
                self.orphans.give(owner);
            }
        } else {
            base.mark_changed(index);
        }
    }

    /// Gives an error to the connection of a segment. The connection checks that the segment can be
    /// in flight (RFC 5927 4.1).
    pub(crate) fn connection_error<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        tuple: &Tuple,
        seq: Seq,
        error: IcmpError,
        now: Instant,
    ) {
        let index = match self.table.get(tuple) {
            None if base.is_misrouted(tuple) => return,
            Some(Place::Stream(index)) => index,
            // A half-open connection waits for its timer, TIME-WAIT for its end.
            _ => {
                base.env.counters.icmp_errors_unmatched += 1;
                return;
            }
        };
        base.env.counters.icmp_errors_in += 1;
        let socket = base.sockets.get_mut(index);
        if let Some(stream) = socket.and_then(|socket| socket.stream_mut()) {
            let config = &base.env.config.tcp;
            let believed = stream.connection.on_icmp(config, error, seq, now);
            if believed && matches!(error, IcmpError::FragmentationNeeded { .. }) {
                let remote: IpAddr = stream.endpoints.tuple().remote_ip();
                let mtu = stream.connection.path_max_segment() + headers_len(remote);
                let learned = base.network.path_mtus.learn(remote, mtu, now);
                base.env.counters.paths_refused += u64::from(!learned);
            }
        }
        self.apply_state_change(base, index);
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
