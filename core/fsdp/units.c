/* SPDX-License-Identifier: Apache-2.0 */
/* Construction: which unit has which parameters, that all ranks say the same, and the shards.
**
** A unit has the parameters of its module and of the modules below it that no nested unit has, in
** the order of named_modules() (FSD-14, FPM-01). Names of one storage or one gradient slot are one
** shared parameter. A parameter that modules of two units share is refused: PyTorch makes two
** independent copies of it in silence (FPM-10).
*/
#include "core/fsdp/fsdp.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/fsdp/agree.h"
#include "core/fsdp/move.h"
#include "core/tensor/view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BROADCAST_BYTES ((int64_t)262144000) /* FSD-17 */

static const char *const strategies[CDDP_FSDP_STRATEGY_COUNT] = {"FULL_SHARD", "SHARD_GRAD_OP",
                                                                 "NO_SHARD", "HYBRID_SHARD",
                                                                 "_HYBRID_SHARD_ZERO2"};

static bool is_hybrid(cddp_fsdp_strategy s)
{
    return s == CDDP_FSDP_HYBRID_SHARD || s == CDDP_FSDP_HYBRID_SHARD_ZERO2;
}

/* ---- parameters ---- */

static bool is_ignored(const cddp_fsdp_options *o, const char *name)
{
    for (size_t i = 0; i < o->ignored_count; i++)
        if (o->ignored_parameters[i] != NULL && strcmp(o->ignored_parameters[i], name) == 0)
            return true;
    return false;
}

/* Its elements follow from what it says of itself. Ignored ones may have no device. */
static cddp_status check_form(const char *what, const char *name, const cddp_tensor *t,
                              cddp_error *err)
{
    if (t->device == NULL) return CDDP_OK;
    if (t->dim_count > CDDP_DIMS_MAX)
        return cd_fail(err, CDDP_E_ARG, "%s '%s' has %u dimensions; at most %d are possible", what,
                       name, t->dim_count, CDDP_DIMS_MAX);
    if (t->offset < 0)
        return cd_fail(err, CDDP_E_ARG, "%s '%s' begins %lld elements before its storage", what,
                       name, -(long long)t->offset);
    for (uint32_t d = 0; d < t->dim_count; d++)
        if (t->sizes[d] < 0)
            return cd_fail(err, CDDP_E_ARG, "%s '%s' has size %lld in dimension %u", what, name,
                           (long long)t->sizes[d], d);
    if ((unsigned)t->dtype >= CDDP_DTYPE_COUNT ||
        (t->device->dtypes & CDDP_DTYPE_BIT(t->dtype)) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "%s '%s' has dtype %s (number %d), which its device '%s' has not", what,
                       name, cddp_dtype_name(t->dtype), (int)t->dtype, t->device->name);
    return CDDP_OK;
}

static cddp_status check_parameter(const cddp_parameter *p, size_t i, bool ignored, cddp_error *err)
{
    if (p->name == NULL || p->name[0] == '\0')
        return cd_fail(err, CDDP_E_ARG, "parameter %zu has no name", i);
    CD_TRY(check_form("parameter", p->name, &p->tensor, err));
    if (ignored) return CDDP_OK;
    if (p->tensor.device == NULL ||
        (p->tensor.storage == NULL && cddp_tensor_numel(&p->tensor) > 0))
        return cd_fail(err, CDDP_E_ARG, "parameter '%s' has no %s", p->name,
                       p->tensor.device == NULL ? "tensor" : "storage");
    if (!cddp_dtype_is_float(p->tensor.dtype))
        return cd_fail(err, CDDP_E_CONFIG,
                       "parameter '%s' is %s; a unit has floating ones (FSD-19)", p->name,
                       cddp_dtype_name(p->tensor.dtype));
    if (!cddp_tensor_is_contiguous(&p->tensor))
        return cd_fail(err, CDDP_E_CONFIG, "parameter '%s' is not contiguous", p->name);
    if (p->requires_grad && p->grad == NULL)
        return cd_fail(err, CDDP_E_ARG,
                       "parameter '%s' requires a gradient but has no gradient slot", p->name);
    if (p->expect_sparse)
        return cd_fail(err, CDDP_E_CONFIG, "the gradient of '%s' is sparse: no unit takes it",
                       p->name);
    return CDDP_OK;
}

