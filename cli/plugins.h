/* SPDX-License-Identifier: Apache-2.0 */
/* Shared objects: plugins that the command line names, and the modules of in-tree backends.
**
** Lifetime   what a shared object brings lives until cd_plugins_close; registries that use it end
**            before.
** Errors     a file that cannot be loaded or exports no plugin is named, with the loader's reason.
*/
#pragma once
#include "cli/command.h"

/* Loads every --plugin into the registry. */
cddp_status cd_plugins_open(cd_cli *cli, cd_plugins **plugins, cddp_error *err) CDDP_MUST_CHECK;
void cd_plugins_close(cd_plugins *plugins); /* accepts NULL */

/* The name of the backend that a name means: an alias ("mpi") stands for one of several. Returns
** borrowed: name itself, or static. */
const char *cd_plugins_backend_name(const cd_cli *cli, const char *name);
/* Sees to it that a backend of this name can be opened: loads its module into the registry when it
** has one. The backends that a composition names ("rr:3:gloo") are seen to one by one. CDDP_E_ARG
** for a name nobody knows, CDDP_E_BACKEND when this build or machine lacks it. */
cddp_status cd_plugins_need_backend(cd_cli *cli, const char *name, cddp_error *err) CDDP_MUST_CHECK;
