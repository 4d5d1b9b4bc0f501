/* SPDX-License-Identifier: Apache-2.0 */
/* A program with two wrappers in one process, as one that trains a generator and a discriminator:
**
**     recorded_pair RANKS MISTAKE
**
** Both have parameters "w" and "b", their own options and their own optimizer. MISTAKE "none" is
** the right program: in every step first the one trains, then the other.
*/
#define _POSIX_C_SOURCE 200809L
#include <cddp/cddp.h>
#include <cddp/init.h>
#include <cddp/record.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODELS = 2, PARAMETERS = 2, WEIGHTS = 300, BIASES = 8, STEPS = 4 };

typedef struct model {
    cddp_ddp *ddp;
    cddp_group *group;
    double values[PARAMETERS][WEIGHTS];
    cddp_grad grads[PARAMETERS];
    cddp_tensor tensors[PARAMETERS];
} model;

typedef struct training {
    const char *mistake;
    cddp_group *group, *second; /* second: of the second model, with "own_groups" */
    model models[MODELS];
    uint32_t rank, world_size;
} training;

static bool makes(const training *t, const char *mistake)
{
    return strcmp(t->mistake, mistake) == 0;
}

static void say(const training *t, int number)
{
    if (!makes(t, "unsaid")) cddp_record_wrapper(makes(t, "says_first") ? 0 : (size_t)number);
}

/* ---- construction ---- */

static cddp_status wrap(training *t, int number, cddp_error *err)
{
    static const char *const names[PARAMETERS] = {"w", "b"};
    static const int64_t sizes[PARAMETERS] = {WEIGHTS, BIASES};
    model *m = &t->models[number];
    cddp_parameter parameters[PARAMETERS];
    for (size_t p = 0; p < PARAMETERS; p++) {
        for (int64_t i = 0; i < sizes[p]; i++) m->values[p][i] = 0.5 * (double)(number + 1);
        m->tensors[p] = cddp_tensor_of(cddp_device_cpu(), m->values[p], 0, CDDP_F64, &sizes[p], 1);
        parameters[p] = (cddp_parameter){.name = names[p],
                                         .tensor = m->tensors[p],
                                         .grad = &m->grads[p],
                                         .requires_grad = true};
    }
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = parameters;
    options.parameter_count = PARAMETERS;
    options.group = m->group = number == 1 && t->second != NULL ? t->second : t->group;
    const bool is_like_first = strncmp(t->mistake, "alike", 5) == 0;
    options.bucket_cap_mb = number == 0 && !is_like_first ? 0.00005 : 25;
    options.gradient_as_bucket_view = number == 1;
    return cddp_ddp_create(&options, &m->ddp, err);
}

static cddp_status open_second(training *t, cddp_error *err)
{
    if (!makes(t, "own_groups")) return CDDP_OK;
    const uint32_t members[] = {0, 1, 2, 3};
    const cddp_group_subset subset = {.size = sizeof subset,
                                      .name = "of the second",
                                      .members = members,
                                      .member_count = t->world_size};
    return cddp_group_create_subset(t->group, &subset, &t->second, err);
}

/* ---- one step ---- */

/* The second one accumulates in even steps, and is updated in odd ones. */
static bool accumulates(const training *t, int number)
{
    return makes(t, "second_accumulates") && number == 1;
}

static cddp_status begin(training *t, int number, int step, cddp_error *err)
{
    model *m = &t->models[number];
    const bool keeps = accumulates(t, number) && step % 2 == 1;
    say(t, number);
    if (!keeps) cddp_record_zero_grad(true);
    for (size_t p = 0; p < PARAMETERS && !keeps; p++) cddp_grad_drop(&m->grads[p]);
    const cddp_status status = cddp_ddp_forward_begin(m->ddp, true, err);
    return status == CDDP_OK ? cddp_ddp_forward_end(m->ddp, NULL, err) : status;
}

/* Anything that depends on rank, step and values. */
static cddp_status contribute(training *t, int number, size_t p, int step, cddp_error *err)
{
    model *m = &t->models[number];
    const int64_t count = cddp_tensor_numel(&m->tensors[p]);
    const bool is_new = m->grads[p].kind == CDDP_GRAD_UNDEFINED;
    const cddp_status status = cddp_grad_define(&m->grads[p], &m->tensors[p], err);
    if (status != CDDP_OK) return status;
    double *g = (double *)m->grads[p].value.storage + m->grads[p].value.offset;
    for (int64_t i = 0; i < count; i++)
        g[i] = (is_new ? 0 : g[i]) +
               0.125 * (double)((step * 5 + (int64_t)t->rank * 3 + number + i) % 7) +
               0.25 * m->values[p][i];
    say(t, number);
    cddp_record_gradient(p, &m->grads[p].value);
    return cddp_ddp_mark_variable_ready(m->ddp, p, err);
}

