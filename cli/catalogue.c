/* SPDX-License-Identifier: Apache-2.0 */
/* Where the catalogue lies. */
#define _POSIX_C_SOURCE 200809L
#include "cli/catalogue.h"

#include "core/base/error.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* <prefix>/bin/cddp-verify and <prefix>/share/cddp/scenarios */
static void installed_path(char *path, size_t bytes)
{
    char program[2048];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    for (int folder = 0; folder < 2; folder++) { /* its name, and bin */
        char *slash = strrchr(program, '/');
        if (slash != NULL) *slash = '\0';
    }
    snprintf(path, bytes, "%s/share/cddp/scenarios", program);
}

cddp_status cd_catalogue_add(cd_file_list *list, bool *found, cddp_error *err)
{
    char installed[2200];
    installed_path(installed, sizeof installed);
    const char *const places[] = {"scenarios", installed};
    *found = false;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !*found; i++) {
        cddp_error none = CDDP_ERROR_INIT;
        const cddp_status status =
            access(places[i], R_OK) == 0 ? cd_file_list_add(list, places[i], &none) : CDDP_E_IO;
        if (status == CDDP_E_NOMEM) return cd_fail(err, CDDP_E_NOMEM, "%s", none.message);
        *found = status == CDDP_OK;
    }
    return CDDP_OK;
}
