/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of gradients. Dense sums are element-wise; sparse ones are unions of rows in increasing
** order; a sparse gradient added to a dense one is scattered into it, as in PyTorch.
**
** The slot's storage: a dense gradient is made in `backing` (cddp_grad_define), a sparse one in two
** tensors of the parameter's full size that are made once, so that steady iterations allocate
** nothing.
*/
#include "core/model/accumulate.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/model/engine.h"
#include "core/model/op.h"

#include <string.h>

/* ---- dense ---- */

static cddp_status own_dense(cd_graph *graph, cd_gradient *sum, cddp_error *err)
{
    if (sum->owned || sum->value.storage == NULL) return CDDP_OK;
    const cddp_tensor *t = &sum->value;
    cddp_tensor copy;
    CD_TRY(cd_graph_tensor(graph, t->dtype, t->sizes, t->dim_count, &copy, err));
    CD_TRY(copy.device->copy(&copy, t, NULL, err));
    sum->value = copy;
    sum->owned = true;
    return CDDP_OK;
}

/* ---- rows ---- */

static int64_t row_count(const cddp_tensor *rows) { return rows->sizes[0]; }

static size_t row_bytes(const cddp_tensor *value)
{
    return (size_t)cd_tensor_row_numel(value) * cddp_dtype_bytes(value->dtype);
}

/* A view of one row of a (row_count, …) tensor. */
static cddp_tensor row_of(const cddp_tensor *value, int64_t row)
{
    int64_t numel = cd_tensor_row_numel(value);
    return cddp_tensor_of(value->device, value->storage, value->offset + row * numel, value->dtype,
                          &numel, 1);
}

/* dense[rows[i]] += value[i], in increasing order of rows. */
static cddp_status scatter_add(const cddp_tensor *dense, const cddp_tensor *value,
                               const cddp_tensor *rows, cddp_stream *stream, cddp_error *err)
{
    const int64_t *row = cd_tensor_data(rows);
    for (int64_t i = 0; i < row_count(rows); i++) {
        cddp_tensor to = row_of(dense, row[i]), from = row_of(value, i);
        CD_TRY(to.device->reduce(CDDP_RED_SUM, &to, &from, stream, err));
    }
    return CDDP_OK;
}

/* The union of two sparse gradients in the tape: rows present in both are a's plus b's. */
static cddp_status merge_rows(cd_graph *graph, const cd_gradient *a, const cd_gradient *b,
                              cd_gradient *merged, cddp_error *err)
{
    int64_t na = row_count(&a->rows), nb = row_count(&b->rows), n = na + nb;
    const int64_t *ra = cd_tensor_data(&a->rows), *rb = cd_tensor_data(&b->rows);
    cd_gradient m = {.kind = CDDP_GRAD_SPARSE, .owned = true};
    CD_TRY(cd_graph_tensor(graph, CDDP_I64, &n, 1, &m.rows, err));
    cddp_tensor shape = a->value;
    shape.sizes[0] = n;
    CD_TRY(cd_graph_tensor(graph, shape.dtype, shape.sizes, shape.dim_count, &m.value, err));
    int64_t *out = cd_tensor_data(&m.rows), i = 0, j = 0, k = 0;
    size_t bytes = row_bytes(&a->value);
    for (; i < na || j < nb; k++) {
        bool from_a = i < na && (j >= nb || ra[i] <= rb[j]);
        bool from_b = j < nb && (i >= na || rb[j] <= ra[i]);
        out[k] = from_a ? ra[i] : rb[j];
        cddp_tensor to = row_of(&m.value, k),
                    first = from_a ? row_of(&a->value, i) : row_of(&b->value, j);
        memcpy(cd_tensor_data(&to), cd_tensor_data(&first), bytes);
        if (from_a && from_b) {
            cddp_tensor second = row_of(&b->value, j);
            CD_TRY(to.device->reduce(CDDP_RED_SUM, &to, &second, NULL, err));
        }
        i += from_a;
        j += from_b;
    }
    m.rows.sizes[0] = m.value.sizes[0] = k;
    *merged = m;
    return CDDP_OK;
}

