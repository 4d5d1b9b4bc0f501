/* SPDX-License-Identifier: Apache-2.0 */
/* Works of several steps. step.h has the invariants; groups are opened in step_group.c. */
#include "backends/compose/step.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- groups that broke ---- */

static void group_break(cd_step_group *g, cddp_status status, const char *words)
{
    if (g->broken != CDDP_OK) return;
    g->broken = status;
    snprintf(g->broken_words, sizeof g->broken_words, "%.*s", (int)sizeof g->broken_words - 1,
             words);
}

static cddp_status fail_broken(const cd_step_group *g, cddp_error *err)
{
    return cd_fail(err, g->broken, "group '%s' failed before: %s", g->name, g->broken_words);
}

/* ---- records of works (P5) ---- */

static cddp_status work_take(cd_step_group *g, cd_step_work **work, cddp_error *err)
{
    cd_step_work *w = g->free;
    if (w != NULL) {
        g->free = w->next;
    } else {
        const cd_arena_mark mark = cd_arena_get_mark(&g->arena);
        int64_t *counts = cd_arena_array(&g->arena, 2 * g->size, sizeof *counts);
        void *extra = cd_arena_push(&g->arena, g->extra_bytes);
        w = cd_arena_push(&g->arena, sizeof *w);
        if (g->arena.exhausted) {
            cd_arena_rewind(&g->arena, mark);
            return cd_fail_memory(err, "an operation of group '%s'", g->name);
        }
        *w = (cd_step_work){.next_made = g->made, .counts = counts, .extra = extra};
        g->made = w;
    }
    *w = (cd_step_work){.next_made = w->next_made, .counts = w->counts, .extra = w->extra};
    *work = w;
    return CDDP_OK;
}

static void work_give(cd_step_group *g, cd_step_work *w)
{
    w->next = g->free;
    g->free = w;
}

static void queue_push(cd_step_group *g, cd_step_work *w)
{
    w->queued = true;
    g->mine->queued++;
    w->next = NULL;
    if (g->last != NULL)
        g->last->next = w;
    else
        g->first = w;
    g->last = w;
}

static void queue_remove(cd_step_group *g, cd_step_work *w)
{
    cd_step_work *before = NULL;
    if (!w->queued) return;
    for (cd_step_work *i = g->first; i != w; i = i->next) before = i;
    if (before != NULL)
        before->next = w->next;
    else
        g->first = w->next;
    if (g->last == w) g->last = before;
    w->queued = false;
    g->mine->queued--;
    w->next = NULL;
}

/* ---- steps ---- */

/* The time left until a deadline, for inner backends: 0 means "no limit", so an expired deadline
** gives 1. */
static uint64_t time_left(const cd_step_group *g, uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX) return 0;
    uint64_t now = cd_step_now(g);
    return now < deadline_ns ? deadline_ns - now : 1;
}

cddp_status cd_inner_post(cd_step_group *g, uint32_t index, const cddp_collective *call,
                          void **work, cddp_error *err)
{
    cd_inner *inner = &g->inner[index];
    cddp_collective c = *call;
    c.size = sizeof c;
    c.sequence = inner->sequence;
    if (!cd_step_is_message(c.op)) inner->sequence++; /* P4 */
    CD_TRY(inner->table->post(inner->group, &c, work, err));
    return CDDP_OK;
}

cddp_status cd_step_issue(cd_step_group *g, cd_step_work *w, uint32_t index,
                          const cddp_collective *call, bool last, cddp_error *err)
{
    cddp_collective c = *call;
    c.timeout_ns = time_left(g, w->deadline_ns);
    w->stage++;
    w->is_one_of_many = w->is_one_of_many || !last;
    w->arrived = false;
    w->inner_index = index;
    CD_TRY(cd_inner_post(g, index, &c, &w->inner, err));
    w->last = last; /* one that could not be issued is missing */
    return CDDP_OK;
}

static void inner_release(cd_step_group *g, cd_step_work *w)
{
    if (w->inner == NULL) return;
    const cd_inner *inner = &g->inner[w->inner_index];
    inner->table->release(inner->group, w->inner);
    w->inner = NULL;
}

/* Copies the inner backend's answer on which rank the step in flight waits for; nothing without a
** step. */
static void describe_inner(const cd_step_group *g, const cd_step_work *w, char *text,
                           size_t text_bytes)
{
    if (text_bytes > 0) text[0] = '\0';
    if (w->inner == NULL) return;
    const cd_inner *inner = &g->inner[w->inner_index];
    if (inner->table->describe != NULL)
        inner->table->describe(inner->group, w->inner, text, text_bytes);
}

