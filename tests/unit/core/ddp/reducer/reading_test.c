/* SPDX-License-Identifier: Apache-2.0 */
/* What two events report after one reading is what each would have read, and whoever writes between
** two readings is seen. See Note [One reading for two events] in core/ddp/reducer/reading.h. */
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/trace/event.h"
#include "tests/unit/core/ddp/fixture.h"

#include <math.h>

enum { LARGE = 3 * 4096 + 7, STEPS = 3 };

/* ---- the same events as without ---- */

typedef struct way {
    bool has_views, batches, finds_unused;
    cddp_dtype dtype;
    double bucket_bytes;
    uint64_t digests[2]; /* of all events of both ranks; on the device, and on one that is read anew
                         ** for every event */
    int at;
} way;

static void body(lane *l)
{
    way *w = l->lab->data;
    l->options.gradient_as_bucket_view = w->has_views;
    l->options.batched_grad_copy = w->batches;
    l->options.find_unused_parameters = w->finds_unused;
    l->options.bucket_cap_mb = w->bucket_bytes / 1048576.0;
    lane_add(l, "a", w->dtype, 5);
    lane_add(l, "b", w->dtype, LARGE);
    lane_add(l, "c", w->dtype, 2 * LARGE);
    lane_add(l, "d", w->dtype, 1);
    lane_wrap(l);
    for (int step = 0; step < STEPS; step++) {
        lane_reach(l, w->finds_unused && step == 1 ? ~2u : UINT32_MAX);
        lane_forward(l);
        for (size_t i = l->count; i-- > 0;)
            if (l->reachable[i])
                lane_grad(l, i, step == 2 && i == 2 ? NAN : 1.0 / (double)(i + 3) + step + l->r);
        lane_end(l);
        lane_zero_grad(l, step == 0);
    }
    for (size_t i = 0; i < l->sink.count; i++) {
        const cddp_event e = cd_memory_sink_get(&l->sink, i);
        w->digests[w->at] = cd_event_digest(w->digests[w->at], &e, false);
    }
}

static cddp_status digest_anew(const cddp_tensor *tensor, uint64_t *digest, cddp_error *err)
{
    return cddp_device_cpu()->digest(tensor, digest, err);
}

TEST(reading, events_are_those_of_a_device_that_is_read_for_each)
{
    cddp_device other = *cddp_device_cpu();
    other.digest = digest_anew;
    static const cddp_dtype dtypes[] = {CDDP_F32, CDDP_BF16, CDDP_F64};
    for (int row = 0; row < 3 * 8 * 2; row++) {
        way w = {.has_views = row & 1,
                 .batches = row & 2,
                 .finds_unused = row & 4,
                 .bucket_bytes = row & 8 ? 4 : 1 << 22,
                 .dtype = dtypes[row / 16]};
        cd_test_row("views %d, batched %d, unused %d, bucket bytes %g, %s", w.has_views, w.batches,
                    w.finds_unused, w.bucket_bytes, cddp_dtype_name(w.dtype));
        for (w.at = 0; w.at < 2; w.at++)
            lab_run(&(lab){.world_size = 2,
                           .body = body,
                           .data = &w,
                           .level = CDDP_TRACE_DIGEST,
                           .device = w.at == 1 ? &other : NULL});
        assert_int_equal(w.digests[0], w.digests[1]);
    }
}

/* ---- hashed on the way ---- */

static int64_t copied; /* elements, one call each */

static cddp_status copy_and_count(const cddp_tensor *dst, const cddp_tensor *src,
                                  cddp_stream *stream, cddp_error *err)
{
    copied += cddp_tensor_numel(dst);
    return cddp_device_cpu()->copy(dst, src, stream, err);
}

static int64_t count_copied(const cddp_device *device, cddp_trace_level level)
{
    way w = {.bucket_bytes = 1 << 22, .dtype = CDDP_F32};
    copied = 0;
    lab_run(&(lab){.world_size = 2, .body = body, .data = &w, .level = level, .device = device});
    return copied;
}

/* A bias lies in the bucket of its weight. Without digests they are copied together. */
TEST(reading, large_gradients_are_hashed_on_their_way_beside_small_ones)
{
    cddp_device counting = *cddp_device_cpu();
    counting.copy = copy_and_count;
    const int64_t before = count_copied(&counting, CDDP_TRACE_ORDER);
    assert_int_equal(count_copied(&counting, CDDP_TRACE_DIGEST) - before,
                     2 * STEPS * (5 + LARGE + 2 * LARGE + 1));
}

/* ---- copied while it is read ---- */

