/* SPDX-License-Identifier: Apache-2.0 */
/* I-COLL: a collective computes what its name says, on every member.
**
** Judged from   collective_post and collective_done by (group, sequence).
**     C1  outputs of allreduce, allgather and broadcast are equal on all members, where the backend
**         promises it
**     C2  the output of a broadcast is what the root sent
**     C4  compare events of link 2: the sum of what entered is not what came out. Only where every
**         rank packed, launched and wrote back what it should (cddp_facts, stage), took as the
**         result what its collective delivered, and left the bucket alone while it was under way;
**         C6 has not found the operation right; all started the step from equal values; and no
**         comm hook came in between. Where the trace does not show the stages: only an error
**         without any other explanation, when every rank's local
**         gradient was its own one-process gradient up to that step (link 3), and all ranks had
**         the same parameters and loss scale up to it
**     C6  compare events of link 17: what a reduction in f32 or a half type gave is the sum of what
**         its members posted, in the backend's order, and what an all-gather gave is what they
**         posted, where all members posted the same operation
**     C5  compare events of link 11: what a collective of the program itself gave is what its
**         members' inputs make, where all members posted the same operation, for no bucket
** Exercised     an output was compared across at least two members, or with what it must be (C5).
** Blame         C1: the odd ranks. C2: the ranks that differ from the root. C4: the ranks whose
**               result is wrong, and the parameter. C5, C6: the ranks.
** Limits        of an operation whose input changed on some member nothing is said here (I-HB).
**               C1 skips reductions of backends that promise nothing about bits, and groups whose
**               members did not post the same operation (I-ORDER).
*/
#include "core/check/operands.h"
#include "core/check/sight.h"
#include "core/check/tally.h"
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "core/base/hash.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

/* The operation that carries a bucket of a rank, since its last result. */
typedef struct carrier {
    int64_t digest; /* delivered */
    bool is_posted, has_ended;
} carrier;

/* All parameters of a rank after one step, folded together; and when it last reduced something. */
typedef struct running_hash {
    uint64_t digest;
    cddp_event last;
    uint32_t reduced_step, reduced_micro; /* of its last completed bucket */
    bool is_open, has_reduced;
} running_hash;

/* The operation that a rank completed last. */
typedef struct last_done {
    int64_t group, sequence; /* sequence + 1; 0: none */
    int64_t bucket;          /* that this rank says it carries, + 1; 0: none */
} last_done;

/* A comparison of C5 or C6 that failed; name: of the operation. */
typedef struct wrong {
    cddp_event event;
    char name[96];
} wrong;

/* A comparison of C4 that failed, on every rank on which it did at that place. */
typedef struct wrong_average {
    cddp_event event;
    cd_rank_set who;
    char name[64]; /* of what is no variable */
    char words[160];
} wrong_average;

typedef struct state {
    cd_writer writer;
    cd_agree posts;   /* (group, sequence) → op, reduce_op, root, dtype, numel */
    cd_agree labels;  /* (group, sequence) → the bucket it carries, + 1 */
    cd_ranks dones;   /* of last_done */
    cd_table wrongs;  /* (group, sequence, rank) → wrong */
    uint64_t owns;    /* comparisons of C5 */
    uint64_t sums;    /* of C6 */
    cd_agree outputs; /* (group, sequence) → digest */
    cd_operands operands;
    cd_table carriers;     /* (rank, bucket) → carrier */
    cd_ranks labelled;     /* rank → 1 where its operations say which bucket they carry */
    cd_table right;        /* (step, micro-step, bucket): C6 has found it right, to the bit */
    cd_table untrue;       /* (step, micro-step, bucket): its result says nothing of the backend */
    cd_table slots;        /* (group, group rank) → world rank + 1 */
    cd_table roots;        /* (group, sequence) → digest the root sent, its rank + 1 */
    cd_agree starts;       /* (step, which) → digest of all parameters, or the loss scale */
    cd_ranks hashes;       /* of running_hash */
    cd_table averages;     /* (micro-step, param, a tensor that has no index) → wrong_average */
    uint32_t average_step; /* of all of them: the earliest with a wrong average */
    cd_agree results;      /* (step, micro-step, bucket) → digest of its result */
    cd_table sparse;       /* param → its gradient has been sparse */
    cd_table changed;      /* (group, sequence) → an input changed */
    cd_sights sights;
    uint32_t local_step; /* the first step at which a local gradient was wrong */
    uint32_t slope_step; /* the first at which one was not its loss's derivative (link 15) */
    int64_t parted_step; /* the first at which ranks did not start alike */
    bool has_local, has_slope, has_hook, has_parted;
} state;

