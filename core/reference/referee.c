/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle and the references of a rank, and what is observed of it.
**
** Observed values go to the oracle unchanged. The expected values come from the plan (declared.c)
** and from the reference.
*/
#include "core/reference/referee_state.h"

#include "cddp/hook.h"
#include "core/base/error.h"
#include "core/base/operation.h"
#include "core/oracle/emit.h"
#include "core/plan/plan.h"
#include "core/plan/plan_check.h"
#include "core/reference/collective.h"
#include "core/reference/custody_values.h"
#include "core/reference/declared.h"
#include "core/reference/optimized.h"
#include "core/reference/planned.h"
#include "core/reference/units.h"
#include "core/trace/tracer.h"

#include <stdio.h>
#include <string.h>

#define MEMORY_BLOCK_BYTES ((size_t)1 << 12)

/* The window's last micro-step is judged with its gradients. Between several forwards of one
** micro-step buffers are synchronised, which the reference does not do. */
static cddp_status leave_micro(cd_referee *o, const cd_custody_moment *now, cddp_error *err)
{
    cd_micro micro;
    cd_planned_micro(o->options.plan, &o->settings,
                     (cd_micro_place){o->options.rank, now->step, now->micro_step}, &micro);
    if (micro.forwards != 1) return CDDP_OK;
    return CD_PASS(cd_oracle_leave_micro(o->oracle, now->step, now->micro_step, now->buffers, err));
}

/* An update that was not shown was not judged. */
static void look_for_update(cd_referee *o, uint32_t step)
{
    bool has_stepped = false;
    for (size_t i = 0; i < o->reference->replica->optimizer_count; i++) {
        has_stepped |= cd_decisions_get_update(&o->decisions, step, i) != CD_UPDATE_UNKNOWN &&
                       cd_decisions_has_step(&o->decisions, step, i);
    }
    if (has_stepped) cd_shown_number(&o->shown, "updated", 1, o->shown.was_updated);
    o->shown.was_updated = false;
}

/* They move in a step by arithmetic that only the hook and the averager have. What a checkpoint
** keeps of them, and what comes of them, is judged. */
static cddp_status expect_states(const cd_referee *o, cddp_error *err)
{
    bool is_expected = false;
    if (o->hook_law != NULL)
        CD_TRY(cd_hook_law_expect_state(o->hook_law, CDDP_MOMENT_AFTER_STEP, &is_expected, err));
    if (cd_decided_hook_has_state(&o->decisions.hook) && !is_expected)
        cd_decisions_give_up(o->options.tracer, 1, "the state of the comm hook after a step");
    if (o->settings.averager.kind != CDDP_AVERAGER_NONE)
        cd_decisions_give_up(o->options.tracer, 1, "the state of the averager after a step");
    return CDDP_OK;
}

/* FST-09: from here on each rank has other elements. */
static cddp_status resume_units(cd_referee *o, cddp_error *err)
{
    const size_t count = o->reference->replica->model->module->parameter_count;
    cddp_plan_settings now = o->settings;
    CD_TRY(cd_unit_law_resume(o->units, err));
    for (size_t i = 0; i < count; i++) o->parts[i] = cd_unit_law_get_place(o->units, i).part;
    cd_oracle_declare_parts(o->oracle, o->parts);
    cd_planned_resume(&now);
    o->sums.options.mesh = cd_planned_get_mesh(o->options.plan, &now);
    o->sums.options.by_rows = now.fsdp.layout == CDDP_SHARDING_CUT_ROWS;
    cd_unit_law_emit_parts(o->units, o->options.tracer);
    return CD_PASS(cd_custody_resumed(o->custody, err));
}

cddp_status cd_referee_look(cd_referee *o, const cd_observed_look *observed, cddp_error *err)
{
    cd_shown_place place;
    CD_TRY(cd_shown_look(&o->shown, observed, &place, err));
    if (observed->moment == CDDP_MOMENT_RESUME && o->units != NULL) CD_TRY(resume_units(o, err));
    if (observed->moment == CDDP_MOMENT_AFTER_UPDATE) look_for_update(o, place.step);
    if (observed->moment == CDDP_MOMENT_AFTER_STEP) CD_TRY(expect_states(o, err));
    if (observed->moment == CDDP_MOMENT_JOIN_END &&
        !cd_planned_has_step(o->options.plan, &o->settings, o->options.rank, place.step))
        cd_oracle_receive(o->oracle);
    const cd_custody_moment now = {.moment = observed->moment,
                                   .step = place.step,
                                   .micro_step = place.micro_step,
                                   .accumulates = place.accumulates,
                                   .parameters = observed->parameters.items,
                                   .gradients = observed->gradients.items,
                                   .buffers = observed->buffers.items};
    CD_TRY(cd_custody_look(o->custody, &now, err));
    if (place.accumulates) CD_TRY(leave_micro(o, &now, err));
    return CDDP_OK;
}

