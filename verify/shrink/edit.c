/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to make a scenario smaller.
**
** Not here: which of the smaller scenarios still fails for the same reason (shrink.c).
*/
#include "verify/shrink/edit.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/real.h"
#include "core/model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_PARAMETERS_MAX 4
#define OPTIONS_TEXT_MAX 4096
#define NO_MEMORY(err) cd_fail_memory(err, "a smaller scenario")

/* Sizes outside the model that may become smaller one by one. */
static const struct {
    const char *path;
    uint64_t least;
} sizes[] = {{"data.samples", 1}, {"data.dataset_size", 1}, {"data.inputs", 0},
             {"join.epochs", 1},  {"collective.numel", 1},  {"when.forwards", 1},
             {"when.samples", 1}, {"when.abort_after", 1},  {"network.jitter_ns", 1}};

static const char *const counted[] = {"world.size", "train.steps", "train.micro_steps",
                                      "data.samples"};

/* Settings that describe a run and do not change it, and those that the schedule replaces. */
static bool row_is_reported(const cd_key_row *row)
{
    return row->table[0] == '\0' || strncmp(row->table, "expect", 6) == 0 ||
           (strcmp(row->table, "schedule") == 0 && strcmp(row->field, "ready") != 0);
}

static bool row_is(const cd_key_row *row, const char *path)
{
    return cd_key_find_path(path) == row;
}

static bool row_is_counted(const cd_key_row *row)
{
    bool is = false;
    for (size_t i = 0; i < sizeof counted / sizeof counted[0]; i++)
        is = is || row_is(row, counted[i]);
    return is;
}

/* Sizes only become smaller, and at its default a model may be larger: it shrinks option by
** option. */
static bool is_kept(const cd_draft_setting *s)
{
    return s->ranks == NULL && (row_is_counted(s->row) || row_is(s->row, "model.options") ||
                                (row_is(s->row, "model.name") && s->item_count > 0 &&
                                 strcmp(s->items[0], "params") == 0));
}

static uint64_t number_of(cd_draft *draft, const char *path)
{
    const cd_draft_setting *setting = cd_draft_find(draft, path);
    return strtoull(setting != NULL ? setting->items[0] : cd_key_find_path(path)->initial, NULL,
                    10);
}

cddp_status cd_edit_prepare(cd_draft *draft, cddp_error *err)
{
    for (size_t i = draft->count; i-- > 0;)
        if (row_is_reported(draft->settings[i].row)) cd_draft_remove(draft, i);
    draft->element_count[CD_SCOPE_finding] = 0;
    CD_TRY(cd_draft_set(draft, "title", "shrunk", err));
    for (size_t i = 0; i < sizeof counted / sizeof counted[0]; i++) {
        char number[24];
        snprintf(number, sizeof number, "%" PRIu64, number_of(draft, counted[i]));
        CD_TRY(cd_draft_set(draft, counted[i], number, err));
    }
    return CDDP_OK;
}

cddp_status cd_edit_unshuffle(cd_draft *draft, bool *found, cddp_error *err)
{
    for (size_t i = 0; i < draft->count; i++) {
        cd_draft_setting *s = &draft->settings[i];
        if ((!row_is(s->row, "when.ready") && !row_is(s->row, "schedule.ready")) ||
            strcmp(s->items[0], "shuffled") != 0)
            continue;
        s->items[0] = cd_arena_printf(&draft->arena, "chosen");
        if (s->items[0] == NULL) return NO_MEMORY(err);
        *found = true;
    }
    return CDDP_OK;
}

/* ---- model options as text: "count=3,order=2:0:1" ---- */

typedef struct option_text {
    char bytes[OPTIONS_TEXT_MAX];
    char *names[32], *values[32];
    size_t count;
    bool fits;
} option_text;

static void options_split(option_text *o, const char *text)
{
    o->count = 0;
    o->fits = strlen(text) < sizeof o->bytes;
    snprintf(o->bytes, sizeof o->bytes, "%s", text);
    for (char *at = o->bytes; o->fits && *at != '\0' && o->count < 32;) {
        char *comma = strchr(at, ','), *equals = strchr(at, '=');
        if (comma != NULL) *comma = '\0';
        if (equals == NULL || (comma != NULL && equals > comma)) break;
        *equals = '\0';
        o->names[o->count] = at;
        o->values[o->count++] = equals + 1;
        at = comma != NULL ? comma + 1 : at + strlen(at) + strlen(equals + 1) + 1;
        if (comma == NULL) break;
    }
}

