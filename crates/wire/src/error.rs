//! Why bytes are not what they should be.

use core::fmt;

/// The reason for which a parser refuses its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// Fewer bytes than the fixed part of the header.
    Truncated,
    /// A length or offset field that is too small, or that points past the end of the bytes.
    Length,
    /// Another version, hardware type or address family than the one that is spoken here.
    Version,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Truncated => "fewer bytes than the header has",
            Error::Length => "a length field contradicts the bytes at hand",
            Error::Version => "unknown version or address family",
        })
    }
}

impl core::error::Error for Error {}
