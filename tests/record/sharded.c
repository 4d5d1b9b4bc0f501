/* SPDX-License-Identifier: Apache-2.0 */
/* A program with sharded units that says what it does, and its mistakes:
**
**     recorded_sharded RANKS MISTAKE
**
** Two units below the root, a parameter each; every step has two micro-steps, the first inside
** no_sync. MISTAKE "none" is the right program.
*/
#include <cddp/cddp.h>
#include <cddp/fsdp.h>
#include <cddp/init.h>
#include <cddp/record.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMETERS = 3, COUNT = 8, UNITS = 3, STEPS = 3, MICRO_STEPS = 2 };

typedef struct training {
    const char *mistake;
    cddp_fsdp *fsdp;
    cddp_grad grads[PARAMETERS];
    uint32_t rank, world_size;
} training;

static bool makes(const training *t, const char *mistake)
{
    return strcmp(t->mistake, mistake) == 0;
}

/* Mistakes are made in step 1. */
static bool makes_in(const training *t, const char *mistake, int step)
{
    return step == 1 && makes(t, mistake);
}

/* Unit 0 is the root, with the last parameter. */
static size_t parameter_of(uint32_t unit) { return unit == 0 ? PARAMETERS - 1 : unit - 1; }

static cddp_status run_unit(const training *t, uint32_t unit, int step, cddp_error *err)
{
    if (makes_in(t, "forgets_forward", step) && unit == 2) return CDDP_OK;
    cddp_status status = cddp_fsdp_pre_forward(t->fsdp, unit, true, err);
    if (status != CDDP_OK) return status;
    if (makes_in(t, "forgets_forward_end", step) && unit == 2) return CDDP_OK;
    if (makes_in(t, "forward_twice", step)) status = cddp_fsdp_pre_forward(t->fsdp, 1, true, err);
    return status == CDDP_OK ? cddp_fsdp_post_forward(t->fsdp, unit, true, err) : status;
}

static cddp_status forward(const training *t, int step, cddp_error *err)
{
    cddp_status status = cddp_fsdp_pre_forward(t->fsdp, 0, true, err);
    for (uint32_t unit = 1; status == CDDP_OK && unit < UNITS; unit++)
        status = run_unit(t, unit, step, err);
    return status == CDDP_OK ? cddp_fsdp_post_forward(t->fsdp, 0, true, err) : status;
}

static cddp_status backward_unit(training *t, uint32_t unit, int step, cddp_error *err)
{
    const size_t p = parameter_of(unit);
    cddp_status status = CDDP_OK;
    if (!makes_in(t, "forgets_backward", step) || unit != 1)
        status = cddp_fsdp_pre_backward(t->fsdp, unit, err);
    const cddp_tensor *full = cddp_fsdp_parameter(t->fsdp, p);
    if (status == CDDP_OK && full == NULL)
        return cddp_error_set(err, CDDP_E_STATE, "parameter %zu is not there in its backward", p);
    if (status == CDDP_OK) status = cddp_grad_define(&t->grads[p], full, err);
    if (status != CDDP_OK) return status;
    double *g = (double *)t->grads[p].value.storage + t->grads[p].value.offset;
    for (int i = 0; i < COUNT; i++) g[i] = step + i + (double)t->rank;
    cddp_record_gradient(p, &t->grads[p].value);
    if (makes_in(t, "forgets_backward_end", step) && unit == 1) return CDDP_OK;
    status = cddp_fsdp_post_backward(t->fsdp, unit, err);
    if (status == CDDP_OK && makes_in(t, "backward_end_twice", step))
        status = cddp_fsdp_post_backward(t->fsdp, unit, err);
    return status;
}

static cddp_status micro_step(training *t, int step, int micro, cddp_error *err)
{
    const int64_t sample = ((int64_t)step * MICRO_STEPS + micro) * t->world_size + t->rank;
    cddp_record_micro_step((uint64_t)micro);
    cddp_record_samples(0, &sample, 1);
    cddp_status status = forward(t, step, err);
    for (uint32_t unit = UNITS; status == CDDP_OK && unit-- > 0;)
        status = backward_unit(t, unit, step, err);
    return status == CDDP_OK ? cddp_fsdp_backward_end(t->fsdp, err) : status;
}