/* What units must compute with in this step (I-FRESH). */
static cddp_status emit_fresh(cd_referee *o, uint32_t step, const cddp_tensor *parameters,
                              cddp_error *err)
{
    const cd_module *module = o->reference->replica->model->module;
    const bool has_content =
        o->units != NULL && cd_tracer_wants_digest(o->options.tracer) && parameters != NULL;
    for (size_t i = 0; has_content && i < module->parameter_count; i++) {
        const cddp_tensor *p = &parameters[i];
        const cddp_dtype dtype = cd_unit_law_get_dtype(o->units, i);
        if (dtype != p->dtype) {
            const cddp_tensor like =
                cddp_tensor_of(p->device, NULL, 0, dtype, p->sizes, p->dim_count);
            CD_TRY(cd_kept_make(&o->cast, &like, err));
            CD_TRY(p->device->copy(&o->cast.tensor, p, NULL, err));
            p = &o->cast.tensor;
        }
        CD_EMIT(o->options.tracer, fresh, NULL, .ordinal = (int64_t)i, .at_step = step,
                .dtype = dtype, .digest = cd_tracer_digest(o->options.tracer, p));
    }
    return CDDP_OK;
}

cddp_status cd_referee_begin(cd_referee *o, const cd_observed_begin *observed, cddp_error *err)
{
    const uint32_t step = cd_shown_get_step(&o->shown);
    cd_shown_number(&o->shown, "begin.step", step, observed->step);
    CD_TRY(cd_shown_parameters(&o->shown, "begin.parameters", &observed->parameters, err));
    CD_TRY(cd_shown_gradients(&o->shown, "begin.gradients", &observed->gradients, err));
    CD_TRY(cd_decisions_emit_ahead(&o->decisions, step, o->options.tracer, err));
    if (o->units != NULL) cd_unit_sums_begin_step(&o->sums, step);
    CD_TRY(emit_fresh(o, step, observed->parameters.items, err));
    o->loss_scale = cd_decisions_begin_step(&o->decisions, step, o->options.tracer);
    CD_TRY(cd_oracle_begin_step(o->oracle, step, observed->parameters.items,
                                observed->gradients.items, err));
    return CDDP_OK;
}

cddp_status cd_referee_before_update(cd_referee *o, const cd_observed_before_update *observed,
                                     cddp_error *err)
{
    CD_TRY(cd_shown_parameters(&o->shown, "before_update.parameters", &observed->parameters, err));
    CD_TRY(cd_shown_optimized(&o->shown, CDDP_MOMENT_BEFORE_STEP, &observed->optimized, err));
    o->before = *observed;
    o->optimizer_state = *observed->optimizer_state.blob;
    if (cd_oracle_wants_formulas(o->oracle)) {
        CD_TRY(cd_oracle_keep_optimized(o->oracle, observed->parameters.items,
                                        observed->optimized.items, observed->optimized.count, err));
    }
    return CDDP_OK;
}

cddp_status cd_referee_enter_forward(cd_referee *o, const cd_observed_enter_forward *observed,
                                     cddp_error *err)
{
    cd_shown_number(&o->shown, "enter_forward.micro_step", o->shown.micro_step,
                    observed->micro_step);
    CD_TRY(cd_shown_buffers(&o->shown, "enter_forward.buffers", &observed->buffers, err));
    cd_oracle_enter_forward(o->oracle, observed->buffers.items);
    return CDDP_OK;
}

cddp_status cd_referee_evaluated(cd_referee *o, const cd_observed_evaluated *observed,
                                 cddp_error *err)
{
    cd_shown_place place;
    bool is_planned;
    double loss = 0;
    CD_TRY(cd_shown_evaluated(&o->shown, observed, &place, &is_planned, err));
    if (!is_planned || (o->options.device->flags & CDDP_DEVICE_VALUES) == 0) return CDDP_OK;
    const cd_evaluation_request request = {.plan = o->options.plan,
                                           .settings = &o->settings,
                                           .device = o->options.device,
                                           .allocator = o->allocator,
                                           .place = {o->options.rank, place.step, place.micro_step},
                                           .parameters = observed->parameters.items,
                                           .buffers = observed->buffers.items,
                                           .samples = &o->reference->share->samples,
                                           .numbers = &o->numbers};
    CD_TRY(cd_evaluation_find(&o->evaluation, &request, &loss, err));
    const cd_comparison found = cd_compare_bits(CDDP_F64, &loss, &observed->loss, 1);
    cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_EVALUATION, -1,
                                              "the loss of an evaluation"},
                       &found);
    return CDDP_OK;
}

