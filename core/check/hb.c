/* SPDX-License-Identifier: Apache-2.0 */
/* I-HB: happens-before. A buffer is not written while a reduction may read it, nor read before its
** result is there.
**
** Judged from   four sources, each rank by itself.
**     Buckets   between bucket_launch and bucket_done a bucket is in flight: a mark_ready into it,
**               a grad_local of a parameter whose gradient is a view of it, and an optimizer_touch
**               of one of its parameters are races. A backward that is left, and a change of the
**               wrapper's group, give back what is in flight (mark, regroup).
**     Streams   touch and order events, by vector clocks: every touch ticks its stream; `order`
**               records a clock at a mark and joins it where it is waited for; what the host queues
**               comes after everything that it waited for. Two accesses to overlapping bytes, one
**               of them a write, must be ordered. A forward on the host reads the buffers that a
**               buffer_sync in front of it has queued, an optimizer the gradients of bucket_done
**               and grad_final.
**     Delayed   a mark says that a delayed gradient came behind the start of its all-reduce. With
**               streams the touch that brought it stands before the mark: a race is said when its
**               rank turns to something else, and not where that is this mark.
**     Views     a recorder sees a gradient in its bucket change where the program had no right to
**               write to it (Note [Who may write to a bucket])
**     Inputs    what an operation is given stays the same from its post to its start and to its end
**               (core/check/operands.h).
** Exercised     a bucket was filled again after an earlier launch had completed, or two conflicting
**               accesses on different streams were ordered.
** Blame         the rank; the finding names both accesses, and the parameter, bucket or unit that
**               was at hand.
** Memory        a clock per stream, and of each region the accesses that can still race: one that
**               the host has waited for, or that a later one of its stream covers, is forgotten.
*/
#include "core/check/operands.h"
#include "core/check/writer.h"
#include "core/trace/tracer.h"

#include <string.h>

#define STREAMS_MAX (1 << 16) /* beyond it an event's stream is taken for garbage */
#define ACCESSES_FIRST 16     /* as many are kept before any is looked at again */

typedef struct bucket_flight {
    uint64_t launch_sequence, launches;
    bool is_in_flight, has_completed;
} bucket_flight;

/* What a stream, or a mark, knows of each stream; what lies beyond is 0. */
typedef struct stream_clock {
    int64_t *of; /* (count) */
    size_t count;
} stream_clock;

typedef struct clocks {
    stream_clock *of; /* (count) by stream */
    size_t count;
} clocks;

typedef struct access {
    int64_t stream, time, begin, end;
    uint64_t sequence;
    bool is_write;
} access;

/* What the rank was about when it queued something: the gradient that arrived, the bucket, or the
** unit of a sharded model. */
typedef struct occasion {
    int64_t param, bucket, unit; /* + 1; 0: none */
} occasion;

/* What was queued on the default stream, and the host is going to read. */
typedef struct queued {
    int64_t time; /* 0: nothing, or the host was seen to wait for it */
    uint64_t sequence;
} queued;

typedef struct arrival {
    queued buffers;   /* that a broadcast brought */
    queued gradients; /* that a reduction wrote back */
} arrival;

typedef struct unit_name {
    char text[CD_WRITER_NAME_BYTES];
} unit_name;

typedef struct region_history {
    access *accesses; /* (count) in the order of the trace */
    size_t count, capacity;
    bool reported;
} region_history;

/* Two accesses without an order, of which the rank's next event may know the reason. */
typedef struct pending_race {
    cddp_finding *finding; /* in the arena; made when it is needed first */
    bool is_there;
} pending_race;

/* The operation that ended last. */
typedef struct ended_operation {
    int64_t group, sequence;
} ended_operation;

