/* SPDX-License-Identifier: Apache-2.0 */
/* Reducing a sparse gradient: gather row counts, gather rows and values, sum in rank order.
**
**     rank 0: rows {0,4}        counts 2,2      rows 0 4 | 1 4        union {0,1,4}
**     rank 1: rows {1,4}   ──▶             ──▶  values a b | c d  ──▶ values a, c, b+d
**                                                                     on every rank alike
**
** Each row of the union starts at zero and receives the ranks' rows in rank order, so the bits are
** equal on all ranks whatever the backend. With metadata (SPA-04) the union is known beforehand:
** rows are scattered into it and one dense all-reduce does the rest.
**
** Limitations: the first form moves all rows to all ranks, as Gloo's does; rows need not be sorted
** or unique on entry.
*/
#include "core/ddp/modes/sparse.h"

#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"

#include <string.h>

/* Storage of one dtype on one device that grows. */
typedef struct storage {
    const cddp_device *device;
    cddp_dtype dtype;
    int64_t capacity;
    void *block;
} storage;

struct cd_sparse {
    const cd_variable *variable;
    uint32_t index; /* of the variable */
    cd_sparse_set *set;
    cddp_group *group;
    int64_t columns;                 /* elements per row */
    cd_control count_one, count_all; /* i64 */
    cd_control rows_one, rows_all;   /* i64 */
    int64_t *shares;                 /* (share_capacity) rows per rank, then elements per rank */
    size_t share_capacity;
    storage gathered, result;
    int64_t *rows; /* (row_count) of the result, strictly increasing; room for row_capacity */
    size_t row_count, row_capacity;
    bool has_metadata;
    /* what this rank's gradient borrows while the rank has joined and others reduce */
    storage aside;
    int64_t *aside_rows;
    size_t aside_capacity;
};

static int64_t columns_of(const cddp_tensor *t)
{
    int64_t columns = 1;
    for (uint32_t i = 1; i < t->dim_count; i++) columns *= t->sizes[i];
    return columns;
}

cddp_status cd_sparse_set_init(cd_sparse_set *set, const cd_wrapped *module, cd_arena *arena,
                               cddp_error *err)
{
    cd_sparse_set s = {.allocator = arena->allocator};
    for (size_t v = 0; v < module->variable_count; v++)
        s.count += cd_wrapped_variable(module, v)->expect_sparse;
    if (s.count == 0) {
        *set = s;
        return CDDP_OK;
    }
    s.items = cd_arena_array(arena, s.count, sizeof *s.items);
    if (s.items == NULL) return cd_fail_memory(err, "%zu sparse parameters", s.count);
    size_t i = 0;
    for (size_t v = 0; v < module->variable_count; v++) {
        const cd_variable *variable = cd_wrapped_variable(module, v);
        if (!variable->expect_sparse) continue;
        s.items[i].variable = variable;
        s.items[i].index = (uint32_t)v;
        s.items[i].columns = columns_of(&variable->tensor.form->like);
        i++;
    }
    *set = s;
    return CDDP_OK;
}

static void release_storage(storage *s)
{
    if (s->block != NULL) s->device->release(s->device, s->dtype, s->capacity, s->block);
    *s = (storage){0};
}

void cd_sparse_set_fini(cd_sparse_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        cd_sparse *s = &set->items[i];
        cd_control_fini(&s->count_one);
        cd_control_fini(&s->count_all);
        cd_control_fini(&s->rows_one);
        cd_control_fini(&s->rows_all);
        release_storage(&s->gathered);
        release_storage(&s->result);
        release_storage(&s->aside);
        cd_release(set->allocator, s->shares, s->share_capacity * sizeof *s->shares);
        cd_release(set->allocator, s->rows, s->row_capacity * sizeof *s->rows);
        cd_release(set->allocator, s->aside_rows, s->aside_capacity * sizeof *s->aside_rows);
    }
    memset(set, 0, sizeof *set);
}

static cd_sparse *find_item(cd_sparse_set *set, uint32_t variable)
{
    for (size_t i = 0; i < set->count; i++) {
        if (set->items[i].index != variable) continue;
        set->items[i].set = set; /* the set may have moved since init */
        return &set->items[i];
    }
    return NULL;
}

/* ---- growing ---- */

