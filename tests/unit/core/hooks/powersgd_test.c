/* SPDX-License-Identifier: Apache-2.0 */
/* PowerSGD over simulated ranks: when it compresses, what it keeps of the mean, what it owes, what
** it remembers. */
#include "tests/support/tape.h"
#include "tests/unit/sim/fixture.h"

#include "core/base/alloc.h"
#include "core/base/prng.h"
#include "core/hooks/hook.h"
#include "core/hooks/host.h"
#include "core/hooks/low_rank_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROWS 16
#define COLUMNS 12
#define BIAS 5
#define NUMEL (ROWS * COLUMNS + BIAS)
#define STEPS 8
#define RANKS_MAX 4

static void fixture_setup(sim_fixture *f, uint32_t ranks)
{
    memset(f, 0, sizeof *f);
    f->config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    f->config.world_size = ranks;
}

/* One parameter matrix of 16 × 12 (variable 3) and a bias (variable 1) in one bucket. */
typedef struct job {
    const cddp_hook *hook;
    const char *options;
    cddp_tracer *tracer; /* of rank 0; NULL: nobody listens */
    uint32_t ranks, steps;
    uint32_t swap_at; /* save, destroy, create and load before this step; UINT32_MAX: never */
    bool zero, low_rank, resized;
    const cddp_dtype *dtype;         /* NULL: f32 */
    uint32_t silent_from, silent_to; /* steps without gradients; none where both are 0 */
    double means[STEPS][NUMEL], outputs[RANKS_MAX][STEPS][NUMEL], errors[RANKS_MAX][NUMEL];
    cd_low_rank_statistics statistics;
    uint64_t sent;           /* bytes that rank 0 gave to collectives */
    uint32_t reported;       /* times that rank 0 reported its statistics */
    int64_t marks[STEPS][3]; /* permille, bytes before, bytes after */
} job;

/* Dyadic values, so that means over 2 and 4 ranks are exact. */
static double gradient(const job *j, uint32_t rank, uint32_t step, int i)
{
    if (j->zero || (step >= j->silent_from && step < j->silent_to)) return 0.0;
    cd_prng root = cd_prng_seed(7), p = cd_prng_split_index(&root, "g", rank * 1000 + step);
    if (j->low_rank && i < ROWS * COLUMNS) {
        double value = 0.0; /* rank 2: two outer products */
        for (int k = 0; k < 2; k++) {
            cd_prng row = cd_prng_split_index(&root, "row", (uint64_t)(k * 100 + i / COLUMNS));
            cd_prng column = cd_prng_split_index(&p, "column", (uint64_t)(k * 100 + i % COLUMNS));
            value += (double)cd_prng_between(&row, -8, 8) * (double)cd_prng_between(&column, -8, 8);
        }
        return value / 64.0;
    }
    cd_prng q = cd_prng_split_index(&p, "e", (uint64_t)i);
    return (double)cd_prng_between(&q, -64, 64) / 64.0;
}

/* The three marks come together, in this order. */
static void take_mark(void *self, const cddp_event *e)
{
    static const char *const names[3] = {"powersgd_compression_permille", "powersgd_bytes_before",
                                         "powersgd_bytes_after"};
    job *j = self;
    for (int i = 0; e->kind == CDDP_EV_mark && i < 3; i++) {
        if (strcmp(e->text, names[i]) != 0) continue;
        j->marks[j->reported][i] = e->as.mark.value;
        j->reported += i == 2;
    }
}

static cddp_status create(const job *j, cddp_rank *rank, cddp_group *group, void **self,
                          cddp_error *err)
{
    cddp_hook_context context = {.size = sizeof context,
                                 .group = group,
                                 .allocator = rank->allocator,
                                 .options = j->options,
                                 .tracer = rank->rank == 0 ? j->tracer : NULL};
    return j->hook->create(&context, self, err);
}

