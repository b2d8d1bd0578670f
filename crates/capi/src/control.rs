//! Control messages: what rides along with a datagram, as bytes in the layout of `struct cmsghdr`.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, cmsghdr};
use millrace::{OptName, Record, SendTo};

use crate::host::Host;
use crate::outcome::Outcome;

const HEAD: usize = size_of::<cmsghdr>();
/// A message begins at a multiple of this, with its length.
const WORD: usize = size_of::<usize>();
/// `struct in_pktinfo` and `struct in6_pktinfo`.
const INFO_V4: usize = 12;
const INFO_V6: usize = 20;
/// The interfaces as a program of Linux's may know them: loopback is always 1.
const LOOPBACK: u32 = 1;
const LINK: u32 = 2;

/// What a socket for datagrams tells of each (`IP_PKTINFO`, ...), by option.
pub const TELLING: [OptName; 6] = [
    OptName::PacketInfo,
    OptName::ReceiveTtl,
    OptName::ReceiveTos,
    OptName::PacketInfoV6,
    OptName::ReceiveHopLimit,
    OptName::ReceiveTrafficClass,
];

/// The bit of an option of [`TELLING`] in what a socket keeps.
pub fn bit(name: OptName) -> Option<u8> {
    let at = TELLING.iter().position(|one| *one == name);
    at.map(|at| 1 << at)
}

/// Reads what is said of a datagram that is to be sent.
///
/// # Errors
/// `EINVAL` for what Linux takes for nonsense, or what is not implemented.
pub fn read(mut rest: &[u8], what: &mut SendTo) -> Outcome<()> {
    while rest.len() >= HEAD {
        let len = rest
            .first_chunk()
            .map_or(0, |len| usize::from_ne_bytes(*len));
        if len < HEAD || len > rest.len() {
            return Err(libc::EINVAL);
        }
        let (level, kind) = (int(&rest[WORD..])?, int(&rest[WORD + 4..])?);
        take(what, level, kind, &rest[HEAD..len])?;
        rest = &rest[len.next_multiple_of(WORD).min(rest.len())..];
    }
    Ok(())
}

fn int(bytes: &[u8]) -> Outcome<c_int> {
    let bytes = bytes.first_chunk().ok_or(libc::EINVAL)?;
    Ok(c_int::from_ne_bytes(*bytes))
}

fn byte(bytes: &[u8]) -> Outcome<u8> {
    u8::try_from(int(bytes)?).map_err(|_| libc::EINVAL)
}

fn take(what: &mut SendTo, level: c_int, kind: c_int, data: &[u8]) -> Outcome<()> {
    match (level, kind) {
        (IPPROTO_IP, libc::IP_PKTINFO) => {
            let info: &[u8; INFO_V4] = data.first_chunk().ok_or(libc::EINVAL)?;
            let from = Ipv4Addr::new(info[4], info[5], info[6], info[7]);
            what.from = (!from.is_unspecified()).then_some(from.into());
        }
        (IPPROTO_IPV6, libc::IPV6_PKTINFO) if data.len() >= INFO_V6 => {
            let octets: &[u8; 16] = data.first_chunk().ok_or(libc::EINVAL)?;
            let from = Ipv6Addr::from(*octets).to_canonical();
            what.from = (!from.is_unspecified()).then_some(from);
        }
        (IPPROTO_IP, libc::IP_TTL) => match byte(data)? {
            0 => return Err(libc::EINVAL),
            hops => what.hops = Some(hops),
        },
        (IPPROTO_IP, libc::IP_TOS) => {
            what.class = Some(match data {
                [class] => *class,
                _ => byte(data)?,
            });
        }
        // The socket's own.
        (IPPROTO_IPV6, libc::IPV6_HOPLIMIT) if int(data)? == -1 => what.hops = None,
        (IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => what.hops = Some(byte(data)?),
        (IPPROTO_IPV6, libc::IPV6_TCLASS) if int(data)? == -1 => what.class = None,
        (IPPROTO_IPV6, libc::IPV6_TCLASS) => what.class = Some(byte(data)?),
        (IPPROTO_UDP, libc::UDP_SEGMENT) => {
            let bytes = data.first_chunk().ok_or(libc::EINVAL)?;
            what.segment = u16::from_ne_bytes(*bytes);
        }
        _ => return Err(libc::EINVAL),
    }
    Ok(())
}

/// Room for what is told of a datagram that has come.
#[derive(Debug)]
pub struct Riders<'a> {
    room: &'a mut [u8],
    /// Bytes used.
    pub used: usize,
    /// Something did not fit (`MSG_CTRUNC`).
    pub cut: bool,
}

