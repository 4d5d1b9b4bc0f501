/* SPDX-License-Identifier: Apache-2.0 */
/* The events between two commits, and the virtual table from which SQLite reads them.
**
** One statement, "INSERT INTO event SELECT * FROM cd_batch", moves a whole batch: no value is
** bound and no statement is reset per row. So the wide event row is as fast as a narrow plain
** insert (bench/store_bench.c measures both).
**
** Lifetime   init → (add* → insert → clear)* → fini. The virtual table borrows the batch.
** Errors     add returns false when memory is exhausted; the event is then not in the batch.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"
#include "db/schema.h"

/* A text seen before, by its hash. */
typedef struct cd_interned {
    uint64_t hash;
    size_t offset; /* offset in texts, + 1; 0: the slot is free */
    uint32_t number;
} cd_interned;

typedef struct cd_batch {
    const cddp_allocator *allocator;
    cddp_event *events; /* (count) text is NULL */
    size_t count, capacity;
    uint32_t *text_numbers; /* (count) 0: none */
    size_t text_capacity;
    char *texts; /* every interned text, terminated */
    size_t texts_used, texts_capacity;
    cd_interned *slots; /* (slot_count), a power of two */
    size_t slot_count, slots_used;
    uint32_t next_number;    /* number of the next new text, from 1 */
    uint32_t written_number; /* texts below it are in the file */
    size_t written_offset;   /* offset of the first unwritten text */
    int64_t first_id;        /* id of the first event of the batch */
    int64_t run;
    const int16_t *stored_kinds;         /* (CDDP_EV_COUNT) */
    uint16_t real_fields[CDDP_EV_COUNT]; /* a bit per field of type f64 */
} cd_batch;

void cd_batch_init(cd_batch *batch, const cddp_allocator *allocator, const int16_t *stored_kinds);
void cd_batch_fini(cd_batch *batch); /* accepts a zeroed one */
/* Starts a run: numbers begin at 1 again. */
void cd_batch_begin(cd_batch *batch, int64_t run);
bool cd_batch_add(cd_batch *batch, const cddp_event *event);
/* Call when the batch is in the file: forgets its events, keeps its texts. */
void cd_batch_clear(cd_batch *batch);

/* The digest of its rows, as seal.h makes it. */
uint64_t cd_batch_seal(const cd_batch *batch);

/* Registers the virtual table cd_batch with a connection. */
cddp_status cd_batch_attach(cd_batch *batch, cd_sql *sql, cddp_error *err) CDDP_MUST_CHECK;

#define CD_BATCH_INSERT                                                                         \
    "INSERT INTO main.event SELECT id, t, rank, seq, kind, step, micro, text, f0, f1, f2, f3, " \
    "f4, f5, f6, f7, f8, "                                                                      \
    "f9, "                                                                                      \
    "f10 FROM cd_batch"
