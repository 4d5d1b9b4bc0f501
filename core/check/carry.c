/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/carry.h"

#define POSTS_MAX 256

typedef struct launch {
    int64_t group, content, arrived; /* digests: as launched, and what its collective delivered */
    uint64_t sequence;
    bool is_open, is_posted, has_ended;
} launch;

typedef struct carried {
    int64_t sequence, bucket; /* sequence + 1; 0: nothing */
} carried;

void cd_carries_init(cd_carries *c, cd_scribe *scribe)
{
    c->scribe = scribe;
    cd_table_init(&c->buckets, scribe->context.allocator, sizeof(launch));
    cd_table_init(&c->posts, scribe->context.allocator, sizeof(carried));
    cd_ranks_init(&c->labels, scribe->context.allocator, sizeof(int64_t));
}

void cd_carries_fini(cd_carries *c)
{
    cd_table_fini(&c->buckets);
    cd_table_fini(&c->posts);
    cd_ranks_fini(&c->labels);
}

static carried *carried_by(cd_carries *c, const cddp_event *e, const int64_t group_and_sequence[2])
{
    return cd_table_add(&c->posts, CD_KEY(e->rank, group_and_sequence[0], (int64_t)((uint64_t)group_and_sequence[1] % POSTS_MAX)));
}

typedef struct contradiction {
    const char *title, *expected, *actual;
    int64_t bucket, left, right; /* digests, 0: none */
} contradiction;

static void report(cd_carries *c, const cddp_event *e, const launch *l, const contradiction *x)
{
    const cd_key *key = CD_KEY(1);
    if (!cd_scribe_is_first(c->scribe, key, e)) return;
    cddp_finding f = cd_finding_at(c->scribe, e);
    f.bucket = (int32_t)x->bucket;
    cd_finding_add_event(&f, e->rank, l->sequence);
    CD_SAY(f.title, "rank %u: bucket %lld %s", e->rank, (long long)x->bucket, x->title);
    CD_SAY(f.expected, x->left != 0 ? "%s %016llx" : "%s", x->expected, (unsigned long long)x->left);
    CD_SAY(f.actual, x->right != 0 ? "%s %016llx" : "%s", x->actual, (unsigned long long)x->right);
    CD_SAY(f.advice, "a bucket goes to the group as it was launched, and what comes back is its result: nothing may touch it in between");
    cd_scribe_hold(c->scribe, key, &f);
}

static void take_launch(cd_carries *c, const cddp_event *e)
{
    const cddp_event_bucket_launch *b = &e->as.bucket_launch;
    launch *l = cd_table_add(&c->buckets, CD_KEY(e->rank, b->bucket));
    if (l == NULL) return;
    /* A joined rank tells no result of its own. */
    *l = (launch){.group = b->group, .content = b->digest, .sequence = e->sequence, .is_open = b->digest != 0 && !b->shadow};
}

static void take_post(cd_carries *c, const cddp_event *e)
{
    const cddp_event_collective_post *p = &e->as.collective_post;
    carried *x = carried_by(c, e, (int64_t[]){p->group, p->sequence});
    if (x == NULL) return;
    *x = (carried){p->sequence + 1, p->bucket};
    int64_t *labels = p->bucket >= 0 ? cd_ranks_add(&c->labels, e->rank) : NULL;
    if (labels != NULL) *labels = 1;
    launch *l = p->bucket >= 0 ? cd_table_find(&c->buckets, CD_KEY(e->rank, p->bucket)) : NULL;
    if (l == NULL || !l->is_open || l->is_posted || l->group != p->group) return;
    l->is_posted = true;
    if (p->digest == 0 || p->digest == l->content) return;
    report(c, e, l, &(contradiction){"is not posted as it was launched", "launched:", "posted:", p->bucket, l->content, p->digest});
}

static void take_end(cd_carries *c, const cddp_event *e)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    const carried *x = carried_by(c, e, (int64_t[]){d->group, d->sequence});
    launch *l = x != NULL && x->sequence == d->sequence + 1 ? cd_table_find(&c->buckets, CD_KEY(e->rank, x->bucket)) : NULL;
    if (l == NULL || !l->is_open || l->group != d->group) return;
    l->has_ended = true;
    l->arrived = d->digest;
}

static void take_result(cd_carries *c, const cddp_event *e)
{
    const cddp_event_bucket_done *b = &e->as.bucket_done;
    launch *l = cd_table_find(&c->buckets, CD_KEY(e->rank, b->bucket));
    if (l == NULL || !l->is_open) return;
    l->is_open = false;
    if (!l->is_posted) {
        const int64_t *labels = cd_ranks_find(&c->labels, e->rank);
        if (labels == NULL || *labels == 0) return; /* another program's group, which does not tell what its operations carry */
        report(c, e, l, &(contradiction){"is said to be reduced, but no collective carried it",
                                         "a collective of its group that carries it", "none since it was launched", b->bucket, 0, 0});
    } else if (!l->has_ended) {
        report(c, e, l, &(contradiction){"is taken for reduced before its collective has ended", "its collective has ended",
                                         "still in flight", b->bucket, 0, 0});
    } else if (b->digest != 0 && l->arrived != 0 && b->digest != l->arrived) {
        report(c, e, l, &(contradiction){"is not what its collective delivered", "delivered:", "taken as the result:", b->bucket,
                                         l->arrived, b->digest});
    } else {
        c->done++;
    }
}

void cd_carries_learn(cd_carries *c, const cddp_event *e)
{
    switch (e->kind) {
    case CDDP_EV_bucket_launch: take_launch(c, e); break;
    case CDDP_EV_hook_call: {
        launch *l = cd_table_find(&c->buckets, CD_KEY(e->rank, e->as.hook_call.bucket));
        if (l != NULL) l->is_open = false;
        break;
    }
    case CDDP_EV_collective_post: take_post(c, e); break;
    case CDDP_EV_collective_done: take_end(c, e); break;
    case CDDP_EV_bucket_done: take_result(c, e); break;
    default: break;
    }
}
