/* SPDX-License-Identifier: Apache-2.0 */
/* I-META: a setting that was accepted has its observable effect.
**
** Judged from   the settings that ranks report against what the trace shows:
**     no_sync                        forwards inside it do not arm the reducer, their backwards
**                                    launch nothing (NSY-02); nor do forwards that record no
**                                    gradients. Forward and backward of a micro-step are both
**                                    inside, or both outside
**     ddp.find_unused_parameters     a used map exists once a backward was finalised (UNU-02)
**     ddp.broadcast_buffers          buffers were synchronised before some synchronising forward
**                                    (BUF-02)
**     ddp.comm_hook, hook.name, hook.comm_hook   the hook was called for the buckets that were
**                                                launched (HOOK-04)
**     join.enable                    the join protocol ran (JON-03)
**     policy of the wire             what a hook that declares a narrower wire reduces and gathers
**                                    is in it (ZOO-60)
**     ddp.skip_all_reduce_unused_params   a bucket all of whose parameters were marked as unused is
**                                         not launched (UNU-14)
**     model.ignore, ddp.delay_all_reduce_named_params   the reducer omits exactly what they name
**                                                       (IGN-01, DEL-01)
**     ddp.param_to_hook_all_reduce   its gradient begins an all-reduce in every backward (DEL-03)
**     ddp.bucket_cap_mb and the other caps   every layout is what they and the order of arrival
**                                            give (plans.h)
**     decisions of the plan          which parameters the reducer takes, the hook and its options,
**                                    who averages when (meta_obey.h)
** Exercised     one of these settings was on and its effect was seen.
** Blame         the rank on which the setting had none.
** Limits        numbers gathered in a wider dtype beside a narrow result are the hook's own
**               business, as a quantiser's scales are; settings whose only effect is on memory or
**               time are not judged from a trace; which buckets are left out not in a static graph,
**               whose first pass launches all.
*/
#include "core/check/facts.h"
#include "core/check/lists.h"
#include "core/check/meta_obey.h"
#include "core/check/plans.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"

#include <string.h>

enum { KEY_PARAMETER, KEY_BUFFER, KEY_EVALUATION, KEY_DELAYED }; /* of findings that are held */

typedef struct rank_facts {
    bool has_map, has_buffer_sync, has_hook_call, has_notified; /* effects */
    bool has_armed, has_passed, finalized, is_armed, last_sync; /* passed: behind its forward */
    bool reported_no_sync, reported_split;
    bool has_forward, was_sync;   /* the last forward that records gradients */
    int64_t skipped, not_skipped; /* buckets nobody used here */
    int64_t buffers, launches, depth, silent_backwards, world_size;
    int64_t wire;      /* declared dtype + 1; 0: none */
    int64_t trigger;   /* variable of ddp.param_to_hook_all_reduce + 1; 0: none that is reduced */
    bool owes_delayed; /* the trigger's gradient is there, and no all-reduce began */
    int64_t narrow_calls, wide_calls;
    cddp_event last; /* any event of the rank, as a place for findings at the end */
} rank_facts;

typedef struct bucket_users {
    int64_t used, marked;
} bucket_users;

typedef struct state {
    cd_writer writer;
    cd_ranks ranks; /* of rank_facts */
    /* (rank, bucket) → parameters marked ready since it was last launched or left out: used ones,
    ** all of them */
    cd_table users;
    cd_table calls; /* (rank, bucket) → hook_call */
    cd_plans plans;
    cd_meta_obey obeyed;
} state;

/* One call of a hook whose declared wire is narrower than its bucket, and the floating-point
** numbers it sent. */
typedef struct hook_call {
    int64_t bytes;  /* of the bucket; 0: no such call is open */
    int64_t others; /* operations that are not reductions of floating-point numbers */
    /* in the declared dtype or a narrower one; in wider ones */
    int64_t low, wide_reductions, wide_gathers;
} hook_call;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-META", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->users, context->allocator, sizeof(bucket_users));
    cd_table_init(&s->calls, context->allocator, sizeof(hook_call));
    cd_plans_init(&s->plans, &s->writer);
    cd_meta_obey_init(&s->obeyed, context->allocator);
    cd_meta_obey_set_window(&s->obeyed, cd_facts_get_horizon(context->facts));
    return CDDP_OK;
}

static bool has_flag(const state *s, uint32_t rank, cddp_key flag)
{
    return cd_writer_has_flag(&s->writer, rank, flag);
}