cddp_status cd_referee_normalised(cd_referee *o, const cd_observed_normalised *observed,
                                  cddp_error *err)
{
    const size_t exchange = o->shown.exchanges++;
    cd_shown_number(&o->shown, "normalised.step", cd_shown_get_step(&o->shown), observed->step);
    cd_shown_number(&o->shown, "normalised.micro_step", o->shown.micro_step, observed->micro_step);
    cd_shown_number(&o->shown, "normalised.exchange", (int64_t)exchange,
                    (int64_t)observed->exchange);
    const cd_oracle_moments moments = {.step = cd_shown_get_step(&o->shown),
                                       .micro_step = o->shown.micro_step,
                                       .exchange = exchange,
                                       .buffer = observed->buffer,
                                       .mean = observed->mean.items,
                                       .spread = observed->spread.items,
                                       .channels = observed->mean.count};
    int64_t buffer;
    CD_TRY(cd_oracle_judge_statistics(o->oracle, &moments, &buffer, err));
    if (buffer >= 0) cd_shown_number(&o->shown, "normalised.buffer", buffer, observed->buffer);
    return CDDP_OK;
}

cddp_status cd_referee_accumulated(cd_referee *o, const cd_observed_accumulated *observed,
                                   cddp_error *err)
{
    const bool is_known =
        observed->parameter < o->reference->replica->model->module->parameter_count;
    const int32_t variable = is_known ? o->variables[observed->parameter] : -1;
    CD_TRY(cd_shown_accumulated(&o->shown, variable, &observed->gradient.copy, err));
    if (!is_known ||
        !cd_oracle_takes_local(o->oracle, observed->parameter, &observed->gradient.copy)) {
        cd_shown_number(&o->shown, "accumulated.parameter", -1, (int64_t)observed->parameter);
        return CDDP_OK;
    }
    CD_TRY(cd_oracle_push_local(o->oracle, observed->parameter, &observed->gradient.copy, err));
    cd_custody_accumulated(o->custody, observed->parameter, observed->gradient.copy.kind);
    if (o->units == NULL || observed->gradient.copy.kind != CDDP_GRAD_DENSE ||
        (o->options.device->flags & CDDP_DEVICE_VALUES) == 0)
        return CDDP_OK;
    CD_TRY(cd_numbers_read(&o->numbers, &observed->gradient.copy.value, err));
    cd_unit_sums_accumulated(&o->sums, observed->parameter, o->numbers.values, o->shown.micro_step);
    return CDDP_OK;
}

/* What the run says of the way in which it reduces, against the plan's; the plan's is used. A
** plugin's hook says for itself what the plan does not. */
static void hold_to_the_way(cd_referee *o, cd_observed_reduced *reduced)
{
    const cd_shown *shown = &o->shown;
    const uint32_t step = cd_shown_get_step(shown), micro_step = cd_shown_get_closing(shown);
    cd_declared_way way;
    cd_declare_way(&o->decisions, (cd_micro_place){o->options.rank, step, micro_step}, &way);
    cd_shown_number(shown, "reduced.step", step, reduced->step);
    cd_shown_number(shown, "reduced.micro_step", micro_step, reduced->micro_step);
    cd_shown_number(shown, "reduced.hook", way.has_hook, reduced->hook.is_present);
    cd_shown_number(shown, "reduced.inner_hook", way.has_inner, reduced->inner_hook.is_present);
    cd_shown_number(shown, "reduced.divides_after", way.divides_after, reduced->divides_after);
    if (way.knows_wire)
        cd_shown_number(shown, "reduced.wire", (int64_t)way.wire, (int64_t)reduced->wire);
    if (way.knows_block)
        cd_shown_number(shown, "reduced.block_count", way.block_count, reduced->block_count);
    reduced->step = step;
    reduced->micro_step = micro_step;
    reduced->hook.is_present = way.has_hook;
    reduced->inner_hook.is_present = way.has_inner;
    reduced->divides_after = way.divides_after;
    if (way.knows_wire) reduced->wire = way.wire;
    if (way.knows_block) reduced->block_count = way.block_count;
}

