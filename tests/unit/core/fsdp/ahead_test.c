/* SPDX-License-Identifier: Apache-2.0 */
/* Units on a device with streams: gathers beside computation, how many freed units may be computed
** with (limit_all_gathers), shards on the host (CPUOffload), and units that move to their device
** (device_id). Every training has the bits of the same one on a device that works at once. */
#include "tests/unit/core/ddp/fixture.h"

#include "cddp/fsdp.h"
#include "core/fsdp/move.h"

#define UNITS 6
#define SIDE 4
#define NUMEL (SIDE * SIDE)
#define UNIT_BYTES (NUMEL * sizeof(float))
#define STEPS 3

static const char *const names[UNITS] = {"weight",   "a.weight", "b.weight",
                                         "c.weight", "d.weight", "e.weight"};
static const char *const wrapped[UNITS - 1] = {"a", "b", "c", "d", "e"};

typedef struct training {
    bool on_streams, unlimited, offloads, moves;
    cddp_fsdp_layout layout;
    cddp_fsdp_strategy strategy;
    cddp_fsdp_prefetch prefetch;
    bool forward_prefetch;
    bool casts;      /* to bf16 */
    int micro_steps; /* all reduce; 0: one */
    /* of rank 0 */
    uint64_t waits;          /* in all */
    int64_t made, made_peak; /* bytes on the device when it is wrapped, and the most until then */
    int64_t first_pass, second_pass; /* bytes that passes without gradients ask the device for */
    float values[LAB_RANKS][UNITS][NUMEL];
    float sums[LAB_RANKS][NUMEL]; /* of what passes computed with */
} training;

typedef struct model {
    lane *l;
    training *t;
    const cddp_device *device;
    cddp_fsdp *fsdp;
    cddp_tensor sum; /* (NUMEL) of the host, as the device sees it */
} model;

/* The host waits for what it is about to read. */
static void settle(model *m)
{
    lane *l = m->l;
    if (m->t->on_streams) CHECK_OK(m->device->stream_synchronize(m->device, NULL, &l->err));
}

/* Bytes of the device with streams since lane_mark: that are there, and the most. */
static int64_t bytes_of(const lane *l, int64_t *peak, int64_t *taken)
{
    int64_t live = 0;
    *peak = *taken = 0;
    for (size_t i = l->since; i < l->sink.count; i++) {
        const cddp_event_memory *e = &l->sink.events[i].as.memory;
        if (l->sink.events[i].kind != CDDP_EV_memory) continue;
        live += e->released ? -e->bytes : e->bytes;
        if (!e->released) *taken += e->bytes;
        if (live > *peak) *peak = live;
    }
    return live;
}

static void open(model *m)
{
    lane *l = m->l;
    training *t = m->t;
    cddp_fsdp_options o = cddp_fsdp_options_default();
    const int64_t sizes[] = {SIDE, SIDE};
    m->device = cddp_device_cpu();
    const cddp_streams_options streams = {.size = sizeof streams,
                                          .inner = cddp_device_cpu(),
                                          .tracer = l->tracer,
                                          .operation_ns = 100};
    if (t->on_streams) CHECK_OK(l->rank->ops->streams_open(l->rank, &streams, &m->device, &l->err));
    for (size_t i = 0; i < UNITS; i++) {
        cddp_parameter *p = lane_add(l, names[i], CDDP_F32, NUMEL);
        p->tensor = cddp_tensor_of(l->device, p->tensor.storage, 0, CDDP_F32, sizes, 2);
        for (int e = 0; e < NUMEL; e++)
            ((float *)p->tensor.storage)[e] = (float)(3 * (int)i - e + (int)l->r);
        if (!t->moves) p->tensor.device = m->device;
    }
    o.parameters = l->parameters;
    o.parameter_count = l->count;
    o.group = l->group;
    o.tracer = l->tracer;
    o.wrap.kind = CDDP_FSDP_WRAP_NAMES;
    o.wrap.words = wrapped;
    o.wrap.word_count = UNITS - 1;
    o.layout = t->layout;
    o.strategy = t->strategy;
    o.backward_prefetch = t->prefetch;
    o.forward_prefetch = t->forward_prefetch;
    o.sync_module_states = true;
    o.limit_all_gathers = !t->unlimited;
    o.cpu_offload.offload_params = t->offloads;
    if (t->moves) o.device_id = m->device;
    if (t->casts) o.mixed_precision.param_dtype = CDDP_BF16;
    lane_mark(l);
    CHECK_OK(cddp_fsdp_create(&o, &m->fsdp, &l->err));
    int64_t taken = 0;
    if (l->r == 0) t->made = bytes_of(l, &t->made_peak, &taken);
    for (size_t i = 0; i < UNITS; i++) {
        l->parameters[i].tensor.device = cddp_device_cpu();
        if (t->moves) /* the host's copy is the program's again */
            CHECK_OK(l->device->fill(&l->parameters[i].tensor, -77.0, NULL, &l->err));
    }
}

