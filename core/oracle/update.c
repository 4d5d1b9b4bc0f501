/* SPDX-License-Identifier: Apache-2.0 */
/* Links 4 update and 5 optimizer state: from the run's state before the step, the engine's
** optimizers must reach the run's state after it. */
#include "core/oracle/carried.h"
#include "core/oracle/state.h"

#include "core/base/error.h"

typedef struct slot {
    const cddp_tensor *expected, *actual;
    size_t index, parameter;
} slot;

/* This rank's part of a slot of the reference; undefined when it has none. */
static cddp_tensor own_slot(const cd_oracle *o, const slot *s)
{
    const cd_oracle_parameter *p = &o->parameters[s->parameter];
    cd_part_range own = cd_part_get(&p->part, p->numel, o->options.rank);
    int64_t count = own.end - own.first;
    const cddp_tensor lanes = cd_tensor_lanes(s->expected), *t = &lanes;
    if (t->device == NULL || p->part.share == 0 || (count == p->numel && count > 0))
        return *s->expected;
    if (count == 0) return (cddp_tensor){0};
    return cddp_tensor_of(t->device, t->storage, t->offset + own.first, t->dtype, &count, 1);
}

/* Wrong sharding: a rank keeps state of elements that another rank steps, or lacks state of those
** that it steps. */
static bool is_misplaced(const slot *s, const cddp_tensor *own, cd_comparison *c)
{
    const cddp_tensor mine = cd_tensor_lanes(own), theirs = cd_tensor_lanes(s->actual);
    const long long wanted = own->device != NULL ? (long long)cddp_tensor_numel(&mine) : 0;
    const long long found = s->actual->device != NULL ? (long long)cddp_tensor_numel(&theirs) : 0;
    if (s->expected->device == NULL || wanted == found) return false;
    *c = (cd_comparison){.bad = 1,
                         .element = 0,
                         .expected = (double)wanted,
                         .actual = (double)found,
                         .exact = true,
                         .shape = CD_SHAPE_OTHER};
    cd_text_format(c->words, sizeof c->words,
                   "state of %lld elements, where the step of %lld belongs to this rank", found,
                   wanted);
    return true;
}

static cddp_status judge_slot(cd_oracle *o, const slot *s, cddp_error *err)
{
    cd_comparison c = {.element = -1, .exact = true};
    bool is_shared_out = o->parameters[s->parameter].part.share != 0;
    cddp_tensor own = own_slot(o, s);
    bool wanted = own.device != NULL, found = s->actual->device != NULL;
    if (!wanted && !found) return CDDP_OK;
    /* an empty slot has no owner */
    const bool is_empty = o->parameters[s->parameter].numel == 0;
    if (is_shared_out && is_empty) return CDDP_OK;
    if (is_shared_out && is_misplaced(s, &own, &c)) {
        /* is_misplaced has filled c */
    } else if (wanted != found && is_empty) {
        /* a unit that is not cut steps all of its elements at once: no number is lacking */
    } else if (wanted != found) {
        c = (cd_comparison){.bad = 1,
                            .element = 0,
                            .expected = wanted,
                            .actual = found,
                            .exact = true,
                            .shape = CD_SHAPE_PRESENCE};
        cd_text_format(c.words, sizeof c.words,
                       wanted ? "optimizer state is absent"
                              : "optimizer state was made for a parameter without a gradient");
    } else if (!cddp_dtype_is_float(own.dtype) && cd_oracle_is_exact_device(o)) {
        return CDDP_OK;
    } else {
        CD_TRY(cd_oracle_compare_tensors(o, &own, s->actual, &c, err));
        if (c.bad > 0 && c.words[0] == '\0')
            cd_text_format(c.words, sizeof c.words, "optimizer state slot %zu differs", s->index);
    }
    cd_oracle_report(o, CD_LINK_OPTIMIZER, s->parameter, &c);
    return CDDP_OK;
}

