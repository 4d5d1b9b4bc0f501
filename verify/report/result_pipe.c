/* SPDX-License-Identifier: Apache-2.0 */
/* A result through a pipe, from a worker to the program that started it.
**
** One function visits every member, in both directions, so that writing and reading cannot
** disagree. Both ends are the same program: numbers and findings travel as they lie in memory,
** texts with their length. */
#include "verify/report/result.h"

#include "core/base/text.h"
#include "core/base/error.h"

#include <stdio.h>
#include <string.h>

typedef struct codec {
    cd_text *out;   /* writing, or NULL */
    const char *in; /* reading */
    size_t in_left;
    cd_result *result; /* whose arena takes what is read */
    bool failed;
} codec;

static void visit_bytes(codec *c, void *bytes, size_t count)
{
    if (c->out != NULL) {
        cd_text_push_bytes(c->out, bytes, count);
    } else if (!c->failed && count <= c->in_left) {
        memcpy(bytes, c->in, count);
        c->in += count;
        c->in_left -= count;
    } else {
        c->failed = true;
    }
}

static void visit_text(codec *c, const char **text)
{
    size_t length = c->out != NULL ? strlen(*text) : 0;
    visit_bytes(c, &length, sizeof length);
    if (c->out != NULL) {
        cd_text_push_bytes(c->out, *text, length);
        return;
    }
    char *copy =
        c->failed || length > c->in_left ? NULL : cd_arena_push(&c->result->arena, length + 1);
    if (copy == NULL) {
        c->failed = true;
        *text = "";
        return;
    }
    visit_bytes(c, copy, length);
    *text = copy;
}

/* The count, and when reading room for the items. */
static void visit_array(codec *c, void **items, size_t *count, size_t item_bytes)
{
    visit_bytes(c, count, sizeof *count);
    if (c->out != NULL) return;
    if (c->failed || *count > c->in_left) c->failed = true;
    *items =
        c->failed || *count == 0 ? NULL : cd_arena_push(&c->result->arena, *count * item_bytes);
    if (*items == NULL && *count != 0) {
        c->failed = true;
        *count = 0;
    }
}

/* One that may be absent. What was read of it before is another process's address. */
static void visit_optional_text(codec *c, const char **text)
{
    if (*text != NULL) visit_text(c, text);
}

static void visit_findings(codec *c, cd_result *r)
{
    cddp_finding *findings = (cddp_finding *)(uintptr_t)r->verdict.findings;
    visit_array(c, (void **)&findings, &r->verdict.finding_count, sizeof *findings);
    r->verdict.findings = findings;
    for (size_t i = 0; i < r->verdict.finding_count; i++) {
        const char *check = findings[i].check;
        void *ranks = (void *)(uintptr_t)findings[i].ranks;
        size_t rank_count = findings[i].rank_count;
        visit_text(c, &check);
        visit_bytes(c, &findings[i], sizeof findings[i]);
        visit_array(c, &ranks, &rank_count, sizeof *findings[i].ranks);
        if (rank_count > 0) visit_bytes(c, ranks, rank_count * sizeof *findings[i].ranks);
        visit_optional_text(c, &findings[i].name);
        visit_optional_text(c, &findings[i].wrapper);
        if (c->out == NULL) {
            findings[i].check = check;
            findings[i].ranks = ranks;
            findings[i].rank_count = rank_count;
        }
    }
}

/* NULL contexts are as many empty ones. */
static void visit_contexts(codec *c, cd_result *r)
{
    size_t count = r->contexts != NULL ? r->verdict.finding_count : 0;
    visit_array(c, (void **)&r->contexts, &count, sizeof *r->contexts);
    if (c->out == NULL && count != 0 && count != r->verdict.finding_count) c->failed = true;
    for (size_t i = 0; i < count && !c->failed; i++) {
        cd_result_context *context = &r->contexts[i];
        visit_array(c, (void **)&context->lines, &context->count, sizeof *context->lines);
        for (size_t k = 0; k < context->count; k++) visit_text(c, &context->lines[k]);
    }
}

static void visit_exercises(codec *c, cddp_verdict *v)
{
    cddp_exercise *exercises = (cddp_exercise *)(uintptr_t)v->exercises;
    visit_array(c, (void **)&exercises, &v->exercise_count, sizeof *exercises);
    v->exercises = exercises;
    for (size_t i = 0; i < v->exercise_count; i++) {
        visit_text(c, &exercises[i].check);
        visit_text(c, &exercises[i].how);
        visit_bytes(c, &exercises[i].count, sizeof exercises[i].count);
    }
}

