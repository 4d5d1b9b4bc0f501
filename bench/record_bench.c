/* SPDX-License-Identifier: Apache-2.0 */
/* What a recording at level digest costs a transformer's step.
**
**     CDDP_BACKEND_DIR=… record_bench [RANKS [TOKENS]]
**
** Four blocks of GPT-2's linear layers (width 256), forward and backward in plain C, an update by
** SGD, all with the calls of cddp/record.h. One process records, the other does not, in turns; the
** ratio is that of the processor time of rank 0, which other work on the machine changes little.
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/cddp.h"
#include "cddp/init.h"
#include "cddp/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 256, BLOCKS = 4, LINEARS = 4, PARAMETERS = BLOCKS * LINEARS, STEPS = 8, ROUNDS = 3 };
static const int64_t shapes[LINEARS][2] = {{WIDTH, 3 * WIDTH},
                                           {WIDTH, WIDTH},
                                           {WIDTH, 4 * WIDTH},
                                           {4 * WIDTH, WIDTH}};

typedef struct model {
    cddp_ddp *ddp;
    float *weights[PARAMETERS], *inputs[PARAMETERS], *gradient, *scratch; /* of an output */
    cddp_grad grads[PARAMETERS];
    cddp_tensor tensors[PARAMETERS];
    int tokens;
} model;

static const int64_t *shape_of(size_t p) { return shapes[p % LINEARS]; }

/* y (t, n) += x (t, k) · w (k, n) */
static void multiply(float *y, const float *x, const float *w, int64_t t, int64_t k, int64_t n)
{
    for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < k; j++)
            for (int64_t c = 0; c < n; c++) y[i * n + c] += x[i * k + j] * w[j * n + c];
}

static cddp_status backward(model *m, size_t p, cddp_error *err)
{
    const int64_t k = shape_of(p)[0], n = shape_of(p)[1];
    cddp_status status = cddp_grad_define(&m->grads[p], &m->tensors[p], err);
    if (status != CDDP_OK) return status;
    float *g = (float *)m->grads[p].value.storage + m->grads[p].value.offset;
    memset(g, 0, (size_t)(k * n) * sizeof *g);
    for (int64_t i = 0; i < m->tokens; i++) /* of the weights: xᵀ · dy */
        for (int64_t j = 0; j < k; j++)
            for (int64_t c = 0; c < n; c++)
                g[j * n + c] += m->inputs[p][i * k + j] * m->gradient[i * n + c];
    memset(m->scratch, 0, (size_t)(m->tokens * n) * sizeof *m->scratch);
    multiply(m->scratch, m->inputs[p], m->weights[p], m->tokens, k, n); /* as long as of x */
    cddp_record_gradient(p, &m->grads[p].value);
    return cddp_ddp_mark_variable_ready(m->ddp, p, err);
}

