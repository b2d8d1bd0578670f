//! Values as programs write them.

use millrace_sockopt::{Opt, OptName, ROWS, Sockets, VALUE_MAX, find};

fn int(value: i32) -> [u8; 4] {
    value.to_ne_bytes()
}

fn decode(name: OptName, value: &[u8]) -> Result<Opt, i32> {
    Opt::decode(name, value)
}

/// Bytes that all kinds of values can be made of: numbers about the bounds of every range, and
/// words of them.
fn samples() -> Vec<Vec<u8>> {
    let numbers = [
        i32::MIN,
        -2,
        -1,
        0,
        1,
        2,
        3,
        5,
        6,
        87,
        88,
        119,
        120,
        121,
        127,
        128,
        255,
        256,
        1279,
        1280,
        32_767,
        32_768,
        65_535,
        65_536,
        999_999,
        1_000_000,
        i32::MAX,
    ];
    let mut samples: Vec<Vec<u8>> = vec![
        vec![],
        vec![7],
        vec![1, 0],
        vec![0; 16],
        vec![9; 32],
        vec![9; 33],
        b"reno".to_vec(),
        b"nonesuch".to_vec(),
    ];
    for number in numbers {
        samples.push(int(number).to_vec());
        for other in [0, 1, -1, i32::MAX] {
            samples.push([int(number), int(other)].concat());
            samples.push(
                [
                    i64::from(number).to_ne_bytes(),
                    i64::from(other).to_ne_bytes(),
                ]
                .concat(),
            );
        }
    }
    samples
}

#[test]
fn what_is_written_is_read_back() {
    for row in &ROWS {
        for sample in samples() {
            let Ok(opt) = decode(row.name, &sample) else {
                continue;
            };
            if opt.membership().is_some() {
                continue;
            }
            let mut out = [0; VALUE_MAX];
            let len = opt.encode(&mut out);
            assert_eq!(
                decode(row.name, &out[..len]),
                Ok(opt),
                "{} {sample:?}",
                row.symbol
            );
            assert_eq!(
                Opt::from_words(row.name, &opt.to_words()),
                Ok(opt),
                "{} {sample:?}",
                row.symbol
            );
            assert_eq!(opt.normal(), Ok(opt), "{} {sample:?}", row.symbol);
        }
    }
}

#[test]
fn defaults_are_values() {
    for row in &ROWS {
        let default = row.name.default();
        assert_eq!(default.name(), row.name);
        assert_eq!(
            default.normal().map(|opt| opt.name()),
            Ok(row.name),
            "{}",
            row.symbol
        );
    }
}

#[test]
fn every_number_is_found_once() {
    for kind in [Sockets::STREAM, Sockets::DATAGRAM] {
        for row in ROWS.iter().filter(|row| row.sockets.contains(kind)) {
            let found = find(kind, row.level, row.number).expect("a row");
            assert_eq!(found.name, row.name, "{}", row.symbol);
        }
    }
    for (at, name) in OptName::ALL.iter().enumerate() {
        assert_eq!(OptName::from_number(at as u32), Some(*name));
        assert_eq!(name.row().name, *name);
    }
    assert_eq!(OptName::from_number(OptName::ALL.len() as u32), None);
}

#[test]
fn values_are_checked_as_linux_checks_them() {
    let refused =
        |name, value: &[u8], errno| assert_eq!(decode(name, value), Err(errno), "{name:?}");
    refused(OptName::NoDelay, &[1], libc::EINVAL);
    refused(OptName::KeepCount, &int(128), libc::EINVAL);
    refused(OptName::KeepIdle, &int(0), libc::EINVAL);
    refused(OptName::MaxSegment, &int(87), libc::EINVAL);
    refused(OptName::Congestion, b"nonesuch", libc::ENOENT);
    refused(OptName::Congestion, b"", libc::EINVAL);
    refused(OptName::DatagramMtuDiscover, &int(6), libc::EINVAL);
    refused(OptName::MtuDiscover, &int(3), libc::EINVAL);
    refused(OptName::MulticastTtl, &int(256), libc::EINVAL);
    refused(OptName::MtuV6, &int(1279), libc::EINVAL);
    refused(OptName::UdpSegment, &int(-1), libc::EINVAL);
    refused(OptName::Linger, &int(1), libc::EINVAL);
    let time = |seconds: i64, micros: i64| [seconds.to_ne_bytes(), micros.to_ne_bytes()].concat();
    refused(OptName::ReceiveTimeout, &time(0, 1_000_000), libc::EDOM);
    assert_eq!(
        decode(OptName::ReceiveTimeout, &time(2, 3)),
        Ok(Opt::ReceiveTimeout(2_000_003))
    );
    assert_eq!(
        decode(OptName::ReceiveTimeout, &time(-1, 0)),
        Ok(Opt::ReceiveTimeout(1))
    );
    // A negative time is a long one, which does not reset the connection.
    let linger = [int(1), int(-1)].concat();
    assert_eq!(
        decode(OptName::Linger, &linger),
        Ok(Opt::Linger(Some(u16::MAX)))
    );
}
