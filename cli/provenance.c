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

/* Of the Gregorian calendar, since 1970; a year begins in March here, so that a leap day is its
** last. */
static int64_t count_days(int64_t year, int64_t month, int64_t day)
{
    const int64_t y = month > 2 ? year : year - 1, m = month > 2 ? month - 3 : month + 9;
    return 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719468;
}

bool cd_provenance_read_time(const char *text, uint64_t *time_ns)
{
    int year, month, day, hour, minute, second;
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2dZ", &year, &month, &day, &hour, &minute, &second) != 6)
        return false;
    if (year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour < 0 || hour > 23 ||
        minute < 0 || minute > 59 || second < 0 || second > 60)
        return false;
    const int64_t days = count_days(year, month, day);
    *time_ns = (uint64_t)(((days * 24 + hour) * 60 + minute) * 60 + second) * UINT64_C(1000000000);
    return true;
}
