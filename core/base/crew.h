/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of processes: tasks, each done by a fork of this process, and their results in order.
**
** A worker sends one record through its pipe: its result or its error. A record that arrives in
** part does not count, so a worker that was killed in the middle is a worker without a result.
** Results are handed over in the order of the tasks, whatever the order in which workers end; so
** what comes of them is the same for every number of workers.
**
** Lifetime   cd_crew_run returns when every worker has ended or was stopped.
** Threads    one thread; it forks.
** Errors     CDDP_E_NOMEM when a worker cannot be started; what `take` fails with; what a worker
**            failed with, where every worker is needed.
*/
#pragma once
#include "core/base/text.h"

/* How a task ended. Borrowed for the call. */
typedef struct cd_crew_end {
    size_t task;
    /* the worker sent a whole record: its result, or why there is none */
    bool is_whole;
    cddp_status status;  /* of its work */
    const char *message; /* of its error; "" */
    const char *bytes;   /* (byte_count) its result; a zero byte follows */
    size_t byte_count;
    /* of a worker that sent no whole record */
    int exit_code, signal_number;
    bool is_late; /* it was stopped, because it took longer than limit_ns */
} cd_crew_end;

typedef struct cd_crew_options {
    size_t task_count;
    uint32_t worker_count; /* at most so many processes at once; at least 1 */
    void *context;         /* of every function below */
    /* In the worker. Appends the result. */
    cddp_status (*work)(void *context, size_t task, cd_text *result, cddp_error *err);
    /* Here, task by task. *is_last, false before: later tasks do not count; their workers are
    ** stopped. */
    cddp_status (*take)(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err);
    void (*progress)(void *context, size_t taken); /* several times a second; may be NULL */
    /* what workers print; NULL: it is dropped */
    void (*output)(void *context, const char *bytes, size_t byte_count);
    /* true: no task is begun any more; NULL: never. Workers may ask it, too. */
    bool (*interrupted)(void);
    uint64_t limit_ns; /* how long a task may take; 0: as long as it likes */
    /* of interrupted workers: ask them to end, see cd_os_child_interrupt, and wait for at most 5 s;
    ** false: stop them, and take nothing more */
    bool drains;
    /* "explored": the first worker that fails or dies is the error of the whole, at once, as "a
    ** process that explored ended early"; CDDP_E_NOMEM when it was ended from outside. NULL: `take`
    ** is asked. */
    const char *needed;
} cd_crew_options;

/* CDDP_E_NOMEM when the worker was ended from outside, by somebody or for want of memory: that says
** nothing about its task. `what`: "the process that tried it". */
cddp_status cd_crew_check_outside(const cd_crew_end *end, const char *what,
                                  cddp_error *err) CDDP_MUST_CHECK;

/* Tasks that were begun, and those that were taken; valid after an error too. */
typedef struct cd_crew_count {
    size_t begun, taken;
} cd_crew_count;

cddp_status cd_crew_run(const cd_crew_options *options, cd_crew_count *count,
                        cddp_error *err) CDDP_MUST_CHECK;
