/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model: which link, how long on it, which ports. */
#include "sim/network.h"

#include "core/base/error.h"
#include "core/base/hash.h"

#include <string.h>

static const cd_link links[CD_LINK_KIND_COUNT] = {
#define CD_LINK(id, name, latency, bandwidth, overhead, is_pcie, source) \
    {name, latency, bandwidth, overhead, is_pcie},
#include "sim/links.def"
#undef CD_LINK
};

const cd_link *cd_link_get(cd_link_kind kind)
{
    return &links[(unsigned)kind < CD_LINK_KIND_COUNT ? kind : CD_LINK_ideal];
}

int32_t cd_link_find(const char *name)
{
    for (int32_t i = 0; i < CD_LINK_KIND_COUNT; i++)
        if (strcmp(links[i].name, name) == 0) return i;
    return -1;
}

static bool costs_nothing(const cd_link *link)
{
    return link->latency_ns == 0 && link->bytes_per_second == 0 && link->overhead_ns == 0;
}

/* Of two rates, of which 0 is infinite. */
static uint64_t slower(uint64_t a, uint64_t b)
{
    if (a == 0 || b == 0) return a + b;
    return a < b ? a : b;
}

cddp_status cd_network_init(cd_network *network, const cd_network_config *config,
                            uint32_t world_size, uint64_t seed, cddp_error *err)
{
    /* keeps sums of times and products with bytes far from overflow */
    const uint64_t limit = UINT64_C(1000000000000);
    const cd_link *given[3] = {&config->intra, &config->inter, &config->bus};
    for (int i = 0; i < 3; i++) {
        if (given[i]->latency_ns > limit || given[i]->overhead_ns > limit ||
            config->jitter_ns > limit)
            return cd_fail(
                err, CDDP_E_CONFIG,
                "a latency, overhead or jitter of more than 1000 seconds is not a network");
        if (given[i]->bytes_per_second > limit * 1000 ||
            config->connection_bytes_per_second > limit * 1000 ||
            config->host_bytes_per_second > limit * 1000)
            return cd_fail(err, CDDP_E_CONFIG,
                           "a bandwidth of more than 10^15 bytes per second: 0 means infinite");
    }
    if (config->nics_per_node != 0 && config->ranks_per_node == 0)
        return cd_fail(err, CDDP_E_CONFIG, "nics_per_node is %u, but no ranks_per_node is given",
                       config->nics_per_node);
    *network = (cd_network){.config = *config,
                            .world_size = world_size,
                            .seed = seed,
                            .card = config->inter};
    network->has_bus = !costs_nothing(&config->bus);
    network->is_plain = !network->has_bus && config->connection_bytes_per_second == 0;
    network->bus_rate = slower(config->inter.bytes_per_second, config->bus.bytes_per_second);
    network->config.inter.bytes_per_second =
        slower(network->bus_rate, config->connection_bytes_per_second);
    return CDDP_OK;
}

uint64_t cd_link_busy_ns(const cd_link *link, uint64_t bytes)
{
    const uint64_t second = UINT64_C(1000000000);
    uint64_t rate = link->bytes_per_second;
    if (rate == 0) return 0;
    /* Whole seconds first, so that the product below stays under 2^64: rest < rate ≤ 10^15, and is
    ** split again. */
    uint64_t whole = bytes / rate, rest = bytes % rate;
    if (rest <= UINT64_MAX / second) return whole * second + (rest * second + rate - 1) / rate;
    return whole * second + (rest + rate / second - 1) / (rate / second);
}

uint64_t cd_network_latency_ns(const cd_network *network, uint32_t source, uint32_t target,
                               uint64_t ordinal)
{
    return cd_network_link(network, source, target)->latency_ns +
           cd_network_jitter_ns(network, source, target, ordinal);
}

uint64_t cd_network_jitter_ns(const cd_network *network, uint32_t source, uint32_t target,
                              uint64_t ordinal)
{
    if (network->config.jitter_ns == 0) return 0;
    uint64_t h =
        cd_hash_mix(cd_hash_mix(network->seed, ((uint64_t)source << 32) | target), ordinal);
    return h % (network->config.jitter_ns + 1);
}

uint32_t cd_network_port(const cd_network *network, uint32_t rank, uint32_t peer)
{
    const cd_network_config *c = &network->config;
    if (c->nics_per_node == 0 || cd_network_node(network, rank) == cd_network_node(network, peer))
        return rank;
    uint32_t local = rank % c->ranks_per_node;
    return network->world_size + cd_network_node(network, rank) * c->nics_per_node +
           local % c->nics_per_node;
}

