/* SPDX-License-Identifier: Apache-2.0 */
/* The world of one rank whose launcher is another process, perhaps on another host.
**
** A thread listens to the launcher all the time, so that a rank whose launcher is gone, or that
** has to quit, ends even while its program waits for a peer. A rank that has said how it went
** stays until it is released: a launcher of the transport (mpirun) that sees one process leave in
** disorder would end the others before they can speak.
**
** Not here: the messages (process_wire.c), how to get there (process_hub.c). */
#define _POSIX_C_SOURCE 200809L
#include "backends/process/process_hub.h"
#include "backends/process/process_rank.h"
#include "backends/process/process_watch.h"
#include "backends/process/process_wire.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/sized.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define JOIN_PATIENCE_NS UINT64_C(20000000000)
#define LEAVE_PATIENCE_S 5u

struct cddp_member_world {
    cddp_member_options options;
    cd_process_rank rank;
    char address[CDDP_PROCESS_ADDRESS_BYTES];
    int fds[CD_OS_PIPE_COUNT];
    atomic_bool has_joined; /* the launcher's address is known */
    atomic_bool has_ended;  /* the program returned and its result is sent */
};

/* Ends the process when its launcher is not found: it may have left, or a peer be stopped, while
** the transport starts, which may have no time-out then. Longer than the launcher's own patience,
** who has more to say. */
static void *guard_start(void *argument)
{
    cddp_member_world *w = argument;
    const uint64_t patience = CD_PROCESS_START_PATIENCE_NS + CD_PROCESS_START_PATIENCE_NS / 2;
    const uint64_t until =
        cd_os_now_ns() + (w->options.patience_ns > patience ? w->options.patience_ns : patience);
    while (!atomic_load(&w->has_joined) && cd_os_now_ns() < until)
        cd_os_sleep_ns(CD_PROCESS_POLL_NS / 10);
    if (atomic_load(&w->has_joined)) return NULL;
    char words[96];
    int n =
        snprintf(words, sizeof words,
                 "rank %u did not find its judge: the transport did not start\n", w->options.rank);
    /* Nothing can be reported where nobody listens. */
    _exit(cd_os_write_all(STDERR_FILENO, words, (size_t)n, NULL) == CDDP_OK ? 1 : 2);
}

static cddp_status find_launcher(cddp_member_world *w, cddp_error *err)
{
    pthread_t guard;
    if (w->options.meet == NULL) return CDDP_OK;
    if (pthread_create(&guard, NULL, guard_start, w) != 0)
        return cd_fail(err, CDDP_E_NOMEM, "cannot start a thread");
    cddp_status status = w->options.meet(w->options.context, &w->rank.base, w->address, err);
    atomic_store(&w->has_joined, true);
    pthread_join(guard, NULL);
    return status;
}

/* Ends when the launcher releases this rank; ends the process when it goes or says quit. */
static void *listen_to_launcher(void *argument)
{
    cddp_member_world *w = argument;
    for (;;) {
        char word = 0;
        ssize_t n = read(w->fds[CD_OS_PIPE_RESULT], &word, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(1);
        if (word == CD_PROCESS_LEAVE && atomic_load(&w->has_ended)) return NULL;
        /* Asked to quit: at once in the middle of the program, else together with the launcher. */
        if (!atomic_load(&w->has_ended)) _exit(1);
    }
}

static cddp_status report_to_launcher(cddp_member_world *w, cddp_error *err)
{
    cd_process_hello who = {w->options.rank, w->options.world_size, 0, (int32_t)cd_os_process_id()};
    CD_TRY(find_launcher(w, err));
    CD_TRY(cd_process_hub_join(w->address, &who, JOIN_PATIENCE_NS, w->fds, err));
    fflush(NULL);
    if (dup2(w->fds[CD_OS_PIPE_STDOUT], STDOUT_FILENO) < 0 ||
        dup2(w->fds[CD_OS_PIPE_STDERR], STDERR_FILENO) < 0)
        return cd_fail(err, CDDP_E_IO, "cannot redirect the output of rank %u: %s", w->options.rank,
                       strerror(errno));
    close(w->fds[CD_OS_PIPE_STDOUT]);
    close(w->fds[CD_OS_PIPE_STDERR]);
    w->rank.result_fd = w->fds[CD_OS_PIPE_RESULT];
    return CDDP_OK;
}

/* The question of a shelter. An mpiexec that is killed while it starts can leave its proxy behind,
** which then waits for shelters that would wait for it. */
static bool is_judged(void *argument)
{
    const cddp_member_world *w = argument;
    return cd_process_hub_answers(w->address);
}

/* Returns only when the launcher could not be reached. */
static cddp_status member_launch(void *world, cddp_rank_fn program, void *argument,
                                 cddp_rank_result *results, cddp_error *err)
{
    cddp_member_world *w = world;
    pthread_t listener;
    cddp_error error = CDDP_ERROR_INIT;
    (void)results;
    if (w->options.shelter) CD_TRY(cd_os_shelter(is_judged, w, err));
    CD_TRY(report_to_launcher(w, err));
    if (pthread_create(&listener, NULL, listen_to_launcher, w) != 0)
        return cd_fail(err, CDDP_E_NOMEM, "cannot start a thread");
    w->rank.start_ns = cd_os_now_ns();
    cddp_status status = program(&w->rank.base, argument, &error);
    if (status == CDDP_OK) cd_error_reset(&error);
    fflush(NULL);
    atomic_store(&w->has_ended, true);
    if (cd_process_result_write(w->rank.result_fd, status, &error, NULL) != CDDP_OK) _exit(1);
    pthread_join(listener, NULL);
    /* Everybody is well, so this takes as long as the transport takes; but no rank outlives its
    ** run. */
    alarm(LEAVE_PATIENCE_S);
    if (w->options.leave != NULL) w->options.leave(w->options.context);
    fflush(NULL);
    _exit(0);
}

static const cddp_world_ops ops = {
    .size = sizeof ops,
    .abi = CDDP_WORLD_ABI,
    .name = "member",
    .launch = member_launch,
    .now_ns = cd_process_rank_now,
    .sleep_ns = cd_process_rank_sleep,
    .compute = cd_process_rank_compute,
    .choose = cd_process_rank_choose,
    .yield = cd_process_rank_yield,
};

const cddp_world_ops *cddp_member_world_ops(void) { return &ops; }

cddp_status cddp_member_world_open(const cddp_member_options *options, cddp_member_world **world,
                                   cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(options, cddp_member_options, world_size, err));
    if (options->rank >= options->world_size)
        return cd_fail(err, CDDP_E_ARG, "rank %u does not exist in a world of %u", options->rank,
                       options->world_size);
    if (options->address == NULL && options->meet == NULL)
        return cd_fail(err, CDDP_E_ARG, "rank %u has no way to its launcher", options->rank);
    cddp_member_world *w = cd_allocate_zero(options->allocator, sizeof *w);
    if (w == NULL) return cd_fail_memory(err, "a member world");
    w->options = *options;
    if (options->address != NULL) snprintf(w->address, sizeof w->address, "%s", options->address);
    w->rank =
        (cd_process_rank){.base = {&ops, w, options->rank, options->world_size, options->allocator},
                          .result_fd = -1,
                          .simulate_compute = options->simulate_compute};
    *world = w;
    return CDDP_OK;
}

void cddp_member_world_close(cddp_member_world *world)
{
    if (world != NULL) cd_release(world->options.allocator, world, sizeof *world);
}