/* Long after the host has gone on. */
static void compute(model *m, size_t i)
{
    lane *l = m->l;
    const cddp_tensor *full = cddp_fsdp_parameter(m->fsdp, i);
    CHECK(full != NULL && cddp_tensor_numel(full) == NUMEL);
    if (m->t->casts) return;
    for (int n = 0; n < 20; n++) CHECK_OK(m->device->scale(&m->sum, &m->sum, 1.0, NULL, &l->err));
    CHECK_OK(m->device->axpy(&m->sum, (double)(1 + i), full, NULL, &l->err));
}

static void evaluate(model *m)
{
    lane *l = m->l;
    CHECK_OK(cddp_fsdp_pre_forward(m->fsdp, 0, false, &l->err));
    compute(m, 0);
    for (uint32_t k = 1; k < UNITS; k++) {
        CHECK_OK(cddp_fsdp_pre_forward(m->fsdp, k, false, &l->err));
        compute(m, k);
        CHECK_OK(cddp_fsdp_post_forward(m->fsdp, k, false, &l->err));
    }
    CHECK_OK(cddp_fsdp_post_forward(m->fsdp, 0, false, &l->err));
}

/* += what the device computes of the parameter and a number of the rank. */
static void compute_gradient(model *m, size_t i, int step)
{
    lane *l = m->l;
    const cddp_tensor *full = cddp_fsdp_parameter(m->fsdp, i);
    CHECK(full != NULL && full->device == m->device);
    CHECK_OK(cddp_grad_define(&l->grads[i], full, &l->err));
    const cddp_tensor *g = &l->grads[i].value;
    CHECK_OK(m->device->fill(g, (double)((int)l->r + step + (int)i), NULL, &l->err));
    CHECK_OK(m->device->axpy(g, 0.25, full, NULL, &l->err));
}

static void backward_unit(model *m, uint32_t k, int step)
{
    lane *l = m->l;
    CHECK_OK(cddp_fsdp_pre_backward(m->fsdp, k, &l->err));
    compute_gradient(m, k, step);
    CHECK_OK(cddp_fsdp_post_backward(m->fsdp, k, &l->err));
}

static void iterate(model *m, int step)
{
    lane *l = m->l;
    CHECK_OK(cddp_fsdp_pre_forward(m->fsdp, 0, true, &l->err));
    for (uint32_t k = 1; k < UNITS; k++) {
        CHECK_OK(cddp_fsdp_pre_forward(m->fsdp, k, true, &l->err));
        CHECK_OK(cddp_fsdp_post_forward(m->fsdp, k, true, &l->err));
    }
    CHECK_OK(cddp_fsdp_post_forward(m->fsdp, 0, true, &l->err));
    CHECK_OK(cddp_fsdp_pre_backward(m->fsdp, 0, &l->err));
    for (uint32_t k = UNITS; k-- > 1;) backward_unit(m, k, step);
    compute_gradient(m, 0, step);
    CHECK_OK(cddp_fsdp_post_backward(m->fsdp, 0, &l->err));
    CHECK_OK(cddp_fsdp_backward_end(m->fsdp, &l->err));
}