static size_t options_find(const option_text *o, const char *name)
{
    size_t i = 0;
    while (i < o->count && strcmp(o->names[i], name) != 0) i++;
    return i;
}

static cddp_status options_join(const option_text *o, cd_draft *draft, cd_draft_setting *setting,
                                cddp_error *err)
{
    cd_text text;
    cd_text_init(&text, false);
    for (size_t i = 0; i < o->count; i++)
        if (o->names[i] != NULL)
            cd_text_printf(&text, "%s%s=%s", text.length > 0 ? "," : "", o->names[i], o->values[i]);
    const char **items = cd_arena_push(&draft->arena, sizeof *items);
    if (items != NULL) items[0] = cd_arena_printf(&draft->arena, "%s", cd_text_get(&text));
    bool failed = text.failed || items == NULL || items[0] == NULL;
    cd_text_fini(&text);
    if (failed) return NO_MEMORY(err);
    setting->items = items;
    setting->item_count = 1;
    return CDDP_OK;
}

/* Pieces of "a:5;b:5" or "8:16:4". */
static size_t piece_count(const char *value, char separator)
{
    size_t count = 1;
    for (const char *at = value; *at != '\0'; at++) count += *at == separator;
    return count;
}

/* The k-th piece: where it begins, and how long it is. */
static const char *piece_get(const char *value, char separator, size_t k, size_t *length)
{
    for (; k > 0; k--) value = strchr(value, separator) + 1;
    const char *end = strchr(value, separator);
    *length = end != NULL ? (size_t)(end - value) : strlen(value);
    return value;
}

/* A copy without the k-th piece; "" when it was the only one. */
static char *piece_remove(cd_arena *arena, const char *value, char separator, size_t k)
{
    size_t length = 0;
    const char *piece = piece_get(value, separator, k, &length);
    const char *behind = piece[length] != '\0' ? piece + length + 1 : piece + length;
    size_t before = (size_t)(piece - value);
    if (*behind == '\0' && before > 0) before--; /* the separator in front */
    return cd_arena_printf(arena, "%.*s%s", (int)before, value, behind);
}

/* ---- model params ---- */

static const char *model_name(cd_draft *draft)
{
    const cd_draft_setting *name = cd_draft_find(draft, "model.name");
    return name != NULL && name->item_count > 0 ? name->items[0]
                                                : cd_key_find_path("model.name")->initial;
}

static void model_options(cd_draft *draft, option_text *o)
{
    const cd_draft_setting *options = cd_draft_find(draft, "model.options");
    options_split(o, options != NULL && options->item_count > 0 ? options->items[0] : "");
}

/* How many parameters model params has; 0 for other models. */
static size_t parameter_count(cd_draft *draft)
{
    option_text o;
    if (strcmp(model_name(draft), "params") != 0) return 0;
    model_options(draft, &o);
    size_t list = options_find(&o, "list"), count = options_find(&o, "count");
    if (list < o.count) return piece_count(o.values[list], ';');
    return count < o.count ? (size_t)strtoull(o.values[count], NULL, 10) : 4;
}

/* The name of parameter k of model params. */
static void parameter_name(cd_draft *draft, size_t k, char *name, size_t name_bytes)
{
    option_text o;
    size_t length = 0;
    model_options(draft, &o);
    size_t list = options_find(&o, "list");
    snprintf(name, name_bytes, "p%zu", k);
    if (list < o.count) {
        const char *piece = piece_get(o.values[list], ';', k, &length);
        snprintf(name, name_bytes, "%.*s", (int)strcspn(piece, ":;"), piece);
    }
}

/* Which piece of a list is called so; SIZE_MAX: none. */
static size_t list_find(const char *value, const char *name)
{
    size_t count = piece_count(value, ';'), length = 0;
    for (size_t k = 0; k < count; k++) {
        const char *piece = piece_get(value, ';', k, &length);
        if (strcspn(piece, ":;") == strlen(name) && strncmp(piece, name, strlen(name)) == 0)
            return k;
    }
    return SIZE_MAX;
}

/* ---- listing ---- */

void cd_edit_list_fini(cd_edit_list *list)
{
    cd_release(NULL, list->items, list->capacity * sizeof *list->items);
    *list = (cd_edit_list){.count = 0};
}

static bool add(cd_edit_list *list, cd_edit edit)
{
    if (!cd_vec_grow(NULL, (void **)&list->items, &list->capacity, list->count + 1,
                     sizeof *list->items))
        return false;
    list->items[list->count++] = edit;
    return true;
}

