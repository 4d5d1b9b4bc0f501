/* SPDX-License-Identifier: Apache-2.0 */
#include "core/trace/setting.h"

#include "core/base/hash.h"

#include <string.h>

#define CDDP_WORD(constant, word) word "\0"
#define CHOICES_CHOICE(choices) choices
#define CHOICES_TEXT(choices) ""
#define CHOICES_FLAG(choices) ""
#define CHOICES_INTEGER(choices) ""
#define CHOICES_UNSIGNED(choices) ""
#define CHOICES_NUMBER(choices) ""
#define CHOICES_SELECTOR(choices) ""
#define CHOICES_TEXTS(choices) ""
#define CHOICES_NUMBERS(choices) ""
#define CHOICES_UNSIGNEDS(choices) ""

/* words: one after the other, each with its zero, and an empty one at the end */
static const struct {
    const char *path, *words;
    cddp_key_type type;
} rows[CDDP_KEY_COUNT] = {
#define CDDP_KEY_ROOT(field, type, choices, initial, low, high, doc) \
    {#field, CHOICES_##type(choices), CDDP_KEY_##type},
#define CDDP_KEY_PLAN(table, field, type, choices, initial, low, high, doc) \
    {#table "." #field, CHOICES_##type(choices), CDDP_KEY_##type},
#define CDDP_KEY_RANK CDDP_KEY_PLAN
#define CDDP_KEY_ITEM(table, field, type, choices, initial, low, high, doc) \
    {#table "[]." #field, CHOICES_##type(choices), CDDP_KEY_##type},
#include "cddp/keys.def"
};

const char *cd_setting_path(cddp_key key) { return rows[key].path; }

int64_t cd_setting_id(cddp_key key) { return (int64_t)cd_hash_text(rows[key].path); }

int32_t cd_setting_find(int64_t id)
{
    for (int32_t key = 0; key < CDDP_KEY_COUNT; key++)
        if (cd_setting_id((cddp_key)key) == id) return key;
    return -1;
}

const char *cddp_setting_path(int64_t id)
{
    const int32_t key = cd_setting_find(id);
    return key >= 0 ? rows[key].path : NULL;
}

cddp_key_type cd_setting_type(cddp_key key) { return rows[key].type; }

int64_t cd_setting_find_word(cddp_key key, const char *word)
{
    int64_t position = 0;
    for (const char *at = rows[key].words; *at != '\0'; at += strlen(at) + 1, position++)
        if (strcmp(at, word) == 0) return position;
    return -1;
}

void cd_setting_emit(struct cddp_tracer *tracer, const cd_setting *s)
{
    CD_EMIT(tracer, option, s->text, .key = cd_setting_id(s->key), .item = s->item,
            .items = s->items, .value = s->value, .real = cd_f64_bits(s->real));
}
