/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a TOML document into a plan and collects every mistake.
**
** The reader first walks the whole document and keeps its leaves. Then it looks up each leaf in
** the key table, checks its type and assigns it. The only names that this file knows are `rank` and
** its `ranks`, which are not settings: a [[rank]] table has overrides. Mistakes are reported in the
** order of the file.
**
** Not here: what keys exist (include/cddp/keys.def), what contradicts what
** (core/plan/plan_check.c).
*/
#include "scenarios/reader/reader.h"

#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/os.h"
#include "core/plan/plan.h"
#include "core/plan/zero.h"
#include "scenarios/reader/toml_shim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES_MAX 160
#define FILE_BYTES_MAX (16u << 20)
#define SETTINGS_BYTES_MAX 4096 /* bytes of a table of settings, as text */
/* reported for one file; each is looked up in the text, and its key compared with every other */
#define MISTAKES_MAX 200

typedef struct mistake {
    uint32_t line, column;
    size_t order; /* of discovery; decides the order of ties */
    const char *message;
    const char *field; /* of the key in its line; NULL: none */
} mistake;

typedef struct reader {
    const cd_reader_options *options;
    const char *name, *text;
    cd_arena arena;
    cd_toml_leaf *leaves;
    size_t leaf_count, leaf_capacity;
    mistake *mistakes;
    size_t mistake_count, mistake_capacity;
    size_t written_count;       /* mistakes of what is written, before settings are compared */
    bool has_more;              /* mistakes than the limit: reading stops */
    cddp_selector *rank_tables; /* (rank_table_count) `ranks` of each [[rank]] */
    size_t rank_table_count, rank_table_capacity;
    cddp_plan *plan;
    bool out_of_memory;
} reader;

typedef struct place {
    uint32_t line, column;
} place;

static void complain(reader *r, place at, const char *format, ...) CDDP_PRINTF(3, 4);
static void complain(reader *r, place at, const char *format, ...)
{
    char message[512];
    va_list args;
    if (r->mistake_count == MISTAKES_MAX) {
        r->has_more = true;
        return;
    }
    va_start(args, format);
    cd_vformat(message, sizeof message, format, args);
    va_end(args);
    const char *copy = cd_arena_printf(&r->arena, "%s", message);
    if (copy == NULL ||
        !cd_vec_grow(r->options->allocator, (void **)&r->mistakes, &r->mistake_capacity,
                     r->mistake_count + 1, sizeof *r->mistakes)) {
        r->out_of_memory = true;
        return;
    }
    r->mistakes[r->mistake_count] = (mistake){at.line, at.column, r->mistake_count, copy, NULL};
    r->mistake_count++;
}

/* What the plan does not take. Memory that ran out is no mistake of the file. */
static void refuse(reader *r, place at, const cddp_error *why)
{
    if (why->status == CDDP_E_NOMEM)
        r->out_of_memory = true;
    else
        complain(r, at, "%s", why->message);
}

/* ---- collecting ---- */

/* Splits "when[2].sync": the table without indices, the first index, the field. Keys contain no
** bracket (toml_shim.h). */
typedef struct key_path {
    char table[PATH_BYTES_MAX];
    char field[PATH_BYTES_MAX];
    int64_t index; /* -1: not in a table that repeats */
    /* bytes of the name before the index: 4 in "rank[0].ddp", 8 in "rank.ddp[0]" */
    size_t indexed;
    /* a table that repeats within another, "rank[0].ddp[0]": no key has that form */
    bool is_nested;
} key_path;

static bool path_split(const char *path, key_path *out)
{
    char whole[PATH_BYTES_MAX];
    if (strlen(path) >= sizeof whole) return false;
    memcpy(whole, path, strlen(path) + 1);
    out->index = -1;
    out->indexed = 0;
    char *bracket = strchr(whole, '[');
    if (bracket != NULL) {
        char *end;
        out->indexed = (size_t)(bracket - whole);
        out->index = strtoll(bracket + 1, &end, 10);
        memmove(bracket, end + 1, strlen(end + 1) + 1);
    }
    out->is_nested = bracket != NULL && strchr(bracket, '[') != NULL;
    while (out->is_nested && (bracket = strchr(bracket, '[')) != NULL) {
        const char *end = strchr(bracket, ']') + 1;
        memmove(bracket, end, strlen(end) + 1);
    }
    char *dot = strrchr(whole, '.');
    memcpy(out->field, dot != NULL ? dot + 1 : whole, strlen(dot != NULL ? dot + 1 : whole) + 1);
    if (dot != NULL) *dot = '\0';
    memcpy(out->table, dot != NULL ? whole : "", dot != NULL ? strlen(whole) + 1 : 1);
    return true;
}

