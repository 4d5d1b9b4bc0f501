/* SPDX-License-Identifier: Apache-2.0 */
/* The backend battery. See conformance.h.
**
** Values are x(rank, i) = (7·rank + 3·i) mod 5. So 1,024 ranks sum below 2^12, and only f16, bf16
** and u8 could round; these use values in {0, 1}. Products use {1, 2} on the first six ranks only.
** SENTINEL elements lie on either side of every output.
**
** Note [Bound of an average] The sum S of W such values is exact. A backend divides it, or divides
** each value before it is summed, or multiplies by 1/W. In each case the result is off by at most
** W + 1 roundings of numbers that are not negative: γ(W + 1)·S/W. The expected value is rounded to
** f64, one more: γ(W + 2)·S/W. A rank that is left out takes one part of W from the sum. Where the
** bound is more than a quarter of such a part, it tells little, and the row is not run.
*/
#include "core/comm/conformance.h"

#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/comm/operands.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PATIENCE_NS UINT64_C(300000000000)
#define SENTINEL 8
#define SENTINEL_VALUE 77.0

typedef struct battery {
    cddp_group *group;
    const cd_conformance_options *options;
    cddp_rank *rank;
    uint32_t size, me;
    cd_conformance_row row;
    int64_t *counts, *send_counts;    /* (size) */
    double *host;                     /* (capacity) scratch on the host */
    int64_t capacity;                 /* elements of the largest tensor, sentinels included */
    unsigned char *bytes, *bytes_too; /* (capacity × 8) */
    uint64_t tag;
    bool is_result; /* host has what an operation must give, and no input */
} battery;

/* One tensor of a case with sentinels around it. */
typedef struct guarded {
    cddp_tensor whole, view;
    int64_t numel;
} guarded;

typedef struct test_case {
    cddp_op op;
    cddp_dtype dtype;
    cddp_red_op reduce_op;
    int64_t numel;
    uint32_t root;
    bool in_place;
    bool uneven;        /* explicit counts that differ by rank */
    uint32_t in_flight; /* operations that were posted before any was awaited; 0: one */
    int64_t salt;       /* so that operations in flight have different values */
} test_case;

static double value_of(const test_case *c, uint32_t rank, int64_t i)
{
    int64_t mixed = 7 * (int64_t)rank + 3 * i + c->salt;
    if (c->reduce_op == CDDP_RED_PRODUCT) return rank < 6 ? (double)(1 + mixed % 2) : 1.0;
    bool narrow = c->dtype == CDDP_U8 || c->dtype == CDDP_BF16 || c->dtype == CDDP_F16;
    return (double)(mixed % (narrow ? 2 : 5));
}

#define PREMULTIPLIER 2.0

static double reduced_of(const battery *b, const test_case *c, int64_t i)
{
    double total = 0.0;
    uint64_t bits = 0;
    for (uint32_t r = 0; r < b->size; r++) {
        double x = value_of(c, r, i);
        uint64_t u = (uint64_t)x;
        switch (c->reduce_op) {
        case CDDP_RED_SUM:
        case CDDP_RED_AVG:
            total += x;
            break;
        case CDDP_RED_PREMUL_SUM:
            total += PREMULTIPLIER * x;
            break;
        case CDDP_RED_MIN:
            total = r == 0 || x < total ? x : total;
            break;
        case CDDP_RED_MAX:
            total = r == 0 || x > total ? x : total;
            break;
        case CDDP_RED_PRODUCT:
            total = r == 0 ? x : total * x;
            break;
        case CDDP_RED_BAND:
            bits = r == 0 ? u : bits & u;
            total = (double)bits;
            break;
        case CDDP_RED_BOR:
            bits |= u;
            total = (double)bits;
            break;
        case CDDP_RED_BXOR:
            bits ^= u;
            total = (double)bits;
            break;
        case CDDP_RED_COUNT:
            break;
        }
    }
    return c->reduce_op == CDDP_RED_AVG ? total / b->size : total;
}

/* False for pairs without a meaning: complex numbers have no order, and only integers have bit
** operations. */
static bool is_meaningful(cddp_dtype dtype, cddp_red_op op)
{
    bool bitwise = op == CDDP_RED_BAND || op == CDDP_RED_BOR || op == CDDP_RED_BXOR;
    if (dtype == CDDP_C64) return op == CDDP_RED_SUM || op == CDDP_RED_AVG;
    if (cddp_dtype_is_float(dtype)) return !bitwise;
    return op != CDDP_RED_PREMUL_SUM && op != CDDP_RED_AVG;
}

/* ---- tensors ---- */

static cddp_status guarded_init(battery *b, guarded *g, cddp_dtype dtype, int64_t numel,
                                cddp_error *err)
{
    const cddp_device *d = b->options->device;
    void *storage = NULL;
    int64_t total = numel + 2 * SENTINEL;
    CD_TRY(d->allocate(d, dtype, total, &storage, err));
    g->numel = numel;
    g->whole = cddp_tensor_of(d, storage, 0, dtype, &total, 1);
    g->view = cddp_tensor_slice(&g->whole, SENTINEL, numel);
    CD_TRY(d->fill(&g->whole, SENTINEL_VALUE, NULL, err));
    return CDDP_OK;
}

