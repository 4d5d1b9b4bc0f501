/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's steps: what a rank hands in, and the comparisons of each link.
**
** Invariants
** O1  start holds copies: nothing that the run does after begin_step changes what the reference starts from
** O2  a gradient is compared only while captured is set for it, by push_local in the same step
** O3  the free-running reference goes on only while every comparison was exact: beyond that no bound is derived
*/
#include "core/oracle/oracle.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/oracle/tell.h"
#include "core/oracle/window.h"
#include "core/tensor/symbol.h"

#include <math.h>
#include <string.h>

#define EXPLAIN_VALUES_MAX (UINT64_C(1) << 23) /* local gradients that are recomputed to explain an error */

struct cd_oracle_share {
    const cddp_allocator *allocator;
    cd_window windows[2]; /* by parity of the step: ranks of one thread are at most a step apart */
};

struct cd_oracle {
    cd_oracle_options options;
    cd_oracle_parameter *parameters; /* (parameter_count) copies */
    const char **names;              /* (parameter_count) */
    size_t *offsets;                 /* (parameter_count + 1) */
    cddp_tensor *values;             /* (parameter_count) at the beginning of the step */
    cddp_grad *kept;                 /* (parameter_count) at the beginning of the step */
    cddp_tensor *buffers;            /* (buffer_count) at the last forward entry */
    bool has_buffers;
    double *local;                  /* (offsets[parameter_count]) as pushed */
    cddp_grad *local_forms;         /* (parameter_count) the same on exact devices */
    bool *captured, *local_present; /* (parameter_count) */
    cd_window window;               /* without a share */
    cd_window free_window;
    cd_numbers numbers, other;
    cd_locals locals;
    bool has_locals, is_free_running, is_free_loaded, has_free_parted;
    uint32_t step;
    uint64_t digest;
    cddp_grad *free_gradients; /* (parameter_count) */
    cd_oracle_summary summary;
};

/* ---- life ---- */