typedef struct state {
    cd_writer writer;
    cd_table flights;   /* (rank, bucket) → bucket_flight */
    cd_table views;     /* (rank, param) → 1 when its gradient is a view of its bucket */
    cd_ranks clocks;    /* of clocks */
    cd_ranks occasions; /* of occasion */
    cd_ranks arrivals;  /* of arrival */
    cd_ranks races;     /* of pending_race */
    cd_ranks ended;     /* of ended_operation */
    cd_table units;     /* (rank, unit) → unit_name */
    cd_table points;    /* (rank, point) → stream_clock */
    cd_table regions;   /* (rank, region) → region_history */
    cd_operands operands;
    uint64_t reused, ordered, pending; /* pending: races that are there */
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-HB", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->flights, context->allocator, sizeof(bucket_flight));
    cd_table_init(&s->views, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->clocks, context->allocator, sizeof(clocks));
    cd_ranks_init(&s->occasions, context->allocator, sizeof(occasion));
    cd_ranks_init(&s->arrivals, context->allocator, sizeof(arrival));
    cd_ranks_init(&s->races, context->allocator, sizeof(pending_race));
    cd_ranks_init(&s->ended, context->allocator, sizeof(ended_operation));
    cd_table_init(&s->units, context->allocator, sizeof(unit_name));
    cd_table_init(&s->points, context->allocator, sizeof(stream_clock));
    cd_table_init(&s->regions, context->allocator, sizeof(region_history));
    cd_operands_init(&s->operands, context->allocator);
    return CDDP_OK;
}

/* ---- buckets ---- */

typedef struct bucket_use {
    int64_t bucket, param;
    const char *what;
    bool accumulates; /* a gradient comes while an earlier one is on its way */
} bucket_use;

static void use_bucket(state *s, const cddp_event *e, const bucket_use *use)
{
    bucket_flight *b = cd_table_find(&s->flights, CD_KEY(e->rank, use->bucket));
    if (b == NULL) return;
    if (!b->is_in_flight) {
        if (b->has_completed) s->reused++;
        return;
    }
    if (!cd_writer_is_first(&s->writer, CD_KEY(use->bucket), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, b->launch_sequence);
    f.bucket = (int32_t)use->bucket;
    cd_finding_set_parameter(&s->writer, &f, use->param);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s %s while bucket %lld is being reduced", f.parameter,
           use->what, (long long)use->bucket);
    CD_SAY(f.expected, "after the bucket's reduction has completed");
    CD_SAY(f.actual, "between its launch (event %llu) and its completion",
           (unsigned long long)b->launch_sequence);
    CD_SAY(f.advice, "wait for the bucket (finalisation does) before its memory is used again%s",
           use->accumulates ? "; accumulate inside no_sync" : "");
    cd_writer_hold(&s->writer, CD_KEY(use->bucket), &f);
}

static void take_launch(state *s, const cddp_event *e)
{
    if (e->as.bucket_launch.shadow) return;
    bucket_flight *b = cd_table_add(&s->flights, CD_KEY(e->rank, e->as.bucket_launch.bucket));
    if (b == NULL) return;
    b->is_in_flight = true;
    b->launch_sequence = e->sequence;
    b->launches++;
}

static void take_done(state *s, const cddp_event *e)
{
    bucket_flight *b = cd_table_find(&s->flights, CD_KEY(e->rank, e->as.bucket_done.bucket));
    if (b == NULL) return;
    b->is_in_flight = false;
    b->has_completed = true;
}

/* A rebuild gives every bucket new memory and a new meaning. */
static void take_rebuild(state *s, const cddp_event *e)
{
    for (size_t i = 0; i < s->flights.count; i++) {
        if (cd_table_key(&s->flights, i)->part[0] != (int64_t)e->rank) continue;
        bucket_flight *b = cd_table_value(&s->flights, i);
        b->is_in_flight = false;
    }
}

static void take_final(state *s, const cddp_event *e)
{
    int64_t *view = cd_table_add(&s->views, CD_KEY(e->rank, e->as.grad_final.param));
    if (view != NULL) *view = e->as.grad_final.is_view;
}

static void take_local(state *s, const cddp_event *e)
{
    int64_t param = e->as.grad_local.param;
    const int64_t *view = cd_table_find(&s->views, CD_KEY(e->rank, param));
    cddp_fact_place place;
    if (view == NULL || *view == 0 || !cd_writer_find_place(&s->writer, e->rank, param, &place))
        return;
    use_bucket(s, e, &(bucket_use){place.bucket, param, "is accumulated into its view", true});
}

/* ---- gradients in their buckets ---- */

/* The parameter of a bucket that has one alone, else -1. */
static int64_t find_only_parameter(state *s, uint32_t rank, int64_t bucket)
{
    cddp_fact_place place;
    int64_t found = -1;
    for (int64_t p = 0; bucket >= 0 && cd_writer_find_place(&s->writer, rank, p, &place); p++) {
        if (place.bucket != bucket) continue;
        if (found >= 0) return -1;
        found = p;
    }
    return found;
}

