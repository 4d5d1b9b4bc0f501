/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds for plans: the simulator configured from [world], [network], [schedule] and [[fault]]; a
** single process for `self`.
**
** This is the only place that knows both what a scenario says and what a world can do; neither
** includes the other.
*/
#define _DEFAULT_SOURCE /* _SC_PHYS_PAGES */
#include "verify/worlds/compose.h"

#include "backends/compose/node.h"
#include "backends/sim/sim_backend.h"
#include "backends/sim/sim_store.h"
#include "verify/worlds/process.h"
#include "cddp/composition.h"
#include "cddp/process.h"
#include "cddp/self.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/plan/chosen_hook.h"
#include "core/plan/plan.h"
#include "core/registry/registry.h"
#include "sim/world.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HEAP_BYTES ((size_t)256 << 20)
#define HEAP_BYTES_PER_RANK ((size_t)16 << 20)

struct cd_compose {
    cd_arena arena; /* owns the composition itself, and its tables */
    cd_compose_options options;
    cddp_relay_sink relay;
    const cddp_world_ops *world_ops;
    void *world;
    const cddp_backend *backend;
    cddp_composition *composition; /* over `backend` of a single world; NULL: none */
    /* the simulator */
    cd_sim *sim;
    cddp_backend sim_backend;
    cd_sim_store store;
    cd_sim_store_agent *agents; /* (world size) with [rendezvous], else NULL */
    cd_fault *faults;           /* (fault_count) */
    bool *sides;                /* (fault_count, world size) of partitions */
    size_t fault_count;
    cd_chooser chooser;
    cd_random_chooser random;
    cd_replay_chooser replay;
    /* a single process */
    cddp_solo_world *solo;
    /* forked processes */
    cd_compose_process *process;
};

/* ---- the simulator ---- */

static void world_ended(void *context)
{
    cd_compose *c = context;
    c->relay.muted = true;
}

static cddp_status make_chooser(cd_compose *c, cddp_error *err)
{
    const cddp_plan *plan = c->options.plan;
    if (c->options.chooser != NULL) {
        c->chooser = *c->options.chooser;
        return CDDP_OK;
    }
    const char *name = plan->schedule.chooser != NULL ? plan->schedule.chooser : "fifo";
    const char *string = c->options.schedule != NULL ? c->options.schedule : plan->schedule.string;
    const int32_t kind = c->options.schedule != NULL ? CD_CHOOSER_replay : cd_chooser_find(name);
    switch (kind) {
    case CD_CHOOSER_fifo:
        c->chooser = cd_chooser_fifo();
        return CDDP_OK;
    case CD_CHOOSER_random:
        c->chooser = cd_chooser_random(&c->random, plan->world.seed);
        return CDDP_OK;
    case CD_CHOOSER_replay:
        CD_TRY(cd_chooser_replay(&c->replay, string, &c->chooser, err));
        return CDDP_OK;
    default:
        return cd_fail(err, CDDP_E_CONFIG,
                       "schedule.chooser = \"%s\": `cddp-verify list choosers` shows what there is",
                       name);
    }
}

/* side: (world size) of a partition, or NULL. */
static cddp_status make_fault(const cddp_plan *plan, const cddp_plan_fault *planned,
                              const bool *side, cd_fault *fault, cddp_error *err)
{
    const int32_t kind = planned->kind != NULL ? cd_fault_find(planned->kind) : -1;
    if (kind < 0) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "fault.kind = \"%s\": `cddp-verify list faults` shows what there is",
                       planned->kind != NULL ? planned->kind : "");
    }
    const bool joins = planned->when >= CDDP_FAULT_BEFORE_JOIN;
    const int64_t joiner = planned->joiner != CDDP_PLAN_UNSET ? planned->joiner : planned->rank;
    const bool needs_rank =
        kind != CDDP_FAULT_PARTITION || (planned->when != CDDP_FAULT_TIME && !joins);
    if (needs_rank && planned->rank == CDDP_PLAN_UNSET) {
        return cd_fail(err, CDDP_E_CONFIG, "fault '%s' does not say which rank it strikes",
                       planned->kind);
    }
    if (joins && joiner == CDDP_PLAN_UNSET) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "fault '%s' does not say around whose join it strikes: fault.joiner",
                       planned->kind);
    }
    *fault =
        (cd_fault){.kind = (cddp_event_enum_fault_kind)kind,
                   .when = (cddp_plan_fault_when)planned->when,
                   .rank = planned->rank != CDDP_PLAN_UNSET ? (uint32_t)planned->rank : 0,
                   .side = side,
                   .peer = planned->peer != CDDP_PLAN_UNSET ? (uint32_t)planned->peer : UINT32_MAX,
                   .joiner = joins ? (uint32_t)joiner : 0,
                   .at = planned->at,
                   .duration_ns = planned->duration_ns,
                   .amount = planned->amount,
                   .optional = planned->optional};
    CD_TRY(cd_fault_check(fault, (uint32_t)plan->world.size, err));
    if (cd_fault_get_scope(fault->kind) == CD_FAULT_ON_STREAM) {
        cddp_plan_settings settings;
        CD_TRY(cddp_plan_rank_settings(plan, fault->rank, &settings, err));
        if (settings.streams.producers == 0)
            return cd_fail(
                err, CDDP_E_CONFIG,
                "fault %s strikes rank %u, which has no streams: it needs streams.producers",
                planned->kind, fault->rank);
    }
    return CDDP_OK;
}

