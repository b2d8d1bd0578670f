/* Sockets among threads and processes, and signals amid calls. */
#include "harness.h"
#include <spawn.h>

extern char **environ;

static int shared[2];

static void *accept_one(void *argument)
{
    shared[0] = accept(*(int *)argument, NULL, NULL);
    CHECK(shared[0] >= 0);
    return NULL;
}

static void *read_five(void *unused)
{
    (void)unused;
    char buffer[5];
    read_all(shared[0], buffer, 5);
    CHECK(memcmp(buffer, "hello", 5) == 0);
    return NULL;
}

static void *close_it(void *unused)
{
    (void)unused;
    EQUAL(close(shared[0]), 0);
    return NULL;
}

STATEMENT(p1_accept_read_and_close_in_three_threads)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    for (int i = 0; i < 20; i++) {
        pthread_t thread = start_thread(accept_one, &listener);
        int far = connect_far(&address);
        pthread_join(thread, NULL);
        thread = start_thread(read_five, NULL);
        write_all(far, "hello", 5);
        pthread_join(thread, NULL);
        pthread_join(start_thread(close_it, NULL), NULL);
        expect_end(far);
        close(far);
    }
    close(listener);
}

enum { STREAM = 2000000 };

static void *write_stream(void *argument)
{
    static __thread char block[10000];
    for (size_t at = 0; at < STREAM; at += sizeof block) {
        fill(block, sizeof block, at);
        write_all(*(int *)argument, block, sizeof block);
    }
    return NULL;
}

static void *read_stream(void *argument)
{
    static __thread char block[10000];
    for (size_t at = 0; at < STREAM; at += sizeof block) {
        read_all(*(int *)argument, block, sizeof block);
        CHECK(matches(block, sizeof block, at));
    }
    return NULL;
}

STATEMENT(p1_one_thread_reads_while_another_writes)
{
    struct pair pair = make_pair();
    pthread_t threads[] = { start_thread(write_stream, &pair.near), start_thread(read_stream, &pair.near),
                            start_thread(write_stream, &pair.far), start_thread(read_stream, &pair.far) };
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    close_pair(&pair);
}

STATEMENT(p1_many_threads_each_with_its_own)
{
    struct pair pairs[8];
    pthread_t threads[16];
    for (int i = 0; i < 8; i++) {
        pairs[i] = make_pair();
        threads[2 * i] = start_thread(i % 2 ? write_stream : read_stream, &pairs[i].near);
        threads[2 * i + 1] = start_thread(i % 2 ? read_stream : write_stream, &pairs[i].far);
    }
    for (int i = 0; i < 16; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 8; i++)
        close_pair(&pairs[i]);
}

static volatile int accepted_count;

static void *accept_many(void *argument)
{
    for (;;) {
        int fd = accept(*(int *)argument, NULL, NULL);
        if (fd < 0)
            return NULL;
        __sync_fetch_and_add(&accepted_count, 1);
        close(fd);
    }
}

STATEMENT(p1_many_threads_accept_from_one_listener)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        threads[i] = start_thread(accept_many, &listener);
    for (int i = 0; i < 100; i++) {
        int far = connect_far(&address);
        expect_end(far);
        close(far);
    }
    EQUAL(shutdown(listener, SHUT_RDWR), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    EQUAL(accepted_count, 100);
    close(listener);
}

/* A thread with a listener of its own, which shares the address with the others', and a set to wait in. */
struct member {
    struct sockaddr_in address;
    int listener, stop, taken;
};

static void *serve_as_member(void *argument)
{
    struct member *self = argument;
    int set = epoll_create1(0), one = 1;
    self->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    EQUAL(setsockopt(self->listener, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
    EQUAL(bind(self->listener, (struct sockaddr *)&self->address, sizeof self->address), 0);
    EQUAL(listen(self->listener, 64), 0);
    struct epoll_event event = { .events = EPOLLIN };
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, self->listener, &event), 0);
    event.data.u32 = 1;
    EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, self->stop, &event), 0);
    /* It is ready. */
    EQUAL(write(self->stop, "", 1), 1);
    for (;;) {
        EQUAL(epoll_wait(set, &event, 1, -1), 1);
        if (event.data.u32)
            break;
        int fd = accept(self->listener, NULL, NULL);
        CHECK(fd >= 0);
        self->taken++;
        close(fd);
    }
    close(self->listener);
    close(set);
    return NULL;
}

