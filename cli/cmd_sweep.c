/* SPDX-License-Identifier: Apache-2.0 */
/* sweep: a scenario under every combination of some settings, a process per cell.
**
** The rows go to a CSV file as they come. A sweep that was interrupted, and is started again with
** the same file, runs what is missing. */
#include "cddp/cddp.h"
#include "cli/interrupt.h"
#include "cli/overrides.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/sweep_report.h"
#include "core/base/crew.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/output.h"
#include "core/plan/draft.h"
#include "verify/sweep/sheet.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CELLS_MAX 1000
#define WORKERS_MAX 256

typedef struct sweep {
    cd_cli *cli;
    cd_grid grid;
    cd_sheet sheet;
    cd_text overrides;
    cd_report_target target;
    const char *csv, *svg;
    int by;
    uint64_t workers, skip;
    cd_result *results; /* (result_count, of cell_count) of cells that are not verified */
    size_t result_count;
    size_t *cells; /* (cell_count) those that are to be run */
    size_t cell_count, done;
    cd_progress progress;
} sweep;

/* ---- before ---- */

static cddp_status read_grid(sweep *s, cddp_error *err)
{
    const cd_args *args = s->cli->args;
    const char *text;
    uint64_t max = CELLS_MAX;
    cd_grid_init(&s->grid);
    for (size_t i = 0; (text = cd_args_value(args, CD_OPTION_vary, i)) != NULL; i++)
        CD_TRY(cd_grid_add(&s->grid, text, err));
    if (s->grid.axis_count == 0)
        return cd_fail(err, CDDP_E_ARG,
                       "sweep over what? name keys and values, as in --vary "
                       "ddp.bucket_cap_mb=1,5,25 --vary world.size=2..64");
    CD_TRY(cd_args_number(args, CD_OPTION_max, &max, err));
    if (s->grid.cell_count > max)
        return cd_fail(err, CDDP_E_ARG,
                       "the grid has %zu cells, and at most %" PRIu64
                       " are run: name fewer values, or raise --max",
                       s->grid.cell_count, max);
    return CDDP_OK;
}

static cddp_status read_arguments(sweep *s, cddp_error *err)
{
    static const char *const words[] = {"step", "exposed", "bytes", "memory", NULL};
    const cd_args *args = s->cli->args;
    if (args->operand_count != 1)
        return cd_fail(err, CDDP_E_ARG, "sweep which scenario? name one file");
    CD_TRY(read_grid(s, err));
    CD_TRY(cd_report_target_read(args, &s->target, err));
    CD_TRY(cd_report_target_check(&s->target, err));
    CD_TRY(cd_args_number(args, CD_OPTION_skip, &s->skip, err));
    CD_TRY(cd_overrides_read(args, &s->overrides, err));
    CD_TRY(cd_args_choice(args, CD_OPTION_by, words, &s->by, err));
    s->workers = cd_os_core_count();
    CD_TRY(cd_args_number(args, CD_OPTION_jobs, &s->workers, err));
    if (s->workers == 0) s->workers = cd_os_core_count();
    if (s->workers > WORKERS_MAX)
        return cd_fail(err, CDDP_E_ARG, "--jobs: at most %d workers, got %" PRIu64, WORKERS_MAX,
                       s->workers);
    s->csv = cd_args_text(args, CD_OPTION_csv, NULL);
    s->svg = cd_args_text(args, CD_OPTION_svg, NULL);
    for (int i = 0; i < 2; i++) {
        const char *path = i == 0 ? s->csv : s->svg;
        if (path == NULL) continue;
        CD_TRY(cd_output_check(path, err));
        CD_TRY(cd_output_check_input(path, args->operands[0], err));
    }
    CD_TRY(cd_sheet_init(&s->sheet, &s->grid, args->operands[0], err));
    s->sheet.skip = s->skip;
    return CDDP_OK;
}

