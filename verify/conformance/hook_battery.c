/* SPDX-License-Identifier: Apache-2.0 */
/* Which trials are run, and what is asked of their numbers.
**
** Gradients are multiples of 1/4 up to 2, so that sums of 8 of them are exact in every dtype: where
** a hook differs from the plain all-reduce, it is the hook. Some laws compare a hook with itself
** (one rank with many, one layout with another, a resumed run with a straight one), because that
** needs no knowledge of what it does.
**
** A chapter is what one process tries. It begins with a copy of the card and sends it back, so that
** chapters know what those before them found.
*/
#include "verify/conformance/hook_battery.h"

#include "core/base/format.h"
#include "verify/conformance/hook_large.h"
#include "verify/conformance/hook_measure.h"
#include "verify/conformance/hook_trial.h"
#include "core/base/crew.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/hooks/hook.h"
#include "core/tensor/dtype.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHORT 10 /* steps, of which 4 bring gradients */
/* the same, then time to send what is owed: 67 elements of a bucket, if need be one by one */
#define LONG 84
#define ACTIVE 4
#define QUIET 8 /* steps at the end of a long run, in which nothing is owed any more */
/* of the largest value: a wrong divisor is off by a factor, casts by 2^-8 */
#define ALIKE_TOLERANCE 0.02
#define REBUILD_TOLERANCE 0.02
/* of the largest value: what a wrapper's casts lose of a debt that is sent in several parts */
#define KEPT_TOLERANCE 0.02

#define WORLDS 5

static const uint32_t worlds[WORLDS] = {1, 2, 3, 5, 8};
static const cddp_dtype dtypes[4] = {CDDP_F32, CDDP_F64, CDDP_F16, CDDP_BF16};

static const struct {
    const char *name, *title;
} laws[CD_LAW_COUNT] = {
    [CD_LAW_RUNS] = {"runs", "ends on every rank, with a result as large as the bucket"},
    [CD_LAW_UNTOUCHED] = {"untouched",
                          "writes nowhere but into its bucket, and never after completion"},
    [CD_LAW_REPLICAS] = {"replicas", "all ranks that are to agree get the same bits"},
    [CD_LAW_AGAIN] = {"deterministic", "the same run gives the same bits"},
    [CD_LAW_ORDER] = {"order", "any order of completion gives the same bits"},
    [CD_LAW_DECLARED] = {"declared", "what is not the plain all-reduce bit for bit is declared"},
    [CD_LAW_ROUNDED] = {"rounded",
                        "a mean that is promised to be exact is rounded once, and correctly"},
    [CD_LAW_DIVISOR] = {"divisor", "ranks that are alike give what one rank gives"},
    [CD_LAW_ARRIVES] =
        {"arrives",
         "every element gets through in the end, at about its size, whichever backward brought it"},
    [CD_LAW_KEPT] = {"kept", "what is sent later was owed: in the end nothing of it is missing, "
                             "and nothing was sent twice"},
    [CD_LAW_STATED] = {"stated", "the laws that it states of itself hold"},
    [CD_LAW_JUDGED] =
        {"judged",
         "what comes out is what the judge's own law makes of what enters, with the options"},
    [CD_LAW_DRAWS] = {"draws", "random numbers are equal or different on all ranks, as declared, "
                               "and a stream advances"},
    [CD_LAW_PHASE] = {"phase", "all buckets of a backward are in the same phase"},
    [CD_LAW_RANGE] = {"range",
                      "large gradients do not overflow by being summed before they are divided"},
    [CD_LAW_VISIBLE] =
        {"visible",
         "what is not finite on one rank is seen by all of them, as a loss scaler needs it"},
    [CD_LAW_RESUME] = {"resume", "saved, made anew and loaded it goes on bit for bit"},
    [CD_LAW_FOREIGN] =
        {"foreign",
         "a state that was saved for another model is refused when it is loaded, with the reason"},
    [CD_LAW_REBUILD] = {"rebuild", "what is owed follows its parameter into other buckets"},
    [CD_LAW_NO_SYNC] =
        {"no_sync",
         "a gradient that came in parts, without reduction between them, is reduced as the whole"},
    [CD_LAW_UNUSED] =
        {"unused",
         "a parameter without gradient counts as zeros, and a bucket left out changes no other"},
    [CD_LAW_JOIN] = {"join", "a rank that has run out of inputs counts as one with zeros"},
    [CD_LAW_LARGE] =
        {"large",
         "every element of a large bucket is reduced as in a small one, the last ones included"},
    [CD_LAW_BYTES] =
        {"bytes", "no more bytes travel than the hook promises and its declared wire dtype takes"},
};

const char *cd_hook_law_name(cd_hook_law law) { return laws[law].name; }

const char *cd_hook_law_title(cd_hook_law law) { return laws[law].title; }

typedef struct battery {
    const cd_hook_subject *subject;
    cd_hook_card *card;
    cd_trial_result *a, *b; /* of the trial at hand, and of what it is compared with */
    /* ranks: the smallest world that the options are for, and the smallest of more than one */
    uint32_t fewest, several;
    cd_trial_place *place; /* shared with the processes that try laws */
    char printed[160];     /* the last line that a process printed */
    size_t done, total;    /* chapters */
} battery;

/* Whether the options have been found not to be for a world of so many ranks. */
static bool is_skipped(const battery *t, uint32_t ranks)
{
    return (t->card->skipped & 1u << ranks) != 0;
}

/* A case of a law; format NULL: it held. */
static void judge(battery *t, cd_hook_law law, const char *format, ...)
{
    cd_hook_line *line = &t->card->lines[law];
    line->case_count++;
    if (format == NULL || line->failed_count++ > 0) return;
    va_list arguments;
    va_start(arguments, format);
    cd_vformat(line->first, sizeof line->first, format, arguments);
    va_end(arguments);
}

static cd_trial trial_of(const battery *t, uint32_t ranks, uint32_t steps, cddp_dtype dtype)
{
    return (cd_trial){.place = t->place,
                      .hook = t->subject->hook,
                      .inner = t->subject->inner,
                      .options = t->subject->options,
                      .ranks = ranks,
                      .steps = steps,
                      .active_steps = ACTIVE,
                      .dtype = dtype};
}

