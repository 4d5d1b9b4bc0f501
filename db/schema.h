/* SPDX-License-Identifier: Apache-2.0 */
/* The schema of a store file: creates and recognises it, upgrades older files, and maps the event
** kinds of the file to those of this program.
**
** Errors     a file that is not exactly a store of a known version is refused with a message.
*/
#pragma once
#include "cddp/trace.h"
#include "db/sql.h"

#define CD_KINDS_STORED_MAX 1024

/* Kinds by their number in the file. Files of other versions may number them differently. */
typedef struct cd_kind_map {
    int16_t ours[CD_KINDS_STORED_MAX]; /* stored id → cddp_event_kind, -1: unknown here */
    int16_t stored[CDDP_EV_COUNT];     /* cddp_event_kind → stored id, -1: not in the file */
} cd_kind_map;

typedef enum cd_file_kind { CD_FILE_ABSENT, CD_FILE_EMPTY, CD_FILE_STORE } cd_file_kind;

/* Finds what is at path from its first bytes alone, so that SQLite never opens a foreign file. */
cddp_status cd_schema_probe(const char *path, cd_file_kind *kind, cddp_error *err) CDDP_MUST_CHECK;

/* Creates an empty store, in one transaction. */
cddp_status cd_schema_create(cd_sql *sql, cddp_error *err) CDDP_MUST_CHECK;
/* True when the database has no tables: it is new, or its creation was interrupted. */
cddp_status cd_schema_is_blank(cd_sql *sql, bool *blank, cddp_error *err) CDDP_MUST_CHECK;
/* Checks version and tables and reads the kinds. writable: upgrades an older version and adds
** kinds and fields that the file lacks. */
cddp_status cd_schema_adopt(cd_sql *sql, bool writable, cd_kind_map *map,
                            cddp_error *err) CDDP_MUST_CHECK;

extern const char cd_schema_tables[]; /* db/schema.sql, embedded at build */
extern const char cd_schema_seal[];   /* db/seal.sql */
extern const char cd_schema_views[];  /* db/views.sql */
