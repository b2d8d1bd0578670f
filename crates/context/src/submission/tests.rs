//! Rings that a program fills and an engine empties.

use super::*;

#[test]
fn where_to_send_survives_words_and_back() {
    let end: std::net::SocketAddr = "[fd00::7]:65535".parse().unwrap();
    for to in [None, Some(end.into())] {
        for (hops, class) in [(None, Some(0)), (Some(255), None)] {
            let what = SendTo {
                to,
                from: [3; 16],
                hops,
                class,
                segment: 1472,
            };
            assert_eq!(SendTo::from_words(what.to_words()), what);
        }
    }
}

fn ring() -> Vec<SubmissionCell> {
    (0..SUBMISSIONS)
        .map(|_| SubmissionCell::default())
        .collect()
}

fn context() -> Box<Context> {
    Box::default()
}

#[test]
fn submissions_arrive_in_order_round_the_ring() {
    let (context, ring, mut cursor) = (context(), ring(), Cursor::default());
    let slot = SlotRef {
        index: 3,
        generation: 9,
    };
    for i in 0..3 * SUBMISSIONS {
        let submission = Submission {
            arguments: [u64::from(i); 6],
            ..Submission::new(Operation::Watch, slot, i)
        };
        context.submit(&ring, &submission);
        assert_eq!(context.take(&ring, &mut cursor), Ok(Some(submission)));
        context.publish(&cursor);
    }
    assert_eq!(context.take(&ring, &mut cursor), Ok(None));
    assert!(context.drained());
}

#[test]
fn what_has_been_taken_is_known_by_position() {
    let (context, ring, mut cursor) = (context(), ring(), Cursor::default());
    let nop = Submission::new(
        Operation::Nop,
        SlotRef {
            index: 0,
            generation: 0,
        },
        0,
    );
    assert!(context.taken(context.position()));
    context.submit(&ring, &nop);
    let position = context.position();
    context.submit(&ring, &nop);
    assert!(!context.taken(position));
    context.take(&ring, &mut cursor).unwrap().unwrap();
    context.publish(&cursor);
    assert!(context.taken(position) && !context.drained());
    let position = context.position();
    assert!(!context.taken(position));
    context.reset();
    assert!(context.taken(position), "the process is gone");
}

#[test]
fn a_full_ring_has_no_room() {
    let (context, ring, mut cursor) = (context(), ring(), Cursor::default());
    let nop = Submission::new(
        Operation::Nop,
        SlotRef {
            index: 0,
            generation: 0,
        },
        0,
    );
    for _ in 0..SUBMISSIONS {
        assert!(context.room() > 0);
        context.submit(&ring, &nop);
    }
    assert_eq!(context.room(), 0);
    context.take(&ring, &mut cursor).unwrap().unwrap();
    assert_eq!(context.room(), 0, "not until the engine says so");
    context.publish(&cursor);
    assert_eq!(context.room(), 1);
}

#[test]
fn a_tail_that_lies_is_refused() {
    let (context, ring, mut cursor) = (context(), ring(), Cursor::default());
    context.app.tail.store(SUBMISSIONS + 1, Ordering::Relaxed);
    assert_eq!(
        context.take(&ring, &mut cursor),
        Err(Nonsense::Tail {
            tail: SUBMISSIONS + 1,
            head: 0
        })
    );
}

#[test]
fn an_entry_of_noise_is_refused() {
    let (context, ring, mut cursor) = (context(), ring(), Cursor::default());
    ring[0].store([0xffff_ffff_ffff_ffff; 8]);
    context.app.tail.store(1, Ordering::Relaxed);
    assert_eq!(context.take(&ring, &mut cursor), Err(Nonsense::Entry(0xff)));
}

#[test]
fn a_send_of_more_than_is_staged_is_refused() {
    let (context, ring, mut cursor) = (context(), ring(), Cursor::default());
    let send = Submission::new(
        Operation::Send,
        SlotRef {
            index: 0,
            generation: 0,
        },
        100,
    );
    context.submit(&ring, &send);
    context.app.staging_tail.store(99, Ordering::Relaxed);
    assert_eq!(
        context.take(&ring, &mut cursor),
        Err(Nonsense::Staging {
            named: 100,
            staged: 99
        })
    );
}

#[test]
fn staged_bytes_wrap_in_two_pieces() {
    assert_eq!(
        pieces(STAGING - 10, 30),
        [(STAGING as usize - 10, 10), (0, 20)]
    );
    assert_eq!(pieces(5, 30), [(5, 30), (0, 0)]);
}
