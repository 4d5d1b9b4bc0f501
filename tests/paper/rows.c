/* SPDX-License-Identifier: Apache-2.0 */
/* CSV as RFC 4180 has it, read as strangers would: nothing here is shared with what wrote it. */
#include "tests/paper/rows.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const rows *r, const char *what, const char *which)
{
    fprintf(stderr, "%s: %s %s\n", r->path, what, which);
    exit(EXIT_FAILURE);
}

static char *read_file(rows *r)
{
    FILE *file = fopen(r->path, "rb");
    if (file == NULL) die(r, "cannot be read:", "sweeps.sh writes it");
    size_t room = 1 << 20;
    char *text = malloc(room);
    if (text == NULL) die(r, "no memory", "");
    const size_t used = fread(text, 1, room - 1, file);
    if (used + 1 == room) die(r, "is larger than", "1 MiB");
    text[used] = '\0';
    fclose(file);
    return text;
}

/* Cuts a field off in place. *at moves behind it and its separator. True: it ends its line. */
static bool cut_field(char **at, char **field)
{
    char *from = *at, *to = from;
    bool is_quoted = *from == '"';
    if (is_quoted) from++, to = from;
    *field = to;
    for (; *from != '\0' && (is_quoted || (*from != ',' && *from != '\n')); from++) {
        if (is_quoted && from[0] == '"' && from[1] == '"') {
            from++;
        } else if (is_quoted && from[0] == '"') {
            is_quoted = false;
            continue;
        }
        *to++ = *from;
    }
    const bool is_end = *from != ',';
    *at = *from != '\0' ? from + 1 : from;
    *to = '\0';
    return is_end;
}

rows rows_read(const char *folder, const char *name)
{
    rows r = {.text = NULL};
    size_t room = 16384, count = 0;
    snprintf(r.path, sizeof r.path, "%s/%s.csv", folder, name);
    r.text = read_file(&r);
    r.fields = malloc(room * sizeof *r.fields);
    if (r.fields == NULL) die(&r, "no memory", "");
    for (char *at = r.text; *at != '\0' && count < room;) {
        const bool is_end = cut_field(&at, &r.fields[count++]);
        if (is_end && r.column_count == 0) r.column_count = count;
        if (is_end && count % r.column_count != 0) die(&r, "is cut off at", r.fields[count - 1]);
    }
    if (r.column_count == 0) die(&r, "is empty", "");
    r.row_count = count / r.column_count;
    return r;
}

void rows_free(rows *r)
{
    free(r->text);
    free(r->fields);
    *r = (rows){.text = NULL};
}

static const char *get(const rows *r, size_t row, const char *column)
{
    for (size_t i = 0; i < r->column_count; i++)
        if (strcmp(r->fields[i], column) == 0) return r->fields[row * r->column_count + i];
    die(r, "has no column", column);
    return "";
}

static bool has_column(const rows *r, const char *column)
{
    for (size_t i = 0; i < r->column_count; i++)
        if (strcmp(r->fields[i], column) == 0) return true;
    return false;
}

double rows_ms(const rows *r, const char *key, const char *value, const char *key_2,
               const char *value_2)
{
    for (size_t i = 1; i < r->row_count; i++) {
        if (strcmp(get(r, i, key), value) != 0) continue;
        if (key_2 != NULL && strcmp(get(r, i, key_2), value_2) != 0) continue;
        const bool is_alone =
            has_column(r, "world.size") && strcmp(get(r, i, "world.size"), "1") == 0;
        const char *verdict = get(r, i, "verdict");
        if (strcmp(verdict, "verified") != 0 && !(is_alone && strcmp(verdict, "inconclusive") == 0))
            die(r, "has a row that is not verified:", get(r, i, "why"));
        return strtod(get(r, i, "step_ns"), NULL) / 1e6;
    }
    die(r, "has no row of", value);
    return 0;
}
