/* SPDX-License-Identifier: Apache-2.0 */
/* From text to a field of the plan and back: every type of key, its range, and the message when it
** does not fit.
**
** Real numbers are read and written with a point, whatever the locale is (core/base/real.h).
*/
#include "core/plan/keys.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/real.h"
#include "core/base/suggest.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cddp_status refuse(const cd_key_row *row, const char *text, const char *wanted,
                          cddp_error *err)
{
    char path[96];
    cd_key_path(row, path, sizeof path);
    return cd_fail(err, CDDP_E_CONFIG, "%s = '%s' is not %s", path, text, wanted);
}

static cddp_status check_range(const cd_key_row *row, double value, const char *text,
                               cddp_error *err)
{
    if (value >= row->low && value <= row->high) return CDDP_OK;
    char path[96];
    cd_key_path(row, path, sizeof path);
    return cd_fail(err, CDDP_E_CONFIG, "%s = %s is out of range: %.16g to %.16g", path, text,
                   row->low, row->high);
}

/* Without the underscores that TOML permits between two digits. False: it does not fit, or one
** stands elsewhere. */
static bool strip_underscores(const char *text, char *plain, size_t plain_bytes)
{
    size_t used = 0;
    for (const char *c = text; *c != '\0'; c++) {
        const bool is_between = *c == '_' && c > text && isxdigit((unsigned char)c[-1]) != 0 &&
                                isxdigit((unsigned char)c[1]) != 0;
        if (is_between) continue;
        if (*c == '_' || used + 1 >= plain_bytes) return false;
        plain[used++] = *c;
    }
    plain[used] = '\0';
    return true;
}

/* 0x, 0o and 0b, as TOML has them: without a sign. 10: none of them. */
static int take_base(const char **digits)
{
    const char *d = *digits;
    const int base = d[0] != '0' ? 10 : d[1] == 'x' ? 16 : d[1] == 'o' ? 8 : d[1] == 'b' ? 2 : 10;
    if (base != 10 && isxdigit((unsigned char)d[2]) != 0) *digits += 2;
    return base;
}

static cddp_status parse_integer(const cd_key_row *row, const char *text, int64_t *value,
                                 cddp_error *err)
{
    char *end, plain[80];
    const char *digits = plain;
    if (!strip_underscores(text, plain, sizeof plain))
        return CD_PASS(refuse(row, text, "a whole number", err));
    const int base = take_base(&digits);
    errno = 0;
    long long number = strtoll(digits, &end, base);
    if (end == digits || *end != '\0') return CD_PASS(refuse(row, text, "a whole number", err));
    /* what does not fit became the largest there is */
    CD_TRY(check_range(row, (double)number, text, err));
    if (errno != 0) return CD_PASS(refuse(row, text, "a whole number of 64 bits", err));
    *value = number;
    return CDDP_OK;
}

static cddp_status parse_number(const cd_key_row *row, const char *text, double *value,
                                cddp_error *err)
{
    char *end, plain[80];
    if (!strip_underscores(text, plain, sizeof plain))
        return CD_PASS(refuse(row, text, "a number", err));
    double number = cd_real_parse(plain, &end);
    if (end == plain || *end != '\0' || number != number)
        return CD_PASS(refuse(row, text, "a number", err));
    CD_TRY(check_range(row, number, text, err));
    *value = number;
    return CDDP_OK;
}

static cddp_status parse_flag(const cd_key_row *row, const char *text, bool *value, cddp_error *err)
{
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return CD_PASS(refuse(row, text, "true or false", err));
    *value = text[0] == 't';
    return CDDP_OK;
}

/* Appends the word that was probably meant. */
static void suggest_choice(const cd_key_row *row, const char *text, char *wanted,
                           size_t wanted_bytes)
{
    char words[256];
    cd_suggestion s;
    snprintf(words, sizeof words, "%s", row->choices);
    cd_suggest_begin(&s, text);
    for (char *word = words; word != NULL;) {
        char *bar = strchr(word, '|');
        if (bar != NULL) *bar++ = '\0';
        cd_suggest_offer(&s, word);
        word = bar;
    }
    const size_t used = strlen(wanted);
    if (s.best != NULL)
        snprintf(wanted + used, wanted_bytes - used, "; did you mean '%s'?", s.best);
}

