/* SPDX-License-Identifier: Apache-2.0 */
/* Making a plan and changing it key by key.
**
** Everything that a plan points to lies in its arena: a value that is set again leaves the old one
** behind, which is small and goes with the plan.
**
** Not here: reading files (scenarios/reader), contradictions (plan_check.c), the key table
** (keys.c).
*/
#include "core/plan/plan.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/plan/zero.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#define PLAN_BLOCK_BYTES 16384

struct cddp_plan_memory {
    cd_arena arena; /* owns this struct and the plan itself, too */
    size_t item_capacity[CD_SCOPE_COUNT];
    size_t override_capacity;
};

cddp_status cddp_plan_create(const cddp_allocator *allocator, cddp_plan **plan, cddp_error *err)
{
    cd_arena arena;
    cd_arena_init(&arena, allocator, PLAN_BLOCK_BYTES);
    cddp_plan *made = cd_arena_push(&arena, sizeof *made);
    struct cddp_plan_memory *memory = cd_arena_push(&arena, sizeof *memory);
    if (arena.exhausted) {
        cd_arena_fini(&arena);
        return cd_fail_memory(err, "a plan");
    }
    memory->arena = arena;
    made->size = sizeof *made;
    made->memory = memory;
    for (size_t i = 0; i < cd_key_count(); i++) {
        const cd_key_row *row = cd_key_row_get(i);
        if (row->scope == CD_SCOPE_PLAN)
            cd_key_parse_initial(row, (char *)made + row->offset);
        else if (row->scope == CD_SCOPE_RANK)
            cd_key_parse_initial(row, (char *)&made->settings + row->offset);
    }
    *plan = made;
    return CDDP_OK;
}

void cddp_plan_destroy(cddp_plan *plan)
{
    if (plan != NULL) cd_arena_fini(&plan->memory->arena);
}

/* Room for one more element in an array of the arena. */
static void *array_push(struct cddp_plan_memory *memory, void **items, size_t *capacity,
                        const size_t *count, size_t item_bytes)
{
    if (!cd_arena_grow(&memory->arena, items, capacity, *count + 1, item_bytes)) return NULL;
    return (char *)*items + *count * item_bytes;
}

cd_arena *cd_plan_get_arena(cddp_plan *plan) { return &plan->memory->arena; }

size_t cd_plan_item_count(const cddp_plan *plan, cd_key_scope scope)
{
    size_t count;
    memcpy(&count, (const char *)plan + cd_item_table_get(scope)->count_offset, sizeof count);
    return count;
}

cddp_status cd_plan_add_item(cddp_plan *plan, cd_key_scope scope, cddp_error *err)
{
    const cd_item_table *table = cd_item_table_get(scope);
    void *items;
    size_t count = cd_plan_item_count(plan, scope);
    memcpy(&items, (char *)plan + table->items_offset, sizeof items);
    void *element = array_push(plan->memory, &items, &plan->memory->item_capacity[scope], &count,
                               table->element_bytes);
    if (element == NULL) return cd_fail_memory(err, "[[%s]] number %zu", table->name, count);
    for (size_t i = 0; i < cd_key_count(); i++) {
        const cd_key_row *row = cd_key_row_get(i);
        if (row->scope == scope) cd_key_parse_initial(row, (char *)element + row->offset);
    }
    count++;
    memcpy((char *)plan + table->items_offset, &items, sizeof items);
    memcpy((char *)plan + table->count_offset, &count, sizeof count);
    return CDDP_OK;
}

cddp_status cd_plan_assign(cddp_plan *plan, const cd_key_row *row, size_t index,
                           const cd_key_value *value, cddp_error *err)
{
    char *base = row->scope == CD_SCOPE_RANK ? (char *)&plan->settings : (char *)plan;
    const cd_item_table *table = cd_item_table_get(row->scope);
    if (table != NULL) {
        CD_ASSERT(index < cd_plan_item_count(plan, row->scope));
        memcpy(&base, (char *)plan + table->items_offset, sizeof base);
        base += index * table->element_bytes;
    }
    CD_TRY(cd_key_parse(row, value, &plan->memory->arena, base + row->offset, err));
    return CDDP_OK;
}

