/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/crossed.h"

#include "core/base/error.h"
#include "core/model/layers/shapes.h"
#include "core/reference/units.h"

/* A place is a number of the forwards, and which unit's: forward × (units + 1) + unit. */
static uint32_t unit_of_place(const cd_crossed *c, uint64_t place)
{
    return (uint32_t)(place % (c->unit_count + 1));
}

cddp_status cd_crossed_init(cd_crossed *c, const cddp_plan *plan,
                            const cddp_plan_settings *settings, const cd_module *module,
                            cd_arena *memory, cddp_error *err)
{
    const size_t count = module->parameter_count;
    *c = (cd_crossed){.unit_of = cd_arena_array(memory, count + 1, sizeof *c->unit_of),
                      .units = cd_arena_array(memory, count + 1, sizeof *c->units)};
    size_t *lengths = cd_arena_array(memory, count + 1, sizeof *lengths);
    uint32_t *firsts = cd_arena_array(memory, count + 1, sizeof *firsts);
    cd_part *parts = cd_arena_array(memory, count + 1, sizeof *parts);
    CD_TRY(cd_arena_check(memory, err, "the casts of %zu parameters' units", count));
    const cd_planned_units found = {.parts = parts, .units = firsts, .lengths = lengths};
    CD_TRY(cd_planned_find_units(plan, settings, module, memory, &found, err));
    cd_planned_casts casts = cd_planned_get_casts(settings, "", 0);
    c->units[0] = (cd_crossed_unit){casts.input, casts.output};
    c->unit_count = 1;
    c->is_needed = casts.output != CDDP_DTYPE_COUNT;
    for (size_t i = 0; i < count; i++) {
        const size_t first = firsts[i] - 1;
        if (lengths[i] == 0) continue;
        if (first < i) {
            c->unit_of[i] = c->unit_of[first];
            continue;
        }
        casts = cd_planned_get_casts(settings, module->parameters[i].name, lengths[i]);
        c->is_needed |= casts.input != CDDP_DTYPE_COUNT || casts.output != CDDP_DTYPE_COUNT;
        c->units[c->unit_count] = (cd_crossed_unit){casts.input, casts.output};
        c->unit_of[i] = c->unit_count++;
    }
    return CDDP_OK;
}

const cddp_dtype *cd_crossed_get_input(const cd_crossed *c)
{
    return c->units[0].input == CDDP_DTYPE_COUNT ? NULL : &c->units[0].input;
}

void cd_crossed_begin(cd_crossed *c, cd_graph *graph)
{
    c->forwards = 0;
    c->is_running = c->is_active = true;
    graph->place = 0;
}

void cd_crossed_use(cd_crossed *c, cd_graph *graph, uint32_t parameter)
{
    const uint32_t unit = c->unit_of[parameter];
    const bool is_forward = c->is_active && (c->is_running || graph->recomputes);
    if (!is_forward || unit == 0 || unit == unit_of_place(c, graph->place)) return;
    c->forwards++;
    graph->place = c->forwards * (c->unit_count + 1) + unit;
}

/* Rounded to the dtype's numbers, and so is the gradient that comes back. */
static cddp_status round_value(cd_crossed *c, cd_graph *graph, cd_value **value, cddp_dtype dtype,
                               cddp_error *err)
{
    const cddp_dtype wide = (*value)->tensor.dtype;
    cd_value *narrow = NULL;
    if (dtype == CDDP_DTYPE_COUNT || dtype == wide ||
        cddp_dtype_bytes(dtype) >= cddp_dtype_bytes(wide))
        return CDDP_OK;
    c->is_casting = true;
    CD_TRY(cd_cast(graph, *value, dtype, &narrow, err));
    CD_TRY(cd_cast(graph, narrow, wide, value, err));
    c->is_casting = false;
    return CDDP_OK;
}

static cddp_status find_output(cd_crossed *c, cd_graph *graph, cd_value *value, cd_value **output,
                               cddp_error *err)
{
    if (value->left == NULL) {
        cd_value *made = value;
        if (value->place != 0)
            CD_TRY(
                round_value(c, graph, &made, c->units[unit_of_place(c, value->place)].output, err));
        value->left = made;
    }
    *output = value->left;
    return CDDP_OK;
}

cddp_status cd_crossed_read(cd_crossed *c, cd_graph *graph, cd_value *value, cd_value **read,
                            cddp_error *err)
{
    const bool is_inside = value->place == graph->place;
    *read = value;
    const uint32_t running = unit_of_place(c, graph->place);
    const bool is_forward = c->is_active && (c->is_running || graph->recomputes);
    if (!is_forward || c->is_casting || is_inside || !cddp_dtype_is_float(value->tensor.dtype))
        return CDDP_OK;
    if (running != 0 && value->entered != NULL && value->entered_at == graph->place) {
        *read = value->entered;
        return CDDP_OK;
    }
    CD_TRY(find_output(c, graph, value, read, err));
    if (running == 0) return CDDP_OK;
    CD_TRY(round_value(c, graph, read, c->units[running].input, err));
    value->entered = *read;
    value->entered_at = graph->place;
    return CDDP_OK;
}

cddp_status cd_crossed_end(cd_crossed *c, cd_graph *graph, cd_outputs *outputs, cddp_error *err)
{
    c->is_running = false;
    graph->place = 0;
    for (uint32_t i = 0; i < outputs->count; i++) {
        if (outputs->values[i] == NULL) continue;
        if (!cddp_dtype_is_float(outputs->values[i]->tensor.dtype)) continue;
        CD_TRY(find_output(c, graph, outputs->values[i], &outputs->values[i], err));
        CD_TRY(round_value(c, graph, &outputs->values[i], c->units[0].output, err));
    }
    return CDDP_OK;
}
