/* SPDX-License-Identifier: Apache-2.0 */
/* What values become where they enter the forward of a unit, and where they leave it: cast, as the
** wrapper says of its units (FMP-05, FMP-06).
**
** Models compute in f32 or f64. So a cast rounds a value to the numbers of the other dtype, and its
** gradient on the way back. Inputs of the root are those of the model: cd_pass has them cast.
**
** Lifetime   init, once the units are known → (begin → (enter → leave)* → give_back)*. Lies in the
**            given arena.
** Errors     no memory.
*/
#pragma once
#include "cddp/fsdp.h"
#include "core/base/arena.h"
#include "core/model/model.h"

typedef struct cd_crossing {
    cddp_dtype *inputs, *outputs; /* (unit_count) CDDP_DTYPE_COUNT: values stay as they are */
    uint64_t forwards;            /* of units below the root, in this one of the model */
    bool casts;                   /* some unit casts what is not an input of the model */
    bool is_over;                 /* behind a forward: only what is recomputed is cast */
    bool is_casting;
} cd_crossing;

cddp_status cd_crossing_init(cd_crossing *crossing, const cddp_fsdp *fsdp, cd_arena *memory,
                             cddp_error *err) CDDP_MUST_CHECK;
/* To what inputs of the model are cast; NULL: they stay as they are. */
const cddp_dtype *cd_crossing_get_input(const cd_crossing *crossing);
void cd_crossing_begin(cd_crossing *crossing, cd_graph *graph);
void cd_crossing_enter(cd_crossing *crossing, cd_graph *graph, uint32_t unit);
/* A forward that is recomputed in backward reads a parameter of this unit: where another one's runs
** there, this one's begins. */
void cd_crossing_enter_again(cd_crossing *crossing, cd_graph *graph, uint32_t unit);
/* cd_graph_callbacks.cross */
cddp_status cd_crossing_read(cd_crossing *crossing, cd_graph *graph, cd_value *value,
                             cd_value **read, cddp_error *err) CDDP_MUST_CHECK;
/* Outputs leave the root, and the forward is over. */
cddp_status cd_crossing_give_back(cd_crossing *crossing, cd_graph *graph, cd_outputs *outputs,
                                  cddp_error *err) CDDP_MUST_CHECK;