static cddp_status swap_state(const job *j, cddp_rank *rank, cddp_group *group, void **self,
                              cddp_error *err)
{
    tape t = {.used = 0};
    cddp_state_writer writer = {&t, tape_write};
    cddp_state_reader reader = {&t, tape_read};
    assert_ok(j->hook->save(*self, &writer, err), err);
    j->hook->destroy(*self);
    assert_ok(create(j, rank, group, self, err), err);
    /* A state that ends early is refused and changes nothing. */
    size_t whole = t.used;
    t.used = whole / 2;
    assert_fails(j->hook->load(*self, &reader, err), CDDP_E_CORRUPT, err, "ends early");
    t.used = whole;
    t.read = 0;
    return j->hook->load(*self, &reader, err);
}

static cddp_status one_step(job *j, cddp_rank *rank, cddp_group *group, void *self, uint32_t step,
                            cddp_error *err)
{
    double flat[NUMEL], sum; /* room for any dtype */
    const cddp_dtype dtype = j->dtype != NULL ? *j->dtype : CDDP_F32;
    int64_t numel = NUMEL;
    cddp_tensor buffer = cddp_tensor_of(cddp_device_cpu(), flat, 0, dtype, &numel, 1);
    for (int i = 0; i < NUMEL; i++) {
        cd_host_set(&buffer, i, gradient(j, rank->rank, step, i));
        sum = 0.0;
        for (uint32_t r = 0; r < j->ranks; r++) sum += gradient(j, r, step, i);
        j->means[step][i] = sum / j->ranks;
    }
    uint32_t ids[2] = {3, 1};
    int64_t offsets[2] = {0, ROWS * COLUMNS}, lengths[2] = {ROWS * COLUMNS, BIAS},
            sizes[2] = {ROWS, COLUMNS}, bias[1] = {BIAS};
    if (j->resized && step + 1 == j->steps) {
        lengths[0] -= 4; /* the bucket of another model */
        lengths[1] += 4;
        offsets[1] -= 4;
    }
    cddp_tensor gradients[2] = {cddp_tensor_of(buffer.device, flat, 0, dtype, sizes, 2),
                                cddp_tensor_of(buffer.device, flat, offsets[1], dtype, bias, 1)};
    cddp_grad_bucket bucket = {.size = sizeof bucket,
                               .index = 0,
                               .bucket_count = 1,
                               .is_last = true,
                               .buffer = buffer,
                               .parameter_count = 2,
                               .parameter_ids = ids,
                               .offsets = offsets,
                               .lengths = lengths,
                               .gradients = gradients,
                               .parameters = gradients};
    cddp_future future = {.size = sizeof future};
    cddp_status status = j->hook->run(self, &bucket, group, &future, err);
    for (bool complete = false; status == CDDP_OK && !complete;)
        status = cd_future_advance(&future, self, &bucket, &complete, err);
    if (status != CDDP_OK) return status;
    assert_int_equal(cddp_tensor_numel(&future.result), NUMEL);
    for (int i = 0; i < NUMEL; i++) j->outputs[rank->rank][step][i] = cd_host_get(&buffer, i);
    return CDDP_OK;
}

static cddp_status train(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    job *j = f->data;
    cddp_group *group = NULL;
    void *self = NULL;
    cddp_status status = fixture_group(f, rank, "world", &group, err);
    if (status == CDDP_OK) status = create(j, rank, group, &self, err);
    for (uint32_t step = 0; status == CDDP_OK && step < j->steps; step++) {
        if (step == j->swap_at) status = swap_state(j, rank, group, &self, err);
        if (status == CDDP_OK) status = one_step(j, rank, group, self, step, err);
    }
    if (status == CDDP_OK && self != NULL) {
        const cd_low_rank *s = self;
        j->statistics = cd_low_rank_get_statistics(self);
        if (rank->rank == 0) j->sent = cddp_group_bytes(group);
        for (int i = 0;
             i < NUMEL && j->dtype == NULL && s->slot_count > 3 && s->slots[3].error.device != NULL;
             i++) {
            const cd_low_rank_slot *slot = i < ROWS * COLUMNS ? &s->slots[3] : &s->slots[1];
            j->errors[rank->rank][i] =
                (double)((const float *)
                             slot->error.storage)[i < ROWS * COLUMNS ? i : i - ROWS * COLUMNS];
        }
    }
    j->hook->destroy(self);
    cddp_group_destroy(group);
    return status;
}

