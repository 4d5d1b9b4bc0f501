/* SPDX-License-Identifier: Apache-2.0 */
/* The registry: tables found by name, compiled-in ones first.
**
** A table is copied into one with all slots, so that a plugin that knows fewer slots is safe to
** call. What a backend must have and what it may leave out is known to core/comm/adopt.c alone.
*/
#include "core/registry/registry.h"

#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/check/check.h"
#include "core/comm/adopt.h"
#include "core/hooks/hook.h"

#include <string.h>

#define HOOK_SIZE_MIN offsetof(cddp_hook, rebuilt)
#define CHECK_SIZE_MIN sizeof(cddp_check)

/* Pointers to copies: an entry stays where it is while the list grows. */
typedef struct table_list {
    void **items; /* (count) each `bytes` long */
    size_t count, capacity, bytes;
} table_list;

struct cddp_registry {
    cd_arena arena; /* owns the registry itself, and the copies of tables */
    const cddp_allocator *allocator;
    table_list backends, hooks, checks;
};

static cddp_status list_add(cddp_registry *registry, table_list *list, const void *table,
                            size_t known_bytes, cddp_error *err)
{
    void *copy = cd_arena_array(&registry->arena, 1, list->bytes);
    if (copy == NULL || !cd_vec_grow(registry->allocator, (void **)&list->items, &list->capacity,
                                     list->count + 1, sizeof(void *)))
        return cd_fail_memory(err, "one more part of the registry");
    memcpy(copy, table, known_bytes < list->bytes ? known_bytes : list->bytes);
    list->items[list->count++] = copy;
    return CDDP_OK;
}

static void list_fini(cddp_registry *registry, table_list *list)
{
    cd_release(registry->allocator, list->items, list->capacity * sizeof(void *));
}

/* ---- what makes a table acceptable ---- */

static cddp_status check_head(const char *what, const char *name, uint32_t abi, uint32_t abi_wanted,
                              cddp_error *err)
{
    if (name == NULL || name[0] == '\0')
        return cd_fail(err, CDDP_E_ARG, "a %s without a name", what);
    if (abi != abi_wanted) {
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "%s '%s' has ABI version %u; this program speaks version %u", what, name,
                       abi, abi_wanted);
    }
    return CDDP_OK;
}

static cddp_status check_size(const char *what, const char *name, size_t size, size_t wanted,
                              cddp_error *err)
{
    return size >= wanted ? CDDP_OK
                          : cd_fail(err, CDDP_E_UNSUPPORTED,
                                    "%s '%s' is a table of %zu bytes; at least %zu are needed",
                                    what, name, size, wanted);
}

static cddp_status check_slot(const char *what, const char *name, const char *slot, bool is_there,
                              cddp_error *err)
{
    return is_there ? CDDP_OK
                    : cd_fail(err, CDDP_E_ARG, "%s '%s' lacks the required function %s", what, name,
                              slot);
}

static cddp_status fail_taken(const char *what, const char *name, cddp_error *err)
{
    return cd_fail(err, CDDP_E_ARG, "there is already a %s called '%s'", what, name);
}

static cddp_status check_given(const cddp_registry *registry, const char *kind, const void *part,
                               cddp_error *err)
{
    if (registry == NULL)
        return cd_fail(err, CDDP_E_ARG, "cddp_registry_add_%s: the registry is NULL", kind);
    if (part == NULL)
        return cd_fail(err, CDDP_E_ARG, "cddp_registry_add_%s: the %s is NULL", kind, kind);
    return CDDP_OK;
}

cddp_status cddp_registry_add_backend(cddp_registry *registry, const cddp_backend *backend,
                                      cddp_error *err)
{
    cddp_backend full;
    CD_TRY(check_given(registry, "backend", backend, err));
    CD_TRY(cd_backend_adopt(backend, &full, err));
    if (cddp_registry_find_backend(registry, backend->name) != NULL)
        return CD_PASS(fail_taken("backend", backend->name, err));
    CD_TRY(list_add(registry, &registry->backends, &full, sizeof full, err));
    return CDDP_OK;
}

cddp_status cddp_registry_add_hook(cddp_registry *registry, const cddp_hook *hook, cddp_error *err)
{
    CD_TRY(check_given(registry, "hook", hook, err));
    CD_TRY(check_head("hook", hook->name, hook->abi, CDDP_HOOK_ABI, err));
    CD_TRY(check_size("hook", hook->name, hook->size, HOOK_SIZE_MIN, err));
    CD_TRY(check_slot("hook", hook->name, "run", hook->run != NULL, err));
    if (cddp_registry_find_hook(registry, hook->name) != NULL)
        return CD_PASS(fail_taken("hook", hook->name, err));
    CD_TRY(list_add(registry, &registry->hooks, hook, hook->size, err));
    cddp_hook *copy = registry->hooks.items[registry->hooks.count - 1];
    copy->size = sizeof *copy;
    CD_TRY(cd_hook_check(copy, err));
    return CDDP_OK;
}

