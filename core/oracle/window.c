/* SPDX-License-Identifier: Apache-2.0 */
/* Drives the engine over ranks, micro-steps and samples, and sums the results.
**
** See Note [Addends of the reference]
**
** Note [Addends of the reference] The reference sum of link 1 is taken over single samples while
** computing them does not round. Then nothing in the batch can round either, and equality is
** bitwise. A sample's gradient that is itself a rounded sum (a module used twice, a sum over
** positions) may be associated differently inside a batch, so its bits are not an addend of the
** batch's gradient. When the processor's flags show such rounding, the addends are whole
** micro-batches. Link 3 has shown these to be the rank's own bits, so only sums over micro-steps
** and ranks are bounded. A cast of gradients to a narrower dtype rounds without a flag; then the
** caller clears sample_wise. */
#include "core/oracle/window.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/oracle/exact_inputs.h"
#include "core/oracle/form_quotient.h"
#include "core/tensor/dtype.h"

cddp_dtype cd_window_get_wire(const cd_window *window, const cd_oracle_parameter *parameter)
{
    return parameter->casts.is_given ? parameter->casts.wire : window->wire;
}

void cd_window_init(cd_window *window, const cddp_allocator *allocator)
{
    *window = (cd_window){.allocator = allocator,
                          .numbers = {.allocator = allocator, .has_lanes = true},
                          .more = {.allocator = allocator, .has_lanes = true}};
}

static void release_expected(cd_window_parameter *p)
{
    if (p->expected.device == NULL) return;
    int64_t numel = cddp_tensor_numel(&p->expected);
    p->expected.device->release(p->expected.device, p->expected.dtype, numel > 0 ? numel : 1,
                                p->expected.storage);
    p->expected.device = NULL;
}

static void release_parameters(cd_window *window)
{
    for (size_t i = 0; window->parameters != NULL && i < window->parameter_count; i++) {
        cd_wide_sum_fini(&window->parameters[i].samples);
        cd_wide_sum_fini(&window->parameters[i].contributions);
        cd_any_order_fini(&window->parameters[i].addends);
        release_expected(&window->parameters[i]);
    }
    cd_release(window->allocator, window->parameters,
               window->parameter_count * sizeof *window->parameters);
    window->parameters = NULL;
    window->parameter_count = 0;
}

void cd_window_fini(cd_window *window)
{
    release_parameters(window);
    cd_window_release_locals(window);
    cd_numbers_fini(&window->numbers);
    cd_numbers_fini(&window->more);
    cd_window_init(window, window->allocator);
}

static bool has_values(const cd_start *start)
{
    return start->parameter_count > 0 && (start->values[0].device->flags & CDDP_DEVICE_VALUES) != 0;
}

static bool is_exact_device(const cd_start *start)
{
    return start->parameter_count > 0 && (start->values[0].device->flags & CDDP_DEVICE_EXACT) != 0;
}

static cddp_status make_expected(cd_window_parameter *p, const cddp_tensor *like, cddp_error *err)
{
    void *storage = NULL;
    int64_t numel = cddp_tensor_numel(like);
    CD_TRY(like->device->allocate(like->device, like->dtype, numel > 0 ? numel : 1, &storage, err));
    p->expected =
        cddp_tensor_of(like->device, storage, 0, like->dtype, like->sizes, like->dim_count);
    return CDDP_OK;
}

/* True when its parameters have the same sizes and dtypes. A rank may have registered them in
** another order. */
static bool fits(const cd_window *w, const cd_start *start)
{
    bool all = w->parameter_count == start->parameter_count;
    for (size_t i = 0; all && i < start->parameter_count; i++) {
        const cddp_tensor *mine = &w->parameters[i].expected, *theirs = &start->values[i];
        all = mine->dim_count == theirs->dim_count;
        for (uint32_t d = 0; all && d < mine->dim_count; d++)
            all = mine->sizes[d] == theirs->sizes[d];
        all = all && mine->device == theirs->device && mine->dtype == theirs->dtype;
    }
    return all;
}

