/* SPDX-License-Identifier: Apache-2.0 */
/* A ring as a recurrence over rows of ranks. In position (step t, segment j) of every rank's
** program:
**
**     time[r] = max(time[r], arrival[r])              the segment from rank r+1 is here
**     port[r] = max(port[r], time[r]) + cost[r]       and is passed on to rank r-1
**     arrival'[r-1] = port[r] + latency[r]
**
** which is a loop without dependences between ranks. Cost depends on the chunk, and rank r handles
** chunk r+2+t, so the row of costs is one array per link class, read from a place that moves by one
** each step. Segments behind the end of the data have mask 0: they arrive at time 0, which changes
** nothing.
**
** An all-reduce takes 2(N-1) steps. A reduce-scatter is its first half. An all-gather takes as many
** steps as that and goes the other way round: place r of a row is then rank N-1-r.
**
** Note [Steady chunks]: follow a chunk around the ring. Its state after a step is that of the rank
** which then handled it: time, port, and what it passed on. In the next step the neighbour handles
** it, whose time and port are in the state of the chunk before it:
**
**     chunk c after step t+1  =  f(chunk c after step t, chunk c-1 after step t,
**                                  what c costs on the link that it reaches)
**
** Compare every step with the one `period` steps before it. When those added the same d to all of
** the states of c and of c-1, and the link costs what the one `period` ranks before costs, the next
** step adds d to the state of c as well: it need not be looked at. The period is the number of
** ranks in a node, where links inside and between nodes alternate. What is left to look at are the
** chunk that is not full, the empty ones, what stands behind them, and whatever passes a node of
** another size; so a step costs as much as there are such places, and not as much as there are
** ranks. Until this is so steps are made for the whole row; whether it is so is seen every now and
** then. The period decides how soon that is, never what comes out.
**
** Times are doubles because the instruction set has their maximum; every value is a whole number
** below 2^53, so sums are exact and the result does not depend on how the loop is compiled.
*/
#include "sim/ring_time.h"

#include <math.h>
#include <string.h>

/* The loop below is compiled twice where the compiler can choose at start: the bits are the same,
** see above. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#define FEW 16        /* a chunk alone costs about as much as this many in a row */
#define PERIOD_MAX 64 /* where nodes are larger, few links are between nodes */

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

/* As step_row, where links differ from rank to rank: x.cost is for links inside a node, far for
** those between. */
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
    /* (2, segments, n + 1): place r + 1 is rank r's, place 0 is the last rank's again; used in
    ** turns */
    double *arrival;
    double *near_cost, *far_cost, *mask; /* (segments, 2n): by chunk, twice in a row */
    bool has_near, has_far, is_uniform;  /* uniform: all chunks are full, all links of one class */
    /* Note [Steady chunks]. A state has 2 + segments fields: time, port, and what was passed on of
    ** each segment. */
    size_t period;
    double *past; /* (period, fields, n) states by step modulo period, up to the chunk's `made` */
    /* (n) what `period` steps added to all of a chunk's state; NaN: not the same to all */
    double *growth;
    double *made;   /* (n) the last step that was made for this chunk */
    double *due;    /* (n) chunks of the step to be made */
    double *next;   /* (n) … and of the one after it */
    double *queued; /* (n) the last step that a chunk was queued for */
    double *before; /* (2, n) time and port of the chunks before those that are due */
    double *edges;  /* (n) ranks whose link differs from that of the rank `period` behind them */
    size_t edge_count, due_count;
} tables;

static bool is_whole_ring(const cd_program *p) { return p->op == CDDP_OP_ALLREDUCE; }
static bool goes_up(const cd_program *p) { return p->op == CDDP_OP_ALLGATHER; }

/* Elements that a member gives to an all-gather, or gets of a reduce-scatter. */
static int64_t share_of(const cd_program *p)
{
    return goes_up(p) ? p->numel : p->numel / (int64_t)p->size;
}

static cd_ring_segments segments_of(const cd_program *p)
{
    return is_whole_ring(p) ? cd_ring_get_segments(p) : (cd_ring_segments){1, share_of(p)};
}

static int64_t numel_of(const cd_program *p)
{
    return is_whole_ring(p) ? p->numel : share_of(p) * (int64_t)p->size;
}

static uint32_t rank_at(const cd_ring_time *ring, size_t place)
{
    return ring->ranks[goes_up(&ring->program) ? ring->program.size - 1 - place : place];
}

/* A ring with so many times more ranks than chunks that are not empty is walked faster, message by
** message. */
#define SPARSE 64

