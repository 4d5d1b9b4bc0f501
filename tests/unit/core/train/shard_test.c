/* SPDX-License-Identifier: Apache-2.0 */
/* What the runtime cuts, against the oracle's own partition, and what it refuses. That the pieces
** are put together again is shown by scenarios/optim/sharded*.toml and by the mutants of
** core/train/shard.c. */
#include "core/base/prng.h"
#include "core/oracle/partition.h"
#include "core/train/shard.h"
#include "core/tensor/cpu.h"
#include "tests/support/test.h"

#include <string.h>

#define PARAMETERS_MAX 7
#define NUMEL_MAX 12

typedef struct fixture {
    float values[PARAMETERS_MAX][NUMEL_MAX];
    cddp_grad grads[PARAMETERS_MAX];
    cd_optimizer_parameter parameters[PARAMETERS_MAX];
    int64_t numels[PARAMETERS_MAX];
} fixture;

static void fill(fixture *f, cd_prng *prng)
{
    *f = (fixture){.numels = {0}};
    for (size_t i = 0; i < PARAMETERS_MAX; i++) {
        f->numels[i] = (int64_t)cd_prng_below(prng, NUMEL_MAX + 1);
        f->parameters[i] = (cd_optimizer_parameter){"p",
                                                    cddp_tensor_of(cddp_device_cpu(), f->values[i],
                                                                   0, CDDP_F32, &f->numels[i], 1),
                                                    &f->grads[i]};
    }
}

static cd_shard_options options_of(const fixture *f, cddp_plan_optimizer_shard kind, uint32_t rank,
                                   uint32_t world)
{
    return (cd_shard_options){.optimizer = "sgd",
                              .kind = kind,
                              .rank = rank,
                              .world = world,
                              .parameters = f->parameters,
                              .parameter_count = PARAMETERS_MAX};
}

/* A rank's piece of each parameter is the range that the law gives it. */
static void check_rank(const cd_shard *shard, const fixture *f, const cd_part *parts, uint32_t rank)
{
    size_t count;
    const cd_optimizer_parameter *pieces = cd_shard_get_pieces(shard, &count);
    for (size_t i = 0; i < PARAMETERS_MAX; i++) {
        const cd_part_range wanted = cd_part_get(&parts[i], f->numels[i], rank);
        const int64_t piece = cd_shard_find(shard, i);
        cd_test_row("rank %u, parameter %zu of %lld", rank, i, (long long)f->numels[i]);
        assert_true(piece < (int64_t)count);
        if (wanted.first == wanted.end) {
            assert_true(piece < 0 || cddp_tensor_numel(&pieces[piece].tensor) == 0);
            continue;
        }
        assert_true(piece >= 0);
        assert_int_equal(pieces[piece].tensor.offset, wanted.first);
        assert_int_equal(cddp_tensor_numel(&pieces[piece].tensor), wanted.end - wanted.first);
    }
}

TEST(shard, cuts_what_the_law_says)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (uint32_t round = 0; round < 300; round++) {
        cddp_error err = CDDP_ERROR_INIT;
        fixture f;
        cd_part parts[PARAMETERS_MAX];
        const uint32_t world = 1 + (uint32_t)cd_prng_below(&prng, 6);
        const cddp_plan_optimizer_shard kind =
            cd_prng_below(&prng, 2) == 0 ? CDDP_SHARD_PARAMETERS : CDDP_SHARD_FLAT;
        fill(&f, &prng);
        const cd_partition law = {f.numels, PARAMETERS_MAX, world, NULL};
        if (kind == CDDP_SHARD_FLAT)
            cd_partition_flat(&law, parts);
        else
            assert_ok(cd_partition_whole(&law, round % 2 == 0, parts, &err), &err);
        for (uint32_t rank = 0; rank < world; rank++) {
            cd_shard *shard = NULL;
            cd_shard_options options = options_of(&f, kind, rank, world);
            options.order = round % 2 == 0 ? CDDP_SHARD_ORDER_SIZE : CDDP_SHARD_ORDER_REGISTRATION;
            assert_ok(cd_shard_create(&options, &shard, &err), &err);
            check_rank(shard, &f, parts, rank);
            cd_shard_destroy(shard);
        }
    }
}

