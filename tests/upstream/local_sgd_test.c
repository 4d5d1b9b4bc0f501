/* SPDX-License-Identifier: Apache-2.0 */
/* Upstream's tests of the post-local-SGD optimizer: reduce over everybody, then train alone, step,
** average the models.
**
** Its parts here are the hook post_local_sgd, an optimizer and a periodic averager. The reference
** is two replicas in one array, without any of them: with two ranks a sum has one order, so that
** everything is compared bit for bit.
*/
#include "cddp/averager.h"
#include "core/hooks/hook.h"
#include "core/model/optim/optimizer.h"
#include "tests/support/tape.h"
#include "tests/unit/core/ddp/fixture.h"

enum { RANKS = 2, PARAMETERS = 2, NUMEL = 12, STEPS = 32, WARMUP = 10, PERIOD = 4 };
static const int64_t numels[PARAMETERS] = {7, 5};
static const double lr = 0.03, momentum = 0.9;

typedef struct training {
    bool views;
    uint64_t period;
    /* before this step everything is created anew and loaded from the saved state; 0: never */
    int resume_at;
    bool forgets_step;               /* … except the averager's step */
    float seen[RANKS][STEPS][NUMEL]; /* the parameters after every step */
} training;

/* Where the loss, half a squared distance, pulls parameter k of a rank. */
static float target(uint32_t rank, int step, int k)
{
    return (float)((step * 7 + k * 3 + (int)rank * 5) % 13) / 3.0f;
}

/* ---- the reference ---- */

static void train_by_hand(float seen[RANKS][STEPS][NUMEL])
{
    float p[RANKS][NUMEL], buffer[RANKS][NUMEL];
    for (int r = 0; r < RANKS; r++)
        for (int k = 0; k < NUMEL; k++) p[r][k] = (float)k / 7.0f;
    for (int step = 0; step < STEPS; step++) {
        float g[RANKS][NUMEL];
        for (int k = 0; k < NUMEL; k++) {
            for (uint32_t r = 0; r < RANKS; r++) g[r][k] = p[r][k] - target(r, step, k);
            const float mean = g[0][k] / 2 + g[1][k] / 2;
            for (int r = 0; r < RANKS; r++) {
                if (step < WARMUP) g[r][k] = mean;
                buffer[r][k] = step == 0 ? g[r][k] : (float)momentum * buffer[r][k] + g[r][k];
                p[r][k] += (float)-lr * buffer[r][k];
            }
            if (step >= WARMUP && (step - WARMUP) % PERIOD == 0)
                p[0][k] = p[1][k] = p[0][k] / 2 + p[1][k] / 2;
        }
        for (int r = 0; r < RANKS; r++) memcpy(seen[r][step], p[r], sizeof p[r]);
    }
}

/* ---- the parts ---- */

typedef struct parts {
    cddp_averager *averager;
    cd_optimizer *optimizer;
} parts;

static void make_parts(lane *l, const training *t, parts *made)
{
    cddp_averager_level level = {t->period, RANKS};
    const cddp_averager_options options = {.size = sizeof options,
                                           .group = l->group,
                                           .levels = &level,
                                           .level_count = 1,
                                           .warmup_steps = WARMUP};
    cd_optimizer_parameter parameters[PARAMETERS];
    cd_optimizer_options sgd = cd_optimizer_options_default(CD_OPTIMIZER_sgd);
    sgd.lr = lr, sgd.momentum = momentum;
    for (size_t i = 0; i < PARAMETERS; i++)
        parameters[i] =
            (cd_optimizer_parameter){l->parameters[i].name, l->parameters[i].tensor, &l->grads[i]};
    CHECK_OK(cddp_averager_create(&options, &made->averager, &l->err));
    CHECK_OK(cd_optimizer_create(&sgd, parameters, PARAMETERS, NULL, &made->optimizer, &l->err));
}

static void destroy_parts(parts *p)
{
    cddp_averager_destroy(p->averager);
    cd_optimizer_destroy(p->optimizer);
    *p = (parts){0};
}

/* A checkpoint: the optimizer's state and, LSG-04, one number. */
static void reload(lane *l, const training *t, parts *p)
{
    tape kept = {.used = 0};
    const cddp_state_writer writer = {&kept, tape_write};
    const cddp_state_reader reader = {&kept, tape_read};
    const uint64_t step = cddp_averager_get_step(p->averager);
    CHECK(step == (uint64_t)t->resume_at && step != 0);
    CHECK_OK(cd_optimizer_save(p->optimizer, &writer, &l->err));
    destroy_parts(p);
    make_parts(l, t, p);
    CHECK_OK(cd_optimizer_load(p->optimizer, &reader, &l->err));
    CHECK(cddp_averager_get_step(p->averager) == 0);
    if (!t->forgets_step) cddp_averager_set_step(p->averager, step);
}