static cddp_status copy_parameters(cddp_fsdp *f, const cddp_fsdp_options *o, cddp_error *err)
{
    const size_t n = f->parameter_count = o->parameter_count;
    f->parameters = cd_arena_array(&f->arena, n + 1, sizeof *f->parameters);
    f->unit_of = cd_arena_array(&f->arena, n + 1, sizeof *f->unit_of);
    f->member_of = cd_arena_array(&f->arena, n + 1, sizeof *f->member_of);
    uint64_t *digests = cd_arena_array(&f->arena, n + 1, sizeof *digests);
    CD_TRY(cd_arena_check(&f->arena, err, "%zu parameters", n));
    for (size_t i = 0; i < n; i++) {
        const cddp_parameter *p = &o->parameters[i];
        CD_TRY(check_parameter(p, i, p->name != NULL && is_ignored(o, p->name), err));
        digests[i] = cd_hash_text(p->name);
        for (size_t k = 0; k < i; k++)
            if (digests[k] == digests[i] && strcmp(f->parameters[k].name, p->name) == 0)
                return cd_fail(err, CDDP_E_ARG, "two parameters are named '%s': %zu and %zu",
                               p->name, k, i);
        f->parameters[i] = *p;
        f->parameters[i].name = cd_arena_strdup(&f->arena, p->name);
        CD_TRY(cd_arena_check(&f->arena, err, "the name of '%s'", p->name));
        f->unit_of[i] = -1;
    }
    for (size_t i = 0; i < o->ignored_count; i++) {
        const char *name = o->ignored_parameters[i];
        size_t k = 0;
        while (name != NULL && k < n && strcmp(f->parameters[k].name, name) != 0) k++;
        if (name == NULL || k == n)
            return cd_fail(err, CDDP_E_CONFIG,
                           "'%s' is to be ignored, but no parameter has this name",
                           name != NULL ? name : "(none)");
    }
    return CDDP_OK;
}

/* Of the memory that a tensor's elements lie in: bytes from its storage on. */
static cd_range bytes_of(const cddp_tensor *t)
{
    const int64_t element = (int64_t)cddp_dtype_bytes(t->dtype);
    int64_t span = 1;
    for (uint32_t d = 0; d < t->dim_count; d++) span += (t->sizes[d] - 1) * t->strides[d];
    return (cd_range){t->offset * element, (t->offset + span) * element};
}

/* Of one storage, or of storages that are host memory. */
static bool overlaps(const cddp_tensor *a, const cddp_tensor *b)
{
    const bool are_addresses = (a->device->flags & b->device->flags & CDDP_DEVICE_HOST) != 0;
    if (a->storage != b->storage && !are_addresses) return false;
    if (a->storage == NULL || b->storage == NULL) return false;
    if (cddp_tensor_numel(a) == 0 || cddp_tensor_numel(b) == 0) return false;
    const cd_range left = bytes_of(a), right = bytes_of(b);
    const uintptr_t p = (uintptr_t)a->storage, q = (uintptr_t)b->storage;
    return p + (uintptr_t)left.first < q + (uintptr_t)right.end &&
           q + (uintptr_t)right.first < p + (uintptr_t)left.end;
}

static bool is_same_storage(const cddp_tensor *a, const cddp_tensor *b)
{
    const cd_range left = bytes_of(a), right = bytes_of(b);
    const uintptr_t p = (uintptr_t)a->storage, q = (uintptr_t)b->storage;
    return p + (uintptr_t)left.first == q + (uintptr_t)right.first &&
           cddp_tensor_numel(a) == cddp_tensor_numel(b) && a->dtype == b->dtype;
}

static bool has_same_shape(const cddp_tensor *a, const cddp_tensor *b)
{
    bool is_same = a->dim_count == b->dim_count;
    for (uint32_t d = 0; is_same && d < a->dim_count; d++) is_same = a->sizes[d] == b->sizes[d];
    return is_same;
}

/* Of one storage: both names are one parameter in all that matters. */
static cddp_status check_same(const cddp_fsdp_options *o, const cddp_parameter *q,
                              const cddp_parameter *p, cddp_error *err)
{
    char left[96], right[96];
    const bool is_left_ignored = is_ignored(o, q->name);
    if (is_left_ignored != is_ignored(o, p->name))
        return cd_fail(err, CDDP_E_CONFIG,
                       "'%s' is ignored and '%s' is not, and both are one parameter: it would be "
                       "trained twice (FSD-15, FPM-10)",
                       is_left_ignored ? q->name : p->name, is_left_ignored ? p->name : q->name);
    if (!has_same_shape(&q->tensor, &p->tensor))
        return cd_fail(err, CDDP_E_CONFIG,
                       "'%s' is [%s] and '%s' is [%s], of one storage: a shared parameter has one "
                       "shape",
                       q->name,
                       cd_sizes_print(q->tensor.sizes, q->tensor.dim_count, left, sizeof left),
                       p->name,
                       cd_sizes_print(p->tensor.sizes, p->tensor.dim_count, right, sizeof right));
    if (q->requires_grad != p->requires_grad)
        return cd_fail(err, CDDP_E_CONFIG,
                       "'%s' requires a gradient and '%s' does not, and both are one parameter",
                       q->requires_grad ? q->name : p->name, q->requires_grad ? p->name : q->name);
    return CDDP_OK;
}

