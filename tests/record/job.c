/* SPDX-License-Identifier: Apache-2.0 */
/* A data-parallel program with two parameters, as a user would write it, and its mistakes:
**
**     recorded_job RANKS MISTAKE
**
** It trains w and b over RANKS processes on samples that every rank draws for itself. With
** CDDP_RECORD=run.db its run is recorded. MISTAKE "none" is the right program; "silent" says
** nothing but what the library sees.
*/
#define _POSIX_C_SOURCE 200809L
#include <cddp/averager.h>
#include <cddp/cddp.h>
#include <cddp/hook.h>
#include <cddp/init.h>
#include <cddp/record.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PARAMETERS = 2, WEIGHTS = 600, BIASES = 8, STEPS = 6, MICRO_STEPS = 2, SAMPLES = 3 };

typedef struct training {
    const char *mistake;
    cddp_registry *hooks;
    double before[PARAMETERS + 1][WEIGHTS]; /* by bucket: what a stale hook delivered last */
    bool has_before[PARAMETERS + 1];
    cddp_group *group;
    cddp_ddp *ddp;
    cddp_averager *averager;
    double values[PARAMETERS][WEIGHTS];
    double still[BIASES]; /* of a parameter that no gradient changes; of "still…" alone */
    cddp_grad grads[PARAMETERS];
    cddp_tensor tensors[PARAMETERS];
    uint32_t rank, world_size;
} training;

static bool makes(const training *t, const char *mistake)
{
    return strcmp(t->mistake, mistake) == 0;
}

static bool speaks(const training *t) { return !makes(t, "silent") && !makes(t, "silent_alone"); }

/* With cddp_ddp; "own_sum" and "own_skips" reduce by an all-reduce of the program's. */
static bool reduces(const training *t)
{
    const bool has_own = strncmp(t->mistake, "own", 3) == 0 ||
                         strstr(t->mistake, "local_own") != NULL ||
                         strncmp(t->mistake, "by_hand_own", 11) == 0;
    return !makes(t, "alone") && !makes(t, "silent_alone") && !has_own;
}

/* "inside…": every backward runs inside no_sync, and the program all-reduces itself. */
static bool reduces_inside(const training *t) { return strncmp(t->mistake, "inside", 6) == 0; }

/* ---- comm hooks ---- */

static bool has_join(const training *t) { return strncmp(t->mistake, "join", 4) == 0; }

/* "local…" averages parameters behind every second step: gradients stay local by no_sync, without a
** wrapper ("local_own…"), or by the hook ("hook_local:post_local_sgd"). */
static bool averages(const training *t)
{
    return strncmp(t->mistake, "local", 5) == 0 || strncmp(t->mistake, "hook_local", 10) == 0;
}

static cddp_status make_averager(training *t, cddp_error *err)
{
    const cddp_averager_level level = {.period = 2, .group_size = t->world_size};
    cddp_averager_options options = cddp_averager_options_default();
    options.group = t->group;
    options.levels = &level;
    options.level_count = 1;
    return averages(t) ? cddp_averager_create(&options, &t->averager, err) : CDDP_OK;
}

/* "by_hand…": the program does it itself, behind every second step; "by_hand_own…" without a
** wrapper. */
static bool averages_by_hand(const training *t) { return strncmp(t->mistake, "by_hand", 7) == 0; }

