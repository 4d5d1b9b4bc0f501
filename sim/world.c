/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler: ready ranks first, in an order the chooser decides; then the earliest event; then
** the end.
**
** Invariants (cd_sim_audit):
**   W1  virtual time never goes back, and advances only when no rank is ready;
**   W2  a rank is in the ready queue exactly when its state is READY, and only one is RUNNING;
**   W3  events are ordered by (time, sequence), and sequence numbers are never used twice;
**   W4  every choice with more than one option has a number, and is answered before the next event;
**   W5  once the world is over, no event fires, no choice is made and nothing is traced.
**
**   begin → { ready rank | completion | event }* → over → unwind → end
**
** Not here: creation of the block (launch.c), waits of ranks (collective.c), the report of waits
** (report.c).
*/
#include "sim/world.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os.h"
#include "core/base/text.h"
#include "sim/state.h"

#include <stdio.h>
#include <string.h>

/* After the world ended a rank may still make this many calls while it cleans up; then it is
** abandoned. */
#define UNWIND_CALLS_MAX 1000000u
#define STUCK_LEAST_NS UINT64_C(1000000000)

void cd_sim_audit(const cd_sim *sim)
{
    uint32_t ready = 0, running = 0, ended = 0;
    for (uint32_t i = 0; i < sim->world_size; i++) {
        cd_rank_state s = sim->ranks[i].state;
        ready += s == CD_RANK_READY;
        running += s == CD_RANK_RUNNING;
        ended += s == CD_RANK_ENDED || s == CD_RANK_DEAD;
    }
    CD_ASSERT(ready == sim->ready_count && running == (sim->current != NULL)); /* W2 */
    CD_ASSERT(ended == sim->ended_count);
    const cd_heap_entry *first = cd_queue_find_first(&sim->events);
    CD_ASSERT(first == NULL || first->time >= sim->now_ns || sim->over); /* W1 */
}

/* ---- queues ---- */

void cd_sim_exhausted(cd_sim *sim) { sim->out_of_memory = true; }

static bool is_endless(const cd_sim *sim)
{
    const bool *said = sim->host->config.is_endless;
    return said != NULL && *said;
}

void cd_sim_schedule_event(cd_sim *sim, cd_sim_event *event, uint64_t time_ns)
{
    CD_ASSERT(time_ns >= sim->now_ns); /* W1 */
    if (!cd_queue_push(&sim->events, time_ns, event)) cd_sim_exhausted(sim);
}

static void push_ready(cd_sim *sim, cd_sim_rank *rank)
{
    rank->state = CD_RANK_READY;
    sim->ready[(sim->ready_first + sim->ready_count++) % sim->world_size] = rank->port.rank;
}

/* The index-th of the ready queue; those before it move up by one. */
static cd_sim_rank *take_ready(cd_sim *sim, uint32_t index)
{
    uint32_t n = sim->world_size, first = sim->ready_first;
    uint32_t number = sim->ready[(first + index) % n];
    for (uint32_t i = index; i > 0; i--)
        sim->ready[(first + i) % n] = sim->ready[(first + i - 1) % n];
    sim->ready_first = (first + 1) % n;
    sim->ready_count--;
    return &sim->ranks[number];
}

void cd_sim_wake(cd_sim *sim, cd_sim_rank *rank, cd_wake wake)
{
    if (rank->state != CD_RANK_WAITING) return;
    rank->wake = wake;
    rank->deadline_ns = UINT64_MAX;
    push_ready(sim, rank);
}

/* A rank has at most one entry in the queue that matters; entries of waits that ended early are
** dropped here. */
static void timer_fire(cd_sim *sim, cd_sim_event *event)
{
    cd_rank_timer *timer = (cd_rank_timer *)(void *)event;
    cd_sim_rank *rank = (cd_sim_rank *)(void *)((char *)timer - offsetof(cd_sim_rank, timer));
    timer->queued_ns = UINT64_MAX;
    if (rank->state != CD_RANK_WAITING || rank->deadline_ns == UINT64_MAX) return;
    if (rank->deadline_ns <= sim->now_ns) {
        cd_sim_wake(sim, rank, CD_WAKE_TIMEOUT);
        return;
    }
    timer->queued_ns = rank->deadline_ns;
    cd_sim_schedule_event(sim, event, rank->deadline_ns);
}

