/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline as one still figure (SVG): for documents, where the page would be too much.
**
** It shows the last `slices` slices (0: all), by the order of events, since on the simulator much
** takes no time. Findings are marked; what failed or never ended is hatched.
*/
#pragma once
#include "verify/timeline/timeline.h"
#include "core/base/text.h"

typedef struct cd_figure {
    const cd_timeline *timeline;
    const char *title, *headline; /* headline: "" when there is nothing to say */
    size_t slices;
} cd_figure;

void cd_figure_print(cd_text *text, const cd_figure *figure);