static void guarded_fini(guarded *g)
{
    if (g->whole.device == NULL) return;
    const cddp_device *d = g->whole.device;
    d->release(d, g->whole.dtype, cddp_tensor_numel(&g->whole), g->whole.storage);
    *g = (guarded){0};
}

/* Converts host doubles to the dtype's bytes by hand: a device's casts must not be judged by
** themselves. Values are small integers, so each conversion is exact; of a mean that is not exact
** the bytes are only shown. */
static void encode(cddp_dtype dtype, const double *values, int64_t numel, unsigned char *bytes)
{
    size_t step = cddp_dtype_bytes(dtype);
    for (int64_t i = 0; i < numel; i++) {
        unsigned char *at = bytes + (size_t)i * step;
        double f64 = values[i];
        float f32 = (float)f64, complex_pair[2] = {f32, 0.0f};
        int64_t i64 = (int64_t)f64;
        int32_t i32 = (int32_t)i64;
        uint32_t bits;
        uint16_t half = 0;
        memcpy(&bits, &f32, sizeof bits);
        if (dtype == CDDP_BF16) half = (uint16_t)(bits >> 16);
        if (dtype == CDDP_F16 && f64 != 0.0)
            half = (uint16_t)((bits >> 16 & 0x8000u) | (((bits >> 23 & 0xffu) - 112u) << 10) |
                              (bits >> 13 & 0x3ffu));
        switch (dtype) {
        case CDDP_F64:
            memcpy(at, &f64, step);
            break;
        case CDDP_F32:
            memcpy(at, &f32, step);
            break;
        case CDDP_F16:
        case CDDP_BF16:
            memcpy(at, &half, step);
            break;
        case CDDP_C64:
            memcpy(at, complex_pair, step);
            break;
        case CDDP_I64:
            memcpy(at, &i64, step);
            break;
        case CDDP_I32:
            memcpy(at, &i32, step);
            break;
        case CDDP_U8:
            *at = (unsigned char)i64;
            break;
        case CDDP_DTYPE_COUNT:
            break;
        }
    }
}

/* The expected contents of a whole guarded tensor: values in the view, sentinels around it. */
static void expect_whole(const guarded *g, double *host)
{
    memmove(host + SENTINEL, host, (size_t)g->numel * sizeof *host);
    for (int64_t i = 0; i < SENTINEL; i++) host[i] = host[SENTINEL + g->numel + i] = SENTINEL_VALUE;
}

static cddp_status guarded_write(battery *b, const guarded *g, cddp_error *err)
{
    encode(g->whole.dtype, b->host, g->numel, b->bytes);
    CD_TRY(g->view.device->write(&g->view, b->bytes,
                                 (size_t)g->numel * cddp_dtype_bytes(g->whole.dtype), err));
    return CDDP_OK;
}

static void note_failure(battery *b, const test_case *c, const char *what)
{
    char flight[32] = "";
    if (b->row.failed_count++ != 0) return;
    if (c->in_flight > 0) snprintf(flight, sizeof flight, ", %u in flight", c->in_flight);
    snprintf(b->row.first_failure, sizeof b->row.first_failure,
             "rank %u of %u, %lld elements%s%s%s, root %u: %s", b->me, b->size, (long long)c->numel,
             c->in_place ? ", in place" : "", c->uneven ? ", uneven" : "", flight, c->root, what);
}