static cddp_status need_storage(cd_sparse *s, storage *t, int64_t numel, cddp_error *err)
{
    if (t->block != NULL && t->capacity >= numel) return CDDP_OK;
    release_storage(t);
    const cddp_tensor *like = &s->variable->tensor.form->like;
    int64_t capacity = numel > 0 ? numel : 1;
    void *block = NULL;
    CD_TRY(like->device->allocate(like->device, like->dtype, capacity, &block, err));
    *t = (storage){.device = like->device,
                   .dtype = like->dtype,
                   .capacity = capacity,
                   .block = block};
    s->set->growth_count++;
    return CDDP_OK;
}

/* A control vector of exactly numel elements; kept while the number does not change. */
static cddp_status need_control(cd_sparse *s, cd_control *control, int64_t numel, cddp_error *err)
{
    if (control->host != NULL && control->numel == numel) return CDDP_OK;
    cd_control_fini(control);
    cd_control_spec spec = {.allocator = s->set->allocator,
                            .group = s->group,
                            .dtype = CDDP_I64,
                            .device = s->variable->tensor.form->like.device,
                            .numel = numel};
    s->set->growth_count++;
    return CD_PASS(cd_control_init(control, &spec, err));
}

static cddp_status need_rows(cd_sparse *s, size_t count, cddp_error *err)
{
    if (count > s->row_capacity) s->set->growth_count++;
    if (!cd_vec_grow(s->set->allocator, (void **)&s->rows, &s->row_capacity, count > 0 ? count : 1,
                     sizeof *s->rows))
        return cd_fail_memory(err, "%zu rows of '%s'", count, s->variable->name);
    return CDDP_OK;
}

static cddp_tensor row_view(const cd_sparse *s, const storage *t, int64_t row, int64_t row_count)
{
    int64_t numel = row_count * s->columns;
    return cddp_tensor_of(t->device, t->block, row * s->columns, t->dtype, &numel, 1);
}

/* ---- metadata ---- */

cddp_status cd_sparse_set_metadata(cd_sparse_set *set, size_t variable, const int64_t *rows,
                                   size_t row_count, cddp_error *err)
{
    cd_sparse *s = find_item(set, (uint32_t)variable);
    if (s == NULL)
        return cd_fail(err, CDDP_E_ARG,
                       "sparse metadata for variable %zu, which does not expect a sparse gradient",
                       variable);
    for (size_t i = 0; i < row_count; i++) {
        bool ordered = i == 0 || rows[i - 1] < rows[i];
        if (!ordered || rows[i] < 0 || rows[i] >= s->variable->tensor.form->like.sizes[0])
            return cd_fail(err, CDDP_E_ARG,
                           "sparse metadata of '%s': row %lld at position %zu is out of order or "
                           "outside 0…%lld",
                           s->variable->name, (long long)rows[i], i,
                           (long long)s->variable->tensor.form->like.sizes[0] - 1);
    }
    CD_TRY(need_rows(s, row_count, err));
    memcpy(s->rows, rows, row_count * sizeof *rows);
    s->row_count = row_count;
    s->has_metadata = true;
    return CDDP_OK;
}

void cd_sparse_drop_metadata(cd_sparse_set *set)
{
    for (size_t i = 0; i < set->count; i++) set->items[i].has_metadata = false;
}

