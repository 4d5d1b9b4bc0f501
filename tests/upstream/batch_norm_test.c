/* SPDX-License-Identifier: Apache-2.0 */
/* Upstream's tests of synchronised batch norm under DDP: W ranks on their shares train the same
** model as one process with plain batch norm on the whole batch. The layer's exchange of
** statistics goes over the wrapper's group, between the reductions of the buckets.
*/
#include "tests/golden/pytorch/lane_model.h"

#include <math.h>

enum { STEPS = 5, SHARE_MAX = 3, SAMPLES_MAX = 4 * SHARE_MAX };

/* Every step takes sums of at most 64 numbers of order 1 in two orders: to first order each differs
** by so many roundings at most. (Seen: four roundings; without the exchange 0.03 and more.) */
#define BOUND (STEPS * 64 * 0x1p-53)

typedef struct setting {
    const char *model, *options; /* without the norm */
    uint32_t world, together;    /* consecutive ranks that are wrapped together */
    int64_t share;               /* samples of a rank and step */
    const char *norm;            /* under DDP */
} setting;

static cddp_status gather(void *context, const cddp_tensor *mine, const cddp_tensor *all,
                          cddp_error *err)
{
    const lane *l = context;
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allgather(l->options.group, mine, all, &work, err);
    return status != CDDP_OK ? status : cddp_work_wait(work, 0, err);
}

static cddp_status add_up(void *context, const cddp_tensor *sums, cddp_error *err)
{
    const lane *l = context;
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allreduce(l->options.group, sums, CDDP_RED_SUM, &work, err);
    return status != CDDP_OK ? status : cddp_work_wait(work, 0, err);
}

static void create(lane *l, const setting *s, const char *norm, lane_model *made)
{
    char options[96];
    snprintf(options, sizeof options, "%s,norm=%s", s->options, norm);
    lane_model_create_as(l, s->model, options, CDDP_F64, made);
}

/* The loss of samples first … first + count - 1. */
static cd_value *run_forward(lane *l, const lane_model *m, int64_t first, int64_t count)
{
    const cd_prng prng = cd_prng_seed(5);
    int64_t ids[SAMPLES_MAX];
    cd_batch batch;
    cd_outputs outputs;
    cd_value *loss = NULL;
    for (int64_t i = 0; i < count; i++) ids[i] = first + i;
    const cd_batch_request request = {.sample_ids = ids, .sample_count = count, .prng = &prng};
    CHECK_OK(cd_batch_make(m->graph, m->model, &request, &batch, &l->err));
    CHECK_OK(cd_model_forward(m->model, m->graph, &batch, &outputs, &l->err));
    CHECK_OK(cd_model_loss(m->model, m->graph, &batch, &outputs, UINT32_MAX, &loss, &l->err));
    return loss;
}

static void run_backward(lane *l, const lane_model *m, cd_value *loss)
{
    const cd_backward_options backward = {.roots = &loss, .root_count = 1};
    CHECK_OK(cd_graph_backward(m->graph, &backward, &l->err));
}

/* p -= gradient · factor; the gradients are gone afterwards. */
static void step(lane *l, const lane_model *m, double factor)
{
    for (size_t i = 0; i < m->model->module->parameter_count; i++) {
        cd_parameter *p = &m->model->module->parameters[i];
        CHECK_OK(p->tensor.device->axpy(&p->tensor, -factor, &p->grad.value, NULL, &l->err));
        cddp_grad_drop(&p->grad);
    }
}

static double farthest(const cddp_tensor *a, const cddp_tensor *b)
{
    double most = 0;
    if (a->dtype != CDDP_F64) return 0; /* the number of batches */
    for (int64_t i = 0; i < cddp_tensor_numel(a); i++) {
        double x = ((const double *)a->storage)[a->offset + i],
               y = ((const double *)b->storage)[b->offset + i];
        most = fmax(most, fabs(x - y) / (1 + fabs(y)));
    }
    return most;
}

/* Parameters and running statistics, element by element, relative to 1 + |element|. */
static double distance(const lane_model *a, const lane_model *b)
{
    const cd_module *m = a->model->module, *n = b->model->module;
    double most = 0;
    for (size_t i = 0; i < m->parameter_count; i++)
        most = fmax(most, farthest(&m->parameters[i].tensor, &n->parameters[i].tensor));
    for (size_t i = 0; i < m->buffer_count; i++)
        most = fmax(most, farthest(&m->buffers[i].tensor, &n->buffers[i].tensor));
    return most;
}