/* All but two, all but one, halves, quarters …, pairs, single ones. */
static bool add_ranges(cd_edit_list *list, cd_edit_kind kind, size_t total, bool coarse)
{
    bool ok = true;
    if (coarse && total > 3) {
        ok = add(list, (cd_edit){.kind = kind, .first = 2, .count = total - 2}) &&
             add(list, (cd_edit){.kind = kind, .first = 1, .count = total - 1});
        for (size_t chunk = total / 2; ok && chunk > 2; chunk /= 2)
            for (size_t first = 0; ok && first + chunk <= total; first += chunk)
                ok = add(list, (cd_edit){.kind = kind, .first = first, .count = chunk});
        /* Pairs at every place: what comes in twos can only go in twos. */
        for (size_t first = total - 1; ok && first-- > 0;)
            ok = add(list, (cd_edit){.kind = kind, .first = first, .count = 2});
    }
    for (size_t first = total; ok && total > 1 && first-- > 0;)
        ok = add(list, (cd_edit){.kind = kind, .first = first, .count = 1});
    return ok;
}

/* The least, the half, one less. */
static bool add_smaller(cd_edit_list *list, cd_edit edit, uint64_t value, uint64_t least)
{
    bool ok = true;
    if (value <= least) return true;
    edit.count = (size_t)least;
    ok = add(list, edit);
    edit.count = (size_t)(value / 2);
    if (value / 2 > least) ok = ok && add(list, edit);
    edit.count = (size_t)value - 1;
    if (value - 1 > least && value - 1 != value / 2) ok = ok && add(list, edit);
    return ok;
}

static bool is_list(cddp_key_type type)
{
    return type == CDDP_KEY_TEXTS || type == CDDP_KEY_NUMBERS || type == CDDP_KEY_UNSIGNEDS;
}

static bool add_settings(cd_edit_list *list, const cd_draft *draft)
{
    bool ok = true;
    for (int scope = 0; scope < CD_SCOPE_COUNT; scope++)
        for (size_t e = draft->element_count[scope]; ok && e-- > 0;)
            ok = add(list, (cd_edit){.kind = CD_EDIT_ELEMENT, .at = (size_t)scope, .first = e});
    for (size_t i = 0; ok && i < draft->count; i++) {
        const cd_draft_setting *s = &draft->settings[i];
        if (row_is_reported(s->row) || is_kept(s)) continue;
        ok = add(list, (cd_edit){.kind = CD_EDIT_SETTING, .at = i});
    }
    return ok;
}

static bool add_lists(cd_edit_list *list, const cd_draft *draft)
{
    bool ok = true;
    for (size_t i = 0; i < draft->count; i++) {
        const cd_draft_setting *s = &draft->settings[i];
        for (size_t k = 0; ok && is_list(s->row->type) && s->item_count > 1 && k < s->item_count;
             k++)
            ok = add(list, (cd_edit){.kind = CD_EDIT_ITEM, .at = i, .first = k});
        size_t terms = s->row->type == CDDP_KEY_SELECTOR ? piece_count(s->items[0], ',') : 0;
        for (size_t k = 0; ok && terms > 1 && k < terms; k++)
            ok = add(list, (cd_edit){.kind = CD_EDIT_TERM, .at = i, .first = k});
    }
    return ok;
}

static bool add_numbers(cd_edit_list *list, const cd_draft *draft)
{
    bool ok = true;
    for (size_t i = 0; ok && i < draft->count; i++) {
        const cd_draft_setting *s = &draft->settings[i];
        for (size_t k = 0; ok && k < sizeof sizes / sizeof sizes[0]; k++)
            if (row_is(s->row, sizes[k].path))
                ok = add_smaller(list, (cd_edit){.kind = CD_EDIT_NUMBER, .at = i},
                                 strtoull(s->items[0], NULL, 10), sizes[k].least);
        if (row_is(s->row, "ddp.bucket_cap_mb") && cd_real_parse(s->items[0], NULL) < 1)
            ok = ok && add(list, (cd_edit){.kind = CD_EDIT_CAP, .at = i});
    }
    return ok;
}

