/* SPDX-License-Identifier: Apache-2.0 */
/* What a run cost. A rank waits for one operation at a time; an operation that ended before the
** wait began costs it nothing. */
#include "verify/sweep/measure.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"

#define RANKS_MAX 65536

typedef struct cd_measure_rank {
    bool has_begun; /* what is measured */
    bool is_waiting;
    uint64_t begin_ns, end_ns, wait_ns, exposed_ns;
    int64_t group, sequence; /* that it waits for */
    uint64_t bytes, steps, memory, memory_peak;
    int64_t generation;
    uint64_t bucket_bytes, bucket_peak; /* of the layout of that generation; of the largest one */
    bool is_sharded, is_in_pass; /* between the first unit's forward and the end of backward */
    uint64_t pass_begin_ns, pass_ns, full_bytes, full_peak;
} cd_measure_rank;

typedef struct cd_region {
    uint32_t rank;
    int64_t region;
    uint64_t bytes;
} cd_region;

void cd_measure_init(cd_measure *m, uint64_t skip)
{
    *m = (cd_measure){.skip = skip};
    cd_arena_init(&m->arena, NULL, 1 << 14);
}

void cd_measure_fini(cd_measure *m) { cd_arena_fini(&m->arena); }

static cd_measure_rank *rank_of(cd_measure *m, uint32_t rank)
{
    if (rank >= RANKS_MAX) return NULL;
    if (rank >= m->rank_count) {
        if (!cd_arena_grow(&m->arena, (void **)&m->ranks, &m->rank_capacity, rank + 1,
                           sizeof *m->ranks))
            return NULL;
        while (m->rank_count <= rank) m->ranks[m->rank_count++] = (cd_measure_rank){0};
    }
    return &m->ranks[rank];
}

static void take_memory(cd_measure *m, cd_measure_rank *r, const cddp_event *e)
{
    const cddp_event_memory *a = &e->as.memory;
    if (a->released == 0) {
        if (!cd_arena_grow(&m->arena, (void **)&m->regions, &m->region_capacity,
                           m->region_count + 1, sizeof *m->regions))
            return;
        m->regions[m->region_count++] = (cd_region){e->rank, a->region, (uint64_t)a->bytes};
        r->memory += (uint64_t)a->bytes;
        if (r->memory > r->memory_peak) r->memory_peak = r->memory;
        return;
    }
    for (size_t i = m->region_count; i-- > 0;) {
        const cd_region *known = &m->regions[i];
        if (known->rank != e->rank || known->region != a->region) continue;
        r->memory -= known->bytes;
        m->regions[i] = m->regions[--m->region_count];
        return;
    }
}

static void take_slot(cd_measure_rank *r, const cddp_event_bucket_layout *l)
{
    if (l->numel <= 0 || l->dtype < 0 || l->dtype >= CDDP_DTYPE_COUNT) return;
    if (l->generation != r->generation) r->bucket_bytes = 0;
    r->generation = l->generation;
    r->bucket_bytes += (uint64_t)l->numel * cddp_dtype_bytes((cddp_dtype)l->dtype);
    if (r->bucket_bytes > r->bucket_peak) r->bucket_peak = r->bucket_bytes;
}

static void begin(cd_measure_rank *r, uint64_t time_ns)
{
    if (!r->has_begun) r->begin_ns = time_ns;
    r->has_begun = true;
}

/* Several optimizers step more than once: what is left out ends with the last of them. */
static void take_step(const cd_measure *m, cd_measure_rank *r, const cddp_event *e)
{
    if (e->step + 1 > m->skip && e->step + 1 - m->skip > r->steps) r->steps = e->step + 1 - m->skip;
    if (m->skip > 0 && e->step + 1 == m->skip) {
        r->has_begun = true;
        r->begin_ns = e->time_ns;
    }
    r->end_ns = e->time_ns;
}

static void take_unit_pass(cd_measure_rank *r, const cddp_event *e)
{
    const cddp_event_unit_pass *p = &e->as.unit_pass;
    if (p->pass == CDDP_UNIT_PRE_FORWARD && p->grad_mode != 0 && !r->is_in_pass) {
        /* what was shown until here */
        if (!r->is_sharded) r->bytes = r->exposed_ns = r->full_peak = 0;
        r->is_sharded = r->is_in_pass = true;
        r->pass_begin_ns = e->time_ns;
    } else if (p->pass == CDDP_UNIT_BACKWARD_END && r->is_in_pass) {
        if (r->has_begun) r->pass_ns += e->time_ns - r->pass_begin_ns;
        r->is_in_pass = false;
    }
}

