/* SPDX-License-Identifier: Apache-2.0 */
/* A lab for the reducer: W simulated ranks, each a lane with a few parameters whose gradients the
** test injects.
**
**     lab l = {.world_size = 2, .body = my_body};      body runs once per rank, as a fiber
**     lab_run(&l);
**
** In a body:  lane_add(…) parameters, lane_wrap(l) → per iteration lane_forward, lane_grad
**             (accumulate a constant and
** fire the hook), lane_end → lane_value / lane_has. Every lane records its events in memory.
*/
#pragma once
#include "backends/sim/sim_backend.h"
#include "cddp/ddp.h"
#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/tensor/cpu.h"
#include "core/trace/sink.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LANE_PARAMETERS 16
#define LAB_RANKS 8

typedef struct lane lane;
typedef struct lab {
    uint32_t world_size;
    void (*body)(lane *l);
    void *data;
    cddp_trace_level level;
    const cddp_device *device; /* NULL: cpu */
    cd_sim_config config;
    bool may_fail;       /* ranks may hang or fail; results are left to the test */
    bool has_no_minimum; /* of the backend's reductions */
    void (*wrap_backend)(cddp_backend *backend); /* NULL: as it is */
    cddp_backend backend;
    cddp_rank_result results[LAB_RANKS];
    double out[LAB_RANKS][32]; /* what bodies report */
} lab;

struct lane {
    lab *lab;
    cddp_rank *rank;
    uint32_t r, w;
    const cddp_device *device;
    /* of all memory of the rank: what is left when its wrapper and group are gone is a leak */
    cd_watch_allocator watch;
    cddp_device watched; /* cpu, in that memory */
    cddp_group *group;
    cddp_tracer *tracer;
    cd_memory_sink sink;
    size_t since; /* first event that lane_count looks at */
    cddp_ddp_options options;
    cddp_parameter parameters[LANE_PARAMETERS];
    cddp_grad grads[LANE_PARAMETERS];
    cddp_tensor ones[LANE_PARAMETERS];
    size_t count;
    cddp_buffer buffers[4];
    size_t buffer_count;
    cddp_ddp *ddp;
    bool reachable[LANE_PARAMETERS];
    cddp_error err;
};

/* In a fiber an assertion cannot jump out of the world; it ends the test with its place instead. */
#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: not true on rank %u: %s\n", __FILE__, __LINE__, l->r, \
                    #condition);                                                          \
            abort();                                                                      \
        }                                                                                 \
    } while (0)
#define CHECK_OK(call)                                                                   \
    do {                                                                                 \
        if ((call) != CDDP_OK) {                                                         \
            fprintf(stderr, "%s:%d: rank %u: %s: %s\n", __FILE__, __LINE__, l->r, #call, \
                    l->err.message);                                                     \
            abort();                                                                     \
        }                                                                                \
    } while (0)