static void arm_timer(cd_sim *sim, cd_sim_rank *rank)
{
    if (rank->deadline_ns == UINT64_MAX || rank->timer.queued_ns <= rank->deadline_ns) return;
    rank->timer.queued_ns = rank->deadline_ns;
    cd_sim_schedule_event(sim, &rank->timer.event, rank->deadline_ns);
}

void cd_sim_add_completion(cd_sim *sim, cd_completion *completion)
{
    completion->next = NULL;
    if (sim->completable == NULL)
        sim->completable = completion;
    else
        sim->completable_last->next = completion;
    sim->completable_last = completion;
    sim->completable_count++;
}

/* Only the oldest completion of a group may come next. */
static bool is_eligible(const cd_sim *sim, const cd_completion *completion)
{
    for (const cd_completion *c = sim->completable; c != completion; c = c->next)
        if (c->group == completion->group) return false;
    return true;
}

static void take_completion(cd_sim *sim, uint32_t index)
{
    cd_completion *before = NULL, *c = sim->completable;
    for (;; before = c, c = c->next) {
        if (!is_eligible(sim, c)) continue;
        if (index-- == 0) break;
    }
    if (before == NULL)
        sim->completable = c->next;
    else
        before->next = c->next;
    if (sim->completable_last == c) sim->completable_last = before;
    sim->completable_count--;
    c->complete(sim, c);
}

/* ---- switching ---- */

void cd_sim_note(cd_sim_rank *rank, const char *what, const char *group, uint64_t ordinal)
{
    rank->last_what = what;
    rank->last_group = group;
    rank->last_ordinal = ordinal;
    rank->last_ns = ((const cd_sim *)rank->port.world)->now_ns;
}

static void rank_main(void *argument)
{
    cd_sim_rank *rank = argument;
    cd_sim *sim = rank->port.world;
    rank->status = sim->program(&rank->port, sim->argument, &rank->error);
    rank->times.ended_ns = sim->now_ns;
    if (!sim->unwinding) cd_sim_note(rank, "its program returned", NULL, 0);
}

static void crash(cd_sim *sim, cd_sim_rank *rank)
{
    rank->overflowed = true;
    rank->state = CD_RANK_DEAD;
    sim->ended_count++;
    (void)cd_fail(&rank->error, CDDP_E_LIMIT, "rank %u overflowed its stack of %zu bytes",
                  rank->port.rank, rank->fiber.stack_bytes);
    rank->status = CDDP_E_LIMIT;
    cd_sim_note(rank, "its stack overflowed", NULL, 0);
    cd_cluster_rank_died(sim, rank);
}

/* "run of hook topk": who judges the trace looks for it (core/check/call.h) */
static void print_call(const cd_sim_rank *rank, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s of hook %.60s", rank->function, rank->hook);
}

/* Its stack stays as it is; nobody goes on there. */
static void leave_stuck(cd_sim *sim, cd_sim_rank *rank)
{
    char duration[32], call[96] = "what it called";
    rank->state = CD_RANK_DEAD;
    sim->ended_count++;
    sim->stuck_count++;
    cd_duration_print(cd_os_now_ns() - sim->stuck_since_ns, duration, sizeof duration);
    if (rank->hook != NULL) print_call(rank, call, sizeof call);
    rank->status =
        cd_fail(&rank->error, CDDP_E_TIMEOUT, "rank %u did not return from %s for %s of real time",
                rank->port.rank, call, duration);
    cd_sim_note(rank, "does not come back", NULL, 0);
}

