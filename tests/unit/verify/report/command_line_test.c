/* SPDX-License-Identifier: Apache-2.0 */
/* Lines that repeat a run: a shell reads back what was meant. */
#include "verify/report/command_line.h"

#include "tests/support/test.h"

#include <string.h>

static const char *plugin(const void *context, size_t index)
{
    const char *const *plugins = context;
    return plugins[index];
}

TEST(command_line, each_part_is_there_and_quoted)
{
    static const char *const plugins[] = {"./a.so", "b c.so", NULL};
    static const struct {
        cd_command_line line;
        const char *wanted;
    } cases[] = {{{.source = "a.toml", .overrides = ""}, "cddp-verify run a.toml"},
                 {{.source = "a.toml", .overrides = "", .schedule = "s1:"},
                  "cddp-verify replay a.toml --schedule s1:"},
                 {{.source = "a.toml", .overrides = "", .command = "shrink"},
                  "cddp-verify shrink a.toml"},
                 {{.source = "a b's.toml", .overrides = "title=x y\nworld.size=3\n"},
                  "cddp-verify run 'a b'\\''s.toml' --set 'title=x y' --set world.size=3"},
                 {{.source = "", .overrides = "", .plugin = plugin, .context = plugins},
                  "cddp-verify run '' --plugin ./a.so --plugin 'b c.so'"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_text text;
        cd_text_init(&text, false);
        cd_command_line_print(&text, &cases[i].line);
        assert_string_equal(cd_text_get(&text), cases[i].wanted);
        cd_text_fini(&text);
    }
}

TEST_MAIN()
