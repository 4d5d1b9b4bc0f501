/* SPDX-License-Identifier: Apache-2.0 */
/* A data-parallel program that communicates without cddp, here by shared memory, and its mistakes:
**
**     own_means RECORDING MISTAKE
**
** Three ranks train w and b. "mean" averages gradients. "local…" averages parameters behind every
** second step (local SGD): "local" shows them behind the average alone, "local_twice" before it as
** well. Of "serves…" rank 0 makes each step, and of "shares…" each rank that of its parameter; the
** others pass over it, and get what came of it. "serves_itself": rank 0 takes its own gradients.
** "shares_said": every rank says what the step took.
** "adds_up…": two backwards before each reduction; rank 1 clears in between ("adds_up_cleared"),
** or rank 2 has one of them in step 3 ("adds_up_less"). "adds_up_weighted" halves what the first
** one left, and says so. "adds_up_silently…" does not say where the second one begins. Of
** "shared_weight" one backward shows w twice. "bad_batch": what step 3 reduced is dropped. Of
** "leaves…" rank 1 leaves before the others, and whoever started them ends those: by exit in step 3
** (with code 3: "leaves_3"; having shown its gradients: "leaves_last"), or since it has fewer steps
** ("leaves_early"). Of "dies_behind" it dies when all of them are done.
*/
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <cddp/cddp.h>
#include <cddp/record.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, PARAMETERS = 2, WEIGHTS = 40, BIASES = 4, STEPS = 6 };

/* What the ranks share. */
typedef struct board {
    pthread_barrier_t all;
    double values[RANKS][WEIGHTS];
} board;

typedef struct training {
    const char *mistake;
    board *shared;
    uint32_t rank;
    double values[PARAMETERS][WEIGHTS], grads[PARAMETERS][WEIGHTS];
    cddp_tensor tensors[PARAMETERS], gradients[PARAMETERS];
} training;

static bool makes(const training *t, const char *mistake)
{
    return strcmp(t->mistake, mistake) == 0;
}

static int64_t size_of(size_t parameter) { return parameter == 0 ? WEIGHTS : BIASES; }

enum { MEAN = -1 };

/* Everybody's mean in the order of the ranks, or what that rank has. */
static void share(training *t, double *x, int64_t count, int from)
{
    memcpy(t->shared->values[t->rank], x, (size_t)count * sizeof *x);
    pthread_barrier_wait(&t->shared->all);
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int r = 0; r < RANKS; r++) sum += t->shared->values[r][i];
        x[i] = from != MEAN ? t->shared->values[from][i] : sum / RANKS;
    }
    pthread_barrier_wait(&t->shared->all);
}

static void show(const training *t)
{
    for (size_t p = 0; p < PARAMETERS; p++)
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, p, &t->tensors[p]);
}

/* "local_half": b is never averaged. */
static void average(training *t)
{
    for (size_t p = 0; p < (makes(t, "local_half") ? 1 : PARAMETERS); p++)
        share(t, t->values[p], size_of(p), MEAN);
    show(t);
}

static void backward(training *t, int step)
{
    for (size_t p = 0; p < PARAMETERS; p++) {
        double *g = t->grads[p];
        for (int64_t i = 0; i < size_of(p); i++)
            g[i] += 0.125 * (double)((step * 5 + (int)t->rank * 3 + i) % 7) + t->values[p][i];
        cddp_record_gradient(p, &t->gradients[p]);
        if (p == 0 && makes(t, "shared_weight")) cddp_record_gradient(p, &t->gradients[p]);
    }
}

static bool begins_with(const training *t, const char *words)
{
    return strncmp(t->mistake, words, strlen(words)) == 0;
}

/* Who makes the step of a parameter; MEAN: every rank does. */
static int server_of(const training *t, size_t parameter)
{
    return begins_with(t, "serves") ? 0 : begins_with(t, "shares") ? (int)parameter : MEAN;
}

static void reduce(training *t, int step)
{
    const bool serves = begins_with(t, "serves"), adds = begins_with(t, "adds_up");
    if (!makes(t, "mean") && !adds && !makes(t, "bad_batch") && !makes(t, "shared_weight") &&
        !begins_with(t, "leaves") && !begins_with(t, "dies") &&
        (!makes(t, "forgets") || step == 3) && !serves && !begins_with(t, "shares"))
        return;
    for (size_t p = 0; p < PARAMETERS && !makes(t, "serves_itself"); p++) {
        share(t, t->grads[p], size_of(p), MEAN);
        if (!serves || t->rank == 0) cddp_record_reduced(p, &t->gradients[p]);
    }
}

static void update(training *t)
{
    cddp_record_update how = cddp_record_update_default();
    how.lr = 0.1;
    cddp_record_optimizer_step(&how);
    for (size_t p = 0; p < PARAMETERS; p++) {
        const int server = server_of(t, p);
        const bool steps = server == MEAN || server == (int)t->rank;
        for (int64_t i = 0; i < size_of(p) && steps; i++)
            t->values[p][i] -= how.lr * t->grads[p][i];
        if (server != MEAN) share(t, t->values[p], size_of(p), server);
        cddp_record_optimizer_touch(0, p,
                                    steps || makes(t, "shares_said") ? &t->gradients[p] : NULL);
    }
}

