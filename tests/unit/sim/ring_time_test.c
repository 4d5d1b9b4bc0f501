/* SPDX-License-Identifier: Apache-2.0 */
/* A ring's time against a walk through its programs, message by message, over rings of hundreds of
** ranks: there most chunks are steady and few are followed (Note [Steady chunks] in
** sim/ring_time.c). */
#include "core/base/prng.h"
#include "sim/ring_time.h"
#include "tests/support/test.h"

#include <stdlib.h>

#define RANKS_MAX 300

/* What is on its way to each rank: all from its neighbour, so in order. */
typedef struct walker {
    uint64_t time, port;
    uint32_t action;
    uint64_t *inbox; /* (capacity) arrival times */
    size_t sent, taken;
} walker;

typedef struct ring {
    cd_network network;
    cd_program program;
    uint32_t ranks[RANKS_MAX];
    uint64_t start[RANKS_MAX], port[RANKS_MAX];
} ring;

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* As far as a rank comes with what has been sent to it; true when it has finished. */
static bool walk(const ring *x, walker *walkers, uint32_t rank)
{
    cd_program program = x->program;
    walker *w = &walkers[rank];
    cd_action a;
    program.rank = rank;
    for (; cd_program_get(&program, w->action, &a); w->action++) {
        if (a.count == 0) continue;
        if (a.kind == CD_ACTION_SEND) {
            const cd_link *link = cd_network_link(&x->network, x->ranks[rank], x->ranks[a.peer]);
            walker *to = &walkers[a.peer];
            w->port = later(w->port, w->time) + link->overhead_ns +
                      cd_link_busy_ns(link, (uint64_t)a.count * program.element_bytes);
            to->inbox[to->sent++] = w->port + link->latency_ns;
        } else {
            if (w->taken == w->sent) return false;
            w->time = later(w->time, w->inbox[w->taken++]);
        }
    }
    return true;
}

static void compare(const ring *x)
{
    const uint32_t n = x->program.size;
    const size_t capacity = (size_t)2 * n * x->program.ring.per_chunk;
    walker *walkers = calloc(n, sizeof *walkers);
    uint64_t *inboxes = calloc(n * capacity, sizeof *inboxes);
    double *times = calloc(2 * n + cd_ring_time_scratch(&x->program), sizeof *times),
           *ports = times + n;
    assert_true(walkers != NULL && inboxes != NULL && times != NULL);
    for (uint32_t r = 0; r < n; r++) {
        walkers[r] =
            (walker){.time = x->start[r], .port = x->port[r], .inbox = inboxes + r * capacity};
        times[r] = (double)x->start[r];
        ports[r] = (double)x->port[r];
    }
    for (uint32_t finished = 0; finished < n;) {
        finished = 0;
        for (uint32_t r = n; r-- > 0;) finished += walk(x, walkers, r);
    }
    cd_ring_time_run(&(cd_ring_time){&x->network, x->program, x->ranks, times, ports, ports + n});
    for (uint32_t r = 0; r < n; r++) {
        assert_int_equal((uint64_t)times[r], walkers[r].time);
        /* A port that is free before its rank has finished is free for whatever the rank does
        ** next. */
        assert_int_equal(later((uint64_t)ports[r], walkers[r].time),
                         later(walkers[r].port, walkers[r].time));
    }
    free(times);
    free(inboxes);
    free(walkers);
}

static cd_link draw_link(cd_prng *prng)
{
    if (cd_prng_chance(prng, 1, 2))
        return *cd_link_get((cd_link_kind)cd_prng_below(prng, CD_LINK_KIND_COUNT));
    return (cd_link){.name = "",
                     .latency_ns = cd_prng_below(prng, 20000),
                     .bytes_per_second = cd_prng_below(prng, 4) * 1000000007,
                     .overhead_ns = cd_prng_below(prng, 3) * 450};
}

static void draw_starts(ring *x, cd_prng *prng)
{
    static const uint64_t spreads[] = {0, 1, 100, 50000, 5000000};
    const uint64_t spread = spreads[cd_prng_below(prng, 5)], busy = spreads[cd_prng_below(prng, 5)];
    const bool one_is_late = cd_prng_chance(prng, 1, 3);
    const uint32_t straggler = (uint32_t)cd_prng_below(prng, x->program.size);
    for (uint32_t r = 0; r < x->program.size; r++) {
        x->start[r] =
            1000 + (one_is_late ? (r == straggler) * spread : cd_prng_below(prng, spread + 1));
        x->port[r] = x->start[r] + cd_prng_below(prng, busy + 1);
    }
}

/* Numbers of elements around those that fill all chunks, down to where chunks and segments are
** empty. */
static int64_t draw_numel(uint32_t n, cd_prng *prng)
{
    const int64_t full = (int64_t)n * 2 * cd_prng_between(prng, 1, 3000);
    switch (cd_prng_below(prng, 4)) {
    case 0:
        return full;
    case 1:
        return full - 1;
    case 2:
        return full - cd_prng_between(prng, 0, full / (int64_t)n * 3);
    default:
        return cd_prng_between(prng, 1, full);
    }
}

static void draw(ring *x, cd_prng *prng)
{
    static const uint32_t nodes[] = {0, 1, 2, 7, 8, 16, 64, 65, 150, RANKS_MAX};
    const cd_network_config config = {.ranks_per_node = nodes[cd_prng_below(prng, 10)],
                                      .intra = draw_link(prng),
                                      .inter = draw_link(prng)};
    const uint32_t n =
        (uint32_t)(cd_prng_chance(prng, 1, 4) ? cd_prng_between(prng, 2, 40)
                                              : cd_prng_between(prng, 40, RANKS_MAX));
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cd_network_init(&x->network, &config, RANKS_MAX, 1, &err), &err);
    for (uint32_t r = 0; r < RANKS_MAX; r++) x->ranks[r] = r;
    if (cd_prng_chance(prng, 1, 5)) cd_prng_shuffle(prng, x->ranks, RANKS_MAX);
    x->program = (cd_program){.algorithm = cd_prng_chance(prng, 1, 2) ? CD_ALGORITHM_ring
                                                                      : CD_ALGORITHM_gloo_ring,
                              .op = CDDP_OP_ALLREDUCE,
                              .size = n,
                              .ranks_per_node = config.ranks_per_node,
                              .numel = draw_numel(n, prng),
                              .element_bytes = 4};
    x->program.ring = cd_ring_get_segments(&x->program);
    if (cd_prng_chance(prng, 1, 2)) {
        const bool gathers = cd_prng_chance(prng, 1, 2);
        const int64_t share = cd_prng_between(prng, 1, 3000);
        x->program.op = gathers ? CDDP_OP_ALLGATHER : CDDP_OP_REDUCE_SCATTER;
        x->program.numel = gathers ? share : share * (int64_t)n;
    }
    draw_starts(x, prng);
}

TEST(ring_time, is_what_its_messages_take)
{
    (void)state;
    static ring x;
    const cd_prng seed = cd_prng_seed(cd_test_seed());
    for (uint64_t i = 0; i < 300; i++) {
        cd_prng prng = cd_prng_split_index(&seed, "ring", i);
        draw(&x, &prng);
        cd_test_row("ring %llu: %s, %u ranks in nodes of %u, %lld elements, %u segments per chunk",
                    (unsigned long long)i, cddp_op_name(x.program.op), x.program.size,
                    x.program.ranks_per_node, (long long)x.program.numel, x.program.ring.per_chunk);
        compare(&x);
    }
}

TEST_MAIN()
