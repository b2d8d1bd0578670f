// millrace: a TCP/IP stack inside a program. Made by cbindgen from crates/capi/src/boundary: change it there.
//
// An engine is a host: a link, addresses, and one shard or several. A thread that takes a shard has a stack (mr_stack_open), and the sockets that it makes are in that
// stack. All work is done inside calls of that thread: those that wait, mr_epoll_wait and mr_stack_poll. Threads share nothing: each shard needs a thread, and a server a
// listener in each.
//
// Descriptors are the thread's: numbers from 4194304 on, which the kernel gives to nobody. One that is closed, or another thread's, is EBADF; the number comes
// again after 250,000 others of any thread at the earliest, as long as no more than 3,500,000 are open. Calls that are like one of Linux have its name, arguments, constants and errors; where they differ this file says so.
//
// Errors are -1 and errno. A null pointer is EFAULT, as is one below 4096, one that is not aligned, and one whose bytes would be where no program has any; what else it points to has to be there. A length of 0 needs no memory, and does
// what it does on Linux; one above SSIZE_MAX is EINVAL, and one that no memory has EFAULT. A call before the thread has a stack, or after it was ended, is ENODEV where a new thing is to be made, EBADF elsewhere.
// A call that would wait where time or packets are the caller's is EAGAIN, a connect EINPROGRESS: nothing can come meanwhile.
// A failure inside the library that nobody has thought of is ENOTRECOVERABLE: end the stack then.
//
// No function may be called from a signal handler, and after fork the child may call none: the stack is the parent's.


#ifndef MILLRACE_H
#define MILLRACE_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, as "0.1.0".
const char *mr_version(void);

// What the last call of this thread that failed for want of sense had to say: which key, which
// value, which file and line. Valid until the next call; never null.
const char *mr_error_text(void);

// Makes an engine that is nothing yet: its number, which any thread may use. EMFILE when there are
// 256.
int mr_engine_new(void);

// Says one thing about an engine before its start. Keys:
//
// link: none (the default: loopback), packets (the caller's: see mr_stack_input), tap, tap:NAME,
// tun, tun:NAME, packet:NAME, macvtap:NAME, xdp:NAME; one for each engine, a second is EINVAL
// until the first is taken back by none; host: the kernel's address at the other end of a TAP or
// TUN device, as 10.77.0.1/24, as often as there are; address: one of ours, likewise; route:
// "10.0.0.0/8 via 10.77.0.1"; gateway: for all that has no route; mtu: the largest packet, 576 to
// 65535; shards: 1 to 64, each with a queue of the link and for a thread of its own; any_address,
// loopback: on or off; clock: system or caller (see mr_stack_poll_at); congestion: cubic, reno,
// dctcp or bbr, for new sockets; ecn: off, accept or ask; sockets, half_open, time_wait, orphans,
// neighbours: how many at once; send_memory, receive_memory: bytes, of all connections together;
// send_buffer, receive_buffer: bytes of a connection at first; send_buffer_max,
// receive_buffer_max: when it has grown; time_wait_seconds: 1 to 240; secret: 64 hexadecimal
// digits, for runs that must repeat.
//
// EBADF for no engine, EBUSY once it has started, EINVAL for a key or a value that is none:
// mr_error_text.
int mr_engine_set(int engine, const char *key, const char *value);

// Says what a file says, in lines of a key and a value ("KEY = VALUE" or "KEY VALUE"; what follows
// # is a comment). As mr_engine_set, and the errors of reading a file. mr_error_text names the
// file, the line and the key.
int mr_engine_read(int engine, const char *path);

// Opens the link. EBADF for no engine, EBUSY when it has started, EINVAL for what does not fit
// together or does not open: mr_error_text.
int mr_engine_start(int engine);

// Forgets an engine. Stacks that were taken from it go on; shards that nobody took are lost. EBADF
// for no engine.
int mr_engine_close(int engine);

// Takes shard number `shard` (from 0) of an engine that has started: the number of a stack, which
// is this thread's alone and does all its work inside calls of this thread. New sockets are made
// in it. Every shard of an engine has to be taken, by a thread each: what comes for one that was
// not is lost. EBADF for no engine, ENOTCONN before its start, EINVAL for no such shard, EBUSY for
// one that was taken, EMFILE without descriptors for it, and then it is left to be taken.
int mr_stack_open(int engine, int shard);

// Makes another stack of this thread's the one that new sockets are made in. EBADF for any other
// number.
int mr_stack_use(int stack);

// Ends a stack: its descriptors are closed, and connections have `timeout_ms` milliseconds at most
// to say what they were given to say. EBADF for no stack of this thread's.
int mr_stack_close(int stack, int timeout_ms);

