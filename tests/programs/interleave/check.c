/* Looks for results that nothing explains. */
#include "world.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

void violation(const struct event *event, const char *format, ...)
{
    char text[300], about[100] = "";
    va_list arguments;
    if (world->violation[0])
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (event)
        snprintf(about, sizeof about, "worker %d, operation %d: ", event->worker, event->number);
    snprintf(world->violation, sizeof world->violation, "%s%s", about, text);
}

static int objects(void)
{
    return world->objects < OBJECTS ? world->objects : OBJECTS;
}

/* Whether a slot of the event may have meant an object for which the condition holds. */
typedef bool condition(const struct event *event, int object);

static bool may_be(const struct event *event, int slot, condition *holds)
{
    for (int object = 0; object < objects(); object++)
        if (may_be_about(event, slot, object) && holds(event, object))
            return true;
    return false;
}

static bool is_set(const struct event *event, int object)
{
    (void)event;
    return world->object[object].kind == SET;
}

static bool is_not_set(const struct event *event, int object)
{
    return !is_set(event, object);
}

static bool is_socket(const struct event *event, int object)
{
    (void)event;
    return world->object[object].kind == STREAM || world->object[object].kind == LISTENER;
}

static bool is_not_socket(const struct event *event, int object)
{
    return !is_socket(event, object);
}

static bool is_not_timer(const struct event *event, int object)
{
    (void)event;
    return world->object[object].kind != TIMER;
}

static bool is_not_listener(const struct event *event, int object)
{
    (void)event;
    return world->object[object].kind != LISTENER;
}

static bool is_opener(const struct event *event, int object)
{
    (void)event;
    return world->object[object].opener;
}

static bool is_pipe_out(const struct event *event, int object)
{
    (void)event;
    return world->object[object].kind == PIPE_OUT;
}

static bool may_not_block(const struct event *event, int object)
{
    enum kind kind = world->object[object].kind;
    if (kind == COUNTER || kind == TIMER)
        return true;
    EACH_EVENT(other) {
        if (other->step.operation == NONBLOCK && other->step.flags && other->start <= end_of(event) && may_be_about(other, other->step.a, object))
            return true;
        if (other->step.operation == CONNECT && other->made == object && other->step.flags)
            return true;
    }
    return false;
}

static bool may_end(const struct event *event, int object)
{
    enum kind kind = world->object[object].kind;
    return (kind == STREAM || kind == PIPE_IN) && (may_be_at_end(object, event->end) || may_be_shut(object, SHUT_RD, event->end));
}

static bool may_reset(const struct event *event, int object)
{
    return world->object[object].kind == STREAM && may_be_reset(object, event->end);
}

static bool may_not_send(const struct event *event, int object)
{
    return may_reset(event, object) || (world->object[object].kind == STREAM && may_be_shut(object, SHUT_WR, event->end))
        || (world->object[object].kind == PIPE_OUT && may_be_reset(object, event->end));
}

static bool may_be_none(const struct event *event, int slot)
{
    return may_be_about(event, slot, NONE);
}

/* Both directions may have ended, and with them the connection. */
static bool may_have_ended(const struct event *event, int object)
{
    return may_reset(event, object) || (world->object[object].kind == STREAM && may_be_shut(object, SHUT_WR, event->end) && may_end(event, object));
}

static void unexpected(const struct event *event)
{
    violation(event, "result %d (%s)", event->result, strerror(event->error));
}

static void check_interruption(const struct event *event)
{
    const struct step *step = &event->step;
    switch (step->operation) {
    case WAIT:
    case POLL:
        if (event->restarted + (step->mask ? 0 : event->ended) == 0)
            violation(event, "EINTR without a handler");
        return;
    case SELECT:
        if (event->restarted + event->ended == 0)
            violation(event, "EINTR without a handler");
        return;
    case RECV:
    case READ:
    case ACCEPT:
    case CONNECT:
        if (event->ended == 0)
            violation(event, "EINTR without a handler that ends calls");
        return;
    default:
        unexpected(event);
    }
}

static void check_receive(const struct event *event)
{
    int slot = event->step.a;
    bool fine = event->result > 0;
    if (event->result == 0)
        fine = may_be(event, slot, may_end);
    switch (event->error) {
    case EAGAIN:
        fine = event->step.flags == MSG_DONTWAIT || may_be(event, slot, may_not_block);
        break;
    case EBADF:
        fine = may_be_none(event, slot) || may_be(event, slot, is_pipe_out);
        break;
    case ENOTSOCK:
        fine = may_be(event, slot, is_not_socket);
        break;
    case ENOTCONN:
        fine = may_be(event, slot, is_opener) || may_be(event, slot, may_reset);
        break;
    case EINVAL:
        fine = may_be(event, slot, is_set);
        break;
    case ECONNRESET:
    case EPIPE:
        fine = may_be(event, slot, may_reset);
        break;
    }
    if (!fine)
        unexpected(event);
}

