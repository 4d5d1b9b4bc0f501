/* SPDX-License-Identifier: Apache-2.0 */
/* One rank alone. See walk.h. */
#include "verify/prove/walk.h"

#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os_fault.h"
#include "core/base/os_ticker.h"
#include "core/ddp/wrap/ddp.h"
#include "core/ddp/wrap/state_key.h"
#include "core/model/accumulate.h"
#include "core/plan/zero.h"
#include "verify/worlds/compose.h"

#include <stdio.h>
#include <string.h>

/* ---- a world of one rank, without time ---- */

static cddp_status no_launch(void *world, cddp_rank_fn program, void *argument,
                             cddp_rank_result *results, cddp_error *err)
{
    (void)world, (void)program, (void)argument, (void)results;
    return cd_fail(err, CDDP_E_UNSUPPORTED, "this world launches nobody");
}
static uint64_t no_time(cddp_rank *rank)
{
    (void)rank;
    return 0;
}
static cddp_status no_sleep(cddp_rank *rank, uint64_t duration_ns, cddp_error *err)
{
    (void)rank, (void)duration_ns, (void)err;
    return CDDP_OK;
}
static cddp_status no_compute(cddp_rank *rank, uint64_t duration_ns, const char *label,
                              cddp_error *err)
{
    (void)rank, (void)duration_ns, (void)label, (void)err;
    return CDDP_OK;
}
static uint32_t first_option(cddp_rank *rank, const cddp_choice *choice)
{
    (void)rank, (void)choice;
    return 0;
}
static void no_yield(cddp_rank *rank) { (void)rank; }

/* What crashes, leaves or stays here ends the program: it runs on the stack of the program. */
static void calls(cddp_rank *rank, const char *hook, const char *function)
{
    cd_rank_walk *w = rank->world;
    if (hook != NULL && (hook != w->hook || function != w->function)) {
        w->hook = hook;
        w->function = function;
        snprintf(w->guest, sizeof w->guest,
                 "%.60s, in %.24s of rank %u alone in a world of %u rank%s,", hook, function,
                 rank->rank, rank->world_size, rank->world_size == 1 ? "" : "s");
    }
    cd_os_guest_enter(hook != NULL ? "hook " : NULL, hook != NULL ? w->guest : NULL);
}

#define LOOK_NS UINT64_C(200000000)

static void look(void *options)
{
    cd_os_guest_look(cd_compose_stuck_ns(((const cd_prove_rank_options *)options)->plan));
}

cddp_status cd_rank_watch_begin(const cd_prove_rank_options *options, cddp_error *err)
{
    return CD_PASS(cd_os_ticker_begin(LOOK_NS, look, (void *)options, err));
}

void cd_rank_watch_end(void) { cd_os_ticker_end(); }

static const cddp_world_ops world_ops = {.size = sizeof world_ops,
                                         .abi = CDDP_WORLD_ABI,
                                         .name = "alone",
                                         .launch = no_launch,
                                         .now_ns = no_time,
                                         .sleep_ns = no_sleep,
                                         .compute = no_compute,
                                         .choose = first_option,
                                         .yield = no_yield,
                                         .calls = calls};

/* ---- the backend ---- */

typedef struct alone_group {
    cd_rank_walk *walk;
    uint32_t group_rank, group_size;
    uint64_t name;
    char text[64];
} alone_group;

typedef struct alone_work {
    cddp_collective collective;
} alone_work;

static cddp_status alone_open(const cddp_backend *backend, cddp_rank *rank,
                              const cddp_group_spec *spec, void **group, cddp_error *err)
{
    alone_group *g = cd_allocate_zero(rank->allocator, sizeof *g);
    if (g == NULL) return cd_fail_memory(err, "group '%s'", spec->name);
    *g = (alone_group){.walk = backend->self,
                       .group_rank = spec->group_rank,
                       .group_size = spec->group_size,
                       .name = cd_hash_text(spec->name)};
    snprintf(g->text, sizeof g->text, "%s", spec->name);
    *group = g;
    return CDDP_OK;
}

static void alone_close(void *group)
{
    alone_group *g = group;
    if (g != NULL) cd_release(g->walk->port.allocator, g, sizeof *g);
}

