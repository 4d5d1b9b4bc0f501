/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/decided_hook.h"

#include "core/base/real.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *hook_of_word(int64_t word)
{
    switch (word) {
    case CDDP_COMM_HOOK_FP16:
        return "fp16_compress";
    case CDDP_COMM_HOOK_BF16:
        return "bf16_compress";
    case CDDP_COMM_HOOK_POWER_SGD:
        return "powersgd";
    case CDDP_COMM_HOOK_BATCHED_POWER_SGD:
        return "batched_powersgd";
    default:
        return NULL;
    }
}

static void set_name(cd_decided_hook *hook, const char *name, size_t length)
{
    snprintf(hook->name, sizeof hook->name, "%.*s", (int)length, name);
}

/* "NAME" or "NAME:options", where NAME may be a word of Accelerate's. */
static void read_setting(cd_decided_hook *hook, const char *setting)
{
    static const struct {
        const char *word;
        int64_t choice;
    } words[] = {{"no", CDDP_COMM_HOOK_NO},
                 {"fp16", CDDP_COMM_HOOK_FP16},
                 {"bf16", CDDP_COMM_HOOK_BF16},
                 {"power_sgd", CDDP_COMM_HOOK_POWER_SGD},
                 {"batched_power_sgd", CDDP_COMM_HOOK_BATCHED_POWER_SGD}};
    const char *colon = strchr(setting, ':');
    set_name(hook, setting, colon != NULL ? (size_t)(colon - setting) : strlen(setting));
    hook->options = colon != NULL && colon[1] != '\0' ? colon + 1 : NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(hook->name, words[i].word) != 0) continue;
        const char *name = hook_of_word(words[i].choice);
        set_name(hook, name != NULL ? name : "", name != NULL ? strlen(name) : 0);
        return;
    }
}

void cd_decided_hook_read(cd_decided_hook *hook, const cddp_plan_settings *settings)
{
    const cddp_plan_hook *planned = &settings->hook;
    *hook = (cd_decided_hook){.name = ""};
    if (settings->ddp.comm_hook != NULL) {
        read_setting(hook, settings->ddp.comm_hook);
    } else if (planned->comm_hook != CDDP_COMM_HOOK_NO) {
        const char *word = hook_of_word(planned->comm_hook);
        const char *wrapper =
            planned->comm_wrapper == CDDP_COMM_WRAPPER_FP16   ? "fp16_compress_wrapper"
            : planned->comm_wrapper == CDDP_COMM_WRAPPER_BF16 ? "bf16_compress_wrapper"
                                                              : NULL;
        const char *outer = wrapper != NULL ? wrapper : word;
        set_name(hook, outer, strlen(outer));
        hook->inner = wrapper != NULL ? word : NULL;
        hook->options = planned->comm_state_option;
    } else if (planned->name != NULL) {
        set_name(hook, planned->name, strlen(planned->name));
        hook->inner = planned->inner;
        hook->options = planned->options;
    }
}

bool cd_decided_hook_next(const cd_decided_hook *hook, const char **cursor,
                          cd_decided_option *option)
{
    const char *at = *cursor != NULL ? *cursor : hook->options;
    if (at == NULL || *at == '\0') return false;
    const size_t length = strcspn(at, ","), key = strcspn(at, "=,");
    const size_t value = key < length ? length - key - 1 : 0;
    snprintf(option->key, sizeof option->key, "%.*s", (int)key, at);
    snprintf(option->value, sizeof option->value, "%.*s", (int)value, at + (length - value));
    *cursor = at + length + (at[length] == ',');
    return true;
}

bool cd_decided_option_read(const cd_decided_option *option, double *number)
{
    char *end;
    if (strcmp(option->value, "true") == 0 || strcmp(option->value, "false") == 0) {
        *number = option->value[0] == 't';
        return true;
    }
    *number = cd_real_parse(option->value, &end);
    return end != option->value && *end == '\0';
}

double cd_decided_hook_get(const cd_decided_hook *hook, const char *key, double otherwise)
{
    const char *cursor = NULL;
    cd_decided_option option;
    double number;
    while (cd_decided_hook_next(hook, &cursor, &option)) {
        if (strcmp(option.key, key) == 0 && cd_decided_option_read(&option, &number)) return number;
    }
    return otherwise;
}

