/* SPDX-License-Identifier: Apache-2.0 */
/* An evaluation between two passes of the training: a forward that no backward follows, of the
** samples that the next forward takes.
**
**     wrapper             forward_begin → model → forward_end, without gradients (FWD-07)
**     wrapper_with_grad   the same with gradients, which nobody asks for (FWD-10, BUF-06)
**     module              model
**
** The model evaluates: dropout is the identity, batch norm takes its running statistics and leaves
** them alone. What the wrapper does besides is what it does in any forward of this kind: it
** broadcasts buffers when that is due, and notes whether the next forward is to do so (BUF-05). A
** rank that evaluates through the wrapper while others do not may leave them waiting.
**
** Not here: what the loss ought to be (core/reference/evaluation.c).
*/
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/train/points.h"
#include "core/train/sharding.h"

/* Outputs of a sharded model are cast where they leave it, before the loss reads them. */
static cddp_status compute(cd_trainer *t, cd_pass *pass, bool records, double *loss,
                           cddp_error *err)
{
    cd_graph *graph = t->replica->graph;
    bool trains = false;
    CD_POINT_FLAG("evaluation.trains", t, trains);
    graph->training = trains;
    graph->grad_enabled = records;
    pass->input_dtype = cd_sharding_input_dtype(t);
    const cddp_status status = cd_replica_forward(t->replica, pass, err);
    graph->training = true;
    CD_TRY(status);
    if (t->sharding != NULL) CD_TRY(cd_trainer_end_forward(t, pass, records, err));
    CD_TRY(cd_replica_loss(t->replica, pass, err));
    graph->grad_enabled = true;
    return CD_PASS(cd_trainer_read_loss(t, pass, loss, err));
}

static cddp_status show(cd_trainer *t, const cd_micro *micro, double loss, cddp_error *err)
{
    const cd_watcher *watcher = t->view.watcher;
    const cd_watched_evaluation evaluation = {.step = t->now.step,
                                              .micro_step = micro->place.micro_step,
                                              .loss = loss,
                                              .values = cd_trainer_refresh_views(t)};
    cd_trainer_emit_mark(t, "evaluated", micro->evaluate);
    if (watcher == NULL || CD_POINT_SKIPS("shown.evaluation", t)) return CDDP_OK;
    return CD_PASS(watcher->ops->evaluated(watcher->self, &evaluation, err));
}

cddp_status cd_trainer_evaluate(cd_trainer *t, const cd_micro *micro, const cd_micro_batch *samples,
                                cddp_error *err)
{
    const bool wraps = micro->evaluate != CDDP_EVALUATE_MODULE,
               records = micro->evaluate == CDDP_EVALUATE_WITH_GRAD;
    cd_pass pass = {.micro = micro, .samples = samples, .count = micro->samples, .loss_scale = 1.0};
    double loss = 0;
    if (micro->evaluate == CDDP_EVALUATE_NOTHING || micro->samples == 0) return CDDP_OK;
    cd_graph_begin(t->replica->graph);
    if (wraps) {
        CD_TRY(t->sharding != NULL ? cd_sharding_begin_forward(t, records, err)
                                   : cddp_ddp_forward_begin(t->ddp, records, err));
        CD_TRY(cd_streams_settle(&t->streams, err)); /* buffers were broadcast */
    }
    CD_TRY(compute(t, &pass, records, &loss, err));
    if (wraps && t->sharding == NULL) CD_TRY(cd_trainer_end_forward(t, &pass, records, err));
    return CD_PASS(show(t, micro, loss, err));
}
