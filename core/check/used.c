/* SPDX-License-Identifier: Apache-2.0 */
/* I-USED: a parameter is used on a rank when any micro-step since the last reduction gave it a
** gradient, and globally used when it is used on any rank.
**
** Judged from   grad_local with a defined gradient (what really happened), used_local (what the
**               rank's map says) or a mark (what it says where that ends the backward), used_global
**               (the reduced map) and grad_final's globally_unused.
**     U1  used_local equals "some grad_local with a value since the last finalisation" (UNU-03,
**         NSY-04)
**     U2  used_global is the number of ranks whose used_local was set in the same round (UNU-01)
**     U3  all ranks read the same used_global; where they differ, U2 says who is right
**     U4  globally_unused is set exactly where the map says 0; never for a parameter that is used
**         here (FIN-02)
**     U5  a map that is made is reduced and read in the backward that made it (UNU-01)
**     A rank that leaves a backward half-way, or takes another group, begins a new window (UPG-01).
** Exercised     a parameter was unused on some rank in a reduction whose map was read, or a map had
**               to remember a use from before the micro-step that reduced.
** Blame         U1, U4, U5: the rank. U2, U3: the odd ranks, or the map.
** Limits        the map of a static graph is reduced once; later finalisations that reuse it are
**               judged by U4 only.
*/
#include "core/check/writer.h"
#include "core/trace/tracer.h"

#include <string.h>

typedef struct rank_use {
    uint32_t step, micro_step; /* of the first gradient of the window */
    uint64_t sequence;
    int64_t local, global; /* last used_local and used_global; global -1: not read in this window */
    int64_t seen_round;    /* + 1: the window in which a gradient came */
    bool has_local;
} rank_use;

/* Rounds count the used maps that a rank made. Every rank makes one per reduction, a joined one as
** well, whose step and micro-step stand still; so rounds match across ranks where steps need
** not. */
typedef struct rank_facts {
    int64_t last_param, round, window;
    bool has_map, has_sum; /* in this window */
} rank_facts;

typedef struct window_sum {
    int64_t used; /* ranks whose map says used */
    int64_t voters;
} window_sum;

typedef struct state {
    cd_writer writer;
    cd_table uses;            /* (rank, param) → rank_use */
    cd_table sums;            /* (round, param) → window_sum */
    cd_agree globals;         /* (round, param) → used */
    cd_ranks ranks;           /* of rank_facts */
    cd_table reported;        /* (kind, param) → reported */
    uint32_t most_voters;     /* of a sum */
    uint64_t unused, earlier; /* map entries: unused; used, but not in the reducing micro-step */
} state;

/* U2 is judged at the end. */
static bool is_sum_wrong(const window_sum *sum, const cd_agree_entry *read)
{
    return sum != NULL && read != NULL && read->first.data[0] != sum->used;
}

static bool keeps_global(void *self, const cd_key *key, const cd_agree_entry *entry)
{
    const state *s = self;
    return is_sum_wrong(cd_table_find(&s->sums, key), entry);
}

/* As long as more ranks may add to it, and what they read is kept. */
static bool keeps_sum(void *self, const cd_key *key, const void *value)
{
    const state *s = self;
    const window_sum *sum = value;
    return sum->voters < (int64_t)s->most_voters ||
           is_sum_wrong(sum, cd_table_find(&s->globals.entries, key));
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-USED", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->uses, context->allocator, sizeof(rank_use));
    cd_table_init(&s->sums, context->allocator, sizeof(window_sum));
    cd_agree_init(&s->globals, context->allocator);
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->reported, context->allocator, sizeof(int64_t));
    cd_writer_set_window(&s->writer, &s->sums, keeps_sum);
    cd_agree_set_window(&s->globals, &(cd_agree_window){.facts = context->facts,
                                                        .whole = CD_WHOLE_MOST,
                                                        .keeps = keeps_global,
                                                        .self = s});
    return CDDP_OK;
}

