/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a world, runs it once or several times, reports the end of each rank; and the world port.
**
**   block:  cd_sim | memory of all ranks | guard, stack of rank 0 | guard, stack of rank 1 | …
**
** begin makes everything anew inside the block, so that a second launch equals the first.
*/
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/os_fault.h"
#include "core/base/os_ticker.h"
#include "sim/ground.h"
#include "sim/state.h"
#include "sim/stream.h"

#include <string.h>

#define DEFAULT_STACK_BYTES ((size_t)256 * 1024)
#define DEFAULT_DEVIATIONS 65536u
#define WORLD_SIZE_MAX 65536u

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/* ---- configuration ---- */

static void fill_defaults(cd_sim_config *c)
{
    if (c->stack_bytes == 0) c->stack_bytes = DEFAULT_STACK_BYTES;
    if (c->heap_bytes == 0) c->heap_bytes = ((size_t)64 << 20) + ((size_t)1 << 20) * c->world_size;
    if (c->time_limit_ns == 0) c->time_limit_ns = UINT64_C(3600000000000);
    if (c->deviations_max == 0) c->deviations_max = DEFAULT_DEVIATIONS;
}

static cddp_status check_config(const cd_sim_config *c, cddp_error *err)
{
    if (c == NULL) return cd_fail(err, CDDP_E_ARG, "a world needs a configuration");
    if (c->world_size == 0 || c->world_size > WORLD_SIZE_MAX)
        return cd_fail(err, CDDP_E_CONFIG, "a simulated world has 1 to %u ranks, not %u",
                       WORLD_SIZE_MAX, c->world_size);
    if ((unsigned)c->algorithm >= CD_ALGORITHM_COUNT)
        return cd_fail(err, CDDP_E_CONFIG, "there is no all-reduce algorithm %d",
                       (int)c->algorithm);
    if ((unsigned)c->transport > CD_SIM_MESSAGES)
        return cd_fail(err, CDDP_E_CONFIG, "there is no transport %d", (int)c->transport);
    if (c->stack_bytes != 0 && c->stack_bytes < 16384)
        return cd_fail(err, CDDP_E_CONFIG,
                       "a rank's stack of %zu bytes is too small; at least 16384", c->stack_bytes);
    if (c->delay_permille > 1000000)
        return cd_fail(err, CDDP_E_CONFIG,
                       "delay_permille of %u: a thousand times its time is the most",
                       c->delay_permille);
    if (c->compute_permille > 1000000)
        return cd_fail(err, CDDP_E_CONFIG,
                       "compute_permille of %u: a thousand times slower is the most",
                       c->compute_permille);
    if (c->launch_ns > UINT64_C(1000000000000))
        return cd_fail(err, CDDP_E_CONFIG, "a launch of more than 1000 seconds is not one");
    if (c->fault_count > 0 && c->faults == NULL)
        return cd_fail(err, CDDP_E_ARG, "%zu faults, but no array of them", c->fault_count);
    if (c->algorithm == CD_ALGORITHM_any_order && c->transport == CD_SIM_MODEL)
        return cd_fail(
            err, CDDP_E_CONFIG,
            "algorithm any_order has no static graph to time: use transport direct or messages");
    for (size_t i = 0; i < c->fault_count; i++) {
        CD_TRY(cd_fault_check(&c->faults[i], c->world_size, err));
        if (cd_fault_get_scope(c->faults[i].kind) == CD_FAULT_ON_LINK &&
            c->transport != CD_SIM_MESSAGES)
            return cd_fail(err, CDDP_E_CONFIG,
                           "fault %s needs transport messages: there are no links otherwise",
                           cd_fault_name(c->faults[i].kind));
    }
    return CDDP_OK;
}

/* ---- the host part ---- */

#define HOST_BLOCK_BYTES ((size_t)1024)

/* Code from outside may have kept pointers into its world, and still use them. */
static void destroy_host(cd_sim_host *host, size_t touched_bytes)
{
    const bool is_foreign = host->config.stuck_ns != 0;
    cd_sim_ground_give(is_foreign ? NULL : host->config.ground, host->block, host->block_bytes,
                       touched_bytes);
    cd_arena_fini(&host->arena);
}

