/* SPDX-License-Identifier: Apache-2.0 */
/* Options: PyTorch's names and defaults, refused combinations, capacities in bytes. */
#include "core/ddp/parts/options.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

cddp_ddp_options cddp_ddp_options_default(void)
{
    return (cddp_ddp_options){
        .size = sizeof(cddp_ddp_options),
        .broadcast_buffers = true,
        .init_sync = true,
        .first_bucket_bytes = CDDP_DEFAULT_FIRST_BUCKET_BYTES,
        .mixed_param_dtype = CDDP_DTYPE_COUNT,
        .mixed_reduce_dtype = CDDP_DTYPE_COUNT,
        .mixed_buffer_dtype = CDDP_DTYPE_COUNT,
        .sample_rate = 100,
        .strict = true,
    };
}

cddp_join_options cddp_join_options_default(void)
{
    return (cddp_join_options){.size = sizeof(cddp_join_options),
                               .enable = true,
                               .divide_by_initial_world_size = true};
}

cddp_ddp_options cd_ddp_options_complete(const cddp_ddp_options *given)
{
    cddp_ddp_options options = cddp_ddp_options_default();
    size_t known = given->size < sizeof options ? given->size : sizeof options;
    memcpy(&options, given, known);
    options.size = sizeof options;
    return options;
}

static cddp_status check_capacity(double mib, const char *which, cddp_error *err)
{
    if (!(mib > 0.0) || mib > 1048576.0)
        return cd_fail(err, CDDP_E_CONFIG, "%s is %g MiB; it must be above 0 and at most 1048576",
                       which, mib);
    return CDDP_OK;
}

static cddp_status check_mixed(const cddp_ddp_options *o, cddp_error *err)
{
    const struct {
        const char *name;
        cddp_dtype dtype;
    } rows[] = {{"mixed_param_dtype", o->mixed_param_dtype},
                {"mixed_reduce_dtype", o->mixed_reduce_dtype},
                {"mixed_buffer_dtype", o->mixed_buffer_dtype}};
    for (size_t i = 0; i < 3; i++)
        if ((unsigned)rows[i].dtype > CDDP_DTYPE_COUNT)
            return cd_fail(err, CDDP_E_ARG, "%s is %d, which is no dtype", rows[i].name,
                           (int)rows[i].dtype);
    for (size_t i = 0; i < 3; i++)
        if (rows[i].dtype != CDDP_DTYPE_COUNT && !cddp_dtype_is_float(rows[i].dtype))
            return cd_fail(err, CDDP_E_CONFIG, "%s is %s; mixed precision takes floating dtypes",
                           rows[i].name, cddp_dtype_name(rows[i].dtype));
    bool mixed =
        o->mixed_param_dtype != CDDP_DTYPE_COUNT || o->mixed_reduce_dtype != CDDP_DTYPE_COUNT;
    /* The averaged gradient has full precision and cannot live in a low-precision bucket. */
    if (mixed && o->gradient_as_bucket_view)
        return cd_fail(err, CDDP_E_CONFIG,
                       "gradient_as_bucket_view cannot be combined with mixed precision");
    return CDDP_OK;
}

/* A hook that accumulates outside of `.grad` must see every gradient exactly once. */
static cddp_status check_accumulation(const cddp_ddp_options *o, cddp_error *err)
{
    bool mixed =
        o->mixed_param_dtype != CDDP_DTYPE_COUNT || o->mixed_reduce_dtype != CDDP_DTYPE_COUNT;
    if (o->average_contributions && !o->accumulate_in_hook)
        return cd_fail(err, CDDP_E_CONFIG,
                       "average_contributions needs accumulate_in_hook: otherwise nobody sees the "
                       "contributions");
    if (!o->accumulate_in_hook) return CDDP_OK;
    if (o->static_graph)
        return cd_fail(err, CDDP_E_CONFIG,
                       "accumulate_in_hook cannot be combined with static_graph, whose first pass "
                       "delays every gradient");
    if (mixed)
        return cd_fail(err, CDDP_E_CONFIG,
                       "accumulate_in_hook cannot be combined with mixed precision, which brings "
                       "another hook");
    return CDDP_OK;
}

