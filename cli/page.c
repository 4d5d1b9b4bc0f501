/* SPDX-License-Identifier: Apache-2.0 */
/* A section is paragraphs, "**headings**", "* items" and indented lines of code, which are printed
** as they are. */
#include "cli/page.h"

#include <stdio.h>
#include <string.h>

#define PAGE_WIDTH 100

extern const char cd_document_explain[]; /* made by CMake from docs */

/* Without the marks of code. */
static void put_words(cd_text *text, const char *words, size_t length, size_t indent)
{
    cd_text plain;
    cd_text_init(&plain, false);
    for (size_t i = 0; i < length; i++)
        if (words[i] != '`') cd_text_push_bytes(&plain, &words[i], 1);
    cd_text_wrap(text, cd_text_get(&plain), indent, PAGE_WIDTH);
    cd_text_fini(&plain);
}

/* A paragraph goes on to an empty line or to the next item. */
static size_t paragraph_length(const char *at)
{
    size_t length = 0;
    while (at[length] != '\0') {
        length += strcspn(at + length, "\n");
        if (at[length] == '\0' || at[length + 1] == '\n' || at[length + 1] == '*') break;
        length++;
    }
    return length;
}

static size_t put_block(cd_text *text, const char *at)
{
    const size_t line = strcspn(at, "\n");
    if (strncmp(at, "    ", 4) == 0) {
        cd_text_push_bytes(text, at, line);
        cd_text_push(text, "\n");
        return line;
    }
    if (strncmp(at, "**", 2) == 0) {
        cd_text_style(text, CD_STYLE_CYAN, "%.*s", (int)(line - 4), at + 2);
        cd_text_push(text, "\n");
        return line;
    }
    const size_t length = paragraph_length(at);
    const bool is_item = strncmp(at, "* ", 2) == 0;
    cd_text_push(text, is_item ? "    * " : "    ");
    put_words(text, at + (is_item ? 2 : 0), length - (is_item ? 2 : 0), is_item ? 6 : 4);
    return length;
}

bool cd_page_print(const char *name, cd_text *text)
{
    char start[80];
    snprintf(start, sizeof start, "\n## %.60s\n", name);
    const char *at = strstr(cd_document_explain, start);
    if (at == NULL) return false;
    at += strlen(start);
    while (*at != '\0' && strncmp(at, "## ", 3) != 0) {
        if (*at != '\n') at += put_block(text, at);
        if (*at == '\n') at++;
    }
    return true;
}
