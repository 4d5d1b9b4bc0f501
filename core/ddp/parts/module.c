/* SPDX-License-Identifier: Apache-2.0 */
/* Building the reducer's parameter list: registration order, trainable, not ignored, each parameter
** once (INI-05).
**
** Two names are the same parameter when they share their gradient slot. A shared parameter is left
** out only when all of its names are ignored: the first name that is not registers it (IGN-04).
**
** Names are canonical ("p", never ".p"), for every consumer alike: a deviation from IGN-03.
*/
#include "core/ddp/parts/module.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <stdlib.h>
#include <string.h>

#define CD_ELEMENT_BYTES_MAX 16 /* of any dtype, with room */
#define BLOCK_BYTES 1024        /* forms and names of buffers share blocks of this size */

static bool is_listed(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (names[i] != NULL && strcmp(names[i], name) == 0) return true;
    return false;
}

static bool is_ignored_name(const cddp_ddp_options *o, const char *name)
{
    return is_listed(o->parameters_and_buffers_to_ignore, o->ignore_count, name) ||
           is_listed(o->delay_all_reduce_named_params, o->delay_all_reduce_count, name);
}

cddp_status cd_wrapped_check_tensor(const cddp_tensor *tensor, const char *name, cddp_error *err)
{
    if (tensor->dim_count > CDDP_DIMS_MAX)
        return cd_fail(err, CDDP_E_ARG, "'%s' has %u dimensions; a tensor has at most %d", name,
                       tensor->dim_count, CDDP_DIMS_MAX);
    if ((unsigned)tensor->dtype >= CDDP_DTYPE_COUNT)
        return cd_fail(err, CDDP_E_ARG, "'%s' has dtype %d, which is none", name,
                       (int)tensor->dtype);
    if (tensor->offset < 0)
        return cd_fail(err, CDDP_E_ARG, "'%s' begins at element %lld of its storage", name,
                       (long long)tensor->offset);
    int64_t numel_max = INT64_MAX / CD_ELEMENT_BYTES_MAX - tensor->offset;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        if (tensor->sizes[i] < 0)
            return cd_fail(err, CDDP_E_ARG, "'%s' has size %lld in dimension %u", name,
                           (long long)tensor->sizes[i], i);
        if (tensor->sizes[i] > numel_max)
            return cd_fail(err, CDDP_E_ARG, "'%s' has more elements than memory has bytes", name);
        if (tensor->sizes[i] > 1) numel_max /= tensor->sizes[i];
        if (tensor->sizes[i] > 1 && tensor->strides[i] == 0)
            return cd_fail(err, CDDP_E_ARG,
                           "'%s' has stride 0 in dimension %u: its elements share memory, and "
                           "cannot be written one by one",
                           name, i);
    }
    return CDDP_OK;
}

bool cd_wrapped_takes(const cd_wrapped_parameter *parameter, const cddp_grad *grad,
                      cddp_dtype dtype)
{
    const cddp_tensor *value = &grad->value, *like = &parameter->tensor.form->like;
    if (grad->kind != CDDP_GRAD_DENSE || value->device == NULL || value->storage == NULL ||
        value->offset < 0 || value->dim_count > CDDP_DIMS_MAX || value->dtype != dtype ||
        (unsigned)dtype >= CDDP_DTYPE_COUNT || !cd_device_is_same(value->device, like->device))
        return false;
    if (value->dim_count != like->dim_count) /* a flat one has the same elements in order */
        return (value->dim_count == 1 || like->dim_count == 1) &&
               cddp_tensor_numel(value) == cddp_tensor_numel(like);
    for (uint32_t i = 0; i < like->dim_count; i++)
        if (value->sizes[i] != like->sizes[i]) return false;
    return true;
}

static cddp_status check_parameter(const cddp_parameter *p, size_t ordinal, bool ignored,
                                   cddp_error *err)
{
    if (p->name == NULL || p->name[0] == '\0')
        return cd_fail(err, CDDP_E_ARG, "parameter %zu has no name", ordinal);
    if (ignored) return CDDP_OK;
    if (p->tensor.device == NULL)
        return cd_fail(err, CDDP_E_CONFIG,
                       "parameter '%s' is not initialised: run the module once before wrapping it",
                       p->name);
    CD_TRY(cd_wrapped_check_tensor(&p->tensor, p->name, err));
    if (p->tensor.storage == NULL && cddp_tensor_numel(&p->tensor) > 0) /* INI-03 */
        return cd_fail(err, CDDP_E_CONFIG, "parameter '%s' has no storage", p->name);
    if (p->requires_grad && p->grad == NULL)
        return cd_fail(err, CDDP_E_ARG,
                       "parameter '%s' requires a gradient but has no gradient slot", p->name);
    if (p->requires_grad && !cddp_dtype_is_float(p->tensor.dtype) && p->tensor.dtype != CDDP_C64)
        return cd_fail(err, CDDP_E_ARG,
                       "parameter '%s' is %s and requires a gradient: only floating and complex "
                       "parameters can",
                       p->name, cddp_dtype_name(p->tensor.dtype));
    return CDDP_OK;
}

