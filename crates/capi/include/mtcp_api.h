// mTCP's interface on millrace: its names, types, constants and meaning. See docs/embedding.md.
//
// A context is a stack of the thread that made it, and does its work inside the calls of that thread. Errors are -1 (NULL for a context) and errno: EACCES for a context that
// is none, was destroyed, or is another thread's; EBADF for a socket that is none; EFAULT for a null pointer, and for one that can be seen to be wild; EINVAL for a length above SSIZE_MAX. Calls that are like one of
// Linux have its errors. What mtcp_init and mtcp_create_context have to say beyond errno they say on standard error.
#ifndef MTCP_API_H
#define MTCP_API_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifndef UNUSED
#define UNUSED(x) (void)x
#endif

#ifndef INPORT_ANY
#define INPORT_ANY (uint16_t)0
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum socket_type {
    MTCP_SOCK_UNUSED,
    MTCP_SOCK_STREAM,
    MTCP_SOCK_PROXY,
    MTCP_SOCK_LISTENER,
    MTCP_SOCK_EPOLL,
    MTCP_SOCK_PIPE
};

struct mtcp_conf {
    int num_cores;       // contexts, 1 to 64: each core has one
    int max_concurrency; // sockets of a core at once; their numbers are below it
    int max_num_buffers; // memory for so many full buffers of a core
    int rcvbuf_size;     // bytes
    int sndbuf_size;     // bytes
    int tcp_timewait;    // seconds
    int tcp_timeout;     // seconds that a connection may be silent; -1: for ever
};

typedef struct mtcp_context *mctx_t;

// Reads a configuration file. EBUSY after another; EINVAL for what is wrong in it: file, line and key stand on standard error.
int mtcp_init(const char *config_file);
// Undoes mtcp_init. Contexts go on until they are destroyed.
void mtcp_destroy(void);

// The configuration, before mtcp_init and after; what is 0 stays. EINVAL for what is out of bounds; EBUSY once there was a context.
int mtcp_getconf(struct mtcp_conf *conf);
int mtcp_setconf(const struct mtcp_conf *conf);

// Keeps this thread on a core of the machine.
int mtcp_core_affinitize(int cpu);

// The context of a core, 0 to num_cores - 1, for this thread. Every core needs its context: what comes for one without is lost. The first opens the port. EPERM
// before mtcp_init; EINVAL for a core that there is not, or a port that does not open; EBUSY for one that had its context.
mctx_t mtcp_create_context(int cpu);
// Closes all sockets; connections have a second to say what they were given to say.
void mtcp_destroy_context(mctx_t mctx);

typedef void (*mtcp_sighandler_t)(int);
// As signal. Every context that waits, on any thread, returns EINTR.
mtcp_sighandler_t mtcp_register_signal(int signum, mtcp_sighandler_t handler);

// A pipe inside the context, to read from pipeid[0]: 64 KiB. Nobody but this thread can fill or empty it: waiting for that is EDEADLK, or EAGAIN after mtcp_setsock_nonblock.
int mtcp_pipe(mctx_t mctx, int pipeid[2]);

int mtcp_getsockopt(mctx_t mctx, int sockid, int level, int optname, void *optval, socklen_t *optlen);
int mtcp_setsockopt(mctx_t mctx, int sockid, int level, int optname, const void *optval, socklen_t optlen);
int mtcp_setsock_nonblock(mctx_t mctx, int sockid);
// FIONREAD, SIOCOUTQ, FIONBIO; EINVAL for anything else.
int mtcp_socket_ioctl(mctx_t mctx, int sockid, int request, void *argp);

// SOCK_STREAM, and SOCK_DGRAM beyond mTCP. The lowest number that is free; ENFILE at max_concurrency.
int mtcp_socket(mctx_t mctx, int domain, int type, int protocol);
int mtcp_bind(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);
// Each context listens for itself, at the same address, and accepts what comes to its core.
int mtcp_listen(mctx_t mctx, int sockid, int backlog);
int mtcp_accept(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

// The addresses that connections leave from, in turn: num_addr (1 to 256) from saddr_base on, all of them ours, or INADDR_ANY for what the route has. Every connection has a
// port whose answers come to its context, with this call or without; whom it is for makes no difference. EADDRNOTAVAIL for an address that is not ours.
int mtcp_init_rss(mctx_t mctx, in_addr_t saddr_base, int num_addr, in_addr_t daddr, in_addr_t dport);
// Answers to a port that the program has bound may come to another context: that one hands them over, which takes a call of its thread before anything is sent. EADDRNOTAVAIL
// if the other context has a connection with these ends, or was destroyed.
int mtcp_connect(mctx_t mctx, int sockid, const struct sockaddr *addr, socklen_t addrlen);

int mtcp_close(mctx_t mctx, int sockid);
// Closes with a reset.
int mtcp_abort(mctx_t mctx, int sockid);

int mtcp_getsockname(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);
int mtcp_getpeername(mctx_t mctx, int sockid, struct sockaddr *addr, socklen_t *addrlen);

ssize_t mtcp_read(mctx_t mctx, int sockid, char *buf, size_t len);
// MSG_PEEK; EINVAL for other flags.
ssize_t mtcp_recv(mctx_t mctx, int sockid, char *buf, size_t len, int flags);
int mtcp_readv(mctx_t mctx, int sockid, const struct iovec *iov, int numIOV);
// EPIPE raises no signal.
ssize_t mtcp_write(mctx_t mctx, int sockid, const char *buf, size_t len);
int mtcp_writev(mctx_t mctx, int sockid, const struct iovec *iov, int numIOV);

#ifdef __cplusplus
}
#endif

#endif
