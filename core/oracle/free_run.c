/* SPDX-License-Identifier: Apache-2.0 */
/* Link 8, the free-running reference: one process that trains from the plan's initial parameters by
** itself (O3).
**
** A step that it cannot repeat bit for bit ends its way. It restarts from what the run has before
** the next step that it can repeat, and says how many steps it gave up, and why. */
#include "core/oracle/state.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/oracle/carried.h"
#include "core/trace/tracer.h"

static const char *const gap_words[CD_FREE_GAP_COUNT] = {
    [CD_FREE_ROUNDED] = "a sum or a division of the gradients rounds",
    [CD_FREE_BLOCK] = "ranks are averaged in blocks, and one process has one model",
    [CD_FREE_APART] = "ranks start the step from different values",
    [CD_FREE_CHANGED] = "the optimizers saw gradients that were clipped, or changed otherwise",
    [CD_FREE_SHARDED] = "no rank has the state of a sharded optimizer, from which to restart",
    [CD_FREE_AVERAGED] = "the plan averages parameters between steps",
    [CD_FREE_DISTINCT] = "every rank has its own initial values",
    [CD_FREE_WIDE] =
        "the bound on what was rounded has two points of the grid in it, or 2^-8 of a value",
    [CD_FREE_RECEIVED] = "the rank had no inputs left, and received what others trained"};

void cd_oracle_note_gap(cd_oracle *o, cd_free_gap gap)
{
    if (o->free_gap == CD_FREE_NO_GAP) o->free_gap = gap;
}

/* The single process's gradient, from the run's window: both have the same parameters
** (note_parting). */
static cddp_status free_gradient(cd_oracle *o, const cd_window *w, size_t i, cddp_error *err)
{
    const cd_wide_sum *sum = &w->parameters[i].samples;
    cddp_grad *g = &o->free_gradients[i];
    const bool adds = o->added[i].kind == CDDP_GRAD_DENSE;
    cddp_grad_drop(g);
    if ((!w->parameters[i].fired && !adds) || sum->limbs == NULL) return CDDP_OK;
    CD_TRY(cddp_grad_define(g, &o->values[i], err));
    if (adds) CD_TRY(cd_numbers_read_gradient(&o->other, &o->added[i], sum->numel, err));
    double *means = cd_allocate_array(o->options.allocator, sum->numel, sizeof *means);
    if (means == NULL)
        return cd_fail_memory(err, "the free-running gradient of %s", o->parameters[i].name);
    /* a loss scale that is a power of two is taken back exactly; any other rounds, and shows */
    const double divisor = (double)w->divisor * w->loss_scale;
    for (size_t j = 0; j < sum->numel; j++)
        means[j] = cd_wide_sum_get(sum, j) / divisor + (adds ? o->other.values[j] : 0);
    cddp_status status = cd_numbers_write(&o->numbers, &g->value, means, err);
    cd_release(o->options.allocator, means, sum->numel * sizeof *means);
    return status;
}

/* Did the run's optimizers see the same gradients? A free run has no program that clips. */
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

void cd_oracle_report_parting(cd_oracle *o, size_t parameter, cd_comparison *c)
{
    o->has_free_parted = true;
    c->shape = CD_SHAPE_UNEXPLAINED;
    cd_text_format(c->words, sizeof c->words,
                   "%zu of %zu elements have drifted from the free-running reference", c->bad,
                   c->numel);
    cd_oracle_report(o, CD_LINK_FREE, parameter, c);
}

/* When the run's parameters differ from the reference's at the beginning of a step, the reference
** stops. */
static cddp_status note_parting(cd_oracle *o, const cddp_tensor *mine, cddp_error *err)
{
    for (size_t i = 0; !o->has_free_parted && i < o->options.parameter_count; i++) {
        cd_comparison c;
        CD_TRY(cd_oracle_compare_tensors(o, &mine[i], &o->values[i], &c, err));
        if (c.bad > 0) cd_oracle_report_parting(o, i, &c);
    }
    return CDDP_OK;
}

static cddp_status find_gradients(cd_oracle *o, const cd_oracle_update *before, cddp_error *err)
{
    const cd_window *w = cd_share_latest(o->share, before->step);
    bool plain = false;
    if (w == NULL || !w->is_valid || w->step != before->step || w->digest != o->digest)
        cd_oracle_note_gap(o, CD_FREE_APART);
    else if (!cd_is_power_of_two(w->divisor))
        cd_oracle_note_gap(o, CD_FREE_ROUNDED);
    if (o->free_gap != CD_FREE_NO_GAP) return CDDP_OK;
    for (size_t i = 0; i < o->options.parameter_count; i++) CD_TRY(free_gradient(o, w, i, err));
    CD_TRY(sees_plain_gradients(o, before, &plain, err));
    if (!plain) cd_oracle_note_gap(o, CD_FREE_CHANGED);
    return CDDP_OK;
}

