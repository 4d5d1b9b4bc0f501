/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of parameters, as benches measure them: how many elements each has. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define BENCH_PARAMETERS_MAX 1024

typedef struct bench_list {
    const char *name;
    size_t count;
    int64_t numel[BENCH_PARAMETERS_MAX];
} bench_list;

/* "resnet50", "tiny", "mlp", "gpt2": NULL when there is no such list. Returns borrowed for ever. */
const bench_list *bench_list_find(const char *name);
