/* SPDX-License-Identifier: Apache-2.0 */
/* The registry: compiled-in parts plus what plugins bring, looked up by name. An object, not a
** global.
**
** Lifetime   tables are borrowed; a registry is destroyed after everything that uses its tables.
** Threads    read-only after the last add.
** Errors     adding refuses a wrong size or abi, a missing required slot and a name already taken.
*/
#pragma once
#include "cddp/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_registry cddp_registry;

/* Starts with every hook and check that is compiled in; backends are added by who opens them. */
CDDP_API cddp_status cddp_registry_create(const cddp_allocator *allocator, cddp_registry **registry,
                                          cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_registry_destroy(cddp_registry *registry); /* accepts NULL */

CDDP_API cddp_status cddp_registry_add_backend(cddp_registry *registry, const cddp_backend *backend,
                                               cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_registry_add_hook(cddp_registry *registry, const cddp_hook *hook,
                                            cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_registry_add_check(cddp_registry *registry, const cddp_check *check,
                                             cddp_error *err) CDDP_MUST_CHECK;
CDDP_API cddp_status cddp_registry_add_plugin(cddp_registry *registry, const cddp_plugin *plugin,
                                              cddp_error *err) CDDP_MUST_CHECK;

/* NULL when there is no such name. Returns borrowed until the registry is destroyed. */
CDDP_API const cddp_backend *cddp_registry_find_backend(const cddp_registry *registry,
                                                        const char *name);
CDDP_API const cddp_hook *cddp_registry_find_hook(const cddp_registry *registry, const char *name);
CDDP_API const cddp_check *cddp_registry_find_check(const cddp_registry *registry,
                                                    const char *name);

/* The i-th in order of addition; NULL past the end. */
CDDP_API const cddp_backend *cddp_registry_backend(const cddp_registry *registry, size_t index);
CDDP_API const cddp_hook *cddp_registry_hook(const cddp_registry *registry, size_t index);
CDDP_API const cddp_check *cddp_registry_check(const cddp_registry *registry, size_t index);

#ifdef __cplusplus
}
#endif
