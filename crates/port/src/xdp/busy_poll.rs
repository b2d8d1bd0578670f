//! Busy polling: whoever looks for frames and finds none runs the driver's poller (NAPI) himself,
//! without an interrupt and in his own time.

use std::io;

use super::error::Error;
use super::poller::Poller;
use super::socket::Socket;
use crate::netdev;
use crate::spec::BusyPoll;

/// Has the queues of a device busy-polled, where that is wanted and real: its pollers must be
/// there, and the program behind the driver, not behind the kernel's buffers.
pub(super) fn set_up(
    wanted: BusyPoll,
    device: &str,
    generic: bool,
    sockets: &mut [Socket],
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let copies = sockets.iter().any(|socket| socket.copies);
    if wanted == BusyPoll::Off || (wanted == BusyPoll::Auto && copies) {
        return Ok(());
    }
    let done = is_real(device, generic, sockets.len())
        .and_then(|()| sockets.iter_mut().try_for_each(Socket::busy_poll));
    match done {
        Err(source) if wanted == BusyPoll::On => Err(Error::NoBusyPoll {
            device: device.to_owned(),
            source,
        }),
        Err(source) => {
            sockets
                .iter_mut()
                .for_each(|socket| socket.poller = Poller::None);
            notes.push(format!(
                "the queues of {device} are not busy-polled: {source}"
            ));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Whether each queue has a poller that a program can run. A kernel that does not tell is believed
/// to have them.
fn is_real(device: &str, generic: bool, queues: usize) -> io::Result<()> {
    if generic {
        return Err(io::Error::other(
            "in the generic mode frames come by way of the kernel's buffers, which nobody can poll",
        ));
    }
    match netdev::pollers(device) {
        Ok(pollers) if pollers < queues => Err(io::Error::other(format!(
            "{queues} queues, and {pollers} pollers of the driver that a program can run"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_be_polled_where_there_is_no_poller() {
        let generic = is_real("lo", true, 1).expect_err("generic").to_string();
        assert!(generic.contains("generic mode"), "{generic}");
        // A kernel that tells of pollers says that loopback has none.
        if netdev::pollers("lo").is_ok() {
            let none = is_real("lo", false, 2).expect_err("none").to_string();
            assert!(none.contains("2 queues, and 0 pollers"), "{none}");
        }
    }

    #[test]
    fn it_is_named_as_it_is_read() {
        for how in [BusyPoll::Auto, BusyPoll::On, BusyPoll::Off] {
            assert_eq!(how.to_string().parse(), Ok(how));
        }
        assert!("always".parse::<BusyPoll>().is_err());
    }
}
