//! How values are written: as `setsockopt` takes them and `getsockopt` hands them out.
//!
//! Each codec accepts what Linux accepts and refuses with Linux's error. What [`Codec::encode`]
//! writes, [`Codec::decode`] reads.

mod groups;

use libc::{EDOM, EINVAL, ENOENT};
use std::marker::PhantomData;

use crate::VALUE_MAX;
use crate::values::{Algorithm, Discovery, FastOpenKeys};

pub use groups::{GroupRequest, InterfaceV4, MembershipV4, MembershipV6};

/// Room for a value.
pub type Out = [u8; VALUE_MAX];

/// A way to write values.
pub trait Codec {
    /// What is written.
    type Value: Copy;
    /// Which values there are, in words.
    fn range() -> String;

    /// Reads a value.
    ///
    /// # Errors
    /// What Linux says of a value that it does not take.
    fn decode(bytes: &[u8]) -> Result<Self::Value, i32>;

    /// Writes a value; its length in bytes.
    fn encode(value: Self::Value, out: &mut Out) -> usize;
}

/// The `int` that a value begins with.
fn int(bytes: &[u8]) -> Result<i32, i32> {
    let bytes = bytes.first_chunk().ok_or(EINVAL)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// An `int`, or one byte where there are fewer than four: options of IP take both.
fn short(bytes: &[u8]) -> Result<i32, i32> {
    match (bytes.first_chunk(), bytes.first()) {
        (Some(int), _) => Ok(i32::from_ne_bytes(*int)),
        (None, Some(&byte)) => Ok(byte.into()),
        (None, None) => Err(EINVAL),
    }
}

/// As [`short`], and no byte at all is 0.
fn number(bytes: &[u8]) -> i32 {
    short(bytes).unwrap_or(0)
}

fn strict(number: i32) -> Result<bool, i32> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(EINVAL),
    }
}

fn write(number: i32, out: &mut Out) -> usize {
    out[..4].copy_from_slice(&number.to_ne_bytes());
    4
}

/// A bool: 0 is off, any other `int` on.
pub struct Flag;

impl Codec for Flag {
    type Value = bool;
    fn range() -> String {
        "0 or 1".into()
    }

    fn decode(bytes: &[u8]) -> Result<bool, i32> {
        Ok(int(bytes)? != 0)
    }

    fn encode(on: bool, out: &mut Out) -> usize {
        write(on.into(), out)
    }
}

/// `TCP_FASTOPEN`: a number from 0 on, of which no more than the queue can be long counts.
pub struct FastOpenLimit;

impl Codec for FastOpenLimit {
    type Value = u16;

    fn range() -> String {
        "0 or more".into()
    }

    fn decode(bytes: &[u8]) -> Result<u16, i32> {
        let limit = u32::try_from(int(bytes)?).map_err(|_| EINVAL)?;
        Ok(u16::try_from(limit).unwrap_or(u16::MAX))
    }

    fn encode(limit: u16, out: &mut Out) -> usize {
        write(limit.into(), out)
    }
}

/// As [`Flag`], and one byte is enough.
pub struct ShortFlag;

impl Codec for ShortFlag {
    type Value = bool;
    fn range() -> String {
        "0 or 1".into()
    }

    fn decode(bytes: &[u8]) -> Result<bool, i32> {
        Ok(short(bytes)? != 0)
    }

    fn encode(on: bool, out: &mut Out) -> usize {
        write(on.into(), out)
    }
}

/// A bool that is 0 or 1 and nothing else.
pub struct StrictFlag;

impl Codec for StrictFlag {
    type Value = bool;
    fn range() -> String {
        "0 or 1".into()
    }

    fn decode(bytes: &[u8]) -> Result<bool, i32> {
        strict(int(bytes)?)
    }

    fn encode(on: bool, out: &mut Out) -> usize {
        write(on.into(), out)
    }
}