static bool report_once(state *s, int64_t kind, int64_t param)
{
    int64_t *reported = cd_table_add(&s->reported, CD_KEY(kind, param));
    return reported != NULL && (*reported)++ == 0;
}

static rank_use *use_of(state *s, const cddp_event *e, int64_t param)
{
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL || param < 0) return NULL;
    size_t before = s->uses.count;
    rank_use *u = cd_table_add(&s->uses, CD_KEY(e->rank, param));
    if (u != NULL && s->uses.count > before) u->global = -1;
    return u;
}

static bool is_seen(const state *s, uint32_t rank, const rank_use *u)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, rank);
    return r != NULL && u->seen_round == r->window + 1;
}

/* U1: the map and the gradients that came say different things of it. */
static void report_map(state *s, const cddp_event *e, int64_t param, const rank_use *u)
{
    if (!cd_writer_is_first(&s->writer, CD_KEY(1, param), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    if (is_seen(s, e->rank, u)) cd_finding_add_event(&f, e->rank, u->sequence);
    cd_finding_set_parameter(&s->writer, &f, param);
    if (is_seen(s, e->rank, u)) {
        CD_SAY(f.title, CDDP_FINDING_WHO ": the used map forgets %s", f.parameter);
        CD_SAY(f.expected, "used: it got a gradient at step %u micro-step %u", u->step,
               u->micro_step);
        CD_SAY(f.actual, "unused");
        CD_SAY(f.advice, "%s",
               u->step != e->step || u->micro_step != e->micro_step
                   ? "use must be recorded in every micro-step, also inside no_sync (NSY-04)"
                   : "a hook that fires with a defined gradient counts as use (UNU-03)");
    } else {
        CD_SAY(f.title, CDDP_FINDING_WHO ": the used map claims %s without a gradient",
               f.parameter);
        CD_SAY(f.expected, "unused: no defined gradient since the last reduction");
        CD_SAY(f.actual, "used");
        CD_SAY(f.advice, "reachable is not used: a hook that fires with an undefined gradient does "
                         "not count (UNU-03)");
    }
    cd_writer_hold(&s->writer, CD_KEY(1, param), &f);
}

/* U1. */
static void take_used_local(state *s, const cddp_event *e)
{
    const cddp_event_used_local *l = &e->as.used_local;
    rank_use *u = use_of(s, e, l->param);
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (u == NULL || r == NULL) return;
    /* a map is reported from its first entry to its last */
    if (r->round == 0 || l->param <= r->last_param) r->round++;
    r->last_param = l->param;
    r->has_map = true;
    window_sum *sum = cd_table_add(&s->sums, CD_KEY(r->round, l->param));
    if (sum == NULL) return;
    u->local = l->used;
    u->global = -1;
    u->has_local = true;
    sum->used += l->used != 0;
    sum->voters++;
    if (sum->voters > (int64_t)s->most_voters) s->most_voters = (uint32_t)sum->voters;
    if (l->used == 0)
        s->unused++;
    else if (is_seen(s, e->rank, u) && (u->step != e->step || u->micro_step != e->micro_step))
        s->earlier++;
    if ((l->used != 0) != is_seen(s, e->rank, u)) report_map(s, e, l->param, u);
}

/* U1, of a map that never came to its reduction: what it says was in the way. */
static void take_mark(state *s, const cddp_event *e)
{
    const rank_use *u =
        strcmp(e->text, CD_TRACER_TAKEN_FOR_USED) == 0 ? use_of(s, e, e->as.mark.value) : NULL;
    if (u != NULL && !is_seen(s, e->rank, u)) report_map(s, e, e->as.mark.value, u);
}

/* U4. */
static void take_final(state *s, const cddp_event *e)
{
    const cddp_event_grad_final *g = &e->as.grad_final;
    const rank_use *u = cd_table_find(&s->uses, CD_KEY(e->rank, g->param));
    if (u == NULL || !u->has_local) return;
    const char *why = NULL;
    if (g->globally_unused && u->local != 0)
        why = "it is used on this rank";
    else if (g->globally_unused && u->global > 0)
        why = "the reduced map says it is used";
    else if (!g->globally_unused && u->local == 0 && u->global == 0)
        why = "the reduced map says nobody used it";
    if (why == NULL || !cd_writer_is_first(&s->writer, CD_KEY(4, g->param), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_set_parameter(&s->writer, &f, g->param);
    f.bucket = (int32_t)g->bucket;
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s is treated as %s although %s", f.parameter,
           g->globally_unused ? "globally unused" : "used", why);
    CD_SAY(f.expected, "local map %lld, reduced map %lld", (long long)u->local,
           (long long)u->global);
    CD_SAY(f.actual, "%s",
           g->globally_unused ? "its gradient was left untouched" : "its gradient was overwritten");
    CD_SAY(f.advice,
           "the reduced map decides once it is there; before that only a local use may (FIN-02)");
    cd_writer_hold(&s->writer, CD_KEY(4, g->param), &f);
}

/* U5. */
static void take_end(state *s, const cddp_event *e)
{
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    const bool is_lost = r->has_map && !r->has_sum;
    r->window++;
    r->has_map = r->has_sum = false;
    if (!is_lost || !cd_writer_is_first(&s->writer, CD_KEY(5), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the used map is made and never reduced");
    CD_SAY(f.expected, "the sum of all ranks' maps, read before the backward ends");
    CD_SAY(f.actual, "each rank goes by its own map");
    CD_SAY(f.advice, "without the sum a rank takes what only other ranks use for unused, and steps "
                     "on other parameters than they do (UNU-01)");
    cd_writer_hold(&s->writer, CD_KEY(5), &f);
}

/* What was used before does not count (UPG-01, UPG-02). */
static void take_reset(state *s, const cddp_event *e)
{
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    r->window++;
    r->has_map = r->has_sum = false;
}

static bool is_reset(const cddp_event *e)
{
    return e->kind == CDDP_EV_regroup ||
           (e->kind == CDDP_EV_mark && e->text != NULL && strcmp(e->text, CD_TRACER_LEFT) == 0);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_grad_local) {
        rank_use *u = e->as.grad_local.presence != CDDP_PRESENCE_ABSENT
                          ? use_of(s, e, e->as.grad_local.param)
                          : NULL;
        if (u == NULL || is_seen(s, e->rank, u)) return;
        u->seen_round = ((const rank_facts *)cd_ranks_find(&s->ranks, e->rank))->window + 1;
        u->step = e->step;
        u->micro_step = e->micro_step;
        u->sequence = e->sequence;
    } else if (e->kind == CDDP_EV_used_local) {
        take_used_local(s, e);
    } else if (e->kind == CDDP_EV_used_global) {
        const cddp_event_used_global *g = &e->as.used_global;
        rank_use *u = use_of(s, e, g->param);
        if (u != NULL) u->global = g->used;
        rank_facts *r = cd_ranks_find(&s->ranks, e->rank);
        if (r != NULL) r->has_sum = true;
        cd_agree_push(&s->globals,
                      &(cd_statement){.key = CD_KEY(r != NULL ? r->round : 0, g->param),
                                      CD_SAYS(g->used)},
                      e);
    } else if (e->kind == CDDP_EV_grad_final) {
        take_final(s, e);
    } else if (e->kind == CDDP_EV_backward_end && e->as.backward_end.finalized) {
        take_end(s, e);
    } else if (is_reset(e)) {
        take_reset(s, e);
    } else if (e->kind == CDDP_EV_mark && e->text != NULL) {
        take_mark(s, e);
    }
}

/* U3 */
static void report_split(state *s, const cd_split *split)
{
    if (!report_once(s, 3, split->key->part[1])) return;
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    cd_finding_set_parameter(&s->writer, &f, split->key->part[1]);
    CD_SAY(f.title, "%s read different reduced maps for %s", who, f.parameter);
    CD_SAY(f.expected, "rank %u: used by %lld ranks", split->right.rank,
           (long long)split->right.data[0]);
    CD_SAY(f.actual, "rank %u: used by %lld ranks", split->odd.rank, (long long)split->odd.data[0]);
    CD_SAY(f.advice, "the reduced map replaces the whole local one on every rank (FIN-02)");
    cd_writer_report(&s->writer, &f);
}

/* U2, where nobody disagrees but the sum is wrong. */
static void report_sum(state *s, size_t position)
{
    const cd_key *key = cd_table_key(&s->globals.entries, position);
    const cd_agree_entry *entry = cd_table_value(&s->globals.entries, position);
    const window_sum *sum = cd_table_find(&s->sums, key);
    if (cd_table_find(&s->writer.held, CD_KEY(1, key->part[1])) != NULL)
        return; /* a wrong local map explains a wrong sum */
    if (sum == NULL || entry->first.next != 0 || entry->first.data[0] == sum->used ||
        !report_once(s, 2, key->part[1]))
        return;
    cddp_event at = {.rank = UINT32_MAX, .step = entry->step, .micro_step = entry->micro_step};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    f.event_count = 0;
    cd_finding_set_ranks(&s->writer, &f, &entry->first.ranks);
    cd_finding_add_event(&f, entry->first.rank, entry->first.sequence);
    cd_finding_set_parameter(&s->writer, &f, key->part[1]);
    CD_SAY(f.title, "the reduced map counts %lld users of %s, the ranks' own maps %lld",
           (long long)entry->first.data[0], f.parameter, (long long)sum->used);
    CD_SAY(f.expected, "%lld of the %lld ranks that reported used it", (long long)sum->used,
           (long long)sum->voters);
    CD_SAY(f.actual, "%lld", (long long)entry->first.data[0]);
    CD_SAY(f.advice, "every rank contributes its own map, joined ranks zeros, and the reduction is "
                     "a sum (UNU-01)");
    cd_writer_report(&s->writer, &f);
}

/* The ranks whose sum is not that of all ranks' maps, whatever most ranks read. */
static cddp_judgement judge_sum(void *self, uint32_t rank, const cd_variant *said)
{
    const window_sum *sum = self;
    (void)rank;
    return said->data[0] == sum->used ? CDDP_JUDGED_RIGHT : CDDP_JUDGED_WRONG;
}

static void prefer_sums(state *s)
{
    for (size_t i = 0; s->globals.split_count > 0 && i < s->globals.entries.count; i++) {
        const cd_agree_entry *read = cd_table_value(&s->globals.entries, i);
        const cd_key *key = cd_table_key(&s->globals.entries, i);
        window_sum *sum = read->first.next != 0 ? cd_table_find(&s->sums, key) : NULL;
        if (sum != NULL && sum->voters >= (int64_t)s->most_voters)
            cd_agree_set_right(&s->globals, key, &(cd_agree_judge){sum, judge_sum});
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    prefer_sums(s);
    if (s->unused > 0 && s->globals.entries.count > 0)
        cd_writer_exercise(&s->writer,
                           "%llu entries of used maps were unused and the reduced map was read",
                           (unsigned long long)s->unused);
    if (s->earlier > 0)
        cd_writer_exercise(&s->writer,
                           "%llu parameters were first used before the reducing micro-step",
                           (unsigned long long)s->earlier);
    cd_split split;
    for (size_t cursor = 0; cd_agree_next(&s->globals, &cursor, &split);) report_split(s, &split);
    for (size_t i = 0; i < s->globals.entries.count; i++) report_sum(s, i);
    cd_table_fini(&s->uses);
    cd_table_fini(&s->sums);
    cd_agree_fini(&s->globals);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->reported);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_grad_local, CDDP_EV_used_local,   CDDP_EV_used_global,
                                 CDDP_EV_grad_final, CDDP_EV_backward_end, CDDP_EV_regroup,
                                 CDDP_EV_mark};

CD_CHECK_TABLE(used, "I-USED", "use is remembered over the whole window and agreed by all ranks",
               "used(p) on a rank is the OR over all micro-steps since the last reduction; the "
               "global entry is the OR "
               "over ranks.");
