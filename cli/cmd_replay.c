/* SPDX-License-Identifier: Apache-2.0 */
/* replay: a recorded run once more on the simulator, compared event by event, whatever world it was
** recorded in; or a scenario under a choice string. */
#include "cddp/store.h"
#include "cli/interrupt.h"
#include "cli/overrides.h"
#include "cli/recorded.h"
#include "verify/hang/graph.h"
#include "verify/hang/headline.h"
#include "verify/replay/replay.h"
#include "cli/report_card.h"
#include "cli/session.h"
#include "cli/stepper.h"
#include "core/base/error.h"
#include "core/trace/event.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct replay_command {
    cd_cli *cli;
    cddp_store *store;
    cd_replay replay;
    cd_result result;
    cd_report_target target;
    int exit_code;
    bool reproduced;
    bool fails_otherwise; /* equal up to the failure, which is another one */
    cd_result recorded;   /* of a run that failed in another world: judged again */
    cd_recipe recipe;
} replay_command;

static cddp_status find_run(replay_command *c, cddp_error *err)
{
    const cd_args *args = c->cli->args;
    uint64_t number = 0;
    CD_TRY(cd_args_run_number(args, &number, err));
    CD_TRY(cddp_store_open(args->operands[0], CDDP_STORE_READ, NULL, &c->store, err));
    CD_TRY(cd_recipe_load(&c->recipe, c->store, number, "replayed", err));
    c->result.source = cd_result_copy(&c->result, c->recipe.source);
    CD_TRY(cd_replay_load(&c->replay, c->store, c->recipe.run, err));
    if (c->replay.recorded.count == 0)
        return cd_fail(err, CDDP_E_ARG,
                       "run %" PRId64 " (%s) never began: it has no events that could come again",
                       c->recipe.run, c->recipe.verdict);
    if (cd_recipe_is_foreign(&c->recipe) && c->recipe.exit_code == CD_EXIT_ENVIRONMENT)
        return cd_fail(err, CDDP_E_BACKEND,
                       "run %" PRId64 " was not judged, for want of something on the machine that "
                       "it ran on (\"cddp-verify report %.100s\" says what): there is nothing to "
                       "reproduce",
                       c->recipe.run, args->operands[0]);
    if (cd_recipe_is_foreign(&c->recipe))
        CD_TRY(cd_replay_set_across(&c->replay, c->recipe.algorithm[0] != '\0', err));
    return CDDP_OK;
}

/* --until: an event number, or the name of an event: up to its first occurrence. */
static cddp_status read_until(replay_command *c, cddp_error *err)
{
    const char *until = cd_args_text(c->cli->args, CD_OPTION_until, NULL);
    if (until == NULL) return CDDP_OK;
    char *end = NULL;
    c->replay.until = strtoull(until, &end, 10);
    const bool is_number = end != until && *end == '\0' && c->replay.until > 0;
    if (is_number && c->replay.until > c->replay.recorded.count)
        return cd_fail(err, CDDP_E_ARG, "--until %s: the recorded run has %zu events", until,
                       c->replay.recorded.count);
    if (is_number) return CDDP_OK;
    int32_t kind = cd_event_find(until);
    if (kind < 0)
        return cd_fail(err, CDDP_E_ARG,
                       "--until %s is neither an event number from 1 nor the name of an event",
                       until);
    c->replay.until_kind = kind;
    for (size_t i = 0; i < c->replay.recorded.count; i++)
        if (c->replay.recorded.events[i].kind == kind) return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG, "the recorded run has no event %s", until);
}

static void put_event(cd_text *text, const char *label, const cddp_event *event)
{
    char words[1024];
    cd_event_print(event, words, sizeof words);
    cd_text_printf(text, "  %-11s", label);
    cd_text_wrap(text, words, 13, 110);
}

/* Why a death inside an operation may look otherwise here. */
static void put_death(const cd_replay *r, cd_text *text)
{
    if (r->struck < 0) return;
    cd_text_printf(text, "  %-11s", "note");
    cd_text_wrap(
        text,
        "a signal ended a rank, and here a planted fault does. An operation that was under "
        "way may have ended on some ranks of the record only; on the simulator it ends "
        "on all of them or on none",
        13, 110);
}

