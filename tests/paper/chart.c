/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinates with one decimal, tick marks at round numbers, a legend at the right. */
#include "tests/paper/chart.h"

#include <math.h>

enum { LEFT = 70, TOP = 40, WIDTH = 520, HEIGHT = 300, LEGEND = LEFT + WIDTH + 20 };
static const char *const colours[] = {"#1b6ca8", "#c0392b", "#2e7d32", "#8e6c00"};

void chart_add(chart *c, int series, double x, double y)
{
    chart_series *s = &c->series[series];
    s->x[s->count] = x;
    s->y[s->count++] = y;
    if (series >= c->series_count) c->series_count = series + 1;
}

typedef struct axis {
    double low, high;
    bool is_logarithmic;
} axis;

static double place(axis a, double value)
{
    if (a.is_logarithmic) return (log(value) - log(a.low)) / (log(a.high) - log(a.low));
    return (value - a.low) / (a.high - a.low);
}

static double x_at(axis a, double value) { return LEFT + WIDTH * place(a, value); }
static double y_at(axis a, double value) { return TOP + HEIGHT * (1 - place(a, value)); }

static axis x_axis(const chart *c)
{
    axis a = {INFINITY, -INFINITY, c->x_is_logarithmic};
    for (int s = 0; s < c->series_count; s++)
        for (int i = 0; i < c->series[s].count; i++) {
            a.low = fmin(a.low, c->series[s].x[i]);
            a.high = fmax(a.high, c->series[s].x[i]);
        }
    return a;
}

/* 1, 2 or 5 times a power of ten, so that there are four to nine ticks. */
static double step_of(axis a)
{
    double unit = pow(10, floor(log10((a.high - a.low) / 4)));
    for (int i = 0; i < 3; i++) {
        double step = unit * (i == 0 ? 5 : i == 1 ? 2 : 1);
        if ((a.high - a.low) / step >= 4) return step;
    }
    return unit;
}

static void write_tick(FILE *f, bool is_x, double at, double value)
{
    if (is_x) {
        fprintf(f, "<path d=\"M%.1f %dv5\" stroke=\"#444\"/>\n", at, TOP + HEIGHT);
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", at,
                TOP + HEIGHT + 18, value);
    } else {
        fprintf(f, "<path d=\"M%d %.1fh%d\" stroke=\"#ddd\"/>\n", LEFT, at, WIDTH);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8, at + 4,
                value);
    }
}

static void write_ticks(FILE *f, bool is_x, axis a)
{
    if (!a.is_logarithmic) {
        double step = step_of(a);
        for (long k = lround(ceil(a.low / step)); (double)k * step <= a.high + step * 1e-6; k++)
            write_tick(f, is_x, is_x ? x_at(a, (double)k * step) : y_at(a, (double)k * step),
                       (double)k * step);
        return;
    }
    for (double decade = 1e-6; decade < 1e9; decade *= 10)
        for (int i = 0; i < 3; i++) {
            double value = decade * (i == 0 ? 1 : i == 1 ? 2 : 5);
            if (value >= a.low * 0.999 && value <= a.high * 1.001)
                write_tick(f, is_x, is_x ? x_at(a, value) : y_at(a, value), value);
        }
}

static bool is_inside(const chart_series *s, axis y)
{
    for (int i = 0; i < s->count; i++)
        if (s->y[i] > y.high) return false;
    return true;
}

static void write_clip(FILE *f, const chart *c, axis y)
{
    bool is_needed = false;
    for (int s = 0; s < c->series_count; s++) is_needed = is_needed || !is_inside(&c->series[s], y);
    if (is_needed)
        fprintf(f,
                "<clipPath id=\"plot\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
                "</clipPath>\n",
                LEFT, TOP, WIDTH, HEIGHT);
}

/* What lies above the axis is named, not drawn. */
static void write_series(FILE *f, const chart_series *s, axis x, axis y, bool is_joined, int row)
{
    const char *colour = colours[s->colour];
    double at = TOP + 10 + 20 * row;
    const char *fill = s->is_ours ? colour : "none";
    if (s->is_ours && is_joined) {
        fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"%s points=\"", colour,
                is_inside(s, y) ? "" : " clip-path=\"url(#plot)\"");
        for (int i = 0; i < s->count; i++)
            fprintf(f, "%s%.1f,%.1f", i > 0 ? " " : "", x_at(x, s->x[i]), y_at(y, s->y[i]));
        fputs("\"/>\n", f);
        fprintf(f, "<path d=\"M%d %.1fh20\" stroke=\"%s\" stroke-width=\"1.5\"/>\n", LEGEND, at,
                colour);
    }
    for (int i = 0; i < s->count; i++)
        if (s->y[i] > y.high)
            fprintf(f, "<text x=\"%.1f\" y=\"%d\" fill=\"%s\">\342\206\221 %.2f</text>\n",
                    x_at(x, s->x[i]), TOP - 4, colour, s->y[i]);
        else
            fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"%s\" stroke=\"%s\"/>\n",
                    x_at(x, s->x[i]), y_at(y, s->y[i]), s->is_ours ? "2" : "4", fill, colour);
    fprintf(f, "<circle cx=\"%d\" cy=\"%.1f\" r=\"%s\" fill=\"%s\" stroke=\"%s\"/>\n", LEGEND + 10,
            at, s->is_ours ? "2" : "4", fill, colour);
    fprintf(f, "<text x=\"%d\" y=\"%.1f\">%s</text>\n", LEGEND + 28, at + 4, s->label);
}

void chart_write(const chart *c, FILE *f)
{
    axis x = x_axis(c), y = {c->y_low, c->y_high, c->y_is_logarithmic};
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" "
            "font-size=\"12\" fill=\"#222\">\n<rect width=\"100%%\" height=\"100%%\" "
            "fill=\"white\"/>\n",
            LEGEND + 230, TOP + HEIGHT + 50);
    fprintf(f, "<text x=\"%d\" y=\"22\" font-size=\"14\">%s</text>\n", LEFT, c->title);
    write_ticks(f, false, y);
    write_ticks(f, true, x);
    fprintf(f, "<path d=\"M%d %dv%dh%d\" fill=\"none\" stroke=\"#444\"/>\n", LEFT, TOP, HEIGHT,
            WIDTH);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", LEFT + WIDTH / 2,
            TOP + HEIGHT + 38, c->x_label);
    fprintf(f,
            "<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            TOP + HEIGHT / 2, c->y_label);
    write_clip(f, c, y);
    for (int s = 0; s < c->series_count; s++)
        write_series(f, &c->series[s], x, y, !c->x_is_a_number, s);
    fputs("</svg>\n", f);
}