/* One element, by hand as well. Of a complex number the real part; the other one must be zero. */
static double decode(cddp_dtype dtype, const unsigned char *at)
{
    uint32_t bits = 0;
    uint16_t half;
    float pair[2] = {0, 0};
    double f64 = 0;
    switch (dtype) {
    case CDDP_F64:
        memcpy(&f64, at, sizeof f64);
        return f64;
    case CDDP_F32:
        memcpy(pair, at, sizeof pair[0]);
        return pair[0];
    case CDDP_C64:
        memcpy(pair, at, sizeof pair);
        return pair[1] == 0 ? pair[0] : NAN;
    case CDDP_BF16:
        memcpy(&half, at, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(pair, &bits, sizeof bits);
        return pair[0];
    case CDDP_F16:
        memcpy(&half, at, sizeof half);
        f64 = ldexp((half >> 10 & 31) != 0 ? 1024 + (half & 1023) : 2 * (half & 1023),
                    (half >> 10 & 31) - 25);
        if ((half >> 10 & 31) == 31) return NAN;
        return half >> 15 != 0 ? -f64 : f64;
    case CDDP_I64:
    case CDDP_I32:
    case CDDP_U8:
    case CDDP_DTYPE_COUNT:
        break;
    }
    return NAN;
}

static double roundoff_of(cddp_dtype dtype)
{
    return dtype == CDDP_F64    ? 0x1p-53
           : dtype == CDDP_F16  ? 0x1p-11
           : dtype == CDDP_BF16 ? 0x1p-8
                                : 0x1p-24;
}

/* γ(W + 2); 0: the mean is exact. See Note [Bound of an average] */
static double average_bound(cddp_dtype dtype, uint32_t ranks)
{
    const double n = (ranks + 2.0) * roundoff_of(dtype);
    return (ranks & (ranks - 1)) == 0 ? 0 : n < 1 ? n / (1 - n) : INFINITY;
}

bool cd_conformance_judges_average(cddp_dtype dtype, uint32_t ranks)
{
    return average_bound(dtype, ranks) <= 0.25 / ranks;
}

/* Is the i-th element of the view a mean that is not exact, and within its bound? */
static bool is_near(const battery *b, const test_case *c, const guarded *g, int64_t i)
{
    const bool is_reduced =
                   cd_op_is_reduction(c->op) && (c->op != CDDP_OP_REDUCE || c->root == b->me),
               is_outside = i < SENTINEL || i >= SENTINEL + g->numel;
    if (c->reduce_op != CDDP_RED_AVG || !is_reduced || is_outside) return false;
    const size_t step = cddp_dtype_bytes(g->whole.dtype);
    const double seen = decode(g->whole.dtype, b->bytes_too + (size_t)i * step);
    return fabs(seen - b->host[i]) <= average_bound(c->dtype, b->size) * b->host[i];
}

/* Compares the whole tensor with b->host (numel values of the view). */
static cddp_status guarded_compare(battery *b, const test_case *c, const guarded *g,
                                   const char *name, cddp_error *err)
{
    size_t step = cddp_dtype_bytes(g->whole.dtype);
    int64_t total = g->numel + 2 * SENTINEL;
    expect_whole(g, b->host);
    encode(g->whole.dtype, b->host, total, b->bytes);
    CD_TRY(g->whole.device->read(&g->whole, b->bytes_too, (size_t)total * step, err));
    for (int64_t i = 0; i < total; i++) {
        if (memcmp(b->bytes + (size_t)i * step, b->bytes_too + (size_t)i * step, step) == 0 ||
            (b->is_result && is_near(b, c, g, i)))
            continue;
        char what[160], hex[2][20] = {"", ""};
        for (size_t k = 0; k < step; k++) {
            snprintf(hex[0] + 2 * k, 4, "%02x", b->bytes[(size_t)i * step + k]);
            snprintf(hex[1] + 2 * k, 4, "%02x", b->bytes_too[(size_t)i * step + k]);
        }
        bool outside = i < SENTINEL || i >= SENTINEL + g->numel;
        cd_real_format(what, sizeof what, "%s element %lld%s is %s, expected %s (%g)", name,
                       (long long)(i - SENTINEL), outside ? " (outside the tensor)" : "", hex[1],
                       hex[0], b->host[i]);
        note_failure(b, c, what);
        return CDDP_OK;
    }
    return CDDP_OK;
}

/* ---- cases ---- */

/* Elements this rank contributes and receives. */
static int64_t share_of(const battery *b, const test_case *c, uint32_t rank)
{
    (void)b;
    return c->uneven ? c->numel + rank % 3 : c->numel;
}

static int64_t shares_total(const battery *b, const test_case *c)
{
    int64_t total = 0;
    for (uint32_t r = 0; r < b->size; r++) total += share_of(b, c, r);
    return total;
}

/* Where this rank's share begins among the shares of all. */
static int64_t share_start(const battery *b, const test_case *c)
{
    int64_t start = 0;
    for (uint32_t r = 0; r < b->me; r++) start += share_of(b, c, r);
    return start;
}

/* One tensor has the shares of all ranks, and the other one is this rank's among them: how a
** sharded model gathers and reduces without a copy. */
static bool is_share_in_place(const test_case *c)
{
    return c->in_place && (c->op == CDDP_OP_ALLGATHER || c->op == CDDP_OP_REDUCE_SCATTER);
}

static int64_t input_numel(const battery *b, const test_case *c)
{
    bool is_root = c->root == b->me;
    switch (c->op) {
    case CDDP_OP_ALLREDUCE:
    case CDDP_OP_REDUCE:
    case CDDP_OP_GATHER:
        return c->numel;
    case CDDP_OP_ALLGATHER:
        return share_of(b, c, b->me);
    case CDDP_OP_REDUCE_SCATTER:
        return shares_total(b, c);
    case CDDP_OP_ALLTOALL:
        return c->uneven ? shares_total(b, c) : c->numel * b->size;
    case CDDP_OP_SCATTER:
        return is_root ? c->numel * b->size : -1;
    case CDDP_OP_SEND:
        return c->numel;
    case CDDP_OP_BROADCAST:
    case CDDP_OP_RECV:
    case CDDP_OP_BARRIER:
    case CDDP_OP_COUNT:
        break;
    }
    return -1;
}

static int64_t output_numel(const battery *b, const test_case *c)
{
    bool is_root = c->root == b->me;
    switch (c->op) {
    case CDDP_OP_ALLREDUCE:
    case CDDP_OP_BROADCAST:
    case CDDP_OP_SCATTER:
    case CDDP_OP_RECV:
        return c->numel;
    case CDDP_OP_ALLGATHER:
        return shares_total(b, c);
    case CDDP_OP_REDUCE_SCATTER:
        return share_of(b, c, b->me);
    case CDDP_OP_REDUCE:
        return c->numel; /* given on every rank, so that an overwritten non-root shows */
    case CDDP_OP_GATHER:
        return is_root ? c->numel * b->size : -1;
    case CDDP_OP_ALLTOALL:
        return c->uneven ? share_of(b, c, b->me) * b->size : c->numel * b->size;
    case CDDP_OP_SEND:
    case CDDP_OP_BARRIER:
    case CDDP_OP_COUNT:
        break;
    }
    return -1;
}

static void fill_input(battery *b, const test_case *c, int64_t numel)
{
    const bool gathers = c->in_place && c->op == CDDP_OP_ALLGATHER;
    const int64_t start = gathers ? share_start(b, c) : 0,
                  end = gathers ? start + share_of(b, c, b->me) : numel;
    b->is_result = false;
    for (int64_t i = 0; i < numel; i++)
        b->host[i] = i >= start && i < end ? value_of(c, b->me, i - start) : SENTINEL_VALUE;
}

/* The i-th element of the output as it must be afterwards. */
static void fill_expected(battery *b, const test_case *c, int64_t numel)
{
    int64_t at = 0, before = 0;
    b->is_result = true;
    switch (c->op) {
    case CDDP_OP_ALLREDUCE:
        for (int64_t i = 0; i < numel; i++) b->host[i] = reduced_of(b, c, i);
        break;
    case CDDP_OP_REDUCE:
        for (int64_t i = 0; i < numel; i++)
            b->host[i] = c->root == b->me ? reduced_of(b, c, i)
                         : c->in_place    ? value_of(c, b->me, i)
                                          : SENTINEL_VALUE;
        break;
    case CDDP_OP_REDUCE_SCATTER:
        before = share_start(b, c);
        if (c->in_place) { /* the shares of others stay as they were given */
            fill_input(b, c, numel);
            for (at = before; at < before + share_of(b, c, b->me); at++)
                b->host[at] = reduced_of(b, c, at);
            break;
        }
        for (int64_t i = 0; i < numel; i++) b->host[i] = reduced_of(b, c, before + i);
        break;
    case CDDP_OP_BROADCAST:
        for (int64_t i = 0; i < numel; i++) b->host[i] = value_of(c, c->root, i);
        break;
    case CDDP_OP_SCATTER:
        for (int64_t i = 0; i < numel; i++)
            b->host[i] = value_of(c, c->root, (int64_t)b->me * c->numel + i);
        break;
    case CDDP_OP_RECV:
        for (int64_t i = 0; i < numel; i++) b->host[i] = value_of(c, c->root, i);
        break;
    case CDDP_OP_ALLGATHER:
    case CDDP_OP_GATHER:
        for (uint32_t r = 0; r < b->size; r++)
            for (int64_t i = 0; i < (c->op == CDDP_OP_GATHER ? c->numel : share_of(b, c, r)); i++)
                b->host[at++] = value_of(c, r, i);
        break;
    case CDDP_OP_ALLTOALL:
        /* Rank r cuts its input by receiver; ours starts behind the shares of the ranks below
        ** us. */
        before = share_start(b, c);
        for (uint32_t r = 0; r < b->size; r++)
            for (int64_t i = 0; i < share_of(b, c, b->me); i++)
                b->host[at++] = value_of(c, r, before + i);
        break;
    case CDDP_OP_SEND:
    case CDDP_OP_BARRIER:
    case CDDP_OP_COUNT:
        break;
    }
}

static void set_counts(battery *b, const test_case *c, cddp_collective *call)
{
    if (!c->uneven) return;
    for (uint32_t r = 0; r < b->size; r++) {
        b->counts[r] = c->op == CDDP_OP_ALLTOALL ? share_of(b, c, b->me) : share_of(b, c, r);
        b->send_counts[r] = share_of(b, c, r);
    }
    call->counts = b->counts;
    if (c->op == CDDP_OP_ALLTOALL) call->send_counts = b->send_counts;
}

/* The failure of an operation: the case, then the backend's message. */
static cddp_status fail_case(const battery *b, const test_case *c, cddp_status status,
                             cddp_error *err)
{
    char words[CDDP_ERROR_MESSAGE_BYTES / 2];
    snprintf(words, sizeof words, "%.*s", (int)sizeof words - 1, err != NULL ? err->message : "");
    return cd_fail(err, status, "%s of %lld %s%s%s on rank %u: %s", cddp_op_name(c->op),
                   (long long)c->numel, cddp_dtype_name(c->dtype), c->in_place ? ", in place" : "",
                   c->uneven ? ", uneven" : "", b->me, words);
}

static void enter(const battery *b, int64_t numel)
{
    if (b->options->enter != NULL) b->options->enter(b->options->context, &b->row, numel);
}

static void set_operands(battery *b, const test_case *c, const guarded *in, const guarded *out,
                         cddp_collective *call)
{
    if (in->whole.device != NULL) call->input = in->view;
    if (out->whole.device != NULL) call->output = out->view;
    if (c->in_place) call->input = call->output;
    if (is_share_in_place(c))
        *(c->op == CDDP_OP_ALLGATHER ? &call->input : &call->output) =
            cddp_tensor_slice(&out->view, share_start(b, c), share_of(b, c, b->me));
    set_counts(b, c, call);
}

static cddp_status post(battery *b, const test_case *c, const guarded *in, const guarded *out,
                        cddp_work **work, cddp_error *err)
{
    cddp_collective call = {.op = c->op,
                            .reduce_op =
                                c->reduce_op == CDDP_RED_COUNT ? CDDP_RED_SUM : c->reduce_op,
                            .root = c->root,
                            .premultiplier = PREMULTIPLIER,
                            .tag = b->tag};
    set_operands(b, c, in, out, &call);
    enter(b, c->numel);
    return CD_PASS(cddp_group_post(b->group, &call, work, err));
}

/* Posts and waits. run_case does this twice over the same memory, because works must be
** reusable. */
static cddp_status call_once(battery *b, const test_case *c, const guarded *in, const guarded *out,
                             bool *refused, cddp_error *err)
{
    cddp_work *work = NULL;
    cddp_status status = post(b, c, in, out, &work, err);
    *refused = status == CDDP_E_UNSUPPORTED;
    if (*refused) return CDDP_OK;
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    return CD_PASS(status == CDDP_OK ? CDDP_OK : fail_case(b, c, status, err));
}

static cddp_status run_case(battery *b, const test_case *c, cddp_error *err)
{
    guarded in = {0}, out = {0};
    cddp_status status = CDDP_OK;
    bool refused = false;
    int64_t in_numel = c->in_place || c->op == CDDP_OP_BROADCAST ? -1 : input_numel(b, c),
            out_numel = is_share_in_place(c) ? shares_total(b, c) : output_numel(b, c);
    b->row.case_count++;
    b->tag++;
    if (in_numel >= 0) {
        CD_TRY_OUT(guarded_init(b, &in, c->dtype, in_numel, err));
        fill_input(b, c, in_numel);
        CD_TRY_OUT(guarded_write(b, &in, err));
    }
    if (out_numel >= 0) CD_TRY_OUT(guarded_init(b, &out, c->dtype, out_numel, err));
    for (int round = 0; round < 2 && !refused; round++) {
        if (c->in_place || (c->op == CDDP_OP_BROADCAST && c->root == b->me)) {
            fill_input(b, c, out_numel);
            CD_TRY_OUT(guarded_write(b, &out, err));
        }
        CD_TRY_OUT(call_once(b, c, &in, &out, &refused, err));
        if (refused) break;
        if (in_numel >= 0) {
            fill_input(b, c, in_numel);
            CD_TRY_OUT(guarded_compare(b, c, &in, "input", err));
        }
        if (out_numel >= 0) {
            fill_expected(b, c, out_numel);
            CD_TRY_OUT(guarded_compare(b, c, &out, "output", err));
        }
    }
    b->row.refused_count += refused;
    if (refused && !b->row.undeclared)
        note_failure(b, c, "refused although its capabilities declare it");
    if (!refused && b->row.undeclared)
        note_failure(b, c, "accepted although its capabilities do not declare it");
out:
    guarded_fini(&in);
    guarded_fini(&out);
    return status;
}

/* Neighbours: even ranks send up first, odd ranks receive first; every rank both sends and
** receives. */
static cddp_status run_messages(battery *b, test_case c, cddp_error *err)
{
    uint32_t up = (b->me + 1) % b->size, down = (b->me + b->size - 1) % b->size;
    guarded in = {0}, out = {0};
    cddp_status status = CDDP_OK;
    cddp_work *sent = NULL, *received = NULL;
    CD_TRY_OUT(guarded_init(b, &in, c.dtype, c.numel, err));
    CD_TRY_OUT(guarded_init(b, &out, c.dtype, c.numel, err));
    fill_input(b, &c, c.numel);
    CD_TRY_OUT(guarded_write(b, &in, err));
    b->tag++;
    b->row.case_count++;
    cddp_collective send = {.op = CDDP_OP_SEND, .root = up, .tag = b->tag, .input = in.view};
    cddp_collective recv = {.op = CDDP_OP_RECV, .root = down, .tag = b->tag, .output = out.view};
    enter(b, c.numel);
    CD_TRY_OUT(cddp_group_post(b->group, &send, &sent, err));
    status = cddp_group_post(b->group, &recv, &received, err);
    if (status != CDDP_OK) {
        cddp_work_release(sent);
        goto out;
    }
    status = cddp_work_wait(received, 0, err);
    cddp_status second = cddp_work_wait(sent, 0, status == CDDP_OK ? err : NULL);
    if (status == CDDP_OK) status = second;
    if (status != CDDP_OK) goto out;
    c.op = CDDP_OP_RECV;
    c.root = down;
    fill_expected(b, &c, c.numel);
    CD_TRY_OUT(guarded_compare(b, &c, &out, "received", err));
out:
    guarded_fini(&in);
    guarded_fini(&out);
    return status;
}

/* After an operation has ended on this rank, its input belongs to the caller again (C10-04). So the
** input is overwritten at once. The barrier then lets a late reader read before anything is
** compared. */
static cddp_status run_reuse(battery *b, test_case c, cddp_error *err)
{
    guarded in = {0}, out = {0};
    cddp_status status = CDDP_OK;
    bool refused = false;
    int64_t in_numel = input_numel(b, &c), out_numel = output_numel(b, &c);
    b->row.case_count++;
    b->tag++;
    if (out_numel >= 0) CD_TRY_OUT(guarded_init(b, &out, c.dtype, out_numel, err));
    if (in_numel >= 0) {
        CD_TRY_OUT(guarded_init(b, &in, c.dtype, in_numel, err));
        fill_input(b, &c, in_numel);
        CD_TRY_OUT(guarded_write(b, &in, err));
    }
    CD_TRY_OUT(call_once(b, &c, &in, &out, &refused, err));
    if (refused) goto out; /* run_case has recorded it */
    if (in_numel >= 0) CD_TRY_OUT(in.view.device->fill(&in.view, SENTINEL_VALUE, NULL, err));
    CD_TRY_OUT(cddp_group_barrier(b->group, err));
    if (out_numel >= 0) {
        fill_expected(b, &c, out_numel);
        CD_TRY_OUT(
            guarded_compare(b, &c, &out, "input was overwritten after completion: output", err));
    }
out:
    guarded_fini(&in);
    guarded_fini(&out);
    return status;
}

static bool declared(const battery *b, cddp_op op, cddp_dtype dtype, cddp_red_op reduce_op)
{
    const cddp_capabilities *k = cddp_group_capabilities(b->group);
    if ((k->ops & (1u << op)) == 0) return false;
    if (!cd_op_is_reduction(op)) return true;
    return (k->dtypes & CDDP_DTYPE_BIT(dtype)) != 0 && (k->reduce_ops & (1u << reduce_op)) != 0;
}

/* Several operations at once, as a sharded model has them: gathers ahead of their use beside
** reductions that nobody awaits yet, with shares that differ by rank and from operation to
** operation. They take effect in the order of posting (C10-03); the last one is awaited first. */
#define FLIGHT 4

typedef struct flight {
    test_case cases[FLIGHT];
    guarded in[FLIGHT], out[FLIGHT];
    cddp_work *works[FLIGHT];
} flight;

static cddp_status flight_post(battery *b, flight *f, cddp_error *err)
{
    for (uint32_t k = 0; k < FLIGHT; k++) {
        test_case *c = &f->cases[k];
        b->tag++;
        CD_TRY(guarded_init(b, &f->in[k], c->dtype, input_numel(b, c), err));
        CD_TRY(guarded_init(b, &f->out[k], c->dtype, output_numel(b, c), err));
        fill_input(b, c, f->in[k].numel);
        CD_TRY(guarded_write(b, &f->in[k], err));
        CD_TRY(post(b, c, &f->in[k], &f->out[k], &f->works[k], err));
    }
    return CDDP_OK;
}

static cddp_status flight_end(battery *b, flight *f, cddp_error *err)
{
    for (uint32_t k = FLIGHT; k-- > 0;) {
        cddp_work *work = f->works[k];
        f->works[k] = NULL;
        CD_TRY(cddp_work_wait(work, 0, err));
    }
    for (uint32_t k = 0; k < FLIGHT; k++) {
        if (f->cases[k].op != b->row.op) continue; /* judged in its own row */
        fill_input(b, &f->cases[k], f->in[k].numel);
        CD_TRY(guarded_compare(b, &f->cases[k], &f->in[k], "input", err));
        fill_expected(b, &f->cases[k], f->out[k].numel);
        CD_TRY(guarded_compare(b, &f->cases[k], &f->out[k], "output", err));
    }
    return CDDP_OK;
}

/* other: what every second operation is. */
static cddp_status run_flight(battery *b, const test_case *c, cddp_op other, cddp_error *err)
{
    flight f = {.works = {NULL}};
    b->row.case_count++;
    for (uint32_t k = 0; k < FLIGHT; k++) {
        f.cases[k] = *c;
        f.cases[k].op = k % 2 == 0 ? c->op : other;
        f.cases[k].reduce_op =
            f.cases[k].op == CDDP_OP_REDUCE_SCATTER ? CDDP_RED_SUM : CDDP_RED_COUNT;
        f.cases[k].uneven = true;
        f.cases[k].in_flight = FLIGHT;
        f.cases[k].salt = k;
        f.cases[k].numel = c->numel * (1 + k % 3);
    }
    cddp_status status = flight_post(b, &f, err);
    if (status == CDDP_OK) status = flight_end(b, &f, err);
    for (uint32_t k = 0; k < FLIGHT; k++) {
        cddp_work_release(f.works[k]);
        guarded_fini(&f.in[k]);
        guarded_fini(&f.out[k]);
    }
    return CD_PASS(status == CDDP_OK ? CDDP_OK : fail_case(b, &f.cases[0], status, err));
}

static cddp_status run_flights(battery *b, test_case c, cddp_error *err)
{
    const int64_t counts[] = {0, 17, 1021};
    const cddp_op other = c.op == CDDP_OP_ALLGATHER ? CDDP_OP_REDUCE_SCATTER : CDDP_OP_ALLGATHER;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        c.numel = counts[i];
        CD_TRY(run_flight(b, &c, c.op, err));
        if (declared(b, other, c.dtype, CDDP_RED_SUM)) CD_TRY(run_flight(b, &c, other, err));
    }
    return CDDP_OK;
}