/* What is judged of every run of the hook, by whatever law it is made. */
static void judge_numbers(battery *t, const cd_trial *trial, const cd_trial_result *r)
{
    const char *dtype = cddp_dtype_name(trial->dtype);
    t->card->judged_count += r->judged_count;
    t->card->draw_count += r->draw_count;
    if (r->judged_breach[0] != '\0')
        judge(t, CD_LAW_JUDGED, "%s, %s", dtype, r->judged_breach);
    else if (r->judged_count > 0)
        judge(t, CD_LAW_JUDGED, NULL);
    if (r->draw_breach[0] != '\0')
        judge(t, CD_LAW_DRAWS, "%s, %s", dtype, r->draw_breach);
    else if (r->draw_count > 0)
        judge(t, CD_LAW_DRAWS, NULL);
}

static cddp_status run_trial(battery *t, const cd_trial *trial, cd_trial_result *result,
                             cddp_error *err)
{
    CD_TRY(cd_trial_run(trial, result, err));
    judge_numbers(t, trial, result);
    return CDDP_OK;
}

static cddp_status run_plain(battery *t, const cd_trial *like, cddp_error *err)
{
    cd_trial plain = *like;
    plain.place = NULL;
    plain.hook = &cd_hook_allreduce;
    plain.inner = NULL;
    plain.options = NULL;
    CD_TRY(cd_trial_run(&plain, t->b, err));
    return CDDP_OK;
}

/* ---- the laws ---- */

static bool runs(const cd_trial_result *r) { return r->failure[0] == '\0' && r->shape[0] == '\0'; }

/* What is true for every trial. False: it did not end. */
static bool judge_run(battery *t, const cd_trial *trial, const cd_trial_result *r)
{
    if (r->refused) {
        t->card->refused |= CDDP_DTYPE_BIT(trial->dtype);
        return false;
    }
    if (r->misconfigured) {
        if (t->card->skipped == 0)
            snprintf(t->card->skipped_because, sizeof t->card->skipped_because, "%s", r->failure);
        t->card->skipped |= 1u << trial->ranks;
        return false;
    }
    const char *failure = r->failure[0] != '\0' ? r->failure : r->shape;
    if (failure[0] != '\0')
        judge(t, CD_LAW_RUNS, "%s: %s", cddp_dtype_name(trial->dtype), failure);
    else
        judge(t, CD_LAW_RUNS, NULL);
    if (r->damage[0] != '\0')
        judge(t, CD_LAW_UNTOUCHED, "%s", r->damage);
    else
        judge(t, CD_LAW_UNTOUCHED, NULL);
    return failure[0] == '\0';
}

/* What the hook promised by itself, and how often, is on the card. */
static void judge_stated(battery *t, const cd_trial_result *r)
{
    for (uint32_t i = 0; i < r->stated_count; i++) {
        uint32_t k = 0;
        while (k < t->card->stated_count && strcmp(t->card->stated[k].name, r->stated[i].name) != 0)
            k++;
        if (k == CD_TRIAL_STATED_MAX) break;
        t->card->stated[k] =
            (cd_stated_law){.count = t->card->stated[k].count + r->stated[i].count};
        memcpy(t->card->stated[k].name, r->stated[i].name, sizeof r->stated[i].name);
        t->card->stated_count = k < t->card->stated_count ? t->card->stated_count : k + 1;
    }
    if (r->breach[0] != '\0')
        judge(t, CD_LAW_STATED, "%s", r->breach);
    else if (r->stated_count > 0)
        judge(t, CD_LAW_STATED, NULL);
}

static void judge_replicas(battery *t, const cd_trial *trial)
{
    if ((t->subject->hook->flags & CDDP_HOOK_NO_COMM) != 0) return;
    for (uint32_t s = 0; s < trial->steps; s++) {
        const uint32_t block = t->a->agreement[s] != 0 ? t->a->agreement[s] : trial->ranks;
        t->card->goes_apart = t->card->goes_apart || block < trial->ranks;
        for (uint32_t r = 1; r < trial->ranks; r++)
            for (int64_t e = 0; e < t->a->numel; e++) {
                const uint32_t first = r - r % block;
                if (cd_measure_same_bits(t->a->out[r][s][e], t->a->out[first][s][e])) continue;
                judge(t, CD_LAW_REPLICAS,
                      "%s, step %u, element %lld: rank %u has %.9g, rank %u of %u has %.9g",
                      cddp_dtype_name(trial->dtype), s, (long long)e, first, t->a->out[first][s][e],
                      r, trial->ranks, t->a->out[r][s][e]);
                return;
            }
    }
    judge(t, CD_LAW_REPLICAS, NULL);
}

static void judge_declared(battery *t, const cd_trial *trial)
{
    char at[200];
    bool exact = cd_measure_equal(trial, t->a, t->b, at, sizeof at);
    uint32_t flags = t->subject->hook->flags;
    t->card->is_exact = t->card->is_exact && exact;
    bool may_differ =
        (flags & (CDDP_HOOK_LOSSY | CDDP_HOOK_NO_COMM | CDDP_HOOK_ROUNDED_ONCE)) != 0 &&
        (flags & CDDP_HOOK_EXACT) == 0;
    if (exact || may_differ)
        judge(t, CD_LAW_DECLARED, NULL);
    else
        judge(t, CD_LAW_DECLARED, "%s", at);
}

/* Sums here have at most 8 bits, so their quotients by 3 or 5 lie far from every midpoint: rounding
** to f64 first does no harm. */
static void judge_rounded(battery *t, const cd_trial *trial)
{
    if ((t->subject->hook->flags & CDDP_HOOK_ROUNDED_ONCE) == 0) return;
    for (uint32_t s = 0; s < trial->steps; s++)
        for (int64_t e = 0; e < t->a->numel; e++) {
            unsigned char nearest[sizeof(double)];
            cd_element_set(trial->dtype, nearest, cd_measure_mean(trial, t->a, s, e));
            double wanted = cd_element_get(trial->dtype, nearest), seen = t->a->out[0][s][e];
            if (wanted == seen) continue;
            judge(t, CD_LAW_ROUNDED,
                  "%s, %u ranks, step %u, element %lld is %.9g; the mean, rounded once, is %.9g",
                  cddp_dtype_name(trial->dtype), trial->ranks, s, (long long)e, seen, wanted);
            return;
        }
    judge(t, CD_LAW_ROUNDED, NULL);
}