static cddp_status copy_config(cd_sim_host *host, cddp_error *err)
{
    cd_sim_config *c = &host->config;
    uint32_t n = c->world_size;
    host->options_max = CDDP_CHOICE_OPTIONS_MAX;
    host->options = cd_arena_array(&host->arena, host->options_max, sizeof *host->options);
    if (c->network.slow_permille != NULL)
        host->slow = cd_arena_array(&host->arena, n, sizeof *host->slow);
    if (c->fault_count > 0)
        host->faults = cd_arena_array(&host->arena, c->fault_count, sizeof *host->faults);
    CD_TRY(cd_arena_check(&host->arena, err, "a world of %u ranks", n));
    if (host->slow != NULL) memcpy(host->slow, c->network.slow_permille, n * sizeof *host->slow);
    if (host->faults != NULL)
        memcpy(host->faults, c->faults, c->fault_count * sizeof *host->faults);
    c->network.slow_permille = host->slow;
    c->faults = host->faults;
    CD_TRY(cd_network_init(&host->network, &c->network, n, c->seed, err));
    return CDDP_OK;
}

static void map_once(cd_sim_host *host)
{
    const cd_sim_config *c = &host->config;
    size_t page = cd_fiber_page_bytes();
    size_t deviations = (size_t)c->deviations_max * sizeof(cd_deviation);
    host->region_offset = round_up(sizeof(cd_sim), page);
    host->region_bytes =
        round_up(c->heap_bytes + deviations + (size_t)c->world_size * sizeof(cd_sim_rank), page);
    host->stacks_offset = host->region_offset + host->region_bytes;
    host->stack_bytes = round_up(c->stack_bytes, page);
    host->stack_stride = host->stack_bytes + page;
    host->block_bytes = host->stacks_offset + host->stack_stride * c->world_size;
    host->block = cd_sim_ground_take(host->config.ground, &host->block_bytes);
}

static cddp_status map_block(cd_sim_host *host, cddp_error *err)
{
    const cd_sim_config *c = &host->config;
    const size_t page = cd_fiber_page_bytes(),
                 least = c->heap_bytes_least != 0 ? c->heap_bytes_least : c->heap_bytes;
    map_once(host);
    while (host->block == NULL && c->heap_bytes > least) {
        host->config.heap_bytes = c->heap_bytes / 2 > least ? c->heap_bytes / 2 : least;
        map_once(host);
    }
    if (host->block == NULL)
        return cd_fail(err, CDDP_E_NOMEM, "no address space for a world of %u ranks and %zu bytes",
                       c->world_size, host->block_bytes);
    for (uint32_t i = 0; i < c->world_size; i++)
        if (!cd_fiber_guard(host->block + host->stacks_offset + i * host->stack_stride, page))
            return cd_fail(err, CDDP_E_LIMIT,
                           "the system refuses a guard page for the stack of rank %u", i);
    return CDDP_OK;
}

cddp_status cd_sim_create(const cd_sim_config *config, cd_sim **sim, cddp_error *err)
{
    CD_TRY(check_config(config, err));
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, config->allocator, HOST_BLOCK_BYTES);
    cd_sim_host *host = cd_arena_push(&arena, sizeof *host);
    if (host == NULL) return cd_fail_memory(err, "a world");
    host->arena = arena;
    host->config = *config;
    fill_defaults(&host->config);
    CD_TRY_OUT(copy_config(host, err));
    CD_TRY_OUT(map_block(host, err));
    *sim = (cd_sim *)(void *)host->block;
    **sim = (cd_sim){.host = host, .world_size = host->config.world_size};
out:
    if (status != CDDP_OK) destroy_host(host, 0);
    return status;
}

static void fini_run(cd_sim *sim)
{
    if (sim->ranks == NULL) return;
    cd_cluster_fini(sim);
    for (uint32_t i = 0; i < sim->world_size; i++) cd_fiber_fini(&sim->ranks[i].fiber);
    cd_memory_fini(&sim->memory);
    sim->ranks = NULL;
}

void cd_sim_destroy(cd_sim *sim)
{
    if (sim == NULL) return;
    const size_t touched = sim->memory.used + sim->world_size * sim->host->stack_bytes;
    fini_run(sim);
    destroy_host(sim->host, touched);
}

/* ---- a run ---- */

