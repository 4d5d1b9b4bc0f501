/* SPDX-License-Identifier: Apache-2.0 */
/* Where a run took place. */
#define _POSIX_C_SOURCE 200809L
#include "cli/provenance.h"

#include <stdio.h>
#include <sys/utsname.h>
#include <time.h>

#if defined(__clang__)
#define COMPILER "Clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "GCC " __VERSION__
#else
#define COMPILER "unknown compiler"
#endif
#if defined(__OPTIMIZE__)
#define BUILD "optimized"
#else
#define BUILD "not optimized"
#endif
#if defined(__SANITIZE_ADDRESS__)
#define INSTRUMENTED ", sanitizers"
#else
#define INSTRUMENTED ""
#endif

void cd_provenance_init(cd_provenance *provenance)
{
    struct utsname system;
    struct tm utc;
    time_t now = time(NULL);
    *provenance = (cd_provenance){.compiler = COMPILER ", " BUILD INSTRUMENTED};
    if (uname(&system) >= 0)
        snprintf(provenance->machine, sizeof provenance->machine, "%.40s %.60s %.40s",
                 system.sysname, system.release, system.machine);
    if (gmtime_r(&now, &utc) != NULL)
        strftime(provenance->now, sizeof provenance->now, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
