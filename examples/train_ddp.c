/* SPDX-License-Identifier: Apache-2.0 */
/* The classifier, trained data-parallel on W ranks: train_single.c plus DDP.
**
**     train_ddp                                    one rank, no transport
**     train_ddp 4 …/lib/cddp/cddp-gloo.so          four processes over Gloo (any backend module:
**                                                  its path says which)
**     train_ddp env …/lib/cddp/cddp-gloo.so        one rank of a job that somebody else starts, on
**                                                  any number of hosts: RANK, WORLD_SIZE,
**                                                  MASTER_ADDR and MASTER_PORT say which, as with
**                                                  torchrun; CDDP_STORE_SECRET, when set, is what
**                                                  ranks must know
**
** Every rank starts from different weights; DDP gives all of them rank 0's. Each computes the
** loss of its share of the batch, DDP averages gradients while backward still runs, and every rank
** takes the same step.
*/
#define _POSIX_C_SOURCE 200809L
#include "classifier.h"

#include <cddp/cddp.h>
#include <cddp/process.h>
#include <cddp/record.h>
#include <cddp/rendezvous.h>
#include <cddp/self.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct job {
    const cddp_backend *module; /* NULL: a world of one */
    char url[320];              /* where ranks meet */
    const char *secret;         /* the secret that ranks must know, or NULL */
} job;

typedef struct training {
    cddp_ddp *ddp;
    cddp_grad *grads;   /* (PARAMETERS) */
    cddp_status status; /* of the first mark_variable_ready that failed */
    cddp_error *err;
} training;

static void gradient_is_ready(void *context, size_t parameter)
{
    training *t = context;
    cddp_record_gradient(parameter, &t->grads[parameter].value);
    if (t->status == CDDP_OK) t->status = cddp_ddp_mark_variable_ready(t->ddp, parameter, t->err);
}

/* One step: forward and backward on this rank's share, then the optimizer on averaged gradients. */
static cddp_status train_step(training *t, classifier *model, const share *mine, double *loss)
{
    double *g[PARAMETERS];
    size_t count;
    const char *name;
    cddp_grad *grads = t->grads;
    cddp_record_step_begin(mine->step);
    cddp_record_zero_grad(true);
    cddp_status status = cddp_ddp_forward_begin(t->ddp, true, t->err);
    if (status == CDDP_OK) status = cddp_ddp_forward_end(t->ddp, NULL, t->err);
    for (size_t i = 0; status == CDDP_OK && i < PARAMETERS; i++) {
        int64_t n;
        double *p = classifier_parameter(model, i, &count, &name);
        n = (int64_t)count;
        cddp_tensor like = cddp_tensor_of(cddp_device_cpu(), p, 0, CDDP_F64, &n, 1);
        cddp_grad_drop(&grads[i]); /* zero_grad(set_to_none=True) */
        status = cddp_grad_define(&grads[i], &like, t->err);
        if (status == CDDP_OK) g[i] = (double *)grads[i].value.storage + grads[i].value.offset;
    }
    if (status != CDDP_OK) return status;
    *loss = classifier_loss_and_gradients(model, mine, g);
    if (t->status != CDDP_OK) return t->status;
    status = cddp_ddp_backward_end(t->ddp, t->err);
    cddp_record_update update = cddp_record_update_default();
    update.lr = 0.5;
    cddp_record_optimizer_step(&update);
    for (size_t i = 0; status == CDDP_OK && i < PARAMETERS; i++) {
        double *p = classifier_parameter(model, i, &count, &name);
        const double *average = (double *)grads[i].value.storage + grads[i].value.offset;
        for (size_t k = 0; k < count; k++) p[k] -= 0.5 * average[k];
        const int64_t n = (int64_t)count;
        const cddp_tensor updated = cddp_tensor_of(cddp_device_cpu(), p, 0, CDDP_F64, &n, 1);
        cddp_record_optimizer_touch(0, i, &grads[i].value);
        cddp_record_value(CDDP_WHAT_PARAMETER, CDDP_MOMENT_AFTER_STEP, i, &updated);
    }
    return status;
}

/* The mean of the ranks' losses, for printing. */
static cddp_status average(cddp_group *group, double *value, cddp_error *err)
{
    cddp_work *work = NULL;
    const int64_t one = 1;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), value, 0, CDDP_F64, &one, 1);
    cddp_status status = cddp_group_allreduce(group, &t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    *value /= cddp_group_size(group);
    return status;
}