static cddp_status make_parts(cd_sim *sim, cddp_error *err)
{
    cd_sim_host *host = sim->host;
    uint32_t n = sim->world_size;
    /* Deviations lie behind the memory, so that a snapshot copies those that there are. */
    size_t deviations_bytes = round_up(host->config.deviations_max * sizeof(cd_deviation), 64);
    unsigned char *region = host->block + host->region_offset;
    cd_memory_init(&sim->memory, region, host->region_bytes - deviations_bytes);
    const size_t ranks_bytes = n * sizeof *sim->ranks;
    sim->ranks = cd_memory_allocate(&sim->memory, ranks_bytes + n * sizeof *sim->ready);
    if (sim->ranks == NULL || !cd_queue_init(&sim->events, &sim->memory)) {
        sim->ranks = NULL;
        return cd_fail(err, CDDP_E_NOMEM, "%zu bytes are too few for a world of %u ranks",
                       host->region_bytes, n);
    }
    memset(sim->ranks, 0, ranks_bytes);
    sim->ready = (void *)(sim->ranks + n); /* behind them, in one block */
    void *deviations = region + host->region_bytes - deviations_bytes;
    sim->schedule = (cd_schedule){.items = deviations, .capacity = host->config.deviations_max};
    return CDDP_OK;
}

static void make_rank(cd_sim *sim, uint32_t i);

cddp_status cd_sim_begin(cd_sim *sim, cddp_rank_fn program, void *argument, cddp_error *err)
{
    CD_ASSERT(sim->current == NULL);
    cd_sim_host *host = sim->host;
    fini_run(sim);
    memset(sim, 0, sizeof *sim);
    sim->host = host;
    sim->world_size = host->config.world_size;
    sim->program = program;
    sim->argument = argument;
    sim->tracer =
        (struct cddp_tracer){.sink = host->config.sink, .level = host->config.trace_level};
    CD_TRY(make_parts(sim, err));
    CD_TRY(cd_cluster_init(sim, err));
    for (uint32_t i = 0; i < sim->world_size; i++) make_rank(sim, i);
    CD_TRY(cd_sim_begin_faults(sim, err));
    return CDDP_OK;
}

static void fill_result(const cd_sim *sim, const cd_sim_rank *rank, cddp_rank_result *result)
{
    *result = (cddp_rank_result){.size = sizeof *result,
                                 .end = CDDP_RANK_RETURNED,
                                 .status = rank->status,
                                 .error = rank->error};
    if (rank->overflowed) {
        result->end = CDDP_RANK_CRASHED;
        result->detail = 11; /* as a process would die of it: SIGSEGV */
    } else if (rank->is_broken) {
        result->end = rank->broken_by != 0 ? CDDP_RANK_KILLED : CDDP_RANK_CRASHED;
        result->detail = rank->broken_by != 0 ? rank->broken_by : rank->left_with;
    } else if (rank->killed) {
        result->end = CDDP_RANK_KILLED;
        result->detail = 9; /* SIGKILL */
        result->status = CDDP_E_ABORTED;
    } else if (rank->is_stuck) {
        result->end = CDDP_RANK_HUNG;
    } else if (rank->hung) {
        result->end = CDDP_RANK_HUNG;
        result->status = sim->out_of_memory ? CDDP_E_NOMEM : CDDP_E_TIMEOUT;
    }
}

cddp_status cd_sim_end(cd_sim *sim, cddp_rank_result *results, cddp_error *err)
{
    CD_ASSERT(sim->over);
    cd_sim_unwind(sim);
    for (uint32_t i = 0; i < sim->world_size; i++) fill_result(sim, &sim->ranks[i], &results[i]);
    sim->stats.heap_used_peak = sim->memory.peak_bytes;
    if (sim->out_of_memory)
        return cd_fail(
            err, CDDP_E_NOMEM,
            "the simulated world has used up its %zu MiB after %llu ns; take fewer ranks, a "
            "smaller model, or a device without numbers (model.device=shape)",
            sim->host->region_bytes >> 20, (unsigned long long)sim->now_ns);
    return CDDP_OK;
}

static cd_place place_of(const cd_sim *sim)
{
    return (cd_place){.number = sim->schedule.choice_count,
                      .time_ns = sim->now_ns,
                      .races = sim->stats.races};
}

static cddp_status go_on(cd_sim *sim, cddp_rank_result *results, cddp_error *err)
{
    const cd_chooser *chooser = sim->host->config.chooser;
    for (const cddp_choice *choice; (choice = cd_sim_advance(sim)) != NULL;)
        cd_sim_decide(sim, chooser->choose(chooser->self, choice, place_of(sim)));
    CD_TRY(cd_sim_end(sim, results, err));
    if (chooser != NULL && chooser->finish != NULL)
        CD_TRY(chooser->finish(chooser->self, place_of(sim), err));
    return CDDP_OK;
}

