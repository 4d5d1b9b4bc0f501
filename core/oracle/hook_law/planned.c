/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a hook's words. The tables here repeat docs/hooks.md, not the hooks. */
#include "core/oracle/hook_law/planned.h"

#include "core/base/real.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WORD_BYTES 256

/* The value of "key" in "key=value,…"; false when it is not given. */
static bool find_value(const char *options, const char *key, char value[WORD_BYTES])
{
    const size_t key_length = strlen(key);
    for (const char *at = options; at != NULL && *at != '\0';) {
        const size_t length = strcspn(at, ",");
        if (length > key_length && length < WORD_BYTES && at[key_length] == '=' &&
            memcmp(at, key, key_length) == 0) {
            memcpy(value, at + key_length + 1, length - key_length - 1);
            value[length - key_length - 1] = '\0';
            return true;
        }
        at += length + (at[length] == ',');
    }
    return false;
}

static double find_number(const char *options, const char *key, double otherwise)
{
    char value[WORD_BYTES];
    return find_value(options, key, value) ? cd_real_parse(value, NULL) : otherwise;
}

static uint64_t find_count(const char *options, const char *key, uint64_t otherwise)
{
    return (uint64_t)find_number(options, key, (double)otherwise);
}

static bool find_flag(const char *options, const char *key, bool otherwise)
{
    char value[WORD_BYTES];
    if (!find_value(options, key, value)) return otherwise;
    return strcmp(value, "true") == 0 || strcmp(value, "1") == 0;
}

/* "0:1/100:2": from iteration 100 on rank 2. */
static void read_schedule(const char *options, cd_planned_hook *h)
{
    char value[WORD_BYTES];
    if (!find_value(options, "rank_schedule", value)) return;
    for (char *at = value; *at != '\0' && h->step_count < CD_PLANNED_STEPS_MAX;) {
        char *end = NULL;
        cd_planned_step *step = &h->steps[h->step_count++];
        step->from = strtoull(at, &end, 10);
        if (*end != ':') return;
        step->rank = strtoull(end + 1, &end, 10);
        if (*end != '/') return;
        at = end + 1;
    }
}

static void read_low_rank(const char *options, cd_planned_hook *h)
{
    h->kind = CD_PLANNED_LOW_RANK;
    h->rank = find_count(options, "matrix_approximation_rank", 1);
    h->start = find_count(options, "start_powerSGD_iter", 1000);
    h->min_rate = find_number(options, "min_compression_rate", 2);
    h->epsilon = find_number(options, "orthogonalization_epsilon", 0);
    h->feedback_every = find_count(options, "feedback_every_n_iters", 1);
    h->has_feedback = find_flag(options, "use_error_feedback", true) &&
                      find_flag(options, "error_feedback", true);
    h->is_warm = find_flag(options, "warm_start", true);
    h->seed = find_count(options, "random_seed", 0);
    h->groups_shapes = find_flag(options, "batch_tensors_with_same_shape", false);
    read_schedule(options, h);
}

static void read_topk(const char *options, cd_planned_hook *h)
{
    h->kind = CD_PLANNED_TOPK;
    h->k = find_count(options, "k", 0);
    h->ratio = find_number(options, "ratio", 0.01);
    h->has_feedback = find_flag(options, "error_feedback", true);
}

static void read_local(const char *options, cd_planned_hook *h)
{
    h->kind = CD_PLANNED_LOCAL;
    h->start = find_count(options, "start_localSGD_iter", 100);
    h->block = find_flag(options, "post_local_gradient_allreduce", true)
                   ? find_count(options, "subgroup_size", 0)
                   : 0;
}

static void read_kind(const char *name, const char *options, cd_planned_hook *h)
{
    const bool is_batched = strcmp(name, "batched_powersgd") == 0;
    if (strcmp(name, "allreduce") == 0) {
        h->kind = CD_PLANNED_MEAN;
    } else if (strcmp(name, "reproducible") == 0) {
        h->kind = CD_PLANNED_MEAN;
        h->is_reproducible = true;
    } else if (strcmp(name, "fp16_compress") == 0 || strcmp(name, "bf16_compress") == 0) {
        h->kind = CD_PLANNED_MEAN;
        h->low = name[0] == 'f' ? CDDP_F16 : CDDP_BF16;
    } else if (strcmp(name, "noop") == 0) {
        h->kind = CD_PLANNED_NOTHING;
    } else if (is_batched || strcmp(name, "powersgd") == 0) {
        read_low_rank(options, h);
        h->is_batched = is_batched;
    } else if (strcmp(name, "topk") == 0) {
        read_topk(options, h);
    } else if (strcmp(name, "quantize_per_tensor") == 0) {
        h->kind = CD_PLANNED_CODES;
    } else if (strcmp(name, "quantize_per_channel") == 0) {
        h->kind = CD_PLANNED_CODES;
        h->row = find_count(options, "bucket_size", 512);
    } else if (strcmp(name, "post_local_sgd") == 0) {
        read_local(options, h);
    }
}

/* A wrapper casts, and the hook inside works on the copy (HK-05). */
static void read_wrapped(const cd_planned_words *words, cddp_dtype low, cd_planned_hook *h)
{
    read_kind(words->inner != NULL ? words->inner : "", words->options, h);
    h->lower = h->low != CDDP_DTYPE_COUNT ? h->low : low;
    h->low = low;
    h->is_wrapped = true;
}

void cd_planned_hook_read(const cd_planned_words *words, cd_planned_hook *hook)
{
    *hook = (cd_planned_hook){.low = CDDP_DTYPE_COUNT, .feedback_every = 1};
    strncpy(hook->name, words->name, sizeof hook->name - 1);
    if (words->inner != NULL) strncpy(hook->inner, words->inner, sizeof hook->inner - 1);
    if (strcmp(words->name, "fp16_compress_wrapper") == 0)
        read_wrapped(words, CDDP_F16, hook);
    else if (strcmp(words->name, "bf16_compress_wrapper") == 0)
        read_wrapped(words, CDDP_BF16, hook);
    else
        read_kind(words->name, words->options, hook);
    if (!hook->is_wrapped) hook->lower = hook->low;
    if (hook->feedback_every == 0) hook->feedback_every = 1;
}

void cd_planned_hook_cast(cd_planned_hook *hook, cddp_dtype wire)
{
    hook->kind = CD_PLANNED_MEAN;
    hook->low = hook->lower = wire;
    hook->divides_after = true;
}

void cd_planned_hook_follow(cd_planned_hook *hook, const char *followed, const char *options)
{
    read_kind(followed, options, hook);
    hook->lower = hook->low;
    hook->is_followed = true;
    if (hook->feedback_every == 0) hook->feedback_every = 1;
}

uint64_t cd_planned_rank(const cd_planned_hook *hook, uint64_t iteration)
{
    uint64_t rank = hook->rank;
    for (uint32_t i = 0; i < hook->step_count; i++)
        if (hook->steps[i].from <= iteration) rank = hook->steps[i].rank;
    return rank;
}

int64_t cd_planned_k(const cd_planned_hook *hook, int64_t numel)
{
    const double asked = hook->k != 0 ? (double)hook->k : floor(hook->ratio * (double)numel);
    if (numel == 0 || asked >= (double)numel) return numel;
    return asked < 1 ? 1 : (int64_t)asked;
}

bool cd_planned_compresses(const cd_planned_hook *hook, int64_t rows, int64_t columns, int64_t rank)
{
    return rows > 0 && columns > 0 &&
           (double)(rows + columns) * (double)rank * hook->min_rate <
               (double)rows * (double)columns;
}