static bool is_sparse(const cd_program *p)
{
    const int64_t chunk = p->ring.elements * p->ring.per_chunk;
    return chunk == 0 || (p->numel + chunk - 1) / chunk * SPARSE < p->size;
}

bool cd_ring_time_suits(const cd_program *p)
{
    const bool is_star =
        p->algorithm == CD_ALGORITHM_flat || p->algorithm == CD_ALGORITHM_any_order;
    if (p->size < 2) return false;
    switch (p->op) {
    case CDDP_OP_ALLREDUCE:
        return cd_algorithm_is_ring(p->algorithm) && !is_sparse(p);
    case CDDP_OP_ALLGATHER:
        return p->counts == NULL && p->numel > 0;
    case CDDP_OP_REDUCE_SCATTER:
        return !is_star && p->counts == NULL && share_of(p) > 0;
    default:
        return false;
    }
}

static size_t longest_period(const cd_program *program)
{
    size_t n = program->ranks_per_node;
    return n > 1 && n <= PERIOD_MAX && n < program->size ? n : 1;
}

size_t cd_ring_time_scratch(const cd_program *program)
{
    size_t n = program->size, s = segments_of(program).per_chunk;
    return 2 * n + 2 * s * (n + 1) + 3 * s * 2 * n + longest_period(program) * (2 + s) * n + 8 * n;
}

static void fill_costs(const cd_ring_time *ring, tables *t)
{
    const cd_program *p = &ring->program;
    const int64_t numel = numel_of(p);
    for (size_t j = 0; j < t->segments.per_chunk; j++)
        for (size_t chunk = 0; chunk < t->n; chunk++) {
            int64_t begin =
                ((int64_t)chunk * t->segments.per_chunk + (int64_t)j) * t->segments.elements;
            int64_t count =
                numel - begin < t->segments.elements ? numel - begin : t->segments.elements;
            bool exists = count > 0;
            uint64_t bytes = exists ? (uint64_t)count * p->element_bytes : 0;
            const cd_network_config *c = &ring->network->config;
            double near =
                exists ? (double)(c->intra.overhead_ns + cd_link_busy_ns(&c->intra, bytes)) : 0;
            double far =
                exists ? (double)(c->inter.overhead_ns + cd_link_busy_ns(&c->inter, bytes)) : 0;
            size_t at = j * 2 * t->n + chunk;
            t->near_cost[at] = t->near_cost[at + t->n] = near;
            t->far_cost[at] = t->far_cost[at + t->n] = far;
            t->mask[at] = t->mask[at + t->n] = exists ? 1 : 0;
        }
}

static tables make_tables(const cd_ring_time *ring)
{
    tables t = {.segments = segments_of(&ring->program), .n = ring->program.size};
    size_t n = t.n, s = t.segments.per_chunk;
    double *at = ring->scratch;
    t.latency = at;
    t.is_far = at += n;
    t.arrival = at += n;
    t.near_cost = at += 2 * s * (n + 1);
    t.far_cost = at += s * 2 * n;
    t.mask = at += s * 2 * n;
    t.past = at += s * 2 * n;
    t.growth = at += longest_period(&ring->program) * (2 + s) * n;
    t.made = at += n;
    t.due = at += n;
    t.next = at += n;
    t.queued = at += n;
    t.edges = at += n;
    t.before = at + n;
    for (size_t r = 0; r < n; r++) {
        uint32_t from = rank_at(ring, r), to = rank_at(ring, (r + n - 1) % n);
        bool far = cd_network_link(ring->network, from, to) == &ring->network->config.inter;
        t.is_far[r] = far;
        t.has_far |= far;
        t.has_near |= !far;
        t.latency[r] = (double)cd_network_link(ring->network, from, to)->latency_ns;
    }
    fill_costs(ring, &t);
    bool is_full = (int64_t)(n * s) * t.segments.elements == numel_of(&ring->program);
    t.is_uniform = is_full && t.has_near != t.has_far;
    t.period = t.has_near && t.has_far ? longest_period(&ring->program) : 1;
    for (size_t r = 0; r < n; r++) {
        size_t behind = (r + t.period) % n;
        if (t.is_far[r] != t.is_far[behind] || t.latency[r] != t.latency[behind])
            t.edges[t.edge_count++] = (double)r;
    }
    return t;
}

/* One position of every program: what arrived by `turn` is received, chunk r + first is passed on
** for the other turn.
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

/* The times at which every rank passed on segment j in a step: arrivals of the next step. */
static double *passed_in(const tables *t, size_t j, size_t step)
{
    return t->arrival + (step % 2 * t->segments.per_chunk + j) * (t->n + 1);
}

