/* SPDX-License-Identifier: Apache-2.0 */
/* Link 14, formula: elements of an update against the published formula of their optimizer. All of
** a tensor that is not large are judged, of the others drawn ones.
**
** Parameters, gradients and state are those that link 4 uses. Only the arithmetic is a second one,
** so an error of core/model/optim does not vouch for itself.
*/
#include "core/oracle/state.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/oracle/carried.h"
#include "core/oracle/form_update.h"
#include "core/oracle/second/repeat.h"

#include <math.h>
#include <string.h>

/* Elements of one tensor that are judged in one step. */
#define JUDGED_MAX 4096

/* One parameter of one optimizer, before the step. */
struct cd_kept_elements {
    size_t parameter, count;
    uint32_t optimizer;
    bool is_present;
    uint64_t steps;
    cd_part_range own;                   /* of the elements that this rank steps */
    uint32_t *elements;                  /* (count) positions among those */
    double *before;                      /* (count) of the parameter */
    double *slots[CD_FORMULA_SLOTS_MAX]; /* (count) */
    cddp_tensor form, momentum;          /* on exact devices, borrowed until the step is judged */
};

bool cd_oracle_draws_step(const cd_oracle *o, uint32_t step)
{
    const uint32_t steps = o->options.step_count;
    if (step == 0 || step + 1 == steps) return true;
    cd_prng prng = cd_prng_seed(o->options.seed);
    cd_prng drawn = cd_prng_split(&prng, "judged step");
    return steps > 2 && step == 1 + cd_prng_below(&drawn, steps - 2);
}

bool cd_oracle_wants_formulas(const cd_oracle *o)
{
    return cd_oracle_has_values(o) || cd_oracle_is_exact_device(o);
}

/* All elements; of a large tensor the first, the last, and drawn ones between. */
static cddp_status choose_elements(cd_oracle *o, struct cd_kept_elements *k, size_t numel,
                                   cddp_error *err)
{
    const cd_prng prng = cd_prng_seed(o->options.seed);
    const uint64_t place = (uint64_t)o->step * o->options.parameter_count + k->parameter;
    cd_prng drawn = cd_prng_split_index(&prng, "judged elements", place);
    k->count = numel < JUDGED_MAX ? numel : JUDGED_MAX;
    k->elements = cd_arena_array(&o->formula_room, k->count, sizeof *k->elements);
    k->before = cd_arena_array(&o->formula_room, k->count, sizeof *k->before);
    for (uint32_t s = 0; s < CD_FORMULA_SLOTS_MAX; s++)
        k->slots[s] = cd_arena_array(&o->formula_room, k->count, sizeof *k->slots[s]);
    CD_TRY(cd_arena_check(&o->formula_room, err, "%zu elements before a step", k->count));
    for (size_t i = 0; i < k->count; i++)
        k->elements[i] = (uint32_t)(numel <= JUDGED_MAX ? i : cd_prng_below(&drawn, numel));
    if (numel > JUDGED_MAX) {
        k->elements[0] = 0;
        k->elements[1] = (uint32_t)(numel - 1);
    }
    return CDDP_OK;
}

static cddp_status pick(cd_oracle *o, const struct cd_kept_elements *k, const cddp_tensor *tensor,
                        int64_t first, double *picked, cddp_error *err)
{
    CD_TRY(cd_numbers_read(&o->numbers, tensor, err));
    for (size_t i = 0; i < k->count; i++) {
        const size_t at = (size_t)first + k->elements[i];
        picked[i] = at < o->numbers.count ? o->numbers.values[at] : (double)NAN;
    }
    return CDDP_OK;
}

static cd_part_range own_range(const cd_oracle *o, const cd_oracle_parameter *p)
{
    return p->part.share != 0 ? cd_part_get(&p->part, p->numel, o->options.rank)
                              : (cd_part_range){0, p->numel};
}

