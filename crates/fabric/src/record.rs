//! Records: what two ports say to each other. A transport carries them in order, each once; they
//! are the same over shared memory and Ethernet.

use crate::types::{Channel, Failure};

/// Bytes of a head on the wire.
pub const HEAD_LEN: usize = 24;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A message on the system channel; its bytes follow. It uses up one credit.
    System,
    /// So many messages may have been sent on the system channel since the beginning (modulo 2^32).
    Credit {
        /// The number.
        total: u32,
    },
    /// A message on another channel wants to be sent.
    Announce {
        /// Names it from now on; they count up from 0.
        ticket: u32,
        /// The channel, which is not the system channel.
        channel: Channel,
        /// Bytes of the message.
        len: u32,
        /// Where they go in the window of an open channel.
        offset: u64,
    },
    /// There is a buffer for it.
    Grant {
        /// The message.
        ticket: u32,
    },
    /// It will not be taken.
    Refuse {
        /// The message.
        ticket: u32,
        /// Why.
        reason: Failure,
    },
    /// It is not to be sent any more. Not after the first [`Head::Data`].
    Withdraw {
        /// The message.
        ticket: u32,
    },
    /// The next bytes of a message that was granted follow.
    Data {
        /// The message.
        ticket: u32,
        /// How many bytes of it came before.
        at: u32,
    },
}

/// A head, taken apart into numbers that every transport writes in its own way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Which record, 1 to 7.
    pub kind: u8,
    /// 0, or 1 for normal and 2 for open channels.
    pub channel_kind: u8,
    /// The channel's number.
    pub channel: u16,
    /// The message.
    pub ticket: u32,
    /// A total, a length, a position or a reason.
    pub value: u32,
    /// An offset in a window.
    pub offset: u64,
}

impl Head {
    /// Takes it apart.
    #[inline]
    pub fn to_words(self) -> Words {
        let none = Words::default();
        match self {
            Head::System => Words { kind: 1, ..none },
            Head::Credit { total } => Words {
                kind: 2,
                value: total,
                ..none
            },
            Head::Announce {
                ticket,
                channel,
                len,
                offset,
            } => {
                let (channel_kind, channel) = match channel {
                    Channel::System => (0, 0),
                    Channel::Normal(number) => (1, number),
                    Channel::Open(number) => (2, number),
                };
                Words {
                    kind: 3,
                    channel_kind,
                    channel,
                    ticket,
                    value: len,
                    offset,
                }
            }
            Head::Grant { ticket } => Words {
                kind: 4,
                ticket,
                ..none
            },
            Head::Refuse { ticket, reason } => Words {
                kind: 5,
                ticket,
                value: code(reason),
                ..none
            },
            Head::Withdraw { ticket } => Words {
                kind: 6,
                ticket,
                ..none
            },
            Head::Data { ticket, at } => Words {
                kind: 7,
                ticket,
                value: at,
                ..none
            },
        }
    }

    /// Puts it together; none if there is no such record. Fields that the record does not use must
    /// be 0.
    #[inline]
    pub fn from_words(words: Words) -> Option<Head> {
        let Words { ticket, value, .. } = words;
        let head = match words.kind {
            1 => Head::System,
            2 => Head::Credit { total: value },
            3 => Head::Announce {
                ticket,
                channel: match words.channel_kind {
                    1 => Channel::Normal(words.channel),
                    2 => Channel::Open(words.channel),
                    _ => return None,
                },
                len: value,
                offset: words.offset,
            },
            4 => Head::Grant { ticket },
            5 => Head::Refuse {
                ticket,
                reason: reason(value)?,
            },
            6 => Head::Withdraw { ticket },
            7 => Head::Data { ticket, at: value },
            _ => return None,
        };
        (head.to_words() == words).then_some(head)
    }

    /// Whether bytes may follow.
    #[inline]
    pub fn has_body(self) -> bool {
        matches!(self, Head::System | Head::Data { .. })
    }
}

/// The reasons that a receiver gives.
const REASONS: [(u32, Failure); 3] = [
    (1, Failure::TooLong),
    (2, Failure::OutOfRange),
    (3, Failure::NoSuchChannel),
];

fn code(failure: Failure) -> u32 {
    let found = REASONS.iter().find(|(_, known)| *known == failure);
    found.map_or(0, |(code, _)| *code)
}

fn reason(code: u32) -> Option<Failure> {
    let found = REASONS.iter().find(|(known, _)| *known == code);
    found.map(|(_, reason)| *reason)
}

/// The bytes of a record, where a transport has them.
#[expect(
    clippy::len_without_is_empty,
    reason = "a body is copied by its length, none is asked whether it is empty"
)]
pub trait Body {
    /// How many.
    fn len(&self) -> usize;

    /// Copies all of them; `to` has as many bytes.
    fn copy_to(&self, to: &mut [u8]);
}

impl Body for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn copy_to(&self, to: &mut [u8]) {
        to.copy_from_slice(self);
    }
}

/// What carries records to one peer, in order, each once.
pub trait Transport {
    /// Takes a record, or returns false when there is no room for it now.
    fn push(&mut self, head: Head, body: &[u8]) -> bool;

    /// The largest body that a [`Head::Data`] may have now; none when there is no room.
    fn room(&mut self) -> Option<usize>;

    /// A number that grows with each record.
    fn position(&self) -> u64;

    /// Records up to this position have been delivered.
    fn delivered(&self) -> u64;
}