static void end_free_run(cd_oracle *o)
{
    o->free_gaps[o->free_gap]++;
    o->free_ended = o->free_gap;
    o->is_free_valid = false;
}

cddp_status cd_oracle_advance_free(cd_oracle *o, const cd_oracle_update *before, cddp_error *err)
{
    const cd_oracle_engine *e = o->options.free_engine;
    if (o->has_free_parted) return CDDP_OK;
    const bool is_first = o->free_steps++ == 0;
    if (is_first && o->options.free_gap == CD_FREE_NO_GAP) o->is_free_valid = true;
    if (o->is_free_valid) CD_TRY(note_parting(o, e->parameters(e->self), err));
    if (o->has_free_parted) return CDDP_OK;
    const bool lacks_state = o->is_sharded || o->options.has_no_state,
               may_restart = o->is_free_valid || is_first ||
                             (!lacks_state && o->options.free_gap != CD_FREE_AVERAGED);
    if (!may_restart) cd_oracle_note_gap(o, lacks_state ? CD_FREE_SHARDED : CD_FREE_AVERAGED);
    CD_TRY(find_gradients(o, before, err));
    if (o->free_gap != CD_FREE_NO_GAP) {
        end_free_run(o);
        return CDDP_OK;
    }
    cd_oracle_slots state = {0};
    cd_oracle_update update = {.step = before->step,
                               .parameters = o->is_free_valid ? e->parameters(e->self) : o->values,
                               .gradients = o->free_gradients,
                               .restarts = !o->is_free_valid && !is_first};
    CD_TRY(e->update(e->self, &update, &state, err));
    /* an averager changes what the step left */
    if (o->options.free_gap == CD_FREE_AVERAGED) {
        o->free_gap = CD_FREE_AVERAGED;
        end_free_run(o);
        return CDDP_OK;
    }
    o->is_free_valid = true;
    return CDDP_OK;
}

void cd_oracle_receive(cd_oracle *oracle)
{
    cd_oracle *o = oracle;
    if (o->has_free_parted || o->options.free_engine == NULL) return;
    o->free_gaps[CD_FREE_RECEIVED]++;
    o->is_free_valid = false;
    if (o->free_steps == 0) o->free_steps = 1; /* its first step does not start from the seed */
    cd_carried_receive(o);
}

static void report_gaps(cd_oracle *o)
{
    for (size_t gap = CD_FREE_NO_GAP + 1; gap < CD_FREE_GAP_COUNT; gap++)
        cd_oracle_give_up(o, CD_LINK_FREE, o->free_gaps[gap], gap_words[gap]);
}

/* What the second mathematics judged by drawn elements: no comparison is given up by that. */
static void report_undrawn(const cd_oracle *o)
{
    const struct {
        uint64_t count;
        const char *what;
    } rows[] = {{o->undrawn_updates,
                 "elements of updates, by formula: of each large tensor 4096 are drawn"},
                {o->undrawn_derivatives,
                 "elements of gradients, by derivative: of each listed parameter 64 are drawn"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].count == 0) continue;
        CD_EMIT(o->options.tracer, unjudged, rows[i].what, .link = CDDP_LINK_NONE,
                .count = (int64_t)rows[i].count);
    }
}

cddp_status cd_oracle_finish(cd_oracle *oracle, const cddp_tensor *parameters, cddp_error *err)
{
    cd_oracle *o = oracle;
    report_undrawn(o);
    if (o->options.free_engine == NULL || !cd_oracle_has_values(o)) return CDDP_OK;
    report_gaps(o);
    if (o->has_free_parted) return CDDP_OK;
    if (!o->is_free_valid) return CD_PASS(cd_carried_finish(o, parameters, err));
    const cddp_tensor *expected = o->options.free_engine->parameters(o->options.free_engine->self);
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        cd_comparison c;
        CD_TRY(cd_oracle_compare_tensors(o, &expected[i], &parameters[i], &c, err));
        if (c.bad > 0)
            cd_oracle_report_parting(o, i, &c);
        else
            cd_oracle_report(o, CD_LINK_FREE, i, &c);
    }
    return CDDP_OK;
}
