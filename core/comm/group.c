/* SPDX-License-Identifier: Apache-2.0 */
/* The choke point of all communication: numbering, operand checks, events, calls into the backend
** table.
**
** Invariants (cd_group_audit):
**   G1  every operation passed to the backend has its own sequence number, consecutive per group
**       (C10-03). A failed operation keeps its number: the k-th must be the k-th on every rank;
**   G2  a work is either free or holds a backend work that has not been released;
**   G3  works in flight never exceed works_max. Their memory is allocated in chunks, the first one
**       at creation. It grows only when more are in flight than ever before;
**   G4  an operation that the backend does not declare never reaches it: the caller gets an error
**       that names it;
**   G5  every post has exactly one collective_done, unless its work is released or its group
**       destroyed before it ends.
**
** Not here: operand checks (operands.c), the life of a work (work.c), checks of the table
** (adopt.c), meaning of operations (backends), choice of operations (ddp, hooks).
*/
#include "core/comm/group.h"
#include "core/comm/hold.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/bitset.h"
#include "core/base/error.h"
#include "core/base/sized.h"
#include "core/base/hash.h"
#include "core/comm/adopt.h"
#include "core/comm/operands.h"
#include "core/trace/attach.h"
#include "core/trace/tracer.h"

#include <string.h>

/* The group, its first chunk of works and a short name. */
#define GROUP_BLOCK_BYTES (sizeof(cddp_group) + sizeof(cd_work_chunk) + 192)

void cd_group_audit(const cddp_group *g)
{
    CD_ASSERT(g->in_flight <= g->works_max); /* G3 */
    uint32_t busy = 0;
    uint32_t made = 0;
    for (const cd_work_chunk *c = g->chunks; c != NULL; made += c->made, c = c->next)
        for (uint32_t i = 0; i < c->made; i++) {
            const cddp_work *w = &c->works[i];
            busy += w->busy;
            CD_ASSERT(!w->busy || w->backend_work != NULL);              /* G2 */
            CD_ASSERT(!w->busy || w->collective.sequence < g->sequence); /* G1 */
        }
    CD_ASSERT(made == g->works_made && made <= g->works_max);
    CD_ASSERT(busy == g->in_flight);
}

/* Group ids must be equal on all members without communication, so they follow from the name and
** the members. */
static uint32_t group_id(const cddp_group_spec *spec)
{
    uint64_t h = cd_hash_text(spec->name);
    for (uint32_t i = 0; i < spec->group_size; i++) h = cd_hash_mix(h, spec->members[i]);
    return (uint32_t)(h & 0x7fffffffu);
}

static uint64_t members_digest(const cddp_group *g)
{
    uint64_t h = g->group_size;
    for (uint32_t i = 0; i < g->group_size; i++) h = cd_hash_mix(h, cd_group_member(g, i));
    return h;
}

static cddp_status check_options(const cddp_group_options *o, cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(o, cddp_group_options, spec, err));
    const cddp_group_spec *s = &o->spec;
    if (o->backend == NULL || o->rank == NULL)
        return cd_fail(err, CDDP_E_ARG, "a group needs a backend and a rank; %s is NULL",
                       o->backend == NULL ? "backend" : "rank");
    if (s->name == NULL || s->name[0] == '\0')
        return cd_fail(err, CDDP_E_ARG, "a group needs a name");
    if (s->group_size == 0 || s->members == NULL)
        return cd_fail(err, CDDP_E_ARG, "group '%s' has no members", s->name);
    if (s->group_rank >= s->group_size)
        return cd_fail(err, CDDP_E_ARG, "group '%s': group_rank %u is not below group_size %u",
                       s->name, s->group_rank, s->group_size);
    if (s->members[s->group_rank] != o->rank->rank)
        return cd_fail(err, CDDP_E_ARG,
                       "group '%s': member %u is world rank %u, but this is rank %u", s->name,
                       s->group_rank, s->members[s->group_rank], o->rank->rank);
    return CDDP_OK;
}