impl<'a> Riders<'a> {
    /// Nothing yet.
    pub fn new(room: &'a mut [u8]) -> Riders<'a> {
        Riders {
            room,
            used: 0,
            cut: false,
        }
    }

    /// Adds a message as Linux does: cut to what fits.
    fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let room = &mut self.room[self.used..];
        if room.len() < HEAD {
            self.cut = true;
            return;
        }
        let len = (HEAD + data.len()).min(room.len());
        self.cut |= len < HEAD + data.len();
        room[..WORD].copy_from_slice(&len.to_ne_bytes());
        room[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        room[WORD + 4..HEAD].copy_from_slice(&kind.to_ne_bytes());
        room[HEAD..len].copy_from_slice(&data[..len - HEAD]);
        self.used += len.next_multiple_of(WORD).min(room.len());
    }

    /// What a socket with these bits wants to know. `own` is the address of ours that stands for
    /// the one that the datagram was sent to.
    pub fn tell(&mut self, bits: u8, family: c_int, record: &Record, own: Ipv4Addr) {
        let index = if record.to.is_loopback() {
            LOOPBACK
        } else {
            LINK
        }
        .to_ne_bytes();
        for (at, name) in TELLING.into_iter().enumerate() {
            if bits & (1 << at) == 0 {
                continue;
            }
            let (hops, class) = (c_int::from(record.hops), c_int::from(record.class));
            match (name, record.to) {
                (OptName::PacketInfo, IpAddr::V4(to)) => {
                    let info = [index, own.octets(), to.octets()].concat();
                    self.put(IPPROTO_IP, libc::IP_PKTINFO, &info);
                }
                (OptName::ReceiveTtl, IpAddr::V4(_)) => {
                    self.put(IPPROTO_IP, libc::IP_TTL, &hops.to_ne_bytes());
                }
                (OptName::ReceiveTos, IpAddr::V4(_)) => {
                    self.put(IPPROTO_IP, libc::IP_TOS, &[record.class]);
                }
                (OptName::PacketInfoV6, to) if family == libc::AF_INET6 => {
                    let to = match to {
                        IpAddr::V4(to) => to.to_ipv6_mapped(),
                        IpAddr::V6(to) => to,
                    };
                    let info = [&to.octets()[..], &index].concat();
                    self.put(IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
                }
                (OptName::ReceiveHopLimit, IpAddr::V6(_)) => {
                    self.put(IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops.to_ne_bytes());
                }
                (OptName::ReceiveTrafficClass, IpAddr::V6(_)) => {
                    self.put(IPPROTO_IPV6, libc::IPV6_TCLASS, &class.to_ne_bytes());
                }
                _ => {}
            }
        }
    }
}

impl Host {
    /// Tells what a socket wants to know of a datagram.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn tell(&self, key: u32, record: &Record, riders: &mut Riders<'_>) -> Outcome<()> {
        let (bits, family) = {
            let things = self.things.borrow();
            let socket = things.socket(key)?;
            (socket.telling, socket.family)
        };
        if bits == 0 {
            return Ok(());
        }
        let own = match record.to {
            IpAddr::V4(to) => self
                .stack
                .with_sockets(|sockets| own(sockets.addresses(), to)),
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        riders.tell(bits, family, record, own);
        Ok(())
    }
}

/// The address of ours, of these and their prefixes, that stands for one that may be several
/// hosts'.
fn own(ours: &[(Ipv4Addr, u8)], to: Ipv4Addr) -> Ipv4Addr {
    let first = ours.first().map_or(to, |(first, _)| *first);
    if to.is_multicast() || to.is_broadcast() {
        return first;
    }
    let mut ours = ours.iter().filter(|(_, bits)| *bits < 31);
    let broadcast = |address: Ipv4Addr, bits: u8| address.to_bits() | u32::MAX >> bits;
    let found = ours.find(|(address, bits)| broadcast(*address, *bits) == to.to_bits());
    found.map_or(to, |(address, _)| *address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: c_int, kind: c_int, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEAD + data.len()).to_ne_bytes().to_vec();
        bytes.extend([level.to_ne_bytes(), kind.to_ne_bytes()].concat());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(WORD), 0);
        bytes
    }