/* t->b is the plain all-reduce. */
static void judge_promise(battery *t, const cd_trial *trial)
{
    if (t->a->promised == CDDP_PROMISE_NOTHING) return;
    if (t->a->bytes <= t->a->promised)
        judge(t, CD_LAW_BYTES, NULL);
    else
        judge(t, CD_LAW_BYTES,
              "%s, %u ranks: %llu bytes travelled; %llu were promised, where the plain all-reduce "
              "sends %llu",
              cddp_dtype_name(trial->dtype), trial->ranks, (unsigned long long)t->a->bytes,
              (unsigned long long)t->a->promised, (unsigned long long)t->b->bytes);
}

static cddp_status try_same_again(battery *t, const cd_trial *trial, cddp_error *err)
{
    char at[200];
    for (uint64_t schedule = 0; schedule < 4; schedule++) {
        cd_trial again = *trial;
        again.schedule = schedule;
        CD_TRY(run_trial(t, &again, t->b, err));
        cd_hook_law law = schedule == 0 ? CD_LAW_AGAIN : CD_LAW_ORDER;
        if (t->b->failure[0] != '\0')
            judge(t, law, "%s", t->b->failure);
        else if (!cd_measure_equal(trial, t->b, t->a, at, sizeof at))
            judge(t, law, "%s", at);
        else
            judge(t, law, NULL);
    }
    return CDDP_OK;
}

/* A dtype × world size, with and without an empty parameter. */
static cddp_status try_world(battery *t, uint32_t ranks, cddp_dtype dtype, cddp_error *err)
{
    for (uint32_t is_empty = 0; is_empty < 2; is_empty++) {
        cd_trial trial = trial_of(t, ranks, SHORT, dtype);
        trial.empty_vector = is_empty == 1;
        CD_TRY(run_trial(t, &trial, t->a, err));
        if (!judge_run(t, &trial, t->a)) continue;
        judge_replicas(t, &trial);
        judge_stated(t, t->a);
        CD_TRY(run_plain(t, &trial, err));
        judge_declared(t, &trial);
        judge_rounded(t, &trial);
        judge_promise(t, &trial);
        if (!trial.empty_vector) CD_TRY(try_same_again(t, &trial, err));
    }
    return CDDP_OK;
}

static cddp_status try_divisor(battery *t, uint32_t ranks, cddp_error *err)
{
    cd_trial one = trial_of(t, t->fewest, SHORT, CDDP_F32),
             many = trial_of(t, ranks, SHORT, CDDP_F32);
    if (ranks == t->fewest) return CDDP_OK;
    one.values = many.values = CD_TRIAL_ALIKE;
    CD_TRY(run_trial(t, &one, t->b, err));
    CD_TRY(run_trial(t, &many, t->a, err));
    if (!runs(t->a) || !runs(t->b)) return CDDP_OK; /* try_worlds says so */
    double largest = 0.0;
    for (uint32_t s = 0; s < SHORT; s++)
        for (int64_t e = 0; e < t->b->numel; e++) largest = fmax(largest, fabs(t->b->out[0][s][e]));
    /* Once no gradient comes, rounding decides which part of a debt goes first, so that steps may
    ** differ as long as totals do not. */
    for (uint32_t s = 0; s < ACTIVE; s++)
        for (int64_t e = 0; e < t->b->numel; e++) {
            double off = fabs(t->a->out[0][s][e] - t->b->out[0][s][e]);
            if (off <= ALIKE_TOLERANCE * largest) continue;
            judge(t, CD_LAW_DIVISOR,
                  "step %u, element %lld: %s %.6g, %u ranks with the same gradients get %.6g", s,
                  (long long)e, t->fewest == 1 ? "one rank gets" : "a few ranks get",
                  t->b->out[0][s][e], ranks, t->a->out[0][s][e]);
            return CDDP_OK;
        }
    judge(t, CD_LAW_DIVISOR, NULL);
    return CDDP_OK;
}

static void judge_arrival(battery *t, const cd_trial *trial)
{
    for (int64_t e = 0; e < t->a->numel; e++) {
        double in = cd_measure_in(trial, t->a, e);
        bool silent = in != 0.0;
        for (uint32_t s = 0; s < trial->steps; s++) silent = silent && t->a->out[0][s][e] == 0.0;
        if (silent) {
            judge(t, CD_LAW_ARRIVES,
                  "element %lld is 0 in all %u steps, although its gradients sum to %.6g",
                  (long long)e, trial->steps, in);
            return;
        }
    }
    double share = cd_measure_share(trial, t->a, -1, 0);
    if (!(share >= 0.05 && share <= 1.5))
        judge(t, CD_LAW_ARRIVES, "of what went in, %.3g times as much came out", share);
    else
        judge(t, CD_LAW_ARRIVES, NULL);
}

/* One backward alone brings gradients. Whoever sends something else in its place, or nothing, would
** not be noticed among others that bring nearly the same. */
static cddp_status try_alone(battery *t, uint32_t step, cddp_error *err)
{
    cd_trial trial = trial_of(t, t->several, LONG / 2, CDDP_F32); /* a part of it is enough */
    trial.alone = step + 1;
    /* what only one rank has may be nearly twice the mean of two */
    trial.values = CD_TRIAL_ALIKE;
    CD_TRY(run_trial(t, &trial, t->a, err));
    for (uint32_t b = 0; runs(t->a) && b < CD_TRIAL_BUCKETS; b++) {
        double share = cd_measure_share(&trial, t->a, b, step);
        if (share >= 0.05 && share <= 1.5)
            judge(t, CD_LAW_ARRIVES, NULL);
        else
            judge(t, CD_LAW_ARRIVES,
                  "of what backward %u alone brought into bucket %u, %.3g times as much came out",
                  step, b, share);
    }
    return CDDP_OK;
}

/* A hook that sends something in backwards that bring nothing owed it. Once it sends no more, all
** of it must have come. */
static void judge_kept(battery *t, const cd_trial *trial)
{
    double late = cd_measure_largest_from(trial, t->a, ACTIVE),
           last = cd_measure_largest_from(trial, t->a, LONG - QUIET), all = 0.0;
    for (int64_t e = 0; e < t->a->numel; e++) all = fmax(all, fabs(cd_measure_in(trial, t->a, e)));
    if (!(late > 0.0 && last <= KEPT_TOLERANCE / QUIET * all)) return;
    double off = cd_measure_drift(trial, t->a);
    if (off <= KEPT_TOLERANCE)
        judge(t, CD_LAW_KEPT, NULL);
    else
        judge(t, CD_LAW_KEPT,
              "it owed something and sends no more, but all that came out is off by %.2g of the "
              "largest sum that went in",
              off);
}

