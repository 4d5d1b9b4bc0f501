/* SPDX-License-Identifier: Apache-2.0 */
/* Compares a run with what its plan expects.
**
** A plan that expects nothing special has to be verified: no finding, no failed rank, everything it
** claims to exercise exercised. A plan that expects findings or an error is met only by exactly
** these: the first finding must be one that it names, and no check that it does not name may
** report.
*/
#include "core/run/verdict.h"

#include "core/base/error.h"
#include "core/base/rank_list.h"
#include "core/plan/keys.h"
#include "core/plan/own_messages.h"

#include <string.h>

#define RANKS_COMPARED 256 /* in larger worlds words are not compared each with each */

typedef struct measure {
    const cddp_plan *plan;
    const char *refusal;         /* NULL: it was run */
    const cd_coverage *coverage; /* NULL: nothing was run */
    const cd_tap *tap;           /* the same */
    const cd_judges *judges;     /* of several: each has its own coverage. NULL: none */
    bool is_observed;
    cd_arena *arena;
    cddp_verdict *verdict;
    bool *is_exhausted; /* there was no memory to say what is wrong */
} measure;

/* A mismatch is a text, and NULL means "none". So a text that could not be allocated must not pass
** as none. */
static const char *reported(const measure *m, const char *words)
{
    *m->is_exhausted |= words == NULL;
    return words;
}

static bool texts_have(const cddp_text_list *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i], text) == 0) return true;
    }
    return false;
}

static bool number_fits(int64_t expected, int64_t actual)
{
    return expected == CDDP_PLAN_UNSET || expected == actual;
}

static bool concerns(const cddp_finding *finding, int64_t rank)
{
    bool is_listed = finding->rank == rank;
    for (size_t i = 0; !is_listed && i < finding->rank_count; i++)
        is_listed = finding->ranks[i] == rank;
    return is_listed;
}

static bool finding_fits(const cddp_plan_finding *expected, const cddp_finding *finding)
{
    const bool blames = expected->rank == CDDP_PLAN_UNSET || concerns(finding, expected->rank);
    const bool has_words = expected->words == NULL ||
                           strstr(finding->title, expected->words) != NULL ||
                           strstr(finding->expected, expected->words) != NULL ||
                           strstr(finding->actual, expected->words) != NULL;
    const bool is_of =
        expected->wrapper == NULL ||
        (finding->wrapper != NULL && strcmp(expected->wrapper, finding->wrapper) == 0);
    return strcmp(expected->check, finding->check) == 0 && blames && is_of &&
           number_fits(expected->step, finding->step) &&
           number_fits(expected->bucket, finding->bucket) && has_words &&
           (expected->parameter == NULL || strcmp(expected->parameter, finding->parameter) == 0);
}

static bool is_expected(const cddp_plan_expect *expect, const cddp_finding *finding)
{
    for (size_t i = 0; i < expect->finding_count; i++) {
        if (finding_fits(&expect->findings[i], finding)) return true;
    }
    return false;
}

static bool check_is_named(const cddp_plan_expect *expect, const char *check)
{
    for (size_t i = 0; i < expect->finding_count; i++) {
        if (strcmp(expect->findings[i].check, check) == 0) return true;
    }
    return texts_have(&expect->also, check);
}

/* NULL, or what is missing or too much among the findings. */
static const char *compare_findings(const measure *m)
{
    const cddp_plan_expect *expect = &m->plan->expect;
    const cddp_verdict *v = m->verdict;
    for (size_t i = 0; i < expect->finding_count; i++) {
        bool seen = false;
        for (size_t k = 0; k < v->finding_count; k++)
            seen |= finding_fits(&expect->findings[i], &v->findings[k]);
        if (!seen) {
            return reported(m, cd_arena_printf(m->arena, "the expected finding %s%s%s did not come",
                                               expect->findings[i].check,
                                               expect->findings[i].parameter != NULL ? " of " : "",
                                               expect->findings[i].parameter != NULL
                                                   ? expect->findings[i].parameter
                                                   : ""));
        }
    }
    if (expect->finding_count > 0 && v->finding_count > 0 &&
        !is_expected(expect, &v->findings[0])) {
        return reported(m, cd_arena_printf(m->arena, "another finding came first: %s",
                                           v->findings[0].check));
    }
    for (size_t i = 0; i < v->finding_count; i++) {
        /* a report shows the first finding, and of later ones the check alone */
        if (!check_is_named(expect, v->findings[i].check)) {
            return reported(m, cd_arena_printf(m->arena, "%s was not expected to report%s%s",
                                               v->findings[i].check, i > 0 ? ": " : "",
                                               i > 0 ? v->findings[i].title : ""));
        }
    }
    return NULL;
}

