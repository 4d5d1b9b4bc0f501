/* SPDX-License-Identifier: Apache-2.0 */
/* prove: one scenario, every schedule, all values. */
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/overrides.h"
#include "cli/progress.h"
#include "cli/report_card.h"
#include "core/base/format.h"
#include "verify/report/command_line.h"
#include "verify/prove/prove.h"
#include "cli/session.h"
#include "core/plan/plan.h"
#include "core/plan/zero.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/text.h"
#include "core/plan/replica/replica.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET_NS (UINT64_C(300) * 1000000000u) /* without --budget */
#define REPORT_NS (UINT64_C(30) * 1000000000u)  /* between lines where there is no terminal */
#define FIRST_ORDERS 8                          /* tried before their time is extrapolated */
#define PATTERN_BITS_MAX 16                     /* 65536 variants of a scenario */

typedef struct prove_command {
    cd_cli *cli;
    const char *scenario;
    cd_text overrides; /* lines that make every variant of the plan, without its pattern */
    bool is_chosen;    /* the order of gradients is in `overrides` */
    cd_text pattern;   /* lines of the variant at hand, behind those */
    bool calls_only;
    cd_prove_layouts layouts;
    uint64_t used_steps, sync_places; /* how far patterns reach; 0: no patterns */
    uint64_t jobs, orders_max;
    uint64_t time_budget_ns, began_ns, shown_ns;
    bool is_announced; /* what it will take */
    char budget[32];
    cddp_plan *plan;  /* of the variant at hand */
    cd_proof proof;   /* all variants so far; of a refutation, that one */
    double schedules; /* over all variants */
    uint64_t variants, variant_count;
    char **units; /* (unit_count) of the model */
    size_t unit_count;
    cd_report_target target;
} prove_command;

/* ---- arguments ---- */

static cddp_status read_budget(prove_command *c, cddp_error *err)
{
    const char *text = cd_args_text(c->cli->args, CD_OPTION_budget, NULL);
    c->orders_max = 50000;
    if (text == NULL) {
        c->time_budget_ns = BUDGET_NS;
        snprintf(c->budget, sizeof c->budget, "5m");
        return CDDP_OK;
    }
    char *end = NULL;
    uint64_t n = strtoull(text, &end, 10);
    bool ok = end != text && n > 0 && n < 1000000000000u;
    if (ok && *end == '\0')
        c->orders_max = n;
    else if (ok && strcmp(end, "s") == 0)
        c->time_budget_ns = n * 1000000000u, c->orders_max = UINT64_MAX;
    else if (ok && strcmp(end, "m") == 0)
        c->time_budget_ns = n * 60000000000u, c->orders_max = UINT64_MAX;
    else
        return cd_fail(err, CDDP_E_ARG,
                       "--budget %s is neither a number of orders nor a time such as 30s or 5m",
                       text);
    snprintf(c->budget, sizeof c->budget, "%s", text);
    return CDDP_OK;
}

static cddp_status read_layouts(prove_command *c, cddp_error *err)
{
    const char *text = cd_args_text(c->cli->args, CD_OPTION_layouts, NULL);
    c->layouts = text == NULL                 ? CD_PROVE_LAYOUTS_BY_COST
                 : strcmp(text, "alike") == 0 ? CD_PROVE_LAYOUTS_ALIKE
                 : strcmp(text, "forms") == 0 ? CD_PROVE_LAYOUTS_FORMS
                                              : CD_PROVE_LAYOUTS_ALL;
    if (c->layouts != CD_PROVE_LAYOUTS_ALL || strcmp(text, "all") == 0) return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG, "--layouts %s is neither all nor alike nor forms", text);
}

static cddp_status read_arguments(prove_command *c, cddp_error *err)
{
    const cd_args *args = c->cli->args;
    if (args->operand_count != 1) return cd_fail(err, CDDP_E_ARG, "prove what? name one scenario");
    c->scenario = args->operands[0];
    CD_TRY(cd_report_target_read(args, &c->target, err));
    CD_TRY(cd_report_target_check(&c->target, err));
    c->calls_only = cd_args_has(args, CD_OPTION_calls);
    CD_TRY(read_layouts(c, err));
    c->jobs = 1;
    CD_TRY(cd_args_number(args, CD_OPTION_jobs, &c->jobs, err));
    CD_TRY(cd_args_number(args, CD_OPTION_used_sets, &c->used_steps, err));
    CD_TRY(cd_args_number(args, CD_OPTION_no_sync, &c->sync_places, err));
    CD_TRY(cd_overrides_read(args, &c->overrides, err));
    cd_text_printf(&c->overrides, "model.device=%s\n", c->calls_only ? "shape" : "symbol");
    if (c->jobs == 0) c->jobs = cd_os_core_count();
    return CD_PASS(read_budget(c, err));
}

