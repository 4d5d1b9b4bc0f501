/* SPDX-License-Identifier: Apache-2.0 */
/* explore: one scenario under many schedules. */
#include "cddp/cddp.h"
#include "verify/explore/certificate.h"
#include "verify/explore/cluster.h"
#include "verify/explore/jobs.h"
#include "cli/explore_record.h"
#include "verify/worlds/symmetry.h"
#include "cli/interrupt.h"
#include "core/base/output.h"
#include "cli/overrides.h"
#include "verify/report/command_line.h"
#include "cli/plugins.h"
#include "cli/progress.h"
#include "cli/report_card.h"
#include "cli/session.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/plan/fault_words.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAVE_NS 5000000000u /* between two saves of the frontier */

typedef struct explore_command {
    cd_cli *cli;
    cd_text overrides;
    cd_text given; /* the overrides of the command line alone */
    cd_explore_options options;
    cd_explorer explorer;
    cd_explore_subject subject;
    cd_failures failures;
    const char *scenario, *asymmetry;
    uint64_t time_budget_ns, began_ns, began_runs, shown_ns;
    uint64_t saved_ns; /* when the frontier was */
    uint32_t worker_count;
    cd_cluster *cluster;  /* the processes that were started together with this one; NULL: none */
    const char *frontier; /* file, or NULL */
    cddp_store *store;    /* NULL: what is found is not recorded */
    cd_explore_recorded recorded;
    cd_report_target target;
    bool has_explored; /* the search ended, and there is something to report */
    bool interrupted;
    bool fails_as_it_stands; /* without a search: the first failure is that of the scenario */
    bool is_reported;        /* the first process says what went wrong */
} explore_command;

static cddp_status read_budget(explore_command *c, cddp_error *err)
{
    if (!cd_args_has(c->cli->args, CD_OPTION_budget))
        c->options.runs_max = c->options.strategy >= CD_STRATEGY_EXHAUSTIVE
                                  ? 0
                                  : 1000; /* those that end by themselves */
    CD_TRY(cd_args_budget(c->cli->args, CD_OPTION_budget, "schedules", &c->options.runs_max,
                          &c->time_budget_ns, err));
    return CDDP_OK;
}

static cddp_status read_arguments(explore_command *c, cddp_error *err)
{
    static const char *const strategies[] = {"random", "pct", "exhaustive", "cover", NULL};
    const cd_args *args = c->cli->args;
    int strategy = 0;
    uint64_t depth = 3, workers = 1;
    if (args->operand_count != 1)
        return cd_fail(err, CDDP_E_ARG, "explore what? name one scenario");
    c->scenario = args->operands[0];
    CD_TRY(cd_report_target_read(args, &c->target, err));
    CD_TRY(cd_args_choice(args, CD_OPTION_strategy, strategies, &strategy, err));
    CD_TRY(cd_args_number(args, CD_OPTION_depth, &depth, err));
    CD_TRY(cd_args_number(args, CD_OPTION_explore_seed, &c->options.seed, err));
    CD_TRY(cd_args_number(args, CD_OPTION_choices, &c->options.choices_max, err));
    c->options.reduce = !cd_args_has(args, CD_OPTION_no_reduce);
    c->options.merge = !cd_args_has(args, CD_OPTION_no_merge);
    c->options.symmetry = !cd_args_has(args, CD_OPTION_no_symmetry);
    CD_TRY(cd_overrides_read(args, &c->overrides, err));
    cd_text_push(&c->given, cd_text_get(&c->overrides));
    if (c->given.failed) return cd_fail_memory(err, "the settings of the command line");
    if (cd_args_has(args, CD_OPTION_certificate) && strategy != CD_STRATEGY_COVER)
        return cd_fail(err, CDDP_E_ARG, "--certificate is for --strategy cover");
    if (depth > CD_PCT_DEPTH_MAX)
        return cd_fail(err, CDDP_E_ARG, "--depth %" PRIu64 " is not between 1 and %d", depth,
                       CD_PCT_DEPTH_MAX);
    CD_TRY(cd_args_number(args, CD_OPTION_jobs, &workers, err));
    if (c->cluster != NULL && cd_args_has(args, CD_OPTION_jobs))
        return cd_fail(err, CDDP_E_ARG,
                       "--jobs is for one process; these are %" PRIu32
                       ", and their launcher says how many there are",
                       cd_cluster_get_size(c->cluster));
    if (c->cluster != NULL && strategy == CD_STRATEGY_EXHAUSTIVE)
        return cd_fail(
            err, CDDP_E_ARG,
            "an exhaustive search depends on all that it has seen: start it once, not in %" PRIu32
            " processes",
            cd_cluster_get_size(c->cluster));
    if (c->cluster != NULL) workers = cd_cluster_get_size(c->cluster);
    if (workers == 0) workers = cd_os_core_count();
    if (workers > 256 && c->cluster == NULL)
        return cd_fail(err, CDDP_E_ARG, "--jobs %" PRIu64 " is more than 256", workers);
    if (workers > 1 && cd_args_has(args, CD_OPTION_jobs) && strategy == CD_STRATEGY_EXHAUSTIVE)
        return cd_fail(err, CDDP_E_ARG,
                       "--jobs is for random, pct and cover: an exhaustive search depends on all "
                       "that it has seen");
    c->worker_count = (uint32_t)workers;
    c->frontier = cd_args_text(args, CD_OPTION_frontier, NULL);
    c->options.strategy = (cd_strategy)strategy;
    c->options.depth = (uint32_t)depth;
    CD_TRY(read_budget(c, err));
    return CDDP_OK;
}

