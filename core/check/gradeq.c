/* SPDX-License-Identifier: Apache-2.0 */
/* I-GRADEQ: after a synchronising backward every rank holds the same gradients, bit for bit, before
** anybody steps.
**
** Judged from   grad_final (presence and digest) across ranks by step, reduction and parameter.
**               The reductions of a step are counted: ranks may take them at different micro-steps;
**               agreement, which narrows that to the ranks that must agree.
** Exercised     two ranks reported the content of the same synchronised gradient.
** Blame         the odd ranks; with two ranks both.
** Limits        globally unused gradients were not synchronised and may differ (FIN-05). Where the
**               backend does not promise equal bits the check stays silent and the oracle's bound
**               judges instead (C10-09).
*/
#include "core/check/writer.h"

#include "core/trace/codes.h"

typedef struct state {
    cd_writer writer;
    cd_agree gradients; /* (step, reduction, param) → presence, digest, bucket */
    cd_table counts;    /* (rank, param) → reductions of the step so far */
    cd_ranks groups;    /* rank → group of the wrapper + 1 flag */
    bool has_digest;
} state;

typedef struct wrapped {
    int64_t group;
    bool is_known;
} wrapped;

typedef struct reductions {
    uint32_t step, count;
} reductions;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-GRADEQ", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->gradients, context->allocator);
    cd_table_init(&s->counts, context->allocator, sizeof(reductions));
    cd_ranks_init(&s->groups, context->allocator, sizeof(wrapped));
    cd_writer_set_agree_window(&s->writer, &s->gradients, CD_WHOLE_BY_STEP);
    return CDDP_OK;
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_wrap) {
        wrapped *w = cd_ranks_add(&s->groups, e->rank);
        if (w != NULL) *w = (wrapped){e->as.wrap.group, true};
        return;
    }
    if (e->kind != CDDP_EV_grad_final) return;
    const cddp_event_grad_final *g = &e->as.grad_final;
    const wrapped *w = cd_ranks_find(&s->groups, e->rank);
    if (w == NULL || !w->is_known || !cd_writer_has_equal_bits(&s->writer, w->group)) return;
    reductions *r = cd_table_add(&s->counts, CD_KEY(e->rank, g->param));
    if (r == NULL) return;
    *r = (reductions){e->step, r->step == e->step ? r->count + 1 : 1};
    if (g->globally_unused) return;
    if (g->digest != 0) s->has_digest = true;
    cd_agree_push(&s->gradients,
                  &(cd_statement){.key = CD_KEY(e->step, r->count, g->param,
                                                cd_writer_get_block(&s->writer, w->group, e->rank,
                                                                    CDDP_AGREED_GRADIENTS)),
                                  CD_SAYS(g->presence, g->digest, g->bucket)},
                  e);
}

/* A rank whose average the oracle found right is right, whatever most others say. */
static void prefer_reference(state *s)
{
    for (size_t i = 0; s->gradients.split_count > 0 && i < s->gradients.entries.count; i++) {
        const cd_agree_entry *entry = cd_table_value(&s->gradients.entries, i);
        const cd_key *key = cd_table_key(&s->gradients.entries, i);
        if (entry->first.next == 0) continue;
        const cddp_fact_judged place = {0, (uint32_t)key->part[0], CD_LINK_MATHEMATICS,
                                        key->part[2]};
        cd_agree_set_judged(&s->gradients, key, s->writer.context.facts, &place);
    }
}

/* As far as the trace shows it: the bucket brought what they have, or something changed it then. */
static const char *advise(const state *s, const cd_split *split)
{
    const cddp_fact_average average = {(uint32_t)split->key->part[0], split->micro_step,
                                       split->key->part[2]};
    cddp_fact_stage found;
    const bool is_known = cd_writer_find_stage(&s->writer, &average, &found);
    if (is_known && found.stage == CDDP_STAGE_REDUCED)
        return "each has what its bucket brought: look at what the reduction delivered";
    if (is_known && (found.stage == CDDP_STAGE_SETTLED || found.stage == CDDP_STAGE_WRITTEN))
        return "look at what happens between the result of the bucket and its write-back";
    if (is_known && found.stage == CDDP_STAGE_CHANGED)
        return "look for what added to it after finalisation";
    return cd_writer_has_hook(&s->writer, split->odd.rank)
               ? "look at what the comm hook returned, and for what added to it after finalisation"
               : "look at what the reduction delivered, and for what added to it after "
                 "finalisation";
}

/* Replicas that have parted go on apart: a majority of those that were wrong before says nothing
** about the one that was right. */
static bool is_outvoted(const cd_split *split, const cd_rank_set *wrong)
{
    bool any = false;
    if (split->has_reference) return false;
    for (uint32_t r = cd_rank_set_next(wrong, 0); r != CD_NO_RANK;
         r = cd_rank_set_next(wrong, r + 1)) {
        if (cd_rank_set_has(&split->odd_ranks, r)) return false;
        any = any || cd_rank_set_has(&split->right.ranks, r);
    }
    return any;
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->has_digest && s->gradients.shared_count > 0)
        cd_writer_exercise(&s->writer, "%llu synchronised gradients compared across ranks",
                           (unsigned long long)s->gradients.shared_count);
    prefer_reference(s);
    cd_split split;
    cd_rank_set wrong = {0};
    uint64_t count = 0;
    for (size_t cursor = 0; cd_agree_next_step(&s->gradients, &cursor, &split, &count);) {
        if (is_outvoted(&split, &wrong)) continue;
        if (split.has_reference) cd_rank_set_unite(&wrong, &s->writer.memory, &split.odd_ranks);
        cddp_finding f = cd_finding_of(&s->writer, &split);
        char who[160];
        cd_split_print(&split, who, sizeof who);
        f.bucket = (int32_t)split.odd.data[2];
        cd_finding_set_parameter(&s->writer, &f, split.key->part[2]);
        CD_SAY(f.title, "%s hold different gradients of %s after synchronisation%s", who,
               f.parameter, cd_writer_get_count(&s->writer, count, "parameters"));
        CD_SAY(f.expected, "rank %u: %s, digest %016llx", split.right.rank,
               split.right.data[0] ? "a value" : "absent", (unsigned long long)split.right.data[1]);
        CD_SAY(f.actual, "rank %u: %s, digest %016llx", split.odd.rank,
               split.odd.data[0] ? "a value" : "absent", (unsigned long long)split.odd.data[1]);
        CD_SAY(f.advice, "%s", advise(s, &split));
        cd_writer_report(&s->writer, &f);
    }
    cd_agree_fini(&s->gradients);
    cd_table_fini(&s->counts);
    cd_ranks_fini(&s->groups);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_wrap, CDDP_EV_grad_final};

CD_CHECK_TABLE(gradeq, "I-GRADEQ", "synchronised gradients are equal on all ranks",
               "After a synchronising backward, synced gradients are bitwise equal on all ranks, "
               "checked before step().");
