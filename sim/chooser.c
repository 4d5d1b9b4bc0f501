/* SPDX-License-Identifier: Apache-2.0 */
/* The three plain choosers: fifo, random, replay. */
#include "sim/chooser.h"

#include "core/base/error.h"
#include "sim/schedule.h"

#include <string.h>

static const char *const names[CD_CHOOSER_KIND_COUNT] = {
#define CD_CHOOSER(name, summary) #name,
#include "sim/choosers.def"
#undef CD_CHOOSER
};

int32_t cd_chooser_find(const char *name)
{
    for (int32_t i = 0; i < CD_CHOOSER_KIND_COUNT; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

static uint32_t fifo_choose(void *self, const cddp_choice *choice, cd_place place)
{
    (void)self, (void)choice, (void)place;
    return 0;
}

cd_chooser cd_chooser_fifo(void) { return (cd_chooser){.name = "fifo", .choose = fifo_choose}; }

static uint32_t random_choose(void *self, const cddp_choice *choice, cd_place place)
{
    (void)place;
    cd_random_chooser *random = self;
    return (uint32_t)cd_prng_below(&random->prng, choice->option_count);
}

cd_chooser cd_chooser_random(cd_random_chooser *random, uint64_t seed)
{
    cd_prng root = cd_prng_seed(seed);
    random->prng = cd_prng_split(&root, "chooser");
    return (cd_chooser){.self = random, .name = "random", .choose = random_choose};
}

/* The string was read once to its end when the chooser was made, so reading it again cannot
** fail. */
static void replay_advance(cd_replay_chooser *replay, uint64_t previous)
{
    cd_deviation d = {0};
    bool found = false;
    if (cd_schedule_read(replay->at, &replay->at, previous, &d, &found, NULL) != CDDP_OK)
        found = false;
    replay->next_number = found ? d.number : UINT64_MAX;
    replay->next_value = d.value;
}

static uint32_t replay_choose(void *self, const cddp_choice *choice, cd_place place)
{
    cd_replay_chooser *replay = self;
    if (place.number != replay->next_number) return 0;
    uint32_t value = replay->next_value;
    replay_advance(replay, place.number);
    if (value < choice->option_count) return value;
    if (replay->wrong_number == UINT64_MAX) {
        replay->wrong_number = place.number;
        replay->wrong_value = value;
        replay->wrong_options = choice->option_count;
    }
    return 0;
}

static cddp_status replay_finish(void *self, cd_place end, cddp_error *err)
{
    const cd_replay_chooser *replay = self;
    if (replay->wrong_number != UINT64_MAX)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the schedule does not fit this run: choice %llu has %u options, but option "
                       "%u was recorded",
                       (unsigned long long)replay->wrong_number, replay->wrong_options,
                       replay->wrong_value);
    if (replay->next_number != UINT64_MAX)
        return cd_fail(
            err, CDDP_E_MISMATCH,
            "the schedule does not fit this run: it decides choice %llu, but the run had only %llu",
            (unsigned long long)replay->next_number, (unsigned long long)end.number);
    return CDDP_OK;
}

cddp_status cd_chooser_replay(cd_replay_chooser *replay, const char *schedule, cd_chooser *chooser,
                              cddp_error *err)
{
    const char *text = NULL;
    CD_TRY(cd_schedule_open(schedule, &text, err));
    const char *first = text;
    cd_deviation d = {.number = UINT64_MAX};
    for (bool found = true; found;)
        CD_TRY(cd_schedule_read(schedule, &text, d.number, &d, &found, err));
    *replay = (cd_replay_chooser){.at = first, .wrong_number = UINT64_MAX};
    replay_advance(replay, UINT64_MAX);
    *chooser = (cd_chooser){.self = replay,
                            .name = "replay",
                            .choose = replay_choose,
                            .finish = replay_finish};
    return CDDP_OK;
}