/* One rank that loops has waited for the whole limit. Of others, which most likely do the same,
** less is enough: a world of them ends in bearable time. */
static uint64_t patience_ns(const cd_sim *sim, const cd_sim_rank *rank)
{
    const cd_sim_config *config = &sim->host->config;
    const uint64_t whole = rank->hook != NULL ? config->stuck_ns : config->stuck_most_ns,
                   least = whole < STUCK_LEAST_NS ? whole : STUCK_LEAST_NS,
                   less = whole >> (sim->stuck_count < 8 ? 2 * sim->stuck_count : 16);
    return less > least ? less : least;
}

void cd_sim_look(void *self)
{
    cd_sim *sim = self;
    cd_sim_rank *rank = sim->current;
    if (rank == NULL || sim->unwinding) return;
    const uint64_t now = cd_os_now_ns();
    if (sim->progress != sim->stuck_progress || sim->stats.switches != sim->stuck_switches) {
        sim->stuck_progress = sim->progress;
        sim->stuck_switches = sim->stats.switches;
        sim->stuck_since_ns = now;
        return;
    }
    if (now - sim->stuck_since_ns < patience_ns(sim, rank)) return;
    rank->is_stuck = true;
    cd_fiber_leave(&rank->fiber);
}

void cd_sim_break(void *self, int signal_number, int exit_code)
{
    cd_sim *sim = self;
    cd_sim_rank *rank = sim->current;
    if (rank == NULL || rank->hook == NULL) return; /* a mistake of this program */
    rank->broken_by = signal_number;
    rank->left_with = exit_code;
    rank->is_broken = true;
    cd_fiber_abandon(&rank->fiber);
}

/* While it is unwound it has ended already, in another way. */
static void leave_broken(cd_sim *sim, cd_sim_rank *rank)
{
    char call[96], end[64];
    const bool has_room = cd_fiber_kept_within(&rank->fiber);
    rank->state = CD_RANK_DEAD;
    sim->ended_count++;
    if (sim->unwinding) {
        rank->is_broken = false;
        return;
    }
    print_call(rank, call, sizeof call);
    if (rank->broken_by != 0)
        snprintf(end, sizeof end, "was killed by signal %d (%s)", rank->broken_by,
                 cd_os_signal_text(rank->broken_by));
    else
        snprintf(end, sizeof end, "left with exit code %d", rank->left_with);
    rank->status = cd_fail(&rank->error, CDDP_E_ABORTED, "rank %u %s in %s%s", rank->port.rank, end,
                           call, has_room ? "" : ": its stack had overflowed");
    cd_sim_note(rank, "it crashed", NULL, 0);
    cd_cluster_rank_died(sim, rank);
}

/* A rank that hangs is put aside again, and keeps the reason why it was woken. */
static bool hold(cd_sim *sim, cd_sim_rank *rank)
{
    if (rank->hang_until_ns <= sim->now_ns) {
        if (rank->is_held) rank->wake = rank->held_wake;
        rank->is_held = false;
        return false;
    }
    if (!rank->is_held) rank->held_wake = rank->wake;
    rank->is_held = true;
    rank->state = CD_RANK_WAITING;
    if (rank->waiting == NULL) rank->waiting_since_ns = sim->now_ns;
    rank->waiting = "hangs (a planted fault)";
    rank->deadline_ns = rank->hang_until_ns;
    arm_timer(sim, rank);
    return true;
}

static void prefetch(uintptr_t address, size_t bytes)
{
    const size_t line = 64;
    for (size_t at = 0; at < bytes; at += line) __builtin_prefetch((const void *)(address + at));
}