/// As [`Flag`], one byte is enough, and no byte at all is off: options of IP.
pub struct LooseFlag;

impl Codec for LooseFlag {
    type Value = bool;

    fn range() -> String {
        "0 or 1".into()
    }

    fn decode(bytes: &[u8]) -> Result<bool, i32> {
        Ok(number(bytes) != 0)
    }

    fn encode(on: bool, out: &mut Out) -> usize {
        write(on.into(), out)
    }
}

/// As [`Flag`], and what is shorter than an `int` is off.
pub struct LongFlag;

impl Codec for LongFlag {
    type Value = bool;

    fn range() -> String {
        "0 or 1".into()
    }

    fn decode(bytes: &[u8]) -> Result<bool, i32> {
        Ok(int(bytes).is_ok_and(|on| on != 0))
    }

    fn encode(on: bool, out: &mut Out) -> usize {
        write(on.into(), out)
    }
}

/// As [`StrictFlag`], and one byte is enough.
pub struct StrictShortFlag;

impl Codec for StrictShortFlag {
    type Value = bool;

    fn range() -> String {
        "0 or 1".into()
    }

    fn decode(bytes: &[u8]) -> Result<bool, i32> {
        strict(short(bytes)?)
    }

    fn encode(on: bool, out: &mut Out) -> usize {
        write(on.into(), out)
    }
}

/// Integers that a range is of.
pub trait Number: Copy + TryFrom<i32> {
    /// As Linux writes it.
    fn to_int(self) -> i32;
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Number for $number {
            fn to_int(self) -> i32 {
                self as i32
            }
        }
    )*};
}

numbers! { u8 u16 u32 i16 }

/// An `int` of a range; others are refused.
pub struct Within<T, const LEAST: i32, const MOST: i32>(PhantomData<T>);

impl<T: Number, const LEAST: i32, const MOST: i32> Codec for Within<T, LEAST, MOST> {
    type Value = T;
    fn range() -> String {
        format!("{LEAST} to {MOST}")
    }

    fn decode(bytes: &[u8]) -> Result<T, i32> {
        let value = int(bytes)?;
        if !(LEAST..=MOST).contains(&value) {
            return Err(EINVAL);
        }
        T::try_from(value).map_err(|_| EINVAL)
    }

    fn encode(value: T, out: &mut Out) -> usize {
        write(value.to_int(), out)
    }
}

/// An `int` that is brought into a range.
pub struct Clamped<T, const LEAST: i32, const MOST: i32>(PhantomData<T>);

impl<T: Number, const LEAST: i32, const MOST: i32> Codec for Clamped<T, LEAST, MOST> {
    type Value = T;
    fn range() -> String {
        format!("cut to {LEAST} to {MOST}")
    }

    fn decode(bytes: &[u8]) -> Result<T, i32> {
        T::try_from(int(bytes)?.clamp(LEAST, MOST)).map_err(|_| EINVAL)
    }

    fn encode(value: T, out: &mut Out) -> usize {
        write(value.to_int(), out)
    }
}

/// Any `int`, as a number without a sign.
pub struct Word;

impl Codec for Word {
    type Value = u32;

    fn range() -> String {
        "any number".into()
    }

    fn decode(bytes: &[u8]) -> Result<u32, i32> {
        Ok(int(bytes)? as u32)
    }

    fn encode(value: u32, out: &mut Out) -> usize {
        write(value as i32, out)
    }
}

/// Bytes of a buffer: a negative number is a huge one, as on Linux. The shard has its own bounds.
pub struct Size;

impl Codec for Size {
    type Value = u32;

    fn range() -> String {
        "bytes".into()
    }

    fn decode(bytes: &[u8]) -> Result<u32, i32> {
        let bytes = u32::try_from(int(bytes)?).unwrap_or(u32::MAX);
        Ok(bytes.min(i32::MAX as u32 / 2))
    }

