//! The two sequence spaces of RFC 9293 3.3.1, as stream offsets. Sequence numbers exist at the edge
//! only, so that nothing wraps inside. Offset 0 is the first byte after SYN; a FIN takes the offset
//! after the last byte.

use millrace_wire::tcp::Seq;

/// The send sequence space. Offsets and amounts are in bytes.
#[derive(Clone, Debug)]
pub(crate) struct SendSpace {
    /// Sequence number of offset 0: ISS + 1.
    base: Seq,
    /// SND.UNA: first byte not acknowledged.
    pub(crate) una: u64,
    /// SND.NXT: first byte never sent. It does not go back when bytes are sent again.
    pub(crate) nxt: u64,
    /// End of what the program has queued.
    pub(crate) end: u64,
    /// End of the last segment sent that was not full (Minshall's refinement of Nagle's algorithm).
    pub(crate) small_end: u64,
    /// SND.WND, in bytes from `una`.
    pub(crate) window: u32,
    /// The largest window that the peer has announced.
    pub(crate) max_window: u32,
    /// SND.WL1: sequence number of the segment that set `window`. `una` stands for SND.WL2, the
    /// acknowledgement number of that segment: SND.WL2 is never beyond it, and an older
    /// acknowledgement number sets no window.
    pub(crate) wl1: Seq,
    /// Payload of a full segment: timestamps are subtracted.
    pub(crate) mss: u16,
    /// The largest segment that the peer takes and the path carries: options are not subtracted.
    pub(crate) segment_limit: u16,
    /// Shift of the windows that the peer announces.
    pub(crate) scale: u8,
    /// FIN is queued, at offset `end`.
    pub(crate) fin: bool,
    /// The program announced more to follow (MSG_MORE).
    pub(crate) more: bool,
    /// A short segment was held back long enough and may leave.
    pub(crate) forced: bool,
}

impl SendSpace {
    pub(crate) fn new(iss: Seq, mss: u16) -> SendSpace {
        SendSpace {
            base: iss + 1,
            una: 0,
            nxt: 0,
            end: 0,
            small_end: 0,
            window: 0,
            max_window: 0,
            wl1: Seq(0),
            mss,
            segment_limit: mss,
            scale: 0,
            fin: false,
            more: false,
            forced: false,
        }
    }

    /// Initial sequence number.
    pub(crate) fn iss(&self) -> Seq {
        self.base - 1
    }

    /// Sequence number of an offset.
    pub(crate) fn seq(&self, offset: u64) -> Seq {
        self.base + offset as u32
    }

    /// Offset of a sequence number, the one nearest to `una`; negative before SYN.
    pub(crate) fn offset(&self, seq: Seq) -> i64 {
        self.una as i64 + i64::from(seq - self.seq(self.una))
    }

    /// Bytes sent and not acknowledged, FIN included.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.nxt - self.una) as u32
    }

    /// Whether FIN has been acknowledged.
    pub(crate) fn fin_acked(&self) -> bool {
        self.fin && self.una > self.end
    }

    /// Whether something is queued that was never sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.nxt < self.end + u64::from(self.fin)
    }

    /// Bytes that may still be sent within the peer's window; 0 if the peer took back some of it.
    pub(crate) fn usable(&self) -> u32 {
        self.window.saturating_sub(self.in_flight())
    }

    /// Takes the window of an acceptable segment, before its acknowledgement is processed. Returns
    /// whether the window changed. RFC 9293 3.10.7.4, fifth: "Note that SND.WND is an offset from
    /// SND.UNA, that SND.WL1 records the sequence number of the last segment used to update
    /// SND.WND", so that an old segment cannot change it.
    #[inline(always)]
    pub(crate) fn update_window(&mut self, seq: Seq, ack: Seq, raw: u16) -> bool {
        if self.wl1.after(seq) || (self.wl1 == seq && self.seq(self.una).after(ack)) {
            return false;
        }
        self.wl1 = seq;
        let window = u32::from(raw) << self.scale;
        let changed = window != self.window;
        self.window = window;
        self.max_window = self.max_window.max(window);
        changed
    }
}

