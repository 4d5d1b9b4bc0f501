/* SPDX-License-Identifier: Apache-2.0 */
/* The form of a layout, and a walk behind it. See Note [Layouts that are alike] */
#include "verify/prove/likeness.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/ddp/wrap/ddp.h"
#include "core/plan/chosen_hook.h"
#include "verify/prove/walk.h"

const char *cd_likeness_find_obstacle(const cddp_plan *plan)
{
    const cddp_plan_settings *s = &plan->settings;
    cd_chosen_hook hook;
    cd_choose_hook(s, &hook);
    if (plan->override_count > 0) return "settings of single ranks";
    if (plan->when_count > 0) return "settings of single steps";
    if (hook.name != NULL) return "a communication hook";
    if (s->join.enable) return "join";
    if (s->ddp.find_unused_parameters) return "ddp.find_unused_parameters";
    if (s->ddp.static_graph) return "ddp.static_graph";
    if (s->model.ignore.count > 0) return "model.ignore";
    if (s->ddp.delay_all_reduce_named_params.count > 0) return "ddp.delay_all_reduce_named_params";
    return NULL;
}

/* ---- what is like ---- */

static uint64_t digest_parameter(uint64_t h, const cd_variable *p, int64_t length)
{
    const cddp_tensor t = cd_packed_tensor_get(&p->tensor);
    h = cd_hash_mix(h, (uint64_t)t.dtype);
    h = cd_hash_mix(h, (uint64_t)length);
    h = cd_hash_mix(h, t.dim_count);
    for (uint32_t d = 0; d < t.dim_count; d++) {
        h = cd_hash_mix(h, (uint64_t)t.sizes[d]);
        h = cd_hash_mix(h, (uint64_t)t.strides[d]);
    }
    return h;
}

static uint64_t digest_layout(const cd_reducer *r)
{
    uint64_t h = cd_hash_mix(r->buckets.bucket_count, r->buckets.generation);
    for (size_t b = 0; b < r->buckets.bucket_count; b++) {
        const cd_bucket *bucket = &r->buckets.buckets[b];
        h = cd_hash_mix(h, bucket->variable_count);
        h = cd_hash_mix(h, (uint64_t)bucket->flat.dtype);
        for (uint32_t i = 0; i < bucket->variable_count; i++) {
            const uint32_t slot = bucket->first_slot + i;
            h = cd_hash_mix(h, (uint64_t)r->buckets.offsets[slot]);
            h = digest_parameter(h, cd_wrapped_variable(r->module, r->buckets.layout.indices[slot]),
                                 r->buckets.lengths[slot]);
        }
    }
    return h;
}

/* All that is reduced fires once here, dense. */
static bool is_uniform(const cd_rank_walk *w)
{
    const cd_trainer *t = w->trainer;
    const cd_reducer *r = &t->ddp->reducer;
    uint64_t seen = 0;
    if (cd_trainer_steps_in_backward(t) || w->firing_count != r->buckets.variable_count)
        return false;
    for (uint32_t i = 0; i < w->firing_count; i++) {
        const int32_t variable = t->parameters[w->firings[i].parameter].variable;
        if (w->firings[i].kind != CDDP_GRAD_DENSE || variable < 0 || variable >= 64 ||
            cd_wrapped_variable(r->module, (size_t)variable)->expect_sparse)
            return false;
        seen |= UINT64_C(1) << variable;
    }
    return (uint32_t)__builtin_popcountll(seen) == w->firing_count;
}

/* ---- the walk ---- */

static cddp_status fire_drawn(cd_rank_walk *w, cd_prng *prng, cddp_error *err)
{
    while (w->left != 0) {
        uint32_t e = (uint32_t)cd_prng_below(prng, w->firing_count);
        while ((w->left >> e & 1) == 0) e = (e + 1) % w->firing_count;
        CD_TRY(cd_rank_walk_fire(w, e, err));
    }
    return CD_PASS(cd_rank_walk_next_window(w, err));
}

static cddp_status walk_windows(cd_rank_walk *w, const cd_window_choice *chosen, cd_prng *prng,
                                cd_likeness *found, cddp_error *err)
{
    const int64_t last = chosen != NULL ? (int64_t)chosen->window : -1;
    CD_TRY(cd_rank_walk_begin(w, err));
    while (!w->has_ended) {
        found->is_uniform = found->is_uniform && is_uniform(w);
        found->digest = digest_layout(&w->trainer->ddp->reducer);
        if ((int64_t)w->window > last)
            CD_TRY(fire_drawn(w, prng, err));
        else
            CD_TRY(cd_rank_walk_choose(
                w, (int64_t)w->window == last && chosen->digit_count > 0 ? chosen : NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_likeness_walk(const cd_prove_rank_options *options, uint64_t seed,
                             cd_likeness *found, cddp_error *err)
{
    cd_calls expected = {0};
    cd_rank_walk walk;
    cd_prng prng = cd_prng_seed(seed);
    *found = (cd_likeness){.is_uniform = true};
    CD_TRY(cd_calls_copy(&expected, options->calls, err));
    cd_rank_walk_init(&walk, options, cddp_allocator_default(), &expected);
    cddp_status status = cd_rank_watch_begin(options, err);
    if (status == CDDP_OK) status = walk_windows(&walk, options->chosen, &prng, found, err);
    cd_rank_watch_end();
    found->repeats = status == CDDP_OK;
    cd_rank_walk_fini(&walk);
    cd_calls_fini(&expected);
    if (status == CDDP_E_NOMEM) return status;
    cd_error_reset(err); /* the search finds it again, with its order */
    return CDDP_OK;
}

/* ---- what arrives alike ---- */

static void number_classes(const cd_rank_walk *w, uint32_t *classes)
{
    const cd_reducer *r = &w->trainer->ddp->reducer;
    uint64_t forms[CD_PROVE_EVENTS_MAX];
    for (uint32_t i = 0; i < w->firing_count; i++) {
        const int32_t variable = w->trainer->parameters[w->firings[i].parameter].variable;
        const uint32_t slot = r->buckets.slot_of[variable];
        uint32_t same = 0;
        forms[i] = digest_parameter(0, cd_wrapped_variable(r->module, (size_t)variable),
                                    r->buckets.lengths[slot]);
        while (forms[same] != forms[i]) same++;
        classes[i] = same;
    }
}

static cddp_status classify(cd_rank_walk *w, uint32_t window, uint32_t *classes, uint32_t *count,
                            cddp_error *err)
{
    CD_TRY(cd_rank_walk_begin(w, err));
    while (!w->has_ended && w->window < window) CD_TRY(cd_rank_walk_choose(w, NULL, err));
    if (w->has_ended || !is_uniform(w)) return CDDP_OK;
    number_classes(w, classes);
    *count = w->firing_count;
    return CDDP_OK;
}

cddp_status cd_likeness_classify(const cd_prove_rank_options *options, uint32_t window,
                                 uint32_t *classes, uint32_t *count, cddp_error *err)
{
    cd_calls expected = {0};
    cd_rank_walk walk;
    *count = 0;
    CD_TRY(cd_calls_copy(&expected, options->calls, err));
    cd_rank_walk_init(&walk, options, cddp_allocator_default(), &expected);
    cddp_status status = cd_rank_watch_begin(options, err);
    if (status == CDDP_OK) status = classify(&walk, window, classes, count, err);
    cd_rank_watch_end();
    cd_rank_walk_fini(&walk);
    cd_calls_fini(&expected);
    if (status == CDDP_OK || status == CDDP_E_NOMEM) return status;
    cd_error_reset(err);
    *count = 0;
    return CDDP_OK;
}
