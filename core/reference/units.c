/* SPDX-License-Identifier: Apache-2.0 */
/* Units from the dots in parameters' names, and the slices of each.
**
** A module is a prefix in front of a dot. The unit of a parameter is the longest of its prefixes
** that the policy wraps; the root's prefix is empty. A unit lists its modules in the order in which
** they first appear, each with its own parameters (FPM-01).
*/
#include "core/reference/units.h"

#include "core/base/error.h"
#include "core/plan/unit_precision.h"
#include "core/reference/planned.h"

#include <string.h>

#define ALIGNED_BYTES 16 /* FPM-04 */

typedef struct owned {
    const char *name;
    int64_t numel, rows;
    size_t module; /* length of its module's name; the root's is 0 */
    size_t first;  /* the first parameter below that module; the root's counts as 0 */
    size_t unit;   /* length of its unit's name */
    bool is_in_unit, is_placed;
    bool is_whole; /* ZER-06: too small a unit to be cut */
} owned;

typedef struct search {
    const cddp_plan_fsdp *fsdp;
    owned *items; /* (count) */
    size_t count;
} search;

/* The first `length` bytes of a's name are a module of b as well. */
static bool is_below(const owned *a, const owned *b, size_t length)
{
    return length == 0 || (strncmp(a->name, b->name, length) == 0 && a->name[length] == '.' &&
                           b->name[length] == '.');
}

static size_t next_module(const owned *o, size_t length)
{
    const char *dot = strchr(o->name + length + (length > 0), '.');
    return dot != NULL ? (size_t)(dot - o->name) : 0;
}

static bool is_first_below(const search *s, size_t i, size_t length)
{
    for (size_t k = 0; k < i; k++)
        if (is_below(&s->items[k], &s->items[i], length)) return false;
    return true;
}

static void mark_unit(search *s, size_t i, size_t length)
{
    for (size_t k = 0; k < s->count; k++) {
        owned *o = &s->items[k];
        if (o->is_in_unit || !is_below(&s->items[i], o, length)) continue;
        o->is_in_unit = true;
        o->unit = length;
    }
}

/* FSD-21, of the module with the first `length` bytes of parameter i's name. Returns the elements
** that are wrapped in it or below. */
static int64_t wrap_by_size(search *s, size_t i, size_t length)
{
    const int64_t least = (int64_t)s->fsdp->min_num_params;
    int64_t numel = 0, wrapped = 0;
    for (size_t k = 0; k < s->count; k++)
        if (is_below(&s->items[i], &s->items[k], length)) numel += s->items[k].numel;
    if (numel < least) return 0;
    for (size_t k = i; k < s->count; k++) {
        const size_t child = next_module(&s->items[k], length);
        if (child > 0 && is_below(&s->items[i], &s->items[k], length) &&
            is_first_below(s, k, child))
            wrapped += wrap_by_size(s, k, child);
    }
    if (length == 0 || numel - wrapped < least) return wrapped;
    mark_unit(s, i, length);
    return numel;
}

static bool is_named(const cddp_text_list *names, const char *name, size_t length)
{
    for (size_t i = 0; i < names->count; i++)
        if (strlen(names->items[i]) == length && strncmp(names->items[i], name, length) == 0)
            return true;
    return false;
}

static void find_units(search *s)
{
    if (s->fsdp->auto_wrap_policy == CDDP_SHARDING_WRAPS_SIZE && s->count > 0) {
        wrap_by_size(s, 0, 0);
        return;
    }
    for (size_t i = 0; i < s->count; i++) {
        owned *o = &s->items[i];
        if (s->fsdp->auto_wrap_policy == CDDP_SHARDING_WRAPS_ALWAYS) o->unit = o->module;
        if (s->fsdp->auto_wrap_policy != CDDP_SHARDING_WRAPS_MODULES) continue;
        for (size_t at = next_module(o, 0); at > 0; at = next_module(o, at))
            if (is_named(&s->fsdp->wrap_modules, o->name, at)) o->unit = at;
    }
}

