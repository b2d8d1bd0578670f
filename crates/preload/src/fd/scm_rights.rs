//! Passing millrace sockets to other processes in messages (SCM_RIGHTS).
//!
//! The descriptor of a millrace socket is the placeholder, which does not tell sockets apart. So
//! the shim sends another descriptor in its place, which the engine makes and knows. The engine
//! holds the socket while that descriptor is open anywhere, even in a message that nobody has read.
//! The receiver shows it to the engine and replaces it with its own placeholder. A process without
//! millrace receives a socket whose peer has closed.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::{cmsghdr, msghdr};
use millrace_context::SlotRef;
use millrace_context::protocol::{CLAIMED_MAX, Kind, PASSED_MAX, PASSED_NAME, Request};
use rustix::io::Errno;

use crate::engine::{self, Engine};
use crate::fd::internal::{self, Handle};
use crate::fd::placeholder;
use crate::fd::table::{self, Entry};
use crate::process::environment;
use crate::readiness::epoll_sets;
use crate::socket::{Socket, flag};
use crate::sys::mmap_buffer::SmallBuffer;
use crate::sys::robust_lock::Rank;
use crate::sys::{self, Result};
use crate::sys::{robust_lock, user_buffers};

/// The most descriptors in one message, as in Linux.
const MESSAGE_MAX: usize = 253;
/// Bytes in front of the descriptors.
const HEAD: usize = size_of::<cmsghdr>();
/// The most control data that a message with sockets may have, in bytes.
const CONTROL_MAX: usize = 64 * 1024;

/// The descriptors that all threads are sending in place of sockets: handles plus 1, 0 for a free
/// place. The child of a fork closes them, because it would keep open those that it does not know.
static SENT: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];

/// A copy of a message's control data with other descriptors in place of the sockets. Dropping it
/// closes them; the message that was sent has its own.
pub struct Substituted {
    control: SmallBuffer<u64, 64>,
    /// Indices into [`SENT`], plus 1.
    places: SmallBuffer<u64, 8>,
}

impl Substituted {
    /// The message to send.
    pub fn message(&mut self, original: &msghdr) -> msghdr {
        msghdr {
            msg_control: self.control.as_mut_ptr().cast(),
            ..*original
        }
    }

    fn number(&self, at: usize) -> c_int {
        let place = self.places[at] as usize - 1;
        let bits = SENT[place].load(Ordering::Relaxed);
        bits.checked_sub(1)
            .map_or(-1, |bits| Handle::from_bits(bits).fd())
    }
}

impl Drop for Substituted {
    fn drop(&mut self) {
        // A child made between the swap and the close would keep an open descriptor that is not
        // noted. A signal handler that runs while its thread has the lock does not wait for it.
        let _guard = robust_lock::take(engine::LOCK, Rank::Control);
        for place in self.places.iter().filter(|place| **place > 0) {
            if let Some(bits) = SENT[*place as usize - 1]
                .swap(0, Ordering::AcqRel)
                .checked_sub(1)
            {
                internal::release(Handle::from_bits(bits));
            }
        }
    }
}

/// In the child of a fork: closes what the parent's other threads are sending.
pub fn forked() {
    for sent in &SENT {
        if let Some(bits) = sent.swap(0, Ordering::Relaxed).checked_sub(1) {
            internal::release(Handle::from_bits(bits));
        }
    }
}

/// Calls `each` with the place of every descriptor in a message's control data.
///
/// # Safety
/// The control data is valid for sendmsg.
unsafe fn each_descriptor(
    message: &msghdr,
    mut each: impl FnMut(*mut c_int) -> Result<()>,
) -> Result<()> {
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return Ok(());
    }
    let mut left = message.msg_controllen;
    user_buffers::check(message.msg_control, left)?;
    let mut at = message.msg_control.cast::<u8>();
    // SAFETY: the caller's promise; the walk stays inside the control data. Not by CMSG_NXTHDR,
    // which any length leads astray.
    unsafe {
        while left >= HEAD {
            let head = at.cast::<cmsghdr>().read_unaligned();
            let len = head.cmsg_len;
            if !(HEAD..=left).contains(&len) {
                break;
            }
            if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
                for number in 0..(len - HEAD) / size_of::<c_int>() {
                    each(at.add(HEAD).cast::<c_int>().add(number))?;
                }
            }
            let step = len.next_multiple_of(align_of::<cmsghdr>()).min(left);
            at = at.add(step);
            left -= step;
        }
    }
    Ok(())
}

