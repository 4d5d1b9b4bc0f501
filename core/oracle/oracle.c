/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's life, and the input of a rank. Not here: the comparisons (gradients.c, update.c,
** free_run.c).
**
** Invariants
** O1  start is made of the judge's copies: nothing that the run does after begin_step changes it
** O2  a gradient is compared only while captured is set for it, by push_local in the same step
** O3  the free-running reference repeats a step only when every comparison of it was exact; after
**     any other it restarts, and the step is counted as given up
*/
#include "core/oracle/carried.h"
#include "core/oracle/state.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/oracle/exact_inputs.h"
#include "core/trace/tracer.h"
#include "core/base/hash.h"

#include <string.h>

#define ORACLE_BLOCK_BYTES ((size_t)4096)
#define SECOND_BLOCK_BYTES ((size_t)1 << 16)

/* ---- life ---- */

cddp_status cd_oracle_share_create(const cddp_allocator *allocator, cd_oracle_share **share,
                                   cddp_error *err)
{
    cd_oracle_share *s = cd_allocate_zero(allocator, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "the oracle's share");
    cd_share_init(s, allocator, false);
    *share = s;
    return CDDP_OK;
}

void cd_oracle_share_destroy(cd_oracle_share *share)
{
    if (share == NULL) return;
    cd_share_fini(share);
    cd_release(share->allocator, share, sizeof *share);
}

static cddp_status push_arrays(cd_oracle *o, cddp_error *err)
{
    const size_t n = o->options.parameter_count, b = o->options.buffer_count;
    o->parameters = cd_arena_array(&o->arena, n, sizeof *o->parameters);
    o->names = cd_arena_array(&o->arena, n, sizeof *o->names);
    o->offsets = cd_arena_array(&o->arena, n + 1, sizeof *o->offsets);
    o->values = cd_arena_array(&o->arena, n, sizeof *o->values);
    o->kept = cd_arena_array(&o->arena, n, sizeof *o->kept);
    o->added = cd_arena_array(&o->arena, n, sizeof *o->added);
    o->buffers = cd_arena_array(&o->arena, b, sizeof *o->buffers);
    o->local_forms = cd_arena_array(&o->arena, n, sizeof *o->local_forms);
    o->captured = cd_arena_array(&o->arena, n, sizeof *o->captured);
    o->local_present = cd_arena_array(&o->arena, n, sizeof *o->local_present);
    o->free_gradients = cd_arena_array(&o->arena, n, sizeof *o->free_gradients);
    o->powers = cd_arena_array(&o->arena, o->options.world_size, sizeof *o->powers);
    CD_TRY(cd_arena_check(&o->arena, err, "the oracle of rank %u", o->options.rank));
    for (size_t i = 0; i < n; i++) {
        o->parameters[i] = o->options.parameters[i];
        o->names[i] = o->parameters[i].name;
        o->is_sharded = o->is_sharded || o->parameters[i].part.share != 0;
        o->offsets[i + 1] = o->offsets[i] + (size_t)o->parameters[i].numel;
    }
    o->options.parameters = o->parameters;
    return CDDP_OK;
}

cddp_status cd_oracle_create(const cd_oracle_options *options, cd_oracle **oracle, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, options->allocator, ORACLE_BLOCK_BYTES);
    cd_oracle *o = cd_arena_push(&arena, sizeof *o);
    if (o == NULL) return cd_fail_memory(err, "the oracle of rank %u", options->rank);
    o->arena = arena;
    o->options = *options;
    o->numbers.allocator = o->other.allocator = o->before.allocator = options->allocator;
    cd_scalars_init(&o->scalars, options->allocator);
    cd_arena_init(&o->second, options->allocator, SECOND_BLOCK_BYTES);
    cd_arena_init(&o->formula_room, options->allocator, ORACLE_BLOCK_BYTES);
    cd_arena_init(&o->norm_room, options->allocator, SECOND_BLOCK_BYTES);
    o->numbers.has_lanes = o->other.has_lanes = o->before.has_lanes = true;
    cd_share_init(&o->own, options->allocator, true);
    o->share = options->share != NULL ? options->share : &o->own;
    CD_TRY_OUT(push_arrays(o, err));
    CD_TRY_OUT(cd_carried_create(o, err));
    if (o->options.sample_wise && !cd_exact_flags_work()) {
        o->options.sample_wise = false; /* nobody would see that a sample rounds */
        CD_EMIT(o->options.tracer, mark, "rounding_flag_missing", .value = 0);
    }
    *oracle = o;
    return CDDP_OK;
