/* SPDX-License-Identifier: Apache-2.0 */
/* backend-conformance: the battery of core/comm over any backend that can be opened here, and its
** report card. */
#include "cddp/cddp.h"
#include "core/base/format.h"
#include "verify/worlds/compose.h"
#include "cli/interrupt.h"
#include "cli/leave.h"
#include "cli/plugins.h"
#include "cli/progress.h"
#include "cli/report_card.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/comm/conformance.h"
#include "core/trace/rank_end.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HUGE_BYTES (INT64_C(2200) * 1024 * 1024)
#define RANKS_MAX 4096 /* as world.size of a scenario */
#define LIMIT_S 1800

/* One line of the card: operation and dtype; reductions are counted together. */
typedef struct line {
    uint32_t rows, cases, failed_rows, refused_rows;
    uint32_t first_rank;
    char first[320]; /* failure of the least rank that saw one */
} line;

/* What a rank's operation was when its process ended: in memory that it shares with this one. */
typedef struct place {
    bool is_known;
    cd_conformance_row row;
    int64_t numel;
} place;

typedef struct card {
    cddp_trace_sink sink; /* rows come as events, from whatever process the rank is */
    const cd_cli *cli;
    const char *backend;
    const cddp_run_options *run;
    line lines[CDDP_OP_COUNT][CDDP_DTYPE_COUNT];
    cd_conformance_options options;
    place *places;           /* (ranks) */
    uint64_t sequence_start; /* of the groups */
    uint64_t limit_ns;
    cd_report_target target;
    cd_progress progress; /* in rows of rank 0 */
    size_t row_count;
} card;

/* ---- in the ranks ---- */

typedef struct reporter {
    const cddp_trace_sink *sink;
    cddp_rank *rank;
    place *place;
} reporter;

static void note_place(void *context, const cd_conformance_row *row, int64_t numel)
{
    const reporter *t = context;
    *t->place = (place){true, *row, numel};
}

/* A row as an event: a compare whose fields are the row's numbers. */
static void report_row(void *context, const cd_conformance_row *row)
{
    const reporter *t = context;
    cddp_event event = {.rank = t->rank->rank, .kind = CDDP_EV_compare, .text = row->first_failure};
    event.as.compare = (cddp_event_compare){.link = row->op,
                                            .param = row->dtype,
                                            .element = row->reduce_op,
                                            .ulps = row->case_count,
                                            .bad = row->failed_count,
                                            .exact = row->undeclared};
    t->sink->event(t->sink->self, &event);
    /* what is known now is not lost with a process that ends in the next row */
    if (t->sink->flush != NULL) (void)t->sink->flush(t->sink->self, NULL);
}

static cddp_status run_battery(const card *c, cddp_rank *rank, const cddp_rank_binding *binding,
                               cddp_error *err)
{
    uint32_t *members = cd_allocate_array(NULL, rank->world_size, sizeof *members);
    if (members == NULL)
        return cd_fail_memory(err, "a group of %" PRIu32 " ranks", rank->world_size);
    for (uint32_t i = 0; i < rank->world_size; i++) members[i] = i;
    reporter t = {binding->sink != NULL ? binding->sink : &c->sink, rank, &c->places[rank->rank]};
    cddp_group *group = NULL;
    cddp_group_options options = {.size = sizeof options,
                                  .backend =
                                      binding->backend != NULL ? binding->backend : c->run->backend,
                                  .rank = rank,
                                  .sequence_start = c->sequence_start,
                                  .spec = {.size = sizeof options.spec,
                                           .name = "conformance",
                                           .group_rank = rank->rank,
                                           .group_size = rank->world_size,
                                           .members = members}};
    cd_conformance_options battery = c->options;
    battery.context = &t;
    battery.row = report_row;
    battery.enter = note_place;
    cddp_status status = CDDP_OK;
    CD_TRY_OUT(cddp_group_create(&options, &group, err));
    CD_TRY_OUT(cd_conformance_run(group, &battery, err));
    c->places[rank->rank].is_known = false;
    if (!options.backend->capabilities.guards || rank->world_size < 2) goto out;
    cddp_group_destroy(group);
    group = NULL;
    options.spec.name = "conformance/guard";
    options.spec.options = "guard=1";
    CD_TRY_OUT(cddp_group_create(&options, &group, err));
    CD_TRY_OUT(cd_conformance_run_guard(group, &battery, err));
out:
    cddp_group_destroy(group);
    cd_release(NULL, members, rank->world_size * sizeof *members);
    return status;
}