static void show_progress(explore_command *c)
{
    const uint64_t now = cd_os_now_ns();
    const cd_explorer *e = &c->explorer;
    cd_text line;
    if (!c->cli->progress || now - c->shown_ns < 100000000u) return;
    c->shown_ns = now;
    const uint64_t total = e->options.runs_max != 0                   ? e->options.runs_max
                           : e->options.strategy == CD_STRATEGY_COVER ? e->cover.order_count + 1u
                                                                      : 0;
    cd_text_init(&line, false);
    cd_text_printf(&line, "%" PRIu64, e->runs);
    if (total > 0) cd_text_printf(&line, " of %" PRIu64, total);
    cd_text_push(&line, " schedules");
    cd_progress_put_pace(&line,
                         &(cd_pace){.done = (double)(e->runs - c->began_runs),
                                    .total =
                                        total > c->began_runs ? (double)(total - c->began_runs) : 0,
                                    .seconds = (double)(now - c->began_ns) / 1e9,
                                    .limit_s = (double)c->time_budget_ns / 1e9});
    if (c->failures.count > 0)
        cd_text_printf(&line, ", %" PRIu64 " not verified", c->failures.count);
    cd_text_printf(&line, ", %zu outcomes, %zu of %zu options", e->outcomes.count, e->taken.count,
                   e->offered.count);
    if (c->options.strategy == CD_STRATEGY_EXHAUSTIVE)
        cd_text_printf(&line, ", %zu states, about %.3f %% of the tree, at least %" PRIu64 " left",
                       e->states.count, 100.0 * cd_explorer_progress(e), cd_explorer_left(e));
    cd_progress_put(c->cli, &line);
}

static bool time_is_over(const explore_command *c)
{
    return c->time_budget_ns != 0 && cd_os_now_ns() - c->began_ns > c->time_budget_ns;
}

static void pass_output(const char *bytes, size_t byte_count)
{
    fwrite(bytes, 1, byte_count, stderr);
}

static cd_explore_jobs jobs_of(explore_command *c)
{
    return (cd_explore_jobs){.subject = &c->subject,
                             .frontier = {.explorer = &c->explorer,
                                          .failures = &c->failures,
                                          .plan = cddp_plan_digest(c->subject.plan)},
                             .worker_count = c->worker_count,
                             .keep_going = cd_args_has(c->cli->args, CD_OPTION_keep_going),
                             .interrupted = cd_interrupt_requested,
                             .output = pass_output};
}

/* How many runs to do before looking up: a tenth of a second here, half a second in every worker,
** and never beyond a power of two, where runs learn from all before. */
static uint64_t end_of_stretch(const explore_command *c)
{
    const cd_explorer *e = &c->explorer;
    uint64_t end = e->runs + 1, power = 1;
    double rate =
        (double)(e->runs - c->began_runs) / ((double)(cd_os_now_ns() - c->began_ns + 1) / 1e9);
    if (e->runs > c->began_runs)
        end = e->runs + 1 + (uint64_t)(rate * (c->worker_count > 1 ? 0.5 : 0.1));
    while (power <= e->runs) power *= 2;
    if (c->worker_count > 1 && end > power) end = power;
    if (e->options.runs_max != 0 && end > e->options.runs_max) end = e->options.runs_max;
    if (e->options.strategy == CD_STRATEGY_COVER && e->cover.order_count > 0 &&
        end > e->cover.order_count + 1u)
        end = e->cover.order_count + 1u;
    return end;
}

