/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/imported.h"

#include "cddp/cddp.h"
#include "cli/provenance.h"
#include "cli/report_target.h"
#include "cli/sources.h"
#include "core/check/circle.h"
#include "core/check/writer.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "verify/import/declared.h"
#include "core/trace/models.h"
#include "verify/import/shards.h"
#include "verify/import/sources.h"
#include "verify/report/stored.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A trace and what it declared, shown to the judge at once. */
typedef struct witness {
    cddp_replay_fn replay;
    void *source;
    uint32_t world_size;
    uint64_t stall_ns; /* for how long ranks must have shown nothing to have hung; 0: not known */
    const cddp_trace_sink *judge; /* while it is shown */
    cd_declared declared;
    cd_models models; /* of which one is shown at a time */
    int64_t model;
    uint64_t starts[CD_MODELS_MAX]; /* of each that was judged, see cd_declared_get_start */
    char ended[300]; /* what a rank did when the job was ended, at best one that waited; "": none */
    uint32_t ended_rank;
    bool has_waited;
    cd_circles circles;
    char failed[400]; /* why the first recorder ended that failed; "": none did */
    uint32_t failed_rank, failed_count;
    char loops[280]; /* of a rank that posted on and on when the job was ended; "": none */
} witness;

/* ---- judging ---- */

/* Where nobody hung, the job was ended from outside. */
static void take_end(witness *w, const cddp_event *event)
{
    const bool is_waiting = event->text != NULL && strstr(event->text, " wait") != NULL;
    if (event->kind != CDDP_EV_rank_end || event->as.rank_end.end != CDDP_RANK_INTERRUPTED) return;
    if (event->text == NULL || (w->ended[0] != '\0' && (!is_waiting || w->has_waited))) return;
    snprintf(w->ended, sizeof w->ended, "%s", event->text);
    cd_text_clean(w->ended);
    w->ended_rank = event->rank;
    w->has_waited = is_waiting;
}

/* Whatever else is missing of that rank follows from it. */
static void take_failure(witness *w, const cddp_event *event)
{
    static const char begin[] = "recorder failed: ";
    if (event->kind != CDDP_EV_mark || event->text == NULL ||
        strncmp(event->text, begin, sizeof begin - 1) != 0)
        return;
    if (w->failed_count++ > 0) return;
    snprintf(w->failed, sizeof w->failed, "%s", event->text + sizeof begin - 1);
    cd_text_clean(w->failed);
    w->failed_rank = event->rank;
}

/* A loop that never ends and a long one look alike, where somebody ended the job in it. */
static void take_loop(witness *w, const cddp_event *event)
{
    cd_circles_push(&w->circles, event);
    if (event->kind != CDDP_EV_rank_end || event->as.rank_end.end != CDDP_RANK_INTERRUPTED) return;
    const cd_circle *circle = cd_circles_find(&w->circles, event->rank);
    const cd_repeats *most =
        circle != NULL ? cd_circles_most(&w->circles, event->rank, false) : NULL;
    if (most == NULL || w->loops[0] != '\0') return;
    char operation[96];
    cd_operation_print(most->data, operation, sizeof operation);
    snprintf(w->loops, sizeof w->loops,
             "rank %" PRIu32 " had posted %s %" PRIu64 " times in step %" PRIu32
             " without a pass of the model between: a livelock, if that loop has no end\n",
             event->rank, operation, most->count, circle->step);
}

static void take_event(void *self, const cddp_event *event)
{
    witness *w = self;
    cd_declared_push(&w->declared, event);
    take_end(w, event);
    take_loop(w, event);
    take_failure(w, event);
    w->judge->event(w->judge->self, event);
}

static void push_model(void *self, const cddp_event *event) { cd_models_push(self, event); }

static cddp_status show(void *source, const cddp_trace_sink *sink, cddp_error *err)
{
    witness *w = source;
    const cddp_trace_sink both = {sizeof both, CDDP_TRACE_ABI, w, take_event, NULL};
    const cddp_trace_sink one = {sizeof one, CDDP_TRACE_ABI, &w->models, push_model, NULL};
    w->judge = sink;
    w->ended[0] = '\0';
    w->has_waited = false;
    w->loops[0] = '\0';
    w->failed_count = 0;
    cd_circles_init(&w->circles, NULL);
    cd_models_begin(&w->models, w->model, &both);
    const cddp_status status = w->replay(w->source, &one, err);
    cd_circles_fini(&w->circles);
    return CD_PASS(status);
}

