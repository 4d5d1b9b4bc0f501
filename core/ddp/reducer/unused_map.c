/* SPDX-License-Identifier: Apache-2.0 */
/* The used map of the find_unused_parameters and static_graph modes.
**
** Used means: the hook of the variable fired with a defined gradient (UNU-03), in any micro-step of
** the window, also inside no_sync (NSY-04). The maps of all ranks are summed as i32; a variable
** whose sum is 0 is globally unused and its gradient is left alone, so that an optimizer can tell
** "no gradient" from "zero gradient" (UNU-05).
**
** The sum is awaited lazily: a variable that this rank used needs no answer from the others
** (FIN-02).
*/
#include "core/ddp/reducer/unused_map.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/trace/points.h"
#include "core/trace/tracer.h"

#include <string.h>

cddp_status cd_unused_map_init(cd_unused_map *map, const cd_control_spec *spec, cddp_error *err)
{
    cd_unused_map m = {.count = (size_t)spec->numel};
    CD_TRY(cd_control_init(&m.reduced, spec, err));
    m.local = cd_allocate_array(spec->allocator, m.count, sizeof *m.local);
    if (m.local == NULL) {
        cd_control_fini(&m.reduced);
        return cd_fail_memory(err, "the used map of %zu variables", m.count);
    }
    *map = m;
    return CDDP_OK;
}

void cd_unused_map_fini(cd_unused_map *map)
{
    if (map->work != NULL) cddp_work_release(map->work);
    cd_release(map->reduced.allocator, map->local, map->count * sizeof *map->local);
    cd_control_fini(&map->reduced);
    memset(map, 0, sizeof *map);
}

cddp_status cd_unused_map_post(cd_unused_map *map, cddp_group *group, cddp_tracer *tracer,
                               bool contribute, cddp_error *err)
{
    CD_ASSERT(!map->is_posted && map->work == NULL); /* M2 */
    CD_POINT_TRACED(COUNT, "used.local", tracer, *map->local);
    if (contribute)
        memcpy(map->reduced.host, map->local, map->reduced.bytes);
    else
        memset(map->reduced.host, 0, map->reduced.bytes);
    if (tracer != NULL)
        for (size_t i = 0; i < map->count; i++)
            CD_EMIT(tracer, used_local, NULL, .param = (int64_t)i,
                    .used = contribute ? map->local[i] : 0);
    CD_TRY(cd_control_upload(&map->reduced, err));
    CD_TRY(cddp_group_allreduce(group, &map->reduced.tensor, CDDP_RED_SUM, &map->work, err));
    map->is_posted = true;
    return CDDP_OK;
}

cddp_status cd_unused_map_await(cd_unused_map *map, cddp_tracer *tracer, bool adopt,
                                cddp_error *err)
{
    CD_ASSERT(map->is_posted);
    if (map->work != NULL) {
        cddp_work *work = map->work;
        map->work = NULL;
        CD_TRY(cddp_work_wait(work, 0, err));
        CD_TRY(cd_control_download(&map->reduced, err));
        const int32_t *sums = map->reduced.host;
        CD_POINT_TRACED(COUNT, "used.global", tracer, *(int32_t *)sums);
        if (tracer != NULL)
            for (size_t i = 0; i < map->count; i++)
                CD_EMIT(tracer, used_global, NULL, .param = (int64_t)i, .used = sums[i]);
    }
    if (adopt && !map->is_reduced) {
        memcpy(map->local, map->reduced.host, map->reduced.bytes);
        map->is_reduced = true;
    }
    return CDDP_OK;
}

cddp_status cd_unused_map_is_globally_unused(cd_unused_map *map, size_t variable,
                                             cddp_tracer *tracer, bool *is_unused, cddp_error *err)
{
    if (map->local[variable] == 0 && !map->is_reduced)
        CD_TRY(cd_unused_map_await(map, tracer, true, err));
    *is_unused = map->local[variable] == 0;
    return CDDP_OK;
}

void cd_unused_map_close_window(cd_unused_map *map)
{
    CD_ASSERT(map->work == NULL);
    memset(map->local, 0, map->count * sizeof *map->local);
    map->is_posted = map->is_reduced = false;
}

void cd_unused_map_abandon(cd_unused_map *map)
{
    if (map->count == 0) return;
    if (map->work != NULL) cddp_work_release(map->work);
    map->work = NULL;
    cd_unused_map_close_window(map);
}

void cd_unused_map_audit(const cd_unused_map *map)
{
    CD_ASSERT(map->work == NULL || map->is_posted); /* M2 */
    const int32_t *sums = map->reduced.host;
    for (size_t i = 0; i < map->count; i++) {
        CD_ASSERT(map->is_reduced || map->local[i] == 0 || map->local[i] == 1); /* M1 */
        CD_ASSERT(!map->is_reduced || map->local[i] == sums[i]);                /* M3 */
    }
}
