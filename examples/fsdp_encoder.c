/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's FSDP tutorial in C: an encoder of T5-like blocks, each block a unit, computed in
** bfloat16, gathered one block ahead in backward, saved by rank 0.
**
**     fsdp_encoder 4 save FILE     four processes train, rank 0 writes the whole model
**     fsdp_encoder 3 load FILE     three processes begin with it
**
** docs/howto/fsdp.md goes through it call by call. A block here is x + wo·relu(wi·x), the
** feed-forward half of T5's: the calls around it are those of any block.
*/
#include <cddp/cddp.h>
#include <cddp/init.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 3
#define WIDTH 8
#define INNER 16
#define BATCH 12
#define STEPS 40
#define RATE 0.1f

enum { WI, WO, OF_BLOCK };                 /* parameters of a block */
#define HEAD ((size_t)(OF_BLOCK * BLOCKS)) /* the root's own */
#define PARAMETERS (HEAD + 1)

/* Passed on; the rank ends with it. */
#define TRY(call)                                     \
    do {                                              \
        const cddp_status try_status = (call);        \
        if (try_status != CDDP_OK) return try_status; \
    } while (0)

typedef struct encoder {
    cddp_fsdp *fsdp;
    cddp_grad grads[PARAMETERS];
    float weights[PARAMETERS][WIDTH * INNER]; /* what forward and backward read, cast up */
    float gradients[PARAMETERS][WIDTH * INNER];
    float x[BLOCKS + 1][BATCH][WIDTH], inner[BLOCKS][BATCH][INNER]; /* activations */
    uint32_t rank, world;
    cddp_error *err;
} encoder;

static const char *const names[PARAMETERS] = {"block.0.wi.weight", "block.0.wo.weight",
                                              "block.1.wi.weight", "block.1.wo.weight",
                                              "block.2.wi.weight", "block.2.wo.weight",
                                              "head.weight"};

static int64_t numel_of(size_t i) { return i == HEAD ? WIDTH : WIDTH * INNER; }

static cddp_tensor shape_of(size_t i, float *storage)
{
    const int64_t sizes[2] = {i == HEAD            ? 1
                              : i % OF_BLOCK == WI ? INNER
                                                   : WIDTH,
                              i == HEAD || i % OF_BLOCK == WI ? WIDTH : INNER};
    return cddp_tensor_of(cddp_device_cpu(), storage, 0, CDDP_F32, sizes, 2);
}

/* ---- wrapping ---- */

/* model = FSDP(encoder, auto_wrap_policy=transformer_auto_wrap_policy({T5Block}),
**              mixed_precision=MixedPrecision(bf16, bf16), backward_prefetch=BACKWARD_PRE) */
static cddp_status wrap(encoder *e, cddp_group *group)
{
    static const uint32_t of_blocks[BLOCKS][OF_BLOCK] = {{0, 1}, {2, 3}, {4, 5}},
                          of_root[] = {OF_BLOCK * BLOCKS};
    const cddp_fsdp_module modules[] = {{"", "T5Encoder", -1, of_root, 1},
                                        {"block.0", "T5Block", 0, of_blocks[0], OF_BLOCK},
                                        {"block.1", "T5Block", 0, of_blocks[1], OF_BLOCK},
                                        {"block.2", "T5Block", 0, of_blocks[2], OF_BLOCK}};
    static const char *const wrapped[] = {"T5Block"};
    cddp_parameter parameters[PARAMETERS];
    uint32_t seed = 1 + e->rank; /* ranks begin differently: rank 0's values count */
    for (size_t i = 0; i < PARAMETERS; i++) {
        for (int64_t k = 0; k < numel_of(i); k++) {
            seed = seed * 1664525u + 1013904223u;
            e->weights[i][k] = ((float)(seed >> 8) / 16777216.0f - 0.5f) * 0.5f;
        }
        parameters[i] = (cddp_parameter){.name = names[i],
                                         .tensor = shape_of(i, e->weights[i]),
                                         .grad = &e->grads[i],
                                         .requires_grad = true};
    }
    cddp_fsdp_options options = cddp_fsdp_options_default();
    options.parameters = parameters;
    options.parameter_count = PARAMETERS;
    options.modules = modules;
    options.module_count = sizeof modules / sizeof modules[0];
    options.group = group;
    options.wrap.kind = CDDP_FSDP_WRAP_TYPES;
    options.wrap.words = wrapped;
    options.wrap.word_count = 1;
    options.strategy = CDDP_FSDP_FULL_SHARD;
    options.mixed_precision.param_dtype = options.mixed_precision.reduce_dtype = CDDP_BF16;
    options.backward_prefetch = CDDP_FSDP_BACKWARD_PRE;
    options.sync_module_states = true;
    return cddp_fsdp_create(&options, &e->fsdp, e->err);
}

