//! Units that leave at their flows' pace, in virtual time.

use millrace_offload::{Instant, Pacer, transmit};
use millrace_wire::ipv4;
use millrace_wire::tcp::{self, Flags, Seq};
use millrace_wire::vnet::{self, Gso, VnetHeader};
use proptest::prelude::*;

const MSS: usize = 1000;
const MILLI: u64 = 1_000_000;

/// A unit, or with `count` 0 a bare acknowledgement, as the kernel leaves it.
fn frame(port: u16, seq: u32, count: usize) -> (Vec<u8>, VnetHeader) {
    let payload = vec![seq as u8; count * MSS];
    let header = tcp::Header {
        src_port: port,
        dst_port: 80,
        seq: Seq(seq),
        ack: Seq(1),
        flags: Flags::ACK,
        window: 9,
        urgent: 0,
        options: tcp::Options::default(),
    };
    let mut frame = vec![2; 12];
    frame.extend([8, 0]);
    frame.resize(54, 0);
    ipv4::Header {
        id: 3,
        ..ipv4::Header::new(
            [10, 0, 0, 1].into(),
            [10, 0, 0, 2].into(),
            tcp::PROTOCOL,
            (tcp::HEADER_LEN + payload.len()) as u16,
        )
    }
    .emit(&mut frame[14..]);
    header.emit(&mut frame[34..]);
    frame.extend(payload);
    let vnet = VnetHeader {
        flags: vnet::Flags::NEEDS_CSUM,
        gso: if count > 0 { Gso::TCP_V4 } else { Gso::NONE },
        header_len: 54,
        gso_size: MSS as u16,
        csum_start: 34,
        csum_offset: 16,
    };
    (frame, vnet)
}

/// What leaves at once when nothing paces it.
fn unpaced(frame: &[u8], vnet: &VnetHeader) -> Vec<Vec<u8>> {
    let mut frame = frame.to_vec();
    if vnet.gso == Gso::NONE {
        transmit::complete(&mut frame, vnet).expect("sound");
    }
    let mut frames = Vec::new();
    transmit::segment(&frame, vnet, |head, payload| {
        frames.push([head, payload].concat());
    })
    .expect("sound");
    frames
}

#[derive(Default)]
struct Lab {
    pacer: Pacer,
    now: u64,
    /// What left, and when.
    left: Vec<(u64, Vec<u8>)>,
}

impl Lab {
    fn send(&mut self, port: u16, seq: u32, count: usize) {
        let (bytes, vnet) = frame(port, seq, count);
        self.pacer.buffer()[..bytes.len()].copy_from_slice(&bytes);
        let (now, left) = (self.now, &mut self.left);
        let each = |head: &[u8], payload: &[u8]| left.push((now, [head, payload].concat()));
        let taken = self.pacer.frame(0, bytes.len(), &vnet, Instant(now), each);
        assert_eq!(taken, Ok(()));
    }

    fn run_until(&mut self, end: u64) {
        while let Some(at) = self.pacer.deadline().filter(|at| at.0 <= end) {
            self.now = self.now.max(at.0);
            let (now, left) = (self.now, &mut self.left);
            let some = self.pacer.on_timer(Instant(now), |head, payload| {
                left.push((now, [head, payload].concat()));
            });
            assert!(some, "a deadline is there for something");
        }
        self.now = end;
    }

    fn times(&mut self) -> Vec<u64> {
        let left = std::mem::take(&mut self.left);
        left.into_iter().map(|(at, _)| at / 1000).collect()
    }
}

#[test]
fn a_unit_leaves_over_half_of_the_time_in_which_its_flow_makes_one() {
    let mut lab = Lab::default();
    // Of a flow that is not known yet nothing is held back.
    lab.send(7, 1, 16);
    assert_eq!(lab.times(), [0; 16]);
    for round in 1..=3 {
        lab.run_until(round * MILLI);
        lab.send(7, 1 + 16_000 * round as u32, 16);
    }
    lab.run_until(4 * MILLI);
    let times = lab.times();
    // Four at a time, a quarter of half a millisecond apart.
    let of = |start: u64| (0..16).map(move |index| start + index / 4 * 125);
    assert_eq!(
        times,
        [of(1000), of(2000), of(3000)]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
    );
    assert_eq!(
        (lab.pacer.counters().paced, lab.pacer.counters().hurried),
        (3, 0)
    );
}