static bool rank_failed(const cddp_rank_result *result)
{
    return result->end != CDDP_RANK_RETURNED || result->status != CDDP_OK;
}

static const char *rank_words(const cddp_rank_result *result)
{
    switch (result->end) {
    case CDDP_RANK_RETURNED:
        return result->error.message;
    case CDDP_RANK_KILLED:
        return "it was killed";
    case CDDP_RANK_HUNG:
        return "it waited for ever";
    case CDDP_RANK_CRASHED:
        return cd_own_message_get(CD_OWN_NO_RESULT);
    case CDDP_RANK_INTERRUPTED:
        return cd_own_message_get(CD_OWN_INTERRUPTED);
    }
    return "";
}

static bool are_alike(const cddp_verdict *v, size_t a, size_t b)
{
    return cd_rank_words_are_alike(rank_words(&v->ranks[a].result), (uint32_t)a,
                                   rank_words(&v->ranks[b].result), (uint32_t)b);
}

/* Whether all ranks failed, and with the same words. */
static bool all_fail_alike(const cddp_verdict *v)
{
    for (size_t i = 0; i < v->rank_count; i++)
        if (!rank_failed(&v->ranks[i].result) || !are_alike(v, i, 0)) return false;
    return v->rank_count > 1;
}

/* It ended in the way of a rank that others kept from going on. */
static bool may_follow(const cddp_rank_result *result)
{
    const bool has_lost = result->status == CDDP_E_ABORTED || result->status == CDDP_E_BACKEND ||
                          result->status == CDDP_E_IO || result->status == CDDP_E_TIMEOUT;
    return result->end == CDDP_RANK_HUNG || result->end == CDDP_RANK_INTERRUPTED ||
           (result->end == CDDP_RANK_RETURNED && has_lost);
}

/* How many ranks failed with the words of this one, itself included. */
static size_t count_alike(const cddp_verdict *v, size_t index)
{
    size_t count = 0;
    for (size_t i = 0; i < v->rank_count; i++)
        count += rank_failed(&v->ranks[i].result) && are_alike(v, i, index);
    return count;
}

/* NULL, or the rank whose failure is the cause, in words: one that no other rank explains, and of
** several the one whose words the fewest share. */
static const char *first_failure(const measure *m)
{
    const cddp_verdict *v = m->verdict;
    const cddp_rank_result *cause = NULL;
    size_t rank = 0, alike = 0;
    if (all_fail_alike(v))
        return reported(m, cd_arena_printf(m->arena, "the ranks did not finish: %s",
                                           rank_words(&v->ranks[0].result)));
    for (size_t i = 0; i < v->rank_count; i++) {
        const cddp_rank_result *result = &v->ranks[i].result;
        if (!rank_failed(result) || (cause != NULL && may_follow(result) && !may_follow(cause)))
            continue;
        const bool is_better = cause == NULL || (may_follow(cause) && !may_follow(result));
        const size_t count = v->rank_count <= RANKS_COMPARED ? count_alike(v, i) : 0;
        if (!is_better && count >= alike) continue;
        cause = result;
        rank = i;
        alike = count;
    }
    if (cause == NULL) return NULL;
    return reported(m, cd_arena_printf(m->arena, "rank %zu did not finish: %s", rank,
                                       rank_words(cause)));
}

/* Every rank ended by itself because its settings are invalid: nothing was wrong with the training,
** it could not be done. */
static bool settings_are_invalid(const cddp_verdict *v)
{
    for (size_t i = 0; i < v->rank_count; i++) {
        const cddp_rank_result *result = &v->ranks[i].result;
        if (result->end != CDDP_RANK_RETURNED || result->status != CDDP_E_CONFIG) return false;
    }
    return v->rank_count > 0;
}

/* The verifier failed, or its environment: not what the plan expects of the run. */
static bool is_own_failure(const cddp_rank_result *result)
{
    static const char *const judges[] = {"core/oracle/", "core/reference/", "core/check/",
                                         "core/run/"};
    const char *from = result->error.frame_count > 0 ? result->error.frames[0].file : NULL;
    bool is = result->end == CDDP_RANK_INTERRUPTED || result->status == CDDP_E_NOMEM;
    for (size_t i = 0; from != NULL && i < sizeof judges / sizeof judges[0]; i++)
        is = is || strstr(from, judges[i]) != NULL;
    return is;
}

