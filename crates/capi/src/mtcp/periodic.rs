//! What mTCP does once a second, and what ends its waits.

use std::cell::Cell;
use std::ffi::c_int;

use millrace::{Counters, Duration, Instant};

use super::signals;

/// What a context does beside its calls.
pub struct Periodic {
    /// Connections of which nothing was heard for so long are given up (`tcp_timeout`).
    pub idle: Option<Duration>,
    /// The core whose numbers are printed (`stat_print`).
    pub print: Option<c_int>,
    pub next: Cell<Instant>,
    pub printed: Cell<Counters>,
    /// How many signals the context knows of.
    signals: Cell<u32>,
}

impl Periodic {
    pub fn new(idle: Option<Duration>, print: Option<c_int>) -> Periodic {
        Periodic {
            idle,
            print,
            next: Cell::new(Instant::from_micros(0)),
            printed: Cell::default(),
            signals: Cell::new(signals::come()),
        }
    }

    /// When there is something to do.
    pub fn deadline(&self) -> Option<Instant> {
        (self.idle.is_some() || self.print.is_some()).then(|| self.next.get())
    }

    /// Whether a signal has come since this was asked last.
    pub fn is_interrupted(&self) -> bool {
        let come = signals::come();
        self.signals.replace(come) != come
    }
}
