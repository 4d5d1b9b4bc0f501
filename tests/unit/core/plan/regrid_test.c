/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in a row are put on their grid where they lie, others through f64: with the same bits. */
#include "core/plan/replica/replica.h"

#include "cddp/device.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define COUNT 12

TEST(regrid, a_row_has_the_bits_of_numbers_that_lie_apart)
{
    static const float given[COUNT] = {0.0f,   -0.0f, 0.0625f,   -0.0625f, 1.0625f,  -8.0625f,
                                       8.125f, 1e14f, -3.14159f, NAN,      INFINITY, -2e30f};
    static const int64_t count = COUNT;
    float row[COUNT], apart[2 * COUNT];
    cddp_error err = CDDP_ERROR_INIT;
    memcpy(row, given, sizeof row);
    for (size_t i = 0; i < COUNT; i++) {
        apart[2 * i] = given[i];
        apart[2 * i + 1] = 77.0f;
    }
    const cddp_tensor a = cddp_tensor_of(cddp_device_cpu(), row, 0, CDDP_F32, &count, 1);
    cddp_tensor b = cddp_tensor_of(cddp_device_cpu(), apart, 0, CDDP_F32, &count, 1);
    b.strides[0] = 2;
    assert_ok(cd_regrid_tensor(NULL, &a, &err), &err);
    assert_ok(cd_regrid_tensor(NULL, &b, &err), &err);
    for (size_t i = 0; i < COUNT; i++) {
        cd_test_row("%g", (double)given[i]);
        assert_memory_equal(&row[i], &apart[2 * i], sizeof row[i]);
        assert_true(apart[2 * i + 1] == 77.0f);
        if (isfinite(given[i]) && fabsf(given[i]) < 1e15f)
            assert_true(fabsf(row[i]) <= 1.0f && row[i] * 8 == floorf(row[i] * 8));
    }
    assert_true(isnan(row[9]) && isinf(row[10]) && row[11] == -2e30f);
}

TEST(regrid, a_view_begins_at_its_offset)
{
    static const int64_t two = 2;
    float row[4] = {5.3f, 5.3f, 5.3f, 5.3f};
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), row, 1, CDDP_F32, &two, 1);
    assert_ok(cd_regrid_tensor(NULL, &t, &err), &err);
    assert_true(row[0] == 5.3f && row[3] == 5.3f && row[1] == row[2] && row[1] != 5.3f);
}

TEST_MAIN()
