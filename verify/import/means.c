/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/means.h"

#include "cddp/tensor.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/tracer.h"

#include <math.h>

#define VARIABLES_MAX (INT64_C(1) << 24)

static bool grow(cd_means *m, void **items, size_t *capacity, size_t needed, size_t bytes)
{
    const bool has = cd_vec_grow(m->allocator, items, capacity, needed, bytes);
    m->is_out_of_memory |= !has;
    return has;
}

static cd_means_variable *find_variable(cd_means *m, cd_means_rank *r, int64_t variable)
{
    if (variable < 0 || variable >= VARIABLES_MAX) return NULL;
    const size_t needed = (size_t)variable + 1;
    if (!grow(m, (void **)&r->variables, &r->capacity, needed, sizeof *r->variables)) return NULL;
    while (r->count < needed) r->variables[r->count++] = (cd_means_variable){.bucket = -1};
    return &r->variables[variable];
}

static cd_means_group *find_group(cd_means *m, int64_t id)
{
    for (size_t i = 0; i < m->group_count; i++)
        if (m->groups[i].id == id) return &m->groups[i];
    if (!grow(m, (void **)&m->groups, &m->group_capacity, m->group_count + 1, sizeof *m->groups))
        return NULL;
    m->groups[m->group_count] = (cd_means_group){.id = id};
    return &m->groups[m->group_count++];
}

/* The reduction with this number, made when it is the next one. NULL: it is over. */
static cd_means_entry *find_entry(cd_means *m, cd_means_group *g, size_t variable, uint64_t number)
{
    if (!grow(m, (void **)&g->series, &g->capacity, variable + 1, sizeof *g->series)) return NULL;
    while (g->count <= variable) g->series[g->count++] = (cd_means_series){.base = 0};
    cd_means_series *s = &g->series[variable];
    if (number < s->base) return NULL;
    const size_t needed = (size_t)(number - s->base) + 1;
    if (!grow(m, (void **)&s->entries, &s->capacity, needed, sizeof *s->entries)) return NULL;
    while (s->count < needed) s->entries[s->count++] = (cd_means_entry){.ranks = 0};
    return &s->entries[needed - 1];
}

/* See Note [Projections of a mean]. */
static void judge(cd_means *m, const cd_means_entry *e, int64_t members, int64_t variable)
{
    const bool is_single = e->dtype == CDDP_F32;
    const double w = (double)members, n = (double)e->numel;
    const double roundoff = is_single ? 0x1p-24 : 0x1p-53, tiny = is_single ? 0x1p-149 : 0x1p-1074;
    const double terms = (w + 2) * roundoff;
    const double bound =
        (terms / (1 - terms) + 8 * n * 0x1p-53) * e->magnitude / w + 2 * n * w * tiny;
    if (e->is_short || !isfinite(e->sum) || !isfinite(e->reduced)) {
        m->unshown++; /* what is not finite is I-RANGE's */
    } else if (fabs(e->reduced - e->sum / w) <= bound) {
        m->means++;
    } else if (fabs(e->reduced - e->sum) <= w * bound && !e->is_wrapped) {
        m->sums++;
    } else if (m->others++ == 0) {
        m->other_step = e->step;
        m->other_variable = variable;
    }
}

/* All ranks have shown it; earlier ones that a rank left out are over, too. */
static void settle(cd_means *m, const cd_means_group *g, int64_t variable)
{
    cd_means_series *s = &g->series[variable];
    size_t over = 0;
    while (over < s->count && (int64_t)s->entries[over].ranks >= g->members) {
        judge(m, &s->entries[over], g->members, variable);
        over++;
    }
    if (over == 0) return;
    for (size_t i = over; i < s->count; i++) s->entries[i - over] = s->entries[i];
    s->count -= over;
    s->base += over;
}

