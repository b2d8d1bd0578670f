//! Making sockets and connections: bind, listen, connect, accept and shutdown.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{Ordering, fence};

use millrace_context::protocol::{Kind, Request};
use millrace_context::slot::unpack_ring;
use millrace_context::{Address, Operation, SlotRef, Status, Submission};
use millrace_sockopt::OptName;
use rustix::io::Errno;

use crate::engine::Engine;
use crate::engine::submission;
use crate::engine::submission::SubmissionHandle;
use crate::fd::placeholder;
use crate::fd::table::{self, Entry};
use crate::process::thread;
use crate::readiness::bits;
use crate::readiness::sleep::Call;
use crate::socket::recall::Recalls;
use crate::socket::send::Source;
use crate::socket::{Socket, deadline, flag};
use crate::socket::{device_binding, options, send};
use crate::sys::robust_lock::Rank;
use crate::sys::{self, Result};
use crate::sys::{robust_lock, thread_sanitizer};

/// The default of `net.core.somaxconn`.
const SOMAXCONN: u32 = 4096;

/// Makes a socket that no descriptor means yet.
pub fn open(engine: &'static Engine, family: c_int, datagrams: bool) -> Result<Socket> {
    let shard = engine.shard_for(thread::number());
    let none = SlotRef {
        index: 0,
        generation: 0,
    };
    let request = millrace_context::Submission::new(Operation::Socket, none, datagrams.into());
    let mut word = [0u8; 8];
    let (_, len) = submission::ask(engine, shard, &request, &mut word)?;
    if len < word.len() {
        return Err(Errno::PROTO);
    }
    let socket = Socket::new(engine, SlotRef::from_bits(u64::from_ne_bytes(word)))?;
    socket.slot.app_cold.family.store(family, Ordering::Relaxed);
    if datagrams {
        socket.become_datagrams();
    }
    Ok(socket)
}

/// Binds a socket.
pub fn bind(socket: &Socket, ip: IpAddr, port: u16) -> Result<()> {
    let v4_socket = socket.slot.app_cold.family.load(Ordering::Relaxed) == libc::AF_INET;
    if ip.is_ipv6() && v4_socket {
        return Err(Errno::AFNOSUPPORT);
    }
    if ip.is_ipv4() && options::is_v6_only(socket) {
        return Err(Errno::INVAL);
    }
    if socket.status().contains(Status::BOUND) {
        return Err(Errno::INVAL);
    }
    let [a, b, c] = Address::from(SocketAddr::new(ip, port)).to_words();
    let mut submission = socket.submission(Operation::Bind, 0);
    submission.arguments = [a, b, c, options::bind_bits(socket), 0, 0];
    match socket.ask(&submission, &mut []) {
        // The port may need a privilege: the engine checks whether this process has it.
        Err(Errno::ACCESS) if port != 0 => {
            let arguments = [
                socket.reference.to_bits(),
                port.into(),
                sys::gettid().into(),
                0,
            ];
            let request = Request::new(Kind::Permit, [0; 16], arguments);
            let permitted = socket.engine.call(&request, &[]);
            permitted.map_err(|_| Errno::ACCESS)?;
            socket.ask(&submission, &mut [])?;
        }
        outcome => drop(outcome?),
    }
    if ip.is_ipv6() && !ip.is_unspecified() {
        options::become_v6_only(socket);
    }
    if socket.is_datagrams() {
        socket.change_flags(flag::BOUND, 0);
    }
    Ok(())
}

/// Makes a socket listen. The backlog is limited as in Linux.
pub fn listen(socket: &Socket, backlog: c_int) -> Result<()> {
    let status = socket.status();
    if !socket.is_fresh(status) && !status.contains(Status::LISTENING) {
        return Err(Errno::INVAL);
    }
    // A listener that is not bound listens on all addresses of its family.
    let v6 = socket.slot.app_cold.family.load(Ordering::Relaxed) == libc::AF_INET6;
    let named = status.intersects(Status::BOUND | Status::LISTENING);
    if !named && v6 {
        bind(socket, Ipv6Addr::UNSPECIFIED.into(), 0)?;
    } else if !named && device_binding::of(socket) != 0 {
        bind(socket, Ipv4Addr::UNSPECIFIED.into(), 0)?;
    }
    let most = sys::number_in(c"/proc/sys/net/core/somaxconn").unwrap_or(SOMAXCONN);
    // A negative backlog becomes a huge one.
    let submission = socket.submission(Operation::Listen, (backlog as u32).min(most));
    socket.ask(&submission, &mut []).map(drop)
}

