/* SPDX-License-Identifier: Apache-2.0 */
/* The line of a scenario, or of a program, that a result is about.
**
** A scenario is read line by line: tables, arrays of tables, and keys. The reader of scenarios has
** accepted the file by then, so what is no header, key or comment belongs to a value. */
#include "verify/report/place.h"

#include "core/base/rank_list.h"
#include "verify/hang/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *check, *keys;
} places[] = {
#define CD_PLACE(check, keys) {check, keys},
#include "verify/report/place.def"
#undef CD_PLACE
};

#define NAME_BYTES 96

/* Walks over the keys of a file. */
typedef struct walker {
    const char *at;
    uint32_t line;
    char table[NAME_BYTES]; /* "ddp", "when" */
    uint32_t item;          /* counts tables, so that two [[when]] differ */
    char key[NAME_BYTES];   /* "bucket_cap_mb"; "" at a header */
    const char *value;
    size_t value_length;
} walker;

static void skip_line(walker *w)
{
    w->at += strcspn(w->at, "\n");
    if (*w->at == '\n') w->at++;
}

/* Several lines between three quotes. */
static void skip_value(walker *w)
{
    const char *line_end = w->at + strcspn(w->at, "\n"), *quotes = w->value;
    while (quotes < line_end && strncmp(quotes, "\"\"\"", 3) != 0) quotes++;
    if (quotes < line_end) {
        const char *end = strstr(quotes + 3, "\"\"\"");
        for (; end != NULL && w->at < end; skip_line(w)) {
            if (strcspn(w->at, "\n") >= (size_t)(end - w->at)) break;
            w->line++;
        }
    }
    skip_line(w);
}

static bool next(walker *w)
{
    if (w->value != NULL) skip_value(w);
    w->value = NULL;
    for (; *w->at != '\0'; skip_line(w)) {
        w->line++;
        const char *begin = w->at + strspn(w->at, " \t");
        const size_t length = strcspn(begin, "\n");
        if (*begin == '[') {
            const char *name = begin + strspn(begin, "[ ");
            snprintf(w->table, sizeof w->table, "%.*s", (int)strcspn(name, "] \n"), name);
            w->item++;
            w->key[0] = '\0';
            w->value = name;
            w->value_length = 0;
            return true;
        }
        const size_t name = strcspn(begin, "= \t\n#");
        const char *equals = begin + name + strspn(begin + name, " \t");
        if (name == 0 || *begin == '#' || *equals != '=') continue;
        snprintf(w->key, sizeof w->key, "%.*s", (int)name, begin);
        w->value = equals + 1 + strspn(equals + 1, " \t");
        w->value_length =
            length > (size_t)(w->value - begin) ? length - (size_t)(w->value - begin) : 0;
        return true;
    }
    return false;
}

static void whole_name(const walker *w, char *name, size_t bytes)
{
    snprintf(name, bytes, "%s%s%s", w->table, w->table[0] != '\0' && w->key[0] != '\0' ? "." : "",
             w->key);
}

/* ---- tables that speak of some ranks ---- */

/* "1", "0,2", "1-3" or [0, 2] */
static bool list_has(const char *value, size_t length, uint32_t number)
{
    for (const char *at = value, *end = value + length; at < end && *at != '#';) {
        char *after = NULL;
        if (*at < '0' || *at > '9') {
            at++;
            continue;
        }
        unsigned long first = strtoul(at, &after, 10), last = first;
        if (*after == '%') return false;
        if (*after == '-') last = strtoul(after + 1, &after, 10);
        if (number >= first && number <= last) return true;
        at = after;
    }
    return false;
}

static bool speaks_of_ranks(const char *table)
{
    static const char *const tables[] = {"fault", "rank", "when", "collective"};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (strcmp(table, tables[i]) == 0) return true;
    return false;
}

static bool is_selector(const char *key)
{
    static const char *const keys[] = {"rank", "ranks", "step", "steps", "micro_steps", "at"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(key, keys[i]) == 0) return true;
    return false;
}

