//! A ring's two ends in two threads.

use millrace_steer::ring::ring;

#[test]
fn two_threads_pass_every_byte_in_order() {
    let (mut writer, mut reader) = ring(1 << 20);
    let count = 20_000u64;
    let body = |word: u64| vec![word as u8; (word.wrapping_mul(7919) % 3000) as usize];
    let thread = std::thread::spawn(move || {
        for word in 0..count {
            let body = body(word);
            while !writer.write(word, [&body]) {
                writer.commit();
                std::thread::yield_now();
            }
            if word % 16 == 0 {
                writer.commit();
            }
        }
        writer.commit();
    });
    let mut expected = 0;
    while expected < count {
        match reader.next() {
            Some((word, bytes)) => {
                assert_eq!((word, bytes), (expected, &body(expected)[..]));
                expected += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    thread.join().unwrap();
    assert!(reader.is_empty());
}