static cddp_status make_parameters(cd_window *w, const cd_start *start, cddp_error *err)
{
    if (w->parameters != NULL && fits(w, start)) return CDDP_OK;
    release_parameters(w);
    w->parameters = cd_allocate_array(w->allocator, start->parameter_count, sizeof *w->parameters);
    if (w->parameters == NULL)
        return cd_fail_memory(err, "the oracle's %zu parameters", start->parameter_count);
    w->parameter_count = start->parameter_count;
    w->is_exact_device = is_exact_device(start);
    for (size_t i = 0; i < start->parameter_count; i++) {
        cd_window_parameter *p = &w->parameters[i];
        const cd_oracle_parameter *meta = &start->parameters[i];
        CD_TRY(make_expected(p, &start->values[i], err));
        if (w->is_exact_device || !has_values(start)) continue;
        CD_TRY(cd_wide_sum_init(&p->samples, w->allocator, meta->dtype, (size_t)meta->numel, err));
        CD_TRY(cd_wide_sum_init(&p->contributions, w->allocator, meta->dtype, (size_t)meta->numel,
                                err));
        CD_TRY(cd_any_order_init(&p->addends, w->allocator, (size_t)meta->numel, start->world_size,
                                 err));
    }
    return CDDP_OK;
}

static cddp_status clear_parameters(cd_window *w, cddp_error *err)
{
    w->contributors = w->parts = 0;
    for (size_t i = 0; i < w->parameter_count; i++) {
        cd_window_parameter *p = &w->parameters[i];
        p->fired = p->fired_here = false;
        if (w->is_exact_device) CD_TRY(p->expected.device->fill(&p->expected, 0, NULL, err));
        if (p->samples.limbs != NULL) cd_wide_sum_clear(&p->samples);
        if (p->contributions.limbs != NULL) cd_wide_sum_clear(&p->contributions);
        cd_any_order_clear(&p->addends);
    }
    return CDDP_OK;
}

static cd_oracle_part part_of(const cd_oracle_reduction *reduction, uint32_t rank, uint32_t micro)
{
    return (cd_oracle_part){.rank = rank,
                            .step = reduction->step,
                            .micro_step = micro,
                            .sample = CD_ORACLE_ALL};
}

static cd_oracle_span span_of(const cd_oracle_reduction *reduction, uint32_t rank)
{
    return reduction->spans != NULL
               ? reduction->spans[rank]
               : (cd_oracle_span){reduction->micro_first, reduction->micro_step + 1};
}

static bool rank_contributes(const cd_start *start, const cd_oracle_reduction *reduction,
                             uint32_t rank)
{
    const cd_oracle_span span = span_of(reduction, rank);
    for (uint32_t m = span.first; m < span.end; m++) {
        cd_oracle_part part = part_of(reduction, rank, m);
        if (start->engine->sample_count(start->engine->self, &part) > 0) return true;
    }
    return false;
}

static bool is_averaged(const cd_oracle_reduction *r, uint32_t rank)
{
    return r->rank_count == 0 || (rank >= r->rank_first && rank - r->rank_first < r->rank_count);
}

/* Takes the gradients of one part, computed from dropped gradients: which parameters fired, and one
** addend of every parameter's sum. */
static cddp_status take_part(cd_window *w, const cd_start *start, cddp_error *err)
{
    const cddp_grad *grads = start->engine->gradients(start->engine->self);
    w->parts++;
    for (size_t i = 0; i < w->parameter_count; i++) {
        cd_window_parameter *p = &w->parameters[i];
        if (grads[i].kind == CDDP_GRAD_UNDEFINED) continue;
        p->fired = true;
        p->fired_here |= w->counts;
        if (!w->counts || p->samples.limbs == NULL) continue;
        CD_TRY(cd_numbers_read_gradient(&w->numbers, &grads[i], p->samples.numel, err));
        cd_wide_sum_push(&p->samples, w->numbers.values);
    }
    return CDDP_OK;
}