STATEMENT(p1_threads_listen_in_a_group)
{
    /* Fewer than there are shards, as many, more. */
    for (int count = 1; count <= 5; count++) {
        struct sockaddr_in address;
        socklen_t length = sizeof address;
        /* Holds the port, and does not listen. */
        int holder = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        EQUAL(setsockopt(holder, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
        address = near_address(0);
        EQUAL(bind(holder, (struct sockaddr *)&address, sizeof address), 0);
        EQUAL(getsockname(holder, (struct sockaddr *)&address, &length), 0);
        struct member members[5] = { 0 };
        pthread_t threads[5];
        int ends[5];
        for (int i = 0; i < count; i++) {
            int pair[2];
            char byte;
            EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
            members[i].address = address;
            members[i].stop = pair[0];
            ends[i] = pair[1];
            threads[i] = start_thread(serve_as_member, &members[i]);
            EQUAL(read(ends[i], &byte, 1), 1);
        }
        for (int i = 0; i < 100; i++) {
            int far = connect_far(&address);
            expect_end(far);
            close(far);
        }
        int taken = 0;
        for (int i = 0; i < count; i++) {
            EQUAL(write(ends[i], "", 1), 1);
            pthread_join(threads[i], NULL);
            close(ends[i]);
            close(members[i].stop);
            CHECK(members[i].taken > 0);
            taken += members[i].taken;
        }
        EQUAL(taken, 100);
        close(holder);
    }
}

static void expect_good_end(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0)
        CHECK(errno == EINTR);
    EQUAL(status, 0);
}

STATEMENT(p5_fork_shares_sockets)
{
    struct pair pair = make_pair();
    write_all(pair.far, "for the child", 13);
    pid_t child = fork_child();
    if (child == 0) {
        char buffer[13];
        read_all(pair.near, buffer, 13);
        CHECK(memcmp(buffer, "for the child", 13) == 0);
        write_all(pair.near, "from the child", 14);
        /* The child's end is not the connection's. */
        _exit(0);
    }
    char buffer[14];
    read_all(pair.far, buffer, 14);
    CHECK(memcmp(buffer, "from the child", 14) == 0);
    expect_good_end(child);
    struct pollfd watched = { .fd = pair.far, .events = POLLIN };
    EQUAL(poll(&watched, 1, 50), 0);
    write_all(pair.near, "parent", 6);
    read_all(pair.far, buffer, 6);
    close(pair.near);
    expect_end(pair.far);
    close(pair.far);
}

STATEMENT(p5_a_child_keeps_what_its_parent_closes)
{
    struct pair pair = make_pair();
    int ends[2];
    EQUAL(pipe(ends), 0);
    pid_t child = fork_child();
    if (child == 0) {
        char byte;
        read_all(ends[0], &byte, 1);
        write_all(pair.near, "still here", 10);
        _exit(0);
    }
    EQUAL(close(pair.near), 0);
    struct pollfd watched = { .fd = pair.far, .events = POLLIN };
    EQUAL(poll(&watched, 1, 50), 0);
    write_all(ends[1], "x", 1);
    char buffer[10];
    read_all(pair.far, buffer, 10);
    CHECK(memcmp(buffer, "still here", 10) == 0);
    expect_good_end(child);
    expect_end(pair.far);
    close(pair.far);
}

STATEMENT(p5_children_accept_from_one_listener)
{
    /* As servers with worker processes do. */
    struct sockaddr_in address;
    int listener = listen_near(&address);
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = fork_child();
        if (children[i] == 0) {
            for (;;) {
                int fd = accept(listener, NULL, NULL);
                char byte;
                if (fd < 0 || read(fd, &byte, 1) != 1 || byte == 'q')
                    _exit(fd < 0);
                write_all(fd, &byte, 1);
                close(fd);
            }
        }
    }
    for (int i = 0; i < 60; i++) {
        int far = connect_far(&address);
        char byte = 'a' + i % 10, answer;
        write_all(far, &byte, 1);
        read_all(far, &answer, 1);
        EQUAL(answer, byte);
        close(far);
    }
    for (int i = 0; i < 3; i++) {
        int far = connect_far(&address);
        write_all(far, "q", 1);
        expect_end(far);
        close(far);
    }
    for (int i = 0; i < 3; i++)
        expect_good_end(children[i]);
    close(listener);
}