/// Replaces the millrace sockets in a message to be sent. `None`: it has none.
///
/// # Safety
/// The message is valid for sendmsg.
pub unsafe fn substitute(message: &msghdr) -> Result<Option<Substituted>> {
    let (mut ours, mut all) = (0, 0);
    let count = |at: *mut c_int| {
        all += 1;
        // SAFETY: `each_descriptor` gives places inside the control data.
        let fd = unsafe { at.read_unaligned() };
        match table::get(fd) {
            Entry::Socket(_) => ours += 1,
            Entry::Internal => return Err(Errno::BADF),
            // Such a set's interest list is in the memory of this process.
            Entry::Epoll(_) if has_sockets(fd) => return Err(Errno::OPNOTSUPP),
            _ => {}
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { each_descriptor(message, count) }?;
    if ours == 0 {
        return Ok(None);
    }
    let len = message.msg_controllen;
    if all > MESSAGE_MAX || len > CONTROL_MAX {
        return Err(Errno::INVAL);
    }
    let mut copy = Substituted {
        control: SmallBuffer::new(len.div_ceil(8))?,
        places: SmallBuffer::new(ours)?,
    };
    // SAFETY: the caller's promise, and there is room for so many bytes.
    unsafe {
        let from = message.msg_control.cast::<u8>();
        std::ptr::copy_nonoverlapping(from, copy.control.as_mut_ptr().cast(), len);
    }
    let copied = copy.message(message);
    let mut sockets = SmallBuffer::<u64, 8>::new(ours)?;
    let mut distinct = 0;
    let place_of = |sockets: &[u64], slot: SlotRef| {
        let mut known = sockets.iter();
        known.position(|socket| *socket == slot.to_bits())
    };
    // SAFETY: the copy is as good as the original.
    unsafe {
        each_descriptor(&copied, |at| {
            if let Entry::Socket(slot) = table::get(at.read_unaligned())
                && place_of(&sockets[..distinct], slot).is_none()
            {
                *sockets.get_mut(distinct).ok_or(Errno::BADF)? = slot.to_bits();
                distinct += 1;
            }
            Ok(())
        })?;
        ask(&sockets[..distinct], &mut copy.places)?;
        each_descriptor(&copied, |at| {
            if let Entry::Socket(slot) = table::get(at.read_unaligned()) {
                // Another thread has closed this socket and opened another one.
                let place = place_of(&sockets[..distinct], slot).ok_or(Errno::BADF)?;
                at.write_unaligned(copy.number(place));
            }
            Ok(())
        })?;
    }
    Ok(Some(copy))
}

/// Whether an epoll set has, or had, millrace sockets.
fn has_sockets(fd: c_int) -> bool {
    let set = epoll_sets::hold_descriptor(fd);
    set.is_some_and(|set| epoll_sets::poller(set.index()).is_some())
}

/// Asks the engine for one descriptor for each socket.
fn ask(sockets: &[u64], places: &mut [u64]) -> Result<()> {
    let engine = engine::get()?;
    for socket in sockets {
        if let Some(slot) = engine.region.slot(SlotRef::from_bits(*socket).index) {
            slot.app.flags.fetch_or(flag::SHARED, Ordering::Relaxed);
        }
    }
    // Held until the descriptors are noted, so that no child gets them.
    let _guard = robust_lock::take(engine::LOCK, Rank::Control).ok_or(Errno::AGAIN)?;
    for (sockets, places) in sockets
        .chunks(PASSED_MAX)
        .zip(places.chunks_mut(PASSED_MAX))
    {
        // SAFETY: integers, read as the bytes they are.
        let payload = unsafe {
            std::slice::from_raw_parts(sockets.as_ptr().cast::<u8>(), size_of_val(sockets))
        };
        let request = Request::new(Kind::Pass, [0; 16], [0; 4]);
        let (_, mut descriptors) = engine.call_locked(&request, payload)?;
        for (at, place) in places.iter_mut().enumerate().take(sockets.len()) {
            let descriptor = descriptors.take(at).ok_or(Errno::PROTO)?;
            let handle = internal::adopt(descriptor)?;
            let free = SENT.iter().position(|sent| {
                let bits = handle.to_bits() + 1;
                sent.compare_exchange(0, bits, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            });
            let Some(free) = free else {
                internal::release(handle);
                return Err(Errno::TOOMANYREFS);
            };
            *place = free as u64 + 1;
        }
    }
    Ok(())
}

/// A message has been received: the millrace sockets in it become sockets of this process.
///
/// # Safety
/// The message is as recvmsg has left it.
pub unsafe fn received(message: &msghdr, flags: c_int) {
    if environment::get().is_none() {
        return;
    }
    let (mut chunk, mut len) = ([0; CLAIMED_MAX], 0);
    let close_on_exec = flags & libc::MSG_CMSG_CLOEXEC != 0;
    // SAFETY: the caller's promise.
    let _ = unsafe {
        each_descriptor(message, |at| {
            let fd = at.read_unaligned();
            if is_passed(fd) {
                chunk[len] = fd;
                len += 1;
            }
            if len == chunk.len() {
                claim(&chunk, close_on_exec);
                len = 0;
            }
            Ok(())
        })
    };
    if len > 0 {
        claim(&chunk[..len], close_on_exec);
    }
}

/// A descriptor has been taken from another process (pidfd_getfd). The descriptor of a millrace
/// socket does not say which socket it is, so it is refused.
pub fn taken(fd: c_int) -> Result<c_int> {
    if environment::get().is_some() {
        if placeholder::is_one(fd) {
            sys::close(fd);
            return Err(Errno::OPNOTSUPP);
        }
        if is_passed(fd) {
            claim(&[fd], true);
        }
    }
    Ok(fd)
}

/// Whether a descriptor stands for a socket.
fn is_passed(fd: c_int) -> bool {
    let mut address = [0u8; 110];
    sys::getsockname(fd, &mut address).is_ok_and(|len| {
        let family = (libc::AF_UNIX as u16).to_ne_bytes();
        let path = address.get(..len).and_then(|all| all.strip_prefix(&family));
        path.is_some_and(|path| {
            path.strip_prefix(b"\0")
                .unwrap_or(&[])
                .starts_with(PASSED_NAME)
        })
    })
}

/// How often the engine is asked again for a socket that another program is using in a call, and
/// the pause in between, in microseconds.
const TRIES: u32 = 1000;
const PAUSE_US: u32 = 1000;

/// Shows received descriptors to the engine. A descriptor that the engine does not accept stays as
/// it is.
fn claim(fds: &[c_int], close_on_exec: bool) {
    let (mut left, mut len) = ([0; CLAIMED_MAX], fds.len());
    left[..len].copy_from_slice(fds);
    for _ in 0..TRIES {
        len = match try_claim(&mut left[..len], close_on_exec) {
            Ok(0) => return,
            Ok(busy) => busy,
            Err(errno) => return complain(errno),
        };
        sys::sleep_us(PAUSE_US);
    }
    complain(Errno::BUSY);
}

/// Returns how many descriptors must be shown again; they are at the front then.
fn try_claim(fds: &mut [c_int], close_on_exec: bool) -> Result<usize> {
    let engine = engine::get()?;
    // No other thread may change whether the process has a socket until the table is right.
    let _guard = robust_lock::take(engine::LOCK, Rank::Control).ok_or(Errno::AGAIN)?;
    // SAFETY: just received, and the program does not know of them yet.
    let shown = std::array::from_fn::<_, CLAIMED_MAX, _>(|at| unsafe {
        BorrowedFd::borrow_raw(fds[at.min(fds.len() - 1)])
    });
    let request = Request::new(Kind::Claim, [0; 16], [0; 4]);
    let (words, _) = engine.call_locked_with(&request, &[], &shown[..fds.len()])?;
    let mut busy = 0;
    for at in 0..fds.len() {
        let slot = SlotRef::from_bits(words[at]);
        let entered = match slot.generation {
            0 => Err(Errno::from_raw_os_error(slot.index as i32)),
            _ => enter(engine, fds[at], slot, close_on_exec),
        };
        match entered {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                fds.swap(busy, at);
                busy += 1;
            }
            Err(errno) => complain(errno),
        }
    }
    Ok(busy)
}

/// Makes a descriptor mean a socket that the engine has counted this process as a holder of once
/// more.
fn enter(engine: &'static Engine, fd: c_int, slot: SlotRef, close_on_exec: bool) -> Result<()> {
    let socket = match Socket::of(slot) {
        Ok(socket) => {
            // A process holds a socket once, however many of its descriptors mean it.
            socket.give_hold_back()?;
            socket
        }
        Err(_) => Socket::new(engine, slot)?,
    };
    if !table::holds(fd) {
        return Err(Errno::MFILE);
    }
    placeholder::put_over(fd, close_on_exec)?;
    table::set(fd, Entry::Socket(slot));
    std::mem::forget(socket);
    Ok(())
}

/// Reports once why a received socket does not work.
fn complain(errno: Errno) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let line: &[u8] = match errno {
        Errno::BUSY => b"millrace: received a socket of another program, which is in a call on it all the time: to this program it is closed\n",
        Errno::NFILE | Errno::NOBUFS => b"millrace: received a socket of another program, for which this one has no slot or no memory left: to this program it is closed\n",
        Errno::STALE => b"millrace: received a socket that its engine has closed, or one of another engine: to this program it is closed\n",
        _ => b"millrace: received a socket, but the engine cannot be asked for it, or this process has no room for it: to this program it is closed\n",
    };
    sys::write(2, line);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Control data of several headers, each with a length, a level, a type and numbers.
    fn control(heads: &[(usize, c_int, c_int, &[c_int])]) -> Vec<u64> {
        let mut bytes = Vec::new();
        for (len, level, kind, numbers) in heads {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes.extend(len.to_ne_bytes());
            bytes.extend(level.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let words = bytes.chunks_exact(8);
        words
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
            .collect()
    }

    fn found(control: &mut [u64], len: usize) -> Vec<c_int> {
        // SAFETY: integers and null pointers.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = len as _;
        let mut all = Vec::new();
        // SAFETY: the control data is there.
        let walked = unsafe {
            each_descriptor(&message, |at| {
                all.push(at.read_unaligned());
                Ok(())
            })
        };
        walked.map(|()| all).unwrap()
    }

    #[test]
    fn descriptors_are_found_among_other_control_data() {
        let (level, kind) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        let mut all = control(&[
            (16 + 12, level, libc::SCM_CREDENTIALS, &[7, 8, 9]),
            (16 + 4, level, kind, &[3]),
            (16 + 4, libc::SOL_IP, kind, &[4]),
            (16 + 12, level, kind, &[5, 6, 3]),
        ]);
        let len = all.len() * 8;
        assert_eq!(found(&mut all, len), [3, 5, 6, 3]);
        assert_eq!(found(&mut all, 0), []);
    }

    #[test]
    fn lengths_that_lie_lead_nowhere() {
        let (level, kind) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        for len in [0, 1, 15, 16, 17, 19] {
            let mut all = control(&[(len, level, kind, &[3, 4])]);
            assert_eq!(found(&mut all, 24), [], "{len}");
        }
        for len in [25, 1 << 20, usize::MAX - 8, usize::MAX] {
            let mut all = control(&[(20, level, kind, &[2]), (len, level, kind, &[3, 4])]);
            assert_eq!(found(&mut all, 48), [2], "{len}");
            assert_eq!(found(&mut all, 15), [], "{len}");
        }
    }

    #[test]
    fn what_stands_for_a_socket_is_known_by_its_name() {
        use std::os::fd::AsRawFd;
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram};
        let named = |name: &[u8]| {
            let address = SocketAddr::from_abstract_name(name).unwrap();
            UnixDatagram::bind_addr(&address).unwrap()
        };
        let name = [
            PASSED_NAME,
            format!("test-{}", std::process::id()).as_bytes(),
        ]
        .concat();
        assert!(is_passed(named(&name).as_raw_fd()));
        assert!(!is_passed(named(&name[1..]).as_raw_fd()));
        let (pair, _other) = UnixDatagram::pair().unwrap();
        assert!(!is_passed(pair.as_raw_fd()) && !is_passed(0) && !is_passed(-1));
    }
}
