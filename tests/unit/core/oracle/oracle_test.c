/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's self-test: a right run is silent on every link, and each planted error is named for
** what it is.
**
** The engine is a table of small dyadic numbers, so the test knows every gradient without a model;
** the "run" is the same engine, whose results are averaged here, and then corrupted.
*/
#include "core/oracle/oracle.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/oracle/explain.h"
#include "core/tensor/cpu.h"
#include "core/trace/codes.h"
#include "core/trace/sink.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#define RANKS_MAX 4
#define SAMPLES 2
#define MICROS 2
#define CHANNELS 2
#define WIDTH (2 * CHANNELS + 1)
enum { WEIGHT, BIAS, TWIN, UNUSED, PARAMETERS };
#define LAYER 5 /* the buffer that names the synchronised layer */
static const struct {
    const char *name;
    int64_t numel;
} shapes[PARAMETERS] = {
    [WEIGHT] = {"weight", 7}, [BIAS] = {"bias", 1}, [TWIN] = {"twin", 7}, [UNUSED] = {"unused", 3}};

typedef struct toy {
    cd_oracle_engine table;
    uint32_t world_size;
    float values[PARAMETERS][8], slots[PARAMETERS][8], buffer[2];
    cddp_tensor parameters[PARAMETERS], buffers[1], slot_tensors[PARAMETERS];
    int32_t slot_parameters[PARAMETERS];
    cddp_grad gradients[PARAMETERS];
    double rows[RANKS_MAX][WIDTH]; /* means, spreads, count of each rank */
} toy;

static cddp_tensor view(float *storage, int64_t numel)
{
    return cddp_tensor_of(cddp_device_cpu(), storage, 0, CDDP_F32, &numel, 1);
}

/* The gradient of one sample: an odd multiple of 1/8 that depends on everything. */
static float sample_gradient(const cd_oracle_part *part, size_t parameter, int64_t element)
{
    uint64_t h =
        cd_hash_mix(cd_hash_mix(cd_hash_mix(cd_hash_mix(part->rank, part->step), part->micro_step),
                                part->sample),
                    parameter * 64 + (uint64_t)element);
    return (float)((int64_t)(h % 61) * 2 - 61) / 8;
}

static void accumulate(toy *t, const cd_oracle_part *part)
{
    for (size_t p = 0; p < UNUSED; p++) {
        assert_int_equal(cddp_grad_define(&t->gradients[p], &t->parameters[p], NULL), CDDP_OK);
        float *g = (float *)t->gradients[p].value.storage + t->gradients[p].value.offset;
        if (t->gradients[p].is_fresh) memset(g, 0, (size_t)shapes[p].numel * sizeof *g);
        t->gradients[p].is_fresh = false;
        for (int64_t i = 0; i < shapes[p].numel; i++) g[i] += sample_gradient(part, p, i);
    }
}

static cddp_status toy_load(void *self, const cddp_tensor *parameters, const cddp_tensor *buffers,
                            cddp_error *err)
{
    toy *t = self;
    for (size_t p = 0; p < PARAMETERS; p++) {
        assert_ok(cddp_device_cpu()->copy(&t->parameters[p], &parameters[p], NULL, err), err);
        cddp_grad_drop(&t->gradients[p]);
    }
    if (buffers != NULL)
        assert_ok(cddp_device_cpu()->copy(&t->buffers[0], &buffers[0], NULL, err), err);
    return CDDP_OK;
}

static cddp_status toy_set_gradient(void *self, size_t parameter, const cddp_grad *gradient,
                                    cddp_error *err)
{
    toy *t = self;
    cddp_grad_drop(&t->gradients[parameter]);
    if (gradient->kind == CDDP_GRAD_UNDEFINED) return CDDP_OK;
    assert_ok(cddp_grad_define(&t->gradients[parameter], &t->parameters[parameter], err), err);
    t->gradients[parameter].is_fresh = false;
    return cddp_device_cpu()->copy(&t->gradients[parameter].value, &gradient->value, NULL, err);
}

static void toy_drop(void *self)
{
    toy *t = self;
    for (size_t p = 0; p < PARAMETERS; p++) cddp_grad_drop(&t->gradients[p]);
}

static cddp_status toy_run(void *self, const cd_oracle_part *part, cddp_error *err)
{
    (void)err;
    cd_oracle_part one = *part;
    for (one.sample = 0; one.sample < SAMPLES; one.sample++)
        if (part->sample == CD_ORACLE_ALL || part->sample == one.sample) accumulate(self, &one);
    ((toy *)self)->buffer[0] += 1;
    return CDDP_OK;
}

static uint32_t toy_count(void *self, const cd_oracle_part *part)
{
    (void)self;
    (void)part;
    return SAMPLES;
}
static const cddp_tensor *toy_parameters(void *self) { return ((toy *)self)->parameters; }
static const cddp_grad *toy_gradients(void *self) { return ((toy *)self)->gradients; }
static const cddp_tensor *toy_buffers(void *self) { return ((toy *)self)->buffers; }

