/* SPDX-License-Identifier: Apache-2.0 */
/* Where a run took place: machine, compiler, time. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct cd_provenance {
    char machine[160];  /* "Linux 6.1.0 x86_64" */
    char compiler[160]; /* "GCC 12.2.0, release" */
    char now[32];       /* UTC, "2026-01-31T12:00:00Z" */
} cd_provenance;

void cd_provenance_init(cd_provenance *provenance);
/* Nanoseconds since 1970 of a time as in `now`; false: it is none. */
bool cd_provenance_read_time(const char *text, uint64_t *time_ns);