/* "a,b,c"; NULL: no memory. */
static char *join_commas(cd_arena *arena, const cd_key_value *value)
{
    size_t bytes = 1, used = 0;
    for (size_t i = 0; i < value->count; i++) bytes += strlen(value->items[i]) + 1;
    char *text = cd_arena_push(arena, bytes);
    for (size_t i = 0; text != NULL && i < value->count; i++) {
        const size_t length = strlen(value->items[i]);
        if (i > 0) text[used++] = ',';
        memcpy(text + used, value->items[i], length);
        used += length;
    }
    if (text != NULL) text[used] = '\0';
    return text;
}

cddp_status cd_plan_add_override(cddp_plan *plan, const cd_plan_owner *owner, const cd_key_row *row,
                                 const cd_key_value *value, cddp_error *err)
{
    struct cddp_plan_memory *memory = plan->memory;
    char path[96];
    snprintf(path, sizeof path, "%s%s%s", row->table, row->table[0] != '\0' ? "." : "", row->field);
    if (!cd_key_is_per_rank(row)) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "%s is the same for all ranks and cannot be changed for some", path);
    }
    if (owner->wrapper != 0 && !cd_key_is_per_wrapper(row)) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "%s is the same for all wrappers and cannot be changed for one", path);
    }
    void *parsed = cd_arena_push(&memory->arena, row->width);
    char *text = join_commas(&memory->arena, value);
    char *key = cd_arena_strdup(&memory->arena, path);
    void *items = (void *)(uintptr_t)plan->overrides;
    cddp_plan_override *override = array_push(memory, &items, &memory->override_capacity,
                                              &plan->override_count, sizeof *override);
    if (override != NULL) {
        plan->overrides = items; /* they may have moved, whatever becomes of this one */
    }
    CD_TRY(cd_arena_check(&memory->arena, err, "an override of %s", path));
    CD_TRY(cd_key_parse(row, value, &memory->arena, parsed, err));
    *override = (cddp_plan_override){.ranks = owner->ranks,
                                     .key = key,
                                     .element = owner->element,
                                     .wrapper = owner->wrapper,
                                     .value = text,
                                     .parsed = parsed};
    plan->override_count++;
    return CDDP_OK;
}

cddp_status cd_plan_set_text(cddp_plan *plan, const char *source, const char *text, cddp_error *err)
{
    char *source_copy = cd_arena_strdup(&plan->memory->arena, source);
    const size_t bytes = strlen(text) + 1;
    char *text_copy = cd_arena_push(&plan->memory->arena, bytes);
    CD_TRY(cd_arena_check(&plan->memory->arena, err, "the text of %s", source));
    memcpy(text_copy, text, bytes);
    plan->source = source_copy;
    plan->text = text_copy;
    return CDDP_OK;
}

/* ---- --set ---- */

static bool type_is_list(cddp_key_type type)
{
    return type == CDDP_KEY_TEXTS || type == CDDP_KEY_NUMBERS || type == CDDP_KEY_UNSIGNEDS;
}

/* Splits "a,b,c" in place, into as many items as it has room for. */
static size_t split_commas(char *text, const char **items)
{
    size_t count = 0;
    while (text != NULL && *text != '\0') {
        items[count++] = text;
        text = strchr(text, ',');
        if (text != NULL) *text++ = '\0';
    }
    return count;
}

/* The items of "[1, 2]" or '["a", "b"]', in place; false: it is no list as TOML has it. */
static bool split_array(char *text, const char **items, size_t *count)
{
    char *at = text + 1;
    *count = 0;
    for (;;) {
        at += strspn(at, " \t");
        if (*at == ']') break;
        char quote = *at == '"' || *at == '\'' ? *at++ : '\0';
        items[(*count)++] = at;
        at += quote != '\0' ? strcspn(at, (const char[]){quote, '\0'}) : strcspn(at, ",] \t");
        if (*at == '\0') return false;
        const char end = *at;
        if (at == items[*count - 1] && quote == '\0') return false;
        *at++ = '\0';
        if (quote == '\0' && end == ']') return *at == '\0';
        if (quote == '\0' && end == ',') continue;
        at += strspn(at, " \t");
        if (*at == ',')
            at++;
        else if (*at != ']')
            return false;
    }
    return at[1] == '\0';
}