/* slot = gradient, parameter -= slot / 8: like momentum without memory. */
static cddp_status toy_update(void *self, const cd_oracle_update *before, cd_oracle_slots *slots,
                              cddp_error *err)
{
    toy *t = self;
    for (size_t p = 0; p < PARAMETERS; p++) {
        assert_ok(cddp_device_cpu()->copy(&t->parameters[p], &before->parameters[p], NULL, err),
                  err);
        bool absent = before->gradients[p].kind == CDDP_GRAD_UNDEFINED;
        t->slot_tensors[p] = absent ? (cddp_tensor){0} : view(t->slots[p], shapes[p].numel);
        t->slot_parameters[p] = (int32_t)p;
        if (absent) continue;
        assert_ok(cddp_device_cpu()->copy(&t->slot_tensors[p], &before->gradients[p].value, NULL,
                                          err),
                  err);
        for (int64_t i = 0; i < shapes[p].numel; i++) t->values[p][i] -= t->slots[p][i] / 8;
    }
    *slots = (cd_oracle_slots){t->slot_tensors, t->slot_parameters, PARAMETERS};
    return CDDP_OK;
}

/* What rank r says at the exchange: other values on other ranks, of other counts. */
static void fill_rows(double (*rows)[WIDTH], uint32_t world_size)
{
    for (uint32_t r = 0; r < world_size; r++) {
        const double row[WIDTH] = {r + 0.25, 3, 1.5 + r, 2, r + 1.0};
        memcpy(rows[r], row, sizeof row);
    }
}

static cddp_status toy_statistics(void *self, const cd_oracle_part *part, size_t exchange,
                                  size_t width, cd_oracle_exchange *found, cddp_error *err)
{
    toy *t = self;
    (void)part;
    (void)err;
    assert_int_equal(exchange, 0);
    assert_int_equal(width, WIDTH);
    fill_rows(t->rows, t->world_size);
    *found = (cd_oracle_exchange){t->rows[0], LAYER};
    return CDDP_OK;
}

static void toy_init(toy *t, uint32_t world_size)
{
    *t = (toy){.world_size = world_size};
    t->table = (cd_oracle_engine){.self = t,
                                  .load = toy_load,
                                  .set_gradient = toy_set_gradient,
                                  .drop_gradients = toy_drop,
                                  .run = toy_run,
                                  .sample_count = toy_count,
                                  .parameters = toy_parameters,
                                  .gradients = toy_gradients,
                                  .buffers = toy_buffers,
                                  .update = toy_update,
                                  .statistics = toy_statistics};
    for (size_t p = 0; p < PARAMETERS; p++) {
        t->parameters[p] = view(t->values[p], shapes[p].numel);
        for (int64_t i = 0; i < shapes[p].numel; i++) t->values[p][i] = (float)(i + (int64_t)p) / 4;
    }
    t->buffers[0] = view(t->buffer, 2);
}

static void toy_fini(toy *t)
{
    for (size_t p = 0; p < PARAMETERS; p++) cddp_grad_fini(&t->gradients[p]);
}

/* ---- a run of one step on one rank, with everything that a plant may corrupt ---- */

typedef struct scene {
    uint32_t world_size, rank;
    float local[RANKS_MAX][PARAMETERS][8]; /* every rank's accumulated local gradient */
    float micro[RANKS_MAX][MICROS][PARAMETERS][8];
    float mean[PARAMETERS][8]; /* what this rank holds after the reduction */
    float after[PARAMETERS][8], state[PARAMETERS][8];
    float buffer[2];
    /* what the synchronised layer normalised with */
    double channel_mean[CHANNELS], channel_spread[CHANNELS];
    bool mean_present[PARAMETERS], state_present[PARAMETERS], local_present;
} scene;

/* Of the whole batch, from the ranks' rows. */
static void combine(scene *s, double (*rows)[WIDTH])
{
    for (int k = 0; k < CHANNELS; k++) {
        double total = 0, sum = 0;
        for (uint32_t r = 0; r < s->world_size; r++) {
            total += rows[r][2 * CHANNELS];
            sum += rows[r][k] * rows[r][2 * CHANNELS];
        }
        s->channel_mean[k] = sum / total;
        s->channel_spread[k] = 0;
        for (uint32_t r = 0; r < s->world_size; r++) {
            double away = rows[r][k] - s->channel_mean[k];
            s->channel_spread[k] += rows[r][CHANNELS + k] + away * away * rows[r][2 * CHANNELS];
        }
    }
}

