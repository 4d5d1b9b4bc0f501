/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an operation on one rank: posted → queued → started → ended → released.
**
** Invariants:
**   O1  the k-th collective that a member posts in a group is part k of that group, also when the
**       others post another operation;
**   O2  with bounded slots a rank never has more started parts than slots, counted over all its
**       groups;
**   O3  with messages, the parts of one member in one group start one after the other, in the order
**       of posting
**   (C10-03);
**   O4  a part ends once and then wakes its waiter; its tensors are not touched afterwards.
**
** Direct and model: a collective takes place when its last part starts. Messages: every part runs
** its program as soon as it starts. So do all parts of a direct collective whose members disagree
** about it.
*/
#include "sim/collective.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "sim/cluster.h"
#include "sim/stream_ops.h"

#include <string.h>

static cd_sim *sim_of(const cd_part *part) { return part->coll->comm->sim; }

/* ---- ending ---- */

static void forget_started(cd_sim_rank *rank, cd_part *part)
{
    cd_part **link = &rank->active;
    while (*link != NULL && *link != part) link = &(*link)->next;
    if (*link == part) *link = part->next;
}

static void leave_queue(cd_sim_rank *rank, cd_part *part)
{
    cd_part *before = NULL, *p = rank->queue_first;
    for (; p != NULL && p != part; before = p, p = p->next) {
    }
    if (p == NULL) return;
    if (before == NULL)
        rank->queue_first = p->next;
    else
        before->next = p->next;
    if (rank->queue_last == p) rank->queue_last = before;
}

/* Computing goes on at another speed from now on. */
static void change_transfers(cd_sim *sim, cd_part *part, bool moves)
{
    cd_sim_rank *rank = part->member->rank;
    if (part->is_moving == moves) return;
    part->is_moving = moves;
    rank->transfers += moves ? 1 : -1u;
    if (rank->is_sharing && rank->transfers == (moves ? 1 : 0))
        cd_sim_wake(sim, rank, CD_WAKE_DONE);
}

/* Afterwards the part has no slot and no place in a queue, from any state. */
static void detach(cd_part *part)
{
    cd_member *member = part->member;
    if (part->state == CD_PART_QUEUED) leave_queue(member->rank, part);
    if (part->state == CD_PART_STARTED) {
        change_transfers(sim_of(part), part, false);
        member->active--;
        if (member->slots_max != 0) member->rank->slots_used--;
        forget_started(member->rank, part);
    }
}

void cd_part_lose(cd_part *part)
{
    cd_sim *sim = sim_of(part);
    cd_sim_rank *rank = part->member->rank;
    detach(part);
    cd_part_unprepare(part);
    part->state = CD_PART_GONE;
    if (rank->queue_first != NULL && rank->state != CD_RANK_DEAD && !sim->unwinding)
        cd_rank_start_queued(sim, rank);
}

/* Streams hold a part through coll->messages; what its owner gave back meanwhile goes when it has
** ended. */
static void release_if_due(cd_part *part)
{
    if (part->is_given_back && !part->is_released && part->state == CD_PART_ENDED)
        cd_part_forget(part);
}

void cd_part_joined(cd_part *part)
{
    part->coll->messages--;
    if (part->is_released)
        cd_coll_reclaim(part->coll);
    else
        release_if_due(part);
}

void cd_part_end(cd_part *part, cddp_status status, const char *why)
{
    cd_sim *sim = sim_of(part);
    cd_sim_rank *rank = part->member->rank;
    detach(part);
    cd_part_unprepare(part);
    part->state = CD_PART_ENDED;
    part->status = status;
    part->why = why;
    part->is_blocked = false;
    part->coll->ended++;
    sim->stats.collectives++;
    cd_sim_note(rank, status == CDDP_OK ? "completed" : "failed", part->coll->comm->name,
                part->coll->ordinal);
    if (part->waiter != NULL) cd_sim_wake(sim, part->waiter, CD_WAKE_DONE);
    part->waiter = NULL;
    if (rank->queue_first != NULL) cd_rank_start_queued(sim, rank);
    if (part->joiner != NULL) {
        cddp_stream *joiner = part->joiner;
        part->joiner = NULL;
        cd_stream_part_ended(joiner);
    }
    release_if_due(part);
}

/* ---- taking place ---- */