static void add_context(void *self, const cddp_event *event) { cd_result_add_context(self, event); }

/* With two models in one trace, a finding stands only when no number of a parameter or a bucket is
** part of it. */
static cddp_status keep_plain_findings(cd_result *result, cddp_error *err)
{
    static const char *const plain[] = {"I-GROUP", "I-ORDER", "I-FAIL", "I-LIVE"};
    const cddp_verdict *v = &result->verdict;
    size_t count = 0;
    cddp_finding *kept = cd_arena_push(&result->arena, (v->finding_count + 1) * sizeof *kept);
    if (kept == NULL) return cd_fail_memory(err, "%zu findings", v->finding_count);
    for (size_t i = 0; i < v->finding_count; i++)
        for (size_t k = 0; k < sizeof plain / sizeof plain[0]; k++)
            if (strcmp(v->findings[i].check, plain[k]) == 0) kept[count++] = v->findings[i];
    result->verdict.findings = kept;
    result->verdict.finding_count = count;
    return CDDP_OK;
}

static void take_source(void *self, const cddp_event *event) { cd_sources_push(self, event); }

/* Findings are read by who wrote the program: by its lines. */
static cddp_status add_sources(cd_result *result, witness *w, cddp_error *err)
{
    cd_sources sources;
    const cddp_verdict *v = &result->verdict;
    cddp_finding *copies = cd_arena_push(&result->arena, v->finding_count * sizeof *copies);
    if (copies == NULL) return cd_fail_memory(err, "%zu findings", v->finding_count);
    CD_TRY(cd_sources_init(&sources, w->world_size, &result->arena, NULL, err));
    const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, &sources, take_source, NULL};
    const cddp_status status = w->replay(w->source, &sink, err);
    for (size_t i = 0; status == CDDP_OK && i < v->finding_count; i++) {
        copies[i] = v->findings[i];
        cd_sources_add(&sources, &copies[i]);
    }
    cd_sources_fini(&sources);
    if (status == CDDP_OK) result->verdict.findings = copies;
    return CD_PASS(status);
}

/* What no check sees in single events: a comm hook that makes something else than the mean. */
static cddp_status accuse(cd_result *result, witness *w, cddp_error *err)
{
    uint32_t *ranks = cd_arena_push(&result->arena, w->world_size * sizeof *ranks);
    cddp_finding *finding = cd_arena_push(&result->arena, sizeof *finding);
    if (ranks == NULL || finding == NULL) return cd_fail_memory(err, "a finding");
    if (!cd_declared_accuses(&w->declared, finding)) return CDDP_OK;
    for (uint32_t i = 0; i < w->world_size; i++) ranks[i] = i;
    finding->ranks = ranks;
    finding->rank_count = w->world_size;
    cd_result_set_failure(result, CDDP_OUTCOME_FINDINGS, finding->title, "");
    result->verdict.findings = finding;
    result->verdict.finding_count = 1;
    return CDDP_OK;
}

/* A rank that waited is no hang: those that it waited for may have been about to come. */
static const char *print_ended(cd_result *result, const witness *w)
{
    const char *words = NULL;
    char stall[CD_DURATION_BYTES] = "";
    if (w->stall_ns != 0) cd_duration_print(w->stall_ns, stall, sizeof stall);
    if (w->ended[0] == '\0') return "";
    if (w->has_waited && strstr(w->ended, "no recording says") != NULL)
        words = cd_arena_printf(&result->arena,
                                "rank %" PRIu32 ": %s. Whether that is a hang, and whose, would be "
                                "seen from the recordings of all ranks\n",
                                w->ended_rank, w->ended);
    else if (w->has_waited)
        words = cd_arena_printf(&result->arena,
                                "rank %" PRIu32 ": %s. That is a hang once nothing has moved for "
                                "--stall%s%s%s: the others may have been about to come\n",
                                w->ended_rank, w->ended, stall[0] != '\0' ? " (" : "", stall,
                                stall[0] != '\0' ? ")" : "");
    else
        words = cd_arena_printf(&result->arena, "%s\n",
                                "the job was ended, or still runs, while every rank computed");
    return words != NULL ? words : "";
}

