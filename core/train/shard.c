/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting an optimizer into the ranks' parts, and putting the parameters together after its step.
**
** Note [Slices of a padded vector] N elements on W ranks make slices of ⌈N/W⌉; the last ranks'
** slices end in padding, which holds zeros and is nobody's. A rank that finds the bounds of what it
** steps from N itself has slices of ⌊N/W⌋: the elements between both bounds are then stepped by
** nobody (`dropped`), and if what it sends begins there too, its values land elsewhere (`shifted`).
** Where W divides N there is no padding, and neither mistake can be made: it is refused.
**
** Not here: the optimizer's arithmetic (core/model/optim), what the parts ought to be
** (core/oracle/partition.c, written apart).
*/
#include "core/train/shard.h"

#include "cddp/coalesced.h"
#include "cddp/zero.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/inject.h"
#include "core/tensor/slices.h"

#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 10)

struct cd_shard {
    cd_arena memory;          /* of the shard itself and its arrays */
    cd_shard_options options; /* .parameters: own copy */
    cd_optimizer_parameter *parameters;
    int64_t *found;                 /* (parameter_count) the piece of each, or -1 */
    cd_optimizer_parameter *pieces; /* (piece_count) */
    /* (piece_count) views of the parameters' gradients, where a piece is not a whole parameter */
    cddp_grad *gradients;
    uint32_t *origins; /* (piece_count) the parameter that each is a piece of */
    size_t piece_count;
    /* parameters */
    uint32_t *assigned; /* (parameter_count) in the order in which they were assigned */
    uint32_t *owners;   /* (parameter_count) */
    /* (parameter_count) in the order in which they are sent, and by whom */
    cddp_tensor *travelling;
    uint32_t *roots;
    /* flat */
    int64_t numel, share;   /* of all; of one slice with its padding */
    int64_t *offsets;       /* (parameter_count + 1) in the vector */
    cd_range stepped, sent; /* of the vector, by this rank */
    cddp_tensor given, all; /* (share) and (share · world), owned */
};

static cddp_tensor range_of(const cddp_tensor *t, int64_t first, int64_t count)
{
    return cddp_tensor_of(t->device, t->storage, t->offset + first, t->dtype, &count, 1);
}

/* ---- what cannot be cut ---- */

static cddp_status check_parameters(const cd_shard_options *o, cddp_error *err)
{
    const bool flat = o->kind == CDDP_SHARD_FLAT;
    for (size_t i = 0; i < o->parameter_count; i++) {
        const cd_optimizer_parameter *p = &o->parameters[i], *first = &o->parameters[0];
        if (p->tensor.dtype != first->tensor.dtype) {
            return cd_fail(err, CDDP_E_CONFIG,
                           "optimizer.shard: '%s' holds %s and %s, '%s' and '%s': a sharded "
                           "optimizer has parameters of one dtype (ZRO-08)",
                           o->optimizer, cddp_dtype_name(first->tensor.dtype),
                           cddp_dtype_name(p->tensor.dtype), first->name, p->name);
        }
        if (flat &&
            (!cddp_tensor_is_contiguous(&p->tensor) || !cddp_dtype_is_float(p->tensor.dtype))) {
            return cd_fail(err, CDDP_E_CONFIG,
                           "optimizer.shard: '%s' of optimizer '%s' is %s: one vector is of "
                           "contiguous real numbers; use optimizer.shard = \"parameters\"",
                           p->name, o->optimizer,
                           cddp_tensor_is_contiguous(&p->tensor) ? "not real" : "not contiguous");
        }
    }
    return CDDP_OK;
}

/* ---- whole parameters, ZRO-01 ---- */

static cddp_status assignment(cd_shard *s, cddp_error *err)
{
    const cd_shard_options *o = &s->options;
    const cd_arena_mark mark = cd_arena_get_mark(&s->memory);
    int64_t *numels = cd_arena_array(&s->memory, o->parameter_count + 1, sizeof *numels);
    CD_TRY(cd_arena_check(&s->memory, err, "the sizes of %zu parameters", o->parameter_count));
    for (size_t i = 0; i < o->parameter_count; i++)
        numels[i] = cddp_tensor_numel(&s->parameters[i].tensor);
    CD_TRY(cddp_zero_assign(numels, o->parameter_count, o->world, o->order == CDDP_SHARD_ORDER_SIZE,
                            o->allocator, s->owners, s->assigned, err));
    if (o->parameter_count > 1)
        CD_INJECT_EXCHANGE("shard.owners", o->rank, 0, s->owners[0],
                           s->owners[o->parameter_count - 1]);
    cd_arena_rewind(&s->memory, mark);
    return CDDP_OK;
}

static cd_range own_of_parameter(const cd_shard *s, size_t i)
{
    const int64_t numel = cddp_tensor_numel(&s->parameters[i].tensor);
    return (cd_range){0, s->owners[i] == s->options.rank ? numel : 0};
}

