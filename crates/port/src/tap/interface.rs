//! The kernel's side of a device: addresses, MTU, up. And what other interfaces have.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use millrace_wire::ethernet::Mac;

use super::address;
use super::config::Config;
use super::error::Error;
use crate::addresses;
use crate::ioctl::{Request, interface_call};
use crate::spec::Prefix;

/// Whether there is a device of this name.
pub(super) fn exists(name: &str) -> Result<bool, Error> {
    let operation = "look for the device";
    let socket = socket().map_err(|error| Error::system(operation, name, error))?;
    match interface_call(
        socket.as_fd(),
        libc::SIOCGIFFLAGS as libc::Ioctl,
        &mut Request::about(name),
    ) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        Err(error) => Err(Error::system(operation, name, error)),
    }
}

/// The address of the device, as the kernel has it.
pub(super) fn kernel_mac(name: &str) -> Result<Mac, Error> {
    let fail = |error| Error::system("read the address of", name, error);
    let socket = socket().map_err(fail)?;
    let mut request = Request::about(name);
    interface_call(
        socket.as_fd(),
        libc::SIOCGIFHWADDR as libc::Ioctl,
        &mut request,
    )
    .map_err(fail)?;
    Ok(Mac(request.hardware_address()))
}

/// Sets the MTU of the device.
pub(super) fn set_mtu(name: &str, mtu: u16) -> Result<(), Error> {
    let fail = |error| Error::system("set the MTU of", name, error);
    let socket = socket().map_err(fail)?;
    let mut request = Request::about(name).int(mtu.into());
    interface_call(
        socket.as_fd(),
        libc::SIOCSIFMTU as libc::Ioctl,
        &mut request,
    )
    .map_err(fail)
}

/// Sets MTU, queue length and addresses, and brings the device up.
pub(super) fn set_up(name: &str, config: &Config) -> Result<(), Error> {
    let operation = "configure the TAP device";
    let fail = |error| Error::system(operation, name, error);
    let socket = socket().map_err(fail)?;
    let call = |operation, mut request| {
        interface_call(socket.as_fd(), operation, &mut request)
            .map(|()| request)
            .map_err(fail)
    };

    call(
        libc::SIOCSIFMTU as libc::Ioctl,
        Request::about(name).int(config.mtu.into()),
    )?;
    // The kernel lets only the machine's own root change this. The driver's default (500 frames)
    // serves as well.
    let queue_len = interface_call(
        socket.as_fd(),
        libc::SIOCSIFTXQLEN as libc::Ioctl,
        &mut Request::about(name).int(config.tx_queue_len),
    );
    match queue_len {
        Err(error) if error.raw_os_error() != Some(libc::EPERM) => return Err(fail(error)),
        _ => {}
    }
    let index = call(libc::SIOCGIFINDEX as libc::Ioctl, Request::about(name))?.number();
    let netlink = address::socket().map_err(fail)?;
    for &(ip, bits) in &config.hosts {
        address::add(&netlink, index, ip, bits).map_err(fail)?;
    }
    let flags = call(libc::SIOCGIFFLAGS as libc::Ioctl, Request::about(name))?.flags();
    call(
        libc::SIOCSIFFLAGS as libc::Ioctl,
        Request::about(name).short(flags | libc::IFF_UP as u16),
    )?;
    Ok(())
}

/// Fails when an interface has an address whose prefix overlaps with `wanted`.
pub(super) fn check_free(wanted: Prefix) -> Result<(), Error> {
    let addresses = addresses::all()
        .map_err(|error| Error::system("list the addresses beside", &wanted.to_string(), error))?;
    match addresses
        .into_iter()
        .find(|(_, other)| wanted.overlaps(other))
    {
        Some((interface, other)) => Err(Error::PrefixInUse {
            wanted,
            other,
            interface,
        }),
        None => Ok(()),
    }
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}