static cddp_status sum_samples(cd_window *w, const cd_start *start, const cd_oracle_part *whole,
                               cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    uint32_t count = e->sample_count(e->self, whole);
    bool single = start->sample_wise && has_values(start) && !w->rounds;
    for (uint32_t s = 0; s < (single ? count : count > 0); s++) {
        cd_oracle_part part = *whole;
        part.objective = true;
        bool rounded = true;
        if (single) part.sample = s;
        e->drop_gradients(e->self);
        bool has_flags = cd_exact_flags_begin();
        CD_TRY(e->run(e->self, &part, err));
        if (single && (!has_flags || !cd_exact_flags_end(&rounded) || rounded)) {
            w->rounds = true;
            return CDDP_OK;
        }
        CD_TRY(take_part(w, start, err));
    }
    return CDDP_OK;
}

static cddp_status push_kept(cd_window *w, const cd_start *start, cddp_error *err)
{
    for (size_t i = 0; i < w->parameter_count; i++) {
        cd_window_parameter *p = &w->parameters[i];
        if (start->kept[i].kind == CDDP_GRAD_UNDEFINED || p->samples.limbs == NULL) continue;
        CD_TRY(cd_numbers_read_gradient(&w->numbers, &start->kept[i], p->samples.numel, err));
        cd_wide_sum_push(&p->samples, w->numbers.values);
    }
    return CDDP_OK;
}

static cddp_status load(const cd_start *start, bool has_forgotten, cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    CD_TRY(e->load(e->self, start->values, start->buffers, err));
    for (size_t i = 0; !has_forgotten && i < start->parameter_count; i++)
        if (start->kept[i].kind != CDDP_GRAD_UNDEFINED)
            CD_TRY(e->set_gradient(e->self, i, &start->kept[i], err));
    return CDDP_OK;
}

cddp_status cd_start_run_rank(const cd_start *start, const cd_oracle_reduction *reduction,
                              uint32_t rank, cddp_error *err)
{
    const cd_oracle_span span = span_of(reduction, rank);
    CD_TRY(load(start, reduction->has_forgotten, err));
    for (uint32_t m = span.first; m < span.end; m++) {
        cd_oracle_part part = part_of(reduction, rank, m);
        if (start->engine->sample_count(start->engine->self, &part) > 0)
            CD_TRY(start->engine->run(start->engine->self, &part, err));
    }
    return CDDP_OK;
}

static void cast_to_wire(cd_window *w)
{
    for (size_t i = 0; i < w->numbers.count; i++)
        w->numbers.values[i] = cd_dtype_round(w->wire, w->numbers.values[i]);
}

/* Cast first, then divide, one rounding each (HK-02). The quotient of a half type is computed in
** f64 first. This is harmless: twice the precision plus two bits is enough. */
static void divide_in_wire(cd_window *w)
{
    for (size_t i = 0; i < w->numbers.count; i++) {
        unsigned char low[sizeof(double)];
        cd_element_set(w->wire, low, w->numbers.values[i]);
        cd_element_set(w->wire, low, cd_element_get(w->wire, low) / (double)w->divisor);
        w->numbers.values[i] = cd_element_get(w->wire, low);
    }
}

/* A gradient divided as a rank would do it, in its dtype. */
static cddp_status divide_gradient(const cd_window *w, const cddp_tensor *grad, bool truly,
                                   cd_numbers *result, cddp_error *err)
{
    CD_TRY(cd_numbers_read(result, grad, err));
    if (truly)
        cd_dtype_divide(grad->dtype, result->values, result->count, (int64_t)w->divisor);
    else
        cd_dtype_multiply_reciprocal(grad->dtype, result->values, result->count,
                                     (int64_t)w->divisor);
    return CDDP_OK;
}

/* Cast to the dtype of the additions, and divided before them; what is left is done behind. */
static void divide_around(cd_window *w, cd_window_parameter *p)
{
    const uint64_t before = w->before > 1 ? w->before : 1;
    p->divided_after = w->divisor;
    p->times_after = before;
    for (; p->times_after > 1 && p->divided_after % 2 == 0; p->times_after /= 2)
        p->divided_after /= 2;
    for (size_t i = 0; i < w->numbers.count; i++) {
        const double cast = cd_dtype_round(p->added_in, w->numbers.values[i]);
        w->numbers.values[i] = cd_dtype_round(p->added_in, cast / (double)before);
    }
}