static void run(job *j)
{
    sim_fixture f;
    if (j->ranks == 0) j->ranks = 2;
    if (j->steps == 0) j->steps = STEPS;
    if (j->swap_at == 0) j->swap_at = UINT32_MAX;
    fixture_setup(&f, j->ranks);
    f.data = j;
    fixture_run(&f, train);
    fixture_destroy(&f);
}

static double error_of(const job *j, uint32_t step)
{
    double off = 0.0, all = 0.0;
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        double d = j->outputs[0][step][i] - j->means[step][i];
        off += d * d;
        all += j->means[step][i] * j->means[step][i];
    }
    return sqrt(off / all);
}

static job j; /* large; one at a time */

static void job_of(const cddp_hook *hook, const char *options)
{
    memset(&j, 0, sizeof j);
    j.hook = hook;
    j.options = options;
}

TEST(powersgd, is_exact_until_its_start_and_compresses_from_then_on)
{
    job_of(&cd_hook_powersgd, "start_powerSGD_iter=2,matrix_approximation_rank=1");
    run(&j);
    for (uint32_t step = 0; step < 2; step++) assert_true(error_of(&j, step) == 0.0);
    for (uint32_t step = 2; step < STEPS; step++) assert_true(error_of(&j, step) > 0.1);
    assert_int_equal(j.statistics.iteration, STEPS);
    /* PSG-15: (16 + 12) + 5 of 197 elements. */
    assert_int_equal(j.statistics.elements_before, (STEPS - 2) * NUMEL);
    assert_int_equal(j.statistics.elements_after, (STEPS - 2) * (ROWS + COLUMNS + BIAS));
}

/* After four iterations, two of them compressed, and after eight: what the bucket has, what is sent
** of it, and their quotient; also where a state was saved, thrown away and loaded in between. */
static void expect_marks(const cddp_hook *hook, const char *options, int64_t bytes_per_weight,
                         int64_t sent)
{
    const cddp_trace_sink sink = {.size = sizeof sink,
                                  .abi = CDDP_TRACE_ABI,
                                  .self = &j,
                                  .event = take_mark};
    for (uint32_t swap_at = 0; swap_at < STEPS; swap_at += 5) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_tracer *tracer = NULL;
        job_of(hook, options);
        assert_ok(cddp_tracer_create(NULL, &sink, CDDP_TRACE_DIGEST, &tracer, &err), &err);
        j.tracer = tracer;
        j.swap_at = swap_at;
        run(&j);
        cddp_tracer_destroy(tracer);
        assert_int_equal(j.reported, 2);
        for (int i = 0; i < 2; i++) {
            const int64_t compressed = 2 + 4 * i;
            cd_test_row("%s, state swapped at %u, report %d", hook->name, swap_at, i);
            assert_int_equal(j.marks[i][0], 1000 * NUMEL / sent);
            assert_int_equal(j.marks[i][1], compressed * NUMEL * bytes_per_weight);
            assert_int_equal(j.marks[i][2], compressed * sent * bytes_per_weight);
        }
        /* The wire says the same: f32, two iterations of everything and six compressed ones. */
        assert_int_equal(j.sent, 4 * (2 * NUMEL + 6 * sent));
    }
}