/* C2 is judged at the end. */
static bool is_root_wrong(const state *s, const cd_key *key, const cd_agree_entry *output)
{
    const int64_t *root = cd_table_find(&s->roots, key);
    return root != NULL && output->first.data[0] != root[0];
}

static bool keeps_output(void *self, const cd_key *key, const cd_agree_entry *output)
{
    return is_root_wrong(self, key, output);
}

static bool keeps_root(void *self, const cd_key *key, const void *value)
{
    const state *s = self;
    const cd_agree_entry *output = cd_table_find(&s->outputs.entries, key);
    (void)value;
    return output != NULL && is_root_wrong(s, key, output);
}

static bool keeps_start(void *self, const cd_key *key, const cd_agree_entry *start)
{
    (void)self, (void)key;
    return start->first.next != 0;
}

static void set_windows(state *s)
{
    cd_writer_set_agree_window(&s->writer, &s->posts, CD_WHOLE_GROUP);
    cd_writer_set_agree_window(&s->writer, &s->labels, CD_WHOLE_GROUP);
    cd_agree_set_window(&s->starts, &(cd_agree_window){.facts = s->writer.context.facts,
                                                       .may_differ = true,
                                                       .keeps = keeps_start});
    cd_agree_set_window(&s->results,
                        &(cd_agree_window){.facts = s->writer.context.facts, .may_differ = true});
    cd_agree_set_window(&s->outputs, &(cd_agree_window){.facts = s->writer.context.facts,
                                                        .whole = CD_WHOLE_GROUP,
                                                        .keeps = keeps_output,
                                                        .self = s});
    cd_writer_set_window(&s->writer, &s->roots, keeps_root);
    cd_writer_set_window(&s->writer, &s->right, NULL);
    cd_writer_set_window(&s->writer, &s->untrue, NULL);
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-COLL", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->posts, context->allocator);
    cd_agree_init(&s->labels, context->allocator);
    cd_ranks_init(&s->dones, context->allocator, sizeof(last_done));
    cd_table_init(&s->wrongs, context->allocator, sizeof(wrong));
    cd_agree_init(&s->outputs, context->allocator);
    cd_operands_init(&s->operands, context->allocator);
    cd_table_init(&s->carriers, context->allocator, sizeof(carrier));
    cd_ranks_init(&s->labelled, context->allocator, sizeof(int64_t));
    cd_table_init(&s->right, context->allocator, sizeof(int64_t));
    cd_table_init(&s->untrue, context->allocator, sizeof(int64_t));
    cd_table_init(&s->slots, context->allocator, sizeof(int64_t));
    cd_table_init(&s->roots, context->allocator, 2 * sizeof(int64_t));
    cd_agree_init(&s->starts, context->allocator);
    cd_ranks_init(&s->hashes, context->allocator, sizeof(running_hash));
    cd_table_init(&s->averages, context->allocator, sizeof(wrong_average));
    cd_agree_init(&s->results, context->allocator);
    cd_table_init(&s->sparse, context->allocator, sizeof(int64_t));
    cd_table_init(&s->changed, context->allocator, sizeof(int64_t));
    cd_sights_init(&s->sights, context->allocator);
    set_windows(s);
    return CDDP_OK;
}

