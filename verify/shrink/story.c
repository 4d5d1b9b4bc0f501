/* SPDX-License-Identifier: Apache-2.0 */
/* A shrunk failure, narrated in order. */
#include "verify/shrink/story.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/event.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define EVENT_WORDS 320

typedef struct reporting {
    const cd_shrink *shrink;
    cd_text *text;
    cd_memory_sink failing, passing;
    bool has_passing;
    cd_text difference; /* what the passing run lacks, in words */
    size_t rank_count;
} reporting;

/* ---- reading the record ---- */

static const char *name_by_ordinal(const reporting *t, uint64_t ordinal, char *words,
                                   size_t words_bytes)
{
    snprintf(words, words_bytes, "parameter %" PRIu64, ordinal);
    for (size_t i = 0; i < t->failing.count; i++) {
        const cddp_event event = cd_memory_sink_get(&t->failing, i);
        if (event.kind != CDDP_EV_param || event.as.param.ordinal != (int64_t)ordinal ||
            event.text == NULL)
            continue;
        snprintf(words, words_bytes, "%s", event.text);
        break;
    }
    return words;
}

/* The ordinal of a reduced parameter on a rank; -1 when it is not known. */
static int64_t ordinal_of(const reporting *t, uint32_t rank, int64_t param)
{
    for (size_t i = 0; i < t->failing.count; i++) {
        const cddp_event *e = &t->failing.events[i];
        if (e->kind == CDDP_EV_param && e->rank == rank && e->as.param.param == param)
            return e->as.param.ordinal;
    }
    return -1;
}

/* The step a rank was in when the number-th choice was made; 0 when there is no record of it. */
static uint32_t step_of_choice(const reporting *t, uint64_t number, uint32_t rank)
{
    uint64_t seen = 0;
    uint32_t step = 0;
    for (size_t i = 0; i < t->failing.count; i++) {
        const cddp_event *e = &t->failing.events[i];
        if (e->kind == CDDP_EV_choice && seen++ == number) break;
        if (e->rank == rank) step = e->step;
    }
    return step;
}

/* ---- decisions ---- */

static void put_ready(reporting *t, const cd_decision *d)
{
    char taken[128], fifo[128];
    cd_text_printf(t->text, "in step %" PRIu32 " rank %" PRIu32 " made %s ready before %s",
                   step_of_choice(t, d->number, d->rank), d->rank,
                   name_by_ordinal(t, d->id, taken, sizeof taken),
                   name_by_ordinal(t, d->fifo_id, fifo, sizeof fifo));
}

static void put_decision(reporting *t, const cd_decision *d)
{
    switch (d->kind) {
    case CDDP_CHOICE_READY:
        put_ready(t, d);
        break;
    case CDDP_CHOICE_RUN:
        cd_text_printf(t->text, "rank %" PRIu64 " went on before rank %" PRIu64, d->id, d->fifo_id);
        break;
    case CDDP_CHOICE_COMPLETE:
        if (d->id < t->rank_count)
            cd_text_printf(t->text,
                           "rank %" PRIu64 " went on before an operation that could complete did",
                           d->id);
        else
            cd_text_push(t->text, "an operation completed before an earlier one");
        break;
    case CDDP_CHOICE_ORDER:
        cd_text_printf(t->text,
                       "the contribution of rank %" PRIu64
                       " was added before that of rank %" PRIu64,
                       d->id, d->fifo_id);
        break;
    case CDDP_CHOICE_FAULT:
        cd_text_push(t->text, "an optional fault struck");
        break;
    case CDDP_CHOICE_USER:
        cd_text_printf(t->text, "rank %" PRIu32 " continued the hook of bucket %" PRIu64 " before ",
                       d->rank, d->id);
        if (d->fifo_id == UINT32_MAX)
            cd_text_push(t->text, "it launched the next bucket");
        else
            cd_text_printf(t->text, "that of bucket %" PRIu64, d->fifo_id);
        break;
    default:
        cd_text_printf(t->text, "rank %" PRIu32 " took option %" PRIu32 " instead of the first",
                       d->rank, d->value);
        break;
    }
}