/* ---- a variant of the scenario ---- */

static cddp_status read_variant(prove_command *c, cddp_error *err)
{
    cd_text lines;
    cd_text_init(&lines, false);
    cd_text_printf(&lines, "%s%s", cd_text_get(&c->overrides), cd_text_get(&c->pattern));
    const cd_session session = {.cli = c->cli,
                                .level = CDDP_TRACE_DIGEST,
                                .overrides = cd_text_get(&lines)};
    cddp_plan_destroy(c->plan);
    cddp_status status = cd_session_load_plan(&session, c->scenario, stderr, &c->plan, err);
    cd_text_fini(&lines);
    return status;
}

/* Gradients become ready in any order. Units of a sharded model are reduced in the order of
** backward: there is one. */
static cddp_status read_plan(prove_command *c, cddp_error *err)
{
    CD_TRY(read_variant(c, err));
    if (cd_zero_shards_model(c->plan) || c->is_chosen) return CDDP_OK;
    c->is_chosen = true;
    cd_text_push(&c->overrides, "schedule.ready=chosen\n");
    return CD_PASS(read_variant(c, err));
}

/* The assumptions of the proof. */
static cddp_status check_plan(const prove_command *c, cddp_error *err)
{
    const cddp_plan *plan = c->plan;
    if (strcmp(plan->world.backend, "sim") != 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "a proof is made on the simulator; the scenario runs on backend %s",
                       plan->world.backend);
    if (plan->fault_count > 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "the scenario plants faults; a proof is about runs without any");
    if (plan->rendezvous.enable)
        return cd_fail(err, CDDP_E_CONFIG,
                       "rendezvous.enable: who comes first to the store is a race; a proof is "
                       "about runs without any");
    if (plan->wrapper_count > 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "[[wrapper]]: a proof is of one wrapper; prove the scenario of each, and "
                       "explore them together");
    if (cd_plan_has_continuations(plan))
        return cd_fail(err, CDDP_E_CONFIG,
                       "hook.continuations = \"on_completion\": a proof varies the order of "
                       "gradients alone; explore varies this");
    if (plan->settings.train.checkpoint_step > 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "train.checkpoint_step: a proof does not go through a checkpoint");
    if (plan->settings.join.epochs > 1)
        return cd_fail(err, CDDP_E_CONFIG,
                       "join.epochs: a proof walks through one join context; prove one epoch");
    for (size_t i = 0; i < plan->when_count; i++)
        if (plan->whens[i].group != NULL)
            return cd_fail(err, CDDP_E_CONFIG,
                           "when[%zu].group: a proof is of one process group of the wrapper", i);
    for (size_t i = 0; i < plan->when_count; i++)
        if (plan->whens[i].ready != CDDP_PLAN_UNSET &&
            plan->whens[i].ready != CDDP_WHEN_READY_CHOSEN)
            return cd_fail(
                err, CDDP_E_CONFIG,
                "when[%zu].ready fixes the order of gradients, which is what a proof varies", i);
    return CDDP_OK;
}

static cddp_status find_units(prove_command *c, cddp_error *err)
{
    cd_replica *replica = NULL;
    const cd_replica_options options = {.plan = c->plan, .allocator = cddp_allocator_default()};
    CD_TRY(cd_replica_create(&options, &replica, err));
    const cd_model *model = replica->model;
    c->unit_count = model->unit_count;
    c->units = calloc(model->unit_count + 1, sizeof *c->units);
    for (size_t i = 0; c->units != NULL && i < model->unit_count; i++) {
        const size_t bytes = strlen(model->units[i].name) + 1;
        c->units[i] = malloc(bytes);
        if (c->units[i] != NULL) memcpy(c->units[i], model->units[i].name, bytes);
    }
    cd_replica_destroy(replica);
    return c->units != NULL ? CDDP_OK : cd_fail_memory(err, "the units of the model");
}