static cd_key_scope item_scope(const char *table)
{
    for (int scope = 0; scope < CD_SCOPE_COUNT; scope++) {
        const cd_item_table *item = cd_item_table_get((cd_key_scope)scope);
        if (item != NULL && strcmp(item->name, table) == 0) return (cd_key_scope)scope;
    }
    return CD_SCOPE_COUNT;
}

/* True for the path of [table] or the start of one, like [expect] before [[expect.finding]]. */
static bool table_is_known(const char *table)
{
    return cd_key_has_table(table) || strcmp(table, "rank") == 0;
}

static void visit_element(reader *r, const cd_toml_table *table, const char *name)
{
    const place at = {table->line, table->column};
    if (strcmp(name, "rank") == 0) {
        if (!cd_vec_grow(r->options->allocator, (void **)&r->rank_tables, &r->rank_table_capacity,
                         r->rank_table_count + 1, sizeof *r->rank_tables)) {
            r->out_of_memory = true;
            return;
        }
        r->rank_tables[r->rank_table_count++] = (cddp_selector){0};
        return;
    }
    const cd_key_scope scope = item_scope(name);
    if (scope == CD_SCOPE_COUNT) {
        const char *near = cd_key_nearest_table(name);
        if (table_is_known(strncmp(name, "rank.", 5) == 0 ? name + 5 : name)) {
            complain(r, at, "[[%s]] may not be repeated: write it once, with single brackets",
                     name);
        } else if (near != NULL) {
            const bool repeats = item_scope(near) != CD_SCOPE_COUNT;
            complain(r, at, "unknown table [[%s]]; did you mean %s%s%s?", name,
                     repeats ? "[[" : "[", near, repeats ? "]]" : "]");
        } else {
            complain(r, at, "unknown table [[%s]]", name);
        }
        return;
    }
    r->out_of_memory |= cd_plan_add_item(r->plan, scope, NULL) != CDDP_OK;
}

/* The row of the text of settings that this table stands for; also in a [[rank]] or [[wrapper]]. */
static const cd_key_row *find_settings(const char *table)
{
    static const char *const prefixes[] = {"rank.", "wrapper."};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(table, prefixes[i], strlen(prefixes[i])) == 0) table += strlen(prefixes[i]);
    return cd_key_find_settings(table);
}

static bool visit_table(void *context, const cd_toml_table *table)
{
    reader *r = context;
    const place at = {table->line, table->column};
    key_path path;
    if (r->has_more) return true;
    if (!path_split(table->path, &path)) {
        complain(r, at, "the name of this table is too long");
        return true;
    }
    char name[2 * PATH_BYTES_MAX];
    snprintf(name, sizeof name, "%s%s%s", path.table, path.table[0] != '\0' ? "." : "", path.field);
    if (!table->is_element && find_settings(name) != NULL) {
        return true; /* its leaves become one text */
    }
    if (table->is_element) {
        visit_element(r, table, name);
    } else if (path.index < 0 &&
               (item_scope(name) != CD_SCOPE_COUNT || strcmp(name, "rank") == 0)) {
        complain(r, at, "[%s] may appear several times: write [[%s]]", name, name);
    } else if (path.index < 0 && cd_zero_find_refusal(name, "") != NULL) {
        complain(r, at, "[%s] has no meaning here: %s", name, cd_zero_find_refusal(name, ""));
    } else if (path.index < 0 && !table_is_known(name)) {
        const char *near = cd_key_nearest_table(name);
        const bool repeats = near != NULL && item_scope(near) != CD_SCOPE_COUNT;
        complain(r, at, "unknown table [%s]%s%s%s", name,
                 near == NULL ? ""
                 : repeats    ? "; did you mean [["
                              : "; did you mean [",
                 near != NULL ? near : "",
                 near == NULL ? ""
                 : repeats    ? "]]?"
                              : "]?");
    }
    return !r->out_of_memory;
}

