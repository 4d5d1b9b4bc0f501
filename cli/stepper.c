/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper: a position in a list of events, and questions about the moment right after it.
**
** The run is deterministic, so a recorded list is the run: going back is going to a smaller number.
*/
#include "cli/stepper.h"

#include "cddp/backend.h"
#include "core/base/alloc.h"
#include "core/trace/event.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Events are shown with their number from 1, as `--until` and the store (docs/formats/trace.md)
** count them. */
typedef struct stepper {
    const cd_memory_sink *events;
    size_t at;    /* events before it have happened */
    int64_t rank; /* only this one is shown; -1: all */
} stepper;

static const char help[] =
    "  n [N]        the next event, or the next N\n"
    "  b [N]        back by one, or by N\n"
    "  goto N|NAME  to event number N, or to the next event of that name (as in goto "
    "bucket_launch)\n"
    "  p RANK|all   show this rank only, as in p 2 or p rank 2; or all again\n"
    "  w            who waits for whom at this moment\n"
    "  bucket B     what happened to bucket B so far\n"
    "  l            the last ten events\n"
    "  q            leave\n";

/* "group 'world'" of an id; the number where no event names it. */
static void print_group(const stepper *s, int64_t group, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "group %" PRId64, group);
    for (size_t i = 0; i < s->events->count; i++) {
        const cddp_event event = cd_memory_sink_get(s->events, i);
        if (event.kind != CDDP_EV_group || event.as.group.group != group || event.text == NULL)
            continue;
        snprintf(text, text_bytes, "group '%s'", event.text);
        return;
    }
}

static void show(const stepper *s, size_t index)
{
    cddp_event event = cd_memory_sink_get(s->events, index);
    const cddp_event_info *info = cddp_event_describe(event.kind);
    char text[768];
    cd_event_print(&event, text, sizeof text);
    printf("%6zu  %s", index + 1, text);
    for (uint32_t f = 0; f < info->field_count && event.kind != CDDP_EV_group; f++) {
        if (strcmp(info->fields[f].name, "group") != 0 || event.as.field[f] < 0) continue;
        print_group(s, event.as.field[f], text, sizeof text);
        if (event.text == NULL || strstr(event.text, text) == NULL) printf(", of %s", text);
    }
    printf("\n");
}

static bool shown(const stepper *s, size_t index)
{
    cddp_event event = cd_memory_sink_get(s->events, index);
    return s->rank < 0 || event.rank == (uint32_t)s->rank;
}

static void forward(stepper *s, uint64_t count)
{
    while (count > 0 && s->at < s->events->count) {
        if (shown(s, s->at)) {
            show(s, s->at);
            count--;
        }
        s->at++;
    }
    if (s->at == s->events->count) printf("        the end of the run\n");
}

static void backward(stepper *s, uint64_t count)
{
    while (count > 0 && s->at > 0) count -= shown(s, --s->at);
    if (s->at > 0)
        show(s, s->at - 1);
    else
        printf("        the beginning of the run\n");
}

/* ---- who waits ---- */

typedef struct open_waits {
    cddp_event *items; /* (count) waits that have not ended, in the order in which they began */
    size_t count, capacity;
} open_waits;

static bool is_of(const cddp_event *wait, int64_t group, int64_t sequence)
{
    return wait->as.collective_wait.group == group && wait->as.collective_wait.sequence == sequence;
}

/* A wait that failed for want of a peer leads to the cause as one does that still lasts. */
static bool gave_up(const cddp_event *done)
{
    const int64_t status = done->as.collective_done.status;
    return status == CDDP_E_TIMEOUT || status == CDDP_E_BACKEND || status == CDDP_E_IO;
}

/* False: no memory. */
static bool note_wait(open_waits *waits, const cddp_event *e)
{
    if (e->kind == CDDP_EV_collective_wait) {
        if (!cd_vec_grow(NULL, (void **)&waits->items, &waits->capacity, waits->count + 1,
                         sizeof *waits->items))
            return false;
        waits->items[waits->count++] = *e;
    } else if (e->kind == CDDP_EV_collective_done && !gave_up(e)) {
        for (size_t i = waits->count; i-- > 0;) {
            if (waits->items[i].rank != e->rank ||
                !is_of(&waits->items[i], e->as.collective_done.group,
                       e->as.collective_done.sequence))
                continue;
            memmove(&waits->items[i], &waits->items[i + 1],
                    (--waits->count - i) * sizeof *waits->items);
            break;
        }
    }
    return true;
}

