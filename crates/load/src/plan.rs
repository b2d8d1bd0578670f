//! What is to be done.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use millrace::{BuildError, LinkError, LinkSpec};

/// The port of HTTP.
const HTTP: u16 = 80;
/// Addresses of one generator at most.
pub(crate) const SOURCES_MAX: u32 = 4096;

/// What every connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A connection for each operation: bytes there, as many back, and the end.
    Short,
    /// Bytes there, as many back, on connections that stay.
    Pingpong,
    /// As many bytes as the server takes.
    In,
    /// As many bytes as the server sends.
    Out,
    /// Requests of HTTP/1.1, each answered in full.
    Http,
}

impl Workload {
    /// All of them.
    pub const ALL: [Workload; 5] = [
        Workload::Short,
        Workload::Pingpong,
        Workload::In,
        Workload::Out,
        Workload::Http,
    ];

    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Short => "short",
            Workload::Pingpong => "pingpong",
            Workload::In => "in",
            Workload::Out => "out",
            Workload::Http => "http",
        }
    }

    /// Whether it moves bytes without operations that could be counted.
    pub fn is_bulk(self) -> bool {
        matches!(self, Workload::In | Workload::Out)
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        let named = Workload::ALL.into_iter().find(|load| load.name() == text);
        named.ok_or_else(|| format!("one of {}", Workload::ALL.map(Workload::name).join(", ")))
    }
}

/// Who ends a connection of [`Workload::Short`], and has it in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closes {
    /// The server, once it has answered.
    Server,
    /// The generator, once it has the answer. It resets the connection, so that its port is free at
    /// once.
    Client,
}

/// Who is asked, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server's address.
    pub address: SocketAddr,
    /// What is behind it in a URL, for HTTP.
    pub path: String,
}

impl FromStr for Target {
    type Err = String;

