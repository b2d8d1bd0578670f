/* Streams arrive byte for byte, whatever the sizes of writes and reads and however full the buffers. */
#include "harness.h"

struct transfer {
    int fd;
    size_t length, part;
    bool is_blocking;
};

static void *send_transfer(void *argument)
{
    struct transfer *transfer = argument;
    char *block = malloc(transfer->part);
    if (!transfer->is_blocking)
        set_blocking(transfer->fd, false);
    for (size_t at = 0; at < transfer->length;) {
        size_t part = transfer->length - at < transfer->part ? transfer->length - at : transfer->part;
        fill(block, part, at);
        if (transfer->is_blocking) {
            /* A blocking write takes all of it. */
            EQUAL(write(transfer->fd, block, part), (ssize_t)part);
            at += part;
            continue;
        }
        ssize_t count = write(transfer->fd, block, part);
        if (count < 0) {
            EQUAL(errno, EAGAIN);
            wait_for(transfer->fd, POLLOUT);
            continue;
        }
        at += count;
    }
    EQUAL(shutdown(transfer->fd, SHUT_WR), 0);
    free(block);
    return NULL;
}

static void *receive_transfer(void *argument)
{
    struct transfer *transfer = argument;
    char *block = malloc(transfer->part);
    size_t at = 0;
    for (;;) {
        if (!transfer->is_blocking)
            wait_for(transfer->fd, POLLIN);
        ssize_t count = recv(transfer->fd, block, transfer->part, transfer->is_blocking ? 0 : MSG_DONTWAIT);
        CHECK(count >= 0);
        if (count == 0)
            break;
        CHECK(matches(block, count, at));
        at += count;
    }
    EQUAL(at, (long long)transfer->length);
    free(block);
    return NULL;
}

/* Both directions at once. */
static void exchange(size_t length, size_t write_part, size_t read_part, bool is_blocking)
{
    struct pair pair = make_pair();
    struct transfer out[2] = { { pair.near, length, write_part, is_blocking }, { pair.far, length, write_part, is_blocking } };
    struct transfer in[2] = { { pair.far, length, read_part, is_blocking }, { pair.near, length, read_part, is_blocking } };
    pthread_t threads[4];
    for (int i = 0; i < 2; i++) {
        threads[i] = start_thread(send_transfer, &out[i]);
        threads[2 + i] = start_thread(receive_transfer, &in[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    close_pair(&pair);
}

STATEMENT(t4_large_blocking_writes)
{
    exchange(20000000, 3000001, 70001, true);
}

STATEMENT(t4_large_writes_without_blocking)
{
    exchange(20000000, 3000001, 70001, false);
}

STATEMENT(t4_small_writes)
{
    exchange(300000, 13, 4096, true);
}

STATEMENT(t4_small_reads)
{
    exchange(300000, 65536, 7, true);
}

STATEMENT(t4_a_full_buffer_loses_nothing)
{
    struct pair pair = make_pair();
    set_blocking(pair.near, false);
    static char block[100000];
    uint64_t written = 0, got = 0;
    for (int round = 0; round < 20; round++) {
        for (;;) {
            fill(block, sizeof block, written);
            ssize_t count = write(pair.near, block, sizeof block);
            if (count < 0) {
                EQUAL(errno, EAGAIN);
                break;
            }
            CHECK(count > 0);
            written += count;
        }
        /* A part is read, so that the buffer is full again at another place. */
        for (uint64_t goal = got + (written - got) / 3 + round; got < goal;) {
            ssize_t count = read(pair.far, block, goal - got < sizeof block ? goal - got : sizeof block);
            CHECK(count > 0);
            CHECK(matches(block, count, got));
            got += count;
        }
    }
    EQUAL(shutdown(pair.near, SHUT_WR), 0);
    while (got < written) {
        ssize_t count = read(pair.far, block, sizeof block);
        CHECK(count > 0);
        CHECK(matches(block, count, got));
        got += count;
    }
    expect_end(pair.far);
    close_pair(&pair);
}

STATEMENT(t4_a_stopped_reader_resumes)
{
    struct pair pair = make_pair();
    struct transfer out = { pair.far, 10000000, 100000, true }, in = { pair.near, 10000000, 100000, true };
    pthread_t sender = start_thread(send_transfer, &out);
    /* Long enough for the window to close; nothing is read meanwhile. */
    pause_ms(700);
    receive_transfer(&in);
    pthread_join(sender, NULL);
    close_pair(&pair);
}

STATEMENT(t3_request_and_response_wait_for_nobody)
{
    /* Two small writes for each request: with delayed acknowledgements against Nagle this takes 40 ms a turn, unless told not to. */
    struct pair pair = make_pair();
    int one = 1;
    EQUAL(setsockopt(pair.near, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
    EQUAL(setsockopt(pair.far, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
    for (int i = 0; i < 1000; i++) {
        char buffer[4];
        write_all(pair.near, "ab", 2);
        write_all(pair.near, "cd", 2);
        read_all(pair.far, buffer, 4);
        write_all(pair.far, buffer, 2);
        write_all(pair.far, buffer + 2, 2);
        read_all(pair.near, buffer, 4);
        CHECK(memcmp(buffer, "abcd", 4) == 0);
    }
    close_pair(&pair);
}

STATEMENT(many_connections_in_a_row)
{
    struct sockaddr_in address;
    int listener = listen_near(&address);
    for (int i = 0; i < 1000; i++) {
        int far = connect_far(&address);
        int near = accept(listener, NULL, NULL);
        CHECK(near >= 0);
        char out[64], in[64];
        fill(out, sizeof out, i);
        write_all(far, out, sizeof out);
        read_all(near, in, sizeof in);
        CHECK(matches(in, sizeof in, i));
        write_all(near, in, sizeof in);
        close(near);
        read_all(far, in, sizeof in);
        expect_end(far);
        close(far);
    }
    close(listener);
}
