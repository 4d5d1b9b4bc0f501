/* SPDX-License-Identifier: Apache-2.0 */
/* I-CONTENT: the k-th bucket launch carries the same bucket with the same parameters at the same
** offsets everywhere.
**
** Judged from   bucket_layout (slot by slot), bucket_launch, numbered per rank and group by this
**               file, and the bucket that collective_post says it carries, where all operations of
**               the run look alike on all ranks; and on each rank by itself, whether what its
**               reducer says of a bucket is what its group saw (carry.h).
** Exercised     a bucket was launched by at least two ranks with a digest of its content list, or
**               followed to its result.
** Blame         the odd ranks; the finding names the first slot where the layouts differ and both
**               parameters.
**               A wrapper that is made again after a resume has its own layouts, numbered from 0
**               again; they are compared with those that the other ranks made at that time.
** Limits        equal shapes prove nothing here, but what lies in the buffer is I-REF's business.
*/
#include "core/check/carry.h"
#include "core/base/text.h"

typedef struct state {
    cd_writer writer;
    cd_agree layouts;  /* (generation, bucket, slot, wraps) → param, offset, numel, dtype */
    cd_agree launches; /* (group, k) → bucket, generation, content, numel */
    cd_agree posts;    /* (group, sequence) → operation, dtype, count: what the backend can see */
    cd_agree carried;  /* (group, sequence) → bucket: what it cannot see */
    cd_table counts;   /* (group, rank) → launches so far */
    cd_ranks wraps;    /* rank → constructions that have finished on it */
    cd_carries carries;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-CONTENT", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->layouts, context->allocator);
    cd_agree_init(&s->launches, context->allocator);
    cd_agree_init(&s->posts, context->allocator);
    cd_agree_init(&s->carried, context->allocator);
    cd_table_init(&s->counts, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->wraps, context->allocator, sizeof(int64_t));
    cd_carries_init(&s->carries, &s->writer);
    cd_writer_set_agree_window(&s->writer, &s->launches, CD_WHOLE_GROUP);
    cd_writer_set_agree_window(&s->writer, &s->posts, CD_WHOLE_GROUP);
    cd_writer_set_agree_window(&s->writer, &s->carried, CD_WHOLE_GROUP);
    return CDDP_OK;
}

static void take_post(state *s, const cddp_event *e)
{
    const cddp_event_collective_post *p = &e->as.collective_post;
    const cd_key *key = CD_KEY(p->group, p->sequence);
    cd_agree_push(&s->posts,
                  &(cd_statement){.key = key,
                                  CD_SAYS(p->op, p->reduce_op, p->root, p->dtype, p->numel)},
                  e);
    cd_agree_push(&s->carried, &(cd_statement){.key = key, CD_SAYS(p->bucket)}, e);
}

static void take_layout(state *s, const cddp_event *e)
{
    const cddp_event_bucket_layout *l = &e->as.bucket_layout;
    const int64_t *wraps = cd_ranks_add(&s->wraps, e->rank);
    if (wraps == NULL) return;
    cd_agree_push(&s->layouts,
                  &(cd_statement){.key = CD_KEY(l->generation, l->bucket, l->slot, *wraps),
                                  CD_SAYS(l->param, l->offset, l->numel, l->dtype)},
                  e);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    cd_carries_learn(&s->carries, e);
    if (e->kind == CDDP_EV_bucket_layout) {
        take_layout(s, e);
    } else if (e->kind == CDDP_EV_wrap || e->kind == CDDP_EV_regroup) {
        int64_t *wraps = cd_ranks_add(&s->wraps, e->rank);
        if (wraps != NULL) ++*wraps;
    } else if (e->kind == CDDP_EV_bucket_launch) {
        const cddp_event_bucket_launch *l = &e->as.bucket_launch;
        int64_t *count = cd_table_add(&s->counts, CD_KEY(l->group, e->rank));
        if (count == NULL || l->content == 0) return;
        cd_agree_push(&s->launches,
                      &(cd_statement){.key = CD_KEY(l->group, (*count)++),
                                      CD_SAYS(l->bucket, l->generation, l->content, l->numel)},
                      e);
    } else if (e->kind == CDDP_EV_collective_post) {
        take_post(s, e);
    }
}

static void report_layout(state *s, const cd_split *split)
{
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    f.bucket = (int32_t)split->key->part[1];
    cd_finding_set_parameter(&s->writer, &f, split->odd.data[0]);
    CD_SAY(f.title, "%s disagree on slot %lld of bucket %lld, layout %lld", who,
           (long long)split->key->part[2], (long long)split->key->part[1],
           (long long)split->key->part[0]);
    CD_SAY(f.expected, "rank %u: %s, %lld element%s at offset %lld", split->right.rank,
           cd_writer_get_parameter(&s->writer, split->right.data[0]),
           (long long)split->right.data[2], cd_plural((uint64_t)split->right.data[2]),
           (long long)split->right.data[1]);
    CD_SAY(f.actual, "rank %u: %s, %lld element%s at offset %lld", split->odd.rank,
           cd_writer_get_parameter(&s->writer, split->odd.data[0]), (long long)split->odd.data[2],
           cd_plural((uint64_t)split->odd.data[2]), (long long)split->odd.data[1]);
    CD_SAY(f.advice, "%s",
           split->key->part[0] > 0
               ? "a rebuilt layout must be rank 0's on every rank (REB-07)"
               : "the first layout follows from the bucket options and the list "
                 "of parameters: compare both between the ranks");
    cd_writer_report(&s->writer, &f);
}

