//! Whose segments are acknowledged here, ahead of the host.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use ipnet::IpNet;

use crate::key::Key;

/// Which flows are acknowledged ahead of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ActiveAck {
    /// None.
    #[default]
    Off,
    /// All whose handshake is seen and understood.
    All,
    /// Likewise, of those that are in one of these.
    Only(Vec<Flows>),
}

impl ActiveAck {
    /// Whether a flow from a sender to the host is among them.
    pub(crate) fn takes(&self, key: &Key) -> bool {
        match self {
            ActiveAck::Off => false,
            ActiveAck::All => true,
            ActiveAck::Only(flows) => flows.iter().any(|flows| flows.contains(key)),
        }
    }
}

/// Flows by who sends, and by port: `PREFIX`, `PREFIX:PORT` (an IPv6 prefix in brackets then), or
/// `:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flows {
    /// The addresses of the senders; all when there is none.
    pub senders: Option<IpNet>,
    /// The port of either end; all when there is none.
    pub port: Option<u16>,
}

impl Flows {
    fn contains(&self, key: &Key) -> bool {
        let (sender, host) = (key.source(), key.destination());
        self.senders.is_none_or(|net| net.contains(&sender.ip()))
            && self
                .port
                .is_none_or(|port| [sender.port(), host.port()].contains(&port))
    }
}

/// What is no set of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFlows(String);

impl fmt::Display for NotFlows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} names no flows; give PREFIX, PREFIX:PORT or :PORT, as in 10.0.0.0/8, 10.0.0.7:445, [2001:db8::/32]:445, :445",
            self.0
        )
    }
}

impl core::error::Error for NotFlows {}

impl FromStr for Flows {
    type Err = NotFlows;

    fn from_str(text: &str) -> Result<Flows, NotFlows> {
        let not_flows = || NotFlows(text.to_owned());
        // What is behind the last colon is a port, unless that colon belongs to an IPv6 address.
        let (senders, port) = match text.rsplit_once(':') {
            Some((senders, port)) if !senders.contains(':') || senders.ends_with(']') => {
                (senders, Some(port))
            }
            _ => (text, None),
        };
        let senders = match senders.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(not_flows)?,
            None => senders,
        };
        let port = port
            .map(|port| port.parse().map_err(|_| not_flows()))
            .transpose()?;
        if port == Some(0) || senders.is_empty() && port.is_none() {
            return Err(not_flows());
        }
        let senders = match senders {
            "" => None,
            one => {
                let host = || one.parse().map(|host: IpAddr| host.into()).ok();
                Some(one.parse().ok().or_else(host).ok_or_else(not_flows)?)
            }
        };
        Ok(Flows { senders, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_by_name() {
        let key = |text: &str| {
            let (sender, host) = text.split_once(' ').expect("two ends");
            Key::between(
                sender.parse().expect("an end"),
                host.parse().expect("an end"),
            )
        };
        let v4 = key("10.1.2.3:4000 10.9.9.9:445");
        let v6 = key("[2001:db8::7]:445 [2001:db8:9::1]:5000");
        for (text, takes) in [
            (":445", [true, true]),
            (":4000", [true, false]),
            ("10.0.0.0/8", [true, false]),
            ("10.1.2.3", [true, false]),
            ("10.9.9.9", [false, false]),
            ("10.1.2.3:445", [true, false]),
            ("10.1.2.3/32:80", [false, false]),
            ("2001:db8::/32", [false, true]),
            ("2001:db8::7", [false, true]),
            ("[2001:db8::/32]:445", [false, true]),
            ("[2001:db8::/32]:446", [false, false]),
            ("[2001:db8::7]", [false, true]),
        ] {
            let only = ActiveAck::Only(vec![text.parse().expect(text)]);
            assert_eq!([v4, v6].map(|key| only.takes(&key)), takes, "{text}");
        }
        for text in [
            "",
            ":",
            ":0",
            ":65536",
            "10.0.0.0/33",
            "host:80",
            "[::1",
            "]:80",
            "1.2.3.4:x",
        ] {
            let error = text.parse::<Flows>().expect_err(text);
            assert!(error.to_string().contains(":445"), "{error}");
        }
    }
}
