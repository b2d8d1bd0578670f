use super::*;

const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

fn name(id: u16) -> Name {
    Name::V4(SOURCE, Ipv4Addr::new(10, 0, 0, 2), 17, id)
}

fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

fn part(offset: u16, bytes: &[u8], more: bool) -> Part<'_> {
    Part {
        offset,
        more,
        bytes,
        protocol: 17,
        marked: false,
        packet: b"head",
    }
}

fn reassembly() -> Reassembly {
    Reassembly::new(16, 1 << 20)
}

fn whole(outcome: Outcome) -> Vec<u8> {
    match outcome {
        Outcome::Whole(whole) => whole.bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rfc791_3_2_parts_come_in_any_order_and_more_than_once() {
    let bytes: Vec<u8> = (0..40).collect();
    let parts = [
        part(0, &bytes[..16], true),
        part(16, &bytes[16..32], true),
        part(32, &bytes[32..], false),
    ];
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut reassembly = reassembly();
        let [a, b, c] = order.map(|index| parts[index]);
        for part in [a, a, b, a, b] {
            assert_eq!(reassembly.add(name(1), &part, at(0)), Outcome::Waiting);
        }
        assert_eq!(whole(reassembly.add(name(1), &c, at(0))), bytes);
        assert_eq!((reassembly.len(), reassembly.memory), (0, 0));
    }
}

#[test]
fn rfc791_3_2_packets_are_told_apart_by_all_of_their_name() {
    let mut reassembly = reassembly();
    let other = Ipv4Addr::new(10, 0, 0, 9);
    let names = [
        name(1),
        name(2),
        Name::V4(other, Ipv4Addr::new(10, 0, 0, 2), 17, 1),
        Name::V4(SOURCE, other, 17, 1),
        Name::V4(SOURCE, Ipv4Addr::new(10, 0, 0, 2), 6, 1),
        Name::V6(SOURCE.to_ipv6_mapped(), Ipv6Addr::LOCALHOST, 1),
    ];
    let mut reassembly_all = Reassembly::new(100, 1 << 20);
    for name in names {
        let outcome = reassembly_all.add(name, &part(0, &[1; 8], true), at(0));
        assert_eq!(outcome, Outcome::Waiting);
    }
    assert_eq!(reassembly_all.len(), names.len());
    reassembly.add(name(1), &part(0, &[1; 8], true), at(0));
    let last = reassembly.add(name(2), &part(8, &[2; 8], false), at(0));
    assert_eq!(last, Outcome::Waiting);
}

#[test]
fn rfc5722_3_and_h2_an_overlap_condemns_the_packet() {
    let first = part(16, &[1; 16], true);
    for wrong in [
        part(8, &[2; 16], true),
        part(24, &[2; 16], true),
        part(8, &[2; 32], true),
        part(16, &[2; 8], true),
        part(24, &[2; 8], true),
        part(0, &[2; 24], false),
        part(16, &[], true),
    ] {
        let mut reassembly = reassembly();
        reassembly.add(name(1), &first, at(0));
        assert_eq!(
            reassembly.add(name(1), &wrong, at(0)),
            Outcome::Condemned,
            "{wrong:?}"
        );
        // The old bytes are gone; later bytes follow.
        for part in [part(0, &[3; 16], true), part(32, &[3; 8], false), first] {
            let outcome = reassembly.add(name(1), &part, at(1));
            assert_eq!(outcome, Outcome::Condemned);
        }
        assert_eq!(reassembly.memory, 0);
        assert_eq!(reassembly.pop_expired(at(61)), Some(Vec::new()));
        assert_eq!(reassembly.add(name(1), &first, at(62)), Outcome::Waiting);
    }
}

#[test]
fn h2_there_is_one_end() {
    let mut endpoints = reassembly();
    endpoints.add(name(1), &part(16, &[1; 5], false), at(0));
    let beyond = endpoints.add(name(1), &part(24, &[1; 8], true), at(0));
    assert_eq!(beyond, Outcome::Condemned);
    let mut two = reassembly();
    two.add(name(1), &part(16, &[1; 5], false), at(0));
    let other = two.add(name(1), &part(8, &[1; 8], false), at(0));
    assert_eq!(other, Outcome::Condemned);
    let mut before = reassembly();
    before.add(name(1), &part(16, &[1; 8], true), at(0));
    let early = before.add(name(1), &part(0, &[1; 8], false), at(0));
    assert_eq!(early, Outcome::Condemned);
}

#[test]
fn h3_nothing_is_longer_than_a_packet_can_be() {
    let mut reassembly = reassembly();
    let beyond = reassembly.add(name(1), &part(65_528, &[1; 8], false), at(0));
    assert_eq!(beyond, Outcome::Condemned);
}

#[test]
fn h5_packets_memory_and_each_source_are_bounded() {
    let mut reassembly = reassembly();
    let outcomes: Vec<Outcome> = (0..8)
        .map(|id| reassembly.add(name(id), &part(0, &[1; 8], true), at(0)))
        .collect();
    assert!(outcomes[..4].iter().all(|one| *one == Outcome::Waiting));
    assert!(outcomes[4..].iter().all(|one| *one == Outcome::Full));
    for host in 10..40 {
        let name = Name::V4(Ipv4Addr::new(10, 0, 0, host), SOURCE, 17, 1);
        reassembly.add(name, &part(0, &[1; 8], true), at(0));
    }
    assert_eq!(reassembly.len(), 16);
    let mut small = Reassembly::new(16, 1000);
    assert_eq!(
        small.add(name(1), &part(0, &[1; 400], true), at(0)),
        Outcome::Waiting
    );
    assert_eq!(
        small.add(name(1), &part(400, &[1; 600], false), at(0)),
        Outcome::Full
    );
    // Small parts without end condemn their packet.
    let mut tiny = Reassembly::new(16, 1 << 20);
    let condemned = (0..1000u16)
        .map(|index| tiny.add(name(1), &part(index * 16, &[1; 8], true), at(0)))
        .position(|outcome| outcome == Outcome::Condemned);
    assert_eq!(condemned, Some(PARTS_MAX));
}

#[test]
fn rfc8200_4_5_parts_wait_sixty_seconds_for_each_other() {
    let mut reassembly = reassembly();
    reassembly.add(name(1), &part(0, &[1; 8], true), at(5));
    reassembly.add(name(2), &part(8, &[1; 8], true), at(6));
    assert_eq!(reassembly.deadline(), Some(at(65)));
    assert_eq!(reassembly.pop_expired(at(64)), None);
    assert_eq!(reassembly.pop_expired(at(66)), Some(b"head".to_vec()));
    assert_eq!(reassembly.pop_expired(at(66)), Some(Vec::new()));
    assert_eq!((reassembly.len(), reassembly.memory), (0, 0));
}

#[test]
fn h2_whatever_comes_a_whole_packet_is_one_that_was_sent() {
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    let bytes: Vec<u8> = (0..=255).collect();
    let mut joined = 0;
    for round in 0..20_000 {
        let mut reassembly = reassembly();
        // Mostly parts of one cut, now and then any part of the packet.
        for _ in 0..12 {
            let (start, end) = if random(20) == 0 {
                let start = random(32) * 8;
                (start, (start + 8 + random(100)).min(256))
            } else {
                let start = random(4) * 64;
                (start, start + 64)
            };
            let (start, end) = (start as usize, end as usize);
            let part = part(start as u16, &bytes[start..end], end < 256);
            match reassembly.add(name(1), &part, at(0)) {
                Outcome::Whole(whole) => {
                    assert_eq!(whole.bytes, bytes, "round {round}");
                    joined += 1;
                }
                Outcome::Condemned => break,
                Outcome::Waiting => {}
                Outcome::Full => panic!("there is room"),
            }
        }
        let sum: u64 = reassembly.packets.iter().map(Packet::size).sum();
        assert_eq!(reassembly.memory, sum);
    }
    assert!(joined > 1000, "{joined}");
}

/// Where another shard goes on with them, within its own bounds.
#[test]
fn rfc791_3_2_what_is_begun_goes_on_elsewhere() {
    let mut from = reassembly();
    for id in 0..3 {
        let begun = from.add(name(id), &part(0, &[1; 8], true), at(id.into()));
        assert_eq!(begun, Outcome::Waiting);
    }
    let other = Name::V4(SOURCE, Ipv4Addr::new(10, 0, 0, 3), 17, 1);
    from.add(other, &part(0, &[1; 8], true), at(1));
    let taken = from.take(|flow| *flow == name(0).flow());
    assert_eq!((taken.len(), from.len()), (3, 1));
    assert_eq!(from.memory, 8 + PART_OVERHEAD + 4);
    let mut to = Reassembly::new(3, 1 << 20);
    to.add(name(1), &part(8, &[2; 8], false), at(1));
    to.put(taken);
    assert_eq!(to.len(), 3);
    let ended = to.add(name(2), &part(8, &[2; 8], false), at(3));
    assert_eq!(whole(ended).len(), 16);
    assert_eq!(to.deadline(), Some(at(0) + PATIENCE), "the oldest is first");
    assert!(to.pop_expired(at(60)).is_some() && to.pop_expired(at(60)).is_none());
    let mut full = Reassembly::new(3, 1);
    full.put(from.take(|_| true));
    assert_eq!((full.len(), full.memory, from.memory), (0, 0, 0));
}