static cddp_status check_options(const cddp_ddp_options *o, cddp_error *err)
{
    if (o->group == NULL)
        return cd_fail(err, CDDP_E_CONFIG, "options.group is NULL: DDP needs a process group");
    if (o->sample_rate < 1) /* ERR-15; and the sign of options that were zeroed */
        return cd_fail(err, CDDP_E_CONFIG,
                       "sample_rate is 0; statistics are sampled every sample_rate >= 1 "
                       "iterations. Begin with cddp_ddp_options_default(): zeroed options are not "
                       "the defaults");
    if (o->parameter_count > 0 && o->parameters == NULL)
        return cd_fail(err, CDDP_E_ARG, "options.parameters is NULL but parameter_count is %zu",
                       o->parameter_count);
    if (o->buffer_count > 0 && o->buffers == NULL)
        return cd_fail(err, CDDP_E_ARG, "options.buffers is NULL but buffer_count is %zu",
                       o->buffer_count);
    if (o->ignore_count > 0 && o->parameters_and_buffers_to_ignore == NULL)
        return cd_fail(err, CDDP_E_ARG, "the ignore list is NULL but ignore_count is %zu",
                       o->ignore_count);
    if (o->delay_all_reduce_count > 0 && o->delay_all_reduce_named_params == NULL)
        return cd_fail(err, CDDP_E_ARG,
                       "delay_all_reduce_named_params is NULL but its count is %zu",
                       o->delay_all_reduce_count);
    if (o->bucket_cap_mb_list_count > 0 && o->bucket_cap_mb_list == NULL)
        return cd_fail(err, CDDP_E_ARG, "bucket_cap_mb_list is NULL but its count is %zu",
                       o->bucket_cap_mb_list_count);
    /* INI-03: the two options of the delayed all-reduce come only as a pair. */
    if ((o->delay_all_reduce_count > 0) != (o->param_to_hook_all_reduce != NULL))
        return cd_fail(err, CDDP_E_CONFIG,
                       "delay_all_reduce_named_params and param_to_hook_all_reduce come only as a "
                       "pair; %s is missing",
                       o->delay_all_reduce_count > 0 ? "param_to_hook_all_reduce"
                                                     : "delay_all_reduce_named_params");
    if (o->bucket_cap_mb != 0.0) CD_TRY(check_capacity(o->bucket_cap_mb, "bucket_cap_mb", err));
    for (size_t i = 0; i < o->bucket_cap_mb_list_count; i++)
        CD_TRY(check_capacity(o->bucket_cap_mb_list[i], "an entry of bucket_cap_mb_list", err));
    if (o->strict && o->first_bucket_bytes != CDDP_DEFAULT_FIRST_BUCKET_BYTES &&
        (o->bucket_cap_mb != 0.0 || o->bucket_cap_mb_list_count > 0)) /* BKT-12 */
        return cd_fail(err, CDDP_E_CONFIG,
                       "first_bucket_bytes is %" PRIu64 ", but %s gives the first bucket its size: "
                       "set one of them",
                       o->first_bucket_bytes,
                       o->bucket_cap_mb != 0.0 ? "bucket_cap_mb" : "bucket_cap_mb_list");
    if (o->strict && o->bucket_cap_mb != 0.0 && o->bucket_cap_mb_list_count > 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "bucket_cap_mb is %g, but bucket_cap_mb_list gives every bucket its size: "
                       "set one of them",
                       o->bucket_cap_mb);
    if (o->strict && o->skip_all_reduce_unused_params && !o->find_unused_parameters &&
        !o->static_graph) /* UNU-14 */
        return cd_fail(err, CDDP_E_CONFIG,
                       "skip_all_reduce_unused_params needs find_unused_parameters or "
                       "static_graph: otherwise nobody knows which parameters are unused");
    CD_TRY(check_accumulation(o, err));
    return CD_PASS(check_mixed(o, err));
}