#define CHECK_FAILS(call, wanted, words)                                                        \
    do {                                                                                        \
        cddp_status check_status = (call);                                                      \
        if (check_status != (wanted) || strstr(l->err.message, (words)) == NULL) {              \
            fprintf(stderr, "%s:%d: rank %u: %s returned \"%s\": \"%s\"\n", __FILE__, __LINE__, \
                    l->r, #call, cddp_status_text(check_status), l->err.message);               \
            abort();                                                                            \
        }                                                                                       \
    } while (0)

static inline cddp_tensor lane_tensor(lane *l, cddp_dtype dtype, const int64_t *sizes,
                                      uint32_t dims, double fill)
{
    int64_t numel = 1;
    for (uint32_t i = 0; i < dims; i++) numel *= sizes[i];
    void *storage = NULL;
    CHECK_OK(l->device->allocate(l->device, dtype, numel > 0 ? numel : 1, &storage, &l->err));
    cddp_tensor t = cddp_tensor_of(l->device, storage, 0, dtype, sizes, dims);
    CHECK_OK(l->device->fill(&t, fill, NULL, &l->err));
    return t;
}
static inline void lane_release(lane *l, const cddp_tensor *t)
{
    int64_t numel = cddp_tensor_numel(t);
    l->device->release(l->device, t->dtype, numel > 0 ? numel : 1, t->storage);
}

/* A trainable parameter of one dimension. */
static inline cddp_parameter *lane_add(lane *l, const char *name, cddp_dtype dtype, int64_t numel)
{
    size_t i = l->count++;
    l->parameters[i] = (cddp_parameter){.name = name,
                                        .requires_grad = true,
                                        .grad = &l->grads[i],
                                        .tensor = lane_tensor(l, dtype, &numel, 1, 0.0)};
    l->ones[i] = lane_tensor(l, dtype, &numel, 1, 1.0);
    return &l->parameters[i];
}

static inline cddp_tensor *lane_add_buffer(lane *l, const char *name, cddp_dtype dtype,
                                           int64_t numel, double value)
{
    cddp_buffer *b = &l->buffers[l->buffer_count++];
    *b = (cddp_buffer){.name = name, .tensor = lane_tensor(l, dtype, &numel, 1, value)};
    return &b->tensor;
}

static inline cddp_status lane_try_wrap(lane *l)
{
    l->options.parameters = l->parameters;
    l->options.parameter_count = l->count;
    l->options.buffers = l->buffers;
    l->options.buffer_count = l->buffer_count;
    return cddp_ddp_create(&l->options, &l->ddp, &l->err);
}
static inline void lane_wrap(lane *l) { CHECK_OK(lane_try_wrap(l)); }

static inline void lane_forward(lane *l)
{
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
    CHECK_OK(cddp_ddp_forward_end(l->ddp, l->reachable, &l->err));
}
static inline void lane_reach(lane *l, uint32_t mask) /* bit i: parameter i is reachable */
{
    for (size_t i = 0; i < LANE_PARAMETERS; i++) l->reachable[i] = (mask >> i) & 1;
}
/* What forward computes with: under mixed precision a copy. */
static inline const cddp_tensor *forward_tensor(const cddp_ddp *ddp,
                                                const cddp_parameter *parameter, size_t i)
{
    const cddp_tensor *copy = cddp_ddp_forward_copy(ddp, i);
    return copy != NULL ? copy : &parameter->tensor;
}

/* The engine: += value in every element, without the hook. */
static inline void lane_accumulate(lane *l, size_t i, double value)
{
    bool fresh = l->grads[i].kind == CDDP_GRAD_UNDEFINED;
    CHECK_OK(cddp_grad_define(&l->grads[i], forward_tensor(l->ddp, &l->parameters[i], i), &l->err));
    const cddp_tensor *g = &l->grads[i].value;
    if (fresh) {
        CHECK_OK(g->device->fill(g, value, NULL, &l->err));
    } else {
        CHECK(g->dtype == l->ones[i].dtype);
        CHECK_OK(g->device->axpy(g, value, &l->ones[i], NULL, &l->err));
    }
}
static inline cddp_status lane_try_hook(lane *l, size_t i)
{
    return cddp_ddp_mark_parameter_ready(l->ddp, i, &l->err);
}
static inline void lane_hook(lane *l, size_t i) { CHECK_OK(lane_try_hook(l, i)); }
static inline void lane_grad(lane *l, size_t i, double value)
{
    lane_accumulate(l, i, value);
    lane_hook(l, i);
}
static inline void lane_end(lane *l) { CHECK_OK(cddp_ddp_backward_end(l->ddp, &l->err)); }
static inline void lane_zero_grad(lane *l, bool to_none)
{
    for (size_t i = 0; i < l->count; i++) {
        if (to_none)
            cddp_grad_drop(&l->grads[i]);
        else if (l->grads[i].kind == CDDP_GRAD_DENSE)
            CHECK_OK(l->device->fill(&l->grads[i].value, 0.0, NULL, &l->err));
    }
}
/* One iteration in which parameter i receives value(s) in the order last to first, as an engine
** does. */
static inline void lane_iterate(lane *l, double value)
{
    lane_forward(l);
    for (size_t i = l->count; i-- > 0;) lane_grad(l, i, value);
    lane_end(l);
}
static inline bool lane_has(const lane *l, size_t i)
{
    return l->grads[i].kind != CDDP_GRAD_UNDEFINED;
}
static inline double lane_first(lane *l, const cddp_tensor *t)
{
    cddp_tensor first = cddp_tensor_of(t->device, t->storage, t->offset, t->dtype, NULL, 0);
    double wide = 0;
    int64_t none = 1;
    cddp_tensor to = cddp_tensor_of(cddp_device_cpu(), &wide, 0, CDDP_F64, &none, 0);
    CHECK_OK(cddp_device_cpu()->copy(&to, &first, NULL, &l->err));
    return wide;
}
static inline double lane_value(lane *l, size_t i)
{
    CHECK(l->grads[i].kind == CDDP_GRAD_DENSE);
    return lane_first(l, &l->grads[i].value);
}
static inline float lane_f32(lane *l, size_t i) { return (float)lane_value(l, i); }

/* Events of a kind since the last lane_mark; for collectives op >= 0 selects one operation. */
static inline void lane_mark(lane *l) { l->since = l->sink.count; }
static inline size_t lane_count(const lane *l, uint32_t kind, int64_t op)
{
    size_t n = 0;
    for (size_t i = l->since; i < l->sink.count; i++) {
        const cddp_event *e = &l->sink.events[i];
        n += e->kind == kind && (op < 0 || e->as.collective_post.op == op);
    }
    return n;
}
static inline size_t lane_posts(const lane *l, cddp_op op)
{
    return lane_count(l, CDDP_EV_collective_post, (int64_t)op);
}
static inline bool lane_has_mark(const lane *l, const char *text)
{
    for (size_t i = l->since; i < l->sink.count; i++) {
        cddp_event e = cd_memory_sink_get(&l->sink, i);
        if (e.kind == CDDP_EV_mark && strcmp(e.text, text) == 0) return true;
    }
    return false;
}

static inline void lane_layout(const lane *l, char *text, size_t text_bytes) /* "5 4, 3 2" */
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t b = 0; b < cddp_ddp_bucket_count(l->ddp); b++) {
        cddp_bucket_info info = {.size = sizeof info};
        CHECK(cddp_ddp_bucket(l->ddp, b, &info, NULL) == CDDP_OK);
        for (uint32_t i = 0; i < info.variable_count; i++)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%u",
                                     i > 0   ? " "
                                     : b > 0 ? ", "
                                             : "",
                                     info.variables[i]);
    }
}
#define CHECK_LAYOUT(wanted)                                                                      \
    do {                                                                                          \
        char check_layout[256];                                                                   \
        lane_layout(l, check_layout, sizeof check_layout);                                        \
        if (strcmp(check_layout, (wanted)) != 0) {                                                \
            fprintf(stderr, "%s:%d: rank %u: layout \"%s\", wanted \"%s\"\n", __FILE__, __LINE__, \
                    l->r, check_layout, wanted);                                                  \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

static inline void lane_unwrap(lane *l)
{
    cddp_ddp_destroy(l->ddp);
    l->ddp = NULL;
}

/* The next lane_add begins another model. */
static inline void lane_drop(lane *l)
{
    for (size_t i = 0; i < l->count; i++) {
        cddp_grad_fini(&l->grads[i]);
        lane_release(l, &l->ones[i]);
        lane_release(l, &l->parameters[i].tensor);
    }
    l->count = 0;
}

static inline cddp_status lane_program(cddp_rank *rank, void *argument, cddp_error *err)
{
    lab *b = argument;
    static const uint32_t all[LAB_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    lane *l = calloc(1, sizeof *l);
    *l = (lane){.lab = b,
                .rank = rank,
                .r = rank->rank,
                .w = rank->world_size,
                .device = b->device != NULL ? b->device : cddp_device_cpu(),
                .options = cddp_ddp_options_default()};
    l->options.strict = false; /* PyTorch's semantics; misuse_test.c has both */
    const cddp_allocator *outer = rank->allocator;
    cd_watch_allocator_init(&l->watch, outer);
    rank->allocator = &l->watch.table;
    l->watched = cd_device_with_allocator(cddp_device_cpu(), &l->watch.table);
    if (b->device == NULL) l->device = &l->watched;
    cd_memory_sink_init(&l->sink, NULL);
    CHECK_OK(cddp_tracer_create(rank, &l->sink.sink, b->level, &l->tracer, &l->err));
    cddp_group_options o = {.size = sizeof o,
                            .backend = &b->backend,
                            .rank = rank,
                            .tracer = l->tracer};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = "world",
                               .group_rank = l->r,
                               .group_size = l->w,
                               .members = all};
    CHECK_OK(cddp_group_create(&o, &l->group, &l->err));
    l->options.group = l->group;
    l->options.tracer = l->tracer;
    lane_reach(l, UINT32_MAX);
    b->body(l);
    lane_unwrap(l);
    lane_drop(l);
    for (size_t i = 0; i < l->buffer_count; i++) lane_release(l, &l->buffers[i].tensor);
    cddp_group_destroy(l->group);
    cddp_tracer_destroy(l->tracer);
    cd_memory_sink_fini(&l->sink);
    rank->allocator = outer;
    CHECK(l->watch.live_count == 0);
    (void)err;
    free(l);
    return CDDP_OK;
}

static inline void lab_run(lab *b)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    config.world_size = b->world_size;
    config.chooser = b->config.chooser;
    config.completion = b->config.completion;
    cd_sim *sim = NULL;
    assert_ok(cd_sim_create(&config, &sim, &err), &err);
    b->backend = cd_sim_backend(sim);
    if (b->has_no_minimum) b->backend.capabilities.reduce_ops &= ~(1u << CDDP_RED_MIN);
    if (b->wrap_backend != NULL) b->wrap_backend(&b->backend);
    assert_ok(cd_sim_ops()->launch(sim, lane_program, b, b->results, &err), &err);
    for (uint32_t r = 0; !b->may_fail && r < b->world_size; r++) {
        assert_ok(b->results[r].status, &b->results[r].error);
        assert_int_equal(b->results[r].end, CDDP_RANK_RETURNED);
    }
    cd_sim_destroy(sim);
}
/* The usual shape of a test. */
static inline void lab_of(uint32_t world_size, void (*body)(lane *l), void *data)
{
    lab b = {.world_size = world_size, .body = body, .data = data};
    lab_run(&b);
}
#define LAB(subject, claim, world)                                          \
    static void body_##subject##_##claim(lane *l);                          \
    TEST(subject, claim) { lab_of(world, body_##subject##_##claim, NULL); } \
    static void body_##subject##_##claim(lane *l)