/* Transports change their algorithm at round sizes, so counts are one below, exact and one above.
** Only sums and averages, and one dtype unless `thorough`. */
static cddp_status run_switches(battery *b, test_case c, cddp_error *err)
{
    const int64_t sizes[] = {1024, 4096, 16384};
    bool in_place = cddp_group_capabilities(b->group)->in_place &&
                    (c.op == CDDP_OP_ALLREDUCE || c.op == CDDP_OP_REDUCE);
    for (size_t i = 0; i < 3 * sizeof sizes / sizeof sizes[0]; i++) {
        c.numel = sizes[i / 3] + (int64_t)(i % 3) - 1;
        c.root = (uint32_t)(i % b->size);
        c.in_place = false;
        CD_TRY(run_case(b, &c, err));
        c.in_place = true;
        if (in_place) CD_TRY(run_case(b, &c, err));
    }
    return CDDP_OK;
}

static cddp_status run_counts(battery *b, test_case c, cddp_error *err)
{
    int64_t w = b->size;
    const int64_t counts[] = {0, 1, w - 1, w, w + 1, 17, 257, 1021, 4099, 70001};
    size_t n = b->options->thorough ? sizeof counts / sizeof counts[0] : 8;
    const bool in_place = cddp_group_capabilities(b->group)->in_place,
               plain = c.reduce_op == CDDP_RED_COUNT || c.reduce_op == CDDP_RED_SUM;
    for (size_t i = 0; i < n; i++) {
        c.numel = counts[i];
        c.in_place = c.uneven = false;
        c.root = (uint32_t)(i % b->size);
        CD_TRY(run_case(b, &c, err));
        if (b->row.undeclared) return CDDP_OK;
        c.in_place = true;
        if ((c.op == CDDP_OP_ALLREDUCE || c.op == CDDP_OP_REDUCE) && in_place)
            CD_TRY(run_case(b, &c, err));
        c.in_place = false;
        c.uneven = true;
        const bool has_shares = c.op == CDDP_OP_ALLGATHER || c.op == CDDP_OP_REDUCE_SCATTER;
        if (has_shares || c.op == CDDP_OP_ALLTOALL) CD_TRY(run_case(b, &c, err));
        c.in_place = true;
        if (has_shares && in_place && plain) {
            CD_TRY(run_case(b, &c, err));
            c.uneven = false;
            CD_TRY(run_case(b, &c, err));
        }
    }
    return CDDP_OK;
}