cddp_status cd_oracle_share_create(const cddp_allocator *allocator, cd_oracle_share **share, cddp_error *err)
{
    cd_oracle_share *s = cd_allocate_zero(allocator, sizeof *s);
    if (s == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for the oracle's share");
    s->allocator = allocator;
    for (size_t i = 0; i < 2; i++) cd_window_init(&s->windows[i], allocator);
    *share = s;
    return CDDP_OK;
}

void cd_oracle_share_destroy(cd_oracle_share *share)
{
    if (share == NULL) return;
    for (size_t i = 0; i < 2; i++) cd_window_fini(&share->windows[i]);
    cd_release(share->allocator, share, sizeof *share);
}

static cddp_status allocate_arrays(cd_oracle *o, cddp_error *err)
{
    const cddp_allocator *a = o->options.allocator;
    size_t n = o->options.parameter_count, b = o->options.buffer_count;
    o->parameters = cd_allocate_array(a, n + 1, sizeof *o->parameters);
    o->names = cd_allocate_array(a, n + 1, sizeof *o->names);
    o->offsets = cd_allocate_array(a, n + 1, sizeof *o->offsets);
    o->values = cd_allocate_array(a, n + 1, sizeof *o->values);
    o->kept = cd_allocate_array(a, n + 1, sizeof *o->kept);
    o->buffers = cd_allocate_array(a, b + 1, sizeof *o->buffers);
    o->local_forms = cd_allocate_array(a, n + 1, sizeof *o->local_forms);
    o->captured = cd_allocate_array(a, n + 1, sizeof *o->captured);
    o->local_present = cd_allocate_array(a, n + 1, sizeof *o->local_present);
    o->free_gradients = cd_allocate_array(a, n + 1, sizeof *o->free_gradients);
    if (o->parameters == NULL || o->names == NULL || o->offsets == NULL || o->values == NULL || o->kept == NULL ||
        o->buffers == NULL || o->local_forms == NULL || o->captured == NULL || o->local_present == NULL ||
        o->free_gradients == NULL)
        return cd_fail(err, CDDP_E_NOMEM, "no memory for the oracle of rank %u", o->options.rank);
    for (size_t i = 0; i < n; i++) {
        o->parameters[i] = o->options.parameters[i];
        o->names[i] = o->parameters[i].name;
        o->offsets[i + 1] = o->offsets[i] + (size_t)o->parameters[i].numel;
    }
    o->options.parameters = o->parameters;
    return CDDP_OK;
}

cddp_status cd_oracle_create(const cd_oracle_options *options, cd_oracle **oracle, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_oracle *o = cd_allocate_zero(options->allocator, sizeof *o);
    if (o == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for the oracle of rank %u", options->rank);
    o->options = *options;
    o->is_free_running = options->free_engine != NULL;
    o->numbers.allocator = o->other.allocator = o->locals.allocator = options->allocator;
    cd_window_init(&o->window, options->allocator);
    cd_window_init(&o->free_window, options->allocator);
    CD_TRY_OUT(allocate_arrays(o, err));
    *oracle = o;
    o = NULL;
out:
    cd_oracle_destroy(o);
    return status;
}

static void release_tensor(cddp_tensor *t)
{
    if (t->device == NULL) return;
    int64_t numel = cddp_tensor_numel(t);
    t->device->release(t->device, t->dtype, numel > 0 ? numel : 1, t->storage);
    t->device = NULL;
}

static void release_locals(cd_oracle *o)
{
    if (o->has_locals) cd_locals_fini(&o->locals);
    o->has_locals = false;
}

void cd_oracle_destroy(cd_oracle *oracle)
{
    cd_oracle *o = oracle;
    if (o == NULL) return;
    const cddp_allocator *a = o->options.allocator;
    size_t n = o->options.parameter_count, b = o->options.buffer_count;
    release_locals(o);
    for (size_t i = 0; i < n; i++) {
        if (o->values != NULL) release_tensor(&o->values[i]);
        if (o->kept != NULL) cddp_grad_fini(&o->kept[i]);
        if (o->local_forms != NULL) cddp_grad_fini(&o->local_forms[i]);
        if (o->free_gradients != NULL) cddp_grad_fini(&o->free_gradients[i]);
    }
    for (size_t i = 0; o->buffers != NULL && i < b; i++) release_tensor(&o->buffers[i]);
    cd_window_fini(&o->window);
    cd_window_fini(&o->free_window);
    cd_numbers_fini(&o->numbers);
    cd_numbers_fini(&o->other);
    if (o->offsets != NULL) cd_release(a, o->local, o->offsets[n] * sizeof *o->local);
    cd_release(a, o->parameters, (n + 1) * sizeof *o->parameters);
    cd_release(a, o->names, (n + 1) * sizeof *o->names);
    cd_release(a, o->offsets, (n + 1) * sizeof *o->offsets);
    cd_release(a, o->values, (n + 1) * sizeof *o->values);
    cd_release(a, o->kept, (n + 1) * sizeof *o->kept);
    cd_release(a, o->buffers, (b + 1) * sizeof *o->buffers);
    cd_release(a, o->local_forms, (n + 1) * sizeof *o->local_forms);
    cd_release(a, o->captured, (n + 1) * sizeof *o->captured);
    cd_release(a, o->local_present, (n + 1) * sizeof *o->local_present);
    cd_release(a, o->free_gradients, (n + 1) * sizeof *o->free_gradients);
    cd_release(a, o, sizeof *o);
}

/* ---- what the run hands in ---- */

static cddp_status copy_tensor(cddp_tensor *mine, const cddp_tensor *theirs, cddp_error *err)
{
    if (mine->device == NULL) {
        void *storage = NULL;
        int64_t numel = cddp_tensor_numel(theirs);
        CD_TRY(theirs->device->allocate(theirs->device, theirs->dtype, numel > 0 ? numel : 1, &storage, err));
        *mine = cddp_tensor_of(theirs->device, storage, 0, theirs->dtype, theirs->sizes, theirs->dim_count);
    }
    CD_TRY(theirs->device->copy(mine, theirs, NULL, err));
    return CDDP_OK;
}

static cddp_status copy_gradient(cddp_grad *mine, const cddp_grad *theirs, cddp_error *err)
{
    cddp_grad_drop(mine);
    /* A sparse gradient that was kept over a step is not carried into the reference. */
    if (theirs->kind != CDDP_GRAD_DENSE) return CDDP_OK;
    CD_TRY(cddp_grad_define(mine, &theirs->value, err));
    CD_TRY(theirs->value.device->copy(&mine->value, &theirs->value, NULL, err));
    return CDDP_OK;
}

static bool has_values(const cd_oracle *o)
{
    return o->options.parameter_count > 0 && o->values[0].device != NULL &&
           (o->values[0].device->flags & CDDP_DEVICE_VALUES) != 0;
}

static bool is_exact_device(const cd_oracle *o)
{
    return o->options.parameter_count > 0 && o->values[0].device != NULL &&
           (o->values[0].device->flags & CDDP_DEVICE_EXACT) != 0;
}

static cddp_status digest_of(const cddp_tensor *tensor, uint64_t *digest, cddp_error *err)
{
    uint64_t d = 0;
    CD_TRY(tensor->device->digest(tensor, &d, err));
    *digest = cd_hash_mix(*digest, d);
    return CDDP_OK;
}

cddp_status cd_oracle_begin_step(cd_oracle *oracle, uint32_t step, const cddp_tensor *parameters,
                                 const cddp_grad *gradients, cddp_error *err)
{
    cd_oracle *o = oracle;
    o->step = step;
    o->digest = 0;
    release_locals(o);
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        CD_TRY(copy_tensor(&o->values[i], &parameters[i], err));
        CD_TRY(copy_gradient(&o->kept[i], &gradients[i], err));
        CD_TRY(digest_of(&o->values[i], &o->digest, err));
        o->digest = cd_hash_mix(o->digest, o->kept[i].kind);
        if (o->kept[i].kind == CDDP_GRAD_DENSE) CD_TRY(digest_of(&o->kept[i].value, &o->digest, err));
        o->captured[i] = false;
    }
    if (o->local == NULL && has_values(o)) {
        o->local = cd_allocate_array(o->options.allocator, o->offsets[o->options.parameter_count], sizeof *o->local);
        if (o->local == NULL)
            return cd_fail(err, CDDP_E_NOMEM, "no memory for the local gradients of rank %u", o->options.rank);
    }
    return CDDP_OK;
}

cddp_status cd_oracle_enter_forward(cd_oracle *oracle, uint32_t micro_step, const cddp_tensor *buffers, cddp_error *err)
{
    (void)micro_step; /* the last forward's buffers are the ones that judge_gradients compares */
    for (size_t i = 0; i < oracle->options.buffer_count; i++)
        CD_TRY(copy_tensor(&oracle->buffers[i], &buffers[i], err));
    oracle->has_buffers = oracle->options.buffer_count > 0;
    return CDDP_OK;
}

cddp_status cd_oracle_push_local(cd_oracle *oracle, size_t parameter, const cddp_grad *gradient, cddp_error *err)
{
    cd_oracle *o = oracle;
    o->captured[parameter] = true;
    o->local_present[parameter] = gradient->kind != CDDP_GRAD_UNDEFINED;
    if (is_exact_device(o)) {
        CD_TRY(copy_gradient(&o->local_forms[parameter], gradient, err));
    } else if (has_values(o)) {
        size_t numel = o->offsets[parameter + 1] - o->offsets[parameter];
        CD_TRY(cd_numbers_read_gradient(&o->numbers, gradient, numel, err));
        memcpy(o->local + o->offsets[parameter], o->numbers.values, numel * sizeof *o->local);
    }
    return CDDP_OK;
}

/* ---- comparisons ---- */

static cd_start start_of(cd_oracle *o)
{
    return (cd_start){.parameters = o->parameters,
                      .parameter_count = o->options.parameter_count,
                      .offsets = o->offsets,
                      .values = o->values,
                      .buffers = o->has_buffers ? o->buffers : NULL,
                      .kept = o->kept,
                      .engine = o->options.engine,
                      .world_size = o->options.world_size,
                      .sample_wise = o->options.sample_wise,
                      .digest = o->digest};
}

static void tell(cd_oracle *o, cd_link link, size_t parameter, const cd_comparison *c)
{
    const cd_oracle_parameter *p = &o->parameters[parameter];
    o->summary.compared++;
    o->summary.differing += c->bad > 0;
    if (c->exact)
        o->summary.exact++;
    else
        o->summary.bounded++;
    cd_tell_comparison(&(cd_tell){o->options.tracer, link, p->variable, p->name}, c);
}

static cddp_status gather(cd_oracle *o, const cd_oracle_reduction *r, cddp_error *err)
{
    size_t n = o->options.parameter_count;
    uint32_t micros = r->micro_step - r->micro_first + 1;
    if (o->has_locals || o->offsets[n] * o->options.world_size * micros > EXPLAIN_VALUES_MAX) return CDDP_OK;
    o->locals = (cd_locals){.allocator = o->options.allocator,
                            .rank_count = o->options.world_size,
                            .micro_first = r->micro_first,
                            .micro_count = micros,
                            .parameter_count = n,
                            .numel = o->offsets[n],
                            .offsets = o->offsets};
    CD_TRY(cd_locals_init(&o->locals, err));
    o->has_locals = true;
    cd_start start = start_of(o);
    CD_TRY(cd_start_gather(&start, r, &o->locals, err));
    return CDDP_OK;
}

/* Says what the wrong values are; recomputes the local gradients when that can help. */
static cddp_status explain(cd_oracle *o, const cd_oracle_reduction *r, cd_comparison *c, cd_suspect *s, cddp_error *err)
{
    if (c->bad == 0) return CDDP_OK;
    if (r != NULL) CD_TRY(gather(o, r, err));
    s->locals = r != NULL && o->has_locals ? &o->locals : NULL;
    s->names = o->names;
    s->dtype = o->parameters[s->parameter].dtype;
    cd_explain(c, s);
    return CDDP_OK;
}

/* Exact devices: the forms are equal, or the first differing element is printed with both. */
static const char *name_of_source(void *context, cd_atom_kind kind, uint32_t source)
{
    const cd_oracle *o = context;
    return (kind == CD_ATOM_GRADIENT || kind == CD_ATOM_PARAMETER) && source < o->options.parameter_count
               ? o->names[source]
               : NULL;
}

static const cd_term *find_term(const cd_term *terms, size_t count, const cd_term *like)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&terms[i].atom, &like->atom, sizeof like->atom) == 0 && terms[i].element == like->element)
            return &terms[i];
    return NULL;
}

