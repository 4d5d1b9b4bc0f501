/* SPDX-License-Identifier: Apache-2.0 */
/* A ring as a recurrence over rows of ranks. In position (step t, segment j) of every rank's program:
**
**     time[r] = max(time[r], arrival[r])              the segment from rank r+1 is here
**     port[r] = max(port[r], time[r]) + cost[r]       and is passed on to rank r-1
**     arrival'[r-1] = port[r] + latency[r]
**
** which is a loop without dependences between ranks. Cost depends on the chunk, and rank r handles chunk r+2+t, so the
** row of costs is one array per link class, read from a place that moves by one each step. Segments behind the end of
** the data have mask 0: they arrive at time 0, which changes nothing.
**
** Where all chunks are full, the costs of a row are the same in every step, and after the differences between ranks
*have
** levelled out a step only adds the same to every number of the state. From then on the rest is one multiplication
** (settle); it is looked for at steps 1, 2, 4, 8 ….
**
** Times are doubles because the instruction set has their maximum; every value is a whole number below 2^53, so sums
** are exact and the result does not depend on how the loop is compiled.
*/
#include "sim/ring_time.h"

#include <string.h>

/* The loop below is compiled twice where the compiler can choose at start: the bits are the same, see above. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) &&                       \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

typedef struct row {
    double *restrict time;
    double *restrict port;
    const double *restrict arrival;
    double *restrict passed; /* arrival at rank r-1 */
    const double *restrict cost;
    const double *restrict mask;
    const double *restrict latency;
} row;

static inline double later(double a, double b) { return a > b ? a : b; }

WIDE static void step_row(row x, size_t n)
{
    for (size_t r = 0; r < n; r++) {
        double time = later(x.time[r], x.arrival[r]);
        double port = later(x.port[r], time) + x.cost[r];
        x.time[r] = time;
        x.port[r] = port;
        x.passed[r] = (port + x.latency[r]) * x.mask[r];
    }
}

/* As step_row, where every chunk and every link is the same: less to read. */
WIDE static void step_uniform(row x, double cost, double latency, size_t n)
{
    for (size_t r = 0; r < n; r++) {
        double time = later(x.time[r], x.arrival[r]);
        double port = later(x.port[r], time) + cost;
        x.time[r] = time;
        x.port[r] = port;
        x.passed[r] = port + latency;
    }
}

/* As step_row, where links differ from rank to rank: x.cost is for links inside a node, far for those between. */
static void step_mixed(row x, const double *restrict far, const double *restrict is_far, size_t n)
{
    for (size_t r = 0; r < n; r++) {
        double time = later(x.time[r], x.arrival[r]);
        double port = later(x.port[r], time) + x.cost[r] + (far[r] - x.cost[r]) * is_far[r];
        x.time[r] = time;
        x.port[r] = port;
        x.passed[r] = (port + x.latency[r]) * x.mask[r];
    }
}

typedef struct tables {
    cd_ring_segments segments;
    size_t n;
    double *latency, *is_far; /* (n) */
    double
        *arrival; /* (2, segments, n + 1): place r + 1 is rank r's, place 0 is the last rank's again; used in turns */
    double *near_cost, *far_cost, *mask; /* (segments, 2n): by chunk, twice in a row */
    double *before;                      /* (2 + segments, n) a state, to compare with the next step's */
    bool is_full;                        /* all chunks are full: a row costs the same in every step */
    bool has_near, has_far, is_uniform;  /* uniform: all chunks are full, all links of one class */
} tables;

size_t cd_ring_time_scratch(const cd_program *program)
{
    size_t n = program->size, s = cd_ring_get_segments(program).per_chunk;
    return 2 * n + 2 * s * (n + 1) + 3 * s * 2 * n + (2 + s) * n;
}

static void fill_costs(const cd_ring_time *ring, tables *t)
{
    const cd_program *p = &ring->program;
    for (size_t j = 0; j < t->segments.per_chunk; j++)
        for (size_t chunk = 0; chunk < t->n; chunk++) {
            int64_t begin = ((int64_t)chunk * t->segments.per_chunk + (int64_t)j) * t->segments.elements;
            int64_t count = p->numel - begin < t->segments.elements ? p->numel - begin : t->segments.elements;
            bool exists = count > 0;
            uint64_t bytes = exists ? (uint64_t)count * p->element_bytes : 0;
            const cd_network_config *c = &ring->network->config;
            double near = exists ? (double)(c->intra.overhead_ns + cd_link_busy_ns(&c->intra, bytes)) : 0;
            double far = exists ? (double)(c->inter.overhead_ns + cd_link_busy_ns(&c->inter, bytes)) : 0;
            size_t at = j * 2 * t->n + chunk;
            t->near_cost[at] = t->near_cost[at + t->n] = near;
            t->far_cost[at] = t->far_cost[at + t->n] = far;
            t->mask[at] = t->mask[at + t->n] = exists ? 1 : 0;
        }
}