static void play(scene *s)
{
    double rows[RANKS_MAX][WIDTH];
    fill_rows(rows, s->world_size);
    combine(s, rows);
    toy t;
    toy_init(&t, s->world_size);
    for (uint32_t r = 0; r < s->world_size; r++) {
        for (uint32_t m = 0; m < MICROS; m++) {
            cd_oracle_part part = {.rank = r, .micro_step = m, .sample = CD_ORACLE_ALL};
            toy_drop(&t);
            assert_int_equal(toy_run(&t, &part, NULL), CDDP_OK);
            for (size_t p = 0; p < UNUSED; p++)
                for (int64_t i = 0; i < shapes[p].numel; i++) {
                    s->micro[r][m][p][i] = ((float *)t.gradients[p].value.storage)[i];
                    s->local[r][p][i] += s->micro[r][m][p][i];
                }
        }
    }
    float reciprocal = (float)(1.0 / s->world_size);
    for (size_t p = 0; p < UNUSED; p++) {
        s->mean_present[p] = s->state_present[p] = true;
        for (int64_t i = 0; i < shapes[p].numel; i++) {
            s->mean[p][i] = 0;
            for (uint32_t r = 0; r < s->world_size; r++)
                s->mean[p][i] += s->local[r][p][i] * reciprocal;
        }
    }
    for (size_t p = 0; p < PARAMETERS; p++)
        for (int64_t i = 0; i < shapes[p].numel; i++) {
            s->state[p][i] = s->mean[p][i];
            s->after[p][i] = t.values[p][i] - s->mean[p][i] / 8;
        }
    s->buffer[0] = 1; /* the last micro-step's forward adds one to what entered */
    s->local_present = true;
    toy_fini(&t);
}

static cddp_grad gradient_of(float *values, int64_t numel, bool present)
{
    cddp_grad g = {.kind = present ? CDDP_GRAD_DENSE : CDDP_GRAD_UNDEFINED};
    if (present) g.value = view(values, numel);
    return g;
}

/* One step before an oracle, from its first parameters to its last. */
static cddp_status show(scene *s, const cd_oracle_options *options, cd_oracle_division division,
                        cd_oracle_summary *summary, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_oracle *oracle = NULL;
    toy start;
    toy_init(&start, s->world_size);
    CD_TRY_OUT(cd_oracle_create(options, &oracle, err));
    cddp_grad grads[PARAMETERS] = {0};
    CD_TRY_OUT(cd_oracle_begin_step(oracle, 0, start.parameters, grads, err));
    cd_oracle_enter_forward(oracle, start.buffers);
    const cd_oracle_moments used = {.micro_step = MICROS - 1,
                                    .buffer = LAYER,
                                    .mean = s->channel_mean,
                                    .spread = s->channel_spread,
                                    .channels = CHANNELS};
    int64_t layer = -1;
    CD_TRY_OUT(cd_oracle_judge_statistics(oracle, &used, &layer, err));
    assert_int_equal(layer, LAYER);
    for (size_t p = 0; p < UNUSED; p++) {
        cddp_grad local =
            gradient_of(s->local[s->rank][p], shapes[p].numel, s->local_present || p != BIAS);
        CD_TRY_OUT(cd_oracle_push_local(oracle, p, &local, err));
    }
    for (size_t p = 0; p < PARAMETERS; p++)
        grads[p] = gradient_of(s->mean[p], shapes[p].numel, s->mean_present[p]);
    cddp_tensor buffer = view(s->buffer, 2), after[PARAMETERS], slots[PARAMETERS];
    cd_oracle_reduction reduction = {.step = 0,
                                     .micro_step = MICROS - 1,
                                     .divisor = s->world_size,
                                     .loss_scale = 1,
                                     .division = division,
                                     .wire = CDDP_DTYPE_COUNT,
                                     .gradients = grads};
    CD_TRY_OUT(cd_oracle_judge_gradients(oracle, &reduction, &buffer, err));
    int32_t ordinals[PARAMETERS];
    for (size_t p = 0; p < PARAMETERS; p++) {
        after[p] = view(s->after[p], shapes[p].numel);
        slots[p] = s->state_present[p] ? view(s->state[p], shapes[p].numel) : (cddp_tensor){0};
        ordinals[p] = (int32_t)p;
    }
    cd_oracle_update before = {.step = 0, .parameters = start.parameters, .gradients = grads};
    cd_oracle_update done = {.step = 0,
                             .parameters = after,
                             .gradients = grads,
                             .state = {slots, ordinals, PARAMETERS}};
    CD_TRY_OUT(cd_oracle_judge_update(oracle, &before, &done, err));
    CD_TRY_OUT(cd_oracle_finish(oracle, after, err));
    *summary = cd_oracle_get_summary(oracle);
out:
    cd_oracle_destroy(oracle);
    toy_fini(&start);
    return status;
}