STATEMENT(p5_children_wait_in_their_own_sets)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    set_blocking(listener, false);
    pid_t child = fork_child();
    if (child == 0) {
        int set = epoll_create1(0);
        struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
        EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), 0);
        EQUAL(epoll_wait(set, &event, 1, 10000), 1);
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        event = (struct epoll_event){ .events = EPOLLIN, .data.fd = fd };
        EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
        EQUAL(epoll_wait(set, &event, 1, 10000), 1);
        EQUAL(event.data.fd, fd);
        char byte;
        EQUAL(read(fd, &byte, 1), 1);
        write_all(fd, &byte, 1);
        _exit(0);
    }
    int far = connect_far(&address);
    write_all(far, "x", 1);
    char byte;
    read_all(far, &byte, 1);
    expect_good_end(child);
    close(far);
    close(listener);
}

static int echo_one(const char *argument)
{
    char byte;
    int fd = atoi(argument);
    if (read(fd, &byte, 1) != 1 || write(fd, &byte, 1) != 1)
        return 1;
    return 0;
}

static int expect_closed(const char *argument)
{
    char byte;
    return read(atoi(argument), &byte, 1) == -1 && errno == EBADF ? 0 : 1;
}

static int accept_echo(const char *argument)
{
    int fd = accept(atoi(argument), NULL, NULL);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    return fd < 0 ? 1 : echo_one(number);
}

/* A line from standard input, and an answer, by the C library's streams. */
static int greet(const char *greeting)
{
    char name[32];
    if (scanf("%31s", name) != 1)
        return 1;
    printf("%s ", greeting);
    puts(name);
    return fprintf(stderr, ".") != 1;
}

__attribute__((constructor)) static void add_commands(void)
{
    add_command("echo-one", echo_one);
    add_command("expect-closed", expect_closed);
    add_command("accept-echo", accept_echo);
    add_command("greet", greet);
}

/* Runs a command of this program by fork and exec, with a descriptor's number. */
static pid_t run_command(const char *name, int fd)
{
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    pid_t child = fork_child();
    if (child == 0) {
        execl(own_path, own_path, "--command", name, number, NULL);
        _exit(127);
    }
    CHECK(child > 0);
    return child;
}

STATEMENT(p5_exec_inherits_sockets)
{
    struct pair pair = make_pair();
    write_all(pair.far, "x", 1);
    expect_good_end(run_command("echo-one", pair.near));
    char byte;
    read_all(pair.far, &byte, 1);
    EQUAL(byte, 'x');
    /* And as standard input and output, as inetd does it. */
    write_all(pair.far, "y", 1);
    pid_t child = fork_child();
    if (child == 0) {
        dup2(pair.near, 0);
        dup2(pair.near, 1);
        execl("/bin/sh", "sh", "-c", "exec dd bs=1 count=1 status=none", NULL);
        _exit(127);
    }
    expect_good_end(child);
    read_all(pair.far, &byte, 1);
    EQUAL(byte, 'y');
    close_pair(&pair);
}

STATEMENT(p5_standard_streams_can_be_sockets)
{
    /* After an exec, as under inetd, and without one. */
    for (int exec = 0; exec < 2; exec++) {
        struct pair pair = make_pair();
        write_all(pair.far, "world\n", 6);
        pid_t child = fork_child();
        if (child == 0) {
            for (int fd = 0; fd < 3; fd++)
                dup2(pair.near, fd);
            if (exec)
                execl(own_path, own_path, "--command", "greet", "hello", NULL);
            else if (greet("hello") == 0)
                exit(0);
            _exit(127);
        }
        char answer[13];
        /* Standard output is buffered by lines here, standard error is not. */
        read_all(pair.far, answer, 13);
        CHECK(memcmp(answer, "hello world\n.", 13) == 0);
        expect_good_end(child);
        close_pair(&pair);
    }
}

STATEMENT(p5_exec_inherits_listeners)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    pid_t child = run_command("accept-echo", listener);
    close(listener);
    int far = connect_far(&address);
    write_all(far, "x", 1);
    char byte;
    read_all(far, &byte, 1);
    expect_good_end(child);
    close(far);
}