/* The first parameter that is the same as i; i: none. */
static cddp_status find_first(const cddp_fsdp *f, const cddp_fsdp_options *o, size_t i,
                              uint32_t *first, cddp_error *err)
{
    const cddp_parameter *p = &f->parameters[i];
    *first = (uint32_t)i;
    const bool is_address =
        p->tensor.device != NULL && (p->tensor.device->flags & CDDP_DEVICE_HOST) != 0;
    for (size_t k = 0; k < i && p->tensor.device != NULL; k++) {
        const cddp_parameter *q = &f->parameters[k];
        const bool same_slot = p->grad != NULL && p->grad == q->grad;
        if (!same_slot && !is_address && p->tensor.storage != q->tensor.storage) continue;
        if (q->tensor.device == NULL) continue;
        const bool meets = overlaps(&q->tensor, &p->tensor);
        const bool is_same = meets && is_same_storage(&q->tensor, &p->tensor);
        if ((!meets && !same_slot) || (is_ignored(o, p->name) && is_ignored(o, q->name))) continue;
        if (meets && !is_same)
            return cd_fail(err, CDDP_E_CONFIG,
                           "'%s' and '%s' overlap in memory, and neither is the other: a shared "
                           "parameter has all of its storage in common, another one none of it",
                           q->name, p->name);
        if (!is_same || (p->grad != NULL && q->grad != NULL && !same_slot))
            return cd_fail(err, CDDP_E_CONFIG,
                           "'%s' and '%s' share their %s but not their %s: a shared parameter has "
                           "both in common",
                           q->name, p->name, same_slot ? "gradient slot" : "storage",
                           same_slot ? "storage" : "gradient slot");
        CD_TRY(check_same(o, q, p, err));
        *first = (uint32_t)k;
        return CDDP_OK;
    }
    return CDDP_OK;
}

/* Parameters are copied, and buffers stay the program's: a view of one in the other would be left
** behind. */
static cddp_status check_buffer(const cddp_fsdp *f, const cddp_fsdp_options *o, size_t b,
                                cddp_error *err)
{
    const cddp_buffer *buffer = &o->buffers[b];
    CD_TRY(check_form("buffer", buffer->name, &buffer->tensor, err));
    for (size_t k = 0; k < b; k++)
        if (strcmp(o->buffers[k].name, buffer->name) == 0)
            return cd_fail(err, CDDP_E_ARG, "two buffers are named '%s': %zu and %zu", buffer->name,
                           k, b);
    for (size_t i = 0; i < f->parameter_count; i++) {
        const cddp_parameter *p = &f->parameters[i];
        if (strcmp(p->name, buffer->name) == 0)
            return cd_fail(err, CDDP_E_ARG,
                           "parameter %zu and buffer %zu are both named '%s': a state has one of "
                           "each name",
                           i, b, buffer->name);
        if (p->tensor.device == NULL || is_ignored(o, p->name) ||
            !overlaps(&p->tensor, &buffer->tensor))
            continue;
        return cd_fail(
            err, CDDP_E_CONFIG,
            "buffer '%s' overlaps parameter '%s' in memory: the parameter is cut and the "
            "buffer is not (FSD-20)",
            buffer->name, p->name);
    }
    return CDDP_OK;
}

static cddp_status find_shared(cddp_fsdp *f, const cddp_fsdp_options *o, cddp_error *err)
{
    f->first_of = cd_arena_array(&f->arena, f->parameter_count + 1, sizeof *f->first_of);
    CD_TRY(cd_arena_check(&f->arena, err, "%zu parameters", f->parameter_count));
    for (size_t i = 0; i < f->parameter_count; i++)
        CD_TRY(find_first(f, o, i, &f->first_of[i], err));
    for (size_t b = 0; b < o->buffer_count; b++) CD_TRY(check_buffer(f, o, b, err));
    return CDDP_OK;
}

/* ---- units ---- */

static cddp_status mark_units(cddp_fsdp *f, const cddp_fsdp_options *o, bool *is_unit,
                              cddp_error *err)
{
    int64_t *numels = cd_arena_array(&f->arena, f->parameter_count + 1, sizeof *numels);
    CD_TRY(cd_arena_check(&f->arena, err, "%zu sizes", f->parameter_count));
    for (size_t i = 0; i < f->parameter_count; i++)
        numels[i] =
            is_ignored(o, f->parameters[i].name) ? 0 : cddp_tensor_numel(&f->parameters[i].tensor);
    const cd_fsdp_sizes sizes = {numels, f->parameter_count};
    return CD_PASS(cd_fsdp_tree_wrap(&f->tree, &sizes, &o->wrap, f->allocator, is_unit, err));
}

static cddp_status name_units(cddp_fsdp *f, const bool *is_unit, cddp_error *err)
{
    for (size_t m = 0; m < f->tree.count; m++) f->unit_count += is_unit[m];
    f->units = cd_arena_array(&f->arena, f->unit_count, sizeof *f->units);
    f->progress = cd_arena_array(&f->arena, f->unit_count, sizeof *f->progress);
    f->post_forward = cd_arena_array(&f->arena, f->unit_count, sizeof *f->post_forward);
    f->reducing = cd_arena_array(&f->arena, f->unit_count + 1, sizeof *f->reducing);
    CD_TRY(cd_arena_check(&f->arena, err, "%u units", f->unit_count));
    uint32_t next = 0;
    for (size_t m = 0; m < f->tree.count; m++) {
        const int64_t parent = f->tree.modules[m].parent;
        f->unit_of_module[m] = is_unit[m] ? next : f->unit_of_module[parent];
        if (!is_unit[m]) continue;
        f->units[next] = (cd_fsdp_unit){.name = f->tree.modules[m].name,
                                        .index = next,
                                        .module = (uint32_t)m,
                                        .memory = &f->memory,
                                        .ahead = &f->ahead};
        f->progress[next].post_position = -1;
        next++;
    }
    return CDDP_OK;
}

