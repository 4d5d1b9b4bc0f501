/* SPDX-License-Identifier: Apache-2.0 */
/* One still figure. */
#include "verify/timeline/figure.h"

#include <inttypes.h>
#include <string.h>

enum {
    WIDTH = 960,
    LEFT = 132,
    RIGHT = 12,
    TOP = 66,
    ROW = 15,
    GAP = 7,
    RANKS_MAX = 16,
    ROWS_MAX = 8
};

typedef struct drawing {
    cd_text *text;
    const cd_timeline *timeline;
    uint64_t from, to; /* events that are shown */
    uint32_t rank_count;
    uint32_t ranks[RANKS_MAX]; /* (rank_count) that are shown, ascending */
    int top[RANKS_MAX][CD_LANE_COUNT], rows[RANKS_MAX][CD_LANE_COUNT];
    int rank_top[RANKS_MAX + 1];
} drawing;

static void put_escaped(cd_text *text, const char *value)
{
    for (const char *at = value; *at != '\0'; at++) switch (*at) {
        case '<':
            cd_text_push(text, "&lt;");
            break;
        case '>':
            cd_text_push(text, "&gt;");
            break;
        case '&':
            cd_text_push(text, "&amp;");
            break;
        default:
            cd_text_push_bytes(text, at, 1);
        }
}

/* Which of the shown ranks this is; rank_count: none. */
static uint32_t index_of(const drawing *d, uint32_t rank)
{
    for (uint32_t i = 0; i < d->rank_count; i++)
        if (d->ranks[i] == rank) return i;
    return d->rank_count;
}

/* The ranks of findings, and of the others the first ones. */
static void choose_ranks(drawing *d)
{
    const cd_timeline *t = d->timeline;
    for (size_t i = 0; i < t->spot_count && d->rank_count < RANKS_MAX; i++)
        if (t->spots[i].at != UINT64_MAX && index_of(d, t->spots[i].rank) == d->rank_count)
            d->ranks[d->rank_count++] = t->spots[i].rank;
    for (uint32_t rank = 0; rank < t->rank_count && d->rank_count < RANKS_MAX; rank++)
        if (index_of(d, rank) == d->rank_count) d->ranks[d->rank_count++] = rank;
    for (uint32_t i = 1; i < d->rank_count; i++)
        for (uint32_t k = i; k > 0 && d->ranks[k - 1] > d->ranks[k]; k--) {
            const uint32_t larger = d->ranks[k - 1];
            d->ranks[k - 1] = d->ranks[k];
            d->ranks[k] = larger;
        }
}

static bool is_shown(const drawing *d, const cd_slice *s)
{
    return index_of(d, s->rank) < d->rank_count && s->from <= d->to &&
           (s->to > d->from || s->from >= d->from);
}

/* The events that the last slices cover: the least begin that leaves so many. */
static void choose_window(drawing *d, size_t slices)
{
    const cd_timeline *t = d->timeline;
    uint64_t low = 0, high = t->event_count;
    while (slices > 0 && low < high) {
        const uint64_t middle = low + (high - low) / 2;
        size_t count = 0;
        for (size_t i = 0; i < t->slice_count; i++) count += t->slices[i].from >= middle;
        if (count <= slices)
            high = middle;
        else
            low = middle + 1;
    }
    /* nothing is drawn before the first of them */
    d->from = t->event_count;
    for (size_t i = 0; i < t->slice_count; i++)
        if ((slices == 0 || t->slices[i].from >= low) && t->slices[i].from < d->from)
            d->from = t->slices[i].from;
    d->to = d->from + 1;
    for (size_t i = 0; i < t->slice_count; i++)
        if (t->slices[i].to > d->to) d->to = t->slices[i].to;
}

static double x_of(const drawing *d, uint64_t at)
{
    const uint64_t inside = at < d->from ? d->from : at > d->to ? d->to : at;
    return LEFT +
           (double)(WIDTH - LEFT - RIGHT) * (double)(inside - d->from) / (double)(d->to - d->from);
}

static void place_rows(drawing *d)
{
    const cd_timeline *t = d->timeline;
    for (size_t i = 0; i < t->slice_count; i++) {
        const cd_slice *s = &t->slices[i];
        if (!is_shown(d, s)) continue;
        int *rows = &d->rows[index_of(d, s->rank)][s->lane];
        const int needed = s->row + 1 > ROWS_MAX ? ROWS_MAX : (int)s->row + 1;
        if (needed > *rows) *rows = needed;
    }
    int y = TOP;
    for (uint32_t r = 0; r < d->rank_count; r++) {
        d->rank_top[r] = y;
        for (int lane = 0; lane < CD_LANE_COUNT; lane++) {
            d->top[r][lane] = y;
            y += d->rows[r][lane] * ROW;
        }
        y += GAP;
    }
    d->rank_top[d->rank_count] = y;
}

static void put_frame(const drawing *d)
{
    for (uint32_t r = 0; r < d->rank_count; r++) {
        cd_text_printf(
            d->text,
            "<path class='line' d='M0 %dH%d'/><text class='rank' x='4' y='%d'>rank %" PRIu32
            "</text>\n",
            d->rank_top[r] - 3, WIDTH, d->rank_top[r] + 11, d->ranks[r]);
        for (int lane = 0; lane < CD_LANE_COUNT; lane++)
            if (d->rows[r][lane] > 0)
                cd_text_printf(d->text, "<text class='dim' x='62' y='%d'>%s</text>\n",
                               d->top[r][lane] + 11, cd_lane_name((cd_lane)lane));
    }
}

