//! Bytes shown where they are: what has come, and where what will be sent is written.

use crate::host::{Host, Lent};
use crate::outcome::Outcome;

/// A piece of memory of the stack's, as the program is shown it.
pub type Piece = (*mut u8, usize);

impl Host {
    fn stream(&self, key: u32) -> Outcome<millrace::SocketId> {
        self.ensure_opened(key)?;
        let things = self.things.borrow();
        let socket = things.socket(key)?;
        match (socket.datagrams, socket.dead) {
            (true, _) => Err(libc::EOPNOTSUPP),
            (_, Some(_)) => Err(libc::ENOTCONN),
            _ => Ok(socket.id),
        }
    }

    /// Shows what has come of a stream, in the two pieces that a ring has. None at all is its end.
    ///
    /// # Errors
    /// `EAGAIN`, and what the connection died of.
    pub fn peek(&self, key: u32) -> Outcome<[Piece; 2]> {
        let id = self.stream(key)?;
        let mut pieces = [(std::ptr::null_mut(), 0); 2];
        let shown = self.stack.with_sockets(|sockets| {
            let show = |bytes: [&[u8]; 2]| {
                pieces = bytes.map(|piece| (piece.as_ptr().cast_mut(), piece.len()));
                0
            };
            sockets.recv_with(id, show)
        });
        shown.map_err(millrace::Error::errno)?;
        Ok(pieces)
    }

    /// So many of the bytes that were shown have been read.
    ///
    /// # Errors
    /// `EINVAL` for more than have come.
    pub fn consume(&self, key: u32, len: usize) -> Outcome<()> {
        let id = self.stream(key)?;
        let view = self.view(id)?;
        let upto = view.consumed.checked_add(len as u64).ok_or(libc::EINVAL)?;
        let consumed = self
            .stack
            .with_sockets(|sockets| sockets.consumed(id, upto));
        consumed.map_err(millrace::Error::errno)
    }

    /// Shows where up to `len` bytes will be sent from, in the two pieces that a ring has.
    ///
    /// # Errors
    /// `EAGAIN` when there is no room, and those of a write.
    pub fn reserve(&self, key: u32, len: usize) -> Outcome<[Piece; 2]> {
        if len > isize::MAX as usize {
            return Err(libc::EINVAL);
        }
        let id = self.stream(key)?;
        let shown = self.stack.with_sockets(|sockets| {
            let pieces = sockets.reserve(id, len)?;
            Ok(pieces.map(|piece| (piece.as_mut_ptr(), piece.len())))
        });
        let pieces = shown.map_err(|error: millrace::Error| {
            if error == millrace::Error::WouldBlock {
                self.starve(key);
            }
            error.errno()
        })?;
        let room = pieces[0].1 + pieces[1].1;
        self.lent.set(Some(Lent { key, room }));
        Ok(pieces)
    }

    /// So many bytes have been written to the room of the reservation that was the call before, and
    /// are to be sent.
    ///
    /// # Errors
    /// `EINVAL` when it was not, or for more than there was room for.
    pub fn commit(&self, key: u32, len: usize, lent: Option<Lent>) -> Outcome<usize> {
        let id = self.stream(key)?;
        match lent {
            Some(lent) if lent.key == key && len <= lent.room => {}
            _ => return Err(libc::EINVAL),
        }
        let sent = self.stack.with_sockets(|sockets| sockets.commit(id, len));
        sent.map_err(millrace::Error::errno)
    }
}