/* Between two backwards that add up. */
static bool clears(const training *t)
{
    return makes(t, "adds_up_cleared") || makes(t, "adds_up_silently_cleared");
}

static void weight(training *t)
{
    for (size_t p = 0; p < PARAMETERS; p++) {
        for (int64_t i = 0; i < size_of(p); i++) t->grads[p][i] *= 0.5;
        cddp_record_gradient(p, &t->gradients[p]);
    }
}

static void leave(const training *t, int step)
{
    const bool is_last = makes(t, "leaves_last"); /* it has shown as much as the others */
    if (t->rank != 1 || step != 3 || makes(t, "leaves_early") || !begins_with(t, "leaves")) return;
    for (size_t p = 0; p < PARAMETERS && is_last; p++) cddp_record_gradient(p, &t->gradients[p]);
    exit(makes(t, "leaves_3") ? 3 : 0);
}

static int steps_of(const training *t)
{
    return t->rank == 1 && makes(t, "leaves_early") ? STEPS - 2 : STEPS;
}

static void train_step(training *t, int step)
{
    const bool is_local = begins_with(t, "local");
    const bool is_averaged = is_local && step % 2 == 1;
    cddp_record_step_begin((uint64_t)step);
    memset(t->grads, 0, sizeof t->grads);
    cddp_record_zero_grad(false);
    leave(t, step);
    backward(t, step);
    if (begins_with(t, "adds_up") && !(makes(t, "adds_up_less") && t->rank == 2 && step == 3)) {
        if (clears(t) && t->rank == 1 && step == 3) memset(t->grads, 0, sizeof t->grads);
        if (makes(t, "adds_up_weighted")) weight(t);
        if (!begins_with(t, "adds_up_silently")) cddp_record_micro_step(1);
        backward(t, step);
    }
    reduce(t, step);
    if (makes(t, "bad_batch") && step == 3) return;
    update(t);
    if (!is_averaged || makes(t, "local_twice")) show(t);
    if (is_averaged) average(t);
}

static cddp_status train(training *t, const char *path, cddp_error *err)
{
    cddp_record_options options = cddp_record_options_default();
    options.rank = t->rank;
    options.world_size = RANKS;
    const cddp_status status = cddp_record_open(path, &options, err);
    if (status != CDDP_OK) return status;
    for (size_t p = 0; p < PARAMETERS; p++) {
        const int64_t n = size_of(p);
        for (int64_t i = 0; i < n; i++) t->values[p][i] = 0.5;
        t->tensors[p] = cddp_tensor_of(cddp_device_cpu(), t->values[p], 0, CDDP_F64, &n, 1);
        t->gradients[p] = cddp_tensor_of(cddp_device_cpu(), t->grads[p], 0, CDDP_F64, &n, 1);
        cddp_record_parameter(p, p == 0 ? "w" : "b", &t->tensors[p]);
    }
    cddp_record_parameters_end();
    for (size_t p = 0; p < PARAMETERS; p++)
        cddp_record_storage(p, &t->tensors[p], &t->gradients[p]);
    for (int step = 0; step < steps_of(t); step++) train_step(t, step);
    if (makes(t, "never_broadcasts")) {
        for (size_t p = 0; p < PARAMETERS; p++) share(t, t->values[p], size_of(p), 0);
        show(t);
    }
    cddp_record_storage_end();
    if (makes(t, "dies_behind") && t->rank == 1) raise(SIGKILL);
    return cddp_record_close(CDDP_OK, NULL, err);
}

static int run_rank(uint32_t rank, board *shared, char **argv)
{
    cddp_error err = CDDP_ERROR_INIT;
    training t = {.mistake = argv[2], .shared = shared, .rank = rank};
    const cddp_status status = train(&t, argv[1], &err);
    if (status != CDDP_OK) fprintf(stderr, "%s\n", err.message);
    return status != CDDP_OK;
}

/* Ends the others as one of them leaves, as mpirun does. */
static int await(const pid_t *ranks, bool ends_all)
{
    int code, failed = 0;
    for (pid_t first = wait(&code); first > 0; first = wait(&code)) {
        failed |= code != 0;
        for (int r = 0; r < RANKS && ends_all; r++)
            if (ranks[r] != first) kill(ranks[r], SIGTERM);
        ends_all = false;
    }
    return failed;
}

int main(int argc, char **argv)
{
    board *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attribute;
    pid_t ranks[RANKS];
    if (argc != 3 || shared == MAP_FAILED) {
        fprintf(stderr, "usage: %s RECORDING MISTAKE\n", argv[0]);
        return 2;
    }
    pthread_barrierattr_init(&attribute);
    pthread_barrierattr_setpshared(&attribute, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->all, &attribute, RANKS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        ranks[rank] = fork();
        if (ranks[rank] == 0) return run_rank(rank, shared, argv);
    }
    return await(ranks, strncmp(argv[2], "leaves", 6) == 0);
}
