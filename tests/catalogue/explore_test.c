/* SPDX-License-Identifier: Apache-2.0 */
/* Explores every scenario under a few dozen schedules: no false alarm in any of them.
**
**     explore_test BUDGET SCENARIO…
**
** A scenario fails when some schedule does not end as it expects, unless the table below says why
** its end depends on the schedule. A row that is no longer needed fails as well. The last test is a
** planted hook that reads memory in flight: some schedule must show it.
*/
#include "cddp/plugin.h"
#include "core/base/error.h"
#include "scenarios/reader/reader.h"
#include "verify/explore/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tests/plants/hooks.c */
extern const cddp_plugin cddp_plugin_v1;

/* What a scenario expects under its schedule alone, and not under all of them. */
static const struct {
    const char *path, *reason;
} exceptions[] = {
    /* clang-format off */
    {"scenarios/buckets/delayed_all_reduce.toml", "the delayed all-reduce is issued when one parameter arrives: ranks with other orders issue it elsewhere (I-ORDER, rightly)"},
    {"scenarios/buckets/delayed_and_last.toml", "as delayed_all_reduce"},
    {"scenarios/buckets/delayed_under_no_sync.toml", "as delayed_all_reduce"},
    {"scenarios/buckets/delayed_and_evaluated.toml", "as delayed_all_reduce"},
    {"scenarios/buckets/delayed_in_a_window_off_the_grid.toml", "as delayed_all_reduce"},
    {"scenarios/optim/sharded_delayed.toml", "as delayed_all_reduce"},
    {"scenarios/faults/backward_left_with_a_bucket_under_way.toml", "which buckets are complete when a backward is left depends on the order: ranks with other orders have posted others (a hang, rightly)"},
    {"scenarios/faults/backward_left_with_a_hook_under_way.toml", "likewise"},
    {"scenarios/faults/backward_left_last.toml", "likewise: at the end some ranks have posted more than others"},
    {"scenarios/streams/backward_left_with_a_bucket_under_way.toml", "likewise"},
    {"scenarios/wrappers/one_left_with_a_bucket_under_way.toml", "likewise"},
    {"scenarios/static_graph/first_pass_again.toml", "likewise"},
    {"scenarios/hooks/local_sgd_whose_start_moves.toml", "likewise: the hook's last bucket is called on some ranks"},
    {"scenarios/hooks/local_sgd_behind_a_left_backward.toml", "which gradients there are when a backward is left depends on the order: ranks with other orders average others (a hang, rightly)"},
    {"scenarios/groups/aborted_and_zeroed.toml", "which gradients there are when a backward is left depends on the order: ranks with other orders fill others with zeros (I-NONE, rightly)"},
    {"scenarios/hooks/powersgd_in_callbacks.toml", "continuations in another order on each rank post other operations (I-ORDER, rightly)"},
    {"scenarios/bugs/zoo_93_sums_sometimes_wrong.toml", "whether the bit flips is a choice, and it is found where it does"},
    {"scenarios/rendezvous/optional_death_of_the_host.toml", "whether the fault strikes is a choice, and it is found where it does"},
    /* clang-format on */
};
static bool is_needed[sizeof exceptions / sizeof exceptions[0]];

static void print_complaint(void *context, const cd_complaint *complaint)
{
    char text[1024];
    (void)context;
    cd_complaint_print(complaint, text, sizeof text);
    fputs(text, stderr);
}

typedef struct search {
    const cddp_registry *registry;
    uint64_t budget;
    cd_explored now; /* of the latest schedule */
} search;

/* *failed: the number of the first schedule that is not verified, from 1; 0: none. */
static cddp_status explore(search *s, cddp_plan *plan, uint64_t *failed, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_explorer explorer;
    const cd_explore_options options = {.strategy = CD_STRATEGY_RANDOM,
                                        .runs_max = s->budget,
                                        .reduce = true,
                                        .without_coverage = true,
                                        .world_size = (uint32_t)plan->world.size};
    /* a plugin's state lies where nobody can put it back */
    cd_explore_subject subject = {.plan = plan,
                                  .registry = s->registry,
                                  .from_scratch =
                                      plan->settings.hook.name != NULL &&
                                      strncmp(plan->settings.hook.name, "plant_", 6) == 0};
    *failed = 0;
    CD_TRY(cd_explorer_init(&explorer, &options, err));
    for (const cd_chooser *c; *failed == 0 && (c = cd_explorer_next(&explorer)) != NULL;) {
        CD_TRY_OUT(cd_explore_run(&subject, &explorer, c, &s->now, err));
        CD_TRY_OUT(cd_explorer_done(&explorer, s->now.outcome, err));
        if (!s->now.is_verified) *failed = explorer.runs;
    }
out:
    cd_explorer_fini(&explorer);
    cd_explore_fini(&subject);
    return status;
}

