/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder of this process: one, of one rank. It is the library's only state of a process.
**
** States     UNREAD  nobody asked for a recording yet; CDDP_RECORD was not looked at
**            OFF     there is none, or it was closed
**            ARMED   a recording was asked for; which rank this is, is not known yet
**            ON      the shard is open
** A child process that is forked goes back from ON to ARMED: it may become a rank, and opens
** another shard.
*/
#pragma once
#include "cddp/record.h"
#include "cddp/shard.h"
#include "core/trace/tracer.h"

typedef enum cd_recording_state {
    CD_RECORDING_UNREAD,
    CD_RECORDING_OFF,
    CD_RECORDING_ARMED,
    CD_RECORDING_ON
} cd_recording_state;

/* What the recorder knows of a parameter, by its position. */
typedef struct cd_recorded_parameter {
    int64_t variable; /* among the reduced ones; -1: not reduced */
    int64_t contributions;
    bool is_known;
} cd_recorded_parameter;

typedef struct cd_recording {
    cd_recording_state state;
    char path[512];
    cddp_record_options options;
    uint32_t process; /* that opened the shard */
    cddp_shard *shard;
    cddp_rank rank; /* the clock of the tracer: the machine's */
    cddp_trace_sink sink;
    struct cddp_tracer tracer;
    cd_recorded_parameter *parameters; /* (parameter_count) */
    size_t parameter_count, parameter_capacity;
    int64_t group;     /* of the world, as a group event said; -1: none did */
    bool has_wrapper;  /* a wrap event came */
    bool has_reducer;  /* that of a cddp_ddp, which says what it reduced */
    bool says_steps;   /* the program does; else they follow from forwards and backwards */
    bool is_finalized; /* a backward was reduced since the last forward began */
    bool has_forward, is_out_of_memory;
    bool has_stepped; /* an optimizer stepped, and no gradient came since */
    /* a clip or a scaler changed gradients in the step at hand; and whether that was said before */
    bool is_rescaled, has_clipped, has_scaled;
    cddp_error failure; /* of a shard that could not be opened */
} cd_recording;

/* The recorder when it is ON, else NULL: what every emit function begins with. */
cd_recording *cd_recording_get(void);
/* NULL without memory. */
cd_recorded_parameter *cd_recording_find(cd_recording *recording, size_t parameter);
/* The tracer of a group or wrapper: its own, or the recorder's; NULL without both. */
struct cddp_tracer *cd_record_attach(cddp_rank *rank, struct cddp_tracer *own);
