//! TCP's options: whatever stands there is read without harm, and what was read is written and read
//! alike.

use millrace_wire::tcp::{self, Segment};

/// The first byte is the flags, the rest the options, 40 bytes at most.
pub fn run(data: &[u8]) {
    let (flags, options) = data
        .split_first()
        .map_or((0, data), |(first, rest)| (*first, rest));
    let options = &options[..options.len().min(tcp::MAX_HEADER_LEN - tcp::HEADER_LEN)];
    let mut bytes = vec![0; tcp::HEADER_LEN];
    bytes.extend_from_slice(options);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes[12] = ((bytes.len() / 4) as u8) << 4;
    bytes[13] = flags;
    let read = Segment::parse(&bytes).expect("its length is right").options;
    let header = tcp::Header {
        src_port: 0,
        dst_port: 0,
        seq: tcp::Seq(0),
        ack: tcp::Seq(0),
        flags: tcp::Flags::from_bits_retain(flags),
        window: 0,
        urgent: 0,
        options: read,
    };
    let mut again = vec![0; header.header_len()];
    header.emit(&mut again);
    let again = Segment::parse(&again).expect("what we write can be read");
    assert_eq!(again.options, read);
}
