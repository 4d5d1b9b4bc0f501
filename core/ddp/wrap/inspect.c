/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about a running DDP: variables, buckets, the used map, the logging struct
** (LOG-01, LOG-02). */
#include "core/ddp/wrap/ddp.h"

#include "core/base/error.h"
#include "core/base/sized.h"
#include "core/ddp/optimizers/zero_step.h"

#include <inttypes.h>
#include <string.h>

int64_t cddp_ddp_variable_index(const cddp_ddp *d, const char *name)
{
    if (d == NULL || name == NULL) return -1;
    int64_t ordinal = cd_wrapped_find_parameter(&d->module, name);
    if (ordinal < 0 || d->module.parameters[ordinal].variable == CD_NOT_REDUCED) return -1;
    return d->module.parameters[ordinal].variable;
}

size_t cddp_ddp_variable_count(const cddp_ddp *d)
{
    return d != NULL ? d->module.variable_count : 0;
}

uint32_t cddp_ddp_bucket_count(const cddp_ddp *d)
{
    return d != NULL && d->has_reducer ? (uint32_t)d->reducer.buckets.bucket_count : 0;
}

cddp_status cddp_ddp_bucket(const cddp_ddp *d, uint32_t bucket, cddp_bucket_info *info,
                            cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(info, cddp_bucket_info, offsets, err));
    if (bucket >= cddp_ddp_bucket_count(d))
        return cd_fail(err, CDDP_E_ARG, "bucket %u of %u", bucket, cddp_ddp_bucket_count(d));
    const cd_bucket_set *set = &d->reducer.buckets;
    const cd_bucket *b = &set->buckets[bucket];
    const cddp_bucket_info own = {.size = sizeof own,
                                  .generation = set->generation,
                                  .dtype = b->flat.dtype,
                                  .numel = cddp_tensor_numel(&b->flat),
                                  .limit_bytes = b->limit_bytes,
                                  .variable_count = b->variable_count,
                                  .variables = set->layout.indices + b->first_slot,
                                  .offsets = set->offsets + b->first_slot};
    cd_sized_fill(info, &own, sizeof own);
    return CDDP_OK;
}

int64_t cddp_ddp_optimizer_owner(const cddp_ddp *d, size_t variable)
{
    return d != NULL && d->has_reducer && variable < d->module.variable_count
               ? cd_zero_owner(&d->reducer, variable)
               : -1;
}

bool cddp_ddp_local_used_map(const cddp_ddp *d, int32_t *map)
{
    if (d == NULL || map == NULL || !d->has_reducer || d->reducer.used_map.count == 0) return false;
    memcpy(map, d->reducer.used_map.reduced.host, d->reducer.used_map.reduced.bytes);
    return true;
}

/* ---- texts ---- */

static void append_dtypes(cd_logger *log, const cd_wrapped *m)
{
    uint32_t seen = 0;
    for (size_t v = 0; v < m->variable_count; v++) {
        cddp_dtype dtype = cd_wrapped_variable(m, v)->tensor.form->like.dtype;
        if (seen & CDDP_DTYPE_BIT(dtype)) continue;
        cd_logger_text_append(log, "%s%s", seen != 0 ? ", " : "", cddp_dtype_name(dtype));
        seen |= CDDP_DTYPE_BIT(dtype);
    }
}

static void append_size(cd_logger *log, size_t bucket, uint64_t bytes)
{
    cd_logger_text_append(log, "%s%" PRIu64, bucket > 0 ? ", " : "", bytes);
}

/* "5 4, 3 2": the variables of each bucket. */
static void append_bucket_indices(cd_logger *log, const cd_bucket_layout *l)
{
    for (size_t b = 0; b < l->bucket_count; b++)
        for (uint32_t i = l->starts[b]; i < l->starts[b + 1]; i++)
            cd_logger_text_append(log, "%s%u",
                                  i > l->starts[b] ? " "
                                  : b > 0          ? ", "
                                                   : "",
                                  l->indices[i]);
}

static void append_ready_order(cd_logger *log, const cd_reducer *r)
{
    for (size_t i = 0; i < r->ready_order_count; i++)
        cd_logger_text_append(log, "%s%u", i > 0 ? " " : "", r->ready_order[i]);
}

