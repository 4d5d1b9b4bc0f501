/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded training on the cuda device over NCCL: values, memory, overlap, waits of the host.
**
** A root and eight units of two parameters each (8 MiB a unit on a GPU) are trained in every mode
** of the table below, on one rank and on two. Two ranks on one GPU are two hosts to NCCL. Shown:
**
**   values    parameters have the bits of the same training on the cpu device in this process
**   memory    full parameters are at most what the law says: by the wrapper's counts, by the
**             allocator of the device (its table is wrapped), and by what the pool took with
**             cudaMalloc. The last two see a pass without gradients, where nothing else than the
**             gradients' places of two units is in use
**   overlap   events around each collective, on the stream of the group, and around each unit's
**             computation, on the default stream. A gather that was prefetched is in flight beside
**             the computation in front of it, and a reduction beside the one behind it. Without
**             prefetch none is
**   waits     a steady iteration neither waits for the GPU nor asks for memory
**
** One source, two programs: fsdp_gpu, skipped with the reason where there is no GPU, and
** fsdp_gpu_dry over fake_cuda and fake_nccl. There time is the order in which lazy streams were
** made to run: one iteration collectives first, one computation first. So "beside" means there that
** neither waits for the other.
*/
#define _POSIX_C_SOURCE 200809L
#include "tests/support/test.h"

#include "backends/nccl/nccl_group.h"
#include "cddp/comm.h"
#include "cddp/fsdp.h"
#include "cddp/plugin.h"
#include "cddp/process.h"
#include "cddp/rendezvous.h"
#include "core/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef CDDP_ON_GPU
#include "tests/unit/backends/nccl/fake_cuda.h"
#include "tests/unit/backends/nccl/fake_nccl.h"
#endif

extern const cddp_plugin cddp_plugin_v1;

#ifdef CDDP_ON_GPU
#define SIDE 1024    /* a unit has 2 · SIDE² elements of 4 bytes: 8 MiB */
#define WORK_FIRST 4 /* products per pass of a unit, before they are calibrated */
#define WORK_MAX 6000
#else
#define SIDE 32
#define WORK_FIRST 1
#define WORK_MAX 1
#endif

#define SECOND UINT64_C(1000000000)
#define UNITS 9 /* unit 0 is the root, which computes first in both passes */
#define PARAMETERS (2 * UNITS)
#define OPERATIONS_MAX 64
#define ITERATIONS_MAX 12
#define TRIES 4 /* with twice as much work each */
#define RATE 0x1p-5
/* Two events are apart what they say, up to their resolution of half a microsecond each. */
#define CLOCK_US 1.0

typedef struct mode {
    const char *name;
    cddp_fsdp_layout layout;
    cddp_fsdp_strategy strategy;
    cddp_fsdp_prefetch prefetch;
    bool forward_prefetch, is_odd;
    /* by the law, in units: full parameters; the same with gradients of two units; the same with
    ** operands of two reductions, on two ranks */
    int full, with_gradients, training;
    /* what is in flight beside computation */
    bool forward_gathers, backward_gathers, reductions;
} mode;

/* ROWS has one unit more while its rows are brought together, before its gradient has a place. A
** reduction in flight has a whole unit; its sum goes into the gradient's place. With SHARD_GRAD_OP
** the most is full with the unit in front of two that are reduced. */
static const mode modes[] = {
    {"FLAT FULL_SHARD", CDDP_FSDP_FLAT, CDDP_FSDP_FULL_SHARD, CDDP_FSDP_PREFETCH_NONE, false, false,
     2, 4, 6, false, false, false},
    {"FLAT FULL_SHARD, BACKWARD_PRE", CDDP_FSDP_FLAT, CDDP_FSDP_FULL_SHARD, CDDP_FSDP_BACKWARD_PRE,
     false, false, 3, 5, 7, false, true, true},
    {"FLAT FULL_SHARD, BACKWARD_POST", CDDP_FSDP_FLAT, CDDP_FSDP_FULL_SHARD,
     CDDP_FSDP_BACKWARD_POST, false, false, 2, 4, 6, false, false, true},
    {"FLAT FULL_SHARD, BACKWARD_PRE, forward_prefetch", CDDP_FSDP_FLAT, CDDP_FSDP_FULL_SHARD,
     CDDP_FSDP_BACKWARD_PRE, true, false, 3, 5, 7, true, true, true},
    {"FLAT SHARD_GRAD_OP", CDDP_FSDP_FLAT, CDDP_FSDP_SHARD_GRAD_OP, CDDP_FSDP_PREFETCH_NONE, false,
     false, UNITS, UNITS + 2, UNITS + 2, false, false, true},
    {"FLAT SHARD_GRAD_OP, forward_prefetch", CDDP_FSDP_FLAT, CDDP_FSDP_SHARD_GRAD_OP,
     CDDP_FSDP_BACKWARD_PRE, true, false, UNITS, UNITS + 2, UNITS + 2, true, false, true},
    {"ROWS FULL_SHARD", CDDP_FSDP_ROWS, CDDP_FSDP_FULL_SHARD, CDDP_FSDP_PREFETCH_NONE, false, false,
     3, 4, 6, false, false, false},
    {"ROWS FULL_SHARD, BACKWARD_POST", CDDP_FSDP_ROWS, CDDP_FSDP_FULL_SHARD,
     CDDP_FSDP_BACKWARD_POST, false, false, 3, 4, 6, false, false, true},
    {"ROWS FULL_SHARD, BACKWARD_PRE, forward_prefetch", CDDP_FSDP_ROWS, CDDP_FSDP_FULL_SHARD,
     CDDP_FSDP_BACKWARD_PRE, true, false, 3, 5, 7, true, true, true},
    {"ROWS SHARD_GRAD_OP, forward_prefetch", CDDP_FSDP_ROWS, CDDP_FSDP_SHARD_GRAD_OP,
     CDDP_FSDP_BACKWARD_PRE, true, false, UNITS + 1, UNITS + 2, UNITS + 2, true, false, true},
    /* values of shapes that need padding */
    {"FLAT FULL_SHARD, BACKWARD_PRE, odd sizes", CDDP_FSDP_FLAT, CDDP_FSDP_FULL_SHARD,
     CDDP_FSDP_BACKWARD_PRE, true, true, 0, 0, 0, true, true, true},
    {"ROWS FULL_SHARD, BACKWARD_PRE, odd sizes", CDDP_FSDP_ROWS, CDDP_FSDP_FULL_SHARD,
     CDDP_FSDP_BACKWARD_PRE, true, true, 0, 0, 0, true, true, true},
};
#define MODES (sizeof modes / sizeof modes[0])

