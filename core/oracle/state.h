/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's state and internal functions. Nothing outside core/oracle includes this. */
#pragma once
#include "core/base/arena.h"
#include "core/oracle/oracle.h"
#include "core/oracle/ratio.h"
#include "core/oracle/share.h"
#include "core/oracle/emit.h"

struct cd_oracle {
    cd_arena arena; /* the oracle itself and every array below */
    cd_oracle_options options;
    cd_oracle_parameter *parameters; /* (parameter_count) copies */
    const char **names;              /* (parameter_count) */
    size_t *offsets;                 /* (parameter_count + 1) */
    cddp_tensor *values;             /* (parameter_count) at the beginning of the step, borrowed */
    cddp_grad *kept;                 /* (parameter_count) at the beginning of the step, borrowed */
    cddp_grad *added;                /* (parameter_count) with adds_reductions in place of kept */
    cddp_tensor *buffers;            /* (buffer_count) at the last forward entry, borrowed */
    bool has_buffers;
    double *local;                  /* (offsets[parameter_count]) as pushed */
    cddp_grad *local_forms;         /* (parameter_count) the same on exact devices */
    bool *captured, *local_present; /* (parameter_count) */
    cd_oracle_share *share;         /* the run's, or own */
    cd_oracle_share own;
    cd_numbers numbers, other, before;
    double *powers; /* (world_size) of a norm */
    /* The free-running reference: it has the run's values; the run has others than it. */
    bool is_free_valid, has_free_parted, is_sharded;
    cd_free_gap free_gap;                  /* of this step */
    uint64_t free_gaps[CD_FREE_GAP_COUNT]; /* steps that were given up */
    uint64_t free_steps;
    cd_free_gap free_ended;     /* why the reference gave this step up */
    double loss_scale;          /* of the last reduction */
    struct cd_carried *carried; /* NULL: nothing is */
    /* before the first update the optimizers had a state; the first update was seen */
    bool starts_with_state, has_seen_state;
    /* of this step: the engine is asked neither for this rank's exchanges nor for its results */
    bool is_left_out;
    uint32_t step;
    uint64_t digest;
    cddp_grad *free_gradients; /* (parameter_count) */
    /* Link 14. */
    struct cd_kept_elements *kept_elements; /* (kept_count) before the step */
    size_t kept_count, kept_capacity;
    cd_arena formula_room;       /* of one step */
    cd_ratio_evidence ratios[2]; /* of links 2 and 1, all gradients so far */
    /* Link 15: the second form of the model, of one micro-step. */
    cd_scalars scalars;
    cd_arena second;
    /* (norm_count) the statistics that this rank used in a step that link 15 judges */
    cd_oracle_moments norms[CD_SECOND_NORMS_MAX];
    size_t norm_count;
    cd_arena norm_room;
    cd_oracle_summary summary;
    /* elements of the run that the second mathematics did not draw */
    uint64_t undrawn_updates, undrawn_derivatives;
};

cd_start cd_oracle_get_start(cd_oracle *o);
bool cd_oracle_has_values(const cd_oracle *o);      /* elements are numbers */
bool cd_oracle_is_exact_device(const cd_oracle *o); /* elements are forms */
static inline bool cd_is_power_of_two(uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

/* Writes a comparison of a parameter into the trace and the summary. */
void cd_oracle_report(cd_oracle *o, cd_oracle_link link, size_t parameter, const cd_comparison *c);
/* Writes that comparisons were given up, if any, and why. */
void cd_oracle_give_up(cd_oracle *o, cd_oracle_link link, uint64_t count, const char *why);
/* Is this one of the steps in which link 15 judges each parameter? */
bool cd_oracle_draws_step(const cd_oracle *o, uint32_t step);
void cd_oracle_release_formulas(cd_oracle *o);
/* Link 10: what this rank used, against the second form's whole batch. */
cddp_status cd_oracle_judge_running(cd_oracle *o, const cd_start *start,
                                    const cd_second_program *program,
                                    const cd_second_result *result, cddp_error *err);
void cd_oracle_compare_norms(cd_oracle *o, const cd_second_result *result, uint32_t micro_step);
cddp_status cd_oracle_judge_derivatives(cd_oracle *o, const cd_start *start,
                                        const cd_oracle_reduction *r, cddp_error *err);
/* Writes what the wrong values are. s has local gradients, or none. */
void cd_oracle_explain(const cd_oracle *o, cd_comparison *c, cd_suspect *s);
/* Compares two tensors of one device bit for bit; of forms, the first differing term is printed.
** The numbers stay in o->numbers (expected) and o->other (actual). */
cddp_status cd_oracle_compare_tensors(cd_oracle *o, const cddp_tensor *expected,
                                      const cddp_tensor *actual, cd_comparison *c, cddp_error *err);
cddp_status cd_oracle_compare_forms(cd_oracle *o, const cddp_tensor *expected,
                                    const cddp_tensor *actual, cd_comparison *c, cddp_error *err);
/* The run's parameters are not the free-running reference's. */
void cd_oracle_report_parting(cd_oracle *o, size_t parameter, cd_comparison *c);
/* This step cannot be repeated freely. The first reason counts. */
void cd_oracle_note_gap(cd_oracle *o, cd_free_gap gap);
/* The free-running reference repeats the step that the run just made. */
cddp_status cd_oracle_advance_free(cd_oracle *o, const cd_oracle_update *before, cddp_error *err);
