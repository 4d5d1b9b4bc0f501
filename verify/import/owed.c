/* SPDX-License-Identifier: Apache-2.0 */
/* What a recorded program did not show, in words. See declared.h. */
#include "verify/import/declared.h"

#include "core/base/format.h"
#include "verify/import/declared_rows.h"

#include <inttypes.h>
#include <string.h>

/* Others train in a group that it is no member of. */
static bool is_outsider(const cd_declared *d, const cd_declared_rank *rank)
{
    return d->split < d->rank_count && !rank->has_wrapper && rank->variable_count == 0 &&
           rank->steps == 0;
}

/* Ranks whose parameter was the same after the last step must leave with the same. What all of
** them did alike afterwards is their affair: loading the best weights, an average. */
static void note_exits(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    const cddp_event at = {.rank = number, .step = rank->step};
    for (size_t i = 0; i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        bool is_alone = false;
        if (v->exit == 0 || v->last == 0 || v->exit == v->last) continue;
        for (uint32_t r = 0; !is_alone && r < d->rank_count; r++) {
            const cd_declared_rank *other = &d->ranks[r];
            const cd_declared_variable *w = i < other->variable_count ? &other->variables[i] : NULL;
            is_alone = w != NULL && w->name == v->name && w->last == v->last && w->exit != 0 &&
                       w->exit != v->exit;
        }
        if (is_alone)
            cd_declared_note(d, CD_DECLARED_EXIT, &at, (int64_t)i);
        else
            d->late++;
    }
}

static void note_stills(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    const cddp_event at = {.rank = number, .step = rank->step};
    uint64_t moved = 0;
    for (size_t i = 0; i < rank->still_count; i++) {
        const cd_declared_still *x = &rank->stills[i];
        const bool is_late = x->exit != 0 && x->last != 0 && x->exit != x->last;
        bool is_alone = false;
        for (uint32_t r = 0; is_late && !is_alone && r < d->rank_count; r++) {
            const cd_declared_rank *other = &d->ranks[r];
            const cd_declared_still *y = i < other->still_count ? &other->stills[i] : NULL;
            is_alone = y != NULL && other->group == rank->group && y->last == x->last &&
                       y->exit != 0 && y->exit != x->exit;
        }
        if (is_alone) cd_declared_note(d, CD_DECLARED_EXIT, &at, -1);
        moved += !x->is_ignored && (x->has_moved || (is_late && !is_alone));
    }
    if (moved > d->moved) d->moved = moved;
}

/* Where ranks join, those that are done early evaluate less often. */
static void note_buffers(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    bool is_alone = false;
    if (rank->evaluations == 0) return;
    for (uint32_t r = 0; r < d->rank_count; r++) {
        const cd_declared_rank *other = &d->ranks[r];
        const int64_t wanted = rank->has_join || other->has_join ? 1 : rank->evaluations;
        is_alone |=
            other->has_wrapper && other->group == rank->group && other->evaluations < wanted;
    }
    if (is_alone)
        cd_declared_note(d, CD_DECLARED_BUFFERS, &(cddp_event){.rank = number, .step = rank->step},
                         -1);
}

static void note_frozen(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    for (uint32_t r = 0; rank->frozen != 0 && !rank->has_join && r < d->rank_count; r++) {
        const cd_declared_rank *other = &d->ranks[r];
        if (!other->has_wrapper || other->group != rank->group || other->frozen == rank->frozen)
            continue;
        cd_declared_note(d, CD_DECLARED_FROZEN, &(cddp_event){.rank = number, .step = rank->step},
                         -1);
        return;
    }
}

/* No check found anything, so it has what ranks have that stepped (core/check/own_average.h). */
static void note_served(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    bool differs = false;
    for (uint32_t r = 0; r < d->rank_count; r++)
        differs |= d->ranks[r].has_wrapper && d->ranks[r].group == rank->group &&
                   d->ranks[r].taken != rank->taken;
    if (differs && rank->is_served && !rank->has_join)
        cd_declared_note(d, CD_DECLARED_SERVED, &(cddp_event){.rank = number, .step = rank->step},
                         -1);
}

