/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of trace_mutants.def as data, each with the function that corrupts the fixture. */
#pragma once
#include "tests/mutants/fixture.h"

#include <stddef.h>

typedef struct trace_mutant {
    const char *check_file; /* "once" */
    const char *name;
    int32_t rank, peer;
    const char *words;
    const char *what;
    fixture_edit_fn edit;
} trace_mutant;

extern const trace_mutant trace_mutants[];
extern const size_t trace_mutant_count;
