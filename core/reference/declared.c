/* SPDX-License-Identifier: Apache-2.0 */
/* What the plan declares of a reduction: by what and how it is divided, who takes part, and which
** rounding the hook may do. */
#include "core/reference/declared.h"

#include "core/base/error.h"
#include "core/reference/planned.h"
#include "core/reference/units.h"

#include <stdio.h>
#include <string.h>

/* A reduction at hand. */
typedef struct window {
    const cddp_plan *plan;
    const cddp_plan_settings *settings;
    const cd_observed_reduced *observed;
    uint32_t rank, step;
    uint32_t first;       /* micro-step of the rank that entered it */
    bool is_before_start; /* the hook still does exactly what the allreduce hook does */
} window;

static cd_micro_place here_of(const window *w)
{
    return (cd_micro_place){w->rank, w->step, w->observed->micro_step};
}

static uint64_t count_backwards(const window *w, const cddp_plan_settings *settings, uint32_t rank)
{
    const uint32_t position = cd_planned_find_window(w->plan, w->settings, here_of(w));
    cd_micro_place place = {rank, w->step, 0};
    const cd_micro_span span = cd_planned_get_window(w->plan, settings, place, position);
    uint64_t count = 0;
    for (place.micro_step = span.first; place.micro_step < span.end; place.micro_step++) {
        cd_micro micro;
        cd_planned_micro(w->plan, settings, place, &micro);
        const uint64_t rounds =
            (uint64_t)micro.backwards * (micro.backward_each ? micro.forwards : 1u);
        count += cd_planned_contributes(&micro) ? rounds : 0;
    }
    return count;
}

/* All backwards of a window, over all ranks. */
static cddp_status count_contributions(const window *w, uint64_t *count, cddp_error *err)
{
    *count = 0;
    for (uint32_t rank = 0; rank < w->plan->world.size; rank++) {
        cddp_plan_settings settings;
        CD_TRY(cddp_plan_rank_settings(w->plan, rank, &settings, err));
        *count += count_backwards(w, &settings, rank);
    }
    return CDDP_OK;
}

/* The divisor that the plan declares: the world, the ranks that still have inputs (JON-11), or all
** backwards. */
static cddp_status declared_divisor(const window *w, uint64_t *divisor, cddp_error *err)
{
    if (w->settings->ddp.average_contributions)
        return CD_PASS(count_contributions(w, divisor, err));
    *divisor = cd_planned_group_size(w->plan, w->rank, w->step);
    if (*divisor == 0) *divisor = w->plan->world.size; /* it has no such step; I-STEP says so */
    if (!w->settings->join.enable || w->settings->join.divide_by_initial_world_size ||
        w->observed->hook.is_present || w->observed->divides_after) {
        return CDDP_OK; /* hooks ignore the effective world size (JON-13) */
    }
    *divisor = 0;
    for (uint32_t rank = 0; rank < w->plan->world.size; rank++) {
        cddp_plan_settings settings;
        CD_TRY(cddp_plan_rank_settings(w->plan, rank, &settings, err));
        *divisor += cd_planned_has_step(w->plan, &settings, rank, w->step);
    }
    return CDDP_OK;
}

/* A wrapper casts, and what it wraps sums exactly. */
static bool wraps_rounded_once(const window *w)
{
    return w->observed->inner_hook.is_present && w->observed->wire != CDDP_DTYPE_COUNT &&
           (w->observed->inner_hook.flags & CDDP_HOOK_ROUNDED_ONCE) != 0;
}

/* Does the rank leave a backward of a step half-way? `reduces`: it closes a reduction there. */
static bool leaves(const window *w, uint32_t step, bool *reduces)
{
    cd_micro_place place = {w->rank, step, 0};
    *reduces = false;
    for (; place.micro_step < w->settings->train.micro_steps; place.micro_step++) {
        cd_micro micro;
        cd_planned_micro(w->plan, w->settings, place, &micro);
        if (micro.abort_after > 0) return true;
        *reduces |= micro.sync && !micro.bypass && cd_planned_contributes(&micro);
    }
    return false;
}

/* A backward that is left half-way makes no view of its gradients. The next whole reduction
** does. */
static bool follows_left_backward(const window *w)
{
    bool is_whole = w->plan->when_count == 0;
    for (uint32_t step = w->step + 1; step > 0 && !is_whole; step--) {
        if (leaves(w, step - 1, &is_whole)) return true;
        is_whole &= step - 1 < w->step;
    }
    return false;
}

