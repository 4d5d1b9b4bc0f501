/* SPDX-License-Identifier: Apache-2.0 */
/* A hang in one sentence. */
#include "verify/hang/headline.h"

#include "cddp/backend.h"
#include "core/base/rank_list.h"
#include "core/trace/rank_end.h"
#include "verify/hang/graph.h"

#include <inttypes.h>
#include <string.h>

#define CYCLE_SHOWN 4

typedef struct of_wait {
    const cddp_verdict *verdict;
    const cddp_wait *main;
} of_wait;

static bool is_message(const cddp_wait *wait)
{
    return wait->op == CDDP_OP_SEND || wait->op == CDDP_OP_RECV;
}

/* Waits in the same operation; outside of collectives, for the same first peer. */
static bool is_beside(const cddp_wait *a, const cddp_wait *b)
{
    if (a->group != b->group || a->sequence != b->sequence) return false;
    const bool are_messages = is_message(a) && is_message(b);
    if (a->op != b->op && !are_messages) return false; /* under one number */
    return a->sequence >= 0 ||
           (a->peer_count > 0 && b->peer_count > 0 && a->peers[0] == b->peers[0]);
}

static uint32_t next_waiter(const void *self, uint32_t from)
{
    const of_wait *o = self;
    for (size_t i = 0; i < o->verdict->wait_count; i++) {
        const cddp_wait *w = &o->verdict->waits[i];
        if (w->rank >= from && is_beside(w, o->main) &&
            cd_hang_is_endless(w) == cd_hang_is_endless(o->main))
            return w->rank;
    }
    return CD_NO_RANK;
}

static uint32_t next_root(const void *self, uint32_t from)
{
    const of_wait *o = self;
    for (size_t i = 0; i < o->main->peer_count; i++) {
        const uint32_t peer = o->main->peers[i];
        if (peer >= from && cd_hang_is_root(o->verdict, o->main, peer)) return peer;
    }
    return CD_NO_RANK;
}

static bool is_any_root_bad(const of_wait *o)
{
    for (uint32_t r = next_root(o, 0); r < o->verdict->rank_count; r = next_root(o, r + 1))
        if (o->verdict->ranks[r].result.status != CDDP_OK) return true;
    return false;
}

static void put_ranks(cd_text *text, uint32_t (*next)(const void *, uint32_t), const of_wait *o)
{
    char words[160];
    cd_rank_list_print(&(cd_rank_list){o, next}, CD_NO_RANK, words, sizeof words);
    cd_text_push(text, words);
}

void cd_hang_print_operation(const cddp_wait *w, cd_text *text)
{
    if (w->sequence < 0) {
        cd_text_push(text, w->status == CDDP_OK ? "to open a group" : "at the rendezvous");
        return;
    }
    cd_text_printf(text, "in %s #%" PRId64,
                   w->op >= 0 && w->op < CDDP_OP_COUNT ? cddp_op_name((cddp_op)w->op) : "operation",
                   w->sequence);
    if (strcmp(w->name, "world") != 0) cd_text_printf(text, " of group '%s'", w->name);
    if (w->bucket >= 0)
        cd_text_printf(text, " (bucket %" PRId64 ", step %" PRIu32 ")", w->bucket, w->step);
    else
        cd_text_printf(text, " (step %" PRIu32 ")", w->step);
}

static const char stays[] = "does not return from ";

/* What a finding says of where a rank hangs: "does not return from hook x (bucket 0, step 1)";
** NULL: nothing. */
static const char *find_call(const cddp_verdict *v, uint32_t rank)
{
    for (size_t i = 0; i < v->finding_count; i++) {
        const char *found =
            v->findings[i].rank == (int32_t)rank ? strstr(v->findings[i].actual, stays) : NULL;
        if (found != NULL) return found;
    }
    return NULL;
}

