/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's model as units of core/fsdp, where the plan says fsdp.enable.
**
** Lifetime   shard → (begin_forward → use… → end_forward → begin_backward → ready… →
**            end_backward)* → unshard. `collect` between iterations only: it is a collective.
*/
#pragma once
#include "cddp/ddp.h"
#include "core/base/arena.h"
#include "core/model/model.h"
#include "core/tensor/blob.h"

typedef struct cd_trainer cd_trainer;

typedef struct cddp_fsdp cddp_fsdp;
typedef struct cddp_fsdp_entry cddp_fsdp_entry;

cddp_status cd_trainer_shard(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
void cd_trainer_unshard(cd_trainer *t);

cddp_status cd_sharding_begin_forward(cd_trainer *t, bool grad_mode,
                                      cddp_error *err) CDDP_MUST_CHECK;
/* To what inputs of the model are cast before that; NULL: they are not. */
const cddp_dtype *cd_sharding_input_dtype(const cd_trainer *t);
/* Values become what units that they enter or leave cast them to: outputs of the model too. */
cddp_status cd_sharding_cross(cd_trainer *t, cd_value *value, cd_value **read,
                              cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_end_forward(cd_trainer *t, cd_outputs *outputs,
                                    cddp_error *err) CDDP_MUST_CHECK;
/* Before a parameter is read: its unit is gathered. */
cddp_status cd_sharding_use(cd_trainer *t, uint32_t parameter, bool in_backward,
                            cddp_error *err) CDDP_MUST_CHECK;
/* What the graph reads; NULL: the parameter's unit is not full. */
const cddp_tensor *cd_sharding_parameter(const cd_trainer *t, uint32_t parameter);
/* Around a whole micro-step. */
cddp_status cd_sharding_enter_no_sync(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_leave_no_sync(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_begin_backward(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_ready(cd_trainer *t, uint32_t parameter, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_end_backward(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;

cddp_status cd_sharding_regrid(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_zero_grad(cd_trainer *t, bool to_none, cddp_error *err) CDDP_MUST_CHECK;

/* The norm of all gradients, by which those of the shards are scaled. What was gathered to be shown
** stays as it was. */
cddp_status cd_sharding_clip(cd_trainer *t, double *norm, cddp_error *err) CDDP_MUST_CHECK;

/* Gathers parameters and gradients to be shown. */
cddp_status cd_sharding_collect(cd_trainer *t, cddp_error *err) CDDP_MUST_CHECK;
/* As last gathered. */
const cddp_grad *cd_sharding_gradient(const cd_trainer *t, size_t parameter);

/* ---- what the wrapper gives of its state (sharding_entries.c) ---- */

/* Names that came: known to the model, in its shapes, once each. begin → take… → end. */
typedef struct cd_sharding_entries {
    cd_arena *memory;
    bool *seen;      /* (parameters, then buffers) */
    bool takes_rows; /* a part of the rows will do */
    const cddp_tensor *vectors;
} cd_sharding_entries;
/* vectors: (unit_count) an optimizer's state or gradients, whose dtypes are expected; borrowed
** until end. NULL: parameters and buffers, in the model's. */
cddp_status cd_sharding_entries_begin(cd_sharding_entries *came, const cd_trainer *t,
                                      const cddp_tensor *vectors, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_sharding_entries_take(cd_sharding_entries *came, const cd_trainer *t,
                                     const cddp_fsdp_entry *entry, cddp_error *err) CDDP_MUST_CHECK;
/* All that is due came. */
cddp_status cd_sharding_entries_end(const cd_sharding_entries *came, const cd_trainer *t,
                                    cddp_error *err) CDDP_MUST_CHECK;
uint32_t cd_sharding_unit_of(const cd_trainer *t, size_t parameter);

/* ---- a checkpoint (sharding_state.c) ---- */

/* The wrapper itself. */
cddp_fsdp *cd_sharding_get(const cd_trainer *t);
/* Ranks of a shard group, among which SHARDED_STATE_DICT is divided. */
uint32_t cd_sharding_get_shards(const cd_trainer *t);

/* What a checkpoint has of a sharded model besides its bytes, which are in t->saved.all: how many
** steps each parameter of each optimizer has made, how shards were cut, and this rank's buffers. */
typedef struct cd_sharding_saved {
    cd_arena memory;
    int64_t *steps; /* (entry_count) + 1; 0: no state */
    size_t entry_count;
    struct cddp_fsdp_local *shards; /* (unit_count) of LOCAL_STATE_DICT */
    uint32_t shard_count, unit_count;
    cd_blob buffers;
} cd_sharding_saved;
cddp_status cd_sharding_save(cd_trainer *t, cd_sharding_saved *saved,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Into another wrapper of the same model, whatever its strategy and layout. */
cddp_status cd_sharding_load(cd_trainer *t, cd_sharding_saved *saved,
                             cddp_error *err) CDDP_MUST_CHECK;
void cd_sharding_saved_fini(cd_sharding_saved *saved); /* accepts a zeroed one */
