//! Tests of the scoreboard, against a model that holds the marks of each byte.

use proptest::prelude::*;

use super::*;
use crate::time::Instant;

fn board(start: u64, end: u64) -> Scoreboard {
    let mut log = SentLog::default();
    log.sent(end, Instant::from_micros(5));
    Scoreboard::new(start, end, &log, 1_000)
}

#[test]
fn takes_over_what_the_log_remembers() {
    let mut log = SentLog::default();
    for i in 1..=3 {
        log.sent(i * 100, Instant::from_micros(i));
    }
    log.acked(150);
    let board = Scoreboard::new(150, 300, &log, 100);
    let runs: Vec<_> = board.runs.iter().map(|run| (run.end, run.at)).collect();
    assert_eq!(runs, [(200, 2), (300, 3)]);
}

#[test]
fn rfc6675_4_is_lost_by_bytes_and_by_separate_blocks() {
    let mut by_bytes = board(0, 1_000);
    by_bytes.sack(100..300, u64::MAX);
    assert_eq!(by_bytes.mark_lost(3, 100), 0);
    by_bytes.sack(300..301, u64::MAX);
    assert_eq!(by_bytes.mark_lost(3, 100), 100);
    assert_eq!(by_bytes.next_lost(), Some(0..100));

    let mut by_blocks = board(0, 1_000);
    for start in [200, 400, 600] {
        assert_eq!(by_blocks.mark_lost(3, 100), 0);
        by_blocks.sack(start..start + 10, u64::MAX);
    }
    assert_eq!(by_blocks.mark_lost(3, 100), 200);
}

#[test]
fn rfc6675_5_lost_bytes_are_sent_again_once_and_in_order() {
    let mut board = board(0, 1_000);
    board.sack(100..200, u64::MAX);
    board.sack(300..1_000, u64::MAX);
    assert_eq!(board.mark_lost(3, 100), 200);
    assert_eq!(board.next_lost(), Some(0..100));
    board.resend(0..60, 9);
    assert_eq!(board.next_lost(), Some(60..100));
    board.resend(60..100, 9);
    assert_eq!(board.next_lost(), Some(200..300));
    board.resend(200..300, 9);
    assert_eq!(board.next_lost(), None);
    assert_eq!(board.mark_lost(3, 100), 0);
    assert_eq!((board.lost(), board.resent()), (200, 200));
}

#[test]
fn rfc2018_8_time_out_forgets_marks_of_a_peer_that_reneged() {
    let mut honest = board(0, 1_000);
    honest.sack(500..600, u64::MAX);
    honest.mark_timed_out(100, Some(5));
    assert_eq!((honest.lost(), honest.sacked()), (900, 100));
    let mut reneging = board(0, 1_000);
    reneging.sack(0..600, u64::MAX);
    reneging.mark_timed_out(100, Some(5));
    assert_eq!((reneging.lost(), reneging.sacked()), (1_000, 0));
}

#[test]
fn c9_splitting_stops_at_the_limit() {
    let mut log = SentLog::default();
    log.sent(10_000, Instant::from_micros(5));
    let mut board = Scoreboard::new(0, 10_000, &log, 20);
    for start in (1..10_000).step_by(2) {
        board.sack(start..start + 1, u64::MAX);
    }
    assert!(board.runs.len() <= 20);
    assert!(board.sacked() <= 10);
}

#[test]
fn rfc8985_6_2_lost_by_age() {
    let mut board = board(0, 100);
    board.sent(200, 10);
    board.sent(300, 20);
    board.sent(400, 30);
    board.sack(200..300, u64::MAX);
    // Sent at 5 and at 10, both before the run sent at 20; only what was sent by 5 is late already.
    assert_eq!(board.mark_lost_by_age(20, 300, 5), (100, Some(10)));
    board.resend(0..100, 40);
    // Sent again after the run at 20: not late.
    assert_eq!(board.mark_lost_by_age(20, 300, 100), (100, None));
    // ... but late against what was sent still later.
    board.sent(500, 50);
    board.sack(400..500, u64::MAX);
    let (lost, _) = board.mark_lost_by_age(50, 500, 45);
    assert_eq!(lost, 200);
    assert_eq!(board.next_lost(), Some(0..100));
}

#[test]
fn rfc8985_6_3_what_was_sent_of_late_is_not_lost_by_a_time_out() {
    let mut board = board(0, 300);
    board.sent(400, 20);
    board.sent(500, 30);
    board.sack(300..310, u64::MAX);
    // All but the first 300 bytes were sent recently.
    board.mark_timed_out(100, Some(19));
    assert_eq!((board.lost(), board.sacked()), (300, 10));
    // The first segment is lost whenever it was sent, and no more of its run than that.
    board.mark_timed_out(100, Some(4));
    assert_eq!((board.lost(), board.next_lost()), (300, Some(0..300)));
    let mut late = self::board(0, 300);
    late.mark_timed_out(100, Some(4));
    assert_eq!((late.lost(), late.next_lost()), (100, Some(0..100)));
    // What was sent again since is in the network.
    late.resend(0..100, 40);
    late.mark_timed_out(50, Some(30));
    assert_eq!((late.lost(), late.resent()), (300, 50));
}

/// The marks of one byte.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Byte {
    sacked: bool,
    lost: bool,
    resent: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u64),
    Ack(u64),
    Sack(u64, u64),
    Lose,
    Resend(u64),
    Head,
    Timeout,
    Highest(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u64..80).prop_map(Step::Send),
        2 => (0u64..60).prop_map(Step::Ack),
        5 => (0u64..300, 1u64..60).prop_map(|(start, len)| Step::Sack(start, len)),
        2 => Just(Step::Lose),
        4 => (1u64..40).prop_map(Step::Resend),
        1 => Just(Step::Head),
        1 => Just(Step::Timeout),
        1 => (1u64..40).prop_map(Step::Highest),
    ]
}