static cddp_status run_some(explore_command *c, cddp_error *err)
{
    const cd_explore_jobs jobs = jobs_of(c);
    uint64_t end = end_of_stretch(c);
    bool done = true;
    if (c->worker_count > 1 && c->explorer.runs >= 8 && end - c->explorer.runs >= c->worker_count)
        CD_TRY(c->cluster != NULL ? cd_cluster_stretch(c->cluster, &jobs, end, &done, err)
                                  : cd_explore_stretch(&jobs, end, &done, err));
    else
        CD_TRY(cd_explore_block(&jobs, end, err));
    c->interrupted = cd_interrupt_requested() || !done;
    return CDDP_OK;
}

static cddp_status save(explore_command *c, bool at_once, cddp_error *err)
{
    uint64_t now = cd_os_now_ns();
    if (c->frontier == NULL || (!at_once && now - c->saved_ns < SAVE_NS)) return CDDP_OK;
    const cd_explore_jobs jobs = jobs_of(c);
    CD_TRY(cd_frontier_save(&jobs.frontier, c->frontier, err));
    c->saved_ns = cd_os_now_ns();
    return CDDP_OK;
}

static bool goes_on(const explore_command *c)
{
    const cd_explorer *e = &c->explorer;
    bool has_failed = c->failures.count > 0 && !cd_args_has(c->cli->args, CD_OPTION_keep_going);
    bool is_over = e->exhausted || (e->options.runs_max != 0 && e->runs >= e->options.runs_max);
    return !c->interrupted && !is_over && !time_is_over(c) && !has_failed;
}

/* A scenario that fails by itself needs no search. Its own settings and schedule say so. */
static cddp_status try_as_it_stands(explore_command *c, cddp_error *err)
{
    const cd_session session = {.cli = c->cli,
                                .level = CDDP_TRACE_DIGEST,
                                .overrides = cd_text_get(&c->given)};
    cddp_status status = CDDP_OK;
    cd_explore_subject plain = {.registry = c->cli->registry};
    cd_explored *now = &c->failures.now;
    CD_TRY(cd_session_load_plan(&session, c->scenario, NULL, &plain.plan, err));
    CD_TRY_OUT(cd_explore_run_plain(&plain, now, &c->fails_as_it_stands, err));
    if (!c->fails_as_it_stands) goto out;
    c->failures.count = 1;
    c->failures.first = *now;
    cd_failures_add_kind(&c->failures, now->outcome, 0, now->schedule);
    cddp_plan *varied = c->subject.plan;
    c->subject.plan = plain.plan;
    plain.plan = varied;
    cd_text_fini(&c->overrides);
    c->overrides = c->given;
    cd_text_init(&c->given, false);
out:
    cddp_plan_destroy(plain.plan);
    return status;
}

static cddp_status run_all(explore_command *c, cddp_error *err)
{
    bool found = false;
    CD_TRY(cd_explorer_init(&c->explorer, &c->options, err));
    const cd_explore_jobs jobs = jobs_of(c);
    if (c->frontier != NULL) CD_TRY(cd_frontier_load(&jobs.frontier, c->frontier, &found, err));
    cd_interrupt_begin();
    c->began_ns = c->saved_ns = cd_os_now_ns();
    c->began_runs = c->explorer.runs;
    if (!found && !cd_args_has(c->cli->args, CD_OPTION_keep_going))
        CD_TRY(try_as_it_stands(c, err));
    while (goes_on(c)) {
        CD_TRY(run_some(c, err));
        show_progress(c);
        CD_TRY(save(c, false, err));
    }
    if (c->cli->progress && c->shown_ns != 0) cd_progress_wipe();
    return CD_PASS(save(c, true, err));
}

/* The statement of a search that found nothing, in words that do not claim more. */
static void put_exhaustive(cd_text *text, const explore_command *c)
{
    const cd_explorer *e = &c->explorer;
    if (e->exhausted && !e->bounded)
        cd_text_push(text, "  exhaustive: every combination of choices was tried\n");
    else if (e->exhausted)
        cd_text_printf(text,
                       "  bounded: every combination of the first %" PRIu64
                       " choices was tried, of up to %" PRIu64 "\n",
                       c->options.choices_max, e->choices_longest);
    else
        cd_text_printf(
            text,
            "  not exhaustive: at least %" PRIu64
            " schedules are left; about %.3g %% of the tree was tried, if its branches are equal\n",
            cd_explorer_left(e), 100.0 * cd_explorer_progress(e));
}

