/* SPDX-License-Identifier: Apache-2.0 */
/* The proof. The replica has no wrapper and no group: it accumulates one contribution after the other into its own
** gradients, so its sum is what the declaration says and nothing that was communicated.
*/
#include "core/run/proof.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/oracle/compare.h"
#include "core/oracle/oracle.h"
#include "core/run/reference.h"
#include "core/tensor/symbol.h"

#include <math.h>
#include <stdio.h>

struct cd_proof {
    cd_proof_options options;
    cd_replica *replica;
    cddp_plan_settings *settings; /* (world size) */
    cd_sampler **samplers;        /* (world size) */
    const cd_micro *running;
};

static cddp_status fresh(void *context, uint32_t parameter, const cddp_tensor *dst, cddp_error *err)
{
    const cd_proof *p = context;
    const cd_micro_place *place = &p->running->place;
    const cd_atom atom = {.kind = CD_ATOM_GRADIENT, .source = parameter, .rank = place->rank,
                          .micro_step = place->micro_step, .step = place->step};
    CD_TRY(cd_symbol_write_atoms(dst, &atom, err));
    return CDDP_OK;
}

cddp_status cd_proof_create(const cd_proof_options *options, cd_proof **proof, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const size_t world = (size_t)options->plan->world.size;
    cd_proof *p = cd_allocate_zero(options->allocator, sizeof *p);
    if (p == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for a proof");
    }
    p->options = *options;
    p->settings = cd_allocate_array(options->allocator, world, sizeof *p->settings);
    p->samplers = cd_allocate_array(options->allocator, world, sizeof *p->samplers);
    if (p->settings == NULL || p->samplers == NULL) {
        status = cd_fail(err, CDDP_E_NOMEM, "no memory for a proof over %zu ranks", world);
        goto out;
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        CD_TRY_OUT(cddp_plan_rank_settings(options->plan, rank, &p->settings[rank], err));
        CD_TRY_OUT(cd_sampler_create(options->plan, rank, options->allocator, &p->samplers[rank], err));
    }
    CD_TRY_OUT(cd_replica_create(options->plan, options->rank, options->allocator, &p->replica, err));
    const cd_graph_callbacks callbacks = {.context = p, .fresh = fresh};
    cd_graph_set_callbacks(p->replica->graph, &callbacks);
    *proof = p;
    p = NULL;
out:
    cd_proof_destroy(p);
    return status;
}

void cd_proof_destroy(cd_proof *p)
{
    if (p == NULL) {
        return;
    }
    const size_t world = (size_t)p->options.plan->world.size;
    for (size_t i = 0; p->samplers != NULL && i < world; i++) {
        cd_sampler_destroy(p->samplers[i]);
    }
    cd_replica_destroy(p->replica);
    cd_release(p->options.allocator, p->samplers, world * sizeof *p->samplers);
    cd_release(p->options.allocator, p->settings, world * sizeof *p->settings);
    cd_release(p->options.allocator, p, sizeof *p);
}

/* Adds what one rank contributes in one step. */
static cddp_status run_rank(cd_proof *p, uint32_t rank, uint32_t step, cddp_error *err)
{
    const cddp_plan_settings *settings = &p->settings[rank];
    for (uint32_t m = 0; m < settings->train.micro_steps; m++) {
        cd_micro micro;
        cd_micro_batch samples;
        cd_micro_resolve(p->options.plan, settings, (cd_micro_place){rank, step, m}, &micro);
        if (!cd_micro_contributes(&micro)) {
            continue;
        }
        CD_TRY(cd_sampler_get(p->samplers[rank], &micro, &samples, err));
        p->running = &micro;
        CD_TRY(cd_replica_run_micro(p->replica, &micro, &samples, CD_ORACLE_ALL, 1.0, err));
    }
    return CDDP_OK;
}

static cddp_status build_expected(cd_proof *p, uint32_t step, uint64_t divisor, cddp_error *err)
{
    cd_module *module = p->replica->model->module;
    CD_TRY(cd_module_zero_grad(module, CD_ZERO_GRAD_TO_NONE, err));
    for (uint32_t rank = 0; rank < p->options.plan->world.size; rank++) {
        if (cd_rank_has_step(p->options.plan, &p->settings[rank], rank, step)) {
            CD_TRY(run_rank(p, rank, step, err));
        }
    }
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cddp_grad *grad = &module->parameters[i].grad;
        if (grad->kind == CDDP_GRAD_DENSE) {
            CD_TRY(grad->value.device->divide(&grad->value, &grad->value, (int64_t)divisor, NULL, err));
        }
    }
    return CDDP_OK;
}

static const char *atom_name(void *context, cd_atom_kind kind, uint32_t source)
{
    const cd_module *module = context;
    return kind == CD_ATOM_GRADIENT && source < module->parameter_count ? module->parameters[source].name : NULL;
}

static void tell_difference(const cd_proof *p, size_t parameter, const cd_symbol_difference *difference)
{
    char text[512], actual[224], expected[224];
    const cd_symbol_names names = {atom_name, p->replica->model->module};
    const cd_form actual_form = {difference->actual_count < CD_FORM_TERMS_MAX ? difference->actual_count : CD_FORM_TERMS_MAX,
                                 difference->actual};
    const cd_form expected_form = {
        difference->expected_count < CD_FORM_TERMS_MAX ? difference->expected_count : CD_FORM_TERMS_MAX, difference->expected};
    cd_form_print(&actual_form, 1, &names, actual, sizeof actual);
    cd_form_print(&expected_form, 1, &names, expected, sizeof expected);
    snprintf(text, sizeof text, "%s in place of %s", actual, expected);
    CD_EMIT(p->options.tracer, compare, text, .link = CD_LINK_MATHEMATICS, .param = p->options.variables[parameter],
            .element = difference->index, .expected = cd_f64_bits(NAN), .actual = cd_f64_bits(NAN), .bad = 1,
            .shape = CD_SHAPE_OTHER, .exact = 1);
}

static cddp_status judge_parameter(cd_proof *p, size_t parameter, const cddp_grad *gradient, cddp_error *err)
{
    const cddp_grad *expected = &p->replica->model->module->parameters[parameter].grad;
    cd_symbol_difference difference = {.index = -1};
    if (gradient->kind != expected->kind) {
        CD_EMIT(p->options.tracer, compare, gradient->kind == CDDP_GRAD_UNDEFINED ? "absent" : "there, and nobody contributed",
                .link = CD_LINK_PRESENCE, .param = p->options.variables[parameter], .element = 0, .bad = 1,
                .shape = CD_SHAPE_PRESENCE, .exact = 1);
        return CDDP_OK;
    }
    if (gradient->kind == CDDP_GRAD_DENSE) {
        CD_TRY(cd_symbol_compare_views(&gradient->value, &expected->value, &difference, err));
    }
    if (difference.index >= 0) {
        tell_difference(p, parameter, &difference);
    } else {
        CD_EMIT(p->options.tracer, compare, NULL, .link = CD_LINK_MATHEMATICS, .param = p->options.variables[parameter],
                .element = -1, .exact = 1);
    }
    return CDDP_OK;
}

cddp_status cd_proof_judge(cd_proof *p, uint32_t step, uint64_t divisor, const cddp_grad *gradients, cddp_error *err)
{
    CD_TRY(build_expected(p, step, divisor, err));
    for (size_t i = 0; i < p->replica->model->module->parameter_count; i++) {
        if (p->options.variables[i] >= 0) {
            CD_TRY(judge_parameter(p, i, &gradients[i], err));
        }
    }
    return CDDP_OK;
}