/* Aborts the inner groups, but `spared`. */
static cddp_status abort_inner(const cd_step_group *g, uint32_t spared, const char *reason,
                               cddp_error *err)
{
    cddp_status first = CDDP_OK;
    for (uint32_t i = 0; i < g->inner_count; i++) {
        const cd_inner *inner = &g->inner[i];
        if (i == spared || inner->table == NULL || inner->table->abort == NULL) continue;
        cddp_status status =
            inner->table->abort(inner->group, reason, first == CDDP_OK ? err : NULL);
        if (first == CDDP_OK) first = status;
    }
    return first;
}

/* Others may wait for steps that this rank will never make, in whatever inner group (P7). Members
** of a group in which a step timed out have the same time-out, and say themselves for whom they
** waited. */
static void break_for_all(cd_step_group *g, const cd_step_work *w, cddp_status status,
                          const char *words)
{
    char reason[CDDP_ERROR_MESSAGE_BYTES];
    if (g->broken != CDDP_OK) return;
    group_break(g, status, words);
    if (w->is_known_to_all) return;
    snprintf(reason, sizeof reason, "its %s failed: %s", cddp_op_name(w->call.op), words);
    const bool is_late = status == CDDP_E_TIMEOUT && w->inner != NULL;
    (void)abort_inner(g, is_late ? w->inner_index : UINT32_MAX, reason, NULL);
}

/* Later steps are missing (P3), or an inner group is lost that other ranks of this group do not
** know: they would wait for this rank in the next operation. A time-out loses no group. */
static bool breaks_group(const cd_step_work *w, cddp_status outcome)
{
    return !w->last || (w->is_one_of_many && w->inner != NULL && outcome != CDDP_E_TIMEOUT);
}

static void work_end(cd_step_group *g, cd_step_work *w, cddp_status outcome, cddp_error *err)
{
    w->ended = true;
    if (outcome != CDDP_OK && g->ops->failed != NULL) {
        g->ops->failed(g, w, err);
        outcome = err->status;
    }
    w->outcome = outcome;
    if (outcome != CDDP_OK)
        snprintf(w->words, sizeof w->words, "%.*s", (int)sizeof w->words - 1, err->message);
    if (outcome != CDDP_OK) describe_inner(g, w, w->who, sizeof w->who);
    if (outcome != CDDP_OK && breaks_group(w, outcome)) break_for_all(g, w, outcome, w->words);
    inner_release(g, w);
    queue_remove(g, w);
}

/* Waits for the step in flight, or tests it. *ended says whether it is over; a failure is
** returned. */
static cddp_status step_complete(cd_step_group *g, cd_step_work *w, uint64_t limit_ns, bool blocks,
                                 bool *ended, cddp_error *err)
{
    const cd_inner *inner = &g->inner[w->inner_index];
    uint64_t until = limit_ns < w->deadline_ns ? limit_ns : w->deadline_ns;
    *ended = true;
    const bool is_under_way = w->inner != NULL && !w->arrived;
    if (is_under_way && blocks)
        CD_TRY(inner->table->wait(inner->group, w->inner, time_left(g, until), err));
    if (is_under_way && !blocks) CD_TRY(inner->table->test(inner->group, w->inner, ended, err));
    if (w->lost) {
        uint64_t now = cd_step_now(g);
        if (!blocks && now < until) {
            *ended = false;
        } else {
            /* Without a time-out nobody would ever notice the loss, so it fails at once. */
            if (now < until && until != UINT64_MAX)
                CD_TRY(g->rank->ops->sleep_ns(g->rank, until - now, err));
            return cd_fail(err, CDDP_E_TIMEOUT,
                           "operation %" PRIu64 " of rank %" PRIu32 " was lost (planted by fault:)",
                           w->number, g->rank->rank);
        }
    }
    if (*ended && w->last && w->due_ns > 0) {
        uint64_t now = cd_step_now(g);
        if (now < w->due_ns && !blocks)
            *ended = false;
        else if (now < w->due_ns)
            CD_TRY(g->rank->ops->sleep_ns(g->rank, w->due_ns - now, err));
    }
    return CDDP_OK;
}

/* Advances a work: as far as possible without waiting, or past the step in flight when it may
** block. */
static void work_advance(cd_step_group *g, cd_step_work *w, uint64_t limit_ns, bool blocks)
{
    cddp_error error = CDDP_ERROR_INIT, *err = &error;
    bool ended = false;
    cddp_status status = step_complete(g, w, limit_ns, blocks, &ended, err);
    if (status == CDDP_OK && !ended) return;
    if (status == CDDP_OK) {
        bool was_last = w->last;
        inner_release(g, w);
        if (was_last) {
            if (g->ops->finish != NULL) status = g->ops->finish(g, w, err);
            work_end(g, w, status, err);
            return;
        }
        status = g->broken != CDDP_OK ? fail_broken(g, err) : g->ops->next(g, w, err);
        if (status == CDDP_OK) {
            if (w->last) queue_remove(g, w); /* P2 */
            return;
        }
    }
    work_end(g, w, status, err);
}

