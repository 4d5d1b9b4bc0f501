/* SPDX-License-Identifier: Apache-2.0 */
/* Applies faults: at a time, or around a rank's n-th operation. sim/fault.h defines them. */
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/rank_list.h"
#include "sim/cluster.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct timed_fault {
    cd_sim_event event; /* first */
    const cd_fault *fault;
} timed_fault;

static uint64_t until(const cd_sim *sim, const cd_fault *fault)
{
    return fault->duration_ns != 0 ? sim->now_ns + fault->duration_ns : UINT64_MAX;
}

static void emit(cd_sim *sim, const cd_fault *fault, const char *text)
{
    const bool is_link = cd_fault_get_scope(fault->kind) == CD_FAULT_ON_LINK && fault->side == NULL;
    CD_SIM_EMIT(sim, fault, text, .kind = fault->kind,
                .target = fault->side == NULL ? (int64_t)fault->rank : -1,
                .peer = is_link && fault->peer != UINT32_MAX ? (int64_t)fault->peer : -1,
                .duration = (int64_t)fault->duration_ns);
}

typedef struct part_side {
    const bool *sides; /* (world_size) */
    uint32_t world_size;
    bool side;
} part_side;

static uint32_t next_of_side(const void *self, uint32_t from)
{
    const part_side *p = self;
    while (from < p->world_size && p->sides[from] != p->side) from++;
    return from < p->world_size ? from : CD_NO_RANK;
}

static void print_partition(const cd_sim *sim, const cd_fault *fault, char *text, size_t text_bytes)
{
    char sides[2][64];
    for (int i = 0; i < 2; i++)
        cd_rank_list_print(&(cd_rank_list){&(part_side){fault->side, sim->world_size, i == 0},
                                           next_of_side},
                           CD_NO_RANK, sides[i], sizeof sides[i]);
    snprintf(text, text_bytes, "the network parts: %s from %s", sides[0], sides[1]);
}

void cd_tensor_flip_bit(const cddp_tensor *tensor, uint64_t bit)
{
    unsigned char bytes[16];
    size_t esize = cddp_dtype_bytes(tensor->dtype);
    int64_t numel = cd_numel(tensor);
    if ((tensor->device->flags & CDDP_DEVICE_VALUES) == 0 || numel == 0) return;
    cddp_tensor one = cd_flat(tensor, (int64_t)(bit / (8 * esize) % (uint64_t)numel), 1);
    if (one.device->read(&one, bytes, esize, NULL) != CDDP_OK) return;
    bytes[bit / 8 % esize] ^= (unsigned char)(1u << (bit % 8));
    if (one.device->write(&one, bytes, esize, NULL) != CDDP_OK) return;
}

/* What others bring overwrites what such a rank has. */
static bool only_receives(const cd_member *member, const cddp_collective *what)
{
    const bool has_root = what->op == CDDP_OP_BROADCAST || what->op == CDDP_OP_SCATTER;
    return what->op == CDDP_OP_RECV || (has_root && what->root != member->index);
}

/* The data of a contribution is changed where it lies, as memory errors do. */
static void spoil(const cd_member *member, const cd_fault *fault, const cddp_collective *what)
{
    cd_sim *sim = member->comm->sim;
    char text[128];
    const cddp_tensor *t = what->input.device != NULL ? &what->input : &what->output;
    int64_t numel = cd_numel(t);
    cd_fault_print(fault, text, sizeof text);
    if (only_receives(member, what)) {
        emit(sim, fault, "no effect: the rank only receives");
        return;
    }
    if (t->device == NULL || numel == 0 || (t->device->flags & CDDP_DEVICE_VALUES) == 0) {
        emit(sim, fault, "no effect: the operation carries no values to spoil");
        return;
    }
    if (fault->kind == CDDP_FAULT_BIT_FLIP) {
        cd_tensor_flip_bit(t, fault->amount);
    } else {
        cddp_tensor one = cd_flat(t, (int64_t)(fault->amount % (uint64_t)numel), 1);
        if (one.device->fill(&one, (double)NAN, NULL, NULL) != CDDP_OK)
            memcpy(text, "no effect", sizeof "no effect");
    }
    emit(sim, fault, text);
}

