/* SPDX-License-Identifier: Apache-2.0 */
/* A complete backend over shared memory, and twenty-two broken ones, each with one defect that
** `cddp-verify backend-conformance` must name. Those with a number were found in a real library
** (class K of docs/zoo.md).
**
**  card_clean      nothing is wrong                                              ─
**  card_unfused    sums of more than 1,024 elements miss the last rank   ZOO-94  allreduce
**  card_clobbers   reduce uses the outputs of other ranks than the root  ZOO-96  reduce
**  card_root_zeros reduce-scatter with given shares: rank 0 gives zeros  ZOO-98  reduce_scatter
**  card_in_place   an all-reduce in place adds its own share twice       ZOO-99  in place
**  card_overwrites from 64 KiB a reduce overwrites its input             ZOO-100 reduce, input
**  card_segments   an all-reduce in place is wrong behind 256 elements   ZOO-102 in place
**  card_torn       gathered shares of more than 128 bytes are torn there ZOO-104 gather
**  card_tail       what a length leaves over by four is not broadcast    ZOO-105 broadcast
**  card_empty      an empty all-gather is an error                       ZOO-106 allgather of 0
**  card_early      an all-to-all ends before its input has been read     ZOO-108 alltoall, reuse
**  card_nothing    an all-reduce of i64 leaves the input as the result   ZOO-109 allreduce i64
**  card_silent     declares a guard and lets differing counts pass       ZOO-111 guard
**  card_averages   long averages are divided by an even number of ranks          allreduce, average
**  card_short      an all-gather with given shares: rank 0's is one too short    allgather, uneven
**  card_own_lost   an all-gather in place loses its own share                    allgather in place
**  card_own_twice  a reduce-scatter in place adds its own share twice            same, in place
**  card_flight     a gather loses its result to the next one that is posted      allgather, flight
**  card_beside     a reduce-scatter loses its own to a gather behind it          same, in flight
**  card_counts     numbers of operations are kept in 32 bits                     with --counters
**  card_crashes    rank 1 crashes in a broadcast of 17 elements                  rank 1, broadcast
**  card_leaves     rank 1 ends its process with 0 there                          rank 1, broadcast
**  card_spins      rank 1 never returns from it                                  rank 1, broadcast
**
** Every rank copies its input into its slot and reads the other slots when it waits. A slot is
** written again after all ranks have read it. Ranks find the memory through the rendezvous that
** the program binds as `self`.
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/device.h"
#include "cddp/plugin.h"
#include "cddp/rendezvous.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define RANKS 4u
#define SLOT_BYTES ((size_t)4 << 20)
#define BOX_BYTES ((size_t)64 << 10)
#define PATIENCE_S 60

typedef enum plant {
    CLEAN,
    UNFUSED,
    CLOBBERS,
    ROOT_ZEROS,
    IN_PLACE,
    OVERWRITES,
    SEGMENTS,
    TORN,
    TAIL,
    EMPTY,
    EARLY,
    NOTHING,
    SILENT,
    AVERAGES,
    SHORT,
    OWN_LOST,
    OWN_TWICE,
    FLIGHT,
    BESIDE,
    COUNTS,
    CRASHES,
    LEAVES,
    SPINS
} plant;

typedef struct shared {
    atomic_uint present;
    atomic_ullong posted[RANKS], left[RANKS];
    long long numel[RANKS];            /* of the operation in the slot */
    atomic_ullong full[RANKS][RANKS];  /* messages sent, from and to */
    atomic_ullong empty[RANKS][RANKS]; /* messages taken */
    _Alignas(64) unsigned char box[RANKS][RANKS][BOX_BYTES];
    _Alignas(64) unsigned char slot[RANKS][SLOT_BYTES];
} shared;

typedef struct work {
    cddp_collective call;
    int64_t counts[RANKS], send_counts[RANKS];
    unsigned long long number;
    bool used, ended;
    cddp_status outcome;
} work;

typedef struct group {
    shared *memory;
    plant plant;
    bool guard;
    uint32_t me, size;
    unsigned long long number; /* collectives posted */
    work works[8];
    work *open;       /* posted and not yet run, or NULL */
    cddp_tensor late; /* EARLY: slots that peers still have to read */
    bool is_late;
} group;

/* ---- waiting ---- */

static bool reached(atomic_ullong *counter, unsigned long long value)
{
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (atomic_load_explicit(counter, memory_order_acquire) < value) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begin.tv_sec > PATIENCE_S) return false;
        sched_yield();
    }
    return true;
}

