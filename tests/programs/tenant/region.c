/* The region: submissions that make sense, and bytes that do not. Offsets are those of crates/context/src/layout.rs. */
#define _GNU_SOURCE
#include "tenant.h"

#include <arpa/inet.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGE = 4096, SLOT = 256, SUBMISSIONS = 1024, ENTRY = 64, STAGING = 256 << 10, CONTEXT = PAGE + SUBMISSIONS * ENTRY + STAGING,
    POLLER_HEAD = 3 * PAGE, HINTS = 4096, TAIL = 0, STAGING_TAIL = 8, HEAD = 64, REPLY = 192, OPERATIONS = 19
};

enum operation { NOP = 1, SOCKET, BIND, LISTEN, CONNECT, ACCEPTED, SEND, CONSUMED, SHUTDOWN, CLOSE, WATCH, SEND_TO = 16 };

static size_t contexts_at(const struct tenant *tenant)
{
    return 2 * PAGE + ((size_t)tenant->slots * SLOT + PAGE - 1) / PAGE * PAGE;
}

static size_t pollers_at(const struct tenant *tenant)
{
    return contexts_at(tenant) + (size_t)tenant->contexts * CONTEXT;
}

static size_t poller_size(const struct tenant *tenant)
{
    return POLLER_HEAD + (size_t)tenant->shards * HINTS * 4;
}

static size_t arena_at(const struct tenant *tenant)
{
    return pollers_at(tenant) + (size_t)tenant->pollers * poller_size(tenant);
}

static uint64_t slots_of(struct tenant *tenant)
{
    return tenant->slot_count ? (uint32_t)tenant->known_slots[below(tenant, tenant->slot_count)] % tenant->slots
                              : below(tenant, tenant->slots);
}

/* A part of the region that somebody uses, and how long it is. */
static size_t some_place(struct tenant *tenant, size_t *len)
{
    switch (below(tenant, 8)) {
    case 0:
        *len = 2 * PAGE;
        return 0;
    case 1: case 2:
        *len = SLOT;
        return 2 * PAGE + slots_of(tenant) * SLOT;
    case 3: case 4:
        *len = below(tenant, 2) ? 1024 : PAGE + SUBMISSIONS * ENTRY;
        return contexts_at(tenant) + (size_t)(tenant->context + below(tenant, 4 * tenant->shards)) % tenant->contexts * CONTEXT;
    case 5:
        *len = poller_size(tenant);
        return pollers_at(tenant) + below(tenant, 4) * poller_size(tenant);
    case 6:
        *len = 1 << 20;
        return arena_at(tenant);
    default:
        /* Elsewhere, but not everywhere: what is written takes memory. */
        *len = PAGE;
        return below(tenant, tenant->region_size / (1 << 20)) * (1 << 20);
    }
}

void scribble(struct tenant *tenant)
{
    size_t len, at, count = below(tenant, 8) ? 1 + below(tenant, 8) : 512;
    if (!tenant->region)
        return;
    at = some_place(tenant, &len);
    size_t from = below(tenant, len / 8) * 8;
    int in_a_row = below(tenant, 2);
    for (size_t done = 0; done < count; done++) {
        size_t offset = at + (in_a_row ? (from + 8 * done) % len : below(tenant, len / 8) * 8);
        if (offset + 8 <= tenant->region_size) {
            volatile uint64_t *word = (volatile uint64_t *)(tenant->region + offset);
            *word = below(tenant, 4) ? some_word(tenant) : *word + below(tenant, 64) - 32;
        }
    }
}

/* One of this process's contexts for a shard. */
static uint8_t *some_context(struct tenant *tenant)
{
    uint32_t own = tenant->own_contexts * tenant->shards;
    uint32_t index = tenant->context + below(tenant, own ? own : 1);
    return tenant->region + contexts_at(tenant) + (size_t)(index % tenant->contexts) * CONTEXT;
}

static void ring_shards(struct tenant *tenant)
{
    uint64_t one = 1;
    /* The doorbells came behind the region, one for each shard. */
    for (uint32_t shard = 0; shard < tenant->shards && shard + 1 < tenant->descriptor_count; shard++)
        if (write(tenant->descriptors[shard + 1], &one, 8) < 0)
            continue;
}

static void put(struct tenant *tenant, uint8_t *context, const uint64_t entry[8], uint32_t staged)
{
    uint32_t *tail = (uint32_t *)(context + TAIL);
    uint64_t *staging = (uint64_t *)(context + STAGING_TAIL);
    uint32_t at = __atomic_load_n(tail, __ATOMIC_RELAXED);
    (void)tenant;
    memcpy(context + PAGE + (size_t)(at % SUBMISSIONS) * ENTRY, entry, ENTRY);
    __atomic_store_n(staging, __atomic_load_n(staging, __ATOMIC_RELAXED) + staged, __ATOMIC_RELEASE);
    __atomic_store_n(tail, at + 1, __ATOMIC_RELEASE);
}

static void some_address(struct tenant *tenant, uint64_t *arguments)
{
    static const char *const hosts[] = { "127.0.0.1", "0.0.0.0", "10.9.0.1", "10.9.0.2", "10.9.0.77", "224.0.0.5", "255.255.255.255" };
    uint8_t address[16] = { [10] = 0xff, [11] = 0xff };
    inet_pton(AF_INET, hosts[below(tenant, sizeof hosts / sizeof *hosts)], address + 12);
    memcpy(arguments, address, 16);
    arguments[2] = below(tenant, 8) ? 20000 + below(tenant, 16) : below(tenant, 1 << 16);
}