/* ---- one iteration ---- */

/* The program computes in f32 with what the unit has in bfloat16. */
static cddp_status read_unit(encoder *e, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++) {
        const cddp_tensor *full = cddp_fsdp_parameter(e->fsdp, i), to = shape_of(i, e->weights[i]);
        TRY(to.device->copy(&to, full, NULL, e->err));
    }
    return CDDP_OK;
}

/* Gradients become bfloat16 in the unit's slots. */
static cddp_status write_gradients(encoder *e, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++) {
        const cddp_tensor from = shape_of(i, e->gradients[i]);
        TRY(cddp_grad_define(&e->grads[i], cddp_fsdp_parameter(e->fsdp, i), e->err));
        TRY(from.device->copy(&e->grads[i].value, &from, NULL, e->err));
    }
    return CDDP_OK;
}

static void run_block(encoder *e, size_t b, size_t sample)
{
    const float *wi = e->weights[OF_BLOCK * b + WI], *wo = e->weights[OF_BLOCK * b + WO];
    const float *x = e->x[b][sample];
    float *h = e->inner[b][sample], *y = e->x[b + 1][sample];
    for (size_t j = 0; j < INNER; j++) {
        float sum = 0;
        for (size_t k = 0; k < WIDTH; k++) sum += wi[j * WIDTH + k] * x[k];
        h[j] = sum > 0 ? sum : 0;
    }
    for (size_t k = 0; k < WIDTH; k++) {
        y[k] = x[k];
        for (size_t j = 0; j < INNER; j++) y[k] += wo[k * INNER + j] * h[j];
    }
}

/* dy: (WIDTH) in place: the gradient of the output, then that of the input. */
static void go_back(encoder *e, size_t b, size_t sample, float *dy)
{
    const float *wi = e->weights[OF_BLOCK * b + WI], *wo = e->weights[OF_BLOCK * b + WO];
    float *gi = e->gradients[OF_BLOCK * b + WI], *go = e->gradients[OF_BLOCK * b + WO];
    const float *x = e->x[b][sample], *h = e->inner[b][sample];
    float dx[WIDTH];
    memcpy(dx, dy, sizeof dx);
    for (size_t j = 0; j < INNER; j++) {
        float dh = 0;
        for (size_t k = 0; k < WIDTH; k++) {
            dh += wo[k * INNER + j] * dy[k];
            go[k * INNER + j] += dy[k] * h[j];
        }
        if (h[j] <= 0) continue;
        for (size_t k = 0; k < WIDTH; k++) {
            gi[j * WIDTH + k] += dh * x[k];
            dx[k] += dh * wi[j * WIDTH + k];
        }
    }
    memcpy(dy, dx, sizeof dx);
}

/* The sum of the inputs is to be found. */
static float fill_input(float *x, uint32_t sample)
{
    uint32_t seed = 77 + sample;
    float sum = 0;
    for (size_t k = 0; k < WIDTH; k++) {
        seed = seed * 1664525u + 1013904223u;
        x[k] = (float)(seed >> 8) / 16777216.0f - 0.5f;
        sum += x[k];
    }
    return sum;
}

