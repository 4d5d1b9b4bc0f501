/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/clocks.h"

#include "cddp/backend.h"
#include "core/base/alloc.h"
#include "core/base/error.h"

#include <string.h>

#define MEETINGS_MAX 64 /* collectives of a group that are looked at */

void cd_clocks_init(cd_clocks *c, const cddp_allocator *allocator)
{
    *c = (cd_clocks){.allocator = allocator};
}

void cd_clocks_fini(cd_clocks *c)
{
    cd_release(c->allocator, c->domains, c->domain_capacity * sizeof *c->domains);
    cd_release(c->allocator, c->meetings, c->meeting_capacity * sizeof *c->meetings);
    cd_clocks_init(c, c->allocator);
}

cddp_status cd_clocks_add(cd_clocks *c, const cddp_shard_header *h, uint32_t *domain,
                          cddp_error *err)
{
    uint32_t i = 0;
    while (i < c->domain_count &&
           (strcmp(c->domains[i].host, h->host) != 0 || strcmp(c->domains[i].boot, h->boot) != 0))
        i++;
    if (i == c->domain_count) {
        if (!cd_vec_grow(c->allocator, (void **)&c->domains, &c->domain_capacity, i + 1u,
                         sizeof *c->domains))
            return cd_fail_memory(err, "the clocks of %u hosts", i + 1u);
        c->domains[c->domain_count++] =
            (cd_clocks_domain){.monotonic_ns = h->monotonic_ns, .realtime_ns = h->realtime_ns};
        memcpy(c->domains[i].host, h->host, sizeof h->host);
        memcpy(c->domains[i].boot, h->boot, sizeof h->boot);
    } else if (h->monotonic_ns < c->domains[i].monotonic_ns) {
        c->domains[i].monotonic_ns = h->monotonic_ns;
        c->domains[i].realtime_ns = h->realtime_ns;
    }
    *domain = i;
    return CDDP_OK;
}

/* Nobody leaves these before everybody has come. */
static bool is_meeting(int64_t op)
{
    return op == CDDP_OP_ALLREDUCE || op == CDDP_OP_ALLGATHER || op == CDDP_OP_BARRIER;
}

static cd_clocks_meeting *find(const cd_clocks *c, uint32_t domain, int64_t group, int64_t sequence)
{
    for (size_t i = 0; i < c->meeting_count; i++) {
        cd_clocks_meeting *m = &c->meetings[i];
        if (m->domain == domain && m->group == group && m->sequence == sequence) return m;
    }
    return NULL;
}

cddp_status cd_clocks_push(cd_clocks *c, uint32_t domain, const cddp_event *e, bool *is_enough,
                           cddp_error *err)
{
    *is_enough = false;
    if (e->kind == CDDP_EV_collective_post && is_meeting(e->as.collective_post.op)) {
        const cddp_event_collective_post *p = &e->as.collective_post;
        cd_clocks_meeting *m = find(c, domain, p->group, p->sequence);
        *is_enough = p->sequence >= MEETINGS_MAX;
        if (*is_enough) return CDDP_OK;
        if (m == NULL) {
            if (!cd_vec_grow(c->allocator, (void **)&c->meetings, &c->meeting_capacity,
                             c->meeting_count + 1, sizeof *c->meetings))
                return cd_fail_memory(err, "%zu collectives", c->meeting_count + 1);
            m = &c->meetings[c->meeting_count++];
            *m = (cd_clocks_meeting){.group = p->group, .sequence = p->sequence, .domain = domain};
        }
        if (e->time_ns > m->posted) m->posted = e->time_ns;
    } else if (e->kind == CDDP_EV_collective_done && e->as.collective_done.status == CDDP_OK) {
        const cddp_event_collective_done *d = &e->as.collective_done;
        cd_clocks_meeting *m = find(c, domain, d->group, d->sequence);
        if (m != NULL && (m->done == 0 || e->time_ns < m->done)) m->done = e->time_ns;
    }
    return CDDP_OK;
}

/* What the collectives say of the offset of a clock against the first one: not less than low, for
** nobody ended there before it was posted here, and not more than high. */
static void settle(const cd_clocks *c, cd_clocks_domain *d, uint32_t domain)
{
    const uint64_t base = c->domains[0].offset;
    int64_t low = INT64_MIN, high = INT64_MAX;
    for (size_t i = 0; i < c->meeting_count; i++) {
        const cd_clocks_meeting *there = &c->meetings[i];
        const cd_clocks_meeting *here =
            there->domain == domain ? find(c, 0, there->group, there->sequence) : NULL;
        if (here == NULL) continue;
        const int64_t least = (int64_t)(here->posted + base - there->done);
        const int64_t most = (int64_t)(here->done + base - there->posted);
        if (there->done != 0 && least > low) low = least;
        if (here->done != 0 && most < high) high = most;
    }
    const int64_t offset = (int64_t)d->offset;
    if (low > high) return; /* one of them was set while the job ran */
    if (offset < low || offset > high) {
        const bool is_open = low == INT64_MIN || high == INT64_MAX;
        const int64_t nearest = offset < low ? low : high;
        d->offset = (uint64_t)(is_open ? nearest : low + (high - low) / 2);
    }
}

void cd_clocks_settle(cd_clocks *c)
{
    for (uint32_t i = 0; i < c->domain_count; i++) {
        cd_clocks_domain *d = &c->domains[i];
        const cd_clocks_domain *first = &c->domains[0];
        d->offset = d->realtime_ns - first->realtime_ns - d->monotonic_ns;
        if (i > 0) settle(c, d, i);
    }
}

uint64_t cd_clocks_time(const cd_clocks *c, uint32_t domain, uint64_t time_ns)
{
    const uint64_t time = time_ns + c->domains[domain].offset;
    return (int64_t)time < 0 ? 0 : time;
}
