/* SPDX-License-Identifier: Apache-2.0 */
/* shrink: a failing run in, the smallest scenario and schedule that fail for the same reason
** out. */
#include "cddp/cddp.h"
#include "cli/interrupt.h"
#include "core/base/output.h"
#include "cli/overrides.h"
#include "verify/report/command_line.h"
#include "cli/progress.h"
#include "cli/recorded.h"
#include "cli/report_card.h"
#include "cli/session.h"
#include "verify/shrink/shrink.h"
#include "verify/shrink/story.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/text.h"
#include "scenarios/reader/reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANDOM_TRIES 8
#define SCHEDULE_BYTES 65536
#define WRITTEN_BY_US "# Shrunk by cddp-verify"

typedef struct shrink_command {
    cd_cli *cli;
    cd_text overrides, path; /* path: of the file to write */
    cd_recipe recipe;
    cddp_plan *plan;
    cd_shrink_options options;
    cd_shrink shrink;
    cd_story story;
    char schedule[SCHEDULE_BYTES];
    char elsewhere[256], found[32]; /* the backend of the failing run, and what was found there */
    uint64_t began_ns, shown_ns;
    cd_report_target target;
} shrink_command;

/* ---- what is given ---- */

static bool is_store(const char *path)
{
    char magic[16] = "";
    FILE *file = NULL;
    (void)!cd_os_open_regular(path, &file,
                              NULL); /* what is wrong with it is said when it is read */
    bool is = file != NULL && fread(magic, 1, sizeof magic, file) == sizeof magic &&
              memcmp(magic, "SQLite format 3", 16) == 0;
    if (file != NULL) fclose(file);
    return is;
}

static cddp_status read_budget(shrink_command *c, cddp_error *err)
{
    uint64_t time_ns = 0;
    CD_TRY(cd_args_budget(c->cli->args, CD_OPTION_budget, "runs", &c->options.trials_max, &time_ns,
                          err));
    if (time_ns > 0) c->options.deadline_ns = cd_os_now_ns() + time_ns;
    return CDDP_OK;
}

/* "runs.db" and run 2: "runs-2-shrunk.toml", beside it. "a/b.toml": "b-shrunk.toml", here. */
static void name_output(shrink_command *c, const char *source, bool store)
{
    const char *given = cd_args_text(c->cli->args, CD_OPTION_output, NULL),
               *slash = strrchr(source, '/');
    const char *name = store || slash == NULL ? source : slash + 1;
    const char *base = strrchr(name, '/') != NULL ? strrchr(name, '/') : name,
               *dot = strrchr(base, '.');
    if (given != NULL) {
        cd_text_push(&c->path, given);
        return;
    }
    cd_text_push_bytes(&c->path, name,
                       dot != NULL && dot != base ? (size_t)(dot - name) : strlen(name));
    if (store) cd_text_printf(&c->path, "-%" PRId64, c->recipe.run);
    cd_text_push(&c->path, "-shrunk.toml");
}

/* The first is the reason. */
static cddp_status take_finding(void *context, const cddp_finding *finding, cddp_error *err)
{
    shrink_command *c = context;
    (void)err;
    if (c->found[0] == '\0') snprintf(c->found, sizeof c->found, "%s", finding->check);
    return CDDP_OK;
}

/* Real processes made the plan's choices in fifo order, and so does the simulator with it. */
static cddp_status take_to_simulator(shrink_command *c, const cd_recipe *recipe, cddp_error *err)
{
    if (recipe->backend != c->elsewhere)
        snprintf(c->elsewhere, sizeof c->elsewhere, "%s", recipe->backend);
    CD_TRY(cd_recipe_transfer(recipe, c->plan, err));
    c->options.elsewhere = c->elsewhere;
    if (c->found[0] != '\0' || recipe->exit_code == CD_EXIT_FINDINGS)
        c->options.found_elsewhere = c->found;
    return CDDP_OK;
}

