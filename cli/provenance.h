/* SPDX-License-Identifier: Apache-2.0 */
/* Where a run took place: machine, compiler, time. */
#pragma once

typedef struct cd_provenance {
    char machine[160];  /* "Linux 6.1.0 x86_64" */
    char compiler[160]; /* "GCC 12.2.0, release" */
    char now[32];       /* UTC, "2026-01-31T12:00:00Z" */
} cd_provenance;

void cd_provenance_init(cd_provenance *provenance);