/* On the host. Of offloaded shards the wrapper has waited for the gradients. */
static void step(model *m)
{
    lane *l = m->l;
    if (!m->t->offloads) settle(m);
    for (uint32_t k = 0; k < UNITS; k++) {
        cddp_parameter flat;
        CHECK_OK(cddp_fsdp_flat(m->fsdp, k, &flat, &l->err));
        CHECK(flat.grad->kind == CDDP_GRAD_DENSE);
        CHECK(m->t->offloads || !m->t->on_streams ? cd_fsdp_is_host(flat.tensor.device)
                                                  : flat.tensor.device == m->device);
        float *values = flat.tensor.storage;
        const float *gradient = flat.grad->value.storage;
        for (int64_t e = 0; e < cddp_tensor_numel(&flat.tensor); e++)
            values[e] -= 0.5f * gradient[flat.grad->value.offset + e];
    }
    CHECK_OK(cddp_fsdp_zero_grad(m->fsdp, true, &l->err));
}

static void train(lane *l)
{
    training *t = l->lab->data;
    model m = {.l = l, .t = t};
    int64_t peak = 0;
    cddp_fsdp_counts counts = {.size = sizeof counts};
    const int64_t numel = NUMEL;
    open(&m);
    m.sum = cddp_tensor_of(m.device, t->sums[l->r], 0, CDDP_F32, &numel, 1);
    for (int pass = 0; pass < 2; pass++) {
        int64_t taken = 0;
        lane_mark(l);
        evaluate(&m);
        (void)bytes_of(l, &peak, &taken);
        if (l->r == 0) *(pass == 0 ? &t->first_pass : &t->second_pass) = taken;
    }
    CHECK_OK(cddp_fsdp_get_counts(m.fsdp, &counts, &l->err));
    const uint64_t before = counts.limit_waits;
    for (int s = 0; s < STEPS; s++) {
        for (int micro = 0; micro < (t->micro_steps > 0 ? t->micro_steps : 1); micro++)
            iterate(&m, 5 * s + micro);
        step(&m);
    }
    CHECK_OK(cddp_fsdp_get_counts(m.fsdp, &counts, &l->err));
    if (l->r == 0) t->waits = counts.limit_waits - before;
    settle(&m);
    for (uint32_t k = 0; k < UNITS; k++) {
        cddp_parameter flat;
        CHECK_OK(cddp_fsdp_flat(m.fsdp, k, &flat, &l->err));
        memcpy(t->values[l->r][k], flat.tensor.storage,
               (size_t)cddp_tensor_numel(&flat.tensor) * sizeof(float));
    }
    cddp_fsdp_destroy(m.fsdp);
    for (size_t i = 0; i < l->count; i++) cddp_grad_fini(&l->grads[i]);
    if (t->on_streams) l->rank->ops->streams_close(l->rank, m.device);
}

static void run(training *t, uint32_t world) { lab_of(world, train, t); }

/* The same one where every operation is over when it returns. */
static void check_values(const training *t, uint32_t world)
{
    training plain = *t;
    plain.on_streams = plain.offloads = plain.moves = false;
    memset(plain.values, 0, sizeof plain.values);
    memset(plain.sums, 0, sizeof plain.sums);
    run(&plain, world);
    assert_memory_equal(t->values, plain.values, sizeof plain.values);
    assert_memory_equal(t->sums, plain.sums, sizeof plain.sums);
}

TEST(ahead, the_host_waits_for_the_oldest_of_two_frees)
{
    training t = {.on_streams = true};
    run(&t, 2);
    check_values(&t, 2);
    /* Forward: before c, d, e. Backward: the root, which is full, then d, c, b, a. */
    assert_int_equal(t.waits, STEPS * (3 + 1 + 4));
    /* the root, the unit at hand, and one that was freed before it */
    assert_int_equal(t.first_pass, 3 * UNIT_BYTES);
    assert_int_equal(t.second_pass, 0);
}

TEST(ahead, without_the_limit_every_gather_of_a_pass_has_new_memory)
{
    training t = {.on_streams = true, .unlimited = true};
    run(&t, 2);
    check_values(&t, 2);
    assert_int_equal(t.waits, 0);
    assert_int_equal(t.first_pass, UNITS * UNIT_BYTES);
    assert_int_equal(t.second_pass, 0); /* it comes behind the first one */
}

