/* SPDX-License-Identifier: Apache-2.0 */
/* The state key. In it: every KEY row of core/ddp/reducer/reducer_state.def; every field of join,
** buffers and facade that a later decision reads; presence and freshness of the gradients; on exact
** devices (symbol) the content of buckets and gradients. What is not in it, and why, the rows say.
** The logger's counters and times are not in it either: they are only shown.
*/
#include "core/ddp/wrap/state_key.h"

#include "cddp/device.h"
#include "core/base/bitset.h"
#include "core/base/hash.h"
#include "core/ddp/optimizers/zero_step.h"
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

static void push_used_map(facts *f, const cd_reducer *r)
{
    const cd_unused_map *map = &r->used_map;
    if (map->count == 0) return;
    push(f, (uint64_t)map->is_posted | (uint64_t)map->is_reduced << 1 |
                (uint64_t)(map->work != NULL) << 2);
    for (size_t i = 0; i < map->count; i += 2)
        push(f, (uint64_t)(uint32_t)map->local[i] << 32 |
                    (i + 1 < map->count ? (uint32_t)map->local[i + 1] : 0));
}

static bool is_exact(const cd_reducer *r)
{
    return (cd_module_device(r->module)->flags & CDDP_DEVICE_EXACT) != 0;
}

/* Before the rebuild the layout is a function of the options, and there is one rebuild at most
** (REB-01). */
static void push_buckets(facts *f, const cd_reducer *r)
{
    const cd_bucket_set *set = &r->buckets;
    const bool exact = is_exact(r);
    if (r->has_rebuilt) push(f, cd_bucket_layout_digest(&set->layout));
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

static void push_group(facts *f, const cd_reducer *r) { push(f, r->group != NULL); }
static void push_zero(facts *f, const cd_reducer *r)
{
    push(f, r->zero != NULL && r->zero->is_assigned);
}

static void push_u64(facts *f, const uint64_t *items, size_t count)
{
    for (size_t i = 0; i < count; i++) push(f, items[i]);
}

/* The rows that are KEY; the others leave nothing behind. */
#define PUSH_KEY(what) what
#define PUSH_DERIVED(what)
#define PUSH_REPORTED(what)

static void push_reducer(facts *f, const cd_reducer *r)
{
    const size_t n = r->variable_count;
    uint64_t flags = 1;
#define CD_FIXED(type, name)
#define CD_FLAG(kind, life, name) PUSH_##kind(flags = flags << 1 | (uint64_t)r->name;)
#define CD_NUMBER(kind, life, type, name) PUSH_##kind(push(f, (uint64_t)r->name);)
#define CD_TABLE(kind, life, type, name, room, used) PUSH_##kind(push_table(f, r->name, used);)
#define CD_PART(kind, type, name) PUSH_##kind(push_##name(f, r);)
#define push_table(f, items, count) \
    _Generic((items), uint32_t * : push_u32, uint64_t * : push_u64)(f, items, count)
#include "core/ddp/reducer/reducer_state.def"
#undef CD_FIXED
#undef CD_FLAG
#undef CD_NUMBER
#undef CD_TABLE
#undef CD_PART
    push(f, flags);
    push_gradients(f, r->module, is_exact(r));
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
                         d->shadow.in_context,
                         d->shadow.is_made,
                         d->shadow.passed_first_static,
                         j->notify_work != NULL,
                         j->vote_work != NULL,
                         d->buffers.require_forward_param_sync,
                         d->buffers.is_stale,
                         d->mixed.is_low,
                         d->delayed.work != NULL,
                         !d->has_reducer && d->reducer.phase == CD_REDUCER_FAILED,
                         d->config.strict && d->awaits_backward,
                         d->config.strict && d->grad_mode};
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
