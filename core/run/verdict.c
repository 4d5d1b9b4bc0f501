/* SPDX-License-Identifier: Apache-2.0 */
/* Copies the results of a run into one object that owns its texts. */
#include "core/run/verdict.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <string.h>

struct cddp_verdict_memory {
    const cddp_allocator *allocator;
    cd_arena arena;
    uint64_t missing_faults;
};

static cddp_status no_memory(cddp_error *err) { return cd_fail_memory(err, "a verdict"); }

static cddp_status copy_findings(cddp_verdict *v, const cd_judges *judges, cddp_error *err)
{
    size_t count = 0;
    cddp_finding *findings = cd_judges_take_findings(judges, &v->memory->arena, &count);
    if (findings == NULL) return CD_PASS(no_memory(err));
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = findings[i].rank_count * sizeof *findings[i].ranks;
        uint32_t *ranks = cd_arena_push(&v->memory->arena, bytes + 1);
        if (ranks == NULL) return CD_PASS(no_memory(err));
        if (bytes > 0) memcpy(ranks, findings[i].ranks, bytes);
        findings[i].ranks = ranks;
        if (findings[i].wrapper != NULL) {
            findings[i].wrapper = cd_arena_strdup(&v->memory->arena, findings[i].wrapper);
            if (findings[i].wrapper == NULL) return CD_PASS(no_memory(err));
        }
        if (findings[i].name == NULL) continue;
        findings[i].name = cd_arena_strdup(&v->memory->arena, findings[i].name);
        if (findings[i].name == NULL) return CD_PASS(no_memory(err));
    }
    v->findings = findings;
    v->finding_count = count;
    return CDDP_OK;
}

/* Of a check over all wrappers: every judge has the checks in one order. */
static cd_judge_exercise sum_exercises(const cd_judges *judges, size_t index)
{
    cd_judge_exercise sum = *cd_judge_get_exercise(judges->items[0].judge, index);
    for (size_t i = 1; i < judges->count; i++) {
        const cd_judge_exercise *e = cd_judge_get_exercise(judges->items[i].judge, index);
        if (sum.count == 0) memcpy(sum.how, e->how, sizeof sum.how);
        sum.count += e->count;
    }
    return sum;
}

static cddp_status copy_exercises(cddp_verdict *v, const cd_judges *judges, cddp_error *err)
{
    const size_t count = cd_judge_exercise_count(judges->items[0].judge);
    cddp_exercise *exercises = cd_arena_push(&v->memory->arena, (count + 1) * sizeof *exercises);
    if (exercises == NULL) return CD_PASS(no_memory(err));
    for (size_t i = 0; i < count; i++) {
        const cd_judge_exercise exercise = sum_exercises(judges, i);
        if (exercise.count > 0) {
            const char *how = cd_arena_strdup(&v->memory->arena, exercise.how);
            if (how == NULL) return CD_PASS(no_memory(err));
            exercises[v->exercise_count++] = (cddp_exercise){exercise.check, how, exercise.count};
        }
    }
    v->exercises = exercises;
    return CDDP_OK;
}

/* Every judge sees the same waits, but only the wrapper's own knows the number of its bucket. */
static const cddp_wait *find_wait(const cd_judges *judges, size_t index)
{
    const cddp_wait *found = cd_judge_get_wait(judges->items[0].judge, index);
    for (size_t i = 1; i < judges->count; i++) {
        const cddp_wait *wait = index < cd_judge_wait_count(judges->items[i].judge)
                                    ? cd_judge_get_wait(judges->items[i].judge, index)
                                    : NULL;
        if (found->bucket < 0 && wait != NULL && wait->rank == found->rank && wait->bucket >= 0)
            found = wait;
    }
    return found;
}