static void check_send(const struct event *event)
{
    int slot = event->step.a;
    bool fine = event->result == event->step.length * 8 || event->result == 8;
    switch (event->error) {
    case EAGAIN:
        fine = true;
        break;
    case EBADF:
    case EINVAL:
        fine = may_be_none(event, slot) || may_be(event, slot, is_not_socket);
        break;
    case EPIPE:
    case ECONNRESET:
        fine = may_be(event, slot, may_not_send);
        break;
    case ENOTCONN:
        fine = may_be(event, slot, is_opener) || may_be(event, slot, may_reset);
        break;
    }
    if (!fine)
        unexpected(event);
}

/* Whether both calls may be about one registration, or must be. */
static bool may_be_same(const struct event *one, const struct event *other, int *object)
{
    if (one->step.b != other->step.b)
        return false;
    for (int set = 0; set < objects(); set++) {
        if (world->object[set].kind != SET || !may_be_about(one, one->step.a, set) || !may_be_about(other, other->step.a, set))
            continue;
        for (*object = 0; *object < objects(); ++*object)
            if (may_be_about(one, one->step.b, *object) && may_be_about(other, other->step.b, *object))
                return true;
    }
    return false;
}

static bool must_be_same(const struct event *one, const struct event *other)
{
    int object;
    if (!may_be_same(one, other, &object))
        return false;
    int set = must_mean(one->process, one->step.a, one->start, end_of(one));
    object = must_mean(one->process, one->step.b, one->start, end_of(one));
    return set != NONE && object != NONE && is_about(other, other->step.a, set) && is_about(other, other->step.b, object);
}

static bool is_control(const struct event *event)
{
    return event->step.operation == CONTROL && (!event->end || event->result == 0);
}

/* Whether a registration may have been there when this call came: somebody added it, and nobody took it out since. */
static bool may_be_registered(const struct event *call)
{
    int object;
    EACH_EVENT(added) {
        if (added == call || !is_control(added) || added->step.flags != EPOLL_CTL_ADD || added->start > call->end || !may_be_same(added, call, &object))
            continue;
        bool gone = false;
        EACH_EVENT(other)
            gone |= other != call && is_control(other) && other->step.flags == EPOLL_CTL_DEL && other->start > end_of(added)
                && end_of(other) < call->start && must_be_same(added, other) && must_be_same(call, other);
        if (!gone)
            return true;
    }
    return false;
}

static bool must_be_registered(const struct event *call)
{
    EACH_EVENT(added) {
        if (!is_control(added) || added->step.flags != EPOLL_CTL_ADD || end_of(added) >= call->start || !must_be_same(added, call))
            continue;
        int object = must_mean(call->process, call->step.b, call->start, call->end);
        if (!must_live(object, call->end))
            continue;
        bool stays = true;
        EACH_EVENT(other)
            if (other != call && is_control(other) && other->step.flags == EPOLL_CTL_DEL && end_of(other) > added->start && other->start < call->end
                && may_be_same(added, other, &object))
                stays = false;
        if (stays)
            return true;
    }
    return false;
}

static void check_control(const struct event *event)
{
    bool adds = event->step.flags == EPOLL_CTL_ADD;
    bool fine = false;
    switch (event->error) {
    case 0:
        if (adds ? must_be_registered(event) : !may_be_registered(event))
            violation(event, adds ? "added what was there" : "found what was not there");
        return;
    case EEXIST:
        fine = adds && may_be_registered(event);
        break;
    case ENOENT:
        fine = !adds && !must_be_registered(event);
        break;
    case EBADF:
        fine = may_be_none(event, event->step.a) || may_be_none(event, event->step.b);
        break;
    case EINVAL:
        fine = may_be(event, event->step.a, is_not_set) || may_be(event, event->step.b, is_set) || event->step.flags == EPOLL_CTL_MOD;
        break;
    case ELOOP:
        fine = may_be(event, event->step.b, is_set);
        break;
    }
    if (!fine)
        unexpected(event);
}

/* Whether a call has replaced or ended a registration before the wait began. */
static bool is_stale(const struct event *control, const struct event *wait)
{
    EACH_EVENT(other)
        if (is_control(other) && other->start > end_of(control) && end_of(other) < wait->start && must_be_same(control, other))
            return true;
    return false;
}

static int reports(uint64_t token)
{
    int count = 0;
    EACH_EVENT(event)
        for (int i = 0; event->step.operation == WAIT && i < event->count; i++)
            count += event->items[i].data == token;
    return count;
}

static bool explains(const struct event *control, const struct event *wait, uint32_t events)
{
    for (int object = 0; object < objects(); object++) {
        if (!may_be_about(control, control->step.b, object) || !may_live(object, wait->start, wait->end))
            continue;
        uint32_t explained = 0;
        for (uint32_t bit = 1; bit <= EPOLLRDHUP; bit <<= 1)
            if ((events & bit) && may_be_ready(object, bit, wait->start, wait->end))
                explained |= bit;
        if (explained == events)
            return true;
    }
    return false;
}