static void report_parting(const replay_command *c, cd_text *text)
{
    const cd_replay *r = &c->replay;
    cd_text_style(text, CD_STYLE_RED, "not reproduced");
    cd_text_printf(text, "  run %" PRId64 " parts from its record at event %zu of %zu\n",
                   c->recipe.run, r->met, r->total);
    if (r->expected < r->recorded.count) {
        cddp_event expected = cd_memory_sink_get(&r->recorded, r->expected);
        put_event(text, "recorded", &expected);
    } else {
        cd_text_push(text, "  recorded   the run ended here\n");
    }
    if (r->has_extra)
        put_event(text, "now", &r->extra);
    else
        cd_text_push(text, "  now        the run ended here\n");
    put_death(r, text);
    if (r->across && !r->order_known)
        cd_text_printf(text,
                       "  note       the simulator does not know in which order %s sums: values "
                       "may differ by rounding alone\n",
                       c->recipe.backend);
}

static void put_failure(cd_text *text, const char *label, const cddp_verdict *v)
{
    cd_text words, hang;
    cd_text_init(&words, false);
    cd_text_init(&hang, false);
    cd_hang_print(v, &hang);
    if (v->finding_count > 0)
        cd_text_printf(&words, "%s: %s", v->findings[0].check, v->findings[0].title);
    if (words.length > 0 && hang.length > 0) cd_text_push(&words, "; ");
    cd_text_push(&words, cd_text_get(&hang));
    cd_text_fini(&hang);
    if (words.length == 0) cd_text_push(&words, "no finding, and nobody waits");
    cd_text_printf(text, "  %-11s", label);
    cd_text_wrap(text, cd_text_get(&words), 13, 110);
    cd_text_fini(&words);
}

static void report_other_failure(const replay_command *c, cd_text *text)
{
    cd_text_style(text, CD_STYLE_RED, "not reproduced");
    cd_text_printf(text,
                   "  run %" PRId64
                   ": %zu events are equal rank by rank up to the failure, which is another one\n",
                   c->recipe.run, c->replay.met);
    put_failure(text, "recorded", &c->recorded.verdict);
    put_failure(text, "now", &c->result.verdict);
    put_death(&c->replay, text);
}

static bool fails_alike(const replay_command *c)
{
    const cddp_verdict *recorded = &c->recorded.verdict, *now = &c->result.verdict;
    if (c->replay.struck >= 0)
        return cd_hang_has_same_root(recorded, now, (uint32_t)c->replay.struck);
    return c->replay.was_refused ? cd_hang_is_same_refusal(recorded, now)
                                 : cd_hang_is_same(recorded, now);
}

static void report(replay_command *c, cd_text *text)
{
    cd_replay *r = &c->replay;
    c->reproduced = cd_replay_end(r);
    c->fails_otherwise = c->reproduced && !r->stopped && r->has_failed && !fails_alike(c);
    c->reproduced = c->reproduced && !c->fails_otherwise;
    const bool was_cut =
        !c->reproduced && cd_interrupt_requested() && (!r->parted || r->was_interrupted);
    c->exit_code = c->reproduced ? CD_EXIT_VERIFIED
                   : was_cut     ? CD_EXIT_INCONCLUSIVE
                                 : CD_EXIT_FINDINGS;
    if (was_cut) {
        cd_text_style(text, CD_STYLE_YELLOW, "inconclusive");
        cd_text_printf(text,
                       "  run %" PRId64 ": interrupted after %zu of %zu events, equal so far\n",
                       c->recipe.run, r->met, r->total);
    } else if (c->fails_otherwise) {
        report_other_failure(c, text);
    } else if (!c->reproduced) {
        report_parting(c, text);
    } else if (r->stopped) {
        cd_text_style(text, CD_STYLE_GREEN, "reproduced up to event %zu", r->met);
        cd_text_printf(text, "  of %zu in run %" PRId64 "\n", r->total, c->recipe.run);
        cddp_event at = cd_memory_sink_get(&r->recorded, r->last);
        put_event(text, "event", &at);
    } else {
        cd_text_style(text, CD_STYLE_GREEN, "reproduced");
        cd_text_printf(text, "  run %" PRId64 ", %zu events, all equal", c->recipe.run, r->total);
        if (r->across)
            cd_text_printf(text, " rank by rank on the simulator (recorded on %s)",
                           c->recipe.backend);
        if (r->was_refused)
            cd_text_push(text, " up to the failure, which has the same rule, ranks and operation: "
                               "the transport refused what the simulator lets meet");
        else if (r->struck >= 0)
            cd_text_printf(text,
                           " up to the failure: with rank %" PRId64
                           " killed at the same place, the same ranks wait",
                           r->struck);
        else if (r->has_failed)
            cd_text_push(text, " up to the failure, and the failure is the same");
        if (r->has_other_bits)
            cd_text_push(text, " (bits of sums apart, whose order is not known here)");
        cd_text_printf(text, "; recorded verdict: %s\n", c->recipe.verdict);
    }
}