/* ---- slices of one vector ---- */

static cddp_status make_buffer(const cd_shard *s, int64_t numel, cddp_tensor *made, cddp_error *err)
{
    void *storage;
    const cddp_tensor *like = &s->parameters[0].tensor;
    CD_TRY(like->device->allocate(like->device, like->dtype, numel + 1, &storage, err));
    *made = cddp_tensor_of(like->device, storage, 0, like->dtype, &numel, 1);
    CD_TRY(like->device->fill(made, 0.0, NULL, err));
    return CDDP_OK;
}

static void release_buffer(cddp_tensor *t)
{
    if (t->device != NULL) {
        t->device->release(t->device, t->dtype, cddp_tensor_numel(t) + 1, t->storage);
        t->device = NULL;
    }
}

/* See Note [Slices of a padded vector] */
static cddp_status slice(cd_shard *s, cddp_error *err)
{
    const cd_shard_options *o = &s->options;
    for (size_t i = 0; i < o->parameter_count; i++)
        s->offsets[i + 1] = s->offsets[i] + cddp_tensor_numel(&s->parameters[i].tensor);
    s->numel = s->offsets[o->parameter_count];
    const int64_t unpadded = s->numel / o->world;
    s->share = cd_slice_length(s->numel, o->world);
    if (o->padding != CDDP_SHARD_PADDING_COUNTED && unpadded == s->share) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "shard.padding has no effect: the %lld elements of optimizer '%s' divide by "
                       "%u ranks, and are not padded",
                       (long long)s->numel, o->optimizer, o->world);
    }
    s->sent = cd_slice_of(s->numel, s->share, o->rank);
    s->stepped = o->padding == CDDP_SHARD_PADDING_COUNTED
                     ? s->sent
                     : cd_slice_of(s->numel, unpadded, o->rank);
    s->sent = o->padding == CDDP_SHARD_PADDING_SHIFTED
                  ? cd_range_clipped(unpadded * o->rank, s->share, s->numel)
                  : s->sent;
    CD_TRY(make_buffer(s, s->share, &s->given, err));
    CD_TRY(make_buffer(s, s->share * o->world, &s->all, err));
    return CDDP_OK;
}

/* What of parameter i lies in a range of the vector, as a range of the parameter. */
static cd_range within(const cd_shard *s, size_t i, cd_range r)
{
    return cd_range_within(r, s->offsets[i], s->offsets[i + 1]);
}

/* ---- life ---- */

static void add_pieces(cd_shard *s)
{
    for (size_t i = 0; i < s->options.parameter_count; i++) {
        const cd_optimizer_parameter *p = &s->parameters[i];
        const bool owns =
            s->options.kind == CDDP_SHARD_PARAMETERS && s->owners[i] == s->options.rank;
        const cd_range own = s->options.kind == CDDP_SHARD_PARAMETERS ? own_of_parameter(s, i)
                                                                      : within(s, i, s->stepped);
        const bool is_whole = owns || own.end - own.first == cddp_tensor_numel(&p->tensor);
        s->found[i] = -1;
        if (own.first == own.end && !owns) continue;
        cd_optimizer_parameter *piece = &s->pieces[s->piece_count];
        *piece = *p;
        if (!is_whole) {
            piece->tensor = range_of(&p->tensor, own.first, own.end - own.first);
            piece->grad = &s->gradients[s->piece_count];
        }
        s->origins[s->piece_count] = (uint32_t)i;
        s->found[i] = (int64_t)s->piece_count++;
    }
}

static cddp_status allocate(cd_shard *s, cddp_error *err)
{
    const size_t count = s->options.parameter_count;
    s->parameters = cd_arena_array(&s->memory, count, sizeof *s->parameters);
    s->found = cd_arena_array(&s->memory, count, sizeof *s->found);
    s->pieces = cd_arena_array(&s->memory, count, sizeof *s->pieces);
    s->gradients = cd_arena_array(&s->memory, count, sizeof *s->gradients);
    s->origins = cd_arena_array(&s->memory, count, sizeof *s->origins);
    s->assigned = cd_arena_array(&s->memory, count, sizeof *s->assigned);
    s->owners = cd_arena_array(&s->memory, count, sizeof *s->owners);
    s->travelling = cd_arena_array(&s->memory, count, sizeof *s->travelling);
    s->roots = cd_arena_array(&s->memory, count, sizeof *s->roots);
    s->offsets = cd_arena_array(&s->memory, count + 1, sizeof *s->offsets);
    CD_TRY(cd_arena_check(&s->memory, err, "a part of optimizer '%s'", s->options.optimizer));
    return CDDP_OK;
}