cddp_status cd_referee_reduced(cd_referee *o, const cd_observed_reduced *observed, cddp_error *err)
{
    cd_observed_reduced reduced = *observed;
    hold_to_the_way(o, &reduced);
    CD_TRY(cd_shown_reduced(&o->shown, &reduced, err));
    const cd_arena_mark mark = cd_arena_get_mark(&o->memory);
    cd_oracle_reduction reduction;
    cd_declaration declaration = {.plan = o->options.plan,
                                  .settings = &o->settings,
                                  .decisions = &o->decisions,
                                  .rank = o->options.rank,
                                  .loss_scale = o->loss_scale,
                                  .memory = &o->memory};
    CD_TRY(cd_declare_reduction(&declaration, &reduced, &reduction, err));
    reduction.is_followed = o->travelled > 0 && o->summed >= o->travelled &&
                            reduction.division == CD_ORACLE_DIVISION_AFTER;
    if (o->units != NULL)
        CD_TRY(cd_unit_sums_reduced(&o->sums, reduced.gradients.items, &o->numbers,
                                    &reduction.is_followed, err));
    o->travelled = o->summed = 0;
    CD_TRY(cd_oracle_judge_gradients(o->oracle, &reduction, reduced.buffers.items, err));
    cd_arena_rewind(&o->memory, mark);
    CD_TRY(cd_custody_reduced(o->custody, reduced.gradients.items, err));
    if (reduced.micro_step + 1u == o->settings.train.micro_steps) {
        CD_TRY(cd_decisions_judge(&o->decisions, reduced.step, reduced.gradients.items, &o->numbers,
                                  o->options.tracer, err));
    }
    return CDDP_OK;
}

cddp_status cd_referee_leaves(cd_referee *o, const cd_observed_leaves *observed, cddp_error *err)
{
    cd_declared_way way;
    cd_declare_way(&o->decisions,
                   (cd_micro_place){o->options.rank, cd_shown_get_step(&o->shown),
                                    cd_shown_get_closing(&o->shown)},
                   &way);
    cd_shown_number(&o->shown, "leaves.hook", true, observed->hook.is_present);
    if (way.knows_wire)
        cd_shown_number(&o->shown, "leaves.wire", (int64_t)way.wire, (int64_t)observed->wire);
    cd_shown_bucket_passes(&o->shown, &(cd_shown_bucket_pass){.bucket = observed->bucket,
                                                              .generation = observed->generation,
                                                              .is_last = observed->is_last,
                                                              .is_shadow = observed->is_shadow,
                                                              .left = true,
                                                              .places = &observed->places});
    cd_law_bucket bucket = {.index = observed->bucket,
                            .generation = observed->generation,
                            .is_last = observed->is_last,
                            .is_shadow = observed->is_shadow,
                            .is_first_again =
                                o->settings.ddp.static_graph &&
                                cd_declared_follows_left_backward(&o->decisions,
                                                                  cd_shown_get_step(&o->shown)),
                            .ranks = cd_planned_group_size(o->options.plan, o->options.rank,
                                                           cd_shown_get_step(&o->shown)),
                            .flat = &observed->flat.copy,
                            .count = (uint32_t)observed->places.count,
                            .variables = observed->places.variables,
                            .offsets = observed->places.offsets,
                            .lengths = observed->places.lengths,
                            .wire = way.knows_wire ? way.wire : observed->wire};
    cd_law_bucket_promise(&bucket, observed->hook.flags);
    if (o->hook_law != NULL) CD_TRY(cd_hook_law_launch(o->hook_law, &bucket, err));
    return CDDP_OK;
}

cddp_status cd_referee_travels(cd_referee *o, const cd_observed_travels *observed, cddp_error *err)
{
    cd_law_turn turn;
    o->travelled += observed->is_result;
    if (o->hook_law == NULL) return CDDP_OK;
    CD_TRY(cd_hook_law_travel(o->hook_law, observed->bucket, observed->is_result,
                              &observed->numbers.copy, &turn, err));
    cd_shown_number(&o->shown, "travels.bucket", turn.bucket, observed->bucket);
    cd_shown_number(&o->shown, "travels.is_result", turn.is_result, observed->is_result);
    return CDDP_OK;
}

/* Nothing is owed of it: a right one needs no event. */
static void emit_gathered(const cd_referee *o, const cd_observed_summed *observed,
                          cd_comparison *found)
{
    char name[96];
    if (found->bad == 0) return;
    snprintf(name, sizeof name, "allgather in %s", cddp_dtype_name(observed->dtype));
    cd_text_format(found->words, sizeof found->words, "not what its members posted");
    cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_SUM, -1, name}, found);
}

/* By what a sum seems wrong: a wrong copy of it is nobody's mistake (I-SHOWN). */
static cddp_status emit_sight(cd_referee *o, const cd_observed_summed *observed, cddp_error *err)
{
    uint64_t digest;
    bool is_known;
    CD_TRY(cd_summed_digest(observed, &o->numbers, &digest, &is_known, err));
    if (is_known)
        CD_EMIT(o->options.tracer, mark, CD_TRACER_SHOWN_SUM,
                .value = (int64_t)(digest & CD_SUM_SIGHT_BITS));
    return CDDP_OK;
}