static void visit_marks(codec *c, cddp_verdict *v)
{
    cddp_mark_count *marks = (cddp_mark_count *)(uintptr_t)v->marks;
    visit_array(c, (void **)&marks, &v->mark_count, sizeof *marks);
    v->marks = marks;
    for (size_t i = 0; i < v->mark_count; i++) {
        visit_text(c, &marks[i].name);
        visit_bytes(c, &marks[i].count, sizeof marks[i].count);
    }
}

/* Of a rank's error its message goes along, not the functions that it passed through. */
static void visit_ranks(codec *c, cddp_verdict *v)
{
    cddp_verdict_rank *ranks = (cddp_verdict_rank *)(uintptr_t)v->ranks;
    visit_array(c, (void **)&ranks, &v->rank_count, sizeof *ranks);
    v->ranks = ranks;
    for (size_t i = 0; i < v->rank_count; i++) {
        cddp_rank_result *r = &ranks[i].result;
        const char *message = r->error.message;
        visit_bytes(c, &ranks[i].events, sizeof ranks[i].events);
        visit_bytes(c, &ranks[i].step, sizeof ranks[i].step);
        visit_bytes(c, &r->end, sizeof r->end);
        visit_bytes(c, &r->status, sizeof r->status);
        visit_bytes(c, &r->detail, sizeof r->detail);
        visit_text(c, &message);
        if (c->out != NULL) continue;
        ranks[i].size = sizeof ranks[i];
        r->size = sizeof *r;
        snprintf(r->error.message, sizeof r->error.message, "%s", message);
        r->error.status = r->status;
    }
}

static void visit_waits(codec *c, cddp_verdict *v)
{
    cddp_wait *waits = (cddp_wait *)(uintptr_t)v->waits;
    visit_array(c, (void **)&waits, &v->wait_count, sizeof *waits);
    v->waits = waits;
    for (size_t i = 0; i < v->wait_count; i++) {
        const char *name = waits[i].name;
        void *peers = (void *)(uintptr_t)waits[i].peers;
        size_t count = waits[i].peer_count;
        visit_bytes(c, &waits[i], sizeof waits[i]);
        visit_text(c, &name);
        visit_array(c, &peers, &count, sizeof *waits[i].peers);
        if (count > 0) visit_bytes(c, peers, count * sizeof *waits[i].peers);
        if (c->out != NULL) continue;
        waits[i].name = name;
        waits[i].peers = peers;
        waits[i].peer_count = count;
    }
}

static void visit_verdict(codec *c, cddp_verdict *v)
{
    visit_bytes(c, &v->outcome, sizeof v->outcome);
    visit_bytes(c, &v->as_expected, sizeof v->as_expected);
    visit_text(c, &v->summary);
    visit_text(c, &v->reason);
    visit_text(c, &v->proven);
    visit_text(c, &v->unjudged);
    uint64_t *const numbers[] = {&v->event_count, &v->trace_digest, &v->timeless_digest,
                                 &v->plan_digest, &v->time_ns};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        visit_bytes(c, numbers[i], sizeof(uint64_t));
    visit_exercises(c, v);
    visit_marks(c, v);
    visit_ranks(c, v);
    visit_waits(c, v);
}

static void visit(codec *c, cd_result *r)
{
    const char **const texts[] = {&r->source,   &r->title,    &r->name,      &r->details,
                                  &r->backend,  &r->schedule, &r->reproduce, &r->shrink,
                                  &r->unjudged, &r->place,    &r->place_key};
    visit_verdict(c, &r->verdict);
    visit_findings(c, r);
    visit_contexts(c, r);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) visit_text(c, texts[i]);
    visit_bytes(c, &r->judged, sizeof r->judged);
    visit_bytes(c, &r->skipped, sizeof r->skipped);
    visit_bytes(c, &r->world_size, sizeof r->world_size);
    visit_bytes(c, &r->steps, sizeof r->steps);
    visit_bytes(c, &r->variant_count, sizeof r->variant_count);
    visit_bytes(c, &r->seed, sizeof r->seed);
    visit_bytes(c, &r->wall_ns, sizeof r->wall_ns);
    visit_bytes(c, &r->stored_run, sizeof r->stored_run);
    visit_bytes(c, &r->place_line, sizeof r->place_line);
}

void cd_result_write(const cd_result *result, cd_text *bytes)
{
    cd_result copy = *result; /* the visitor may write, though it does not while writing out */
    visit(&(codec){.out = bytes, .result = &copy}, &copy);
}

cddp_status cd_result_read(cd_result *result, const void *bytes, size_t byte_count, cddp_error *err)
{
    codec c = {.in = bytes, .in_left = byte_count, .result = result};
    visit(&c, result);
    if (c.failed || c.in_left != 0)
        return cd_fail(err, CDDP_E_CORRUPT, "a worker's result ends after %zu bytes", byte_count);
    return CDDP_OK;
}
