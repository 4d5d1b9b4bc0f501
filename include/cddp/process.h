/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of real processes: one that watches its ranks, one for a rank that is watched from
** elsewhere, and one for a process that is a rank alone.
**
** The process world starts W children and watches them. Where a transport must start its ranks
** itself (mpirun), it runs that command. The ranks, each in a member world, then report to it over
** sockets, with the same contents. Their output is forwarded line by line with the rank in front,
** and their results come back through pipes. A rank that dies, hangs or leaves without a result is
** reported as that. When one rank fails, the others get a grace period to notice it, because their
** own time-outs explain more than a kill. Then they are killed. The same happens at the deadline.
**
** The solo world is for a process that was started elsewhere: by mpirun, torchrun, a batch system
** or a user. The caller sets its rank; nothing here reads the environment.
**
** Lifetime   open → launch (once or again) → close. Texts inside results live until close.
** Threads    one thread; open and launch before the process starts other threads, since launch
**            forks.
** Errors     launch fails only when ranks could not be started; how each rank ended is in its
**            result.
*/
#pragma once
#include "cddp/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_process_world cddp_process_world;

typedef struct cddp_process_options {
    uint32_t size; /* sizeof(cddp_process_options) known to the writer */
    uint32_t world_size;
    uint64_t deadline_ns;  /* of one launch; 0: none */
    uint64_t grace_ns;     /* between the first failure and the kill; 0: 5 s */
    bool simulate_compute; /* compute() lets real time pass */
    /* NULL: the process heap. Also what rank programs allocate from */
    const cddp_allocator *allocator;
    /* does: takes one line that a rank wrote, without its newline; error: it was written to stderr.
    ** (optional: default prints "[rank] line" to the same stream of this process) */
    void (*output)(void *context, uint32_t rank, bool error, const char *line, size_t length);
    /* does: takes what a rank sent with cddp_process_send, one call per send, in its order.
    ** (optional) */
    void (*message)(void *context, uint32_t rank, const void *bytes, size_t byte_count);
    void *context;
    /* (optional) the command, NULL-terminated, that starts world_size processes on this machine,
    ** each of which opens a member world; NULL: ranks are forked. Its own lines go to output as
    ** those of rank CDDP_PROCESS_LAUNCHER. */
    const char *const *command;
    /* (optional) NAME=VALUE, NULL-terminated, added to the command's environment. CDDP_HUB is
    ** always added: the address for cddp_member_options. */
    const char *const *environment;
    /* (optional) the host, a name or number of this machine, where ranks that somebody else started
    ** report; launch then forks member->rank alone, as a member, and close waits for nobody.
    ** member->address is filled in by launch. */
    const char *hub_host;
    const struct cddp_member_options *member;
    /* True: the ranks' launcher ignores how they end, so they end with the launch. False: after a
    ** failed run they stay until this process exits, because their launcher may end this process
    ** with them. With one_host their process numbers are valid here, so stopped ranks are found. */
    bool ends_members, one_host;
    /* (optional) asked a few times a second, until a rank fails; true ends all */
    bool (*interrupted)(void *context);
    /* The time after which a rank on this machine that is stopped (SIGSTOP) has failed. Also the
    ** time by which a rank that is not forked here may report after the first one; the first one
    ** has at least 20 s. 0: the deadline. */
    uint64_t patience_ns;
    /* (optional) asked several times a second of every rank that runs on this machine; true ends
    ** it, as one that hangs: it never came back from code from outside. */
    bool (*is_stuck)(void *context, uint32_t rank);
} cddp_process_options;

#define CDDP_PROCESS_LAUNCHER UINT32_MAX
#define CDDP_PROCESS_ADDRESS_BYTES 160u

CDDP_API cddp_status cddp_process_world_open(const cddp_process_options *options,
                                             cddp_process_world **world,
                                             cddp_error *err) CDDP_MUST_CHECK;
