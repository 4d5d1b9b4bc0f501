/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of messages: links, topology, jitter. Pure arithmetic in integer nanoseconds, without
** queues.
**
** A message of b bytes leaves when the sender's port is free, keeps the port busy for overhead + b
** / bandwidth (rounded up), arrives latency later, and keeps the receiver's port busy for b /
** bandwidth. Ports are full duplex. A rank has its own ports inside the node; ranks of a node share
** its network ports (nics_per_node of them).
**
** With a bus (PCIe), a message to another node streams through the bus and the network card. Both
** are busy, each for its own time, and the slower one decides. Messages inside the node take the
** bus too where intra is PCIe. Copies between a rank's device and its node's host hold the device's
** side of the bus; hosts reach the cards without it. With a cap per connection what a rank sends to
** other nodes within a group also waits for what it sent there before, at that rate, and leaves the
** port to other groups meanwhile.
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
    bool is_pcie;              /* the lanes between a GPU and its host */
} cd_link;

/* Rows of sim/links.def, with the sources of their figures in docs/simulator.md. */
typedef enum cd_link_kind {
#define CD_LINK(id, name, latency, bandwidth, overhead, is_pcie, source) CD_LINK_##id,
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
    /* between a GPU and its host and network card; all 0: no cost, and nothing to share */
    cd_link bus;
    /* of what a rank sends to other nodes within one group; 0: no cap */
    uint64_t connection_bytes_per_second;
    uint64_t host_bytes_per_second; /* of a host's memory; 0: infinitely fast */
    uint64_t jitter_ns; /* up to this much is added to each message's latency, from the seed */
    const uint32_t *slow_permille; /* (world_size) compute time × this / 1000 per rank, or NULL */
} cd_network_config;

typedef struct cd_network {
    /* inter is what one connection of one GPU gets, with nobody beside it */
    cd_network_config config;
    cd_link card; /* between network cards: inter as it was given */
    /* plain: neither a bus nor a cap, so a message holds one port on either side */
    bool is_plain, has_bus;
    uint64_t bus_rate; /* bytes per second through the bus and a card */
    uint32_t world_size;
    uint64_t seed;
} cd_network;

cddp_status cd_network_init(cd_network *network, const cd_network_config *config,
                            uint32_t world_size, uint64_t seed, cddp_error *err) CDDP_MUST_CHECK;
static inline uint32_t cd_network_node(const cd_network *network, uint32_t rank)
{
    return network->config.ranks_per_node != 0 ? rank / network->config.ranks_per_node : rank;
}
static inline const cd_link *cd_network_link(const cd_network *network, uint32_t source,
                                             uint32_t target)
{
    bool inside = cd_network_node(network, source) == cd_network_node(network, target);
    return inside ? &network->config.intra : &network->config.inter;
}
/* The resources of a message, one after the other. Each has a clock: the time when it is free. */
typedef enum cd_lane {
    /* the rank's port inside the node, and out of it where there is no bus and no shared card */
    CD_LANE_NODE,
    CD_LANE_CARD, /* the network card */
    CD_LANE_BUS,  /* a GPU's side of the bus; NODE where intra is PCIe */
    /* of the receiver: the other direction of its bus, which the sender's copying keeps busy */
    CD_LANE_LANDING,
    CD_LANE_CONNECTION, /* of the rank in the group */
    CD_LANE_COUNT       /* none */
} cd_lane;

/* Between whom: ranks' devices, or the hosts of their nodes. */
typedef struct cd_passage {
    uint32_t source, target; /* world ranks */
    bool from_host, to_host;
} cd_passage;

typedef struct cd_route {
    /* held from the start on, for overhead + lane_ns each; first is never none */
    cd_lane lanes[2];
    uint64_t lane_ns[2];
    uint64_t connection_ns; /* of the connection, where it is capped */
    uint64_t overhead_ns, latency_ns;
    bool is_capped;
    bool holds_receiver; /* the same lanes of the receiver, the last one first */
} cd_route;

cd_route cd_network_route(const cd_network *network, const cd_passage *passage, uint64_t bytes);
/* A message leaves its sender: clocks[lane] are moved on. time_ns: in, when it may leave; out, when
** it begins to. Returns when its last byte has left. */
uint64_t cd_route_leave(const cd_route *route, uint64_t *time_ns,
                        uint64_t *const clocks[CD_LANE_COUNT]);
/* The clock of a lane: below cd_network_port_count. Not of CONNECTION, which belongs to a group. */
uint32_t cd_network_lane_port(const cd_network *network, uint32_t rank, cd_lane lane);
/* How long a host is busy with bytes that it received. Its memory sees them three times: they are
** written, read to be added or passed on, and read once more as part of what comes of it. */
uint64_t cd_network_host_ns(const cd_network *network, uint64_t bytes);
/* How long bytes keep a port of this link busy, without the overhead; rounded up. */
uint64_t cd_link_busy_ns(const cd_link *link, uint64_t bytes);
/* Latency of one message; `ordinal` numbers the messages of this ordered pair, so that jitter
** depends on nothing else. */
uint64_t cd_network_jitter_ns(const cd_network *network, uint32_t source, uint32_t target,
                              uint64_t ordinal);
uint64_t cd_network_latency_ns(const cd_network *network, uint32_t source, uint32_t target,
                               uint64_t ordinal);
/* The port that a message from `rank` to `peer` (or back) occupies: below world_size inside the
** node, else a NIC. */
uint32_t cd_network_port(const cd_network *network, uint32_t rank, uint32_t peer);
uint32_t cd_network_port_count(const cd_network *network);
