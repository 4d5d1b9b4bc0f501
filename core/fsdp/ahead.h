/* SPDX-License-Identifier: Apache-2.0 */
/* The stream of gathers: units are gathered on it while the default stream computes with others
** (FSH-07), and how many freed ones may wait to be computed with (limit_all_gathers, FSH-12).
**
**   default   | compute a | free a ▪1 | compute b | free b ▪2 | …
**   gathers   | AG a | AG b        | AG c: into memory of a, when ▪1 was reached
**
** The host runs ahead of both. Memory of a unit that it freed is still read until the default
** stream has reached the free. With the limit the host waits, before a gather while two frees are
** not reached, for the older one. Its memory is then used again. Without the limit it does not
** wait, and each gather of an iteration takes memory that no unit had in it.
**
** An iteration begins with a wait of the stream for all that the default stream was given: the
** optimizer's step, and the frees of the iteration before.
**
** Deviations from PyTorch: it asks the device which frees were reached, so that its peak without
** the limit is another one in each run. Frees of the iteration before count there, too.
**
** Not here: devices without streams, where every operation is over when it returns.
**
** Ownership  streams and marks until fini; borrows the device and the memory.
*/
#pragma once
#include "core/fsdp/memory.h"

#define CD_FSDP_FREES_PENDING 2 /* at most, when a gather is posted */

/* A free that the default stream has perhaps not reached. */
typedef struct cd_fsdp_free {
    cddp_mark *mark;
    uint64_t gives; /* of the memory, until then */
    uint32_t unit;
} cd_fsdp_free;

typedef struct cd_fsdp_ahead {
    const cddp_device *device; /* NULL: it has no streams, and nothing here does anything */
    cd_fsdp_memory *memory;
    cddp_stream *stream, *host; /* host: what the host waits for is queued there */
    cddp_mark *computed, *gathered;
    bool has_limit;
    cd_fsdp_free *frees; /* (capacity) a ring, the oldest at `first` */
    size_t capacity, first, count;
} cd_fsdp_ahead;

typedef struct cd_fsdp_ahead_spec {
    const cddp_device *device;
    cd_fsdp_memory *memory;
    cd_arena *arena;
    uint32_t unit_count; /* as many frees may follow each other without a gather */
    bool has_limit;
} cd_fsdp_ahead_spec;

cddp_status cd_fsdp_ahead_init(cd_fsdp_ahead *ahead, const cd_fsdp_ahead_spec *spec,
                               cddp_error *err);
void cd_fsdp_ahead_fini(cd_fsdp_ahead *ahead); /* accepts a zeroed one */

/* NULL: the default stream. */
cddp_stream *cd_fsdp_ahead_get_stream(const cd_fsdp_ahead *ahead);
/* Gathers come behind what the default stream was given so far. */
cddp_status cd_fsdp_ahead_begin(cd_fsdp_ahead *ahead, cddp_error *err);
/* The default stream comes behind what gathers were given so far. */
cddp_status cd_fsdp_ahead_join(cd_fsdp_ahead *ahead, cddp_error *err);
/* Another stream comes behind what gathers were given until the last join; else behind what the
** default stream was given so far. */
cddp_status cd_fsdp_ahead_let(cd_fsdp_ahead *ahead, bool behind_gathers, cddp_stream *stream,
                              cddp_error *err);
/* The host has freed a unit. */
cddp_status cd_fsdp_ahead_note_free(cd_fsdp_ahead *ahead, uint32_t unit, cddp_error *err);
/* Before a gather. *unit: for whose free the host waited; -1: it did not. */
cddp_status cd_fsdp_ahead_limit(cd_fsdp_ahead *ahead, int64_t *unit, cddp_error *err);
/* The host waits for all that the default stream was given. */
cddp_status cd_fsdp_ahead_settle(cd_fsdp_ahead *ahead, cddp_error *err);
