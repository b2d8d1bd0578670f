//! What is said on the control socket ([`crate::control_socket`]): SOCK_SEQPACKET, one request per
//! packet, one answer per packet.
//!
//! It is for what happens seldom: a process attaches, forks, makes an epoll set; the command line
//! asks for connections or for the end. Payload never passes here. The connection stays open as
//! long as the process lives, so that either side notices when the other is gone.

use std::ffi::c_int;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::layout::Geometry;

/// Environment: where the engine is, as a [`crate::control_socket::Address`].
pub const ENV_ENGINE: &str = "MILLRACE_ENGINE";
/// Environment: the program's token, 32 hexadecimal digits; who knows it belongs to the program.
pub const ENV_TOKEN: &str = "MILLRACE_TOKEN";
/// Environment: sockets that survive an exec, as `fd:index:generation,...`; set by the shim for the
/// shim.
pub const ENV_INHERIT: &str = "MILLRACE_INHERIT";
/// Environment: the ticket of a spawned child ([`Kind::Fork`]).
pub const ENV_PROCESS: &str = "MILLRACE_PROCESS";

/// A program's secret.
pub type Token = [u8; 16];

/// What a client asks. Fixed size, so that nothing needs parsing.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// [`crate::VERSION`] of the sender.
    pub version: u32,
    /// [`Kind`] as a number.
    pub kind: u32,
    /// The program's token where one is needed.
    pub token: Token,
    /// See [`Kind`].
    pub arguments: [u64; 4],
}

/// Kinds of request.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A process of the program with this token attaches. `arguments[0]`: the ticket that its
    /// parent got for it ([`Kind::Fork`]), or 0. `arguments[1]`: slot plus 1 of the parent whose
    /// epoll sets it shares, if the fork was not announced, or 0. Answer: [`Attached`],
    /// descriptors: region, and for each shard the program's doorbell.
    Attach = 1,
    /// The sending process is about to fork (or spawn): the child holds every socket that it holds.
    /// Answer: `[ticket]`. If `arguments[0]` is 1, with a descriptor: a control connection for the
    /// child, which may not be able to make one (in a network namespace of its own). `EUSERS`: the
    /// program has as many processes as the engine has room for.
    Fork = 2,
    /// The fork of ticket `arguments[0]` has made process `arguments[1]`, with its pidfd if the
    /// parent could open one; 0: it failed. Answer: none.
    Forked = 3,
    /// A poller. Answer: `[index]`, descriptor: an epoll set that is readable after each ring,
    /// until it is waited for.
    Poller = 4,
    /// This process does not need poller `arguments[0]` any more. A child of a fork has its
    /// parent's pollers too; one that nobody has is gone. Answer: none.
    PollerGone = 5,
    /// A new program (command line). `arguments[0]`: 1 if its shim is to say nothing but errors.
    /// Answer: `[token as two words, alias as two words]`
    /// ([`crate::control_socket::Address::alias`]; 0 for none); it lives while this connection or
    /// any of its processes lives.
    Program = 6,
    /// All sockets, as JSON. Answer: descriptor of a memfd with it.
    Sockets = 7,
    /// End the engine. Answer: `[engine pid]`.
    Down = 8,
    /// The process holds exactly the sockets in the payload behind this request ([`crate::SlotRef`]
    /// words) and no others: sent before an exec of those that survive it, and after one.
    /// `arguments[0]` is 1: it also takes hold of those that it did not hold, as the child of a
    /// fork that was not announced. Answer: `[]`.
    Holds = 9,
    /// What the engine is: JSON in a memfd.
    Describe = 10,
    /// The first `arguments[0]` shards are to serve new flows and sockets. Answer: `[buckets that
    /// moved]`.
    Scale = 11,
    /// The process passes the sockets in the payload ([`crate::SlotRef`] words, at most
    /// [`PASSED_MAX`]) to others by messages (SCM_RIGHTS). Answer: `[]`, with one descriptor for
    /// each socket, in order, which is sent in the socket's place. The socket stays open as long as
    /// that descriptor is open anywhere: in a message that nobody has read too.
    Pass = 12,
    /// The process has received such descriptors, which come with this request, at most
    /// [`CLAIMED_MAX`]. Answer: a word for each, in order: the [`crate::SlotRef`] of a socket that
    /// the process holds from now on, or, with generation 0, an errno in place of its index:
    /// `EAGAIN` for a socket of another program that is in the middle of a call on it, `ESTALE` for
    /// one that is none any more.
    Claim = 13,
    /// The process is about to bind the socket `arguments[0]` (a [`crate::SlotRef`]) to port
    /// `arguments[1]`, which its shard has refused with `EACCES`. `arguments[2]`: the thread that
    /// binds. Answer: `[]`, and the shard lets the socket have that port once, or `EACCES`.
    Permit = 14,
}