/* ---- the model, on any device ---- */

static int64_t numel_of(const int64_t sizes[2]) { return sizes[0] * sizes[1]; }

/* of the two parameters of every unit */
static void sizes_of(bool is_odd, int which, int64_t sizes[2])
{
    sizes[0] = which == 0 ? SIDE - (is_odd ? 1 : 0) : is_odd ? 7 : SIDE / 2;
    sizes[1] = which == 0 ? SIDE + (is_odd ? 1 : 0) : is_odd ? 3 : 2 * SIDE;
}

static cddp_status tensor_make(const cddp_device *d, bool is_odd, int which, cddp_tensor *t,
                               cddp_error *err)
{
    int64_t sizes[2];
    void *storage = NULL;
    sizes_of(is_odd, which, sizes);
    CD_TRY(d->allocate(d, CDDP_F32, numel_of(sizes), &storage, err));
    *t = cddp_tensor_of(d, storage, 0, CDDP_F32, sizes, 2);
    return CDDP_OK;
}

static void tensor_drop(cddp_tensor *t)
{
    if (t->device != NULL)
        t->device->release(t->device, t->dtype, cddp_tensor_numel(t), t->storage);
    t->device = NULL;
}

/* Small integers, so that every sum is exact. */
static cddp_status numbers_write(const cddp_tensor *t, int64_t by, int64_t from, int64_t modulus,
                                 cddp_error *err)
{
    const size_t numel = (size_t)cddp_tensor_numel(t);
    float *numbers = malloc(numel * sizeof *numbers);
    if (numbers == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for %zu numbers", numel);
    for (size_t e = 0; e < numel; e++)
        numbers[e] = (float)(((int64_t)e * by + from) % modulus - modulus / 2);
    const cddp_status status = t->device->write(t, numbers, numel * sizeof *numbers, err);
    free(numbers);
    return CD_PASS(status);
}

static cddp_status parameter_make(const cddp_device *d, bool is_odd, size_t i, cddp_tensor *t,
                                  cddp_error *err)
{
    CD_TRY(tensor_make(d, is_odd, (int)(i % 2), t, err));
    return CD_PASS(numbers_write(t, 7, 3 * (int64_t)i, 9, err));
}

static cddp_status data_make(const cddp_device *d, bool is_odd, uint32_t rank, int which,
                             cddp_tensor *t, cddp_error *err)
{
    CD_TRY(tensor_make(d, is_odd, which, t, err));
    return CD_PASS(numbers_write(t, 5, (int64_t)rank * 3 + which, 7, err));
}

static cddp_status forward(const cddp_tensor *state, const cddp_tensor *parameter, cddp_error *err)
{
    return CD_PASS(state->device->axpy(state, 1, parameter, NULL, err));
}

static cddp_status backward(const cddp_tensor *state, const cddp_tensor *parameter,
                            const cddp_tensor *gradient, cddp_error *err)
{
    const cddp_device *d = state->device;
    CD_TRY(d->copy(gradient, state, NULL, err));
    CD_TRY(d->axpy(gradient, 0.5, parameter, NULL, err));
    return CD_PASS(d->axpy(state, -1, parameter, NULL, err));
}

/* ---- the same training on the cpu device ---- */

typedef struct reference {
    bool is_made, is_odd;
    uint32_t world_size;
    int done; /* iterations */
    cddp_tensor parameters[PARAMETERS], sums[PARAMETERS], states[2], gradient[2];
    uint64_t digests[ITERATIONS_MAX + 1][PARAMETERS]; /* behind so many iterations */
} reference;

static cddp_status reference_digest(reference *r, cddp_error *err)
{
    for (size_t i = 0; i < PARAMETERS; i++)
        CD_TRY(cddp_device_cpu()->digest(&r->parameters[i], &r->digests[r->done][i], err));
    return CDDP_OK;
}

static cddp_status reference_make(reference *r, cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    for (size_t i = 0; i < PARAMETERS; i++) {
        CD_TRY(parameter_make(cpu, r->is_odd, i, &r->parameters[i], err));
        CD_TRY(tensor_make(cpu, r->is_odd, (int)(i % 2), &r->sums[i], err));
    }
    for (int k = 0; k < 2; k++) {
        CD_TRY(tensor_make(cpu, r->is_odd, k, &r->states[k], err));
        CD_TRY(tensor_make(cpu, r->is_odd, k, &r->gradient[k], err));
    }
    r->is_made = true;
    return CD_PASS(reference_digest(r, err));
}

static cddp_status reference_rank(reference *r, uint32_t rank, cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    for (int k = 0; k < 2; k++) {
        const int64_t by = 5, from = (int64_t)rank * 3 + k;
        CD_TRY(numbers_write(&r->states[k], by, from, 7, err));
        for (size_t u = 0; u < UNITS; u++)
            CD_TRY(forward(&r->states[k], &r->parameters[2 * u + (size_t)k], err));
        for (size_t n = UNITS; n > 0; n--) {
            const size_t u = n % UNITS, i = 2 * u + (size_t)k; /* 0, 8, 7, … 1 */
            CD_TRY(backward(&r->states[k], &r->parameters[i], &r->gradient[k], err));
            CD_TRY(rank == 0 ? cpu->copy(&r->sums[i], &r->gradient[k], NULL, err)
                             : cpu->reduce(CDDP_RED_SUM, &r->sums[i], &r->gradient[k], NULL, err));
        }
    }
    return CDDP_OK;
}

static cddp_status reference_advance(reference *r, int iterations, cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    if (!r->is_made) CD_TRY(reference_make(r, err));
    while (r->done < iterations) {
        for (uint32_t rank = 0; rank < r->world_size; rank++) CD_TRY(reference_rank(r, rank, err));
        for (size_t i = 0; i < PARAMETERS; i++) {
            CD_TRY(cpu->divide(&r->sums[i], &r->sums[i], r->world_size, NULL, err));
            CD_TRY(cpu->axpy(&r->parameters[i], -RATE, &r->sums[i], NULL, err));
        }
        r->done++;
        CD_TRY(reference_digest(r, err));
    }
    return CDDP_OK;
}

/* ---- the rank ---- */

typedef struct operation {
    cddp_op op;
    int64_t unit;
    bool in_backward;
    cudaEvent_t posted, start, end;
} operation;

typedef struct lab {
    const cddp_backend *module;
    cddp_backend bound;
    cddp_device device; /* that of the module, with an allocator that counts */
    uint64_t live, peak;
    cddp_group *group;
    const mode *m;
    uint32_t rank, world_size;
    reference references[2]; /* of even and of odd sizes */
    uint32_t faults, faults_of_mode;
    char first_fault[400];

    /* the model at hand */
    cddp_fsdp *fsdp;
    char names[PARAMETERS][16];
    cddp_parameter parameters[PARAMETERS];
    cddp_grad grads[PARAMETERS];
    cddp_tensor data[2], states[2], scratch;
    int iterations;

    /* what is recorded of an iteration */
    int work; /* products per pass of a unit */
    bool records, in_backward;
    bool computes_first; /* is what the host waits for afterwards */
    uint32_t current;
    operation operations[OPERATIONS_MAX];
    size_t operation_count;
    cudaEvent_t origin, computes[2][UNITS][2]; /* forward and backward, begin and end */
} lab;

/* A check that fails: the modes behind it are seen, too, and the ranks stay in step. */
static void note(lab *l, cddp_status status, cddp_error *err)
{
    if (status == CDDP_OK) return;
    if (l->faults++ == 0)
        snprintf(l->first_fault, sizeof l->first_fault, "%s: %.300s", l->m->name, err->message);
    l->faults_of_mode++;
    printf("rank %u of %u, %s: FAILED: %s\n", l->rank, l->world_size, l->m->name, err->message);
    fflush(stdout);
    cd_error_reset(err);
}

static lab here; /* of this process: the tables have no place for it */

static cddp_status counted_allocate(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                                    void **storage, cddp_error *err)
{
    CD_TRY(cd_cuda_device.allocate(device, dtype, numel, storage, err));
    here.live += (uint64_t)numel * cddp_dtype_bytes(dtype);
    if (here.live > here.peak) here.peak = here.live;
    return CDDP_OK;
}

static void counted_release(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                            void *storage)
{
    cd_cuda_device.release(device, dtype, numel, storage);
    here.live -= (uint64_t)numel * cddp_dtype_bytes(dtype);
}

static cddp_status check(cudaError_t code, const char *what, cddp_error *err)
{
    return CD_PASS(cd_cuda_check(code, what, err));
}

/* A gather reads the shard of its unit. */
static int64_t unit_of(const lab *l, const cddp_collective *c)
{
    for (uint32_t u = 0; c->op == CDDP_OP_ALLGATHER && u < UNITS; u++) {
        cddp_parameter flat;
        if (cddp_fsdp_flat(l->fsdp, u, &flat, NULL) == CDDP_OK &&
            flat.tensor.storage == c->input.storage)
            return u;
    }
    return c->op == CDDP_OP_ALLGATHER ? -1 : (int64_t)l->current;
}

/* The start is where the group's stream could begin: the operation is posted, and the ones before
** it have ended. */
static cddp_status recorded_post(void *group, const cddp_collective *c, void **work,
                                 cddp_error *err)
{
    const cd_nccl_group *g = group;
    lab *l = &here;
    if (!l->records) return CD_PASS(l->module->post(group, c, work, err));
    if (l->operation_count == OPERATIONS_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "more than %d operations", OPERATIONS_MAX);
    operation *o = &l->operations[l->operation_count++];
    o->op = c->op;
    o->unit = unit_of(l, c);
    o->in_backward = l->in_backward;
    CD_TRY(check(cudaEventRecord(o->posted, cd_cuda_here.stream), "cudaEventRecord", err));
    CD_TRY(check(cudaStreamWaitEvent(g->stream, o->posted, 0), "cudaStreamWaitEvent", err));
    CD_TRY(check(cudaEventRecord(o->start, g->stream), "cudaEventRecord", err));
    CD_TRY(l->module->post(group, c, work, err));
    return CD_PASS(check(cudaEventRecord(o->end, g->stream), "cudaEventRecord", err));
}

static cddp_status events_make(lab *l, cddp_error *err)
{
    CD_TRY(check(cudaEventCreateWithFlags(&l->origin, cudaEventDefault), "an event", err));
    for (size_t i = 0; i < OPERATIONS_MAX; i++) {
        operation *o = &l->operations[i];
        CD_TRY(check(cudaEventCreateWithFlags(&o->posted, cudaEventDefault), "an event", err));
        CD_TRY(check(cudaEventCreateWithFlags(&o->start, cudaEventDefault), "an event", err));
        CD_TRY(check(cudaEventCreateWithFlags(&o->end, cudaEventDefault), "an event", err));
    }
    for (int pass = 0; pass < 2; pass++)
        for (size_t u = 0; u < UNITS; u++)
            for (int k = 0; k < 2; k++)
                CD_TRY(check(cudaEventCreateWithFlags(&l->computes[pass][u][k], cudaEventDefault),
                             "an event", err));
    return CDDP_OK;
}

static void events_drop(lab *l)
{
    if (l->origin != NULL) (void)cudaEventDestroy(l->origin);
    for (size_t i = 0; i < OPERATIONS_MAX; i++) {
        const cudaEvent_t events[] = {l->operations[i].posted, l->operations[i].start,
                                      l->operations[i].end};
        for (int k = 0; k < 3; k++)
            if (events[k] != NULL) (void)cudaEventDestroy(events[k]);
    }
    for (int n = 0; n < 2 * UNITS * 2; n++) {
        const cudaEvent_t event = l->computes[n / (2 * UNITS)][n / 2 % UNITS][n % 2];
        if (event != NULL) (void)cudaEventDestroy(event);
    }
}

static cddp_status model_open(lab *l, cddp_error *err)
{
    const cddp_device *d = &l->device;
    cddp_status status = CDDP_OK;
    l->iterations = 0;
    for (size_t i = 0; i < PARAMETERS; i++) {
        const char *which = i % 2 == 0 ? "a" : "b";
        cddp_parameter *p = &l->parameters[i];
        if (i < 2)
            snprintf(l->names[i], sizeof l->names[i], "%s", which);
        else
            snprintf(l->names[i], sizeof l->names[i], "u%zu.%s", i / 2, which);
        *p = (cddp_parameter){.name = l->names[i], .grad = &l->grads[i], .requires_grad = true};
        l->grads[i] = (cddp_grad){.kind = CDDP_GRAD_UNDEFINED};
        CD_TRY_OUT(parameter_make(d, l->m->is_odd, i, &p->tensor, err));
    }
    for (int k = 0; k < 2; k++) {
        CD_TRY_OUT(data_make(d, l->m->is_odd, l->rank, k, &l->data[k], err));
        CD_TRY_OUT(tensor_make(d, l->m->is_odd, k, &l->states[k], err));
    }
    CD_TRY_OUT(tensor_make(d, l->m->is_odd, 0, &l->scratch, err));
    cddp_fsdp_options o = cddp_fsdp_options_default();
    o.parameters = l->parameters;
    o.parameter_count = PARAMETERS;
    o.group = l->group;
    o.wrap.kind = CDDP_FSDP_WRAP_ALWAYS;
    o.strategy = l->m->strategy;
    o.layout = l->m->layout;
    o.backward_prefetch = l->m->prefetch;
    o.forward_prefetch = l->m->forward_prefetch;
    CD_TRY_OUT(cddp_fsdp_create(&o, &l->fsdp, err));
    if (cddp_fsdp_unit_count(l->fsdp) != UNITS || cddp_fsdp_unit_of(l->fsdp, "u8") != 8)
        status = cd_fail(err, CDDP_E_STATE, "%u units", cddp_fsdp_unit_count(l->fsdp));
out:
    for (size_t i = 0; i < PARAMETERS; i++) tensor_drop(&l->parameters[i].tensor);
    return status;
}

static void model_close(lab *l)
{
    cddp_fsdp_destroy(l->fsdp);
    l->fsdp = NULL;
    for (int k = 0; k < 2; k++) {
        tensor_drop(&l->data[k]);
        tensor_drop(&l->states[k]);
    }
    tensor_drop(&l->scratch);
    for (size_t i = 0; i < PARAMETERS; i++) cddp_grad_fini(&l->grads[i]);
}

/* ---- one iteration ---- */

static cddp_status compute(lab *l, uint32_t unit, bool has_gradient, cddp_error *err)
{
    const cddp_tensor *p[2] = {cddp_fsdp_parameter(l->fsdp, 2 * unit),
                               cddp_fsdp_parameter(l->fsdp, 2 * unit + 1)};
    cudaEvent_t *events = l->computes[l->in_backward][unit];
    const cudaStream_t stream = cd_cuda_here.stream;
    const cddp_matmul square = {.a = p[0], .b = p[0]};
    if (p[0] == NULL || p[1] == NULL)
        return cd_fail(err, CDDP_E_STATE, "unit %u is not full", unit);
    if (l->records) CD_TRY(check(cudaEventRecord(events[0], stream), "cudaEventRecord", err));
    for (size_t k = 0; k < 2; k++) {
        cddp_grad *grad = &l->grads[2 * unit + k];
        if (!l->in_backward) {
            CD_TRY(forward(&l->states[k], p[k], err));
        } else if (has_gradient) {
            CD_TRY(cddp_grad_define(grad, p[k], err));
            CD_TRY(backward(&l->states[k], p[k], &grad->value, err));
        }
    }
    for (int n = 0; n < l->work && has_gradient && !l->m->is_odd; n++)
        CD_TRY(l->device.matmul(&l->scratch, &square, NULL, err));
    if (l->records) CD_TRY(check(cudaEventRecord(events[1], stream), "cudaEventRecord", err));
    return CDDP_OK;
}

static cddp_status run_forward(lab *l, bool has_gradient, cddp_error *err)
{
    l->in_backward = false;
    for (int k = 0; k < 2; k++) CD_TRY(l->device.copy(&l->states[k], &l->data[k], NULL, err));
    for (uint32_t u = 0; u < UNITS; u++) {
        l->current = u;
        CD_TRY(cddp_fsdp_pre_forward(l->fsdp, u, true, err));
        CD_TRY(compute(l, u, has_gradient, err));
        if (u > 0) CD_TRY(cddp_fsdp_post_forward(l->fsdp, u, true, err));
    }
    return CD_PASS(cddp_fsdp_post_forward(l->fsdp, 0, true, err));
}

static cddp_status run_backward(lab *l, bool has_gradient, cddp_error *err)
{
    l->in_backward = true;
    for (uint32_t n = UNITS; n > 0; n--) {
        const uint32_t u = n % UNITS; /* 0, 8, 7, … 1 */
        l->current = u;
        CD_TRY(cddp_fsdp_pre_backward(l->fsdp, u, err));
        CD_TRY(compute(l, u, has_gradient, err));
        if (u > 0) CD_TRY(cddp_fsdp_post_backward(l->fsdp, u, err));
    }
    l->current = 0;
    CD_TRY(cddp_fsdp_post_backward(l->fsdp, 0, err));
    return CD_PASS(cddp_fsdp_backward_end(l->fsdp, err));
}

static cddp_status step(lab *l, cddp_error *err)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        cddp_parameter flat;
        CD_TRY(cddp_fsdp_flat(l->fsdp, u, &flat, err));
        if (flat.grad->kind != CDDP_GRAD_DENSE)
            return cd_fail(err, CDDP_E_STATE, "unit %u has no gradient", u);
        CD_TRY(l->device.axpy(&flat.tensor, -RATE, &flat.grad->value, NULL, err));
    }
    return CD_PASS(cddp_fsdp_zero_grad(l->fsdp, true, err));
}

