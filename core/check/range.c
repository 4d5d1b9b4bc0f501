/* SPDX-License-Identifier: Apache-2.0 */
/* I-RANGE: a reduction makes no overflow and no NaN out of finite gradients, and none that came in
** goes unnoticed.
**
** Judged from   grad_local and grad_final (nonfinite), optimizer_step and optimizer_touch, and
**               compare events whose shape is "not finite".
**     R1  a final gradient is not finite although every local one was, and an optimizer stepped on
**         it: the reduction overflowed and nobody noticed (a loss scaler that skips the step has
**         noticed)
**     R2  a local gradient was not finite, and an optimizer stepped on it all the same: the rank
**         that brought it is named
**               The step counts whose optimizer touched the parameter: with several optimizers
**               each skips by its own gradients. A clip coefficient that is not finite carries the
**               NaN into every gradient, so each step with one counts.
** Exercised     something was not finite, or a reduction on a 16-bit wire, gathered and added up by
**               a hook or not, kept everything finite.
** Blame         R1: the ranks that packed or launched something else than their gradient, where the
**               stages show that; else the bucket, no rank. R2: the first rank, in order of
**               micro-step and rank, with such a gradient.
** Limits        a gradient that was kept from an earlier step counts as local only in the step that
**               made it. An optimizer without one touch in the trace may own any parameter: its
**               step counts unless another optimizer skipped that step. A norm of infinity makes
**               the clip coefficient 0, and other optimizers step on zeros, which are finite.
*/
#include "core/check/tally.h"
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "core/base/hash.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

typedef struct tensor_facts {
    int64_t bucket;
    uint64_t local_sequence, final_sequence;
    uint32_t local_rank, local_micro, final_rank, final_micro;
    int64_t final_digest;
    bool local_bad, final_bad;
    bool is_lost;                    /* the rank that brought it got an average without it */
    char name[CD_WRITER_NAME_BYTES]; /* of a tensor that has no index */
} tensor_facts;

/* The least rank with such an event. */
typedef struct witness {
    uint64_t sequence;
    int64_t optimizer;
    uint32_t rank;
    bool is_known;
} witness;

typedef struct step_facts {
    witness spoiled;             /* a step whose clip coefficient is not finite */
    witness unowned;             /* a step that may have been on any parameter; known at the end */
    int64_t skipper;             /* the first optimizer that skipped */
    bool has_skipped, have_many; /* have_many: and another one did */
    bool has_bad;                /* some tensor was not finite */
} step_facts;

typedef struct state {
    cd_writer writer;
    /* (step, param, a tensor without an index) → tensor_facts, where something was not finite */
    cd_table tensors;
    cd_table steps;   /* step → step_facts */
    cd_table stepped; /* (step, optimizer) → witness of a step that was taken */
    cd_table touched; /* (step, param) → witness of a touch */
    cd_table owners;  /* optimizers with a touch */
    uint64_t half_reductions, nonfinite;
    bool reported_overflow, reported_step;
    bool divides_first; /* the reducer itself, and no hook in its place */
    bool is_recorded;   /* what a program does with cddp/record.h */
} state;

/* A step with a NaN or an infinity is judged at the end. */
static bool keeps_step(void *self, const cd_key *key, const void *value)
{
    const state *s = self;
    const step_facts *t = cd_table_find(&s->steps, CD_KEY(key->part[0]));
    (void)value;
    return t != NULL && t->has_bad;
}

/* name: of a tensor that is no parameter, hashed; else 0 */
static tensor_facts *add_tensor(state *s, uint32_t step, int64_t param, uint64_t name)
{
    step_facts *t = cd_table_add(&s->steps, CD_KEY(step));
    if (t != NULL) t->has_bad = true;
    return cd_table_add(&s->tensors, CD_KEY(step, param, (int64_t)name));
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-RANGE", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->tensors, context->allocator, sizeof(tensor_facts));
    cd_table_init(&s->steps, context->allocator, sizeof(step_facts));
    cd_table_init(&s->stepped, context->allocator, sizeof(witness));
    cd_table_init(&s->touched, context->allocator, sizeof(witness));
    cd_table_init(&s->owners, context->allocator, sizeof(int64_t));
    cd_writer_set_window(&s->writer, &s->steps, keeps_step);
    cd_writer_set_window(&s->writer, &s->stepped, keeps_step);
    cd_writer_set_window(&s->writer, &s->touched, keeps_step);
    return CDDP_OK;
}