static cddp_status make_faults(cd_compose *c, cddp_error *err)
{
    const cddp_plan *plan = c->options.plan;
    c->fault_count = plan->fault_count;
    const size_t world = (size_t)plan->world.size;
    c->faults = cd_arena_array(&c->arena, plan->fault_count + 1, sizeof *c->faults);
    c->sides = cd_arena_array(&c->arena, plan->fault_count * world + 1, sizeof *c->sides);
    CD_TRY(cd_arena_check(&c->arena, err, "%zu faults", plan->fault_count));
    for (size_t i = 0; i < plan->fault_count; i++) {
        const cddp_selector *side = &plan->faults[i].side;
        bool *sides = c->sides + i * world;
        for (uint32_t r = 0; r < world; r++)
            sides[r] = side->term_count > 0 && cddp_selector_has(side, r);
        CD_TRY(make_fault(plan, &plan->faults[i], side->term_count > 0 ? sides : NULL,
                          &c->faults[i], err));
    }
    return CDDP_OK;
}

static cddp_status find_link(const char *key, const char *name, cd_link *link, cddp_error *err)
{
    const int32_t kind = cd_link_find(name);
    if (kind < 0) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "%s = \"%s\": `cddp-verify list links` shows what there is", key, name);
    }
    *link = *cd_link_get((cd_link_kind)kind);
    return CDDP_OK;
}

/* Groups meet through the store, and then as before. */
static cddp_status open_store(cd_compose *c, cddp_error *err)
{
    const cddp_plan *plan = c->options.plan;
    const uint32_t world = (uint32_t)plan->world.size;
    if (!plan->rendezvous.enable) return CDDP_OK;
    c->agents = cd_arena_array(&c->arena, world, sizeof *c->agents);
    if (c->agents == NULL) return cd_fail_memory(err, "the agents of %u ranks", world);
    for (uint32_t i = 0; i < world; i++) {
        cddp_plan_settings settings;
        CD_TRY(cddp_plan_rank_settings(plan, i, &settings, err));
        c->agents[i] = (cd_sim_store_agent){.late_ns = settings.agent.late_ms * 1000000u,
                                            .timeout_ns = settings.agent.timeout_ms * 1000000u,
                                            .backoff_ns = settings.agent.backoff_ms * 1000000u,
                                            .attempts = (uint32_t)settings.agent.attempts};
    }
    c->store = (cd_sim_store){.sim = c->sim,
                              .inner = c->sim_backend,
                              .agents = c->agents,
                              .host = (uint32_t)plan->rendezvous.host,
                              .generations = plan->rendezvous.generations};
    c->sim_backend = cd_sim_store_backend(&c->store);
    return CDDP_OK;
}

/* The world's memory is address space until it is touched. So it may be as large as the machine's,
** and smaller only where address space is limited (ulimit -v). */
static void size_heap(cd_sim_config *config)
{
    const size_t least = HEAP_BYTES + config->world_size * HEAP_BYTES_PER_RANK;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const size_t machine = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
    config->heap_bytes = machine > least ? machine : least;
    config->heap_bytes_least = least;
}

/* A busy machine makes anything slow. */
#define STUCK_NS UINT64_C(20000000000)
#define STUCK_NS_MIN UINT64_C(4000000000)
/* Others that wait for the rank give up first. */
#define MARGIN_NS UINT64_C(1000000000)

uint64_t cd_compose_stuck_ns(const cddp_plan *plan)
{
    const uint64_t timeout_ns = plan->world.timeout_ms * 1000000u;
    if (timeout_ns == 0) return STUCK_NS;
    return timeout_ns < STUCK_NS_MIN ? STUCK_NS_MIN : timeout_ns;
}

