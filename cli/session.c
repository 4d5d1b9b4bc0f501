/* SPDX-License-Identifier: Apache-2.0 */
/* One scenario from file to result. */
#include "cli/session.h"

#include "backends/table/builtin.h"
#include "cddp/cddp.h"
#include "cddp/composition.h"
#include "verify/worlds/compose.h"
#include "cli/interrupt.h"
#include "cli/leave.h"
#include "cli/names.h"
#include "cli/overrides.h"
#include "verify/report/command_line.h"
#include "verify/report/place.h"
#include "cli/plugins.h"
#include "cli/provenance.h"
#include "cli/recorder.h"
#include "cli/variants.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/suggest.h"
#include "core/hooks/hook.h"
#include "core/plan/chosen_hook.h"
#include "core/plan/replica/names.h"
#include "scenarios/reader/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the plan ---- */

typedef struct reading {
    const cd_session *session;
    cd_text complaints;
    size_t complaint_count, unknown_count;
    bool lacks_plugin; /* and nothing else is wrong with the names */
} reading;

static void collect_complaint(void *context, const cd_complaint *complaint)
{
    reading *r = context;
    char text[2048];
    cd_complaint_print(complaint, text, sizeof text);
    cd_text_push(&r->complaints, text);
    r->complaint_count++;
}

/* A backend that a plugin may bring is looked for when the run begins. What is one typing error
** away from a known one is a mistake of the file. */
typedef struct backend_names {
    const cddp_registry *registry;
    cd_contradiction_fn report;
    void *context;
    size_t count;
} backend_names;

static cddp_status see_backend(void *context, const char *name, cddp_error *err)
{
    backend_names *n = context;
    cd_suggestion s;
    char message[200];
    (void)err;
    if (cddp_registry_find_backend(n->registry, name) != NULL) return CDDP_OK;
    cd_suggest_begin(&s, name);
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++) {
        if (strcmp(row->name, name) == 0 || strcmp(row->alias, name) == 0) return CDDP_OK;
        cd_suggest_offer(&s, row->name);
    }
    if (s.best == NULL) return CDDP_OK;
    snprintf(message, sizeof message, "there is no backend '%.60s'; did you mean '%s'?", name,
             s.best);
    n->report(n->context, "world.backend", message);
    n->count++;
    return CDDP_OK;
}

static size_t examine(void *context, const cddp_plan *plan, cd_contradiction_fn report,
                      void *report_context)
{
    reading *r = context;
    const cddp_registry *registry = r->session->cli->registry;
    const size_t count = cd_plan_find_unknown_names(plan, registry, report, report_context);
    backend_names backends = {registry, report, report_context, 0};
    /* What is no composition at all is refused when the run begins. */
    if (cddp_composition_each(plan->world.backend, see_backend, &backends, NULL) != CDDP_OK)
        backends.count = 0;
    r->unknown_count = count;
    r->lacks_plugin = count > 0 && r->session->may_skip && cd_plan_lacks_plugin(plan, registry);
    return count + backends.count + cd_names_examine(plan, report, report_context);
}

/* Whether the plan contradicts itself is for cddp_run to say: a scenario may expect just that. */
static void complain_override(void *context, const char *key, const char *message)
{
    reading *r = context;
    cd_overrides_complain(r->session->overrides, key, message, &r->complaints);
}

/* All mistakes in one go, as of a file. */
static cddp_status apply_overrides(reading *r, cddp_plan *plan, cddp_error *err)
{
    const cd_session *session = r->session;
    if (session->overrides[0] == '\0') return CDDP_OK;
    CD_TRY(cd_overrides_apply(session->overrides, plan, &r->complaints, err));
    if (plan->expect.verdict != CDDP_EXPECT_ERROR && cddp_plan_check(plan, NULL) == CDDP_OK) {
        (void)cd_plan_find_unknown_names(plan, session->cli->registry, complain_override, r);
        (void)cd_names_examine(plan, complain_override, r);
    }
    if (r->complaints.failed) return cd_fail_memory(err, "the mistakes of --set");
    if (r->complaints.length == 0) return CDDP_OK;
    return cd_fail(err, CDDP_E_CONFIG, "what --set changes is wrong");
}