/* Of a rank that died: " in hook x (bucket 0)", where the finding of it says so; else "". */
static const char *find_place_of_death(const cddp_verdict *v, uint32_t rank)
{
    for (size_t i = 0; i < v->finding_count; i++) {
        const cddp_finding *f = &v->findings[i];
        const char *place = strstr(f->title, " in ");
        if (strcmp(f->check, "I-FAIL") == 0 && f->rank == (int32_t)rank && place != NULL &&
            strstr(place, "hook ") != NULL)
            return place;
    }
    return "";
}

/* "ended with an error in step 3" */
static void put_doing(cd_text *text, const cddp_verdict *v, const cddp_verdict_rank *r)
{
    const uint32_t rank = (uint32_t)(r - v->ranks);
    const char *call = r->result.end == CDDP_RANK_HUNG ? find_call(v, rank) : NULL;
    char words[64];
    if (call != NULL) {
        cd_text_push(text, call);
        return;
    }
    switch (r->result.end) {
    case CDDP_RANK_RETURNED:
        cd_text_push(text, r->result.status == CDDP_OK ? "ended normally" : "ended with an error");
        break;
    case CDDP_RANK_KILLED:
    case CDDP_RANK_CRASHED:
        cd_rank_end_print(&r->result, words, sizeof words);
        cd_text_push(text, words);
        cd_text_push(text, find_place_of_death(v, rank));
        break;
    case CDDP_RANK_HUNG:
        cd_text_push(text, strstr(r->result.error.message, "SIGSTOP") != NULL
                               ? "is stopped (SIGSTOP)"
                           : strstr(r->result.error.message, "a planted fault") != NULL
                               ? "a planted fault stopped"
                               : "hangs outside a collective");
        break;
    case CDDP_RANK_INTERRUPTED:
        cd_text_push(text, "was still running");
        break;
    }
    cd_text_printf(text, " in step %" PRIu32, r->step);
}

static bool is_alike(const cddp_verdict_rank *a, const cddp_verdict_rank *b)
{
    return a->result.end == b->result.end && a->result.status == b->result.status &&
           a->result.detail == b->result.detail && a->step == b->step;
}

/* Of several roots the first that died: the others may have failed for that reason. */
static uint32_t find_shown_root(const of_wait *o)
{
    const cddp_verdict *v = o->verdict;
    for (uint32_t r = next_root(o, 0); r < v->rank_count; r = next_root(o, r + 1))
        if (cd_hang_has_died(v, r)) return r;
    return next_root(o, 0);
}

/* "for rank 2, which …"; several that ended alike share the clause, of others one is described. */
static void put_roots(cd_text *text, const of_wait *o)
{
    const cddp_verdict *v = o->verdict;
    const uint32_t first = next_root(o, 0);
    bool is_one_kind = true;
    put_ranks(text, next_root, o);
    if (first >= v->rank_count) return;
    if (o->main->late_ns > 0) {
        char late[CD_DURATION_BYTES];
        cd_duration_print(o->main->late_ns, late, sizeof late);
        cd_text_printf(text, ", which came %s after the time-out", late);
        return;
    }
    const uint32_t second = next_root(o, first + 1), shown = find_shown_root(o);
    for (uint32_t r = second; r < v->rank_count; r = next_root(o, r + 1))
        is_one_kind = is_one_kind && is_alike(&v->ranks[first], &v->ranks[r]);
    if (second == CD_NO_RANK)
        cd_text_push(text, ", which ");
    else if (is_one_kind)
        cd_text_push(text, ", each of which ");
    else
        cd_text_printf(text, ", of which rank %" PRIu32 " ", shown);
    put_doing(text, v, &v->ranks[shown]);
}

/* The least rank on the cycle that is not below `from`. */
static uint32_t next_on_cycle(const void *self, uint32_t from)
{
    const of_wait *o = self;
    const cddp_wait *w = o->main;
    uint32_t least = CD_NO_RANK;
    do {
        if (w->rank >= from && w->rank < least) least = w->rank;
        w = cd_hang_find(o->verdict, w->peers[0]);
    } while (w != o->main);
    return least;
}

