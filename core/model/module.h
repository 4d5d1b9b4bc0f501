/* SPDX-License-Identifier: Apache-2.0 */
/* Named parameters and buffers in registration order, which is the order of PyTorch's
** named_parameters(). Reducers, optimizers and broadcasts see a model through this list.
**
** Lifetime   create → push/add/pop while the model is built → use → destroy. Parameter storage and
**            gradient slots stay where they are from the end of building until destroy.
** Threads    one thread.
** Errors     a name given twice, a shape out of range and a dtype that the device cannot hold are
**            CDDP_E_CONFIG.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/device.h"

#include "core/base/arena.h"
#include "core/base/prng.h"

#include <stddef.h>

#define CD_NAME_BYTES_MAX 192
#define CD_SCOPES_MAX 16

/* How a parameter or buffer starts. */
typedef enum cd_init_kind {
    CD_INIT_ZERO,
    CD_INIT_ONE,
    CD_INIT_UNIFORM, /* in [-bound, bound), from the module's generator split by name */
    CD_INIT_DYADIC,  /* k/8 with k in -8…8: sums and products of few of these are exact */
    CD_INIT_GIVEN    /* zero, until the model writes what it was given */
} cd_init_kind;

typedef struct cd_init {
    cd_init_kind kind;
    double bound;
} cd_init;

/* More full-sized storage of a gradient, made at its first use and kept until destroy: the rows of
** a sparse gradient, and the second operand of an accumulation on devices without arithmetic. */
typedef struct cd_parameter_extra {
    cddp_tensor sparse_value, sparse_rows, addend;
} cd_parameter_extra;

typedef struct cd_parameter {
    /* the first name under which it was registered; tied parameters count once (UNU-12) */
    char *name;
    uint64_t name_digest; /* compared first: names are many, and begin alike */
    cddp_tensor tensor;
    cddp_grad grad;
    cd_init init; /* as it was declared */
    bool requires_grad;
    bool expect_sparse; /* its gradient is CDDP_GRAD_SPARSE (INI-06) */
    /* floating-point operations per sample that it takes part in */
    uint64_t forward_cost, backward_cost;
    cd_parameter_extra *extra; /* NULL until needed */
} cd_parameter;

typedef struct cd_buffer {
    char *name;
    uint64_t name_digest;
    cddp_tensor tensor;
    cd_init init; /* as it was declared */
} cd_buffer;

typedef struct cd_alias {
    char *name;
    uint32_t parameter;
} cd_alias;

typedef struct cd_module {
    cd_arena arena; /* the module itself, names and extras */
    const cddp_allocator *allocator;
    const cddp_device *device;
    cd_prng prng;
    /* initial values on a dyadic grid whatever the layer asks for, so that sums are exact */
    bool dyadic;
    bool channels_last;       /* of parameters of four dimensions; the graph computes with copies */
    cd_parameter *parameters; /* (parameter_count) */
    size_t parameter_count, parameter_capacity;
    cd_buffer *buffers;
    size_t buffer_count, buffer_capacity;
    cd_alias *aliases;
    size_t alias_count, alias_capacity;
    char scope[CD_NAME_BYTES_MAX]; /* "layers.0." while building */
    size_t scope_bytes;
    size_t scope_marks[CD_SCOPES_MAX]; /* (scope_depth) scope_bytes before each push */
    uint32_t scope_depth;
} cd_module;

typedef struct cd_parameter_spec {
    const char *name; /* within the current scope */
    cddp_dtype dtype;
    uint32_t dim_count;
    int64_t sizes[CDDP_DIMS_MAX];
    cd_init init;
    bool frozen; /* requires_grad is false */
    bool expect_sparse;
    uint64_t forward_cost, backward_cost; /* 0: 2 and 4 per element */
} cd_parameter_spec;

/* True when layers may read and write this device's storage at once, from the host. On a device
** that has values but keeps them elsewhere or works later (a GPU, a stream), the graph computes on
** copies. */
static inline bool cd_device_is_direct(const cddp_device *device)
{
    const uint32_t needed = CDDP_DEVICE_VALUES | CDDP_DEVICE_HOST;
    return (device->flags & (needed | CDDP_DEVICE_ASYNC)) == needed;
}

/* The layers that the device computes by itself, or NULL. */
static inline const cddp_layers *cd_device_layers(const cddp_device *device)
{
    const size_t needed = offsetof(cddp_device, layers) + sizeof device->layers;
    if (device->size < needed || device->layers == NULL || device->layers->abi != CDDP_LAYERS_ABI)
        return NULL;
    return device->layers;
}

/* Allocator and device are borrowed until destroy. */
cddp_status cd_module_create(const cddp_allocator *allocator, const cddp_device *device,
                             const cd_prng *prng, cd_module **module,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Names added until the matching pop are prefixed with "<scope>."; a scope may have dots. */
cddp_status cd_module_push(cd_module *module, cddp_error *err, const char *format, ...)
    CDDP_PRINTF(3, 4) CDDP_MUST_CHECK;
void cd_module_pop(cd_module *module);
cddp_status cd_module_add_parameter(cd_module *module, const cd_parameter_spec *spec,
                                    uint32_t *index, cddp_error *err) CDDP_MUST_CHECK;
/* A second name for a tied parameter: found by name, counted once. */
cddp_status cd_module_add_alias(cd_module *module, const char *name, uint32_t parameter,
                                cddp_error *err) CDDP_MUST_CHECK;
/* Buffers use dtype, sizes and init of the spec. */
cddp_status cd_module_add_buffer(cd_module *module, const cd_parameter_spec *spec, uint32_t *index,
                                 cddp_error *err) CDDP_MUST_CHECK;

/* The buffer gets another tensor with the same values; the old one is released. */
cddp_status cd_module_replace_buffer(cd_module *module, uint32_t index,
                                     cddp_error *err) CDDP_MUST_CHECK;
/* The parameter's extra, made when there is none; its tensors are the caller's to allocate. */
cddp_status cd_module_get_extra(cd_module *module, uint32_t parameter, cd_parameter_extra **extra,
                                cddp_error *err) CDDP_MUST_CHECK;

int64_t cd_module_find_parameter(const cd_module *module, const char *name); /* aliases too; -1 */
int64_t cd_module_find_buffer(const cd_module *module, const char *name);    /* -1 */
int64_t cd_module_parameter_numel(const cd_module *module);                  /* of all parameters */

typedef enum cd_zero_grad { CD_ZERO_GRAD_TO_NONE, CD_ZERO_GRAD_TO_ZERO } cd_zero_grad;
/* optimizer.zero_grad(): undefined, or a defined gradient filled with zeros (an undefined one stays
** so). */
cddp_status cd_module_zero_grad(cd_module *module, cd_zero_grad how,
                                cddp_error *err) CDDP_MUST_CHECK;

void cd_module_destroy(cd_module *module); /* accepts NULL */
