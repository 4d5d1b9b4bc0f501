/* SPDX-License-Identifier: Apache-2.0 */
/* Lets kernels.cu be compiled as C++: a launch becomes a loop over blocks and threads, put onto a
** stream of fake_cuda.
**
** Only the kernels' own logic is shown this way: which elements a thread takes, how it rounds.
** Nothing of a GPU is.
*/
#pragma once
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include "tests/unit/backends/nccl/fake_cuda.h"

namespace
{

struct Index {
    unsigned x;
};
Index blockIdx, threadIdx, blockDim, gridDim;

template <typename A> struct Launch {
    void (*kernel)(A);
    A argument;
    unsigned blocks, threads;
    static void run(void *context)
    {
        const Launch *l = (const Launch *)context;
        gridDim.x = l->blocks;
        blockDim.x = l->threads;
        for (blockIdx.x = 0; blockIdx.x < l->blocks; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < l->threads; threadIdx.x++) l->kernel(l->argument);
    }
};

template <typename A>
void launch(void (*kernel)(A), int64_t blocks, int64_t threads, void *stream, const A &argument)
{
    Launch<A> l = {kernel, argument, (unsigned)blocks, (unsigned)threads};
    fake_cuda_push((cudaStream_t)stream, Launch<A>::run, &l, sizeof l);
}

} // namespace

#define CD_ARGUMENT
#define CD_LAUNCH(kernel, blocks, threads, stream, argument) \
    launch(kernel, (int64_t)(blocks), (int64_t)(threads), stream, argument)