/* Replicas and parameters for an oracle over this scene. */
typedef struct stage {
    toy engine, free_engine;
    cd_oracle_parameter metas[PARAMETERS];
} stage;

static cd_oracle_options set(stage *g, const scene *s)
{
    toy_init(&g->engine, s->world_size);
    toy_init(&g->free_engine, s->world_size);
    for (size_t p = 0; p < PARAMETERS; p++)
        g->metas[p] = (cd_oracle_parameter){
            shapes[p].name,        shapes[p].numel, CDDP_F32, (int32_t)p,
            CD_ORACLE_PATH_BUCKET, {0, 0, 0},       0,        {.is_given = false}};
    return (cd_oracle_options){.parameters = g->metas,
                               .parameter_count = PARAMETERS,
                               .buffer_count = 1,
                               .rank = s->rank,
                               .world_size = s->world_size,
                               .engine = &g->engine.table,
                               .free_engine = &g->free_engine.table,
                               .sample_wise = true,
                               .exact_inputs = true};
}

static void strike(stage *g)
{
    toy_fini(&g->engine);
    toy_fini(&g->free_engine);
}

static cd_oracle_summary judge(scene *s, cd_oracle_division division, cd_memory_sink *trace)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_oracle_summary summary = {0};
    cddp_tracer *tracer = NULL;
    stage g;
    cd_oracle_options options = set(&g, s);
    cd_memory_sink_init(trace, NULL);
    assert_ok(cddp_tracer_create(NULL, &trace->sink, CDDP_TRACE_DIGEST, &tracer, &err), &err);
    options.tracer = tracer;
    assert_ok(show(s, &options, division, &summary, &err), &err);
    cddp_tracer_destroy(tracer);
    strike(&g);
    return summary;
}

/* ---- plants ---- */

static void divide_again(scene *s)
{
    for (int i = 0; i < 7; i++) s->mean[WEIGHT][i] /= (float)s->world_size;
}
static void do_not_divide(scene *s)
{
    for (int i = 0; i < 7; i++) s->mean[WEIGHT][i] *= (float)s->world_size;
}
static void do_not_reduce(scene *s)
{
    memcpy(s->mean[WEIGHT], s->local[s->rank][WEIGHT], sizeof s->mean[WEIGHT]);
}
static void add_part(scene *s, uint32_t r, uint32_t m, float sign)
{
    for (int i = 0; i < 7; i++)
        s->mean[WEIGHT][i] += sign * s->micro[r][m][WEIGHT][i] / (float)s->world_size;
}
static void lose_micro_step(scene *s)
{
    for (uint32_t r = 0; r < s->world_size; r++) add_part(s, r, 0, -1);
}
static void lose_rank(scene *s)
{
    add_part(s, 2, 0, -1);
    add_part(s, 2, 1, -1);
}
static void lose_one(scene *s) { add_part(s, 1, 1, -1); }
static void count_twice(scene *s)
{
    add_part(s, 3, 0, 1);
    add_part(s, 3, 1, 1);
}
static void add_scaled(scene *s, uint32_t rank, uint32_t micro, float weight)
{
    scene part = *s;
    memset(part.mean, 0, sizeof part.mean);
    add_part(&part, rank, micro, 1);
    for (int i = 0; i < 7; i++) s->mean[WEIGHT][i] += weight * part.mean[WEIGHT][i];
}
static void weigh_one(scene *s) { add_scaled(s, 2, 1, -0.25f); }
static void weigh_rank(scene *s)
{
    add_scaled(s, 1, 0, 4);
    add_scaled(s, 1, 1, 4);
}
static void weigh_micro_step(scene *s)
{
    for (uint32_t r = 0; r < s->world_size; r++) add_scaled(s, r, 1, 2);
}
static void weigh_two(scene *s)
{
    add_scaled(s, 0, 0, 0.5f);
    add_scaled(s, 0, 1, 0.5f);
    add_scaled(s, 3, 0, -0.5f);
    add_scaled(s, 3, 1, -0.5f);
}
static void swap_twin(scene *s) { memcpy(s->mean[WEIGHT], s->mean[TWIN], sizeof s->mean[WEIGHT]); }
static void take_twin_of_rank(scene *s)
{
    memcpy(s->mean[WEIGHT], s->local[1][TWIN], sizeof s->mean[WEIGHT]);
}
static void make_zero(scene *s) { memset(s->mean[WEIGHT], 0, sizeof s->mean[WEIGHT]); }
static void overflow(scene *s) { s->mean[WEIGHT][3] = INFINITY; }
static void shift(scene *s) { memmove(s->mean[WEIGHT], s->mean[WEIGHT] + 1, 6 * sizeof(float)); }
static void flip_bit(scene *s) { s->mean[WEIGHT][5] += 0.125f; }
static void flip_last_bit(scene *s) { s->mean[WEIGHT][5] = nextafterf(s->mean[WEIGHT][5], 1000); }
static void write_unused(scene *s) { s->mean_present[UNUSED] = s->state_present[UNUSED] = true; }
static void lose_gradient(scene *s) { s->mean_present[BIAS] = s->state_present[BIAS] = false; }
static void spoil_local(scene *s) { s->local[s->rank][WEIGHT][2] += 1; }
static void lose_local(scene *s) { s->local_present = false; }
static void skip_update(scene *s)
{
    for (int i = 0; i < 7; i++) s->after[WEIGHT][i] = (float)i / 4;
}
static void spoil_update(scene *s) { s->after[BIAS][0] += 0.5f; }
static void spoil_state(scene *s) { s->state[TWIN][6] = 9; }
static void make_state(scene *s) { s->state_present[UNUSED] = true; }
static void spoil_buffer(scene *s) { s->buffer[1] = 5; }
/* The exchange took place, and every row is this rank's own. */
static void keep_own_statistics(scene *s)
{
    double rows[RANKS_MAX][WIDTH];
    fill_rows(rows, s->world_size);
    for (uint32_t r = 1; r < s->world_size; r++) memcpy(rows[r], rows[s->rank], sizeof rows[r]);
    combine(s, rows);
}
static void forget_counts(scene *s)
{
    double rows[RANKS_MAX][WIDTH];
    fill_rows(rows, s->world_size);
    for (uint32_t r = 0; r < s->world_size; r++) rows[r][2 * CHANNELS] = 2.5;
    combine(s, rows);
}
static void keep_own_spread(scene *s)
{
    double rows[RANKS_MAX][WIDTH], total = 0;
    fill_rows(rows, s->world_size);
    for (uint32_t r = 0; r < s->world_size; r++) total += rows[r][2 * CHANNELS];
    s->channel_spread[1] = rows[s->rank][CHANNELS + 1] / rows[s->rank][2 * CHANNELS] * total;
}
/* The mean of this channel is every rank's own: that must not be taken for the reason. */
static void spoil_spread(scene *s) { s->channel_spread[1] += 0x1p-20; }
static void spoil_channel(scene *s) { s->channel_mean[0] = NAN; }

