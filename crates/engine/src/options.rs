//! Socket options as the program names them, as the shard takes them.

use libc::{EINVAL, ENOENT, ENOPROTOOPT};
use millrace_context::submission::{DatagramName, Name};
use millrace_shard::{Buffers, DatagramOpt, Discovery, FastOpenKeys, Opt, OptName, Options};
use millrace_tcp::Algorithm;

/// The option that a request names. Values out of range are `EINVAL`: the shim has checked them, but nobody believes the shim.
pub(crate) fn parse(name: Name, arguments: &[u64; 6]) -> Result<Opt, i32> {
    let value = arguments[0];
    let flag = value != 0;
    let narrow = |max: u64| if value <= max { Ok(value) } else { Err(EINVAL) };
    Ok(match name {
        Name::NoDelay => Opt::NoDelay(flag),
        Name::Cork => Opt::Cork(flag),
        Name::KeepAlive => Opt::KeepAlive(flag),
        Name::KeepIdle => Opt::KeepIdle(narrow(32767)? as u16),
        Name::KeepInterval => Opt::KeepInterval(narrow(32767)? as u16),
        Name::KeepCount => Opt::KeepCount(narrow(127)? as u8),
        Name::UserTimeout => Opt::UserTimeout(narrow(u64::from(u32::MAX))? as u32),
        Name::MaxSegment => Opt::MaxSegment(narrow(32767)? as u16),
        Name::SynCount => Opt::SynCount(narrow(127)? as u8),
        Name::Linger2 => Opt::Linger2(match value {
            u64::MAX => -1,
            _ => narrow(120)? as i16,
        }),
        Name::Linger => Opt::Linger(flag.then_some(arguments[1].min(u64::from(u16::MAX)) as u16)),
        Name::ReceiveBuffer => Opt::ReceiveBuffer(narrow(u64::from(u32::MAX))? as u32),
        Name::SendBuffer => Opt::SendBuffer(narrow(u64::from(u32::MAX))? as u32),
        Name::Congestion => Opt::Congestion(algorithm(&arguments[..2])?),
        Name::AddressOnly => Opt::AddressOnly(flag),
        Name::ReceiveLowWater => Opt::ReceiveLowWater(narrow(u64::from(u32::MAX))? as u32),
        Name::Ttl => Opt::Ttl(narrow(255)? as u8),
        Name::Tos => Opt::Tos(narrow(255)? as u8),
        // One more than the value, so that 0 is the default.
        Name::HopLimit => {
            Opt::HopLimit((narrow(256)? as u16).checked_sub(1).map(|hops| hops as u8))
        }
        Name::TrafficClass => Opt::TrafficClass(narrow(255)? as u8),
        Name::QuickAck => Opt::QuickAck(flag),
        Name::MaxPacingRate => Opt::MaxPacingRate(value),
        Name::DeferAccept => Opt::DeferAccept(narrow(u64::from(u32::MAX))? as u32),
        Name::NotSentLowWater => Opt::NotSentLowWater(narrow(u64::from(u32::MAX))? as u32),
        Name::Datagram => datagram(arguments)?,
        Name::FastOpen => Opt::FastOpen(narrow(u64::from(u16::MAX))? as u16),
        Name::FastOpenNoCookie => Opt::FastOpenNoCookie(flag),
        Name::FastOpenKey => Opt::FastOpenKeys(FastOpenKeys {
            primary: key(&arguments[..2]),
            backup: (arguments[4] != 0).then(|| key(&arguments[2..4])),
        }),
        Name::MtuDiscover => Opt::MtuDiscover(discovery(value)?),
        Name::MtuDiscoverV6 => Opt::MtuDiscoverV6(discovery(value)?),
        Name::Info | Name::OutQueue | Name::OutQueueUnsent | Name::Mtu => return Err(ENOPROTOOPT),
    })
}

fn key(words: &[u64]) -> [u8; 16] {
    let mut key = [0; 16];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    key
}