bool cd_compose_is_foreign(const cddp_plan_settings *settings, const cddp_registry *registry)
{
    cd_chosen_hook chosen;
    cd_choose_hook(settings, &chosen);
    return (chosen.name != NULL && cd_registry_is_foreign_hook(registry, chosen.name)) ||
           (chosen.inner != NULL && cd_registry_is_foreign_hook(registry, chosen.inner));
}

/* Does some rank call a hook that a plugin brought? Such a call may crash, or never end. */
static bool has_foreign_hook(const cd_compose *c)
{
    const cddp_registry *registry = c->options.registry;
    const cddp_plan *plan = c->options.plan;
    cddp_plan_settings settings;
    if (registry == NULL || !cd_registry_has_plugin(registry)) return false;
    if (cd_compose_is_foreign(&plan->settings, registry)) return true;
    for (uint32_t i = 0; i < plan->world.size; i++)
        if (cddp_plan_rank_settings(plan, i, &settings, NULL) == CDDP_OK &&
            cd_compose_is_foreign(&settings, registry))
            return true;
    return false;
}

static cddp_status open_sim(cd_compose *c, cddp_error *err)
{
    const cddp_plan *plan = c->options.plan;
    const cddp_plan_network *network = &plan->network;
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    const int32_t algorithm = cd_algorithm_find(network->algorithm);
    if (algorithm < 0) {
        return cd_fail(
            err, CDDP_E_CONFIG,
            "network.algorithm = \"%s\": `cddp-verify list algorithms` shows what there is",
            network->algorithm);
    }
    CD_TRY(make_chooser(c, err));
    CD_TRY(make_faults(c, err));
    CD_TRY(find_link("network.link", network->link, &config.network.inter, err));
    if (network->gb_per_s > 0)
        config.network.inter.bytes_per_second = (uint64_t)(network->gb_per_s * 1e9);
    if (network->latency_us > 0)
        config.network.inter.latency_ns = (uint64_t)(network->latency_us * 1e3);
    if (network->overhead_us > 0)
        config.network.inter.overhead_ns = (uint64_t)(network->overhead_us * 1e3);
    CD_TRY(find_link("network.intra_link", network->intra_link, &config.network.intra, err));
    if (network->intra_latency_us > 0)
        config.network.intra.latency_ns = (uint64_t)(network->intra_latency_us * 1e3);
    config.launch_ns = (uint64_t)(network->launch_us * 1e3);
    CD_TRY(find_link("network.bus", network->bus, &config.network.bus, err));
    config.network.host_bytes_per_second = (uint64_t)(network->host_gb_per_s * 1e9);
    config.network.connection_bytes_per_second = (uint64_t)(network->connection_gb_per_s * 1e9);
    config.network.ranks_per_node = (uint32_t)network->ranks_per_node;
    config.network.nics_per_node = (uint32_t)network->nics_per_node;
    config.piece_bytes = network->piece_kib * 1024;
    config.network.jitter_ns = network->jitter_ns;
    config.delay_permille = (uint32_t)plan->schedule.delay_permille;
    config.compute_permille = (uint32_t)network->compute_permille;
    config.world_size = (uint32_t)plan->world.size;
    config.seed = plan->world.seed;
    config.chooser = &c->chooser;
    config.algorithm = (cd_algorithm)algorithm;
    config.transport = (cd_sim_transport)network->transport;
    config.completion = (cd_sim_completion)network->completion;
    config.slots_per_rank = (uint32_t)plan->world.in_flight_max;
    config.faults = c->faults;
    config.fault_count = c->fault_count;
    config.sink = &c->relay.sink;
    config.trace_level = c->options.level;
    config.timeout_ns = plan->world.timeout_ms * 1000000u;
    config.allocator = c->options.allocator;
    config.ground = c->options.ground;
    config.ended = world_ended;
    config.ended_context = c;
    config.is_endless = &c->relay.is_endless;
    if (has_foreign_hook(c)) {
        config.stuck_ns =
            c->options.stuck_ns != 0 ? c->options.stuck_ns : cd_compose_stuck_ns(plan);
        config.stuck_most_ns = 3 * config.stuck_ns;
    }
    size_heap(&config);
    CD_TRY(cd_sim_create(&config, &c->sim, err));
    c->sim_backend = cd_sim_backend(c->sim);
    CD_TRY(open_store(c, err));
    c->backend = &c->sim_backend;
    c->world_ops = cd_sim_ops();
    c->world = c->sim;
    return CDDP_OK;
}

/* ---- a single process ---- */

