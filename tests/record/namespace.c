/* SPDX-License-Identifier: Apache-2.0 */
/* A host that loads libcddp.so into another link namespace, and trains there:
**
**     recorded_namespace LIBRARY
**
** Two ranks take one step. With CDDP_RECORD=run.db they are recorded. */
#define _GNU_SOURCE /* dlmopen */
#include <cddp/init.h>
#include <cddp/record.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { WEIGHTS = 40 };

static void *library;

/* A function of that name there. ISO C has no cast from an object to a function. */
#define CALL(name) (*(__typeof__(name) **)find(#name))

static void *find(const char *name)
{
    static void *found;
    found = dlsym(library, name);
    return (void *)&found;
}

static cddp_status train(cddp_context *context, void *argument, cddp_error *err)
{
    double w[WEIGHTS] = {0}, g[WEIGHTS];
    const int64_t n = WEIGHTS;
    const cddp_device *cpu = CALL(cddp_device_cpu)();
    const cddp_tensor values = CALL(cddp_tensor_of)(cpu, w, 0, CDDP_F64, &n, 1),
                      gradient = CALL(cddp_tensor_of)(cpu, g, 0, CDDP_F64, &n, 1);
    cddp_record_update how = CALL(cddp_record_update_default)();
    cddp_work *work = NULL;
    (void)argument;
    CALL(cddp_record_parameter)(0, "w", &values);
    CALL(cddp_record_parameters_end)();
    CALL(cddp_record_storage)(0, &values, &gradient);
    CALL(cddp_record_step_begin)(0);
    for (int i = 0; i < WEIGHTS; i++) g[i] = i;
    CALL(cddp_record_gradient)(0, &gradient);
    cddp_status status = CALL(cddp_group_allreduce)(CALL(cddp_context_group)(context), &gradient,
                                                    CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = CALL(cddp_work_wait)(work, 0, err);
    CALL(cddp_record_reduced)(0, &gradient);
    how.lr = 0.5;
    CALL(cddp_record_optimizer_step)(&how);
    CALL(cddp_record_optimizer_touch)(0, 0, &gradient);
    for (int i = 0; i < WEIGHTS; i++) w[i] -= how.lr * g[i];
    CALL(cddp_record_value)(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, 0, &values);
    CALL(cddp_record_storage_end)();
    return status;
}

int main(int argc, char **argv)
{
    cddp_error err = {.status = CDDP_OK};
    if (argc != 2) {
        fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
        return 2;
    }
    library = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const cddp_status status = CALL(cddp_run_ranks)(2, NULL, train, NULL, &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    return status != CDDP_OK;
}