/* GRD-17: where and how the division happens. */
static cd_oracle_division declared_division(const window *w)
{
    const cddp_plan_ddp *ddp = &w->settings->ddp;
    if (w->observed->inner_hook.is_present) {
        /* what it wraps divides the low copy (HK-05) */
        const bool is_exact = (w->observed->inner_hook.flags & CDDP_HOOK_EXACT) != 0;
        if (wraps_rounded_once(w)) return CD_ORACLE_DIVISION_CAST_ONCE;
        return is_exact && w->observed->wire != CDDP_DTYPE_COUNT ? CD_ORACLE_DIVISION_CAST
                                                                 : CD_ORACLE_DIVISION_ANY;
    }
    if (w->observed->divides_after) return CD_ORACLE_DIVISION_AFTER;
    if (w->is_before_start) return CD_ORACLE_DIVISION_TRUE;
    if (w->observed->hook.is_present) {
        return (w->observed->hook.flags & CDDP_HOOK_CASTS_FIRST) != 0 ? CD_ORACLE_DIVISION_CAST
               : (w->observed->hook.flags & CDDP_HOOK_EXACT) != 0     ? CD_ORACLE_DIVISION_TRUE
                                                                      : CD_ORACLE_DIVISION_ANY;
    }
    if (ddp->batched_grad_copy) return CD_ORACLE_DIVISION_TRUE;
    /* In view mode a fresh gradient takes the copy path, a kept one is divided in place (GRD-06):
    ** all of them after the first step of a model that uses every parameter. */
    const cddp_plan_train *train = &w->settings->train;
    const bool is_fresh =
        w->first == 0 && (train->zero_grad == CDDP_ZERO_GRAD_NONE || w->step == 0);
    const bool is_kept = train->zero_grad != CDDP_ZERO_GRAD_NONE && w->step > 0 && !train->resume &&
                         !ddp->find_unused_parameters && !ddp->static_graph &&
                         !follows_left_backward(w);
    if (!ddp->gradient_as_bucket_view || is_fresh) return CD_ORACLE_DIVISION_RECIPROCAL;
    return is_kept ? CD_ORACLE_DIVISION_TRUE : CD_ORACLE_DIVISION_EITHER;
}

/* A cast is bounded by the rounding of its wire (HK-03), unless what it wraps is lossy itself;
** other lossy hooks state their own laws. */
static bool hook_is_judged_by_its_law(const window *w)
{
    const uint32_t lawful = CDDP_HOOK_LOSSY | CDDP_HOOK_NO_COMM;
    const bool is_cast = w->observed->wire != CDDP_DTYPE_COUNT;
    if (w->is_before_start) return false;
    return (w->observed->hook.is_present && !is_cast && (w->observed->hook.flags & lawful) != 0) ||
           (w->observed->inner_hook.is_present && (w->observed->inner_hook.flags & lawful) != 0);
}

/* See Note [What a sample weighs] */
static const char *print_normalisation(const window *w, char *text, size_t text_bytes)
{
    static const char *const losses[] = {"given weights",
                                         "its own samples",
                                         "nothing",
                                         "its own tokens",
                                         "the average number of samples",
                                         "the average number of tokens"};
    static const char *const objectives[] = {NULL, "the average number of samples",
                                             "the average number of tokens"};
    const cddp_plan_train *train = &w->settings->train;
    for (size_t i = 0; i < w->plan->output_count; i++) {
        const cddp_plan_output *output = &w->plan->outputs[i];
        const int64_t loss = output->loss > 0 ? output->loss : train->loss;
        const int64_t meant = output->objective > 0 ? output->objective : train->objective;
        const bool is_as_written =
            meant == CDDP_OBJECTIVE_AS_WRITTEN || meant == CDDP_OUTPUT_OBJECTIVE_AS_WRITTEN;
        if (is_as_written || strcmp(losses[loss], objectives[meant]) == 0) continue;
        snprintf(text, text_bytes, "the loss of '%.40s' is divided by %s, not by %s", output->name,
                 losses[loss], objectives[meant]);
        return text;
    }
    if (train->objective == CDDP_OBJECTIVE_AS_WRITTEN) return NULL;
    snprintf(text, text_bytes, "divided by %s, not by %s", losses[train->loss],
             objectives[train->objective]);
    return text;
}

