/* Whether what was read is what was written, in its order, once. */
#include "world.h"

#include <string.h>

static bool is_read(const struct event *event)
{
    return (event->step.operation == RECV || event->step.operation == READ) && event->end && event->result > 0;
}

/* The next read of an object by its start, after that one; `ambiguous` if reads overlap or may be another object's. */
static const struct event *next_read(int object, uint32_t after, bool *ambiguous)
{
    const struct event *next = NULL;
    EACH_EVENT(event) {
        if (!is_read(event) || event->start <= after || !may_be_about(event, event->step.a, object))
            continue;
        *ambiguous |= !is_about(event, event->step.a, object);
        if (!next || event->start < next->start)
            next = event;
    }
    return next;
}

static const struct event *sender(const struct record *record)
{
    EACH_EVENT(event)
        if (event->worker == record->worker && event->step.operation == SEND && record->number - event->record < (uint32_t)event->step.length)
            return event;
    return NULL;
}

static void check_record(const struct event *event, int object, const struct record *record, int64_t *last)
{
    if (record->magic != MAGIC || record->worker >= WORKERS) {
        violation(event, "read what nobody wrote");
        return;
    }
    const struct event *sent = sender(record);
    if (!sent || sent->start > event->end || !may_be_about(sent, sent->step.a, world->object[object].peer))
        violation(event, "read record %u of worker %d, which was not sent here", record->number, record->worker);
    else if (record->number <= last[record->worker])
        violation(event, "read record %u of worker %d behind %lld", record->number, record->worker, (long long)last[record->worker]);
    last[record->worker] = record->number;
}

static void check_stream(int object)
{
    bool ambiguous = false;
    int64_t last[WORKERS];
    memset(last, -1, sizeof last);
    uint8_t partial[sizeof(struct record)];
    size_t held = 0;
    const struct event *event, *before = NULL;
    /* Twice: the first time only to see that the order of the reads is known. */
    for (uint32_t after = 0; (event = next_read(object, after, &ambiguous)) != NULL; after = event->start, before = event)
        if (before && before->end > event->start)
            ambiguous = true;
    for (uint32_t after = 0; !ambiguous && (event = next_read(object, after, &ambiguous)) != NULL; after = event->start) {
        for (int at = 0; at < event->result; at++) {
            partial[held++] = world->data[event->data + at];
            if (held == sizeof partial) {
                struct record record;
                memcpy(&record, partial, sizeof record);
                check_record(event, object, &record, last);
                held = 0;
            }
        }
    }
}

void check_streams(void)
{
    for (int object = 0; object < world->objects && object < OBJECTS; object++)
        if (world->object[object].kind == STREAM || world->object[object].kind == PIPE_IN)
            check_stream(object);
}