static void end_all(cd_coll *coll)
{
    cddp_error error = CDDP_ERROR_INIT;
    cddp_status status = coll->is_executed ? CDDP_OK : cd_coll_execute(coll, &error);
    if (status != CDDP_OK) {
        memcpy(coll->comm->why, error.message, sizeof coll->comm->why - 1);
        coll->comm->why[sizeof coll->comm->why - 1] = '\0';
    }
    for (uint32_t i = 0; i < coll->size; i++)
        if (coll->parts[i].state == CD_PART_STARTED)
            cd_part_end(&coll->parts[i], status, status == CDDP_OK ? NULL : coll->comm->why);
}

/* A member died or gave its part back: what it contributed is lost, and the others wait for
** ever. */
static bool is_broken(const cd_coll *coll)
{
    for (uint32_t i = 0; i < coll->size; i++)
        if (coll->parts[i].state == CD_PART_GONE) return true;
    return false;
}

/* The first part to end moves the data of all parts. No rank can observe the difference, because no
** rank may read before. */
static void timed_end(cd_sim *sim, cd_sim_event *event)
{
    (void)sim;
    cd_part *part = (cd_part *)(void *)((char *)event - offsetof(cd_part, end_event));
    cd_coll *coll = part->coll;
    coll->messages--;
    if (part->state != CD_PART_STARTED || (!coll->is_executed && is_broken(coll))) {
        cd_coll_reclaim(coll);
        return;
    }
    if (!coll->is_executed) {
        cddp_error error = CDDP_ERROR_INIT;
        coll->is_executed = true;
        if (cd_coll_execute(coll, &error) != CDDP_OK) {
            cd_comm_fail(coll->comm, error.status, error.message);
            return;
        }
    }
    cd_part_end(part, CDDP_OK, NULL);
}

static void complete(cd_sim *sim, cd_completion *completion)
{
    cd_coll *coll = (cd_coll *)(void *)completion;
    coll->messages--; /* the completion queue held it */
    if (is_broken(coll)) {
        cd_coll_reclaim(coll);
        return;
    }
    if (sim->host->config.transport != CD_SIM_MODEL) {
        end_all(coll);
        return;
    }
    cd_coll_time(coll);
    for (uint32_t i = 0; i < coll->size; i++) {
        cd_part *p = &coll->parts[i];
        p->end_event.fire = timed_end;
        if (p->state == CD_PART_STARTED) change_transfers(sim, p, true);
        coll->messages++;
        cd_sim_schedule_event(sim, &p->end_event,
                              p->time_ns > sim->now_ns ? p->time_ns : sim->now_ns);
    }
}

/* All parts have started: now, or when chosen. */
static void all_arrived(cd_sim *sim, cd_coll *coll)
{
    if (!cd_coll_agrees(coll)) {
        for (uint32_t i = 0; i < coll->size; i++) {
            cddp_error error = CDDP_ERROR_INIT;
            cd_part *p = &coll->parts[i];
            if (!cd_part_describe_program(p)) {
                cd_sim_exhausted(sim);
                return;
            }
            if (p->state == CD_PART_STARTED && cd_part_prepare(p, &error) != CDDP_OK)
                cd_part_end(p, error.status, "its tensors cannot be used");
        }
        for (uint32_t i = 0; i < coll->size; i++)
            if (coll->parts[i].state == CD_PART_STARTED) cd_part_progress(&coll->parts[i]);
        return;
    }
    coll->completion = (cd_completion){.group = coll->comm,
                                       .semantic = cd_hash_mix(coll->comm->id, coll->ordinal),
                                       .complete = complete};
    coll->messages++;
    if (sim->host->config.completion == CD_SIM_COMPLETE_CHOICE)
        cd_sim_add_completion(sim, &coll->completion);
    else
        complete(sim, &coll->completion);
}

static void run_program(cd_sim *sim, cd_part *part)
{
    cddp_error error = CDDP_ERROR_INIT;
    if (!cd_part_describe_program(part)) {
        cd_sim_exhausted(sim);
        return;
    }
    if (cd_part_prepare(part, &error) != CDDP_OK)
        cd_comm_fail(part->coll->comm, error.status, error.message);
    else
        cd_part_progress(part);
}

static void launched(cd_sim *sim, cd_sim_event *event)
{
    cd_part *part = (cd_part *)(void *)((char *)event - offsetof(cd_part, end_event));
    part->coll->messages--;
    if (part->state == CD_PART_STARTED)
        run_program(sim, part);
    else
        cd_coll_reclaim(part->coll);
}