static cddp_status rank_program(cddp_rank *rank, void *argument, cddp_error *err)
{
    const card *c = argument;
    cddp_rank_binding binding = {.size = sizeof binding};
    if (c->run->bind != NULL) CD_TRY(c->run->bind(c->run->bind_context, rank, &binding, err));
    cddp_status status = run_battery(c, rank, &binding, err);
    if (c->run->bind != NULL) c->run->unbind(c->run->bind_context, rank, &binding);
    return status;
}

/* ---- here ---- */

static void show_progress(card *c, const cddp_event_compare *row)
{
    char words[64];
    snprintf(words, sizeof words, "%s %s", cddp_op_name((cddp_op)row->link),
             cddp_dtype_name((cddp_dtype)row->param));
    cd_progress_show(&c->progress, ++c->row_count, words);
}

static void take_row(void *self, const cddp_event *event)
{
    card *c = self;
    const cddp_event_compare *row = &event->as.compare;
    if (event->kind != CDDP_EV_compare || row->link < 0 || row->link >= CDDP_OP_COUNT ||
        row->param < 0 || row->param >= CDDP_DTYPE_COUNT)
        return;
    line *l = &c->lines[row->link][row->param];
    if (event->rank == 0) {
        show_progress(c, row);
        l->rows++;
        l->cases += (uint32_t)row->ulps;
        l->refused_rows += row->exact != 0;
    }
    if (row->bad == 0) return;
    if (event->rank == 0 || l->failed_rows == 0) l->failed_rows++;
    bool reduces = row->element != CDDP_RED_COUNT;
    /* Of the least rank, so that the card does not depend on whose event came first. */
    if (l->first[0] != '\0' && event->rank >= l->first_rank) return;
    l->first_rank = event->rank;
    snprintf(l->first, sizeof l->first, "%s%s%s",
             reduces ? cddp_red_op_name((cddp_red_op)row->element) : "", reduces ? ": " : "",
             event->text != NULL ? event->text : "");
}

/* "; it was in allreduce (sum) of 17 f32" */
static void print_place(const place *p, char *text, size_t bytes)
{
    const bool is_known = p->is_known && p->row.op < CDDP_OP_COUNT &&
                          p->row.dtype < CDDP_DTYPE_COUNT && p->row.reduce_op <= CDDP_RED_COUNT;
    const bool reduces = is_known && p->row.reduce_op != CDDP_RED_COUNT;
    text[0] = '\0';
    if (is_known)
        snprintf(text, bytes, "; it was in %s%s%s%s of %" PRId64 " %s", cddp_op_name(p->row.op),
                 reduces ? " (" : "", reduces ? cddp_red_op_name(p->row.reduce_op) : "",
                 reduces ? ")" : "", p->numel, cddp_dtype_name(p->row.dtype));
}

static void put_rank_failures(cd_text *text, const card *c, const cddp_rank_result *results,
                              uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        char words[CDDP_ERROR_MESSAGE_BYTES + 128], where[120];
        if (results[r].end == CDDP_RANK_RETURNED && results[r].status == CDDP_OK) continue;
        print_place(&c->places[r], where, sizeof where);
        /* an error that is returned names the operation itself */
        if (results[r].end == CDDP_RANK_RETURNED && !cd_interrupt_is_late()) where[0] = '\0';
        if (cd_interrupt_is_late())
            cd_real_format(words, sizeof words, "was not done after %.3g s%s",
                           (double)c->limit_ns / 1e9, where);
        else
            snprintf(words, sizeof words, "%s%s",
                     results[r].error.message[0] != '\0' ? results[r].error.message
                                                         : "ended without a word",
                     where);
        cd_text_printf(text, "  rank %" PRIu32 "    ", r);
        cd_text_wrap(text, words, 12, 110);
    }
}

/* A rank that had no memory says nothing about its backend, nor do those that then waited for it.
** NULL: all had enough. */
static const cddp_rank_result *find_starved(const cddp_rank_result *results, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        const bool has_said =
            results[r].end == CDDP_RANK_RETURNED || results[r].end == CDDP_RANK_CRASHED;
        if (has_said && results[r].status == CDDP_E_NOMEM) return &results[r];
    }
    return NULL;
}

