/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and loads the module of a backend.
**
** Lifetime   a module stays loaded until the process ends: MPI and CUDA leave functions behind that
**            run then.
*/
#pragma once
#include "cddp/backend.h"

/* name: "gloo", an alias ("mpi"), or a path. *backend is a copy of the table. */
cddp_status cd_module_find(const char *name, cddp_backend *backend,
                           cddp_error *err) CDDP_MUST_CHECK;
