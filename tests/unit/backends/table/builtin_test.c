/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/table/builtin.h"

#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

TEST(backend_table, every_row_says_what_it_is_and_is_built_in_or_a_module_or_absent)
{
    size_t count = 0;
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++, count++) {
        cd_test_row("%s", row->name);
        assert_true(strlen(row->name) > 0 && strlen(row->summary) > 0);
        assert_false(row->module[0] != '\0' && row->absent[0] != '\0');
        if (row->module[0] != '\0') {
            char wanted[64];
            snprintf(wanted, sizeof wanted, "cddp-%s.so", row->name);
            assert_string_equal(row->module, wanted);
        }
        assert_ptr_equal(cd_backend_row_find(row->name), row); /* names are unique */
    }
    assert_true(count >= 2);
}

TEST(backend_table, what_needs_nothing_from_outside_is_always_built_in)
{
    static const char *const always[] = {"self", "sim"};
    for (size_t i = 0; i < 2; i++) {
        const cd_backend_row *row = cd_backend_row_find(always[i]);
        assert_non_null(row);
        assert_string_equal(row->module, "");
        assert_string_equal(row->absent, "");
    }
    assert_null(cd_backend_row_find("no such backend"));
    /* relative: the installation may be moved */
    assert_true(strncmp(cd_backend_module_dir, "../", 3) == 0);
}

TEST_MAIN()