/* How many bits a pattern has: a sync flag per micro-step that is not the last of its step, and a
** bit per unit of the model, rank and step. Of those, the ones without an idle rank are proved. */
static cddp_status count_variants(prove_command *c, cddp_error *err)
{
    const cddp_plan *plan = c->plan;
    uint64_t places = plan->settings.train.steps * (plan->settings.train.micro_steps - 1);
    if (c->sync_places > places)
        return cd_fail(err, CDDP_E_ARG,
                       "--no-sync %" PRIu64 ": the scenario has %" PRIu64
                       " micro-steps that are not the last of their step",
                       c->sync_places, places);
    if (c->used_steps > plan->settings.train.steps)
        return cd_fail(err, CDDP_E_ARG,
                       "--used-sets %" PRIu64 ": the scenario has %" PRIu64 " step%s",
                       c->used_steps, plan->settings.train.steps,
                       cd_plural(plan->settings.train.steps));
    if (c->used_steps > 0) CD_TRY(find_units(c, err));
    if (c->used_steps > 0 && c->unit_count == 0)
        return cd_fail(err, CDDP_E_ARG,
                       "--used-sets: model '%s' has no units that could be left out",
                       plan->settings.model.name);
    const uint64_t bits = c->sync_places + c->used_steps * c->unit_count * plan->world.size;
    if (bits > PATTERN_BITS_MAX)
        return cd_fail(err, CDDP_E_LIMIT,
                       "that makes 2^%" PRIu64
                       " variants of the scenario; at most 2^%d are proved one by one",
                       bits, PATTERN_BITS_MAX);
    c->variant_count = UINT64_C(1) << bits;
    return CDDP_OK;
}

static void write_pattern(prove_command *c, uint64_t variant, size_t when, uint32_t world_size,
                          uint32_t micro_steps)
{
    cd_text *t = &c->pattern;
    cd_text_fini(t);
    cd_text_init(t, false);
    for (uint64_t i = 0; i < c->sync_places; i++, when++, variant >>= 1)
        cd_text_printf(t,
                       "when.%zu.steps=%" PRIu64 "\nwhen.%zu.micro_steps=%" PRIu64
                       "\nwhen.%zu.sync=%s\n",
                       when, i / (micro_steps - 1), when, i % (micro_steps - 1), when,
                       (variant & 1) != 0 ? "true" : "false");
    for (uint64_t step = 0; step < c->used_steps; step++)
        for (uint32_t rank = 0; rank < world_size; rank++, when++) {
            cd_text_printf(t,
                           "when.%zu.ranks=%" PRIu32 "\nwhen.%zu.steps=%" PRIu64 "\nwhen.%zu.uses=",
                           when, rank, when, step, when);
            for (size_t u = 0; u < c->unit_count; u++, variant >>= 1)
                cd_text_printf(t, "%s%s=%d", u > 0 ? "," : "", c->units[u], (variant & 1) == 0);
            cd_text_push(t, "\n");
        }
}

/* Some rank uses nothing: it has no loss to go backward from. */
static bool has_idle_rank(const prove_command *c, uint64_t variant, uint32_t world_size)
{
    const uint64_t nothing = (UINT64_C(1) << c->unit_count) - 1;
    variant >>= c->sync_places;
    for (uint64_t i = 0; i < c->used_steps * world_size; i++, variant >>= c->unit_count)
        if ((variant & nothing) == nothing) return true;
    return false;
}

/* ---- proving ---- */

static bool must_stop(void *context)
{
    const prove_command *c = context;
    return cd_interrupt_requested() ||
           (c->time_budget_ns != 0 && cd_os_now_ns() - c->began_ns > c->time_budget_ns);
}

/* By what the first orders took. */
static double seconds_needed(const prove_command *c, const cd_proof *proof)
{
    const double seconds = (double)(cd_os_now_ns() - c->began_ns) / 1e9;
    return seconds * proof->orders_estimate / (double)proof->orders_tried;
}

static void push_duration(cd_text *text, double seconds)
{
    if (seconds < 120)
        cd_text_printf(text, "about %.0f s", seconds);
    else if (seconds < 7200)
        cd_text_printf(text, "about %.0f minutes", seconds / 60);
    else
        cd_text_printf(text, "about %.3g hours", seconds / 3600);
}

/* Before a search that takes more than a moment: how much there is, how long that takes, and when
** it ends. */
static void announce(prove_command *c, const cd_proof *proof)
{
    const bool is_known = proof->orders_tried >= FIRST_ORDERS ||
                          cd_os_now_ns() - c->began_ns > (uint64_t)2 * 1000000000u;
    if (c->is_announced || proof->orders_all * proof->states_estimate < 1e6 || !is_known) return;
    c->is_announced = true;
    cd_text line = {0};
    cd_text_printf(
        &line, "%sprove: about %.3g schedules; %.6g orders of rank 0 could change a rebuilt layout",
        c->cli->progress ? "\r\033[K" : "", proof->estimate, proof->orders_all);
    if (proof->forms > 0) cd_text_printf(&line, ", %.6g forms of which are recorded", proof->forms);
    cd_text_printf(&line,
                   ", and about %.3g states are searched behind each. By the first ones it takes ",
                   proof->states_estimate);
    const double seconds = seconds_needed(c, proof);
    push_duration(&line, seconds);
    const double budget = (double)c->time_budget_ns / 1e9;
    if (c->time_budget_ns == 0)
        cd_text_printf(&line, "; at most %" PRIu64 " orders are searched (--budget)\n",
                       c->orders_max);
    else if (seconds > 1.5 * budget)
        cd_text_printf(&line, ": this will not end as a proof within %s (--budget)\n", c->budget);
    else
        cd_text_printf(&line, "; it ends after %s at the latest (--budget)\n", c->budget);
    fputs(cd_text_get(&line), stderr);
    cd_text_fini(&line);
}

