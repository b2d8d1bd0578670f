//! The control messages of datagrams: those that programs send, and those that they receive.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, SOL_SOCKET, cmsghdr, msghdr};
use millrace_context::reply::Failure;
use millrace_sockopt::OptName;
use millrace_sockopt::numbers::{IPV6_RECVERR, UDP_GRO, UDP_SEGMENT};
use millrace_wire::record::Record;
use rustix::io::Errno;

use crate::socket::Socket;
use crate::socket::device_binding::LOOPBACK;
use crate::socket::options;
use crate::sys::Result;
use crate::sys::user_buffers;

const HEAD: usize = size_of::<cmsghdr>();

/// The settings for one datagram that a program gives in control messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub from: Option<IpAddr>,
    pub hops: Option<u8>,
    pub class: Option<u8>,
    pub segment: Option<u16>,
}

/// Reads the control messages of a message to be sent. `INVAL`: Linux rejects one of them, or it is
/// not implemented.
///
/// # Safety
/// The message is valid.
pub unsafe fn read(message: &msghdr) -> Result<Asked> {
    let mut asked = Asked::default();
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return Ok(asked);
    }
    user_buffers::check(message.msg_control, message.msg_controllen)?;
    // SAFETY: the caller's promise.
    let bytes = unsafe {
        std::slice::from_raw_parts(message.msg_control.cast::<u8>(), message.msg_controllen)
    };
    let mut rest = bytes;
    while rest.len() >= HEAD {
        let word =
            |at: usize| i32::from_ne_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        let len = usize::from_ne_bytes(*rest.first_chunk().unwrap_or(&[0; 8]));
        if len < HEAD || len > rest.len() {
            return Err(Errno::INVAL);
        }
        asked.take(word(8), word(12), &rest[HEAD..len])?;
        rest = &rest[len.next_multiple_of(8).min(rest.len())..];
    }
    Ok(asked)
}