TEST(ahead, passes_compute_with_what_was_gathered_for_them)
{
    for (int i = 0; i < 4; i++) {
        training t = {.on_streams = true,
                      .unlimited = i % 2 == 1,
                      .layout = i / 2 == 0 ? CDDP_FSDP_FLAT : CDDP_FSDP_ROWS};
        cd_test_row("mode %d", i);
        run(&t, 2);
        check_values(&t, 2);
    }
}

TEST(ahead, where_nothing_is_computed_later_nobody_waits)
{
    training t = {.on_streams = false};
    run(&t, 3);
    assert_int_equal(t.waits, 0);
}

TEST(ahead, every_mode_has_the_bits_of_a_device_that_works_at_once)
{
    for (int i = 0; i < 2 * 2 * 3 * 2; i++) {
        training t = {.on_streams = true,
                      .layout = i % 2 == 0 ? CDDP_FSDP_FLAT : CDDP_FSDP_ROWS,
                      .strategy = i / 2 % 2 == 0 ? CDDP_FSDP_FULL_SHARD : CDDP_FSDP_SHARD_GRAD_OP,
                      .prefetch = (cddp_fsdp_prefetch)(i / 4 % 3),
                      .forward_prefetch = i / 12 == 1,
                      .unlimited = i % 5 == 0,
                      .offloads = i % 3 == 0,
                      .moves = i % 7 < 3};
        cd_test_row("mode %d", i);
        run(&t, 3);
        check_values(&t, 3);
    }
}

TEST(offload, shards_and_gradients_are_on_the_host_and_not_on_the_device)
{
    for (int i = 0; i < 4; i++) {
        training t = {.on_streams = true,
                      .offloads = true,
                      .moves = i % 2 == 0,
                      .strategy = i < 2 ? CDDP_FSDP_FULL_SHARD : CDDP_FSDP_NO_SHARD};
        cd_test_row("mode %d", i);
        run(&t, 2);
        check_values(&t, 2);
        assert_int_equal(t.made, 0);
    }
}

/* PyTorch keeps the newest reduction (FSY-08). */
TEST(offload, adds_up_every_reduction) /* TI-N-23 */
{
    training t = {.on_streams = true, .offloads = true, .micro_steps = 3};
    run(&t, 2);
    check_values(&t, 2);
}

TEST(offload, goes_with_casts)
{
    training t = {.on_streams = true, .offloads = true, .casts = true, .micro_steps = 2};
    for (int i = 0; i < 2; i++) {
        t.layout = i == 0 ? CDDP_FSDP_FLAT : CDDP_FSDP_ROWS;
        run(&t, 2);
        check_values(&t, 2);
    }
}

/* Shards, and one whole unit (FSD-18). */
TEST(device_id, moves_one_unit_at_a_time)
{
    for (int i = 0; i < 4; i++) {
        training t = {.on_streams = true,
                      .moves = true,
                      .layout = i % 2 == 0 ? CDDP_FSDP_FLAT : CDDP_FSDP_ROWS,
                      .offloads = i >= 2};
        cd_test_row("mode %d", i);
        run(&t, 2);
        check_values(&t, 2);
        const int64_t shards = t.offloads ? 0 : UNITS * (int64_t)UNIT_BYTES / 2;
        assert_int_equal(t.made, shards);
        /* the last shard is made while its unit is whole */
        assert_int_equal(t.made_peak, shards + (int64_t)UNIT_BYTES);
    }
}