static void put_decisions(reporting *t)
{
    const cd_decision_list *list = &t->shrink->wishes;
    for (size_t i = 0; i < list->count; i++) {
        cd_text_push(t->text, i == 0 ? "It takes " : i + 1 < list->count ? ", " : " and ");
        if (i == 0)
            cd_text_printf(t->text, "%zu decision%s: ", list->count, list->count == 1 ? "" : "s");
        put_decision(t, &list->items[i]);
    }
    if (list->count > 0) cd_text_push(t->text, ". ");
}

/* ---- what differs between the ranks ---- */

/* The nth event of a kind on a rank in a step; NULL past the last. */
static const cddp_event *find_event(const cd_memory_sink *record, uint16_t kind, uint32_t rank,
                                    uint32_t step, size_t nth)
{
    for (size_t i = 0; i < record->count; i++) {
        const cddp_event *e = &record->events[i];
        if (e->kind == kind && e->rank == rank && e->step == step && nth-- == 0) return e;
    }
    return NULL;
}

/* The first place where two ranks' gradients did not come in one order. Only for what both see
** under one number. */
static bool put_ready_order(reporting *t, uint32_t rank, uint32_t step)
{
    char mine[128], theirs[128];
    for (size_t n = 0;; n++) {
        const cddp_event *a = find_event(&t->failing, CDDP_EV_grad_local, rank, step, n);
        const cddp_event *b = find_event(&t->failing, CDDP_EV_grad_local, 0, step, n);
        if (a == NULL || b == NULL) return false;
        const int64_t p = ordinal_of(t, rank, a->as.grad_local.param),
                      q = ordinal_of(t, 0, b->as.grad_local.param);
        if (p == q || p < 0 || q < 0) continue;
        cd_text_printf(t->text,
                       "Rank %" PRIu32
                       " made %s ready before %s, rank 0 the other way round (step %" PRIu32
                       "), so ",
                       rank, name_by_ordinal(t, (uint64_t)p, mine, sizeof mine),
                       name_by_ordinal(t, (uint64_t)q, theirs, sizeof theirs), step);
        return true;
    }
}

/* A sentence begins behind a full stop, and goes on behind "so". */
static const char *first_word(const reporting *t, const char *begins, const char *goes_on)
{
    const char *text = cd_text_get(t->text);
    size_t length = strlen(text);
    return length >= 2 && text[length - 2] == '.' ? begins : goes_on;
}

/* The first launch that is not the same bucket of the same layout on two ranks. */
static bool put_launch_order(reporting *t, uint32_t rank, uint32_t step)
{
    for (size_t n = 0;; n++) {
        const cddp_event *a = find_event(&t->failing, CDDP_EV_bucket_launch, rank, step, n);
        const cddp_event *b = find_event(&t->failing, CDDP_EV_bucket_launch, 0, step, n);
        if (a == NULL && b == NULL) return false;
        if (a == NULL || b == NULL) {
            cd_text_printf(t->text,
                           "%s %" PRIu32 " launched bucket %" PRId64 " where rank %" PRIu32
                           " launched nothing; ",
                           first_word(t, "Rank", "rank"), a != NULL ? rank : 0,
                           (a != NULL ? a : b)->as.bucket_launch.bucket, a != NULL ? 0 : rank);
            return true;
        }
        if (a->as.bucket_launch.bucket == b->as.bucket_launch.bucket &&
            a->as.bucket_launch.content == b->as.bucket_launch.content)
            continue;
        if (a->as.bucket_launch.bucket != b->as.bucket_launch.bucket)
            cd_text_printf(t->text,
                           "%s %" PRIu32 " launched bucket %" PRId64
                           " where rank 0 launched bucket %" PRId64 "; ",
                           first_word(t, "Rank", "rank"), rank, a->as.bucket_launch.bucket,
                           b->as.bucket_launch.bucket);
        else
            cd_text_printf(t->text,
                           "%s %" PRId64 " of rank %" PRIu32
                           " held other gradients than that of rank 0; ",
                           first_word(t, "Bucket", "bucket"), a->as.bucket_launch.bucket, rank);
        return true;
    }
}