/* BKT-12: the small first bucket exists only while nobody asked for a capacity. */
static cddp_status set_caps(cd_ddp_config *c, const cddp_ddp_options *o, cd_arena *arena,
                            cddp_error *err)
{
    double mib = o->bucket_cap_mb != 0.0 ? o->bucket_cap_mb : 25.0;
    size_t n = o->bucket_cap_mb_list_count;
    c->caps.capacity_bytes = cd_bucket_cap_bytes(mib);
    c->caps.is_default = o->bucket_cap_mb == 0.0 && n == 0;
    if (n > 0) {
        uint64_t *list = cd_arena_array(arena, n, sizeof *list);
        if (list == NULL) return cd_fail_memory(err, "%zu bucket capacities", n);
        c->caps.capacity_bytes = 0;
        for (size_t i = 0; i < n; i++) {
            list[i] = cd_bucket_cap_bytes(o->bucket_cap_mb_list[i]);
            if (list[i] > c->caps.capacity_bytes) c->caps.capacity_bytes = list[i];
        }
        c->caps.list = list;
        c->caps.list_count = n;
    }
    c->caps.first_bytes = c->caps.is_default ? o->first_bucket_bytes : c->caps.capacity_bytes;
    return CDDP_OK;
}

cddp_status cd_ddp_config_init(cd_ddp_config *config, const cddp_ddp_options *o, cd_arena *arena,
                               cddp_error *err)
{
    CD_TRY(check_options(o, err));
    cd_ddp_config c = {
        .broadcast_buffers = o->broadcast_buffers,
        .init_sync = o->init_sync,
        .find_unused_parameters = o->find_unused_parameters,
        .static_graph = o->static_graph,
        .gradient_as_bucket_view = o->gradient_as_bucket_view,
        .batched_grad_copy = o->batched_grad_copy,
        .skip_all_reduce_unused_params = o->skip_all_reduce_unused_params,
        .set_last_bucket_cap = o->set_last_bucket_cap,
        .join_broadcast_optimizer_state = o->join_broadcast_optimizer_state,
        .accumulate_in_hook = o->accumulate_in_hook,
        .average_contributions = o->average_contributions,
        .strict = o->strict,
        .param_dtype = o->mixed_param_dtype,
        .reduce_dtype = o->mixed_reduce_dtype,
        .buffer_dtype = o->mixed_buffer_dtype,
        .sample_rate = o->sample_rate,
    };
    c.mixed_precision = c.param_dtype != CDDP_DTYPE_COUNT || c.reduce_dtype != CDDP_DTYPE_COUNT ||
                        c.buffer_dtype != CDDP_DTYPE_COUNT;
    CD_TRY(set_caps(&c, o, arena, err));
    *config = c;
    return CDDP_OK;
}

static const char *dtype_or_none(cddp_dtype dtype)
{
    return dtype == CDDP_DTYPE_COUNT ? "none" : cddp_dtype_name(dtype);
}

void cd_ddp_config_print(const cd_ddp_config *c, char *text, size_t text_bytes)
{
    int n = snprintf(
        text, text_bytes,
        "broadcast_buffers=%d find_unused_parameters=%d static_graph=%d batched_grad_copy=%d "
        "skip_all_reduce_unused_params=%d set_last_bucket_cap=%d accumulate_in_hook=%d "
        "average_contributions=%d param_dtype=%s reduce_dtype=%s "
        "buffer_dtype=%s first_bucket_bytes=%" PRIu64 " bucket_cap_bytes=%" PRIu64,
        c->broadcast_buffers, c->find_unused_parameters, c->static_graph, c->batched_grad_copy,
        c->skip_all_reduce_unused_params, c->set_last_bucket_cap, c->accumulate_in_hook,
        c->average_contributions, dtype_or_none(c->param_dtype), dtype_or_none(c->reduce_dtype),
        dtype_or_none(c->buffer_dtype), c->caps.first_bytes, c->caps.capacity_bytes);
    for (size_t i = 0; i < c->caps.list_count && n > 0 && (size_t)n < text_bytes; i++)
        n += snprintf(text + n, text_bytes - (size_t)n, " cap[%zu]=%" PRIu64, i, c->caps.list[i]);
}
