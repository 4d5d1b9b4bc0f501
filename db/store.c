/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes a store.
**
** A file is created and recognised in rollback mode, written in WAL mode, and turned back into one
** file when the writer closes it. So its first bytes always identify it, a reader can read while a
** run is being written, and a killed program loses at most its current iteration.
**
** Not here: tables (schema.c), writing (writer.c), reading (reader.c), copying and merging
** (merge.c). */
#include "db/store.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* SQLite would also create the file, but could not say why that fails. */
static cddp_status create_file(const char *path, cddp_error *err)
{
    errno = 0;
    FILE *file = fopen(path, "ab");
    if (file == NULL)
        return cd_fail(err, cd_error_of_errno(errno), "cannot create '%s': %s", path,
                       strerror(errno));
    fclose(file);
    return CDDP_OK;
}

static cddp_status open_file(cddp_store *store, cddp_error *err)
{
    bool append = store->mode == CDDP_STORE_APPEND, blank = false;
    cd_file_kind kind = CD_FILE_ABSENT;
    CD_TRY(cd_schema_probe(store->path, &kind, err));
    if (kind == CD_FILE_ABSENT && !append)
        return cd_fail(err, CDDP_E_IO, "there is no store '%s'", store->path);
    if (kind == CD_FILE_ABSENT) CD_TRY(create_file(store->path, err));
    CD_TRY(cd_sql_open(&store->sql, store->path, append, err));
    if (append)
        CD_TRY(cd_sql_exec(&store->sql, "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -65536",
                           err));
    CD_TRY(cd_sql_limit_work(&store->sql, err));
    CD_TRY(cd_schema_is_blank(&store->sql, &blank, err));
    if (blank && !append)
        return cd_fail(err, CDDP_E_CORRUPT,
                       "'%s' is empty: the program that was creating it was stopped", store->path);
    if (blank) CD_TRY(cd_schema_create(&store->sql, err));
    CD_TRY(cd_schema_adopt(&store->sql, append, &store->kinds, err));
    return CDDP_OK;
}

cddp_status cddp_store_open(const char *path, cddp_store_mode mode, const cddp_allocator *allocator,
                            cddp_store **store, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_store *s = cd_allocate_zero(allocator, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "a store");
    s->allocator = allocator;
    s->mode = mode;
    cd_batch_init(&s->batch, allocator, s->kinds.stored);
    s->path = cd_strdup(allocator, path);
    if (s->path == NULL) {
        status = cd_fail_memory(err, "a store");
        goto out;
    }
    CD_TRY_OUT(open_file(s, err));
    if (mode == CDDP_STORE_APPEND) CD_TRY_OUT(cd_batch_attach(&s->batch, &s->sql, err));
    *store = s;
out:
    if (status != CDDP_OK) cddp_store_close(s);
    return status;
}

/* Back to one file without companions. Fails only when another program has it open; the data is
** complete either way. */
static void tidy(cddp_store *store)
{
    sqlite3_busy_timeout(store->sql.db, 0);
    sqlite3_exec(store->sql.db, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL);
    sqlite3_exec(store->sql.db, "PRAGMA journal_mode = DELETE", NULL, NULL, NULL);
}

void cddp_store_close(cddp_store *store)
{
    if (store == NULL) return;
    if (store->writer.run != 0) cd_writer_abandon(store);
    if (store->sql.db != NULL && store->mode == CDDP_STORE_APPEND) tidy(store);
    cd_sql_close(&store->sql);
    cd_batch_fini(&store->batch);
    cd_strfree(store->allocator, store->path);
    cd_release(store->allocator, store, sizeof *store);
}

/* While a store is written, every process that has it open holds a lock on this byte of its index
** of changes, which SQLite calls the "dead man switch". */
#define DEAD_MAN_SWITCH 128

bool cd_store_is_open(const char *path)
{
    char index[4200];
    const int length = snprintf(index, sizeof index, "%s-shm", path);
    return length < (int)sizeof index && cd_os_is_locked(index, DEAD_MAN_SWITCH);
}

const char *cddp_store_path(const cddp_store *store) { return store->path; }