/* The first step at which a bucket is clearly not the mean; the number of steps when it always
** is. */
static uint32_t first_lossy(const battery *t, const cd_trial *trial, uint32_t bucket)
{
    for (uint32_t s = 0; s < ACTIVE; s++)
        for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++) {
            int64_t numel, from = cd_trial_offset(trial, p, &numel);
            for (int64_t e = from; e < from + numel && cd_trial_bucket_of(trial, p, s) == bucket;
                 e++)
                if (!(fabs(t->a->out[0][s][e] - cd_measure_mean(trial, t->a, s, e)) <= 1e-3))
                    return s;
        }
    return trial->steps;
}

static void judge_phase(battery *t, const cd_trial *trial)
{
    uint32_t first[2] = {first_lossy(t, trial, 0), first_lossy(t, trial, 1)};
    bool begins_exact = first[0] > 0 && first[1] > 0,
         both = first[0] < trial->steps && first[1] < trial->steps;
    if (begins_exact && both && first[0] != first[1])
        judge(t, CD_LAW_PHASE,
              "bucket 0 is exact before step %u, bucket 1 before step %u: count backwards on the "
              "last bucket",
              first[0], first[1]);
    else
        judge(t, CD_LAW_PHASE, NULL);
}

static void measure_loss(battery *t, const cd_trial *trial)
{
    for (uint32_t s = 0; s < ACTIVE; s++) {
        double off = 0.0, largest = 0.0;
        for (int64_t e = 0; e < t->a->numel; e++) {
            off = fmax(off, fabs(t->a->out[0][s][e] - cd_measure_mean(trial, t->a, s, e)));
            largest = fmax(largest, fabs(cd_measure_mean(trial, t->a, s, e)));
        }
        t->card->worst_relative = fmax(t->card->worst_relative, off / largest);
    }
}

static void judge_declared_wire(battery *t, const cd_trial *trial)
{
    uint32_t wire = t->subject->inner == NULL ? t->subject->hook->wire_dtype : 0;
    const bool is_more = t->a->bytes_active > t->b->bytes_active;
    const double plain = (double)(is_more ? t->b->bytes_active : t->b->bytes),
                 own = (double)(is_more ? t->a->bytes_active : t->a->bytes);
    t->card->bytes_factor = own > 0 ? plain / own : INFINITY;
    for (uint32_t d = 0; d < CDDP_DTYPE_COUNT; d++) {
        if (wire != CDDP_DTYPE_BIT(d)) continue;
        uint64_t most =
            (uint64_t)trial->steps * (uint64_t)t->a->numel * cddp_dtype_bytes((cddp_dtype)d);
        if (t->a->bytes > most)
            judge(t, CD_LAW_BYTES, "%llu bytes travelled; %u steps of %lld elements of %s are %llu",
                  (unsigned long long)t->a->bytes, trial->steps, (long long)t->a->numel,
                  cddp_dtype_name((cddp_dtype)d), (unsigned long long)most);
        else
            judge(t, CD_LAW_BYTES, NULL);
    }
}

/* A long run on two ranks, or as few as the options are for, and the same with other buckets from
** the third step on. */
static cddp_status try_long_run(battery *t, cddp_error *err)
{
    cd_trial trial = trial_of(t, t->several, LONG, CDDP_F32);
    CD_TRY(run_trial(t, &trial, t->a, err));
    if (!runs(t->a)) return CDDP_OK;
    CD_TRY(run_plain(t, &trial, err));
    judge_arrival(t, &trial);
    judge_kept(t, &trial);
    judge_stated(t, t->a);
    judge_phase(t, &trial);
    measure_loss(t, &trial);
    judge_promise(t, &trial);
    judge_declared_wire(t, &trial);
    double before = cd_measure_drift(&trial, t->a);
    trial.rebuild_at = 2;
    CD_TRY(run_trial(t, &trial, t->a, err));
    if (!runs(t->a)) {
        judge(t, CD_LAW_REBUILD, "after the rebuild: %s",
              t->a->failure[0] != '\0' ? t->a->failure : t->a->shape);
        return CDDP_OK;
    }
    judge_replicas(t, &trial);
    judge_stated(t, t->a);
    double after = cd_measure_drift(&trial, t->a);
    if (before <= REBUILD_TOLERANCE && !(after <= REBUILD_TOLERANCE))
        judge(t, CD_LAW_REBUILD,
              "all that came out is within %.2g of what went in, but after a rebuild it is off by "
              "%.2g: keep state by parameter",
              before, after);
    else
        judge(t, CD_LAW_REBUILD, NULL);
    return CDDP_OK;
}

/* Whether a rank got a number that is not finite in a bucket, at some step. */
static bool sees(const cd_trial *trial, const cd_trial_result *r, uint32_t rank, uint32_t bucket)
{
    for (uint32_t s = 0; s < trial->steps; s++)
        for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++) {
            int64_t numel, from = cd_trial_offset(trial, p, &numel);
            for (int64_t e = from; e < from + numel && cd_trial_bucket_of(trial, p, s) == bucket;
                 e++)
                if (!isfinite(r->out[rank][s][e])) return true;
        }
    return false;
}

static cddp_status try_overflow(battery *t, cddp_error *err)
{
    cd_trial trial = trial_of(t, t->several, SHORT, CDDP_F32);
    trial.values = CD_TRIAL_OVERFLOWN;
    if ((t->subject->hook->flags & CDDP_HOOK_NO_COMM) != 0) return CDDP_OK;
    CD_TRY(run_trial(t, &trial, t->a, err));
    if (!runs(t->a)) return CDDP_OK; /* to refuse it is to see it */
    const uint32_t last = trial.ranks - 1, block = t->a->agreement[SHORT - 1] != 0
                                                       ? t->a->agreement[SHORT - 1]
                                                       : trial.ranks;
    for (uint32_t b = 0; b < CD_TRIAL_BUCKETS; b++) {
        uint32_t r = last - last % block;
        while (r < trial.ranks && sees(&trial, t->a, r, b)) r++;
        if (r == trial.ranks)
            judge(t, CD_LAW_VISIBLE, NULL);
        else
            judge(t, CD_LAW_VISIBLE,
                  "rank %u has %s in bucket %u, and rank %u gets nothing but finite numbers", last,
                  b == 0 ? "NaN" : "an infinity", b, r);
    }
    return CDDP_OK;
}

