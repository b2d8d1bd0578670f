//! The load: a client's end of a connection that asks again as soon as it is answered. It knows no
//! loss, no timer and no option, so it costs little; what it sends is as complete as what any host
//! sends.

use std::net::Ipv4Addr;

use millrace_wire::checksum::{Sum, pseudo_v4};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ipv4;
use millrace_wire::tcp::{
    CHECKSUM_OFFSET, Flags, HEADER_LEN, Header, Options, PROTOCOL, Segment, Seq,
};

/// Where the server listens.
pub const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 2), 80);
/// The server's station.
pub const SERVER_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// The station that all clients are behind.
pub const CLIENT_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Where TCP begins in a frame, and where its payload begins in one of a client's.
const TCP: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
const PAYLOAD: usize = TCP + HEADER_LEN;
/// The longest frame of a client, in bytes.
pub const FRAME_MAX: usize = 1514;
/// The longest message, in bytes: one segment.
pub const MESSAGE_MAX: usize = FRAME_MAX - PAYLOAD;

/// One connection's client.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Its port, which tells it from the others.
    pub port: u16,
    message: u16,
    /// What it sends next.
    seq: Seq,
    /// What it expects next.
    ack: Seq,
    is_connected: bool,
    /// Bytes of the answer that it has.
    received: usize,
}

impl Client {
    /// One that sends messages of so many bytes, [`MESSAGE_MAX`] at most.
    pub fn new(port: u16, message: usize) -> Client {
        Client {
            port,
            message: message.min(MESSAGE_MAX) as u16,
            seq: Seq(u32::from(port) << 8),
            ack: Seq(0),
            is_connected: false,
            received: 0,
        }
    }

    /// Writes its SYN; returns the frame's length.
    pub fn open(&mut self, out: &mut [u8; FRAME_MAX]) -> usize {
        let len = self.segment(Flags::SYN, 0, out);
        self.seq += 1;
        len
    }

    /// Takes in a segment of the server's, in two parts: the frame up to TCP's payload, and how
    /// long that is. Once the answer is whole the next request is written, and the frame's length
    /// returned.
    pub fn on_segment(
        &mut self,
        head: &[u8],
        payload: usize,
        out: &mut [u8; FRAME_MAX],
    ) -> Option<usize> {
        let segment = Segment::parse(&head[TCP..]).expect("our own stack's");
        assert!(!segment.flags.contains(Flags::RST), "{segment:?}");
        if segment.flags.contains(Flags::SYN) && !self.is_connected {
            self.is_connected = true;
            self.ack = segment.seq + 1;
        } else {
            // Nothing is lost here: what comes again was sent again because a thread had no core
            // for long.
            if payload == 0 || segment.seq != self.ack {
                return None;
            }
            self.ack += payload as u32;
            self.received += payload;
            if self.received < usize::from(self.message) {
                return None;
            }
            self.received = 0;
        }
        let len = self.segment(Flags::ACK | Flags::PSH, self.message.into(), out);
        self.seq += u32::from(self.message);
        Some(len)
    }

    fn segment(&self, flags: Flags, payload: usize, out: &mut [u8; FRAME_MAX]) -> usize {
        let len = PAYLOAD + payload;
        let header = ethernet::Header {
            dst: SERVER_MAC,
            src: CLIENT_MAC,
            ethertype: EtherType::IPV4,
        };
        header.emit(out);
        let header = ipv4::Header::new(CLIENT, SERVER.0, PROTOCOL, (HEADER_LEN + payload) as u16);
        header.emit(&mut out[ethernet::HEADER_LEN..]);
        let header = Header {
            src_port: self.port,
            dst_port: SERVER.1,
            seq: self.seq,
            ack: self.ack,
            flags,
            window: u16::MAX,
            urgent: 0,
            options: Options::default(),
        };
        header.emit(&mut out[TCP..]);
        out[PAYLOAD..len].fill(0x5a);
        let pseudo = pseudo_v4(CLIENT, SERVER.0, PROTOCOL, (HEADER_LEN + payload) as u16);
        let sum = (pseudo + Sum::of(&out[TCP..len])).finish();
        out[TCP + CHECKSUM_OFFSET..][..2].copy_from_slice(&sum.to_be_bytes());
        len
    }
}
