/* SPDX-License-Identifier: Apache-2.0 */
/* Grids, what runs cost, and sheets that come back from CSV as they went. */
#include "cddp/tensor.h"
#include "tests/support/test.h"
#include "verify/sweep/sheet.h"

#include <string.h>

static void grid_of(cd_grid *g, const char *first, const char *second)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_grid_init(g);
    assert_int_equal(cd_grid_add(g, first, &err), CDDP_OK);
    if (second != NULL) assert_int_equal(cd_grid_add(g, second, &err), CDDP_OK);
}

TEST(grid, every_combination_once_and_the_last_key_varies_fastest)
{
    cd_grid g;
    cd_text lines;
    (void)state;
    grid_of(&g, "world.size=2..9", "model.options=[1,2],x");
    assert_int_equal(g.cell_count, 6);
    assert_string_equal(cd_grid_get(&g, 0, 0), "2");
    assert_string_equal(cd_grid_get(&g, 5, 0), "8");
    assert_string_equal(cd_grid_get(&g, 0, 1), "[1,2]");
    assert_string_equal(cd_grid_get(&g, 1, 1), "x");
    cd_text_init(&lines, false);
    cd_grid_print(&g, 3, &lines);
    assert_string_equal(cd_text_get(&lines), "world.size=4\nmodel.options=x\n");
    cd_text_fini(&lines);
    cd_grid_fini(&g);
}

TEST(grid, mistakes_are_named)
{
    static const char *const wrong[] = {"",      "a",      "a=",     "=1",      "a=1,,2",
                                        "a=1,1", "a=0..4", "a=8..4", "a=1\nb=2"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_grid g;
        cd_grid_init(&g);
        assert_int_equal(cd_grid_add(&g, wrong[i], &err), CDDP_E_ARG);
        assert_non_null(strstr(err.message, "--vary"));
        cd_grid_fini(&g);
    }
}

TEST(measure, a_wait_that_began_after_the_end_costs_nothing)
{
    cd_measure m;
    cd_cost cost;
    cddp_error err = CDDP_ERROR_INIT;
    (void)state;
    cd_measure_init(&m, 0);
    const cddp_event events[] = {
        {.kind = CDDP_EV_bucket_layout, .as.bucket_layout = {.numel = 8, .dtype = CDDP_F32}},
        {.kind = CDDP_EV_forward_begin, .time_ns = 100},
        {.kind = CDDP_EV_collective_post, .as.collective_post = {.numel = 3, .dtype = CDDP_F64}},
        {.kind = CDDP_EV_collective_wait, .time_ns = 150},
        {.kind = CDDP_EV_collective_done, .time_ns = 190},
        {.kind = CDDP_EV_collective_post, .as.collective_post = {.sequence = 1}},
        {.kind = CDDP_EV_collective_done, .time_ns = 200, .as.collective_done.sequence = 1},
        {.kind = CDDP_EV_optimizer_step, .time_ns = 300, .step = 1}};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        cd_measure_sink(&m)->event(&m, &events[i]);
    assert_int_equal(cd_measure_end(&m, &cost, &err), CDDP_OK);
    assert_true(cost.step_ns == 100 && cost.exposed_ns == 20);
    assert_true(cost.bytes == 12 && cost.memory == 32);
    cd_measure_fini(&m);
}

TEST(measure, what_is_gathered_to_be_shown_costs_nothing)
{
    cd_measure m;
    cd_cost cost;
    cddp_error err = CDDP_ERROR_INIT;
    (void)state;
    cd_measure_init(&m, 0);
    const cddp_event events[] = {
        {.kind = CDDP_EV_forward_begin, .time_ns = 100},
        {.kind = CDDP_EV_collective_post, .as.collective_post = {.numel = 9, .dtype = CDDP_F64}},
        {.kind = CDDP_EV_unit_pass,
         .time_ns = 200,
         .as.unit_pass = {.pass = CDDP_UNIT_PRE_FORWARD, .grad_mode = 1}},
        {.kind = CDDP_EV_unit_storage, .as.unit_storage = {.bytes = 64}},
        {.kind = CDDP_EV_collective_post,
         .as.collective_post = {.sequence = 1, .numel = 2, .dtype = CDDP_F64}},
        {.kind = CDDP_EV_collective_wait, .time_ns = 210, .as.collective_wait.sequence = 1},
        {.kind = CDDP_EV_collective_done, .time_ns = 225, .as.collective_done.sequence = 1},
        {.kind = CDDP_EV_unit_storage, .as.unit_storage = {.bytes = 64, .released = 1}},
        {.kind = CDDP_EV_unit_pass,
         .time_ns = 250,
         .as.unit_pass = {.pass = CDDP_UNIT_BACKWARD_END, .grad_mode = 1}},
        {.kind = CDDP_EV_unit_storage, .as.unit_storage = {.bytes = 640}},
        {.kind = CDDP_EV_collective_post,
         .as.collective_post = {.sequence = 2, .numel = 9, .dtype = CDDP_F64}},
        {.kind = CDDP_EV_collective_wait, .time_ns = 260, .as.collective_wait.sequence = 2},
        {.kind = CDDP_EV_collective_done, .time_ns = 290, .as.collective_done.sequence = 2},
        {.kind = CDDP_EV_unit_storage, .as.unit_storage = {.bytes = 640, .released = 1}},
        {.kind = CDDP_EV_optimizer_step, .time_ns = 300}};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        cd_measure_sink(&m)->event(&m, &events[i]);
    assert_int_equal(cd_measure_end(&m, &cost, &err), CDDP_OK);
    assert_true(cost.step_ns == 50 && cost.exposed_ns == 15);
    assert_true(cost.bytes == 16 && cost.memory == 64);
    cd_measure_fini(&m);
}