/* Position of a word in "a|b|c". */
static cddp_status parse_choice(const cd_key_row *row, const char *text, int64_t *value,
                                cddp_error *err)
{
    int64_t position = 0;
    for (const char *word = row->choices; word != NULL; position++) {
        const char *bar = strchr(word, '|');
        size_t length = bar != NULL ? (size_t)(bar - word) : strlen(word);
        if (strlen(text) == length && memcmp(word, text, length) == 0) {
            *value = position;
            return CDDP_OK;
        }
        word = bar != NULL ? bar + 1 : NULL;
    }
    char wanted[320];
    snprintf(wanted, sizeof wanted, "one of %.250s", row->choices);
    suggest_choice(row, text, wanted, sizeof wanted);
    return CD_PASS(refuse(row, text, wanted, err));
}

/* `[]` and "" read as "none", where no terms mean "all". */
static cddp_status refuse_none(const cd_key_row *row, cddp_error *err)
{
    char path[96];
    cd_key_path(row, path, sizeof path);
    return cd_fail(err, CDDP_E_CONFIG,
                   "%s selects nothing: leave the key out for all, or name what is selected", path);
}

static cddp_status parse_selector(const cd_key_row *row, const cd_key_value *value, void *field,
                                  cddp_error *err)
{
    cddp_selector all = {0};
    if (value->count == 0) return CD_PASS(refuse_none(row, err));
    for (size_t i = 0; i < value->count; i++) {
        cddp_selector some;
        if (value->items[i][0] == '\0') return CD_PASS(refuse_none(row, err));
        if (cd_selector_parse(value->items[i], &some, NULL) != CDDP_OK) {
            return CD_PASS(
                refuse(row, value->items[i],
                       "a selection: write 2, \"0-3\", \"1%2\" (n mod 2 == 1) or a list of these",
                       err));
        }
        if (all.term_count + some.term_count > CDDP_SELECTOR_TERMS_MAX)
            return CD_PASS(refuse(row, value->items[i], "short enough: at most 8 terms", err));
        memcpy(&all.terms[all.term_count], some.terms, some.term_count * sizeof some.terms[0]);
        all.term_count += some.term_count;
    }
    memcpy(field, &all, sizeof all);
    return CDDP_OK;
}

static char *copy_text(cd_arena *arena, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = cd_arena_push(arena, bytes);
    if (copy != NULL) memcpy(copy, text, bytes);
    return copy;
}

#define NO_MEMORY(err) cd_fail_memory(err, "a scenario value")

static cddp_status refuse_empty(const cd_key_row *row, size_t at, cddp_error *err)
{
    char path[96];
    cd_key_path(row, path, sizeof path);
    return cd_fail(err, CDDP_E_CONFIG, "text %zu of %s is empty: leave it out, or name something",
                   at + 1, path);
}

static cddp_status parse_list(const cd_key_row *row, const cd_key_value *value, cd_arena *arena,
                              void *field, cddp_error *err)
{
    size_t item_bytes = row->type == CDDP_KEY_TEXTS     ? sizeof(char *)
                        : row->type == CDDP_KEY_NUMBERS ? sizeof(double)
                                                        : sizeof(uint32_t);
    void *items = cd_arena_push(arena, value->count * item_bytes + 1);
    if (items == NULL) return NO_MEMORY(err);
    for (size_t i = 0; i < value->count; i++) {
        if (row->type == CDDP_KEY_TEXTS) {
            if (value->items[i][0] == '\0') return CD_PASS(refuse_empty(row, i, err));
            ((char **)items)[i] = copy_text(arena, value->items[i]);
            if (((char **)items)[i] == NULL) return NO_MEMORY(err);
        } else if (row->type == CDDP_KEY_NUMBERS) {
            CD_TRY(parse_number(row, value->items[i], (double *)items + i, err));
        } else {
            int64_t number;
            CD_TRY(parse_integer(row, value->items[i], &number, err));
            ((uint32_t *)items)[i] = (uint32_t)number;
        }
    }
    /* The three list types have one layout: a pointer and a count. */
    cddp_text_list list = {(const char *const *)items, value->count};
    memcpy(field, &list, sizeof list);
    return CDDP_OK;
}