static cddp_status backward(training *t, int number, int step, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (size_t p = PARAMETERS; status == CDDP_OK && p-- > 0;)
        status = contribute(t, number, p, step, err);
    return status == CDDP_OK ? cddp_ddp_backward_end(t->models[number].ddp, err) : status;
}

static void update(training *t, int number, int step)
{
    model *m = &t->models[number];
    cddp_record_update how = cddp_record_update_default();
    how.name = "sgd";
    how.optimizer = 0;
    how.lr = 0.01 * (number + 1);
    if (makes(t, "changes_second") && number == 1 && t->rank == 1 && step == 2)
        ((double *)m->grads[0].value.storage)[m->grads[0].value.offset] += 1;
    say(t, number);
    cddp_record_optimizer_step(&how);
    for (size_t p = 0; p < PARAMETERS; p++) {
        const double *g = (const double *)m->grads[p].value.storage + m->grads[p].value.offset;
        const int64_t count = cddp_tensor_numel(&m->tensors[p]);
        for (int64_t i = 0; i < count; i++) m->values[p][i] -= how.lr * g[i];
        cddp_record_optimizer_touch(0, p, &m->grads[p].value);
    }
    for (size_t p = 0; p < PARAMETERS; p++)
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, p, &m->tensors[p]);
}

static bool averages_by_hand(const training *t) { return strncmp(t->mistake, "by_hand", 7) == 0; }

/* One of them stays local, although its optimizer steps. "alike…": on rank 1 alone, where the
** operations of both look alike, so that those of one meet those of the other. */
static bool skips_reduction(const training *t, int number, int step)
{
    const char *const alike = number == 0 ? "alike_first_stays_local" : "alike_second_stays_local";
    if (averages_by_hand(t)) return true;
    if (makes(t, alike)) return step == 2 && t->rank == 1;
    return strstr(t->mistake, "second_stays_local") != NULL && number == 1 && step == 2;
}

static cddp_status train_one(training *t, int number, int step, cddp_error *err)
{
    const bool waits = accumulates(t, number) && step % 2 == 0;
    const bool is_local = waits || skips_reduction(t, number, step);
    if (is_local) cddp_ddp_no_sync_begin(t->models[number].ddp);
    cddp_status status = begin(t, number, step, err);
    if (status == CDDP_OK) status = backward(t, number, step, err);
    if (is_local) cddp_ddp_no_sync_end(t->models[number].ddp);
    if (status == CDDP_OK && !waits) update(t, number, step);
    return status;
}

/* One backward goes through both: gradients of both become ready in turn. */
static cddp_status train_both(training *t, int step, cddp_error *err)
{
    /* Buckets of both travel in one group, in the order in which they are full. */
    const int first = makes(t, "crosses") && t->rank == 1 && step == 2 ? 0 : 1;
    cddp_status status = CDDP_OK;
    for (int number = 0; status == CDDP_OK && number < MODELS; number++)
        status = begin(t, number, step, err);
    for (size_t p = PARAMETERS; status == CDDP_OK && p-- > 0;) {
        status = contribute(t, first, p, step, err);
        if (status == CDDP_OK) status = contribute(t, 1 - first, p, step, err);
    }
    for (int number = 0; status == CDDP_OK && number < MODELS; number++)
        status = cddp_ddp_backward_end(t->models[number].ddp, err);
    for (int number = 0; status == CDDP_OK && number < MODELS; number++) update(t, number, step);
    return status;
}

