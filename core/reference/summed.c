/* SPDX-License-Identifier: Apache-2.0 */
/* Where the order is known every bit follows; else the ends of every order. */
#include "core/reference/summed.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/oracle/known_order.h"
#include "core/oracle/numbers.h"
#include "core/trace/codes.h"

#include <math.h>

/* Additions of one comparison; of a larger reduction every n-th element is added up. */
#define ADDITIONS_MAX ((int64_t)1 << 18)

static bool is_equal(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void note_bad(cd_comparison *c, int64_t element, double expected, double actual)
{
    if (c->bad++ > 0) return;
    c->element = element;
    c->expected = expected;
    c->actual = actual;
    c->shape = CD_SHAPE_UNEXPLAINED;
}

/* Every bit follows. */
static void compare_ordered(const cd_ordered_sum *sum, int64_t first, const double *result,
                            int64_t count, cd_comparison *c)
{
    const int64_t additions = count / sum->stride * (int64_t)sum->members,
                  stride = (additions / ADDITIONS_MAX + 1) * sum->stride;
    for (int64_t at = (first + sum->stride - 1) / sum->stride * sum->stride; at < first + count;
         at += stride) {
        const double expected = cd_ordered_sum_get(sum, at), actual = result[at - first];
        c->numel++;
        if (!is_equal(expected, actual)) note_bad(c, at - first, expected, actual);
    }
}

/* The operands one after the other. */
static void compare_gathered(const cd_observed_summed *s, cd_comparison *c)
{
    if (s->members == 0 || s->operands.count != s->result.count) {
        note_bad(c, 0, (double)s->operands.count, (double)s->result.count);
        return;
    }
    c->numel = s->result.count;
    for (size_t i = 0; i < s->result.count; i++)
        if (!is_equal(s->operands.items[i], s->result.items[i]))
            note_bad(c, (int64_t)i, s->operands.items[i], s->result.items[i]);
}

/* See Note [Every order] */
static cddp_status compare_any(const cd_ordered_sum *sum, int64_t first, const double *result,
                               int64_t count, const cddp_allocator *allocator, cd_comparison *c,
                               cddp_error *err)
{
    const cd_any_order_rule rule = {sum->dtype, sum->dtype, sum->averages ? sum->members : 1, 1};
    cd_any_order any;
    CD_TRY(cd_any_order_init(&any, allocator, (size_t)count, sum->members, err));
    for (uint32_t m = 0; m < sum->members; m++) {
        const double *operand = sum->operands + (int64_t)m * sum->numel + first;
        cd_any_order_push(&any, operand, operand);
    }
    c->exact = false;
    for (size_t k = 0; cd_any_order_find(&any, &rule) && k < any.count; k++) {
        const double actual = result[k * any.stride];
        c->numel++;
        if (cd_any_order_has(&any, &rule, k, actual)) continue;
        const double nearest = fmin(fmax(actual, any.ranges[k].low), any.ranges[k].high);
        c->bound = any.ranges[k].high - any.ranges[k].low;
        note_bad(c, (int64_t)(k * any.stride), nearest, actual);
    }
    cd_any_order_fini(&any);
    return CDDP_OK;
}

/* In which orders it may have been added up. False: these are those that the judge knows, and
** nobody promised one of them. Several names promise the order of an all-reduce in a half type:
** there the library adds with the backend's own operator, and no shortcut of a device. */
static bool find_orders(const cd_sum_promise *promise, const cd_observed_summed *s,
                        cd_orders *orders)
{
    cd_orders_read(orders, promise->algorithm);
    if (orders->count == 1) {
        /* whatever the algorithm, parts of a sum go around in a ring, if not in rank order */
        if (s->scatters && orders->kinds[0] != CD_ORDER_IN_RANK_ORDER)
            orders->kinds[0] = CD_ORDER_RING;
        return true;
    }
    if (orders->count > 1 && !s->scatters && s->dtype != CDDP_F32) return true;
    cd_orders_get_all(orders);
    return false;
}

/* True: one of the orders gives every element. Else *found is of the order that gives most. */
static bool compare_orders(cd_ordered_sum *sum, const cd_orders *orders, int64_t first,
                           const cd_observed_reals *result, cd_comparison *found)
{
    const cd_comparison empty = *found;
    for (uint32_t k = 0; k < orders->count; k++) {
        cd_comparison c = empty;
        sum->order = orders->kinds[k];
        compare_ordered(sum, first, result->items, (int64_t)result->count, &c);
        if (k == 0 || c.bad < found->bad) *found = c;
        if (c.bad == 0) return true;
    }
    return false;
}

/* Elements of an operand that are there. */
static uint64_t count_shown(const cd_observed_summed *s)
{
    const uint64_t numel = s->result.count * (s->scatters ? (uint64_t)s->members : 1);
    return s->stride > 1 ? (numel + s->stride - 1) / s->stride : numel;
}

cddp_status cd_summed_compare(const cd_sum_promise *promise, const cd_observed_summed *summed,
                              const cddp_allocator *allocator, cd_comparison *found,
                              cddp_error *err)
{
    const cd_observed_summed *s = summed;
    const int64_t count = (int64_t)s->result.count;
    const uint64_t parts = s->scatters ? (uint64_t)s->members : 1;
    const uint64_t shown = count_shown(s);
    *found = (cd_comparison){.element = -1, .exact = true, .shape = CD_SHAPE_NONE};
    if (s->gathers) {
        compare_gathered(s, found);
        return CDDP_OK;
    }
    /* what does not fit together is no reduction */
    if (s->members == 0 || s->member >= s->members ||
        (s->dtype != CDDP_F16 && s->dtype != CDDP_BF16 && s->dtype != CDDP_F32) || s->stride == 0 ||
        s->operands.count != shown * s->members) {
        note_bad(found, 0, (double)(shown * s->members), (double)s->operands.count);
        return CDDP_OK;
    }
    cd_ordered_sum sum = {.dtype = s->dtype,
                          .members = s->members,
                          .ranks_per_node = promise->ranks_per_node,
                          .numel = (int64_t)(s->result.count * parts),
                          .stride = s->stride,
                          .scatters = s->scatters,
                          .averages = s->averages,
                          .operands = s->operands.items};
    const int64_t first = s->scatters ? (int64_t)s->member * count : 0;
    cd_orders orders;
    const bool is_promised = find_orders(promise, s, &orders);
    if (!is_promised && s->members <= CD_ANY_ORDER_ADDENDS_MAX && s->stride == 1)
        CD_TRY(compare_any(&sum, first, s->result.items, count, allocator, found, err));
    else if (!compare_orders(&sum, &orders, first, &s->result, found) && !is_promised)
        *found = (cd_comparison){.element = -1, .shape = CD_SHAPE_NONE};
    return CDDP_OK;
}

/* ---- what the judge was shown ---- */

static bool has_bits(cddp_dtype dtype, const cd_observed_reals *reals)
{
    for (size_t i = 0; i < reals->count; i++)
        if (isnan(reals->items[i]) || (dtype == CDDP_I64 && fabs(reals->items[i]) >= 0x1p53))
            return false;
    return true;
}

static cddp_status digest_of(const cd_observed_reals *reals, cddp_dtype dtype, cd_numbers *numbers,
                             uint64_t *digest, cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    const bool has_lanes = dtype == CDDP_C64;
    const int64_t numel = (int64_t)(has_lanes ? reals->count / 2 : reals->count);
    cddp_status status;
    void *storage = NULL;
    CD_TRY(cpu->allocate(cpu, dtype, numel + 1, &storage, err));
    const cddp_tensor tensor = cddp_tensor_of(cpu, storage, 0, dtype, &numel, 1),
                      written = cd_tensor_lanes(&tensor);
    status = cd_numbers_write(numbers, &written, reals->items, err);
    if (status == CDDP_OK) status = cpu->digest(&tensor, digest, err);
    cpu->release(cpu, dtype, numel + 1, storage);
    return CD_PASS(status);
}

static uint64_t begin_digest(const cd_observed_summed *s)
{
    const size_t lanes = s->dtype == CDDP_C64 ? 2 : 1;
    const size_t count = s->members > 0 ? s->operands.count / s->members : 0;
    return cd_sum_sight_begin(&(cd_sum_sight){.averages = s->averages,
                                              .scatters = s->scatters,
                                              .gathers = s->gathers,
                                              .member = s->member,
                                              .members = s->members,
                                              .dtype = (int64_t)s->dtype,
                                              .numel = (int64_t)(count / lanes)});
}

uint64_t cd_summed_digest_form(const cd_observed_summed *summed) { return begin_digest(summed); }

cddp_status cd_summed_digest(const cd_observed_summed *summed, cd_numbers *numbers,
                             uint64_t *digest, bool *is_known, cddp_error *err)
{
    const cd_observed_summed *s = summed;
    const size_t count = s->members > 0 ? s->operands.count / s->members : 0;
    uint64_t one;
    *digest = begin_digest(s);
    *is_known = true;
    if ((unsigned)s->dtype >= CDDP_DTYPE_COUNT || s->members * count != s->operands.count ||
        s->stride == 0 || (!s->gathers && count_shown(s) != count))
        return CDDP_OK; /* another one than any that was posted */
    *is_known =
        s->stride == 1 && has_bits(s->dtype, &s->operands) && has_bits(s->dtype, &s->result);
    for (uint32_t m = 0; m < s->members && *is_known; m++) {
        CD_TRY(digest_of(&(cd_observed_reals){s->operands.items + m * count, count}, s->dtype,
                         numbers, &one, err));
        *digest = cd_hash_mix(*digest, one);
    }
    if (!*is_known) return CDDP_OK;
    CD_TRY(digest_of(&s->result, s->dtype, numbers, &one, err));
    *digest = cd_hash_mix(*digest, one);
    return CDDP_OK;
}
