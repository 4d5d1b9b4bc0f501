/* SPDX-License-Identifier: Apache-2.0 */
/* The store object, shared by its writer and its reader. */
#pragma once
#include "cddp/store.h"
#include "db/batch.h"
#include "db/schema.h"

/* A run of more ranks is taken for damage: readers allocate tables of this size. */
#define CD_STORE_WORLD_MAX (INT64_C(1) << 20)

/* The run that is being written. */
typedef struct cd_writer {
    cddp_trace_sink sink;
    int64_t run; /* 0: no run is open */
    uint32_t world_size;
    uint32_t last_rank;       /* rank of the last event: that rank flushes */
    uint32_t *steps_done;     /* (world_size) flushes of each rank */
    uint32_t done_everywhere; /* the minimum of steps_done */
    uint32_t behind_count;    /* ranks at that minimum */
    int64_t open_groups;      /* of all ranks */
    int64_t finding_count, exercised_count;
    sqlite3_stmt *insert_events, *insert_text, *insert_parameter;
    bool failed; /* the first failure, kept until flush or run_end reports it */
    cddp_error failure;
} cd_writer;

struct cddp_store {
    const cddp_allocator *allocator;
    char *path; /* owned */
    cddp_store_mode mode;
    cd_sql sql;
    cd_kind_map kinds;
    cd_batch batch;
    cd_writer writer;
};

/* Has some process the store open for writing, or beside one that writes it? Only processes of this
** machine are seen. */
bool cd_store_is_open(const char *path);
/* Ends writing without an outcome: commits the pending events and frees the run's resources. */
void cd_writer_abandon(cddp_store *store);
/* Adds one event to the open run. A failure is kept; flush and run_end report it. */
void cd_writer_add(cddp_store *store, const cddp_event *event);
cddp_status cd_writer_commit(cddp_store *store, cddp_error *err) CDDP_MUST_CHECK;
/* No row may be added outside a run. */
cddp_status cd_writer_require(const cddp_store *store, cddp_error *err) CDDP_MUST_CHECK;

/* ---- reading events one by one ---- */

typedef struct cd_cursor {
    cddp_store *store;
    sqlite3_stmt *statement;
    int64_t run;
    int64_t last_id;
    uint16_t level;
    cddp_store_order order;
} cd_cursor;

cddp_status cd_cursor_open(cd_cursor *cursor, cddp_store *store, int64_t run,
                           cddp_store_order order, cddp_error *err) CDDP_MUST_CHECK;
/* Reads the next event; its text is borrowed until the next call. *found is false at the end. */
cddp_status cd_cursor_next(cd_cursor *cursor, cddp_event *event, bool *found,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_cursor_close(cd_cursor *cursor); /* accepts a zeroed one */
