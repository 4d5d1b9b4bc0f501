/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets on their way through a comm hook, as the watcher sees them.
**
** Watching changes nothing: on a device with streams the run waits for the bucket here, watched or
** not, and the watcher sees the host's view. Its copies are no memory of the run's device, and no
** operations on its streams.
*/
#include "core/train/trainer.h"

#include "core/base/error.h"

/* The wrapper's mixed precision stands in the place of a hook (MIX-04). */
static bool casts_in_place_of_a_hook(const cd_trainer *t)
{
    return t->reduction.hook == NULL && t->reduction.divides_after &&
           t->reduction.wire != CDDP_DTYPE_COUNT;
}

static cddp_status pass_on(const cd_trainer *t, const cd_shown_bucket *b, bool is_result,
                           cddp_error *err)
{
    const cd_watcher *watcher = t->view.watcher;
    if (t->reduction.hook == NULL && !casts_in_place_of_a_hook(t)) return CDDP_OK;
    CD_TRY(cd_streams_look(&t->streams, err));
    if (watcher == NULL) return CDDP_OK;
    if (b->flat->device == NULL || (b->flat->device->flags & CDDP_DEVICE_VALUES) == 0)
        return CDDP_OK; /* sums are of numbers */
    const cddp_tensor flat = cd_streams_plain(&t->streams, b->flat);
    const cd_watched_transfer transfer = {.bucket = b->index,
                                          .generation = b->generation,
                                          .is_result = is_result,
                                          .is_last = b->is_last,
                                          .is_shadow = b->is_shadow,
                                          .flat = &flat,
                                          .count = b->count,
                                          .variables = b->variables,
                                          .offsets = b->offsets,
                                          .lengths = b->lengths,
                                          .hook_flags = t->reduction.hook != NULL
                                                            ? t->reduction.hook->flags
                                                            : CDDP_HOOK_LOSSY,
                                          .wire = t->reduction.wire};
    return CD_PASS(watcher->ops->transferred(watcher->self, &transfer, err));
}

static cddp_status leaves(void *self, const cd_shown_bucket *bucket, cddp_error *err)
{
    return CD_PASS(pass_on(self, bucket, false, err));
}

/* The collective goes on, whatever happens here. */
static void travel(void *self, uint32_t bucket, bool is_result, const cddp_tensor *numbers)
{
    cd_trainer *t = self;
    const cd_watcher *watcher = t->view.watcher;
    const cddp_hook *hook = t->reduction.hook;
    const bool is_lossy =
        hook != NULL ? (hook->flags & CDDP_HOOK_LOSSY) != 0 : casts_in_place_of_a_hook(t);
    const bool is_seen = watcher != NULL && is_lossy && t->streams.device == NULL &&
                         numbers->device != NULL &&
                         (numbers->device->flags & CDDP_DEVICE_VALUES) != 0;
    if (!is_seen || t->reduction.travel_status != CDDP_OK) return;
    const cd_watched_travel seen = {bucket, is_result, numbers};
    t->reduction.travel_status =
        watcher->ops->travelled(watcher->self, &seen, &t->reduction.travel_error);
}

/* Of a sum in f64 a bound says enough; what is gathered stays as it is. */
static bool is_compared(const cddp_tensor *t, bool gathers)
{
    return t->device != NULL && (t->device->flags & CDDP_DEVICE_VALUES) != 0 &&
           (t->dtype == CDDP_F16 || t->dtype == CDDP_BF16 || t->dtype == CDDP_F32 ||
            (gathers && t->dtype == CDDP_F64));
}

static void reduce(void *self, const cd_tracer_reduction *reduction)
{
    cd_trainer *t = self;
    const cd_watcher *watcher = t->view.watcher;
    const bool adds = reduction->op == CDDP_RED_SUM || reduction->op == CDDP_RED_AVG;
    const bool is_seen =
        watcher != NULL && t->streams.device == NULL && adds &&
        (reduction->numbers == NULL || is_compared(reduction->numbers, reduction->gathers));
    if (!is_seen || t->reduction.travel_status != CDDP_OK) return;
    t->reduction.travel_status =
        watcher->ops->summed(watcher->self, reduction, &t->reduction.travel_error);
}

cddp_status cd_trainer_end_watching(const cd_trainer *t, cddp_error *err)
{
    if (t->reduction.travel_status != CDDP_OK && err != NULL) *err = t->reduction.travel_error;
    return CD_PASS(t->reduction.travel_status);
}

static cddp_status returns(void *self, const cd_shown_bucket *bucket, cddp_error *err)
{
    CD_TRY(cd_trainer_end_watching(self, err));
    return CD_PASS(pass_on(self, bucket, true, err));
}

void cd_trainer_watch_reductions(cd_trainer *t)
{
    if (!cd_tracer_wants_digest(t->tracer)) return;
    t->reduction.operands = (cd_tracer_operands){t, travel, reduce};
    t->tracer->operands = &t->reduction.operands;
}

void cd_trainer_watch_buckets(cd_trainer *t)
{
    if (!cd_tracer_wants_digest(t->tracer)) return;
    t->reduction.observer = (cd_bucket_observer){t, leaves, returns};
    cd_ddp_set_observer(t->ddp, &t->reduction.observer);
}
