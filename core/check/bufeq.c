/* SPDX-License-Identifier: Apache-2.0 */
/* I-BUFEQ: after buffers were synchronised, every rank enters forward with the authority's values.
**
** Judged from   buffer_sync before a forward, then value of a buffer at moment 2 (forward entry).
** Exercised     two ranks told the content of a buffer at the entry of a forward that had synchronised.
** Blame         the ranks that differ from the authority.
** Limits        forwards that do not synchronise (inside no_sync, and the first one after it, BUF-05) may differ by
**               right; ignored buffers too. A custom buffer hook after the forward is not judged here.
*/
#include "core/check/scribe.h"

typedef struct rank_facts {
    int64_t authority;
    uint32_t step, micro_step, forward;
    bool is_synced, has_begun;
} rank_facts;

typedef struct state {
    cd_scribe scribe;
    cd_agree buffers; /* (step and micro-step, forward, buffer) → presence, digest */
    cd_ranks ranks;   /* of rank_facts */
    cd_table ignored; /* buffer → 1 */
    bool has_digest;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status = cd_check_begin(context, &(cd_check_spec){"I-BUFEQ", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->buffers, context->allocator);
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->ignored, context->allocator, sizeof(int64_t));
    return CDDP_OK;
}

static void take_value(state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_value *v = &e->as.value;
    if (v->what != 1 || v->moment != 2 || !r->is_synced) return;
    if (cd_table_find(&s->ignored, CD_KEY(v->id)) != NULL) return;
    if (v->digest != 0) s->has_digest = true;
    const cd_key *key = CD_KEY(e->step, e->micro_step, r->forward, v->id);
    cd_agree_push(&s->buffers, &(cd_statement){.key = key, CD_SAYS(v->presence, v->digest)}, e);
    if (r->authority >= 0) cd_agree_set_authority(&s->buffers, key, (uint32_t)r->authority);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    cd_scribe_learn(&s->scribe, e);
    if (e->kind == CDDP_EV_buffer) {
        int64_t *flag = e->as.buffer.ignored ? cd_table_add(&s->ignored, CD_KEY(e->as.buffer.buffer)) : NULL;
        if (flag != NULL) *flag = 1;
        return;
    }
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    if (e->kind == CDDP_EV_forward_begin) {
        bool same = r->has_begun && r->step == e->step && r->micro_step == e->micro_step;
        *r = (rank_facts){
            .step = e->step, .micro_step = e->micro_step, .forward = same ? r->forward + 1 : 0, .has_begun = true};
    } else if (e->kind == CDDP_EV_buffer_sync && e->as.buffer_sync.location == 0) {
        r->is_synced = true;
        r->authority = e->as.buffer_sync.authority;
    } else if (e->kind == CDDP_EV_value) {
        take_value(s, e, r);
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->has_digest && s->buffers.shared_count > 0)
        cd_scribe_exercise(&s->scribe, "%llu buffers compared at forward entry",
                           (unsigned long long)s->buffers.shared_count);
    cd_split split;
    uint64_t count = 0;
    for (size_t cursor = 0; cd_agree_next_step(&s->buffers, &cursor, &split, &count);) {
        cddp_finding f = cd_finding_of(&s->scribe, &split);
        char who[160];
        cd_split_print(&split, who, sizeof who);
        CD_SAY(f.title, "%s enter forward with different values of buffer %s (%llu buffers)", who,
               cd_scribe_get_buffer(&s->scribe, split.key->part[3]), (unsigned long long)count);
        CD_SAY(f.expected, "rank %u: digest %016llx", split.right.rank, (unsigned long long)split.right.data[1]);
        CD_SAY(f.actual, "rank %u: digest %016llx", split.odd.rank, (unsigned long long)split.odd.data[1]);
        CD_SAY(f.advice, "a buffer that was re-assigned, or changed between the broadcast and the forward, is no "
                         "longer the broadcast one");
        cd_scribe_report(&s->scribe, &f);
    }
    cd_agree_fini(&s->buffers);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->ignored);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_buffer, CDDP_EV_forward_begin, CDDP_EV_buffer_sync, CDDP_EV_value};

CD_CHECK_TABLE(bufeq, "I-BUFEQ", "buffers are the authority's at forward entry",
               "At forward entry each live buffer equals the authority's value.");