/* Sizes of the model: options that are whole numbers, given or at their default. */
static bool add_model_sizes(cd_edit_list *list, cd_draft *draft)
{
    option_text o;
    const char *name, *option, *initial, *doc;
    bool ok = true;
    model_options(draft, &o);
    for (size_t i = 0; (name = cd_model_type_name(i)) != NULL; i++) {
        if (strcmp(name, model_name(draft)) != 0) continue;
        for (size_t k = 0; ok && cd_model_type_option(i, k, &option, &initial, &doc); k++) {
            size_t given = options_find(&o, option);
            const char *value = given < o.count ? o.values[given] : initial;
            bool whole =
                value[0] >= '0' && value[0] <= '9' && value[strspn(value, "0123456789")] == '\0';
            /* CD_EDIT_PARAMETER */
            bool counts = strcmp(name, "params") == 0 && strcmp(option, "count") == 0;
            if (whole && !counts)
                ok = add_smaller(list, (cd_edit){.kind = CD_EDIT_SIZE, .at = i, .first = k},
                                 strtoull(value, NULL, 10), strcmp(initial, "1") == 0 ? 0 : 1);
        }
    }
    return ok;
}

static bool add_options(cd_edit_list *list, const cd_draft *draft)
{
    bool ok = true;
    for (size_t i = 0; i < draft->count; i++) {
        option_text o = {.count = 0};
        const cd_draft_setting *s = &draft->settings[i];
        if (row_is(s->row, "model.options") && s->item_count > 0) options_split(&o, s->items[0]);
        for (size_t k = 0; ok && k < o.count; k++) {
            /* Sizes only become smaller; their default may be larger. */
            bool whole = o.values[k][strspn(o.values[k], "0123456789")] == '\0';
            size_t pieces = strchr(o.values[k], ';') == NULL ? piece_count(o.values[k], ':') : 1;
            if (!whole && strcmp(o.names[k], "list") != 0)
                ok = add(list, (cd_edit){.kind = CD_EDIT_OPTION, .at = i, .first = k});
            for (size_t p = 0; ok && pieces > 1 && p < pieces; p++)
                ok = add(list, (cd_edit){.kind = CD_EDIT_PIECE, .at = i, .first = k, .count = p});
        }
    }
    return ok;
}

/* The elements of parameter k when its shape is one number, else 0. */
static uint64_t shape_of(cd_draft *draft, size_t k)
{
    option_text o;
    size_t length = 0;
    model_options(draft, &o);
    size_t list = options_find(&o, "list");
    if (list == o.count) return 0;
    const char *shape = strchr(piece_get(o.values[list], ';', k, &length), ':');
    size_t digits = shape != NULL ? strspn(shape + 1, "0123456789") : 0;
    return digits > 0 && strchr(":;", shape[1 + digits]) != NULL ? strtoull(shape + 1, NULL, 10)
                                                                 : 0;
}

static bool add_parameters(cd_edit_list *list, cd_draft *draft, bool coarse)
{
    size_t count = parameter_count(draft);
    bool ok = true;
    for (size_t n = 1; ok && count == 0 && n <= MODEL_PARAMETERS_MAX; n++)
        ok = add(list, (cd_edit){.kind = CD_EDIT_MODEL, .count = n});
    ok = ok && add_ranges(list, CD_EDIT_PARAMETER, count, coarse);
    for (size_t k = 0; ok && k < count; k++)
        ok = add_smaller(list, (cd_edit){.kind = CD_EDIT_SHAPE, .first = k}, shape_of(draft, k), 1);
    return ok;
}

cddp_status cd_edit_list_make(cd_edit_list *list, cd_draft *draft, bool coarse, cddp_error *err)
{
    list->count = 0;
    bool ok = add_ranges(list, CD_EDIT_RANKS, (size_t)number_of(draft, "world.size"), coarse) &&
              add_ranges(list, CD_EDIT_STEPS, (size_t)number_of(draft, "train.steps"), coarse) &&
              add_ranges(list, CD_EDIT_MICRO_STEPS, (size_t)number_of(draft, "train.micro_steps"),
                         coarse) &&
              add_settings(list, draft) && add_parameters(list, draft, coarse) &&
              add_lists(list, draft) && add_options(list, draft) && add_model_sizes(list, draft) &&
              add_numbers(list, draft);
    return ok ? CDDP_OK : NO_MEMORY(err);
}

/* ---- renumbering ---- */

typedef struct gap {
    cd_draft *draft;
    size_t first, count, total; /* taken away: first … first + count - 1, of total */
    const char *field;          /* of selections that count in it */
    bool possible;
} gap;

/* Where n is afterwards; false when it was taken away. */
static bool renumber(const gap *g, uint64_t *n)
{
    if (*n >= g->first && *n < g->first + g->count) return false;
    if (*n >= g->first + g->count) *n -= g->count;
    return true;
}

static bool push_term(cddp_selector *selector, uint32_t first, uint32_t last)
{
    if (selector->term_count == CDDP_SELECTOR_TERMS_MAX) return false;
    selector->terms[selector->term_count].first = first;
    selector->terms[selector->term_count++].last = last;
    return true;
}