static cddp_status read_store(shrink_command *c, const char *path, cddp_error *err)
{
    uint64_t number = 0;
    cddp_store *store = NULL;
    CD_TRY(cd_args_run_number(c->cli->args, &number, err));
    if (c->overrides.length > 0 || cd_args_has(c->cli->args, CD_OPTION_schedule))
        return cd_fail(err, CDDP_E_ARG,
                       "a stored run has its own settings and schedule: --set, --seed, "
                       "--world-size and --schedule go "
                       "with a scenario");
    CD_TRY(cddp_store_open(path, CDDP_STORE_READ, NULL, &store, err));
    cddp_status status = cd_recipe_load(&c->recipe, store, number, "shrunk", err);
    if (status == CDDP_OK)
        status = cddp_store_each_finding(store, c->recipe.run, take_finding, c, err);
    cddp_store_close(store);
    if (status != CDDP_OK) return status;
    cd_session session = {.cli = c->cli,
                          .level = CDDP_TRACE_DIGEST,
                          .overrides = c->recipe.options};
    CD_TRY(cd_recorded_read_plan(&c->recipe, &session, &c->plan, err));
    if (cd_recipe_is_foreign(&c->recipe)) return CD_PASS(take_to_simulator(c, &c->recipe, err));
    c->options.trace_digest = c->recipe.trace_digest;
    c->options.schedule = c->recipe.schedule[0] != '\0' ? c->recipe.schedule : NULL;
    return CDDP_OK;
}

static cddp_status read_scenario(shrink_command *c, const char *path, cddp_error *err)
{
    if (cd_args_has(c->cli->args, CD_OPTION_run_number))
        return cd_fail(err, CDDP_E_ARG, "--run picks a run of a store; '%s' is none", path);
    const cd_session session = {.cli = c->cli,
                                .level = CDDP_TRACE_DIGEST,
                                .overrides = cd_text_get(&c->overrides)};
    CD_TRY(cd_session_load_plan(&session, path, stderr, &c->plan, err));
    c->options.schedule = cd_args_text(c->cli->args, CD_OPTION_schedule, NULL);
    snprintf(c->elsewhere, sizeof c->elsewhere, "%s", c->plan->world.backend);
    const cd_recipe here = {.backend = c->elsewhere, .algorithm = ""};
    return cd_recipe_is_foreign(&here) ? take_to_simulator(c, &here, err) : CDDP_OK;
}

static void show_progress(void *context, uint64_t trials, uint64_t removed)
{
    shrink_command *c = context;
    uint64_t now = cd_os_now_ns();
    if (!c->cli->progress || now - c->shown_ns < 100000000u) return;
    c->shown_ns = now;
    cd_text line;
    cd_text_init(&line, false);
    cd_text_printf(&line, "%" PRIu64, trials);
    if (c->options.trials_max > 0)
        cd_text_printf(&line, " of at most %" PRIu64, c->options.trials_max);
    cd_text_printf(&line, " run%s, %" PRIu64 " reduction%s", cd_plural(trials), removed,
                   cd_plural(removed));
    const uint64_t limit_ns = c->options.deadline_ns;
    cd_progress_put_pace(&line, &(cd_pace){.done = (double)trials,
                                           .total = (double)c->options.trials_max,
                                           .seconds = (double)(now - c->began_ns) / 1e9,
                                           .limit_s = limit_ns > c->began_ns
                                                          ? (double)(limit_ns - c->began_ns) / 1e9
                                                          : 0});
    cd_progress_put(c->cli, &line);
}

static cddp_status read_arguments(shrink_command *c, cddp_error *err)
{
    const cd_args *args = c->cli->args;
    uint64_t jobs = 1;
    if (args->operand_count != 1)
        return cd_fail(err, CDDP_E_ARG, "shrink what? name one store, or one scenario");
    CD_TRY(cd_report_target_read(args, &c->target, err));
    CD_TRY(cd_overrides_read(args, &c->overrides, err));
    CD_TRY(cd_args_number(args, CD_OPTION_explore_seed, &c->options.seed, err));
    CD_TRY(cd_args_number(args, CD_OPTION_jobs, &jobs, err));
    CD_TRY(read_budget(c, err));
    if (jobs == 0) jobs = cd_os_core_count();
    c->options.jobs = (uint32_t)(jobs < 64 ? jobs : 64);
    const bool store = is_store(args->operands[0]);
    if (store)
        CD_TRY(read_store(c, args->operands[0], err));
    else
        CD_TRY(read_scenario(c, args->operands[0], err));
    name_output(c, args->operands[0], store);
    c->options.plan = c->plan;
    return CDDP_OK;
}