/* Of the parameters of one unit that have no place yet: the next. Returns count: none. */
static size_t next_of(const search *s, const owned *of)
{
    size_t next = s->count;
    for (size_t i = 0; i < s->count; i++) {
        const owned *o = &s->items[i];
        if (o->is_placed || o->unit != of->unit || !is_below(o, of, o->unit)) continue;
        if (next == s->count) {
            next = i;
            continue;
        }
        const owned *best = &s->items[next];
        if (o->first < best->first || (o->first == best->first && o->module < best->module))
            next = i;
    }
    return next;
}

/* FMP-01: a unit that is named has its own dtypes and casts, whole. */
static cd_unit_precision of_unit(const cddp_plan_settings *settings, const char *parameter,
                                 size_t length)
{
    const cddp_plan_fsdp *f = &settings->fsdp;
    cd_unit_precision found = {.param = cd_planned_dtype(settings->mixed_precision.param_dtype),
                               .reduce = cd_planned_dtype(settings->mixed_precision.reduce_dtype),
                               .output =
                                   f->enable ? cd_planned_dtype(f->output_dtype) : CDDP_DTYPE_COUNT,
                               .cast_forward_inputs = f->cast_forward_inputs,
                               .cast_root_forward_inputs = f->cast_root_forward_inputs,
                               .keep_low_precision_grads = f->keep_low_precision_grads};
    for (size_t i = 0; f->enable && i < f->unit_precision.count; i++) {
        cd_unit_precision own;
        if (cd_unit_precision_read(f->unit_precision.items[i], &own) && own.length == length &&
            strncmp(own.module, parameter, length) == 0)
            found = own;
    }
    return found;
}

/* FPM-04: elements of its unit's param_dtype in 16 bytes. dtype: of the parameter itself. */
static int64_t alignment_of(const cddp_plan_settings *settings, const owned *o, cddp_dtype dtype)
{
    const cddp_dtype low = of_unit(settings, o->name, o->unit).param;
    if (!settings->fsdp.use_orig_params) return 1;
    return ALIGNED_BYTES / (int64_t)cddp_dtype_bytes(low != CDDP_DTYPE_COUNT ? low : dtype);
}

typedef struct placing {
    int64_t alignment;
    int64_t least; /* elements of a unit that is cut */
    uint32_t world;
    cd_part *parts;
    int64_t *numels, *starts; /* NULL: nobody asks */
} placing;

static void place(search *s, size_t i, const placing *p)
{
    cd_part *parts = p->parts;
    const uint32_t world = p->world;
    const int64_t alignment = p->alignment;
    const owned *of = &s->items[i];
    const bool by_rows = s->fsdp->layout == CDDP_SHARDING_CUT_ROWS;
    int64_t at = 0;
    for (size_t k = next_of(s, of); k < s->count; k = next_of(s, of)) {
        owned *o = &s->items[k];
        o->is_placed = true;
        at = (at + alignment - 1) / alignment * alignment;
        if (p->starts != NULL) p->starts[k] = at;
        const int64_t rows = (o->rows + world - 1) / world;
        parts[k] = by_rows ? (cd_part){0, o->rows > 0 ? rows * (o->numel / o->rows) : 0, 0}
                           : (cd_part){at, 0, 0};
        at += o->numel;
    }
    const int64_t share = (at + world - 1) / world;
    for (size_t k = 0; k < s->count && !by_rows; k++) {
        const owned *o = &s->items[k];
        if (o->unit == of->unit && is_below(o, of, of->unit)) parts[k].share = share;
    }
    for (size_t k = 0; k < s->count; k++) {
        owned *o = &s->items[k];
        if (o->unit != of->unit || !is_below(o, of, of->unit)) continue;
        if (p->numels != NULL) p->numels[k] = at;
        o->is_whole = at < p->least;
    }
    for (size_t k = 0; k < s->count; k++)
        if (s->items[k].is_placed && parts[k].share == 0) parts[k].share = 1;
}

/* The first parameter of its unit, + 1. */
static uint32_t number_of(const search *s, size_t i)
{
    const owned *o = &s->items[i];
    size_t first = 0;
    while (s->items[first].unit != o->unit || !is_below(&s->items[first], o, o->unit)) first++;
    return (uint32_t)first + 1;
}

