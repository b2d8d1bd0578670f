//! Tests of the interval list, against a model that holds a bit per byte.

use proptest::prelude::*;

use super::*;

fn reported(assembler: &mut Assembler) -> Vec<(u64, u64)> {
    assembler
        .report(4)
        .into_iter()
        .flatten()
        .map(|range| (range.start, range.end))
        .collect()
}

#[test]
fn rfc2018_4_latest_block_first_then_recent_ones() {
    let mut assembler = Assembler::default();
    for start in [10, 30, 50, 70, 90] {
        assembler.insert(start..start + 5);
    }
    assert!(assembler.has_news());
    // Five changed: the first of them goes with the first acknowledgement.
    assert_eq!(
        reported(&mut assembler),
        [(70, 75), (50, 55), (30, 35), (10, 15)]
    );
    assert!(assembler.has_news());
    assert_eq!(
        reported(&mut assembler),
        [(90, 95), (70, 75), (50, 55), (30, 35)]
    );
    assert!(!assembler.has_news());
    assembler.insert(35..40);
    assert_eq!(
        reported(&mut assembler),
        [(30, 40), (90, 95), (70, 75), (50, 55)]
    );
}

#[test]
fn blocks_that_were_delivered_are_not_reported() {
    let mut assembler = Assembler::default();
    assembler.insert(10..20);
    assembler.insert(30..40);
    assert_eq!(assembler.advance(10), 20);
    assert_eq!(reported(&mut assembler), [(30, 40)]);
    assert_eq!(assembler.advance(35), 40);
    assert!(assembler.is_empty());
    assert_eq!(assembler.advance(50), 50);
}

#[test]
fn d2_number_of_ranges_is_bounded() {
    let mut assembler = Assembler::default();
    assembler.insert(10..20);
    assembler.insert(30..40);
    assert!(assembler.is_full_for(&(50..60), 2));
    assert!(!assembler.is_full_for(&(40..60), 2));
    assert!(!assembler.is_full_for(&(15..35), 2));
}

proptest! {
    #[test]
    fn agrees_with_a_byte_map(steps in proptest::collection::vec((0u64..200, 1u64..30, any::<bool>()), 1..60)) {
        let mut assembler = Assembler::default();
        let mut map = [false; 4096];
        let mut next = 0u64;
        for (start, len, deliver) in steps {
            let range = start.max(next + 1)..start.max(next + 1) + len;
            let missing: Vec<u64> = assembler.missing(range.clone()).flatten().collect();
            let expected: Vec<u64> = range.clone().filter(|&at| !map[at as usize]).collect();
            prop_assert_eq!(missing, expected);
            prop_assert_eq!(assembler.covering(&range).is_some(), range.clone().all(|at| map[at as usize]));
            assembler.insert(range.clone());
            range.clone().for_each(|at| map[at as usize] = true);
            if deliver {
                let mut end = next + 1;
                while map[end as usize] {
                    end += 1;
                }
                prop_assert_eq!(assembler.advance(next + 1), end);
                next = end;
                map[..next as usize].iter_mut().for_each(|held| *held = false);
            }
            // Sorted, disjoint, not adjacent, and the same set.
            prop_assert!(assembler.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            let held: Vec<u64> = assembler.ranges.iter().cloned().flatten().collect();
            let expected: Vec<u64> = (0..4096).filter(|&at| map[at as usize]).collect();
            prop_assert_eq!(held, expected);
            let blocks = reported(&mut assembler);
            prop_assert_eq!(blocks.len(), assembler.ranges.len().min(4));
        }
    }
}
