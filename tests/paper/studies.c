/* SPDX-License-Identifier: Apache-2.0 */
/* Which scenario, changed how. Nothing here knows what is expected. */
#include "tests/paper/studies.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETS_MAX 16

typedef struct sets {
    char texts[SETS_MAX][2048];
    const char *list[SETS_MAX + 1];
    int count;
} sets;

static void add(sets *s, const char *format, ...) CDDP_PRINTF(2, 3);
static void add(sets *s, const char *format, ...)
{
    va_list arguments;
    CD_ASSERT(s->count < SETS_MAX);
    va_start(arguments, format);
    vsnprintf(s->texts[s->count], sizeof s->texts[0], format, arguments);
    va_end(arguments);
    s->list[s->count] = s->texts[s->count];
    s->list[++s->count] = NULL;
}

/* A first bucket of 1 MiB and others of cap_mb, as DDP of that time made them. */
static void add_caps(sets *s, double cap_mb)
{
    if (cap_mb == 0)
        add(s, "ddp.bucket_cap_mb=1000000");
    else
        add(s, "ddp.bucket_cap_mb_list=1,%.6f", cap_mb);
}

double study_overlap_ms(int local, double cap_mb)
{
    sets s = {.count = 0};
    /* 119.6 and 272.5 ms, for each of 161 tensors */
    add(&s, "train.backward_us=%d", local == 0 ? 743 : 1693);
    add_caps(&s, cap_mb);
    return paper_run("overlap_two_ranks", s.list).iteration_ms;
}

double study_window_ms(unsigned window, double local_ms)
{
    sets s = {.count = 0};
    add(&s, "train.micro_steps=%u", window);
    add(&s, "train.backward_us=%.0f", local_ms * 1000);
    return paper_run("no_sync_amortised", s.list).iteration_ms / window;
}

/* PyTorch's example of a reducer in Python fills buckets in the order of the forward, each up to
** 2^20 x elements and never beyond. Ours are given the same contents: they are filled in the order
** of the backward, and a cap that is the exact size closes a bucket exactly there. */
void study_print_python_buckets(unsigned x, char *list, size_t bytes)
{
    const cd_prng prng = cd_prng_seed(1);
    const cd_model_options options = {.name = "resnet",
                                      .options = "depth=50",
                                      .dtype = CDDP_F32,
                                      .device = cddp_device_shape(),
                                      .prng = &prng};
    cd_model *model = NULL;
    int64_t sizes[256], limit = (int64_t)x << 20;
    int count = 0;
    if (cd_model_create(&options, &model, NULL) != CDDP_OK) exit(EXIT_FAILURE);
    for (uint32_t i = 0; i < model->module->parameter_count; i++) {
        int64_t numel = cddp_tensor_numel(&model->module->parameters[i].tensor);
        if (count > 0 && sizes[count - 1] + numel <= limit)
            sizes[count - 1] += numel;
        else
            sizes[count++] = numel;
    }
    cd_model_destroy(model);
    list[0] = '\0';
    for (int i = count; i-- > 0;) {
        size_t used = strlen(list); /* a multiple of 2^-18: these digits are all of it */
        snprintf(list + used, bytes - used, "%s%.18f", used > 0 ? "," : "",
                 (double)sizes[i] * 4 / 1048576);
    }
}

static void add_python_buckets(sets *s, unsigned x)
{
    char list[1024];
    study_print_python_buckets(x, list, sizeof list);
    add(s, "ddp.bucket_cap_mb_list=%s", list);
}

double study_sweep_ms(study_reducer reducer, unsigned x)
{
    const double forward_ms = 210.4;
    sets s = {.count = 0};
    if (reducer == STUDY_DDP)
        add_caps(&s, x);
    else if (reducer == STUDY_PYTHON_ASYNC)
        add_python_buckets(&s, x);
    else
        add_caps(&s, 0); /* after the backward: as one bucket */
    return paper_run("gloo_bucket_sweep", s.list).iteration_ms - forward_ms;
}

double study_gpus_ms(int model, unsigned ranks, double cap_mb)
{
    const double alone_ms = model == 0 ? 97 : 162, late = 1.027; /* of the slowest rank */
    sets s = {.count = 0};
    add(&s, "world.size=%u", ranks);
    add(&s, "model.options=depth=%d", model == 0 ? 50 : 101);
    add(&s, "train.forward_us=%.0f", alone_ms * 310.8);
    add(&s, "train.backward_us=%.0f", alone_ms * 713.9); /* with what DDP adds on one GPU */
    add(&s, "train.forward_us@0=%.0f", alone_ms * (310.8 + (ranks > 1 ? 1000 * (late - 1) : 0)));
    add_caps(&s, cap_mb);
    return paper_run("nvlink_and_infiniband", s.list).iteration_ms;
}

static void add_bert(sets *s)
{
    add(s, "model.name=bert");
    add(s, "model.options=layers=24,width=1024");
    add(s, "train.forward_us=342000");
    add(s, "train.backward_us=798000");
}