static uint32_t row_of(const cd_slice *s) { return s->row < ROWS_MAX ? s->row : ROWS_MAX - 1; }

/* Up to where nothing lies on a slice: those beyond ROWS_MAX share the last row. */
static double free_until(const drawing *d, const cd_slice *s)
{
    const cd_slice *end = d->timeline->slices + d->timeline->slice_count;
    for (const cd_slice *n = s + 1; n < end && n->rank == s->rank && n->lane == s->lane; n++)
        if (row_of(n) == row_of(s) && n->from < s->to) return x_of(d, n->from);
    return x_of(d, s->to);
}

static void put_slice(const drawing *d, const cd_slice *s)
{
    const double x = x_of(d, s->from), wide = x_of(d, s->to) - x, width = wide < 1.5 ? 1.5 : wide;
    const int y = d->top[index_of(d, s->rank)][s->lane] + (int)row_of(s) * ROW;
    cd_text_printf(d->text,
                   "<g class='l%u'><rect x='%.1f' y='%d' width='%.1f' height='%d'/><title>",
                   (unsigned)s->lane, x, y, width, ROW - 2);
    put_escaped(d->text, s->label);
    cd_text_push(d->text, "</title>");
    if (s->end != CD_SLICE_DONE)
        cd_text_printf(d->text, "<rect class='open' x='%.1f' y='%d' width='%.1f' height='%d'/>", x,
                       y, width, ROW - 2);
    /* Some six units per character. */
    if (free_until(d, s) - x > 6.2 * (double)strlen(s->label)) {
        cd_text_printf(d->text, "<text class='label' x='%.1f' y='%d'>", x + 3, y + 10);
        put_escaped(d->text, s->label);
        cd_text_push(d->text, "</text>");
    }
    cd_text_push(d->text, "</g>\n");
}

static void put_spots(const drawing *d)
{
    const cd_timeline *t = d->timeline;
    for (size_t i = 0; i < t->spot_count; i++) {
        const cd_spot *s = &t->spots[i];
        const uint32_t row = index_of(d, s->rank);
        if (s->at == UINT64_MAX || row == d->rank_count || s->at < d->from || s->at > d->to)
            continue;
        const double x = x_of(d, s->at);
        const int y = d->rank_top[row] - 4;
        cd_text_printf(d->text, "<path class='spot' d='M%.1f %dh10l-5 8z'/>\n", x - 5, y);
    }
}

static void put_style(cd_text *text)
{
    cd_text_push(text,
                 "<style>text{fill:#1b1f24}.dim{fill:#57606a;font-size:11px}.rank{font-weight:600}"
                 ".line{stroke:#d0d7de;fill:none}.label{font-size:10.5px;fill:#000}"
                 ".l0 rect{fill:#7fa6cc}.l1 rect{fill:#ccbb44}.l2 rect{fill:#66aa77}"
                 ".l3 rect{fill:#cc77aa}.l4 rect{fill:#ee9955}"
                 ".l0 .open,.l1 .open,.l2 .open,.l3 .open,.l4 .open{fill:url(#open);stroke:#b3261e}"
                 /* slices that lie on others have a rim, labels on hatches too */
                 ".l0,.l1,.l2,.l3,.l4{stroke:#fff;stroke-width:.7}"
                 ".label{paint-order:stroke;stroke-width:3;stroke-linejoin:round}"
                 ".l0 .label{stroke:#7fa6cc}.l1 .label{stroke:#ccbb44}.l2 .label{stroke:#66aa77}"
                 ".l3 .label{stroke:#cc77aa}.l4 .label{stroke:#ee9955}"
                 ".spot{fill:#b3261e}"
                 "@media(prefers-color-scheme:dark){text{fill:#e6e9ed}.dim{fill:#9aa4af}"
                 ".label{fill:#000}.line{stroke:#353b43}}</style>\n<defs><pattern id='open' "
                 "width='7' height='7' patternUnits='userSpaceOnUse'><path d='M0 7L7 0' "
                 "stroke='#b3261e'/></pattern></defs>\n");
}

void cd_figure_print(cd_text *text, const cd_figure *f)
{
    const cd_timeline *t = f->timeline;
    drawing d = {.text = text, .timeline = t};
    choose_ranks(&d);
    choose_window(&d, f->slices);
    place_rows(&d);
    cd_text_printf(text,
                   "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' role='img' "
                   "font-family='system-ui,sans-serif' font-size='12'>\n<title>",
                   WIDTH, d.rank_top[d.rank_count] + 22);
    put_escaped(text, f->headline[0] != '\0' ? f->headline : f->title);
    cd_text_push(text, "</title>\n");
    put_style(text);
    cd_text_push(text, "<text x='4' y='20' font-size='14' font-weight='600'>");
    put_escaped(text, f->title);
    cd_text_push(text, "</text>\n<text x='4' y='42' font-size='13'>");
    put_escaped(text, f->headline);
    cd_text_push(text, "</text>\n");
    put_frame(&d);
    for (size_t i = 0; i < t->slice_count; i++)
        if (is_shown(&d, &t->slices[i])) put_slice(&d, &t->slices[i]);
    put_spots(&d);
    cd_text_printf(text,
                   "<text class='dim' x='4' y='%d'>events %" PRIu64 " to %" PRIu64
                   ", in their order; hatched: failed or never ended; a mark: of a finding",
                   d.rank_top[d.rank_count] + 14, d.from + 1, d.to);
    if (t->rank_count > d.rank_count)
        cd_text_printf(text, "; %d of %" PRIu32 " ranks", RANKS_MAX, t->rank_count);
    cd_text_push(text, "</text>\n</svg>\n");
}
