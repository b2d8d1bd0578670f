//! The fast path in: a frame of the kind that nearly all are, and header prediction (Van Jacobson).

use std::net::Ipv4Addr;

use millrace_tcp::{Events, Instant};
use millrace_wire::checksum::Sum;
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ipv4;
use millrace_wire::offload::{ChecksumState, Frame};
use millrace_wire::tcp::{PROTOCOL as PROTOCOL_TCP, PlainSegment};

use crate::base::Base;
use crate::connection_table::Pair;
use crate::ip::family::is_marked;
use crate::memory::Memory;
use crate::socket::note_changed;
use crate::socket::receive_ring::Sink;
use crate::socket::{Kind, Marks, SocketId};
use crate::tcp::state::Tcp;

/// The position of TCP in a frame whose IPv4 header has no options.
const HEADS_LEN: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

impl Tcp {
    /// Processes a frame with a TCP segment in a whole IPv4 packet without options, if everything
    /// that is checked here is in order. Returns false for any other frame; then nothing has
    /// changed, and the slow path finds out what is wrong with it.
    #[inline]
    pub(crate) fn fast_path_input<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        frame: &Frame<'_>,
        now: Instant,
    ) -> bool {
        let Some((heads, rest)) = frame.bytes.split_first_chunk::<HEADS_LEN>() else {
            return false;
        };
        let word = |at: usize| {
            u32::from_be_bytes([heads[at], heads[at + 1], heads[at + 2], heads[at + 3]])
        };
        let (first, second, third) = (word(14), word(18), word(22));
        let (src, dst) = (word(26), word(30));
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *heads;
        let total_len = (first & 0xffff) as usize;
        let expected = Mac([d0, d1, d2, d3, d4, d5]) == base.env.config.mac
            && heads[12..14] == EtherType::IPV4.0.to_be_bytes()
            // Version and header length; no fragment; protocol; hops left.
            && first >> 24 == 0x45
            && second & 0x3fff == 0
            && third >> 16 & 0xff == u32::from(PROTOCOL_TCP)
            && third >> 24 != 0
            && total_len >= ipv4::HEADER_LEN
            && total_len - ipv4::HEADER_LEN <= rest.len();
        if !expected || !Sum::of(&heads[ethernet::HEADER_LEN..]).is_valid() {
            return false;
        }
        let (local, remote) = (Ipv4Addr::from(dst), Ipv4Addr::from(src));
        let from = Mac([s0, s1, s2, s3, s4, s5]);
        let marked = is_marked((first >> 16) as u8);
        let bytes = &rest[..total_len - ipv4::HEADER_LEN];
        let addresses = Sum::of(&heads[HEADS_LEN - 8..]);
        let pseudo = Sum::word(u16::from(PROTOCOL_TCP)) + Sum::word(bytes.len() as u16);
        let checksum = match frame.checksum {
            ChecksumState::Unchecked if (addresses + pseudo + Sum::of(bytes)).is_valid() => {
                ChecksumState::Valid
            }
            known => known,
        };
        if checksum != ChecksumState::Unchecked
            && let Some(mut segment) = PlainSegment::parse(bytes)
            // The addresses of a connection were checked when it was made.
            && let Some(index) = self.table.stream_v4(&Pair {
                local,
                remote,
                local_port: segment.dst_port,
                remote_port: segment.src_port,
            })
        {
            segment.marked = marked;
            if self.predicted_input::<M, false>(base, index, &segment, from, now)
                || self.predicted_input::<M, true>(base, index, &segment, from, now)
            {
                base.env.counters.segments_in += 1;
                return true;
            }
        }
        if !base.network.v4.takes(local) || !base.network.v4.is_valid_source(remote) {
            return false;
        }
        self.tcp_input(base, (local, remote), bytes, (checksum, marked), from, now);
        true
    }

    /// Processes a segment from the link if it is the next one that the connection at `index`
    /// expects (header prediction). Returns false for any other segment, with nothing changed.
    /// `LAST`: expects a segment that ends the connection, such as a FIN. Each of the two is a
    /// function of its own, so that each has all registers.
    #[inline(never)]
    pub(crate) fn predicted_input<M: Memory, const LAST: bool>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        segment: &PlainSegment<'_>,
        from: Mac,
        now: Instant,
    ) -> bool {
        let Some((socket, generation)) = base.sockets.get_mut_with_generation(index) else {
            return false;
        };
        let marks = socket.marks;
        let Kind::Stream(stream) = &mut socket.kind else {
            return false;
        };
        // Nobody on the link speaks for this host.
        if marks.contains(Marks::LOCAL) {
            return false;
        }
        let mut sink = Sink {
            ring: &mut stream.recv,
            memory: &mut base.memory,
            owner: socket.owner,
            open: !marks.contains(Marks::ORPHAN),
            counters: &mut base.env.counters,
        };
        let config = &base.env.config.tcp;
        let connection = &mut stream.connection;
        let taken = match LAST {
            false => connection.on_predicted_segment(config, segment, &mut sink, now),
            true => connection.on_predicted_closing_segment(config, segment, &mut sink, now),
        };
        if !taken {
            return false;
        }
        let events = stream.connection.take_events();
        if events.contains(Events::WRITABLE) {
            base.network.neighbours.confirm(stream.hop, from, now);
            if stream.send.release(
                stream.connection.acked(),
                &mut base.send_memory,
                socket.owner,
            ) && socket.options.send_buffer.is_none()
            {
                stream.tune_send(&base.env.config.buffers);
            }
        }
        if !(events - (Events::READABLE | Events::WRITABLE)).is_empty() {
            base.env.counters.note(events, marks);
            socket.note(events, &base.env.config.buffers, &mut base.send_memory);
        }
        if !events.is_empty() {
            note_changed(&mut base.changed, SocketId::new(index, generation), socket);
        }
        self.ready.add(index, socket);
        true
    }
}
