/* SPDX-License-Identifier: Apache-2.0 */
/* Driving a hook through steps, buckets, a rebuild and a resume, on the simulator.
**
** The reducer's part is played here, in its order: run for every bucket, then the futures in
** rounds, bucket by bucket (HOOK-04, HOOK-09). Not here: what the numbers must be (hook_battery.c),
** and trials in which the reducer plays itself (hook_ride.c).
*/
#include "verify/conformance/hook_trial.h"
#include "verify/conformance/hook_judged.h"
#include "verify/conformance/hook_trial_parts.h"

#include "verify/worlds/simulated.h"
#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/hooks/hook.h"
#include "core/hooks/host.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 8 /* elements before and after a buffer */
#define TAPE_BYTES (1 << 16)

typedef struct tape {
    unsigned char *bytes;
    size_t used, read;
} tape;

/* The memory of one bucket of one step. */
typedef struct room {
    unsigned char bytes[(CD_TRIAL_NUMEL_MAX + 2 * GUARD) * sizeof(double)];
    /* as it was when its step ended */
    unsigned char after[(CD_TRIAL_NUMEL_MAX + 2 * GUARD) * sizeof(double)];
    uint32_t parameters[CD_TRIAL_PARAMETERS];
    int64_t offsets[CD_TRIAL_PARAMETERS], lengths[CD_TRIAL_PARAMETERS];
    cddp_tensor gradients[CD_TRIAL_PARAMETERS], models[CD_TRIAL_PARAMETERS];
    cddp_grad_bucket bucket;
    cddp_future future;
    bool complete;
} room;

typedef struct run {
    const cd_trial *trial;
    cd_trial_result *result;
    cddp_backend backend;
    room *rooms; /* (ranks · steps · buckets) */
    cd_statements statements;
    cd_judged *judged;
    double model[CD_TRIAL_RANKS_MAX][CD_TRIAL_NUMEL_MAX]; /* parameters: all ones, in f64 */
} run;

uint32_t cd_trial_bucket_of(const cd_trial *trial, uint32_t parameter, uint32_t step)
{
    bool rebuilt = trial->rebuild_at != 0 && step >= trial->rebuild_at;
    return parameter == CD_TRIAL_SCALAR || (parameter == CD_TRIAL_VECTOR && rebuilt) ? 0 : 1;
}

int64_t cd_trial_offset(const cd_trial *trial, uint32_t parameter, int64_t *numel)
{
    const int64_t counts[CD_TRIAL_PARAMETERS] = {30, 30, trial->empty_vector ? 0 : 7, 1};
    int64_t offset = 0;
    for (uint32_t p = 0; p < parameter; p++) offset += counts[p];
    *numel = counts[parameter];
    return offset;
}

/* Multiples of 1/4 up to 2, never 0, so that sums of 8 are exact in every dtype; a constant sign
** pattern per element, so that steps add up; the mean over elements is small. */
double cd_trial_gradient(const cd_trial *t, uint32_t rank, uint32_t step, int64_t element)
{
    if (t->alone != 0 ? step + 1 != t->alone : step >= t->active_steps) return 0.0;
    if (t->values == CD_TRIAL_LARGE) return 32768.0;
    if (t->values == CD_TRIAL_OVERFLOWN && rank + 1 == t->ranks && step >= 1) {
        int64_t own, scalar = cd_trial_offset(t, CD_TRIAL_SCALAR, &own);
        if (element == 4) return INFINITY;
        if (element == scalar) return NAN;
    }
    cd_prng root = cd_prng_seed(29),
            p = cd_prng_split_index(&root, "value", (uint64_t)element + 1000 * step);
    if (t->values == CD_TRIAL_DIFFERENT) p = cd_prng_split_index(&p, "rank", rank);
    double magnitude = (double)cd_prng_between(&p, 1, 8) / 4.0;
    return element % 2 == 0 ? magnitude : -magnitude;
}