/* All that is averaged in one all-reduce, or each parameter in its own. */
static cddp_status average_by_hand(training *t, int step, cddp_error *err)
{
    static double flat[WEIGHTS + BIASES];
    const bool is_flat = strstr(t->mistake, "_flat") != NULL;
    cddp_status status = CDDP_OK;
    int64_t count = 0;
    if (!averages_by_hand(t) || makes(t, "by_hand_never") || step % 2 == 0) return CDDP_OK;
    for (size_t p = 0; status == CDDP_OK && p < PARAMETERS; p++) {
        const int64_t numel = cddp_tensor_numel(&t->tensors[p]);
        memcpy(flat + count, t->values[p], (size_t)numel * sizeof *flat);
        count += numel;
        if (is_flat && p + 1 < PARAMETERS) continue;
        cddp_work *work = NULL;
        const cddp_tensor x = cddp_tensor_of(cddp_device_cpu(), flat, 0, CDDP_F64, &count, 1);
        status = cddp_group_allreduce(t->group, &x, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
        for (int64_t i = 0; i < count; i++) flat[i] /= t->world_size;
        if (is_flat) memcpy(t->values[0], flat, WEIGHTS * sizeof *flat);
        memcpy(t->values[p], flat + count - numel, (size_t)numel * sizeof *flat);
        count = 0;
    }
    return status;
}

/* "…_spoilt": rank 1 writes to what was averaged; "…_forgotten": b is never averaged. */
static cddp_status average(training *t, int step, cddp_error *err)
{
    cddp_grad *grads[PARAMETERS] = {&t->grads[0], &t->grads[1]};
    const bool is_forgotten = strstr(t->mistake, "_forgotten") != NULL;
    const cddp_status status =
        cddp_averager_step(t->averager, t->tensors, grads, PARAMETERS - is_forgotten, err);
    if (strstr(t->mistake, "_spoilt") != NULL && t->rank == 1 && step == 2) t->values[1][3] += 1;
    return status;
}

/* Ranks 0 and 2 have two steps more than ranks 1 and 3, which run out of inputs. */
static int steps_of(const training *t)
{
    return has_join(t) && t->rank % 2 == 1 ? STEPS - 2 : STEPS;
}

/* What a wrong hook gives to the sum. */
static void spoil_input(const training *t, double *g, int64_t count)
{
    const bool gives_nothing = makes(t, "hook_drops_a_rank") && t->rank == 1;
    const bool gives_twice = makes(t, "hook_counts_twice") && t->rank == 2;
    for (int64_t i = 0; i < count && gives_nothing; i++) g[i] = 0;
    for (int64_t i = 0; i < count && gives_twice; i++) g[i] *= 2;
}

static double divisor_of(const training *t, uint32_t bucket)
{
    const double w = t->world_size;
    if (makes(t, "hook_sums") || makes(t, "hook_sums_declared") || makes(t, "hook_sums_lossy"))
        return 1;
    if (makes(t, "hook_first_bucket_only") && bucket > 0) return 1;
    if (makes(t, "hook_one_too_many") || makes(t, "hook_cast_one_too_many")) return w + 1;
    if (makes(t, "hook_divides_twice")) return w * w;
    if (makes(t, "join_hook_by_active")) return w / 2;
    return w;
}

/* And what it delivers of the mean. */
static void spoil_result(training *t, const cddp_grad_bucket *of, double *g, int64_t count)
{
    const uint32_t bucket = of->index, generation = of->generation;
    const bool halves = makes(t, "hook_halves") || makes(t, "hook_halves_declared");
    if (halves && count > 6) g[6] /= 2;
    if (makes(t, "hook_exchanges") && count > 9) {
        const double other = g[2];
        g[2] = g[9];
        g[9] = other;
    }
    for (int64_t i = 0; i < count && makes(t, "hook_stale") && generation > 0; i++) {
        const double now = g[i];
        if (t->has_before[bucket]) g[i] = t->before[bucket][i];
        t->before[bucket][i] = now;
    }
    t->has_before[bucket] = generation > 0;
}

static cddp_status end_hook(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                            cddp_error *err)
{
    training *t = self;
    const int64_t count = cddp_tensor_numel(&bucket->buffer);
    double *g = (double *)bucket->buffer.storage + bucket->buffer.offset;
    const double divisor = divisor_of(t, bucket->index);
    (void)err;
    for (int64_t i = 0; i < count; i++) g[i] /= divisor;
    spoil_result(t, bucket, g, count);
    future->next = NULL;
    future->result = bucket->buffer;
    return CDDP_OK;
}

static training *hooked; /* a hook's create has no argument of the program's */

static cddp_status create_hook(const cddp_hook_context *context, void **self, cddp_error *err)
{
    (void)context;
    (void)err;
    *self = hooked;
    return CDDP_OK;
}

static cddp_status run_hook(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    training *t = self;
    double *g = (double *)bucket->buffer.storage + bucket->buffer.offset;
    spoil_input(t, g, cddp_tensor_numel(&bucket->buffer));
    future->work_count = 1;
    future->next = end_hook;
    return cddp_group_allreduce(group, &bucket->buffer, CDDP_RED_SUM, &future->works[0], err);
}

static cddp_hook own_hook = {.size = sizeof own_hook,
                             .abi = CDDP_HOOK_ABI,
                             .name = "of_the_program",
                             .create = create_hook,
                             .run = run_hook};

static void multiply(training *t, size_t p, double factor)
{
    double *g = (double *)t->grads[p].value.storage + t->grads[p].value.offset;
    for (int64_t i = 0; i < cddp_tensor_numel(&t->tensors[p]); i++) g[i] *= factor;
}

/* "hook…:NAME" is one of the library's; NULL: the program's own. */
static const char *library_hook(const training *t)
{
    const char *colon = strncmp(t->mistake, "hook", 4) == 0 ? strchr(t->mistake, ':') : NULL;
    return colon != NULL ? colon + 1 : NULL;
}

static cddp_status take_hook(training *t, cddp_error *err)
{
    const char *library = library_hook(t);
    const bool is_hook =
        strncmp(t->mistake, "hook", 4) == 0 || strncmp(t->mistake, "join_hook", 9) == 0;
    if (!is_hook) return CDDP_OK;
    hooked = t;
    if (strstr(t->mistake, "declared") != NULL) own_hook.flags = CDDP_HOOK_EXACT;
    if (makes(t, "hook_sums_lossy")) own_hook.flags = CDDP_HOOK_LOSSY;
    if (strncmp(t->mistake, "hook_cast", 9) == 0) {
        own_hook.flags = CDDP_HOOK_LOSSY | CDDP_HOOK_CASTS_FIRST;
        own_hook.wire_dtype = CDDP_DTYPE_BIT(CDDP_BF16);
    }
    if (library == NULL) return cddp_ddp_register_comm_hook(t->ddp, &own_hook, NULL, NULL, err);
    const char *options = strcmp(library, "powersgd") == 0 ? "start_powerSGD_iter=4"
                          : averages(t)                    ? "subgroup_size=2,start_localSGD_iter=1"
                          : strcmp(library, "post_local_sgd") == 0 ? "subgroup_size=2"
                                                                   : NULL;
    cddp_status status = cddp_registry_create(NULL, &t->hooks, err);
    if (status == CDDP_OK)
        status = cddp_ddp_register_comm_hook(t->ddp, cddp_registry_find_hook(t->hooks, library),
                                             NULL, options, err);
    return status;
}

static cddp_status begin_join(training *t, cddp_error *err)
{
    cddp_join_options options = cddp_join_options_default();
    options.divide_by_initial_world_size = !makes(t, "join_by_active");
    return has_join(t) ? cddp_ddp_join_begin(t->ddp, &options, err) : CDDP_OK;
}

static cddp_status reduce_alone(training *t, int step, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (size_t p = 0; status == CDDP_OK && p < PARAMETERS; p++) {
        double *g = (double *)t->grads[p].value.storage + t->grads[p].value.offset;
        cddp_work *work = NULL;
        if (strstr(t->mistake, "_skips") != NULL && step == 2 && p == 1) continue;
        const bool is_spoilt = t->rank == 2 && p == 1;
        if (is_spoilt && makes(t, "own_leaves_out")) multiply(t, p, 0);
        if (is_spoilt && makes(t, "own_counts_twice")) multiply(t, p, 2);
        status = makes(t, "own_broadcast") /* equal on all ranks, and wrong */
                     ? cddp_group_broadcast(t->group, &t->grads[p].value, 0, &work, err)
                     : cddp_group_allreduce(t->group, &t->grads[p].value, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
        for (int64_t i = 0; i < cddp_tensor_numel(&t->tensors[p]) && !makes(t, "own_sum"); i++)
            g[i] /= t->world_size;
        if (makes(t, "own_factor")) g[5] *= 1 + 1e-6;
        if (strstr(t->mistake, "_unshown") == NULL) cddp_record_reduced(p, &t->grads[p].value);
    }
    return status;
}

/* All ranks begin with rank 0's values. */
static cddp_status begin_alike(training *t, const char *const *names, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (size_t p = 0; status == CDDP_OK && p < PARAMETERS; p++) {
        cddp_work *work = NULL;
        cddp_record_parameter(p, names[p], &t->tensors[p]);
        if (!makes(t, "own_unlent")) cddp_record_storage(p, &t->tensors[p], NULL);
        status = cddp_group_broadcast(t->group, &t->tensors[p], 0, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    }
    cddp_record_parameters_end();
    return status;
}

/* The gradient of sample `id`: anything that depends on the sample and on the values. */
static void accumulate(training *t, size_t p, int64_t id)
{
    double *g = (double *)t->grads[p].value.storage + t->grads[p].value.offset;
    const int64_t count = cddp_tensor_numel(&t->tensors[p]);
    for (int64_t i = 0; i < count; i++)
        g[i] += 0.125 * (double)((id * 7 + i) % 13) + 0.25 * t->values[p][i];
}

static int64_t sample_of(const training *t, int step, int micro, int k)
{
    const int64_t row = ((int64_t)step * MICRO_STEPS + micro) * SAMPLES + k;
    return makes(t, "same_samples") ? row : row * t->world_size + t->rank;
}

/* Of w, in step 2 on all ranks: what a backward left, before the next one adds to it; or what it
** makes, before the program shows it. */
static void spoil_gradient(training *t, const char *mistake, int step, size_t p)
{
    if (!makes(t, mistake) || step != 2 || p != 0 || t->grads[p].kind == CDDP_GRAD_UNDEFINED)
        return;
    ((double *)t->grads[p].value.storage)[t->grads[p].value.offset + 5] = 0;
}

/* "views…" and "hook_views…": gradients are views of their buckets. In step 2 rank 1 writes to one
** that it has marked ready: before its bucket is complete (early), as soon as the bucket is posted
** (late), or when the first operation of that has ended (last). */
static bool has_views(const training *t) { return strstr(t->mistake, "views") != NULL; }

static int turns[2]; /* a pipe: rank 1 lets the others post what it has posted */

static void await_turn(const training *t, int step, int micro, size_t p)
{
    char turn;
    if (strstr(t->mistake, "views_late") == NULL || t->rank == 1) return;
    if (step == 2 && micro + 1 == MICRO_STEPS && p == 0) (void)!read(turns[0], &turn, 1);
}

static cddp_status write_late(const training *t, int step, int micro, size_t p, cddp_error *err)
{
    static const char all[64];
    const bool is_early = strstr(t->mistake, "views_early") != NULL,
               is_late = strstr(t->mistake, "views_late") != NULL,
               is_last = strstr(t->mistake, "views_last") != NULL;
    cddp_status status = CDDP_OK;
    if (makes(t, "copies_early") && t->rank == 1 && step == 0 && p == 1)
        ((double *)t->grads[p].value.storage)[t->grads[p].value.offset + 5] += 1000;
    if (step != 2 || micro + 1 < MICRO_STEPS || p != (is_early ? 1 : 0)) return CDDP_OK;
    if (is_last) status = cddp_group_barrier(t->group, err); /* operations end in order */
    if (t->rank == 1 && (is_early || is_late || is_last))
        ((double *)t->grads[p].value.storage)[t->grads[p].value.offset + 5] = 1000;
    if (t->rank == 1 && is_late) (void)!write(turns[1], all, t->world_size - 1);
    return status;
}

static cddp_status micro_step(training *t, int step, int micro, cddp_error *err)
{
    int64_t ids[SAMPLES];
    spoil_gradient(t, "changes_accumulated", step, 0);
    spoil_gradient(t, "shows_last_changed", step, 0);
    const bool drops = makes(t, "drops_accumulated") || makes(t, "shows_last_dropped");
    if (drops && t->rank == 1 && step == 2 && micro > 0) cddp_grad_drop(&t->grads[0]);
    for (int k = 0; k < SAMPLES; k++) ids[k] = sample_of(t, step, micro, k);
    if (speaks(t) && !makes(t, "unnumbered")) cddp_record_micro_step((uint64_t)micro);
    const size_t fewer = makes(t, "uneven_batches") && t->rank == 1; /* it says so */
    if (speaks(t))
        cddp_record_samples(0, makes(t, "shows_no_samples") ? NULL : ids, SAMPLES - fewer);
    cddp_status status = reduces(t) ? cddp_ddp_forward_begin(t->ddp, true, err) : CDDP_OK;
    if (status == CDDP_OK && reduces(t)) status = cddp_ddp_forward_end(t->ddp, NULL, err);
    for (size_t p = PARAMETERS; status == CDDP_OK && p-- > 0;) {
        const bool is_new = t->grads[p].kind == CDDP_GRAD_UNDEFINED;
        status = cddp_grad_define(&t->grads[p], &t->tensors[p], err);
        if (status != CDDP_OK) break;
        if (is_new)
            memset((double *)t->grads[p].value.storage + t->grads[p].value.offset, 0,
                   (size_t)cddp_tensor_numel(&t->tensors[p]) * sizeof(double));
        for (int k = 0; k < SAMPLES; k++) accumulate(t, p, ids[k]);
        if ((makes(t, "brings_nan") || makes(t, "drops_nan")) && t->rank == 1 && step == 3 &&
            p == 0)
            ((double *)t->grads[p].value.storage)[t->grads[p].value.offset + 5] = (double)NAN;
        spoil_gradient(t, "changes_unrecorded", step, p);
        const bool is_shown = strncmp(t->mistake, "shows_last", 10) != 0;
        if (speaks(t) && (is_shown || micro + 1 == MICRO_STEPS))
            cddp_record_gradient(p, &t->grads[p].value);
        spoil_gradient(t, "hook_given_another", step, p);
        await_turn(t, step, micro, p);
        if (reduces(t) && !(p == 1 && makes(t, "ignores_b")))
            status = cddp_ddp_mark_variable_ready(t->ddp, p, err);
        if (status == CDDP_OK && reduces(t)) status = write_late(t, step, micro, p, err);
    }
    if (status == CDDP_OK && reduces(t)) status = cddp_ddp_backward_end(t->ddp, err);
    return status;
}

/* Whether this rank leaves a parameter out of step 3, without a word. */
static bool forgets(const training *t, int step, size_t p)
{
    const bool does = makes(t, "forgets") || (makes(t, "forgets_on_one_rank") && t->rank == 1);
    return does && step == 3 && p == 1;
}

/* What a program does between the reduction and the optimizer, and what it says of that. */
static void rescale(training *t, cddp_record_update *how)
{
    static const struct {
        const char *mistake;
        double clip, loss_scale, factor, factor_of_last;
    } rows[] = {{"clips", 0.5, 1, 0.5, 0.5},
                {"scales", 1, 2, 0.5, 0.5},
                {"clips_and_scales", 0.3, 7, 0.3 / 7, 0.3 / 7},
                {"clips_more", 0.5, 1, 0.25, 0.25},
                {"clips_not", 0.5, 1, 1, 1},
                {"clips_all_but_one", 0.5, 1, 0.5, 1},
                {"clips_in_f32", 0.3, 1, 0.3F, 0.3F},
                {"scales_twice", 1, 2, 0.25, 0.25},
                {"replaces_after_clip", 0.999, 1, 0.999, 0.999},
                {"exchanges_after_clip", 0.5, 1, 0.5, 0.5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!makes(t, rows[i].mistake)) continue;
        how->clip = rows[i].clip;
        how->loss_scale = rows[i].loss_scale;
        how->norm = how->clip != 1 ? 3 : how->norm;
        for (size_t p = 0; p < PARAMETERS; p++)
            multiply(t, p, p + 1 < PARAMETERS ? rows[i].factor : rows[i].factor_of_last);
    }
    double *first = (double *)t->grads[0].value.storage + t->grads[0].value.offset;
    for (int64_t i = 0; i < WEIGHTS && makes(t, "replaces_after_clip"); i++) first[i] = 7;
    if (makes(t, "exchanges_after_clip")) {
        const double other = first[2];
        first[2] = first[9];
        first[9] = other;
    }
}

/* What the program writes into reduced gradients, and does not say: weight decay (before it shows
** what the optimizer takes, or behind that), another division, zeros, or what was reduced in the
** step before. */
static void rewrite(training *t, int step, size_t p, bool is_shown)
{
    static double last[PARAMETERS][WEIGHTS];
    double *g = (double *)t->grads[p].value.storage + t->grads[p].value.offset;
    const int64_t count = cddp_tensor_numel(&t->tensors[p]);
    const bool decays = makes(t, is_shown ? "decays_behind" : "decays") ||
                        (makes(t, "decays_on_one_rank") && t->rank == 1 && !is_shown);
    for (int64_t i = 0; i < count && decays; i++) g[i] += 0.01 * t->values[p][i];
    if (is_shown) return;
    if (makes(t, "divides_again") && p == 1) multiply(t, p, 1.0 / t->world_size);
    if (makes(t, "clears_before_step") && p == 1 && step == 3) multiply(t, p, 0);
    for (int64_t i = 0; i < count && makes(t, "takes_the_last"); i++) {
        const double reduced = g[i];
        g[i] = step == 3 ? last[p][i] : reduced;
        last[p][i] = reduced;
    }
}

/* What the optimizer reads, and what the program shows of it: the gradient in its place; an equal
** copy; a copy, and the place was cleared; or a copy of what was there before it was changed. */
static const cddp_tensor *take_gradient(training *t, size_t p, cddp_tensor *taken)
{
    static double copies[PARAMETERS][WEIGHTS];
    const int64_t count = cddp_tensor_numel(&t->tensors[p]);
    double *g = (double *)t->grads[p].value.storage + t->grads[p].value.offset;
    if (strncmp(t->mistake, "takes", 5) != 0) return &t->grads[p].value;
    memcpy(copies[p], g, (size_t)count * sizeof *g);
    *taken = cddp_tensor_of(cddp_device_cpu(), copies[p], 0, CDDP_F64, &count, 1);
    if (makes(t, "takes_along")) memset(g, 0, (size_t)count * sizeof *g);
    if (makes(t, "takes_elsewhere")) g[2] += 1;
    return taken;
}

static cddp_status update(training *t, int step, cddp_error *err)
{
    cddp_record_update how = cddp_record_update_default();
    how.name = "sgd";
    how.lr = makes(t, "rates_differ") && t->rank == 1 ? 0.02 : 0.01;
    const bool skips = makes(t, "skips") && t->rank == 1 && step == 3;
    how.is_skipped = skips || (makes(t, "steps_anyway") && step == 3);
    rescale(t, &how);
    for (int64_t i = 0; makes(t, "drops_nan") && i < cddp_tensor_numel(&t->tensors[0]); i++) {
        double *x = (double *)t->grads[0].value.storage + t->grads[0].value.offset + i;
        if (isnan(*x)) *x = 0;
    }
    if (makes(t, "changes_gradient") && t->rank == 1 && step == 2)
        ((double *)t->grads[0].value.storage)[t->grads[0].value.offset] += 1;
    if (speaks(t)) cddp_record_optimizer_step(&how);
    for (size_t p = 0; p < PARAMETERS && !skips; p++) {
        if (forgets(t, step, p)) continue;
        rewrite(t, step, p, false);
        const double factor =
            makes(t, "stays") && step == 3 ? 0 : how.lr; /* and says what it takes */
        cddp_tensor copy;
        const cddp_tensor *taken = take_gradient(t, p, &copy),
                          *read = makes(t, "takes_elsewhere") ? &t->grads[p].value : taken;
        const double *g = (const double *)read->storage + read->offset;
        const int64_t count = cddp_tensor_numel(&t->tensors[p]);
        if (speaks(t)) cddp_record_optimizer_touch(makes(t, "touches_as_another"), p, taken);
        rewrite(t, step, p, true);
        for (int64_t i = 0; i < count; i++) t->values[p][i] -= factor * g[i];
    }
    const cddp_status status = averages(t) ? average(t, step, err) : average_by_hand(t, step, err);
    for (size_t p = 0; p < PARAMETERS && speaks(t); p++)
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, p, &t->tensors[p]);
    return status;
}

/* Rank 2 stays in step 3 until somebody writes a line to its standard input. */
static void hang(const training *t, int step)
{
    char line[8];
    if (makes(t, "hangs") && t->rank == 2 && step == 3)
        (void)!read(STDIN_FILENO, line, sizeof line);
}

/* What the recorder cannot see of itself: parameters and gradients when a step begins. */
static void show_begin(training *t, int step)
{
    for (size_t p = 0; p < PARAMETERS && strncmp(t->mistake, "own", 3) == 0; p++)
        cddp_record_value(CDDP_WHAT_GRADIENT, CDDP_MOMENT_BEGIN, p,
                          t->grads[p].kind != CDDP_GRAD_UNDEFINED ? &t->grads[p].value : NULL);
    if (strncmp(t->mistake, "begins", 6) != 0) return;
    if (makes(t, "begins_changed") && step == 3) t->values[0][3] += 1; /* alike on all ranks */
    for (size_t p = 0; p < PARAMETERS; p++) {
        const bool is_there = t->grads[p].kind != CDDP_GRAD_UNDEFINED;
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_BEGIN, p, &t->tensors[p]);
        cddp_record_value(CDDP_WHAT_GRADIENT, CDDP_MOMENT_BEGIN, p,
                          is_there ? &t->grads[p].value : NULL);
    }
}

/* It says zero_grad, and does not do it. */
static bool keeps(const training *t, int step)
{
    if (makes(t, "keeps") || makes(t, "own_keeps")) return step > 0;
    return makes(t, "begins_kept") && step == 3 && t->rank == 1;
}

/* A parameter that something else than a step changes. */
static void nudge(training *t, const char *mistake, int step)
{
    if (step == 3 && makes(t, mistake)) t->values[0][3] += 0.25;
}

/* "moves…": b changes at the begin of step 3, by right, and is shown; "moves_one": on rank 1
** alone. */
static void move(training *t, int step)
{
    if (strncmp(t->mistake, "moves", 5) != 0 || step != 3) return;
    for (int64_t i = 0; i < BIASES && (t->rank == 1 || !makes(t, "moves_one")); i++)
        t->values[1][i] *= 0.75;
    cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, 1, &t->tensors[1]);
}

