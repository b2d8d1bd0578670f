//! Rings: nobody writes what is being read, and what was written comes out whole and in its order.

use loom::sync::Arc;
use loom::thread;
use millrace_context::submission::{Cursor, SubmissionCell};
use millrace_context::{Context, Operation, SlotRef, Submission};
use millrace_steer::ring::ring;

use crate::check;

#[test]
fn records_between_shards_come_out_as_they_went_in() {
    check(|| {
        let (mut writer, mut reader) = ring(0);
        let writing = thread::spawn(move || {
            for word in 0..3 {
                while !writer.write(word, [&[word as u8; 16]]) {
                    thread::yield_now();
                }
                writer.commit();
            }
        });
        for expected in 0..3 {
            loop {
                if let Some((word, body)) = reader.next() {
                    assert_eq!((word, body), (expected, &[expected as u8; 16][..]));
                    break;
                }
                thread::yield_now();
            }
        }
        writing.join().unwrap();
    });
}

#[test]
fn submissions_come_out_as_they_went_in() {
    check(|| {
        let shared = Arc::new(<(Context, [SubmissionCell; 2])>::default());
        let program = thread::spawn({
            let shared = shared.clone();
            move || {
                let (context, ring) = &*shared;
                for number in 0..3 {
                    while context.room() == 0 {
                        thread::yield_now();
                    }
                    let slot = SlotRef {
                        index: number,
                        generation: number,
                    };
                    context.submit(ring, &Submission::new(Operation::Close, slot, number));
                }
            }
        });
        let (context, ring) = &*shared;
        let mut cursor = Cursor::default();
        let mut expected = 0;
        while expected < 3 {
            match context.take(ring, &mut cursor).unwrap() {
                Some(submission) => {
                    assert_eq!(
                        (submission.parameter, submission.slot.index),
                        (expected, expected)
                    );
                    expected += 1;
                    context.publish(&cursor);
                }
                None => thread::yield_now(),
            }
        }
        program.join().unwrap();
    });
}
