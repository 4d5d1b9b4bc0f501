/* SPDX-License-Identifier: Apache-2.0 */
/* Writing the trace rank by rank. Digests are hashes of what the thing is, so equal things have
** equal ones. */
#include "tests/mutants/fixture.h"

#include "cddp/backend.h"
#include "core/base/hash.h"
#include "core/trace/codes.h"
#include "core/trace/event.h"
#include "core/trace/tracer.h"
#include "tests/support/option.h"

static const struct {
    const char *name;
    int64_t numel, bucket, slot, offset;
} params[FIXTURE_PARAMS] = {[FC1_WEIGHT] = {"fc1.weight", 6, 1, 0, 0},
                            [FC1_BIAS] = {"fc1.bias", 2, 1, 1, 6},
                            [FC2_WEIGHT] = {"fc2.weight", 5, 0, 0, 0},
                            [FC2_BIAS] = {"fc2.bias", 1, 0, 1, 5},
                            [HEAD_WEIGHT] = {"head.weight", 3, 1, 2, 8}};
static const int64_t bucket_numel[2] = {6, 11};

typedef struct writer {
    cd_memory_sink *trace;
    fixture_edit_fn edit;
    uint64_t sequence;
    uint32_t rank, step, micro;
    int64_t posted; /* in the group */
} writer;

static void put(writer *w, cddp_event *e)
{
    e->rank = w->rank;
    e->step = w->step;
    e->micro_step = w->micro;
    e->time_ns = w->sequence * 10;
    e->sequence = w->sequence++;
    e->level = CDDP_TRACE_DIGEST;
    for (uint32_t i = cd_event_field_counts[e->kind]; i < CDDP_EVENT_FIELDS; i++)
        e->as.field[i] = 0;
    if (w->edit == NULL || w->edit(e)) w->trace->sink.event(w->trace->sink.self, e);
}

