/* SPDX-License-Identifier: Apache-2.0 */
/* What two events report after one reading is what each would have read, and whoever writes between
** two readings is seen. See Note [One reading for two events] in core/ddp/reducer/reading.h. */
#include "core/base/hash.h"
#include "core/trace/event.h"
#include "tests/unit/core/ddp/fixture.h"

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
            if (l->reachable[i]) lane_grad(l, i, 1.0 / (double)(i + 3) + step + l->r);
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

/* ---- whoever writes in between ---- */

static cddp_backend inner;
static bool strikes_wait, strikes;
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
    CHECK(done == reported);
    CHECK(final == slice);
    CHECK(!strikes);
    float *g = (float *)l->grads[0].value.storage + l->grads[0].value.offset;
    for (int64_t i = 0; i < LARGE; i++) out[0] += g[i];
    out[1] = (double)(reported >> 16);
    out[2] = (double)(slice >> 16);
}

TEST(reading, a_write_between_the_report_and_the_copy_is_seen)
{
    lab b[3];
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

TEST_MAIN()