static void take_post(state *s, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    if (c->op == CDDP_OP_SEND || c->op == CDDP_OP_RECV) return;
    cd_agree_push(&s->posts,
                  &(cd_statement){.key = CD_KEY(c->group, c->sequence),
                                  CD_SAYS(c->op, c->reduce_op, c->root, c->dtype, c->numel)},
                  e);
    cd_agree_push(&s->labels,
                  &(cd_statement){.key = CD_KEY(c->group, c->sequence), CD_SAYS(c->bucket)}, e);
    cd_operands_post(&s->operands, e);
    if (c->bucket >= 0) {
        carrier *x = cd_table_add(&s->carriers, CD_KEY(e->rank, c->bucket));
        int64_t *labels = cd_ranks_add(&s->labelled, e->rank);
        if (x != NULL) *x = (carrier){.is_posted = true};
        if (labels != NULL) *labels = 1;
    }
    if (c->op != CDDP_OP_BROADCAST || c->digest == 0) return;
    const int64_t *slot = cd_table_find(&s->slots, CD_KEY(c->group, c->root));
    int64_t *root = slot != NULL && *slot == (int64_t)e->rank + 1
                        ? cd_table_add(&s->roots, CD_KEY(c->group, c->sequence))
                        : NULL;
    if (root == NULL) return;
    root[0] = c->digest;
    root[1] = *slot;
}

static void distrust(state *s, const cddp_event *e, int64_t bucket)
{
    (void)cd_table_add(&s->untrue, CD_KEY(e->step, e->micro_step, bucket));
}

/* An input that changed is I-HB's: what came out says nothing of the backend. */
static void follow_operands(state *s, const cddp_event *e, last_done *last)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    cd_posted posted;
    const cd_operand_fate fate = cd_operands_end(&s->operands, e, &posted);
    if (last != NULL && posted.sequence != 0) last->bucket = posted.bucket + 1;
    carrier *x = posted.sequence != 0 && posted.bucket >= 0
                     ? cd_table_find(&s->carriers, CD_KEY(e->rank, posted.bucket))
                     : NULL;
    if (x != NULL) {
        x->digest = d->digest;
        x->has_ended = true;
    }
    if (fate != CD_OPERAND_BEFORE_START && fate != CD_OPERAND_WHILE_RUNNING) return;
    (void)cd_table_add(&s->changed, CD_KEY(d->group, d->sequence));
    if (posted.bucket >= 0) distrust(s, e, posted.bucket);
}

/* A rank that takes something else for the result than its collective delivered (I-CONTENT). */
static void follow_result(state *s, const cddp_event *e)
{
    const cddp_event_bucket_done *b = &e->as.bucket_done;
    carrier *x = cd_table_find(&s->carriers, CD_KEY(e->rank, b->bucket));
    const int64_t *labels = cd_ranks_find(&s->labelled, e->rank);
    const bool is_posted = x != NULL && x->is_posted;
    if (b->digest == 0 || labels == NULL || *labels == 0) return;
    if (!is_posted || !x->has_ended || (x->digest != 0 && x->digest != b->digest))
        distrust(s, e, b->bucket);
    if (x != NULL) *x = (carrier){0};
}

static void take_done(state *s, const cddp_event *e)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    if (d->status != CDDP_OK) return;
    last_done *last = cd_ranks_add(&s->dones, e->rank);
    if (last != NULL) *last = (last_done){d->group, d->sequence + 1, 0};
    follow_operands(s, e, last);
    const cd_agree_entry *post = cd_table_find(&s->posts.entries, CD_KEY(d->group, d->sequence));
    if (post == NULL || d->digest == 0) return;
    int64_t op = post->first.data[0];
    bool same = op == CDDP_OP_ALLREDUCE || op == CDDP_OP_ALLGATHER || op == CDDP_OP_BROADCAST;
    if (!same || (op == CDDP_OP_ALLREDUCE && !cd_writer_has_equal_bits(&s->writer, d->group)))
        return;
    cd_agree_push(&s->outputs,
                  &(cd_statement){.key = CD_KEY(d->group, d->sequence), CD_SAYS(d->digest)}, e);
}

/* ---- C4 ---- */

/* Only the first step at which ranks differ is asked for: an averager lets them differ for long. */
static void push_start(state *s, const cd_key *key, int64_t said, const cddp_event *e)
{
    if (s->has_parted && key->part[0] > s->parted_step) return;
    if (cd_agree_push(&s->starts, &(cd_statement){.key = key, CD_SAYS(said)}, e)) return;
    s->has_parted = true;
    s->parted_step = key->part[0];
}

