/* SPDX-License-Identifier: Apache-2.0 */
/* A data-parallel program whose forwards run on other parameters than its steps leave:
**
**     recorded_passes RANKS HOW
**
** Each step exchanges w and b for a forward and its backward, and puts them back before the
** optimizer looks. "own…" reduces without a wrapper. HOW is a row of `ways`.
*/
#include <cddp/cddp.h>
#include <cddp/init.h>
#include <cddp/record.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMETERS = 2, WEIGHTS = 600, BIASES = 8, STEPS = 20 };

/* Where parameters are exchanged. Those of SAM are perturbed for a second pass, along the gradients
** of a first one. */
typedef enum moment { NEVER, BEFORE_FORWARD, IN_FORWARD, BEFORE_BACKWARD, SAM } moment;

/* By what ranks differ. */
typedef enum difference { ALIKE, ALL_DIFFER, ONE_DIFFERS, ONE_ALONE } difference;

typedef struct way {
    const char *name;
    moment when;
    difference by;
    bool is_own;          /* without a wrapper */
    bool is_hidden;       /* back in their place before the gradients are shown */
    bool is_sparse;       /* one element of w alone */
    bool is_local;        /* the first pass of SAM is not reduced: each rank has its direction */
    bool is_said, adapts; /* cddp_record_value in front of the forward; at CDDP_MOMENT_ADAPTED */
} way;

static const way ways[] = {
    {.name = "plain", .when = NEVER},
    {.name = "noise", .when = IN_FORWARD},
    {.name = "noise_differs", .when = IN_FORWARD, .by = ALL_DIFFER},
    {.name = "noise_of_one", .when = IN_FORWARD, .by = ONE_ALONE},
    {.name = "noise_of_one_element", .when = IN_FORWARD, .by = ALL_DIFFER, .is_sparse = true},
    {.name = "noise_behind_forward", .when = BEFORE_BACKWARD, .by = ALL_DIFFER},
    {.name = "swaps", .when = BEFORE_FORWARD},
    {.name = "swaps_said", .when = BEFORE_FORWARD, .is_said = true},
    {.name = "swaps_differ_said", .when = BEFORE_FORWARD, .by = ALL_DIFFER, .is_said = true},
    {.name = "swaps_adapted",
     .when = BEFORE_FORWARD,
     .by = ALL_DIFFER,
     .is_said = true,
     .adapts = true},
    {.name = "sam", .when = SAM},
    {.name = "sam_said", .when = SAM, .is_said = true},
    {.name = "sam_radius", .when = SAM, .by = ALL_DIFFER},
    {.name = "sam_radius_of_one", .when = SAM, .by = ONE_DIFFERS},
    {.name = "sam_radius_said", .when = SAM, .by = ALL_DIFFER, .is_said = true},
    {.name = "sam_local", .when = SAM, .is_local = true},
    {.name = "sam_local_adapted", .when = SAM, .is_local = true, .is_said = true, .adapts = true},
    {.name = "own_plain", .when = NEVER, .is_own = true},
    {.name = "own_sam", .when = SAM, .is_own = true},
    {.name = "own_sam_radius", .when = SAM, .by = ALL_DIFFER, .is_own = true},
    {.name = "own_sam_hidden", .when = SAM, .by = ALL_DIFFER, .is_own = true, .is_hidden = true},
    {.name = "own_sam_hidden_said",
     .when = SAM,
     .is_own = true,
     .is_hidden = true,
     .is_said = true},
    {.name = "own_sam_hidden_differs_said",
     .when = SAM,
     .by = ALL_DIFFER,
     .is_own = true,
     .is_hidden = true,
     .is_said = true},
};

typedef struct training {
    const way *how;
    cddp_group *group;
    cddp_ddp *ddp;
    double values[PARAMETERS][WEIGHTS], kept[PARAMETERS][WEIGHTS];
    double direction[PARAMETERS][WEIGHTS];
    cddp_grad grads[PARAMETERS];
    cddp_tensor tensors[PARAMETERS];
    uint32_t rank, world_size;
} training;

