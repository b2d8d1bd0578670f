//! TAP devices: the link between this process and the kernel of its machine.
//!
//! Each frame is preceded by a virtio-net header, with which both sides leave checksums and the
//! cutting into segments undone: nothing between them is a wire. A device lives as long as its
//! ports.

mod address;
mod config;
mod error;
mod interface;
pub(crate) mod ioctl;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_wire::vnet::VnetHeader;

pub use config::Config;
pub use error::Error;
use ioctl::Kind;

use crate::queue::Queue;
use crate::spec::{Prefix, check_device_name};
use crate::{
    Capabilities, Counters, FRAME_MAX, MTU_MAX, MTU_MIN, Offload, Port, Relay, Relayed, RxMeta,
    random_mac,
};
use millrace_wire::ethernet::Mac;

/// One queue of a TAP device.
#[derive(Debug)]
pub struct Tap {
    queue: Queue,
    name: String,
    capabilities: Capabilities,
}

/// Creates the device and returns its queues.
///
/// # Errors
/// Each says what it met and what can be done; nothing is left behind.
pub fn open(config: &Config) -> Result<Vec<Tap>, Error> {
    let (name, descriptors) = create(Kind::Tap, config)?;
    let capabilities = capabilities(config)?;
    let tap = |descriptor| Tap {
        queue: Queue::new(descriptor).on(config.vlan, true),
        name: name.clone(),
        capabilities,
    };
    Ok(descriptors.into_iter().map(tap).collect())
}

/// Creates a device of this kind and sets it up; returns its name and its queues.
pub(crate) fn create(kind: Kind, config: &Config) -> Result<(String, Vec<OwnedFd>), Error> {
    if let Some(name) = &config.name {
        check_device_name(name)?;
        if interface::exists(name)? {
            return Err(Error::Exists { name: name.clone() });
        }
    }
    if !(MTU_MIN..=MTU_MAX).contains(&config.mtu) {
        return Err(Error::Mtu { mtu: config.mtu });
    }
    if !(1..=256).contains(&config.queues) {
        return Err(Error::Queues {
            queues: config.queues,
        });
    }
    for &(address, len) in &config.hosts {
        if let IpAddr::V4(address) = address {
            interface::check_free(Prefix::of_host(address, len)?)?;
        }
    }

    // A pattern makes the kernel choose the number.
    let (first, name) = ioctl::create(
        kind,
        config.name.as_deref().unwrap_or("mr%d"),
        config.queues > 1,
    )?;
    let mut descriptors = vec![first];
    for _ in 1..config.queues {
        descriptors.push(ioctl::attach(kind, &name)?);
    }
    if config.up || !config.hosts.is_empty() {
        interface::set_up(&name, config)?;
    }
    Ok((name, descriptors))
}

/// What a port of such a device can do.
pub(crate) fn capabilities(config: &Config) -> Result<Capabilities, Error> {
    Ok(Capabilities {
        mac: config.mac.map_or_else(random_mac, Ok).map_err(|error| {
            Error::system("draw a random link-layer address for", "the stack", error)
        })?,
        mtu: config.mtu,
        tx_checksum: true,
        tx_segmentation_max: FRAME_MAX as u32,
        rx_aggregated: true,
        // The kernel may forward here what it received from a wire; it marks what it made itself.
        trusted_checksum: false,
        queues: config.queues,
    })
}

impl Tap {
    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The link-layer address that the kernel uses on its side.
    ///
    /// # Errors
    /// The device is gone.
    pub fn kernel_mac(&self) -> Result<Mac, Error> {
        interface::kernel_mac(&self.name)
    }

    /// The link-layer address that the kernel's side has now, wherever it has been moved to.
    ///
    /// # Errors
    /// The device is gone.
    pub fn current_mac(&self) -> io::Result<Mac> {
        ioctl::mac(&self.queue.descriptor)
    }

    /// Sets the largest packet that the kernel sends on its side, in bytes.
    ///
    /// # Errors
    /// Out of range, or the device is gone.
    pub fn set_kernel_mtu(&self, mtu: u16) -> Result<(), Error> {
        interface::set_mtu(&self.name, mtu)
    }
}

impl Port for Tap {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        self.queue.receive(buffer)
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        self.queue.send(head, payload, offload)
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

impl Relay for Tap {
    fn receive_parts(&mut self, buffer: &mut [u8], rest: &mut [u8]) -> io::Result<Option<Relayed>> {
        self.queue.receive_parts(buffer, rest)
    }

    fn send_parts(
        &mut self,
        head: &[u8],
        payload: &[&[u8]],
        vnet: &VnetHeader,
    ) -> io::Result<bool> {
        self.queue.send_parts(head, payload, vnet)
    }
}