TEST(powersgd, reports_the_bytes_that_it_saves)
{
    const char *options =
        "start_powerSGD_iter=2,matrix_approximation_rank=1,compression_stats_logging_frequency=4";
    expect_marks(&cd_hook_powersgd, options, 4, ROWS + COLUMNS + BIAS);
    expect_marks(&cd_hook_powersgd,
                 "start_powerSGD_iter=2,compression_stats_logging_frequency=4,bytes_per_weight=2",
                 2, ROWS + COLUMNS + BIAS);
    /* 197 elements in a square of 15 × 15 */
    expect_marks(&cd_hook_batched_powersgd, options, 4, 15 + 15);
}

TEST(powersgd, replicas_agree_bit_for_bit)
{
    for (uint32_t ranks = 1; ranks <= RANKS_MAX; ranks++) {
        job_of(&cd_hook_powersgd, "start_powerSGD_iter=2,matrix_approximation_rank=2");
        j.ranks = ranks;
        run(&j);
        for (uint32_t r = 1; r < ranks; r++)
            assert_memory_equal(j.outputs[r], j.outputs[0], sizeof j.outputs[0]);
    }
}

/* PSG-05: 16 × 12 pays up to rank 3 at rate 2: 28·3·2 = 168 < 192 but 28·4·2 = 224. */
TEST(powersgd, leaves_what_does_not_pay_uncompressed)
{
    job_of(&cd_hook_powersgd, "start_powerSGD_iter=2,matrix_approximation_rank=4");
    run(&j);
    for (uint32_t step = 0; step < STEPS; step++) assert_true(error_of(&j, step) < 1e-6);
    job_of(&cd_hook_powersgd, "start_powerSGD_iter=2,matrix_approximation_rank=3");
    run(&j);
    assert_true(error_of(&j, 2) > 0.1);
}

/* PSG-11, TI-M-14: exact at full rank and on gradients of the configured rank; errors telescope;
** and the batched form. */
TEST(powersgd, is_lossless_at_full_rank)
{
    job_of(&cd_hook_powersgd,
           "start_powerSGD_iter=2,matrix_approximation_rank=12,min_compression_rate=0");
    run(&j);
    for (uint32_t step = 0; step < STEPS; step++) assert_true(error_of(&j, step) < 2e-6);
}

TEST(powersgd, is_lossless_on_gradients_whose_mean_has_the_configured_rank) /* TI-M-14 */
{
    /* Without feedback: the errors that ranks owe each other would be compressed too, and their
    ** rounding with them. */
    job_of(&cd_hook_powersgd,
           "start_powerSGD_iter=2,matrix_approximation_rank=2,use_error_feedback=false");
    j.low_rank = true;
    run(&j);
    for (uint32_t step = 2; step < STEPS; step++) assert_true(error_of(&j, step) < 2e-6);
}

/* PSG-11: Σ outputs = Σ means - mean of the last errors, per element. Each of the 6 compressed
** steps rounds the error twice and the output once, of values below 8: 6 · 3 · 8 · 2^-24 bounds
** it. */
TEST(powersgd, error_feedback_telescopes) /* TI-M-14 */
{
    const char *options[] = {"start_powerSGD_iter=2",
                             "start_powerSGD_iter=2,warm_start=false,matrix_approximation_rank=2",
                             "start_powerSGD_iter=2,feedback_every_n_iters=3"};
    for (size_t o = 0; o < 3; o++) {
        job_of(&cd_hook_powersgd, options[o]);
        run(&j);
        double worst = 0.0, largest = 0.0;
        for (int i = 0; i < NUMEL; i++) {
            double means = 0.0, outputs = 0.0, owed = (j.errors[0][i] + j.errors[1][i]) / 2.0;
            for (uint32_t step = 2; step < STEPS; step++) {
                means += j.means[step][i];
                outputs += j.outputs[0][step][i];
            }
            worst = fmax(worst, fabs(outputs - (means - owed)));
            largest = fmax(largest, fabs(owed));
        }
        cd_test_row("%s: off by %g, owed up to %g", options[o], worst, largest);
        assert_true(worst < 6 * 3 * 8 * 0x1p-24);
        assert_true(largest > 0.1);
    }
}