STATEMENT(p5_close_on_exec_is_honoured)
{
    struct pair pair = make_pair();
    EQUAL(fcntl(pair.near, F_SETFD, FD_CLOEXEC), 0);
    expect_good_end(run_command("expect-closed", pair.near));
    /* The parent's is open still; the child's copy held nothing back. */
    write_all(pair.near, "x", 1);
    char byte;
    read_all(pair.far, &byte, 1);
    pid_t child = fork_child();
    if (child == 0) {
        execl("/bin/sleep", "sleep", "10", NULL);
        _exit(127);
    }
    pause_ms(100);
    close(pair.near);
    expect_end(pair.far);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(pair.far);
}

STATEMENT(p5_spawned_programs_inherit_sockets)
{
    struct pair pair = make_pair();
    char number[16];
    snprintf(number, sizeof number, "%d", pair.near);
    char *arguments[] = { (char *)own_path, "--command", "echo-one", number, NULL };
    write_all(pair.far, "x", 1);
    pid_t child;
    EQUAL(posix_spawn(&child, own_path, NULL, NULL, arguments, environ), 0);
    expect_good_end(child);
    char byte;
    read_all(pair.far, &byte, 1);
    /* And a shell run in between harms nothing. */
    EQUAL(system("exit 3") >> 8, 3);
    FILE *shell = popen("echo hello", "r");
    CHECK(shell);
    char line[16];
    CHECK(fgets(line, sizeof line, shell) && strcmp(line, "hello\n") == 0);
    EQUAL(pclose(shell), 0);
    write_all(pair.near, "y", 1);
    read_all(pair.far, &byte, 1);
    EQUAL(byte, 'y');
    close_pair(&pair);
}

STATEMENT(p5_a_grandchild_serves_on)
{
    /* As daemons start: the first process ends, its grandchild goes on. */
    struct pair pair = make_pair();
    pid_t child = fork_child();
    if (child == 0) {
        if (fork() == 0) {
            setsid();
            char byte;
            read_all(pair.near, &byte, 1);
            write_all(pair.near, "daemon", 6);
            _exit(0);
        }
        _exit(0);
    }
    expect_good_end(child);
    EQUAL(close(pair.near), 0);
    write_all(pair.far, "x", 1);
    char buffer[6];
    read_all(pair.far, buffer, 6);
    expect_end(pair.far);
    close(pair.far);
}

