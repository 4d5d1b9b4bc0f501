/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON schema of scenarios, for editors, from the key table. */
#include "cli/list.h"

#include "cddp/plan.h"
#include "verify/report/json.h"

#include <stdio.h>
#include <string.h>

#define TABLES_MAX 64
#define WRAPPER "wrapper[]"

static void put_type(cd_json *json, const char *type) { cd_json_put_text(json, "type", type); }

static void put_list(cd_json *json, const char *type)
{
    put_type(json, "array");
    cd_json_key(json, "items");
    cd_json_open(json, '{');
    put_type(json, type);
    cd_json_close(json, '}');
}

static void put_choices(cd_json *json, const char *choices)
{
    char word[64];
    cd_json_key(json, "enum");
    cd_json_open(json, '[');
    for (const char *at = choices; at != NULL;) {
        const char *bar = strchr(at, '|');
        snprintf(word, sizeof word, "%.*s", (int)(bar != NULL ? (size_t)(bar - at) : strlen(at)),
                 at);
        cd_json_text(json, word);
        at = bar != NULL ? bar + 1 : NULL;
    }
    cd_json_close(json, ']');
}

/* The name of a key within its table. */
static const char *field_of(const cddp_key_info *key)
{
    const char *dot = strrchr(key->path, '.');
    return dot != NULL ? dot + 1 : key->path;
}

static void put_key(cd_json *json, const cddp_key_info *key)
{
    cd_json_key(json, field_of(key));
    cd_json_open(json, '{');
    cd_json_put_text(json, "description", key->doc);
    switch (key->type) {
    case CDDP_KEY_FLAG:
        put_type(json, "boolean");
        break;
    case CDDP_KEY_INTEGER:
        put_type(json, "integer");
        break;
    case CDDP_KEY_UNSIGNED:
        put_type(json, "integer");
        cd_json_put_integer(json, "minimum", 0);
        break;
    case CDDP_KEY_NUMBER:
        put_type(json, "number");
        break;
    case CDDP_KEY_CHOICE:
        put_choices(json, key->choices);
        break;
    case CDDP_KEY_TEXTS:
        put_list(json, "string");
        break;
    case CDDP_KEY_NUMBERS:
        put_list(json, "number");
        break;
    case CDDP_KEY_UNSIGNEDS:
        put_list(json, "integer");
        break;
    case CDDP_KEY_TEXT:     /* settings may be a table */
    case CDDP_KEY_SELECTOR: /* a number, a list or a text */
        break;
    }
    if (key->initial[0] != '\0') cd_json_put_text(json, "$comment", key->initial);
    cd_json_close(json, '}');
}

/* "when[]" of "when[].sync", "" of "title" */
static void table_of(const cddp_key_info *key, char *table, size_t bytes)
{
    const size_t length = (size_t)(field_of(key) - key->path);
    snprintf(table, bytes, "%.*s", (int)(length > 0 ? length - 1 : 0), key->path);
}

static void put_keys(cd_json *json, const char *table, bool per_rank)
{
    cddp_key_info key = {.size = sizeof key};
    for (size_t i = 0; cddp_plan_key(i, &key); i++) {
        char own[sizeof key.path];
        table_of(&key, own, sizeof own);
        if (strcmp(own, table) == 0 && (key.per_rank || !per_rank)) put_key(json, &key);
    }
}

static void put_table(cd_json *json, const char (*tables)[64], size_t count, const char *table,
                      bool per_rank);

/* The tables right below one: "expect.finding[]" below "expect". */
static void put_tables(cd_json *json, const char (*tables)[64], size_t count, const char *above,
                       bool per_rank)
{
    const size_t length = strlen(above);
    for (size_t i = 0; i < count; i++) {
        const char *below = length == 0 ? tables[i]
                            : strncmp(tables[i], above, length) == 0 && tables[i][length] == '.'
                                ? tables[i] + length + 1
                                : NULL;
        if (below != NULL && below[0] != '\0' && strchr(below, '.') == NULL)
            put_table(json, tables, count, tables[i], per_rank);
    }
}