static void close_hash(state *s, running_hash *h)
{
    if (!h->is_open) return;
    h->is_open = false;
    /* What a rank holds after step k is what it starts step k + 1 from; moment 1 is the start of
    ** step 0. */
    int64_t step =
        h->last.as.value.moment == CDDP_MOMENT_AFTER_INIT ? 0 : (int64_t)h->last.step + 1;
    push_start(s, CD_KEY(step, 0), (int64_t)h->digest, &h->last);
}

static void take_value(state *s, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    running_hash *h = v->what == CDDP_WHAT_PARAMETER && (v->moment == CDDP_MOMENT_AFTER_INIT ||
                                                         v->moment == CDDP_MOMENT_AFTER_STEP)
                          ? cd_ranks_add(&s->hashes, e->rank)
                          : NULL;
    if (h == NULL) return;
    if (h->is_open && (h->last.step != e->step || h->last.as.value.moment != v->moment))
        close_hash(s, h);
    h->digest = cd_hash_mix(h->is_open ? h->digest : 0, (uint64_t)v->digest);
    h->is_open = true;
    h->last = *e;
    h->last.text = NULL;
}

/* An average that is wrong all the same became wrong behind the operation. */
static void note_right(state *s, const cddp_event *e, const last_done *last)
{
    if (e->as.compare.link == CD_LINK_SUM && e->as.compare.exact && last->bucket > 0)
        (void)cd_table_add(&s->right, CD_KEY(e->step, e->micro_step, last->bucket - 1));
}

/* C5, C6: it is about the operation that the rank has just completed. */
static void take_own(state *s, const cddp_event *e)
{
    const last_done *last = cd_ranks_find(&s->dones, e->rank);
    s->owns += e->as.compare.link == CD_LINK_COLLECTIVE;
    s->sums += e->as.compare.link == CD_LINK_SUM;
    if (last == NULL || last->sequence == 0) return;
    if (e->as.compare.bad == 0) {
        note_right(s, e, last);
        return;
    }
    wrong *w = cd_table_add(&s->wrongs, CD_KEY(last->group, last->sequence - 1, e->rank));
    if (w == NULL) return;
    w->event = *e;
    w->event.text = NULL;
    cd_compare_split_name(e->text != NULL ? e->text : "", w->name, sizeof w->name);
}

static void take_average(state *s, const cddp_event *e)
{
    const cddp_event_compare *c = &e->as.compare;
    if (s->averages.count > 0 && e->step > s->average_step) return;
    if (s->averages.count > 0 && e->step < s->average_step) {
        cd_table_fini(&s->averages);
        cd_table_init(&s->averages, s->writer.context.allocator, sizeof(wrong_average));
    }
    s->average_step = e->step;
    char name[64] = "";
    const char *words = e->text != NULL ? e->text : "";
    if (c->param < 0) words = cd_compare_split_name(words, name, sizeof name);
    const int64_t other = c->param < 0 ? (int64_t)cd_hash_text(name) : 0;
    wrong_average *w = cd_table_add(&s->averages, CD_KEY(e->micro_step, c->param, other));
    if (w == NULL) return;
    const bool is_first = cd_rank_set_count(&w->who) == 0 || e->rank < w->event.rank;
    cd_rank_set_add(&w->who, &s->writer.memory, e->rank);
    if (!is_first) return;
    w->event = *e;
    w->event.text = NULL;
    CD_SAY(w->name, "%s", name);
    CD_SAY(w->words, "%s", words);
}

static void take_compare(state *s, const cddp_event *e)
{
    const cddp_event_compare *c = &e->as.compare;
    if (c->link == CD_LINK_COLLECTIVE || c->link == CD_LINK_SUM) take_own(s, e);
    if (c->bad == 0) return;
    if (c->link == CD_LINK_DERIVATIVE && (!s->has_slope || e->step < s->slope_step)) {
        s->has_slope = true;
        s->slope_step = e->step;
    }
    if (c->link == CD_LINK_PRECISION && (!s->has_local || e->step < s->local_step)) {
        s->has_local = true;
        s->local_step = e->step;
    }
    const running_hash *h = cd_ranks_find(&s->hashes, e->rank);
    const bool is_reduced = h != NULL && h->has_reduced && h->reduced_step == e->step &&
                            h->reduced_micro == e->micro_step;
    if (!is_reduced || c->link != CD_LINK_REDUCTION || c->shape == CD_SHAPE_NONFINITE ||
        c->shape == CD_SHAPE_PRESENCE)
        return;
    take_average(s, e);
}

