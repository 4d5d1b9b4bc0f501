/* SPDX-License-Identifier: Apache-2.0 */
/* Compares two tensors of any device, explains a difference, and reports it. */
#include "core/oracle/state.h"

#include "core/base/error.h"
#include "core/tensor/symbol.h"
#include "core/trace/tracer.h"

#include <string.h>

void cd_oracle_report(cd_oracle *o, cd_oracle_link link, size_t parameter, const cd_comparison *c)
{
    const cd_oracle_parameter *p = &o->parameters[parameter];
    o->summary.compared++;
    o->summary.differing += c->bad > 0;
    if (c->exact)
        o->summary.exact++;
    else
        o->summary.bounded++;
    cd_comparison_emit(&(cd_comparison_place){o->options.tracer, link, p->variable, p->name}, c);
}

void cd_oracle_give_up(cd_oracle *o, cd_oracle_link link, uint64_t count, const char *why)
{
    if (count == 0) return;
    CD_EMIT(o->options.tracer, unjudged, why, .link = link, .count = (int64_t)count);
}

/* Writes what the wrong values are. */
void cd_oracle_explain(const cd_oracle *o, cd_comparison *c, cd_suspect *s)
{
    if (c->bad == 0) return;
    s->names = o->names;
    s->dtype = o->parameters[s->parameter].dtype;
    cd_explain(c, s);
}

/* Exact devices: the forms are equal, or the first differing element is printed with both. */
static const char *name_of_source(void *context, cd_atom_kind kind, uint32_t source)
{
    const cd_oracle *o = context;
    return (kind == CD_ATOM_GRADIENT || kind == CD_ATOM_PARAMETER) &&
                   source < o->options.parameter_count
               ? o->names[source]
               : NULL;
}

static const cd_term *find_term(const cd_term *terms, size_t count, const cd_term *like)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&terms[i].atom, &like->atom, sizeof like->atom) == 0 &&
            terms[i].element == like->element)
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
        bool equal = other != NULL &&
                     other->coefficient.numerator == d->expected[i].coefficient.numerator &&
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
        cd_text_format(found, sizeof found, ": ratio %.6g", c->ratio);
    }
    cd_text_format(c->words, sizeof c->words, "%s %s%s", form, what, found);
}

cddp_status cd_oracle_compare_forms(cd_oracle *o, const cddp_tensor *expected,
                                    const cddp_tensor *actual, cd_comparison *c, cddp_error *err)
{
    cd_symbol_difference d;
    *c =
        (cd_comparison){.numel = (size_t)cddp_tensor_numel(expected), .element = -1, .exact = true};
    CD_TRY(cd_symbol_compare_views(actual, expected, &d, err));
    if (d.index < 0) return CDDP_OK;
    c->bad = 1;
    c->element = d.index;
    describe_forms(o, &d, c);
    return CDDP_OK;
}

/* Two tensors of the same device, bit for bit. s may be NULL: no explanation is looked for. */
cddp_status cd_oracle_compare_tensors(cd_oracle *o, const cddp_tensor *expected,
                                      const cddp_tensor *actual, cd_comparison *c, cddp_error *err)
{
    if (cd_oracle_is_exact_device(o))
        return CD_PASS(cd_oracle_compare_forms(o, expected, actual, c, err));
    CD_TRY(cd_numbers_read(&o->numbers, expected, err));
    CD_TRY(cd_numbers_read(&o->other, actual, err));
    *c = cd_compare_bits(expected->dtype, o->numbers.values, o->other.values, o->numbers.count);
    return CDDP_OK;
}