static void fill_texts(cddp_ddp *d, cddp_ddp_logging *out)
{
    cd_logger *log = &d->logger;
    cd_reducer *r = &d->reducer;
    size_t at[5];
    cd_logger_text_begin(log);
    append_dtypes(log, &d->module);
    at[0] = cd_logger_text_cut(log, 0);
    at[1] = log->text_used;
    for (size_t b = 0; b < d->first_size_count; b++) append_size(log, b, d->first_sizes[b]);
    cd_logger_text_cut(log, at[1]);
    at[2] = log->text_used;
    for (size_t b = 0; r->has_rebuilt && b < r->buckets.bucket_count; b++)
        append_size(log, b, cd_bucket_bytes(&r->buckets.buckets[b]));
    cd_logger_text_cut(log, at[2]);
    at[3] = log->text_used;
    if (r->has_rebuilt) append_bucket_indices(log, &r->buckets.layout);
    cd_logger_text_cut(log, at[3]);
    at[4] = log->text_used;
    append_ready_order(log, r);
    cd_logger_text_cut(log, at[4]);
    out->dtypes = cd_logger_text_at(log, at[0]);
    out->bucket_sizes = cd_logger_text_at(log, at[1]);
    out->rebuilt_bucket_sizes = cd_logger_text_at(log, at[2]);
    out->rebuilt_per_bucket_param_indices = cd_logger_text_at(log, at[3]);
    out->prev_iteration_grad_ready_order_indices = cd_logger_text_at(log, at[4]);
}

/* ---- numbers ---- */

static uint64_t unused_bytes(const cd_reducer *r)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->unused_count; i++) {
        const cd_tensor_form *form = cd_wrapped_variable(r->module, r->unused[i])->tensor.form;
        bytes += (uint64_t)form->numel * cddp_dtype_bytes(form->like.dtype);
    }
    return bytes;
}

static void fill_times(const cd_logger *log, cddp_ddp_logging *out)
{
    uint64_t n = log->sample_count;
    if (n == 0) return;
    out->avg_forward_compute_ns = log->sum_forward_ns / n;
    out->avg_backward_compute_ns = log->sum_backward_compute_ns / n;
    out->avg_backward_comm_ns = log->sum_comm_ns / n;
    out->avg_backward_compute_comm_overlap_ns = log->sum_overlap_ns / n;
}

static void fill_run_time(cddp_ddp *d, cddp_ddp_logging *out)
{
    const cd_reducer *r = &d->reducer;
    out->iteration = r->iteration;
    out->unused_parameter_bytes = unused_bytes(r);
    out->static_graph = r->static_graph;
    out->has_rebuilt_buckets = r->has_rebuilt;
    out->can_set_static_graph = cd_reducer_is_dynamic(r) && r->graph_was_static;
    out->comm_hook = r->hook != NULL ? r->hook->name : "";
    out->growth_count = r->growth_count + r->sparse.growth_count + d->buffers.growth_count +
                        d->mixed.growth_count + d->shadow.growth_count;
    fill_times(&d->logger, out);
    fill_texts(d, out);
}

cddp_status cddp_ddp_get_logging(cddp_ddp *d, cddp_ddp_logging *logging, cddp_error *err)
{
    if (d == NULL) return cd_fail(err, CDDP_E_ARG, "the DDP object is NULL");
    CD_TRY(CD_SIZED_CHECK(logging, cddp_ddp_logging, world_size, err));
    cddp_ddp_logging out = {
        .size = sizeof out,
        .world_size = d->group != NULL ? cddp_group_size(d->group) : 0,
        .rank = d->group != NULL ? cddp_group_rank(d->group) : 0,
        .parameter_tensor_count = d->module.variable_count,
        .total_parameter_bytes = d->module.total_bytes,
        .bucket_cap_bytes = d->config.caps.capacity_bytes,
        .first_bucket_bytes = d->config.caps.first_bytes,
        .sample_rate = d->config.sample_rate,
        .broadcast_buffers = d->config.broadcast_buffers,
        .find_unused_parameters = d->config.find_unused_parameters,
        .gradient_as_bucket_view = d->config.gradient_as_bucket_view,
        .join_uneven_inputs = d->join.is_enabled,
        .has_error = d->logger.has_error,
        .backend_name = d->group != NULL ? cddp_group_backend_name(d->group) : "",
        .error = d->logger.has_error ? d->logger.error.message : "",
        .comm_hook = "",
        .dtypes = "",
        .bucket_sizes = "",
        .rebuilt_bucket_sizes = "",
        .rebuilt_per_bucket_param_indices = "",
        .prev_iteration_grad_ready_order_indices = "",
    };
    if (d->has_reducer) fill_run_time(d, &out);
    cd_sized_fill(logging, &out, sizeof out);
    return CDDP_OK;
}
