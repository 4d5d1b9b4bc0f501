/* SPDX-License-Identifier: Apache-2.0 */
/* The stepper: a position in a list of events, and questions about the moment right after it.
**
** The run is deterministic, so a recorded list is the run: going back is going to a smaller number.
*/
#include "cli/stepper.h"

#include "cddp/backend.h"
#include "core/trace/event.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct stepper {
    const cd_memory_sink *events;
    size_t at; /* events before it have happened */
    int64_t rank; /* only this one is shown; -1: all */
} stepper;

static const char help[] =
    "  n [N]        the next event, or the next N\n"
    "  b [N]        back by one, or by N\n"
    "  goto N|NAME  to event number N, or to the next event of that name (as in goto bucket_launch)\n"
    "  p RANK|all   show this rank only, as in p 2 or p rank 2; or all again\n"
    "  w            who waits for whom at this moment\n"
    "  bucket B     what happened to bucket B so far\n"
    "  l            the last ten events\n"
    "  q            leave\n";

static void show(const stepper *s, size_t index)
{
    cddp_event event = cd_memory_sink_get(s->events, index);
    char text[768];
    cd_event_print(&event, text, sizeof text);
    printf("%6zu  %s\n", index, text);
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
    if (s->at > 0) show(s, s->at - 1);
    else printf("        the beginning of the run\n");
}

/* Posted and not ended: that is what a rank can wait for. A wait-for edge leads to every rank that has not
** posted the same operation of the same group. */
static void waits(const stepper *s)
{
    bool any = false;
    for (size_t i = 0; i < s->at; i++) {
        cddp_event wait = cd_memory_sink_get(s->events, i);
        if (wait.kind != CDDP_EV_collective_wait) continue;
        bool ended = false;
        uint64_t posted = 0;
        for (size_t k = 0; k < s->at; k++) {
            cddp_event e = cd_memory_sink_get(s->events, k);
            const cddp_event_collective_wait *w = &wait.as.collective_wait;
            if (e.kind == CDDP_EV_collective_done && e.rank == wait.rank && e.as.collective_done.group == w->group &&
                e.as.collective_done.sequence == w->sequence)
                ended = true;
            if (e.kind == CDDP_EV_collective_post && e.as.collective_post.group == w->group && e.as.collective_post.sequence == w->sequence &&
                e.rank < 64)
                posted |= UINT64_C(1) << e.rank;
        }
        if (ended) continue;
        any = true;
        printf("        rank %" PRIu32 " waits for operation #%" PRId64 " of group %" PRId64 "; posted so far by rank", wait.rank,
               wait.as.collective_wait.sequence, wait.as.collective_wait.group);
        for (uint32_t r = 0; r < 64; r++)
            if (posted >> r & 1) printf(" %" PRIu32, r);
        printf("\n");
    }
    if (!any) printf("        nobody waits\n");
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
            if (strcmp(info->fields[f].name, names[0]) == 0 && event.as.field[f] == (int64_t)number && shown(s, i) &&
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
        if (number >= s->events->count) {
            printf("        there is no event %" PRIu64 ": they are 0 to %zu\n", number, s->events->count - 1);
            return;
        }
        s->at = (size_t)number + 1; /* the next one is the one behind it */
        show(s, (size_t)number);
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
    } else if (strcmp(verb, "goto") == 0) go(s, rest);
    else if (strcmp(verb, "p") == 0) pick(s, rest);
    else if (strcmp(verb, "w") == 0) waits(s);
    else if (strcmp(verb, "bucket") == 0) bucket(s, rest);
    else if (strcmp(verb, "l") == 0) last(s);
    else if (strcmp(verb, "q") == 0) return false;
    else if (strcmp(verb, "help") == 0) fputs(help, stdout);
    else printf("        '%s' is no command; `help` lists them\n", verb);
    return true;
}

void cd_stepper_run(const cd_cli *cli, const cd_memory_sink *events, size_t position)
{
    stepper s = {.events = events, .at = position, .rank = -1};
    bool prompts = isatty(STDIN_FILENO) != 0;
    char line[256], verb[32], rest[128];
    (void)cli;
    printf("        %zu events; `help` lists the commands\n", events->count);
    for (;;) {
        if (prompts) printf("(%zu) ", s.at);
        fflush(stdout);
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