/* The selection over what is left. False when nothing of it is left; *text is then not written. */
static bool renumber_selection(gap *g, const char *before, const char **text)
{
    cddp_selector from = {0}, to = {0};
    char words[256];
    uint64_t left = g->total - g->count, selected = 0, run = 0;
    g->possible =
        g->possible && cd_selector_parse(before, &from, NULL) == CDDP_OK && left <= UINT32_MAX;
    for (uint64_t n = 0; g->possible && n <= left; n++) {
        uint64_t old = n >= g->first ? n + g->count : n;
        bool has = n < left && cddp_selector_has(&from, (uint32_t)old);
        selected += has;
        if (!has && run > 0) g->possible = push_term(&to, (uint32_t)(n - run), (uint32_t)(n - 1));
        run = has ? run + 1 : 0;
    }
    if (!g->possible || selected == 0) return false;
    cd_selector_print(&to, words, sizeof words);
    *text = cd_arena_printf(&g->draft->arena, "%s", selected == left ? "" : words);
    g->possible = *text != NULL;
    return true;
}

/* A [[table]] whose selection has nothing left goes; one that selects everything needs no
** selection. */
static void renumber_selections(gap *g)
{
    for (size_t i = g->draft->count; i-- > 0 && g->possible;) {
        cd_draft_setting *s = &g->draft->settings[i];
        if (s->row->type != CDDP_KEY_SELECTOR || strcmp(s->row->field, g->field) != 0 ||
            s->ranks != NULL)
            continue;
        const cd_key_scope scope = s->row->scope;
        if (!renumber_selection(g, s->items[0], &s->items[0])) {
            if (!g->possible) return;
            cd_draft_remove_element(g->draft, scope, (size_t)s->element);
            i = g->draft->count;
        } else if (s->items[0][0] == '\0') {
            cd_draft_remove(g->draft, i);
        }
    }
}

static void renumber_rank_tables(gap *g)
{
    for (size_t i = g->draft->count; i-- > 0 && g->possible;) {
        cd_draft_setting *s = &g->draft->settings[i];
        if (s->ranks != NULL && !renumber_selection(g, s->ranks, &s->ranks) && g->possible)
            cd_draft_remove(g->draft, i);
    }
}

static bool renumber_text(gap *g, const char **item)
{
    uint64_t n = strtoull(*item, NULL, 10);
    if (!renumber(g, &n)) return false;
    *item = cd_arena_printf(&g->draft->arena, "%" PRIu64, n);
    g->possible = g->possible && *item != NULL;
    return true;
}

