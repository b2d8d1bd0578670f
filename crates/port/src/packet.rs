//! Packet sockets: a port on a network device that the kernel goes on using.
//!
//! The stack has a link-layer address of its own on it, for which the device listens promiscuously;
//! a filter in the kernel keeps everything else from the sockets, and the kernel takes no notice of
//! frames to that address. Checksums and segments are left to the device, or to the kernel if the
//! device cannot, and what the kernel has aggregated arrives in one piece. Several queues are
//! sockets of one fanout group.

mod config;
mod error;
pub(crate) mod socket;
mod tagged;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_wire::vnet::VnetHeader;

pub use config::Config;
pub use error::Error;

use socket::Lan;

use crate::queue::Queue;
use crate::spec::check_device_name;
use crate::{
    Capabilities, Counters, FRAME_MAX, MTU_MIN, Offload, Port, Relay, Relayed, RxMeta, random_mac,
};
use millrace_wire::ethernet::Mac;

/// One socket on a device.
#[derive(Debug)]
pub struct Packet {
    queue: Queue,
    capabilities: Capabilities,
}

/// Opens so many sockets on the device.
///
/// # Errors
/// Each says what it met and what can be done; nothing is left behind.
pub fn open(config: &Config) -> Result<Vec<Packet>, Error> {
    let lan = config.vlan.map_or(Lan::Untagged, Lan::Tagged);
    open_with(config, lan)
}

/// Opens so many sockets on the device, for frames that are relayed: those of all virtual LANs are
/// among them.
///
/// # Errors
/// As [`open`].
pub fn open_relay(config: &Config) -> Result<Vec<Packet>, Error> {
    open_with(config, Lan::All)
}

fn open_with(config: &Config, lan: Lan) -> Result<Vec<Packet>, Error> {
    check_device_name(&config.device)?;
    if !(1..=256).contains(&config.queues) {
        return Err(Error::Queues {
            queues: config.queues,
        });
    }
    let device = socket::find(&config.device)?;
    if device.mtu < MTU_MIN {
        return Err(Error::Mtu {
            device: config.device.clone(),
            mtu: device.mtu,
        });
    }
    let mac = match config.mac {
        Some(mac) => mac,
        None => random_mac().map_err(|error| {
            Error::system(
                "draw a random link-layer address for",
                &config.device,
                error,
            )
        })?,
    };
    let capabilities = Capabilities {
        mac,
        mtu: device.mtu,
        tx_checksum: true,
        tx_segmentation_max: FRAME_MAX as u32,
        rx_aggregated: true,
        // Frames come from a wire; the kernel marks those whose checksum somebody has verified.
        trusted_checksum: false,
        queues: config.queues,
    };
    (0..config.queues)
        .map(|_| {
            let descriptor = socket::open(config, &device, mac, lan)?;
            Ok(Packet {
                // The kernel has taken the tag off before a packet socket sees the frame.
                queue: Queue::new(descriptor).on(config.vlan, false),
                capabilities,
            })
        })
        .collect()
}

/// Whose frames a port receives, to be changed by whoever has it, on any thread.
#[derive(Debug)]
pub struct Station(OwnedFd);

impl Station {
    /// From now on the port receives the frames to `mac`, whatever their virtual LAN, and those to
    /// groups. For a port of [`open_relay`].
    ///
    /// # Errors
    /// Those of the kernel; the port then goes on as before.
    pub fn set(&self, mac: Mac) -> io::Result<()> {
        socket::hear(&self.0, mac, Lan::All)
    }
}

impl Packet {
    /// Its station.
    ///
    /// # Errors
    /// There are too many descriptors.
    pub fn station(&self) -> io::Result<Station> {
        self.queue.descriptor.try_clone().map(Station)
    }
}

impl Port for Packet {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        self.queue.receive(buffer)
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        self.queue.send(head, payload, offload)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.descriptor.as_fd())
    }

    /// The kernel joins for those devices only whose drivers have it do so.
    fn gives_segments(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn counters(&self) -> Counters {
        self.queue.counters
    }
}

impl Relay for Packet {
    fn receive_parts(&mut self, buffer: &mut [u8], rest: &mut [u8]) -> io::Result<Option<Relayed>> {
        let received = tagged::receive(&self.queue.descriptor, buffer, rest)?;
        if let Some(frame) = &received {
            self.queue.received(frame.len + frame.rest);
        }
        Ok(received)
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
