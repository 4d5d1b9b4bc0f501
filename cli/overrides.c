/* SPDX-License-Identifier: Apache-2.0 */
/* The changes that the command line makes to every scenario. */
#include "cli/overrides.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_malformed(const char *set)
{
    const char *equals = strchr(set, '=');
    return equals == NULL || equals == set || strchr(set, '\n') != NULL;
}

/* All of them at once. */
static cddp_status refuse_malformed(const cd_args *args, cddp_error *err)
{
    const char *set;
    size_t count = 0;
    char names[300] = "";
    for (size_t i = 0; (set = cd_args_value(args, CD_OPTION_set, i)) != NULL; i++) {
        if (!is_malformed(set)) continue;
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s'%.100s'", count > 0 ? ", " : "", set);
        count++;
    }
    if (count == 0) return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG, "--set: %s %s not KEY=VALUE, as in ddp.bucket_cap_mb=1", names,
                   count == 1 ? "is" : "are");
}

cddp_status cd_overrides_read(const cd_args *args, cd_text *lines, cddp_error *err)
{
    uint64_t seed = 0, ranks = 0;
    const char *backend = cd_args_text(args, CD_OPTION_backend, NULL), *set;
    CD_TRY(cd_args_number(args, CD_OPTION_seed, &seed, err));
    CD_TRY(cd_args_number(args, CD_OPTION_world_size, &ranks, err));
    if (cd_args_has(args, CD_OPTION_world_size) && ranks == 0)
        return cd_fail(err, CDDP_E_ARG, "--world-size: there is no world of 0 ranks");
    CD_TRY(refuse_malformed(args, err));
    for (size_t i = 0; (set = cd_args_value(args, CD_OPTION_set, i)) != NULL; i++)
        cd_text_printf(lines, "%s\n", set);
    if (cd_args_has(args, CD_OPTION_world_size))
        cd_text_printf(lines, "world.size=%" PRIu64 "\n", ranks);
    if (cd_args_has(args, CD_OPTION_seed)) cd_text_printf(lines, "world.seed=%" PRIu64 "\n", seed);
    if (backend != NULL) cd_text_printf(lines, "world.backend=%s\n", backend);
    return CDDP_OK;
}

/* "--set KEY=VALUE: message", with a caret below the key or the value. */
static void complain(cd_text *complaints, const char *line, size_t column, const char *message)
{
    const int length = (int)strcspn(line, "\n");
    cd_text_printf(complaints, "--set %.*s: %s\n    %.*s\n    %*s^\n", length, line, message,
                   length, line, (int)column, "");
}

void cd_overrides_complain(const char *lines, const char *key, const char *message,
                           cd_text *complaints)
{
    const size_t key_length = strlen(key);
    const char *found = NULL; /* the last one decides */
    for (const char *line = lines; *line != '\0';
         line += strcspn(line, "\n"), line += *line == '\n')
        if (strncmp(line, key, key_length) == 0 && line[key_length] == '=') found = line;
    if (found != NULL)
        complain(complaints, found, key_length + 1, message);
    else
        cd_text_printf(complaints, "--set: %s\n", message);
}

static cddp_status apply_line(const char *line, cddp_plan *plan, cd_text *complaints,
                              cddp_error *err)
{
    const size_t length = strcspn(line, "\n");
    cddp_error why = CDDP_ERROR_INIT;
    char *key = cd_allocate(NULL, length + 1);
    if (key == NULL) return cd_fail_memory(err, "a change of %zu bytes", length);
    memcpy(key, line, length);
    key[length] = '\0';
    char *equals = strchr(key, '=');
    cddp_status status = CDDP_OK;
    if (equals == NULL) {
        status = cd_fail(&why, CDDP_E_ARG, "it is not KEY=VALUE");
    } else {
        *equals = '\0';
        status = cddp_plan_set(plan, key, equals + 1, &why);
    }
    /* A key that is known stands first in a message about its value. */
    const bool is_value = equals != NULL && strncmp(why.message, "unknown key", 11) != 0;
    if (status != CDDP_OK && status != CDDP_E_NOMEM)
        complain(complaints, line, is_value ? (size_t)(equals + 1 - key) : 0, why.message);
    cd_release(NULL, key, length + 1);
    if (status == CDDP_E_NOMEM && err != NULL) *err = why;
    return status == CDDP_E_NOMEM ? status : CDDP_OK;
}

cddp_status cd_overrides_apply(const char *lines, cddp_plan *plan, cd_text *complaints,
                               cddp_error *err)
{
    for (; *lines != '\0'; lines += *lines == '\n') {
        CD_TRY(apply_line(lines, plan, complaints, err));
        lines += strcspn(lines, "\n");
    }
    return CDDP_OK;
}

const char *cd_overrides_plugin(const void *args, size_t index)
{
    return cd_args_value(args, CD_OPTION_plugin, index);
}
