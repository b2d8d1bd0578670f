//! TCP Fast Open (RFC 7413): payload on the SYN, for hosts that have met before.
//!
//! Who opens actively puts the cookie that the other host gave it on its SYN, and payload behind. Who opens passively and finds the cookie good has a connection at
//! once, in SYN-RECEIVED: it delivers what came, and may answer before the handshake is complete. Whose cookie is whose, and how good, is for the owner.

use millrace_wire::tcp::{Cookie, Flags, Segment};

use crate::config::Config;
use crate::connection::{Connection, Pending, ReceiveBuffer};
use crate::events::Events;
use crate::state::State;
use crate::time::Instant;

/// How a connection is opened with payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastOpen {
    /// On our SYN: a cookie, or a request for one; on our SYN-ACK a new one for the peer.
    cookie: Option<Cookie>,
    /// The SYN waits for something to send, and takes so much of it: 0 when it does not wait.
    room: u16,
    /// Payload that our SYN carried, in bytes.
    sent: u16,
    /// The peer's SYN-ACK brought this.
    given: Option<Cookie>,
    /// The SYN was not answered while it carried payload.
    lost: bool,
    /// Payload on a SYN was acknowledged, by either end.
    accepted: bool,
    /// A passive open before the handshake is complete.
    early: bool,
}

/// What an active open has found out about the peer's host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenNews {
    /// The cookie to use next time.
    pub cookie: Option<Cookie>,
    /// A SYN with payload got no answer: something on the way may drop such.
    pub lost: bool,
}

impl Connection {
    /// Opens fast: before anything was sent, the SYN is to carry `cookie`. With `room` it waits until something is queued, and takes up to that many bytes of
    /// it along.
    pub fn open_fast(&mut self, cookie: Option<Cookie>, room: u16) {
        if self.state == State::SynSent && self.pending.contains(Pending::SYN) {
            let cold = self.cold_state.get_or_insert_default();
            cold.fast_open = Some(FastOpen {
                cookie,
                room,
                ..FastOpen::default()
            });
        }
    }

    /// After a passive open whose SYN brought a cookie that will soon be good no more: the SYN-ACK is to carry another.
    pub fn give_cookie(&mut self, cookie: Cookie) {
        if let Some(fast) = self.fast_open_mut() {
            fast.cookie = Some(cookie);
        }
    }

    /// Whether the SYN waits for something to send.
    pub fn holds_syn(&self) -> bool {
        let fast = self.fast_open();
        fast.is_some_and(|fast| fast.room > 0 && fast.sent == 0) && self.send.end == 0
    }

    /// Whether payload may be queued although the handshake is not complete.
    pub fn takes_early(&self) -> bool {
        self.holds_syn() || self.is_early()
    }

    /// Whether it was to be an active open with TCP Fast Open.
    #[inline]
    pub fn is_opened_fast(&self) -> bool {
        self.cold_state
            .as_ref()
            .is_some_and(|cold| cold.fast_open.is_some())
    }

    /// What there is to remember of the peer's host; once.
    pub fn take_fast_open_news(&mut self) -> Option<FastOpenNews> {
        let fast = self.cold_state.as_mut()?.fast_open.as_mut()?;
        let news = FastOpenNews {
            cookie: fast.given.take(),
            lost: std::mem::take(&mut fast.lost),
        };
        (news.lost || news.cookie.is_some()).then_some(news)
    }

    /// After a passive open whose SYN brought a good cookie: takes its payload. The SYN-ACK acknowledges it.
    pub fn take_early(
        &mut self,
        config: &Config,
        syn: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        if !syn.payload.is_empty() {
            self.on_payload(config, 0, syn.payload, false, buffer, now);
        }
        let accepted = self.receive.nxt > 0;
        if let Some(fast) = self.fast_open_mut() {
            fast.accepted = accepted;
        }
    }

    /// A passive open begins before its handshake is complete.
    pub(crate) fn begin_early(&mut self, config: &Config, now: Instant) {
        self.pending = Pending::SYN;
        self.cold_state.get_or_insert_default().fast_open = Some(FastOpen {
            early: true,
            ..FastOpen::default()
        });
        let mss = u32::from(self.send.mss);
        self.congestion.start(config, mss, 0, now);
        self.choose_pacing();
        self.events |= Events::WRITABLE;
    }

    /// Whether this is a passive open with payload on its SYN, and the handshake is not complete.
    pub(crate) fn is_early(&self) -> bool {
        self.state == State::SynReceived && self.fast_open().is_some_and(|fast| fast.early)
    }

    /// The handshake is complete; returns whether that was a passive open with payload on its SYN.
    pub(crate) fn end_early(&mut self) -> bool {
        let fast = self.fast_open_mut();
        fast.is_some_and(|fast| std::mem::take(&mut fast.early))
    }

    /// The cookie and the payload of our first SYN, or SYN-ACK; those after a time-out have neither (RFC 7413 4.1.3).
    pub(crate) fn on_syn_out(&mut self) -> (Option<Cookie>, u64) {
        let (end, active) = (self.send.end, self.state == State::SynSent);
        if self.timers.backoff > 0 {
            return (None, 0);
        }
        let Some(fast) = self.fast_open_mut() else {
            return (None, 0);
        };
        if !active {
            return (fast.cookie.filter(|_| fast.early), 0);
        }
        fast.sent = end.min(u64::from(fast.room)) as u16;
        let (cookie, sent) = (fast.cookie, u64::from(fast.sent));
        self.send.nxt = sent;
        (cookie, sent)
    }

    /// No answer to the SYN: payload is not sent again before there is one.
    pub(crate) fn on_syn_lost(&mut self) {
        if self.state == State::SynSent && self.timers.backoff == 0 {
            self.send.nxt = 0;
            if let Some(fast) = self.fast_open_mut() {
                fast.lost = fast.sent > 0;
            }
        }
    }

    /// How many bytes beyond our SYN a SYN-ACK may acknowledge.
    pub(crate) fn sent_with_syn(&self) -> u32 {
        self.fast_open().map_or(0, |fast| u32::from(fast.sent))
    }

    /// The SYN-ACK has come. What it does not acknowledge of the SYN's payload goes again, as if it had not been sent.
    pub(crate) fn on_syn_ack(&mut self, segment: &Segment<'_>) {
        let acked = (segment.ack - self.send.seq(0)).max(0) as u64;
        let given = segment.options.fast_open().filter(Cookie::is_some);
        let Some(fast) = self.fast_open_mut() else {
            return;
        };
        fast.accepted = acked > 0;
        fast.given = given;
        fast.room = 0;
        self.send.una = acked;
        self.send.nxt = acked;
        if acked > 0 {
            self.events |= Events::WRITABLE;
        }
    }

    /// The peer's SYN once more, in SYN-RECEIVED: our answer was lost.
    pub(crate) fn is_syn_again(&self, segment: &Segment<'_>) -> bool {
        self.state == State::SynReceived
            && segment.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN) == Flags::SYN
            && segment.seq + 1 == self.receive.seq(0)
    }

    /// Whether payload on a SYN was acknowledged (Linux's `TCPI_OPT_SYN_DATA`).
    pub(crate) fn syn_data(&self) -> bool {
        self.fast_open().is_some_and(|fast| fast.accepted)
    }

    fn fast_open(&self) -> Option<&FastOpen> {
        self.cold_state.as_ref()?.fast_open.as_ref()
    }

    fn fast_open_mut(&mut self) -> Option<&mut FastOpen> {
        self.cold_state.as_mut()?.fast_open.as_mut()
    }
}
