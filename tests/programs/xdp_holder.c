/* Holds queue 0 of a device by an AF_XDP socket, and does nothing with it: xdp_holder DEVICE. */
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHUNK 4096
#define CHUNKS 64

static void check(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int option, size = CHUNKS;
    int rings[] = { XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING };
    check(argc != 2, "xdp_holder DEVICE");
    int fd = socket(AF_XDP, SOCK_RAW, 0);
    check(fd < 0, "socket");
    void *memory = mmap(0, CHUNKS * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory == MAP_FAILED, "mmap");
    struct xdp_umem_reg umem = { .addr = (uintptr_t)memory, .len = CHUNKS * CHUNK, .chunk_size = CHUNK };
    check(setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof umem), "XDP_UMEM_REG");
    for (option = 0; option < 3; option++)
        check(setsockopt(fd, SOL_XDP, rings[option], &size, sizeof size), "a ring");
    struct sockaddr_xdp address = { .sxdp_family = AF_XDP, .sxdp_flags = XDP_COPY, .sxdp_ifindex = if_nametoindex(argv[1]) };
    check(bind(fd, (struct sockaddr *)&address, sizeof address), "bind");
    puts("holds it");
    fflush(stdout);
    pause();
    return 0;
}
