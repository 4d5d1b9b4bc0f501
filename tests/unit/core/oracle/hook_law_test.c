/* SPDX-License-Identifier: Apache-2.0 */
/* The judge of hooks over two ranks. Hooks are played here by a few lines each, rightly and
** wrongly; shares are added up as I-HOOK adds them. */
#include "core/oracle/hook_law/hook_law.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/tensor/math.h"
#include "core/trace/sink.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#define RANKS 2
#define ROWS 4
#define COLUMNS 3
#define NUMEL (ROWS * COLUMNS + 2) /* a matrix and a vector */

typedef struct scene {
    cd_memory_sink sink;
    cddp_tracer *tracer;
    cd_hook_law *laws[RANKS];
    cddp_tensor forms[2];
    float values[NUMEL];
} scene;

static void open_scene(scene *s, const char *name, const char *inner, const char *options)
{
    cddp_error err = CDDP_ERROR_INIT;
    const int64_t matrix[2] = {ROWS, COLUMNS}, vector = 2;
    memset(s, 0, sizeof *s);
    cd_memory_sink_init(&s->sink, NULL);
    assert_ok(cddp_tracer_create(NULL, &s->sink.sink, CDDP_TRACE_DIGEST, &s->tracer, &err), &err);
    s->forms[0] = cddp_tensor_of(cddp_device_cpu(), s->values, 0, CDDP_F32, matrix, 2);
    s->forms[1] =
        cddp_tensor_of(cddp_device_cpu(), s->values, ROWS * COLUMNS, CDDP_F32, &vector, 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        const cd_hook_law_options o = {.words = {name, inner, options},
                                       .rank = r,
                                       .world_size = RANKS,
                                       .seed = 7,
                                       .forms = s->forms,
                                       .variable_count = 2,
                                       .tracer = s->tracer};
        assert_ok(cd_hook_law_create(&o, &s->laws[r], &err), &err);
    }
}

static void close_scene(scene *s)
{
    for (uint32_t r = 0; r < RANKS; r++) cd_hook_law_destroy(s->laws[r]);
    cddp_tracer_destroy(s->tracer);
    cd_memory_sink_fini(&s->sink);
}

static cd_law_bucket bucket_of(const cddp_tensor *flat)
{
    static const uint32_t variables[2] = {0, 1};
    static const int64_t offsets[2] = {0, ROWS * COLUMNS}, lengths[2] = {ROWS * COLUMNS, 2};
    return (cd_law_bucket){.is_last = true,
                           .flat = flat,
                           .count = 2,
                           .variables = variables,
                           .offsets = offsets,
                           .lengths = lengths,
                           .wire = CDDP_DTYPE_COUNT};
}

typedef struct verdict {
    uint32_t sums, broken; /* laws that were stated by both ranks, and those not kept */
    uint32_t compared;     /* matrices of too high a rank */
    int64_t bytes, posted;
    bool warm;
} verdict;

static verdict read_verdict(scene *s)
{
    verdict v = {.sums = 0};
    double given[8] = {0}, got[8] = {0}, bound[8] = {0};
    uint32_t count[8] = {0};
    for (size_t i = 0; i < s->sink.count; i++) {
        const cddp_event e = cd_memory_sink_get(&s->sink, i);
        if (e.kind == CDDP_EV_bucket_law) {
            v.bytes = e.as.bucket_law.bytes;
            v.posted = e.as.bucket_law.posted;
        }
        v.compared += e.kind == CDDP_EV_compare;
        if (e.kind != CDDP_EV_bucket_sum) continue;
        const int64_t n = e.as.bucket_sum.number;
        v.warm = v.warm || n == 4;
        given[n] += cd_f64_of(e.as.bucket_sum.given);
        got[n] = cd_f64_of(e.as.bucket_sum.got);
        bound[n] += cd_f64_of(e.as.bucket_sum.bound);
        if (++count[n] == (e.as.bucket_sum.ranks == 1 ? 1 : RANKS)) {
            v.sums++;
            v.broken += !(fabs(given[n] - got[n]) <= bound[n]);
        }
    }
    cd_memory_sink_clear(&s->sink);
    return v;
}

