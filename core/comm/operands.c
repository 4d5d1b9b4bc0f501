/* SPDX-License-Identifier: Apache-2.0 */
/* The checks at the choke point: every refusal that needs no other rank.
**
** A backend may rely on them. The operation, its reduction, device and dtype are declared. Tensors
** are contiguous; sizes and counts agree. Input and output are one tensor only where that is
** declared.
*/
#include "core/comm/operands.h"

#include "core/base/error.h"
#include "core/comm/group.h"

unsigned cd_operands_of(const cddp_group *g, const cddp_collective *c)
{
    bool is_root = c->root == g->group_rank;
    switch (c->op) {
    case CDDP_OP_BARRIER:
        return 0;
    case CDDP_OP_BROADCAST:
    case CDDP_OP_RECV:
        return CD_OPERAND_OUTPUT;
    case CDDP_OP_SEND:
        return CD_OPERAND_INPUT;
    case CDDP_OP_REDUCE:
    case CDDP_OP_GATHER:
        return is_root ? CD_OPERAND_INPUT | CD_OPERAND_OUTPUT : CD_OPERAND_INPUT;
    case CDDP_OP_SCATTER:
        return is_root ? CD_OPERAND_INPUT | CD_OPERAND_OUTPUT : CD_OPERAND_OUTPUT;
    case CDDP_OP_ALLREDUCE:
    case CDDP_OP_ALLGATHER:
    case CDDP_OP_REDUCE_SCATTER:
    case CDDP_OP_ALLTOALL:
    case CDDP_OP_COUNT:
        break;
    }
    return CD_OPERAND_INPUT | CD_OPERAND_OUTPUT;
}

static cddp_status check_tensor(const cddp_group *g, const cddp_collective *c, const cddp_tensor *t,
                                const char *which, cddp_error *err)
{
    const cddp_capabilities *k = &g->table.capabilities;
    const char *op = cddp_op_name(c->op);
    if (t->device == NULL)
        return cd_fail(err, CDDP_E_ARG, "group '%s': %s needs an %s tensor", g->name, op, which);
    if ((unsigned)t->dtype >= CDDP_DTYPE_COUNT || t->dim_count > CDDP_DIMS_MAX)
        return cd_fail(err, CDDP_E_ARG,
                       "group '%s': the %s of %s is no tensor: %u dimensions, dtype %d", g->name,
                       which, op, t->dim_count, (int)t->dtype);
    if (!cddp_tensor_is_contiguous(t))
        return cd_fail(err, CDDP_E_ARG, "group '%s': the %s of %s is not contiguous", g->name,
                       which, op);
    if (!k->any_device && (t->device->flags & k->devices) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "backend %s does not take tensors on device %s (%s of %s)", g->table.name,
                       t->device->name, which, op);
    if (cd_op_is_reduction(c->op) && (k->dtypes & CDDP_DTYPE_BIT(t->dtype)) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "backend %s does not %s dtype %s", g->table.name,
                       op, cddp_dtype_name(t->dtype));
    return CDDP_OK;
}

/* Explicit counts are valid for allgather and reduce_scatter (counts) and alltoall (counts and
** send_counts). */
static cddp_status check_explicit(const cddp_group *g, const cddp_collective *c, cddp_error *err)
{
    int64_t sum = 0, send_sum = 0;
    for (uint32_t i = 0; i < g->group_size; i++) {
        int64_t count = c->counts != NULL ? c->counts[i] : 0,
                send_count = c->send_counts != NULL ? c->send_counts[i] : 0;
        if (count < 0 || send_count < 0)
            return cd_fail(err, CDDP_E_ARG, "group '%s': %s with a negative count for rank %u",
                           g->name, cddp_op_name(c->op), i);
        sum += count;
        send_sum += send_count;
    }
    int64_t mine = c->counts != NULL ? c->counts[g->group_rank] : 0;
    bool gathers = c->op == CDDP_OP_ALLGATHER, scatters = c->op == CDDP_OP_REDUCE_SCATTER;
    bool exchanges = c->op == CDDP_OP_ALLTOALL && c->counts != NULL && c->send_counts != NULL;
    if (!exchanges && (c->send_counts != NULL || !(gathers || scatters)))
        return cd_fail(err, CDDP_E_ARG, "group '%s': %s does not go with these counts", g->name,
                       cddp_op_name(c->op));
    if (exchanges && c->send_counts[g->group_rank] != mine)
        return cd_fail(err, CDDP_E_ARG,
                       "group '%s': %s gives itself %lld elements and expects %lld of them",
                       g->name, cddp_op_name(c->op), (long long)c->send_counts[g->group_rank],
                       (long long)mine);
    int64_t in_wanted = gathers    ? mine
                        : scatters ? sum
                                   : send_sum,
            out_wanted = scatters ? mine : sum;
    int64_t in = cddp_tensor_numel(&c->input), out = cddp_tensor_numel(&c->output);
    if (in != in_wanted || out != out_wanted)
        return cd_fail(
            err, CDDP_E_ARG,
            "group '%s': the counts of %s ask for %lld elements in and %lld out, not %lld and %lld",
            g->name, cddp_op_name(c->op), (long long)in_wanted, (long long)out_wanted,
            (long long)in, (long long)out);
    return CDDP_OK;
}

