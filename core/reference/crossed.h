/* SPDX-License-Identifier: Apache-2.0 */
/* To what the plan has values cast where they enter and leave the forward of a unit (FMP-05,
** FMP-06), in a pass of the judge's own. It judges core/train and core/fsdp, and shares nothing
** with them.
**
** A unit's forward begins where one of its parameters is used while another unit's, or the root's,
** runs. A value that was made before that is an input of the unit. One that was made since then is
** an output, where anything else reads it.
**
** Lifetime   init → (begin → forward → end)*. Lies in the given arena.
** Threads    the reference's.
** Errors     no memory.
*/
#pragma once
#include "core/base/arena.h"
#include "core/model/model.h"
#include "core/plan/replica/replica.h"

typedef struct cd_crossed_unit {
    cddp_dtype input, output; /* CDDP_DTYPE_COUNT: as they are */
} cd_crossed_unit;

typedef struct cd_crossed {
    cd_crossed_unit *units; /* (unit_count) the root first */
    uint32_t *unit_of;      /* (parameter_count) */
    uint32_t unit_count;
    uint64_t forwards; /* that began below the root */
    bool is_needed, is_running, is_casting;
    bool is_active; /* in the pass at hand; what its backward recomputes is cast, too */
} cd_crossed;

cddp_status cd_crossed_init(cd_crossed *crossed, const cddp_plan *plan,
                            const cddp_plan_settings *settings, const cd_module *module,
                            cd_arena *memory, cddp_error *err) CDDP_MUST_CHECK;
/* To what the inputs of the model are cast; NULL: not at all. */
const cddp_dtype *cd_crossed_get_input(const cd_crossed *crossed);
void cd_crossed_begin(cd_crossed *crossed, cd_graph *graph);
/* cd_graph_callbacks.use and .cross */
void cd_crossed_use(cd_crossed *crossed, cd_graph *graph, uint32_t parameter);
cddp_status cd_crossed_read(cd_crossed *crossed, cd_graph *graph, cd_value *value, cd_value **read,
                            cddp_error *err) CDDP_MUST_CHECK;
/* Outputs of the model leave their units, and the root. */
cddp_status cd_crossed_end(cd_crossed *crossed, cd_graph *graph, cd_outputs *outputs,
                           cddp_error *err) CDDP_MUST_CHECK;
