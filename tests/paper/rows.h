/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that cddp-verify sweep wrote, looked up by their settings.
**
**     rows r = rows_read("FOLDER", "overlap");
**     double ms = rows_ms(&r, "train.backward_us", "743", "ddp.bucket_cap_mb_list", "[1,25]");
**
** Lifetime   read → use → free.
** Errors     there is nobody to handle one: it is printed, and the program ends.
*/
#pragma once
#include <stddef.h>

typedef struct rows {
    char *text;    /* of the file, cut into fields */
    char **fields; /* (row_count × column_count), the header first */
    size_t row_count, column_count;
    char path[1024];
} rows;

rows rows_read(const char *folder, const char *name);
void rows_free(rows *r);
/* Milliseconds of a step in the row where the columns have these values; key_2 NULL: one is enough.
** A row that is not verified ends the program, but for one of a single rank: it has no order of
** collectives to judge. */
double rows_ms(const rows *r, const char *key, const char *value, const char *key_2,
               const char *value_2);