static const char *print_failed(cd_result *result, const witness *w)
{
    if (w->failed_count == 0) return "";
    const char *words =
        cd_arena_printf(&result->arena,
                        "the recorder of rank %" PRIu32 "%s failed, and the job went on: %s\n",
                        w->failed_rank, w->failed_count > 1 ? ", and of others," : "", w->failed);
    return words != NULL ? words : "";
}

/* Two groups of ranks that train the same parameters from the same values: one training, whose
** ranks were wrapped in parts? Or several on purpose. Of PyTorch's programs nothing is asked that
** they cannot say. */
static const char *print_parts(cd_result *result, witness *w)
{
    const cd_models *m = &w->models;
    const uint64_t start = cd_declared_get_start(&w->declared);
    const bool is_known = m->is_apart && (int64_t)m->module_count == m->count && start != 0;
    w->starts[w->model] = start;
    if (!is_known || w->declared.is_of_torch) return "";
    for (int64_t i = 0; i < w->model; i++)
        if (m->modules[i].number == m->modules[w->model].number && w->starts[i] == start)
            return cd_arena_printf(&result->arena,
                                   "not shown: why wrapped module %" PRId64
                                   " and this one train the same parameters apart, from the same "
                                   "values (one wrapper over all ranks; or groups that start from "
                                   "other values)\n",
                                   i + 1);
    return "";
}

/* All that keeps it from being verified is that somebody ended the job. */
static bool was_ended(const cddp_verdict *v)
{
    bool is_ended = false;
    for (size_t i = 0; i < v->rank_count; i++) {
        const cddp_rank_result *r = &v->ranks[i].result;
        if (r->end == CDDP_RANK_INTERRUPTED)
            is_ended = true;
        else if (r->end != CDDP_RANK_RETURNED || r->status != CDDP_OK)
            return false;
    }
    return is_ended && v->finding_count == 0;
}

/* Findings stand; without one, "verified" needs everything that the program owes. */
static cddp_status settle(cd_result *result, witness *w, cddp_error *err)
{
    const cddp_trace_sink context = {sizeof context, CDDP_TRACE_ABI, result, add_context, NULL};
    result->steps = (uint32_t)cd_declared_steps(&w->declared);
    if (cd_models_has_unnamed(&w->models)) cd_declared_note_models(&w->declared);
    const bool is_mixed = cd_declared_has_models(&w->declared);
    if (is_mixed) CD_TRY(keep_plain_findings(result, err));
    if (!is_mixed && result->verdict.finding_count == 0) CD_TRY(accuse(result, w, err));
    if (result->verdict.finding_count > 0) {
        CD_TRY(add_sources(result, w, err));
        return CD_PASS(w->replay(w->source, &context, err));
    }
    const char *owed = cd_declared_print_gaps(&w->declared, &result->verdict, &result->arena);
    const char *parts = print_parts(result, w);
    if (owed == NULL || parts == NULL) return cd_fail_memory(err, "a verdict");
    const char *gaps = cd_arena_printf(&result->arena, "%s%s", owed, parts);
    if (gaps == NULL) return cd_fail_memory(err, "a verdict");
    const char *words = cd_arena_printf(
        &result->arena,
        "nothing is broken in what the program showed, but it did not show enough\n%s%s%s%s",
        print_failed(result, w), w->loops, print_ended(result, w), gaps);
    if (words == NULL) return cd_fail_memory(err, "a verdict");
    if (was_ended(&result->verdict)) {
        cd_result_set_failure(result, CD_EXIT_INCONCLUSIVE,
                              "the job was ended before its ranks had finished", words);
        return CDDP_OK;
    }
    const bool may_be_short = is_mixed || result->verdict.outcome == CDDP_OUTCOME_VERIFIED ||
                              result->verdict.outcome == CDDP_OUTCOME_INCONCLUSIVE;
    if (gaps[0] != '\0' && may_be_short)
        cd_result_set_failure(result, CD_EXIT_INCONCLUSIVE,
                              "the program did not show enough to be verified", words);
    if (result->verdict.outcome != CDDP_OUTCOME_VERIFIED) return CDDP_OK;
    const char *unjudged = cd_declared_print_unjudged(&w->declared, &result->arena);
    if (unjudged == NULL) return cd_fail_memory(err, "a verdict");
    result->unjudged = unjudged;
    result->verdict.proven = cd_declared_print_proven(&w->declared, &result->arena);
    return result->verdict.proven != NULL ? CDDP_OK : cd_fail_memory(err, "a verdict");
}

