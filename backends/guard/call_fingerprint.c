/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints of collectives: makes, compares and prints them. */
#include "backends/guard/call_fingerprint.h"

#include "core/base/error.h"
#include "core/base/hash.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static uint64_t digest_share(uint32_t from, uint32_t to, int64_t count)
{
    return cd_hash_mix(cd_hash_mix(cd_hash_mix(1, from), to), (uint64_t)count);
}

static bool reduces(uint32_t op)
{
    return op == CDDP_OP_ALLREDUCE || op == CDDP_OP_REDUCE || op == CDDP_OP_REDUCE_SCATTER;
}

static bool is_rooted(uint32_t op)
{
    return op == CDDP_OP_BROADCAST || op == CDDP_OP_REDUCE || op == CDDP_OP_GATHER ||
           op == CDDP_OP_SCATTER;
}

cd_call_fingerprint cd_call_fingerprint_of(const cddp_collective *c, uint32_t group_rank,
                                           uint32_t group_size)
{
    const cddp_tensor *t =
        c->op == CDDP_OP_BROADCAST || c->op == CDDP_OP_SCATTER ? &c->output : &c->input;
    cd_call_fingerprint f = {.magic = CD_CALL_FINGERPRINT_MAGIC,
                             .op = (uint32_t)c->op,
                             .reduce_op = reduces(c->op) ? (uint32_t)c->reduce_op : 0,
                             .root = is_rooted(c->op) ? c->root : 0,
                             .sequence = c->sequence};
    if (c->op == CDDP_OP_BARRIER) return f;
    const bool exchanges = c->op == CDDP_OP_ALLTOALL && c->counts != NULL && c->send_counts != NULL;
    bool shares_differ = exchanges || (c->op == CDDP_OP_ALLGATHER && c->counts != NULL);
    f.dtype = (uint32_t)t->dtype;
    f.numel = shares_differ ? -1 : cddp_tensor_numel(t);
    if (c->counts != NULL && c->op != CDDP_OP_ALLTOALL)
        f.counts = cd_hash64(c->counts, group_size * sizeof *c->counts, 1);
    for (uint32_t r = 0; exchanges && r < group_size; r++) {
        f.given += digest_share(group_rank, r, c->send_counts[r]);
        f.taken += digest_share(r, group_rank, c->counts[r]);
    }
    return f;
}

static void print(const cd_call_fingerprint *f, char *text, size_t bytes)
{
    snprintf(text, bytes, "#%llu %s", (unsigned long long)f->sequence,
             cddp_op_name((cddp_op)f->op));
    size_t used = strlen(text);
    if (f->op == CDDP_OP_BARRIER) return;
    char root[32] = "";
    const char *reduce_op = reduces(f->op) ? cddp_red_op_name((cddp_red_op)f->reduce_op) : "";
    if (is_rooted(f->op)) snprintf(root, sizeof root, ", root %u", f->root);
    snprintf(text + used, bytes - used, "(%s%s%lld × %s%s)", reduce_op,
             reduce_op[0] != '\0' ? ", " : "", (long long)f->numel,
             cddp_dtype_name((cddp_dtype)f->dtype), root);
}

cddp_status cd_call_fingerprint_agree(const cd_call_fingerprint *all, const uint32_t *members,
                                      uint32_t group_rank, uint32_t group_size, cddp_error *err)
{
    const cd_call_fingerprint *mine = &all[group_rank];
    uint64_t given = 0, taken = 0;
    for (uint32_t r = 0; r < group_size; r++) {
        given += all[r].given;
        taken += all[r].taken;
        if (memcmp(mine, &all[r], offsetof(cd_call_fingerprint, given)) == 0) continue;
        if (all[r].magic != CD_CALL_FINGERPRINT_MAGIC)
            return cd_fail(err, CDDP_E_MISMATCH,
                           "rank %u sent no fingerprint: is guard on everywhere?", members[r]);
        char here[160], there[160];
        print(mine, here, sizeof here);
        print(&all[r], there, sizeof there);
        return cd_fail(err, CDDP_E_MISMATCH, "ranks disagree: rank %u issues %s, rank %u issues %s",
                       members[group_rank], here, members[r], there);
    }
    if (given != taken)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "ranks disagree: in #%llu %s some rank gives another one more or fewer "
                       "elements than that one expects",
                       (unsigned long long)mine->sequence, cddp_op_name((cddp_op)mine->op));
    return CDDP_OK;
}

cddp_status cd_call_fail_silent(cddp_op op, const char *names, uint32_t count, const char *library,
                                cddp_error *err)
{
    if (count == 1 && !is_rooted(op))
        return cd_fail(err, CDDP_E_TIMEOUT, "lost %s: no part was taken in it in time (%s)", names,
                       library);
    return cd_fail(
        err, CDDP_E_TIMEOUT,
        "it did not end in time, and nothing was heard of %s: no part was taken there, or "
        "its own part has ended (%s)",
        names, library);
}
