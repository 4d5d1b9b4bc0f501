/* SPDX-License-Identifier: Apache-2.0 */
/* A work: one operation in flight, from post to the end of its wait.
**
** States: free → busy (post accepted) → ended (by test or wait) → free. A work that is released
** before it ends is free at once; the backend keeps what its transport still needs (G2, G5).
*/
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/comm/group.h"
#include "core/comm/operands.h"
#include "core/trace/tracer.h"

#include <string.h>

/* The bytes of its storage from the first to behind the last element of a contiguous tensor; of
** another one, up to the end of the storage. */
static void find_bytes(const cddp_tensor *t, size_t *begin, size_t *end)
{
    const size_t element = cddp_dtype_bytes(t->dtype);
    *begin = (size_t)t->offset * element;
    *end =
        cddp_tensor_is_contiguous(t) ? *begin + (size_t)cddp_tensor_numel(t) * element : SIZE_MAX;
}

bool cd_work_writes(const cddp_work *w, const cddp_tensor *t)
{
    if (w == NULL || !w->busy || w->ended || w->group->is_destroyed) return false;
    const cddp_tensor *out = &w->collective.output;
    size_t from, to, begin, end;
    if (!(cd_operands_of(w->group, &w->collective) & CD_OPERAND_OUTPUT)) return false;
    if (out->storage != t->storage) return false;
    find_bytes(out, &from, &to);
    find_bytes(t, &begin, &end);
    return from < end && begin < to;
}

/* Something wrote to the result between the end of the operation and the wait. */
static void mark_overwritten(const cddp_work *w, int64_t digest)
{
    const cddp_group *g = w->group;
    if (!w->collective.is_watched || digest == 0 || w->backend_work == NULL) return;
    const int64_t written = g->table.digest_written(g->backend_group, w->backend_work);
    if (written != 0 && written != digest)
        CD_EMIT(g->tracer, mark, CD_TRACER_REDUCED_WRITTEN,
                .value = (int64_t)w->collective.label - 1);
}

void cd_work_emit_done(const cddp_work *w)
{
    const cddp_group *g = w->group;
    if (g->tracer == NULL) return;
    const cddp_collective *c = &w->collective;
    unsigned operands = cd_operands_of(g, c);
    bool ok = w->outcome == CDDP_OK;
    /* What it gave must be there still, unless the result was to replace it: on the root of a
    ** broadcast and on the ranks that a reduction gives nothing to, too. */
    bool is_replaced = (operands & CD_OPERAND_OUTPUT) && cd_operands_are_in_place(g, c);
    bool sends = c->op == CDDP_OP_BROADCAST && c->root == g->group_rank;
    const cddp_tensor *given = sends                                           ? &c->output
                               : (operands & CD_OPERAND_INPUT) && !is_replaced ? &c->input
                                                                               : NULL;
    const bool gave = (operands & CD_OPERAND_INPUT) != 0 || sends;
    const int64_t digest = ok && (operands & CD_OPERAND_OUTPUT)
                               ? cd_tracer_digest_on(g->tracer, &c->output, c->stream)
                               : 0;
    CD_EMIT(g->tracer, collective_done, NULL, .group = g->id, .sequence = (int64_t)c->sequence,
            .status = w->outcome, .digest = digest,
            .duration = (int64_t)(g->rank->ops->now_ns(g->rank) - w->posted_ns),
            .input = ok && given != NULL ? cd_tracer_digest_on(g->tracer, given, c->stream) : 0,
            .start = ok && gave && w->backend_work != NULL
                         ? g->table.digest_read(g->backend_group, w->backend_work)
                         : 0);
    mark_overwritten(w, digest);
    if (ok && (c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_ALLGATHER))
        cd_tracer_pass(g->tracer, c->label, true, &c->output);
    cd_group_show_reduction(g, c, true, ok ? &c->output : NULL);
}

static void give_back(cddp_work *w)
{
    cddp_group *g = w->group;
    CD_ASSERT(w->busy && g->in_flight > 0);
    if (!g->is_destroyed) g->table.release(g->backend_group, w->backend_work);
    w->backend_work = NULL;
    w->busy = false;
    w->next_free = g->free_works;
    g->free_works = w;
    g->in_flight--;
    cd_group_free_unused(g);
}