static void put_differences(reporting *t)
{
    const cddp_finding *f = &t->shrink->best.finding;
    const bool failed_by_finding = f->check != NULL;
    bool ready = false, launch = false;
    for (uint32_t step = 0; step <= (failed_by_finding ? f->step : 0); step++)
        for (uint32_t rank = 1; rank < t->rank_count && !ready; rank++)
            ready = put_ready_order(t, rank, step);
    for (uint32_t step = 0; step <= (failed_by_finding ? f->step : 0); step++)
        for (uint32_t rank = 1; rank < t->rank_count && !launch; rank++)
            launch = put_launch_order(t, rank, step);
}

/* ---- the finding, and the run that passes ---- */

static void put_finding(reporting *t)
{
    const cd_probe *best = &t->shrink->best;
    const cddp_finding *f = &best->finding;
    if (f->check == NULL) {
        cd_text_printf(t->text, "the run ends with: %s. ", best->failure);
        return;
    }
    cd_text_printf(t->text, "%s finds in step %" PRIu32 ": %s. ", f->check, f->step, f->title);
    if (f->expected[0] != '\0')
        cd_text_printf(t->text, "Expected: %s; found: %s. ", f->expected, f->actual);
    cd_text_push(
        t->text,
        best->reason.finished
            ? "Every rank came to its end, so without the check nobody would have noticed. "
            : "Not every rank came to its end. ");
}

static bool same_event(const cddp_event *a, const cddp_event *b)
{
    const uint32_t fields = cd_event_field_counts[a->kind];
    return a->kind == b->kind && a->step == b->step && a->micro_step == b->micro_step &&
           memcmp(a->as.field, b->as.field, fields * sizeof a->as.field[0]) == 0;
}

/* Times and choice points aside: events that say what a rank did. */
static bool event_counts(const cddp_event *e, uint32_t rank)
{
    return e->rank == rank && e->kind != CDDP_EV_compute && e->kind != CDDP_EV_option &&
           e->kind != CDDP_EV_collective_done && e->kind != CDDP_EV_collective_post;
}

/* Where rank's own story first goes another way than in the passing run; the position in the
** failing record. */
static size_t find_parting(const reporting *t, uint32_t rank)
{
    size_t k = 0;
    for (size_t i = 0; i < t->failing.count; i++) {
        const cddp_event *e = &t->failing.events[i];
        if (!event_counts(e, rank)) continue;
        while (k < t->passing.count && !event_counts(&t->passing.events[k], rank)) k++;
        if (k == t->passing.count || !same_event(e, &t->passing.events[k])) return i;
        k++;
    }
    return t->failing.count;
}

static void put_passing(reporting *t)
{
    size_t first = t->failing.count;
    char words[EVENT_WORDS];
    if (!t->has_passing) {
        cd_text_push(t->text, "No run that differs in one thing only is verified. ");
        return;
    }
    cd_text_printf(t->text, "Without %s the run is verified", cd_text_get(&t->difference));
    for (uint32_t rank = 0; rank < t->rank_count; rank++) {
        const size_t at = find_parting(t, rank);
        first = at < first ? at : first;
    }
    if (first < t->failing.count) {
        const cddp_event event = cd_memory_sink_get(&t->failing, first);
        cd_event_print(&event, words, sizeof words);
        cd_text_printf(t->text, "; the two runs part at: %s", words);
    }
    cd_text_push(t->text, ".");
}

/* ---- the nearest run that passes ---- */

static cddp_status record_run(reporting *t, const cd_draft *draft, const cd_probe_policy *policy,
                              cd_memory_sink *record, cd_probe *trial, cddp_error *err)
{
    cd_memory_sink_clear(record);
    CD_TRY(cd_shrink_try(t->shrink, draft, policy, record, trial, err));
    return CDDP_OK;
}

static bool is_verified(const cd_probe *trial)
{
    return !trial->failed && !trial->refused && !trial->interrupted && trial->event_count > 0;
}

