/* SPDX-License-Identifier: Apache-2.0 */
/* Adagrad, in PyTorch's order: g += weight_decay × p; s += g × g; p += (-clr × g) / (sqrt(s) +
** eps), with clr = lr / (1 + (step - 1) × lr_decay). A sparse gradient updates its rows only, and
** as p += -clr × (g / (sqrt(s) + eps)); the update is not linear, so its rows must be coalesced. */
#include "core/model/optim/rule.h"

#include "core/base/error.h"
#include "core/tensor/update_code.h"

#include <inttypes.h>
#include <math.h>

static uint32_t slot_count(const cd_optimizer_options *options)
{
    (void)options;
    return 1;
}

static cddp_status check(const cd_optimizer_options *options, cddp_error *err)
{
    CD_TRY(cd_optimizer_check_range("lr_decay", options->lr_decay, 0, 1e300, err));
    CD_TRY(cd_optimizer_check_range("initial_accumulator_value", options->initial_accumulator_value,
                                    0, 1e300, err));
    return CD_PASS(cd_optimizer_check_range("eps", options->eps, 0, 1e300, err));
}

static cddp_tensor row_of(const cddp_tensor *t, int64_t index)
{
    cddp_tensor row = *t;
    row.offset += index * t->strides[0];
    row.sizes[0] = 1;
    return row;
}

/* Strictly increasing and in range: each row once. */
static cddp_status read_row(const cd_optimizer_entry *entry, int64_t i, int64_t before,
                            int64_t *index, cddp_error *err)
{
    const cddp_tensor rows = cddp_rows_tensor(&entry->parameter.grad->rows),
                      one = cddp_tensor_slice(&rows, i, 1);
    CD_TRY(one.device->read(&one, index, sizeof *index, err));
    if (*index > before && *index < entry->parameter.tensor.sizes[0]) return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG,
                   "adagrad: parameter %s: sparse row %" PRId64 " after row %" PRId64 " of %" PRId64
                   "; coalesce the gradient first",
                   entry->parameter.name, *index, before, entry->parameter.tensor.sizes[0]);
}

static cddp_status step_sparse(cd_optimizer *o, cd_optimizer_entry *entry,
                               const cddp_adagrad_scalars *scalars, cddp_error *err)
{
    const cddp_tensor *p = &entry->parameter.tensor, *value = &entry->parameter.grad->value;
    int64_t row_count = entry->parameter.grad->rows.count, before = -1, index;
    if (o->options.weight_decay != 0)
        return CD_PASS(cd_optimizer_refuse(o, entry,
                                           "its gradient is sparse; weight decay needs a dense one",
                                           err));
    if ((p->device->flags & CDDP_DEVICE_HOST) == 0)
        return CD_PASS(cd_optimizer_refuse(o, entry,
                                           "its gradient is sparse; this device needs a dense one",
                                           err));
    for (int64_t i = 0; i < row_count; i++, before = index)
        CD_TRY(read_row(entry, i, before, &index, err));
    for (int64_t i = 0, last = -1; i < row_count; i++, last = index) {
        CD_TRY(read_row(entry, i, last, &index, err));
        cddp_tensor to = row_of(p, index), from = row_of(value, i),
                    sum = row_of(&entry->slots[0], index);
        cd_update update = {.tensors = {&to, &from, &sum},
                            .written = 1u << 0 | 1u << 2,
                            .functions = {[CDDP_F64] = cd_adagrad_sparse_f64,
                                          [CDDP_F32] = cd_adagrad_sparse_f32,
                                          [CDDP_F16] = cd_adagrad_sparse_f16,
                                          [CDDP_BF16] = cd_adagrad_sparse_bf16},
                            .context = scalars};
        CD_TRY(cd_update_run(&update, err));
    }
    return CDDP_OK;
}

static cddp_status step(cd_optimizer *o, cd_optimizer_entry *entry, cddp_error *err)
{
    const cddp_tensor *p = &entry->parameter.tensor;
    CD_TRY(cd_optimizer_make_slots(o, entry, err));
    double rate = o->options.lr / (1 + (double)entry->step * o->options.lr_decay);
    cddp_adagrad_scalars scalars = {.decay = o->options.weight_decay,
                                    .eps = o->options.eps,
                                    .rate_negative = -rate,
                                    .sign = o->options.maximize ? -1 : 1};
    bool has_values = (p->device->flags & CDDP_DEVICE_VALUES) != 0;
    if (has_values && entry->parameter.grad->kind == CDDP_GRAD_SPARSE) {
        CD_TRY(step_sparse(o, entry, &scalars, err));
    } else if (has_values) {
        cd_update update = {.tensors = {p, &entry->parameter.grad->value, &entry->slots[0]},
                            .written = 1u << 0 | 1u << 2,
                            .functions = {[CDDP_F64] = cd_adagrad_f64,
                                          [CDDP_F32] = cd_adagrad_f32,
                                          [CDDP_F16] = cd_adagrad_f16,
                                          [CDDP_BF16] = cd_adagrad_bf16},
                            .context = &scalars,
                            .there = &(cddp_update_call){.rule = CDDP_UPDATE_ADAGRAD,
                                                         .adagrad = &scalars}};
        CD_TRY(cd_update_run(&update, err));
    }
    entry->step++;
    return CDDP_OK;
}

const cd_optimizer_rule cd_rule_adagrad = {.slot_names = {"sum"},
                                           .defaults = {.lr = 1e-2, .eps = 1e-10},
                                           .has_state_from_start = true,
                                           .needs_host = true,
                                           .rule = CDDP_UPDATE_ADAGRAD,
                                           .slot_count = slot_count,
                                           .check = check,
                                           .step = step};
