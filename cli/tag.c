/* SPDX-License-Identifier: Apache-2.0 */
/* Tags are the first column of tables in two documents; a row is one line, "| UNU-04 | rule |". */
#include "cli/tag.h"

#include <stdio.h>
#include <string.h>

/* made by CMake from docs */
extern const char cd_document_semantics[], cd_document_zoo[], cd_document_fsdp[];

/* Copies the columns behind the first, "a | b |" as "a; b". Markup of code is left out. */
static void copy_columns(const char *at, cd_tag *tag)
{
    size_t used = 0;
    for (; *at != '\n' && *at != '\0' && used + 3 < sizeof tag->words; at++) {
        bool last = *at == '|' && strcspn(at + 1, "|\n") == strcspn(at + 1, "\n");
        if (last) break;
        if (*at == '`') continue;
        if (*at == '|') {
            while (used > 0 && tag->words[used - 1] == ' ') used--;
            tag->words[used++] = ';';
        } else {
            tag->words[used++] = *at;
        }
    }
    tag->words[used] = '\0';
}

bool cd_tag_find(const char *name, cd_tag *tag)
{
    const struct {
        const char *name, *text;
    } documents[] = {{"docs/semantics.md", cd_document_semantics},
                     {"docs/zoo.md", cd_document_zoo},
                     {"docs/fsdp.md", cd_document_fsdp}};
    char start[64];
    snprintf(start, sizeof start, "\n| %.40s | ", name);
    for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++) {
        const char *row = strstr(documents[i].text, start);
        if (row == NULL) continue;
        tag->document = documents[i].name;
        copy_columns(row + strlen(start), tag);
        return true;
    }
    return false;
}