impl Kind {
    /// From its number, which may be anything.
    pub fn from_number(number: u32) -> Option<Kind> {
        use Kind::*;
        [
            Attach, Fork, Forked, Poller, PollerGone, Program, Sockets, Down, Holds, Describe,
            Scale, Pass, Claim, Permit,
        ]
        .into_iter()
        .find(|kind| *kind as u32 == number)
    }
}

/// The answer to any request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0, or an errno.
    pub error: i32,
    /// [`crate::VERSION`] of the engine.
    pub version: u32,
    /// See [`Kind`].
    pub words: [u64; 8],
}

/// What a process learns when it attaches; packed in [`Answer::words`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The region's geometry.
    pub geometry: Geometry,
    /// The process's slot.
    pub process: u32,
    /// Its first context.
    pub context: u32,
    /// How many contexts it has for each shard: thread `t`'s context for shard `s` is `context + (t
    /// % contexts) * shards + s`.
    pub contexts: u32,
    /// The engine's process.
    pub engine_pid: u32,
}

impl Attached {
    /// Into an answer's words.
    pub fn to_words(self) -> [u64; 8] {
        let pair = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        let g = self.geometry;
        [
            pair(g.slots, g.contexts),
            pair(g.pollers, g.shards),
            g.arena,
            pair(self.process, self.context),
            pair(self.contexts, self.engine_pid),
            0,
            0,
            0,
        ]
    }

    /// Back.
    pub fn from_words(words: [u64; 8]) -> Attached {
        let split = |word: u64| ((word >> 32) as u32, word as u32);
        let ((slots, contexts), (pollers, shards)) = (split(words[0]), split(words[1]));
        let ((process, context), (per_process, engine_pid)) = (split(words[3]), split(words[4]));
        Attached {
            geometry: Geometry {
                slots,
                contexts,
                pollers,
                shards,
                arena: words[2],
            },
            process,
            context,
            contexts: per_process,
            engine_pid,
        }
    }
}

/// Descriptors that can travel with one packet.
pub const DESCRIPTORS_MAX: usize = 80;
/// Sockets of one [`Kind::Pass`].
pub const PASSED_MAX: usize = 64;
/// Descriptors of one [`Kind::Claim`]: as many as an answer has words.
pub const CLAIMED_MAX: usize = 8;
/// How the abstract name begins that a descriptor of [`Kind::Pass`] is bound to.
pub const PASSED_NAME: &[u8] = b"millrace-passed-";
/// Bytes of one packet, at most: a [`Request`] and its payload.
pub const PACKET_MAX: usize = 64 * 1024;

/// Whether a connection to a control socket, or those that a listener will accept, may bring
/// descriptors. Where the kernel does not ask (before Linux 6.16) they may.
pub fn accept_descriptors(socket: &OwnedFd, accept: bool) {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let value = libc::c_int::from(accept);
    // SAFETY: the value is one integer, as its length says.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// A connection that is made already: the engine's end, which says with each request who sent it,
/// and the other one for a child that is to be.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (own, other) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::sockopt::set_socket_passcred(&own, true)?;
    Ok((own, other))
}