/* The plan has the number of ranks and nothing else that a judge of events reads. */
static cddp_status make_plan(uint32_t world_size, cddp_plan **plan, cddp_error *err)
{
    char number[16];
    snprintf(number, sizeof number, "%" PRIu32, world_size);
    CD_TRY(cddp_plan_create(NULL, plan, err));
    const cddp_status status = cddp_plan_set(*plan, "world.size", number, err);
    if (status != CDDP_OK) cddp_plan_destroy(*plan);
    return CD_PASS(status);
}

static cddp_status judge_model(cd_result *result, const cddp_registry *registry, witness *w,
                               const cddp_plan *plan, cddp_error *err)
{
    cddp_verdict *verdict = NULL;
    CD_TRY(cd_declared_init(&w->declared, w->world_size, NULL, err));
    w->declared.model_count = w->models.count;
    cddp_status status = cddp_judge(plan, registry, show, w, &verdict, err);
    if (status == CDDP_OK) status = cd_result_take_verdict(result, verdict, err);
    if (status == CDDP_OK) status = settle(result, w, err);
    cddp_verdict_destroy(verdict);
    cd_declared_fini(&w->declared);
    return status;
}

/* What was said of all modules so far. */
typedef struct said {
    uint32_t least, most; /* steps */
    const char *proven, *unjudged, *last_proven, *last_unjudged;
    bool differs; /* of one module something else than of another */
} said;

static void name_model(cd_result *result, const witness *w, const said *of)
{
    char title[400], steps[64] = "";
    if (w->models.count == 1 || result->title == NULL) return;
    if (strstr(result->title, ", wrapped module") != NULL) return; /* as it was stored */
    if (of->least < of->most)
        snprintf(steps, sizeof steps, ", of %" PRIu32 " to %" PRIu32 " steps", of->least, of->most);
    if (w->model < w->models.count)
        snprintf(title, sizeof title, "%s, wrapped module %" PRId64 " of %" PRId64, result->title,
                 w->model + 1, w->models.count);
    else
        snprintf(title, sizeof title, "%s, wrapped modules 1 to %" PRId64 "%s", result->title,
                 w->models.count, steps);
    result->title = cd_result_copy(result, title);
}

static const char *join_words(cd_result *result, const witness *w, const char *before,
                              const char *words)
{
    return cd_arena_printf(&result->arena, "%s%s(%" PRId64 ") %s", before,
                           before[0] != '\0' ? " " : "", w->model + 1, words);
}

/* One more module that is verified. */
static cddp_status say_more(cd_result *result, const witness *w, said *of, cddp_error *err)
{
    const cddp_verdict *v = &result->verdict;
    const bool is_first = w->model == 0;
    if (is_first || result->steps < of->least) of->least = result->steps;
    if (is_first || result->steps > of->most) of->most = result->steps;
    of->proven = join_words(result, w, is_first ? "" : of->proven, v->proven);
    of->unjudged = join_words(result, w, is_first ? "" : of->unjudged, result->unjudged);
    if (of->proven == NULL || of->unjudged == NULL) return cd_fail_memory(err, "a verdict");
    of->differs |= !is_first && (strcmp(of->last_proven, v->proven) != 0 ||
                                 strcmp(of->last_unjudged, result->unjudged) != 0);
    of->last_proven = v->proven;
    of->last_unjudged = result->unjudged;
    return CDDP_OK;
}

/* One more of several, whatever was said of another one. */
static cddp_status judge_again(cd_result *result, const cddp_registry *registry, witness *w,
                               const cddp_plan *plan, cddp_error *err)
{
    result->details = result->unjudged = "";
    return CD_PASS(judge_model(result, registry, w, plan, err));
}

/* Where a rank leaves out a reduction of one module, those of another one take its place. */
static bool leads(const cddp_finding *a, const cddp_finding *b)
{
    return a->step != b->step ? a->step < b->step : a->is_cause && !b->is_cause;
}

