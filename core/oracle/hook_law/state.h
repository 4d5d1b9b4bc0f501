/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the judge of hooks. Nothing outside core/oracle/hook_law includes this. */
#pragma once
#include "core/base/arena.h"
#include "core/base/prng.h"
#include "core/oracle/compare.h"
#include "core/oracle/hook_law/hook_law.h"
#include "core/oracle/numbers.h"
#include "core/trace/codes.h"

/* Laws, by the number of their first sum; a law with two sums has two sets of weights. */
enum {
    CD_LAW_MEAN = CD_LAW_MEANS,
    CD_LAW_PROJECTION = 2,
    CD_LAW_WARM = 4,
    CD_LAW_DRAWN = 6,
    CD_LAW_FACTORS = CD_LAW_COLLECTIVES
};

/* A matrix of the bucket. Of a whole bucket as a square the tail does not come back. */
typedef struct cd_law_matrix {
    uint32_t variable;
    int64_t at, rows, columns, rank;
    int64_t whole;      /* rows that are known to their end */
    int64_t part;       /* elements known of the row after these */
    int64_t p_at, q_at; /* of its factors among those of the bucket */
    bool is_known;      /* its factors can be derived in this round */
    bool is_continued;  /* it begins with the factor that its last round ended with */
} cd_law_matrix;

/* What the judge keeps of a variable. */
typedef struct cd_law_variable {
    double *debt; /* (numel) what its rank still owes; NULL: nothing yet */
    double *last; /* (numel) its last compressed result, as a matrix; NULL: none */
    int64_t numel, last_numel, last_rank;
    uint64_t last_layout; /* of .layouts */
    /* the factor that its next round begins with */
    double *factor;
    int64_t factor_room, factor_numel, factor_rank;
    uint64_t factor_rebuilds; /* of .rebuilds */
    cddp_dtype dtype;         /* of its bucket, and of what the hook keeps of it */
    bool has_slot;            /* the hook keeps something of it, or of one behind it */
    bool is_factor_lost;      /* a round was not observed */
} cd_law_variable;

/* A bucket between launch and delivery. */
typedef struct cd_law_flight {
    double *share; /* (numel) what the plan's hook gives of this rank */
    int64_t numel, room;
    cddp_dtype dtype;   /* of the arithmetic: the low one of a wrapper or a cast */
    uint32_t ranks;     /* consecutive ones that reduce together; 0: all */
    uint64_t iteration; /* of the hook, when it left */
    bool is_open, is_compressed, is_fed_back, has_law;
    /* what it all-reduces, stage by stage (stages.c) */
    uint32_t first_stage, turns; /* turns: all-reduces; 0: not known */
    bool is_regular;             /* is_regular: all-reduces had as many elements as expected */
    cd_law_matrix *matrices;     /* (matrix_count) in the order of their factors */
    uint32_t matrix_count, matrix_room, posts, results, generation, first_variable;
    double *factors; /* see p_of, q_of, rest_of */
    int64_t factor_room, p_numel, q_numel, rest_numel;
    /* it all-gathers shares, in two parts, and every rank adds them up (gathered.c) */
    bool is_gathered;
    double *parts[2]; /* (part_room) of all ranks, as they came */
    int64_t part_numel[2], part_room[2];
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
    uint64_t layouts;   /* that were in force so far: numbers start anew after a resume */
    uint32_t generation;
    uint32_t planned_size; /* of the world, from the beginning */
    bool is_unnamed;       /* all-reduces do not say of which bucket they are */
    bool is_blind;         /* a bucket left that could not be read */
    bool is_lost; /* a bucket returned that did not go as planned: the hook's state is not known */
    uint64_t rebuilds;                        /* of buckets, which a batched hook learns of */
    uint64_t elements_before, elements_after; /* of compressed buckets so far */
    cddp_dtype tried_dtype;                   /* of the device's last trial */
    int64_t tried_ranks;                      /* 0: there was none */
    bool is_device_wrong;                     /* it does not divide */
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
/* Fills the matrices of a compressed bucket, and the sizes of their factors. */
cddp_status cd_law_list_matrices(cd_hook_law *law, const cd_law_bucket *bucket,
                                 cd_law_flight *flight, cddp_error *err);
/* The random numbers that a matrix begins with. */
cd_prng cd_law_factor_stream(const cd_hook_law *law, const cd_law_flight *flight,
                             const cd_law_matrix *matrix);
double cd_law_draw_normal(cd_prng *prng);
/* The worst of the elements that are wrong. */
typedef struct cd_law_wrong {
    cd_comparison c;
    double excess;
} cd_law_wrong;
void cd_law_wrong_add(cd_law_wrong *wrong, int64_t element, double expected, double bound,
                      double actual);
void cd_law_wrong_emit(const cd_hook_law *law, uint32_t variable, const char *words,
                       cd_law_wrong *wrong);
/* The hook's collectives are not those of the plan's. */
void cd_law_report_shape(const cd_hook_law *law, const cd_law_flight *flight, const char *words,
                         int64_t expected, int64_t actual);

/* gathered.c. Of what leaves as indices and values, or as scales and codes. */
void cd_law_begin_gathered(cd_hook_law *law, cd_law_flight *flight);
cddp_status cd_law_take_gathered(cd_hook_law *law, cd_law_flight *flight, bool is_result,
                                 const cddp_tensor *numbers, cd_law_turn *turn, cddp_error *err);
cddp_status cd_law_end_gathered(cd_hook_law *law, const cd_law_bucket *bucket,
                                cd_law_flight *flight, const double *result, cddp_error *err);

/* stages.c. Call begin with what left, once it is corrected, or begin_mean where one all-reduce
** averages that; and end with the result. */
cddp_status cd_law_begin_mean(cd_hook_law *law, cd_law_flight *flight, cddp_error *err);
cddp_status cd_law_begin_stages(cd_hook_law *law, const cd_law_bucket *bucket,
                                cd_law_flight *flight, cddp_error *err);
cddp_status cd_law_end_stages(cd_hook_law *law, const cd_law_bucket *bucket, cd_law_flight *flight,
                              const double *result, cddp_error *err);
/* Judges rank and sums of what came back, and moves the debts on. */
cddp_status cd_law_judge_low_rank(cd_hook_law *law, const cd_law_bucket *bucket,
                                  const cd_law_flight *flight, const double *result,
                                  cddp_error *err);
/* stated.c: says how many laws the plan's hook itself must have stated of a returned bucket. */
void cd_law_owe_stated(const cd_hook_law *law, const cd_law_bucket *bucket,
                       const cd_law_flight *flight, const double *result);
/* Writes a sum into the trace. */
void cd_law_state(const cd_hook_law *law, const cd_law_bucket *bucket, const cd_law_flight *flight,
                  uint32_t number, const char *text, const cd_law_sum *sum);