/* With thousands of ranks each has left the caches when its turn comes again: what the next turns
** begin with is fetched while this one runs. Three turns ahead the event, which most often is the
** timer inside a rank's record, with what lies before it there; by the next turn that has come, so
** that the rank's stack can be found: what it wrote last, and the end of its red zone, which is
** looked at after every switch. */
static void bring_near(const cd_sim *sim)
{
    const size_t record_bytes = 192, stack_bytes = 1024;
    const cd_sim_event *later = cd_queue_guess(&sim->events, 3),
                       *next = cd_queue_guess(&sim->events, 1);
    if (later != NULL) prefetch((uintptr_t)later - record_bytes, record_bytes + sizeof *later);
    if (next == NULL || next->fire != timer_fire) return;
    const cd_sim_rank *rank =
        (const cd_sim_rank *)(const void *)((const char *)next - offsetof(cd_sim_rank, timer));
    __builtin_prefetch(rank->fiber.stack + CD_FIBER_RED_ZONE - 64);
    if (rank->fiber.context != NULL) prefetch((uintptr_t)rank->fiber.context, stack_bytes);
}

static void run_rank(cd_sim *sim, cd_sim_rank *rank)
{
    if (!sim->unwinding && hold(sim, rank)) return;
    rank->state = CD_RANK_RUNNING;
    rank->started = true;
    sim->current = rank;
    sim->stats.switches++;
    cd_fiber_enter(&rank->fiber);
    sim->current = NULL;
    size_t used = (size_t)(rank->fiber.stack + rank->fiber.stack_bytes - rank->fiber.low);
    if (!rank->fiber.ended && used > sim->stats.stack_used_peak) sim->stats.stack_used_peak = used;
    if (rank->is_broken && rank->state != CD_RANK_DEAD) {
        leave_broken(sim, rank);
    } else if (rank->is_stuck && rank->state != CD_RANK_DEAD) {
        leave_stuck(sim, rank);
    } else if (!cd_fiber_is_intact(&rank->fiber) && rank->state != CD_RANK_DEAD) {
        crash(sim, rank);
    } else if (rank->fiber.ended && rank->state != CD_RANK_DEAD) {
        rank->state = CD_RANK_ENDED;
        sim->ended_count++;
        if (sim->wires != NULL) cd_wires_rank_ended(sim, rank);
    }
}

void cd_sim_start_rank(cd_sim *sim, cd_sim_rank *rank, unsigned char *stack, size_t stack_bytes)
{
    rank->deadline_ns = UINT64_MAX;
    rank->timer = (cd_rank_timer){{timer_fire}, UINT64_MAX};
    cd_fiber_init(&rank->fiber, stack, stack_bytes, rank_main, rank);
    push_ready(sim, rank);
}

/* So often a rank may look at what has not ended, one time after the other, before time passes for
** it; then longer each time. */
#define IDLE_YIELDS_MAX 10000u
#define IDLE_DOUBLINGS_MAX 40u

/* Until the next event, or longer where other ranks do nothing but look as well. UINT64_MAX: there
** is nothing left to happen. */
static uint64_t end_of_idling(const cd_sim *sim, const cd_sim_rank *rank)
{
    const cd_heap_entry *next = cd_queue_find_first(&sim->events);
    const uint32_t more = rank->idle_yields - IDLE_YIELDS_MAX;
    const uint64_t least =
        sim->now_ns + (UINT64_C(1) << (more < IDLE_DOUBLINGS_MAX ? more : IDLE_DOUBLINGS_MAX));
    if (next == NULL) return UINT64_MAX;
    return next->time > least ? next->time : least;
}

void cd_sim_yield(cd_sim *sim, const struct cd_part *part)
{
    cd_sim_rank *rank = sim->current;
    CD_ASSERT(rank != NULL);
    const bool is_alone = sim->ready_count == 0 && sim->completable_count == 0;
    /* Ranks that ask again and again would ask for ever, if only time can change what they look at.
    ** The end of a part wakes who asks about it. */
    if ((is_alone || part != NULL) && ++rank->idle_yields >= IDLE_YIELDS_MAX) {
        const uint32_t looks = rank->idle_yields;
        (void)cd_sim_wait(sim, "asks again and again whether something has ended", part,
                          end_of_idling(sim, rank));
        rank->idle_yields = looks;
        return;
    }
    if (is_alone) return;
    push_ready(sim, rank);
    cd_fiber_leave(&rank->fiber);
}