/* The order between the collective and its stream is gone; what comes of it is up to the
** schedule. */
static void lose_wait(cd_sim *sim, const cd_fault *fault, struct cd_part *part)
{
    char text[128];
    cd_fault_print(fault, text, sizeof text);
    part->is_unordered[fault->kind == CDDP_FAULT_LOST_END] = true;
    emit(sim, fault,
         part->stream_device != NULL ? text
                                     : "no effect: the tensors of the operation are on no stream");
}

static void hang(cd_sim *sim, cd_sim_rank *rank, uint64_t until_ns)
{
    rank->hang_until_ns = until_ns;
    if (sim->current != rank) return; /* held when it is next scheduled */
    cd_wake wake = cd_sim_wait(sim, "hangs (a planted fault)", NULL, until_ns);
    (void)wake;
}

/* Of link_delay, when what it held back arrives at each receiver; else NULL. */
static uint64_t *late_of(cd_sim *sim, const cd_fault *fault)
{
    if (fault->kind != CDDP_FAULT_LINK_DELAY) return NULL;
    uint64_t *late_ns = cd_memory_allocate(&sim->memory, sim->world_size * sizeof *late_ns);
    if (late_ns != NULL)
        memset(late_ns, 0, sim->world_size * sizeof *late_ns);
    else
        cd_sim_exhausted(sim);
    return late_ns;
}

void cd_sim_strike(cd_sim *sim, const cd_fault *fault)
{
    cd_sim_rank *rank = &sim->ranks[fault->rank];
    char text[160];
    if (fault->side == NULL && (rank->state == CD_RANK_ENDED || rank->state == CD_RANK_DEAD))
        return;
    sim->stats.races++;
    cd_fault_print(fault, text, sizeof text);
    if (fault->side != NULL) print_partition(sim, fault, text, sizeof text);
    emit(sim, fault, text);
    switch (fault->kind) {
    case CDDP_FAULT_KILL:
        cd_sim_report_death(rank);
        cd_sim_note(rank, "was killed by a planted fault", NULL, 0);
        cd_sim_kill(sim, rank);
        break;
    case CDDP_FAULT_HANG:
        hang(sim, rank, until(sim, fault));
        break;
    case CDDP_FAULT_SLOW_RANK:
        rank->slow_permille = (uint32_t)(fault->amount < UINT32_MAX ? fault->amount : UINT32_MAX);
        rank->slow_until_ns = until(sim, fault);
        break;
    case CDDP_FAULT_LINK_CUT:
    case CDDP_FAULT_PARTITION:
    case CDDP_FAULT_LINK_DELAY:
    case CDDP_FAULT_LINK_REORDER:
    case CDDP_FAULT_CHUNK_CORRUPT:
        sim->cluster->link_faults[sim->cluster->link_fault_count++] =
            (cd_link_fault){.fault = fault,
                            .until_ns = until(sim, fault),
                            .late_ns = late_of(sim, fault)};
        break;
    case CDDP_FAULT_LOST_START:
    case CDDP_FAULT_LOST_END:
    case CDDP_FAULT_BIT_FLIP:
    case CDDP_FAULT_NAN:
        break;
    }
}

void cd_sim_fault_at_time(cd_sim *sim, cd_sim_event *event)
{
    cd_sim_strike(sim, ((const timed_fault *)(void *)event)->fault);
}

void cd_sim_end_faults(cd_sim *sim)
{
    for (uint32_t i = 0; i < sim->cluster->link_fault_count; i++) {
        cd_link_fault *l = &sim->cluster->link_faults[i];
        char fault[128], text[192];
        if (l->has_met) continue;
        cd_fault_print(l->fault, fault, sizeof fault);
        snprintf(text, sizeof text, "no effect: no message met it, %s", fault);
        emit(sim, l->fault, text);
    }
}

