//! smoltcp as an embedded server, one thread, run to completion: on a TAP device that it creates,
//! or on one that is there by a packet socket. What it does is what `tests/programs/server.c` does
//! in the mode of that name.
//!
//! ```text
//! smoltcp-server tap|wire short|echo|sink|source DEVICE ADDRESS PORT SOCKETS
//! # prints "ready"; ends on SIGTERM
//! ```
//! The drivers are its own: frames of 1,514 bytes, a system call for each, checksums made and
//! checked by smoltcp. A socket takes one connection, so that as many listen as may come at once.
//! Nagle off, no congestion control (its default); buffers of 2 KB for messages, of 256 KB for
//! bulk, to which it scales its windows.

use std::os::fd::AsRawFd;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Device, Medium, RawSocket, TunTapInterface, wait};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address};

/// Bytes of a message.
const MESSAGE: usize = 64;
/// Bytes of each buffer, for messages and for bulk.
const MESSAGE_BUFFER: usize = 2048;
const BULK_BUFFER: usize = 256 << 10;

/// What it does with a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Answers a message, and closes.
    Short,
    /// Answers what it reads.
    Echo,
    /// Reads and forgets.
    Sink,
    /// Writes until the client closes.
    Source,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: smoltcp-server tap|wire short|echo|sink|source DEVICE ADDRESS PORT SOCKETS";
    let [link, mode, device, address, port, sockets] = &arguments[..] else {
        return Err(usage.into());
    };
    let mode = match mode.as_str() {
        "short" => Mode::Short,
        "echo" => Mode::Echo,
        "sink" => Mode::Sink,
        "source" => Mode::Source,
        _ => return Err(usage.into()),
    };
    let address: Ipv4Address = address.parse()?;
    let (port, count): (u16, usize) = (port.parse()?, sockets.parse()?);
    match link.as_str() {
        "tap" => {
            let device = TunTapInterface::new(device, Medium::Ethernet)?;
            serve_on(device, mode, address, port, count)
        }
        "wire" => {
            let device = RawSocket::new(device, Medium::Ethernet)?;
            serve_on(device, mode, address, port, count)
        }
        _ => Err(usage.into()),
    }
}

fn serve_on(
    mut device: impl Device + AsRawFd,
    mode: Mode,
    address: Ipv4Address,
    port: u16,
    count: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let descriptor = device.as_raw_fd();
    let station = HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, 2]));
    let mut interface = Interface::new(Config::new(station), &mut device, Instant::now());
    interface.update_ip_addrs(|addresses| {
        // There is room for it.
        let _ = addresses.push(IpCidr::new(address.into(), 24));
    });
    let mut sockets = SocketSet::new(Vec::new());
    for _ in 0..count {
        let size = match mode {
            Mode::Short | Mode::Echo => MESSAGE_BUFFER,
            Mode::Sink | Mode::Source => BULK_BUFFER,
        };
        let buffer = || SocketBuffer::new(vec![0; size]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.listen(port).map_err(|error| error.to_string())?;
        sockets.add(socket);
    }
    // Where bulk is read to and written from.
    let mut block = vec![7; BULK_BUFFER];
    println!("ready");
    loop {
        let now = Instant::now();
        interface.poll(now, &mut device, &mut sockets);
        let mut moved = false;
        for (_, socket) in sockets.iter_mut() {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            moved |= serve(mode, socket, port, &mut block);
        }
        if !moved {
            let delay = interface.poll_delay(Instant::now(), &sockets);
            wait(descriptor, delay)?;
        }
    }
}

/// What there is to do on a socket; whether there was anything.
fn serve(mode: Mode, socket: &mut Socket<'_>, port: u16, block: &mut [u8]) -> bool {
    match socket.state() {
        State::Listen => return false,
        // It takes the next one.
        State::Closed | State::TimeWait => {
            socket.abort();
            return socket.listen(port).is_ok();
        }
        // A message that is not whole by now will not be.
        State::CloseWait
            if match mode {
                Mode::Short => socket.recv_queue() < MESSAGE,
                _ => !socket.can_recv(),
            } =>
        {
            socket.close();
            return true;
        }
        _ => {}
    }
    match mode {
        Mode::Short if socket.recv_queue() >= MESSAGE && socket.may_send() => {
            let mut message = [0; MESSAGE];
            let whole = socket.recv_slice(&mut message) == Ok(MESSAGE)
                && socket.send_slice(&message) == Ok(MESSAGE);
            socket.close();
            whole
        }
        Mode::Echo if socket.can_recv() && socket.can_send() => {
            let room = (socket.send_capacity() - socket.send_queue()).min(block.len());
            let taken = socket.recv_slice(&mut block[..room]).unwrap_or(0);
            socket.send_slice(&block[..taken]) == Ok(taken)
        }
        Mode::Sink if socket.can_recv() => socket.recv_slice(block).is_ok(),
        Mode::Source if socket.can_send() => socket.send_slice(block).is_ok(),
        _ => false,
    }
}
