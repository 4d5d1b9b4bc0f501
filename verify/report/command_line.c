/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a shell that repeat a run. */
#include "verify/report/command_line.h"

#include <string.h>

/* A word that a shell takes as it is, or in single quotes. */
static void push_shell(cd_text *text, const char *word, size_t length)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=,:@%+";
    if (length > 0 && strspn(word, plain) >= length) {
        cd_text_push_bytes(text, word, length);
        return;
    }
    cd_text_push(text, "'");
    for (size_t i = 0; i < length; i++) {
        if (word[i] == '\'')
            cd_text_push(text, "'\\''");
        else
            cd_text_push_bytes(text, word + i, 1);
    }
    cd_text_push(text, "'");
}

static void push_option(cd_text *text, const char *name, const char *value, size_t length)
{
    cd_text_printf(text, " --%s ", name);
    push_shell(text, value, length);
}

void cd_command_line_print(cd_text *text, const cd_command_line *line)
{
    cd_text_printf(text, "cddp-verify %s ",
                   line->command != NULL    ? line->command
                   : line->schedule != NULL ? "replay"
                                            : "run");
    push_shell(text, line->source, strlen(line->source));
    for (const char *at = line->overrides; *at != '\0'; at += *at == '\n') {
        size_t length = strcspn(at, "\n");
        push_option(text, "set", at, length);
        at += length;
    }
    const char *plugin;
    for (size_t i = 0; line->plugin != NULL && (plugin = line->plugin(line->context, i)) != NULL;
         i++)
        push_option(text, "plugin", plugin, strlen(plugin));
    if (line->schedule != NULL)
        push_option(text, "schedule", line->schedule, strlen(line->schedule));
}
