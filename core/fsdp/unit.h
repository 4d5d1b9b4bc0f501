/* SPDX-License-Identifier: Apache-2.0 */
/* One unit: its shard, its full parameters while it has them, its gradients until they are reduced.
**
**   U1  `shard` is the only copy that outlives an iteration; between iterations nothing else is
**       full, but NO_SHARD units and units of SHARD_GRAD_OP within a no_sync window
**   U2  FULL implies that members' views point into `full`, and that the gather was awaited
**   U3  a gather or a reduction in flight has its operands in buffers of this unit
**   U4  gradient slots of members are undefined, or views of `gradient`
**
**      SHARDED ──gather──▶ GATHERING ──await──▶ FULL ──free──▶ SHARDED
**
** Ownership  owns shard, gradient of the shard and buffers until fini; borrows groups, members'
**            slots and the memory.
*/
#pragma once
#include "core/fsdp/ahead.h"
#include "core/fsdp/layout.h"
#include "core/fsdp/memory.h"

typedef enum cd_fsdp_state { CD_FSDP_SHARDED, CD_FSDP_GATHERING, CD_FSDP_FULL } cd_fsdp_state;

/* A reduction goes through the shard group, then through the replicas. */
typedef enum cd_fsdp_reducing {
    CD_FSDP_REDUCED, /* nothing is in flight */
    CD_FSDP_SCATTERING,
    CD_FSDP_REPLICATING
} cd_fsdp_reducing;

/* Division before and after a sum: by `before`, a power of two, and by after/times, with `times` a
** power of two (FSD-06). Of exact sums the result is rounded once. */
typedef struct cd_fsdp_divisor {
    int64_t before, after, times;
} cd_fsdp_divisor;
cd_fsdp_divisor cd_fsdp_divisor_of(uint32_t factor);

typedef struct cd_fsdp_unit {
    const char *name; /* of its module; "" is the root */
    uint32_t index, module;
    cddp_fsdp_strategy strategy;
    cddp_group *shards;   /* NULL: there is one shard */
    cddp_group *replicas; /* NULL: nobody has the same shard */
    uint32_t shard_rank;
    cd_fsdp_divisor of_shards, of_replicas;
    cd_fsdp_layout layout;
    const cddp_device *device;
    cddp_dtype dtype, param_dtype, reduce_dtype;
    cddp_dtype input_dtype, output_dtype; /* COUNT: not cast */
    bool requires_grad, keeps_low_precision_grads;
    cd_fsdp_memory *memory;
    cd_fsdp_ahead *ahead; /* the stream on which it is gathered */

    cddp_tensor shard; /* (share) on its device, or offloaded to the host */
    cddp_grad grad;    /* its slot, where the shard is; backing: (share) of dtype, owned */
    cddp_tensor low;   /* (share) what the slot shows of it in low precision (FMP-08) */

    cd_fsdp_state state;
    cd_fsdp_buffer moved;  /* (share) of an offloaded shard, while it is gathered */
    cd_fsdp_buffer cast;   /* (share) of param_dtype, while it is gathered */
    cd_fsdp_buffer packed; /* (world · share) what a gather writes */
    cd_fsdp_buffer full;   /* ROWS: whole members. FLAT: packed is */
    cddp_work *gather;

    cd_fsdp_buffer gradient;    /* whole members, of param_dtype */
    cd_fsdp_buffer accumulated; /* ROWS in no_sync: the same of reduce_dtype (FMP-04) */
    cd_fsdp_reducing reducing;
    cd_fsdp_buffer given, taken; /* (world · share) and (share) of reduce_dtype */
    cddp_tensor sum;             /* (share) where the sum goes: taken, or the place of grad */
    cddp_work *reduction;
} cd_fsdp_unit;

/* Has anything to gather: parameters, and not the shard itself. */
static inline bool cd_fsdp_unit_is_empty(const cd_fsdp_unit *u)
{
    return u->layout.member_count == 0;
}
static inline bool cd_fsdp_unit_is_sharded(const cd_fsdp_unit *u) { return u->shards != NULL; }
static inline bool cd_fsdp_unit_is_offloaded(const cd_fsdp_unit *u)
{
    return u->shard.device != u->device;
}
/* Keeps its full parameters from forward to backward (FSD-11). */
bool cd_fsdp_unit_keeps(const cd_fsdp_unit *u);

/* Makes the shard, on `device`, of whole members in the original dtype: its part of them. FLAT:
** with what is between and behind them. */
cddp_status cd_fsdp_unit_make_shard(cd_fsdp_unit *u, const cddp_device *device,
                                    const cddp_tensor *whole, cddp_error *err);
void cd_fsdp_unit_fini(cd_fsdp_unit *u);

/* SHARDED → GATHERING; any other state is left as it is. */
cddp_status cd_fsdp_unit_gather(cd_fsdp_unit *u, cddp_error *err);
/* GATHERING → FULL. */
cddp_status cd_fsdp_unit_await(cd_fsdp_unit *u, cddp_error *err);
/* FULL: the stream comes behind what made it so. */
cddp_status cd_fsdp_unit_let(const cd_fsdp_unit *u, cddp_stream *stream, cddp_error *err);
/* Any state → SHARDED. A gather that nobody waited for is awaited first (FS2-08). */
cddp_status cd_fsdp_unit_free(cd_fsdp_unit *u, cddp_error *err);
/* Is this rank's part of the full copy what its shard is now? FLAT and ROWS. */
cddp_status cd_fsdp_unit_check_fresh(cd_fsdp_unit *u, bool *fresh, cddp_error *err);
/* Gathers any vector that is cut like the shard, in its own dtype, into whole members. Blocks. */
cddp_status cd_fsdp_unit_gather_whole(cd_fsdp_unit *u, const cddp_tensor *part,
                                      cd_fsdp_buffer *whole, cddp_error *err);

/* Gives members' slots a place in `gradient`, where new gradients are then made. */
cddp_status cd_fsdp_unit_prepare_gradients(cd_fsdp_unit *u, cddp_error *err);
bool cd_fsdp_unit_has_gradient(const cd_fsdp_unit *u); /* some member's slot is defined */
/* Without a reduction: what the slots have stays for the next backward. */
cddp_status cd_fsdp_unit_accumulate(cd_fsdp_unit *u, cddp_error *err);
/* Posts the first stage; slots are undefined afterwards. */
cddp_status cd_fsdp_unit_reduce(cd_fsdp_unit *u, cddp_error *err);
/* Ends the stage that is in flight, and posts the next one or adds the result to the shard's
** gradient. */
cddp_status cd_fsdp_unit_advance(cd_fsdp_unit *u, cddp_error *err);
void cd_fsdp_unit_drop_gradients(cd_fsdp_unit *u);
/* Whether the slot of the shard's gradient, which is the program's to change, has one of its. */
cddp_status cd_fsdp_unit_check_gradient(const cd_fsdp_unit *u, cddp_error *err);
/* The shard's gradient in low precision, at the end of a backward. */
cddp_status cd_fsdp_unit_show_gradient(cd_fsdp_unit *u, cddp_error *err);
