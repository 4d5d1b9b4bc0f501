/* SPDX-License-Identifier: Apache-2.0 */
/* Runs scenario files, each twice, and compares them with their expectations.
**
**     catalogue_test [--verbose] [--marks FILE] [--mutant CHECK [--says WORDS]] SCENARIO…
**
** A scenario fails when its verdict is not the expected one, or when its two runs differ in any
** event. It also fails when another interleaving of the ranks' events gives other findings
** (core/check/check.h). With --marks, every coverage mark listed in the file must have been
** reached by some scenario. With --mutant, this program was built with a planted mistake: what
** scenarios expect does not count, and the first finding must be this check's. CHECK may be
** "error": a rank must end with one, and nothing be found.
*/
#include "cddp/plugin.h"
#include "verify/worlds/compose.h"
#include "core/base/error.h"
#include "core/check/check.h"
#include "scenarios/reader/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARKS_MAX 256

/* tests/plants/hooks.c: mistakes that scenarios/bugs is about and that the product does not
** contain. */
extern const cddp_plugin cddp_plugin_v1;

typedef struct catalogue {
    const cddp_registry *registry;
    bool verbose;
    const char *mutant; /* the check that must report first; NULL: scenarios say what they expect */
    const char *says;   /* words of its title, or of the error; NULL: any */
    size_t passed, failed;
    char marks[MARKS_MAX][64];
    size_t mark_count;
} catalogue;

static void print_complaint(void *context, const cd_complaint *complaint)
{
    char text[1024];
    (void)context;
    cd_complaint_print(complaint, text, sizeof text);
    fputs(text, stderr);
}

static void print_error(const char *path, const cddp_error *err)
{
    char text[2048];
    cd_error_print(err, text, sizeof text);
    fprintf(stderr, "FAIL %s\n  %s\n", path, text);
}

static void print_verdict(const cddp_verdict *v)
{
    for (size_t i = 0; i < v->finding_count; i++) {
        const cddp_finding *f = &v->findings[i];
        printf("    %s step %u.%u rank %d peer %d bucket %d param %d %s: %s\n      expected: %s\n  "
               "    actual:   %s\n",
               f->check, f->step, f->micro_step, f->rank, f->peer, f->bucket, f->param,
               f->parameter, f->title, f->expected, f->actual);
    }
    for (size_t i = 0; i < v->rank_count; i++) {
        const cddp_rank_result *r = &v->ranks[i].result;
        if (r->status != CDDP_OK || r->end != CDDP_RANK_RETURNED) {
            printf("    rank %zu end %d status %d: %s\n", i, (int)r->end, (int)r->status,
                   r->error.message);
        }
    }
    printf("    exercised:");
    for (size_t i = 0; i < v->exercise_count; i++)
        printf(" %s×%llu", v->exercises[i].check, (unsigned long long)v->exercises[i].count);
    printf("\n    marks:");
    for (size_t i = 0; i < v->mark_count; i++)
        printf(" %s×%llu", v->marks[i].name, (unsigned long long)v->marks[i].count);
    printf("\n    %llu events, %llu ns\n", (unsigned long long)v->event_count,
           (unsigned long long)v->time_ns);
}

/* recorder: sees every event as well; NULL: none */
static cddp_status run_once(const catalogue *c, const cddp_plan *plan,
                            const cddp_trace_sink *recorder, cddp_verdict **verdict,
                            cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_compose *compose = NULL;
    const cd_compose_options options = {.plan = plan,
                                        .registry = c->registry,
                                        .level = CDDP_TRACE_DIGEST};
    CD_TRY_OUT(cd_compose_open(&options, &compose, err));
    cddp_run_options run = cddp_run_options_default();
    cd_compose_fill(compose, &run);
    run.registry = c->registry;
    run.sinks = &recorder;
    run.sink_count = recorder != NULL ? 1 : 0;
    CD_TRY_OUT(cddp_run(&run, verdict, err));
out:
    cd_compose_close(compose);
    return status;
}

static void keep_marks(catalogue *c, const cddp_verdict *v)
{
    for (size_t i = 0; i < v->mark_count; i++) {
        size_t k = 0;
        while (k < c->mark_count && strcmp(c->marks[k], v->marks[i].name) != 0) k++;
        if (k == c->mark_count && k < MARKS_MAX)
            snprintf(c->marks[c->mark_count++], sizeof c->marks[0], "%s", v->marks[i].name);
    }
}

