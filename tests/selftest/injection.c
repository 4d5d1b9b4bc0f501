/* SPDX-License-Identifier: Apache-2.0 */
/* What the points of the run call in the self-test: see core/base/inject.h. */
#include "tests/selftest/injection.h"

#include "cddp/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POINTS_MAX 512
#define RANKS_MAX 64
#define TENSORS_MAX 512

const st_operator_row st_operators[ST_OPERATORS] = {
#define ST_OPERATOR(constant, name, kinds, breadth, doc) {name, kinds, breadth, doc},
#include "tests/selftest/operators.def"
#undef ST_OPERATOR
};

const st_point st_points[] = {
#define ST_POINT(place, kind, blame, file, doc, words, covers) \
    {place, file, kind, blame, doc, words, covers},
#include "tests/selftest/points.def"
#undef ST_POINT
};
const size_t st_point_count = sizeof st_points / sizeof st_points[0];

/* The self-test has one world at a time, and points know nothing but where they are. */
static struct {
    st_injection injection;
    st_effect effect;
    uint64_t reached[POINTS_MAX];
    /* (RANKS_MAX · TENSORS_MAX) of STALE: what stood there the time before */
    cddp_tensor *kept;
    double kept_number[RANKS_MAX];
    bool has_kept_number[RANKS_MAX];
} now;

size_t st_point_find(const char *place)
{
    for (size_t i = 0; i < st_point_count; i++) {
        if (strcmp(st_points[i].place, place) == 0) return i;
    }
    return SIZE_MAX;
}

static void forget_kept(void)
{
    free(now.kept);
    now.kept = NULL;
    memset(now.has_kept_number, 0, sizeof now.has_kept_number);
}

void st_injection_begin(const st_injection *injection)
{
    forget_kept();
    memset(now.reached, 0, sizeof now.reached);
    now.injection = *injection;
    now.effect = (st_effect){.tensor = SIZE_MAX, .partner = SIZE_MAX};
}

const st_effect *st_injection_effect(void) { return &now.effect; }
uint64_t st_injection_reached(size_t point) { return now.reached[point]; }

/* ---- whether a point is struck ---- */

static bool is_struck(const cd_inject_point *at, uint32_t kind)
{
    const size_t point = st_point_find(at->place);
    if (point == SIZE_MAX || st_points[point].kind != kind) {
        fprintf(stderr, "self-test: points.def has no row of this kind for the point '%s'\n",
                at->place);
        abort();
    }
    now.reached[point]++;
    if (point != now.injection.point) return false;
    if (at->rank == CD_INJECT_EVERYONE)
        return now.injection.rank == ST_ALL_RANKS && now.injection.step == ST_EVERY_STEP;
    if (at->rank >= RANKS_MAX) return false;
    return now.injection.rank == ST_ALL_RANKS ||
           (at->rank == (uint32_t)now.injection.rank) != now.injection.spares_rank;
}

static bool is_now(const cd_inject_point *at)
{
    return now.injection.step == ST_EVERY_STEP || at->step == (uint64_t)now.injection.step;
}

static void note_change(const cd_inject_point *at, size_t tensor)
{
    st_effect *e = &now.effect;
    if (e->changed == 0 || at->step < e->first_step) {
        e->first_step = at->step;
        e->ranks = 0;
        e->tensor = tensor;
    }
    e->changed++;
    e->all_ranks |= at->rank == CD_INJECT_EVERYONE ? UINT64_MAX : UINT64_C(1) << at->rank;
    if (at->rank == CD_INJECT_EVERYONE)
        e->ranks = UINT64_MAX;
    else if (at->step == e->first_step)
        e->ranks |= UINT64_C(1) << at->rank;
}

/* ---- tensors ---- */

static cddp_tensor element(const cddp_tensor *t, int64_t index)
{
    static const int64_t one = 1;
    int64_t offset = t->offset;
    for (uint32_t d = t->dim_count; d > 0; d--) {
        offset += index % t->sizes[d - 1] * t->strides[d - 1];
        index /= t->sizes[d - 1];
    }
    return cddp_tensor_of(t->device, t->storage, offset, t->dtype, &one, 1);
}

static cddp_tensor make_like(const cddp_tensor *t)
{
    cddp_error err = CDDP_ERROR_INIT;
    void *storage = NULL;
    /* It stays until the process of the case ends. */
    if (t->device->allocate(t->device, t->dtype, cddp_tensor_numel(t) + 1, &storage, &err) !=
        CDDP_OK)
        abort();
    return cddp_tensor_of(t->device, storage, 0, t->dtype, t->sizes, t->dim_count);
}

static cddp_status copy(const cddp_tensor *to, const cddp_tensor *from, cddp_error *err)
{
    return to->device->copy(to, from, NULL, err);
}

static cddp_status exchange(const cddp_tensor *a, const cddp_tensor *b, cddp_error *err)
{
    const cddp_tensor kept = make_like(a);
    cddp_status status = copy(&kept, a, err);
    if (status == CDDP_OK) status = copy(a, b, err);
    return status == CDDP_OK ? copy(b, &kept, err) : status;
}