/* Gives parameter i to a unit; called in the order of modules. Shared ones come again. */
static cddp_status add_member(cddp_fsdp *f, const cddp_fsdp_options *o, uint32_t i, uint32_t unit,
                              cddp_error *err)
{
    cd_fsdp_unit *u = &f->units[unit];
    if (is_ignored(o, f->parameters[i].name)) return CDDP_OK;
    /* A later name may come first in the order of modules. */
    for (size_t k = 0; k < f->parameter_count && f->unit_of[i] < 0; k++) {
        if (f->unit_of[k] < 0 || f->first_of[k] != f->first_of[i]) continue;
        f->unit_of[i] = f->unit_of[k];
        f->member_of[i] = f->member_of[k];
    }
    if (f->unit_of[i] >= 0) {
        if (f->unit_of[i] == (int64_t)unit) return CDDP_OK;
        return cd_fail(err, CDDP_E_CONFIG,
                       "units '%s' and '%s' share parameter '%s': a unit above both must have it",
                       cd_fsdp_unit_words(f, (uint32_t)f->unit_of[i]), cd_fsdp_unit_words(f, unit),
                       f->parameters[i].name);
    }
    f->unit_of[i] = unit;
    f->member_of[i] = (uint32_t)u->layout.member_count;
    cd_fsdp_member *m = &u->layout.members[u->layout.member_count++];
    *m = (cd_fsdp_member){.name = f->parameters[i].name,
                          .ordinal = i,
                          .requires_grad = f->parameters[i].requires_grad,
                          .like = f->parameters[i].tensor,
                          .grad = f->parameters[i].grad};
    return CDDP_OK;
}

static cddp_status add_members(cddp_fsdp *f, const cddp_fsdp_options *o, cddp_error *err)
{
    for (size_t m = 0; m < f->tree.count; m++) {
        cd_fsdp_unit *u = &f->units[f->unit_of_module[m]];
        u->layout.member_count += f->tree.modules[m].parameter_count;
    }
    for (uint32_t k = 0; k < f->unit_count; k++) {
        cd_fsdp_layout *l = &f->units[k].layout;
        l->members = cd_arena_array(&f->arena, l->member_count + 1, sizeof *l->members);
        CD_TRY(cd_arena_check(&f->arena, err, "the parameters of %u units", f->unit_count));
        l->member_count = 0;
    }
    for (size_t m = 0; m < f->tree.count; m++)
        for (size_t i = 0; i < f->tree.modules[m].parameter_count; i++)
            CD_TRY(add_member(f, o, f->tree.modules[m].parameters[i], f->unit_of_module[m], err));
    for (size_t i = 0; i < f->parameter_count; i++)
        if (f->unit_of[i] < 0 && !is_ignored(o, f->parameters[i].name))
            return cd_fail(err, CDDP_E_CONFIG, "parameter '%s' belongs to no module",
                           f->parameters[i].name);
    return CDDP_OK;
}

/* One dtype, one device, and one requires_grad where the whole vector is one parameter (FSD-19). */
static cddp_status check_members(const cd_fsdp_unit *u, const cddp_fsdp_options *o, cddp_error *err)
{
    const cd_fsdp_member *first = &u->layout.members[0];
    for (size_t i = 0; i < u->layout.member_count; i++) {
        const cd_fsdp_member *m = &u->layout.members[i];
        if (m->like.dtype != first->like.dtype)
            return cd_fail(err, CDDP_E_CONFIG,
                           "a unit has parameters of one dtype (FSD-19): '%s' is %s, '%s' is %s",
                           first->name, cddp_dtype_name(first->like.dtype), m->name,
                           cddp_dtype_name(m->like.dtype));
        if (m->like.device != first->like.device)
            return cd_fail(err, CDDP_E_CONFIG,
                           "a unit lies on one device: '%s' is on %s, '%s' on %s", first->name,
                           first->like.device->name, m->name, m->like.device->name);
        if (m->requires_grad != first->requires_grad && o->layout == CDDP_FSDP_FLAT &&
            !o->use_orig_params)
            return cd_fail(err, CDDP_E_CONFIG,
                           "'%s' requires a gradient and '%s' does not: a flat parameter is one "
                           "or the other; wrap them apart, or set use_orig_params (FSD-19)",
                           m->requires_grad ? m->name : first->name,
                           m->requires_grad ? first->name : m->name);
        if (o->layout == CDDP_FSDP_ROWS && m->like.dim_count == 0)
            return cd_fail(err, CDDP_E_CONFIG,
                           "'%s' has no dimension to be cut along (FS2-01); use CDDP_FSDP_FLAT",
                           m->name);
    }
    return CDDP_OK;
}

static const cddp_fsdp_unit_options *options_of(const cddp_fsdp_options *o, const char *module)
{
    for (size_t i = 0; i < o->unit_options_count; i++)
        if (o->unit_options[i].module != NULL && strcmp(o->unit_options[i].module, module) == 0)
            return &o->unit_options[i];
    return NULL;
}

