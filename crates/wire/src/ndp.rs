//! Neighbour discovery (RFC 4861): the messages, and the checks without which none of them is
//! believed.

use core::net::Ipv6Addr;

use crate::bytes::{get16, get32, put16, put32};
use crate::ethernet::Mac;
use crate::{Error, icmpv6, ipv6};

/// Every message is sent with this hop limit and refused with another: a router would have lowered
/// it, so it comes from the link.
pub const HOP_LIMIT: u8 = 255;
/// The longest message that [`Message::emit`] writes, in bytes.
pub const LEN_MAX: usize = 32;

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
const MTU: u8 = 5;

const FLAG_ROUTER: u32 = 1 << 31;
const FLAG_SOLICITED: u32 = 1 << 30;
const FLAG_OVERRIDE: u32 = 1 << 29;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Which routers are there?
    RouterSolicitation {
        /// The asker's link-layer address.
        source: Option<Mac>,
    },
    /// A router says that it is there, and for how long.
    RouterAdvertisement(Router),
    /// Who has `target`?
    NeighbourSolicitation {
        /// The address asked for; one node's.
        target: Ipv6Addr,
        /// The asker's link-layer address; none in a probe for duplicates.
        source: Option<Mac>,
    },
    /// A node says who it is.
    NeighbourAdvertisement {
        /// Whose address it is.
        target: Ipv6Addr,
        /// Its link-layer address.
        link: Option<Mac>,
        /// Whether it is a router.
        router: bool,
        /// Whether it answers a solicitation.
        solicited: bool,
        /// Whether a known link-layer address is to be replaced.
        replaces: bool,
    },
    /// A router knows a better way. Not followed here, but checked.
    Redirect,
}

/// What a router advertises of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Router {
    /// The hop limit to use; 0 says nothing.
    pub hop_limit: u8,
    /// For how long it is a default router, in seconds; 0: it is none (any more).
    pub lifetime_s: u16,
    /// Its link-layer address.
    pub source: Option<Mac>,
    /// The MTU that all on the link are to use, if it says one.
    pub mtu: Option<u32>,
}

/// Whether an ICMPv6 message is one of neighbour discovery, by its type.
pub fn is_ndp(kind: u8) -> bool {
    (ROUTER_SOLICITATION..=REDIRECT).contains(&kind)
}

impl Message {
    /// Parses an ICMPv6 message from a packet with this `header`, with all the checks of RFC 4861
    /// 6.1.1, 6.1.2, 7.1.1, 7.1.2 and 8.1 but that of the checksum ([`icmpv6::verify`]).
    ///
    /// # Errors
    /// [`Error::Truncated`] for a message without its fixed part; [`Error::Length`] for an option
    /// of length 0 or past the end; [`Error::Version`] for another type, code or hop limit, and for
    /// addresses that do not belong there.
    pub fn parse(header: &ipv6::Header, bytes: &[u8]) -> Result<Message, Error> {
        let (head, rest) = bytes
            .split_first_chunk::<{ icmpv6::HEADER_LEN }>()
            .ok_or(Error::Truncated)?;
        let &[kind, code, ..] = head;
        if header.hop_limit != HOP_LIMIT || code != 0 || !is_ndp(kind) {
            return Err(Error::Version);
        }
        let word = get32(head, 4);
        match kind {
            ROUTER_SOLICITATION => {
                let source = Links::read(rest)?.source;
                // Without an address of its own it has none to tell (6.1.1).
                if header.src.is_unspecified() && source.is_some() {
                    return Err(Error::Version);
                }
                Ok(Message::RouterSolicitation { source })
            }
            ROUTER_ADVERTISEMENT => {
                let options = rest.get(8..).ok_or(Error::Truncated)?;
                if !header.src.is_unicast_link_local() {
                    return Err(Error::Version);
                }
                let links = Links::read(options)?;
                Ok(Message::RouterAdvertisement(Router {
                    hop_limit: head[4],
                    lifetime_s: get16(head, 6),
                    source: links.source,
                    mtu: links.mtu,
                }))
            }
            NEIGHBOUR_SOLICITATION => {
                let (target, options) = split_target(rest)?;
                let source = Links::read(options)?.source;
                // A probe for duplicates goes to those who may have the address, and tells nothing
                // of its sender (7.1.1).
                if header.src.is_unspecified()
                    && (source.is_some() || header.dst != ipv6::solicited_node(target))
                {
                    return Err(Error::Version);
                }
                Ok(Message::NeighbourSolicitation { target, source })
            }
            NEIGHBOUR_ADVERTISEMENT => {
                let (target, options) = split_target(rest)?;
                let solicited = word & FLAG_SOLICITED != 0;
                if header.dst.is_multicast() && solicited {
                    return Err(Error::Version);
                }
                Ok(Message::NeighbourAdvertisement {
                    target,
                    link: Links::read(options)?.target,
                    router: word & FLAG_ROUTER != 0,
                    solicited,
                    replaces: word & FLAG_OVERRIDE != 0,
                })
            }
            _ => {
                let (_, rest) = split_target(rest)?;
                let options = rest.get(16..).ok_or(Error::Truncated)?;
                Links::read(options)?;
                if !header.src.is_unicast_link_local() {
                    return Err(Error::Version);
                }
                Ok(Message::Redirect)
            }
        }
    }