/// The destination of a connect to `ip`: Linux connects the unspecified address to loopback.
pub fn or_loopback(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// Connects a stream.
pub fn connect(socket: &Socket, ip: IpAddr, port: u16) -> Result<()> {
    let ip = or_loopback(ip);
    let v4_socket = socket.slot.app_cold.family.load(Ordering::Relaxed) == libc::AF_INET;
    if ip.is_ipv6() && v4_socket {
        return Err(Errno::AFNOSUPPORT);
    }
    if ip.is_ipv4() && options::is_v6_only(socket) || !device_binding::reaches(socket, ip) {
        return Err(Errno::NETUNREACH);
    }
    let status = socket.status();
    if status.contains(Status::LISTENING) || socket.has(flag::CONNECTED) {
        return Err(Errno::ISCONN);
    }
    if !socket.has(flag::CONNECTING) {
        if options::is_on(socket, OptName::FastOpenConnect) {
            if begin_fast(socket, ip, port)? {
                return Ok(());
            }
        } else {
            prepare(socket)?;
            socket.change_flags(flag::CONNECTING | flag::ATTEMPT, 0);
            socket.submit(&request(socket, ip, port))?;
        }
        if socket.is_nonblocking(0) {
            return Err(Errno::INPROGRESS);
        }
    } else if socket.is_nonblocking(0) {
        return match end(socket) {
            Some(outcome) => outcome,
            None => Err(Errno::ALREADY),
        };
    }
    wait_connected(socket)
}

/// Prepares another attempt: Linux lets a socket try again after a failed connect.
fn prepare(socket: &Socket) -> Result<()> {
    if socket.status().contains(Status::DEAD) {
        disconnect(socket)?;
    }
    Ok(())
}

fn request(socket: &Socket, ip: IpAddr, port: u16) -> Submission {
    let [a, b, c] = Address::from(SocketAddr::new(ip, port)).to_words();
    let mut submission = socket.submission(Operation::Connect, 0);
    submission.arguments = [a, b, c, 0, 0, 0];
    submission
}

/// Begins to connect with TCP Fast Open. True: the SYN waits for the first bytes. False: the SYN is
/// sent without data and asks for a cookie.
fn begin_fast(socket: &Socket, ip: IpAddr, port: u16) -> Result<bool> {
    prepare(socket)?;
    let mut submission = request(socket, ip, port);
    submission.arguments[3] = 1;
    socket.change_flags(flag::CONNECTING | flag::ATTEMPT, 0);
    let begun = socket.ask(&submission, &mut []);
    let (room, _) = begun.inspect_err(|_| {
        socket.change_flags(0, flag::CONNECTING | flag::ATTEMPT);
    })?;
    if room > 0 {
        // To the program the socket is connected.
        socket.change_flags(flag::DEFERRED | flag::CONNECTED, flag::CONNECTING);
    }
    Ok(room > 0)
}

/// Connects and sends, as `sendto` with MSG_FASTOPEN does.
pub fn send_fast(
    socket: &Socket,
    ip: IpAddr,
    port: u16,
    source: &mut impl Source,
    flags: c_int,
) -> Result<usize> {
    let ip = or_loopback(ip);
    let v4_socket = socket.slot.app_cold.family.load(Ordering::Relaxed) == libc::AF_INET;
    if ip.is_ipv6() && v4_socket {
        return Err(Errno::AFNOSUPPORT);
    }
    if ip.is_ipv4() && options::is_v6_only(socket) || !device_binding::reaches(socket, ip) {
        return Err(Errno::NETUNREACH);
    }
    if socket.status().contains(Status::LISTENING) || socket.has(flag::CONNECTED) {
        return Err(Errno::ISCONN);
    }
    if socket.has(flag::CONNECTING) {
        return Err(Errno::ALREADY);
    }
    let nonblocking = socket.is_nonblocking(flags);
    let deferred = source.left() > 0 && begin_fast(socket, ip, port)?;
    if source.left() == 0 {
        connect(socket, ip, port)?;
    }
    match (deferred, nonblocking) {
        (true, true) => send::send(socket, source, flags),
        (true, false) => {
            let sent = send::send(socket, source, flags)?;
            wait_connected(socket)?;
            Ok(sent)
        }
        (false, true) => Err(Errno::INPROGRESS),
        (false, false) => {
            wait_connected(socket)?;
            send::send(socket, source, flags)
        }
    }
}

/// Waits until a connect has ended.
fn wait_connected(socket: &Socket) -> Result<()> {
    let until = deadline(socket.slot.app_cold.send_timeout.load(Ordering::Relaxed));
    let call = Call::begin();
    let mut recalls = Recalls::for_bits(bits::OUT);
    loop {
        let sequence = socket.sequence();
        if let Some(outcome) = end(socket) {
            return outcome;
        }
        if recalls.recall(socket)? {
            continue;
        }
        socket
            .wait(call, sequence, until)
            .map_err(|errno| match errno {
                Errno::AGAIN => Errno::INPROGRESS,
                other => other,
            })?;
    }
}

/// The result of a connect; `None` while it is under way.
fn end(socket: &Socket) -> Option<Result<()>> {
    let status = socket.status();
    if status.contains(Status::CONNECTED) && !status.contains(Status::DEAD) {
        socket.change_flags(flag::CONNECTED, flag::CONNECTING);
        return Some(Ok(()));
    }
    if let Some(errno) = socket.take_error() {
        socket.change_flags(0, flag::CONNECTING);
        return Some(Err(errno));
    }
    if status.contains(Status::DEAD) {
        // The program has read the error by SO_ERROR.
        socket.change_flags(0, flag::CONNECTING);
        return Some(Err(Errno::CONNABORTED));
    }
    None
}

/// Disconnects a socket (connect with AF_UNSPEC).
pub fn disconnect(socket: &Socket) -> Result<()> {
    let submission = socket.submission(Operation::Disconnect, 0);
    let app = &socket.slot.app;
    // No thread reads or sends on the next connection before its positions start again at 0.
    let _guards = (
        robust_lock::take(&app.read_lock, Rank::Socket),
        robust_lock::take(&app.write_lock, Rank::Socket),
    );
    socket.ask(&submission, &mut [])?;
    app.consumed.store(0, Ordering::Release);
    app.queued.store(0, Ordering::Release);
    socket.take_error();
    socket.change_flags(
        0,
        flag::CONNECTING
            | flag::ATTEMPT
            | flag::CONNECTED
            | flag::DEFERRED
            | flag::SHUT_READ
            | flag::SHUT_WRITE,
    );
    Ok(())
}

/// Accepts a connection; returns the new descriptor and its socket.
pub fn accept(listener: &Socket, flags: c_int) -> Result<(c_int, Socket)> {
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return Err(Errno::INVAL);
    }
    let mut until = None;
    let call = Call::begin();
    let mut recalls = Recalls::for_bits(bits::IN);
    loop {
        let sequence = listener.sequence();
        let status = listener.status();
        if !status.contains(Status::LISTENING) {
            return Err(Errno::INVAL);
        }
        if status.contains(Status::DEAD) {
            // The engine has ended: no connection will come.
            return Err(listener.take_error().unwrap_or(Errno::INVAL));
        }
        if let Some(accepted) = pop(listener, flags)? {
            thread_sanitizer::acquire();
            return Ok(accepted);
        }
        if recalls.recall(listener)? {
            continue;
        }
        if listener.is_nonblocking(0) {
            return Err(Errno::AGAIN);
        }
        if until.is_none() {
            until = deadline(
                listener
                    .slot
                    .app_cold
                    .receive_timeout
                    .load(Ordering::Relaxed),
            );
        }
        listener.wait(call, sequence, until)?;
    }
}