/* Which micro-steps of each rank enter, where ranks differ: the k-th reduction of a step meets the
** others' k-th. */
static cddp_status find_spans(const window *w, uint32_t own, cd_arena *memory,
                              const cd_oracle_span **spans, cddp_error *err)
{
    const cd_micro_place here = here_of(w);
    *spans = NULL;
    if (!cd_planned_windows_differ(w->plan)) return CDDP_OK;
    const uint32_t position = cd_planned_find_window(w->plan, w->settings, here);
    cd_oracle_span *found = cd_arena_array(memory, w->plan->world.size, sizeof *found);
    CD_TRY(cd_arena_check(memory, err, "the micro-steps of %llu ranks",
                          (unsigned long long)w->plan->world.size));
    for (uint32_t rank = 0; rank < w->plan->world.size; rank++) {
        cddp_plan_settings settings;
        CD_TRY(cddp_plan_rank_settings(w->plan, rank, &settings, err));
        const cd_micro_span span =
            cd_planned_get_window(w->plan, &settings, (cd_micro_place){rank, w->step, 0}, position);
        found[rank] = (cd_oracle_span){span.first, span.end};
    }
    found[own] = (cd_oracle_span){w->first, here.micro_step + 1};
    *spans = found;
    return CDDP_OK;
}

/* LSG-02: the ranks over which the hook averages, where the plan says so; else as the hook says.
** Without a model averager replicas may not drift apart, so all of them take part. */
static uint32_t find_block(const cd_declaration *d, const cd_observed_reduced *observed,
                           uint32_t *first)
{
    const cd_decided_hook *hook = &d->decisions->hook;
    const cd_decided_average average = cd_decided_hook_average(hook);
    const cd_micro_place place = {d->rank, observed->step, observed->micro_step};
    uint32_t block = 0;
    if (d->settings->averager.kind == CDDP_AVERAGER_NONE || hook->inner != NULL) return 0;
    if (average != CD_AVERAGE_UNKNOWN && average != CD_AVERAGE_ALL)
        block = cd_decisions_get_block(d->decisions, place);
    if (average != CD_AVERAGE_ALL && block == 0) block = observed->block_count;
    *first = block > 0 ? d->rank / block * block : 0;
    return block;
}

/* MIX-04: buckets travel in reduce_dtype, or else as they are, which is param_dtype. */
static void declare_mixed(const cddp_plan_settings *settings, cd_declared_way *way)
{
    const cddp_dtype low = cd_planned_dtype(settings->mixed_precision.param_dtype),
                     wire = cd_planned_dtype(settings->mixed_precision.reduce_dtype);
    way->wire = wire != CDDP_DTYPE_COUNT ? wire : low;
    way->divides_after = way->wire != CDDP_DTYPE_COUNT;
}

/* An optimizer in backward divides what was summed, or stands behind the allreduce hook. */
static void declare_overlap(const cd_replica *replica, cd_declared_way *way)
{
    for (size_t i = 0; i < replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &replica->optimizers[i];
        if (!o->in_backward) continue;
        way->divides_after |= o->overlap == CDDP_OVERLAP_APPLY_IN_BACKWARD;
        way->has_hook |= o->overlap == CDDP_OVERLAP_HOOK_THEN_OPTIMIZER;
        return;
    }
}

bool cd_declared_follows_left_backward(const cd_decisions *decisions, uint32_t step)
{
    const window w = {.plan = decisions->plan,
                      .settings = &decisions->settings,
                      .rank = decisions->rank,
                      .step = step};
    return follows_left_backward(&w);
}

void cd_declare_way(cd_decisions *decisions, cd_micro_place place, cd_declared_way *way)
{
    const cd_decided_hook *hook = &decisions->hook;
    const bool is_averaged = decisions->settings.averager.kind != CDDP_AVERAGER_NONE;
    cddp_dtype wire = CDDP_DTYPE_COUNT;
    *way = (cd_declared_way){.has_hook = hook->name[0] != '\0',
                             .has_inner = hook->inner != NULL,
                             .knows_wire = cd_decided_hook_wire(hook, &wire)};
    declare_mixed(&decisions->settings, way);
    if (way->has_hook && wire != CDDP_DTYPE_COUNT) way->wire = wire;
    declare_overlap(decisions->replica, way);
    way->divides_after |= decisions->settings.fsdp.enable; /* FSD-06 */
    const cd_decided_average average = cd_decided_hook_average(hook);
    way->knows_block = !is_averaged || average != CD_AVERAGE_UNKNOWN || hook->inner != NULL;
    if (is_averaged && hook->inner == NULL && average != CD_AVERAGE_ALL)
        way->block_count = cd_decisions_get_block(decisions, place);
    if (average != CD_AVERAGE_UNKNOWN && average != CD_AVERAGE_ALL)
        way->knows_block &= !is_averaged || hook->inner != NULL || way->block_count != 0;
}