static void report_written(state *s, const cddp_event *e, const bucket_use *use)
{
    const cd_key *key = CD_KEY(use->bucket, -1);
    if (!cd_writer_is_first(&s->writer, key, e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    char gradient[CD_WRITER_NAME_BYTES + 24] = "a gradient";
    f.bucket = (int32_t)use->bucket;
    if (use->param >= 0) {
        cd_finding_set_parameter(&s->writer, &f, use->param);
        CD_SAY(gradient, "the gradient of %s", f.parameter);
    }
    CD_SAY(f.title, CDDP_FINDING_WHO ": the program writes to %s %s", gradient, use->what);
    CD_SAY(f.expected, "left alone from mark_ready to the end of the backward");
    CD_SAY(f.actual, "another content of bucket %lld", (long long)use->bucket);
    CD_SAY(f.advice, "gradients are views of their buckets here (gradient_as_bucket_view): finish "
                     "each before it is marked ready, and change it after the backward");
    cd_writer_hold(&s->writer, key, &f);
}

/* Of an operation that no bucket has posted. */
static void report_overwritten(state *s, const cddp_event *e)
{
    const ended_operation *ended = cd_ranks_add(&s->ended, e->rank);
    const cd_key *key = CD_KEY(-1, -1);
    if (ended == NULL || !cd_writer_is_first(&s->writer, key, e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title,
           CDDP_FINDING_WHO ": the program writes to the result of collective #%lld of group '%s' "
                            "before it waits for it",
           (long long)ended->sequence, cd_writer_get_group(&s->writer, ended->group));
    CD_SAY(f.expected, "left alone from the post to the wait");
    CD_SAY(f.actual, "another content than the operation delivered");
    CD_SAY(f.advice, "wait for the operation (cddp_work_wait) before its tensor is used again");
    cd_writer_hold(&s->writer, key, &f);
}

/* See Note [Who may write to a bucket]. */
static void take_written(state *s, const cddp_event *e)
{
    const char *mark = e->text != NULL ? e->text : "";
    const int64_t value = e->as.mark.value;
    const bool is_ready = strcmp(mark, CD_TRACER_READY_WRITTEN) == 0;
    cddp_fact_place place;
    bucket_use use = {.bucket = value, .param = value};
    if (strcmp(mark, CD_TRACER_REDUCED_WRITTEN) == 0) {
        if (value < 0) {
            report_overwritten(s, e);
            return;
        }
        use.param = find_only_parameter(s, e->rank, value);
        use.what = "while its bucket is being reduced";
    } else if (is_ready || strcmp(mark, CD_TRACER_HOOKED_WRITTEN) == 0) {
        if (!cd_writer_find_place(&s->writer, e->rank, value, &place)) return;
        use.bucket = place.bucket;
        use.what = is_ready ? "after it was marked ready, before its bucket is reduced"
                            : "while the hook of its bucket is at work";
    }
    if (use.what != NULL) report_written(s, e, &use);
}

/* ---- inputs of operations ---- */

static void take_end(state *s, const cddp_event *e)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    ended_operation *ended = cd_ranks_add(&s->ended, e->rank);
    if (ended != NULL) *ended = (ended_operation){d->group, d->sequence};
    cd_posted posted;
    const cd_operand_fate fate = cd_operands_end(&s->operands, e, &posted);
    const bool is_early = fate == CD_OPERAND_BEFORE_START;
    const cd_key *key = CD_KEY(-1, fate);
    char bucket[48] = "";
    if ((!is_early && fate != CD_OPERAND_WHILE_RUNNING) || !cd_writer_is_first(&s->writer, key, e))
        return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, posted.event);
    f.bucket = (int32_t)posted.bucket;
    const int64_t only = find_only_parameter(s, e->rank, posted.bucket);
    if (only >= 0) cd_finding_set_parameter(&s->writer, &f, only);
    if (posted.bucket >= 0) CD_SAY(bucket, ", bucket %lld,", (long long)posted.bucket);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the input of collective #%lld of group '%s'%s changed %s",
           (long long)d->sequence, cd_writer_get_group(&s->writer, d->group), bucket,
           is_early ? "between its post and its start" : "while it ran");
    CD_SAY(f.expected, "%016llx, as posted", (unsigned long long)posted.digest);
    CD_SAY(f.actual, "%016llx, %s", (unsigned long long)(is_early ? d->start : d->input),
           is_early ? "as the backend began to read it" : "when it ended");
    CD_SAY(f.advice, "%s",
           is_early
               ? "something wrote to it after the post, and not the backend, which had not begun "
                 "to read it: look for a write that does not wait, or a memory error"
               : "something wrote to it before the wait: the program, or a backend that takes its "
                 "input for scratch; digests cannot tell which");
    cd_writer_hold(&s->writer, key, &f);
}