/* Of a file that cannot be read: what is wrong with --set by itself. Items of lists are the file's.
*/
static cddp_status examine_overrides(reading *r, cddp_error *err)
{
    const cd_session *session = r->session;
    cddp_plan *plan = NULL;
    cd_text lines;
    cddp_status status = CDDP_OK;
    if (session->overrides[0] == '\0') return CDDP_OK;
    cd_text_init(&lines, false);
    for (const char *line = session->overrides; *line != '\0';) {
        const size_t length = strcspn(line, "\n");
        const char *item = memchr(line, '[', strcspn(line, "=\n"));
        if (item == NULL) cd_text_printf(&lines, "%.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    CD_TRY_OUT(cddp_plan_create(NULL, &plan, err));
    CD_TRY_OUT(cd_overrides_apply(cd_text_get(&lines), plan, &r->complaints, err));
    (void)cd_plan_find_unknown_names(plan, session->cli->registry, complain_override, r);
    (void)cd_names_examine(plan, complain_override, r);
out:
    cddp_plan_destroy(plan);
    cd_text_fini(&lines);
    return status;
}

void cd_session_read_plan(const cd_session *session, const char *path, const char *text,
                          cddp_plan **plan, cd_result *result)
{
    cddp_error err = CDDP_ERROR_INIT;
    reading r = {.session = session};
    cd_text_init(&r.complaints, false);
    cd_reader_options options = {.complain = collect_complaint, .context = &r, .examine = examine};
    cddp_plan *p = NULL;
    cddp_status status = text == NULL ? cd_reader_read_file(&options, path, &p, &err)
                                      : cd_reader_read_text(&options, path, text, &p, &err);
    if (status == CDDP_OK) status = apply_overrides(&r, p, &err);
    const char *backend =
        status == CDDP_OK ? cd_plugins_backend_name(session->cli, p->world.backend) : NULL;
    if (backend != NULL && strcmp(backend, p->world.backend) != 0)
        status = cddp_plan_set(p, "world.backend", backend, &err);
    if (status == CDDP_OK) {
        *plan = p;
    } else if (r.lacks_plugin && r.complaint_count == r.unknown_count) {
        cddp_plan_destroy(p);
        cd_result_set_skipped(result, err.message);
    } else {
        if (p == NULL && text == NULL && examine_overrides(&r, NULL) != CDDP_OK)
            cd_text_push(&r.complaints, "--set was not examined: there is no memory\n");
        cddp_plan_destroy(p);
        cd_result_set_failure(result, CD_EXIT_USAGE, err.message, cd_text_get(&r.complaints));
    }
    cd_text_fini(&r.complaints);
}

cddp_status cd_session_load_plan(const cd_session *session, const char *path, FILE *reported,
                                 cddp_plan **plan, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_result mistakes;
    cd_result_init(&mistakes);
    *plan = NULL;
    cd_session_read_plan(session, path, NULL, plan, &mistakes);
    const bool is_listed = mistakes.details[0] != '\0',
               is_of_file = strncmp(mistakes.details, "--set", 5) != 0;
    if (*plan == NULL && is_listed && reported != NULL) fputs(mistakes.details, reported);
    if (*plan == NULL && is_listed && is_of_file)
        status = cd_fail(err, CDDP_E_CONFIG, "'%s' is not a valid scenario", path);
    else if (*plan == NULL)
        status = cd_fail(err, CDDP_E_CONFIG, "%s", mistakes.verdict.summary);
    cd_result_fini(&mistakes);
    return status;
}

static void describe_reproduction(const cd_session *session, cd_result *result, bool has_schedule)
{
    cd_text text;
    cd_text_init(&text, false);
    bool replay = has_schedule && result->schedule[0] != '\0' &&
                  strlen(result->schedule) <= CD_SCHEDULE_PASTEABLE;
    cd_command_line line = {.source = result->source,
                            .overrides = session->overrides,
                            .schedule = replay ? result->schedule : NULL,
                            .plugin = cd_overrides_plugin,
                            .context = session->cli->args};
    cd_command_line_print(&text, &line);
    result->reproduce = cd_result_copy(result, cd_text_get(&text));
    cd_text_fini(&text);
    cd_text_init(&text, false);
    line.command = "shrink"; /* on the simulator, wherever this was */
    cd_command_line_print(&text, &line);
    result->shrink = cd_result_copy(result, cd_text_get(&text));
    cd_text_fini(&text);
}

static void describe_plan(const cd_session *session, const cddp_plan *plan, cd_result *result)
{
    result->title = cd_result_copy(result, plan->title);
    result->backend = cd_result_copy(result, plan->world.backend);
    result->schedule = cd_result_copy(result, plan->schedule.string);
    result->world_size = (uint32_t)plan->world.size;
    result->steps = (uint32_t)plan->settings.train.steps;
    result->seed = plan->world.seed;
    result->verdict.plan_digest = cddp_plan_digest(plan);
    describe_reproduction(session, result, false);
}

/* ---- the store ---- */

static cddp_status begin_recording(const cd_session *session, const cddp_plan *plan,
                                   cd_result *result, cddp_error *err)
{
    cd_provenance here;
    if (session->store == NULL) return CDDP_OK;
    cd_provenance_init(&here);
    cddp_run_provenance p = {.size = sizeof p,
                             .title = plan->title,
                             .scenario = plan->text,
                             .source = result->source,
                             .options = session->overrides,
                             .schedule = result->schedule,
                             .backend = plan->world.backend,
                             .version = cddp_version(),
                             .machine = here.machine,
                             .compiler = here.compiler,
                             .recorded_at = here.now,
                             .seed = plan->world.seed,
                             .plan = result->verdict.plan_digest,
                             .world_size = result->world_size,
                             .steps = result->steps,
                             .level = session->level};
    CD_TRY(cddp_store_run_begin(session->store, &p, &result->stored_run, err));
    return CDDP_OK;
}

/* Processes that ended by themselves before anybody could end them have said all that they had to
** say. */
static bool was_interrupted(const cd_compose *compose)
{
    bool by_itself = compose != NULL && cd_compose_has_processes(compose) &&
                     !cd_compose_was_interrupted(compose);
    return cd_interrupt_requested() && !by_itself;
}

/* A run that was interrupted is not ended: the store marks it incomplete, and nobody judges or
** repeats it as a whole one. */
static cddp_status end_recording(const cd_session *session, const cd_compose *compose,
                                 const cd_result *result, cddp_error *err)
{
    cddp_store *store = session->store;
    if (store == NULL) return CDDP_OK;
    if (was_interrupted(compose)) {
        const cddp_trace_sink *sink = cddp_store_sink(store);
        CD_TRY(sink->flush(sink->self, err));
        return CDDP_OK;
    }
    const char *algorithm = compose != NULL ? cd_compose_algorithm(compose) : "";
    if (algorithm[0] != '\0') {
        char name[128];
        snprintf(name, sizeof name, "%s%s", CD_METRIC_ALGORITHM, algorithm);
        CD_TRY(cddp_store_add_metric(store, name, 1, err));
    }
    CD_TRY(cddp_store_add_verdict(store, &result->verdict, err));
    cddp_run_outcome outcome = {.size = sizeof outcome,
                                .exit_code = (uint32_t)result->verdict.outcome,
                                .verdict = cd_result_recorded_name(result),
                                .reason = result->verdict.reason[0] != '\0'
                                              ? result->verdict.reason
                                              : result->verdict.summary,
                                .schedule = result->schedule,
                                .digest = result->verdict.trace_digest,
                                .virtual_time_ns = result->verdict.time_ns};
    CD_TRY(cddp_store_run_end(store, &outcome, err));
    return CDDP_OK;
}

/* ---- the run ---- */

/* A hook from outside that calls itself lossy is judged by its law; whether it states one is seen
** only here. */
typedef struct law_counter {
    cddp_trace_sink sink;
    cd_chosen_hook chosen;
    const char *hook; /* NULL: there is none of that kind */
    uint64_t stated, called;
} law_counter;

static void count_laws(void *self, const cddp_event *event)
{
    law_counter *c = self;
    c->stated += event->kind == CDDP_EV_hook_law;
    c->called += event->kind == CDDP_EV_hook_done;
}

static bool has_stated_law(const cd_session *session, const char *name)
{
    const cddp_hook *hook = name != NULL && cd_hook_find(name) == NULL
                                ? cddp_registry_find_hook(session->cli->registry, name)
                                : NULL;
    return hook != NULL && (hook->flags & CDDP_HOOK_LOSSY) != 0 &&
           (hook->flags & (CDDP_HOOK_NO_COMM | CDDP_HOOK_CASTS_FIRST | CDDP_HOOK_ROUNDED_ONCE |
                           CDDP_HOOK_LAWS)) == 0;
}

static void law_counter_init(law_counter *c, const cd_session *session, const cddp_plan *plan)
{
    *c = (law_counter){.sink = {sizeof c->sink, CDDP_TRACE_ABI, c, count_laws, NULL}};
    cd_choose_hook(&plan->settings, &c->chosen);
    /* a wrapper states one */
    c->hook = has_stated_law(session, c->chosen.name) ? c->chosen.name : NULL;
}

static void report_unjudged(const law_counter *c, cd_result *result)
{
    char words[400];
    if (c->hook == NULL || c->stated > 0 || c->called == 0) return;
    snprintf(words, sizeof words,
             "what hook %.80s makes of gradients: it calls itself lossy, stated no law "
             "(cddp_tracer_law) and names none (CDDP_HOOK_LAW_TOPK and its like). Only that all "
             "ranks have the same was judged, not whether it is "
             "right; \"cddp-verify hook-conformance\" tries it",
             c->hook);
    result->unjudged = cd_result_copy(result, words);
}

/* Whether a world of real processes came together. */
typedef struct start_watch {
    cddp_trace_sink sink;
    uint64_t joined; /* ranks that opened the group of all */
    bool has_done;   /* an operation has ended well */
} start_watch;

static void watch_start(void *self, const cddp_event *event)
{
    start_watch *w = self;
    w->joined += event->kind == CDDP_EV_group && strcmp(event->text, "world") == 0;
    w->has_done |= event->kind == CDDP_EV_collective_done &&
                   event->as.collective_done.status == (int64_t)CDDP_OK;
}

typedef struct run_sinks {
    law_counter laws;
    start_watch start;
    const cddp_trace_sink *list[8];
    size_t count;
    cd_recorder recorder;
    cd_finals finals;
} run_sinks;

static void add_sinks(const cd_session *session, const cd_compose *compose, const cddp_plan *plan,
                      run_sinks *sinks)
{
    cd_recorder_init(&sinks->recorder);
    law_counter_init(&sinks->laws, session, plan);
    if (sinks->laws.hook != NULL) sinks->list[sinks->count++] = &sinks->laws.sink;
    if (plan->expect.same_with.count > 0) sinks->list[sinks->count++] = &sinks->finals.sink;
    /* of a repetition only the end is reported */
    if (session->repetition == 0) sinks->list[sinks->count++] = &sinks->recorder.sink;
    sinks->start = (start_watch){
        .sink = {sizeof sinks->start.sink, CDDP_TRACE_ABI, &sinks->start, watch_start, NULL}};
    sinks->list[sinks->count++] =
        cd_compose_has_processes(compose) ? &sinks->start.sink : cd_interrupt_sink();
    if (session->store != NULL) sinks->list[sinks->count++] = cddp_store_sink(session->store);
    if (session->watcher != NULL) sinks->list[sinks->count++] = session->watcher;
    if (session->log != NULL && !cd_compose_is_member(compose))
        sinks->list[sinks->count++] = &session->log->sink;
}

static void take_context(cd_result *result, const cd_recorder *recorder)
{
    cddp_event event;
    for (size_t place = 0;
         cd_result_wants_context(result) && cd_recorder_read(recorder, &place, &event);)
        cd_result_add_context(result, &event);
}

/* The schedule that the run took, as a replay needs it. */
static void take_schedule(cd_result *result, const cd_compose *compose)
{
    char start[64];
    size_t bytes = cd_compose_print_schedule(compose, start, sizeof start) + 1;
    char *schedule = cd_arena_push(&result->arena, bytes);
    if (schedule == NULL) return;
    cd_compose_print_schedule(compose, schedule, bytes);
    result->schedule = schedule;
}

#define COMMIT_NS UINT64_C(500000000)

/* What ranks showed before they hang is in the store while they hang: `watch` reads it there. */
typedef struct committer {
    cddp_store *store; /* NULL: nothing is kept */
    uint64_t last_ns;
} committer;

/* A failure is the sink's, which reports it at the end of the step. */
static void commit_now_and_then(void *context)
{
    committer *c = context;
    const uint64_t now_ns = cd_os_now_ns();
    if (c->store == NULL || now_ns - c->last_ns < COMMIT_NS) return;
    c->last_ns = now_ns;
    if (cddp_store_commit(c->store, NULL) != CDDP_OK) c->store = NULL;
}

static cddp_status open_compose(const cd_session *session, const cddp_plan *plan, committer *keeper,
                                cd_compose **compose, cddp_error *err)
{
    cd_compose_options options = {.plan = plan,
                                  .registry = session->cli->registry,
                                  .level = session->level,
                                  .origin = &session->cli->origin,
                                  .run = cd_origin_run(session->run, session->repetition),
                                  .interrupted = cd_interrupt_requested,
                                  .idle = commit_now_and_then,
                                  .idle_context = keeper,
                                  .schedule = session->schedule,
                                  .chooser = session->chooser,
                                  .ground = &session->cli->ground,
                                  .node = getenv("CDDP_NODE")};
    CD_TRY(cd_plugins_need_backend(session->cli, plan->world.backend, err));
    CD_TRY(cd_compose_open(&options, compose, err));
    return CDDP_OK;
}

/* What asks for the operation that a backend does not implement. */
static const char *find_need(const char *message)
{
    static const struct {
        const char *op, *need;
    } needs[] = {
        {"allreduce", "gradients are summed with it"},
        {"broadcast", "parameters and buffers of rank 0 travel with it"},
        {"allgather", "models are compared with it, and sharded ones gathered"},
        {"reduce_scatter", "gradients of a sharded model or optimizer are reduced with it"},
    };
    const char *op = strstr(message, "implement ");
    for (size_t i = 0; op != NULL && i < sizeof needs / sizeof needs[0]; i++) {
        const size_t length = strlen(needs[i].op);
        const char *name = op + strlen("implement ");
        if (strncmp(name, needs[i].op, length) == 0 &&
            (name[length] == '\0' || name[length] == ' '))
            return needs[i].need;
    }
    return "a [[collective]] of the scenario or its comm hook asks for it";
}

/* A backend that lacks an operation is no finding about the training: no rank could begin. */
static cddp_status check_capabilities(const cddp_verdict *v, cddp_error *err)
{
    static const char words[] = "backend ";
    if (v->as_expected || v->outcome == CDDP_OUTCOME_VERIFIED || v->rank_count == 0) return CDDP_OK;
    for (size_t r = 0; r < v->rank_count; r++) {
        const cddp_rank_result *end = &v->ranks[r].result;
        if (end->end != CDDP_RANK_RETURNED || end->status != CDDP_E_UNSUPPORTED ||
            strncmp(end->error.message, words, sizeof words - 1) != 0)
            return CDDP_OK;
    }
    const char *message = v->ranks[0].result.error.message;
    return cd_fail(err, CDDP_E_UNSUPPORTED, "%.100s, on all ranks: %s", message,
                   find_need(message));
}

/* Its number before the message, unless the message has that. */
static cddp_status refuse_shortage(uint32_t rank, const char *message, cddp_error *err)
{
    char name[24], prefix[32] = "";
    snprintf(name, sizeof name, "rank %u", (unsigned)rank);
    if (strstr(message, name) == NULL) snprintf(prefix, sizeof prefix, "%s: ", name);
    return cd_fail(err, CDDP_E_NOMEM,
                   "%s%.150s; memory, processes or files of this machine ran out, "
                   "and nothing was judged (see ulimit -a)",
                   prefix, message);
}

/* What ran out on this machine says nothing about the training. */
static cddp_status check_shortage(const cddp_verdict *v, cddp_error *err)
{
    if (v->as_expected || v->outcome == CDDP_OUTCOME_VERIFIED) return CDDP_OK;
    for (size_t r = 0; r < v->rank_count; r++) {
        const cddp_rank_result *end = &v->ranks[r].result;
        const bool has_said = end->end == CDDP_RANK_RETURNED || end->end == CDDP_RANK_CRASHED;
        if (has_said && end->status == CDDP_E_NOMEM)
            return CD_PASS(refuse_shortage((uint32_t)r, end->error.message, err));
    }
    return CDDP_OK;
}

/* Its transport failed it, or it was ended while it waited there for one that it failed, or, with
** all others, it never reported. */
static bool is_unmet(const cddp_rank_result *end)
{
    if (end->end == CDDP_RANK_HUNG)
        return strstr(end->error.message, "connecting group 'world'") != NULL;
    if (end->end == CDDP_RANK_CRASHED) return end->status == CDDP_E_BACKEND;
    return end->end == CDDP_RANK_RETURNED &&
           (end->status == CDDP_E_BACKEND || end->status == CDDP_E_TIMEOUT ||
            end->status == CDDP_E_IO || end->status == CDDP_E_ABORTED);
}

/* Nor does a transport that never connected the ranks, where none of them died, stood still or
** failed by itself: what lies between them is the machine's. */
static cddp_status check_start(const cddp_verdict *v, const start_watch *w, const cddp_plan *plan,
                               cddp_error *err)
{
    if (v->as_expected || v->outcome == CDDP_OUTCOME_VERIFIED || v->rank_count < 2 ||
        plan->fault_count > 0 || w->has_done || w->joined >= v->rank_count)
        return CDDP_OK;
    size_t reporter = 0;
    for (size_t r = v->rank_count; r-- > 0;) {
        if (!is_unmet(&v->ranks[r].result)) return CDDP_OK;
        if (v->ranks[r].result.end == CDDP_RANK_RETURNED) reporter = r;
    }
    for (size_t i = 0; i < v->finding_count; i++)
        if (strcmp(v->findings[i].check, "I-FAIL") != 0 &&
            strcmp(v->findings[i].check, "I-LIVE") != 0)
            return CDDP_OK;
    return cd_fail(err, CDDP_E_BACKEND,
                   "the ranks did not meet, and nothing was judged: %.130s. Look for a firewall, "
                   "other programs on their ports, or a job that lacks a process",
                   v->ranks[reporter].result.error.message);
}

static cddp_status run_composed(const cd_session *session, const cddp_plan *plan,
                                cd_compose *compose, run_sinks *sinks, cd_result *result,
                                cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_verdict *verdict = NULL;
    add_sinks(session, compose, plan, sinks);
    cddp_run_options run = cddp_run_options_default();
    cd_compose_fill(compose, &run);
    run.registry = session->cli->registry;
    run.sinks = sinks->list;
    run.sink_count = sinks->count;
    run.oracle_apart = session->oracle_apart;
    CD_TRY_OUT(cddp_run(&run, &verdict, err));
    CD_TRY_OUT(check_shortage(verdict, err));
    if (cd_compose_has_processes(compose)) /* the simulator's ranks always meet */
        CD_TRY_OUT(check_start(verdict, &sinks->start, plan, err));
    CD_TRY_OUT(check_capabilities(verdict, err));
    CD_TRY_OUT(cd_result_take_verdict(result, verdict, err));
    cd_result_locate(result, result->source, plan->text);
    report_unjudged(&sinks->laws, result);
    take_schedule(result, compose);
    describe_reproduction(session, result, true);
    take_context(result, &sinks->recorder);
out:
    cddp_verdict_destroy(verdict);
    cd_recorder_fini(&sinks->recorder);
    return status;
}

static int exit_code_of(cddp_status status)
{
    switch (status) {
    case CDDP_E_BACKEND:
    case CDDP_E_UNSUPPORTED:
    case CDDP_E_NOMEM:
    case CDDP_E_IO:
    case CDDP_E_TIMEOUT:
        return CD_EXIT_ENVIRONMENT;
    case CDDP_E_ABORTED:
        return CD_EXIT_INCONCLUSIVE;
    default:
        return CD_EXIT_USAGE;
    }
}

static void settle_interruption(const cd_compose *compose, cd_result *result)
{
    if (!was_interrupted(compose)) return;
    result->verdict.outcome = CDDP_OUTCOME_INCONCLUSIVE;
    result->name = cd_result_verdict_name(CD_EXIT_INCONCLUSIVE);
    result->verdict.summary = result->verdict.reason = "interrupted before the run had ended";
    result->verdict.as_expected = false;
}

cddp_status cd_session_run_plan(const cd_session *session, const cddp_plan *plan, cd_result *result,
                                cddp_error *err)
{
    cd_compose *compose = NULL;
    cddp_error failure = CDDP_ERROR_INIT;
    uint64_t began = cd_os_now_ns();
    cd_session here = *session;
    cddp_status status = CDDP_OK;
    describe_plan(session, plan, result);
    if (session->cli->origin.hub != NULL && session->cli->origin.repetition > 0 &&
        session->repetition == 0) {
        CD_TRY(cd_variants_be_rank(session, plan, result, err));
        return CDDP_OK;
    }
    committer keeper = {NULL, 0};
    run_sinks sinks = {.count = 0};
    cddp_status opened = open_compose(session, plan, &keeper, &compose, &failure);
    if (opened == CDDP_OK && cd_compose_is_member(compose)) {
        here.store = NULL; /* the judge keeps it */
        cd_leave_as_rank();
    }
    CD_TRY_OUT(begin_recording(&here, plan, result, err));
    keeper.store = here.store;
    cd_finals_init(&sinks.finals);
    if (opened == CDDP_OK) opened = run_composed(&here, plan, compose, &sinks, result, &failure);
    keeper.store = NULL;
    if (opened != CDDP_OK) cd_result_set_failure(result, exit_code_of(opened), failure.message, "");
    /* A replay repeats one run, choice by choice; the others are not it. */
    bool repeats = opened == CDDP_OK && session->schedule == NULL && session->chooser == NULL;
    if (repeats) status = cd_variants_judge(session, plan, &sinks.finals, result, err);
    if (repeats && plan->expect.same_with.count > 0)
        describe_reproduction(session, result, false); /* a schedule has no repetitions */
    cd_finals_fini(&sinks.finals);
    if (status != CDDP_OK) goto out;
    settle_interruption(compose, result);
    result->wall_ns = cd_os_now_ns() - began;
    CD_TRY_OUT(end_recording(&here, compose, result, err));
out:
    cd_compose_close(compose);
    return status;
}

cddp_status cd_session_run(const cd_session *session, const char *path, cd_result *result,
                           cddp_error *err)
{
    cddp_plan *plan = NULL;
    result->source = cd_result_copy(result, path);
    cd_session_read_plan(session, path, NULL, &plan, result);
    if (plan == NULL) return CDDP_OK;
    cddp_status status = cd_session_run_plan(session, plan, result, err);
    cddp_plan_destroy(plan);
    return status;
}