    fn record(to: &str) -> Record {
        Record {
            payload_len: 1,
            from: "10.0.0.9:9".parse().expect("an address"),
            to: to.parse().expect("an address"),
            to_port: 9,
            hops: 63,
            class: 8,
            segment_size: 0,
            dropped: 0,
        }
    }

    #[test]
    fn what_is_said_is_heard() {
        let mut all = message(IPPROTO_IP, libc::IP_TTL, &7i32.to_ne_bytes());
        all.extend(message(IPPROTO_IP, libc::IP_TOS, &[4]));
        let info = [0, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0];
        all.extend(message(IPPROTO_IP, libc::IP_PKTINFO, &info));
        let mut what = SendTo::default();
        assert_eq!(read(&all, &mut what), Ok(()));
        assert_eq!((what.hops, what.class), (Some(7), Some(4)));
        assert_eq!(what.from, Some(Ipv4Addr::new(10, 0, 0, 1).into()));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut long = message(IPPROTO_IP, libc::IP_TOS, &[4]);
        long[0] = 200;
        let mut short = long.clone();
        short[0] = 3;
        for bytes in [
            long,
            short,
            message(IPPROTO_IP, libc::IP_TTL, &[]),
            message(IPPROTO_IP, libc::IP_TTL, &0i32.to_ne_bytes()),
            message(IPPROTO_IP, libc::IP_TTL, &256i32.to_ne_bytes()),
            message(IPPROTO_IP, libc::IP_PKTINFO, &[0; 11]),
            message(IPPROTO_IPV6, libc::IPV6_PKTINFO, &[0; 19]),
            message(libc::SOL_SOCKET, libc::SCM_RIGHTS, &[0; 4]),
        ] {
            assert_eq!(
                read(&bytes, &mut SendTo::default()),
                Err(libc::EINVAL),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_cut() {
        let own = Ipv4Addr::new(10, 0, 0, 1);
        for room in 0..128 {
            let mut bytes = vec![0; room];
            let mut riders = Riders::new(&mut bytes);
            riders.tell(0b11_1111, libc::AF_INET, &record("10.0.0.1"), own);
            let whole = 2 * (HEAD + 8) + HEAD + INFO_V4 + 4;
            assert_eq!(riders.cut, room + 7 < whole, "{room}");
            assert!(riders.used <= room);
        }
    }

    #[test]
    fn a_socket_for_both_families_hears_of_ipv4_as_linux_has_it() {
        let mut bytes = [0; 256];
        let mut riders = Riders::new(&mut bytes);
        riders.tell(
            0b1000,
            libc::AF_INET6,
            &record("10.0.0.1"),
            Ipv4Addr::UNSPECIFIED,
        );
        let used = riders.used;
        assert_eq!(used, HEAD + INFO_V6 + 4);
        assert_eq!(bytes[HEAD + 10..HEAD + 16], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(bytes[HEAD + 16..HEAD + 20], LINK.to_ne_bytes());
    }

    #[test]
    fn what_was_sent_to_many_is_answered_by_one() {
        let address = |text: &str| text.parse::<Ipv4Addr>().expect("an address");
        let ours = [(address("10.0.0.1"), 24), (address("10.1.0.7"), 16)];
        for (to, one) in [
            ("10.1.0.7", "10.1.0.7"),
            ("10.1.255.255", "10.1.0.7"),
            ("255.255.255.255", "10.0.0.1"),
            ("224.0.0.251", "10.0.0.1"),
            ("127.0.0.3", "127.0.0.3"),
        ] {
            assert_eq!(own(&ours, address(to)), address(one), "{to}");
        }
    }
}
