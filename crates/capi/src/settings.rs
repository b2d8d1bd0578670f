//! What an engine is to be: keys and values, one by one or from a file.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use millrace::{
    Algorithm, Buffers, Builder, Duration, Ecn, Limits, Link, LinkOptions, LinkSpec, Route,
    TcpConfig, parse_prefix,
};

/// Everything that can be said of an engine.
#[derive(Clone, Debug)]
pub struct Settings {
    link: Option<LinkSpec>,
    hosts: Vec<(IpAddr, u8)>,
    mtu: Option<u16>,
    pub shards: u16,
    addresses: Vec<(IpAddr, u8)>,
    routes: Vec<Route>,
    any_address: bool,
    loopback: bool,
    pub manual_clock: bool,
    pub limits: Limits,
    pub buffers: Buffers,
    pub tcp: TcpConfig,
    pub receive_memory: u64,
    secret: Option<[u8; 32]>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            link: None,
            hosts: Vec::new(),
            mtu: None,
            shards: 1,
            addresses: Vec::new(),
            routes: Vec::new(),
            any_address: false,
            loopback: true,
            manual_clock: false,
            limits: Limits::default(),
            buffers: Buffers::default(),
            tcp: TcpConfig::default(),
            receive_memory: 1 << 30,
            secret: None,
        }
    }
}

/// The largest buffer that can be asked for, in bytes.
const BUFFER_MAX: u32 = 16 << 20;

/// The keys, as they are named when one is not among them.
const KEYS: &str = "link, host, mtu, shards, address, route, gateway, any_address, loopback, clock, congestion, ecn, sockets, half_open, time_wait, orphans, neighbours, \
                    send_memory, receive_memory, send_buffer, send_buffer_max, receive_buffer, receive_buffer_max, time_wait_seconds, secret";