static void check_report(const struct event *wait, const struct item *item)
{
    const struct event *control = registration(item->data);
    if (!control || control->step.flags == EPOLL_CTL_DEL || control->start > wait->end || (control->end && control->result != 0)) {
        violation(wait, "reported %#llx, which is no registration", (unsigned long long)item->data);
        return;
    }
    const char *name = "";
    bool same_set = false;
    for (int set = 0; set < objects(); set++)
        same_set |= may_be_about(wait, wait->step.a, set) && may_be_about(control, control->step.a, set);
    if (!same_set)
        name = "of another set";
    else if (item->events & ~(control->step.events | EPOLLERR | EPOLLHUP))
        name = "with bits that were not asked for";
    else if (is_stale(control, wait))
        name = "that had been changed or deleted";
    else if (control->step.events & EPOLLONESHOT && reports(item->data) > 1)
        name = "that is one-shot, twice";
    else if (!explains(control, wait, item->events))
        name = "that was not ready, or closed";
    if (*name)
        violation(wait, "reported %#x of the registration by worker %d, operation %d, %s", item->events, control->worker, control->number, name);
}

static void check_wait(const struct event *event)
{
    bool fine = event->result > 0 || (event->result == 0 && event->step.timeout >= 0);
    if (event->error == EBADF)
        fine = may_be_none(event, event->step.a);
    if (event->error == EINVAL)
        fine = may_be(event, event->step.a, is_not_set);
    if (!fine)
        unexpected(event);
    for (int i = 0; i < event->count; i++)
        check_report(event, &event->items[i]);
}

static bool may_show(const struct event *event, int slot, uint32_t bit)
{
    if (event->step.operation == SELECT) {
        /* One that is closed meanwhile shows everything. */
        if (may_be_none(event, slot))
            return true;
        if (bit == EPOLLIN)
            bit = EPOLLIN | EPOLLHUP | EPOLLERR;
    }
    for (int object = 0; object < objects(); object++)
        if (may_be_about(event, slot, object) && may_be_ready(object, bit, event->start, event->end))
            return true;
    return false;
}

#define NVAL 0x20

static void check_poll(const struct event *event)
{
    bool fine = event->result > 0 || (event->result == 0 && event->step.timeout >= 0);
    for (int i = 0; event->error == EBADF && i < event->step.count; i++)
        fine |= may_be_none(event, event->step.items[i]);
    if (!fine)
        unexpected(event);
    for (int i = 0; i < event->count; i++) {
        const struct item *item = &event->items[i];
        for (uint32_t bit = 1; bit <= EPOLLRDHUP; bit <<= 1)
            if ((item->events & bit) && !(bit == NVAL ? may_be_none(event, item->slot) : may_show(event, item->slot, bit)))
                violation(event, "slot %d showed %#x", item->slot, bit);
    }
}

static void check_connection(const struct event *event)
{
    bool accepts = event->step.operation == ACCEPT, fine = event->result >= 0;
    switch (event->error) {
    case EINPROGRESS:
        fine = !accepts && event->step.flags;
        break;
    case EAGAIN:
        fine = accepts && may_be(event, event->step.a, may_not_block);
        break;
    case EBADF:
        fine = accepts && may_be_none(event, event->step.a);
        break;
    case EINVAL:
    case ENOTSOCK:
        fine = accepts && may_be(event, event->step.a, is_not_listener);
        break;
    }
    if (!fine)
        unexpected(event);
    else if (accepts && event->made != NONE && world->object[event->made].peer == NONE)
        violation(event, "accepted a connection that nobody opened, from port %d", world->object[event->made].port);
}

static void check_descriptor(const struct event *event)
{
    const struct step *step = &event->step;
    bool fine = true;
    if (step->operation == CLOSE)
        fine = event->gone == NONE ? event->error == EBADF : event->result == 0;
    else if (step->operation == DUP2 && step->a >= 0 && event->made != NONE)
        fine = event->result == descriptor(step->b);
    else if (step->operation == SHUTDOWN && event->error)
        fine = may_be_none(event, step->a) || may_be(event, step->a, is_not_socket) || may_be(event, step->a, may_have_ended)
            || may_be(event, step->a, is_opener);
    else if (step->operation == ARM && event->error)
        fine = may_be_none(event, step->a) || may_be(event, step->a, is_not_timer);
    if (!fine)
        unexpected(event);
}

static void check_event(const struct event *event)
{
    if (event->error == EINTR) {
        check_interruption(event);
        return;
    }
    switch (event->step.operation) {
    case RECV:
    case READ:
        check_receive(event);
        break;
    case SEND:
        check_send(event);
        break;
    case CONTROL:
        check_control(event);
        break;
    case WAIT:
        check_wait(event);
        break;
    case POLL:
    case SELECT:
        check_poll(event);
        break;
    case ACCEPT:
    case CONNECT:
        check_connection(event);
        break;
    default:
        check_descriptor(event);
    }
}

void check(void)
{
    match_connections();
    EACH_EVENT(event)
        if (event->end)
            check_event(event);
    check_streams();
}