static cddp_status keep_one(cd_oracle *o, const cddp_tensor *parameters,
                            const cd_oracle_optimized *entry, cddp_error *err)
{
    const cd_oracle_parameter *p = &o->parameters[entry->parameter];
    const cd_part_range own = p->part.share != 0 ? cd_part_get(&p->part, p->numel, o->options.rank)
                                                 : (cd_part_range){0, p->numel};
    if (own.end <= own.first) return CDDP_OK;
    struct cd_kept_elements *k = &o->kept_elements[o->kept_count];
    k->parameter = entry->parameter;
    k->optimizer = entry->optimizer;
    k->is_present = entry->is_present;
    k->steps = entry->steps;
    k->own = own;
    if (cd_oracle_is_exact_device(o)) {
        k->form = parameters[k->parameter];
        k->momentum = entry->is_present ? entry->slots[0] : (cddp_tensor){.device = NULL};
        o->kept_count++;
        return CDDP_OK;
    }
    CD_TRY(choose_elements(o, k, (size_t)(own.end - own.first), err));
    CD_TRY(pick(o, k, &parameters[k->parameter], k->own.first, k->before, err));
    for (uint32_t s = 0; s < CD_FORMULA_SLOTS_MAX; s++) {
        if (entry->is_present && entry->slots[s].device != NULL)
            CD_TRY(pick(o, k, &entry->slots[s], 0, k->slots[s], err));
    }
    o->kept_count++;
    return CDDP_OK;
}

cddp_status cd_oracle_keep_optimized(cd_oracle *o, const cddp_tensor *parameters,
                                     const cd_oracle_optimized *entries, size_t count,
                                     cddp_error *err)
{
    o->kept_count = 0;
    cd_arena_rewind(&o->formula_room, (cd_arena_mark){0});
    if (!cd_vec_grow(o->options.allocator, (void **)&o->kept_elements, &o->kept_capacity, count,
                     sizeof *o->kept_elements))
        return cd_fail_memory(err, "the elements of %zu parameters before a step", count);
    for (size_t i = 0; i < count; i++) {
        const bool has_state = entries[i].is_present || entries[i].steps > 0;
        if (!o->has_seen_state && has_state) o->starts_with_state = true;
        CD_TRY(keep_one(o, parameters, &entries[i], err));
    }
    o->has_seen_state = true;
    return CDDP_OK;
}

void cd_oracle_release_formulas(cd_oracle *o)
{
    cd_release(o->options.allocator, o->kept_elements, o->kept_capacity * sizeof *o->kept_elements);
}

/* ---- after the step ---- */

typedef struct judged_tensor {
    const struct cd_kept_elements *kept;
    const cd_formula *formula;
    cddp_dtype dtype;
    uint64_t rows;                                           /* of a sparse gradient */
    double *gradients, *after, *slots[CD_FORMULA_SLOTS_MAX]; /* (count of kept) */
    uint32_t slot_count;
} judged_tensor;

/* What the formula makes of an element: in real numbers, and the bits where they are predicted. */
typedef struct made_element {
    cd_formula_result ball;
    cd_repeat repeat;
} made_element;

static const cd_ball *get_ball(const cd_formula_result *r, uint32_t slot)
{
    return slot == CD_FORMULA_SLOTS_MAX ? &r->parameter : &r->slots[slot];
}

static bool can_be(const made_element *made, uint32_t slot, double found)
{
    if (!cd_ball_has(get_ball(&made->ball, slot), found)) return false;
    bool any = made->repeat.count == 0;
    for (uint32_t i = 0; i < made->repeat.count; i++)
        any = any || cd_ball_has(get_ball(&made->repeat.ways[i], slot), found);
    return any;
}