/* The first term that is missing, foreign or has another coefficient. */
static void describe_forms(cd_oracle *o, const cd_symbol_difference *d, cd_comparison *c)
{
    cd_symbol_names names = {name_of_source, o};
    size_t expected = d->expected_count < CD_FORM_TERMS_MAX ? d->expected_count : CD_FORM_TERMS_MAX;
    size_t actual = d->actual_count < CD_FORM_TERMS_MAX ? d->actual_count : CD_FORM_TERMS_MAX;
    const cd_term *odd = NULL, *other = NULL;
    const char *what = "differs";
    c->shape = CD_SHAPE_UNEXPLAINED;
    for (size_t i = 0; odd == NULL && i < expected; i++) {
        other = find_term(d->actual, actual, &d->expected[i]);
        bool equal = other != NULL && other->coefficient.numerator == d->expected[i].coefficient.numerator &&
                     other->coefficient.denominator == d->expected[i].coefficient.denominator;
        if (equal) continue;
        odd = &d->expected[i];
        what = other == NULL ? "is missing" : "has another coefficient";
        c->shape = other == NULL ? CD_SHAPE_MISSING : CD_SHAPE_RATIO;
    }
    for (size_t i = 0; odd == NULL && i < actual; i++) {
        if (find_term(d->expected, expected, &d->actual[i]) != NULL) continue;
        odd = &d->actual[i];
        what = "does not belong there";
        c->shape = CD_SHAPE_OTHER;
    }
    if (odd == NULL) return;
    char form[96], found[48] = "";
    (void)cd_form_print(&(cd_form){1, odd}, 1, &names, form, sizeof form);
    if (c->shape == CD_SHAPE_RATIO) {
        c->ratio = (double)other->coefficient.numerator / (double)other->coefficient.denominator *
                   (double)odd->coefficient.denominator / (double)odd->coefficient.numerator;
        cd_tell_print(found, sizeof found, ": ratio %.6g", c->ratio);
    }
    cd_tell_print(c->words, sizeof c->words, "%s %s%s", form, what, found);
}

