/* SPDX-License-Identifier: Apache-2.0 */
/* Joining what the judge of hooks states on each rank. See hook_judged.h.
**
** The n-th sum of every rank about a number and a bucket belongs together, as in I-HOOK.
*/
#include "verify/conformance/hook_judged.h"

#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/hash.h"
#include "core/oracle/hook_law/hook_law.h"
#include "core/trace/tracer.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS 8        /* of sums: hook_law/state.h */
#define OPEN_MAX 64      /* steps that ranks are apart, at most */
#define STREAMS_MAX 32   /* random streams of a hook */
#define POSTED_MAX 64    /* collectives of a step */
#define SEED UINT64_C(7) /* of the weights */

/* A sum over the ranks that reduce together, so far. */
typedef struct joint {
    double given, bound, got[CD_TRIAL_RANKS_MAX];
    uint32_t count;
} joint;

typedef struct stream {
    uint64_t label;
    int64_t number;
    uint64_t counts[CD_TRIAL_RANKS_MAX];
    int64_t states[CD_TRIAL_RANKS_MAX][OPEN_MAX];
    uint32_t steps[CD_TRIAL_RANKS_MAX];
    bool has_last[CD_TRIAL_RANKS_MAX];
} stream;

/* What a rank's buckets of the step at hand must put on the wire. */
typedef struct promise {
    int64_t bytes; /* -1: not known */
    int64_t posted[CD_TRIAL_BUCKETS], seen[POSTED_MAX];
    uint32_t bucket_count, seen_count;
} promise;

struct cd_judged {
    cddp_trace_sink sink;
    const cddp_trace_sink *next;
    const cd_trial *trial;
    cd_trial_result *result;
    cd_hook_law *laws[CD_TRIAL_RANKS_MAX];
    promise promises[CD_TRIAL_RANKS_MAX];
    bool is_replacing[CD_TRIAL_RANKS_MAX];
    uint64_t stated[CD_TRIAL_RANKS_MAX][CD_TRIAL_BUCKETS][NUMBERS];
    stream streams[STREAMS_MAX]; /* (stream_count) */
    uint32_t stream_count;
    /* by the first of the ranks that reduce together */
    joint joints[CD_TRIAL_RANKS_MAX][CD_TRIAL_BUCKETS][NUMBERS][OPEN_MAX];
};

static void breach(char *text, size_t bytes, const char *format, ...)
{
    if (text[0] != '\0') return;
    va_list arguments;
    va_start(arguments, format);
    cd_vformat(text, bytes, format, arguments);
    va_end(arguments);
}

/* ---- sums ---- */

static void judge_sum(cd_judged *j, const cddp_event *e, uint32_t first, const joint *s)
{
    cd_trial_result *r = j->result;
    r->judged_count++;
    for (uint32_t k = 0; k < s->count; k++) {
        if (fabs(s->got[k] - s->given) <= s->bound) continue;
        breach(
            r->judged_breach, sizeof r->judged_breach,
            "rank %u of %u, step %u, bucket %lld: %s: the judge's sum of the result is %.9g, not "
            "within %.3g of %.9g",
            first + k, j->trial->ranks, e->step, (long long)e->as.bucket_sum.bucket,
            e->text != NULL ? e->text : "", s->got[k], s->bound, s->given);
        return;
    }
}

static void take_sum(cd_judged *j, const cddp_event *e)
{
    const cddp_event_bucket_sum *b = &e->as.bucket_sum;
    const uint32_t ranks = b->ranks > 0 ? (uint32_t)b->ranks : j->trial->ranks,
                   first = e->rank - e->rank % ranks;
    if (b->bucket < 0 || b->bucket >= CD_TRIAL_BUCKETS || b->number < 0 || b->number >= NUMBERS)
        return;
    uint64_t *before = &j->stated[e->rank][b->bucket][b->number];
    joint *s = &j->joints[first][b->bucket][b->number][(*before)++ % OPEN_MAX];
    s->given += cd_f64_of(b->given);
    s->bound += cd_f64_of(b->bound);
    s->got[e->rank - first] = cd_f64_of(b->got);
    if (++s->count < ranks) return;
    judge_sum(j, e, first, s);
    *s = (joint){.count = 0};
}

/* A result of too high a rank. */
static void take_comparison(cd_judged *j, const cddp_event *e)
{
    if (e->as.compare.link != CDDP_LINK_LAW || e->as.compare.bad == 0) return;
    breach(j->result->judged_breach, sizeof j->result->judged_breach,
           "rank %u of %u, step %u: the result is %s", e->rank, j->trial->ranks, e->step,
           e->text != NULL ? e->text : "");
}