    /// `IP:PORT`, or `http://IP[:PORT][/PATH]`. Names are not looked up.
    fn from_str(text: &str) -> Result<Target, String> {
        let (authority, path, default) = match text.strip_prefix("http://") {
            Some(rest) => match rest.find('/') {
                Some(at) => (&rest[..at], &rest[at..], Some(HTTP)),
                None => (rest, "/", Some(HTTP)),
            },
            None => (text, "/", None),
        };
        let alone = authority.trim_start_matches('[').trim_end_matches(']');
        let bare = || Some(SocketAddr::new(alone.parse().ok()?, default?));
        let address = authority.parse().ok().or_else(bare);
        let valid = path.bytes().all(|byte| byte.is_ascii_graphic());
        match address {
            Some(address) if valid && address.port() != 0 => Ok(Target {
                address,
                path: path.to_owned(),
            }),
            _ => Err(format!(
                "`{text}` is neither IP:PORT nor http://IP[:PORT]/PATH; names are not looked up"
            )),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What every connection does.
    pub workload: Workload,
    /// Who is asked.
    pub target: Target,
    /// What the generator's stack is on.
    pub link: LinkSpec,
    /// Its addresses, with the lengths of their prefixes; connections come from one after the
    /// other.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The kernel's addresses at the other end of a TAP device.
    pub hosts: Vec<(IpAddr, u8)>,
    /// The neighbour behind which the server is, if it is not on the link.
    pub gateway: Option<IpAddr>,
    /// The largest IP packet on a TAP device or a pair, in bytes.
    pub mtu: u16,
    /// Threads.
    pub shards: u16,
    /// Connections at once, of all shards.
    pub connections: u32,
    /// Operations per second that begin, of all shards, whether those before them are over or not;
    /// none is a closed loop.
    pub rate: Option<f64>,
    /// How long it runs before it counts.
    pub warm_up: Duration,
    /// How long it counts.
    pub duration: Duration,
    /// Bytes of a message, for [`Workload::Short`] and [`Workload::Pingpong`].
    pub size: usize,
    /// For [`Workload::Short`].
    pub closes: Closes,
    /// Whether HTTP's connections stay.
    pub keep_alive: bool,
}

impl Plan {
    /// One connection for ten seconds after half a second of warm-up, over a TAP device with a free
    /// name: the generator is 10.9.0.2, the kernel 10.9.0.1.
    pub fn new(workload: Workload, target: Target) -> Plan {
        Plan {
            workload,
            target,
            link: LinkSpec::Tap { name: None },
            addresses: vec![(Ipv4Addr::new(10, 9, 0, 2).into(), 24)],
            hosts: Vec::new(),
            gateway: None,
            mtu: 1500,
            shards: 1,
            connections: 1,
            rate: None,
            warm_up: Duration::from_millis(500),
            duration: Duration::from_secs(10),
            size: 64,
            closes: Closes::Server,
            keep_alive: true,
        }
    }

    /// `count` addresses, one after the other from `first` on.
    ///
    /// # Errors
    /// [`Error::Sources`] when they do not fit into the prefix.
    pub fn sources(first: IpAddr, bits: u8, count: u32) -> Result<Vec<(IpAddr, u8)>, Error> {
        let refused = || Error::Sources { count, first, bits };
        if !(1..=SOURCES_MAX).contains(&count) {
            return Err(refused());
        }
        let last = count - 1;
        let fits = match first {
            IpAddr::V4(first) => {
                let mask = u32::MAX.checked_shr(bits.into()).unwrap_or(0);
                let host = first.to_bits() & mask;
                // The last address of an IPv4 prefix is all of its hosts.
                host.checked_add(last).is_some_and(|end| end < mask.max(1))
            }
            IpAddr::V6(first) => {
                let mask = u128::MAX.checked_shr(bits.into()).unwrap_or(0);
                let host = first.to_bits() & mask;
                host.checked_add(last.into()).is_some_and(|end| end <= mask)
            }
        };
        if !fits {
            return Err(refused());
        }
        let nth = |at: u32| match first {
            IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() + at).into(),
            IpAddr::V6(first) => {
                std::net::Ipv6Addr::from_bits(first.to_bits() + u128::from(at)).into()
            }
        };
        Ok((0..count).map(|at| (nth(at), bits)).collect())
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More addresses than there are.
    #[error(
        "{count} addresses from {first} on do not fit into its prefix of {bits} bits (and 4096 are the most); give a shorter prefix, or fewer"
    )]
    Sources {
        /// How many.
        count: u32,
        /// From where.
        first: IpAddr,
        /// In which prefix.
        bits: u8,
    },
    /// The target and the generator are of different families.
    #[error(
        "{target} cannot be reached from {address}, which is of the other family; give an address of its own family"
    )]
    Family {
        /// The server.
        target: SocketAddr,
        /// The generator.
        address: IpAddr,
    },
    /// Fewer connections than threads.
    #[error("{connections} connections for {shards} shards: each needs one at least")]
    Connections {
        /// How many.
        connections: u32,
        /// For so many.
        shards: u16,
    },
    /// A pair in memory has one thread at each end.
    #[error("{0} shards on a pair, which has one; leave the shards out")]
    Pair(u16),
    /// An open loop of what has no operations.
    #[error("`{0}` moves as many bytes as go through: it has no rate; leave the rate out")]
    Rate(&'static str),
    /// The link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The stack.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A shard has ended before its time. What of is on standard error.
    #[error("a shard of the generator has ended early; its panic is reported above")]
    Shard,
    /// Nobody answers.
    #[error("{target} has answered nothing: {why}; {next}")]
    Silence {
        /// Who.
        target: SocketAddr,
        /// What was the most frequent failure, and how often.
        why: String,
        /// What to look at.
        next: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_and_urls() {
        let of = |text: &str| {
            let target = text.parse::<Target>();
            target.map(|target| (target.address.to_string(), target.path))
        };
        let good = |address: &str, path: &str| Ok((address.to_owned(), path.to_owned()));
        assert_eq!(of("10.9.0.1:80"), good("10.9.0.1:80", "/"));
        assert_eq!(of("[fd00::1]:7"), good("[fd00::1]:7", "/"));
        assert_eq!(of("http://10.9.0.1"), good("10.9.0.1:80", "/"));
        assert_eq!(of("http://10.9.0.1:81/a?b"), good("10.9.0.1:81", "/a?b"));
        assert_eq!(of("http://[fd00::1]/x"), good("[fd00::1]:80", "/x"));
        for bad in [
            "10.9.0.1",
            "10.9.0.1:0",
            "host:80",
            "http://host/",
            "http://10.9.0.1/a b",
            "",
        ] {
            assert!(of(bad).expect_err(bad).contains(bad), "{bad}");
        }
    }

    #[test]
    fn sources_stay_in_their_prefix() {
        let of = |first: &str, bits, count| {
            let sources = Plan::sources(first.parse().expect("an address"), bits, count);
            sources.map(|all| all.last().expect("one").0.to_string())
        };
        assert_eq!(of("10.9.0.2", 24, 1).expect("one"), "10.9.0.2");
        assert_eq!(of("10.9.0.2", 24, 253).expect("many"), "10.9.0.254");
        assert_eq!(of("10.9.0.250", 16, 100).expect("many"), "10.9.1.93");
        assert_eq!(of("fd00::fffe", 64, 3).expect("many"), "fd00::1:0");
        for (first, bits, count) in [
            ("10.9.0.2", 24, 254),
            ("10.9.0.2", 24, 0),
            ("10.9.0.2", 8, 5000),
        ] {
            let error = of(first, bits, count).expect_err("too many").to_string();
            assert!(
                error.contains("10.9.0.2") && error.contains(&count.to_string()),
                "{error}"
            );
        }
    }
}