static void take_full(cd_measure_rank *r, const cddp_event_unit_storage *s)
{
    if (r->is_sharded && !r->is_in_pass) return;
    r->full_bytes += s->released != 0 ? 0 - (uint64_t)s->bytes : (uint64_t)s->bytes;
    if (r->full_bytes > r->full_peak) r->full_peak = r->full_bytes;
}

/* Does what a rank does now belong to a step? */
static bool counts(const cd_measure_rank *r)
{
    return r->has_begun && (!r->is_sharded || r->is_in_pass);
}

static void take_event(void *self, const cddp_event *e)
{
    cd_measure *m = self;
    cd_measure_rank *r = rank_of(m, e->rank);
    if (r == NULL) return;
    switch (e->kind) {
    case CDDP_EV_forward_begin:
        if (m->skip == 0) begin(r, e->time_ns);
        break;
    case CDDP_EV_optimizer_step:
        take_step(m, r, e);
        break;
    case CDDP_EV_collective_post: {
        const cddp_event_collective_post *c = &e->as.collective_post;
        if (counts(r) && c->numel > 0 && c->dtype >= 0 && c->dtype < CDDP_DTYPE_COUNT)
            r->bytes += (uint64_t)c->numel * cddp_dtype_bytes((cddp_dtype)c->dtype);
        break;
    }
    case CDDP_EV_collective_wait:
        r->is_waiting = counts(r);
        r->wait_ns = e->time_ns;
        r->group = e->as.collective_wait.group;
        r->sequence = e->as.collective_wait.sequence;
        break;
    case CDDP_EV_collective_done:
        if (!r->is_waiting || r->group != e->as.collective_done.group ||
            r->sequence != e->as.collective_done.sequence)
            break;
        r->is_waiting = false;
        r->exposed_ns += e->time_ns - r->wait_ns;
        break;
    case CDDP_EV_bucket_layout:
        take_slot(r, &e->as.bucket_layout);
        break;
    case CDDP_EV_memory:
        take_memory(m, r, e);
        break;
    case CDDP_EV_unit_pass:
        take_unit_pass(r, e);
        break;
    case CDDP_EV_unit_storage:
        take_full(r, &e->as.unit_storage);
        break;
    default:
        break;
    }
}

const cddp_trace_sink *cd_measure_sink(cd_measure *m)
{
    m->sink = (cddp_trace_sink){sizeof m->sink, CDDP_TRACE_ABI, m, take_event, NULL};
    return &m->sink;
}

cddp_status cd_measure_end(const cd_measure *m, cd_cost *cost, cddp_error *err)
{
    CD_TRY(cd_arena_check(&m->arena, err, "what %zu ranks cost", m->rank_count));
    *cost = (cd_cost){0};
    uint64_t begin_ns = m->skip > 0 ? 0 : UINT64_MAX, end_ns = 0, steps = 0;
    for (size_t i = 0; i < m->rank_count; i++) {
        const cd_measure_rank *r = &m->ranks[i];
        if (!r->has_begun || r->steps == 0) continue;
        const double count = (double)r->steps;
        /* a step ends with its last rank, also the one before the first that is measured */
        if (m->skip > 0 ? r->begin_ns > begin_ns : r->begin_ns < begin_ns) begin_ns = r->begin_ns;
        if (r->end_ns > end_ns) end_ns = r->end_ns;
        if (r->steps > steps) steps = r->steps;
        if ((double)r->exposed_ns / count > cost->exposed_ns)
            cost->exposed_ns = (double)r->exposed_ns / count;
        if ((double)r->bytes / count > cost->bytes) cost->bytes = (double)r->bytes / count;
        const double memory = (double)(r->memory_peak + r->bucket_peak + r->full_peak);
        if (memory > cost->memory) cost->memory = memory;
        if (r->is_sharded && (double)r->pass_ns / count > cost->step_ns)
            cost->step_ns = (double)r->pass_ns / count;
    }
    if (cost->step_ns > 0) return CDDP_OK;
    if (steps > 0 && end_ns > begin_ns) cost->step_ns = (double)(end_ns - begin_ns) / (double)steps;
    return CDDP_OK;
}
