/* SPDX-License-Identifier: Apache-2.0 */
/* Views: counting, density, and walks in logical order over every kind of stride. */
#include "core/tensor/view.h"

#include "core/base/prng.h"
#include "tests/unit/core/tensor/fixture.h"

static cddp_tensor view_of(const int64_t *sizes, const int64_t *strides, uint32_t dim_count)
{
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), NULL, 5, CDDP_F32, sizes, dim_count);
    for (uint32_t i = 0; i < dim_count; i++) t.strides[i] = strides[i];
    return t;
}

static const struct {
    const char *name;
    uint32_t dim_count;
    int64_t sizes[4], strides[4];
    bool contiguous, dense;
    uint32_t merged_dims;
} cases[] = {
    {"scalar", 0, {0}, {0}, true, true, 1},
    {"vector", 1, {7}, {1}, true, true, 1},
    {"matrix", 2, {3, 4}, {4, 1}, true, true, 1},
    {"transposed", 2, {4, 3}, {1, 4}, false, true, 2},
    {"channels last", 4, {2, 3, 4, 5}, {60, 1, 15, 3}, false, true, 3},
    {"every second column", 2, {3, 4}, {8, 2}, false, false, 1},
    {"a row of a wider matrix", 2, {3, 4}, {9, 1}, false, false, 2},
    {"expanded", 2, {3, 4}, {0, 1}, false, false, 2},
    {"backwards", 1, {6}, {-1}, false, false, 1},
    {"size one with a strange stride", 3, {1, 5, 1}, {77, 1, 13}, true, true, 1},
    {"empty", 3, {2, 0, 3}, {1, 1, 1}, true, true, 3},
};
#define CASE_COUNT (sizeof cases / sizeof cases[0])

TEST(view, a_row_is_what_the_loops_say_of_one_dimension)
{
    static unsigned char storage[64];
    cd_prng prng = cd_prng_seed(11);
    for (size_t round = 0; round < 20000; round++) {
        const int64_t size = (int64_t)cd_prng_below(&prng, 5) - 1;
        cddp_tensor t = {.device = cd_prng_below(&prng, 9) > 0 ? cddp_device_cpu() : NULL,
                         .storage = cd_prng_below(&prng, 9) > 0 ? storage : NULL,
                         .offset = (int64_t)cd_prng_below(&prng, 6) - 1,
                         .dtype = (cddp_dtype)cd_prng_below(&prng, CDDP_DTYPE_COUNT + 1),
                         .dim_count = (uint32_t)cd_prng_below(&prng, 3),
                         .sizes = {size, 1},
                         .strides = {(int64_t)cd_prng_below(&prng, 3), 1}};
        int64_t numel = 0;
        const bool is_row =
            t.dim_count == 1 && cd_view_is_sound(&t) && cd_view_is_contiguous(&t, &numel);
        cd_test_row("round %zu", round);
        assert_int_equal(cd_view_is_row(&t), is_row);
    }
    assert_false(cd_view_is_row(NULL));
}

TEST(view, elements_have_the_bytes_of_their_dtype)
{
    for (int dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++)
        assert_int_equal(cd_dtype_bytes((cddp_dtype)dtype), cddp_dtype_bytes((cddp_dtype)dtype));
}

TEST(view, contiguity_and_density_are_reported_from_strides)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        cddp_tensor t = view_of(cases[i].sizes, cases[i].strides, cases[i].dim_count);
        cd_test_row("%s", cases[i].name);
        assert_int_equal(cddp_tensor_is_contiguous(&t), cases[i].contiguous);
        assert_int_equal(cddp_tensor_is_dense(&t), cases[i].dense);
    }
}

/* Where logical element number `logical` lies, from the definition. */
static int64_t position_of(const cddp_tensor *t, int64_t logical)
{
    int64_t position = t->offset;
    for (uint32_t i = t->dim_count; i-- > 0;) {
        position += logical % t->sizes[i] * t->strides[i];
        logical /= t->sizes[i];
    }
    return position;
}

TEST(view, walks_meet_every_element_once_in_logical_order)
{
    for (size_t i = 0; i < CASE_COUNT; i++)
        for (int64_t most = 1; most < 9; most += 2) {
            cddp_tensor t = view_of(cases[i].sizes, cases[i].strides, cases[i].dim_count);
            cd_walk walk;
            int64_t logical = 0;
            cd_test_row("%s, at most %d at a time", cases[i].name, (int)most);
            cd_walk_begin(&walk, &t);
            for (int64_t ahead; (ahead = cd_walk_ahead(&walk)) > 0;) {
                cd_stretch s = cd_walk_take(&walk, ahead < most ? ahead : most);
                for (int64_t n = 0; n < s.length; n++, logical++)
                    assert_int_equal(s.position + n * s.stride, position_of(&t, logical));
            }
            assert_int_equal(logical, cddp_tensor_numel(&t));
            if (cddp_tensor_numel(&t) > 0) assert_int_equal(walk.dim_count, cases[i].merged_dims);
        }
}

TEST(view, parallel_views_are_those_with_equal_strides_and_no_gaps)
{
    const int64_t sizes[] = {4, 3}, down[] = {3, 1}, across[] = {1, 4}, wide[] = {9, 1};
    cddp_tensor a = view_of(sizes, down, 2), b = view_of(sizes, across, 2),
                c = view_of(sizes, wide, 2);
    cddp_tensor flat = view_of((int64_t[]){12}, (int64_t[]){1}, 1);
    assert_true(cd_view_is_parallel(&a, &a) && cd_view_is_parallel(&b, &b) &&
                cd_view_is_parallel(&a, &flat));
    assert_false(cd_view_is_parallel(&a, &b) || cd_view_is_parallel(&c, &c) ||
                 cd_view_is_parallel(&b, &flat));
}

TEST(view, slices_and_bad_views_are_checked)
{
    cddp_error err = CDDP_ERROR_INIT;
    float storage[12];
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), storage, 0, CDDP_F32, (int64_t[]){3, 4}, 2);
    cddp_tensor s = cddp_tensor_slice(&t, 5, 4);
    assert_true(s.offset == 5 && s.dim_count == 1 && s.sizes[0] == 4);
    assert_ok(cd_view_check(&t, "test", "view", &err), &err);
    t.sizes[1] = -4;
    assert_fails(cd_view_check(&t, "test", "view", &err), CDDP_E_ARG, &err,
                 "size 1 of the view is -4");
    t.sizes[1] = 4;
    t.dtype = (cddp_dtype)77;
    assert_fails(cd_view_check(&t, "test", "view", &err), CDDP_E_UNSUPPORTED, &err, "number 77");
    t.dtype = CDDP_F32;
    t.storage = NULL;
    assert_fails(cd_view_check(&t, "test", "view", &err), CDDP_E_ARG, &err, "no storage");
}

/* A stranger's mistake, which calls that take the tensor refuse. */
TEST(view, of_too_many_dimensions_has_no_storage)
{
    const int64_t sizes[CDDP_DIMS_MAX + 1] = {1};
    float x = 0;
    const cddp_tensor t =
        cddp_tensor_of(cddp_device_cpu(), &x, 0, CDDP_F32, sizes, CDDP_DIMS_MAX + 1);
    assert_null(t.storage);
    assert_int_equal(t.dim_count, 0);
}

TEST_MAIN()