/* ---- streams ---- */

static int64_t stream_index(int64_t on_stream)
{
    int64_t index = on_stream + 1; /* the host is -1 */
    return index >= 0 && index < STREAMS_MAX ? index : -1;
}

#define HOST 0
#define DEFAULT_STREAM 1

static int64_t knows(const stream_clock *clock, int64_t stream)
{
    return (size_t)stream < clock->count ? clock->of[stream] : 0;
}

static bool reserve(state *s, stream_clock *clock, size_t count)
{
    return cd_arena_grow(&s->writer.memory, (void **)&clock->of, &clock->count, count,
                         sizeof *clock->of);
}

static void learn(state *s, stream_clock *clock, const stream_clock *from)
{
    if (!reserve(s, clock, from->count)) return;
    for (size_t t = 0; t < from->count; t++)
        if (clock->of[t] < from->of[t]) clock->of[t] = from->of[t];
}

/* The clocks of a rank, among them those of both streams; NULL when memory is exhausted. */
static clocks *find_clocks(state *s, uint32_t rank, int64_t one, int64_t other)
{
    clocks *c = cd_ranks_add(&s->clocks, rank);
    const size_t needed = (size_t)(one > other ? one : other) + 1;
    if (c == NULL || !cd_arena_grow(&s->writer.memory, (void **)&c->of, &c->count,
                                    needed > HOST + 1 ? needed : HOST + 1, sizeof *c->of))
        return NULL;
    return c;
}

/* Without a mark the host waits for all that a stream was given. */
static void take_order(state *s, const cddp_event *e)
{
    const cddp_event_order *o = &e->as.order;
    const int64_t from = stream_index(o->from), to = stream_index(o->to);
    clocks *c = find_clocks(s, e->rank, from, to);
    if (c == NULL) return;
    if (o->point < 0) {
        if (o->waits && from >= 0 && to >= 0) learn(s, &c->of[to], &c->of[from]);
        return;
    }
    stream_clock *p = cd_table_add(&s->points, CD_KEY(e->rank, o->point));
    if (p == NULL) return;
    if (!o->waits && from >= 0) {
        if (p->count > 0) memset(p->of, 0, p->count * sizeof *p->of);
        learn(s, p, &c->of[from]);
        learn(s, p, &c->of[HOST]);
    } else if (o->waits && to >= 0) {
        learn(s, &c->of[to], p);
    }
}

/* The occasion ends with whatever the rank turns to next. */
static void take_occasion(state *s, const cddp_event *e, int64_t param, int64_t bucket)
{
    occasion *o = cd_ranks_add(&s->occasions, e->rank);
    if (o != NULL) *o = (occasion){.param = param + 1, .bucket = bucket + 1};
}

/* A pass of a unit, or storage that is taken for its full parameters: a gather comes next. */
static void take_unit(state *s, const cddp_event *e)
{
    const bool is_pass = e->kind == CDDP_EV_unit_pass;
    const bool ends = is_pass && e->as.unit_pass.pass == CDDP_UNIT_BACKWARD_END;
    if (!is_pass && e->as.unit_storage.released) return;
    const int64_t unit = is_pass ? e->as.unit_pass.unit : e->as.unit_storage.unit;
    occasion *o = cd_ranks_add(&s->occasions, e->rank);
    if (o != NULL) *o = (occasion){.unit = ends ? 0 : unit + 1};
}

static void name_unit(state *s, const cddp_event *e)
{
    unit_name *name = cd_table_add(&s->units, CD_KEY(e->rank, e->as.unit.unit));
    const char *text = e->text != NULL && e->text[0] != '\0' ? e->text : "(root)";
    if (name != NULL) cd_say(name->text, sizeof name->text, "%s", text);
}

static void say_race(state *s, pending_race *race)
{
    if (race == NULL || !race->is_there) return;
    race->is_there = false;
    s->pending--;
    cd_writer_report(&s->writer, race->finding);
}

