//! The calls that open packet sockets: every `unsafe` of them is here.

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use millrace_wire::ethernet::{EtherType, Mac};
use millrace_wire::vlan::Tag;

use super::config::Config;
use super::error::Error;
use crate::ioctl::{Request, check, interface_call};

/// Bytes that the kernel holds for one socket before it drops: 64 large units.
const RECEIVE_BUFFER: c_int = 8 << 20;
/// `PACKET_IGNORE_OUTGOING`: what the kernel and others send on the device is not for us.
const PACKET_IGNORE_OUTGOING: c_int = 23;
/// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`: the same for a group.
const FANOUT_IGNORE_OUTGOING: c_uint = 0x4000;
const ETH_P_ALL: u16 = 3;
/// The type of the tag that was taken off, as a filter asks for it.
const SKF_AD_VLAN_TPID: c_int = 60;

/// Whose frames a socket is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lan {
    /// Those without a tag.
    Untagged,
    /// Those of one virtual LAN.
    Tagged(Tag),
    /// All, and what their tags were is told.
    All,
}

/// What is known of a device.
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) mtu: u16,
}

/// Looks a device up. It must be up, and an Ethernet.
pub(crate) fn find(name: &str) -> Result<Device, Error> {
    let operation = "look at the network device";
    let fail = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENODEV) => Error::Missing {
            device: name.to_owned(),
        },
        _ => Error::system(operation, name, error),
    };
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| fail(error.into()))?;
    let call = |operation| {
        let mut request = Request::about(name);
        interface_call(socket.as_fd(), operation, &mut request)
            .map(|()| request)
            .map_err(fail)
    };
    if call(libc::SIOCGIFFLAGS as libc::Ioctl)?.flags() & libc::IFF_UP as u16 == 0 {
        return Err(Error::Down {
            device: name.to_owned(),
        });
    }
    // The hardware address comes as a socket address, whose family is the kind of hardware.
    if call(libc::SIOCGIFHWADDR as libc::Ioctl)?.flags() != libc::ARPHRD_ETHER {
        return Err(Error::NotEthernet {
            device: name.to_owned(),
        });
    }
    let mtu = call(libc::SIOCGIFMTU as libc::Ioctl)?.number();
    Ok(Device {
        index: call(libc::SIOCGIFINDEX as libc::Ioctl)?.number(),
        mtu: u16::try_from(mtu).unwrap_or(u16::MAX).min(crate::MTU_MAX),
    })
}

/// A socket that receives the frames to `mac`, and those to everybody, and sends on the device.
pub(super) fn open(config: &Config, device: &Device, mac: Mac, lan: Lan) -> Result<OwnedFd, Error> {
    let name = &config.device;
    let fail = |operation| move |error| Error::system(operation, name, error);
    let socket = listen(name, device, &to_station(mac, lan), lan == Lan::All)?;
    join(&socket, device, libc::PACKET_MR_PROMISC, None)
        .map_err(fail("listen promiscuously on"))?;
    if config.queues > 1 {
        // Any number that is the same for all of ours; the hash keeps a flow on one socket.
        let kind = libc::PACKET_FANOUT_HASH | FANOUT_IGNORE_OUTGOING;
        let group = (std::process::id() as c_uint & 0xffff) | kind << 16;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &group)
            .map_err(fail("share the frames among the queues of"))?;
    }
    Ok(socket)
}

/// Has a socket receive the frames to `mac` from now on.
pub(super) fn hear(socket: &OwnedFd, mac: Mac, lan: Lan) -> io::Result<()> {
    attach(socket, &to_station(mac, lan))
}

#[cfg(feature = "xdp")]
/// A socket that receives what goes to more than one station and has no tag. While it is there the
/// device takes frames to `mac`, too, and those to every group.
pub(crate) fn open_groups(name: &str, device: &Device, mac: Mac) -> Result<OwnedFd, Error> {
    let fail = |operation| move |error| Error::system(operation, name, error);
    let socket = listen(name, device, &to_groups(), false)?;
    join(&socket, device, libc::PACKET_MR_UNICAST, Some(mac))
        .map_err(fail("add a link-layer address to"))?;
    join(&socket, device, libc::PACKET_MR_ALLMULTI, None)
        .map_err(fail("listen to all groups on"))?;
    Ok(socket)
}

#[cfg(feature = "xdp")]
/// A socket that receives nothing. While it is there the device takes the frames to every station.
pub(crate) fn promiscuous(name: &str, device: &Device) -> Result<OwnedFd, Error> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::PACKET,
        rustix::net::SocketType::RAW,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(io::Error::from)
    .and_then(|socket| {
        join(&socket, device, libc::PACKET_MR_PROMISC, None)?;
        Ok(socket)
    });
    socket.map_err(|error| Error::system("listen promiscuously on", name, error))
}

