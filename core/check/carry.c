/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/carry.h"

#include "core/base/hash.h"

typedef struct launch {
    /* digests, 0: not reported: as launched, and what its collective delivered */
    int64_t group, content, arrived;
    uint64_t sequence;
    uint64_t posts, under_way; /* operations that carry it; a sparse bucket's rows take several */
    bool is_open;
} launch;

/* Operations that carry buckets are numbered per group, from the first one after all buckets had
** arrived. So memory grows only with the operations in flight at once. */
typedef struct window {
    /* the sequence of that one; buckets that are posted and have not arrived */
    uint64_t first, buckets;
} window;

typedef struct carried {
    int64_t sequence, bucket;
    uint64_t launch; /* its event's sequence + 1; 0: nothing */
} carried;

typedef struct packed {
    int64_t digest; /* 0: not known */
    uint32_t step, micro_step;
} packed;

void cd_carries_init(cd_carries *c, cd_writer *writer)
{
    c->writer = writer;
    cd_table_init(&c->buckets, writer->context.allocator, sizeof(launch));
    cd_table_init(&c->windows, writer->context.allocator, sizeof(window));
    cd_table_init(&c->posts, writer->context.allocator, sizeof(carried));
    cd_table_init(&c->slots, writer->context.allocator, sizeof(packed));
    cd_ranks_init(&c->labels, writer->context.allocator, sizeof(int64_t));
}

void cd_carries_fini(cd_carries *c)
{
    cd_table_fini(&c->buckets);
    cd_table_fini(&c->windows);
    cd_table_fini(&c->posts);
    cd_table_fini(&c->slots);
    cd_ranks_fini(&c->labels);
}

/* Whatever became of it, it is under way no more. */
static void conclude(cd_carries *c, uint32_t rank, launch *l)
{
    window *w =
        l->is_open && l->posts > 0 ? cd_table_find(&c->windows, CD_KEY(rank, l->group)) : NULL;
    if (w != NULL) w->buckets--;
    l->is_open = false;
}

typedef struct contradiction {
    const char *title, *expected, *actual;
    int64_t bucket, left, right; /* digests, 0: none */
} contradiction;

static void report(cd_carries *c, const cddp_event *e, const launch *l, const contradiction *x)
{
    const cd_key *key = CD_KEY(1);
    if (!cd_writer_is_first(c->writer, key, e)) return;
    cddp_finding f = cd_finding_at(c->writer, e);
    f.bucket = (int32_t)x->bucket;
    cd_finding_add_event(&f, e->rank, l->sequence);
    CD_SAY(f.title, CDDP_FINDING_WHO ": bucket %lld %s", (long long)x->bucket, x->title);
    CD_SAY(f.expected, x->left != 0 ? "%s %016llx" : "%s", x->expected,
           (unsigned long long)x->left);
    CD_SAY(f.actual, x->right != 0 ? "%s %016llx" : "%s", x->actual, (unsigned long long)x->right);
    CD_SAY(f.advice, "a bucket goes to the group as it was launched, and what comes back is its "
                     "result: nothing may touch it in between");
    cd_writer_hold(c->writer, key, &f);
}

/* A copy that waits for its bucket is packed when it is launched; rows lie in no bucket. */
static void take_packed(cd_carries *c, const cddp_event *e)
{
    const cddp_event_mark_ready *m = &e->as.mark_ready;
    const bool lies_there = m->path != CDDP_PATH_DEFERRED && m->path != CDDP_PATH_SPARSE;
    packed *p = cd_table_add(&c->slots, CD_KEY(e->rank, m->bucket, m->slot));
    if (p != NULL) *p = (packed){lies_there ? m->digest : 0, e->step, e->micro_step};
}

/* The digests of what was packed, folded as those of its slices; false: not all are known. */
static bool fold_packed(const cd_carries *c, const cddp_event *e, uint64_t *digest)
{
    *digest = 0;
    for (int64_t i = 0;; i++) {
        const packed *p = cd_table_find(&c->slots, CD_KEY(e->rank, e->as.bucket_launch.bucket, i));
        if (p == NULL || p->step != e->step || p->micro_step != e->micro_step) return i > 0;
        if (p->digest == 0) return false;
        *digest = cd_hash_mix(*digest, (uint64_t)p->digest);
    }
}

static void compare_packed(cd_carries *c, const cddp_event *e, const launch *l)
{
    const cddp_event_bucket_launch *b = &e->as.bucket_launch;
    uint64_t digest;
    if (b->shadow || b->slices == 0 || !fold_packed(c, e, &digest) || digest == (uint64_t)b->slices)
        return;
    report(c, e, l,
           &(contradiction){"is not launched as it was packed", "packed:", "launched:", b->bucket,
                            (int64_t)digest, b->slices});
}