TEST(shard, a_slice_has_the_gradients_of_its_elements)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    float gradient[NUMEL_MAX] = {0};
    fixture f = {.numels = {5, 5}};
    for (size_t i = 0; i < 2; i++)
        f.parameters[i] = (cd_optimizer_parameter){"p",
                                                   cddp_tensor_of(cddp_device_cpu(), f.values[i], 0,
                                                                  CDDP_F32, &f.numels[i], 1),
                                                   &f.grads[i]};
    f.grads[0].kind = CDDP_GRAD_DENSE;
    f.grads[0].value = cddp_tensor_of(cddp_device_cpu(), gradient, 0, CDDP_F32, &f.numels[0], 1);
    cd_shard_options options = options_of(&f, CDDP_SHARD_FLAT, 1, 3); /* elements 4 to 7 of 10 */
    options.parameter_count = 2;
    cd_shard *shard = NULL;
    size_t count;
    assert_ok(cd_shard_create(&options, &shard, &err), &err);
    const cd_optimizer_parameter *pieces = cd_shard_get_pieces(shard, &count);
    assert_int_equal(count, 2);
    assert_ok(cd_shard_take_gradients(shard, &err), &err);
    assert_int_equal(pieces[0].grad->kind, CDDP_GRAD_DENSE);
    assert_int_equal(pieces[0].grad->value.offset, 4);
    assert_int_equal(cddp_tensor_numel(&pieces[0].grad->value), 1);
    assert_int_equal(pieces[1].grad->kind, CDDP_GRAD_UNDEFINED); /* absent is not zero */
    f.grads[0].kind = CDDP_GRAD_SPARSE;
    assert_int_equal(cd_shard_take_gradients(shard, &err), CDDP_E_CONFIG);
    assert_non_null(strstr(err.message, "the gradient of 'p' is sparse"));
    cd_shard_destroy(shard);
}

TEST(shard, refuses_what_cannot_be_cut)
{
    (void)state;
    cd_prng prng = cd_prng_seed(7);
    static const struct {
        cddp_plan_optimizer_shard kind;
        cddp_plan_shard_padding padding;
        cddp_dtype first, second;
        const char *words;
    } rows[] = {
        /* clang-format off */
        {CDDP_SHARD_PARAMETERS, CDDP_SHARD_PADDING_COUNTED, CDDP_F32, CDDP_F64, "parameters of one dtype (ZRO-08)"},
        {CDDP_SHARD_FLAT, CDDP_SHARD_PADDING_COUNTED, CDDP_F16, CDDP_F32, "parameters of one dtype (ZRO-08)"},
        {CDDP_SHARD_FLAT, CDDP_SHARD_PADDING_COUNTED, CDDP_C64, CDDP_C64, "is not real"},
        {CDDP_SHARD_FLAT, CDDP_SHARD_PADDING_DROPPED, CDDP_F32, CDDP_F32, "shard.padding has no effect: the 8 elements"},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fixture f;
        cddp_error err = CDDP_ERROR_INIT;
        cd_shard *shard = NULL;
        fill(&f, &prng);
        cd_test_row("%s", rows[i].words);
        for (size_t k = 0; k < 2; k++) {
            const int64_t numel = 4;
            f.parameters[k].tensor =
                cddp_tensor_of(cddp_device_cpu(), f.values[k], 0,
                               k == 0 ? rows[i].first : rows[i].second, &numel, 1);
        }
        cd_shard_options options = options_of(&f, rows[i].kind, 0, 2);
        options.parameter_count = 2;
        options.padding = rows[i].padding;
        assert_int_equal(cd_shard_create(&options, &shard, &err), CDDP_E_CONFIG);
        assert_null(shard);
        assert_non_null(strstr(err.message, rows[i].words));
    }
}

TEST_MAIN()
