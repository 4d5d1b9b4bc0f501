/* SPDX-License-Identifier: Apache-2.0 */
#include "core/run/strikes.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/plan/fault_words.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The words with which the simulator reports a fault that found nothing to break; and, when all has
** ended, one on a link of which nothing came. */
#define NO_EFFECT "no effect"
#define MET_NOTHING "no effect: no message met it, "

struct cd_strike {
    bool has_struck, has_no_effect;
    uint64_t posts; /* collectives that its rank posted */
};

cddp_status cd_strikes_init(cd_strikes *strikes, const cddp_plan *plan,
                            const cddp_allocator *allocator, cddp_error *err)
{
    *strikes = (cd_strikes){.plan = plan, .allocator = allocator};
    if (plan->fault_count == 0) return CDDP_OK;
    strikes->faults = cd_allocate_array(allocator, plan->fault_count, sizeof *strikes->faults);
    return strikes->faults != NULL ? CDDP_OK : cd_fail_memory(err, "%zu faults", plan->fault_count);
}

void cd_strikes_fini(cd_strikes *strikes)
{
    if (strikes->faults != NULL)
        cd_release(strikes->allocator, strikes->faults,
                   strikes->plan->fault_count * sizeof *strikes->faults);
    strikes->faults = NULL;
}

/* ---- which fault it was ---- */

static bool begins_with(const char *text, const char *words)
{
    return text != NULL && strncmp(text, words, strlen(words)) == 0;
}

static bool is_of_kind(const cddp_plan_fault *f, const cddp_event_fault *e)
{
    const char *kind = cddp_event_word(CDDP_FIELD_fault_kind, e->kind);
    const int64_t target = f->side.term_count == 0 ? f->rank : -1;
    return kind != NULL && f->kind != NULL && strcmp(kind, f->kind) == 0 && e->target == target &&
           (e->peer < 0 || e->peer == f->peer) && e->duration == (int64_t)f->duration_ns;
}

/* Words may leave out the number; then no other fault is meant. */
static bool has_number(const char *text, const char *word, uint64_t number)
{
    const char *at = text != NULL ? strstr(text, word) : NULL;
    return at == NULL || strtoull(at + strlen(word), NULL, 10) == number;
}

static bool ends_after(const char *text, uint64_t time_ns)
{
    static const char after[] = " after ";
    char time[CD_DURATION_BYTES];
    const char *at = strstr(text, after);
    cd_duration_print(time_ns, time, sizeof time);
    return at != NULL && strcmp(at + sizeof after - 1, time) == 0;
}

static bool is_moment(const cddp_plan_fault *f, const cddp_event *e, bool is_late)
{
    static const char *const collectives[] = {[CDDP_FAULT_BEFORE] = "before its collective ",
                                              [CDDP_FAULT_INSIDE] = "inside its collective ",
                                              [CDDP_FAULT_AFTER] = "after its collective "};
    static const char *const joins[] = {[CDDP_FAULT_BEFORE_JOIN] = "before join ",
                                        [CDDP_FAULT_INSIDE_JOIN] = "inside join ",
                                        [CDDP_FAULT_AFTER_JOIN] = "after join "};
    if (f->when == CDDP_FAULT_TIME && !is_late) return e->time_ns == f->at;
    if (f->when == CDDP_FAULT_TIME) return ends_after(e->text, f->at);
    if (f->when < CDDP_FAULT_BEFORE_JOIN) return has_number(e->text, collectives[f->when], f->at);
    return has_number(e->text, joins[f->when], f->at);
}

/* The first that fits and has not struck; of several, the one that is for the event's time. Late:
** the first that fits and has struck. */
static cd_strike *find(const cd_strikes *s, const cddp_event *event, bool is_late)
{
    cd_strike *found = NULL;
    for (size_t i = 0; i < s->plan->fault_count; i++) {
        const cddp_plan_fault *f = &s->plan->faults[i];
        if (s->faults[i].has_struck != is_late || s->faults[i].has_no_effect ||
            !is_of_kind(f, &event->as.fault) || !is_moment(f, event, is_late))
            continue;
        if (f->when == CDDP_FAULT_TIME) return &s->faults[i];
        if (found == NULL) found = &s->faults[i];
    }
    return found;
}

void cd_strikes_push(cd_strikes *strikes, const cddp_event *event)
{
    cd_strike *struck = NULL;
    if (strikes->faults == NULL) return;
    switch (event->kind) {
    case CDDP_EV_fault:
        struck = find(strikes, event, begins_with(event->text, MET_NOTHING));
        if (struck == NULL) return;
        struck->has_struck = true;
        struck->has_no_effect = begins_with(event->text, NO_EFFECT);
        break;
    case CDDP_EV_collective_post:
        for (size_t i = 0; i < strikes->plan->fault_count; i++)
            strikes->faults[i].posts += strikes->plan->faults[i].rank == (int64_t)event->rank;
        break;
    default:
        break;
    }
}

/* ---- what is missing ---- */

static bool is_missing(const cd_strikes *s, size_t i)
{
    return !s->plan->faults[i].optional && (!s->faults[i].has_struck || s->faults[i].has_no_effect);
}

static const char *print_why(const cd_strikes *s, size_t i, uint64_t time_ns, cd_arena *arena)
{
    const cddp_plan_fault *f = &s->plan->faults[i];
    char end[CD_DURATION_BYTES];
    cd_duration_print(time_ns, end, sizeof end);
    if (s->faults[i].has_no_effect) return "there was nothing that it could change";
    if (f->when == CDDP_FAULT_TIME && time_ns <= f->at)
        return cd_arena_printf(arena, "the run ended after %s", end);
    if (f->when == CDDP_FAULT_TIME) return "what it was to strike had ended before";
    if (f->when >= CDDP_FAULT_BEFORE_JOIN) return "the rank did not try to join so often";
    return cd_arena_printf(arena, "rank %" PRId64 " posted %" PRIu64 " collectives", f->rank,
                           s->faults[i].posts);
}

const char *cd_strikes_find_missing(const cd_strikes *strikes, uint64_t time_ns, cd_arena *arena,
                                    bool *is_exhausted)
{
    const cd_strikes *s = strikes;
    const char *words = "";
    for (size_t i = 0; s->faults != NULL && words != NULL && i < s->plan->fault_count; i++) {
        char fault[CD_FAULT_WORDS_BYTES];
        if (!is_missing(s, i)) continue;
        cd_plan_fault_print(&s->plan->faults[i], fault, sizeof fault);
        const char *why = print_why(s, i, time_ns, arena);
        words = why == NULL ? NULL
                            : cd_arena_printf(arena, "%s%sfault %zu, %s: %s", words,
                                              words[0] != '\0' ? "; " : "", i + 1, fault, why);
    }
    *is_exhausted |= words == NULL;
    return words != NULL && words[0] == '\0' ? NULL : words;
}

uint64_t cd_strikes_get_missing(const cd_strikes *strikes)
{
    uint64_t missing = 0;
    for (size_t i = 0; strikes->faults != NULL && i < strikes->plan->fault_count; i++)
        if (i < CD_STRIKES_MASK_MAX && is_missing(strikes, i)) missing |= UINT64_C(1) << i;
    return missing;
}