/* The first key of the first table that names the rank. */
static bool find_rank(cd_result *r, const char *scenario, uint32_t rank)
{
    uint32_t wanted = 0;
    walker w = {.at = scenario};
    while (wanted == 0 && next(&w))
        if (speaks_of_ranks(w.table) &&
            (strcmp(w.key, "rank") == 0 || strcmp(w.key, "ranks") == 0) &&
            list_has(w.value, w.value_length, rank))
            wanted = w.item;
    w = (walker){.at = scenario};
    while (wanted != 0 && next(&w)) {
        char name[2 * NAME_BYTES];
        if (w.item != wanted || w.key[0] == '\0' || is_selector(w.key)) continue;
        whole_name(&w, name, sizeof name);
        r->place_line = w.line;
        r->place_key = cd_result_copy(r, name);
        return true;
    }
    return false;
}

/* A key, or with a dot at its end a table: its first key. */
static bool find_key(cd_result *r, const char *scenario, const char *key, size_t length)
{
    const bool is_table = length > 0 && key[length - 1] == '.';
    walker w = {.at = scenario};
    while (next(&w)) {
        char name[2 * NAME_BYTES];
        whole_name(&w, name, sizeof name);
        if (w.key[0] == '\0' || strncmp(name, key, length) != 0) continue;
        if (!is_table && name[length] != '\0') continue;
        r->place_line = w.line;
        r->place_key = cd_result_copy(r, name);
        return true;
    }
    return false;
}

static bool find_keys(cd_result *r, const char *scenario, const char *keys)
{
    for (const char *at = keys; *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (find_key(r, scenario, at, length)) return true;
        at += length;
    }
    return false;
}

static const char *keys_of(const char *check)
{
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (strcmp(places[i].check, check) == 0) return places[i].keys;
    return "";
}

/* CD_NO_RANK: nobody in particular. */
static uint32_t find_culprit(const cddp_verdict *v)
{
    for (uint32_t i = 0; v->wait_count > 0 && i < v->rank_count; i++)
        if (cd_hang_is_culprit(v, i)) return i;
    if (v->finding_count == 0) return CD_NO_RANK;
    const cddp_finding *f = &v->findings[0];
    return f->rank_count > 0 ? f->ranks[0] : f->rank >= 0 ? (uint32_t)f->rank : CD_NO_RANK;
}

void cd_result_locate(cd_result *r, const char *file, const char *scenario)
{
    const cddp_verdict *v = &r->verdict;
    const uint32_t culprit = find_culprit(v);
    r->place = cd_result_copy(r, file);
    r->place_key = "";
    r->place_line = 1;
    if (scenario == NULL ||
        (v->finding_count == 0 && v->wait_count == 0 && v->outcome == CDDP_OUTCOME_VERIFIED))
        return;
    /* What was expected did not come: the expectation is what to look at. */
    if (v->finding_count == 0 && v->wait_count == 0) {
        (void)find_keys(r, scenario, "expect.verdict expect.");
        return;
    }
    if (culprit != CD_NO_RANK && find_rank(r, scenario, culprit)) return;
    const char *check = v->finding_count > 0 ? v->findings[0].check : "I-LIVE";
    if (find_keys(r, scenario, keys_of(check))) return;
    (void)find_keys(r, scenario, "fault. when. model.name model. title");
}

bool cd_finding_find_source(const cddp_finding *f, char *path, size_t path_bytes, uint32_t *line)
{
    const char *at = NULL, *next_at = f->advice;
    while ((next_at = strstr(next_at, " at ")) != NULL) {
        const char *rank = next_at;
        while (rank > f->advice && rank[-1] >= '0' && rank[-1] <= '9') rank--;
        if (rank != next_at && rank - f->advice >= 5 && strncmp(rank - 5, "rank ", 5) == 0) {
            at = next_at + 4;
            break;
        }
        next_at += 4;
    }
    if (at == NULL) return false;
    const size_t length = strcspn(at, ":;");
    if (at[length] != ':' || at[length + 1] < '0' || at[length + 1] > '9' || length >= path_bytes)
        return false;
    snprintf(path, path_bytes, "%.*s", (int)length, at);
    *line = (uint32_t)strtoul(at + length + 1, NULL, 10);
    return *line > 0;
}
