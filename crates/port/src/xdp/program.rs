//! The XDP program: loaded, told what is ours, attached.

use std::io;
use std::os::fd::AsRawFd;

use aya::maps::{Array, MapData, MapError, XskMap};
use aya::programs::{ProgramError, Xdp, XdpFlags};
use aya::{Ebpf, EbpfError, EbpfLoader};

use super::config::{Addresses, Ours};
use super::error::Error;

/// What `cargo xtask bpf` made of `program.c`.
static OBJECT: &[u8] = aya::include_bytes_aligned!("program.o");

/// A program on a device. It goes from there with its owner, also when that is killed: a descriptor
/// holds it.
#[derive(Debug)]
pub(super) struct Program {
    loaded: Ebpf,
    name: &'static str,
}

impl Program {
    /// Loads the program, and tells it which frames are `ours`; with `pieces` it takes frames that
    /// are larger than a page.
    pub(super) fn load(device: &str, ours: &Ours<'_>, pieces: bool) -> Result<Program, Error> {
        let mut station = [0; 8];
        if let Ours::Station(mac) = ours {
            station[..6].copy_from_slice(&mac.0);
        }
        let is_shared = u8::from(matches!(ours, Ours::Shared(_)));
        let is_everything = u8::from(matches!(ours, Ours::Everything));
        let loaded = EbpfLoader::new()
            .set_global("station", &station[..], true)
            .set_global("shared", &is_shared, true)
            .set_global("everything", &is_everything, true)
            .load(OBJECT)
            .map_err(|error| {
                Error::system("load the XDP program for", device, system_error(error))
            })?;
        let name = if pieces { "pieces" } else { "whole" };
        let mut program = Program { loaded, name };
        program
            .xdp()
            .and_then(Xdp::load)
            .map_err(|error| Error::of_program("load the XDP program for", device, error))?;
        Ok(program)
    }

    /// Attaches it to the device, by its driver or before the kernel's stack (`generic`).
    pub(super) fn attach(&mut self, device: u32, generic: bool) -> Result<(), ProgramError> {
        let flags = match generic {
            true => XdpFlags::SKB_MODE,
            false => XdpFlags::DRV_MODE,
        };
        self.xdp()?.attach_to_if_index(device, flags).map(drop)
    }

    fn xdp(&mut self) -> Result<&mut Xdp, ProgramError> {
        let program = self.loaded.program_mut(self.name);
        program.ok_or(ProgramError::NotLoaded)?.try_into()
    }

    /// Which ports are ours, to be told; once.
    pub(super) fn ports(&mut self) -> io::Result<Array<MapData, u8>> {
        let map = self
            .loaded
            .take_map("ports")
            .ok_or(io::ErrorKind::NotFound)?;
        Array::try_from(map).map_err(io::Error::other)
    }

    /// Which addresses are the kernel's and ours, to be told; once.
    pub(super) fn addresses(&mut self) -> io::Result<Array<MapData, Addresses>> {
        let map = self
            .loaded
            .take_map("addresses")
            .ok_or(io::ErrorKind::NotFound)?;
        Array::try_from(map).map_err(io::Error::other)
    }

    /// Frames of ours that come by `queue` go to the socket.
    pub(super) fn connect(&mut self, queue: u32, socket: impl AsRawFd) -> io::Result<()> {
        let map = self
            .loaded
            .map_mut("sockets")
            .ok_or(io::ErrorKind::NotFound)?;
        let mut map = XskMap::try_from(map).map_err(io::Error::other)?;
        map.set(queue, socket, 0).map_err(|error| match error {
            MapError::SyscallError(error) => error.io_error,
            other => io::Error::other(other),
        })
    }
}

/// What the kernel said, if it was the kernel that refused.
fn system_error(error: EbpfError) -> io::Error {
    match error {
        EbpfError::MapError(MapError::CreateError { io_error, .. }) => io_error,
        EbpfError::MapError(MapError::SyscallError(error)) => error.io_error,
        other => io::Error::other(other),
    }
}
