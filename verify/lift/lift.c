/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a recorded run.
**
** What a wrapper posts for itself lies before its `wrap` event, within a forward, or within a
** backward. Everything else is the program's.
*/
#include "verify/lift/lift.h"

#include "cddp/backend.h"

#include "core/base/error.h"
#include "core/base/rank_list.h"
#include "core/trace/rank_end.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"

#include <string.h>

#define ARRIVED_MAX ((size_t)1 << 20)

static void *push_item(cd_lift *l, void **items, size_t *count, size_t *capacity, size_t bytes)
{
    if (!cd_arena_grow(&l->arena, items, capacity, *count + 1, bytes)) return NULL;
    return (char *)*items + (*count)++ * bytes;
}

#define PUSH_ITEM(l, list)                                                            \
    push_item((l), (void **)&(l)->list##s, &(l)->list##_count, &(l)->list##_capacity, \
              sizeof *(l)->list##s)

static const char *copy(cd_lift *l, const char *text)
{
    return cd_arena_strdup(&l->arena, text != NULL ? text : "");
}

static void take_parameter(cd_lift *l, const cddp_event *e)
{
    const cddp_event_param *p = &e->as.param;
    if (e->rank != 0 || l->wrapper_count > 0) return;
    cd_lift_parameter *q = PUSH_ITEM(l, parameter);
    if (q == NULL) return;
    *q = (cd_lift_parameter){.name = copy(l, e->text),
                             .variable = p->param,
                             .numel = p->numel,
                             .dtype = p->dtype,
                             .shape = p->shape,
                             .requires_grad = p->requires_grad != 0,
                             .is_ignored = p->ignored != 0};
}

static void take_group(cd_lift *l, const cddp_event *e)
{
    const cddp_event_group *g = &e->as.group;
    cd_lift_group *found = NULL;
    for (size_t i = 0; i < l->group_count; i++)
        if (l->groups[i].id == g->group) found = &l->groups[i];
    if (found == NULL && g->members > 0 && g->members <= l->rank_count) {
        found = PUSH_ITEM(l, group);
        uint32_t *ranks = cd_arena_array(&l->arena, (size_t)g->members, sizeof *ranks);
        if (found == NULL || ranks == NULL) return;
        for (int64_t i = 0; i < g->members; i++) ranks[i] = UINT32_MAX;
        *found = (cd_lift_group){g->group, g->members,        copy(l, e->text),
                                 ranks,    g->members_digest, false};
    }
    if (found != NULL && found->digest != g->members_digest) found->is_disputed = true;
    if (found != NULL && g->group_rank >= 0 && g->group_rank < found->members)
        found->ranks[g->group_rank] = e->rank;
    /* who never came to an exchange of messages is named by the other one */
    const uint32_t other =
        found != NULL && g->members == 2
            ? cd_rank_find_other((uint64_t)g->members_digest, e->rank, g->group_rank, l->rank_count)
            : CD_NO_RANK;
    if (other != CD_NO_RANK && found->ranks[g->group_rank == 0 ? 1 : 0] == UINT32_MAX)
        found->ranks[g->group_rank == 0 ? 1 : 0] = other;
}

static void take_setting(cd_lift *l, const cddp_event *e)
{
    const cddp_event_option *o = &e->as.option;
    cd_lift_setting *s = PUSH_ITEM(l, setting);
    if (s == NULL) return;
    *s = (cd_lift_setting){e->rank,
                           o->key,
                           o->item,
                           o->items,
                           o->value,
                           cd_f64_of(o->real),
                           e->text != NULL ? copy(l, e->text) : NULL};
}

static void take_hook(cd_lift *l, const cddp_event *e)
{
    if (e->rank != 0) return;
    const char *name = e->text != NULL ? cd_lift_translate_hook(e->text) : "";
    *(e->as.hook_in_force.level == 0 ? &l->hook : &l->inner) = copy(l, name);
}

static void take_hook_option(cd_lift *l, const cddp_event *e)
{
    if (e->rank == 0 && e->text != NULL)
        cd_text_printf(&l->hook_options, "%s%s=%.17g", l->hook_options.length > 0 ? "," : "",
                       e->text, cd_f64_of(e->as.hook_option.value));
}

/* ---- the loop ---- */

static cd_lift_pass *last_pass(cd_lift *l, const cd_lift_rank *r)
{
    return r->pass > 0 ? &l->passes[r->pass - 1] : NULL;
}

static void take_forward(cd_lift *l, cd_lift_rank *r, const cddp_event *e)
{
    r->in_forward = true;
    if (e->as.forward_begin.joined || !e->as.forward_begin.grad_mode) return;
    cd_lift_pass *p =
        push_item(l, (void **)&l->passes, &l->pass_count, &l->pass_capacity, sizeof *l->passes);
    if (p == NULL) return;
    *p = (cd_lift_pass){.rank = e->rank,
                        .step = e->step,
                        .micro_step = e->micro_step,
                        .is_sync = e->as.forward_begin.sync != 0,
                        .samples = r->samples};
    r->pass = l->pass_count;
    if (!r->has_begun) r->first = e->step;
    r->has_begun = true;
    r->samples = -1;
    if (e->step + 1 > r->steps) r->steps = e->step + 1;
}

static void take_arrival(cd_lift *l, const cd_lift_rank *r, int64_t variable)
{
    cd_lift_pass *p = last_pass(l, r);
    if (p == NULL || variable < 0) return;
    for (size_t i = 0; i < p->arrived_count; i++)
        if (p->arrived[i] == variable) return;
    if (p->arrived_count > ARRIVED_MAX) return; /* damage */
    if (cd_arena_grow(&l->arena, (void **)&p->arrived, &p->arrived_capacity, p->arrived_count + 1,
                      sizeof *p->arrived))
        p->arrived[p->arrived_count++] = variable;
}

static void take_optimizer(cd_lift *l, cd_lift_rank *r, const cddp_event *e)
{
    const cddp_event_optimizer_step *o = &e->as.optimizer_step;
    r->place = CD_LIFT_AFTER_STEP;
    if (last_pass(l, r) != NULL) last_pass(l, r)->has_step = true;
    r->stepped_count += r->stepped != e->step + 1;
    r->stepped = e->step + 1;
    if (l->optimizer == NULL) {
        l->optimizer = copy(l, e->text);
        l->rate = cd_f64_of(o->lr);
    }
    l->has_rates |= cd_f64_of(o->lr) != l->rate;
    if (!o->skipped) return;
    struct cd_lift_skip *s = PUSH_ITEM(l, skip);
    if (s != NULL) *s = (struct cd_lift_skip){e->rank, e->step};
}

static void take_post(cd_lift *l, cd_lift_rank *r, const cddp_event *e)
{
    const cddp_event_collective_post *p = &e->as.collective_post;
    const bool is_own = r->module == l->module, is_inside = r->in_forward || r->in_backward;
    r->collectives++;
    r->outstanding++;
    if (!r->has_wrapper) {
        cd_lift_post *bare = l->wrapper_count == 0 ? PUSH_ITEM(l, post) : NULL;
        if (bare != NULL)
            *bare = (cd_lift_post){{e->rank, 0, CD_LIFT_BEFORE_FORWARD, p->group, p->op,
                                    p->reduce_op, p->root, p->dtype, p->numel},
                                   p->sequence};
        const bool is_broadcast = p->op == CDDP_OP_BROADCAST;
        r->before_wrap++;
        r->last_broadcasts = is_broadcast ? r->last_broadcasts + 1 : 0;
        if (!is_broadcast) r->has_gathered = p->op == CDDP_OP_ALLGATHER;
    }
    if (l->is_joint && !is_own) return;
    if (!r->has_wrapper || r->in_exit || (is_own && (is_inside || p->bucket >= 0))) return;
    if (r->has_left && !r->in_join && !r->has_begun) {
        l->has_outside = true; /* no step of a scenario lies behind the end of a join */
        return;
    }
    cd_lift_collective *c = PUSH_ITEM(l, collective);
    if (c == NULL) return;
    l->is_interleaved |= r->in_backward;
    const cd_lift_place place = r->in_backward  ? CD_LIFT_AFTER_BACKWARD
                                : r->in_forward ? CD_LIFT_BEFORE_BACKWARD
                                                : r->place;
    *c = (cd_lift_collective){e->rank,      e->step, place,    p->group, p->op,
                              p->reduce_op, p->root, p->dtype, p->numel};
}

/* A step that begins has its own places. */
static void follow_step(cd_lift_rank *r, const cddp_event *e)
{
    if (e->step == r->step) return;
    r->step = e->step;
    r->place = CD_LIFT_BEFORE_FORWARD;
}

static void take_loop(cd_lift *l, cd_lift_rank *r, const cddp_event *e)
{
    follow_step(r, e);
    switch (e->kind) {
    case CDDP_EV_samples:
        /* said once for all wrappers, or before the forward of each */
        r->samples = (r->samples > 0 && !l->is_joint ? r->samples : 0) + e->as.samples.count;
        break;
    case CDDP_EV_forward_begin:
        take_forward(l, r, e);
        break;
    case CDDP_EV_forward_end:
        r->in_forward = false;
        r->place = CD_LIFT_BEFORE_BACKWARD;
        break;
    case CDDP_EV_backward_begin:
        r->in_backward = true;
        if (last_pass(l, r) != NULL) last_pass(l, r)->has_backward = true;
        break;
    case CDDP_EV_backward_end:
        r->in_backward = false;
        r->place = CD_LIFT_AFTER_BACKWARD;
        break;
    case CDDP_EV_grad_local:
        l->local_count++;
        if (e->as.grad_local.presence != CDDP_PRESENCE_ABSENT)
            take_arrival(l, r, e->as.grad_local.param);
        break;
    case CDDP_EV_mark_ready:
        if (!e->as.mark_ready.unused) take_arrival(l, r, e->as.mark_ready.param);
        break;
    case CDDP_EV_optimizer_step:
        take_optimizer(l, r, e);
        break;
    case CDDP_EV_collective_post:
        take_post(l, r, e);
        break;
    case CDDP_EV_collective_done:
        r->outstanding--;
        r->has_failed |= e->as.collective_done.status != CDDP_OK;
        break;
    case CDDP_EV_rank_end:
        r->is_over = true;
        r->status = e->as.rank_end.status;
        r->end = e->as.rank_end.end;
        /* it stood still until it was killed for that */
        if (r->end == CDDP_RANK_KILLED && e->as.rank_end.detail == CD_RANK_STOPPED)
            r->end = CDDP_RANK_HUNG;
        break;
    default:
        break;
    }
}

/* More than a loss, behind a backward that nobody reduced. */
static void take_own_reduction(cd_lift *l, const cd_lift_rank *r, const cddp_event *e)
{
    const cd_lift_pass *p = last_pass(l, r);
    if (p == NULL || p->is_sync || e->as.mark.value < 2 || e->text == NULL) return;
    l->reduces_itself |= strcmp(e->text, CD_TRACER_OWN_REDUCTION) == 0;
}

void cd_lift_push(cd_lift *l, const cddp_event *e)
{
    if (e->kind == CDDP_EV_run_end) l->is_complete = e->as.run_end.complete != 0;
    if (e->rank >= l->rank_count || l->arena.exhausted) return;
    cd_lift_rank *r = &l->ranks[e->rank];
    switch (e->kind) {
    case CDDP_EV_param:
        take_parameter(l, e);
        break;
    case CDDP_EV_mark:
        if (e->text != NULL && strcmp(e->text, CD_TRACER_WRAPPED) == 0)
            r->module = e->as.mark.value;
        if (e->text != NULL && strncmp(e->text, "torch ", 6) == 0) l->is_of_torch = true;
        take_own_reduction(l, r, e);
        if (!l->is_joint || r->module == l->module) cd_lift_take_mark(l, e);
        break;
    case CDDP_EV_buffer:
        l->buffer_count += e->rank == 0;
        break;
    case CDDP_EV_group:
        take_group(l, e);
        break;
    case CDDP_EV_wrap:
        l->wrapper_count += e->rank == 0;
        if (l->wrapper_count <= 1) l->reducer = e->as.wrap.group;
        r->has_wrapper = true;
        break;
    case CDDP_EV_option:
        take_setting(l, e);
        break;
    case CDDP_EV_bucket_layout:
        cd_lift_take_slot(l, e);
        break;
    case CDDP_EV_cause:
        l->has_continuations |= r->in_backward;
        break;
    case CDDP_EV_hook_in_force:
        take_hook(l, e);
        break;
    case CDDP_EV_hook_option:
        take_hook_option(l, e);
        break;
    case CDDP_EV_join_notify:
        cd_lift_take_notify(l, e);
        break;
    case CDDP_EV_join_end:
        cd_lift_take_join_end(l, e->rank);
        break;
    case CDDP_EV_zero_grad:
        l->has_zero_grad = true;
        l->zeroes |= !e->as.zero_grad.to_none;
        break;
    default:
        take_loop(l, r, e);
        break;
    }
}

static size_t count_at(const cd_lift *l, uint32_t rank, const cd_lift_collective *at, size_t end)
{
    size_t count = 0;
    for (size_t i = 0; i < end; i++) {
        const cd_lift_collective *c = &l->collectives[i];
        count += c->rank == rank && c->step == at->step && c->place == at->place;
    }
    return count;
}

void cd_lift_continue(cd_lift *l, uint32_t rank, uint32_t as)
{
    const cd_lift_rank *r = &l->ranks[rank];
    for (size_t i = 0, count = l->collective_count; i < count; i++) {
        cd_lift_collective c = l->collectives[i];
        const bool is_later = c.step > r->step || (c.step == r->step && c.place >= r->place);
        if (c.rank != as || !is_later) continue;
        const size_t before = count_at(l, as, &c, i);
        if (count_at(l, rank, &c, l->collective_count) > before) continue;
        cd_lift_collective *copied = PUSH_ITEM(l, collective);
        if (copied == NULL) return;
        *copied = c;
        copied->rank = rank;
    }
}

cddp_status cd_lift_init(cd_lift *lift, uint32_t rank_count, const char *program,
                         const cddp_allocator *allocator, cddp_error *err)
{
    *lift = (cd_lift){.rank_count = rank_count, .program = program};
    cd_arena_init(&lift->arena, allocator, 0);
    cd_text_init(&lift->hook_options, false);
    lift->ranks = cd_arena_array(&lift->arena, rank_count, sizeof *lift->ranks);
    if (lift->ranks == NULL) {
        cd_lift_fini(lift);
        return cd_fail_memory(err, "%u ranks", rank_count);
    }
    for (uint32_t i = 0; i < rank_count; i++) lift->ranks[i].samples = -1;
    return CDDP_OK;
}

void cd_lift_fini(cd_lift *lift)
{
    cd_text_fini(&lift->hook_options);
    cd_arena_fini(&lift->arena);
}