/* ---- what is written ---- */

static void push_text(void *context, const char *text) { cd_text_push(context, text); }

/* "Shrunk by … from …": where the file comes from, and what it shows. */
static void put_comment(const shrink_command *c, cd_text *text)
{
    const cd_probe *best = &c->shrink.best;
    const char *plugin;
    cd_text_printf(text, "%s %s from %s", WRITTEN_BY_US, cddp_version(), c->cli->args->operands[0]);
    if (c->recipe.run > 0)
        cd_text_printf(text, ", run %" PRId64 " (%s)", c->recipe.run, c->recipe.source);
    cd_text_push(text, ".\n");
    if (best->hang[0] != '\0') cd_text_printf(text, "# %s\n", best->hang);
    cd_text_printf(text, "# %s%s%s\n", best->reason.check,
                   best->reason.check[0] != '\0' ? ": " : "", best->failure);
    if (c->shrink.end == CD_SHRINK_MINIMAL)
        cd_text_printf(
            text,
            "# 1-minimal: %zu single removals were tried, and none fails for the same reason.\n",
            c->shrink.single_count);
    else
        cd_text_push(text, "# Not minimal yet: the search ended early.\n");
    for (size_t i = 0; (plugin = cd_args_value(c->cli->args, CD_OPTION_plugin, i)) != NULL; i++)
        cd_text_printf(text, "# Needs --plugin %s\n", plugin);
    cd_text_push(text, "\n");
}

/* The scenario with its schedule in it, so that `run` fails as `replay` does. */
static cddp_status print_scenario(shrink_command *c, cd_text *text, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_plan *plan = NULL;
    cd_draft draft;
    char title[256];
    cd_draft_init(&draft);
    CD_TRY_OUT(cd_draft_make(&c->shrink.draft, &plan, err));
    CD_TRY_OUT(cd_draft_take(&draft, plan, err));
    snprintf(title, sizeof title, "%.200s, shrunk",
             c->plan->title != NULL ? c->plan->title : "a failure");
    CD_TRY_OUT(cd_draft_set(&draft, "title", title, err));
    if (c->shrink.wishes.count > 0) {
        CD_TRY_OUT(cd_draft_set(&draft, "schedule.chooser", "replay", err));
        CD_TRY_OUT(cd_draft_set(&draft, "schedule.string", c->schedule, err));
    }
    put_comment(c, text);
    cd_draft_print(&draft, push_text, text);
    if (text->failed) status = cd_fail_memory(err, "the shrunk scenario");
out:
    cddp_plan_destroy(plan);
    cd_draft_fini(&draft);
    return status;
}

/* The scenario that is written must fail as the shrunk one does. It is read back, and run once more
** with exactly its schedule. */
static cddp_status check_scenario(shrink_command *c, const cd_text *text, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_plan *plan = NULL;
    cd_probe trial = {.failed = false};
    const cd_reader_options reader = {.allocator = NULL};
    CD_TRY_OUT(cd_reader_read_text(&reader, cd_text_get(&c->path), cd_text_get(text), &plan, err));
    const cd_probe_options options = {.registry = c->cli->registry,
                                      .interrupted = cd_interrupt_requested,

                                      .plan = plan,
                                      .policy = {.schedule = c->schedule}};
    CD_TRY_OUT(cd_probe_run(&options, &trial, err));
    if (trial.interrupted)
        status = cd_fail(
            err, CDDP_E_ABORTED,
            "interrupted once more, while the best so far was run again; nothing was written");
    else if (!cd_shrink_is_same(&c->shrink, &trial))
        status = cd_fail(err, CDDP_E_MISMATCH,
                         "the shrunk scenario does not fail as the run did when it is read back; "
                         "nothing was written");
out:
    cd_probe_fini(&trial);
    cddp_plan_destroy(plan);
    return status;
}

/* A file that somebody else wrote is replaced only when --output names it. */
static cddp_status may_write(const shrink_command *c, cddp_error *err)
{
    char start[sizeof WRITTEN_BY_US] = "";
    const char *path = cd_text_get(&c->path);
    FILE *file = cd_args_has(c->cli->args, CD_OPTION_output) ? NULL : fopen(path, "r");
    bool ours = file == NULL || (fread(start, 1, sizeof start - 1, file) == sizeof start - 1 &&
                                 strcmp(start, WRITTEN_BY_US) == 0);
    if (file != NULL) fclose(file);
    if (!ours)
        return cd_fail(
            err, CDDP_E_ARG,
            "'%s' exists and was not written by shrink; --output FILE says where to write", path);
    CD_TRY(cd_output_check(path, err));
    return CDDP_OK;
}