static cddp_status check_equal_shares(const cddp_group *g, const cddp_collective *c,
                                      cddp_error *err)
{
    int64_t in = cddp_tensor_numel(&c->input), out = cddp_tensor_numel(&c->output);
    int64_t w = g->group_size;
    int64_t in_shares = c->op == CDDP_OP_REDUCE_SCATTER || c->op == CDDP_OP_SCATTER ? w : 1;
    int64_t out_shares = c->op == CDDP_OP_ALLGATHER || c->op == CDDP_OP_GATHER ? w : 1;
    bool divides = c->op != CDDP_OP_ALLTOALL || in % w == 0;
    if (in * out_shares != out * in_shares || !divides)
        return cd_fail(err, CDDP_E_ARG,
                       "group '%s': %s over %lld ranks cannot turn %lld elements into %lld",
                       g->name, cddp_op_name(c->op), (long long)w, (long long)in, (long long)out);
    return CDDP_OK;
}

/* Elements of the shares of the ranks below this one. */
static int64_t share_start(const cddp_group *g, const cddp_collective *c, int64_t equal_share)
{
    int64_t start = 0;
    for (uint32_t r = 0; r < g->group_rank; r++)
        start += c->counts != NULL ? c->counts[r] : equal_share;
    return start;
}

/* All ranks give the same answer, whichever share lies first. */
bool cd_operands_are_in_place(const cddp_group *g, const cddp_collective *c)
{
    const cddp_tensor *in = &c->input, *out = &c->output;
    int64_t in_at = in->offset, out_at = out->offset;
    if (c->op == CDDP_OP_ALLGATHER) out_at += share_start(g, c, cddp_tensor_numel(in));
    if (c->op == CDDP_OP_REDUCE_SCATTER) in_at += share_start(g, c, cddp_tensor_numel(out));
    return in->storage == out->storage && in_at == out_at;
}

/* Checks input against output, for operations that have both. */
static cddp_status check_pair(const cddp_group *g, const cddp_collective *c, cddp_error *err)
{
    if (c->counts != NULL || c->send_counts != NULL)
        CD_TRY(check_explicit(g, c, err));
    else
        CD_TRY(check_equal_shares(g, c, err));
    if (c->input.dtype != c->output.dtype)
        return cd_fail(err, CDDP_E_ARG, "group '%s': %s from %s to %s", g->name,
                       cddp_op_name(c->op), cddp_dtype_name(c->input.dtype),
                       cddp_dtype_name(c->output.dtype));
    if (!g->table.capabilities.in_place && cddp_tensor_numel(&c->input) > 0 &&
        cd_operands_are_in_place(g, c))
        return cd_fail(err, CDDP_E_UNSUPPORTED, "backend %s does not %s in place", g->table.name,
                       cddp_op_name(c->op));
    return CDDP_OK;
}

cddp_status cd_operands_check(const cddp_group *g, const cddp_collective *c, cddp_error *err)
{
    const cddp_capabilities *k = &g->table.capabilities;
    const char *op = cddp_op_name(c->op);
    if ((unsigned)c->op >= CDDP_OP_COUNT)
        return cd_fail(err, CDDP_E_ARG, "group '%s': no such operation: %d", g->name, (int)c->op);
    if (g->aborted)
        return cd_fail(err, CDDP_E_ABORTED, "group '%s' was aborted; %s refused", g->name, op);
    if ((k->ops & (1u << c->op)) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "backend %s does not implement %s", g->table.name,
                       op);
    if (cd_op_is_reduction(c->op)) {
        if ((unsigned)c->reduce_op >= CDDP_RED_COUNT)
            return cd_fail(err, CDDP_E_ARG, "group '%s': no such reduction: %d", g->name,
                           (int)c->reduce_op);
        if ((k->reduce_ops & (1u << c->reduce_op)) == 0)
            return cd_fail(err, CDDP_E_UNSUPPORTED, "backend %s does not implement %s with %s",
                           g->table.name, op, cddp_red_op_name(c->reduce_op));
    }
    if (cd_op_is_rooted(c->op) && c->root >= g->group_size)
        return cd_fail(err, CDDP_E_ARG, "group '%s': %s names rank %u of %u", g->name, op, c->root,
                       g->group_size);
    unsigned operands = cd_operands_of(g, c);
    if (operands & CD_OPERAND_INPUT) CD_TRY(check_tensor(g, c, &c->input, "input", err));
    if (operands & CD_OPERAND_OUTPUT) CD_TRY(check_tensor(g, c, &c->output, "output", err));
    if (operands == (CD_OPERAND_INPUT | CD_OPERAND_OUTPUT)) CD_TRY(check_pair(g, c, err));
    return CDDP_OK;
}