static cddp_status compare_forms(cd_oracle *o, const cddp_tensor *expected, const cddp_tensor *actual, cd_comparison *c,
                                 cddp_error *err)
{
    cd_symbol_difference d;
    *c = (cd_comparison){.numel = (size_t)cddp_tensor_numel(expected), .element = -1, .exact = true};
    CD_TRY(cd_symbol_compare_views(actual, expected, &d, err));
    if (d.index < 0) return CDDP_OK;
    c->bad = 1;
    c->element = d.index;
    describe_forms(o, &d, c);
    return CDDP_OK;
}

/* Two tensors of the same device, bit for bit. s may be NULL: no explanation is looked for. */
static cddp_status compare_tensors(cd_oracle *o, const cddp_tensor *expected, const cddp_tensor *actual,
                                   cd_comparison *c, cddp_error *err)
{
    if (is_exact_device(o)) return compare_forms(o, expected, actual, c, err);
    CD_TRY(cd_numbers_read(&o->numbers, expected, err));
    CD_TRY(cd_numbers_read(&o->other, actual, err));
    *c = cd_compare_bits(expected->dtype, o->numbers.values, o->other.values, o->numbers.count);
    return CDDP_OK;
}

/* ---- link 3: the local gradient is what one process computes on the same samples ---- */

