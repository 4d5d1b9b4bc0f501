/* SPDX-License-Identifier: Apache-2.0 */
/* Trains GPT-2 on W ranks, and says what it does to whoever records it:
**
**     train_gpt2_ddp --ranks 4 --record many.db     four processes on this machine
**     mpirun -n 4 train_gpt2_ddp --record many.db   this rank of a job; also under torchrun or srun
**
** Each rank computes its sequences of the batch, one per micro-step. DDP averages the gradients
** while the last backward still runs. */
#include "settings.h"

#include <cddp/cddp.h>
#include <cddp/device.h>
#include <cddp/init.h>
#include <cddp/record.h>
#include <cddp/registry.h>

#include <stdlib.h>
#include <string.h>

#define RATE 0.003f

typedef struct training {
    settings settings;
    gpt2 model;
    int *tokens; /* (context + 1) */
    int rank, ranks;
    cddp_registry *hooks;
    cddp_ddp *ddp;
    cddp_grad grads[GPT2_PARAMETERS_MAX];
    bool is_last;       /* micro-step of the step */
    cddp_status status; /* of the first call that failed */
    cddp_error err;
} training;

/* A parameter as cddp sees it. */
static cddp_tensor view(const gpt2_parameter *q, float *values)
{
    return cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F32, q->sizes,
                          (uint32_t)q->dimensions);
}

/* A gradient is dropped after a step, and lies where DDP puts it: a new one begins with zeros. */
static void define_gradients(training *t)
{
    for (int p = 0; t->status == CDDP_OK && p < t->model.parameter_count; p++) {
        gpt2_parameter *q = &t->model.parameters[p];
        const cddp_tensor like = view(q, q->values);
        const bool is_new = t->grads[p].kind == CDDP_GRAD_UNDEFINED;
        t->status = cddp_grad_define(&t->grads[p], &like, &t->err);
        q->gradient = (float *)t->grads[p].value.storage + t->grads[p].value.offset;
        if (is_new && t->status == CDDP_OK) memset(q->gradient, 0, q->count * sizeof(float));
    }
}

static void drop_gradients(training *t)
{
    cddp_record_zero_grad(true);
    for (int p = 0; p < t->model.parameter_count; p++) cddp_grad_drop(&t->grads[p]);
}

/* Called by the backward, from the last layer to the first. */
static void gradient_is_ready(void *context, int p)
{
    training *t = context;
    if (t->is_last || t->settings.reproducible) cddp_record_gradient((size_t)p, &t->grads[p].value);
    if (t->status == CDDP_OK) t->status = cddp_ddp_mark_variable_ready(t->ddp, (size_t)p, &t->err);
}

/* The forward and the backward of one sequence. */
static float micro_step(training *t, int64_t id, float factor)
{
    float loss = 0;
    cddp_record_samples(0, &id, 1);
    if (t->status == CDDP_OK) t->status = cddp_ddp_forward_begin(t->ddp, true, &t->err);
    if (t->status == CDDP_OK) t->status = cddp_ddp_forward_end(t->ddp, NULL, &t->err);
    define_gradients(t);
    if (t->status != CDDP_OK) return 0;
    gpt2_text(&t->model.config, id, t->tokens);
    loss = gpt2_forward_backward(&t->model, t->tokens, factor);
    if (t->status == CDDP_OK) t->status = cddp_ddp_backward_end(t->ddp, &t->err);
    return loss;
}

/* One step: the mean gradient of the batch, then the optimizer. */
static int train_step(training *t, int step, float *loss)
{
    gpt2 *m = &t->model;
    const int batch = t->settings.batch, mine = batch / t->ranks;
    /* DDP divides by the ranks; the reproducible sum by the sequences of all of them. */
    const float factor = t->settings.reproducible ? 1 : 1 / (float)mine;
    *loss = 0;
    cddp_record_step_begin((uint64_t)step);
    drop_gradients(t);
    for (int k = 0; k < mine; k++) {
        const int64_t id = (int64_t)step * batch + k * t->ranks + t->rank;
        t->is_last = k + 1 == mine;
        cddp_record_micro_step((uint64_t)k);
        if (!t->is_last) cddp_ddp_no_sync_begin(t->ddp);
        *loss += micro_step(t, id, factor) / (float)mine;
        if (!t->is_last) cddp_ddp_no_sync_end(t->ddp);
    }
    if (t->status != CDDP_OK) return 1;
    cddp_record_update update = cddp_record_update_default();
    update.name = "adamw";
    update.lr = RATE;
    cddp_record_optimizer_step(&update);
    for (int p = 0; p < m->parameter_count; p++) {
        gpt2_parameter *q = &m->parameters[p];
        const cddp_tensor updated = view(q, q->values);
        q->gradient = (float *)t->grads[p].value.storage + t->grads[p].value.offset;
        cddp_record_optimizer_touch(0, (size_t)p, &t->grads[p].value);
        gpt2_update(q, step + 1, RATE);
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, (size_t)p, &updated);
    }
    return 0;
}

/* Every rank loads: DDP gives all of them rank 0's weights, but nobody gives them its moments. */
static int resume(training *t, int *step)
{
    FILE *file = t->settings.load != NULL ? fopen(t->settings.load, "rb") : NULL;
    const int failed =
        t->settings.load != NULL && (file == NULL || gpt2_load(&t->model, step, file));
    if (file != NULL) fclose(file);
    if (failed) fprintf(stderr, "%s is no checkpoint of this model\n", t->settings.load);
    return failed;
}