static tables make_tables(const cd_ring_time *ring)
{
    tables t = {.segments = cd_ring_get_segments(&ring->program), .n = ring->program.size};
    size_t n = t.n, s = t.segments.per_chunk;
    double *at = ring->scratch;
    t.latency = at;
    t.is_far = at += n;
    t.arrival = at += n;
    t.near_cost = at += 2 * s * (n + 1);
    t.far_cost = at += s * 2 * n;
    t.mask = at += s * 2 * n;
    t.before = at + s * 2 * n;
    for (size_t r = 0; r < n; r++) {
        uint32_t from = ring->ranks[r], to = ring->ranks[(r + n - 1) % n];
        bool far = cd_network_link(ring->network, from, to) == &ring->network->config.inter;
        t.is_far[r] = far;
        t.has_far |= far;
        t.has_near |= !far;
        t.latency[r] = (double)cd_network_link(ring->network, from, to)->latency_ns;
    }
    fill_costs(ring, &t);
    t.is_full = (int64_t)(n * s) * t.segments.elements == ring->program.numel;
    t.is_uniform = t.is_full && t.has_near != t.has_far;
    return t;
}

/* One position of every program: what arrived by `turn` is received, chunk r + first is passed on for the other turn.
 */
static void run_row(const cd_ring_time *ring, tables *t, size_t j, size_t first, size_t turn)
{
    size_t at = j * 2 * t->n + first, segments = t->segments.per_chunk;
    double *now = t->arrival + (turn * segments + j) * (t->n + 1),
           *next = t->arrival + ((1 - turn) * segments + j) * (t->n + 1);
    row x = {ring->time, ring->port, now + 1, next, t->near_cost + at, t->mask + at, t->latency};
    if (!t->has_near) x.cost = t->far_cost + at;
    if (t->is_uniform)
        step_uniform(x, x.cost[0], x.latency[0], t->n);
    else if (t->has_near && t->has_far)
        step_mixed(x, t->far_cost + at, t->is_far, t->n);
    else
        step_row(x, t->n);
    next[t->n] = next[0]; /* what rank 0 passed on arrives at the last rank */
}

/* Arrivals of segment j that the next step will look at. */
static double *arrivals(const tables *t, size_t j, size_t turn)
{
    return t->arrival + (turn * t->segments.per_chunk + j) * (t->n + 1);
}

static void run_step(const cd_ring_time *ring, tables *t, size_t step)
{
    for (size_t j = 0; j < t->segments.per_chunk; j++) run_row(ring, t, j, (2 + step) % t->n, (step + 1) % 2);
}

static void keep_state(const cd_ring_time *ring, const tables *t, size_t turn)
{
    size_t n = t->n;
    memcpy(t->before, ring->time, n * sizeof(double));
    memcpy(t->before + n, ring->port, n * sizeof(double));
    for (size_t j = 0; j < t->segments.per_chunk; j++)
        memcpy(t->before + (2 + j) * n, arrivals(t, j, turn) + 1, n * sizeof(double));
}

static bool differs_by(const double *now, const double *before, double delta, size_t n)
{
    for (size_t r = 0; r < n; r++)
        if (now[r] - before[r] != delta) return false;
    return true;
}

/* True when the step that led here added the same to everything; then the rest is added at once. */
static bool settle(const cd_ring_time *ring, tables *t, size_t turn, size_t steps_left)
{
    size_t n = t->n, segments = t->segments.per_chunk;
    double delta = ring->time[0] - t->before[0], rest = delta * (double)steps_left;
    bool same = differs_by(ring->time, t->before, delta, n) && differs_by(ring->port, t->before + n, delta, n);
    for (size_t j = 0; same && j < segments; j++)
        same = differs_by(arrivals(t, j, turn) + 1, t->before + (2 + j) * n, delta, n);
    if (!same) return false;
    /* The last step reads the arrivals of its own parity: both places get them. */
    for (size_t r = 0; r < n; r++) {
        ring->time[r] += rest;
        ring->port[r] += rest;
    }
    for (size_t j = 0; j < segments; j++)
        for (size_t r = 0; r <= n; r++) {
            arrivals(t, j, turn)[r] += rest;
            arrivals(t, j, 1 - turn)[r] = arrivals(t, j, turn)[r];
        }
    return true;
}

void cd_ring_time_run(const cd_ring_time *ring)
{
    tables t = make_tables(ring);
    size_t n = t.n, steps = 2 * (n - 1), segments = t.segments.per_chunk;
    memset(t.arrival, 0, 2 * segments * (n + 1) * sizeof *t.arrival);
    for (size_t j = 0; j < segments; j++) run_row(ring, &t, j, 1, 0);
    for (size_t step = 0; step + 1 < steps; step++) {
        bool looks = t.is_full && step > 1 && (step & (step - 1)) == 0; /* the first steps are not like the others */
        if (looks) keep_state(ring, &t, (step + 1) % 2);
        run_step(ring, &t, step);
        if (looks && settle(ring, &t, step % 2, steps - 2 - step)) break;
    }
    for (size_t j = 0; j < segments; j++)
        for (size_t r = 0; r < n; r++)
            ring->time[r] = later(ring->time[r], t.arrival[((steps % 2) * segments + j) * (n + 1) + r + 1]);
}