static cddp_status train(lab *l, bool records, cddp_error *err)
{
    l->operation_count = 0;
    l->records = records;
    cddp_status status = CDDP_OK;
    if (records) CD_TRY_OUT(check(cudaEventRecord(l->origin, cd_cuda_here.stream), "origin", err));
    CD_TRY_OUT(run_forward(l, true, err));
    CD_TRY_OUT(run_backward(l, true, err));
    CD_TRY_OUT(step(l, err));
    l->iterations++;
out:
    l->records = false;
    return status;
}

/* ---- memory ---- */

static uint64_t unit_bytes(void) { return UINT64_C(2) * SIDE * SIDE * 4; }

static cddp_status expect_units(const char *what, uint64_t bytes, int units, cddp_error *err)
{
    if (bytes == (uint64_t)units * unit_bytes()) return CDDP_OK;
    return cd_fail(err, CDDP_E_MISMATCH,
                   "%s: %.3f units of %llu bytes where the law says %d of them", what,
                   (double)bytes / (double)unit_bytes(), (unsigned long long)unit_bytes(), units);
}

typedef struct footprint {
    uint64_t counted, allocated, taken; /* wrapper, allocator, cudaMalloc */
    size_t before, after;               /* free on the GPU, of all processes */
} footprint;

static cddp_status measure_memory(lab *l, footprint *out, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_fsdp_counts counts = {.size = sizeof counts};
    size_t total = 0;
    const bool is_cut = l->world_size > 1;
    CD_TRY_OUT(model_open(l, err));
    CD_TRY_OUT(cd_cuda_device.stream_synchronize(&l->device, NULL, err));
    cd_pool_trim(&cd_cuda_here.memory);
    l->peak = l->live;
    const uint64_t live = l->live, taken = cd_cuda_here.memory.taken_bytes;
    CD_TRY_OUT(check(cudaMemGetInfo(&out->before, &total), "cudaMemGetInfo", err));
    for (int i = 0; i < 2; i++) { /* forward_prefetch begins with the second */
        CD_TRY_OUT(run_forward(l, false, err));
        CD_TRY_OUT(run_backward(l, false, err));
    }
    CD_TRY_OUT(check(cudaMemGetInfo(&out->after, &total), "cudaMemGetInfo", err));
    CD_TRY_OUT(cddp_fsdp_get_counts(l->fsdp, &counts, err));
    out->counted = counts.full_bytes_peak;
    out->allocated = l->peak - live;
    out->taken = cd_cuda_here.memory.taken_bytes - taken;
    if (counts.full_bytes != 0)
        note(l,
             cd_fail(err, CDDP_E_STATE, "%llu bytes are full between iterations",
                     (unsigned long long)counts.full_bytes),
             err);
    if (l->m->is_odd) goto out;
    /* One shard is the parameter itself: nothing is gathered (FSD-13). */
    const int gradients = is_cut ? l->m->with_gradients : 2;
    note(l,
         expect_units("full parameters by the counts", out->counted, is_cut ? l->m->full : 0, err),
         err);
    note(l,
         expect_units("full parameters and gradients by the allocator", out->allocated, gradients,
                      err),
         err);
    note(l, expect_units("full parameters and gradients by cudaMalloc", out->taken, gradients, err),
         err);
out:
    model_close(l);
    return status;
}