/* The copy of the large gradient gets another element than its slice has. */
static cddp_status copy_and_spoil(const cddp_tensor *dst, const cddp_tensor *src,
                                  cddp_stream *stream, cddp_error *err)
{
    CD_TRY(cddp_device_cpu()->copy(dst, src, stream, err));
    if (cddp_tensor_numel(dst) > 5) ((float *)dst->storage)[dst->offset + 4] = 77;
    return CDDP_OK;
}

static void spoiled_body(lane *l)
{
    int64_t reported[2] = {0}, gradient = 0;
    lane_add(l, "a", CDDP_F32, 5);
    lane_add(l, "b", CDDP_F32, LARGE);
    lane_wrap(l);
    lane_mark(l);
    lane_iterate(l, 3);
    for (size_t i = l->since; i < l->sink.count; i++) {
        const cddp_event_grad_final *e = &l->sink.events[i].as.grad_final;
        if (l->sink.events[i].kind != CDDP_EV_grad_final) continue;
        CHECK((e->digest == e->slice) == (e->param == 0));
        reported[e->param] = e->digest;
    }
    CHECK_OK(cddp_device_cpu()->digest(&l->grads[1].value, (uint64_t *)&gradient, &l->err));
    CHECK(reported[0] != 0 && reported[1] == gradient);
}

TEST(reading, a_copy_is_reported_as_it_is)
{
    cddp_device spoiling = *cddp_device_cpu();
    spoiling.copy = copy_and_spoil;
    lab_run(&(lab){
        .world_size = 2, .body = spoiled_body, .level = CDDP_TRACE_DIGEST, .device = &spoiling});
}

static cddp_backend transport;
static cddp_tensor posted; /* the bucket */
static void *posted_work;
/* What becomes of the wait for the bucket, when its result was spoiled. */
static enum { ENDS, FAILS, OVERWRITES } damage;

static cddp_status post_and_note(void *group, const cddp_collective *c, void **work,
                                 cddp_error *err)
{
    CD_TRY(transport.post(group, c, work, err));
    if (c->op == CDDP_OP_ALLREDUCE && cddp_tensor_numel(&c->output) == LARGE + 5) {
        posted = c->output;
        posted_work = *work;
    }
    return CDDP_OK;
}

static cddp_status wait_and_damage(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    CD_TRY(transport.wait(group, work, timeout_ns, err));
    if (posted.device == NULL || work != posted_work) return CDDP_OK;
    CD_TRY(posted.device->fill(&posted, 9, NULL, err));
    if (damage == FAILS) return cd_fail(err, CDDP_E_TIMEOUT, "too late");
    if (damage == OVERWRITES) ((float *)posted.storage)[posted.offset + LARGE + 5] = 1;
    return CDDP_OK;
}

static void plant_damage(cddp_backend *backend)
{
    transport = *backend;
    backend->post = post_and_note;
    backend->wait = wait_and_damage;
}

/* Gradients are as they were, whatever was read. */
static void damaged_body(lane *l)
{
    lane_add(l, "a", CDDP_F32, 5);
    lane_add(l, "b", CDDP_F32, LARGE);
    lane_wrap(l);
    lane_forward(l);
    for (size_t i = l->count; i-- > 0;) lane_grad(l, i, 3);
    CHECK_FAILS(cddp_ddp_backward_end(l->ddp, &l->err),
                damage == FAILS ? CDDP_E_TIMEOUT : CDDP_E_CORRUPT,
                damage == FAILS ? "too late" : "was overwritten");
    for (size_t i = 0; i < l->count; i++) CHECK(lane_value(l, i) == 3);
}

TEST(reading, what_failed_is_copied_nowhere)
{
    for (damage = FAILS; damage <= OVERWRITES; damage++) {
        posted.device = NULL;
        lab_run(&(lab){.world_size = 1,
                       .body = damaged_body,
                       .level = CDDP_TRACE_DIGEST,
                       .wrap_backend = plant_damage});
    }
}

/* It has a gradient from the step before. */
static void unused_body(lane *l)
{
    l->options.find_unused_parameters = true;
    lane_add(l, "a", CDDP_F32, LARGE);
    lane_add(l, "b", CDDP_F32, 5);
    lane_wrap(l);
    lane_iterate(l, 3);
    CHECK(lane_value(l, 0) == 9 && lane_value(l, 1) == 9);
    CHECK_OK(l->device->fill(&l->grads[1].value, 5, NULL, &l->err));
    lane_reach(l, 1);
    lane_forward(l);
    lane_grad(l, 0, 3);
    lane_end(l);
    CHECK(lane_value(l, 0) == 9 && lane_value(l, 1) == 5);
}

