/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a model's options: every error names the option, what was given and what would be
** accepted. */
#include "core/model/type.h"

#include "core/base/assert.h"
#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>

static void *field_of(const cd_option *option, void *state)
{
    return (unsigned char *)state + option->offset;
}

static bool parse_integer(const char *text, int64_t *value)
{
    char *end = NULL;
    if (text[0] == 0 || strspn(text, "-0123456789") != strlen(text)) return false;
    *value = strtoll(text, &end, 10);
    return *end == 0;
}

static cddp_status check_range(const cd_option *option, double value, const char *text,
                               cddp_error *err)
{
    if (value >= option->low && value <= option->high) return CDDP_OK;
    return cd_fail(err, CDDP_E_CONFIG, "model option %s=%s: must be in %g … %g", option->name, text,
                   option->low, option->high);
}

static cddp_status set_integer(const cd_option *option, const char *text, int64_t *value,
                               cddp_error *err)
{
    int64_t parsed = 0;
    if (!parse_integer(text, &parsed))
        return cd_fail(err, CDDP_E_CONFIG, "model option %s=%s: not an integer", option->name,
                       text);
    CD_TRY(check_range(option, (double)parsed, text, err));
    *value = parsed;
    return CDDP_OK;
}

static cddp_status set_choice(const cd_option *option, const char *text, int64_t *value,
                              cddp_error *err)
{
    int64_t position = 0;
    size_t length = strlen(text);
    for (const char *word = option->choices; word != NULL; position++) {
        const char *bar = strchr(word, '|');
        size_t word_length = bar != NULL ? (size_t)(bar - word) : strlen(word);
        if (word_length == length && strncmp(word, text, length) == 0) {
            *value = position;
            return CDDP_OK;
        }
        word = bar != NULL ? bar + 1 : NULL;
    }
    return cd_fail(err, CDDP_E_CONFIG, "model option %s=%s: must be one of %s", option->name, text,
                   option->choices);
}

/* No strtod: digits, a point and an exponent would drag in the locale. "0.125" is enough for
** probabilities. */
static cddp_status set_real(const cd_option *option, const char *text, double *value,
                            cddp_error *err)
{
    double whole = 0, scale = 1;
    bool point = false, negative = text[0] == '-';
    size_t digits = 0;
    for (const char *c = text + negative; *c != 0; c++) {
        if (*c == '.' && !point) {
            point = true;
            continue;
        }
        if (*c < '0' || *c > '9' || ++digits > 15)
            return cd_fail(err, CDDP_E_CONFIG, "model option %s=%s: not a decimal number",
                           option->name, text);
        whole = whole * 10 + (*c - '0');
        if (point) scale *= 10;
    }
    if (digits == 0)
        return cd_fail(err, CDDP_E_CONFIG, "model option %s=%s: not a decimal number", option->name,
                       text);
    double parsed = (negative ? -whole : whole) / scale;
    CD_TRY(check_range(option, parsed, text, err));
    *value = parsed;
    return CDDP_OK;
}

static cddp_status set_integers(const cd_option *option, const char *text, cd_integers *list,
                                cddp_error *err)
{
    cd_integers parsed = {.count = 0};
    for (const char *item = text; item != NULL;) {
        char word[24];
        const char *colon = strchr(item, ':');
        size_t length = colon != NULL ? (size_t)(colon - item) : strlen(item);
        if (length >= sizeof word || parsed.count >= CD_INTEGERS_MAX)
            return cd_fail(err, CDDP_E_CONFIG,
                           "model option %s=%s: a list like 4:8:3 of at most %d integers",
                           option->name, text, CD_INTEGERS_MAX);
        memcpy(word, item, length);
        word[length] = 0;
        CD_TRY(set_integer(option, word, &parsed.items[parsed.count], err));
        parsed.count++;
        item = colon != NULL ? colon + 1 : NULL;
    }
    *list = parsed;
    return CDDP_OK;
}

static cddp_status set_option(const cd_option *option, const char *text, void *state,
                              cddp_error *err)
{
    void *field = field_of(option, state);
    switch (option->kind) {
    case CD_OPTION_INTEGER:
        return CD_PASS(set_integer(option, text, field, err));
    case CD_OPTION_CHOICE:
        return CD_PASS(set_choice(option, text, field, err));
    case CD_OPTION_REAL:
        return CD_PASS(set_real(option, text, field, err));
    case CD_OPTION_INTEGERS:
        return CD_PASS(set_integers(option, text, field, err));
    case CD_OPTION_TEXT:
        *(const char **)field = text;
        return CDDP_OK;
    }
    CD_ASSERT(option->kind <= CD_OPTION_TEXT);
    return CDDP_OK;
}

static const cd_option *find_option(const cd_model_type *type, const char *name)
{
    for (size_t i = 0; i < type->option_count; i++)
        if (strcmp(type->options[i].name, name) == 0) return &type->options[i];
    return NULL;
}

static cddp_status refuse(const cd_model_type *type, const char *name, cddp_error *err)
{
    char known[256] = "";
    for (size_t i = 0; i < type->option_count; i++) {
        size_t used = strlen(known), more = strlen(type->options[i].name);
        if (used + more + 2 >= sizeof known) break;
        if (used > 0) known[used++] = ' ';
        memcpy(known + used, type->options[i].name, more + 1);
    }
    return cd_fail(err, CDDP_E_CONFIG, "model %s has no option \"%s\"; it has: %s", type->name,
                   name, known);
}

cddp_status cd_options_parse(const cd_model_type *type, char *text, void *state, cddp_error *err)
{
    for (size_t i = 0; i < type->option_count; i++)
        CD_TRY(set_option(&type->options[i], type->options[i].initial, state, err));
    for (char *item = text; item != NULL && *item != 0;) {
        char *comma = strchr(item, ','), *equals = NULL;
        if (comma != NULL) *comma = 0;
        equals = strchr(item, '=');
        if (equals == NULL)
            return cd_fail(err, CDDP_E_CONFIG, "model option \"%s\": must be key=value", item);
        *equals = 0;
        const cd_option *option = find_option(type, item);
        if (option == NULL) return CD_PASS(refuse(type, item, err));
        CD_TRY(set_option(option, equals + 1, state, err));
        item = comma != NULL ? comma + 1 : NULL;
    }
    return CDDP_OK;
}