/* Schedules that were not tried because they cannot matter, each with its reason. */
static void put_reductions(cd_text *text, const explore_command *c)
{
    const cd_explorer *e = &c->explorer;
    if (c->options.reduce && e->races && c->options.strategy == CD_STRATEGY_COVER)
        cd_text_push(
            text, "  turns: one order of ranks only, although something in a run depends on it\n");
    else if (c->options.reduce && e->races)
        cd_text_push(
            text,
            "  turns: every order of ranks, because something in a run depends on it (a poll, a "
            "time-out, a failure)\n");
    else if (c->options.reduce && e->probes > 0)
        cd_text_printf(text,
                       "  turns: one order of ranks, because nothing in any run depends on it; "
                       "%" PRIu64 " schedule%s drew another. Memory that is read in flight is not "
                       "tracked: only %s tried it\n",
                       e->probes, e->probes == 1 ? "" : "s", e->probes == 1 ? "that one" : "those");
    else if (c->options.reduce)
        cd_text_push(
            text,
            "  turns: one order of ranks for all, because nothing in any run depends on it. Memory "
            "that is read in flight is not tracked: --no-reduce varies the turns\n");
    if (e->options.merge && !e->races)
        cd_text_printf(text,
                       "  states: %zu, %" PRIu64 " schedules led to one that was there before\n",
                       e->states.count, e->merged);
    if (e->options.symmetry && !e->races)
        cd_text_push(
            text,
            "  ranks: interchangeable but for rank 0; states and outcomes up to a renaming\n");
    else if (c->asymmetry != NULL && e->options.merge && !e->races)
        cd_text_printf(text, "  ranks: kept apart, because %s\n", c->asymmetry);
}

static bool has_covered(const cd_explorer *e)
{
    return e->exhausted && e->cover.order_count > 0 && !e->covering.deviated;
}

static void put_cover(cd_text *text, const explore_command *c)
{
    const cd_explorer *e = &c->explorer;
    if (has_covered(e))
        cd_text_printf(text,
                       "  cover: every %u of %u gradients became ready in every order, on every "
                       "rank, in %u schedules "
                       "after the first\n",
                       e->cover.strength, e->cover.event_count, e->cover.order_count);
    else if (e->exhausted && e->cover.order_count == 0)
        cd_text_push(text, "  not covered: no two gradients are ready at once\n");
    else if (e->covering.deviated)
        cd_text_push(text, "  not covered: some gradients are only ready after others, or not in "
                           "every backward, so "
                           "not every order can be run\n");
    else
        cd_text_printf(text, "  not covered: %" PRIu64 " of %u orders were run\n",
                       e->runs > 0 ? e->runs - 1 : 0, e->cover.order_count);
}

static void put_claim(cd_text *text, const explore_command *c)
{
    const cd_explorer *e = &c->explorer;
    double inverse = 0;
    switch (c->options.strategy) {
    case CD_STRATEGY_RANDOM:
        if (e->uneven || e->races)
            cd_text_printf(text, "  random: every option equally likely, so weighted, not uniform "
                                 "over orders; a sample, no proof\n");
        else
            cd_text_printf(text, "  random: uniform, since every schedule so far had the same "
                                 "alternatives; a sample, no proof\n");
        break;
    case CD_STRATEGY_PCT: {
        double miss = cd_explorer_miss_chance(e, &inverse);
        cd_text_printf(
            text,
            "  pct: n = %" PRIu64 ", k = %" PRIu64 ", d = %" PRIu32
            "; a bug of this depth is met with a chance of at least 1 in %.0f per schedule\n"
            "  and was missed by all of these with a chance of at most %.3g\n",
            e->contenders_max > 0 ? e->contenders_max : 1, e->choices_longest, c->options.depth,
            inverse, miss);
        break;
    }
    case CD_STRATEGY_EXHAUSTIVE:
    case CD_STRATEGY_COUNT:
        put_exhaustive(text, c);
        break;
    case CD_STRATEGY_COVER:
        put_cover(text, c);
        break;
    }
}