#define PUT(w, name, words, ...)                                          \
    do {                                                                  \
        cddp_event put_event = {.kind = CDDP_EV_##name, .text = (words)}; \
        put_event.as.name = (cddp_event_##name){__VA_ARGS__};             \
        put((w), &put_event);                                             \
    } while (0)

/* A digest of a thing: what it is, which one, when, and whose (0 when it is the same on all
** ranks). */
static int64_t digest(const char *what, const int64_t which[3])
{
    uint64_t h = cd_hash_text(what);
    for (size_t i = 0; i < 3; i++) h = cd_hash_mix(h, (uint64_t)which[i]);
    return (int64_t)h;
}
#define DIGEST(what, a, b, c) digest((what), (const int64_t[3]){(a), (b), (c)})

static void put_value(writer *w, const int64_t what_moment_id[3], int64_t content)
{
    PUT(w, value, NULL, .what = what_moment_id[0], .moment = what_moment_id[1],
        .id = what_moment_id[2], .presence = CDDP_PRESENCE_VALUE, .digest = content,
        .param = what_moment_id[0] == 0 || what_moment_id[0] == 3 ? what_moment_id[2] : -1,
        .nonfinite = -1);
}
#define VALUE(w, what, moment, id, content) \
    put_value((w), (const int64_t[3]){(what), (moment), (id)}, (content))

/* ---- collectives ---- */

typedef struct operation {
    int64_t op, dtype, numel, bucket, input, output;
} operation;

static int64_t post(writer *w, const operation *o)
{
    int64_t sequence = w->posted++;
    bool reduces = o->op == CDDP_OP_ALLREDUCE;
    PUT(w, collective_post, NULL, .group = FIXTURE_GROUP, .sequence = sequence, .op = o->op,
        .reduce_op = reduces ? CDDP_RED_SUM : -1, .root = o->op == CDDP_OP_BROADCAST ? 0 : -1,
        .dtype = o->dtype, .numel = o->numel, .digest = o->input, .bucket = o->bucket,
        .in_flight = 1);
    return sequence;
}

static void finish(writer *w, int64_t sequence, const operation *o)
{
    PUT(w, collective_wait, NULL, .group = FIXTURE_GROUP, .sequence = sequence);
    PUT(w, collective_done, NULL, .group = FIXTURE_GROUP, .sequence = sequence, .status = CDDP_OK,
        .digest = o->output, .duration = 10, .input = o->op == CDDP_OP_ALLREDUCE ? o->input : 0,
        .start = o->op == CDDP_OP_ALLREDUCE ? o->input : 0);
}

/* ---- a unit of a sharded model: fc1.weight, two elements on each rank ---- */

enum { UNIT_NUMEL = 6, UNIT_SHARE = 2, UNIT_BYTES = 24 };

static void put_unit(writer *w)
{
    PUT(w, unit, "fc2", .unit = 1, .numel = UNIT_NUMEL, .share = UNIT_SHARE,
        .shards = FIXTURE_RANKS, .shard = w->rank, .group = FIXTURE_GROUP, .dtype = CDDP_F32);
    const int64_t first = (int64_t)w->rank * UNIT_SHARE;
    PUT(w, unit, "fc1", .unit = 0, .numel = UNIT_NUMEL, .share = UNIT_SHARE,
        .shards = FIXTURE_RANKS, .shard = w->rank, .group = FIXTURE_GROUP, .dtype = CDDP_F32);
    PUT(w, unit_part, params[FC1_WEIGHT].name, .ordinal = FC1_WEIGHT, .unit = 0, .first = first,
        .count = UNIT_SHARE, .numel = UNIT_NUMEL);
    PUT(w, planned_part, params[FC1_WEIGHT].name, .dtype = CDDP_F32, .ordinal = FC1_WEIGHT,
        .first = first, .count = UNIT_SHARE);
}

/* The plan gathers the unit, and has the buffers' broadcast in its forward. */
static void begin_unit(writer *w, int64_t content)
{
    PUT(w, planned_collective, "fc1", .at_step = w->step, .at_micro = w->micro, .position = 0,
        .op = CDDP_OP_ALLGATHER, .dtype = CDDP_F32, .numel = UNIT_SHARE, .passes = 1);
    PUT(w, planned_collective, "fc1", .at_step = w->step, .at_micro = w->micro, .position = 1,
        .op = CDDP_OP_BROADCAST, .dtype = CDDP_F32, .numel = 2, .passes = 1);
    for (int64_t i = 0; i < 2; i++)
        PUT(w, planned_storage, "fc1", .at_step = w->step, .at_micro = w->micro, .position = i,
            .bytes = UNIT_BYTES, .released = i, .passes = i == 0 ? 1 : 2, .collectives = 2 * i);
    PUT(w, planned_units, NULL, .at_step = w->step, .at_micro = w->micro, .count = 2,
        .peak = UNIT_BYTES, .left = 0, .moves = 2, .reserved = UNIT_BYTES, .waits = 1);
    PUT(w, fresh, NULL, .ordinal = FC1_WEIGHT, .at_step = w->step, .dtype = CDDP_F32,
        .digest = content);
    PUT(w, unit_gap, NULL, .unit = 0, .what = CDDP_WHAT_PARAMETER, .count = 1,
        .norm = cd_f64_bits(0));
    PUT(w, unit_pass, NULL, .unit = 0, .pass = CDDP_UNIT_PRE_FORWARD, .grad_mode = 1);
    PUT(w, unit_storage, NULL, .unit = 0, .bytes = UNIT_BYTES);
    const operation o = {CDDP_OP_ALLGATHER,
                         CDDP_F32,
                         UNIT_SHARE,
                         -1,
                         DIGEST("share", w->step, 0, w->rank),
                         DIGEST("unit", w->step, 0, 0)};
    finish(w, post(w, &o), &o);
    PUT(w, unit_read, NULL, .ordinal = FC1_WEIGHT, .unit = 0, .pass = CDDP_UNIT_PRE_FORWARD,
        .dtype = CDDP_F32, .digest = content);
}

static void end_unit(writer *w, int64_t content)
{
    PUT(w, unit_read, NULL, .ordinal = FC1_WEIGHT, .unit = 0, .pass = CDDP_UNIT_POST_FORWARD,
        .dtype = CDDP_F32, .digest = content);
    PUT(w, unit_pass, NULL, .unit = 0, .pass = CDDP_UNIT_POST_FORWARD, .grad_mode = 1);
    PUT(w, unit_storage, NULL, .unit = 0, .bytes = UNIT_BYTES, .released = 1);
    PUT(w, order, NULL, .from = 0, .to = -1, .point = 6, .waits = 0);
    PUT(w, order, NULL, .from = -1, .to = 2, .point = 6, .waits = 1);
    PUT(w, order, NULL, .from = 2, .to = -1, .point = -1, .waits = 1);
    PUT(w, unit_wait, NULL, .unit = 0);
    PUT(w, unit_gap, NULL, .unit = 0, .what = CDDP_WHAT_GRADIENT, .count = 1,
        .norm = cd_f64_bits(0));
    PUT(w, unit_pass, NULL, .pass = CDDP_UNIT_BACKWARD_END, .grad_mode = 1);
}

/* ---- construction ---- */

static void put_streams(writer *w)
{
    PUT(w, memory, NULL, .region = 1, .bytes = 64, .released = 0);
    PUT(w, touch, "compute", .region = 1, .on_stream = 0, .write = 1, .begin = 0, .end = 64);
    PUT(w, order, NULL, .from = 0, .to = 1, .point = 5, .waits = 0);
    PUT(w, order, NULL, .from = 0, .to = 1, .point = 5, .waits = 1);
    PUT(w, touch, "communication", .region = 1, .on_stream = 1, .write = 0, .begin = 0, .end = 64);
    PUT(w, order, NULL, .from = 0, .to = -1, .point = -1, .waits = 1); /* a forward reads buffers */
}

/* At the rendezvous store, which rank 0 serves: every rank sets its key and reads those of the
** others. */
static void meet(writer *w)
{
    static const char *const keys[FIXTURE_RANKS] = {"1/world/0", "1/world/1", "1/world/2"};
    PUT(w, store_wait, NULL, .host = 0, .peer = -1, .generation = 1);
    PUT(w, store_key, keys[w->rank], .generation = 1, .written = 1, .value = 100 + w->rank);
    for (uint32_t i = 0; i < FIXTURE_RANKS; i++) {
        if (i == w->rank) continue;
        PUT(w, store_wait, keys[i], .host = 0, .peer = i, .generation = 1);
        PUT(w, store_key, keys[i], .generation = 1, .written = 0, .value = 100 + i);
    }
    PUT(w, store_done, NULL, .status = CDDP_OK, .attempt = 1, .is_last = 1, .generation = 1,
        .peer = -1);
}

/* Rank 0's parameters and buffer, as one. */
static void broadcast_state(writer *w)
{
    operation o = {
        CDDP_OP_BROADCAST,       CDDP_F32, 19, -1, w->rank == 0 ? DIGEST("state", 0, 0, 0) : 0,
        DIGEST("state", 0, 0, 0)};
    finish(w, post(w, &o), &o);
}

/* Of an all-to-all: r gives p as many elements as p expects of r. */
static void put_shares(writer *w)
{
    for (int64_t peer = 0; peer < FIXTURE_RANKS; peer++)
        PUT(w, collective_share, NULL, .group = FIXTURE_GROUP, .sequence = 1000, .peer = peer,
            .given = 10 * (int64_t)w->rank + peer, .taken = 10 * peer + (int64_t)w->rank);
}

static void put_construction(writer *w)
{
    PUT(w, rank_begin, NULL, .world_size = FIXTURE_RANKS);
    meet(w);
    PUT(w, group, "world", .group = FIXTURE_GROUP, .members = FIXTURE_RANKS, .group_rank = w->rank,
        .members_digest = DIGEST("members", 0, 0, 0), .order = CDDP_ORDER_SAME);
    put_shares(w);
    PUT(w, owed, NULL, .link = CD_LINK_PRESENCE); /* the judge follows the plan */
    static const char *const options[] = {"ddp.find_unused_parameters=true",
                                          "ddp.broadcast_buffers=true",
                                          "ddp.gradient_as_bucket_view=true",
                                          "ddp.static_graph=false",
                                          "hook.name=narrow",
                                          "model.ignore=head.scale,norm.c*",
                                          "ddp.delay_all_reduce_named_params="};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        cd_test_options made;
        cd_test_options_init(&made, options[i]);
        for (size_t k = 0; k < made.count; k++) put(w, &made.events[k]);
    }
    PUT(w, policy, "the plan", .site = CDDP_SITE_WIRE, .dtype = CDDP_F16);
    PUT(w, policy, "the plan", .site = CDDP_SITE_GRADIENT, .dtype = CDDP_F32);
    PUT(w, seed, "model", .stream = 0, .policy = CDDP_POLICY_SHARED,
        .state = DIGEST("model seed", 0, 0, 0));
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
        PUT(w, param, params[p].name, .param = p, .ordinal = p, .numel = params[p].numel,
            .dtype = CDDP_F32, .requires_grad = 1, .shape = DIGEST("shape", p, 0, 0),
            .name = (int64_t)cd_hash_text(params[p].name));
    PUT(w, buffer, "norm.mean", .buffer = 0, .numel = 2, .dtype = CDDP_F32);
    PUT(w, buffer, "norm.count", .buffer = 1, .numel = 1, .dtype = CDDP_I64, .ignored = 1);
    broadcast_state(w);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t slot = 0; slot < 3; slot++)
            for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
                if (params[p].bucket == b && params[p].slot == slot)
                    PUT(w, bucket_layout, NULL, .generation = 0, .bucket = b, .slot = slot,
                        .param = p, .offset = params[p].offset, .numel = params[p].numel,
                        .dtype = CDDP_F32, .limit = 24);
    PUT(w, wrap, NULL, .params = FIXTURE_PARAMS, .buffers = 1, .group = FIXTURE_GROUP,
        .init_sync = 1);
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
        VALUE(w, 0, CDDP_MOMENT_AFTER_INIT, p, DIGEST("parameter", p, 0, 0));
    VALUE(w, 1, CDDP_MOMENT_AFTER_INIT, 0, DIGEST("buffer", 0, 0, 0));
    VALUE(w, 1, CDDP_MOMENT_AFTER_INIT, 1, DIGEST("ignored buffer", 0, 0, 0));
    put_unit(w);
    put_streams(w);
}

