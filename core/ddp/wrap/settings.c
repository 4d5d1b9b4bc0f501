/* SPDX-License-Identifier: Apache-2.0 */
#include "core/ddp/wrap/settings.h"

#include "core/trace/setting.h"

static void emit_flags(const cddp_ddp_options *o, cddp_tracer *tracer)
{
    const struct {
        cddp_key key;
        bool value;
    } flags[] = {
        {CDDP_KEY_ddp_broadcast_buffers, o->broadcast_buffers},
        {CDDP_KEY_ddp_init_sync, o->init_sync},
        {CDDP_KEY_ddp_set_last_bucket_cap, o->set_last_bucket_cap},
        {CDDP_KEY_ddp_find_unused_parameters, o->find_unused_parameters},
        {CDDP_KEY_ddp_gradient_as_bucket_view, o->gradient_as_bucket_view},
        {CDDP_KEY_ddp_static_graph, o->static_graph},
        {CDDP_KEY_ddp_skip_all_reduce_unused_params, o->skip_all_reduce_unused_params},
        {CDDP_KEY_ddp_batched_grad_copy, o->batched_grad_copy},
        {CDDP_KEY_ddp_accumulate_in_hook, o->accumulate_in_hook},
        {CDDP_KEY_ddp_average_contributions, o->average_contributions},
        {CDDP_KEY_ddp_strict, o->strict},
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        cd_setting_emit(tracer,
                        &(cd_setting){.key = flags[i].key, .items = 1, .value = flags[i].value});
}

static void emit_sizes(const cddp_ddp_options *o, cddp_tracer *tracer)
{
    const int64_t items = (int64_t)o->bucket_cap_mb_list_count;
    cd_setting_emit(tracer, &(cd_setting){.key = CDDP_KEY_ddp_bucket_cap_mb,
                                          .items = 1,
                                          .real = o->bucket_cap_mb});
    cd_setting_emit(tracer, &(cd_setting){.key = CDDP_KEY_ddp_first_bucket_bytes,
                                          .items = 1,
                                          .value = (int64_t)o->first_bucket_bytes});
    for (int64_t i = 0; i < items; i++)
        cd_setting_emit(tracer, &(cd_setting){.key = CDDP_KEY_ddp_bucket_cap_mb_list,
                                              .item = i,
                                              .items = items,
                                              .real = o->bucket_cap_mb_list[i]});
}

static void emit_dtype(cddp_tracer *tracer, cddp_key key, cddp_dtype dtype)
{
    const char *word = dtype < CDDP_DTYPE_COUNT ? cddp_dtype_name(dtype) : "none";
    cd_setting_emit(tracer, &(cd_setting){.key = key,
                                          .items = 1,
                                          .value = cd_setting_find_word(key, word),
                                          .text = word});
}

static void emit_delayed(const cddp_ddp_options *o, cddp_tracer *tracer)
{
    const int64_t items = (int64_t)o->delay_all_reduce_count;
    for (int64_t i = 0; i < items; i++)
        cd_setting_emit(tracer, &(cd_setting){.key = CDDP_KEY_ddp_delay_all_reduce_named_params,
                                              .item = i,
                                              .items = items,
                                              .text = o->delay_all_reduce_named_params[i]});
    if (o->param_to_hook_all_reduce != NULL)
        cd_setting_emit(tracer, &(cd_setting){.key = CDDP_KEY_ddp_param_to_hook_all_reduce,
                                              .items = 1,
                                              .text = o->param_to_hook_all_reduce});
}

void cd_ddp_settings_emit(const cddp_ddp_options *o, cddp_tracer *tracer)
{
    if (tracer == NULL) return;
    emit_flags(o, tracer);
    emit_sizes(o, tracer);
    emit_dtype(tracer, CDDP_KEY_mixed_precision_param_dtype, o->mixed_param_dtype);
    emit_dtype(tracer, CDDP_KEY_mixed_precision_reduce_dtype, o->mixed_reduce_dtype);
    emit_dtype(tracer, CDDP_KEY_mixed_precision_buffer_dtype, o->mixed_buffer_dtype);
    emit_delayed(o, tracer);
}

void cd_join_settings_emit(const cddp_join_options *o, cddp_tracer *tracer)
{
    cd_setting_emit(tracer, &(cd_setting){.key = CDDP_KEY_join_divide_by_initial_world_size,
                                          .items = 1,
                                          .value = o->divide_by_initial_world_size});
}