static bool find_row(const cd_sparse *s, int64_t row, size_t *position)
{
    size_t low = 0, high = s->row_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->rows[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    *position = low;
    return low < s->row_count && s->rows[low] == row;
}

/* Adds `count` rows of `values`, named by `rows`, into the result, in order. */
static cddp_status add_rows(cd_sparse *s, const int64_t *rows, int64_t count,
                            const cddp_tensor *values, cddp_error *err)
{
    for (int64_t i = 0; i < count; i++) {
        size_t position = 0;
        if (!find_row(s, rows[i], &position))
            return cd_fail(err, CDDP_E_STATE,
                           s->has_metadata
                               ? "'%s' has a gradient in row %lld, which its sparse metadata does "
                                 "not name"
                               : "'%s': row %lld is none of those that the ranks have together",
                           s->variable->name, (long long)rows[i]);
        cddp_tensor dst = row_view(s, &s->result, (int64_t)position, 1);
        cddp_tensor src = cddp_tensor_slice(values, i * s->columns, s->columns);
        CD_TRY(dst.device->reduce(CDDP_RED_SUM, &dst, &src, NULL, err));
    }
    return CDDP_OK;
}

static cddp_status clear_result(cd_sparse *s, cddp_error *err)
{
    CD_TRY(need_storage(s, &s->result, (int64_t)s->row_count * s->columns, err));
    cddp_tensor all = row_view(s, &s->result, 0, (int64_t)s->row_count);
    return CD_PASS(all.device->fill(&all, 0.0, NULL, err));
}

/* A contiguous 1-D view of the local values. */
static cddp_tensor flat_values(const cddp_grad *grad)
{
    int64_t numel = cddp_tensor_numel(&grad->value);
    return cddp_tensor_of(grad->value.device, grad->value.storage, grad->value.offset,
                          grad->value.dtype, &numel, 1);
}

/* Into rows_one, which has room for them. */
static cddp_status read_rows(const cd_sparse *s, const cddp_grad *grad, cddp_error *err)
{
    const cddp_tensor rows = cddp_rows_tensor(&grad->rows);
    return CD_PASS(rows.device->read(&rows, s->rows_one.host, s->rows_one.bytes, err));
}

static cddp_status post_with_metadata(cd_sparse *s, const cd_sparse_launch *launch,
                                      cddp_future *future, cddp_error *err)
{
    CD_TRY(clear_result(s, err));
    if (launch->contribute) {
        const cddp_grad *grad = launch->variable->grad;
        int64_t count = grad->rows.count;
        cddp_tensor values = flat_values(grad);
        CD_TRY(need_control(s, &s->rows_one, count, err));
        CD_TRY(read_rows(s, grad, err));
        CD_TRY(add_rows(s, s->rows_one.host, count, &values, err));
    }
    cddp_grad_bucket label = {.index = launch->bucket};
    cddp_tensor all = row_view(s, &s->result, 0, (int64_t)s->row_count);
    return CD_PASS(cd_future_add_allreduce(future, &label, &all, launch->group, err));
}

/* ---- gathering ---- */

/* The sorted union of all gathered rows. */
static cddp_status build_union(cd_sparse *s, const int64_t *gathered, int64_t total,
                               cddp_error *err)
{
    const int64_t row_end = s->variable->tensor.form->like.sizes[0];
    s->row_count = 0;
    CD_TRY(need_rows(s, (size_t)total, err));
    for (int64_t i = 0; i < total; i++) {
        size_t position = 0;
        if (gathered[i] < 0 || gathered[i] >= row_end)
            return cd_fail(err, CDDP_E_STATE,
                           "a rank has a gradient in row %lld of '%s', which has %lld rows",
                           (long long)gathered[i], s->variable->name, (long long)row_end);
        if (find_row(s, gathered[i], &position)) continue;
        memmove(s->rows + position + 1, s->rows + position,
                (s->row_count - position) * sizeof *s->rows);
        s->rows[position] = gathered[i];
        s->row_count++;
    }
    return CDDP_OK;
}

static cddp_status sum_gathered(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                cddp_error *err)
{
    cd_sparse *s = self;
    (void)bucket, (void)future;
    CD_TRY(cd_control_download(&s->rows_all, err));
    const int64_t *rows = s->rows_all.host;
    CD_TRY(build_union(s, rows, s->rows_all.numel, err));
    CD_TRY(clear_result(s, err));
    int64_t first = 0;
    for (uint32_t rank = 0; rank < cddp_group_size(s->group); rank++) {
        cddp_tensor values = row_view(s, &s->gathered, first, s->shares[rank]);
        CD_TRY(add_rows(s, rows + first, s->shares[rank], &values, err));
        first += s->shares[rank];
    }
    return CDDP_OK;
}

static cddp_status add_allgather(cd_sparse *s, const cddp_grad_bucket *bucket,
                                 const cddp_tensor *in, const cddp_tensor *out,
                                 const int64_t *counts, cddp_future *future, cddp_error *err)
{
    cddp_collective c = {.size = sizeof c,
                         .op = CDDP_OP_ALLGATHER,
                         .input = *in,
                         .output = *out,
                         .counts = counts,
                         .label = (uint64_t)bucket->index + 1};
    CD_TRY(cddp_group_post(s->group, &c, &future->works[future->work_count], err));
    future->work_count++;
    return CDDP_OK;
}

static cddp_status gather_rows(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                               cddp_error *err)
{
    cd_sparse *s = self;
    uint32_t world = cddp_group_size(s->group);
    int64_t total = 0, mine = *(int64_t *)s->count_one.host;
    CD_TRY(cd_control_download(&s->count_all, err));
    const int64_t *counts = s->count_all.host;
    if (!cd_vec_grow(s->set->allocator, (void **)&s->shares, &s->share_capacity, 2 * (size_t)world,
                     sizeof *s->shares))
        return cd_fail_memory(err, "the row counts of %u ranks", world);
    /* Of one rank: a sum of such counts cannot overflow, so nobody is blamed for another's. */
    const int64_t most = INT64_MAX / 16 / (s->columns > 0 ? s->columns : 1) / world;
    for (uint32_t r = 0; r < world; r++) {
        if (counts[r] < 0 || counts[r] > most)
            return cd_fail(err, CDDP_E_CORRUPT, "rank %u sent %lld as its number of rows of '%s'",
                           r, (long long)counts[r], s->variable->name);
        s->shares[r] = counts[r];
        s->shares[world + r] = counts[r] * s->columns;
        total += counts[r];
    }
    CD_TRY(need_control(s, &s->rows_all, total, err));
    CD_TRY(need_storage(s, &s->gathered, total * s->columns, err));
    cddp_tensor out = row_view(s, &s->gathered, 0, total);
    /* A rank without rows still takes part, with nothing. */
    cddp_tensor in = mine > 0 ? flat_values(s->variable->grad) : row_view(s, &s->gathered, 0, 0);
    CD_TRY(
        add_allgather(s, bucket, &s->rows_one.tensor, &s->rows_all.tensor, s->shares, future, err));
    CD_TRY(add_allgather(s, bucket, &in, &out, s->shares + world, future, err));
    future->next = sum_gathered;
    return CDDP_OK;
}

static cddp_status post_counts(cd_sparse *s, const cd_sparse_launch *launch, cddp_future *future,
                               cddp_error *err)
{
    const cddp_grad *grad = launch->variable->grad;
    int64_t mine = launch->contribute ? grad->rows.count : 0;
    cddp_grad_bucket label = {.index = launch->bucket};
    CD_TRY(need_control(s, &s->count_one, 1, err));
    CD_TRY(need_control(s, &s->count_all, cddp_group_size(s->group), err));
    CD_TRY(need_control(s, &s->rows_one, mine, err));
    *(int64_t *)s->count_one.host = mine;
    if (mine > 0) CD_TRY(read_rows(s, grad, err));
    CD_TRY(cd_control_upload(&s->count_one, err));
    CD_TRY(cd_control_upload(&s->rows_one, err));
    CD_TRY(add_allgather(s, &label, &s->count_one.tensor, &s->count_all.tensor, NULL, future, err));
    future->next = gather_rows;
    return CDDP_OK;
}

/* JON-06: the gradient of a joined rank stays as its last step left it, and it borrows the result
** of its last reduction. So the sums of others go elsewhere. */
static void set_gradient_aside(cd_sparse *s)
{
    const cddp_grad *grad = s->variable->grad;
    const bool borrows = grad->kind == CDDP_GRAD_SPARSE && s->result.block != NULL &&
                         grad->value.storage == s->result.block;
    if (!borrows) return;
    const storage result = s->result;
    int64_t *rows = s->rows;
    const size_t capacity = s->row_capacity;
    s->result = s->aside;
    s->aside = result;
    if (s->has_metadata) return; /* its rows are those that the program named */
    s->rows = s->aside_rows;
    s->row_capacity = s->aside_capacity;
    s->aside_rows = rows;
    s->aside_capacity = capacity;
}

cddp_status cd_sparse_launch_reduce(cd_sparse_set *set, const cd_sparse_launch *launch,
                                    cddp_future *future, void **self, cddp_error *err)
{
    cd_sparse *s = find_item(set, launch->index);
    if (s == NULL)
        return cd_fail(err, CDDP_E_ARG, "'%s' is not a sparse parameter", launch->variable->name);
    s->group = launch->group;
    *self = s;
    if (!launch->contribute) set_gradient_aside(s);
    if (s->has_metadata) return CD_PASS(post_with_metadata(s, launch, future, err));
    return CD_PASS(post_counts(s, launch, future, err));
}

void cd_sparse_write_back(cd_sparse_set *set, size_t variable, cddp_grad *grad)
{
    cd_sparse *s = find_item(set, (uint32_t)variable);
    int64_t count = (int64_t)s->row_count;
    grad->kind = CDDP_GRAD_SPARSE;
    grad->value = cddp_tensor_of(s->result.device, s->result.block, 0, s->result.dtype,
                                 s->variable->tensor.form->like.sizes,
                                 s->variable->tensor.form->like.dim_count);
    grad->value.sizes[0] = count;
    grad->rows = (cddp_rows){cddp_device_cpu(), s->rows, 0, count};
    grad->is_fresh = false;
}
