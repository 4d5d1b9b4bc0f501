/* SPDX-License-Identifier: Apache-2.0 */
/* Data: what an operation reads and writes, in the order of its program, through the tensors' own
** device.
**
** Summation order is that of the program's REDUCE entries: work = work op received. AVG sums and
** then divides once, on every member that holds a result; PREMUL_SUM scales each contribution
** before anything is added.
**
** All at once (cd_coll_execute): programs are run in turns and a receive reads the sender's buffer
** itself. No copy is needed, because in every algorithm a range is overwritten only by something
** that depends on its having been received.
*/
#include "core/base/assert.h"
#include "core/base/error.h"
#include "sim/cluster.h"
#include "sim/turns.h"

#include <string.h>

/* ---- views ---- */

int64_t cd_numel(const cddp_tensor *tensor)
{
    int64_t numel = 1;
    for (uint32_t i = 0; i < tensor->dim_count; i++) numel *= tensor->sizes[i];
    return tensor->device != NULL ? numel : 0;
}

/* Elements begin … begin + count of a contiguous tensor, as one dimension. */
cddp_tensor cd_flat(const cddp_tensor *tensor, int64_t begin, int64_t count)
{
    cddp_tensor t = {.device = tensor->device,
                     .storage = tensor->storage,
                     .offset = tensor->offset + begin,
                     .dtype = tensor->dtype,
                     .dim_count = 1};
    t.sizes[0] = count;
    t.strides[0] = 1;
    return t;
}

/* A float on a device without values is nothing; everything else has content that must really
** move. */
static bool has_content(const cddp_tensor *tensor)
{
    if (tensor->device == NULL) return false;
    bool is_number = !cddp_dtype_is_float(tensor->dtype) && tensor->dtype != CDDP_C64;
    return is_number || (tensor->device->flags & (CDDP_DEVICE_VALUES | CDDP_DEVICE_EXACT)) != 0;
}

/* ---- staging ---- */

static bool is_plain_memory(const cddp_device *device)
{
    return (device->flags & CDDP_DEVICE_HOST) != 0 && (device->flags & CDDP_DEVICE_VALUES) != 0;
}

static size_t staging_bytes(const cddp_tensor *like, int64_t numel)
{
    return (size_t)numel * cddp_dtype_bytes(like->dtype);
}

static cd_staging *find_staging(struct cd_cluster *cluster, const cddp_tensor *like, int64_t numel)
{
    for (cd_staging **link = &cluster->free_staging; *link != NULL; link = &(*link)->next) {
        cd_staging *s = *link;
        if (s->device != like->device || s->dtype != like->dtype || s->numel != numel) continue;
        *link = s->next;
        return s;
    }
    return NULL;
}

cddp_status cd_staging_take(cd_sim *sim, const cddp_tensor *like, int64_t numel,
                            cddp_tensor *tensor, cddp_error *err)
{
    struct cd_cluster *cluster = sim->cluster;
    cddp_tensor t = cd_flat(like, 0, numel);
    t.offset = 0;
    if (is_plain_memory(like->device)) {
        t.storage = cd_memory_allocate(&sim->memory, staging_bytes(like, numel));
        if (t.storage == NULL) return cd_fail_memory(err, "%lld staged elements", (long long)numel);
        *tensor = t;
        return CDDP_OK;
    }
    cd_staging *s = find_staging(cluster, like, numel);
    if (s == NULL) {
        s = cd_memory_allocate(&sim->memory, sizeof *s);
        if (s == NULL) return cd_fail_memory(err, "%lld staged elements", (long long)numel);
        *s = (cd_staging){.device = like->device,
                          .dtype = like->dtype,
                          .numel = numel,
                          .serial = cluster->staging_serial++};
        cddp_status status =
            like->device->allocate(like->device, like->dtype, numel, &s->storage, err);
        if (status != CDDP_OK) {
            cd_memory_release(&sim->memory, s, sizeof *s);
            return status;
        }
    }
    s->next = cluster->used_staging;
    cluster->used_staging = s;
    t.storage = s->storage;
    *tensor = t;
    return CDDP_OK;
}

