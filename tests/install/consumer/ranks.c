/* SPDX-License-Identifier: Apache-2.0 */
/* Three processes over Gloo, started and met in one call; each recorded when CDDP_RECORD is set. */
#include <cddp/cddp.h>
#include <cddp/init.h>

#include <stdio.h>

static cddp_status program(cddp_context *context, void *argument, cddp_error *err)
{
    cddp_group *group = cddp_context_group(context);
    double value = 1.0 + cddp_group_rank(group);
    const int64_t one = 1;
    const cddp_tensor x = cddp_tensor_of(cddp_device_cpu(), &value, 0, CDDP_F64, &one, 1);
    cddp_work *work = NULL;
    cddp_status status = cddp_group_allreduce(group, &x, CDDP_RED_SUM, &work, err);
    (void)argument;
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    if (status == CDDP_OK && cddp_group_rank(group) == 0) printf("sum %g\n", value);
    return status;
}

int main(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_init_options options = {.size = sizeof options, .prints_plain = true};
    if (cddp_init(NULL, &err) != CDDP_E_ARG) return 2; /* in words, and no crash */
    const cddp_status status = cddp_run_ranks(3, &options, program, NULL, &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    return status != CDDP_OK;
}