/* Writes what failed and which ranks are missing; the backend's message stays in the text. */
static cddp_status explain(const cddp_work *w, cddp_error *err)
{
    const cddp_group *g = w->group;
    char who[160] = "";
    g->table.describe(g->backend_group, w->backend_work, who, sizeof who);
    if (who[0] != '\0')
        CD_EMIT(g->tracer, waiting_for, who, .group = g->id,
                .sequence = (int64_t)w->collective.sequence, .peer = -1, .op = w->collective.op,
                .who = g->rank->rank);
    if (err == NULL) return w->outcome;
    char words[CDDP_ERROR_MESSAGE_BYTES];
    memcpy(words, err->message, sizeof words);
    return cd_fail(err, w->outcome, "%s #%llu of group '%s' on rank %u: %s%s%s",
                   cddp_op_name(w->collective.op), (unsigned long long)w->collective.sequence,
                   g->name, g->rank->rank, words, who[0] ? "; " : "", who);
}

/* Records the end of a work, once. When outcome is a failure, *err has the backend's message. */
static cddp_status end_work(cddp_work *w, cddp_status outcome, cddp_error *err)
{
    CD_ASSERT(!w->ended);
    w->ended = true;
    w->outcome = outcome;
    cd_work_emit_done(w);
    return CD_PASS(outcome == CDDP_OK ? CDDP_OK : explain(w, err));
}

/* The outcome of a work that ended earlier. */
static cddp_status repeat_outcome(const cddp_work *w, cddp_error *err)
{
    if (w->outcome == CDDP_OK) return CDDP_OK;
    return cd_fail(err, w->outcome, "%s #%llu of group '%s' on rank %u failed before",
                   cddp_op_name(w->collective.op), (unsigned long long)w->collective.sequence,
                   w->group->name, w->group->rank->rank);
}

/* The post failed and nobody looked. */
static cddp_status check_work(const cddp_work *work, cddp_error *err)
{
    if (work == NULL)
        return cd_fail(err, CDDP_E_ARG, "the work is NULL: did its operation fail to be posted?");
    /* Until another operation of the group takes its place. */
    if (!work->busy)
        return cd_fail(err, CDDP_E_ARG,
                       "a work of group '%s' is used after it was waited for or released: its "
                       "handle ends there",
                       work->group->name);
    if (work->group->is_destroyed)
        return cd_fail(err, CDDP_E_STATE,
                       "%s #%llu: its group '%s' was destroyed, and the operation with it",
                       cddp_op_name(work->collective.op),
                       (unsigned long long)work->collective.sequence, work->group->name);
    return CDDP_OK;
}

cddp_status cddp_work_test(cddp_work *work, bool *done, cddp_error *err)
{
    CD_TRY(check_work(work, err));
    if (done == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_work_test: done is NULL");
    const cddp_group *g = work->group;
    bool ended = work->ended;
    if (ended) {
        CD_TRY(repeat_outcome(work, err));
    } else {
        cddp_status status = g->table.test(g->backend_group, work->backend_work, &ended, err);
        if (status != CDDP_OK || ended) CD_TRY(end_work(work, status, err));
    }
    *done = ended;
    return CDDP_OK;
}

cddp_status cddp_work_wait(cddp_work *work, uint64_t timeout_ns, cddp_error *err)
{
    const cddp_status usable = check_work(work, err);
    if (usable != CDDP_OK) {
        cddp_work_release(work); /* it was in flight in a group that was destroyed */
        return usable;
    }
    const cddp_group *g = work->group;
    cddp_status status;
    if (work->ended) {
        status = repeat_outcome(work, err);
    } else {
        CD_EMIT(g->tracer, collective_wait, NULL, .group = g->id,
                .sequence = (int64_t)work->collective.sequence);
        status = g->table.wait(g->backend_group, work->backend_work, timeout_ns, err);
        status = end_work(work, status, err);
    }
    give_back(work);
    return status;
}

void cddp_work_release(cddp_work *work)
{
    if (work != NULL && work->busy) give_back(work);
}
