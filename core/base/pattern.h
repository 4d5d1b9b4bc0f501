/* SPDX-License-Identifier: Apache-2.0 */
/* Matches names of parameters and buffers with a pattern such as "generator.*". */
#pragma once
#include <stdbool.h>

/* '*' stands for any text, an empty one included. */
bool cd_pattern_matches(const char *pattern, const char *name);
