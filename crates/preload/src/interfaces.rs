//! The engine's addresses, added to the kernel's for programs that list addresses by `getifaddrs`,
//! SIOCGIFCONF, SIOCGIFADDR or a netlink dump.
//!
//! To the kernel the engine's link is a device, with the kernel's name, index and flags. Only its
//! addresses are the engine's.

pub mod netlink;

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr};

use libc::{ifaddrs, ifconf, ifreq, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rustix::io::Errno;

use crate::engine;
use crate::process::environment;
use crate::sys;
use crate::sys::{original, user_buffers};

/// An address of the engine and the length of its prefix.
#[derive(Clone, Copy)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The length of the prefix in bits.
    pub bits: u8,
}

/// The most addresses that are shown.
const MOST: usize = millrace_context::OWN_MAX;

/// The addresses that the engine adds to one of the kernel's devices.
pub struct Added {
    /// The device's index.
    pub index: u32,
    name: [u8; libc::IFNAMSIZ],
    list: [Option<Address>; MOST],
}

impl Added {
    /// `None`: there is no engine, or its link is no device of the kernel.
    pub fn now() -> Option<Added> {
        environment::get()?;
        let header = engine::get().ok()?.region.header();
        let index = header.device_index;
        let mut name = [0u8; libc::IFNAMSIZ];
        // SAFETY: room for any name. A network namespace without the device has no such index.
        if index == 0 || unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) }.is_null()
        {
            return None;
        }
        let mut list = [None; MOST];
        let network = header.routes.network();
        let own = network.own().zip(network.on_link()).map(|(ip, route)| {
            let (ip, bits) = match ip.to_ipv4_mapped() {
                Some(v4) => (v4.into(), route.bits.saturating_sub(96)),
                None => (ip.into(), route.bits),
            };
            let bits = bits as u8;
            Address { ip, bits }
        });
        // An engine that uses the kernel's own addresses adds none. Link-local addresses are the
        // kernel's.
        let own = own.filter(|own| match own.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => false,
            ip => !kernel_has(ip),
        });
        for (to, from) in list.iter_mut().zip(own) {
            *to = Some(from);
        }
        let added = Added { index, name, list };
        added.list[0].is_some().then_some(added)
    }

    /// The addresses.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.list.iter().copied().flatten()
    }

    fn addresses_v4(&self) -> impl Iterator<Item = (Ipv4Addr, u8)> {
        self.addresses().filter_map(|address| match address.ip {
            IpAddr::V4(ip) => Some((ip, address.bits)),
            IpAddr::V6(_) => None,
        })
    }

    /// The device's name.
    pub fn name(&self) -> &[u8] {
        let end = self.name.iter().position(|byte| *byte == 0);
        &self.name[..end.unwrap_or(self.name.len())]
    }
}