static const struct {
    const char *name;
    void (*plant)(scene *scene);
    cd_oracle_link link;
    cd_shape shape;
    int64_t param;
    const char *words;
} plants[] = {
    {"divided twice", divide_again, CD_LINK_MATHEMATICS, CD_SHAPE_RATIO, WEIGHT, "divided twice"},
    {"not divided", do_not_divide, CD_LINK_REDUCTION, CD_SHAPE_RATIO, WEIGHT,
     "the sum, not the mean"},
    {"not reduced", do_not_reduce, CD_LINK_MATHEMATICS, CD_SHAPE_LOCAL, WEIGHT,
     "local gradient of rank 0: not reduced"},
    {"micro-step lost", lose_micro_step, CD_LINK_MATHEMATICS, CD_SHAPE_MISSING, WEIGHT,
     "missing micro-step 0 of all ranks"},
    {"rank lost", lose_rank, CD_LINK_REDUCTION, CD_SHAPE_MISSING, WEIGHT,
     "missing the contribution of rank 2"},
    {"one contribution lost", lose_one, CD_LINK_MATHEMATICS, CD_SHAPE_MISSING, WEIGHT,
     "missing micro-step 1 of rank 1"},
    {"counted twice", count_twice, CD_LINK_MATHEMATICS, CD_SHAPE_DOUBLED, WEIGHT,
     "the contribution of rank 3"},
    {"a micro-step that counts less", weigh_one, CD_LINK_REDUCTION, CD_SHAPE_RATIO, WEIGHT,
     "micro-step 1 of rank 2 counts 3/4"},
    {"a rank that counts more", weigh_rank, CD_LINK_REDUCTION, CD_SHAPE_RATIO, WEIGHT,
     "rank 1 counts 5"},
    {"a micro-step of all ranks", weigh_micro_step, CD_LINK_REDUCTION, CD_SHAPE_RATIO, WEIGHT,
     "micro-step 1 of all ranks counts 3"},
    {"two ranks that count otherwise", weigh_two, CD_LINK_REDUCTION, CD_SHAPE_RATIO, WEIGHT,
     "rank 0 counts 3/2, rank 3 counts 1/2"},
    {"another parameter's", swap_twin, CD_LINK_MATHEMATICS, CD_SHAPE_OTHER, WEIGHT,
     "equals the gradient of twin"},
    {"another parameter's, of one rank", take_twin_of_rank, CD_LINK_REDUCTION, CD_SHAPE_OTHER,
     WEIGHT, "equals the gradient of twin on rank 1"},
    /* clang-format off */
    {"zeros", make_zero, CD_LINK_MATHEMATICS, CD_SHAPE_ZERO, WEIGHT, "all zeros"},
    {"overflow", overflow, CD_LINK_REDUCTION, CD_SHAPE_UNEXPLAINED, WEIGHT,
     "not finite at element 3, where 7.5625 belongs and nothing overflows"},
    {"shifted", shift, CD_LINK_MATHEMATICS, CD_SHAPE_SHIFTED, WEIGHT, "shifted by -1"},
    {"one element", flip_bit, CD_LINK_REDUCTION, CD_SHAPE_UNEXPLAINED, WEIGHT, "1 of 7 elements"},
    {"one ulp", flip_last_bit, CD_LINK_MATHEMATICS, CD_SHAPE_UNEXPLAINED, WEIGHT,
     "1 of 7 elements differ by 1 unit in the last place: rounded in another way"},
    {"unused written", write_unused, CD_LINK_PRESENCE, CD_SHAPE_PRESENCE, UNUSED, "absent is not zero"},
    {"gradient lost", lose_gradient, CD_LINK_PRESENCE, CD_SHAPE_PRESENCE, BIAS, "absent, where some rank"},
    {"local gradient wrong", spoil_local, CD_LINK_PRECISION, CD_SHAPE_UNEXPLAINED, WEIGHT, "1 of 7 elements"},
    {"local gradient lost", lose_local, CD_LINK_PRECISION, CD_SHAPE_PRESENCE, BIAS, "no local gradient"},
    {"not updated", skip_update, CD_LINK_UPDATE, CD_SHAPE_STALE, WEIGHT, "the parameter was not updated"},
    {"wrong update", spoil_update, CD_LINK_UPDATE, CD_SHAPE_UNEXPLAINED, BIAS, "1 of 1 elements"},
    {"drift of the free run", spoil_update, CD_LINK_FREE, CD_SHAPE_UNEXPLAINED, BIAS, "drifted"},
    {"wrong state", spoil_state, CD_LINK_OPTIMIZER, CD_SHAPE_UNEXPLAINED, TWIN, "slot 2 differs"},
    {"state for nothing", make_state, CD_LINK_OPTIMIZER, CD_SHAPE_PRESENCE, UNUSED, "without a gradient"},
    {"wrong buffer", spoil_buffer, CD_LINK_BUFFER, CD_SHAPE_UNEXPLAINED, 0, "1 of 2 elements"},
    {"statistics not exchanged", keep_own_statistics, CD_LINK_STATISTICS, CD_SHAPE_LOCAL, LAYER, "the statistics of rank 0 alone"},
    {"counts not weighed", forget_counts, CD_LINK_STATISTICS, CD_SHAPE_UNEXPLAINED, LAYER, "every rank weighs alike"},
    {"a spread not exchanged", keep_own_spread, CD_LINK_STATISTICS, CD_SHAPE_LOCAL, LAYER, "the statistics of rank 0 alone"},
    {"one spread", spoil_spread, CD_LINK_STATISTICS, CD_SHAPE_UNEXPLAINED, LAYER, "1 of 4 numbers"},
    {"a mean that is no number", spoil_channel, CD_LINK_STATISTICS, CD_SHAPE_NONFINITE, LAYER, "not finite at element 0"},
    /* clang-format on */
};

