/* SPDX-License-Identifier: Apache-2.0 */
/* The choke point of all communication: numbering, operand checks, events, calls into the backend table.
**
** Invariants (cd_group_audit):
**   G1  every posted operation has its own sequence number, 0, 1, 2, … per group (C10-03);
**   G2  a work is either free or holds a backend work that has not been released;
**   G3  works in flight never exceed works_max, and their memory is made once, at creation;
**   G4  an operation that the backend does not declare never reaches it: the caller is told by name;
**   G5  every post has exactly one collective_done, unless the group died with the work outstanding.
**
** Not here: what an operation means (backends), which ones to issue (ddp, hooks).
*/
#include "core/comm/group.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/trace/tracer.h"

#include <stdio.h>
#include <string.h>

struct cddp_work {
    cddp_group *group;
    void *backend_work;
    cddp_collective collective;
    uint64_t posted_ns;
    cddp_work *next_free;
    bool busy;
    bool ended;
    cddp_status outcome; /* once ended */
};

struct cddp_group {
    const cddp_backend *backend;
    void *backend_group;
    cddp_rank *rank;
    cddp_tracer *tracer;
    const cddp_allocator *allocator;
    char *name;
    uint32_t *members; /* (group_size) world ranks */
    uint32_t group_rank, group_size, id;
    uint32_t works_max, in_flight;
    uint64_t sequence;
    uint64_t timeout_ns;
    cddp_work *works; /* (works_max) */
    cddp_work *free_works;
    bool aborted;
};

void cd_group_audit(const cddp_group *g)
{
    CD_ASSERT(g->in_flight <= g->works_max); /* G3 */
    uint32_t busy = 0;
    for (uint32_t i = 0; i < g->works_max; i++) {
        const cddp_work *w = &g->works[i];
        busy += w->busy;
        CD_ASSERT(!w->busy || w->backend_work != NULL);           /* G2 */
        CD_ASSERT(!w->busy || w->collective.sequence < g->sequence); /* G1 */
    }
    CD_ASSERT(busy == g->in_flight);
}

/* Group ids must be equal on all members without talking to them: the name and the members decide. */
static uint32_t group_id(const cddp_group_spec *spec)
{
    uint64_t h = cd_hash_text(spec->name);
    for (uint32_t i = 0; i < spec->group_size; i++) h = cd_hash_mix(h, spec->members[i]);
    return (uint32_t)(h & 0x7fffffffu);
}

static uint64_t members_digest(const cddp_group *g)
{
    uint64_t h = g->group_size;
    for (uint32_t i = 0; i < g->group_size; i++) h = cd_hash_mix(h, g->members[i]);
    return h;
}

static cddp_status check_options(const cddp_group_options *o, cddp_error *err)
{
    if (o == NULL || o->backend == NULL || o->rank == NULL)
        return cd_fail(err, CDDP_E_ARG, "a group needs a backend and a rank");
    const cddp_group_spec *s = &o->spec;
    if (s->name == NULL || s->name[0] == '\0') return cd_fail(err, CDDP_E_ARG, "a group needs a name");
    if (s->group_size == 0 || s->members == NULL)
        return cd_fail(err, CDDP_E_ARG, "group '%s' has no members", s->name);
    if (s->group_rank >= s->group_size)
        return cd_fail(err, CDDP_E_ARG, "group '%s': group_rank %u is not below group_size %u", s->name,
                       s->group_rank, s->group_size);
    if (s->group_size > o->backend->capabilities.world_size_max)
        return cd_fail(err, CDDP_E_LIMIT, "group '%s' has %u members; backend %s takes at most %u", s->name,
                       s->group_size, o->backend->name, o->backend->capabilities.world_size_max);
    if (s->members[s->group_rank] != o->rank->rank)
        return cd_fail(err, CDDP_E_ARG, "group '%s': member %u is world rank %u, but this is rank %u", s->name,
                       s->group_rank, s->members[s->group_rank], o->rank->rank);
    for (uint32_t i = 0; i < s->group_size; i++)
        for (uint32_t j = i + 1; j < s->group_size && s->group_size <= 64; j++)
            if (s->members[i] == s->members[j])
                return cd_fail(err, CDDP_E_ARG, "group '%s' lists rank %u twice", s->name, s->members[i]);
    return CDDP_OK;
}