/* Faults that struck in no schedule, though they had to; text: what there is to say, or NULL. */
static size_t put_missing_faults(cd_text *text, const explore_command *c)
{
    const cddp_plan *plan = c->subject.plan;
    size_t count = 0;
    for (size_t i = 0; i < plan->fault_count && i < 64 && c->explorer.runs > 0; i++) {
        char fault[CD_FAULT_WORDS_BYTES];
        if ((c->failures.struck >> i & 1u) != 0) continue;
        count++;
        cd_plan_fault_print(&plan->faults[i], fault, sizeof fault);
        if (text != NULL)
            cd_text_printf(text, "  not struck: fault %zu, %s, in no schedule\n", i + 1, fault);
    }
    return count;
}

static void put_failure(cd_text *text, const explore_command *c)
{
    cd_command_line line = {.source = c->scenario,
                            .overrides = cd_text_get(&c->overrides),
                            .schedule = c->failures.first.schedule,
                            .plugin = cd_overrides_plugin,
                            .context = c->cli->args};
    if (c->fails_as_it_stands)
        cd_text_push(text, "  it fails as it stands, and no other schedule was tried; "
                           "--keep-going tries them\n  ");
    else
        cd_text_printf(text, "  %" PRIu64 " not verified, the first was schedule %" PRIu64 "\n  ",
                       c->failures.count, c->failures.first_at);
    cd_text_wrap(text, c->failures.first.culprit, 4, 110);
    if (c->failures.first.schedule[0] == '\0') {
        cd_text_push(text, "  its choices are too many for a choice string\n");
        return;
    }
    cd_text_push(text, "  replay      ");
    cd_command_line_print(text, &line);
    cd_text_push(text, "\n  shrink      ");
    line.command = "shrink";
    cd_command_line_print(text, &line);
    cd_text_push(text, "\n");
}

static void put_recorded(cd_text *text, const explore_command *c)
{
    const cd_explore_recorded *r = &c->recorded;
    cd_text_printf(text,
                   "  recorded    %" PRIu64
                   " run%s in %s, one of every outcome that is not verified",
                   r->runs, r->runs == 1 ? "" : "s", cddp_store_path(c->store));
    if (r->known > 0) cd_text_printf(text, "; %" PRIu64 " were there already", r->known);
    if (r->too_long > 0) cd_text_printf(text, "; %" PRIu64 " have too many choices", r->too_long);
    if (c->failures.kind_count == CD_FAILURE_KINDS)
        cd_text_printf(text, "; at most %d outcomes are recorded", CD_FAILURE_KINDS);
    cd_text_push(text, "\n");
}

static void fill_card(cd_card *card, const explore_command *c, int exit_code)
{
    const cd_explorer *e = &c->explorer;
    const uint64_t tried = c->fails_as_it_stands ? 1 : e->runs;
    cd_text claim;
    cd_text_init(&claim, false);
    put_claim(&claim, c);
    (void)put_missing_faults(&claim, c);
    const cd_card_line line = {.state = exit_code == CD_EXIT_FINDINGS   ? CD_CARD_FAILED
                                        : exit_code == CD_EXIT_VERIFIED ? CD_CARD_PASSED
                                                                        : CD_CARD_OPEN,
                               .name = "schedules",
                               .title = "every schedule that is tried is verified",
                               .message = c->failures.count > 0 ? c->failures.first.culprit
                                                                : cd_text_get(&claim),
                               .case_count = tried};
    cd_card_init(card, "explore", c->scenario, true);
    cd_card_add_line(card, &line);
    cd_card_add_number(card, "schedules", (double)tried);
    if (c->fails_as_it_stands) {
        cd_card_add_text(card, "search", "none: it fails as it stands (--keep-going searches)");
    } else {
        cd_card_add_number(card, "outcomes", (double)e->outcomes.count);
        cd_card_add_number(card, "choices", (double)e->choices_longest);
        cd_card_add_number(card, "options_taken", (double)e->taken.count);
        cd_card_add_number(card, "options_met", (double)e->offered.count);
    }
    cd_card_add_number(card, "not_verified", (double)c->failures.count);
    if (c->failures.count > 0) cd_card_add_text(card, "schedule", c->failures.first.schedule);
    cd_text_fini(&claim);
}