static cddp_status judge_local(cd_oracle *o, const cd_oracle_reduction *r, size_t i, const cddp_grad *replica,
                               cddp_error *err)
{
    if (!o->captured[i]) return CDDP_OK;
    bool present = replica->kind != CDDP_GRAD_UNDEFINED;
    cd_comparison c = {.element = -1, .exact = true};
    if (present != o->local_present[i]) {
        c = (cd_comparison){
            .bad = 1, .element = 0, .expected = present, .actual = !present, .exact = true, .shape = CD_SHAPE_PRESENCE};
        cd_tell_print(c.words, sizeof c.words,
                      present ? "no local gradient, where one process gets one"
                              : "a local gradient, where one process gets none");
        tell(o, CD_LINK_PRECISION, i, &c);
        return CDDP_OK;
    }
    if (!present) return CDDP_OK;
    if (is_exact_device(o)) {
        CD_TRY(compare_forms(o, &replica->value, &o->local_forms[i].value, &c, err));
        tell(o, CD_LINK_PRECISION, i, &c);
        return CDDP_OK;
    }
    size_t numel = o->offsets[i + 1] - o->offsets[i];
    CD_TRY(cd_numbers_read_gradient(&o->other, replica, numel, err));
    c = cd_compare_bits(o->parameters[i].dtype, o->other.values, o->local + o->offsets[i], numel);
    if (c.bad > 0) {
        /* Explaining runs the engine again, whose gradients are what was just read into o->other: keep a copy. */
        CD_TRY(cd_numbers_read_gradient(&o->numbers, replica, numel, err));
        cd_suspect s = {
            .expected = o->numbers.values, .actual = o->local + o->offsets[i], .parameter = i, .divisor = r->divisor};
        CD_TRY(explain(o, NULL, &c, &s, err));
    }
    tell(o, CD_LINK_PRECISION, i, &c);
    return CDDP_OK;
}

static cddp_status judge_locals(cd_oracle *o, const cd_start *start, const cd_oracle_reduction *r, cddp_error *err)
{
    CD_TRY(cd_start_run_rank(start, r, o->options.rank, err));
    const cddp_grad *replica = start->engine->gradients(start->engine->self);
    for (size_t i = 0; i < o->options.parameter_count; i++) CD_TRY(judge_local(o, r, i, &replica[i], err));
    return CDDP_OK;
}

/* ---- links 1, 2 and 7 ---- */

