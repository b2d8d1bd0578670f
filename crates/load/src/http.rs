//! Answers of HTTP/1.1, as far as a client must understand them to know where they end (RFC 9112
//! 6.3).

/// The longest head of an answer, in bytes.
const HEAD_MAX: usize = 64 << 10;

/// What of an answer is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// The head.
    Head,
    /// So many bytes.
    Length(u64),
    /// The line with the length of the next chunk, of which this is known.
    ChunkLine(u64),
    /// The rest of that line, which says nothing.
    ChunkExtension(u64),
    /// So many bytes of a chunk and its end of line.
    Chunk(u64),
    /// The lines behind the last chunk; so many bytes of this one were seen.
    Trailer(u32),
    /// All until the connection ends.
    End,
    /// Nothing.
    Done,
}

/// An answer on its way in.
#[derive(Debug)]
pub(crate) struct Answer {
    rest: Rest,
    head: Vec<u8>,
    /// The number in its first line.
    pub(crate) status: u16,
    /// Whether the connection may be used again.
    pub(crate) stays: bool,
}

impl Answer {
    pub(crate) fn new() -> Answer {
        Answer {
            rest: Rest::Head,
            head: Vec::new(),
            status: 0,
            stays: true,
        }
    }

    /// The next answer comes.
    pub(crate) fn again(&mut self) {
        self.rest = Rest::Head;
        self.head.clear();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.rest == Rest::Done
    }