cddp_status cddp_registry_add_check(cddp_registry *registry, const cddp_check *check,
                                    cddp_error *err)
{
    CD_TRY(check_given(registry, "check", check, err));
    CD_TRY(check_head("check", check->name, check->abi, CDDP_CHECK_ABI, err));
    CD_TRY(check_size("check", check->name, check->size, CHECK_SIZE_MIN, err));
    CD_TRY(check_slot("check", check->name, "begin", check->begin != NULL, err));
    CD_TRY(check_slot("check", check->name, "event", check->event != NULL, err));
    CD_TRY(check_slot("check", check->name, "end", check->end != NULL, err));
    if (cddp_registry_find_check(registry, check->name) != NULL)
        return CD_PASS(fail_taken("check", check->name, err));
    CD_TRY(list_add(registry, &registry->checks, check, check->size, err));
    return CDDP_OK;
}

cddp_status cddp_registry_add_plugin(cddp_registry *registry, const cddp_plugin *plugin,
                                     cddp_error *err)
{
    CD_TRY(check_given(registry, "plugin", plugin, err));
    CD_TRY(check_head("plugin", plugin->name, plugin->abi, CDDP_PLUGIN_ABI, err));
    CD_TRY(check_size("plugin", plugin->name, plugin->size, sizeof *plugin, err));
    for (size_t i = 0; plugin->backends != NULL && plugin->backends[i] != NULL; i++)
        CD_TRY(cddp_registry_add_backend(registry, plugin->backends[i], err));
    for (size_t i = 0; plugin->hooks != NULL && plugin->hooks[i] != NULL; i++)
        CD_TRY(cddp_registry_add_hook(registry, plugin->hooks[i], err));
    for (size_t i = 0; plugin->checks != NULL && plugin->checks[i] != NULL; i++)
        CD_TRY(cddp_registry_add_check(registry, plugin->checks[i], err));
    return CDDP_OK;
}

cddp_status cddp_registry_create(const cddp_allocator *allocator, cddp_registry **registry,
                                 cddp_error *err)
{
    cddp_status status = CDDP_OK;
    if (registry == NULL) return cd_fail(err, CDDP_E_ARG, "cddp_registry_create: registry is NULL");
    cd_arena arena;
    cd_arena_init(&arena, allocator, 16384);
    cddp_registry *r = cd_arena_push(&arena, sizeof *r);
    if (r == NULL) return cd_fail_memory(err, "a registry");
    r->arena = arena;
    r->allocator = allocator;
    r->backends.bytes = sizeof(cddp_backend);
    r->hooks.bytes = sizeof(cddp_hook);
    r->checks.bytes = sizeof(cddp_check);
    for (size_t i = 0; cd_hook_get_row(i) != NULL; i++)
        CD_TRY_OUT(cddp_registry_add_hook(r, cd_hook_get_row(i)->hook, err));
    for (size_t i = 0; i < cd_checks_count(); i++)
        CD_TRY_OUT(cddp_registry_add_check(r, cd_check_get(i), err));
    *registry = r;
    r = NULL;
out:
    cddp_registry_destroy(r);
    return status;
}

void cddp_registry_destroy(cddp_registry *registry)
{
    if (registry != NULL) {
        list_fini(registry, &registry->backends);
        list_fini(registry, &registry->hooks);
        list_fini(registry, &registry->checks);
        cd_arena_fini(&registry->arena);
    }
}

const cddp_backend *cddp_registry_backend(const cddp_registry *registry, size_t index)
{
    return registry != NULL && index < registry->backends.count ? registry->backends.items[index]
                                                                : NULL;
}

const cddp_hook *cddp_registry_hook(const cddp_registry *registry, size_t index)
{
    return registry != NULL && index < registry->hooks.count ? registry->hooks.items[index] : NULL;
}

const cddp_check *cddp_registry_check(const cddp_registry *registry, size_t index)
{
    return registry != NULL && index < registry->checks.count ? registry->checks.items[index]
                                                              : NULL;
}

const cddp_backend *cddp_registry_find_backend(const cddp_registry *registry, const char *name)
{
    for (size_t i = 0; registry != NULL && name != NULL && i < registry->backends.count; i++) {
        if (strcmp(cddp_registry_backend(registry, i)->name, name) == 0)
            return cddp_registry_backend(registry, i);
    }
    return NULL;
}

const cddp_hook *cddp_registry_find_hook(const cddp_registry *registry, const char *name)
{
    for (size_t i = 0; registry != NULL && name != NULL && i < registry->hooks.count; i++) {
        if (strcmp(cddp_registry_hook(registry, i)->name, name) == 0)
            return cddp_registry_hook(registry, i);
    }
    return NULL;
}

const cddp_check *cddp_registry_find_check(const cddp_registry *registry, const char *name)
{
    for (size_t i = 0; registry != NULL && name != NULL && i < registry->checks.count; i++) {
        if (strcmp(cddp_registry_check(registry, i)->name, name) == 0)
            return cddp_registry_check(registry, i);
    }
    return NULL;
}

bool cd_registry_has_plugin(const cddp_registry *registry)
{
    const cddp_hook *hook;
    const cddp_check *check;
    for (size_t i = 0; (hook = cddp_registry_hook(registry, i)) != NULL; i++) {
        if (cd_hook_find(hook->name) == NULL) return true;
    }
    for (size_t i = 0; (check = cddp_registry_check(registry, i)) != NULL; i++) {
        if (cd_check_find(check->name) == NULL) return true;
    }
    return false;
}

bool cd_registry_is_foreign_hook(const cddp_registry *registry, const char *name)
{
    return cddp_registry_find_hook(registry, name) != NULL && cd_hook_find(name) == NULL;
}