void cd_staging_give(cd_sim *sim, const cddp_tensor *tensor, int64_t numel)
{
    struct cd_cluster *cluster = sim->cluster;
    if (is_plain_memory(tensor->device)) {
        cd_memory_release(&sim->memory, tensor->storage, staging_bytes(tensor, numel));
        return;
    }
    cd_staging **link = &cluster->used_staging;
    while (*link != NULL && (*link)->storage != tensor->storage) link = &(*link)->next;
    CD_ASSERT(*link != NULL);
    cd_staging *s = *link;
    *link = s->next;
    s->next = cluster->free_staging;
    cluster->free_staging = s;
}

/* ---- programs ---- */

bool cd_part_describe_program(cd_part *part)
{
    const cddp_collective *c = &part->what;
    cd_coll *coll = part->coll;
    if (coll->flows == NULL)
        coll->flows =
            cd_memory_allocate(&coll->comm->sim->memory, coll->size * sizeof *coll->flows);
    if (coll->flows == NULL) return false;
    cd_flow *flow = &coll->flows[part->index];
    const cddp_tensor *subject =
        c->op == CDDP_OP_BROADCAST || c->op == CDDP_OP_SCATTER || c->op == CDDP_OP_RECV ? &c->output
                                                                                        : &c->input;
    const cd_sim_config *config = &coll->comm->sim->host->config;
    int64_t numel = cd_numel(subject);
    if (c->op == CDDP_OP_ALLTOALL) numel /= coll->size;
    flow->program =
        (cd_program){.algorithm = config->algorithm,
                     .op = c->op,
                     .size = coll->size,
                     .rank = part->index,
                     .root = c->root,
                     .ranks_per_node = config->network.ranks_per_node,
                     .piece_bytes =
                         cd_algorithm_is_tree(config->algorithm) ? config->piece_bytes : 0,
                     .numel = numel,
                     .element_bytes =
                         subject->device != NULL ? (uint32_t)cddp_dtype_bytes(subject->dtype) : 0,
                     .counts = c->counts,
                     .send_counts = c->send_counts};
    if (c->op == CDDP_OP_ALLREDUCE && cd_algorithm_is_ring(config->algorithm))
        flow->program.ring = cd_ring_get_segments(&flow->program);
    else
        flow->program.tree = cd_tree_get_pieces(&flow->program);
    flow->action = 0;
    part->is_blocked = false;
    flow->last_arrival_ns = flow->left_ns = 0;
    part->has_content = has_content(subject);
    return true;
}

static bool pair_agrees(const cd_coll *coll)
{
    const cddp_tensor *sent = &coll->parts[0].what.input, *received = &coll->parts[1].what.output;
    return cd_numel(sent) == cd_numel(received) && sent->dtype == received->dtype;
}

static bool shares_agree(const cd_coll *coll, const cddp_collective *first)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        const cddp_collective *c = &coll->parts[i].what;
        if ((c->counts == NULL) != (first->counts == NULL) ||
            (c->send_counts == NULL) != (first->send_counts == NULL))
            return false;
        bool varied = c->op == CDDP_OP_ALLTOALL;
        for (uint32_t j = 0; c->counts != NULL && j < coll->size; j++) {
            const cddp_collective *peer = &coll->parts[j].what;
            if (!varied && c->counts[j] != first->counts[j]) return false;
            if (varied && peer->send_counts != NULL && c->counts[j] != peer->send_counts[i])
                return false;
        }
        if (c->op == CDDP_OP_ALLGATHER && c->counts != NULL && cd_numel(&c->input) != c->counts[i])
            return false;
    }
    return true;
}

bool cd_coll_agrees(const cd_coll *coll)
{
    if (coll->is_pair) return pair_agrees(coll);
    const cddp_collective *first = &coll->parts[0].what;
    bool rooted = first->op == CDDP_OP_BROADCAST || first->op == CDDP_OP_REDUCE ||
                  first->op == CDDP_OP_GATHER || first->op == CDDP_OP_SCATTER;
    bool reduces = first->op == CDDP_OP_ALLREDUCE || first->op == CDDP_OP_REDUCE ||
                   first->op == CDDP_OP_REDUCE_SCATTER;
    bool receives = first->op == CDDP_OP_BROADCAST || first->op == CDDP_OP_SCATTER;
    int64_t numel = cd_numel(receives ? &first->output : &first->input);
    for (uint32_t i = 1; i < coll->size; i++) {
        const cddp_collective *c = &coll->parts[i].what;
        if (c->op != first->op || (reduces && c->reduce_op != first->reduce_op) ||
            (rooted && c->root != first->root))
            return false;
        if (c->op == CDDP_OP_BARRIER) continue;
        const cddp_tensor *a = receives ? &c->output : &c->input,
                          *b = receives ? &first->output : &first->input;
        if (a->dtype != b->dtype || (first->counts == NULL && cd_numel(a) != numel)) return false;
    }
    return (first->counts == NULL && first->send_counts == NULL) || shares_agree(coll, first);
}

