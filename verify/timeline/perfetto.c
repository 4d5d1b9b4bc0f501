/* SPDX-License-Identifier: Apache-2.0 */
/* Trace events, one line each. */
#include "verify/timeline/perfetto.h"

#include "core/base/alloc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct printer {
    cd_text *text;
    const cd_timeline *timeline;
    bool is_virtual;
    bool used; /* something stands already */
} printer;

static uint64_t scale(const printer *p, uint64_t ns, uint64_t at)
{
    return p->is_virtual ? ns + at : ns;
}

/* Microseconds with three digits behind the point, whole nanoseconds. */
static void put_time(printer *p, const char *key, uint64_t ns)
{
    cd_text_printf(p->text, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

static void put_quoted(cd_text *text, const char *value)
{
    cd_text_push(text, "\"");
    for (const char *at = value; *at != '\0'; at++) {
        const unsigned char byte = (unsigned char)*at;
        if (byte == '"' || byte == '\\')
            cd_text_printf(text, "\\%c", byte);
        else if (byte < 0x20 || byte == 0x7f)
            cd_text_printf(text, "\\u%04x", byte);
        else
            cd_text_push_bytes(text, at, 1);
    }
    cd_text_push(text, "\"");
}

static void open_event(printer *p, const char *phase, uint32_t rank)
{
    cd_text_printf(p->text, "%s\n{\"ph\":\"%s\",\"pid\":%" PRIu32, p->used ? "," : "", phase, rank);
    p->used = true;
}

/* Rows of one lane lie side by side. */
static unsigned thread_of(const cd_slice *s) { return (unsigned)s->lane * 100 + s->row; }

static void put_name(printer *p, const char *what, const cd_slice *s, const char *name)
{
    open_event(p, "M", s->rank);
    cd_text_printf(p->text, ",\"tid\":%u,\"name\":\"%s\",\"args\":{\"name\":", thread_of(s), what);
    put_quoted(p->text, name);
    cd_text_push(p->text, "}}");
}

static void put_names(printer *p)
{
    const cd_timeline *t = p->timeline;
    bool rows[CD_LANE_COUNT * 100] = {false};
    for (size_t i = 0; i < t->slice_count; i++) {
        const cd_slice *s = &t->slices[i];
        char name[48];
        if (i == 0 || s[-1].rank != s->rank) {
            for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) rows[k] = false;
            snprintf(name, sizeof name, "rank %" PRIu32, s->rank);
            put_name(p, "process_name", s, name);
        }
        if (rows[thread_of(s)]) continue;
        rows[thread_of(s)] = true;
        if (s->row == 0)
            snprintf(name, sizeof name, "%s", cd_lane_name(s->lane));
        else
            snprintf(name, sizeof name, "%s, row %" PRIu32, cd_lane_name(s->lane), s->row + 1);
        put_name(p, "thread_name", s, name);
    }
}

static void put_slice(printer *p, const cd_slice *s)
{
    const uint64_t from = scale(p, s->from_ns, s->from), to = scale(p, s->to_ns, s->to);
    open_event(p, "X", s->rank);
    cd_text_printf(p->text, ",\"tid\":%u,\"cat\":\"%s\",\"name\":", thread_of(s),
                   cd_lane_name(s->lane));
    put_quoted(p->text, s->label);
    put_time(p, "ts", from);
    put_time(p, "dur", to - from);
    cd_text_printf(p->text, ",\"args\":{\"step\":%" PRIu32 ",\"micro_step\":%" PRIu32, s->step,
                   s->micro_step);
    if (s->bucket >= 0) cd_text_printf(p->text, ",\"bucket\":%" PRId64, s->bucket);
    if (s->sequence >= 0) {
        const char *group = cd_timeline_group(p->timeline, s->group);
        cd_text_push(p->text, ",\"group\":");
        put_quoted(p->text, group != NULL ? group : "?");
        cd_text_printf(p->text, ",\"group_id\":\"%" PRId64 "\",\"sequence\":%" PRId64, s->group,
                       s->sequence);
    }
    if (s->bytes > 0) cd_text_printf(p->text, ",\"bytes\":%" PRId64, s->bytes);
    if (s->end == CD_SLICE_OPEN) cd_text_push(p->text, ",\"end\":\"never ended\"");
    if (s->end == CD_SLICE_FAILED) cd_text_push(p->text, ",\"end\":\"failed\"");
    cd_text_push(p->text, "}}");
}

/* ---- flows ---- */

static int by_call(const void *a, const void *b)
{
    const cd_slice *x = *(const cd_slice *const *)a, *y = *(const cd_slice *const *)b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    if (x->sequence != y->sequence) return x->sequence < y->sequence ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static void put_flow(printer *p, const char *phase, const cd_slice *s, uint64_t id)
{
    open_event(p, phase, s->rank);
    cd_text_printf(p->text, ",\"tid\":%u,\"cat\":\"collective\",\"name\":\"", thread_of(s));
    cd_text_printf(p->text, "#%" PRId64 "\",\"id\":%" PRIu64, s->sequence, id);
    put_time(p, "ts", scale(p, s->from_ns, s->from));
    cd_text_push(p->text, *phase == 'f' ? ",\"bp\":\"e\"}" : "}");
}

static void put_flows(printer *p, const cd_slice **calls, size_t count)
{
    uint64_t id = 0;
    qsort(calls, count, sizeof *calls, by_call);
    for (size_t i = 1; i < count; i++) {
        const cd_slice *a = calls[i - 1], *b = calls[i];
        if (a->group != b->group || a->sequence != b->sequence || a->rank == b->rank) continue;
        id++;
        put_flow(p, "s", a, id);
        put_flow(p, "f", b, id);
    }
}

/* ---- counters ---- */

typedef struct change {
    uint64_t ns, at;
    int64_t bytes;
    uint32_t rank;
} change;

static int by_time(const void *a, const void *b)
{
    const change *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->bytes > y->bytes ? -1 : x->bytes < y->bytes;
}

static void put_counters(printer *p, change *changes, const cd_slice *const *calls, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        const cd_slice *s = calls[i];
        changes[n++] = (change){scale(p, s->from_ns, s->from), s->from, s->bytes, s->rank};
        if (s->end != CD_SLICE_OPEN)
            changes[n++] = (change){scale(p, s->to_ns, s->to), s->to, -s->bytes, s->rank};
    }
    qsort(changes, n, sizeof *changes, by_time);
    int64_t in_flight = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || changes[i - 1].rank != changes[i].rank) in_flight = 0;
        in_flight += changes[i].bytes;
        open_event(p, "C", changes[i].rank);
        cd_text_push(p->text, ",\"name\":\"bytes in flight\"");
        put_time(p, "ts", changes[i].ns);
        cd_text_printf(p->text, ",\"args\":{\"bytes\":%" PRId64 "}}", in_flight);
    }
}