/// A scoreboard, and the marks that each byte of its flight must have.
struct Model {
    board: Scoreboard,
    bytes: Vec<Byte>,
    una: usize,
}

impl Model {
    const MSS: u64 = 10;

    /// Does a step at the time `at`, and checks what the scoreboard returns.
    fn step(&mut self, step: Step, at: u32) {
        let (board, bytes, una) = (&mut self.board, &mut self.bytes, self.una);
        let nxt = bytes.len();
        match step {
            Step::Send(len) => {
                bytes.resize(nxt + len as usize, Byte::default());
                board.sent(nxt as u64 + len, at);
            }
            Step::Ack(len) => {
                let to = (una + len as usize).min(nxt);
                let fresh = bytes[una..to].iter().filter(|byte| !byte.sacked).count();
                assert_eq!(board.acked(to as u64, u64::MAX).bytes as usize, fresh);
                self.una = to;
            }
            Step::Sack(start, len) => {
                let start = una + start as usize;
                let end = (start + len as usize).min(nxt);
                if start >= end {
                    return;
                }
                let fresh = bytes[start..end].iter().filter(|byte| !byte.sacked).count();
                assert_eq!(
                    board.sack(start as u64..end as u64, u64::MAX).bytes as usize,
                    fresh
                );
                bytes[start..end].fill(Byte {
                    sacked: true,
                    ..Byte::default()
                });
            }
            Step::Lose => self.mark_lost(),
            Step::Resend(len) => {
                let expected = (una..nxt).find(|&at| bytes[at].lost && !bytes[at].resent);
                let next = board.next_lost();
                assert_eq!(next.as_ref().map(|range| range.start as usize), expected);
                if let Some(range) = next {
                    let range = range.start..range.end.min(range.start + len);
                    for byte in &mut bytes[range.start as usize..range.end as usize] {
                        assert!(byte.lost && !byte.resent);
                        byte.resent = true;
                    }
                    board.resend(range, at);
                }
            }
            Step::Head => {
                board.mark_head_lost(Self::MSS as u32);
                if una < nxt && !bytes[una].sacked && !bytes[una].lost {
                    for byte in bytes[una..].iter_mut().take(Self::MSS as usize) {
                        byte.lost |= !byte.sacked;
                    }
                }
            }
            Step::Timeout => self.time_out(),
            Step::Highest(len) => {
                let last = (una..nxt).rev().find(|&at| !bytes[at].sacked);
                let range = board.highest_unsacked(len);
                assert_eq!(range.as_ref().map(|range| range.end as usize - 1), last);
                if let Some(range) = range {
                    for byte in &mut bytes[range.start as usize..range.end as usize] {
                        assert!(!byte.sacked);
                        byte.resent |= byte.lost;
                    }
                    board.resend(range, at);
                }
            }
        }
    }

    /// What is far enough below selectively acknowledged bytes is lost.
    fn mark_lost(&mut self) {
        let (board, bytes, una) = (&mut self.board, &mut self.bytes, self.una);
        let nxt = bytes.len();
        board.mark_lost(3, Self::MSS as u32);
        for at in una..nxt {
            let above = &bytes[at + 1..];
            let held = above.iter().filter(|byte| byte.sacked).count();
            let blocks = above
                .iter()
                .enumerate()
                .filter(|(i, byte)| byte.sacked && (*i == 0 || !above[i - 1].sacked))
                .count();
            if !bytes[at].sacked
                && !bytes[at].lost
                && (blocks >= 3 || held > 2 * Self::MSS as usize)
            {
                bytes[at].lost = true;
            }
        }
    }

    /// A time-out: all that is not selectively acknowledged is lost.
    fn time_out(&mut self) {
        let (board, bytes, una) = (&mut self.board, &mut self.bytes, self.una);
        let nxt = bytes.len();
        board.mark_timed_out(Self::MSS as u32, None);
        let reneged = una < nxt && bytes[una].sacked;
        for byte in &mut bytes[una..] {
            let sacked = byte.sacked && !reneged;
            *byte = Byte {
                sacked,
                lost: !sacked,
                resent: false,
            };
        }
    }

    /// Checks every mark and every count.
    fn check(&self) {
        let (board, bytes, una) = (&self.board, &self.bytes, self.una);
        let live = &bytes[una..];
        assert_eq!(
            board.sacked() as usize,
            live.iter().filter(|byte| byte.sacked).count()
        );
        assert_eq!(
            board.lost() as usize,
            live.iter().filter(|byte| byte.lost).count()
        );
        assert_eq!(
            board.resent() as usize,
            live.iter().filter(|byte| byte.resent).count()
        );
        let mut start = una as u64;
        for run in &board.runs {
            assert!(run.end > start);
            for byte in &bytes[start as usize..run.end as usize] {
                let marks = Byte {
                    sacked: run.marks & mark::SACKED != 0,
                    lost: run.marks & mark::LOST != 0,
                    resent: run.marks & mark::RESENT != 0,
                };
                assert_eq!(*byte, marks);
            }
            start = run.end;
        }
        assert_eq!(start as usize, bytes.len());
    }
}

proptest! {
    #[test]
    fn agrees_with_a_byte_model(steps in proptest::collection::vec(step(), 1..80)) {
        let mut model = Model {
            board: board(0, 100),
            bytes: vec![Byte::default(); 100],
            una: 0,
        };
        for (turn, step) in steps.into_iter().enumerate() {
            model.step(step, 100 + turn as u32);
            model.check();
        }
    }
}