/// Whether the kernel has an address itself. Then a socket can be bound to it.
fn kernel_has(ip: IpAddr) -> bool {
    let family = match ip {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    let (address, len) = socket_address(ip);
    sys::can_bind(family, (&raw const address).cast(), len)
}

/// An address in the kernel's form.
fn socket_address(ip: IpAddr) -> (sockaddr_storage, u32) {
    // SAFETY: zeros are a socket address of no family.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = (&raw mut storage).cast::<c_void>();
    match ip {
        IpAddr::V4(ip) => {
            // SAFETY: the storage is large enough and aligned for any address.
            let to = unsafe { &mut *at.cast::<sockaddr_in>() };
            to.sin_family = libc::AF_INET as u16;
            to.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
            (storage, size_of::<sockaddr_in>() as u32)
        }
        IpAddr::V6(ip) => {
            // SAFETY: as above.
            let to = unsafe { &mut *at.cast::<sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as u16;
            to.sin6_addr.s6_addr = ip.octets();
            (storage, size_of::<sockaddr_in6>() as u32)
        }
    }
}

fn mask_v4(bits: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(
        u32::MAX
            .checked_shl(32 - u32::from(bits.min(32)))
            .unwrap_or(0),
    )
}

fn mask(address: Address) -> IpAddr {
    match address.ip {
        IpAddr::V4(_) => mask_v4(address.bits).into(),
        IpAddr::V6(_) => {
            let host = 128 - u32::from(address.bits.min(128));
            IpAddr::V6(u128::MAX.checked_shl(host).unwrap_or(0).into())
        }
    }
}

/// The broadcast address of a network.
pub fn broadcast(ip: Ipv4Addr, bits: u8) -> Ipv4Addr {
    ip | !mask_v4(bits)
}

/// Marks the beginning of the shim's part of a list.
const MARK: [u64; 2] = [
    u64::from_le_bytes(*b"millrace"),
    u64::from_le_bytes(*b"if-addrs"),
];

/// The shim's part of a list of addresses. The C library's allocator makes it, as it makes the
/// list.
#[repr(C)]
struct Part {
    mark: [u64; 2],
    nodes: [ifaddrs; MOST],
    addresses: [[sockaddr_storage; 3]; MOST],
    name: [u8; libc::IFNAMSIZ],
}

/// Appends the engine's addresses to the kernel's list. Without memory the list stays as it is.
///
/// # Safety
/// `list` is as getifaddrs has left it.
pub unsafe fn append(list: *mut *mut ifaddrs) {
    let Some(added) = Added::now() else {
        return;
    };
    // SAFETY: zeros are a part without nodes; the list is walked to its end, and each of its
    // pointers is good.
    unsafe {
        let part = libc::calloc(1, size_of::<Part>()).cast::<Part>();
        if part.is_null() {
            return;
        }
        (*part).mark = MARK;
        (*part).name = added.name;
        let name: *mut c_char = (&raw mut (*part).name).cast();
        let mut flags = (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_BROADCAST) as u32;
        let mut end = list;
        while !(*end).is_null() {
            if libc::strcmp((**end).ifa_name, name) == 0 {
                flags = (**end).ifa_flags;
            }
            end = &raw mut (**end).ifa_next;
        }
        for (at, address) in added.addresses().enumerate() {
            let parts = &mut (*part).addresses[at];
            parts[0] = socket_address(address.ip).0;
            parts[1] = socket_address(mask(address)).0;
            let node = &mut (*part).nodes[at];
            node.ifa_name = name;
            node.ifa_flags = flags;
            node.ifa_addr = (&raw mut parts[0]).cast::<sockaddr>();
            node.ifa_netmask = (&raw mut parts[1]).cast::<sockaddr>();
            if let IpAddr::V4(ip) = address.ip {
                parts[2] = socket_address(broadcast(ip, address.bits).into()).0;
                node.ifa_ifu = (&raw mut parts[2]).cast::<sockaddr>();
            }
            *end = node;
            end = &raw mut node.ifa_next;
        }
    }
}

/// Removes the shim's part from a list. The C library frees the rest.
///
/// # Safety
/// `list` is one that getifaddrs made, with or without the shim's part.
pub unsafe fn cut_off(list: *mut ifaddrs) -> *mut ifaddrs {
    let mut list = list;
    let mut end = &raw mut list;
    // SAFETY: the caller's promise. In front of a node there is another one, or the allocator's own
    // data, so that the mark can be looked for.
    unsafe {
        while !(*end).is_null() {
            let before = (*end).cast::<u64>().sub(MARK.len());
            if before.cast::<[u64; 2]>().read_unaligned() == MARK {
                *end = std::ptr::null_mut();
                libc::free(before.cast());
                break;
            }
            end = &raw mut (**end).ifa_next;
        }
    }
    list
}

/// Whether a request asks for the addresses of devices. The kernel answers all others.
pub fn is_request(request: u64) -> bool {
    matches!(
        request,
        libc::SIOCGIFCONF | libc::SIOCGIFADDR | libc::SIOCGIFNETMASK | libc::SIOCGIFBRDADDR
    )
}

/// Whether a request is about devices. The placeholder knows less about devices than a kernel
/// socket does.
pub fn is_about_devices(request: u64) -> bool {
    (libc::SIOCGIFNAME..=libc::SIOCGIFMAP).contains(&request)
}

/// Answers a request about devices on a millrace socket by means of a kernel socket.
///
/// # Safety
/// The requirements of ioctl hold.
pub unsafe fn control_by_probe(request: u64, argument: *mut c_void) -> c_int {
    let Ok(probe) = sys::datagram_socket() else {
        sys::set_errno(Errno::MFILE);
        return -1;
    };
    // SAFETY: the caller's promise.
    let result = unsafe {
        match is_request(request) {
            true => control(probe, request, argument),
            false => original::ioctl(probe, request, argument),
        }
    };
    sys::close(probe);
    result
}

/// Answers a request for addresses (see [`is_request`]) on a kernel socket.
///
/// # Safety
/// The requirements of ioctl hold.
pub unsafe fn control(fd: c_int, request: u64, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise; what it points to is looked at before it is used.
    unsafe {
        if request == libc::SIOCGIFCONF {
            return list(fd, argument);
        }
        let result = original::ioctl(fd, request, argument);
        // The kernel has reported a bad socket, pointer or name. A device without a kernel address
        // may have one of the engine's.
        if result != 0 && sys::last_errno() != Errno::ADDRNOTAVAIL
            || user_buffers::check(argument, size_of::<ifreq>()).is_err()
        {
            return result;
        }
        let asked = &mut *argument.cast::<ifreq>();
        let name = asked.ifr_name.map(|byte| byte as u8);
        let Some(added) = Added::now()
            .filter(|added| name.starts_with(added.name()) && name[added.name().len()] == 0)
        else {
            return result;
        };
        let Some((ip, bits)) = added.addresses_v4().next() else {
            return result;
        };
        let shown = match request {
            libc::SIOCGIFADDR => ip,
            libc::SIOCGIFNETMASK => mask_v4(bits),
            _ => broadcast(ip, bits),
        };
        let (address, _) = socket_address(shown.into());
        asked.ifr_ifru.ifru_addr = (&raw const address).cast::<sockaddr>().read();
        0
    }
}

/// Answers SIOCGIFCONF: IPv4 addresses with their devices' names, as many as fit, or the room that
/// they need.
///
/// # Safety
/// The requirements of ioctl hold.
unsafe fn list(fd: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise; the kernel has accepted both pointers when it has answered.
    unsafe {
        let room = match user_buffers::check(argument, size_of::<ifconf>()) {
            Ok(()) => (*argument.cast::<ifconf>()).ifc_len,
            Err(_) => 0,
        };
        let result = original::ioctl(fd, libc::SIOCGIFCONF, argument);
        let Some(added) = Added::now().filter(|_| result == 0) else {
            return result;
        };
        let asked = &mut *argument.cast::<ifconf>();
        let one = size_of::<ifreq>() as c_int;
        for (ip, _) in added.addresses_v4() {
            let to = asked.ifc_ifcu.ifcu_req;
            if !to.is_null() {
                if asked.ifc_len + one > room {
                    break;
                }
                let mut entry: ifreq = std::mem::zeroed();
                entry.ifr_name = added.name.map(|byte| byte as c_char);
                let (address, _) = socket_address(ip.into());
                entry.ifr_ifru.ifru_addr = (&raw const address).cast::<sockaddr>().read();
                let at = to.cast::<u8>().add(asked.ifc_len as usize);
                at.cast::<ifreq>().write_unaligned(entry);
            }
            asked.ifc_len += one;
        }
        0
    }
}

/// Whether a socket of this domain and protocol lists addresses by netlink.
pub fn is_netlink(domain: c_int, protocol: c_int) -> bool {
    domain == libc::AF_NETLINK && protocol == libc::NETLINK_ROUTE && environment::get().is_some()
}