static bool keep_leaf(reader *r, const cd_toml_leaf *leaf)
{
    char *path = cd_arena_printf(&r->arena, "%s", leaf->path);
    const char **items = cd_arena_push(&r->arena, (leaf->item_count + 1) * sizeof *items);
    r->out_of_memory |= path == NULL || items == NULL ||
                        !cd_vec_grow(r->options->allocator, (void **)&r->leaves, &r->leaf_capacity,
                                     r->leaf_count + 1, sizeof *r->leaves);
    for (size_t i = 0; !r->out_of_memory && i < leaf->item_count; i++) {
        const size_t bytes = strlen(leaf->items[i]) + 1;
        char *item = cd_arena_push(&r->arena, bytes);
        r->out_of_memory |= item == NULL;
        if (item != NULL) {
            memcpy(item, leaf->items[i], bytes);
            items[i] = item;
        }
    }
    if (!r->out_of_memory) {
        cd_toml_leaf *kept = &r->leaves[r->leaf_count++];
        *kept = *leaf;
        kept->path = path;
        kept->items = items;
    }
    return !r->out_of_memory;
}

/* Adds one setting of the table that contains the leaf. The table becomes the equivalent text, at
** the place of the table's first setting. The leaves of a table are adjacent. */
static bool visit_setting(reader *r, const cd_toml_leaf *leaf, const char *setting)
{
    const place at = {leaf->line, leaf->column};
    const char *path = cd_arena_printf(&r->arena, "%.*s",
                                       (int)(strlen(leaf->path) - strlen(setting) - 1), leaf->path);
    cd_toml_leaf *last = r->leaf_count > 0 ? &r->leaves[r->leaf_count - 1] : NULL;
    if (path == NULL) {
        r->out_of_memory = true;
        return false;
    }
    if (leaf->is_array || leaf->kind == CD_TOML_OTHER || strchr(leaf->items[0], ',') != NULL) {
        complain(
            r, at,
            "'%s' in a table of settings must be text without a comma, a number, true or false",
            setting);
        return !r->out_of_memory;
    }
    const bool is_first = last == NULL || strcmp(last->path, path) != 0;
    const size_t settings_bytes =
        (is_first ? 0 : strlen(last->items[0]) + 1) + strlen(setting) + 1 + strlen(leaf->items[0]);
    if (settings_bytes > SETTINGS_BYTES_MAX) {
        complain(r, at, "the settings of '%s' are more than %d bytes", path, SETTINGS_BYTES_MAX);
        return !r->out_of_memory;
    }
    const char *text = cd_arena_printf(&r->arena, "%s%s%s=%s", is_first ? "" : last->items[0],
                                       is_first ? "" : ",", setting, leaf->items[0]);
    if (text == NULL) {
        r->out_of_memory = true;
    } else if (is_first) {
        const cd_toml_leaf whole = {.path = path,
                                    .kind = CD_TOML_TEXT,
                                    .items = &text,
                                    .item_count = 1,
                                    .line = leaf->line,
                                    .column = leaf->column,
                                    .value_line = leaf->value_line,
                                    .value_column = leaf->value_column};
        return keep_leaf(r, &whole);
    } else {
        const char **items = cd_arena_push(&r->arena, sizeof *items);
        r->out_of_memory |= items == NULL;
        if (items != NULL) {
            items[0] = text;
            last->items = items;
        }
    }
    return !r->out_of_memory;
}

static bool visit_leaf(void *context, const cd_toml_leaf *leaf)
{
    reader *r = context;
    key_path path;
    if (r->has_more) return true;
    const bool is_setting = path_split(leaf->path, &path) && find_settings(path.table) != NULL;
    return is_setting ? visit_setting(r, leaf, strrchr(leaf->path, '.') + 1) : keep_leaf(r, leaf);
}

/* ---- applying ---- */

static const char *kind_words(const cd_toml_leaf *leaf)
{
    static const char *const words[] = {"text", "a whole number", "a number", "true or false",
                                        "something else"};
    static const char *const list_words[] = {"a list of texts", "a list of whole numbers",
                                             "a list of numbers", "a list of flags",
                                             "a mixed list"};
    if (leaf->is_array && leaf->item_count == 0) return "an empty list";
    return leaf->is_array ? list_words[leaf->kind] : words[leaf->kind];
}