/* Positions by digest of the name, while names are copied; open addressing. */
typedef struct name_index {
    /* (size) position + 1, 0: free; size is a power of two above the number of names */
    uint32_t *places;
    size_t size;
} name_index;

/* False when the name is there already. */
static bool add_name(const name_index *index, const cd_wrapped *m, size_t ordinal)
{
    const cd_wrapped_parameter *p = &m->parameters[ordinal];
    for (size_t at = p->name_digest & (index->size - 1);; at = (at + 1) & (index->size - 1)) {
        if (index->places[at] == 0) {
            index->places[at] = (uint32_t)ordinal + 1;
            return true;
        }
        const cd_wrapped_parameter *q = &m->parameters[index->places[at] - 1];
        if (q->name_digest == p->name_digest && strcmp(q->name, p->name) == 0) return false;
    }
}

static cddp_status copy_names(cd_wrapped *m, const cddp_ddp_options *o, cddp_error *err)
{
    size_t name_bytes = 0;
    for (size_t i = 0; i < o->parameter_count; i++) {
        const cddp_parameter *p = &o->parameters[i];
        CD_TRY(check_parameter(p, i, p->name != NULL && is_ignored_name(o, p->name), err));
        name_bytes += strlen(p->name) + 1;
    }
    char *at = cd_arena_push(&m->arena, name_bytes); /* one after the other: names are compared */
    if (at == NULL) return cd_fail_memory(err, "the names of %zu parameters", o->parameter_count);
    for (size_t i = 0; i < o->parameter_count; i++) {
        size_t bytes = strlen(o->parameters[i].name) + 1;
        m->parameters[i].name = memcpy(at, o->parameters[i].name, bytes);
        m->parameters[i].name_digest = cd_hash_text(at);
        at += bytes;
    }
    return CDDP_OK;
}

static cddp_status check_names(const cd_wrapped *m, size_t count, cddp_error *err)
{
    name_index index = {.size = 16};
    while (index.size < 2 * count) index.size *= 2;
    cd_arena scratch;
    cd_arena_init(&scratch, m->allocator, 0);
    index.places = cd_arena_array(&scratch, index.size, sizeof *index.places);
    if (index.places == NULL) return cd_fail_memory(err, "a comparison of %zu names", count);
    size_t i = 0;
    while (i < count && add_name(&index, m, i)) i++;
    cd_arena_fini(&scratch);
    if (i < count)
        return cd_fail(err, CDDP_E_ARG, "two parameters are called '%s'", m->parameters[i].name);
    return CDDP_OK;
}

static cddp_status copy_parameters(cd_wrapped *m, const cddp_ddp_options *o, cddp_error *err)
{
    CD_TRY(copy_names(m, o, err));
    CD_TRY(check_names(m, o->parameter_count, err));
    m->parameter_count = o->parameter_count;
    for (size_t i = 0; i < o->parameter_count; i++) {
        const cddp_parameter *p = &o->parameters[i];
        cd_wrapped_parameter *q = &m->parameters[i];
        q->tensor = (cd_packed_tensor){cd_tensor_forms_intern(&m->forms, &m->arena, &p->tensor),
                                       p->tensor.storage, p->tensor.offset};
        if (q->tensor.form == NULL) return cd_fail_memory(err, "the form of '%s'", q->name);
        q->grad = p->grad;
        q->requires_grad = p->requires_grad;
        q->expect_sparse = p->expect_sparse;
        q->is_ignored = is_ignored_name(o, q->name);
        q->is_delayed =
            is_listed(o->delay_all_reduce_named_params, o->delay_all_reduce_count, q->name);
        q->variable = CD_NOT_REDUCED;
    }
    return CDDP_OK;
}