    fn encode(value: u32, out: &mut Out) -> usize {
        write(value.min(i32::MAX as u32) as i32, out)
    }
}

/// `SO_RCVLOWAT`: a negative number is a huge one, and 0 is 1.
pub struct LowWater;

impl Codec for LowWater {
    type Value = u32;

    fn range() -> String {
        "bytes, at least 1".into()
    }

    fn decode(bytes: &[u8]) -> Result<u32, i32> {
        let bytes = u32::try_from(int(bytes)?).unwrap_or(i32::MAX as u32);
        Ok(bytes.max(1))
    }

    fn encode(value: u32, out: &mut Out) -> usize {
        write(value.min(i32::MAX as u32) as i32, out)
    }
}

/// `struct linger`: a time without a sign, as on Linux, so that a negative one is a long one.
pub struct Linger;

impl Codec for Linger {
    type Value = Option<u16>;

    fn range() -> String {
        "`struct linger`".into()
    }

    fn decode(bytes: &[u8]) -> Result<Option<u16>, i32> {
        let on = int(bytes)? != 0;
        let seconds = int(bytes.get(4..).ok_or(EINVAL)?)? as u32;
        Ok(on.then_some(u16::try_from(seconds).unwrap_or(u16::MAX)))
    }

    fn encode(linger: Option<u16>, out: &mut Out) -> usize {
        out[..4].copy_from_slice(&i32::from(linger.is_some()).to_ne_bytes());
        out[4..8].copy_from_slice(&i32::from(linger.unwrap_or(0)).to_ne_bytes());
        8
    }
}

/// `struct timeval` in microseconds; 0 is for ever.
pub struct Time;

impl Codec for Time {
    type Value = u64;

    fn range() -> String {
        "`struct timeval`".into()
    }

    fn decode(bytes: &[u8]) -> Result<u64, i32> {
        let field = |at: usize| -> Result<i64, i32> {
            let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            Ok(i64::from_ne_bytes(*bytes.ok_or(EINVAL)?))
        };
        let (seconds, micros) = (field(0)?, field(8)?);
        if !(0..1_000_000).contains(&micros) {
            return Err(EDOM);
        }
        // Linux: below 0 it does not wait at all.
        Ok(u64::try_from(seconds).map_or(1, |seconds| {
            seconds
                .saturating_mul(1_000_000)
                .saturating_add(micros as u64)
        }))
    }

    fn encode(us: u64, out: &mut Out) -> usize {
        out[..8].copy_from_slice(&(us / 1_000_000).to_ne_bytes());
        out[8..16].copy_from_slice(&(us % 1_000_000).to_ne_bytes());
        16
    }
}

/// Bytes a second in 4 or 8 bytes; all ones are no bound.
pub struct Rate;

impl Codec for Rate {
    type Value = u64;

    fn range() -> String {
        "bytes a second, in 4 or 8 bytes".into()
    }

    fn decode(bytes: &[u8]) -> Result<u64, i32> {
        let narrow = int(bytes)? as u32;
        Ok(match bytes.first_chunk() {
            Some(wide) => u64::from_ne_bytes(*wide),
            None if narrow == u32::MAX => u64::MAX,
            None => narrow.into(),
        })
    }

    fn encode(rate: u64, out: &mut Out) -> usize {
        out[..8].copy_from_slice(&rate.to_ne_bytes());
        8
    }
}

/// The name of a congestion control.
pub struct CongestionName;

impl CongestionName {
    /// Linux's `TCP_CA_NAME_MAX`.
    const LEN: usize = 16;
}

impl Codec for CongestionName {
    type Value = Algorithm;

    fn range() -> String {
        let names = Algorithm::ALL.map(|algorithm| format!("`{}`", algorithm.name()));
        format!("{}, else `ENOENT`", names.join(", "))
    }