/* The same keys of one element of a table that repeats. */
static void put_numbered(cd_json *json, const char *table)
{
    cd_json_key(json, "patternProperties");
    cd_json_open(json, '{');
    cd_json_key(json, "^[0-9]+$");
    cd_json_open(json, '{');
    put_type(json, "object");
    cd_json_put_flag(json, "additionalProperties", false);
    cd_json_key(json, "properties");
    cd_json_open(json, '{');
    put_keys(json, table, true);
    cd_json_close(json, '}');
    cd_json_close(json, '}');
    cd_json_close(json, '}');
}

static void put_table(cd_json *json, const char (*tables)[64], size_t count, const char *table,
                      bool per_rank)
{
    char name[64];
    const char *dot = strrchr(table, '.');
    snprintf(name, sizeof name, "%s", dot != NULL ? dot + 1 : table);
    char *bracket = strchr(name, '[');
    const bool is_numbered = bracket != NULL && per_rank; /* "optimizer.1.lr" of some ranks */
    if (bracket != NULL) *bracket = '\0';
    cd_json_key(json, name);
    cd_json_open(json, '{');
    bracket = per_rank ? NULL : bracket;
    if (bracket != NULL) {
        put_type(json, "array");
        cd_json_key(json, "items");
        cd_json_open(json, '{');
    }
    put_type(json, "object");
    cd_json_put_flag(json, "additionalProperties", false);
    cd_json_key(json, "properties");
    cd_json_open(json, '{');
    put_keys(json, table, per_rank);
    put_tables(json, tables, count, table, per_rank);
    /* a wrapper may have every table for itself */
    for (size_t i = 0; strcmp(table, WRAPPER) == 0 && i < count; i++)
        if (tables[i][0] != '\0' && strchr(tables[i], '.') == NULL &&
            strcmp(tables[i], WRAPPER) != 0)
            put_table(json, tables, count, tables[i], per_rank);
    cd_json_close(json, '}');
    if (is_numbered) put_numbered(json, table);
    if (bracket != NULL) cd_json_close(json, '}');
    cd_json_close(json, '}');
}

/* [[rank]]: which ranks, and the tables with what a rank may have for itself. */
static void put_rank(cd_json *json, const char (*tables)[64], size_t count)
{
    cd_json_key(json, "rank");
    cd_json_open(json, '{');
    put_type(json, "array");
    cd_json_key(json, "items");
    cd_json_open(json, '{');
    put_type(json, "object");
    cd_json_key(json, "properties");
    cd_json_open(json, '{');
    cd_json_key(json, "ranks");
    cd_json_open(json, '{');
    cd_json_put_text(json, "description", "which ranks: 1, \"0-3\", \"1%2\" or a list of these");
    cd_json_close(json, '}');
    put_tables(json, tables, count, "", true);
    cd_json_close(json, '}');
    cd_json_close(json, '}');
    cd_json_close(json, '}');
}

static size_t collect_tables(char (*tables)[64])
{
    cddp_key_info key = {.size = sizeof key};
    size_t count = 0;
    for (size_t i = 0; cddp_plan_key(i, &key); i++) {
        char own[64];
        bool known = false;
        table_of(&key, own, sizeof own);
        for (size_t k = 0; k < count; k++) known |= strcmp(tables[k], own) == 0;
        if (!known && count < TABLES_MAX) memcpy(tables[count++], own, sizeof own);
    }
    return count;
}

void cd_schema_print(cd_text *text)
{
    cd_json json;
    char tables[TABLES_MAX][64];
    const size_t count = collect_tables(tables);
    cd_json_begin(&json, text);
    cd_json_open(&json, '{');
    cd_json_put_text(&json, "$schema", "http://json-schema.org/draft-07/schema#");
    cd_json_put_text(&json, "title", "a scenario of cddp-verify");
    put_type(&json, "object");
    cd_json_put_flag(&json, "additionalProperties", false);
    cd_json_key(&json, "required");
    cd_json_open(&json, '[');
    cd_json_text(&json, "schema");
    cd_json_text(&json, "title");
    cd_json_close(&json, ']');
    cd_json_key(&json, "properties");
    cd_json_open(&json, '{');
    put_keys(&json, "", false);
    put_tables(&json, (const char(*)[64])tables, count, "", false);
    put_rank(&json, (const char(*)[64])tables, count);
    cd_json_close(&json, '}');
    cd_json_close(&json, '}');
}