/* "0-2 5": the marks of the world's ranks, taken off again. */
static void put_ranks(bool *marked, uint32_t ranks)
{
    for (uint32_t first = 0, last; first < ranks; first = last + 1) {
        for (last = first; marked[last] && last + 1 < ranks && marked[last + 1]; last++) continue;
        if (marked[first] && last > first)
            printf(" %" PRIu32 "-%" PRIu32, first, last);
        else if (marked[first])
            printf(" %" PRIu32, first);
    }
    memset(marked, 0, ranks * sizeof *marked);
}

static uint32_t world_size(const stepper *s)
{
    uint32_t size = 0;
    for (size_t i = 0; i < s->events->count; i++) {
        const cddp_event *e = &s->events->events[i];
        if (e->rank != UINT32_MAX && e->rank >= size) size = e->rank + 1;
    }
    return size;
}

/* Members of the group that have not posted the operation: that is for whom the others wait. */
static void put_missing(const stepper *s, int64_t group, const bool *posted, bool *marked,
                        uint32_t ranks)
{
    bool is_any = false;
    for (size_t i = 0; i < s->at; i++) {
        const cddp_event *e = &s->events->events[i];
        if (e->kind != CDDP_EV_group || e->as.group.group != group || e->rank >= ranks ||
            posted[e->rank])
            continue;
        marked[e->rank] = is_any = true;
    }
    if (is_any) printf("; missing is rank");
    put_ranks(marked, ranks);
}

/* One line for an operation: who waits for it, and who has posted it. A wait-for edge leads to
** everybody else in the group. */
static void report_operation(const stepper *s, open_waits *waits, bool *marked, uint32_t ranks)
{
    const int64_t group = waits->items[0].as.collective_wait.group,
                  sequence = waits->items[0].as.collective_wait.sequence;
    size_t left = 0, together = 0;
    char name[160];
    for (size_t i = 0; i < waits->count; i++) {
        const bool is_this = is_of(&waits->items[i], group, sequence);
        if (is_this)
            marked[waits->items[i].rank] = true;
        else
            waits->items[left++] = waits->items[i];
        together += is_this;
    }
    waits->count = left;
    printf("        rank%s", together > 1 ? "s" : "");
    put_ranks(marked, ranks);
    print_group(s, group, name, sizeof name);
    printf(" wait%s for operation #%" PRId64 " of %s; posted so far by rank",
           together > 1 ? "" : "s", sequence, name);
    for (size_t i = 0; i < s->at; i++) {
        const cddp_event *e = &s->events->events[i];
        if (e->kind == CDDP_EV_collective_post && e->as.collective_post.group == group &&
            e->as.collective_post.sequence == sequence)
            marked[e->rank] = true;
    }
    bool *posted = cd_allocate_array(NULL, ranks, sizeof *posted);
    if (posted != NULL) memcpy(posted, marked, ranks * sizeof *marked);
    put_ranks(marked, ranks);
    if (posted != NULL) put_missing(s, group, posted, marked, ranks);
    cd_release(NULL, posted, ranks * sizeof *posted);
    printf("\n");
}

static void waits(const stepper *s)
{
    open_waits open = {.count = 0};
    const uint32_t ranks = world_size(s);
    bool *marked = cd_allocate_array(NULL, ranks, sizeof *marked),
         has_memory = marked != NULL || ranks == 0;
    for (size_t i = 0; has_memory && i < s->at; i++)
        has_memory = note_wait(&open, &s->events->events[i]);
    if (!has_memory)
        printf("        no memory to tell\n");
    else if (open.count == 0)
        printf("        nobody waits\n");
    while (has_memory && open.count > 0) report_operation(s, &open, marked, ranks);
    cd_release(NULL, marked, ranks * sizeof *marked);
    cd_release(NULL, open.items, open.capacity * sizeof *open.items);
}

/* Digits and nothing else; says so when they are not. */
static bool read_number(const char *text, uint64_t *number)
{
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 18 || text[digits] != '\0') {
        printf("        '%s' is no number\n", text);
        return false;
    }
    *number = strtoull(text, NULL, 10);
    return true;
}

