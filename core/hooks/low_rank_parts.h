/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the low-rank engine's files: low_rank.c (stages), low_rank_memory.c (slots and
** jobs), low_rank_basis.c (random factors, Gram-Schmidt), low_rank_law.c (laws for the trace),
** low_rank_state.c (save and load). */
#pragma once
#include "core/base/arena.h"
#include "core/base/prng.h"
#include "core/hooks/host.h"
#include "core/hooks/low_rank.h"
#include "core/hooks/option.h"

#define CD_LOW_RANK_STEPS_MAX 32

typedef struct cd_low_rank_settings {
    uint64_t rank, start, seed, stats_every, feedback_every;
    double min_rate, epsilon, bytes_per_weight;
    bool error_feedback, warm_start, batch_same_shape;
    char schedule[CD_OPTION_TEXT_BYTES], comm_device[CD_OPTION_TEXT_BYTES];
} cd_low_rank_settings;

typedef struct cd_low_rank_step {
    uint64_t from, rank;
} cd_low_rank_step;

/* The state of one parameter. */
typedef struct cd_low_rank_slot {
    cddp_tensor error; /* (numel) the error owed to its gradient; undefined until first needed */
    cddp_tensor q;     /* (columns, rank) of its matrix; valid when q_numel > 0 */
    int64_t q_numel, q_capacity, q_rank;
    /* the q at the beginning of a warm start, drawn again when unknown; valid when first_numel >
    ** 0 */
    cddp_tensor first;
    int64_t first_numel, first_capacity;
    bool loaded; /* from a saved state, not yet used by a bucket */
    /* low_rank_law.c: of the factor the last round ended with; 0: not known */
    int64_t ended_numel, ended_rank;
    double ended; /* Σ± of it */
} cd_low_rank_slot;

typedef struct cd_low_rank_matrix {
    uint32_t parameter;
    int64_t rows, columns, rank;
    bool is_whole;      /* the requested rank is not below either side, so nothing may be lost */
    int64_t at;         /* first element in the bucket (or the square) */
    int64_t p_at, q_at; /* first elements in the job's memories */
} cd_low_rank_matrix;

/* Work memory of one bucket, kept between backwards. */
typedef struct cd_low_rank_job {
    cddp_tensor p, q, uncompressed, square; /* flat; views of the capacities below */
    int64_t p_numel, q_numel, rest_numel;
    int64_t p_capacity, q_capacity, rest_capacity, square_capacity;
    cd_low_rank_matrix *matrices; /* (matrix_capacity) */
    uint32_t *rest;               /* (rest_places) positions in the bucket that stay uncompressed */
    uint32_t matrix_count, rest_count;
    size_t matrix_capacity, rest_places;
    double law_right, law_magnitude;   /* low_rank_law.c: what went in, and Σ|…| of it */
    double projected, projected_bound; /* what went in, along P, and what rounding may make of it */
    cd_host_sums whole;                /* what went in, of matrices that are to come out whole */
    double whole_bound;
    cd_host_sums rest_sent; /* what travels uncompressed */
    cd_host_sums drawn;     /* factors that began with random numbers */
    /* Σ± of factors that began where a round had ended, and where it had */
    double warm, warm_ended;
    uint32_t warm_count;
} cd_low_rank_job;

struct cd_low_rank {
    const char *name;
    cd_arena arena; /* this struct, its jobs and their lists */
    cddp_tracer *tracer;
    cddp_group *group;
    uint32_t world_size;
    bool batched;
    cd_low_rank_settings settings;
    cd_state_model model;
    cd_low_rank_step steps[CD_LOW_RANK_STEPS_MAX];
    uint32_t step_count;
    uint64_t iteration;
    uint64_t elements_before, elements_after;
    cd_arena slot_memory;    /* a loaded state is moved in with its memory */
    cd_low_rank_slot *slots; /* (slot_count) by variable index */
    size_t slot_count, slot_capacity;
    cd_low_rank_job *
        jobs; /* (job_count) by the variable index of a bucket's first parameter: static graph calls
                           ** every bucket 0 in its first pass (STA-04) */
    size_t job_count, job_capacity;
    cd_host_memory basis;   /* host scratch of Gram-Schmidt, in f64 */
    cd_host_memory staging; /* bytes on their way to a device */
};