static cddp_status nudge(const cddp_tensor *t, cddp_error *err)
{
    const int64_t numel = cddp_tensor_numel(t);
    const cddp_tensor target = element(t, (int64_t)(now.injection.draw / 7 % (uint64_t)numel)),
                      addend = make_like(&target);
    cddp_status status = t->device->fill(&addend, 0.125, NULL, err);
    return status == CDDP_OK ? t->device->reduce(CDDP_RED_SUM, &target, &addend, NULL, err)
                             : status;
}

static cddp_status exchange_elements(const cddp_tensor *t, cddp_error *err)
{
    const uint64_t numel = (uint64_t)cddp_tensor_numel(t), first = now.injection.draw / 7 % numel;
    if (numel < 2) return CDDP_OK;
    const uint64_t second = (first + 1 + now.injection.draw / 1031 % (numel - 1)) % numel;
    const cddp_tensor a = element(t, (int64_t)first), b = element(t, (int64_t)second);
    return exchange(&a, &b, err);
}

static cddp_status stale(const cddp_tensor *t, uint32_t rank, size_t id, cddp_error *err)
{
    if (id >= TENSORS_MAX || rank >= RANKS_MAX) return CDDP_OK;
    if (now.kept == NULL) now.kept = calloc((size_t)RANKS_MAX * TENSORS_MAX, sizeof *now.kept);
    if (now.kept == NULL) abort();
    cddp_tensor *kept = &now.kept[rank * TENSORS_MAX + id];
    const cddp_tensor before = *kept;
    *kept = make_like(t);
    cddp_status status = copy(kept, t, err);
    if (status == CDDP_OK && before.device != NULL &&
        cddp_tensor_numel(&before) == cddp_tensor_numel(t))
        status = copy(t, &before, err);
    return status;
}

static double ratio(void)
{
    return 1.0 - ldexp(1.0, now.injection.exponent != 0 ? -(int)now.injection.exponent : -6);
}

static cddp_status operate(const cd_inject_point *at, size_t id, const cddp_tensor *t,
                           cddp_error *err)
{
    switch (now.injection.op) {
    case ST_OP_HALF:
        return t->device->scale(t, t, 0.5, NULL, err);
    case ST_OP_NEGATE:
        return t->device->scale(t, t, -1.0, NULL, err);
    case ST_OP_RATIO:
        return t->device->scale(t, t, ratio(), NULL, err);
    case ST_OP_ZERO:
        return t->device->fill(t, 0.0, NULL, err);
    case ST_OP_NUDGE:
        return nudge(t, err);
    case ST_OP_EXCHANGE:
        return exchange_elements(t, err);
    case ST_OP_STALE:
        return stale(t, at->rank, id, err);
    default:
        return CDDP_OK;
    }
}

static uint64_t digest_of(const cddp_tensor *t)
{
    uint64_t digest = 0;
    return t->device->digest(t, &digest, NULL) == CDDP_OK ? digest : 0;
}

static void strike(const cd_inject_point *at, size_t id, const cddp_tensor *t)
{
    cddp_error err = CDDP_ERROR_INIT;
    const uint64_t before = digest_of(t);
    now.effect.fired++;
    /* An operation that the device does not have changes nothing. */
    const cddp_status status = operate(at, id, t, &err);
    if (status == CDDP_OK && digest_of(t) != before) note_change(at, id);
}

static bool is_there(const cddp_tensor *t)
{
    return t->device != NULL && t->storage != NULL && cddp_tensor_numel(t) > 0;
}

static const cddp_tensor *item(const void *first, size_t stride, size_t i)
{
    return (const cddp_tensor *)(const void *)((const char *)first + stride * i);
}

/* The tensor that is struck, among those that are there; count: none. */
static size_t find_chosen(const void *first, size_t stride, size_t count)
{
    size_t there = 0;
    for (size_t i = 0; i < count; i++) there += is_there(item(first, stride, i));
    if (there == 0) return count;
    uint64_t left = now.injection.draw % there;
    for (size_t i = 0; i < count; i++) {
        if (is_there(item(first, stride, i)) && left-- == 0) return i;
    }
    return count;
}

/* A partner of the same sizes and dtype; count: none. */
static size_t find_partner(const void *first, size_t stride, size_t count, size_t chosen)
{
    const cddp_tensor *a = item(first, stride, chosen);
    for (size_t k = 1; k < count; k++) {
        const size_t i = (chosen + k) % count;
        const cddp_tensor *b = item(first, stride, i);
        if (is_there(b) && b->dtype == a->dtype && b->dim_count == a->dim_count &&
            memcmp(b->sizes, a->sizes, a->dim_count * sizeof a->sizes[0]) == 0)
            return i;
    }
    return count;
}

