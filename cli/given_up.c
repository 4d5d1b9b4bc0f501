/* SPDX-License-Identifier: Apache-2.0 */
/* Rows by link and reason, in the order of their first event. What follows a colon in a reason
** belongs to one rank, and is left out. */
#include "cli/given_up.h"

#include <stdio.h>
#include <string.h>

static void add(void *self, const cddp_event *event)
{
    cd_given_up *g = self;
    if (event->kind != CDDP_EV_unjudged) return;
    const cddp_event_unjudged *e = &event->as.unjudged;
    const char *text = event->text != NULL ? event->text : "";
    const int length = (int)strcspn(text, ":");
    cd_given_up_row row = {.link = e->link, .count = (uint64_t)e->count};
    snprintf(row.why, sizeof row.why, "%.*s", length, text);
    for (size_t i = 0; i < g->row_count; i++) {
        if (g->rows[i].link != row.link || strcmp(g->rows[i].why, row.why) != 0) continue;
        g->rows[i].count += row.count;
        return;
    }
    if (g->row_count < CD_GIVEN_UP_MAX)
        g->rows[g->row_count++] = row;
    else
        g->others += row.count;
}

void cd_given_up_init(cd_given_up *given_up)
{
    *given_up = (cd_given_up){.row_count = 0};
    given_up->sink = (cddp_trace_sink){sizeof given_up->sink, CDDP_TRACE_ABI, given_up, add, NULL};
}

/* As in events.def. */
static const char *word_of(int64_t link)
{
    switch (link) {
    case CDDP_LINK_FREE:
        return "steps of the free-running reference";
    case CDDP_LINK_FORMULA:
        return "updates by the published formula";
    case CDDP_LINK_DERIVATIVE:
        return "gradients by the derivative of the loss";
    default:
        return "comparisons";
    }
}

void cd_given_up_print(const cd_given_up *given_up, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < given_up->row_count && used < text_bytes; i++) {
        const cd_given_up_row *row = &given_up->rows[i];
        const int written =
            snprintf(text + used, text_bytes - used, "%s%llu %s (%s)", i > 0 ? "; " : "",
                     (unsigned long long)row->count, word_of(row->link), row->why);
        used += written > 0 ? (size_t)written : 0;
    }
    if (given_up->others > 0 && used < text_bytes)
        snprintf(text + used, text_bytes - used, "; %llu for other reasons",
                 (unsigned long long)given_up->others);
}