    /// Writes the message from `src` to `dst`, checksum included, and returns its length, at most
    /// [`LEN_MAX`]. Advertisements of routers and redirects are not for a host to send: of them
    /// only the head is written.
    ///
    /// # Panics
    /// When `out` is shorter than the message.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8]) -> usize {
        let (kind, word, target, option) = match *self {
            Message::RouterSolicitation { source } => (
                ROUTER_SOLICITATION,
                0,
                None,
                source.map(|mac| (SOURCE_LINK_ADDRESS, mac)),
            ),
            Message::NeighbourSolicitation { target, source } => (
                NEIGHBOUR_SOLICITATION,
                0,
                Some(target),
                source.map(|mac| (SOURCE_LINK_ADDRESS, mac)),
            ),
            Message::NeighbourAdvertisement {
                target,
                link,
                router,
                solicited,
                replaces,
            } => {
                let flag = |set: bool, flag: u32| if set { flag } else { 0 };
                (
                    NEIGHBOUR_ADVERTISEMENT,
                    flag(router, FLAG_ROUTER)
                        | flag(solicited, FLAG_SOLICITED)
                        | flag(replaces, FLAG_OVERRIDE),
                    Some(target),
                    link.map(|mac| (TARGET_LINK_ADDRESS, mac)),
                )
            }
            Message::RouterAdvertisement(_) => (ROUTER_ADVERTISEMENT, 0, None, None),
            Message::Redirect => (REDIRECT, 0, None, None),
        };
        out[..4].copy_from_slice(&[kind, 0, 0, 0]);
        put32(out, 4, word);
        let mut len = icmpv6::HEADER_LEN;
        if let Some(target) = target {
            out[len..len + 16].copy_from_slice(&target.octets());
            len += 16;
        }
        if let Some((kind, mac)) = option {
            put16(out, len, u16::from(kind) << 8 | 1);
            out[len + 2..len + 8].copy_from_slice(&mac.0);
            len += 8;
        }
        icmpv6::finish(src, dst, &mut out[..len]);
        len
    }
}

/// The address that a message is about: one node's (7.1.1).
fn split_target(bytes: &[u8]) -> Result<(Ipv6Addr, &[u8]), Error> {
    let (target, rest) = bytes.split_first_chunk::<16>().ok_or(Error::Truncated)?;
    let target = Ipv6Addr::from(*target);
    if target.is_multicast() || target.is_unspecified() || target.is_loopback() {
        return Err(Error::Version);
    }
    Ok((target, rest))
}

/// What the options of a message say.
#[derive(Default)]
struct Links {
    source: Option<Mac>,
    target: Option<Mac>,
    mtu: Option<u32>,
}

impl Links {
    /// Reads options up to the end: each is at least eight bytes, so their number is bounded by the
    /// packet. Unknown ones are skipped (4.6).
    fn read(mut options: &[u8]) -> Result<Links, Error> {
        let mut links = Links::default();
        while !options.is_empty() {
            let len = usize::from(*options.get(1).ok_or(Error::Length)?) * 8;
            if len == 0 || len > options.len() {
                return Err(Error::Length);
            }
            let (option, rest) = options.split_at(len);
            // Of another length it is that of another kind of link. A group is no station.
            let mac = match *option {
                [_, 1, a, b, c, d, e, f] => Some(Mac([a, b, c, d, e, f])),
                _ => None,
            }
            .filter(|mac| mac.is_unicast());
            match option[0] {
                SOURCE_LINK_ADDRESS => links.source = mac,
                TARGET_LINK_ADDRESS => links.target = mac,
                MTU => links.mtu = Some(get32(option, 4)),
                _ => {}
            }
            options = rest;
        }
        Ok(links)
    }
}
