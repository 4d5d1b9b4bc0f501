/* SPDX-License-Identifier: Apache-2.0 */
/* The barrier that names who did not come.
**
** Every other member sends its number to the first one, which waits for all of them together. Then
** the first one answers: with the lowest missing rank, or that all are there. No wait may run out
** of time before the answers are sent: on some transports that closes all connections. So rank 0
** asks each receive whether it has ended, and its receives last a while longer than its time-out.
**
** A backend ends a receive when its message is there, whatever comes of those posted before it: the
** list of the missing is exact.
**
** Cost   2·(W - 1) messages of four bytes, all at rank 0. It is for finding lost ranks, not for
**        every step.
*/
#include "core/comm/group.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/base/rank_list.h"

#define POLL_NS UINT64_C(1000000)
#define TAG_BIT (UINT64_C(1) << 62) /* apart from the tags of a program */
#define ALL_CAME (-1)
#define ANSWERS_NS UINT64_C(5000000000) /* at most: how long answers may take to leave */

typedef struct roll {
    cddp_group *group;
    uint64_t first, timeout_ns, deadline_ns; /* first: the group's sequence before */
    int32_t *answers;                        /* (size) of each member: its receive writes it */
    bool *is_lost;     /* (size) the first member does not wait for it any more */
    cddp_work **works; /* (size) the receives of the first member */
    uint32_t *missing; /* (missing_count) world ranks */
    size_t missing_count;
} roll;

static cddp_tensor number_at(int32_t *place)
{
    const int64_t one = 1;
    return cddp_tensor_of(cddp_device_cpu(), place, 0, CDDP_I32, &one, 1);
}

static cddp_status post_message(const roll *r, cddp_op op, uint32_t peer, int32_t *place,
                                cddp_work **work, cddp_error *err)
{
    /* The first member gives up whom it did not hear. The others wait as long again: it may have
    ** come as late as it allows them to. */
    const bool is_first = r->group->group_rank == 0;
    const uint64_t more = is_first && r->timeout_ns > ANSWERS_NS ? ANSWERS_NS : r->timeout_ns;
    cddp_collective c = {.op = op,
                         .root = peer,
                         .tag = TAG_BIT | r->first,
                         .timeout_ns = r->timeout_ns + more};
    if (op == CDDP_OP_SEND)
        c.input = number_at(place);
    else
        c.output = number_at(place);
    return CD_PASS(cddp_group_post(r->group, &c, work, err));
}

static cddp_status send_to(const roll *r, uint32_t peer, int32_t *place, cddp_error *err)
{
    cddp_work *work = NULL;
    CD_TRY(post_message(r, CDDP_OP_SEND, peer, place, &work, err));
    return CD_PASS(cddp_work_wait(work, 0, err));
}

/* ---- the first member ---- */

/* Has this member come, or is it known that it never will? */
static bool is_settled(roll *r, uint32_t member)
{
    bool done = false;
    if (r->is_lost[member]) return true;
    /* why a receive failed is of no account: the list of the missing says more */
    if (cddp_work_test(r->works[member], &done, NULL) != CDDP_OK) r->is_lost[member] = true;
    return done || r->is_lost[member];
}

/* Asks every receive, until all have ended or the time is up. */
static cddp_status wait_for_all(roll *r, cddp_error *err)
{
    cddp_rank *rank = r->group->rank;
    for (uint32_t open = 1; open > 0;) {
        open = 0;
        for (uint32_t m = 1; m < r->group->group_size; m++) open += !is_settled(r, m);
        if (open == 0 || rank->ops->now_ns(rank) >= r->deadline_ns) return CDDP_OK;
        CD_TRY(rank->ops->sleep_ns(rank, POLL_NS, err));
    }
    return CDDP_OK;
}

/* Finds out who is missing. Their receives stay under way: to give one back can end the connections
** to the others, who have not been answered yet. */
static void call_roll(roll *r)
{
    for (uint32_t m = 1; m < r->group->group_size; m++) {
        if (!is_settled(r, m)) r->is_lost[m] = true;
        if (!r->is_lost[m]) {
            if (cddp_work_wait(r->works[m], 0, NULL) != CDDP_OK) r->is_lost[m] = true;
            r->works[m] = NULL;
        }
        if (r->is_lost[m]) r->missing[r->missing_count++] = cd_group_member(r->group, m);
    }
}

/* Members of a group may be in any order. */
static uint32_t missing_next(const void *self, uint32_t from)
{
    const roll *r = self;
    uint32_t next = CD_NO_RANK;
    for (size_t i = 0; i < r->missing_count; i++)
        if (r->missing[i] >= from && r->missing[i] < next) next = r->missing[i];
    return next;
}