/* "rank 0 waits in … for rank 1, which waits in … for rank 0", from the lowest rank on it; "ranks
** 0-2 wait in … for one another" where it is one operation. */
static void put_cycle(cd_text *text, const cddp_verdict *v, const cddp_wait *cycle)
{
    const of_wait o = {v, cycle};
    const cddp_wait *first = cycle, *w = cycle;
    uint32_t length = 0;
    bool is_one = true;
    do {
        if (w->rank < first->rank) first = w;
        is_one = is_one && is_beside(w, cycle) && w->op == cycle->op && w->sequence >= 0 &&
                 !is_message(w);
        w = cd_hang_find(v, w->peers[0]);
        length++;
    } while (w != cycle);
    if (is_one && length > 1) {
        put_ranks(text, next_on_cycle, &o);
        cd_text_push(text, " wait ");
        cd_hang_print_operation(first, text);
        cd_text_push(text, length > 2 ? " for one another" : " for each other");
        return;
    }
    cd_text_printf(text, "rank %" PRIu32, first->rank);
    w = first;
    for (uint32_t i = 0; i < length && i < CYCLE_SHOWN; i++) {
        cd_text_push(text, i > 0 ? ", which waits " : " waits ");
        cd_hang_print_operation(w, text);
        cd_text_printf(text, " for rank %" PRIu32, w->peers[0]);
        w = cd_hang_find(v, w->peers[0]);
    }
    if (length > CYCLE_SHOWN)
        cd_text_printf(text, ", and so on in a cycle of %" PRIu32 " ranks", length);
}

/* The first finding of a rank that never returns, where nobody waits for it. */
static const cddp_finding *find_stay(const cddp_verdict *v)
{
    for (size_t i = 0; i < v->finding_count; i++)
        if (strcmp(v->findings[i].check, "I-LIVE") == 0 && v->findings[i].rank_count > 0 &&
            strstr(v->findings[i].actual, stays) != NULL)
            return &v->findings[i];
    return NULL;
}

static uint32_t next_blamed(const void *self, uint32_t from)
{
    const cddp_finding *f = self;
    for (size_t i = 0; i < f->rank_count; i++)
        if (f->ranks[i] >= from) return f->ranks[i];
    return CD_NO_RANK;
}

/* "ranks 0 to 3 do not return from hook x (bucket 0, step 1)" */
static void put_stay(cd_text *text, const cddp_finding *stay)
{
    char words[160];
    const char *place = strstr(stay->actual, stays) + sizeof stays - 1;
    cd_rank_list_print(&(cd_rank_list){stay, next_blamed}, CD_NO_RANK, words, sizeof words);
    cd_text_printf(text, "hang: %s %s not return from %s", words,
                   stay->rank_count > 1 ? "do" : "does", place);
}

/* "ranks 0 to 2 go round in circles: rank 0 posts allreduce(sum) of 1 f32 4992 times …" */
static void put_livelock(cd_text *text, const cddp_finding *circle)
{
    static const char goes[] = "goes round in circles: it ";
    char words[160];
    const char *what = strstr(circle->title, goes);
    cd_rank_list_print(&(cd_rank_list){circle, next_blamed}, CD_NO_RANK, words, sizeof words);
    cd_text_printf(text, "livelock: %s %s round in circles", words,
                   circle->rank_count == 1 ? "goes" : "go");
    if (what == NULL) return;
    cd_text_printf(text, ": rank %" PRId32 " %s, in step %" PRIu32, circle->rank,
                   what + sizeof goes - 1, circle->step);
}

/* "rank 1 differs from the others (I-ORDER)" */
static void put_parting(cd_text *text, const cddp_finding *f)
{
    char words[160];
    cd_rank_list_print(&(cd_rank_list){f, next_blamed}, CD_NO_RANK, words, sizeof words);
    cd_text_printf(text, "%s %s from the others (%s)", words,
                   f->rank_count == 1 ? "differs" : "differ", f->check);
}