/* The place of this rank among the members of a reduction of all: its rank, or where a group of the
** plan lists all ranks in another order, its place there. */
static void hold_member(cd_referee *o, uint32_t member)
{
    const cddp_plan *plan = o->options.plan;
    const uint32_t rank = o->options.rank;
    bool is_known = member == rank;
    for (size_t i = 0; i < plan->group_count && !is_known; i++) {
        const cddp_u32_list *members = &plan->groups[i].members;
        is_known = members->count == plan->world.size && member < members->count &&
                   members->items[member] == rank;
    }
    cd_shown_number(&o->shown, "summed.member", is_known ? member : rank, member);
}

/* Numbers are compared with numbers, whatever dtype and however many members are shown. */
static void emit_form(const cd_referee *o, const cd_observed_summed *observed)
{
    CD_EMIT(o->options.tracer, mark, CD_TRACER_SHOWN_FORM,
            .value = (int64_t)(cd_summed_digest_form(observed) & CD_SUM_SIGHT_BITS));
}

/* What this rank received, against what all members posted. Both are held against the plan where
** they are used: links 2 and 9, and the chain. */
cddp_status cd_referee_summed(cd_referee *o, const cd_observed_summed *observed, cddp_error *err)
{
    char name[96];
    cd_comparison found;
    if (observed->members == o->options.plan->world.size) hold_member(o, observed->member);
    if (observed->gathers) cd_shown_number(&o->shown, "summed.stride", 1, observed->stride);
    CD_TRY(cd_summed_compare(&o->options.sums, observed, o->allocator, &found, err));
    if (found.bad > 0)
        CD_TRY(emit_sight(o, observed, err));
    else if (observed->gathers)
        emit_form(o, observed);
    if (observed->gathers) {
        emit_gathered(o, observed, &found);
        return CDDP_OK;
    }
    CD_TRY(cd_custody_summed(o->custody, observed, err));
    if (o->units != NULL && observed->stride == 1)
        CD_TRY(cd_unit_sums_summed(&o->sums, observed, err));
    if (found.numel == 0 && found.bad == 0) {
        const bool is_narrow = observed->dtype != CDDP_F32 && observed->result.count > 0;
        if (is_narrow && observed->members > CD_ANY_ORDER_ADDENDS_MAX)
            CD_EMIT(
                o->options.tracer, unjudged,
                "of a sum in a half type no order is promised, nor is it a known one: its bound",
                .link = CDDP_LINK_SUM, .count = 1);
        return CDDP_OK;
    }
    o->summed += found.exact;
    snprintf(name, sizeof name, "%s %s in %s", observed->scatters ? "reduce_scatter" : "allreduce",
             observed->averages ? "avg" : "sum", cddp_dtype_name(observed->dtype));
    cd_text_format(found.words, sizeof found.words, "not the sum of what its members posted");
    cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_SUM, -1, name}, &found);
    return CDDP_OK;
}

cddp_status cd_referee_returns(cd_referee *o, const cd_observed_returns *observed, cddp_error *err)
{
    cd_shown_bucket_passes(&o->shown, &(cd_shown_bucket_pass){.bucket = observed->bucket,
                                                              .generation = observed->generation,
                                                              .is_shadow = observed->is_shadow,
                                                              .places = &observed->places});
    const cd_law_bucket bucket = {.index = observed->bucket,
                                  .generation = observed->generation,
                                  .is_shadow = observed->is_shadow,
                                  .flat = &observed->flat.copy,
                                  .count = (uint32_t)observed->places.count,
                                  .variables = observed->places.variables,
                                  .offsets = observed->places.offsets,
                                  .lengths = observed->places.lengths};
    if (o->hook_law != NULL) CD_TRY(cd_hook_law_deliver(o->hook_law, &bucket, err));
    return CDDP_OK;
}

/* Whose squares are added: this rank's alone, or those of the members of a group. */
static void hold_ranks(const cd_referee *o, const cd_observed_ranks *ranks)
{
    const cddp_plan *plan = o->options.plan;
    const char *name = o->settings.clip.group;
    const cddp_plan_group *group = name != NULL ? cd_plan_find_group(plan, name) : NULL;
    const bool is_world = name != NULL && strcmp(name, "world") == 0;
    const cddp_u32_list *members = group != NULL ? &group->members : NULL;
    bool is_member = is_world || (group != NULL && members->count == 0);
    for (size_t i = 0; group != NULL && i < members->count; i++)
        is_member |= members->items[i] == o->options.rank;
    const bool is_listed = is_member && group != NULL && members->count > 0;
    const size_t count = !is_member ? 1 : is_listed ? members->count : plan->world.size;
    cd_shown_number(&o->shown, "clips.ranks", (int64_t)count, (int64_t)ranks->count);
    for (size_t i = 0; i < count && i < ranks->count; i++) {
        const uint32_t planned = !is_member  ? o->options.rank
                                 : is_listed ? members->items[i]
                                             : (uint32_t)i;
        cd_shown_number(&o->shown, "clips.ranks", planned, ranks->items[i]);
    }
}

