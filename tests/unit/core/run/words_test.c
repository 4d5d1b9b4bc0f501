/* SPDX-License-Identifier: Apache-2.0 */
/* A part that fails without a word: the verdict says what its status means, and who passed it on.
** Where it has words they stay as they are. */
#include "cddp/cddp.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

static const char *words;

static cddp_status open_nothing(const cddp_backend *backend, cddp_rank *rank,
                                const cddp_group_spec *spec, void **group, cddp_error *err)
{
    (void)backend, (void)rank, (void)spec, (void)group;
    if (words != NULL) snprintf(err->message, sizeof err->message, "%s", words);
    return CDDP_E_BACKEND;
}

static void run_with(const char *given, char *message, size_t bytes)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cddp_registry *registry = NULL;
    cddp_solo_world *world = NULL;
    cddp_verdict *verdict = NULL;
    const cddp_solo_options solo = {.size = sizeof solo, .world_size = 1};
    cddp_backend backend = *cddp_backend_self();
    cddp_run_options options = cddp_run_options_default();
    words = given;
    backend.open = open_nothing;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cddp_plan_set(plan, "title", "no words", &err), &err);
    assert_ok(cddp_plan_set(plan, "world.size", "1", &err), &err);
    assert_ok(cddp_plan_check(plan, &err), &err);
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    assert_ok(cddp_solo_world_open(&solo, &world, &err), &err);
    options.plan = plan;
    options.world_ops = cddp_solo_world_ops();
    options.world = world;
    options.backend = &backend;
    options.registry = registry;
    options.judge = true;
    assert_ok(cddp_run(&options, &verdict, &err), &err);
    assert_int_not_equal(verdict->outcome, CDDP_OUTCOME_VERIFIED);
    assert_int_equal(verdict->ranks[0].result.status, CDDP_E_BACKEND);
    snprintf(message, bytes, "%s", verdict->ranks[0].result.error.message);
    cddp_verdict_destroy(verdict);
    cddp_solo_world_close(world);
    cddp_registry_destroy(registry);
    cddp_plan_destroy(plan);
}

TEST(words, are_found_where_a_part_has_none)
{
    char message[CDDP_ERROR_MESSAGE_BYTES], wanted[CDDP_ERROR_MESSAGE_BYTES];
    run_with(NULL, message, sizeof message);
    snprintf(wanted, sizeof wanted, "%s, and nothing says why; it came through cddp_group_create",
             cddp_status_text(CDDP_E_BACKEND));
    assert_string_equal(message, wanted);
}

TEST(words, of_a_part_stay_as_they_are)
{
    char message[CDDP_ERROR_MESSAGE_BYTES];
    run_with("the cable is out", message, sizeof message);
    assert_string_equal(message, "the cable is out");
}

TEST_MAIN()
