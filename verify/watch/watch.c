/* SPDX-License-Identifier: Apache-2.0 */
/* Following a job: what each rank did last, and what it waits for. */
#include "verify/watch/watch.h"

#include "cddp/backend.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/rank_list.h"

#include <stdio.h>
#include <string.h>

cddp_status cd_watch_init(cd_watch *w, uint32_t rank_count, cddp_error *err)
{
    *w = (cd_watch){.rank_count = rank_count};
    cd_arena_init(&w->arena, NULL, 4096);
    w->ranks = cd_allocate_array(NULL, rank_count, sizeof *w->ranks);
    if (w->ranks == NULL) return cd_fail_memory(err, "%u ranks", (unsigned)rank_count);
    for (uint32_t i = 0; i < rank_count; i++) {
        w->ranks[i].process = -1;
        w->ranks[i].end.size = sizeof w->ranks[i].end;
        w->ranks[i].end.result =
            (cddp_rank_result){.size = sizeof w->ranks[i].end.result, .end = CDDP_RANK_INTERRUPTED};
    }
    return CDDP_OK;
}

void cd_watch_fini(cd_watch *w)
{
    for (size_t i = 0; i < w->group_count; i++)
        cd_release(NULL, w->groups[i].posted, w->rank_count * sizeof(int64_t));
    cd_release(NULL, w->groups, w->group_capacity * sizeof *w->groups);
    cd_release(NULL, w->ranks, w->rank_count * sizeof *w->ranks);
    cd_arena_fini(&w->arena);
    *w = (cd_watch){.rank_count = 0};
}

/* ---- groups ---- */

