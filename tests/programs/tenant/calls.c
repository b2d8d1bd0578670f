/* System calls on every descriptor that a process has, and on the engine's process. */
#define _GNU_SOURCE
#include "tenant.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <termios.h>
#include <unistd.h>

static void control_descriptor(struct tenant *tenant, int fd)
{
    static const int commands[] = { F_SETFL, F_SETFL, F_SETFD, F_SETOWN, F_SETSIG, F_ADD_SEALS, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ,
                                    F_SETOWN_EX };
    struct f_owner_ex owner = { F_OWNER_PID, tenant->engine_pid };
    struct flock lock = { .l_type = below(tenant, 3), .l_whence = SEEK_SET, .l_len = below(tenant, 2) };
    int command = commands[below(tenant, sizeof commands / sizeof *commands)];
    switch (command) {
    case F_SETFL:
        fcntl(fd, command, (int)(next(tenant) & (O_NONBLOCK | O_APPEND | O_ASYNC | O_DIRECT | O_NOATIME)));
        break;
    case F_SETOWN:
        fcntl(fd, command, below(tenant, 2) ? tenant->engine_pid : getpid());
        break;
    case F_SETOWN_EX:
        fcntl(fd, command, &owner);
        break;
    case F_SETSIG:
        fcntl(fd, command, SIGKILL);
        break;
    default:
        fcntl(fd, command, (int)below(tenant, 32));
        fcntl(fd, F_OFD_SETLK, &lock);
    }
}

static void io_control(struct tenant *tenant, int fd)
{
    static const unsigned long requests[] = { FIONBIO, FIOASYNC, FIOCLEX, FIONCLEX, FIONREAD, TCGETS, 0x8901 /* FIOSETOWN */,
                                              0x8902 /* SIOCSPGRP */ };
    int value = below(tenant, 2) ? (int)below(tenant, 2) : tenant->engine_pid;
    char space[64] = { 0 };
    memcpy(space, &value, sizeof value);
    ioctl(fd, requests[below(tenant, sizeof requests / sizeof *requests)], space);
}

static void set_option(struct tenant *tenant, int fd)
{
    static const int options[] = { SO_RCVBUF, SO_SNDBUF, SO_PASSCRED, SO_LINGER, SO_PEEK_OFF, SO_KEEPALIVE, SO_PRIORITY, SO_BUSY_POLL,
                                   SO_PASSSEC, 83 /* SO_PASSRIGHTS */ };
    int value[2] = { (int)some_word(tenant), (int)below(tenant, 4) };
    socklen_t len = below(tenant, 2) ? 4 : 8;
    setsockopt(fd, SOL_SOCKET, options[below(tenant, sizeof options / sizeof *options)], value, len);
    if (below(tenant, 32) == 0)
        shutdown(fd, below(tenant, 3));
}

/* Descriptors into a message, and perhaps out of one. */
static void pass(struct tenant *tenant, int fd)
{
    int passed[4];
    char space[CMSG_SPACE(sizeof passed)] = { 0 }, byte = 0;
    for (int at = 0; at < 4; at++)
        passed[at] = some_descriptor(tenant);
    struct iovec piece = { &byte, 1 };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS, rights->cmsg_len = CMSG_LEN(sizeof passed);
    memcpy(CMSG_DATA(rights), passed, sizeof passed);
    sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (below(tenant, 2))
        recvmsg(fd, &message, MSG_DONTWAIT);
}

/* A piece of the region, or of what a descriptor means. */
static void map(struct tenant *tenant, int fd)
{
    size_t len = 4096 << below(tenant, 6);
    uint8_t *piece = tenant->region ? tenant->region + (below(tenant, tenant->region_size) & ~4095ul) : NULL;
    switch (below(tenant, 6)) {
    case 0:
        if (piece && below(tenant, 8) == 0)
            munmap(piece, len);
        break;
    case 1:
        mmap(NULL, len, below(tenant, 8), MAP_SHARED, fd, 0);
        break;
    case 2:
        if (piece)
            madvise(piece, len, below(tenant, 2) ? MADV_REMOVE : MADV_DONTNEED);
        break;
    case 3:
        if (piece && below(tenant, 8) == 0)
            mprotect(piece, len, PROT_READ);
        break;
    case 4:
        if (piece)
            mlock(piece, 4096);
        break;
    case 5:
        fallocate(fd, below(tenant, 2) ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE : FALLOC_FL_ZERO_RANGE,
                  below(tenant, 1 << 24), below(tenant, 1 << 20));
    }
}