static cddp_status try_resume(battery *t, uint32_t swap_at, cddp_error *err)
{
    char at[200];
    cd_trial trial = trial_of(t, t->several, SHORT, CDDP_F32);
    CD_TRY(run_trial(t, &trial, t->b, err));
    if (!runs(t->b)) return CDDP_OK;
    trial.swap_at = swap_at;
    CD_TRY(run_trial(t, &trial, t->a, err));
    judge_stated(t, t->a);
    if (t->a->foreign[0] != '\0')
        judge(t, CD_LAW_FOREIGN, "%s", t->a->foreign);
    else if (t->a->was_offered)
        judge(t, CD_LAW_FOREIGN, NULL);
    if (!runs(t->a))
        judge(t, CD_LAW_RESUME, "resumed before step %u: %s", swap_at, t->a->failure);
    else if (!cd_measure_equal(&trial, t->a, t->b, at, sizeof at))
        judge(t, CD_LAW_RESUME, "resumed before step %u: %s", swap_at, at);
    else
        judge(t, CD_LAW_RESUME, NULL);
    return CDDP_OK;
}

/* ---- under the reducer ---- */

/* Whether somebody's gradient made the result that the reducer wrote back, so that it can be
** compared. */
static bool is_compared(const cd_trial *trial, uint32_t step, uint32_t parameter)
{
    if (trial->lack == CD_TRIAL_LEFT_OUT) return parameter != CD_TRIAL_SCALAR;
    for (uint32_t r = 0; r < trial->ranks; r++)
        if (!cd_trial_is_absent(trial, r, step, parameter)) return true;
    return false;
}

static bool agree_where_present(const cd_trial *trial, const cd_trial_result *a,
                                const cd_trial_result *b, char *at, size_t at_bytes)
{
    for (uint32_t r = 0; r < trial->ranks; r++)
        for (uint32_t s = 0; s < cd_trial_inputs(trial, r); s++)
            for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++) {
                int64_t numel, from = cd_trial_offset(trial, p, &numel);
                for (int64_t e = from; e < from + numel && is_compared(trial, s, p); e++) {
                    if (cd_measure_same_bits(a->out[r][s][e], b->out[r][s][e])) continue;
                    cd_real_format(
                        at, at_bytes,
                        "%s, rank %u of %u, step %u, element %lld is %.9g; with zeros in a "
                        "whole backward it is %.9g",
                        cddp_dtype_name(trial->dtype), r, trial->ranks, s, (long long)e,
                        a->out[r][s][e], b->out[r][s][e]);
                    return false;
                }
            }
    return true;
}

/* The trial and its twin, whose zeros a hook must bear as well. What fails everywhere is the other
** laws'. */
static cddp_status try_ride(battery *t, cd_hook_law law, const cd_trial *trial, cddp_error *err)
{
    char at[240];
    cd_trial twin = *trial;
    twin.fills_up = true;
    CD_TRY(run_trial(t, &twin, t->b, err));
    if (t->b->refused || t->b->misconfigured || t->card->lines[CD_LAW_RUNS].failed_count > 0)
        return CDDP_OK;
    CD_TRY(run_trial(t, trial, t->a, err));
    if (!runs(t->b))
        judge(t, law, "%s, zeros on one rank only: %s", cddp_dtype_name(trial->dtype),
              t->b->failure);
    else if (!runs(t->a))
        judge(t, law, "%s: %s", cddp_dtype_name(trial->dtype), t->a->failure);
    else if (!agree_where_present(trial, t->a, t->b, at, sizeof at))
        judge(t, law, "%s", at);
    else
        judge(t, law, NULL);
    return CDDP_OK;
}

/* Not for a hook that writes where it has no business: a reducer's memory is not guarded as a
** trial's is. */
static cddp_status try_reducer(battery *t, cd_hook_law law, uint32_t ranks, cddp_dtype dtype,
                               cddp_error *err)
{
    if (t->card->lines[CD_LAW_UNTOUCHED].failed_count > 0) return CDDP_OK;
    static const struct {
        cd_hook_law law;
        cd_trial_lack lack;
    } cases[] = {{CD_LAW_NO_SYNC, CD_TRIAL_IN_PARTS},
                 {CD_LAW_UNUSED, CD_TRIAL_UNUSED},
                 {CD_LAW_UNUSED, CD_TRIAL_LEFT_OUT},
                 {CD_LAW_JOIN, CD_TRIAL_UNEVEN}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_trial trial = trial_of(t, ranks, SHORT, dtype);
        if (cases[i].law != law) continue;
        trial.active_steps = SHORT;
        trial.through_reducer = true;
        trial.lack = cases[i].lack;
        CD_TRY(try_ride(t, cases[i].law, &trial, err));
        trial.accumulates = true;
        if (trial.lack == CD_TRIAL_IN_PARTS && t->subject->hook->accumulate != NULL)
            CD_TRY(try_ride(t, cases[i].law, &trial, err));
    }
    return CDDP_OK;
}

static bool all_finite(const cd_trial *trial, const cd_trial_result *r)
{
    for (uint32_t s = 0; s < trial->steps; s++)
        for (int64_t e = 0; e < r->numel; e++)
            if (!isfinite(r->out[0][s][e])) return false;
    return true;
}

static cddp_status try_range(battery *t, cddp_dtype dtype, uint32_t ranks, cddp_error *err)
{
    cd_trial one = trial_of(t, t->fewest, 2, dtype), many = trial_of(t, ranks, 2, dtype);
    one.values = many.values = CD_TRIAL_LARGE;
    CD_TRY(run_trial(t, &one, t->b, err));
    CD_TRY(run_trial(t, &many, t->a, err));
    if (!runs(t->a) || !runs(t->b) || !all_finite(&one, t->b)) return CDDP_OK;
    if (all_finite(&many, t->a))
        judge(t, CD_LAW_RANGE, NULL);
    else
        judge(t, CD_LAW_RANGE,
              "%s: %s with gradients of 32768 gets finite numbers, %u such ranks do not",
              cddp_dtype_name(dtype), t->fewest == 1 ? "one rank" : "a smaller world", ranks);
    return CDDP_OK;
}

