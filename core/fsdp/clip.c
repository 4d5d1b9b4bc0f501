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
#include "core/fsdp/fsdp.h"
#include "core/tensor/dtype.h"
#include "core/tensor/math.h"

#include <math.h>

#define CHUNK_ELEMENTS 512

typedef struct norm {
    double p;
    double sharded, whole; /* Σ|g|^p, or the maximum */
} norm;

static double power(double x, double p) { return x > 0 ? cd_exp(p * cd_log(x)) : x; }

static double term(const norm *n, double x)
{
    const double magnitude = fabs(x);
    if (isinf(n->p) || n->p == 1) return magnitude;
    return n->p == 2 ? magnitude * magnitude : power(magnitude, n->p);
}

/* A NaN stays: no maximum hides it. */
static void add(const norm *n, double *to, double x)
{
    if (!isinf(n->p))
        *to += x;
    else if (!(x <= *to) && *to == *to)
        *to = x;
}

static cddp_status add_tensor(const norm *n, double *to, const cddp_tensor *t, cddp_error *err)
{
    uint64_t chunk[CHUNK_ELEMENTS]; /* elements have at most 8 bytes */
    const int64_t numel = cddp_tensor_numel(t);
    const size_t bytes = cddp_dtype_bytes(t->dtype);
    for (int64_t at = 0; at < numel; at += CHUNK_ELEMENTS) {
        const int64_t count = numel - at < CHUNK_ELEMENTS ? numel - at : CHUNK_ELEMENTS;
        const cddp_tensor part = cddp_tensor_slice(t, at, count);
        CD_TRY(t->device->read(&part, chunk, (size_t)count * bytes, err));
        for (int64_t i = 0; i < count; i++)
            add(n, to, term(n, cd_element_get(t->dtype, (const char *)chunk + (size_t)i * bytes)));
    }
    return CDDP_OK;
}

static cddp_status add_units(const cddp_fsdp *f, norm *n, cddp_error *err)
{
    for (uint32_t k = 0; k < f->unit_count; k++) {
        const cd_fsdp_unit *u = &f->units[k];
        if (u->grad.kind != CDDP_GRAD_DENSE) continue;
        if ((u->device->flags & CDDP_DEVICE_VALUES) == 0)
            return cd_fail(err, CDDP_E_UNSUPPORTED, "device %s has no numbers to take a norm of",
                           u->device->name);
        CD_TRY(add_tensor(n, cd_fsdp_unit_is_sharded(u) ? &n->sharded : &n->whole, &u->grad.value,
                          err));
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
    *(double *)one.host = n->sharded;
    const cddp_status status =
        cd_control_allreduce(f->group, &one, isinf(n->p) ? CDDP_RED_MAX : CDDP_RED_SUM, err);
    if (status == CDDP_OK) n->sharded = *(const double *)one.host;
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

cddp_status cddp_fsdp_clip_grad_norm(cddp_fsdp *f, double max_norm, double norm_type,
                                     double *total_norm, cddp_error *err)
{
    norm n = {.p = norm_type};
    CD_TRY(cd_fsdp_check_idle(f, "cddp_fsdp_clip_grad_norm", err));
    if (!(max_norm >= 0) || !(norm_type >= 1))
        return cd_fail(err, CDDP_E_ARG,
                       "cddp_fsdp_clip_grad_norm: max_norm %g, norm_type %g; max_norm is at least "
                       "0, norm_type at least 1",
                       max_norm, norm_type);
    CD_TRY(check_reduced(f, err));
    CD_TRY(add_units(f, &n, err));
    CD_TRY(sum_over_group(f, &n, err));
    double total = n.sharded;
    add(&n, &total, n.whole);
    if (n.p == 2)
        total = sqrt(total);
    else if (!isinf(n.p) && n.p != 1)
        total = power(total, 1 / n.p);
    const double factor = max_norm / (total + 1e-6);
    if (factor < 1) CD_TRY(scale_units(f, factor, err));
    if (total_norm != NULL) *total_norm = total;
    return CDDP_OK;
}
