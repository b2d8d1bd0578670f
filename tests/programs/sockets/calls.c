/* Calls that move bytes, in all their spellings, and what they answer at the edges. */
#include "harness.h"
#include <sys/sendfile.h>
#include <sys/stat.h>

STATEMENT(o2_vectors_move_bytes)
{
    struct pair pair = make_pair();
    char out[300], in[300] = { 0 };
    fill(out, sizeof out, 0);
    struct iovec from[3] = { { out, 100 }, { out + 100, 0 }, { out + 100, 200 } };
    EQUAL(writev(pair.near, from, 3), 300);
    read_all(pair.far, in, 300);
    CHECK(matches(in, 300, 0));
    write_all(pair.far, out, 300);
    wait_for(pair.near, POLLIN);
    memset(in, 0, sizeof in);
    struct iovec to[3] = { { in, 1 }, { in + 1, 199 }, { in + 200, 100 } };
    size_t got = 0;
    while (got < 300) {
        struct iovec rest = { in + got, 300 - got };
        ssize_t count = got == 0 ? readv(pair.near, to, 3) : readv(pair.near, &rest, 1);
        CHECK(count > 0);
        got += count;
    }
    CHECK(matches(in, 300, 0));
    volatile int too_few = -1, too_many = 1025;
    static struct iovec many[1025];
    FAILS(readv(pair.near, to, too_few), EINVAL);
    FAILS(writev(pair.near, many, too_many), EINVAL);
    EQUAL(writev(pair.near, from, 0), 0);
    close_pair(&pair);
}

STATEMENT(o2_messages_move_bytes)
{
    struct pair pair = make_pair();
    char out[100], in[100] = { 0 };
    fill(out, sizeof out, 5);
    struct iovec from[2] = { { out, 60 }, { out + 60, 40 } };
    struct msghdr message = { .msg_iov = from, .msg_iovlen = 2 };
    EQUAL(sendmsg(pair.near, &message, MSG_NOSIGNAL), 100);
    read_all(pair.far, in, 100);
    CHECK(matches(in, 100, 5));
    write_all(pair.far, out, 100);
    memset(in, 0, sizeof in);
    struct sockaddr_in name;
    struct iovec to[2] = { { in, 10 }, { in + 10, 90 } };
    char control[64];
    message = (struct msghdr){ .msg_name = &name, .msg_namelen = sizeof name, .msg_iov = to, .msg_iovlen = 2,
                               .msg_control = control, .msg_controllen = sizeof control };
    EQUAL(recvmsg(pair.near, &message, MSG_WAITALL), 100);
    CHECK(matches(in, 100, 5));
    /* A stream has no addresses and here no control data. */
    EQUAL(message.msg_namelen, 0);
    EQUAL(message.msg_controllen, 0);
    EQUAL(message.msg_flags, 0);
    close_pair(&pair);
}

STATEMENT(o2_datagram_spellings_work_on_streams)
{
    struct pair pair = make_pair();
    char in[8] = { 0 };
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    EQUAL(sendto(pair.near, "abcd", 4, 0, NULL, 0), 4);
    read_all(pair.far, in, 4);
    CHECK(memcmp(in, "abcd", 4) == 0);
    write_all(pair.far, "efgh", 4);
    EQUAL(recvfrom(pair.near, in, 8, 0, (struct sockaddr *)&name, &length), 4);
    CHECK(memcmp(in, "efgh", 4) == 0);
    EQUAL(length, 0);
    struct mmsghdr many[2];
    struct iovec parts[2] = { { "ij", 2 }, { "klm", 3 } };
    for (int i = 0; i < 2; i++)
        many[i] = (struct mmsghdr){ .msg_hdr = { .msg_iov = &parts[i], .msg_iovlen = 1 } };
    EQUAL(sendmmsg(pair.near, many, 2, 0), 2);
    EQUAL(many[0].msg_len, 2);
    EQUAL(many[1].msg_len, 3);
    read_all(pair.far, in, 5);
    CHECK(memcmp(in, "ijklm", 5) == 0);
    close_pair(&pair);
}

