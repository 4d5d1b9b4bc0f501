/* SPDX-License-Identifier: Apache-2.0 */
/* Static graph. The first synchronised backward counts how often each hook fires and reduces
** everything at its end: the used map first, then every bucket in index order (STA-03). Later
** backwards mark a variable ready at its recorded number of firings, so checkpointing a layer twice
** or several forwards per backward work (STA-05).
**
** Counting belongs to the first *synchronised* backward: micro-steps inside no_sync before it only
** mark use (NSY-07).
**
** In the first pass the bucket counter stands still, so a comm hook sees index 0 for every bucket
** and is_last only when there is exactly one (STA-04); launch_bucket in reducer.c knows.
*/
#include "core/ddp/reducer/static_graph.h"

#include "core/base/bitset.h"
#include "core/base/error.h"
#include "core/trace/tracer.h"

cddp_status cd_static_graph_set(cd_reducer *r, cddp_error *err)
{
    if (r->static_graph) {
        CD_EMIT(r->tracer, mark, "static_graph_set_twice", .value = 0);
        return CDDP_OK;
    }
    if (r->config->accumulate_in_hook)
        return cd_fail(err, CDDP_E_CONFIG,
                       "static_graph cannot be combined with accumulate_in_hook: its first pass "
                       "delays every gradient");
    if (r->iteration > 0) /* ERR-04 */
        return cd_fail(err, CDDP_E_STATE,
                       "static_graph set after %llu synchronising forwards; set it right after "
                       "construction, before "
                       "the training loop",
                       (unsigned long long)r->iteration);
    if (r->used_map.count == 0) CD_TRY(cd_reducer_init_used_map(r, r->group, err));
    if (r->config->find_unused_parameters)
        CD_EMIT(r->tracer, mark, "static_graph_ignores_find_unused", .value = 0);
    r->static_graph = true;
    return CDDP_OK;
}

static void record_unused(cd_reducer *r)
{
    r->unused_count = 0;
    cd_bitset_clear(r->unused_set, r->variable_count);
    for (size_t v = 0; v < r->variable_count; v++) {
        if (r->hook_counts[v] > 0) continue;
        r->unused[r->unused_count++] = (uint32_t)v;
        cd_bitset_add(r->unused_set, v);
    }
}

cddp_status cd_static_graph_reduce_delayed(cd_reducer *r, cddp_error *err)
{
    CD_EMIT(r->tracer, mark, "static_graph_delayed_reduction", .value = (int64_t)r->iteration);
    r->phase = CD_REDUCER_REDUCING;
    if (r->logger->is_sampling) r->logger->backward_compute_end_ns = cd_reducer_now(r);
    CD_TRY(cd_reducer_compute_divide_factor(r, err));
    CD_TRY(cd_unused_map_post(&r->used_map, r->group, r->tracer, true, err));
    record_unused(r);
    for (size_t v = 0; v < r->variable_count; v++)
        CD_TRY(cd_reducer_fill_slice(r, v, r->hook_counts[v] == 0, err));
    for (size_t b = 0; b < r->buckets.bucket_count; b++) {
        CD_TRY(cd_reducer_contribute_deferred(r, &r->buckets.buckets[b], err));
        CD_TRY(cd_reducer_send_bucket(r, &r->buckets.buckets[b], err));
    }
    return CDDP_OK;
}