/* A refusal of the plan is expected by the key that it is about. So words for an error of the run
** are not satisfied by a plan that was never run, and no words by a refusal of the expectation. */
static bool expects_refusal(const measure *m)
{
    const cddp_text_list *error = &m->plan->expect.error;
    for (size_t i = 0; i < error->count; i++) {
        if (cd_key_find_path(error->items[i]) != NULL &&
            strncmp(error->items[i], "expect.", strlen("expect.")) != 0 &&
            strstr(m->refusal, error->items[i]) != NULL)
            return true;
    }
    return false;
}

/* NULL, or the words that no rank's error contains. */
static const char *missing_error(const measure *m)
{
    const cddp_plan_expect *expect = &m->plan->expect;
    for (size_t i = 0; i < expect->error.count; i++) {
        bool seen = m->refusal != NULL && strstr(m->refusal, expect->error.items[i]) != NULL;
        for (size_t k = 0; k < m->verdict->rank_count; k++) {
            const cddp_rank_result *result = &m->verdict->ranks[k].result;
            seen |= rank_failed(result) && !is_own_failure(result) &&
                    strstr(rank_words(result), expect->error.items[i]) != NULL;
        }
        if (!seen) {
            const char *failure = first_failure(m);
            return reported(m, cd_arena_printf(m->arena,
                                               "no rank ended with an error containing '%s'%s%s",
                                               expect->error.items[i], failure != NULL ? "; " : "",
                                               failure != NULL ? failure : ""));
        }
    }
    return NULL;
}

/* NULL, or a claim that the run did not bear out. */
static const char *missing_claim(const measure *m)
{
    const cddp_verdict *v = m->verdict;
    for (size_t i = 0; i < m->plan->expect.exercised.count; i++) {
        const char *claim = m->plan->expect.exercised.items[i];
        bool seen = false;
        for (size_t k = 0; k < v->exercise_count; k++)
            seen |= strcmp(v->exercises[k].check, claim) == 0;
        if (!seen) return reported(m, cd_arena_printf(m->arena, "%s had nothing to judge", claim));
    }
    for (size_t i = 0; i < m->plan->expect.marks.count; i++) {
        const char *mark = m->plan->expect.marks.items[i];
        bool seen = false;
        for (size_t k = 0; k < v->mark_count; k++) seen |= strcmp(v->marks[k].name, mark) == 0;
        if (!seen) return reported(m, cd_arena_printf(m->arena, "'%s' never happened", mark));
    }
    /* A check that found something had something to judge. */
    return v->exercise_count == 0 && v->finding_count == 0
               ? cd_own_message_get(CD_OWN_NOTHING_TO_JUDGE)
               : NULL;
}

/* NULL, or a fault of the plan that did not strike. */
static const char *missing_fault(const measure *m)
{
    return m->tap == NULL ? NULL
                          : cd_strikes_find_missing(&m->tap->strikes, m->verdict->time_ns, m->arena,
                                                    m->is_exhausted);
}

static bool has_several(const measure *m) { return m->judges != NULL && m->judges->count > 1; }

/* NULL, or what was not compared although the plan owes it. */
static const char *missing_comparison(const measure *m)
{
    if (m->coverage == NULL) return NULL;
    const bool is_observed = m->is_observed || m->coverage->owing_ranks > 0;
    const uint64_t ranks = is_observed ? m->plan->world.size : 0;
    if (!has_several(m)) return cd_coverage_find_gap(m->coverage, ranks, m->arena, m->is_exhausted);
    /* what was compared too often of one wrapper is not owed by another */
    for (size_t i = 0; i < m->judges->count; i++) {
        const cd_judges_one *one = &m->judges->items[i];
        const char *gap = cd_coverage_find_gap(&one->coverage, ranks, m->arena, m->is_exhausted);
        if (gap != NULL)
            return reported(m, cd_arena_printf(m->arena, "wrapper '%s': %s", one->wrapper, gap));
    }
    return NULL;
}

static bool was_exercised(const cddp_verdict *v, const char *check)
{
    for (size_t i = 0; i < v->exercise_count; i++)
        if (strcmp(v->exercises[i].check, check) == 0) return true;
    return false;
}