/* ---- one micro-step ---- */

static void put_samples(writer *w)
{
    PUT(w, seed, "dropout", .stream = 1, .policy = CDDP_POLICY_DISTINCT,
        .state = DIGEST("dropout", w->step, w->micro, w->rank));
    PUT(w, seed, "order", .stream = 2, .policy = CDDP_POLICY_SHARED,
        .state = DIGEST("order", w->step, w->micro, 0));
    uint64_t ids = 0;
    for (int64_t i = 0; i < 2; i++) {
        const int64_t id = ((w->step * 2 + w->micro) * FIXTURE_RANKS + w->rank) * 2 + i;
        PUT(w, sample, NULL, .sample = id, .weight = cd_f64_bits(0.5));
        ids += cd_hash_mix(0, (uint64_t)id);
    }
    PUT(w, samples, NULL, .count = 2, .tokens = 2, .ids = (int64_t)ids, .weight = cd_f64_bits(1));
}

static void put_forward(writer *w, bool sync)
{
    PUT(w, forward_begin, NULL, .iteration = w->step, .sync = sync, .grad_mode = 1);
    if (!sync) { /* the forward before this one synchronised, so buffers are due (BUF-05) */
        operation o = {CDDP_OP_BROADCAST,
                       CDDP_F32,
                       2,
                       -1,
                       w->rank == 0 ? DIGEST("buffer", w->step, 0, 0) : 0,
                       DIGEST("buffer", w->step, 0, 0)};
        finish(w, post(w, &o), &o);
        PUT(w, buffer_sync, NULL, .authority = 0, .location = CDDP_LOCATION_BEFORE_FORWARD);
    }
    VALUE(w, 1, CDDP_MOMENT_FORWARD, 0,
          sync ? DIGEST("own buffer", w->step, 1, w->rank) : DIGEST("buffer", w->step, 0, 0));
    VALUE(w, 1, CDDP_MOMENT_FORWARD, 1, DIGEST("ignored buffer", 0, 0, 0));
    VALUE(w, 1, CDDP_MOMENT_AFTER_FORWARD, 1, DIGEST("ignored buffer", 0, 0, 0));
    PUT(w, forward_end, NULL, .unused = sync ? 1 : -1, .prepared = sync);
}

