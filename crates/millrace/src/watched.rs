//! What the kernel has said of one descriptor, and the tasks that wait for it.

use std::task::Waker;

use rustix::event::epoll;

use crate::core::Side;

/// What is known of one descriptor. Edges are kept until somebody finds that there is nothing more.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) ready: [bool; 2],
    pub(crate) waiting: [Vec<Waker>; 2],
}

impl Watched {
    /// What `epoll` has said.
    pub(crate) fn note(&mut self, flags: epoll::EventFlags) {
        use epoll::EventFlags as Flags;
        let over = Flags::HUP | Flags::ERR;
        for (side, those) in [
            (Side::Read, Flags::IN | Flags::RDHUP | Flags::PRI | over),
            (Side::Write, Flags::OUT | over),
        ] {
            if flags.intersects(those) {
                self.ready[side as usize] = true;
                self.waiting[side as usize].drain(..).for_each(Waker::wake);
            }
        }
    }
}