static void show_progress(void *context, const cd_proof *proof)
{
    prove_command *c = context;
    const uint64_t now = cd_os_now_ns();
    announce(c, proof);
    if (c->shown_ns == 0 && !c->cli->progress) c->shown_ns = now;
    if (now - c->shown_ns < (c->cli->progress ? 100000000u : REPORT_NS)) return;
    c->shown_ns = now;
    cd_text line;
    const double seconds = (double)(now - c->began_ns) / 1e9;
    cd_text_init(&line, false);
    cd_text_printf(&line, "%.1f s: ", seconds);
    if (c->variant_count > 1)
        cd_text_printf(&line, "variant %" PRIu64 " of %" PRIu64 ", ", c->variants + 1,
                       c->variant_count);
    cd_text_printf(&line, "%" PRIu64 " of about %.0f orders of rank 0", proof->orders_tried,
                   proof->orders_estimate);
    cd_progress_put_pace(&line, &(cd_pace){.done = (double)proof->orders_tried,
                                           .total = proof->orders_estimate,
                                           .seconds = seconds,
                                           .limit_s = (double)c->time_budget_ns / 1e9});
    cd_text_printf(&line, ", %" PRIu64 " states", c->proof.states + proof->states);
    if (c->cli->progress) {
        cd_progress_put(c->cli, &line);
    } else {
        fprintf(stderr, "%s\n", cd_text_get(&line));
        cd_text_fini(&line);
    }
}

/* Adds what a variant took; keeps its end when that is worse. */
static void add_proof(prove_command *c, const cd_proof *one)
{
    cd_proof *all = &c->proof;
    const cd_proof sum = *all;
    const bool is_first = c->variants++ == 0;
    if (is_first || (one->end != CD_PROOF_HOLDS && all->end == CD_PROOF_HOLDS) ||
        one->end == CD_PROOF_REFUTED)
        *all = *one;
    if (!is_first) {
        all->states = sum.states + one->states;
        all->events = sum.events + one->events;
        all->rank_runs = sum.rank_runs + one->rank_runs;
        all->world_runs = sum.world_runs + one->world_runs;
        all->orders_tried = sum.orders_tried + one->orders_tried;
        all->layouts = sum.layouts + one->layouts;
        all->walked = sum.walked + one->walked;
        all->forms = sum.forms + one->forms;
        all->drawn = sum.drawn + one->drawn;
        if (all->any_from > 0 && (one->any_from == 0 || one->any_from > all->any_from)) {
            all->any_from = one->any_from;
            memcpy(all->any_missing, one->any_missing, sizeof all->any_missing);
        }
    }
    c->schedules += one->schedules;
}

static cddp_status prove_variant(prove_command *c, cddp_error *err)
{
    cd_proof one;
    CD_TRY(check_plan(c, err));
    /* A proof is about correct training, not about the expectation of the scenario. */
    const cddp_text_list exercised =
        c->calls_only ? (cddp_text_list){NULL, 0} : c->plan->expect.exercised;
    c->plan->expect = (cddp_plan_expect){.verdict = CDDP_EXPECT_VERIFIED, .exercised = exercised};
    const cd_prove_options options = {.plan = c->plan,
                                      .registry = c->cli->registry,
                                      .orders_max = c->orders_max,
                                      .probes = 8,
                                      .jobs = (uint32_t)c->jobs,
                                      .layouts = c->layouts,
                                      .stop = must_stop,
                                      .progress = show_progress,
                                      .context = c};
    CD_TRY(cd_prove(&options, &one, err));
    add_proof(c, &one);
    return CDDP_OK;
}