/* One element that differs, into the comparison, where it is the first. */
static void note(cd_comparison *c, const judged_tensor *j, size_t i, uint32_t slot,
                 const made_element *made, double found)
{
    const bool is_parameter = slot == CD_FORMULA_SLOTS_MAX;
    const bool has_bits = made->repeat.count > 0;
    const cd_ball *wanted = get_ball(has_bits ? &made->repeat.ways[0] : &made->ball, slot);
    c->numel++;
    /* what left the range of a narrow dtype shows elsewhere */
    const bool is_out = !isfinite(found) && j->dtype != CDDP_F64 && j->dtype != CDDP_F32;
    if (c->bad == 0 && wanted->radius > c->bound && wanted->radius < INFINITY)
        c->bound = wanted->radius;
    if (is_out || can_be(made, slot, found)) return;
    if (c->bad++ != 0) return;
    c->element = j->kept->own.first + (int64_t)j->kept->elements[i];
    c->expected = wanted->value;
    c->actual = found;
    c->bound = wanted->radius;
    c->shape = CD_SHAPE_UNEXPLAINED;
    const double distance = fabs(found - wanted->value) / cd_dtype_ulp(j->dtype, wanted->value);
    c->ulps = distance < 0x1p62 ? (uint64_t)(distance + 0.5) : UINT64_C(1) << 62;
    cd_text_format(c->words, sizeof c->words,
                   "%s after update %llu: the formula makes %.9g of gradient %.9g, not %.9g",
                   is_parameter ? "the value" : cd_formula_slot_name(j->formula->kind, slot),
                   (unsigned long long)j->kept->steps + 1, wanted->value, j->gradients[i], found);
}

static void judge_elements(const judged_tensor *j, cd_comparison *c)
{
    const struct cd_kept_elements *k = j->kept;
    for (size_t i = 0; i < k->count; i++) {
        cd_formula_element before = {.dtype = j->dtype,
                                     .parameter = k->before[i],
                                     .gradient = j->gradients[i],
                                     .has_slots = k->is_present,
                                     .steps = k->steps,
                                     .addends = j->rows};
        for (uint32_t s = 0; s < CD_FORMULA_SLOTS_MAX; s++) before.slots[s] = k->slots[s][i];
        const made_element made = {cd_formula_apply(j->formula, &before),
                                   cd_formula_repeat(j->formula, &before)};
        for (uint32_t s = 0; s < made.ball.slot_count && s < j->slot_count; s++)
            note(c, j, i, s, &made, j->slots[s][i]);
        note(c, j, i, CD_FORMULA_SLOTS_MAX, &made, j->after[i]);
    }
}

static void judge_count(const judged_tensor *j, const cd_oracle_optimized *after, cd_comparison *c)
{
    const bool counts = j->formula->kind != CD_FORMULA_SGD;
    if (!counts || after->steps == j->kept->steps + 1) return;
    *c = (cd_comparison){.bad = 1,
                         .element = 0,
                         .expected = (double)j->kept->steps + 1,
                         .actual = (double)after->steps,
                         .shape = CD_SHAPE_UNEXPLAINED};
    cd_text_format(c->words, sizeof c->words,
                   "its optimizer counts %llu updates after the one that follows update %llu",
                   (unsigned long long)after->steps, (unsigned long long)j->kept->steps);
}

static const cd_oracle_optimized *find_entry(const cd_oracle_formulas *f,
                                             const struct cd_kept_elements *k)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->after[i].parameter == k->parameter && f->after[i].optimizer == k->optimizer)
            return &f->after[i];
    return NULL;
}

/* Only SGD keeps forms linear. */
static cddp_status judge_form(cd_oracle *o, const cd_oracle_formulas *f,
                              const struct cd_kept_elements *k, cddp_error *err)
{
    const cddp_grad *gradient = &f->gradients[k->parameter];
    const bool is_whole = k->own.first == 0 && k->own.end == o->parameters[k->parameter].numel;
    const cd_form_update update = {.parameter = k->parameter,
                                   .formula = &f->formulas[k->optimizer],
                                   .before = &k->form,
                                   .gradient = &gradient->value,
                                   .after = &f->parameters[k->parameter],
                                   .momentum = k->momentum.device != NULL ? &k->momentum : NULL};
    if (update.formula->kind != CD_FORMULA_SGD || gradient->kind != CDDP_GRAD_DENSE || !is_whole) {
        cd_oracle_give_up(o, CD_LINK_FORMULA, 1, "an update of forms that has no formula");
        return CDDP_OK;
    }
    return CD_PASS(cd_form_update_judge(o, &update, err));
}