cddp_status cd_gradient_add(cd_graph *graph, cd_gradient *sum, const cd_gradient *gradient,
                            cddp_error *err)
{
    if (gradient->kind == CDDP_GRAD_UNDEFINED) return CDDP_OK;
    if (sum->kind == CDDP_GRAD_UNDEFINED) {
        *sum = *gradient;
        sum->owned = false; /* whoever sent it may have sent it elsewhere too */
        return CDDP_OK;
    }
    if (sum->kind == CDDP_GRAD_SPARSE && gradient->kind == CDDP_GRAD_SPARSE) {
        cd_gradient merged;
        CD_TRY(merge_rows(graph, sum, gradient, &merged, err));
        *sum = merged;
        return CDDP_OK;
    }
    const cd_gradient *dense = sum->kind == CDDP_GRAD_DENSE ? sum : gradient;
    const cd_gradient *other = dense == sum ? gradient : sum;
    cd_gradient total = *dense;
    if (dense != sum) total.owned = false;
    if (total.value.storage == NULL) { /* defined, no numbers here */
        *sum = total;
        return CDDP_OK;
    }
    CD_TRY(own_dense(graph, &total, err));
    if (other->kind == CDDP_GRAD_SPARSE)
        CD_TRY(scatter_add(&total.value, &other->value, &other->rows, NULL, err));
    else
        CD_TRY(total.value.device->reduce(CDDP_RED_SUM, &total.value, &other->value, NULL, err));
    *sum = total;
    return CDDP_OK;
}

/* ---- the slot ---- */

static cddp_stream *stream_of(const cd_graph *graph, uint32_t parameter)
{
    const cd_graph_callbacks *cb = &graph->callbacks;
    return cb->stream != NULL ? cb->stream(cb->context, parameter) : NULL;
}

static cddp_status make_once(cddp_tensor *tensor, const cddp_device *device, cddp_dtype dtype,
                             const int64_t *sizes, uint32_t dim_count, cddp_error *err)
{
    if (tensor->device != NULL) return CDDP_OK;
    cddp_tensor t = cddp_tensor_of(device, NULL, 0, dtype, sizes, dim_count);
    int64_t numel = cddp_tensor_numel(&t);
    CD_TRY(device->allocate(device, dtype, numel > 0 ? numel : 1, &t.storage, err));
    *tensor = t;
    return CDDP_OK;
}

/* The contribution of this firing: the numbers of the tape, or the world's own values, or zero. */
static cddp_status write_contribution(cd_graph *graph, uint32_t parameter,
                                      const cd_gradient *gradient, const cddp_tensor *target,
                                      cddp_error *err)
{
    const cd_graph_callbacks *cb = &graph->callbacks;
    size_t bytes = (size_t)cddp_tensor_numel(target) * cddp_dtype_bytes(target->dtype);
    if (!cd_graph_computes(graph))
        return CD_PASS(cb->fresh != NULL ? cb->fresh(cb->context, parameter, target, err)
                                         : target->device->fill(target, 0.0, NULL, err));
    return bytes > 0 ? target->device->write(target, cd_tensor_data(&gradient->value), bytes, err)
                     : CDDP_OK;
}

/* Where the slot's numbers are not the host's: into a new slot, or through a second operand of the
** device's sum. */
static cddp_status accumulate_there(cd_graph *graph, uint32_t parameter,
                                    const cd_gradient *gradient, cddp_error *err)
{
    cd_parameter *p = &graph->module->parameters[parameter];
    const cddp_tensor *t = cd_graph_source(graph, parameter);
    if (p->grad.kind == CDDP_GRAD_UNDEFINED) {
        CD_TRY(cddp_grad_define(&p->grad, t, err));
        return CD_PASS(write_contribution(graph, parameter, gradient, &p->grad.value, err));
    }
    cd_parameter_extra *extra = NULL;
    CD_TRY(cd_module_get_extra(graph->module, parameter, &extra, err));
    CD_TRY(make_once(&extra->addend, t->device, t->dtype, t->sizes, t->dim_count, err));
    CD_TRY(write_contribution(graph, parameter, gradient, &extra->addend, err));
    return CD_PASS(t->device->reduce(CDDP_RED_SUM, &p->grad.value, &extra->addend, NULL, err));
}

