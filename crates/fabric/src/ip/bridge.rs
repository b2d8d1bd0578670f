//! An IP module with the kernel of this machine behind it: a TUN device.

use std::io;
use std::os::fd::BorrowedFd;

use millrace_port::Port as _;
use millrace_port::tun::Tun;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::module::Module;

/// Packets that are moved one way before it is the other way's turn.
const BATCH: usize = 64;

/// Packets go from the device to other nodes, and back.
#[derive(Debug)]
pub struct Bridge {
    module: Module,
    device: Tun,
    buffer: Box<[u8]>,
}

impl Bridge {
    /// Between this module and this device.
    pub fn new(module: Module, device: Tun) -> Bridge {
        Bridge {
            module,
            device,
            buffer: vec![0; millrace_port::FRAME_MAX].into(),
        }
    }

    /// The module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// Moves what there is to move. Returns how many packets that were.
    ///
    /// # Errors
    /// The device is gone.
    pub fn step(&mut self) -> io::Result<usize> {
        let mut moved = 0;
        // Packets that cannot be sent yet wait in the device.
        while moved < BATCH
            && self.module.has_room()
            && let Some((vnet, len)) = self.device.receive_packet(&mut self.buffer)?
        {
            self.module.send(&vnet, &[&self.buffer[..len]]);
            moved += 1;
        }
        self.module.poll();
        let (module, device) = (&mut self.module, &mut self.device);
        for _ in 0..BATCH {
            match module.receive(|vnet, packet| device.send_packet(vnet, packet)) {
                // A packet that the kernel does not take is the kernel's to count.
                Some(Err(error)) if error.kind() != io::ErrorKind::InvalidInput => {
                    return Err(error);
                }
                Some(_) => moved += 1,
                None => break,
            }
        }
        self.module.look_around();
        Ok(moved)
    }

    /// Waits until there may be something to move.
    ///
    /// # Errors
    /// Those of the kernel's wait; the link of the module is gone.
    pub fn wait(&mut self) -> io::Result<()> {
        if !self.module.prepare_to_wait() {
            return Ok(());
        }
        let has_room = self.module.has_room();
        let messages = self.module.descriptor();
        let device: Option<BorrowedFd<'_>> = self.device.descriptor().filter(|_| has_room);
        let watched = [Some(messages), device].into_iter().flatten();
        let watched = watched.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
        let mut watched: Vec<PollFd<'_>> = watched.collect();
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(Module::LOOK_EVERY.subsec_nanos()),
        };
        match poll(&mut watched, Some(&patience)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match watched[0].revents().is_empty() {
            true => Ok(()),
            false => self.module.wake(),
        }
    }
}