static bool judge_runs(const catalogue *c, const char *path, const cddp_verdict *first,
                       const cddp_verdict *second)
{
    const bool same =
        first->trace_digest == second->trace_digest && first->event_count == second->event_count;
    const bool good = first->outcome == CDDP_OUTCOME_VERIFIED && same;
    printf("%s %s: %s%s%s%s\n", good ? "ok  " : "FAIL", path, first->summary,
           first->reason[0] != '\0' ? " (" : "", first->reason,
           first->reason[0] != '\0' ? ")" : "");
    if (!same) {
        printf("    two runs differ: trace %016llx with %llu events, then %016llx with %llu\n",
               (unsigned long long)first->trace_digest, (unsigned long long)first->event_count,
               (unsigned long long)second->trace_digest, (unsigned long long)second->event_count);
    }
    if (!good || c->verbose) print_verdict(first);
    return good;
}

/* Of the first rank that ended with one; NULL: of none. */
static const char *error_of(const cddp_verdict *v)
{
    for (size_t i = 0; i < v->rank_count; i++)
        if (v->ranks[i].result.status != CDDP_OK) return v->ranks[i].result.error.message;
    return NULL;
}

static bool judge_mutant(const catalogue *c, const char *path, const cddp_verdict *v)
{
    const char *error = error_of(v);
    const bool is_found = v->finding_count > 0 ? strcmp(v->findings[0].check, c->mutant) == 0
                                               : strcmp(c->mutant, "error") == 0 && error != NULL;
    const char *said = v->finding_count > 0 ? v->findings[0].title : error;
    const bool good = is_found && (c->says == NULL || strstr(said, c->says) != NULL);
    printf("%s %s: %s\n", good ? "ok  " : "FAIL", path,
           v->finding_count > 0 ? v->findings[0].title
           : error != NULL      ? error
                                : "no finding at all");
    if (!good || c->verbose) print_verdict(v);
    return good;
}

/* ---- another interleaving ---- */

typedef enum interleaving { BY_TIME, BY_RANK, BY_RANK_BACKWARDS, INTERLEAVINGS } interleaving;

/* Rank after rank; events of no rank come first. */
static void push_by_rank(const cd_memory_sink *trace, bool backwards, const cddp_trace_sink *sink)
{
    uint32_t ranks = 0;
    for (size_t i = 0; i < trace->count; i++) {
        const uint32_t rank = trace->events[i].rank;
        ranks = rank != UINT32_MAX && rank >= ranks ? rank + 1 : ranks;
    }
    for (uint32_t turn = 0; turn <= ranks; turn++) {
        const uint32_t rank = turn == 0 ? UINT32_MAX : backwards ? ranks - turn : turn - 1;
        for (size_t i = 0; i < trace->count; i++) {
            const cddp_event event = cd_memory_sink_get(trace, i);
            if (event.rank == rank) sink->event(sink->self, &event);
        }
    }
}

static cddp_status judge_trace(const cd_memory_sink *trace, interleaving order, cd_judge **judge,
                               cddp_error *err)
{
    CD_TRY(cd_judge_create(&(cd_judge_options){0}, judge, err));
    if (order == BY_TIME) CD_TRY(cd_judge_push_trace(*judge, trace, err));
    if (order != BY_TIME)
        push_by_rank(trace, order == BY_RANK_BACKWARDS, cd_judge_get_sink(*judge));
    return cd_judge_end(*judge, err);
}

static bool is_same_finding(const cddp_finding *a, const cddp_finding *b)
{
    return strcmp(a->check, b->check) == 0 && strcmp(a->title, b->title) == 0 &&
           strcmp(a->parameter, b->parameter) == 0 && strcmp(a->expected, b->expected) == 0 &&
           strcmp(a->actual, b->actual) == 0 && a->rank == b->rank && a->peer == b->peer &&
           a->rank_count == b->rank_count &&
           (a->rank_count == 0 ||
            memcmp(a->ranks, b->ranks, a->rank_count * sizeof *a->ranks) == 0) &&
           a->step == b->step && a->micro_step == b->micro_step && a->bucket == b->bucket;
}

