//! The way through a packet's extension headers (RFC 8200 4), bounded.

use super::Header;
use crate::bytes::{get16, get32, put16, put32};

/// Extension headers of one packet, at most; RFC 8200 4.1 has use for six or seven.
const HEADERS_MAX: usize = 8;
/// Options of one header that are looked at, padding not counted (RFC 8504 5.3).
const OPTIONS_MAX: usize = 8;

/// Announces options for every node on the way; only directly behind the fixed header.
pub const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const NO_NEXT_HEADER: u8 = 59;
const DESTINATION_OPTIONS: u8 = 60;

const FRAGMENT_HEADER_LEN: usize = 8;

/// Codes of an ICMPv6 parameter problem (RFC 4443 3.4).
pub mod parameter {
    /// A header field makes no sense.
    pub const FIELD: u8 = 0;
    /// The next header is not known.
    pub const NEXT_HEADER: u8 = 1;
    /// An option is not known.
    pub const OPTION: u8 = 2;
    /// A first fragment does not reach to the upper-layer header (RFC 7112).
    pub const INCOMPLETE_CHAIN: u8 = 3;
}

/// What is behind the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content<'a> {
    /// The upper-layer protocol, or of a fragment what follows its fragment header: by IANA's
    /// number.
    pub protocol: u8,
    /// Where the number of the protocol stands, from the start of the packet: what an error about
    /// it points at.
    pub protocol_at: u32,
    /// The upper-layer packet, or the fragment's part.
    pub payload: &'a [u8],
    /// The part that this is, when it is one.
    pub fragment: Option<Fragment>,
}

/// A fragment header (RFC 8200 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Names the packet that was cut.
    pub id: u32,
    /// Where the part belongs in the fragmentable part, in bytes: a multiple of 8, up to 65,528.
    pub offset: u16,
    /// Whether more parts follow.
    pub more: bool,
}

impl Fragment {
    /// The number that announces a fragment header.
    pub const PROTOCOL: u8 = FRAGMENT;
    /// Length of the header in bytes.
    pub const LEN: usize = FRAGMENT_HEADER_LEN;

    /// Writes the header, behind which `next_header` follows, to the first [`Fragment::LEN`] bytes
    /// of `out`; panics when there are fewer.
    pub fn emit(&self, next_header: u8, out: &mut [u8]) {
        let out = &mut out[..FRAGMENT_HEADER_LEN];
        put16(out, 0, u16::from(next_header) << 8);
        put16(out, 2, (self.offset & !7) | u16::from(self.more));
        put32(out, 4, self.id);
    }

    /// Whether the packet is in one piece all the same (RFC 6946).
    pub fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// To be dropped without a word.
    Discard,
    /// To be answered with an ICMPv6 parameter problem, if its destination allows it.
    Parameter {
        /// One of [`mod@parameter`].
        code: u8,
        /// The byte at fault, from the start of the packet.
        pointer: u32,
        /// Whether to answer also when the packet was sent to a group.
        to_groups: bool,
    },
}

/// Walks over the extension headers of a packet whose `payload` is what [`Header::parse`] returned.
/// Behind a fragment header it goes only when the packet is in one piece (RFC 6946).
///
/// # Errors
/// What is wrong with the first header that is: more headers or options than anybody needs, a
/// length past the packet, a routing header that wants the packet forwarded (RFC 5095), an unknown
/// option that says so (RFC 8200 4.2).
pub fn walk<'a>(header: &Header, payload: &'a [u8]) -> Result<Content<'a>, Problem> {
    let mut content = Content {
        protocol: header.next_header,
        protocol_at: 6,
        payload,
        fragment: None,
    };
    for index in 0..=HEADERS_MAX {
        let at = (super::HEADER_LEN + payload.len() - content.payload.len()) as u32;
        let len = match content.protocol {
            // Only directly behind the fixed header (RFC 8200 4.1).
            HOP_BY_HOP if index != 0 => {
                return Err(Problem::Parameter {
                    code: parameter::NEXT_HEADER,
                    pointer: content.protocol_at,
                    to_groups: false,
                });
            }
            HOP_BY_HOP | DESTINATION_OPTIONS => {
                let whole = variable(content.payload)?;
                check_options(&whole[2..], at + 2)?;
                whole.len()
            }
            ROUTING => {
                let whole = variable(content.payload)?;
                // Segments left: we are no router (RFC 8200 4.4, RFC 5095).
                if whole[3] != 0 {
                    return Err(Problem::Parameter {
                        code: parameter::FIELD,
                        pointer: at + 2,
                        to_groups: false,
                    });
                }
                whole.len()
            }
            FRAGMENT => {
                let head = content
                    .payload
                    .get(..FRAGMENT_HEADER_LEN)
                    .ok_or(Problem::Discard)?;
                let place = get16(head, 2);
                let fragment = Fragment {
                    id: get32(head, 4),
                    offset: place & !7,
                    more: place & 1 != 0,
                };
                if content.fragment.replace(fragment).is_some() {
                    return Err(Problem::Discard);
                }
                FRAGMENT_HEADER_LEN
            }
            NO_NEXT_HEADER => return Err(Problem::Discard),
            _ => return Ok(content),
        };
        if index == HEADERS_MAX {
            break;
        }
        content.protocol = content.payload[0];
        content.protocol_at = at;
        content.payload = &content.payload[len..];
        if content.fragment.is_some_and(|part| !part.is_atomic()) {
            return Ok(content);
        }
    }
    Err(Problem::Discard)
}

/// A header with a length field that counts eight bytes beyond the first eight.
fn variable(bytes: &[u8]) -> Result<&[u8], Problem> {
    let len = usize::from(*bytes.get(1).ok_or(Problem::Discard)?) * 8 + 8;
    bytes.get(..len).ok_or(Problem::Discard)
}

/// RFC 8200 4.2: what the two highest bits of an unknown option's type want done. `at` is where the
/// options start in the packet.
fn check_options(options: &[u8], at: u32) -> Result<(), Problem> {
    const PAD1: u8 = 0;
    const PADN: u8 = 1;
    let mut place = 0;
    let mut seen = 0;
    while let Some(&kind) = options.get(place) {
        if kind == PAD1 {
            place += 1;
            continue;
        }
        let len = usize::from(*options.get(place + 1).ok_or(Problem::Discard)?);
        if place + 2 + len > options.len() {
            return Err(Problem::Discard);
        }
        if kind != PADN {
            seen += 1;
            if seen > OPTIONS_MAX {
                return Err(Problem::Discard);
            }
        }
        match kind >> 6 {
            1 => return Err(Problem::Discard),
            // Types that are known have neither bit.
            action @ 2..=3 => {
                return Err(Problem::Parameter {
                    code: parameter::OPTION,
                    pointer: at + place as u32,
                    to_groups: action == 2,
                });
            }
            _ => {}
        }
        place += 2 + len;
    }
    Ok(())
}
