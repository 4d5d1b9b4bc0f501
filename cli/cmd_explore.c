/* SPDX-License-Identifier: Apache-2.0 */
/* explore: one scenario under many schedules. */
#include "cddp/cddp.h"
#include "cli/compose.h"
#include "cli/interrupt.h"
#include "cli/overrides.h"
#include "cli/session.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os.h"
#include "sim/explore.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READY_CHOSEN 3 /* of schedule.ready */

typedef struct explore_command {
    cd_cli *cli;
    cd_text overrides;
    cd_explore_options options;
    cd_explorer explorer;
    cddp_plan *plan;
    const char *scenario;
    uint64_t time_budget_ns, began_ns, shown_ns;
    uint64_t failed;         /* schedules that were not verified */
    char schedule[65536];    /* of the first of them */
    char culprit[640];
    uint64_t failed_at;      /* its number */
    bool interrupted;
} explore_command;

static cddp_status read_budget(explore_command *c, cddp_error *err)
{
    const char *text = cd_args_text(c->cli->args, CD_OPTION_budget, NULL);
    if (text == NULL) {
        c->options.runs_max = c->options.strategy == CD_STRATEGY_EXHAUSTIVE ? 0 : 1000;
        return CDDP_OK;
    }
    char *end = NULL;
    uint64_t n = strtoull(text, &end, 10);
    bool ok = end != text && n > 0 && n < 1000000000000u;
    if (ok && *end == '\0') c->options.runs_max = n;
    else if (ok && strcmp(end, "s") == 0) c->time_budget_ns = n * 1000000000u;
    else if (ok && strcmp(end, "m") == 0) c->time_budget_ns = n * 60000000000u;
    else return cd_fail(err, CDDP_E_ARG, "--budget %s is neither a number of schedules nor a time such as 30s or 5m", text);
    return CDDP_OK;
}

static cddp_status read_arguments(explore_command *c, cddp_error *err)
{
    static const char *const strategies[] = {"random", "pct", "exhaustive", NULL};
    const cd_args *args = c->cli->args;
    int strategy = 0;
    uint64_t depth = 3;
    if (args->operand_count != 1) return cd_fail(err, CDDP_E_ARG, "explore what? name one scenario");
    c->scenario = args->operands[0];
    CD_TRY(cd_args_choice(args, CD_OPTION_strategy, strategies, &strategy, err));
    CD_TRY(cd_args_number(args, CD_OPTION_depth, &depth, err));
    CD_TRY(cd_args_number(args, CD_OPTION_explore_seed, &c->options.seed, err));
    CD_TRY(cd_args_number(args, CD_OPTION_choices, &c->options.choices_max, err));
    CD_TRY(cd_overrides_read(args, &c->overrides, err));
    if (depth > CD_PCT_DEPTH_MAX) return cd_fail(err, CDDP_E_ARG, "--depth %" PRIu64 " is not between 1 and %d", depth, CD_PCT_DEPTH_MAX);
    c->options.strategy = (cd_strategy)strategy;
    c->options.depth = (uint32_t)depth;
    CD_TRY(read_budget(c, err));
    return CDDP_OK;
}

static void show_progress(explore_command *c)
{
    uint64_t now = cd_os_now_ns();
    if (!c->cli->progress || now - c->shown_ns < 100000000u) return;
    c->shown_ns = now;
    double seconds = (double)(now - c->began_ns) / 1e9;
    fprintf(stderr, "\r\033[K%" PRIu64 " schedules, %.0f/s, %zu outcomes", c->explorer.runs, (double)c->explorer.runs / seconds,
            c->explorer.outcome_count);
    if (c->options.strategy == CD_STRATEGY_EXHAUSTIVE) fprintf(stderr, ", about %.3f %% of the tree", 100.0 * cd_explorer_progress(&c->explorer));
    if (c->failed > 0) fprintf(stderr, ", %" PRIu64 " not verified", c->failed);
    fflush(stderr);
}

static bool time_is_over(const explore_command *c)
{
    return c->time_budget_ns != 0 && cd_os_now_ns() - c->began_ns > c->time_budget_ns;
}