static cddp_status store_sparse(cd_graph *graph, uint32_t parameter, const cd_gradient *gradient,
                                cddp_error *err)
{
    cd_parameter *p = &graph->module->parameters[parameter];
    const cddp_tensor *t = &p->tensor;
    cd_parameter_extra *extra = NULL;
    CD_TRY(cd_module_get_extra(graph->module, parameter, &extra, err));
    CD_TRY(make_once(&extra->sparse_value, t->device, gradient->value.dtype, t->sizes, t->dim_count,
                     err));
    CD_TRY(make_once(&extra->sparse_rows, t->device, CDDP_I64, t->sizes, 1, err));
    int64_t n = row_count(&gradient->rows);
    CD_ASSERT(n <= t->sizes[0]);
    cddp_tensor value = extra->sparse_value, rows = extra->sparse_rows;
    value.sizes[0] = rows.sizes[0] = n;
    if (n > 0) {
        memcpy(cd_tensor_data(&rows), cd_tensor_data(&gradient->rows), (size_t)n * sizeof(int64_t));
        memcpy(cd_tensor_data(&value), cd_tensor_data(&gradient->value),
               (size_t)n * row_bytes(&value));
    }
    p->grad.kind = CDDP_GRAD_SPARSE;
    p->grad.value = value;
    p->grad.rows = cddp_rows_of(&rows);
    return CDDP_OK;
}

/* Slot and gradient are not both dense. */
static cddp_status accumulate_mixed(cd_graph *graph, uint32_t parameter,
                                    const cd_gradient *gradient, cddp_error *err)
{
    cddp_grad *slot = &graph->module->parameters[parameter].grad;
    if (slot->kind == CDDP_GRAD_UNDEFINED) {
        CD_TRY(store_sparse(graph, parameter, gradient, err));
        slot->is_fresh = true;
        return CDDP_OK;
    }
    if (slot->kind == CDDP_GRAD_DENSE)
        return CD_PASS(scatter_add(&slot->value, &gradient->value, &gradient->rows,
                                   stream_of(graph, parameter), err));
    cd_gradient sum = {.kind = CDDP_GRAD_SPARSE,
                       .value = slot->value,
                       .rows = cddp_rows_tensor(&slot->rows)};
    CD_TRY(cd_gradient_add(graph, &sum, gradient, err));
    if (sum.kind == CDDP_GRAD_SPARSE) return CD_PASS(store_sparse(graph, parameter, &sum, err));
    cddp_grad_drop(slot);
    CD_TRY(cddp_grad_define(slot, cd_graph_source(graph, parameter), err));
    return CD_PASS(
        slot->value.device->copy(&slot->value, &sum.value, stream_of(graph, parameter), err));
}

cddp_status cd_grad_accumulate(cd_graph *graph, uint32_t parameter, const cd_gradient *gradient,
                               cddp_error *err)
{
    cddp_grad *slot = &graph->module->parameters[parameter].grad;
    const bool is_new = slot->kind == CDDP_GRAD_UNDEFINED;
    cddp_status status = CDDP_OK;
    if (!cd_graph_computes(graph) || graph->is_far) {
        status = accumulate_there(graph, parameter, gradient, err);
    } else if (gradient->kind == CDDP_GRAD_SPARSE || slot->kind == CDDP_GRAD_SPARSE) {
        status = accumulate_mixed(graph, parameter, gradient, err);
    } else if (slot->kind == CDDP_GRAD_DENSE) {
        status = slot->value.device->reduce(CDDP_RED_SUM, &slot->value, &gradient->value,
                                            stream_of(graph, parameter), err);
    } else {
        CD_TRY(cddp_grad_define(slot, cd_graph_source(graph, parameter), err));
        status = slot->value.device->copy(&slot->value, &gradient->value,
                                          stream_of(graph, parameter), err);
    }
    if (status != CDDP_OK) {
        if (is_new) cddp_grad_drop(slot); /* a half-made gradient is none */
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        return status;
    }
    slot->requires_grad = graph->backward != NULL && graph->backward->create_graph;
    return CDDP_OK;
}