/* All ranks came to their end, and so often they waited in groups of ours on the way. */
bool cd_declared_have_ended(const cd_declared *d, uint64_t *waits)
{
    bool have = true;
    *waits = 0;
    for (uint32_t i = 0; i < d->rank_count; i++) {
        have &= d->ranks[i].has_ended;
        *waits += d->ranks[i].waits;
    }
    return have;
}

/* A program of cddp/record.h that communicates by itself: its collectives are not seen. */
bool cd_declared_has_own_means(const cd_declared *d)
{
    uint64_t waits;
    return d->rank_count > 1 && cd_declared_have_ended(d, &waits) && waits == 0 && !d->is_of_torch;
}

/* Nothing was found, and no rank showed a reduction: steps on gradients that nobody reduced were
** those of local SGD (core/check/own_average.h). */
static void note_apart(cd_declared *d)
{
    cd_declared_place *reduced = &d->gaps[CD_DECLARED_REDUCED];
    if (reduced->count == 0 || d->reduced > 0 || !cd_declared_has_own_means(d)) return;
    d->gaps[CD_DECLARED_APART] = *reduced;
    reduced->count = 0;
}

static void end_rank(cd_declared *d, uint32_t number)
{
    cd_declared_rank *rank = &d->ranks[number];
    const cddp_event at = {.rank = number};
    cd_declared_end_step(d, rank, number);
    if (rank->events == 0) {
        cd_declared_note(d, CD_DECLARED_BEGIN, &at, -1);
        return;
    }
    if (!rank->has_ended || rank->has_exited) cd_declared_note(d, CD_DECLARED_END, &at, -1);
    bool has_parameters = false;
    if (is_outsider(d, rank)) return;
    note_exits(d, number);
    note_stills(d, number);
    note_buffers(d, number);
    note_frozen(d, number);
    note_served(d, number);
    for (size_t i = 0; i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        has_parameters |= v->is_declared;
        if (v->touches > 0 && !v->has_value)
            cd_declared_note(d, CD_DECLARED_VALUE, &at, (int64_t)i);
        if (v->touches > 0 && v->has_value && !v->is_held && !v->is_empty)
            cd_declared_note(d, CD_DECLARED_HELD, &(cddp_event){.rank = number, .step = rank->step},
                             (int64_t)i);
        if (v->is_declared && !v->is_seen && rank->steps > 0)
            cd_declared_note(d, CD_DECLARED_TOUCH, &at, (int64_t)i);
    }
    if (!rank->has_wrapper || !has_parameters) cd_declared_note(d, CD_DECLARED_PARAMETERS, &at, -1);
    if (rank->steps == 0) cd_declared_note(d, CD_DECLARED_STEP, &at, -1);
}