static cddp_status check_steps(const sweep *s, const cddp_plan *plan, cddp_error *err)
{
    if (s->skip == 0 || plan->settings.train.steps > s->skip) return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG,
                   "--skip %" PRIu64 " leaves nothing to measure: the scenario has %" PRIu64
                   " steps; --set train.steps=N changes that",
                   s->skip, plan->settings.train.steps);
}

/* Every cell is a plan before the first one is run: a typing error in a key must not show after an
** hour. What contradicts itself in one cell is a row. */
static cddp_status check_keys(sweep *s, cddp_error *err)
{
    cddp_plan *plan = NULL;
    const cd_session session = {.cli = s->cli, .overrides = cd_text_get(&s->overrides)};
    CD_TRY(cd_session_load_plan(&session, s->cli->args->operands[0], stderr, &plan, err));
    bool varies_steps = false;
    cddp_status status = CDDP_OK;
    s->sheet.plan_digest = cddp_plan_digest(plan);
    for (size_t i = 0; status == CDDP_OK && i < s->grid.axis_count; i++) {
        const bool is_steps = strcmp(s->grid.axes[i].key, "train.steps") == 0;
        varies_steps = varies_steps || is_steps;
        for (size_t k = 0; status == CDDP_OK && k < s->grid.axes[i].count; k++) {
            status = cddp_plan_set(plan, s->grid.axes[i].key, s->grid.axes[i].values[k], err);
            if (status == CDDP_OK && is_steps) status = check_steps(s, plan, err);
        }
    }
    if (status == CDDP_OK && !varies_steps) status = check_steps(s, plan, err);
    cddp_plan_destroy(plan);
    return CD_PASS(status);
}

/* What an earlier sweep found. */
static cddp_status read_rows(sweep *s, cddp_error *err)
{
    cddp_error why = CDDP_ERROR_INIT;
    cd_text text;
    char bytes[4096];
    size_t got;
    FILE *file = s->csv != NULL ? fopen(s->csv, "rb") : NULL;
    if (file == NULL) return CDDP_OK;
    cd_text_init(&text, false);
    while ((got = fread(bytes, 1, sizeof bytes, file)) > 0) cd_text_push_bytes(&text, bytes, got);
    fclose(file);
    cddp_status status =
        text.length == 0 ? CDDP_OK : cd_sheet_read_csv(&s->sheet, cd_text_get(&text), &why);
    if (status != CDDP_OK)
        status = cd_fail(err, status,
                         "%s does not go with this sweep: %s. Name another file for --csv, or "
                         "remove it",
                         s->csv, why.message);
    cd_text_fini(&text);
    return status;
}

static cddp_status list_cells(sweep *s, cddp_error *err)
{
    s->cells = cd_arena_array(&s->sheet.arena, s->grid.cell_count, sizeof *s->cells);
    s->results = cd_arena_array(&s->sheet.arena, s->grid.cell_count, sizeof *s->results);
    if (s->cells == NULL || s->results == NULL)
        return cd_fail_memory(err, "%zu cells", s->grid.cell_count);
    /* A row does not keep findings: a report that has them runs such a cell again. */
    const bool wants_findings = s->target.format != CD_FORMAT_TEXT;
    for (size_t i = 0; i < s->grid.cell_count; i++)
        if (!s->sheet.rows[i].is_known || (wants_findings && s->sheet.rows[i].exit_code != 0))
            s->cells[s->cell_count++] = i;
    return CDDP_OK;
}

/* ---- a cell, in its process ---- */

static cddp_status run_cell(const sweep *s, size_t cell, cd_result *result, cd_cost *cost,
                            cddp_error *err)
{
    cd_measure measure;
    cd_text lines;
    cd_measure_init(&measure, s->skip);
    cd_text_init(&lines, false);
    cd_text_push(&lines, cd_text_get(&s->overrides));
    cd_grid_print(&s->grid, cell, &lines);
    const cd_session session = {.cli = s->cli,
                                .level = CDDP_TRACE_DIGEST,
                                .overrides = cd_text_get(&lines),
                                .watcher = cd_measure_sink(&measure)};
    cddp_status status = cd_session_run(&session, s->cli->args->operands[0], result, err);
    if (status == CDDP_OK) status = cd_measure_end(&measure, cost, err);
    cd_text_fini(&lines);
    cd_measure_fini(&measure);
    return status;
}

