//! The functions of mTCP that C sees: declared in `include/mtcp_api.h` and `include/mtcp_epoll.h`,
//! which say what they do.

use std::ffi::{c_char, c_int, c_void};
use std::net::Ipv4Addr;
use std::rc::Rc;

use libc::{in_addr_t, iovec, sighandler_t, sockaddr, socklen_t, ssize_t};

use super::config::Conf;
use super::context::{self, Context};
use super::signals;
use crate::boundary::pointer;
use crate::epoll::{Control, Event, Set};
use crate::options::VALUE_MAX;
use crate::outcome::{Outcome, call, set_errno};
use crate::socket::{Receive, Send};
use crate::things::Thing;

/// A context as the program has it: a number that looks like a pointer, and is never followed.
type Mctx = *mut c_void;

fn context(mctx: Mctx) -> Outcome<Rc<Context>> {
    context::find(mctx as usize)
}

fn key(sockid: c_int) -> Outcome<u32> {
    u32::try_from(sockid).map_err(|_| libc::EBADF)
}

/// Numbers of sockets are small: there are never more than a core's `max_concurrency`.
fn sockid(key: u32) -> c_int {
    key as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_init(config_file: *const c_char) -> c_int {
    call(|| {
        // SAFETY: as the header says of pointers.
        context::init(unsafe { pointer::text(config_file)? })?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy() {
    call(|| {
        context::destroy();
        Ok(0)
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getconf(conf: *mut Conf) -> c_int {
    // SAFETY: as the header says of pointers.
    call(|| unsafe { pointer::put(conf, context::conf()) }.map(|()| 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_setconf(conf: *const Conf) -> c_int {
    call(|| {
        // SAFETY: as the header says of pointers.
        context::set_conf(&unsafe { pointer::get(conf)? })?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_core_affinitize(cpu: c_int) -> c_int {
    call(|| {
        let most = rustix::thread::CpuSet::MAX_CPU;
        let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < most);
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu.ok_or(libc::EINVAL)?);
        let done = rustix::thread::sched_setaffinity(None, &set);
        done.map_err(|error| error.raw_os_error())?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_create_context(cpu: c_int) -> Mctx {
    call(|| context::create(cpu).map(|number| number as Mctx))
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy_context(mctx: Mctx) {
    call(|| context::end(mctx as usize).map(|()| 0));
}

/// Runs in the signal's handler: atomic loads and stores, and `write`.
extern "C" fn relay(signal: c_int) {
    // SAFETY: the address is that of this thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    let handler = signals::handler(signal);
    if handler != 0 {
        // SAFETY: only what `mtcp_register_signal` was given as a function is kept.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
    signals::tell();
    set_errno(errno);
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_register_signal(signum: c_int, handler: sighandler_t) -> sighandler_t {
    let at = usize::try_from(signum).unwrap_or(0);
    if !(1..signals::SIGNALS).contains(&at) || handler == libc::SIG_ERR {
        set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    let plain = handler == libc::SIG_DFL || handler == libc::SIG_IGN;
    let ours = relay as extern "C" fn(c_int) as sighandler_t;
    let before = signals::keep(at, if plain { 0 } else { handler });
    // SAFETY: a sigaction is integers and a function's address; the handler is a function that
    // takes a signal, or one of the constants.
    let old = unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        // Without SA_RESTART: waits end.
        new.sa_sigaction = if plain { handler } else { ours };
        libc::sigemptyset(&mut new.sa_mask);
        if libc::sigaction(signum, &new, &mut old) != 0 {
            signals::keep(at, before);
            return libc::SIG_ERR;
        }
        old.sa_sigaction
    };
    if old == ours { before } else { old }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_pipe(mctx: Mctx, pipeid: *mut c_int) -> c_int {
    call(|| {
        let context = context(mctx)?;
        context.host.ensure_room(2)?;
        // SAFETY: as the header says of pointers: there are two.
        let ids = unsafe { pointer::places(pipeid, 2)? };
        for (place, end) in ids.iter_mut().zip(context.host.pipe()) {
            place.write(sockid(end));
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getsockopt(
    mctx: Mctx,
    sockid: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    call(|| {
        let context = context(mctx)?;
        // SAFETY: as the header says of pointers.
        let room = unsafe { pointer::get(optlen)? };
        let room = c_int::try_from(room).map_err(|_| libc::EINVAL)? as usize;
        let mut value = [0; VALUE_MAX];
        let len = context
            .host
            .option(key(sockid)?, level, optname, &mut value)?;
        let len = len.min(room);
        // SAFETY: as the header says of pointers; no more than the room is written.
        unsafe { pointer::bytes_mut(optval, len)? }.copy_from_slice(&value[..len]);
        // SAFETY: as the header says of pointers.
        unsafe { pointer::put(optlen, len as socklen_t)? };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_setsockopt(
    mctx: Mctx,
    sockid: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    call(|| {
        let context = context(mctx)?;
        let len = c_int::try_from(optlen).map_err(|_| libc::EINVAL)?;
        // SAFETY: as the header says of pointers.
        let value = unsafe { pointer::bytes(optval, len as usize)? };
        context
            .host
            .set_option(key(sockid)?, level, optname, value)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_setsock_nonblock(mctx: Mctx, sockid: c_int) -> c_int {
    call(|| {
        context(mctx)?.host.set_nonblocking(key(sockid)?, true)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_socket_ioctl(
    mctx: Mctx,
    sockid: c_int,
    request: c_int,
    argp: *mut c_void,
) -> c_int {
    call(|| {
        let context = context(mctx)?;
        let request = libc::c_ulong::from(request as u32);
        let argument = argp.cast::<c_int>();
        if request == libc::FIONBIO {
            // SAFETY: as the header says of pointers.
            let on = unsafe { pointer::get(argument)? };
            context.host.set_nonblocking(key(sockid)?, on != 0)?;
            return Ok(0);
        }
        let bytes = context.host.query(key(sockid)?, request)?;
        // SAFETY: as the header says of pointers.
        unsafe { pointer::put(argument, bytes)? };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_socket(mctx: Mctx, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call(|| {
        let context = context(mctx)?;
        Ok(sockid(context.host.socket(domain, kind, protocol)?))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_bind(
    mctx: Mctx,
    sockid: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    call(|| {
        let (context, key) = (context(mctx)?, key(sockid)?);
        let family = context.host.family(key)?;
        // SAFETY: as the header says of pointers.
        let local = unsafe { pointer::address(addr, addrlen, family)? };
        context.host.bind(key, local.ok_or(libc::EAFNOSUPPORT)?)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_listen(mctx: Mctx, sockid: c_int, backlog: c_int) -> c_int {
    call(|| {
        context(mctx)?.host.listen(key(sockid)?, backlog)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_accept(
    mctx: Mctx,
    listener: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    call(|| {
        let context = context(mctx)?;
        // SAFETY: as the header says of pointers.
        unsafe { pointer::check_address(addr, addrlen)? };
        let family = context.host.family(key(listener)?)?;
        let (accepted, remote) = context.host.accept(key(listener)?, false)?;
        if !addr.is_null() {
            // SAFETY: as the header says of pointers.
            let put = unsafe { pointer::put_address(remote, family, addr, addrlen) };
            if let Err(error) = put {
                context.host.remove(accepted, false)?;
                return Err(error);
            }
        }
        Ok(sockid(accepted))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_init_rss(
    mctx: Mctx,
    saddr_base: in_addr_t,
    num_addr: c_int,
    _daddr: in_addr_t,
    _dport: in_addr_t,
) -> c_int {
    call(|| {
        let base = Ipv4Addr::from(saddr_base.to_ne_bytes());
        context(mctx)?.set_sources(base, num_addr)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_connect(
    mctx: Mctx,
    sockid: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    call(|| {
        let (context, key) = (context(mctx)?, key(sockid)?);
        let family = context.host.family(key)?;
        // SAFETY: as the header says of pointers.
        let remote = unsafe { pointer::address(addr, addrlen, family)? };
        context.connect(key, remote)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_close(mctx: Mctx, sockid: c_int) -> c_int {
    call(|| {
        context(mctx)?.host.close(key(sockid)?)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_abort(mctx: Mctx, sockid: c_int) -> c_int {
    call(|| {
        context(mctx)?.host.remove(key(sockid)?, true)?;
        Ok(0)
    })
}

/// The name of one end.
unsafe fn name(
    mctx: Mctx,
    sockid: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    peer: bool,
) -> Outcome<c_int> {
    let (address, family) = context(mctx)?.host.name(key(sockid)?, peer)?;
    // SAFETY: as the header says of pointers.
    unsafe { pointer::put_address(address, family, addr, len)? };
    Ok(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getsockname(
    mctx: Mctx,
    sockid: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { name(mctx, sockid, addr, addrlen, false) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getpeername(
    mctx: Mctx,
    sockid: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { name(mctx, sockid, addr, addrlen, true) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_read(
    mctx: Mctx,
    sockid: c_int,
    buf: *mut c_char,
    len: usize,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { mtcp_recv(mctx, sockid, buf, len, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_recv(
    mctx: Mctx,
    sockid: c_int,
    buf: *mut c_char,
    len: usize,
    flags: c_int,
) -> ssize_t {
    call(|| {
        let context = context(mctx)?;
        if flags & !libc::MSG_PEEK != 0 {
            return Err(libc::EINVAL);
        }
        let how = Receive {
            peek: flags != 0,
            ..Receive::default()
        };
        // SAFETY: as the header says of pointers.
        let out = unsafe { pointer::bytes_mut(buf.cast(), len)? };
        let (len, _) = context.host.receive(key(sockid)?, out, how)?;
        Ok(len as ssize_t)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_readv(
    mctx: Mctx,
    sockid: c_int,
    iov: *const iovec,
    num: c_int,
) -> c_int {
    call(|| {
        let context = context(mctx)?;
        // SAFETY: as the header says of pointers.
        let (total, pieces) = unsafe { pointer::pieces_mut(iov, num)? };
        let len = context.host.receive_pieces(key(sockid)?, total, pieces)?;
        Ok(c_int::try_from(len).unwrap_or(c_int::MAX))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_write(
    mctx: Mctx,
    sockid: c_int,
    buf: *const c_char,
    len: usize,
) -> ssize_t {
    call(|| {
        let context = context(mctx)?;
        // SAFETY: as the header says of pointers.
        let bytes = unsafe { pointer::bytes(buf.cast(), len)? };
        let done = context
            .host
            .send_to(key(sockid)?, &[bytes], None, Send::default())?;
        Ok(done as ssize_t)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_writev(
    mctx: Mctx,
    sockid: c_int,
    iov: *const iovec,
    num: c_int,
) -> c_int {
    call(|| {
        let context = context(mctx)?;
        // SAFETY: as the header says of pointers.
        let pieces = unsafe { pointer::pieces(iov, num)? };
        let done = context
            .host
            .send_to(key(sockid)?, &pieces, None, Send::default())?;
        Ok(c_int::try_from(done).unwrap_or(c_int::MAX))
    })
}

/// `struct mtcp_epoll_event`, which is not packed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EpollEvent {
    events: u32,
    data: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_epoll_create(mctx: Mctx, size: c_int) -> c_int {
    call(|| {
        if size <= 0 {
            return Err(libc::EINVAL);
        }
        create_set(mctx)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn mtcp_epoll_create1(mctx: Mctx, flags: c_int) -> c_int {
    call(|| {
        if flags & !libc::O_CLOEXEC != 0 {
            return Err(libc::EINVAL);
        }
        create_set(mctx)
    })
}

fn create_set(mctx: Mctx) -> Outcome<c_int> {
    let context = context(mctx)?;
    context.host.ensure_room(1)?;
    let mut things = context.host.things.borrow_mut();
    Ok(sockid(things.insert(Thing::Set(Set::default()))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_ctl(
    mctx: Mctx,
    epid: c_int,
    op: c_int,
    sockid: c_int,
    event: *mut EpollEvent,
) -> c_int {
    call(|| {
        let context = context(mctx)?;
        let control = match op {
            libc::EPOLL_CTL_DEL => Control::Delete,
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                // SAFETY: as the header says of pointers.
                let event = unsafe { pointer::get(event)? };
                match op {
                    libc::EPOLL_CTL_ADD => Control::Add(event.events, event.data),
                    _ => Control::Modify(event.events, event.data),
                }
            }
            _ => return Err(libc::EINVAL),
        };
        context.host.control(key(epid)?, key(sockid)?, control)?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_epoll_wait(
    mctx: Mctx,
    epid: c_int,
    events: *mut EpollEvent,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    call(|| {
        let context = context(mctx)?;
        if maxevents <= 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the header says of pointers; every one of them is written before it is
        // counted.
        let room = unsafe { pointer::places(events, maxevents as usize)? };
        let mut told = 0;
        let tell = |event: Event| {
            room[told].write(EpollEvent {
                events: event.events,
                data: event.data,
            });
            told += 1;
        };
        let wait = context
            .host
            .wait_for(key(epid)?, maxevents as usize, timeout, tell);
        Ok(wait? as c_int)
    })
}

/// The name of one event, which nobody may change.
#[unsafe(no_mangle)]
pub extern "C" fn EventToString(event: u32) -> *mut c_char {
    let name = match event {
        0x000 => c"NONE",
        0x001 => c"IN",
        0x002 => c"PRI",
        0x004 => c"OUT",
        0x008 => c"ERR",
        0x010 => c"HUP",
        0x2000 => c"RDHUP",
        _ => c"UNKNOWN",
    };
    name.as_ptr().cast_mut()
}
