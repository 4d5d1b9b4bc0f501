/* SPDX-License-Identifier: Apache-2.0 */
/* What references of one thread find once, and that it is what each would have found by itself. */
#include "core/reference/reference.h"

#include "core/plan/plan.h"
#include "core/tensor/cpu.h"
#include "tests/support/test.h"

#include <string.h>

#define RANKS 5

static const double loss_scale = 1;

/* Ranks of a synchronised batch norm; the last has its own settings where it is given a number of
** samples. */
static cddp_plan *make_plan(const char *samples_of_last)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cddp_plan_set(plan, "world.size", "5", &err), &err);
    assert_ok(cddp_plan_set(plan, "model.name", "mlp", &err), &err);
    assert_ok(cddp_plan_set(plan, "model.options", "widths=3:5:4:2,norm=sync", &err), &err);
    if (samples_of_last != NULL)
        assert_ok(cddp_plan_set(plan, "data.samples@4", samples_of_last, &err), &err);
    return plan;
}

/* The digest of all gradients of a rank, as its reference computes them. */
static uint64_t run_rank(const cddp_plan *plan, uint32_t rank, cd_reference_share *share)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_reference *r = NULL;
    const cd_reference_options options = {.plan = plan,
                                          .rank = rank,
                                          .device = cddp_device_cpu(),
                                          .allocator = cddp_allocator_default(),
                                          .loss_scale = &loss_scale,
                                          .share = share};
    const cd_oracle_part part = {.rank = rank, .sample = CD_ORACLE_ALL};
    uint64_t digest = 0;
    assert_ok(cd_reference_create(&options, &r, &err), &err);
    assert_ok(r->engine.run(r->engine.self, &part, &err), &err);
    const cddp_grad *gradients = r->engine.gradients(r->engine.self);
    for (size_t i = 0; i < r->replica->model->module->parameter_count; i++) {
        uint64_t one = 0;
        assert_ok(gradients[i].value.device->digest(&gradients[i].value, &one, &err), &err);
        digest = digest * 31 + one;
    }
    cd_reference_destroy(r);
    return digest;
}

static uint64_t count_made(const cddp_plan *plan)
{
    cd_reference_share share;
    cd_reference_share_init(&share, plan, cddp_allocator_default());
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        cd_test_row("rank %u", rank);
        assert_true(run_rank(plan, rank, &share) == run_rank(plan, rank, NULL));
    }
    const uint64_t made = share.statistics.made;
    cd_reference_share_fini(&share);
    return made;
}

TEST(reference, ranks_alike_find_their_statistics_once)
{
    cddp_plan *plan = make_plan(NULL);
    assert_int_equal(count_made(plan), 1);
    cddp_plan_destroy(plan);
}

TEST(reference, a_rank_of_other_settings_finds_its_own)
{
    cddp_plan *plan = make_plan("3");
    assert_int_equal(count_made(plan), 2);
    cddp_plan_destroy(plan);
}

TEST(reference, ranks_that_start_from_other_values_share_no_statistics)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = make_plan(NULL);
    assert_ok(cddp_plan_set(plan, "model.init", "distinct", &err), &err);
    assert_int_equal(count_made(plan), RANKS);
    cddp_plan_destroy(plan);
}

TEST_MAIN()
