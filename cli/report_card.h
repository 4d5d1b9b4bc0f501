/* SPDX-License-Identifier: Apache-2.0 */
/* Sends what a search, a proof, a battery or a comparison found, in whatever format was asked for.
**
** Text is what the command wrote by itself. Every other format is made from the card. Where one run
** shows what was found, it is run once more and is part of the report, with its timeline.
*/
#pragma once
#include "cli/report_target.h"
#include "cli/session.h"
#include "verify/report/card.h"

/* The run that shows it. */
typedef struct cd_card_run {
    const char *path;      /* of the scenario */
    const char *overrides; /* lines, see overrides.h */
    const char *schedule;  /* NULL: the plan's own */
    bool expects_nothing;  /* whatever the scenario expects */
} cd_card_run;

/* A text for a report: with colours where it goes to a terminal. */
void cd_report_card_begin(const cd_cli *cli, const cd_report_target *target, cd_text *text);
/* Ends the card, writes text or what the format asks for; frees both. run NULL: none. */
int cd_report_card_send(cd_cli *cli, const cd_report_target *target, cd_card *card, cd_text *text,
                        const char *verdict, int exit_code, const cd_card_run *run);