impl Asked {
    fn take(&mut self, level: c_int, kind: c_int, data: &[u8]) -> Result<()> {
        let int = || -> Result<c_int> {
            let bytes = data.first_chunk().ok_or(Errno::INVAL)?;
            Ok(c_int::from_ne_bytes(*bytes))
        };
        let byte = || int().and_then(|value| u8::try_from(value).map_err(|_| Errno::INVAL));
        match (level, kind) {
            (IPPROTO_IP, libc::IP_PKTINFO) => {
                let info = data.get(..12).ok_or(Errno::INVAL)?;
                let from = Ipv4Addr::new(info[4], info[5], info[6], info[7]);
                self.from = (!from.is_unspecified()).then_some(from.into());
            }
            (IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let octets: [u8; 16] = *data
                    .get(..20)
                    .and_then(|info| info.first_chunk())
                    .ok_or(Errno::INVAL)?;
                let from = Ipv6Addr::from(octets).to_canonical();
                self.from = (!from.is_unspecified()).then_some(from);
            }
            (IPPROTO_IP, libc::IP_TTL) => match byte()? {
                0 => return Err(Errno::INVAL),
                hops => self.hops = Some(hops),
            },
            (IPPROTO_IPV6, libc::IPV6_HOPLIMIT) if int()? == -1 => self.hops = None,
            (IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => self.hops = Some(byte()?),
            (IPPROTO_IP, libc::IP_TOS) => {
                self.class = Some(match data {
                    [class] => *class,
                    _ => byte()?,
                });
            }
            (IPPROTO_IPV6, libc::IPV6_TCLASS) if int()? == -1 => self.class = None,
            (IPPROTO_IPV6, libc::IPV6_TCLASS) => self.class = Some(byte()?),
            (IPPROTO_UDP, UDP_SEGMENT) => {
                let bytes = data.first_chunk().ok_or(Errno::INVAL)?;
                self.segment = Some(u16::from_ne_bytes(*bytes));
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }
}

/// Room for the control messages of a received message.
pub struct Riders {
    at: *mut u8,
    room: usize,
    used: usize,
    /// A control message did not fit.
    pub cut: bool,
}

impl Riders {
    /// The room that a message has. `FAULT`: the pointer cannot be valid.
    ///
    /// # Safety
    /// The room stays valid while this value is used.
    pub unsafe fn of(message: &msghdr) -> Result<Riders> {
        let room = if message.msg_control.is_null() {
            0
        } else {
            message.msg_controllen
        };
        user_buffers::check(message.msg_control, room)?;
        Ok(Riders {
            at: message.msg_control.cast(),
            room,
            used: 0,
            cut: false,
        })
    }

    /// The number of bytes used.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Adds a control message, cut to what fits, as Linux's `put_cmsg` does.
    fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let left = self.room - self.used;
        if left < HEAD {
            self.cut = true;
            return;
        }
        let len = (HEAD + data.len()).min(left);
        self.cut |= len < HEAD + data.len();
        let mut head = [0u8; HEAD];
        head[..8].copy_from_slice(&len.to_ne_bytes());
        head[8..12].copy_from_slice(&level.to_ne_bytes());
        head[12..16].copy_from_slice(&kind.to_ne_bytes());
        // SAFETY: `used + len` is within the room, which the maker of `self` vouches for.
        unsafe {
            let to = self.at.add(self.used);
            std::ptr::copy_nonoverlapping(head.as_ptr(), to, HEAD);
            std::ptr::copy_nonoverlapping(data.as_ptr(), to.add(HEAD), len - HEAD);
        }
        self.used += len.next_multiple_of(8).min(left);
    }

    fn put_int(&mut self, level: c_int, kind: c_int, value: c_int) {
        self.put(level, kind, &value.to_ne_bytes());
    }

    /// Adds the control messages that the socket wants for a datagram.
    pub fn tell(&mut self, socket: &Socket, record: &Record) {
        if !options::has_switches(socket) {
            return;
        }
        let wants = |name| options::is_on(socket, name);
        if wants(OptName::DropCount) && record.dropped != 0 {
            self.put_int(SOL_SOCKET, libc::SO_RXQ_OVFL, record.dropped as c_int);
        }
        if wants(OptName::UdpGro) && record.segment_size != 0 {
            self.put_int(IPPROTO_UDP, UDP_GRO, record.segment_size.into());
        }
        let index = device_index(socket, record.to);
        let v6_socket = family(socket) == libc::AF_INET6;
        if v6_socket && wants(OptName::PacketInfoV6) {
            let mut info = [0u8; 20];
            info[..16].copy_from_slice(&millrace_context::layout::mapped(record.to).octets());
            info[16..].copy_from_slice(&index.to_ne_bytes());
            self.put(IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        match record.to {
            IpAddr::V4(to) => {
                if wants(OptName::PacketInfo) {
                    // The address to answer from, then the destination of the datagram.
                    let own = own_v4(socket, to);
                    let mut info = [0u8; 12];
                    info[..4].copy_from_slice(&index.to_ne_bytes());
                    info[4..8].copy_from_slice(&own.octets());
                    info[8..].copy_from_slice(&to.octets());
                    self.put(IPPROTO_IP, libc::IP_PKTINFO, &info);
                }
                if wants(OptName::ReceiveTtl) {
                    self.put_int(IPPROTO_IP, libc::IP_TTL, record.hops.into());
                }
                if wants(OptName::ReceiveTos) {
                    self.put(IPPROTO_IP, libc::IP_TOS, &[record.class]);
                }
            }
            IpAddr::V6(_) => {
                if wants(OptName::ReceiveHopLimit) {
                    self.put_int(IPPROTO_IPV6, libc::IPV6_HOPLIMIT, record.hops.into());
                }
                if wants(OptName::ReceiveTrafficClass) {
                    self.put_int(IPPROTO_IPV6, libc::IPV6_TCLASS, record.class.into());
                }
            }
        }
    }

    /// Adds the control messages about an error.
    pub fn tell_failure(&mut self, socket: &Socket, failure: &Failure) {
        const ORIGIN_ICMP: u8 = 2;
        const ORIGIN_ICMP6: u8 = 3;
        let offender = Ipv6Addr::from(failure.offender);
        let v4 = offender.to_ipv4_mapped();
        let mut data = [0u8; 44];
        data[..4].copy_from_slice(&failure.errno.to_ne_bytes());
        data[4] = if v4.is_some() {
            ORIGIN_ICMP
        } else {
            ORIGIN_ICMP6
        };
        data[5..7].copy_from_slice(&[failure.kind, failure.code]);
        data[8..12].copy_from_slice(&failure.info.to_ne_bytes());
        if family(socket) == libc::AF_INET6 {
            data[16..18].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            data[24..40].copy_from_slice(&failure.offender);
            self.put(IPPROTO_IPV6, IPV6_RECVERR, &data);
        } else {
            data[16..18].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            let v4 = v4.unwrap_or(Ipv4Addr::UNSPECIFIED);
            data[20..24].copy_from_slice(&v4.octets());
            self.put(IPPROTO_IP, libc::IP_RECVERR, &data[..32]);
        }
    }
}

fn family(socket: &Socket) -> c_int {
    socket.slot.app_cold.family.load(Ordering::Relaxed)
}

/// The index of the device by which a datagram to `to` came: the kernel's end of the link.
fn device_index(socket: &Socket, to: IpAddr) -> u32 {
    match socket.engine.region.header().device_index {
        0 => LOOPBACK,
        _ if to.is_loopback() => LOOPBACK,
        index => index,
    }
}

/// The engine's own address that stands for a multicast or broadcast address.
fn own_v4(socket: &Socket, to: Ipv4Addr) -> Ipv4Addr {
    let header = socket.engine.region.header();
    if !to.is_multicast() && !header.is_broadcast(to) {
        return to;
    }
    let own = header.own().find_map(|own| own.to_ipv4_mapped());
    own.unwrap_or(to)
}
