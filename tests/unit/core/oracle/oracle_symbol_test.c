/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle on exact forms: it says which contribution is missing, foreign or wrongly scaled. */
#include "core/oracle/oracle.h"

#include "cddp/device.h"
#include "core/tensor/symbol.h"
#include "core/trace/codes.h"
#include "core/trace/sink.h"
#include "tests/support/test.h"

#include <string.h>

#define RANKS 3
#define MICROS 2
#define NUMEL 4

typedef struct toy {
    cd_oracle_engine table;
    cddp_tensor parameter;
    cddp_grad gradient;
} toy;

static cddp_tensor make(int64_t numel)
{
    cddp_error err = CDDP_ERROR_INIT;
    void *storage = NULL;
    assert_ok(cddp_device_symbol()->allocate(cddp_device_symbol(), CDDP_F32, numel, &storage, &err),
              &err);
    cddp_tensor t = cddp_tensor_of(cddp_device_symbol(), storage, 0, CDDP_F32, &numel, 1);
    assert_ok(cddp_device_symbol()->fill(&t, 0, NULL, &err), &err);
    return t;
}

static void release(cddp_tensor *t)
{
    t->device->release(t->device, t->dtype, cddp_tensor_numel(t), t->storage);
}

/* sum += the gradient of one rank's micro-step. */
static void add_contribution(const cddp_tensor *sum, uint32_t rank, uint32_t micro)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_tensor one = make(NUMEL);
    cd_atom atom = {
        .kind = CD_ATOM_GRADIENT, .source = 0, .rank = rank, .micro_step = micro, .step = 0};
    assert_ok(cd_symbol_write_atoms(&one, &atom, &err), &err);
    assert_ok(cddp_device_symbol()->reduce(CDDP_RED_SUM, sum, &one, NULL, &err), &err);
    release(&one);
}

static cddp_status toy_load(void *self, const cddp_tensor *parameters, const cddp_tensor *buffers,
                            cddp_error *err)
{
    (void)parameters;
    (void)buffers;
    (void)err;
    cddp_grad_drop(&((toy *)self)->gradient);
    return CDDP_OK;
}
static cddp_status toy_set_gradient(void *self, size_t parameter, const cddp_grad *gradient,
                                    cddp_error *err)
{
    (void)self;
    (void)parameter;
    (void)gradient;
    (void)err;
    return CDDP_OK;
}
static void toy_drop(void *self) { cddp_grad_drop(&((toy *)self)->gradient); }
static cddp_status toy_run(void *self, const cd_oracle_part *part, cddp_error *err)
{
    toy *t = self;
    bool fresh = t->gradient.kind == CDDP_GRAD_UNDEFINED;
    assert_ok(cddp_grad_define(&t->gradient, &t->parameter, err), err);
    if (fresh) assert_ok(cddp_device_symbol()->fill(&t->gradient.value, 0, NULL, err), err);
    add_contribution(&t->gradient.value, part->rank, part->micro_step);
    return CDDP_OK;
}
static uint32_t toy_count(void *self, const cd_oracle_part *part)
{
    (void)self;
    (void)part;
    return 1;
}
static const cddp_tensor *toy_parameters(void *self) { return &((toy *)self)->parameter; }
static const cddp_grad *toy_gradients(void *self) { return &((toy *)self)->gradient; }
static const cddp_tensor *toy_buffers(void *self)
{
    (void)self;
    return NULL;
}
static cddp_status toy_update(void *self, const cd_oracle_update *before, cd_oracle_slots *state,
                              cddp_error *err)
{
    (void)self;
    (void)before;
    (void)state;
    (void)err;
    return CDDP_OK;
}

/* ---- what the run ended with ---- */

static void add_all(const cddp_tensor *mean, int64_t skip_rank, int64_t skip_micro)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t m = 0; m < MICROS; m++)
            if (skip_rank != (int64_t)r || skip_micro != (int64_t)m) add_contribution(mean, r, m);
}

static void divide(const cddp_tensor *mean, int64_t n)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_device_symbol()->divide(mean, mean, n, NULL, &err), &err);
}