/* Of several wrapped modules the one with the first finding is reported; without any, the first
** that is not verified. */
static cddp_status judge_models(cd_result *result, const cddp_registry *registry, witness *w,
                                const cddp_plan *plan, cddp_error *err)
{
    const cddp_trace_sink counter = {sizeof counter, CDDP_TRACE_ABI, &w->models, push_model, NULL};
    said of = {.proven = "", .unjudged = "", .last_proven = "", .last_unjudged = ""};
    const cddp_finding failure = {.step = UINT32_MAX}; /* a rank that failed, and no finding */
    cddp_finding first = failure;
    int64_t open = -1, accused = -1;
    cd_models_begin(&w->models, 0, NULL);
    CD_TRY(w->replay(w->source, &counter, err));
    for (w->model = 0; w->model < w->models.count; w->model++) {
        CD_TRY(judge_again(result, registry, w, plan, err));
        const cddp_verdict *v = &result->verdict;
        if (v->outcome == CDDP_OUTCOME_FINDINGS) {
            const cddp_finding *f = v->finding_count > 0 ? v->findings : &failure;
            if (accused >= 0 && !leads(f, &first)) continue;
            accused = w->model;
            first = *f;
        } else if (cd_results_exit_code(result, 1) == 0) {
            CD_TRY(say_more(result, w, &of, err));
        } else if (open < 0) {
            open = w->model;
        }
    }
    const int64_t shown = accused >= 0 ? accused : open;
    if (shown >= 0) {
        w->model = shown;
        if (shown + 1 < w->models.count) CD_TRY(judge_again(result, registry, w, plan, err));
    } else {
        result->steps = of.most;
        result->verdict.proven = of.differs ? of.proven : result->verdict.proven;
        result->unjudged = of.differs ? of.unjudged : result->unjudged;
    }
    name_model(result, w, &of);
    return CDDP_OK;
}

static cddp_status judge(cd_result *result, const cddp_registry *registry, witness *w,
                         cddp_error *err)
{
    cddp_plan *plan = NULL;
    CD_TRY(make_plan(w->world_size, &plan, err));
    cddp_status status = cd_models_init(&w->models, w->world_size, NULL, err);
    if (status == CDDP_OK) status = judge_models(result, registry, w, plan, err);
    cd_models_fini(&w->models);
    cddp_plan_destroy(plan);
    return status;
}

/* ---- a run of a store ---- */

typedef struct stored_source {
    cddp_store *store;
    int64_t run;
} stored_source;

static cddp_status replay_stored(void *source, const cddp_trace_sink *sink, cddp_error *err)
{
    const stored_source *s = source;
    return CD_PASS(cddp_store_each_event(s->store, s->run, CDDP_STORE_RECORDED, sink, err));
}

cddp_status cd_imported_judge(cd_result *result, const cd_session *session,
                              const cddp_stored_run *run, cddp_error *err)
{
    stored_source source = {session->store, run->run};
    witness w = {.replay = replay_stored,
                 .source = &source,
                 .world_size = run->provenance.world_size};
    return CD_PASS(judge(result, session->cli->registry, &w, err));
}

/* ---- shards ---- */

typedef struct shard_source {
    cd_shards *shards;
    size_t run;
} shard_source;

static cddp_status replay_shards(void *source, const cddp_trace_sink *sink, cddp_error *err)
{
    const shard_source *s = source;
    return CD_PASS(cd_shards_replay(s->shards, s->run, sink, err));
}

bool cd_imported_is(const cd_args *args)
{
    cd_shard_names names;
    cddp_error err = CDDP_ERROR_INIT;
    if (cd_shard_names_find(&names, (const char *const *)args->operands, args->operand_count,
                            &err) != CDDP_OK)
        return true; /* cd_imported_check reports it */
    const bool is = names.count > 0;
    cd_shard_names_fini(&names);
    return is;
}

static void describe(cd_result *result, const char *path, const cd_shards_run *run)
{
    char title[400];
    const char *program = run->program[0] != '\0' ? run->program : "a recorded program";
    if (run->generation > 0)
        snprintf(title, sizeof title, "%s, restart %" PRIu32, program, run->generation);
    else
        snprintf(title, sizeof title, "%s", program);
    result->source = cd_result_copy(result, path);
    result->title = cd_result_copy(result, title);
    result->backend = "recorded";
    result->world_size = run->world_size;
}

/* A recording that is not whole verifies nothing. */
static void settle_cut(cd_result *result, const cd_shards_run *run)
{
    char words[400];
    const bool stands = result->verdict.outcome != CDDP_OUTCOME_VERIFIED &&
                        result->verdict.outcome != CDDP_OUTCOME_INCONCLUSIVE;
    if (run->cut == run->world_size || stands) return;
    snprintf(words, sizeof words,
             "rank %" PRIu32 ": %" PRIu64 " events are missing at the end: %s\n", run->cut,
             run->lost, run->failure);
    cd_result_set_failure(result, CD_EXIT_INCONCLUSIVE, "a recording ended before its program did",
                          words);
}