static bool names_ranks(const cd_key_row *row)
{
    static const char *const paths[] = {"group.members", "fault.rank", "fault.peer", "fault.joiner",
                                        "rendezvous.host"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (row_is(row, paths[i])) return true;
    return false;
}

/* Ranks that are named as such: members of groups, targets of faults, the host of the store. */
static void renumber_named_ranks(gap *g)
{
    for (size_t i = g->draft->count; i-- > 0 && g->possible;) {
        cd_draft_setting *s = &g->draft->settings[i];
        size_t left = 0;
        if (!names_ranks(s->row)) continue;
        for (size_t k = 0; k < s->item_count; k++)
            if (renumber_text(g, &s->items[k])) s->items[left++] = s->items[k];
        s->item_count = left;
        if (left > 0) continue;
        /* the host itself is gone: another one would serve */
        if (cd_item_table_get(s->row->scope) == NULL) {
            g->possible = false;
            return;
        }
        cd_draft_remove_element(g->draft, s->row->scope, (size_t)s->element);
        i = g->draft->count;
    }
}

/* Steps for which a rank has inputs, and the step of a checkpoint. */
static void renumber_step_counts(gap *g)
{
    for (size_t i = 0; i < g->draft->count && g->possible; i++) {
        cd_draft_setting *s = &g->draft->settings[i];
        if (!row_is(s->row, "data.inputs") && !row_is(s->row, "train.checkpoint_step")) continue;
        uint64_t n = strtoull(s->items[0], NULL, 10), gone = 0;
        for (uint64_t k = g->first; k < g->first + g->count; k++) gone += k < n;
        if (n == 0 || gone == 0) continue;
        /* train.checkpoint_step = 0 would mean something else */
        g->possible = gone < n || row_is(s->row, "data.inputs");
        s->items[0] = cd_arena_printf(&g->draft->arena, "%" PRIu64, n - gone);
        g->possible = g->possible && s->items[0] != NULL;
    }
}

static cddp_status remove_range(const cd_edit *edit, cd_draft *draft, bool *possible,
                                cddp_error *err)
{
    static const char *const paths[] = {"world.size", "train.steps", "train.micro_steps"};
    static const char *const fields[] = {"ranks", "steps", "micro_steps"};
    char number[24];
    gap g = {draft,
             edit->first,
             edit->count,
             (size_t)number_of(draft, paths[edit->kind]),
             fields[edit->kind],
             true};
    snprintf(number, sizeof number, "%zu", g.total - g.count);
    renumber_selections(&g);
    if (edit->kind == CD_EDIT_RANKS) {
        renumber_rank_tables(&g);
        renumber_named_ranks(&g);
    } else if (edit->kind == CD_EDIT_STEPS) {
        renumber_step_counts(&g);
    }
    *possible = g.possible;
    CD_TRY(cd_draft_set(draft, paths[edit->kind], number, err));
    return CDDP_OK;
}

/* ---- parameters ---- */

/* Rows whose texts name parameters. */
static bool row_names_parameters(const cd_key_row *row)
{
    static const char *const paths[] = {"when.ready_order", "when.poison_parameter",
                                        "when.uses",        "optimizer.parameters",
                                        "model.freeze",     "model.ignore"};
    bool names = false;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        names = names || row_is(row, paths[i]);
    return names;
}

/* "p3" becomes "p2" where p0 … are counted; a text that does not begin with the name stays. */
static const char *rename_parameter(cd_draft *draft, const char *text, size_t removed,
                                    bool is_counted)
{
    char *end = NULL;
    if (!is_counted || text[0] != 'p') return text;
    unsigned long long k = strtoull(text + 1, &end, 10);
    return end == text + 1 || k <= removed ? text
                                           : cd_arena_printf(&draft->arena, "p%llu%s", k - 1, end);
}

static void rename_parameters(cd_draft *draft, const char *name, size_t removed, bool is_counted)
{
    for (size_t i = 0; i < draft->count; i++) {
        cd_draft_setting *s = &draft->settings[i];
        size_t left = 0;
        if (!row_names_parameters(s->row)) continue;
        for (size_t k = 0; k < s->item_count; k++) {
            bool is_it = strncmp(s->items[k], name, strlen(name)) == 0 &&
                         strchr("=", s->items[k][strlen(name)]) != NULL;
            if (!is_it)
                s->items[left++] = rename_parameter(draft, s->items[k], removed, is_counted);
        }
        s->item_count = left;
    }
}

/* "2:0:1" without 1 is "1:0". */
static char *order_without(cd_arena *arena, const char *value, size_t removed)
{
    char text[OPTIONS_TEXT_MAX];
    size_t used = 0, length = 0, count = piece_count(value, ':');
    for (size_t k = 0; k < count && used + 24 < sizeof text; k++) {
        size_t n = (size_t)strtoull(piece_get(value, ':', k, &length), NULL, 10);
        if (n != removed)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%zu", used > 0 ? ":" : "",
                                     n > removed ? n - 1 : n);
    }
    return cd_arena_printf(arena, "%.*s", (int)used, text);
}

static cddp_status remove_parameter(size_t first, cd_draft *draft, bool *possible, cddp_error *err)
{
    char name[256], number[24];
    size_t total = parameter_count(draft);
    option_text base;
    parameter_name(draft, first, name, sizeof name);
    model_options(draft, &base);
    bool is_counted = options_find(&base, "list") == base.count;
    if (cd_draft_find(draft, "model.options") == NULL)
        CD_TRY(cd_draft_set(draft, "model.options", "count=4", err));
    for (size_t i = 0; i < draft->count; i++) {
        cd_draft_setting *s = &draft->settings[i];
        option_text o;
        if (!row_is(s->row, "model.options") || s->item_count == 0) continue;
        options_split(&o, s->items[0]);
        *possible = *possible && o.fits;
        size_t list = options_find(&o, "list"), count = options_find(&o, "count"),
               order = options_find(&o, "order");
        size_t piece = list < o.count ? list_find(o.values[list], name) : first;
        if (piece == SIZE_MAX) continue;
        snprintf(number, sizeof number, "%zu", total - 1);
        if (list < o.count) {
            o.values[list] = piece_remove(&draft->arena, o.values[list], ';', piece);
        } else if (count < o.count) {
            o.values[count] = number;
        } else {
            o.names[o.count] = "count";
            o.values[o.count++] = number;
        }
        if (order < o.count && o.values[order][0] != '-')
            o.values[order] = order_without(&draft->arena, o.values[order], piece);
        CD_TRY(options_join(&o, draft, s, err));
    }
    rename_parameters(draft, name, first, is_counted);
    return CDDP_OK;
}