/* What a run came to, apart from the order of its events: verdict and findings. */
static uint64_t outcome_digest(const cddp_verdict *v)
{
    uint64_t h = cd_hash_mix((uint64_t)v->outcome, v->finding_count);
    for (size_t i = 0; i < v->finding_count; i++) {
        const cddp_finding *f = &v->findings[i];
        h = cd_hash_mix(h, cd_hash_text(f->check));
        h = cd_hash_mix(h, ((uint64_t)(uint32_t)f->rank << 32) | (uint32_t)f->param);
        h = cd_hash_mix(h, ((uint64_t)f->step << 32) | (uint32_t)f->bucket);
    }
    return h;
}

static void keep_failure(explore_command *c, const cddp_verdict *v, const cd_compose *compose)
{
    if (c->failed++ != 0) return;
    c->failed_at = c->explorer.runs + 1;
    if (cd_compose_print_schedule(compose, c->schedule, sizeof c->schedule) >= sizeof c->schedule) c->schedule[0] = '\0';
    snprintf(c->culprit, sizeof c->culprit, "%s", v->reason[0] != '\0' ? v->reason : v->summary);
    for (size_t i = v->rank_count; i-- > 0;)
        if (v->ranks[i].result.status != CDDP_OK)
            snprintf(c->culprit, sizeof c->culprit, "rank %zu: %s", i, v->ranks[i].result.error.message);
    if (v->finding_count > 0) snprintf(c->culprit, sizeof c->culprit, "%s  %s", v->findings[0].check, v->findings[0].title);
}

static cddp_status run_once(explore_command *c, const cd_chooser *chooser, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_compose *compose = NULL;
    cddp_verdict *verdict = NULL;
    const cddp_trace_sink *sinks[1] = {cd_interrupt_sink()};
    cd_compose_options options = {.plan = c->plan, .registry = c->cli->registry, .level = CDDP_TRACE_DIGEST, .chooser = chooser};
    CD_TRY(cd_compose_open(&options, &compose, err));
    cddp_run_options run = cddp_run_options_default();
    cd_compose_fill(compose, &run);
    run.registry = c->cli->registry;
    run.sinks = sinks;
    run.sink_count = 1;
    CD_TRY_OUT(cddp_run(&run, &verdict, err));
    c->interrupted = cd_interrupt_requested();
    if (c->interrupted) goto out;
    if (verdict->outcome != CDDP_OUTCOME_VERIFIED) keep_failure(c, verdict, compose);
    CD_TRY_OUT(cd_explorer_done(&c->explorer, outcome_digest(verdict), err));
out:
    cddp_verdict_destroy(verdict);
    cd_compose_close(compose);
    return status;
}

static cddp_status run_all(explore_command *c, cddp_error *err)
{
    CD_TRY(cd_explorer_init(&c->explorer, &c->options, err));
    cd_interrupt_begin();
    c->began_ns = cd_os_now_ns();
    bool go_on = cd_args_has(c->cli->args, CD_OPTION_keep_going);
    while (!c->interrupted && !time_is_over(c) && (c->failed == 0 || go_on)) {
        const cd_chooser *chooser = cd_explorer_next(&c->explorer);
        if (chooser == NULL) break;
        CD_TRY(run_once(c, chooser, err));
        show_progress(c);
    }
    if (c->cli->progress && c->shown_ns != 0) fputs("\r\033[K", stderr);
    return CDDP_OK;
}

/* What the search shows when nothing was found, in words that do not claim more. */
static void put_claim(cd_text *text, const explore_command *c)
{
    const cd_explorer *e = &c->explorer;
    double inverse = 0;
    switch (c->options.strategy) {
    case CD_STRATEGY_RANDOM:
        cd_text_printf(text, "  random: every option equally likely, so weighted, not uniform over orders; a sample, no proof\n");
        break;
    case CD_STRATEGY_PCT: {
        double miss = cd_explorer_miss_chance(e, &inverse);
        cd_text_printf(text, "  pct: n = %" PRIu64 ", k = %" PRIu64 ", d = %" PRIu32 "; a bug of this depth is met with a chance of at least 1 in %.0f per schedule\n"
                             "  and was missed by all of these with a chance of at most %.3g\n",
                       e->contenders_max > 0 ? e->contenders_max : 1, e->choices_longest, c->options.depth, inverse, miss);
        break;
    }
    case CD_STRATEGY_EXHAUSTIVE:
    case CD_STRATEGY_COUNT:
        if (e->exhausted && !e->bounded) cd_text_push(text, "  exhaustive: every combination of choices was tried\n");
        else if (e->exhausted) cd_text_printf(text, "  bounded: every combination of the first %" PRIu64 " choices was tried, of up to %" PRIu64 "\n",
                                              c->options.choices_max, e->choices_longest);
        else cd_text_printf(text, "  not exhaustive: about %.3g %% of the tree was tried\n", 100.0 * cd_explorer_progress(e));
        break;
    }
}

