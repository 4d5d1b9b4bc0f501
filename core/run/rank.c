/* SPDX-License-Identifier: Apache-2.0 */
/* The rank program: bind, trace, train, report how it ended. */
#include "core/run/rank.h"

#include "core/base/error.h"
#include "core/run/turns.h"

#include <stdio.h>
#include <string.h>

static cddp_status train_watched(const cd_trainer_options *options, cddp_error *err)
{
    cd_trainer *trainer = NULL;
    CD_TRY(cd_trainer_create(options, &trainer, err));
    const cddp_status status = cd_trainer_train(trainer, err);
    cd_trainer_destroy(trainer);
    return status;
}

void cd_rank_report_unobserved(const cd_trainer_options *options)
{
    if (options->plan->settings.model.device != CDDP_MODEL_DEVICE_SHAPE) return;
    CD_EMIT(options->tracer, unjudged,
            "device shape has no numbers: neither values nor decisions are judged",
            .link = CDDP_LINK_NONE, .count = (int64_t)options->plan->settings.train.steps);
}

/* What is promised of the order in which a sum is added up. */
static cd_sum_promise promise_of(const cd_rank_argument *a, const cddp_plan *plan,
                                 const cddp_backend *backend)
{
    const cddp_capabilities *can = &backend->capabilities;
    if (a->options->bind == NULL)
        return (cd_sum_promise){plan->network.algorithm, (uint32_t)plan->network.ranks_per_node};
    return (cd_sum_promise){can->order != CDDP_ORDER_UNSPECIFIED ? can->algorithm : NULL, 0};
}

cd_intake_options cd_rank_watch(const cd_rank_argument *argument, size_t index,
                                const cd_trainer_options *options)
{
    const cd_rank_argument *a = argument;
    const cd_run_wrapper *wrapper = &a->wrappers->items[index];
    return (cd_intake_options){.plan = wrapper->plan,
                               .whole = a->options->plan,
                               .rank = options->rank,
                               .wrapper = (uint32_t)index,
                               .tracer = options->tracer,
                               .share = wrapper->share,
                               .reference_share = wrapper->reference_share,
                               .reductions =
                                   a->reductions != NULL ? a->reductions : wrapper->reductions,
                               .sums = promise_of(a, wrapper->plan, options->backend),
                               .recall = a->recall};
}

static cddp_status train(const cd_rank_argument *a, cd_trainer_options *options, cddp_error *err)
{
    cd_intake *intake = NULL;
    const cd_intake_options watched = cd_rank_watch(a, 0, options);
    if (a->options->oracle) {
        CD_TRY(cd_intake_create(&watched, &intake, err));
        options->watcher = cd_intake_get_watcher(intake);
        cd_rank_report_unobserved(options);
    }
    const cddp_status status = train_watched(options, err);
    if (!a->is_dropped) cd_intake_destroy(intake); /* the trainer has closed it */
    return status;
}

/* Of a wrapper that is alone; NULL: "world". */
static const char *find_group_name(const cddp_plan *plan)
{
    return plan->wrapper_count == 1 && plan->wrappers[0].own_group ? plan->wrappers[0].name : NULL;
}

/* The first function on the way that other files know by its name; "": none. */
static const char *find_passage(const cddp_error *err)
{
    for (uint32_t i = 0; i < err->frame_count; i++)
        if (strncmp(err->frames[i].function, "cd", 2) == 0) return err->frames[i].function;
    return "";
}

/* A part that returned a status and no words: the report names the status, and who passed it on. */
static void find_words(cddp_status status, cddp_error *err)
{
    if (status == CDDP_OK || err == NULL || err->message[0] != '\0') return;
    const char *passage = find_passage(err);
    err->status = status;
    snprintf(err->message, sizeof err->message, "%s, and nothing says why%s%s",
             cddp_status_text(status), passage[0] != '\0' ? "; it came through " : "", passage);
}

static cddp_status run_bound(cddp_rank *rank, const cd_rank_argument *a,
                             const cddp_rank_binding *binding, cddp_error *err)
{
    const cddp_run_options *options = a->options;
    cddp_tracer *tracer = NULL;
    const cddp_trace_sink *sink = binding->sink != NULL ? binding->sink : a->sink;
    CD_TRY(cddp_tracer_create(rank, sink, options->level, &tracer, err));
    tracer->values = a->values;
    CD_EMIT(tracer, rank_begin, NULL, .world_size = rank->world_size);
    cd_trainer_options trainer = {.plan = a->wrappers->items[0].plan,
                                  .rank = rank,
                                  .registry = options->registry,
                                  .backend = binding->backend != NULL ? binding->backend
                                                                      : options->backend,
                                  .tracer = tracer,
                                  .devices = a->devices,
                                  .is_dropped = a->is_dropped,
                                  .group_name = find_group_name(options->plan)};
    const cddp_status status =
        a->wrappers->count > 1 ? cd_turns_train(a, &trainer, err) : train(a, &trainer, err);
    find_words(status, err);
    if (status != CDDP_OK) {
        CD_EMIT(tracer, error, err != NULL ? err->message : cddp_status_text(status),
                .status = status);
    }
    CD_EMIT(tracer, rank_end, status != CDDP_OK && err != NULL ? err->message : NULL,
            .status = status, .end = CDDP_RANK_RETURNED);
    const cddp_status flushed = cddp_tracer_flush(tracer, status == CDDP_OK ? err : NULL);
    cddp_tracer_destroy(tracer);
    return status != CDDP_OK ? status : flushed;
}

static cddp_status run_process(cddp_rank *rank, cd_rank_argument *a,
                               const cddp_rank_binding *binding, cddp_error *err)
{
    cd_operand_board board;
    if (rank->world_size > 1 &&
        cd_operand_board_init(&board, binding->shared, binding->shared_bytes, rank->rank,
                              rank->world_size))
        CD_TRY(cd_reductions_create(a->options->allocator, &board, &a->reductions, err));
    const cddp_status status = run_bound(rank, a, binding, err);
    cd_reductions_destroy(a->reductions);
    return status;
}

cddp_status cd_rank_program(cddp_rank *rank, void *argument, cddp_error *err)
{
    const cd_rank_argument *a = argument;
    cddp_rank_binding binding = {.size = sizeof binding};
    if (a->options->bind == NULL) {
        CD_TRY(run_bound(rank, a, &binding, err));
        return CDDP_OK;
    }
    cd_rank_argument own = *a;
    CD_TRY(a->options->bind(a->options->bind_context, rank, &binding, err));
    const cddp_status status = run_process(rank, &own, &binding, err);
    a->options->unbind(a->options->bind_context, rank, &binding);
    return status;
}
