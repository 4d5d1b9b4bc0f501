/* SPDX-License-Identifier: Apache-2.0 */
/* The waiting of a verdict as a graph. */
#include "verify/hang/graph.h"

#include "core/base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const cddp_wait *cd_hang_find(const cddp_verdict *v, uint32_t rank)
{
    size_t low = 0, high = v->wait_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (v->waits[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < v->wait_count && v->waits[low].rank == rank ? &v->waits[low] : NULL;
}

bool cd_hang_is_endless(const cddp_wait *wait)
{
    return wait->status == CDDP_OK || wait->status == CDDP_E_TIMEOUT;
}

/* A run ends soon after the first death. Who is then still on its way was not waited for long, and
** nothing is known of it. */
static bool was_cut_short(const cddp_verdict *v, uint32_t rank)
{
    const cddp_rank_result *r = rank < v->rank_count ? &v->ranks[rank].result : NULL;
    return r != NULL && r->end == CDDP_RANK_HUNG &&
           strstr(r->error.message, "was still running") != NULL;
}

static bool is_any_peer_dead(const cddp_verdict *v, const cddp_wait *wait)
{
    for (size_t i = 0; i < wait->peer_count; i++)
        if (cd_hang_find(v, wait->peers[i]) == NULL && cd_hang_has_died(v, wait->peers[i]))
            return true;
    return false;
}

bool cd_hang_is_root(const cddp_verdict *v, const cddp_wait *wait, uint32_t rank)
{
    bool is_peer = false;
    for (size_t i = 0; i < wait->peer_count; i++) is_peer |= wait->peers[i] == rank;
    return is_peer && cd_hang_find(v, rank) == NULL &&
           !(was_cut_short(v, rank) && is_any_peer_dead(v, wait));
}

static bool has_root(const cddp_verdict *v, const cddp_wait *wait)
{
    for (size_t i = 0; i < wait->peer_count; i++)
        if (cd_hang_find(v, wait->peers[i]) == NULL) return true;
    return false;
}

/* Who waits for one that waits inside an operation that all have posted waits for that one's
** reason. In a cycle nobody is the last. */
static const cddp_wait *last_of(const cddp_verdict *v, const cddp_wait *wait)
{
    const cddp_wait *at = wait;
    for (size_t i = 0; at != NULL && i < v->wait_count; i++) {
        if (at->peer_count == 0) return at;
        at = cd_hang_find(v, at->peers[0]);
    }
    return wait;
}

const cddp_wait *cd_hang_main(const cddp_verdict *v)
{
    const cddp_wait *lost = NULL, *in_cycle = NULL;
    for (size_t i = 0; i < v->wait_count; i++) {
        const cddp_wait *w = &v->waits[i];
        if (has_root(v, w) && cd_hang_is_endless(w)) return w;
        if (lost == NULL && has_root(v, w)) lost = w;
        if (in_cycle == NULL && w->peer_count > 0) in_cycle = w;
    }
    if (lost != NULL) return lost;
    return in_cycle != NULL ? last_of(v, in_cycle) : v->wait_count > 0 ? &v->waits[0] : NULL;
}

/* After as many steps along first peers as there are waits, it is on the cycle. */
const cddp_wait *cd_hang_cycle(const cddp_verdict *v)
{
    const cddp_wait *at = cd_hang_main(v);
    if (at == NULL || has_root(v, at)) return NULL;
    for (size_t i = 0; at != NULL && i < v->wait_count; i++)
        at = at->peer_count > 0 ? cd_hang_find(v, at->peers[0]) : NULL;
    return at;
}

const cddp_finding *cd_hang_why(const cddp_verdict *v)
{
    const cddp_wait *main = cd_hang_main(v);
    if (main == NULL || has_root(v, main) || cd_hang_cycle(v) != NULL) return NULL;
    for (size_t i = 0; i < v->finding_count; i++) {
        const cddp_finding *f = &v->findings[i];
        /* Of a rank that just does not come back I-LIVE knows no cause. */
        const bool is_cause = strcmp(f->expected, "it returns") != 0;
        if (strcmp(f->check, "I-LIVE") == 0 && f->rank_count > 0 && is_cause) return f;
    }
    return NULL;
}

const cddp_finding *cd_hang_livelock(const cddp_verdict *v)
{
    for (size_t i = 0; i < v->finding_count; i++)
        if (strcmp(v->findings[i].check, "I-LIVE") == 0 &&
            strstr(v->findings[i].title, "goes round in circles") != NULL)
            return &v->findings[i];
    return NULL;
}

static bool has_rank(const cddp_finding *f, uint32_t rank)
{
    for (size_t i = 0; i < f->rank_count; i++)
        if (f->ranks[i] == rank) return true;
    return false;
}

/* The rank ended by itself, well or because an exchange with others failed. */
static bool has_returned(const cddp_verdict *v, uint32_t rank)
{
    const cddp_rank_result *r = rank < v->rank_count ? &v->ranks[rank].result : NULL;
    return r != NULL && r->end == CDDP_RANK_RETURNED &&
           (r->status == CDDP_OK || r->status == CDDP_E_BACKEND || r->status == CDDP_E_MISMATCH);
}

/* A rank that the finding blames waits. */
static bool blames_a_wait(const cddp_verdict *v, const cddp_finding *f)
{
    for (size_t i = 0; i < v->wait_count; i++)
        if (has_rank(f, v->waits[i].rank)) return true;
    return false;
}

const cddp_finding *cd_hang_odd(const cddp_verdict *v)
{
    const cddp_wait *main = cd_hang_main(v);
    const cddp_finding *f = v->finding_count > 0 ? &v->findings[0] : NULL;
    if (main == NULL || f == NULL || !has_root(v, main)) return NULL;
    if (strcmp(f->check, "I-ORDER") != 0 && strcmp(f->check, "I-CONTENT") != 0) return NULL;
    for (size_t i = 0; i < main->peer_count; i++) {
        const uint32_t peer = main->peers[i];
        if (cd_hang_find(v, peer) == NULL && (!has_returned(v, peer) || has_rank(f, peer)))
            return NULL;
    }
    return blames_a_wait(v, f) ? f : NULL;
}

bool cd_hang_has_died(const cddp_verdict *v, uint32_t rank)
{
    if (rank >= v->rank_count) return false;
    const cddp_rank_end end = v->ranks[rank].result.end;
    return end == CDDP_RANK_KILLED || end == CDDP_RANK_CRASHED;
}

bool cd_hang_is_death(const cddp_verdict *v)
{
    const cddp_finding *f = v->finding_count > 0 ? &v->findings[0] : NULL;
    uint32_t dead = 0;
    if (v->wait_count > 0 || f == NULL || f->rank_count == 0 || strcmp(f->check, "I-FAIL") != 0)
        return false;
    for (size_t i = 0; i < f->rank_count; i++)
        if (!cd_hang_has_died(v, f->ranks[i])) return false;
    for (uint32_t r = 0; r < v->rank_count; r++) dead += cd_hang_has_died(v, r);
    return dead < v->rank_count;
}

const cddp_finding *cd_hang_parting(const cddp_verdict *v)
{
    const cddp_wait *main = cd_hang_main(v);
    const cddp_finding *f = v->finding_count > 0 ? &v->findings[0] : NULL;
    if (f == NULL || f->rank_count == 0 || f->rank_count >= v->rank_count) return NULL;
    if (strcmp(f->check, "I-ORDER") != 0 && strcmp(f->check, "I-CONTENT") != 0) return NULL;
    if (main != NULL)
        return !has_root(v, main) && main->is_inside && cd_hang_cycle(v) == NULL &&
                       cd_hang_why(v) == NULL
                   ? f
                   : NULL;
    for (uint32_t r = 0; r < v->rank_count; r++)
        if (v->ranks[r].result.status == CDDP_E_MISMATCH) return f;
    return NULL;
}

/* Nobody waits, and the summary begins with the rank whose failure is the cause. */
static bool is_named(const cddp_verdict *v, uint32_t rank)
{
    static const char expected[] = "as expected: ";
    char words[40];
    const char *summary = v->summary != NULL ? v->summary : "";
    if (strncmp(summary, expected, strlen(expected)) == 0) summary += strlen(expected);
    snprintf(words, sizeof words, "rank %" PRIu32 " did not finish", rank);
    return strncmp(summary, words, strlen(words)) == 0;
}

bool cd_hang_is_culprit(const cddp_verdict *v, uint32_t rank)
{
    const cddp_wait *main = cd_hang_main(v);
    const cddp_finding *odd = cd_hang_odd(v), *part = cd_hang_parting(v);
    const cddp_finding *circle = cd_hang_livelock(v);
    if (circle != NULL) return has_rank(circle, rank);
    if (cd_hang_is_death(v)) return cd_hang_has_died(v, rank);
    if (part != NULL) return has_rank(part, rank);
    if (main == NULL) return v->finding_count == 0 && is_named(v, rank);
    if (odd != NULL) return has_rank(odd, rank);
    if (has_root(v, main)) return cd_hang_is_root(v, main, rank);
    const cddp_finding *why = cd_hang_why(v);
    if (why != NULL && has_rank(why, rank)) return true;
    const cddp_wait *start = cd_hang_cycle(v), *at = start;
    for (size_t i = 0; at != NULL && i < v->wait_count; i++) {
        if (at->rank == rank) return true;
        at = cd_hang_find(v, at->peers[0]);
        if (at == start) break;
    }
    return false;
}

/* ---- alike ---- */

static bool same_ranks(const uint32_t *a, size_t a_count, const uint32_t *b, size_t b_count)
{
    return a_count == b_count && (a_count == 0 || memcmp(a, b, a_count * sizeof *a) == 0);
}

static bool same_blame(const cddp_finding *a, const cddp_finding *b)
{
    return strcmp(a->check, b->check) == 0 &&
           same_ranks(a->ranks, a->rank_count, b->ranks, b->rank_count);
}

static const cddp_finding *find_disagreement(const cddp_verdict *v)
{
    for (size_t i = 0; i < v->finding_count; i++)
        if (strcmp(v->findings[i].check, "I-ORDER") == 0) return &v->findings[i];
    return NULL;
}

/* "#7 of group 'world'": of buckets of different steps it is what was expected. */
static const char *operation_of(const cddp_finding *f)
{
    const char *at = strchr(f->title, '#');
    if (at == NULL) at = strchr(f->expected, '#');
    return at != NULL ? at : "";
}

bool cd_hang_is_same_refusal(const cddp_verdict *a, const cddp_verdict *b)
{
    const cddp_finding *x = find_disagreement(a), *y = find_disagreement(b);
    if (x == NULL || y == NULL || !same_blame(&a->findings[0], &b->findings[0])) return false;
    const char *operation = operation_of(x);
    return same_blame(x, y) && operation[0] == '#' && strcmp(operation, operation_of(y)) == 0;
}

static bool same_operation(const cddp_wait *x, const cddp_wait *y)
{
    return x->rank == y->rank && x->group == y->group && x->sequence == y->sequence &&
           x->op == y->op;
}

static bool same_peers(const cddp_wait *x, const cddp_wait *y)
{
    return same_ranks(x->peers, x->peer_count, y->peers, y->peer_count);
}

bool cd_hang_is_same(const cddp_verdict *a, const cddp_verdict *b)
{
    if (cd_hang_livelock(a) != NULL || cd_hang_livelock(b) != NULL)
        return cd_hang_livelock(a) != NULL && cd_hang_livelock(b) != NULL &&
               same_blame(&a->findings[0], &b->findings[0]);
    if ((a->finding_count > 0) != (b->finding_count > 0) || a->wait_count != b->wait_count)
        return false;
    if (a->finding_count > 0 && !same_blame(&a->findings[0], &b->findings[0])) return false;
    for (size_t i = 0; i < a->wait_count; i++) {
        const cddp_wait *x = &a->waits[i], *y = &b->waits[i];
        if (!same_operation(x, y) || x->is_inside != y->is_inside) return false;
        /* Inside an operation only the simulator sees whom a rank waits for. */
        if (!x->is_inside && !same_peers(x, y)) return false;
    }
    return true;
}

bool cd_hang_has_same_root(const cddp_verdict *a, const cddp_verdict *b, uint32_t root)
{
    if (a->wait_count != b->wait_count) return false;
    for (size_t i = 0; i < a->wait_count; i++)
        if (!same_operation(&a->waits[i], &b->waits[i]) || !same_peers(&a->waits[i], &b->waits[i]))
            return false;
    return a->wait_count == 0 || (cd_hang_is_culprit(a, root) && cd_hang_is_culprit(b, root));
}

/* ---- the shape ---- */

#define LIVELOCK 2   /* the shape of all of them */
#define KINDS_MAX 64 /* kinds of waiting; more than that do not change the shape */

static uint64_t kind_of(const cddp_verdict *v, const cddp_wait *w)
{
    const uint64_t waits = 1u << 8, unknown = 1u << 9;
    uint64_t ends = 0;
    for (size_t i = 0; i < w->peer_count; i++) {
        const uint32_t peer = w->peers[i];
        if (cd_hang_find(v, peer) != NULL)
            ends |= waits;
        else if (peer < v->rank_count && v->ranks[peer].result.end == CDDP_RANK_RETURNED)
            ends |= v->ranks[peer].result.status == CDDP_OK ? 1u : 2u;
        else
            ends |= peer < v->rank_count ? 4u << v->ranks[peer].result.end : unknown;
    }
    const uint64_t place =
        (uint64_t)(w->op + 1) << 2 | (w->bucket >= 0 ? 1u : 0u) | (cd_hang_is_endless(w) ? 2u : 0u);
    return cd_hash_mix(place, ends);
}

uint64_t cd_hang_shape(const cddp_verdict *v)
{
    uint64_t kinds[KINDS_MAX], shape = 1;
    size_t count = 0;
    if (cd_hang_livelock(v) != NULL) return LIVELOCK;
    if (v->wait_count == 0) return 0;
    const bool is_rooted = has_root(v, cd_hang_main(v));
    for (size_t i = 0; i < v->wait_count; i++) {
        /* Who waits for one that waits adds nothing to the cause. */
        if (is_rooted && !has_root(v, &v->waits[i])) continue;
        const uint64_t kind = kind_of(v, &v->waits[i]);
        size_t at = count;
        while (at > 0 && kinds[at - 1] > kind) at--;
        if ((at > 0 && kinds[at - 1] == kind) || count == KINDS_MAX) continue;
        memmove(&kinds[at + 1], &kinds[at], (count++ - at) * sizeof kinds[0]);
        kinds[at] = kind;
    }
    for (size_t i = 0; i < count; i++) shape = cd_hash_mix(shape, kinds[i]);
    return shape != 0 ? shape : 1;
}