static cddp_status run_row(battery *b, cddp_op op, cddp_dtype dtype, cddp_red_op reduce_op,
                           cddp_error *err)
{
    test_case c = {.op = op, .dtype = dtype, .reduce_op = reduce_op};
    if (b->options->interrupted != NULL && b->options->interrupted())
        return cd_fail(err, CDDP_E_ABORTED, "interrupted");
    b->row = (cd_conformance_row){.op = op,
                                  .dtype = dtype,
                                  .reduce_op = reduce_op,
                                  .undeclared = !declared(b, op, dtype, reduce_op)};
    if (op == CDDP_OP_SEND) {
        const int64_t counts[] = {0, 1, 17, 1021};
        for (size_t i = 0; i < 4 && b->size > 1 && !b->row.undeclared; i++) {
            c.numel = counts[i];
            CD_TRY(run_messages(b, c, err));
        }
    } else {
        bool plain = reduce_op == CDDP_RED_COUNT || reduce_op == CDDP_RED_SUM;
        bool barrier = (cddp_group_capabilities(b->group)->ops & (1u << CDDP_OP_BARRIER)) != 0;
        const bool averages = reduce_op == CDDP_RED_AVG;
        CD_TRY(run_counts(b, c, err));
        c.numel = 17;
        if (!b->row.undeclared && plain && barrier && op != CDDP_OP_BROADCAST)
            CD_TRY(run_reuse(b, c, err));
        if (!b->row.undeclared && plain &&
            (op == CDDP_OP_ALLGATHER || op == CDDP_OP_REDUCE_SCATTER))
            CD_TRY(run_flights(b, c, err));
        if (!b->row.undeclared && (plain || averages) &&
            (dtype == CDDP_F32 || b->options->thorough))
            CD_TRY(run_switches(b, c, err));
    }
    b->options->row(b->options->context, &b->row);
    return CDDP_OK;
}