/* One deviation less, the last first. */
static cddp_status find_passing_schedule(reporting *t, cddp_error *err)
{
    const cd_shrink *s = t->shrink;
    cddp_status status = CDDP_OK;
    cd_text *const text = t->text;
    cd_decision *wishes = cd_allocate_array(NULL, s->wishes.count + 1, sizeof *wishes);
    if (wishes == NULL) return cd_fail_memory(err, "a story");
    for (size_t gone = s->wishes.count; gone-- > 0 && !t->has_passing;) {
        size_t count = 0;
        cd_probe trial = {.failed = false};
        for (size_t i = 0; i < s->wishes.count; i++)
            if (i != gone) wishes[count++] = s->wishes.items[i];
        const cd_probe_policy policy = {.wishes = wishes, .wish_count = count};
        CD_TRY_OUT(record_run(t, &s->draft, &policy, &t->passing, &trial, err));
        t->has_passing = is_verified(&trial);
        cd_probe_fini(&trial);
        if (!t->has_passing) continue;
        t->text = &t->difference;
        cd_text_push(t->text, "the decision that ");
        put_decision(t, &s->wishes.items[gone]);
        t->text = text;
    }
out:
    cd_release(NULL, wishes, (s->wishes.count + 1) * sizeof *wishes);
    return status;
}

static cddp_status try_edit(reporting *t, const cd_edit *edit, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_draft draft;
    bool possible = false;
    cd_probe trial = {.failed = false};
    const cd_probe_policy policy = {.wishes = t->shrink->wishes.items,
                                    .wish_count = t->shrink->wishes.count};
    cd_draft_init(&draft);
    CD_TRY_OUT(cd_edit_apply(edit, &t->shrink->draft, &draft, &possible, err));
    if (possible) CD_TRY_OUT(record_run(t, &draft, &policy, &t->passing, &trial, err));
    t->has_passing = possible && is_verified(&trial);
    if (t->has_passing) cd_edit_print(edit, &t->shrink->draft, &t->difference);
out:
    cd_probe_fini(&trial);
    cd_draft_fini(&draft);
    return status;
}

/* Which edits a person would call one thing less: settings first, then parameters, then ranks and
** steps. */
static int pass_of(const cd_edit *edit)
{
    switch (edit->kind) {
    case CD_EDIT_ELEMENT:
    case CD_EDIT_SETTING:
    case CD_EDIT_ITEM:
    case CD_EDIT_TERM:
    case CD_EDIT_OPTION:
    case CD_EDIT_PIECE:
        return 0;
    case CD_EDIT_PARAMETER:
        return 1;
    case CD_EDIT_RANKS:
    case CD_EDIT_STEPS:
    case CD_EDIT_MICRO_STEPS:
        return 2;
    default:
        return 3;
    }
}

static cddp_status find_passing_scenario(reporting *t, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_edit_list edits = {.count = 0};
    cd_draft draft;
    cd_draft_init(&draft);
    CD_TRY_OUT(cd_draft_copy(&draft, &t->shrink->draft, err));
    CD_TRY_OUT(cd_edit_list_make(&edits, &draft, false, err));
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < edits.count && !t->has_passing; i++)
            if (pass_of(&edits.items[i]) == pass) CD_TRY_OUT(try_edit(t, &edits.items[i], err));
out:
    cd_edit_list_fini(&edits);
    cd_draft_fini(&draft);
    return status;
}

/* ---- from where on it was inevitable ---- */

/* How many random continuations of the first `kept` choices fail the same way. */
static cddp_status count_failures(const cd_shrink *s, size_t kept, size_t *failures,
                                  cddp_error *err)
{
    *failures = 0;
    for (size_t i = 0; i < CD_STORY_TRIES; i++) {
        cd_probe trial = {.failed = false};
        const cd_probe_policy policy = {.prefix = s->best.decisions.items,
                                        .prefix_count = kept,
                                        .random = true,
                                        .seed = s->options.seed + i};
        CD_TRY(cd_shrink_try(s, &s->draft, &policy, NULL, &trial, err));
        *failures += cd_shrink_is_same(s, &trial);
        cd_probe_fini(&trial);
    }
    return CDDP_OK;
}