/* The bucket as the reducer that launches it has laid it out. */
static uint64_t content_of(const cd_rank_walk *w, const cddp_collective *c)
{
    if (c->label == 0 || w->trainer == NULL || w->trainer->ddp == NULL) return 0;
    const cd_bucket_set *set = &w->trainer->ddp->reducer.buckets;
    return c->label <= set->bucket_count ? set->buckets[c->label - 1].content_digest : 0;
}

/* A small vector of the runtime's own that this rank broadcasts: what it says becomes a result,
** equal on all ranks. */
static bool is_proposal(const alone_group *g, const cddp_collective *c)
{
    return c->op == CDDP_OP_BROADCAST && c->root == g->group_rank &&
           (c->output.device->flags & CDDP_DEVICE_EXACT) == 0;
}

/* What a rank gives to a count, or as its share, is the same in a world of another size: see Note
** [Numbers of ranks]. */
static bool is_same_anywhere(const cddp_collective *c)
{
    const bool is_given =
        (c->op == CDDP_OP_ALLREDUCE && c->reduce_op == CDDP_RED_SUM) || c->op == CDDP_OP_ALLGATHER;
    return is_given && c->input.device != NULL && cd_is_own_number(&c->input);
}

static cddp_status part(cd_rank_walk *w, const cd_call *said, cddp_error *err)
{
    w->has_parted = true;
    w->has_said = said != NULL;
    if (said != NULL) w->said = *said;
    return cd_fail(err, CDDP_E_MISMATCH, "other collectives than expected, from number %zu on",
                   w->call_count);
}

static cddp_status say(alone_group *g, const cddp_collective *c, cddp_error *err)
{
    cd_rank_walk *w = g->walk;
    cd_call call;
    cd_call_make(&call, g->text, c, g->group_rank);
    call.content = content_of(w, c);
    const size_t at = w->call_count;
    if (w->grows) {
        CD_TRY(cd_calls_push(w->expected, at, &call, err));
    } else {
        if (at >= w->expected->count) return CD_PASS(part(w, &call, err));
        cd_call *expected = &w->expected->items[at];
        const bool other_size = w->options->projection != NULL;
        const bool same_content = call.digest == expected->digest ||
                                  (other_size && !is_same_anywhere(c)) || is_proposal(g, c);
        cd_call here = call;
        /* who has the longest input, say: one rank, but another one there */
        if (other_size) here.root = expected->root;
        if (!cd_call_fits(&here, expected) || !same_content) return CD_PASS(part(w, &call, err));
        if (expected->content == 0) expected->content = call.content;
    }
    w->call_count++;
    return CDDP_OK;
}

static cddp_status alone_post(void *group, const cddp_collective *c, void **work, cddp_error *err)
{
    alone_group *g = group;
    CD_TRY(say(g, c, err));
    alone_work *w = cd_allocate(g->walk->port.allocator, sizeof *w);
    if (w == NULL) return cd_fail_memory(err, "an operation");
    w->collective = *c;
    *work = w;
    return CDDP_OK;
}

static cddp_status alone_test(void *group, void *work, bool *done, cddp_error *err)
{
    (void)group, (void)work, (void)err;
    *done = true;
    return CDDP_OK;
}

/* Tells what was recorded; without a record the output is what this rank put in, where that is the
** same memory. */
static cddp_status alone_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    (void)timeout_ns;
    alone_group *g = group;
    const cd_prove_rank_options *o = g->walk->options;
    const cddp_collective *c = &((alone_work *)work)->collective;
    const cddp_tensor *out = &c->output;
    const uint32_t rank = o->projection != NULL ? o->projection->rank : g->walk->port.rank;
    const cd_received *received =
        o->results != NULL ? cd_results_find(o->results, rank, g->name, c->sequence) : NULL;
    if (received == NULL || out->device == NULL || cddp_tensor_numel(out) == 0) return CDDP_OK;
    if (o->projection != NULL)
        return CD_PASS(cd_project_received(o->projection, received, c, g->group_size, err));
    const cddp_tensor *from = &received->tensor;
    if (cddp_tensor_numel(from) != cddp_tensor_numel(out) || from->dtype != out->dtype ||
        from->device != out->device)
        return cd_fail(err, CDDP_E_MISMATCH, "the recorded result of collective %llu does not fit",
                       (unsigned long long)c->sequence);
    const int64_t numel = cddp_tensor_numel(out);
    const cddp_tensor target =
        cddp_tensor_of(out->device, out->storage, out->offset, out->dtype, &numel, 1);
    const cddp_tensor source =
        cddp_tensor_of(from->device, from->storage, from->offset, from->dtype, &numel, 1);
    return CD_PASS(out->device->copy(&target, &source, NULL, err));
}

