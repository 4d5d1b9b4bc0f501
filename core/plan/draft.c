/* SPDX-License-Identifier: Apache-2.0 */
/* A plan taken apart, changed, put together again, and written as TOML.
**
** Not here: which changes make sense (verify/shrink/edit.c), reading files (scenarios/reader).
*/
#include "core/plan/draft.h"

#include "core/base/error.h"

#include <stdio.h>
#include <string.h>

#define DRAFT_BLOCK_BYTES 8192

#define NO_MEMORY(err) cd_fail_memory(err, "a draft of a scenario")

void cd_draft_init(cd_draft *draft)
{
    *draft = (cd_draft){.count = 0};
    cd_arena_init(&draft->arena, NULL, DRAFT_BLOCK_BYTES);
}

void cd_draft_fini(cd_draft *draft)
{
    cd_arena_fini(&draft->arena);
    *draft = (cd_draft){.count = 0};
}

cddp_status cd_draft_push(cd_draft *draft, const cd_draft_setting *setting, cddp_error *err)
{
    if (draft->count == draft->capacity) {
        const size_t grown = draft->capacity > 0 ? 2 * draft->capacity : 32;
        cd_draft_setting *moved = cd_arena_push(&draft->arena, grown * sizeof *moved);
        if (moved == NULL) return NO_MEMORY(err);
        if (draft->count > 0) memcpy(moved, draft->settings, draft->count * sizeof *moved);
        draft->settings = moved;
        draft->capacity = grown;
    }
    draft->settings[draft->count++] = *setting;
    return CDDP_OK;
}

/* ---- taking a plan apart ---- */

static bool same_value(const cd_key_value *a, const cd_key_value *b)
{
    bool same = a->count == b->count;
    for (size_t i = 0; same && i < a->count; i++) same = strcmp(a->items[i], b->items[i]) == 0;
    return same;
}

static cddp_status is_default(cd_draft *draft, const cd_draft_setting *setting, bool *answer,
                              cddp_error *err)
{
    _Alignas(16) char initial[sizeof(cddp_selector)];
    const cd_key_value value = {setting->items, setting->item_count};
    cd_key_value otherwise = {NULL, 0};
    cd_key_parse_initial(setting->row, initial);
    CD_TRY(cd_key_print(setting->row, initial, &draft->arena, &otherwise, err));
    *answer = same_value(&value, &otherwise);
    return CDDP_OK;
}

static cddp_status take_field(cd_draft *draft, cd_draft_setting *setting, const void *field,
                              cddp_error *err)
{
    cd_key_value value = {NULL, 0};
    bool untouched = false;
    CD_TRY(cd_key_print(setting->row, field, &draft->arena, &value, err));
    setting->items = (const char **)(uintptr_t)value.items;
    setting->item_count = value.count;
    if (setting->ranks == NULL) CD_TRY(is_default(draft, setting, &untouched, err));
    if (!untouched) CD_TRY(cd_draft_push(draft, setting, err));
    return CDDP_OK;
}

static cddp_status take_row(cd_draft *draft, const cddp_plan *plan, const cd_key_row *row,
                            cddp_error *err)
{
    cd_draft_setting setting = {.row = row};
    const cd_item_table *table = cd_item_table_get(row->scope);
    if (table == NULL) {
        const char *base =
            row->scope == CD_SCOPE_RANK ? (const char *)&plan->settings : (const char *)plan;
        return CD_PASS(take_field(draft, &setting, base + row->offset, err));
    }
    const char *elements;
    memcpy(&elements, (const char *)plan + table->items_offset, sizeof elements);
    draft->element_count[row->scope] = cd_plan_item_count(plan, row->scope);
    for (size_t i = 0; i < draft->element_count[row->scope]; i++) {
        setting.element = (int64_t)i;
        CD_TRY(take_field(draft, &setting, elements + i * table->element_bytes + row->offset, err));
    }
    return CDDP_OK;
}

cddp_status cd_draft_take(cd_draft *draft, const cddp_plan *plan, cddp_error *err)
{
    for (size_t i = 0; i < cd_key_count(); i++)
        CD_TRY(take_row(draft, plan, cd_key_row_get(i), err));
    for (size_t i = 0; i < plan->override_count; i++) {
        const cddp_plan_override *override = &plan->overrides[i];
        char ranks[CD_SELECTOR_TEXT_BYTES];
        cd_selector_print(&override->ranks, ranks, sizeof ranks);
        cd_draft_setting setting = {.row = cd_key_find_path(override->key),
                                    .element = override->element,
                                    .wrapper = override->wrapper,
                                    .ranks = cd_arena_strdup(&draft->arena, ranks)};
        if (setting.ranks == NULL) return NO_MEMORY(err);
        CD_TRY(take_field(draft, &setting, override->parsed, err));
    }
    return CDDP_OK;
}