/* Ports: of ranks inside the node; network cards, a node's or a rank's; of ranks on the bus. */
static uint32_t card_count(const cd_network *network)
{
    const cd_network_config *c = &network->config;
    if (c->nics_per_node == 0) return network->world_size;
    return (network->world_size + c->ranks_per_node - 1) / c->ranks_per_node * c->nics_per_node;
}

uint32_t cd_network_port_count(const cd_network *network)
{
    return 2 * network->world_size + card_count(network);
}

uint32_t cd_network_lane_port(const cd_network *network, uint32_t rank, cd_lane lane)
{
    const cd_network_config *c = &network->config;
    switch (lane) {
    case CD_LANE_CARD:
        if (c->nics_per_node == 0) return network->world_size + rank;
        return network->world_size + cd_network_node(network, rank) * c->nics_per_node +
               rank % c->ranks_per_node % c->nics_per_node;
    case CD_LANE_BUS:
    case CD_LANE_LANDING:
        return c->intra.is_pcie ? rank : network->world_size + card_count(network) + rank;
    case CD_LANE_NODE:
    case CD_LANE_CONNECTION:
    case CD_LANE_COUNT:
        break;
    }
    return rank;
}

/* ---- routes ---- */

static cd_route through(cd_lane lane, const cd_link *link, uint64_t bytes)
{
    return (cd_route){.lanes = {lane, CD_LANE_COUNT},
                      .lane_ns = {cd_link_busy_ns(link, bytes), 0},
                      .overhead_ns = link->overhead_ns,
                      .latency_ns = link->latency_ns,
                      .holds_receiver = true};
}

/* From one node to another. */
static cd_route between_nodes(const cd_network *network, bool hosts, uint64_t bytes)
{
    const cd_network_config *c = &network->config;
    cd_link slowest = network->card;
    cd_route route = through(hosts || c->nics_per_node != 0 ? CD_LANE_CARD : CD_LANE_NODE,
                             &network->card, bytes);
    if (network->has_bus && !hosts) {
        slowest.bytes_per_second = network->bus_rate;
        route.lanes[0] = c->intra.is_pcie ? CD_LANE_NODE : CD_LANE_BUS;
        route.lanes[1] = CD_LANE_CARD;
        route.lane_ns[1] = route.lane_ns[0];
        route.lane_ns[0] = cd_link_busy_ns(&slowest, bytes);
    }
    if (c->connection_bytes_per_second != 0) {
        slowest.bytes_per_second = slower(slowest.bytes_per_second, c->connection_bytes_per_second);
        route.connection_ns = cd_link_busy_ns(&slowest, bytes);
        route.is_capped = true;
    }
    return route;
}

cd_route cd_network_route(const cd_network *network, const cd_passage *passage, uint64_t bytes)
{
    const cd_network_config *c = &network->config;
    cd_lane bus = c->intra.is_pcie ? CD_LANE_NODE : CD_LANE_BUS;
    if (passage->from_host == passage->to_host) {
        bool inside =
            cd_network_node(network, passage->source) == cd_network_node(network, passage->target);
        return inside ? through(CD_LANE_NODE, &c->intra, bytes)
                      : between_nodes(network, passage->from_host, bytes);
    }
    cd_route route = through(passage->from_host ? CD_LANE_LANDING : bus, &c->bus, bytes);
    /* memory takes what comes; a device's side is held by the sender */
    route.holds_receiver = false;
    return route;
}

uint64_t cd_route_leave(const cd_route *route, uint64_t *time_ns,
                        uint64_t *const clocks[CD_LANE_COUNT])
{
    uint64_t *first = clocks[route->lanes[0]], *connection = clocks[CD_LANE_CONNECTION];
    if (*first > *time_ns) *time_ns = *first;
    if (route->is_capped && *connection > *time_ns) *time_ns = *connection;
    uint64_t start = *time_ns + route->overhead_ns;
    uint64_t end = *first = start + route->lane_ns[0];
    if (route->lanes[1] != CD_LANE_COUNT) {
        uint64_t *second = clocks[route->lanes[1]];
        *second = (*second > start ? *second : start) + route->lane_ns[1];
        if (*second > end) end = *second;
    }
    if (route->is_capped) {
        *connection = start + route->connection_ns;
        if (*connection > end) end = *connection;
    }
    return end;
}

uint64_t cd_network_host_ns(const cd_network *network, uint64_t bytes)
{
    const cd_link memory = {.bytes_per_second = network->config.host_bytes_per_second};
    return cd_link_busy_ns(&memory, 3 * bytes);
}