/// Takes the first connection of the queue. The descriptor is made first, so that a process without
/// a free one leaves the queue as it is.
fn pop(listener: &Socket, flags: c_int) -> Result<Option<(c_int, Socket)>> {
    let slot = listener.slot;
    let taken = || slot.app.consumed.load(Ordering::Relaxed);
    let waiting = || slot.engine.received.load(Ordering::Acquire) > taken();
    if !waiting() {
        return Ok(None);
    }
    let guard = robust_lock::take(&slot.app.read_lock, Rank::Socket).ok_or(Errno::AGAIN)?;
    // This order matters: when a queue comes back from another program, the engine first says how
    // many connections that program has taken.
    let ring = slot.engine.ring.load(Ordering::Acquire);
    let position = taken();
    let Some((at, size)) = unpack_ring(ring).filter(|_| waiting()) else {
        return Ok(None);
    };
    let fd = placeholder::descriptor(flags & libc::SOCK_CLOEXEC != 0)?;
    let take = || -> Result<Option<Socket>> {
        let mut word = [0u8; 8];
        let at = at + ((position * 8) & (size - 1));
        listener.engine.region.read_arena(at, &mut word);
        fence(Ordering::Acquire);
        if slot.engine.ring.load(Ordering::Relaxed) != ring {
            // Another thread has shut the listener down. The reference that was read may be another
            // socket's.
            return Ok(None);
        }
        let reference = SlotRef::from_bits(u64::from_ne_bytes(word));
        let accepted = listener.engine.region.slot(reference.index);
        let accepted = accepted.ok_or(Errno::PROTO)?;
        let shard = accepted.engine.shard.load(Ordering::Relaxed);
        let handle = SubmissionHandle::take(listener.engine, shard)?;
        handle.claim(accepted);
        let submission = Submission::new(Operation::Accepted, reference, 0);
        if slot.engine.has_queue(ring) {
            slot.app.consumed.store(position + 1, Ordering::Release);
            handle.submit_quietly(&submission)?;
        } else if handle.ask(&submission, &mut []).is_ok() {
            // The shard has seen the claim.
            slot.app.consumed.store(position + 1, Ordering::Release);
        } else {
            return Ok(None);
        }
        Socket::new(listener.engine, reference).map(Some)
    };
    let Some(socket) = take().inspect_err(|_| sys::close(fd))? else {
        sys::close(fd);
        return Ok(None);
    };
    drop(guard);
    inherit(listener, &socket);
    socket.change_flags(flag::CONNECTED, 0);
    if flags & libc::SOCK_NONBLOCK != 0 {
        socket.change_flags(flag::NONBLOCK, 0);
    }
    socket.count_descriptor();
    table::set(fd, Entry::Socket(socket.reference));
    Ok(Some((fd, socket)))
}