/* Equal events come to equal ends: a record that says otherwise was changed. Not where something
** else was recorded: on another backend, at another level, or with repetitions, which are no part
** of a replay. */
static cddp_status check_outcome(replay_command *c, const cddp_plan *plan, cddp_error *err)
{
    const cd_recipe *r = &c->recipe;
    if (c->replay.across || c->replay.stopped || r->trace_digest == 0 ||
        plan->expect.same_with.count > 0 || !cd_replay_end(&c->replay))
        return CDDP_OK;
    if (c->result.verdict.trace_digest != 0 && c->result.verdict.trace_digest != r->trace_digest)
        return cd_fail(
            err, CDDP_E_CORRUPT,
            "run %" PRId64
            " was changed: its events are equal to those of now, whose digest is %016" PRIx64
            ", and the record says %016" PRIx64,
            r->run, c->result.verdict.trace_digest, r->trace_digest);
    const bool is_judged =
        r->exit_code <= CD_EXIT_FINDINGS && c->result.verdict.outcome <= CDDP_OUTCOME_FINDINGS;
    if (is_judged && (strcmp(r->verdict, cd_result_recorded_name(&c->result)) != 0 ||
                      r->exit_code != (uint32_t)c->result.verdict.outcome))
        return cd_fail(err, CDDP_E_CORRUPT,
                       "run %" PRId64 " was changed, or judged by others: its events are equal to "
                       "those of now, which come to %s "
                       "(exit %d), and the record says %s (exit %" PRIu64 ")",
                       r->run, cd_result_recorded_name(&c->result), c->result.verdict.outcome,
                       r->verdict, r->exit_code);
    return CDDP_OK;
}

typedef struct judging {
    replay_command *command;
    cd_session session;
} judging;

static cddp_status judge_record(void *context, const cddp_stored_run *run, cddp_error *err)
{
    judging *j = context;
    return CD_PASS(cd_recorded_judge(&j->command->recorded, &j->session, run, err));
}

/* What the record of another world shows to the checks of today: its failure is compared with that
** of the run on the simulator. */
static cddp_status judge_failure(replay_command *c, cddp_error *err)
{
    if (!c->replay.across || !c->replay.has_failed) return CDDP_OK;
    judging j = {c, {.cli = c->cli, .level = CDDP_TRACE_DIGEST, .store = c->store}};
    return CD_PASS(cddp_store_each_run(c->store, c->recipe.run, judge_record, &j, err));
}