    fn decode(bytes: &[u8]) -> Result<Algorithm, i32> {
        if bytes.is_empty() {
            return Err(EINVAL);
        }
        // Linux takes no more than this from the program.
        let bytes = &bytes[..bytes.len().min(CongestionName::LEN - 1)];
        let len = bytes.iter().position(|&byte| byte == 0);
        let name = std::str::from_utf8(&bytes[..len.unwrap_or(bytes.len())]);
        name.map_err(|_| ENOENT)?.parse().map_err(|()| ENOENT)
    }

    fn encode(algorithm: Algorithm, out: &mut Out) -> usize {
        let name = algorithm.name().as_bytes();
        out[..CongestionName::LEN].fill(0);
        out[..name.len()].copy_from_slice(name);
        CongestionName::LEN
    }
}

/// One key of 16 bytes, or two.
pub struct Keys;

impl Codec for Keys {
    type Value = FastOpenKeys;

    fn range() -> String {
        "16 bytes, or 32 with the key before".into()
    }

    fn decode(bytes: &[u8]) -> Result<FastOpenKeys, i32> {
        let (keys, []) = bytes.as_chunks::<16>() else {
            return Err(EINVAL);
        };
        match *keys {
            [primary] => Ok(FastOpenKeys {
                primary,
                backup: None,
            }),
            [primary, backup] => Ok(FastOpenKeys {
                primary,
                backup: Some(backup),
            }),
            _ => Err(EINVAL),
        }
    }

    fn encode(keys: FastOpenKeys, out: &mut Out) -> usize {
        out[..16].copy_from_slice(&keys.primary);
        match keys.backup {
            Some(backup) => {
                out[16..32].copy_from_slice(&backup);
                32
            }
            None => 16,
        }
    }
}

/// Hops that a packet may take, by default.
pub const DEFAULT_HOPS: u8 = 64;

/// `IP_TTL`: -1 is the default.
pub struct Ttl;

impl Codec for Ttl {
    type Value = u8;

    fn range() -> String {
        "1 to 255, -1 for the default".into()
    }

    fn decode(bytes: &[u8]) -> Result<u8, i32> {
        match short(bytes)? {
            -1 => Ok(DEFAULT_HOPS),
            hops @ 1..=255 => Ok(hops as u8),
            _ => Err(EINVAL),
        }
    }

    fn encode(hops: u8, out: &mut Out) -> usize {
        write(hops.into(), out)
    }
}

/// `IPV6_UNICAST_HOPS`: -1 is the default.
pub struct Hops;

impl Codec for Hops {
    type Value = Option<u8>;

    fn range() -> String {
        "0 to 255, -1 for the default".into()
    }

    fn decode(bytes: &[u8]) -> Result<Option<u8>, i32> {
        match int(bytes)? {
            -1 => Ok(None),
            hops => u8::try_from(hops).map(Some).map_err(|_| EINVAL),
        }
    }

    fn encode(hops: Option<u8>, out: &mut Out) -> usize {
        write(hops.map_or(-1, i32::from), out)
    }
}

/// `IP_TOS`: the lowest eight bits.
pub struct Tos;

impl Codec for Tos {
    type Value = u8;

    fn range() -> String {
        "0 to 255".into()
    }

    fn decode(bytes: &[u8]) -> Result<u8, i32> {
        Ok(number(bytes) as u8)
    }

    fn encode(tos: u8, out: &mut Out) -> usize {
        write(tos.into(), out)
    }
}

/// `IPV6_TCLASS`: -1 is the default, 0.
pub struct TrafficClass;

impl Codec for TrafficClass {
    type Value = u8;

    fn range() -> String {
        "0 to 255, -1 for the default".into()
    }

    fn decode(bytes: &[u8]) -> Result<u8, i32> {
        match int(bytes)? {
            -1 => Ok(0),
            class => u8::try_from(class).map_err(|_| EINVAL),
        }
    }

    fn encode(class: u8, out: &mut Out) -> usize {
        write(class.into(), out)
    }
}

