/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that the plan's hook would save: what its state must be after a step.
**
** Debts and factors are kept here to the bit, because they follow from what left, from what came
** back, and from all-reduces. So the digest of the whole state is known, and I-CHAIN compares it.
** docs/hooks.md has the formats: "Saved states".
*/
#include "core/oracle/hook_law/state.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/tensor/saved.h"
#include "core/trace/tracer.h"

#include <string.h>

#define LOW_RANK UINT64_C(0x3344475372776f50) /* "PowrSGD3" */
#define LOCAL UINT64_C(0x33444753636f4c70)    /* "pLocSGD3" */
#define RESIDUE UINT64_C(0x3245554449534552)  /* "RESIDUE2" */

/* Of the sizes and dtypes of all variables, which every state begins with. */
static uint64_t model_digest(const cd_hook_law *law)
{
    uint64_t h = law->options.variable_count;
    for (size_t v = 0; v < law->options.variable_count; v++) {
        const cddp_tensor *t = &law->options.forms[v];
        h = cd_hash_mix(h, ((uint64_t)t->dtype << 32) + t->dim_count);
        for (uint32_t i = 0; i < t->dim_count; i++) h = cd_hash_mix(h, (uint64_t)t->sizes[i]);
    }
    return h != 0 ? h : 1;
}

/* ---- bytes ---- */

typedef struct saved {
    cd_hook_law *law;
    unsigned char *bytes; /* NULL: they are counted */
    size_t used, piece;   /* piece: where the last one begins */
    uint64_t seal;
} saved;

static void put(saved *s, const void *bytes, size_t count)
{
    if (s->bytes != NULL) memcpy(s->bytes + s->used, bytes, count);
    s->used += count;
}

/* A piece ends here. */
static void end_piece(saved *s)
{
    const size_t count = s->used - s->piece;
    if (s->bytes != NULL) s->seal = cd_seal_add(s->seal, s->bytes + s->piece, count);
    s->piece = s->used;
}

static void put_number(saved *s, uint64_t number) { put(s, &number, sizeof number); }

static cddp_status put_values(saved *s, cddp_dtype dtype, const double *values, int64_t count,
                              cddp_error *err)
{
    const size_t size = (size_t)count * cddp_dtype_bytes(dtype);
    if (s->bytes != NULL && count > 0) {
        const cddp_tensor flat =
            cddp_tensor_of(cddp_device_cpu(), s->bytes + s->used, 0, dtype, &count, 1);
        CD_TRY(cd_numbers_write(&s->law->scratch, &flat, values, err));
    }
    s->used += size;
    end_piece(s);
    return CDDP_OK;
}

static void put_model(saved *s)
{
    put_number(s, model_digest(s->law));
    put_number(s, s->law->options.variable_count);
}

/* ---- states ---- */

static bool has_factor(const cd_hook_law *law, const cd_law_variable *v)
{
    return law->hook.is_warm && v->factor_numel > 0 &&
           (!law->hook.is_batched || v->factor_rebuilds == law->rebuilds);
}

/* Slots begin with the first parameter, and end with the last that was ever used. */
static size_t count_slots(const cd_hook_law *law)
{
    size_t count = 0;
    for (size_t v = 0; v < law->options.variable_count; v++)
        if (law->variables[v].has_slot) count = v + 1;
    return count;
}