/* Names the type that the row wants, or NULL when the leaf has it. A single item counts as a list
** of one. */
static const char *wrong_type(const cd_key_row *row, const cd_toml_leaf *leaf)
{
    const bool empty = leaf->is_array && leaf->item_count == 0;
    const bool is_integer = leaf->kind == CD_TOML_INTEGER;
    const bool is_number = is_integer || leaf->kind == CD_TOML_NUMBER;
    const bool is_text = leaf->kind == CD_TOML_TEXT;
    switch (row->type) {
    case CDDP_KEY_FLAG:
        return leaf->kind == CD_TOML_FLAG && !leaf->is_array ? NULL : "true or false";
    case CDDP_KEY_INTEGER:
    case CDDP_KEY_UNSIGNED:
        return is_integer && !leaf->is_array ? NULL : "a whole number";
    case CDDP_KEY_NUMBER:
        return is_number && !leaf->is_array ? NULL : "a number";
    case CDDP_KEY_TEXT:
        return is_text && !leaf->is_array ? NULL : "text in quotes";
    case CDDP_KEY_CHOICE:
        return is_text && !leaf->is_array ? NULL : "a word in quotes";
    case CDDP_KEY_SELECTOR:
        return empty || is_integer || is_text
                   ? NULL
                   : "a number, a list of numbers or a selection in quotes";
    case CDDP_KEY_TEXTS:
        return empty || is_text ? NULL : "a list of texts";
    case CDDP_KEY_NUMBERS:
        return empty || is_number ? NULL : "a list of numbers";
    case CDDP_KEY_UNSIGNEDS:
        return empty || is_integer ? NULL : "a list of whole numbers";
    }
    return "something else";
}

static place place_of_value(const cd_toml_leaf *leaf)
{
    return (place){leaf->value_line, leaf->value_column};
}

/* The row for a leaf of the right type; else complains and returns NULL. */
static const cd_key_row *leaf_row(reader *r, const cd_toml_leaf *leaf, const key_path *path)
{
    const place at = {leaf->line, leaf->column};
    const cd_key_row *row = cd_key_find(path->table, path->field);
    const char *refusal = cd_zero_find_refusal(path->table, path->field);
    if (row == NULL && refusal != NULL) {
        complain(r, at, "'%s' in [%s] has no meaning here: %s", path->field, path->table, refusal);
        return NULL;
    }
    if (row == NULL) {
        const cd_key_row *near = cd_key_nearest(path->table, path->field);
        char where[PATH_BYTES_MAX + 16] = "", meant[PATH_BYTES_MAX] = "";
        if (path->table[0] != '\0') snprintf(where, sizeof where, " in [%s]", path->table);
        if (near != NULL && strcmp(near->table, path->table) == 0)
            snprintf(meant, sizeof meant, "%s", near->field);
        else if (near != NULL)
            cd_key_path(near, meant, sizeof meant);
        /* Every line after a header belongs to its table, even a pasted line that should be at the
        ** top of the file. */
        const bool is_top = near != NULL && near->table[0] == '\0' && path->table[0] != '\0';
        char fields[PATH_BYTES_MAX + 256] = "";
        if (near == NULL && path->table[0] != '\0')
            cd_key_print_fields(path->table, fields, sizeof fields);
        complain(r, at, "unknown key '%s'%s%s%s%s", path->field, where,
                 near != NULL ? "; did you mean '" : "", near != NULL ? meant : fields,
                 near == NULL ? ""
                 : is_top     ? "' above the first table?"
                              : "'?");
        return NULL;
    }
    const char *wanted = wrong_type(row, leaf);
    if (wanted != NULL) {
        complain(r, place_of_value(leaf), "'%s' wants %s, not %s", path->field, wanted,
                 kind_words(leaf));
        return NULL;
    }
    return row;
}

/* "optimizer.1" is the second [[optimizer]]; "optimizer" are all of them. */
static void take_element(char *table, int64_t *element)
{
    char *dot = strchr(table, '.'), *end = NULL;
    if (dot == NULL || dot[1] < '0' || dot[1] > '9') return;
    const long long number = strtoll(dot + 1, &end, 10);
    if (*end != '\0') return;
    *element = number;
    *dot = '\0';
}