cd_wake cd_sim_wait(cd_sim *sim, const char *what, const struct cd_part *part, uint64_t deadline_ns)
{
    cd_sim_rank *rank = sim->current;
    CD_ASSERT(rank != NULL);
    if (sim->unwinding) return CD_WAKE_ABORT;
    rank->idle_yields = 0; /* time passes */
    rank->state = CD_RANK_WAITING;
    rank->waiting = what;
    rank->waiting_part = part;
    rank->waiting_since_ns = sim->now_ns;
    rank->deadline_ns = deadline_ns;
    arm_timer(sim, rank);
    cd_fiber_leave(&rank->fiber);
    rank->waiting = NULL;
    rank->waiting_part = NULL;
    return sim->unwinding ? CD_WAKE_ABORT : rank->wake;
}

bool cd_sim_is_over_for(cd_sim *sim, cd_sim_rank *rank)
{
    /* A rank whose loop waits for nobody gives the thread back here. */
    if (!sim->unwinding && sim->current == rank && is_endless(sim))
        (void)cd_sim_wait(sim, "goes on without end", NULL, UINT64_MAX);
    if (!sim->unwinding) return false;
    if (rank->unwind_calls++ < UNWIND_CALLS_MAX) return true;
    rank->state = CD_RANK_DEAD;
    sim->ended_count++;
    for (;;) cd_fiber_leave(&rank->fiber);
}

void cd_sim_kill(cd_sim *sim, cd_sim_rank *rank)
{
    if (rank->state == CD_RANK_ENDED || rank->state == CD_RANK_DEAD) return;
    if (rank->state == CD_RANK_READY) {
        uint32_t index = 0;
        while (sim->ready[(sim->ready_first + index) % sim->world_size] != rank->port.rank) index++;
        take_ready(sim, index);
    }
    rank->killed = true;
    rank->state = CD_RANK_DEAD;
    sim->ended_count++;
    cd_cluster_rank_died(sim, rank);
    if (sim->current == rank) cd_fiber_leave(&rank->fiber); /* comes back only to be unwound */
}

/* ---- choices ---- */

static uint64_t option_id(const cddp_choice *choice, uint32_t index)
{
    return choice->options != NULL ? choice->options[index] : index;
}

/* Numbers, remembers and traces an answer (W4). */
static void record(cd_sim *sim, const cddp_choice *choice, uint32_t index)
{
    CD_ASSERT(index < choice->option_count);
    uint64_t semantic = option_id(choice, index);
    cd_schedule_push(&sim->schedule, index, choice->kind);
    sim->stats.choices++;
    sim->stats.choice_digest =
        cd_hash_mix(cd_hash_mix(sim->stats.choice_digest, choice->kind), semantic);
    CD_SIM_EMIT(sim, choice, choice->name, .point = choice->kind, .options = choice->option_count,
                .chosen = index, .semantic = (int64_t)semantic,
                .who = choice->rank == UINT32_MAX ? -1 : (int64_t)choice->rank);
}

uint32_t cd_sim_choose(cd_sim *sim, const cddp_choice *choice)
{
    cd_sim_rank *rank = sim->current;
    CD_ASSERT(rank != NULL && choice->option_count > 0);
    if (choice->option_count == 1 || sim->unwinding) return 0;
    if (sim->host->config.chooser == NULL && sim->is_launched) {
        record(sim, choice, 0);
        return 0;
    }
    sim->pending = *choice;
    sim->pending_source = CD_PENDING_RANK;
    rank->state = CD_RANK_CHOOSING;
    cd_fiber_leave(&rank->fiber);
    return rank->chosen;
}