static void be_right(const cddp_tensor *mean)
{
    add_all(mean, -1, -1);
    divide(mean, RANKS);
}
static void drop_one(const cddp_tensor *mean)
{
    add_all(mean, 1, 0);
    divide(mean, RANKS);
}
static void double_one(const cddp_tensor *mean)
{
    add_all(mean, -1, -1);
    add_contribution(mean, 2, 1);
    divide(mean, RANKS);
}
static void divide_twice(const cddp_tensor *mean)
{
    add_all(mean, -1, -1);
    divide(mean, RANKS * RANKS);
}
static void add_foreign(const cddp_tensor *mean)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_tensor stale = make(NUMEL);
    cd_atom atom = {.kind = CD_ATOM_GRADIENT, .source = 0, .rank = 0, .micro_step = 0, .step = 7};
    assert_ok(cd_symbol_write_atoms(&stale, &atom, &err), &err);
    be_right(mean);
    assert_ok(cddp_device_symbol()->reduce(CDDP_RED_SUM, mean, &stale, NULL, &err), &err);
    release(&stale);
}
/* The first element holds what belongs into the second. */
static void misplace(const cddp_tensor *mean)
{
    cddp_error err = CDDP_ERROR_INIT;
    be_right(mean);
    cddp_tensor first = cddp_tensor_slice(mean, 0, 1), second = cddp_tensor_slice(mean, 1, 1);
    assert_ok(cddp_device_symbol()->copy(&first, &second, NULL, &err), &err);
}

static const struct {
    const char *name;
    void (*make_mean)(const cddp_tensor *mean);
    cd_shape shape;
    int64_t element;
    const char *words;
} cases[] = {
    {"right", be_right, CD_SHAPE_NONE, -1, NULL},
    {"one dropped", drop_one, CD_SHAPE_MISSING, 0, "g(weight)[0] rank 1 micro 0 step 0 is missing"},
    {"one doubled", double_one, CD_SHAPE_RATIO, 0,
     "g(weight)[0] rank 2 micro 1 step 0 has another coefficient: ratio 2"},
    {"divided twice", divide_twice, CD_SHAPE_RATIO, 0, "has another coefficient: ratio 0.333333"},
    {"stale data", add_foreign, CD_SHAPE_OTHER, 0,
     "g(weight)[0] rank 0 micro 0 step 7 does not belong there"},
    {"misplaced", misplace, CD_SHAPE_MISSING, 0, "g(weight)[0] rank 0 micro 0 step 0 is missing"},
};

TEST(oracle_symbol, names_the_contribution_that_is_wrong)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_memory_sink trace;
        cddp_tracer *tracer = NULL;
        cd_oracle *oracle = NULL;
        cddp_grad none = {0};
        cd_test_row("%s", cases[i].name);
        toy t = {.parameter = make(NUMEL)};
        t.table = (cd_oracle_engine){.self = &t,
                                     .load = toy_load,
                                     .set_gradient = toy_set_gradient,
                                     .drop_gradients = toy_drop,
                                     .run = toy_run,
                                     .sample_count = toy_count,
                                     .parameters = toy_parameters,
                                     .gradients = toy_gradients,
                                     .buffers = toy_buffers,
                                     .update = toy_update};
        cd_oracle_parameter meta = {"weight",  NUMEL, CDDP_F32,           0, CD_ORACLE_PATH_BUCKET,
                                    {0, 0, 0}, 0,     {.is_given = false}};
        cd_memory_sink_init(&trace, NULL);
        assert_ok(cddp_tracer_create(NULL, &trace.sink, CDDP_TRACE_DIGEST, &tracer, &err), &err);
        cd_oracle_options options = {.parameters = &meta,
                                     .parameter_count = 1,
                                     .world_size = RANKS,
                                     .engine = &t.table,
                                     .tracer = tracer};
        assert_ok(cd_oracle_create(&options, &oracle, &err), &err);
        assert_ok(cd_oracle_begin_step(oracle, 0, &t.parameter, &none, &err), &err);
        cddp_grad mean = {.kind = CDDP_GRAD_DENSE, .value = make(NUMEL)};
        cases[i].make_mean(&mean.value);
        cd_oracle_reduction reduction = {.micro_step = MICROS - 1,
                                         .divisor = RANKS,
                                         .wire = CDDP_DTYPE_COUNT,
                                         .gradients = &mean};
        assert_ok(cd_oracle_judge_gradients(oracle, &reduction, NULL, &err), &err);
        bool found = false;
        for (size_t k = 0; k < trace.count; k++) {
            cddp_event e = cd_memory_sink_get(&trace, k);
            const cddp_event_compare *c = &e.as.compare;
            if (c->link != CD_LINK_MATHEMATICS) continue;
            found = true;
            if (e.text != NULL) print_message("%s: %s\n", cases[i].name, e.text);
            assert_int_equal(c->shape, cases[i].shape);
            assert_int_equal(c->element, cases[i].element);
            assert_int_equal(c->bad != 0, cases[i].words != NULL);
            if (cases[i].words != NULL) assert_non_null(strstr(e.text, cases[i].words));
        }
        assert_true(found);
        cd_oracle_destroy(oracle);
        cddp_tracer_destroy(tracer);
        cd_memory_sink_fini(&trace);
        release(&mean.value);
        cddp_grad_fini(&t.gradient);
        release(&t.parameter);
    }
}

TEST_MAIN()