cddp_status cd_shard_create(const cd_shard_options *options, cd_shard **shard, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    CD_TRY(check_parameters(options, err));
    cd_arena memory;
    cd_arena_init(&memory, options->allocator, MEMORY_BLOCK_BYTES);
    cd_shard *s = cd_arena_push(&memory, sizeof *s);
    CD_TRY(cd_arena_check(&memory, err, "a part of optimizer '%s'", options->optimizer));
    s->memory = memory;
    s->options = *options;
    CD_TRY_OUT(allocate(s, err));
    memcpy(s->parameters, options->parameters, options->parameter_count * sizeof *s->parameters);
    s->options.parameters = s->parameters;
    CD_TRY_OUT(options->kind == CDDP_SHARD_PARAMETERS ? assignment(s, err) : slice(s, err));
    add_pieces(s);
    *shard = s;
    s = NULL;
out:
    cd_shard_destroy(s);
    return status;
}

void cd_shard_destroy(cd_shard *s)
{
    if (s == NULL) return;
    release_buffer(&s->given);
    release_buffer(&s->all);
    cd_arena_fini(&s->memory);
}

const cd_optimizer_parameter *cd_shard_get_pieces(const cd_shard *shard, size_t *count)
{
    *count = shard->piece_count;
    return shard->pieces;
}

int64_t cd_shard_find(const cd_shard *shard, size_t parameter) { return shard->found[parameter]; }

/* ---- a step ---- */

cddp_status cd_shard_take_gradients(cd_shard *s, cddp_error *err)
{
    for (size_t k = 0; k < s->piece_count; k++) {
        const cd_optimizer_parameter *piece = &s->pieces[k], *whole = &s->parameters[s->origins[k]];
        const cddp_grad *grad = whole->grad;
        if (piece->grad == grad) continue;
        s->gradients[k] = (cddp_grad){.kind = CDDP_GRAD_UNDEFINED};
        if (grad->kind == CDDP_GRAD_UNDEFINED) continue;
        if (grad->kind != CDDP_GRAD_DENSE || !cddp_tensor_is_contiguous(&grad->value)) {
            return cd_fail(err, CDDP_E_CONFIG,
                           "optimizer.shard: the gradient of '%s' is %s, so that no slice of it "
                           "can be stepped; use optimizer.shard = \"parameters\"",
                           whole->name,
                           grad->kind != CDDP_GRAD_DENSE ? "sparse" : "not contiguous");
        }
        s->gradients[k].kind = CDDP_GRAD_DENSE;
        s->gradients[k].value = range_of(&grad->value, piece->tensor.offset - whole->tensor.offset,
                                         cddp_tensor_numel(&piece->tensor));
    }
    return CDDP_OK;
}

/* ZRO-02: owner by owner, each in the order in which its parameters were assigned. */
static cddp_status broadcast(cd_shard *s, cddp_group *group, cddp_error *err)
{
    size_t at = 0;
    for (uint32_t owner = 0; owner < s->options.world; owner++) {
        for (size_t i = 0; i < s->options.parameter_count; i++) {
            if (s->owners[s->assigned[i]] != owner) continue;
            s->travelling[at] = s->parameters[s->assigned[i]].tensor;
            s->roots[at++] = owner;
        }
    }
    return CD_PASS(cddp_group_broadcast_each(group, s->travelling, s->roots, at, err));
}

/* Parameters into the slice that is sent. */
static cddp_status give(const cd_shard *s, cddp_error *err)
{
    for (size_t i = 0; i < s->options.parameter_count; i++) {
        const cd_range part = within(s, i, s->sent);
        if (part.first < part.end) {
            const cddp_tensor from =
                range_of(&s->parameters[i].tensor, part.first, part.end - part.first);
            const cddp_tensor to = range_of(&s->given, s->offsets[i] + part.first - s->sent.first,
                                            part.end - part.first);
            CD_TRY(to.device->copy(&to, &from, NULL, err));
        }
    }
    return CDDP_OK;
}

static cddp_status gather(cd_shard *s, cddp_group *group, cddp_error *err)
{
    cddp_work *work = NULL;
    CD_TRY(give(s, err));
    CD_TRY(cddp_group_allgather(group, &s->given, &s->all, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    for (size_t i = 0; i < s->options.parameter_count; i++) {
        const cddp_tensor *whole = &s->parameters[i].tensor;
        const int64_t numel = cddp_tensor_numel(whole);
        const cddp_tensor from = range_of(&s->all, s->offsets[i], numel),
                          to = range_of(whole, 0, numel);
        if (numel > 0) CD_TRY(to.device->copy(&to, &from, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_shard_exchange(cd_shard *s, cddp_group *group, cddp_error *err)
{
    if (s->options.kind == CDDP_SHARD_PARAMETERS) return CD_PASS(broadcast(s, group, err));
    return s->numel > 0 ? gather(s, group, err) : CDDP_OK;
}