static void take_local(state *s, const cddp_event *e)
{
    if (!e->as.grad_local.nonfinite) return;
    s->nonfinite++;
    tensor_facts *t = add_tensor(s, e->step, e->as.grad_local.param, 0);
    if (t == NULL) return;
    bool earlier = !t->local_bad || e->micro_step < t->local_micro ||
                   (e->micro_step == t->local_micro && e->rank < t->local_rank);
    t->local_bad = true;
    if (!earlier) return;
    t->is_lost = false;
    t->local_rank = e->rank;
    t->local_micro = e->micro_step;
    t->local_sequence = e->sequence;
}

static void take_lost(state *s, const cddp_event *e)
{
    tensor_facts *t = cd_table_find(&s->tensors, CD_KEY(e->step, e->as.grad_final.param, 0));
    if (t != NULL && t->local_bad && t->local_rank == e->rank) t->is_lost = true;
}

static void take_final(state *s, const cddp_event *e)
{
    if (e->as.grad_final.globally_unused) return;
    if (!e->as.grad_final.nonfinite) {
        take_lost(s, e);
        return;
    }
    s->nonfinite++;
    tensor_facts *t = add_tensor(s, e->step, e->as.grad_final.param, 0);
    if (t == NULL || (t->final_bad && t->bucket >= 0 && t->final_rank < e->rank)) return;
    t->final_bad = true;
    t->final_rank = e->rank;
    t->final_micro = e->micro_step;
    t->final_sequence = e->sequence;
    t->final_digest = e->as.grad_final.digest;
    t->bucket = e->as.grad_final.bucket;
}

static void take_witness(witness *w, const witness *other)
{
    if (w != NULL && (!w->is_known || other->rank < w->rank)) *w = *other;
}

static void take_step(state *s, const cddp_event *e)
{
    const cddp_event_optimizer_step *o = &e->as.optimizer_step;
    const witness here = {e->sequence, o->optimizer, e->rank, true};
    step_facts *t = cd_table_add(&s->steps, CD_KEY(e->step));
    if (t == NULL) return;
    if (o->skipped) {
        t->have_many |= t->has_skipped && t->skipper != o->optimizer;
        if (!t->has_skipped) t->skipper = o->optimizer;
        t->has_skipped = true;
        return;
    }
    if (!isfinite(cd_f64_of(o->clip))) take_witness(&t->spoiled, &here);
    take_witness(cd_table_add(&s->stepped, CD_KEY(e->step, o->optimizer)), &here);
}

/* A recorded program may have made something finite of what was reduced. Whether it may, and what
** it made, is verify/import's business. */
static bool was_rewritten(const state *s, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    const tensor_facts *f =
        s->is_recorded ? cd_table_find(&s->tensors, CD_KEY(e->step, t->param, 0)) : NULL;
    return f != NULL && f->final_bad && f->final_digest != 0 && t->gradient != 0 &&
           t->gradient != f->final_digest;
}

static void take_touch(state *s, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    cd_table_add(&s->owners, CD_KEY(t->optimizer));
    if (t->touched && !was_rewritten(s, e))
        take_witness(cd_table_add(&s->touched, CD_KEY(e->step, t->param)),
                     &(witness){e->sequence, t->optimizer, e->rank, true});
}

/* Steps of optimizers of which no touch says what they own. */
static void take_unowned(state *s)
{
    for (size_t i = 0; i < s->stepped.count; i++) {
        const cd_key *key = cd_table_key(&s->stepped, i);
        step_facts *t = cd_table_find(&s->steps, CD_KEY(key->part[0]));
        const bool other_skipped =
            t != NULL && t->has_skipped && (t->have_many || t->skipper != key->part[1]);
        if (t == NULL || other_skipped || cd_table_find(&s->owners, CD_KEY(key->part[1])) != NULL)
            continue;
        take_witness(&t->unowned, cd_table_value(&s->stepped, i));
    }
}

/* Who stepped on the parameter; NULL: nobody did. */
static const witness *find_consumer(const state *s, int64_t step, int64_t param)
{
    const witness *touched = cd_table_find(&s->touched, CD_KEY(step, param));
    if (touched != NULL && touched->is_known) {
        const witness *w = cd_table_find(&s->stepped, CD_KEY(step, touched->optimizer));
        return w != NULL && w->is_known && w->rank == touched->rank ? w : touched;
    }
    const step_facts *t = cd_table_find(&s->steps, CD_KEY(step));
    if (t == NULL) return NULL;
    if (t->spoiled.is_known) return &t->spoiled;
    return t->unowned.is_known ? &t->unowned : NULL;
}