static cddp_status remove_parameters(const cd_edit *edit, cd_draft *draft, bool *possible,
                                     cddp_error *err)
{
    for (size_t i = 0; i < edit->count && *possible; i++)
        CD_TRY(remove_parameter(edit->first, draft, possible, err));
    return CDDP_OK;
}

/* A parameter of a list becomes smaller wherever the list is given. */
static cddp_status shrink_parameter(const cd_edit *edit, cd_draft *draft, cddp_error *err)
{
    char name[256];
    parameter_name(draft, edit->first, name, sizeof name);
    for (size_t i = 0; i < draft->count; i++) {
        cd_draft_setting *s = &draft->settings[i];
        option_text o = {.count = 0};
        size_t length = 0;
        if (row_is(s->row, "model.options") && s->item_count > 0) options_split(&o, s->items[0]);
        size_t list = options_find(&o, "list");
        size_t piece = list < o.count ? list_find(o.values[list], name) : SIZE_MAX;
        if (piece == SIZE_MAX) continue;
        const char *at = piece_get(o.values[list], ';', piece, &length),
                   *shape = strchr(at, ':') + 1;
        o.values[list] =
            cd_arena_printf(&draft->arena, "%.*s%zu%s", (int)(shape - o.values[list]),
                            o.values[list], edit->count, shape + strspn(shape, "0123456789"));
        CD_TRY(options_join(&o, draft, s, err));
    }
    return CDDP_OK;
}

static cddp_status replace_model(const cd_edit *edit, cd_draft *draft, cddp_error *err)
{
    char options[32];
    snprintf(options, sizeof options, "count=%zu", edit->count);
    CD_TRY(cd_draft_set(draft, "model.name", "params", err));
    CD_TRY(cd_draft_set(draft, "model.options", options, err));
    return CDDP_OK;
}

static cddp_status set_model_size(const cd_edit *edit, cd_draft *draft, cddp_error *err)
{
    option_text o;
    const char *option = "", *initial, *doc;
    char number[24];
    if (cd_draft_find(draft, "model.options") == NULL)
        CD_TRY(cd_draft_set(draft, "model.options", "", err));
    model_options(draft, &o);
    (void)cd_model_type_option(edit->at, edit->first, &option, &initial, &doc);
    size_t k = options_find(&o, option);
    snprintf(number, sizeof number, "%zu", edit->count);
    if (k == o.count) o.count++;
    o.names[k] = (char *)(uintptr_t)option;
    o.values[k] = number;
    CD_TRY(options_join(&o, draft, cd_draft_find(draft, "model.options"), err));
    return CDDP_OK;
}

static cddp_status change_option(const cd_edit *edit, cd_draft *draft, cddp_error *err)
{
    cd_draft_setting *s = &draft->settings[edit->at];
    option_text o;
    options_split(&o, s->items[0]);
    if (edit->kind == CD_EDIT_OPTION)
        o.names[edit->first] = NULL;
    else
        o.values[edit->first] =
            piece_remove(&draft->arena, o.values[edit->first], ':', edit->count);
    CD_TRY(options_join(&o, draft, s, err));
    return CDDP_OK;
}

/* ---- applying ---- */

static cddp_status set_item(cd_draft *draft, cd_draft_setting *s, char *item, cddp_error *err)
{
    (void)draft;
    if (item == NULL) return NO_MEMORY(err);
    s->items[0] = item;
    return CDDP_OK;
}

static void remove_item(const cd_edit *edit, cd_draft *draft)
{
    cd_draft_setting *s = &draft->settings[edit->at];
    s->item_count--;
    memmove(&s->items[edit->first], &s->items[edit->first + 1],
            (s->item_count - edit->first) * sizeof *s->items);
}

