//! The way of frames through virtual queues, to be counted by callgrind:
//! `steer way FRAMES [GROUPS]`. One thread plays all.
//!
//! A port's side finds the flow of each frame and puts it into the queue of its group; each group
//! takes its frames in bursts and answers each by one that goes back; the port's side takes these.
//! Each group has as many frames in a round, however many groups there are: a machine with more of
//! them is given more to do.

use std::hint::black_box;

use millrace_steer::{Groups, Hash, Policy, flow_of, virtual_queues};

/// Frames that a port gives at a time.
const BURST: usize = 64;
/// Bytes of a frame: a short answer's.
const LEN: usize = 128;
const RING: usize = 1 << 20;

fn frame(port: u16) -> [u8; LEN] {
    let mut frame = [0; LEN];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[23] = 6;
    frame[26..30].copy_from_slice(&[10, 0, 0, 2]);
    frame[30..34].copy_from_slice(&[10, 0, 0, 1]);
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame[36..38].copy_from_slice(&80u16.to_be_bytes());
    frame
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse().ok());
    let (Some("way"), Some(total)) = (arguments.first().map(String::as_str), number(1)) else {
        eprintln!("usage: steer way FRAMES [GROUPS]");
        std::process::exit(2);
    };
    let count = number(2).unwrap_or(1).clamp(1, 64);
    let hash = Hash::Keyed([
        0x1234_5678_9abc_def1,
        0xfeed_beef_0bad_cafe,
        0x0123_4567_89ab_cdef,
    ]);
    let groups = Groups::even(count as u16);
    let policy = Policy::RoundRobin;
    let (mut ports, mut shards) = virtual_queues(1, count, RING, &policy, &policy);
    let port = &mut ports[0];
    // As many of each group.
    let mut of_group: Vec<Vec<[u8; LEN]>> = vec![Vec::new(); count];
    for source in 1024..u16::MAX {
        let frame = frame(source);
        let group = groups.of(flow_of(&frame).map_or(0, |flow| hash.tag(&flow)));
        let frames = &mut of_group[usize::from(group)];
        if frames.len() < BURST {
            frames.push(frame);
        }
    }
    let frames: Vec<[u8; LEN]> = (0..BURST)
        .flat_map(|at| of_group.iter().map(move |frames| frames[at]))
        .collect();
    let mut done = 0;
    while done < total {
        for burst in frames.chunks(BURST) {
            for frame in burst {
                let group = groups.of(flow_of(frame).map_or(0, |flow| hash.tag(&flow)));
                assert!(port.outbound.write(group.into(), 0, [frame]));
            }
            port.outbound.commit();
        }
        for shard in &mut shards {
            shard.inbound.look();
            while let Some((_, word, body)) = shard.inbound.next() {
                assert!(shard.outbound.write(0, word, [black_box(body)]));
            }
            shard.outbound.commit();
        }
        port.inbound.look();
        while let Some((_, _, body)) = port.inbound.next() {
            black_box(body);
            done += 1;
        }
    }
    println!("{done} frames through {count} groups");
}
