/* SPDX-License-Identifier: Apache-2.0 */
/* Stretches of an exploration: the same for every number of processes, whole or not at all. */
#include "verify/explore/jobs.h"

#include "core/base/error.h"
#include "core/base/os.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#define RUNS 40

typedef struct search {
    cddp_plan *plan;
    cddp_registry *registry;
    cd_explorer explorer;
    cd_failures *failures;
    cd_explore_subject subject;
    cd_explore_jobs jobs;
} search;

static void set(cddp_plan *plan, const char *key, const char *value)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_plan_set(plan, key, value, &err), &err);
}

/* breaks: ranks start with different values, which every schedule shows. */
static void search_init(search *s, uint32_t workers, bool breaks)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_text overrides;
    *s = (search){.failures = calloc(1, sizeof *s->failures)};
    assert_non_null(s->failures);
    assert_ok(cddp_registry_create(NULL, &s->registry, &err), &err);
    assert_ok(cddp_plan_create(NULL, &s->plan, &err), &err);
    set(s->plan, "title", "a search");
    set(s->plan, "world.size", "2");
    set(s->plan, "model.name", "params");
    set(s->plan, "model.options", "count=4,numel=3");
    set(s->plan, "ddp.bucket_cap_mb", "0.00001");
    if (breaks) {
        set(s->plan, "model.init@1", "distinct");
        set(s->plan, "ddp.init_sync", "false");
    }
    cd_text_init(&overrides, false);
    assert_ok(cd_explore_prepare(s->plan, false, &overrides, &err), &err);
    cd_text_fini(&overrides);
    const cd_explore_options options = {.strategy = CD_STRATEGY_RANDOM,
                                        .seed = 7,
                                        .reduce = true,
                                        .world_size = 2};
    assert_ok(cd_explorer_init(&s->explorer, &options, &err), &err);
    s->subject = (cd_explore_subject){.plan = s->plan, .registry = s->registry};
    s->jobs = (cd_explore_jobs){.subject = &s->subject,
                                .frontier = {&s->explorer, s->failures, cddp_plan_digest(s->plan)},
                                .worker_count = workers,
                                .keep_going = true};
}

static void search_fini(search *s)
{
    cd_explorer_fini(&s->explorer);
    cd_explore_fini(&s->subject);
    cddp_plan_destroy(s->plan);
    cddp_registry_destroy(s->registry);
    free(s->failures);
}

static void print(const search *s, cd_text *text)
{
    cd_text_init(text, false);
    cd_frontier_print(&s->jobs.frontier, text);
    assert_false(text->failed);
}

TEST(stretch, several_processes_find_what_one_finds)
{
    for (int breaks = 0; breaks < 2; breaks++) {
        cd_text alone, together;
        for (uint32_t workers = 1; workers <= 4; workers += 3) {
            cddp_error err = CDDP_ERROR_INIT;
            search s;
            bool done = false;
            cd_test_row("%u workers, %s", workers, breaks ? "broken" : "sound");
            search_init(&s, workers, breaks);
            assert_ok(cd_explore_block(&s.jobs, 8, &err), &err);
            if (workers == 1)
                assert_ok(cd_explore_block(&s.jobs, RUNS, &err), &err);
            else
                assert_ok(cd_explore_stretch(&s.jobs, RUNS, &done, &err), &err);
            assert_int_equal(s.explorer.runs, RUNS);
            assert_int_equal(s.failures->count, breaks ? RUNS : 0);
            print(&s, workers == 1 ? &alone : &together);
            search_fini(&s);
        }
        assert_string_equal(cd_text_get(&alone), cd_text_get(&together));
        cd_text_fini(&alone);
        cd_text_fini(&together);
    }
}

static bool say_yes(void) { return true; }

TEST(stretch, an_interrupted_one_leaves_nothing)
{
    cddp_error err = CDDP_ERROR_INIT;
    search s;
    cd_text before, after;
    bool done = true;
    search_init(&s, 3, true);
    assert_ok(cd_explore_block(&s.jobs, 8, &err), &err);
    print(&s, &before);
    s.jobs.interrupted = say_yes;
    assert_ok(cd_explore_stretch(&s.jobs, RUNS, &done, &err), &err);
    assert_false(done);
    print(&s, &after);
    assert_string_equal(cd_text_get(&before), cd_text_get(&after));
    cd_text_fini(&before);
    cd_text_fini(&after);
    search_fini(&s);
}

TEST(stretch, a_frontier_is_read_as_it_was_printed)
{
    cddp_error err = CDDP_ERROR_INIT;
    search s, again;
    cd_text text, second;
    search_init(&s, 1, true);
    assert_ok(cd_explore_block(&s.jobs, 12, &err), &err);
    print(&s, &text);
    search_init(&again, 1, true);
    assert_ok(cd_frontier_read(&again.jobs.frontier, cd_text_get(&text), &err), &err);
    print(&again, &second);
    assert_string_equal(cd_text_get(&text), cd_text_get(&second));
    /* Any other byte is noticed. */
    text.bytes[text.length / 2] ^= 1;
    search_fini(&again);
    search_init(&again, 1, true);
    assert_int_equal(cd_frontier_read(&again.jobs.frontier, cd_text_get(&text), &err),
                     CDDP_E_CONFIG);
    cd_text_fini(&text);
    cd_text_fini(&second);
    search_fini(&again);
    search_fini(&s);
}

TEST_MAIN()
