/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of an update rule, and the optimizer record. Inside core/model/optim only.
**
** To add a rule: one file like sgd.c that defines cd_rule_<name>, and one row in optimizers.def. */
#pragma once
#include "core/base/arena.h"
#include "core/model/optim/optimizer.h"

/* One parameter and its state. */
typedef struct cd_optimizer_entry {
    cd_optimizer_parameter parameter;
    bool is_present;
    uint64_t step;
    /* owned storage; undefined (device NULL) until present */
    cddp_tensor slots[CD_OPTIMIZER_SLOTS_MAX];
} cd_optimizer_entry;

typedef struct cd_optimizer_rule {
    const char *slot_names[CD_OPTIMIZER_SLOTS_MAX];
    cd_optimizer_options defaults;
    bool has_state_from_start; /* Adagrad: before any gradient */
    bool needs_host;           /* computes on host storage, or as `rule` on a device that has it */
    cddp_update_rule rule;     /* where needs_host */
    uint32_t (*slot_count)(const cd_optimizer_options *options);
    cddp_status (*check)(const cd_optimizer_options *options, cddp_error *err);
    /* does: one update. The gradient is defined; state is not made yet at the first one. */
    cddp_status (*step)(cd_optimizer *optimizer, cd_optimizer_entry *entry, cddp_error *err);
} cd_optimizer_rule;

#define CD_OPTIMIZER(name, summary) extern const cd_optimizer_rule cd_rule_##name;
#include "core/model/optim/optimizers.def"
#undef CD_OPTIMIZER

struct cd_optimizer {
    cd_arena arena; /* the optimizer itself and its entries */
    const cddp_allocator *allocator;
    const cd_optimizer_rule *rule;
    cd_optimizer_options options;
    cd_optimizer_entry *entries; /* (entry_count) */
    size_t entry_count;
    cddp_tensor scratch; /* 1-D, grows to the largest parameter of its dtype; undefined at first */
};

/* Makes absent slots, filled with the rule's initial value, and marks the state present. All or
** nothing. */
cddp_status cd_optimizer_make_slots(cd_optimizer *optimizer, cd_optimizer_entry *entry,
                                    cddp_error *err);
/* A tensor like the parameter for the length of one update. */
cddp_status cd_optimizer_take_scratch(cd_optimizer *optimizer, const cddp_tensor *like,
                                      cddp_tensor *scratch, cddp_error *err);
/* "sgd: parameter fc.weight: " in front of what is wrong with a setting or gradient. */
cddp_status cd_optimizer_refuse(const cd_optimizer *optimizer, const cd_optimizer_entry *entry,
                                const char *why, cddp_error *err);
cddp_status cd_optimizer_check_range(const char *what, double value, double low, double high,
                                     cddp_error *err);

/* ---- element-wise updates ---- */

enum { CD_UPDATE_TENSORS_MAX = 5, CD_UPDATE_CHUNK = 256 };

/* does: updates n elements; x[i] are the arrays of tensor i, of f64 for f64 tensors and f32 for all
** others. */
typedef void (*cd_update_fn)(void *const *x, size_t n, const void *context);

typedef struct cd_update {
    /* of one dtype, with equal numel; NULL ends */
    const cddp_tensor *tensors[CD_UPDATE_TENSORS_MAX];
    uint32_t written;                         /* bit i: tensor i is written back */
    cd_update_fn functions[CDDP_DTYPE_COUNT]; /* by dtype */
    const void *context;
    /* the same for a device that has it; its tensors and size are filled in */
    const cddp_update_call *there;
} cd_update;

/* True where the device has layers with this rule. */
bool cd_update_is_there(const cddp_device *device, cddp_update_rule rule);

/* Runs the update in logical order, chunk by chunk, or on the device. c64 tensors are taken as
** twice as many f32. */
cddp_status cd_update_run(const cd_update *update, cddp_error *err);