/* It was killed, and nobody saw by which signal. A crash is reported by the rank's MPI; kill -9 is
** not. */
static bool is_unseen_death(const cddp_rank_result *result)
{
    return result->end == CDDP_RANK_KILLED && result->detail == 0;
}

/* Nor does a rank that somebody ended. An MPI rank catches SIGTERM and says so. NULL: there is
** none. */
static const cddp_rank_result *find_ended_outside(const cddp_rank_result *results, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        const bool is_interrupted = results[r].end == CDDP_RANK_RETURNED &&
                                    results[r].status == CDDP_E_ABORTED &&
                                    strcmp(results[r].error.message, "interrupted") == 0;
        if (is_interrupted || is_unseen_death(&results[r]) ||
            cd_rank_end_is_from_outside(&results[r]))
            return &results[r];
    }
    return NULL;
}

/* Averages of these dtypes are not compared over so many ranks. */
static void put_averages(cd_text *text, uint32_t ranks)
{
    static const cddp_dtype dtypes[] = {CDDP_F64, CDDP_F32, CDDP_F16, CDDP_BF16, CDDP_C64};
    bool is_first = true;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (cd_conformance_judges_average(dtypes[i], ranks)) continue;
        cd_text_printf(text, "%s%s", is_first ? "  not run   averages of " : ", ",
                       cddp_dtype_name(dtypes[i]));
        is_first = false;
    }
    if (!is_first)
        cd_text_printf(text,
                       ": over %" PRIu32
                       " ranks their bound is wider than what a missing rank changes\n",
                       ranks);
}

/* Operations, and dtypes of reductions, that every row found refused, as they should be. */
static void put_undeclared(cd_text *text, const card *c)
{
    cd_text list;
    cd_text_init(&list, false);
    for (uint32_t op = 0; op < CDDP_OP_COUNT; op++) {
        uint32_t refused = 0, made = 0;
        for (uint32_t d = 0; d < CDDP_DTYPE_COUNT; d++) {
            refused +=
                c->lines[op][d].rows > 0 && c->lines[op][d].refused_rows == c->lines[op][d].rows;
            made += c->lines[op][d].rows > 0;
        }
        if (refused == 0) continue;
        cd_text_printf(&list, "%s%s", list.length > 0 ? "; " : "", cddp_op_name((cddp_op)op));
        for (uint32_t d = 0, said = 0; d < CDDP_DTYPE_COUNT && refused < made; d++)
            if (c->lines[op][d].rows > 0 && c->lines[op][d].refused_rows == c->lines[op][d].rows)
                cd_text_printf(&list, "%s%s", said++ > 0 ? ", " : " of ",
                               cddp_dtype_name((cddp_dtype)d));
    }
    if (list.length > 0) {
        cd_text_push(text, "  not run   what its capabilities leave out: ");
        cd_text_wrap(text, cd_text_get(&list), 12, 110);
    }
    cd_text_fini(&list);
}

/* What a card does not speak of. */
static void put_not_run(cd_text *text, const card *c, uint32_t ranks)
{
    put_undeclared(text, c);
    put_averages(text, ranks);
    if (!c->options.thorough)
        cd_text_push(text,
                     "  not run   more than 1021 elements, but for sums and averages of f32 (to "
                     "16385): --thorough runs them\n");
    if (c->options.huge_bytes == 0)
        cd_text_push(text, "  not run   a tensor of more than 2 GiB: --huge runs it\n");
    if (c->sequence_start == 0)
        cd_text_push(text,
                     "  not run   counters beyond 32 bits: --counters 4294967290 runs them\n");
    const cddp_backend *backend = cddp_registry_find_backend(c->cli->registry, c->backend);
    if (backend != NULL && !backend->capabilities.guards)
        cd_text_push(text, "  not run   ranks that disagree: the backend declares no guard\n");
}

static void add_rank(cd_card *to, const card *c, const cddp_rank_result *result, uint32_t rank)
{
    char name[24], words[CDDP_ERROR_MESSAGE_BYTES + 128], where[120];
    if (result->end == CDDP_RANK_RETURNED && result->status == CDDP_OK) return;
    print_place(&c->places[rank], where, sizeof where);
    snprintf(words, sizeof words, "%s%s",
             cd_interrupt_is_late()             ? "was not done in time"
             : result->error.message[0] != '\0' ? result->error.message
                                                : "ended without a message",
             where);
    snprintf(name, sizeof name, "rank %" PRIu32, rank);
    cd_card_add_line(to, &(cd_card_line){.state = CD_CARD_FAILED,
                                         .name = name,
                                         .title = "the rank runs the battery to its end",
                                         .message = words});
}