static cddp_status replay_store(replay_command *c, cddp_error *err)
{
    cddp_plan *plan = NULL;
    CD_TRY(find_run(c, err));
    CD_TRY(read_until(c, err));
    cd_session session = {.cli = c->cli,
                          .level = CDDP_TRACE_DIGEST,
                          .overrides = c->recipe.options,
                          .watcher = &c->replay.sink,
                          .oracle_apart = c->replay.across,
                          .schedule = c->recipe.schedule[0] != '\0' ? c->recipe.schedule : NULL};
    CD_TRY(cd_recorded_read_plan(&c->recipe, &session, &plan, err));
    cddp_status status = c->replay.across ? cd_recipe_transfer(&c->recipe, plan, err) : CDDP_OK;
    if (status == CDDP_OK && c->replay.across) status = cd_replay_plant(&c->replay, plan, err);
    if (status == CDDP_OK) status = cd_session_run_plan(&session, plan, &c->result, err);
    if (status == CDDP_OK) status = check_outcome(c, plan, err);
    if (status == CDDP_OK) status = judge_failure(c, err);
    cddp_plan_destroy(plan);
    if (status != CDDP_OK) return status;
    /* What could not begin shows no difference between runs. */
    if (c->result.verdict.outcome == CDDP_OUTCOME_ENVIRONMENT &&
        c->recipe.exit_code != CD_EXIT_ENVIRONMENT)
        return cd_fail(err, CDDP_E_NOMEM, "%s", c->result.verdict.summary);
    /* A choice string that does not fit is a failure of the run, not a difference between runs. */
    if (c->result.verdict.outcome == CDDP_OUTCOME_ERROR && !c->replay.parted &&
        c->recipe.exit_code != CD_EXIT_USAGE)
        return cd_fail(err, CDDP_E_CONFIG, "%s", c->result.verdict.summary);
    return CDDP_OK;
}

static void fill_card(cd_card *card, const replay_command *c)
{
    cd_text words;
    const bool is_broken = c->exit_code == CD_EXIT_FINDINGS;
    cd_text_init(&words, false);
    if (c->fails_otherwise)
        report_other_failure(c, &words);
    else if (is_broken)
        report_parting(c, &words);
    cd_card_init(card, "replay", c->cli->args->operands[0], true);
    cd_card_add_line(card, &(cd_card_line){.state = c->reproduced ? CD_CARD_PASSED
                                                    : is_broken   ? CD_CARD_FAILED
                                                                  : CD_CARD_OPEN,
                                           .name = "reproduced",
                                           .title = "every event is as it was recorded",
                                           .message = cd_text_get(&words),
                                           .case_count = c->replay.met});
    cd_card_add_number(card, "run", (double)c->recipe.run);
    cd_card_add_number(card, "events", (double)c->replay.total);
    cd_card_add_text(card, "recorded_verdict", c->recipe.verdict);
    cd_text_fini(&words);
}

static int finish(replay_command *c)
{
    cd_text text;
    cd_card card;
    cd_report_card_begin(c->cli, &c->target, &text);
    report(c, &text);
    fill_card(&card, c);
    const char *verdict = c->reproduced                      ? "reproduced"
                          : c->exit_code == CD_EXIT_FINDINGS ? "not reproduced"
                                                             : "inconclusive";
    int exit_code =
        cd_report_card_send(c->cli, &c->target, &card, &text, verdict, c->exit_code, NULL);
    if (cd_args_has(c->cli->args, CD_OPTION_step)) {
        uint64_t from = 0;
        cddp_error err = CDDP_ERROR_INIT;
        if (cd_args_number(c->cli->args, CD_OPTION_from, &from, &err) != CDDP_OK)
            return cd_cli_fail(c->cli, &err);
        const cd_memory_sink *events = &c->replay.recorded;
        size_t position = 0;
        uint32_t latest = 0;
        for (; position < events->count && events->events[position].step < from; position++)
            if (events->events[position].step > latest) latest = events->events[position].step;
        if (position > 0 && position == events->count) {
            (void)cd_fail(&err, CDDP_E_ARG,
                          "--from %" PRIu64
                          ": the recorded run has no such step, its last one is %" PRIu32,
                          from, latest);
            return cd_cli_fail(c->cli, &err);
        }
        cd_stepper_run(events, position);
    }
    return exit_code;
}