#[test]
fn what_comes_of_the_flow_is_behind_what_leaves_of_it() {
    let mut lab = Lab::default();
    lab.send(7, 1, 16);
    lab.run_until(MILLI);
    lab.send(7, 16_001, 16);
    assert_eq!(lab.times().len(), 16 + 4);
    // An acknowledgement of another flow passes.
    lab.send(8, 1, 0);
    assert_eq!(lab.left.len(), 1);
    lab.left.clear();
    // One of the same does not: all that is left goes before it, at once.
    lab.send(7, 32_001, 0);
    assert_eq!(lab.left.len(), 12 + 1);
    assert_eq!(lab.left[12].1.len(), 54);
    assert_eq!(lab.pacer.deadline(), None);
    assert_eq!(lab.pacer.counters().hurried, 1);
}

#[test]
fn a_fast_flow_is_not_held_up_and_a_late_timer_makes_up_for_it() {
    let mut lab = Lab::default();
    for round in 0..4 {
        lab.run_until(round * 30_000);
        lab.send(7, 1 + 16_000 * round as u32, 16);
        assert_eq!(lab.pacer.deadline(), None, "a unit each 30 us");
    }
    lab.left.clear();
    lab.run_until(10 * MILLI);
    lab.send(7, 64_001, 16);
    lab.run_until(12 * MILLI);
    lab.send(7, 80_001, 16);
    lab.left.clear();
    lab.now += 5 * MILLI;
    let (now, left) = (lab.now, &mut lab.left);
    lab.pacer.on_timer(Instant(now), |head, payload| {
        left.push((now, [head, payload].concat()));
    });
    assert_eq!((lab.left.len(), lab.pacer.deadline()), (12, None));
}

#[test]
fn no_more_units_leave_at_a_time_than_there_is_room_for() {
    let mut lab = Lab::default();
    for round in 0..2 {
        lab.run_until(round * MILLI);
        for port in 0..100 {
            lab.send(port, 1 + 16_000 * round as u32, 16);
        }
    }
    let counters = lab.pacer.counters();
    assert!(counters.paced > 0 && counters.at_once > 100, "{counters:?}");
    lab.run_until(10 * MILLI);
    assert_eq!(lab.left.len(), 200 * 16);
}

#[test]
fn what_is_unsound_is_refused_and_harms_nothing() {
    let mut lab = Lab::default();
    let (bytes, vnet) = frame(7, 1, 4);
    lab.pacer.buffer()[..bytes.len()].copy_from_slice(&bytes);
    for bad in [
        VnetHeader {
            gso_size: 0,
            ..vnet
        },
        VnetHeader {
            csum_start: 1000,
            gso: Gso::NONE,
            csum_offset: 60_000,
            ..vnet
        },
    ] {
        let taken = lab.pacer.frame(0, bytes.len(), &bad, Instant(0), |_, _| {
            panic!("nothing leaves")
        });
        assert_eq!(taken, Err(transmit::Unsound));
    }
    lab.send(7, 1, 4);
    assert_eq!(lab.left.len(), 4);
}

proptest! {
    /// Of every flow the same leaves as without pacing, in the same order, and nothing stays for
    /// longer than a millisecond.
    #[test]
    fn of_each_flow_the_same_leaves_in_the_same_order(
        steps in prop::collection::vec((0u16..5, 0usize..20, 0u64..700_000), 1..200),
    ) {
        let mut lab = Lab::default();
        let mut expected = vec![Vec::new(); 5];
        let mut next = [1u32; 5];
        for (port, count, pause) in steps {
            let seq = &mut next[usize::from(port)];
            let (bytes, vnet) = frame(port, *seq, count);
            expected[usize::from(port)].extend(unpaced(&bytes, &vnet));
            lab.send(port, *seq, count);
            *seq += (count * MSS) as u32;
            let end = lab.now + pause;
            lab.run_until(end);
        }
        let end = lab.now + MILLI;
        lab.run_until(end);
        prop_assert_eq!(lab.pacer.deadline(), None);
        for (port, expected) in expected.iter().enumerate() {
            let of_flow = |frame: &&Vec<u8>| frame[34..36] == (port as u16).to_be_bytes();
            let left: Vec<_> = lab.left.iter().map(|(_, frame)| frame).filter(of_flow).collect();
            prop_assert!(left.into_iter().eq(expected));
        }
    }
}