static void start(cd_sim *sim, cd_part *part)
{
    cd_member *member = part->member;
    cd_coll *coll = part->coll;
    part->state = CD_PART_STARTED;
    part->time_ns = sim->now_ns;
    member->active++;
    if (member->slots_max != 0) {
        member->rank->slots_used++;
        part->next = member->rank->active;
        member->rank->active = part;
    }
    coll->arrived++;
    if (sim->host->config.transport != CD_SIM_MESSAGES) {
        if (coll->arrived == coll->size) all_arrived(sim, coll);
        return;
    }
    change_transfers(sim, part, true);
    if (sim->host->config.launch_ns == 0) {
        run_program(sim, part);
        return;
    }
    part->end_event.fire = launched;
    coll->messages++;
    cd_sim_schedule_event(sim, &part->end_event, sim->now_ns + sim->host->config.launch_ns);
}

void cd_rank_start_queued(cd_sim *sim, cd_sim_rank *rank)
{
    bool in_turn = sim->host->config.transport == CD_SIM_MESSAGES;
    for (cd_part *p = rank->queue_first; p != NULL;) {
        cd_member *member = p->member;
        if (member->slots_max != 0 && rank->slots_used >= member->slots_max) return; /* O2 */
        if (in_turn && member->active > 0 && !p->coll->is_pair) {                    /* O3 */
            p = p->next;
            continue;
        }
        leave_queue(rank, p);
        start(sim, p);
        p = rank->queue_first; /* whatever start did to the queue */
    }
}

/* ---- posting ---- */

/* Where among those that already arrived this contribution is added: a choice, "behind all"
** first. */
static void choose_order(cd_sim *sim, cd_coll *coll, cd_part *part)
{
    uint32_t n = coll->arrived, at = 0;
    uint64_t *ids = NULL;
    if (n > 0 && n < CDDP_CHOICE_OPTIONS_MAX) {
        size_t bytes = (n + 1) * sizeof *ids;
        ids = cd_memory_allocate(&sim->memory, bytes);
        for (uint32_t i = 0; ids != NULL && i <= n; i++)
            ids[i] = i == 0 ? UINT64_MAX : cd_coll_rank(coll, coll->order[n - i]);
        cddp_choice choice = {.size = sizeof choice,
                              .kind = CDDP_CHOICE_ORDER,
                              .rank = part->member->rank->port.rank,
                              .option_count = n + 1,
                              .options = ids,
                              .name = "order"};
        at = cd_sim_choose(sim, &choice);
        cd_memory_release(&sim->memory, ids, bytes);
    }
    n = coll->arrived; /* others may have arrived while this one was choosing */
    if (at > n) at = n;
    memmove(&coll->order[n - at + 1], &coll->order[n - at], at * sizeof *coll->order);
    coll->order[n - at] = part->index;
}

static cddp_status check_shares(const cd_member *member, const cddp_collective *c, cddp_error *err)
{
    const int64_t *lists[2] = {c->counts, c->send_counts};
    for (int l = 0; l < 2; l++)
        for (uint32_t i = 0; lists[l] != NULL && i < member->comm->size; i++)
            if (lists[l][i] < 0)
                return cd_fail(err, CDDP_E_ARG, "group '%s': a share of %lld elements",
                               member->comm->name, (long long)lists[l][i]);
    if ((c->op == CDDP_OP_SEND || c->op == CDDP_OP_RECV) && c->root == member->index)
        return cd_fail(err, CDDP_E_ARG, "group '%s': %s names its own rank %u", member->comm->name,
                       cddp_op_name(c->op), member->rank->port.rank);
    return CDDP_OK;
}

/* Data moves through the device below the streams. Returns the one with streams, or NULL. */
static const cddp_device *unwrap(cddp_collective *what)
{
    const cddp_device *outer = NULL;
    cddp_tensor *tensors[2] = {&what->input, &what->output};
    for (int i = 0; i < 2; i++) {
        const cddp_device *inner = cd_stream_device_inner(tensors[i]->device);
        if (inner == NULL) continue;
        outer = tensors[i]->device;
        tensors[i]->device = inner;
    }
    return outer;
}

