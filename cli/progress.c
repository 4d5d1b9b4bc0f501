/* SPDX-License-Identifier: Apache-2.0 */
/* How far a long run is. */
#include "cli/progress.h"

#include "core/base/os.h"

#include <stdio.h>

#define INTERVAL_NS 100000000u

void cd_progress_begin(cd_progress *progress, bool enabled, size_t total)
{
    *progress =
        (cd_progress){.enabled = enabled && total > 1, .total = total, .began_ns = cd_os_now_ns()};
}

void cd_progress_show(cd_progress *progress, size_t done, const char *current)
{
    if (!progress->enabled) return;
    uint64_t now = cd_os_now_ns();
    if (now - progress->shown_ns < INTERVAL_NS) return;
    progress->shown_ns = now;
    double seconds = (double)(now - progress->began_ns) / 1e9;
    double rate = seconds > 0 ? (double)done / seconds : 0;
    fprintf(stderr, "\r\033[K[%zu/%zu] %.1f/s", done, progress->total, rate);
    if (done > 0) fprintf(stderr, ", %.0f s left", (double)(progress->total - done) / rate);
    fprintf(stderr, "  %.60s", current);
    fflush(stderr);
}

void cd_progress_end(cd_progress *progress)
{
    if (progress->enabled && progress->shown_ns != 0) fputs("\r\033[K", stderr);
}