static int report(explore_command *c)
{
    const cd_explorer *e = &c->explorer;
    cd_text text;
    bool complete = c->options.strategy == CD_STRATEGY_COVER
                        ? has_covered(e)
                        : c->options.strategy != CD_STRATEGY_EXHAUSTIVE || e->exhausted;
    complete = complete && put_missing_faults(NULL, c) == 0;
    int exit_code = c->failures.count > 0                         ? CD_EXIT_FINDINGS
                    : c->interrupted || !complete || e->runs == 0 ? CD_EXIT_INCONCLUSIVE
                                                                  : CD_EXIT_VERIFIED;
    cd_report_card_begin(c->cli, &c->target, &text);
    if (c->failures.count > 0)
        cd_text_style(&text, CD_STYLE_RED, "findings");
    else
        cd_text_style(&text, exit_code == CD_EXIT_VERIFIED ? CD_STYLE_GREEN : CD_STYLE_YELLOW, "%s",
                      exit_code == CD_EXIT_VERIFIED ? "verified" : "inconclusive");
    if (c->fails_as_it_stands)
        cd_text_printf(&text, "  %s\n", c->scenario);
    else
        cd_text_printf(&text,
                       "  %s: %" PRIu64 " schedule%s, %zu outcome%s, up to %" PRIu64
                       " choice%s%s\n",
                       c->scenario, e->runs, e->runs == 1 ? "" : "s", e->outcomes.count,
                       e->outcomes.count == 1 ? "" : "s", e->choices_longest,
                       e->choices_longest == 1 ? "" : "s", c->interrupted ? "; interrupted" : "");
    if (e->runs > 0 && e->choices_longest == 0)
        cd_text_push(&text,
                     "  the scenario leaves nothing to choose: there is only one schedule\n");
    if (c->failures.count > 0)
        put_failure(&text, c);
    else
        put_claim(&text, c);
    if (c->failures.count == 0) (void)put_missing_faults(&text, c);
    if (c->store != NULL) put_recorded(&text, c);
    if (e->choices_longest > 0) {
        put_reductions(&text, c);
        cd_text_printf(&text, "  coverage: %zu of %zu options of the choice points that were met\n",
                       e->taken.count, e->offered.count);
    }
    cd_card card;
    const cd_card_run run = {c->scenario, cd_text_get(&c->overrides), c->failures.first.schedule,
                             false};
    const bool is_shown = c->failures.count > 0 && c->failures.first.schedule[0] != '\0';
    fill_card(&card, c, exit_code);
    return cd_report_card_send(c->cli, &c->target, &card, &text, cd_result_verdict_name(exit_code),
                               exit_code, is_shown ? &run : NULL);
}

static cddp_status prepare(explore_command *c, cddp_error *err)
{
    bool exhaustive = c->options.strategy == CD_STRATEGY_EXHAUSTIVE;
    CD_TRY(
        cd_explore_prepare(c->subject.plan, exhaustive && c->options.reduce, &c->overrides, err));
    c->subject.registry = c->cli->registry;
    c->subject.from_scratch = cd_args_has(c->cli->args, CD_OPTION_plugin);
    c->options.world_size = (uint32_t)c->subject.plan->world.size;
    c->options.without_rebuild = cd_explore_is_without_rebuild(c->subject.plan);
    c->options.merge &= exhaustive;
    /* its guarantee is about all choices */
    c->options.reduce &= c->options.strategy != CD_STRATEGY_PCT;
    c->asymmetry = c->options.symmetry ? cd_world_find_asymmetry(c->subject.plan) : NULL;
    c->options.symmetry &= c->options.merge && c->asymmetry == NULL;
    c->subject.anonymous = c->options.symmetry;
    return CDDP_OK;
}

static const char *read_variable(const char *variable) { return getenv(variable); }

/* The process that speaks. */
static bool is_first(const explore_command *c)
{
    return cd_cluster_is_first(c->cluster, read_variable);
}

static cddp_status read_scenario(explore_command *c, cddp_error *err)
{
    const cd_session session = {.cli = c->cli,
                                .level = CDDP_TRACE_DIGEST,
                                .overrides = cd_text_get(&c->overrides)};
    FILE *reported = is_first(c) ? stderr : NULL;
    CD_TRY(cd_session_load_plan(&session, c->scenario, reported, &c->subject.plan, err));
    const char *backend = c->subject.plan->world.backend;
    if (strcmp(backend, "sim") != 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "only the simulator can be explored; the scenario runs on backend %s",
                       backend);
    CD_TRY(prepare(c, err));
    return CDDP_OK;
}