/// A plain-words structure as bytes.
fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: Request and Answer are repr(C) structures of integers without padding (asserted
    // below).
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

const _: () = assert!(size_of::<Request>() == 4 + 4 + 16 + 32);
const _: () = assert!(size_of::<Answer>() == 8 + 64);

/// Sends a structure, payload and descriptors as one packet.
fn send<T: Copy>(
    socket: BorrowedFd<'_>,
    head: &T,
    payload: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match rustix::net::sendmsg(
            socket,
            &[IoSlice::new(bytes_of(head)), IoSlice::new(payload)],
            &mut control,
            SendFlags::NOSIGNAL | flags,
        ) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Descriptors that one packet can bring (the kernel's SCM_MAX_FD).
const RECEIVED_MAX: usize = 253;

/// Descriptors that came with a packet, without an allocation.
#[derive(Debug)]
pub struct Descriptors {
    list: [Option<OwnedFd>; RECEIVED_MAX],
    len: usize,
}

impl Default for Descriptors {
    fn default() -> Descriptors {
        Descriptors {
            list: [const { None }; RECEIVED_MAX],
            len: 0,
        }
    }
}

impl Descriptors {
    /// The `index`th, unless it was taken.
    pub fn get(&self, index: usize) -> Option<&OwnedFd> {
        self.list.get(index)?.as_ref()
    }
    /// Takes the `index`th.
    pub fn take(&mut self, index: usize) -> Option<OwnedFd> {
        self.list.get_mut(index)?.take()
    }
    /// One more; beyond those that one packet can bring it is closed.
    fn add(&mut self, descriptor: OwnedFd) {
        if let Some(place) = self.list.get_mut(self.len) {
            *place = Some(descriptor);
            self.len += 1;
        }
    }
    /// How many came.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether none came.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Receives one packet into `buffer`, and its descriptors, also those of one that is an error: its
/// length (0: the other side is gone). Not by the C library, whose functions the shim stands in
/// for.
fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    descriptors: &mut Descriptors,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(received) => break received,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(|descriptor| descriptors.add(descriptor));
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(received.bytes)
}

/// Room for what can come beside a packet: descriptors and credentials, with their headers.
const CONTROL_MAX: usize = 2048;
const _: () =
    assert!(CONTROL_MAX >= RECEIVED_MAX * size_of::<c_int>() + size_of::<libc::ucred>() + 64);

/// Memory in which control messages lie as the kernel wants it.
#[repr(C, align(8))]
struct ControlSpace([MaybeUninit<u8>; CONTROL_MAX]);

/// The same of one that is there, with its sender if the socket asks for it: its pid and its real
/// user. For the engine. Not with rustix, to which a pid is never 0: here it is for processes of
/// PID namespaces that this one does not see.
fn receive_with_sender(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    descriptors: &mut Descriptors,
) -> io::Result<(usize, Option<(u32, u32)>)> {
    let mut space = ControlSpace([const { MaybeUninit::uninit() }; CONTROL_MAX]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all of it is integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_MAX as _;
    let len = loop {
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the message names memory that is ours and as long as it says.
        match unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) } {
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            len => break len as usize,
        }
    };
    let mut sender = None;
    // SAFETY: the kernel has filled the space with whole control messages, which these macros walk;
    // descriptors that it names are new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(this) = header.as_ref() {
            let data = libc::CMSG_DATA(header);
            let bytes = this.cmsg_len - libc::CMSG_LEN(0) as usize;
            match (this.cmsg_level, this.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for at in 0..bytes / size_of::<c_int>() {
                        let number = data.cast::<c_int>().add(at).read_unaligned();
                        descriptors.add(OwnedFd::from_raw_fd(number));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if bytes >= size_of::<libc::ucred>() => {
                    let by = data.cast::<libc::ucred>().read_unaligned();
                    let pid = u32::try_from(by.pid).ok().filter(|pid| *pid > 0);
                    sender = pid.map(|pid| (pid, by.uid));
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((len, sender))
}

/// A request as the engine receives it.
#[derive(Debug)]
pub struct Received<'a> {
    /// The request.
    pub request: Request,
    /// What came behind it.
    pub payload: &'a [u8],
    /// Who sent it, if the socket asks for that (SO_PASSCRED): the pid, and the real user at that
    /// moment.
    pub sender: Option<(u32, u32)>,
}

impl Request {
    /// A request of this version.
    pub fn new(kind: Kind, token: Token, arguments: [u64; 4]) -> Request {
        Request {
            version: crate::VERSION,
            kind: kind as u32,
            token,
            arguments,
        }
    }

    /// Sends it.
    pub fn send(&self, socket: impl AsFd, payload: &[u8]) -> io::Result<()> {
        self.send_with(socket, payload, &[])
    }

    /// Sends it with descriptors.
    pub fn send_with(
        &self,
        socket: impl AsFd,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let flags = SendFlags::empty();
        send(socket.as_fd(), self, payload, descriptors, flags)
    }

    /// Sends it and waits for the answer. Its error becomes this one's.
    pub fn call(&self, socket: impl AsFd, payload: &[u8]) -> io::Result<(Answer, Descriptors)> {
        self.call_with(socket, payload, &[])
    }

    /// The same with descriptors.
    pub fn call_with(
        &self,
        socket: impl AsFd,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Descriptors)> {
        self.send_with(socket.as_fd(), payload, descriptors)?;
        let (answer, descriptors) = Answer::receive(socket.as_fd())?;
        if answer.error == 0 {
            Ok((answer, descriptors))
        } else {
            Err(io::Error::from_raw_os_error(answer.error))
        }
    }

    /// Receives one that is there, with its payload, which is left in `buffer`. What descriptors
    /// came is in `descriptors`, whatever the outcome: who closes them may have to wait. `None`:
    /// the other side is gone. `EAGAIN`: there is none.
    pub fn receive<'a>(
        socket: BorrowedFd<'_>,
        buffer: &'a mut [u8],
        descriptors: &mut Descriptors,
    ) -> io::Result<Option<Received<'a>>> {
        let (len, sender) = receive_with_sender(socket, buffer, descriptors)?;
        if len == 0 {
            return Ok(None);
        }
        let Some((head, payload)) = buffer[..len].split_at_checked(size_of::<Request>()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        // SAFETY: Request is integers only, every bit pattern is one; the slice is exactly its
        // length, alignment is not assumed.
        let request = unsafe { head.as_ptr().cast::<Request>().read_unaligned() };
        Ok(Some(Received {
            request,
            payload,
            sender,
        }))
    }
}

impl Answer {
    /// A good answer.
    pub fn ok(words: [u64; 8]) -> Answer {
        Answer {
            error: 0,
            version: crate::VERSION,
            words,
        }
    }

    /// A bad one.
    pub fn error(errno: i32) -> Answer {
        Answer {
            error: errno,
            version: crate::VERSION,
            words: [0; 8],
        }
    }

    /// Sends it. `EAGAIN` from a client that has not read earlier ones: nobody waits for it.
    pub fn send(&self, socket: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(socket, self, &[], descriptors, SendFlags::DONTWAIT)
    }

    /// Receives one.
    pub fn receive(socket: BorrowedFd<'_>) -> io::Result<(Answer, Descriptors)> {
        let mut buffer = [0; size_of::<Answer>()];
        let mut descriptors = Descriptors::default();
        let len = receive(socket, &mut buffer, &mut descriptors)?;
        if len == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if len != buffer.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: Answer is integers only and the buffer is exactly its length.
        Ok((
            unsafe { buffer.as_ptr().cast::<Answer>().read_unaligned() },
            descriptors,
        ))
    }
}

/// A token from its 32 digits.
pub fn parse_token(text: &str) -> Option<Token> {
    let digits = text.as_bytes();
    if digits.len() != 32 {
        return None;
    }
    let mut token = [0; 16];
    for (byte, pair) in token.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(token)
}

/// A token's 32 digits.
pub fn format_token(token: &Token) -> String {
    token.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_cross_with_descriptors() {
        let (listener, alias) = crate::control_socket::listen_by_alias().unwrap();
        let address = crate::control_socket::Address {
            owner: rustix::process::geteuid().as_raw(),
            alias: &format_token(&alias),
            path: "/nowhere",
        };
        let client = address.connect(crate::control_socket::peer).unwrap();
        let server = rustix::net::accept(&listener).unwrap();
        accept_descriptors(&server, true);
        Request::new(Kind::Poller, [7; 16], [1, 2, 3, 4])
            .send_with(&client, b"tail", &[client.as_fd()])
            .unwrap();
        let mut buffer = vec![0; PACKET_MAX];
        let mut came = Descriptors::default();
        let received = Request::receive(server.as_fd(), &mut buffer, &mut came)
            .unwrap()
            .unwrap();
        let request = received.request;
        assert_eq!(
            (request.token, request.arguments, received.payload),
            ([7; 16], [1, 2, 3, 4], &b"tail"[..])
        );
        assert!(received.sender.is_none());
        assert!(came.len() == 1 && came.get(0).is_some() && came.get(1).is_none());
        drop(came);
        let mut came = Descriptors::default();
        let (own, child) = pair().unwrap();
        request.send(&child, &[]).unwrap();
        let received = Request::receive(own.as_fd(), &mut buffer, &mut came)
            .unwrap()
            .unwrap();
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(received.sender, Some((std::process::id(), uid)));
        Answer::ok([9; 8])
            .send(server.as_fd(), &[client.as_fd(), server.as_fd()])
            .unwrap();
        let (answer, mut descriptors) = Answer::receive(client.as_fd()).unwrap();
        assert_eq!((answer.words, descriptors.len()), ([9; 8], 2));
        assert!(descriptors.take(1).is_some() && descriptors.take(1).is_none());
        drop((client, descriptors));
        assert!(
            Request::receive(server.as_fd(), &mut buffer, &mut came)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn attached_survives_its_words() {
        let attached = Attached {
            geometry: Geometry {
                slots: 1,
                contexts: 2,
                pollers: 3,
                shards: 4,
                arena: 5 << 40,
            },
            process: 6,
            context: 7,
            contexts: 8,
            engine_pid: 9,
        };
        assert_eq!(Attached::from_words(attached.to_words()), attached);
    }

    #[test]
    fn tokens_are_32_digits() {
        let token = std::array::from_fn(|i| i as u8 * 16 + 1);
        assert_eq!(parse_token(&format_token(&token)), Some(token));
        assert_eq!(parse_token("12"), None);
        assert_eq!(parse_token(&"zz".repeat(16)), None);
    }
}