static bool is_same_judgement(const char *path, const cd_judge *a, const cd_judge *b)
{
    const size_t count = cd_judge_finding_count(a), others = cd_judge_finding_count(b);
    for (size_t i = 0; i < count || i < others; i++) {
        const cddp_finding *x = i < count ? cd_judge_get_finding(a, i) : NULL,
                           *y = i < others ? cd_judge_get_finding(b, i) : NULL;
        if (x != NULL && y != NULL && is_same_finding(x, y)) continue;
        printf("FAIL %s: finding %zu depends on how the ranks' events interleave\n", path, i);
        for (int k = 0; k < 2; k++) {
            const cddp_finding *f = k == 0 ? x : y;
            if (f != NULL)
                printf("    %s %s step %u.%u rank %d peer %d bucket %d: %s\n      expected: %s\n   "
                       "   actual:   %s\n",
                       k == 0 ? "first" : "then ", f->check, f->step, f->micro_step, f->rank,
                       f->peer, f->bucket, f->title, f->expected, f->actual);
        }
        return false;
    }
    return true;
}

static bool judge_interleavings(const char *path, const cd_memory_sink *trace)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_judge *judges[INTERLEAVINGS] = {NULL};
    bool good = true;
    for (interleaving order = BY_TIME; good && order < INTERLEAVINGS; order++) {
        if (judge_trace(trace, order, &judges[order], &err) != CDDP_OK) {
            print_error(path, &err);
            good = false;
        } else if (order != BY_TIME) {
            good = is_same_judgement(path, judges[BY_TIME], judges[order]);
        }
    }
    for (interleaving order = BY_TIME; order < INTERLEAVINGS; order++)
        cd_judge_destroy(judges[order]);
    return good;
}

static bool run_scenario(catalogue *c, const char *path)
{
    const cd_reader_options reader = {.complain = print_complaint};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cddp_verdict *first = NULL, *second = NULL;
    cd_memory_sink trace;
    bool good = false;
    cd_memory_sink_init(&trace, NULL);
    if (cd_reader_read_file(&reader, path, &plan, &err) != CDDP_OK ||
        run_once(c, plan, &trace.sink, &first, &err) != CDDP_OK ||
        run_once(c, plan, NULL, &second, &err) != CDDP_OK) {
        print_error(path, &err);
    } else {
        good = c->mutant != NULL
                   ? judge_mutant(c, path, first)
                   : judge_runs(c, path, first, second) && judge_interleavings(path, &trace);
        keep_marks(c, first);
    }
    cddp_verdict_destroy(first);
    cddp_verdict_destroy(second);
    cddp_plan_destroy(plan);
    cd_memory_sink_fini(&trace);
    return good;
}

static size_t find_missing_marks(const catalogue *c, const char *path)
{
    size_t missing = 0;
    char line[128];
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "cannot open %s\n", path);
        return 1;
    }
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        bool seen = line[0] == '\0' || line[0] == '#';
        for (size_t i = 0; i < c->mark_count && !seen; i++) seen = strcmp(c->marks[i], line) == 0;
        if (!seen) {
            printf("FAIL coverage mark '%s' was reached by no scenario\n", line);
            missing++;
        }
    }
    fclose(file);
    return missing;
}

int main(int argc, char **argv)
{
    catalogue c = {0};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    const char *marks = NULL;
    if (cddp_registry_create(NULL, &registry, &err) != CDDP_OK ||
        cddp_registry_add_plugin(registry, &cddp_plugin_v1, &err) != CDDP_OK) {
        print_error("registry", &err);
        return EXIT_FAILURE;
    }
    c.registry = registry;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0)
            c.verbose = true;
        else if (strcmp(argv[i], "--mutant") == 0 && i + 1 < argc)
            c.mutant = argv[++i];
        else if (strcmp(argv[i], "--says") == 0 && i + 1 < argc)
            c.says = argv[++i];
        else if (strcmp(argv[i], "--marks") == 0 && i + 1 < argc)
            marks = argv[++i];
        else if (run_scenario(&c, argv[i]))
            c.passed++;
        else
            c.failed++;
    }
    c.failed += marks != NULL ? find_missing_marks(&c, marks) : 0;
    printf("%zu as expected, %zu not\n", c.passed, c.failed);
    cddp_registry_destroy(registry);
    return c.failed == 0 && c.passed > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