/* One backward: what left each rank, and what came back to all. */
static verdict reduce(scene *s, float left[RANKS][NUMEL], float *result)
{
    cddp_error err = CDDP_ERROR_INIT;
    const int64_t numel = NUMEL;
    for (uint32_t r = 0; r < RANKS; r++) {
        const cddp_tensor flat = cddp_tensor_of(cddp_device_cpu(), left[r], 0, CDDP_F32, &numel, 1);
        const cd_law_bucket b = bucket_of(&flat);
        assert_ok(cd_hook_law_launch(s->laws[r], &b, &err), &err);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        const cddp_tensor flat = cddp_tensor_of(cddp_device_cpu(), result, 0, CDDP_F32, &numel, 1);
        const cd_law_bucket b = bucket_of(&flat);
        assert_ok(cd_hook_law_deliver(s->laws[r], &b, &err), &err);
    }
    return read_verdict(s);
}

/* Different numbers for each rank and step. */
static void draw(float left[RANKS][NUMEL], int step)
{
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < NUMEL; i++)
            left[r][i] = (float)((i * 37 + r * 17 + step * 29) % 23 - 11) / 7.0f;
}

static void mean_of(float left[RANKS][NUMEL], float *result)
{
    for (int i = 0; i < NUMEL; i++) result[i] = left[0][i] / RANKS + left[1][i] / RANKS;
}

TEST(hook_law, a_mean_is_kept_and_half_of_it_is_not)
{
    (void)state;
    static const char *const hooks[] = {"allreduce", "reproducible", "post_local_sgd", "powersgd"};
    for (size_t h = 0; h < sizeof hooks / sizeof hooks[0]; h++) {
        cd_test_row("%s", hooks[h]);
        scene s;
        float left[RANKS][NUMEL], result[NUMEL];
        open_scene(&s, hooks[h], NULL, NULL);
        draw(left, 0);
        mean_of(left, result);
        verdict v = reduce(&s, left, result);
        assert_int_equal(v.sums, 2);
        assert_int_equal(v.broken, 0);
        for (int i = 0; i < NUMEL; i++) result[i] /= 2;
        v = reduce(&s, left, result);
        assert_int_equal(v.broken, 2);
        close_scene(&s);
    }
}

TEST(hook_law, two_exchanged_elements_are_noticed)
{
    (void)state;
    scene s;
    float left[RANKS][NUMEL], result[NUMEL];
    open_scene(&s, "allreduce", NULL, NULL);
    draw(left, 0);
    mean_of(left, result);
    const float moved = result[0];
    result[0] = result[5];
    result[5] = moved;
    assert_true(reduce(&s, left, result).broken > 0);
    close_scene(&s);
}

TEST(hook_law, no_communication_returns_what_left)
{
    (void)state;
    scene s;
    float left[RANKS][NUMEL], result[NUMEL];
    open_scene(&s, "noop", NULL, NULL);
    draw(left, 0);
    memcpy(left[1], left[0], sizeof left[1]);
    memcpy(result, left[0], sizeof result);
    verdict v = reduce(&s, left, result);
    assert_true(v.sums > 0 && v.broken == 0 && v.bytes == 0);
    result[3] += 0x1p-20f;
    assert_true(reduce(&s, left, result).broken > 0);
    close_scene(&s);
}

/* Top-k by repeated search, with debts; forgets: the debts are cleared. */
static void play_topk(float left[RANKS][NUMEL], float debts[RANKS][NUMEL], int k, bool forgets,
                      float *result)
{
    memset(result, 0, NUMEL * sizeof *result);
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < NUMEL; i++) debts[r][i] += left[r][i];
        for (int n = 0; n < k; n++) {
            int best = 0;
            for (int i = 1; i < NUMEL; i++)
                if (fabsf(debts[r][i]) > fabsf(debts[r][best])) best = i;
            result[best] += debts[r][best] / RANKS;
            debts[r][best] = 0;
        }
        if (forgets) memset(debts[r], 0, sizeof debts[r]);
    }
}

TEST(hook_law, debts_of_the_largest_elements_are_kept)
{
    (void)state;
    static const struct {
        const char *name, *options;
        int k;
        bool forgets, is_right;
    } cases[] = {{"k", "k=3", 3, false, true},
                 {"ratio", "ratio=0.25", 3, false, true},
                 {"no feedback", "k=3,error_feedback=false", 3, true, true},
                 {"one too few", "k=4", 3, false, false},
                 {"one too many", "k=2", 3, false, false},
                 {"forgotten", "k=3", 3, true, false},
                 {"kept unasked", "k=3,error_feedback=false", 3, false, false}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        cd_test_row("%s", cases[c].name);
        scene s;
        float left[RANKS][NUMEL], debts[RANKS][NUMEL] = {{0}}, result[NUMEL];
        uint32_t broken = 0;
        open_scene(&s, "topk", NULL, cases[c].options);
        for (int step = 0; step < 4; step++) {
            draw(left, step);
            play_topk(left, debts, cases[c].k, cases[c].forgets, result);
            const verdict v = reduce(&s, left, result);
            assert_int_equal(v.sums, 2);
            assert_true(v.posted != 0);
            if (cases[c].is_right) assert_int_equal(v.bytes, 3 * 8);
            broken += v.broken;
        }
        assert_int_equal(broken == 0, cases[c].is_right);
        close_scene(&s);
    }
}