static void take_bucket(state *s, const cddp_event *e)
{
    running_hash *h = cd_ranks_add(&s->hashes, e->rank);
    if (h == NULL) return;
    follow_result(s, e);
    h->has_reduced = true;
    h->reduced_step = e->step;
    h->reduced_micro = e->micro_step;
    cd_agree_push(&s->results,
                  &(cd_statement){.key = CD_KEY(e->step, e->micro_step, e->as.bucket_done.bucket),
                                  CD_SAYS(e->as.bucket_done.digest)},
                  e);
}

/* Whether all ranks were alike, as far as the trace tells, when the reduction of a step began. */
static bool were_alike(state *s, uint32_t step)
{
    for (uint32_t r = 0; r < s->hashes.count; r++) close_hash(s, cd_ranks_find(&s->hashes, r));
    cd_split split;
    for (size_t cursor = 0; cd_agree_next(&s->starts, &cursor, &split);)
        if (split.key->part[0] <= (int64_t)step) return false;
    return true;
}

static uint32_t count_known(const state *s)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < s->hashes.count; r++) {
        const running_hash *h = cd_ranks_find(&s->hashes, r);
        count += h->has_reduced;
    }
    return count;
}

/* Some ranks have the right average, and all got the same result: then it is right. */
static bool was_result_right(const state *s, const wrong_average *w, int64_t bucket)
{
    if (cd_rank_set_count(&w->who) >= count_known(s)) return false;
    const cd_agree_entry *entry =
        cd_table_find(&s->results.entries, CD_KEY(w->event.step, w->event.micro_step, bucket));
    return entry != NULL && entry->first.next == 0 && entry->first.data[0] != 0;
}

/* Its rows travel beside it, and are put together by the rank itself. */
static bool is_sparse(const state *s, const cddp_event *e)
{
    return cd_table_find(&s->sparse, CD_KEY(e->as.compare.param)) != NULL;
}

/* Whether nothing but the reduction can have made this average wrong. */
static bool is_reduction_wrong(state *s, const wrong_average *w, cddp_fact_stage *stage)
{
    const cddp_event *e = &w->event;
    const cddp_fact_average average = {e->step, e->micro_step, e->as.compare.param};
    const bool is_all = cd_rank_set_count(&w->who) >= count_known(s);
    const bool was_fine = !(s->has_local && s->local_step <= e->step) && were_alike(s, e->step);
    const bool is_shown = cd_writer_find_stage(&s->writer, &average, stage);
    if (!is_shown) *stage = (cddp_fact_stage){.stage = CDDP_STAGE_UNKNOWN, .bucket = -1};
    if (s->has_hook || is_sparse(s, e) || was_result_right(s, w, stage->bucket)) return false;
    const cd_key *key = CD_KEY(e->step, e->micro_step, stage->bucket);
    if (cd_table_find(&s->untrue, key) != NULL || cd_table_find(&s->right, key) != NULL)
        return false;
    if (s->has_slope && s->slope_step <= e->step) return false;
    if (stage->stage == CDDP_STAGE_REDUCED) return is_all || was_fine;
    return stage->stage == CDDP_STAGE_UNKNOWN && e->as.compare.shape == CD_SHAPE_UNEXPLAINED &&
           was_fine;
}

