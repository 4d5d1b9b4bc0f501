/* SPDX-License-Identifier: Apache-2.0 */
/* Reading "key=value,…" against a table. */
#include "core/hooks/option.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/pairs.h"
#include "core/base/real.h"
#include "core/base/suggest.h"

#include <stdlib.h>
#include <string.h>

static const char *nearest(const cd_option *table, size_t table_count, const char *key)
{
    cd_suggestion near;
    cd_suggest_begin(&near, key);
    for (size_t i = 0; i < table_count; i++)
        if (table[i].kind != CD_OPTION_REFUSED) cd_suggest_offer(&near, table[i].key);
    return near.best;
}

/* The text being read, and the rows that were given. */
typedef struct options {
    const char *owner;
    const cd_option *table; /* (table_count) */
    size_t table_count;
    bool *given; /* (table_count) */
    void *target;
} options;

static cddp_status set(const char *owner, const cd_option *o, const char *value, void *target,
                       cddp_error *err)
{
    char *field = (char *)target + o->offset, *end = NULL;
    switch (o->kind) {
    case CD_OPTION_REFUSED:
        return cd_fail(err, CDDP_E_CONFIG, "%s: %s: %s", owner, o->key, o->why);
    case CD_OPTION_TEXT:
        if (strlen(value) >= CD_OPTION_TEXT_BYTES)
            return cd_fail(err, CDDP_E_CONFIG, "%s: %s is too long", owner, o->key);
        memcpy(field, value, strlen(value) + 1);
        return CDDP_OK;
    case CD_OPTION_FLAG: {
        bool yes = strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
        bool no = strcmp(value, "false") == 0 || strcmp(value, "0") == 0;
        if (!yes && !no)
            return cd_fail(err, CDDP_E_CONFIG, "%s: %s=%s is neither true nor false", owner, o->key,
                           value);
        memcpy(field, &yes, sizeof yes);
        return CDDP_OK;
    }
    case CD_OPTION_COUNT:
    case CD_OPTION_REAL:
        break;
    }
    double real = cd_real_parse(value, &end);
    bool is_number = end != value && *end == '\0' && real == real;
    bool is_whole =
        is_number && real >= 0 && real < 9007199254740992.0 && (double)(uint64_t)real == real;
    if (!is_number || (o->kind == CD_OPTION_COUNT && !is_whole))
        return cd_fail(err, CDDP_E_CONFIG, "%s: %s=%s is not a %s", owner, o->key, value,
                       o->kind == CD_OPTION_COUNT ? "whole number" : "number");
    if (real < o->least || real > o->most)
        return cd_fail(err, CDDP_E_CONFIG, "%s: %s=%s is not between %g and %g", owner, o->key,
                       value, o->least, o->most);
    uint64_t count = is_whole ? (uint64_t)real : 0;
    if (o->kind == CD_OPTION_COUNT)
        memcpy(field, &count, sizeof count);
    else
        memcpy(field, &real, sizeof real);
    return CDDP_OK;
}

/* The row that has already set this row's field: itself or another name of it; NULL: none. given:
** (table_count) */
static const cd_option *find_earlier(const cd_option *table, size_t table_count, const bool *given,
                                     const cd_option *row)
{
    for (size_t i = 0; i < table_count; i++)
        if (given[i] && table[i].offset == row->offset) return &table[i];
    return NULL;
}

static cddp_status take_pair(void *self, const char *key, const char *value, cddp_error *err)
{
    const options *o = self;
    for (size_t i = 0; i < o->table_count; i++) {
        if (strcmp(o->table[i].key, key) != 0) continue;
        const cd_option *earlier = find_earlier(o->table, o->table_count, o->given, &o->table[i]);
        if (earlier == &o->table[i])
            return cd_fail(err, CDDP_E_CONFIG, "%s: %s is given twice", o->owner, key);
        if (earlier != NULL && o->table[i].kind != CD_OPTION_REFUSED)
            return cd_fail(err, CDDP_E_CONFIG, "%s: %s and %s are one option: give one of them",
                           o->owner, earlier->key, key);
        CD_TRY(set(o->owner, &o->table[i], value, o->target, err));
        o->given[i] = true;
        return CDDP_OK;
    }
    const char *near = nearest(o->table, o->table_count, key);
    return cd_fail(err, CDDP_E_CONFIG, "%s: unknown option '%s'%s%s%s", o->owner, key,
                   near != NULL ? " (did you mean '" : "", near != NULL ? near : "",
                   near != NULL ? "'?)" : "");
}

cddp_status cd_options_read(const char *owner, const cd_option *table, size_t table_count,
                            const char *text, void *target, cddp_error *err)
{
    bool given[CD_OPTIONS_MAX] = {false};
    options o = {owner, table, table_count, given, target};
    CD_ASSERT(table_count <= CD_OPTIONS_MAX);
    return CD_PASS(cd_pairs_read(owner, text, take_pair, &o, err));
}

void cd_options_report(const cd_option *table, size_t table_count, const void *target,
                       cddp_tracer *tracer)
{
    for (size_t i = 0; tracer != NULL && i < table_count; i++) {
        const char *field = (const char *)target + table[i].offset;
        uint64_t count;
        double real;
        bool yes;
        switch (table[i].kind) {
        case CD_OPTION_COUNT:
            memcpy(&count, field, sizeof count);
            cddp_tracer_option(tracer, table[i].key, (double)count);
            break;
        case CD_OPTION_REAL:
            memcpy(&real, field, sizeof real);
            cddp_tracer_option(tracer, table[i].key, real);
            break;
        case CD_OPTION_FLAG:
            memcpy(&yes, field, sizeof yes);
            cddp_tracer_option(tracer, table[i].key, yes);
            break;
        case CD_OPTION_TEXT:
        case CD_OPTION_REFUSED:
            break;
        }
    }
}
