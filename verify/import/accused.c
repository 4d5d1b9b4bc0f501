/* SPDX-License-Identifier: Apache-2.0 */
/* What the record of a program says against it, where no check found anything. See declared.h. */
#include "verify/import/declared.h"

#include "core/base/format.h"
#include "verify/import/declared_rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void say_cause(const cd_means *m, char *words, size_t bytes)
{
    const cd_means_explanation unknown = {.cause = CD_MEANS_UNEXPLAINED};
    const cd_means_explanation *x = m->explanation_count > 0 ? m->explanations : &unknown;
    const long long number = (long long)x->number, divisor = (long long)m->wrong.divisor;
    switch (x->cause) {
    case CD_MEANS_DIVISOR:
        if (number == 1)
            snprintf(words, bytes, "the sum of what the ranks gave: nobody divides by %lld",
                     divisor);
        else
            snprintf(words, bytes, "the sum of what the ranks gave divided by %lld, not by %lld",
                     number, divisor);
        break;
    case CD_MEANS_MISSING:
        snprintf(words, bytes, "the mean without what rank %lld gave", number);
        break;
    case CD_MEANS_TWICE:
        snprintf(words, bytes, "a sum in which rank %lld is twice", number);
        break;
    case CD_MEANS_NEGATED:
        snprintf(words, bytes, "minus the %s of what the ranks gave",
                 divisor == 1 ? "sum" : "mean");
        break;
    case CD_MEANS_STALE:
        snprintf(words, bytes, "the mean of the backward before");
        break;
    case CD_MEANS_UNEXPLAINED:
    default:
        snprintf(words, bytes, "something else than the %s of what the ranks gave",
                 divisor == 1 ? "sum" : "mean");
    }
}

static void name_parameter(const cd_declared *d, uint32_t number, int64_t variable, cddp_finding *f)
{
    const cd_declared_rank *rank = &d->ranks[number];
    if (variable >= 0 && (size_t)variable < rank->variable_count)
        snprintf(f->parameter, sizeof f->parameter, "%s", rank->variables[variable].words);
}

/* The accusation of a rank, and of a parameter or -1; what it is about follows. */
static cddp_finding accuse_rank(const cd_declared *d, const char *check, uint32_t number,
                                uint32_t step, int64_t variable)
{
    cddp_finding f = {.size = sizeof f,
                      .check = check,
                      .step = step,
                      .rank = (int32_t)number,
                      .peer = -1,
                      .bucket = -1,
                      .param = (int32_t)variable};
    name_parameter(d, number, variable, &f);
    return f;
}

static bool accuse_skipped(const cd_declared *d, cddp_finding *finding)
{
    const cd_declared_place *p = &d->unskipped;
    if (p->count == 0) return false;
    cddp_finding f = accuse_rank(d, "I-STEP", p->rank, p->step, p->variable);
    snprintf(f.title, sizeof f.title, "rank %" PRIu32 " changes %.80s in a step that it skips",
             p->rank, f.parameter[0] != '\0' ? f.parameter : "a parameter");
    snprintf(f.expected, sizeof f.expected, "a skipped step leaves every parameter as it was");
    snprintf(f.actual, sizeof f.actual, "after it the content is another; %" PRIu64 " in all",
             p->count);
    snprintf(f.advice, sizeof f.advice,
             "look whether what skips the step guards the whole update, or say is_skipped = false");
    *finding = f;
    return true;
}

/* A change on all ranks may be meant: weights are clamped, or exchanged. One on some is not. */
static bool accuse_changed(const cd_declared *d, cddp_finding *finding)
{
    const cd_declared_place *p = &d->gaps[CD_DECLARED_CHANGED];
    uint32_t moved = 0, trained = 0;
    for (uint32_t i = 0; i < d->rank_count; i++) {
        moved += d->ranks[i].has_moved;
        trained += d->ranks[i].steps > 0;
    }
    if (p->count == 0 || moved == trained) return false;
    cddp_finding f = accuse_rank(d, "I-CHAIN", p->rank, p->step, p->variable);
    snprintf(f.title, sizeof f.title,
             "rank %" PRIu32 ": parameter %.60s changed outside of the steps", p->rank,
             f.parameter);
    snprintf(f.expected, sizeof f.expected,
             "the content that its last step left, as on ranks that did not change it");
    snprintf(f.actual, sizeof f.actual,
             "another one before the optimizer of step %" PRIu32 "; on %" PRIu32 " of %" PRIu32
             " ranks",
             p->step, moved, trained);
    snprintf(f.advice, sizeof f.advice,
             "look at what this rank writes between its steps; show a change that is meant with "
             "cddp_record_value");
    *finding = f;
    return true;
}