void cd_trial_enter(const cd_trial *t, const char *function, uint32_t rank, uint32_t step)
{
    if (t->place == NULL) return;
    *t->place = (cd_trial_place){.rank = rank, .ranks = t->ranks, .step = step, .dtype = t->dtype};
    snprintf(t->place->function, sizeof t->place->function, "%s", function);
}

/* ---- saved states ---- */

static bool tape_write(void *context, const void *bytes, size_t count)
{
    tape *t = context;
    if (count > TAPE_BYTES - t->used) return false;
    memcpy(t->bytes + t->used, bytes, count);
    t->used += count;
    return true;
}

static bool tape_read(void *context, void *bytes, size_t count)
{
    tape *t = context;
    if (count > t->used - t->read) return false;
    memcpy(bytes, t->bytes + t->read, count);
    t->read += count;
    return true;
}

/* A rank's own part. */
typedef struct place {
    cddp_rank *rank;
    cddp_group *group;
    cddp_tracer *tracer;
    uint32_t step;
} place;

/* the digest of the trial's model, as far as a hook can tell; another one is another model */
#define MODEL UINT64_C(0x7472)

static cddp_status make(const run *r, const place *at, uint64_t model, void **self, cddp_error *err)
{
    const cd_trial *t = r->trial;
    cddp_hook_context context = {.size = sizeof context,
                                 .group = at->group,
                                 .allocator = at->rank->allocator,
                                 .tracer = at->tracer,
                                 .options = t->options,
                                 .inner = t->inner,
                                 .divide_factor = t->ranks,
                                 .model_digest = model,
                                 .parameter_count = CD_TRIAL_PARAMETERS};
    cd_trial_enter(t, "create", at->rank->rank, at->step);
    if (t->hook->create != NULL) CD_TRY(t->hook->create(&context, self, err));
    return CDDP_OK;
}

static void unmake(const run *r, const place *at, void *self)
{
    cd_trial_enter(r->trial, "destroy", at->rank->rank, at->step);
    if (r->trial->hook->destroy != NULL) r->trial->hook->destroy(self);
}

/* What was saved is offered to the hook of another model, with as many parameters. */
static cddp_status offer_to_another(const run *r, const place *at, const tape *saved,
                                    cddp_error *err)
{
    cd_trial_result *result = r->result;
    tape t = {.bytes = saved->bytes, .used = saved->used};
    cddp_state_reader reader = {&t, tape_read};
    cddp_error refusal = CDDP_ERROR_INIT;
    void *self = NULL;
    CD_TRY(make(r, at, MODEL + 1, &self, err));
    cd_trial_enter(r->trial, "load", at->rank->rank, at->step);
    const cddp_status status = r->trial->hook->load(self, &reader, &refusal);
    unmake(r, at, self);
    result->was_offered = true;
    if (status == CDDP_OK && result->foreign[0] == '\0')
        snprintf(result->foreign, sizeof result->foreign,
                 "rank %u takes it: compare model_digest of the context with the saved one",
                 at->rank->rank);
    if (status != CDDP_OK && refusal.message[0] == '\0' && result->foreign[0] == '\0')
        snprintf(result->foreign, sizeof result->foreign, "rank %u refuses it without a reason",
                 at->rank->rank);
    return CDDP_OK;
}

static cddp_status swap_state(const run *r, const place *at, void **self, cddp_error *err)
{
    const cddp_hook *hook = r->trial->hook;
    tape t = {.bytes = malloc(TAPE_BYTES)};
    if (t.bytes == NULL) return cd_fail_memory(err, "a saved state");
    cddp_state_writer writer = {&t, tape_write};
    cddp_state_reader reader = {&t, tape_read};
    cddp_status status = CDDP_OK;
    cd_trial_enter(r->trial, "save", at->rank->rank, at->step);
    if (hook->save != NULL) CD_TRY_OUT(hook->save(*self, &writer, err));
    unmake(r, at, *self);
    *self = NULL;
    if (hook->load != NULL && t.used > 0) CD_TRY_OUT(offer_to_another(r, at, &t, err));
    CD_TRY_OUT(make(r, at, MODEL, self, err));
    cd_trial_enter(r->trial, "load", at->rank->rank, at->step);
    if (hook->load != NULL) CD_TRY_OUT(hook->load(*self, &reader, err));
    if (hook->load != NULL && t.read != t.used)
        status = cd_fail(err, CDDP_E_CORRUPT, "load read %zu of the %zu bytes that save wrote",
                         t.read, t.used);
out:
    free(t.bytes);
    return status;
}