static cddp_status update(const training *t, int step, cddp_error *err)
{
    cddp_record_update how = cddp_record_update_default();
    how.name = "sgd";
    how.lr = makes(t, "rates_differ") && t->rank == 1 ? 0.2 : 0.1;
    how.is_skipped = makes_in(t, "skips", step) && t->rank == 1;
    cddp_record_optimizer_step(&how);
    for (uint32_t unit = 0; unit < UNITS && !how.is_skipped; unit++) {
        cddp_parameter flat;
        const cddp_status status = cddp_fsdp_flat(t->fsdp, unit, &flat, err);
        if (status != CDDP_OK) return status;
        const bool is_there = flat.grad->kind == CDDP_GRAD_DENSE;
        double *values = (double *)flat.tensor.storage + flat.tensor.offset;
        const double *g = (const double *)flat.grad->value.storage + flat.grad->value.offset;
        for (int64_t i = 0; is_there && i < cddp_tensor_numel(&flat.tensor); i++)
            values[i] -= how.lr * g[i];
        cddp_record_optimizer_touch(0, parameter_of(unit), is_there ? &flat.grad->value : NULL);
        cddp_grad_drop(flat.grad);
    }
    return CDDP_OK;
}

static cddp_status train_step(training *t, int step, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_record_step_begin((uint64_t)step);
    cddp_record_zero_grad(true);
    for (int micro = 0; status == CDDP_OK && micro < MICRO_STEPS; micro++) {
        const bool is_open = micro + 1 < MICRO_STEPS || makes_in(t, "window_stays_open", step);
        if (is_open) status = cddp_fsdp_no_sync_begin(t->fsdp, err);
        if (status == CDDP_OK) status = micro_step(t, step, micro, err);
        if (status == CDDP_OK && is_open) status = cddp_fsdp_no_sync_end(t->fsdp, err);
    }
    return status == CDDP_OK ? update(t, step, err) : status;
}

static cddp_status train(cddp_context *context, void *argument, cddp_error *err)
{
    cddp_group *group = cddp_context_group(context);
    training t = {.mistake = argument,
                  .rank = cddp_group_rank(group),
                  .world_size = cddp_group_size(group)};
    static const char *const names[PARAMETERS] = {"a.w", "b.w", "c"}, *const units[] = {"a", "b"};
    static double values[PARAMETERS][COUNT];
    cddp_parameter parameters[PARAMETERS];
    const int64_t count = COUNT;
    for (size_t p = 0; p < PARAMETERS; p++)
        parameters[p] = (cddp_parameter){.name = names[p],
                                         .grad = &t.grads[p],
                                         .requires_grad = true,
                                         .tensor = cddp_tensor_of(cddp_device_cpu(), values[p], 0,
                                                                  CDDP_F64, &count, 1)};
    cddp_fsdp_options options = cddp_fsdp_options_default();
    options.parameters = parameters;
    options.parameter_count = PARAMETERS;
    options.group = group;
    options.sync_module_states = true;
    options.wrap.kind = CDDP_FSDP_WRAP_NAMES;
    options.wrap.words = units;
    options.wrap.word_count = 2;
    cddp_status status = cddp_fsdp_create(&options, &t.fsdp, err);
    for (int step = 0; status == CDDP_OK && step < STEPS; step++)
        status = train_step(&t, step, err);
    cddp_fsdp_destroy(t.fsdp);
    for (size_t p = 0; p < PARAMETERS; p++) cddp_grad_fini(&t.grads[p]);
    return status;
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (argc != 3) {
        fprintf(stderr, "usage: %s RANKS MISTAKE\n", argv[0]);
        return 2;
    }
    const cddp_init_options options = {.size = sizeof options, .timeout_ns = UINT64_C(4000000000)};
    const cddp_status status =
        cddp_run_ranks((uint32_t)atoi(argv[1]), &options, train, argv[2], &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    return status != CDDP_OK;
}