/* Each of them runs on something else than its step left; all but one on the same. */
static bool accuse_forward(const cd_declared *d, cddp_finding *finding)
{
    const cd_forwards_split split = cd_forwards_compare(&d->forwards);
    const cd_forwards_place *p = &split.one;
    if (p->count == 0) return false;
    cddp_finding f = accuse_rank(d, "I-PARAMEQ", p->rank, p->step, p->variable);
    snprintf(f.title, sizeof f.title,
             "rank %" PRIu32 " runs a forward on another %.60s than the other ranks", p->rank,
             f.parameter[0] != '\0' ? f.parameter : "parameter");
    snprintf(f.expected, sizeof f.expected,
             "all ranks exchange the parameters of that forward alike: their gradients are "
             "averaged");
    snprintf(f.actual, sizeof f.actual,
             "the others agree, and this rank differs; %" PRIu64 " forwards in all", p->count);
    snprintf(f.advice, sizeof f.advice,
             "look at what this rank does to its parameters between its step and the forward: its "
             "radius (SAM), its seed, its scale. Where each rank has its own by right, say so with "
             "cddp_record_value at CDDP_MOMENT_ADAPTED");
    *finding = f;
    return true;
}

/* What the program said of a gradient is not what it did. */
static bool accuse_consumed(const cd_declared *d, cddp_finding *finding)
{
    const cd_consumed_place *p = &d->consumed.wrong;
    if (p->count == 0) return false;
    cddp_finding f = accuse_rank(d, "I-CHAIN", p->rank, p->step, p->variable);
    const char *name = f.parameter[0] != '\0' ? f.parameter : "a parameter";
    if (p->clip == 1 && p->loss_scale == 1)
        cd_real_format(f.title, sizeof f.title,
                       "the optimizer takes another gradient of %.60s than was reduced, %.6g times "
                       "as large",
                       name, p->ratio);
    else
        cd_real_format(f.title, sizeof f.title,
                       "the optimizer takes a gradient of %.60s that is not the reduced one times "
                       "%.6g / %.6g",
                       name, p->clip, p->loss_scale);
    cd_real_format(
        f.expected, sizeof f.expected,
        "%.9g, within %.3g: the reduced gradient times fixed weights, times clip / loss scale "
        "as cddp_record_optimizer_step got them",
        p->expected, p->bound);
    cd_real_format(f.actual, sizeof f.actual,
                   "%.9g; the sizes have the ratio %.9g; %" PRIu64 " gradients in all", p->actual,
                   p->ratio, p->count);
    snprintf(f.advice, sizeof f.advice,
             "look at what the program does between the reduction and the step, or say the clip "
             "and the loss scale that it used");
    *finding = f;
    return true;
}

/* The program sums what the wrapper has averaged. */
static bool accuse_twice(const cd_declared *d, cddp_finding *finding)
{
    const cd_consumed_place *p = &d->consumed.twice;
    if (p->count == 0) return false;
    cddp_finding f = accuse_rank(d, "I-ONCE", p->rank, p->step, p->variable);
    f.rank = -1;
    snprintf(f.title, sizeof f.title, "all ranks: the gradient of %.80s is reduced twice",
             f.parameter[0] != '\0' ? f.parameter : "a parameter");
    cd_real_format(f.expected, sizeof f.expected,
                   "%.9g: the gradient that the wrapper's backward left, times fixed weights",
                   p->expected);
    cd_real_format(f.actual, sizeof f.actual,
                   "%.9g: %.4g times as large, after an all-reduce of the program itself; %" PRIu64
                   " gradients in all",
                   p->actual, p->ratio, p->count);
    snprintf(f.advice, sizeof f.advice,
             "leave the all-reduce out: backward has averaged the gradients already. Or run every "
             "backward inside no_sync, and divide by the number of ranks");
    *finding = f;
    return true;
}

