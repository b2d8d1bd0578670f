//! Whether a loss was spurious. Segments that were marked lost and sent again may merely have been
//! late; the congestion window then returns to its former size (RFC 4015 3.2).
//!
//! Three things tell: an echo of our own timestamp (Eifel, RFC 3522), reports of duplicates (DSACK,
//! RFC 2883, RFC 3708), and after a time-out acknowledgements of bytes that were not sent again
//! (F-RTO, RFC 5682).

use crate::congestion::Window;
use crate::options::timestamp_delta;

/// What undoing needs, from the first loss of a repair until a round trip after its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// The window before the reduction.
    before: Window,
    /// SND.UNA when the repair began. Reports below it concern something older.
    marker: u64,
    /// Reports count until this is acknowledged.
    until: u64,
    /// Bytes sent again, and those of them that the peer reported as duplicates.
    resent: u32,
    doubled: u32,
    /// Our timestamp on the first segment sent again, until new data is acknowledged.
    first_again: Option<u32>,
    marked: bool,
    probe: Probe,
}

/// The state of F-RTO (RFC 5682 2.1 and 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    /// F-RTO is not in use.
    Off,
    /// Step 1: the first segment alone is sent again.
    Resent,
    /// Step 2b: new segments are sent, and the repair waits for their acknowledgement.
    Fresh,
}

impl Undo {
    /// A repair begins with the window `before`; `una` is SND.UNA. A tail loss probe has already
    /// sent `resent` bytes of the flight again.
    pub(crate) fn new(before: Window, una: u64, resent: u32) -> Undo {
        Undo {
            before,
            marker: una,
            until: u64::MAX,
            resent,
            doubled: 0,
            first_again: None,
            marked: false,
            probe: Probe::Off,
        }
    }

    /// A time-out came: the next acknowledgements tell whether it was spurious.
    pub(crate) fn timed_out(&mut self) {
        self.probe = Probe::Resent;
    }

    /// `len` bytes were sent again, with this timestamp.
    pub(crate) fn on_sent_again(&mut self, len: u32, timestamp: u32) {
        if !self.marked {
            self.marked = true;
            self.first_again = Some(timestamp);
        }
        self.resent = self.resent.saturating_add(len);
    }

    /// The repair is over; SND.NXT is `nxt`.
    pub(crate) fn ended(&mut self, nxt: u64) {
        self.until = nxt;
        self.first_again = None;
        self.probe = Probe::Off;
    }

    /// The peer reports that it received `start..end` twice; SND.UNA is `una`. Returns whether all
    /// bytes that were sent again are now reported.
    pub(crate) fn reported(&mut self, start: i64, end: i64, una: u64) -> bool {
        if start >= self.marker as i64 && una <= self.until {
            let len = (end - start).clamp(0, i64::from(u32::MAX)) as u32;
            self.doubled = self.doubled.saturating_add(len);
        }
        self.resent > 0 && self.doubled >= self.resent
    }

    /// New data is acknowledged, with an echo of our timestamp `echo`. Returns whether that is the
    /// timestamp of the first transmission, which then was never lost (RFC 3522 3.2). Only the
    /// first acknowledgement after a retransmission can tell.
    pub(crate) fn disproved_by_echo(&mut self, echo: Option<u32>) -> bool {
        match (self.first_again.take(), echo) {
            (Some(first), Some(echo)) => timestamp_delta(echo, first) < 0,
            _ => false,
        }
    }

    /// An acknowledgement came after a time-out. `original`: it covers bytes that were marked lost
    /// and not sent again. `advanced`: it acknowledges new data. `can_send`: there is new data, and
    /// room in the peer's window. Returns whether the time-out was spurious.
    pub(crate) fn disproved_by_progress(
        &mut self,
        original: bool,
        advanced: bool,
        can_send: bool,
    ) -> bool {
        let waits = self.probe != Probe::Off;
        self.probe = match self.probe {
            // Step 2b. Any other acknowledgement ends the test: the loss was real (2a, 3a), or it
            // was spurious (3b).
            Probe::Resent if advanced && can_send && !original => Probe::Fresh,
            _ => Probe::Off,
        };
        waits && original
    }

    /// Whether new data goes before lost data (RFC 5682 2.1, step 2b).
    pub(crate) fn prefers_fresh(&self) -> bool {
        self.probe == Probe::Fresh
    }

    /// No new data may be sent: F-RTO ends.
    pub(crate) fn stop_probe(&mut self) {
        self.probe = Probe::Off;
    }

    /// The window to return to.
    pub(crate) fn before(&self) -> Window {
        self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undo() -> Undo {
        let before = Window {
            cwnd: 20_000,
            ssthresh: u32::MAX,
        };
        Undo::new(before, 1_000, 0)
    }

    #[test]
    fn rfc3522_3_2_echo_of_the_first_transmission_disproves_the_loss() {
        let mut undo = undo();
        assert!(!undo.disproved_by_echo(Some(5)), "nothing was sent again");
        undo.on_sent_again(1_000, 100);
        undo.on_sent_again(1_000, 200);
        let mut proved = undo;
        assert!(!proved.disproved_by_echo(Some(100)));
        assert!(
            !proved.disproved_by_echo(Some(99)),
            "only the first acknowledgement tells"
        );
        let mut without = undo;
        assert!(!without.disproved_by_echo(None));
        assert!(undo.disproved_by_echo(Some(99)));
    }

    #[test]
    fn rfc3708_2_all_that_was_sent_again_must_be_reported() {
        let mut undo = undo();
        assert!(
            !undo.reported(1_000, 2_000, 1_000),
            "nothing was sent again"
        );
        let mut undo = self::undo();
        undo.on_sent_again(2_000, 0);
        assert!(!undo.reported(0, 1_000, 1_000), "before the repair");
        assert!(!undo.reported(1_000, 2_000, 1_000));
        let mut late = undo;
        late.ended(5_000);
        assert!(!late.reported(2_000, 3_000, 5_001), "a round trip later");
        undo.ended(5_000);
        assert!(undo.reported(2_000, 3_000, 5_000));
    }

    #[test]
    fn rfc5682_2_1_steps() {
        let mut undo = undo();
        assert!(!undo.disproved_by_progress(true, true, true));
        undo.timed_out();
        assert!(!undo.disproved_by_progress(false, true, true));
        assert!(undo.prefers_fresh());
        assert!(undo.disproved_by_progress(true, true, true));
        assert!(!undo.prefers_fresh());
        for (advanced, can_send) in [(false, true), (true, false)] {
            let mut real = self::undo();
            real.timed_out();
            assert!(!real.disproved_by_progress(false, advanced, can_send));
            assert!(!real.disproved_by_progress(true, true, true));
        }
        let mut real = self::undo();
        real.timed_out();
        real.disproved_by_progress(false, true, true);
        assert!(!real.disproved_by_progress(false, false, true));
        assert!(!real.prefers_fresh());
    }
}