static cddp_status work(void *context, size_t task, cd_text *bytes, cddp_error *err)
{
    const sweep *s = context;
    cddp_error wrong = CDDP_ERROR_INIT;
    cd_cost cost = {0};
    cd_result result;
    cd_result_init(&result);
    if (run_cell(s, s->cells[task], &result, &cost, &wrong) != CDDP_OK)
        cd_result_set_failure(&result, CD_EXIT_USAGE, wrong.message, "");
    cd_text_push_bytes(bytes, (const char *)&cost, sizeof cost);
    cd_result_write(&result, bytes);
    cd_result_fini(&result);
    return bytes->failed ? cd_fail_memory(err, "a row") : CDDP_OK;
}

/* ---- here ---- */

static cddp_status keep_rows(const sweep *s, cddp_error *err)
{
    cd_text text;
    if (s->csv == NULL) return CDDP_OK;
    cd_text_init(&text, false);
    cd_sheet_print_csv(&s->sheet, &text);
    const cddp_status status =
        text.failed ? cd_fail_memory(err, "the rows") : cd_output_write(s->csv, &text, err);
    cd_text_fini(&text);
    return CD_PASS(status);
}

static const char *why_not(const cd_result *r)
{
    if (r->verdict.outcome == CDDP_OUTCOME_VERIFIED) return "";
    if (r->verdict.finding_count > 0) return r->verdict.findings[0].title;
    return r->verdict.reason[0] != '\0' ? r->verdict.reason : r->verdict.summary;
}

static cddp_status take(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    sweep *s = context;
    cddp_error unread = CDDP_ERROR_INIT;
    cd_result result;
    cd_sheet_row row = {.exit_code = CD_EXIT_USAGE, .verdict = "error"};
    char words[120];
    cd_result_init(&result);
    const bool is_whole = end->is_whole && end->status == CDDP_OK &&
                          end->byte_count > sizeof row.cost &&
                          cd_result_read(&result, end->bytes + sizeof row.cost,
                                         end->byte_count - sizeof row.cost, &unread) == CDDP_OK;
    if (!is_whole && cd_interrupt_requested()) {
        cd_result_fini(&result);
        *is_last = true;
        return CDDP_OK;
    }
    if (is_whole) {
        memcpy(&row.cost, end->bytes, sizeof row.cost);
        row.exit_code = (int)result.verdict.outcome;
        row.verdict = result.name;
        row.why = why_not(&result);
    } else {
        const char *outside =
            cd_os_signal_is_from_outside(end->signal_number) ? "from outside " : "";
        snprintf(words, sizeof words, "the process that ran it was ended %sby signal %d", outside,
                 end->signal_number);
        row.why = words;
        if (outside[0] != '\0') {
            row.exit_code = CD_EXIT_ENVIRONMENT;
            row.verdict = "environment";
        }
    }
    cddp_status status = cd_sheet_take(&s->sheet, s->cells[end->task], &row, err);
    if (is_whole && row.exit_code != CD_EXIT_VERIFIED)
        s->results[s->result_count++] = result; /* moves */
    else
        cd_result_fini(&result);
    s->done++;
    if (status == CDDP_OK) status = keep_rows(s, err);
    *is_last = cd_interrupt_requested();
    return status;
}

static void show_progress(void *context, size_t done)
{
    sweep *s = context;
    cd_progress_show(&s->progress, done, "");
}

static void pass_output(void *context, const char *bytes, size_t byte_count)
{
    (void)context;
    fwrite(bytes, 1, byte_count, stderr);
}

