/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a sweep: a cell of the grid each, with its verdict and its cost. As a table for
** people, as CSV, and as one figure.
**
** Rows come and go through CSV, so that a sweep that was interrupted goes on where it was.
**
** Lifetime   init → rows → print → fini. The grid is borrowed until fini.
*/
#pragma once
#include "verify/sweep/grid.h"
#include "verify/sweep/measure.h"

typedef enum cd_by { CD_BY_STEP, CD_BY_EXPOSED, CD_BY_BYTES, CD_BY_MEMORY } cd_by;

typedef struct cd_sheet_row {
    bool is_known;
    int exit_code;
    const char *verdict; /* "verified", "findings", … */
    const char *why;     /* "" when it is verified */
    cd_cost cost;
} cd_sheet_row;

typedef struct cd_sheet {
    const cd_grid *grid;
    const char *scenario;
    /* The plan that is varied, and how many steps of a run its cost leaves out: rows of another
    ** plan or measure do not mix. Set after init. */
    uint64_t plan_digest, skip;
    cd_arena arena;
    cd_sheet_row *rows; /* (grid->cell_count) */
} cd_sheet;

cddp_status cd_sheet_init(cd_sheet *sheet, const cd_grid *grid, const char *scenario,
                          cddp_error *err) CDDP_MUST_CHECK;
void cd_sheet_fini(cd_sheet *sheet); /* accepts a zeroed one */
/* Copies the texts. */
cddp_status cd_sheet_take(cd_sheet *sheet, size_t cell, const cd_sheet_row *row,
                          cddp_error *err) CDDP_MUST_CHECK;
/* The cell with the least cost among those that are verified; SIZE_MAX: there is none. */
size_t cd_sheet_best(const cd_sheet *sheet, cd_by by);
double cd_cost_get(const cd_cost *cost, cd_by by);

void cd_sheet_print_table(const cd_sheet *sheet, cd_by by, cd_text *text);
void cd_sheet_print_csv(const cd_sheet *sheet, cd_text *text);
/* Takes the rows of an earlier sweep. Other keys, another scenario, plan or measure: an error. So
** are cells that this grid does not have: they would be lost. */
cddp_status cd_sheet_read_csv(cd_sheet *sheet, const char *csv, cddp_error *err) CDDP_MUST_CHECK;
/* The first axis to the right, a line for each combination of the others. */
void cd_sheet_print_svg(const cd_sheet *sheet, cd_by by, cd_text *text);