static cddp_status copy_waits(cddp_verdict *v, const cd_judges *judges, cddp_error *err)
{
    cd_arena *arena = &v->memory->arena;
    const size_t count = cd_judge_wait_count(judges->items[0].judge);
    cddp_wait *waits = cd_arena_push(arena, (count + 1) * sizeof *waits);
    if (waits == NULL) return CD_PASS(no_memory(err));
    for (size_t i = 0; i < count; i++) {
        waits[i] = *find_wait(judges, i);
        const size_t bytes = waits[i].peer_count * sizeof *waits[i].peers;
        uint32_t *peers = cd_arena_push(arena, bytes + 1);
        const char *name = cd_arena_strdup(arena, waits[i].name);
        if (peers == NULL || name == NULL) return CD_PASS(no_memory(err));
        if (bytes > 0) memcpy(peers, waits[i].peers, bytes);
        waits[i].peers = peers;
        waits[i].name = name;
    }
    v->waits = waits;
    v->wait_count = count;
    return CDDP_OK;
}

static cddp_status copy_tap(cddp_verdict *v, const cd_tap *tap, const cddp_rank_result *results,
                            cddp_error *err)
{
    cddp_mark_count *marks =
        cd_arena_push(&v->memory->arena, (tap->mark_count + 1) * sizeof *marks);
    cddp_verdict_rank *ranks =
        cd_arena_push(&v->memory->arena, (tap->rank_count + 1) * sizeof *ranks);
    if (marks == NULL || ranks == NULL) return CD_PASS(no_memory(err));
    for (size_t i = 0; i < tap->mark_count; i++) {
        marks[i].name = cd_arena_strdup(&v->memory->arena, tap->marks[i].name);
        if (marks[i].name == NULL) return CD_PASS(no_memory(err));
        marks[i].count = tap->marks[i].count;
    }
    for (size_t i = 0; i < tap->rank_count; i++) {
        ranks[i] =
            (cddp_verdict_rank){.size = sizeof ranks[i],
                                .events = tap->ranks[i].count,
                                .step = tap->ranks[i].step,
                                .result = results != NULL ? results[i] : tap->ranks[i].result};
    }
    v->marks = marks;
    v->mark_count = tap->mark_count;
    v->ranks = ranks;
    v->rank_count = tap->rank_count;
    v->event_count = cd_tap_count(tap);
    v->trace_digest = cd_tap_digest(tap, false);
    v->timeless_digest = cd_tap_digest(tap, true);
    v->time_ns = cd_tap_time(tap);
    v->memory->missing_faults = cd_strikes_get_missing(&tap->strikes);
    v->unjudged = cd_coverage_print_unjudged(&tap->coverage, &v->memory->arena);
    if (v->unjudged == NULL) return CD_PASS(no_memory(err));
    return CDDP_OK;
}

cddp_status cd_verdict_create(const cd_verdict_input *input, cddp_verdict **verdict,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_verdict *v = cd_allocate_zero(input->allocator, sizeof *v);
    cddp_verdict_memory *memory = cd_allocate_zero(input->allocator, sizeof *memory);
    if (v == NULL || memory == NULL) {
        cd_release(input->allocator, v, sizeof *v);
        cd_release(input->allocator, memory, sizeof *memory);
        return CD_PASS(no_memory(err));
    }
    memory->allocator = input->allocator;
    cd_arena_init(&memory->arena, input->allocator, 8192);
    v->size = sizeof *v;
    v->proven = v->unjudged = "";
    v->memory = memory;
    v->plan_digest = input->plan_digest;
    if (input->judges != NULL && input->judges->count > 0) {
        CD_TRY_OUT(copy_findings(v, input->judges, err));
        CD_TRY_OUT(copy_exercises(v, input->judges, err));
        CD_TRY_OUT(copy_waits(v, input->judges, err));
    }
    if (input->tap != NULL) CD_TRY_OUT(copy_tap(v, input->tap, input->results, err));
    CD_TRY_OUT(cd_verdict_measure(input, &memory->arena, v, err));
    *verdict = v;
    v = NULL;
out:
    cddp_verdict_destroy(v);
    return status;
}

uint64_t cd_verdict_get_missing_faults(const cddp_verdict *verdict)
{
    return verdict->memory->missing_faults;
}

void cddp_verdict_destroy(cddp_verdict *verdict)
{
    if (verdict != NULL) {
        cddp_verdict_memory *memory = verdict->memory;
        const cddp_allocator *allocator = memory->allocator;
        cd_arena_fini(&memory->arena);
        cd_release(allocator, memory, sizeof *memory);
        cd_release(allocator, verdict, sizeof *verdict);
    }
}