static void watch(struct tenant *tenant, int fd, int other)
{
    struct epoll_event event = { .events = (uint32_t)next(tenant) & 0xe000201f, .data.u64 = next(tenant) };
    switch (below(tenant, 3)) {
    case 0:
        epoll_ctl(fd, 1 + below(tenant, 3), other, &event);
        break;
    case 1:
        epoll_wait(fd, &event, 1, 0);
        break;
    default:
        keep(tenant, epoll_create1(EPOLL_CLOEXEC));
    }
}

static void move_bytes(struct tenant *tenant, int fd, int other)
{
    static char buffer[4096];
    loff_t at = below(tenant, 1 << 20);
    size_t len = below(tenant, sizeof buffer);
    switch (below(tenant, 8)) {
    case 0:
        splice(fd, NULL, other, NULL, len, SPLICE_F_NONBLOCK);
        break;
    case 1:
        splice(fd, &at, other, NULL, len, SPLICE_F_NONBLOCK);
        break;
    case 2:
        tee(fd, other, len, SPLICE_F_NONBLOCK);
        break;
    case 3:
        sendfile(fd, other, NULL, len);
        break;
    case 4:
        if (write(fd, buffer, below(tenant, 2) ? 8 : len) < 0)
            return;
        break;
    case 5:
        if (read(fd, buffer, below(tenant, 2) ? 8 : len) < 0)
            return;
        break;
    case 6:
        if (pwrite(fd, buffer, len, at) < 0)
            return;
        break;
    default:
        lseek(fd, (off_t)some_word(tenant), below(tenant, 3));
    }
}

void call_something(struct tenant *tenant)
{
    int fd = some_descriptor(tenant), other = some_descriptor(tenant);
    switch (below(tenant, 12)) {
    case 0: case 1:
        return control_descriptor(tenant, fd);
    case 2:
        return io_control(tenant, fd);
    case 3:
        return set_option(tenant, fd);
    case 4:
        return pass(tenant, fd);
    case 5:
        return map(tenant, fd);
    case 6: case 7:
        return watch(tenant, fd, other);
    case 8: case 9:
        return move_bytes(tenant, fd, other);
    case 10:
        if (ftruncate(fd, (off_t)some_word(tenant)) < 0)
            fchmod(fd, (mode_t)below(tenant, 0777));
        break;
    case 11:
        if (below(tenant, 2))
            keep(tenant, dup(fd));
        else if (below(tenant, 4) == 0)
            below(tenant, 2) && fd >= 0 && other >= 0 ? dup2(fd, other) : close(fd);
        else
            poll(&(struct pollfd){ .fd = fd, .events = POLLIN | POLLOUT }, 1, (int)below(tenant, 2));
    }
}

void set_limit(struct tenant *tenant)
{
    static const int resources[] = { RLIMIT_NOFILE, RLIMIT_AS, RLIMIT_FSIZE, RLIMIT_MEMLOCK, RLIMIT_STACK, RLIMIT_SIGPENDING };
    struct rlimit limit = { some_word(tenant), RLIM_INFINITY };
    int resource = resources[below(tenant, 6)];
    if (getrlimit(resource, &limit) == 0) {
        limit.rlim_cur = resource == RLIMIT_NOFILE ? below(tenant, 128) : some_word(tenant);
        setrlimit(resource, &limit);
    }
    setpriority(PRIO_PROCESS, 0, (int)below(tenant, 20));
}

/* What the kernel refuses to one who is neither root nor the engine's user. */
void attack_engine_process(struct tenant *tenant)
{
    pid_t engine = tenant->engine_pid;
    struct rlimit none = { 0, 0 };
    char byte = 0;
    struct iovec own = { &byte, 1 }, theirs = { tenant->region, 1 };
    /* Before it is known nobody may be meant. */
    if (engine <= 1)
        return;
    switch (below(tenant, 7)) {
    case 0:
        kill(engine, below(tenant, 2) ? SIGKILL : SIGSTOP);
        break;
    case 1:
        setpriority(PRIO_PROCESS, engine, 19);
        break;
    case 2:
        prlimit(engine, RLIMIT_NOFILE, &none, NULL);
        break;
    case 3:
        process_vm_writev(engine, &own, 1, &theirs, 1, 0);
        break;
    case 4:
        ptrace(PTRACE_SEIZE, engine, NULL, NULL);
        break;
    case 5: {
        int pidfd = (int)syscall(SYS_pidfd_open, engine, 0);
        keep(tenant, (int)syscall(438 /* pidfd_getfd */, pidfd, (int)below(tenant, 32), 0));
        keep(tenant, pidfd);
        break;
    }
    default: {
        struct { uint32_t size, policy; uint64_t rest[5]; } idle = { 48, 5 /* SCHED_IDLE */, { 0 } };
        syscall(SYS_sched_setattr, engine, &idle, 0);
    }
    }
}
