//! A link whose device is gone.

use std::io;

/// Whether an error of a port says that its device is gone. Other errors are counted, and the port
/// is tried again.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENODEV | libc::ENXIO | libc::EBADFD)
    )
}

/// Prints that a thread has lost its link.
pub(crate) fn tell_lost(thread: &str, error: &io::Error) {
    eprintln!(
        "millrace: {thread} has lost its link ({error}): connections over it will time out; restart the engine when the device is there again"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_busy_or_down_is_not_gone() {
        let is = |number| is_gone(&io::Error::from_raw_os_error(number));
        assert!(is(libc::ENODEV) && is(libc::ENXIO) && is(libc::EBADFD));
        assert!(!is(libc::ENETDOWN) && !is(libc::ENOBUFS) && !is(libc::EBUSY));
        assert!(!is_gone(&io::ErrorKind::InvalidInput.into()));
    }
}