static void alone_release(void *group, void *work)
{
    cd_release(((alone_group *)group)->walk->port.allocator, work, sizeof(alone_work));
}

#define ALL_BITS(count) ((1u << (count)) - 1)

/* ---- the walk ---- */

void cd_rank_walk_init(cd_rank_walk *w, const cd_prove_rank_options *options,
                       const cddp_allocator *allocator, cd_calls *expected)
{
    *w = (cd_rank_walk){.options = options, .expected = expected};
    w->port = (cddp_rank){.ops = &world_ops,
                          .world = w,
                          .rank = options->rank,
                          .world_size = (uint32_t)options->plan->world.size,
                          .allocator = allocator};
    w->table = (cddp_backend){.size = sizeof w->table,
                              .abi = CDDP_BACKEND_ABI,
                              .name = "alone",
                              .self = w,
                              .open = alone_open,
                              .close = alone_close,
                              .post = alone_post,
                              .test = alone_test,
                              .wait = alone_wait,
                              .release = alone_release,
                              .capabilities = {.size = sizeof(cddp_capabilities),
                                               .ops = ALL_BITS(CDDP_OP_COUNT),
                                               .dtypes = ALL_BITS(CDDP_DTYPE_COUNT),
                                               .reduce_ops = ALL_BITS(CDDP_RED_COUNT),
                                               .any_device = true,
                                               .in_place = true,
                                               .order = CDDP_ORDER_SAME,
                                               .algorithm = "recorded",
                                               .world_size_max = UINT32_MAX}};
}

void cd_rank_walk_fini(cd_rank_walk *w)
{
    cd_trainer_destroy(w->trainer);
    cddp_tracer_destroy(w->tracer);
    w->trainer = NULL;
    w->tracer = NULL;
}

static void ignore_event(void *self, const cddp_event *event)
{
    (void)self;
    (void)event;
}

static const cddp_trace_sink nobody = {.size = sizeof nobody,
                                       .abi = CDDP_TRACE_ABI,
                                       .event = ignore_event};

/* Opens micro-steps until one has something to choose. A single gradient fires at once. */
static cddp_status open_window(cd_rank_walk *w, cddp_error *err)
{
    cd_trainer *t = w->trainer;
    for (;;) {
        if (!cd_trainer_has_step(t, w->step)) {
            CD_TRY(cd_trainer_finish(t, err));
            w->has_ended = true;
            if (!w->grows && w->call_count < w->expected->count) return CD_PASS(part(w, NULL, err));
            return CDDP_OK;
        }
        if (w->micro_index == 0) CD_TRY(cd_trainer_begin_step(t, w->step, err));
        size_t count = 0;
        const cd_micro_place place = {w->port.rank, w->step, w->micro_index};
        cd_micro_resolve(t->program.plan, &t->program.settings, place, &w->micro);
        CD_TRY(cd_trainer_open_micro(t, &w->micro, w->firings, CD_PROVE_EVENTS_MAX, &count, err));
        w->firing_count = (uint32_t)count;
        w->left = count == 64 ? UINT64_MAX : (UINT64_C(1) << count) - 1;
        if (count > 1) return CDDP_OK;
        if (count == 1) CD_TRY(cd_rank_walk_fire(w, 0, err));
        CD_TRY(cd_trainer_close_micro(t, &w->micro, err));
        if (++w->micro_index < t->program.settings.train.micro_steps) continue;
        CD_TRY(cd_trainer_end_step(t, &w->micro, err));
        w->micro_index = 0;
        w->step++;
    }
}