// Does what there is to do now, and returns how much that was; 0 is the time to wait. EBADF.
int mr_stack_poll(int stack);

// As mr_stack_poll, at a time of the caller's in nanoseconds from any origin, in steps of 1,000.
// Time does not go back: an earlier one is taken for the last. EBADF; EINVAL for a stack whose
// clock is the system's.
int mr_stack_poll_at(int stack, uint64_t now_ns);

// When there is something to do even if nothing comes: 1, and in `wait_ns` how many nanoseconds
// from now; 0 when never. With the caller's clock, now is the last mr_stack_poll_at. EBADF,
// EFAULT.
int mr_stack_deadline(int stack, uint64_t *wait_ns);

// A descriptor of the kernel's that can be read when mr_stack_poll has something to do, to wait
// for until mr_stack_deadline. It is the stack's: neither read it nor close it. EBADF; ENOMEM,
// ENOSPC.
int mr_stack_descriptor(int stack);

// Takes in one IP packet, on a stack with the link "packets". What it gives rise to comes out of
// mr_stack_output. EBADF, EFAULT; EOPNOTSUPP for another link, EINVAL for what is neither IPv4 nor
// IPv6, EMSGSIZE for more than 65,535 bytes. Whatever else is wrong with it is the stack's to
// judge, as on any link.
int mr_stack_input(int stack, const void *packet, size_t len);

// Takes out the next IP packet, on a stack with the link "packets": its length, 0 when there is
// none. EBADF, EFAULT; EOPNOTSUPP for another link; EMSGSIZE when it does not fit into `len`
// bytes, and then it stays.
ssize_t mr_stack_output(int stack, void *packet, size_t len);

// Makes a socket in this thread's stack: AF_INET or AF_INET6, SOCK_STREAM or SOCK_DGRAM, with
// SOCK_NONBLOCK if wanted (SOCK_CLOEXEC means nothing here, since no descriptor of these outlives
// exec). ENODEV when the thread has no stack; EAFNOSUPPORT, ESOCKTNOSUPPORT, EPROTONOSUPPORT,
// EINVAL; ENFILE, EMFILE at limits.
int mr_socket(int domain, int kind, int protocol);

// As pipe2, inside this thread's stack, for a program that waits for itself beside its sockets: 64
// KiB. O_NONBLOCK and O_CLOEXEC; EINVAL for other flags, ENODEV when the thread has no stack.
// Nobody but the caller reads and writes it: what would have to wait is EDEADLK, or EAGAIN where
// that was asked for.
int mr_pipe(int *fds, int flags);

// Closes a descriptor of any kind. What a connection has been given to send is still sent, as long
// as the stack works. EBADF.
int mr_close(int fd);

// Closes a connection with a reset. EBADF.
int mr_abort(int fd);

// As bind. On several shards a port that was left to the stack (0) may be another after
// mr_connect: one whose answers come to this thread.
int mr_bind(int fd, const struct sockaddr *addr, socklen_t addrlen);

// As listen. On several shards each thread has a listener at the same address, and each accepts
// what comes to its shard.
int mr_listen(int fd, int backlog);

// As accept.
int mr_accept(int fd, struct sockaddr *addr, socklen_t *addrlen);

// As accept4: SOCK_NONBLOCK and SOCK_CLOEXEC; EINVAL for other flags.
int mr_accept4(int fd, struct sockaddr *addr, socklen_t *addrlen, int flags);

// As connect. AF_UNSPEC takes the peer from a socket for datagrams. On several shards answers to a
// port that the program bound may come to another shard: that one hands them over, which takes a
// call of its thread before anything is sent; meanwhile the socket is connecting. EADDRNOTAVAIL if
// the other shard has a connection with these ends, or was ended, ENOBUFS if it hands over as many
// as it may have sockets; of a connection that was in progress, by SO_ERROR.
int mr_connect(int fd, const struct sockaddr *addr, socklen_t addrlen);

// As shutdown.
int mr_shutdown(int fd, int how);

// As getsockname.
int mr_getsockname(int fd, struct sockaddr *addr, socklen_t *addrlen);

// As getpeername.
int mr_getpeername(int fd, struct sockaddr *addr, socklen_t *addrlen);

// As setsockopt, with Linux's constants. ENOPROTOOPT for what is not implemented:
// docs/embedding.md lists what is.
int mr_setsockopt(int fd, int level, int optname, const void *optval, socklen_t optlen);

// As getsockopt.
int mr_getsockopt(int fd, int level, int optname, void *optval, socklen_t *optlen);

// F_GETFL and F_SETFL with O_NONBLOCK; EINVAL for anything else.
int mr_fcntl(int fd, int cmd, int arg);