static cddp_status sum(const training *t, const cddp_tensor *x, cddp_error *err)
{
    cddp_work *work = NULL;
    const cddp_status status = cddp_group_allreduce(t->group, x, CDDP_RED_SUM, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

/* One all-reduce over the parameters of both models. */
static cddp_status average_flat(training *t, cddp_error *err)
{
    double flat[MODELS][PARAMETERS][WEIGHTS];
    const int64_t count = MODELS * PARAMETERS * WEIGHTS;
    const cddp_tensor x = cddp_tensor_of(cddp_device_cpu(), flat, 0, CDDP_F64, &count, 1);
    for (int i = 0; i < MODELS; i++) memcpy(flat[i], t->models[i].values, sizeof flat[i]);
    const cddp_status status = sum(t, &x, err);
    for (int i = 0; i < MODELS; i++) memcpy(t->models[i].values, flat[i], sizeof flat[i]);
    return status;
}

/* Local SGD by hand: parameters of both are averaged behind every second step. */
static cddp_status average_by_hand(training *t, int step, cddp_error *err)
{
    const bool is_flat = makes(t, "by_hand_flat");
    cddp_status status = CDDP_OK;
    if (!averages_by_hand(t) || makes(t, "by_hand_never") || step % 2 == 0) return status;
    if (is_flat) status = average_flat(t, err);
    for (int i = 0; i < MODELS * PARAMETERS; i++) {
        model *m = &t->models[i / PARAMETERS];
        const size_t p = (size_t)(i % PARAMETERS);
        if (status == CDDP_OK && !is_flat) status = sum(t, &m->tensors[p], err);
        for (int64_t k = 0; k < cddp_tensor_numel(&m->tensors[p]); k++)
            m->values[p][k] /= t->world_size;
        say(t, i / PARAMETERS);
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, p, &m->tensors[p]);
    }
    return status;
}

static cddp_status train_step(training *t, int step, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const int64_t id = (int64_t)step * t->world_size + t->rank;
    cddp_record_step_begin((uint64_t)step + (makes(t, "resumed") ? 2000000000 : 0));
    cddp_record_samples(0, &id, 1);
    if (makes(t, "second_drifts") && step == 3) t->models[1].values[0][3] += 1; /* on all ranks */
    if (makes(t, "first_drifts_second_stays_local") && step == 3) t->models[0].values[0][3] += 1;
    if (makes(t, "second_drifts_on_one") && step == 3 && t->rank == 1)
        t->models[1].values[0][3] += 1;
    if (makes(t, "interleaved") || makes(t, "crosses")) return train_both(t, step, err);
    for (int number = 0; status == CDDP_OK && number < MODELS; number++) {
        if (makes(t, "join_rests") && number == 1 && step == 1) continue;
        if (makes(t, "second_rests") && number == 1 && step % 2 == 1) continue;
        status = train_one(t, makes(t, "join_exchanged") ? 1 - number : number, step, err);
    }
    if (status == CDDP_OK) status = average_by_hand(t, step, err);
    return status;
}

static bool has_join(const training *t) { return strncmp(t->mistake, "join", 4) == 0; }

/* Under join rank r leaves r steps out. */
static int steps_of(const training *t) { return has_join(t) ? STEPS - (int)t->rank : STEPS; }

static cddp_status begin_join(training *t, cddp_error *err)
{
    cddp_join_options options = cddp_join_options_default();
    cddp_status status = CDDP_OK;
    options.divide_by_initial_world_size = !makes(t, "join_by_active");
    for (int number = 0; status == CDDP_OK && has_join(t) && number < MODELS; number++) {
        options.first = number > 0 ? t->models[0].ddp : NULL;
        if (makes(t, "join_apart")) options.first = NULL; /* two contexts, ended one by one */
        status = cddp_ddp_join_begin(t->models[number].ddp, &options, err);
    }
    return status;
}

/* The last joiner's parameters are everybody's now. */
static cddp_status end_join(training *t, cddp_error *err)
{
    cddp_status status = has_join(t) ? cddp_ddp_join_end(t->models[0].ddp, err) : CDDP_OK;
    if (status == CDDP_OK && makes(t, "join_apart"))
        status = cddp_ddp_join_end(t->models[1].ddp, err);
    for (int number = 0; has_join(t) && status == CDDP_OK && number < MODELS; number++) {
        say(t, number);
        for (size_t p = 0; p < PARAMETERS; p++)
            cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_END, p,
                              &t->models[number].tensors[p]);
    }
    return status;
}

static cddp_status train(cddp_context *context, void *argument, cddp_error *err)
{
    cddp_group *group = cddp_context_group(context);
    training t = {.mistake = argument,
                  .group = group,
                  .rank = cddp_group_rank(group),
                  .world_size = cddp_group_size(group)};
    cddp_status status = open_second(&t, err);
    for (int number = 0; status == CDDP_OK && number < MODELS; number++)
        status = wrap(&t, number, err);
    if (status == CDDP_OK) status = begin_join(&t, err);
    for (int step = 0; status == CDDP_OK && step < steps_of(&t); step++)
        status = train_step(&t, step, err);
    if (status == CDDP_OK) status = end_join(&t, err);
    for (int number = 0; number < MODELS; number++) {
        cddp_ddp_destroy(t.models[number].ddp);
        for (size_t p = 0; p < PARAMETERS; p++) cddp_grad_fini(&t.models[number].grads[p]);
    }
    cddp_group_destroy(t.second);
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