out:
    cd_arena_fini(&o->arena);
    return status;
}

void cd_oracle_declare_parts(cd_oracle *oracle, const cd_part *parts)
{
    for (size_t i = 0; i < oracle->options.parameter_count; i++)
        oracle->parameters[i].part = parts[i];
    oracle->is_sharded = true;
}

const cd_part *cd_oracle_get_part(const cd_oracle *oracle, size_t parameter)
{
    return &oracle->parameters[parameter].part;
}

void cd_oracle_destroy(cd_oracle *oracle)
{
    cd_oracle *o = oracle;
    if (o == NULL) return;
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        cddp_grad_fini(&o->local_forms[i]);
        cddp_grad_fini(&o->free_gradients[i]);
    }
    cd_share_fini(&o->own);
    cd_numbers_fini(&o->numbers);
    cd_numbers_fini(&o->other);
    cd_numbers_fini(&o->before);
    cd_oracle_release_formulas(o);
    cd_scalars_fini(&o->scalars);
    cd_arena_fini(&o->second);
    cd_arena_fini(&o->formula_room);
    cd_arena_fini(&o->norm_room);
    cd_arena_fini(&o->arena);
}

/* ---- what is observed of the run ---- */

bool cd_oracle_has_values(const cd_oracle *o)
{
    return o->options.parameter_count > 0 && o->values[0].device != NULL &&
           (o->values[0].device->flags & CDDP_DEVICE_VALUES) != 0;
}

bool cd_oracle_is_exact_device(const cd_oracle *o)
{
    return o->options.parameter_count > 0 && o->values[0].device != NULL &&
           (o->values[0].device->flags & CDDP_DEVICE_EXACT) != 0;
}

static cddp_status digest_of(const cddp_tensor *tensor, uint64_t *digest, cddp_error *err)
{
    uint64_t d = 0;
    CD_TRY(tensor->device->digest(tensor, &d, err));
    *digest = cd_hash_mix(*digest, d);
    return CDDP_OK;
}

cddp_status cd_oracle_begin_step(cd_oracle *oracle, uint32_t step, const cddp_tensor *parameters,
                                 const cddp_grad *gradients, cddp_error *err)
{
    cd_oracle *o = oracle;
    o->step = step;
    o->norm_count = 0;
    cd_arena_rewind(&o->norm_room, (cd_arena_mark){0});
    o->digest = 0;
    o->is_left_out = false;
    o->free_gap = CD_FREE_NO_GAP;
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        o->values[i] = parameters[i];
        o->kept[i] = o->added[i] = (cddp_grad){.kind = CDDP_GRAD_UNDEFINED};
        *(o->options.adds_reductions ? &o->added[i] : &o->kept[i]) = gradients[i];
        o->digest = cd_hash_mix(o->digest, (uint64_t)o->parameters[i].numel);
        CD_TRY(digest_of(&o->values[i], &o->digest, err));
        o->digest = cd_hash_mix(o->digest, o->kept[i].kind);
        if (o->kept[i].kind != CDDP_GRAD_UNDEFINED)
            CD_TRY(digest_of(&o->kept[i].value, &o->digest, err));
        if (o->kept[i].kind == CDDP_GRAD_SPARSE) {
            const cddp_tensor rows = cddp_rows_tensor(&o->kept[i].rows);
            CD_TRY(digest_of(&rows, &o->digest, err));
        }
        o->captured[i] = false;
    }
    CD_TRY(cd_carried_begin(o, err));
    if (o->local == NULL && cd_oracle_has_values(o)) {
        o->local =
            cd_arena_array(&o->arena, o->offsets[o->options.parameter_count], sizeof *o->local);
        CD_TRY(cd_arena_check(&o->arena, err, "the local gradients of rank %u", o->options.rank));
    }
    return CDDP_OK;
}

