/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of one of several wrappers: a copy of the whole plan without [[wrapper]] tables. Its
** settings stand for everybody there, and only what is said of it, or of all, is left.
**
** Everything that looks at one wrapper (its trainer, its reference, its checks) reads such a plan,
** and so knows nothing of the others. What a whole run has once is read from the whole plan: the
** world, the network, the schedule, faults, and what is expected.
*/
#include "core/plan/plan.h"

#include "core/base/assert.h"
#include "core/base/error.h"

#include <string.h>

size_t cddp_plan_wrapper_count(const cddp_plan *plan)
{
    return plan->wrapper_count > 0 ? plan->wrapper_count : 1;
}

size_t cd_plan_find_wrapper(const cddp_plan *plan, const char *name)
{
    size_t index = 0;
    while (index < plan->wrapper_count && (plan->wrappers[index].name == NULL || name == NULL ||
                                           strcmp(plan->wrappers[index].name, name) != 0))
        index++;
    return index;
}

/* Is an element said of this wrapper? said: its `wrapper`, or NULL. */
static bool is_of(const cddp_plan *plan, size_t wrapper, const char *said)
{
    return said == NULL || cd_plan_find_wrapper(plan, said) == wrapper;
}

/* `wrapper` of an element; NULL: of a table that has no such key. */
static const char *said_of(const cddp_plan *plan, cd_key_scope scope, size_t index)
{
    const cd_item_table *table = cd_item_table_get(scope);
    const cd_key_row *row = cd_key_find(table->name, "wrapper");
    const char *items, *said;
    if (row == NULL) return NULL;
    memcpy(&items, (const char *)plan + table->items_offset, sizeof items);
    memcpy(&said, items + index * table->element_bytes + row->offset, sizeof said);
    return said;
}

size_t cd_plan_place_of(const cddp_plan *plan, size_t wrapper, cd_key_scope scope, size_t index)
{
    const size_t count = cd_plan_item_count(plan, scope);
    for (size_t i = 0; i < count; i++)
        if (is_of(plan, wrapper, said_of(plan, scope, i)) && index-- == 0) return i;
    return count;
}

/* The elements that are its own, in a new array. */
static void keep_own(const cddp_plan *plan, size_t wrapper, cd_key_scope scope, cddp_plan *own,
                     cd_arena *arena)
{
    const cd_item_table *table = cd_item_table_get(scope);
    const size_t count = cd_plan_item_count(plan, scope);
    const char *items;
    size_t kept = 0;
    char *copy = cd_arena_push(arena, (count + 1) * table->element_bytes);
    if (copy == NULL) return;
    memcpy(&items, (const char *)plan + table->items_offset, sizeof items);
    for (size_t i = 0; i < count; i++) {
        if (!is_of(plan, wrapper, said_of(plan, scope, i))) continue;
        memcpy(copy + kept * table->element_bytes, items + i * table->element_bytes,
               table->element_bytes);
        kept++;
    }
    memcpy((char *)own + table->items_offset, &copy, sizeof copy);
    memcpy((char *)own + table->count_offset, &kept, sizeof kept);
}

/* The position of an [[optimizer]] among those of the wrapper; -1: it is another one's. */
static int64_t optimizer_of(const cddp_plan *plan, size_t wrapper, int64_t element)
{
    int64_t position = 0;
    if (!is_of(plan, wrapper, plan->optimizers[element].wrapper)) return -1;
    for (int64_t i = 0; i < element; i++)
        position += is_of(plan, wrapper, plan->optimizers[i].wrapper);
    return position;
}

/* What all ranks have becomes a setting; what some have stays an override. */
static void take_overrides(const cddp_plan *plan, size_t wrapper, cddp_plan *own, cd_arena *arena)
{
    cddp_plan_override *kept = cd_arena_push(arena, (plan->override_count + 1) * sizeof *kept);
    own->override_count = 0;
    own->overrides = kept;
    for (size_t i = 0; kept != NULL && i < plan->override_count; i++) {
        cddp_plan_override o = plan->overrides[i];
        const cd_key_row *row = cd_key_find_path(o.key);
        if (o.wrapper != 0 && o.wrapper != wrapper + 1) continue;
        if (o.wrapper != 0 && o.ranks.term_count == 0) {
            memcpy((char *)&own->settings + row->offset, o.parsed, row->width);
            continue;
        }
        if (row->scope == CD_SCOPE_optimizer && o.element >= 0) {
            o.element = (size_t)o.element < plan->optimizer_count
                            ? optimizer_of(plan, wrapper, o.element)
                            : -1;
            if (o.element < 0) continue;
        }
        o.wrapper = 0;
        kept[own->override_count++] = o;
    }
}

cddp_status cddp_plan_of_wrapper(const cddp_plan *plan, size_t index,
                                 const cddp_allocator *allocator, cddp_plan **of_wrapper,
                                 cddp_error *err)
{
    static const cd_key_scope shared_out[] = {CD_SCOPE_optimizer, CD_SCOPE_output,
                                              CD_SCOPE_collective, CD_SCOPE_when};
    cddp_plan *own = NULL;
    cd_arena *arena = NULL;
    if (index >= cddp_plan_wrapper_count(plan))
        return cd_fail(err, CDDP_E_ARG, "wrapper %zu of %zu", index, cddp_plan_wrapper_count(plan));
    CD_TRY(cddp_plan_create(allocator, &own, err));
    cddp_plan_memory *memory = own->memory;
    arena = cd_plan_get_arena(own);
    *own = *plan;
    own->memory = memory;
    if (plan->wrapper_count > 0) {
        own->wrappers = NULL;
        own->wrapper_count = 0;
        own->world.seed += index;
        own->schedule.turns = CDDP_TURNS_STEP;
        for (size_t i = 0; i < sizeof shared_out / sizeof shared_out[0]; i++)
            keep_own(plan, index, shared_out[i], own, arena);
        take_overrides(plan, index, own, arena);
    }
    const cddp_status status = cd_arena_check(arena, err, "the plan of a wrapper");
    if (status == CDDP_OK)
        *of_wrapper = own;
    else
        cddp_plan_destroy(own);
    return status;
}

void cd_plan_order_wrappers(const cddp_plan *plan, uint32_t rank, uint32_t step, size_t *order)
{
    const size_t count = cddp_plan_wrapper_count(plan);
    for (size_t i = 0; i < count; i++) order[i] = i;
    for (size_t i = 0; i < plan->when_count; i++) {
        const cddp_plan_when *when = &plan->whens[i];
        if (when->wrappers.count != count || !cddp_selector_has(&when->ranks, rank) ||
            !cddp_selector_has(&when->steps, step))
            continue;
        for (size_t k = 0; k < count; k++)
            order[k] = cd_plan_find_wrapper(plan, when->wrappers.items[k]);
    }
}
