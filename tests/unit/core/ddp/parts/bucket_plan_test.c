/* SPDX-License-Identifier: Apache-2.0 */
/* compute_bucket_assignment_by_size gives what PyTorch 1.13.1 was observed to give (BKT-04, 08, 09,
** 14; VER-01). */
#include "core/ddp/parts/bucket_plan.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#define N 8

typedef struct row {
    const char *name;
    const char *tensors; /* "f32:100 f64:25": dtype:numel */
    uint64_t limits[2];
    size_t limit_count;
    const char *arrival; /* "4 2 0" or NULL */
    int sparse;          /* variable index that expects a sparse gradient, or -1 */
    const char *wanted;  /* "0 1 | 2" */
    const char *wanted_limits;
} row;

static const row rows[] = {
    {"BKT-04 each dtype starts with the first limit",
     "f32:50 f64:25 f32:50 f64:25 f32:50 f64:25",
     {200, 400},
     2,
     NULL,
     -1,
     "0 | 1 | 2 4 | 3 5",
     "200 200 400 400"},
    /* clang-format off */
    {"BKT-08 tensors without elements join the open bucket", "f32:0 f32:100 f32:0", {400}, 1, NULL, -1, "0 1 | 2", NULL},
    {"BKT-09 equality flushes", "f32:100 f32:200 f32:100 f32:50", {400}, 1, NULL, -1, "0 | 1 | 2 | 3", NULL},
    {"BKT-09 adding comes before comparing", "f32:50 f32:49 f32:1 f32:10", {400}, 1, NULL, -1, "0 1 2 | 3", NULL},
    {"BKT-09 overshoot is allowed", "f32:99 f32:1000 f32:1", {400}, 1, NULL, -1, "0 1 | 2", NULL},
    {"BKT-09, TI-H-03 limits advance", "f32:10 f32:10 f32:10 f32:10", {40, 80}, 2, NULL, -1, "0 | 1 2 | 3", "40 80 80"},
    {"BKT-09, TI-H-02 interleaved dtypes", "f32:50 f64:25 f32:50 f64:25 f32:50 f64:25", {400}, 1, NULL, -1, "0 2 | 1 3 | 4 | 5", NULL},
    {"BKT-09 a sparse variable is alone", "f32:10 f32:10 f32:10 f32:10", {80}, 1, NULL, 1, "0 2 | 1 | 3", "80 0 80"},
    {"BKT-09 arrival order", "f32:10 f32:10 f32:10 f32:10 f32:10", {40, 80}, 2, "4 2 0 1 3", -1, "4 | 2 0 | 1 3", "40 80 80"},
    {"BKT-09 three dtypes", "f16:5 f32:100 f16:5 f32:100 f64:5", {400}, 1, NULL, -1, "0 2 | 1 | 3 | 4", NULL},
    {"BKT-07 left-overs by arrival position, our order", "f16:1 f64:1 f32:1", {400}, 1, "2 1 0", -1, "2 | 1 | 0", NULL},
    {"BKT-05 sparse is by variable index, not by position", "f32:10 f32:10 f32:10", {400}, 1, "2 0 1", 2, "2 | 0 1", "0 400"},
    {"BKT-15 the last limit repeats", "f32:10 f32:10 f32:10", {40, 40}, 2, NULL, -1, "0 | 1 | 2", "40 40 40"},
    {"TI-H-01 four tensors of 400 bytes", "f32:100 f32:100 f32:100 f32:100", {400}, 1, NULL, -1, "0 | 1 | 2 | 3", NULL},
    /* clang-format on */
};

static size_t parse_tensors(const char *text, cd_bucket_input *inputs)
{
    size_t n = 0;
    while (*text != '\0') {
        char dtype[4];
        unsigned long long numel = 0;
        int used = 0;
        assert_int_equal(sscanf(text, "%3[a-z0-9]:%llu %n", dtype, &numel, &used), 2);
        unsigned bits = 0;
        sscanf(dtype + 1, "%u", &bits);
        inputs[n++] = (cd_bucket_input){.bytes = numel * bits / 8, .key = bits};
        text += used;
    }
    return n;
}

static size_t parse_indices(const char *text, uint32_t *indices)
{
    size_t n = 0;
    for (int used = 0; sscanf(text, "%u %n", &indices[n], &used) == 1; text += used) n++;
    return n;
}

static void print_layout(const cd_bucket_layout *l, char *text, char *limits)
{
    for (size_t b = 0; b < l->bucket_count; b++) {
        limits += sprintf(limits, "%s%llu", b > 0 ? " " : "", (unsigned long long)l->limits[b]);
        for (uint32_t i = l->starts[b]; i < l->starts[b + 1]; i++)
            text += sprintf(text, "%s%u",
                            i > l->starts[b] ? " "
                            : b > 0          ? " | "
                                             : "",
                            l->indices[i]);
    }
}

