/* SPDX-License-Identifier: Apache-2.0 */
/* What the library itself asks of a registry; the rest is cddp/registry.h. */
#pragma once
#include "cddp/registry.h"

/* Does it have hooks or checks that are not compiled in? */
bool cd_registry_has_plugin(const cddp_registry *registry);
/* Is there such a hook, and is it not compiled in? */
bool cd_registry_is_foreign_hook(const cddp_registry *registry, const char *name);