/// `TCP_MAXSEG`: 0 is the link's.
pub struct MaxSegment;

impl Codec for MaxSegment {
    type Value = u16;

    fn range() -> String {
        "0, or 88 to 32767".into()
    }

    fn decode(bytes: &[u8]) -> Result<u16, i32> {
        match int(bytes)? {
            bytes @ (0 | 88..=32_767) => Ok(bytes as u16),
            _ => Err(EINVAL),
        }
    }

    fn encode(bytes: u16, out: &mut Out) -> usize {
        write(bytes.into(), out)
    }
}

/// `IP_MULTICAST_TTL`: -1 is the default, 1.
pub struct GroupTtl;

impl Codec for GroupTtl {
    type Value = u8;

    fn range() -> String {
        "0 to 255, -1 for the default".into()
    }

    fn decode(bytes: &[u8]) -> Result<u8, i32> {
        match short(bytes)? {
            -1 => Ok(1),
            hops => u8::try_from(hops).map_err(|_| EINVAL),
        }
    }

    fn encode(hops: u8, out: &mut Out) -> usize {
        write(hops.into(), out)
    }
}

/// `IPV6_MULTICAST_HOPS`: -1 is the default, 1.
pub struct GroupHops;

impl Codec for GroupHops {
    type Value = u8;

    fn range() -> String {
        "0 to 255, -1 for the default".into()
    }

    fn decode(bytes: &[u8]) -> Result<u8, i32> {
        int(bytes).and_then(|_| GroupTtl::decode(bytes))
    }

    fn encode(hops: u8, out: &mut Out) -> usize {
        write(hops.into(), out)
    }
}

/// `IP_MTU_DISCOVER` with numbers up to `MOST`, from `LEAST` on.
pub struct DiscoveryV4<const LEAST: i32, const MOST: i32>;

impl<const LEAST: i32, const MOST: i32> Codec for DiscoveryV4<LEAST, MOST> {
    type Value = Discovery;

    fn range() -> String {
        format!("{LEAST} to {MOST} (`IP_PMTUDISC_...`)")
    }

    fn decode(bytes: &[u8]) -> Result<Discovery, i32> {
        let how = number(bytes);
        if !(LEAST..=MOST).contains(&how) {
            return Err(EINVAL);
        }
        Discovery::from_number(how as u8).ok_or(EINVAL)
    }

    fn encode(how: Discovery, out: &mut Out) -> usize {
        write(how as i32, out)
    }
}

/// `IPV6_MTU_DISCOVER`, which takes no single byte.
pub struct DiscoveryV6<const LEAST: i32, const MOST: i32>;

impl<const LEAST: i32, const MOST: i32> Codec for DiscoveryV6<LEAST, MOST> {
    type Value = Discovery;

    fn range() -> String {
        DiscoveryV4::<LEAST, MOST>::range()
    }

    fn decode(bytes: &[u8]) -> Result<Discovery, i32> {
        int(bytes).and_then(|_| DiscoveryV4::<LEAST, MOST>::decode(bytes))
    }

    fn encode(how: Discovery, out: &mut Out) -> usize {
        write(how as i32, out)
    }
}

/// `IPV6_MTU`: 0 for what the path takes. RFC 8200 5: "IPv6 requires that every link in the
/// Internet have an MTU of 1280 octets or greater."
pub struct MtuV6;

impl Codec for MtuV6 {
    type Value = u16;

    fn range() -> String {
        "0, or 1280 and more".into()
    }

    fn decode(bytes: &[u8]) -> Result<u16, i32> {
        match int(bytes)? {
            0 => Ok(0),
            bytes @ 1280.. => Ok(u16::try_from(bytes).unwrap_or(u16::MAX)),
            _ => Err(EINVAL),
        }
    }

    fn encode(bytes: u16, out: &mut Out) -> usize {
        write(bytes.into(), out)
    }
}