/* FSH-07: a copy of a unit beside the default stream, for which the host waits alone. */
static void copies_beside(lane *l)
{
    training *t = l->lab->data;
    model m = {.l = l, .t = t};
    float copied[NUMEL] = {0}, whole[NUMEL] = {0};
    const int64_t sizes[] = {SIDE, SIDE}, numel = NUMEL;
    cddp_stream *beside = NULL;
    open(&m);
    const cddp_device *d = m.device;
    m.sum = cddp_tensor_of(d, t->sums[l->r], 0, CDDP_F32, &numel, 1);
    CHECK_OK(d->stream_create(d, &beside, &l->err));
    CHECK_FAILS(cddp_fsdp_wait_unit(m.fsdp, 1, beside, &l->err), CDDP_E_STATE,
                "a stream is to wait for 'a', which is not full");
    CHECK_OK(cddp_fsdp_pre_forward(m.fsdp, 0, false, &l->err));
    CHECK_OK(cddp_fsdp_pre_forward(m.fsdp, 1, false, &l->err));
    CHECK_OK(cddp_fsdp_wait_unit(m.fsdp, 1, NULL, &l->err));
    CHECK_OK(cddp_fsdp_wait_unit(m.fsdp, 1, beside, &l->err));
    const cddp_tensor *full = cddp_fsdp_parameter(m.fsdp, 1);
    cddp_tensor to = cddp_tensor_of(d, copied, 0, CDDP_F32, sizes, 2);
    CHECK_OK(d->copy(&to, full, beside, &l->err));
    CHECK_OK(d->stream_synchronize(d, beside, &l->err));
    to.storage = whole;
    CHECK_OK(d->copy(&to, full, NULL, &l->err));
    settle(&m);
    CHECK(memcmp(copied, whole, sizeof whole) == 0);
    CHECK(whole[0] == 3.0F && whole[NUMEL - 1] == 3.0F - (NUMEL - 1));
    CHECK_OK(cddp_fsdp_post_forward(m.fsdp, 1, false, &l->err));
    CHECK_OK(cddp_fsdp_post_forward(m.fsdp, 0, false, &l->err));
    d->stream_destroy(d, beside);
    cddp_fsdp_destroy(m.fsdp);
    l->rank->ops->streams_close(l->rank, d);
}
TEST(ahead, another_stream_waits_for_a_unit)
{
    for (int i = 0; i < 4; i++) {
        training t = {.on_streams = true,
                      .layout = i % 2 == 0 ? CDDP_FSDP_FLAT : CDDP_FSDP_ROWS,
                      .strategy = i < 2 ? CDDP_FSDP_FULL_SHARD : CDDP_FSDP_NO_SHARD,
                      .offloads = i >= 2};
        cd_test_row("mode %d", i);
        lab_of(2, copies_beside, &t);
    }
}

static void names_another_device(lane *l)
{
    cddp_fsdp_options o = cddp_fsdp_options_default();
    const cddp_device *device = NULL;
    cddp_fsdp *f = NULL;
    const cddp_streams_options streams = {.size = sizeof streams, .inner = cddp_device_cpu()};
    CHECK_OK(l->rank->ops->streams_open(l->rank, &streams, &device, &l->err));
    cddp_parameter *p = lane_add(l, "weight", CDDP_F32, NUMEL);
    o.parameters = l->parameters;
    o.parameter_count = 1;
    o.group = l->group;
    o.device_id = cddp_device_symbol();
    p->tensor.device = device;
    CHECK_FAILS(cddp_fsdp_create(&o, &f, &l->err), CDDP_E_CONFIG,
                "device_id is symbol, and 'weight' is on cpu: units move from the host to their "
                "device, and from no other device");
    p->tensor.device = cddp_device_cpu();
    cddp_tensor *buffer = lane_add_buffer(l, "mean", CDDP_F32, 2, 1.0);
    buffer->device = cddp_device_symbol();
    o.buffers = l->buffers;
    o.buffer_count = 1;
    o.device_id = device;
    CHECK_FAILS(cddp_fsdp_create(&o, &f, &l->err), CDDP_E_CONFIG,
                "device_id is cpu, and buffer 'mean' is on symbol");
    buffer->device = cddp_device_cpu();
    o.buffer_dtype = CDDP_BF16;
    CHECK_FAILS(cddp_fsdp_create(&o, &f, &l->err), CDDP_E_CONFIG, "device_id with buffer_dtype");
    o.buffer_dtype = CDDP_DTYPE_COUNT;
    /* A buffer moves, too, and what forward reads is the copy. */
    CHECK_OK(cddp_fsdp_create(&o, &f, &l->err));
    CHECK(cddp_fsdp_buffer(f, 0)->device == device);
    cddp_fsdp_unit_info info = {.size = sizeof info};
    CHECK_OK(cddp_fsdp_unit(f, 0, &info, &l->err));
    CHECK(info.device == device && info.shard_device == device);
    cddp_fsdp_destroy(f);
    l->rank->ops->streams_close(l->rank, device);
}
TEST(device_id, of_another_device_is_one_sentence) { lab_of(2, names_another_device, NULL); }

TEST_MAIN()
