/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/sweep/sheet.h"

#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/real.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cddp_status cd_sheet_init(cd_sheet *s, const cd_grid *grid, const char *scenario, cddp_error *err)
{
    *s = (cd_sheet){.grid = grid, .scenario = scenario};
    cd_arena_init(&s->arena, NULL, 1 << 14);
    s->rows = cd_arena_array(&s->arena, grid->cell_count, sizeof *s->rows);
    if (s->rows == NULL) {
        cd_arena_fini(&s->arena);
        return cd_fail_memory(err, "%zu cells", grid->cell_count);
    }
    return CDDP_OK;
}

void cd_sheet_fini(cd_sheet *s) { cd_arena_fini(&s->arena); }

cddp_status cd_sheet_take(cd_sheet *s, size_t cell, const cd_sheet_row *row, cddp_error *err)
{
    cd_sheet_row *kept = &s->rows[cell];
    *kept = *row;
    kept->is_known = true;
    kept->verdict = cd_arena_strdup(&s->arena, row->verdict);
    kept->why = cd_arena_strdup(&s->arena, row->why);
    return cd_arena_check(&s->arena, err, "a row");
}

double cd_cost_get(const cd_cost *c, cd_by by)
{
    switch (by) {
    case CD_BY_EXPOSED:
        return c->exposed_ns;
    case CD_BY_BYTES:
        return c->bytes;
    case CD_BY_MEMORY:
        return c->memory;
    case CD_BY_STEP:
        break;
    }
    return c->step_ns;
}

size_t cd_sheet_best(const cd_sheet *s, cd_by by)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < s->grid->cell_count; i++) {
        if (!s->rows[i].is_known || s->rows[i].exit_code != 0) continue;
        if (best == SIZE_MAX ||
            cd_cost_get(&s->rows[i].cost, by) < cd_cost_get(&s->rows[best].cost, by))
            best = i;
    }
    return best;
}

/* ---- the table ---- */

static void put_time(double ns, char *text, size_t bytes)
{
    if (ns <= 0)
        snprintf(text, bytes, "0");
    else
        cd_duration_print((uint64_t)llround(ns), text, bytes);
}

static void put_bytes(double n, char *text, size_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (n >= 1024 && unit < 4) n /= 1024, unit++;
    cd_real_format(text, bytes, "%.*f %s", unit == 0 || n >= 100 ? 0 : 1, n, units[unit]);
}

static size_t key_width(const cd_grid *g, size_t axis)
{
    size_t width = strlen(g->axes[axis].key);
    for (size_t i = 0; i < g->axes[axis].count; i++)
        if (strlen(g->axes[axis].values[i]) > width) width = strlen(g->axes[axis].values[i]);
    return width;
}

static void put_row(const cd_sheet *s, size_t cell, bool is_best, cd_text *text)
{
    const cd_sheet_row *r = &s->rows[cell];
    char step[CD_DURATION_BYTES], exposed[CD_DURATION_BYTES], bytes[32], memory[32];
    put_time(r->cost.step_ns, step, sizeof step);
    put_time(r->cost.exposed_ns, exposed, sizeof exposed);
    put_bytes(r->cost.bytes, bytes, sizeof bytes);
    put_bytes(r->cost.memory, memory, sizeof memory);
    for (size_t i = 0; i < s->grid->axis_count; i++)
        cd_text_printf(text, "%-*s  ", (int)key_width(s->grid, i), cd_grid_get(s->grid, cell, i));
    if (!r->is_known)
        cd_text_style(text, CD_STYLE_DIM, "not run");
    else
        cd_text_printf(text, "%-12s  %-10s  %-10s  %-10s  ", step, exposed, bytes, memory);
    if (r->is_known)
        cd_text_style(text, r->exit_code == 0 ? CD_STYLE_GREEN : CD_STYLE_RED, "%s", r->verdict);
    if (is_best) cd_text_style(text, CD_STYLE_BOLD, "  best");
    if (r->is_known && r->exit_code != 0 && r->why[0] != '\0')
        cd_text_printf(text, ": %.160s", r->why);
    cd_text_push(text, "\n");
}