static void exchange_over(lane *l, uint32_t ranks, const lane_model *m)
{
    const cd_graph_callbacks callbacks = {.context = l,
                                          .ready = lane_model_ready,
                                          .rank_count = ranks,
                                          .allgather = gather,
                                          .allreduce = add_up};
    cd_graph_set_callbacks(m->graph, &callbacks);
}

static cddp_group *wrap_together(lane *l, const setting *s)
{
    static const char *const names[2] = {"first", "second"};
    if (s->together == l->w) return NULL;
    uint32_t members[LAB_RANKS];
    cddp_group *own = NULL;
    for (uint32_t i = 0; i < s->together; i++) members[i] = l->r / s->together * s->together + i;
    const cddp_group_subset subset = {.size = sizeof subset,
                                      .name = names[l->r / s->together],
                                      .member_count = s->together,
                                      .members = members};
    CHECK_OK(cddp_group_create_subset(l->group, &subset, &own, &l->err));
    l->options.group = own;
    return own;
}

static void train_body(lane *l)
{
    const setting *s = l->lab->data;
    lane_model whole, mine;
    double most = 0;
    cddp_group *own = wrap_together(l, s);
    const int64_t batch = s->share * s->together, place = l->r % s->together;
    create(l, s, "batch", &whole);
    cd_graph_set_callbacks(whole.graph, NULL);
    create(l, s, s->norm, &mine);
    exchange_over(l, s->together, &mine);
    lane_wrap(l);
    for (int k = 0; k < STEPS; k++) {
        const int64_t first = ((int64_t)(l->r / s->together) * STEPS + k) * SAMPLES_MAX;
        cd_graph_begin(whole.graph);
        run_backward(l, &whole, run_forward(l, &whole, first, batch));
        step(l, &whole, 0.05 / s->together);
        CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
        cd_graph_begin(mine.graph);
        cd_value *loss = run_forward(l, &mine, first + place * s->share, s->share);
        CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
        run_backward(l, &mine, loss);
        lane_end(l);
        step(l, &mine, 0.05);
        most = fmax(most, distance(&mine, &whole));
    }
    l->lab->out[l->r][0] = most;
    lane_model_destroy(l, &mine);
    lane_model_destroy(l, &whole);
    cddp_group_destroy(own);
}

static double run(setting s)
{
    lab b = {.world_size = s.world, .body = train_body, .data = &s};
    double most = 0;
    cd_test_row("%s %s, norm=%s, %u of %u ranks, %d samples each", s.model, s.options, s.norm,
                (unsigned)s.together, (unsigned)s.world, (int)s.share);
    lab_run(&b);
    for (uint32_t r = 0; r < s.world; r++) most = fmax(most, b.out[r][0]);
    return most;
}

TEST(synchronised_batch_norm, under_ddp_is_batch_norm_on_the_whole_batch) /* TI-E-06 */
{
    static const setting rows[] = {
        /* clang-format off */
        {"mlp", "widths=4:6:5:3,activation=tanh", 2, 2, 3, "sync"},
        {"mlp", "widths=4:6:5:3,activation=tanh", 3, 3, 2, "sync"},
        /* one sample per process: it has no statistics alone */
        {"mlp", "widths=4:6:5:3,activation=tanh", 4, 4, 1, "sync"},
        {"mlp", "widths=4:6:5:3,activation=tanh", 4, 2, 3, "sync"}, /* one group for each half */
        {"cnn", "channels=2:3:4,size=4", 2, 2, 2, "sync"},
        /* clang-format on */
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        assert_true(run(rows[k]) <= BOUND);
        setting alone = rows[k];
        alone.norm = "batch"; /* the twin: statistics of the share alone */
        if (alone.share > 1) assert_true(run(alone) > 1e-2);
    }
}

LAB(synchronised_batch_norm, communicates_in_training_and_not_in_evaluation, 2) /* TI-A-11 */
{
    static const setting s = {"cnn", "channels=2:3:4,size=4", 2, 2, 2, "sync"};
    lane_model m;
    create(l, &s, s.norm, &m);
    exchange_over(l, 2, &m);
    lane_wrap(l);
    for (int training = 1; training >= 0; training--) {
        m.graph->training = training;
        lane_mark(l);
        CHECK_OK(cddp_ddp_forward_begin(l->ddp, training, &l->err));
        cd_graph_begin(m.graph);
        (void)run_forward(l, &m, l->r * 2, 2);
        CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
        /* one for each of the two layers */
        CHECK(lane_posts(l, CDDP_OP_ALLGATHER) == (training ? 2 : 0));
        CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == 0);
    }
    lane_model_destroy(l, &m);
}

TEST_MAIN()