static cddp_status copy_buffers(cd_wrapped *m, const cddp_ddp_options *o, cddp_error *err)
{
    for (size_t i = 0; i < o->buffer_count; i++) {
        const cddp_buffer *b = &o->buffers[i];
        if (b->name == NULL || b->name[0] == '\0')
            return cd_fail(err, CDDP_E_ARG, "buffer %zu has no name", i);
        if (cd_wrapped_find_buffer(m, b->name) >= 0 || cd_wrapped_find_parameter(m, b->name) >= 0)
            return cd_fail(err, CDDP_E_ARG, "two parameters or buffers are called '%s'", b->name);
        if (b->tensor.device == NULL && !is_ignored_name(o, b->name))
            return cd_fail(err, CDDP_E_CONFIG, "buffer '%s' is not initialised", b->name);
        if (b->tensor.device != NULL) CD_TRY(cd_wrapped_check_tensor(&b->tensor, b->name, err));
        if (b->tensor.storage == NULL && b->tensor.device != NULL && !is_ignored_name(o, b->name) &&
            cddp_tensor_numel(&b->tensor) > 0)
            return cd_fail(err, CDDP_E_CONFIG, "buffer '%s' has no storage", b->name);
        cd_wrapped_buffer *q = &m->buffers[i];
        q->name = cd_arena_strdup(&m->arena, b->name);
        if (q->name == NULL) return cd_fail_memory(err, "the name '%s'", b->name);
        m->buffer_count = i + 1;
        q->tensor = b->tensor;
        q->is_ignored = is_ignored_name(o, b->name);
    }
    return CDDP_OK;
}

/* A misspelt name would silently synchronise what was meant to be left alone. */
static cddp_status check_listed_names(const cd_wrapped *m, const cddp_ddp_options *o,
                                      cddp_error *err)
{
    for (size_t i = 0; i < o->ignore_count; i++) {
        const char *name = o->parameters_and_buffers_to_ignore[i];
        if (name == NULL) return cd_fail(err, CDDP_E_ARG, "name %zu of the ignore list is NULL", i);
        if (cd_wrapped_find_parameter(m, name) < 0 && cd_wrapped_find_buffer(m, name) < 0)
            return cd_fail(err, CDDP_E_CONFIG,
                           "the ignore list names '%s', which is neither a parameter nor a buffer",
                           name);
    }
    for (size_t i = 0; i < o->delay_all_reduce_count; i++) {
        const char *name = o->delay_all_reduce_named_params[i];
        if (name == NULL)
            return cd_fail(err, CDDP_E_ARG, "name %zu of delay_all_reduce_named_params is NULL", i);
        if (cd_wrapped_find_parameter(m, name) < 0)
            return cd_fail(err, CDDP_E_CONFIG,
                           "delay_all_reduce_named_params names '%s', which is not a parameter",
                           name);
    }
    const char *trigger = o->param_to_hook_all_reduce;
    if (trigger != NULL && cd_wrapped_find_parameter(m, trigger) < 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "param_to_hook_all_reduce names '%s', which is not a parameter", trigger);
    return CDDP_OK;
}

static uint32_t variable_with_slot(const cd_wrapped *m, const cddp_grad *grad)
{
    for (size_t v = 0; v < m->variable_count; v++)
        if (cd_wrapped_variable(m, v)->grad == grad) return (uint32_t)v;
    return CD_NOT_REDUCED;
}

/* Shared parameters are few and the search runs once, but models have thousands of parameters:
** sharing is looked for only when some slot occurs twice. */
static bool has_shared_slots(const cd_wrapped *m)
{
    uintptr_t lowest = UINTPTR_MAX, highest = 0;
    bool ascending = true;
    for (size_t i = 0; i < m->parameter_count; i++) {
        uintptr_t slot = (uintptr_t)m->parameters[i].grad;
        if (slot == 0) continue;
        if (slot <= highest) ascending = false;
        if (slot < lowest) lowest = slot;
        if (slot > highest) highest = slot;
    }
    return !ascending;
}

static cddp_status check_devices(const cd_wrapped *m, cddp_error *err)
{
    const cd_wrapped_parameter *first = NULL;
    for (size_t i = 0; i < m->parameter_count; i++) {
        const cd_wrapped_parameter *p = &m->parameters[i];
        if (p->is_ignored) continue;
        if (first == NULL) first = p;
        const cddp_device *one = first->tensor.form->like.device,
                          *other = p->tensor.form->like.device;
        if (!cd_device_is_same(one, other))
            return cd_fail(err, CDDP_E_CONFIG,
                           "'%s' is on device %s but '%s' is on %s: DDP takes one device type",
                           first->name, one->name, p->name, other->name);
    }
    return CDDP_OK;
}

