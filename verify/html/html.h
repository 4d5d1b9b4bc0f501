/* SPDX-License-Identifier: Apache-2.0 */
/* A report as one page that opens from disk: everything it needs lies in the file, and it asks no
** network for anything.
**
** The page has the report as text (for readers without JavaScript, and for print), the same report
** as JSON, the timelines of its runs, and the pages of the rules that it names. page.js draws them.
** Same results, same bytes.
*/
#pragma once
#include "verify/report/report.h"
#include "verify/timeline/timeline.h"

typedef struct cd_html {
    const cd_report *report;
    /* (report->count) NULL where a run has none; NULL: none has */
    const cd_timeline *const *timelines;
    const char *why; /* there are no timelines, in words; NULL: nothing to say */
} cd_html;

void cd_html_print(cd_text *text, const cd_html *html);
