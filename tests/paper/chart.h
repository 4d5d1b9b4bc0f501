/* SPDX-License-Identifier: Apache-2.0 */
/* Line charts as SVG, written the same on every machine.
**
** Lifetime   one call writes a chart and borrows everything that it points to.
*/
#pragma once
#include <stdbool.h>
#include <stdio.h>

#define CHART_POINTS_MAX 32
#define CHART_SERIES_MAX 8

typedef struct chart_series {
    const char *label;
    /* points, joined by a line where x is a quantity; else rings: somebody measured them */
    bool is_ours;
    int colour; /* series that are to be compared share one, 0 … 3 */
    int count;
    double x[CHART_POINTS_MAX], y[CHART_POINTS_MAX];
} chart_series;

typedef struct chart {
    const char *title, *x_label, *y_label;
    bool x_is_logarithmic, y_is_logarithmic;
    bool x_is_a_number;   /* of a case, no quantity */
    double y_low, y_high; /* of the axis; x runs from the first to the last point */
    int series_count;
    chart_series series[CHART_SERIES_MAX];
} chart;

void chart_add(chart *c, int series, double x, double y);
void chart_write(const chart *c, FILE *file);