TEST(bucket_plan, reproduces_every_observed_assignment)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const row *r = &rows[i];
        cd_test_row("%s", r->name);
        cd_bucket_input inputs[N];
        uint32_t arrival[N];
        bool sparse[N] = {false};
        if (r->sparse >= 0) sparse[r->sparse] = true;
        cd_bucket_request request = {.inputs = inputs,
                                     .input_count = parse_tensors(r->tensors, inputs),
                                     .limits = r->limits,
                                     .limit_count = r->limit_count,
                                     .expect_sparse = r->sparse >= 0 ? sparse : NULL};
        if (r->arrival != NULL)
            assert_int_equal(parse_indices(r->arrival, arrival), request.input_count);
        if (r->arrival != NULL) request.indices = arrival;
        cddp_error err = CDDP_ERROR_INIT;
        cd_bucket_layout layout = {0};
        assert_ok(cd_bucket_layout_init(&layout, N, NULL, &err), &err);
        assert_ok(cd_bucket_assignment_by_size(&request, &layout, &err), &err);
        cd_bucket_layout_audit(&layout);
        char text[128] = "", limits[128] = "";
        print_layout(&layout, text, limits);
        assert_string_equal(text, r->wanted);
        if (r->wanted_limits != NULL) assert_string_equal(limits, r->wanted_limits);
        cd_bucket_layout_fini(&layout);
    }
}

TEST(bucket_plan, refuses_what_pytorch_refuses)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_bucket_layout layout = {0};
    cd_bucket_input inputs[2] = {{.bytes = 4}, {.bytes = 4, .is_sparse_layout = true}};
    uint64_t limit = 400;
    assert_ok(cd_bucket_layout_init(&layout, 2, NULL, &err), &err);
    cd_bucket_request request = {.inputs = inputs,
                                 .input_count = 0,
                                 .limits = &limit,
                                 .limit_count = 1};
    assert_fails(cd_bucket_assignment_by_size(&request, &layout, &err), CDDP_E_ARG, &err,
                 "no tensors");
    request.input_count = 2; /* TI-A-25 */
    assert_fails(cd_bucket_assignment_by_size(&request, &layout, &err), CDDP_E_ARG, &err,
                 "tensor 1 has a sparse layout");
    request.input_count = 1;
    request.limit_count = 0;
    assert_fails(cd_bucket_assignment_by_size(&request, &layout, &err), CDDP_E_ARG, &err,
                 "without a size limit");
    cd_bucket_layout_fini(&layout);
}

/* BKT-14: ten tensors of 7367696 bytes. FU=True: the list of buckets is reversed, so the small
** first bucket is reduced last; rebuilt in arrival order it is reduced first. */
static void assign_ten(const uint32_t *arrival, cd_bucket_layout *layout, uint64_t *bytes)
{
    /* 6309904 + 1057792 initially and 2107408 + 5260288 rebuilt: sizes that give both. */
    static const uint64_t sizes[10] = {1048576, 5120,    4096, 1050624, 4096,
                                       1049600, 2098176, 8192, 2097152, 2064};
    uint64_t total = 0;
    cd_bucket_input inputs[10];
    uint64_t limits[2] = {0};
    const cd_bucket_caps caps = {.first_bytes = 1048576,
                                 .capacity_bytes = 26214400,
                                 .is_default = true};
    for (size_t i = 0; i < 10; i++) {
        uint64_t size = sizes[arrival != NULL ? arrival[i] : i];
        inputs[i] = (cd_bucket_input){.bytes = size};
        total += size;
    }
    assert_int_equal(total, 7367696);
    cd_bucket_request request = {.inputs = inputs, .input_count = 10, .indices = arrival};
    request.limit_count = arrival != NULL
                              ? cd_bucket_caps_rebuild(&caps, limits, &request.limits)
                              : cd_bucket_caps_initial(&caps, false, limits, &request.limits);
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cd_bucket_assignment_by_size(&request, layout, &err), &err);
    if (arrival == NULL) cd_bucket_layout_reverse(layout);
    for (size_t b = 0; b < layout->bucket_count; b++) {
        bytes[b] = 0;
        for (uint32_t i = layout->starts[b]; i < layout->starts[b + 1]; i++)
            bytes[b] += sizes[layout->indices[i]];
    }
}