static cddp_status judge_tensor(cd_oracle *o, const cd_oracle_formulas *f,
                                const struct cd_kept_elements *k, cddp_error *err)
{
    const cddp_grad *gradient = &f->gradients[k->parameter];
    const cd_oracle_optimized *after = find_entry(f, k);
    const cd_oracle_parameter *p = &o->parameters[k->parameter];
    if (gradient->kind == CDDP_GRAD_UNDEFINED || after == NULL) return CDDP_OK;
    if (cd_oracle_is_exact_device(o)) return CD_PASS(judge_form(o, f, k, err));
    judged_tensor j = {.kept = k,
                       .formula = &f->formulas[k->optimizer],
                       .dtype = p->dtype,
                       .rows =
                           gradient->kind == CDDP_GRAD_SPARSE ? (uint64_t)gradient->rows.count : 0};
    j.gradients = cd_arena_array(&o->formula_room, k->count, sizeof *j.gradients);
    j.after = cd_arena_array(&o->formula_room, k->count, sizeof *j.after);
    for (uint32_t s = 0; s < CD_FORMULA_SLOTS_MAX; s++)
        j.slots[s] = cd_arena_array(&o->formula_room, k->count, sizeof *j.slots[s]);
    CD_TRY(cd_arena_check(&o->formula_room, err, "%zu elements after a step", k->count));
    CD_TRY(cd_numbers_read_gradient(&o->numbers, gradient, (size_t)p->numel, err));
    for (size_t i = 0; i < k->count; i++)
        j.gradients[i] = o->numbers.values[(size_t)k->own.first + k->elements[i]];
    CD_TRY(pick(o, k, &f->parameters[k->parameter], k->own.first, j.after, err));
    while (j.slot_count < CD_FORMULA_SLOTS_MAX && after->slots[j.slot_count].device != NULL) {
        CD_TRY(pick(o, k, &after->slots[j.slot_count], 0, j.slots[j.slot_count], err));
        j.slot_count++;
    }
    cd_comparison c = {.element = -1};
    o->undrawn_updates += (uint64_t)(k->own.end - k->own.first) - k->count;
    judge_elements(&j, &c);
    judge_count(&j, after, &c);
    cd_oracle_report(o, CD_LINK_FORMULA, k->parameter, &c);
    return CDDP_OK;
}

/* (parameters) How many optimizers step each. A second one starts from what the first one left. */
static cddp_status count_steps(cd_oracle *o, const cd_oracle_formulas *f, uint32_t **times,
                               cddp_error *err)
{
    size_t end = 0;
    for (size_t i = 0; i < o->kept_count; i++)
        if (o->kept_elements[i].parameter >= end) end = o->kept_elements[i].parameter + 1;
    *times = cd_arena_array(&o->formula_room, end, sizeof **times);
    CD_TRY(cd_arena_check(&o->formula_room, err, "the optimizers of %zu parameters", end));
    if (end > 0) memset(*times, 0, end * sizeof **times);
    for (size_t i = 0; i < o->kept_count; i++)
        (*times)[o->kept_elements[i].parameter] += f->due[o->kept_elements[i].optimizer];
    return CDDP_OK;
}

cddp_status cd_oracle_judge_formulas(cd_oracle *o, const cd_oracle_formulas *formulas,
                                     cddp_error *err)
{
    uint64_t twice = 0, moved = 0;
    uint32_t *times = NULL;
    CD_TRY(cd_carried_step(o, formulas, err));
    CD_TRY(count_steps(o, formulas, &times, err));
    for (size_t i = 0; i < o->kept_count; i++) {
        const struct cd_kept_elements *k = &o->kept_elements[i];
        if (!formulas->due[k->optimizer]) continue;
        const cd_part_range own = own_range(o, &o->parameters[k->parameter]);
        if (times[k->parameter] > 1)
            twice++;
        else if (own.first != k->own.first || own.end != k->own.end)
            moved++;
        else
            CD_TRY(judge_tensor(o, formulas, k, err));
    }
    o->kept_count = 0;
    cd_oracle_give_up(o, CD_LINK_FORMULA, twice,
                      "two optimizers step the same parameter, one after the other");
    cd_oracle_give_up(o, CD_LINK_FORMULA, moved,
                      "the parts of a sharded optimizer were assigned during the step");
    return CDDP_OK;
}