/* Whether what came into the reduction was wrong already: the ranks that gave it are blamed. */
static bool blame_givers(state *s, const cddp_event *e, int64_t param, cddp_finding *f)
{
    const cddp_fact_average average = {e->step, e->micro_step, param};
    cddp_fact_stage stage;
    if (!cd_writer_find_stage(&s->writer, &average, &stage) || stage.rank_count == 0) return false;
    char what[160], who[96];
    if (stage.stage == CDDP_STAGE_PACKED)
        CD_SAY(what, "what was packed of %s is not the gradient", f->parameter);
    else if (stage.stage == CDDP_STAGE_LAUNCHED)
        CD_SAY(what, "the bucket of %s changes between packing and launch", f->parameter);
    else if (stage.stage == CDDP_STAGE_JOINED)
        CD_SAY(what, "after joining, the share of %s is not zeros", f->parameter);
    else
        return false;
    cd_rank_set ranks = {0};
    for (size_t i = 0; i < stage.rank_count; i++)
        cd_rank_set_add(&ranks, &s->writer.memory, stage.ranks[i]);
    cd_finding_set_stage(&s->writer, f, &stage);
    cd_rank_set_print(&ranks, stage.ranks[0], who, sizeof who);
    CD_SAY(f->title, "%s: %s; the average is NaN or infinity", who, what);
    return true;
}

/* A step that is skipped excuses a reduction that overflowed, and nobody who gave it something else
** than the gradient. */
static void report_overflow(state *s, const cddp_event *e, int64_t param, const tensor_facts *t,
                            bool is_consumed)
{
    if (s->reported_overflow) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.rank = -1;
    cd_finding_set_rank(&s->writer, &f, -1);
    f.bucket = (int32_t)t->bucket;
    cd_finding_set_parameter(&s->writer, &f, param);
    if (param < 0) CD_SAY(f.parameter, "%s", t->name);
    char bucket[48] = "";
    if (t->bucket >= 0) CD_SAY(bucket, " of bucket %lld", (long long)t->bucket);
    CD_SAY(f.expected, "a finite mean of finite gradients");
    CD_SAY(f.actual, "NaN or infinity in the reduced gradient");
    const bool is_given = blame_givers(s, e, param, &f);
    if (!is_given && !is_consumed) return;
    s->reported_overflow = true;
    if (is_given) {
        cd_writer_report(&s->writer, &f);
        return;
    }
    CD_SAY(f.title, "the reduction%s makes NaN or infinity of %s, which was finite on every rank",
           bucket, f.parameter);
    CD_SAY(
        f.advice, "%s",
        s->half_reductions == 0
            ? "nothing on the wire is so narrow that a sum overflows: look for what puts NaN or "
              "infinity into the bucket on its way"
        : s->divides_first
            ? "reduce in a wider dtype: here gradients are divided before the sum, which does not "
              "always save half precision (GRD-11)"
            : "divide before the sum, or reduce in a wider dtype");
    cd_writer_report(&s->writer, &f);
}

/* A parameter that the reducer leaves alone has no index: its name stands before the words. */
static void take_comparison(state *s, const cddp_event *e)
{
    const int64_t param = e->as.compare.param;
    char name[CD_WRITER_NAME_BYTES] = "";
    if (param < 0) cd_compare_split_name(e->text != NULL ? e->text : "", name, sizeof name);
    s->nonfinite++;
    tensor_facts *t = add_tensor(s, e->step, param, param < 0 ? cd_hash_text(name) : 0);
    if (t == NULL || t->final_bad) return;
    t->final_bad = true;
    t->final_rank = e->rank;
    t->final_micro = e->micro_step;
    t->final_sequence = e->sequence;
    t->bucket = -1;
    CD_SAY(t->name, "%s", name);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_grad_local) {
        take_local(s, e);
    } else if (e->kind == CDDP_EV_grad_final) {
        take_final(s, e);
    } else if (e->kind == CDDP_EV_collective_post) {
        const cddp_event_collective_post *c = &e->as.collective_post;
        /* what a hook gathers it adds up itself */
        bool reduces = c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_ALLGATHER;
        if (c->bucket >= 0 && reduces && (c->dtype == CDDP_F16 || c->dtype == CDDP_BF16))
            s->half_reductions++;
    } else if (e->kind == CDDP_EV_mark_ready) {
        const int64_t path = e->as.mark_ready.path;
        s->divides_first |= path == CDDP_PATH_RECIPROCAL || path == CDDP_PATH_DIVIDE;
    } else if (e->kind == CDDP_EV_mark) {
        s->is_recorded |= e->text != NULL && strcmp(e->text, CD_TRACER_RECORDED) == 0;
    } else if (e->kind == CDDP_EV_optimizer_step) {
        take_step(s, e);
    } else if (e->kind == CDDP_EV_optimizer_touch) {
        take_touch(s, e);
    } else if (e->kind == CDDP_EV_compare && e->as.compare.shape == CD_SHAPE_NONFINITE &&
               e->as.compare.link <= CD_LINK_REDUCTION) {
        take_comparison(s, e);
    }
}