// FIONREAD (bytes to read), SIOCOUTQ (bytes not acknowledged) and FIONBIO; EINVAL for anything
// else.
int mr_ioctl(int fd, unsigned long request, int *arg);

// As read.
ssize_t mr_read(int fd, void *buf, size_t len);

// As write; EPIPE raises no signal.
ssize_t mr_write(int fd, const void *buf, size_t len);

// As recv: MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, and MSG_TRUNC of datagrams; EOPNOTSUPP for other
// flags. ENOTSOCK for an end of a pipe: mr_read reads it.
ssize_t mr_recv(int fd, void *buf, size_t len, int flags);

// As send: MSG_MORE, MSG_DONTWAIT, MSG_NOSIGNAL; EOPNOTSUPP for other flags.
// ENOTSOCK for an end of a pipe: mr_write writes to it.
ssize_t mr_send(int fd, const void *buf, size_t len, int flags);

// As recvfrom, with the flags of mr_recv. Of a connection there is no address to tell: `addrlen`
// becomes 0.
ssize_t mr_recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *addr, socklen_t *addrlen);

// As sendto, with the flags of mr_send.
ssize_t mr_sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *addr, socklen_t addrlen);

// As readv: up to 1,024 pieces.
ssize_t mr_readv(int fd, const struct iovec *iov, int iovcnt);

// As recvmsg, with the flags of mr_recv; what came of a datagram that did not fit says MSG_TRUNC
// in msg_flags. Control messages are those of a datagram that were asked for (IP_PKTINFO,
// IP_RECVTTL, IP_RECVTOS, and the same of IPv6; interface 1 is loopback, 2 the link), MSG_CTRUNC
// when they do not fit. EMSGSIZE for more than 1,024 pieces.
ssize_t mr_recvmsg(int fd, struct msghdr *msg, int flags);

// As sendmsg, with the flags of mr_send. Control messages of a datagram: IP_PKTINFO (the source
// address), IP_TTL, IP_TOS, the same of IPv6, and UDP_SEGMENT; EINVAL for others, and for any of a
// connection. EMSGSIZE for more than 1,024 pieces.
ssize_t mr_sendmsg(int fd, const struct msghdr *msg, int flags);

// As writev: up to 1,024 pieces.
ssize_t mr_writev(int fd, const struct iovec *iov, int iovcnt);

// Shows what has come of a stream where it is, in two pieces since a ring wraps: how many bytes, 0
// at the end of the stream. They may be read until mr_consume, a call that reads or closes it, or
// one that lets its stack work. Never waits: EAGAIN. EBADF, ENOTSOCK, EFAULT; EOPNOTSUPP for
// datagrams; what the connection died of.
ssize_t mr_peek(int fd, struct iovec *pieces);

// So many of the bytes that mr_peek has shown have been read, and their room is free. EINVAL for
// more than have come; EBADF, ENOTSOCK, EOPNOTSUPP.
int mr_consume(int fd, size_t len);

// Shows where up to `len` bytes will be sent from, in two pieces since a ring wraps: for how many
// there is room. Write there, in order, and call mr_commit before anything else on this stack.
// Never waits: EAGAIN. EBADF, ENOTSOCK, EFAULT; EOPNOTSUPP for datagrams; those of mr_write.
ssize_t mr_reserve(int fd, size_t len, struct iovec *pieces);

// Sends the first `len` bytes of what mr_reserve has shown. EINVAL for more than there was room
// for, and when another call came between, which may have used the room: reserve again. EBADF,
// ENOTSOCK, EOPNOTSUPP; those of mr_write.
ssize_t mr_commit(int fd, size_t len);

// As epoll_create1, in this thread's stack: a set of sockets of that stack. EPOLL_CLOEXEC means
// nothing; EINVAL for other flags, ENODEV when the thread has no stack.
int mr_epoll_create(int flags);

// As epoll_ctl: level, EPOLLET and EPOLLONESHOT. EINVAL for other flags (EPOLLEXCLUSIVE: only one
// thread waits), for a set in a set, and for a socket of another stack; descriptors of the
// kernel's are EBADF: have it wait for mr_stack_descriptor.
int mr_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);

// As poll, of descriptors of one stack of this thread's. A negative one is passed over; POLLNVAL
// tells of what is none of this thread's, and of a set. The stack works as in mr_epoll_wait, which
// costs less for many. EINVAL for descriptors of two stacks, and for more than 4,194,304; ENODEV
// for none at all when the thread has no stack; EINTR.
int mr_poll(struct pollfd *fds, nfds_t nfds, int timeout_ms);

// As epoll_wait. This is where the stack works: what was written leaves, what has come is seen,
// before it looks and while it waits. EINTR after a signal. With the caller's clock or packets it
// never waits.
int mr_epoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout_ms);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MILLRACE_H */
