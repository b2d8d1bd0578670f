//! The IP module as a link of a stack.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use millrace_port::spec::{self, Spec};
use millrace_port::{Capabilities, FRAME_MAX, Offload, Port, RxMeta};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::vnet::VnetHeader;

use super::IP_PORT;
use super::module::{Config, Module};
use crate::types::{Error, PortName};
use crate::{ethernet as wire, shm};

/// The station that all packets come from and go to: there is nobody to ask for another one.
pub const PEER: Mac = Mac([2, 0, 0, 0, 0, 0xfd]);
/// The stack's own.
const OWN: Mac = Mac([2, 0, 0, 0, 0, 0xfc]);
/// So many calls that find nothing are made before sockets and clock are looked at.
const IDLE_CALLS: u32 = 16;

/// Why an IP module cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// In shared memory.
    #[error(transparent)]
    Shared(#[from] shm::OpenError),
    /// On a link.
    #[error(transparent)]
    Link(#[from] wire::LinkError),
    /// Its buffers.
    #[error(transparent)]
    Buffers(#[from] Error),
}

/// Opens the IP module of a node: as `spec` says, with these addresses of its own beside those that
/// it learns.
///
/// # Errors
/// [`OpenError`].
pub fn open(spec: &spec::Fabric, addresses: &[std::net::IpAddr]) -> Result<Module, OpenError> {
    let name = PortName::new(spec.node, IP_PORT);
    let port = match &spec.over {
        Some(over) => over_link(over, name)?,
        None => {
            let directory = match &spec.directory {
                Some(path) => shm::Directory::at(PathBuf::from(path)),
                None => shm::Directory::of_user(),
            };
            shm::Port::open_any_in(&directory, name, Module::limits())?.into()
        }
    };
    let config = Config {
        mtu: spec.mtu.unwrap_or(super::MTU_DEFAULT),
        elide_checksums: spec.elide_checksums,
        inline: spec.inline,
        batch: spec.batch,
        addresses: addresses.to_vec(),
        table: spec.table.clone(),
    };
    Ok(Module::new(port, config)?)
}

fn over_link(over: &Spec, name: PortName) -> Result<crate::Port, wire::LinkError> {
    let options = millrace_port::open::Options::new();
    let mut ports = millrace_port::open::open(over, &options)?.ports;
    let port = wire::Port::on_any(ports.swap_remove(0), name, Module::limits())?;
    Ok(port.into())
}

/// An IP module that gives its packets an Ethernet header and takes it off again, so that a stack
/// knows no other kind of link.
#[derive(Debug)]
pub struct Link {
    module: Module,
    idle: u32,
}

impl Link {
    /// Of this module.
    pub fn new(module: Module) -> Link {
        Link { module, idle: 0 }
    }
}

impl Port for Link {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        let (head, room) = buffer.split_at_mut(ethernet::HEADER_LEN);
        let mut take = |vnet: &VnetHeader, packet: &[u8]| {
            room[..packet.len()].copy_from_slice(packet);
            ethernet::Header {
                dst: OWN,
                src: PEER,
                ethertype: match packet[0] >> 4 {
                    6 => EtherType::IPV6,
                    _ => EtherType::IPV4,
                },
            }
            .emit(head);
            RxMeta {
                len: ethernet::HEADER_LEN + packet.len(),
                checksum: vnet.checksum_state(),
                segment_size: vnet.segment_size(),
            }
        };
        if let Some(meta) = self.module.receive(&mut take) {
            self.idle = 0;
            return Ok(Some(meta));
        }
        if self.module.poll() > 0
            && let Some(meta) = self.module.receive(&mut take)
        {
            self.idle = 0;
            return Ok(Some(meta));
        }
        self.idle += 1;
        if self.idle.is_multiple_of(IDLE_CALLS) {
            self.module.wake()?;
            self.module.look_around();
        }
        // Whoever is about to sleep is rung from now on.
        if !self.module.prepare_to_wait() {
            return Ok(self.module.receive(take));
        }
        Ok(None)
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        let Some((link, head)) = head.split_at_checked(ethernet::HEADER_LEN) else {
            return Ok(true);
        };
        let ethertype = EtherType(u16::from_be_bytes([link[12], link[13]]));
        if !matches!(ethertype, EtherType::IPV4 | EtherType::IPV6) {
            // Who speaks of stations: there are none.
            return Ok(true);
        }
        let vnet = VnetHeader::request_of_packet(offload, head);
        Ok(self.module.send(&vnet, &[head, payload[0], payload[1]]))
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.module.poll();
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.module.descriptor())
    }

    fn capabilities(&self) -> Capabilities {
        let config = self.module.config();
        Capabilities {
            mac: OWN,
            mtu: config.mtu,
            tx_checksum: config.elide_checksums,
            tx_segmentation_max: match config.elide_checksums {
                true => FRAME_MAX as u32,
                false => 0,
            },
            rx_aggregated: true,
            trusted_checksum: false,
            queues: 1,
        }
    }

    fn counters(&self) -> millrace_port::Counters {
        let counters = self.module.counters();
        millrace_port::Counters {
            rx_frames: counters.rx_packets,
            rx_bytes: counters.rx_bytes,
            tx_frames: counters.tx_packets,
            tx_bytes: counters.tx_bytes,
            rx_dropped: counters.bad,
            tx_refused: counters.refused,
            tx_dropped: counters.failed + counters.no_neighbour,
            ..millrace_port::Counters::default()
        }
    }
}
