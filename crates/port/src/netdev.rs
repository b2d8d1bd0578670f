//! What drivers tell of themselves by the kernel's `netdev` family of generic netlink (Linux 6.3;
//! NAPI 6.8).

use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

use crate::device::index;

/// The family that tells of families, and its question for one by name.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Questions of the family `netdev`, and attributes of the answers.
const DEVICE_GET: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_XDP_FEATURES: u16 = 3;
const NAPI_GET: u8 = 11;
const NAPI_INDEX: u16 = 1;
const NAPI_ID: u16 = 2;
const QUEUE_GET: u8 = 10;
const QUEUE_INDEX: u16 = 2;
const QUEUE_TYPE: u16 = 3;
const QUEUE_NAPI: u16 = 4;
/// The type of a queue that receives.
const RECEIVES: u32 = 0;

const HEADER: usize = 20;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const DONE: u16 = 3;
const ERROR: u16 = 2;

/// What the driver of a device can do about XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// It runs programs, and hands frames to AF_XDP sockets.
    pub native: bool,
    /// It writes into the sockets' memory.
    pub zero_copy: bool,
    /// It takes frames in pieces.
    pub pieces: bool,
}

/// What the driver of a device can do about XDP.
///
/// # Errors
/// There is no such device, or the kernel does not tell.
pub fn xdp_features(device: &str) -> io::Result<Features> {
    let mut features = None;
    ask(
        DEVICE_GET,
        0,
        (DEVICE_INDEX, index(device)?),
        |kind, value| {
            if kind == DEVICE_XDP_FEATURES
                && let Ok(bits) = value.try_into()
            {
                features = Some(u64::from_ne_bytes(bits));
            }
        },
    )?;
    let bits = features.ok_or(io::ErrorKind::Unsupported)?;
    Ok(Features {
        native: bits & 3 == 3,
        zero_copy: bits & 8 != 0,
        pieces: bits & 32 != 0,
    })
}

/// How many pollers (NAPI) a device has that a program can busy-poll.
///
/// # Errors
/// There is no such device, or the kernel does not tell.
pub fn pollers(device: &str) -> io::Result<usize> {
    let mut count = 0;
    ask(NAPI_GET, DUMP, (NAPI_INDEX, index(device)?), |kind, _| {
        count += usize::from(kind == NAPI_ID);
    })?;
    Ok(count)
}

/// Of how many of a device's queues for receiving the driver tells the kernel which poller serves
/// them, without which no AF_XDP socket can be busy-polled (since Linux 6.13).
///
/// # Errors
/// There is no such device, or the kernel does not tell.
pub fn polled_queues(device: &str) -> io::Result<usize> {
    let (mut count, mut receives) = (0, false);
    ask(
        QUEUE_GET,
        DUMP,
        (QUEUE_INDEX, index(device)?),
        |kind, value| match kind {
            // The type comes before the poller.
            QUEUE_TYPE => receives = value == RECEIVES.to_ne_bytes(),
            QUEUE_NAPI => count += usize::from(receives),
            _ => {}
        },
    )?;
    Ok(count)
}

/// Asks the family `netdev`; `each` is given every attribute of every answer.
fn ask(
    command: u8,
    flags: u16,
    (attribute, value): (u16, u32),
    mut each: impl FnMut(u16, &[u8]),
) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut family = None;
    let name = request(CONTROL, REQUEST, GET_FAMILY, FAMILY_NAME, b"netdev\0");
    exchange(&socket, &name, |kind, value| {
        if kind == FAMILY_ID
            && let Ok(id) = value.try_into()
        {
            family = Some(u16::from_ne_bytes(id));
        }
    })?;
    let family = family.ok_or(io::ErrorKind::Unsupported)?;
    let question = request(
        family,
        REQUEST | flags,
        command,
        attribute,
        &value.to_ne_bytes(),
    );
    exchange(&socket, &question, &mut each)
}

/// A message with one attribute.
fn request(family: u16, flags: u16, command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let padded = value.len().next_multiple_of(4);
    let mut message = Vec::with_capacity(HEADER + 4 + padded);
    message.extend(((HEADER + 4 + padded) as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(attribute.to_ne_bytes());
    message.extend(value);
    message.resize(HEADER + 4 + padded, 0);
    message
}

/// Sends a question and takes its answers apart, of which there is one, or a row with an end.
fn exchange(socket: &Socket, question: &[u8], mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let is_row = question[6..8] == (REQUEST | DUMP).to_ne_bytes();
    socket.send(question, 0)?;
    loop {
        let (answers, _) = socket.recv_from_full()?;
        let mut rest = &answers[..];
        while let Some((message, next)) = split(rest, 4) {
            let kind = u16::from_ne_bytes([message[4], message[5]]);
            match kind {
                DONE => return Ok(()),
                ERROR => {
                    let code = message.get(16..20).and_then(|code| code.try_into().ok());
                    let code = i32::from_ne_bytes(code.unwrap_or_default());
                    return match code {
                        0 => Ok(()),
                        code => Err(io::Error::from_raw_os_error(-code)),
                    };
                }
                _ => {
                    let mut attributes = message.get(HEADER..).unwrap_or_default();
                    while let Some((attribute, next)) = split(attributes, 2) {
                        let kind = u16::from_ne_bytes([attribute[2], attribute[3]]);
                        each(kind & 0x3fff, &attribute[4..]);
                        attributes = next;
                    }
                }
            }
            rest = next;
        }
        if !is_row {
            return Ok(());
        }
    }
}

/// What begins with its own length, a number of so many bytes, and what follows at the next
/// multiple of four.
fn split(bytes: &[u8], of: usize) -> Option<(&[u8], &[u8])> {
    let mut len = [0; 4];
    len[..of].copy_from_slice(bytes.get(..of)?);
    let len = u32::from_le_bytes(len) as usize;
    let least = if of == 4 { 16 } else { 4 };
    let whole = bytes.get(..len).filter(|_| len >= least)?;
    let rest = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((whole, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_pollers_and_some_features() {
        // Whatever the kernel: an answer or its refusal, and no more.
        if let Ok(features) = xdp_features("lo") {
            assert!(!features.zero_copy);
        }
        assert!(pollers("lo").map_or(true, |count| count == 0));
        assert!(polled_queues("lo").map_or(true, |count| count == 0));
        assert!(xdp_features("none-such0").is_err());
    }

    #[test]
    fn what_is_cut_off_is_no_answer() {
        let message = request(0x10, REQUEST, GET_FAMILY, FAMILY_NAME, b"netdev\0");
        assert_eq!(split(&message, 4).map(|(whole, _)| whole.len()), Some(32));
        for len in 0..message.len() {
            assert_eq!(split(&message[..len], 4), None);
        }
        assert_eq!(split(&[3, 0, 0, 0], 2), None, "shorter than its own head");
    }
}
