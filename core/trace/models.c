/* SPDX-License-Identifier: Apache-2.0 */
#include "core/trace/models.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/tracer.h"

#include <string.h>

cddp_status cd_models_init(cd_models *m, uint32_t rank_count, const cddp_allocator *allocator,
                           cddp_error *err)
{
    *m = (cd_models){.allocator = allocator, .rank_count = rank_count, .count = 1};
    m->current = cd_allocate_array(allocator, rank_count, sizeof *m->current);
    return m->current != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

void cd_models_fini(cd_models *m)
{
    cd_release(m->allocator, m->current, m->rank_count * sizeof *m->current);
    m->current = NULL;
}

void cd_models_begin(cd_models *m, int64_t shown, const cddp_trace_sink *where)
{
    m->shown = shown;
    m->where = where;
    memset(m->current, 0, m->rank_count * sizeof *m->current);
}

/* What belongs to no module: the run, groups and what goes through them. */
static bool is_common(uint16_t kind)
{
    switch (kind) {
    case CDDP_EV_run_begin:
    case CDDP_EV_run_end:
    case CDDP_EV_rank_begin:
    case CDDP_EV_rank_end:
    case CDDP_EV_mark:
    case CDDP_EV_error:
    case CDDP_EV_source:
    case CDDP_EV_cause:
    case CDDP_EV_group:
    case CDDP_EV_group_close:
    case CDDP_EV_collective_post:
    case CDDP_EV_collective_share:
    case CDDP_EV_collective_done:
    case CDDP_EV_collective_wait:
    case CDDP_EV_waiting_for:
    case CDDP_EV_group_abort:
        return true;
    default:
        return false;
    }
}

static bool is_data(uint16_t kind)
{
    return kind == CDDP_EV_seed || kind == CDDP_EV_sample || kind == CDDP_EV_samples;
}

static void note(cd_models *m, int64_t module, const cddp_event *e)
{
    if (module < 0) return;
    m->is_reduced[module] |= e->kind == CDDP_EV_grad_final;
    m->is_named[module] |= e->kind == CDDP_EV_grad_local || e->kind == CDDP_EV_optimizer_touch;
}

bool cd_models_has_unnamed(const cd_models *m)
{
    bool has = false, speaks = false;
    for (int64_t i = 0; i < m->count; i++) {
        has |= m->is_reduced[i] && !m->is_named[i];
        speaks |= m->is_named[i];
    }
    return has && speaks;
}

bool cd_models_is_mark(const cddp_event *e)
{
    return e->kind == CDDP_EV_mark && e->text != NULL && strcmp(e->text, CD_TRACER_WRAPPED) == 0;
}

void cd_models_push(cd_models *m, const cddp_event *e)
{
    const bool is_rank = e->rank < m->rank_count;
    if (is_rank && cd_models_is_mark(e) && e->as.mark.value >= -1 &&
        e->as.mark.value < CD_MODELS_MAX) {
        m->current[e->rank] = e->as.mark.value;
        if (e->as.mark.value >= m->count) m->count = e->as.mark.value + 1;
    }
    if (is_rank) note(m, m->current[e->rank], e);
    if (m->where == NULL) return;
    const bool is_other = is_rank && m->current[e->rank] != m->shown;
    if (!is_other) {
        m->where->event(m->where->self, e);
    } else if (is_common(e->kind) || (is_data(e->kind) && !m->has_own_data)) {
        cddp_event shown = *e;
        if (e->kind == CDDP_EV_collective_post) shown.as.collective_post.bucket = -1;
        m->where->event(m->where->self, &shown);
    }
}