static cddp_status refuse_streams(const cddp_plan *plan, const char *backend, cddp_error *err)
{
    if (!cd_plan_has_streams(plan)) return CDDP_OK;
    return cd_fail(err, CDDP_E_UNSUPPORTED,
                   "the scenario queues gradients on streams, which only the simulator has; it "
                   "runs on backend '%s'",
                   backend);
}

static cddp_status refuse_continuations(const cddp_plan *plan, const char *backend, cddp_error *err)
{
    if (!cd_plan_has_continuations(plan)) return CDDP_OK;
    return cd_fail(
        err, CDDP_E_UNSUPPORTED,
        "hook.continuations = \"on_completion\" is a choice that only the simulator has; "
        "the scenario runs on backend '%s'",
        backend);
}

static cddp_status refuse_rendezvous(const cddp_plan *plan, const char *backend, cddp_error *err)
{
    if (!plan->rendezvous.enable) return CDDP_OK;
    return cd_fail(err, CDDP_E_UNSUPPORTED,
                   "[rendezvous] is how simulated ranks meet; it runs on backend '%s', which meets "
                   "in its own way",
                   backend);
}

static cddp_status open_self(cd_compose *c, cddp_error *err)
{
    const cddp_plan *plan = c->options.plan;
    if (plan->world.size != 1) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "backend 'self' is a world of one rank, but world.size is %llu",
                       (unsigned long long)plan->world.size);
    }
    CD_TRY(refuse_streams(plan, "self", err));
    CD_TRY(refuse_continuations(plan, "self", err));
    CD_TRY(refuse_rendezvous(plan, "self", err));
    const cddp_solo_options options = {.size = sizeof options,
                                       .rank = 0,
                                       .world_size = 1,
                                       .allocator = c->options.allocator};
    CD_TRY(cddp_solo_world_open(&options, &c->solo, err));
    c->backend = cddp_backend_self();
    c->world_ops = cddp_solo_world_ops();
    c->world = c->solo;
    return CDDP_OK;
}

/* ---- processes over a backend that a module brought ---- */

static cddp_status open_process(cd_compose *c, cddp_error *err)
{
    const cddp_plan *plan = c->options.plan;
    const char *name = c->options.backend != NULL ? c->options.backend : plan->world.backend;
    const cd_compose_process_options options = {
        .plan = plan,
        .registry = c->options.registry,
        .backend = name,
        .node = c->options.node,
        .relay = &c->relay,
        .origin = c->options.origin,
        .run = c->options.run,
        .interrupted = c->options.interrupted,
        .idle = c->options.idle,
        .idle_context = c->options.idle_context,
        .stuck_ns = has_foreign_hook(c) ? cd_compose_stuck_ns(plan) + MARGIN_NS : 0};
    CD_TRY(cd_compose_process_open(&options, &c->process, err));
    c->backend = cd_compose_process_backend(c->process);
    if (plan->fault_count > 0)
        return cd_fail(
            err, CDDP_E_UNSUPPORTED,
            "the scenario plants faults, which only the simulator can do; it runs on backend '%s'",
            name);
    CD_TRY(refuse_streams(plan, name, err));
    CD_TRY(refuse_continuations(plan, name, err));
    CD_TRY(refuse_rendezvous(plan, name, err));
    if (plan->settings.model.device != CDDP_MODEL_DEVICE_CPU)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "device '%s' holds no numbers that backend '%s' could send",
                       plan->settings.model.device == CDDP_MODEL_DEVICE_SYMBOL ? "symbol" : "shape",
                       name);
    return CDDP_OK;
}

/* ---- compositions over a world of this process ---- */

/* Which opener the backends of a composition need: the same for all of them. */
typedef struct part_search {
    char name[64]; /* the first; "" before it */
    bool mixed;
} part_search;

static bool is_here(const char *name);

static cddp_status see_part(void *context, const char *name, cddp_error *err)
{
    part_search *s = context;
    (void)err;
    if (s->name[0] == '\0') snprintf(s->name, sizeof s->name, "%s", name);
    if ((is_here(name) || is_here(s->name)) && strcmp(s->name, name) != 0) s->mixed = true;
    return CDDP_OK;
}

static cddp_status find_here(void *context, const char *name, const cddp_backend **backend,
                             cddp_error *err)
{
    const cd_compose *c = context;
    (void)name;
    (void)err;
    *backend = c->backend;
    return CDDP_OK;
}

