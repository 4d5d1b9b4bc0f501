/* SPDX-License-Identifier: Apache-2.0 */
/* Required slots are a table of offsets, so that a refusal can name the slot. */
#include "core/comm/adopt.h"

#include "core/base/error.h"

#include <stddef.h>
#include <string.h>

/* Slots are compared as bytes: on every POSIX system a null function pointer is all zero bits. */
typedef void (*any_fn)(void);
_Static_assert(sizeof(any_fn) == sizeof(void *), "slots are read as pointers");

#define SLOT(name)                          \
    {                                       \
#name, offsetof(cddp_backend, name) \
    }
static const struct {
    const char *name;
    size_t offset;
} required[] = {SLOT(open), SLOT(close), SLOT(post), SLOT(test), SLOT(wait), SLOT(release)};

static cddp_status unsupported_abort(void *group, const char *reason, cddp_error *err)
{
    (void)group;
    (void)reason;
    return cd_fail(err, CDDP_E_UNSUPPORTED, "the backend cannot abort a group");
}

static void unsupported_describe(void *group, void *work, char *text, size_t text_bytes)
{
    (void)group;
    (void)work;
    if (text_bytes > 0) text[0] = '\0';
}

static cddp_status nothing_missing(const cddp_backend *backend, cddp_error *err)
{
    (void)backend;
    (void)err;
    return CDDP_OK;
}

static int64_t digest_unknown(void *group, void *work)
{
    (void)group;
    (void)work;
    return 0;
}

static void observe_nothing(void *group, cddp_tracer *tracer)
{
    (void)group;
    (void)tracer;
}

static cddp_status open_unreported(const cddp_backend *backend, cddp_rank *rank,
                                   const cddp_group_spec *spec, cddp_tracer *tracer, void **group,
                                   cddp_error *err)
{
    (void)tracer;
    return CD_PASS(backend->open(backend, rank, spec, group, err));
}

cddp_status cd_backend_adopt(const cddp_backend *backend, cddp_backend *full, cddp_error *err)
{
    const char *name =
        backend->size >= offsetof(cddp_backend, capabilities) && backend->name != NULL
            ? backend->name
            : "?";
    if (backend->abi != CDDP_BACKEND_ABI)
        return cd_fail(err, CDDP_E_ARG, "backend %s speaks ABI %u; this library speaks %u", name,
                       backend->abi, CDDP_BACKEND_ABI);
    if (name[0] == '\0' || name[0] == '?')
        return cd_fail(err, CDDP_E_ARG, "a backend without a name");
    /* abort and describe are the last slots of version 1. A table may end before them. */
    if (backend->size < offsetof(cddp_backend, abort) || backend->size > sizeof *backend)
        return cd_fail(err, CDDP_E_ARG, "backend %s has a table of %u bytes; expected %zu to %zu",
                       name, backend->size, offsetof(cddp_backend, abort), sizeof *backend);
    cddp_backend table = {0};
    memcpy(&table, backend, backend->size);
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        any_fn slot;
        memcpy(&slot, (const char *)&table + required[i].offset, sizeof slot);
        if (slot == NULL)
            return cd_fail(err, CDDP_E_ARG, "backend %s lacks the required slot %s", name,
                           required[i].name);
    }
    if (table.capabilities.world_size_max == 0)
        return cd_fail(err, CDDP_E_ARG,
                       "backend %s declares no world size (capabilities.world_size_max is 0)",
                       name);
    const cddp_launcher *l = table.launcher;
    if (l != NULL &&
        (l->size != sizeof *l || l->command == NULL || l->identity == NULL || l->leave == NULL))
        return cd_fail(err, CDDP_E_ARG,
                       "backend %s has a launcher that lacks command, identity or leave", name);
    if (table.abort == NULL) table.abort = unsupported_abort;
    if (table.describe == NULL) table.describe = unsupported_describe;
    if (table.probe == NULL) table.probe = nothing_missing;
    if (table.observe == NULL) table.observe = observe_nothing;
    if (table.open_traced == NULL) table.open_traced = open_unreported;
    if (table.digest_read == NULL) table.digest_read = digest_unknown;
    if (table.digest_written == NULL) table.digest_written = digest_unknown;
    if (full != NULL) *full = table;
    return CDDP_OK;
}
