/* SPDX-License-Identifier: Apache-2.0 */
/* compute_bucket_assignment_by_size, as PyTorch does it: add first, flush at or above the limit
** (BKT-02, BKT-03).
**
** One accumulator per key (dtype, device) is open at a time; each key walks the list of limits on
** its own (BKT-04). Members of an open accumulator are chained through `next`, so the work is
** linear in the number of inputs and the number of keys is bounded only by memory.
**
** Limitations: a tensor is never split, so a bucket may overshoot its limit by one tensor.
**
** Not here: storage of buckets (bucket.c), agreement on a rebuilt layout (rebuild.c).
*/
#include "core/ddp/parts/bucket_plan.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <string.h>

#define NONE UINT32_MAX

/* The open bucket of one key. */
typedef struct accumulator {
    uint64_t key;
    uint64_t bytes;
    size_t limit_position;
    uint32_t first, last; /* positions, chained by next[]; NONE when empty */
} accumulator;

typedef struct assignment {
    const cd_bucket_request *request;
    cd_bucket_layout *layout;
    accumulator *open; /* (open_count) in order of first appearance of the key */
    size_t open_count;
    uint32_t *next; /* (input_count) */
} assignment;

cddp_status cd_bucket_layout_init(cd_bucket_layout *layout, size_t capacity,
                                  const cddp_allocator *allocator, cddp_error *err)
{
    cd_bucket_layout l = {.capacity = capacity};
    const size_t n = capacity + 1;
    cd_arena_init(&l.arena, allocator, 0);
    if (!cd_arena_reserve(&l.arena, CD_ARENA_BYTES(n * sizeof *l.indices) +
                                        CD_ARENA_BYTES(n * sizeof *l.starts) +
                                        CD_ARENA_BYTES(n * sizeof *l.limits)))
        return cd_fail_memory(err, "a bucket layout of %zu variables", capacity);
    l.indices = cd_arena_push(&l.arena, n * sizeof *l.indices);
    l.starts = cd_arena_push(&l.arena, n * sizeof *l.starts);
    l.limits = cd_arena_push(&l.arena, n * sizeof *l.limits);
    *layout = l;
    return CDDP_OK;
}

void cd_bucket_layout_fini(cd_bucket_layout *layout)
{
    cd_arena_fini(&layout->arena);
    memset(layout, 0, sizeof *layout);
}

static uint32_t variable_at(const cd_bucket_request *request, size_t position)
{
    return request->indices != NULL ? request->indices[position] : (uint32_t)position;
}

static accumulator *accumulator_of(assignment *a, uint64_t key)
{
    /* Keys are few (dtypes on devices), and a run of equal keys is the rule: the last one found is
    ** tried first. */
    for (size_t i = a->open_count; i-- > 0;)
        if (a->open[i].key == key) return &a->open[i];
    accumulator *acc = &a->open[a->open_count++];
    *acc = (accumulator){.key = key, .first = NONE, .last = NONE};
    return acc;
}

static void begin_bucket(cd_bucket_layout *layout, uint64_t limit)
{
    layout->limits[layout->bucket_count++] = limit;
    layout->starts[layout->bucket_count] = layout->starts[layout->bucket_count - 1];
}

static void push_variable(cd_bucket_layout *layout, uint32_t variable)
{
    layout->indices[layout->variable_count++] = variable;
    layout->starts[layout->bucket_count] = (uint32_t)layout->variable_count;
}

static void emit(assignment *a, accumulator *acc)
{
    begin_bucket(a->layout, a->request->limits[acc->limit_position]);
    for (uint32_t p = acc->first; p != NONE; p = a->next[p])
        push_variable(a->layout, variable_at(a->request, p));
    acc->first = acc->last = NONE;
    acc->bytes = 0;
    if (acc->limit_position + 1 < a->request->limit_count) acc->limit_position++;
}