TEST(bucket_plan, small_first_bucket_is_reduced_last_at_first_and_first_after_the_rebuild)
{
    static const uint32_t backwards[10] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
    cddp_error err = CDDP_ERROR_INIT;
    cd_bucket_layout layout = {0};
    uint64_t bytes[10];
    assert_ok(cd_bucket_layout_init(&layout, 10, NULL, &err), &err);
    assign_ten(NULL, &layout, bytes);
    assert_int_equal(layout.bucket_count, 2);
    assert_true(bytes[0] > bytes[1]);
    /* the small one holds the first registered, ascending */
    assert_int_equal(layout.indices[layout.starts[1]], 0);
    assert_int_equal(layout.limits[1], 1048576);
    assign_ten(backwards, &layout, bytes);
    assert_int_equal(layout.bucket_count, 2);
    assert_int_equal(layout.indices[0], 9);
    assert_int_equal(layout.limits[0], 1048576);
    assert_true(bytes[0] < bytes[1]);
    assert_int_equal(bytes[0], 2064 + 2097152); /* overshoots by one tensor */
    cd_bucket_layout_fini(&layout);
}

TEST(bucket_plan, reversing_turns_the_list_and_keeps_the_contents)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_bucket_layout layout = {0};
    cd_bucket_input inputs[5] = {
        {.bytes = 40}, {.bytes = 40}, {.bytes = 40}, {.bytes = 40}, {.bytes = 40}};
    uint64_t limits[2] = {40, 80};
    cd_bucket_request request = {.inputs = inputs,
                                 .input_count = 5,
                                 .limits = limits,
                                 .limit_count = 2};
    assert_ok(cd_bucket_layout_init(&layout, 5, NULL, &err), &err);
    assert_ok(cd_bucket_assignment_by_size(&request, &layout, &err), &err);
    cd_bucket_layout_reverse(&layout);
    char text[64] = "", limit_text[64] = "";
    print_layout(&layout, text, limit_text);
    assert_string_equal(text, "3 4 | 1 2 | 0"); /* BKT-10 */
    assert_string_equal(limit_text, "80 80 40");
    cd_bucket_layout_audit(&layout);
    cd_bucket_layout_fini(&layout);
}

TEST(bucket_plan, capacities_are_truncated_mebibytes)
{
    assert_int_equal(cd_bucket_cap_bytes(0.001), 1048); /* BKT-12 */
    assert_int_equal(cd_bucket_cap_bytes(1.5), 1572864);
    assert_int_equal(cd_bucket_cap_bytes(25), 26214400);
}

TEST(bucket_plan, initial_limits_follow_the_mode)
{
    static const uint64_t list[2] = {100, 200};
    const cd_bucket_caps unasked = {.first_bytes = 1048576,
                                    .capacity_bytes = 26214400,
                                    .is_default = true};
    const cd_bucket_caps asked = {.first_bytes = 1048, .capacity_bytes = 1048};
    const cd_bucket_caps listed = {.first_bytes = 200,
                                   .capacity_bytes = 200,
                                   .list = list,
                                   .list_count = 2};
    uint64_t own[2];
    const uint64_t *limits = NULL;
    assert_int_equal(cd_bucket_caps_initial(&unasked, true, own, &limits), 1); /* BKT-11 */
    assert_true(limits[0] == CD_BUCKET_LIMIT_INFINITE);
    assert_int_equal(cd_bucket_caps_initial(&unasked, false, own, &limits), 2);
    assert_int_equal(limits[0], 1048576);
    assert_int_equal(cd_bucket_caps_initial(&asked, false, own, &limits), 1);
    assert_int_equal(limits[0], 1048);
    /* a list beats everything */
    assert_int_equal(cd_bucket_caps_initial(&listed, true, own, &limits), 2);
    assert_int_equal(limits[1], 200);
    assert_int_equal(cd_bucket_caps_rebuild(&listed, own, &limits), 2); /* BKT-15 */
}

static cddp_status assign_with(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cd_bucket_layout layout = {0};
    cd_bucket_input inputs[3] = {{.bytes = 4}, {.bytes = 4}, {.bytes = 4}};
    uint64_t limit = 8;
    cddp_status status = cd_bucket_layout_init(&layout, 3, allocator, err);
    if (status != CDDP_OK) return status;
    cd_bucket_request request = {.inputs = inputs,
                                 .input_count = 3,
                                 .limits = &limit,
                                 .limit_count = 1};
    status = cd_bucket_assignment_by_size(&request, &layout, err);
    cd_bucket_layout_fini(&layout);
    return status;
}

TEST(bucket_plan, leaves_nothing_behind_when_memory_runs_out)
{
    assert_true(cd_test_oom_loop(assign_with, NULL) > 3);
}

TEST_MAIN()
