//! A shard under a program and a peer that both do anything, in any order, at any time.

use millrace_shard::{How, Opt, SocketId};
use millrace_tcp::Algorithm;
use millrace_wire::ethernet::EtherType;
use millrace_wire::tcp;

use crate::bytes::Bytes;
use crate::host::{Host, OURS, THEIRS};

/// Steps of one input, at most.
const STEPS: usize = 300;
const PORT: u16 = 80;

/// Every byte is a decision.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut host = Host::new();
    let mut sockets = Vec::new();
    sockets.extend(host.listen(PORT));
    for _ in 0..STEPS {
        if bytes.is_empty() {
            break;
        }
        step(&mut host, &mut sockets, &mut bytes);
    }
    host.end(&sockets);
}

fn step(host: &mut Host, sockets: &mut Vec<SocketId>, bytes: &mut Bytes<'_>) {
    let now = host.now();
    let action = bytes.u8();
    let id = sockets.get(usize::from(action >> 4)).copied();
    match (action % 16, id) {
        (0..=4, _) => segment(host, bytes),
        (5, _) => host.wait(1 << (bytes.u8() % 36)),
        (6, _) => icmp(host, bytes),
        (7, _) => {
            let len = usize::from(bytes.u8());
            let kind = [EtherType::IPV4, EtherType::ARP, EtherType::IPV6][len % 3];
            host.hear(kind, bytes.take(len));
        }
        (8, _) => {
            let here = bytes.u8() & 1 == 0;
            sockets.extend(host.connect(if here { OURS } else { THEIRS }, PORT));
        }
        (9, Some(id)) => sockets.extend(host.shard.accept(id)),
        (10, Some(id)) => {
            let chunk = vec![7; usize::from(bytes.u16())];
            let sent = host.shard.send(id, &chunk, bytes.u8() & 1 == 0);
            assert!(sent.is_err() || sent.is_ok_and(|sent| sent <= chunk.len()));
        }
        (11, Some(id)) => {
            let mut room = vec![0; usize::from(bytes.u16())];
            let _ = host.shard.recv(id, &mut room, now);
        }
        (12, Some(id)) => {
            let how = [How::Read, How::Write, How::Both][usize::from(bytes.u8() % 3)];
            let _ = host.shard.shutdown(id, how, now);
        }
        (13, Some(id)) => {
            let _ = host.shard.close(id, now);
        }
        (14, Some(id)) => {
            let _ = host.shard.set_option(id, option(bytes), now);
        }
        (15, Some(id)) => {
            let _ = host.shard.consumed(id, bytes.u64(), now);
            let _ = host.shard.send_urgent(id);
            let _ = host.shard.tcp_info(id, now);
        }
        _ => {}
    }
    host.settle();
}

/// A segment near what the shard expects, of the connection that it spoke of last, or of a new one.
pub fn segment(host: &mut Host, bytes: &mut Bytes<'_>) {
    let (said, kind) = (host.said(), bytes.u8());
    let (ours, theirs) = match kind & 3 {
        0 | 1 if said.ours != 0 => (said.ours, said.theirs),
        2 => (PORT, 1000 + u16::from(kind >> 6)),
        _ => (bytes.u16(), 1000 + u16::from(kind >> 6)),
    };
    let options = bytes.u8();
    let options = bytes.take(usize::from(options % 11) * 4);
    let offset = (tcp::HEADER_LEN + options.len().next_multiple_of(4)) / 4;
    let mut out = Vec::with_capacity(1600);
    out.extend_from_slice(&theirs.to_be_bytes());
    out.extend_from_slice(&ours.to_be_bytes());
    out.extend_from_slice(&bytes.near(said.ack).to_be_bytes());
    out.extend_from_slice(&bytes.near(said.seq).to_be_bytes());
    out.push((offset as u8) << 4);
    out.push(bytes.u8());
    out.extend_from_slice(&bytes.u16().to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&u16::from(bytes.u8()).to_be_bytes());
    out.extend_from_slice(options);
    out.resize(offset * 4, 0);
    let payload = match bytes.u8() {
        few @ 0..0x80 => usize::from(few),
        more => usize::from(more - 0x7f) * 11,
    };
    out.resize(out.len() + payload, 9);
    host.hear_tcp(out);
}

/// An ICMP error about the last packet, or any other message.
fn icmp(host: &mut Host, bytes: &mut Bytes<'_>) {
    let mut message = vec![bytes.u8() % 20, bytes.u8() % 20, 0, 0];
    message.extend_from_slice(bytes.take(4));
    message.resize(8, 0);
    let quoted = host.packet();
    message.extend_from_slice(&quoted[..quoted.len().min(usize::from(bytes.u8()))]);
    let sum = millrace_wire::checksum::Sum::of(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    host.hear_ip(1, &message);
}

fn option(bytes: &mut Bytes<'_>) -> Opt {
    let (kind, value) = (bytes.u8(), bytes.u32());
    let on = value & 1 == 1;
    match kind % 14 {
        0 => Opt::NoDelay(on),
        1 => Opt::Cork(on),
        2 => Opt::KeepAlive(on),
        3 => Opt::KeepIdle(value as u16),
        4 => Opt::KeepInterval(value as u16),
        5 => Opt::KeepCount(value as u8),
        6 => Opt::UserTimeout(value),
        7 => Opt::MaxSegment(value as u16),
        8 => Opt::Linger(on.then_some(value as u16)),
        9 => Opt::ReceiveBuffer(value),
        10 => Opt::SendBuffer(value),
        11 => Opt::QuickAck(on),
        12 => Opt::DeferAccept(value),
        _ => Opt::Congestion(if on {
            Algorithm::Cubic
        } else {
            Algorithm::NewReno
        }),
    }
}