/* C4: the first of the step. */
static void report_average(state *s)
{
    const wrong_average *first = NULL;
    cddp_fact_stage stage = {0};
    for (size_t i = 0; i < s->averages.count; i++) {
        const wrong_average *w = cd_table_value(&s->averages, i);
        cddp_fact_stage found;
        const bool precedes = first == NULL || w->event.micro_step < first->event.micro_step ||
                              (w->event.micro_step == first->event.micro_step &&
                               w->event.as.compare.param < first->event.as.compare.param);
        if (!precedes || !is_reduction_wrong(s, w, &found)) continue;
        first = w;
        stage = found;
    }
    if (first == NULL) return;
    const cddp_event_compare *c = &first->event.as.compare;
    cddp_finding f = cd_finding_at(&s->writer, &first->event);
    char who[96] = "all ranks";
    cd_finding_set_ranks(&s->writer, &f, &first->who);
    cd_finding_set_parameter(&s->writer, &f, c->param);
    f.bucket = (int32_t)stage.bucket;
    if (c->param < 0) CD_SAY(f.parameter, "%s", first->name);
    const bool is_all = f.rank_count > 1 && f.rank_count >= count_known(s);
    if (is_all) f.rank = -1;
    if (!is_all) cd_rank_set_print(&first->who, first->event.rank, who, sizeof who);
    CD_SAY(f.title, "%s: the reduced gradient of %s is not the average of what entered", who,
           f.parameter);
    CD_SAY(f.expected, "%.17g at element %lld, within %.3g", cd_f64_of(c->expected),
           (long long)c->element, cd_f64_of(c->bound));
    CD_SAY(f.actual, "rank %u: %.17g (%lld element%s): %s", first->event.rank, cd_f64_of(c->actual),
           (long long)c->bad, c->bad == 1 ? " differs" : "s differ", first->words);
    if (stage.stage == CDDP_STAGE_REDUCED)
        CD_SAY(f.advice, "these ranks packed, launched and wrote back what they should: run the "
                         "backend's conformance tests at this element count, dtype and world size");
    else
        CD_SAY(f.advice, "no contribution is missing, doubled or scaled: run the backend's "
                         "conformance tests at this element count, dtype and world size");
    cd_writer_report(&s->writer, &f);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    cd_sights_push(&s->sights, e);
    if (e->kind == CDDP_EV_collective_post) {
        take_post(s, e);
    } else if (e->kind == CDDP_EV_collective_done) {
        take_done(s, e);
    } else if (e->kind == CDDP_EV_compare) {
        take_compare(s, e);
    } else if (e->kind == CDDP_EV_value) {
        take_value(s, e);
    } else if (e->kind == CDDP_EV_grad_local) {
        if (e->as.grad_local.presence == CDDP_PRESENCE_SPARSE)
            (void)cd_table_add(&s->sparse, CD_KEY(e->as.grad_local.param));
    } else if (e->kind == CDDP_EV_hook_call) {
        s->has_hook = true;
    } else if (e->kind == CDDP_EV_bucket_done) {
        take_bucket(s, e);
    } else if (e->kind == CDDP_EV_optimizer_step) {
        push_start(s, CD_KEY(e->step, 1 + e->as.optimizer_step.optimizer),
                   e->as.optimizer_step.loss_scale, e);
    } else if (e->kind == CDDP_EV_group) {
        int64_t *slot = cd_table_add(&s->slots, CD_KEY(e->as.group.group, e->as.group.group_rank));
        if (slot != NULL) *slot = (int64_t)e->rank + 1;
    }
}

/* ... and no member's input changed meanwhile. */
static bool was_posted_alike(const state *s, const cd_key *key)
{
    const cd_agree_entry *post = cd_table_find(&s->posts.entries, key);
    return post != NULL && post->first.next == 0 && cd_table_find(&s->changed, key) == NULL;
}

/* C1, where the members differ from one another. */
static bool report_split(state *s, const cd_split *split)
{
    if (!was_posted_alike(s, split->key)) return false;
    const cd_agree_entry *post = cd_table_find(&s->posts.entries, split->key);
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160], operation[96];
    cd_split_print(split, who, sizeof who);
    cd_operation_print(post->first.data, operation, sizeof operation);
    f.is_cause = post->first.data[0] == CDDP_OP_BROADCAST; /* of ranks that part with it */
    CD_SAY(f.title, "%s get different results from collective #%lld of group '%s'", who,
           (long long)split->key->part[1], cd_writer_get_group(&s->writer, split->key->part[0]));
    CD_SAY(f.expected, "rank %u: %016llx from %s", split->right.rank,
           (unsigned long long)split->right.data[0], operation);
    CD_SAY(f.actual, "rank %u: %016llx", split->odd.rank, (unsigned long long)split->odd.data[0]);
    CD_SAY(f.advice, "the backend promises equal bits on all ranks and did not deliver them");
    cd_writer_report(&s->writer, &f);
    return true;
}