static int64_t size_of(size_t parameter) { return parameter == 0 ? WEIGHTS : BIASES; }

static double *gradient_of(const training *t, size_t p)
{
    return (double *)t->grads[p].value.storage + t->grads[p].value.offset;
}

/* By how much this rank moves. */
static double radius_of(const training *t)
{
    switch (t->how->by) {
    case ALL_DIFFER:
        return 0.05 * (1 + t->rank);
    case ONE_DIFFERS:
        return t->rank == 2 ? 0.1 : 0.05;
    case ONE_ALONE:
        return t->rank == 2 ? 0.1 : 0;
    case ALIKE:
    default:
        return 0.05;
    }
}

static void exchange(training *t, moment now)
{
    if (t->how->when != now) return;
    memcpy(t->kept, t->values, sizeof t->kept);
    for (size_t p = 0; p < PARAMETERS; p++) {
        for (int64_t i = 0; i < size_of(p); i++) {
            const double along = now == SAM ? t->direction[p][i] : 1;
            if (!t->how->is_sparse || (p == 0 && i == 5)) t->values[p][i] += radius_of(t) * along;
        }
        if (t->how->is_said)
            cddp_record_value(CDDP_WHAT_PARAMETER,
                              t->how->adapts ? CDDP_MOMENT_ADAPTED : CDDP_MOMENT_FORWARD, p,
                              &t->tensors[p]);
    }
}

static void put_back(training *t)
{
    if (t->how->when != NEVER) memcpy(t->values, t->kept, sizeof t->kept);
}

static void clear(training *t)
{
    for (size_t p = 0; p < PARAMETERS; p++)
        memset(gradient_of(t, p), 0, (size_t)size_of(p) * sizeof(double));
    cddp_record_zero_grad(false);
}

static cddp_status reduce(training *t, size_t p, cddp_error *err)
{
    cddp_work *work = NULL;
    cddp_status status =
        cddp_group_allreduce(t->group, &t->grads[p].value, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    for (int64_t i = 0; i < size_of(p); i++) gradient_of(t, p)[i] /= t->world_size;
    cddp_record_reduced(p, &t->grads[p].value);
    return status;
}

/* The gradient of anything that depends on the parameters, and on the rank's samples. */
static void differentiate(training *t, int step)
{
    for (size_t p = 0; p < PARAMETERS; p++)
        for (int64_t i = 0; i < size_of(p); i++)
            gradient_of(t, p)[i] +=
                0.125 * (double)((step * 5 + (int)t->rank * 3 + i) % 7) + 0.25 * t->values[p][i];
}

/* `is_exchanged`: the pass that runs on other parameters; of SAM the second one. */
static cddp_status pass(training *t, int step, bool is_exchanged, cddp_error *err)
{
    const way *how = t->how;
    cddp_status status = CDDP_OK;
    if (is_exchanged) exchange(t, how->when == SAM ? SAM : BEFORE_FORWARD);
    if (!how->is_own) status = cddp_ddp_forward_begin(t->ddp, true, err);
    if (is_exchanged) exchange(t, IN_FORWARD);
    if (status == CDDP_OK && !how->is_own) status = cddp_ddp_forward_end(t->ddp, NULL, err);
    if (is_exchanged) exchange(t, BEFORE_BACKWARD);
    differentiate(t, step);
    if (is_exchanged && how->is_hidden) put_back(t);
    for (size_t p = PARAMETERS; status == CDDP_OK && p-- > 0;) {
        cddp_record_gradient(p, &t->grads[p].value);
        status = how->is_own ? reduce(t, p, err) : cddp_ddp_mark_variable_ready(t->ddp, p, err);
    }
    if (status == CDDP_OK && !how->is_own) status = cddp_ddp_backward_end(t->ddp, err);
    if (is_exchanged && !how->is_hidden) put_back(t);
    return status;
}

/* The first pass of SAM: the direction in which parameters are perturbed. */
static cddp_status find_direction(training *t, int step, cddp_error *err)
{
    double norm = 0;
    if (t->how->is_local) cddp_ddp_no_sync_begin(t->ddp);
    cddp_status status = pass(t, step, false, err);
    if (t->how->is_local) cddp_ddp_no_sync_end(t->ddp);
    for (size_t p = 0; p < PARAMETERS; p++)
        for (int64_t i = 0; i < size_of(p); i++)
            norm += gradient_of(t, p)[i] * gradient_of(t, p)[i];
    for (size_t p = 0; p < PARAMETERS; p++)
        for (int64_t i = 0; i < size_of(p); i++)
            t->direction[p][i] = gradient_of(t, p)[i] / sqrt(norm);
    clear(t);
    cddp_record_micro_step(1);
    return status;
}

static void update(training *t)
{
    cddp_record_update how = cddp_record_update_default();
    how.lr = 0.01;
    cddp_record_optimizer_step(&how);
    for (size_t p = 0; p < PARAMETERS; p++) {
        cddp_record_optimizer_touch(0, p, &t->grads[p].value);
        for (int64_t i = 0; i < size_of(p); i++) t->values[p][i] -= how.lr * gradient_of(t, p)[i];
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, p, &t->tensors[p]);
    }
}