/* How often a rank that keeps the thread is looked at. */
#define LOOK_NS UINT64_C(200000000)

cddp_status cd_sim_resume(cd_sim *sim, cddp_rank_result *results, cddp_error *err)
{
    if (sim->host->config.stuck_ns == 0) return CD_PASS(go_on(sim, results, err));
    CD_TRY(cd_os_fault_begin(cd_sim_break, sim, err));
    cddp_status status = cd_os_ticker_begin(LOOK_NS, cd_sim_look, sim, err);
    if (status == CDDP_OK) status = go_on(sim, results, err);
    cd_os_ticker_end();
    cd_os_fault_end();
    return status;
}

static cddp_status launch(void *world, cddp_rank_fn program, void *argument,
                          cddp_rank_result *results, cddp_error *err)
{
    cd_sim *sim = world;
    CD_TRY(cd_sim_begin(sim, program, argument, err));
    sim->is_launched = true;
    return CD_PASS(cd_sim_resume(sim, results, err));
}

/* ---- the world port ---- */

static uint64_t now_ns(cddp_rank *rank)
{
    cd_sim *sim = rank->world;
    sim->progress++;
    return sim->now_ns;
}

static void calls(cddp_rank *rank, const char *hook, const char *function)
{
    cd_sim_rank *r = cd_sim_rank_of(rank);
    ((cd_sim *)rank->world)->progress++;
    r->hook = hook;
    r->function = function;
}

static cddp_status over(cddp_rank *rank, cddp_error *err)
{
    return cd_fail(err, CDDP_E_ABORTED, "the world has ended; rank %u is only cleaning up",
                   rank->rank);
}

/* Lets time pass for the rank; when a fault makes it hang meanwhile, it comes back later. */
static cddp_status pass(cddp_rank *port, uint64_t duration_ns, const char *what, cddp_error *err)
{
    cd_sim *sim = port->world;
    uint64_t end =
        duration_ns > UINT64_MAX / 2 - sim->now_ns ? UINT64_MAX / 2 : sim->now_ns + duration_ns;
    while (sim->now_ns < end)
        if (cd_sim_wait(sim, what, NULL, end) == CD_WAKE_ABORT) return CD_PASS(over(port, err));
    return CDDP_OK;
}

static cddp_status sleep_ns(cddp_rank *rank, uint64_t duration_ns, cddp_error *err)
{
    if (cd_sim_is_over_for(rank->world, cd_sim_rank_of(rank))) return CD_PASS(over(rank, err));
    if (duration_ns == 0) return CDDP_OK;
    CD_TRY(pass(rank, duration_ns, "sleeps", err));
    return CDDP_OK;
}

/* As pass, at a speed that changes whenever a transfer of the rank begins or ends. */
static cddp_status pass_sharing(cddp_rank *port, uint64_t work_ns, cddp_error *err)
{
    cd_sim *sim = port->world;
    cd_sim_rank *rank = cd_sim_rank_of(port);
    while (work_ns > 0) {
        uint64_t start = sim->now_ns,
                 permille = rank->transfers > 0 ? sim->host->config.compute_permille : 1000;
        rank->is_sharing = true;
        cd_wake wake =
            cd_sim_wait(sim, "computes", NULL, start + (work_ns * permille + 999) / 1000);
        rank->is_sharing = false;
        if (wake == CD_WAKE_ABORT) return CD_PASS(over(port, err));
        uint64_t done = (sim->now_ns - start) * 1000 / permille;
        work_ns -= done < work_ns ? done : work_ns;
    }
    return CDDP_OK;
}

/* As planned, or later: a rank that is slow this time, so that others are ahead of it. */
static uint64_t choose_delay(cd_sim *sim, uint32_t rank, uint64_t duration_ns)
{
    const uint64_t permilles[2] = {0, sim->host->config.delay_permille};
    cddp_choice choice = {.size = sizeof choice,
                          .kind = CDDP_CHOICE_DELAY,
                          .rank = rank,
                          .option_count = 2,
                          .options = permilles,
                          .name = "delay"};
    return permilles[1] == 0 ? 0 : duration_ns * permilles[cd_sim_choose(sim, &choice)] / 1000;
}

