/* SPDX-License-Identifier: Apache-2.0 */
/* What messages cost: links, topology, jitter. Pure arithmetic in integer nanoseconds; knows no queue.
**
** A message of b bytes leaves when the sender's port is free, keeps the port busy for overhead + b / bandwidth
** (rounded up), arrives latency later, and keeps the receiver's port busy for b / bandwidth. Ports are full duplex. A rank
** has its own ports inside the node; ranks of a node share its network ports (nics_per_node of them).
**
** Lifetime   a cd_network is a plain value, made from a configuration once.
** Errors     only cd_network_init checks anything.
*/
#pragma once
#include "cddp/status.h"

typedef struct cd_link {
    const char *name;
    uint64_t latency_ns;
    uint64_t bytes_per_second; /* 0: infinitely fast */
    uint64_t overhead_ns;      /* per message, on the sender's port */
} cd_link;

/* Rows of sim/links.def, with the sources of their figures in docs/simulator.md. */
typedef enum cd_link_kind {
#define CD_LINK(id, name, latency, bandwidth, overhead, source) CD_LINK_##id,
#include "sim/links.def"
#undef CD_LINK
    CD_LINK_KIND_COUNT
} cd_link_kind;
const cd_link *cd_link_get(cd_link_kind kind);
int32_t cd_link_find(const char *name); /* -1 when there is none */

typedef struct cd_network_config {
    uint32_t ranks_per_node; /* 0: every rank is its own node */
    uint32_t nics_per_node;  /* 0: one per rank, so that nothing is shared */
    cd_link intra, inter;    /* inside a node, between nodes */
    uint64_t jitter_ns;      /* up to this much is added to each message's latency, from the seed */
    const uint32_t *slow_permille; /* (world_size) compute time × this / 1000 per rank, or NULL */
} cd_network_config;

typedef struct cd_network {
    cd_network_config config;
    uint32_t world_size;
    uint64_t seed;
} cd_network;

cddp_status cd_network_init(cd_network *network, const cd_network_config *config, uint32_t world_size, uint64_t seed,
                            cddp_error *err) CDDP_MUST_CHECK;
static inline uint32_t cd_network_node(const cd_network *network, uint32_t rank)
{
    return network->config.ranks_per_node != 0 ? rank / network->config.ranks_per_node : rank;
}
static inline const cd_link *cd_network_link(const cd_network *network, uint32_t source, uint32_t target)
{
    bool inside = cd_network_node(network, source) == cd_network_node(network, target);
    return inside ? &network->config.intra : &network->config.inter;
}
/* How long bytes keep a port of this link busy, without the overhead; rounded up. */
uint64_t cd_link_busy_ns(const cd_link *link, uint64_t bytes);
/* Latency of one message; `ordinal` numbers the messages of this ordered pair, so that jitter depends on nothing else. */
uint64_t cd_network_latency_ns(const cd_network *network, uint32_t source, uint32_t target, uint64_t ordinal);
/* The port that a message from `rank` to `peer` (or back) occupies: below world_size inside the node, else a NIC. */
uint32_t cd_network_port(const cd_network *network, uint32_t rank, uint32_t peer);
uint32_t cd_network_port_count(const cd_network *network);