/* A scenario under a given choice string: run and judged as `run` does. */
static int replay_schedule(cd_cli *cli, const char *schedule)
{
    cd_result result;
    cd_report_target target;
    cddp_error err = CDDP_ERROR_INIT;
    cd_text overrides;
    cd_text_init(&overrides, false);
    cd_result_init(&result);
    int exit_code;
    cddp_status status = cd_report_target_read(cli->args, &target, &err);
    if (status == CDDP_OK) status = cd_report_target_check(&target, &err);
    if (status == CDDP_OK) status = cd_overrides_read(cli->args, &overrides, &err);
    cd_session session = {.cli = cli,
                          .level = CDDP_TRACE_DIGEST,
                          .overrides = cd_text_get(&overrides),
                          .schedule = schedule};
    if (status == CDDP_OK) status = cd_session_run(&session, cli->args->operands[0], &result, &err);
    if (status == CDDP_OK) {
        cd_report report = {.results = &result,
                            .count = 1,
                            .registry = cli->registry,
                            .exit_code = result.verdict.outcome,
                            .verbose = true};
        exit_code = cd_report_send(cli, &target, &report);
    } else {
        exit_code = cd_cli_fail(cli, &err);
    }
    cd_result_fini(&result);
    cd_text_fini(&overrides);
    return exit_code;
}

/* A store and a scenario are replayed in different ways: an option that only the other one heeds is
** refused. */
static cddp_status check_arguments(const cd_args *args, bool is_scenario, cddp_error *err)
{
    static const struct {
        cd_option_id option;
        bool of_scenario;
    } rows[] = {{CD_OPTION_world_size, true}, {CD_OPTION_seed, true},  {CD_OPTION_set, true},
                {CD_OPTION_until, false},     {CD_OPTION_step, false}, {CD_OPTION_from, false},
                {CD_OPTION_run_number, false}};
    if (args->operand_count != 1)
        return cd_fail(err, CDDP_E_ARG,
                       "replay what? name one store, or a scenario together with --schedule");
    const char *name = strrchr(args->operands[0], '.');
    if (!is_scenario && name != NULL && strcmp(name, ".toml") == 0)
        return cd_fail(err, CDDP_E_ARG, "'%s' is a scenario: replay it with --schedule, or run it",
                       args->operands[0]);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!cd_args_has(args, rows[i].option) || rows[i].of_scenario == is_scenario) continue;
        return cd_fail(err, CDDP_E_ARG, "--%s goes with %s", cd_options[rows[i].option].name,
                       is_scenario
                           ? "a store: a scenario is run and judged as a whole"
                           : "a scenario and --schedule: a stored run is compared with itself");
    }
    if (cd_args_has(args, CD_OPTION_from) && !cd_args_has(args, CD_OPTION_step))
        return cd_fail(err, CDDP_E_ARG, "--from goes with --step: it says where to begin to walk");
    return CDDP_OK;
}

/* Events are walked through where they can be read. */
static cddp_status read_target(replay_command *c, cddp_error *err)
{
    CD_TRY(cd_report_target_read(c->cli->args, &c->target, err));
    if (cd_args_has(c->cli->args, CD_OPTION_step) &&
        (c->target.format != CD_FORMAT_TEXT || c->target.path != NULL))
        return cd_fail(err, CDDP_E_ARG, "--step walks in text on standard output, without --%s",
                       c->target.path != NULL ? "output" : "format");
    return CD_PASS(cd_report_target_check(&c->target, err));
}

int cd_command_replay(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    const char *schedule = cd_args_text(cli->args, CD_OPTION_schedule, NULL);
    if (check_arguments(cli->args, schedule != NULL, &err) != CDDP_OK)
        return cd_cli_fail(cli, &err);
    cd_interrupt_begin();
    if (schedule != NULL) return replay_schedule(cli, schedule);
    replay_command c = {.cli = cli};
    cd_replay_init(&c.replay);
    c.replay.interrupted = cd_interrupt_requested;
    cd_result_init(&c.result);
    cd_result_init(&c.recorded);
    cddp_status status = read_target(&c, &err);
    if (status == CDDP_OK) status = replay_store(&c, &err);
    int exit_code = status == CDDP_OK ? finish(&c) : cd_cli_fail(cli, &err);
    cd_result_fini(&c.result);
    cd_result_fini(&c.recorded);
    cd_replay_fini(&c.replay);
    cddp_store_close(c.store);
    cd_recipe_fini(&c.recipe);
    return exit_code;
}
