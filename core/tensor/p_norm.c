/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/p_norm.h"

#include "core/base/error.h"
#include "core/tensor/dtype.h"
#include "core/tensor/math.h"

#include <math.h>

#define CHUNK_ELEMENTS 512

static double power(double x, double p) { return x > 0 ? cd_exp(p * cd_log(x)) : x; }

static double term(double p, double x)
{
    const double magnitude = fabs(x);
    if (isinf(p) || p == 1) return magnitude;
    return p == 2 ? magnitude * magnitude : power(magnitude, p);
}

void cd_p_norm_add(cd_p_norm *n, double part)
{
    if (!isinf(n->p))
        n->sum += part;
    else if (!(part <= n->sum) && n->sum == n->sum)
        n->sum = part;
}

cddp_status cd_p_norm_add_tensor(cd_p_norm *n, const cddp_tensor *t, cddp_error *err)
{
    uint64_t chunk[CHUNK_ELEMENTS]; /* elements have at most 8 bytes */
    const int64_t numel = cddp_tensor_numel(t);
    const size_t bytes = cddp_dtype_bytes(t->dtype);
    if ((t->device->flags & CDDP_DEVICE_VALUES) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "device %s has no numbers to take a norm of",
                       t->device->name);
    if (!cddp_dtype_is_float(t->dtype))
        return cd_fail(err, CDDP_E_UNSUPPORTED, "a norm of %s", cddp_dtype_name(t->dtype));
    /* however its dimensions lie in memory: elements follow each other there */
    const cddp_tensor all = cddp_tensor_of(t->device, t->storage, t->offset, t->dtype, &numel, 1);
    for (int64_t at = 0; at < numel; at += CHUNK_ELEMENTS) {
        const int64_t count = numel - at < CHUNK_ELEMENTS ? numel - at : CHUNK_ELEMENTS;
        const cddp_tensor part = cddp_tensor_slice(&all, at, count);
        CD_TRY(t->device->read(&part, chunk, (size_t)count * bytes, err));
        for (int64_t i = 0; i < count; i++)
            cd_p_norm_add(n, term(n->p, cd_element_get(t->dtype,
                                                       (const char *)chunk + (size_t)i * bytes)));
    }
    return CDDP_OK;
}

double cd_p_norm_get(const cd_p_norm *n)
{
    if (isinf(n->p) || n->p == 1) return n->sum;
    return n->p == 2 ? sqrt(n->sum) : power(n->sum, 1 / n->p);
}

cddp_red_op cd_p_norm_reduction(double p) { return isinf(p) ? CDDP_RED_MAX : CDDP_RED_SUM; }
