/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/crossing.h"

#include "core/base/error.h"
#include "core/model/layers/shapes.h"

/* A place of the tape: the number of a unit's forward, then the unit. The root's is 0. */
#define UNIT_BITS 32

static uint32_t unit_at(uint64_t place) { return (uint32_t)place; }

cddp_status cd_crossing_init(cd_crossing *c, const cddp_fsdp *fsdp, cd_arena *memory,
                             cddp_error *err)
{
    const uint32_t count = cddp_fsdp_unit_count(fsdp);
    *c = (cd_crossing){.inputs = cd_arena_array(memory, count + 1, sizeof *c->inputs),
                       .outputs = cd_arena_array(memory, count + 1, sizeof *c->outputs),
                       .is_over = true};
    CD_TRY(cd_arena_check(memory, err, "the casts of %u units", count));
    for (uint32_t k = 0; k < count; k++) {
        cddp_fsdp_unit_info info = {.size = sizeof info};
        CD_TRY(cddp_fsdp_unit(fsdp, k, &info, err));
        c->inputs[k] = info.input_dtype;
        c->outputs[k] = info.output_dtype;
        c->casts |= (k > 0 && info.input_dtype != CDDP_DTYPE_COUNT) ||
                    info.output_dtype != CDDP_DTYPE_COUNT;
    }
    return CDDP_OK;
}

const cddp_dtype *cd_crossing_get_input(const cd_crossing *c)
{
    return c->inputs[0] != CDDP_DTYPE_COUNT ? &c->inputs[0] : NULL;
}

void cd_crossing_begin(cd_crossing *c, cd_graph *graph)
{
    graph->place = 0;
    c->forwards = 0;
    c->is_over = false;
}

void cd_crossing_enter(cd_crossing *c, cd_graph *graph, uint32_t unit)
{
    graph->place = ++c->forwards << UNIT_BITS | unit;
}

void cd_crossing_enter_again(cd_crossing *c, cd_graph *graph, uint32_t unit)
{
    if (unit != 0 && unit != unit_at(graph->place)) cd_crossing_enter(c, graph, unit);
}

/* As autocast does it: down, and up again to what layers compute in. */
static cddp_status cast(cd_crossing *c, cd_graph *graph, cd_value *value, cddp_dtype dtype,
                        cd_value **made, cddp_error *err)
{
    const cddp_dtype computed = value->tensor.dtype;
    cd_value *low = NULL;
    *made = value;
    if (dtype == CDDP_DTYPE_COUNT || cddp_dtype_bytes(dtype) >= cddp_dtype_bytes(computed))
        return CDDP_OK;
    c->is_casting = true;
    cddp_status status = cd_cast(graph, value, dtype, &low, err);
    if (status == CDDP_OK) status = cd_cast(graph, low, computed, made, err);
    c->is_casting = false;
    return CD_PASS(status);
}

/* Once for each value, however many read it outside of its unit. */
static cddp_status leave(cd_crossing *c, cd_graph *graph, cd_value *value, cd_value **left,
                         cddp_error *err)
{
    const uint32_t unit = unit_at(value->place);
    if (value->left == NULL)
        CD_TRY(cast(c, graph, value, unit > 0 ? c->outputs[unit] : CDDP_DTYPE_COUNT, &value->left,
                    err));
    *left = value->left;
    return CDDP_OK;
}

cddp_status cd_crossing_read(cd_crossing *c, cd_graph *graph, cd_value *value, cd_value **read,
                             cddp_error *err)
{
    const uint32_t unit = unit_at(graph->place);
    cd_value *given = NULL;
    *read = value;
    const bool is_off = c->is_casting || !c->casts || !cd_graph_computes(graph) ||
                        (c->is_over && !graph->recomputes);
    if (is_off || value->place == graph->place || !cddp_dtype_is_float(value->tensor.dtype))
        return CDDP_OK;
    CD_TRY(leave(c, graph, value, &given, err));
    if (unit == 0) {
        *read = given;
        return CDDP_OK;
    }
    if (value->entered == NULL || value->entered_at != graph->place) {
        CD_TRY(cast(c, graph, given, c->inputs[unit], &value->entered, err));
        value->entered_at = graph->place;
    }
    *read = value->entered;
    return CDDP_OK;
}

cddp_status cd_crossing_give_back(cd_crossing *c, cd_graph *graph, cd_outputs *outputs,
                                  cddp_error *err)
{
    const bool is_off = !c->casts || !cd_graph_computes(graph);
    graph->place = 0;
    for (uint32_t i = 0; !is_off && i < outputs->count; i++) {
        cd_value **value = &outputs->values[i];
        if (*value == NULL || !cddp_dtype_is_float((*value)->tensor.dtype)) continue;
        CD_TRY(leave(c, graph, *value, value, err));
        CD_TRY(cast(c, graph, *value, c->outputs[0], value, err));
    }
    c->is_over = true;
    return CDDP_OK;
}
