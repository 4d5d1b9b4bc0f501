/* SPDX-License-Identifier: Apache-2.0 */
/* The page: its frame, and the data that page.js reads. */
#include "verify/html/html.h"

#include "cddp/tensor.h"
#include "core/base/alloc.h"
#include "core/base/hash.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

extern const char cd_page_style[], cd_page_script[]; /* made by CMake from page.css and page.js */

/* ---- JSON without blanks: most of the page is numbers ---- */

/* A '<' could end the element that the data stands in. */
static void put_quoted(cd_text *text, const char *value)
{
    cd_text_push(text, "\"");
    for (const char *at = value; *at != '\0';) {
        const size_t length = cd_utf8_length(at);
        const unsigned char byte = (unsigned char)*at;
        if (length == 0)
            cd_text_push(text, "\\ufffd");
        else if (byte == '"' || byte == '\\')
            cd_text_printf(text, "\\%c", byte);
        else if (byte < 0x20 || byte == 0x7f || byte == '<')
            cd_text_printf(text, "\\u%04x", byte);
        else
            cd_text_push_bytes(text, at, length);
        at += length == 0 ? 1 : length;
    }
    cd_text_push(text, "\"");
}

static void put_integer(cd_text *text, int64_t value) { cd_text_printf(text, "%" PRId64, value); }

/* What JSON has no number for is a text. */
static void put_real(cd_text *text, double value)
{
    if (isfinite(value))
        cd_text_printf(text, "%.9g", value);
    else
        cd_text_push(text, isnan(value) ? "\"NaN\"" : value > 0 ? "\"inf\"" : "\"-inf\"");
}

/* ---- labels: few are different ---- */

typedef struct labels {
    const char **items; /* (room) by hash */
    size_t *numbers;    /* (room) in the order in which they were first seen */
    size_t room, count;
} labels;

static size_t place_of(const labels *l, const char *label)
{
    size_t at = (size_t)cd_hash_text(label) & (l->room - 1);
    while (l->items[at] != NULL && strcmp(l->items[at], label) != 0) at = (at + 1) & (l->room - 1);
    return at;
}

static void add_label(labels *l, const char *label, cd_text *text)
{
    const size_t at = place_of(l, label);
    if (l->items[at] != NULL) return;
    l->items[at] = label;
    l->numbers[at] = l->count;
    if (l->count++ > 0) cd_text_push(text, ",");
    put_quoted(text, label);
}

static int64_t group_index(const cd_timeline *t, const cd_slice *s)
{
    for (size_t i = 0; s->sequence >= 0 && i < t->group_count; i++)
        if (t->groups[i].id == s->group) return (int64_t)i;
    return -1;
}

static void put_slice(cd_text *text, const cd_timeline *t, const cd_slice *s, int64_t label)
{
    const int64_t fields[] = {s->rank,
                              s->lane,
                              s->row,
                              s->end,
                              label,
                              s->step,
                              s->micro_step,
                              (int64_t)s->from_ns,
                              (int64_t)(s->to_ns - s->from_ns),
                              (int64_t)s->from,
                              (int64_t)(s->to - s->from),
                              s->bucket,
                              group_index(t, s),
                              s->sequence,
                              s->bytes};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (i > 0) cd_text_push(text, ",");
        put_integer(text, fields[i]);
    }
}

static void put_slices(cd_text *text, const cd_timeline *t)
{
    labels l = {.room = 64};
    while (l.room < 2 * t->slice_count) l.room *= 2;
    l.items = cd_allocate_array(NULL, l.room, sizeof *l.items);
    l.numbers = cd_allocate_array(NULL, l.room, sizeof *l.numbers);
    if (l.items != NULL && l.numbers != NULL) {
        cd_text_push(text, "\"labels\":[");
        for (size_t i = 0; i < t->slice_count; i++) add_label(&l, t->slices[i].label, text);
        cd_text_push(text, "],\n\"slices\":[");
        for (size_t i = 0; i < t->slice_count; i++) {
            if (i > 0) cd_text_push(text, ",\n");
            put_slice(text, t, &t->slices[i], (int64_t)l.numbers[place_of(&l, t->slices[i].label)]);
        }
        cd_text_push(text, "],\n");
    } else {
        text->failed = true;
    }
    cd_release(NULL, l.items, l.room * sizeof *l.items);
    cd_release(NULL, l.numbers, l.room * sizeof *l.numbers);
}

/* ---- the rest of a run ---- */

static void put_names(cd_text *text, const cd_timeline *t)
{
    cd_text_push(text, "\"groups\":[");
    for (size_t i = 0; i < t->group_count; i++) {
        if (i > 0) cd_text_push(text, ",");
        put_quoted(text, t->groups[i].name);
    }
    cd_text_push(text, "],\"params\":{");
    for (size_t i = 0; i < t->param_count; i++) {
        cd_text_printf(text, "%s\"%" PRId64 "\":", i > 0 ? "," : "", t->params[i].id);
        put_quoted(text, t->params[i].name);
    }
    cd_text_push(text, "},\n");
}