/* ---- one step ---- */

static room *room_of(const run *r, uint32_t rank, uint32_t step, uint32_t bucket)
{
    return &r->rooms[((size_t)rank * r->trial->steps + step) * CD_TRIAL_BUCKETS + bucket];
}

static void fill_room(run *r, uint32_t rank, uint32_t step, uint32_t index)
{
    const cd_trial *t = r->trial;
    room *m = room_of(r, rank, step, index);
    int64_t numel = 0;
    uint32_t count = 0;
    memset(m->bytes, 0xa5, sizeof m->bytes);
    for (uint32_t k = CD_TRIAL_PARAMETERS; k-- > 0;) { /* reverse order, as buckets have it */
        if (cd_trial_bucket_of(t, k, step) != index) continue;
        m->parameters[count] = k;
        m->offsets[count] = numel;
        (void)cd_trial_offset(t, k, &m->lengths[count]);
        numel += m->lengths[count++];
    }
    cddp_tensor buffer = cddp_tensor_of(cddp_device_cpu(), m->bytes, GUARD, t->dtype, &numel, 1);
    for (uint32_t i = 0; i < count; i++) {
        int64_t matrix[2] = {6, 5}, own, from = cd_trial_offset(t, m->parameters[i], &own);
        bool is_matrix = m->parameters[i] <= CD_TRIAL_TWIN;
        const int64_t *sizes = is_matrix ? matrix : &own;
        m->gradients[i] = cddp_tensor_of(buffer.device, m->bytes, GUARD + m->offsets[i], t->dtype,
                                         sizes, is_matrix ? 2 : 1);
        m->models[i] =
            cddp_tensor_of(buffer.device, r->model[rank], from, CDDP_F64, sizes, is_matrix ? 2 : 1);
        for (int64_t e = 0; e < own; e++) {
            double value = cd_trial_gradient(t, rank, step, from + e);
            r->result->in[rank][step][from + e] = value;
            cd_host_set(&buffer, m->offsets[i] + e, value);
        }
    }
    m->bucket = (cddp_grad_bucket){.size = sizeof m->bucket,
                                   .index = index,
                                   .bucket_count = CD_TRIAL_BUCKETS,
                                   .is_last = index + 1 == CD_TRIAL_BUCKETS,
                                   .generation = t->rebuild_at != 0 && step >= t->rebuild_at,
                                   .buffer = buffer,
                                   .parameter_count = count,
                                   .parameter_ids = m->parameters,
                                   .offsets = m->offsets,
                                   .lengths = m->lengths,
                                   .gradients = m->gradients,
                                   .parameters = m->models};
    m->future = (cddp_future){.size = sizeof m->future};
    m->complete = false;
}

static void note(char *text, size_t bytes, const char *what, uint32_t rank, uint32_t step,
                 uint32_t bucket)
{
    if (text[0] == '\0')
        snprintf(text, bytes, "rank %u, step %u, bucket %u: %s", rank, step, bucket, what);
}

