/* SPDX-License-Identifier: Apache-2.0 */
/* The key table: keys.def turned into rows, and looking them up.
**
** Not here: turning text into fields (key_value.c), the page written from the table
** (keys_document.c).
*/
#include "core/plan/keys.h"

#include "cddp/ddp.h"
#include "core/base/suggest.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The words of a choice lie in one text, "none|zero|keep"; the first bar is left out. */
#define CDDP_WORD(constant, word) "|" word
#define CHOICES_CHOICE(choices) choices "" + 1
#define CHOICES_TEXT(choices) choices
#define CHOICES_FLAG(choices) NULL
#define CHOICES_INTEGER(choices) NULL
#define CHOICES_UNSIGNED(choices) NULL
#define CHOICES_NUMBER(choices) NULL
#define CHOICES_SELECTOR(choices) NULL
#define CHOICES_TEXTS(choices) NULL
#define CHOICES_NUMBERS(choices) NULL
#define CHOICES_UNSIGNEDS(choices) NULL
#define WIDTH(type, member) sizeof(((type *)0)->member)
#define CDDP_KEY_ROOT(field, type, choices, initial, low, high, doc) \
    {CD_SCOPE_PLAN,                                                  \
     "",                                                             \
     #field,                                                         \
     CDDP_KEY_##type,                                                \
     CHOICES_##type(choices),                                        \
     initial,                                                        \
     low,                                                            \
     high,                                                           \
     offsetof(cddp_plan, field),                                     \
     WIDTH(cddp_plan, field),                                        \
     doc},
#define CDDP_KEY_PLAN(table, field, type, choices, initial, low, high, doc) \
    {CD_SCOPE_PLAN,                                                         \
     #table,                                                                \
     #field,                                                                \
     CDDP_KEY_##type,                                                       \
     CHOICES_##type(choices),                                               \
     initial,                                                               \
     low,                                                                   \
     high,                                                                  \
     offsetof(cddp_plan, table.field),                                      \
     WIDTH(cddp_plan, table.field),                                         \
     doc},
#define CDDP_KEY_RANK(table, field, type, choices, initial, low, high, doc) \
    {CD_SCOPE_RANK,                                                         \
     #table,                                                                \
     #field,                                                                \
     CDDP_KEY_##type,                                                       \
     CHOICES_##type(choices),                                               \
     initial,                                                               \
     low,                                                                   \
     high,                                                                  \
     offsetof(cddp_plan_settings, table.field),                             \
     WIDTH(cddp_plan_settings, table.field),                                \
     doc},
