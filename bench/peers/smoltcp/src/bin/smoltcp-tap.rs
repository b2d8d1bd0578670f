//! smoltcp as an embedded server on a TAP device, one thread, run to completion: it reads 64 bytes, answers 64 bytes, closes.
//!
//! ```text
//! smoltcp-tap DEVICE ADDRESS PORT LISTENERS     # prints "ready"; ends on SIGTERM
//! ```
//! A socket takes one connection, so that as many listen as may come at once.

use std::os::fd::AsRawFd as _;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Medium, TunTapInterface, wait};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address};

/// Bytes of a message.
const MESSAGE: usize = 64;
/// Bytes of each buffer.
const BUFFER: usize = 2048;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, address, port, listeners] = &arguments[..] else {
        return Err("usage: smoltcp-tap DEVICE ADDRESS PORT LISTENERS".into());
    };
    let address: Ipv4Address = address.parse()?;
    let (port, listeners): (u16, usize) = (port.parse()?, listeners.parse()?);
    let mut device = TunTapInterface::new(device, Medium::Ethernet)?;
    let descriptor = device.as_raw_fd();
    let station = HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, 2]));
    let mut interface = Interface::new(Config::new(station), &mut device, Instant::now());
    interface.update_ip_addrs(|addresses| {
        // There is room for it.
        let _ = addresses.push(IpCidr::new(address.into(), 24));
    });
    let mut sockets = SocketSet::new(Vec::new());
    for _ in 0..listeners {
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.listen(port).map_err(|error| error.to_string())?;
        sockets.add(socket);
    }
    println!("ready");
    loop {
        let now = Instant::now();
        interface.poll(now, &mut device, &mut sockets);
        let mut moved = false;
        for (_, socket) in sockets.iter_mut() {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            moved |= serve(socket, port);
        }
        if !moved {
            let delay = interface.poll_delay(Instant::now(), &sockets);
            wait(descriptor, delay)?;
        }
    }
}

/// What there is to do on a socket; whether there was anything.
fn serve(socket: &mut Socket<'_>, port: u16) -> bool {
    match socket.state() {
        State::Listen => false,
        // It takes the next one.
        State::Closed | State::TimeWait => {
            socket.abort();
            socket.listen(port).is_ok()
        }
        _ if socket.recv_queue() >= MESSAGE && socket.may_send() => {
            let mut message = [0; MESSAGE];
            let whole = socket.recv_slice(&mut message) == Ok(MESSAGE)
                && socket.send_slice(&message) == Ok(MESSAGE);
            socket.close();
            whole
        }
        _ => false,
    }
}