/* What the reduction adds for this rank, number by number. w->numbers has the contribution to the
** exact sum. See Note [Every order] */
static cddp_status keep_addend(cd_window *w, const cd_oracle_parameter *meta,
                               cd_window_parameter *p, const cddp_grad *grad, cddp_error *err)
{
    const bool is_delayed = meta->path == CD_ORACLE_PATH_DELAYED;
    const cddp_dtype wire = cd_window_get_wire(w, meta);
    const bool casts = wire != CDDP_DTYPE_COUNT && !is_delayed;
    p->added_in = casts ? wire : meta->dtype;
    p->divided_after = p->times_after = 1;
    if (p->addends.is_given_up) return CDDP_OK;
    /* rows of a sparse gradient may name an element more than once */
    bool is_known = grad->kind == CDDP_GRAD_DENSE && !w->separate;
    /* each backward of the window sums it, so that all but its last addend are averages */
    is_known = is_known && !(is_delayed && w->micro_step > w->micro_first);
    /* a second mean may round what is small */
    is_known = is_known && !(w->has_stages && p->added_in == CDDP_F16);
    const double *low = w->numbers.values, *high = low;
    if (!is_known || (w->division == CD_ORACLE_DIVISION_CAST && !is_delayed)) {
        /* as it is */
    } else if (is_delayed) {
        CD_TRY(divide_gradient(w, &grad->value, true, &w->numbers, err));
        low = high = w->numbers.values;
    } else if (w->division == CD_ORACLE_DIVISION_AFTER) {
        divide_around(w, p);
    } else if (w->division == CD_ORACLE_DIVISION_EITHER && !casts) {
        CD_TRY(divide_gradient(w, &grad->value, false, &w->numbers, err));
        CD_TRY(divide_gradient(w, &grad->value, true, &w->more, err));
        low = w->numbers.values;
        high = w->more.values;
    } else {
        is_known = w->divided && !casts;
    }
    if (is_known)
        cd_any_order_push(&p->addends, low, high);
    else
        cd_any_order_give_up(&p->addends);
    return CDDP_OK;
}

/* A rank's contribution to the reduction of a parameter: its gradient, divided as declared. */
static cddp_status take_contribution(cd_window *w, const cd_oracle_parameter *meta,
                                     cd_window_parameter *p, const cddp_grad *grad, cddp_error *err)
{
    if (grad->kind == CDDP_GRAD_UNDEFINED || !w->counts) return CDDP_OK;
    const cddp_device *device = p->expected.device;
    if (w->is_exact_device) {
        CD_TRY(device->reduce(CDDP_RED_SUM, &p->expected, &grad->value, NULL, err));
        return CDDP_OK;
    }
    if (p->contributions.limbs == NULL) return CDDP_OK;
    bool is_sparse = grad->kind == CDDP_GRAD_SPARSE;
    if (w->division == CD_ORACLE_DIVISION_CAST && meta->path != CD_ORACLE_PATH_DELAYED) {
        CD_TRY(cd_numbers_read_gradient(&w->numbers, grad, p->contributions.numel, err));
        divide_in_wire(w);
        cd_wide_sum_push(&p->contributions, w->numbers.values);
        return CD_PASS(keep_addend(w, meta, p, grad, err));
    }
    if (!w->divided || is_sparse)
        CD_TRY(cd_numbers_read_gradient(&w->numbers, grad, p->contributions.numel, err));
    if (w->division == CD_ORACLE_DIVISION_CAST_ONCE && meta->path != CD_ORACLE_PATH_DELAYED)
        cast_to_wire(w);
    if (w->divided) {
        /* A sparse gradient is truly divided in place, whatever the path of the dense ones
        ** (SPA-02). */
        bool truly = is_sparse || meta->path == CD_ORACLE_PATH_DELAYED ||
                     w->division == CD_ORACLE_DIVISION_TRUE;
        if (is_sparse) CD_TRY(cd_numbers_write(&w->numbers, &p->expected, w->numbers.values, err));
        CD_TRY(
            divide_gradient(w, is_sparse ? &p->expected : &grad->value, truly, &w->numbers, err));
    }
    cd_wide_sum_push(&p->contributions, w->numbers.values);
    return CD_PASS(keep_addend(w, meta, p, grad, err));
}