/* ---- before and after ---- */

static int64_t share_of(const cd_part *part, int64_t *begin)
{
    cd_flow *flow = cd_flow_of(part);
    const int64_t *counts = part->what.counts;
    int64_t equal = part->what.op == CDDP_OP_REDUCE_SCATTER ? flow->program.numel / part->coll->size
                                                            : flow->program.numel;
    *begin = 0;
    for (uint32_t i = 0; counts != NULL && i < part->index; i++) *begin += counts[i];
    if (counts != NULL) return counts[part->index];
    *begin = equal * part->index;
    return equal;
}

static cddp_status copy(const cddp_tensor *dst, int64_t dst_begin, const cddp_tensor *src,
                        int64_t src_begin, int64_t count, cddp_error *err)
{
    if (count == 0) return CDDP_OK;
    cddp_tensor d = cd_flat(dst, dst_begin, count), s = cd_flat(src, src_begin, count);
    bool same = d.storage == s.storage && d.offset == s.offset;
    if (!same) CD_TRY(d.device->copy(&d, &s, NULL, err));
    return CDDP_OK;
}

/* A reduction starts from this member's own contribution, scaled when the operation requires it. */
static cddp_status load(cd_part *part, cddp_error *err)
{
    cd_flow *flow = cd_flow_of(part);
    const cddp_collective *c = &part->what;
    int64_t n = cd_numel(&c->input);
    if (c->reduce_op == CDDP_RED_PREMUL_SUM && n > 0) {
        cddp_tensor d = cd_flat(&flow->work, 0, n), s = cd_flat(&c->input, 0, n);
        CD_TRY(d.device->scale(&d, &s, c->premultiplier, NULL, err));
        return CDDP_OK;
    }
    CD_TRY(copy(&flow->work, 0, &c->input, 0, n, err));
    return CDDP_OK;
}

/* On streams the program's own writes may still be queued. */
static void note_read(cd_part *part)
{
    const cddp_collective *c = &part->what;
    const cddp_tensor *given = c->op == CDDP_OP_BROADCAST ? &c->output : &c->input;
    const bool gives = given->device != NULL && given->device->digest != NULL &&
                       (c->op != CDDP_OP_BROADCAST || c->root == part->index);
    part->read = 0;
    if (!part->member->is_observed || part->stream_device != NULL || !gives) return;
    if (given->device->digest(given, &part->read, NULL) != CDDP_OK) part->read = 0;
}

cddp_status cd_part_prepare(cd_part *part, cddp_error *err)
{
    const cddp_collective *c = &part->what;
    bool is_root = c->root == part->index;
    int64_t begin = 0;
    if (!part->has_content) return CDDP_OK;
    note_read(part);
    cd_flow *flow = cd_flow_of(part);
    flow->work = c->output;
    flow->source = c->output;
    switch (c->op) {
    case CDDP_OP_ALLREDUCE:
        return CD_PASS(load(part, err));
    case CDDP_OP_REDUCE:
    case CDDP_OP_REDUCE_SCATTER:
        if (c->op == CDDP_OP_REDUCE_SCATTER || !is_root) {
            CD_TRY(cd_staging_take(part->coll->comm->sim, &c->input, cd_numel(&c->input),
                                   &flow->work, err));
            part->is_staged = true;
        }
        flow->source = flow->work;
        return CD_PASS(load(part, err));
    case CDDP_OP_ALLGATHER: {
        int64_t count = share_of(part, &begin);
        return CD_PASS(copy(&flow->work, begin, &c->input, 0, count, err));
    }
    case CDDP_OP_GATHER: {
        flow->source = c->input;
        int64_t count = share_of(part, &begin);
        return is_root ? copy(&flow->work, begin, &c->input, 0, count, err) : CDDP_OK;
    }
    case CDDP_OP_SCATTER: {
        flow->source = c->input;
        int64_t count = share_of(part, &begin);
        return is_root ? copy(&flow->work, 0, &c->input, begin, count, err) : CDDP_OK;
    }
    case CDDP_OP_ALLTOALL: {
        int64_t from = 0;
        flow->source = c->input;
        int64_t count = share_of(part, &begin);
        for (uint32_t i = 0; c->send_counts != NULL && i < part->index; i++)
            from += c->send_counts[i];
        return CD_PASS(
            copy(&flow->work, begin, &c->input, c->send_counts != NULL ? from : begin, count, err));
    }
    case CDDP_OP_SEND:
        flow->source = c->input;
        return CDDP_OK;
    case CDDP_OP_BROADCAST:
    case CDDP_OP_RECV:
    case CDDP_OP_BARRIER:
    case CDDP_OP_COUNT:
        break;
    }
    return CDDP_OK;
}