/* What is missing, and what shows it: in a program of cddp/record.h, and in one of PyTorch where
** that is something else. */
static const struct {
    const char *what, *how, *python;
} gap_words[CD_DECLARED_COUNT] = {
    [CD_DECLARED_BEGIN] = {"the recording of a rank", "check run.db.* with the shards of all ranks",
                           "record every rank into the same folder"},
    [CD_DECLARED_END] = {"the end of the program", "cddp_record_close",
                         "start it by `python -m cddp_torch run`, which sees how each rank ends"},
    [CD_DECLARED_PARAMETERS] = {"the parameters", "cddp_ddp_create, or cddp_record_parameter",
                                "wrap the model in DistributedDataParallel once the recording has "
                                "begun, or cddp_torch.attach"},
    [CD_DECLARED_MODELS] = {"which of several wrappers a call is about",
                            "cddp_record_wrapper, before the calls about each of them",
                            "wrap each module once the recording has begun"},
    [CD_DECLARED_STEP] = {"an optimizer's step", "cddp_record_optimizer_step",
                          "an optimizer of torch.optim, made of the wrapped parameters"},
    [CD_DECLARED_TOUCH] = {"what a step did to a parameter", "cddp_record_optimizer_touch",
                           "an optimizer of torch.optim that has every trained parameter"},
    [CD_DECLARED_LOCAL] = {"a gradient before its reduction", "cddp_record_gradient",
                           "wrap the module once the recording has begun, and run backward on "
                           "what it returns"},
    [CD_DECLARED_REDUCED] = {"a gradient after its reduction", "cddp_ddp, or cddp_record_reduced",
                             "let DistributedDataParallel reduce it: what a program all-reduces "
                             "itself is not judged"},
    [CD_DECLARED_MEAN] = {"that a reduction made the mean of what the ranks recorded",
                          "cddp_record_gradient after the last change before the reduction, and "
                          "cddp_record_reduced before any after it",
                          "change no gradient between its backward and its reduction"},
    [CD_DECLARED_HOOK] = {"that the comm hook makes the mean, or which law it keeps",
                          "declare what it promises: CDDP_HOOK_EXACT or CDDP_HOOK_CASTS_FIRST in "
                          "its table; or state a law for every bucket with cddp_tracer_law",
                          "say what it promises, by cddp_law of a Python function: \"mean\", "
                          "\"sum\", \"fp16\", \"bf16\" or \"lossy\""},
    [CD_DECLARED_APART] = {"what ranks get that reduce in blocks and go on by themselves",
                           "local SGD is not judged", NULL},
    [CD_DECLARED_SIDES] = {"both sides of a reduction",
                           "gradients in f32, f64, f16 or bf16, dense and in the memory of the "
                           "host; cddp_record_gradient, cddp_record_reduced",
                           "level digests, and gradients in f32, f64, f16 or bf16, dense and on "
                           "the CPU"},
    [CD_DECLARED_DIVISOR] = {"by what a reduction in low precision divides: its rounding hides it",
                             "record without gradient_as_bucket_view", NULL},
    [CD_DECLARED_VALUE] = {"a parameter after its last update", "cddp_record_value",
                           "level digests, and parameters on the CPU"},
    [CD_DECLARED_HELD] = {"that a parameter stays as a step left it, to the next step or the end",
                          "cddp_record_value at CDDP_MOMENT_AFTER_STEP behind each step; "
                          "destroy the wrapper before cddp_record_close. Without cddp_ddp: "
                          "cddp_record_storage, cddp_record_storage_end",
                          NULL},
    [CD_DECLARED_CHANGED] = {"what changed a parameter outside of the steps",
                             "cddp_record_optimizer_step before the update, cddp_record_value at "
                             "CDDP_MOMENT_AFTER_STEP behind it and behind any other change",
                             NULL},
    [CD_DECLARED_LATE] = {"what changed a parameter behind the last step",
                          "cddp_record_value at CDDP_MOMENT_AFTER_STEP behind that change", NULL},
    [CD_DECLARED_CLEARED] = {"that zero_grad did what was said of it",
                             "cddp_record_zero_grad behind the clearing, before the backward. "
                             "Without cddp_ddp: cddp_record_storage. A backward that "
                             "overwrites gradients has no zero_grad to say",
                             NULL},
    [CD_DECLARED_CONTENT] = {"the content of tensors", "level digest",
                             "level digests, which needs libcddp_trace.so, and tensors on the CPU"},
    [CD_DECLARED_SHARDED] = {"what the units of a sharded model must be",
                             "cddp_fsdp is not judged yet, docs/fsdp.md", NULL},
    [CD_DECLARED_REWRITE] = {"what the program itself made of gradients between their reduction "
                             "and the optimizer",
                             "a clip and a loss scale: cddp_record_optimizer_step. What the "
                             "optimizer adds, as weight decay: behind cddp_record_optimizer_touch",
                             "clip with clip_grad_norm_ or clip_grad_value_; change anything else "
                             "before the backward ends"},
    [CD_DECLARED_OUTSIDE] = {"how the ranks keep parameters equal that an optimizer has and no "
                             "wrapper reduces",
                             "take them off the ignore list, or wrap them in another cddp_ddp",
                             "wrap their module in DistributedDataParallel as well"},
    [CD_DECLARED_EXIT] = {"why parameters changed after the last step, and not alike on all ranks",
                          "destroy_process_group before one rank alone loads or changes weights",
                          NULL},
    [CD_DECLARED_BUFFERS] = {"why buffers changed outside of training steps, on some ranks alone",
                             "evaluate in eval(), or on all ranks", NULL},
    [CD_DECLARED_ACCUMULATED] = {"what changed a gradient between two backwards that add up",
                                 "change it after the last of them, behind the reduction, and say "
                                 "by what in cddp_record_optimizer_step",
                                 NULL},
    [CD_DECLARED_GIVEN] = {"what changed a gradient between cddp_record_gradient and the comm hook",
                           "show it as it is marked ready, and leave it alone from there on", NULL},
    [CD_DECLARED_TAKEN] = {"which gradient a step took: what the program showed is not what lies "
                           "in the gradient's place",
                           "cddp_record_optimizer_touch with the tensor that the optimizer reads",
                           NULL},
    [CD_DECLARED_UNEVEN] = {"why ranks add up other numbers of backwards before one reduction: a "
                            "mean of such sums is no mean over the samples",
                            "equally many backwards on each rank, or join for uneven inputs", NULL},
    [CD_DECLARED_UNANNOUNCED] = {"what became of gradients between two backwards that add up: "
                                 "nothing says where the second one begins",
                                 "cddp_record_micro_step with its number, or cddp_record_samples, "
                                 "in front of each forward",
                                 NULL},
    [CD_DECLARED_DROPPED] = {"why gradients that a backward inside no_sync had left were dropped "
                             "before any reduction",
                             "zero_grad behind the optimizer's step, and the last backward of each "
                             "window outside of no_sync",
                             NULL},
    [CD_DECLARED_FORWARD] = {"why ranks run a forward on parameters that differ",
                             "exchange them alike on all ranks: of SAM the radius, and the norm. "
                             "Where each rank has its own by right, as in MAML: cddp_record_value "
                             "at CDDP_MOMENT_ADAPTED, in front of the forward",
                             NULL},
    [CD_DECLARED_SERVED] = {"how a rank gets a parameter that the optimizer of another rank steps",
                            "on every rank cddp_record_reduced with the mean of the ranks, and "
                            "cddp_record_optimizer_touch with what the step took: it does not "
                            "matter which rank computes it",
                            "let the optimizer of every rank step every parameter"},
    [CD_DECLARED_SECOND] = {"on which parameters a further backward of a step ran, whose first "
                            "gradients were dropped",
                            "cddp_record_value at CDDP_MOMENT_FORWARD in front of it, or at "
                            "CDDP_MOMENT_ADAPTED",
                            NULL},
    [CD_DECLARED_NUMBER] = {"where a step begins: an optimizer steps on another reduction under "
                            "the number of the step before",
                            "cddp_record_step_begin, with a new number for each step", NULL},
    [CD_DECLARED_FROZEN] = {"why parameters are frozen on some ranks alone, or in other steps",
                            "set requires_grad on all ranks alike", NULL},
    [CD_DECLARED_SAMPLES] = {"which samples are whose: a DataLoader without a DistributedSampler "
                             "gives several ranks the same ones",
                             "DataLoader(data, sampler=DistributedSampler(data))", NULL},
};

