/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a comm hook: "key=value,key=value", read against a table.
**
** Errors     an unknown key is refused by name, with the nearest known key. Refused too: a value of
**            the wrong kind or outside its range, and a field that is given twice, under one name
**            or two. Tutorials name options that PyTorch never had; a row can explain that.
*/
#pragma once
#include "cddp/trace.h"

typedef enum cd_option_kind {
    CD_OPTION_COUNT,  /* uint64_t */
    CD_OPTION_REAL,   /* double */
    CD_OPTION_FLAG,   /* bool: true false 1 0 */
    CD_OPTION_TEXT,   /* char[CD_OPTION_TEXT_BYTES] */
    CD_OPTION_REFUSED /* known from elsewhere but without a meaning here; `why` explains it */
} cd_option_kind;

#define CD_OPTION_TEXT_BYTES 128
#define CD_OPTIONS_MAX 32 /* of one table */

typedef struct cd_option {
    const char *key;
    cd_option_kind kind;
    size_t offset;      /* of the field in the caller's struct */
    double least, most; /* COUNT and REAL */
    const char *why;    /* REFUSED */
} cd_option;

/* Reports the numbers and flags of a target to the trace, as a hook is about to use them. */
void cd_options_report(const cd_option *table, size_t table_count, const void *target,
                       cddp_tracer *tracer);
/* Reads options into target, which holds the defaults. owner is named in messages ("comm hook
** powersgd"). */
cddp_status cd_options_read(const char *owner, const cd_option *table, size_t table_count,
                            const char *text, void *target, cddp_error *err);
