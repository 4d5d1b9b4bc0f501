/* SPDX-License-Identifier: Apache-2.0 */
/* The backend battery: every operation × dtype × reduction × count × in-place, against exact
** results.
**
** Every rank runs the same list of cases over one group. Inputs are small integers, whose sums and
** products are exact in every dtype. Each rank computes the expected result by itself and compares
** bytes. Averages over a number of ranks that is no power of two are not exact; they are compared
** within a bound. It also checks what must not change: inputs, elements around the outputs, outputs
** of other ranks than the root. The group under test runs nothing but the cases.
**
** Lifetime   the report is the caller's; rows are delivered one by one.
** Errors     a wrong result is a row, not an error. run fails only when it cannot go on (a lost
**            peer).
*/
#pragma once
#include "cddp/comm.h"

typedef struct cd_conformance_row {
    cddp_op op;
    cddp_dtype dtype;
    cddp_red_op reduce_op; /* CDDP_RED_COUNT when the operation does not reduce */
    uint32_t case_count;   /* cases of this row */
    uint32_t failed_count;
    uint32_t refused_count; /* answered CDDP_E_UNSUPPORTED although declared */
    bool undeclared;        /* capabilities leave it out: refused as it should be, or else failed */
    char first_failure[240];
} cd_conformance_row;

typedef struct cd_conformance_options {
    const cddp_device *device; /* where tensors live */
    uint32_t dtypes;           /* CDDP_DTYPE_BIT of those to run; 0: all */
    /* larger counts too, and those around powers of two in every dtype */
    bool thorough;
    int64_t huge_bytes; /* one all-reduce of this many bytes; 0: none */
    void *context;
    void (*row)(void *context, const cd_conformance_row *row);
    uint64_t count_start; /* of the tags; the group has its own sequence_start */
    /* called when: an operation of this element count is about to be posted; NULL: nobody asks */
    void (*enter)(void *context, const cd_conformance_row *row, int64_t numel);
    /* asked before every row: the run ends there with CDDP_E_ABORTED; NULL: never */
    bool (*interrupted)(void);
} cd_conformance_options;

/* Whether averages of a dtype are compared over so many ranks. They are exact over a power of two.
** Over others the bound must tell the mean from one that lacks a rank. */
bool cd_conformance_judges_average(cddp_dtype dtype, uint32_t ranks);

/* How many rows a run over so many ranks delivers on each of them, without that of run_guard. */
uint32_t cd_conformance_count_rows(uint32_t ranks, const cd_conformance_options *options);

cddp_status cd_conformance_run(cddp_group *group, const cd_conformance_options *options,
                               cddp_error *err);
/* For a group that was opened with guard=1, of a backend that declares guards. When ranks disagree
** about a count, every rank must get an error that is not a time-out. Delivers one row; the group
** is unusable afterwards. */
cddp_status cd_conformance_run_guard(cddp_group *group, const cd_conformance_options *options,
                                     cddp_error *err);
