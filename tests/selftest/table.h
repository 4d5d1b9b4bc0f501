/* SPDX-License-Identifier: Apache-2.0 */
/* Counting outcomes, and docs/selftest.md. */
#pragma once
#include "core/base/text.h"
#include "tests/selftest/outcome.h"

typedef struct st_count {
    size_t ends[ST_ENDS];
} st_count;

typedef struct st_table {
    st_count all, operators[ST_OPERATORS], *points, *worlds;
} st_table;

cddp_status st_table_open(st_table *table, cddp_error *err) CDDP_MUST_CHECK;
void st_table_close(st_table *table);
void st_table_add(st_table *table, const st_case *c, st_end end);
size_t st_count_struck(const st_count *count);
size_t st_count_caught(const st_count *count);
/* "| half | 120 | 60 | 40 |" for operators, worlds and places. */
void st_table_print(const st_table *table, cd_text *text);
typedef struct st_measured {
    uint64_t seed;
    size_t cases;
    bool is_sample;
} st_measured;
/* The whole page. known: misses that are listed, with their arguments. */
void st_table_page(const st_table *table, const st_measured *measured, const char *known,
                   cd_text *text);