static cddp_status run_huge(battery *b, cddp_error *err)
{
    const cddp_device *d = b->options->device;
    int64_t numel = b->options->huge_bytes;
    void *storage = NULL;
    b->row = (cd_conformance_row){.op = CDDP_OP_ALLREDUCE,
                                  .dtype = CDDP_U8,
                                  .reduce_op = CDDP_RED_MAX,
                                  .case_count = 1};
    CD_TRY(d->allocate(d, CDDP_U8, numel, &storage, err));
    cddp_tensor t = cddp_tensor_of(d, storage, 0, CDDP_U8, &numel, 1),
                last = cddp_tensor_slice(&t, numel - 1, 1);
    cddp_work *work = NULL;
    unsigned char end = 0, mine = (unsigned char)(b->me + 1);
    cddp_status status = CDDP_OK;
    CD_TRY_OUT(d->fill(&t, 0.0, NULL, err));
    CD_TRY_OUT(d->write(&last, &mine, 1, err));
    enter(b, numel);
    CD_TRY_OUT(cddp_group_allreduce(b->group, &t, CDDP_RED_MAX, &work, err));
    CD_TRY_OUT(cddp_work_wait(work, 0, err));
    CD_TRY_OUT(d->read(&last, &end, 1, err));
    test_case c = {.numel = numel};
    if (end != b->size) note_failure(b, &c, "the last byte was not reduced");
    b->options->row(b->options->context, &b->row);
out:
    d->release(d, CDDP_U8, numel, storage);
    return status;
}