TEST(oracle, each_planted_error_is_named_for_what_it_is)
{
    (void)state;
    for (size_t i = 0; i < sizeof plants / sizeof plants[0]; i++) {
        cd_test_row("%s", plants[i].name);
        scene s = {.world_size = 4};
        cd_memory_sink trace;
        bool found = false;
        play(&s);
        plants[i].plant(&s);
        (void)judge(&s, CD_ORACLE_DIVISION_RECIPROCAL, &trace);
        for (size_t k = 0; k < trace.count; k++) {
            cddp_event e = cd_memory_sink_get(&trace, k);
            const cddp_event_compare *c = &e.as.compare;
            if (e.kind != CDDP_EV_compare || c->bad == 0) continue;
            found = found || (c->link == plants[i].link && c->shape == plants[i].shape &&
                              c->param == plants[i].param && e.text != NULL &&
                              strstr(e.text, plants[i].words) != NULL);
            if (!found)
                print_message("%s: link %lld shape %lld param %lld \"%s\"\n", plants[i].name,
                              (long long)c->link, (long long)c->shape, (long long)c->param, e.text);
        }
        cd_memory_sink_fini(&trace);
        assert_true(found);
    }
}

TEST(oracle, a_right_run_is_silent_on_every_link)
{
    (void)state;
    static const cd_oracle_division divisions[] = {CD_ORACLE_DIVISION_ANY,
                                                   CD_ORACLE_DIVISION_RECIPROCAL};
    for (uint32_t w = 1; w <= RANKS_MAX; w++) {
        for (size_t d = 0; d < 2; d++) {
            uint32_t links = 0;
            scene s = {.world_size = w, .rank = w - 1};
            cd_memory_sink trace;
            cd_test_row("%u ranks, division %zu", w, d);
            play(&s);
            cd_oracle_summary summary = judge(&s, divisions[d], &trace);
            assert_int_equal(summary.differing, 0);
            for (size_t k = 0; k < trace.count; k++) {
                const cddp_event e = cd_memory_sink_get(&trace, k);
                if (e.kind == CDDP_EV_compare) links |= 1u << e.as.compare.link;
                /* a step that rounds is given up, and says so */
                if (e.kind == CDDP_EV_unjudged) assert_false((w & (w - 1)) == 0);
            }
            /* Where W is a power of two nothing may round, and the free-running reference is
            ** followed to the end. */
            bool power = (w & (w - 1)) == 0;
            assert_int_equal(links & 0x4fe, 0x4fe);
            assert_int_equal((links >> CD_LINK_FREE) & 1, power);
            /* Statistics are always bounded. */
            if (power)
                assert_int_equal(summary.bounded, 1);
            else
                assert_true(summary.bounded > 1);
            cd_memory_sink_fini(&trace);
        }
    }
}