/* Without a hook nobody may mean that one rank's gradients are missing, or are there twice. What
** else a reduction of the program makes, it may mean. */
static bool accuse_reduction(const cd_declared *d, cddp_finding *finding)
{
    const cd_means *m = &d->means;
    const cd_means_wrong *w = &m->wrong;
    const cd_means_explanation *x = m->explanations;
    const bool is_clear = fabs(w->expected - w->actual) > 8 * w->bound; /* no rounding */
    const bool is_known = m->others > 0 && m->explanation_count == 1 && !m->is_accumulated;
    if (!is_known || !is_clear || (x->cause != CD_MEANS_MISSING && x->cause != CD_MEANS_TWICE))
        return false;
    cddp_finding f = accuse_rank(d, "I-ONCE", (uint32_t)x->number, w->step, w->variable);
    snprintf(f.title, sizeof f.title,
             "rank %" PRId64 ": its gradient of %.60s is %s what the ranks reduced", x->number,
             f.parameter[0] != '\0' ? f.parameter : "a parameter",
             x->cause == CD_MEANS_MISSING ? "missing in" : "twice in");
    cd_real_format(f.expected, sizeof f.expected,
                   "%.9g, within %.3g: the mean of what all ranks recorded, times fixed weights",
                   w->expected, w->bound);
    cd_real_format(f.actual, sizeof f.actual, "%.9g: that mean %s; %" PRIu64 " reductions in all",
                   w->actual,
                   x->cause == CD_MEANS_MISSING ? "without it" : "with twice as much of it",
                   m->others);
    snprintf(f.advice, sizeof f.advice,
             "look at what this rank does with its gradient between cddp_record_gradient and the "
             "reduction, and whether it takes part with the right buffer");
    *finding = f;
    return true;
}

static bool accuse_twins(const cd_declared *d, cddp_finding *finding)
{
    cd_own_samples_twins twins;
    char who[64] = "all ranks";
    if (!cd_own_samples_find_twins(&d->samples, &twins)) return false;
    if (!twins.are_all)
        snprintf(who, sizeof who, "ranks %" PRIu32 " and %" PRIu32, twins.first, twins.second);
    cddp_finding f = {.size = sizeof f,
                      .check = "I-DATA",
                      .rank = twins.are_all ? -1 : (int32_t)twins.second,
                      .peer = twins.are_all ? -1 : (int32_t)twins.first,
                      .bucket = -1,
                      .param = -1};
    snprintf(f.title, sizeof f.title, "%s train on the same samples, in the same order", who);
    snprintf(f.expected, sizeof f.expected, "other samples on each rank");
    snprintf(f.actual, sizeof f.actual,
             "the first %zu samples, of at least %" PRIu64 " batches, are the same", twins.count,
             twins.batches);
    snprintf(f.advice, sizeof f.advice,
             "the DataLoader has no DistributedSampler, and its order comes from the same seed: "
             "DataLoader(data, sampler=DistributedSampler(data)), and set_epoch before each epoch");
    if (twins.are_batches) {
        snprintf(f.actual, sizeof f.actual, "what the first %zu forwards get is the same",
                 twins.count);
        snprintf(f.advice, sizeof f.advice,
                 "no sampler shares the data out among ranks. Use DistributedSampler; let an "
                 "IterableDataset take each world_size-th sample. Or draw from another seed on "
                 "each rank");
    }
    *finding = f;
    return true;
}

/* Of ranks that trained to their end: one that ended early may have been about to take its part. */
static bool accuse_missing(const cd_declared *d, cddp_finding *finding)
{
    cd_own_samples_missing m;
    bool have_ended = true;
    for (uint32_t i = 0; i < d->rank_count; i++) have_ended &= d->ranks[i].has_ended;
    if (!have_ended || !cd_own_samples_find_missing(&d->samples, &m)) return false;
    cddp_finding f = {
        .size = sizeof f, .check = "I-DATA", .rank = -1, .peer = -1, .bucket = -1, .param = -1};
    snprintf(f.title, sizeof f.title,
             "nobody trains on the samples that a DistributedSampler has for rank %" PRId64
             " of %" PRId64,
             m.rank, m.replicas);
    snprintf(f.expected, sizeof f.expected, "each of the %" PRId64 " parts is taken by some rank",
             m.replicas);
    snprintf(f.actual, sizeof f.actual, "%" PRId64 " of them by none of the %" PRIu32 " ranks",
             m.count, d->rank_count);
    snprintf(f.advice, sizeof f.advice,
             "num_replicas is the number of ranks that train: DistributedSampler(data) takes it, "
             "and the rank, from the process group");
    *finding = f;
    return true;
}

