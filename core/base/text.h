/* SPDX-License-Identifier: Apache-2.0 */
/* A growing text, in which reports are built.
**
** Lifetime   init → append… → fini. Exhausted memory is recorded in `failed`; the text is then not
**            usable.
** Threads    one thread.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/status.h"

#include <stdint.h>

typedef struct cd_text {
    char *bytes; /* terminated, or NULL while empty */
    size_t length, capacity;
    bool color;     /* true: styles become terminal escapes; false: they are left out */
    bool failed;    /* memory ran out; nothing more is appended */
    size_t columns; /* of the terminal that it goes to; 0: not known, or none */
    const cddp_allocator *allocator; /* NULL: malloc's */
} cd_text;

typedef enum cd_style {
    CD_STYLE_NONE,
    CD_STYLE_BOLD,
    CD_STYLE_DIM,
    CD_STYLE_RED,
    CD_STYLE_GREEN,
    CD_STYLE_YELLOW,
    CD_STYLE_CYAN
} cd_style;

void cd_text_init(cd_text *text, bool color);
void cd_text_fini(cd_text *text);                  /* accepts a zeroed one */
bool cd_text_reserve(cd_text *text, size_t bytes); /* behind `length`, for who writes there */
void cd_text_push(cd_text *text, const char *bytes);
void cd_text_push_bytes(cd_text *text, const char *bytes, size_t length);
void cd_text_printf(cd_text *text, const char *format, ...) CDDP_PRINTF(2, 3);
void cd_text_style(cd_text *text, cd_style style, const char *format, ...) CDDP_PRINTF(3, 4);
const char *cd_text_get(const cd_text *text); /* never NULL */

/* The length of a valid UTF-8 sequence at text, 0 when it is not one. */
size_t cd_utf8_length(const char *text);
/* Makes foreign text harmless for terminals. Control characters other than newline and tab, and
** bytes that are no UTF-8, become question marks. */
void cd_text_clean(char *text);

/* Both are words with a space between them. Words that stand at one place in both, and are equal,
** are cut out of both; what is left may be "". */
void cd_text_pop_common(char *a, char *b);

/* Behind a noun: "s" unless there is one of them. */
static inline const char *cd_plural(uint64_t count) { return count == 1 ? "" : "s"; }

#define CD_DURATION_BYTES 32
/* "30 min", "1 min 55 s", "1.5 s", "540 us": below a minute the largest unit of which there is at
** least one, to four digits. */
void cd_duration_print(uint64_t ns, char *text, size_t text_bytes);

/* Appends `words` (a text), folded at `width` columns, or at those of the terminal if they are
** fewer. Every line after the first is indented by `indent`; a newline ends it. */
void cd_text_wrap(cd_text *text, const char *words, size_t indent, size_t width);