/* "abc" and 'abc' are the text between the quotes. */
static void strip_quotes(char **text)
{
    const size_t length = strlen(*text);
    const char first = **text;
    if (length < 2 || (first != '"' && first != '\'') || (*text)[length - 1] != first) return;
    (*text)[length - 1] = '\0';
    ++*text;
}

static size_t count_items(const char *text)
{
    size_t count = 1;
    for (; *text != '\0'; text++) count += *text == ',';
    return count;
}

/* Cuts the path into table and field. */
static cddp_status fail_unknown(const char *key, char *table_and_field, cddp_error *err)
{
    char *dot = strrchr(table_and_field, '.');
    const char *field = dot != NULL ? dot + 1 : table_and_field;
    const char *table = dot != NULL ? table_and_field : "";
    if (dot != NULL) *dot = '\0';
    const char *why = cd_zero_find_refusal(table, field);
    if (why != NULL) return cd_fail(err, CDDP_E_CONFIG, "'%s' has no meaning here: %s", key, why);
    const cd_key_row *near = cd_key_nearest(table, field);
    char path[200] = "";
    if (near != NULL)
        cd_key_path(near, path, sizeof path);
    else if (table[0] != '\0')
        cd_key_print_fields(table, path, sizeof path);
    return cd_fail(err, CDDP_E_CONFIG, "unknown key '%s'%s%s%s", key,
                   near != NULL ? "; did you mean '" : "", path, near != NULL ? "'?" : "");
}

/* "wrapper.1.ddp.static_graph" becomes "ddp.static_graph" and 2, which is wrapper 1 counted from 1;
** "wrapper.1.name" stays. */
static void take_wrapper(char *path, uint64_t *wrapper)
{
    static const char prefix[] = "wrapper.";
    char *end = path;
    if (strncmp(path, prefix, sizeof prefix - 1) != 0) return;
    const unsigned long number = strtoul(path + sizeof prefix - 1, &end, 10);
    if (end == path + sizeof prefix - 1 || *end != '.' || strchr(end + 1, '.') == NULL) return;
    *wrapper = number + 1;
    memmove(path, end + 1, strlen(end));
}

/* "when.2.sync" becomes "when.sync" and 2; an element that is the next one is made. For some ranks
** "optimizer.lr" is a key of all optimizers. */
static cddp_status take_index(cddp_plan *plan, const char *key, char *path, const cd_key_row **row,
                              size_t *index, cddp_error *err)
{
    const bool has_ranks = strchr(key, '@') != NULL;
    for (char *dot = strchr(path, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        char *end;
        const unsigned long number = strtoul(dot + 1, &end, 10);
        if (end == dot + 1 || *end != '.') continue;
        memmove(dot, end, strlen(end) + 1);
        *row = cd_key_find_path(path);
        if (*row == NULL || cd_item_table_get((*row)->scope) == NULL)
            return CD_PASS(fail_unknown(key, path, err));
        const size_t count = cd_plan_item_count(plan, (*row)->scope);
        if (number > count && !has_ranks) {
            return cd_fail(err, CDDP_E_CONFIG,
                           "[[%s]] has %zu element%s: number %lu would leave a gap", (*row)->table,
                           count, cd_plural(count), number);
        }
        if (number == count && !has_ranks) CD_TRY(cd_plan_add_item(plan, (*row)->scope, err));
        *index = number;
        return CDDP_OK;
    }
    *row = cd_key_find_path(path);
    *index = (size_t)CD_PLAN_ALL_ELEMENTS;
    if (*row != NULL && cd_item_table_get((*row)->scope) != NULL && !has_ranks) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "[[%s]] may appear several times: say which, as in %s.0.%s", (*row)->table,
                       (*row)->table, (*row)->field);
    }
    return CDDP_OK;
}

