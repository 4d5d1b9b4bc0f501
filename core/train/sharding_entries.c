/* SPDX-License-Identifier: Apache-2.0 */
/* What a wrapper hands out of its state, held to the model: known names, their shapes, and each of
** them once. So a wrapper that leaves one out, or gives another one, is an error in one sentence.
**
** Not here: what becomes of the values (sharding.c, sharding_state.c). */
#include "core/train/sharding.h"

#include "cddp/fsdp.h"
#include "core/base/error.h"
#include "core/tensor/view.h"
#include "core/train/trainer.h"

#include <string.h>

static int64_t rows_of(const cddp_tensor *t) { return t->dim_count > 0 ? t->sizes[0] : 1; }

static bool fits(const cddp_fsdp_entry *e, const cddp_tensor *whole)
{
    const int64_t rows = rows_of(whole), row = rows > 0 ? cddp_tensor_numel(whole) / rows : 0;
    if (e->tensor.device == NULL || e->dim_count != whole->dim_count) return false;
    for (uint32_t d = 0; d < whole->dim_count; d++)
        if (e->sizes[d] != whole->sizes[d]) return false;
    return e->first_row >= 0 && e->row_count >= 0 && e->row_count <= rows &&
           e->first_row <= rows - e->row_count &&
           cddp_tensor_numel(&e->tensor) == e->row_count * row;
}

/* What an entry is to be. */
typedef struct due {
    const char *name;
    const cddp_tensor *whole;
    cddp_dtype dtype;
    bool takes_rows;
} due;

static cddp_status check_entry(const cddp_fsdp_entry *e, const due *d, cddp_error *err)
{
    const char *name = d->name;
    const cddp_tensor *whole = d->whole;
    char left[96], right[96];
    if (e->name == NULL || strcmp(e->name, name) != 0)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the sharded model gives '%s' of its state as number %zu, which is '%s' in "
                       "the model",
                       e->name != NULL ? e->name : "(no name)", e->ordinal, name);
    const bool is_part = e->row_count != rows_of(whole);
    if (!fits(e, whole) || (is_part && !d->takes_rows) || e->tensor.dtype != d->dtype)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the sharded model gives %lld rows of '%s' from row %lld on, %lld elements "
                       "of %s [%s]; the model has it as %s [%s]",
                       (long long)e->row_count, name, (long long)e->first_row,
                       e->tensor.device != NULL ? (long long)cddp_tensor_numel(&e->tensor) : 0,
                       cddp_dtype_name(e->tensor.dtype),
                       cd_sizes_print(e->sizes, e->dim_count, left, sizeof left),
                       cddp_dtype_name(d->dtype),
                       cd_sizes_print(whole->sizes, whole->dim_count, right, sizeof right));
    return CDDP_OK;
}

cddp_status cd_sharding_entries_begin(cd_sharding_entries *came, const cd_trainer *t,
                                      const cddp_tensor *vectors, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const size_t count = module->parameter_count + module->buffer_count;
    if (came->seen == NULL) {
        came->seen = cd_arena_array(came->memory, count + 1, sizeof *came->seen);
        CD_TRY(cd_arena_check(came->memory, err, "the names of a state"));
    }
    memset(came->seen, 0, (count + 1) * sizeof *came->seen);
    came->vectors = vectors;
    return CDDP_OK;
}

cddp_status cd_sharding_entries_take(cd_sharding_entries *came, const cd_trainer *t,
                                     const cddp_fsdp_entry *e, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const size_t count = e->is_buffer ? module->buffer_count : module->parameter_count,
                 at = e->ordinal + (e->is_buffer ? module->parameter_count : 0);
    if (e->ordinal >= count)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the sharded model gives %s number %zu of its state, and the model has %zu",
                       e->is_buffer ? "buffer" : "parameter", e->ordinal, count);
    due d = {.takes_rows = came->takes_rows};
    d.name = e->is_buffer ? module->buffers[e->ordinal].name : module->parameters[e->ordinal].name;
    d.whole =
        e->is_buffer ? &module->buffers[e->ordinal].tensor : &module->parameters[e->ordinal].tensor;
    d.dtype = d.whole->dtype;
    if (came->vectors != NULL && !e->is_buffer)
        d.dtype = came->vectors[cd_sharding_unit_of(t, e->ordinal)].dtype;
    CD_TRY(check_entry(e, &d, err));
    if (came->seen[at])
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the sharded model gives '%s' of its state twice, and the model has it once",
                       d.name);
    came->seen[at] = true;
    return CDDP_OK;
}

cddp_status cd_sharding_entries_end(const cd_sharding_entries *came, const cd_trainer *t,
                                    cddp_error *err)
{
    const cddp_tensor *vectors = came->vectors;
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++) {
        const bool is_due = vectors == NULL || vectors[cd_sharding_unit_of(t, i)].device != NULL;
        if (came->seen[i] == is_due) continue;
        return cd_fail(err, CDDP_E_MISMATCH,
                       is_due ? "the state that the sharded model gives has no '%s', which the "
                                "model has"
                              : "the state that the sharded model gives has '%s', whose unit has "
                                "none",
                       module->parameters[i].name);
    }
    for (size_t i = 0; vectors == NULL && i < module->buffer_count; i++)
        if (!came->seen[module->parameter_count + i])
            return cd_fail(err, CDDP_E_MISMATCH,
                           "the state that the sharded model gives has no buffer '%s', which the "
                           "model has",
                           module->buffers[i].name);
    return CDDP_OK;
}
