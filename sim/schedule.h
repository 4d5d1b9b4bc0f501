/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule: the deviations of a run from fifo, and their printable form, the choice string.
**
**     s1:Q2B1(23)3      16 choices fifo, then option 2; one fifo, then option 1; option 23; option
**                       3; fifo from here
**
** Capitals count fifo choices in base 26 (A = 0, B = 1, Z = 25, BA = 26). A digit 1–9 or a number
** in parentheses is the option taken. The form is canonical: no leading A, no zero option, no
** parentheses around a single digit, nothing behind the last deviation. docs/formats/schedule.md
** describes it.
**
** Lifetime   storage of a schedule is the caller's. Strings are borrowed.
** Errors     a malformed string is refused with the position of its first wrong character.
*/
#pragma once
#include "cddp/status.h"

#define CD_SCHEDULE_PREFIX "s1:"

typedef struct cd_deviation {
    uint64_t number; /* choice point */
    uint32_t value;  /* option taken, > 0 */
    uint32_t kind;   /* cddp_choice_kind; 0 when parsed from a string */
} cd_deviation;

typedef struct cd_schedule {
    cd_deviation *items; /* (capacity) in ascending order of number */
    size_t count, capacity;
    uint64_t choice_count; /* choice points passed, deviations or not */
    bool overflowed;       /* more deviations than capacity: there is no string */
} cd_schedule;

/* Counts one choice and keeps it when it deviates. */
void cd_schedule_push(cd_schedule *schedule, uint32_t value, uint32_t kind);
/* Writes the choice string, always terminated; returns the length it wanted (without the
** terminator). */
size_t cd_schedule_print(const cd_schedule *schedule, char *text, size_t text_bytes);
/* Reads one deviation at *text. `previous` is the choice point of the one before, UINT64_MAX at the
** start. *found is false at the end of the string. start: of the whole string, for messages. */
cddp_status cd_schedule_read(const char *start, const char **text, uint64_t previous,
                             cd_deviation *deviation, bool *found, cddp_error *err) CDDP_MUST_CHECK;
/* Checks the prefix and points *text behind it. */
cddp_status cd_schedule_open(const char *start, const char **text, cddp_error *err) CDDP_MUST_CHECK;