/* False: it is no result. */
static bool take_result(run *r, uint32_t rank, uint32_t step, room *m)
{
    cd_trial_result *out = r->result;
    const cddp_tensor *result = &m->future.result;
    char text[120];
    if (result->device == NULL) {
        note(out->shape, sizeof out->shape, "completes without a result", rank, step,
             m->bucket.index);
        return false;
    }
    int64_t numel = cddp_tensor_numel(result), wanted = cddp_tensor_numel(&m->bucket.buffer);
    if (numel != wanted || !cddp_dtype_is_float(result->dtype)) {
        snprintf(text, sizeof text, "the result has %lld elements of %s, the bucket %lld",
                 (long long)numel, cddp_dtype_name(result->dtype), (long long)wanted);
        note(out->shape, sizeof out->shape, text, rank, step, m->bucket.index);
        return false;
    }
    for (uint32_t i = 0; i < m->bucket.parameter_count; i++) {
        int64_t own, from = cd_trial_offset(r->trial, m->parameters[i], &own);
        for (int64_t e = 0; e < own; e++)
            out->out[rank][step][from + e] = cd_host_get(result, m->offsets[i] + e);
    }
    return true;
}

static void look_for_damage(run *r, uint32_t rank, uint32_t step)
{
    size_t width = cddp_dtype_bytes(r->trial->dtype);
    char *damage = r->result->damage;
    for (uint32_t b = 0; b < CD_TRIAL_BUCKETS; b++) {
        room *m = room_of(r, rank, step, b);
        size_t from = GUARD * width,
               to = from + (size_t)cddp_tensor_numel(&m->bucket.buffer) * width;
        for (size_t i = 0; i < sizeof m->bytes; i++)
            if ((i < from || i >= to) && m->bytes[i] != 0xa5)
                note(damage, 200, i < from ? "wrote before its bucket" : "wrote behind its bucket",
                     rank, step, b);
        memcpy(m->after, m->bytes, sizeof m->after);
        room *old = step > 0 ? room_of(r, rank, step - 1, b) : NULL;
        if (old != NULL && memcmp(old->after, old->bytes, sizeof old->bytes) != 0)
            note(damage, 200, "was changed after its future had completed", rank, step - 1, b);
    }
    for (size_t i = 0; i < CD_TRIAL_NUMEL_MAX; i++)
        if (r->model[rank][i] != 1.0)
            note(damage, 200, "changed a parameter of the model", rank, step, 0);
}

static cddp_status advance_all(run *r, uint32_t rank, uint32_t step, void *self, cddp_error *err)
{
    for (uint32_t open = CD_TRIAL_BUCKETS; open > 0;) {
        open = 0;
        for (uint32_t b = 0; b < CD_TRIAL_BUCKETS; b++) {
            room *m = room_of(r, rank, step, b);
            if (m->complete) continue;
            cd_trial_enter(r->trial, "a stage", rank, step);
            CD_TRY(cd_future_advance(&m->future, self, &m->bucket, &m->complete, err));
            if (m->complete && take_result(r, rank, step, m))
                CD_TRY(cd_judged_deliver(r->judged, rank, &m->bucket, &m->future.result, err));
            open += !m->complete;
        }
    }
    return CDDP_OK;
}

static void count_promise(run *r, const void *self, const cddp_grad_bucket *bucket)
{
    const cddp_hook *hook = r->trial->hook;
    uint64_t promised = hook->promise != NULL ? hook->promise(self, bucket) : CDDP_PROMISE_NOTHING,
             *all = &r->result->promised;
    *all = promised == CDDP_PROMISE_NOTHING || *all == CDDP_PROMISE_NOTHING ? CDDP_PROMISE_NOTHING
                                                                            : *all + promised;
}