static bool was_exercised(const cddp_verdict *verdict, const char *check)
{
    bool was = false;
    for (size_t i = 0; i < verdict->exercise_count; i++)
        was |= strcmp(verdict->exercises[i].check, check) == 0;
    return was;
}

/* What several ranks must have put to the test before their training is called verified. */
static const char *const needed[] = {"I-ORDER", "I-LIVE", "I-ONCE", "I-GRADEQ", "I-PARAMEQ"};

/* Of ranks that all ended, and found nothing to wait for but once, nothing more is to be known. */
static bool is_known_anyway(const cd_declared *d, const char *check)
{
    uint64_t waits;
    if (strcmp(check, "I-ORDER") == 0) return cd_declared_has_own_means(d);
    return strcmp(check, "I-LIVE") == 0 && cd_declared_have_ended(d, &waits) &&
           waits < 2; /* I-LIVE judges from two on */
}

static const char *add_place(const cd_declared *d, const char *words, cd_declared_gap gap,
                             cd_arena *arena)
{
    const cd_declared_place *p = &d->gaps[gap];
    const bool has_python = d->is_of_torch && gap_words[gap].python != NULL;
    const char *how = has_python ? gap_words[gap].python : gap_words[gap].how;
    const char *variable =
        p->variable >= 0 ? cd_arena_printf(arena, ", parameter %" PRId64, p->variable) : "";
    if (words == NULL || variable == NULL) return NULL;
    return cd_arena_printf(arena,
                           "%snot shown: %s (%s), first on rank %" PRIu32 ", step %" PRIu32
                           "%s; %" PRIu64 " in all\n",
                           words, gap_words[gap].what, how, p->rank, p->step, variable, p->count);
}

