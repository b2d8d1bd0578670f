//! Descriptors: number 0 is the socket, [`crate::kernel::SET`] the set.

/// The shim's own descriptors.
#[allow(dead_code, reason = "the checks need some of it")]
pub mod internal {
    use std::ffi::c_int;

    use crate::kernel::Fd;
    use crate::sys::Result;

    #[derive(Clone, Copy)]
    pub struct Handle(u32);

    impl Handle {
        pub fn fd(self) -> c_int {
            self.0 as c_int
        }
        pub fn to_bits(self) -> u32 {
            self.0
        }
        pub fn from_bits(bits: u32) -> Handle {
            Handle(bits)
        }
    }

    /// Nobody forks in a check.
    pub struct Unlocked;

    impl Drop for Unlocked {
        fn drop(&mut self) {}
    }

    pub fn lock() -> Unlocked {
        Unlocked
    }

    pub fn adopt(Fd(fd): Fd) -> Result<Handle> {
        copy(fd)
    }
    pub fn copy(fd: c_int) -> Result<Handle> {
        Ok(Handle(fd as u32))
    }
    pub fn release(_: Handle) {}
}

pub mod refcount {
    pub fn any(_slot: u32) -> bool {
        true
    }
    pub fn note_in_sets(_slot: u32) {}
}

#[allow(dead_code, reason = "the checks need some of it")]
pub mod table {
    use std::ffi::c_int;

    use millrace_context::SlotRef;

    use crate::kernel::SET;
    use crate::shard::SOCKET;

    pub const DESCRIPTORS_MAX: usize = 16;

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum Entry {
        Kernel,
        Socket(SlotRef),
        Epoll(u32),
    }

    pub fn get(fd: c_int) -> Entry {
        match fd {
            0 => Entry::Socket(SOCKET),
            SET => Entry::Epoll(0),
            _ => Entry::Kernel,
        }
    }
    pub fn set(_: c_int, _: Entry) {}
    pub fn holds(_: c_int) -> bool {
        true
    }
    pub fn all() -> impl Iterator<Item = (c_int, Entry)> {
        (0..DESCRIPTORS_MAX as c_int).map(|fd| (fd, get(fd)))
    }
}