static void keep_race(state *s, uint32_t rank, const cddp_finding *f)
{
    pending_race *race = cd_ranks_add(&s->races, rank);
    say_race(s, race);
    if (race != NULL && race->finding == NULL)
        race->finding = cd_arena_push(&s->writer.memory, sizeof *race->finding);
    if (race == NULL || race->finding == NULL) {
        cd_writer_report(&s->writer, f);
        return;
    }
    *race->finding = *f;
    race->is_there = true;
    s->pending++;
}

/* The rank turns to something else than memory. */
static void settle_race(state *s, const cddp_event *e, bool is_explained)
{
    if (s->pending == 0) return;
    pending_race *race = cd_ranks_find(&s->races, e->rank);
    if (race == NULL || !race->is_there) return;
    if (is_explained) {
        race->is_there = false;
        s->pending--;
    } else {
        say_race(s, race);
    }
}

static void report_race(state *s, const cddp_event *e, const access *before)
{
    const cddp_event_touch *t = &e->as.touch;
    const occasion *o = cd_ranks_add(&s->occasions, e->rank);
    cddp_finding f = cd_finding_at(&s->writer, e);
    char what[160];
    cd_finding_add_event(&f, e->rank, before->sequence);
    CD_SAY(what, "region %lld", (long long)t->region);
    if (o != NULL && o->bucket > 0) {
        f.bucket = (int32_t)(o->bucket - 1);
        CD_SAY(what, "memory of bucket %d", f.bucket);
    }
    if (o != NULL && o->param > 0) {
        cddp_fact_place place;
        cd_finding_set_parameter(&s->writer, &f, o->param - 1);
        if (cd_writer_find_place(&s->writer, e->rank, o->param - 1, &place))
            f.bucket = (int32_t)place.bucket;
        CD_SAY(what, "memory of %s", f.parameter);
    }
    if (o != NULL && o->unit > 0) {
        const unit_name *unit = cd_table_find(&s->units, CD_KEY(e->rank, o->unit - 1));
        if (unit != NULL) CD_SAY(what, "memory of unit '%s'", unit->text);
    }
    CD_SAY(f.title,
           CDDP_FINDING_WHO ": %s is %s on stream %lld without waiting for the %s on stream %lld",
           what, t->write ? "written" : "read", (long long)t->on_stream,
           before->is_write ? "write" : "read", (long long)(before->stream - 1));
    CD_SAY(f.expected, "an order between event %llu and event %llu",
           (unsigned long long)before->sequence, (unsigned long long)e->sequence);
    CD_SAY(f.actual, "bytes %lld to %lld of region %lld, none waits for the other; by %s",
           (long long)t->begin, (long long)t->end, (long long)t->region,
           e->text != NULL ? e->text : "somebody");
    CD_SAY(f.advice, "record an event on stream %lld and let stream %lld wait for it",
           (long long)(before->stream - 1), (long long)t->on_stream);
    keep_race(s, e->rank, &f);
}

/* Nothing can race with it alone: the host has waited for it, and every access learns from the
** host; or what races with it races with the later access of its stream, too. */
static bool is_settled(const clocks *c, const access *old, const access *later)
{
    if (old->stream == later->stream && later->begin <= old->begin && old->end <= later->end &&
        (later->is_write || !old->is_write))
        return true;
    return knows(&c->of[HOST], old->stream) >= old->time;
}

static void keep(state *s, const clocks *c, region_history *h, const access *later)
{
    if (h->count == h->capacity && h->count >= ACCESSES_FIRST) {
        size_t kept = 0;
        for (size_t i = 0; i < h->count; i++)
            if (!is_settled(c, &h->accesses[i], later)) h->accesses[kept++] = h->accesses[i];
        h->count = kept;
    }
    const size_t needed = h->count < ACCESSES_FIRST ? ACCESSES_FIRST : h->count + 1;
    if (!cd_arena_grow(&s->writer.memory, (void **)&h->accesses, &h->capacity, needed,
                       sizeof *h->accesses))
        return;
    h->accesses[h->count++] = *later;
}

