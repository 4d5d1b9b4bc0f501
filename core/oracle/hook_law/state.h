/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the judge of hooks. Nothing outside core/oracle/hook_law includes this. */
#pragma once
#include "core/base/arena.h"
#include "core/oracle/hook_law/hook_law.h"
#include "core/oracle/numbers.h"

/* Laws, by the number of their first sum; a law with two sums has two sets of weights. */
enum { CD_LAW_MEAN = 0, CD_LAW_PROJECTION = 2, CD_LAW_WARM = 4, CD_LAW_DRAWN = 6 };

/* What the judge keeps of a variable. */
typedef struct cd_law_variable {
    double *debt; /* (numel) what its rank still owes; NULL: nothing yet */
    double *last; /* (numel) its last compressed result, as a matrix; NULL: none */
    int64_t numel, last_numel, last_rank;
    uint32_t last_generation;
} cd_law_variable;

/* A bucket between launch and delivery. */
typedef struct cd_law_flight {
    double *share; /* (numel) what the plan's hook gives of this rank */
    int64_t numel, room;
    cddp_dtype dtype;   /* of the arithmetic: the low one of a wrapper or a cast */
    uint32_t ranks;     /* consecutive ones that reduce together; 0: all */
    uint64_t iteration; /* of the hook, when it left */
    bool is_open, is_compressed, is_fed_back, has_law;
} cd_law_flight;

/* A sum over a bucket, or over matrices of it. */
typedef struct cd_law_sum {
    double given, got, bound;
} cd_law_sum;

struct cd_hook_law {
    cd_arena memory; /* the law itself and everything below */
    cd_hook_law_options options;
    cd_planned_hook hook;
    cd_law_variable *variables; /* (variable_count) */
    cd_law_flight *flights;     /* (flight_count) by bucket index */
    size_t flight_count;
    uint64_t iteration; /* reductions so far */
    cd_numbers numbers, scratch;
    double *room; /* (room_count) */
    size_t room_count;
};

/* x in a dtype, rounded once. */
double cd_law_round(cddp_dtype dtype, double x);
/* An odd whole number between -7 and 7: the weight of a place in a sum. */
double cd_law_weight(const cd_hook_law *law, uint32_t number, int64_t place);
/* At least count numbers, for one call. */
cddp_status cd_law_reserve(cd_hook_law *law, size_t count, double **numbers, cddp_error *err);
/* The debt of a variable: zeros at first. */
cddp_status cd_law_find_debt(cd_hook_law *law, uint32_t variable, int64_t numel, double **debt,
                             cddp_error *err);

/* local.c. share: what left, in the arithmetic's dtype; becomes what the plan's hook sends of it.
** *posted: the digest of something that it posts, where that is known. */
cddp_status cd_law_send_largest(cd_hook_law *law, const cd_law_bucket *bucket,
                                cd_law_flight *flight, uint64_t *posted, cddp_error *err);
cddp_status cd_law_send_codes(cd_hook_law *law, cd_law_flight *flight, uint64_t *posted,
                              cddp_error *err);
/* The digest of numbers in a dtype. */
cddp_status cd_law_digest(cd_hook_law *law, cddp_dtype dtype, const double *values, int64_t count,
                          uint64_t *digest, cddp_error *err);

/* low_rank.c: what left becomes the gradient with its error. */
cddp_status cd_law_correct(cd_hook_law *law, const cd_law_bucket *bucket, cd_law_flight *flight,
                           cddp_error *err);
/* Bytes on the wire of a compressed bucket. */
int64_t cd_law_low_rank_bytes(const cd_hook_law *law, const cd_law_bucket *bucket,
                              const cd_law_flight *flight);
/* Does the variable with this place in the bucket travel as factors? */
bool cd_law_is_matrix(const cd_hook_law *law, const cd_law_bucket *bucket,
                      const cd_law_flight *flight, uint32_t place);
/* Judges rank and sums of what came back, and moves the debts on. */
cddp_status cd_law_judge_low_rank(cd_hook_law *law, const cd_law_bucket *bucket,
                                  const cd_law_flight *flight, const double *result,
                                  cddp_error *err);
/* Writes a sum into the trace. */
void cd_law_state(const cd_hook_law *law, const cd_law_bucket *bucket, const cd_law_flight *flight,
                  uint32_t number, const char *text, const cd_law_sum *sum);
