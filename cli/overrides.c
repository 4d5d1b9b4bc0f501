/* SPDX-License-Identifier: Apache-2.0 */
/* The changes that the command line makes to every scenario. */
#include "cli/overrides.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <string.h>

cddp_status cd_overrides_read(const cd_args *args, cd_text *lines, cddp_error *err)
{
    uint64_t seed = 0, ranks = 0;
    const char *backend = cd_args_text(args, CD_OPTION_backend, NULL), *set;
    CD_TRY(cd_args_number(args, CD_OPTION_seed, &seed, err));
    CD_TRY(cd_args_number(args, CD_OPTION_world_size, &ranks, err));
    if (cd_args_has(args, CD_OPTION_world_size) && ranks == 0)
        return cd_fail(err, CDDP_E_ARG, "--world-size: there is no world of 0 ranks");
    for (size_t i = 0; (set = cd_args_value(args, CD_OPTION_set, i)) != NULL; i++) {
        const char *equals = strchr(set, '=');
        if (equals == NULL || equals == set || strchr(set, '\n') != NULL)
            return cd_fail(err, CDDP_E_ARG,
                           "--set: '%.100s' is not KEY=VALUE, as in ddp.bucket_cap_mb=1", set);
        cd_text_printf(lines, "%s\n", set);
    }
    if (cd_args_has(args, CD_OPTION_world_size))
        cd_text_printf(lines, "world.size=%" PRIu64 "\n", ranks);
    if (cd_args_has(args, CD_OPTION_seed)) cd_text_printf(lines, "world.seed=%" PRIu64 "\n", seed);
    if (backend != NULL) cd_text_printf(lines, "world.backend=%s\n", backend);
    return CDDP_OK;
}

static cddp_status apply_line(const char *line, size_t length, cddp_plan *plan, cddp_error *err)
{
    char *key = cd_allocate(NULL, length + 1);
    if (key == NULL) return cd_fail_memory(err, "a change of %zu bytes", length);
    memcpy(key, line, length);
    key[length] = '\0';
    char *equals = strchr(key, '=');
    cddp_status status = CDDP_OK;
    if (equals == NULL) {
        status = cd_fail(err, CDDP_E_ARG, "'%.100s' is not KEY=VALUE", key);
    } else {
        *equals = '\0';
        status = cddp_plan_set(plan, key, equals + 1, err);
    }
    cd_release(NULL, key, length + 1);
    return CD_PASS(status);
}

cddp_status cd_overrides_apply(const char *lines, cddp_plan *plan, cddp_error *err)
{
    while (*lines != '\0') {
        const size_t length = strcspn(lines, "\n");
        CD_TRY(apply_line(lines, length, plan, err));
        lines += length;
        if (*lines == '\n') lines++;
    }
    return CDDP_OK;
}

const char *cd_overrides_plugin(const void *args, size_t index)
{
    return cd_args_value(args, CD_OPTION_plugin, index);
}