/* All ranks have the same weights and moments: one of them writes. */
static int save(const training *t, int step)
{
    if (t->rank != 0) return 0;
    FILE *file = t->settings.save != NULL ? fopen(t->settings.save, "wb") : NULL;
    const int failed =
        t->settings.save != NULL && (file == NULL || gpt2_save(&t->model, step, file));
    const int unflushed = file != NULL && fclose(file) != 0;
    if (failed || unflushed) fprintf(stderr, "%s was not written\n", t->settings.save);
    return failed || unflushed;
}

static void record_parameters(training *t, cddp_event_enum_moment moment)
{
    for (int p = 0; p < t->model.parameter_count; p++) {
        const cddp_tensor now = view(&t->model.parameters[p], t->model.parameters[p].values);
        cddp_record_value(CDDP_WHAT_PARAMETER, moment, (size_t)p, &now);
    }
}

/* The mean of the ranks' losses, for printing. */
static void average(training *t, cddp_group *group, float *loss)
{
    cddp_work *work = NULL;
    const int64_t one = 1;
    const cddp_tensor all = cddp_tensor_of(cddp_device_cpu(), loss, 0, CDDP_F32, &one, 1);
    t->status = cddp_group_allreduce(group, &all, CDDP_RED_SUM, &work, &t->err);
    if (t->status == CDDP_OK) t->status = cddp_work_wait(work, 0, &t->err);
    *loss /= (float)t->ranks;
}

static int train(training *t, cddp_group *group, int step)
{
    const int end = step + t->settings.steps;
    int failed = 0;
    stopwatch watch;
    record_parameters(t, CDDP_MOMENT_AFTER_INIT);
    stopwatch_begin(&watch);
    for (; !failed && step < end; step++) {
        float loss = 0;
        failed = train_step(t, step, &loss);
        if (!failed && !t->settings.quiet) average(t, group, &loss);
        if (!failed && !t->settings.quiet && t->rank == 0)
            printf("step %3d  loss %.5f\n", step, loss);
    }
    if (!failed && t->settings.quiet && t->rank == 0) stopwatch_print(&watch, t->settings.steps);
    return failed ? failed : save(t, end);
}

/* The exact sum of all sequences' gradients: each is given to the hook by itself. */
static void sum_exactly(training *t)
{
    t->status = cddp_registry_create(NULL, &t->hooks, &t->err);
    if (t->status == CDDP_OK)
        t->status =
            cddp_ddp_register_comm_hook(t->ddp, cddp_registry_find_hook(t->hooks, "reproducible"),
                                        NULL, NULL, &t->err);
}

static void wrap(training *t, cddp_group *group)
{
    cddp_parameter parameters[GPT2_PARAMETERS_MAX];
    for (int p = 0; p < t->model.parameter_count; p++) {
        const gpt2_parameter *q = &t->model.parameters[p];
        parameters[p] = (cddp_parameter){.name = q->name,
                                         .tensor = view(q, q->values),
                                         .grad = &t->grads[p],
                                         .requires_grad = true};
    }
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = parameters;
    options.parameter_count = (size_t)t->model.parameter_count;
    options.group = group;
    options.accumulate_in_hook = options.average_contributions = t->settings.reproducible != 0;
    t->status = cddp_ddp_create(&options, &t->ddp, &t->err);
    if (t->status == CDDP_OK && t->settings.reproducible) sum_exactly(t);
    t->model.ready = gradient_is_ready;
    t->model.ready_context = t;
}

static void release(training *t)
{
    cddp_ddp_destroy(t->ddp);
    cddp_registry_destroy(t->hooks);
    for (int p = 0; p < t->model.parameter_count; p++) cddp_grad_fini(&t->grads[p]);
    gpt2_destroy(&t->model);
    free(t->tokens);
}

/* What every rank runs. */
static cddp_status run(cddp_context *context, void *argument, cddp_error *err)
{
    cddp_group *group = cddp_context_group(context);
    training t = {.settings = *(const settings *)argument, .err = CDDP_ERROR_INIT};
    int step = 0;
    t.rank = (int)cddp_group_rank(group);
    t.ranks = (int)cddp_group_size(group);
    t.tokens = calloc((size_t)t.settings.model.context + 1, sizeof *t.tokens);
    int failed = t.tokens == NULL || gpt2_create(&t.model, &t.settings.model, 1) != 0;
    if (!failed) failed = resume(&t, &step);
    if (!failed) wrap(&t, group);
    if (!failed && t.status == CDDP_OK) failed = train(&t, group, step);
    release(&t);
    if (t.status != CDDP_OK) return cddp_error_set(err, t.status, "%s", t.err.message);
    return failed ? cddp_error_set(err, CDDP_E_IO, "rank %d gave up", t.rank) : CDDP_OK;
}

/* This process is one rank: whoever started it says which. */
static cddp_status join(settings *s, const cddp_init_options *options, cddp_error *err)
{
    cddp_context *context = NULL;
    cddp_status status = cddp_init_with(options, &context, err);
    if (status == CDDP_OK) status = run(context, s, err);
    cddp_fini(context);
    const cddp_status kept =
        cddp_record_close(status, err->message, status == CDDP_OK ? err : NULL);
    return status != CDDP_OK ? status : kept;
}

int main(int argc, char **argv)
{
    settings s;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_init_options options = {.size = sizeof options, .prints_plain = true};
    if (settings_read(&s, argc, argv) != 0) return 2;
    options.timeout_ns = (uint64_t)s.timeout * UINT64_C(1000000000);
    cddp_status status = CDDP_OK;
    if (s.record != NULL) status = cddp_record_open(s.record, NULL, &err);
    if (status == CDDP_OK)
        status = s.ranks > 0 ? cddp_run_ranks((uint32_t)s.ranks, &options, run, &s, &err)
                             : join(&s, &options, &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    return status != CDDP_OK;
}