TEST(measure, steps_that_are_left_out_cost_nothing_and_a_step_ends_with_its_last_rank)
{
    cd_measure m;
    cd_cost cost;
    cddp_error err = CDDP_ERROR_INIT;
    (void)state;
    cd_measure_init(&m, 1);
    const cddp_event events[] = {
        {.kind = CDDP_EV_forward_begin, .time_ns = 100},
        {.kind = CDDP_EV_collective_post, .as.collective_post = {.numel = 9, .dtype = CDDP_F64}},
        {.kind = CDDP_EV_collective_wait, .time_ns = 150},
        {.kind = CDDP_EV_collective_done, .time_ns = 190},
        {.kind = CDDP_EV_forward_begin, .rank = 1, .time_ns = 110},
        {.kind = CDDP_EV_optimizer_step, .time_ns = 300},
        {.kind = CDDP_EV_optimizer_step, .rank = 1, .time_ns = 400},
        {.kind = CDDP_EV_forward_begin, .time_ns = 310, .step = 1},
        {.kind = CDDP_EV_collective_post,
         .step = 1,
         .as.collective_post = {.sequence = 1, .numel = 1, .dtype = CDDP_F64}},
        {.kind = CDDP_EV_collective_wait, .time_ns = 420, .as.collective_wait.sequence = 1},
        {.kind = CDDP_EV_collective_done, .time_ns = 430, .as.collective_done.sequence = 1},
        {.kind = CDDP_EV_optimizer_step, .time_ns = 440, .step = 1},
        {.kind = CDDP_EV_optimizer_step, .rank = 1, .time_ns = 450, .step = 1}};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        cd_measure_sink(&m)->event(&m, &events[i]);
    assert_int_equal(cd_measure_end(&m, &cost, &err), CDDP_OK);
    assert_true(cost.step_ns == 50 && cost.exposed_ns == 10 && cost.bytes == 8);
    cd_measure_fini(&m);
}

TEST(sheet, csv_comes_back_and_the_best_is_verified)
{
    cd_grid g;
    cd_sheet a, b;
    cd_text csv, again, svg;
    cddp_error err = CDDP_ERROR_INIT;
    (void)state;
    grid_of(&g, "model.options=[1,2],3", "world.size=1,2");
    assert_int_equal(cd_sheet_init(&a, &g, "a, \"b\".toml", &err), CDDP_OK);
    assert_int_equal(cd_sheet_init(&b, &g, "a, \"b\".toml", &err), CDDP_OK);
    for (size_t cell = 0; cell < 3; cell++)
        assert_int_equal(cd_sheet_take(&a, cell,
                                       &(cd_sheet_row){.exit_code = cell == 0,
                                                       .verdict =
                                                           cell == 0 ? "findings" : "verified",
                                                       .why = cell == 0 ? "a, \"b\"\nc" : "",
                                                       .cost = {(double)cell, 0.1, 3, 4}},
                                       &err),
                         CDDP_OK);
    assert_int_equal(cd_sheet_best(&a, CD_BY_STEP), 1);
    cd_text_init(&csv, false);
    cd_text_init(&again, false);
    cd_text_init(&svg, false);
    cd_sheet_print_csv(&a, &csv);
    assert_int_equal(cd_sheet_read_csv(&b, cd_text_get(&csv), &err), CDDP_OK);
    assert_true(b.rows[2].is_known && !b.rows[3].is_known);
    cd_sheet_print_csv(&b, &again);
    assert_string_equal(cd_text_get(&csv), cd_text_get(&again));
    cd_sheet_print_svg(&a, CD_BY_STEP, &svg);
    assert_non_null(strstr(cd_text_get(&svg), "class='bad'"));
    assert_int_equal(cd_sheet_read_csv(&b, "something,else\n", &err), CDDP_E_MISMATCH);
    b.skip = 1;
    assert_int_equal(cd_sheet_read_csv(&b, cd_text_get(&csv), &err), CDDP_E_MISMATCH);
    assert_non_null(strstr(err.message, "steps"));
    b.skip = 0;
    b.plan_digest = 7;
    assert_int_equal(cd_sheet_read_csv(&b, cd_text_get(&csv), &err), CDDP_E_MISMATCH);
    assert_non_null(strstr(err.message, "settings"));
    cd_text_fini(&csv);
    cd_text_fini(&again);
    cd_text_fini(&svg);
    cd_sheet_fini(&a);
    cd_sheet_fini(&b);
    cd_grid_fini(&g);
}

TEST_MAIN()
