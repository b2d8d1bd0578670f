//! Socket options: one table for the shim, the engine, the shard and the libraries.
//!
//! [`ROWS`] has a row for each option: its level and number on Linux, how its value is written (see
//! [`codec`]), which sockets have it, where its value is kept, and what it is before anyone has set
//! it. [`Opt`] is an option with its value, [`OptName`] names one. All floors decode and encode
//! values here, so that they cannot disagree.
//!
//! A new option is a row of the table, and the code that obeys it.

#![forbid(unsafe_code)]

pub mod codec;
pub mod numbers;
mod table;
mod values;

pub use table::{Opt, OptName, READ_ONLY, ROWS, ReadOnly};
pub use values::{Algorithm, Discovery, FastOpenKeys, Membership};

use bitflags::bitflags;

bitflags! {
    /// Kinds of sockets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Sockets: u8 {
        /// TCP.
        const STREAM = 1;
        /// UDP.
        const DATAGRAM = 2;
    }
}

/// The longest value that an option is read as, in bytes.
pub const VALUE_MAX: usize = 32;
/// Words of a value in a message from the shim to the engine: its length in bytes, and up to 32
/// bytes.
pub const WORDS: usize = 5;

/// Where the shim keeps the value of an option, in the words that a socket has for options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nowhere: the shard has it, and is asked.
    Shard,
    /// A bit of a word.
    Bit(u8, u8),
    /// A bit of a word, which is set when the option is off: for options that are on by default.
    NotBit(u8, u8),
    /// A byte of a word.
    Byte(u8, u8),
    /// The lower (0) or upper (1) half of a word.
    Half(u8, u8),
    /// A word.
    Word(u8),
    /// In a field of its own, by code of its own.
    Field,
    /// Nowhere: it is an act.
    Act,
}

/// What there is to know of an option.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name here.
    pub name: OptName,
    /// Its name on Linux.
    pub symbol: &'static str,
    /// Linux's level.
    pub level: i32,
    /// Linux's number.
    pub number: i32,
    /// The sockets of unmodified programs that have it.
    pub sockets: Sockets,
    /// The sockets of the C library that have it.
    pub library: Sockets,
    /// The sockets of whose options the shim tells the shard.
    pub told: Sockets,
    /// Where the shim keeps it.
    pub kept: Kept,
    /// Which values it takes, in words.
    pub range: fn() -> String,
    /// What more there is to say of it, in Markdown.
    pub remark: &'static str,
}

impl Row {
    /// Whether it can be read: an act cannot.
    pub fn is_readable(&self) -> bool {
        self.kept != Kept::Act
    }
}

/// Numbers that mean what another number means too, on machines whose time has 64 bits.
fn canonical(level: i32, number: i32) -> i32 {
    const SO_RCVTIMEO_NEW: i32 = 66;
    const SO_SNDTIMEO_NEW: i32 = 67;
    match (level, number) {
        (libc::SOL_SOCKET, SO_RCVTIMEO_NEW) => libc::SO_RCVTIMEO,
        (libc::SOL_SOCKET, SO_SNDTIMEO_NEW) => libc::SO_SNDTIMEO,
        // A device has a name and a number.
        (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) => numbers::SO_BINDTOIFINDEX,
        _ => number,
    }
}

/// The row of an option that can be set on these sockets.
///
/// ```
/// use millrace_sockopt::{OptName, Sockets, find};
/// // TCP_NODELAY
/// let row = find(Sockets::STREAM, libc::IPPROTO_TCP, libc::TCP_NODELAY).expect("there is one");
/// assert_eq!(row.name, OptName::NoDelay);
/// assert!(find(Sockets::DATAGRAM, libc::IPPROTO_TCP, libc::TCP_NODELAY).is_none());
/// ```
pub fn find(sockets: Sockets, level: i32, number: i32) -> Option<&'static Row> {
    let number = canonical(level, number);
    settable(sockets).find(|row| (row.level, row.number) == (level, number))
}

