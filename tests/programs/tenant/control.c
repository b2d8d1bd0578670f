/* The control socket: requests that make sense, and requests that do not. */
#define _GNU_SOURCE
#include "tenant.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

struct request {
    uint32_t version, kind;
    uint8_t token[16];
    uint64_t arguments[4];
};

struct answer {
    int32_t error;
    uint32_t version;
    uint64_t words[WORDS];
};

enum { SENT_MAX = 8, RECEIVED_MAX = 253, PAYLOAD_MAX = 512 };

/* By the name, or the path, of the engine's control socket. */
int control_connect(const char *engine)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    socklen_t length;
    size_t len = strlen(engine);
    if (len + 16 > sizeof address.sun_path)
        return -1;
    if (engine[0] == '/') {
        strcpy(address.sun_path, engine);
        length = sizeof address;
    } else {
        memcpy(address.sun_path + 1, "millrace/", 9);
        memcpy(address.sun_path + 10, engine, len);
        length = offsetof(struct sockaddr_un, sun_path) + 10 + len;
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct timeval patience = { 20, 0 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, length) < 0)
        return close(fd), -1;
    return fd;
}

static int send_with(int fd, const void *packet, size_t len, const int *descriptors, unsigned count)
{
    char space[CMSG_SPACE(SENT_MAX * sizeof(int))] = { 0 };
    struct iovec piece = { (void *)packet, len };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
    if (count) {
        message.msg_control = space;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(rights), descriptors, count * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -1;
}

/* Receives an answer; its descriptors are kept, those of an attach used. */
static int receive(struct tenant *tenant, int fd, struct answer *answer, int *descriptors, unsigned *count, int flags)
{
    static char space[CMSG_SPACE(RECEIVED_MAX * sizeof(int))];
    struct iovec piece = { answer, sizeof *answer };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
    ssize_t len = recvmsg(fd, &message, flags | MSG_CMSG_CLOEXEC);
    *count = 0;
    if (len < 0)
        return -1;
    for (struct cmsghdr *rights = CMSG_FIRSTHDR(&message); rights; rights = CMSG_NXTHDR(&message, rights))
        if (rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
            *count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(descriptors, CMSG_DATA(rights), *count * sizeof(int));
            for (unsigned at = 0; at < *count; at++)
                keep(tenant, descriptors[at]);
        }
    return len == sizeof *answer ? 0 : -1;
}

static int call(struct tenant *tenant, int fd, enum kind kind, const uint64_t arguments[4], struct answer *answer, int *descriptors,
                unsigned *count)
{
    struct request request = { .version = tenant->version, .kind = kind };
    memcpy(request.token, tenant->token, 16);
    if (arguments)
        memcpy(request.arguments, arguments, sizeof request.arguments);
    if (send_with(fd, &request, sizeof request, NULL, 0) < 0 || receive(tenant, fd, answer, descriptors, count, 0) < 0)
        return -1;
    return answer->error;
}

/* Attaches this process as the shim does, and maps the region. */
int attach(struct tenant *tenant, uint64_t ticket)
{
    int fd = control_connect(tenant->engine), descriptors[RECEIVED_MAX];
    unsigned count;
    struct answer answer;
    if (fd < 0)
        return -1;
    if (!tenant->version) {
        /* An engine says its version in every answer. */
        call(tenant, fd, POLLER, NULL, &answer, descriptors, &count);
        tenant->version = answer.version;
    }
    int *place = &tenant->controls[0];
    if (*place >= 0)
        place = &tenant->controls[below(tenant, CONTROLS)];
    if (*place >= 0)
        close(*place);
    *place = fd;
    uint64_t arguments[4] = { ticket, tenant->depth ? tenant->process + 1 : 0, 0, 0 };
    if (call(tenant, fd, ATTACH, arguments, &answer, descriptors, &count) != 0)
        return -1;
    const uint64_t *words = answer.words;
    tenant->slots = words[0] >> 32, tenant->contexts = (uint32_t)words[0];
    tenant->pollers = words[1] >> 32, tenant->shards = (uint32_t)words[1];
    tenant->arena = words[2];
    tenant->process = words[3] >> 32, tenant->context = (uint32_t)words[3];
    tenant->own_contexts = words[4] >> 32, tenant->engine_pid = (uint32_t)words[4];
    if (count > 0 && !tenant->region) {
        off_t size = lseek(descriptors[0], 0, SEEK_END);
        void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptors[0], 0);
        if (mapped == MAP_FAILED)
            return -1;
        tenant->region = mapped;
        tenant->region_size = size;
    }
    return 0;
}