/* "wrapper.1.ddp" is [ddp] of the second [[wrapper]]. */
static void take_wrapper(char *table, uint64_t *wrapper)
{
    static const char prefix[] = "wrapper.";
    char *end = table;
    if (strncmp(table, prefix, sizeof prefix - 1) != 0) return;
    const unsigned long number = strtoul(table + sizeof prefix - 1, &end, 10);
    if (end == table + sizeof prefix - 1 || *end != '.') return;
    *wrapper = number + 1;
    memmove(table, end + 1, strlen(end));
}

static void apply_override(reader *r, const cd_toml_leaf *leaf, const key_path *inner,
                           const cd_plan_owner *owner)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cd_key_row *row = leaf_row(r, leaf, inner);
    const cd_key_value value = {leaf->items, leaf->item_count};
    if (row != NULL && cd_plan_add_override(r->plan, owner, row, &value, &err) != CDDP_OK)
        refuse(r, place_of_value(leaf), &err);
}

/* "wrapper.ddp" is the table of a setting of this [[wrapper]]. */
static void apply_wrapper_leaf(reader *r, const cd_toml_leaf *leaf, const key_path *path)
{
    key_path inner = *path;
    const char *table = path->table + strlen("wrapper.");
    const cd_plan_owner owner = {.element = CD_PLAN_ALL_ELEMENTS,
                                 .wrapper = (uint64_t)path->index + 1};
    memmove(inner.table, table, strlen(table) + 1);
    apply_override(r, leaf, &inner, &owner);
}

static void apply_rank_leaf(reader *r, const cd_toml_leaf *leaf, const key_path *path)
{
    const place at = {leaf->line, leaf->column};
    key_path inner = *path;
    /* "rank.ddp" is the table of an override. */
    const char *table = strncmp(path->table, "rank.", 5) == 0 ? path->table + 5 : "";
    cd_plan_owner owner = {.ranks = r->rank_tables[path->index], .element = CD_PLAN_ALL_ELEMENTS};
    memmove(inner.table, table, strlen(table) + 1);
    take_wrapper(inner.table, &owner.wrapper);
    take_element(inner.table, &owner.element);
    if (table[0] == '\0') {
        complain(
            r, at,
            "a [[rank]] table holds 'ranks' and keys such as ddp.static_graph; '%s' is neither",
            path->field);
        return;
    }
    apply_override(r, leaf, &inner, &owner);
}

static bool path_is_ranks(const key_path *path)
{
    return strcmp(path->table, "rank") == 0 && strcmp(path->field, "ranks") == 0;
}

static void apply_leaf(reader *r, const cd_toml_leaf *leaf)
{
    const place at = {leaf->line, leaf->column};
    key_path path;
    cddp_error err = CDDP_ERROR_INIT;
    if (!path_split(leaf->path, &path)) {
        complain(r, at, "the name of this key is too long");
        return;
    }
    if (strncmp(path.table, "rank", 4) == 0 && (path.table[4] == '\0' || path.table[4] == '.')) {
        if (path.index >= 0 && path.indexed == strlen("rank") && !path.is_nested &&
            !path_is_ranks(&path))
            apply_rank_leaf(r, leaf, &path);
        return;
    }
    if (strncmp(path.table, "wrapper.", strlen("wrapper.")) == 0 && path.index >= 0 &&
        path.indexed == strlen("wrapper") && !path.is_nested) {
        apply_wrapper_leaf(r, leaf, &path);
        return;
    }
    const bool repeats = item_scope(path.table) != CD_SCOPE_COUNT;
    const bool is_element =
        path.index >= 0 && path.indexed == strlen(path.table) && !path.is_nested;
    if (repeats != is_element || (!repeats && path.index >= 0) || !table_is_known(path.table)) {
        return; /* the table itself was reported */
    }
    const cd_key_row *row = leaf_row(r, leaf, &path);
    const cd_key_value value = {leaf->items, leaf->item_count};
    if (row != NULL &&
        cd_plan_assign(r->plan, row, repeats ? (size_t)path.index : 0, &value, &err) != CDDP_OK)
        refuse(r, place_of_value(leaf), &err);
}