/* Members are ranks of the world, each at most once. */
static cddp_status check_members(const cddp_group_spec *s, const cddp_rank *rank, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    size_t words = CD_BITSET_WORDS((size_t)rank->world_size);
    uint64_t *seen = cd_allocate_array(rank->allocator, words, sizeof *seen);
    if (seen == NULL) return cd_fail_memory(err, "group '%s'", s->name);
    for (uint32_t i = 0; i < s->group_size && status == CDDP_OK; i++) {
        uint32_t member = s->members[i];
        if (member >= rank->world_size) {
            status = cd_fail(err, CDDP_E_ARG, "group '%s' lists rank %u of a world of %u", s->name,
                             member, rank->world_size);
        } else if (cd_bitset_has(seen, member)) {
            status = cd_fail(err, CDDP_E_ARG, "group '%s' lists rank %u twice", s->name, member);
        } else {
            cd_bitset_add(seen, member);
        }
    }
    cd_release(rank->allocator, seen, words * sizeof *seen);
    return status;
}

static cddp_status add_chunk(cddp_group *group, cddp_error *err)
{
    cd_work_chunk *chunk = cd_arena_push(&group->arena, sizeof *chunk);
    if (chunk == NULL)
        return cd_fail_memory(err, "more than %u operations in flight in group '%s'",
                              group->works_made, group->name);
    chunk->next = group->chunks;
    group->chunks = chunk;
    return CDDP_OK;
}

/* A world of thousands of ranks would otherwise keep thousands of lists of thousands. */
static cddp_status keep_members(cddp_group *g, const cddp_group_spec *spec, cddp_error *err)
{
    g->first_member = spec->members[0];
    g->member_step = spec->group_size > 1 ? spec->members[1] - spec->members[0] : 0;
    uint32_t i = 0;
    while (i < spec->group_size && cd_group_member(g, i) == spec->members[i]) i++;
    if (i == spec->group_size) return CDDP_OK;
    g->members = cd_arena_array(&g->arena, spec->group_size, sizeof *g->members);
    CD_TRY(cd_arena_check(&g->arena, err, "group '%s' of %u", spec->name, spec->group_size));
    memcpy(g->members, spec->members, spec->group_size * sizeof *g->members);
    return CDDP_OK;
}

cddp_status cddp_group_create(const cddp_group_options *given, cddp_group **group, cddp_error *err)
{
    CD_TRY(check_options(given, err));
    cddp_group_options own = {.size = sizeof own}, *options = &own;
    cd_sized_copy(&own, sizeof own, given);
    own.spec.size = sizeof own.spec; /* it lies inside: the size of the whole says it */
    if (group == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_group_create: group is NULL");
    const cddp_group_spec *spec = &options->spec;
    cddp_backend table;
    CD_TRY(cd_backend_adopt(options->backend, &table, err));
    if (spec->group_size > table.capabilities.world_size_max)
        return cd_fail(err, CDDP_E_LIMIT, "group '%s' has %u members; backend %s takes at most %u",
                       spec->name, spec->group_size, table.name, table.capabilities.world_size_max);
    CD_TRY(check_members(spec, options->rank, err));
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, options->rank->allocator, GROUP_BLOCK_BYTES);
    cddp_group *g = cd_arena_push(&arena, sizeof *g);
    if (g == NULL) return cd_fail_memory(err, "group '%s'", spec->name);
    g->arena = arena;
    g->backend = options->backend;
    g->table = table;
    g->rank = options->rank;
    g->tracer = cd_tracer_attach(options->rank, options->tracer);
    g->group_rank = spec->group_rank;
    g->group_size = spec->group_size;
    g->timeout_ns = spec->timeout_ns;
    g->id = group_id(spec);
    g->sequence = options->sequence_start;
    g->works_max = options->works_max != 0 ? options->works_max : 1024;
    g->in_flight_max = spec->in_flight_max;
    g->name = cd_arena_strdup(&g->arena, spec->name);
    if (spec->options != NULL) g->options = cd_arena_strdup(&g->arena, spec->options);
    CD_TRY_OUT(cd_arena_check(&g->arena, err, "group '%s'", spec->name));
    CD_TRY_OUT(add_chunk(g, err));
    CD_TRY_OUT(keep_members(g, spec, err));
    CD_TRY_OUT(g->table.open_traced(g->backend, g->rank, spec, g->tracer, &g->backend_group, err));
    if (g->tracer != NULL) g->table.observe(g->backend_group, g->tracer);
    CD_EMIT(g->tracer, group, g->name, .group = g->id, .members = g->group_size,
            .group_rank = g->group_rank, .members_digest = (int64_t)members_digest(g),
            .order = g->table.capabilities.order);
    *group = g;
    return CDDP_OK;
out:
    cddp_group_destroy(g);
    return status;
}

