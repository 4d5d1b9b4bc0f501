/* SPDX-License-Identifier: Apache-2.0 */
/* Text that grows. */
#include "core/base/text.h"

#include "core/base/alloc.h"
#include "core/base/format.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void cd_text_init(cd_text *text, bool color) { *text = (cd_text){.color = color}; }

void cd_text_fini(cd_text *text)
{
    cd_release(text->allocator, text->bytes, text->capacity);
    *text = (cd_text){.color = text->color, .allocator = text->allocator};
}

const char *cd_text_get(const cd_text *text) { return text->bytes != NULL ? text->bytes : ""; }

bool cd_text_reserve(cd_text *text, size_t bytes)
{
    if (!text->failed)
        text->failed = !cd_vec_grow(text->allocator, (void **)&text->bytes, &text->capacity,
                                    text->length + bytes + 1, 1);
    return !text->failed;
}

void cd_text_push_bytes(cd_text *text, const char *bytes, size_t length)
{
    if (!cd_text_reserve(text, length)) return;
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
}

void cd_text_push(cd_text *text, const char *bytes)
{
    cd_text_push_bytes(text, bytes, strlen(bytes));
}

static void push_list(cd_text *text, const char *format, va_list arguments) CDDP_PRINTF(2, 0);

static void push_list(cd_text *text, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int length = cd_vformat(NULL, 0, format, arguments);
    if (length >= 0 && cd_text_reserve(text, (size_t)length)) {
        cd_vformat(text->bytes + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

void cd_text_printf(cd_text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    push_list(text, format, arguments);
    va_end(arguments);
}

void cd_text_style(cd_text *text, cd_style style, const char *format, ...)
{
    static const char *const codes[] = {"",           "\033[1m",    "\033[2m", "\033[1;31m",
                                        "\033[1;32m", "\033[1;33m", "\033[36m"};
    va_list arguments;
    bool styled = text->color && style != CD_STYLE_NONE;
    if (styled) cd_text_push(text, codes[style]);
    va_start(arguments, format);
    push_list(text, format, arguments);
    va_end(arguments);
    if (styled) cd_text_push(text, "\033[0m");
}

size_t cd_utf8_length(const char *text)
{
    /* The ranges of Unicode's table of well-formed sequences: no overlong form, no surrogate,
    ** nothing above U+10FFFF. */
    const unsigned char *b = (const unsigned char *)text;
    if (b[0] < 0x80) return 1;
    size_t length = b[0] >= 0xc2 && b[0] <= 0xdf   ? 2
                    : (b[0] & 0xf0) == 0xe0        ? 3
                    : b[0] >= 0xf0 && b[0] <= 0xf4 ? 4
                                                   : 0;
    unsigned char low = 0x80, high = 0xbf;
    if (b[0] == 0xe0) low = 0xa0;
    if (b[0] == 0xed) high = 0x9f;
    if (b[0] == 0xf0) low = 0x90;
    if (b[0] == 0xf4) high = 0x8f;
    for (size_t i = 1; i < length; i++, low = 0x80, high = 0xbf)
        if (b[i] < low || b[i] > high) return 0;
    return length;
}

void cd_text_clean(char *text)
{
    for (char *at = text; *at != '\0';) {
        unsigned char byte = (unsigned char)*at;
        size_t length = cd_utf8_length(at);
        bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f ||
                       (length == 2 && byte == 0xc2 && (unsigned char)at[1] < 0xa0);
        for (size_t i = 0; i < length && control; i++) at[i] = '?';
        if (length == 0) *at = '?';
        at += length == 0 ? 1 : length;
    }
}

#define COLUMNS_MIN 20 /* narrower terminals fold lines by themselves */

void cd_text_wrap(cd_text *text, const char *words, size_t indent, size_t width)
{
    size_t column = indent;
    if (text->columns >= indent + COLUMNS_MIN && text->columns < width) width = text->columns;
    for (const char *at = words; *at != '\0';) {
        size_t length = strcspn(at, " \n");
        if (column > indent && column + 1 + length > width) {
            cd_text_printf(text, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            cd_text_push(text, " ");
            column++;
        }
        cd_text_push_bytes(text, at, length);
        column += length;
        at += length;
        at += strspn(at, " \n");
    }
    cd_text_push(text, "\n");
}

/* "30 min", "1 min 55 s", "2 h 5 min": of a long time the two largest units, as people say it. */
/* Moves the word at *from to *to, a space before it if it is not the first. */
static void keep_word(const char *text, char **to, const char **from, size_t length)
{
    if (*to != text && length > 0) *(*to)++ = ' ';
    memmove(*to, *from, length);
    *to += length;
}

void cd_text_pop_common(char *a, char *b)
{
    char *a_to = a, *b_to = b;
    const char *a_from = a, *b_from = b;
    while (*a_from != '\0' || *b_from != '\0') {
        const size_t m = strcspn(a_from, " "), n = strcspn(b_from, " ");
        if (m != n || memcmp(a_from, b_from, n) != 0) {
            keep_word(a, &a_to, &a_from, m);
            keep_word(b, &b_to, &b_from, n);
        }
        a_from += m + (a_from[m] == ' ');
        b_from += n + (b_from[n] == ' ');
    }
    *a_to = *b_to = '\0';
}

static void print_long(uint64_t seconds, char *text, size_t text_bytes)
{
    static const struct {
        uint64_t seconds;
        const char *name;
    } units[] = {{3600, "h"}, {60, "min"}, {1, "s"}};
    const size_t first = seconds >= 3600 ? 0 : 1;
    const uint64_t whole = seconds / units[first].seconds,
                   rest = seconds % units[first].seconds / units[first + 1].seconds;
    const int used =
        snprintf(text, text_bytes, "%llu %s", (unsigned long long)whole, units[first].name);
    if (rest > 0 && used > 0 && (size_t)used < text_bytes)
        snprintf(text + used, text_bytes - (size_t)used, " %llu %s", (unsigned long long)rest,
                 units[first + 1].name);
}

void cd_duration_print(uint64_t ns, char *text, size_t text_bytes)
{
    static const struct {
        double ns;
        const char *name;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    size_t i = 0;
    if (ns >= UINT64_C(60000000000)) {
        print_long((ns + 500000000) / 1000000000, text, text_bytes);
        return;
    }
    while (i + 1 < sizeof units / sizeof units[0] && (double)ns < units[i].ns) i++;
    cd_real_format(text, text_bytes, "%.4g %s", (double)ns / units[i].ns, units[i].name);
}