/* The first that is not below id. */
static size_t find_place(const cd_watch *w, int64_t id)
{
    size_t low = 0, high = w->group_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (w->groups[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static cd_watch_group *find_group(const cd_watch *w, int64_t id)
{
    const size_t at = find_place(w, id);
    return at < w->group_count && w->groups[at].id == id ? &w->groups[at] : NULL;
}

const cd_watch_group *cd_watch_find_group(const cd_watch *w, int64_t id)
{
    return find_group(w, id);
}

uint32_t cd_watch_count_unknown(const cd_watch *w, const cd_watch_group *g, int64_t sequence)
{
    int64_t known = 0, cut = 0;
    for (uint32_t i = 0; i < w->rank_count; i++) {
        known += g->posted[i] >= 0;
        cut += g->posted[i] >= 0 && g->posted[i] <= sequence && w->ranks[i].is_cut;
    }
    const int64_t absent = g->members > known ? g->members - known : 0;
    return (uint32_t)(cut + (absent < w->rank_count ? absent : w->rank_count));
}

static cddp_status take_group(cd_watch *w, const cddp_event *e, cddp_error *err)
{
    const int64_t id = e->as.group.group;
    cd_watch_group *g = find_group(w, id);
    if (g == NULL) {
        int64_t *posted = cd_allocate_array(NULL, w->rank_count, sizeof *posted);
        if (posted == NULL || !cd_vec_grow(NULL, (void **)&w->groups, &w->group_capacity,
                                           w->group_count + 1, sizeof *w->groups)) {
            cd_release(NULL, posted, w->rank_count * sizeof *posted);
            return cd_fail_memory(err, "%zu groups", w->group_count + 1);
        }
        for (uint32_t i = 0; i < w->rank_count; i++) posted[i] = -1;
        const size_t at = find_place(w, id);
        g = &w->groups[at];
        memmove(g + 1, g, (w->group_count++ - at) * sizeof *g);
        *g = (cd_watch_group){.id = id, .posted = posted};
        snprintf(g->name, sizeof g->name, "%s", e->text != NULL ? e->text : "");
        cd_text_clean(g->name);
    }
    if (g->members == 0) g->members = e->as.group.members;
    g->is_said_by_one = g->posted[e->rank] < 0 && g->members == 2;
    for (uint32_t i = 0; i < w->rank_count; i++) g->is_said_by_one &= g->posted[i] < 0;
    if (g->posted[e->rank] < 0) g->posted[e->rank] = 0;
    /* Of two members that exchange messages one may not have come to that: the other one names
    ** it. */
    const cddp_event_group *said = &e->as.group;
    const uint32_t other = said->members == 2
                               ? cd_rank_find_other((uint64_t)said->members_digest, e->rank,
                                                    said->group_rank, w->rank_count)
                               : CD_NO_RANK;
    if (other != CD_NO_RANK && g->posted[other] < 0) g->posted[other] = 0;
    return CDDP_OK;
}

/* ---- events ---- */

static void take_post(cd_watch *w, cd_watch_rank *r, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    cd_watch_group *g = find_group(w, c->group);
    r->posts[r->post_count++ % CD_WATCH_POSTS] =
        (cd_watch_post){c->group, c->sequence, c->op, c->bucket, e->step};
    r->open++;
    r->is_last_done = false;
    if (g != NULL) g->has_messages |= c->op == CDDP_OP_SEND || c->op == CDDP_OP_RECV;
    if (g != NULL && c->sequence < INT64_MAX && c->sequence + 1 > g->posted[e->rank])
        g->posted[e->rank] = c->sequence + 1;
}

static const cd_watch_post *last_post(const cd_watch_rank *r)
{
    return r->post_count > 0 ? &r->posts[(r->post_count - 1) % CD_WATCH_POSTS] : NULL;
}

static void take_done(cd_watch_rank *r, const cddp_event *e)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    const cd_watch_post *last = last_post(r);
    if (r->open > 0) r->open--;
    if (r->waiting_group == d->group && r->waiting_sequence == d->sequence) r->is_waiting = false;
    if (last != NULL && last->group == d->group && last->sequence == d->sequence)
        r->is_last_done = true;
}

static void take_end(cd_watch_rank *r, const cddp_event *e)
{
    cddp_rank_result *result = &r->end.result;
    r->has_ended = true;
    result->status = (cddp_status)e->as.rank_end.status;
    result->detail = (int32_t)e->as.rank_end.detail;
    /* a field of a file may be anything */
    const int64_t end = e->as.rank_end.end;
    result->end = end >= 0 && end <= CDDP_RANK_INTERRUPTED ? (cddp_rank_end)end : CDDP_RANK_CRASHED;
    /* a rank that hung waits still */
    r->is_waiting = r->is_waiting && result->end == CDDP_RANK_HUNG;
    snprintf(result->error.message, sizeof result->error.message, "%s",
             e->text != NULL ? e->text : "");
    cd_text_clean(result->error.message);
}

bool cd_watch_is_failure(const cddp_event *e)
{
    return e->kind == CDDP_EV_mark && e->text != NULL &&
           strncmp(e->text, "recorder failed", strlen("recorder failed")) == 0;
}

cddp_status cd_watch_push(cd_watch *w, const cddp_event *e, cddp_error *err)
{
    if (e->rank >= w->rank_count) return CDDP_OK;
    cd_watch_rank *r = &w->ranks[e->rank];
    w->event_count++;
    r->is_known = true;
    r->end.events++;
    r->time_ns = e->time_ns;
    r->kind = e->kind;
    if (e->kind != CDDP_EV_rank_end) r->end.step = e->step;
    switch ((cddp_event_kind)e->kind) {
    case CDDP_EV_group:
        return CD_PASS(take_group(w, e, err));
    case CDDP_EV_collective_post:
        take_post(w, r, e);
        break;
    case CDDP_EV_collective_wait:
        r->is_waiting = true;
        r->waiting_group = e->as.collective_wait.group;
        r->waiting_sequence = e->as.collective_wait.sequence;
        break;
    case CDDP_EV_collective_done:
        take_done(r, e);
        break;
    case CDDP_EV_rank_end:
        take_end(r, e);
        break;
    case CDDP_EV_mark:
        r->is_cut |= cd_watch_is_failure(e);
        break;
    default:
        break;
    }
    return CDDP_OK;
}

/* ---- who waits for whom ---- */

/* The rank posted it itself; NULL when that was too long ago. */
static const cd_watch_post *find_post(const cd_watch_rank *r, int64_t group, int64_t sequence)
{
    const uint64_t kept = r->post_count < CD_WATCH_POSTS ? r->post_count : CD_WATCH_POSTS;
    for (uint64_t i = 1; i <= kept; i++) {
        const cd_watch_post *p = &r->posts[(r->post_count - i) % CD_WATCH_POSTS];
        if (p->group == group && p->sequence == sequence) return p;
    }
    return NULL;
}

static bool is_still(const cd_watch_rank *r)
{
    return r->is_stopped && !r->is_gone && !r->has_ended;
}

/* Members that have not posted it; where all have, those that are gone or
** stand still. Of one whose recording was cut nobody knows. */
static size_t find_peers(const cd_watch *w, const cd_watch_group *g, const cddp_wait *wait,
                         uint32_t *peers, bool *is_inside)
{
    size_t count = 0;
    for (uint32_t i = 0; i < w->rank_count; i++)
        if (g->posted[i] >= 0 && g->posted[i] <= wait->sequence && !w->ranks[i].is_cut)
            peers[count++] = i;
    *is_inside = count == 0 && cd_watch_count_unknown(w, g, wait->sequence) == 0;
    for (uint32_t i = 0; *is_inside && i < w->rank_count; i++) {
        const cd_watch_rank *r = &w->ranks[i];
        const bool is_over = r->is_gone || (r->has_ended && !r->is_waiting);
        if (r->is_cut) continue;
        if (g->posted[i] >= 0 && i != wait->rank && (is_over || is_still(r))) peers[count++] = i;
    }
    return count;
}

static cddp_status add_wait(cd_watch *w, uint32_t rank, cddp_wait *wait, cddp_error *err)
{
    const cd_watch_rank *r = &w->ranks[rank];
    const cd_watch_post *p = find_post(r, r->waiting_group, r->waiting_sequence);
    const cd_watch_group *g = find_group(w, r->waiting_group);
    *wait = (cddp_wait){.size = sizeof *wait,
                        .rank = rank,
                        .step = p != NULL ? p->step : r->end.step,
                        .group = r->waiting_group,
                        .sequence = r->waiting_sequence,
                        .op = p != NULL ? p->op : -1,
                        .bucket = p != NULL ? p->bucket : -1,
                        .name = g != NULL ? g->name : ""};
    if (g == NULL) return CDDP_OK;
    uint32_t *peers = cd_arena_array(&w->arena, w->rank_count, sizeof *peers);
    if (peers == NULL) return cd_fail_memory(err, "%u ranks", (unsigned)w->rank_count);
    wait->peers = peers;
    wait->peer_count = find_peers(w, g, wait, peers, &wait->is_inside);
    return CDDP_OK;
}

bool cd_watch_is_running(const cd_watch *w, uint32_t rank)
{
    const cd_watch_rank *r = &w->ranks[rank];
    const bool has_begun = r->is_known || r->process >= 0;
    return has_begun && !r->has_ended && !r->is_gone && !r->is_cut && !w->is_abandoned;
}

static void set_end(cddp_rank_result *result, cddp_rank_end end, const char *words)
{
    result->end = end;
    snprintf(result->error.message, sizeof result->error.message, "%s", words);
}

cddp_status cd_watch_settle(cd_watch *w, uint64_t now_ns, cddp_error *err)
{
    uint64_t latest_ns = 0;
    size_t count = 0;
    cd_arena_fini(&w->arena);
    cd_arena_init(&w->arena, NULL, 4096);
    cddp_verdict_rank *ranks = cd_arena_array(&w->arena, w->rank_count, sizeof *ranks);
    cddp_wait *waits = cd_arena_array(&w->arena, w->rank_count, sizeof *waits);
    CD_TRY(cd_arena_check(&w->arena, err, "%u ranks", (unsigned)w->rank_count));
    w->open = w->running = w->silent = 0;
    for (uint32_t i = 0; i < w->rank_count; i++) {
        const cd_watch_rank *r = &w->ranks[i];
        ranks[i] = r->end;
        if (r->is_gone && !r->has_ended) set_end(&ranks[i].result, CDDP_RANK_KILLED, "it is gone");
        if (is_still(r)) set_end(&ranks[i].result, CDDP_RANK_HUNG, "it is stopped (SIGSTOP)");
        if (r->time_ns > latest_ns) latest_ns = r->time_ns;
        if (r->is_waiting && !r->is_gone && !r->is_cut && !is_still(r))
            CD_TRY(add_wait(w, i, &waits[count++], err));
        const bool is_running = cd_watch_is_running(w, i);
        w->silent += !is_running && !r->is_known && !r->is_gone && !r->is_cut;
        if (!is_running) continue;
        w->running++;
        w->open += r->open;
    }
    w->now_ns = now_ns;
    w->silent_ns = latest_ns > 0 && now_ns > latest_ns ? now_ns - latest_ns : 0;
    w->verdict = (cddp_verdict){.size = sizeof w->verdict,
                                .ranks = ranks,
                                .rank_count = w->rank_count,
                                .waits = waits,
                                .wait_count = count};
    return CDDP_OK;
}
