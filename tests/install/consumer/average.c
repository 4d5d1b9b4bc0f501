/* SPDX-License-Identifier: Apache-2.0 */
/* A user's program, as C and as C++: one rank averages a vector over its group. */
#include <cddp/cddp.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_solo_options solo = {sizeof solo, 0, 1, false, NULL};
    cddp_solo_world *world = NULL;
    cddp_group *group = NULL;
    cddp_work *work = NULL;
    const uint32_t members[] = {0};
    float values[3] = {1, 2, 3};
    const int64_t three = 3;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F32, &three, 1);
    if (cddp_solo_world_open(&solo, &world, &err) != CDDP_OK) return 1;
    cddp_group_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = cddp_backend_self();
    options.rank = cddp_solo_world_rank(world);
    options.spec.size = sizeof options.spec;
    options.spec.name = "default";
    options.spec.group_size = 1;
    options.spec.members = members;
    if (cddp_group_create(&options, &group, &err) != CDDP_OK) return 1;
    if (cddp_group_allreduce(group, &t, CDDP_RED_AVG, &work, &err) != CDDP_OK) return 1;
    if (cddp_work_wait(work, 0, &err) != CDDP_OK) return 1;
    cddp_group_destroy(group);
    cddp_solo_world_close(world);
    printf("cddp %s averaged %g %g %g\n", cddp_version(), (double)values[0], (double)values[1],
           (double)values[2]);
    return 0;
}
