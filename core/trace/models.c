/* SPDX-License-Identifier: Apache-2.0 */
#include "core/trace/models.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/tracer.h"

#include <string.h>

cddp_status cd_models_init(cd_models *m, uint32_t rank_count, const cddp_allocator *allocator,
                           cddp_error *err)
{
    *m = (cd_models){.allocator = allocator,
                     .rank_count = rank_count,
                     .count = 1,
                     .number_count = 1};
    m->current = cd_allocate_array(allocator, rank_count, sizeof *m->current);
    return m->current != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

void cd_models_fini(cd_models *m)
{
    cd_release(m->allocator, m->current, m->rank_count * sizeof *m->current);
    cd_release(m->allocator, m->homes, m->home_capacity * sizeof *m->homes);
    cd_release(m->allocator, m->modules, m->module_capacity * sizeof *m->modules);
    m->homes = NULL;
    m->modules = NULL;
    m->current = NULL;
}

/* ---- which module a number is, on which rank ---- */

/* In order of the number, then of the group. */
static void note_module(cd_models *m, int64_t number, int64_t group)
{
    size_t at = 0;
    while (at < m->module_count &&
           (m->modules[at].number < number ||
            (m->modules[at].number == number && m->modules[at].group < group)))
        at++;
    if (at < m->module_count && m->modules[at].number == number && m->modules[at].group == group)
        return;
    if (!cd_vec_grow(m->allocator, (void **)&m->modules, &m->module_capacity, m->module_count + 1,
                     sizeof *m->modules))
        return;
    memmove(&m->modules[at + 1], &m->modules[at], (m->module_count - at) * sizeof *m->modules);
    m->modules[at] = (cd_models_module){number, group};
    m->module_count++;
}

static const cd_models_home *find_home(const cd_models *m, uint32_t rank, int64_t number)
{
    for (size_t i = 0; i < m->home_count; i++)
        if (m->homes[i].rank == rank && m->homes[i].module.number == number) return &m->homes[i];
    return NULL;
}

static void note_home(cd_models *m, uint32_t rank, int64_t number, int64_t group)
{
    note_module(m, number, group);
    if (find_home(m, rank, number) != NULL) return;
    if (!cd_vec_grow(m->allocator, (void **)&m->homes, &m->home_capacity, m->home_count + 1,
                     sizeof *m->homes))
        return;
    m->homes[m->home_count++] = (cd_models_home){rank, {number, group}};
}

/* How many modules more there are than numbers, up to this place of the list. */
static int64_t count_extra(const cd_models *m, size_t end)
{
    int64_t extra = 0;
    for (size_t i = 1; i < end; i++) extra += m->modules[i].number == m->modules[i - 1].number;
    return extra;
}

static void separate(cd_models *m)
{
    const int64_t extra = count_extra(m, m->module_count);
    if (extra == 0 || m->count + extra > CD_MODELS_MAX) return;
    m->count += extra;
    m->is_apart = true;
}

/* A rank that wrapped none of this number counts as one of the first module with it. */
static int64_t index_of(const cd_models *m, uint32_t rank, int64_t number)
{
    const cd_models_home *home = m->is_apart ? find_home(m, rank, number) : NULL;
    size_t at = 0;
    while (at < m->module_count && m->modules[at].number < number) at++;
    while (home != NULL && at < m->module_count && m->modules[at].group != home->module.group) at++;
    return m->is_apart ? number + count_extra(m, at < m->module_count ? at + 1 : at) : number;
}

void cd_models_begin(cd_models *m, int64_t shown, const cddp_trace_sink *where)
{
    m->shown = shown;
    m->where = where;
    if (where != NULL && !m->is_apart) separate(m);
    for (uint32_t rank = 0; rank < m->rank_count; rank++)
        m->current[rank] = where != NULL ? index_of(m, rank, 0) : 0;
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

/* What a recorder saw of the parameters and gradients of a wrapper, which it numbers. */
static bool is_own_mark(const cddp_event *e)
{
    static const char *const own[] = {CD_TRACER_HELD,
                                      CD_TRACER_CLEARED,
                                      CD_TRACER_NOT_CLEARED,
                                      CD_TRACER_ONE_HELD,
                                      CD_TRACER_CHANGED,
                                      CD_TRACER_CHANGED_LAST,
                                      CD_TRACER_GRADIENT_CHANGED,
                                      CD_TRACER_GIVEN_CHANGED,
                                      CD_TRACER_ELSEWHERE,
                                      CD_TRACER_READY_WRITTEN,
                                      CD_TRACER_HOOKED_WRITTEN};
    if (e->kind != CDDP_EV_mark || e->text == NULL) return false;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strcmp(e->text, own[i]) == 0) return true;
    return false;
}

static bool is_data(uint16_t kind)
{
    return kind == CDDP_EV_seed || kind == CDDP_EV_sample || kind == CDDP_EV_samples;
}

static void take_count(cd_models *m, const cddp_event *e)
{
    const int64_t module = m->current[e->rank];
    if (module < 0) return;
    if (e->kind == CDDP_EV_wrap) note_home(m, e->rank, module, e->as.wrap.group);
    m->is_reduced[module] |= e->kind == CDDP_EV_grad_final;
    m->is_named[module] |= e->kind == CDDP_EV_grad_local || e->kind == CDDP_EV_optimizer_touch;
}

bool cd_models_has_unnamed(const cd_models *m)
{
    bool has = false, speaks = false;
    for (int64_t i = 0; i < m->number_count; i++) {
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
        m->current[e->rank] =
            m->where != NULL ? index_of(m, e->rank, e->as.mark.value) : e->as.mark.value;
        if (!m->is_apart && e->as.mark.value >= m->count) m->count = e->as.mark.value + 1;
        if (e->as.mark.value >= m->number_count) m->number_count = e->as.mark.value + 1;
    }
    if (m->where == NULL) {
        if (is_rank) take_count(m, e);
        return;
    }
    const bool is_other = is_rank && m->current[e->rank] != m->shown;
    if (!is_other) {
        m->where->event(m->where->self, e);
    } else if (is_own_mark(e)) {
        return;
    } else if (is_common(e->kind) || (is_data(e->kind) && !m->has_own_data)) {
        cddp_event shown = *e;
        if (e->kind == CDDP_EV_collective_post) shown.as.collective_post.bucket = -1;
        m->where->event(m->where->self, &shown);
    }
}