/* Of a training, with the gradients of shards and without the shards. */
static cddp_status judge_training(const lab *l, uint64_t peak, cddp_error *err)
{
    const uint64_t gradients = UNITS * unit_bytes() / l->world_size;
    if (l->m->is_odd) return CDDP_OK;
    return CD_PASS(expect_units("a training by the allocator",
                                peak > gradients ? peak - gradients : 0,
                                l->world_size > 1 ? l->m->training : 4, err));
}

/* ---- overlap ---- */

/* Microseconds since the origin. */
static double when(const lab *l, cudaEvent_t event)
{
    float ms = 0;
    if (cudaEventElapsedTime(&ms, l->origin, event) != cudaSuccess) return -1;
    return (double)ms * 1e3;
}

static const operation *find(const lab *l, cddp_op op, uint32_t unit, bool in_backward)
{
    for (size_t i = 0; i < l->operation_count; i++)
        if (l->operations[i].op == op && l->operations[i].unit == unit &&
            l->operations[i].in_backward == in_backward)
            return &l->operations[i];
    return NULL;
}

typedef struct beside {
    int pairs;
    uint32_t together; /* a bit per pair */
    double us;         /* both are under way, all pairs together */
} beside;

static int count(uint32_t bits)
{
    int n = 0;
    for (; bits != 0; bits &= bits - 1) n++;
    return n;
}