static void close_transport(cddp_group *group)
{
    CD_EMIT(group->tracer, group_close, NULL, .group = group->id,
            .sequence = (int64_t)group->sequence, .outstanding = group->in_flight);
    for (const cd_work_chunk *c = group->chunks; c != NULL; c = c->next)
        for (uint32_t i = 0; i < c->made; i++)
            if (c->works[i].busy)
                group->table.release(group->backend_group, c->works[i].backend_work);
    group->table.close(group->backend_group);
    group->backend_group = NULL;
}

void cddp_group_destroy(cddp_group *group)
{
    if (group == NULL) return;
    if (group->backend_group != NULL) close_transport(group);
    group->is_destroyed = true;
    group->tracer = NULL; /* it may be destroyed, too */
    cd_group_free_unused(group);
}

/* Works are part of the group: a handle that somebody still has must say what became of it. */
void cd_group_free_unused(cddp_group *group)
{
    if (group->is_destroyed && group->holders == 0 && group->in_flight == 0)
        cd_arena_fini(&group->arena);
}

void cd_group_hold(cddp_group *group)
{
    if (group != NULL) group->holders++;
}

void cd_group_let_go(cddp_group *group)
{
    if (group == NULL) return;
    CD_ASSERT(group->holders > 0);
    group->holders--;
    cd_group_free_unused(group);
}

static cddp_status check_alive(const cddp_group *group, cddp_error *err)
{
    if (!group->is_destroyed) return CDDP_OK;
    return cd_fail(err, CDDP_E_STATE,
                   "group '%s' was destroyed: destroy what uses it first, or give it another group",
                   group->name);
}

/* No group has no members. */
#define FIELD_OF(group, field, none) ((group) != NULL ? (group)->field : (none))
uint32_t cddp_group_rank(const cddp_group *group) { return FIELD_OF(group, group_rank, 0); }
uint32_t cddp_group_size(const cddp_group *group) { return FIELD_OF(group, group_size, 0); }
const char *cddp_group_name(const cddp_group *group) { return FIELD_OF(group, name, ""); }
const char *cddp_group_backend_name(const cddp_group *group)
{
    return FIELD_OF(group, backend->name, "");
}
uint32_t cddp_group_id(const cddp_group *group) { return FIELD_OF(group, id, 0); }
uint64_t cddp_group_sequence(const cddp_group *group) { return FIELD_OF(group, sequence, 0); }
uint64_t cddp_group_bytes(const cddp_group *group) { return FIELD_OF(group, bytes, 0); }
cddp_rank *cddp_group_world_rank(const cddp_group *group) { return FIELD_OF(group, rank, NULL); }

const cddp_capabilities *cddp_group_capabilities(const cddp_group *group)
{
    return group != NULL ? &group->table.capabilities : NULL;
}

static const cddp_tensor *subject_of(const cddp_group *g, const cddp_collective *c)
{
    return (cd_operands_of(g, c) & CD_OPERAND_INPUT) ? &c->input : &c->output;
}

/* What must be equal on all members: of a scatter, one share. */
static int64_t size_of(const cddp_collective *c, const cddp_tensor *subject)
{
    if (c->counts != NULL || c->send_counts != NULL) return -1;
    if (c->op == CDDP_OP_SCATTER) return cddp_tensor_numel(&c->output);
    return subject->device != NULL ? cddp_tensor_numel(subject) : 0;
}

void cd_group_show_reduction(const cddp_group *group, const cddp_collective *collective,
                             bool is_result, const cddp_tensor *numbers)
{
    const cddp_group *g = group;
    const cddp_collective *c = collective;
    const bool scatters = c->op == CDDP_OP_REDUCE_SCATTER && c->counts == NULL;
    /* What is gathered is shown where all ranks live in one thread: the boards of processes hold
    ** numbers of reductions. */
    const bool gathers = c->op == CDDP_OP_ALLGATHER && c->counts == NULL &&
                         g->table.capabilities.order == CDDP_ORDER_KNOWN;
    if (g->tracer->operands == NULL || (c->op != CDDP_OP_ALLREDUCE && !scatters && !gathers))
        return;
    cd_tracer_reduce(g->tracer, &(cd_tracer_reduction){.group = g->id,
                                                       .sequence = c->sequence,
                                                       .member = g->group_rank,
                                                       .members = g->group_size,
                                                       .op = gathers ? CDDP_RED_SUM : c->reduce_op,
                                                       .scatters = scatters,
                                                       .gathers = gathers,
                                                       .is_result = is_result,
                                                       .numbers = numbers});
}

