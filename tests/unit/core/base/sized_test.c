/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of older and newer writers. */
#include "core/base/sized.h"
#include "tests/support/test.h"

typedef struct sample {
    uint32_t size;
    uint32_t needed;
    uint64_t added;
} sample;

TEST(sized, a_missing_or_zeroed_struct_is_refused_by_name)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    const sample *nothing = NULL, zeroed = {0}, least = {.size = 8}, *given = &zeroed;
    assert_int_equal(CD_SIZED_CHECK(nothing, sample, needed, &err), CDDP_E_ARG);
    assert_string_equal(err.message, "sample is NULL");
    assert_int_equal(CD_SIZED_CHECK(given, sample, needed, &err), CDDP_E_ARG);
    assert_string_equal(err.message,
                        "the size of sample is 0; set it to sizeof(sample), which is 16 here");
    given = &least;
    assert_ok(CD_SIZED_CHECK(given, sample, needed, &err), &err);
}

TEST(sized, copies_and_fills_what_both_sides_know)
{
    (void)state;
    sample own = {.size = sizeof own, .needed = 1, .added = 7};
    const sample older = {.size = 8, .needed = 2, .added = 9};
    cd_sized_copy(&own, sizeof own, &older);
    assert_true(own.size == sizeof own && own.needed == 2 && own.added == 7);
    sample reader = {.size = 8, .added = 5};
    cd_sized_fill(&reader, &own, sizeof own);
    assert_true(reader.size == 8 && reader.needed == 2 && reader.added == 5);
}

TEST_MAIN()