/* kills what still runs; accepts NULL */
CDDP_API void cddp_process_world_close(cddp_process_world *world);
/* The world's table; its functions take the cddp_process_world as `void *world`. */
CDDP_API const cddp_world_ops *cddp_process_world_ops(void);

/* A rank whose launcher is elsewhere. Its launch connects to the launcher and runs the program with
** stdout and stderr going there. It reports the result, waits for its release, and ends the
** process: it does not return. */
typedef struct cddp_member_world cddp_member_world;

typedef struct cddp_member_options {
    uint32_t size; /* sizeof(cddp_member_options) known to the writer */
    uint32_t rank;
    uint32_t world_size;
    bool simulate_compute;
    /* of the launcher, from CDDP_HUB; NULL: meet brings it. Borrowed until launch */
    const char *address;
    const cddp_allocator *allocator; /* NULL: the process heap */
    /* (optional) does: hands the launcher's address from rank 0, where address holds it, to every
    ** other rank. blocks: until all ranks call it. */
    cddp_status (*meet)(void *context, cddp_rank *rank, char address[CDDP_PROCESS_ADDRESS_BYTES],
                        cddp_error *err);
    /* (optional) does: ends the transport, when all ranks ended in a state in which it can. */
    void (*leave)(void *context);
    void *context;
    uint64_t patience_ns; /* for meet to return, 30 s at least; then the process ends */
    /* launch goes on in a child: whoever started this process must not see it die
    ** (cddp_launcher.ends_all) */
    bool shelter;
} cddp_member_options;

CDDP_API cddp_status cddp_member_world_open(const cddp_member_options *options,
                                            cddp_member_world **world,
                                            cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_member_world_close(cddp_member_world *world); /* accepts NULL */
CDDP_API const cddp_world_ops *cddp_member_world_ops(void);

/* Called by a rank program: hands bytes to the message function of the launching process. */
CDDP_API cddp_status cddp_process_send(cddp_rank *rank, const void *bytes, size_t byte_count,
                                       cddp_error *err) CDDP_MUST_CHECK;
/* Called by a rank program: what it is about to do, at most 200 bytes, kept in memory shared with
** the launcher, or sent to it by a member. It costs a copy and becomes part of the diagnosis when
** this rank dies or hangs.
*/
CDDP_API void cddp_process_note(cddp_rank *rank, const char *text);

/* Called by a rank program: a sink that keeps the last 64 events in memory shared with the
** launcher, for use beside the one that records. Returns borrowed until the program returns; NULL
** when rank shares no memory with a launcher. */
CDDP_API const cddp_trace_sink *cddp_process_last_events(cddp_rank *rank);
/* True when the last launch ended because `interrupted` returned true. */
CDDP_API bool cddp_process_world_was_interrupted(const cddp_process_world *world);
/* Called by the launcher after launch: hands over what such a sink of this rank kept, oldest first.
** An event that the rank did not finish writing is left out; texts are cut after 95 bytes. */
CDDP_API void cddp_process_world_each_last_event(const cddp_process_world *world, uint32_t rank,
                                                 const cddp_trace_sink *sink);

typedef struct cddp_solo_world cddp_solo_world;

typedef struct cddp_solo_options {
    uint32_t size; /* sizeof(cddp_solo_options) known to the writer */
    uint32_t rank;
    uint32_t world_size;
    bool simulate_compute;
    const cddp_allocator *allocator; /* NULL: the process heap */
} cddp_solo_options;

CDDP_API cddp_status cddp_solo_world_open(const cddp_solo_options *options, cddp_solo_world **world,
                                          cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_solo_world_close(cddp_solo_world *world); /* accepts NULL */
/* Its launch runs the program right here and fills results[rank] only. */
CDDP_API const cddp_world_ops *cddp_solo_world_ops(void);
/* The rank itself, for programs that keep their own main loop. Returns borrowed until close. */
CDDP_API cddp_rank *cddp_solo_world_rank(cddp_solo_world *world);

#ifdef __cplusplus
}
#endif