/* An operation, and the computation that it may overlap: does it start before that ends, and end
** after that began? Over lazy streams each is seen where the other one is made to run first. */
static void compare(const lab *l, const operation *o, const cudaEvent_t computes[2], beside *b)
{
    if (o == NULL) return;
    const double start = when(l, o->start), end = when(l, o->end), begin = when(l, computes[0]),
                 over = when(l, computes[1]);
    const double from = start > begin ? start : begin, to = end < over ? end : over;
    bool together = start < over - CLOCK_US && end > begin + CLOCK_US;
#ifndef CDDP_ON_GPU
    together = l->computes_first ? end > begin : start < over;
#endif
    b->together |= (uint32_t)together << b->pairs++;
    if (to > from) b->us += to - from;
}

typedef struct overlap {
    beside forward_gathers, backward_gathers, reductions;
    double compute_us, gather_us, reduction_us; /* the longest of each */
} overlap;

static void look(const lab *l, overlap *o)
{
    *o = (overlap){.compute_us = 0};
    for (uint32_t u = 1; u < UNITS; u++) { /* in backward 0, 8, 7, … 1 */
        compare(l, find(l, CDDP_OP_ALLGATHER, u, false), l->computes[0][u - 1],
                &o->forward_gathers);
        compare(l, find(l, CDDP_OP_ALLGATHER, u, true), l->computes[1][(u + 1) % UNITS],
                &o->backward_gathers);
        if (u > 1)
            compare(l, find(l, CDDP_OP_REDUCE_SCATTER, u, true), l->computes[1][u - 1],
                    &o->reductions);
    }
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t u = 0; u < UNITS; u++) {
            const double us = when(l, l->computes[pass][u][1]) - when(l, l->computes[pass][u][0]);
            if (us > o->compute_us) o->compute_us = us;
        }
    for (size_t i = 0; i < l->operation_count; i++) {
        const operation *p = &l->operations[i];
        const double us = when(l, p->end) - when(l, p->start);
        double *most = p->op == CDDP_OP_ALLGATHER ? &o->gather_us : &o->reduction_us;
        if (us > *most) *most = us;
    }
}

