/* SPDX-License-Identifier: Apache-2.0 */
/* One time line for shards of several hosts.
**
** Shards with equal host and boot have the same monotonic clock. Another host's clock is placed by
** its wall clock, then moved as far as the collectives demand: none ends on one host before it was
** posted on another one. Order within a rank never depends on this; the report's times do.
**
** Lifetime   init → add every shard → settle → read → fini.
** Errors     no memory.
*/
#pragma once
#include "cddp/shard.h"

typedef struct cd_clocks_domain {
    char host[64], boot[64];
    uint64_t monotonic_ns, realtime_ns; /* of its shard that was opened first */
    uint64_t offset;                    /* to be added to its times, modulo 2^64 */
} cd_clocks_domain;

/* A collective, as the hosts saw it. */
typedef struct cd_clocks_meeting {
    int64_t group, sequence;
    uint32_t domain;
    uint64_t posted, done; /* the last post and the first end of the domain; 0: none */
} cd_clocks_meeting;

typedef struct cd_clocks {
    const cddp_allocator *allocator;
    cd_clocks_domain *domains; /* (domain_count) */
    size_t domain_count, domain_capacity;
    cd_clocks_meeting *meetings; /* (meeting_count) */
    size_t meeting_count, meeting_capacity;
} cd_clocks;

void cd_clocks_init(cd_clocks *clocks, const cddp_allocator *allocator);
void cd_clocks_fini(cd_clocks *clocks);
/* *domain: the clock of the shard. */
cddp_status cd_clocks_add(cd_clocks *clocks, const cddp_shard_header *header, uint32_t *domain,
                          cddp_error *err) CDDP_MUST_CHECK;
/* Enough is known of this shard's collectives once it returns true. */
cddp_status cd_clocks_push(cd_clocks *clocks, uint32_t domain, const cddp_event *event,
                           bool *is_enough, cddp_error *err) CDDP_MUST_CHECK;
void cd_clocks_settle(cd_clocks *clocks);
uint64_t cd_clocks_time(const cd_clocks *clocks, uint32_t domain, uint64_t time_ns);
