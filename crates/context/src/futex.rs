//! Sleeping and waking on a word that several processes map.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex;

/// Sleeps while `word` is `value`, at most `timeout`. `Ok` when woken or when the word already differs; `ETIMEDOUT` and `EINTR` as errors.
pub fn wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|t| futex::Timespec {
        tv_sec: t.as_secs() as i64,
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    match futex::wait(word, futex::Flags::empty(), value, timeout.as_ref()) {
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Wakes at most `count` sleepers.
pub fn wake(word: &AtomicU32, count: u32) {
    // It cannot fail for a mapped, aligned word.
    let _ = futex::wake(word, futex::Flags::empty(), count);
}
