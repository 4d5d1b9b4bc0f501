/* SPDX-License-Identifier: Apache-2.0 */
/* Real time, fifo choices, and the way back to the launcher. */
#include "backends/process/process_rank.h"

#include "backends/process/process_wire.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <string.h>

/* NULL when the rank lives in another world. */
static const cd_process_rank *find(const cddp_rank *rank)
{
    const bool ours = rank != NULL && (rank->ops == cddp_process_world_ops() ||
                                       rank->ops == cddp_member_world_ops());
    return ours ? (const cd_process_rank *)rank : NULL;
}

uint64_t cd_process_rank_now(cddp_rank *rank)
{
    return cd_os_now_ns() - ((const cd_process_rank *)rank)->start_ns;
}

cddp_status cd_process_rank_sleep(cddp_rank *rank, uint64_t duration_ns, cddp_error *err)
{
    (void)rank;
    (void)err;
    cd_os_sleep_ns(duration_ns);
    return CDDP_OK;
}

cddp_status cd_process_rank_compute(cddp_rank *rank, uint64_t duration_ns, const char *label,
                                    cddp_error *err)
{
    (void)label;
    (void)err;
    if (((const cd_process_rank *)rank)->simulate_compute) cd_os_sleep_ns(duration_ns);
    return CDDP_OK;
}

uint32_t cd_process_rank_choose(cddp_rank *rank, const cddp_choice *choice)
{
    (void)rank;
    (void)choice;
    return 0;
}

void cd_process_rank_yield(cddp_rank *rank) { (void)rank; }

cddp_status cddp_process_send(cddp_rank *rank, const void *bytes, size_t byte_count,
                              cddp_error *err)
{
    const cd_process_rank *r = find(rank);
    if (rank == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_process_send: the rank is NULL");
    if (r == NULL)
        return cd_fail(err, CDDP_E_STATE, "rank %u does not live in a process world", rank->rank);
    CD_TRY(cd_process_record_write(r->result_fd, CD_PROCESS_MESSAGE, bytes, byte_count, err));
    return CDDP_OK;
}

void cddp_process_note(cddp_rank *rank, const char *text)
{
    const cd_process_rank *r = find(rank);
    if (r == NULL || text == NULL) return;
    size_t length = strlen(text);
    if (r->note == NULL) {
        /* A launcher that is gone reads no notes, and this rank ends by itself. */
        if (cd_process_record_write(r->result_fd, CD_PROCESS_NOTE, text, length, NULL) != CDDP_OK)
            return;
    } else {
        /* The last byte stays 0 for ever, so the launcher reads a text even from a rank killed in
        ** the middle. */
        strncpy(r->note, text, CD_PROCESS_NOTE_BYTES - 1);
    }
}

const cddp_trace_sink *cddp_process_last_events(cddp_rank *rank)
{
    const cd_process_rank *r = find(rank);
    return r != NULL && r->last_events.self != NULL ? &r->last_events : NULL;
}