static bool lacks_rank(const cd_declared *d)
{
    bool lacks = false;
    for (uint32_t i = 0; i < d->rank_count; i++) lacks |= d->ranks[i].events == 0;
    return lacks;
}

static void note_means(cd_declared *d)
{
    cd_means *m = &d->means;
    const cddp_event at = {.rank = 0, .step = m->wrong.step}, nowhere = {.rank = 0};
    const cd_declared_gap other = m->is_hooked ? CD_DECLARED_HOOK : CD_DECLARED_MEAN;
    cd_means_end(m);
    d->is_out_of_memory |= m->is_out_of_memory;
    if (m->others > 0) {
        cd_declared_note(d, other, &at, m->wrong.variable);
        d->gaps[other].count = m->others;
    } else if (m->sums > 0 && m->means > 0) {
        cd_declared_note(d, CD_DECLARED_MEAN, &at, -1);
    }
    if (m->apart > 0) {
        cd_declared_note(d, CD_DECLARED_APART, &nowhere, -1);
        d->gaps[CD_DECLARED_APART].count = m->apart;
    }
    /* of a rank that recorded nothing no reduction is shown: that is no news */
    if (m->unshown > 0 && !lacks_rank(d)) {
        cd_declared_note(d, CD_DECLARED_SIDES, &nowhere, -1);
        d->gaps[CD_DECLARED_SIDES].count = m->unshown;
    }
    if (m->blind > 0) {
        cd_declared_note(d, CD_DECLARED_DIVISOR, &nowhere, -1);
        d->gaps[CD_DECLARED_DIVISOR].count = m->blind;
    }
}

/* A change that nobody explains may be anything. */
static void note_consumed(cd_declared *d)
{
    const cd_consumed_place *p = &d->consumed.unexplained;
    cd_consumed_end(&d->consumed);
    d->is_out_of_memory |= d->consumed.is_out_of_memory;
    if (p->count == 0) return;
    cd_declared_note(d, CD_DECLARED_REWRITE, &(cddp_event){.rank = p->rank, .step = p->step},
                     p->variable);
    d->gaps[CD_DECLARED_REWRITE].count = p->count;
}

