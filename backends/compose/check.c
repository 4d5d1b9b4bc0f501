/* SPDX-License-Identifier: Apache-2.0 */
/* check:x. Before an operation ranks send each other its arguments and compare them.
**
** check:x         1  fingerprints over a side group of the backend; ranks that disagree all stop
**                    here, with the same message
**                 2  the operation itself (main)
**                 3  digests of the result that every rank must have (content)
**
** check:after:x   the operation is issued at once and runs as it would alone. Fingerprints travel
**                 beside it and are compared when they have arrived. No rank waits for a rank that
**                 it would not wait for anyway:
**                 - an operation that ends on no rank before all have joined it: the rank waits for
**                   the fingerprints;
**                 - a broadcast or another rooted one: the rank only looks, then and at every later
**                   call. When the group is closed the composition's `late` gets what is left.
**
** Results are compared when the inner backend promises equal bits on all ranks and the device has
** numbers: after all-reduce, broadcast and all-gather. Messages between two ranks are not compared.
**
** The second mode finds a disagreement only afterwards: the inner backend acts on it first (Gloo
** without guard ends the process when sizes differ). When an operation fails or times out, the
** fingerprints that arrived explain it.
*/
#include "backends/compose/fingerprint.h"
#include "backends/compose/step.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAIN, SIDE, CONTENT };

/* How long a failed operation waits for fingerprints, and close for the last ones. */
#define EXPLAIN_NS UINT64_C(1000000000)
/* A comparison in words; an error message has room for it and for what stands around it. */
#define VERDICT_BYTES ((size_t)320)
#define LATE_NS UINT64_C(2000000000)

/* check:after: one operation that has not been compared yet. */
typedef struct entry {
    struct entry *next;
    uint64_t number;
    void *side, *content; /* in flight, or NULL */
    bool main_ended, content_wanted, content_posted;
    uint64_t digest;
    void *room; /* (room_bytes) fingerprint, all fingerprints, all digests */
} entry;

typedef struct check_group {
    cd_step_group base;
    uint64_t number; /* collectives so far */
    size_t room_bytes;
    entry *first, *last, *free; /* in order of posting */
    bool differs;               /* a difference was found */
    bool reported;              /* an operation has reported it */
    /* an exchange failed: this rank exchanges no more results */
    bool deaf;
    char verdict[VERDICT_BYTES + 64];
} check_group;

static check_group *check_of(cd_step_group *g) { return (check_group *)(void *)g; }

/* ---- rooms: my fingerprint, those of all ranks, digests of all ranks, my digest ---- */

static size_t room_bytes(uint32_t size)
{
    return (size + 1) * cd_fingerprint_bytes(size) + (size + 1) * sizeof(uint64_t);
}
static cd_fingerprint *room_mine(void *room) { return room; }
static void *room_all(void *room, uint32_t size)
{
    return (unsigned char *)room + cd_fingerprint_bytes(size);
}
static uint64_t *room_digests(void *room, uint32_t size)
{
    return (uint64_t *)(void *)((unsigned char *)room + (size + 1) * cd_fingerprint_bytes(size));
}

static cddp_collective side_call(const cd_step_group *g, void *room)
{
    size_t bytes = cd_fingerprint_bytes(g->size);
    return (cddp_collective){.op = CDDP_OP_ALLGATHER,
                             .input = cd_step_bytes(room, bytes),
                             .output = cd_step_bytes(room_all(room, g->size), g->size * bytes),
                             .timeout_ns = g->timeout_ns};
}

static cddp_collective content_call(const cd_step_group *g, void *room)
{
    uint64_t *digests = room_digests(room, g->size);
    return (cddp_collective){.op = CDDP_OP_ALLGATHER,
                             .input = cd_step_bytes(&digests[g->size], sizeof *digests),
                             .output = cd_step_bytes(digests, g->size * sizeof *digests),
                             .timeout_ns = g->timeout_ns};
}

/* ---- contents ---- */

static bool must_be_equal(const cd_step_group *g, const cddp_collective *c)
{
    bool same =
        c->op == CDDP_OP_BROADCAST || c->op == CDDP_OP_ALLGATHER ||
        (c->op == CDDP_OP_ALLREDUCE && g->node->table.capabilities.order != CDDP_ORDER_UNSPECIFIED);
    return same && (c->output.device->flags & CDDP_DEVICE_VALUES) != 0;
}

