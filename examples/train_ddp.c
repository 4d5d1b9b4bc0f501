/* SPDX-License-Identifier: Apache-2.0 */
/* The classifier, trained data-parallel on W ranks: train_single.c plus DDP.
**
**     train_ddp                one rank; or, under mpirun, srun or torchrun, this rank of the job
**     train_ddp 4              four processes on this machine, over Gloo
**     train_ddp 4 BACKEND      the same over another backend: its name, or the path of its module
**     train_ddp env BACKEND    this rank of a job, over that backend
**
** Every rank starts from different weights; DDP gives all of them rank 0's. Each computes the
** loss of its share of the batch, DDP averages gradients while backward still runs, and every rank
** takes the same step.
*/
#include "classifier.h"

#include <cddp/cddp.h>
#include <cddp/init.h>
#include <cddp/record.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct training {
    cddp_ddp *ddp;
    cddp_grad *grads;   /* (PARAMETERS) */
    cddp_status status; /* of the first mark_variable_ready that failed */
    cddp_error *err;
} training;

static void gradient_is_ready(void *context, size_t parameter)
{
    training *t = context;
    cddp_record_gradient(parameter, &t->grads[parameter].value);
    if (t->status == CDDP_OK) t->status = cddp_ddp_mark_variable_ready(t->ddp, parameter, t->err);
}

/* One step: forward and backward on this rank's share, then the optimizer on averaged gradients. */
static cddp_status train_step(training *t, classifier *model, const share *mine, double *loss)
{
    double *g[PARAMETERS];
    size_t count;
    const char *name;
    cddp_grad *grads = t->grads;
    cddp_record_step_begin(mine->step);
    cddp_record_zero_grad(true);
    cddp_status status = cddp_ddp_forward_begin(t->ddp, true, t->err);
    if (status == CDDP_OK) status = cddp_ddp_forward_end(t->ddp, NULL, t->err);
    for (size_t i = 0; status == CDDP_OK && i < PARAMETERS; i++) {
        int64_t n;
        double *p = classifier_parameter(model, i, &count, &name);
        n = (int64_t)count;
        cddp_tensor like = cddp_tensor_of(cddp_device_cpu(), p, 0, CDDP_F64, &n, 1);
        cddp_grad_drop(&grads[i]); /* zero_grad(set_to_none=True) */
        status = cddp_grad_define(&grads[i], &like, t->err);
        if (status == CDDP_OK) g[i] = (double *)grads[i].value.storage + grads[i].value.offset;
    }
    if (status != CDDP_OK) return status;
    *loss = classifier_loss_and_gradients(model, mine, g);
    if (t->status != CDDP_OK) return t->status;
    status = cddp_ddp_backward_end(t->ddp, t->err);
    if (status != CDDP_OK) return status; /* no rank steps on gradients that did not arrive */
    cddp_record_update update = cddp_record_update_default();
    update.lr = 0.5;
    cddp_record_optimizer_step(&update);
    for (size_t i = 0; i < PARAMETERS; i++) {
        double *p = classifier_parameter(model, i, &count, &name);
        const double *average = (double *)grads[i].value.storage + grads[i].value.offset;
        for (size_t k = 0; k < count; k++) p[k] -= 0.5 * average[k];
        const int64_t n = (int64_t)count;
        const cddp_tensor updated = cddp_tensor_of(cddp_device_cpu(), p, 0, CDDP_F64, &n, 1);
        cddp_record_optimizer_touch(0, i, &grads[i].value);
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, i, &updated);
    }
    return status;
}

/* The mean of the ranks' losses, for printing. */
static cddp_status average(cddp_group *group, double *value, cddp_error *err)
{
    cddp_work *work = NULL;
    const int64_t one = 1;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), value, 0, CDDP_F64, &one, 1);
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    *value /= cddp_group_size(group);
    return status;
}

static cddp_status train(cddp_group *group, cddp_error *err)
{
    classifier model;
    cddp_grad grads[PARAMETERS] = {{.kind = CDDP_GRAD_UNDEFINED}};
    cddp_parameter parameters[PARAMETERS];
    training t = {.grads = grads, .err = err};
    uint32_t rank = cddp_group_rank(group), world = cddp_group_size(group);
    classifier_init(&model, 1 + rank);
    for (size_t i = 0; i < PARAMETERS; i++) {
        size_t count;
        const char *name;
        double *p = classifier_parameter(&model, i, &count, &name);
        int64_t n = (int64_t)count;
        parameters[i] =
            (cddp_parameter){.name = name,
                             .grad = &grads[i],
                             .requires_grad = true,
                             .tensor = cddp_tensor_of(cddp_device_cpu(), p, 0, CDDP_F64, &n, 1)};
    }
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = parameters;
    options.parameter_count = PARAMETERS;
    options.group = group;
    /* gradients are born in their buckets: nothing is copied */
    options.gradient_as_bucket_view = true;
    cddp_status status = cddp_ddp_create(&options, &t.ddp, err);
    for (unsigned step = 0; status == CDDP_OK && step < STEPS; step++) {
        const share mine = {.step = step,
                            .first = rank,
                            .stride = world,
                            .context = &t,
                            .ready = gradient_is_ready};
        double loss = 0;
        status = train_step(&t, &model, &mine, &loss);
        if (status == CDDP_OK && step % 200 == 199) {
            status = average(group, &loss, err);
            if (rank == 0) printf("step %3u  loss %.9f\n", step + 1, loss);
        }
    }
    if (status == CDDP_OK && rank == 0)
        printf("accuracy %.3f  layer1.weight[0] %.9f  layer2.bias[0] %.9f\n",
               classifier_accuracy(&model), model.weight1[0], model.bias2[0]);
    cddp_ddp_destroy(t.ddp);
    for (size_t i = 0; i < PARAMETERS; i++) cddp_grad_fini(&grads[i]);
    return status;
}

/* What every rank runs. */
static cddp_status program(cddp_context *context, void *argument, cddp_error *err)
{
    const uint32_t world = cddp_group_size(cddp_context_group(context));
    (void)argument;
    if (BATCH % world != 0)
        return cddp_error_set(err, CDDP_E_CONFIG, "%u ranks cannot share a batch of %d evenly",
                              world, BATCH);
    return train(cddp_context_group(context), err);
}

/* This process is one rank, or all there is; whoever started it says which. */
static cddp_status join(const cddp_init_options *options, cddp_error *err)
{
    cddp_context *context = NULL;
    cddp_status status = cddp_init_with(options, &context, err);
    if (status == CDDP_OK) status = program(context, NULL, err);
    cddp_fini(context);
    const cddp_status kept =
        cddp_record_close(status, err->message, status == CDDP_OK ? err : NULL);
    return status != CDDP_OK ? status : kept;
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_init_options options = {.size = sizeof options,
                                       .backend = argc > 2 ? argv[2] : NULL,
                                       .prints_plain = true};
    const bool joins = argc < 2 || strcmp(argv[1], "env") == 0;
    const int count = joins ? 1 : atoi(argv[1]);
    if (argc > 3 || count < 1 || BATCH % count != 0) {
        fprintf(stderr, "usage: %s [RANKS|env [BACKEND]], RANKS a divisor of %d\n", argv[0], BATCH);
        return 2;
    }
    const cddp_status status = joins
                                   ? join(&options, &err)
                                   : cddp_run_ranks((uint32_t)count, &options, program, NULL, &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    return status == CDDP_E_CONFIG || status == CDDP_E_ARG ? 2 : status != CDDP_OK;
}
