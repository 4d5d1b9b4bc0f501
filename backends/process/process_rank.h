/* SPDX-License-Identifier: Apache-2.0 */
/* A rank as it sees itself, in its own process: what the process world and the member world have in
** common. */
#pragma once
#include "cddp/process.h"

#define CD_PROCESS_NOTE_BYTES 208

typedef struct cd_process_rank {
    cddp_rank base; /* first: the world port hands it out */
    int result_fd;
    /* (CD_PROCESS_NOTE_BYTES) shared with the launcher; NULL: notes are sent */
    char *note;
    cddp_trace_sink last_events; /* self NULL: no memory is shared */
    uint64_t start_ns;           /* 0 on its clock */
    bool simulate_compute;
} cd_process_rank;

uint64_t cd_process_rank_now(cddp_rank *rank);
cddp_status cd_process_rank_sleep(cddp_rank *rank, uint64_t duration_ns, cddp_error *err);
cddp_status cd_process_rank_compute(cddp_rank *rank, uint64_t duration_ns, const char *label,
                                    cddp_error *err);
uint32_t cd_process_rank_choose(cddp_rank *rank, const cddp_choice *choice);
void cd_process_rank_yield(cddp_rank *rank);
