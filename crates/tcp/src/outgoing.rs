//! Segments to send, as the connection describes them: header fields and a range of the stream.

use std::ops::Range;

use millrace_wire::tcp::{Flags, Header, Options, Segment, Seq, Timestamps};

/// Limits of one [`Outgoing`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most payload, in bytes. More than a segment's worth means that a lower layer cuts it
    /// into segments (TSO). At least one segment is sent whatever the limit.
    pub max_payload: u32,
}

/// A segment to send, or a run of segments to be cut from one payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Sequence number of the first payload byte, or of SYN.
    pub seq: Seq,
    /// Acknowledgement number; valid with [`Flags::ACK`].
    pub ack: Seq,
    /// Control bits. FIN and PSH belong on the last segment of a run.
    pub flags: Flags,
    /// Window as on the wire, scaled down.
    pub window: u16,
    /// Urgent pointer; valid with [`Flags::URG`].
    pub urgent: u16,
    /// The network may mark it instead of dropping it: it is sent as ECT(0) (RFC 3168 5).
    pub may_mark: bool,
    /// Options, on every segment of a run.
    pub options: Options,
    /// Stream offsets of the payload; empty for none.
    pub payload: Range<u64>,
    /// Bytes of payload in each segment; the last may be shorter. Never 0.
    pub segment_size: u16,
}

impl Outgoing {
    /// The header of the first segment.
    pub fn header(&self, src_port: u16, dst_port: u16) -> Header {
        Header {
            src_port,
            dst_port,
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: self.urgent,
            options: self.options,
        }
    }

    /// Payload length in bytes.
    pub fn payload_len(&self) -> usize {
        (self.payload.end - self.payload.start) as usize
    }

    /// A segment without payload or options.
    pub(crate) fn control(seq: Seq, ack: Seq, flags: Flags, window: u16) -> Outgoing {
        Outgoing {
            seq,
            ack,
            flags,
            window,
            urgent: 0,
            may_mark: false,
            options: Options::default(),
            payload: 0..0,
            segment_size: 1,
        }
    }
}

/// The RST that answers a segment without a connection; `None` for a RST (RFC 9293 3.10.7.1). It
/// echoes the segment's timestamp, if it has one (RFC 7323 5.2).
pub fn refuse(segment: &Segment<'_>) -> Option<Outgoing> {
    if segment.flags.contains(Flags::RST) {
        return None;
    }
    let mut reset = if segment.flags.contains(Flags::ACK) {
        Outgoing::control(segment.ack, Seq(0), Flags::RST, 0)
    } else {
        let ack = segment.seq + segment.sequence_len();
        Outgoing::control(Seq(0), ack, Flags::RST | Flags::ACK, 0)
    };
    reset.options.timestamps = segment.options.timestamps.map(|stamps| Timestamps {
        value: 0,
        echo: stamps.value,
    });
    Some(reset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(flags: Flags, payload: &[u8]) -> Segment<'_> {
        Segment {
            src_port: 1,
            dst_port: 2,
            seq: Seq(100),
            ack: Seq(300),
            flags,
            window: 0,
            urgent: 0,
            marked: false,
            options: Options::default(),
            payload,
        }
    }

    #[test]
    fn a10_rst_is_never_answered_with_rst() {
        assert_eq!(refuse(&segment(Flags::RST, b"")), None);
        assert_eq!(refuse(&segment(Flags::all(), b"x")), None);
    }

    #[test]
    fn rfc9293_3_10_7_1_segment_without_a_connection() {
        let with_ack = refuse(&segment(Flags::ACK, b"xy")).expect("a reply");
        assert_eq!((with_ack.seq, with_ack.flags), (Seq(300), Flags::RST));
        let without = refuse(&segment(Flags::SYN | Flags::FIN, b"xy")).expect("a reply");
        assert_eq!((without.seq, without.ack), (Seq(0), Seq(104)));
        assert_eq!(without.flags, Flags::RST | Flags::ACK);
    }

    #[test]
    fn rfc7323_5_2_a_reset_echoes_the_timestamp_of_what_it_answers() {
        for flags in [Flags::ACK, Flags::SYN] {
            let mut stamped = segment(flags, b"");
            stamped.options.timestamps = Some(Timestamps { value: 7, echo: 9 });
            let reset = refuse(&stamped).expect("a reply");
            let echoed = Timestamps { value: 0, echo: 7 };
            assert_eq!(reset.options.timestamps, Some(echoed));
            let unstamped = refuse(&segment(flags, b"")).expect("a reply");
            assert_eq!(unstamped.options, Options::default());
        }
    }
}