/* A finding may rest on what is not there. */
static cddp_status mention_gaps(cd_result *result, const cd_shards_run *run, cddp_error *err)
{
    const char *words = NULL;
    if (result->verdict.outcome != CDDP_OUTCOME_FINDINGS) return CDDP_OK;
    if (run->missing < run->world_size)
        words = cd_arena_printf(&result->arena,
                                "%" PRIu32 " of %" PRIu32 " shards are missing, the first is rank "
                                "%" PRIu32 "'s: what these ranks did is not known",
                                run->world_size - run->rank_count, run->world_size, run->missing);
    else if (run->cut < run->world_size)
        words = cd_arena_printf(&result->arena,
                                "the recording of rank %" PRIu32 " ended early, %" PRIu64
                                " events are missing: %s",
                                run->cut, run->lost, run->failure);
    else
        return CDDP_OK;
    if (words == NULL) return cd_fail_memory(err, "a verdict");
    result->unjudged = words;
    return CDDP_OK;
}

static cddp_status keep(cddp_store *store, shard_source *source, const cd_shards_run *run,
                        cd_result *result, cddp_error *err)
{
    cd_provenance here;
    cd_provenance_init(&here);
    const cddp_run_provenance provenance = {.size = sizeof provenance,
                                            .title = result->title,
                                            .source = result->source,
                                            .backend = "recorded",
                                            .version = cddp_version(),
                                            .machine = here.machine,
                                            .compiler = here.compiler,
                                            .recorded_at = here.now,
                                            .plan = run->identity,
                                            .world_size = run->world_size,
                                            .steps = result->steps,
                                            .level = run->level};
    const cddp_run_outcome outcome = {.size = sizeof outcome,
                                      .exit_code = (uint32_t)result->verdict.outcome,
                                      .verdict = result->name,
                                      .reason = result->verdict.reason[0] != '\0'
                                                    ? result->verdict.reason
                                                    : result->verdict.summary,
                                      .digest = result->verdict.trace_digest,
                                      .virtual_time_ns = result->verdict.time_ns};
    CD_TRY(cddp_store_run_begin(store, &provenance, &result->stored_run, err));
    CD_TRY(replay_shards(source, cddp_store_sink(store), err));
    CD_TRY(cddp_store_add_verdict(store, &result->verdict, err));
    return CD_PASS(cddp_store_run_end(store, &outcome, err));
}

typedef struct recorded_job {
    cd_shards *shards;
    const cd_shard_names *names;
} recorded_job;

/* That the shard of a rank is missing is no news where its file is there: why it was not read
** is. */
static cddp_status explain_missing(cd_result *result, const cd_shard_names *names,
                                   const cd_shards_run *run, cddp_error *err)
{
    cddp_error why = CDDP_ERROR_INIT;
    if (run->missing == run->world_size || result->verdict.outcome == CDDP_OUTCOME_VERIFIED ||
        !cd_shard_names_explain(names, run, run->missing, &why))
        return CDDP_OK;
    if (result->verdict.outcome == CDDP_OUTCOME_FINDINGS) {
        result->unjudged = cd_arena_printf(&result->arena, "%s; %s", result->unjudged, why.message);
        return result->unjudged != NULL ? CDDP_OK : cd_fail_memory(err, "a verdict");
    }
    const char *words = cd_arena_printf(&result->arena, "%srank %" PRIu32 ": %s\n", result->details,
                                        run->missing, why.message);
    if (words == NULL) return cd_fail_memory(err, "a verdict");
    result->details = words;
    return CDDP_OK;
}

static cddp_status judge_run(cd_cli *cli, cddp_store *store, const recorded_job *job, size_t run,
                             cd_result *result, cddp_error *err)
{
    shard_source source = {job->shards, run};
    cd_shards_run facts;
    cd_shards_get(job->shards, run, &facts);
    witness w = {.replay = replay_shards,
                 .source = &source,
                 .world_size = facts.world_size,
                 .stall_ns = cd_shards_get_stall(job->shards)};
    describe(result, cli->args->operands[0], &facts);
    CD_TRY(judge(result, cli->registry, &w, err));
    settle_cut(result, &facts);
    CD_TRY(mention_gaps(result, &facts, err));
    CD_TRY(explain_missing(result, job->names, &facts, err));
    return store != NULL ? CD_PASS(keep(store, &source, &facts, result, err)) : CDDP_OK;
}

