/* SPDX-License-Identifier: Apache-2.0 */
/* Merging traces: events of several sinks, or of several ranks in one sink, in (time, rank,
** sequence) order. */
#include "core/check/check.h"

#include "core/base/arena.h"
#include "core/base/error.h"

#include <stdlib.h>

typedef struct event_ref {
    uint64_t time_ns, sequence;
    uint32_t rank, trace;
    size_t index;
} event_ref;

static int compare_refs(const void *a, const void *b)
{
    const event_ref *x = a, *y = b;
    if (x->time_ns != y->time_ns) return x->time_ns < y->time_ns ? -1 : 1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->sequence != y->sequence) return x->sequence < y->sequence ? -1 : 1;
    if (x->trace != y->trace) return x->trace < y->trace ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

cddp_status cd_trace_merge(const cd_merge_input *input, const cddp_trace_sink *sink,
                           cddp_error *err)
{
    size_t count = 0, filled = 0;
    for (size_t t = 0; t < input->trace_count; t++) count += input->traces[t].count;
    cd_arena scratch;
    cd_arena_init(&scratch, input->allocator, 0);
    event_ref *refs = cd_arena_array(&scratch, count, sizeof *refs);
    if (refs == NULL) return cd_fail_memory(err, "a merge of %zu events", count);
    bool is_sorted = true;
    for (size_t t = 0; t < input->trace_count; t++) {
        for (size_t i = 0; i < input->traces[t].count; i++) {
            const cddp_event *e = &input->traces[t].events[i];
            refs[filled] = (event_ref){e->time_ns, e->sequence, e->rank, (uint32_t)t, i};
            if (filled > 0 && compare_refs(&refs[filled - 1], &refs[filled]) > 0) is_sorted = false;
            filled++;
        }
    }
    if (!is_sorted) qsort(refs, count, sizeof *refs, compare_refs);
    for (size_t i = 0; i < count; i++) {
        cddp_event event = cd_memory_sink_get(&input->traces[refs[i].trace], refs[i].index);
        sink->event(sink->self, &event);
    }
    cd_arena_fini(&scratch);
    return CDDP_OK;
}