static cddp_status put_low_rank(saved *s, cddp_error *err)
{
    const cd_hook_law *law = s->law;
    const size_t count = count_slots(law);
    put_number(s, LOW_RANK);
    put_model(s);
    put_number(s, law->hook.is_batched);
    put_number(s, law->iteration);
    put_number(s, law->elements_before);
    put_number(s, law->elements_after);
    put_number(s, count);
    end_piece(s);
    for (size_t i = 0; i < count; i++) {
        const cd_law_variable *v = &law->variables[i];
        const bool owes = v->debt != NULL, has_q = has_factor(law, v);
        put_number(s, owes ? (uint64_t)v->numel : UINT64_MAX);
        put_number(s, has_q ? (uint64_t)v->factor_numel : 0);
        put_number(s, has_q ? (uint64_t)v->factor_rank : 0);
        put_number(s, owes ? (uint64_t)v->dtype : 0);
        put_number(s, has_q ? (uint64_t)v->dtype : 0);
        end_piece(s);
        if (owes) CD_TRY(put_values(s, v->dtype, v->debt, v->numel, err));
        if (has_q) CD_TRY(put_values(s, v->dtype, v->factor, v->factor_numel, err));
    }
    return CDDP_OK;
}

static cddp_status put_residue(saved *s, cddp_error *err)
{
    const cd_hook_law *law = s->law;
    const size_t count = count_slots(law);
    put_number(s, RESIDUE);
    put_model(s);
    put_number(s, count);
    end_piece(s);
    for (size_t i = 0; i < count; i++) {
        const cd_law_variable *v = &law->variables[i];
        put_number(s, v->debt != NULL ? (uint64_t)v->numel : UINT64_MAX);
        put_number(s, v->debt != NULL ? (uint64_t)v->dtype : 0);
        end_piece(s);
        if (v->debt != NULL && v->numel > 0)
            CD_TRY(put_values(s, v->dtype, v->debt, v->numel, err));
    }
    return CDDP_OK;
}

static cddp_status put_pieces(saved *s, cddp_error *err)
{
    const cd_hook_law *law = s->law;
    if (law->hook.kind == CD_PLANNED_LOW_RANK) return CD_PASS(put_low_rank(s, err));
    if (law->hook.kind == CD_PLANNED_TOPK) return CD_PASS(put_residue(s, err));
    put_number(s, LOCAL);
    put_model(s);
    /* it counts no further than to its start */
    put_number(s, law->iteration < law->hook.start ? law->iteration : law->hook.start);
    end_piece(s);
    return CDDP_OK;
}

static cddp_status put_state(saved *s, cddp_error *err)
{
    s->used = s->piece = 0;
    CD_TRY(put_pieces(s, err));
    put_number(s, s->seal);
    return CDDP_OK;
}

/* A round that was not observed, or was not as the plan's hook does it, leaves a state that does
** not follow: then that is the finding, or the reason why nothing is said. */
static bool is_known(const cd_hook_law *law)
{
    const cd_planned_kind kind = law->hook.kind;
    const bool has_state =
        kind == CD_PLANNED_LOW_RANK || kind == CD_PLANNED_TOPK || kind == CD_PLANNED_LOCAL;
    if (!has_state || law->hook.is_followed || law->is_blind || law->is_lost) return false;
    for (size_t i = 0; i < law->flight_count; i++)
        if (law->flights[i].is_open) return false;
    return true;
}

cddp_status cd_hook_law_expect_state(cd_hook_law *law, int64_t moment, bool *is_expected,
                                     cddp_error *err)
{
    saved s = {.law = law};
    *is_expected = is_known(law);
    if (!*is_expected) return CDDP_OK;
    const cd_arena_mark mark = cd_arena_get_mark(&law->memory);
    CD_TRY(put_state(&s, err));
    s.bytes = cd_arena_array(&law->memory, s.used + 1, 1);
    CD_TRY(cd_arena_check(&law->memory, err, "the state of the judge of hooks"));
    CD_TRY(put_state(&s, err));
    CD_EMIT(law->options.tracer, expected,
            "the hook keeps what its buckets still owe, the factors that came back, and its "
            "iteration",
            .what = CDDP_WHAT_HOOK, .moment = moment, .presence = CDDP_PRESENCE_VALUE,
            .digest = (int64_t)cd_hash64(s.bytes, s.used, 0), .param = -1);
    cd_arena_rewind(&law->memory, mark);
    return CDDP_OK;
}
