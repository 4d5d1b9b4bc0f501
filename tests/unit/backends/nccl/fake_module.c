/* SPDX-License-Identifier: Apache-2.0 */
/* The module that brings nccl, over the fakes: the program loads it as a plugin and runs whole
** scenarios with tensors in the fake's memory, which the host cannot touch. So the way that a GPU
** takes is walked to its end without one.
*/
#include "backends/nccl/cuda.h"
#include "cddp/plugin.h"
#include "tests/unit/backends/nccl/fake_cuda.h"
#include "tests/unit/backends/nccl/fake_nccl.h"

extern const cddp_plugin cddp_plugin_v1; /* of nccl_backend.c, in an archive */

/* In place of probe.c, which asks for a driver. */
cddp_status cd_cuda_probe(cddp_error *err)
{
    (void)err;
    return cddp_plugin_v1.backends[0]->device == &cd_cuda_device ? CDDP_OK : CDDP_E_BACKEND;
}

/* Before the program forks its ranks. */
__attribute__((constructor)) static void prepare(void)
{
    fake_nccl_share();
    fake_cuda_is_far = true;
}
