/* SPDX-License-Identifier: Apache-2.0 */
/* The sharded optimizer without a wrapper, through its public header: what it steps is what the
** same optimizer over all parameters would, state can be brought together, misuse is refused. */
#include "cddp/zero.h"

#include "tests/unit/core/ddp/fixture.h"

#define PARAMETERS 6
#define STEPS 4
#define NUMEL_MAX 9

static const int64_t numels[PARAMETERS] = {3, 9, 1, 9, 0, 4};
static const char *const names[PARAMETERS] = {"a", "b", "c", "d", "e", "f"};

/* SGD with momentum, of f32. */
typedef struct momentum {
    const lane *l;
    float state[PARAMETERS][NUMEL_MAX];
    uint32_t calls[PARAMETERS];
} momentum;

static void step_one(float *values, float *state, const float *gradient, int64_t numel)
{
    for (int64_t i = 0; i < numel; i++) {
        state[i] = 0.5f * state[i] + gradient[i];
        values[i] -= 0.25f * state[i];
    }
}

static cddp_status step_variable(void *context, size_t parameter, cddp_grad *grad, cddp_error *err)
{
    (void)err;
    momentum *m = context;
    m->calls[parameter]++;
    step_one(m->l->parameters[parameter].tensor.storage, m->state[parameter], grad->value.storage,
             numels[parameter]);
    return CDDP_OK;
}

/* Equal on all ranks, as after a reduction; "c" has none in step 1. */
static void make_gradients(lane *l, int step)
{
    for (size_t i = 0; i < PARAMETERS; i++) {
        cddp_grad_drop(&l->grads[i]);
        if (step == 1 && i == 2) continue;
        CHECK_OK(cddp_grad_define(&l->grads[i], &l->parameters[i].tensor, &l->err));
        for (int64_t k = 0; k < numels[i]; k++)
            ((float *)l->grads[i].value.storage)[k] = (float)(step + 1) * (float)(i + 1) + (float)k;
    }
}

static cddp_zero_options zero_options(lane *l, momentum *m)
{
    cddp_zero_options options = cddp_zero_options_default();
    options.group = l->group;
    options.parameters = l->parameters;
    options.parameter_count = l->count;
    options.step = step_variable;
    options.context = m;
    return options;
}

/* Brings the momentum of all parameters to the last rank. */
static void consolidate(lane *l, cddp_zero *zero, momentum *m, const float (*wanted)[NUMEL_MAX])
{
    cddp_tensor state[PARAMETERS];
    const uint32_t to = l->w - 1;
    for (size_t i = 0; i < PARAMETERS; i++) {
        const bool is_kept = l->r == to || cddp_zero_get_owner(zero, i) == (int64_t)l->r;
        state[i] = cddp_tensor_of(cddp_device_cpu(), is_kept ? m->state[i] : NULL, 0, CDDP_F32,
                                  &numels[i], 1);
    }
    CHECK_OK(cddp_zero_consolidate(zero, state, 1, to, &l->err));
    for (size_t i = 0; i < PARAMETERS && l->r == to; i++)
        CHECK(memcmp(m->state[i], wanted[i], (size_t)numels[i] * sizeof(float)) == 0);
}

static void train_body(lane *l)
{
    const int form = *(const int *)l->lab->data;
    float values[PARAMETERS][NUMEL_MAX] = {{0}}, state[PARAMETERS][NUMEL_MAX] = {{0}};
    momentum m = {.l = l};
    cddp_zero *zero = NULL;
    for (size_t i = 0; i < PARAMETERS; i++) lane_add(l, names[i], CDDP_F32, numels[i]);
    cddp_zero_options options = zero_options(l, &m);
    options.coalesced = form % 2 == 1;
    options.by_size = form < 2;
    CHECK_OK(cddp_zero_create(&options, &zero, &l->err));
    for (int step = 0; step < STEPS; step++) {
        make_gradients(l, step);
        for (size_t i = 0; i < PARAMETERS; i++)
            if (l->grads[i].kind == CDDP_GRAD_DENSE)
                step_one(values[i], state[i], l->grads[i].value.storage, numels[i]);
        CHECK_OK(cddp_zero_step(zero, &l->err));
        for (size_t i = 0; i < PARAMETERS; i++)
            CHECK(memcmp(l->parameters[i].tensor.storage, values[i],
                         (size_t)numels[i] * sizeof(float)) == 0);
    }
    for (size_t i = 0; i < PARAMETERS; i++) {
        const bool is_own = cddp_zero_get_owner(zero, i) == (int64_t)l->r;
        CHECK(m.calls[i] == (is_own ? (uint32_t)STEPS - (i == 2) : 0u));
    }
    CHECK(cddp_zero_get_owner(zero, PARAMETERS) == -1);
    consolidate(l, zero, &m, (const float(*)[NUMEL_MAX])state);
    for (size_t i = 0; i < PARAMETERS; i++) cddp_grad_fini(&l->grads[i]);
    cddp_zero_destroy(zero);
}

