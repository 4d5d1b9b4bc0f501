/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling of times, the last error, and the texts of the logging struct.
**
** Sampled are the first ten iterations and then every sample_rate-th (LOG-03): reading the clock
** for every gradient of every iteration would itself be a cost.
*/
#include "core/ddp/parts/logger.h"

#include "core/base/alloc.h"
#include "core/base/format.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void cd_logger_init(cd_logger *logger, uint32_t sample_rate, const cddp_allocator *allocator)
{
    *logger = (cd_logger){.allocator = allocator, .sample_rate = sample_rate};
}

void cd_logger_fini(cd_logger *logger)
{
    cd_release(logger->allocator, logger->text, logger->text_capacity);
    logger->text = NULL;
    logger->text_capacity = 0;
}

void cd_logger_begin_iteration(cd_logger *logger, uint64_t iteration)
{
    logger->is_sampling =
        iteration <= CD_LOGGER_FIRST_SAMPLES || iteration % logger->sample_rate == 0;
    logger->backward_begin_ns = logger->backward_compute_end_ns = logger->comm_begin_ns =
        logger->comm_end_ns = 0;
}

void cd_logger_end_iteration(cd_logger *logger)
{
    if (!logger->is_sampling || logger->backward_begin_ns == 0) return;
    logger->is_sampling = false;
    uint64_t compute_end = logger->backward_compute_end_ns;
    logger->sample_count++;
    logger->sum_forward_ns += logger->backward_begin_ns - logger->forward_begin_ns;
    logger->sum_backward_compute_ns += compute_end - logger->backward_begin_ns;
    if (logger->comm_begin_ns == 0) return;
    logger->sum_comm_ns += logger->comm_end_ns - logger->comm_begin_ns;
    /* Communication that ran while gradients were still being computed. */
    uint64_t end = compute_end < logger->comm_end_ns ? compute_end : logger->comm_end_ns;
    if (end > logger->comm_begin_ns) logger->sum_overlap_ns += end - logger->comm_begin_ns;
}

void cd_logger_set_error(cd_logger *logger, const cddp_error *err)
{
    logger->has_error = true;
    if (err != NULL) logger->error = *err;
}

void cd_logger_text_begin(cd_logger *logger) { logger->text_used = 0; }

void cd_logger_text_append(cd_logger *logger, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int wanted = cd_vformat(NULL, 0, format, args);
    va_end(args);
    size_t needed = logger->text_used + (size_t)wanted + 1;
    if (wanted >= 0 &&
        cd_vec_grow(logger->allocator, (void **)&logger->text, &logger->text_capacity, needed, 1)) {
        cd_vformat(logger->text + logger->text_used, (size_t)wanted + 1, format, again);
        logger->text_used += (size_t)wanted;
    }
    va_end(again);
}

size_t cd_logger_text_cut(cd_logger *logger, size_t start)
{
    if (cd_vec_grow(logger->allocator, (void **)&logger->text, &logger->text_capacity,
                    logger->text_used + 1, 1))
        logger->text[logger->text_used++] = '\0';
    return start;
}

const char *cd_logger_text_at(const cd_logger *logger, size_t offset)
{
    return logger->text != NULL && offset < logger->text_used ? logger->text + offset : "";
}