static cddp_status prove_all(prove_command *c, cddp_error *err)
{
    CD_TRY(read_plan(c, err));
    CD_TRY(count_variants(c, err));
    cd_interrupt_begin();
    c->began_ns = cd_os_now_ns();
    const size_t when = c->plan->when_count;
    const uint32_t world_size = (uint32_t)c->plan->world.size,
                   micro_steps = (uint32_t)c->plan->settings.train.micro_steps;
    const uint64_t patterns = c->variant_count;
    for (uint64_t v = 0; v < patterns; v++) c->variant_count -= has_idle_rank(c, v, world_size);
    for (uint64_t v = 0; v < patterns; v++) {
        if (has_idle_rank(c, v, world_size)) continue;
        if (patterns > 1) {
            write_pattern(c, v, when, world_size, micro_steps);
            CD_TRY(read_plan(c, err));
        }
        CD_TRY(prove_variant(c, err));
        if (c->proof.end == CD_PROOF_REFUTED || c->proof.end == CD_PROOF_STOPPED) break;
    }
    if (c->cli->progress && c->shown_ns != 0) cd_progress_wipe();
    return CDDP_OK;
}

/* ---- the report ---- */

static bool is_one_schedule(const prove_command *c)
{
    return c->variants == 1 ? strcmp(c->proof.schedules_exactly, "1") == 0 : c->schedules == 1.0;
}

/* "12 schedules" */
static void put_count(cd_text *text, const prove_command *c)
{
    if (c->variants == 1)
        cd_text_push(text, c->proof.schedules_exactly);
    else if (isinf(c->schedules))
        cd_text_push(text, "more than 1e308");
    else
        cd_text_printf(text, "%.15g", c->schedules);
    cd_text_push(text, is_one_schedule(c) ? " schedule" : " schedules");
}

static void put_sizes(cd_text *text, const uint32_t *sizes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        cd_text_printf(text, "%s%" PRIu32, i == 0 ? "" : i + 1 == count ? " and " : ", ", sizes[i]);
}

/* See Note [Numbers of ranks] */
static void put_any_ranks(cd_text *text, const cd_proof *p)
{
    cd_text_push(text, "  any ranks   ");
    if (p->any_from == 0) {
        cd_text_push(text, "not shown: ");
        cd_text_wrap(text, p->any_missing, 14, 110);
        return;
    }
    cd_text_push(text, "all ranks issue one sequence");
    if (p->world_count > 0) {
        cd_text_push(text, "; it is the same in worlds of ");
        put_sizes(text, p->worlds, p->world_count);
        cd_text_push(text, " ranks");
    }
    if (p->large_count > 0) {
        cd_text_push(text, p->world_count > 0 ? ", and of ranks alone in worlds of\n              "
                                              : "; it is that of ranks alone in worlds of ");
        put_sizes(text, p->large, p->large_count);
    }
    cd_text_printf(text,
                   ": for any number of ranks from %" PRIu32 " on all issue the same collectives\n",
                   p->any_from);
}

static void put_proved(cd_text *text, const prove_command *c)
{
    const cd_proof *p = &c->proof;
    const bool is_sharded = cd_zero_shards_model(c->plan);
    if (is_sharded)
        cd_text_printf(text,
                       "  collectives every one of %" PRIu32 " ranks, alone, issues the same %zu "
                       "collectives; units are reduced in the\n"
                       "              order of backward, and some of them gather what is shown\n",
                       p->rank_count, p->items);
    else
        cd_text_printf(text,
                       "  collectives on every one of %" PRIu32 " ranks the gradients of %" PRIu32
                       " backwards, up to %" PRIu32
                       " at once, may become ready in any\n              "
                       "order: the rank issues the same %zu collectives\n",
                       p->rank_count, p->window_count, p->windows_max, p->items);
    put_any_ranks(text, p);
    if (p->values) {
        cd_text_printf(text, "  values      for every gradient value and %s ",
                       is_one_schedule(c) ? "the" : "every one of the");
        put_count(text, c);
        const cddp_plan_join *join = &c->plan->settings.join;
        cd_text_printf(text, "\n              %s exactly (1/",
                       is_sharded ? "the shards' gradients are" : "the reducer writes");
        if (join->enable && !join->divide_by_initial_world_size)
            cd_text_push(text, "active ranks");
        else
            cd_text_printf(text, "%" PRIu32, p->rank_count);
        cd_text_push(text, ")·Σ of the declared contributions\n");
    } else {
        cd_text_push(text, "  schedules   ");
        put_count(text, c);
        cd_text_push(text, "; contents were not judged (--calls)\n");
    }
}