/* The operation is the program's (C5), or a reduction of anything (C6) whose inputs did not change
** on the way. Messages have no posts. */
static bool is_about_all(const state *s, const cd_key *operation, const cddp_event *e)
{
    const cd_agree_entry *label = cd_table_find(&s->labels.entries, operation);
    if (e->as.compare.link == CD_LINK_SUM)
        return was_posted_alike(s, operation) && cd_table_find(&s->changed, operation) == NULL;
    if (cd_table_find(&s->posts.entries, operation) == NULL) return true;
    return was_posted_alike(s, operation) && label != NULL && label->first.next == 0 &&
           label->first.data[0] < 0;
}

static bool is_gather(const state *s, const cd_key *operation)
{
    const cd_agree_entry *post = cd_table_find(&s->posts.entries, operation);
    return post != NULL && post->first.data[0] == CDDP_OP_ALLGATHER;
}

/* One member's result was compared. Where all got the same (C1), it is wrong on all of them. */
static void add_members(state *s, const cd_key *operation, cd_rank_set *who)
{
    const cd_agree_entry *output = cd_table_find(&s->outputs.entries, operation);
    if (output == NULL || output->first.next != 0) return;
    for (size_t i = 0; i < s->slots.count; i++) {
        const int64_t *slot = cd_table_value(&s->slots, i);
        if (cd_table_key(&s->slots, i)->part[0] == operation->part[0])
            cd_rank_set_add(who, &s->writer.memory, (uint32_t)(*slot - 1));
    }
}

/* C5, C6: the first such operation, on every rank that it is wrong on. What was gathered wrongly
** is the cause of what is computed from it, and of parameters that are not those of the chain. */
static void report_own(state *s)
{
    const wrong *first = NULL;
    const cd_key *at = NULL;
    cd_rank_set who = {0};
    for (size_t i = 0; i < s->wrongs.count; i++) {
        const wrong *w = cd_table_value(&s->wrongs, i);
        const cd_key *key = cd_table_key(&s->wrongs, i);
        const cd_key *operation = CD_KEY(key->part[0], key->part[1]);
        if (!is_about_all(s, operation, &w->event)) continue;
        if (cd_sights_find_wrong(&s->sights, key) != NULL) continue; /* I-SHOWN's */
        const bool is_same =
            at != NULL && at->part[0] == key->part[0] && at->part[1] == key->part[1];
        const bool precedes = first == NULL || w->event.step < first->event.step ||
                              (w->event.step == first->event.step &&
                               (key->part[0] < at->part[0] ||
                                (key->part[0] == at->part[0] && key->part[1] < at->part[1])));
        if (precedes) who = (cd_rank_set){0};
        if (precedes || is_same) cd_rank_set_add(&who, &s->writer.memory, w->event.rank);
        if (precedes || (is_same && w->event.rank < first->event.rank)) {
            first = w;
            at = key;
        }
    }
    if (first == NULL) return;
    const cddp_event_compare *c = &first->event.as.compare;
    cddp_finding f = cd_finding_at(&s->writer, &first->event);
    const cd_key *operation = CD_KEY(at->part[0], at->part[1]);
    f.is_cause = c->link == CD_LINK_SUM && is_gather(s, operation);
    if (f.is_cause) add_members(s, operation, &who);
    cd_finding_set_ranks(&s->writer, &f, &who);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s (#%lld) does not give what its members' inputs make",
           first->name, (long long)at->part[1]);
    CD_SAY(f.expected, "%.17g at element %lld, within %.3g", cd_f64_of(c->expected),
           (long long)c->element, cd_f64_of(c->bound));
    CD_SAY(f.actual, "%.17g (%lld element%s)", cd_f64_of(c->actual), (long long)c->bad,
           c->bad == 1 ? " differs" : "s differ");
    CD_SAY(f.advice, "run the backend's conformance tests at this operation, element count, dtype "
                     "and world size");
    cd_writer_report(&s->writer, &f);
}

