/* SPDX-License-Identifier: Apache-2.0 */
/* The world port: what a rank program lives in. Time, waiting, choice and memory come only from
** here.
**
** Implemented by the simulator (ranks are fibers on one thread, time is virtual) and by the process
** world (ranks are processes, time is real). A rank program that blocks anywhere else is not
** reproducible.
**
** Lifetime   a cddp_rank is made by the world's launch and borrowed by the program until it
**            returns.
** Threads    a rank handle is used only by the program it was given to.
** Errors     launch fails only when ranks could not be started; how each rank ended is in its
**            result.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/status.h"
#include "cddp/words.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_WORLD_ABI 1u
#define CDDP_CHOICE_OPTIONS_MAX 4096u

typedef struct cddp_world_ops cddp_world_ops;
struct cddp_device; /* device.h */
struct cddp_tracer; /* trace.h */

/* A rank inside a world. A world embeds it as the first member of its record. */
typedef struct cddp_rank {
    const cddp_world_ops *ops;
    void *world;
    uint32_t rank;
    uint32_t world_size;
    const cddp_allocator *allocator; /* memory of this rank; the simulator's lives in its block */
} cddp_rank;

typedef cddp_event_enum_point cddp_choice_kind; /* CDDP_CHOICE_RUN, … */
#define CDDP_CHOICE_KIND_COUNT (CDDP_CHOICE_USER + 1)

typedef struct cddp_choice {
    uint32_t size; /* sizeof(cddp_choice) known to the writer */
    cddp_choice_kind kind;
    uint32_t rank;         /* who chooses; UINT32_MAX for the world itself */
    uint32_t option_count; /* >= 1; a choice with one option is not recorded */
    const uint64_t
        *options; /* borrows: (option_count) semantic ids (parameter, rank, sequence…), or NULL
                             ** when the option is its own index. fifo is option 0. */
    const char *name; /* static text, "ready" */
} cddp_choice;

typedef cddp_status (*cddp_rank_fn)(cddp_rank *rank, void *argument, cddp_error *err);

typedef cddp_event_enum_end cddp_rank_end; /* CDDP_RANK_RETURNED, … */

typedef struct cddp_rank_result {
    uint32_t size;
    cddp_rank_end end;
    cddp_status status;
    int32_t detail;
    cddp_error error;
} cddp_rank_result;

/* A device whose operations are queued on streams and take effect later. */
typedef struct cddp_streams_options {
    uint32_t size;
    /* borrowed until close: works at once, and holds the storage */
    const struct cddp_device *inner;
    /* borrowed until close: of memory, touch and order events; may be NULL */
    struct cddp_tracer *tracer;
    uint64_t operation_ns; /* how long an operation takes */
} cddp_streams_options;

struct cddp_world_ops {
    uint32_t size;
    uint32_t abi; /* CDDP_WORLD_ABI */
    const char *name;

    /* does: runs program on every rank and returns when all have ended. blocks: yes.
    ** results: (world_size) filled for every rank of this process. */
    cddp_status (*launch)(void *world, cddp_rank_fn program, void *argument,
                          cddp_rank_result *results, cddp_error *err);
    /* does: nanoseconds since the world began. */
    uint64_t (*now_ns)(cddp_rank *rank);
    /* does: lets nanoseconds pass without work. blocks: this rank. */
    cddp_status (*sleep_ns)(cddp_rank *rank, uint64_t duration_ns, cddp_error *err);
    /* does: accounts duration_ns of computation. Virtual time passes in the simulator; the process
    ** world passes it as real time only when it was opened to simulate compute, else returns at
    ** once. */
    cddp_status (*compute)(cddp_rank *rank, uint64_t duration_ns, const char *label,
                           cddp_error *err);
    /* does: one numbered decision; returns an index < option_count. Without a chooser: 0 (fifo). */
    uint32_t (*choose)(cddp_rank *rank, const cddp_choice *choice);
    /* does: lets other ranks run; a no-op where ranks are processes. */
    void (*yield)(cddp_rank *rank);
    /* (optional: default none, and what needs streams is refused) does: makes a device with streams
    ** over one without, for this rank. Storage that is given back is the next that is handed out
    ** for its size, whatever is still queued on it. ownership: close forgets what is queued; the
    ** table itself takes storage back until the world ends. */
    cddp_status (*streams_open)(cddp_rank *rank, const cddp_streams_options *options,
                                const struct cddp_device **device, cddp_error *err);
    void (*streams_close)(cddp_rank *rank, const struct cddp_device *device);
    /* (optional: default nobody asks) does: notes that the rank calls a function of a comm hook,
    ** such as "run" of "topk". NULL, NULL: it has returned. For the report of a rank
    ** that ends in it or never comes back. ownership: borrows both until the next call. */
    void (*calls)(cddp_rank *rank, const char *hook, const char *function);
};

#ifdef __cplusplus
}
#endif