TEST(zero, steps_what_one_optimizer_over_all_parameters_would) /* ZRO-01, ZRO-02, ZRO-03, ZRO-06 */
{
    for (uint32_t world = 1; world <= 5; world++) {
        for (int form = 0; form < 4; form++) {
            cd_test_row("%u ranks, form %d", world, form);
            lab_of(world, train_body, &form);
        }
    }
}

TEST(zero, assigns_the_largest_first_to_whoever_has_least) /* ZRO-01 */
{
    uint32_t owners[PARAMETERS], order[PARAMETERS];
    static const uint32_t wanted[PARAMETERS] = {2, 0, 2, 1, 2, 2},
                          wanted_order[PARAMETERS] = {1, 3, 5, 0, 2, 4};
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_zero_assign(numels, PARAMETERS, 3, true, NULL, owners, order, &err), &err);
    for (size_t i = 0; i < PARAMETERS; i++) {
        cd_test_row("parameter %zu", i);
        assert_int_equal(owners[i], wanted[i]);
        assert_int_equal(order[i], wanted_order[i]);
    }
    assert_ok(cddp_zero_assign(numels, PARAMETERS, 3, false, NULL, owners, order, &err), &err);
    assert_int_equal(owners[0], 0);
    assert_int_equal(owners[3], 2);
    assert_int_equal(order[3], 3);
    assert_fails(cddp_zero_assign(numels, 1, 0, true, NULL, owners, NULL, &err), CDDP_E_ARG, &err,
                 "0 ranks");
    assert_fails(cddp_zero_assign(NULL, 1, 1, true, NULL, owners, NULL, &err), CDDP_E_ARG, &err,
                 "numels is NULL");
}

static void refuse(lane *l, const cddp_zero_options *options, cddp_status status, const char *words)
{
    cddp_zero *zero = NULL;
    CHECK_FAILS(cddp_zero_create(options, &zero, &l->err), status, words);
    CHECK(zero == NULL);
}

static void misuse_body(lane *l)
{
    momentum m = {.l = l};
    cddp_zero *zero = NULL;
    const cddp_zero_options zeroed = {0};
    for (size_t i = 0; i < 2; i++) lane_add(l, names[i], CDDP_F32, numels[i]);
    cddp_zero_options options = zero_options(l, &m);
    refuse(l, NULL, CDDP_E_ARG, "NULL");
    refuse(l, &zeroed, CDDP_E_ARG, "size");
    CHECK_FAILS(cddp_zero_create(&options, NULL, &l->err), CDDP_E_ARG, "zero is NULL");
    options.group = NULL;
    refuse(l, &options, CDDP_E_ARG, "group is NULL");
    options = zero_options(l, &m);
    options.step = NULL;
    refuse(l, &options, CDDP_E_ARG, "step is NULL");
    options = zero_options(l, &m);
    options.parameter_count = 0;
    refuse(l, &options, CDDP_E_ARG, "without parameters");
    options = zero_options(l, &m);
    l->parameters[1].expect_sparse = true;
    refuse(l, &options, CDDP_E_CONFIG, "the gradient of 'b' is sparse");
    l->parameters[1].expect_sparse = false;
    l->parameters[1].grad = NULL;
    refuse(l, &options, CDDP_E_ARG, "'b' has no gradient slot");
    l->parameters[1].grad = &l->grads[1];
    l->parameters[1].tensor.dtype = CDDP_F16;
    refuse(l, &options, CDDP_E_CONFIG, "'a' is f32, 'b' is f16");
    l->parameters[1].tensor.dtype = CDDP_F32;
    CHECK_FAILS(cddp_zero_step(NULL, &l->err), CDDP_E_ARG, "zero is NULL");
    CHECK_OK(cddp_zero_create(&options, &zero, &l->err));
    CHECK_FAILS(cddp_zero_consolidate(zero, NULL, 1, 0, &l->err), CDDP_E_ARG, "state is NULL");
    CHECK_FAILS(cddp_zero_consolidate(zero, NULL, 0, 7, &l->err), CDDP_E_ARG, "rank 7 of group");
    cddp_tensor none[2] = {{0}, {0}};
    CHECK_FAILS(cddp_zero_consolidate(zero, none, 1, 0, &l->err), CDDP_E_ARG, "is no tensor");
    cddp_zero_destroy(zero);
    cddp_zero_destroy(NULL);
    CHECK(cddp_zero_get_owner(NULL, 0) == -1);
}

TEST(zero, misuse_is_an_error_in_words) /* ZRO-08 */ { lab_of(2, misuse_body, NULL); }

TEST_MAIN()