/* PSG-09: the bias is owed the difference to the mean, and stays exact but for rounding. */
TEST(powersgd, uncompressed_tensors_stay_exact_within_rounding)
{
    job_of(&cd_hook_powersgd, "start_powerSGD_iter=2");
    run(&j);
    for (uint32_t step = 0; step < STEPS; step++)
        for (int i = ROWS * COLUMNS; i < NUMEL; i++)
            assert_true(fabs(j.outputs[0][step][i] - j.means[step][i]) < 1e-6);
    bool owed = false;
    for (int i = ROWS * COLUMNS; i < NUMEL; i++) owed = owed || j.errors[0][i] != 0.0;
    assert_true(owed);
}

TEST(powersgd, zero_and_rank_deficient_gradients_stay_finite)
{
    for (int low = 0; low < 2; low++) {
        job_of(&cd_hook_powersgd, "start_powerSGD_iter=2,matrix_approximation_rank=3");
        j.zero = low == 0;
        j.low_rank = low == 1;
        run(&j);
        for (uint32_t step = 0; step < STEPS; step++)
            for (int i = 0; i < NUMEL; i++) assert_true(isfinite(j.outputs[0][step][i]));
        if (low == 1) assert_true(error_of(&j, STEPS - 1) < 1e-5);
    }
}

/* Of a gradient of zeros nothing is sent, so that Q is zero: what it starts from next must not
** be. */
static void expect_life(const char *what)
{
    for (uint32_t step = j.silent_to; step < j.steps; step++) {
        double energy = 0.0;
        for (int e = 0; e < ROWS * COLUMNS; e++)
            energy += j.outputs[0][step][e] * j.outputs[0][step][e];
        cd_test_row("%s, step %u", what, step);
        assert_true(energy > 0.0);
        assert_memory_equal(j.outputs[1][step], j.outputs[0][step], sizeof j.outputs[0][step]);
    }
}

TEST(powersgd, goes_on_after_gradients_of_zeros)
{
    static const char *const feedback[2] = {
        "start_powerSGD_iter=2,matrix_approximation_rank=2",
        "start_powerSGD_iter=2,matrix_approximation_rank=2,use_error_feedback=false"};
    static const cddp_hook *const hooks[2] = {&cd_hook_powersgd, &cd_hook_batched_powersgd};
    static const cddp_dtype dtypes[] = {CDDP_F32, CDDP_F64, CDDP_BF16, CDDP_F16};
    for (int i = 0; i < 2 * 2 * 4; i++) {
        for (uint32_t swap_at = 0; swap_at < STEPS; swap_at += 4) {
            job_of(hooks[i / 2 % 2], feedback[i % 2]);
            j.dtype = &dtypes[i / 4];
            j.silent_from = 2;
            j.silent_to = 4;
            j.swap_at = swap_at;
            run(&j);
            expect_life(feedback[i % 2]);
        }
    }
}

TEST(powersgd, a_state_saved_and_loaded_continues_bit_for_bit)
{
    static double straight[STEPS][NUMEL];
    const cddp_hook *hooks[] = {&cd_hook_powersgd, &cd_hook_batched_powersgd};
    for (int h = 0; h < 2; h++) {
        job_of(hooks[h], "start_powerSGD_iter=2,matrix_approximation_rank=2");
        run(&j);
        memcpy(straight, j.outputs[1], sizeof straight);
        for (uint32_t at = 1; at < STEPS; at += 3) {
            job_of(hooks[h], "start_powerSGD_iter=2,matrix_approximation_rank=2");
            j.swap_at = at;
            run(&j);
            assert_memory_equal(straight, j.outputs[1], sizeof straight);
        }
    }
}