STATEMENT(p5_a_child_that_is_killed_takes_nothing_along)
{
    struct pair pair = make_pair(), own = make_pair();
    pid_t child = fork_child();
    if (child == 0) {
        close(pair.far);
        close(own.far);
        for (;;)
            pause();
    }
    EQUAL(close(own.near), 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    /* What it alone held ends; what the parent holds too does not. */
    expect_end(own.far);
    write_all(pair.near, "x", 1);
    char byte;
    read_all(pair.far, &byte, 1);
    close(own.far);
    close_pair(&pair);
}

STATEMENT(descriptors_pass_over_unix_sockets_or_are_refused)
{
    struct pair pair = make_pair();
    int ends[2];
    EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    pid_t child = fork_child();
    if (child == 0) {
        close(pair.near);
        char byte, control[CMSG_SPACE(sizeof(int))];
        struct iovec part = { &byte, 1 };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
        EQUAL(recvmsg(ends[1], &message, 0), 1);
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        write_all(fd, "passed", 6);
        _exit(0);
    }
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
    memcpy(CMSG_DATA(head), &pair.near, sizeof(int));
    if (sendmsg(ends[0], &message, 0) < 0) {
        EQUAL(errno, EOPNOTSUPP);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close_pair(&pair);
        return;
    }
    char buffer[6];
    read_all(pair.far, buffer, 6);
    CHECK(memcmp(buffer, "passed", 6) == 0);
    expect_good_end(child);
    close_pair(&pair);
}

static int handler_fd;
static volatile int handled;

static void send_in_handler(int signal)
{
    (void)signal;
    int saved = errno;
    if (send(handler_fd, "s", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
        handled++;
    struct pollfd watched = { .fd = handler_fd, .events = POLLIN };
    poll(&watched, 1, 0);
    errno = saved;
}

STATEMENT(p6_a_signal_handler_uses_a_socket_amid_calls)
{
    struct pair pair = make_pair(), other = make_pair();
    handler_fd = other.near;
    struct sigaction action = { .sa_handler = send_in_handler, .sa_flags = SA_RESTART };
    EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
    struct pester *pester = pester_me(SIGUSR1, 1);
    char out[1000], in[1000];
    for (int i = 0; i < 2000 || handled < 20; i++) {
        fill(out, sizeof out, i * 1000L);
        write_all(pair.near, out, sizeof out);
        read_all(pair.far, in, sizeof in);
        CHECK(matches(in, sizeof in, i * 1000L));
        write_all(pair.far, in, sizeof in);
        read_all(pair.near, in, sizeof in);
        CHECK(matches(in, sizeof in, i * 1000L));
    }
    stop_pestering(pester);
    for (int i = 0; i < handled; i++) {
        char byte;
        read_all(other.far, &byte, 1);
        EQUAL(byte, 's');
    }
    close_pair(&pair);
    close_pair(&other);
}

/* A malloc of the program's own that asks about a socket each time: what a library calls inside a socket call comes by here. */
extern void *__libc_malloc(size_t size);
static __thread bool in_malloc;
static volatile int hooked_fd = -1;

void *malloc(size_t size)
{
    if (hooked_fd >= 0 && !in_malloc) {
        in_malloc = true;
        int saved = errno, value;
        socklen_t length = sizeof value;
        getsockopt(hooked_fd, SOL_SOCKET, SO_ERROR, &value, &length);
        send(hooked_fd, "m", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        errno = saved;
        in_malloc = false;
    }
    return __libc_malloc(size);
}

STATEMENT(p6_a_malloc_hook_uses_a_socket_amid_calls)
{
    struct pair hooked = make_pair();
    hooked_fd = hooked.near;
    for (int i = 0; i < 20; i++) {
        struct pair pair = make_pair();
        int set = epoll_create1(0);
        struct epoll_event event = { .events = EPOLLIN };
        EQUAL(epoll_ctl(set, EPOLL_CTL_ADD, pair.near, &event), 0);
        write_all(pair.far, "x", 1);
        EQUAL(epoll_wait(set, &event, 1, 5000), 1);
        char byte;
        EQUAL(read(pair.near, &byte, 1), 1);
        void *volatile block = malloc(100);
        free(block);
        close(set);
        close_pair(&pair);
    }
    hooked_fd = -1;
    char byte;
    read_all(hooked.far, &byte, 1);
    EQUAL(byte, 'm');
    close_pair(&hooked);
}

STATEMENT(i7_signals_interrupt_blocked_calls)
{
    struct pair pair = make_pair();
    struct sockaddr_in address;
    int listener = listen_near(&address);
    char byte;
    count_signal(SIGUSR1, 0);
    struct pester *pester = pester_me(SIGUSR1, 30);
    FAILS(read(pair.near, &byte, 1), EINTR);
    FAILS(recv(pair.near, &byte, 1, 0), EINTR);
    FAILS(recv(pair.near, &byte, 1, MSG_PEEK), EINTR);
    struct iovec part = { &byte, 1 };
    FAILS(readv(pair.near, &part, 1), EINTR);
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    FAILS(recvmsg(pair.near, &message, 0), EINTR);
    FAILS(accept(listener, NULL, NULL), EINTR);
    FAILS(accept4(listener, NULL, NULL, 0), EINTR);
    stop_pestering(pester);
    static char block[1 << 20];
    /* A write that has moved something says how much, one that has not is interrupted. */
    fill_up(pair.near);
    pester = pester_me(SIGUSR1, 30);
    for (int i = 0; i < 4; i++) {
        ssize_t count = i % 2 ? write(pair.near, block, sizeof block) : send(pair.near, block, sizeof block, 0);
        CHECK(count < 0 ? errno == EINTR : count < (ssize_t)sizeof block);
    }
    stop_pestering(pester);
    close(listener);
    close_pair(&pair);
}

static void *write_hello_later(void *argument)
{
    pause_ms(200);
    write_all(*(int *)argument, "hello", 5);
    return NULL;
}

STATEMENT(i7_restarting_signals_do_not)
{
    struct pair pair = make_pair();
    char buffer[5];
    count_signal(SIGUSR1, SA_RESTART);
    struct pester *pester = pester_me(SIGUSR1, 30);
    pthread_t writer = start_thread(write_hello_later, &pair.far);
    EQUAL(recv(pair.near, buffer, 5, MSG_WAITALL), 5);
    CHECK(signals_seen > 0);
    pthread_join(writer, NULL);
    stop_pestering(pester);
    close_pair(&pair);
}
