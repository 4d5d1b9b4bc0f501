/* SPDX-License-Identifier: Apache-2.0 */
/* A grid of settings: every combination of the values of some keys.
**
** "ddp.bucket_cap_mb=1,5,25" names values; "world.size=2..64" doubles from 2 to 64; the last key
** varies fastest.
**
** Lifetime   init → add, once per key → use → fini.
** Errors     a sentence that names the key.
*/
#pragma once
#include "core/base/arena.h"
#include "core/base/text.h"

typedef struct cd_axis {
    const char *key;
    const char **values; /* (count) */
    size_t count;
} cd_axis;

typedef struct cd_grid {
    cd_arena arena;
    cd_axis *axes; /* (axis_count) */
    size_t axis_count, axis_capacity;
    size_t cell_count; /* SIZE_MAX: more than can be counted */
} cd_grid;

void cd_grid_init(cd_grid *grid);
void cd_grid_fini(cd_grid *grid); /* accepts a zeroed one */
cddp_status cd_grid_add(cd_grid *grid, const char *text, cddp_error *err) CDDP_MUST_CHECK;
/* The value that an axis has in a cell. */
const char *cd_grid_get(const cd_grid *grid, size_t cell, size_t axis);
/* Appends "key=value" lines, as overrides are written. */
void cd_grid_print(const cd_grid *grid, size_t cell, cd_text *lines);