static cddp_status train_resized(cddp_rank *rank, void *argument, cddp_error *err)
{
    cddp_error inner = CDDP_ERROR_INIT;
    assert_fails(train(rank, argument, &inner), CDDP_E_MISMATCH, &inner,
                 "the loaded state of parameter 3 is for 192 elements");
    (void)err;
    return CDDP_OK;
}

TEST(powersgd, a_state_of_another_model_is_refused)
{
    sim_fixture f;
    job_of(&cd_hook_powersgd, "start_powerSGD_iter=2");
    j.ranks = 2;
    j.steps = 5;
    j.swap_at = 4;
    j.resized = true;
    fixture_setup(&f, 2);
    f.data = &j;
    fixture_run(&f, train_resized);
    fixture_destroy(&f);
}

TEST(powersgd, the_rank_follows_its_schedule)
{
    job_of(&cd_hook_powersgd, "start_powerSGD_iter=2,rank_schedule=0:1/4:12/"
                              "6:1,min_compression_rate=0,use_error_feedback=false");
    run(&j);
    assert_true(error_of(&j, 3) > 0.1);
    assert_true(error_of(&j, 4) < 2e-6 && error_of(&j, 5) < 2e-6);
    assert_true(error_of(&j, 6) > 0.1);
}

TEST(batched_powersgd, compresses_the_whole_bucket_and_telescopes) /* TI-M-14 */
{
    job_of(&cd_hook_batched_powersgd, "start_powerSGD_iter=2");
    run(&j);
    assert_true(error_of(&j, 1) == 0.0 && error_of(&j, 2) > 0.1);
    assert_memory_equal(j.outputs[0], j.outputs[1], sizeof j.outputs[0]);
    for (int i = 0; i < NUMEL; i++) {
        double means = 0.0, outputs = 0.0;
        for (uint32_t step = 2; step < STEPS; step++) {
            means += j.means[step][i];
            outputs += j.outputs[0][step][i];
        }
        assert_true(fabs(outputs - (means - (j.errors[0][i] + j.errors[1][i]) / 2.0)) <
                    6 * 3 * 8 * 0x1p-24);
    }
    job_of(&cd_hook_batched_powersgd, "start_powerSGD_iter=2,matrix_approximation_rank=15");
    run(&j);
    assert_true(error_of(&j, 5) < 2e-6);
}

static cddp_status try_options(cddp_rank *rank, cddp_group *group, const char *options,
                               cddp_error *err)
{
    const job asked = {.hook = &cd_hook_powersgd, .options = options};
    void *self = NULL;
    cddp_status status = create(&asked, rank, group, &self, err);
    assert_true((self != NULL) == (status == CDDP_OK));
    if (self != NULL) asked.hook->destroy(self);
    return status;
}

/* TI-D-20: a start before the second iteration goes with neither error feedback nor warm start; any
** start goes without both. */
static cddp_status try_starts(cddp_rank *rank, void *argument, cddp_error *err)
{
    static const char *const flags[2] = {"false", "true"};
    cddp_group *group = NULL;
    assert_ok(fixture_group(argument, rank, "world", &group, err), err);
    for (int k = 0; k < 12; k++) {
        const int start = k / 4, feedback = k / 2 % 2, warm = k % 2;
        char options[96];
        cddp_error inner = CDDP_ERROR_INIT;
        snprintf(options, sizeof options,
                 "start_powerSGD_iter=%d,use_error_feedback=%s,warm_start=%s", start,
                 flags[feedback], flags[warm]);
        cd_test_row("%s", options);
        cddp_status status = try_options(rank, group, options, &inner);
        if (start <= 1 && (feedback || warm))
            assert_fails(status, CDDP_E_CONFIG, &inner, "must be above 1");
        else
            assert_ok(status, &inner);
    }
    cddp_group_destroy(group);
    return CDDP_OK;
}

static void run_alone(cddp_rank_fn program)
{
    sim_fixture f;
    fixture_setup(&f, 1);
    fixture_run(&f, program);
    fixture_destroy(&f);
}

