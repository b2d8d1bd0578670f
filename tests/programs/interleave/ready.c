/* What the history says about readiness: what may have been reported, and what has to be. */
#include "world.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define DEEPEST 6

static bool is_in(const struct event *event, enum operation operation)
{
    return event->step.operation == operation;
}

static bool reads(const struct event *event)
{
    return (is_in(event, RECV) || is_in(event, READ)) && event->end && event->result > 0;
}

static bool is_stream(int object)
{
    enum kind kind = world->object[object].kind;
    return kind == STREAM || kind == PIPE_IN || kind == PIPE_OUT;
}

/* Bytes that may have been on their way to an object by then, and those that must have been. */
static int written_at_most(int object, uint32_t to)
{
    int peer = world->object[object].peer, bytes = 0;
    EACH_EVENT(event)
        if (is_in(event, SEND) && event->start <= to && may_be_about(event, event->step.a, peer))
            bytes += !event->end ? event->step.length * 8 : event->result > 0 ? event->result : 0;
    return bytes;
}

static int written_at_least(int object)
{
    int peer = world->object[object].peer, bytes = 0;
    EACH_EVENT(event)
        if (is_in(event, SEND) && event->end && event->result > 0 && is_about(event, event->step.a, peer))
            bytes += event->result;
    return bytes;
}

static int read_at_least(int object, uint32_t from)
{
    int bytes = 0;
    EACH_EVENT(event)
        if (reads(event) && event->end < from && is_about(event, event->step.a, object))
            bytes += event->result;
    return bytes;
}

static int read_at_most(int object)
{
    int bytes = 0;
    EACH_EVENT(event)
        if (reads(event) && may_be_about(event, event->step.a, object))
            bytes += event->result;
    return bytes;
}

bool may_be_shut(int object, int how, uint32_t to)
{
    EACH_EVENT(event)
        if (is_in(event, SHUTDOWN) && event->start <= to && (event->step.flags == how || event->step.flags == SHUT_RDWR)
            && may_be_about(event, event->step.a, object))
            return true;
    return false;
}

static bool must_be_shut(int object)
{
    EACH_EVENT(event)
        if (is_in(event, SHUTDOWN) && event->end && event->result == 0 && event->step.flags != SHUT_RD
            && is_about(event, event->step.a, object))
            return true;
    return false;
}

/* One that was never accepted may be reset when its listener goes. */
bool may_be_reset(int object, uint32_t to)
{
    int peer = world->object[object].peer;
    return peer == NONE || !must_live(peer, to) || may_be_shut(object, SHUT_RD, to) || may_be_shut(peer, SHUT_RD, to);
}

bool may_be_at_end(int object, uint32_t to)
{
    return may_be_reset(object, to) || may_be_shut(world->object[object].peer, SHUT_WR, to);
}

/* Writes of a counter, or a timer's being armed. */
static bool counts(const struct event *event)
{
    return (is_in(event, SEND) || is_in(event, ARM)) && (!event->end || event->result >= 0);
}

static bool may_have_count(int object, uint32_t from, uint32_t to)
{
    EACH_EVENT(event) {
        if (!counts(event) || event->start > to || !may_be_about(event, event->step.a, object))
            continue;
        bool taken = false;
        EACH_EVENT(other)
            taken |= reads(other) && other->start > end_of(event) && other->end < from && is_about(other, other->step.a, object);
        if (!taken)
            return true;
    }
    return false;
}

static bool must_have_count(int object)
{
    EACH_EVENT(event) {
        if (!counts(event) || !event->end || !is_about(event, event->step.a, object))
            continue;
        bool taken = false;
        EACH_EVENT(other)
            taken |= reads(other) && other->end > event->start && may_be_about(other, other->step.a, object);
        if (!taken)
            return true;
    }
    return false;
}

/* Connections that may wait in a listener's queue, and those that must. */
static int waiting_at_most(int listener, uint32_t from, uint32_t to)
{
    int count = 0;
    EACH_EVENT(event) {
        if (is_in(event, CONNECT) && event->start <= to && may_be_about(event, event->step.a, listener))
            count++;
        if (is_in(event, ACCEPT) && event->end && event->end < from && event->made != NONE && is_about(event, event->step.a, listener))
            count--;
    }
    return count;
}