static void put_effort(cd_text *text, const prove_command *c)
{
    const cd_proof *p = &c->proof;
    cd_text_printf(text,
                   "  search      %" PRIu64 " state%s of one rank, %" PRIu64 " step%s between them",
                   p->states, cd_plural(p->states), p->events, cd_plural(p->events));
    if (p->orders_tried > 1)
        cd_text_printf(text,
                       "; %" PRIu64 " orders of rank 0 that could change a rebuilt layout, %" PRIu64
                       " layouts",
                       p->orders_tried, p->layouts);
    if (p->walked > 0)
        cd_text_printf(text,
                       ",\n              %" PRIu64 " of them walked in one order each, since a "
                       "layout of the same form was searched",
                       p->walked);
    if (c->variant_count > 1)
        cd_text_printf(text, "; %" PRIu64 " of %" PRIu64 " variants", c->variants,
                       c->variant_count);
    if (p->shared_ranks > 0)
        cd_text_printf(text,
                       ", which stand%s for %" PRIu32
                       " more rank%s with the same program, collectives and results",
                       p->states == 1 ? "s" : "", p->shared_ranks, p->shared_ranks == 1 ? "" : "s");
    cd_text_push(text, "\n");
    if (p->probes == 0) return;
    char estimate[32] = "more than 1e308";
    if (!isinf(p->estimate)) cd_real_format(estimate, sizeof estimate, "about %.4g", p->estimate);
    cd_text_printf(text,
                   "  estimate    before the search: %s schedules; %.4g states, for each "
                   "order that matters anew (%" PRIu32 " random descents",
                   estimate, p->states_estimate * (p->rank_count - p->shared_ranks) / p->rank_count,
                   p->probes);
    if (p->probe_spread > 0)
        cd_text_printf(text, ", which differ by %" PRIu32 " %%", p->probe_spread);
    cd_text_push(text, ")\n");
}

/* The stand-in for the other ranks, whatever their number. See Note [Numbers of ranks] */
static void put_inputs(cd_text *text, const cd_proof *p)
{
    cd_text sequences;
    cd_text_init(&sequences, false);
    cd_text_printf(&sequences, "any ranks: further ranks do as rank%s ",
                   p->model_count == 1 ? "" : "s");
    put_sizes(&sequences, p->models, p->model_count);
    cd_text_printf(
        &sequences,
        " here; a rank knows of the others by results alone; of its %zu collectives %" PRIu32
        " bring the runtime's own numbers",
        p->items, p->steering);
    if (p->counting > 0)
        cd_text_printf(
            &sequences,
            ", %" PRIu32
            " of which count ranks or name one: nothing that is sent depends on more than whether "
            "none, some or all are counted",
            p->counting);
    if (p->has_choice) cd_text_push(&sequences, " (tried with small, large and drawn numbers)");
    if (p->sharing > 0)
        cd_text_printf(&sequences, "; %" PRIu32 " bring%s a share of each rank", p->sharing,
                       p->sharing == 1 ? "s" : "");
    cd_text_printf(
        &sequences,
        "; %" PRIu64
        " runs of one rank in a larger world issued its collectives, in the engine's order%s",
        p->projected, p->projected_in_every_order ? "; one was searched there in every order" : "");
    cd_text_push(text, "              ");
    cd_text_wrap(text, cd_text_get(&sequences), 14, 118);
    cd_text_fini(&sequences);
}

static void put_assumptions(cd_text *text, const prove_command *c)
{
    const cd_proof *p = &c->proof;
    cd_text_printf(text,
                   "  assumes     what a rank does follows from its program, the order of its "
                   "gradients and the results of its "
                   "collectives;\n"
                   "              collectives of a group take place in order, and their "
                   "results depend on what is sent alone;\n"
                   "              no faults; the real %s ran, and one training of ",
                   cd_zero_shards_model(c->plan) ? "units" : "reducer");
    cd_text_printf(text, "%" PRIu64 " step%s", c->plan->settings.train.steps,
                   cd_plural(c->plan->settings.train.steps));
    cd_text_push(text, p->values ? ", with gradients as exact symbols;\n" : ", with sizes only;\n");
    cd_text_push(
        text,
        "              not shown: that the optimizer consumes what the reducer writes, that it "
        "steps, and how; that ranks\n"
        "              begin with the plan's values and pass them from step to step; how "
        "the model computes gradients;\n"
        "              how micro-steps make windows. `run` judges these, in one schedule\n");
    if (p->forms > 0 && p->end == CD_PROOF_HOLDS)
        cd_text_printf(
            text,
            "              the runtime treats parameters of one size and dtype alike: of the %.6g "
            "orders of rank 0 that could\n              change a rebuilt layout, one of each of "
            "%.6g forms was recorded, and searched behind on every rank;\n              %" PRIu64
            " drawn ones were recorded besides (--layouts alike records all, --layouts all "
            "searches "
            "behind all)\n",
            p->orders_all, p->forms, p->drawn);
    else if (p->walked > 0)
        cd_text_push(
            text,
            "              the runtime treats parameters of one size and dtype alike: where two "
            "rebuilt layouts differ only in\n              which of them stands where, one was "
            "searched in every order, and the other walked in one\n              (--layouts all "
            "searches both)\n");
    if (p->any_from > 0) put_inputs(text, p);
}