static bool judge(search *s, const char *path, uint64_t failed)
{
    for (size_t i = 0; i < sizeof exceptions / sizeof exceptions[0]; i++) {
        if (strcmp(exceptions[i].path, path) != 0) continue;
        is_needed[i] = failed > 0;
        printf("%s %s: %s\n", failed > 0 ? "skip" : "FAIL", path,
               failed > 0 ? exceptions[i].reason : "it needs no exception any more");
        return failed > 0;
    }
    if (failed > 0)
        printf("FAIL %s: schedule %llu: %s\n  --set schedule.ready=chosen --schedule %s\n", path,
               (unsigned long long)failed, s->now.culprit, s->now.schedule);
    return failed == 0;
}

static bool explore_file(search *s, const char *path)
{
    const cd_reader_options reader = {.complain = print_complaint};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cd_text overrides;
    uint64_t failed = 0;
    bool good = false;
    cd_text_init(&overrides, false);
    cddp_status status = cd_reader_read_file(&reader, path, &plan, &err);
    if (status == CDDP_OK && strcmp(plan->world.backend, "sim") != 0) {
        printf("skip %s: only the simulator is explored, not %s\n", path, plan->world.backend);
        good = true;
    } else {
        if (status == CDDP_OK) status = cd_explore_prepare(plan, false, &overrides, &err);
        if (status == CDDP_OK) status = explore(s, plan, &failed, &err);
        if (status != CDDP_OK) printf("FAIL %s: %s\n", path, err.message);
        good = status == CDDP_OK && judge(s, path, failed);
    }
    cd_text_fini(&overrides);
    cddp_plan_destroy(plan);
    return good;
}

/* Which rank posts last decides what the hook reads; the first order of turns hides it. */
static bool finds_reads_in_flight(search *s)
{
    static const char *const sets[][2] = {{"title", "a read in flight"},
                                          {"world.size", "3"},
                                          {"hook.name", "plant_early"}};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cd_text overrides;
    uint64_t failed = 0;
    cddp_status status = cddp_plan_create(NULL, &plan, &err);
    for (size_t i = 0; status == CDDP_OK && i < sizeof sets / sizeof sets[0]; i++)
        status = cddp_plan_set(plan, sets[i][0], sets[i][1], &err);
    cd_text_init(&overrides, false);
    if (status == CDDP_OK) status = cd_explore_prepare(plan, false, &overrides, &err);
    if (status == CDDP_OK) status = explore(s, plan, &failed, &err);
    printf("%s a hook that reads a bucket in flight: %s %s\n", failed > 1 ? "ok  " : "FAIL",
           failed > 1 ? "found" : "not found", status != CDDP_OK ? err.message : "");
    cd_text_fini(&overrides);
    cddp_plan_destroy(plan);
    return failed > 1;
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    size_t failed = 0;
    if (argc < 3 || cddp_registry_create(NULL, &registry, &err) != CDDP_OK ||
        cddp_registry_add_plugin(registry, &cddp_plugin_v1, &err) != CDDP_OK) {
        fprintf(stderr, "%s\n", argc < 3 ? "explore_test BUDGET SCENARIO…" : err.message);
        return EXIT_FAILURE;
    }
    search *s = calloc(1, sizeof *s);
    if (s == NULL) return EXIT_FAILURE;
    s->registry = registry;
    s->budget = strtoull(argv[1], NULL, 10);
    failed += !finds_reads_in_flight(s);
    for (int i = 2; i < argc; i++) failed += !explore_file(s, argv[i]);
    printf("%d scenarios under %s schedules each, %zu not as expected\n", argc - 2, argv[1],
           failed);
    free(s);
    cddp_registry_destroy(registry);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