cddp_status cddp_group_create(const cddp_group_options *options, cddp_group **group, cddp_error *err)
{
    CD_TRY(check_options(options, err));
    const cddp_group_spec *spec = &options->spec;
    const cddp_allocator *a = options->rank->allocator;
    cddp_status status = CDDP_OK;
    cddp_group *g = cd_allocate_zero(a, sizeof *g);
    if (g == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for group '%s'", spec->name);
    g->allocator = a;
    g->backend = options->backend;
    g->rank = options->rank;
    g->tracer = options->tracer;
    g->group_rank = spec->group_rank;
    g->group_size = spec->group_size;
    g->timeout_ns = spec->timeout_ns;
    g->id = group_id(spec);
    g->works_max = options->works_max != 0 ? options->works_max : 1024;
    g->name = cd_strdup(a, spec->name);
    g->members = cd_allocate_array(a, spec->group_size, sizeof *g->members);
    g->works = cd_allocate_array(a, g->works_max, sizeof *g->works);
    if (g->name == NULL || g->members == NULL || g->works == NULL) {
        status = cd_fail(err, CDDP_E_NOMEM, "no memory for group '%s' of %u", spec->name, spec->group_size);
        goto out;
    }
    memcpy(g->members, spec->members, spec->group_size * sizeof *g->members);
    for (uint32_t i = g->works_max; i-- > 0;) {
        g->works[i].group = g;
        g->works[i].next_free = g->free_works;
        g->free_works = &g->works[i];
    }
    CD_TRY_OUT(g->backend->open(g->backend, g->rank, spec, &g->backend_group, err));
    CD_EMIT(g->tracer, group, g->name, .group = g->id, .members = g->group_size, .group_rank = g->group_rank,
            .members_digest = (int64_t)members_digest(g), .order = g->backend->capabilities.order);
    *group = g;
    return CDDP_OK;
out:
    cddp_group_destroy(g);
    return status;
}

void cddp_group_destroy(cddp_group *group)
{
    if (group == NULL) return;
    if (group->backend_group != NULL) {
        CD_EMIT(group->tracer, group_close, NULL, .group = group->id, .sequence = (int64_t)group->sequence,
                .outstanding = group->in_flight);
        for (uint32_t i = 0; i < group->works_max; i++)
            if (group->works[i].busy) group->backend->release(group->backend_group, group->works[i].backend_work);
        group->backend->close(group->backend_group);
    }
    const cddp_allocator *a = group->allocator;
    cd_strfree(a, group->name);
    cd_release(a, group->members, group->group_size * sizeof *group->members);
    cd_release(a, group->works, group->works_max * sizeof *group->works);
    cd_release(a, group, sizeof *group);
}

uint32_t cddp_group_rank(const cddp_group *group) { return group->group_rank; }
uint32_t cddp_group_size(const cddp_group *group) { return group->group_size; }
const char *cddp_group_name(const cddp_group *group) { return group->name; }
uint32_t cddp_group_id(const cddp_group *group) { return group->id; }
uint64_t cddp_group_sequence(const cddp_group *group) { return group->sequence; }
cddp_rank *cddp_group_world_rank(const cddp_group *group) { return group->rank; }

const cddp_capabilities *cddp_group_capabilities(const cddp_group *group)
{
    return &group->backend->capabilities;
}

/* Which operands an operation has: bit 0 input, bit 1 output. Root-dependent ones are refined below. */
static unsigned operands_of(const cddp_group *g, const cddp_collective *c)
{
    bool is_root = c->root == g->group_rank;
    switch (c->op) {
    case CDDP_OP_BARRIER:
        return 0;
    case CDDP_OP_BROADCAST:
    case CDDP_OP_RECV:
        return 2;
    case CDDP_OP_SEND:
        return 1;
    case CDDP_OP_REDUCE:
    case CDDP_OP_GATHER:
        return is_root ? 3 : 1;
    case CDDP_OP_SCATTER:
        return is_root ? 3 : 2;
    case CDDP_OP_ALLREDUCE:
    case CDDP_OP_ALLGATHER:
    case CDDP_OP_REDUCE_SCATTER:
    case CDDP_OP_ALLTOALL:
    case CDDP_OP_COUNT:
        break;
    }
    return 3;
}

static bool is_rooted(cddp_op op)
{
    return op == CDDP_OP_BROADCAST || op == CDDP_OP_REDUCE || op == CDDP_OP_GATHER || op == CDDP_OP_SCATTER ||
           op == CDDP_OP_SEND || op == CDDP_OP_RECV;
}

static bool is_reduction(cddp_op op)
{
    return op == CDDP_OP_ALLREDUCE || op == CDDP_OP_REDUCE || op == CDDP_OP_REDUCE_SCATTER;
}

static cddp_status check_tensor(const cddp_group *g, const cddp_collective *c, const cddp_tensor *t,
                                const char *which, cddp_error *err)
{
    const cddp_capabilities *k = &g->backend->capabilities;
    const char *op = cddp_op_name(c->op);
    if (t->device == NULL)
        return cd_fail(err, CDDP_E_ARG, "group '%s': %s needs an %s tensor", g->name, op, which);
    if (!cddp_tensor_is_contiguous(t))
        return cd_fail(err, CDDP_E_ARG, "group '%s': the %s of %s is not contiguous", g->name, which, op);
    if (!k->any_device && (t->device->flags & k->devices) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "backend %s does not take tensors on device %s (%s of %s)",
                       g->backend->name, t->device->name, which, op);
    if (is_reduction(c->op) && (k->dtypes & CDDP_DTYPE_BIT(t->dtype)) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "backend %s does not %s dtype %s", g->backend->name, op,
                       cddp_dtype_name(t->dtype));
    return CDDP_OK;
}

/* Counts relate as backend.h says, when shares are equal; explicit counts are the backend's to check. */
static cddp_status check_counts(const cddp_group *g, const cddp_collective *c, unsigned operands, cddp_error *err)
{
    if (operands != 3 || c->counts != NULL || c->send_counts != NULL) return CDDP_OK;
    int64_t in = cddp_tensor_numel(&c->input), out = cddp_tensor_numel(&c->output);
    int64_t w = g->group_size;
    int64_t in_shares = c->op == CDDP_OP_REDUCE_SCATTER || c->op == CDDP_OP_SCATTER ? w : 1;
    int64_t out_shares = c->op == CDDP_OP_ALLGATHER || c->op == CDDP_OP_GATHER ? w : 1;
    if (in * out_shares != out * in_shares)
        return cd_fail(err, CDDP_E_ARG, "group '%s': %s over %lld ranks cannot turn %lld elements into %lld", g->name,
                       cddp_op_name(c->op), (long long)w, (long long)in, (long long)out);
    if (c->input.dtype != c->output.dtype)
        return cd_fail(err, CDDP_E_ARG, "group '%s': %s from %s to %s", g->name, cddp_op_name(c->op),
                       cddp_dtype_name(c->input.dtype), cddp_dtype_name(c->output.dtype));
    return CDDP_OK;
}

static cddp_status check_collective(const cddp_group *g, const cddp_collective *c, cddp_error *err)
{
    const cddp_capabilities *k = &g->backend->capabilities;
    if ((unsigned)c->op >= CDDP_OP_COUNT) return cd_fail(err, CDDP_E_ARG, "group '%s': no such operation: %d", g->name, (int)c->op);
    if (g->aborted) return cd_fail(err, CDDP_E_ABORTED, "group '%s' was aborted; %s refused", g->name, cddp_op_name(c->op));
    if ((k->ops & (1u << c->op)) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "backend %s does not implement %s", g->backend->name, cddp_op_name(c->op));
    if (is_reduction(c->op) && (k->reduce_ops & (1u << c->reduce_op)) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "backend %s does not implement %s with %s", g->backend->name,
                       cddp_op_name(c->op), cddp_red_op_name(c->reduce_op));
    if (is_rooted(c->op) && c->root >= g->group_size)
        return cd_fail(err, CDDP_E_ARG, "group '%s': %s names rank %u of %u", g->name, cddp_op_name(c->op), c->root, g->group_size);
    unsigned operands = operands_of(g, c);
    if (operands & 1) CD_TRY(check_tensor(g, c, &c->input, "input", err));
    if (operands & 2) CD_TRY(check_tensor(g, c, &c->output, "output", err));
    CD_TRY(check_counts(g, c, operands, err));
    return CDDP_OK;
}

static const cddp_tensor *subject_of(const cddp_group *g, const cddp_collective *c)
{
    return (operands_of(g, c) & 1) ? &c->input : &c->output;
}

static void emit_post(const cddp_group *g, const cddp_collective *c)
{
    if (g->tracer == NULL) return;
    const cddp_tensor *t = subject_of(g, c);
    bool has_data = t->device != NULL;
    /* What a receiver holds before the operation is not part of it. */
    bool sends = (operands_of(g, c) & 1) || (c->op == CDDP_OP_BROADCAST && c->root == g->group_rank);
    CD_EMIT(g->tracer, collective_post, NULL, .group = g->id, .sequence = (int64_t)c->sequence, .op = c->op,
            .reduce_op = is_reduction(c->op) ? (int64_t)c->reduce_op : -1, .root = is_rooted(c->op) ? (int64_t)c->root : -1,
            .dtype = has_data ? (int64_t)t->dtype : -1,
            .numel = c->counts != NULL || c->send_counts != NULL ? -1 : has_data ? cddp_tensor_numel(t) : 0,
            .digest = has_data && sends ? cd_tracer_digest(g->tracer, t) : 0, .bucket = (int64_t)c->label - 1,
            .address = has_data ? t->offset : -1, .in_flight = g->in_flight);
}

static void emit_done(const cddp_work *w)
{
    const cddp_group *g = w->group;
    if (g->tracer == NULL) return;
    const cddp_collective *c = &w->collective;
    unsigned operands = operands_of(g, c);
    bool ok = w->outcome == CDDP_OK;
    bool separate = operands == 3 && (c->input.storage != c->output.storage || c->input.offset != c->output.offset);
    CD_EMIT(g->tracer, collective_done, NULL, .group = g->id, .sequence = (int64_t)c->sequence, .status = w->outcome,
            .digest = ok && (operands & 2) ? cd_tracer_digest(g->tracer, &c->output) : 0,
            .duration = (int64_t)(g->rank->ops->now_ns(g->rank) - w->posted_ns),
            .input = ok && separate ? cd_tracer_digest(g->tracer, &c->input) : 0);
}

cddp_status cddp_group_post(cddp_group *group, cddp_collective *collective, cddp_work **work, cddp_error *err)
{
    CD_TRY(check_collective(group, collective, err));
    cddp_work *w = group->free_works;
    if (w == NULL)
        return cd_fail(err, CDDP_E_LIMIT, "group '%s' already has %u operations in flight", group->name, group->works_max);
    collective->size = sizeof *collective;
    collective->sequence = group->sequence;
    if (collective->timeout_ns == 0) collective->timeout_ns = group->timeout_ns;
    w->collective = *collective;
    w->posted_ns = group->tracer != NULL ? group->rank->ops->now_ns(group->rank) : 0;
    w->ended = false;
    w->outcome = CDDP_OK;
    group->in_flight++;
    emit_post(group, collective);
    cddp_status status = group->backend->post(group->backend_group, &w->collective, &w->backend_work, err);
    if (status != CDDP_OK) {
        /* The sequence number is spent only by operations that the backend accepted (G1). */
        group->in_flight--;
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        return status;
    }
    group->free_works = w->next_free;
    w->busy = true;
    group->sequence++;
    *work = w;
    return CDDP_OK;
}

cddp_status cddp_group_allreduce(cddp_group *group, const cddp_tensor *inout, cddp_red_op op, cddp_work **work,
                                 cddp_error *err)
{
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE, .reduce_op = op, .input = *inout, .output = *inout};
    CD_TRY(cddp_group_post(group, &c, work, err));
    return CDDP_OK;
}

