//! Types of values that are more than a number.

use std::net::IpAddr;
use std::str::FromStr;

/// Congestion control algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Algorithm {
    /// BBR, version 1. Linux calls it `bbr`.
    Bbr,
    /// RFC 9438, with HyStart++ (RFC 9406). Linux calls it `cubic`; the default there too.
    #[default]
    Cubic,
    /// RFC 8257, for networks that mark early. Linux calls it `dctcp`.
    Dctcp,
    /// RFC 5681 with appropriate byte counting (RFC 3465). Linux calls it `reno`.
    NewReno,
    /// A program's own: its number among those that the stack was given.
    Custom(u8),
}

impl Algorithm {
    /// All that the stack has itself, the default one first.
    ///
    /// ```
    /// # use millrace_sockopt as millrace;
    /// let names = millrace::Algorithm::ALL.map(|algorithm| algorithm.name());
    /// assert_eq!(names, ["cubic", "reno", "bbr", "dctcp"]);
    /// ```
    pub const ALL: [Algorithm; 4] = [
        Algorithm::Cubic,
        Algorithm::NewReno,
        Algorithm::Bbr,
        Algorithm::Dctcp,
    ];

    /// The name that Linux gives it; of a program's own, that it is one.
    ///
    /// ```
    /// # use millrace_sockopt as millrace;
    /// assert_eq!(millrace::Algorithm::NewReno.name(), "reno");
    /// assert_eq!("reno".parse(), Ok(millrace::Algorithm::NewReno));
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Cubic => "cubic",
            Algorithm::NewReno => "reno",
            Algorithm::Dctcp => "dctcp",
            Algorithm::Bbr => "bbr",
            Algorithm::Custom(_) => "custom",
        }
    }
}

impl FromStr for Algorithm {
    type Err = ();

    fn from_str(name: &str) -> Result<Algorithm, ()> {
        let named = |algorithm: &Algorithm| algorithm.name() == name;
        Algorithm::ALL.into_iter().find(named).ok_or(())
    }
}

/// What becomes of a packet that is larger than its path takes, by Linux's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discovery {
    /// It is fragmented, here and by routers.
    Never = 0,
    /// Routers may not fragment it; it is fragmented here once they have said how small.
    #[default]
    Want = 1,
    /// It is refused.
    Always = 2,
    /// As `Always`, but what routers say is not believed.
    Probe = 3,
    /// Fragmented by what the link takes, whatever routers say.
    Link = 4,
    /// As `Link`; where others would be refused it is fragmented.
    Omit = 5,
}

impl Discovery {
    /// From Linux's number.
    ///
    /// ```
    /// # use millrace_sockopt as millrace;
    /// // `IP_PMTUDISC_DO`.
    /// assert_eq!(millrace::Discovery::from_number(2), Some(millrace::Discovery::Always));
    /// assert_eq!(millrace::Discovery::from_number(6), None);
    /// ```
    pub fn from_number(number: u8) -> Option<Discovery> {
        use Discovery::*;
        [Never, Want, Always, Probe, Link, Omit]
            .into_iter()
            .find(|discovery| *discovery as u8 == number)
    }

    /// Whether what does not fit is refused.
    pub fn refuses(self) -> bool {
        matches!(self, Discovery::Always | Discovery::Probe)
    }

    /// Whether the word of routers on the path counts.
    pub fn listens(self) -> bool {
        matches!(self, Discovery::Never | Discovery::Want | Discovery::Always)
    }

    /// Whether routers are forbidden to fragment a packet that left in one piece.
    pub fn forbids(self) -> bool {
        matches!(self, Discovery::Want | Discovery::Always | Discovery::Probe)
    }
}

/// Keys of a listener's cookies (`TCP_FASTOPEN_KEY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastOpenKeys {
    /// Cookies are made with this one.
    pub primary: [u8; 16],
    /// Those that were made with this one are good still.
    pub backup: Option<[u8; 16]>,
}

/// A group to be joined or left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: IpAddr,
    /// Joined, not left.
    pub join: bool,
    /// The own address by which the link is meant; unspecified for any.
    pub interface: IpAddr,
    /// The index of the device; 0 for any.
    pub device: u32,
}
