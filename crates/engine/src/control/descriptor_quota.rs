//! How many of the engine's descriptors each program and each user may use.

use crate::control::fair_shares::FairShares;

/// Descriptors that the engine needs itself: devices, threads, listeners.
const OWN: u64 = 256;

/// The program and the user that a descriptor counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    /// The serial number of a program.
    pub(crate) program: u64,
    /// The user id.
    pub(crate) uid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    Program(u64),
    User(u32),
}

/// The descriptors of programs and users. The user of a program may have other programs, and a
/// program may have processes of other users, so each descriptor is counted twice.
#[derive(Debug)]
pub(crate) struct DescriptorQuota {
    by_program: FairShares<Holder>,
    by_user: FairShares<Holder>,
}

impl DescriptorQuota {
    /// The limit is what this process may open.
    pub(crate) fn new() -> DescriptorQuota {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let supply = limit.unwrap_or(u64::MAX).saturating_sub(OWN);
        DescriptorQuota {
            by_program: FairShares::new(supply),
            by_user: FairShares::new(supply),
        }
    }

    /// Counts a descriptor.
    ///
    /// # Errors
    /// `EMFILE`: the program or the user has as many as are left for all others.
    pub(crate) fn take(&mut self, charge: Charge) -> Result<(), i32> {
        let refused = self.refused();
        if !self.by_program.take(Holder::Program(charge.program)) {
            return self.refuse(refused, charge);
        }
        // Root can make any number of programs, so a limit for root has no use.
        if charge.uid != 0 && !self.by_user.take(Holder::User(charge.uid)) {
            self.by_program.give(Holder::Program(charge.program));
            return self.refuse(refused, charge);
        }
        Ok(())
    }

    #[cold]
    fn refuse(&self, refused_before: u64, charge: Charge) -> Result<(), i32> {
        if refused_before == 0 {
            eprintln!(
                "millrace: a program of user {} holds as many of the engine's descriptors as are left for all others: its next process or epoll set is refused (see `ulimit -n` of the engine, LimitNOFILE of a service)",
                charge.uid
            );
        }
        Err(libc::EMFILE)
    }

    /// Counts a descriptor less.
    pub(crate) fn give(&mut self, charge: Charge) {
        self.by_program.give(Holder::Program(charge.program));
        if charge.uid != 0 {
            self.by_user.give(Holder::User(charge.uid));
        }
    }

    /// How many were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.by_program.refused() + self.by_user.refused()
    }
}