/* Advances the queue without waiting. */
static void group_pump(cd_step_group *g)
{
    for (cd_step_work *w = g->first; w != NULL && w == g->first;) {
        uint32_t stage = w->stage;
        work_advance(g, w, UINT64_MAX, false);
        /* it waits for others, and so do those after it (P1) */
        if (g->first == w && w->stage == stage) return;
        w = g->first;
    }
}

static cddp_status step_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err);

static bool is_composed(const cd_inner *inner)
{
    return inner->table != NULL && inner->table->wait == step_wait;
}

/* A group that `outer` is made of: waiting for it is how a work of `outer` goes on. */
static bool is_part_of(const cd_step_group *outer, const cd_step_group *group)
{
    for (uint32_t i = 0; i < outer->inner_count; i++)
        if (is_composed(&outer->inner[i]) &&
            (outer->inner[i].group == group || is_part_of(outer->inner[i].group, group)))
            return true;
    return false;
}

/* Advances what other groups of this rank have under way (P6). True: they have steps to come. */
static bool pump_others(const cd_step_group *g)
{
    bool are_open = false;
    if (g->mine->queued == 0) return false;
    for (cd_step_group *other = g->mine->first; other != NULL; other = other->next_of_rank) {
        if (other->is_at_work || other->first == NULL || is_part_of(g, other)) continue;
        other->is_at_work = true;
        group_pump(other);
        other->is_at_work = false;
        are_open = are_open || other->first != NULL;
    }
    return are_open;
}

/* How long a wait lasts before the other groups are looked at: a part of what it has lasted
** already, so that the looks of a wait without end are few. */
#define SLICE_NS UINT64_C(50000)
#define SLICE_PART 8

static cddp_status wait_a_while(cd_step_group *g, cd_step_work *w, uint64_t limit_ns,
                                cddp_error *err);

/* As a leaf's wait that is over: the work stays as it is. */
static cddp_status inner_wait_a_while(const cd_step_group *g, const cd_inner *inner, void *work,
                                      uint64_t duration_ns, cddp_error *err)
{
    if (is_composed(inner))
        return CD_PASS(wait_a_while(inner->group, work, cd_step_now(g) + duration_ns, err));
    return CD_PASS(inner->table->wait(inner->group, work, duration_ns, err));
}

/* Waits a little for the step in flight, and advances the work if that has ended. */
static void work_wait_a_little(cd_step_group *g, cd_step_work *w, uint64_t slice_ns)
{
    const cd_inner *inner = &g->inner[w->inner_index];
    cddp_error error = CDDP_ERROR_INIT;
    cddp_status status = CDDP_OK;
    if (w->inner != NULL && !w->arrived) {
        status = inner_wait_a_while(g, inner, w->inner, slice_ns, &error);
        w->arrived = status == CDDP_OK;
    } else {
        status = g->rank->ops->sleep_ns(g->rank, slice_ns, &error); /* it is not due */
    }
    if (status != CDDP_OK && status != CDDP_E_TIMEOUT)
        work_end(g, w, status, &error);
    else
        work_advance(g, w, UINT64_MAX, false); /* its own time-out ends it here */
}

static void work_wait(cd_step_group *g, cd_step_work *w, uint64_t limit_ns, uint64_t since_ns)
{
    const uint64_t until = limit_ns < w->deadline_ns ? limit_ns : w->deadline_ns;
    const uint64_t now = cd_step_now(g), slice_ns = SLICE_NS + (now - since_ns) / SLICE_PART;
    if (!w->lost && until > now && until - now > slice_ns && pump_others(g))
        work_wait_a_little(g, w, slice_ns);
    else
        work_advance(g, w, limit_ns, true);
}

/* The step that a work waits for: its own, or that of the first in the queue (P1). */
static cd_step_work *next_to_advance(cd_step_group *g, cd_step_work *w)
{
    return w->queued ? g->first : w;
}

static cddp_status work_outcome(const cd_step_work *w, cddp_error *err);

static cddp_status wait_a_while(cd_step_group *g, cd_step_work *w, uint64_t limit_ns,
                                cddp_error *err)
{
    g->is_at_work = true;
    while (!w->ended) {
        const uint64_t now = cd_step_now(g);
        if (now >= limit_ns) break;
        (void)pump_others(g);
        work_wait_a_little(g, next_to_advance(g, w), limit_ns - now);
    }
    g->is_at_work = false;
    if (!w->ended) return cd_fail(err, CDDP_E_TIMEOUT, "group '%s': not done yet", g->name);
    return CD_PASS(work_outcome(w, err));
}