/* A static graph's first pass launches every bucket: there the setting has no say. */
static bool skips_unused(const state *s, uint32_t rank)
{
    return has_flag(s, rank, CDDP_KEY_ddp_skip_all_reduce_unused_params) &&
           !has_flag(s, rank, CDDP_KEY_ddp_static_graph);
}

static void report_no_sync(state *s, const cddp_event *e, rank_facts *r, const char *what)
{
    if (r->reported_no_sync) return;
    r->reported_no_sync = true;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": no_sync has no effect: %s", what);
    CD_SAY(f.expected, "gradients accumulate locally until the first forward outside no_sync");
    CD_SAY(f.actual, "%s at step %u micro-step %u", what, e->step, e->micro_step);
    CD_SAY(f.advice, "%s",
           r->depth > 0 ? "the forward is inside, and the wrapper does not go by it (FWD-03)"
                        : "the flag is read in forward (FWD-03): forward and backward of a "
                          "micro-step belong into the same context");
    cd_writer_report(&s->writer, &f);
}

/* FWD-03: without gradients there will be no backward that could synchronise. */
static void report_evaluation(state *s, const cddp_event *e)
{
    const cd_key *key = CD_KEY(KEY_EVALUATION);
    if (!cd_writer_is_first(&s->writer, key, e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": a forward without gradients arms the reducer");
    CD_SAY(f.expected, "the reducer stays as it was: no backward will follow");
    CD_SAY(f.actual, "a synchronising forward");
    CD_SAY(f.advice,
           "a forward synchronises outside no_sync and only where gradients are recorded (FWD-03)");
    cd_writer_hold(&s->writer, key, &f);
}

static void take_forward(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_forward_begin *f = &e->as.forward_begin;
    if (f->sync && !f->grad_mode && !f->joined) report_evaluation(s, e);
    if (r->depth > 0 && f->sync) report_no_sync(s, e, r, "a forward inside it arms the reducer");
    r->last_sync = f->sync;
    if ((f->grad_mode || f->sync) && !f->joined) {
        r->has_forward = true;
        r->was_sync = f->sync;
    }
    if (f->sync && !f->grad_mode) r->has_forward = false; /* named already */
    if (f->sync && f->grad_mode) r->is_armed = r->has_armed = true;
}

/* FWD-03: the forward decides. A backward in another context does what nobody would expect. */
static void take_backward(state *s, const cddp_event *e, rank_facts *r)
{
    const bool is_inside = r->depth > 0;
    const bool is_split = is_inside ? r->was_sync : !r->was_sync && !r->is_armed;
    if (!r->has_forward || r->reported_split || !is_split) return;
    r->reported_split = true;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": a backward runs %s no_sync, its forward ran %s it",
           is_inside ? "inside" : "outside", is_inside ? "outside" : "inside");
    CD_SAY(f.expected, "forward and backward of a micro-step in the same context");
    CD_SAY(f.actual, "%s",
           is_inside ? "the backward synchronises although it is inside no_sync"
                     : "the backward does not synchronise although it is outside no_sync");
    CD_SAY(f.advice, "the flag is read in forward (FWD-03): put both into no_sync, or neither");
    cd_writer_report(&s->writer, &f);
}

static bool is_wider(int64_t dtype, int64_t wire)
{
    return cddp_dtype_bytes((cddp_dtype)dtype) > cddp_dtype_bytes((cddp_dtype)(wire - 1));
}

static void take_post(state *s, const rank_facts *r, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    hook_call *call = r->wire != 0 && c->bucket >= 0
                          ? cd_table_find(&s->calls, CD_KEY(e->rank, c->bucket))
                          : NULL;
    if (call == NULL || call->bytes == 0) return;
    const bool reduces = cd_operation_reduces(c->op);
    const bool is_float =
        c->dtype == CDDP_C64 || (c->dtype >= 0 && cddp_dtype_is_float((cddp_dtype)c->dtype));
    call->others += !reduces || !is_float;
    if (!is_float) return;
    if (!is_wider(c->dtype, r->wire))
        call->low++;
    else if (reduces)
        call->wide_reductions++;
    else
        call->wide_gathers++;
}

/* Bytes are evidence only for a hook that just reduces numbers, once. Indices beside k of them,
** digits in their place, or both factors of one number may take as many bytes as the bucket did. */
static bool is_effective(const hook_call *call, bool has_wide_result, int64_t wire_bytes)
{
    if (call->wide_reductions > 0) return false;
    if (call->wide_gathers > 0 && call->low == 0 && has_wide_result) return false;
    if (call->low > 1 && call->wide_gathers == 0) return true;
    return call->others > 0 || wire_bytes < call->bytes;
}