/* The barrier that names who is missing is made of messages; behind it operations have one number
** on all members again. */
static cddp_status run_monitored(battery *b, cddp_error *err)
{
    const uint32_t messages = 1u << CDDP_OP_SEND | 1u << CDDP_OP_RECV;
    if ((cddp_group_capabilities(b->group)->ops & messages) != messages) return CDDP_OK;
    b->row.case_count++;
    CD_TRY(cddp_barrier_monitored(b->group, PATIENCE_NS, err));
    CD_TRY(cddp_group_barrier(b->group, err));
    return CDDP_OK;
}

typedef cddp_status (*row_fn)(battery *b, cddp_op op, cddp_dtype dtype, cddp_red_op reduce_op,
                              cddp_error *err);

static cddp_status each_row(battery *b, row_fn row, cddp_error *err)
{
    uint32_t dtypes = b->options->dtypes != 0 ? b->options->dtypes : (1u << CDDP_DTYPE_COUNT) - 1;
    dtypes &= b->options->device->dtypes;
    for (cddp_op op = 0; op < CDDP_OP_BARRIER; op++) {
        if (op == CDDP_OP_RECV) continue; /* with SEND */
        for (cddp_dtype dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
            if ((dtypes & CDDP_DTYPE_BIT(dtype)) == 0) continue;
            if (!cd_op_is_reduction(op)) CD_TRY(row(b, op, dtype, CDDP_RED_COUNT, err));
            for (cddp_red_op r = 0; r < CDDP_RED_COUNT && cd_op_is_reduction(op); r++) {
                const bool is_judged =
                    r != CDDP_RED_AVG || cd_conformance_judges_average(dtype, b->size);
                if (is_meaningful(dtype, r) && is_judged) CD_TRY(row(b, op, dtype, r, err));
            }
        }
    }
    return CDDP_OK;
}

