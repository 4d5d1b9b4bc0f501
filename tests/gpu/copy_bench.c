/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a bucket is gathered from gradients and scattered back, beside one plain copy of the
** same bytes, on the GPU: parameter lists of ResNet-50 and GPT-2, one launch of copy_many per
** bucket of 25 MiB. Rounds alternate, and the median of each is printed; quote the ratio, not the
** times.
**
**     copy_bench [rounds]        77 where there is no GPU
*/
#include "backends/nccl/cuda.h"
#include "core/model/model.h"
#include "tests/gpu/median.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_MAX 512
#define ROUNDS_MAX 400
#define BUCKET_NUMEL (25 << 18)

typedef struct bench {
    size_t count;
    int64_t numel[TENSORS_MAX], total;
    cddp_copy_pair pairs[TENSORS_MAX];
    cddp_tensor bucket, other;
} bench;

static void need(cddp_status status, const cddp_error *err)
{
    if (status == CDDP_OK) return;
    fprintf(stderr, "copy_bench: %s\n", err->message);
    exit(1);
}

static void need_cuda(cudaError_t code)
{
    if (code == cudaSuccess) return;
    fprintf(stderr, "copy_bench: %s\n", cudaGetErrorString(code));
    exit(1);
}

/* The model's parameters on the shape device: sizes are all that is wanted. */
static void read_list(bench *b, const char *name, const char *options, cddp_error *err)
{
    cd_model *model = NULL;
    cd_prng prng = cd_prng_seed(1);
    const cd_model_options o = {.name = name,
                                .options = options,
                                .dtype = CDDP_F32,
                                .device = cddp_device_shape(),
                                .prng = &prng};
    need(cd_model_create(&o, &model, err), err);
    const cd_module *m = model->module;
    for (size_t i = m->parameter_count; i-- > 0 && b->count < TENSORS_MAX;) {
        b->numel[b->count] = cddp_tensor_numel(&m->parameters[i].tensor);
        b->total += b->numel[b->count++];
    }
    cd_model_destroy(model);
}

static cddp_tensor make(int64_t numel, cddp_error *err)
{
    void *storage = NULL;
    need(cd_cuda_device.allocate(&cd_cuda_device, CDDP_F32, numel, &storage, err), err);
    return cddp_tensor_of(&cd_cuda_device, storage, 0, CDDP_F32, &numel, 1);
}

/* Gathering or scattering bucket by bucket, or one copy of everything; milliseconds by the GPU's
** own clock. */
static float measure(const bench *b, int what, cddp_error *err)
{
    cudaEvent_t begin, end;
    float milliseconds = 0;
    cudaStream_t stream = cd_cuda_here.stream;
    need_cuda(cudaEventCreate(&begin));
    need_cuda(cudaEventCreate(&end));
    need_cuda(cudaEventRecord(begin, stream));
    if (what == 2) {
        need_cuda(cudaMemcpyAsync(b->other.storage, b->bucket.storage, (size_t)b->total * 4,
                                  cudaMemcpyDeviceToDevice, stream));
    } else {
        static cddp_copy_pair pairs[TENSORS_MAX];
        size_t count = 0;
        int64_t numel = 0;
        for (size_t i = 0; i < b->count; i++) {
            pairs[count++] =
                what == 0 ? b->pairs[i] : (cddp_copy_pair){b->pairs[i].src, b->pairs[i].dst};
            numel += b->numel[i];
            if (numel < BUCKET_NUMEL && i + 1 < b->count) continue;
            need(cd_cuda_device.copy_many(&cd_cuda_device, pairs, count, CDDP_COPY_PLAIN, 1, NULL,
                                          err),
                 err);
            count = 0;
            numel = 0;
        }
    }
    need_cuda(cudaEventRecord(end, stream));
    need_cuda(cudaEventSynchronize(end));
    need_cuda(cudaEventElapsedTime(&milliseconds, begin, end));
    need_cuda(cudaEventDestroy(begin));
    need_cuda(cudaEventDestroy(end));
    return milliseconds;
}

static void run(const char *name, const char *options, int rounds)
{
    static bench b;
    static double times[3][ROUNDS_MAX];
    cddp_error err = CDDP_ERROR_INIT;
    memset(&b, 0, sizeof b);
    read_list(&b, name, options, &err);
    b.bucket = make(b.total, &err);
    b.other = make(b.total, &err);
    int64_t at = 0;
    for (size_t i = 0; i < b.count; i++) {
        b.pairs[i] =
            (cddp_copy_pair){cddp_tensor_slice(&b.bucket, at, b.numel[i]), make(b.numel[i], &err)};
        at += b.numel[i];
    }
    for (int what = 0; what < 3; what++) (void)measure(&b, what, &err); /* warm */
    for (int r = 0; r < rounds; r++)
        for (int what = 0; what < 3; what++) times[what][r] = (double)measure(&b, what, &err);
    double gather = gpu_median(times[0], rounds), scatter = gpu_median(times[1], rounds),
           copy = gpu_median(times[2], rounds);
    printf("%s: %zu tensors, %.1f MB: gather %.4f ms, scatter %.4f ms, plain copy %.4f ms (%.0f "
           "GB/s read and "
           "written); %.0f%% and %.0f%% of a copy's speed\n",
           name, b.count, (double)b.total * 4e-6, gather, scatter, copy,
           (double)b.total * 8e-6 / copy, 100 * copy / gather, 100 * copy / scatter);
    for (size_t i = 0; i < b.count; i++)
        cd_cuda_device.release(&cd_cuda_device, CDDP_F32, b.numel[i], b.pairs[i].src.storage);
    cd_cuda_device.release(&cd_cuda_device, CDDP_F32, b.total, b.bucket.storage);
    cd_cuda_device.release(&cd_cuda_device, CDDP_F32, b.total, b.other.storage);
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    int rounds = argc > 1 ? atoi(argv[1]) : 50;
    if (cd_cuda_probe(&err) != CDDP_OK) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    if (rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: copy_bench [1 to %d rounds]\n", ROUNDS_MAX);
        return 2;
    }
    run("resnet", "depth=50", rounds);
    run("gpt2", "", rounds);
    cd_cuda_close(&cd_cuda_here);
    return 0;
}