TEST(oracle, one_ulp_beside_an_exact_sum_is_seen_and_a_bounded_one_is_not)
{
    (void)state;
    scene s = {.world_size = 3};
    cd_memory_sink trace;
    play(&s);
    s.mean[WEIGHT][5] = nextafterf(s.mean[WEIGHT][5], 1000);
    for (int i = 0; i < 7; i++) {
        s.state[WEIGHT][i] = s.mean[WEIGHT][i];
        s.after[WEIGHT][i] = (float)i / 4 - s.mean[WEIGHT][i] / 8;
    }
    assert_int_equal(judge(&s, CD_ORACLE_DIVISION_ANY, &trace).differing, 0);
    cd_memory_sink_fini(&trace);
}

/* ---- the free run over a step that rounds ---- */

/* A step of SGD, and the beginning of the next one from s->after. */
static cddp_status go_on(scene *s, const cd_oracle_options *options, void (*plant)(scene *scene),
                         cd_oracle_summary *summary, cddp_error *err)
{
    static const bool due = true;
    const cd_formula sgd = {.kind = CD_FORMULA_SGD, .rate = {0.125, 0}};
    cddp_status status = CDDP_OK;
    cd_oracle *oracle = NULL;
    toy start;
    toy_init(&start, s->world_size);
    CD_TRY_OUT(cd_oracle_create(options, &oracle, err));
    cddp_grad grads[PARAMETERS] = {0};
    cd_oracle_optimized entries[PARAMETERS] = {0};
    cddp_tensor after[PARAMETERS], slots[PARAMETERS] = {0}, buffer = view(s->buffer, 2);
    int32_t ordinals[PARAMETERS];
    CD_TRY_OUT(cd_oracle_begin_step(oracle, 0, start.parameters, grads, err));
    cd_oracle_enter_forward(oracle, start.buffers);
    for (size_t p = 0; p < UNUSED; p++) {
        cddp_grad local = gradient_of(s->local[s->rank][p], shapes[p].numel, true);
        CD_TRY_OUT(cd_oracle_push_local(oracle, p, &local, err));
    }
    for (size_t p = 0; p < PARAMETERS; p++) {
        grads[p] = gradient_of(s->mean[p], shapes[p].numel, s->mean_present[p]);
        after[p] = view(s->after[p], shapes[p].numel);
        slots[p] = s->state_present[p] ? view(s->state[p], shapes[p].numel) : (cddp_tensor){0};
        ordinals[p] = (int32_t)p;
        entries[p] = (cd_oracle_optimized){.parameter = p};
    }
    const cd_oracle_reduction reduction = {.micro_step = MICROS - 1,
                                           .divisor = s->world_size,
                                           .loss_scale = 1,
                                           .division = CD_ORACLE_DIVISION_RECIPROCAL,
                                           .wire = CDDP_DTYPE_COUNT,
                                           .gradients = grads};
    CD_TRY_OUT(cd_oracle_judge_gradients(oracle, &reduction, &buffer, err));
    CD_TRY_OUT(cd_oracle_keep_optimized(oracle, start.parameters, entries, PARAMETERS, err));
    const cd_oracle_update before = {.parameters = start.parameters, .gradients = grads};
    const cd_oracle_update done = {.parameters = after,
                                   .gradients = grads,
                                   .state = {slots, ordinals, PARAMETERS}};
    CD_TRY_OUT(cd_oracle_judge_update(oracle, &before, &done, err));
    const cd_oracle_formulas formulas = {.formulas = &sgd,
                                         .due = &due,
                                         .parameters = after,
                                         .gradients = grads,
                                         .after = entries,
                                         .count = PARAMETERS};
    CD_TRY_OUT(cd_oracle_judge_formulas(oracle, &formulas, err));
    if (plant != NULL) plant(s);
    cddp_grad none[PARAMETERS] = {0};
    CD_TRY_OUT(cd_oracle_begin_step(oracle, 1, after, none, err));
    *summary = cd_oracle_get_summary(oracle);
    CD_TRY_OUT(cd_oracle_finish(oracle, after, err));
out:
    cd_oracle_destroy(oracle);
    toy_fini(&start);
    return status;
}