/* One slot can hold the gradient of one tensor. */
static cddp_status check_shared(const cd_wrapped_parameter *one, const cd_wrapped_parameter *other,
                                cddp_error *err)
{
    if (one->tensor.form == other->tensor.form && one->tensor.storage == other->tensor.storage &&
        one->tensor.offset == other->tensor.offset)
        return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG,
                   "parameters '%s' and '%s' are different tensors with one gradient slot: give "
                   "each its own",
                   one->name, other->name);
}

static cddp_status collect_variables(cd_wrapped *m, cddp_error *err)
{
    bool shared = has_shared_slots(m);
    for (size_t i = 0; i < m->parameter_count; i++) {
        cd_wrapped_parameter *p = &m->parameters[i];
        if (!p->requires_grad || p->is_ignored) continue;
        p->variable = shared ? variable_with_slot(m, p->grad) : CD_NOT_REDUCED;
        if (p->variable != CD_NOT_REDUCED) {
            CD_TRY(check_shared(cd_wrapped_variable(m, p->variable), p, err));
            continue;
        }
        p->variable = (uint32_t)m->variable_count;
        m->expect_sparse[m->variable_count] = p->expect_sparse;
        m->total_bytes +=
            (uint64_t)p->tensor.form->numel * cddp_dtype_bytes(p->tensor.form->like.dtype);
        m->ordinals[m->variable_count++] = (uint32_t)i;
    }
    return CDDP_OK;
}

/* ---- parameters that share memory ---- */

/* Where the elements of a variable lie: addresses, or bytes of one storage of a device. */
typedef struct stretch {
    const void *storage; /* NULL: addresses */
    uintptr_t first, end;
    uint32_t variable;
} stretch;

static int compare_stretches(const void *a, const void *b)
{
    const stretch *x = a, *y = b;
    if (x->storage != y->storage) return (uintptr_t)x->storage < (uintptr_t)y->storage ? -1 : 1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->variable < y->variable ? -1 : 1;
}

/* False: empty, or its elements leave gaps that may be another's. */
static bool find_stretch(const cd_wrapped *m, uint32_t variable, stretch *found)
{
    const cddp_tensor t = cd_packed_tensor_get(&cd_wrapped_variable(m, variable)->tensor);
    const uintptr_t bytes = (uintptr_t)cddp_tensor_numel(&t) * cddp_dtype_bytes(t.dtype);
    const bool is_address = (t.device->flags & CDDP_DEVICE_HOST) != 0;
    if (bytes == 0 || !cddp_tensor_is_contiguous(&t)) return false;
    *found = (stretch){.storage = is_address ? NULL : t.storage, .variable = variable};
    found->first =
        (is_address ? (uintptr_t)t.storage : 0) + (uintptr_t)t.offset * cddp_dtype_bytes(t.dtype);
    found->end = found->first + bytes;
    return true;
}

/* Two that lie in one memory, with a gradient each: an optimizer would step on both, one over the
** other. One parameter under two names has one gradient slot. */
static cddp_status check_memory(const cd_wrapped *m, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    size_t count = 0;
    cd_arena scratch;
    cd_arena_init(&scratch, m->allocator, 0);
    stretch *all = cd_arena_array(&scratch, m->variable_count + 1, sizeof *all);
    if (all == NULL) return cd_fail_memory(err, "where %zu parameters lie", m->variable_count);
    for (size_t v = 0; v < m->variable_count; v++)
        count += find_stretch(m, (uint32_t)v, &all[count]);
    qsort(all, count, sizeof *all, compare_stretches);
    for (size_t i = 1; i < count && status == CDDP_OK; i++) {
        const stretch *a = &all[i - 1], *b = &all[i];
        if (a->storage != b->storage || b->first >= a->end) continue;
        status = cd_fail(err, CDDP_E_CONFIG,
                         "parameters '%s' and '%s' overlap in memory, and each has its own "
                         "gradient. One parameter under two names has one gradient slot "
                         "(strict = false allows it)",
                         cd_wrapped_variable(m, a->variable)->name,
                         cd_wrapped_variable(m, b->variable)->name);
    }
    cd_arena_fini(&scratch);
    return status;
}