static float *values_of(const cddp_tensor *t) { return (float *)t->storage + t->offset; }

static void train_step(lane *l, parts *p, int step)
{
    cddp_tensor tensors[PARAMETERS];
    cddp_grad *grads[PARAMETERS];
    int k = NUMEL;
    lane_zero_grad(l, true);
    lane_forward(l);
    for (size_t i = PARAMETERS; i-- > 0;) {
        tensors[i] = l->parameters[i].tensor;
        grads[i] = &l->grads[i];
        CHECK_OK(cddp_grad_define(grads[i], &tensors[i], &l->err));
        for (int64_t e = numels[i]; e-- > 0;) {
            k--;
            values_of(&grads[i]->value)[e] = values_of(&tensors[i])[e] - target(l->r, step, k);
        }
        lane_hook(l, i);
    }
    lane_end(l);
    CHECK_OK(cd_optimizer_step(p->optimizer, &l->err));
    CHECK_OK(cddp_averager_step(p->averager, tensors, grads, PARAMETERS, &l->err));
}

static void train_body(lane *l)
{
    training *t = l->lab->data;
    parts p = {0};
    int k = 0;
    l->options.gradient_as_bucket_view = t->views;
    for (size_t i = 0; i < PARAMETERS; i++) {
        cddp_parameter *made = lane_add(l, i == 0 ? "weight" : "bias", CDDP_F32, numels[i]);
        for (int64_t e = 0; e < numels[i]; e++) values_of(&made->tensor)[e] = (float)k++ / 7.0f;
    }
    lane_wrap(l);
    CHECK_OK(
        cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("post_local_sgd"), NULL,
                                    "start_localSGD_iter=10,post_local_gradient_allreduce=false",
                                    &l->err));
    make_parts(l, t, &p);
    for (int step = 0; step < STEPS; step++) {
        if (t->resume_at != 0 && step == t->resume_at) reload(l, t, &p);
        train_step(l, &p, step);
        float *seen = t->seen[l->r][step];
        for (size_t i = 0; i < PARAMETERS; i++) {
            memcpy(seen, values_of(&l->parameters[i].tensor), (size_t)numels[i] * sizeof *seen);
            seen += numels[i];
        }
    }
    CHECK(cddp_averager_get_step(p.averager) ==
          (uint64_t)(t->forgets_step ? STEPS - t->resume_at : STEPS));
    destroy_parts(&p);
}

/* The first step after which the replicas are not those of the reference; STEPS: none. */
static int first_difference(training *t)
{
    static float reference[RANKS][STEPS][NUMEL];
    train_by_hand(reference);
    lab_of(RANKS, train_body, t);
    for (int step = 0; step < STEPS; step++)
        for (int r = 0; r < RANKS; r++)
            if (memcmp(t->seen[r][step], reference[r][step], sizeof reference[r][step]) != 0)
                return step;
    return STEPS;
}

static training t; /* large; one at a time */

TEST(post_local_sgd, with_a_periodic_averager_is_averaging_by_hand_at_the_same_steps) /* TI-G-06 */
{
    for (int views = 0; views < 2; views++) {
        t = (training){.views = views, .period = PERIOD};
        assert_int_equal(first_difference(&t), STEPS);
        /* equal while reduced and where averaged, apart elsewhere */
        for (int step = 0; step < STEPS; step++) {
            bool is_equal = memcmp(t.seen[0][step], t.seen[1][step], sizeof t.seen[0][step]) == 0;
            assert_true(is_equal == (step < WARMUP || (step - WARMUP) % PERIOD == 0));
        }
    }
    t = (training){.period = PERIOD + 1};
    assert_int_equal(first_difference(&t), WARMUP + PERIOD);
}

/* TI-G-08: PyTorch warns when a checkpoint has no step and counts from 0. Here the step is passed
** separately; a caller that does not pass it also counts from 0, and the model is averaged too
** late. */
TEST(post_local_sgd, goes_on_from_the_step_that_a_checkpoint_kept)
{
    t = (training){.period = PERIOD, .resume_at = 20};
    assert_int_equal(first_difference(&t), STEPS);
    t = (training){.period = PERIOD, .resume_at = 20, .forgets_step = true};
    /* the next average would have been after step 10 + 3 · 4 */
    assert_int_equal(first_difference(&t), 22);
}

TEST_MAIN()