static void report_step(state *s, uint32_t step, const tensor_facts *t, int64_t param)
{
    const witness *consumer = find_consumer(s, step, param);
    if (consumer == NULL || !t->local_bad || s->reported_step) return;
    s->reported_step = true;
    cddp_event at = {.rank = t->local_rank,
                     .step = step,
                     .micro_step = t->local_micro,
                     .sequence = t->local_sequence};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    cd_finding_add_event(&f, consumer->rank, consumer->sequence);
    cd_finding_set_parameter(&s->writer, &f, param);
    const step_facts *facts = cd_table_find(&s->steps, CD_KEY(step));
    const bool by_clip = facts != NULL && consumer == &facts->spoiled;
    const bool is_lost = t->is_lost && !t->final_bad && !by_clip;
    CD_SAY(f.title, "rank %u brought the first NaN or infinity, in %s, and %s", t->local_rank,
           f.parameter, is_lost ? "its average is finite" : "the optimizer stepped");
    CD_SAY(f.expected, is_lost ? "an average that is not finite"
                               : "the step is skipped on every rank, or the gradient is finite");
    CD_SAY(f.actual, "rank %u stepped at step %u%s", consumer->rank, step,
           by_clip ? ", with a clip coefficient that is not finite" : "");
    if (by_clip)
        CD_SAY(f.advice, "skip every step of an optimizer whose gradients were multiplied by that "
                         "coefficient, or clip the gradients of each optimizer by themselves");
    else if (is_lost)
        CD_SAY(f.advice, "look for what loses it on the way: a comm hook, a cast, a copy that was "
                         "made before; nobody can skip a step for what does not arrive");
    else
        CD_SAY(f.advice, "decide to skip from a value that all ranks share: the reduced gradient, "
                         "or a reduced flag");
    cd_writer_report(&s->writer, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->nonfinite > 0)
        cd_writer_exercise(&s->writer, "%llu tensors were not finite",
                           (unsigned long long)s->nonfinite);
    else if (s->half_reductions > 0)
        cd_writer_exercise(&s->writer, "%llu reductions on a 16-bit wire stayed finite",
                           (unsigned long long)s->half_reductions);
    take_unowned(s);
    for (size_t i = 0; i < s->tensors.count; i++) {
        const tensor_facts *t = cd_table_value(&s->tensors, i);
        const cd_key *key = cd_table_key(&s->tensors, i);
        cddp_event at = {.rank = t->final_rank,
                         .step = (uint32_t)key->part[0],
                         .micro_step = t->final_micro,
                         .sequence = t->final_sequence};
        if (t->final_bad && !t->local_bad)
            report_overflow(s, &at, key->part[1], t,
                            find_consumer(s, key->part[0], key->part[1]) != NULL);
        report_step(s, (uint32_t)key->part[0], t, key->part[1]);
    }
    cd_table_fini(&s->tensors);
    cd_table_fini(&s->steps);
    cd_table_fini(&s->stepped);
    cd_table_fini(&s->touched);
    cd_table_fini(&s->owners);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_grad_local,      CDDP_EV_grad_final,
                                 CDDP_EV_collective_post, CDDP_EV_optimizer_step,
                                 CDDP_EV_optimizer_touch, CDDP_EV_compare,
                                 CDDP_EV_mark_ready,      CDDP_EV_mark};

CD_CHECK_TABLE(range, "I-RANGE", "reductions neither overflow nor hide a NaN",
               "No overflow or NaN is produced by a reduction whose exact result is finite and "
               "representable; no "
               "narrowing of counts or offsets.");