static cddp_status begin_part(cd_member *member, const cddp_collective *what, cd_part **out,
                              cddp_error *err)
{
    cd_comm *comm = member->comm;
    bool is_pair = what->op == CDDP_OP_SEND || what->op == CDDP_OP_RECV;
    uint32_t index = member->index;
    cd_coll *coll = is_pair ? cd_comm_get_pair(comm, what, member->index, &index)
                            : cd_comm_get_coll(comm, member->posted);
    if (coll == NULL)
        return cd_fail_memory(err, "%s of group '%s'", cddp_op_name(what->op), comm->name);
    cd_part *part = &coll->parts[index];
    CD_ASSERT(part->state == CD_PART_EMPTY);
    if (!is_pair) member->posted++; /* O1 */
    part->member = member;
    part->what = *what;
    part->stream_device = unwrap(&part->what);
    part->state = CD_PART_QUEUED;
    part->read = 0;
    part->posted_ns = comm->sim->now_ns;
    part->ordinal = member->rank->collective_count++;
    part->next = NULL;
    *out = part;
    return CDDP_OK;
}

static void enqueue(cd_part *part)
{
    cd_sim_rank *rank = part->member->rank;
    if (rank->queue_last != NULL)
        rank->queue_last->next = part;
    else
        rank->queue_first = part;
    rank->queue_last = part;
    cd_rank_start_queued(sim_of(part), rank);
}

void cd_part_reached(cd_part *part)
{
    cd_coll *coll = part->coll;
    coll->messages--;
    if (part->state == CD_PART_QUEUED)
        enqueue(part);
    else
        cd_coll_reclaim(coll); /* it was given up meanwhile */
}

cddp_status cd_member_post(cd_member *member, const cddp_collective *what, cd_part **part,
                           cddp_error *err)
{
    cd_sim *sim = member->comm->sim;
    cd_sim_rank *rank = member->rank;
    if (cd_sim_is_over_for(sim, rank))
        return cd_fail(err, CDDP_E_ABORTED, "the world has ended; %s is not posted",
                       cddp_op_name(what->op));
    CD_TRY(check_shares(member, what, err));
    cd_sim_fault_at_op(member, CDDP_FAULT_BEFORE, NULL, what);
    if (sim->unwinding)
        return cd_fail(err, CDDP_E_ABORTED, "rank %u stopped before %s", rank->port.rank,
                       cddp_op_name(what->op));
    if (member->comm->failure != CDDP_OK)
        return cd_fail(err, member->comm->failure, "group '%s': %s", member->comm->name,
                       member->comm->why);
    cd_part *p = NULL;
    CD_TRY(begin_part(member, what, &p, err));
    cd_sim_note(rank, "posted", member->comm->name, p->coll->ordinal);
    if (p->coll->order != NULL) choose_order(sim, p->coll, p);
    cd_sim_fault_at_op(member, CDDP_FAULT_INSIDE, p, what);
    if (sim->unwinding)
        return cd_fail(err, CDDP_E_ABORTED, "rank %u stopped inside %s", rank->port.rank,
                       cddp_op_name(what->op));
    if (p->stream_device != NULL) {
        p->coll->messages++;
        if (!cd_stream_push_start(p, what))
            return cd_fail_memory(err, "a queued %s", cddp_op_name(what->op));
    } else {
        enqueue(p);
    }
    if (sim->unwinding)
        return cd_fail(err, CDDP_E_ABORTED, "rank %u stopped inside %s", rank->port.rank,
                       cddp_op_name(what->op));
    *part = p;
    return CDDP_OK;
}

/* ---- completing ---- */

static cddp_status outcome(cd_part *part, cddp_error *err)
{
    cd_sim_rank *rank = part->member->rank;
    cd_sim_fault_at_op(part->member, CDDP_FAULT_AFTER, part, &part->what);
    if (sim_of(part)->unwinding)
        return cd_fail(err, CDDP_E_ABORTED, "rank %u stopped after %s", rank->port.rank,
                       cddp_op_name(part->what.op));
    if (part->status == CDDP_OK) return CDDP_OK;
    return cd_fail(err, part->status, "%s", part->why != NULL ? part->why : "the operation failed");
}

cddp_status cd_part_test(cd_part *part, bool *done, cddp_error *err)
{
    cd_sim *sim = sim_of(part);
    sim->stats.races++;
    if (part->state != CD_PART_ENDED) {
        if (cd_sim_is_over_for(sim, part->member->rank))
            return cd_fail(err, CDDP_E_ABORTED, "the world has ended");
        part->waiter = part->member->rank;
        cd_sim_yield(sim, part); /* or a rank that polls would keep the others from running */
        part->waiter = NULL;
    }
    *done = part->state == CD_PART_ENDED;
    if (*done) part->member->rank->idle_yields = 0;
    if (*done && part->stream_device != NULL) cd_stream_order_end(part, true);
    if (*done) CD_TRY(outcome(part, err));
    return CDDP_OK;
}

