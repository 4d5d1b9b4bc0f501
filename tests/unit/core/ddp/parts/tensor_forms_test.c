/* SPDX-License-Identifier: Apache-2.0 */
#include "core/ddp/parts/tensor_forms.h"
#include "cddp/device.h"
#include "core/base/error.h"
#include "tests/support/test.h"

static float storage[64];

static cddp_tensor matrix(int64_t rows, int64_t columns)
{
    return cddp_tensor_of(cddp_device_cpu(), storage, 3, CDDP_F32, (int64_t[]){rows, columns}, 2);
}

TEST(tensor_forms, are_shared_by_tensors_that_differ_in_storage_only)
{
    (void)state;
    cd_arena arena = {0};
    cd_tensor_forms forms = {0};
    cddp_tensor first = matrix(2, 3), second = matrix(2, 3),
                bias = cddp_tensor_of(cddp_device_cpu(), storage, 0, CDDP_F32, (int64_t[]){3}, 1);
    second.storage = storage + 20;
    second.offset = 1;
    second.sizes[4] = 77; /* behind dim_count: nobody's business */
    const cd_tensor_form *weight = cd_tensor_forms_intern(&forms, &arena, &first);
    const cd_tensor_form *one = cd_tensor_forms_intern(&forms, &arena, &bias);
    for (int layer = 0; layer < 3; layer++) { /* found whatever was found before */
        assert_ptr_equal(cd_tensor_forms_intern(&forms, &arena, &second), weight);
        assert_ptr_equal(cd_tensor_forms_intern(&forms, &arena, &bias), one);
        assert_ptr_equal(cd_tensor_forms_intern(&forms, &arena, &bias), one);
    }
    assert_ptr_not_equal(weight, one);
    assert_int_equal(weight->numel, 6);
    const cd_packed_tensor packed = {weight, second.storage, second.offset};
    const cddp_tensor t = cd_packed_tensor_get(&packed);
    assert_true(t.storage == second.storage && t.offset == 1 && t.dtype == CDDP_F32 &&
                t.dim_count == 2);
    assert_true(t.device == cddp_device_cpu() && t.sizes[0] == 2 && t.sizes[1] == 3 &&
                t.strides[0] == 3 && t.strides[1] == 1);
    cd_arena_fini(&arena);
}

TEST(tensor_forms, differ_by_device_dtype_sizes_and_strides)
{
    (void)state;
    cd_arena arena = {0};
    cd_tensor_forms forms = {0};
    cddp_tensor tensors[] = {matrix(2, 3), matrix(3, 2), matrix(2, 3),
                             matrix(2, 3), matrix(2, 3), {.device = NULL}};
    tensors[2].dtype = CDDP_F64;
    tensors[3].device = cddp_device_shape();
    tensors[4].strides[0] = 1, tensors[4].strides[1] = 2;
    enum { COUNT = sizeof tensors / sizeof tensors[0] };
    const cd_tensor_form *found[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        found[i] = cd_tensor_forms_intern(&forms, &arena, &tensors[i]);
    for (size_t i = 0; i < COUNT; i++) {
        assert_ptr_equal(cd_tensor_forms_intern(&forms, &arena, &tensors[i]), found[i]);
        for (size_t j = 0; j < i; j++) assert_ptr_not_equal(found[i], found[j]);
    }
    assert_true(found[COUNT - 1]->like.device == NULL && found[COUNT - 1]->numel == 0);
    cd_arena_fini(&arena);
}

TEST(tensor_forms, know_the_layout_of_a_gradient) /* BKT-19 */
{
    (void)state;
    cd_arena arena = {0};
    cd_tensor_forms forms = {0};
    cddp_tensor dense = matrix(2, 3), spread = matrix(2, 3);
    dense.strides[0] = 1, dense.strides[1] = 2;
    spread.strides[0] = 7;
    const cddp_tensor kept = cd_tensor_forms_intern(&forms, &arena, &dense)->gradient;
    const cddp_tensor packed = cd_tensor_forms_intern(&forms, &arena, &spread)->gradient;
    assert_true(kept.strides[0] == 1 && kept.strides[1] == 2);
    assert_true(packed.strides[0] == 3 && packed.strides[1] == 1 && packed.sizes[0] == 2 &&
                packed.sizes[1] == 3);
    cd_arena_fini(&arena);
}

static cddp_status interns(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    cd_arena arena;
    cd_tensor_forms forms = {0};
    cddp_status status = CDDP_OK;
    (void)argument;
    cd_arena_init(&arena, allocator, 0);
    for (int64_t i = 1; i <= 3 && status == CDDP_OK; i++) {
        const cddp_tensor t = matrix(i, i);
        if (cd_tensor_forms_intern(&forms, &arena, &t) == NULL)
            status = cd_fail_memory(err, "form %d", (int)i);
    }
    cd_arena_fini(&arena);
    return status;
}

TEST(tensor_forms, leave_nothing_behind_when_memory_runs_out)
{
    (void)state;
    assert_int_equal(cd_test_oom_loop(interns, NULL), 3);
}

TEST_MAIN()
