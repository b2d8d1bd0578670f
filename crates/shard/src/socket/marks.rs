//! The flags of a socket.

bitflags::bitflags! {
    /// Where a socket is, and what has been done to it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Marks: u16 {
        /// No program holds it any more.
        const ORPHAN = 1;
        /// It is in a list of those that may have something to send.
        const READY = 1 << 1;
        /// It is in the list of those whose view changed.
        const CHANGED = 1 << 2;
        /// It waits for its neighbour's hardware address.
        const PARKED = 1 << 3;
        /// It waits to be accepted: no program has seen it yet.
        const UNACCEPTED = 1 << 4;
        /// Shut for reading.
        const READ_SHUT = 1 << 5;
        /// Shut for writing.
        const WRITE_SHUT = 1 << 6;
        /// The handshake was completed, at some time.
        const ESTABLISHED = 1 << 7;
        /// The peer's FIN has come.
        const PEER_CLOSED = 1 << 8;
        /// The connection is over once its last segment is out.
        const ENDING = 1 << 9;
        /// The connection is over; only its results are kept.
        const DEAD = 1 << 10;
        /// The peer is on this host.
        const LOCAL = 1 << 11;
        /// The local address was bound by the program.
        const BOUND = 1 << 12;
        /// How much was not sent yet decides whether it is writable (`TCP_NOTSENT_LOWAT`).
        const NOTSENT_LOW = 1 << 13;
        /// It was accepted with payload on its SYN, and its handshake is not complete.
        const EARLY = 1 << 14;
        /// It is an orphan that counts: it was not reset when its program left it.
        const COUNTED = 1 << 15;
    }
}
