/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a file of golden numbers, and the formula that its inputs come from (common.py). */
#pragma once
#include "tests/support/test.h"

#include "cddp/tensor.h"

/* The line that starts with `key`: the text behind it, or NULL. Borrowed until the next call. */
const char *golden_text(const char *path, const char *key);
/* Compares every element with the numbers of the line; fails naming key and element. */
void assert_golden(const char *path, const char *key, const cddp_tensor *t);

double pattern(int64_t index, int64_t salt);
void fill_pattern(const cddp_tensor *t, int64_t salt, double divisor);
void fill_classes(const cddp_tensor *t, int64_t count, int64_t factor, int64_t start);
