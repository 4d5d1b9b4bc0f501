/* SPDX-License-Identifier: Apache-2.0 */
/* How many laws the plan's hook itself states of a bucket, as hook_law events.
**
** A hook that states nothing breaks nothing. So a run owes as many statements as its plan's hooks
** make, and one that comes short is not verified. Hooks state laws where the host can look at their
** numbers without waiting. Where a number is not finite some are left out, and nothing is owed. A
** statement whose allowed distance is infinite is none.
**
**   powersgd     error feedback; what is uncompressed; the projection; full rank; what was drawn;
**                what a warm start began with
**   topk         error feedback; the choice; the mean
**   quantize_…   the codes; the mean
**   …_wrapper    its cast, and what the hook inside states
*/
#include "core/oracle/hook_law/state.h"

#include "cddp/device.h"
#include "core/trace/tracer.h"

#include <math.h>

static bool can_look(const cddp_device *device)
{
    const uint32_t needed = CDDP_DEVICE_VALUES | CDDP_DEVICE_HOST;
    return (device->flags & (needed | CDDP_DEVICE_ASYNC)) == needed;
}

static bool is_finite(const double *numbers, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(numbers[i])) return false;
    return true;
}

static uint64_t count_low_rank(const cd_hook_law *law, const cd_law_flight *f)
{
    bool is_drawn = false, is_continued = false, is_whole = false;
    if (!f->is_compressed) return 0; /* the plain mean, before the start */
    for (uint32_t i = 0; i < f->matrix_count; i++) {
        const cd_law_matrix *m = &f->matrices[i];
        const int64_t side = m->rows < m->columns ? m->rows : m->columns;
        is_drawn = is_drawn || !m->is_continued;
        is_continued = is_continued || m->is_continued;
        is_whole = is_whole || cd_planned_rank(&law->hook, f->iteration) >= (uint64_t)side;
    }
    const bool is_projected = f->matrix_count > 0 && !(law->hook.epsilon > 0);
    return (uint64_t)law->hook.has_feedback + (!law->hook.is_batched && f->rest_numel > 0) +
           is_projected + (is_projected && is_whole) + is_drawn + is_continued;
}

static uint64_t count_stated(const cd_hook_law *law, const cd_law_flight *f)
{
    switch (law->hook.kind) {
    case CD_PLANNED_LOW_RANK:
        return count_low_rank(law, f);
    case CD_PLANNED_TOPK:
        return (uint64_t)law->hook.has_feedback + 2;
    case CD_PLANNED_CODES:
        return 2;
    case CD_PLANNED_MEAN:
    case CD_PLANNED_NOTHING:
    case CD_PLANNED_LOCAL:
    case CD_PLANNED_UNKNOWN:
        break;
    }
    return 0;
}

void cd_law_owe_stated(const cd_hook_law *law, const cd_law_bucket *b, const cd_law_flight *f,
                       const double *result)
{
    const uint64_t count = count_stated(law, f) + law->hook.is_wrapped;
    /* what a plugin's hook states is its own */
    if (count == 0 || law->hook.is_followed || !can_look(b->flat->device) ||
        law->options.on_streams)
        return;
    /* so many roundings that some bound is no number */
    if (law->options.world_size * cd_dtype_roundoff(f->dtype) > 0.25) return;
    if (!is_finite(f->share, f->numel) || !is_finite(result, f->numel)) return;
    CD_EMIT(law->options.tracer, owed, CD_STATED_LAWS, .link = CDDP_LINK_NONE,
            .count = (int64_t)count);
}