/* Rank 2 never uses fc1.bias; nobody uses head.weight. */
static bool uses(const writer *w, int64_t p)
{
    return p != HEAD_WEIGHT && !(p == FC1_BIAS && w->rank == 2);
}

static void put_local(writer *w, int64_t p, int64_t contributions)
{
    PUT(w, grad_local, NULL, .param = p, .presence = CDDP_PRESENCE_VALUE,
        .digest = DIGEST("local", p, w->step * 2 + w->micro, w->rank + 1),
        .contributions = contributions, .dtype = CDDP_F32);
}

/* What a parameter is after so many steps. */
static int64_t parameter_after(int64_t p, int64_t steps)
{
    return DIGEST("parameter", p, p == HEAD_WEIGHT ? 0 : steps, 0);
}

static void put_parameters(writer *w, int64_t moment, int64_t steps)
{
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
        VALUE(w, CDDP_WHAT_PARAMETER, moment, p, parameter_after(p, steps));
}

static void put_accumulation(writer *w)
{
    w->micro = 0;
    put_parameters(w, CDDP_MOMENT_BEGIN, w->step);
    PUT(w, no_sync, NULL, .entered = 1, .depth = 1);
    put_samples(w);
    begin_unit(w, parameter_after(FC1_WEIGHT, w->step));
    put_forward(w, false);
    end_unit(w, parameter_after(FC1_WEIGHT, w->step));
    PUT(w, backward_begin, NULL, .sync = 0);
    put_local(w, FC1_WEIGHT, 1);
    if (uses(w, FC1_BIAS)) put_local(w, FC1_BIAS, 1);
    PUT(w, backward_end, NULL, .finalized = 0);
    PUT(w, no_sync, NULL, .entered = 0, .depth = 1);
}