static void assign(assignment *a)
{
    const cd_bucket_request *request = a->request;
    for (size_t p = 0; p < request->input_count; p++) {
        uint32_t variable = variable_at(request, p);
        if (request->expect_sparse != NULL && request->expect_sparse[variable]) {
            begin_bucket(a->layout, 0);
            push_variable(a->layout, variable);
            continue;
        }
        accumulator *acc = accumulator_of(a, request->inputs[p].key);
        a->next[p] = NONE;
        if (acc->first == NONE)
            acc->first = (uint32_t)p;
        else
            a->next[acc->last] = (uint32_t)p;
        acc->last = (uint32_t)p;
        acc->bytes += request->inputs[p].bytes;
        if (acc->bytes >= request->limits[acc->limit_position]) emit(a, acc);
    }
}

/* Left-over accumulators by the position of their first member: PyTorch takes the order of a hash
** map, which is unspecified (BKT-07). */
static void emit_leftovers(assignment *a)
{
    for (;;) {
        accumulator *earliest = NULL;
        for (size_t i = 0; i < a->open_count; i++) {
            accumulator *acc = &a->open[i];
            if (acc->first != NONE && (earliest == NULL || acc->first < earliest->first))
                earliest = acc;
        }
        if (earliest == NULL) return;
        emit(a, earliest);
    }
}

static void reverse_u32(uint32_t *items, size_t count)
{
    for (size_t i = 0; i + 1 < count - i; i++) {
        uint32_t t = items[i];
        items[i] = items[count - 1 - i];
        items[count - 1 - i] = t;
    }
}

/* Sorts buckets by their smallest variable (BKT-06). Without indices positions are variables, so a
** bucket's first member is its smallest. `owner` has room for one entry per input. */
static void sort_by_first(cd_bucket_layout *layout, uint32_t *owner, cd_bucket_layout *sorted)
{
    for (size_t i = 0; i < layout->variable_count; i++) owner[i] = NONE;
    for (uint32_t b = 0; b < layout->bucket_count; b++)
        owner[layout->indices[layout->starts[b]]] = b;
    for (size_t v = 0; v < layout->variable_count; v++) {
        if (owner[v] == NONE) continue;
        uint32_t b = owner[v];
        begin_bucket(sorted, layout->limits[b]);
        for (uint32_t i = layout->starts[b]; i < layout->starts[b + 1]; i++)
            push_variable(sorted, layout->indices[i]);
    }
}

static cddp_status check_request(const cd_bucket_request *request, const cd_bucket_layout *layout,
                                 cddp_error *err)
{
    if (request->input_count == 0)
        return cd_fail(err, CDDP_E_ARG, "bucket assignment of no tensors");
    if (request->limit_count == 0)
        return cd_fail(err, CDDP_E_ARG, "bucket assignment without a size limit");
    if (request->input_count > layout->capacity)
        return cd_fail(err, CDDP_E_ARG, "%zu tensors for a layout of %zu", request->input_count,
                       layout->capacity);
    for (size_t p = 0; p < request->input_count; p++)
        if (request->inputs[p].is_sparse_layout)
            return cd_fail(err, CDDP_E_ARG,
                           "tensor %zu has a sparse layout; buckets hold dense tensors only", p);
    return CDDP_OK;
}

cddp_status cd_bucket_assignment_by_size(const cd_bucket_request *request, cd_bucket_layout *layout,
                                         cddp_error *err)
{
    CD_TRY(check_request(request, layout, err));
    const cddp_allocator *allocator = layout->arena.allocator;
    size_t n = request->input_count;
    cddp_status status = CDDP_OK;
    cd_arena scratch;
    assignment a = {.request = request, .layout = layout};
    cd_bucket_layout emitted = {0};
    cd_arena_init(&scratch, allocator, 0);
    a.open = cd_arena_array(&scratch, n, sizeof *a.open);
    a.next = cd_arena_array(&scratch, n, sizeof *a.next);
    CD_TRY_OUT(cd_arena_check(&scratch, err, "an assignment of %zu tensors to buckets", n));
    if (request->indices == NULL) {
        CD_TRY_OUT(cd_bucket_layout_init(&emitted, n, allocator, err));
        a.layout = &emitted;
    }
    layout->variable_count = layout->bucket_count = 0;
    layout->starts[0] = 0;
    assign(&a);
    emit_leftovers(&a);
    if (request->indices == NULL) sort_by_first(&emitted, a.next, layout);
out:
    cd_bucket_layout_fini(&emitted);
    cd_arena_fini(&scratch);
    return status;
}