static uint32_t some_entry(struct tenant *tenant, uint64_t entry[8])
{
    uint32_t operation = below(tenant, 4) ? 1 + below(tenant, OPERATIONS - 1) : SOCKET;
    uint32_t parameter = below(tenant, 4), staged = 0;
    memset(entry, 0, ENTRY);
    entry[1] = tenant->slot_count ? tenant->known_slots[below(tenant, tenant->slot_count)] : some_word(tenant);
    switch (operation) {
    case BIND: case CONNECT: case 18:
        some_address(tenant, entry + 2);
        entry[5] = below(tenant, 4);
        break;
    case SEND: case SEND_TO:
        parameter = below(tenant, 8) ? below(tenant, 4096) : some_word(tenant) % (2 * STAGING);
        staged = below(tenant, 16) ? parameter : 0;
        if (operation == SEND_TO) {
            some_address(tenant, entry + 2);
            entry[4] |= 1ull << 48 | below(tenant, 2) << (16 + below(tenant, 12));
        }
        break;
    case LISTEN:
        parameter = below(tenant, 128);
        break;
    case WATCH: case WATCH + 1:
        parameter = tenant->poller_count ? tenant->known_pollers[below(tenant, tenant->poller_count)] : some_word(tenant);
        entry[2] = 0x2005 | below(tenant, 2) << 28;
        entry[3] = some_word(tenant);
        entry[4] = below(tenant, 64);
        break;
    case 13: case 14:
        parameter = below(tenant, 64);
        entry[2] = some_word(tenant), entry[3] = some_word(tenant);
        break;
    }
    if (below(tenant, 16) == 0)
        parameter = some_word(tenant);
    if (below(tenant, 24) == 0)
        entry[below(tenant, 8)] = some_word(tenant);
    entry[0] |= operation | below(tenant, 8) << 8 | (uint64_t)parameter << 32;
    return staged;
}

/* A new socket, whose slot is remembered. */
static void open_socket(struct tenant *tenant, uint8_t *context)
{
    uint64_t entry[8] = { SOCKET | 1 << 8 | below(tenant, 4) / 3 << 32 };
    uint32_t *sequence = (uint32_t *)(context + REPLY), before = *sequence;
    put(tenant, context, entry, 0);
    ring_shards(tenant);
    struct timespec moment = { 0, 2000000 };
    syscall(SYS_futex, sequence, FUTEX_WAIT, before, &moment, NULL, 0);
    if (__atomic_load_n(sequence, __ATOMIC_ACQUIRE) == before || *(int64_t *)(context + REPLY + 8) != 0)
        return;
    uint64_t slot = *(uint64_t *)(context + REPLY + 16);
    tenant->known_slots[tenant->slot_count < SLOTS ? tenant->slot_count++ : below(tenant, SLOTS)] = slot;
}

void submit_something(struct tenant *tenant)
{
    if (!tenant->region)
        return;
    uint8_t *context = some_context(tenant);
    if (tenant->slot_count < 4 || below(tenant, 4) == 0)
        open_socket(tenant, context);
    for (uint64_t count = 1 + below(tenant, 8); count > 0; count--) {
        uint64_t entry[8];
        uint32_t staged = some_entry(tenant, entry);
        put(tenant, context, entry, staged);
    }
    ring_shards(tenant);
}

/* Full rings, over and over. */
void flood(struct tenant *tenant)
{
    if (!tenant->region)
        return;
    for (uint64_t turn = 1 + below(tenant, 16); turn > 0; turn--) {
        uint8_t *context = some_context(tenant);
        uint32_t head = __atomic_load_n((uint32_t *)(context + HEAD), __ATOMIC_ACQUIRE);
        uint64_t entry[8];
        some_entry(tenant, entry);
        for (int at = 0; at < SUBMISSIONS; at++) {
            if (below(tenant, 16) == 0)
                some_entry(tenant, entry);
            memcpy(context + PAGE + (size_t)at * ENTRY, entry, ENTRY);
        }
        __atomic_store_n((uint64_t *)(context + STAGING_TAIL), *(uint64_t *)(context + HEAD + 8) + STAGING, __ATOMIC_RELEASE);
        __atomic_store_n((uint32_t *)(context + TAIL), head + SUBMISSIONS, __ATOMIC_RELEASE);
        ring_shards(tenant);
    }
}

/* Wakes, waits and locks on words that the engine writes or wakes. */
void use_futex(struct tenant *tenant)
{
    size_t len;
    if (!tenant->region)
        return;
    size_t at = some_place(tenant, &len) + below(tenant, len / 4) * 4;
    if (at + 4 > tenant->region_size)
        return;
    uint32_t *word = (uint32_t *)(tenant->region + at), *other = (uint32_t *)(tenant->region + 2 * PAGE + 52);
    struct timespec moment = { 0, 1000000 };
    static const int operations[] = { FUTEX_WAIT, FUTEX_WAKE, FUTEX_REQUEUE, FUTEX_LOCK_PI, FUTEX_UNLOCK_PI, FUTEX_TRYLOCK_PI };
    syscall(SYS_futex, word, operations[below(tenant, 6)], below(tenant, 2) ? *word : (uint32_t)some_word(tenant), &moment, other, 0);
}