/* Of a process that serves another one. */
static cddp_status serve(explore_command *c, cddp_error *err)
{
    CD_TRY(cd_explorer_init(&c->explorer, &c->options, err));
    const cd_explore_jobs jobs = jobs_of(c);
    cd_interrupt_begin();
    return CD_PASS(cd_cluster_serve(c->cluster, &jobs, err));
}

/* Before the search, so that a file that cannot be written is known then; the first process keeps
** them for all. */
static cddp_status open_files(explore_command *c, cddp_error *err)
{
    const char *path = cd_args_text(c->cli->args, CD_OPTION_trace, NULL);
    const char *certificate = cd_args_text(c->cli->args, CD_OPTION_certificate, NULL);
    if (!is_first(c)) return CDDP_OK;
    CD_TRY(cd_report_target_check(&c->target, err));
    if (certificate != NULL) CD_TRY(cd_output_check(certificate, err));
    if (c->frontier != NULL) CD_TRY(cd_output_check(c->frontier, err));
    if (path == NULL) return CDDP_OK;
    return CD_PASS(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &c->store, err));
}

static cddp_status record(explore_command *c, cddp_error *err)
{
    if (c->store == NULL) return CDDP_OK;
    const cd_session session = {.cli = c->cli,
                                .store = c->store,
                                .level = CDDP_TRACE_DIGEST,
                                .overrides = cd_text_get(&c->overrides)};
    cd_interrupt_end(); /* Ctrl-C ended the search; another one ends this */
    cd_interrupt_begin();
    return CD_PASS(
        cd_explore_record(&session, c->subject.plan, c->scenario, &c->failures, &c->recorded, err));
}

static cddp_status find_backend(void *context, const char *name, const cddp_backend **backend,
                                cddp_error *err)
{
    cd_cli *cli = context;
    CD_TRY(cd_plugins_need_backend(cli, name, err));
    *backend = cddp_registry_find_backend(cli->registry, cd_plugins_backend_name(cli, name));
    return CDDP_OK;
}

static cddp_status explore(explore_command *c, cddp_error *err)
{
    CD_TRY(cd_cluster_open(&(cd_cluster_options){find_backend, c->cli, read_variable}, &c->cluster,
                           err));
    cddp_status status = read_arguments(c, err);
    if (status == CDDP_OK) status = read_scenario(c, err);
    if (status == CDDP_OK) status = open_files(c, err);
    status = cd_cluster_agree(c->cluster, status, err);
    c->is_reported = status != CDDP_OK;
    CD_TRY(status);
    if (!is_first(c)) return CD_PASS(serve(c, err));
    status = run_all(c, err);
    if (c->cluster != NULL &&
        cd_cluster_dismiss(c->cluster, status == CDDP_OK ? err : NULL) != CDDP_OK &&
        status == CDDP_OK)
        status = err->status;
    CD_TRY(status);
    c->has_explored = true;
    CD_TRY(record(c, err));
    const char *certificate = cd_args_text(c->cli->args, CD_OPTION_certificate, NULL);
    if (certificate != NULL && has_covered(&c->explorer))
        CD_TRY(cd_certificate_write(certificate, &c->explorer, cddp_plan_digest(c->subject.plan),
                                    err));
    return CDDP_OK;
}

int cd_command_explore(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    explore_command *c = calloc(1, sizeof *c);
    if (c == NULL) {
        (void)cd_fail_memory(&err, "an exploration");
        return cd_cli_fail(cli, &err);
    }
    c->cli = cli;
    cd_text_init(&c->overrides, false);
    cd_text_init(&c->given, false);
    cddp_status status = explore(c, &err);
    /* of a process that served: the first one says what came of it */
    int exit_code = CD_EXIT_VERIFIED;
    if (c->has_explored) exit_code = report(c); /* also when it could not be kept */
    if (is_first(c))
        exit_code = status == CDDP_OK ? exit_code : cd_cli_fail(cli, &err);
    else if (status != CDDP_OK && !c->is_reported)
        exit_code = c->cluster != NULL ? cd_cli_fail(cli, &err) : CD_EXIT_ENVIRONMENT;
    cd_cluster_close(c->cluster);
    cd_explorer_fini(&c->explorer);
    cd_explore_fini(&c->subject);
    cddp_store_close(c->store);
    cddp_plan_destroy(c->subject.plan);
    cd_text_fini(&c->overrides);
    cd_text_fini(&c->given);
    free(c);
    return exit_code;
}