static void apply_ranks(reader *r, const cd_toml_leaf *leaf)
{
    key_path path;
    if (!path_split(leaf->path, &path) || !path_is_ranks(&path) || path.index < 0) return;
    cddp_selector *ranks = &r->rank_tables[path.index];
    if (leaf->item_count == 0 || (leaf->item_count == 1 && leaf->items[0][0] == '\0')) {
        complain(r, place_of_value(leaf),
                 "'ranks' selects nothing: leave it out for all ranks, or leave out the table");
        return;
    }
    for (size_t i = 0; i < leaf->item_count; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_selector some;
        const bool fits = leaf->kind == CD_TOML_INTEGER || leaf->kind == CD_TOML_TEXT;
        if (!fits || cd_selector_parse(leaf->items[i], &some, &err) != CDDP_OK ||
            ranks->term_count + some.term_count > CDDP_SELECTOR_TERMS_MAX) {
            complain(r, place_of_value(leaf),
                     "'ranks' wants a number, a list of numbers or a selection in quotes%s%s",
                     err.message[0] != '\0' ? ": " : "", err.message);
            return;
        }
        memcpy(&ranks->terms[ranks->term_count], some.terms,
               some.term_count * sizeof some.terms[0]);
        ranks->term_count += some.term_count;
    }
}

/* Finds the place of a key, or of its value, for a contradiction found later. "when.uses" is the
** first, "when[2].uses" that of one element, or that element's first key when it has no such key. A
** key that only a [[rank]] sets has its place there. */
static place find_key(const reader *r, const char *key, bool of_value)
{
    const char *bracket = strchr(key, ']');
    const size_t element = bracket != NULL ? (size_t)(bracket + 2 - key) : 0; /* "when[2]." */
    place nearest = {0, 0};
    for (size_t i = 0; i < r->leaf_count; i++) {
        const place key_here = {r->leaves[i].line, r->leaves[i].column};
        const place here = of_value ? place_of_value(&r->leaves[i]) : key_here;
        key_path path;
        char whole[2 * PATH_BYTES_MAX];
        if (!path_split(r->leaves[i].path, &path)) continue;
        snprintf(whole, sizeof whole, "%s%s%s", path.table, path.table[0] != '\0' ? "." : "",
                 path.field);
        if (strcmp(bracket != NULL ? r->leaves[i].path : whole, key) == 0) return here;
        const bool is_of_element = element > 0 && strncmp(r->leaves[i].path, key, element) == 0;
        const bool is_of_rank = strncmp(path.table, "rank.", 5) == 0 && strcmp(whole + 5, key) == 0;
        if ((is_of_element || is_of_rank) && (nearest.line == 0 || here.line < nearest.line))
            nearest = is_of_rank ? here : key_here;
    }
    return nearest;
}

/* Is a word that a text quotes, as 'word', or as [word] where it is about a table, part of the
** message? */
static bool quotes_part_of(const char *text, const char *message)
{
    const bool is_of_table = text[0] == '[' || strncmp(text, "unknown table", 13) == 0;
    for (const char *at = text; (at = strpbrk(at, is_of_table ? "'[" : "'")) != NULL;) {
        char word[PATH_BYTES_MAX];
        const char end[] = {*at == '[' ? ']' : '\'', '\0'};
        while (*at == '[' || *at == '\'') at++;
        const size_t length = strcspn(at, end);
        if (at[length] == '\0') return false;
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (length > 0 && strstr(message, word) != NULL) return true;
        at += length + 1;
    }
    return false;
}

/* The name of the key in whose line the mistake is; NULL: there is none. */
static const char *field_of(const reader *r, const mistake *m)
{
    for (size_t i = 0; i < r->leaf_count; i++) {
        const char *dot = strrchr(r->leaves[i].path, '.');
        if (r->leaves[i].line == m->line) return dot != NULL ? dot + 1 : r->leaves[i].path;
    }
    return NULL;
}

/* A setting with a mistake has its default, which contradicts nobody by intent; and a key that was
** misspelt was meant to be there. */
static bool may_follow_from_mistake(const reader *r, const char *message)
{
    for (size_t i = 0; i < r->written_count; i++) {
        const mistake *m = &r->mistakes[i];
        if (quotes_part_of(m->message, message)) return true;
        if (m->field != NULL && strstr(message, m->field) != NULL) return true;
    }
    return false;
}