cddp_status cd_part_apply(cd_part *part, const cd_action *action, const cddp_tensor *data,
                          int64_t count, cddp_error *err)
{
    if (!part->has_content || count == 0) return CDDP_OK;
    cddp_tensor d = cd_flat(&cd_flow_of(part)->work, action->begin, count),
                s = cd_flat(data, 0, count);
    cddp_red_op op = part->what.reduce_op;
    if (op == CDDP_RED_AVG || op == CDDP_RED_PREMUL_SUM) op = CDDP_RED_SUM;
    if (action->kind == CD_ACTION_STORE)
        CD_TRY(d.device->copy(&d, &s, NULL, err));
    else
        CD_TRY(d.device->reduce(op, &d, &s, NULL, err));
    return CDDP_OK;
}

cddp_status cd_part_finish(cd_part *part, cddp_error *err)
{
    const cddp_collective *c = &part->what;
    bool is_result = c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_REDUCE_SCATTER ||
                     (c->op == CDDP_OP_REDUCE && c->root == part->index);
    if (!part->has_content || !is_result) return CDDP_OK;
    if (c->op == CDDP_OP_REDUCE_SCATTER) {
        int64_t begin = 0, count = share_of(part, &begin);
        CD_TRY(copy(&c->output, 0, &cd_flow_of(part)->work, begin, count, err));
    }
    cddp_tensor result = cd_flat(&c->output, 0, cd_numel(&c->output));
    if (c->reduce_op == CDDP_RED_AVG && result.sizes[0] > 0)
        CD_TRY(result.device->divide(&result, &result, part->coll->size, NULL, err));
    return CDDP_OK;
}

void cd_part_unprepare(cd_part *part)
{
    if (!part->is_staged) return;
    part->is_staged = false;
    cd_staging_give(part->coll->comm->sim, &cd_flow_of(part)->work,
                    cd_flow_of(part)->work.sizes[0]);
}

/* ---- all at once ---- */

/* Runs a program until it must wait. */
static cddp_status run_until_blocked(cd_part *part, cd_turns *turns, uint32_t *finished,
                                     cddp_error *err)
{
    cd_coll *coll = part->coll;
    cd_sim *sim = coll->comm->sim;
    cd_flow *flow = cd_flow_of(part);
    cd_action a;
    for (; cd_program_find(&flow->program, &flow->action, &a); flow->action++) {
        if (a.kind == CD_ACTION_SEND) {
            cd_message *m = cd_message_make(sim, coll);
            if (m == NULL) return cd_fail_memory(err, "a chunk");
            m->source = part->index;
            m->channel = a.channel;
            m->begin = a.begin;
            m->count = a.count;
            cd_inbox_push(&coll->parts[a.peer], m);
            cd_turns_add(turns, a.peer);
        } else {
            cd_message *m = cd_inbox_take(part, &a);
            if (m == NULL) return CDDP_OK;
            cddp_tensor data =
                cd_flat(&cd_flow_of(&coll->parts[m->source])->source, m->begin, m->count);
            cddp_status status = CDDP_OK;
            /* between a leader's device and its host: it is in place */
            if (m->source != part->index) status = cd_part_apply(part, &a, &data, m->count, err);
            cd_message_free(sim, m, false);
            if (status != CDDP_OK) return status;
        }
    }
    (*finished)++;
    return CDDP_OK;
}