static cddp_status check_dtype(const cd_fsdp_unit *u, cddp_dtype dtype, const char *which,
                               cddp_error *err)
{
    if (cddp_dtype_is_float(dtype) && (u->device->dtypes & CDDP_DTYPE_BIT(dtype)) != 0)
        return CDDP_OK;
    return cd_fail(err, CDDP_E_CONFIG, "%s of unit '%s' is %s, which %s", which, u->name,
                   cddp_dtype_name(dtype),
                   cddp_dtype_is_float(dtype) ? "its device has not" : "is no floating dtype");
}

/* FSD-13, HSD-05: where a group has one member, nothing is cut or copied over it. */
static void choose_groups(cddp_fsdp *f, cd_fsdp_unit *u)
{
    const bool sharded = u->strategy != CDDP_FSDP_NO_SHARD && cddp_group_size(f->group) > 1;
    const bool hybrid = is_hybrid(u->strategy);
    u->shards = sharded ? f->group : NULL;
    u->replicas = hybrid ? f->replicate_group : sharded ? NULL : f->group;
    if (!sharded) u->strategy = CDDP_FSDP_NO_SHARD;
    u->shard_rank = sharded ? cddp_group_rank(f->group) : 0;
    u->layout.world = sharded ? cddp_group_size(f->group) : 1;
}

/* FS2-11: a factor that is given counts once, where the sum begins. */
static uint32_t factor_of_replicas(const cd_fsdp_unit *u, uint32_t factor)
{
    if (u->replicas == NULL) return 1;
    if (factor == 0) return cddp_group_size(u->replicas);
    return cd_fsdp_unit_is_sharded(u) ? 1 : factor;
}

/* FMP-05, FMP-06: what enters and leaves forward, also of a root without parameters. */
static cddp_status choose_casts(cd_fsdp_unit *u, const cddp_fsdp_mixed_precision *mixed,
                                cddp_error *err)
{
    const bool is_root = u->index == 0;
    const bool casts = mixed->cast_forward_inputs || (is_root && mixed->cast_root_forward_inputs);
    u->input_dtype = casts ? mixed->param_dtype : CDDP_DTYPE_COUNT;
    u->output_dtype = mixed->output_dtype;
    if (u->output_dtype == CDDP_DTYPE_COUNT || cddp_dtype_is_float(u->output_dtype)) return CDDP_OK;
    return cd_fail(err, CDDP_E_CONFIG,
                   "output_dtype of unit '%s' is %s, which is no floating dtype", u->name,
                   cddp_dtype_name(u->output_dtype));
}

/* FSD-18: parameters of the host move to device_id; none moves from one device to another. */
static cddp_status choose_device(cd_fsdp_unit *u, const cddp_fsdp_options *o, cddp_error *err)
{
    const cd_fsdp_member *first = &u->layout.members[0];
    const cddp_device *there = first->like.device;
    u->device = o->device_id != NULL ? o->device_id : there;
    if (!cd_fsdp_may_move(there, u->device))
        return cd_fail(err, CDDP_E_CONFIG,
                       "device_id is %s%s, and '%s' is on %s: units move from the host to their "
                       "device, and from no other device (FSD-18)",
                       u->device->name, u->device->name == there->name ? " (another one)" : "",
                       first->name, there->name);
    if (o->cpu_offload.offload_params && (u->device->flags & CDDP_DEVICE_VALUES) == 0 &&
        (u->device->flags & CDDP_DEVICE_ASYNC) != 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "offload_params: device %s has no numbers that the host could keep",
                       u->device->name);
    return CDDP_OK;
}

/* ZER-06: too small to be cut. Its size does not depend on the ranks. */
static bool is_persistent(cd_fsdp_unit *u, const cddp_fsdp_options *o, int64_t alignment)
{
    u->layout.world = 1;
    cd_fsdp_layout_place(&u->layout, alignment);
    return u->layout.numel < o->persistence_threshold;
}

