/* SPDX-License-Identifier: Apache-2.0 */
/* The store object, shared by its writer and its reader. */
#pragma once
#include "cddp/store.h"
#include "db/batch.h"
#include "db/schema.h"

/* What is known of the run being written. */
typedef struct cd_writer {
    cddp_trace_sink sink;
    int64_t run; /* 0: no run is open */
    uint32_t world_size;
    uint32_t last_rank;       /* whose event came last: it is the one that flushes */
    uint32_t *steps_done;     /* (world_size) flushes seen of each rank */
    uint32_t done_everywhere; /* the least of them */
    uint32_t behind_count;    /* ranks that are no further than that */
    int64_t finding_count, exercised_count;
    sqlite3_stmt *insert_events, *insert_text, *insert_parameter;
    bool failed; /* the first failure, kept until somebody asks */
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

/* Ends writing without an outcome: commits what there is, gives back what the run held. */
void cd_writer_abandon(cddp_store *store);
/* One event into the open run; a failure is kept and told by flush and run_end. */
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
/* The next event, its text borrowed until the next call; *found is false at the end. */
cddp_status cd_cursor_next(cd_cursor *cursor, cddp_event *event, bool *found,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_cursor_close(cd_cursor *cursor); /* accepts a zeroed one */
