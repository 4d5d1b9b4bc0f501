/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of this build: compiled in, in a module beside the program, or absent with the
** reason.
**
** The rows are generated from the cddp_backend lines of backends/CMakeLists.txt, so that `list
** backends` and `doctor` cannot disagree with the build.
**
** Not here: opening them. Headers name the built-in ones; the program (cli) loads modules.
*/
#pragma once
#include "cddp/backend.h"

typedef struct cd_backend_row {
    const char *name;    /* "gloo" */
    const char *summary; /* one line */
    const char *module;  /* "cddp-gloo.so"; "" when compiled in or absent */
    const char *absent;  /* why it was not built; "" when it was */
    const char *alias;   /* an alias that several backends share, "mpi"; or "" */
    const char *job;     /* the variable that its launcher sets for ranks, "PMI_RANK"; or "" */
} cd_backend_row;

extern const cd_backend_row cd_backend_rows[]; /* ends with a row of NULLs */
/* The directory of modules, relative to that of the program: "../lib/cddp". */
extern const char cd_backend_module_dir[];

/* NULL when no row has this name; aliases are not looked up. */
const cd_backend_row *cd_backend_row_find(const char *name);
/* Resolves an alias: the row whose launcher started this process, else the first that was built,
** else the first; NULL when no row has this alias. is_set says whether a variable is in the
** environment. */
const cd_backend_row *cd_backend_row_of_alias(const char *alias,
                                              bool (*is_set)(const char *variable));