/// Copies the settings that an accepted socket gets from its listener: all but the descriptor's own
/// flags, as in Linux.
fn inherit(from: &Socket, to: &Socket) {
    let (from, to) = (&from.slot.app_cold, &to.slot.app_cold);
    to.receive_timeout.store(
        from.receive_timeout.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    to.send_timeout
        .store(from.send_timeout.load(Ordering::Relaxed), Ordering::Relaxed);
    to.low_water
        .store(from.low_water.load(Ordering::Relaxed), Ordering::Relaxed);
    to.family
        .store(from.family.load(Ordering::Relaxed), Ordering::Relaxed);
    for (to, from) in to.options.iter().zip(&from.options) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Shuts down one or both directions.
pub fn shutdown(socket: &Socket, how: c_int) -> Result<()> {
    let set = match how {
        libc::SHUT_RD => flag::SHUT_READ,
        libc::SHUT_WR => flag::SHUT_WRITE,
        libc::SHUT_RDWR => flag::SHUT_READ | flag::SHUT_WRITE,
        _ => return Err(Errno::INVAL),
    };
    let status = socket.status();
    let submission = socket.submission(Operation::Shutdown, how as u32);
    if status.contains(Status::LISTENING) {
        return socket.ask(&submission, &mut []).map(drop);
    }
    if !status.intersects(Status::CONNECTED | Status::CONNECTING) || status.contains(Status::DEAD) {
        return Err(Errno::NOTCONN);
    }
    // This side's calls see it from now on; the shard follows.
    socket.change_flags(set, 0);
    socket.submit(&submission)?;
    millrace_context::futex::wake(&socket.slot.engine.sequence, i32::MAX as u32);
    Ok(())
}
