/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and texts about a running reducer, sampled as PyTorch samples them (LOG-01…03).
**
** Ownership  texts are built on demand in buffers of the logger, valid until the next call.
*/
#pragma once
#include "cddp/ddp.h"

#define CD_LOGGER_FIRST_SAMPLES 10 /* iterations that are always sampled */

typedef struct cd_logger {
    const cddp_allocator *allocator;
    uint32_t sample_rate;
    bool is_sampling; /* this iteration */
    bool has_error;
    cddp_error error; /* the last one */
    /* Times of the iteration being sampled, then their running means. */
    uint64_t forward_begin_ns, backward_begin_ns, backward_compute_end_ns, comm_begin_ns,
        comm_end_ns;
    uint64_t sample_count;
    uint64_t sum_forward_ns, sum_backward_compute_ns, sum_comm_ns, sum_overlap_ns;
    /* Texts for cddp_ddp_get_logging; grown on demand, outside of iterations. */
    char *text;
    size_t text_capacity, text_used;
} cd_logger;

void cd_logger_init(cd_logger *logger, uint32_t sample_rate, const cddp_allocator *allocator);
void cd_logger_fini(cd_logger *logger);
void cd_logger_begin_iteration(cd_logger *logger, uint64_t iteration);
void cd_logger_end_iteration(cd_logger *logger);
void cd_logger_set_error(cd_logger *logger, const cddp_error *err);

/* Building texts: begin, then append and cut; a text that does not fit memory becomes "". Returns
** the offset of the text just finished; texts stay valid until the next begin. */
void cd_logger_text_begin(cd_logger *logger);
void cd_logger_text_append(cd_logger *logger, const char *format, ...) CDDP_PRINTF(2, 3);
size_t cd_logger_text_cut(cd_logger *logger, size_t start);
const char *cd_logger_text_at(const cd_logger *logger, size_t offset);