/* Codes of `steps` levels, a row of the whole bucket. */
static void play_codes(float left[RANKS][NUMEL], float steps, float *result)
{
    memset(result, 0, NUMEL * sizeof *result);
    for (int r = 0; r < RANKS; r++) {
        float least = 0, most = 0;
        for (int i = 0; i < NUMEL; i++) {
            least = fminf(least, left[r][i]);
            most = fmaxf(most, left[r][i]);
        }
        const float scale = (most - least) / steps, zero = -nearbyintf(least / scale);
        for (int i = 0; i < NUMEL; i++)
            result[i] += scale * (nearbyintf(left[r][i] * (1.0f / scale)) + zero - zero);
    }
    for (int i = 0; i < NUMEL; i++) result[i] /= RANKS;
}

TEST(hook_law, codes_have_eight_bits)
{
    (void)state;
    scene s;
    float left[RANKS][NUMEL], result[NUMEL];
    open_scene(&s, "quantize_per_tensor", NULL, NULL);
    draw(left, 1);
    play_codes(left, 255, result);
    verdict v = reduce(&s, left, result);
    assert_true(v.sums == 2 && v.broken == 0);
    assert_int_equal(v.bytes, 8 + NUMEL);
    play_codes(left, 127, result);
    assert_true(reduce(&s, left, result).broken > 0);
    close_scene(&s);
}

/* PowerSGD of rank 1 in f64, with the last factor as the next first one. */
typedef struct low_rank {
    double q[COLUMNS], debts[RANKS][NUMEL];
    bool is_cold, forgets;
} low_rank;

static void play_low_rank(low_rank *l, float left[RANKS][NUMEL], float *result)
{
    double mean[NUMEL] = {0}, p[ROWS] = {0}, squares = 0;
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < NUMEL; i++) {
            if (l->forgets) l->debts[r][i] = 0;
            l->debts[r][i] = (float)(left[r][i] + l->debts[r][i]);
            mean[i] += l->debts[r][i] / RANKS;
        }
    if (l->is_cold)
        for (int j = 0; j < COLUMNS; j++) l->q[j] = 1 + j;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) p[i] += mean[i * COLUMNS + j] * l->q[j];
    for (int i = 0; i < ROWS; i++) squares += p[i] * p[i];
    for (int j = 0; j < COLUMNS; j++) {
        l->q[j] = 0;
        for (int i = 0; i < ROWS; i++) l->q[j] += mean[i * COLUMNS + j] * p[i] / sqrt(squares);
    }
    for (int i = 0; i < NUMEL; i++)
        result[i] = i < ROWS * COLUMNS ? (float)(p[i / COLUMNS] / sqrt(squares) * l->q[i % COLUMNS])
                                       : (float)mean[i];
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < NUMEL; i++) l->debts[r][i] = (float)(l->debts[r][i] - result[i]);
}

/* The factor of variable 0 that the page defines: normals of a generator split by name. */
static void draw_factor(uint64_t seed, double q[COLUMNS])
{
    const cd_prng all = cd_prng_seed(seed);
    cd_prng prng = cd_prng_split_index(&all, "powersgd", 0);
    for (int j = 0; j < COLUMNS; j++) {
        const double u = ((double)(cd_prng_next(&prng) >> 11) + 1.0) * 0x1p-53,
                     v = (double)(cd_prng_next(&prng) >> 11) * 0x1p-53;
        q[j] = sqrt(-2.0 * cd_log(u)) * cd_cospi(2.0 * v);
    }
}

typedef enum spoil { NOTHING, HALF, FORGOTTEN, COLD, WRONG_SEED, WRONG_START, FULL_RANK } spoil;

