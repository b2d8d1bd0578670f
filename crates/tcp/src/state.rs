//! The states of RFC 9293 3.3.2. LISTEN has no connection; a listener stands for it.

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Our SYN is sent.
    SynSent,
    /// The peer's SYN has come, and ours is sent but not acknowledged.
    SynReceived,
    /// Open both ways.
    Established,
    /// Our FIN is queued or sent; the peer may still send.
    FinWait1,
    /// Our FIN is acknowledged; the peer may still send.
    FinWait2,
    /// The peer's FIN has come; we may still send.
    CloseWait,
    /// Both FINs are sent, and ours is not acknowledged.
    Closing,
    /// The peer's FIN came first; ours is queued or sent.
    LastAck,
    /// Both ends are done; the connection is kept for old duplicates (as [`crate::TimeWait`]).
    TimeWait,
    /// No connection.
    Closed,
}

impl State {
    /// Whether the peer may still send payload that we deliver.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert!(millrace::State::FinWait2.can_receive());
    /// assert!(!millrace::State::CloseWait.can_receive());
    /// ```
    pub fn can_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// Whether queued payload, or a FIN, may be sent or sent again.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert!(millrace::State::CloseWait.can_send());
    /// assert!(!millrace::State::FinWait2.can_send());
    /// ```
    pub fn can_send(self) -> bool {
        matches!(
            self,
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::Closing
                | State::LastAck
        )
    }

    /// Whether the handshake is complete and the connection not yet over.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert!(!millrace::State::SynReceived.is_synchronized());
    /// assert!(millrace::State::Established.is_synchronized());
    /// ```
    pub fn is_synchronized(self) -> bool {
        !matches!(
            self,
            State::SynSent | State::SynReceived | State::TimeWait | State::Closed
        )
    }
}
