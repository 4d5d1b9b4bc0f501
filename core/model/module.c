/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of a model's named tensors. Initial values are drawn from a generator split by the
** full name, so that adding a parameter changes no other; they are drawn as integers and scaled,
** without libm.
**
** Not here: what the parameters are for (zoo/), their gradients' arithmetic (accumulate.c).
*/
#include "core/model/module.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/hash.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MODULE_BLOCK_BYTES ((size_t)1024)
#define INITIAL_BLOCK_BYTES ((size_t)4096) /* larger values get a block of their size */

cddp_status cd_module_create(const cddp_allocator *allocator, const cddp_device *device,
                             const cd_prng *prng, cd_module **module, cddp_error *err)
{
    cd_arena arena;
    cd_arena_init(&arena, allocator, MODULE_BLOCK_BYTES);
    cd_module *m = cd_arena_push(&arena, sizeof *m);
    if (m == NULL) return cd_fail_memory(err, "a module");
    m->arena = arena;
    m->allocator = allocator;
    m->device = device;
    m->prng = *prng;
    *module = m;
    return CDDP_OK;
}

cddp_status cd_module_push(cd_module *module, cddp_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t room = sizeof module->scope - module->scope_bytes;
    int n = cd_vformat(module->scope + module->scope_bytes, room, format, args);
    va_end(args);
    if (n < 0 || (size_t)n + 2 > room || module->scope_depth == CD_SCOPES_MAX) {
        module->scope[module->scope_bytes] = 0;
        return cd_fail(err, CDDP_E_LIMIT,
                       "module path \"%s…\" is longer than %d characters or %d scopes",
                       module->scope, CD_NAME_BYTES_MAX - 2, CD_SCOPES_MAX);
    }
    module->scope_marks[module->scope_depth++] = module->scope_bytes;
    module->scope_bytes += (size_t)n;
    module->scope[module->scope_bytes++] = '.';
    module->scope[module->scope_bytes] = 0;
    return CDDP_OK;
}

void cd_module_pop(cd_module *module)
{
    CD_ASSERT(module->scope_depth > 0);
    module->scope_bytes = module->scope_marks[--module->scope_depth];
    module->scope[module->scope_bytes] = 0;
}

static cddp_status full_name(const cd_module *m, const char *name, char text[CD_NAME_BYTES_MAX],
                             cddp_error *err)
{
    int n = snprintf(text, CD_NAME_BYTES_MAX, "%s%s", m->scope, name);
    if (n < 0 || n >= CD_NAME_BYTES_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "name \"%s%s\" is longer than %d characters", m->scope,
                       name, CD_NAME_BYTES_MAX - 1);
    if (cd_module_find_parameter(m, text) >= 0 || cd_module_find_buffer(m, text) >= 0)
        return cd_fail(err, CDDP_E_CONFIG, "the name \"%s\" is given twice", text);
    return CDDP_OK;
}

static double draw(const cd_init *init, bool dyadic, cd_prng *prng)
{
    switch (init->kind) {
    case CD_INIT_ZERO:
    case CD_INIT_GIVEN:
        return 0.0;
    case CD_INIT_ONE:
        return 1.0;
    case CD_INIT_UNIFORM:
        if (!dyadic)
            return ((double)cd_prng_between(prng, -(1 << 24), (1 << 24) - 1) / (double)(1 << 24)) *
                   init->bound;
        break;
    case CD_INIT_DYADIC:
        break;
    }
    return (double)cd_prng_between(prng, -8, 8) / 8.0;
}

/* Host numbers are drawn in f64, rounded once to the parameter's dtype on the cpu, then written to
** the device. */
static cddp_status fill_initial(const cd_module *m, const cd_init *init, const char *name,
                                const cddp_tensor *t, cddp_error *err)
{
    if (!(m->device->flags & CDDP_DEVICE_VALUES))
        return CD_PASS(m->device->fill(t, 0.0, NULL, err));
    if (init->kind == CD_INIT_ZERO || init->kind == CD_INIT_ONE || init->kind == CD_INIT_GIVEN)
        return CD_PASS(m->device->fill(t, init->kind == CD_INIT_ONE ? 1.0 : 0.0, NULL, err));
    int64_t numel = cddp_tensor_numel(t), scalars = t->dtype == CDDP_C64 ? 2 * numel : numel;
    if (numel == 0) return CDDP_OK;
    cddp_dtype scalar = t->dtype == CDDP_C64 ? CDDP_F32 : t->dtype;
    size_t drawn_bytes = (size_t)scalars * sizeof(double),
           rounded_bytes = (size_t)numel * cddp_dtype_bytes(t->dtype);
    cddp_status status = CDDP_OK;
    cd_arena scratch;
    cd_arena_init(&scratch, m->allocator, INITIAL_BLOCK_BYTES);
    double *drawn = cd_arena_push(&scratch, drawn_bytes);
    void *rounded = cd_arena_push(&scratch, rounded_bytes);
    CD_TRY_OUT(cd_arena_check(&scratch, err, "the initial values of \"%s\"", name));
    cd_prng prng = cd_prng_split(&m->prng, name);
    for (int64_t i = 0; i < scalars; i++) drawn[i] = draw(init, m->dyadic, &prng);
    const cddp_device *cpu = cddp_device_cpu();
    cddp_tensor from = cddp_tensor_of(cpu, drawn, 0, CDDP_F64, &scalars, 1);
    cddp_tensor to = cddp_tensor_of(cpu, rounded, 0, scalar, &scalars, 1);
    CD_TRY_OUT(cpu->copy(&to, &from, NULL, err));
    CD_TRY_OUT(m->device->write(t, rounded, rounded_bytes, err));
out:
    cd_arena_fini(&scratch);
    return status;
}

