//! What mTCP does once a second: connections of which nothing is heard, and numbers.

use millrace::{Duration, Instant, Poll};

use super::Host;
use crate::mtcp::periodic::Periodic;
use crate::things::Thing;

const SECOND: Duration = Duration::from_secs(1);

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
