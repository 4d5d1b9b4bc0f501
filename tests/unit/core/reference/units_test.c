/* SPDX-License-Identifier: Apache-2.0 */
/* Units and slices as the plan declares them, against numbers that PyTorch 1.13.1 printed
** (FPM-02, FSD-21). */
#include "core/reference/units.h"

#include "core/plan/plan.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#define PARAMETERS_MAX 8

typedef struct model {
    cd_parameter parameters[PARAMETERS_MAX];
    cd_module module;
    cd_part parts[PARAMETERS_MAX];
    uint32_t units[PARAMETERS_MAX];
} model;

static void add(model *m, const char *name, int64_t rows, int64_t columns)
{
    cd_parameter *p = &m->parameters[m->module.parameter_count++];
    const int64_t sizes[2] = {rows, columns};
    p->name = (char *)(uintptr_t)name; /* only read */
    p->tensor = cddp_tensor_of(NULL, NULL, 0, CDDP_F32, sizes, columns > 0 ? 2 : 1);
    m->module.parameters = m->parameters;
}

/* sets: "key=value" pairs, NULL at the end. */
static void find(model *m, const char *const *sets)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cd_arena arena;
    cd_arena_init(&arena, NULL, 1024);
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cddp_plan_set(plan, "fsdp.enable", "true", &err), &err);
    for (size_t i = 0; sets[i] != NULL; i += 2)
        assert_ok(cddp_plan_set(plan, sets[i], sets[i + 1], &err), &err);
    assert_ok(cd_planned_find_units(plan, &plan->settings, &m->module, &arena,
                                    &(cd_planned_units){.parts = m->parts, .units = m->units},
                                    &err),
              &err);
    cd_arena_fini(&arena);
    cddp_plan_destroy(plan);
}

TEST(units, slices_are_rounded_up)
{
    (void)state;
    static const struct {
        const char *world;
        int64_t numel, share;
    } rows[] = {{"3", 1, 1}, {"3", 2, 1}, {"3", 5, 2}, {"3", 7, 3}, {"3", 10, 4},
                {"4", 1, 1}, {"4", 5, 2}, {"4", 9, 3}, {"4", 10, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        model m;
        memset(&m, 0, sizeof m);
        char text[8];
        snprintf(text, sizeof text, "%s", rows[i].world);
        cd_test_row("%lld elements on %s ranks", (long long)rows[i].numel, text);
        add(&m, "w", rows[i].numel, 0);
        find(&m, (const char *const[]){"world.size", text, NULL});
        assert_int_equal(m.parts[0].start, 0);
        assert_int_equal(m.parts[0].share, rows[i].share);
    }
}

TEST(units, parameters_of_a_unit_follow_each_other)
{
    (void)state;
    model m;
    memset(&m, 0, sizeof m);
    add(&m, "a.w", 3, 5);
    add(&m, "a.b", 3, 0);
    add(&m, "c.w", 2, 3);
    add(&m, "r", 4, 0); /* the root's own */
    find(&m, (const char *const[]){"world.size", "4", "fsdp.auto_wrap_policy", "always", NULL});
    assert_int_equal(m.parts[0].share, 5);
    assert_int_equal(m.parts[1].start, 15);
    assert_int_equal(m.parts[1].share, 5);
    assert_int_equal(m.parts[2].start, 0);
    assert_int_equal(m.parts[2].share, 2);
    assert_int_equal(m.parts[3].share, 1);
    assert_int_equal(m.units[0], m.units[1]);
    assert_int_not_equal(m.units[0], m.units[2]);
    assert_int_not_equal(m.units[0], m.units[3]);
    /* the root's own stand before those of its modules */
    find(&m, (const char *const[]){"world.size", "4", NULL});
    assert_int_equal(m.parts[3].start, 0);
    assert_int_equal(m.parts[0].start, 4);
    assert_int_equal(m.parts[1].start, 19);
    assert_int_equal(m.parts[2].start, 22);
    assert_int_equal(m.parts[2].share, 7);
}

TEST(units, use_orig_params_aligns_to_16_bytes)
{
    (void)state;
    model m;
    memset(&m, 0, sizeof m);
    add(&m, "w", 5, 1);
    add(&m, "b", 3, 0);
    find(&m, (const char *const[]){"world.size", "2", "fsdp.use_orig_params", "true", NULL});
    assert_int_equal(m.parts[1].start, 8);
    assert_int_equal(m.parts[1].share, 6);
}

TEST(units, rows_are_cut_one_parameter_at_a_time)
{
    (void)state;
    model m;
    memset(&m, 0, sizeof m);
    add(&m, "w", 5, 3);
    add(&m, "b", 5, 0);
    find(&m, (const char *const[]){"world.size", "2", "fsdp.layout", "rows", NULL});
    assert_int_equal(m.parts[0].start, 0);
    assert_int_equal(m.parts[0].share, 9);
    assert_int_equal(m.parts[1].share, 3);
}

TEST(units, whole_parameters_have_no_slices)
{
    (void)state;
    model m;
    memset(&m, 0, sizeof m);
    add(&m, "w", 5, 3);
    find(&m, (const char *const[]){"world.size", "2", "fsdp.sharding_strategy", "NO_SHARD", NULL});
    assert_int_equal(m.parts[0].share, 0);
    find(&m, (const char *const[]){"world.size", "1", NULL});
    assert_int_equal(m.parts[0].share, 0);
}

/* Layers of 110 elements as A, Seq(B, C): from 111 on, Seq is one unit; from 221 on there is the
** root alone. */
TEST(units, a_size_wraps_what_reaches_it)
{
    (void)state;
    static const struct {
        const char *least;
        int64_t share_b, start_c, start_a;
    } rows[] = {{"110", 55, 0, 0},
                {"111", 110, 110, 0},
                {"220", 110, 110, 0},
                {"221", 165, 220, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        model m;
        memset(&m, 0, sizeof m);
        cd_test_row("at least %s elements", rows[i].least);
        add(&m, "A.w", 110, 0);
        add(&m, "Seq.B.w", 110, 0);
        add(&m, "Seq.C.w", 110, 0);
        find(&m, (const char *const[]){"world.size", "2", "fsdp.auto_wrap_policy", "size_based",
                                       "fsdp.min_num_params", rows[i].least, NULL});
        assert_int_equal(m.parts[1].share, rows[i].share_b);
        assert_int_equal(m.parts[2].start, rows[i].start_c);
        assert_int_equal(m.parts[0].start, rows[i].start_a);
    }
}

TEST_MAIN()