cddp_status cd_edit_apply(const cd_edit *edit, const cd_draft *from, cd_draft *to, bool *possible,
                          cddp_error *err)
{
    *possible = true;
    CD_TRY(cd_draft_copy(to, from, err));
    cd_draft_setting *s = edit->at < to->count ? &to->settings[edit->at] : NULL;
    switch (edit->kind) {
    case CD_EDIT_RANKS:
    case CD_EDIT_STEPS:
    case CD_EDIT_MICRO_STEPS:
        return CD_PASS(remove_range(edit, to, possible, err));
    case CD_EDIT_ELEMENT:
        cd_draft_remove_element(to, (cd_key_scope)edit->at, edit->first);
        return CDDP_OK;
    case CD_EDIT_SETTING:
        cd_draft_remove(to, edit->at);
        return CDDP_OK;
    case CD_EDIT_ITEM:
        remove_item(edit, to);
        return CDDP_OK;
    case CD_EDIT_TERM:
        return CD_PASS(
            set_item(to, s, piece_remove(&to->arena, s->items[0], ',', edit->first), err));
    case CD_EDIT_MODEL:
        return CD_PASS(replace_model(edit, to, err));
    case CD_EDIT_PARAMETER:
        return CD_PASS(remove_parameters(edit, to, possible, err));
    case CD_EDIT_SHAPE:
        return CD_PASS(shrink_parameter(edit, to, err));
    case CD_EDIT_OPTION:
    case CD_EDIT_PIECE:
        return CD_PASS(change_option(edit, to, err));
    case CD_EDIT_SIZE:
        return CD_PASS(set_model_size(edit, to, err));
    case CD_EDIT_NUMBER:
        return CD_PASS(set_item(to, s, cd_arena_printf(&to->arena, "%zu", edit->count), err));
    case CD_EDIT_CAP:
        return CD_PASS(
            set_item(to, s,
                     cd_arena_printf(&to->arena, "%.17g", 2 * cd_real_parse(s->items[0], NULL)),
                     err));
    }
    return CDDP_OK;
}

/* ---- telling ---- */

static void print_range(const cd_edit *edit, cd_text *text)
{
    static const char *const words[] = {"rank", "step", "micro-step"};
    if (edit->count == 1)
        cd_text_printf(text, "%s %zu", words[edit->kind], edit->first);
    else
        cd_text_printf(text, "%ss %zu to %zu", words[edit->kind], edit->first,
                       edit->first + edit->count - 1);
}

static void print_setting(const cd_draft *from, size_t at, cd_text *text)
{
    const cd_draft_setting *s = &from->settings[at];
    char path[96];
    cd_key_path(s->row, path, sizeof path);
    cd_text_printf(text, "%s%s%s%s", path, s->ranks != NULL ? " on rank " : "",
                   s->ranks != NULL ? s->ranks : "", s->item_count > 0 ? " = " : "");
    for (size_t i = 0; i < s->item_count; i++)
        cd_text_printf(text, "%s%s", i > 0 ? "," : "", s->items[i]);
}

/* The settings of one [[table]], as "[[when]] ranks = 1, ready = reversed". */
static void print_element(const cd_edit *edit, const cd_draft *from, cd_text *text)
{
    bool first = true;
    cd_text_printf(text, "[[%s]]", cd_item_table_get((cd_key_scope)edit->at)->name);
    for (size_t i = 0; i < from->count; i++) {
        const cd_draft_setting *s = &from->settings[i];
        if (s->ranks != NULL || (size_t)s->row->scope != edit->at ||
            s->element != (int64_t)edit->first)
            continue;
        cd_text_printf(text, "%s%s = %s", first ? " " : ", ", s->row->field,
                       s->item_count > 0 ? s->items[0] : "");
        for (size_t k = 1; k < s->item_count; k++) cd_text_printf(text, ",%s", s->items[k]);
        first = false;
    }
}

void cd_edit_print(const cd_edit *edit, const cd_draft *from, cd_text *text)
{
    switch (edit->kind) {
    case CD_EDIT_RANKS:
    case CD_EDIT_STEPS:
    case CD_EDIT_MICRO_STEPS:
        print_range(edit, text);
        break;
    case CD_EDIT_ELEMENT:
        print_element(edit, from, text);
        break;
    case CD_EDIT_MODEL:
        cd_text_push(text, "the model");
        break;
    case CD_EDIT_PARAMETER:
        cd_text_printf(text, "parameter %zu", edit->first);
        break;
    case CD_EDIT_SHAPE:
        cd_text_printf(text, "elements of parameter %zu", edit->first);
        break;
    case CD_EDIT_SIZE:
        cd_text_push(text, "a size of the model");
        break;
    case CD_EDIT_SETTING:
        print_setting(from, edit->at, text);
        break;
    case CD_EDIT_ITEM:
    case CD_EDIT_TERM:
    case CD_EDIT_OPTION:
    case CD_EDIT_PIECE:
    case CD_EDIT_NUMBER:
    case CD_EDIT_CAP:
        cd_text_push(text, "part of ");
        print_setting(from, edit->at, text);
        break;
    }
}
