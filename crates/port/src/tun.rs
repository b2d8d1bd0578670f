//! TUN devices: a link to the kernel of this machine that carries IP packets and no frames.
//!
//! A port of one puts an Ethernet header in front of each packet and takes it off again, so that a
//! stack knows no other kind of link. There is one station at the other end, [`PEER`], and nobody
//! to ask for it: what is not IP is dropped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::vnet::VnetHeader;

use crate::queue::Queue;
use crate::tap::ioctl::{self, Kind};
use crate::tap::{self, Config, Error};
use crate::{Capabilities, Counters, Offload, Port, RxMeta};

/// The station that all packets come from and go to.
pub const PEER: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);

/// One queue of a TUN device.
#[derive(Debug)]
pub struct Tun {
    queue: Queue,
    name: String,
    capabilities: Capabilities,
}

/// Creates the device and returns its queues.
///
/// # Errors
/// As [`tap::open`].
pub fn open(config: &Config) -> Result<Vec<Tun>, Error> {
    let (name, descriptors) = tap::create(Kind::Tun, config)?;
    let capabilities = tap::capabilities(config)?;
    let tun = |descriptor| Tun {
        queue: Queue::new(descriptor),
        name: name.clone(),
        capabilities,
    };
    Ok(descriptors.into_iter().map(tun).collect())
}

/// Takes a device that is there already and has one queue: one that was made for this user
/// (`ip tuntap add dev NAME mode tun user NAME`) takes no privilege. Whoever made it sets it up;
/// `mtu` is what they have set.
///
/// # Errors
/// As [`tap::open`].
pub fn attach(name: &str, mtu: u16) -> Result<Tun, Error> {
    crate::spec::check_device_name(name)?;
    let capabilities = tap::capabilities(&Config {
        mtu,
        ..Config::default()
    })?;
    Ok(Tun {
        queue: Queue::new(ioctl::take(Kind::Tun, name)?),
        name: name.to_owned(),
        capabilities,
    })
}

impl Tun {
    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Receives one packet, with what is left undone in it: for those who pass it on. Offsets count
    /// from its first byte. None when there is none now.
    ///
    /// # Errors
    /// As [`Port::receive`].
    pub fn receive_packet(&mut self, buffer: &mut [u8]) -> io::Result<Option<(VnetHeader, usize)>> {
        let received = self.queue.receive_parts(buffer, &mut [])?;
        Ok(received.map(|packet| (packet.vnet, packet.len)))
    }

    /// Sends one packet that was received elsewhere. False when it could not be sent: it is dropped
    /// and counted.
    ///
    /// # Errors
    /// As [`Port::send`].
    pub fn send_packet(&mut self, vnet: &VnetHeader, packet: &[u8]) -> io::Result<bool> {
        self.queue.send_parts(packet, &[], vnet)
    }
}

impl Port for Tun {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        let (head, packet) = buffer.split_at_mut(ethernet::HEADER_LEN);
        let Some(meta) = self.queue.receive(packet)? else {
            return Ok(None);
        };
        ethernet::Header {
            dst: self.capabilities.mac,
            src: PEER,
            ethertype: match packet[0] >> 4 {
                6 => EtherType::IPV6,
                _ => EtherType::IPV4,
            },
        }
        .emit(head);
        Ok(Some(RxMeta {
            len: meta.len + ethernet::HEADER_LEN,
            ..meta
        }))
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        let Some((link, head)) = head.split_at_checked(ethernet::HEADER_LEN) else {
            return Ok(true);
        };
        if link[12..] != EtherType::IPV4.0.to_be_bytes()
            && link[12..] != EtherType::IPV6.0.to_be_bytes()
        {
            // Who speaks of stations: there are none.
            return Ok(true);
        }
        self.queue.send_packet(head, payload, offload)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.descriptor.as_fd())
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn counters(&self) -> Counters {
        self.queue.counters
    }
}