static cddp_status take_all(cd_window *w, const cd_start *start, cddp_error *err)
{
    const cddp_grad *grads = start->engine->gradients(start->engine->self);
    for (size_t i = 0; i < w->parameter_count; i++)
        CD_TRY(take_contribution(w, &start->parameters[i], &w->parameters[i], &grads[i], err));
    return CDDP_OK;
}

/* All micro-steps of a rank at once, or one by one, each from dropped gradients. */
static cddp_status sum_rank(cd_window *w, const cd_start *start,
                            const cd_oracle_reduction *reduction, uint32_t rank, cddp_error *err)
{
    const cd_oracle_span span = span_of(reduction, rank);
    cd_oracle_reduction part = *reduction;
    for (uint32_t m = span.first; m < span.end; m++) {
        if (reduction->separate) {
            part.spans = NULL;
            part.micro_first = part.micro_step = m;
            part.has_forgotten = m > span.first;
        }
        if (rank_contributes(start, &part, rank)) {
            CD_TRY(cd_start_run_rank(start, &part, rank, err));
            CD_TRY(take_all(w, start, err));
        }
        if (!reduction->separate) break;
    }
    w->contributors++;
    return CDDP_OK;
}

/* Link 1's sums. Stops early when a sample turns out to round; the caller then starts again. */
static cddp_status sum_all(cd_window *w, const cd_start *start,
                           const cd_oracle_reduction *reduction, cddp_error *err)
{
    bool started_single = !w->rounds;
    CD_TRY(clear_parameters(w, err));
    CD_TRY(start->engine->load(start->engine->self, start->values, start->buffers, err));
    for (uint32_t rank = 0; rank < start->world_size; rank++) {
        if (!rank_contributes(start, reduction, rank)) continue;
        w->counts = is_averaged(reduction, rank);
        if (w->counts) CD_TRY(push_kept(w, start, err));
        const cd_oracle_span span = span_of(reduction, rank);
        for (uint32_t m = span.first; m < span.end; m++) {
            cd_oracle_part part = part_of(reduction, rank, m);
            CD_TRY(sum_samples(w, start, &part, err));
            if (started_single && w->rounds) return CDDP_OK;
        }
    }
    return CDDP_OK;
}

bool cd_window_holds(const cd_window *window, const cd_start *start,
                     const cd_oracle_reduction *reduction)
{
    const cd_window *w = window;
    const cd_oracle_reduction *r = reduction;
    return w->is_valid && w->step == r->step && w->micro_first == r->micro_first &&
           w->micro_step == r->micro_step && w->rank_first == r->rank_first &&
           w->rank_count == r->rank_count && w->divisor == r->divisor && w->before == r->before &&
           w->division == r->division && w->wire == r->wire && w->loss_scale == r->loss_scale &&
           w->digest == start->digest;
}

