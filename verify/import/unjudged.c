/* SPDX-License-Identifier: Apache-2.0 */
/* What a recorded program showed, and what nobody judged, in words. See declared.h. */
#include "verify/import/declared.h"

#include "core/base/format.h"
#include "verify/import/declared_rows.h"

#include <inttypes.h>

const char *cd_declared_print_proven(const cd_declared *d, cd_arena *arena)
{
    const cd_means *m = &d->means;
    const bool is_sum = m->sums > 0 || m->has_summing;
    const char *law =
        m->stated == 0
            ? ""
            : cd_arena_printf(arena, "%s of the comm hook %s",
                              m->means + m->casts > 0 ? ", or kept the laws" : "kept the laws",
                              m->hook);
    const char *made = m->means + m->casts + m->sums == 0 ? ""
                       : is_sum                           ? "made the sum of the recorded gradients"
                       : m->casts > 0
                           ? "made the mean of the recorded gradients, as a low precision rounds it"
                           : "made the mean of the recorded gradients";
    const char *rescaled = d->consumed.held > 0
                               ? "optimizers took reduced gradients times the clip and loss scale "
                                 "that were said, "
                               : "";
    if (law == NULL) return NULL;
    return cd_arena_printf(arena, "%s%s%s%s%sequal gradients and parameters on all ranks%s%s",
                           made[0] != '\0' || law[0] != '\0' ? "reductions " : "", made, law,
                           made[0] != '\0' || law[0] != '\0' ? ", " : "", rescaled,
                           d->split < d->rank_count ? " of each group" : "",
                           cd_declared_has_own_means(d) ? "" : ", order, liveness");
}

static bool shows_begins(const cd_declared_rank *rank)
{
    for (size_t i = 0; i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        if (v->is_seen && v->begins < rank->steps) return false;
    }
    return true;
}

/* What all ranks did alike, and what is not known of samples. */
static const char *print_rest(const cd_declared *d, bool has_samples, cd_arena *arena)
{
    const uint64_t changes = cd_feedback_count(&d->feedback);
    const char *again =
        d->again == 0 ? ""
                      : cd_arena_printf(arena,
                                        "; nor why optimizers took %" PRIu64
                                        " reduced gradients more than once, alike on all ranks",
                                        d->again);
    const char *samples = has_samples ? ""
                          : d->samples.has_own_order
                              ? "; samples were not judged: a sampler has its own order of them"
                          : d->is_of_torch
                              ? "; samples were not shown (a DistributedSampler shows them)"
                              : "; samples were not shown (cddp_record_samples)";
    const char *unused =
        d->unused_samples == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why %" PRIu64
                              " sample%s that a loader gave reached no forward",
                              d->unused_samples, d->unused_samples == 1 ? "" : "s");
    const char *errors =
        changes == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why the error that the comm hook keeps changed %" PRIu64
                              " time%s between its calls, alike on all ranks",
                              changes, changes == 1 ? "" : "s");
    const uint64_t uneven = cd_own_samples_count_uneven(&d->samples);
    const char *means =
        uneven == 0 ? ""
                    : cd_arena_printf(
                          arena,
                          "; nor that ranks used other numbers of samples in %" PRIu64
                          " step%s: the mean of their means is no mean over the samples, unless "
                          "the program weighs them",
                          uneven, uneven == 1 ? "" : "s");
    return again != NULL && unused != NULL && errors != NULL && means != NULL
               ? cd_arena_printf(arena, "%s%s%s%s%s", again, unused, errors, means, samples)
               : NULL;
}