static void fill_card(cd_card *to, const card *c, const cddp_rank_result *results, uint32_t ranks,
                      bool was_interrupted)
{
    cd_text not_run;
    cd_card_init(to, "backend-conformance", c->backend, false);
    for (int op = 0; op < CDDP_OP_COUNT; op++)
        for (int dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
            const line *l = &c->lines[op][dtype];
            char name[64];
            if (l->rows == 0 && l->failed_rows == 0) continue;
            const bool is_undeclared = l->refused_rows == l->rows && l->failed_rows == 0;
            snprintf(name, sizeof name, "%s %s", cddp_op_name((cddp_op)op),
                     cddp_dtype_name((cddp_dtype)dtype));
            cd_card_add_line(to, &(cd_card_line){.state = l->failed_rows > 0 ? CD_CARD_FAILED
                                                          : is_undeclared    ? CD_CARD_SKIPPED
                                                                             : CD_CARD_PASSED,
                                                 .name = name,
                                                 .title = "results, inputs and the memory around "
                                                          "them are exact",
                                                 .message = is_undeclared
                                                                ? "its capabilities leave it out"
                                                                : l->first,
                                                 .case_count = l->cases});
        }
    for (uint32_t r = 0; r < ranks && !was_interrupted; r++) add_rank(to, c, &results[r], r);
    if (was_interrupted)
        cd_card_add_line(to, &(cd_card_line){.state = CD_CARD_OPEN,
                                             .name = "end",
                                             .title = "the battery is run to its end",
                                             .message = "interrupted"});
    cd_text_init(&not_run, false);
    put_not_run(&not_run, c, ranks);
    cd_card_add_number(to, "ranks", ranks);
    cd_card_add_text(to, "not_run", cd_text_get(&not_run));
    cd_text_fini(&not_run);
}

static int send(const card *c, cd_text *text, const cddp_rank_result *results, uint32_t ranks,
                int exit_code)
{
    static const char *const verdicts[] = {[CD_EXIT_VERIFIED] = "conforms",
                                           [CD_EXIT_FINDINGS] = "does not conform",
                                           [CD_EXIT_INCONCLUSIVE] = "inconclusive"};
    cd_card whole;
    fill_card(&whole, c, results, ranks, exit_code == CD_EXIT_INCONCLUSIVE);
    return cd_report_card_send((cd_cli *)(uintptr_t)c->cli, &c->target, &whole, text,
                               verdicts[exit_code], exit_code, NULL);
}

/* A row that failed is a finding, whatever came later. */
static bool has_failed(const card *c)
{
    for (int op = 0; op < CDDP_OP_COUNT; op++)
        for (int dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++)
            if (c->lines[op][dtype].failed_rows > 0) return true;
    return false;
}

