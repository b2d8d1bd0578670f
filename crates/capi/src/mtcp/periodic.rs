//! What mTCP does once a second, and what ends its waits.

use std::cell::Cell;
use std::ffi::c_int;

use millrace::{Counters, Duration, Instant, Poll};

use super::signals;
use crate::host::{Host, Thing};

const SECOND: Duration = Duration::from_secs(1);

/// What a context does beside its calls.
pub struct Periodic {
    /// Connections of which nothing was heard for so long are given up (`tcp_timeout`).
    idle: Option<Duration>,
    /// The core whose numbers are printed (`stat_print`).
    print: Option<c_int>,
    next: Cell<Instant>,
    printed: Cell<Counters>,
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

impl Host {
    /// Does what is to be done once a second, if it is time.
    pub fn beat(&self, periodic: &Periodic) {
        let now = self.stack.now();
        if now < periodic.next.get() {
            return;
        }
        periodic.next.set(now + SECOND);
        if let Some(idle) = periodic.idle {
            self.give_up_idle(idle, now);
        }
        if let Some(cpu) = periodic.print {
            let counters = self.stack.counters();
            let before = periodic.printed.replace(counters);
            let usage = self.stack.usage();
            eprintln!(
                "[CPU {cpu}] flows: {}, RX: {} packets, {} bytes, TX: {} packets, {} bytes",
                usage.table,
                counters.frames_in - before.frames_in,
                counters.bytes_in - before.bytes_in,
                counters.frames_out - before.frames_out,
                counters.bytes_out - before.bytes_out,
            );
        }
    }

    /// Ends connections of which nothing was heard for `idle`: their error is `ETIMEDOUT`.
    fn give_up_idle(&self, idle: Duration, now: Instant) {
        let keys = self.things.borrow().keys();
        for key in keys {
            let mut things = self.things.borrow_mut();
            let Some(Thing::Socket(socket)) = things.get_mut(key) else {
                continue;
            };
            let quiet = now > socket.active + idle && socket.dead.is_none() && !socket.datagrams;
            let is_stream = |host: &Host, id| host.view(id).is_ok_and(|view| view.state.is_some());
            if !quiet || !is_stream(self, socket.id) {
                continue;
            }
            socket.dead = Some(libc::ETIMEDOUT);
            let id = socket.id;
            // It is there: it has just been looked at.
            let _ = self.stack.with_sockets(|sockets| sockets.abort(id));
            things.tell(key, Poll::ERR | Poll::HUP | Poll::IN | Poll::OUT);
        }
    }
}
