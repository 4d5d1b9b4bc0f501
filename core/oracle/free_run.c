/* SPDX-License-Identifier: Apache-2.0 */
/* Link 8, the free-running reference: one process that trains from the initial parameters by itself
** (O3). */
#include "core/oracle/state.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

/* The single process's gradient, from the run's window: both have the same parameters
** (note_parting). */
static cddp_status free_gradient(cd_oracle *o, const cd_window *w, size_t i, cddp_error *err)
{
    const cd_wide_sum *sum = &w->parameters[i].samples;
    cddp_grad *g = &o->free_gradients[i];
    cddp_grad_drop(g);
    if (!w->parameters[i].fired || sum->limbs == NULL) return CDDP_OK;
    CD_TRY(cddp_grad_define(g, &o->values[i], err));
    double *means = cd_allocate_array(o->options.allocator, sum->numel, sizeof *means);
    if (means == NULL)
        return cd_fail_memory(err, "the free-running gradient of %s", o->parameters[i].name);
    for (size_t j = 0; j < sum->numel; j++) means[j] = cd_wide_sum_get(sum, j) / (double)w->divisor;
    cddp_status status = cd_numbers_write(&o->numbers, &g->value, means, err);
    cd_release(o->options.allocator, means, sum->numel * sizeof *means);
    return status;
}

/* The optimizers of the run saw gradients that were clipped or unscaled: the free run has no such
** program. */
static cddp_status sees_plain_gradients(cd_oracle *o, const cd_oracle_update *before, bool *plain,
                                        cddp_error *err)
{
    *plain = true;
    for (size_t i = 0; *plain && i < o->options.parameter_count; i++) {
        const cddp_grad *seen = &before->gradients[i], *mine = &o->free_gradients[i];
        if (o->parameters[i].path == CD_ORACLE_PATH_LOCAL || seen->kind != CDDP_GRAD_DENSE ||
            mine->kind != CDDP_GRAD_DENSE) {
            *plain = seen->kind == CDDP_GRAD_UNDEFINED && mine->kind == CDDP_GRAD_UNDEFINED;
            continue;
        }
        cd_comparison c;
        CD_TRY(cd_oracle_compare_tensors(o, &mine->value, &seen->value, &c, err));
        *plain = c.bad == 0;
    }
    return CDDP_OK;
}

/* When the run's parameters differ from the reference's at the beginning of a step, the reference
** stops. The final comparison reports the difference. */
static cddp_status note_parting(cd_oracle *o, const cddp_tensor *mine, cddp_error *err)
{
    for (size_t i = 0; !o->has_free_parted && i < o->options.parameter_count; i++) {
        cd_comparison c;
        CD_TRY(cd_oracle_compare_tensors(o, &mine[i], &o->values[i], &c, err));
        o->has_free_parted = c.bad > 0;
    }
    return CDDP_OK;
}

cddp_status cd_oracle_advance_free(cd_oracle *o, const cd_oracle_update *before, cddp_error *err)
{
    const cd_oracle_engine *e = o->options.free_engine;
    const cd_window *w = cd_share_latest(o->share, before->step);
    if (!o->is_free_loaded) {
        CD_TRY(e->load(e->self, before->parameters, NULL, err));
        o->is_free_loaded = true;
    }
    CD_TRY(note_parting(o, e->parameters(e->self), err));
    if (o->has_free_parted) return CDDP_OK;
    bool usable = w != NULL && w->is_valid && w->step == before->step && w->digest == o->digest &&
                  cd_is_power_of_two(w->divisor);
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
    cd_oracle_update update = {.step = before->step,
                               .parameters = e->parameters(e->self),
                               .gradients = o->free_gradients};
    CD_TRY(e->update(e->self, &update, &state, err));
    return CDDP_OK;
}

cddp_status cd_oracle_finish(cd_oracle *oracle, const cddp_tensor *parameters, cddp_error *err)
{
    cd_oracle *o = oracle;
    if (!o->is_free_running || !o->is_free_loaded || !cd_oracle_has_values(o)) return CDDP_OK;
    const cddp_tensor *expected = o->options.free_engine->parameters(o->options.free_engine->self);
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        cd_comparison c;
        CD_TRY(cd_oracle_compare_tensors(o, &expected[i], &parameters[i], &c, err));
        if (c.bad > 0)
            cd_text_format(c.words, sizeof c.words,
                           "%zu of %zu elements have drifted from the free-running reference",
                           c.bad, c.numel);
        cd_oracle_report(o, CD_LINK_FREE, i, &c);
    }
    return CDDP_OK;
}
