/* SPDX-License-Identifier: Apache-2.0 */
/* clip_grad_norm_ over shards (FCL).
**
**   p < ∞   Σ|g|^p of this rank's shards → SUM over the shard group → + that of whole gradients
**           → the p-th root
**   p = ∞   the same with maxima
**
** A gradient that is whole on every rank (NO_SHARD) is counted once: summing it over the ranks
** makes the norm W^(1/p) times too large (FCL-04). Replicas have the same shards, so nothing is
** summed over them (FCL-05). Padding is zero. A rank without a gradient adds zero, and joins
** (FCL-06).
**
** Sums run in f64, in the order of the shard.
*/
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/hash.h"
#include "core/fsdp/fsdp.h"
#include "core/tensor/p_norm.h"
#include "core/trace/tracer.h"

#include <math.h>

typedef struct norm {
    cd_p_norm sharded, whole;
} norm;

static cddp_status add_units(const cddp_fsdp *f, norm *n, cddp_error *err)
{
    for (uint32_t k = 0; k < f->unit_count; k++) {
        const cd_fsdp_unit *u = &f->units[k];
        if (u->grad.kind != CDDP_GRAD_DENSE) continue;
        CD_TRY(cd_fsdp_unit_check_gradient(u, err));
        CD_TRY(cd_p_norm_add_tensor(cd_fsdp_unit_is_sharded(u) ? &n->sharded : &n->whole,
                                    &u->grad.value, err));
    }
    return CDDP_OK;
}

static const cddp_device *device_of(const cddp_fsdp *f)
{
    for (uint32_t k = 0; k < f->unit_count; k++)
        if (f->units[k].device != NULL) return f->units[k].device;
    return NULL;
}

static cddp_status sum_over_group(cddp_fsdp *f, norm *n, cddp_error *err)
{
    cd_control one = {0};
    const cd_control_spec spec = {.allocator = f->allocator,
                                  .group = f->group,
                                  .device = device_of(f),
                                  .dtype = CDDP_F64,
                                  .numel = 1};
    CD_TRY(cd_control_init(&one, &spec, err));
    *(double *)one.host = n->sharded.sum;
    const cddp_status status = cd_fsdp_give_up(
        f, cd_control_allreduce(f->group, &one, cd_p_norm_reduction(n->sharded.p), err), err);
    if (status == CDDP_OK) n->sharded.sum = *(const double *)one.host;
    cd_control_fini(&one);
    return CD_PASS(status);
}

static cddp_status scale_units(cddp_fsdp *f, double factor, cddp_error *err)
{
    for (uint32_t k = 0; k < f->unit_count; k++) {
        cd_fsdp_unit *u = &f->units[k];
        if (u->grad.kind == CDDP_GRAD_DENSE && u->layout.share > 0)
            CD_TRY(u->grad.value.device->scale(&u->grad.value, &u->grad.value, factor, NULL, err));
    }
    return CDDP_OK;
}

/* FSY-09: a norm of gradients that no reduction had means nothing. */
static cddp_status check_reduced(const cddp_fsdp *f, cddp_error *err)
{
    for (uint32_t k = 0; k < f->unit_count; k++)
        if (cd_fsdp_unit_has_gradient(&f->units[k]))
            return cd_fail(err, CDDP_E_STATE,
                           "cddp_fsdp_clip_grad_norm: '%s' has gradients of a no_sync window that "
                           "were not reduced (FSY-09)",
                           cd_fsdp_unit_words(f, k));
    return CDDP_OK;
}

/* Ranks that clip in other ways would scale their shards by other factors. As the order of units:
** compared the first time, or always. */
static cddp_status compare_ways(cddp_fsdp *f, double max_norm, double norm_type, cddp_error *err)
{
    char words[96];
    const bool is_known = f->has_clipped && f->order_check == CDDP_FSDP_ORDER_FIRST_ITERATION;
    if (f->order_check == CDDP_FSDP_ORDER_NONE || is_known) return CDDP_OK;
    const uint64_t way =
        cd_hash_mix((uint64_t)cd_f64_bits(max_norm), (uint64_t)cd_f64_bits(norm_type));
    cd_real_format(words, sizeof words, "max_norm %g with norm_type %g", max_norm, norm_type);
    f->has_clipped = true;
    return CD_PASS(cd_fsdp_compare_number(f, way, words, err));
}

cddp_status cddp_fsdp_clip_grad_norm(cddp_fsdp *f, double max_norm, double norm_type,
                                     double *total_norm, cddp_error *err)
{
    norm n = {.sharded = {.p = norm_type}, .whole = {.p = norm_type}};
    CD_TRY(cd_fsdp_check_idle(f, "cddp_fsdp_clip_grad_norm", err));
    if (!(max_norm >= 0) || !(norm_type >= 1))
        return cd_fail(err, CDDP_E_ARG,
                       "cddp_fsdp_clip_grad_norm: max_norm %g, norm_type %g; max_norm is at least "
                       "0, norm_type at least 1",
                       max_norm, norm_type);
    CD_TRY(check_reduced(f, err));
    CD_TRY(cd_fsdp_give_up(f, compare_ways(f, max_norm, norm_type, err), err));
    CD_TRY(cd_fsdp_give_up(f, add_units(f, &n, err), err)); /* others are in the sum */
    CD_TRY(sum_over_group(f, &n, err));
    cd_p_norm_add(&n.sharded, n.whole.sum);
    const double total = cd_p_norm_get(&n.sharded);
    const double factor = max_norm / (total + 1e-6);
    if (factor < 1) CD_TRY(scale_units(f, factor, err));
    if (total_norm != NULL) *total_norm = total;
    return CDDP_OK;
}
