//! A connection that is taken to one of the states, and then whatever may be said to it.

use millrace_shard::{How, SocketId};
use millrace_wire::tcp::{self, Flags};

use crate::bytes::Bytes;
use crate::host::{Host, THEIRS};
use crate::stack::segment;

const PORT: u16 = 80;
/// The peer's port and first number.
const PEER: (u16, u32) = (1000, 77);
/// Segments of one input, at most.
const STEPS: usize = 100;

/// The first byte chooses the state, the others the segments.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut host = Host::new();
    let sockets = reach(&mut host, bytes.u8());
    for _ in 0..STEPS {
        if bytes.is_empty() {
            break;
        }
        segment(&mut host, &mut bytes);
        if bytes.u8() & 7 == 0 {
            host.wait(1 << (bytes.u8() % 28));
        }
    }
    host.end(&sockets);
}

/// The sockets, of which the last one's connection is in the state.
fn reach(host: &mut Host, state: u8) -> Vec<SocketId> {
    let state = state % 11;
    let (ack, fin) = (Flags::ACK, Flags::FIN | Flags::ACK);
    let mut sockets = Vec::new();
    if state == 0 {
        // SYN-SENT
        sockets.extend(host.connect(THEIRS, PORT));
        return sockets;
    }
    let listener = host.listen(PORT);
    sockets.extend(listener);
    if state == 1 {
        // LISTEN
        return sockets;
    }
    say(host, Flags::SYN, 0, 0);
    if state == 2 {
        // SYN-RECEIVED
        return sockets;
    }
    say(host, ack, 1, 0);
    let accepted = listener.and_then(|listener| host.shard.accept(listener).ok());
    let Some(id) = accepted else {
        return sockets;
    };
    sockets.push(id);
    let shut = |host: &mut Host| {
        let now = host.now();
        let _ = host.shard.shutdown(id, How::Write, now);
        host.settle();
    };
    match state {
        // FIN-WAIT-1, FIN-WAIT-2, CLOSING, TIME-WAIT
        4 => shut(host),
        5 => {
            shut(host);
            say(host, ack, 1, 0);
        }
        6 => {
            shut(host);
            say(host, fin, 1, 1);
        }
        7 => {
            shut(host);
            say(host, fin, 1, 0);
        }
        // CLOSE-WAIT, LAST-ACK
        8 => say(host, fin, 1, 0),
        9 => {
            say(host, fin, 1, 0);
            shut(host);
        }
        // ESTABLISHED, with data out
        10 => {
            let _ = host.shard.send(id, &[7; 5_000], true);
            host.settle();
        }
        _ => {}
    }
    sockets
}

/// A segment `ahead` of the peer's first number, that acknowledges all but `short` of what the host
/// has said.
fn say(host: &mut Host, flags: Flags, ahead: u32, short: u32) {
    let mut out = Vec::with_capacity(tcp::HEADER_LEN);
    out.extend_from_slice(&PEER.0.to_be_bytes());
    out.extend_from_slice(&PORT.to_be_bytes());
    out.extend_from_slice(&(PEER.1 + ahead).to_be_bytes());
    out.extend_from_slice(&host.said().seq.wrapping_sub(short).to_be_bytes());
    out.extend_from_slice(&[5 << 4, flags.bits(), 0x40, 0, 0, 0, 0, 0]);
    host.hear_tcp(out);
}