void cd_sheet_print_table(const cd_sheet *s, cd_by by, cd_text *text)
{
    static const char *const names[] = {"step time", "exposed time", "bytes", "memory"};
    const size_t best = cd_sheet_best(s, by);
    for (size_t i = 0; i < s->grid->axis_count; i++)
        cd_text_style(text, CD_STYLE_BOLD, "%-*s  ", (int)key_width(s->grid, i),
                      s->grid->axes[i].key);
    cd_text_style(text, CD_STYLE_BOLD, "%-12s  %-10s  %-10s  %-10s  %s\n", "step", "exposed",
                  "bytes", "memory", "verdict");
    for (size_t i = 0; i < s->grid->cell_count; i++) put_row(s, i, i == best, text);
    if (best == SIZE_MAX) {
        cd_text_push(text, "no cell is verified\n");
        return;
    }
    cd_text_printf(text, "best by %s:", names[by]);
    for (size_t i = 0; i < s->grid->axis_count; i++)
        cd_text_printf(text, " %s=%s", s->grid->axes[i].key, cd_grid_get(s->grid, best, i));
    cd_text_push(text, "\n");
}

/* ---- CSV (RFC 4180) ---- */

static void put_field(cd_text *text, const char *value)
{
    if (strpbrk(value, ",\"\n\r") == NULL) {
        cd_text_push(text, value);
        return;
    }
    cd_text_push(text, "\"");
    for (const char *at = value; *at != '\0'; at++)
        cd_text_printf(text, *at == '"' ? "\"\"" : "%c", *at);
    cd_text_push(text, "\"");
}

static void put_header(const cd_sheet *s, cd_text *text)
{
    cd_text_push(text, "scenario,plan,skip");
    for (size_t i = 0; i < s->grid->axis_count; i++) {
        cd_text_push(text, ",");
        put_field(text, s->grid->axes[i].key);
    }
    cd_text_push(text, ",step_ns,exposed_ns,bytes,memory_bytes,exit_code,verdict,why\n");
}

void cd_sheet_print_csv(const cd_sheet *s, cd_text *text)
{
    put_header(s, text);
    for (size_t cell = 0; cell < s->grid->cell_count; cell++) {
        const cd_sheet_row *r = &s->rows[cell];
        if (!r->is_known) continue;
        put_field(text, s->scenario);
        cd_text_printf(text, ",%016" PRIx64 ",%" PRIu64, s->plan_digest, s->skip);
        for (size_t i = 0; i < s->grid->axis_count; i++) {
            cd_text_push(text, ",");
            put_field(text, cd_grid_get(s->grid, cell, i));
        }
        cd_text_printf(text, ",%.17g,%.17g,%.17g,%.17g,%d,", r->cost.step_ns, r->cost.exposed_ns,
                       r->cost.bytes, r->cost.memory, r->exit_code);
        put_field(text, r->verdict);
        cd_text_push(text, ",");
        put_field(text, r->why);
        cd_text_push(text, "\n");
    }
}

/* Cuts a field off in place; *at is behind its separator, NULL behind the last one of a line. *rest
** is where the next line begins. */
static char *take_field(char **at, char **rest)
{
    char *from = *at, *to = from, *start = from;
    bool is_quoted = *from == '"';
    if (is_quoted) from++;
    for (; *from != '\0'; from++) {
        if (is_quoted && from[0] == '"' && from[1] == '"') {
            from++;
        } else if (is_quoted && from[0] == '"') {
            is_quoted = false;
            continue;
        } else if (!is_quoted && (*from == ',' || *from == '\n')) {
            break;
        }
        *to++ = *from;
    }
    const char end = *from;
    *at = end == ',' ? from + 1 : NULL;
    if (end != ',') *rest = end == '\0' ? from : from + 1;
    *to = '\0';
    return start;
}

#define FIELDS_MAX 64

static size_t find_cell(const cd_sheet *s, char *const *values)
{
    for (size_t cell = 0; cell < s->grid->cell_count; cell++) {
        size_t same = 0;
        while (same < s->grid->axis_count &&
               strcmp(values[same], cd_grid_get(s->grid, cell, same)) == 0)
            same++;
        if (same == s->grid->axis_count) return cell;
    }
    return SIZE_MAX;
}

