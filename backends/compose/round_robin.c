/* SPDX-License-Identifier: Apache-2.0 */
/* rr:K:x. K groups of the inner backend over the same members; collectives use them in turn.
**
**     operation   0  1  2  3  4 …
**     group       0  1  2  0  1 …       (K = 3)
**
** A transport that runs one operation of a group at a time then runs K of ours at once. Messages
** between two ranks always use group 0: the other ranks do not know of them, so they must not
** advance the turn. Numerics are the inner backend's: an operation is never split.
*/
#include "backends/compose/step.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct rr_group {
    cd_step_group base;
    uint64_t turn;
} rr_group;

static cddp_status rr_begin(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    rr_group *rr = (rr_group *)(void *)g;
    uint32_t index = cd_step_is_message(w->call.op) ? 0 : (uint32_t)(rr->turn++ % g->inner_count);
    CD_TRY(cd_step_issue(g, w, index, &w->call, true, err));
    return CDDP_OK;
}

static const cd_step_ops ops = {.group_bytes = sizeof(rr_group), .begin = rr_begin};

static cddp_status rr_open(const cddp_backend *backend, cddp_rank *rank,
                           const cddp_group_spec *spec, void **group, cddp_error *err)
{
    cd_step_group *g = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_step_group_create(backend, rank, spec, &ops, &g, err));
    for (uint32_t i = 0; i < g->node->group_count; i++) {
        char suffix[16];
        snprintf(suffix, sizeof suffix, "/rr%" PRIu32, i);
        const cd_inner_spec inner = {.node = g->node->inner[0], .suffix = suffix};
        CD_TRY_OUT(cd_step_group_open_inner(g, spec, &inner, err));
    }
    *group = g;
    g = NULL;
out:
    cd_step_group_destroy(g);
    return status;
}

static cddp_status rr_parse(cd_node *node, const char **at, cddp_error *err)
{
    const char *begin = *at;
    uint64_t count = 0;
    if (!cd_spec_number(at, &count) || **at != ':' || count < 1 || count > CD_NODE_GROUPS_MAX)
        return cd_spec_refuse(
            node, begin, err,
            "rr needs a number of groups from 1 to %d and a colon, as in rr:3:gloo",
            CD_NODE_GROUPS_MAX);
    node->group_count = (uint32_t)count;
    ++*at;
    return CDDP_OK;
}

static cddp_status rr_adopt(cd_node *node, cddp_error *err)
{
    (void)err;
    cd_step_fill_table(&node->table); /* every promise of the inner backend is kept */
    return CDDP_OK;
}

const cd_kind cd_kind_round_robin = {.word = "rr",
                                     .form = "rr:K:x",
                                     .summary = "K groups of backend x, collectives go round",
                                     .parse = rr_parse,
                                     .adopt = rr_adopt,
                                     .open = rr_open};
