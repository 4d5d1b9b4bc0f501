/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/sweep/grid.h"

#include "core/base/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void cd_grid_init(cd_grid *g)
{
    *g = (cd_grid){.cell_count = 1};
    cd_arena_init(&g->arena, NULL, 1 << 12);
}

void cd_grid_fini(cd_grid *g) { cd_arena_fini(&g->arena); }

static cddp_status add_value(cd_grid *g, cd_axis *axis, size_t *capacity, const char *value,
                             cddp_error *err)
{
    for (size_t i = 0; i < axis->count; i++)
        if (strcmp(axis->values[i], value) == 0)
            return cd_fail(err, CDDP_E_ARG, "--vary: %s has the value '%s' twice", axis->key,
                           value);
    if (!cd_arena_grow(&g->arena, (void **)&axis->values, capacity, axis->count + 1,
                       sizeof *axis->values))
        return cd_fail_memory(err, "the values of %s", axis->key);
    axis->values[axis->count++] = value;
    return CDDP_OK;
}

/* "2..64" */
static bool read_range(const char *text, uint64_t *first, uint64_t *last)
{
    char *end = NULL;
    errno = 0;
    *first = strtoull(text, &end, 10);
    if (end == text || strncmp(end, "..", 2) != 0 || end[2] < '0' || end[2] > '9') return false;
    *last = strtoull(end + 2, &end, 10);
    return *end == '\0' && errno == 0;
}

static cddp_status add_range(cd_grid *g, cd_axis *axis, size_t *capacity, const char *text,
                             cddp_error *err)
{
    uint64_t first = 0, last = 0;
    if (!read_range(text, &first, &last)) return CD_PASS(add_value(g, axis, capacity, text, err));
    if (first == 0 || first > last)
        return cd_fail(err, CDDP_E_ARG,
                       "--vary: %s=%s is no range: it doubles from the first number, 1 or more, up "
                       "to the last",
                       axis->key, text);
    for (uint64_t value = first; value <= last; value *= 2) {
        const char *number = cd_arena_printf(&g->arena, "%" PRIu64, value);
        if (number == NULL) return cd_fail_memory(err, "the values of %s", axis->key);
        CD_TRY(add_value(g, axis, capacity, number, err));
        if (value > last / 2) break;
    }
    return CDDP_OK;
}

/* Values lie between commas; a list in brackets is one value. */
static char *next_value(char **at)
{
    char *start = *at;
    int depth = 0;
    for (char *c = start;; c++) {
        if (*c == '[') depth++;
        if (*c == ']') depth--;
        if (*c == '\0' || (*c == ',' && depth <= 0)) {
            *at = *c == '\0' ? NULL : c + 1;
            *c = '\0';
            return start;
        }
    }
}

cddp_status cd_grid_add(cd_grid *g, const char *text, cddp_error *err)
{
    const char *equals = strchr(text, '=');
    size_t capacity = 0;
    cd_axis axis = {.count = 0};
    if (equals == NULL || equals == text || equals[1] == '\0' || strchr(text, '\n') != NULL)
        return cd_fail(err, CDDP_E_ARG,
                       "--vary: '%.100s' is not KEY=VALUES, as in ddp.bucket_cap_mb=1,5,25 or "
                       "world.size=2..64",
                       text);
    char *copy = cd_arena_strdup(&g->arena, text);
    if (copy == NULL) return cd_fail_memory(err, "a key and its values");
    copy[equals - text] = '\0';
    axis.key = copy;
    for (size_t i = 0; i < g->axis_count; i++)
        if (strcmp(g->axes[i].key, axis.key) == 0)
            return cd_fail(err, CDDP_E_ARG, "--vary: %s is varied twice", axis.key);
    for (char *at = copy + (equals - text) + 1; at != NULL;) {
        const char *value = next_value(&at);
        if (*value == '\0')
            return cd_fail(err, CDDP_E_ARG, "--vary: %s has an empty value", axis.key);
        CD_TRY(add_range(g, &axis, &capacity, value, err));
    }
    if (!cd_arena_grow(&g->arena, (void **)&g->axes, &g->axis_capacity, g->axis_count + 1,
                       sizeof *g->axes))
        return cd_fail_memory(err, "%zu keys", g->axis_count + 1);
    g->axes[g->axis_count++] = axis;
    g->cell_count = g->cell_count > SIZE_MAX / axis.count ? SIZE_MAX : g->cell_count * axis.count;
    return CDDP_OK;
}

const char *cd_grid_get(const cd_grid *g, size_t cell, size_t axis)
{
    for (size_t i = g->axis_count; i-- > axis + 1;) cell /= g->axes[i].count;
    return g->axes[axis].values[cell % g->axes[axis].count];
}

void cd_grid_print(const cd_grid *g, size_t cell, cd_text *lines)
{
    for (size_t i = 0; i < g->axis_count; i++)
        cd_text_printf(lines, "%s=%s\n", g->axes[i].key, cd_grid_get(g, cell, i));
}
