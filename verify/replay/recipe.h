/* SPDX-License-Identifier: Apache-2.0 */
/* The recipe of a stored run, to run it again: scenario, overrides, schedule, and the digests to
** compare with.
**
** Lifetime   load → check_plan … → fini; the texts are its own.
** Errors     a run that cannot be run again is refused with the reason, never bent to fit.
*/
#pragma once
#include "cddp/plan.h"
#include "cddp/store.h"
#include "core/base/arena.h"

typedef struct cd_recipe {
    int64_t run;
    cd_arena texts;                    /* those that follow */
    char *scenario, *source, *options; /* the text, its path, the command line's changes */
    char *schedule;                    /* the choices that were taken; "" for fifo */
    char *backend;                     /* that it was recorded on */
    const char *algorithm; /* in which order that sums; "" where the simulator does not know it */
    uint64_t plan_digest, trace_digest, exit_code;
    uint64_t seed, world_size, steps; /* as the record says them again, beside the scenario */
    char verdict[32];
} cd_recipe;

/* number 0: the last run. what: "replayed", for messages. */
cddp_status cd_recipe_load(cd_recipe *recipe, cddp_store *store, uint64_t number, const char *what,
                           cddp_error *err) CDDP_MUST_CHECK;
/* Whether a backend of the record is another than the simulator. */
bool cd_recipe_is_foreign(const cd_recipe *recipe);
/* Turns the plan of a foreign record into the same one on the simulator, which sums in the recorded
** order where that is known, and decides nothing: real processes take whatever comes first. */
cddp_status cd_recipe_transfer(const cd_recipe *recipe, cddp_plan *plan,
                               cddp_error *err) CDDP_MUST_CHECK;
void cd_recipe_fini(cd_recipe *recipe); /* accepts a zeroed one */
/* Fails unless `plan`, read from the recipe's scenario with its options, still means what it meant.
** Sets its backend to the recorded one. */
cddp_status cd_recipe_check_plan(const cd_recipe *recipe, cddp_plan *plan,
                                 cddp_error *err) CDDP_MUST_CHECK;