/* A file of `length` bytes of the sequence, already unlinked. */
static int make_file(size_t length)
{
    char name[] = "/tmp/sockets-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0);
    unlink(name);
    static char block[65536];
    for (size_t at = 0; at < length; at += sizeof block) {
        size_t part = length - at < sizeof block ? length - at : sizeof block;
        fill(block, part, at);
        EQUAL(write(file, block, part), (ssize_t)part);
    }
    EQUAL(lseek(file, 0, SEEK_SET), 0);
    return file;
}

struct reading {
    int fd;
    size_t length;
    bool is_right;
};

static void *read_sequence(void *argument)
{
    struct reading *reading = argument;
    char *buffer = malloc(reading->length);
    read_all(reading->fd, buffer, reading->length);
    reading->is_right = matches(buffer, reading->length, 0);
    free(buffer);
    return NULL;
}

STATEMENT(o2_sendfile_sends_files)
{
    enum { LENGTH = 5000000 };
    int file = make_file(LENGTH);
    for (int with_offset = 0; with_offset < 2; with_offset++) {
        struct pair pair = make_pair();
        struct reading reading = { pair.far, LENGTH, false };
        pthread_t reader = start_thread(read_sequence, &reading);
        off_t offset = 0;
        EQUAL(lseek(file, 0, SEEK_SET), 0);
        for (size_t sent = 0; sent < LENGTH;) {
            ssize_t count = sendfile(pair.near, file, with_offset ? &offset : NULL, LENGTH - sent + 100);
            CHECK(count > 0);
            sent += count;
            if (with_offset)
                EQUAL(offset, (long long)sent);
            /* With an offset of its own the file's stays where it is. */
            EQUAL(lseek(file, 0, SEEK_CUR), with_offset ? 0 : (long long)sent);
        }
        /* At the end of the file there is nothing to send. */
        EQUAL(sendfile(pair.near, file, with_offset ? &offset : NULL, 100), 0);
        pthread_join(reader, NULL);
        CHECK(reading.is_right);
        close_pair(&pair);
    }
    close(file);
}