/* "adapts…": backwards run on other values, on each rank on its own (MAML); the step finds the old
** ones. "adapts_said…" says so. "…_lost": it does not find them in step 3. */
static void adapt(training *t, int step, bool is_back)
{
    static double kept[BIASES];
    if (strncmp(t->mistake, "adapts", 6) != 0) return;
    if (is_back && step == 3 && strstr(t->mistake, "_lost") != NULL) return;
    memcpy(is_back ? t->values[1] : kept, is_back ? kept : t->values[1], sizeof kept);
    for (int64_t i = 0; i < BIASES && !is_back; i++) t->values[1][i] += 1.0 + t->rank;
    if (!is_back && strncmp(t->mistake, "adapts_said", 11) == 0)
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_ADAPTED, 1, &t->tensors[1]);
}

/* One rank reduces something that the others know nothing of: a barrier, a flag, or as much as a
** bucket has; in a step, or after the last one. */
static cddp_status post_extra(const training *t, int step, cddp_error *err)
{
    static double values[WEIGHTS + BIASES];
    const bool is_barrier = makes(t, "extra_barrier"), is_alike = makes(t, "extra_alike");
    const int when = makes(t, "extra_last") ? STEPS : 3;
    if (t->rank != 1 || step != when || strncmp(t->mistake, "extra", 5) != 0) return CDDP_OK;
    const int64_t count = is_alike ? WEIGHTS + BIASES : 1;
    const cddp_tensor x = cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F64, &count, 1);
    cddp_work *work = NULL;
    if (is_barrier) return cddp_group_barrier(t->group, err);
    const cddp_status status = cddp_group_allreduce(t->group, &x, CDDP_RED_SUM, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

/* A long loop of small collectives between two passes, as an evaluation has it. */
static cddp_status evaluate(const training *t, int step, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (int i = 0; makes(t, "evaluates") && step == 3 && status == CDDP_OK && i < 3000; i++) {
        const int64_t count = 1;
        double loss = i;
        cddp_work *work = NULL;
        const cddp_tensor x = cddp_tensor_of(cddp_device_cpu(), &loss, 0, CDDP_F64, &count, 1);
        status = cddp_group_allreduce(t->group, &x, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    }
    return status;
}

/* Rank 1 adds up fewer backwards than the others. */
static int micro_steps_of(const training *t)
{
    return makes(t, "adds_less") && t->rank == 1 ? MICRO_STEPS - 1 : MICRO_STEPS;
}

/* zero_grad before each backward, where it belongs before each step. */
static void clear_in_window(training *t, int micro)
{
    if (!makes(t, "clears_in_window") || micro == 0) return;
    cddp_record_zero_grad(true);
    for (size_t p = 0; p < PARAMETERS; p++) cddp_grad_drop(&t->grads[p]);
}

/* Calls that name no parameter, or a tensor that is none: each is as if it had not been made. */
static void misuse_calls(const training *t)
{
    const int64_t count = 4;
    const size_t nowhere = (size_t)-1; /* what a search that found nothing returned */
    const cddp_tensor none = cddp_tensor_of(cddp_device_cpu(), NULL, 0, CDDP_F64, &count, 1);
    if (!makes(t, "misuses")) return;
    for (size_t p = 0; p < 2; p++) {
        const cddp_tensor *x = p == 0 ? &t->tensors[0] : &none;
        cddp_record_gradient(nowhere, x);
        cddp_record_reduced(nowhere, x);
        cddp_record_parameter(nowhere, "nowhere", x);
        cddp_record_storage(nowhere, x, x);
        cddp_record_optimizer_touch(0, nowhere, x);
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, nowhere, x);
    }
    cddp_record_reduced(0, &none);
    cddp_record_storage(0, &none, &none);
}

static cddp_status train_step(training *t, int step, cddp_error *err)
{
    misuse_calls(t);
    if (speaks(t) && !makes(t, "own_unnumbered") && !makes(t, "unnumbered"))
        cddp_record_step_begin((uint64_t)step);
    if (speaks(t) && !makes(t, "drops_silently")) cddp_record_zero_grad(true);
    hang(t, step);
    cddp_status status = makes(t, "closes_early") && step == 3
                             ? cddp_record_close(CDDP_OK, NULL, err)
                             : post_extra(t, step, err);
    for (volatile bool is_stuck = makes(t, "stalls") && t->rank == 2 && step == 3; is_stuck;)
        continue;
    if (makes(t, "fails") && t->rank == 1 && step == 3)
        return cddp_error_set(err, CDDP_E_IO, "cannot read batch 3");
    if (makes(t, "fails_silently") && t->rank == 1 && step == 3) return CDDP_E_IO;
    for (size_t p = 0; p < PARAMETERS && !keeps(t, step); p++) cddp_grad_drop(&t->grads[p]);
    show_begin(t, step);
    nudge(t, "nudges", step);
    const double before = t->values[0][3];
    if (t->rank == 2) nudge(t, "nudges_one_and_back", step);
    move(t, step);
    adapt(t, step, false);
    for (int micro = 0; status == CDDP_OK && micro < micro_steps_of(t); micro++) {
        const bool accumulates = micro + 1 < micro_steps_of(t) ||
                                 strncmp(t->mistake, "local", 5) == 0 || averages_by_hand(t) ||
                                 reduces_inside(t);
        clear_in_window(t, micro);
        if (accumulates && reduces(t)) cddp_ddp_no_sync_begin(t->ddp);
        status = micro_step(t, step, micro, err);
        if (accumulates && reduces(t)) cddp_ddp_no_sync_end(t->ddp);
    }
    if (status == CDDP_OK && (strncmp(t->mistake, "own", 3) == 0 || reduces_inside(t)))
        status = reduce_alone(t, step, err);
    const bool drifts = makes(t, "still_drifts") || makes(t, "still_ignored_drifts");
    if (drifts || makes(t, "still_follows")) t->still[3] += drifts ? t->rank : 1;
    if (makes(t, "exits") && t->rank == 2 && step == 3) exit(3);
    if (makes(t, "all_exit") && step == 3) exit(0);
    if (makes(t, "dies") && t->rank == 2 && step == 3) raise(SIGKILL);
    if (makes(t, "exits_0") && t->rank == 2 && step == 3) _exit(0);
    if (makes(t, "stops") && t->rank == 2 && step == 3) raise(SIGSTOP);
    if (makes(t, "all_crash") && step == 3) raise(SIGSEGV);
    adapt(t, step, true);
    nudge(t, "nudges_before_step", step);
    nudge(t, "own_nudges", step);
    if (makes(t, "nudges_one_and_back")) t->values[0][3] = before;
    const bool is_left_out = makes(t, "leaves_out") && step == 2;
    if (status == CDDP_OK && !is_left_out) status = update(t, step, err);
    return status == CDDP_OK ? evaluate(t, step, err) : status;
}

/* Two all-reduces that one rank posts the other way round. */
static cddp_status cross(training *t, cddp_group *group, cddp_error *err)
{
    double values[2] = {1, 2};
    cddp_status status = CDDP_OK;
    for (int i = 0; status == CDDP_OK && i < 2; i++) {
        const int64_t count = (i == 1) == (t->rank == 1) ? 1 : 2;
        cddp_work *work = NULL;
        const cddp_tensor x = cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F64, &count, 1);
        status = cddp_group_allreduce(group, &x, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, UINT64_C(2000000000), err);
    }
    return status;
}