static void take_hook(state *s, rank_facts *r, const cddp_event *e)
{
    int64_t bucket = e->kind == CDDP_EV_hook_call ? e->as.hook_call.bucket : e->as.hook_done.bucket;
    hook_call *call = cd_table_add(&s->calls, CD_KEY(e->rank, bucket));
    if (call == NULL) return;
    if (e->kind == CDDP_EV_hook_call) {
        r->has_hook_call = true;
        /* the posts of a static graph's first pass do not say of which bucket they are (STA-04) */
        const bool is_named =
            e->as.hook_call.generation > 0 || !has_flag(s, e->rank, CDDP_KEY_ddp_static_graph);
        const bool narrows = r->wire != 0 && is_wider(e->as.hook_call.dtype, r->wire);
        *call = (hook_call){.bytes = narrows && is_named ? e->as.hook_call.bytes : 0};
        return;
    }
    if (call->bytes > 0 && e->as.hook_done.wire_bytes > 0) {
        if (is_effective(call, is_wider(e->as.hook_done.dtype, r->wire),
                         e->as.hook_done.wire_bytes))
            r->narrow_calls++;
        else
            r->wide_calls++;
    }
    call->bytes = 0;
}

/* The delayed all-reduce begins in every backward, inside no_sync too (DEL-03). */
static void take_trigger(rank_facts *r, const cddp_event *e)
{
    const cddp_event_grad_local *l = &e->as.grad_local;
    if (r->trigger != 0 && l->param == r->trigger - 1 && l->presence != CDDP_PRESENCE_ABSENT)
        r->owes_delayed = true;
}