/* What stands behind the answer: a trace without values shows order alone. */
static const char *print_proven_of(const measure *m, const cd_coverage *coverage)
{
    static const uint64_t none[CD_LINK_COUNT];
    const uint64_t *made = coverage != NULL ? coverage->made : none;
    const bool values = made[CD_LINK_MATHEMATICS] + made[CD_LINK_REDUCTION] > 0;
    const bool updates = made[CD_LINK_UPDATE] + made[CD_LINK_SHARE] > 0;
    const bool order = was_exercised(m->verdict, "I-ORDER"),
               liveness = was_exercised(m->verdict, "I-LIVE");
    if (!values && !updates)
        return order ? (liveness ? "order and liveness only" : "order only") : "no values";
    /* a comm hook that rounds or leaves out: its averages are compared where it does not yet */
    const bool is_lossy = made[CD_LINK_LAW] > 0 && coverage->owed[CD_LINK_MATHEMATICS] == 0 &&
                          made[CD_LINK_REDUCTION] < made[CD_LINK_PRESENCE];
    const bool is_bounded = coverage != NULL && coverage->given_up[CD_LINK_SUM] > 0;
    const char *averages = is_lossy     ? "; averages of the hook by its laws alone"
                           : !values    ? "; no values of averages"
                           : is_bounded ? "; sums in half types by their bounds alone"
                                        : "";
    return reported(m, cd_arena_printf(m->arena, "%s%s%s%s%s%s", values ? "values" : "",
                                       values && updates ? ", " : "", updates ? "updates" : "",
                                       order ? ", order" : "", liveness ? ", liveness" : "",
                                       averages));
}

static const char *print_proven(const measure *m)
{
    const char *words =
        print_proven_of(m, has_several(m) ? &m->judges->items[0].coverage : m->coverage);
    bool differ = false;
    for (size_t i = 1; words != NULL && has_several(m) && i < m->judges->count; i++) {
        const char *other = print_proven_of(m, &m->judges->items[i].coverage);
        differ |= other == NULL || strcmp(other, words) != 0;
    }
    const char *all = differ ? "" : words;
    for (size_t i = 0; all != NULL && differ && i < m->judges->count; i++) {
        const cd_judges_one *one = &m->judges->items[i];
        const char *own = print_proven_of(m, &one->coverage);
        all = own == NULL ? NULL
                          : cd_arena_printf(m->arena, "%s%s%s: %s", all, i > 0 ? "; " : "",
                                            one->wrapper, own);
    }
    return reported(m, all);
}

/* A summary in words of the run; NULL: there was no memory for it. */
static cddp_status conclude_with(const measure *m, cddp_outcome outcome, const char *summary,
                                 const char *reason, cddp_error *err)
{
    if (summary == NULL || reason == NULL) return cd_fail_memory(err, "a verdict");
    m->verdict->outcome = outcome;
    m->verdict->summary = summary;
    m->verdict->reason = reason;
    return CDDP_OK;
}

/* A summary in the verifier's words, which no expectation may name. */
static cddp_status conclude(const measure *m, cddp_outcome outcome, cd_own_message summary,
                            const char *reason, cddp_error *err)
{
    return CD_PASS(conclude_with(m, outcome, cd_own_message_get(summary), reason, err));
}

static cddp_status refuse_settings(const measure *m, cddp_error *err)
{
    return CD_PASS(conclude_with(m, CDDP_OUTCOME_ERROR, rank_words(&m->verdict->ranks[0].result),
                                 cd_own_message_get(CD_OWN_RANKS_REFUSE), err));
}