static cddp_status train_step(encoder *e, float *loss)
{
    const size_t count = BATCH / e->world;
    float dy[BATCH][WIDTH];
    memset(e->gradients, 0, sizeof e->gradients);
    *loss = 0;
    TRY(cddp_fsdp_pre_forward(e->fsdp, 0, true, e->err));
    TRY(read_unit(e, HEAD, 1));
    for (size_t s = 0; s < count; s++) fill_input(e->x[0][s], e->rank + (uint32_t)s * e->world);
    for (uint32_t b = 0; b < BLOCKS; b++) { /* unit b + 1 */
        TRY(cddp_fsdp_pre_forward(e->fsdp, b + 1, true, e->err));
        TRY(read_unit(e, OF_BLOCK * b, OF_BLOCK));
        for (size_t s = 0; s < count; s++) run_block(e, b, s);
        TRY(cddp_fsdp_post_forward(e->fsdp, b + 1, true, e->err));
    }
    TRY(cddp_fsdp_post_forward(e->fsdp, 0, true, e->err));

    TRY(cddp_fsdp_pre_backward(e->fsdp, 0, e->err));
    for (size_t s = 0; s < count; s++) {
        float x[WIDTH], error = -fill_input(x, e->rank + (uint32_t)s * e->world);
        for (size_t k = 0; k < WIDTH; k++) error += e->weights[HEAD][k] * e->x[BLOCKS][s][k];
        *loss += error * error / (float)count;
        for (size_t k = 0; k < WIDTH; k++) {
            dy[s][k] = 2 * error * e->weights[HEAD][k] / (float)count;
            e->gradients[HEAD][k] += 2 * error * e->x[BLOCKS][s][k] / (float)count;
        }
    }
    for (uint32_t b = BLOCKS; b-- > 0;) {
        TRY(cddp_fsdp_pre_backward(e->fsdp, b + 1, e->err));
        for (size_t s = 0; s < count; s++) go_back(e, b, s, dy[s]);
        TRY(write_gradients(e, OF_BLOCK * b, OF_BLOCK));
        TRY(cddp_fsdp_post_backward(e->fsdp, b + 1, e->err));
    }
    TRY(write_gradients(e, HEAD, 1));
    TRY(cddp_fsdp_post_backward(e->fsdp, 0, e->err));
    TRY(cddp_fsdp_backward_end(e->fsdp, e->err));

    for (uint32_t u = 0; u <= BLOCKS; u++) { /* SGD on the f32 shards */
        cddp_parameter flat;
        TRY(cddp_fsdp_flat(e->fsdp, u, &flat, e->err));
        float *values = flat.tensor.storage;
        const float *gradient = flat.grad->value.storage;
        for (int64_t k = 0; k < cddp_tensor_numel(&flat.tensor); k++)
            values[k] -= RATE * gradient[k];
        cddp_grad_drop(flat.grad);
    }
    return CDDP_OK;
}

/* ---- the checkpoint ---- */

/* FullStateDictConfig(rank0_only=True): one unit is whole at a time, and rank 0 writes it. */
static cddp_status write_entry(void *file, const cddp_fsdp_entry *entry, cddp_error *err)
{
    const int64_t numel = cddp_tensor_numel(&entry->tensor);
    const float *values = (const float *)entry->tensor.storage + entry->tensor.offset;
    if (fprintf(file, "%s %lld\n", entry->name, (long long)numel) < 0 ||
        fwrite(values, sizeof *values, (size_t)numel, file) != (size_t)numel)
        return cddp_error_set(err, CDDP_E_IO, "cannot write '%s'", entry->name);
    return CDDP_OK;
}

static cddp_status save(encoder *e, const char *path)
{
    FILE *file = e->rank == 0 ? fopen(path, "wb") : NULL;
    const cddp_fsdp_sink sink = {.size = sizeof sink,
                                 .entry = write_entry,
                                 .context = file,
                                 .rank0_only = true};
    if (e->rank == 0 && file == NULL)
        return cddp_error_set(e->err, CDDP_E_IO, "cannot write %s", path);
    cddp_status status = cddp_fsdp_full_state(e->fsdp, &sink, e->err);
    if (file != NULL && fclose(file) != 0 && status == CDDP_OK)
        status = cddp_error_set(e->err, CDDP_E_IO, "cannot write %s", path);
    return status;
}

/* Each rank reads its own elements, wherever they were cut when they were written. */
static cddp_status read_elements(void *file, const char *name, int64_t first, const cddp_tensor *to,
                                 cddp_error *err)
{
    char found[64];
    long long numel;
    rewind(file);
    while (fscanf(file, "%63s %lld", found, &numel) == 2 && fgetc(file) == '\n') {
        const long at = ftell(file);
        const size_t count = (size_t)cddp_tensor_numel(to);
        if (strcmp(found, name) == 0 &&
            fseek(file, at + (long)first * (long)sizeof(float), SEEK_SET) == 0 &&
            fread((float *)to->storage + to->offset, sizeof(float), count, file) == count)
            return CDDP_OK;
        if (fseek(file, at + (long)numel * (long)sizeof(float), SEEK_SET) != 0) break;
    }
    return cddp_error_set(err, CDDP_E_IO, "the file has no '%s'", name);
}