static void put_call(cd_text *text, const char *who, bool has, const cd_call *call)
{
    cd_text_printf(text, "              %s ", who);
    if (has)
        cd_call_print(text, call);
    else
        cd_text_push(text, "nothing more");
    cd_text_push(text, "\n");
}

static void put_refuted(cd_text *text, const prove_command *c)
{
    const cd_proof *p = &c->proof;
    const cd_rank_proof *w = &p->parting;
    if (w->is_refuted) {
        uint32_t deviations = 0;
        for (uint32_t k = 0; k < w->counterexample.digit_count; k++)
            deviations += w->counterexample.digits[k] != 0;
        cd_text_printf(text,
                       "  two ranks   rank %" PRIu32 ", with %" PRIu32
                       " gradient%s out of the engine's order in backward %" PRIu32
                       " (from 0), against any other rank%s\n",
                       p->parting_rank, deviations, deviations == 1 ? "" : "s",
                       w->counterexample.window, w->is_shortest ? "; no fewer do" : "");
        if (w->message[0] != '\0') {
            cd_text_push(text, "  ends with   ");
            cd_text_wrap(text, w->message, 14, 110);
        } else {
            const bool same_shape =
                w->has_said && w->has_expected && cd_call_fits(&w->said, &w->expected);
            cd_text_printf(text, "  collective  %zu, counted from 0\n", w->call);
            put_call(text, "this rank:", w->has_said, &w->said);
            put_call(text, "others:   ", w->has_expected, &w->expected);
            if (same_shape)
                cd_text_push(text, "              of the same shape, with other content\n");
        }
    }
    if (p->refuted_size > 0)
        cd_text_printf(text,
                       "  size        it is proved for %" PRIu32
                       " ranks, and not in a world of %" PRIu32 "\n",
                       p->rank_count, p->refuted_size);
    if (p->culprit[0] != '\0') {
        cd_text_push(text, w->is_refuted ? "  in a run    " : "  found       ");
        cd_text_wrap(text, p->culprit, 14, 110);
    }
    if (p->has_schedule) {
        cd_text lines;
        cd_text_init(&lines, false);
        cd_text_printf(&lines, "%s%s", cd_text_get(&c->overrides), cd_text_get(&c->pattern));
        if (p->refuted_size > 0)
            cd_text_printf(&lines, "world.size=%" PRIu32 "\n", p->refuted_size);
        cd_command_line line = {.source = c->scenario,
                                .overrides = cd_text_get(&lines),
                                .schedule = p->schedule,
                                .plugin = cd_overrides_plugin,
                                .context = c->cli->args};
        cd_text_push(text, "  replay      ");
        cd_command_line_print(text, &line);
        cd_text_push(text, "\n  shrink      ");
        line.command = "shrink";
        cd_command_line_print(text, &line);
        cd_text_push(text, "\n");
        cd_text_fini(&lines);
    }
}

/* What a proof of the whole would show, part by part. */
static void fill_card(cd_card *card, const prove_command *c, const char *verdict)
{
    const cd_proof *p = &c->proof;
    const bool holds = p->end == CD_PROOF_HOLDS, is_refuted = p->end == CD_PROOF_REFUTED;
    const cd_card_state state = holds ? CD_CARD_PASSED : is_refuted ? CD_CARD_FAILED : CD_CARD_OPEN;
    const char *found = p->culprit[0] != '\0' ? p->culprit : p->parting.message;
    const char *open = p->end == CD_PROOF_BOUNDED ? p->bound : "the budget ended the search";
    cd_card_init(card, "prove", c->scenario, true);
    cd_card_add_line(card,
                     &(cd_card_line){.state = state,
                                     .name = "collectives",
                                     .title = "every order of gradients issues the same "
                                              "collectives, with the averages of all values",
                                     .message = is_refuted ? found[0] != '\0' ? found : verdict
                                                : holds    ? ""
                                                           : open});
    if (holds && c->calls_only)
        cd_card_add_line(card, &(cd_card_line){.state = CD_CARD_SKIPPED,
                                               .name = "values",
                                               .title = "averages are exact for all values",
                                               .message = "contents were not judged (--calls)"});
    if (holds)
        cd_card_add_line(card,
                         &(cd_card_line){.state =
                                             p->any_from > 0 ? CD_CARD_PASSED : CD_CARD_SKIPPED,
                                         .name = "any number of ranks",
                                         .title = "it is so for any number of ranks from some on",
                                         .message = p->any_from > 0 ? "" : p->any_missing});
    cd_card_add_number(card, "ranks", p->rank_count);
    cd_card_add_text(card, "schedules",
                     c->variants == 1 ? p->schedules_exactly : "those of all variants");
    cd_card_add_number(card, "variants", (double)c->variants);
    cd_card_add_number(card, "states", (double)p->states);
    cd_card_add_number(card, "orders_tried", (double)p->orders_tried);
    cd_card_add_number(card, "layouts", (double)p->layouts);
    if (p->any_from > 0) cd_card_add_number(card, "any_number_of_ranks_from", p->any_from);
    if (p->has_schedule) cd_card_add_text(card, "schedule", p->schedule);
}

