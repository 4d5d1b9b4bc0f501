/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of events in a file: rows of `kind`, `field` and `enumeration`, and the ev_* views over
** them.
**
** All rows come from cddp/events.def; a file of another version keeps its numbers.
*/
#pragma once
#include "db/schema.h"

/* Fills an empty store. */
cddp_status cd_kinds_fill(cd_sql *sql, cddp_error *err) CDDP_MUST_CHECK;
/* Adds the kinds and fields that the file lacks; argument is unused. Refuses a file in which a
** kind of the same name has other fields. */
cddp_status cd_kinds_extend(cd_sql *sql, void *argument, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_kinds_read(cd_sql *sql, cd_kind_map *map, cddp_error *err) CDDP_MUST_CHECK;

/* "digest", "f64", … */
const char *cd_field_type_name(cddp_field_type type);