static void put_ready(writer *w, int64_t p)
{
    bool used = uses(w, p);
    PUT(w, mark_ready, NULL, .param = p, .bucket = params[p].bucket, .slot = params[p].slot,
        .path = used ? CDDP_PATH_DIVIDE : CDDP_PATH_ZERO, .factor = FIXTURE_RANKS, .unused = !used,
        .digest = DIGEST("contribution", p, w->step, w->rank + 1));
}

static operation bucket_operation(const writer *w, int64_t b)
{
    return (operation){CDDP_OP_ALLREDUCE,
                       CDDP_F16,
                       bucket_numel[b],
                       b,
                       DIGEST("half bucket", b, w->step, w->rank + 1),
                       DIGEST("half sum", b, w->step, 0)};
}

/* What was packed, in the order of the slots. */
static int64_t fold_packed(const writer *w, int64_t b)
{
    uint64_t folded = 0;
    for (int64_t slot = 0; slot < FIXTURE_PARAMS; slot++)
        for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
            if (params[p].bucket == b && params[p].slot == slot)
                folded =
                    cd_hash_mix(folded, (uint64_t)DIGEST("contribution", p, w->step, w->rank + 1));
    return (int64_t)folded;
}

static int64_t launch(writer *w, int64_t b)
{
    PUT(w, bucket_launch, NULL, .bucket = b, .generation = 0, .numel = bucket_numel[b],
        .dtype = CDDP_F32, .content = DIGEST("content", b, 0, 0),
        .digest = DIGEST("bucket", b, w->step, w->rank + 1), .is_last = b == 1,
        .group = FIXTURE_GROUP, .sequence = w->posted, .slices = fold_packed(w, b));
    PUT(w, bucket_shown, NULL, .bucket = b, .generation = 0, .content = DIGEST("content", b, 0, 0),
        .is_last = b == 1, .left = 1);
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++) {
        if (params[p].bucket == b && uses(w, p))
            PUT(w, bucket_slice, NULL, .param = p, .bucket = b, .left = 1, .dtype = CDDP_F32,
                .digest = DIGEST("local", p, w->step * 2 + w->micro, w->rank + 1));
    }
    PUT(w, bucket_law, "narrow", .bucket = b, .bytes = bucket_numel[b] * 2,
        .posted = DIGEST("half bucket", b, w->step, w->rank + 1));
    PUT(w, hook_call, "narrow", .bucket = b, .generation = 0, .is_last = b == 1,
        .bytes = bucket_numel[b] * 4, .dtype = CDDP_F32);
    operation o = bucket_operation(w, b);
    return post(w, &o);
}

