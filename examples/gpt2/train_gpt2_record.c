/* SPDX-License-Identifier: Apache-2.0 */
/* Trains GPT-2 in one process, and says what it does to whoever records it: CDDP_RECORD=one.db. */
#include "settings.h"

#include <cddp/record.h>
#include <cddp/device.h>

#include <stdlib.h>
#include <string.h>

#define RATE 0.003f

typedef struct training {
    settings settings;
    gpt2 model;
    int *tokens; /* (context + 1) */
} training;

/* A parameter, or its gradient, as cddp sees it. */
static cddp_tensor view(const gpt2_parameter *q, float *values)
{
    return cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F32, q->sizes,
                          (uint32_t)q->dimensions);
}

/* One step: the mean gradient of the batch, then the optimizer. */
static int train_step(training *t, int step, float *loss)
{
    gpt2 *m = &t->model;
    const int batch = t->settings.batch;
    *loss = 0;
    cddp_record_step_begin((uint64_t)step);
    cddp_record_zero_grad(false);
    for (int p = 0; p < m->parameter_count; p++)
        memset(m->parameters[p].gradient, 0, m->parameters[p].count * sizeof(float));
    for (int k = 0; k < batch; k++) {
        const int64_t id = (int64_t)step * batch + k;
        gpt2_text(&m->config, id, t->tokens);
        cddp_record_micro_step((uint64_t)k);
        cddp_record_samples(0, &id, 1);
        *loss += gpt2_forward_backward(m, t->tokens, 1 / (float)batch) / (float)batch;
    }
    for (int p = 0; p < m->parameter_count; p++) {
        const cddp_tensor gradient = view(&m->parameters[p], m->parameters[p].gradient);
        cddp_record_gradient((size_t)p, &gradient);
    }
    cddp_record_update update = cddp_record_update_default();
    update.name = "adamw";
    update.lr = RATE;
    cddp_record_optimizer_step(&update);
    for (int p = 0; p < m->parameter_count; p++) {
        gpt2_parameter *q = &m->parameters[p];
        const cddp_tensor gradient = view(q, q->gradient), updated = view(q, q->values);
        cddp_record_optimizer_touch(0, (size_t)p, &gradient);
        gpt2_update(q, step + 1, RATE);
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, (size_t)p, &updated);
    }
    return 0;
}

static int resume(training *t, int *step)
{
    FILE *file = t->settings.load != NULL ? fopen(t->settings.load, "rb") : NULL;
    const int failed =
        t->settings.load != NULL && (file == NULL || gpt2_load(&t->model, step, file));
    if (file != NULL) fclose(file);
    if (failed) fprintf(stderr, "%s is no checkpoint of this model\n", t->settings.load);
    return failed;
}

static int save(const training *t, int step)
{
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

static int train(training *t)
{
    int step = 0, failed = resume(t, &step);
    const int end = step + t->settings.steps;
    stopwatch watch;
    record_parameters(t, CDDP_MOMENT_AFTER_INIT);
    stopwatch_begin(&watch);
    for (; !failed && step < end; step++) {
        float loss = 0;
        failed = train_step(t, step, &loss);
        if (!failed && !t->settings.quiet) printf("step %3d  loss %.5f\n", step, loss);
    }
    cddp_record_storage_end();
    if (!failed && t->settings.quiet) stopwatch_print(&watch, t->settings.steps);
    return failed ? failed : save(t, end);
}

/* Memory for the gradients. */
static int define_gradients(training *t)
{
    int failed = 0;
    for (int p = 0; p < t->model.parameter_count; p++) {
        gpt2_parameter *q = &t->model.parameters[p];
        q->gradient = calloc(q->count, sizeof(float));
        failed |= q->gradient == NULL;
    }
    return failed;
}

static void release(training *t)
{
    for (int p = 0; p < t->model.parameter_count; p++) free(t->model.parameters[p].gradient);
    gpt2_destroy(&t->model);
    free(t->tokens);
}

static int run(training *t)
{
    t->tokens = calloc((size_t)t->settings.model.context + 1, sizeof *t->tokens);
    int failed = t->tokens == NULL || gpt2_create(&t->model, &t->settings.model, 1) != 0;
    if (!failed) failed = define_gradients(t);
    for (int p = 0; !failed && p < t->model.parameter_count; p++) {
        const gpt2_parameter *q = &t->model.parameters[p];
        const cddp_tensor values = view(q, q->values), gradient = view(q, q->gradient);
        cddp_record_parameter((size_t)p, q->name, &values);
        cddp_record_storage((size_t)p, &values, &gradient);
    }
    cddp_record_parameters_end();
    if (!failed) failed = train(t);
    release(t);
    return failed;
}

int main(int argc, char **argv)
{
    training t = {.tokens = NULL};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_record_options alone = cddp_record_options_default();
    if (settings_read_alone(&t.settings, argc, argv) != 0) return 2;
    alone.world_size = 1;
    if (t.settings.record != NULL && cddp_record_open(t.settings.record, &alone, &err) != CDDP_OK)
        fprintf(stderr, "%s\n", err.message);
    const int failed = run(&t);
    if (cddp_record_close(failed ? CDDP_E_IO : CDDP_OK, NULL, &err) != CDDP_OK)
        fprintf(stderr, "%s\n", err.message);
    return failed;
}