static cddp_status step(model *m, uint64_t number, cddp_error *err)
{
    cddp_record_step_begin(number);
    cddp_record_zero_grad(true);
    for (size_t p = 0; p < PARAMETERS; p++) cddp_grad_drop(&m->grads[p]);
    cddp_status status = cddp_ddp_forward_begin(m->ddp, true, err);
    for (size_t p = 0; p < PARAMETERS; p++)
        multiply(m->scratch, m->inputs[p], m->weights[p], m->tokens, shape_of(p)[0],
                 shape_of(p)[1]);
    for (int64_t i = 0; i < (int64_t)m->tokens * 4 * WIDTH; i++) m->gradient[i] = 0.001f;
    if (status == CDDP_OK) status = cddp_ddp_forward_end(m->ddp, NULL, err);
    for (size_t p = PARAMETERS; status == CDDP_OK && p-- > 0;) status = backward(m, p, err);
    if (status == CDDP_OK) status = cddp_ddp_backward_end(m->ddp, err);
    cddp_record_update update = cddp_record_update_default();
    cddp_record_optimizer_step(&update);
    for (size_t p = 0; status == CDDP_OK && p < PARAMETERS; p++) {
        const float *g = (const float *)m->grads[p].value.storage + m->grads[p].value.offset;
        const int64_t count = cddp_tensor_numel(&m->tensors[p]);
        for (int64_t i = 0; i < count; i++) m->weights[p][i] -= 1e-6f * g[i];
        cddp_record_optimizer_touch(0, p, &m->grads[p].value);
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, p, &m->tensors[p]);
    }
    return status;
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static cddp_status train(cddp_context *context, void *argument, cddp_error *err)
{
    const int *tokens = argument;
    static const char *const names[PARAMETERS] = {"0", "1", "2",  "3",  "4",  "5",  "6",  "7",
                                                  "8", "9", "10", "11", "12", "13", "14", "15"};
    cddp_parameter parameters[PARAMETERS];
    model m = {.tokens = *tokens};
    cddp_status status = CDDP_OK;
    m.gradient = calloc((size_t)m.tokens * 4 * WIDTH, sizeof(float));
    m.scratch = calloc((size_t)m.tokens * 4 * WIDTH, sizeof(float));
    for (size_t p = 0; p < PARAMETERS; p++) {
        const size_t count = (size_t)(shape_of(p)[0] * shape_of(p)[1]);
        m.weights[p] = calloc(count, sizeof(float));
        m.inputs[p] = calloc((size_t)(m.tokens * shape_of(p)[0]), sizeof(float));
        for (int64_t i = 0; i < m.tokens * shape_of(p)[0]; i++)
            m.inputs[p][i] = (float)(i % 5) * 0.01f;
        for (size_t i = 0; i < count; i++) m.weights[p][i] = (float)(i % 7) * 0.01f;
        m.tensors[p] = cddp_tensor_of(cddp_device_cpu(), m.weights[p], 0, CDDP_F32, shape_of(p), 2);
        parameters[p] = (cddp_parameter){.name = names[p],
                                         .tensor = m.tensors[p],
                                         .grad = &m.grads[p],
                                         .requires_grad = true};
    }
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = parameters;
    options.parameter_count = PARAMETERS;
    options.group = cddp_context_group(context);
    if (status == CDDP_OK) status = cddp_ddp_create(&options, &m.ddp, err);
    double best = 1e9;
    for (uint64_t s = 0; status == CDDP_OK && s < STEPS; s++) {
        const double before = processor_seconds();
        status = step(&m, s, err);
        const double now = processor_seconds() - before;
        best = now < best ? now : best;
    }
    if (cddp_context_rank(context)->rank == 0) printf("%.6f\n", best);
    cddp_ddp_destroy(m.ddp);
    for (size_t p = 0; p < PARAMETERS; p++) {
        cddp_grad_fini(&m.grads[p]);
        free(m.weights[p]);
        free(m.inputs[p]);
    }
    free(m.gradient);
    free(m.scratch);
    return status;
}

/* The best step of rank 0, in seconds; the process that starts ranks reads what it prints. */
static double run(const char *program, const char *ranks, const char *tokens, const char *path)
{
    char line[1200];
    double seconds = 0;
    snprintf(line, sizeof line, "'%s' %s %s '%s'", program, ranks, tokens, path);
    FILE *pipe = popen(line, "r");
    if (pipe == NULL || fscanf(pipe, "%lf", &seconds) != 1) seconds = 0;
    if (pipe != NULL) pclose(pipe);
    return seconds;
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    const char *ranks = argc > 1 ? argv[1] : "2", *tokens = argc > 2 ? argv[2] : "256";
    if (argc > 3) {
        int count = atoi(tokens);
        const cddp_init_options options = {.size = sizeof options, .prints_plain = true};
        cddp_status status = argv[3][0] != '\0' ? cddp_record_open(argv[3], NULL, &err) : CDDP_OK;
        if (status == CDDP_OK)
            status = cddp_run_ranks((uint32_t)atoi(ranks), &options, train, &count, &err);
        if (status == CDDP_OK) return 0;
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    char path[200];
    const char *temporary = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.150s/record_bench.db", temporary != NULL ? temporary : "/tmp");
    double plain = 1e9, recorded = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        const double a = run(argv[0], ranks, tokens, ""), b = run(argv[0], ranks, tokens, path);
        plain = a < plain ? a : plain;
        recorded = b < recorded ? b : recorded;
    }
    printf("%s ranks, %s tokens: %.1f ms a step, %.1f ms recorded, %.3f times\n", ranks, tokens,
           plain * 1e3, recorded * 1e3, plain > 0 ? recorded / plain : 0);
    return 0;
}