static cddp_status report_inevitable(reporting *t, cddp_error *err)
{
    const cd_shrink *s = t->shrink;
    const size_t total = s->best.decisions.count;
    size_t low = 0, high = total, failures = 0,
           before = 0; /* inevitable after `high` choices; not so after less than `low` */
    if (total == 0) {
        cd_text_push(t->text, "Nothing in it is left to choice: it fails every time.");
        return CDDP_OK;
    }
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        CD_TRY(count_failures(s, middle, &failures, err));
        if (failures == CD_STORY_TRIES) {
            high = middle;
        } else {
            low = middle + 1;
            before = failures;
        }
    }
    if (high == 0) {
        cd_text_printf(t->text,
                       "It was inevitable from the start: %d of %d random schedules fail the same "
                       "way (seed %" PRIu64 ").",
                       CD_STORY_TRIES, CD_STORY_TRIES, s->options.seed);
        return CDDP_OK;
    }
    cd_text_printf(t->text, "Inevitable from choice %zu of %zu on, where ", high - 1, total);
    const cd_decision *d = &s->best.decisions.items[high - 1];
    if (d->value != 0)
        put_decision(t, d);
    else
        cd_text_push(t->text, "everything went on as queued");
    cd_text_printf(t->text,
                   ": after it all of %d random continuations fail the same way, one choice "
                   "earlier %zu of %d do (seed %" PRIu64 ").",
                   CD_STORY_TRIES, before, CD_STORY_TRIES, s->options.seed);
    return CDDP_OK;
}

/* ---- all of it ---- */

static void put_setting_out(reporting *t, const cddp_plan *plan)
{
    size_t parameters = 0;
    for (size_t i = 0; i < t->failing.count; i++)
        parameters += t->failing.events[i].kind == CDDP_EV_param && t->failing.events[i].rank == 0;
    cd_text_printf(t->text, "%" PRIu64 " rank%s %zu parameter%s for %" PRIu64 " step%s",
                   plan->world.size, plan->world.size == 1 ? " trains" : "s train", parameters,
                   parameters == 1 ? "" : "s", plan->settings.train.steps,
                   plan->settings.train.steps == 1 ? "" : "s");
    if (plan->settings.train.micro_steps > 1)
        cd_text_printf(t->text, " of %" PRIu64 " micro-steps", plan->settings.train.micro_steps);
    cd_text_push(t->text, ". ");
}

static cddp_status report(reporting *t, cd_story *story, cddp_error *err)
{
    const cd_shrink *s = t->shrink;
    const cd_probe_policy policy = {.wishes = s->wishes.items, .wish_count = s->wishes.count};
    cd_probe trial = {.failed = false};
    cddp_plan *plan = NULL;
    CD_TRY(record_run(t, &s->draft, &policy, &t->failing, &trial, err));
    cd_probe_fini(&trial);
    CD_TRY(find_passing_schedule(t, err));
    if (!t->has_passing) CD_TRY(find_passing_scenario(t, err));
    CD_TRY(cd_draft_make(&s->draft, &plan, err));
    t->rank_count = (size_t)plan->world.size;
    put_setting_out(t, plan);
    cddp_plan_destroy(plan);
    put_decisions(t);
    put_differences(t);
    put_finding(t);
    put_passing(t);
    t->text = &story->inevitable;
    CD_TRY(report_inevitable(t, err));
    return CDDP_OK;
}

cddp_status cd_story_print(cd_story *story, const cd_shrink *shrink, cddp_error *err)
{
    cd_text_init(&story->paragraph, false);
    cd_text_init(&story->inevitable, false);
    reporting t = {.shrink = shrink, .text = &story->paragraph, .has_passing = false};
    cd_text_init(&t.difference, false);
    cd_memory_sink_init(&t.failing, NULL);
    cd_memory_sink_init(&t.passing, NULL);
    cddp_status status = report(&t, story, err);
    cd_memory_sink_fini(&t.failing);
    cd_memory_sink_fini(&t.passing);
    cd_text_fini(&t.difference);
    return status;
}

void cd_story_fini(cd_story *story)
{
    cd_text_fini(&story->paragraph);
    cd_text_fini(&story->inevitable);
}