static cddp_status measure_verified(const measure *m, cddp_error *err)
{
    const cddp_verdict *v = m->verdict;
    if (m->refusal != NULL)
        return CD_PASS(conclude(m, CDDP_OUTCOME_ERROR, CD_OWN_CONTRADICTION, m->refusal, err));
    if (v->finding_count > 0) {
        const cddp_finding *first = &v->findings[0];
        return CD_PASS(
            conclude_with(m, CDDP_OUTCOME_FINDINGS,
                          cd_arena_printf(m->arena, "%s: %s", first->check, first->title),
                          cd_arena_printf(m->arena, "%zu finding%s", v->finding_count,
                                          v->finding_count > 1 ? "s" : ""),
                          err));
    }
    const char *failure = first_failure(m);
    if (settings_are_invalid(v)) return CD_PASS(refuse_settings(m, err));
    if (failure != NULL)
        return CD_PASS(conclude_with(m, CDDP_OUTCOME_FINDINGS, failure,
                                     cd_own_message_get(CD_OWN_RANK_FAILED), err));
    const char *claim = missing_claim(m);
    if (claim != NULL)
        return CD_PASS(conclude(m, CDDP_OUTCOME_INCONCLUSIVE, CD_OWN_NOT_EXERCISED, claim, err));
    const char *gap = missing_comparison(m);
    if (gap != NULL)
        return CD_PASS(conclude(m, CDDP_OUTCOME_INCONCLUSIVE, CD_OWN_JUDGED_LESS, gap, err));
    const char *fault = missing_fault(m);
    if (fault != NULL)
        return CD_PASS(conclude(m, CDDP_OUTCOME_INCONCLUSIVE, CD_OWN_NOT_STRUCK, fault, err));
    m->verdict->proven = print_proven(m);
    return CD_PASS(conclude(m, CDDP_OUTCOME_VERIFIED, CD_OWN_VERIFIED, "", err));
}

static cddp_status measure_expected(const measure *m, cddp_error *err)
{
    const bool wants_error = m->plan->expect.verdict == CDDP_EXPECT_ERROR;
    const char *wrong = compare_findings(m);
    if (m->refusal != NULL && !(wants_error && expects_refusal(m)))
        return CD_PASS(conclude(m, CDDP_OUTCOME_ERROR, CD_OWN_CONTRADICTION, m->refusal, err));
    if (m->verdict->finding_count == 0 && !wants_error && settings_are_invalid(m->verdict))
        return CD_PASS(refuse_settings(m, err));
    wrong = wrong == NULL && wants_error ? missing_error(m) : wrong;
    const char *fault = m->refusal == NULL ? missing_fault(m) : NULL;
    /* nothing happened because the fault did not */
    const bool is_quiet = m->verdict->finding_count == 0 && first_failure(m) == NULL;
    if (wrong != NULL && (fault == NULL || !is_quiet)) {
        return CD_PASS(conclude(m, CDDP_OUTCOME_FINDINGS,
                                wants_error ? CD_OWN_NOT_THE_ERROR : CD_OWN_NOT_THE_FINDINGS, wrong,
                                err));
    }
    const char *claim = m->refusal == NULL ? missing_claim(m) : NULL;
    if (claim != NULL)
        return CD_PASS(conclude(m, CDDP_OUTCOME_INCONCLUSIVE, CD_OWN_NOT_EXERCISED, claim, err));
    if (fault != NULL)
        return CD_PASS(conclude(m, CDDP_OUTCOME_INCONCLUSIVE, CD_OWN_NOT_STRUCK, fault, err));
    m->verdict->as_expected = true;
    const char *what = wants_error ? (m->refusal != NULL ? m->refusal : first_failure(m))
                                   : m->verdict->findings[0].title;
    return CD_PASS(
        conclude_with(m, CDDP_OUTCOME_VERIFIED,
                      cd_arena_printf(m->arena, "%s%s", cd_own_message_get(CD_OWN_AS_EXPECTED),
                                      what != NULL ? what : ""),
                      "", err));
}

bool cd_verdict_lacks_faults_only(const cddp_verdict *verdict)
{
    return verdict->outcome == CDDP_OUTCOME_INCONCLUSIVE &&
           strcmp(verdict->summary, cd_own_message_get(CD_OWN_NOT_STRUCK)) == 0;
}

cddp_status cd_verdict_measure(const cd_verdict_input *input, cd_arena *arena,
                               cddp_verdict *verdict, cddp_error *err)
{
    bool is_exhausted = false;
    const measure m = {.plan = input->plan,
                       /* the caller's goes before the verdict does */
                       .refusal =
                           input->refusal != NULL ? cd_arena_strdup(arena, input->refusal) : NULL,
                       .coverage = input->tap != NULL ? &input->tap->coverage : NULL,
                       .tap = input->tap,
                       .judges = input->judges,
                       .is_observed = input->is_observed,
                       .arena = arena,
                       .verdict = verdict,
                       .is_exhausted = &is_exhausted};
    if (input->refusal != NULL && m.refusal == NULL) return cd_fail_memory(err, "a verdict");
    CD_TRY(input->plan->expect.verdict == CDDP_EXPECT_VERIFIED ? measure_verified(&m, err)
                                                               : measure_expected(&m, err));
    return is_exhausted ? cd_fail_memory(err, "a verdict") : CDDP_OK;
}