static int waiting_at_least(int listener, uint32_t now)
{
    int count = 0;
    EACH_EVENT(event) {
        if (is_in(event, CONNECT) && event->end && event->made != NONE && (event->result == 0 || event->error == EINPROGRESS)
            && is_about(event, event->step.a, listener) && must_live(event->made, now) && !may_be_shut(event->made, SHUT_WR, now)
            && !may_be_shut(event->made, SHUT_RD, now))
            count++;
        if (is_in(event, ACCEPT) && event->made != NONE && may_be_about(event, event->step.a, listener))
            count--;
    }
    return count;
}

static bool may_stream_be_ready(int object, uint32_t bits, uint32_t from, uint32_t to)
{
    if (may_be_reset(object, to) || (bits & EPOLLOUT))
        return true;
    if ((bits & EPOLLIN) && (written_at_most(object, to) > read_at_least(object, from)))
        return true;
    if ((bits & (EPOLLIN | EPOLLRDHUP)) && may_be_at_end(object, to))
        return true;
    return (bits & EPOLLHUP) && may_be_shut(object, SHUT_WR, to) && may_be_at_end(object, to);
}

static bool may_be_ready_at(int object, uint32_t bits, uint32_t from, uint32_t to, int depth)
{
    switch (world->object[object].kind) {
    case STREAM:
    case PIPE_IN:
    case PIPE_OUT:
        return may_stream_be_ready(object, bits, from, to);
    case LISTENER:
        return (bits & EPOLLIN) && waiting_at_most(object, from, to) > 0;
    case COUNTER:
    case TIMER:
        return (bits & EPOLLOUT) || ((bits & EPOLLIN) && may_have_count(object, from, to));
    case SET:
        break;
    }
    if (!(bits & EPOLLIN) || depth == DEEPEST)
        return false;
    EACH_EVENT(event) {
        if (!is_in(event, CONTROL) || event->step.flags == EPOLL_CTL_DEL || event->start > to || !may_be_about(event, event->step.a, object))
            continue;
        for (int inner = 0; inner < world->objects; inner++)
            if (may_be_about(event, event->step.b, inner)
                && may_be_ready_at(inner, event->step.events | EPOLLERR | EPOLLHUP, from, to, depth + 1))
                return true;
    }
    return false;
}

bool may_be_ready(int object, uint32_t bits, uint32_t from, uint32_t to)
{
    return may_be_ready_at(object, bits, from, to, 0);
}

/* At a quiet moment: what has been written is there, or was read by a call that has returned. */
static bool must_be_readable_at(int object, uint32_t now, int depth);

static bool must_be_writable(int object, uint32_t now)
{
    int peer = world->object[object].peer;
    return world->object[object].kind == STREAM && peer != NONE && !may_be_reset(object, now) && !may_be_shut(object, SHUT_WR, now)
        && written_at_most(peer, now) - read_at_least(peer, now) <= 8192;
}

/* Another call may have changed or ended the registration, or replaces it. */
static bool may_be_changed(const struct event *control, int set, int object)
{
    EACH_EVENT(event)
        if (event != control && is_in(event, CONTROL) && (!event->end || event->result == 0) && end_of(event) >= control->start
            && event->step.b == control->step.b && may_be_about(event, event->step.a, set) && may_be_about(event, event->step.b, object))
            return true;
    return false;
}

/* Whether nobody else may take the wake-up of an exclusive registration: another set, or a call that waits for the object itself as one of many. */
static bool is_only_registration(const struct event *control, int object)
{
    if (world->object[object].kind != STREAM)
        return false;
    EACH_EVENT(event)
        if (event != control && is_in(event, CONTROL) && event->step.flags != EPOLL_CTL_DEL && may_be_about(event, event->step.b, object))
            return false;
    return true;
}

static uint64_t token_of(const struct event *event)
{
    return (uint64_t)event->worker << 32 | event->number;
}

/* When the last wait ended that reported it; 0: none did. */
static uint32_t last_report(const struct event *control)
{
    uint32_t last = 0;
    EACH_EVENT(event) {
        if (!is_in(event, WAIT))
            continue;
        for (int i = 0; i < event->count; i++)
            if (event->items[i].data == token_of(control) && end_of(event) > last)
                last = end_of(event);
    }
    return last;
}

/* Whether something came to the object after that. */
static bool has_news(int object, uint32_t after)
{
    int peer = world->object[object].peer;
    EACH_EVENT(event) {
        if (event->start <= after || !event->end)
            continue;
        bool counted = is_in(event, SEND) ? event->result > 0 : is_in(event, ARM) && event->result == 0;
        if (counted && is_about(event, event->step.a, is_stream(object) ? peer : object))
            return true;
        if (is_in(event, CONNECT) && event->made != NONE && is_about(event, event->step.a, object))
            return true;
    }
    return false;
}