static cddp_status judge_sum(cd_oracle *o, const cd_oracle_reduction *r, size_t i, const cd_wide_sum *sum,
                             const cd_sum_rule *rule, cd_link link, cddp_error *err)
{
    CD_TRY(cd_numbers_read_gradient(&o->numbers, &r->gradients[i], sum->numel, err));
    cd_comparison c = cd_compare_sum(sum, o->numbers.values, rule);
    if (c.bad > 0) {
        double *expected = cd_allocate_array(o->options.allocator, sum->numel, sizeof *expected);
        if (expected == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory to explain %s", o->parameters[i].name);
        for (size_t j = 0; j < sum->numel; j++) expected[j] = cd_wide_sum_get(sum, j) / (double)rule->divisor;
        cd_suspect s = {.expected = expected, .actual = o->numbers.values, .parameter = i, .divisor = r->divisor};
        cddp_status status = explain(o, r, &c, &s, err);
        cd_release(o->options.allocator, expected, sum->numel * sizeof *expected);
        if (status != CDDP_OK) return status;
    }
    if (link == CD_LINK_MATHEMATICS && !c.exact) o->is_free_running = false;
    tell(o, link, i, &c);
    return CDDP_OK;
}

static bool is_power_of_two(uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

static cddp_status judge_reduced(cd_oracle *o, const cd_oracle_reduction *r, const cd_window *w, size_t i,
                                 cddp_error *err)
{
    const cd_window_parameter *p = &w->parameters[i];
    cd_comparison c;
    if (w->is_exact_device) {
        CD_TRY(compare_forms(o, &p->expected, &r->gradients[i].value, &c, err));
        tell(o, CD_LINK_MATHEMATICS, i, &c);
        return CDDP_OK;
    }
    if (p->samples.limbs == NULL) return CDDP_OK;
    uint64_t depth = r->depth != 0 ? r->depth : o->options.world_size - 1, casts = r->wire != CDDP_DTYPE_COUNT;
    cddp_dtype dtype = casts ? r->wire : o->parameters[i].dtype;
    bool divided = w->divided && !casts;
    cd_sum_rule reduction = {.dtype = dtype,
                             .divisor = divided ? 1 : r->divisor,
                             .addends = o->options.world_size + depth,
                             .roundings = divided ? depth : depth + 2 + casts,
                             .division_is_exact = divided || is_power_of_two(r->divisor)};
    cd_sum_rule mathematics = {.dtype = dtype,
                               .divisor = r->divisor,
                               .addends = o->options.world_size + depth + w->parts,
                               .roundings = p->samples.push_count + depth + 2 + casts,
                               .division_is_exact = is_power_of_two(r->divisor)};
    CD_TRY(judge_sum(o, r, i, &p->contributions, &reduction, CD_LINK_REDUCTION, err));
    CD_TRY(judge_sum(o, r, i, &p->samples, &mathematics, CD_LINK_MATHEMATICS, err));
    return CDDP_OK;
}

static cddp_status judge_presence(cd_oracle *o, const cd_oracle_reduction *r, const cd_window *w, size_t i,
                                  bool *comparable, cddp_error *err)
{
    (void)err;
    bool reduced = o->parameters[i].variable >= 0;
    bool kept = o->kept[i].kind != CDDP_GRAD_UNDEFINED;
    bool expected = kept || (reduced ? w->parameters[i].fired : o->captured[i] && o->local_present[i]);
    bool actual = r->gradients[i].kind != CDDP_GRAD_UNDEFINED;
    cd_comparison c = {.element = -1, .exact = true};
    *comparable = reduced && actual && expected && w->parameters[i].fired;
    if (expected != actual) {
        c = (cd_comparison){
            .bad = 1, .element = 0, .expected = expected, .actual = actual, .exact = true, .shape = CD_SHAPE_PRESENCE};
        cd_tell_print(c.words, sizeof c.words,
                      expected ? "absent, where some rank has a gradient"
                               : "present, although no rank used it: absent is not zero");
    }
    tell(o, CD_LINK_PRESENCE, i, &c);
    return CDDP_OK;
}

/* ---- link 6 ---- */

static cddp_status judge_buffers(cd_oracle *o, const cd_start *start, const cd_oracle_reduction *r,
                                 const cddp_tensor *buffers, cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    cd_oracle_part part = {o->options.rank, r->step, r->micro_step, CD_ORACLE_ALL};
    if (buffers == NULL || !o->has_buffers || e->sample_count(e->self, &part) == 0) return CDDP_OK;
    CD_TRY(e->load(e->self, start->values, o->buffers, err));
    CD_TRY(e->run(e->self, &part, err));
    for (size_t i = 0; i < o->options.buffer_count; i++) {
        cd_comparison c;
        CD_TRY(compare_tensors(o, &e->buffers(e->self)[i], &buffers[i], &c, err));
        if (c.bad > 0 && c.words[0] == '\0')
            cd_tell_print(c.words, sizeof c.words, "%zu of %zu elements differ", c.bad, c.numel);
        o->summary.compared++;
        o->summary.differing += c.bad > 0;
        o->summary.exact++;
        cd_tell_comparison(&(cd_tell){o->options.tracer, CD_LINK_BUFFER, (int32_t)i, "buffer"}, &c);
    }
    return CDDP_OK;
}

cddp_status cd_oracle_judge_gradients(cd_oracle *oracle, const cd_oracle_reduction *reduction,
                                      const cddp_tensor *buffers, cddp_error *err)
{
    cd_oracle *o = oracle;
    if (!has_values(o) && !is_exact_device(o)) return CDDP_OK;
    if (reduction->divisor == 0)
        return cd_fail(err, CDDP_E_ARG, "the oracle was given divisor 0 at step %u", reduction->step);
    cd_start start = start_of(o);
    cd_window *w = o->options.share != NULL ? &o->options.share->windows[reduction->step % 2] : &o->window;
    CD_TRY(cd_window_compute(w, &start, reduction, err));
    CD_TRY(judge_locals(o, &start, reduction, err));
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        bool comparable;
        CD_TRY(judge_presence(o, reduction, w, i, &comparable, err));
        if (comparable && !reduction->lossy) CD_TRY(judge_reduced(o, reduction, w, i, err));
    }
    CD_TRY(judge_buffers(o, &start, reduction, buffers, err));
    return CDDP_OK;
}

/* ---- links 4 and 5 ---- */

static cddp_status judge_slots(cd_oracle *o, const cd_oracle_slots *expected, const cd_oracle_slots *actual,
                               cddp_error *err)
{
    if (expected->count != actual->count)
        return cd_fail(err, CDDP_E_ARG, "the run has %zu optimizer slots, the reference %zu", actual->count,
                       expected->count);
    for (size_t i = 0; i < expected->count; i++) {
        bool wanted = expected->tensors[i].device != NULL, found = actual->tensors[i].device != NULL;
        cd_comparison c = {.element = -1, .exact = true};
        if (!wanted && !found) continue;
        if (wanted != found) {
            c = (cd_comparison){
                .bad = 1, .element = 0, .expected = wanted, .actual = found, .exact = true, .shape = CD_SHAPE_PRESENCE};
            cd_tell_print(c.words, sizeof c.words,
                          wanted ? "optimizer state is absent"
                                 : "optimizer state was made for a parameter without a gradient");
        } else if (!cddp_dtype_is_float(expected->tensors[i].dtype) && is_exact_device(o)) {
            continue;
        } else {
            CD_TRY(compare_tensors(o, &expected->tensors[i], &actual->tensors[i], &c, err));
            if (c.bad > 0 && c.words[0] == '\0')
                cd_tell_print(c.words, sizeof c.words, "optimizer state slot %zu differs", i);
        }
        tell(o, CD_LINK_OPTIMIZER, (size_t)expected->parameters[i], &c);
    }
    return CDDP_OK;
}

static cddp_status judge_parameter(cd_oracle *o, const cd_oracle_update *before, const cd_oracle_update *after,
                                   size_t i, cddp_error *err)
{
    cd_comparison c;
    const cddp_tensor *expected = &o->options.engine->parameters(o->options.engine->self)[i];
    CD_TRY(compare_tensors(o, expected, &after->parameters[i], &c, err));
    if (c.bad > 0 && !is_exact_device(o)) {
        cd_numbers start = {.allocator = o->options.allocator};
        cddp_status status = cd_numbers_read(&start, &before->parameters[i], err);
        cd_suspect s = {.expected = o->numbers.values,
                        .actual = o->other.values,
                        .before = start.values,
                        .parameter = i,
                        .divisor = 1,
                        .before_words = "the parameter was not updated"};
        if (status == CDDP_OK) status = explain(o, NULL, &c, &s, err);
        cd_numbers_fini(&start);
        if (status != CDDP_OK) return status;
    }
    tell(o, CD_LINK_UPDATE, i, &c);
    return CDDP_OK;
}

static cddp_status advance_free(cd_oracle *o, const cd_oracle_update *before, cddp_error *err);

cddp_status cd_oracle_judge_update(cd_oracle *oracle, const cd_oracle_update *before, const cd_oracle_update *after,
                                   cddp_error *err)
{
    cd_oracle *o = oracle;
    if (!has_values(o) && !is_exact_device(o)) return CDDP_OK;
    cd_oracle_slots state = {0};
    CD_TRY(o->options.engine->update(o->options.engine->self, before, &state, err));
    for (size_t i = 0; i < o->options.parameter_count; i++) CD_TRY(judge_parameter(o, before, after, i, err));
    CD_TRY(judge_slots(o, &state, &after->state, err));
    if (o->is_free_running && has_values(o)) CD_TRY(advance_free(o, before, err));
    return CDDP_OK;
}

/* ---- link 8: the free-running reference ---- */

/* The single process's gradient. The window of the run serves: both have the same parameters (note_parting). */
static cddp_status free_gradient(cd_oracle *o, const cd_window *w, size_t i, cddp_error *err)
{
    const cd_wide_sum *sum = &w->parameters[i].samples;
    cddp_grad *g = &o->free_gradients[i];
    cddp_grad_drop(g);
    if (!w->parameters[i].fired || sum->limbs == NULL) return CDDP_OK;
    CD_TRY(cddp_grad_define(g, &o->values[i], err));
    double *means = cd_allocate_array(o->options.allocator, sum->numel, sizeof *means);
    if (means == NULL)
        return cd_fail(err, CDDP_E_NOMEM, "no memory for the free-running gradient of %s", o->parameters[i].name);
    for (size_t j = 0; j < sum->numel; j++) means[j] = cd_wide_sum_get(sum, j) / (double)w->divisor;
    cddp_status status = cd_numbers_write(&o->numbers, &g->value, means, err);
    cd_release(o->options.allocator, means, sum->numel * sizeof *means);
    return status;
}

/* The optimizers of the run saw gradients that were clipped or unscaled: the free run has no such program. */
static cddp_status sees_plain_gradients(cd_oracle *o, const cd_oracle_update *before, bool *plain, cddp_error *err)
{
    *plain = true;
    for (size_t i = 0; *plain && i < o->options.parameter_count; i++) {
        const cddp_grad *seen = &before->gradients[i], *mine = &o->free_gradients[i];
        if (o->parameters[i].variable < 0 || seen->kind != CDDP_GRAD_DENSE || mine->kind != CDDP_GRAD_DENSE) {
            *plain = seen->kind == CDDP_GRAD_UNDEFINED && mine->kind == CDDP_GRAD_UNDEFINED;
            continue;
        }
        cd_comparison c;
        CD_TRY(compare_tensors(o, &mine->value, &seen->value, &c, err));
        *plain = c.bad == 0;
    }
    return CDDP_OK;
}

/* Once the run's parameters at the beginning of a step are not the reference's, there is nothing left to follow: the
** final comparison tells. */
static cddp_status note_parting(cd_oracle *o, const cddp_tensor *mine, cddp_error *err)
{
    for (size_t i = 0; !o->has_free_parted && i < o->options.parameter_count; i++) {
        cd_comparison c;
        CD_TRY(compare_tensors(o, &mine[i], &o->values[i], &c, err));
        o->has_free_parted = c.bad > 0;
    }
    return CDDP_OK;
}

static cddp_status advance_free(cd_oracle *o, const cd_oracle_update *before, cddp_error *err)
{
    const cd_oracle_engine *e = o->options.free_engine;
    cd_window *w = o->options.share != NULL ? &o->options.share->windows[before->step % 2] : &o->window;
    if (!o->is_free_loaded) {
        CD_TRY(e->load(e->self, before->parameters, NULL, err));
        o->is_free_loaded = true;
    }
    CD_TRY(note_parting(o, e->parameters(e->self), err));
    if (o->has_free_parted) return CDDP_OK;
    bool usable = w->is_valid && w->step == before->step && w->digest == o->digest && is_power_of_two(w->divisor);
    if (!usable) {
        o->is_free_running = false;
        return CDDP_OK;
    }
    for (size_t i = 0; i < o->options.parameter_count; i++) CD_TRY(free_gradient(o, w, i, err));
    CD_TRY(sees_plain_gradients(o, before, &usable, err));
    if (!usable) {
        o->is_free_running = false;
        return CDDP_OK;
    }
    cd_oracle_slots state = {0};
    cd_oracle_update update = {
        .step = before->step, .parameters = e->parameters(e->self), .gradients = o->free_gradients};
    CD_TRY(e->update(e->self, &update, &state, err));
    return CDDP_OK;
}

cddp_status cd_oracle_finish(cd_oracle *oracle, const cddp_tensor *parameters, cddp_error *err)
{
    cd_oracle *o = oracle;
    if (!o->is_free_running || !o->is_free_loaded || !has_values(o)) return CDDP_OK;
    const cddp_tensor *expected = o->options.free_engine->parameters(o->options.free_engine->self);
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        cd_comparison c;
        CD_TRY(compare_tensors(o, &expected[i], &parameters[i], &c, err));
        if (c.bad > 0)
            cd_tell_print(c.words, sizeof c.words, "%zu of %zu elements have drifted from the free-running reference",
                          c.bad, c.numel);
        tell(o, CD_LINK_FREE, i, &c);
    }
    return CDDP_OK;
}

cd_oracle_summary cd_oracle_get_summary(const cd_oracle *oracle) { return oracle->summary; }
