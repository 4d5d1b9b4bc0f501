/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a choice string: refused with a place, or read; and what was read prints as the same
** string. */
#include "sim/chooser.h"
#include "sim/schedule.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count);

#define DEVIATIONS_MAX 512

/* False: it is refused. */
static bool read_all(const char *text, cd_schedule *schedule)
{
    const char *at = NULL;
    uint64_t previous = UINT64_MAX;
    cddp_error err = CDDP_ERROR_INIT;
    if (cd_schedule_open(text, &at, &err) != CDDP_OK) return false;
    for (bool found = true; found && schedule->count < schedule->capacity;) {
        cd_deviation d = {0};
        if (cd_schedule_read(text, &at, previous, &d, &found, &err) != CDDP_OK) {
            if (err.message[0] == '\0') abort();
            return false;
        }
        if (!found) break;
        if (previous != UINT64_MAX && d.number <= previous) abort();
        if (d.value == 0) abort();
        schedule->items[schedule->count++] = d;
        previous = d.number;
    }
    return true;
}

static void replay(const char *text)
{
    cd_replay_chooser state;
    cd_chooser chooser;
    cddp_error err = CDDP_ERROR_INIT;
    if (cd_chooser_replay(&state, text, &chooser, &err) != CDDP_OK) return;
    for (uint64_t i = 0; i < 64; i++) {
        cddp_choice choice = {.size = sizeof choice, .option_count = 2 + (uint32_t)(i % 5)};
        if (chooser.choose(chooser.self, &choice, (cd_place){.number = i}) >= choice.option_count)
            abort();
    }
    if (chooser.finish != NULL) (void)chooser.finish(chooser.self, (cd_place){.number = 64}, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t byte_count)
{
    cd_deviation items[DEVIATIONS_MAX];
    cd_schedule schedule = {.items = items, .capacity = DEVIATIONS_MAX};
    char text[2048], printed[4096];
    if (byte_count >= sizeof text) return 0;
    memcpy(text, bytes, byte_count);
    text[byte_count] = '\0';
    if (strlen(text) != byte_count) return 0;
    if (read_all(text, &schedule) && schedule.count < DEVIATIONS_MAX) {
        (void)cd_schedule_print(&schedule, printed, sizeof printed);
        if (strcmp(text, printed) != 0) abort(); /* the form is canonical */
    }
    replay(text);
    return 0;
}