/// The rows of the options that can be set on these sockets.
pub fn settable(sockets: Sockets) -> impl Iterator<Item = &'static Row> {
    ROWS.iter()
        .filter(move |row| row.sockets.intersects(sockets))
}

/// Whether an option of these sockets can be read, and not set.
pub fn is_read_only(sockets: Sockets, level: i32, number: i32) -> bool {
    READ_ONLY
        .iter()
        .any(|row| row.sockets.intersects(sockets) && (row.level, row.number) == (level, number))
}

impl Opt {
    /// The value as Linux would take it over: what is clamped there is clamped.
    ///
    /// ```
    /// use millrace_sockopt::Opt;
    /// assert_eq!(Opt::KeepIdle(0).normal(), Err(libc::EINVAL));
    /// assert_eq!(Opt::Linger2(9_000).normal(), Ok(Opt::Linger2(120)));
    /// ```
    ///
    /// # Errors
    /// `EINVAL` for a value out of range.
    pub fn normal(self) -> Result<Opt, i32> {
        // A program's own has no name that could be looked up, and there is no text of a
        // membership.
        if matches!(self, Opt::Congestion(Algorithm::Custom(_))) || self.membership().is_some() {
            return Ok(self);
        }
        let mut bytes = [0; VALUE_MAX];
        let len = self.encode(&mut bytes);
        Opt::decode(self.name(), &bytes[..len])
    }

    /// The group that it joins or leaves, if that is what it does.
    pub fn membership(self) -> Option<Membership> {
        match self {
            Opt::Join(change)
            | Opt::Leave(change)
            | Opt::JoinV6(change)
            | Opt::LeaveV6(change)
            | Opt::JoinGroup(change)
            | Opt::LeaveGroup(change)
            | Opt::JoinGroupV6(change)
            | Opt::LeaveGroupV6(change) => Some(change),
            _ => None,
        }
    }

    /// The value as it goes to the engine: see [`WORDS`].
    pub fn to_words(self) -> [u64; WORDS] {
        let mut bytes = [0; VALUE_MAX];
        let len = self.encode(&mut bytes);
        let mut words = [0; WORDS];
        words[0] = len as u64;
        for (word, chunk) in words[1..].iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*chunk);
        }
        words
    }

    /// The value as it came from a program, which may be anything.
    ///
    /// # Errors
    /// As [`Opt::decode`].
    pub fn from_words(name: OptName, words: &[u64; WORDS]) -> Result<Opt, i32> {
        let mut bytes = [0; 8 * (WORDS - 1)];
        for (chunk, word) in bytes.as_chunks_mut().0.iter_mut().zip(&words[1..]) {
            *chunk = word.to_ne_bytes();
        }
        let len = usize::try_from(words[0]).map_err(|_| libc::EINVAL)?;
        Opt::decode(name, bytes.get(..len).ok_or(libc::EINVAL)?)
    }

    /// The first four bytes of its value, as far as it has them: what the shim keeps of a number or
    /// a switch.
    pub fn number(self) -> u32 {
        let mut bytes = [0; VALUE_MAX];
        self.encode(&mut bytes);
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

/// Makes a value of `used` bytes fit into `room`, where Linux does not merely cut it off; how many
/// bytes it has then.
pub fn fit(row: Option<&Row>, value: &mut [u8; VALUE_MAX], used: usize, room: usize) -> usize {
    // Options of IP are handed out as one byte where there is no room for a number.
    let is_number = row.is_some_and(|row| {
        row.level == libc::IPPROTO_IP && row.name != OptName::MulticastInterface
    });
    if is_number && (1..4).contains(&room) && value[1..4] == [0; 3] {
        return used.min(1);
    }
    if row.is_some_and(|row| row.name == OptName::MaxPacingRate) && used == 8 && room < 8 {
        let rate = u64::from_ne_bytes(*value.first_chunk().unwrap_or(&[0; 8]));
        let rate = rate.min(u64::from(u32::MAX)) as u32;
        value[..4].copy_from_slice(&rate.to_ne_bytes());
        return room.min(4);
    }
    used.min(room)
}