/// IP_PMTUDISC_WANT and IP_PMTUDISC_DO.
fn discovery(value: u64) -> Result<Discovery, i32> {
    match value {
        1 => Ok(Discovery::Want),
        2 => Ok(Discovery::Always),
        _ => Err(EINVAL),
    }
}

fn datagram(arguments: &[u64; 6]) -> Result<Opt, i32> {
    let [number, value, ..] = *arguments;
    let on = value != 0;
    let byte = || u8::try_from(value).map_err(|_| EINVAL);
    let discovery = || byte().and_then(|byte| Discovery::from_number(byte).ok_or(EINVAL));
    let name = DatagramName::from_number(number).ok_or(ENOPROTOOPT)?;
    Ok(Opt::Datagram(match name {
        DatagramName::ReuseAddress => return Ok(Opt::ReuseAddress(on)),
        DatagramName::ReusePort => return Ok(Opt::ReusePort(on)),
        DatagramName::MtuV6 => DatagramOpt::MtuV6(u16::try_from(value).map_err(|_| EINVAL)?),
        DatagramName::Broadcast => DatagramOpt::Broadcast(on),
        DatagramName::ErrorsV4 => DatagramOpt::ErrorsV4(on),
        DatagramName::ErrorsV6 => DatagramOpt::ErrorsV6(on),
        DatagramName::GroupHopsV4 => DatagramOpt::GroupHopsV4(byte()?),
        DatagramName::GroupHopsV6 => DatagramOpt::GroupHopsV6(byte()?),
        DatagramName::GroupLoopV4 => DatagramOpt::GroupLoopV4(on),
        DatagramName::GroupLoopV6 => DatagramOpt::GroupLoopV6(on),
        DatagramName::AllGroupsV4 => DatagramOpt::AllGroupsV4(on),
        DatagramName::AllGroupsV6 => DatagramOpt::AllGroupsV6(on),
        DatagramName::DiscoveryV4 => DatagramOpt::DiscoveryV4(discovery()?),
        DatagramName::DiscoveryV6 => DatagramOpt::DiscoveryV6(discovery()?),
        DatagramName::WholeV6 => DatagramOpt::WholeV6(on),
        DatagramName::Cork => DatagramOpt::Cork(on),
        DatagramName::Join => DatagramOpt::Join(on),
    }))
}

fn algorithm(words: &[u64]) -> Result<Algorithm, i32> {
    let name: Vec<u8> = words
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    let name = std::str::from_utf8(&name).map_err(|_| ENOENT)?;
    name.parse().map_err(|()| ENOENT)
}

/// The option to read, for those that are the shard's.
pub(crate) fn readable(name: Name) -> Option<OptName> {
    Some(match name {
        Name::NoDelay => OptName::NoDelay,
        Name::Cork => OptName::Cork,
        Name::KeepAlive => OptName::KeepAlive,
        Name::KeepIdle => OptName::KeepIdle,
        Name::KeepInterval => OptName::KeepInterval,
        Name::KeepCount => OptName::KeepCount,
        Name::UserTimeout => OptName::UserTimeout,
        Name::MaxSegment => OptName::MaxSegment,
        Name::SynCount => OptName::SynCount,
        Name::Linger2 => OptName::Linger2,
        Name::Linger => OptName::Linger,
        Name::ReceiveBuffer => OptName::ReceiveBuffer,
        Name::SendBuffer => OptName::SendBuffer,
        Name::Congestion => OptName::Congestion,
        Name::QuickAck => OptName::QuickAck,
        Name::AddressOnly => OptName::AddressOnly,
        Name::ReceiveLowWater => OptName::ReceiveLowWater,
        Name::Ttl => OptName::Ttl,
        Name::Tos => OptName::Tos,
        Name::HopLimit => OptName::HopLimit,
        Name::TrafficClass => OptName::TrafficClass,
        Name::MaxPacingRate => OptName::MaxPacingRate,
        Name::DeferAccept => OptName::DeferAccept,
        Name::NotSentLowWater => OptName::NotSentLowWater,
        Name::FastOpen => OptName::FastOpen,
        Name::FastOpenNoCookie => OptName::FastOpenNoCookie,
        Name::MtuDiscover => OptName::MtuDiscover,
        Name::MtuDiscoverV6 => OptName::MtuDiscoverV6,
        Name::Datagram
        | Name::Info
        | Name::OutQueue
        | Name::OutQueueUnsent
        | Name::Mtu
        | Name::FastOpenKey => return None,
    })
}