/* Of those that a program may make a mean with. */
static void say_to_recorder(const cddp_group *g, const cddp_collective *c, const cddp_tensor *t)
{
    const cd_tracer_watch *watch = g->tracer->watch;
    const bool is_one = c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_REDUCE ||
                        c->op == CDDP_OP_REDUCE_SCATTER || c->op == CDDP_OP_ALLGATHER;
    if (watch != NULL && is_one && c->label == 0 && t->device != NULL) watch->posts(g->tracer, t);
}

static void emit_post(const cddp_group *g, const cddp_collective *c)
{
    if (g->tracer == NULL) return;
    const cddp_tensor *t = subject_of(g, c);
    bool has_data = t->device != NULL;
    /* The old contents of a receiver's tensor are not part of the operation. */
    bool sends = (cd_operands_of(g, c) & CD_OPERAND_INPUT) ||
                 (c->op == CDDP_OP_BROADCAST && c->root == g->group_rank);
    say_to_recorder(g, c, t);
    CD_EMIT(g->tracer, collective_post, NULL, .group = g->id, .sequence = (int64_t)c->sequence,
            .op = c->op, .reduce_op = cd_op_is_reduction(c->op) ? (int64_t)c->reduce_op : -1,
            .root = cd_op_is_rooted(c->op) ? (int64_t)c->root : -1,
            .dtype = has_data ? (int64_t)t->dtype : -1, .numel = size_of(c, t),
            .digest = has_data && sends ? cd_tracer_digest_on(g->tracer, t, c->stream) : 0,
            .bucket = (int64_t)c->label - 1, .address = has_data ? t->offset : -1,
            .in_flight = g->in_flight);
    if (c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_ALLGATHER)
        cd_tracer_pass(g->tracer, c->label, false, &c->input);
    cd_group_show_reduction(g, c, false, &c->input);
}

/* Explicit counts: each share has two ends, and only both together can be compared (I-ORDER). */
static void emit_shares(const cddp_group *g, const cddp_collective *c)
{
    if (g->tracer == NULL || c->counts == NULL) return;
    for (uint32_t r = 0; r < g->group_size; r++) {
        const bool gathers = c->op == CDDP_OP_ALLGATHER, scatters = c->op == CDDP_OP_REDUCE_SCATTER;
        CD_EMIT(g->tracer, collective_share, NULL, .group = g->id, .sequence = (int64_t)c->sequence,
                .peer = cd_group_member(g, r),
                .given = gathers    ? c->counts[g->group_rank]
                         : scatters ? c->counts[r]
                                    : c->send_counts[r],
                .taken = scatters ? c->counts[g->group_rank] : c->counts[r]);
    }
}

static uint64_t bytes_given(const cddp_group *g, const cddp_collective *c)
{
    bool sends = (cd_operands_of(g, c) & CD_OPERAND_INPUT) ||
                 (c->op == CDDP_OP_BROADCAST && c->root == g->group_rank);
    const cddp_tensor *t = subject_of(g, c);
    return sends ? (uint64_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype) : 0;
}

static cddp_status check_present(const void *argument, const char *what, cddp_error *err)
{
    return CD_PASS(argument != NULL ? CDDP_OK : cd_fail(err, CDDP_E_ARG, "the %s is NULL", what));
}

/* Takes a work that was used before, else the next one of a chunk. */
static cddp_status find_work(cddp_group *group, cddp_work **work, cddp_error *err)
{
    if (group->free_works == NULL) {
        if (group->works_made == group->works_max)
            return cd_fail(err, CDDP_E_LIMIT, "group '%s' already has %u operations in flight",
                           group->name, group->works_max);
        if (group->chunks->made == CD_WORKS_IN_CHUNK) CD_TRY(add_chunk(group, err));
        cddp_work *w = &group->chunks->works[group->chunks->made++];
        *w = (cddp_work){.group = group};
        group->works_made++;
        group->free_works = w;
    }
    *work = group->free_works;
    return CDDP_OK;
}

/* The caller's tables live until the post returns; a backend needs its shares until the end. */
static cddp_status keep_counts(cddp_group *group, cddp_work *w, cddp_error *err)
{
    cddp_collective *c = &w->collective;
    const size_t size = group->group_size;
    if (c->counts == NULL && c->send_counts == NULL) return CDDP_OK;
    if (w->counts == NULL) w->counts = cd_arena_array(&group->arena, 2 * size, sizeof *w->counts);
    if (w->counts == NULL)
        return cd_fail_memory(err, "group '%s': the shares of %zu ranks", group->name, size);
    if (c->counts != NULL) {
        memcpy(w->counts, c->counts, size * sizeof *w->counts);
        c->counts = w->counts;
    }
    if (c->send_counts != NULL) {
        memcpy(w->counts + size, c->send_counts, size * sizeof *w->counts);
        c->send_counts = w->counts + size;
    }
    return CDDP_OK;
}