cddp_status cd_window_compute(cd_window *window, const cd_start *start,
                              const cd_oracle_reduction *reduction, cddp_error *err)
{
    cd_window *w = window;
    if (cd_window_holds(w, start, reduction)) return CDDP_OK;
    cd_window_release_locals(w);
    w->is_valid = w->has_failed = false;
    w->step = reduction->step;
    w->micro_first = reduction->micro_first;
    w->micro_step = reduction->micro_step;
    w->rank_first = reduction->rank_first;
    w->rank_count = reduction->rank_count;
    w->divisor = reduction->divisor;
    w->division = reduction->division;
    w->wire = reduction->wire;
    w->before = reduction->before;
    w->has_stages = reduction->has_stages;
    w->digest = start->digest;
    w->loss_scale = reduction->loss_scale;
    w->divided = reduction->division == CD_ORACLE_DIVISION_RECIPROCAL ||
                 reduction->division == CD_ORACLE_DIVISION_TRUE ||
                 reduction->division == CD_ORACLE_DIVISION_CAST;
    w->separate = reduction->separate;
    cddp_status status = make_parameters(w, start, err);
    if (status != CDDP_OK) {
        cd_window_fini(w); /* half of the sums would look empty */
        return status;
    }
    bool started_single = !w->rounds;
    CD_TRY(sum_all(w, start, reduction, err));
    if (started_single && w->rounds) CD_TRY(sum_all(w, start, reduction, err));
    for (uint32_t rank = 0; rank < start->world_size; rank++) {
        w->counts = is_averaged(reduction, rank);
        if (w->counts && rank_contributes(start, reduction, rank))
            CD_TRY(sum_rank(w, start, reduction, rank, err));
    }
    for (size_t i = 0; w->is_exact_device && i < w->parameter_count; i++) {
        const cddp_tensor *t = &w->parameters[i].expected;
        CD_TRY(
            cd_form_quotient(t, (int64_t)reduction->divisor, &w->parameters[i].is_quotient, err));
    }
    w->is_valid = true;
    return CDDP_OK;
}

void cd_window_release_locals(cd_window *window)
{
    if (window->has_locals) cd_locals_fini(&window->locals);
    window->has_locals = false;
}

static cddp_status fill_locals(cd_locals *locals, const cd_start *start,
                               const cd_oracle_reduction *reduction, cddp_error *err)
{
    cd_numbers numbers = {.allocator = locals->arena.allocator, .has_lanes = true};
    const cd_oracle_engine *e = start->engine;
    cddp_status status = CDDP_OK;
    CD_TRY_OUT(e->load(e->self, start->values, start->buffers, err));
    for (uint32_t r = 0; r < locals->rank_count; r++) {
        const cd_oracle_span span = span_of(reduction, r);
        for (uint32_t m = span.first; m < span.end; m++) {
            cd_oracle_part part = part_of(reduction, r, m);
            e->drop_gradients(e->self);
            *cd_locals_samples(locals, r, m) = e->sample_count(e->self, &part);
            if (*cd_locals_samples(locals, r, m) == 0) continue;
            CD_TRY_OUT(e->run(e->self, &part, err));
            const cddp_grad *grads = e->gradients(e->self);
            for (size_t i = 0; i < locals->parameter_count; i++) {
                size_t numel = locals->offsets[i + 1] - locals->offsets[i];
                *cd_locals_presence(locals, r, m, i) = grads[i].kind != CDDP_GRAD_UNDEFINED;
                CD_TRY_OUT(cd_numbers_read_gradient(&numbers, &grads[i], numel, err));
                for (size_t j = 0; j < numel; j++)
                    cd_locals_get(locals, r, m, i)[j] = numbers.values[j];
            }
        }
    }
out:
    cd_numbers_fini(&numbers);
    return status;
}

cddp_status cd_window_gather(cd_window *window, const cd_start *start,
                             const cd_oracle_reduction *reduction, cddp_error *err)
{
    window->locals.offsets = start->offsets; /* from a rank that still exists */
    if (window->has_locals) return CDDP_OK;
    window->locals = (cd_locals){.rank_count = start->world_size,
                                 .micro_first = reduction->micro_first,
                                 .micro_count = reduction->micro_step - reduction->micro_first + 1,
                                 .parameter_count = start->parameter_count,
                                 .numel = start->offsets[start->parameter_count],
                                 .offsets = start->offsets};
    CD_TRY(cd_locals_init(&window->locals, window->allocator, err));
    window->has_locals = true;
    cddp_status status = fill_locals(&window->locals, start, reduction, err);
    if (status == CDDP_OK) cd_locals_close(&window->locals);
    /* incomplete locals would give wrong explanations */
    if (status != CDDP_OK) cd_window_release_locals(window);
    return status;
}