static void scale_after(scene *s) { s->after[WEIGHT][4] *= 1 - 0x1p-18f; }

TEST(oracle, a_step_that_rounds_is_carried_in_bounds)
{
    (void)state;
    static void (*const changes[])(scene *) = {NULL, scale_after, spoil_update};
    for (size_t k = 0; k < sizeof changes / sizeof *changes; k++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_oracle_summary summary = {0};
        cddp_tracer *tracer = NULL;
        cd_memory_sink trace;
        scene s = {.world_size = 3};
        stage g;
        play(&s);
        cd_oracle_options options = set(&g, &s);
        cd_memory_sink_init(&trace, NULL);
        assert_ok(cddp_tracer_create(NULL, &trace.sink, CDDP_TRACE_DIGEST, &tracer, &err), &err);
        options.tracer = tracer;
        cd_test_row("change %zu", k);
        assert_ok(go_on(&s, &options, changes[k], &summary, &err), &err);
        assert_int_equal(summary.differing, k > 0);
        for (size_t i = 0; i < trace.count; i++) {
            const cddp_event e = cd_memory_sink_get(&trace, i);
            assert_int_not_equal(e.kind, CDDP_EV_unjudged); /* no step was given up */
            if (e.kind == CDDP_EV_compare && e.as.compare.bad > 0)
                assert_int_equal(e.as.compare.link, CD_LINK_FREE);
        }
        cd_memory_sink_fini(&trace);
        cddp_tracer_destroy(tracer);
        strike(&g);
    }
}

/* A rank is missing: explaining that takes everybody's gradients again. */
static cddp_status judge_with(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    stage g;
    cd_oracle_share *share = NULL;
    cd_oracle_summary summary = {0};
    cd_oracle_options options = set(&g, argument);
    options.allocator = allocator;
    cddp_status status = cd_oracle_share_create(allocator, &share, err);
    options.share = share;
    if (status == CDDP_OK)
        status = show(argument, &options, CD_ORACLE_DIVISION_RECIPROCAL, &summary, err);
    if (status == CDDP_OK) assert_true(summary.differing > 0);
    cd_oracle_share_destroy(share);
    strike(&g);
    return status;
}

TEST(oracle, survives_every_failing_allocation)
{
    (void)state;
    scene s = {.world_size = 3};
    play(&s);
    lose_rank(&s);
    assert_true(cd_test_oom_loop(judge_with, &s) > 12);
}

/* Four ranks, of which 1 and 3 contribute the same; the mean lacks one of them, or rank 2. */
TEST(oracle, contributions_that_explain_an_error_alike_are_counted)
{
    (void)state;
    static const double parts[4][3] = {{1, 2, 4}, {8, -16, 32}, {64, 128, -256}, {8, -16, 32}};
    static const struct {
        uint32_t lost;
        const char *words;
    } cases[] = {{3, "missing the contribution of rank 1, or 1 other that explains it as well"},
                 {2, "missing the contribution of rank 2"}};
    const size_t offsets[] = {0, 3};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        double expected[3] = {0}, actual[3];
        cd_locals locals = {.rank_count = 4,
                            .micro_count = 1,
                            .parameter_count = 1,
                            .numel = 3,
                            .offsets = offsets};
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_locals_init(&locals, NULL, &err), &err);
        for (uint32_t r = 0; r < 4; r++)
            for (size_t i = 0; i < 3; i++) {
                cd_locals_get(&locals, r, 0, 0)[i] = parts[r][i];
                *cd_locals_presence(&locals, r, 0, 0) = true;
                expected[i] += parts[r][i] / 4;
            }
        cd_locals_close(&locals);
        for (size_t i = 0; i < 3; i++) actual[i] = expected[i] - parts[cases[k].lost][i] / 4;
        cd_comparison c = {.numel = 3, .bad = 3};
        const cd_suspect suspect = {.expected = expected,
                                    .actual = actual,
                                    .locals = &locals,
                                    .divisor = 4,
                                    .dtype = CDDP_F32};
        cd_explain(&c, &suspect);
        cd_test_row("rank %u lost: %s", cases[k].lost, c.words);
        assert_int_equal(c.shape, CD_SHAPE_MISSING);
        assert_string_equal(c.words, cases[k].words);
        cd_locals_fini(&locals);
    }
}

TEST_MAIN()