static cddp_status train(cddp_group *group, cddp_error *err)
{
    classifier model;
    cddp_grad grads[PARAMETERS] = {{.kind = CDDP_GRAD_UNDEFINED}};
    cddp_parameter parameters[PARAMETERS];
    training t = {.grads = grads, .err = err};
    uint32_t rank = cddp_group_rank(group), world = cddp_group_size(group);
    classifier_init(&model, 1 + rank);
    for (size_t i = 0; i < PARAMETERS; i++) {
        size_t count;
        const char *name;
        double *p = classifier_parameter(&model, i, &count, &name);
        int64_t n = (int64_t)count;
        parameters[i] =
            (cddp_parameter){.name = name,
                             .grad = &grads[i],
                             .requires_grad = true,
                             .tensor = cddp_tensor_of(cddp_device_cpu(), p, 0, CDDP_F64, &n, 1)};
    }
    cddp_ddp_options options = cddp_ddp_options_default();
    options.parameters = parameters;
    options.parameter_count = PARAMETERS;
    options.group = group;
    /* gradients are born in their buckets: nothing is copied */
    options.gradient_as_bucket_view = true;
    cddp_status status = cddp_ddp_create(&options, &t.ddp, err);
    for (unsigned step = 0; status == CDDP_OK && step < STEPS; step++) {
        const share mine = {.step = step,
                            .first = rank,
                            .stride = world,
                            .context = &t,
                            .ready = gradient_is_ready};
        double loss = 0;
        status = train_step(&t, &model, &mine, &loss);
        if (status == CDDP_OK && step % 200 == 199) {
            status = average(group, &loss, err);
            if (rank == 0) printf("step %3u  loss %.9f\n", step + 1, loss);
        }
    }
    if (status == CDDP_OK && rank == 0)
        printf("accuracy %.3f  layer1.weight[0] %.9f  layer2.bias[0] %.9f\n",
               classifier_accuracy(&model), model.weight1[0], model.bias2[0]);
    cddp_ddp_destroy(t.ddp);
    for (size_t i = 0; i < PARAMETERS; i++) cddp_grad_fini(&grads[i]);
    return status;
}

static cddp_status rank_program(cddp_rank *rank, void *argument, cddp_error *err)
{
    const job *j = argument;
    uint32_t *members = calloc(rank->world_size, sizeof *members);
    cddp_rendezvous *rendezvous = NULL;
    cddp_group *group = NULL;
    cddp_status status = CDDP_OK;
    cddp_backend backend = j->module != NULL ? *j->module : *cddp_backend_self();
    const cddp_rendezvous_options meet = {.size = sizeof meet, .url = j->url, .secret = j->secret};
    if (members == NULL)
        return cddp_error_set(err, CDDP_E_NOMEM, "no memory for %u ranks", rank->world_size);
    if (j->module != NULL) status = cddp_rendezvous_open(&meet, &rendezvous, err);
    if (backend.self == NULL) backend.self = rendezvous;
    for (uint32_t i = 0; i < rank->world_size; i++) members[i] = i;
    cddp_group_options o = {.size = sizeof o, .backend = &backend, .rank = rank};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = "world",
                               .group_rank = rank->rank,
                               .group_size = rank->world_size,
                               .members = members};
    if (status == CDDP_OK) status = cddp_group_create(&o, &group, err);
    if (status == CDDP_OK) status = train(group, err);
    if (group != NULL) cddp_group_destroy(group);
    cddp_rendezvous_close(rendezvous);
    free(members);
    const cddp_status kept = cddp_record_close(status, err != NULL ? err->message : NULL,
                                               status == CDDP_OK ? err : NULL);
    return status != CDDP_OK ? status : kept;
}

/* A backend module exports one symbol; it stays loaded until the program ends. */
static const cddp_backend *load_backend(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    const cddp_plugin *plugin =
        library != NULL ? (const cddp_plugin *)dlsym(library, CDDP_PLUGIN_SYMBOL) : NULL;
    if (plugin == NULL || plugin->backends == NULL) {
        fprintf(stderr, "no backend in %s: %s\n", path,
                library == NULL ? dlerror() : "no " CDDP_PLUGIN_SYMBOL);
        return NULL;
    }
    return plugin->backends[0];
}

/* Prints what ranks print without a rank in front. */
static void pass_on(void *context, uint32_t rank, bool error, const char *line, size_t length)
{
    (void)context, (void)rank;
    fprintf(error ? stderr : stdout, "%.*s\n", (int)length, line);
}