cddp_status cd_referee_clips(cd_referee *o, const cd_observed_clips *observed, cddp_error *err)
{
    hold_ranks(o, &observed->ranks);
    const cd_oracle_norm norm = {.gradients = observed->gradients.items,
                                 .norm = observed->norm,
                                 .p = o->settings.clip.norm_type,
                                 .ranks = observed->ranks.items,
                                 .rank_count = (uint32_t)observed->ranks.count};
    CD_TRY(cd_oracle_judge_norm(o->oracle, &norm, err));
    double own = observed->norm;
    if (!cd_decisions_get_norm(&o->decisions, observed->norm, &own)) own = observed->norm;
    CD_TRY(cd_custody_clips(o->custody, &observed->gradients, err));
    cd_custody_note_norm(o->custody, own, observed->norm);
    return CDDP_OK;
}

/* Every parameter that is reduced lies in one bucket. What the run shows does not index the judge's
** memory unchecked. */
static cddp_status hold_assigned(cd_referee *o, const cd_observed_buckets *buckets, bool *fits,
                                 cddp_error *err)
{
    const size_t count = o->reference->replica->model->module->parameter_count;
    const cd_arena_mark mark = cd_arena_get_mark(&o->memory);
    bool *seen = cd_arena_array(&o->memory, count + 1, sizeof *seen);
    CD_TRY(cd_arena_check(&o->memory, err, "the buckets of rank %u", o->options.rank));
    *fits = true;
    for (size_t b = 0; b < buckets->count && *fits; b++) {
        for (size_t i = 0; i < buckets->items[b].count && *fits; i++) {
            const uint32_t p = buckets->items[b].parameters[i];
            *fits = p < count && !seen[p];
            cd_shown_number(&o->shown, "assigned.buckets", *fits ? (int64_t)p : -1, p);
            if (*fits) seen[p] = true;
        }
    }
    for (size_t p = 0; p < count && *fits; p++) {
        *fits = seen[p] || o->variables[p] < 0;
        cd_shown_number(&o->shown, "assigned.buckets", *fits ? -1 : (int64_t)p, -1);
    }
    cd_arena_rewind(&o->memory, mark);
    return CDDP_OK;
}

/* The assignment of parameters to ranks follows from the rebuilt buckets and from the rule by which
** buckets are assigned. The wrapper knows the buckets, and I-CONTENT judges them. The oracle has
** its own form of the rule. */
cddp_status cd_referee_assigned(cd_referee *o, const cd_observed_assigned *observed,
                                cddp_error *err)
{
    const size_t count = observed->buckets.count;
    const cd_module *module = o->reference->replica->model->module;
    cd_shown_assigned(&o->shown, &observed->buckets, o->variables, module->parameter_count);
    const size_t parameters = module->parameter_count + 1;
    bool fits = false;
    CD_TRY(hold_assigned(o, &observed->buckets, &fits, err));
    if (!fits) return CDDP_OK;
    const cd_arena_mark mark = cd_arena_get_mark(&o->memory);
    cd_partition_bucket *buckets = cd_arena_array(&o->memory, count + 1, sizeof *buckets);
    cd_part *parts = cd_arena_array(&o->memory, parameters, sizeof *parts);
    int64_t *numels = cd_arena_array(&o->memory, parameters, sizeof *numels);
    CD_TRY(cd_arena_check(&o->memory, err, "the owners of %zu buckets", count));
    for (size_t b = 0; b < count; b++) {
        const cd_observed_bucket *bucket = &observed->buckets.items[b];
        buckets[b] = (cd_partition_bucket){bucket->parameters, bucket->count};
    }
    for (size_t i = 0; i < module->parameter_count; i++)
        numels[i] = cddp_tensor_numel(&module->parameters[i].tensor);
    const cd_partition partition = {numels, module->parameter_count,
                                    (uint32_t)o->options.plan->world.size, o->allocator};
    CD_TRY(cd_partition_buckets(&partition, buckets, count,
                                o->options.plan->optimizers[0].shard_buckets, parts, err));
    for (size_t i = 0; i < module->parameter_count; i++) {
        const int64_t lanes = cd_referee_lanes_of(module->parameters[i].tensor.dtype);
        parts[i] = (cd_part){parts[i].start * lanes, parts[i].share * lanes, 0};
    }
    cd_oracle_declare_parts(o->oracle, parts);
    cd_arena_rewind(&o->memory, mark);
    return CDDP_OK;
}