/* A rank's part of a reduction; projection NULL: it did not show the result. */
static void close_reduction(cd_means *m, cd_means_rank *r, cd_means_variable *v, int64_t variable,
                            const cddp_event *projection)
{
    cd_means_group *g = r->has_group ? find_group(m, r->group) : NULL;
    cd_means_entry *e =
        g != NULL && g->members > 0 ? find_entry(m, g, (size_t)variable, v->reductions) : NULL;
    v->reductions++;
    v->is_open = false;
    if (e != NULL) {
        e->sum += v->sum;
        e->magnitude += v->magnitude;
        e->is_short |= projection == NULL;
        e->is_wrapped |= v->bucket >= 0;
        if (projection != NULL) {
            const cddp_event_projection *p = &projection->as.projection;
            e->is_short |= e->numel != 0 && (e->numel != p->numel || e->dtype != p->dtype);
            e->reduced = cd_f64_of(p->sum);
            e->numel = p->numel;
            e->dtype = p->dtype;
            e->step = projection->step;
        }
        e->ranks++;
        settle(m, g, variable);
    }
    v->sum = v->magnitude = 0;
}

static void take_final(cd_means *m, cd_means_rank *r, const cddp_event *e)
{
    cd_means_variable *v = find_variable(m, r, e->as.grad_final.param);
    if (v == NULL) return;
    if (v->is_open) close_reduction(m, r, v, e->as.grad_final.param, NULL);
    v->is_open = true;
    v->bucket = e->as.grad_final.bucket;
}

static void take_projection(cd_means *m, cd_means_rank *r, const cddp_event *e)
{
    const cddp_event_projection *p = &e->as.projection;
    cd_means_variable *v = find_variable(m, r, p->param);
    if (v == NULL) return;
    if (p->reduced) {
        if (v->is_open) close_reduction(m, r, v, p->param, e);
        return;
    }
    v->sum = cd_f64_of(p->sum); /* of everything accumulated so far */
    v->magnitude = cd_f64_of(p->magnitude);
}

void cd_means_push(cd_means *m, const cddp_event *e)
{
    cd_means_rank *r = &m->ranks[e->rank];
    cd_means_group *g;
    switch (e->kind) {
    case CDDP_EV_group:
        g = find_group(m, e->as.group.group);
        if (g != NULL) g->members = e->as.group.members;
        break;
    case CDDP_EV_wrap:
        r->group = e->as.wrap.group;
        r->has_group = true;
        break;
    case CDDP_EV_hook_in_force:
        m->has_hook = true;
        break;
    case CDDP_EV_join_notify:
        m->has_join = true;
        break;
    case CDDP_EV_grad_final:
        take_final(m, r, e);
        break;
    case CDDP_EV_projection:
        take_projection(m, r, e);
        break;
    default:
        break;
    }
}

cddp_status cd_means_init(cd_means *m, uint32_t rank_count, const cddp_allocator *allocator,
                          cddp_error *err)
{
    *m = (cd_means){.allocator = allocator, .rank_count = rank_count};
    m->ranks = cd_allocate_array(allocator, rank_count, sizeof *m->ranks);
    return m->ranks != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

void cd_means_fini(cd_means *m)
{
    for (uint32_t i = 0; m->ranks != NULL && i < m->rank_count; i++)
        cd_release(m->allocator, m->ranks[i].variables,
                   m->ranks[i].capacity * sizeof *m->ranks[i].variables);
    for (size_t i = 0; i < m->group_count; i++) {
        cd_means_group *g = &m->groups[i];
        for (size_t k = 0; k < g->count; k++)
            cd_release(m->allocator, g->series[k].entries,
                       g->series[k].capacity * sizeof *g->series[k].entries);
        cd_release(m->allocator, g->series, g->capacity * sizeof *g->series);
    }
    cd_release(m->allocator, m->groups, m->group_capacity * sizeof *m->groups);
    cd_release(m->allocator, m->ranks, m->rank_count * sizeof *m->ranks);
    m->ranks = NULL;
    m->groups = NULL;
}
