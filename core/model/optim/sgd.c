/* SPDX-License-Identifier: Apache-2.0 */
/* Stochastic gradient descent, through the device table alone: five linear operations, in PyTorch's
** order.
**
**     d = g (or -g)                     d += weight_decay × p
**     b = d the first time, else b = momentum × b + (1 - dampening) × d
**     d += momentum × b (Nesterov), or d = b
**     p += -lr × d
**
** A sparse gradient updates its rows in their order; momentum and decay would touch every row, as
** they do not in PyTorch either, so they are refused with one. */
#include "core/model/optim/rule.h"

#include "core/base/error.h"
#include "core/base/inject.h"

#include <inttypes.h>

static uint32_t slot_count(const cd_optimizer_options *options)
{
    return options->momentum != 0 ? 1 : 0;
}

static cddp_status check(const cd_optimizer_options *options, cddp_error *err)
{
    CD_TRY(cd_optimizer_check_range("momentum", options->momentum, 0, 1e300, err));
    if (options->nesterov && (options->momentum == 0 || options->dampening != 0))
        return cd_fail(err, CDDP_E_CONFIG,
                       "optimizer: nesterov needs a momentum and no dampening (they are %g and %g)",
                       options->momentum, options->dampening);
    return CDDP_OK;
}

/* Leaves the direction of this step in *direction, which is the gradient itself while nothing
** changes it. */
static cddp_status decayed_gradient(cd_optimizer *o, cd_optimizer_entry *entry,
                                    const cddp_tensor *gradient, cddp_tensor *direction,
                                    cddp_error *err)
{
    const cddp_tensor *p = &entry->parameter.tensor;
    const cddp_device *device = p->device;
    *direction = *gradient;
    if (!o->options.maximize && o->options.weight_decay == 0 && !o->options.nesterov)
        return CDDP_OK;
    CD_TRY(cd_optimizer_take_scratch(o, p, direction, err));
    if (o->options.maximize)
        CD_TRY(device->scale(direction, gradient, -1, NULL, err));
    else
        CD_TRY(device->copy(direction, gradient, NULL, err));
    if (o->options.weight_decay != 0)
        CD_TRY(device->axpy(direction, o->options.weight_decay, p, NULL, err));
    return CDDP_OK;
}

static cddp_status apply_momentum(cd_optimizer *o, cd_optimizer_entry *entry,
                                  cddp_tensor *direction, cddp_error *err)
{
    const cddp_device *device = entry->parameter.tensor.device;
    cddp_tensor *buffer = &entry->slots[0];
    if (!entry->is_present) {
        CD_TRY(cd_optimizer_make_slots(o, entry, err));
        CD_TRY(device->copy(buffer, direction, NULL, err));
    } else {
        CD_TRY(device->scale(buffer, buffer, o->options.momentum, NULL, err));
        CD_TRY(device->axpy(buffer, 1 - o->options.dampening, direction, NULL, err));
    }
    if (o->options.nesterov)
        return CD_PASS(device->axpy(direction, o->options.momentum, buffer, NULL, err));
    *direction = *buffer;
    return CDDP_OK;
}

/* Row `index` of the first dimension. */
static cddp_tensor row_of(const cddp_tensor *t, int64_t index)
{
    cddp_tensor row = *t;
    row.offset += index * t->strides[0];
    row.dim_count--;
    for (uint32_t i = 0; i < row.dim_count; i++) {
        row.sizes[i] = t->sizes[i + 1];
        row.strides[i] = t->strides[i + 1];
    }
    return row;
}

static cddp_status step_sparse(cd_optimizer *o, cd_optimizer_entry *entry, cddp_error *err)
{
    const cddp_grad *grad = entry->parameter.grad;
    const cddp_tensor *p = &entry->parameter.tensor;
    if (o->options.momentum != 0 || o->options.weight_decay != 0)
        return CD_PASS(cd_optimizer_refuse(
            o, entry, "its gradient is sparse; momentum and weight decay need a dense one", err));
    const cddp_tensor rows = cddp_rows_tensor(&grad->rows);
    for (int64_t i = 0; i < grad->rows.count; i++) {
        int64_t index;
        cddp_tensor one = cddp_tensor_slice(&rows, i, 1);
        CD_TRY(one.device->read(&one, &index, sizeof index, err));
        if (index < 0 || index >= p->sizes[0])
            return cd_fail(err, CDDP_E_ARG, "sgd: parameter %s: sparse row %" PRId64 " of %" PRId64,
                           entry->parameter.name, index, p->sizes[0]);
        cddp_tensor to = row_of(p, index), from = row_of(&grad->value, i);
        CD_TRY(p->device->axpy(&to, o->options.maximize ? o->options.lr : -o->options.lr, &from,
                               NULL, err));
    }
    return CDDP_OK;
}

static cddp_status step(cd_optimizer *o, cd_optimizer_entry *entry, cddp_error *err)
{
    const cddp_tensor *p = &entry->parameter.tensor;
    cddp_tensor direction;
    if (entry->parameter.grad->kind == CDDP_GRAD_SPARSE) return CD_PASS(step_sparse(o, entry, err));
    CD_TRY(decayed_gradient(o, entry, &entry->parameter.grad->value, &direction, err));
    if (o->options.momentum != 0) CD_TRY(apply_momentum(o, entry, &direction, err));
    CD_INJECT_TENSOR("formula.sgd.direction", CD_INJECT_EVERYONE, CD_INJECT_EVERYONE, 0,
                     &direction);
    return CD_PASS(p->device->axpy(p, -o->options.lr, &direction, NULL, err));
}

const cd_optimizer_rule cd_rule_sgd = {.slot_names = {"momentum_buffer"},
                                       .defaults = {.lr = 0.01},
                                       .slot_count = slot_count,
                                       .check = check,
                                       .step = step};
