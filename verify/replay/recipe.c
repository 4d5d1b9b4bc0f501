/* SPDX-License-Identifier: Apache-2.0 */
/* The recipe of a stored run. */
#define _POSIX_C_SOURCE 200809L
#include "verify/replay/recipe.h"

#include "cddp/composition.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/plan/keys.h"
#include "core/trace/setting.h"
#include "sim/algorithm.h"
#include "verify/worlds/compose.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXTS_BLOCK_BYTES ((size_t)1 << 16)

typedef struct taking {
    cd_recipe *recipe;
    const char *what;
} taking;

static cddp_status take_run(void *context, const cddp_stored_run *run, cddp_error *err)
{
    const taking *t = context;
    cd_recipe *r = t->recipe;
    const cddp_run_provenance *p = &run->provenance;
    if (!run->complete)
        return cd_fail(err, CDDP_E_ARG,
                       "run %" PRId64
                       " was interrupted while it was recorded; only whole runs can be %s",
                       run->run, t->what);
    /* The schedule that was taken is known only at the end; the one of the beginning is what was
    ** asked for. */
    const char *taken = run->outcome.schedule;
    r->scenario = cd_arena_strdup(&r->texts, p->scenario);
    r->source = cd_arena_strdup(&r->texts, p->source);
    r->options = cd_arena_strdup(&r->texts, p->options);
    r->backend = cd_arena_strdup(&r->texts, p->backend);
    r->schedule =
        cd_arena_strdup(&r->texts, taken != NULL && taken[0] != '\0' ? taken : p->schedule);
    r->algorithm = "";
    CD_TRY(cd_arena_check(&r->texts, err, "a stored run"));
    r->run = run->run;
    r->plan_digest = p->plan;
    r->seed = p->seed;
    r->world_size = p->world_size;
    r->steps = p->steps;
    /* Another level records other events, with other digests. */
    r->trace_digest = p->level == CDDP_TRACE_DIGEST ? run->outcome.digest : 0;
    r->exit_code = run->outcome.exit_code;
    snprintf(r->verdict, sizeof r->verdict, "%s", run->outcome.verdict);
    return CDDP_OK;
}

static cddp_status take_metric(void *context, const char *name, double value, cddp_error *err)
{
    cd_recipe *r = context;
    const size_t length = strlen(CD_METRIC_ALGORITHM);
    (void)value;
    if (strncmp(name, CD_METRIC_ALGORITHM, length) != 0 || cd_algorithm_find(name + length) < 0)
        return CDDP_OK;
    r->algorithm = cd_arena_strdup(&r->texts, name + length);
    return CD_PASS(cd_arena_check(&r->texts, err, "a stored run"));
}

cddp_status cd_recipe_load(cd_recipe *recipe, cddp_store *store, uint64_t number, const char *what,
                           cddp_error *err)
{
    int64_t run = 0;
    taking t = {recipe, what};
    CD_TRY(cddp_store_last_run(store, &run, err));
    if (number > (uint64_t)run)
        return cd_fail(err, CDDP_E_ARG, "'%s' has no run %" PRIu64 "; its last one is %" PRId64,
                       cddp_store_path(store), number, run);
    if (number != 0) run = (int64_t)number;
    cd_arena_init(&recipe->texts, NULL, TEXTS_BLOCK_BYTES);
    CD_TRY(cddp_store_each_run(store, run, take_run, &t, err));
    CD_TRY(cddp_store_each_metric(store, run, take_metric, recipe, err));
    return CDDP_OK;
}

static cddp_status see_backend(void *context, const char *name, cddp_error *err)
{
    bool *foreign = context;
    (void)err;
    if (strcmp(name, "sim") != 0) *foreign = true;
    return CDDP_OK;
}

bool cd_recipe_is_foreign(const cd_recipe *recipe)
{
    bool foreign = false;
    /* A text that is no composition is the name of a backend that is not the simulator. */
    return cddp_composition_each(recipe->backend, see_backend, &foreign, NULL) != CDDP_OK ||
           foreign;
}

static bool has_override(const cddp_plan *plan, const char *key)
{
    for (size_t i = 0; i < plan->override_count; i++)
        if (strcmp(plan->overrides[i].key, key) == 0) return true;
    return false;
}