/* The next events at the same time: completions first, then ready ranks, each in the order they
** were queued.
*/
static void ask_next(cd_sim *sim, uint32_t completions)
{
    cd_sim_host *host = sim->host;
    uint32_t count = 0;
    for (const cd_completion *c = sim->completable; c != NULL && count < completions; c = c->next)
        if (is_eligible(sim, c)) host->options[count++] = c->semantic;
    for (uint32_t i = 0; i < sim->ready_count && count < host->options_max; i++)
        host->options[count++] = sim->ready[(sim->ready_first + i) % sim->world_size];
    sim->pending = (cddp_choice){.size = sizeof sim->pending,
                                 .kind = completions > 0 ? CDDP_CHOICE_COMPLETE : CDDP_CHOICE_RUN,
                                 .rank = UINT32_MAX,
                                 .option_count = count,
                                 .options = host->options,
                                 .name = completions > 0 ? "complete" : "run"};
    sim->pending_source = completions > 0 ? CD_PENDING_COMPLETE : CD_PENDING_RUN;
}

static uint32_t eligible_count(const cd_sim *sim)
{
    uint32_t count = 0;
    for (const cd_completion *c = sim->completable; c != NULL; c = c->next)
        count += is_eligible(sim, c);
    return count < sim->host->options_max / 2 ? count : sim->host->options_max / 2;
}

static void take_turn(cd_sim *sim, cd_sim_rank *rank)
{
    if (!rank->has_asked) {
        run_rank(sim, rank);
        return;
    }
    rank->has_asked = false;
    rank->state = CD_RANK_CHOOSING;
    sim->pending = rank->asked;
    sim->pending_source = CD_PENDING_RANK;
}

static void take_next(cd_sim *sim, uint32_t completions, uint32_t index)
{
    if (index < completions)
        take_completion(sim, index);
    else
        take_turn(sim, take_ready(sim, index - completions));
}

/* The first ready rank runs up to its choice, and goes to the end of the queue. Whatever else
** happens meanwhile would give later choices other numbers: a rank that posts before another one
** does is asked less about the order of arrivals. */
static bool gather_first(cd_sim *sim)
{
    const uint64_t sequence = sim->events.sequence, choice_count = sim->schedule.choice_count;
    const uint32_t ready_count = sim->ready_count;
    cd_sim_rank *rank = take_ready(sim, 0);
    const uint64_t posted = rank->collective_count + rank->join_count;
    if (!rank->has_asked) {
        sim->pending_source = CD_PENDING_NONE;
        run_rank(sim, rank);
        if (sim->pending_source != CD_PENDING_RANK || rank->state != CD_RANK_CHOOSING) return false;
        rank->has_asked = true;
        rank->asked = sim->pending;
    }
    push_ready(sim, rank);
    return rank->asked.kind == CDDP_CHOICE_READY && sim->ready_count == ready_count &&
           sim->completable_count == 0 && sim->schedule.choice_count == choice_count &&
           sim->events.sequence == sequence && rank->collective_count + rank->join_count == posted;
}

bool cd_sim_gather(cd_sim *sim)
{
    const cddp_choice pending = sim->pending;
    const uint32_t count = sim->ready_count;
    bool is_straight = sim->pending_source == CD_PENDING_RANK &&
                       pending.kind == CDDP_CHOICE_READY && sim->completable_count == 0;
    CD_ASSERT(sim->current == NULL);
    for (uint32_t i = 0; is_straight && i < count; i++) is_straight = gather_first(sim);
    sim->pending = pending;
    sim->pending_source = CD_PENDING_RANK;
    return is_straight && !sim->out_of_memory;
}