void cd_oracle_enter_forward(cd_oracle *oracle, const cddp_tensor *buffers)
{
    for (size_t i = 0; i < oracle->options.buffer_count; i++) oracle->buffers[i] = buffers[i];
    oracle->has_buffers = oracle->options.buffer_count > 0;
    /* Earlier gradients were passed on, so .grad after this micro-step comes from this micro-step
    ** alone. */
    for (size_t i = 0; oracle->options.separate && i < oracle->options.parameter_count; i++)
        oracle->captured[i] = false;
}

static cddp_status copy_form(cddp_grad *mine, const cddp_grad *theirs, cddp_error *err)
{
    cddp_grad_drop(mine);
    if (theirs->kind != CDDP_GRAD_DENSE) return CDDP_OK;
    CD_TRY(cddp_grad_define(mine, &theirs->value, err));
    CD_TRY(theirs->value.device->copy(&mine->value, &theirs->value, NULL, err));
    return CDDP_OK;
}

/* What the run shows does not index the judge's memory unchecked. */
static cddp_status check_local(const cd_oracle *o, size_t parameter, const cddp_grad *gradient,
                               cddp_error *err)
{
    if (parameter >= o->options.parameter_count) {
        return cd_fail(err, CDDP_E_STATE,
                       "a gradient of parameter %zu arrived, and the model has %zu", parameter,
                       o->options.parameter_count);
    }
    /* the oracle counts the two parts of a complex number */
    const int64_t lanes = o->parameters[parameter].dtype == CDDP_C64 ? 2 : 1;
    const int64_t expected = o->parameters[parameter].numel,
                  actual = cddp_tensor_numel(&gradient->value) * lanes;
    if (gradient->kind != CDDP_GRAD_DENSE || actual == expected) return CDDP_OK;
    return cd_fail(err, CDDP_E_STATE, "a gradient of %s has %lld elements, and the parameter %lld",
                   o->parameters[parameter].name, (long long)actual, (long long)expected);
}

bool cd_oracle_takes_local(const cd_oracle *oracle, size_t parameter, const cddp_grad *gradient)
{
    return check_local(oracle, parameter, gradient, NULL) == CDDP_OK;
}

cddp_status cd_oracle_push_local(cd_oracle *oracle, size_t parameter, const cddp_grad *gradient,
                                 cddp_error *err)
{
    cd_oracle *o = oracle;
    CD_TRY(check_local(o, parameter, gradient, err));
    o->captured[parameter] = true;
    o->local_present[parameter] = gradient->kind != CDDP_GRAD_UNDEFINED;
    if (cd_oracle_is_exact_device(o)) {
        CD_TRY(copy_form(&o->local_forms[parameter], gradient, err));
    } else if (cd_oracle_has_values(o)) {
        size_t numel = o->offsets[parameter + 1] - o->offsets[parameter];
        CD_TRY(cd_numbers_read_gradient(&o->numbers, gradient, numel, err));
        memcpy(o->local + o->offsets[parameter], o->numbers.values, numel * sizeof *o->local);
    }
    return CDDP_OK;
}

cd_start cd_oracle_get_start(cd_oracle *o)
{
    return (cd_start){.parameters = o->parameters,
                      .parameter_count = o->options.parameter_count,
                      .offsets = o->offsets,
                      .values = o->values,
                      .buffers = o->has_buffers ? o->buffers : NULL,
                      .kept = o->kept,
                      .engine = o->options.engine,
                      .world_size = o->options.world_size,
                      .sample_wise = o->options.sample_wise,
                      .digest = o->digest};
}

cd_oracle_summary cd_oracle_get_summary(const cd_oracle *oracle) { return oracle->summary; }
