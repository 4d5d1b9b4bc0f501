/* SPDX-License-Identifier: Apache-2.0 */
/* Making and unmaking a reducer: its tables, the first bucket layout, the used map, the
** storage that gradients borrow.
**
** Everything that a steady iteration needs is allocated here.
**
** Not here: what a reducer does (reducer.c).
*/
#include "core/ddp/reducer/reducer.h"

#include "core/base/bitset.h"
#include "core/base/error.h"
#include "core/ddp/reducer/rebuild.h"
#include "core/hooks/hook.h"
#include "core/trace/tracer.h"

#include <string.h>

static size_t table_bytes(size_t n)
{
    size_t bytes = 0;
#define CD_FIXED(type, name)
#define CD_PART(kind, type, name)
#define CD_FLAG(kind, life, name)
#define CD_NUMBER(kind, life, type, name)
#define CD_TABLE(kind, life, type, name, room, used) bytes += CD_ARENA_BYTES((room) * sizeof(type));
#include "core/ddp/reducer/reducer_state.def"
#undef CD_TABLE
    return bytes;
}

static cddp_status allocate_tables(cd_reducer *r, cddp_error *err)
{
    const size_t n = r->variable_count, bytes = table_bytes(n);
    cd_arena_init(&r->arena, r->allocator, 0);
    if (!cd_arena_reserve(&r->arena, bytes))
        return cd_fail_memory(err, "a reducer of %zu parameters", n);
#define CD_TABLE(kind, life, type, name, room, used) \
    r->name = cd_arena_push(&r->arena, (room) * sizeof(type));
#include "core/ddp/reducer/reducer_state.def"
#undef CD_FIXED
#undef CD_PART
#undef CD_FLAG
#undef CD_NUMBER
#undef CD_TABLE
    return CDDP_OK;
}

/* The first layout: registration order, list of buckets reversed (BKT-10, BKT-11). */
cddp_status cd_reducer_plan_first_layout(const cd_reducer *r, cd_bucket_layout *layout,
                                         cddp_error *err)
{
    const cd_wrapped *m = r->module;
    uint64_t limits[2] = {0};
    cd_bucket_request request = {.input_count = r->variable_count,
                                 .expect_sparse = m->expect_sparse};
    bool one_bucket = r->static_graph || !r->config->find_unused_parameters;
    request.limit_count =
        cd_bucket_caps_initial(&r->config->caps, one_bucket, limits, &request.limits);
    cddp_status status = CDDP_OK;
    cd_arena scratch;
    cd_arena_init(&scratch, r->allocator, 0);
    CD_TRY_OUT(cd_wrapped_bucket_inputs(m, NULL, &scratch, &request.inputs, err));
    CD_TRY_OUT(cd_bucket_assignment_by_size(&request, layout, err));
    cd_bucket_layout_reverse(layout);
out:
    cd_arena_fini(&scratch);
    return status;
}

static cddp_status build_buckets(cd_reducer *r, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_bucket_layout layout = {0};
    CD_TRY_OUT(cd_bucket_layout_init(&layout, r->variable_count, r->allocator, err));
    CD_TRY_OUT(cd_reducer_plan_first_layout(r, &layout, err));
    cd_bucket_set_spec spec = {.module = r->module,
                               .layout = &layout,
                               .for_hook = r->hook != NULL,
                               .for_copies = cd_reducer_copies(r),
                               .dtype = r->config->param_dtype};
    CD_TRY_OUT(cd_bucket_set_init(&r->buckets, &spec, r->allocator, err));
    return CDDP_OK;
out:
    cd_bucket_layout_fini(&layout);
    return status;
}

cddp_status cd_reducer_init_used_map(cd_reducer *r, const cddp_group *group, cddp_error *err)
{
    cd_control_spec spec = {.allocator = r->allocator,
                            .group = group,
                            .dtype = CDDP_I32,
                            .device = cd_module_device(r->module),
                            .numel = (int64_t)r->variable_count};
    return CD_PASS(cd_unused_map_init(&r->used_map, &spec, err));
}

cddp_status cd_reducer_init(cd_reducer *reducer, const cd_reducer_spec *spec, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_reducer r = {.allocator = spec->allocator,
                    .group = spec->group,
                    .tracer = spec->tracer,
                    .module = spec->module,
                    .config = spec->config,
                    .logger = spec->logger,
                    .mixed = spec->mixed,
                    .join = spec->join,
                    .variable_count = spec->module->variable_count,
                    .static_graph = spec->config->static_graph,
                    .graph_was_static = true,
                    .writes_back = true,
                    .scales_in_hook = spec->config->mixed_precision};
    if (spec->config->mixed_precision) {
        r.hook = &cd_mixed_hook;
        r.hook_self = spec->mixed;
        r.hook_group = r.group;
    }
    cd_reducer_add_consumer(&r, &cd_write_back, false);
    CD_TRY_OUT(allocate_tables(&r, err));
    CD_TRY_OUT(build_buckets(&r, err));
    CD_TRY_OUT(cd_sparse_set_init(&r.sparse, r.module, &r.arena, err));
    /* UNU-02: only these modes have a map. Static graph may also be chosen later, so the map is
    ** made then. */
    if (r.config->find_unused_parameters || r.static_graph)
        CD_TRY_OUT(cd_reducer_init_used_map(&r, r.group, err));
    if (r.config->gradient_as_bucket_view) CD_TRY_OUT(cd_bucket_set_lend_backing(&r.buckets, err));
    if (r.config->gradient_as_bucket_view && r.tracer != NULL) r.tracer->lends_buckets = true;
    *reducer = r;
    cd_reducer_audit(reducer);
    return CDDP_OK;
out:
    cd_reducer_fini(&r);
    return status;
}

cddp_status cd_reducer_take_group(cd_reducer *r, cddp_group *group, cddp_error *err)
{
    if (group != NULL && group != r->group) CD_TRY(cd_reducer_forget_layout(r, err));
    if (group != NULL && r->used_map.count > 0) { /* its memory is where the backend can reach it */
        cd_unused_map old = r->used_map;
        CD_TRY(cd_reducer_init_used_map(r, group, err));
        cd_unused_map_fini(&old);
    }
    r->group = group;
    const bool is_fused =
        r->optimizer.step != NULL && r->optimizer.overlap <= CDDP_OVERLAP_HOOK_THEN_OPTIMIZER;
    if (group != NULL && (r->hook == &cd_mixed_hook || is_fused)) r->hook_group = group;
    return CDDP_OK;
}

void cd_reducer_fini(cd_reducer *r)
{
    for (size_t b = 0; r->buckets.buckets != NULL && b < r->buckets.bucket_count; b++)
        cd_future_abandon(&r->buckets.buckets[b].future);
    if (r->hook != NULL && r->hook->destroy != NULL) {
        cd_tracer_call(r->tracer, r->hook->name, "destroy");
        r->hook->destroy(r->hook_self);
        cd_tracer_call(r->tracer, NULL, NULL);
    }
    if (r->buckets.buckets != NULL) cd_bucket_set_release_grads(&r->buckets);
    cd_unused_map_fini(&r->used_map);
    for (uint32_t i = 0; i < r->consumers.count; i++)
        if (r->consumers.items[i]->fini != NULL) r->consumers.items[i]->fini(r);
    cd_sparse_set_fini(&r->sparse);
    cd_bucket_set_fini(&r->buckets);
    cd_arena_fini(&r->arena);
    memset(r, 0, sizeof *r);
}