static cddp_status judge_slots(cd_oracle *o, const cd_oracle_slots *expected,
                               const cd_oracle_slots *actual, cddp_error *err)
{
    if (expected->count != actual->count)
        return cd_fail(err, CDDP_E_ARG, "the run has %zu optimizer slots, the reference %zu",
                       actual->count, expected->count);
    for (size_t i = 0; i < expected->count; i++)
        CD_TRY(judge_slot(o,
                          &(slot){&expected->tensors[i], &actual->tensors[i], i,
                                  (size_t)expected->parameters[i]},
                          err));
    return CDDP_OK;
}

static const char not_updated[] = "the parameter was not updated";

/* One rank's elements of a parameter with a sharded optimizer; expected and actual values are
** already read. */
static void judge_range(cd_oracle *o, const cd_suspect *whole, uint32_t owner)
{
    const cd_oracle_parameter *p = &o->parameters[whole->parameter];
    cd_part_range part = cd_part_get(&p->part, p->numel, owner);
    if (part.first == part.end) return;
    bool is_own = owner == o->options.rank;
    cd_suspect s = *whole;
    s.expected += part.first;
    s.actual += part.first;
    s.before += part.first;
    s.first = part.first;
    cd_comparison c =
        cd_compare_bits(p->dtype, s.expected, s.actual, (size_t)(part.end - part.first));
    cd_oracle_explain(o, &c, &s);
    if (c.element >= 0) c.element += part.first;
    if (c.bad > 0 && !is_own) {
        char words[sizeof c.words];
        cd_text_format(words, sizeof words, "%.120s, in what rank %u steps", c.words, owner);
        cd_text_format(c.words, sizeof c.words, "%s", words);
    }
    cd_oracle_report(o, is_own ? CD_LINK_UPDATE : CD_LINK_SHARE, whole->parameter, &c);
}

/* Rank by rank: this separates the rank that made a mistake from those that received its result. */
static void judge_ranges(cd_oracle *o, const cd_suspect *whole)
{
    for (uint32_t owner = 0; owner < o->options.world_size; owner++) judge_range(o, whole, owner);
}

static cddp_status judge_parameter(cd_oracle *o, const cd_oracle_update *before,
                                   const cd_oracle_update *after, size_t i, cddp_error *err)
{
    cd_comparison c;
    const cddp_tensor *expected = &o->options.engine->parameters(o->options.engine->self)[i];
    const bool is_shared_out = o->parameters[i].part.share != 0;
    CD_TRY(cd_oracle_compare_tensors(o, expected, &after->parameters[i], &c, err));
    if (!cd_oracle_is_exact_device(o) && (c.bad > 0 || is_shared_out)) {
        CD_TRY(cd_numbers_read(&o->before, &before->parameters[i], err));
        cd_suspect s = {.expected = o->numbers.values,
                        .actual = o->other.values,
                        .before = o->before.values,
                        .parameter = i,
                        .divisor = 1,
                        .before_words = not_updated};
        if (is_shared_out) {
            judge_ranges(o, &s);
            return CDDP_OK;
        }
        cd_oracle_explain(o, &c, &s);
    }
    cd_oracle_report(o, CD_LINK_UPDATE, i, &c);
    return CDDP_OK;
}

cddp_status cd_oracle_judge_update(cd_oracle *oracle, const cd_oracle_update *before,
                                   const cd_oracle_update *after, cddp_error *err)
{
    cd_oracle *o = oracle;
    if (!cd_oracle_has_values(o) && !cd_oracle_is_exact_device(o)) return CDDP_OK;
    cd_oracle_slots state = {0};
    cd_carried_expect_step(o);
    CD_TRY(o->options.engine->update(o->options.engine->self, before, &state, err));
    for (size_t i = 0; i < o->options.parameter_count; i++)
        CD_TRY(judge_parameter(o, before, after, i, err));
    CD_TRY(judge_slots(o, &state, &after->state, err));
    if (o->options.free_engine != NULL && cd_oracle_has_values(o))
        CD_TRY(cd_oracle_advance_free(o, before, err));
    return CDDP_OK;
}