/* ---- the wire ---- */

static void take_law(cd_judged *j, const cddp_event *e)
{
    const cddp_event_bucket_law *l = &e->as.bucket_law;
    promise *p = &j->promises[e->rank];
    if (p->bucket_count == CD_TRIAL_BUCKETS) return;
    p->bytes = l->bytes < 0 || p->bytes < 0 ? -1 : p->bytes + l->bytes;
    p->posted[p->bucket_count++] = l->posted;
}

static void take_post(cd_judged *j, const cddp_event *e)
{
    promise *p = &j->promises[e->rank];
    if (p->seen_count < POSTED_MAX) p->seen[p->seen_count++] = e->as.collective_post.digest;
}

static bool has_posted(const promise *p, int64_t digest)
{
    uint32_t i = 0;
    while (i < p->seen_count && p->seen[i] != digest) i++;
    return i < p->seen_count;
}

void cd_judged_end_step(cd_judged *j, uint32_t rank, uint32_t step, uint64_t bytes)
{
    promise *p = &j->promises[rank];
    cd_trial_result *r = j->result;
    if (p->bucket_count > 0 && p->bytes >= 0) {
        r->judged_count++;
        if ((uint64_t)p->bytes != bytes)
            breach(r->judged_breach, sizeof r->judged_breach,
                   "rank %u of %u, step %u: it gives %" PRIu64
                   " bytes to collectives; its law and options make %" PRId64,
                   rank, j->trial->ranks, step, bytes, p->bytes);
    }
    /* more collectives than there is room for: one that is not seen may be there */
    for (uint32_t b = 0; b < p->bucket_count && p->seen_count < POSTED_MAX; b++) {
        if (p->posted[b] == 0) continue;
        r->judged_count++;
        if (!has_posted(p, p->posted[b]))
            breach(r->judged_breach, sizeof r->judged_breach,
                   "rank %u of %u, step %u: no collective has the numbers that its law and options "
                   "make of bucket %u",
                   rank, j->trial->ranks, step, b);
    }
    *p = (promise){.bytes = 0};
}

/* ---- draws ---- */

static stream *find_stream(cd_judged *j, const cddp_event *e)
{
    const uint64_t label = cd_hash_text(e->text);
    uint32_t i = 0;
    while (i < j->stream_count &&
           (j->streams[i].label != label || j->streams[i].number != e->as.seed.stream))
        i++;
    if (i == STREAMS_MAX) return NULL;
    if (i == j->stream_count) {
        j->streams[i].label = label;
        j->streams[i].number = e->as.seed.stream;
        j->stream_count++;
    }
    return &j->streams[i];
}

static void judge_draw(cd_judged *j, const cddp_event *e, const stream *s, uint64_t number)
{
    cd_trial_result *r = j->result;
    const bool is_shared = e->as.seed.policy == CDDP_POLICY_SHARED;
    const char *text = e->text != NULL ? e->text : "";
    for (uint32_t k = 0; k < j->trial->ranks; k++) {
        /* the other's draw of this number, where it is there and still kept */
        if (k == e->rank || s->counts[k] <= number || s->counts[k] - number > OPEN_MAX) continue;
        if ((s->states[k][number % OPEN_MAX] == e->as.seed.state) == is_shared) continue;
        breach(r->draw_breach, sizeof r->draw_breach,
               "ranks %u and %u of %u, step %u: draw %" PRIu64 " of stream '%.60s' is %s", k,
               e->rank, j->trial->ranks, e->step, number, text,
               is_shared ? "declared to be shared, and differs" : "the same on both");
        return;
    }
}

static void take_draw(cd_judged *j, const cddp_event *e)
{
    const uint32_t rank = e->rank;
    stream *s = !j->is_replacing[rank] ? find_stream(j, e) : NULL;
    if (s == NULL) return;
    const uint64_t number = s->counts[rank]++;
    j->result->draw_count++;
    if (s->has_last[rank] && s->steps[rank] != e->step &&
        s->states[rank][(number - 1) % OPEN_MAX] == e->as.seed.state)
        breach(j->result->draw_breach, sizeof j->result->draw_breach,
               "rank %u of %u: stream '%.60s' does not advance from step %u to step %u", rank,
               j->trial->ranks, e->text != NULL ? e->text : "", s->steps[rank], e->step);
    judge_draw(j, e, s, number);
    s->states[rank][number % OPEN_MAX] = e->as.seed.state;
    s->steps[rank] = e->step;
    s->has_last[rank] = true;
}

