/* SPDX-License-Identifier: Apache-2.0 */
/* A result through a pipe, from a worker to the program that started it.
**
** One function visits every member, in both directions, so that writing and reading cannot
** disagree. Both ends are the same program: numbers and findings travel as they lie in memory,
** texts with their length. */
#include "verify/report/result.h"

#include "core/base/text.h"
#include "core/base/error.h"

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

static void visit_findings(codec *c, cd_result *r)
{
    visit_array(c, (void **)&r->findings, &r->finding_count, sizeof *r->findings);
    for (size_t i = 0; i < r->finding_count; i++) {
        cd_result_finding *f = &r->findings[i];
        const char *check = f->finding.check;
        void *ranks = (void *)(uintptr_t)f->finding.ranks;
        size_t rank_count = f->finding.rank_count;
        visit_text(c, &check);
        visit_bytes(c, &f->finding, sizeof f->finding);
        f->finding.check = check;
        visit_array(c, &ranks, &rank_count, sizeof *f->finding.ranks);
        if (rank_count > 0) visit_bytes(c, ranks, rank_count * sizeof *f->finding.ranks);
        f->finding.ranks = ranks;
        f->finding.rank_count = rank_count;
        visit_array(c, (void **)&f->context, &f->context_count, sizeof *f->context);
        for (size_t k = 0; k < f->context_count; k++) visit_text(c, &f->context[k]);
    }
}

static void visit_lists(codec *c, cd_result *r)
{
    visit_array(c, (void **)&r->exercises, &r->exercise_count, sizeof *r->exercises);
    for (size_t i = 0; i < r->exercise_count; i++) {
        visit_text(c, &r->exercises[i].check);
        visit_text(c, &r->exercises[i].how);
        visit_bytes(c, &r->exercises[i].count, sizeof r->exercises[i].count);
    }
    visit_array(c, (void **)&r->marks, &r->mark_count, sizeof *r->marks);
    for (size_t i = 0; i < r->mark_count; i++) {
        visit_text(c, &r->marks[i].name);
        visit_bytes(c, &r->marks[i].count, sizeof r->marks[i].count);
    }
    visit_array(c, (void **)&r->ranks, &r->rank_count, sizeof *r->ranks);
    for (size_t i = 0; i < r->rank_count; i++) {
        visit_bytes(c, &r->ranks[i].rank, sizeof r->ranks[i].rank);
        visit_text(c, &r->ranks[i].end);
        visit_text(c, &r->ranks[i].message);
    }
}

static void visit(codec *c, cd_result *r)
{
    const char **const texts[] = {&r->source,    &r->title,   &r->verdict, &r->summary,
                                  &r->reason,    &r->details, &r->backend, &r->schedule,
                                  &r->reproduce, &r->shrink,  &r->unjudged};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) visit_text(c, texts[i]);
    visit_bytes(c, &r->exit_code, sizeof r->exit_code);
    visit_bytes(c, &r->as_expected, sizeof r->as_expected);
    visit_bytes(c, &r->judged, sizeof r->judged);
    visit_bytes(c, &r->skipped, sizeof r->skipped);
    visit_bytes(c, &r->world_size, sizeof r->world_size);
    visit_bytes(c, &r->steps, sizeof r->steps);
    visit_bytes(c, &r->variant_count, sizeof r->variant_count);
    uint64_t *const numbers[] = {&r->seed,         &r->plan_digest,
                                 &r->trace_digest, &r->virtual_time_ns,
                                 &r->event_count,  &r->wall_ns};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        visit_bytes(c, numbers[i], sizeof(uint64_t));
    visit_bytes(c, &r->stored_run, sizeof r->stored_run);
    visit_findings(c, r);
    visit_lists(c, r);
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
