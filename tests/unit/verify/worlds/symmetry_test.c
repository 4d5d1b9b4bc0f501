/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks are interchangeable, and bare simulated worlds. */
#include "verify/worlds/simulated.h"
#include "verify/worlds/symmetry.h"

#include "core/base/error.h"
#include "tests/support/test.h"

#include <string.h>

TEST(symmetry, ranks_are_distinguished_for_a_reason)
{
    static const struct {
        const char *key, *value, *because; /* NULL: interchangeable */
    } cases[] = {{"world.size", "3", NULL},
                 {"model.device", "cpu", "different values"},
                 {"ddp.bucket_cap_mb@1", "2", "keys differ by rank"},
                 {"join.enable", "true", "inputs end"},
                 {"when.0.ranks", "1", "a [[when]] names ranks"},
                 {"rendezvous.enable", "true", "one rank serves"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        cd_test_row("%s", cases[i].key);
        assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
        assert_ok(cddp_plan_set(plan, "model.device", "shape", &err), &err);
        assert_ok(cddp_plan_set(plan, cases[i].key, cases[i].value, &err), &err);
        const char *reason = cd_world_find_asymmetry(plan);
        assert_int_equal(reason == NULL, cases[i].because == NULL);
        if (reason != NULL) assert_non_null(strstr(reason, cases[i].because));
        cddp_plan_destroy(plan);
    }
}

TEST(simulated, a_bare_world_has_its_backend_until_it_ends)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    cd_simulated world = {.sim = NULL};
    config.world_size = 2;
    cd_simulated_end(&world);
    assert_ok(cd_simulated_begin(&world, &config, &err), &err);
    assert_non_null(world.sim);
    assert_string_equal(world.backend.name, "sim");
    cd_simulated_end(&world);
    assert_null(world.sim);
}

TEST_MAIN()