/* Collectives first, in the order in which they were posted: over lazy streams that runs nothing
** else than what they wait for. Or the default stream first. */
static cddp_status settle(lab *l, overlap *o, cddp_error *err)
{
    if (l->computes_first) CD_TRY(cd_cuda_device.stream_synchronize(&l->device, NULL, err));
    for (size_t i = 0; i < l->operation_count; i++)
        CD_TRY(check(cudaEventSynchronize(l->operations[i].end), "a collective", err));
    CD_TRY(cd_cuda_device.stream_synchronize(&l->device, NULL, err));
    look(l, o);
    return CDDP_OK;
}

static cddp_status judge_pairs(const char *what, const beside *b, int pairs, bool is_ahead,
                               bool *shown, cddp_error *err)
{
    if (b->pairs != pairs)
        return cd_fail(err, CDDP_E_MISMATCH, "%d %s where the law says %d", b->pairs, what, pairs);
    if (!is_ahead && b->together != 0)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "%d of %d %s are in flight beside the computation next to them, and this "
                       "mode has none that may",
                       count(b->together), pairs, what);
    if (is_ahead && count(b->together) < pairs) *shown = false;
    return CDDP_OK;
}

/* *shown false: something that should overlap did not, perhaps because the work is too short. */
static cddp_status judge(const lab *l, const overlap *o, bool *shown, cddp_error *err)
{
    const mode *m = l->m;
    const bool is_cut = l->world_size > 1, frees = is_cut && m->strategy == CDDP_FSDP_FULL_SHARD;
    *shown = true;
    CD_TRY(judge_pairs("gathers in forward", &o->forward_gathers, is_cut ? UNITS - 1 : 0,
                       m->forward_gathers, shown, err));
    CD_TRY(judge_pairs("gathers in backward", &o->backward_gathers, frees ? UNITS - 1 : 0,
                       m->backward_gathers, shown, err));
    return CD_PASS(judge_pairs("reductions", &o->reductions, is_cut ? UNITS - 2 : 0, m->reductions,
                               shown, err));
}

/* The largest number of any rank. */
static cddp_status most(lab *l, int64_t *number, cddp_error *err)
{
    const int64_t one = 1;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), number, 0, CDDP_I64, &one, 1);
    cddp_work *work = NULL;
    CD_TRY(cddp_group_allreduce(l->group, &t, CDDP_RED_MAX, &work, err));
    return CD_PASS(cddp_work_wait(work, 0, err));
}

/* As much work as covers a gather and a reduction, twice. */
static cddp_status calibrate(lab *l, const overlap *o, cddp_error *err)
{
    const double each = o->compute_us / l->work, wanted = 2 * (o->gather_us + o->reduction_us);
    const double products = each > 0 && l->world_size > 1 ? wanted / each : 0;
    int64_t work = products > WORK_MAX ? WORK_MAX : (int64_t)products;
    if (work < l->work) work = l->work;
    CD_TRY(most(l, &work, err));
    l->work = work < WORK_MAX ? (int)work : WORK_MAX;
    return CDDP_OK;
}

/* ---- values ---- */

typedef struct comparison {
    const reference *r;
    int iterations;
    size_t seen, different;
    char name[16]; /* of the first one that differs */
} comparison;

static cddp_status compare_entry(void *context, const cddp_fsdp_entry *entry, cddp_error *err)
{
    comparison *c = context;
    uint64_t digest = 0;
    CD_TRY(entry->tensor.device->digest(&entry->tensor, &digest, err));
    c->seen++;
    if (digest != c->r->digests[c->iterations][entry->ordinal] && c->different++ == 0)
        snprintf(c->name, sizeof c->name, "%s", entry->name);
    return CDDP_OK;
}