static cddp_status fill(cd_wrapped *m, const cddp_ddp_options *o, cddp_error *err)
{
    CD_TRY(copy_parameters(m, o, err));
    CD_TRY(copy_buffers(m, o, err));
    CD_TRY(check_listed_names(m, o, err));
    CD_TRY(check_devices(m, err));
    CD_TRY(collect_variables(m, err));
    if (o->strict) CD_TRY(check_memory(m, err));
    if (m->variable_count == 0 && o->delay_all_reduce_count == 0) /* ERR-06 */
        return cd_fail(err, CDDP_E_CONFIG,
                       "no parameter requires a gradient (%zu parameters, %zu ignored names): DDP "
                       "is not needed",
                       m->parameter_count, o->ignore_count);
    return CDDP_OK;
}

cddp_status cd_wrapped_init(cd_wrapped *module, const cddp_ddp_options *options,
                            const cddp_allocator *allocator, cddp_error *err)
{
    const size_t parameters = options->parameter_count + 1, buffers = options->buffer_count + 1;
    cd_wrapped m = {.allocator = allocator};
    cddp_status status = CDDP_OK;
    const size_t bytes = CD_ARENA_BYTES(parameters * sizeof *m.parameters) +
                         CD_ARENA_BYTES(parameters * sizeof *m.ordinals) +
                         CD_ARENA_BYTES(parameters * sizeof *m.expect_sparse) +
                         CD_ARENA_BYTES(buffers * sizeof *m.buffers);
    cd_arena_init(&m.arena, allocator, BLOCK_BYTES);
    if (!cd_arena_reserve(&m.arena, bytes))
        return cd_fail_memory(err, "a table of %zu parameters", options->parameter_count);
    m.parameters = cd_arena_push(&m.arena, parameters * sizeof *m.parameters);
    m.ordinals = cd_arena_push(&m.arena, parameters * sizeof *m.ordinals);
    m.expect_sparse = cd_arena_push(&m.arena, parameters * sizeof *m.expect_sparse);
    m.buffers = cd_arena_push(&m.arena, buffers * sizeof *m.buffers);
    CD_TRY_OUT(fill(&m, options, err));
    *module = m;
    return CDDP_OK;
out:
    cd_wrapped_fini(&m);
    return status;
}

void cd_wrapped_fini(cd_wrapped *m)
{
    cd_arena_fini(&m->arena);
    memset(m, 0, sizeof *m);
}

/* Parameters of one module live on one device object, or on a few: the first variable on a device
** names it. */
static uint64_t device_key(const cd_wrapped *m, const cddp_device *device)
{
    uint64_t key = 0;
    while (cd_wrapped_variable(m, key)->tensor.form->like.device != device) key++;
    return key;
}

cddp_status cd_wrapped_bucket_inputs(const cd_wrapped *module, const uint32_t *order,
                                     cd_arena *arena, const cd_bucket_input **inputs,
                                     cddp_error *err)
{
    cd_bucket_input *in = cd_arena_array(arena, module->variable_count, sizeof *in);
    if (in == NULL)
        return cd_fail_memory(err, "the sizes of %zu parameters", module->variable_count);
    for (size_t i = 0; i < module->variable_count; i++) {
        const cd_tensor_form *form =
            cd_wrapped_variable(module, order != NULL ? order[i] : i)->tensor.form;
        in[i] =
            (cd_bucket_input){.bytes = (uint64_t)form->numel * cddp_dtype_bytes(form->like.dtype),
                              .key = device_key(module, form->like.device) * CDDP_DTYPE_COUNT +
                                     form->like.dtype};
    }
    *inputs = in;
    return CDDP_OK;
}

const cddp_device *cd_module_device(const cd_wrapped *module)
{
    for (size_t i = 0; i < module->parameter_count; i++)
        if (!module->parameters[i].is_ignored)
            return module->parameters[i].tensor.form->like.device;
    return module->parameter_count > 0 ? module->parameters[0].tensor.form->like.device
                                       : cddp_device_cpu();
}

int64_t cd_wrapped_find_parameter(const cd_wrapped *module, const char *name)
{
    /* Digests first: models have thousands of long names with common prefixes. */
    uint64_t digest = cd_hash_text(name);
    for (size_t i = 0; i < module->parameter_count; i++)
        if (module->parameters[i].name_digest == digest &&
            strcmp(module->parameters[i].name, name) == 0)
            return (int64_t)i;
    return -1;
}

int64_t cd_wrapped_find_buffer(const cd_wrapped *module, const char *name)
{
    for (size_t i = 0; i < module->buffer_count; i++)
        if (strcmp(module->buffers[i].name, name) == 0) return (int64_t)i;
    return -1;
}