const char *cd_declared_print_unjudged(const cd_declared *d, cd_arena *arena)
{
    const cd_consumed *c = &d->consumed;
    bool has_samples = true, drops = true, begins = true;
    for (uint32_t i = 0; i < d->rank_count; i++) {
        const cd_declared_rank *rank = &d->ranks[i];
        begins &= !d->is_of_torch || shows_begins(rank);
        has_samples &= rank->samples > 0;
        drops &= rank->zero_grads > 0 || rank->steps < 2;
    }
    const char *order = cd_declared_has_own_means(d)
                            ? "; nor the order of collectives, which no group of cddp saw"
                            : "";
    const char *dropping = !drops ? "; no zero_grad was shown, so every step adds to the "
                                    "gradients of the one before"
                                  : "";
    const char *scaled =
        c->scalings == 0
            ? ""
            : cd_arena_printf(
                  arena, "; nor that the program itself scaled all reduced gradients by %s%.4g",
                  c->has_scales ? "several factors, the first " : "", c->scale);
    const char *gone =
        c->dropped == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why %" PRIu64
                              " reduced gradients were gone before a step could take them",
                              c->dropped);
    const char *untaken =
        d->windows.untaken == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why the reduced gradients of %" PRIu64
                              " backward%s were dropped without an optimizer's step",
                              d->windows.untaken, d->windows.untaken == 1 ? "" : "s");
    const char *dropped =
        d->windows.dropped.count == 0 || d->model_count == 1 /* a gap */
            ? ""
            : cd_arena_printf(arena,
                              "; nor why gradients of %" PRIu64
                              " backward%s inside no_sync were dropped before any reduction",
                              d->windows.dropped.count, d->windows.dropped.count == 1 ? "" : "s");
    const char *hooked =
        d->hooked == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor what hooks of tensors made of the gradients of %" PRId64
                              " parameters before their reduction",
                              d->hooked);
    const char *late =
        d->late == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why %" PRIu64
                              " parameters changed after the last step, alike on all ranks",
                              d->late);
    const char *moved =
        d->moved == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why %" PRIu64
                              " parameter%s without gradients changed, alike on all ranks",
                              d->moved, d->moved == 1 ? "" : "s");
    const char *exchanged =
        d->exchanged == 0 ? ""
                          : cd_arena_printf(arena,
                                            "; nor forwards on other parameters than the steps "
                                            "left, %" PRIu64 " in all",
                                            d->exchanged);
    const char *adapted =
        d->forwards.adapted == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor forwards on parameters that each rank has for itself, as the "
                              "program says, %" PRIu64 " in all",
                              d->forwards.adapted);
    const char *buffers =
        d->buffers == 0 || d->has_buffers_shown || d->is_of_torch
            ? ""
            : cd_arena_printf(arena,
                              "; nor the content of %" PRIu64
                              " buffer%s (cddp_record_value at CDDP_MOMENT_FORWARD, behind "
                              "cddp_ddp_forward_begin)",
                              d->buffers, d->buffers == 1 ? "" : "s");
    const char *unmoved =
        d->unmoved.count == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why a step that took a gradient, at a rate that is not 0, "
                              "left a parameter as it was, bit for bit: first parameter %" PRId64
                              " in step %" PRIu32 "; %" PRIu64 " in all",
                              d->unmoved.variable, d->unmoved.step, d->unmoved.count);
    const char *ignored =
        d->ignored == 0 ? ""
                        : cd_arena_printf(arena,
                                          "; nor the %" PRIu64
                                          " parameter%s on the ignore list, where ranks may differ",
                                          d->ignored, d->ignored == 1 ? "" : "s");
    const char *rest = print_rest(d, has_samples, arena);
    if (rest == NULL || scaled == NULL || gone == NULL || hooked == NULL || late == NULL ||
        moved == NULL || exchanged == NULL || adapted == NULL || buffers == NULL ||
        ignored == NULL || untaken == NULL || dropped == NULL || unmoved == NULL)
        return NULL;
    return cd_arena_printf(
        arena,
        "%sthe optimizer's arithmetic was not computed anew%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s",
        d->is_of_torch ? ""
                       : "how gradients came to be before cddp_record_gradient (compare sees it); ",
        begins ? "" : ", nor what happened to parameters outside of its steps", order, exchanged,
        adapted, buffers,
        c->unjudged > 0 ? "; nor what clipping or a loss scale made of gradients" : "", scaled,
        gone, unmoved, untaken, dropped, hooked, late, moved, ignored, dropping,
        d->split < d->rank_count ? "; groups of fewer ranks were judged each by itself" : "", rest);
}
