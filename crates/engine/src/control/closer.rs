//! Closes descriptors that came from programs, and connections to them, on threads of its own.
//!
//! The sender decides how long closing takes: the last descriptor of a TCP socket with SO_LINGER
//! waits for its peer, that of a file for its file system, and a connection closes all that lies
//! unread in it. So each user has a thread that closes its descriptors, and no other user waits for
//! it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// How long a thread waits for more to close before it ends.
const IDLE: Duration = Duration::from_secs(1);

/// The closing threads, by user.
#[derive(Debug, Default)]
pub(crate) struct Closer {
    threads: HashMap<u32, Sender<OwnedFd>>,
}

impl Closer {
    /// Closes a descriptor that came from this user, or a connection to it.
    pub(crate) fn close(&mut self, uid: u32, descriptor: OwnedFd) {
        let rest = match self.threads.get(&uid) {
            Some(thread) => thread.send(descriptor).err().map(|error| error.0),
            None => Some(descriptor),
        };
        // There is no thread, or it has ended because there was nothing to close.
        if let Some(descriptor) = rest {
            let (sender, receiver) = channel();
            let named = thread::Builder::new().name("millrace-closer".to_owned());
            // If the thread cannot be started, the channel is dropped with the descriptor, which
            // closes it.
            let _ = named.spawn(move || close_all(&receiver));
            let _ = sender.send(descriptor);
            self.threads.insert(uid, sender);
        }
    }
}

fn close_all(descriptors: &Receiver<OwnedFd>) {
    // If this fails, the thread keeps the role of the control thread that started it.
    let _ = millrace_sandbox::enter(millrace_sandbox::Role::Closer);
    while let Ok(descriptor) = descriptors.recv_timeout(IDLE) {
        drop(descriptor);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn is_closed(mut other: UnixStream) -> bool {
        other
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        other.read(&mut [0]).is_ok_and(|len| len == 0)
    }

    #[test]
    fn what_is_given_to_it_is_closed_also_after_a_pause() {
        let mut closer = Closer::default();
        for uid in [1, 1, 2] {
            let (own, other) = UnixStream::pair().unwrap();
            closer.close(uid, own.into());
            assert!(is_closed(other));
        }
        thread::sleep(IDLE + Duration::from_millis(100));
        let (own, other) = UnixStream::pair().unwrap();
        closer.close(1, own.into());
        assert!(is_closed(other));
    }
}