static bool all_reached(const group *g, atomic_ullong *counters, unsigned long long value)
{
    for (uint32_t r = 0; r < g->size; r++)
        if (!reached(&counters[r], value)) return false;
    return true;
}

static cddp_status fail_missing(cddp_error *err)
{
    return cddp_error_set(err, CDDP_E_TIMEOUT, "card: a rank did not come within %d s", PATIENCE_S);
}

/* ---- groups ---- */

static cddp_status find_memory(group *g, const cddp_rendezvous *meeting, const char *name,
                               cddp_error *err)
{
    char key[200], path[64] = "";
    size_t bytes = sizeof path;
    snprintf(key, sizeof key, "card/%s", name);
    if (g->me == 0) snprintf(path, sizeof path, "/cddp-card-%ld-%p", (long)getpid(), (void *)g);
    int file = g->me == 0 ? shm_open(path, O_CREAT | O_EXCL | O_RDWR, 0600) : -1;
    if (g->me == 0 && (file < 0 || ftruncate(file, sizeof *g->memory) != 0))
        return cddp_error_set(err, CDDP_E_IO, "card: no shared memory");
    cddp_status status =
        g->me == 0 ? meeting->set(meeting->self, key, path, strlen(path) + 1, err)
                   : meeting->get(meeting->self, key, meeting->timeout_ns, path, &bytes, err);
    if (status != CDDP_OK) return status;
    if (g->me != 0) file = shm_open(path, O_RDWR, 0600);
    void *memory = file >= 0
                       ? mmap(NULL, sizeof *g->memory, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                       : MAP_FAILED;
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) return cddp_error_set(err, CDDP_E_IO, "card: no shared memory");
    g->memory = memory;
    atomic_fetch_add(&g->memory->present, 1);
    while (atomic_load(&g->memory->present) < g->size) sched_yield();
    if (g->me == 0) shm_unlink(path);
    return CDDP_OK;
}

static void card_close(void *self)
{
    group *g = self;
    if (g != NULL && g->memory != NULL) munmap(g->memory, sizeof *g->memory);
    free(g);
}

static cddp_status open_planted(plant planted, const cddp_backend *backend,
                                const cddp_group_spec *spec, void **opened, cddp_error *err)
{
    if (spec->group_size > RANKS || backend->self == NULL)
        return cddp_error_set(err, CDDP_E_LIMIT, "card: at most %u ranks, with a rendezvous",
                              RANKS);
    group *g = calloc(1, sizeof *g);
    if (g == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "card: no memory");
    g->plant = planted;
    g->guard = spec->options != NULL && strcmp(spec->options, "guard=1") == 0;
    g->me = spec->group_rank;
    g->size = spec->group_size;
    cddp_status status = find_memory(g, backend->self, spec->name, err);
    if (status == CDDP_OK)
        *opened = g;
    else
        card_close(g);
    return status;
}

/* ---- operations ---- */

static bool takes_part_of_all(cddp_op op) { return op != CDDP_OP_SEND && op != CDDP_OP_RECV; }