static cddp_status fail_missing(const roll *r, cddp_error *err)
{
    char names[120];
    const cd_rank_list list = {r, missing_next};
    cd_rank_list_print(&list, CD_NO_RANK, names, sizeof names);
    return cd_fail(err, CDDP_E_TIMEOUT,
                   "lost rank %u: it did not come to the monitored barrier of group '%s' within "
                   "%.3g s; no message came from %s",
                   missing_next(r, 0), r->group->name, (double)r->timeout_ns / 1e9, names);
}

/* A member whose connection ended before is missing, and no more. */
static cddp_status expect(roll *r, uint32_t member, cddp_error *err)
{
    cddp_error why = CDDP_ERROR_INIT;
    const cddp_status status =
        post_message(r, CDDP_OP_RECV, member, &r->answers[member], &r->works[member], &why);
    if (status == CDDP_OK) return CDDP_OK;
    if (status != CDDP_E_BACKEND) {
        if (err != NULL) *err = why;
        return status;
    }
    r->works[member] = NULL;
    r->is_lost[member] = true;
    return CDDP_OK;
}

static cddp_status lead(roll *r, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const uint32_t size = r->group->group_size;
    for (uint32_t m = 1; m < size; m++) CD_TRY_OUT(expect(r, m, err));
    CD_TRY_OUT(wait_for_all(r, err));
    call_roll(r);
    r->answers[0] = r->missing_count > 0 ? (int32_t)missing_next(r, 0) : ALL_CAME;
    for (uint32_t m = 1; m < size; m++) {
        if (r->is_lost[m]) continue;
        const cddp_status sent = send_to(r, m, &r->answers[0], err);
        if (r->missing_count == 0) CD_TRY_OUT(sent); /* else the list of the missing says more */
    }
    if (r->missing_count > 0) status = fail_missing(r, err);
out:
    for (uint32_t m = 1; m < size; m++) cddp_work_release(r->works[m]);
    return status;
}

/* ---- the others ---- */

/* The answer says enough of the message that it answers. */
static cddp_status follow(roll *r, cddp_error *err)
{
    int32_t *own = &r->answers[0], *answer = &r->answers[1];
    cddp_status status = CDDP_OK;
    *own = (int32_t)r->group->group_rank;
    CD_TRY_OUT(post_message(r, CDDP_OP_RECV, 0, answer, &r->works[1], err));
    CD_TRY_OUT(post_message(r, CDDP_OP_SEND, 0, own, &r->works[0], err));
    status = cddp_work_wait(r->works[1], 0, NULL);
    r->works[1] = NULL;
    if (status != CDDP_OK)
        status = cd_fail(err, CDDP_E_TIMEOUT,
                         "lost rank %u: it gave no answer in the monitored barrier of group '%s'",
                         cd_group_member(r->group, 0), r->group->name);
    else if (*answer != ALL_CAME)
        status = cd_fail(err, CDDP_E_TIMEOUT,
                         "lost rank %d: it did not come to the monitored barrier of group '%s', as "
                         "rank %u says",
                         *answer, r->group->name, cd_group_member(r->group, 0));
out:
    cddp_work_release(r->works[0]);
    cddp_work_release(r->works[1]);
    return status;
}

cddp_status cddp_barrier_monitored(cddp_group *group, uint64_t timeout_ns, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    if (group == NULL) return cd_fail(err, CDDP_E_ARG, "the group is NULL");
    if (timeout_ns == 0) return cd_fail(err, CDDP_E_ARG, "a monitored barrier needs a time-out");
    if (group->group_size == 1) return CDDP_OK;
    cddp_rank *rank = group->rank;
    cd_arena arena;
    cd_arena_init(&arena, rank->allocator, 1024);
    roll r = {.group = group,
              .first = group->sequence,
              .timeout_ns = timeout_ns,
              .deadline_ns = rank->ops->now_ns(rank) + timeout_ns,
              .answers = cd_arena_array(&arena, group->group_size, sizeof *r.answers),
              .is_lost = cd_arena_array(&arena, group->group_size, sizeof *r.is_lost),
              .works = cd_arena_array(&arena, group->group_size, sizeof *r.works),
              .missing = cd_arena_array(&arena, group->group_size, sizeof *r.missing)};
    CD_TRY_OUT(cd_arena_check(&arena, err, "a monitored barrier of %u ranks", group->group_size));
    status = group->group_rank == 0 ? lead(&r, err) : follow(&r, err);
    /* Members posted different numbers of messages; the next operation has one number again. */
    if (status == CDDP_OK) group->sequence = r.first + 2 * (uint64_t)group->group_size;
out:
    cd_arena_fini(&arena);
    return status;
}