/// A socket on a device that receives what `filter` lets through; with `tags` it tells those of
/// virtual LANs.
fn listen(
    name: &str,
    device: &Device,
    filter: &[libc::sock_filter],
    tags: bool,
) -> Result<OwnedFd, Error> {
    let fail = |operation| move |error| Error::system(operation, name, error);
    // Of no protocol until it is bound: nothing from other devices gets in before.
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: a call with numbers only.
    let raw = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })
        .map_err(fail("open a packet socket for"))?;
    // SAFETY: just opened, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    let set = |level: c_int, option: c_int, operation: &'static str, value: c_int| {
        set_option(&socket, level, option, &value).map_err(fail(operation))
    };
    set(
        libc::SOL_PACKET,
        libc::PACKET_VNET_HDR,
        "ask for offloads on",
        1,
    )?;
    set(
        libc::SOL_PACKET,
        PACKET_IGNORE_OUTGOING,
        "ignore what others send on",
        1,
    )?;
    set(
        libc::SOL_SOCKET,
        libc::SO_RCVBUFFORCE,
        "set the receive buffer for",
        RECEIVE_BUFFER,
    )?;
    if tags {
        set(
            libc::SOL_PACKET,
            super::tagged::PACKET_AUXDATA,
            "ask for tags on",
            1,
        )?;
    }
    attach(&socket, filter).map_err(fail("set a filter for"))?;

    // SAFETY: zeros are a socket address of this family.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ETH_P_ALL.to_be();
    address.sll_ifindex = device.index as c_int;
    // SAFETY: the address outlives the call, and is as long as is said.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as u32,
        )
    })
    .map_err(fail("bind a packet socket to"))?;
    Ok(socket)
}

/// Has the device take more frames than those to its own address, as long as the socket is there.
fn join(socket: &OwnedFd, device: &Device, kind: c_int, mac: Option<Mac>) -> io::Result<()> {
    // SAFETY: zeros are a value of it.
    let mut member: libc::packet_mreq = unsafe { std::mem::zeroed() };
    member.mr_ifindex = device.index as c_int;
    member.mr_type = kind as u16;
    if let Some(mac) = mac {
        member.mr_alen = mac.0.len() as u16;
        member.mr_address[..mac.0.len()].copy_from_slice(&mac.0);
    }
    set_option(
        socket,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &member,
    )
}

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
// Each virtual LAN is a network of its own. The device or the kernel has taken the tag off, and
// noted what it was.
const TAGGED: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
const TAG: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG) as u32;
const TAG_TYPE: u32 = (libc::SKF_AD_OFF + SKF_AD_VLAN_TPID) as u32;
const TAG_ID: u32 = 0xfff;

fn line(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Leaves with what has a tag; what has none goes on behind the last line.
fn untagged() -> Vec<libc::sock_filter> {
    vec![
        line(LOAD_BYTE, TAGGED, 0, 0),
        line(JUMP_EQUAL, 0, 1, 0),
        line(RETURN, 0, 0, 0),
    ]
}

/// Lets through what goes to `mac` and what goes to more than one station.
fn to_station(mac: Mac, lan: Lan) -> Vec<libc::sock_filter> {
    let [a, b, c, d, e, f] = mac.0;
    let mut program = match lan {
        Lan::All => vec![],
        Lan::Untagged => untagged(),
        Lan::Tagged(tag) => vec![
            line(LOAD_BYTE, TAGGED, 0, 0),
            line(JUMP_EQUAL, 0, 5, 0),
            line(LOAD_WORD, TAG_TYPE, 0, 0),
            line(JUMP_EQUAL, EtherType::VLAN.0.into(), 0, 3),
            line(LOAD_WORD, TAG, 0, 0),
            line(AND, TAG_ID, 0, 0),
            line(JUMP_EQUAL, tag.id().into(), 1, 0),
            line(RETURN, 0, 0, 0),
        ],
    };
    program.extend([
        line(LOAD_BYTE, 0, 0, 0),
        line(JUMP_SET, 1, 4, 0),
        line(LOAD_WORD, 0, 0, 0),
        line(JUMP_EQUAL, u32::from_be_bytes([a, b, c, d]), 0, 3),
        line(LOAD_HALF, 4, 0, 0),
        line(JUMP_EQUAL, u32::from(u16::from_be_bytes([e, f])), 0, 1),
        line(RETURN, u32::MAX, 0, 0),
        line(RETURN, 0, 0, 0),
    ]);
    program
}

#[cfg(feature = "xdp")]
/// Lets through what goes to more than one station.
fn to_groups() -> Vec<libc::sock_filter> {
    let mut program = untagged();
    program.extend([
        line(LOAD_BYTE, 0, 0, 0),
        line(JUMP_SET, 1, 0, 1),
        line(RETURN, u32::MAX, 0, 0),
        line(RETURN, 0, 0, 0),
    ]);
    program
}

/// Attaches a program of the kernel's first packet filter.
fn attach(socket: &OwnedFd, lines: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: lines.len() as u16,
        // The kernel only reads them.
        filter: lines.as_ptr().cast_mut(),
    };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

fn set_option<T>(socket: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value outlives the call, and is as long as is said; what it may point to does,
    // too.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as u32,
        )
    })
    .map(drop)
}