static uint32_t next_dead(const void *self, uint32_t from)
{
    const cddp_verdict *v = self;
    for (uint32_t r = from; r < v->rank_count; r++)
        if (cd_hang_has_died(v, r)) return r;
    return CD_NO_RANK;
}

/* Nobody waits: a rank died before it was missed in an operation, or ranks disagree and the
** transport noticed. */
static void put_stop(cd_text *text, const cddp_verdict *v)
{
    const cddp_finding *part = cd_hang_parting(v);
    char words[160];
    if (cd_hang_is_death(v)) {
        const uint32_t first = next_dead(v, 0);
        const bool is_one = next_dead(v, first + 1) == CD_NO_RANK;
        cd_rank_list_print(&(cd_rank_list){v, next_dead}, CD_NO_RANK, words, sizeof words);
        cd_text_printf(text, "stopped: %s ", words);
        if (!is_one) cd_text_printf(text, "died, of which rank %" PRIu32 " ", first);
        put_doing(text, v, &v->ranks[first]);
        cd_text_push(text, ", before another rank missed it in an operation");
    } else if (part != NULL) {
        cd_text_push(text, "stopped: ");
        put_parting(text, part);
        cd_text_push(text, ", and their operations were refused");
    }
}

void cd_hang_print(const cddp_verdict *v, cd_text *text)
{
    const of_wait o = {v, cd_hang_main(v)};
    const cddp_finding *circle = cd_hang_livelock(v);
    if (circle != NULL) {
        put_livelock(text, circle);
        return;
    }
    const cddp_finding *stay = o.main == NULL ? find_stay(v) : NULL, *part = cd_hang_parting(v);
    if (stay != NULL) put_stay(text, stay);
    if (o.main == NULL && stay == NULL) put_stop(text, v);
    if (o.main == NULL) return;
    const bool is_endless = cd_hang_is_endless(o.main), has_root = next_root(&o, 0) != CD_NO_RANK;
    const cddp_wait *cycle = cd_hang_cycle(v);
    cd_text_push(text, is_endless ? "hang: " : "stopped: ");
    if (cycle != NULL) {
        put_cycle(text, v, cycle);
        return;
    }
    const uint32_t first = next_waiter(&o, 0);
    const bool is_one = next_waiter(&o, first + 1) == CD_NO_RANK;
    put_ranks(text, next_waiter, &o);
    const cddp_finding *odd = cd_hang_odd(v);
    if (odd != NULL) {
        char words[160];
        cd_text_push(text, is_one ? " waits " : " wait ");
        cd_hang_print_operation(o.main, text);
        cd_text_push(text, ", which ");
        put_ranks(text, next_root, &o);
        cd_rank_list_print(&(cd_rank_list){odd, next_blamed}, CD_NO_RANK, words, sizeof words);
        cd_text_printf(text, " %s; %s %s from the others (%s)",
                       is_any_root_bad(&o) ? "left with an error" : "never joined", words,
                       odd->rank_count == 1 ? "differs" : "differ", odd->check);
        return;
    }
    cd_text_push(text, !is_endless && has_root ? " lost " : is_one ? " waits" : " wait");
    if (!is_endless && has_root) {
        put_roots(text, &o);
        cd_text_push(text, ", while ");
        cd_hang_print_operation(o.main, text);
        return;
    }
    cd_text_push(text, " ");
    cd_hang_print_operation(o.main, text);
    const cddp_finding *why = cd_hang_why(v);
    if (why != NULL) {
        cd_text_printf(text, ": %s", why->title);
        return;
    }
    if (!has_root && !o.main->is_inside && o.main->sequence >= 0) {
        cd_text_push(text, ", and not every member is recorded: who did not come is not known");
        return;
    }
    if (!has_root) {
        cd_text_push(text, ", which all members have posted; ");
        if (part != NULL)
            put_parting(text, part);
        else
            cd_text_push(text, "who stopped there is not known");
        return;
    }
    cd_text_push(text, " for ");
    put_roots(text, &o);
}