/* An empty text is no text. A key with a default always has one. */
static cddp_status check_empty(const cd_key_row *row, cddp_error *err)
{
    char path[96];
    if (row->initial[0] == '\0') return CDDP_OK;
    cd_key_path(row, path, sizeof path);
    return cd_fail(err, CDDP_E_CONFIG, "%s is empty; leave it out for its default, \"%s\"", path,
                   row->initial);
}

static cddp_status parse_scalar(const cd_key_row *row, const char *text, cd_arena *arena,
                                void *field, cddp_error *err)
{
    int64_t integer = 0;
    double number = 0;
    bool flag = false;
    char *copy;
    switch (row->type) {
    case CDDP_KEY_FLAG:
        CD_TRY(parse_flag(row, text, &flag, err));
        integer = flag;
        memcpy(field, row->width == sizeof flag ? (void *)&flag : (void *)&integer, row->width);
        return CDDP_OK;
    case CDDP_KEY_NUMBER:
        CD_TRY(parse_number(row, text, &number, err));
        memcpy(field, &number, sizeof number);
        return CDDP_OK;
    case CDDP_KEY_TEXT:
        if (text[0] == '\0') CD_TRY(check_empty(row, err));
        copy = text[0] != '\0' ? copy_text(arena, text) : NULL;
        if (text[0] != '\0' && copy == NULL) return NO_MEMORY(err);
        memcpy(field, &copy, sizeof copy);
        return CDDP_OK;
    case CDDP_KEY_CHOICE:
        CD_TRY(parse_choice(row, text, &integer, err));
        break;
    default:
        CD_TRY(parse_integer(row, text, &integer, err));
        break;
    }
    CD_ASSERT(row->width == sizeof integer);
    memcpy(field, &integer, sizeof integer);
    return CDDP_OK;
}

cddp_status cd_key_parse(const cd_key_row *row, const cd_key_value *value, cd_arena *arena,
                         void *field, cddp_error *err)
{
    if (row->type == CDDP_KEY_SELECTOR) return CD_PASS(parse_selector(row, value, field, err));
    if (row->type == CDDP_KEY_TEXTS || row->type == CDDP_KEY_NUMBERS ||
        row->type == CDDP_KEY_UNSIGNEDS)
        return CD_PASS(parse_list(row, value, arena, field, err));
    if (value->count != 1) {
        char path[96];
        cd_key_path(row, path, sizeof path);
        return cd_fail(err, CDDP_E_CONFIG, "%s takes one value, got %zu", path, value->count);
    }
    return CD_PASS(parse_scalar(row, value->items[0], arena, field, err));
}

/* ---- back to text ---- */

/* The shortest text that reads as the same number. */
static char *number_text(cd_arena *arena, double number)
{
    char text[40];
    int precision = 1;
    do {
        cd_real_print(number, precision, text, sizeof text);
    } while (cd_real_parse(text, NULL) != number && precision++ < 17);
    return copy_text(arena, text);
}

void cd_key_print_word(const cd_key_row *row, int64_t position, char *text, size_t text_bytes)
{
    const char *word = row->choices;
    for (; position > 0; position--) word = strchr(word, '|') + 1;
    snprintf(text, text_bytes, "%.*s", (int)strcspn(word, "|"), word);
}

