//! Virtual queues with each end in a thread of its own.

use millrace_steer::ring::SIZE_MIN;
use millrace_steer::{Policy, virtual_queues};

#[test]
fn a_record_that_comes_just_as_its_queue_is_found_empty_is_not_lost() {
    const RECORDS: u64 = 300_000;
    let policy = Policy::RoundRobin;
    let (ports, mut groups) = virtual_queues(2, 1, SIZE_MIN, &policy, &policy);
    let writers = ports.into_iter().map(|mut port| {
        std::thread::spawn(move || {
            for word in 0..RECORDS {
                while !port.outbound.write(0, word, [b"x"]) {
                    std::thread::yield_now();
                }
                port.outbound.commit();
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let inbound = &mut groups[0].inbound;
    let mut got = [0; 2];
    loop {
        let ended = writers.iter().all(|writer| writer.is_finished());
        inbound.look();
        while let Some((queue, word, _)) = inbound.next() {
            assert_eq!(word, got[queue], "of queue {queue}");
            got[queue] += 1;
        }
        if ended {
            break;
        }
    }
    assert_eq!(got, [RECORDS; 2]);
}