/// An option's value as getsockopt hands it over: an int, for a rate eight bytes, `struct linger`, or a name.
pub(crate) fn encode(opt: Opt) -> Vec<u8> {
    let int = |value: i64| (value as i32).to_ne_bytes().to_vec();
    match opt {
        Opt::NoDelay(on)
        | Opt::Cork(on)
        | Opt::KeepAlive(on)
        | Opt::QuickAck(on)
        | Opt::ReuseAddress(on)
        | Opt::V6Only(on)
        | Opt::AddressOnly(on)
        | Opt::FastOpenNoCookie(on)
        | Opt::ReusePort(on) => int(i64::from(on)),
        Opt::KeepIdle(value) | Opt::KeepInterval(value) | Opt::MaxSegment(value) => {
            int(i64::from(value))
        }
        Opt::FastOpen(value) => int(i64::from(value)),
        Opt::Linger2(value) => int(i64::from(value)),
        Opt::KeepCount(value)
        | Opt::SynCount(value)
        | Opt::Ttl(value)
        | Opt::Tos(value)
        | Opt::TrafficClass(value) => int(i64::from(value)),
        Opt::HopLimit(value) => int(value.map_or(-1, i64::from)),
        Opt::UserTimeout(value)
        | Opt::ReceiveBuffer(value)
        | Opt::SendBuffer(value)
        | Opt::NotSentLowWater(value)
        | Opt::ReceiveLowWater(value)
        | Opt::DeferAccept(value) => int(i64::from(value)),
        Opt::MtuDiscover(discovery) | Opt::MtuDiscoverV6(discovery) => int(discovery as i64),
        Opt::MaxPacingRate(rate) => rate.to_ne_bytes().to_vec(),
        // Whoever set it knows.
        Opt::Datagram(_) => Vec::new(),
        Opt::FastOpenKeys(keys) => [
            &keys.primary[..],
            keys.backup.as_ref().map_or(&[], |key| &key[..]),
        ]
        .concat(),
        Opt::Linger(linger) => [
            int(i64::from(linger.is_some())),
            int(i64::from(linger.unwrap_or(0))),
        ]
        .concat(),
        Opt::Congestion(algorithm) => {
            let mut name = algorithm.name().as_bytes().to_vec();
            name.resize(16, 0);
            name
        }
    }
}

/// Options that were set before there was a socket to set them on.
pub(crate) fn collect(set: &[Opt], buffers: &Buffers) -> Options {
    let mut options = Options::default();
    for opt in set {
        // A value that the shard refuses would have been refused by a socket too.
        let _ = options.set(*opt, buffers.send_max, buffers.receive_max);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepalive_times_may_come_after_it_is_switched_on() {
        let set = [Opt::KeepAlive(true), Opt::KeepIdle(7), Opt::KeepCount(3)];
        let options = collect(&set, &Buffers::default());
        let keepalive = options.tcp.keepalive.unwrap();
        assert_eq!((keepalive.idle_s, keepalive.probes), (7, 3));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        assert_eq!(parse(Name::KeepCount, &[128, 0, 0, 0, 0, 0]), Err(EINVAL));
        assert_eq!(
            parse(
                Name::Congestion,
                &[u64::from_ne_bytes(*b"vegas\0\0\0"), 0, 0, 0, 0, 0]
            ),
            Err(ENOENT)
        );
        assert_eq!(parse(Name::Info, &[0; 6]), Err(ENOPROTOOPT));
    }
}