static cddp_status work_outcome(const cd_step_work *w, cddp_error *err)
{
    return w->outcome == CDDP_OK ? CDDP_OK : cd_fail(err, w->outcome, "%s", w->words);
}

/* Advances everything of the rank without waiting. */
static void pump(cd_step_group *g)
{
    g->is_at_work = true;
    group_pump(g);
    (void)pump_others(g);
    g->is_at_work = false;
}

/* ---- the slots ---- */

static cddp_status step_post(void *group, const cddp_collective *c, void **work, cddp_error *err)
{
    cd_step_group *g = group;
    cd_step_work *w = NULL;
    cddp_error own = CDDP_ERROR_INIT;
    if (err == NULL) err = &own;
    pump(g);
    if (g->broken != CDDP_OK) return CD_PASS(fail_broken(g, err));
    CD_TRY(work_take(g, &w, err));
    uint64_t timeout_ns = c->timeout_ns != 0 ? c->timeout_ns : g->timeout_ns;
    w->call = *c;
    w->number = g->posted++;
    w->deadline_ns = timeout_ns != 0 ? cd_step_now(g) + timeout_ns : UINT64_MAX;
    for (uint32_t r = 0; r < g->size; r++) {
        w->counts[r] = c->counts != NULL ? c->counts[r] : 0;
        w->counts[g->size + r] = c->send_counts != NULL ? c->send_counts[r] : 0;
    }
    if (c->counts != NULL) w->call.counts = w->counts;
    if (c->send_counts != NULL) w->call.send_counts = w->counts + g->size;
    cddp_status status = g->ops->begin(g, w, err);
    if (status != CDDP_OK) {
        /* what a backend cannot do fails alike on all ranks */
        if (w->is_one_of_many && status != CDDP_E_UNSUPPORTED)
            break_for_all(g, w, status, err->message);
        work_give(g, w);
        return status;
    }
    if (!w->last && !w->lost) queue_push(g, w);
    if (w->lost) w->last = true;
    *work = w;
    return CDDP_OK;
}

static cddp_status step_test(void *group, void *work, bool *done, cddp_error *err)
{
    cd_step_group *g = group;
    cd_step_work *w = work;
    pump(g);
    if (!w->ended && !w->queued) work_advance(g, w, UINT64_MAX, false);
    if (w->ended) CD_TRY(work_outcome(w, err));
    *done = w->ended;
    return CDDP_OK;
}

static cddp_status step_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    cd_step_group *g = group;
    cd_step_work *w = work;
    uint64_t limit = timeout_ns != 0 ? cd_step_now(g) + timeout_ns : UINT64_MAX;
    const uint64_t since = cd_step_now(g);
    g->is_at_work = true;
    while (!w->ended) work_wait(g, next_to_advance(g, w), limit, since);
    g->is_at_work = false;
    CD_TRY(work_outcome(w, err));
    return CDDP_OK;
}

static void step_release(void *group, void *work)
{
    cd_step_group *g = group;
    cd_step_work *w = work;
    if (w->queued)
        break_for_all(g, w, CDDP_E_STATE,
                      "an operation was abandoned before all of its steps were made");
    if (!w->ended && g->ops->given_up != NULL) g->ops->given_up(g, w);
    inner_release(g, w);
    queue_remove(g, w);
    work_give(g, w);
}

static cddp_status step_abort(void *group, const char *reason, cddp_error *err)
{
    cd_step_group *g = group;
    const cddp_status first = abort_inner(g, UINT32_MAX, reason, err);
    group_break(g, CDDP_E_ABORTED, reason != NULL ? reason : "aborted");
    return first;
}

static void step_describe(void *group, void *work, char *text, size_t text_bytes)
{
    const cd_step_work *w = work;
    if (w->ended)
        snprintf(text, text_bytes, "%s", w->who); /* its step is released */
    else
        describe_inner(group, w, text, text_bytes);
}

void cd_step_fill_table(cddp_backend *table)
{
    table->abi = CDDP_BACKEND_ABI;
    table->close = cd_step_group_destroy;
    table->post = step_post;
    table->test = step_test;
    table->wait = step_wait;
    table->release = step_release;
    table->abort = step_abort;
    table->describe = step_describe;
    /* of the inner backend's groups and works, not of these */
    table->observe = NULL;
    table->digest_read = NULL;
    table->digest_written = NULL;
}