static void judge_delayed(state *s, rank_facts *r, const cddp_event *e)
{
    const bool is_missing = r->owes_delayed;
    r->owes_delayed = false;
    if (!is_missing || !cd_writer_is_first(&s->writer, CD_KEY(KEY_DELAYED), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_set_parameter(&s->writer, &f, r->trigger - 1);
    CD_SAY(f.title,
           CDDP_FINDING_WHO ": the delayed all-reduce does not begin with the gradient of %s",
           f.parameter);
    CD_SAY(f.expected, "in every backward, inside no_sync too (DEL-03)");
    CD_SAY(f.actual, "the backward ends without it");
    CD_SAY(f.advice, "delayed parameters do not know of no_sync: their gradients are averaged in "
                     "each backward");
    cd_writer_hold(&s->writer, CD_KEY(KEY_DELAYED), &f);
}

/* Marked, launched or left out: what this rank knows of the bucket's parameters when it goes. */
static void take_use(state *s, rank_facts *r, const cddp_event *e, int64_t bucket)
{
    bucket_users *users = cd_table_add(&s->users, CD_KEY(e->rank, bucket));
    if (users == NULL || !skips_unused(s, e->rank)) return;
    if (e->kind == CDDP_EV_mark_ready) {
        users->marked++;
        users->used += !e->as.mark_ready.unused;
        return;
    }
    if (e->kind == CDDP_EV_bucket_skip)
        r->skipped++;
    else if (users->marked > 0 && users->used == 0)
        r->not_skipped++;
    *users = (bucket_users){0, 0};
}

/* The wrapper leaves out exactly what the lists name. */
static void take_name(state *s, const cddp_event *e, bool is_left_out)
{
    const bool is_buffer = e->kind == CDDP_EV_buffer;
    if (e->text == NULL) return;
    const cd_listed ignored = cd_lists_find(&s->writer, e->rank, CDDP_KEY_model_ignore, e->text);
    const cd_listed delayed =
        is_buffer ? CD_NOT_LISTED
                  : cd_lists_find(&s->writer, e->rank, CDDP_KEY_ddp_delay_all_reduce_named_params,
                                  e->text);
    if (ignored == CD_LIST_UNKNOWN || delayed == CD_LIST_UNKNOWN) return;
    const bool is_listed = ignored == CD_LISTED || delayed == CD_LISTED;
    const char *setting =
        delayed == CD_LISTED ? "ddp.delay_all_reduce_named_params" : "model.ignore";
    const cd_key *key = CD_KEY(is_buffer ? KEY_BUFFER : KEY_PARAMETER,
                               is_buffer ? e->as.buffer.buffer : e->as.param.ordinal);
    const bool is_forgotten = !is_buffer && !is_listed && !is_left_out &&
                              e->as.param.requires_grad && e->as.param.param < 0;
    if (is_listed == is_left_out && is_listed)
        cd_writer_exercise(&s->writer, "%s: %s is left out", setting, e->text);
    if ((is_listed == is_left_out && !is_forgotten) || !cd_writer_is_first(&s->writer, key, e))
        return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    if (!is_buffer) cd_finding_set_parameter(&s->writer, &f, e->as.param.param);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s does not hold for %s %s", setting,
           is_buffer ? "buffer" : "parameter", e->text);
    CD_SAY(f.expected, "%s",
           !is_listed ? "reduced or broadcast: no list names it"
                      : "left out of the reducer: the list names it");
    CD_SAY(f.actual, "%s",
           is_left_out    ? "left out"
           : is_forgotten ? "trainable, and not reduced"
                          : "wrapped like all others");
    CD_SAY(f.advice, "%s",
           is_listed ? "every name of the list counts" : "nothing but the list decides");
    cd_writer_hold(&s->writer, key, &f);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    cd_meta_obey_learn(&s->obeyed, e);
    cd_plans_learn(&s->plans, e);
    if (e->kind == CDDP_EV_mark || e->kind == CDDP_EV_grad_final) return;
    r->last = *e;
    r->last.text = NULL;
    /* a rank that waits for others inside its forward has ignored nothing */
    r->has_passed |=
        r->has_armed && (e->kind == CDDP_EV_forward_end || e->kind == CDDP_EV_backward_begin ||
                         e->kind == CDDP_EV_grad_local);
    switch (e->kind) {
    case CDDP_EV_rank_begin:
        r->world_size = e->as.rank_begin.world_size;
        break;
    case CDDP_EV_wrap:
        r->buffers = e->as.wrap.buffers;
        break;
    case CDDP_EV_param:
        take_name(s, e, e->as.param.ignored);
        if (e->text != NULL && e->as.param.param >= 0 &&
            cd_lists_find(&s->writer, e->rank, CDDP_KEY_ddp_param_to_hook_all_reduce, e->text) ==
                CD_LISTED)
            r->trigger = e->as.param.param + 1;
        break;
    case CDDP_EV_buffer:
        take_name(s, e, e->as.buffer.ignored);
        break;
    case CDDP_EV_no_sync:
        /* counted here, because the event has the wrapper's own count */
        r->depth += e->as.no_sync.entered ? 1 : r->depth > 0 ? -1 : 0;
        break;
    case CDDP_EV_forward_begin:
        take_forward(s, e, r);
        break;
    case CDDP_EV_backward_begin:
        take_backward(s, e, r);
        break;
    case CDDP_EV_bucket_launch:
        if (e->as.bucket_launch.shadow) break;
        r->launches++;
        take_use(s, r, e, e->as.bucket_launch.bucket);
        if (!r->is_armed && !r->last_sync)
            report_no_sync(s, e, r, "a bucket is launched after a forward inside it");
        break;
    case CDDP_EV_grad_local:
        take_trigger(r, e);
        break;
    case CDDP_EV_backward_end:
        judge_delayed(s, r, e);
        if (e->as.backward_end.finalized) {
            r->finalized = true;
            r->is_armed = false;
        } else if (!r->last_sync) {
            r->silent_backwards++;
        }
        break;
    case CDDP_EV_mark_ready:
        take_use(s, r, e, e->as.mark_ready.bucket);
        break;
    case CDDP_EV_bucket_skip:
        take_use(s, r, e, e->as.bucket_skip.bucket);
        break;
    case CDDP_EV_used_local:
        r->has_map = true;
        break;
    case CDDP_EV_buffer_sync:
        r->has_buffer_sync |= e->as.buffer_sync.location <= CDDP_LOCATION_AFTER_FORWARD;
        break;
    case CDDP_EV_join_notify:
        r->has_notified = true;
        break;
    case CDDP_EV_policy:
        if (e->as.policy.site == CDDP_SITE_WIRE) r->wire = e->as.policy.dtype + 1;
        break;
    case CDDP_EV_collective_post:
        if (e->as.collective_post.op == CDDP_OP_ALLREDUCE && e->as.collective_post.bucket < 0)
            r->owes_delayed = false;
        take_post(s, r, e);
        break;
    case CDDP_EV_hook_call:
    case CDDP_EV_hook_done:
        take_hook(s, r, e);
        break;
    default:
        break;
    }
}

static void report_idle(state *s, const rank_facts *r, const char *setting, const char *effect)
{
    cddp_finding f = cd_finding_at(&s->writer, &r->last);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s has no effect", setting);
    CD_SAY(f.expected, "%s", effect);
    CD_SAY(f.actual, "nothing of the kind in the trace");
    CD_SAY(f.advice, "the setting was accepted and then ignored");
    cd_writer_report(&s->writer, &f);
}

static void judge_rank(state *s, const rank_facts *r)
{
    const uint32_t rank = r->last.rank;
    /* A static graph overrides the search for unused parameters (STA-02). */
    const bool searches = has_flag(s, rank, CDDP_KEY_ddp_find_unused_parameters) &&
                          !has_flag(s, rank, CDDP_KEY_ddp_static_graph);
    struct {
        const char *setting, *effect;
        bool is_on, is_due, is_seen;
    } rows[] = {
        {"find_unused_parameters", "a used map after a finalised backward", searches, r->finalized,
         r->has_map},
        {"broadcast_buffers", "a buffer synchronisation before a forward",
         has_flag(s, rank, CDDP_KEY_ddp_broadcast_buffers), r->has_passed && r->buffers > 0,
         r->has_buffer_sync},
        {"the comm hook", "a hook call for every launched bucket",
         cd_writer_has_hook(&s->writer, rank), r->launches > 0, r->has_hook_call},
        {"join", "a notification per iteration", has_flag(s, rank, CDDP_KEY_join_enable),
         r->has_armed, r->has_notified},
        {"the hook's declared wire dtype", "what it reduces and gathers is in that dtype",
         r->wide_calls + r->narrow_calls > 0, true, r->wide_calls == 0},
        {"skip_all_reduce_unused_params", "no launch of a bucket whose parameters are all unused",
         has_flag(s, rank, CDDP_KEY_ddp_skip_all_reduce_unused_params),
         r->skipped + r->not_skipped > 0, r->not_skipped == 0},
        {"no_sync", "backwards that launch nothing", r->silent_backwards > 0, true,
         !r->reported_no_sync},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!rows[i].is_on || !rows[i].is_due) continue;
        if (rows[i].is_seen)
            cd_writer_exercise(&s->writer, "%s: %s", rows[i].setting, rows[i].effect);
        else if (i < 6)
            report_idle(s, r, rows[i].setting, rows[i].effect);
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    for (size_t i = 0; i < s->ranks.count; i++)
        judge_rank(s, cd_ranks_find(&s->ranks, (uint32_t)i));
    cd_meta_obey_report(&s->obeyed, &s->writer);
    cd_meta_obey_fini(&s->obeyed);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->users);
    cd_table_fini(&s->calls);
    cd_plans_fini(&s->plans);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_rank_begin,
                                 CDDP_EV_wrap,
                                 CDDP_EV_regroup,
                                 CDDP_EV_no_sync,
                                 CDDP_EV_forward_begin,
                                 CDDP_EV_bucket_launch,
                                 CDDP_EV_backward_end,
                                 CDDP_EV_used_local,
                                 CDDP_EV_buffer_sync,
                                 CDDP_EV_join_notify,
                                 CDDP_EV_policy,
                                 CDDP_EV_hook_call,
                                 CDDP_EV_hook_done,
                                 CDDP_EV_mark_ready,
                                 CDDP_EV_bucket_skip,
                                 CDDP_EV_group,
                                 CDDP_EV_param,
                                 CDDP_EV_buffer,
                                 CDDP_EV_bucket_layout,
                                 CDDP_EV_rebuild,
                                 CDDP_EV_forward_end,
                                 CDDP_EV_collective_post,
                                 CDDP_EV_decision,
                                 CDDP_EV_hook_in_force,
                                 CDDP_EV_hook_option,
                                 CDDP_EV_average,
                                 CDDP_EV_agreement,
                                 CDDP_EV_rank_end,
                                 CDDP_EV_optimizer_touch,
                                 CDDP_EV_backward_begin,
                                 CDDP_EV_grad_local,
                                 CDDP_EV_grad_final,
                                 CDDP_EV_mark};

CD_CHECK_TABLE(meta, "I-META", "accepted settings have their effect",
               "Every accepted setting has its observable effect; the checker itself is sound on "
               "clean programs and "
               "does not perturb them.");