/* What the plan's documentation says of the hooks of this tree; a plugin's is unknown. */
static const struct hook_row {
    const char *hook;
    cd_decided_average average;
    const char *start; /* option: how many reductions are those of the allreduce hook */
    double start_default;
    cddp_dtype wire; /* that it casts buckets to; CDDP_DTYPE_COUNT: none */
} rows[] = {{"", CD_AVERAGE_ALL, NULL, 0, CDDP_DTYPE_COUNT},
            {"allreduce", CD_AVERAGE_ALL, NULL, 0, CDDP_DTYPE_COUNT},
            {"noop", CD_AVERAGE_NONE, NULL, 0, CDDP_DTYPE_COUNT},
            {"fp16_compress", CD_AVERAGE_ALL, NULL, 0, CDDP_F16},
            {"bf16_compress", CD_AVERAGE_ALL, NULL, 0, CDDP_BF16},
            {"fp16_compress_wrapper", CD_AVERAGE_UNKNOWN, NULL, 0, CDDP_F16},
            {"bf16_compress_wrapper", CD_AVERAGE_UNKNOWN, NULL, 0, CDDP_BF16},
            {"reproducible", CD_AVERAGE_ALL, NULL, 0, CDDP_DTYPE_COUNT},
            {"powersgd", CD_AVERAGE_ALL, "start_powerSGD_iter", 1000, CDDP_DTYPE_COUNT},
            {"batched_powersgd", CD_AVERAGE_ALL, "start_powerSGD_iter", 1000, CDDP_DTYPE_COUNT},
            {"topk", CD_AVERAGE_ALL, NULL, 0, CDDP_DTYPE_COUNT},
            {"quantize_per_tensor", CD_AVERAGE_ALL, NULL, 0, CDDP_DTYPE_COUNT},
            {"quantize_per_channel", CD_AVERAGE_ALL, NULL, 0, CDDP_DTYPE_COUNT},
            {"post_local_sgd", CD_AVERAGE_BLOCKS, "start_localSGD_iter", 100, CDDP_DTYPE_COUNT}};

static const struct hook_row *find_row(const char *hook)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].hook, hook) == 0) return &rows[i];
    }
    return NULL;
}

uint64_t cd_decided_hook_start(const cd_decided_hook *hook)
{
    const struct hook_row *row = find_row(hook->name);
    return row != NULL && row->start != NULL && hook->inner == NULL
               ? (uint64_t)cd_decided_hook_get(hook, row->start, row->start_default)
               : 0;
}

bool cd_decided_hook_is_known(const cd_decided_hook *hook)
{
    return find_row(hook->name) != NULL && (hook->inner == NULL || find_row(hook->inner) != NULL);
}

bool cd_decided_hook_is_exact(const cd_decided_hook *hook)
{
    static const char *const exact[] = {"", "allreduce", "fp16_compress", "bf16_compress",
                                        "reproducible"};
    bool is_exact = false;
    for (size_t i = 0; i < sizeof exact / sizeof exact[0]; i++)
        is_exact |= strcmp(hook->name, exact[i]) == 0;
    return is_exact && hook->inner == NULL;
}

bool cd_decided_hook_wire(const cd_decided_hook *hook, cddp_dtype *wire)
{
    const struct hook_row *row = find_row(hook->name),
                          *inner = hook->inner != NULL ? find_row(hook->inner) : NULL;
    if (row == NULL || (hook->inner != NULL && inner == NULL)) return false;
    *wire = inner != NULL && inner->wire != CDDP_DTYPE_COUNT ? inner->wire : row->wire;
    return true;
}

cd_decided_average cd_decided_hook_average(const cd_decided_hook *hook)
{
    const struct hook_row *row = find_row(hook->inner != NULL ? hook->inner : hook->name);
    if (row == NULL || (hook->inner != NULL && row->average != CD_AVERAGE_ALL))
        return CD_AVERAGE_UNKNOWN;
    if (row->average == CD_AVERAGE_BLOCKS &&
        cd_decided_hook_get(hook, "post_local_gradient_allreduce", 1) == 0)
        return CD_AVERAGE_NONE;
    return row->average;
}