/* The result of a long search is at least shown. */
static cddp_status write_scenario(shrink_command *c, const cd_text *text, cddp_error *err)
{
    cddp_status status = cd_output_write(cd_text_get(&c->path), text, err);
    if (status != CDDP_OK) (void)cd_cli_write(c->cli, text, CD_EXIT_USAGE);
    return status;
}

/* ---- what is said ---- */

static void put_line(cd_text *text, const char *label, const char *words)
{
    cd_text_push(text, "  ");
    cd_text_style(text, CD_STYLE_CYAN, "%-10s", label);
    cd_text_wrap(text, words, 12, 110);
}

static void put_size(const shrink_command *c, cd_text *text)
{
    const cd_shrink *s = &c->shrink;
    cd_text line;
    cd_text_init(&line, false);
    cd_text_printf(&line,
                   "%" PRIu64 " run%s, %" PRIu64
                   " reduction%s; %zu decision%s beyond fifo of %zu (%zu of %zu before)",
                   s->trials, cd_plural(s->trials), s->removed, cd_plural(s->removed),
                   s->wishes.count, s->wishes.count == 1 ? "" : "s", s->best.decisions.count,
                   s->first_deviations, s->first_decisions);
    put_line(text, "size", cd_text_get(&line));
    cd_text_fini(&line);
    cd_text_init(&line, false);
    if (s->end == CD_SHRINK_MINIMAL)
        cd_text_printf(
            &line,
            "1-minimal: each of %zu single removals was tried, and none fails for the same reason",
            s->single_count);
    else
        cd_text_printf(&line, "not minimal yet: %s; this is the best so far",
                       s->end == CD_SHRINK_INTERRUPTED ? "interrupted" : "the budget is used up");
    put_line(text, "minimal", cd_text_get(&line));
    cd_text_fini(&line);
}

static void fill_card(cd_card *card, const shrink_command *c)
{
    const cd_shrink *s = &c->shrink;
    const bool minimal = s->end == CD_SHRINK_MINIMAL;
    cd_card_init(card, "shrink", cd_text_get(&c->path), true);
    cd_card_add_line(card, &(cd_card_line){.state = minimal ? CD_CARD_PASSED : CD_CARD_OPEN,
                                           .name = "minimal",
                                           .title = "no single removal fails for the same reason",
                                           .message = minimal ? ""
                                                      : s->end == CD_SHRINK_INTERRUPTED
                                                          ? "interrupted"
                                                          : "the budget is used up",
                                           .case_count = minimal ? s->single_count : 0});
    cd_card_add_text(card, "reason", s->best.failure);
    cd_card_add_text(card, "invariant", s->best.reason.check);
    cd_card_add_number(card, "runs", (double)s->trials);
    cd_card_add_number(card, "reductions", (double)s->removed);
    cd_card_add_number(card, "decisions", (double)s->best.decisions.count);
    cd_card_add_number(card, "decisions_before", (double)s->first_decisions);
    cd_card_add_text(card, "schedule", c->schedule);
    if (c->story.paragraph.length > 0) {
        cd_card_add_text(card, "story", cd_text_get(&c->story.paragraph));
        cd_card_add_text(card, "moment", cd_text_get(&c->story.inevitable));
    }
}

