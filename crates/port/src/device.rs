//! What a device's driver says of itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use millrace_wire::ethernet::Mac;

use crate::ioctl::{Request, ask_driver, interface_call};

/// `ETHTOOL_GDRVINFO`, and how long its answer is in words of 32 bits.
const DRIVER_INFO: u32 = 3;
const DRIVER_INFO_WORDS: usize = 49;
/// `ETHTOOL_GCHANNELS`, likewise.
const CHANNELS: u32 = 0x3c;
const CHANNELS_WORDS: usize = 9;

#[cfg(feature = "xdp")]
/// `ETHTOOL_GFLAGS`, and of its answer `ETH_FLAG_RXVLAN`.
const FLAGS: u32 = 0x25;
#[cfg(feature = "xdp")]
const TAKES_TAGS: u32 = 1 << 8;

/// The name of the driver of a device.
///
/// # Errors
/// There is no such device, or its driver says nothing.
pub fn driver(name: &str) -> io::Result<String> {
    let mut answer = [0; DRIVER_INFO_WORDS];
    answer[0] = DRIVER_INFO;
    ask_driver(socket()?.as_fd(), name, &mut answer)?;
    let bytes = answer[1..9].iter().flat_map(|word| word.to_ne_bytes());
    let name: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// How many queues a device receives by; 1 for one whose driver does not say.
pub fn queues(name: &str) -> u16 {
    let mut answer = [0; CHANNELS_WORDS];
    answer[0] = CHANNELS;
    let asked = socket().and_then(|socket| ask_driver(socket.as_fd(), name, &mut answer));
    let [.., receive, _transmit, _other, combined] = answer;
    match asked {
        Ok(()) => u16::try_from(receive + combined).unwrap_or(u16::MAX).max(1),
        Err(_) => 1,
    }
}

#[cfg(feature = "xdp")]
/// Whether a device takes the tags of virtual LANs off what it receives, so that an XDP program
/// sees none, while the kernel has devices of such LANs on it.
pub(crate) fn hides_tags(name: &str) -> bool {
    let mut answer = [FLAGS, 0];
    let asked = socket().and_then(|socket| ask_driver(socket.as_fd(), name, &mut answer));
    // The file is there when anybody has such a device.
    let lans = std::fs::read_to_string("/proc/thread-self/net/vlan/config").unwrap_or_default();
    asked.is_ok() && answer[1] & TAKES_TAGS != 0 && has_lans(&lans, name)
}

#[cfg(feature = "xdp")]
/// Whether one of the lines `eth0.7 | 7 | eth0` is of a LAN on this device.
fn has_lans(listed: &str, name: &str) -> bool {
    let on = |line: &str| line.rsplit('|').next().map(str::trim) == Some(name);
    listed.lines().skip(2).any(on)
}

/// The link-layer address of a device.
///
/// # Errors
/// There is no such device.
pub fn mac(name: &str) -> io::Result<Mac> {
    let mut request = Request::about(name);
    let operation = libc::SIOCGIFHWADDR as libc::Ioctl;
    interface_call(socket()?.as_fd(), operation, &mut request)?;
    Ok(Mac(request.hardware_address()))
}

/// The kernel's number of a device.
///
/// # Errors
/// There is no such device.
pub fn index(name: &str) -> io::Result<u32> {
    let mut request = Request::about(name);
    let operation = libc::SIOCGIFINDEX as libc::Ioctl;
    interface_call(socket()?.as_fd(), operation, &mut request)?;
    Ok(request.number())
}

/// Whether a device is up, and the largest packet that it takes, in bytes.
///
/// # Errors
/// There is no such device.
pub fn state(name: &str) -> io::Result<(bool, u32)> {
    let (mut flags, mut mtu) = (Request::about(name), Request::about(name));
    let socket = socket()?;
    interface_call(
        socket.as_fd(),
        libc::SIOCGIFFLAGS as libc::Ioctl,
        &mut flags,
    )?;
    interface_call(socket.as_fd(), libc::SIOCGIFMTU as libc::Ioctl, &mut mtu)?;
    Ok((flags.flags() & libc::IFF_UP as u16 != 0, mtu.number()))
}

/// The devices that there are, loopback too.
///
/// # Errors
/// What the kernel says.
pub fn names() -> io::Result<Vec<String>> {
    let listed = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = listed.lines().filter_map(|line| line.split_once(':'));
    Ok(names.map(|(name, _)| name.trim().to_owned()).collect())
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?)
}

#[cfg(all(test, feature = "xdp"))]
mod tests {
    use super::*;

    #[test]
    fn virtual_lans_are_on_the_device_that_the_kernel_lists() {
        let listed = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\neth0.7         | 7  | eth0\n";
        assert!(has_lans(listed, "eth0"));
        assert!(!has_lans(listed, "eth0.7") && !has_lans(listed, "eth1") && !has_lans("", "eth0"));
    }
}
