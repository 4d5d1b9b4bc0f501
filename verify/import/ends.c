/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/ends.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/rank_list.h"
#include "verify/hang/graph.h"
#include "verify/hang/headline.h"

#include <stdio.h>
#include <string.h>

cddp_status cd_ends_init(cd_ends *e, uint32_t rank_count, uint64_t stall_ns, cddp_error *err)
{
    *e = (cd_ends){.stall_ns = stall_ns};
    e->ranks = cd_allocate_array(NULL, rank_count, sizeof *e->ranks);
    if (e->ranks == NULL) return cd_fail_memory(err, "%u ranks", (unsigned)rank_count);
    const cddp_status status = cd_watch_init(&e->watch, rank_count, err);
    if (status != CDDP_OK) {
        cd_release(NULL, e->ranks, rank_count * sizeof *e->ranks);
        e->ranks = NULL;
    }
    return status;
}

void cd_ends_fini(cd_ends *e)
{
    if (e->ranks == NULL) return;
    cd_release(NULL, e->ranks, e->watch.rank_count * sizeof *e->ranks);
    cd_watch_fini(&e->watch);
    e->ranks = NULL;
}

cddp_status cd_ends_push(cd_ends *e, const cddp_event *event, cddp_error *err)
{
    if (event->rank >= e->watch.rank_count) return CDDP_OK;
    cd_ends_rank *r = &e->ranks[event->rank];
    r->is_here = true;
    r->last_ns = r->until_ns = event->time_ns;
    if (event->kind == CDDP_EV_collective_wait) r->since_ns = event->time_ns;
    return CD_PASS(cd_watch_push(&e->watch, event, err));
}

/* ---- what is known of one rank ---- */

/* Its process is there to be asked, and its recording is whole so far. */
static bool is_open(const cd_ends *e, uint32_t rank)
{
    const cd_ends_rank *r = &e->ranks[rank];
    return r->is_here && r->left == CD_LEFT_OPEN && !r->is_early;
}

/* Nothing moved there for the stall, as its process said by living on. */
static bool is_silent(const cd_ends *e, uint32_t rank)
{
    const cd_ends_rank *r = &e->ranks[rank];
    return is_open(e, rank) && r->has_pulse && r->until_ns - r->last_ns >= e->stall_ns;
}

static bool is_waiting(const cd_ends *e, uint32_t rank)
{
    return is_open(e, rank) && e->watch.ranks[rank].is_waiting;
}

static bool has_waited(const cd_ends *e, uint32_t rank)
{
    const cd_ends_rank *r = &e->ranks[rank];
    return r->has_pulse && r->until_ns - r->since_ns >= e->stall_ns;
}

/* Its process was gone, and for the stall after that others lived on that wait. */
static void find_early(cd_ends *e)
{
    const uint32_t count = e->watch.rank_count;
    uint64_t latest_ns = 0;
    for (uint32_t i = 0; i < count; i++)
        if (is_waiting(e, i) && e->ranks[i].has_pulse && e->ranks[i].until_ns > latest_ns)
            latest_ns = e->ranks[i].until_ns;
    for (uint32_t i = 0; i < count; i++) {
        cd_ends_rank *r = &e->ranks[i];
        if (!is_open(e, i) || !r->has_pulse || latest_ns <= r->until_ns) continue;
        r->is_early = latest_ns - r->until_ns >= e->stall_ns;
    }
}

/* ---- who hangs ---- */

/* Its operations are those of all members, in one order. */
static bool is_numbered(const cd_ends *e, const cddp_wait *wait)
{
    const cd_watch_group *g = cd_watch_find_group(&e->watch, wait->group);
    uint32_t members = 0;
    if (g == NULL) return false;
    for (uint32_t i = 0; i < e->watch.rank_count; i++) members += g->posted[i] >= 0;
    return !g->has_messages || members <= 2;
}

/* E2, where nobody is missing, or nobody knows who is. */
static bool are_silent(const cd_ends *e, const cddp_wait *wait)
{
    const cd_watch_group *g = cd_watch_find_group(&e->watch, wait->group);
    if (g != NULL && cd_watch_count_unknown(&e->watch, g, wait->sequence) > 0) return false;
    for (uint32_t i = 0; g != NULL && i < e->watch.rank_count; i++)
        if (g->posted[i] >= 0 && is_open(e, i) && !is_silent(e, i)) return false;
    return g != NULL && has_waited(e, wait->rank);
}

/* `may_come`: ranks of which nothing says that they never come. */
static bool never_comes(const cd_ends *e, const cddp_wait *wait, uint32_t peer,
                        const bool *may_come)
{
    const cd_ends_rank *p = &e->ranks[peer];
    if (!p->is_here) return false; /* nobody knows what it did */
    if (!is_open(e, peer))
        return e->watch.ranks[peer].has_ended || p->left == CD_LEFT_BY_DEATH || p->is_early;
    if (is_waiting(e, peer)) return !may_come[peer];
    return is_silent(e, peer) && has_waited(e, wait->rank);
}