/* The fields before the settings. */
static cddp_status check_origin(const cd_sheet *s, char *const *fields, size_t number,
                                cddp_error *err)
{
    if (strcmp(fields[0], s->scenario) != 0)
        return cd_fail(err, CDDP_E_MISMATCH, "line %zu is of another scenario, %.120s", number,
                       fields[0]);
    if (strtoull(fields[1], NULL, 16) != s->plan_digest)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "line %zu is of other settings: the scenario was edited, or --set or --seed "
                       "differs",
                       number);
    if (strtoull(fields[2], NULL, 10) != s->skip)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "line %zu leaves out the first %.20s steps, not %" PRIu64, number, fields[2],
                       s->skip);
    return CDDP_OK;
}

static cddp_status take_line(cd_sheet *s, char *line, char **rest, size_t number, cddp_error *err)
{
    char *fields[FIELDS_MAX];
    size_t count = 0;
    const size_t costs = s->grid->axis_count + 3;
    for (char *at = line; at != NULL && count < FIELDS_MAX;)
        fields[count++] = take_field(&at, rest);
    if (count != costs + 7)
        return cd_fail(err, CDDP_E_CORRUPT, "line %zu has %zu fields, and %zu are expected", number,
                       count, costs + 7);
    CD_TRY(check_origin(s, fields, number, err));
    const size_t cell = find_cell(s, fields + 3);
    if (cell == SIZE_MAX)
        return cd_fail(err, CDDP_E_MISMATCH, "line %zu is of a cell that this grid does not have",
                       number);
    const cd_sheet_row row = {.exit_code = atoi(fields[costs + 4]),
                              .verdict = fields[costs + 5],
                              .why = fields[costs + 6],
                              .cost = {cd_real_parse(fields[costs], NULL),
                                       cd_real_parse(fields[costs + 1], NULL),
                                       cd_real_parse(fields[costs + 2], NULL),
                                       cd_real_parse(fields[costs + 3], NULL)}};
    return CD_PASS(cd_sheet_take(s, cell, &row, err));
}

cddp_status cd_sheet_read_csv(cd_sheet *s, const char *csv, cddp_error *err)
{
    cd_text header;
    char *copy = cd_arena_strdup(&s->arena, csv), *rest;
    cddp_status status = CDDP_OK;
    if (copy == NULL) return cd_fail_memory(err, "an earlier sweep");
    cd_text_init(&header, false);
    put_header(s, &header);
    if (strncmp(copy, cd_text_get(&header), header.length) != 0)
        status = cd_fail(err, CDDP_E_MISMATCH, "it is of other keys, or no sweep at all");
    rest = copy + (status == CDDP_OK ? header.length : 0);
    cd_text_fini(&header);
    for (size_t number = 2; status == CDDP_OK && *rest != '\0'; number++)
        status = take_line(s, rest, &rest, number, err);
    return status;
}

/* ---- the figure ---- */

enum { WIDTH = 720, HEIGHT = 360, LEFT = 84, TOP = 44, RIGHT = 190, BOTTOM = 52 };

static double x_of(const cd_grid *g, size_t i)
{
    const double room = WIDTH - LEFT - RIGHT;
    return g->axes[0].count < 2 ? LEFT + room / 2
                                : LEFT + room * (double)i / (double)(g->axes[0].count - 1);
}

static double y_of(double value, double most)
{
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (most > 0 ? value / most : 0);
}

static void put_escaped(cd_text *text, const char *value)
{
    for (const char *at = value; *at != '\0'; at++)
        cd_text_printf(text, *at == '<' ? "&lt;" : *at == '&' ? "&amp;" : "%c", *at);
}

static void put_number(double value, cd_by by, char *text, size_t bytes)
{
    if (by == CD_BY_STEP || by == CD_BY_EXPOSED)
        put_time(value, text, bytes);
    else
        put_bytes(value, text, bytes);
}

static void put_axes(const cd_sheet *s, cd_by by, double most, cd_text *text)
{
    char words[48];
    for (int i = 0; i <= 4; i++) {
        const double value = most * i / 4, y = y_of(value, most);
        put_number(value, by, words, sizeof words);
        cd_text_printf(text,
                       "<path class='grid' d='M%d %.1fH%d'/><text x='%d' y='%.1f' "
                       "text-anchor='end'>%s</text>\n",
                       LEFT, y, WIDTH - RIGHT, LEFT - 8, y + 4, words);
    }
    for (size_t i = 0; i < s->grid->axes[0].count; i++) {
        cd_text_printf(text, "<text x='%.1f' y='%d' text-anchor='middle'>", x_of(s->grid, i),
                       HEIGHT - BOTTOM + 18);
        put_escaped(text, s->grid->axes[0].values[i]);
        cd_text_push(text, "</text>\n");
    }
    cd_text_printf(text, "<text x='%d' y='%d' text-anchor='middle'>", (LEFT + WIDTH - RIGHT) / 2,
                   HEIGHT - 12);
    put_escaped(text, s->grid->axes[0].key);
    cd_text_push(text, "</text>\n");
}

