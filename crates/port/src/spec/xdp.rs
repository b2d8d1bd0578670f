//! How a link by AF_XDP is named: its device, and options after commas.

use std::fmt;
use std::str::FromStr;

use super::device_name::check_device_name;
use super::error::Error;

/// A device that is there already, by AF_XDP sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xdp {
    /// Name of the device.
    pub name: String,
    /// `queues=N`: how many of its queues are used, from the first; all of them without the option.
    pub queues: Option<u16>,
    /// `mode=MODE`.
    pub mode: Mode,
    /// `busy-poll=HOW`.
    pub busy_poll: BusyPoll,
    /// `address=shared`: with the addresses that the kernel has there.
    pub shared: bool,
}

impl FromStr for Xdp {
    type Err = Error;

    /// The text behind `xdp:`.
    fn from_str(text: &str) -> Result<Xdp, Error> {
        let mut words = text.split(',');
        let mut xdp = Xdp {
            name: words.next().unwrap_or(text).to_owned(),
            ..Xdp::default()
        };
        check_device_name(&xdp.name)?;
        for word in words {
            let unknown = || Error::Option(word.to_owned());
            match word.split_once('=').ok_or_else(unknown)? {
                ("queues", count) => {
                    let count = count.parse().ok();
                    xdp.queues = count.filter(|count| (1..=256).contains(count));
                    xdp.queues.ok_or_else(unknown)?;
                }
                ("mode", word) => xdp.mode = word.parse().map_err(|()| unknown())?,
                ("busy-poll", word) => xdp.busy_poll = word.parse().map_err(|()| unknown())?,
                ("address", "own") => xdp.shared = false,
                ("address", "shared") => xdp.shared = true,
                _ => return Err(unknown()),
            }
        }
        Ok(xdp)
    }
}

impl fmt::Display for Xdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(queues) = self.queues {
            write!(f, ",queues={queues}")?;
        }
        if self.mode != Mode::Auto {
            write!(f, ",mode={}", self.mode)?;
        }
        if self.busy_poll != BusyPoll::Auto {
            write!(f, ",busy-poll={}", self.busy_poll)?;
        }
        f.write_str(if self.shared { ",address=shared" } else { "" })
    }
}

/// How frames get from the driver to the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The best that the driver has.
    #[default]
    Auto,
    /// The device writes into the socket's memory.
    ZeroCopy,
    /// The driver runs the program and copies.
    Copy,
    /// The kernel runs the program behind the driver, and copies: any driver will do.
    Generic,
}

impl FromStr for Mode {
    type Err = ();

    fn from_str(text: &str) -> Result<Mode, ()> {
        match text {
            "auto" => Ok(Mode::Auto),
            "zerocopy" => Ok(Mode::ZeroCopy),
            "copy" => Ok(Mode::Copy),
            "generic" => Ok(Mode::Generic),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Auto => "auto",
            Mode::ZeroCopy => "zerocopy",
            Mode::Copy => "copy",
            Mode::Generic => "generic",
        })
    }
}

/// Whether the queues of a device are busy-polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusyPoll {
    /// Where the driver's poller writes into the sockets' memory (zero copy).
    #[default]
    Auto,
    /// Yes; it is an error where there is nothing to poll.
    On,
    /// No: frames come by interrupts.
    Off,
}

impl FromStr for BusyPoll {
    type Err = ();

    fn from_str(text: &str) -> Result<BusyPoll, ()> {
        match text {
            "auto" => Ok(BusyPoll::Auto),
            "on" => Ok(BusyPoll::On),
            "off" => Ok(BusyPoll::Off),
            _ => Err(()),
        }
    }
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BusyPoll::Auto => "auto",
            BusyPoll::On => "on",
            BusyPoll::Off => "off",
        })
    }
}