/* A sharded model reports its units to the tracer. Otherwise a tracer says which function of a hook
** runs: only for a hook from outside, since events cost time. */
static cddp_status trace(cd_rank_walk *w, cddp_error *err)
{
    cddp_plan_settings settings;
    if (cd_zero_shards_model(w->options->plan))
        return CD_PASS(cddp_tracer_create(&w->port, &nobody, CDDP_TRACE_DIGEST, &w->tracer, err));
    CD_TRY(cddp_plan_rank_settings(w->options->plan, w->port.rank, &settings, err));
    if (!cd_compose_is_foreign(&settings, w->options->registry)) return CDDP_OK;
    return CD_PASS(cddp_tracer_create(&w->port, &nobody, CDDP_TRACE_ORDER, &w->tracer, err));
}

cddp_status cd_rank_walk_begin(cd_rank_walk *w, cddp_error *err)
{
    CD_TRY(trace(w, err));
    const cd_trainer_options options = {.plan = w->options->plan,
                                        .rank = &w->port,
                                        .backend = &w->table,
                                        .registry = w->options->registry,
                                        .tracer = w->tracer};
    CD_TRY(cd_trainer_create(&options, &w->trainer, err));
    CD_TRY(cd_trainer_begin(w->trainer, NULL, err));
    return CD_PASS(open_window(w, err));
}

cddp_status cd_rank_walk_fire(cd_rank_walk *w, uint32_t index, cddp_error *err)
{
    w->left &= ~(UINT64_C(1) << index);
    return CD_PASS(cd_trainer_fire(w->trainer, &w->firings[index], err));
}

cddp_status cd_rank_walk_warm(cd_rank_walk *w, cddp_error *err)
{
    cd_module *module = cd_trainer_module(w->trainer);
    const cd_gradient arrived = {.kind = CDDP_GRAD_DENSE};
    for (uint32_t k = 0; k < w->firing_count; k++) {
        const uint32_t i = w->firings[k].parameter;
        if (w->firings[k].kind != CDDP_GRAD_DENSE) continue;
        const bool is_new = module->parameters[i].grad.kind == CDDP_GRAD_UNDEFINED;
        if (is_new) CD_TRY(cd_grad_accumulate(w->trainer->replica->graph, i, &arrived, err));
        CD_TRY(cd_grad_accumulate(w->trainer->replica->graph, i, &arrived, err));
        if (is_new) cddp_grad_drop(&module->parameters[i].grad);
    }
    return CDDP_OK;
}

cddp_status cd_rank_walk_next_window(cd_rank_walk *w, cddp_error *err)
{
    cd_trainer *t = w->trainer;
    w->window++;
    w->fired_calls = w->call_count;
    CD_TRY(cd_trainer_close_micro(t, &w->micro, err));
    if (++w->micro_index == t->program.settings.train.micro_steps) {
        CD_TRY(cd_trainer_end_step(t, &w->micro, err));
        w->micro_index = 0;
        w->step++;
    }
    return CD_PASS(open_window(w, err));
}

uint64_t cd_rank_walk_key(const cd_rank_walk *w)
{
    const uint64_t place = (uint64_t)w->step << 40 ^ (uint64_t)w->micro_index << 24 ^
                           (uint64_t)w->call_count << 1 ^ w->has_ended;
    /* a sharded model has one order, and one state at a place */
    return w->trainer->ddp != NULL ? cd_hash_mix(cd_ddp_state_key(w->trainer->ddp), place) : place;
}

uint64_t cd_rank_walk_proposal(const cd_rank_walk *w)
{
    return w->trainer->ddp != NULL ? cd_ddp_state_proposal(w->trainer->ddp) : 0;
}

/* The digit-th of the firings that are left. */
static uint32_t index_of(const cd_rank_walk *w, uint32_t digit)
{
    uint32_t index = 0;
    for (uint64_t left = w->left;; index++, left >>= 1)
        if ((left & 1) != 0 && digit-- == 0) return index;
}

cddp_status cd_rank_walk_choose(cd_rank_walk *w, const cd_window_choice *choice, cddp_error *err)
{
    for (uint32_t k = 0, n = w->firing_count; k < n; k++)
        CD_TRY(cd_rank_walk_fire(
            w, index_of(w, choice != NULL && k < choice->digit_count ? choice->digits[k] : 0),
            err));
    return CD_PASS(cd_rank_walk_next_window(w, err));
}

cddp_status cd_rank_walk_to_the_end(cd_rank_walk *w, cddp_error *err)
{
    while (!w->has_ended) CD_TRY(cd_rank_walk_choose(w, NULL, err));
    return CDDP_OK;
}