static void swap(const cd_inject_point *at, const void *first, size_t stride, size_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    for (size_t k = 0; k < count; k++) {
        const size_t chosen = (k + now.injection.draw) % count;
        if (!is_there(item(first, stride, chosen))) continue;
        const size_t partner = find_partner(first, stride, count, chosen);
        if (partner == count) continue;
        const cddp_tensor *a = item(first, stride, chosen), *b = item(first, stride, partner);
        const uint64_t before = digest_of(a);
        now.effect.fired++;
        if (exchange(a, b, &err) == CDDP_OK && digest_of(a) != before) {
            note_change(at, chosen);
            if (now.effect.tensor == chosen) now.effect.partner = partner;
        }
        return;
    }
}

static void strike_some(const cd_inject_point *at, const void *first, size_t stride, size_t count)
{
    const size_t chosen = find_chosen(first, stride, count);
    if (now.injection.op == ST_OP_SWAP) {
        swap(at, first, stride, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const cddp_tensor *t = item(first, stride, i);
        if (is_there(t) && (now.injection.everything || i == chosen)) strike(at, i, t);
    }
}

void cd_inject_tensors(const cd_inject_point *at, const void *first, size_t stride, size_t count)
{
    if (!is_struck(at, ST_TENSOR) || count == 0) return;
    if (is_now(at) || now.injection.op == ST_OP_STALE) strike_some(at, first, stride, count);
}

void cd_inject_tensor(const cd_inject_point *at, size_t id, const cddp_tensor *tensor)
{
    if (!is_struck(at, ST_TENSOR) || !is_there(tensor)) return;
    const bool is_chosen = now.injection.tensors == 0 || now.injection.everything ||
                           id == now.injection.draw % now.injection.tensors;
    if (is_chosen && (is_now(at) || now.injection.op == ST_OP_STALE)) strike(at, id, tensor);
}

void cd_inject_gradients(const cd_inject_point *at, void *first, size_t stride, size_t count)
{
    const size_t offset = offsetof(cddp_grad, value);
    size_t there = 0;
    if (!is_struck(at, ST_GRADIENT) || count == 0) return;
    if (!is_now(at) && now.injection.op != ST_OP_STALE) return;
    if (now.injection.op != ST_OP_DROP) {
        strike_some(at, (const char *)first + offset, stride, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        there += ((cddp_grad *)(void *)((char *)first + stride * i))->kind == CDDP_GRAD_DENSE;
    for (size_t i = 0, k = 0; i < count; i++) {
        cddp_grad *grad = (cddp_grad *)(void *)((char *)first + stride * i);
        if (grad->kind != CDDP_GRAD_DENSE) continue;
        if (now.injection.everything || k++ == now.injection.draw % there) {
            now.effect.fired++;
            cddp_grad_drop(grad);
            note_change(at, i);
        }
    }
}

/* ---- numbers ---- */

static double operate_number(uint32_t rank, double x)
{
    rank = rank < RANKS_MAX ? rank : 0; /* of everybody */
    switch (now.injection.op) {
    case ST_OP_HALF:
        return x * 0.5;
    case ST_OP_NEGATE:
        return -x;
    case ST_OP_RATIO:
        return x * ratio();
    case ST_OP_TENFOLD:
        return x * 10.0;
    case ST_OP_ZERO:
        return 0.0;
    case ST_OP_STALE: {
        const double before = now.has_kept_number[rank] ? now.kept_number[rank] : x;
        now.kept_number[rank] = x;
        now.has_kept_number[rank] = true;
        return before;
    }
    default:
        return x;
    }
}

void cd_inject_number(const cd_inject_point *at, double *number)
{
    if (!is_struck(at, ST_NUMBER)) return;
    if (!is_now(at)) {
        if (now.injection.op == ST_OP_STALE) (void)operate_number(at->rank, *number);
        return;
    }
    const double before = *number;
    now.effect.fired++;
    *number = operate_number(at->rank, before);
    if (*number != before && before == before) note_change(at, SIZE_MAX);
}

void cd_inject_count(const cd_inject_point *at, int64_t *number)
{
    if (!is_struck(at, ST_COUNT) || !is_now(at)) return;
    const int64_t before = *number;
    now.effect.fired++;
    if (now.injection.op == ST_OP_MORE) *number = before + 1;
    if (now.injection.op == ST_OP_LESS && before > 0) *number = before - 1;
    if (now.injection.op == ST_OP_ZERO) *number = 0;
    if (*number != before) note_change(at, SIZE_MAX);
}

void cd_inject_flag(const cd_inject_point *at, bool *flag)
{
    if (!is_struck(at, ST_FLAG) || !is_now(at)) return;
    now.effect.fired++;
    *flag = !*flag;
    note_change(at, SIZE_MAX);
}

static bool strike_call(const cd_inject_point *at, uint32_t kind)
{
    if (!is_struck(at, kind) || !is_now(at)) return false;
    now.effect.fired++;
    note_change(at, SIZE_MAX);
    return true;
}

bool cd_inject_skips(const cd_inject_point *at) { return strike_call(at, ST_CALL); }
bool cd_inject_turns(const cd_inject_point *at) { return strike_call(at, ST_TURN); }

const char *cd_inject_place(const char *kind, const char *name)
{
    static char place[96];
    snprintf(place, sizeof place, "%s.%s", kind, name);
    return place;
}