static void report_launch(state *s, const cd_split *split)
{
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    f.bucket = (int32_t)split->odd.data[0];
    CD_SAY(f.title, "%s disagree on bucket launch #%lld", who, (long long)split->key->part[1]);
    CD_SAY(f.expected, "rank %u: bucket %lld of layout %lld, %lld element%s, content %016llx",
           split->right.rank, (long long)split->right.data[0], (long long)split->right.data[1],
           (long long)split->right.data[3], cd_plural((uint64_t)split->right.data[3]),
           (unsigned long long)split->right.data[2]);
    CD_SAY(f.actual, "rank %u: bucket %lld of layout %lld, %lld element%s, content %016llx",
           split->odd.rank, (long long)split->odd.data[0], (long long)split->odd.data[1],
           (long long)split->odd.data[3], cd_plural((uint64_t)split->odd.data[3]),
           (unsigned long long)split->odd.data[2]);
    CD_SAY(f.advice, "buckets must be launched in index order whatever the order in which "
                     "gradients become ready (RED-06)");
    cd_writer_report(&s->writer, &f);
}

static void say_carried(char *text, size_t text_bytes, const cd_variant *v)
{
    if (v->data[0] >= 0)
        cd_say(text, text_bytes, "rank %u: bucket %lld", v->rank, (long long)v->data[0]);
    else
        cd_say(text, text_bytes, "rank %u: no bucket of this wrapper", v->rank);
}

static void report_carried(state *s, const cd_split *split)
{
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    f.bucket = (int32_t)(split->odd.data[0] >= 0 ? split->odd.data[0] : split->right.data[0]);
    CD_SAY(f.title,
           "%s disagree on what collective #%lld of group '%s' carries, and it looks the same", who,
           (long long)split->key->part[1], cd_writer_get_group(&s->writer, split->key->part[0]));
    say_carried(f.expected, sizeof f.expected, &split->right);
    say_carried(f.actual, sizeof f.actual, &split->odd);
    CD_SAY(
        f.advice, "%s",
        split->odd.data[0] >= 0 && split->right.data[0] >= 0
            ? "equal sizes hide it: buckets go in the order of their indices on all ranks (RED-06)"
            : "buckets of a wrapper share their group with operations of the program, or with "
              "other wrappers. Issue them in one order on all ranks, or give each its group");
    cd_writer_report(&s->writer, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->launches.shared_count > 0)
        cd_writer_exercise(&s->writer, "%llu bucket launches seen on several ranks",
                           (unsigned long long)s->launches.shared_count);
    if (s->carries.done > 0)
        cd_writer_exercise(&s->writer, "%llu buckets followed through their collectives",
                           (unsigned long long)s->carries.done);
    /* The first difference leads to all others of its kind. */
    cd_split split;
    size_t cursor = 0;
    if (cd_agree_next(&s->layouts, &cursor, &split))
        report_layout(s, &split);
    else if ((cursor = 0, cd_agree_next(&s->launches, &cursor, &split)))
        report_launch(s, &split);
    else if (s->posts.split_count == 0 && (cursor = 0, cd_agree_next(&s->carried, &cursor, &split)))
        report_carried(s, &split);
    cd_agree_fini(&s->layouts);
    cd_agree_fini(&s->launches);
    cd_agree_fini(&s->posts);
    cd_agree_fini(&s->carried);
    cd_table_fini(&s->counts);
    cd_ranks_fini(&s->wraps);
    cd_carries_fini(&s->carries);
    cd_check_end(s);
}

static const uint16_t kinds[] = {
    CDDP_EV_bucket_layout, CDDP_EV_bucket_launch,   CDDP_EV_collective_post,
    CDDP_EV_hook_call,     CDDP_EV_collective_done, CDDP_EV_bucket_done,
    CDDP_EV_mark_ready,    CDDP_EV_grad_final,      CDDP_EV_wrap,
    CDDP_EV_regroup};

CD_CHECK_TABLE(content, "I-CONTENT",
               "every rank launches the same bucket with the same parameters at the same offsets",
               "For the k-th bucket launch, bucket, layout generation and the ordered (parameter, "
               "offset, count) list agree "
               "on all ranks, and every collective carries the same bucket, as it was launched. "
               "Equal shapes are not enough. On each rank a bucket is launched as it was packed, "
               "and what is written back is what it delivered.");