/* One combination of the other keys. A cell that is not verified interrupts its line. */
static void put_line(const cd_sheet *s, cd_by by, size_t line, double most, cd_text *text)
{
    const cd_grid *g = s->grid;
    const size_t lines = g->cell_count / g->axes[0].count;
    bool draws = false;
    cd_text_printf(text, "<g class='c%zu'><path d='", line % 6);
    for (size_t i = 0; i < g->axes[0].count; i++) {
        const cd_sheet_row *r = &s->rows[i * lines + line];
        const bool is_point = r->is_known && r->exit_code == 0;
        if (is_point)
            cd_text_printf(text, "%c%.1f %.1f", draws ? 'L' : 'M', x_of(g, i),
                           y_of(cd_cost_get(&r->cost, by), most));
        draws = is_point;
    }
    cd_text_push(text, "'/>");
    for (size_t i = 0; i < g->axes[0].count; i++) {
        const cd_sheet_row *r = &s->rows[i * lines + line];
        if (!r->is_known) continue;
        if (r->exit_code == 0)
            cd_text_printf(text, "<circle cx='%.1f' cy='%.1f' r='3.5'/>", x_of(g, i),
                           y_of(cd_cost_get(&r->cost, by), most));
        else
            cd_text_printf(text, "<text class='bad' x='%.1f' y='%d' text-anchor='middle'>x</text>",
                           x_of(g, i), HEIGHT - BOTTOM - 3);
    }
    cd_text_printf(text, "<text x='%d' y='%zu'>", WIDTH - RIGHT + 14, TOP + 4 + 16 * line);
    for (size_t i = 1; i < g->axis_count; i++) {
        if (i > 1) cd_text_push(text, ", ");
        put_escaped(text, g->axes[i].key);
        cd_text_push(text, "=");
        put_escaped(text, cd_grid_get(g, line, i));
    }
    cd_text_push(text, "</text></g>\n");
}

void cd_sheet_print_svg(const cd_sheet *s, cd_by by, cd_text *text)
{
    static const char *const names[] = {"time of a step", "exposed time of a step",
                                        "bytes of a rank and step", "memory of a rank"};
    const size_t lines = s->grid->cell_count / s->grid->axes[0].count;
    double most = 0;
    for (size_t i = 0; i < s->grid->cell_count; i++)
        if (s->rows[i].is_known && s->rows[i].exit_code == 0)
            most = fmax(most, cd_cost_get(&s->rows[i].cost, by));
    cd_text_printf(text,
                   "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %zu' role='img' "
                   "font-family='system-ui,sans-serif' font-size='12'>\n<style>text{fill:#1b1f24}"
                   ".grid{stroke:#d0d7de;fill:none}g path{fill:none;stroke-width:2}.bad{fill:"
                   "#b3261e;font-weight:700}",
                   WIDTH, lines > 16 ? HEIGHT + 16 * (lines - 16) : (size_t)HEIGHT);
    static const char *const colors[] = {"#4477aa", "#ee7733", "#228833",
                                         "#aa3377", "#0e8a8a", "#8a5a00"};
    for (size_t i = 0; i < 6; i++)
        cd_text_printf(text, ".c%zu path{stroke:%s}.c%zu circle,.c%zu text:not(.bad){fill:%s}", i,
                       colors[i], i, i, colors[i]);
    cd_text_push(text, "@media(prefers-color-scheme:dark){text{fill:#e6e9ed}.grid{stroke:#353b43}}"
                       "</style>\n<title>");
    put_escaped(text, s->scenario);
    cd_text_printf(text, "</title><text x='%d' y='22' font-weight='600'>%s</text>\n", LEFT,
                   names[by]);
    put_axes(s, by, most, text);
    for (size_t i = 0; i < lines; i++) put_line(s, by, i, most, text);
    cd_text_push(text, "</svg>\n");
}