static void run_step(const cd_ring_time *ring, tables *t, size_t step)
{
    for (size_t j = 0; j < t->segments.per_chunk; j++)
        run_row(ring, t, j, (2 + step) % t->n, (step + 1) % 2);
}

/* ---- steady chunks ---- */

static size_t chunk_of(const tables *t, size_t rank, size_t step)
{
    return (rank + 2 + step) % t->n;
}

static size_t rank_of(const tables *t, size_t chunk, size_t step)
{
    return (chunk + 2 * t->n - (2 + step) % t->n) % t->n;
}

static double *past_of(const tables *t, size_t step, size_t field)
{
    return t->past + (step % t->period * (2 + t->segments.per_chunk) + field) * t->n;
}

/* From the order of ranks to that of chunks. */
static void turn(const tables *t, double *chunks, const double *ranks, size_t step)
{
    size_t first = chunk_of(t, 0, step);
    memcpy(chunks + first, ranks, (t->n - first) * sizeof(double));
    memcpy(chunks, ranks + (t->n - first), first * sizeof(double));
}

/* A row was made for all: every state after `step`. */
static void keep_row(const cd_ring_time *ring, const tables *t, size_t step)
{
    turn(t, past_of(t, step, 0), ring->time, step);
    turn(t, past_of(t, step, 1), ring->port, step);
    for (size_t j = 0; j < t->segments.per_chunk; j++)
        turn(t, past_of(t, step, 2 + j), passed_in(t, j, step), step);
}

/* A chunk's state after a step, made or not. */
static double state_after(const tables *t, size_t chunk, size_t step, size_t field)
{
    size_t made = (size_t)t->made[chunk];
    double state = past_of(t, step, field)[chunk];
    return step > made
               ? state + t->growth[chunk] * (double)((step - made + t->period - 1) / t->period)
               : state;
}

/* Before `step` is made for a chunk that was not looked at: its states of the period before it. */
static void catch_up(tables *t, size_t chunk, size_t step)
{
    size_t made = (size_t)t->made[chunk],
           first = step - t->period > made ? step - t->period : made + 1;
    if (made + 1 == step) return;
    for (size_t x = first; x < step; x++)
        for (size_t field = 0; field < 2 + t->segments.per_chunk; field++)
            past_of(t, x, field)[chunk] = state_after(t, chunk, x, field);
    t->made[chunk] = (double)(step - 1);
}

/* True when a chunk must be computed in the next step, on any link. */
static bool is_restless(const tables *t, size_t chunk)
{
    return !(t->growth[chunk] == t->growth[chunk > 0 ? chunk - 1 : t->n - 1]); /* NaN is */
}

static void queue_chunk(tables *t, size_t chunk, size_t step, size_t *count)
{
    if (t->queued[chunk] == (double)step) return;
    t->queued[chunk] = (double)step;
    t->next[(*count)++] = (double)chunk;
}

/* These, and the chunks on another link than `period` steps before, are all chunks due at
** `step`. */
static void take_queue(tables *t, size_t step, size_t count)
{
    for (size_t e = 0; e < t->edge_count; e++)
        queue_chunk(t, chunk_of(t, (size_t)t->edges[e], step), step, &count);
    double *due = t->due;
    t->due = t->next;
    t->next = due;
    t->due_count = count;
}

/* Puts the new state of a field in the place of the one a period ago; returns how much it grew. */
static double replace(const tables *t, size_t chunk, size_t step, size_t field, double state)
{
    double *place = &past_of(t, step, field)[chunk], growth = state - *place;
    *place = state;
    return growth;
}

/* After `step` was made for all, with the rows of the period before it kept. */
static void find_due(const cd_ring_time *ring, tables *t, size_t step)
{
    size_t count = 0;
    for (size_t c = 0; c < t->n; c++) {
        size_t r = rank_of(t, c, step);
        double growth = replace(t, c, step, 0, ring->time[r]);
        bool same = replace(t, c, step, 1, ring->port[r]) == growth;
        for (size_t j = 0; j < t->segments.per_chunk; j++)
            same = replace(t, c, step, 2 + j, passed_in(t, j, step)[r]) == growth && same;
        t->growth[c] = same ? growth : NAN;
        t->made[c] = (double)step;
        t->queued[c] = 0;
    }
    for (size_t c = 0; c < t->n; c++)
        if (is_restless(t, c)) queue_chunk(t, c, step + 1, &count);
    take_queue(t, step + 1, count);
}