cddp_status cddp_group_broadcast(cddp_group *group, const cddp_tensor *inout, uint32_t root, cddp_work **work,
                                 cddp_error *err)
{
    cddp_collective c = {.op = CDDP_OP_BROADCAST, .root = root, .output = *inout};
    CD_TRY(cddp_group_post(group, &c, work, err));
    return CDDP_OK;
}

cddp_status cddp_group_allgather(cddp_group *group, const cddp_tensor *input, const cddp_tensor *output,
                                 cddp_work **work, cddp_error *err)
{
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

static void give_back(cddp_work *w)
{
    cddp_group *g = w->group;
    CD_ASSERT(w->busy && g->in_flight > 0);
    g->backend->release(g->backend_group, w->backend_work);
    w->backend_work = NULL;
    w->busy = false;
    w->next_free = g->free_works;
    g->free_works = w;
    g->in_flight--;
}

/* Says what failed and who was missing; the backend's own words stay in the message. */
static cddp_status explain(cddp_work *w, cddp_status status, cddp_error *err)
{
    const cddp_group *g = w->group;
    char who[160] = "";
    if (g->backend->describe != NULL) g->backend->describe(g->backend_group, w->backend_work, who, sizeof who);
    if (who[0] != '\0') CD_EMIT(g->tracer, waiting_for, who, .group = g->id, .sequence = (int64_t)w->collective.sequence,
                                .peer = -1, .op = w->collective.op);
    if (err == NULL) return status;
    char words[CDDP_ERROR_MESSAGE_BYTES];
    memcpy(words, err->message, sizeof words);
    return cd_fail(err, status, "%s #%llu of group '%s' on rank %u: %s%s%s", cddp_op_name(w->collective.op),
                   (unsigned long long)w->collective.sequence, g->name, g->rank->rank, words, who[0] ? "; " : "", who);
}

static cddp_status end_work(cddp_work *w, cddp_status outcome, cddp_error *err)
{
    if (!w->ended) {
        w->ended = true;
        w->outcome = outcome;
        emit_done(w);
        if (outcome != CDDP_OK) return explain(w, outcome, err);
    }
    return w->outcome;
}

cddp_status cddp_work_test(cddp_work *work, bool *done, cddp_error *err)
{
    const cddp_group *g = work->group;
    bool ended = work->ended;
    cddp_status status = work->outcome;
    if (!ended) status = g->backend->test(g->backend_group, work->backend_work, &ended, err);
    if (status != CDDP_OK) return end_work(work, status, err);
    if (ended) CD_TRY(end_work(work, CDDP_OK, err));
    *done = ended;
    return CDDP_OK;
}

cddp_status cddp_work_wait(cddp_work *work, uint64_t timeout_ns, cddp_error *err)
{
    const cddp_group *g = work->group;
    cddp_status status = work->outcome;
    if (!work->ended) {
        CD_EMIT(g->tracer, collective_wait, NULL, .group = g->id, .sequence = (int64_t)work->collective.sequence);
        status = g->backend->wait(g->backend_group, work->backend_work, timeout_ns, err);
        status = end_work(work, status, err);
    }
    give_back(work);
    return status;
}

void cddp_work_release(cddp_work *work)
{
    if (work != NULL) give_back(work);
}

cddp_status cddp_group_abort(cddp_group *group, const char *reason, cddp_error *err)
{
    CD_EMIT(group->tracer, group_abort, reason, .group = group->id);
    group->aborted = true;
    if (group->backend->abort == NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "backend %s cannot abort a group", group->backend->name);
    CD_TRY(group->backend->abort(group->backend_group, reason, err));
    return CDDP_OK;
}