static cddp_status compute(cddp_rank *port, uint64_t duration_ns, const char *label,
                           cddp_error *err)
{
    cd_sim *sim = port->world;
    cd_sim_rank *rank = cd_sim_rank_of(port);
    if (cd_sim_is_over_for(sim, rank)) return CD_PASS(over(port, err));
    if (duration_ns == 0) return CDDP_OK;
    const uint32_t *slow = sim->host->slow;
    if (rank->slow_until_ns <= sim->now_ns) rank->slow_permille = 1000;
    uint64_t permille =
        (uint64_t)rank->slow_permille * (slow != NULL ? slow[port->rank] : 1000) / 1000;
    if (duration_ns > UINT64_MAX / 4 / (permille + 1) / (sim->host->config.delay_permille + 1))
        return cd_fail(err, CDDP_E_ARG, "rank %u cannot compute for %llu ns", port->rank,
                       (unsigned long long)duration_ns);
    duration_ns = duration_ns * permille / 1000;
    duration_ns += choose_delay(sim, port->rank, duration_ns);
    if (cd_sim_is_over_for(sim, rank)) return CD_PASS(over(port, err)); /* while it chose */
    CD_SIM_EMIT(sim, compute, label, .duration = (int64_t)duration_ns, .who = port->rank);
    rank->times.compute_ns += duration_ns;
    uint32_t shared = sim->host->config.compute_permille;
    if (shared == 0 || shared == 1000)
        CD_TRY(pass(port, duration_ns, "computes", err));
    else
        CD_TRY(pass_sharing(port, duration_ns, err));
    return CDDP_OK;
}

static uint32_t choose(cddp_rank *rank, const cddp_choice *choice)
{
    cddp_choice own = *choice;
    own.rank = rank->rank;
    if (own.option_count == 0 || own.option_count > CDDP_CHOICE_OPTIONS_MAX) return 0;
    if (cd_sim_is_over_for(rank->world, cd_sim_rank_of(rank))) return 0;
    return cd_sim_choose(rank->world, &own);
}

static void yield(cddp_rank *port)
{
    cd_sim *sim = port->world;
    cd_sim_rank *rank = cd_sim_rank_of(port);
    if (cd_sim_is_over_for(sim, rank)) return;
    cd_sim_yield(sim, NULL);
}

static cddp_status streams_open(cddp_rank *rank, const cddp_streams_options *options,
                                const cddp_device **device, cddp_error *err)
{
    const cd_stream_device_config config = {.inner = options->inner,
                                            .op_ns = options->operation_ns,
                                            .tracer = options->tracer};
    CD_TRY(cd_stream_device_create(rank, &config, device, err));
    return CDDP_OK;
}

static void streams_close(cddp_rank *rank, const cddp_device *device)
{
    (void)rank;
    cd_stream_device_destroy(device);
}

const cddp_world_ops *cd_sim_ops(void)
{
    static const cddp_world_ops ops = {sizeof ops, CDDP_WORLD_ABI, "sim",         launch,
                                       now_ns,     sleep_ns,       compute,       choose,
                                       yield,      streams_open,   streams_close, calls};
    return &ops;
}

static void make_rank(cd_sim *sim, uint32_t i)
{
    const cd_sim_host *host = sim->host;
    cd_sim_rank *rank = &sim->ranks[i];
    rank->allocator = cd_memory_table(&sim->memory);
    rank->port = (cddp_rank){cd_sim_ops(), sim, i, sim->world_size, &rank->allocator};
    rank->slow_permille = 1000;
    rank->slow_until_ns = 0;
    cd_sim_start_rank(sim, rank,
                      host->block + host->stacks_offset + (i + 1) * host->stack_stride -
                          host->stack_bytes,
                      host->stack_bytes);
}

/* ---- looking at it ---- */

uint32_t cd_sim_world_size(const cd_sim *sim) { return sim->world_size; }

void cd_sim_get_stats(const cd_sim *sim, cd_sim_stats *stats)
{
    *stats = sim->stats;
    stats->time_ns = sim->now_ns;
    stats->heap_used_peak = sim->memory.peak_bytes;
}

const cd_schedule *cd_sim_schedule(const cd_sim *sim) { return &sim->schedule; }

cd_sim_rank_times cd_sim_get_rank_times(const cd_sim *sim, uint32_t rank)
{
    CD_ASSERT(rank < sim->world_size && sim->ranks != NULL);
    return sim->ranks[rank].times;
}

void cd_sim_set_service(cd_sim *sim, void *service) { sim->service = service; }

void *cd_sim_get_service(const cd_sim *sim) { return sim->service; }

cd_algorithm cd_sim_get_algorithm(const cd_sim *sim) { return sim->host->config.algorithm; }