/* The run that refutes it, once more. */
static int send(prove_command *c, cd_text *text, const char *verdict, int exit_code)
{
    const cd_proof *p = &c->proof;
    cd_card card;
    cd_text lines;
    cd_text_init(&lines, false);
    cd_text_printf(&lines, "%s%s", cd_text_get(&c->overrides), cd_text_get(&c->pattern));
    if (p->refuted_size > 0) cd_text_printf(&lines, "world.size=%" PRIu32 "\n", p->refuted_size);
    const cd_card_run run = {c->scenario, cd_text_get(&lines), p->schedule, true};
    const bool is_shown = p->end == CD_PROOF_REFUTED && p->has_schedule;
    fill_card(&card, c, verdict);
    exit_code = cd_report_card_send(c->cli, &c->target, &card, text, verdict, exit_code,
                                    is_shown ? &run : NULL);
    cd_text_fini(&lines);
    return exit_code;
}

static int report(prove_command *c)
{
    static const struct {
        const char *calls;
        cd_style style;
        int exit_code;
    } ends[] = {[CD_PROOF_HOLDS] = {"proved", CD_STYLE_GREEN, CD_EXIT_VERIFIED},
                [CD_PROOF_REFUTED] = {"refuted", CD_STYLE_RED, CD_EXIT_FINDINGS},
                [CD_PROOF_BOUNDED] = {"bounded", CD_STYLE_YELLOW, CD_EXIT_INCONCLUSIVE},
                [CD_PROOF_STOPPED] = {"inconclusive", CD_STYLE_YELLOW, CD_EXIT_INCONCLUSIVE}};
    const cd_proof *p = &c->proof;
    cd_text text;
    cd_report_card_begin(c->cli, &c->target, &text);
    cd_text_style(&text, ends[p->end].style, "%s", ends[p->end].calls);
    cd_text_printf(&text, "  %s: %s\n", c->scenario, c->plan->title != NULL ? c->plan->title : "");
    switch (p->end) {
    case CD_PROOF_HOLDS:
        put_proved(&text, c);
        break;
    case CD_PROOF_REFUTED:
        put_refuted(&text, c);
        break;
    case CD_PROOF_BOUNDED:
        cd_text_printf(&text,
                       "  not proved  nothing was refuted, but not everything was tried: %s\n",
                       p->bound);
        break;
    case CD_PROOF_STOPPED:
        if (cd_interrupt_requested())
            cd_text_push(&text, "  not proved  interrupted; nothing was refuted so far\n");
        else
            cd_text_printf(
                &text, "  not proved  the budget of %s is used up; nothing was refuted so far\n",
                c->budget);
        if (p->orders_all > 1)
            cd_text_printf(&text,
                           "  covered     %" PRIu64
                           " of %.15g orders of rank 0 that could change a "
                           "rebuilt layout\n",
                           p->orders_tried, p->orders_all);
        break;
    }
    put_effort(&text, c);
    if (p->end != CD_PROOF_REFUTED) put_assumptions(&text, c);
    return send(c, &text, ends[p->end].calls, ends[p->end].exit_code);
}

int cd_command_prove(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    prove_command *c = calloc(1, sizeof *c);
    if (c == NULL) {
        (void)cd_fail_memory(&err, "a proof");
        return cd_cli_fail(cli, &err);
    }
    c->cli = cli;
    cd_text_init(&c->overrides, false);
    cd_text_init(&c->pattern, false);
    cddp_status status = read_arguments(c, &err);
    if (status == CDDP_OK) status = prove_all(c, &err);
    const int exit_code = status == CDDP_OK ? report(c) : cd_cli_fail(cli, &err);
    cddp_plan_destroy(c->plan);
    for (size_t i = 0; i < c->unit_count; i++) free(c->units[i]);
    free(c->units);
    cd_text_fini(&c->overrides);
    cd_text_fini(&c->pattern);
    free(c);
    return exit_code;
}
