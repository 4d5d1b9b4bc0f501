/* SPDX-License-Identifier: Apache-2.0 */
/* Soundness: a valid training program has no finding, whatever its settings, and watching it
** changes nothing.
**
** Plans are drawn feature by feature from one seed. Combinations that the plan refuses, or that
** the table of rules below excludes, are drawn again. Every plan runs on the simulator twice:
** judged and compared with the oracle, and unwatched. The first must have no finding and no failing
** rank; both must emit the same events, comparisons apart. At the end it prints which pairs of
** feature levels have met.
*/
#include "verify/worlds/compose.h"
#include "core/trace/event.h"
#include "core/trace/tracer.h"
#include "tests/property/features.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#ifndef SOUNDNESS_COUNT
#define SOUNDNESS_COUNT 300
#endif
#define RANKS_MAX 8
/* ---- what a run emits, what its judge says apart ---- */

static bool is_mark_of_the_judge(const char *text)
{
    static const char *const marks[] = {CD_TRACER_SHOWN_SUM, CD_TRACER_SHOWN_OUTPUT,
                                        CD_TRACER_SHOWN_FORM, CD_TRACER_WHOLE_SHARE,
                                        CD_TRACER_ENTERED};
    bool found = false;
    for (size_t i = 0; text != NULL && i < sizeof marks / sizeof marks[0]; i++)
        found = found || strcmp(text, marks[i]) == 0;
    return found;
}

static bool is_of_the_judge(const cddp_event *event)
{
    switch (event->kind) {
    case CDDP_EV_compare:
    case CDDP_EV_uncompared:
    case CDDP_EV_unjudged:
    case CDDP_EV_owed:
    case CDDP_EV_expected:
    case CDDP_EV_decision:
    case CDDP_EV_bucket_law:
    case CDDP_EV_bucket_sum:
    case CDDP_EV_bucket_slice:
    case CDDP_EV_bucket_shown:
    case CDDP_EV_shown:
    case CDDP_EV_misshown:
    case CDDP_EV_contribution:
        return true;
    case CDDP_EV_mark:
        return is_mark_of_the_judge(event->text);
    case CDDP_EV_hook_law: /* of an average: no bucket's, and no hook's */
        return event->as.hook_law.bucket < 0;
    default:
        return false;
    }
}

typedef struct watch {
    uint64_t digests[RANKS_MAX + 1];
} watch;

static void watch_event(void *self, const cddp_event *event)
{
    watch *w = self;
    size_t rank = event->rank < RANKS_MAX ? event->rank : RANKS_MAX;
    if (!is_of_the_judge(event)) w->digests[rank] = cd_event_digest(w->digests[rank], event, false);
}

typedef struct outcome {
    watch watch;
    cddp_verdict *verdict;
} outcome;

static outcome run(const cddp_plan *plan, const cddp_registry *registry, bool watched)
{
    cddp_error err = CDDP_ERROR_INIT;
    outcome o = {0};
    cd_compose *compose = NULL;
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &o.watch, watch_event, NULL};
    const cddp_trace_sink *sinks[] = {&sink};
    cd_compose_options options = {.plan = plan, .registry = registry, .level = CDDP_TRACE_DIGEST};
    cddp_run_options how = cddp_run_options_default();
    assert_ok(cd_compose_open(&options, &compose, &err), &err);
    cd_compose_fill(compose, &how);
    how.registry = registry;
    how.judge = how.oracle = watched;
    how.sinks = sinks;
    how.sink_count = 1;
    assert_ok(cddp_run(&how, &o.verdict, &err), &err);
    cd_compose_close(compose);
    return o;
}

static void print_draw(const feature_draw *d, const cddp_verdict *v)
{
    print_error("seed %llu:", (unsigned long long)d->seed);
    for (size_t f = 0; f < FEATURES; f++)
        if (feature_value(d, f)[0] != '\0')
            print_error(" --set %s=%s", features[f].key, feature_value(d, f));
    print_error("\n");
    for (size_t i = 0; i < v->finding_count; i++)
        print_error("  %s step %u: %s\n    expected %s\n    actual   %s\n", v->findings[i].check,
                    v->findings[i].step, v->findings[i].title, v->findings[i].expected,
                    v->findings[i].actual);
    if (v->outcome == CDDP_OUTCOME_INCONCLUSIVE)
        print_error("  inconclusive: %s: %s\n", v->summary, v->reason);
    for (size_t i = 0; i < v->rank_count; i++)
        if (v->ranks[i].result.status != CDDP_OK)
            print_error("  rank %zu: %s\n", i, v->ranks[i].result.error.message);
}

static bool is_silent(const cddp_verdict *v)
{
    bool silent = v->finding_count == 0 && v->outcome != CDDP_OUTCOME_INCONCLUSIVE;
    for (size_t i = 0; i < v->rank_count; i++)
        silent = silent && v->ranks[i].result.status == CDDP_OK;
    return silent;
}

static bool met[FEATURES][LEVELS_MAX][FEATURES][LEVELS_MAX];

static void report_pairs(size_t runs)
{
    size_t seen = 0, all = 0;
    for (size_t a = 0; a < FEATURES; a++)
        for (size_t b = a + 1; b < FEATURES; b++)
            for (uint32_t i = 0; i < feature_level_count(&features[a]); i++)
                for (uint32_t j = 0; j < feature_level_count(&features[b]); j++) {
                    all++;
                    seen += met[a][i][b][j];
                }
    print_message("%zu plans; %zu of %zu pairs of levels met (some exclude each other)\n", runs,
                  seen, all);
    assert_true(seen * 10 > all * 8);
}

TEST(soundness, no_valid_program_has_a_finding_and_watching_changes_nothing)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    size_t refused = 0, failed = 0;
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    for (size_t i = 0; i < SOUNDNESS_COUNT; i++) {
        feature_draw d;
        feature_draw_any(&prng, &d);
        cddp_plan *plan = feature_plan(&d);
        if (plan == NULL) {
            refused++;
            continue;
        }
        outcome watched = run(plan, registry, true), alone = run(plan, registry, false);
        bool same = memcmp(&watched.watch, &alone.watch, sizeof watched.watch) == 0,
             silent = is_silent(watched.verdict);
        if (!silent || !same) {
            if (failed++ < 5) print_draw(&d, watched.verdict);
            if (!same) print_error("  the unwatched run emits other events\n");
        }
        for (size_t a = 0; a < FEATURES; a++)
            for (size_t b = a + 1; b < FEATURES; b++) met[a][d.level[a]][b][d.level[b]] = true;
        cddp_verdict_destroy(watched.verdict);
        cddp_verdict_destroy(alone.verdict);
        cddp_plan_destroy(plan);
    }
    cddp_registry_destroy(registry);
    print_message("%zu plans refused by their own check, %zu failed\n", refused, failed);
    assert_int_equal(failed, 0);
    assert_true(refused * 4 < SOUNDNESS_COUNT);
    report_pairs(SOUNDNESS_COUNT - refused);
}

TEST_MAIN()