/* ---- large buckets ---- */

typedef struct large_case {
    cd_trial trial;
    cd_large large;
} large_case;

static void judge_large(battery *t, const large_case *c, const char *format, ...)
{
    char words[200] = "";
    va_list arguments;
    va_start(arguments, format);
    cd_vformat(words, sizeof words, format, arguments);
    va_end(arguments);
    judge(t, CD_LAW_LARGE, "%s, a bucket of %lld elements: %s", cddp_dtype_name(c->trial.dtype),
          (long long)c->large.numel, words);
}

/* The first element of which two ranks that are to agree have different bits. */
static bool is_alike_large(battery *t, const large_case *c)
{
    for (uint32_t s = 0; s < c->trial.steps && (t->subject->hook->flags & CDDP_HOOK_NO_COMM) == 0;
         s++) {
        const uint32_t block = t->a->agreement[s] != 0 ? t->a->agreement[s] : c->trial.ranks;
        for (uint32_t r = 1; r < c->trial.ranks; r++)
            for (int64_t e = 0; e < c->large.numel; e++) {
                const double first = cd_large_out(&c->trial, &c->large, r - r % block, s, e),
                             own = cd_large_out(&c->trial, &c->large, r, s, e);
                if (cd_measure_same_bits(first, own)) continue;
                judge_large(t, c, "step %u, element %lld: rank %u has %.9g, rank %u has %.9g", s,
                            (long long)e, r - r % block, first, r, own);
                return false;
            }
    }
    return true;
}

/* What knows its result owes nothing, so that no second step needs to show it. */
static bool sends_at_once(const battery *t)
{
    return (t->subject->hook->flags & (CDDP_HOOK_LOSSY | CDDP_HOOK_NO_COMM)) == 0 ||
           (t->subject->hook->flags & CDDP_HOOK_ROUNDED_ONCE) != 0;
}

static bool sends_in_step(const large_case *c, uint32_t step)
{
    for (int64_t e = 0; e < c->large.numel; e++)
        if (cd_large_out(&c->trial, &c->large, 0, step, e) != 0.0) return true;
    return false;
}

/* Element by element against what it must be. Whoever sends all of it at once may compress it, but
** all of it alike. Whoever owes, and sends no more, has sent all of it, to where it belongs. */
static bool is_right_large(battery *t, const large_case *c, const large_case *plain)
{
    const uint32_t flags = t->subject->hook->flags, last = c->trial.steps - 1;
    const bool is_free = (flags & CDDP_HOOK_LOSSY) != 0 && (flags & CDDP_HOOK_ROUNDED_ONCE) == 0;
    if ((flags & CDDP_HOOK_NO_COMM) != 0 || (is_free && (last == 0 || sends_in_step(c, last))))
        return true;
    for (int64_t e = 0; e < c->large.numel; e++) {
        unsigned char nearest[sizeof(double)];
        double mean = cd_large_mean(&c->trial, &c->large, e), out = 0.0;
        for (uint32_t s = 0; s <= last; s++) out += cd_large_out(&c->trial, &c->large, 0, s, e);
        if (!is_free) { /* it knows what it must be */
            if (plain != NULL) mean = cd_large_out(&plain->trial, &plain->large, 0, 0, e);
            cd_element_set(c->trial.dtype, nearest, mean);
            mean = cd_element_get(c->trial.dtype, nearest);
        }
        const bool is_good = !is_free             ? out == mean
                             : c->large.is_sparse ? fabs(out - mean) <= KEPT_TOLERANCE * 2.0
                                                  : out / mean >= 0.05 && out / mean <= 1.5;
        if (is_good) continue;
        judge_large(t, c, "of element %lld %.9g came out; the mean of what went in is %.9g",
                    (long long)e, out, mean);
        return false;
    }
    return true;
}

static cddp_status try_large(battery *t, const large_case *c, large_case *plain, cddp_error *err)
{
    /* The mean over two ranks is exact; over three it depends on what is rounded first. */
    const bool is_plain = (t->subject->hook->flags &
                           (CDDP_HOOK_LOSSY | CDDP_HOOK_NO_COMM | CDDP_HOOK_ROUNDED_ONCE)) == 0 &&
                          c->trial.ranks > 2;
    CD_TRY(cd_large_run(&c->trial, &c->large, t->a, err));
    judge_numbers(t, &c->trial, t->a);
    if (t->a->misconfigured) return CDDP_OK;
    if (t->a->refused) {
        if ((t->card->refused & CDDP_DTYPE_BIT(c->trial.dtype)) == 0 &&
            (t->card->too_large == 0 || c->large.numel < t->card->too_large))
            t->card->too_large = c->large.numel;
        return CDDP_OK;
    }
    if (!runs(t->a) || t->a->damage[0] != '\0') {
        judge_large(t, c, "%s",
                    t->a->failure[0] != '\0' ? t->a->failure
                    : t->a->shape[0] != '\0' ? t->a->shape
                                             : t->a->damage);
        return CDDP_OK;
    }
    judge_stated(t, t->a);
    if (t->a->promised != CDDP_PROMISE_NOTHING && t->a->bytes > t->a->promised)
        judge(t, CD_LAW_BYTES,
              "%s, a bucket of %lld elements: %llu bytes travelled; %llu were promised",
              cddp_dtype_name(c->trial.dtype), (long long)c->large.numel,
              (unsigned long long)t->a->bytes, (unsigned long long)t->a->promised);
    if (!is_alike_large(t, c)) return CDDP_OK;
    if (is_plain) {
        plain->trial.place = NULL;
        plain->trial.hook = &cd_hook_allreduce;
        plain->trial.inner = NULL;
        plain->trial.options = NULL;
        CD_TRY(cd_large_run(&plain->trial, &plain->large, t->b, err));
    }
    if (is_right_large(t, c, is_plain ? plain : NULL)) judge(t, CD_LAW_LARGE, NULL);
    return CDDP_OK;
}