static void take_touch(state *s, const cddp_event *e)
{
    const cddp_event_touch *t = &e->as.touch;
    const int64_t stream = stream_index(t->on_stream);
    if (stream < 0) return;
    clocks *c = find_clocks(s, e->rank, stream, HOST);
    region_history *h = cd_table_add(&s->regions, CD_KEY(e->rank, t->region));
    if (c == NULL || h == NULL || !reserve(s, &c->of[stream], (size_t)stream + 1)) return;
    learn(s, &c->of[stream], &c->of[HOST]);
    for (size_t i = 0; i < h->count; i++) {
        const access *a = &h->accesses[i];
        bool conflicts = a->stream != stream && (a->is_write || t->write) && a->begin < t->end &&
                         t->begin < a->end;
        if (!conflicts) continue;
        if (a->time <= knows(&c->of[stream], a->stream)) {
            s->ordered++;
        } else if (!h->reported) {
            h->reported = true;
            report_race(s, e, a);
        }
    }
    const int64_t now = ++c->of[stream].of[stream];
    keep(s, c, h, &(access){stream, now, t->begin, t->end, e->sequence, t->write != 0});
}

/* DEL-05 */
static void take_late(state *s, const cddp_event *e)
{
    if (!cd_writer_is_first(&s->writer, CD_KEY(-3), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    const char *name = cd_writer_get_ordinal(&s->writer, e->as.mark.value);
    CD_SAY(f.parameter, "%s", name);
    CD_SAY(f.title,
           CDDP_FINDING_WHO ": the gradient of %s comes while the delayed all-reduce is under way",
           name);
    CD_SAY(f.expected, "all delayed gradients are there when the all-reduce begins");
    CD_SAY(f.actual, "this one is added into its memory afterwards");
    CD_SAY(f.advice, "ddp.param_to_hook_all_reduce must name the parameter whose gradient comes "
                     "last; nothing else checks it (DEL-05)");
    cd_writer_hold(&s->writer, CD_KEY(-3), &f);
}

/* Forwards and optimizers run on the host. Looks for a trace wait too, and leave no order: the
** program owes its own. */
static void take_queued(state *s, const cddp_event *e, bool is_gradient)
{
    const clocks *c = cd_ranks_find(&s->clocks, e->rank); /* NULL: no streams */
    if (c == NULL || c->count <= DEFAULT_STREAM) return;
    arrival *a = cd_ranks_add(&s->arrivals, e->rank);
    if (a == NULL) return;
    *(is_gradient ? &a->gradients : &a->buffers) =
        (queued){knows(&c->of[DEFAULT_STREAM], DEFAULT_STREAM), e->sequence};
}

/* What the host computes with is there, or nobody waited for it. */
static void take_read(state *s, const cddp_event *e, bool is_gradient)
{
    const clocks *c = cd_ranks_find(&s->clocks, e->rank);
    arrival *a = cd_ranks_find(&s->arrivals, e->rank);
    queued *q = a == NULL ? NULL : is_gradient ? &a->gradients : &a->buffers;
    if (c == NULL || q == NULL || q->time == 0) return;
    const bool is_known = q->time <= knows(&c->of[HOST], DEFAULT_STREAM);
    const cd_key *key = CD_KEY(-2, is_gradient);
    q->time = 0;
    s->ordered += is_known;
    if (is_known || !cd_writer_is_first(&s->writer, key, e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, q->sequence);
    if (is_gradient) cd_finding_set_parameter(&s->writer, &f, e->as.optimizer_touch.param);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s",
           is_gradient ? "an optimizer steps on gradients whose reduction may be under way"
                       : "the forward reads buffers whose broadcast may be under way");
    CD_SAY(f.expected, "the host waits for the default stream between event %llu and event %llu",
           (unsigned long long)q->sequence, (unsigned long long)e->sequence);
    CD_SAY(f.actual, "what brings them is queued, and nobody waits for it");
    CD_SAY(f.advice, "synchronise the stream before %s",
           is_gradient ? "the optimizer steps" : "the forward runs");
    cd_writer_hold(&s->writer, key, &f);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    const bool is_late =
        e->kind == CDDP_EV_mark && e->text != NULL && strcmp(e->text, CD_TRACER_DELAYED_LATE) == 0;
    if (e->kind != CDDP_EV_touch && e->kind != CDDP_EV_order && e->kind != CDDP_EV_memory)
        settle_race(s, e, is_late);
    switch (e->kind) {
    case CDDP_EV_bucket_launch:
        take_launch(s, e);
        take_occasion(s, e, -1, e->as.bucket_launch.bucket);
        break;
    case CDDP_EV_bucket_done:
        take_done(s, e);
        take_queued(s, e, true);
        take_occasion(s, e, -1, e->as.bucket_done.bucket);
        break;
    case CDDP_EV_rebuild:
        take_rebuild(s, e);
        take_occasion(s, e, -1, -1);
        break;
    case CDDP_EV_regroup:
        take_rebuild(s, e);
        break;
    case CDDP_EV_mark: /* what it had in flight is given back; nothing reads it later (UPG-02) */
        if (e->text != NULL && strcmp(e->text, CD_TRACER_LEFT) == 0) take_rebuild(s, e);
        if (is_late) take_late(s, e);
        take_written(s, e);
        break;
    case CDDP_EV_grad_final:
        take_final(s, e);
        take_queued(s, e, true);
        take_occasion(s, e, -1, -1);
        break;
    case CDDP_EV_grad_local:
        take_local(s, e);
        take_occasion(s, e, e->as.grad_local.param, -1);
        break;
    case CDDP_EV_mark_ready:
        take_occasion(s, e, -1, -1);
        use_bucket(s, e,
                   &(bucket_use){e->as.mark_ready.bucket, e->as.mark_ready.param, "is copied in",
                                 true});
        break;
    case CDDP_EV_optimizer_touch: {
        cddp_fact_place place;
        if (e->as.optimizer_touch.touched) take_read(s, e, true);
        if (e->as.optimizer_touch.touched &&
            cd_writer_find_place(&s->writer, e->rank, e->as.optimizer_touch.param, &place))
            use_bucket(s, e,
                       &(bucket_use){place.bucket, e->as.optimizer_touch.param, "is stepped on",
                                     false});
        break;
    }
    case CDDP_EV_collective_post:
        cd_operands_post(&s->operands, e);
        break;
    case CDDP_EV_collective_done:
        take_end(s, e);
        break;
    case CDDP_EV_order:
        take_order(s, e);
        break;
    case CDDP_EV_buffer_sync:
        if (e->as.buffer_sync.location == CDDP_LOCATION_BEFORE_FORWARD) take_queued(s, e, false);
        break;
    case CDDP_EV_sample:
    case CDDP_EV_forward_end: /* an evaluation names no samples */
        take_read(s, e, false);
        break;
    case CDDP_EV_touch:
        take_touch(s, e);
        break;
    case CDDP_EV_unit:
        name_unit(s, e);
        break;
    case CDDP_EV_unit_pass:
    case CDDP_EV_unit_storage:
        take_unit(s, e);
        break;
    default:
        break;
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    for (uint32_t r = 0; s->pending > 0; r++) say_race(s, cd_ranks_find(&s->races, r));
    if (s->reused + s->ordered > 0)
        cd_writer_exercise(
            &s->writer,
            "%llu uses of a bucket after its completion, %llu ordered accesses across streams",
            (unsigned long long)s->reused, (unsigned long long)s->ordered);
    cd_table_fini(&s->flights);
    cd_table_fini(&s->views);
    cd_ranks_fini(&s->clocks);
    cd_ranks_fini(&s->occasions);
    cd_ranks_fini(&s->arrivals);
    cd_ranks_fini(&s->races);
    cd_ranks_fini(&s->ended);
    cd_table_fini(&s->units);
    cd_table_fini(&s->points);
    cd_table_fini(&s->regions);
    cd_operands_fini(&s->operands);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_bucket_launch,
                                 CDDP_EV_bucket_done,
                                 CDDP_EV_rebuild,
                                 CDDP_EV_grad_final,
                                 CDDP_EV_grad_local,
                                 CDDP_EV_mark_ready,
                                 CDDP_EV_optimizer_touch,
                                 CDDP_EV_order,
                                 CDDP_EV_touch,
                                 CDDP_EV_buffer_sync,
                                 CDDP_EV_sample,
                                 CDDP_EV_forward_end,
                                 CDDP_EV_collective_post,
                                 CDDP_EV_collective_done,
                                 CDDP_EV_regroup,
                                 CDDP_EV_mark,
                                 CDDP_EV_unit,
                                 CDDP_EV_unit_pass,
                                 CDDP_EV_unit_storage};

CD_CHECK_TABLE(hb, "I-HB", "no buffer is touched while somebody else may use it",
               "Happens-before: last write before the launch reads, completion before the next "
               "write, read or reuse; "
               "per stream, by vector clocks.");