static void complete(writer *w, int64_t b, int64_t sequence)
{
    operation o = bucket_operation(w, b);
    finish(w, sequence, &o);
    PUT(w, hook_done, "narrow", .bucket = b, .wire_bytes = bucket_numel[b] * 2, .dtype = CDDP_F32,
        .digest = DIGEST("sum", b, w->step, 0));
    PUT(w, hook_law, "half an ulp per cast", .bucket = b, .left = cd_f64_bits(1),
        .right = cd_f64_bits(1.0001), .bound = cd_f64_bits(0.001));
    PUT(w, hook_law, "what all send is what all have", .bucket = b,
        .left = cd_f64_bits(w->rank + 8.0 * w->step), .bound = cd_f64_bits(0.001),
        .right = cd_f64_bits((FIXTURE_RANKS - 1) / 2.0 + 8.0 * w->step), .over_ranks = 1);
    PUT(w, owed, CD_STATED_LAWS, .link = CDDP_LINK_NONE, .count = 2);
    PUT(w, bucket_done, NULL, .bucket = b, .generation = 0, .digest = DIGEST("sum", b, w->step, 0),
        .dtype = CDDP_F32);
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++) {
        if (params[p].bucket == b)
            PUT(w, bucket_slice, NULL, .param = p, .bucket = b,
                .digest = DIGEST("mean", p, w->step, 0), .dtype = CDDP_F32);
    }
    PUT(w, bucket_sum, "the result is the mean of what the ranks send", .bucket = b,
        .given = cd_f64_bits(w->rank / (double)FIXTURE_RANKS),
        .got = cd_f64_bits((FIXTURE_RANKS - 1) / 2.0), .bound = cd_f64_bits(0.001));
}