impl Settings {
    /// Says one thing.
    ///
    /// # Errors
    /// What is wrong, with the key.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        self.try_set(key, value)
            .map_err(|what| format!("{key}: {what}"))
    }

    fn try_set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "link" if value == "none" => self.link = None,
            "link" if self.link.is_some() => {
                return Err(
                    "there is one; an engine in C has one link, one in Rust several".into(),
                );
            }
            "link" if value == "pair" => {
                return Err(
                    "a pair has two ends in one program, which an engine in C has not".into(),
                );
            }
            "link" => self.link = Some(value.parse().map_err(text)?),
            "host" => self.hosts.push(parse_prefix(value).map_err(text)?),
            "mtu" => self.mtu = Some(number(value, 576, 65_535)?),
            "shards" => self.shards = number(value, 1, 64)?,
            "address" => self.addresses.push(parse_prefix(value).map_err(text)?),
            "route" => self.routes.push(value.parse().map_err(text)?),
            "gateway" => {
                let gateway = parsed(value, "an address")?;
                self.routes.push(Route::default_via(gateway));
            }
            "any_address" => self.any_address = switch(value)?,
            "loopback" => self.loopback = switch(value)?,
            "clock" => {
                self.manual_clock = match value {
                    "system" => false,
                    "caller" => true,
                    _ => return Err(format!("`{value}` is neither system nor caller")),
                }
            }
            "congestion" => {
                let known = Algorithm::ALL.map(|algorithm| algorithm.name()).join(", ");
                let unknown = |()| format!("`{value}` is none of {known}");
                self.tcp.congestion = value.parse().map_err(unknown)?;
            }
            "ecn" => {
                self.tcp.ecn = match value {
                    "off" => Ecn::Off,
                    "accept" => Ecn::Accept,
                    "ask" => Ecn::Ask,
                    _ => return Err(format!("`{value}` is none of off, accept, ask")),
                }
            }
            "sockets" => self.limits.sockets = number(value, 1, 1 << 24)?,
            "half_open" => self.limits.half_open = number(value, 1, 1 << 24)?,
            "time_wait" => self.limits.time_wait = number(value, 0, 1 << 24)?,
            "orphans" => self.limits.orphans = number(value, 0, 1 << 24)?,
            "neighbours" => self.limits.neighbours = number(value, 1, 1 << 20)?,
            "send_memory" => self.limits.send_memory = number(value, 65_536, 1 << 40)?,
            "receive_memory" => self.receive_memory = number(value, 65_536, 1 << 40)?,
            "send_buffer" => self.buffers.send_default = number(value, 2304, BUFFER_MAX)?,
            "send_buffer_max" => self.buffers.send_max = number(value, 2304, BUFFER_MAX)?,
            "receive_buffer" => self.buffers.receive_default = number(value, 1152, BUFFER_MAX)?,
            "receive_buffer_max" => self.buffers.receive_max = number(value, 1152, BUFFER_MAX)?,
            "time_wait_seconds" => {
                self.tcp.time_wait = Duration::from_secs(number(value, 1, 240)?);
            }
            "secret" => self.secret = Some(secret(value)?),
            _ => return Err(format!("there is no such key; there are: {KEYS}")),
        }
        Ok(())
    }

    /// Says what the lines of a text say: `KEY VALUE` or `KEY = VALUE`, empty lines, and comments
    /// after `#`.
    ///
    /// # Errors
    /// What is wrong, with the name of the text, the line and the key. What stands before that line
    /// has been said.
    pub fn read(&mut self, name: &str, text: &str) -> Result<(), String> {
        lines(text).try_for_each(|(line, key, value)| {
            self.set(key, value)
                .map_err(|what| format!("{name}:{line}: {what}"))
        })
    }

    /// Opens the link and says all that to a builder.
    ///
    /// # Errors
    /// Why the link does not open.
    pub fn builder(&self) -> Result<Builder, String> {
        let buffers = Buffers {
            send_max: self.buffers.send_max.max(self.buffers.send_default),
            receive_max: self.buffers.receive_max.max(self.buffers.receive_default),
            ..self.buffers
        };
        let mut builder = Builder::new()
            .link(self.open()?)
            .loopback(self.loopback)
            .any_address(self.any_address)
            .limits(self.limits.clone())
            .buffers(buffers)
            .tcp(self.tcp.clone())
            .receive_memory(self.receive_memory);
        for &(address, bits) in &self.addresses {
            builder = builder.address(address, bits);
        }
        for route in &self.routes {
            builder = builder.route(route.prefix, route.prefix_len, route.gateway);
        }
        // Of a device that is made here the size has been said.
        if let Some(mtu) = self.mtu {
            builder = builder.mtu(mtu);
        }
        if let Some(secret) = self.secret {
            builder = builder.secret(secret);
        }
        if self.manual_clock {
            builder = builder.manual_clock();
        }
        Ok(builder)
    }

    /// Whether the link is the caller.
    pub fn is_packets(&self) -> bool {
        self.link == Some(LinkSpec::Packets)
    }

    /// The largest packet, where the link does not say otherwise.
    pub fn mtu(&self) -> u16 {
        self.mtu.unwrap_or(1500)
    }

    fn open(&self) -> Result<Link, String> {
        let has_kernel_end = self.link.as_ref().is_some_and(LinkSpec::has_kernel_end);
        if !self.hosts.is_empty() && !has_kernel_end {
            return Err("host: only a TAP or TUN device has the kernel at its other end".into());
        }
        let of_links = [
            ("mtu", self.mtu.is_some()),
            ("route, gateway", !self.routes.is_empty()),
            ("any_address", self.any_address),
        ];
        let said = of_links.iter().find(|(_, said)| *said);
        if let (None, Some((key, _))) = (&self.link, said) {
            return Err(format!("{key}: there is no link; give one with `link`"));
        }
        let Some(link) = &self.link else {
            return Ok(Link::none());
        };
        let mut options = LinkOptions::new().queues(self.shards).mtu(self.mtu());
        options.hosts = self.hosts.clone();
        Link::open(link, &options).map_err(|error| format!("link: {error}"))
    }
}