void cd_bucket_layout_reverse(cd_bucket_layout *layout)
{
    /* Reverse everything, then each bucket back: the list turns, the contents stay in order
    ** (BKT-10). */
    size_t count = layout->bucket_count, n = layout->variable_count;
    reverse_u32(layout->indices, n);
    for (size_t b = 0; b < count; b++) {
        uint32_t size = layout->starts[b + 1] - layout->starts[b];
        reverse_u32(layout->indices + (n - layout->starts[b + 1]), size);
    }
    for (size_t b = 0; b + 1 < count - b; b++) {
        uint64_t t = layout->limits[b];
        layout->limits[b] = layout->limits[count - 1 - b];
        layout->limits[count - 1 - b] = t;
    }
    reverse_u32(layout->starts, count + 1);
    for (size_t b = 0; b <= count; b++) layout->starts[b] = (uint32_t)n - layout->starts[b];
}

uint64_t cd_bucket_layout_digest(const cd_bucket_layout *layout)
{
    uint64_t h = layout->bucket_count;
    for (size_t b = 0; b < layout->bucket_count; b++) {
        h = cd_hash_mix(h, layout->starts[b + 1] - layout->starts[b]);
        for (uint32_t i = layout->starts[b]; i < layout->starts[b + 1]; i++)
            h = cd_hash_mix(h, layout->indices[i]);
    }
    return h;
}

void cd_bucket_layout_audit(const cd_bucket_layout *layout)
{
    CD_ASSERT(layout->starts[0] == 0);
    CD_ASSERT(layout->starts[layout->bucket_count] == layout->variable_count);
    uint64_t sum = 0, expected = 0;
    for (size_t b = 0; b < layout->bucket_count; b++)
        CD_ASSERT(layout->starts[b] < layout->starts[b + 1]);
    for (size_t i = 0; i < layout->variable_count; i++) {
        CD_ASSERT(layout->indices[i] < layout->variable_count);
        sum += layout->indices[i];
        expected += i;
    }
    CD_ASSERT(sum == expected);
}

uint64_t cd_bucket_cap_bytes(double mib) { return (uint64_t)(mib * 1048576.0); }

size_t cd_bucket_caps_initial(const cd_bucket_caps *caps, bool one_bucket, uint64_t limits[2],
                              const uint64_t **chosen)
{
    if (caps->list_count > 0) {
        *chosen = caps->list;
        return caps->list_count;
    }
    *chosen = limits;
    /* In the first iteration registration order need not be execution order; an early all-reduce
    ** could then cross other collectives of the backward, so everything of a dtype waits for one
    ** bucket (BKT-11). */
    if (one_bucket) {
        limits[0] = CD_BUCKET_LIMIT_INFINITE;
        return 1;
    }
    if (!caps->is_default) {
        limits[0] = caps->capacity_bytes;
        return 1;
    }
    return cd_bucket_caps_rebuild(caps, limits, chosen);
}

size_t cd_bucket_caps_rebuild(const cd_bucket_caps *caps, uint64_t limits[2],
                              const uint64_t **chosen)
{
    if (caps->list_count > 0) {
        *chosen = caps->list;
        return caps->list_count;
    }
    limits[0] = caps->first_bytes;
    limits[1] = caps->capacity_bytes;
    *chosen = limits;
    return 2;
}
