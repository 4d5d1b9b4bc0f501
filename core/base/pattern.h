/* SPDX-License-Identifier: Apache-2.0 */
/* A name with stars: "generator.*" against names of parameters and buffers. */
#pragma once
#include <stdbool.h>

/* '*' stands for any text, an empty one included. */
bool cd_pattern_matches(const char *pattern, const char *name);