/* Slots come in the order of the reference's. */
static cddp_status hold_slots(const cd_referee *o, const cd_observed_updated *observed,
                              cddp_error *err)
{
    const cd_reference *r = o->reference;
    if (observed->slots.count != r->slot_count || observed->slot_parameters.count != r->slot_count)
        return cd_fail(err, CDDP_E_STATE, "rank %u has %zu optimizer slots, the plan has %zu",
                       o->options.rank, observed->slots.count, r->slot_count);
    cd_replica_get_slots(r->replica, r->slots, r->slot_parameters);
    for (size_t i = 0; i < r->slot_count; i++) {
        cd_shown_number(&o->shown, "updated.slot_parameters", r->slot_parameters[i],
                        observed->slot_parameters.items[i]);
    }
    return CDDP_OK;
}

/* What an optimizer computes with is the plan's, also where no element shows it: eps below half a
** unit of every denominator, a momentum before the second step. */
static void hold_settings(const cd_referee *o, const cd_observed_optimized *optimized)
{
    static const char *const names[CD_ORACLE_SETTINGS] = {"weight_decay", "momentum", "dampening",
                                                          "nesterov",     "beta1",    "beta2",
                                                          "eps"};
    const cd_replica *r = o->reference->replica;
    double planned[CD_ORACLE_SETTINGS];
    for (size_t i = 0; i < optimized->count; i++) {
        const cd_oracle_optimized *x = &optimized->items[i];
        const bool is_first = i == 0 || x[-1].optimizer != x->optimizer;
        if (!is_first || x->optimizer >= r->optimizer_count || !o->due[x->optimizer]) continue;
        cd_optimized_settings(&o->formulas[x->optimizer], planned);
        for (size_t k = 0; k < CD_ORACLE_SETTINGS; k++) {
            char name[96];
            cd_comparison c = cd_compare_bits(CDDP_F64, &planned[k], &x->settings[k], 1);
            if (c.bad == 0) continue;
            snprintf(name, sizeof name, "%s of optimizer '%.40s'", names[k],
                     r->optimizers[x->optimizer].name);
            cd_text_format(c.words, sizeof c.words, "it is not the plan's");
            cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_UPDATE, -1, name},
                               &c);
        }
    }
}

cddp_status cd_referee_updated(cd_referee *o, const cd_observed_updated *observed, cddp_error *err)
{
    const uint32_t step = cd_shown_get_step(&o->shown);
    cd_shown_number(&o->shown, "updated.step", step, observed->step);
    o->shown.was_updated = true;
    CD_TRY(cd_shown_optimized(&o->shown, CDDP_MOMENT_AFTER_UPDATE, &observed->optimized, err));
    CD_TRY(cd_shown_consumed(&o->shown, &observed->gradients, err));
    CD_TRY(hold_slots(o, observed, err));
    const cd_oracle_update before = {.step = step,
                                     .parameters = o->before.parameters.items,
                                     .gradients = observed->gradients.items};
    const cd_oracle_update after = {.step = step,
                                    .parameters = observed->parameters.items,
                                    .gradients = observed->gradients.items,
                                    .state = {observed->slots.items, o->reference->slot_parameters,
                                              observed->slots.count}};
    for (size_t i = 0; i < o->reference->replica->optimizer_count; i++)
        o->due[i] = cd_decisions_has_step(&o->decisions, step, i);
    o->reference->due = o->free_reference->due = o->due;
    cd_optimized_plan(o->options.plan, &o->settings, &(cd_optimized_place){o->options.rank, step},
                      o->formulas);
    hold_settings(o, &observed->optimized);
    CD_TRY(cd_oracle_judge_update(o->oracle, &before, &after, err));
    const cd_oracle_formulas formulas = {.formulas = o->formulas,
                                         .due = o->due,
                                         .parameters = observed->parameters.items,
                                         .gradients = observed->gradients.items,
                                         .after = observed->optimized.items,
                                         .count = observed->optimized.count};
    CD_TRY(cd_oracle_judge_formulas(o->oracle, &formulas, err));
    CD_TRY(cd_custody_updated(o->custody, observed->parameters.items, err));
    return CDDP_OK;
}

/* By what a result seems wrong: a wrong copy of it is nobody's mistake (I-SHOWN). */
static cddp_status emit_output_sight(const cd_referee *o, const cddp_tensor *output,
                                     cddp_error *err)
{
    uint64_t digest = 0;
    if (!cd_tracer_wants_digest(o->options.tracer)) return CDDP_OK;
    CD_TRY(output->device->digest(output, &digest, err));
    CD_EMIT(o->options.tracer, mark, CD_TRACER_SHOWN_OUTPUT,
            .value = (int64_t)(digest & CD_SUM_SIGHT_BITS));
    return CDDP_OK;
}

