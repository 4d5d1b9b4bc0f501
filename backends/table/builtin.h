/* SPDX-License-Identifier: Apache-2.0 */
/* Which backends this build knows: compiled in, in a module beside the program, or absent and why.
**
** The rows are generated from the cddp_backend lines of backends/CMakeLists.txt, so that `list
** backends` and `doctor` cannot disagree with the build.
**
** Not here: opening them. Built-in ones are named by their headers, modules are loaded by the
** program (cli).
*/
#pragma once
#include "cddp/backend.h"

typedef struct cd_backend_row {
    const char *name;    /* "gloo" */
    const char *summary; /* one line */
    const char *module;  /* "cddp-gloo.so"; "" when compiled in or absent */
    const char *absent;  /* why it was not built; "" when it was */
    const char *alias;   /* a name it shares with others, "mpi"; or "" */
    const char *job;     /* the variable that its launcher gives to ranks, "PMI_RANK"; or "" */
} cd_backend_row;

extern const cd_backend_row cd_backend_rows[]; /* ends with a row of NULLs */
/* Where modules lie, relative to the directory of the program: "../lib/cddp". */
extern const char cd_backend_module_dir[];

/* NULL when no row has this name; an alias is no name. */
const cd_backend_row *cd_backend_row_find(const char *name);
/* What an alias means: among the rows that share it the one whose launcher started this process,
** else the first that was built, else the first; NULL when it is no alias. is_set tells whether a
** variable is in the environment. */
const cd_backend_row *cd_backend_row_of_alias(const char *alias,
                                              bool (*is_set)(const char *variable));