/* Without settings, slots and jobs; cd_low_rank_destroy ends it. NULL when memory is exhausted. */
cd_low_rank *cd_low_rank_make(const cddp_allocator *allocator, const char *name);
/* Makes the slot's error (zeros) when it is absent; refuses one that was saved for another size. */
cddp_status cd_low_rank_slot_find(cd_low_rank *s, uint32_t parameter, const cddp_tensor *gradient,
                                  cd_low_rank_slot **slot, cddp_error *err);
cddp_status cd_low_rank_slots_reserve(cd_low_rank *s, size_t count, cddp_error *err);
cddp_status cd_low_rank_slot_keep_q(cd_low_rank_slot *slot, const cddp_tensor *q, int64_t rank,
                                    cddp_error *err);
/* Records q as the beginning of a warm start. */
cddp_status cd_low_rank_slot_keep_first(cd_low_rank_slot *slot, const cddp_tensor *q,
                                        cddp_error *err);
cddp_status cd_low_rank_job_find(cd_low_rank *s, const cddp_grad_bucket *bucket,
                                 cd_low_rank_job **job, cddp_error *err);
cddp_status cd_low_rank_job_reserve(cd_low_rank *s, cd_low_rank_job *job,
                                    const cddp_grad_bucket *bucket, cddp_error *err);

/* q is (rows, rank): independent standard normals, drawn row by row. */
cddp_status cd_low_rank_fill_normal(cd_low_rank *s, const cddp_tensor *q, cd_prng *prng,
                                    cddp_error *err);
/* Copies contiguous numbers of the host or of the same device. */
cddp_status cd_low_rank_bring(cd_low_rank *s, const cddp_tensor *to, const cddp_tensor *from,
                              cddp_error *err);
/* As cddp_device.orthonormalize does. */
cddp_status cd_low_rank_orthogonalize(cd_low_rank *s, const cddp_tensor *matrix, cddp_error *err);

/* A matrix of the bucket (rows, columns), and its factors (rows, rank) and (columns, rank). */
cddp_tensor cd_low_rank_matrix_view(const cd_low_rank *s, const cd_low_rank_job *job,
                                    const cddp_grad_bucket *bucket, const cd_low_rank_matrix *m);
cddp_tensor cd_low_rank_p_view(const cd_low_rank_job *job, const cd_low_rank_matrix *m);
cddp_tensor cd_low_rank_q_view(const cd_low_rank_job *job, const cd_low_rank_matrix *m);

/* States in the trace that nothing is lost. Call begin before errors are added, end after they are
** subtracted. */
void cd_low_rank_law_begin(const cd_low_rank *s, cd_low_rank_job *job,
                           const cddp_grad_bucket *bucket);
void cd_low_rank_law_end(const cd_low_rank *s, const cd_low_rank_job *job,
                         const cddp_grad_bucket *bucket);
/* States that the uncompressed part returns as its mean. Call begin before it is sent, end when it
** is back in the bucket. */
void cd_low_rank_rest_begin(const cd_low_rank *s, cd_low_rank_job *job,
                            const cddp_grad_bucket *bucket);
void cd_low_rank_rest_end(const cd_low_rank *s, const cd_low_rank_job *job,
                          const cddp_grad_bucket *bucket);
/* State that ranks draw the same random factors, and that a warm start continues the last round.
** Call factors_begin before the first factor of a bucket, factor_begins with each new one, and
** factors_end after the last. Call factor_ended with each finished factor, factor_loaded with one
** that a saved state brought (in host memory), and factor_forget when its last value is gone. */
void cd_low_rank_factors_begin(cd_low_rank_job *job);
void cd_low_rank_factor_begins(const cd_low_rank *s, cd_low_rank_job *job,
                               const cd_low_rank_matrix *m, bool is_drawn);
void cd_low_rank_factors_end(const cd_low_rank *s, const cd_low_rank_job *job,
                             const cddp_grad_bucket *bucket);
void cd_low_rank_factor_ended(cd_low_rank *s, const cd_low_rank_job *job,
                              const cd_low_rank_matrix *m);
void cd_low_rank_factor_loaded(cd_low_rank_slot *slot, uint32_t parameter);
void cd_low_rank_factor_forget(cd_low_rank_slot *slot);
/* States that the output is the mean's projection on the columns of P; with full rank it is the
** mean itself. Call begin when P is orthonormal and the matrices are still this rank's input, end
** when they are the output. */
void cd_low_rank_projection_begin(const cd_low_rank *s, cd_low_rank_job *job,
                                  const cddp_grad_bucket *bucket);
void cd_low_rank_projection_end(const cd_low_rank *s, const cd_low_rank_job *job,
                                const cddp_grad_bucket *bucket);