static int launch(job *j, uint32_t world_size)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_rank_result *results = calloc(world_size, sizeof *results);
    cddp_process_world *world = NULL;
    int failed = 0;
    const cddp_process_options options = {.size = sizeof options,
                                          .world_size = world_size,
                                          .output = pass_on};
    cddp_status status = results == NULL ? cddp_error_set(&err, CDDP_E_NOMEM, "no memory")
                                         : cddp_process_world_open(&options, &world, &err);
    if (status == CDDP_OK)
        status = cddp_process_world_ops()->launch(world, rank_program, j, results, &err);
    if (status != CDDP_OK) fprintf(stderr, "cannot start %u ranks: %s\n", world_size, err.message);
    for (uint32_t r = 0; status == CDDP_OK && r < world_size; r++) {
        if (results[r].status == CDDP_OK && results[r].end == CDDP_RANK_RETURNED) continue;
        fprintf(stderr, "rank %u: %s\n", r, results[r].error.message);
        failed = 1;
    }
    cddp_process_world_close(world);
    free(results);
    return status != CDDP_OK || failed;
}

/* A whole number of the environment; -1 when it is missing or something else. */
static long number_of(const char *variable)
{
    const char *text = getenv(variable);
    char *end = NULL;
    long number = text != NULL ? strtol(text, &end, 10) : -1;
    return text != NULL && *text != '\0' && *end == '\0' ? number : -1;
}

/* This process is one rank; rank 0 is also where the others find each other. */
static int join(job *j)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_rendezvous_server *server = NULL;
    cddp_solo_world *world = NULL;
    const char *host = getenv("MASTER_ADDR"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    const long rank = number_of("RANK"), world_size = number_of("WORLD_SIZE");
    /* torchrun's agent may serve PyTorch's own store at that port. */
    const long port = number_of("MASTER_PORT") + (agent != NULL && strcmp(agent, "True") == 0);
    if (host == NULL || world_size < 1 || BATCH % world_size != 0 || rank < 0 ||
        rank >= world_size || port < 1 || port > 65535) {
        fprintf(stderr,
                "RANK, WORLD_SIZE (a divisor of %d), MASTER_ADDR and MASTER_PORT must say which "
                "rank this is\n",
                BATCH);
        return 2;
    }
    j->secret = getenv("CDDP_STORE_SECRET");
    snprintf(j->url, sizeof j->url, "tcp://%.255s:%ld", host, port);
    cddp_rank_result *results = calloc((size_t)world_size, sizeof *results);
    const cddp_rendezvous_server_options serve = {.size = sizeof serve,
                                                  .host = host,
                                                  .port = (uint16_t)port,
                                                  .secret = j->secret};
    const cddp_solo_options solo = {.size = sizeof solo,
                                    .rank = (uint32_t)rank,
                                    .world_size = (uint32_t)world_size};
    cddp_status status = results == NULL ? cddp_error_set(&err, CDDP_E_NOMEM, "no memory")
                         : rank == 0     ? cddp_rendezvous_server_open(&serve, &server, &err)
                                         : CDDP_OK;
    if (status == CDDP_OK) status = cddp_solo_world_open(&solo, &world, &err);
    if (status == CDDP_OK)
        status = cddp_solo_world_ops()->launch(world, rank_program, j, results, &err);
    if (status == CDDP_OK) {
        status = results[rank].status;
        err = results[rank].error;
    }
    if (status != CDDP_OK) fprintf(stderr, "rank %ld: %s\n", rank, err.message);
    cddp_solo_world_close(world);
    cddp_rendezvous_server_close(server);
    free(results);
    return status != CDDP_OK;
}

int main(int argc, char **argv)
{
    job j = {.module = NULL};
    char directory[256]; /* fits into url */
    const char *temporary = getenv("TMPDIR");
    if (argc == 3 && strcmp(argv[1], "env") == 0)
        return (j.module = load_backend(argv[2])) != NULL ? join(&j) : 3;
    int world_size = argc > 1 ? atoi(argv[1]) : 1;
    if (world_size < 1 || BATCH % world_size != 0 || (world_size > 1 && argc < 3)) {
        fprintf(stderr, "usage: %s [RANKS|env BACKEND.so], RANKS a divisor of %d\n", argv[0],
                BATCH);
        return 2;
    }
    if (argc > 2 && (j.module = load_backend(argv[2])) == NULL) return 3;
    const int length = snprintf(directory, sizeof directory, "%s/train-ddp-XXXXXX",
                                temporary != NULL && temporary[0] == '/' ? temporary : "/tmp");
    if (length >= (int)sizeof directory || mkdtemp(directory) == NULL) {
        perror(directory);
        return 3;
    }
    snprintf(j.url, sizeof j.url, "file://%s", directory);
    int code = launch(&j, (uint32_t)world_size);
    setenv("TRAIN_DDP_DIRECTORY", directory, 1); /* whatever characters it has */
    return system("rm -r \"$TRAIN_DDP_DIRECTORY\"") != 0 || code;
}