static void bucket(const stepper *s, const char *which)
{
    static const char *const names[] = {"bucket", NULL};
    uint64_t number = 0, found = 0;
    if (!read_number(which, &number)) return;
    for (size_t i = 0; i < s->at; i++) {
        cddp_event event = cd_memory_sink_get(s->events, i);
        const cddp_event_info *info = cddp_event_describe(event.kind);
        for (uint32_t f = 0; f < info->field_count; f++)
            if (strcmp(info->fields[f].name, names[0]) == 0 &&
                event.as.field[f] == (int64_t)number && shown(s, i) &&
                event.kind != CDDP_EV_bucket_layout) {
                show(s, i);
                found++;
            }
    }
    if (found == 0) printf("        nothing happened to bucket %" PRIu64 " so far\n", number);
}

static void go(stepper *s, const char *where)
{
    uint64_t number = 0;
    if (strspn(where, "-0123456789") > 0) {
        if (!read_number(where, &number)) return;
        if (number == 0 || number > s->events->count) {
            printf("        there is no event %" PRIu64 ": they are 1 to %zu\n", number,
                   s->events->count);
            return;
        }
        s->at = (size_t)number; /* the next one is the one behind it */
        show(s, s->at - 1);
        return;
    }
    int32_t kind = cd_event_find(where);
    if (kind < 0) {
        printf("        no event is called '%s' (`cddp-verify list events`)\n", where);
        return;
    }
    for (size_t i = s->at; i < s->events->count; i++) {
        cddp_event event = cd_memory_sink_get(s->events, i);
        if (event.kind != kind || !shown(s, i)) continue;
        s->at = i + 1;
        show(s, i);
        return;
    }
    printf("        no further %s\n", where);
}

static void last(const stepper *s)
{
    size_t first = s->at;
    for (uint32_t count = 0; first > 0 && count < 10;) count += shown(s, --first);
    for (size_t i = first; i < s->at; i++)
        if (shown(s, i)) show(s, i);
}

/* Nothing is once. */
static bool read_count(const char *text, uint64_t *count)
{
    *count = 1;
    return text[0] == '\0' || read_number(text, count);
}

static bool has_rank(const stepper *s, uint64_t rank)
{
    for (size_t i = 0; i < s->events->count; i++)
        if (cd_memory_sink_get(s->events, i).rank == rank) return true;
    return false;
}

static void pick(stepper *s, const char *which)
{
    uint64_t rank = 0;
    if (which[0] == '\0' || strcmp(which, "all") == 0) {
        s->rank = -1;
        printf("        all ranks are shown\n");
    } else if (read_number(which, &rank)) {
        if (!has_rank(s, rank)) {
            printf("        there is no rank %" PRIu64 "\n", rank);
            return;
        }
        s->rank = (int64_t)rank;
        printf("        only rank %" PRIu64 " is shown\n", rank);
    }
}

/* False: leave. */
static bool obey(stepper *s, const char *verb, const char *rest)
{
    uint64_t count = 0;
    if (strcmp(verb, "n") == 0) {
        if (read_count(rest, &count)) forward(s, count);
    } else if (strcmp(verb, "b") == 0) {
        if (read_count(rest, &count)) backward(s, count);
    } else if (strcmp(verb, "goto") == 0) {
        go(s, rest);
    } else if (strcmp(verb, "p") == 0) {
        pick(s, rest);
    } else if (strcmp(verb, "w") == 0) {
        waits(s);
    } else if (strcmp(verb, "bucket") == 0) {
        bucket(s, rest);
    } else if (strcmp(verb, "l") == 0) {
        last(s);
    } else if (strcmp(verb, "q") == 0) {
        return false;
    } else if (strcmp(verb, "help") == 0) {
        fputs(help, stdout);
    } else {
        printf("        '%s' is no command; `help` lists them\n", verb);
    }
    return true;
}

void cd_stepper_run(const cd_memory_sink *events, size_t position)
{
    stepper s = {.events = events, .at = position, .rank = -1};
    bool prompts = isatty(STDIN_FILENO) != 0;
    char line[256], verb[32], rest[128];
    printf("        %zu events; `help` lists the commands\n", events->count);
    for (;;) {
        if (prompts) printf("(%zu) ", s.at);
        /* a reader that has gone reads no answer */
        if (fflush(stdout) != 0) return;
        if (fgets(line, sizeof line, stdin) == NULL) return;
        verb[0] = rest[0] = '\0';
        int fields = sscanf(line, "%31s %127s", verb, rest);
        if (strcmp(rest, "rank") == 0) {
            rest[0] = '\0';
            (void)sscanf(line, "%*s %*s %127s", rest); /* p rank 2 */
        }
        /* An empty line repeats what one most often wants. */
        if (!obey(&s, fields > 0 ? verb : "n", rest)) return;
    }
}