STATEMENT(o2_sendfile_stops_when_full)
{
    enum { LENGTH = 30000000 };
    int file = make_file(LENGTH);
    struct pair pair = make_pair();
    set_blocking(pair.near, false);
    int small = 100000;
    EQUAL(setsockopt(pair.far, SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
    size_t sent = 0;
    ssize_t count;
    while ((count = sendfile(pair.near, file, NULL, LENGTH)) > 0)
        sent += count;
    EQUAL(count, -1);
    EQUAL(errno, EAGAIN);
    CHECK(sent > 0 && sent < LENGTH);
    EQUAL(lseek(file, 0, SEEK_CUR), (long long)sent);
    struct reading reading = { pair.far, sent, false };
    read_sequence(&reading);
    CHECK(reading.is_right);
    close_pair(&pair);
    close(file);
}

STATEMENT(o2_fortified_names_work)
{
    /* The sizes of these buffers are known and the lengths are not, so -D_FORTIFY_SOURCE calls __read_chk and its kin. */
    struct pair pair = make_pair();
    char buffer[64];
    volatile size_t length = 8;
    struct pollfd watched[1] = { { .fd = pair.near, .events = POLLIN } };
    volatile nfds_t count = 1;
    write_all(pair.far, "0123456789abcdef01234567", 24);
    EQUAL(poll(watched, count, 5000), 1);
    EQUAL(ppoll(watched, count, NULL, NULL), 1);
    EQUAL(read(pair.near, buffer, length), 8);
    EQUAL(recv(pair.near, buffer, length, MSG_WAITALL), 8);
    EQUAL(recvfrom(pair.near, buffer, length, MSG_WAITALL, NULL, NULL), 8);
    CHECK(memcmp(buffer, "01234567", 8) == 0);
    close_pair(&pair);
}

STATEMENT(flags_peek_dontwait_waitall_trunc)
{
    struct pair pair = make_pair();
    char in[32] = { 0 };
    FAILS(recv(pair.near, in, 32, MSG_DONTWAIT), EAGAIN);
    write_all(pair.far, "abcdefgh", 8);
    wait_for(pair.near, POLLIN);
    EQUAL(recv(pair.near, in, 4, MSG_PEEK), 4);
    CHECK(memcmp(in, "abcd", 4) == 0);
    EQUAL(recv(pair.near, in, 32, MSG_PEEK | MSG_DONTWAIT), 8);
    CHECK(memcmp(in, "abcdefgh", 8) == 0);
    EQUAL(recv(pair.near, in, 3, 0), 3);
    EQUAL(recv(pair.near, in, 32, MSG_PEEK), 5);
    CHECK(memcmp(in, "defgh", 5) == 0);
    /* On a stream MSG_TRUNC throws away. */
    memset(in, 0, sizeof in);
    EQUAL(recv(pair.near, in, 2, MSG_TRUNC), 2);
    EQUAL(in[0], 0);
    EQUAL(recv(pair.near, in, 32, 0), 3);
    CHECK(memcmp(in, "fgh", 3) == 0);
    /* MSG_WAITALL waits for all of it, and takes less only at the end of the stream. */
    write_all(pair.far, "12345", 5);
    write_all(pair.far, "67890", 5);
    EQUAL(recv(pair.near, in, 10, MSG_WAITALL), 10);
    CHECK(memcmp(in, "1234567890", 10) == 0);
    write_all(pair.far, "xyz", 3);
    EQUAL(shutdown(pair.far, SHUT_WR), 0);
    EQUAL(recv(pair.near, in, 32, MSG_WAITALL), 3);
    EQUAL(recv(pair.near, in, 32, MSG_WAITALL), 0);
    close_pair(&pair);
}

static void *write_slowly(void *argument)
{
    for (int i = 0; i < 5; i++) {
        pause_ms(30);
        write_all(*(int *)argument, "ab", 2);
    }
    return NULL;
}

STATEMENT(waitall_waits_over_many_arrivals)
{
    struct pair pair = make_pair();
    char in[10];
    pthread_t writer = start_thread(write_slowly, &pair.far);
    EQUAL(recv(pair.near, in, 10, MSG_WAITALL), 10);
    CHECK(memcmp(in, "ababababab", 10) == 0);
    pthread_join(writer, NULL);
    close_pair(&pair);
}

STATEMENT(i1_nothing_to_move_moves_nothing)
{
    struct pair pair = make_pair();
    char byte;
    EQUAL(write(pair.near, "", 0), 0);
    EQUAL(send(pair.near, "", 0, 0), 0);
    EQUAL(read(pair.near, &byte, 0), 0);
    EQUAL(recv(pair.near, &byte, 0, MSG_DONTWAIT) <= 0, true);
    close_pair(&pair);
}

STATEMENT(i1_bad_arguments_are_refused)
{
    struct pair pair = make_pair();
    int gone = dup(pair.near);
    close(gone);
    char byte = 0;
    FAILS(read(gone, &byte, 1), EBADF);
    FAILS(send(gone, &byte, 1, 0), EBADF);
    FAILS(close(gone), EBADF);
    FAILS(shutdown(gone, SHUT_RD), EBADF);
    FAILS(listen(gone, 1), EBADF);
    FAILS(accept(gone, NULL, NULL), EBADF);
    int ends[2];
    EQUAL(pipe(ends), 0);
    FAILS(send(ends[1], &byte, 1, 0), ENOTSOCK);
    FAILS(listen(ends[0], 1), ENOTSOCK);
    FAILS(shutdown(pair.near, 7), EINVAL);
    FAILS(accept(pair.near, NULL, NULL), EINVAL);
    FAILS(accept4(pair.near, NULL, NULL, 0x12345), EINVAL);
    FAILS(lseek(pair.near, 0, SEEK_CUR), ESPIPE);
    char *volatile nowhere = (char *)8;
    FAILS(write(pair.near, nowhere, 10), EFAULT);
    write_all(pair.far, "x", 1);
    wait_for(pair.near, POLLIN);
    FAILS(read(pair.near, nowhere, 10), EFAULT);
    /* What could not be delivered is still there. */
    EQUAL(read(pair.near, &byte, 1), 1);
    EQUAL(byte, 'x');
    FAILS(socket(AF_INET, 77, 0), EINVAL);
    FAILS(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    FAILS(socket(4711, SOCK_STREAM, 0), EAFNOSUPPORT);
    close(ends[0]);
    close(ends[1]);
    close_pair(&pair);
}

STATEMENT(a_socket_looks_like_one)
{
    struct pair pair = make_pair();
    struct stat status;
    EQUAL(fstat(pair.near, &status), 0);
    CHECK(S_ISSOCK(status.st_mode));
    int value;
    socklen_t length = sizeof value;
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_TYPE, &value, &length), 0);
    EQUAL(value, SOCK_STREAM);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_DOMAIN, &value, &length), 0);
    EQUAL(value, AF_INET);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_PROTOCOL, &value, &length), 0);
    EQUAL(value, IPPROTO_TCP);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_ACCEPTCONN, &value, &length), 0);
    EQUAL(value, 0);
    EQUAL(getsockopt(pair.near, SOL_SOCKET, SO_ERROR, &value, &length), 0);
    EQUAL(value, 0);
    close_pair(&pair);
}

