/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/means.h"

#include "cddp/tensor.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Beyond these an index is damage. */
#define VARIABLES_MAX (INT64_C(1) << 24)
#define BUCKETS_MAX (INT64_C(1) << 20)

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
    while (r->count < needed)
        r->variables[r->count++] =
            (cd_means_variable){.bucket = -1, .bucket_dtype = -1, .dtype = -1};
    return &r->variables[variable];
}

static uint64_t *find_stated(cd_means *m, cd_means_rank *r, int64_t bucket)
{
    if (bucket < 0 || bucket >= BUCKETS_MAX) return NULL;
    const size_t needed = (size_t)bucket + 1;
    if (!grow(m, (void **)&r->stated, &r->stated_capacity, needed, sizeof *r->stated)) return NULL;
    while (r->stated_count < needed) r->stated[r->stated_count++] = 0;
    return &r->stated[bucket];
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

static void release_entry(cd_means *m, cd_means_entry *e)
{
    cd_release(m->allocator, e->parts, m->rank_count * sizeof *e->parts);
    e->parts = NULL;
}

/* The reduction with this number, made when it is the next one. NULL: it is over. */
static cd_means_entry *find_entry(cd_means *m, cd_means_group *g, size_t variable, uint64_t number)
{
    if (!grow(m, (void **)&g->series, &g->capacity, variable + 1, sizeof *g->series)) return NULL;
    while (g->count <= variable) g->series[g->count++] = (cd_means_series){.before = (double)NAN};
    cd_means_series *s = &g->series[variable];
    if (number < s->base) return NULL;
    const size_t needed = (size_t)(number - s->base) + 1;
    if (!grow(m, (void **)&s->entries, &s->capacity, needed, sizeof *s->entries)) return NULL;
    while (s->count < needed) {
        double *parts = cd_allocate_array(m->allocator, m->rank_count, sizeof *parts);
        m->is_out_of_memory |= parts == NULL;
        if (parts == NULL) return NULL;
        s->entries[s->count++] = (cd_means_entry){.parts = parts};
    }
    return &s->entries[needed - 1];
}

/* ---- judging ---- */

/* An allowed distance from the sum of what entered, divided by `divisor`. */
static double bound_of(const cd_means_entry *e, int64_t members, double divisor)
{
    const double w = (double)members, n = (double)e->numel;
    const double terms = (w + 2) * e->roundoff, casts = e->is_cast ? 4 : 2;
    return (terms / (1 - terms) + 8 * n * 0x1p-53) * e->magnitude / divisor +
           casts * n * w * e->tiny;
}

static bool is_near(const cd_means_entry *e, int64_t members, double sum, double divisor)
{
    return fabs(e->reduced - sum / divisor) <= bound_of(e, members, divisor);
}

static bool explains(const cd_means_explanation *x, const cd_means_entry *e, int64_t members,
                     uint64_t divisor, double before)
{
    const double d = (double)divisor;
    const bool is_of_rank = x->cause == CD_MEANS_MISSING || x->cause == CD_MEANS_TWICE;
    const double part = is_of_rank ? e->parts[x->number] : 0;
    switch (x->cause) {
    case CD_MEANS_DIVISOR:
        return (uint64_t)x->number != divisor && is_near(e, members, e->sum, (double)x->number);
    case CD_MEANS_MISSING:
        return part != 0 && (is_near(e, members, e->sum - part, d) ||
                             (d > 1 && is_near(e, members, e->sum - part, d - 1)));
    case CD_MEANS_TWICE:
        return part != 0 && is_near(e, members, e->sum + part, d);
    case CD_MEANS_NEGATED:
        return is_near(e, members, -e->sum, d);
    case CD_MEANS_STALE:
        return before != 0 && fabs(e->reduced - before) <= bound_of(e, members, d);
    case CD_MEANS_UNEXPLAINED:
    default:
        return false;
    }
}

static void propose(cd_means *m, cd_means_cause cause, int64_t number)
{
    if (!grow(m, (void **)&m->explanations, &m->explanation_capacity, m->explanation_count + 1,
              sizeof *m->explanations))
        return;
    m->explanations[m->explanation_count++] = (cd_means_explanation){cause, number};
}

static void propose_all(cd_means *m, int64_t members)
{
    for (int64_t d = 1; d <= 2 * members; d++) propose(m, CD_MEANS_DIVISOR, d);
    if (members > 2) propose(m, CD_MEANS_DIVISOR, members * members);
    propose(m, CD_MEANS_NEGATED, 0);
    propose(m, CD_MEANS_STALE, 0);
    for (uint32_t rank = 0; rank < m->rank_count; rank++) propose(m, CD_MEANS_MISSING, rank);
    for (uint32_t rank = 0; rank < m->rank_count; rank++) propose(m, CD_MEANS_TWICE, rank);
}

/* What explains all wrong reductions so far stays. */
static void note_wrong(cd_means *m, const cd_means_entry *e, const cd_means_wrong *wrong,
                       int64_t members, double before)
{
    size_t kept = 0;
    const bool is_first = m->others++ == 0;
    if (is_first) m->wrong = *wrong;
    if (is_first) propose_all(m, members);
    for (size_t i = 0; i < m->explanation_count; i++)
        if (explains(&m->explanations[i], e, members, wrong->divisor, before))
            m->explanations[kept++] = m->explanations[i];
    m->explanation_count = kept;
    m->is_promised |= e->promise == CDDP_PROMISE_MEAN || e->promise == CDDP_PROMISE_SUM;
    m->is_hooked = (is_first || m->is_hooked) && e->has_hook;
}

/* By what the sum of what entered is to be divided. */
static uint64_t divisor_of(const cd_means_entry *e, int64_t members)
{
    const uint64_t w = (uint64_t)members;
    if (e->promise == CDDP_PROMISE_SUM) return 1;
    if (e->counts_contributions) return e->contributions > 0 ? e->contributions : w;
    if (!e->has_hook && e->divides_by_active && e->joined < w) return w - e->joined;
    return w;
}

/* A law was stated for its bucket on every rank, by whom a law can be taken from. */
static bool is_stated(const cd_means_entry *e)
{
    const bool may = e->promise == CDDP_PROMISE_STATED || e->promise == CDDP_PROMISE_OWN;
    return may && e->ranks > e->joined && e->stated >= e->ranks - e->joined;
}

static void count_right(cd_means *m, const cd_means_entry *e, cd_means_series *s, double mean,
                        double bound, uint64_t divisor)
{
    const bool is_coarse = e->roundoff > 0x1p-20;
    const bool has_power = fabs(mean) > 2 * bound * ((double)divisor + 1);
    s->seen += !is_coarse || has_power || e->stated >= e->ranks - e->joined || e->magnitude == 0;
    s->blind++;
    if (is_coarse)
        m->casts++;
    else
        m->means++;
}

/* See Note [Projections of a mean]. */
static void judge(cd_means *m, const cd_means_entry *e, int64_t members, int64_t variable,
                  cd_means_series *s)
{
    const uint64_t divisor = divisor_of(e, members);
    const double mean = e->sum / (double)divisor, bound = bound_of(e, members, (double)divisor);
    const cd_means_wrong wrong = {.variable = variable,
                                  .step = e->step,
                                  .expected = mean,
                                  .actual = e->reduced,
                                  .bound = bound,
                                  .divisor = divisor};
    if (e->is_unused) return;
    if (e->is_apart) {
        m->apart++;
        return;
    }
    if (!isfinite(e->magnitude) && !e->is_short && !isfinite(e->reduced)) return; /* I-RANGE's */
    if (e->is_short || !isfinite(e->magnitude) || !isfinite(e->reduced)) {
        /* a cast has fewer exponents than what it casts */
        const bool is_overflow = e->is_cast && !e->is_short && isfinite(e->magnitude);
        m->unshown += !is_overflow;
    } else if (fabs(e->reduced - mean) <= bound) {
        count_right(m, e, s, mean, bound, divisor);
    } else if (!e->is_wrapped && is_near(e, members, e->sum, 1)) {
        m->sums++;
    } else if (is_stated(e)) {
        m->stated++;
    } else {
        note_wrong(m, e, &wrong, members, s->before);
    }
    s->before = mean;
}

/* All ranks have shown it; earlier ones that a rank left out are over, too. */
static void settle(cd_means *m, const cd_means_group *g, int64_t variable)
{
    cd_means_series *s = &g->series[variable];
    size_t over = 0;
    while (over < s->count && (int64_t)s->entries[over].ranks >= g->members) {
        judge(m, &s->entries[over], g->members, variable, s);
        release_entry(m, &s->entries[over]);
        over++;
    }
    if (over == 0) return;
    for (size_t i = over; i < s->count; i++) s->entries[i - over] = s->entries[i];
    s->count -= over;
    s->base += over;
}

/* ---- what ranks show ---- */

void cd_means_coarsen(int64_t dtype, double *roundoff, double *tiny)
{
    static const struct {
        double roundoff, tiny;
    } rows[CDDP_DTYPE_COUNT] = {[CDDP_F64] = {0x1p-53, 0x1p-1074},
                                [CDDP_F32] = {0x1p-24, 0x1p-149},
                                [CDDP_C64] = {0x1p-24, 0x1p-149},
                                [CDDP_F16] = {0x1p-11, 0x1p-24},
                                [CDDP_BF16] = {0x1p-8, 0x1p-133}};
    if (dtype < 0 || dtype >= CDDP_DTYPE_COUNT) return;
    *roundoff = fmax(*roundoff, rows[dtype].roundoff);
    *tiny = fmax(*tiny, rows[dtype].tiny);
}

static void coarsen(cd_means_entry *e, int64_t dtype)
{
    cd_means_coarsen(dtype, &e->roundoff, &e->tiny);
}

static cd_means_entry *open_entry(cd_means *m, const cd_means_rank *r, size_t variable,
                                  uint64_t number)
{
    cd_means_group *g = r->has_group ? find_group(m, r->group) : NULL;
    return g != NULL && g->members > 0 ? find_entry(m, g, variable, number) : NULL;
}

static void end_entry(cd_means *m, const cd_means_rank *r, cd_means_entry *e, int64_t variable)
{
    e->ranks++;
    settle(m, find_group(m, r->group), variable);
}

static void take_result(cd_means_entry *e, const cddp_event *projection)
{
    const cddp_event_projection *p = &projection->as.projection;
    const int64_t numel = p->dtype == CDDP_C64 ? 2 * p->numel : p->numel;
    e->is_short |= e->numel != 0 && e->numel != numel;
    e->reduced = cd_f64_of(p->sum);
    e->numel = numel;
    e->step = projection->step;
    coarsen(e, p->dtype);
}

static void take_rank(cd_means *m, const cd_means_rank *r, const cd_means_variable *v,
                      cd_means_entry *e)
{
    e->sum += v->sum;
    e->magnitude += v->magnitude;
    e->parts[r - m->ranks] = v->sum;
    e->contributions += v->contributions;
    e->is_wrapped |= v->bucket >= 0;
    e->has_hook |= r->has_hook;
    e->promise = r->promise;
    e->is_apart |= v->step + 1 == r->apart;
    e->counts_contributions |= r->counts_contributions;
    e->divides_by_active |= r->divides_by_active;
    m->is_accumulated |= r->accumulates;
    coarsen(e, v->dtype);
    coarsen(e, v->bucket_dtype);
    if (r->has_hook && r->promise_dtype > 0) {
        e->is_cast = true;
        coarsen(e, r->promise_dtype - 1);
    }
    if (v->bucket >= 0 && (size_t)v->bucket < r->stated_count)
        e->stated += r->stated[v->bucket] > 0;
}

/* A rank's part of a reduction; projection NULL: it did not show the result. */
static void close_reduction(cd_means *m, cd_means_rank *r, cd_means_variable *v, int64_t variable,
                            const cddp_event *projection)
{
    cd_means_entry *e = open_entry(m, r, (size_t)variable, v->reductions);
    v->reductions++;
    v->is_open = false;
    if (e != NULL) {
        take_rank(m, r, v, e);
        e->is_short |= projection == NULL;
        if (projection != NULL) take_result(e, projection);
        end_entry(m, r, e, variable);
    }
    /* Until it is dropped, a gradient that gets nothing new is what enters the next reduction. */
    const bool is_kept = projection != NULL && !r->accumulates;
    v->sum = is_kept ? cd_f64_of(projection->as.projection.sum) : 0;
    v->magnitude = is_kept ? cd_f64_of(projection->as.projection.magnitude) : 0;
    v->contributions = 0;
}

static void take_final(cd_means *m, cd_means_rank *r, const cddp_event *event)
{
    const cddp_event_grad_final *f = &event->as.grad_final;
    cd_means_variable *v = find_variable(m, r, f->param);
    if (v == NULL) return;
    if (v->is_open) close_reduction(m, r, v, f->param, NULL);
    v->bucket = f->bucket;
    v->step = event->step;
    v->is_open = !f->globally_unused;
    if (v->is_open) return;
    cd_means_entry *e = open_entry(m, r, (size_t)f->param, v->reductions++);
    if (e == NULL) return;
    e->is_unused = true;
    end_entry(m, r, e, f->param);
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
    /* The result before it was not shown, and what follows is of the next reduction. */
    if (v->is_open) close_reduction(m, r, v, p->param, NULL);
    /* A gradient has everything that was accumulated so far; a hook gets each part by itself. */
    v->sum = cd_f64_of(p->sum) + (r->accumulates ? v->sum : 0);
    v->magnitude = cd_f64_of(p->magnitude) + (r->accumulates ? v->magnitude : 0);
    v->dtype = p->dtype;
    v->contributions++;
}

/* A rank that ran out of inputs gives zeros. */
static void take_shadow(cd_means *m, cd_means_rank *r, int64_t bucket)
{
    for (size_t i = 0; i < r->count; i++) {
        cd_means_variable *v = &r->variables[i];
        if (v->bucket != bucket) continue;
        if (v->is_open) close_reduction(m, r, v, (int64_t)i, NULL);
        cd_means_entry *e = open_entry(m, r, i, v->reductions++);
        if (e == NULL) continue;
        e->joined++;
        e->is_wrapped = true;
        e->has_hook |= r->has_hook;
        e->divides_by_active |= r->divides_by_active;
        end_entry(m, r, e, (int64_t)i);
    }
}

static void take_layout(cd_means *m, cd_means_rank *r, const cddp_event_bucket_layout *l)
{
    cd_means_variable *v = find_variable(m, r, l->param);
    if (v == NULL) return;
    v->bucket = l->bucket;
    v->bucket_dtype = l->dtype;
}

/* A hook inside of another one makes what comes out; the outer one casts. */
static void take_hook(cd_means *m, cd_means_rank *r, const cddp_event *e)
{
    const cddp_event_hook_in_force *h = &e->as.hook_in_force;
    r->has_hook = true;
    r->promise = h->promise;
    if (h->level == 0 || h->cast > 0) r->promise_dtype = h->cast;
    if (h->level == 0) snprintf(m->hook, sizeof m->hook, "%s", e->text != NULL ? e->text : "");
    m->has_summing |= h->promise == CDDP_PROMISE_SUM;
}

static void take_option(cd_means *m, cd_means_rank *r, const cddp_event_option *o)
{
    const int32_t key = cd_setting_find(o->key);
    if (key == CDDP_KEY_ddp_gradient_as_bucket_view) m->has_views |= o->value != 0;
    if (key == CDDP_KEY_ddp_accumulate_in_hook) r->accumulates = o->value != 0;
    if (key == CDDP_KEY_ddp_average_contributions) r->counts_contributions = o->value != 0;
    if (key == CDDP_KEY_join_divide_by_initial_world_size) r->divides_by_active = o->value == 0;
}

static void forget(cd_means_variable *v)
{
    if (v->is_open) return;
    v->sum = v->magnitude = 0;
    v->contributions = 0;
}

static void drop_gradients(cd_means_rank *r)
{
    for (size_t i = 0; i < r->count; i++) forget(&r->variables[i]);
}

/* The hook keeps what it was given before. */
static void drop(cd_means *m, cd_means_rank *r, int64_t variable)
{
    cd_means_variable *v = r->accumulates ? NULL : find_variable(m, r, variable);
    if (v != NULL) forget(v);
}

static void take_law(cd_means *m, cd_means_rank *r, int64_t bucket, bool is_called)
{
    uint64_t *stated = find_stated(m, r, bucket);
    if (stated != NULL) *stated = is_called ? 0 : *stated + 1;
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
    case CDDP_EV_agreement:
        if (e->as.agreement.gradients > 0) r->apart = e->step + 1;
        break;
    case CDDP_EV_option:
        take_option(m, r, &e->as.option);
        break;
    case CDDP_EV_bucket_layout:
        take_layout(m, r, &e->as.bucket_layout);
        break;
    case CDDP_EV_bucket_launch:
        if (e->as.bucket_launch.shadow) take_shadow(m, r, e->as.bucket_launch.bucket);
        break;
    case CDDP_EV_hook_in_force:
        take_hook(m, r, e);
        break;
    case CDDP_EV_hook_call:
        take_law(m, r, e->as.hook_call.bucket, true);
        break;
    case CDDP_EV_hook_law:
        take_law(m, r, e->as.hook_law.bucket, false);
        break;
    case CDDP_EV_grad_local:
        if (e->as.grad_local.presence == CDDP_PRESENCE_ABSENT) drop(m, r, e->as.grad_local.param);
        break;
    case CDDP_EV_zero_grad:
        drop_gradients(r);
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

void cd_means_end(cd_means *m)
{
    for (size_t i = 0; i < m->group_count; i++)
        for (size_t k = 0; k < m->groups[i].count; k++) {
            const cd_means_series *s = &m->groups[i].series[k];
            if (s->seen == 0) m->blind += s->blind;
            for (size_t n = 0; n < s->count; n++) m->unshown += !s->entries[n].is_unused;
        }
}

/* ---- life ---- */

cddp_status cd_means_init(cd_means *m, uint32_t rank_count, const cddp_allocator *allocator,
                          cddp_error *err)
{
    *m = (cd_means){.allocator = allocator, .rank_count = rank_count};
    m->ranks = cd_allocate_array(allocator, rank_count, sizeof *m->ranks);
    return m->ranks != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

static void release_series(cd_means *m, cd_means_series *s)
{
    for (size_t i = 0; i < s->count; i++) release_entry(m, &s->entries[i]);
    cd_release(m->allocator, s->entries, s->capacity * sizeof *s->entries);
}

void cd_means_fini(cd_means *m)
{
    for (uint32_t i = 0; m->ranks != NULL && i < m->rank_count; i++) {
        cd_means_rank *r = &m->ranks[i];
        cd_release(m->allocator, r->variables, r->capacity * sizeof *r->variables);
        cd_release(m->allocator, r->stated, r->stated_capacity * sizeof *r->stated);
    }
    for (size_t i = 0; i < m->group_count; i++) {
        cd_means_group *g = &m->groups[i];
        for (size_t k = 0; k < g->count; k++) release_series(m, &g->series[k]);
        cd_release(m->allocator, g->series, g->capacity * sizeof *g->series);
    }
    cd_release(m->allocator, m->groups, m->group_capacity * sizeof *m->groups);
    cd_release(m->allocator, m->ranks, m->rank_count * sizeof *m->ranks);
    cd_release(m->allocator, m->explanations, m->explanation_capacity * sizeof *m->explanations);
    m->ranks = NULL;
    m->groups = NULL;
}
