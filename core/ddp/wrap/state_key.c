/* SPDX-License-Identifier: Apache-2.0 */
/* The state key. In it: every field of reducer, join, buffers and facade that a later decision
** reads, presence and freshness of the gradients, and on exact devices (symbol) the content of
** buckets and gradients.
**
** Not in it, and why:
**   order of arrival      decides rank 0's proposal for the rebuild alone; the layout that is
**                         adopted comes from a broadcast, which is the same on all ranks (REB-07):
**                         whoever explores takes it as an input;
**   order of readiness    is only told (ready_order, LOG-01);
**   previous unused sets  are only told (UNU-11);
**   counters and times    iteration, backward_count, growth, the logger: the place in the program
**                         says as much.
*/
#include "core/ddp/wrap/state_key.h"

#include "cddp/device.h"
#include "core/base/bitset.h"
#include "core/base/hash.h"
#include "core/ddp/wrap/ddp.h"

#include <string.h>

/* Numbers on their way into the key: folded by the hundred, because exploring asks for keys by the
** million. */
#define FACTS_MAX 96
typedef struct facts {
    uint64_t key;
    uint64_t words[FACTS_MAX]; /* (count) */
    size_t count;
} facts;

static void fold(facts *f)
{
    f->key = cd_hash64(f->words, f->count * sizeof *f->words, f->key);
    f->count = 0;
}

static inline void push(facts *f, uint64_t word)
{
    if (f->count == FACTS_MAX) fold(f);
    f->words[f->count++] = word;
}

static void push_u32(facts *f, const uint32_t *items, size_t count)
{
    for (size_t i = 0; i < count; i += 2)
        push(f, (uint64_t)items[i] << 32 | (i + 1 < count ? items[i + 1] : 0));
}

static void push_content(facts *f, const cddp_tensor *t)
{
    uint64_t digest = 0;
    if ((t->device->flags & CDDP_DEVICE_EXACT) == 0) return;
    push(f, t->device->digest(t, &digest, NULL) == CDDP_OK ? digest : UINT64_MAX);
}

static void push_map(facts *f, const cd_unused_map *map)
{
    if (map->count == 0) return;
    push(f, (uint64_t)map->is_posted | (uint64_t)map->is_reduced << 1 |
                (uint64_t)(map->work != NULL) << 2);
    for (size_t i = 0; i < map->count; i += 2)
        push(f, (uint64_t)(uint32_t)map->local[i] << 32 |
                    (i + 1 < map->count ? (uint32_t)map->local[i + 1] : 0));
}

static void push_buckets(facts *f, const cd_bucket_set *set, bool exact)
{
    for (size_t b = 0; b < set->bucket_count; b++) {
        const cd_bucket *bucket = &set->buckets[b];
        uint64_t flags = (uint64_t)bucket->is_launched | (uint64_t)bucket->is_skipped << 1 |
                         (uint64_t)bucket->is_complete << 2;
        push(f, (uint64_t)bucket->pending << 3 | flags);
        if (exact && !bucket->is_sparse) push_content(f, &bucket->flat);
    }
}

static void push_gradients(facts *f, const cd_wrapped *module, bool exact)
{
    const size_t n = module->variable_count;
    /* Sixteen to a word, each shifted to its own place, so that none waits for the one before
    ** it. */
    for (size_t first = 0; first <= n; first += 16) {
        const size_t count = n - first < 16 ? n - first : 16;
        uint64_t kinds = UINT64_C(1) << 63;
        for (size_t i = 0; i < count; i++) {
            const cddp_grad *g = cd_wrapped_variable(module, first + i)->grad;
            const uint64_t fresh = (g->kind != CDDP_GRAD_UNDEFINED) & g->is_fresh;
            kinds |= ((uint64_t)g->kind << 1 | fresh) << (3 * i);
        }
        push(f, kinds);
    }
    for (size_t v = 0; exact && v < n; v++) {
        const cddp_grad *g = cd_wrapped_variable(module, v)->grad;
        if (g->kind == CDDP_GRAD_DENSE) push_content(f, &g->value);
    }
}

static void push_reducer(facts *f, const cd_reducer *r)
{
    size_t n = r->variable_count;
    uint64_t flags = 0;
    const bool bits[] = {r->has_rebuilt,       r->static_graph,      r->static_graph_recorded,
                         r->is_first_hook_due, r->is_after_finalize, r->in_backward,
                         r->has_marked_unused, r->writes_back,       r->scales_in_hook,
                         r->group != NULL,     r->zero.is_assigned};
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) flags |= (uint64_t)bits[i] << i;
    push(f, flags << 8 | (uint64_t)r->phase);
    push(f, (uint64_t)r->next_bucket << 32 | r->incomplete_count);
    push(f, r->divide_factor);
    push(f, (uint64_t)r->arrival_count << 32 | r->unused_count);
    for (size_t i = 0; i < CD_BITSET_WORDS(n); i++) push(f, r->ready[i]);
    push_u32(f, r->unused, r->unused_count);
    if (r->static_graph) {
        push_u32(f, r->hook_counts, n);
        push_u32(f, r->remaining, n);
    }
    push_map(f, &r->used_map);
    /* Before the rebuild the layout is a function of the options, and there is one rebuild at most
    ** (REB-01). */
    if (r->has_rebuilt) push(f, cd_bucket_layout_digest(&r->buckets.layout));
    const bool exact = (cd_module_device(r->module)->flags & CDDP_DEVICE_EXACT) != 0;
    push_buckets(f, &r->buckets, exact);
    push_gradients(f, r->module, exact);
}

uint64_t cd_ddp_state_key(const cddp_ddp *d)
{
    facts f;
    f.key = f.count = 0;
    const cd_join *j = &d->join;
    const bool bits[] = {d->in_forward,
                         d->forward_is_sync,
                         d->hooks_removed,
                         j->is_enabled,
                         j->in_context,
                         j->has_shadow,
                         j->shadowed_first_static,
                         j->notify_work != NULL,
                         j->vote_work != NULL,
                         d->buffers.require_forward_param_sync,
                         d->buffers.is_stale,
                         d->mixed.is_low,
                         d->delayed.work != NULL};
    uint64_t flags = 0;
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) flags |= (uint64_t)bits[i] << i;
    push(&f, (uint64_t)d->no_sync_depth << 32 | flags);
    push(&f, d->group != NULL ? cddp_group_sequence(d->group) : UINT64_MAX);
    if (d->has_reducer) push_reducer(&f, &d->reducer);
    fold(&f);
    return f.key;
}

uint64_t cd_ddp_state_proposal(const cddp_ddp *d)
{
    const cd_reducer *r = &d->reducer;
    if (!d->has_reducer || !cd_reducer_should_rebuild(r) || r->arrival_count == 0) return 0;
    return cd_hash64(r->arrival, r->arrival_count * sizeof *r->arrival, 1);
}