TEST(reading, what_nobody_used_is_copied_nowhere)
{
    damage = ENDS;
    posted.device = NULL;
    lab_run(&(lab){.world_size = 1,
                   .body = unused_body,
                   .level = CDDP_TRACE_DIGEST,
                   .wrap_backend = plant_damage});
}

/* ---- whoever writes in between ---- */

static cddp_backend inner;
static bool strikes_wait, strikes, strikes_views;
static cddp_tensor bucket; /* that was posted first */
static cddp_dtype op_dtypes[64];
static void *op_works[64];
static size_t op_count;

static cddp_status note_post(void *group, const cddp_collective *c, void **work, cddp_error *err)
{
    const cddp_status status = inner.post(group, c, work, err);
    if (c->op == CDDP_OP_ALLREDUCE && op_count < 64) {
        if (c->output.dtype == CDDP_F32 && bucket.device == NULL) bucket = c->output;
        op_dtypes[op_count] = c->output.dtype;
        op_works[op_count++] = *work;
    }
    return status;
}

/* Adds one to an element of the first bucket: behind its own wait, or behind that of the
** used map, which comes after the bucket was reported. */
static cddp_status strike_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    const cddp_status status = inner.wait(group, work, timeout_ns, err);
    for (size_t i = 0; i < op_count; i++) {
        if (op_works[i] != work || !strikes) continue;
        const bool is_bucket = op_dtypes[i] == CDDP_F32;
        if (is_bucket != strikes_wait) continue;
        float *at = (float *)bucket.storage + bucket.offset;
        while (*at != 3) at++;
        *at += 1;
        strikes = false;
    }
    return status;
}

static void wrap(cddp_backend *backend)
{
    inner = *backend;
    backend->post = note_post;
    backend->wait = strike_wait;
}

/* The last variable of the bucket is not used, so that the map is asked between report and copy. */
static void struck_body(lane *l)
{
    double *out = l->lab->out[0];
    l->options.find_unused_parameters = true;
    l->options.gradient_as_bucket_view = strikes_views;
    lane_add(l, "a", CDDP_F32, LARGE);
    lane_add(l, "b", CDDP_F32, 3);
    lane_wrap(l);
    bucket.device = NULL;
    op_count = 0;
    strikes = l->lab->data != NULL; /* from here on */
    lane_mark(l);
    lane_reach(l, 1);
    lane_forward(l);
    lane_grad(l, 0, 3);
    lane_end(l);
    int64_t done = 0, reported = 0, slice = 0, final = 0;
    for (size_t i = l->since; i < l->sink.count; i++) {
        const cddp_event *e = &l->sink.events[i];
        if (e->kind == CDDP_EV_collective_done && done == 0) done = e->as.collective_done.digest;
        if (e->kind == CDDP_EV_bucket_done) reported = e->as.bucket_done.digest;
        if (e->kind != CDDP_EV_grad_final || e->as.grad_final.param != 0) continue;
        slice = e->as.grad_final.slice;
        final = e->as.grad_final.digest;
    }
    uint64_t gradient = 0;
    CHECK_OK(l->device->digest(&l->grads[0].value, &gradient, &l->err));
    CHECK(done == reported);
    CHECK(final == slice && final == (int64_t)gradient);
    CHECK(!strikes);
    float *g = (float *)l->grads[0].value.storage + l->grads[0].value.offset;
    for (int64_t i = 0; i < LARGE; i++) out[0] += g[i];
    out[1] = (double)(reported >> 16);
    out[2] = (double)(slice >> 16);
}

static void strike(bool views)
{
    lab b[3];
    strikes_views = views;
    for (int i = 0; i < 3; i++) { /* nobody; behind the bucket's own wait; behind the map's */
        strikes = false;
        strikes_wait = i == 1;
        b[i] = (lab){.world_size = 1,
                     .body = struck_body,
                     .data = i > 0 ? &strikes : NULL,
                     .level = CDDP_TRACE_DIGEST,
                     .wrap_backend = wrap};
        lab_run(&b[i]);
    }
    /* the gradient, what was reported of the bucket, and the slice that the gradient came from */
    assert_true(b[0].out[0][0] == 3 * LARGE);
    for (int i = 1; i < 3; i++) assert_true(b[i].out[0][0] == 3 * LARGE + 1);
    assert_true(b[1].out[0][1] != b[0].out[0][1] && b[2].out[0][1] == b[0].out[0][1]);
    for (int i = 1; i < 3; i++) assert_true(b[i].out[0][2] != b[0].out[0][2]);
}

TEST(reading, a_write_between_the_report_and_the_copy_is_seen) { strike(false); }
TEST(reading, a_write_between_the_report_and_the_end_is_seen_in_a_view) { strike(true); }

TEST_MAIN()