static bool accuse_copies(const cd_declared *d, cddp_finding *finding)
{
    uint32_t number;
    if (!cd_own_samples_find_copies(&d->samples, &number)) return false;
    const cd_own_samples_rank *rank = &d->samples.ranks[number];
    cddp_finding f = accuse_rank(d, "I-DATA", number, 0, -1);
    snprintf(f.title, sizeof f.title,
             "rank %" PRIu32 ": each of the %" PRId64 " workers of a DataLoader gives the same "
             "batches",
             number, rank->workers);
    snprintf(f.expected, sizeof f.expected, "workers that share the dataset out among them");
    snprintf(f.actual, sizeof f.actual,
             "all %zu batches come %" PRId64 " times each, one behind the other",
             rank->streamed_count, rank->workers);
    snprintf(f.advice, sizeof f.advice,
             "each worker iterates over the whole IterableDataset: take each num_workers-th sample "
             "there, by torch.utils.data.get_worker_info()");
    *finding = f;
    return true;
}

static bool accuse_feedback(const cd_declared *d, cddp_finding *finding)
{
    uint32_t number;
    if (!cd_feedback_find(&d->feedback, &number)) return false;
    const cd_feedback_rank *rank = &d->feedback.ranks[number];
    cddp_finding f = accuse_rank(d, "I-HOOK", number, rank->step, -1);
    f.bucket = (int32_t)rank->bucket;
    snprintf(f.title, sizeof f.title,
             "rank %" PRIu32 ": the error that the comm hook keeps of bucket %" PRId64
             " changed between two calls",
             number, rank->bucket);
    snprintf(f.expected, sizeof f.expected,
             "each call begins with the error that the one before left, as on ranks that did not "
             "change it");
    snprintf(f.actual, sizeof f.actual, "another one in step %" PRIu32 "; changes in all: %" PRIu64,
             rank->step, rank->count);
    snprintf(f.advice, sizeof f.advice,
             "what a rank alone forgets of its gradients never reaches the others: change or reset "
             "the hook's state on all ranks in the same step, or on none");
    *finding = f;
    return true;
}

/* Where laws and explanations are certain, what is not the mean is a finding. What a program says
** that it gave to an accumulating hook may be said too early. */
static bool is_certain(const cd_means *m)
{
    const bool is_known = m->is_promised || m->explanation_count > 0;
    return m->others > 0 && m->is_hooked && is_known && !m->is_accumulated;
}

bool cd_declared_accuses(const cd_declared *d, cddp_finding *finding)
{
    const cd_means *m = &d->means;
    const cd_means_wrong *w = &m->wrong;
    char cause[120];
    if (!is_certain(m))
        return accuse_twice(d, finding) || accuse_reduction(d, finding) ||
               accuse_consumed(d, finding) || accuse_changed(d, finding) ||
               accuse_forward(d, finding) || accuse_skipped(d, finding) ||
               accuse_feedback(d, finding) || accuse_twins(d, finding) ||
               accuse_missing(d, finding) || accuse_copies(d, finding);
    cddp_finding f = {.size = sizeof f,
                      .check = "I-HOOK",
                      .step = w->step,
                      .rank = -1,
                      .peer = -1,
                      .bucket = -1,
                      .param = (int32_t)w->variable};
    name_parameter(d, 0, w->variable, &f);
    say_cause(m, cause, sizeof cause);
    snprintf(f.title, sizeof f.title, "the comm hook %.40s delivers %.95s", m->hook, cause);
    cd_real_format(f.expected, sizeof f.expected, "%.9g, within %.3g: the %s, times fixed weights",
                   w->expected, w->bound, w->divisor == 1 ? "sum" : "mean");
    cd_real_format(f.actual, sizeof f.actual, "%.9g; %" PRIu64 " reductions in all", w->actual,
                   m->others);
    snprintf(f.advice, sizeof f.advice,
             "a hook has to return the mean over all ranks (HOOK-08); one that sums on purpose, or "
             "compresses, has to declare it%s",
             m->has_views ? ". Gradients are views of their buckets: a write to one while the hook "
                            "is at work gives the same picture"
                          : "");
    *finding = f;
    return true;
}