static cddp_status count_row(battery *b, cddp_op op, cddp_dtype dtype, cddp_red_op reduce_op,
                             cddp_error *err)
{
    (void)op;
    (void)dtype;
    (void)reduce_op;
    (void)err;
    b->row.case_count++;
    return CDDP_OK;
}

uint32_t cd_conformance_count_rows(uint32_t ranks, const cd_conformance_options *options)
{
    battery b = {.options = options, .size = ranks};
    const bool is_counted = each_row(&b, count_row, NULL) == CDDP_OK;
    /* and the barrier */
    return is_counted ? b.row.case_count + (options->huge_bytes > 0) + 1 : 0;
}

static cddp_status run_all(battery *b, cddp_error *err)
{
    CD_TRY(each_row(b, run_row, err));
    if (b->options->huge_bytes > 0) CD_TRY(run_huge(b, err));
    b->row = (cd_conformance_row){.op = CDDP_OP_BARRIER,
                                  .dtype = CDDP_U8,
                                  .reduce_op = CDDP_RED_COUNT,
                                  .case_count = 1};
    enter(b, 0);
    CD_TRY(cddp_group_barrier(b->group, err));
    CD_TRY(run_monitored(b, err));
    b->options->row(b->options->context, &b->row);
    return CDDP_OK;
}

cddp_status cd_conformance_run(cddp_group *group, const cd_conformance_options *options,
                               cddp_error *err)
{
    battery b = {.group = group,
                 .options = options,
                 .rank = cddp_group_world_rank(group),
                 .size = cddp_group_size(group),
                 .me = cddp_group_rank(group),
                 .tag = options->count_start};
    int64_t largest = options->thorough ? 70001 : 16385;
    cddp_status status = CDDP_OK;
    b.capacity = (largest + 3) * (int64_t)b.size + 2 * SENTINEL;
    cd_arena arena;
    cd_arena_init(&arena, b.rank->allocator, 4096);
    b.counts = cd_arena_array(&arena, b.size, sizeof *b.counts);
    b.send_counts = cd_arena_array(&arena, b.size, sizeof *b.send_counts);
    b.host = cd_arena_array(&arena, (size_t)b.capacity, sizeof *b.host);
    b.bytes = cd_arena_array(&arena, (size_t)b.capacity, 8);
    b.bytes_too = cd_arena_array(&arena, (size_t)b.capacity, 8);
    CD_TRY_OUT(cd_arena_check(&arena, err, "a conformance run over %u ranks", b.size));
    CD_TRY_OUT(run_all(&b, err));
out:
    cd_arena_fini(&arena);
    return status;
}

cddp_status cd_conformance_run_guard(cddp_group *group, const cd_conformance_options *options,
                                     cddp_error *err)
{
    battery b = {.group = group,
                 .options = options,
                 .rank = cddp_group_world_rank(group),
                 .size = cddp_group_size(group),
                 .me = cddp_group_rank(group)};
    float data[8] = {0};
    int64_t numel = b.me == 1 ? 5 : 8;
    cddp_error reported = CDDP_ERROR_INIT;
    const cddp_tensor t = cddp_tensor_of(options->device, data, 0, CDDP_F32, &numel, 1);
    const test_case c = {.op = CDDP_OP_ALLREDUCE, .numel = numel};
    cddp_work *work = NULL;
    (void)err;
    b.row = (cd_conformance_row){.op = CDDP_OP_ALLREDUCE,
                                 .dtype = CDDP_F32,
                                 .reduce_op = CDDP_RED_SUM,
                                 .case_count = 1};
    enter(&b, numel);
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, &reported);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, &reported);
    if (status == CDDP_OK)
        note_failure(&b, &c, "guard=1 let rank 1 reduce 5 elements where the others reduce 8");
    else if (status != CDDP_E_MISMATCH)
        note_failure(&b, &c, "guard=1 failed without reporting that the ranks disagree");
    options->row(options->context, &b.row);
    return CDDP_OK;
}