cddp_status cddp_plan_set(cddp_plan *plan, const char *key, const char *value, cddp_error *err)
{
    const size_t room = count_items(value);
    cd_arena *arena = &plan->memory->arena;
    char *path = cd_arena_strdup(arena, key), *values = cd_arena_strdup(arena, value);
    const char **items = cd_arena_push(arena, room * sizeof *items);
    CD_TRY(cd_arena_check(arena, err, "a value of %.40s", key));
    char *at = strchr(path, '@');
    cd_plan_owner owner = {.element = CD_PLAN_ALL_ELEMENTS};
    if (at != NULL) {
        *at = '\0';
        if (at[1] == '\0')
            return cd_fail(err, CDDP_E_CONFIG, "'%s' names no ranks: write %s@0 or %s@1-3", key,
                           path, path);
        CD_TRY(cd_selector_parse(at + 1, &owner.ranks, err));
    }
    const cd_key_row *row = NULL;
    size_t index = 0;
    take_wrapper(path, &owner.wrapper);
    CD_TRY(take_index(plan, key, path, &row, &index, err));
    if (row == NULL) return CD_PASS(fail_unknown(key, path, err));
    const bool is_list = type_is_list(row->type);
    const bool is_array = (is_list || row->type == CDDP_KEY_SELECTOR) && values[0] == '[';
    cd_key_value parsed = {items, 1};
    if (is_array && !split_array(values, items, &parsed.count))
        return cd_fail(err, CDDP_E_CONFIG, "%s: %.100s is not a list, as in [\"a\", \"b\"]", key,
                       value);
    if (row->scope != CD_SCOPE_RANK) owner.element = (int64_t)index;
    if (!is_array) strip_quotes(&values);
    items[0] = is_array ? items[0] : values;
    if (is_list && !is_array) parsed.count = split_commas(values, items);
    if (at != NULL || owner.wrapper != 0)
        CD_TRY(cd_plan_add_override(plan, &owner, row, &parsed, err));
    else
        CD_TRY(cd_plan_assign(plan, row, index, &parsed, err));
    return CDDP_OK;
}

/* ---- reading ---- */

cddp_status cddp_plan_rank_settings(const cddp_plan *plan, uint32_t rank,
                                    cddp_plan_settings *settings, cddp_error *err)
{
    if (rank >= plan->world.size) {
        return cd_fail(err, CDDP_E_ARG, "rank %u of a world of %llu", rank,
                       (unsigned long long)plan->world.size);
    }
    *settings = plan->settings;
    cd_zero_resolve(plan, settings);
    for (size_t i = 0; i < plan->override_count; i++) {
        const cddp_plan_override *override = &plan->overrides[i];
        const cd_key_row *row = cd_key_find_path(override->key);
        if (row->scope == CD_SCOPE_RANK && override->wrapper == 0 &&
            cddp_selector_has(&override->ranks, rank))
            memcpy((char *)settings + row->offset, override->parsed, row->width);
    }
    if (plan->world.batch > 0) { /* sample i of a step goes to rank i mod W */
        settings->train.micro_steps =
            (plan->world.batch + plan->world.size - 1 - rank) / plan->world.size;
    }
    return CDDP_OK;
}

static const cddp_plan_optimizer unlisted = {
    .name = "sgd", .lr = 0.125, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};

size_t cd_plan_optimizer_count(const cddp_plan *plan)
{
    return plan->optimizer_count > 0 ? plan->optimizer_count : 1;
}

static bool is_of_optimizer(const cddp_plan_override *override)
{
    return strncmp(override->key, "optimizer.", 10) == 0;
}

