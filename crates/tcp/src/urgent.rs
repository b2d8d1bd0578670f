//! Urgent data as in Linux (RFC 9293 3.8.5, RFC 6093): a mark on one byte of the stream.
//!
//! The marked byte is the last one before the position of the urgent pointer. It stays in the
//! stream; its reader decides whether to deliver it out of line.

/// The marks of both directions, as stream offsets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Urgent {
    /// SND.UP: end of what we announced as urgent; 0 if nothing.
    sent: u64,
    /// The latest byte that the peer announced as urgent.
    received: Option<u64>,
}

impl Urgent {
    /// The byte before `end` is urgent.
    pub(crate) fn send(&mut self, end: u64) {
        self.sent = end;
    }

    /// Whether an urgent byte is queued or in flight; `una` is SND.UNA.
    #[inline]
    pub(crate) fn is_pending(&self, una: u64) -> bool {
        self.sent > una
    }

    /// The latest byte that the peer announced as urgent.
    #[inline]
    pub(crate) fn received(&self) -> Option<u64> {
        self.received
    }

    /// The urgent pointer of a segment that begins at `start`; `nxt` is SND.NXT. `None` if the
    /// segment begins after the urgent byte, or lies too far before it. A mark out of the field's
    /// reach is announced as the field's maximum, once that points beyond all that was sent.
    #[cold]
    pub(crate) fn pointer(&self, start: i64, nxt: u64) -> Option<u16> {
        let end = self.sent as i64;
        if start >= end {
            return None;
        }
        let within = u16::try_from(end - start).ok();
        within.or((start + 0xffff > nxt as i64).then_some(0xffff))
    }

    /// The peer announces the byte at `mark` as urgent; `nxt` is RCV.NXT. Returns whether that is
    /// news: a byte that was received, or lies before an earlier mark, is none (RFC 6093 2.2).
    pub(crate) fn on_mark(&mut self, mark: i64, nxt: u64) -> bool {
        let news = mark >= nxt as i64 && self.received.is_none_or(|known| mark > known as i64);
        if news {
            self.received = Some(mark as u64);
        }
        news
    }
}