/* Real processes let no time pass for the scenario's computations, unless these are offloaded. The
** simulator would, and a rank could come too late there alone. */
static cddp_status drop_computations(cddp_plan *plan, cddp_error *err)
{
    static const cddp_key times[] = {CDDP_KEY_train_forward_us, CDDP_KEY_train_backward_us};
    char key[64];
    if (plan->settings.train.offloaded || has_override(plan, "train.offloaded")) return CDDP_OK;
    for (size_t i = 0; i < plan->when_count; i++) {
        snprintf(key, sizeof key, "when.%zu.compute_us", i);
        if (plan->whens[i].compute_us > 0) CD_TRY(cddp_plan_set(plan, key, "0", err));
    }
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        const char *path = cd_setting_path(times[i]), *initial = cd_key_find_path(path)->initial;
        const bool is_of_ranks = has_override(plan, path);
        CD_TRY(cddp_plan_set(plan, path, initial, err));
        snprintf(key, sizeof key, "%s@0-%" PRIu64, path, (uint64_t)plan->world.size - 1);
        if (is_of_ranks) CD_TRY(cddp_plan_set(plan, key, initial, err));
    }
    return CDDP_OK;
}

cddp_status cd_recipe_transfer(const cd_recipe *recipe, cddp_plan *plan, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_text spec;
    cd_text_init(&spec, false);
    /* The last word of each item is a backend: "cpu:gloo,cuda:nccl", "hier:gloo". */
    for (const char *at = recipe->backend; *at != '\0';) {
        size_t item = strcspn(at, ","), kinds = item;
        while (kinds > 0 && at[kinds - 1] != ':') kinds--;
        cd_text_push_bytes(&spec, at, kinds);
        cd_text_push(&spec, at[item] == ',' ? "sim," : "sim");
        at += item + (at[item] == ',');
    }
    CD_TRY_OUT(cddp_plan_set(plan, "world.backend", cd_text_get(&spec), err));
    CD_TRY_OUT(cddp_plan_set(plan, "schedule.chooser", "fifo", err));
    CD_TRY_OUT(drop_computations(plan, err));
    if (recipe->algorithm[0] != '\0')
        CD_TRY_OUT(cddp_plan_set(plan, "network.algorithm", recipe->algorithm, err));
out:
    cd_text_fini(&spec);
    return status;
}

void cd_recipe_fini(cd_recipe *recipe)
{
    cd_arena_fini(&recipe->texts);
    *recipe = (cd_recipe){.run = 0};
}

/* The record says some things twice, in columns and in its scenario; both have to agree. */
static cddp_status check_columns(const cd_recipe *recipe, const cddp_plan *plan, cddp_error *err)
{
    const struct column {
        const char *name;
        uint64_t recorded, planned;
    } columns[] = {{"world_size", recipe->world_size, plan->world.size},
                   {"seed", recipe->seed, plan->world.seed},
                   {"steps", recipe->steps, plan->settings.train.steps}};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (columns[i].recorded != columns[i].planned)
            return cd_fail(err, CDDP_E_CORRUPT,
                           "run %" PRId64 " was changed: its column %s says %" PRIu64
                           ", and its scenario %" PRIu64,
                           recipe->run, columns[i].name, columns[i].recorded, columns[i].planned);
    return CDDP_OK;
}

cddp_status cd_recipe_check_plan(const cd_recipe *recipe, cddp_plan *plan, cddp_error *err)
{
    /* Which backend "mpi" is was decided by the launcher of that run; another start decides
    ** otherwise. */
    if (recipe->backend[0] != '\0')
        CD_TRY(cddp_plan_set(plan, "world.backend", recipe->backend, err));
    if (cddp_plan_digest(plan) != recipe->plan_digest)
        return cd_fail(
            err, CDDP_E_MISMATCH,
            "the recorded scenario no longer means the same: its plan has digest %016" PRIx64
            ", the record says %016" PRIx64,
            cddp_plan_digest(plan), recipe->plan_digest);
    CD_TRY(check_columns(recipe, plan, err));
    return CDDP_OK;
}
