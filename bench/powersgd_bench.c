/* SPDX-License-Identifier: Apache-2.0 */
/* The powersgd hook alone: ResNet-50's gradients in buckets of 25 MiB, one rank, so that collectives cost nothing.
** bench/pytorch_powersgd.py runs PyTorch's hook on the same list beside it.
**
**     powersgd_bench RANK [ROUNDS]     prints the best milliseconds of one backward
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/cddp.h"
#include "core/base/os.h"
#include "core/base/prng.h"
#include "core/hooks/hook.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_MAX 200
#define BUCKETS_MAX 16
#define BUCKET_ELEMENTS (25 << 18)

typedef struct list {
    int64_t sizes[TENSORS_MAX][4];
    uint32_t dims[TENSORS_MAX];
    int64_t numel[TENSORS_MAX];
    uint32_t count;
} list;

static void put(list *l, uint32_t dims, int64_t a, int64_t b, int64_t k)
{
    const int64_t sizes[4] = {a, b, k, k};
    memcpy(l->sizes[l->count], sizes, sizeof sizes);
    l->dims[l->count] = dims;
    l->numel[l->count++] = dims == 1 ? a : dims == 2 ? a * b : a * b * k * k;
}

static void put_conv(list *l, int64_t out, int64_t in, int64_t k)
{
    put(l, 4, out, in, k);
    put(l, 1, out, 1, 1); /* weight and bias of its batch norm */
    put(l, 1, out, 1, 1);
}

static void put_resnet50(list *l)
{
    static const int blocks[4] = {3, 4, 6, 3};
    int64_t in = 64;
    put_conv(l, 64, 3, 7);
    for (int stage = 0; stage < 4; stage++) {
        int64_t width = 64 << stage;
        for (int b = 0; b < blocks[stage]; b++) {
            put_conv(l, width, in, 1);
            put_conv(l, width, width, 3);
            put_conv(l, 4 * width, width, 1);
            if (b == 0) put_conv(l, 4 * width, in, 1);
            in = 4 * width;
        }
    }
    put(l, 2, 1000, 2048, 1);
    put(l, 1, 1000, 1, 1);
}

typedef struct room {
    float *flat;
    cddp_tensor gradients[TENSORS_MAX];
    uint32_t ids[TENSORS_MAX];
    int64_t offsets[TENSORS_MAX], lengths[TENSORS_MAX];
    cddp_grad_bucket bucket;
    cddp_future future;
    bool complete;
} room;

static uint32_t make_rooms(const list *l, room *rooms)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < l->count;) {
        room *m = &rooms[count];
        int64_t numel = 0;
        uint32_t first = i, n = 0;
        for (; i < l->count && (n == 0 || numel + l->numel[i] <= BUCKET_ELEMENTS); i++, n++) {
            m->ids[n] = i;
            m->offsets[n] = numel;
            m->lengths[n] = l->numel[i];
            numel += l->numel[i];
        }
        m->flat = malloc((size_t)numel * sizeof(float));
        if (m->flat == NULL) exit(2);
        for (uint32_t k = 0; k < n; k++)
            m->gradients[k] = cddp_tensor_of(cddp_device_cpu(), m->flat, m->offsets[k], CDDP_F32, l->sizes[first + k], l->dims[first + k]);
        m->bucket = (cddp_grad_bucket){.size = sizeof m->bucket, .index = count, .parameter_count = n, .parameter_ids = m->ids,
                                       .offsets = m->offsets, .lengths = m->lengths, .gradients = m->gradients, .parameters = m->gradients,
                                       .buffer = cddp_tensor_of(cddp_device_cpu(), m->flat, 0, CDDP_F32, &numel, 1)};
        count++;
    }
    for (uint32_t b = 0; b < count; b++) {
        rooms[b].bucket.bucket_count = count;
        rooms[b].bucket.is_last = b + 1 == count;
    }
    return count;
}

static void fill(room *rooms, uint32_t count, uint64_t seed)
{
    cd_prng p = cd_prng_seed(seed);
    for (uint32_t b = 0; b < count; b++)
        for (int64_t i = 0; i < cddp_tensor_numel(&rooms[b].bucket.buffer); i++)
            rooms[b].flat[i] = (float)((double)cd_prng_between(&p, 0, 1u << 20) / 0x1p20 - 0.5);
}

static cddp_status backward(void *self, room *rooms, uint32_t count, cddp_group *group, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (uint32_t b = 0; status == CDDP_OK && b < count; b++) {
        rooms[b].future = (cddp_future){.size = sizeof rooms[b].future};
        rooms[b].complete = false;
        status = cd_hook_powersgd.run(self, &rooms[b].bucket, group, &rooms[b].future, err);
    }
    for (uint32_t open = 1; status == CDDP_OK && open > 0;) {
        open = 0;
        for (uint32_t b = 0; status == CDDP_OK && b < count; b++) {
            if (rooms[b].complete) continue;
            status = cd_future_advance(&rooms[b].future, self, &rooms[b].bucket, &rooms[b].complete, err);
            open += !rooms[b].complete;
        }
    }
    return status;
}

int main(int argc, char **argv)
{
    static list l;
    static room rooms[BUCKETS_MAX];
    static const uint32_t members[] = {0};
    int rank = argc > 1 ? atoi(argv[1]) : 0, rounds = argc > 2 ? atoi(argv[2]) : 5;
    char options[128];
    cddp_error err = CDDP_ERROR_INIT;
    cddp_solo_world *world = NULL;
    cddp_group *group = NULL;
    void *self = NULL;
    if (rank < 1 || rounds < 1) {
        fprintf(stderr, "powersgd_bench RANK [ROUNDS]: both at least 1\n");
        return 2;
    }
    put_resnet50(&l);
    uint32_t count = make_rooms(&l, rooms);
    cddp_solo_options solo = {.size = sizeof solo, .world_size = 1};
    cddp_status status = cddp_solo_world_open(&solo, &world, &err);
    cddp_group_options o = {.size = sizeof o, .backend = cddp_backend_self(), .works_max = 64,
                            .spec = {.size = sizeof o.spec, .name = "bench", .group_size = 1, .members = members}};
    if (status == CDDP_OK) o.rank = cddp_solo_world_rank(world);
    if (status == CDDP_OK) status = cddp_group_create(&o, &group, &err);
    snprintf(options, sizeof options, "matrix_approximation_rank=%d,start_powerSGD_iter=2", rank);
    cddp_hook_context context = {.size = sizeof context, .group = group, .options = options};
    if (status == CDDP_OK) context.allocator = cddp_group_world_rank(group)->allocator;
    if (status == CDDP_OK) status = cd_hook_powersgd.create(&context, &self, &err);
    double best = 1e30;
    for (int r = -3; status == CDDP_OK && r < rounds; r++) { /* two backwards before the start, one to make the factors */
        fill(rooms, count, (uint64_t)(r + 4));
        uint64_t from = cd_os_now_ns();
        status = backward(self, rooms, count, group, &err);
        double ms = (double)(cd_os_now_ns() - from) * 1e-6;
        if (r >= 0 && ms < best) best = ms;
    }
    if (status == CDDP_OK) printf("%.3f\n", best);
    else fprintf(stderr, "powersgd_bench: %s\n", err.message);
    if (self != NULL) cd_hook_powersgd.destroy(self);
    cddp_group_destroy(group);
    cddp_solo_world_close(world);
    for (uint32_t b = 0; b < count; b++) free(rooms[b].flat);
    return status == CDDP_OK ? 0 : 1;
}