/* What is said of all optimizers, or of one. */
static void apply_overrides(const cddp_plan *plan, uint32_t rank, int64_t element,
                            cddp_plan_optimizer *own)
{
    for (size_t i = 0; i < plan->override_count; i++) {
        const cddp_plan_override *override = &plan->overrides[i];
        if (!is_of_optimizer(override) || override->element != element ||
            !cddp_selector_has(&override->ranks, rank))
            continue;
        const cd_key_row *row = cd_key_find_path(override->key);
        memcpy((char *)own + row->offset, override->parsed, row->width);
    }
}

cddp_plan_optimizer cd_plan_optimizer_of(const cddp_plan *plan, uint32_t rank, size_t index)
{
    cddp_plan_optimizer own = plan->optimizer_count > 0 ? plan->optimizers[index] : unlisted;
    apply_overrides(plan, rank, CD_PLAN_ALL_ELEMENTS, &own);
    apply_overrides(plan, rank, (int64_t)index, &own);
    return own;
}

static uint64_t digest_field(uint64_t digest, const cd_key_row *row, const void *field)
{
    const void *pointer;
    cddp_text_list list;
    switch (row->type) {
    case CDDP_KEY_TEXT:
        memcpy(&pointer, field, sizeof pointer);
        return cd_hash_mix(digest, cd_hash_text(pointer));
    case CDDP_KEY_TEXTS:
        memcpy(&list, field, sizeof list);
        digest = cd_hash_mix(digest, list.count);
        for (size_t i = 0; i < list.count; i++)
            digest = cd_hash_mix(digest, cd_hash_text(list.items[i]));
        return digest;
    case CDDP_KEY_NUMBERS:
    case CDDP_KEY_UNSIGNEDS:
        memcpy(&list, field, sizeof list);
        return cd_hash64(list.items,
                         list.count *
                             (row->type == CDDP_KEY_NUMBERS ? sizeof(double) : sizeof(uint32_t)),
                         digest);
    case CDDP_KEY_SELECTOR: {
        cddp_selector selector;
        memcpy(&selector, field, sizeof selector);
        return cd_hash64(selector.terms, selector.term_count * sizeof selector.terms[0], digest);
    }
    default:
        return cd_hash64(field, row->width, digest);
    }
}

/* Rows that decide how a run goes; titles, tags and expectations do not. Those of wrappers decide
** nothing in a plan without [[wrapper]]. */
static bool row_counts(const cd_key_row *row)
{
    return row->table[0] != '\0' && strncmp(row->table, "expect", 6) != 0;
}

uint64_t cddp_plan_digest(const cddp_plan *plan)
{
    uint64_t digest = cd_hash_text("cddp plan 1");
    for (size_t i = 0; i < cd_key_count(); i++) {
        const cd_key_row *row = cd_key_row_get(i);
        const cd_item_table *table = cd_item_table_get(row->scope);
        if (!row_counts(row) || (plan->wrapper_count == 0 && cd_key_is_of_wrappers(row))) continue;
        digest = cd_hash_mix(digest, cd_hash_text(row->field));
        if (table == NULL) {
            const char *base =
                row->scope == CD_SCOPE_RANK ? (const char *)&plan->settings : (const char *)plan;
            digest = digest_field(digest, row, base + row->offset);
            continue;
        }
        const char *items;
        memcpy(&items, (const char *)plan + table->items_offset, sizeof items);
        for (size_t k = 0; k < cd_plan_item_count(plan, row->scope); k++)
            digest = digest_field(digest, row, items + k * table->element_bytes + row->offset);
    }
    for (size_t i = 0; i < plan->override_count; i++) {
        digest = cd_hash64(plan->overrides[i].ranks.terms,
                           plan->overrides[i].ranks.term_count *
                               sizeof plan->overrides[i].ranks.terms[0],
                           digest);
        if (plan->overrides[i].wrapper != 0)
            digest = cd_hash_mix(digest, plan->overrides[i].wrapper);
        digest = cd_hash_mix(digest, cd_hash_text(plan->overrides[i].key));
        if (is_of_optimizer(&plan->overrides[i]))
            digest = cd_hash_mix(digest, (uint64_t)plan->overrides[i].element);
        digest = cd_hash_mix(digest, cd_hash_text(plan->overrides[i].value));
    }
    return digest;
}