/* "halves…": each half of the ranks is wrapped by itself, from the same values, or "halves_apart"
** from those of its first rank. */
static cddp_status make_half(training *t, cddp_group **half, cddp_error *err)
{
    const uint32_t count = t->world_size / 2, first = t->rank < count ? 0 : count;
    uint32_t members[64];
    if (strncmp(t->mistake, "halves", 6) != 0) return CDDP_OK;
    for (uint32_t i = 0; i < count; i++) members[i] = first + i;
    for (int64_t i = 0; i < WEIGHTS && !makes(t, "halves_apart"); i++)
        t->values[0][i] = t->values[1][i] = 0.5;
    const cddp_group_subset subset = {.size = sizeof subset,
                                      .name = first == 0 ? "low" : "high",
                                      .members = members,
                                      .member_count = count};
    return cddp_group_create_subset(t->group, &subset, half, err);
}

static int epochs_of(const training *t) { return makes(t, "join_twice") ? 2 : 1; }

static cddp_status train_epoch(training *t, int epoch, cddp_error *err)
{
    cddp_status status = begin_join(t, err);
    for (int i = 0; status == CDDP_OK && i < steps_of(t); i++) {
        const int step = epoch * STEPS + i;
        if (makes(t, "leaves") && t->rank == 1 && step == 4) break;
        status = train_step(t, step, err);
    }
    return status == CDDP_OK && has_join(t) ? cddp_ddp_join_end(t->ddp, err) : status;
}