static cddp_choice choice_of(const cd_fault *fault)
{
    return (cddp_choice){.size = sizeof(cddp_choice),
                         .kind = CDDP_CHOICE_FAULT,
                         .rank = fault->rank,
                         .option_count = 2,
                         .name = cd_fault_name(fault->kind)};
}

static void due(cd_sim *sim, cd_sim_event *event)
{
    const cd_fault *fault = ((const timed_fault *)(void *)event)->fault;
    if (!fault->optional) {
        cd_sim_strike(sim, fault);
        return;
    }
    sim->pending = choice_of(fault);
    sim->pending_fault = event;
    sim->pending_source = CD_PENDING_FAULT;
}

cddp_status cd_sim_begin_faults(cd_sim *sim, cddp_error *err)
{
    const cd_sim_config *config = &sim->host->config;
    if (config->fault_count == 0) return CDDP_OK;
    /* One block: what happens at its time, and behind it the links' faults. */
    timed_fault *timed =
        cd_memory_allocate(&sim->memory, config->fault_count *
                                             (sizeof *timed + sizeof *sim->cluster->link_faults));
    if (timed == NULL) return cd_fail_memory(err, "%zu faults", config->fault_count);
    sim->cluster->link_faults = (void *)(timed + config->fault_count);
    for (size_t i = 0; i < config->fault_count; i++) {
        const cd_fault *f = &config->faults[i];
        timed[i] = (timed_fault){{due}, f};
        if (f->when == CDDP_FAULT_TIME && f->at == 0 && !f->optional)
            cd_sim_strike(sim, f); /* before any rank runs */
        else if (f->when == CDDP_FAULT_TIME)
            cd_sim_schedule_event(sim, &timed[i].event, f->at);
        else if (f->when < CDDP_FAULT_BEFORE_JOIN)
            sim->ranks[f->rank].has_op_faults = true;
    }
    return CDDP_OK;
}

void cd_sim_pass_join(cddp_rank *port, cddp_plan_fault_when when)
{
    cd_sim *sim = port->world;
    cd_sim_rank *rank = cd_sim_rank_of(port);
    const cd_sim_config *config = &sim->host->config;
    if (when == CDDP_FAULT_BEFORE_JOIN) rank->join_count++;
    for (size_t i = 0; i < config->fault_count && !sim->unwinding; i++) {
        const cd_fault *f = &config->faults[i];
        if (f->when != when || f->joiner != port->rank || f->at + 1 != rank->join_count) continue;
        cddp_choice choice = choice_of(f);
        choice.rank = port->rank; /* at whose join it is decided */
        if (f->optional && cd_sim_choose(sim, &choice) == 0) continue;
        cd_sim_strike(sim, f);
    }
}

void cd_sim_fault_at_op(const struct cd_member *member, cddp_plan_fault_when when,
                        struct cd_part *part, const cddp_collective *what)
{
    cd_sim *sim = member->comm->sim;
    const cd_sim_rank *rank = member->rank;
    if (!rank->has_op_faults || sim->unwinding) return;
    const cd_sim_config *config = &sim->host->config;
    uint64_t ordinal = part != NULL ? part->ordinal : rank->collective_count;
    for (size_t i = 0; i < config->fault_count && !sim->unwinding; i++) {
        const cd_fault *f = &config->faults[i];
        if (f->rank != rank->port.rank || f->when != when || f->at != ordinal) continue;
        cddp_choice choice = choice_of(f);
        if (f->optional && cd_sim_choose(sim, &choice) == 0) continue;
        if (cd_fault_get_scope(f->kind) == CD_FAULT_ON_DATA) {
            spoil(member, f, what);
        } else if (cd_fault_get_scope(f->kind) == CD_FAULT_ON_STREAM) {
            lose_wait(sim, f, part);
        } else if (f->kind == CDDP_FAULT_KILL && when == CDDP_FAULT_INSIDE &&
                   config->transport == CD_SIM_MESSAGES) {
            part->death = f; /* with its first message on the way */
        } else {
            cd_sim_strike(sim, f);
        }
    }
}
