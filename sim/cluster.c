/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster behind a world's groups: its ports and pools, and what the death of a rank does to
** everybody's operations. */
#include "core/base/error.h"
#include "sim/cluster.h"

#include <stdio.h>
#include <string.h>

cddp_status cd_cluster_init(cd_sim *sim, cddp_error *err)
{
    size_t ports = cd_network_port_count(&sim->host->network), bytes = ports * sizeof(uint64_t);
    /* One block: the cluster, its ports, the scratch. */
    const size_t all = sizeof *sim->cluster + 2 * bytes + 2 * sim->world_size * sizeof(uint32_t);
    struct cd_cluster *c = cd_memory_allocate(&sim->memory, all);
    if (c == NULL) return cd_fail_memory(err, "a cluster of %zu ports", ports);
    memset(c, 0, all);
    c->send_port_free_ns = (uint64_t *)(void *)(c + 1);
    c->receive_port_free_ns = c->send_port_free_ns + ports;
    c->peers = (uint32_t *)(void *)(c->receive_port_free_ns + ports);
    sim->cluster = c;
    return CDDP_OK;
}

static void release_staging(cd_staging *list)
{
    for (cd_staging *s = list; s != NULL; s = s->next)
        s->device->release(s->device, s->dtype, s->numel, s->storage);
}

void cd_cluster_fini(cd_sim *sim)
{
    if (sim->cluster == NULL) return;
    release_staging(sim->cluster->free_staging);
    release_staging(sim->cluster->used_staging);
    sim->cluster = NULL;
}

static void lose_parts(cd_coll *coll, const cd_sim_rank *rank)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        cd_part *p = &coll->parts[i];
        if (p->member != NULL && p->member->rank == rank &&
            (p->state == CD_PART_QUEUED || p->state == CD_PART_STARTED))
            cd_part_lose(p);
    }
}

typedef struct death_notice {
    cd_sim_event event; /* first */
    uint32_t rank;
} death_notice;

/* The others' sockets close: as Gloo and MPI notice a dead peer, and NCCL by itself does not. */
static void notice(cd_sim *sim, cd_sim_event *event)
{
    uint32_t rank = ((const death_notice *)(void *)event)->rank;
    char why[CD_WHY_BYTES];
    snprintf(why, sizeof why, "rank %u closed its connections", rank);
    for (cd_comm *c = sim->cluster->comms; c != NULL; c = c->next)
        for (uint32_t i = 0; i < c->size; i++)
            if (c->ranks[i] == rank && !c->members[i].is_closed)
                cd_comm_fail(c, CDDP_E_BACKEND, why);
}

void cd_cluster_rank_died(cd_sim *sim, cd_sim_rank *rank)
{
    for (cd_comm *c = sim->cluster->comms; c != NULL; c = c->next) {
        for (size_t i = 0; i < c->window_count; i++) {
            cd_coll *coll = c->window[(c->window_first + i) % c->window_capacity];
            if (coll != NULL) lose_parts(coll, rank);
        }
        for (cd_coll *p = c->pairs; p != NULL; p = p->next) lose_parts(p, rank);
    }
    uint64_t delay = sim->host->config.death_notice_ns;
    death_notice *n = delay != 0 ? cd_memory_allocate(&sim->memory, sizeof *n) : NULL;
    if (n == NULL) return;
    *n = (death_notice){{notice}, rank->port.rank};
    cd_sim_schedule_event(sim, &n->event, sim->now_ns + delay);
}