static cddp_status train(cddp_context *context, void *argument, cddp_error *err)
{
    cddp_group *group = cddp_context_group(context);
    training t = {.mistake = argument,
                  .group = group,
                  .rank = cddp_group_rank(group),
                  .world_size = cddp_group_size(group)};
    static const char *const names[PARAMETERS] = {"w", "b"};
    static const int64_t sizes[PARAMETERS] = {WEIGHTS, BIASES};
    cddp_parameter parameters[PARAMETERS + 1];
    for (size_t p = 0; p < PARAMETERS; p++) {
        for (int64_t i = 0; i < sizes[p]; i++) t.values[p][i] = 0.5 * (double)(t.rank + 1);
        t.tensors[p] = cddp_tensor_of(cddp_device_cpu(), t.values[p], 0, CDDP_F64, &sizes[p], 1);
        parameters[p] = (cddp_parameter){.name = names[p],
                                         .tensor = t.tensors[p],
                                         .grad = &t.grads[p],
                                         .requires_grad = true};
    }
    const bool has_still = strstr(t.mistake, "still") != NULL;
    static const char *const ignored[] = {"still"}, *const ignored_b[] = {"b"};
    const cddp_tensor still = cddp_tensor_of(cddp_device_cpu(), t.still, 0, CDDP_F64, &sizes[1], 1);
    parameters[PARAMETERS] = (cddp_parameter){.name = ignored[0], .tensor = still};
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = parameters;
    options.parameter_count = PARAMETERS + has_still;
    options.parameters_and_buffers_to_ignore = ignored;
    options.ignore_count = makes(&t, "still_ignored_drifts");
    if (makes(&t, "ignores_b")) { /* and steps on it */
        options.parameters_and_buffers_to_ignore = ignored_b;
        options.ignore_count = 1;
    }
    cddp_group *half = NULL;
    cddp_status status = make_half(&t, &half, err);
    options.group = half != NULL ? half : group;
    options.bucket_cap_mb = 0.001;
    options.gradient_as_bucket_view = has_views(&t);
    if (makes(&t, "hook_first_bucket_only")) options.bucket_cap_mb = 0.00005;
    const bool is_alone = strncmp(t.mistake, "own", 3) == 0 ||
                          strncmp(t.mistake, "local_own", 9) == 0 ||
                          strncmp(t.mistake, "by_hand_own", 11) == 0;
    if (status == CDDP_OK)
        status = is_alone ? begin_alike(&t, names, err) : cddp_ddp_create(&options, &t.ddp, err);
    cddp_ddp *second = NULL;
    if (status == CDDP_OK && makes(&t, "two_models")) {
        parameters[0].name = "another w";
        status = cddp_ddp_create(&options, &second, err);
        cddp_ddp_destroy(second);
    }
    if (status == CDDP_OK) status = take_hook(&t, err);
    if (status == CDDP_OK) status = make_averager(&t, err);
    for (int epoch = 0; status == CDDP_OK && epoch < epochs_of(&t); epoch++)
        status = train_epoch(&t, epoch, err);
    if (status == CDDP_OK) status = post_extra(&t, STEPS, err);
    if (makes(&t, "join_still_drifts")) t.still[3] += t.rank % 2; /* alike where steps end alike */
    nudge(&t, "nudges_last", 3);
    nudge(&t, "own_nudges_last", 3);
    nudge(&t, "averages_at_end", 3); /* and shows it */
    if (makes(&t, "averages_at_end"))
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, 0, &t.tensors[0]);
    if (!makes(&t, "own_unended")) cddp_record_storage_end();
    for (size_t p = 0; p < PARAMETERS && has_join(&t); p++)
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_END, p, &t.tensors[p]);
    if (status == CDDP_OK && makes(&t, "crosses")) status = cross(&t, group, err);
    cddp_averager_destroy(t.averager);
    cddp_ddp_destroy(t.ddp);
    cddp_group_destroy(half);
    cddp_registry_destroy(t.hooks);
    for (size_t p = 0; p < PARAMETERS; p++) cddp_grad_fini(&t.grads[p]);
    if (status == CDDP_OK && strncmp(t.mistake, "closes", 6) == 0 && !makes(&t, "closes_early"))
        status = cddp_record_close(makes(&t, "closes_with_error") ? CDDP_E_IO : CDDP_OK,
                                   "I give up", err);
    if (makes(&t, "closes_then_fails")) return cddp_error_set(err, CDDP_E_IO, "it failed behind");
    if (makes(&t, "no_end")) _exit(0);
    return status;
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (argc != 3) {
        fprintf(stderr, "usage: %s RANKS MISTAKE\n", argv[0]);
        return 2;
    }
    /* of one that hangs, somebody else decides when it ends */
    const uint64_t patience =
        strcmp(argv[2], "hangs") == 0 ? UINT64_C(120000000000) : UINT64_C(4000000000);
    const cddp_init_options options = {.size = sizeof options, .timeout_ns = patience};
    if (pipe(turns) != 0) return 2;
    if (strcmp(argv[2], "parent_speaks") == 0) cddp_record_step_begin(0); /* it is no rank */
    const cddp_status status =
        cddp_run_ranks((uint32_t)atoi(argv[1]), &options, train, argv[2], &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    return status != CDDP_OK;
}
