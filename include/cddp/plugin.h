/* SPDX-License-Identifier: Apache-2.0 */
/* The one symbol that a plugin exports: its additions to the registry.
**
** A plugin is a shared object with `const cddp_plugin cddp_plugin_v1 = {…};`. It is loaded only
** when the command line names its path; a scenario cannot load it.
**
** Lifetime   the tables it lists live as long as the program.
** Threads    tables are read-only.
** Errors     a table with a wrong size, abi or a missing required slot is refused by name at
**            registration.
*/
#pragma once
#include "cddp/backend.h"
#include "cddp/check.h"
#include "cddp/hook.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_PLUGIN_ABI 1u

typedef struct cddp_plugin {
    uint32_t size; /* sizeof(cddp_plugin) known to the writer */
    uint32_t abi;  /* CDDP_PLUGIN_ABI */
    const char *name;
    const char *version;
    const cddp_backend *const *backends; /* NULL-terminated list, or NULL */
    const cddp_hook *const *hooks;       /* NULL-terminated list, or NULL */
    const cddp_check *const *checks;     /* NULL-terminated list, or NULL */
} cddp_plugin;

/* In the plugin: CDDP_PLUGIN_EXPORT const cddp_plugin cddp_plugin_v1 = {…}; */
#define CDDP_PLUGIN_EXPORT CDDP_API
#define CDDP_PLUGIN_SYMBOL "cddp_plugin_v1"

#ifdef __cplusplus
}
#endif
