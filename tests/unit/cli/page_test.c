/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of `explain`: every invariant has one, with all that a reader needs. */
#include "cli/page.h"

#include "core/check/check.h"
#include "tests/support/test.h"

#include <string.h>

TEST(page, every_invariant_has_one)
{
    static const char *const parts[] = {"breaks it\n    ", "keeps it\n    ", "how it shows\n    ",
                                        "usual causes\n    * "};
    (void)state;
    for (size_t i = 0; i < cd_checks_count(); i++) {
        cd_text page;
        cd_test_row("%s", cd_check_get(i)->name);
        cd_text_init(&page, false);
        assert_true(cd_page_print(cd_check_get(i)->name, &page));
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
            assert_non_null(strstr(cd_text_get(&page), parts[k]));
        assert_null(strstr(cd_text_get(&page), "**"));
        assert_null(strchr(cd_text_get(&page), '`'));
        cd_text_fini(&page);
    }
}

TEST(page, what_has_none_says_so)
{
    cd_text page;
    (void)state;
    cd_text_init(&page, false);
    assert_false(cd_page_print("nothing", &page));
    assert_false(cd_page_print("", &page));
    assert_int_equal(page.length, 0);
    cd_text_fini(&page);
}

TEST_MAIN()