static int report(const card *c, const cddp_rank_result *results, uint32_t ranks)
{
    uint32_t failed = 0, cases = 0, lines = 0;
    bool all_returned = true, verbose = cd_args_has(c->cli->args, CD_OPTION_verbose);
    const cddp_rank_result *starved = find_starved(results, ranks),
                           *outside = find_ended_outside(results, ranks);
    cd_text text;
    if (starved != NULL) {
        cddp_error err = CDDP_ERROR_INIT;
        (void)cd_fail(&err, CDDP_E_NOMEM,
                      "backend %s was not judged: rank %u of %" PRIu32
                      ": %.120s; memory, processes or files ran out, and what ranks gather grows "
                      "with their square",
                      c->backend, (unsigned)(starved - results), ranks, starved->error.message);
        return cd_cli_fail(c->cli, &err);
    }
    if (outside != NULL && !cd_interrupt_requested() && !has_failed(c)) {
        cddp_error err = CDDP_ERROR_INIT;
        (void)cd_fail(&err, CDDP_E_NOMEM,
                      "backend %s was not judged: %s rank %u of %" PRIu32
                      ", or the system did for want of memory: %.140s",
                      c->backend,
                      is_unseen_death(outside) ? "without a crash report somebody ended"
                                               : "somebody ended",
                      (unsigned)(outside - results), ranks, outside->error.message);
        return cd_cli_fail(c->cli, &err);
    }
    cd_report_card_begin(c->cli, &c->target, &text);
    for (uint32_t r = 0; r < ranks; r++)
        all_returned =
            all_returned && results[r].end == CDDP_RANK_RETURNED && results[r].status == CDDP_OK;
    for (int op = 0; op < CDDP_OP_COUNT; op++) {
        for (int dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
            const line *l = &c->lines[op][dtype];
            cases += l->cases;
            lines += l->rows > 0;
            failed += l->failed_rows > 0;
            if (l->failed_rows == 0 && !verbose) continue;
            if (l->rows == 0 && l->failed_rows == 0) continue;
            bool undeclared = l->refused_rows == l->rows && l->failed_rows == 0;
            cd_text_style(&text,
                          l->failed_rows > 0 ? CD_STYLE_RED
                          : undeclared       ? CD_STYLE_YELLOW
                                             : CD_STYLE_GREEN,
                          "  %-8s",
                          l->failed_rows > 0 ? "FAILED"
                          : undeclared       ? "without"
                                             : "passed");
            cd_text_printf(&text, "%-15s %-5s %" PRIu32 " cases", cddp_op_name((cddp_op)op),
                           cddp_dtype_name((cddp_dtype)dtype), l->cases);
            cd_text_push(&text, "\n");
            if (l->failed_rows > 0) {
                cd_text_push(&text, "            ");
                cd_text_wrap(&text, l->first, 12, 110);
            }
        }
    }
    if (!all_returned && cd_interrupt_requested() && !cd_interrupt_is_late()) {
        cd_text_style(&text, CD_STYLE_YELLOW, "inconclusive");
        cd_text_printf(&text, "  backend %s: interrupted after %" PRIu32 " cases\n", c->backend,
                       cases);
        return send(c, &text, results, ranks, CD_EXIT_INCONCLUSIVE);
    }
    put_rank_failures(&text, c, results, ranks);
    bool good = failed == 0 && all_returned && lines > 0;
    cd_text_style(&text, good ? CD_STYLE_GREEN : CD_STYLE_RED,
                  good ? "conforms" : "does not conform");
    cd_text_printf(&text,
                   "  backend %s, %" PRIu32 " rank%s: %" PRIu32 " operations by dtype, %" PRIu32
                   " cases",
                   c->backend, ranks, ranks == 1 ? "" : "s", lines, cases);
    if (failed > 0) cd_text_printf(&text, ", %" PRIu32 " failed", failed);
    if (!all_returned) cd_text_push(&text, ", not all ranks came to the end");
    cd_text_push(&text, "\n");
    put_not_run(&text, c, ranks);
    return send(c, &text, results, ranks, good ? CD_EXIT_VERIFIED : CD_EXIT_FINDINGS);
}

static cddp_status make_plan(const card *c, uint64_t ranks, cddp_plan **plan, cddp_error *err)
{
    char size[32];
    CD_TRY(cddp_plan_create(NULL, plan, err));
    snprintf(size, sizeof size, "%" PRIu64, ranks);
    CD_TRY(cddp_plan_set(*plan, "world.size", size, err));
    CD_TRY(cddp_plan_set(*plan, "world.backend", c->backend, err));
    return CDDP_OK;
}

/* Its row is the last one. */
static bool backend_guards(const card *c, uint64_t ranks)
{
    return ranks > 1 && c->run->backend != NULL && c->run->backend->capabilities.guards;
}

static cddp_status run_card(card *c, uint64_t ranks, cddp_rank_result *results, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_plan *plan = NULL;
    cd_compose *compose = NULL;
    cddp_run_options run = cddp_run_options_default();
    CD_TRY_OUT(make_plan(c, ranks, &plan, err));
    CD_TRY_OUT(cd_plugins_need_backend((cd_cli *)(uintptr_t)c->cli, c->backend, err));
    cd_compose_options options = {.plan = plan,
                                  .registry = c->cli->registry,
                                  .level = CDDP_TRACE_ORDER,
                                  .node = getenv("CDDP_NODE"),
                                  .origin = &c->cli->origin,
                                  .interrupted = cd_interrupt_requested};
    CD_TRY_OUT(cd_compose_open(&options, &compose, err));
    if (cd_compose_is_member(compose)) cd_leave_as_rank();
    cd_compose_fill(compose, &run);
    if (run.relay != NULL) run.relay->target = &c->sink;
    c->run = &run;
    cd_progress_begin(&c->progress, c->cli,
                      cd_conformance_count_rows((uint32_t)ranks, &c->options) +
                          backend_guards(c, ranks));
    status = run.world_ops->launch(run.world, rank_program, c, results, err);
    cd_progress_end(&c->progress);
out:
    cd_compose_close(compose);
    cddp_plan_destroy(plan);
    return status;
}