static void put_finalisation(writer *w, const int64_t sequences[2])
{
    operation map = {
        CDDP_OP_ALLREDUCE,         CDDP_I32, FIXTURE_PARAMS, -1, DIGEST("map", 0, 0, w->rank + 1),
        DIGEST("map sum", 0, 0, 0)};
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
        PUT(w, used_local, NULL, .param = p, .used = uses(w, p));
    int64_t map_sequence = post(w, &map);
    for (int64_t b = 0; b < 2; b++) complete(w, b, sequences[b]);
    finish(w, map_sequence, &map);
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
        PUT(w, used_global, NULL, .param = p,
            .used = p == HEAD_WEIGHT ? 0
                    : p == FC1_BIAS  ? FIXTURE_RANKS - 1
                                     : FIXTURE_RANKS);
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++) {
        bool absent = p == HEAD_WEIGHT;
        PUT(w, grad_final, NULL, .param = p,
            .presence = absent ? CDDP_PRESENCE_ABSENT : CDDP_PRESENCE_VALUE,
            .globally_unused = absent, .digest = absent ? 0 : DIGEST("mean", p, w->step, 0),
            .bucket = params[p].bucket, .generation = 0, .is_view = !absent,
            .address = absent ? -1 : params[p].offset, .dtype = CDDP_F32,
            .slice = absent ? 0 : DIGEST("mean", p, w->step, 0));
    }
    PUT(w, backward_end, NULL, .finalized = 1);
}

static void put_reduction(writer *w)
{
    int64_t sequences[2];
    w->micro = 1;
    put_samples(w);
    put_forward(w, true);
    PUT(w, backward_begin, NULL, .sync = 1);
    put_local(w, FC2_BIAS, 1);
    put_ready(w, HEAD_WEIGHT);
    put_ready(w, FC2_BIAS);
    put_local(w, FC2_WEIGHT, 1);
    put_ready(w, FC2_WEIGHT);
    sequences[0] = launch(w, 0);
    if (uses(w, FC1_BIAS)) put_local(w, FC1_BIAS, 2);
    put_ready(w, FC1_BIAS);
    put_local(w, FC1_WEIGHT, 2);
    put_ready(w, FC1_WEIGHT);
    sequences[1] = launch(w, 1);
    put_finalisation(w, sequences);
}

/* ---- the step ---- */

static void put_compare(writer *w, int64_t link, int64_t p)
{
    PUT(w, compare, NULL, .link = link, .param = p, .element = -1, .exact = 1);
}

/* What the optimizer is given: the mean, unscaled. */
static int64_t unscaled(const writer *w, int64_t p)
{
    return DIGEST("unscaled mean", p, w->step, 0);
}

static void put_before_step(writer *w)
{
    put_parameters(w, CDDP_MOMENT_BEFORE_STEP, w->step);
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++) {
        if (p == HEAD_WEIGHT) continue;
        PUT(w, expected, "unscaled", .what = CDDP_WHAT_GRADIENT, .moment = CDDP_MOMENT_BEFORE_STEP,
            .id = p, .presence = CDDP_PRESENCE_VALUE, .digest = unscaled(w, p), .param = p);
        VALUE(w, CDDP_WHAT_GRADIENT, CDDP_MOMENT_BEFORE_STEP, p, unscaled(w, p));
    }
}

/* In the first step the judge is shown the parameters before their values. */
static void put_after_update(writer *w)
{
    uint64_t all = 0;
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
        all = cd_hash_mix(all, (uint64_t)parameter_after(p, w->step + 1));
    if (w->step == 0)
        PUT(w, shown, NULL, .what = CDDP_WHAT_PARAMETER, .moment = CDDP_MOMENT_AFTER_UPDATE,
            .count = FIXTURE_PARAMS, .digest = (int64_t)all);
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
        VALUE(w, 0, CDDP_MOMENT_AFTER_UPDATE, p, parameter_after(p, w->step + 1));
}