STATEMENT(names_of_both_ends)
{
    struct sockaddr_in address, name, peer;
    int listener = listen_near(&address);
    int far = connect_far(&address);
    socklen_t length = sizeof name;
    int near = accept(listener, (struct sockaddr *)&name, &length);
    CHECK(near >= 0);
    EQUAL(length, sizeof name);
    length = sizeof peer;
    EQUAL(getpeername(near, (struct sockaddr *)&peer, &length), 0);
    CHECK(memcmp(&peer, &name, sizeof peer) == 0);
    EQUAL(getsockname(far, (struct sockaddr *)&name, &length), 0);
    CHECK(peer.sin_addr.s_addr == name.sin_addr.s_addr && peer.sin_port == name.sin_port);
    EQUAL(getsockname(near, (struct sockaddr *)&name, &length), 0);
    CHECK(name.sin_addr.s_addr == address.sin_addr.s_addr && name.sin_port == address.sin_port);
    FAILS(getpeername(listener, (struct sockaddr *)&name, &length), ENOTCONN);
    /* A short buffer gets what fits and is told the whole length. */
    struct sockaddr_in untouched = { .sin_port = 0x1234 };
    length = 2;
    EQUAL(getsockname(near, (struct sockaddr *)&untouched, &length), 0);
    EQUAL(length, sizeof name);
    EQUAL(untouched.sin_family, AF_INET);
    EQUAL(untouched.sin_port, 0x1234);
    int fresh = socket(AF_INET, SOCK_STREAM, 0);
    length = sizeof name;
    EQUAL(getsockname(fresh, (struct sockaddr *)&name, &length), 0);
    EQUAL(name.sin_family, AF_INET);
    EQUAL(name.sin_port, 0);
    close(fresh);
    close(near);
    close(far);
    close(listener);
}

STATEMENT(ioctls_tell_what_waits)
{
    struct pair pair = make_pair();
    int count = -1;
    EQUAL(ioctl(pair.near, FIONREAD, &count), 0);
    EQUAL(count, 0);
    write_all(pair.far, "0123456789", 10);
    for (int i = 0; i < 100 && count < 10; i++) {
        EQUAL(ioctl(pair.near, FIONREAD, &count), 0);
        pause_ms(5);
    }
    EQUAL(count, 10);
    char buffer[4];
    EQUAL(read(pair.near, buffer, 4), 4);
    EQUAL(ioctl(pair.near, FIONREAD, &count), 0);
    EQUAL(count, 6);
    int on = 1, off = 0;
    EQUAL(ioctl(pair.near, FIONBIO, &on), 0);
    CHECK(fcntl(pair.near, F_GETFL) & O_NONBLOCK);
    EQUAL(ioctl(pair.near, FIONBIO, &off), 0);
    CHECK(!(fcntl(pair.near, F_GETFL) & O_NONBLOCK));
    /* What the peer has acknowledged is no longer in the queue. */
    write_all(pair.near, "x", 1);
    for (int i = 0; i < 200; i++) {
        EQUAL(ioctl(pair.near, TIOCOUTQ, &count), 0);
        if (count == 0)
            break;
        pause_ms(5);
    }
    EQUAL(count, 0);
    close_pair(&pair);
}