static cddp_status complete_unit(cddp_fsdp *f, cd_fsdp_unit *u, const cddp_fsdp_options *o,
                                 cddp_error *err)
{
    const cddp_fsdp_unit_options *own = options_of(o, u->name);
    const cddp_fsdp_mixed_precision *mixed =
        own != NULL ? &own->mixed_precision : &o->mixed_precision;
    u->strategy = own != NULL ? own->strategy : o->strategy;
    if ((unsigned)u->strategy >= CDDP_FSDP_STRATEGY_COUNT)
        return cd_fail(err, CDDP_E_ARG, "unit '%s': no such strategy: %d", u->name,
                       (int)u->strategy);
    if (is_hybrid(u->strategy) != (f->replicate_group != NULL))
        return cd_fail(
            err, CDDP_E_CONFIG,
            "unit '%s' is %s, and replicate_group is %s: hybrid strategies have one, the "
            "others do not (FSD-12)",
            cd_fsdp_unit_words(f, u->index), strategies[u->strategy],
            f->replicate_group != NULL ? "given" : "not");
    CD_TRY(choose_casts(u, mixed, err));
    u->layout.kind = o->layout;
    if (cd_fsdp_unit_is_empty(u)) {
        choose_groups(f, u);
        cd_fsdp_layout_place(&u->layout, 1);
        return CDDP_OK;
    }
    CD_TRY(check_members(u, o, err));
    CD_TRY(choose_device(u, o, err));
    u->dtype = u->layout.members[0].like.dtype;
    u->param_dtype = mixed->param_dtype != CDDP_DTYPE_COUNT ? mixed->param_dtype : u->dtype;
    u->reduce_dtype =
        mixed->reduce_dtype != CDDP_DTYPE_COUNT ? mixed->reduce_dtype : u->param_dtype; /* FMP-01 */
    CD_TRY(check_dtype(u, u->param_dtype, "param_dtype", err));
    CD_TRY(check_dtype(u, u->reduce_dtype, "reduce_dtype", err));
    u->keeps_low_precision_grads = mixed->keep_low_precision_grads;
    for (size_t i = 0; i < u->layout.member_count; i++)
        u->requires_grad = u->requires_grad || u->layout.members[i].requires_grad;
    /* FPM-04: 16 bytes, in the dtype of the forward. */
    const bool aligns = o->use_orig_params && o->layout == CDDP_FSDP_FLAT;
    const int64_t alignment = aligns ? (int64_t)(16 / cddp_dtype_bytes(u->param_dtype)) : 1;
    if (is_persistent(u, o, alignment)) u->strategy = CDDP_FSDP_NO_SHARD;
    choose_groups(f, u);
    cd_fsdp_layout_place(&u->layout, alignment);
    const uint32_t factor = o->gradient_divide_factor;
    u->of_shards = cd_fsdp_divisor_of(factor != 0 ? factor : u->layout.world);
    u->of_replicas = cd_fsdp_divisor_of(factor_of_replicas(u, factor));
    return CDDP_OK;
}

cddp_status cd_fsdp_make_units(cddp_fsdp *f, const cddp_fsdp_options *o, cddp_error *err)
{
    CD_TRY(copy_parameters(f, o, err));
    CD_TRY(find_shared(f, o, err));
    CD_TRY(cd_fsdp_tree_init(&f->tree, o, &f->arena, err));
    bool *is_unit = cd_arena_array(&f->arena, f->tree.count, sizeof *is_unit);
    f->unit_of_module = cd_arena_array(&f->arena, f->tree.count, sizeof *f->unit_of_module);
    CD_TRY(cd_arena_check(&f->arena, err, "%zu modules", f->tree.count));
    CD_TRY(mark_units(f, o, is_unit, err));
    CD_TRY(name_units(f, is_unit, err));
    CD_TRY(add_members(f, o, err));
    for (uint32_t k = 0; k < f->unit_count; k++) CD_TRY(complete_unit(f, &f->units[k], o, err));
    for (size_t i = 0; i < o->unit_options_count; i++) {
        const char *module = o->unit_options[i].module;
        uint32_t k = 0;
        while (module != NULL && k < f->unit_count && strcmp(f->units[k].name, module) != 0) k++;
        if (module == NULL || k == f->unit_count)
            return cd_fail(err, CDDP_E_CONFIG, "unit_options names '%s', which is no unit",
                           module != NULL ? module : "(none)");
        if (options_of(o, module) != &o->unit_options[i])
            return cd_fail(err, CDDP_E_CONFIG, "unit_options names '%s' twice: one unit has one",
                           cd_fsdp_unit_words(f, k));
    }
    return CDDP_OK;
}

/* ---- what ranks say ---- */

static void append_unit(cd_text *t, const cddp_fsdp *f, const cd_fsdp_unit *u)
{
    cd_text_printf(t, "unit '%s' %s of %zu parameters", cd_fsdp_unit_words(f, u->index),
                   strategies[u->strategy], u->layout.member_count);
    if (!cd_fsdp_unit_is_empty(u))
        cd_text_printf(t, " param_dtype %s reduce_dtype %s", cddp_dtype_name(u->param_dtype),
                       cddp_dtype_name(u->reduce_dtype));
    if (u->input_dtype != CDDP_DTYPE_COUNT)
        cd_text_printf(t, " casts inputs to %s", cddp_dtype_name(u->input_dtype));
    if (u->output_dtype != CDDP_DTYPE_COUNT)
        cd_text_printf(t, " output_dtype %s", cddp_dtype_name(u->output_dtype));
    cd_text_printf(t, "%s\n", u->keeps_low_precision_grads ? " keep_low_precision_grads" : "");
    for (size_t i = 0; i < u->layout.member_count; i++) {
        const cd_fsdp_member *m = &u->layout.members[i];
        cd_text_printf(t, "parameter '%s' %s [", m->name, cddp_dtype_name(m->like.dtype));
        for (uint32_t d = 0; d < m->like.dim_count; d++)
            cd_text_printf(t, "%s%lld", d > 0 ? "," : "", (long long)m->like.sizes[d]);
        cd_text_printf(t, "]%s\n", m->requires_grad ? " requires_grad" : " frozen");
    }
}

