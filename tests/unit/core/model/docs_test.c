/* SPDX-License-Identifier: Apache-2.0 */
/* docs/models.md names every model, every option and its default. */
#include "tests/support/test.h"

#include "core/model/model.h"

#include <stdio.h>
#include <string.h>

static char page[1 << 16];

static void read_page(void)
{
    FILE *file = fopen(CDDP_ROOT "/docs/models.md", "r");
    assert_non_null(file);
    size_t bytes = fread(page, 1, sizeof page - 1, file);
    fclose(file);
    assert_in_range(bytes, 1000, sizeof page - 2);
    page[bytes] = 0;
}

/* The part of the page about one model: from its heading, or from its row among the lists. */
static const char *part_of(const char *model)
{
    char heading[64];
    snprintf(heading, sizeof heading, "\n### %s\n", model);
    const char *found = strstr(page, heading);
    if (found != NULL) return found;
    snprintf(heading, sizeof heading, "\n| `%s` |", model);
    return strstr(page, heading);
}

TEST(docs, name_every_model_and_every_option_with_its_default)
{
    read_page();
    for (size_t t = 0; t < cd_model_type_count(); t++) {
        const char *part = part_of(cd_model_type_name(t)), *name = NULL, *initial = NULL,
                   *doc = NULL;
        cd_test_row("%s", cd_model_type_name(t));
        assert_non_null(part);
        for (size_t o = 0; cd_model_type_option(t, o, &name, &initial, &doc); o++) {
            char row[128];
            if (initial[0] != 0)
                snprintf(row, sizeof row, "| `%s` | `%s` |", name, initial);
            else
                snprintf(row, sizeof row, "| `%s` | |", name);
            if (strstr(part, row) == NULL)
                fail_msg("docs/models.md does not say %s of %s", row, cd_model_type_name(t));
        }
    }
}

TEST_MAIN()