/* With all elements; and with a few, for whoever was seen to owe and to send it in the end (kept),
** of which the former can tell little. */
static cddp_status try_sizes(battery *t, cddp_error *err)
{
    /* around pieces of 1024 and 4096, 16 bits, a MiB of f32 */
    static const int64_t sizes[] = {1023, 1025, 4097, 65537, 262147};
    const cd_hook_line *kept = &t->card->lines[CD_LAW_KEPT];
    const size_t most = (size_t)t->several * 2 * (size_t)sizes[4];
    double *out = malloc(2 * most * sizeof *out);
    cddp_status status = CDDP_OK;
    if (out == NULL) return cd_fail_memory(err, "large buckets");
    for (size_t d = 0; d < 4; d++)
        for (size_t i = 0; i < (dtypes[d] == CDDP_F32 ? 5 : 3);
             i++) { /* what 16 bits cannot count, no dtype makes countable */
            const bool owes = kept->case_count > kept->failed_count,
                       is_both = dtypes[d] == CDDP_F32 && owes && i < 4;
            large_case c = {trial_of(t, t->several, sends_at_once(t) || (owes && i >= 3) ? 1 : 2,
                                     dtypes[d]),
                            {sizes[i], false, out}},
                       plain = c;
            plain.large.out = out + most;
            if (!(is_both && i == 3)) CD_TRY_OUT(try_large(t, &c, &plain, err));
            c.large.is_sparse = plain.large.is_sparse = true;
            c.trial.steps = plain.trial.steps = 4;
            if (is_both) CD_TRY_OUT(try_large(t, &c, &plain, err));
        }
out:
    free(out);
    return status;
}

/* Options may be for some worlds only, as the size of a subgroup is. */
static void take_worlds(battery *t)
{
    size_t first = 0;
    while (first + 1 < WORLDS && is_skipped(t, worlds[first])) first++;
    t->fewest = worlds[first];
    first = first == 0 ? 1 : first;
    while (first + 1 < WORLDS && is_skipped(t, worlds[first])) first++;
    t->several = worlds[first];
}

/* ---- one process for each law ---- */

#define LIMIT_NS UINT64_C(60000000000)
#define LATE_MAX 2 /* then the rest is not tried: each would take as long again */

/* What a process tries, and the law that is broken when it does not come back. */
typedef struct chapter {
    cd_hook_law law;
    cddp_status (*try)(battery *t, cddp_dtype dtype, cddp_error *err);
    cddp_dtype dtype; /* of the worlds; else nothing */
} chapter;

typedef struct errand {
    battery *battery;
    const chapter *chapter;
} errand;

/* In the process: the card goes back whole. */
static cddp_status try_chapter(void *context, size_t task, cd_text *result, cddp_error *err)
{
    const errand *e = context;
    battery *t = e->battery;
    (void)task;
    CD_TRY(e->chapter->try(t, e->chapter->dtype, err));
    cd_text_push_bytes(result, (const char *)t->card, sizeof *t->card);
    return CDDP_OK;
}

/* The last line that is not empty. */
static void keep_printed(void *context, const char *bytes, size_t byte_count)
{
    battery *t = ((const errand *)context)->battery;
    if (t->subject->output != NULL) t->subject->output(t->subject->context, bytes, byte_count);
    size_t length = strlen(t->printed);
    for (size_t i = 0; i < byte_count; i++) {
        if (length > 0 && t->printed[length - 1] == '\n') length = 0;
        if ((bytes[i] != '\n' || length > 0) && length + 1 < sizeof t->printed)
            t->printed[length++] = bytes[i];
        t->printed[length] = '\0';
    }
}

/* "in run on rank 1 of 3, step 2, f32" */
static void print_place(const battery *t, char *text, size_t bytes)
{
    const cd_trial_place *p = t->place;
    text[0] = '\0';
    if (p->function[0] == '\0' || p->dtype >= CDDP_DTYPE_COUNT) return;
    snprintf(text, bytes, " in %.15s, on rank %u of %u, step %u, %s", p->function, p->rank,
             p->ranks, p->step, cddp_dtype_name(p->dtype));
}

static void report_end(battery *t, const chapter *c, const cd_crew_end *end)
{
    char place[100], printed[200] = "", how[120];
    cd_hook_card *card = t->card;
    print_place(t, place, sizeof place);
    t->printed[strcspn(t->printed, "\n")] = '\0';
    cd_text_clean(t->printed);
    if (t->printed[0] != '\0') snprintf(printed, sizeof printed, "; it printed \"%s\"", t->printed);
    if (end->is_late)
        cd_real_format(how, sizeof how, "does not return: it was stopped after %.3g s",
                       (double)t->subject->limit_ns / 1e9);
    else if (end->signal_number != 0)
        snprintf(how, sizeof how, "crashed (%s, signal %d)", cd_os_signal_text(end->signal_number),
                 end->signal_number);
    else
        snprintf(how, sizeof how, "ended the process with code %d", end->exit_code);
    judge(t, c->law, "the hook %s%s%s", how, place, printed);
    card->is_exact = false;
    card->ended_count++;
    card->late_count += end->is_late;
}

static bool is_interrupted(const battery *t)
{
    return t->subject->interrupted != NULL && t->subject->interrupted();
}

static cddp_status take_chapter(void *context, const cd_crew_end *end, bool *is_last,
                                cddp_error *err)
{
    const errand *e = context;
    battery *t = e->battery;
    (void)is_last;
    if (is_interrupted(t)) return CDDP_OK;
    CD_TRY(cd_crew_check_outside(end, "a process that tried the hook", err));
    if (!end->is_whole) {
        report_end(t, e->chapter, end);
        return CDDP_OK;
    }
    if (end->status != CDDP_OK) return cd_fail(err, end->status, "%s", end->message);
    if (end->byte_count == sizeof *t->card) memcpy(t->card, end->bytes, sizeof *t->card);
    return CDDP_OK;
}

static void show_progress(void *context, size_t taken)
{
    const errand *e = context;
    const battery *t = e->battery;
    if (t->subject->progress != NULL)
        t->subject->progress(t->subject->context, t->done + taken, t->total,
                             laws[e->chapter->law].name);
}

