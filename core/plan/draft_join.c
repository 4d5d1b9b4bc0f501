/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/draft_join.h"

#include "core/base/error.h"

#include <string.h>

typedef struct joining {
    cd_draft *joined;
    const cd_draft_part *parts; /* (count) */
    size_t count;
} joining;

static bool is_said_alike(const cd_draft_setting *a, const cd_draft_setting *b)
{
    bool is = a->row == b->row && a->item_count == b->item_count;
    for (size_t i = 0; is && i < a->item_count; i++) is = strcmp(a->items[i], b->items[i]) == 0;
    return is;
}

static bool is_of_same_ranks(const cd_draft_setting *a, const cd_draft_setting *b)
{
    return a->ranks == NULL || b->ranks == NULL ? a->ranks == b->ranks
                                                : strcmp(a->ranks, b->ranks) == 0;
}

/* For the same ranks, and not in a table that repeats; NULL: at its default. */
static const cd_draft_setting *find_common(const cd_draft *draft, const cd_draft_setting *setting)
{
    for (size_t i = 0; i < draft->count; i++)
        if (draft->settings[i].row == setting->row &&
            is_of_same_ranks(&draft->settings[i], setting))
            return &draft->settings[i];
    return NULL;
}

static bool all_say(const joining *j, const cd_draft_setting *setting)
{
    bool all = true;
    for (size_t i = 0; all && i < j->count; i++) {
        const cd_draft_setting *other = find_common(j->parts[i].draft, setting);
        all = other != NULL && is_said_alike(setting, other);
    }
    return all;
}

static cddp_status fail_different(const cd_key_row *row, cddp_error *err)
{
    char key[96];
    cd_key_path(row, key, sizeof key);
    return cd_fail(err, CDDP_E_UNSUPPORTED, "they differ in %s, which wrappers share", key);
}

/* One setting that is not in a table that repeats. */
static cddp_status join_setting(const joining *j, size_t part, const cd_draft_setting *setting,
                                cddp_error *err)
{
    cd_draft_setting own = *setting;
    if (all_say(j, setting))
        return part == 0 ? CD_PASS(cd_draft_push(j->joined, &own, err)) : CDDP_OK;
    if (setting->row->table[0] == '\0') /* title and about */
        return part == 0 ? CD_PASS(cd_draft_push(j->joined, &own, err)) : CDDP_OK;
    if (!cd_key_is_per_wrapper(setting->row)) return CD_PASS(fail_different(setting->row, err));
    own.wrapper = part + 1;
    own.ranks = setting->ranks != NULL ? setting->ranks : "";
    return CD_PASS(cd_draft_push(j->joined, &own, err));
}

/* ---- tables that repeat ---- */

static bool is_shared_out(cd_key_scope scope)
{
    return scope == CD_SCOPE_optimizer || scope == CD_SCOPE_output || scope == CD_SCOPE_when ||
           scope == CD_SCOPE_collective;
}

static cddp_status say_whose(const joining *j, cd_key_scope scope, size_t element, const char *name,
                             cddp_error *err)
{
    const char **items = cd_arena_push(&j->joined->arena, sizeof *items);
    if (items == NULL) return cd_fail_memory(err, "a draft of a scenario");
    items[0] = name;
    const cd_draft_setting whose = {.row = cd_key_find(cd_item_table_get(scope)->name, "wrapper"),
                                    .element = (int64_t)element,
                                    .items = items,
                                    .item_count = 1};
    return CD_PASS(cd_draft_push(j->joined, &whose, err));
}

/* Settings of an element of the part, as those of another element of the joined draft. */
static cddp_status copy_element(const joining *j, const cd_draft *from, cd_key_scope scope,
                                size_t element, size_t as, cddp_error *err)
{
    for (size_t i = 0; i < from->count; i++) {
        cd_draft_setting own = from->settings[i];
        if (own.row->scope != scope || own.element != (int64_t)element) continue;
        own.element = (int64_t)as;
        CD_TRY(cd_draft_push(j->joined, &own, err));
    }
    return CDDP_OK;
}

static const char *name_of(const cd_draft *draft, cd_key_scope scope, size_t element)
{
    for (size_t i = 0; i < draft->count; i++) {
        const cd_draft_setting *s = &draft->settings[i];
        if (s->row->scope == scope && s->element == (int64_t)element && s->item_count == 1 &&
            strcmp(s->row->field, "name") == 0)
            return s->items[0];
    }
    return "";
}

/* A group that another part has too is one. */
static bool has_group(const joining *j, const char *name)
{
    bool has = false;
    for (size_t i = 0; i < j->joined->element_count[CD_SCOPE_group]; i++)
        has |= strcmp(name_of(j->joined, CD_SCOPE_group, i), name) == 0;
    return has;
}

static cddp_status join_elements(const joining *j, size_t part, cd_key_scope scope, cddp_error *err)
{
    const cd_draft *from = j->parts[part].draft;
    for (size_t e = 0; e < from->element_count[scope]; e++) {
        if (scope == CD_SCOPE_group && has_group(j, name_of(from, scope, e))) continue;
        if (scope != CD_SCOPE_group && !is_shared_out(scope))
            return cd_fail(err, CDDP_E_UNSUPPORTED, "one of them has a [[%s]]",
                           cd_item_table_get(scope)->name);
        const size_t as = j->joined->element_count[scope]++;
        CD_TRY(copy_element(j, from, scope, e, as, err));
        if (is_shared_out(scope)) CD_TRY(say_whose(j, scope, as, j->parts[part].name, err));
    }
    return CDDP_OK;
}

static cddp_status add_wrapper(const joining *j, size_t part, cddp_error *err)
{
    const char **items = cd_arena_array(&j->joined->arena, 2, sizeof *items);
    if (items == NULL) return cd_fail_memory(err, "a draft of a scenario");
    items[0] = j->parts[part].name;
    items[1] = "true";
    cd_draft_setting own = {.row = cd_key_find("wrapper", "name"),
                            .element = (int64_t)part,
                            .items = items,
                            .item_count = 1};
    j->joined->element_count[CD_SCOPE_wrapper]++;
    CD_TRY(cd_draft_push(j->joined, &own, err));
    own.row = cd_key_find("wrapper", "own_group");
    own.items = items + 1;
    if (j->parts[part].own_group) CD_TRY(cd_draft_push(j->joined, &own, err));
    return CDDP_OK;
}

cddp_status cd_draft_join(cd_draft *joined, const cd_draft_part *parts, size_t count,
                          cddp_error *err)
{
    const joining j = {joined, parts, count};
    for (size_t p = 0; p < count; p++) {
        const cd_draft *from = parts[p].draft;
        CD_TRY(add_wrapper(&j, p, err));
        for (size_t i = 0; i < from->count; i++)
            if (cd_item_table_get(from->settings[i].row->scope) == NULL)
                CD_TRY(join_setting(&j, p, &from->settings[i], err));
        for (int scope = 0; scope < CD_SCOPE_COUNT; scope++)
            if (cd_item_table_get((cd_key_scope)scope) != NULL)
                CD_TRY(join_elements(&j, p, (cd_key_scope)scope, err));
    }
    return CDDP_OK;
}
