/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints of collectives: makes, compares and prints them. */
#include "backends/guard/call_fingerprint.h"

#include "core/base/error.h"
#include "core/base/hash.h"

#include <stdio.h>
#include <string.h>

cd_call_fingerprint cd_call_fingerprint_of(const cddp_collective *c, uint32_t group_size)
{
    bool reduces =
        c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_REDUCE || c->op == CDDP_OP_REDUCE_SCATTER;
    bool rooted = c->op == CDDP_OP_BROADCAST || c->op == CDDP_OP_REDUCE ||
                  c->op == CDDP_OP_GATHER || c->op == CDDP_OP_SCATTER;
    const cddp_tensor *t =
        c->op == CDDP_OP_BROADCAST || c->op == CDDP_OP_SCATTER ? &c->output : &c->input;
    cd_call_fingerprint f = {.magic = CD_CALL_FINGERPRINT_MAGIC,
                             .op = (uint32_t)c->op,
                             .reduce_op = reduces ? (uint32_t)c->reduce_op : 0,
                             .root = rooted ? c->root : 0,
                             .sequence = c->sequence};
    if (c->op == CDDP_OP_BARRIER) return f;
    bool shares_differ =
        c->op == CDDP_OP_ALLTOALL || (c->op == CDDP_OP_ALLGATHER && c->counts != NULL);
    f.dtype = (uint32_t)t->dtype;
    f.numel = shares_differ ? -1 : cddp_tensor_numel(t);
    if (c->counts != NULL && c->op != CDDP_OP_ALLTOALL)
        f.counts = cd_hash64(c->counts, group_size * sizeof *c->counts, 1);
    return f;
}

static void print(const cd_call_fingerprint *f, char *text, size_t bytes)
{
    snprintf(text, bytes, "#%llu %s", (unsigned long long)f->sequence,
             cddp_op_name((cddp_op)f->op));
    size_t used = strlen(text);
    if (f->op == CDDP_OP_BARRIER) return;
    snprintf(text + used, bytes - used, "(%s, %lld × %s, root %u)",
             cddp_red_op_name((cddp_red_op)f->reduce_op), (long long)f->numel,
             cddp_dtype_name((cddp_dtype)f->dtype), f->root);
}

cddp_status cd_call_fingerprint_agree(const cd_call_fingerprint *all, const uint32_t *members,
                                      uint32_t group_rank, uint32_t group_size, cddp_error *err)
{
    const cd_call_fingerprint *mine = &all[group_rank];
    for (uint32_t r = 0; r < group_size; r++) {
        if (r == group_rank || memcmp(mine, &all[r], sizeof *mine) == 0) continue;
        if (all[r].magic != CD_CALL_FINGERPRINT_MAGIC)
            return cd_fail(err, CDDP_E_MISMATCH,
                           "rank %u sent no fingerprint: is guard on everywhere?", members[r]);
        char here[160], there[160];
        print(mine, here, sizeof here);
        print(&all[r], there, sizeof there);
        return cd_fail(err, CDDP_E_MISMATCH, "ranks disagree: rank %u issues %s, rank %u issues %s",
                       members[group_rank], here, members[r], there);
    }
    return CDDP_OK;
}
