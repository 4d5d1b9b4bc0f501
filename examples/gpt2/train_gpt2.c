/* SPDX-License-Identifier: Apache-2.0 */
/* Trains GPT-2 in one process. train_gpt2_record.c is this program with its run recorded, and
** train_gpt2_ddp.c is that one on W ranks; record.diff and ddp.diff are what was changed. */
#include "settings.h"

#include <stdlib.h>
#include <string.h>

#define RATE 0.003f

typedef struct training {
    settings settings;
    gpt2 model;
    int *tokens; /* (context + 1) */
} training;

/* One step: the mean gradient of the batch, then the optimizer. */
static int train_step(training *t, int step, float *loss)
{
    gpt2 *m = &t->model;
    const int batch = t->settings.batch;
    *loss = 0;
    for (int p = 0; p < m->parameter_count; p++)
        memset(m->parameters[p].gradient, 0, m->parameters[p].count * sizeof(float));
    for (int k = 0; k < batch; k++) {
        gpt2_text(&m->config, (int64_t)step * batch + k, t->tokens);
        *loss += gpt2_forward_backward(m, t->tokens, 1 / (float)batch) / (float)batch;
    }
    for (int p = 0; p < m->parameter_count; p++) {
        gpt2_parameter *q = &m->parameters[p];
        gpt2_update(q, step + 1, RATE);
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

static int train(training *t)
{
    int step = 0, failed = resume(t, &step);
    const int end = step + t->settings.steps;
    stopwatch watch;
    stopwatch_begin(&watch);
    for (; !failed && step < end; step++) {
        float loss = 0;
        failed = train_step(t, step, &loss);
        if (!failed && !t->settings.quiet) printf("step %3d  loss %.5f\n", step, loss);
    }
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
    if (!failed) failed = train(t);
    release(t);
    return failed;
}

int main(int argc, char **argv)
{
    training t = {.tokens = NULL};
    if (settings_read_alone(&t.settings, argc, argv) != 0) return 2;
    return run(&t);
}