static void put_words(cd_text *text, const char *key, cddp_field_type type)
{
    const char *word;
    cd_text_printf(text, "\"%s\":[", key);
    for (int64_t i = 0; (word = cddp_event_word(type, i)) != NULL; i++) {
        if (i > 0) cd_text_push(text, ",");
        put_quoted(text, word);
    }
    cd_text_push(text, "],");
}

static void put_enums(cd_text *text)
{
    put_words(text, "links", CDDP_FIELD_link);
    put_words(text, "shapes", CDDP_FIELD_shape);
    put_words(text, "points", CDDP_FIELD_point);
    cd_text_push(text, "\"dtypes\":[");
    for (int i = 0; i < CDDP_DTYPE_COUNT; i++) {
        if (i > 0) cd_text_push(text, ",");
        put_quoted(text, cddp_dtype_name((cddp_dtype)i));
    }
    cd_text_push(text, "],\n");
}

static void put_layouts(cd_text *text, const cd_timeline *t)
{
    cd_text_push(text, "\"slots\":[");
    for (size_t i = 0; i < t->slot_count; i++) {
        const cd_slot *s = &t->slots[i];
        cd_text_printf(text,
                       "%s[%" PRIu32 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                       ",%" PRId64 ",%" PRId64,
                       i > 0 ? "," : "", s->rank, s->generation, s->bucket, s->slot, s->param,
                       s->offset, s->numel, s->dtype);
        if (s->wrapper > 0) cd_text_printf(text, ",%" PRId64, s->wrapper);
        cd_text_push(text, "]");
    }
    cd_text_push(text, "],\n\"uses\":[");
    for (size_t i = 0; i < t->use_count; i++) {
        const cd_use *u = &t->uses[i];
        cd_text_printf(text, "%s[%" PRId64 ",%" PRIu32 ",%" PRId64 ",%" PRId64 "]",
                       i > 0 ? "," : "", u->rank == CD_EVERY_RANK ? -1 : (int64_t)u->rank, u->step,
                       u->param, u->used);
    }
    cd_text_push(text, "],\n");
}

static void put_cells(cd_text *text, const cd_timeline *t)
{
    cd_text_push(text, "\"cells\":[");
    for (size_t i = 0; i < t->cell_count; i++) {
        const cd_cell *c = &t->cells[i];
        cd_text_printf(text,
                       "%s[%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRId64 ",%" PRId64 ",%" PRId64
                       ",%" PRId64 ",%" PRId64 ",%" PRId64,
                       i > 0 ? ",\n" : "", c->rank, c->step, c->micro_step, c->link, c->param,
                       c->element, c->ulps, c->bad, c->shape);
        const double reals[] = {c->expected, c->actual, c->bound, c->ratio};
        for (size_t k = 0; k < sizeof reals / sizeof *reals; k++) {
            cd_text_push(text, ",");
            put_real(text, reals[k]);
        }
        cd_text_push(text, "]");
    }
    cd_text_push(text, "],\n");
}

static void put_picks(cd_text *text, const cd_timeline *t)
{
    cd_text_push(text, "\"picks\":[");
    for (size_t i = 0; i < t->pick_count; i++) {
        const cd_pick *p = &t->picks[i];
        cd_text_printf(text, "%s[%" PRIu64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",",
                       i > 0 ? "," : "", p->at, p->point, p->options, p->chosen, p->who);
        put_quoted(text, p->name);
        cd_text_push(text, "]");
    }
    cd_text_push(text, "],\n");
}

/* Where the events of the findings stand. */
static void put_spots(cd_text *text, const cd_timeline *t, const cddp_verdict *verdict)
{
    bool used = false;
    cd_text_push(text, "\"spots\":[");
    for (size_t f = 0; f < verdict->finding_count; f++) {
        const cddp_finding *finding = &verdict->findings[f];
        for (uint32_t e = 0; e < finding->event_count && e < CDDP_FINDING_EVENTS_MAX; e++)
            for (size_t i = 0; i < t->spot_count; i++) {
                const cd_spot *s = &t->spots[i];
                if (s->rank != finding->events[e].rank || s->at == UINT64_MAX ||
                    s->sequence != finding->events[e].sequence)
                    continue;
                cd_text_printf(text,
                               "%s{\"finding\":%zu,\"rank\":%" PRIu32 ",\"at\":%" PRIu64
                               ",\"ns\":%" PRIu64 "}",
                               used ? "," : "", f, s->rank, s->at, s->time_ns);
                used = true;
                break;
            }
    }
    cd_text_push(text, "],");
}

static void put_left(cd_text *text, const cd_timeline *t)
{
    cd_text words;
    if (t->slices_left + t->cells_left + t->picks_left == 0) return;
    cd_text_init(&words, false);
    cd_text_push(&words, "this run is too large for one page. Not drawn:");
    const struct {
        uint64_t count;
        const char *name;
    } left[] = {{t->slices_left, "slices"},
                {t->cells_left, "values or used parameters"},
                {t->picks_left, "choices"}};
    bool is_first = true;
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++) {
        if (left[i].count == 0) continue;
        cd_text_printf(&words, "%s %" PRIu64 " %s", is_first ? "" : ",", left[i].count,
                       left[i].name);
        is_first = false;
    }
    cd_text_push(&words,
                 ". What is far from the findings is left out first; the recording has it.");
    cd_text_push(text, "\"left\":");
    put_quoted(text, cd_text_get(&words));
    cd_text_push(text, ",");
    cd_text_fini(&words);
}

