/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model: which link, how long on it, which ports. */
#include "sim/network.h"

#include "core/base/error.h"
#include "core/base/hash.h"

#include <string.h>

static const cd_link links[CD_LINK_KIND_COUNT] = {
#define CD_LINK(id, name, latency, bandwidth, overhead, source) {name, latency, bandwidth, overhead},
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

cddp_status cd_network_init(cd_network *network, const cd_network_config *config, uint32_t world_size, uint64_t seed,
                            cddp_error *err)
{
    const uint64_t limit = UINT64_C(1000000000000); /* keeps sums of times and products with bytes far from overflow */
    if (config->intra.latency_ns > limit || config->inter.latency_ns > limit || config->jitter_ns > limit ||
        config->intra.overhead_ns > limit || config->inter.overhead_ns > limit)
        return cd_fail(err, CDDP_E_CONFIG, "a latency, overhead or jitter of more than 1000 seconds is not a network");
    if (config->intra.bytes_per_second > limit * 1000 || config->inter.bytes_per_second > limit * 1000)
        return cd_fail(err, CDDP_E_CONFIG, "a bandwidth of more than 10^15 bytes per second: 0 means infinite");
    if (config->nics_per_node != 0 && config->ranks_per_node == 0)
        return cd_fail(err, CDDP_E_CONFIG, "nics_per_node is %u, but no ranks_per_node is given",
                       config->nics_per_node);
    *network = (cd_network){.config = *config, .world_size = world_size, .seed = seed};
    return CDDP_OK;
}

uint64_t cd_link_busy_ns(const cd_link *link, uint64_t bytes)
{
    const uint64_t second = UINT64_C(1000000000);
    uint64_t rate = link->bytes_per_second;
    if (rate == 0) return 0;
    /* Whole seconds first, so that the product below stays under 2^64: rest < rate ≤ 10^15, and is split again. */
    uint64_t whole = bytes / rate, rest = bytes % rate;
    if (rest <= UINT64_MAX / second) return whole * second + (rest * second + rate - 1) / rate;
    return whole * second + (rest + rate / second - 1) / (rate / second);
}

uint64_t cd_network_latency_ns(const cd_network *network, uint32_t source, uint32_t target, uint64_t ordinal)
{
    uint64_t latency = cd_network_link(network, source, target)->latency_ns;
    if (network->config.jitter_ns == 0) return latency;
    uint64_t h = cd_hash_mix(cd_hash_mix(network->seed, ((uint64_t)source << 32) | target), ordinal);
    return latency + h % (network->config.jitter_ns + 1);
}

uint32_t cd_network_port(const cd_network *network, uint32_t rank, uint32_t peer)
{
    const cd_network_config *c = &network->config;
    if (c->nics_per_node == 0 || cd_network_node(network, rank) == cd_network_node(network, peer)) return rank;
    uint32_t local = rank % c->ranks_per_node;
    return network->world_size + cd_network_node(network, rank) * c->nics_per_node + local % c->nics_per_node;
}

uint32_t cd_network_port_count(const cd_network *network)
{
    const cd_network_config *c = &network->config;
    if (c->nics_per_node == 0) return network->world_size;
    uint32_t nodes = (network->world_size + c->ranks_per_node - 1) / c->ranks_per_node;
    return network->world_size + nodes * c->nics_per_node;
}