static void *bytes_of(const cddp_tensor *t)
{
    return (unsigned char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

static size_t size_of(const cddp_tensor *t)
{
    return (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
}

/* numel elements of what rank r gave, from `start`. */
static cddp_tensor given(const group *g, const cddp_collective *c, uint32_t r, int64_t start,
                         int64_t numel)
{
    return cddp_tensor_of(c->output.device, g->memory->slot[r], start, c->output.dtype, &numel, 1);
}

static bool gives(const group *g, const cddp_collective *c)
{
    bool is_root = c->root == g->me;
    return c->op != CDDP_OP_BARRIER && (c->op != CDDP_OP_SCATTER || is_root) &&
           (c->op != CDDP_OP_BROADCAST || is_root);
}

static const cddp_tensor *gift(const cddp_collective *c)
{
    return c->op == CDDP_OP_BROADCAST ? &c->output : &c->input;
}

/* out = the reduction of every rank's elements from `start`. */
static cddp_status reduce_all(group *g, const cddp_collective *c, const cddp_tensor *out,
                              int64_t start, cddp_error *err)
{
    const cddp_device *d = out->device;
    int64_t n = cddp_tensor_numel(out);
    uint32_t ranks =
        g->plant == UNFUSED && c->op == CDDP_OP_ALLREDUCE && n > 1024 ? g->size - 1 : g->size;
    const cddp_red_op op = c->reduce_op == CDDP_RED_AVG ? CDDP_RED_SUM : c->reduce_op;
    cddp_tensor first = given(g, c, 0, start, n);
    cddp_status status = d->copy(out, &first, NULL, err);
    if (status == CDDP_OK && g->plant == ROOT_ZEROS && c->counts != NULL)
        status = d->fill(out, 0.0, NULL, err);
    for (uint32_t r = 1; r < ranks && status == CDDP_OK; r++) {
        cddp_tensor next = given(g, c, r, start, n);
        status = d->reduce(op, out, &next, NULL, err);
    }
    if (status == CDDP_OK && c->reduce_op == CDDP_RED_AVG)
        status = d->divide(out, out, g->plant == AVERAGES && n > 1024 ? g->size / 2 * 2 : g->size,
                           NULL, err);
    return status;
}

/* Copies count elements of rank r, from `start`, behind what was copied before. */
static cddp_status take(group *g, const cddp_collective *c, uint32_t r, int64_t start,
                        int64_t count, int64_t *at, cddp_error *err)
{
    const cddp_tensor from = given(g, c, r, start, count),
                      to = cddp_tensor_slice(&c->output, *at, count);
    *at += count;
    return c->output.device->copy(&to, &from, NULL, err);
}

static cddp_status allreduce(group *g, const cddp_collective *c, cddp_error *err)
{
    const int64_t n = cddp_tensor_numel(&c->output);
    const bool in_place = c->input.storage == c->output.storage;
    const cddp_tensor mine = given(g, c, g->me, 0, n);
    if (g->plant == NOTHING && c->output.dtype == CDDP_I64)
        return c->output.device->copy(&c->output, &mine, NULL, err);
    cddp_status status = reduce_all(g, c, &c->output, 0, err);
    bool adds_twice = in_place && c->reduce_op == CDDP_RED_SUM &&
                      (g->plant == IN_PLACE || (g->plant == SEGMENTS && n > 256));
    if (status != CDDP_OK || !adds_twice) return status;
    const int64_t from = g->plant == SEGMENTS ? 256 : 0;
    const cddp_tensor again = given(g, c, g->me, from, n - from),
                      out = cddp_tensor_slice(&c->output, from, n - from);
    return out.device->reduce(CDDP_RED_SUM, &out, &again, NULL, err);
}

static cddp_status reduce(group *g, const cddp_collective *c, cddp_error *err)
{
    if (g->plant == CLOBBERS && c->output.device != NULL && c->root != g->me)
        return reduce_all(g, c, &c->output, 0, err);
    if (g->plant == OVERWRITES && size_of(&c->input) >= 65536)
        return c->input.device->fill(&c->input, 0.0, NULL, err);
    return c->root == g->me ? reduce_all(g, c, &c->output, 0, err) : CDDP_OK;
}

static cddp_status gather(group *g, const cddp_collective *c, cddp_error *err)
{
    const int64_t n = cddp_tensor_numel(&c->input);
    int64_t at = 0;
    cddp_status status = CDDP_OK;
    for (uint32_t r = 0; r < g->size && c->root == g->me && status == CDDP_OK; r++) {
        status = take(g, c, r, 0, n, &at, err);
        const int64_t line = 128 / (int64_t)cddp_dtype_bytes(c->input.dtype);
        if (g->plant != TORN || n <= line || r + 1 != g->size || status != CDDP_OK) continue;
        const cddp_tensor behind = cddp_tensor_slice(&c->output, at - n + line, n - line),
                          old = given(g, c, r, 0, n - line);
        status = c->output.device->copy(&behind, &old, NULL, err);
    }
    return status;
}

static int64_t share_of(const group *g, const work *w, const int64_t *counts, uint32_t r)
{
    const int64_t in = cddp_tensor_numel(&w->call.input), out = cddp_tensor_numel(&w->call.output);
    if (counts != NULL) return counts[r];
    return w->call.op == CDDP_OP_ALLGATHER        ? in
           : w->call.op == CDDP_OP_REDUCE_SCATTER ? out
                                                  : in / (int64_t)g->size;
}

/* A share of one rank, where it lies among those of all ranks. */
static cddp_status spoil_in_place(group *g, const cddp_collective *c, int64_t before,
                                  cddp_error *err)
{
    const cddp_tensor mine = given(g, c, g->me, before, cddp_tensor_numel(&c->output));
    if (g->plant == OWN_LOST && c->op == CDDP_OP_ALLGATHER)
        return c->input.device->fill(&c->input, 0.0, NULL, err);
    if (g->plant == OWN_TWICE && c->op == CDDP_OP_REDUCE_SCATTER)
        return c->output.device->reduce(CDDP_RED_SUM, &c->output, &mine, NULL, err);
    return CDDP_OK;
}

static cddp_status exchange(group *g, const work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    const bool in_place = c->input.storage == c->output.storage;
    cddp_status status = CDDP_OK;
    int64_t before = 0, at = 0;
    /* The splits of the conformance tests: every rank sends rank r as many elements as r expects
    ** from each. */
    for (uint32_t r = 0; r < g->me && c->op != CDDP_OP_ALLGATHER; r++)
        before += share_of(g, w, c->op == CDDP_OP_ALLTOALL ? c->send_counts : c->counts, r);
    if (c->op == CDDP_OP_REDUCE_SCATTER) {
        status = reduce_all(g, c, &c->output, before, err);
        return status == CDDP_OK && in_place ? spoil_in_place(g, c, before, err) : status;
    }
    for (uint32_t r = 0; r < g->size && status == CDDP_OK; r++) {
        const int64_t share = share_of(g, w, c->counts, r);
        const bool is_short = g->plant == SHORT && c->op == CDDP_OP_ALLGATHER &&
                              c->counts != NULL && r == 0 && share > 0;
        status = take(g, c, r, before, share - is_short, &at, err);
        at += is_short;
    }
    return status == CDDP_OK && in_place ? spoil_in_place(g, c, 0, err) : status;
}

static cddp_status broadcast(group *g, const cddp_collective *c, cddp_error *err)
{
    const int64_t n = cddp_tensor_numel(&c->output);
    int64_t at = 0;
    if (c->root == g->me) return CDDP_OK;
    return take(g, c, c->root, 0, g->plant == TAIL && n > 4 ? n / 4 * 4 : n, &at, err);
}

static cddp_status compute(group *g, const work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    int64_t at = 0;
    switch (c->op) {
    case CDDP_OP_ALLREDUCE:
        return allreduce(g, c, err);
    case CDDP_OP_REDUCE:
        return reduce(g, c, err);
    case CDDP_OP_BROADCAST:
        return broadcast(g, c, err);
    case CDDP_OP_GATHER:
        return gather(g, c, err);
    case CDDP_OP_SCATTER:
        return take(g, c, c->root, (int64_t)g->me * cddp_tensor_numel(&c->output),
                    cddp_tensor_numel(&c->output), &at, err);
    case CDDP_OP_ALLGATHER:
    case CDDP_OP_REDUCE_SCATTER:
    case CDDP_OP_ALLTOALL:
        return exchange(g, w, err);
    default:
        return CDDP_OK;
    }
}

static cddp_status check_guard(const group *g, cddp_error *err)
{
    for (uint32_t r = 1; r < g->size && g->guard && g->plant != SILENT; r++)
        if (g->memory->numel[r] != g->memory->numel[0])
            return cddp_error_set(err, CDDP_E_MISMATCH,
                                  "card: rank %u gives %lld elements, rank 0 gives %lld", r,
                                  g->memory->numel[r], g->memory->numel[0]);
    return CDDP_OK;
}

static cddp_status run(group *g, work *w, cddp_error *err)
{
    const uint32_t peer = w->call.root;
    if (!takes_part_of_all(w->call.op)) {
        if (w->call.op == CDDP_OP_SEND) return CDDP_OK;
        if (!reached(&g->memory->full[peer][g->me],
                     atomic_load(&g->memory->empty[peer][g->me]) + 1))
            return fail_missing(err);
        memcpy(bytes_of(&w->call.output), g->memory->box[peer][g->me], size_of(&w->call.output));
        atomic_fetch_add(&g->memory->empty[peer][g->me], 1);
        return CDDP_OK;
    }
    if (!all_reached(g, g->memory->posted, w->number)) return fail_missing(err);
    cddp_status status = check_guard(g, err);
    if (status == CDDP_OK) status = compute(g, w, err);
    atomic_store(&g->memory->left[g->me], w->number);
    return status;
}

static cddp_status finish(group *g, work *w, cddp_error *err)
{
    if (!w->ended) w->outcome = run(g, w, err);
    w->ended = true;
    if (g->open == w) g->open = NULL;
    return w->outcome;
}

/* Now peers may read what we gave. */
static void publish(group *g, const cddp_tensor *t, unsigned long long number)
{
    if (t != NULL) memcpy(g->memory->slot[g->me], bytes_of(t), size_of(t));
    atomic_store_explicit(&g->memory->posted[g->me], number, memory_order_release);
}

static cddp_status post_message(group *g, const cddp_collective *c, cddp_error *err)
{
    const uint32_t peer = c->root;
    if (c->op == CDDP_OP_RECV) return CDDP_OK;
    if (!reached(&g->memory->empty[g->me][peer], atomic_load(&g->memory->full[g->me][peer])))
        return fail_missing(err);
    memcpy(g->memory->box[g->me][peer], bytes_of(&c->input), size_of(&c->input));
    atomic_fetch_add(&g->memory->full[g->me][peer], 1);
    return CDDP_OK;
}

static cddp_status post_collective(group *g, work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    /* A rank that next waits in a barrier still has its memory; the slots of the others have the
    ** right bytes. */
    if (g->is_late) publish(g, c->op == CDDP_OP_BARRIER ? &g->late : NULL, g->number);
    g->is_late = false;
    const work *before = g->open;
    cddp_status status = before != NULL ? finish(g, g->open, err) : CDDP_OK;
    const bool is_lost = before != NULL && c->op == CDDP_OP_ALLGATHER &&
                         ((g->plant == FLIGHT && before->call.op == CDDP_OP_ALLGATHER) ||
                          (g->plant == BESIDE && before->call.op == CDDP_OP_REDUCE_SCATTER));
    if (status == CDDP_OK && is_lost)
        status = before->call.output.device->fill(&before->call.output, 0.0, NULL, err);
    if (status != CDDP_OK) return status;
    if (g->plant == EMPTY && c->op == CDDP_OP_ALLGATHER && size_of(&c->output) == 0)
        return cddp_error_set(err, CDDP_E_BACKEND, "card: division by zero");
    if (!all_reached(g, g->memory->left, g->number)) return fail_missing(err);
    w->number = ++g->number;
    g->open = w;
    g->memory->numel[g->me] =
        c->op == CDDP_OP_ALLREDUCE ? (long long)cddp_tensor_numel(&c->input) : 0;
    /* Peers of the last rank read its input when they come to it; the last rank itself is done
    ** before that. */
    g->is_late =
        g->plant == EARLY && c->op == CDDP_OP_ALLTOALL && g->me + 1 == g->size && g->size > 1;
    g->late = c->input;
    if (g->is_late)
        memcpy(g->memory->slot[g->me], bytes_of(&c->input),
               size_of(&c->input)); /* the bytes that it reads itself */
    else
        publish(g, gives(g, c) ? gift(c) : NULL, w->number);
    return CDDP_OK;
}

/* What ends a rank, or keeps it for ever. */
static void misbehave(const group *g, const cddp_collective *c)
{
    volatile bool is_wanted = false;
    if (g->me != 1 || c->op != CDDP_OP_BROADCAST || cddp_tensor_numel(&c->output) != 17) return;
    if (g->plant == CRASHES) abort();
    if (g->plant == LEAVES) exit(0);
    while (g->plant == SPINS && !is_wanted) {
    }
}

static cddp_status card_post(void *self, const cddp_collective *c, void **posted, cddp_error *err)
{
    group *g = self;
    work *w = NULL;
    misbehave(g, c);
    if (g->plant == COUNTS && c->sequence > UINT32_MAX)
        return cddp_error_set(err, CDDP_E_BACKEND, "card: operation %u was posted before",
                              (unsigned)(c->sequence & UINT32_MAX));
    for (size_t i = 0; i < sizeof g->works / sizeof g->works[0] && w == NULL; i++)
        if (!g->works[i].used) w = &g->works[i];
    if (w == NULL) return cddp_error_set(err, CDDP_E_LIMIT, "card: too many operations");
    *w = (work){.call = *c};
    for (uint32_t r = 0; r < g->size; r++) {
        w->counts[r] = c->counts != NULL ? c->counts[r] : 0;
        w->send_counts[r] = c->send_counts != NULL ? c->send_counts[r] : 0;
    }
    if (c->counts != NULL) w->call.counts = w->counts;
    if (c->send_counts != NULL) w->call.send_counts = w->send_counts;
    cddp_status status =
        takes_part_of_all(c->op) ? post_collective(g, w, err) : post_message(g, c, err);
    if (status != CDDP_OK) return status;
    w->used = true;
    *posted = w;
    return CDDP_OK;
}

static cddp_status card_wait(void *self, void *posted, uint64_t timeout_ns, cddp_error *err)
{
    group *g = self;
    work *w = posted;
    (void)timeout_ns;
    /* The one that ends early takes its own part from the slot and does not wait for itself to be
    ** read. */
    if (g->is_late && g->open == w) {
        for (uint32_t r = 0; r + 1 < g->size; r++)
            if (!reached(&g->memory->posted[r], w->number)) return fail_missing(err);
        w->outcome = compute(g, w, err);
        atomic_store(&g->memory->left[g->me], w->number);
        w->ended = true;
        g->open = NULL;
    }
    return finish(g, w, err);
}

static cddp_status card_test(void *self, void *posted, bool *done, cddp_error *err)
{
    cddp_status status = card_wait(self, posted, 0, err);
    if (status == CDDP_OK) *done = true;
    return status;
}

static void card_release(void *self, void *posted)
{
    group *g = self;
    work *w = posted;
    if (g->open == w) (void)finish(g, w, NULL);
    w->used = false;
}

/* ---- the tables ---- */

#define CARD(id, plant_id, has_guard)                                                         \
    static cddp_status id##_open(const cddp_backend *backend, cddp_rank *rank,                \
                                 const cddp_group_spec *spec, void **opened, cddp_error *err) \
    {                                                                                         \
        (void)rank;                                                                           \
        return open_planted(plant_id, backend, spec, opened, err);                            \
    }                                                                                         \
    static const cddp_backend id = {.size = sizeof(cddp_backend),                             \
                                    .abi = CDDP_BACKEND_ABI,                                  \
                                    .name = #id,                                              \
                                    .capabilities = {.size = sizeof(cddp_capabilities),       \
                                                     .ops = (1u << CDDP_OP_COUNT) - 1,        \
                                                     .dtypes = CDDP_DTYPE_BIT(CDDP_F32) |     \
                                                               CDDP_DTYPE_BIT(CDDP_I64),      \
                                                     .reduce_ops = 1u << CDDP_RED_SUM |       \
                                                                   1u << CDDP_RED_MAX |       \
                                                                   1u << CDDP_RED_AVG,        \
                                                     .devices = CDDP_DEVICE_HOST,             \
                                                     .in_place = true,                        \
                                                     .order = CDDP_ORDER_SAME,                \
                                                     .world_size_max = RANKS,                 \
                                                     .guards = has_guard},                    \
                                    .open = id##_open,                                        \
                                    .close = card_close,                                      \
                                    .post = card_post,                                        \
                                    .test = card_test,                                        \
                                    .wait = card_wait,                                        \
                                    .release = card_release};

CARD(card_clean, CLEAN, true)
CARD(card_unfused, UNFUSED, false)
CARD(card_clobbers, CLOBBERS, false)
CARD(card_root_zeros, ROOT_ZEROS, false)
CARD(card_in_place, IN_PLACE, false)
CARD(card_overwrites, OVERWRITES, false)
CARD(card_segments, SEGMENTS, false)
CARD(card_torn, TORN, false)
CARD(card_tail, TAIL, false)
CARD(card_empty, EMPTY, false)
CARD(card_early, EARLY, false)
CARD(card_nothing, NOTHING, false)
CARD(card_silent, SILENT, true)
CARD(card_averages, AVERAGES, false)
CARD(card_short, SHORT, false)
CARD(card_own_lost, OWN_LOST, false)
CARD(card_own_twice, OWN_TWICE, false)
CARD(card_flight, FLIGHT, false)
CARD(card_beside, BESIDE, false)
CARD(card_counts, COUNTS, false)
CARD(card_crashes, CRASHES, false)
CARD(card_leaves, LEAVES, false)
CARD(card_spins, SPINS, false)

static const cddp_backend *const backends[] = {&card_clean,      &card_unfused,   &card_clobbers,
                                               &card_root_zeros, &card_in_place,  &card_overwrites,
                                               &card_segments,   &card_torn,      &card_tail,
                                               &card_empty,      &card_early,     &card_nothing,
                                               &card_silent,     &card_averages,  &card_short,
                                               &card_own_lost,   &card_own_twice, &card_flight,
                                               &card_beside,     &card_counts,    &card_crashes,
                                               &card_leaves,     &card_spins,     NULL};

CDDP_PLUGIN_EXPORT extern const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "card backends",
                                    .version = "1",
                                    .backends = backends};
