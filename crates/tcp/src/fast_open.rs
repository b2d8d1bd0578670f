//! TCP Fast Open (RFC 7413): payload on the SYN, for hosts that have met before.
//!
//! An active open puts the cookie that the other host gave it on its SYN, followed by payload. A
//! passive open that finds the cookie valid has a connection at once, in SYN-RECEIVED: it delivers
//! the payload and may answer before the handshake is complete. The owner of the connection stores
//! and checks cookies.

use millrace_wire::tcp::Cookie;

/// How a connection is opened with payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastOpen {
    /// On our SYN: a cookie or a request for one. On our SYN-ACK: a new one for the peer.
    cookie: Option<Cookie>,
    /// Bytes of payload that the SYN takes; it waits for them. 0: it does not wait.
    room: u16,
    /// Bytes of payload that our SYN carried.
    sent: u16,
    /// The cookie on the peer's SYN-ACK.
    given: Option<Cookie>,
    /// A SYN with payload got no answer.
    lost: bool,
    /// Payload on a SYN was acknowledged, by either end.
    accepted: bool,
    /// A passive open whose handshake is not complete.
    early: bool,
}

/// What an active open has learnt about the peer's host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenNews {
    /// The cookie to use next time.
    pub cookie: Option<Cookie>,
    /// A SYN with payload got no answer: something on the path may drop such segments.
    pub lost: bool,
}

impl FastOpen {
    /// An active open. The SYN carries `cookie`, and waits for up to `room` bytes of payload unless
    /// that is 0.
    pub(crate) fn active(cookie: Option<Cookie>, room: u16) -> FastOpen {
        FastOpen {
            cookie,
            room,
            ..FastOpen::default()
        }
    }

    /// A passive open with a valid cookie.
    pub(crate) fn passive() -> FastOpen {
        FastOpen {
            early: true,
            ..FastOpen::default()
        }
    }

    /// The SYN-ACK is to carry a new cookie.
    pub(crate) fn give_cookie(&mut self, cookie: Cookie) {
        self.cookie = Some(cookie);
    }

    /// Whether the SYN waits for payload, while none is queued.
    pub(crate) fn waits_for_payload(&self) -> bool {
        self.room > 0 && self.sent == 0
    }

    /// Whether this is a passive open whose handshake is not complete.
    pub(crate) fn is_early(&self) -> bool {
        self.early
    }

    /// The handshake is complete. Returns whether this was a passive open.
    pub(crate) fn end_early(&mut self) -> bool {
        std::mem::take(&mut self.early)
    }

    /// Whether payload on a SYN was acknowledged.
    pub(crate) fn is_accepted(&self) -> bool {
        self.accepted
    }

    /// A passive open took payload from the SYN, or found none.
    pub(crate) fn set_accepted(&mut self, accepted: bool) {
        self.accepted = accepted;
    }

    /// Bytes of payload that our SYN carried.
    pub(crate) fn sent(&self) -> u32 {
        u32::from(self.sent)
    }

    /// The first SYN leaves, with up to `queued` bytes. Returns its cookie and the bytes that it
    /// carries.
    pub(crate) fn on_syn_sent(&mut self, queued: u64) -> (Option<Cookie>, u64) {
        self.sent = queued.min(u64::from(self.room)) as u16;
        (self.cookie, u64::from(self.sent))
    }

    /// The cookie of the first SYN-ACK.
    pub(crate) fn syn_ack_cookie(&self) -> Option<Cookie> {
        self.cookie.filter(|_| self.early)
    }

    /// The first SYN got no answer.
    pub(crate) fn on_syn_lost(&mut self) {
        self.lost = self.sent > 0;
    }

    /// The SYN-ACK acknowledges `acked` bytes of payload, and brings this cookie.
    pub(crate) fn on_syn_ack(&mut self, acked: u64, given: Option<Cookie>) {
        self.accepted = acked > 0;
        self.given = given;
        self.room = 0;
    }

    /// What to remember of the peer's host, once.
    pub(crate) fn take_news(&mut self) -> Option<FastOpenNews> {
        let news = FastOpenNews {
            cookie: self.given.take(),
            lost: std::mem::take(&mut self.lost),
        };
        (news.lost || news.cookie.is_some()).then_some(news)
    }
}