static cddp_status digest_of(const cddp_collective *c, uint64_t *digest, cddp_error *err)
{
    CD_TRY(c->output.device->digest(&c->output, digest, err));
    if (*digest == 0) *digest = 1; /* 0 is "not known" */
    return CDDP_OK;
}

static cddp_status compare_contents(const cd_step_group *g, uint64_t number, void *room,
                                    const char *op, cddp_error *err)
{
    char words[VERDICT_BYTES];
    if (cd_contents_agree(room_digests(room, g->size), g->size, g->members, words, sizeof words))
        return CDDP_OK;
    return cd_fail(err, CDDP_E_MISMATCH, "check: after %s %" PRIu64 " %s", op, number, words);
}

static cddp_status compare_calls(const cd_step_group *g, void *room, cddp_error *err)
{
    char words[VERDICT_BYTES];
    if (cd_fingerprints_agree(room_all(room, g->size), g->size, g->members, words, sizeof words))
        return CDDP_OK;
    return cd_fail(err, CDDP_E_MISMATCH, "check: %s", words);
}

/* ---- before ---- */

static cddp_status before_begin(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    room_mine(w->extra)->number = check_of(g)->number++;
    cd_fingerprint_take(&w->call, g->me, g->size, room_mine(w->extra));
    const cddp_collective c = side_call(g, w->extra);
    CD_TRY(cd_step_issue(g, w, SIDE, &c, false, err));
    return CDDP_OK;
}

static cddp_status before_next(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    bool compares = must_be_equal(g, &w->call);
    if (w->inner_index == SIDE) {
        w->is_known_to_all = true;
        CD_TRY(compare_calls(g, w->extra, err));
        w->is_known_to_all = false;
        CD_TRY(cd_step_issue(g, w, MAIN, &w->call, !compares, err));
        return CDDP_OK;
    }
    CD_TRY(digest_of(&w->call, &room_digests(w->extra, g->size)[g->size], err));
    const cddp_collective c = content_call(g, w->extra);
    CD_TRY(cd_step_issue(g, w, CONTENT, &c, true, err));
    return CDDP_OK;
}

static cddp_status before_finish(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    if (w->inner_index != CONTENT) return CDDP_OK;
    CD_TRY(
        compare_contents(g, room_mine(w->extra)->number, w->extra, cddp_op_name(w->call.op), err));
    return CDDP_OK;
}

/* ---- afterwards ---- */

static cddp_status entry_take(check_group *k, entry **taken, cddp_error *err)
{
    cd_step_group *g = &k->base;
    entry *e = k->free;
    if (e != NULL) {
        k->free = e->next;
    } else {
        const cd_arena_mark mark = cd_arena_get_mark(&g->arena);
        void *room = cd_arena_push(&g->arena, k->room_bytes);
        e = cd_arena_push(&g->arena, sizeof *e);
        if (g->arena.exhausted) {
            cd_arena_rewind(&g->arena, mark);
            return cd_fail_memory(err, "a fingerprint of group '%s'", g->name);
        }
        e->room = room;
    }
    *e = (entry){.room = e->room};
    *taken = e;
    return CDDP_OK;
}

static void note_difference(check_group *k, const cddp_error *error)
{
    if (k->differs) return;
    k->differs = true;
    snprintf(k->verdict, sizeof k->verdict, "%.*s", (int)sizeof k->verdict - 1, error->message);
}

/* True when the exchange is over; waits for it when timeout_ns is not 0. A failed exchange is over
** and is not compared. */
static bool exchange_ended(check_group *k, uint32_t index, void **work, uint64_t timeout_ns,
                           bool *arrived)
{
    const cd_inner *inner = &k->base.inner[index];
    bool done = true;
    cddp_status status = timeout_ns != 0 ? inner->table->wait(inner->group, *work, timeout_ns, NULL)
                                         : inner->table->test(inner->group, *work, &done, NULL);
    if (status == CDDP_OK && !done) return false;
    inner->table->release(inner->group, *work);
    *work = NULL;
    *arrived = status == CDDP_OK;
    k->deaf = k->deaf || status != CDDP_OK;
    return true;
}

static void settle_side(check_group *k, entry *e, uint64_t timeout_ns)
{
    cddp_error error = CDDP_ERROR_INIT;
    bool arrived = false;
    if (e->side == NULL || !exchange_ended(k, SIDE, &e->side, timeout_ns, &arrived)) return;
    if (!arrived || compare_calls(&k->base, e->room, &error) == CDDP_OK) return;
    note_difference(k, &error);
    /* results of different calls are not compared; all ranks know that the calls differ */
    e->content_wanted = false;
}

