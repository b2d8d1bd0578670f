//! The names of sockets.

use std::num::NonZeroU32;

/// Names a socket. Never valid again once the socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    index: u32,
    pub(crate) generation: NonZeroU32,
}

impl SocketId {
    pub(crate) fn new(index: u32, generation: NonZeroU32) -> SocketId {
        SocketId { index, generation }
    }

    /// A small number: less than the limit of sockets, and used again after close.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// let id = millrace::SocketId::from_bits(7 << 32 | 3);
    /// assert_eq!(id.index(), 3);
    /// ```
    pub fn index(self) -> u32 {
        self.index
    }

    /// Tells apart the sockets that have had the same index.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// let id = millrace::SocketId::from_bits(7 << 32 | 3);
    /// assert_eq!(id.generation(), 7);
    /// ```
    pub fn generation(self) -> u32 {
        self.generation.get()
    }

    /// The id as one number.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// let id = millrace::SocketId::from_bits(7 << 32 | 3);
    /// assert_eq!(id.to_bits(), 7 << 32 | 3);
    /// ```
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.index)
    }

    /// The id that [`SocketId::to_bits`] gave. Any number makes an id; one that was never given out
    /// names no socket.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// let [one, again] = [7, 7].map(millrace::SocketId::from_bits);
    /// assert_eq!(one, again);
    /// ```
    pub fn from_bits(bits: u64) -> SocketId {
        match NonZeroU32::new((bits >> 32) as u32) {
            Some(generation) => SocketId::new(bits as u32, generation),
            None => SocketId::new(u32::MAX, NonZeroU32::MIN),
        }
    }
}