cd_planned_mesh cd_planned_get_mesh(const cddp_plan *plan, const cddp_plan_settings *settings)
{
    const uint32_t world = (uint32_t)plan->world.size,
                   group = (uint32_t)settings->fsdp.shard_group_size;
    switch (settings->fsdp.sharding_strategy) {
    case CDDP_SHARDING_NO:
        return (cd_planned_mesh){1, world};
    case CDDP_SHARDING_HYBRID:
    case CDDP_SHARDING_HYBRID_ZERO2:
        return (cd_planned_mesh){group, group > 0 ? world / group : 0};
    default:
        return (cd_planned_mesh){world, 1};
    }
}

cddp_status cd_planned_find_units(const cddp_plan *plan, const cddp_plan_settings *settings,
                                  const cd_module *module, cd_arena *memory,
                                  const cd_planned_units *found, cddp_error *err)
{
    const cddp_plan_fsdp *fsdp = &settings->fsdp;
    const cd_planned_mesh mesh = cd_planned_get_mesh(plan, settings);
    const uint32_t world = mesh.shards;
    const cd_arena_mark mark = cd_arena_get_mark(memory);
    search s = {fsdp, cd_arena_array(memory, module->parameter_count + 1, sizeof *s.items),
                module->parameter_count};
    CD_TRY(cd_arena_check(memory, err, "the units of %zu parameters", module->parameter_count));
    for (size_t i = 0; i < s.count; i++) {
        const cd_parameter *p = &module->parameters[i];
        const char *last = strrchr(p->name, '.');
        s.items[i] = (owned){.name = p->name,
                             .numel = cddp_tensor_numel(&p->tensor),
                             .rows = p->tensor.dim_count > 0 ? p->tensor.sizes[0] : 1,
                             .module = last != NULL ? (size_t)(last - p->name) : 0};
        while (s.items[i].module > 0 && s.items[i].first < i &&
               !is_below(&s.items[s.items[i].first], &s.items[i], s.items[i].module))
            s.items[i].first++;
        found->parts[i] = (cd_part){0, 0, 0};
    }
    find_units(&s);
    for (size_t i = 0; i < s.count; i++) found->units[i] = number_of(&s, i);
    const bool is_cut = world > 1;
    const int64_t least =
        plan->zero.stage == 3 ? (int64_t)plan->zero.stage3_param_persistence_threshold : 0;
    for (size_t i = 0; i < s.count; i++) {
        const placing places = {alignment_of(settings, &s.items[i],
                                             module->parameters[i].tensor.dtype),
                                least,
                                world,
                                found->parts,
                                found->numels,
                                found->starts};
        if (!s.items[i].is_placed) place(&s, i, &places);
    }
    for (size_t i = 0; i < s.count; i++) {
        if (found->lengths != NULL) found->lengths[i] = s.items[i].unit;
        found->parts[i].period = is_cut && mesh.replicas > 1 ? (int64_t)world : 0;
        if (!is_cut || s.items[i].is_whole) found->parts[i].period = 0;
        if (!is_cut || s.items[i].is_whole) found->parts[i].share = found->parts[i].start = 0;
    }
    cd_arena_rewind(memory, mark);
    return CDDP_OK;
}

static cd_planned_precision precision_of(const cddp_plan_settings *settings, const char *parameter,
                                         size_t length)
{
    const cd_unit_precision own = of_unit(settings, parameter, length);
    return (cd_planned_precision){own.param,
                                  own.reduce != CDDP_DTYPE_COUNT ? own.reduce : own.param,
                                  settings->fsdp.enable && own.keep_low_precision_grads
                                      ? own.param
                                      : CDDP_DTYPE_COUNT};
}