/* The differences from NCCL beside the bandwidth: PyTorch's queue in place of a kernel's launch,
** TCP in place of NVLink inside a server, no proxy between kernel and card, and a bucket that
** crosses PCIe 3.0 to the host and back, at 12 GB/s each way.
*/
static void add_gloo(sets *s)
{
    add(s, "network.intra_link=loopback_tcp");
    add(s, "network.intra_latency_us=10");
    add(s, "network.launch_us=48");
    add(s, "network.overhead_us=0");
    add(s, "train.pass_us_per_mb=83.3");
}

double study_cluster_ms(const study_cluster *cluster)
{
    sets s = {.count = 0};
    add(&s, "world.size=%u", cluster->ranks);
    add(&s, "train.micro_steps=%u", cluster->micro_steps);
    add(&s, "network.gb_per_s=%s", cluster->backend == STUDY_NCCL ? "2.75" : "1.02");
    if (cluster->backend == STUDY_GLOO) add_gloo(&s);
    if (cluster->model == STUDY_BERT) add_bert(&s);
    if (cluster->cap_mb == 0)
        add(&s, "ddp.bucket_cap_mb=0.000001");
    else if (cluster->cap_mb >= 1e5)
        add_caps(&s, 0);
    else
        add_caps(&s, cluster->cap_mb);
    return paper_run("four_servers_of_eight", s.list).iteration_ms / cluster->micro_steps;
}

double study_gain_percent(study_backend backend, study_model model)
{
    study_cluster c = {backend, model, 32, 1, 25};
    double overlapped = study_cluster_ms(&c);
    c.cap_mb = 1e5;
    return 100 * (1 - overlapped / study_cluster_ms(&c));
}

double study_ring_s(unsigned ranks)
{
    sets s = {.count = 0};
    add(&s, "world.size=%u", ranks);
    return paper_run("ring_of_100_mib", s.list).iteration_ms / 1000;
}

double study_pcie_ms(const char *algorithm, unsigned ranks, unsigned numel)
{
    sets s = {.count = 0};
    add(&s, "world.size=%u", ranks);
    add(&s, "model.options=count=1,numel=%u", numel);
    add(&s, "network.algorithm=%s", algorithm);
    if (strcmp(algorithm, "hfreduce") != 0) add(&s, "network.host_gb_per_s=0");
    return paper_run("reduce_on_hosts", s.list).iteration_ms;
}

double study_turns_ms(study_backend backend, study_model model, unsigned groups)
{
    sets s = {.count = 0};
    add(&s, "world.backend=rr:%u:sim", groups);
    add(&s, "network.connection_gb_per_s=%s", backend == STUDY_NCCL ? "2.75" : "1.02");
    if (backend == STUDY_GLOO) add_gloo(&s);
    add_caps(&s, 25);
    if (model == STUDY_BERT) add_bert(&s);
    return paper_run("groups_in_turn", s.list).iteration_ms;
}

static const char resnet18[] =
    "w0:64x3x3x3;v1:64;v2:64;w3:64x64x3x3;v4:64;v5:64;w6:64x64x3x3;v7:64;v8:64;w9:64x64x3x3;v10:64;"
    "v11:64;"
    "w12:64x64x3x3;v13:64;v14:64;w15:128x64x3x3;v16:128;v17:128;w18:128x128x3x3;v19:128;v20:128;"
    "w21:128x64x1x1;v22:128;v23:128;w24:128x128x3x3;v25:128;v26:128;w27:128x128x3x3;v28:128;v29:"
    "128;"
    "w30:256x128x3x3;v31:256;v32:256;w33:256x256x3x3;v34:256;v35:256;w36:256x128x1x1;v37:256;v38:"
    "256;"
    "w39:256x256x3x3;v40:256;v41:256;w42:256x256x3x3;v43:256;v44:256;w45:512x256x3x3;v46:512;v47:"
    "512;"
    "w48:512x512x3x3;v49:512;v50:512;w51:512x256x1x1;v52:512;v53:512;w54:512x512x3x3;v55:512;v56:"
    "512;"
    "w57:512x512x3x3;v58:512;v59:512;w60:10x512;v61:10";
static const char lstm[] = "encoder:28869x650;i0:2600x650;h0:2600x650;bi0:2600;bh0:2600;i1:"
                           "2600x650;h1:2600x650;bi1:2600;bh1:2600;"
                           "i2:2600x650;h2:2600x650;bi2:2600;bh2:2600;decoder:28869";

unsigned long long study_powersgd_bytes(study_net net, unsigned rank)
{
    sets s = {.count = 0};
    /* one rank's bytes are every rank's; and these gradients are numbers */
    add(&s, "world.backend=self");
    add(&s, "model.options=list=%s", net == STUDY_LSTM ? lstm : resnet18);
    if (rank == 0) {
        add(&s, "hook.name=allreduce");
        add(&s, "hook.options=");
    } else {
        add(&s, "hook.options=matrix_approximation_rank=%u,start_powerSGD_iter=2", rank);
    }
    return paper_run("powersgd_bytes", s.list).bytes;
}