static void describe(cd_text *t, const cddp_fsdp *f, const cddp_fsdp_options *o)
{
    cd_text_printf(t,
                   "options layout=%d backward_prefetch=%d forward_prefetch=%d order_check=%d "
                   "sync_module_states=%d use_orig_params=%d gradient_divide_factor=%u "
                   "limit_all_gathers=%d offload_params=%d prefetch_numel=%lld live_numel_max=%lld "
                   "persistence_threshold=%lld\n",
                   (int)o->layout, (int)o->backward_prefetch, o->forward_prefetch,
                   (int)o->order_check, o->sync_module_states, o->use_orig_params,
                   o->gradient_divide_factor, o->limit_all_gathers, o->cpu_offload.offload_params,
                   (long long)o->prefetch_numel, (long long)o->live_numel_max,
                   (long long)o->persistence_threshold);
    cd_text_printf(t, "a shard group of %u ranks and %u replicas of it\n",
                   cddp_group_size(f->group),
                   f->replicate_group != NULL ? cddp_group_size(f->replicate_group) : 1);
    cd_text_printf(t, "%u units\n", f->unit_count);
    for (uint32_t k = 0; k < f->unit_count; k++)
        cd_text_printf(t, "unit '%s'\n", cd_fsdp_unit_words(f, k));
    for (uint32_t k = 0; k < f->unit_count; k++) append_unit(t, f, &f->units[k]);
    for (size_t i = 0; i < f->buffer_count && o->sync_module_states; i++) {
        cd_text_printf(t, "buffer '%s' %s [", f->buffers[i].name,
                       cddp_dtype_name(f->buffers[i].tensor.dtype));
        for (uint32_t d = 0; d < f->buffers[i].tensor.dim_count; d++)
            cd_text_printf(t, "%s%lld", d > 0 ? "," : "", (long long)f->buffers[i].tensor.sizes[d]);
        cd_text_printf(t, "]\n");
    }
}

static const cddp_device *device_of(const cddp_fsdp *f)
{
    for (uint32_t k = 0; k < f->unit_count; k++)
        if (f->units[k].device != NULL) return f->units[k].device;
    return NULL;
}

/* In the shard group, then among replicas. A rank whose shard group disagrees takes part in the
** second exchange, and says so there: its replicas would wait for it. */
static cddp_status agree(const cddp_fsdp *f, cd_fsdp_statement *mine, cd_text *text,
                         cddp_error *err)
{
    cddp_error own = CDDP_ERROR_INIT;
    mine->text = text->bytes;
    mine->bytes = text->length;
    const cddp_status first = cd_fsdp_agree(f->group, mine, err);
    if (f->replicate_group == NULL || (first != CDDP_OK && first != CDDP_E_MISMATCH))
        return CD_PASS(first);
    if (first == CDDP_OK) /* replicas of one shard are the same rank of their shard groups */
        cd_text_printf(text, "shard %u of %u\n", cddp_group_rank(f->group),
                       cddp_group_size(f->group));
    else
        cd_text_printf(text, "a shard group whose ranks differ\n");
    if (text->failed)
        return cd_fail_memory(err, "a description of %zu parameters", f->parameter_count);
    mine->text = text->bytes;
    mine->bytes = text->length;
    mine->subject = "replicas shard different models";
    const cddp_status second =
        cd_fsdp_agree(f->replicate_group, mine, first == CDDP_OK ? err : &own);
    return CD_PASS(first != CDDP_OK ? first : second);
}

cddp_status cd_fsdp_compare(cddp_fsdp *f, const cddp_fsdp_options *o, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_text text = {.allocator = f->allocator};
    const size_t world = cddp_group_size(f->group);
    cd_control_spec spec = {.allocator = f->allocator,
                            .group = f->group,
                            .device = device_of(f),
                            .dtype = CDDP_I64,
                            .numel = 1};
    cd_fsdp_statement mine = {.allocator = f->allocator,
                              .device = spec.device,
                              .subject = "ranks shard different models"};
    f->numbers[0] = cddp_group_sequence(f->group);
    if (f->replicate_group != NULL) f->numbers[1] = cddp_group_sequence(f->replicate_group);
    CD_TRY_OUT(cd_control_init(&f->one, &spec, err));
    spec.numel = (int64_t)world;
    CD_TRY_OUT(cd_control_init(&f->all, &spec, err));
    if (f->replicate_group != NULL) {
        spec.group = f->replicate_group;
        spec.numel = (int64_t)cddp_group_size(f->replicate_group);
        CD_TRY_OUT(cd_control_init(&f->all_replicas, &spec, err));
    }
    describe(&text, f, o);
    if (text.failed) {
        status = cd_fail_memory(err, "a description of %zu parameters", f->parameter_count);
        goto out;
    }
    status = agree(f, &mine, &text, err);
out:
    cd_text_fini(&text);
    return status;
}

/* ---- contents ---- */

static cddp_status broadcast_in(cddp_group *group, const cddp_tensor *flat, cddp_error *err)
{
    const int64_t numel = cddp_tensor_numel(flat);
    const int64_t most = BROADCAST_BYTES / (int64_t)cddp_dtype_bytes(flat->dtype);
    for (int64_t at = 0; at < numel; at += most) {
        cddp_work *work = NULL;
        const cddp_tensor chunk =
            cddp_tensor_slice(flat, at, numel - at < most ? numel - at : most);
        CD_TRY(cddp_group_broadcast(group, &chunk, 0, &work, err));
        CD_TRY(cddp_work_wait(work, 0, err));
    }
    return CDDP_OK;
}