cddp_status cd_part_wait(cd_part *part, uint64_t timeout_ns, cddp_error *err)
{
    cd_sim *sim = sim_of(part);
    if (part->stream_device != NULL) cd_stream_order_end(part, false);
    /* the stream waits, the host does not */
    if (part->stream_device != NULL && part->state != CD_PART_ENDED) {
        if (part->is_unordered[1]) return CDDP_OK;
        part->coll->messages++;
        part->is_followed = true;
        if (!cd_stream_push_join(part)) return cd_fail_memory(err, "a queued wait");
        return CDDP_OK;
    }
    if (part->state != CD_PART_ENDED) {
        if (timeout_ns == 0)
            timeout_ns =
                part->what.timeout_ns != 0 ? part->what.timeout_ns : part->member->timeout_ns;
        uint64_t now = sim->now_ns;
        if (cd_sim_is_over_for(sim, part->member->rank))
            return cd_fail(err, CDDP_E_ABORTED, "the world has ended");
        part->waiter = part->member->rank;
        cd_wake wake =
            cd_sim_wait(sim, "waits", part, timeout_ns != 0 ? now + timeout_ns : UINT64_MAX);
        part->waiter = NULL;
        part->member->rank->times.exposed_ns += sim->now_ns - now;
        if (part->state != CD_PART_ENDED && wake == CD_WAKE_ABORT)
            return cd_fail(err, CDDP_E_ABORTED, "the world ended while rank %u waited",
                           part->member->rank->port.rank);
        if (part->state != CD_PART_ENDED) sim->stats.races++;
        if (part->state != CD_PART_ENDED) {
            char duration[CD_DURATION_BYTES];
            cd_duration_print(timeout_ns, duration, sizeof duration);
            return cd_fail(err, CDDP_E_TIMEOUT, "not completed within %s", duration);
        }
    }
    part->is_awaited = true;
    CD_TRY(outcome(part, err));
    return CDDP_OK;
}

void cd_coll_reclaim(cd_coll *coll)
{
    if (coll->released < coll->size || coll->messages > 0) return;
    cd_comm *comm = coll->comm;
    for (uint32_t i = 0; i < coll->size; i++) /* what disagreeing members sent and nobody wanted */
        cd_inbox_clear(&coll->parts[i], true);
    if (!coll->is_pair) {
        cd_comm_trim(comm);
        return;
    }
    cd_coll **link = &comm->pairs;
    while (*link != coll) link = &(*link)->next;
    *link = coll->next;
    cd_coll_drop_flows(coll);
    coll->next = comm->free_pairs;
    comm->free_pairs = coll;
}

/* Given back unseen: what comes later on its stream may write to its memory. */
static void order_behind(cd_part *part)
{
    cd_stream_order_end(part, false);
    if (part->is_unordered[1] || part->state == CD_PART_ENDED) return;
    part->coll->messages++;
    if (!cd_stream_push_join(part)) part->coll->messages--;
}

void cd_part_release(cd_part *part)
{
    const bool is_streamed = part->stream_device != NULL, is_over = sim_of(part)->unwinding;
    if (is_streamed && !is_over && !part->is_followed && !part->is_awaited) order_behind(part);
    if (is_streamed) cd_stream_forget_end(part);
    if (is_streamed && !is_over && part->state != CD_PART_ENDED)
        part->is_given_back = true;
    else
        cd_part_forget(part);
}

uint64_t cd_part_digest_read(const cd_part *part) { return part->read; }

void cd_part_forget(cd_part *part)
{
    cd_coll *coll = part->coll;
    CD_ASSERT(part->state != CD_PART_EMPTY && !part->is_released);
    /* Given back unseen: whether it had ended by then was a matter of turns, and so is what the
    ** others get. */
    if (!part->is_awaited && !sim_of(part)->unwinding) sim_of(part)->stats.races++;
    if (part->state != CD_PART_ENDED) cd_part_lose(part);
    part->is_released = true;
    coll->released++;
    cd_coll_reclaim(coll);
}