/// The receive sequence space. Offsets and amounts are in bytes.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveSpace {
    /// Sequence number of offset 0: IRS + 1.
    base: Seq,
    /// RCV.NXT: first byte not received in order. It includes the FIN once that is received.
    pub(crate) nxt: u64,
    /// The program has read up to here. The low half of an offset suffices: no buffer is larger.
    pub(crate) consumed: Seq,
    /// Offset of the peer's FIN, `u64::MAX` until it is known.
    pub(crate) fin: u64,
    /// Right edge of the announced window, which never moves left. The low half of an offset
    /// suffices: no window is larger than 2^30 bytes (RFC 7323 2.3).
    edge: Seq,
    /// Last.ACK.sent: the low half of an offset at or before `nxt`.
    pub(crate) acked: Seq,
    /// Receive buffer in bytes: the window reaches so far beyond `consumed`.
    pub(crate) limit: u32,
    /// Payload of the peer's full segments, as observed.
    pub(crate) mss: u16,
    /// Shift of the windows that we announce.
    pub(crate) scale: u8,
}

impl ReceiveSpace {
    pub(crate) fn new(limit: u32, scale: u8, mss: u16) -> ReceiveSpace {
        ReceiveSpace {
            base: Seq(0),
            nxt: 0,
            consumed: Seq(0),
            fin: u64::MAX,
            edge: Seq(limit.min(0xffff)),
            acked: Seq(0),
            limit,
            mss: mss.min(536),
            scale,
        }
    }

    /// The peer's SYN arrived.
    pub(crate) fn start(&mut self, irs: Seq) {
        self.base = irs + 1;
    }

    /// Sequence number of an offset.
    pub(crate) fn seq(&self, offset: u64) -> Seq {
        self.base + offset as u32
    }

    /// Offset of a sequence number, the one nearest to `nxt`; negative at SYN and before.
    pub(crate) fn offset(&self, seq: Seq) -> i64 {
        self.nxt as i64 + i64::from(seq - self.seq(self.nxt))
    }

    /// The acceptability test of RFC 9293 3.10.7.4, first, for a segment with `len` sequence
    /// numbers from `seq` on. Two kinds of segments are acceptable besides. One begins after the
    /// last acknowledgement sent and ends before RCV.NXT: it was merely overtaken and needs no
    /// answer. One reaches RCV.NXT while the window is zero: its acknowledgement is taken, and its
    /// payload trimmed.
    #[inline]
    pub(crate) fn accepts(&self, seq: Seq, len: u32) -> bool {
        let start = self.offset(seq);
        let nxt = self.nxt as i64;
        let low = nxt - i64::from(self.unacked());
        let high = nxt + i64::from(self.window());
        let begins_inside = low <= start && start < high;
        let ends_inside = start < high && start + i64::from(len) > nxt;
        start == nxt || begins_inside || ends_inside
    }

    /// End of the payload received in order, without the FIN.
    pub(crate) fn received(&self) -> u64 {
        self.nxt.min(self.fin)
    }

    /// RCV.WND: the rest of the announced window.
    pub(crate) fn window(&self) -> u32 {
        (self.edge - Seq(self.nxt as u32)).max(0) as u32
    }

    /// Right edge of the announced window, as a whole offset.
    pub(crate) fn edge(&self) -> u64 {
        let ahead = self.edge - Seq(self.nxt as u32);
        self.nxt.wrapping_add_signed(i64::from(ahead))
    }

    /// Bytes received since the last acknowledgement was sent.
    #[inline]
    pub(crate) fn unacked(&self) -> u32 {
        (self.nxt as u32).wrapping_sub(self.acked.0)
    }

    /// The window that the free buffer space allows.
    pub(crate) fn space(&self) -> u32 {
        self.limit.saturating_sub(self.unread())
    }

    /// Received sequence numbers that the program has not read. A FIN counts, and is never read.
    #[inline]
    pub(crate) fn unread(&self) -> u32 {
        (self.nxt as u32).wrapping_sub(self.consumed.0)
    }