static cddp_status one_step(run *r, const place *at, void *self, uint32_t step, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cddp_rank *rank = at->rank;
    const uint64_t bytes = cddp_group_bytes(at->group);
    cddp_tracer_set_step(at->tracer, step, 0);
    for (uint32_t b = 0; b < CD_TRIAL_BUCKETS; b++) fill_room(r, rank->rank, step, b);
    if (r->trial->rebuild_at != 0 && step == r->trial->rebuild_at &&
        r->trial->hook->rebuilt != NULL) {
        cd_trial_enter(r->trial, "rebuilt", rank->rank, step);
        CD_TRY_OUT(r->trial->hook->rebuilt(self, CD_TRIAL_BUCKETS, err));
    }
    for (uint32_t b = 0; b < CD_TRIAL_BUCKETS; b++) {
        room *m = room_of(r, rank->rank, step, b);
        cd_trial_enter(r->trial, "promise", rank->rank, step);
        if (rank->rank == 0) count_promise(r, self, &m->bucket);
        if (rank->rank == 0 && b == 0 && r->trial->hook->agreement != NULL)
            r->result->agreement[step] = r->trial->hook->agreement(self);
        CD_TRY_OUT(cd_judged_launch(r->judged, rank->rank, &m->bucket, err));
        cd_trial_enter(r->trial, "run", rank->rank, step);
        CD_TRY_OUT(r->trial->hook->run(self, &m->bucket, at->group, &m->future, err));
    }
    CD_TRY_OUT(advance_all(r, rank->rank, step, self, err));
    cd_judged_end_step(r->judged, rank->rank, step, cddp_group_bytes(at->group) - bytes);
    look_for_damage(r, rank->rank, step);
out:
    for (uint32_t b = 0; status != CDDP_OK && b < CD_TRIAL_BUCKETS; b++)
        cd_future_abandon(&room_of(r, rank->rank, step, b)->future);
    return status;
}

static cddp_status open_judged(const run *r, const place *at, cddp_error *err)
{
    cddp_tensor forms[CD_TRIAL_PARAMETERS];
    const int64_t matrix[2] = {6, 5};
    for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++) {
        int64_t own;
        const bool is_matrix = p <= CD_TRIAL_TWIN;
        (void)cd_trial_offset(r->trial, p, &own);
        forms[p] = cddp_tensor_of(cddp_device_cpu(), NULL, 0, r->trial->dtype,
                                  is_matrix ? matrix : &own, is_matrix ? 2 : 1);
    }
    const cd_judged_rank rank = {at->rank, at->tracer, forms, CD_TRIAL_PARAMETERS};
    return CD_PASS(cd_judged_open(r->judged, &rank, err));
}

static cddp_status rank_program(cddp_rank *rank, void *argument, cddp_error *err)
{
    run *r = argument;
    static const uint32_t members[CD_TRIAL_RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};
    cddp_group_options options = {.size = sizeof options,
                                  .backend = &r->backend,
                                  .rank = rank,
                                  .works_max = 64,
                                  .spec = {.size = sizeof options.spec,
                                           .name = "trial",
                                           .group_rank = rank->rank,
                                           .group_size = rank->world_size,
                                           .members = members}};
    place at = {.rank = rank};
    void *self = NULL;
    cddp_status status = CDDP_OK;
    if (r->trial->through_reducer) {
        cd_trial_enter(r->trial, "the reducer", rank->rank, 0);
        CD_TRY_OUT(cddp_group_create(&options, &at.group, err));
        status = cd_trial_ride(r->trial, r->result, at.group, err);
        goto out;
    }
    CD_TRY_OUT(
        cddp_tracer_create(rank, cd_judged_sink(r->judged), CDDP_TRACE_DIGEST, &at.tracer, err));
    options.tracer = at.tracer;
    CD_TRY_OUT(cddp_group_create(&options, &at.group, err));
    CD_TRY_OUT(open_judged(r, &at, err));
    CD_TRY_OUT(make(r, &at, MODEL, &self, err));
    r->result->created = true;
    for (uint32_t step = 0; step < r->trial->steps; step++) {
        at.step = step;
        if (r->trial->swap_at != 0 && step == r->trial->swap_at) {
            cd_judged_replaces(r->judged, rank->rank, true);
            CD_TRY_OUT(swap_state(r, &at, &self, err));
            cd_judged_replaces(r->judged, rank->rank, false);
        }
        CD_TRY_OUT(one_step(r, &at, self, step, err));
        if (rank->rank == 0 && step + 1 == r->trial->active_steps)
            r->result->bytes_active = cddp_group_bytes(at.group);
    }
    if (rank->rank == 0) r->result->bytes = cddp_group_bytes(at.group);
out:
    if (self != NULL) unmake(r, &at, self);
    cddp_group_destroy(at.group);
    cddp_tracer_destroy(at.tracer);
    return status;
}