/* Storage has at least one element, so that zero-size tensors have distinct addresses. */
static int64_t storage_numel(const cddp_tensor *t)
{
    int64_t numel = cddp_tensor_numel(t);
    return numel > 0 ? numel : 1;
}

static void tensor_release(cddp_tensor *t)
{
    if (t->device != NULL) t->device->release(t->device, t->dtype, storage_numel(t), t->storage);
    *t = (cddp_tensor){0};
}

/* (n, c, h, w) in the order n, h, w, c. */
static void put_channels_last(cddp_tensor *t)
{
    const int64_t *n = t->sizes;
    t->strides[1] = 1;
    t->strides[3] = n[1];
    t->strides[2] = n[1] * n[3];
    t->strides[0] = n[1] * n[3] * n[2];
}

static cddp_status make_tensor(const cd_module *m, const cd_parameter_spec *spec, const char *name,
                               cddp_tensor *tensor, cddp_error *err)
{
    if (spec->dim_count > CDDP_DIMS_MAX)
        return cd_fail(err, CDDP_E_CONFIG, "\"%s\" has %u dimensions, at most %d are possible",
                       name, (unsigned)spec->dim_count, CDDP_DIMS_MAX);
    int64_t numel = 1;
    for (uint32_t i = 0; i < spec->dim_count; i++) {
        int64_t size = spec->sizes[i];
        if (size < 0 || (size > 0 && numel > (INT64_MAX >> 8) / size))
            return cd_fail(err, CDDP_E_CONFIG, "\"%s\": size %lld of dimension %u is out of range",
                           name, (long long)size, (unsigned)i);
        numel *= size;
    }
    if (!(m->device->dtypes & CDDP_DTYPE_BIT(spec->dtype)))
        return cd_fail(err, CDDP_E_CONFIG, "\"%s\": device %s does not hold %s", name,
                       m->device->name, cddp_dtype_name(spec->dtype));
    void *storage = NULL;
    CD_TRY(m->device->allocate(m->device, spec->dtype, numel > 0 ? numel : 1, &storage, err));
    cddp_tensor t =
        cddp_tensor_of(m->device, storage, 0, spec->dtype, spec->sizes, spec->dim_count);
    if (m->channels_last && t.dim_count == 4) put_channels_last(&t);
    cddp_status status = fill_initial(m, &spec->init, name, &t, err);
    if (status != CDDP_OK) {
        tensor_release(&t);
        return status;
    }
    *tensor = t;
    return CDDP_OK;
}

cddp_status cd_module_add_parameter(cd_module *module, const cd_parameter_spec *spec,
                                    uint32_t *index, cddp_error *err)
{
    char name[CD_NAME_BYTES_MAX];
    CD_TRY(full_name(module, spec->name, name, err));
    if (!cd_vec_grow(module->allocator, (void **)&module->parameters, &module->parameter_capacity,
                     module->parameter_count + 1, sizeof *module->parameters))
        return cd_fail_memory(err, "parameter \"%s\"", name);
    uint64_t numel = 1;
    for (uint32_t i = 0; i < spec->dim_count && i < CDDP_DIMS_MAX; i++)
        numel *= spec->sizes[i] > 0 ? (uint64_t)spec->sizes[i] : 0;
    cd_parameter p = {.name_digest = cd_hash_text(name),
                      .init = spec->init,
                      .requires_grad = !spec->frozen,
                      .expect_sparse = spec->expect_sparse};
    p.forward_cost = spec->forward_cost != 0 ? spec->forward_cost : 2 * numel;
    p.backward_cost = spec->backward_cost != 0 ? spec->backward_cost : 2 * p.forward_cost;
    p.name = cd_arena_strdup(&module->arena, name);
    if (p.name == NULL) return cd_fail_memory(err, "parameter \"%s\"", name);
    CD_TRY(make_tensor(module, spec, name, &p.tensor, err));
    *index = (uint32_t)module->parameter_count;
    module->parameters[module->parameter_count++] = p;
    return CDDP_OK;
}

cddp_status cd_module_add_alias(cd_module *module, const char *name, uint32_t parameter,
                                cddp_error *err)
{
    CD_ASSERT(parameter < module->parameter_count);
    char text[CD_NAME_BYTES_MAX];
    CD_TRY(full_name(module, name, text, err));
    if (!cd_vec_grow(module->allocator, (void **)&module->aliases, &module->alias_capacity,
                     module->alias_count + 1, sizeof *module->aliases))
        return cd_fail_memory(err, "alias \"%s\"", text);
    cd_alias alias = {cd_arena_strdup(&module->arena, text), parameter};
    if (alias.name == NULL) return cd_fail_memory(err, "alias \"%s\"", text);
    module->aliases[module->alias_count++] = alias;
    return CDDP_OK;
}

