/* SPDX-License-Identifier: Apache-2.0 */
/* The used map: which variables this rank used since the last synchronisation, and how many ranks
** did (UNU-01).
**
** Invariants (cd_unused_map_audit):
**   M1  an entry of `local` is 0 or 1 until the reduced map replaced it;
**   M2  at most one all-reduce of the map is under way, and only between post and await;
**   M3  once replaced, no entry is below what this rank contributed.
**
** Lifetime   the map of a reducer; marks survive until the window is closed at finalisation
**            (NSY-04).
*/
#pragma once
#include "core/comm/control.h"

typedef struct cd_unused_map {
    size_t count;       /* variables; 0: there is no map (UNU-02) */
    int32_t *local;     /* (count) 1: used in this window; after await: ranks that used it */
    cd_control reduced; /* (count) i32, summed over ranks; what cddp_ddp_local_used_map shows */
    cddp_work *work;    /* the all-reduce under way */
    bool is_posted;     /* in this window */
    bool is_reduced;    /* local was replaced by the reduced map */
} cd_unused_map;

cddp_status cd_unused_map_init(cd_unused_map *map, const cd_control_spec *spec, cddp_error *err);
void cd_unused_map_fini(cd_unused_map *map); /* accepts a zeroed map */
static inline void cd_unused_map_mark_used(cd_unused_map *map, size_t variable)
{
    map->local[variable] = 1;
}
/* Starts the all-reduce. contribute false: zeros, for a joined rank (our deviation from JON-15). */
cddp_status cd_unused_map_post(cd_unused_map *map, cddp_group *group, cddp_tracer *tracer,
                               bool contribute, cddp_error *err);
/* Completes it if that has not happened yet. adopt: the reduced map replaces the local one
** (FIN-02). */
cddp_status cd_unused_map_await(cd_unused_map *map, cddp_tracer *tracer, bool adopt,
                                cddp_error *err);
/* FIN-02: awaits the map only when this rank itself did not use the variable. */
cddp_status cd_unused_map_is_globally_unused(cd_unused_map *map, size_t variable,
                                             cddp_tracer *tracer, bool *is_unused, cddp_error *err);
void cd_unused_map_close_window(cd_unused_map *map); /* forgets the marks */
/* after a failure: gives the work back, forgets */
void cd_unused_map_abandon(cd_unused_map *map);
void cd_unused_map_audit(const cd_unused_map *map);
