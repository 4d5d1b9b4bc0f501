/* SPDX-License-Identifier: Apache-2.0 */
/* Seals of rows: digests in the file, by which a reader sees that it holds what was written.
**
** Events and texts are sealed per commit, in its transaction. Whatever else belongs to a run is
** sealed when it ends. The seal of its row in `run` covers its other seals, so that none is lost
** unseen. An interrupted run has seals of its events, texts and row.
**
** Errors     a row that differs from its seal is CDDP_E_CORRUPT, with the table and the rows.
**            Files of version 1 have no seals (sql->is_sealed); checks of them succeed.
*/
#pragma once
#include "db/sql.h"

#define CD_SEAL_COLUMNS_MAX 24

/* A row while it is digested: types of its columns, then one word per column. */
typedef struct cd_seal_row {
    uint64_t words[1 + CD_SEAL_COLUMNS_MAX];
    uint32_t count;
} cd_seal_row;

typedef enum cd_sealed {
    CD_SEALED_FINDINGS, /* with their ranks and events */
    CD_SEALED_EXERCISED,
    CD_SEALED_METRICS,
    CD_SEALED_PARAMETERS,
    CD_SEALED_COUNT
} cd_sealed;

/* ---- a digest of rows ---- */

void cd_seal_add_null(cd_seal_row *row);
void cd_seal_add_number(cd_seal_row *row, int64_t value);
void cd_seal_add_real(cd_seal_row *row, double value);
void cd_seal_add_text(cd_seal_row *row, const char *text, size_t byte_count);
/* Folds the row into the digest of the rows before it, and empties it. */
uint64_t cd_seal_end_row(cd_seal_row *row, uint64_t digest);

/* ---- writing, within a transaction ---- */

cddp_status cd_seal_add(cd_sql *sql, int64_t run, const char *name, int64_t first, int64_t last,
                        uint64_t digest, cddp_error *err) CDDP_MUST_CHECK;
/* The version, and the tables `kind`, `field` and `enumeration`. */
cddp_status cd_seal_add_kinds(cd_sql *sql, cddp_error *err) CDDP_MUST_CHECK;
/* The row of a run that begins. */
cddp_status cd_seal_begin_run(cd_sql *sql, int64_t run, cddp_error *err) CDDP_MUST_CHECK;
/* Everything else of a run that ends. */
cddp_status cd_seal_end_run(cd_sql *sql, int64_t run, cddp_error *err) CDDP_MUST_CHECK;
/* The runs of a file that had no seals, as they are. */
cddp_status cd_seal_adopt_runs(cd_sql *sql, cddp_error *err) CDDP_MUST_CHECK;

/* ---- checking ---- */

/* The version that the seals state; 0 without them. */
cddp_status cd_seal_find_version(cd_sql *sql, int64_t *version, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_seal_check_kinds(cd_sql *sql, cddp_error *err) CDDP_MUST_CHECK;
/* The row of the run, and that none of its seals is missing. */
cddp_status cd_seal_check_run(cd_sql *sql, int64_t run, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_seal_check_part(cd_sql *sql, int64_t run, cd_sealed part,
                               cddp_error *err) CDDP_MUST_CHECK;
/* All events and texts. *last: the number of the last event that is sealed; later ones are being
** written. */
cddp_status cd_seal_check_events(cd_sql *sql, int64_t run, int64_t *last,
                                 cddp_error *err) CDDP_MUST_CHECK;