void cd_perfetto_print(cd_text *text, const cd_timeline *t, const char *title, bool is_virtual)
{
    printer p = {text, t, is_virtual, false};
    const size_t room = t->slice_count + 1;
    const cd_slice **calls = cd_allocate_array(NULL, room, sizeof(const cd_slice *));
    change *changes = cd_allocate_array(NULL, 2 * room, sizeof *changes);
    size_t count = 0;
    cd_text_push(text, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"title\":");
    put_quoted(text, title);
    cd_text_printf(text, ",\"time\":\"%s\"",
                   is_virtual ? "virtual, one nanosecond added per event" : "of the machine");
    cd_text_push(text, "},\"traceEvents\":[");
    put_names(&p);
    for (size_t i = 0; i < t->slice_count; i++) {
        put_slice(&p, &t->slices[i]);
        if (calls != NULL && t->slices[i].lane == CD_LANE_COLLECTIVE)
            calls[count++] = &t->slices[i];
    }
    if (calls != NULL && changes != NULL) {
        put_counters(&p, changes, calls, count);
        put_flows(&p, calls, count);
    } else {
        text->failed = true;
    }
    cd_text_push(text, "\n]}\n");
    cd_release(NULL, calls, room * sizeof(const cd_slice *));
    cd_release(NULL, changes, 2 * room * sizeof *changes);
}