/* The i-th chunk that is due. */
static void step_chunk(tables *t, size_t i, size_t step)
{
    size_t chunk = (size_t)t->due[i], r = rank_of(t, chunk, step);
    double time = t->before[i], port = t->before[t->n + i], growth = NAN;
    bool same = true;
    for (size_t j = 0; j < t->segments.per_chunk; j++) {
        size_t at = j * 2 * t->n + chunk;
        time = later(time, past_of(t, step - 1, 2 + j)[chunk]);
        port = later(port, time) + (t->is_far[r] != 0 ? t->far_cost[at] : t->near_cost[at]);
        double grew = replace(t, chunk, step, 2 + j, (port + t->latency[r]) * t->mask[at]);
        if (j == 0) growth = grew;
        same = same && grew == growth;
    }
    same = replace(t, chunk, step, 0, time) == growth && same;
    same = replace(t, chunk, step, 1, port) == growth && same;
    t->growth[chunk] = same ? growth : NAN;
    t->made[chunk] = (double)step;
}

/* Makes a step for the chunks that are due. */
static void run_due(tables *t, size_t step)
{
    size_t n = t->n, count = 0;
    for (size_t i = 0; i < t->due_count; i++) {
        size_t chunk = (size_t)t->due[i], before = chunk > 0 ? chunk - 1 : n - 1;
        t->before[i] = state_after(t, before, step - 1, 0);
        t->before[n + i] = state_after(t, before, step - 1, 1);
        catch_up(t, chunk, step);
    }
    for (size_t i = 0; i < t->due_count; i++) step_chunk(t, i, step);
    for (size_t i = 0; i < t->due_count; i++) {
        size_t chunk = (size_t)t->due[i], behind = chunk + 1 < n ? chunk + 1 : 0;
        if (is_restless(t, chunk)) queue_chunk(t, chunk, step + 1, &count);
        if (is_restless(t, behind)) queue_chunk(t, behind, step + 1, &count);
    }
    take_queue(t, step + 1, count);
}

/* Makes steps for the chunks that are due as long as they are few; returns the last one that was
** made. Everything stands as after it then. */
static size_t run_few(const cd_ring_time *ring, tables *t, size_t step, size_t last)
{
    while (step < last && t->due_count <= t->n / FEW) run_due(t, ++step);
    for (size_t c = 0; c < t->n; c++) {
        size_t r = rank_of(t, c, step);
        ring->time[r] = state_after(t, c, step, 0);
        ring->port[r] = state_after(t, c, step, 1);
        for (size_t j = 0; j < t->segments.per_chunk; j++)
            passed_in(t, j, step)[r] = state_after(t, c, step, 2 + j);
    }
    for (size_t j = 0; j < t->segments.per_chunk; j++)
        passed_in(t, j, step)[t->n] = passed_in(t, j, step)[0];
    return step;
}

/* Between the order of ranks and that of places. */
static void reverse(double *places, size_t n)
{
    for (size_t r = 0; r < n / 2; r++) {
        const double kept = places[r];
        places[r] = places[n - 1 - r];
        places[n - 1 - r] = kept;
    }
}

static void run(const cd_ring_time *ring)
{
    tables t = make_tables(ring);
    size_t n = t.n, steps = (is_whole_ring(&ring->program) ? 2 : 1) * (n - 1),
           segments = t.segments.per_chunk;
    memset(t.arrival, 0, 2 * segments * (n + 1) * sizeof *t.arrival);
    for (size_t j = 0; j < segments; j++) run_row(ring, &t, j, 1, 0);
    size_t look = t.period + 1, pause = t.period; /* the first step is not like the others */
    for (size_t step = 0; step + 1 < steps; step++) {
        run_step(ring, &t, step);
        if (step == look) {
            find_due(ring, &t, step);
            bool are_few = t.due_count <= n / FEW / 2;
            if (are_few) step = run_few(ring, &t, step, steps - 2);
            /* looking costs more than a period of steps */
            pause = are_few ? t.period : pause + pause / 2 + 1;
            look = step + pause;
        } else if (step + t.period >= look) {
            keep_row(ring, &t, step);
        }
    }
    for (size_t j = 0; j < segments; j++)
        for (size_t r = 0; r < n; r++)
            ring->time[r] =
                later(ring->time[r], t.arrival[((steps % 2) * segments + j) * (n + 1) + r + 1]);
}

void cd_ring_time_run(const cd_ring_time *ring)
{
    const size_t n = ring->program.size;
    const bool up = goes_up(&ring->program);
    if (up) reverse(ring->time, n);
    if (up) reverse(ring->port, n);
    run(ring);
    if (up) reverse(ring->time, n);
    if (up) reverse(ring->port, n);
}