void cd_sim_decide(cd_sim *sim, uint32_t index)
{
    cd_pending_source source = sim->pending_source;
    CD_ASSERT(source != CD_PENDING_NONE && index < sim->pending.option_count);
    record(sim, &sim->pending, index);
    sim->pending_source = CD_PENDING_NONE;
    switch (source) {
    case CD_PENDING_RUN:
        take_next(sim, 0, index);
        break;
    case CD_PENDING_COMPLETE:
        take_next(sim, eligible_count(sim), index);
        break;
    case CD_PENDING_RANK: {
        cd_sim_rank *rank = &sim->ranks[sim->pending.rank];
        rank->chosen = index;
        run_rank(sim, rank);
        break;
    }
    case CD_PENDING_FAULT:
        if (index == 1) cd_sim_fault_at_time(sim, sim->pending_fault);
        break;
    case CD_PENDING_NONE:
        break;
    }
}

/* ---- the loop ---- */

/* One thing happens. False when the world is over. */
static bool step(cd_sim *sim)
{
    if (sim->out_of_memory || sim->ended_count == sim->world_size) return false;
    if (is_endless(sim)) return false;
    uint32_t completions = sim->completable_count > 0 ? eligible_count(sim) : 0;
    uint32_t options = completions + sim->ready_count;
    if (options == 1) {
        take_next(sim, completions, 0);
        return true;
    }
    if (options > 1) {
        if (sim->host->config.chooser == NULL && sim->is_launched) { /* fifo, without asking */
            bool ids = completions > 0;
            if (ids) ask_next(sim, completions);
            cddp_choice run = {.kind = CDDP_CHOICE_RUN,
                               .rank = UINT32_MAX,
                               .option_count = options,
                               .name = "run"};
            uint64_t first = sim->ready_count > 0 ? sim->ready[sim->ready_first] : 0;
            run.options = &first; /* only the first is looked at */
            sim->pending_source = CD_PENDING_NONE;
            record(sim, ids ? &sim->pending : &run, 0);
            take_next(sim, completions, 0);
        } else {
            ask_next(sim, completions);
        }
        return true;
    }
    const cd_heap_entry *first = cd_queue_find_first(&sim->events);
    if (first == NULL) return false;
    if (first->time > sim->host->config.time_limit_ns) {
        sim->out_of_time = true;
        return false;
    }
    cd_heap_entry entry = {0};
    cd_queue_pop(&sim->events, &entry);
    bring_near(sim);
    sim->now_ns = entry.time;
    sim->stats.events++;
    cd_sim_event *event = entry.item;
    event->fire(sim, event);
    if (sim->pending_source == CD_PENDING_FAULT && sim->host->config.chooser == NULL &&
        sim->is_launched)
        cd_sim_decide(sim, 0);
    return true;
}

const cddp_choice *cd_sim_advance(cd_sim *sim)
{
    while (sim->pending_source == CD_PENDING_NONE) {
        if (sim->over) return NULL;
        if (!step(sim)) {
            sim->over = true;
            cd_sim_end_faults(sim);
            sim->stats.time_ns = sim->now_ns;
            sim->stats.hung = sim->ended_count < sim->world_size;
            for (uint32_t i = 0; i < sim->world_size; i++)
                sim->ranks[i].hung =
                    sim->ranks[i].state != CD_RANK_ENDED && sim->ranks[i].state != CD_RANK_DEAD;
            if (sim->stats.hung) cd_sim_report_hang(sim);
        }
    }
    return &sim->pending;
}

void cd_sim_unwind(cd_sim *sim)
{
    const cd_sim_config *config = &sim->host->config;
    if (config->ended != NULL) config->ended(config->ended_context);
    sim->unwinding = true;
    for (uint32_t i = 0; i < sim->world_size; i++) {
        cd_sim_rank *rank = &sim->ranks[i];
        bool stuck = rank->started && !rank->fiber.ended && !rank->overflowed && !rank->is_stuck &&
                     !rank->is_broken;
        if (!stuck) continue;
        cddp_error error = rank->error; /* the error of the report, not one of the clean-up */
        if (rank->state == CD_RANK_DEAD) sim->ended_count--;
        rank->chosen = 0;
        run_rank(sim, rank);
        rank->error = error;
    }
}
