/* SPDX-License-Identifier: Apache-2.0 */
/* cpu:x,cuda:y. One group per device. An operation goes to the group of its tensor's device, a
** barrier to the first group.
**
** The table declares the operations, dtypes and reductions that all inner backends have. Devices
** are not a bit mask of the port, so the table accepts any device; an operation on a device without
** a backend is refused by name.
*/
#include "backends/compose/step.h"
#include "core/base/error.h"

#include <stdio.h>
#include <string.h>

static cddp_status dispatch_begin(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    const cddp_tensor *t = cd_step_has_input(g, c) ? &c->input : &c->output;
    uint32_t index = 0;
    if (c->op != CDDP_OP_BARRIER)
        while (index < g->inner_count && strcmp(g->node->devices[index], t->device->name) != 0)
            index++;
    if (index == g->inner_count)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "backend '%s' has no backend for device %s (%s)",
                       g->node->table.name, t->device->name, cddp_op_name(c->op));
    CD_TRY(cd_step_issue(g, w, index, c, true, err));
    return CDDP_OK;
}

static const cd_step_ops ops = {.group_bytes = sizeof(cd_step_group), .begin = dispatch_begin};

static cddp_status dispatch_open(const cddp_backend *backend, cddp_rank *rank,
                                 const cddp_group_spec *spec, void **group, cddp_error *err)
{
    cd_step_group *g = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_step_group_create(backend, rank, spec, &ops, &g, err));
    for (uint32_t i = 0; i < g->node->inner_count; i++) {
        char suffix[CD_NODE_WORD_BYTES + 2];
        snprintf(suffix, sizeof suffix, "/%s", g->node->devices[i]);
        const cd_inner_spec inner = {.node = g->node->inner[i], .suffix = suffix};
        CD_TRY_OUT(cd_step_group_open_inner(g, spec, &inner, err));
    }
    *group = g;
    g = NULL;
out:
    cd_step_group_destroy(g);
    return status;
}

static cddp_status dispatch_adopt(cd_node *node, cddp_error *err)
{
    cddp_capabilities *k = &node->table.capabilities;
    (void)err;
    for (uint32_t i = 1; i < node->inner_count; i++) {
        const cddp_capabilities *other = &node->inner[i]->table.capabilities;
        k->ops &= other->ops;
        k->dtypes &= other->dtypes;
        k->reduce_ops &= other->reduce_ops;
        k->in_place = k->in_place && other->in_place;
        k->async = k->async && other->async;
        k->guards = k->guards && other->guards;
        if (node->table.device == NULL) node->table.device = node->inner[i]->table.device;
        if (node->table.launcher == NULL) node->table.launcher = node->inner[i]->table.launcher;
        if (other->world_size_max < k->world_size_max) k->world_size_max = other->world_size_max;
        bool same = k->algorithm != NULL && other->algorithm != NULL &&
                    strcmp(k->algorithm, other->algorithm) == 0;
        if (other->order < k->order) k->order = other->order;
        /* known, but under several names */
        if (k->order == CDDP_ORDER_KNOWN && !same) k->order = CDDP_ORDER_SAME;
        if (!same) k->algorithm = NULL;
    }
    k->any_device = true;
    k->devices = 0;
    cd_step_fill_table(&node->table);
    return CDDP_OK;
}

const cd_kind cd_kind_dispatch = {.form = "cpu:x,cuda:y",
                                  .summary =
                                      "the device of a tensor decides which backend moves it",
                                  .adopt = dispatch_adopt,
                                  .open = dispatch_open};