#define CDDP_KEY_ITEM(table, field, type, choices, initial, low, high, doc) \
    {CD_SCOPE_##table,                                                      \
     ITEM_NAME_##table,                                                     \
     #field,                                                                \
     CDDP_KEY_##type,                                                       \
     CHOICES_##type(choices),                                               \
     initial,                                                               \
     low,                                                                   \
     high,                                                                  \
     offsetof(cddp_plan_##table, field),                                    \
     WIDTH(cddp_plan_##table, field),                                       \
     doc},

#define ITEM_NAME_wrapper "wrapper"
#define ITEM_NAME_optimizer "optimizer"
#define ITEM_NAME_output "output"
#define ITEM_NAME_group "group"
#define ITEM_NAME_collective "collective"
#define ITEM_NAME_when "when"
#define ITEM_NAME_fault "fault"
#define ITEM_NAME_finding "expect.finding"

/* A word is cast to what the library calls it: these stand in one order. */
#define IS_SAME(word, constant) \
    _Static_assert((int)(word) == (int)(constant), #word " is not " #constant)
IS_SAME(CDDP_MODEL_DTYPE_F64, CDDP_F64);
IS_SAME(CDDP_MODEL_DTYPE_F32, CDDP_F32);
IS_SAME(CDDP_MODEL_DTYPE_F16, CDDP_F16);
IS_SAME(CDDP_MODEL_DTYPE_BF16, CDDP_BF16);
IS_SAME(CDDP_COLLECTIVE_DTYPE_BF16, CDDP_BF16);
IS_SAME(CDDP_COLLECTIVE_DTYPE_C64, CDDP_C64);
IS_SAME(CDDP_COLLECTIVE_DTYPE_I64, CDDP_I64);
IS_SAME(CDDP_COLLECTIVE_DTYPE_I32, CDDP_I32);
IS_SAME(CDDP_COLLECTIVE_DTYPE_U8, CDDP_U8);
IS_SAME(CDDP_PLAN_OVERLAP_HOOK_THEN_OPTIMIZER, CDDP_OVERLAP_HOOK_THEN_OPTIMIZER);
IS_SAME(CDDP_PLAN_OVERLAP_HOOK_WITH_ZERO_STEP, CDDP_OVERLAP_HOOK_WITH_ZERO_STEP);
IS_SAME(CDDP_PLAN_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED,
        CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED);
IS_SAME(CDDP_WHEN_READY_CHOSEN, CDDP_READY_CHOSEN);
IS_SAME(CDDP_OUTPUT_LOSS_MEAN, CDDP_LOSS_MEAN);
IS_SAME(CDDP_OUTPUT_LOSS_SUM, CDDP_LOSS_SUM);
IS_SAME(CDDP_OUTPUT_LOSS_TOKEN_MEAN, CDDP_LOSS_TOKEN_MEAN);
IS_SAME(CDDP_OUTPUT_LOSS_GLOBAL_MEAN, CDDP_LOSS_GLOBAL_MEAN);
IS_SAME(CDDP_OUTPUT_LOSS_GLOBAL_TOKEN_MEAN, CDDP_LOSS_GLOBAL_TOKEN_MEAN);
IS_SAME(CDDP_OUTPUT_OBJECTIVE_MEAN, CDDP_OBJECTIVE_MEAN);
IS_SAME(CDDP_OUTPUT_OBJECTIVE_TOKEN_MEAN, CDDP_OBJECTIVE_TOKEN_MEAN);

static const cd_key_row rows[] = {
#include "cddp/keys.def"
};

#define ITEM(scope, member, counter)                                    \
    [CD_SCOPE_##scope] = {ITEM_NAME_##scope, sizeof(cddp_plan_##scope), \
                          offsetof(cddp_plan, member), offsetof(cddp_plan, counter)}
static const cd_item_table item_tables[CD_SCOPE_COUNT] = {
    ITEM(wrapper, wrappers, wrapper_count),
    ITEM(optimizer, optimizers, optimizer_count),
    ITEM(output, outputs, output_count),
    ITEM(group, groups, group_count),
    ITEM(collective, collectives, collective_count),
    ITEM(when, whens, when_count),
    ITEM(fault, faults, fault_count),
    ITEM(finding, expect.findings, expect.finding_count)};

size_t cd_key_count(void) { return sizeof rows / sizeof rows[0]; }

const cd_key_row *cd_key_row_get(size_t index)
{
    return index < cd_key_count() ? &rows[index] : NULL;
}

const cd_item_table *cd_item_table_get(cd_key_scope scope)
{
    return item_tables[scope].name != NULL ? &item_tables[scope] : NULL;
}

const cd_key_row *cd_key_find(const char *table, const char *field)
{
    for (size_t i = 0; i < cd_key_count(); i++) {
        if (strcmp(rows[i].table, table) == 0 && strcmp(rows[i].field, field) == 0) return &rows[i];
    }
    return NULL;
}

const cd_key_row *cd_key_find_path(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot == NULL) return cd_key_find("", path);
    size_t length = (size_t)(dot - path);
    for (size_t i = 0; i < cd_key_count(); i++) {
        if (strlen(rows[i].table) == length && memcmp(rows[i].table, path, length) == 0 &&
            strcmp(rows[i].field, dot + 1) == 0)
            return &rows[i];
    }
    return NULL;
}

bool cd_key_has_table(const char *table)
{
    for (size_t i = 0; i < cd_key_count(); i++) {
        if (strcmp(rows[i].table, table) == 0) return true;
    }
    return false;
}

#define FIELDS_SHOWN 12 /* of a table, in one message */

static bool is_item_table(const char *table)
{
    for (size_t i = 0; i < CD_SCOPE_COUNT; i++)
        if (item_tables[i].name != NULL && strcmp(item_tables[i].name, table) == 0) return true;
    return false;
}

/* How many characters of whole words ("first_bucket_") both names begin with. */
static size_t common_words(const char *a, const char *b)
{
    size_t i = 0, length = 0;
    for (; a[i] != '\0' && a[i] == b[i]; i++)
        if (a[i] == '_') length = i + 1;
    const bool is_word = (a[i] == '\0' || a[i] == '_') && (b[i] == '\0' || b[i] == '_');
    return is_word ? i : length;
}

/* "at_step" begins as "at", and "first_bucket_mb" as "first_bucket_bytes". */
static const cd_key_row *find_by_words(const char *table, const char *field)
{
    const cd_key_row *best = NULL;
    size_t longest = 0;
    for (size_t i = 0; i < cd_key_count(); i++) {
        const size_t common = common_words(rows[i].field, field);
        const bool is_near = rows[i].field[common] == '\0' || 2 * common > strlen(field);
        if (strcmp(rows[i].table, table) != 0 || common <= longest || !is_near) continue;
        best = &rows[i];
        longest = common;
    }
    return best;
}

/* A word of so few letters is near many. */
static bool is_short(const char *field) { return strlen(field) <= 3; }

const cd_key_row *cd_key_nearest(const char *table, const char *field)
{
    cd_suggestion s;
    /* "lr" in [train] is that of [[optimizer]], and no misspelt train.lr_decay. */
    for (size_t i = 0; i < cd_key_count() && is_short(field); i++)
        if (strcmp(rows[i].field, field) == 0 && strncmp(rows[i].table, "expect", 6) != 0)
            return &rows[i];
    cd_suggest_begin(&s, field);
    for (size_t i = 0; i < cd_key_count(); i++) {
        if (strcmp(rows[i].table, table) == 0) cd_suggest_offer(&s, rows[i].field);
    }
    if (s.best != NULL) return cd_key_find(table, s.best);
    /* "world_size" is world.size, and "model" model.name. */
    for (size_t i = 0; i < cd_key_count(); i++) {
        const size_t length = strlen(rows[i].table);
        if (length == 0 || strncmp(field, rows[i].table, length) != 0) continue;
        const char *rest = field + length + (field[length] == '_');
        if (strcmp(rest, *rest != '\0' ? rows[i].field : "") == 0 &&
            (*rest != '\0' || strcmp(rows[i].field, "name") == 0))
            return &rows[i];
    }
    const cd_key_row *alike = find_by_words(table, field);
    if (alike != NULL) return alike;
    /* The right name in the wrong table is the other common slip. What findings and marks are
    ** expected to have is not what an element of a table is given. */
    for (size_t i = 0; i < cd_key_count(); i++) {
        const bool is_expected = strncmp(rows[i].table, "expect", 6) == 0;
        if (strcmp(rows[i].field, field) == 0 && (!is_expected || !is_item_table(table)))
            return &rows[i];
    }
    return NULL;
}

void cd_key_print_fields(const char *table, char *text, size_t text_bytes)
{
    size_t count = 0, used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < cd_key_count(); i++) count += strcmp(rows[i].table, table) == 0;
    if (count > FIELDS_SHOWN)
        snprintf(text, text_bytes, "; `cddp-verify list keys %s` shows those of [%s]", table,
                 table);
    if (count == 0 || count > FIELDS_SHOWN) return;
    used = (size_t)snprintf(text, text_bytes, "; [%s] has ", table);
    for (size_t i = 0; i < cd_key_count() && used < text_bytes; i++) {
        if (strcmp(rows[i].table, table) != 0) continue;
        count--;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", rows[i].field,
                                 count > 1    ? ", "
                                 : count == 1 ? " and "
                                              : "");
    }
}