static cddp_status compare_values(lab *l, cddp_error *err)
{
    reference *r = &l->references[l->m->is_odd];
    comparison c = {.r = r, .iterations = l->iterations};
    r->is_odd = l->m->is_odd;
    r->world_size = l->world_size;
    CD_TRY(reference_advance(r, l->iterations, err));
    const cddp_fsdp_sink sink = {.size = sizeof sink, .entry = compare_entry, .context = &c};
    CD_TRY(cddp_fsdp_full_state(l->fsdp, &sink, err));
    if (c.seen != PARAMETERS || c.different > 0)
        note(l,
             cd_fail(err, CDDP_E_MISMATCH,
                     "of %zu parameters %zu differ from the training on the cpu device after %d "
                     "iterations, '%s' first",
                     c.seen, c.different, c.iterations, c.name),
             err);
    return CDDP_OK;
}

/* ---- one mode ---- */

static void print_beside(const char *what, const beside *b)
{
    if (b->pairs > 0)
        printf("; %s: %d of %d beside computation, %.0f us", what, count(b->together), b->pairs,
               b->us);
}

static void print_row(const lab *l, const footprint *memory, const overlap *o, uint64_t peak)
{
    const double mib = 1 << 20, law = l->world_size > 1 ? l->m->full : 0;
    printf("%u rank%s, %s: ", l->world_size, l->world_size > 1 ? "s" : "", l->m->name);
    if (l->m->is_odd)
        printf("values only");
    else
        printf("full %.3f MiB = %g units (law %g), with gradients %.3f MiB (law %d units), by "
               "cudaMalloc %.3f MiB, by cudaMemGetInfo %.3f MiB",
               (double)memory->counted / mib, (double)memory->counted / (double)unit_bytes(), law,
               (double)memory->allocated / mib, l->world_size > 1 ? l->m->with_gradients : 2,
               (double)memory->taken / mib, ((double)memory->before - (double)memory->after) / mib);
    printf(", training %.3f MiB beside its shards", (double)peak / mib);
    if (!l->m->is_odd)
        printf(" = %g units and gradients (law %d)",
               (double)(peak - UNITS * unit_bytes() / l->world_size) / (double)unit_bytes(),
               l->world_size > 1 ? l->m->training : 4);
    print_beside("forward gathers", &o->forward_gathers);
    print_beside("backward gathers", &o->backward_gathers);
    print_beside("reductions", &o->reductions);
    printf("; longest compute %.0f us (%d products), gather %.0f us, reduction %.0f us; %s\n",
           o->compute_us, l->work, o->gather_us, o->reduction_us,
           l->faults_of_mode == 0 ? "values equal, no host wait, no allocation" : "FAILED");
    fflush(stdout);
}

/* Nothing runs before settle decides what is first, and in it nothing that a watchdog asks for. */
static void fall_asleep(bool is_asleep)
{
#ifdef CDDP_ON_GPU
    (void)is_asleep;
#else
    fake_cuda_is_asleep = is_asleep;
#endif
}

static cddp_status train_and_settle(lab *l, overlap *o, cddp_error *err)
{
    const uint64_t waits = cd_cuda_here.host_waits, calls = cd_cuda_here.memory.source_calls,
                   taken = cd_cuda_here.memory.taken_bytes;
    CD_TRY(train(l, true, err));
    if (cd_cuda_here.host_waits != waits)
        note(l,
             cd_fail(err, CDDP_E_STATE, "the host waits %llu times in a steady iteration",
                     (unsigned long long)(cd_cuda_here.host_waits - waits)),
             err);
    if (cd_cuda_here.memory.source_calls != calls || cd_cuda_here.memory.taken_bytes != taken)
        note(l, cd_fail(err, CDDP_E_STATE, "a steady iteration asks for device memory"), err);
    return CD_PASS(settle(l, o, err));
}

static cddp_status train_once(lab *l, overlap *o, cddp_error *err)
{
    fall_asleep(true);
    const cddp_status status = train_and_settle(l, o, err);
    fall_asleep(false);
    return CD_PASS(status);
}

static cddp_status train_steady(lab *l, overlap *o, cddp_error *err)
{
    CD_TRY(train_once(l, o, err));
#ifndef CDDP_ON_GPU
    overlap again;
    l->computes_first = true;
    const cddp_status status = train_once(l, &again, err);
    l->computes_first = false;
    CD_TRY(status);
    o->forward_gathers.together &= again.forward_gathers.together;
    o->backward_gathers.together &= again.backward_gathers.together;
    o->reductions.together &= again.reductions.together;
#endif
    return CDDP_OK;
}

static cddp_status train_mode(lab *l, const footprint *memory, cddp_error *err)
{
    overlap o;
    bool shown = false;
    l->peak = l->live;
    const uint64_t live = l->live;
    CD_TRY(train(l, false, err));
    CD_TRY(train(l, true, err));
    CD_TRY(settle(l, &o, err));
    CD_TRY(calibrate(l, &o, err));
    for (int n = 0; !shown && n < TRIES; n++) {
        CD_TRY(train_steady(l, &o, err));
        note(l, judge(l, &o, &shown, err), err);
        if (l->m->is_odd) shown = true; /* without work */
        int64_t again = !shown;
        CD_TRY(most(l, &again, err));
        shown = again == 0;
        if (!shown && l->work < WORK_MAX) l->work = l->work * 2 < WORK_MAX ? l->work * 2 : WORK_MAX;
    }
    if (!shown)
        note(l,
             cd_fail(err, CDDP_E_MISMATCH,
                     "not everything that this mode prefetches is in flight beside computation: "
                     "forward gathers %d of %d, backward gathers %d of %d, reductions %d of %d; "
                     "compute %.0f us, gather %.0f us, reduction %.0f us",
                     count(o.forward_gathers.together), o.forward_gathers.pairs,
                     count(o.backward_gathers.together), o.backward_gathers.pairs,
                     count(o.reductions.together), o.reductions.pairs, o.compute_us, o.gather_us,
                     o.reduction_us),
             err);
    const uint64_t peak = l->peak - live;
    note(l, judge_training(l, peak, err), err);
    CD_TRY(compare_values(l, err));
    if (l->rank == 0) print_row(l, memory, &o, peak);
    return CDDP_OK;
}

