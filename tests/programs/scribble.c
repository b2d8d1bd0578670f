/*
 * A program gone mad: it connects, then fills every writable shared mapping that it has (a stack that keeps its state there
 * included) with random bytes, over and over for some seconds, and calls into the socket layer in between.
 *
 *   scribble ADDRESS PORT SECONDS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static sigjmp_buf fault;

static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(fault, 1);
}

static uint64_t next(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static int connect_to(const struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        connect(fd, (const struct sockaddr *)address, sizeof *address);
    return fd;
}

/* Random bytes over what lies between; in large mappings over pages here and there, so that much is hit in little time. */
static void scribble(uintptr_t start, uintptr_t end)
{
    size_t step = end - start > 64 << 20 ? 64 * 4096 : 8;
    for (volatile uint64_t *at = (uint64_t *)start; (uintptr_t)at < end; at += step / 8)
        *at = next();
}

static int scribble_shared(void)
{
    static char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        char access[5];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, access) == 3 && access[1] == 'w' && access[3] == 's') {
            scribble(start, end);
            count++;
        }
    }
    if (maps)
        fclose(maps);
    return count;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
    inet_pton(AF_INET, argv[1], &address.sin_addr);
    struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    int fds[8];
    for (int i = 0; i < 8; i++)
        fds[i] = connect_to(&address);
    usleep(200 * 1000);
    time_t end = time(NULL) + atoi(argv[3]);
    volatile int told = 0;
    /* The stack's library in this process may fault or hang on what it finds: that is this program's own harm. An alarm ends it. */
    alarm(atoi(argv[3]) + 2);
    while (time(NULL) < end) {
        if (sigsetjmp(fault, 1) == 0) {
            int mappings = scribble_shared();
            /* Straight to the kernel: nothing else in this process may work any more. */
            if (!told && mappings > 0)
                told = syscall(SYS_write, 1, "scribbled\n", 10) == 10;
            for (int i = 0; i < 8; i++) {
                uint64_t noise = next();
                if (write(fds[i], &noise, sizeof noise) < 0)
                    close(fds[i]), fds[i] = connect_to(&address);
            }
        }
    }
    _exit(told ? 0 : 3);
}
