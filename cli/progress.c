/* SPDX-License-Identifier: Apache-2.0 */
/* How far a long run is. */
#include "cli/progress.h"

#include "core/base/os.h"

#include <stdio.h>

#define INTERVAL_NS 100000000u

void cd_progress_begin(cd_progress *progress, const cd_cli *cli, size_t total)
{
    *progress = (cd_progress){.enabled = cli->progress && total > 1,
                              .total = total,
                              .columns = cli->columns_err,
                              .began_ns = cd_os_now_ns()};
}

void cd_progress_put_pace(cd_text *line, const cd_pace *pace)
{
    const double rate = pace->seconds > 0 ? pace->done / pace->seconds : 0;
    double left = -1;
    if (pace->total > pace->done && rate > 0) left = (pace->total - pace->done) / rate;
    if (pace->limit_s > 0 && (left < 0 || left > pace->limit_s - pace->seconds))
        left = pace->limit_s > pace->seconds ? pace->limit_s - pace->seconds : 0;
    if (pace->done > 0) cd_text_printf(line, ", %.*f/s", rate < 100 ? 1 : 0, rate);
    if (left >= 7200)
        cd_text_printf(line, ", %.1f h left", left / 3600);
    else if (left >= 120)
        cd_text_printf(line, ", %.0f min left", left / 60);
    else if (left >= 0)
        cd_text_printf(line, ", %.0f s left", left);
}

static void put(cd_text *line, size_t columns)
{
    size_t length = line->length;
    if (columns > 1 && length > columns - 1) length = columns - 1;
    /* a letter that is cut in half is none */
    while (length > 0 && length < line->length && (line->bytes[length] & 0xc0) == 0x80) length--;
    fprintf(stderr, "\r\033[K%.*s", (int)length, cd_text_get(line));
    fflush(stderr);
    cd_text_fini(line);
}

void cd_progress_put(const cd_cli *cli, cd_text *line) { put(line, cli->columns_err); }

void cd_progress_wipe(void) { fputs("\r\033[K", stderr); }

void cd_progress_show(cd_progress *progress, size_t done, const char *current)
{
    cd_text line;
    const uint64_t now = cd_os_now_ns();
    if (!progress->enabled || now - progress->shown_ns < INTERVAL_NS) return;
    progress->shown_ns = now;
    cd_text_init(&line, false);
    cd_text_printf(&line, "[%zu/%zu]", done, progress->total);
    cd_progress_put_pace(&line, &(cd_pace){.done = (double)done,
                                           .total = (double)progress->total,
                                           .seconds = (double)(now - progress->began_ns) / 1e9});
    cd_text_printf(&line, "  %s", current);
    put(&line, progress->columns);
}

void cd_progress_end(cd_progress *progress)
{
    if (progress->enabled && progress->shown_ns != 0) cd_progress_wipe();
}