cddp_status cd_draft_copy(cd_draft *draft, const cd_draft *from, cddp_error *err)
{
    memcpy(draft->element_count, from->element_count, sizeof draft->element_count);
    for (size_t i = 0; i < from->count; i++) {
        cd_draft_setting setting = from->settings[i];
        const char **items = cd_arena_push(&draft->arena, (setting.item_count + 1) * sizeof *items);
        const char *ranks =
            setting.ranks != NULL ? cd_arena_strdup(&draft->arena, setting.ranks) : "";
        CD_TRY(cd_arena_check(&draft->arena, err, "a draft of a scenario"));
        for (size_t k = 0; k < setting.item_count; k++) {
            items[k] = cd_arena_strdup(&draft->arena, setting.items[k]);
            if (items[k] == NULL) return NO_MEMORY(err);
        }
        setting.items = items;
        setting.ranks = setting.ranks != NULL ? ranks : NULL;
        CD_TRY(cd_draft_push(draft, &setting, err));
    }
    return CDDP_OK;
}

/* ---- putting it together ---- */

static cddp_status apply(cddp_plan *plan, const cd_draft_setting *setting, cddp_error *err)
{
    const cd_key_value value = {setting->items, setting->item_count};
    if (setting->ranks == NULL)
        return CD_PASS(cd_plan_assign(plan, setting->row, (size_t)setting->element, &value, err));
    cd_plan_owner owner = {.element = setting->element, .wrapper = setting->wrapper};
    CD_TRY(cd_selector_parse(setting->ranks, &owner.ranks, err));
    return CD_PASS(cd_plan_add_override(plan, &owner, setting->row, &value, err));
}

cddp_status cd_draft_make(const cd_draft *draft, cddp_plan **plan, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_plan *made = NULL;
    CD_TRY_OUT(cddp_plan_create(NULL, &made, err));
    for (int scope = 0; scope < CD_SCOPE_COUNT; scope++) {
        for (size_t i = 0; i < draft->element_count[scope]; i++)
            CD_TRY_OUT(cd_plan_add_item(made, (cd_key_scope)scope, err));
    }
    for (size_t i = 0; i < draft->count; i++) CD_TRY_OUT(apply(made, &draft->settings[i], err));
    *plan = made;
    made = NULL;
out:
    cddp_plan_destroy(made);
    return status;
}

/* ---- changing it ---- */

cd_draft_setting *cd_draft_find(cd_draft *draft, const char *path)
{
    const cd_key_row *row = cd_key_find_path(path);
    for (size_t i = 0; i < draft->count; i++) {
        if (draft->settings[i].row == row && draft->settings[i].ranks == NULL)
            return &draft->settings[i];
    }
    return NULL;
}

cddp_status cd_draft_set(cd_draft *draft, const char *path, const char *item, cddp_error *err)
{
    const char **items = cd_arena_push(&draft->arena, sizeof *items);
    char *copy = cd_arena_strdup(&draft->arena, item);
    cd_draft_setting *found = cd_draft_find(draft, path);
    CD_TRY(cd_arena_check(&draft->arena, err, "a draft of a scenario"));
    items[0] = copy;
    if (found != NULL) {
        found->items = items;
        found->item_count = 1;
        return CDDP_OK;
    }
    const cd_draft_setting setting = {.row = cd_key_find_path(path),
                                      .items = items,
                                      .item_count = 1};
    return CD_PASS(cd_draft_push(draft, &setting, err));
}

void cd_draft_remove(cd_draft *draft, size_t index)
{
    draft->count--;
    memmove(&draft->settings[index], &draft->settings[index + 1],
            (draft->count - index) * sizeof *draft->settings);
}

void cd_draft_remove_element(cd_draft *draft, cd_key_scope scope, size_t element)
{
    for (size_t i = draft->count; i-- > 0;) {
        cd_draft_setting *setting = &draft->settings[i];
        if (scope == CD_SCOPE_wrapper && setting->wrapper == element + 1) {
            cd_draft_remove(draft, i);
            continue;
        }
        if (scope == CD_SCOPE_wrapper && setting->wrapper > element + 1) setting->wrapper--;
        if (setting->row->scope != scope) continue;
        if (setting->element == (int64_t)element)
            cd_draft_remove(draft, i);
        else if (setting->element > (int64_t)element)
            setting->element--;
    }
    draft->element_count[scope]--;
}

/* ---- writing it ---- */

typedef struct writer {
    void (*write)(void *context, const char *text);
    void *context;
} writer;

static void write_quoted(const writer *w, const char *text)
{
    w->write(w->context, "\"");
    for (const char *at = text; *at != '\0'; at++) {
        char piece[8] = {*at, '\0'};
        if (*at == '"' || *at == '\\')
            snprintf(piece, sizeof piece, "\\%c", *at);
        else if ((unsigned char)*at < 0x20 || *at == 0x7f)
            snprintf(piece, sizeof piece, "\\u%04X", (unsigned)(unsigned char)*at);
        w->write(w->context, piece);
    }
    w->write(w->context, "\"");
}

static bool is_quoted(cddp_key_type type)
{
    return type == CDDP_KEY_TEXT || type == CDDP_KEY_CHOICE || type == CDDP_KEY_SELECTOR ||
           type == CDDP_KEY_TEXTS;
}