static void settle_content(check_group *k, entry *e, uint64_t timeout_ns)
{
    cddp_error error = CDDP_ERROR_INIT;
    bool arrived = false;
    if (e->content == NULL || !exchange_ended(k, CONTENT, &e->content, timeout_ns, &arrived))
        return;
    if (arrived &&
        compare_contents(&k->base, e->number, e->room,
                         cddp_op_name((cddp_op)room_mine(e->room)->op), &error) != CDDP_OK)
        note_difference(k, &error);
}

/* Digests are sent in the order of the operations, even when they ended here in another order. An
** operation that failed or was abandoned here sends "not known": the others expect one message for
** each. */
static void post_content(check_group *k, entry *e)
{
    e->content_posted = true;
    if (k->deaf) return;
    room_digests(e->room, k->base.size)[k->base.size] = e->digest;
    const cddp_collective c = content_call(&k->base, e->room);
    if (cd_inner_post(&k->base, CONTENT, &c, &e->content, NULL) != CDDP_OK) k->deaf = true;
}

/* Visits the entries in order. Up to `last` it waits, timeout_ns for each exchange. */
static void settle(check_group *k, const entry *last, uint64_t timeout_ns)
{
    bool waits = timeout_ns != 0, posts = true;
    for (entry *e = k->first; e != NULL; e = e->next) {
        settle_side(k, e, waits ? timeout_ns : 0);
        posts = posts && e->side == NULL && (e->main_ended || !e->content_wanted);
        if (posts && e->content_wanted && !e->content_posted) post_content(k, e);
        settle_content(k, e, 0);
        if (e == last) waits = false;
    }
    while (k->first != NULL) {
        entry *e = k->first;
        bool over = e->side == NULL && e->content == NULL &&
                    (!e->content_wanted || e->content_posted) && e->main_ended;
        if (!over) break;
        k->first = e->next;
        if (k->first == NULL) k->last = NULL;
        e->next = k->free;
        k->free = e;
    }
}

static cddp_status report(check_group *k, cddp_error *err)
{
    if (!k->differs) return CDDP_OK;
    k->reported = true;
    return cd_fail(err, CDDP_E_MISMATCH, "%s (found afterwards)", k->verdict);
}

static entry *entry_of(const cd_step_work *w) { return *(entry **)w->extra; }

static cddp_status after_begin(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    check_group *k = check_of(g);
    entry *e = NULL;
    settle(k, NULL, 0);
    CD_TRY(report(k, err));
    CD_TRY(entry_take(k, &e, err));
    e->number = k->number++;
    e->content_wanted = must_be_equal(g, &w->call);
    room_mine(e->room)->number = e->number;
    cd_fingerprint_take(&w->call, g->me, g->size, room_mine(e->room));
    *(entry **)w->extra = e;
    if (k->last != NULL)
        k->last->next = e;
    else
        k->first = e;
    k->last = e;
    const cddp_collective c = side_call(g, e->room);
    cddp_status status = cd_inner_post(g, SIDE, &c, &e->side, err);
    if (status == CDDP_OK) status = cd_step_issue(g, w, MAIN, &w->call, true, err);
    e->main_ended = status != CDDP_OK;
    return status;
}

/* These end on no rank before all ranks have joined. */
static bool synchronizes(cddp_op op)
{
    return op == CDDP_OP_ALLREDUCE || op == CDDP_OP_ALLGATHER || op == CDDP_OP_REDUCE_SCATTER ||
           op == CDDP_OP_ALLTOALL || op == CDDP_OP_BARRIER;
}

static cddp_status after_finish(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    check_group *k = check_of(g);
    entry *e = entry_of(w);
    if (cd_step_is_message(w->call.op)) return CDDP_OK;
    if (e->content_wanted) CD_TRY(digest_of(&w->call, &e->digest, err));
    e->main_ended = true;
    settle(k, e, synchronizes(w->call.op) ? LATE_NS : 0);
    CD_TRY(report(k, err));
    return CDDP_OK;
}

static void after_failed(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    check_group *k = check_of(g);
    if (cd_step_is_message(w->call.op) || err->status == CDDP_E_MISMATCH) return;
    entry_of(w)->main_ended = true;
    settle(k, entry_of(w), EXPLAIN_NS);
    if (!k->differs) return;
    char words[CDDP_ERROR_MESSAGE_BYTES / 3];
    snprintf(words, sizeof words, "%.*s", (int)sizeof words - 1, err->message);
    k->reported = true;
    (void)cd_fail(err, CDDP_E_MISMATCH, "%s; the operation itself: %s", k->verdict, words);
}