static cddp_status read_options(card *c, cddp_error *err)
{
    const cd_args *args = c->cli->args;
    uint64_t seconds = LIMIT_S;
    CD_TRY(cd_report_target_read(args, &c->target, err));
    CD_TRY(cd_report_target_check(&c->target, err));
    CD_TRY(cd_args_number(args, CD_OPTION_counters, &c->sequence_start, err));
    CD_TRY(cd_args_budget(args, CD_OPTION_limit, "seconds", &seconds, &c->limit_ns, err));
    if (c->limit_ns == 0) c->limit_ns = seconds * UINT64_C(1000000000);
    c->options =
        (cd_conformance_options){.device = cddp_device_cpu(),
                                 .thorough = cd_args_has(args, CD_OPTION_thorough),
                                 .huge_bytes = cd_args_has(args, CD_OPTION_huge) ? HUGE_BYTES : 0,
                                 .count_start = c->sequence_start,
                                 .interrupted = cd_interrupt_requested};
    return CDDP_OK;
}

/* --torch gloo is the backend torch-gloo. */
static const char *choose_backend(const cd_args *args, char *name, size_t bytes)
{
    const char *group = cd_args_text(args, CD_OPTION_torch, NULL);
    if (group == NULL) return args->operands[0];
    snprintf(name, bytes, "torch-%s", group);
    return name;
}

static int judge(cd_cli *cli, uint64_t ranks, cddp_rank_result *results)
{
    char name[64];
    cddp_error err = CDDP_ERROR_INIT;
    const size_t place_bytes = (size_t)ranks * sizeof(place);
    void *places = NULL;
    card c = {.cli = cli,
              .backend =
                  cd_plugins_backend_name(cli, choose_backend(cli->args, name, sizeof name))};
    c.sink = (cddp_trace_sink){sizeof c.sink, CDDP_TRACE_ABI, &c, take_row, NULL};
    cddp_status status = read_options(&c, &err);
    if (status == CDDP_OK) status = cd_os_shared_open(place_bytes, &places, &err);
    if (status != CDDP_OK) return cd_cli_fail(cli, &err);
    c.places = places;
    cd_interrupt_after(c.limit_ns);
    status = run_card(&c, ranks, results, &err);
    const int exit_code =
        status == CDDP_OK ? report(&c, results, (uint32_t)ranks) : cd_cli_fail(cli, &err);
    cd_os_shared_close(places, place_bytes);
    return exit_code;
}

int cd_command_backend_conformance(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    uint64_t ranks = 4;
    cddp_status status = cd_args_number(cli->args, CD_OPTION_world_size, &ranks, &err);
    const bool is_torch = cd_args_text(cli->args, CD_OPTION_torch, NULL) != NULL;
    if (status == CDDP_OK && is_torch && cli->args->operand_count > 0)
        status = cd_fail(&err, CDDP_E_ARG, "name a backend, or a process group with --torch");
    if (status == CDDP_OK && !is_torch && cli->args->operand_count != 1)
        status = cd_fail(
            &err, CDDP_E_ARG,
            "which backend? name one; `cddp-verify list backends` shows those of this build");
    if (status == CDDP_OK && (ranks < 1 || ranks > RANKS_MAX))
        status =
            cd_fail(&err, CDDP_E_ARG, "-n %" PRIu64 " is not between 1 and %d", ranks, RANKS_MAX);
    if (status != CDDP_OK) return cd_cli_fail(cli, &err);
    cddp_rank_result *results = cd_allocate_array(NULL, (size_t)ranks, sizeof *results);
    if (results == NULL)
        return (void)cd_fail_memory(&err, "%" PRIu64 " ranks", ranks), cd_cli_fail(cli, &err);
    for (uint64_t r = 0; r < ranks; r++) results[r].size = sizeof results[r];
    cd_interrupt_begin();
    int exit_code = judge(cli, ranks, results);
    cd_release(NULL, results, (size_t)ranks * sizeof *results);
    return exit_code;
}