void cd_judged_replaces(cd_judged *j, uint32_t rank, bool is_replacing)
{
    j->is_replacing[rank] = is_replacing;
    for (uint32_t i = 0; i < j->stream_count; i++) j->streams[i].has_last[rank] = false;
}

/* ---- life ---- */

static void take(void *self, const cddp_event *e)
{
    cd_judged *j = self;
    if (e->rank >= j->trial->ranks) return;
    switch (e->kind) {
    case CDDP_EV_bucket_sum:
        take_sum(j, e);
        break;
    case CDDP_EV_bucket_law:
        take_law(j, e);
        break;
    case CDDP_EV_collective_post:
        take_post(j, e);
        break;
    case CDDP_EV_compare:
        take_comparison(j, e);
        break;
    case CDDP_EV_seed:
        take_draw(j, e);
        break;
    default:
        j->next->event(j->next->self, e);
        break;
    }
}

cddp_status cd_judged_create(const cd_trial *trial, cd_trial_result *result,
                             const cddp_trace_sink *next, cd_judged **judged, cddp_error *err)
{
    cd_judged *j = calloc(1, sizeof *j);
    if (j == NULL) return cd_fail_memory(err, "the judge of a trial");
    j->sink = (cddp_trace_sink){sizeof j->sink, CDDP_TRACE_ABI, j, take, NULL};
    j->next = next;
    j->trial = trial;
    j->result = result;
    *judged = j;
    return CDDP_OK;
}

void cd_judged_destroy(cd_judged *j)
{
    for (uint32_t r = 0; j != NULL && r < CD_TRIAL_RANKS_MAX; r++) cd_hook_law_destroy(j->laws[r]);
    free(j);
}

const cddp_trace_sink *cd_judged_sink(cd_judged *j) { return &j->sink; }

cddp_status cd_judged_open(cd_judged *j, const cd_judged_rank *rank, cddp_error *err)
{
    const cd_trial *t = j->trial;
    const cd_hook_law_options options = {.words = {t->hook->name,
                                                   t->inner != NULL ? t->inner->name : NULL,
                                                   t->options},
                                         .rank = rank->rank->rank,
                                         .world_size = t->ranks,
                                         .seed = SEED,
                                         .forms = rank->forms,
                                         .variable_count = rank->form_count,
                                         .tracer = rank->tracer,
                                         .allocator = NULL};
    CD_TRY(cd_hook_law_create(&options, &j->laws[rank->rank->rank], err));
    return CDDP_OK;
}

/* The dtype that a hook casts to first: the last one that casts decides. */
static cddp_dtype wire_of(const cd_trial *t)
{
    const uint32_t bits =
        t->inner != NULL && t->inner->wire_dtype != 0 ? t->inner->wire_dtype : t->hook->wire_dtype;
    cddp_dtype dtype = 0;
    while (dtype < CDDP_DTYPE_COUNT && bits != CDDP_DTYPE_BIT(dtype)) dtype++;
    return dtype;
}

static cd_law_bucket bucket_of(const cd_judged *j, const cddp_grad_bucket *b,
                               const cddp_tensor *flat)
{
    cd_law_bucket bucket = {.index = b->index,
                            .generation = b->generation,
                            .is_last = b->is_last,
                            .flat = flat,
                            .count = b->parameter_count,
                            .variables = b->parameter_ids,
                            .offsets = b->offsets,
                            .lengths = b->lengths,
                            .wire = wire_of(j->trial)};
    cd_law_bucket_promise(&bucket, j->trial->hook->flags);
    return bucket;
}

cddp_status cd_judged_launch(cd_judged *j, uint32_t rank, const cddp_grad_bucket *b,
                             cddp_error *err)
{
    const cd_law_bucket bucket = bucket_of(j, b, &b->buffer);
    return CD_PASS(cd_hook_law_launch(j->laws[rank], &bucket, err));
}

cddp_status cd_judged_deliver(cd_judged *j, uint32_t rank, const cddp_grad_bucket *b,
                              const cddp_tensor *result, cddp_error *err)
{
    const cd_law_bucket bucket = bucket_of(j, b, result);
    return CD_PASS(cd_hook_law_deliver(j->laws[rank], &bucket, err));
}