/* Which collective it is, and whose place in its group, the judge finds for itself. */
cddp_status cd_referee_exchanged(cd_referee *o, const cd_observed_exchanged *observed,
                                 cddp_error *err)
{
    char name[96];
    cd_comparison found;
    const cddp_plan *plan = o->options.plan;
    const cd_exchanged_place at = {plan, &o->settings, o->options.rank,
                                   cd_shown_get_step(&o->shown)};
    const size_t position = cd_exchanged_next(&o->exchanged, &at, observed->collective);
    cd_shown_number(&o->shown, "exchanged.collective",
                    position < plan->collective_count ? (int64_t)position : -1,
                    (int64_t)observed->collective);
    if (position >= plan->collective_count) return CDDP_OK;
    const cddp_plan_collective *planned = &plan->collectives[position];
    const cddp_plan_group *members =
        planned->group != NULL ? cd_plan_find_group(plan, planned->group) : NULL;
    const cddp_op op = cd_plan_op(planned);
    const bool reduces = cd_op_is_reduction(op);
    cd_expected_collective expected = {.planned = planned, .members = members};
    (void)cd_exchanged_find_member(plan, planned, o->options.rank, &expected.me, &expected.size);
    cd_shown_number(&o->shown, "exchanged.member", expected.me, observed->member);
    CD_TRY(cd_collective_compare(&expected, &o->numbers, &observed->output.copy, &found, err));
    if (found.bad > 0) CD_TRY(emit_output_sight(o, &observed->output.copy, err));
    snprintf(name, sizeof name, "%s%s%s of group '%.40s'", cddp_op_name(op), reduces ? " " : "",
             reduces ? cddp_red_op_name(cd_plan_reduction(planned)) : "",
             members != NULL ? members->name : "world");
    cd_comparison_emit(&(cd_comparison_place){o->options.tracer, CD_LINK_COLLECTIVE, -1, name},
                       &found);
    return CDDP_OK;
}

/* Today no row of the table is judged by nobody: one that comes is counted in the report. */
static void report_unjudged_fields(const cd_referee *o)
{
    const char *moment = "";
    for (size_t i = 0; i < cd_observed_count(); i++) {
        const cd_observed_row *row = cd_observed_get(i);
        char what[128];
        if (row->field == NULL) moment = row->moment;
        if (row->field == NULL || row->judge != CD_JUDGED_BY_NOBODY) continue;
        cd_text_format(what, sizeof what, "what the run shows as '%s' at '%s': nobody judges it",
                       row->field, moment);
        CD_EMIT(o->options.tracer, unjudged, what, .link = CDDP_LINK_NONE, .count = 1);
    }
}

cddp_status cd_referee_finish(cd_referee *o, const cd_observed_finish *observed, cddp_error *err)
{
    CD_TRY(cd_shown_parameters(&o->shown, "finish.parameters", &observed->parameters, err));
    CD_TRY(cd_oracle_finish(o->oracle, observed->parameters.items, err));
    report_unjudged_fields(o);
    return CDDP_OK;
}

/* ---- life ---- */

cddp_status cd_referee_create(const cd_referee_options *options, cd_referee **referee,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena memory;
    cd_arena_init(&memory, options->allocator, MEMORY_BLOCK_BYTES);
    cd_referee *o = cd_arena_push(&memory, sizeof *o);
    CD_TRY(cd_arena_check(&memory, err, "the referee of rank %u", options->rank));
    o->memory = memory;
    o->options = *options;
    o->allocator = o->numbers.allocator = options->allocator;
    o->numbers.has_lanes = true;
    o->loss_scale = 1.0;
    CD_TRY_OUT(cddp_plan_rank_settings(options->plan, options->rank, &o->settings, err));
    *referee = o;
    o = NULL;
out:
    cd_referee_destroy(o);
    return status;
}

void cd_referee_destroy(cd_referee *o)
{
    if (o == NULL) return;
    cd_oracle_destroy(o->oracle);
    cd_custody_destroy(o->custody);
    cd_hook_law_destroy(o->hook_law);
    cd_reference_destroy(o->reference);
    cd_reference_destroy(o->free_reference);
    cd_unit_law_destroy(o->units);
    cd_evaluation_fini(&o->evaluation);
    cd_unit_sums_fini(&o->sums);
    cd_kept_fini(&o->cast);
    cd_shown_fini(&o->shown);
    cd_numbers_fini(&o->numbers);
    cd_arena_fini(&o->memory);
}
