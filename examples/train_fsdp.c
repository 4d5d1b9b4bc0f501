/* SPDX-License-Identifier: Apache-2.0 */
/* The classifier, fully sharded on W ranks: each layer is a unit, of which a rank keeps a slice.
**
**     train_fsdp                one rank; or, under mpirun, srun or torchrun, this rank of the job
**     train_fsdp 4              four processes on this machine, over Gloo
**     train_fsdp 4 BACKEND      the same over another backend: its name, or the path of its module
**     train_fsdp env BACKEND    this rank of a job, over that backend
**
** A layer is gathered before its forward and freed after it, gathered again for its backward, and
** its gradient is reduced to slices. The optimizer sees slices alone. At the end rank 0 gets the
** whole model, layer by layer.
*/
#include "classifier.h"

#include <cddp/cddp.h>
#include <cddp/init.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOT, LAYER1, LAYER2, UNITS }; /* in the order of their modules */

typedef struct training {
    cddp_fsdp *fsdp;
    cddp_grad *grads;   /* (PARAMETERS) */
    classifier compute; /* what forward and backward read: copies of what is gathered */
    cddp_status status; /* of the first call inside of backward that failed */
    cddp_error *err;
} training;

static cddp_status forward_unit(training *t, uint32_t unit)
{
    size_t count;
    const char *name;
    cddp_status status = cddp_fsdp_pre_forward(t->fsdp, unit, true, t->err);
    for (size_t i = 2 * (unit - 1); status == CDDP_OK && i < 2 * unit; i++) {
        const cddp_tensor *full = cddp_fsdp_parameter(t->fsdp, i);
        double *to = classifier_parameter(&t->compute, i, &count, &name);
        memcpy(to, (const double *)full->storage + full->offset, count * sizeof *to);
    }
    if (status == CDDP_OK) status = cddp_fsdp_post_forward(t->fsdp, unit, true, t->err);
    return status;
}

static cddp_status forward(training *t)
{
    cddp_status status = cddp_fsdp_pre_forward(t->fsdp, ROOT, true, t->err);
    if (status == CDDP_OK) status = forward_unit(t, LAYER1);
    if (status == CDDP_OK) status = forward_unit(t, LAYER2);
    if (status == CDDP_OK) status = cddp_fsdp_post_forward(t->fsdp, ROOT, true, t->err);
    return status;
}

/* Where gradients are made: slices of the unit's gradient. */
static cddp_status begin_backward(training *t, uint32_t unit, double *g[PARAMETERS])
{
    cddp_status status = cddp_fsdp_pre_backward(t->fsdp, unit, t->err);
    for (size_t i = 2 * (unit - 1); status == CDDP_OK && i < 2 * unit; i++) {
        status = cddp_grad_define(&t->grads[i], cddp_fsdp_parameter(t->fsdp, i), t->err);
        if (status == CDDP_OK)
            g[i] = (double *)t->grads[i].value.storage + t->grads[i].value.offset;
    }
    return status;
}

/* The weight is a layer's last gradient: the unit is complete. */
static void gradient_is_ready(void *context, size_t parameter)
{
    training *t = context;
    const uint32_t unit = (uint32_t)parameter / 2 + 1;
    if (parameter % 2 == 0 && t->status == CDDP_OK)
        t->status = cddp_fsdp_post_backward(t->fsdp, unit, t->err);
}

/* Plain SGD, on this rank's slices. */
static cddp_status step(training *t)
{
    for (uint32_t unit = LAYER1; unit < UNITS; unit++) {
        cddp_parameter flat;
        const cddp_status status = cddp_fsdp_flat(t->fsdp, unit, &flat, t->err);
        if (status != CDDP_OK) return status;
        double *values = flat.tensor.storage;
        const double *gradient = flat.grad->value.storage;
        for (int64_t k = 0; k < cddp_tensor_numel(&flat.tensor); k++)
            values[k] -= 0.5 * gradient[k];
        cddp_grad_drop(flat.grad); /* zero_grad(set_to_none=True) */
    }
    return CDDP_OK;
}