STATEMENT(fcntl_flags_hold)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    EQUAL(fcntl(listener, F_GETFL) & O_ACCMODE, O_RDWR);
    EQUAL(fcntl(listener, F_GETFD), 0);
    EQUAL(fcntl(listener, F_SETFD, FD_CLOEXEC), 0);
    EQUAL(fcntl(listener, F_GETFD), FD_CLOEXEC);
    int far = connect_far(&address);
    int near = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(near >= 0);
    CHECK(fcntl(near, F_GETFL) & O_NONBLOCK);
    EQUAL(fcntl(near, F_GETFD), FD_CLOEXEC);
    char byte;
    FAILS(read(near, &byte, 1), EAGAIN);
    close(near);
    close(far);
    /* The listener's mode is not the connection's. */
    set_blocking(listener, false);
    far = connect_far(&address);
    wait_for(listener, POLLIN);
    near = accept(listener, NULL, NULL);
    CHECK(near >= 0);
    CHECK(!(fcntl(near, F_GETFL) & O_NONBLOCK));
    EQUAL(fcntl(near, F_GETFD), 0);
    FAILS(accept(listener, NULL, NULL), EAGAIN);
    close(near);
    close(far);
    close(listener);
    int both = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(fcntl(both, F_GETFL) & O_NONBLOCK);
    EQUAL(fcntl(both, F_GETFD), FD_CLOEXEC);
    close(both);
}

STATEMENT(duplicates_are_one_socket)
{
    struct pair pair = make_pair();
    int copies[] = { dup(pair.near), fcntl(pair.near, F_DUPFD, 100), fcntl(pair.near, F_DUPFD_CLOEXEC, 100), dup2(pair.near, 200), dup3(pair.near, 201, O_CLOEXEC) };
    CHECK(copies[1] >= 100);
    EQUAL(fcntl(copies[1], F_GETFD), 0);
    EQUAL(fcntl(copies[2], F_GETFD), FD_CLOEXEC);
    EQUAL(copies[3], 200);
    EQUAL(fcntl(copies[4], F_GETFD), FD_CLOEXEC);
    FAILS(dup3(pair.near, pair.near, 0), EINVAL);
    EQUAL(dup2(pair.near, pair.near), pair.near);
    /* The file's mode is shared, the stream too. */
    set_blocking(copies[0], false);
    CHECK(fcntl(pair.near, F_GETFL) & O_NONBLOCK);
    set_blocking(copies[0], true);
    write_all(pair.far, "abcdef", 6);
    EQUAL(close(pair.near), 0);
    for (int i = 0; i < 5; i++) {
        char byte;
        EQUAL(read(copies[i], &byte, 1), 1);
        EQUAL(byte, 'a' + i);
        EQUAL(close(copies[i]), 0);
    }
    /* The last one closed it, with a byte unread: a reset. */
    char byte;
    wait_for(pair.far, POLLIN);
    FAILS(read(pair.far, &byte, 1), ECONNRESET);
    close(pair.far);
}

STATEMENT(dup2_closes_what_it_replaces)
{
    struct pair pair = make_pair(), other = make_pair();
    EQUAL(dup2(other.near, pair.near), pair.near);
    expect_end(pair.far);
    close(other.near);
    write_all(pair.near, "x", 1);
    char byte;
    read_all(other.far, &byte, 1);
    EQUAL(byte, 'x');
    /* A socket's number may become a file's, and a file's a socket's. */
    int file = open("/dev/null", O_WRONLY);
    EQUAL(dup2(file, pair.near), pair.near);
    expect_end(other.far);
    EQUAL(write(pair.near, "gone", 4), 4);
    close(file);
    close(pair.near);
    close(pair.far);
    close(other.far);
}

STATEMENT(descriptors_take_the_lowest_number)
{
    int first = socket(AF_INET, SOCK_STREAM, 0), second = socket(AF_INET, SOCK_STREAM, 0);
    EQUAL(second, first + 1);
    close(first);
    int file = open("/dev/null", O_RDONLY);
    EQUAL(file, first);
    close(file);
    EQUAL(socket(AF_INET, SOCK_STREAM, 0), first);
    close(first);
    close(second);
}