static void complain_contradiction(void *context, const char *key, const char *message)
{
    reader *r = context;
    if (r->has_more || may_follow_from_mistake(r, message)) return;
    complain(r, r->mistake_count < MISTAKES_MAX ? find_key(r, key, false) : (place){0, 0}, "%s",
             message);
}

/* A name that nothing has: the value is wrong, not the key. */
static void complain_name(void *context, const char *key, const char *message)
{
    reader *r = context;
    complain(r, r->mistake_count < MISTAKES_MAX ? find_key(r, key, true) : (place){0, 0}, "%s",
             message);
}

static void apply_sets(reader *r)
{
    for (size_t i = 0; i < r->options->set_count; i++) {
        const char *set = r->options->sets[i];
        const char *equals = strchr(set, '=');
        char key[PATH_BYTES_MAX];
        cddp_error err = CDDP_ERROR_INIT;
        if (equals == NULL || (size_t)(equals - set) >= sizeof key) {
            complain(r, (place){0, 0}, "--set %s: write key=value", set);
            continue;
        }
        memcpy(key, set, (size_t)(equals - set));
        key[equals - set] = '\0';
        if (cddp_plan_set(r->plan, key, equals + 1, &err) != CDDP_OK)
            complain(r, (place){0, 0}, "--set %s: %s", set, err.message);
    }
}

static void apply_all(reader *r)
{
    for (size_t i = 0; i < r->leaf_count && !r->has_more; i++) apply_ranks(r, &r->leaves[i]);
    for (size_t i = 0; i < r->leaf_count && !r->has_more; i++) apply_leaf(r, &r->leaves[i]);
    if (find_key(r, "schema", false).line == 0)
        complain(r, (place){1, 1}, "a scenario starts with schema = %d", CDDP_PLAN_SCHEMA);
    apply_sets(r);
    /* A scenario that expects an error may expect exactly this one, so the run judges it. */
    if (r->plan->expect.verdict == CDDP_EXPECT_ERROR) return;
    /* All mistakes in one go: of values, of settings among each other, of names. */
    r->written_count = r->mistake_count;
    for (size_t i = 0; i < r->written_count; i++)
        r->mistakes[i].field = field_of(r, &r->mistakes[i]);
    (void)cd_plan_find_contradictions(r->plan, complain_contradiction, r);
    if (r->options->examine != NULL)
        r->options->examine(r->options->context, r->plan, complain_name, r);
}

/* ---- reporting ---- */