static int report(explore_command *c)
{
    const cd_explorer *e = &c->explorer;
    cd_text text;
    bool complete = c->options.strategy != CD_STRATEGY_EXHAUSTIVE || e->exhausted;
    int exit_code = c->failed > 0 ? CD_EXIT_FINDINGS : c->interrupted || !complete || e->runs == 0 ? CD_EXIT_INCONCLUSIVE : CD_EXIT_VERIFIED;
    cd_text_init(&text, c->cli->color_out);
    if (c->failed > 0) cd_text_style(&text, CD_STYLE_RED, "findings");
    else cd_text_style(&text, exit_code == CD_EXIT_VERIFIED ? CD_STYLE_GREEN : CD_STYLE_YELLOW, "%s", exit_code == CD_EXIT_VERIFIED ? "verified" : "inconclusive");
    cd_text_printf(&text, "  %s: %" PRIu64 " schedules, %zu outcome%s, up to %" PRIu64 " choices%s\n", c->scenario, e->runs, e->outcome_count,
                   e->outcome_count == 1 ? "" : "s", e->choices_longest, c->interrupted ? "; interrupted" : "");
    if (e->runs > 0 && e->choices_longest == 0) cd_text_push(&text, "  the scenario leaves nothing to choose: there is only one schedule\n");
    if (c->failed > 0) {
        cd_text_printf(&text, "  %" PRIu64 " not verified, the first was schedule %" PRIu64 "\n  ", c->failed, c->failed_at);
        cd_text_wrap(&text, c->culprit, 4, 110);
        cd_text_push(&text, "  replay      cddp-verify replay ");
        cd_text_printf(&text, "%s --set schedule.ready=chosen --schedule '%s'\n", c->scenario, c->schedule);
    } else {
        put_claim(&text, c);
    }
    exit_code = cd_cli_write(c->cli, &text, exit_code);
    cd_text_fini(&text);
    return exit_code;
}

static cddp_status explore(explore_command *c, cddp_error *err)
{
    cd_result mistakes;
    CD_TRY(read_arguments(c, err));
    cd_result_init(&mistakes);
    cd_session session = {.cli = c->cli, .level = CDDP_TRACE_DIGEST, .overrides = cd_text_get(&c->overrides)};
    cd_session_read_plan(&session, c->scenario, NULL, &c->plan, &mistakes);
    cddp_status status = CDDP_OK;
    if (c->plan == NULL) {
        fputs(mistakes.details, stderr);
        status = cd_fail(err, CDDP_E_CONFIG, "%s", mistakes.summary);
    } else if (strcmp(c->plan->world.backend, "sim") != 0) {
        status = cd_fail(err, CDDP_E_UNSUPPORTED, "only the simulator can be explored; the scenario runs on backend %s", c->plan->world.backend);
    }
    cd_result_fini(&mistakes);
    if (status != CDDP_OK) return status;
    /* The order of gradients is what is explored, unless the scenario fixes it. */
    if (c->plan->schedule.ready == 0) c->plan->schedule.ready = READY_CHOSEN;
    return run_all(c, err);
}

int cd_command_explore(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    explore_command *c = calloc(1, sizeof *c);
    if (c == NULL) {
        (void)cd_fail(&err, CDDP_E_NOMEM, "no memory to explore");
        return cd_cli_fail(cli, &err);
    }
    c->cli = cli;
    cd_text_init(&c->overrides, false);
    int exit_code = explore(c, &err) == CDDP_OK ? report(c) : cd_cli_fail(cli, &err);
    cd_explorer_fini(&c->explorer);
    cddp_plan_destroy(c->plan);
    cd_text_fini(&c->overrides);
    free(c);
    return exit_code;
}