static void after_given_up(cd_step_group *g, cd_step_work *w)
{
    (void)g;
    if (!cd_step_is_message(w->call.op)) entry_of(w)->main_ended = true;
}

static void check_closing(cd_step_group *g)
{
    check_group *k = check_of(g);
    if (k->first == NULL && !k->differs) return;
    for (entry *e = k->first; e != NULL; e = e->next) e->main_ended = true;
    bool whole = g->broken == CDDP_OK;
    settle(k, whole ? k->last : NULL, whole ? LATE_NS : 0);
    for (entry *e = k->first; e != NULL && whole; e = e->next) settle_content(k, e, LATE_NS);
    const cddp_composition_options *o = &g->node->composition->options;
    if (k->differs && !k->reported && o->late != NULL)
        o->late(o->context, g->rank->rank, k->verdict);
}

/* ---- both ---- */

static cddp_status check_begin(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    if (cd_step_is_message(w->call.op))
        CD_TRY(cd_step_issue(g, w, MAIN, &w->call, true, err));
    else if (g->node->after)
        CD_TRY(after_begin(g, w, err));
    else
        CD_TRY(before_begin(g, w, err));
    return CDDP_OK;
}

static const cd_step_ops before_ops = {.group_bytes = sizeof(check_group),
                                       .begin = check_begin,
                                       .next = before_next,
                                       .finish = before_finish};
static const cd_step_ops after_ops = {.group_bytes = sizeof(check_group),
                                      .begin = check_begin,
                                      .finish = after_finish,
                                      .failed = after_failed,
                                      .given_up = after_given_up,
                                      .closing = check_closing};

static bool takes_host(const cddp_capabilities *k)
{
    return k->any_device || (k->devices & CDDP_DEVICE_HOST) != 0;
}

/* The side channel must not suffer from the faults that it judges (check:fault:…), nor from their
** cost (check:hier:…). So it is a group of the first backend underneath that takes tensors of the
** host. */
static const cd_node *ground_of(const cd_node *node)
{
    while (node->kind != NULL) {
        uint32_t i = 0;
        while (i + 1 < node->inner_count && !takes_host(&node->inner[i]->table.capabilities)) i++;
        node = node->inner[i];
    }
    return node;
}

static cddp_status check_open(const cddp_backend *backend, cddp_rank *rank,
                              const cddp_group_spec *spec, void **group, cddp_error *err)
{
    cd_step_group *g = NULL;
    cddp_status status = CDDP_OK;
    const cd_node *node = backend->self;
    CD_TRY(
        cd_step_group_create(backend, rank, spec, node->after ? &after_ops : &before_ops, &g, err));
    check_of(g)->room_bytes = room_bytes(g->size);
    g->extra_bytes = node->after ? sizeof(entry *) : room_bytes(g->size);
    static const char *const suffixes[] = {"", "/check", "/content"};
    for (uint32_t i = 0; i < 3; i++) {
        const cd_inner_spec inner = {.node = i == MAIN ? node->inner[0] : ground_of(node),
                                     .suffix = suffixes[i]};
        CD_TRY_OUT(cd_step_group_open_inner(g, spec, &inner, err));
    }
    *group = g;
    g = NULL;
out:
    cd_step_group_destroy(g);
    return status;
}

static cddp_status check_parse(cd_node *node, const char **at, cddp_error *err)
{
    (void)err;
    node->after = strncmp(*at, "after:", 6) == 0;
    if (node->after) *at += 6;
    return CDDP_OK;
}

static cddp_status check_adopt(cd_node *node, cddp_error *err)
{
    cddp_capabilities *k = &node->table.capabilities;
    const cddp_backend *ground = &ground_of(node)->table;
    if ((ground->capabilities.ops & 1u << CDDP_OP_ALLGATHER) == 0 ||
        !takes_host(&ground->capabilities))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "check: needs a backend that gathers tensors of the host; %s does not",
                       ground->name);
    k->async = k->async && node->after;
    k->guards = false; /* it is a guard itself */
    cd_step_fill_table(&node->table);
    return CDDP_OK;
}

const cd_kind cd_kind_check = {.word = "check",
                               .form = "check:[after:]x",
                               .summary = "ranks compare every collective before it starts and its "
                                          "result; or both afterwards, without waiting",
                               .parse = check_parse,
                               .adopt = check_adopt,
                               .open = check_open};