/* An operation in place, in memory of the program: its own, or a bucket that it has views of. See
** Note [Who may write to a bucket]. */
static bool is_watched(const cddp_group *group, const cddp_collective *c)
{
    const cddp_tracer *tracer = group->tracer;
    return tracer != NULL && tracer->watch != NULL && (tracer->lends_buckets || c->label == 0) &&
           cd_tracer_wants_digest(tracer) && (cd_operands_of(group, c) & CD_OPERAND_OUTPUT) != 0 &&
           cd_operands_are_in_place(group, c);
}

cddp_status cddp_group_post(cddp_group *group, cddp_collective *collective, cddp_work **work,
                            cddp_error *err)
{
    CD_TRY(check_present(group, "group", err));
    CD_TRY(check_present(collective, "collective", err));
    CD_TRY(check_present(work, "place for the work", err));
    CD_TRY(check_alive(group, err));
    CD_TRY(cd_operands_check(group, collective, err));
    cddp_work *w = NULL;
    CD_TRY(find_work(group, &w, err));
    collective->size = sizeof *collective;
    collective->sequence = group->sequence;
    if (collective->timeout_ns == 0) collective->timeout_ns = group->timeout_ns;
    w->collective = *collective;
    w->collective.is_watched = is_watched(group, collective);
    CD_TRY(keep_counts(group, w, err));
    w->posted_ns = group->tracer != NULL ? group->rank->ops->now_ns(group->rank) : 0;
    w->ended = false;
    group->in_flight++;
    emit_post(group, collective);
    emit_shares(group, collective);
    group->sequence++;
    group->bytes += bytes_given(group, &w->collective);
    w->outcome = group->table.post(group->backend_group, &w->collective, &w->backend_work, err);
    if (w->outcome != CDDP_OK) {
        group->in_flight--;
        cd_work_emit_done(w);
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        return w->outcome;
    }
    group->free_works = w->next_free;
    w->busy = true;
    *work = w;
    return CDDP_OK;
}

cddp_status cddp_group_allreduce(cddp_group *group, const cddp_tensor *inout, cddp_red_op op,
                                 cddp_work **work, cddp_error *err)
{
    CD_TRY(check_present(inout, "tensor to reduce", err));
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE,
                         .reduce_op = op,
                         .input = *inout,
                         .output = *inout};
    CD_TRY(cddp_group_post(group, &c, work, err));
    return CDDP_OK;
}

cddp_status cddp_group_broadcast(cddp_group *group, const cddp_tensor *inout, uint32_t root,
                                 cddp_work **work, cddp_error *err)
{
    CD_TRY(check_present(inout, "tensor to broadcast", err));
    cddp_collective c = {.op = CDDP_OP_BROADCAST, .root = root, .output = *inout};
    CD_TRY(cddp_group_post(group, &c, work, err));
    return CDDP_OK;
}

cddp_status cddp_group_allgather(cddp_group *group, const cddp_tensor *input,
                                 const cddp_tensor *output, cddp_work **work, cddp_error *err)
{
    CD_TRY(check_present(input, "input of the allgather", err));
    CD_TRY(check_present(output, "output of the allgather", err));
    cddp_collective c = {.op = CDDP_OP_ALLGATHER, .input = *input, .output = *output};
    CD_TRY(cddp_group_post(group, &c, work, err));
    return CDDP_OK;
}

cddp_status cddp_group_barrier(cddp_group *group, cddp_error *err)
{
    cddp_collective c = {.op = CDDP_OP_BARRIER};
    cddp_work *work = NULL;
    CD_TRY(cddp_group_post(group, &c, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    return CDDP_OK;
}

cddp_status cddp_group_abort(cddp_group *group, const char *reason, cddp_error *err)
{
    CD_TRY(check_present(group, "group", err));
    CD_TRY(check_alive(group, err));
    if (reason == NULL) reason = "";
    CD_EMIT(group->tracer, group_abort, reason, .group = group->id);
    group->aborted = true;
    CD_TRY(group->table.abort(group->backend_group, reason, err));
    return CDDP_OK;
}