static char *scalar_text(const cd_key_row *row, const void *field, cd_arena *arena)
{
    int64_t integer = 0;
    double number;
    const char *text;
    if (row->type == CDDP_KEY_TEXT) {
        memcpy(&text, field, sizeof text);
        return copy_text(arena, text);
    }
    if (row->type == CDDP_KEY_NUMBER) {
        memcpy(&number, field, sizeof number);
        return number_text(arena, number);
    }
    if (row->width == sizeof(bool))
        integer = *(const bool *)field;
    else
        memcpy(&integer, field, sizeof integer);
    if (row->type == CDDP_KEY_FLAG) return copy_text(arena, integer != 0 ? "true" : "false");
    if (row->type == CDDP_KEY_CHOICE) {
        char word[64];
        cd_key_print_word(row, integer, word, sizeof word);
        return copy_text(arena, word);
    }
    return cd_arena_printf(arena, "%lld", (long long)integer);
}

static char *list_text(const cd_key_row *row, const cddp_text_list *list, size_t i, cd_arena *arena)
{
    if (row->type == CDDP_KEY_TEXTS) return copy_text(arena, list->items[i]);
    if (row->type == CDDP_KEY_NUMBERS)
        return number_text(arena, ((const double *)(const void *)list->items)[i]);
    return cd_arena_printf(arena, "%u", ((const uint32_t *)(const void *)list->items)[i]);
}

static bool is_unset(const cd_key_row *row, const void *field)
{
    int64_t integer;
    const void *pointer;
    if (row->type == CDDP_KEY_TEXT) {
        memcpy(&pointer, field, sizeof pointer);
        return pointer == NULL;
    }
    if (row->type == CDDP_KEY_NUMBER || row->width != sizeof integer) return false;
    memcpy(&integer, field, sizeof integer);
    return integer == CDDP_PLAN_UNSET;
}

cddp_status cd_key_print(const cd_key_row *row, const void *field, cd_arena *arena,
                         cd_key_value *value, cddp_error *err)
{
    const bool is_list = row->type == CDDP_KEY_TEXTS || row->type == CDDP_KEY_NUMBERS ||
                         row->type == CDDP_KEY_UNSIGNEDS;
    char selector[CD_SELECTOR_TEXT_BYTES] = "";
    cddp_text_list list = {NULL, 0};
    size_t count = 1;
    if (is_list) {
        memcpy(&list, field, sizeof list);
        count = list.count;
    } else if (row->type == CDDP_KEY_SELECTOR) {
        cd_selector_print(field, selector, sizeof selector);
        count = selector[0] != '\0';
    } else if (is_unset(row, field)) {
        count = 0;
    }
    const char **items = cd_arena_push(arena, (count + 1) * sizeof *items);
    for (size_t i = 0; items != NULL && i < count; i++) {
        items[i] = is_list               ? list_text(row, &list, i, arena)
                   : selector[0] != '\0' ? copy_text(arena, selector)
                                         : scalar_text(row, field, arena);
        if (items[i] == NULL) items = NULL;
    }
    if (items == NULL) return NO_MEMORY(err);
    *value = (cd_key_value){items, count};
    return CDDP_OK;
}

void cd_key_parse_initial(const cd_key_row *row, void *field)
{
    if (row->initial[0] != '\0' && row->type != CDDP_KEY_TEXT) {
        const cd_key_value value = {&row->initial, 1};
        cddp_status status = cd_key_parse(row, &value, NULL, field, NULL);
        CD_ASSERT(status == CDDP_OK); /* a default that its own row refuses is a bug in keys.def */
        return;
    }
    memset(field, 0, row->width);
    if (row->type == CDDP_KEY_TEXT && row->initial[0] != '\0')
        memcpy(field, &row->initial, sizeof row->initial);
    const bool may_be_unset =
        row->type == CDDP_KEY_INTEGER || row->type == CDDP_KEY_CHOICE || row->type == CDDP_KEY_FLAG;
    if (may_be_unset && row->width == sizeof(int64_t)) {
        const int64_t unset = CDDP_PLAN_UNSET;
        memcpy(field, &unset, sizeof unset);
    }
}