static int compare_mistakes(const void *left, const void *right)
{
    const mistake *a = left, *b = right;
    if (a->line != b->line) return a->line < b->line ? -1 : 1;
    if (a->column != b->column) return a->column < b->column ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

/* Copies a line of the text, without its end. */
static const char *find_line(reader *r, uint32_t line)
{
    const char *at = r->text;
    for (uint32_t i = 1; i < line && at != NULL; i++) {
        at = strchr(at, '\n');
        at = at != NULL ? at + 1 : NULL;
    }
    if (line == 0 || at == NULL) return NULL;
    return cd_arena_printf(&r->arena, "%.*s", (int)strcspn(at, "\r\n"), at);
}

static cddp_status report_mistakes(reader *r, cddp_error *err)
{
    qsort(r->mistakes, r->mistake_count, sizeof *r->mistakes, compare_mistakes);
    for (size_t i = 0; i < r->mistake_count && r->options->complain != NULL; i++) {
        const cd_complaint complaint = {.file = r->name,
                                        .line = r->mistakes[i].line,
                                        .column = r->mistakes[i].column,
                                        .message = r->mistakes[i].message,
                                        .source_line = find_line(r, r->mistakes[i].line)};
        r->options->complain(r->options->context, &complaint);
    }
    if (r->has_more && r->options->complain != NULL) {
        const cd_complaint rest = {.file = r->name,
                                   .message = "there are more mistakes; the rest is not reported"};
        r->options->complain(r->options->context, &rest);
    }
    const mistake *first = &r->mistakes[0];
    char at[32] = ""; /* a table that is missing stands nowhere */
    if (first->line > 0) snprintf(at, sizeof at, ":%u:%u", first->line, first->column);
    return cd_fail(err, CDDP_E_CONFIG, "%s%s: %s%s", r->name, at, first->message,
                   r->mistake_count > 1 ? " (and more mistakes)" : "");
}

cddp_status cd_reader_read_text(const cd_reader_options *options, const char *name,
                                const char *text, cddp_plan **plan, cddp_error *err)
{
    reader r = {.options = options, .name = name, .text = text};
    cd_toml_error syntax = {0};
    cddp_status status = CDDP_OK;
    cd_arena_init(&r.arena, options->allocator, 8192);
    CD_TRY_OUT(cddp_plan_create(options->allocator, &r.plan, err));
    CD_TRY_OUT(cd_plan_set_text(r.plan, name, text, err));
    const cd_toml_visitor visitor = {&r, visit_table, visit_leaf};
    switch (cd_toml_parse(text, strlen(text), &visitor, &syntax)) {
    case CD_TOML_OK:
        if (!r.has_more) apply_all(&r);
        break;
    case CD_TOML_SYNTAX:
        complain(&r, (place){syntax.line, syntax.column}, "%s", syntax.message);
        break;
    case CD_TOML_NO_MEMORY:
    case CD_TOML_STOPPED:
        r.out_of_memory = true;
        break;
    }
    if (r.out_of_memory) {
        status = cd_fail_memory(err, "reading %s", name);
        goto out;
    }
    if (r.mistake_count > 0) CD_TRY_OUT(report_mistakes(&r, err));
    *plan = r.plan;
    r.plan = NULL;
out:
    cddp_plan_destroy(r.plan);
    cd_release(options->allocator, r.leaves, r.leaf_capacity * sizeof *r.leaves);
    cd_release(options->allocator, r.mistakes, r.mistake_capacity * sizeof *r.mistakes);
    cd_release(options->allocator, r.rank_tables, r.rank_table_capacity * sizeof *r.rank_tables);
    cd_arena_fini(&r.arena);
    return status;
}

cddp_status cd_reader_read_file(const cd_reader_options *options, const char *path,
                                cddp_plan **plan, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    char *text = NULL;
    size_t capacity = 0, used = 0;
    FILE *file = NULL;
    CD_TRY(cd_os_open_regular(path, &file, err));
    for (;;) {
        if (used > FILE_BYTES_MAX) {
            status = cd_fail(err, CDDP_E_LIMIT, "%s is longer than %u bytes: not a scenario", path,
                             FILE_BYTES_MAX);
            goto out;
        }
        if (!cd_vec_grow(options->allocator, (void **)&text, &capacity, used + 4096 + 1, 1)) {
            status = cd_fail_memory(err, "reading %s", path);
            goto out;
        }
        const size_t got = fread(text + used, 1, 4096, file);
        used += got;
        if (got == 0) break;
    }
    if (ferror(file)) {
        status =
            cd_fail(err, cd_error_of_errno(errno), "cannot read '%s': %s", path, strerror(errno));
        goto out;
    }
    text[used] = '\0';
    if (strlen(text) != used) {
        status = cd_fail(err, CDDP_E_CONFIG, "%s contains a zero byte: not a text file", path);
        goto out;
    }
    CD_TRY_OUT(cd_reader_read_text(options, path, text, plan, err));
out:
    fclose(file);
    cd_release(options->allocator, text, capacity);
    return status;
}

size_t cd_complaint_print(const cd_complaint *complaint, char *text, size_t text_bytes)
{
    if (complaint->line == 0)
        return (size_t)snprintf(text, text_bytes, "%s: %s\n", complaint->file, complaint->message);
    const int length = snprintf(text, text_bytes, "%s:%u:%u: %s\n", complaint->file,
                                complaint->line, complaint->column, complaint->message);
    if (complaint->source_line == NULL || complaint->source_line[0] == '\0') return (size_t)length;
    const size_t used = (size_t)length < text_bytes ? (size_t)length : text_bytes;
    const int more =
        snprintf(text + used, text_bytes - used, "    %s\n    %*s^\n", complaint->source_line,
                 (int)(complaint->column > 0 ? complaint->column - 1 : 0), "");
    return (size_t)length + (size_t)more;
}