static bool is_pending_at(const struct event *control, uint32_t now, int depth)
{
    const struct step *step = &control->step;
    if (!is_in(control, CONTROL) || step->flags == EPOLL_CTL_DEL || !control->end || control->result != 0)
        return false;
    int set = must_mean(control->process, step->a, control->start, control->end);
    int object = must_mean(control->process, step->b, control->start, control->end);
    if (set == NONE || object == NONE || !must_live(object, now))
        return false;
    bool readable = (step->events & EPOLLIN) && must_be_readable_at(object, now, depth + 1);
    if (!readable && !((step->events & EPOLLOUT) && must_be_writable(object, now)))
        return false;
    if (may_be_changed(control, set, object) || ((step->events & EPOLLEXCLUSIVE) && !is_only_registration(control, object)))
        return false;
    if (!(step->events & (EPOLLONESHOT | EPOLLET)))
        return true;
    uint32_t last = last_report(control);
    if (last == 0)
        return true;
    return !(step->events & EPOLLONESHOT) && readable && world->object[object].kind != SET && has_news(object, last);
}

bool is_pending(const struct event *control, uint32_t now)
{
    return is_pending_at(control, now, 0);
}

static const struct event *must_report_at(int set, uint32_t now, int depth)
{
    if (depth >= DEEPEST)
        return NULL;
    EACH_EVENT(event)
        if (is_in(event, CONTROL) && is_about(event, event->step.a, set) && is_pending_at(event, now, depth))
            return event;
    return NULL;
}

const struct event *must_report(int set, uint32_t now)
{
    return must_report_at(set, now, 0);
}

static bool must_be_readable_at(int object, uint32_t now, int depth)
{
    int peer = world->object[object].peer;
    switch (world->object[object].kind) {
    case STREAM:
    case PIPE_IN:
        if (peer == NONE || may_be_shut(object, SHUT_RD, now))
            return false;
        return written_at_least(object) > read_at_most(object) || must_be_shut(peer) || !may_live(peer, now, now);
    case LISTENER:
        return waiting_at_least(object, now) > 0;
    case COUNTER:
    case TIMER:
        return must_have_count(object);
    case SET:
        return must_report_at(object, now, depth) != NULL;
    default:
        return false;
    }
}

bool must_be_readable(int object, uint32_t now)
{
    return must_be_readable_at(object, now, 0);
}

bool may_block(const struct step *step)
{
    switch (step->operation) {
    case RECV:
    case ACCEPT:
    case CONNECT:
        return step->flags == 0;
    case READ:
        return true;
    case WAIT:
    case POLL:
    case SELECT:
        return step->timeout < 0;
    default:
        return false;
    }
}

static bool is_one_ready(const struct event *event, uint32_t now)
{
    for (int i = 0; i < event->step.count; i++) {
        int object = must_mean(event->process, event->step.items[i], event->start, now);
        if (object != NONE && ((event->step.wanted[i] & EPOLLIN && must_be_readable(object, now))
                               || (event->step.wanted[i] & EPOLLOUT && must_be_writable(object, now))))
            return true;
    }
    return false;
}

/* Whether a set may take the wake-up of a call that waits for an object as one of many. */
static bool may_be_deprived(const struct event *call, int object)
{
    enum kind kind = world->object[object].kind;
    EACH_EVENT(event)
        if (is_in(event, CONTROL) && (event->step.events & EPOLLEXCLUSIVE) && may_be_about(event, event->step.b, object))
            return is_in(call, ACCEPT) || kind == PIPE_IN;
    return false;
}

bool must_return(const struct event *event, uint32_t now)
{
    if (!may_block(&event->step) || is_in(event, CONNECT))
        return true;
    if (is_in(event, POLL) || is_in(event, SELECT))
        return is_one_ready(event, now);
    int object = must_mean(event->process, event->step.a, event->start, now);
    if (object == NONE)
        return false;
    if (is_in(event, WAIT))
        return world->object[object].kind == SET && must_report(object, now);
    return must_be_readable(object, now) && !may_be_deprived(event, object);
}

struct event *registration(uint64_t token)
{
    unsigned worker = token >> 32, number = token;
    if (worker >= WORKERS || number >= (unsigned)world->worker[worker].count)
        return NULL;
    struct event *event = &world->worker[worker].history[number];
    return is_in(event, CONTROL) ? event : NULL;
}