/* FSD-06: the power of two that divides before the sum. */
static uint64_t divided_before(uint64_t divisor)
{
    uint64_t before = 1;
    while (divisor % before == 0 && divisor / before > before) before *= 2;
    return before;
}

cddp_status cd_declare_reduction(cd_declaration *declaration, const cd_observed_reduced *observed,
                                 cd_oracle_reduction *reduction, cddp_error *err)
{
    const cddp_plan_settings *settings = declaration->settings;
    const cd_micro_place place = {declaration->rank, observed->step, observed->micro_step};
    const window at = {.plan = declaration->plan,
                       .settings = settings,
                       .observed = observed,
                       .rank = declaration->rank,
                       .step = observed->step,
                       .first = cd_decisions_get_window_first(declaration->decisions, place),
                       .is_before_start =
                           observed->hook.is_present &&
                           cd_decisions_is_before_start(declaration->decisions, place)};
    const window *w = &at;
    const cddp_dtype low = cd_planned_dtype(settings->mixed_precision.param_dtype);
    uint64_t divisor;
    uint32_t block_first = 0;
    const uint32_t block = find_block(declaration, observed, &block_first);
    if ((unsigned)observed->wire > CDDP_DTYPE_COUNT) {
        return cd_fail(err, CDDP_E_STATE, "buckets travel in dtype %d, which does not exist",
                       (int)observed->wire);
    }
    CD_TRY(declared_divisor(w, &divisor, err));
    *reduction = (cd_oracle_reduction){
        .step = observed->step,
        .micro_step = observed->micro_step,
        .division = declared_division(w),
        .wire = observed->wire,
        .normalisation =
            print_normalisation(w, declaration->normalisation, sizeof declaration->normalisation),
        .accumulates_low = low != CDDP_DTYPE_COUNT,
        .local = low,
        .lossy = hook_is_judged_by_its_law(w),
        .separate = settings->ddp.accumulate_in_hook || cd_planned_adds_up_apart(settings),
        .rounded_once =
            wraps_rounded_once(w) ||
            (observed->hook.is_present && (observed->hook.flags & CDDP_HOOK_ROUNDED_ONCE) != 0),
        .has_parted = settings->averager.kind != CDDP_AVERAGER_NONE &&
                      cd_decided_hook_average(&declaration->decisions->hook) == CD_AVERAGE_UNKNOWN,
        .is_batched = settings->ddp.batched_grad_copy && !observed->hook.is_present &&
                      !observed->divides_after,
        .loss_scale = declaration->loss_scale,
        .divisor = divisor,
        .micro_first = w->first,
        .gradients = observed->gradients.items};
    CD_TRY(find_spans(w, declaration->rank, declaration->memory, &reduction->spans, err));
    cd_micro micro;
    cd_planned_micro(declaration->plan, settings, place, &micro);
    reduction->is_probe = !micro.sync && micro.skip == CDDP_SKIP_STEP;
    if (settings->fsdp.enable) {
        cddp_plan_settings now = *settings;
        if (cd_planned_is_resumed(settings, observed->step)) cd_planned_resume(&now);
        const cd_planned_mesh mesh = cd_planned_get_mesh(declaration->plan, &now);
        const bool is_hybrid = mesh.shards > 1 && mesh.replicas > 1;
        reduction->before = divided_before(is_hybrid ? mesh.shards : divisor);
        reduction->has_stages = is_hybrid;
    }
    if (block > 0) { /* LSG-02: the true mean over the block */
        reduction->lossy = false;
        reduction->division = CD_ORACLE_DIVISION_TRUE;
        reduction->divisor = block;
        reduction->rank_first = block_first;
        reduction->rank_count = block < declaration->plan->world.size ? block : 0;
    }
    return CDDP_OK;
}