static verdict play_powersgd(spoil how)
{
    scene s;
    verdict all = {.sums = 0};
    low_rank l = {.is_cold = how == COLD, .forgets = how == FORGOTTEN};
    float left[RANKS][NUMEL], result[NUMEL];
    open_scene(&s, "powersgd", NULL, "start_powerSGD_iter=2,min_compression_rate=0,random_seed=5");
    draw_factor(how == WRONG_SEED ? 6 : 5, l.q);
    for (int step = 0; step < 6; step++) {
        draw(left, step);
        if (step < (how == WRONG_START ? 3 : 2) || how == FULL_RANK)
            mean_of(left, result);
        else
            play_low_rank(&l, left, result);
        for (int i = 0; how == HALF && i < NUMEL; i++) result[i] /= 2;
        const verdict v = reduce(&s, left, result);
        all.sums += v.sums;
        all.broken += v.broken;
        all.compared += v.compared;
        all.warm = all.warm || v.warm;
        all.bytes = v.bytes;
    }
    close_scene(&s);
    return all;
}

TEST(hook_law, a_low_rank_is_a_projection_that_continues)
{
    (void)state;
    static const struct {
        const char *name;
        spoil how;
    } cases[] = {{"half", HALF},
                 {"debts forgotten", FORGOTTEN},
                 {"started cold", COLD},
                 {"another seed", WRONG_SEED},
                 {"one backward late", WRONG_START},
                 {"full rank", FULL_RANK}};
    const verdict right = play_powersgd(NOTHING);
    assert_int_equal(right.broken + right.compared, 0);
    assert_true(right.warm && right.sums == 16);
    assert_int_equal(right.bytes, 4 * (ROWS + COLUMNS + 2 + 1));
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        cd_test_row("%s", cases[c].name);
        const verdict wrong = play_powersgd(cases[c].how);
        /* the mean itself is a projection of it, of too high a rank */
        assert_true(cases[c].how == FULL_RANK ? wrong.compared > 0 : wrong.broken > 0);
    }
}

TEST(hook_law, words_are_read_as_the_page_defines_them)
{
    (void)state;
    cd_planned_hook h;
    cd_planned_hook_read(&(cd_planned_words){"fp16_compress_wrapper", "powersgd",
                                             "rank_schedule=0:1/4:3,warm_start=0,"
                                             "start_powerSGD_iter=2,use_error_feedback=false"},
                         &h);
    assert_true(h.kind == CD_PLANNED_LOW_RANK && h.low == CDDP_F16 && h.is_wrapped);
    assert_true(!h.is_warm && !h.has_feedback && h.start == 2);
    assert_int_equal(cd_planned_rank(&h, 3), 1);
    assert_int_equal(cd_planned_rank(&h, 4), 3);
    cd_planned_hook_read(&(cd_planned_words){"topk", NULL, NULL}, &h);
    assert_int_equal(cd_planned_k(&h, 250), 2);
    assert_int_equal(cd_planned_k(&h, 5), 1);
    cd_planned_hook_read(&(cd_planned_words){"a_plugin", NULL, "k=3"}, &h);
    assert_int_equal(h.kind, CD_PLANNED_UNKNOWN);
}

static cddp_status judge_with(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    static float left[NUMEL], result[NUMEL];
    const int64_t numel = NUMEL;
    const scene *s = argument;
    const cd_hook_law_options o = {.words = {"topk", NULL, "k=2"},
                                   .world_size = 1,
                                   .forms = s->forms,
                                   .variable_count = 2,
                                   .tracer = s->tracer,
                                   .allocator = allocator};
    const cddp_tensor in = cddp_tensor_of(cddp_device_cpu(), left, 0, CDDP_F32, &numel, 1),
                      out = cddp_tensor_of(cddp_device_cpu(), result, 0, CDDP_F32, &numel, 1);
    const cd_law_bucket leaves = bucket_of(&in), returns = bucket_of(&out);
    cd_hook_law *law = NULL;
    cddp_status status = cd_hook_law_create(&o, &law, err);
    if (status == CDDP_OK) status = cd_hook_law_launch(law, &leaves, err);
    if (status == CDDP_OK) status = cd_hook_law_deliver(law, &returns, err);
    cd_hook_law_destroy(law);
    return status;
}

TEST(hook_law, survives_every_failing_allocation)
{
    (void)state;
    scene s;
    open_scene(&s, "topk", NULL, NULL);
    assert_true(cd_test_oom_loop(judge_with, &s) > 3);
    close_scene(&s);
}

TEST_MAIN()