/// An error as a message.
fn text(error: impl Display) -> String {
    error.to_string()
}

/// The lines of a configuration that say something: their numbers from 1, key and value.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let line = line.split('#').next().unwrap_or(line).trim();
        let (key, value) = line.split_once(['=', ' ', '\t']).unwrap_or((line, ""));
        let value = value.trim();
        let value = value.strip_prefix('=').unwrap_or(value).trim();
        (!line.is_empty()).then_some((index + 1, key.trim(), value))
    })
}

fn parsed<T: FromStr>(value: &str, what: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("`{value}` is not {what}"))
}

/// A number within bounds.
///
/// # Errors
/// What is wrong with it.
pub fn number<T: FromStr + PartialOrd + Display + Copy>(
    value: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    let number = value.parse::<T>().ok();
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("`{value}` is not a number from {least} to {most}"))
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{value}` is neither on nor off")),
    }
}

fn secret(value: &str) -> Result<[u8; 32], String> {
    let wrong = || "it takes 64 hexadecimal digits".to_owned();
    let mut secret = [0; 32];
    if value.len() != 64 || !value.is_ascii() {
        return Err(wrong());
    }
    for (at, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&value[at * 2..at * 2 + 2], 16).map_err(|_| wrong())?;
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_calls_say() {
        let text = "# an engine\nlink = tap:mr9\nhost 10.77.0.1/24\naddress=10.77.0.2/24 # ours\n\nroute 10.0.0.0/8 via 10.77.0.1\nshards\t2\ncongestion bbr\n";
        let mut settings = Settings::default();
        settings.read("a.conf", text).expect("good lines");
        assert_eq!(
            settings.link,
            Some(LinkSpec::Tap {
                name: Some("mr9".into())
            })
        );
        assert_eq!(
            settings.addresses.len() + settings.hosts.len() + settings.routes.len(),
            3
        );
        assert_eq!(
            (settings.shards, settings.tcp.congestion),
            (2, Algorithm::Bbr)
        );
    }

    #[test]
    fn what_is_said_of_a_link_needs_one() {
        for (text, said) in [
            ("mtu 1400", "mtu: "),
            ("route 10.0.0.0/8 via 10.77.0.1", "route, gateway: "),
            ("gateway 10.77.0.1", "route, gateway: "),
            ("any_address on", "any_address: "),
        ] {
            let mut settings = Settings::default();
            settings.read("a.conf", text).expect("a good line");
            let error = settings.builder().map(drop).expect_err(text);
            assert!(error.starts_with(said), "{error}");
            settings.set("link", "packets").expect("a link");
            settings.builder().map(drop).expect(text);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_file_line_and_key() {
        for (text, said) in [
            (
                "shards 2\ncolour blue\n",
                "a.conf:2: colour: there is no such key",
            ),
            (
                "\n\nshards 65\n",
                "a.conf:3: shards: `65` is not a number from 1 to 64",
            ),
            (
                "address 10.0.0.1",
                "a.conf:1: address: `10.0.0.1` is not an address with",
            ),
            (
                "address 10.0.0.1/33",
                "a.conf:1: address: `10.0.0.1/33` is not",
            ),
            ("route 10.0.0.0/8", "a.conf:1: route: "),
            ("link ring", "a.conf:1: link: there is no link `ring`"),
            ("link tap:", "a.conf:1: link: `` cannot name"),
            ("link packets\nlink tap", "a.conf:2: link: there is one; "),
            ("clock wall", "a.conf:1: clock: `wall` is neither"),
            (
                "congestion vegas",
                "a.conf:1: congestion: `vegas` is none of cubic",
            ),
            ("secret 00", "a.conf:1: secret: it takes 64"),
            ("loopback", "a.conf:1: loopback: `` is neither on nor off"),
        ] {
            let error = Settings::default().read("a.conf", text).expect_err(text);
            assert!(error.starts_with(said), "{error}");
        }
    }
}