static bool is_list(cddp_key_type type)
{
    return type == CDDP_KEY_TEXTS || type == CDDP_KEY_NUMBERS || type == CDDP_KEY_UNSIGNEDS;
}

static void write_value(const writer *w, const cd_draft_setting *setting)
{
    const bool list = is_list(setting->row->type);
    w->write(w->context, list ? "[" : "");
    for (size_t i = 0; i < setting->item_count; i++) {
        w->write(w->context, i > 0 ? ", " : "");
        if (is_quoted(setting->row->type))
            write_quoted(w, setting->items[i]);
        else
            w->write(w->context, setting->items[i]);
    }
    w->write(w->context, list ? "]" : "");
}

static void write_setting(const writer *w, const cd_draft_setting *setting, const char *table)
{
    if (table[0] != '\0') {
        w->write(w->context, table);
        w->write(w->context, ".");
    }
    w->write(w->context, setting->row->field);
    w->write(w->context, " = ");
    write_value(w, setting);
    w->write(w->context, "\n");
}

static void write_heading(const writer *w, const char *name, bool repeats)
{
    w->write(w->context, repeats ? "\n[[" : "\n[");
    w->write(w->context, name);
    w->write(w->context, repeats ? "]]\n" : "]\n");
}

static void write_tables(const cd_draft *draft, const writer *w)
{
    const char *table = "";
    for (size_t k = 0; k < cd_key_count(); k++) {
        const cd_key_row *row = cd_key_row_get(k);
        for (size_t i = 0; i < draft->count && cd_item_table_get(row->scope) == NULL; i++) {
            const cd_draft_setting *setting = &draft->settings[i];
            if (setting->row != row || setting->ranks != NULL || strcmp(row->field, "schema") == 0)
                continue;
            if (strcmp(table, row->table) != 0) write_heading(w, row->table, false);
            table = row->table;
            write_setting(w, setting, "");
        }
    }
}

/* Is the key of setting `last` written since `first` for the same ranks? A table cannot say it
** twice. */
static bool is_said(const cd_draft *draft, size_t first, size_t last)
{
    for (size_t i = first; i < last; i++) {
        const cd_draft_setting *a = &draft->settings[i], *b = &draft->settings[last];
        if (a->ranks != NULL && a->row == b->row && a->element == b->element &&
            a->wrapper == b->wrapper)
            return true;
    }
    return false;
}

/* It stands in the [[wrapper]] table, and not in a [[rank]]. */
static bool is_of_wrapper_alone(const cd_draft_setting *setting)
{
    return setting->wrapper != 0 && setting->ranks != NULL && setting->ranks[0] == '\0';
}

static void write_ranks(const cd_draft *draft, const writer *w)
{
    const char *ranks = NULL;
    size_t first = 0;
    for (size_t i = 0; i < draft->count; i++) {
        const cd_draft_setting *setting = &draft->settings[i];
        if (setting->ranks == NULL || is_of_wrapper_alone(setting)) continue;
        if (ranks == NULL || strcmp(ranks, setting->ranks) != 0 || is_said(draft, first, i)) {
            write_heading(w, "rank", true);
            ranks = setting->ranks;
            first = i;
            if (ranks[0] != '\0') {
                w->write(w->context, "ranks = ");
                write_quoted(w, ranks);
                w->write(w->context, "\n");
            }
        }
        char table[96], wrapper[32] = "";
        if (setting->wrapper != 0)
            snprintf(wrapper, sizeof wrapper, "wrapper.%llu.",
                     (unsigned long long)setting->wrapper - 1);
        if (setting->row->scope != CD_SCOPE_RANK && setting->element >= 0)
            snprintf(table, sizeof table, "%s%s.%lld", wrapper, setting->row->table,
                     (long long)setting->element);
        else
            snprintf(table, sizeof table, "%s%s", wrapper, setting->row->table);
        write_setting(w, setting, table);
    }
}

static void write_elements(const cd_draft *draft, const writer *w, cd_key_scope scope)
{
    for (size_t e = 0; e < draft->element_count[scope]; e++) {
        write_heading(w, cd_item_table_get(scope)->name, true);
        for (size_t i = 0; i < draft->count; i++) {
            const cd_draft_setting *setting = &draft->settings[i];
            if (setting->ranks == NULL && setting->row->scope == scope &&
                setting->element == (int64_t)e)
                write_setting(w, setting, "");
        }
        for (size_t i = 0; scope == CD_SCOPE_wrapper && i < draft->count; i++) {
            const cd_draft_setting *setting = &draft->settings[i];
            if (is_of_wrapper_alone(setting) && setting->wrapper == e + 1)
                write_setting(w, setting, setting->row->table);
        }
    }
}

void cd_draft_print(const cd_draft *draft, void (*write)(void *context, const char *text),
                    void *context)
{
    const writer w = {write, context};
    write(context, "schema = 1\n");
    write_tables(draft, &w);
    write_ranks(draft, &w);
    for (int scope = 0; scope < CD_SCOPE_COUNT; scope++)
        write_elements(draft, &w, (cd_key_scope)scope);
}
