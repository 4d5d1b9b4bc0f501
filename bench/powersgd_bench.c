/* SPDX-License-Identifier: Apache-2.0 */
/* The powersgd hook alone: ResNet-50's gradients in buckets of 25 MiB, one rank, so that
** collectives cost nothing.
**
**     powersgd_bench [--rounds N] [RANK…]     the best milliseconds of one backward, for rank 1, 2
**                                             and 4 or those named
**     powersgd_bench --print                  the list: per tensor its bucket and its sizes
**     powersgd_bench --turns RANK             one backward per line of stdin, answered by its
**                                             milliseconds: wall and processor
**
** bench/powersgd_versus_pytorch.py takes turns with PyTorch's hook on the same list, and says
** whether ours is faster.
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/cddp.h"
#include "core/base/prng.h"
#include "core/hooks/hook.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TENSORS_MAX 200
#define BUCKETS_MAX 16
#define BUCKET_ELEMENTS (25 << 18)
#define RANKS_MAX 8
/* two backwards before the start, one that makes the factors, and two in memory that is there */
#define WARM_UP 5

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
            m->gradients[k] = cddp_tensor_of(cddp_device_cpu(), m->flat, m->offsets[k], CDDP_F32,
                                             l->sizes[first + k], l->dims[first + k]);
        m->bucket = (cddp_grad_bucket){.size = sizeof m->bucket,
                                       .index = count,
                                       .parameter_count = n,
                                       .parameter_ids = m->ids,
                                       .offsets = m->offsets,
                                       .lengths = m->lengths,
                                       .gradients = m->gradients,
                                       .parameters = m->gradients,
                                       .buffer = cddp_tensor_of(cddp_device_cpu(), m->flat, 0,
                                                                CDDP_F32, &numel, 1)};
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

static cddp_status backward(void *self, room *rooms, uint32_t count, cddp_group *group,
                            cddp_error *err)
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
            status = cd_future_advance(&rooms[b].future, self, &rooms[b].bucket, &rooms[b].complete,
                                       err);
            open += !rooms[b].complete;
        }
    }
    return status;
}

/* One rank in a world of one, and the buffers of its hook. */
typedef struct bench {
    room rooms[BUCKETS_MAX];
    uint32_t room_count;
    cddp_solo_world *world;
    cddp_group *group;
    void *self;
    uint64_t rounds; /* so far */
} bench;

typedef struct timing {
    double wall, processor; /* milliseconds */
} timing;

static double milliseconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static cddp_status bench_open(bench *b, const list *l, int rank, cddp_error *err)
{
    static const uint32_t members[] = {0};
    char options[128];
    cddp_solo_options solo = {.size = sizeof solo, .world_size = 1};
    cddp_group_options o = {
        .size = sizeof o,
        .backend = cddp_backend_self(),
        .works_max = 64,
        .spec = {.size = sizeof o.spec, .name = "bench", .group_size = 1, .members = members}};
    snprintf(options, sizeof options, "matrix_approximation_rank=%d,start_powerSGD_iter=2", rank);
    b->room_count = make_rooms(l, b->rooms);
    cddp_status status = cddp_solo_world_open(&solo, &b->world, err);
    if (status == CDDP_OK) o.rank = cddp_solo_world_rank(b->world);
    if (status == CDDP_OK) status = cddp_group_create(&o, &b->group, err);
    cddp_hook_context context = {.size = sizeof context, .group = b->group, .options = options};
    if (status == CDDP_OK) context.allocator = cddp_group_world_rank(b->group)->allocator;
    if (status == CDDP_OK) status = cd_hook_powersgd.create(&context, &b->self, err);
    return status;
}

static void bench_close(bench *b)
{
    if (b->self != NULL) cd_hook_powersgd.destroy(b->self);
    cddp_group_destroy(b->group);
    cddp_solo_world_close(b->world);
    for (uint32_t i = 0; i < b->room_count; i++) free(b->rooms[i].flat);
}