    /// The bytes that the program has newly read when it has read up to the offset `upto`. That is
    /// a whole offset: its low half could not tell what was read 2^31 bytes ago from what is still
    /// to come.
    #[inline]
    pub(crate) fn more_read(&self, upto: u64) -> u32 {
        let received = self.received();
        let consumed = self.nxt - u64::from(self.unread());
        upto.min(received).saturating_sub(consumed) as u32
    }

    /// Whether payload has been received that the program has not read.
    pub(crate) fn has_unread(&self) -> bool {
        self.received() as u32 != self.consumed.0
    }

    /// The window of a SYN or SYN-ACK, which is not scaled.
    pub(crate) fn announce_on_syn(&mut self) -> u16 {
        let window = self.space().min(0xffff);
        let nxt = Seq(self.nxt as u32);
        if (nxt + window).after(self.edge) {
            self.edge = nxt + window;
        }
        self.acked = nxt;
        window as u16
    }

    /// The window field to announce now, scaled. The right edge moves only by a segment or by half
    /// the buffer, whichever is less (silly-window avoidance, RFC 9293 3.8.6.2.2).
    #[inline(always)]
    pub(crate) fn announce(&mut self, scale: u8) -> u16 {
        // All amounts count from RCV.NXT.
        let nxt = Seq(self.nxt as u32);
        let ahead = i64::from(self.edge - nxt);
        let most = i64::from(self.limit) - i64::from(self.unread());
        let step = i64::from(u32::from(self.mss).min(self.limit / 2));
        let target = if most >= ahead + step { most } else { ahead };
        let mut field = target.max(0) >> scale;
        // What the scale cannot express is rounded down. If that took back announced window, it is
        // rounded up, if there is room.
        if field << scale < ahead && (field + 1) << scale <= most {
            field += 1;
        }
        let field = field.min(0xffff);
        let announced = field << scale;
        if announced > ahead {
            self.edge = nxt + announced as u32;
        }
        self.acked = nxt;
        field as u16
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_read_long_ago_is_nothing_new() {
        let mut space = receive(1 << 20, 7);
        space.nxt = 5 << 30;
        space.consumed = Seq((space.nxt - 1000) as u32);
        assert_eq!(space.more_read(space.nxt - 400), 600);
        assert_eq!(space.more_read(space.nxt + 400), 1000, "no more than came");
        for ago in [1000, 1001, 1 << 30, 1 << 31, 3 << 30, 5 << 30] {
            assert_eq!(space.more_read(space.nxt - ago), 0, "{ago} bytes ago");
        }
    }

    fn receive(limit: u32, scale: u8) -> ReceiveSpace {
        let mut space = ReceiveSpace::new(limit, scale, 1_460);
        space.mss = 1_460;
        space
    }

    #[test]
    fn rfc9293_3_8_6_2_2_window_opens_in_steps() {
        let mut space = receive(10_000, 0);
        space.nxt = 10_000;
        assert_eq!(space.announce(0), 0);
        space.consumed = Seq(1_459);
        assert_eq!(space.announce(0), 0);
        space.consumed = Seq(1_460);
        assert_eq!(space.announce(0), 1_460);
    }

    #[test]
    fn rfc9293_3_8_6_right_edge_never_moves_left() {
        let mut space = receive(65_535, 0);
        assert_eq!(space.announce(0), 65_535);
        space.nxt = 1_000;
        space.limit = 10_000;
        assert_eq!(space.announce(0), 64_535);
        assert_eq!(space.edge(), 65_535);
    }

    #[test]
    fn rfc7323_2_4_what_the_scale_cannot_express() {
        let mut space = receive(1 << 20, 7);
        assert_eq!(u32::from(space.announce(7)) << 7, 1 << 20);
        space.nxt = 1_000;
        // Without room to round up the announcement falls short by less than 128 bytes, and the
        // edge stays.
        assert_eq!(
            u32::from(space.announce(7)) << 7,
            ((1 << 20) - 1_000) / 128 * 128
        );
        assert_eq!(space.edge(), 1 << 20);
        space.consumed = Seq(500);
        assert_eq!(
            u32::from(space.announce(7)) << 7,
            ((1u32 << 20) - 1_000).div_ceil(128) * 128
        );
    }

    proptest! {
        /// A segment is acceptable if it shares a sequence number with the window, or is empty and
        /// lies in it. An empty one may also lie after the last acknowledgement.
        #[test]
        fn rfc9293_3_10_7_4_acceptability(
            base: u32, nxt in 0u64..1 << 33, unacked in 0u64..50, window in 0u64..100, start in -120i64..120, len in 0u32..60,
        ) {
            let mut space = receive(1_000, 0);
            space.start(Seq(base));
            let acked = nxt.saturating_sub(unacked);
            (space.nxt, space.acked, space.edge) = (nxt, Seq(acked as u32), Seq((nxt + window) as u32));
            let first = nxt as i64 + start;
            let seq = space.seq(0) + first as u32;
            let in_window = |at: i64| (nxt as i64..(nxt + window) as i64).contains(&at);
            let shares = (first..first + i64::from(len)).any(in_window);
            let empty_inside = len == 0 && in_window(first);
            let exact = start == 0 || (window == 0 && start < 0 && start + i64::from(len) > 0);
            let overtaken = first >= acked as i64 && first < nxt as i64 ;
            prop_assert_eq!(space.accepts(seq, len), shares || empty_inside || exact || overtaken);
        }

        #[test]
        fn d4_offsets_and_sequence_numbers_agree(base: u32, una in 0u64..1 << 40, distance in -(1i64 << 30)..1 << 30) {
            let mut space = SendSpace::new(Seq(base), 1_000);
            (space.una, space.nxt) = (una, una);
            let offset = una as i64 + distance;
            let seq = Seq(base) + 1 + offset as u32;
            prop_assert_eq!(space.offset(seq), offset);
        }

        #[test]
        fn rfc9293_3_8_6_what_was_announced_stands(
            scale in 0u8..8, limit in 1u32..1 << 22, steps in proptest::collection::vec((0u64..70_000, 0u64..70_000), 1..50),
        ) {
            let mut space = receive(limit, scale);
            let mut consumed = 0;
            for (arrive, read) in steps {
                let edge = space.edge();
                space.nxt += arrive.min(edge - space.nxt);
                consumed = (consumed + read).min(space.nxt);
                space.consumed = Seq(consumed as u32);
                let announced = u64::from(space.announce(scale)) << scale;
                prop_assert!(space.edge() >= edge);
                prop_assert!(space.nxt + announced <= space.edge());
                prop_assert!(space.edge() - (space.nxt + announced) < 1 << scale || announced == 0xffff << scale);
                prop_assert!(space.edge() <= (consumed + u64::from(limit)).max(edge));
                prop_assert_eq!(space.unacked(), 0);
            }
        }
    }

    #[test]
    fn f6_old_segment_cannot_change_the_window() {
        let mut space = SendSpace::new(Seq(0), 1_000);
        (space.una, space.nxt) = (9, 20);
        assert!(space.update_window(Seq(100), Seq(10), 500));
        assert!(!space.update_window(Seq(99), Seq(11), 1));
        assert!(!space.update_window(Seq(100), Seq(9), 1));
        assert_eq!(space.window, 500);
        assert!(space.update_window(Seq(100), Seq(10), 600));
    }

    #[test]
    fn d4_offsets_across_the_wrap() {
        let mut space = SendSpace::new(Seq(0xffff_fff0), 1_000);
        (space.una, space.nxt) = (10, 30);
        assert_eq!(space.seq(30), Seq(15));
        assert_eq!(space.offset(Seq(15)), 30);
        assert_eq!(space.offset(Seq(0xffff_fff0)), -1);
        (space.una, space.nxt) = ((1 << 32) + 10, (1 << 32) + 30);
        assert_eq!(space.offset(Seq(15)), (1 << 32) + 30);
    }
}