static void note_samples(cd_declared *d)
{
    const uint64_t shared = cd_own_samples_count_shared(&d->samples);
    d->is_out_of_memory |= d->samples.is_out_of_memory;
    if (shared == 0) return;
    cd_declared_note(d, CD_DECLARED_SAMPLES, &(cddp_event){.rank = 0}, -1);
    d->gaps[CD_DECLARED_SAMPLES].count = shared;
}

/* A generator's backward leaves gradients in a discriminator, which drops them. */
static void note_windows(cd_declared *d)
{
    const cd_windows_place *uneven = &d->windows.uneven, *dropped = &d->windows.dropped,
                           *unannounced = &d->windows.unannounced;
    cd_windows_end(&d->windows);
    d->is_out_of_memory |= d->windows.is_out_of_memory;
    if (uneven->count > 0) {
        cd_declared_note(d, CD_DECLARED_UNEVEN,
                         &(cddp_event){.rank = uneven->rank, .step = uneven->step}, -1);
        d->gaps[CD_DECLARED_UNEVEN].count = uneven->count;
    }
    if (unannounced->count > 0) {
        cd_declared_note(d, CD_DECLARED_UNANNOUNCED,
                         &(cddp_event){.rank = unannounced->rank, .step = unannounced->step}, -1);
        d->gaps[CD_DECLARED_UNANNOUNCED].count = unannounced->count;
    }
    if (d->windows.unnumbered.count > 0 && !d->is_of_torch) {
        const cd_windows_place *p = &d->windows.unnumbered;
        cd_declared_note(d, CD_DECLARED_NUMBER, &(cddp_event){.rank = p->rank, .step = p->step},
                         -1);
        d->gaps[CD_DECLARED_NUMBER].count = p->count;
    }
    if (dropped->count > 0 && d->model_count == 1) {
        cd_declared_note(d, CD_DECLARED_DROPPED,
                         &(cddp_event){.rank = dropped->rank, .step = dropped->step}, -1);
        d->gaps[CD_DECLARED_DROPPED].count = dropped->count;
    }
}

static void note_forwards(cd_declared *d)
{
    const cd_forwards_split split = cd_forwards_compare(&d->forwards);
    const cd_forwards_place *places[] = {&split.any, &d->forwards.unshown};
    const cd_declared_gap gaps[] = {CD_DECLARED_FORWARD, CD_DECLARED_SECOND};
    d->is_out_of_memory |= d->forwards.is_out_of_memory || split.is_out_of_memory;
    for (size_t i = 0; i < 2; i++) {
        const cd_forwards_place *p = places[i];
        if (p->count == 0 || d->is_of_torch) continue;
        cd_declared_note(d, gaps[i], &(cddp_event){.rank = p->rank, .step = p->step}, p->variable);
        d->gaps[gaps[i]].count = p->count;
    }
}

const char *cd_declared_print_gaps(cd_declared *d, const cddp_verdict *verdict, cd_arena *arena)
{
    const char *words = "";
    note_means(d);
    note_consumed(d);
    note_samples(d);
    note_windows(d);
    note_forwards(d);
    for (uint32_t i = 0; i < d->rank_count; i++) end_rank(d, i);
    note_apart(d);
    /* its recorder looks at neither */
    for (int gap = CD_DECLARED_HELD; gap <= CD_DECLARED_CLEARED && d->is_of_torch; gap++)
        d->gaps[gap].count = 0;
    for (int gap = 0; gap < CD_DECLARED_COUNT; gap++)
        if (d->gaps[gap].count > 0) words = add_place(d, words, (cd_declared_gap)gap, arena);
    for (size_t i = 0; d->rank_count > 1 && words != NULL && i < sizeof needed / sizeof *needed;
         i++)
        if (!was_exercised(verdict, needed[i]) && !is_known_anyway(d, needed[i]))
            words = cd_arena_printf(arena, "%s%s had nothing to judge\n", words, needed[i]);
    return d->is_out_of_memory ? NULL : words;
}