/* C2, where all agree on something that the root did not send. */
static bool report_roots(state *s)
{
    for (size_t i = 0; i < s->roots.count; i++) {
        const int64_t *root = cd_table_value(&s->roots, i);
        const cd_key *key = cd_table_key(&s->roots, i);
        const cd_agree_entry *output = cd_table_find(&s->outputs.entries, key);
        if (output == NULL || output->first.next != 0 || output->first.data[0] == root[0] ||
            !was_posted_alike(s, key))
            continue;
        cddp_event at = {.rank = output->first.rank,
                         .step = output->step,
                         .micro_step = output->micro_step,
                         .sequence = output->first.sequence};
        cddp_finding f = cd_finding_at(&s->writer, &at);
        f.peer = (int32_t)(root[1] - 1);
        CD_SAY(f.title, "broadcast #%lld of group '%s' delivers something the root did not send",
               (long long)key->part[1], cd_writer_get_group(&s->writer, key->part[0]));
        CD_SAY(f.expected, "rank %lld sent %016llx", (long long)(root[1] - 1),
               (unsigned long long)root[0]);
        CD_SAY(f.actual, "%016llx arrived", (unsigned long long)output->first.data[0]);
        cd_writer_report(&s->writer, &f);
        return true;
    }
    return false;
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->outputs.shared_count > 0)
        cd_writer_exercise(&s->writer, "%llu outputs of collectives compared across ranks",
                           (unsigned long long)s->outputs.shared_count);
    for (size_t i = 0; i < s->roots.count; i++) {
        const int64_t *root = cd_table_value(&s->roots, i);
        if (cd_table_find(&s->outputs.entries, cd_table_key(&s->roots, i)) != NULL)
            cd_agree_set_authority(&s->outputs, cd_table_key(&s->roots, i),
                                   (uint32_t)(root[1] - 1));
    }
    if (s->owns > 0)
        cd_writer_exercise(
            &s->writer,
            "%llu results of the program's own collectives compared with what they must be",
            (unsigned long long)s->owns);
    if (s->sums > 0)
        cd_writer_exercise(&s->writer, "%llu sums in half types compared with what members posted",
                           (unsigned long long)s->sums);
    report_average(s);
    report_own(s);
    cd_split split;
    bool reported = false;
    for (size_t cursor = 0; !reported && cd_agree_next(&s->outputs, &cursor, &split);)
        reported = report_split(s, &split);
    if (!reported) (void)report_roots(s);
    cd_agree_fini(&s->posts);
    cd_agree_fini(&s->labels);
    cd_ranks_fini(&s->dones);
    cd_table_fini(&s->wrongs);
    cd_agree_fini(&s->outputs);
    cd_operands_fini(&s->operands);
    cd_table_fini(&s->carriers);
    cd_ranks_fini(&s->labelled);
    cd_table_fini(&s->right);
    cd_table_fini(&s->untrue);
    cd_table_fini(&s->slots);
    cd_table_fini(&s->roots);
    cd_agree_fini(&s->starts);
    cd_ranks_fini(&s->hashes);
    cd_table_fini(&s->averages);
    cd_agree_fini(&s->results);
    cd_table_fini(&s->sparse);
    cd_table_fini(&s->changed);
    cd_sights_fini(&s->sights);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_group,           CDDP_EV_collective_post,
                                 CDDP_EV_collective_done, CDDP_EV_compare,
                                 CDDP_EV_value,           CDDP_EV_hook_call,
                                 CDDP_EV_bucket_done,     CDDP_EV_optimizer_step,
                                 CDDP_EV_grad_local,      CDDP_EV_mark};

CD_CHECK_TABLE(coll, "I-COLL", "collectives compute what their names say",
               "The backend's result equals the mathematical collective over the whole grid of "
               "operation, algorithm, "
               "dtype, count, in-place flag and world size.");
