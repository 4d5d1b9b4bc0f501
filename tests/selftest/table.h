/* SPDX-License-Identifier: Apache-2.0 */
/* Counting outcomes, and docs/selftest.md. */
#pragma once
#include "core/base/text.h"
#include "tests/selftest/outcome.h"

typedef struct st_count {
    size_t ends[ST_ENDS];
} st_count;

typedef struct st_table {
    /* kinds: by st_class; argued: those of their misses that misses.def lists */
    st_count all, kinds[ST_CLASSES], operators[ST_OPERATORS], *points, *worlds;
    size_t argued[ST_CLASSES];
} st_table;

cddp_status st_table_open(st_table *table, cddp_error *err) CDDP_MUST_CHECK;
void st_table_close(st_table *table);
void st_table_add(st_table *table, const st_case *c, const st_outcome *outcome, bool is_argued);
size_t st_count_missed(const st_count *count); /* crashes, too */
size_t st_count_struck(const st_count *count);
size_t st_count_caught(const st_count *count);
/* "Of 5000 wrong trainings the verifier calls 1 verified; 0 of these have an argument." */
void st_table_first(const st_table *table, cd_text *text);
/* "| half | 120 | 60 | 40 |" for classes, operators, worlds and places. */
void st_table_print(const st_table *table, cd_text *text);
typedef struct st_measured {
    uint64_t seed;
    size_t cases, of; /* of: all that there are */
} st_measured;
typedef struct st_lists {
    const char *argued; /* misses that are listed, with their arguments */
    const char *open;   /* misses that are not */
    const char *slack;  /* what operator 22 found; "" */
} st_lists;
/* The whole page. */
void st_table_page(const st_table *table, const st_measured *measured, const st_lists *lists,
                   cd_text *text);