cddp_status cd_module_add_buffer(cd_module *module, const cd_parameter_spec *spec, uint32_t *index,
                                 cddp_error *err)
{
    char name[CD_NAME_BYTES_MAX];
    CD_TRY(full_name(module, spec->name, name, err));
    if (!cd_vec_grow(module->allocator, (void **)&module->buffers, &module->buffer_capacity,
                     module->buffer_count + 1, sizeof *module->buffers))
        return cd_fail_memory(err, "buffer \"%s\"", name);
    cd_buffer b = {.name_digest = cd_hash_text(name), .init = spec->init};
    b.name = cd_arena_strdup(&module->arena, name);
    if (b.name == NULL) return cd_fail_memory(err, "buffer \"%s\"", name);
    CD_TRY(make_tensor(module, spec, name, &b.tensor, err));
    *index = (uint32_t)module->buffer_count;
    module->buffers[module->buffer_count++] = b;
    return CDDP_OK;
}

cddp_status cd_module_replace_buffer(cd_module *module, uint32_t index, cddp_error *err)
{
    cd_buffer *b = &module->buffers[index];
    void *storage = NULL;
    CD_TRY(b->tensor.device->allocate(b->tensor.device, b->tensor.dtype, storage_numel(&b->tensor),
                                      &storage, err));
    cddp_tensor made = b->tensor;
    made.storage = storage;
    made.offset = 0;
    cddp_status status = made.device->copy(&made, &b->tensor, NULL, err);
    tensor_release(status == CDDP_OK ? &b->tensor : &made);
    if (status == CDDP_OK) b->tensor = made;
    return status;
}

cddp_status cd_module_get_extra(cd_module *module, uint32_t parameter, cd_parameter_extra **extra,
                                cddp_error *err)
{
    cd_parameter *p = &module->parameters[parameter];
    if (p->extra == NULL) p->extra = cd_arena_array(&module->arena, 1, sizeof *p->extra);
    if (p->extra == NULL) return cd_fail_memory(err, "the gradient of \"%s\"", p->name);
    *extra = p->extra;
    return CDDP_OK;
}

int64_t cd_module_find_parameter(const cd_module *module, const char *name)
{
    const uint64_t digest = cd_hash_text(name);
    for (size_t i = 0; i < module->parameter_count; i++)
        if (module->parameters[i].name_digest == digest &&
            strcmp(module->parameters[i].name, name) == 0)
            return (int64_t)i;
    for (size_t i = 0; i < module->alias_count; i++)
        if (strcmp(module->aliases[i].name, name) == 0) return module->aliases[i].parameter;
    return -1;
}

int64_t cd_module_find_buffer(const cd_module *module, const char *name)
{
    const uint64_t digest = cd_hash_text(name);
    for (size_t i = 0; i < module->buffer_count; i++)
        if (module->buffers[i].name_digest == digest && strcmp(module->buffers[i].name, name) == 0)
            return (int64_t)i;
    return -1;
}

int64_t cd_module_parameter_numel(const cd_module *module)
{
    int64_t numel = 0;
    for (size_t i = 0; i < module->parameter_count; i++)
        numel += cddp_tensor_numel(&module->parameters[i].tensor);
    return numel;
}

cddp_status cd_module_zero_grad(cd_module *module, cd_zero_grad how, cddp_error *err)
{
    for (size_t i = 0; i < module->parameter_count; i++) {
        cddp_grad *grad = &module->parameters[i].grad;
        if (how == CD_ZERO_GRAD_TO_NONE)
            cddp_grad_drop(grad);
        else if (grad->kind != CDDP_GRAD_UNDEFINED)
            CD_TRY(grad->value.device->fill(&grad->value, 0.0, NULL, err));
        grad->requires_grad = false;
    }
    return CDDP_OK;
}

void cd_module_destroy(cd_module *module)
{
    if (module == NULL) return;
    for (size_t i = 0; i < module->parameter_count; i++) {
        cd_parameter *p = &module->parameters[i];
        cddp_grad_fini(&p->grad);
        if (p->extra != NULL) {
            tensor_release(&p->extra->addend);
            tensor_release(&p->extra->sparse_value);
            tensor_release(&p->extra->sparse_rows);
        }
        tensor_release(&p->tensor);
    }
    for (size_t i = 0; i < module->buffer_count; i++) tensor_release(&module->buffers[i].tensor);
    cd_release(module->allocator, module->parameters,
               module->parameter_capacity * sizeof *module->parameters);
    cd_release(module->allocator, module->buffers,
               module->buffer_capacity * sizeof *module->buffers);
    cd_release(module->allocator, module->aliases,
               module->alias_capacity * sizeof *module->aliases);
    cd_arena_fini(&module->arena);
}