/* An argument that may mean something. */
static uint64_t some_argument(struct tenant *tenant)
{
    switch (below(tenant, 8)) {
    case 0: case 1:
        return tenant->ticket_count ? tenant->tickets[below(tenant, tenant->ticket_count)] : 1;
    case 2:
        return tenant->poller_count ? tenant->known_pollers[below(tenant, tenant->poller_count)] : 0;
    case 3:
        return getpid();
    case 4:
        return getppid();
    case 5:
        return tenant->engine_pid;
    default:
        return some_word(tenant);
    }
}

static size_t some_payload(struct tenant *tenant, uint64_t *payload)
{
    size_t count = below(tenant, 8) ? below(tenant, 8) : below(tenant, PAYLOAD_MAX / 8);
    for (size_t at = 0; at < count; at++)
        payload[at] = tenant->slot_count && below(tenant, 8) ? tenant->known_slots[below(tenant, tenant->slot_count)]
                                                             : some_word(tenant);
    return count * 8;
}

static void remember(struct tenant *tenant, uint32_t kind, const struct answer *answer)
{
    if (kind == FORK)
        tenant->tickets[tenant->ticket_count < TICKETS ? tenant->ticket_count++ : below(tenant, TICKETS)] = answer->words[0];
    if (kind == POLLER)
        tenant->known_pollers[tenant->poller_count < POLLERS ? tenant->poller_count++ : below(tenant, POLLERS)] =
            answer->words[0];
}

/* One request, right or wrong, with descriptors or without, whose answer is read or not. */
void say_something(struct tenant *tenant)
{
    int *place = &tenant->controls[below(tenant, 3) ? 0 : below(tenant, CONTROLS)];
    if (*place < 0 || below(tenant, 40) == 0) {
        if (*place >= 0)
            close(*place);
        *place = control_connect(tenant->engine);
        if (below(tenant, 2))
            return;
    }
    static const uint8_t likely[] = { ATTACH, FORK, FORKED, POLLER, POLLER, POLLER_GONE, HOLDS, PASS, PASS, CLAIM, CLAIM };
    uint64_t packet[7 + PAYLOAD_MAX / 8 + 8];
    struct request *request = (struct request *)packet;
    uint32_t kind = below(tenant, 8) ? likely[below(tenant, sizeof likely)] : below(tenant, 8) ? below(tenant, KINDS + 2) : some_word(tenant);
    *request = (struct request){ .version = below(tenant, 30) ? tenant->version : (uint32_t)some_word(tenant), .kind = kind };
    memcpy(request->token, tenant->token, 16);
    if (below(tenant, 12) == 0)
        request->token[below(tenant, 16)] ^= 1 << below(tenant, 8);
    for (int at = 0; at < 4; at++)
        request->arguments[at] = below(tenant, 3) ? some_argument(tenant) : below(tenant, 2);
    size_t len = sizeof *request + some_payload(tenant, packet + 7);
    if (below(tenant, 20) == 0)
        len = below(tenant, len + 1);
    int descriptors[SENT_MAX];
    unsigned count = kind == CLAIM || below(tenant, 8) == 0 ? below(tenant, SENT_MAX) : 0;
    for (unsigned at = 0; at < count; at++)
        descriptors[at] = some_descriptor(tenant);
    if (send_with(*place, packet, len, descriptors, count) < 0 && errno != EBADF) {
        close(*place);
        *place = -1;
        return;
    }
    if (below(tenant, 6) == 0)
        return;
    struct answer answer = { 0 };
    int came[RECEIVED_MAX];
    unsigned many;
    int flags = kind == FORKED || kind == POLLER_GONE ? MSG_DONTWAIT : 0;
    if (receive(tenant, *place, &answer, came, &many, flags) == 0 && answer.error == 0)
        remember(tenant, kind, &answer);
}

uint64_t announce(struct tenant *tenant)
{
    struct answer answer = { 0 };
    int came[RECEIVED_MAX];
    unsigned many;
    uint64_t arguments[4] = { below(tenant, 2), 0, 0, 0 };
    if (tenant->controls[0] < 0 || call(tenant, tenant->controls[0], FORK, arguments, &answer, came, &many) != 0)
        return 0;
    remember(tenant, FORK, &answer);
    return answer.words[0];
}

void tell_of_fork(struct tenant *tenant, uint64_t ticket, pid_t child)
{
    struct request request = { .version = tenant->version, .kind = FORKED, .arguments = { ticket, child < 0 ? 0 : child, 0, 0 } };
    memcpy(request.token, tenant->token, 16);
    if (tenant->controls[0] >= 0)
        send_with(tenant->controls[0], &request, sizeof request, NULL, 0);
}