    /// Whether the end of the connection is a good end of it.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.rest, Rest::End | Rest::Done)
    }

    /// Takes bytes in; returns how many were its own.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let mut at = 0;
        while at < bytes.len() && self.rest != Rest::Done {
            at += self.step(&bytes[at..])?;
        }
        Ok(at)
    }

    /// Takes some of `bytes`, which are not none.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        match self.rest {
            Rest::Head => self.head(bytes),
            Rest::Length(left) => {
                let taken = left.min(bytes.len() as u64);
                self.rest = match left - taken {
                    0 => Rest::Done,
                    left => Rest::Length(left),
                };
                Ok(taken as usize)
            }
            Rest::ChunkLine(len) => {
                self.rest = match bytes[0] {
                    b'\r' | b';' | b' ' => Rest::ChunkExtension(len),
                    byte => {
                        let digit = char::from(byte)
                            .to_digit(16)
                            .ok_or("a chunk without a length")?;
                        let longer = len
                            .checked_mul(16)
                            .and_then(|len| len.checked_add(digit.into()));
                        let longer = longer.filter(|len| *len < 1 << 60);
                        Rest::ChunkLine(longer.ok_or("a chunk without an end")?)
                    }
                };
                Ok(1)
            }
            Rest::ChunkExtension(len) => {
                self.rest = match (bytes[0], len) {
                    (b'\n', 0) => Rest::Trailer(0),
                    (b'\n', len) => Rest::Chunk(len + 2),
                    _ => Rest::ChunkExtension(len),
                };
                Ok(1)
            }
            Rest::Chunk(left) => {
                let taken = left.min(bytes.len() as u64);
                self.rest = match left - taken {
                    0 => Rest::ChunkLine(0),
                    left => Rest::Chunk(left),
                };
                Ok(taken as usize)
            }
            Rest::Trailer(seen) => {
                self.rest = match bytes[0] {
                    b'\n' if seen == 0 => Rest::Done,
                    b'\n' => Rest::Trailer(0),
                    b'\r' => Rest::Trailer(seen),
                    _ => Rest::Trailer(seen.saturating_add(1)),
                };
                Ok(1)
            }
            Rest::End => Ok(bytes.len()),
            Rest::Done => Ok(0),
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        let from = before.saturating_sub(3);
        let end = self.head[from..]
            .windows(4)
            .position(|four| four == b"\r\n\r\n");
        let Some(end) = end.map(|at| from + at + 4) else {
            return match self.head.len() {
                HEAD_MAX.. => Err("a head without an end"),
                _ => Ok(bytes.len()),
            };
        };
        self.head.truncate(end);
        self.understand()?;
        Ok(end - before)
    }

    /// Reads the head: the status, and where the body ends.
    fn understand(&mut self) -> Result<(), &'static str> {
        let head = std::str::from_utf8(&self.head).map_err(|_| "a head that is no text")?;
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let rest = first.strip_prefix("HTTP/1.").ok_or("no HTTP/1 at all")?;
        let (minor, rest) = rest
            .split_once(' ')
            .ok_or("a first line without a status")?;
        let status = rest.get(..3).and_then(|number| number.parse().ok());
        let status: u16 = status.ok_or("a first line without a status")?;
        let (mut length, mut chunked, mut stays) = (None, false, minor != "0");
        for line in lines {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.parse::<u64>().map_err(|_| "a length that is none")?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = value.to_ascii_lowercase().ends_with("chunked");
            } else if name.eq_ignore_ascii_case("connection") {
                stays = !value.eq_ignore_ascii_case("close")
                    && (stays || value.eq_ignore_ascii_case("keep-alive"));
            }
        }
        self.rest = match (status, chunked, length) {
            // Another head follows.
            (100..=199, _, _) => {
                self.head.clear();
                return Ok(());
            }
            (204 | 304, _, _) => Rest::Done,
            (_, true, _) => Rest::ChunkLine(0),
            (_, _, Some(0)) => Rest::Done,
            (_, _, Some(length)) => Rest::Length(length),
            (_, _, None) => Rest::End,
        };
        (self.status, self.stays) = (status, stays && self.rest != Rest::End);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status, how many bytes are its own, and whether the connection stays; the same however
    /// it is cut.
    fn read(text: &str) -> Result<(u16, usize, bool), &'static str> {
        let bytes = text.as_bytes();
        let whole = take(bytes, bytes.len());
        for step in 1..bytes.len() {
            assert_eq!(take(bytes, step), whole, "in pieces of {step}");
        }
        whole
    }

    fn take(bytes: &[u8], step: usize) -> Result<(u16, usize, bool), &'static str> {
        let mut answer = Answer::new();
        let mut taken = 0;
        for piece in bytes.chunks(step) {
            let own = answer.take(piece)?;
            taken += own;
            if own < piece.len() {
                break;
            }
        }
        assert_eq!(
            answer.is_done(),
            answer.ends_with_connection() && answer.rest != Rest::End
        );
        Ok((answer.status, taken, answer.stays))
    }

    #[test]
    fn rfc9112_6_3_bodies_end_where_they_say() {
        let counted = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(
            read(&format!("{counted}HTTP/1.1")),
            Ok((200, counted.len(), true))
        );
        let none = "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(read(&format!("{none}x")), Ok((304, none.len(), true)));
        let empty = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nConnection: Close\r\n\r\n";
        assert_eq!(read(&format!("{empty}x")), Ok((404, empty.len(), false)));
        let open = "HTTP/1.0 200 OK\r\n\r\nall of this";
        assert_eq!(read(open), Ok((200, open.len(), false)));
        let kept = "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\n1";
        assert_eq!(read(kept), Ok((200, kept.len(), true)));
        let after = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1";
        assert_eq!(read(after), Ok((200, after.len(), true)));
    }

    #[test]
    fn rfc9112_7_1_chunks() {
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0A;x\r\n0123456789\r\n0\r\nend: yes\r\n\r\n";
        assert_eq!(
            read(&format!("{chunks}HTTP")),
            Ok((200, chunks.len(), true))
        );
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        for (text, why) in [
            ("SSH-2.0-OpenSSH\r\n\r\n", "no HTTP/1 at all"),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
                "a length that is none",
            ),
            ("HTTP/1.1\r\n\r\n", "a first line without a status"),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz",
                "a chunk without a length",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff",
                "a chunk without an end",
            ),
        ] {
            assert_eq!(read(text), Err(why), "{text}");
        }
    }
}