static void put_update(writer *w)
{
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++) {
        put_compare(w, 7, p);
        for (int64_t link = 1; p != HEAD_WEIGHT && link <= 3; link++) put_compare(w, link, p);
    }
    put_compare(w, CD_LINK_NORM, -1);
    put_before_step(w);
    PUT(w, optimizer_step, "sgd", .optimizer = 0, .lr = cd_f64_bits(0.125),
        .loss_scale = cd_f64_bits(1), .clip = cd_f64_bits(1), .norm = cd_f64_bits(2));
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
        PUT(w, optimizer_touch, NULL, .optimizer = 0, .param = p, .touched = p != HEAD_WEIGHT,
            .gradient = p != HEAD_WEIGHT ? unscaled(w, p) : 0);
    put_after_update(w);
    if (w->step + 1 == FIXTURE_STEPS) put_parameters(w, CDDP_MOMENT_AFTER_AVERAGE, w->step + 1);
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++) {
        put_compare(w, 4, p);
        put_compare(w, CD_LINK_OPTIMIZER, p);
        VALUE(w, 0, CDDP_MOMENT_AFTER_STEP, p, parameter_after(p, w->step + 1));
        VALUE(w, 3, CDDP_MOMENT_AFTER_STEP, p,
              DIGEST("momentum", p, p == HEAD_WEIGHT ? 0 : w->step + 1, 0));
    }
    PUT(w, zero_grad, NULL, .optimizer = -1, .to_none = 1);
    /* A flag that all ranks reduce at every step, with the same inputs each time. */
    operation flag = {
        CDDP_OP_ALLREDUCE,          CDDP_I32, 1, -1, DIGEST("flag", 0, 0, w->rank + 1),
        DIGEST("flag sum", 0, 0, 0)};
    finish(w, post(w, &flag), &flag);
    put_compare(w, CD_LINK_COLLECTIVE, -1);
    put_compare(w, CD_LINK_SUM, -1);
    PUT(w, stop, NULL, .stop = w->step + 1 == FIXTURE_STEPS);
}

static void put_checkpoint(writer *w)
{
    for (int64_t moment = CDDP_MOMENT_CHECKPOINT; moment <= CDDP_MOMENT_RESUME; moment++) {
        for (int64_t p = 0; p < FIXTURE_PARAMS; p++) VALUE(w, 0, moment, p, parameter_after(p, 2));
        VALUE(w, 4, moment, 0, DIGEST("hook state", 0, 2, w->rank + 1));
        PUT(w, checkpoint, "hook narrow", .loaded = moment == CDDP_MOMENT_RESUME,
            .digest = DIGEST("hook state", 0, 2, w->rank + 1), .step = 2);
    }
}

static void put_end(writer *w)
{
    for (int64_t p = 0; p < FIXTURE_PARAMS; p++)
        VALUE(w, 0, CDDP_MOMENT_END, p,
              DIGEST("parameter", p, p == HEAD_WEIGHT ? 0 : FIXTURE_STEPS, 0));
    VALUE(w, CDDP_WHAT_SCALER, CDDP_MOMENT_END, 0, DIGEST("scaler", 0, FIXTURE_STEPS, 0));
    PUT(w, memory, NULL, .region = 1, .bytes = 64, .released = 1);
    PUT(w, group_close, NULL, .group = FIXTURE_GROUP, .sequence = w->posted);
    PUT(w, rank_end, NULL, .status = CDDP_OK);
}

void fixture_write(cd_memory_sink *trace, fixture_edit_fn edit)
{
    writer world = {.trace = trace, .edit = edit, .rank = UINT32_MAX};
    PUT(&world, run_begin, "fixture", .world_size = FIXTURE_RANKS, .steps = FIXTURE_STEPS,
        .level = CDDP_TRACE_DIGEST);
    PUT(&world, fault, "a link was slow for a while", .target = 1, .peer = 2, .duration = 30);
    for (uint32_t rank = 0; rank < FIXTURE_RANKS; rank++) {
        writer w = {.trace = trace, .edit = edit, .rank = rank};
        put_construction(&w);
        for (w.step = 0; w.step < FIXTURE_STEPS; w.step++) {
            put_accumulation(&w);
            put_reduction(&w);
            put_update(&w);
            if (w.step == 1) put_checkpoint(&w);
        }
        w.step = FIXTURE_STEPS - 1;
        put_end(&w);
    }
    PUT(&world, run_end, NULL, .status = CDDP_OK, .complete = 1);
}
