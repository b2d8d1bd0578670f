//! The reasons why a program on millrace uses the kernel's stack, with a counter for each.

use std::sync::atomic::{AtomicU32, Ordering};

/// A reason why traffic bypasses the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bypass {
    /// A socket names an address that the engine does not serve.
    Address,
    /// An IPv4 or IPv6 socket of another kind than TCP or UDP.
    Protocol,
    /// A socket is bound to a device that the engine does not serve.
    Device,
    /// io_uring, which is refused.
    IoUring,
    /// A program without a dynamic linker is executed.
    StaticProgram,
    /// A Go program is executed: it makes system calls without the C library.
    GoProgram,
    /// A program of another architecture is executed.
    ForeignProgram,
    /// A program that gains privileges is executed: the dynamic linker preloads nothing into it.
    PrivilegedProgram,
    /// A program is executed where the shim's file cannot be read (chroot), or with an LD_PRELOAD
    /// without it.
    NoShim,
}

/// Room for reasons.
const KINDS_MAX: usize = 16;

impl Bypass {
    /// All reasons.
    pub const ALL: [Bypass; 9] = [
        Bypass::Address,
        Bypass::Protocol,
        Bypass::Device,
        Bypass::IoUring,
        Bypass::StaticProgram,
        Bypass::GoProgram,
        Bypass::ForeignProgram,
        Bypass::PrivilegedProgram,
        Bypass::NoShim,
    ];

    /// The name of the reason's counter.
    pub fn name(self) -> &'static str {
        match self {
            Bypass::Address => "address_not_served",
            Bypass::Protocol => "protocol_not_served",
            Bypass::Device => "device_not_served",
            Bypass::IoUring => "io_uring_refused",
            Bypass::StaticProgram => "static_program",
            Bypass::GoProgram => "go_program",
            Bypass::ForeignProgram => "foreign_program",
            Bypass::PrivilegedProgram => "privileged_program",
            Bypass::NoShim => "no_shim",
        }
    }
}

/// How often each reason occurred. The program's processes count; the engine only shows the counts.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Bypasses([AtomicU32; KINDS_MAX]);

impl Bypasses {
    /// Counts an occurrence; returns true for the first one.
    pub fn count(&self, kind: Bypass) -> bool {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed) == 0
    }

    /// How often a reason occurred.
    pub fn get(&self, kind: Bypass) -> u32 {
        self.0[kind as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_kind_is_told_apart() {
        let bypasses = Bypasses::default();
        for kind in Bypass::ALL {
            assert!(bypasses.count(kind));
            assert!(!bypasses.count(kind));
            assert_eq!(bypasses.get(kind), 2);
        }
    }
}