const char *cd_key_nearest_table(const char *table)
{
    cd_suggestion s;
    cd_suggest_begin(&s, table);
    for (size_t i = 0; i < cd_key_count(); i++) {
        if (rows[i].table[0] != '\0') cd_suggest_offer(&s, rows[i].table);
    }
    return s.best;
}

void cd_key_path(const cd_key_row *row, char *text, size_t text_bytes)
{
    const char *brackets = cd_item_table_get(row->scope) != NULL ? "[]" : "";
    const char *dot = row->table[0] != '\0' ? "." : "";
    snprintf(text, text_bytes, "%s%s%s%s", row->table, brackets, dot, row->field);
}

bool cd_key_is_per_rank(const cd_key_row *row)
{
    static const size_t agreed[] = {offsetof(cddp_plan_optimizer, name),
                                    offsetof(cddp_plan_optimizer, parameters),
                                    offsetof(cddp_plan_optimizer, in_backward),
                                    offsetof(cddp_plan_optimizer, overlap),
                                    offsetof(cddp_plan_optimizer, shard),
                                    offsetof(cddp_plan_optimizer, shard_buckets)};
    const bool is_of_all =
        row->scope == CD_SCOPE_RANK && row->offset == offsetof(cddp_plan_settings, join.epochs);
    bool is_per_rank =
        (row->scope == CD_SCOPE_RANK && !is_of_all) || row->scope == CD_SCOPE_optimizer;
    for (size_t i = 0; i < sizeof agreed / sizeof agreed[0]; i++)
        is_per_rank &= row->scope == CD_SCOPE_RANK || row->offset != agreed[i];
    return is_per_rank;
}

bool cd_key_is_per_wrapper(const cd_key_row *row)
{
    static const char *const common[] = {"join", "agent", "fsdp"};
    bool is_own = row->scope == CD_SCOPE_RANK &&
                  row->offset != offsetof(cddp_plan_settings, train.steps) &&
                  row->offset != offsetof(cddp_plan_settings, model.device) &&
                  row->offset != offsetof(cddp_plan_settings, data.inputs);
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        is_own &= strcmp(row->table, common[i]) != 0;
    return is_own;
}

bool cd_key_is_of_wrappers(const cd_key_row *row)
{
    return row->scope == CD_SCOPE_wrapper || strcmp(row->field, "wrapper") == 0 ||
           strcmp(row->field, "wrappers") == 0 || strcmp(row->field, "turns") == 0;
}

const cd_key_row *cd_key_find_settings(const char *table)
{
    const cd_key_row *row = cd_key_find_path(table);
    return row != NULL && row->type == CDDP_KEY_TEXT && row->choices != NULL ? row : NULL;
}

bool cddp_plan_key(size_t index, cddp_key_info *info)
{
    if (index >= cd_key_count()) return false;
    const cd_key_row *row = &rows[index];
    *info = (cddp_key_info){.size = sizeof *info,
                            .type = row->type,
                            .choices = row->type == CDDP_KEY_CHOICE ? row->choices : NULL,
                            .initial = row->initial,
                            .low = row->low,
                            .high = row->high,
                            .per_rank = cd_key_is_per_rank(row),
                            .doc = row->doc};
    cd_key_path(row, info->path, sizeof info->path);
    return true;
}
