/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapped module as the reducer sees it: named parameters and buffers, who is ignored, who is
** reduced.
**
** Ownership  copies names; borrows tensors and gradient slots, which outlive the module table. Lies
**            still from init to fini: variables are parameters of it, and everything that knows a
**            variable points there.
** Errors     messages name the parameter.
*/
#pragma once
#include "cddp/ddp.h"
#include "core/base/arena.h"
#include "core/ddp/parts/bucket_plan.h"
#include "core/ddp/parts/tensor_forms.h"

#define CD_NOT_REDUCED UINT32_MAX

typedef struct cd_wrapped_parameter {
    const char *name; /* in the module's arena */
    uint64_t name_digest;
    cd_packed_tensor tensor;
    cddp_grad *grad;
    bool requires_grad, expect_sparse;
    /* on the ignore list, or delayed: no bucket, no verification (IGN-02, DEL-01) */
    bool is_ignored;
    bool is_delayed;
    /* variable index, shared by every name of a shared parameter; or CD_NOT_REDUCED */
    uint32_t variable;
} cd_wrapped_parameter;

typedef struct cd_wrapped_buffer {
    const char *name;
    cddp_tensor tensor;
    bool is_ignored;
} cd_wrapped_buffer;

/* One reduced parameter, in its first not ignored occurrence; its position among them is the
** variable index (INI-05). */
typedef cd_wrapped_parameter cd_variable;

typedef struct cd_wrapped {
    const cddp_allocator *allocator;
    cd_arena arena;                   /* owns the tables and names below */
    cd_wrapped_parameter *parameters; /* (parameter_count) */
    size_t parameter_count;
    cd_wrapped_buffer *buffers; /* (buffer_count) */
    size_t buffer_count;
    uint32_t *ordinals; /* (variable_count) a variable's position among all parameters */
    size_t variable_count;
    cd_tensor_forms forms;
    bool *expect_sparse;  /* (variable_count), as the bucket assignment wants it */
    uint64_t total_bytes; /* of all variables */
} cd_wrapped;

cddp_status cd_wrapped_init(cd_wrapped *module, const cddp_ddp_options *options,
                            const cddp_allocator *allocator, cddp_error *err);
void cd_wrapped_fini(cd_wrapped *module); /* accepts a zeroed module */
static inline const cd_variable *cd_wrapped_variable(const cd_wrapped *module, size_t variable)
{
    return &module->parameters[module->ordinals[variable]];
}
/* Sizes and keys for the bucket assignment, in the given order of variables (NULL: registration
** order). Full-precision sizes count, also under mixed precision. (variable_count), in the
** arena. */
cddp_status cd_wrapped_bucket_inputs(const cd_wrapped *module, const uint32_t *order,
                                     cd_arena *arena, const cd_bucket_input **inputs,
                                     cddp_error *err);
/* Refuses what no device may be handed: too many dimensions, an unknown dtype, negative sizes,
** elements that share memory. */
cddp_status cd_wrapped_check_tensor(const cddp_tensor *tensor, const char *name, cddp_error *err);
/* Can this gradient be copied to where the parameter's gradients lie? What a program left in a slot
** need not fit; nobody copies it then. */
bool cd_wrapped_takes(const cd_wrapped_parameter *parameter, const cddp_grad *grad,
                      cddp_dtype dtype);
/* Of the first parameter that is not ignored; a module has one (INI-03). */
const cddp_device *cd_module_device(const cd_wrapped *module);
/* Position of a named parameter or buffer, or -1. */
int64_t cd_wrapped_find_parameter(const cd_wrapped *module, const char *name);
int64_t cd_wrapped_find_buffer(const cd_wrapped *module, const char *name);