static cddp_status check_all(cd_cli *cli, const recorded_job *job, cd_result *results,
                             cddp_error *err)
{
    cddp_store *store = NULL;
    cddp_status status = CDDP_OK;
    const char *path = cd_args_text(cli->args, CD_OPTION_trace, NULL);
    if (path != NULL) CD_TRY(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &store, err));
    for (size_t i = 0; status == CDDP_OK && i < cd_shards_run_count(job->shards); i++)
        status = judge_run(cli, store, job, i, &results[i], err);
    cddp_store_close(store);
    return status;
}

/* What a file no longer says, or says of another job, judges nobody. */
static int fail_with(const cd_cli *cli, const cddp_error *err)
{
    const int exit_code = cd_cli_fail(cli, err);
    const bool is_damaged =
        err->status == CDDP_E_CORRUPT && strstr(err->message, " is damaged") != NULL;
    return is_damaged || err->status == CDDP_E_MISMATCH ? CD_EXIT_INCONCLUSIVE : exit_code;
}

/* A page draws the shards themselves: a job is looked at without keeping it in a store. */
static bool is_recorded(const void *source, const cd_report *report, size_t run)
{
    (void)report;
    return run < cd_shards_run_count(source);
}

static cddp_status replay_run(void *source, const cd_report *report, size_t run,
                              const cddp_trace_sink *sink, cddp_error *err)
{
    (void)report;
    return CD_PASS(cd_shards_replay(source, run, sink, err));
}

static int report_all(cd_cli *cli, cd_report_target *target, const recorded_job *job)
{
    cddp_error err = CDDP_ERROR_INIT;
    const size_t count = cd_shards_run_count(job->shards);
    cd_result *results = cd_allocate_array(NULL, count, sizeof *results);
    cddp_status status =
        results != NULL ? CDDP_OK : cd_fail_memory(&err, "the results of %zu runs", count);
    for (size_t i = 0; results != NULL && i < count; i++) cd_result_init(&results[i]);
    if (status == CDDP_OK) status = check_all(cli, job, results, &err);
    int exit_code;
    if (status == CDDP_OK) {
        cd_report report = {.results = results,
                            .count = count,
                            .registry = cli->registry,
                            .exit_code = cd_results_exit_code(results, count),
                            .quiet = cd_args_has(cli->args, CD_OPTION_quiet),
                            .verbose = cd_args_has(cli->args, CD_OPTION_verbose)};
        const cd_drawn_events events = {cli->args->operands[0], is_recorded, replay_run,
                                        job->shards};
        target->events = &events;
        exit_code = cd_report_send(cli, target, &report);
        target->events = NULL;
    } else {
        exit_code = fail_with(cli, &err);
    }
    for (size_t i = 0; results != NULL && i < count; i++) cd_result_fini(&results[i]);
    cd_release(NULL, results, count * sizeof *results);
    return exit_code;
}

int cd_imported_check(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_shards *shards = NULL;
    cd_shard_names names = {.count = 0};
    cd_report_target target;
    uint64_t stall_ns = 0;
    cddp_status status = cd_report_target_read(cli->args, &target, &err);
    if (status == CDDP_OK) status = cd_args_time(cli->args, CD_OPTION_stall, &stall_ns, &err);
    if (status == CDDP_OK) status = cd_report_target_check(&target, &err);
    if (status == CDDP_OK && cd_args_has(cli->args, CD_OPTION_run_number))
        status = cd_fail(&err, CDDP_E_ARG, "--run goes with a store: all shards are judged");
    if (status == CDDP_OK)
        status = cd_shard_names_find(&names, (const char *const *)cli->args->operands,
                                     cli->args->operand_count, &err);
    if (status == CDDP_OK)
        status = cd_shards_open((const char *const *)names.paths, names.count, &shards, &err);
    if (status == CDDP_OK && stall_ns != 0) cd_shards_set_stall(shards, stall_ns);
    const int exit_code = status == CDDP_OK
                              ? report_all(cli, &target, &(recorded_job){shards, &names})
                              : fail_with(cli, &err);
    cd_shards_close(shards);
    cd_shard_names_fini(&names);
    return exit_code;
}