static cddp_status run_cells(sweep *s, cddp_error *err)
{
    cd_crew_count count;
    const cd_crew_options crew = {.task_count = s->cell_count,
                                  .worker_count = (uint32_t)s->workers,
                                  .context = s,
                                  .work = work,
                                  .take = take,
                                  .progress = show_progress,
                                  .output = pass_output,
                                  .interrupted = cd_interrupt_requested,
                                  .drains = true};
    if (s->cell_count == 0) return CDDP_OK;
    cd_progress_begin(&s->progress, s->cli, s->cell_count);
    const cddp_status status = cd_crew_run(&crew, &count, err);
    cd_progress_end(&s->progress);
    return CD_PASS(status);
}

static cddp_status draw(const sweep *s, cddp_error *err)
{
    cd_text text;
    if (s->svg == NULL) return CDDP_OK;
    cd_text_init(&text, false);
    cd_sheet_print_svg(&s->sheet, (cd_by)s->by, &text);
    const cddp_status status =
        text.failed ? cd_fail_memory(err, "the figure") : cd_output_write(s->svg, &text, err);
    cd_text_fini(&text);
    return CD_PASS(status);
}

/* As of several runs: findings weigh most, then errors, then what is missing or open. */
static int exit_code_of(const sweep *s)
{
    static const int order[] = {CD_EXIT_FINDINGS, CD_EXIT_USAGE, CD_EXIT_ENVIRONMENT,
                                CD_EXIT_INCONCLUSIVE};
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (size_t i = 0; i < s->grid.cell_count; i++)
            if (s->sheet.rows[i].is_known && s->sheet.rows[i].exit_code == order[k])
                return order[k];
    return s->done < s->cell_count ? CD_EXIT_INCONCLUSIVE : CD_EXIT_VERIFIED;
}

static cddp_status prepare(sweep *s, cddp_error *err)
{
    CD_TRY(read_arguments(s, err));
    CD_TRY(check_keys(s, err));
    CD_TRY(read_rows(s, err));
    return CD_PASS(list_cells(s, err));
}

static int send(const sweep *s)
{
    cd_text text;
    cd_report_card_begin(s->cli, &s->target, &text);
    const size_t earlier = s->grid.cell_count - s->cell_count;
    if (earlier > 0)
        cd_text_printf(&text, "%zu of %zu rows are from %s\n", earlier, s->grid.cell_count, s->csv);
    cd_sheet_print_table(&s->sheet, (cd_by)s->by, &text);
    if (s->done < s->cell_count)
        cd_text_printf(&text, "interrupted: %zu cells were not run%s\n", s->cell_count - s->done,
                       s->csv != NULL ? "; the same command runs them" : "");
    const cd_sweep_report report = {.sheet = &s->sheet,
                                    .by = (cd_by)s->by,
                                    .overrides = cd_text_get(&s->overrides),
                                    .results = s->results,
                                    .result_count = s->result_count,
                                    .not_run = s->cell_count - s->done,
                                    .exit_code = exit_code_of(s)};
    return cd_sweep_report_send(s->cli, &s->target, &report, &text);
}

int cd_command_sweep(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    sweep s = {.cli = cli};
    int exit_code = CD_EXIT_VERIFIED;
    cd_text_init(&s.overrides, false);
    cddp_status status = prepare(&s, &err);
    if (status == CDDP_OK) {
        cd_interrupt_begin();
        status = run_cells(&s, &err);
        if (status == CDDP_OK) status = draw(&s, &err);
        exit_code = send(&s);
    }
    if (status != CDDP_OK) exit_code = cd_cli_fail(cli, &err);
    for (size_t i = 0; i < s.result_count; i++) cd_result_fini(&s.results[i]);
    cd_text_fini(&s.overrides);
    cd_sheet_fini(&s.sheet);
    cd_grid_fini(&s.grid);
    return exit_code;
}