/* any_order: (((x_a + x_b) + x_c) + …) in the order that was chosen, once, and copied to all. */
static cddp_status execute_ordered(cd_coll *coll, cddp_error *err)
{
    cd_part *first = &coll->parts[coll->order[0]];
    cd_action all = {.kind = CD_ACTION_REDUCE};
    int64_t n = cd_flow_of(first)->program.numel;
    uint32_t root = first->what.op == CDDP_OP_REDUCE ? first->what.root : UINT32_MAX;
    for (uint32_t i = 1; i < coll->size; i++)
        CD_TRY(cd_part_apply(first, &all, &cd_flow_of(&coll->parts[coll->order[i]])->work, n, err));
    for (uint32_t i = 0; i < coll->size; i++) {
        cd_part *p = &coll->parts[i];
        if (p != first && (root == UINT32_MAX || root == i))
            CD_TRY(copy(&cd_flow_of(p)->work, 0, &cd_flow_of(first)->work, 0, n, err));
    }
    return CDDP_OK;
}

/* An all-gather stores only: the first member's result is everyone's. Its N² messages would have
** the same content. */
static cddp_status execute_gather(cd_coll *coll, cddp_error *err)
{
    cd_part *first = &coll->parts[0];
    const int64_t share = cd_flow_of(first)->program.numel;
    const cddp_tensor *whole = &cd_flow_of(first)->work;
    if (!first->has_content) return CDDP_OK;
    for (uint32_t i = 1; i < coll->size; i++)
        CD_TRY(copy(whole, share * i, &coll->parts[i].what.input, 0, share, err));
    for (uint32_t i = 1; i < coll->size; i++)
        CD_TRY(copy(&cd_flow_of(&coll->parts[i])->work, 0, whole, 0, share * coll->size, err));
    return CDDP_OK;
}

static cddp_status execute_programs(cd_coll *coll, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    uint32_t finished = 0, i = 0;
    cd_turns turns;
    if (!cd_turns_init(&turns, &coll->comm->sim->memory, coll->size))
        return cd_fail_memory(err, "the turns of %u members", coll->size);
    while (cd_turns_next(&turns, &i))
        CD_TRY_OUT(run_until_blocked(&coll->parts[i], &turns, &finished, err));
    CD_ASSERT(finished == coll->size); /* programs of members that agree fit together */
out:
    cd_turns_fini(&turns);
    return status;
}

static cddp_status execute(cd_coll *coll, cddp_error *err)
{
    for (uint32_t i = 0; i < coll->size; i++) CD_TRY(cd_part_prepare(&coll->parts[i], err));
    bool ordered = coll->order != NULL && (coll->parts[0].what.op == CDDP_OP_ALLREDUCE ||
                                           coll->parts[0].what.op == CDDP_OP_REDUCE ||
                                           coll->parts[0].what.op == CDDP_OP_REDUCE_SCATTER);
    const cddp_collective *what = &coll->parts[0].what;
    const bool gathers = what->op == CDDP_OP_ALLGATHER && what->counts == NULL;
    CD_TRY(ordered   ? execute_ordered(coll, err)
           : gathers ? execute_gather(coll, err)
                     : execute_programs(coll, err));
    for (uint32_t i = 0; i < coll->size; i++) CD_TRY(cd_part_finish(&coll->parts[i], err));
    return CDDP_OK;
}

cddp_status cd_coll_execute(cd_coll *coll, cddp_error *err)
{
    bool content = false;
    for (uint32_t i = 0; i < coll->size; i++) {
        const cddp_collective *c = &coll->parts[i].what;
        content |= has_content(&c->input) || has_content(&c->output);
    }
    if (!content || coll->parts[0].what.op == CDDP_OP_BARRIER) return CDDP_OK;
    for (uint32_t i = 0; i < coll->size; i++)
        if (!cd_part_describe_program(&coll->parts[i]))
            return cd_fail_memory(err, "%s of %u", cddp_op_name(coll->parts[i].what.op),
                                  coll->size);
    cddp_status status = execute(coll, err);
    for (uint32_t i = 0; i < coll->size; i++) cd_inbox_clear(&coll->parts[i], false);
    return status;
}