cd_planned_casts cd_planned_get_casts(const cddp_plan_settings *settings, const char *name,
                                      size_t length)
{
    const cd_unit_precision own = of_unit(settings, name, length);
    const bool casts = own.cast_forward_inputs || (length == 0 && own.cast_root_forward_inputs);
    if (!settings->fsdp.enable) return (cd_planned_casts){CDDP_DTYPE_COUNT, CDDP_DTYPE_COUNT};
    return (cd_planned_casts){casts ? own.param : CDDP_DTYPE_COUNT, own.output};
}

cddp_status cd_planned_find_precision(const cddp_plan *plan, const cddp_plan_settings *settings,
                                      const cd_module *module, cd_arena *memory,
                                      cd_planned_precision *found, cddp_error *err)
{
    const size_t count = module->parameter_count;
    const cd_arena_mark mark = cd_arena_get_mark(memory);
    size_t *lengths = cd_arena_array(memory, count + 1, sizeof *lengths);
    uint32_t *numbers = cd_arena_array(memory, count + 1, sizeof *numbers);
    cd_part *parts = cd_arena_array(memory, count + 1, sizeof *parts);
    CD_TRY(cd_arena_check(memory, err, "the dtypes of %zu parameters", count));
    const cd_planned_units units = {.parts = parts, .units = numbers, .lengths = lengths};
    if (settings->fsdp.enable)
        CD_TRY(cd_planned_find_units(plan, settings, module, memory, &units, err));
    for (size_t i = 0; i < count; i++) {
        const cddp_dtype dtype = module->parameters[i].tensor.dtype;
        found[i] = precision_of(settings, module->parameters[i].name, lengths[i]);
        if (!settings->fsdp.enable) continue;
        if (found[i].reduce == dtype) found[i].reduce = CDDP_DTYPE_COUNT;
        if (found[i].param == dtype) found[i].param = CDDP_DTYPE_COUNT;
        if (found[i].kept == dtype) found[i].kept = CDDP_DTYPE_COUNT;
    }
    cd_arena_rewind(memory, mark);
    return CDDP_OK;
}

bool cd_planned_adds_up_apart(const cddp_plan_settings *settings)
{
    const cddp_dtype low = cd_planned_dtype(settings->mixed_precision.param_dtype),
                     reduce = cd_planned_dtype(settings->mixed_precision.reduce_dtype),
                     param = low != CDDP_DTYPE_COUNT ? low : (cddp_dtype)settings->model.dtype;
    return settings->fsdp.enable && settings->fsdp.layout == CDDP_SHARDING_CUT_ROWS &&
           settings->train.micro_steps > 1 && reduce != CDDP_DTYPE_COUNT && reduce != param;
}

void cd_planned_resume(cddp_plan_settings *settings)
{
    cddp_plan_fsdp *f = &settings->fsdp;
    switch (f->resume_strategy) {
    case CDDP_SHARDING_RESUMES_FULL:
        f->sharding_strategy = CDDP_SHARDING_FULL;
        break;
    case CDDP_SHARDING_RESUMES_GRAD_OP:
        f->sharding_strategy = CDDP_SHARDING_GRAD_OP;
        break;
    case CDDP_SHARDING_RESUMES_NO:
        f->sharding_strategy = CDDP_SHARDING_NO;
        break;
    case CDDP_SHARDING_RESUMES_HYBRID:
        f->sharding_strategy = CDDP_SHARDING_HYBRID;
        break;
    case CDDP_SHARDING_RESUMES_HYBRID_ZERO2:
        f->sharding_strategy = CDDP_SHARDING_HYBRID_ZERO2;
        break;
    default:
        break;
    }
    if (f->resume_strategy != CDDP_SHARDING_RESUMES_SAME)
        f->shard_group_size = f->resume_shard_group_size;
    if (f->resume_layout == CDDP_SHARDING_RESUMES_FLAT) f->layout = CDDP_SHARDING_CUT_FLAT;
    if (f->resume_layout == CDDP_SHARDING_RESUMES_ROWS) f->layout = CDDP_SHARDING_CUT_ROWS;
}

bool cd_planned_is_resumed(const cddp_plan_settings *settings, uint32_t step)
{
    return settings->fsdp.enable && settings->train.resume &&
           step >= settings->train.checkpoint_step;
}