static cddp_status run_mode(lab *l, cddp_error *err)
{
    const uint64_t live = l->live;
    footprint memory = {0};
    CD_TRY(measure_memory(l, &memory, err));
    cddp_status status = model_open(l, err);
    if (status == CDDP_OK) status = train_mode(l, &memory, err);
    model_close(l);
    if (status == CDDP_OK && l->live != live)
        return cd_fail(err, CDDP_E_STATE, "%lld bytes of the device are left behind",
                       (long long)(l->live - live));
    return status;
}

static cddp_status run_modes(lab *l, cddp_error *err)
{
    CD_TRY(events_make(l, err));
    l->work = WORK_FIRST;
    for (size_t i = 0; i < MODES; i++) {
        cddp_error why = CDDP_ERROR_INIT;
        l->m = &modes[i];
        l->faults_of_mode = 0;
        if (run_mode(l, &why) != CDDP_OK)
            return cd_fail(err, why.status, "%s: %.400s", l->m->name, why.message);
    }
    if (l->faults > 0)
        return cd_fail(err, CDDP_E_MISMATCH, "%u checks fail, first %s", l->faults, l->first_fault);
    return CDDP_OK;
}

static void references_drop(lab *l)
{
    for (int i = 0; i < 2; i++) {
        reference *r = &l->references[i];
        for (size_t k = 0; k < PARAMETERS; k++) {
            tensor_drop(&r->parameters[k]);
            tensor_drop(&r->sums[k]);
        }
        for (int k = 0; k < 2; k++) {
            tensor_drop(&r->states[k]);
            tensor_drop(&r->gradient[k]);
        }
    }
}

/* ---- ranks ---- */

typedef struct job {
    char url[64];
    uint32_t world_size;
    cddp_rank_result results[2];
} job;

static cddp_status rank_main(cddp_rank *rank, void *argument, cddp_error *err)
{
    static const uint32_t members[] = {0, 1};
    const job *j = argument;
    lab *l = &here;
    cddp_rendezvous *rendezvous = NULL;
    cddp_status status = CDDP_OK;
    const cddp_rendezvous_options options = {.size = sizeof options,
                                             .url = j->url,
                                             .timeout_ns = 20 * SECOND};
    CD_TRY(cddp_rendezvous_open(&options, &rendezvous, err));
    l->module = cddp_plugin_v1.backends[0];
    l->device = cd_cuda_device;
    l->device.allocate = counted_allocate;
    l->device.release = counted_release;
    l->bound = *l->module;
    l->bound.self = rendezvous;
    l->bound.post = recorded_post;
    l->rank = rank->rank;
    l->world_size = rank->world_size;
    const cddp_group_options o = {.size = sizeof o,
                                  .backend = &l->bound,
                                  .rank = rank,
                                  .spec = {.size = sizeof o.spec,
                                           .name = "world",
                                           .group_rank = rank->rank,
                                           .group_size = rank->world_size,
                                           .members = members,
                                           .timeout_ns = 60 * SECOND}};
    CD_TRY_OUT(cddp_group_create(&o, &l->group, err));
    CD_TRY_OUT(run_modes(l, err));
out:
    references_drop(l);
    cddp_group_destroy(l->group); /* runs what is still on the streams */
    events_drop(l);
    cddp_rendezvous_close(rendezvous);
    return status;
}

static void run_job(uint32_t world_size)
{
    job j = {.world_size = world_size};
    char directory[] = "/tmp/cddp-fsdp-XXXXXX", command[64];
    assert_non_null(mkdtemp(directory));
    snprintf(j.url, sizeof j.url, "file://%s", directory);
    snprintf(command, sizeof command, "rm -rf %s", directory);
#ifndef CDDP_ON_GPU
    fake_nccl_share();
    fake_cuda_is_far = true;
#endif
    const cddp_process_options options = {.size = sizeof options,
                                          .world_size = world_size,
                                          .deadline_ns = 200 * SECOND,
                                          .grace_ns = 8 * SECOND};
    cddp_process_world *world = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    fflush(stdout);
    assert_ok(cddp_process_world_open(&options, &world, &err), &err);
    for (int i = 0; i < 2; i++) j.results[i].size = sizeof j.results[i];
    assert_ok(cddp_process_world_ops()->launch(world, rank_main, &j, j.results, &err), &err);
    cddp_process_world_close(world);
    assert_int_equal(system(command), 0);
    for (uint32_t r = 0; r < world_size; r++) {
        cd_test_row("rank %u of %u: %s", r, world_size, j.results[r].error.message);
        assert_int_equal(j.results[r].end, CDDP_RANK_RETURNED);
        assert_int_equal(j.results[r].status, CDDP_OK);
    }
}

TEST(fsdp, trains_on_the_device_of_one_rank) { run_job(1); }
TEST(fsdp, trains_on_the_device_of_two_ranks) { run_job(2); }

int main(int argc, char **argv)
{
#ifdef CDDP_ON_GPU
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_backend *module = cddp_plugin_v1.backends[0];
    if (module->probe(module, &err) != CDDP_OK) cd_test_skip_all(err.message);
#endif
    return cd_test_main(argc, argv, __FILE__);
}