/* ---- the world ---- */

cddp_status cd_trial_take_ends(const cd_trial *t, const cddp_rank_result *results,
                               cd_trial_result *result, cddp_error *err)
{
    uint32_t unsupported = 0, wrong = 0;
    for (uint32_t i = 0; i < t->ranks; i++) {
        const cddp_rank_result *e = &results[i];
        if (e->end == CDDP_RANK_RETURNED && e->status == CDDP_OK) continue;
        /* a machine without memory says nothing of the hook */
        if (e->end == CDDP_RANK_RETURNED && e->status == CDDP_E_NOMEM)
            return cd_fail(err, CDDP_E_NOMEM, "the hook was not judged: rank %u of %u: %s", i,
                           t->ranks, e->error.message);
        unsupported += e->end == CDDP_RANK_RETURNED && e->status == CDDP_E_UNSUPPORTED;
        wrong += e->end == CDDP_RANK_RETURNED && e->status == CDDP_E_CONFIG;
        if (result->failure[0] == '\0')
            snprintf(result->failure, sizeof result->failure, "rank %u of %u: %.240s", i, t->ranks,
                     e->error.message[0] != '\0' ? e->error.message
                     : e->end == CDDP_RANK_HUNG  ? "waits for ever"
                                                 : "ended without a word");
    }
    result->refused = unsupported == t->ranks;
    result->misconfigured = wrong == t->ranks && !result->created;
    return CDDP_OK;
}

cddp_status cd_trial_run(const cd_trial *trial, cd_trial_result *result, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_simulated world = {.sim = NULL};
    cd_random_chooser random;
    cd_chooser chooser;
    cddp_rank_result ends[CD_TRIAL_RANKS_MAX];
    memset(result, 0, sizeof *result);
    memset(ends, 0, sizeof ends);
    for (uint32_t p = 0; p < CD_TRIAL_PARAMETERS; p++) {
        int64_t own;
        result->numel = cd_trial_offset(trial, p, &own) + own;
    }
    run *r = calloc(1, sizeof *r);
    if (r == NULL) return cd_fail_memory(err, "a trial");
    r->trial = trial;
    r->result = result;
    cd_statements_init(&r->statements, trial, result);
    CD_TRY_OUT(cd_judged_create(trial, result, &r->statements.sink, &r->judged, err));
    for (uint32_t i = 0; i < CD_TRIAL_RANKS_MAX; i++)
        for (size_t e = 0; e < CD_TRIAL_NUMEL_MAX; e++) r->model[i][e] = 1.0;
    r->rooms = calloc((size_t)trial->ranks * trial->steps * CD_TRIAL_BUCKETS, sizeof *r->rooms);
    if (r->rooms == NULL) {
        status = cd_fail_memory(err, "the buckets of a trial");
        goto out;
    }
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    config.world_size = trial->ranks;
    config.completion = trial->schedule != 0 ? CD_SIM_COMPLETE_CHOICE : CD_SIM_COMPLETE_AT_ONCE;
    chooser = cd_chooser_random(&random, trial->schedule);
    if (trial->schedule != 0) config.chooser = &chooser;
    CD_TRY_OUT(cd_simulated_begin(&world, &config, err));
    r->backend = world.backend;
    CD_TRY_OUT(cd_sim_ops()->launch(world.sim, rank_program, r, ends, err));
    CD_TRY_OUT(cd_trial_take_ends(trial, ends, result, err));
out:
    cd_simulated_end(&world);
    cd_judged_destroy(r->judged);
    free(r->rooms);
    free(r);
    return status;
}