static cddp_status load(encoder *e, const char *path)
{
    FILE *file = fopen(path, "rb");
    cddp_fsdp_stored stored[PARAMETERS] = {{.name = NULL}};
    for (size_t i = 0; i < PARAMETERS; i++) {
        const cddp_tensor shape = shape_of(i, NULL);
        stored[i] = (cddp_fsdp_stored){.name = names[i],
                                       .dim_count = 2,
                                       .sizes = {shape.sizes[0], shape.sizes[1]},
                                       .dtype = CDDP_F32};
    }
    const cddp_fsdp_source source = {.size = sizeof source,
                                     .stored = stored,
                                     .stored_count = PARAMETERS,
                                     .read = read_elements,
                                     .context = file};
    if (file == NULL) return cddp_error_set(e->err, CDDP_E_IO, "cannot read %s", path);
    const cddp_status status = cddp_fsdp_load(e->fsdp, &source, e->err);
    fclose(file);
    return status;
}

/* ---- what every rank runs ---- */

/* Of all ranks, for printing. */
static cddp_status average(cddp_group *group, float *value, cddp_error *err)
{
    cddp_work *work = NULL;
    const int64_t one = 1;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), value, 0, CDDP_F32, &one, 1);
    TRY(cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err));
    TRY(cddp_work_wait(work, 0, err));
    *value /= (float)cddp_group_size(group);
    return CDDP_OK;
}

typedef struct arguments {
    const char *path;
    bool loads;
} arguments;

static cddp_status train(encoder *e, cddp_group *group, const arguments *a)
{
    const cddp_fsdp_counts none = {.size = sizeof none};
    cddp_fsdp_counts counts = none;
    float loss = 0;
    if (a->loads) TRY(load(e, a->path));
    for (int k = 0; k < STEPS; k++) {
        TRY(train_step(e, &loss));
        if (k > 0 && k + 1 < STEPS) continue;
        TRY(average(group, &loss, e->err));
        if (e->rank == 0) printf("step %2d  loss %.4f\n", k + 1, loss);
    }
    TRY(cddp_fsdp_get_counts(e->fsdp, &counts, e->err));
    if (e->rank == 0)
        printf("gathers %llu  reductions %llu  full at most %llu bytes\n",
               (unsigned long long)counts.gathers, (unsigned long long)counts.reductions,
               (unsigned long long)counts.full_bytes_peak);
    return a->loads ? CDDP_OK : save(e, a->path);
}

static cddp_status program(cddp_context *context, void *argument, cddp_error *err)
{
    cddp_group *group = cddp_context_group(context);
    encoder *e = calloc(1, sizeof *e);
    if (e == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "no memory for the encoder");
    e->err = err;
    e->rank = cddp_group_rank(group);
    e->world = cddp_group_size(group);
    cddp_status status = wrap(e, group);
    if (status == CDDP_OK) status = train(e, group, argument);
    cddp_fsdp_destroy(e->fsdp);
    for (size_t i = 0; i < PARAMETERS; i++) cddp_grad_fini(&e->grads[i]);
    free(e);
    return status;
}

int main(int argc, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_init_options options = {.size = sizeof options,
                                       .backend = argc > 4 ? argv[4] : NULL,
                                       .prints_plain = true};
    const int count = argc > 1 ? atoi(argv[1]) : 0;
    const bool saves = argc > 3 && strcmp(argv[2], "save") == 0,
               loads = argc > 3 && strcmp(argv[2], "load") == 0;
    if (argc > 5 || count < 1 || BATCH % count != 0 || saves == loads) {
        fprintf(stderr, "usage: %s RANKS save|load FILE [BACKEND], RANKS a divisor of %d\n",
                argv[0], BATCH);
        return 2;
    }
    arguments a = {argv[3], loads};
    const cddp_status status = cddp_run_ranks((uint32_t)count, &options, program, &a, &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    return status != CDDP_OK;
}