static cddp_status compose_over(cd_compose *c, const char *spec, cddp_error *err)
{
    const cddp_composition_options options = {
        .size = sizeof options,
        .spec = spec,
        .find = find_here,
        .context = c,
        .node = c->options.node,
        .ranks_per_node = c->sim != NULL ? (uint32_t)c->options.plan->network.ranks_per_node : 0,
        .allocator = c->options.allocator};
    CD_TRY(cddp_composition_open(&options, &c->composition, err));
    c->backend = cddp_composition_backend(c->composition);
    return CDDP_OK;
}

/* ---- life ---- */

static const struct {
    const char *name;
    cddp_status (*open)(cd_compose *c, cddp_error *err);
} openers[] = {{"sim", open_sim}, {"self", open_self}};
#define OPENERS (sizeof openers / sizeof openers[0])

static bool is_here(const char *name)
{
    for (size_t i = 0; i < OPENERS; i++)
        if (strcmp(openers[i].name, name) == 0) return true;
    return false;
}

static cddp_status open_world(cd_compose *c, cddp_error *err)
{
    const char *name =
        c->options.backend != NULL ? c->options.backend : c->options.plan->world.backend;
    part_search search = {.mixed = false};
    CD_TRY(cddp_composition_each(name, see_part, &search, err));
    if (search.mixed)
        return cd_fail(err, CDDP_E_CONFIG,
                       "backend '%s': the simulator and self are whole worlds and cannot be "
                       "combined with another backend",
                       name);
    for (size_t i = 0; i < OPENERS; i++) {
        if (strcmp(openers[i].name, search.name) == 0) {
            CD_TRY(openers[i].open(c, err));
            if (cddp_composition_is_named(name)) CD_TRY(compose_over(c, name, err));
        }
    }
    if (c->backend == NULL) CD_TRY(open_process(c, err)); /* gloo, or what a plugin brought */
    return CDDP_OK;
}

cddp_status cd_compose_is_forked(const cddp_registry *registry, const char *backend,
                                 bool *is_forked, cddp_error *err)
{
    part_search search = {.mixed = false};
    *is_forked = false;
    CD_TRY(cddp_composition_each(backend, see_part, &search, err));
    if (!is_here(search.name))
        CD_TRY(cd_compose_process_is_forked(registry, backend, is_forked, err));
    return CDDP_OK;
}

cddp_status cd_compose_open(const cd_compose_options *options, cd_compose **compose,
                            cddp_error *err)
{
    cd_arena arena;
    cd_arena_init(&arena, options->allocator, 4096);
    cd_compose *c = cd_arena_push(&arena, sizeof *c);
    if (c == NULL) return cd_fail_memory(err, "a world");
    c->arena = arena;
    c->options = *options;
    cddp_relay_sink_init(&c->relay);
    cddp_status status = open_world(c, err);
    if (status == CDDP_OK)
        *compose = c;
    else
        cd_compose_close(c);
    return status;
}

void cd_compose_fill(cd_compose *c, cddp_run_options *options)
{
    cd_composition_forget(c->composition);
    options->plan = c->options.plan;
    options->world_ops = c->world_ops;
    options->world = c->world;
    options->backend = c->backend;
    options->relay = &c->relay;
    options->level = c->options.level;
    options->allocator = c->options.allocator;
    if (c->process != NULL) cd_compose_process_fill(c->process, options);
}

void cd_compose_set_chooser(cd_compose *c, const struct cd_chooser *chooser)
{
    c->chooser = *chooser;
}

struct cd_sim *cd_compose_get_sim(cd_compose *c) { return c->composition == NULL ? c->sim : NULL; }

size_t cd_compose_print_schedule(const cd_compose *c, char *text, size_t text_bytes)
{
    if (c->sim == NULL) {
        if (text_bytes > 0) text[0] = '\0';
        return 0;
    }
    return cd_schedule_print(cd_sim_schedule(c->sim), text, text_bytes);
}

const char *cd_compose_algorithm(const cd_compose *c)
{
    const cddp_capabilities *can = &c->backend->capabilities;
    return can->order == CDDP_ORDER_KNOWN && can->algorithm != NULL ? can->algorithm : "";
}

bool cd_compose_has_processes(const cd_compose *c) { return c->process != NULL; }

bool cd_compose_was_interrupted(const cd_compose *c)
{
    return c->process != NULL && cd_compose_process_was_interrupted(c->process);
}

bool cd_compose_is_member(const cd_compose *c)
{
    return c->process != NULL && cd_compose_process_is_member(c->process);
}

void cd_compose_close(cd_compose *c)
{
    if (c != NULL) {
        cddp_composition_close(c->composition);
        cd_sim_destroy(c->sim);
        cddp_solo_world_close(c->solo);
        cd_compose_process_close(c->process);
        cd_arena_fini(&c->arena);
    }
}
