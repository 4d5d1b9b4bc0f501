/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a sweep as a card. */
#include "cli/sweep_report.h"

#include "cli/interrupt.h"
#include "core/base/alloc.h"
#include "core/base/error.h"

#include <string.h>

#define COST_FACTS 5 /* beside the settings of a cell */

static cd_card_state state_of(const cd_sheet_row *row)
{
    if (!row->is_known) return CD_CARD_SKIPPED;
    switch (row->exit_code) {
    case CD_EXIT_VERIFIED:
        return CD_CARD_PASSED;
    case CD_EXIT_INCONCLUSIVE:
        return CD_CARD_OPEN;
    case CD_EXIT_ENVIRONMENT:
        return CD_CARD_SKIPPED;
    default:
        return CD_CARD_FAILED;
    }
}

/* "ddp.bucket_cap_mb=5 world.size=2" */
static void name_cell(const cd_grid *grid, size_t cell, cd_text *name)
{
    for (size_t i = 0; i < grid->axis_count; i++)
        cd_text_printf(name, "%s%s=%s", i > 0 ? " " : "", grid->axes[i].key,
                       cd_grid_get(grid, cell, i));
}

/* facts: (axis_count + COST_FACTS) room for them. */
static void add_cell(cd_card *card, const cd_sheet *sheet, size_t cell, cd_card_fact *facts)
{
    const cd_sheet_row *row = &sheet->rows[cell];
    const size_t axes = sheet->grid->axis_count;
    cd_text name;
    cd_text_init(&name, false);
    name_cell(sheet->grid, cell, &name);
    for (size_t i = 0; i < axes; i++)
        facts[i] = (cd_card_fact){sheet->grid->axes[i].key, cd_grid_get(sheet->grid, cell, i), 0};
    if (row->is_known) {
        facts[axes] = (cd_card_fact){"step_ns", NULL, row->cost.step_ns};
        facts[axes + 1] = (cd_card_fact){"exposed_ns", NULL, row->cost.exposed_ns};
        facts[axes + 2] = (cd_card_fact){"bytes", NULL, row->cost.bytes};
        facts[axes + 3] = (cd_card_fact){"memory_bytes", NULL, row->cost.memory};
        facts[axes + 4] = (cd_card_fact){"verdict", row->verdict, 0};
    }
    cd_card_add_line(card, &(cd_card_line){.state = state_of(row),
                                           .name = cd_text_get(&name),
                                           .title = "the scenario is verified under these settings",
                                           .message = row->is_known ? row->why : "it was not run",
                                           .facts = facts,
                                           .fact_count = axes + (row->is_known ? COST_FACTS : 0)});
    card->failed |= name.failed;
    cd_text_fini(&name);
}

static void add_summary(cd_card *card, const cd_sweep_report *r)
{
    static const char *const names[] = {"step_ns", "exposed_ns", "bytes", "memory_bytes"};
    const size_t best = cd_sheet_best(r->sheet, r->by);
    cd_text name;
    cd_text_init(&name, false);
    cd_card_add_number(card, "cells", (double)r->sheet->grid->cell_count);
    cd_card_add_number(card, "steps_left_out", (double)r->sheet->skip);
    cd_card_add_text(card, "best_by", names[r->by]);
    if (best != SIZE_MAX) {
        name_cell(r->sheet->grid, best, &name);
        cd_card_add_text(card, "best", cd_text_get(&name));
    }
    card->failed |= name.failed;
    cd_text_fini(&name);
}

static void fill_card(cd_card *card, const cd_sweep_report *r)
{
    const size_t room = r->sheet->grid->axis_count + COST_FACTS;
    cd_card_fact *facts = cd_allocate_array(NULL, room, sizeof *facts);
    cd_card_init(card, "sweep", r->sheet->scenario, true);
    card->failed = facts == NULL;
    for (size_t i = 0; facts != NULL && i < r->sheet->grid->cell_count; i++)
        add_cell(card, r->sheet, i, facts);
    add_summary(card, r);
    cd_release(NULL, facts, room * sizeof *facts);
}

/* Of the cells with the worst verdict the first. SIZE_MAX: all are verified. */
static size_t find_shown(const cd_sweep_report *r)
{
    for (size_t i = 0; i < r->sheet->grid->cell_count; i++)
        if (r->sheet->rows[i].is_known && r->sheet->rows[i].exit_code != CD_EXIT_VERIFIED &&
            r->sheet->rows[i].exit_code == r->exit_code)
            return i;
    return SIZE_MAX;
}

/* A page draws one run; it is run again for that. */
static int send_page(cd_cli *cli, const cd_report_target *target, const cd_sweep_report *r,
                     cd_card *card, cd_text *text)
{
    const size_t cell = find_shown(r);
    cd_text lines;
    cd_text_init(&lines, false);
    cd_text_push(&lines, r->overrides);
    if (cell != SIZE_MAX) cd_grid_print(r->sheet->grid, cell, &lines);
    text->failed |= lines.failed;
    const cd_card_run run = {.path = r->sheet->scenario, .overrides = cd_text_get(&lines)};
    /* a mistake in the settings is no run */
    const bool has_run = cell != SIZE_MAX && r->exit_code != CD_EXIT_USAGE;
    const int exit_code =
        cd_report_card_send(cli, target, card, text, cd_result_verdict_name(r->exit_code),
                            r->exit_code, has_run ? &run : NULL);
    cd_text_fini(&lines);
    return exit_code;
}

int cd_sweep_report_send(cd_cli *cli, const cd_report_target *target, const cd_sweep_report *r,
                         cd_text *text)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_card card;
    int exit_code;
    fill_card(&card, r);
    if (target->format == CD_FORMAT_TEXT || target->format == CD_FORMAT_HTML)
        return send_page(cli, target, r, &card, text);
    cd_card_end(&card, cd_result_verdict_name(r->exit_code), r->exit_code, cd_text_get(text));
    if (card.failed || text->failed)
        exit_code = (cd_fail_memory(&err, "the report of the sweep"), cd_cli_fail(cli, &err));
    else
        exit_code = cd_report_send(cli, target,
                                   &(cd_report){.results = r->results,
                                                .count = r->result_count,
                                                .registry = cli->registry,
                                                .exit_code = r->exit_code,
                                                .interrupted = cd_interrupt_requested(),
                                                .not_run = r->not_run,
                                                .card = &card});
    cd_card_fini(&card);
    cd_text_fini(text);
    return exit_code;
}
