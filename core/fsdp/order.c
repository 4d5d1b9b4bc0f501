/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which units are gathered and reduced, which is a contract between ranks: gathers of
** two units of one size pair with each other, and each rank then computes with slices of both
** (FSH-14).
**
** In the first iteration, before each gather and each reduction, ranks exchange what they are about
** to do. Afterwards a rank compares itself with what it did then, which costs nothing: who departs
** knows it before it posts anything, and aborts the groups, so that the others end. With
** CDDP_FSDP_ORDER_EVERY_ITERATION the exchange goes on, and orders may change on all ranks alike.
**
** Deviation: PyTorch exchanges two numbers before each gather of the first forward only, and warns
** later.
*/
#include "core/fsdp/fsdp.h"

#include "core/base/error.h"

const char *cd_fsdp_unit_words(const cddp_fsdp *f, uint32_t unit)
{
    return unit == 0 ? "(root)" : f->units[unit].name;
}

/* A place of an order: the unit, or in backward the unit without a gradient. */
static const char *place_words(const cddp_fsdp *f, uint32_t place, const char **without)
{
    *without = place < f->unit_count ? "" : " without a gradient";
    return cd_fsdp_unit_words(f, place % f->unit_count);
}

/* What a rank is about to do, as one number; never 0. Wrappers of one group may have units of the
** same numbers and sizes: so it says of which it is, by the group's operations when it was made. */
static int64_t intent_of(uint64_t wrapper, uint32_t unit, bool reduces)
{
    return (int64_t)((wrapper & INT32_MAX) << 32) + ((int64_t)unit + 1) * 2 + (reduces ? 1 : 0);
}

static const char *words_of(const cddp_fsdp *f, int64_t intent, const char **verb)
{
    const int64_t unit = (intent & UINT32_MAX) / 2 - 1;
    *verb = intent % 2 != 0 ? "reduces" : "gathers";
    return unit >= 0 && unit < (int64_t)f->unit_count ? cd_fsdp_unit_words(f, (uint32_t)unit)
                                                      : "(no unit)";
}

static bool compares(const cddp_fsdp *f, bool reduces)
{
    if (f->order_check == CDDP_FSDP_ORDER_NONE) return false;
    if (f->order_check == CDDP_FSDP_ORDER_EVERY_ITERATION) return true;
    return reduces ? f->compares_reductions : !f->backward.is_recorded;
}

static cddp_status compare_in(cddp_fsdp *f, cddp_group *group, cd_control *all, cddp_error *err)
{
    const uint32_t world = cddp_group_size(group);
    if (world == 1) return CDDP_OK;
    f->order_checks++;
    CD_TRY(cd_control_allgather(group, &f->one, all, err));
    const int64_t *said = all->host;
    for (uint32_t r = 1; r < world; r++) {
        if (said[r] == said[0]) continue;
        const char *verbs[2];
        const char *left = words_of(f, said[0], &verbs[0]),
                   *right = words_of(f, said[r], &verbs[1]);
        if (said[0] >> 32 != said[r] >> 32)
            return cd_fail(err, CDDP_E_MISMATCH,
                           "ranks of group '%s' use their sharded models in different orders: rank "
                           "0 %s '%s', rank %u %s a unit of another one",
                           cddp_group_name(group), verbs[0], left, r, verbs[1]);
        return cd_fail(err, CDDP_E_MISMATCH,
                       "ranks of group '%s' use their units in different orders: rank 0 %s '%s', "
                       "rank %u %s '%s'",
                       cddp_group_name(group), verbs[0], left, r, verbs[1], right);
    }
    return CDDP_OK;
}

cddp_status cd_fsdp_compare_order(cddp_fsdp *f, uint32_t unit, bool reduces, cddp_error *err)
{
    if (!compares(f, reduces)) return CDDP_OK;
    int64_t *own = f->one.host;
    *own = intent_of(f->numbers[0], unit, reduces);
    CD_TRY(compare_in(f, f->group, &f->all, err));
    if (f->replicate_group == NULL) return CDDP_OK;
    *own = intent_of(f->numbers[1], unit, reduces);
    return CD_PASS(compare_in(f, f->replicate_group, &f->all_replicas, err));
}

static cddp_status compare_number_in(cddp_fsdp *f, cddp_group *group, cd_control *all,
                                     const char *what, cddp_error *err)
{
    const uint32_t world = cddp_group_size(group);
    const int64_t own = ((const int64_t *)f->one.host)[0];
    if (world == 1) return CDDP_OK;
    f->order_checks++;
    CD_TRY(cd_control_allgather(group, &f->one, all, err));
    for (uint32_t r = 0; r < world; r++)
        if (((const int64_t *)all->host)[r] != own)
            return cd_fail(err, CDDP_E_MISMATCH, "rank %u of group '%s' has another one than %s", r,
                           cddp_group_name(group), what);
    return CDDP_OK;
}

cddp_status cd_fsdp_compare_number(cddp_fsdp *f, uint64_t number, const char *what, cddp_error *err)
{
    *(int64_t *)f->one.host = (int64_t)(number >> 1);
    CD_TRY(compare_number_in(f, f->group, &f->all, what, err));
    return f->replicate_group != NULL
               ? CD_PASS(compare_number_in(f, f->replicate_group, &f->all_replicas, what, err))
               : CDDP_OK;
}

static cddp_status record(cddp_fsdp *f, cd_fsdp_order *order, uint32_t unit, cddp_error *err)
{
    if (!cd_arena_grow(&f->arena, (void **)&order->units, &order->capacity, order->count + 1,
                       sizeof *order->units))
        return cd_fail_memory(err, "an order of %zu units", order->count + 1);
    order->units[order->count++] = unit;
    order->at = order->count;
    return CDDP_OK;
}

static bool is_fixed(const cddp_fsdp *f, const cd_fsdp_order *order)
{
    return order->is_recorded && f->order_check == CDDP_FSDP_ORDER_FIRST_ITERATION;
}

cddp_status cd_fsdp_follow(cddp_fsdp *f, cd_fsdp_order *order, uint32_t unit, const char *what,
                           cddp_error *err)
{
    if (!order->is_recorded) return CD_PASS(record(f, order, unit, err));
    const size_t at = order->at++;
    if (!is_fixed(f, order) || (at < order->count && order->units[at] == unit)) return CDDP_OK;
    const char *without[2] = {"", ""};
    const char *now = place_words(f, unit, &without[0]), *then = NULL;
    if (at < order->count) then = place_words(f, order->units[at], &without[1]);
    return cd_fail(err, CDDP_E_MISMATCH,
                   "%s %zu of this iteration is '%s'%s, and that of the first one %s%s%s%s; use "
                   "CDDP_FSDP_ORDER_EVERY_ITERATION if all ranks change their order together",
                   what, at + 1, now, without[0], then != NULL ? "was '" : "did not exist",
                   then != NULL ? then : "", then != NULL ? "'" : "", without[1]);
}

cddp_status cd_fsdp_end_order(cddp_fsdp *f, cd_fsdp_order *order, const char *what, cddp_error *err)
{
    const size_t at = order->at;
    const bool departs = is_fixed(f, order) && at < order->count;
    order->is_recorded = true;
    order->at = 0;
    if (!departs) return CDDP_OK;
    const char *without = "";
    const char *then = place_words(f, order->units[at], &without);
    return cd_fail(err, CDDP_E_MISMATCH,
                   "this iteration has no %s %zu, and that of the first one was '%s'%s; use "
                   "CDDP_FSDP_ORDER_EVERY_ITERATION if all ranks change their order together",
                   what, at + 1, then, without);
}