static bool hangs(const cd_ends *e, const cddp_wait *wait, const bool *may_come)
{
    if (wait->is_inside || wait->peer_count == 0 || !is_numbered(e, wait))
        return are_silent(e, wait);
    /* a message may leave before anybody asks for it */
    const cd_watch_group *g = cd_watch_find_group(&e->watch, wait->group);
    if (g != NULL && g->is_said_by_one && !has_waited(e, wait->rank)) return false;
    for (size_t i = 0; i < wait->peer_count; i++)
        if (never_comes(e, wait, wait->peers[i], may_come)) return true;
    return false;
}

/* All waits hang but those that others may end, and those that these may end: cycles stay. */
static void find_hung(cd_ends *e, bool *may_come)
{
    const cddp_verdict *v = &e->watch.verdict;
    for (bool is_changed = true; is_changed;) {
        is_changed = false;
        for (size_t i = 0; i < v->wait_count; i++) {
            const uint32_t rank = v->waits[i].rank;
            if (may_come[rank] || hangs(e, &v->waits[i], may_come)) continue;
            may_come[rank] = is_changed = true;
        }
    }
    for (size_t i = 0; i < v->wait_count; i++) {
        const cddp_wait *w = &v->waits[i];
        if (may_come[w->rank]) continue;
        e->ranks[w->rank].is_hung = e->has_hung = true;
        for (size_t k = 0; k < w->peer_count; k++)
            if (is_silent(e, w->peers[k])) e->ranks[w->peers[k]].is_hung = true;
    }
}

cddp_status cd_ends_settle(cd_ends *e, cddp_error *err)
{
    const uint32_t count = e->watch.rank_count;
    bool *may_come = cd_allocate_array(NULL, count, sizeof *may_come);
    if (may_come == NULL) return cd_fail_memory(err, "%u ranks", (unsigned)count);
    find_early(e);
    for (uint32_t i = 0; i < count; i++) {
        e->watch.ranks[i].is_gone = !is_open(e, i);
        e->watch.ranks[i].is_cut = e->ranks[i].left == CD_LEFT_BY_CUT;
    }
    const cddp_status status = cd_watch_settle(&e->watch, 0, err);
    if (status == CDDP_OK) find_hung(e, may_come);
    cd_release(NULL, may_come, count * sizeof *may_come);
    return status;
}

/* ---- words ---- */

#define SAID_NS UINT64_C(1000000000) /* a shorter silence means nothing */

static void print_wait(const cd_ends *e, const cddp_wait *wait, char *text, size_t text_bytes)
{
    const cd_ends_rank *r = &e->ranks[wait->rank];
    char peers[96], duration[CD_DURATION_BYTES];
    const cd_rank_array list = {.items = wait->peers, .count = wait->peer_count};
    cd_text place;
    cd_duration_print(r->until_ns - r->since_ns, duration, sizeof duration);
    cd_text_init(&place, false);
    cd_hang_print_operation(wait, &place);
    snprintf(text, text_bytes, "%s %s%s%s",
             r->is_running ? "it still runs, and waits" : "the job was ended while it waited",
             cd_text_get(&place), r->has_pulse ? ", for " : "", r->has_pulse ? duration : "");
    cd_text_fini(&place);
    const cd_watch_group *g = cd_watch_find_group(&e->watch, wait->group);
    const uint32_t unknown = g != NULL ? cd_watch_count_unknown(&e->watch, g, wait->sequence) : 0;
    const size_t length = strlen(text);
    if (unknown > 0)
        snprintf(text + length, text_bytes - length,
                 "; no recording says whether %u other member%s came", unknown,
                 unknown == 1 ? "" : "s");
    if (wait->is_inside || wait->peer_count == 0) return;
    cd_rank_list_print(&(cd_rank_list){&list, cd_rank_array_next}, CD_NO_RANK, peers, sizeof peers);
    const size_t used = strlen(text);
    snprintf(text + used, text_bytes - used, "; missing: %s", peers);
}

void cd_ends_print(const cd_ends *e, uint32_t rank, char *text, size_t text_bytes)
{
    const cddp_wait *wait = cd_hang_find(&e->watch.verdict, rank);
    const cd_ends_rank *r = &e->ranks[rank];
    char duration[CD_DURATION_BYTES];
    cd_duration_print(r->until_ns - r->last_ns, duration, sizeof duration);
    if (wait != NULL)
        print_wait(e, wait, text, text_bytes);
    else if (r->is_hung)
        snprintf(text, text_bytes, "it showed no event for %s%s", duration,
                 r->is_running ? "" : ", until the job was ended");
    else if (r->is_running)
        snprintf(text, text_bytes, "it still runs");
    else if (r->has_pulse && r->until_ns - r->last_ns >= SAID_NS)
        snprintf(text, text_bytes,
                 "the job was ended while it computed, and had shown no event for %s", duration);
    else
        snprintf(text, text_bytes, "the job was ended while it computed");
}