static int report(shrink_command *c)
{
    const cd_shrink *s = &c->shrink;
    cd_text text;
    const bool minimal = s->end == CD_SHRINK_MINIMAL;
    cd_report_card_begin(c->cli, &c->target, &text);
    cd_text_style(&text, minimal ? CD_STYLE_GREEN : CD_STYLE_YELLOW, "shrunk");
    /* who waits for whom is what the user saw: the rule stands behind it */
    if (s->best.hang[0] != '\0') {
        cd_text_printf(&text, ": %s: %s\n", cd_text_get(&c->path), s->best.hang);
        if (s->best.reason.check[0] != '\0') put_line(&text, s->best.reason.check, s->best.failure);
    } else {
        cd_text_printf(&text, ": %s: %s%s%s\n", cd_text_get(&c->path), s->best.reason.check,
                       s->best.reason.check[0] != '\0' ? "  " : "", s->best.failure);
    }
    put_size(c, &text);
    if (c->story.paragraph.length > 0) {
        put_line(&text, "story", cd_text_get(&c->story.paragraph));
        put_line(&text, "moment", cd_text_get(&c->story.inevitable));
    }
    cd_text_push(&text, "  ");
    cd_text_style(&text, CD_STYLE_CYAN, "%-10s", "replay");
    cd_command_line_print(&text, &(cd_command_line){.source = cd_text_get(&c->path),
                                                    .overrides = "",
                                                    .schedule = c->schedule,
                                                    .plugin = cd_overrides_plugin,
                                                    .context = c->cli->args});
    cd_text_push(&text, "\n");
    cd_card card;
    const cd_card_run run = {cd_text_get(&c->path), "", c->schedule, false};
    fill_card(&card, c);
    return cd_report_card_send(c->cli, &c->target, &card, &text,
                               minimal ? "minimal" : "inconclusive",
                               minimal ? CD_EXIT_VERIFIED : CD_EXIT_INCONCLUSIVE, &run);
}

/* The scenario is written by now. Its story is left out when it is interrupted. */
static cddp_status report_story(shrink_command *c, cddp_error *err)
{
    const cddp_status status = cd_story_print(&c->story, &c->shrink, err);
    if (!cd_interrupt_requested()) return status;
    cd_story_fini(&c->story);
    memset(&c->story, 0, sizeof c->story);
    return CDDP_OK;
}

static cddp_status shrink(shrink_command *c, cddp_error *err)
{
    cd_text scenario;
    CD_TRY(read_arguments(c, err));
    CD_TRY(may_write(c, err));
    cd_interrupt_begin();
    c->began_ns = cd_os_now_ns();
    CD_TRY(cd_shrink_begin(&c->shrink, &c->options, err));
    CD_TRY(cd_shrink_run(&c->shrink, err));
    const bool interrupted = cd_interrupt_requested();
    /* Ctrl-C ended the search, not the run that shows what was found; another one ends that */
    cd_interrupt_end();
    cd_interrupt_begin();
    if (c->cli->progress && c->shown_ns != 0) cd_progress_wipe();
    if (!cd_decisions_print(c->shrink.best.decisions.items, c->shrink.best.decisions.count,
                            c->schedule, sizeof c->schedule))
        return cd_fail(err, CDDP_E_LIMIT, "the schedule is longer than a choice string may be");
    cd_text_init(&scenario, false);
    cddp_status status = print_scenario(c, &scenario, err);
    if (status == CDDP_OK) status = check_scenario(c, &scenario, err);
    if (status == CDDP_OK) status = write_scenario(c, &scenario, err);
    cd_text_fini(&scenario);
    if (status != CDDP_OK) return status;
    if (!interrupted) CD_TRY(report_story(c, err));
    return CDDP_OK;
}

int cd_command_shrink(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    shrink_command *c = calloc(1, sizeof *c);
    if (c == NULL) {
        (void)cd_fail_memory(&err, "the schedule to shrink");
        return cd_cli_fail(cli, &err);
    }
    c->cli = cli;
    c->options = (cd_shrink_options){.registry = cli->registry,
                                     .interrupted = cd_interrupt_requested,

                                     .random_tries = RANDOM_TRIES,
                                     .seed = 1,
                                     .jobs = 1,
                                     .progress = show_progress,
                                     .context = c};
    cd_text_init(&c->overrides, false);
    cd_text_init(&c->path, false);
    const cddp_status status = shrink(c, &err);
    int exit_code = status == CDDP_OK ? report(c) : cd_cli_fail(cli, &err);
    if (status == CDDP_E_ABORTED) exit_code = CD_EXIT_INCONCLUSIVE;
    cd_story_fini(&c->story);
    cd_shrink_fini(&c->shrink);
    cd_recipe_fini(&c->recipe);
    cddp_plan_destroy(c->plan);
    cd_text_fini(&c->path);
    cd_text_fini(&c->overrides);
    free(c);
    return exit_code;
}
