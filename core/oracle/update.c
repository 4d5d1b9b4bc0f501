/* SPDX-License-Identifier: Apache-2.0 */
/* Links 4 update and 5 optimizer state: from the run's own state before the step, the engine's optimizers must arrive
** at the run's state after it. */
#include "core/oracle/state.h"

#include "core/base/error.h"

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
        } else if (!cddp_dtype_is_float(expected->tensors[i].dtype) && cd_oracle_is_exact_device(o)) {
            continue;
        } else {
            CD_TRY(cd_oracle_compare_tensors(o, &expected->tensors[i], &actual->tensors[i], &c, err));
            if (c.bad > 0 && c.words[0] == '\0')
                cd_tell_print(c.words, sizeof c.words, "optimizer state slot %zu differs", i);
        }
        cd_oracle_tell(o, CD_LINK_OPTIMIZER, (size_t)expected->parameters[i], &c);
    }
    return CDDP_OK;
}

static cddp_status judge_parameter(cd_oracle *o, const cd_oracle_update *before, const cd_oracle_update *after,
                                   size_t i, cddp_error *err)
{
    cd_comparison c;
    const cddp_tensor *expected = &o->options.engine->parameters(o->options.engine->self)[i];
    CD_TRY(cd_oracle_compare_tensors(o, expected, &after->parameters[i], &c, err));
    if (c.bad > 0 && !cd_oracle_is_exact_device(o)) {
        cd_numbers start = {.allocator = o->options.allocator};
        cddp_status status = cd_numbers_read(&start, &before->parameters[i], err);
        cd_suspect s = {.expected = o->numbers.values,
                        .actual = o->other.values,
                        .before = start.values,
                        .parameter = i,
                        .divisor = 1,
                        .before_words = "the parameter was not updated"};
        if (status == CDDP_OK) status = cd_oracle_explain(o, NULL, &c, &s, err);
        cd_numbers_fini(&start);
        if (status != CDDP_OK) return status;
    }
    cd_oracle_tell(o, CD_LINK_UPDATE, i, &c);
    return CDDP_OK;
}

cddp_status cd_oracle_judge_update(cd_oracle *oracle, const cd_oracle_update *before, const cd_oracle_update *after,
                                   cddp_error *err)
{
    cd_oracle *o = oracle;
    if (!cd_oracle_has_values(o) && !cd_oracle_is_exact_device(o)) return CDDP_OK;
    cd_oracle_slots state = {0};
    CD_TRY(o->options.engine->update(o->options.engine->self, before, &state, err));
    for (size_t i = 0; i < o->options.parameter_count; i++) CD_TRY(judge_parameter(o, before, after, i, err));
    CD_TRY(judge_slots(o, &state, &after->state, err));
    if (o->is_free_running && cd_oracle_has_values(o)) CD_TRY(cd_oracle_advance_free(o, before, err));
    return CDDP_OK;
}