static cddp_status train_step(training *t, const share *mine, double *loss)
{
    double *g[PARAMETERS];
    cddp_status status = forward(t);
    if (status == CDDP_OK) status = begin_backward(t, LAYER2, g);
    if (status == CDDP_OK) status = begin_backward(t, LAYER1, g);
    if (status != CDDP_OK) return status;
    *loss = classifier_loss_and_gradients(&t->compute, mine, g);
    if (t->status != CDDP_OK) return t->status;
    status = cddp_fsdp_backward_end(t->fsdp, t->err);
    return status == CDDP_OK ? step(t) : status;
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

static cddp_status keep(void *context, const cddp_fsdp_entry *entry, cddp_error *err)
{
    size_t count;
    const char *name;
    double *to = classifier_parameter(context, entry->ordinal, &count, &name);
    (void)err;
    memcpy(to, (const double *)entry->tensor.storage + entry->tensor.offset, count * sizeof *to);
    return CDDP_OK;
}

static cddp_status print_model(cddp_fsdp *fsdp, uint32_t rank, cddp_error *err)
{
    classifier whole;
    const cddp_fsdp_sink sink = {.size = sizeof sink,
                                 .entry = keep,
                                 .context = &whole,
                                 .rank0_only = true};
    const cddp_status status = cddp_fsdp_full_state(fsdp, &sink, err);
    if (status == CDDP_OK && rank == 0)
        printf("accuracy %.3f  layer1.weight[0] %.9f  layer2.bias[0] %.9f\n",
               classifier_accuracy(&whole), whole.weight1[0], whole.bias2[0]);
    return status;
}

/* The program's own copy of the model is gone when this returns. */
static cddp_status wrap(training *t, cddp_group *group)
{
    static const char *const layers[] = {"layer1", "layer2"};
    classifier model;
    cddp_parameter parameters[PARAMETERS];
    classifier_init(&model, 1 + cddp_group_rank(group));
    for (size_t i = 0; i < PARAMETERS; i++) {
        size_t count;
        const char *name;
        double *p = classifier_parameter(&model, i, &count, &name);
        int64_t n = (int64_t)count;
        parameters[i] =
            (cddp_parameter){.name = name,
                             .grad = &t->grads[i],
                             .requires_grad = true,
                             .tensor = cddp_tensor_of(cddp_device_cpu(), p, 0, CDDP_F64, &n, 1)};
    }
    cddp_fsdp_options options = cddp_fsdp_options_default();
    options.parameters = parameters;
    options.parameter_count = PARAMETERS;
    options.group = group;
    options.sync_module_states = true; /* every rank starts from rank 0's weights */
    options.wrap.kind = CDDP_FSDP_WRAP_NAMES;
    options.wrap.words = layers;
    options.wrap.word_count = 2;
    return cddp_fsdp_create(&options, &t->fsdp, t->err);
}

static cddp_status train(cddp_group *group, cddp_error *err)
{
    cddp_grad grads[PARAMETERS] = {{.kind = CDDP_GRAD_UNDEFINED}};
    training t = {.grads = grads, .err = err};
    const uint32_t rank = cddp_group_rank(group), world = cddp_group_size(group);
    cddp_status status = wrap(&t, group);
    for (unsigned k = 0; status == CDDP_OK && k < STEPS; k++) {
        const share mine = {
            .step = k, .first = rank, .stride = world, .context = &t, .ready = gradient_is_ready};
        double loss = 0;
        status = train_step(&t, &mine, &loss);
        if (status == CDDP_OK && k % 200 == 199) {
            status = average(group, &loss, err);
            if (rank == 0) printf("step %3u  loss %.9f\n", k + 1, loss);
        }
    }
    if (status == CDDP_OK) status = print_model(t.fsdp, rank, err);
    cddp_fsdp_destroy(t.fsdp);
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
    return status;
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