/* What is written back is the slice, to the bit: a bound of what was averaged says nothing here. */
static void take_final(cd_carries *c, const cddp_event *e)
{
    const cddp_event_grad_final *g = &e->as.grad_final;
    const cd_key *key = CD_KEY(2);
    if (g->slice == 0 || g->slice == g->digest || !cd_writer_is_first(c->writer, key, e)) return;
    cddp_finding f = cd_finding_at(c->writer, e);
    f.bucket = (int32_t)g->bucket;
    cd_finding_set_parameter(c->writer, &f, g->param);
    CD_SAY(f.title, CDDP_FINDING_WHO ": the gradient of %s is not what bucket %lld delivered",
           f.parameter, (long long)g->bucket);
    CD_SAY(f.expected, "its slice of the result: %016llx", (unsigned long long)g->slice);
    CD_SAY(f.actual, "written back: %016llx", (unsigned long long)g->digest);
    CD_SAY(f.advice, "the result is copied into the gradient, and nobody else writes to it before "
                     "the end of the backward");
    cd_writer_hold(c->writer, key, &f);
}

static void take_launch(cd_carries *c, const cddp_event *e)
{
    const cddp_event_bucket_launch *b = &e->as.bucket_launch;
    launch *l = cd_table_add(&c->buckets, CD_KEY(e->rank, b->bucket));
    if (l == NULL) return;
    conclude(c, e->rank, l); /* the backward in which it went before was left */
    /* A joined rank reports no result. */
    *l = (launch){.group = b->group,
                  .content = b->digest,
                  .sequence = e->sequence,
                  .is_open = !b->shadow};
    compare_packed(c, e, l);
}

static void take_post(cd_carries *c, const cddp_event *e)
{
    const cddp_event_collective_post *p = &e->as.collective_post;
    if (p->bucket < 0) return;
    int64_t *labels = cd_ranks_add(&c->labels, e->rank);
    if (labels != NULL) *labels = 1;
    launch *l = cd_table_find(&c->buckets, CD_KEY(e->rank, p->bucket));
    if (l == NULL || !l->is_open || l->group != p->group) return;
    window *w = cd_table_add(&c->windows, CD_KEY(e->rank, p->group));
    if (w == NULL) return;
    if (w->buckets == 0) w->first = (uint64_t)p->sequence;
    carried *x = cd_table_add(&c->posts, CD_KEY(e->rank, p->group,
                                                (int64_t)((uint64_t)p->sequence - w->first)));
    if (x == NULL) return;
    *x = (carried){p->sequence, p->bucket, l->sequence + 1};
    w->buckets += l->posts == 0;
    l->under_way++;
    if (l->posts++ > 0 || l->content == 0 || p->digest == 0 || p->digest == l->content) return;
    report(c, e, l,
           &(contradiction){"is not posted as it was launched", "launched:", "posted:", p->bucket,
                            l->content, p->digest});
}

static void take_end(cd_carries *c, const cddp_event *e)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    const window *w = cd_table_find(&c->windows, CD_KEY(e->rank, d->group));
    carried *x = w != NULL
                     ? cd_table_find(&c->posts, CD_KEY(e->rank, d->group,
                                                       (int64_t)((uint64_t)d->sequence - w->first)))
                     : NULL;
    if (x == NULL || x->launch == 0 || x->sequence != d->sequence) return;
    launch *l = cd_table_find(&c->buckets, CD_KEY(e->rank, x->bucket));
    if (l == NULL || !l->is_open || l->sequence + 1 != x->launch) return;
    x->launch = 0;
    l->under_way--;
    l->arrived = d->digest;
}

static void take_result(cd_carries *c, const cddp_event *e)
{
    const cddp_event_bucket_done *b = &e->as.bucket_done;
    launch *l = cd_table_find(&c->buckets, CD_KEY(e->rank, b->bucket));
    if (l == NULL || !l->is_open) return;
    conclude(c, e->rank, l);
    if (l->posts == 0) {
        const int64_t *labels = cd_ranks_find(&c->labels, e->rank);
        /* another program's group, which does not report what its operations carry */
        if (labels == NULL || *labels == 0) return;
        report(c, e, l,
               &(contradiction){"is said to be reduced, but no collective carried it",
                                "a collective of its group that carries it",
                                "none since it was launched", b->bucket, 0, 0});
    } else if (l->under_way > 0) {
        report(c, e, l,
               &(contradiction){"is taken for reduced before its collective has ended",
                                "its collective has ended", "still in flight", b->bucket, 0, 0});
    } else if (l->content != 0 && b->digest != 0 && l->arrived != 0 && b->digest != l->arrived) {
        report(c, e, l,
               &(contradiction){"is not what its collective delivered", "delivered:",
                                "taken as the result:", b->bucket, l->arrived, b->digest});
    } else {
        c->done++;
    }
}

void cd_carries_learn(cd_carries *c, const cddp_event *e)
{
    switch (e->kind) {
    case CDDP_EV_mark_ready:
        take_packed(c, e);
        break;
    case CDDP_EV_grad_final:
        take_final(c, e);
        break;
    case CDDP_EV_bucket_launch:
        take_launch(c, e);
        break;
    case CDDP_EV_hook_call: {
        launch *l = cd_table_find(&c->buckets, CD_KEY(e->rank, e->as.hook_call.bucket));
        if (l != NULL) conclude(c, e->rank, l);
        break;
    }
    case CDDP_EV_collective_post:
        take_post(c, e);
        break;
    case CDDP_EV_collective_done:
        take_end(c, e);
        break;
    case CDDP_EV_bucket_done:
        take_result(c, e);
        break;
    default:
        break;
    }
}