static void put_run(cd_text *text, const cd_timeline *t, const cddp_verdict *verdict)
{
    if (t == NULL) {
        cd_text_push(text, "null");
        return;
    }
    cd_text_printf(text, "{\"ranks\":%" PRIu32 ",\"events\":%" PRIu64 ",\"end\":%" PRIu64 ",",
                   t->rank_count, t->event_count, t->end_ns);
    put_left(text, t);
    put_spots(text, t, verdict);
    put_enums(text);
    put_names(text, t);
    put_layouts(text, t);
    put_cells(text, t);
    put_picks(text, t);
    put_slices(text, t);
    cd_text_push(text, "\"size\":15}");
}

/* ---- the page ---- */

/* Text between tags. */
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

/* In JSON a '<' stands in texts alone. */
static void put_report(cd_text *text, const cd_report *report)
{
    cd_text json;
    cd_text_init(&json, false);
    cd_report_json(&json, report);
    for (const char *at = cd_text_get(&json); *at != '\0';) {
        const size_t length = strcspn(at, "<");
        cd_text_push_bytes(text, at, length);
        at += length;
        if (*at == '<') cd_text_push(text, "\\u003c"), at++;
    }
    text->failed |= json.failed;
    cd_text_fini(&json);
}

static bool is_named_before(const cd_report *report, size_t result, size_t finding)
{
    const char *name = report->results[result].verdict.findings[finding].check;
    for (size_t r = 0; r <= result; r++)
        for (size_t f = 0; f < (r < result ? report->results[r].verdict.finding_count : finding);
             f++)
            if (strcmp(report->results[r].verdict.findings[f].check, name) == 0) return true;
    return false;
}

static void put_rules(cd_text *text, const cd_html *html)
{
    const cd_report *report = html->report;
    bool used = false;
    cd_text_push(text, "{");
    for (size_t r = 0; report->explain != NULL && r < report->count; r++)
        for (size_t f = 0; f < report->results[r].verdict.finding_count; f++) {
            const char *name = report->results[r].verdict.findings[f].check;
            cd_text page;
            if (is_named_before(report, r, f)) continue;
            cd_text_init(&page, false);
            if (report->explain(name, &page)) {
                if (used) cd_text_push(text, ",");
                used = true;
                put_quoted(text, name);
                cd_text_push(text, ":");
                put_quoted(text, cd_text_get(&page));
            }
            text->failed |= page.failed;
            cd_text_fini(&page);
        }
    cd_text_push(text, "}");
}

static void put_text(cd_text *text, const cd_report *report)
{
    cd_text words;
    cd_text_init(&words, false);
    if (report->card != NULL)
        cd_text_push(&words, report->card->text);
    else
        cd_report_text(&words, report);
    cd_text_push(text, "<section id=\"text\"><h2>As text</h2><details><summary>the report as a "
                       "terminal shows it</summary>\n<pre>");
    put_escaped(text, cd_text_get(&words));
    cd_text_push(text, "</pre></details></section>\n");
    text->failed |= words.failed;
    cd_text_fini(&words);
}

void cd_html_print(cd_text *text, const cd_html *html)
{
    const cd_report *report = html->report;
    cd_text_push(text, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta "
                       "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<meta "
                       "name=\"generator\" content=\"cddp-verify\">\n<title>");
    put_escaped(text, report->card != NULL ? report->card->subject
                      : report->count > 0  ? report->results[0].title
                                           : "cddp-verify");
    cd_text_push(text, "</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n");
    cd_text_push(text, cd_page_style);
    cd_text_push(text, "</style></head><body>\n<nav id=\"nav\" aria-label=\"sections\"></nav>\n"
                       "<main id=\"main\"><noscript>This page draws with JavaScript. The report "
                       "as text stands below.</noscript></main>\n");
    put_text(text, report);
    cd_text_push(text, "<script type=\"application/json\" id=\"report\">\n");
    put_report(text, report);
    cd_text_push(text, "</script>\n<script type=\"application/json\" id=\"runs\">\n{\"why\":");
    put_quoted(text, html->why != NULL ? html->why : "");
    cd_text_push(text, ",\"runs\":[");
    for (size_t i = 0; i < report->count; i++) {
        if (i > 0) cd_text_push(text, ",");
        put_run(text, html->timelines != NULL ? html->timelines[i] : NULL,
                &report->results[i].verdict);
    }
    cd_text_push(text, "]}\n</script>\n<script type=\"application/json\" id=\"rules\">\n");
    put_rules(text, html);
    cd_text_push(text, "\n</script>\n<script>\n");
    cd_text_push(text, cd_page_script);
    cd_text_push(text, "</script>\n</body></html>\n");
}