static cddp_status train_step(training *t, int step, cddp_error *err)
{
    cddp_record_step_begin((uint64_t)step);
    clear(t);
    cddp_status status = CDDP_OK;
    if (t->how->when == SAM) status = find_direction(t, step, err);
    if (status == CDDP_OK) status = pass(t, step, true, err);
    if (status == CDDP_OK) update(t);
    return status;
}

static cddp_status wrap(training *t, cddp_error *err)
{
    static const char *const names[PARAMETERS] = {"w", "b"};
    cddp_parameter parameters[PARAMETERS];
    cddp_status status = CDDP_OK;
    for (size_t p = 0; status == CDDP_OK && p < PARAMETERS; p++) {
        const int64_t n = size_of(p);
        for (int64_t i = 0; i < n; i++) t->values[p][i] = 0.5;
        t->tensors[p] = cddp_tensor_of(cddp_device_cpu(), t->values[p], 0, CDDP_F64, &n, 1);
        parameters[p] = (cddp_parameter){.name = names[p],
                                         .tensor = t->tensors[p],
                                         .grad = &t->grads[p],
                                         .requires_grad = true};
        status = cddp_grad_define(&t->grads[p], &t->tensors[p], err);
        if (!t->how->is_own || status != CDDP_OK) continue;
        cddp_record_parameter(p, names[p], &t->tensors[p]);
        cddp_record_storage(p, &t->tensors[p], &t->grads[p].value);
    }
    if (t->how->is_own) cddp_record_parameters_end();
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = parameters;
    options.parameter_count = PARAMETERS;
    options.group = t->group;
    return t->how->is_own || status != CDDP_OK ? status : cddp_ddp_create(&options, &t->ddp, err);
}

static cddp_status train(cddp_context *context, void *argument, cddp_error *err)
{
    cddp_group *group = cddp_context_group(context);
    training t = {.how = argument,
                  .group = group,
                  .rank = cddp_group_rank(group),
                  .world_size = cddp_group_size(group)};
    cddp_status status = wrap(&t, err);
    for (int step = 0; status == CDDP_OK && step < STEPS; step++)
        status = train_step(&t, step, err);
    cddp_record_storage_end();
    cddp_ddp_destroy(t.ddp);
    for (size_t p = 0; p < PARAMETERS; p++) cddp_grad_fini(&t.grads[p]);
    return status;
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_init_options options = {.size = sizeof options, .timeout_ns = UINT64_C(4000000000)};
    size_t i = 0;
    while (argc == 3 && i < sizeof ways / sizeof *ways && strcmp(ways[i].name, argv[2]) != 0) i++;
    if (argc != 3 || i == sizeof ways / sizeof *ways) {
        fprintf(stderr, "usage: %s RANKS HOW\n", argv[0]);
        return 2;
    }
    way how = ways[i];
    const cddp_status status = cddp_run_ranks((uint32_t)atoi(argv[1]), &options, train, &how, &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    return status != CDDP_OK;
}