static cddp_status run_chapter(battery *t, const chapter *c, cddp_error *err)
{
    errand e = {t, c};
    cd_crew_count count;
    const cd_crew_options options = {.task_count = 1,
                                     .worker_count = 1,
                                     .context = &e,
                                     .work = try_chapter,
                                     .take = take_chapter,
                                     .progress = show_progress,
                                     .output = keep_printed,
                                     .interrupted = t->subject->interrupted,
                                     .limit_ns = t->subject->limit_ns};
    if (is_interrupted(t)) return cd_fail(err, CDDP_E_ABORTED, "interrupted");
    if (t->card->late_count >= LATE_MAX) {
        if (t->card->not_run[0] == '\0')
            snprintf(t->card->not_run, sizeof t->card->not_run,
                     "%s and what comes after it: %u tries took too long", laws[c->law].name,
                     t->card->late_count);
        return CDDP_OK;
    }
    t->printed[0] = '\0';
    *t->place = (cd_trial_place){.function = ""};
    CD_TRY(cd_crew_run(&options, &count, err));
    if (is_interrupted(t)) return cd_fail(err, CDDP_E_ABORTED, "interrupted");
    t->done++;
    return CDDP_OK;
}

static cddp_status try_worlds(battery *t, cddp_dtype dtype, cddp_error *err)
{
    for (size_t w = 0; w < WORLDS; w++) CD_TRY(try_world(t, worlds[w], dtype, err));
    return CDDP_OK;
}

static cddp_status try_divisors(battery *t, cddp_dtype dtype, cddp_error *err)
{
    (void)dtype;
    CD_TRY(try_divisor(t, 3, err));
    CD_TRY(try_divisor(t, 8, err));
    return CDDP_OK;
}

static cddp_status try_arrivals(battery *t, cddp_dtype dtype, cddp_error *err)
{
    (void)dtype;
    CD_TRY(try_long_run(t, err));
    for (uint32_t step = 0; step < SHORT; step++) CD_TRY(try_alone(t, step, err));
    return CDDP_OK;
}

static cddp_status try_overflows(battery *t, cddp_dtype dtype, cddp_error *err)
{
    (void)dtype;
    CD_TRY(try_overflow(t, err));
    return CDDP_OK;
}

static cddp_status try_resumes(battery *t, cddp_dtype dtype, cddp_error *err)
{
    (void)dtype;
    for (uint32_t swap_at = 1; swap_at < SHORT; swap_at += 2) CD_TRY(try_resume(t, swap_at, err));
    return CDDP_OK;
}

/* All dtypes on three ranks, and f32 on others. */
static cddp_status try_reducers(battery *t, cd_hook_law law, cddp_error *err)
{
    const uint32_t usual = is_skipped(t, 3) ? t->several : 3;
    for (size_t d = 0; d < 4; d++) CD_TRY(try_reducer(t, law, usual, dtypes[d], err));
    for (size_t w = 0; w < WORLDS; w++)
        if (worlds[w] != usual && !is_skipped(t, worlds[w]))
            CD_TRY(try_reducer(t, law, worlds[w], CDDP_F32, err));
    return CDDP_OK;
}

static cddp_status try_no_sync(battery *t, cddp_dtype dtype, cddp_error *err)
{
    (void)dtype;
    CD_TRY(try_reducers(t, CD_LAW_NO_SYNC, err));
    return CDDP_OK;
}

static cddp_status try_unused(battery *t, cddp_dtype dtype, cddp_error *err)
{
    (void)dtype;
    CD_TRY(try_reducers(t, CD_LAW_UNUSED, err));
    return CDDP_OK;
}

static cddp_status try_join(battery *t, cddp_dtype dtype, cddp_error *err)
{
    (void)dtype;
    CD_TRY(try_reducers(t, CD_LAW_JOIN, err));
    return CDDP_OK;
}

static cddp_status try_large_buckets(battery *t, cddp_dtype dtype, cddp_error *err)
{
    (void)dtype;
    CD_TRY(try_sizes(t, err));
    return CDDP_OK;
}

static cddp_status try_ranges(battery *t, cddp_dtype dtype, cddp_error *err)
{
    (void)dtype;
    for (uint32_t ranks = 3; ranks <= 8; ranks += 5) {
        CD_TRY(try_range(t, CDDP_F32, ranks, err));
        CD_TRY(try_range(t, CDDP_F16, ranks, err));
    }
    return CDDP_OK;
}

static cddp_status run_all(battery *t, cddp_error *err)
{
    static const chapter chapters[] = {
        {CD_LAW_DIVISOR, try_divisors, 0},  {CD_LAW_ARRIVES, try_arrivals, 0},
        {CD_LAW_VISIBLE, try_overflows, 0}, {CD_LAW_RESUME, try_resumes, 0},
        {CD_LAW_NO_SYNC, try_no_sync, 0},   {CD_LAW_UNUSED, try_unused, 0},
        {CD_LAW_JOIN, try_join, 0},         {CD_LAW_LARGE, try_large_buckets, 0},
        {CD_LAW_RANGE, try_ranges, 0}};
    t->total = 4 + sizeof chapters / sizeof chapters[0];
    for (size_t d = 0; d < 4; d++)
        CD_TRY(run_chapter(t, &(chapter){CD_LAW_RUNS, try_worlds, dtypes[d]}, err));
    take_worlds(t);
    if (is_skipped(t, t->several))
        return cd_fail(err, CDDP_E_CONFIG, "%s", t->card->skipped_because);
    for (size_t i = 0; i < sizeof chapters / sizeof chapters[0]; i++)
        CD_TRY(run_chapter(t, &chapters[i], err));
    return CDDP_OK;
}

cddp_status cd_hook_battery_run(const cd_hook_subject *subject, cd_hook_card *card, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_hook_subject limited = *subject;
    void *shared = NULL;
    if (limited.limit_ns == 0) limited.limit_ns = LIMIT_NS;
    battery t = {.subject = &limited, .card = card, .fewest = 1, .several = 2};
    *card = (cd_hook_card){.is_exact = true};
    t.a = calloc(1, sizeof *t.a);
    t.b = calloc(1, sizeof *t.b);
    if (t.a == NULL || t.b == NULL) {
        status = cd_fail_memory(err, "the trials of hook %s", subject->hook->name);
        goto out;
    }
    CD_TRY_OUT(cd_os_shared_open(sizeof *t.place, &shared, err));
    t.place = shared;
    CD_TRY_OUT(run_all(&t, err));
out:
    cd_os_shared_close(shared, sizeof *t.place);
    free(t.a);
    free(t.b);
    return status;
}