/* HSD-04: over the replicas, then in each shard group. */
static cddp_status broadcast(const cddp_fsdp *f, const cddp_tensor *flat, cddp_error *err)
{
    if (f->replicate_group != NULL) CD_TRY(broadcast_in(f->replicate_group, flat, err));
    return CD_PASS(broadcast_in(f->group, flat, err));
}

/* One unit is whole on its device at a time. */
static cddp_status cut_unit(cddp_fsdp *f, cd_fsdp_unit *u, bool sync, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_fsdp_layout *l = &u->layout;
    cd_fsdp_buffer whole = {.capacity = 0};
    const bool is_offloaded = f->is_offloaded && (u->device->flags & CDDP_DEVICE_ASYNC) != 0;
    const cddp_device *home = is_offloaded ? f->host : u->device;
    const cd_fsdp_wish wish = {.device = u->device, .dtype = u->dtype, .numel = l->full_numel};
    CD_TRY_OUT(cd_fsdp_memory_take(&f->memory, &wish, &whole, err));
    if (l->kind == CDDP_FSDP_FLAT) CD_TRY_OUT(cd_fsdp_layout_fill_gaps(l, &whole.tensor, err));
    for (size_t i = 0; i < l->member_count; i++) {
        const cddp_tensor to = cd_fsdp_layout_view(l, i, &whole.tensor);
        if (l->members[i].numel > 0) CD_TRY_OUT(cd_fsdp_move(&to, &l->members[i].like, NULL, err));
    }
    if (sync) CD_TRY_OUT(broadcast(f, &whole.tensor, err));
    CD_TRY_OUT(cd_fsdp_unit_make_shard(u, home, &whole.tensor, err));
    u->grad.requires_grad = false;
out:
    cd_fsdp_memory_give(&f->memory, &whole);
    return status;
}

/* FSD-18: what forward computes with is then a copy, until the state is written. */
static cddp_status move_buffers(cddp_fsdp *f, const cddp_device *device, cddp_error *err)
{
    for (size_t i = 0; device != NULL && i < f->buffer_count; i++) {
        const cddp_tensor *t = &f->buffers[i].tensor;
        const int64_t numel = cddp_tensor_numel(t);
        void *storage = NULL;
        if (t->device == device) continue;
        if (!cd_fsdp_may_move(t->device, device))
            return cd_fail(err, CDDP_E_CONFIG,
                           "device_id is %s, and buffer '%s' is on %s: buffers move from the host "
                           "to their device, and from no other device (FSD-18)",
                           device->name, f->buffers[i].name, t->device->name);
        CD_TRY(device->allocate(device, t->dtype, numel > 0 ? numel : 1, &storage, err));
        f->buffer_copies[i] = *t;
        f->buffer_copies[i].device = device;
        f->buffer_copies[i].storage = storage;
        f->buffer_copies[i].offset = 0;
        CD_TRY(cd_fsdp_move(&f->buffer_copies[i], t, NULL, err));
    }
    return CDDP_OK;
}

/* The program may give back its storage when the wrapper is there. */
static cddp_status await_moves(const cddp_fsdp *f, cddp_error *err)
{
    const cddp_device *d = device_of(f);
    if (d == NULL || (d->flags & CDDP_DEVICE_QUEUES_HOST) == 0) return CDDP_OK;
    return CD_PASS(d->stream_synchronize(d, NULL, err));
}

cddp_status cd_fsdp_cut(cddp_fsdp *f, const cddp_fsdp_options *o, cddp_error *err)
{
    f->is_offloaded = o->cpu_offload.offload_params;
    CD_TRY(move_buffers(f, o->device_id, err));
    for (size_t i = 0; i < f->buffer_count && o->sync_module_states; i++) {
        const cddp_tensor *t = cddp_fsdp_buffer(f, i);
        const int64_t numel = cddp_tensor_numel(t);
        const cddp_tensor flat =
            cddp_tensor_of(t->device, t->storage, t->offset, t->dtype, &numel, 1);
        if (numel > 0) CD_TRY(broadcast(f, &flat, err));
    }
    for (uint32_t k = 0; k < f->unit_count; k++)
        if (!cd_fsdp_unit_is_empty(&f->units[k]))
            CD_TRY(cut_unit(f, &f->units[k], o->sync_module_states, err));
    /* What was only needed to cut goes back to the device. */
    cd_fsdp_memory_trim(&f->memory);
    f->memory.full_bytes_peak = 0;
    if (o->device_id != NULL || f->is_offloaded) CD_TRY(await_moves(f, err));
    for (size_t i = 0; i < f->parameter_count; i++) {
        if (f->unit_of[i] >= 0) f->parameters[i].tensor.storage = NULL;
    }
    for (uint32_t k = 0; k < f->unit_count; k++)
        for (size_t i = 0; i < f->units[k].layout.member_count; i++)
            f->units[k].layout.members[i].like.storage = NULL;
    return CDDP_OK;
}
