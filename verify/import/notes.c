/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/notes.h"

#include "core/base/os.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SIGNAL_ABORT 6
#define BEGIN "cddp exit note 1"

static bool begins_note(FILE *file, char *line, int line_bytes)
{
    return fgets(line, line_bytes, file) != NULL && strncmp(line, BEGIN, strlen(BEGIN)) == 0;
}

bool cd_note_is(const char *path)
{
    static const char suffix[] = ".exit";
    const size_t length = strlen(path);
    char line[64];
    FILE *file = NULL;
    if (length < sizeof suffix || strcmp(path + length - (sizeof suffix - 1), suffix) != 0 ||
        cd_os_open_regular(path, &file, NULL) != CDDP_OK)
        return false;
    const bool is = begins_note(file, line, sizeof line);
    fclose(file);
    return is;
}

bool cd_note_read(const char *shard_path, cd_note *note)
{
    char path[4096], line[256], name[32];
    int64_t number;
    snprintf(path, sizeof path, "%s.exit", shard_path);
    FILE *file = fopen(path, "r");
    if (file == NULL) return false;
    cd_note n = {.code = -1};
    const bool is_note = begins_note(file, line, sizeof line);
    for (int i = 0; is_note && i < 32 && fgets(line, sizeof line, file) != NULL; i++) {
        if (sscanf(line, "%31s %" SCNd64, name, &number) != 2) continue;
        if (strcmp(name, "signal") == 0) n.signal = number;
        if (strcmp(name, "code") == 0) n.code = number;
        if (strcmp(name, "stopped") == 0) n.is_stopped = number != 0;
        if (strcmp(name, "interrupted") == 0) n.is_interrupted = number != 0;
    }
    fclose(file);
    if (!is_note || (n.signal <= 0 && n.code < 0)) return false;
    *note = n;
    return true;
}

void cd_note_fill(const cd_note *n, cddp_event *event)
{
    const bool is_signal = n->signal > 0;
    cddp_event_rank_end *end = &event->as.rank_end;
    event->kind = CDDP_EV_rank_end;
    *end = (cddp_event_rank_end){.status = CDDP_E_ABORTED,
                                 .end = is_signal ? CDDP_RANK_KILLED : CDDP_RANK_CRASHED,
                                 .detail = is_signal ? n->signal : n->code};
    event->text = "its process ended, and its recording has no end";
    if (n->is_interrupted) {
        end->end = CDDP_RANK_INTERRUPTED;
    } else if (n->is_stopped) {
        *end = (cddp_event_rank_end){.status = CDDP_E_TIMEOUT, .end = CDDP_RANK_HUNG};
        event->text = "it was still running when the job was ended";
    } else if (n->signal ==
               SIGNAL_ABORT) { /* its own doing, mostly of a library that found an error */
        end->end = CDDP_RANK_CRASHED;
        end->detail = 128 + SIGNAL_ABORT;
        event->text = "its process aborted (signal 6)";
    } else if (!is_signal && n->code == 0) {
        event->text = "its process exited with 0 and without an end of its recording";
    }
}