TEST(powersgd, starts_early_only_without_memory) { run_alone(try_starts); }

/* Factors of another program: whole rows of the rank, given again and given back. */
static cddp_status give_factors(cddp_rank *rank, void *argument, cddp_error *err)
{
    static const double q[6] = {1, 2, 3, 4, 5, 6};
    cd_watch_allocator watch;
    cddp_group *group = NULL;
    void *self = NULL;
    cd_watch_allocator_init(&watch, rank->allocator);
    assert_ok(fixture_group(argument, rank, "world", &group, err), err);
    const cddp_hook_context context = {.size = sizeof context,
                                       .group = group,
                                       .allocator = &watch.table,
                                       .options = "matrix_approximation_rank=2"};
    assert_ok(cd_hook_powersgd.create(&context, &self, err), err);
    cddp_error inner = CDDP_ERROR_INIT;
    assert_fails(cd_low_rank_set_factor(self, 3, q, 0, &inner), CDDP_E_ARG, &inner,
                 "0 numbers are no factor of rank 2");
    assert_fails(cd_low_rank_set_factor(self, 3, q, 5, &inner), CDDP_E_ARG, &inner,
                 "5 numbers are no factor of rank 2");
    tape one = {.used = 0}, two = {.used = 0};
    for (int time = 0; time < 2; time++) {
        tape *t = time == 0 ? &one : &two;
        const cddp_state_writer writer = {t, tape_write};
        assert_ok(cd_low_rank_set_factor(self, 3, q, time == 0 ? 4 : 6, err), err);
        assert_ok(cd_low_rank_set_factor(self, 0, q + 1, 2, err), err);
        assert_ok(cd_hook_powersgd.save(self, &writer, err), err);
    }
    assert_int_equal(two.used - one.used, 2 * sizeof *q);
    cd_hook_powersgd.destroy(self);
    assert_int_equal(watch.live_count, 0);
    cddp_group_destroy(group);
    return CDDP_OK;
}
TEST(powersgd, takes_factors_of_another_program) { run_alone(give_factors); }

static cddp_status refuse_options(cddp_rank *rank, void *argument, cddp_error *err)
{
    static const struct {
        const char *options, *words;
    } cases[] = {
        /* clang-format off */
        {"matrix_aproximation_rank=2", "did you mean 'matrix_approximation_rank'"},
        {"matrix_approximation_rank=0", "not between 1"},
        {"matrix_approximation_rank=two", "not a whole number"},
        {"warm_start=maybe", "neither true nor false"},
        {"lr_scheduler=cosine", "PyTorch has no such option"},
        {"update_state=true", "PyTorch has no such option"},
        {"rank_schedule=5:2/3:1", "growing iterations"},
        {"rank_schedule=5", "iteration:rank"},
        {"comm_device=cuda", "where they live"},
        {"warm_start", "not key=value"},
        {"warm_start=true,warm_start=false", "warm_start is given twice"},
        {"error_feedback=true,use_error_feedback=false", "error_feedback and use_error_feedback are one option"},
        {"feedback_every_n_iters=2,error_feedback=false", "no effect without error feedback"},
        /* clang-format on */
    };
    sim_fixture *f = argument;
    cddp_group *group = NULL;
    cddp_status status = fixture_group(f, rank, "world", &group, err);
    if (status != CDDP_OK) return status;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].options);
        cddp_error inner = CDDP_ERROR_INIT;
        assert_fails(try_options(rank, group, cases[i].options, &inner), CDDP_E_CONFIG, &inner,
                     cases[i].words);
    }
    assert_ok(try_options(rank, group,
                          "start_powerSGD_iter=0,warm_start=false,error_feedback=false", err),
              err);
    cddp_group_destroy(group);
    return CDDP_OK;
}

TEST(powersgd, refuses_settings_that_cannot_work_by_name) { run_alone(refuse_options); }

TEST_MAIN()