static cddp_status bench_round(bench *b, timing *taken, cddp_error *err)
{
    fill(b->rooms, b->room_count, ++b->rounds);
    timing from = {milliseconds(CLOCK_MONOTONIC), milliseconds(CLOCK_PROCESS_CPUTIME_ID)};
    cddp_status status = backward(b->self, b->rooms, b->room_count, b->group, err);
    *taken = (timing){milliseconds(CLOCK_MONOTONIC) - from.wall,
                      milliseconds(CLOCK_PROCESS_CPUTIME_ID) - from.processor};
    return status;
}

static cddp_status alone(bench *b, int rank, int rounds, cddp_error *err)
{
    timing best = {1e30, 1e30}, t;
    for (int r = -WARM_UP; r < rounds; r++) {
        cddp_status status = bench_round(b, &t, err);
        if (status != CDDP_OK) return status;
        if (r >= 0 && t.wall < best.wall) best.wall = t.wall;
        if (r >= 0 && t.processor < best.processor) best.processor = t.processor;
    }
    printf("rank %d: %.2f ms, %.2f ms of the processor\n", rank, best.wall, best.processor);
    return CDDP_OK;
}

static cddp_status in_turns(bench *b, cddp_error *err)
{
    timing t;
    cddp_status status = CDDP_OK;
    for (int c; status == CDDP_OK && (c = getchar()) != EOF;) {
        if (c != '\n') continue;
        status = bench_round(b, &t, err);
        if (status == CDDP_OK) printf("%.3f %.3f\n", t.wall, t.processor);
        fflush(stdout);
    }
    return status;
}

/* rounds 0: in turns with who asks. */
static int measure(const list *l, int rank, int rounds)
{
    static bench b;
    cddp_error err = CDDP_ERROR_INIT;
    b = (bench){.room_count = 0};
    cddp_status status = bench_open(&b, l, rank, &err);
    if (status == CDDP_OK)
        status = rounds == 0 ? in_turns(&b, &err) : alone(&b, rank, rounds, &err);
    if (status != CDDP_OK) fprintf(stderr, "powersgd_bench: %s\n", err.message);
    bench_close(&b);
    return status == CDDP_OK ? 0 : 1;
}

static void print_list(const list *l)
{
    static room rooms[BUCKETS_MAX];
    uint32_t count = make_rooms(l, rooms);
    for (uint32_t b = 0; b < count; b++) {
        for (uint32_t k = 0; k < rooms[b].bucket.parameter_count; k++) {
            const cddp_tensor *g = &rooms[b].gradients[k];
            printf("%u", b);
            for (uint32_t d = 0; d < g->dim_count; d++) printf(" %lld", (long long)g->sizes[d]);
            printf("\n");
        }
        free(rooms[b].flat);
    }
}

int main(int argc, char **argv)
{
    static list l;
    int ranks[RANKS_MAX] = {1, 2, 4}, named = 0, rounds = 11, failed = 0;
    bool is_turns = false, is_print = false, is_usage = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--print") == 0)
            is_print = true;
        else if (strcmp(argv[i], "--turns") == 0)
            is_turns = true;
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            is_usage |= (rounds = atoi(argv[++i])) < 1;
        else if (named < RANKS_MAX && atoi(argv[i]) > 0)
            ranks[named++] = atoi(argv[i]);
        else
            is_usage = true;
    }
    if (is_usage || (is_turns && named != 1)) {
        fprintf(stderr, "powersgd_bench [--rounds N] [RANK…] | --print | --turns RANK; all numbers "
                        "at least 1\n");
        return 2;
    }
    put_resnet50(&l);
    if (is_print)
        print_list(&l);
    else if (is_turns)
        failed = measure(&l, ranks[0], 0);
    else
        for (int i = 0; i < (named > 0 ? named : 3); i++) failed |= measure(&l, ranks[i], rounds);
    return failed;
}
