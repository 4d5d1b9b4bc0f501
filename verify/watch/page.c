/* SPDX-License-Identifier: Apache-2.0 */
/* One page about a job. Ranks that do the same share a line. */
#include "cddp/backend.h"
#include "cddp/cddp.h"
#include "core/base/alloc.h"
#include "core/base/rank_list.h"
#include "core/trace/rank_end.h"
#include "verify/hang/graph.h"
#include "verify/hang/headline.h"
#include "verify/report/json.h"
#include "verify/report/report.h"
#include "verify/watch/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 110

bool cd_watch_is_dead(const cd_watch *w)
{
    uint32_t gone = 0, known = 0, ended = 0;
    for (uint32_t i = 0; i < w->rank_count; i++) {
        const cd_watch_rank *r = &w->ranks[i];
        if (r->is_known && !r->has_ended && !r->is_gone && !r->is_cut && !w->is_abandoned)
            return false;
        gone += r->is_gone && !r->has_ended;
        known += r->is_known;
        ended += r->is_known && r->has_ended;
    }
    /* a run that was interrupted is not finished, but says how each rank ended */
    return gone > 0 || (w->is_abandoned && (known == 0 || ended < known));
}

bool cd_watch_is_over(const cd_watch *w)
{
    const bool may_begin = w->event_count == 0 || (w->is_growing && w->silent > 0);
    return w->is_whole || (w->running == 0 && !may_begin) || cd_watch_is_dead(w);
}

bool cd_watch_is_stalled(const cd_watch *w, const cd_watch_page *page)
{
    return w->open > 0 && w->silent_ns >= page->stall_ns;
}

static uint64_t age_of(const cd_watch *w, const cd_watch_rank *r)
{
    return w->now_ns > r->time_ns ? w->now_ns - r->time_ns : 0;
}

static const char *kind_name(const cd_watch_rank *r)
{
    const cddp_event_info *info = cddp_event_describe(r->kind);
    return info != NULL ? info->name : "event";
}

static const cd_watch_post *last_post(const cd_watch_rank *r)
{
    return r->post_count > 0 ? &r->posts[(r->post_count - 1) % CD_WATCH_POSTS] : NULL;
}

static const char *op_name(int64_t op)
{
    return op >= 0 && op < CDDP_OP_COUNT ? cddp_op_name((cddp_op)op) : "operation";
}

static const char *group_name(const cd_watch *w, int64_t id)
{
    for (size_t i = 0; i < w->group_count; i++)
        if (w->groups[i].id == id) return w->groups[i].name;
    return "";
}

/* "waits for 2", "runs", "was killed" */
static void put_state(const cd_watch *w, uint32_t rank, cd_text *text)
{
    const cd_watch_rank *r = &w->ranks[rank];
    const cddp_wait *wait = cd_hang_find(&w->verdict, rank);
    const bool is_over = r->has_ended && wait == NULL;
    const bool has_passed = r->has_ended || w->is_abandoned;
    if (r->is_cut && !r->has_ended) {
        cd_text_push(text, "its recording stopped, what it does is not known");
    } else if (r->is_gone && !r->has_ended) {
        cd_text_printf(text, "its process %" PRId64 " is gone", r->process);
    } else if (!r->is_known) {
        cd_text_push(text, "has shown nothing yet");
    } else if (is_over && r->end.result.end == CDDP_RANK_RETURNED) {
        cd_text_push(text, r->end.result.status == CDDP_OK          ? "ended normally"
                           : r->end.result.status == CDDP_E_TIMEOUT ? "timed out"
                                                                    : "ended with an error");
    } else if (is_over) {
        char words[64];
        cd_rank_end_print(&r->end.result, words, sizeof words);
        cd_text_push(text, words);
    } else if (r->is_stopped) {
        cd_text_printf(text, "is stopped (SIGSTOP), last event %s", kind_name(r));
    } else if (wait == NULL) {
        cd_text_printf(text, "%s, last event %s", w->is_abandoned ? "said no end" : "runs",
                       kind_name(r));
    } else if (wait->peer_count == 0 && !wait->is_inside && wait->sequence >= 0) {
        cd_text_push(text, has_passed ? "waited; not every member is recorded"
                                      : "waits; not every member is recorded");
    } else if (wait->peer_count == 0) {
        cd_text_push(text, has_passed ? "waited; all members had posted it"
                                      : "waits; all members have posted it");
    } else {
        char who[160];
        const cd_rank_array peers = {wait->peers, wait->peer_count};
        cd_rank_list_print(&(cd_rank_list){&peers, cd_rank_array_next}, CD_NO_RANK, who,
                           sizeof who);
        cd_text_printf(text, "%s for %s", has_passed ? "waited" : "waits", who);
    }
}

static void put_collective(const cd_watch *w, const cd_watch_rank *r, cd_text *text)
{
    const cd_watch_post *p = last_post(r);
    if (p == NULL) {
        cd_text_push(text, "-");
        return;
    }
    const char *name = group_name(w, p->group);
    cd_text_printf(text, "%s #%" PRId64, op_name(p->op), p->sequence);
    if (strcmp(name, "world") != 0 && name[0] != '\0') cd_text_printf(text, " of '%s'", name);
    if (p->bucket >= 0) cd_text_printf(text, " (bucket %" PRId64 ")", p->bucket);
    if (r->is_last_done) cd_text_push(text, ", done");
}

/* What ranks that share a line have in common. */
static void put_words(const cd_watch *w, uint32_t rank, cd_text *text)
{
    cd_text collective;
    cd_text_init(&collective, false);
    put_collective(w, &w->ranks[rank], &collective);
    cd_text_printf(text, "step %-6" PRIu32 " %-36s ", w->ranks[rank].end.step,
                   cd_text_get(&collective));
    put_state(w, rank, text);
    cd_text_fini(&collective);
}

typedef struct same_line {
    char *const *words; /* (rank_count) */
    uint32_t rank, rank_count;
} same_line;

static uint32_t next_same(const void *self, uint32_t from)
{
    const same_line *l = self;
    for (uint32_t i = from; i < l->rank_count; i++)
        if (strcmp(l->words[i], l->words[l->rank]) == 0) return i;
    return CD_NO_RANK;
}

static bool is_first(char *const *words, uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++)
        if (strcmp(words[i], words[rank]) == 0) return false;
    return true;
}

/* The time is that of the rank that was silent for longest. */
static void put_rank_line(const cd_watch *w, const same_line *l, cd_text *text)
{
    char who[160], since[CD_DURATION_BYTES] = "-";
    uint64_t longest_ns = 0;
    for (uint32_t i = l->rank; i != CD_NO_RANK; i = next_same(l, i + 1))
        if (age_of(w, &w->ranks[i]) > longest_ns) longest_ns = age_of(w, &w->ranks[i]);
    cd_rank_list_print(&(cd_rank_list){l, next_same}, CD_NO_RANK, who, sizeof who);
    if (w->ranks[l->rank].is_known)
        cd_duration_print(longest_ns / 1000000000 * 1000000000, since, sizeof since);
    if (longest_ns < 1000000000) snprintf(since, sizeof since, "now");
    cd_text_style(text, cd_hang_is_culprit(&w->verdict, l->rank) ? CD_STYLE_RED : CD_STYLE_NONE,
                  "  %-16s %-11s %s", who, since, l->words[l->rank]);
    cd_text_push(text, "\n");
}

static void put_ranks(const cd_watch *w, cd_text *text)
{
    char **words = cd_allocate_array(NULL, w->rank_count, sizeof *words);
    bool is_whole = words != NULL;
    for (uint32_t i = 0; is_whole && i < w->rank_count; i++) {
        cd_text line;
        cd_text_init(&line, false);
        put_words(w, i, &line);
        words[i] = line.failed ? NULL : cd_strdup(NULL, cd_text_get(&line));
        is_whole = words[i] != NULL;
        cd_text_fini(&line);
    }
    for (uint32_t i = 0; is_whole && i < w->rank_count; i++)
        if (is_first(words, i)) put_rank_line(w, &(same_line){words, i, w->rank_count}, text);
    for (uint32_t i = 0; words != NULL && i < w->rank_count; i++) cd_strfree(NULL, words[i]);
    cd_release(NULL, words, w->rank_count * sizeof *words);
    text->failed = text->failed || !is_whole;
}

static void put_line(cd_text *text, const char *label, const char *words)
{
    cd_text_push(text, "  ");
    cd_text_style(text, CD_STYLE_CYAN, "%-10s", label);
    cd_text_wrap(text, words, 12, WIDTH);
}

/* Its number before it, unless the message has that. */
static void put_message(char *words, size_t words_bytes, uint32_t rank, const char *message)
{
    char name[24];
    const int length = snprintf(name, sizeof name, "rank %" PRIu32, rank);
    const bool has_name = strncmp(message, name, (size_t)length) == 0;
    snprintf(words, words_bytes, "%s%s%s", has_name ? "" : name, has_name ? "" : ": ", message);
}

/* What a rank showed last that keeps others waiting: it has no error to quote. */
static void put_culprits(const cd_watch *w, cd_text *text)
{
    for (uint32_t i = 0; i < w->rank_count; i++) {
        const cd_watch_rank *r = &w->ranks[i];
        char since[CD_DURATION_BYTES], words[CDDP_ERROR_MESSAGE_BYTES + 64];
        if (!cd_hang_is_culprit(&w->verdict, i) || cd_hang_find(&w->verdict, i) != NULL) continue;
        const char *still = r->is_stopped ? ": its process is stopped (SIGSTOP)" : "";
        cd_duration_print(age_of(w, r) / 1000000000 * 1000000000, since, sizeof since);
        if (r->is_gone && !r->has_ended)
            snprintf(words, sizeof words,
                     "rank %" PRIu32 ": its process %" PRId64 " is gone, and it said no end", i,
                     r->process);
        else if (r->has_ended && r->end.result.error.message[0] == '\0')
            continue; /* the headline says how */
        else if (r->has_ended)
            put_message(words, sizeof words, i, r->end.result.error.message);
        else
            snprintf(words, sizeof words,
                     "rank %" PRIu32 "%s: its last event is %s in step %" PRIu32 ", %s ago", i,
                     still, kind_name(r), r->end.step, since);
        put_line(text, "why", words);
    }
}

/* Who waits for whom, and what is known of the culprit. */
static void put_hang(const cd_watch *w, const char *label, cd_text *text)
{
    cd_text line;
    cd_text_init(&line, false);
    cd_hang_print(&w->verdict, &line);
    const char *words = cd_text_get(&line), *after = strchr(words, ' ');
    put_line(text, label, after != NULL ? after + 1 : words);
    cd_text_fini(&line);
    put_culprits(w, text);
}

static void put_stall(const cd_watch *w, cd_text *text)
{
    char since[CD_DURATION_BYTES];
    cd_duration_print(w->silent_ns / 1000000000 * 1000000000, since, sizeof since);
    cd_text_style(text, CD_STYLE_RED, "no progress for %s", since);
    cd_text_printf(text, ": no rank has emitted an event, and %" PRId64 " operation%s open\n",
                   w->open, w->open == 1 ? " is" : "s are");
    if (w->verdict.wait_count == 0) {
        put_line(text, "", "no rank waits for an operation: look at what they do between them");
        return;
    }
    put_hang(w, "hang:", text);
}

/* A job that has no end and will have none: it or its judge was killed. */
static void put_death(const cd_watch *w, cd_text *text)
{
    char since[CD_DURATION_BYTES];
    cd_duration_print(w->silent_ns / 1000000000 * 1000000000, since, sizeof since);
    cd_text_style(text, CD_STYLE_RED, "nothing writes it any more");
    cd_text_printf(text, ": the last event was %s ago, and it says no end\n", since);
    if (w->verdict.wait_count > 0) put_hang(w, "last:", text);
}

void cd_watch_print(const cd_watch *w, const cd_watch_page *page, cd_text *text)
{
    cd_text_style(text, CD_STYLE_BOLD, "%s", page->source);
    cd_text_printf(text, ": %s%s%" PRIu32 " rank%s, %" PRIu32 " running, ", page->program,
                   page->program[0] != '\0' ? ", " : "", w->rank_count,
                   w->rank_count == 1 ? "" : "s", w->running);
    if (w->silent > 0) cd_text_printf(text, "%" PRIu32 " silent, ", w->silent);
    cd_text_printf(text, "%" PRIu64 " events\n", w->event_count);
    cd_text_style(text, CD_STYLE_CYAN, "  %-16s %-11s %-11s %-36s %s", "who", "since", "where",
                  "last collective", "and");
    cd_text_push(text, "\n");
    put_ranks(w, text);
    if (cd_watch_is_dead(w))
        put_death(w, text);
    else if (cd_watch_is_stalled(w, page))
        put_stall(w, text);
    else if (w->running == 0 && w->verdict.wait_count > 0)
        put_hang(w, "hang:", text);
}

static void put_json_rank(const cd_watch *w, uint32_t rank, cd_json *json)
{
    const cd_watch_rank *r = &w->ranks[rank];
    const cd_watch_post *p = last_post(r);
    const cddp_wait *wait = cd_hang_find(&w->verdict, rank);
    cd_text state;
    cd_text_init(&state, false);
    put_state(w, rank, &state);
    cd_json_open(json, '{');
    cd_json_put_integer(json, "rank", rank);
    cd_json_put_integer(json, "step", r->end.step);
    cd_json_put_text(json, "state", cd_text_get(&state));
    cd_json_put_text(json, "event", r->is_known ? kind_name(r) : NULL);
    cd_json_key(json, "seconds");
    cd_json_number(json, r->is_known ? (double)age_of(w, r) / 1e9 : 0);
    cd_json_key(json, "process");
    if (r->process >= 0)
        cd_json_integer(json, r->process);
    else
        cd_json_text(json, NULL);
    cd_json_put_flag(json, "running", cd_watch_is_running(w, rank));
    cd_json_key(json, "collective");
    if (p == NULL) {
        cd_json_text(json, NULL);
    } else {
        cd_json_open(json, '{');
        cd_json_put_text(json, "operation", op_name(p->op));
        cd_json_put_text(json, "group", group_name(w, p->group));
        cd_json_put_integer(json, "sequence", p->sequence);
        cd_json_put_integer(json, "bucket", p->bucket);
        cd_json_put_flag(json, "done", r->is_last_done);
        cd_json_close(json, '}');
    }
    cd_json_key(json, "waits_for");
    cd_json_open(json, '[');
    for (size_t i = 0; wait != NULL && i < wait->peer_count; i++)
        cd_json_integer(json, wait->peers[i]);
    cd_json_close(json, ']');
    cd_json_close(json, '}');
    cd_text_fini(&state);
}

void cd_watch_print_json(const cd_watch *w, const cd_watch_page *page, cd_text *text)
{
    cd_json json;
    const bool is_stalled = cd_watch_is_stalled(w, page);
    cd_json_begin(&json, text);
    cd_json_open(&json, '{');
    cd_json_put_text(&json, "tool", "cddp-verify");
    cd_json_put_text(&json, "version", cddp_version());
    cd_json_put_integer(&json, "format", 1);
    cd_json_put_text(&json, "source", page->source);
    cd_json_put_text(&json, "program", page->program);
    cd_json_put_integer(&json, "running", w->running);
    cd_json_put_integer(&json, "events", (int64_t)w->event_count);
    cd_json_put_integer(&json, "open_operations", w->open);
    cd_json_key(&json, "silent_seconds");
    cd_json_number(&json, (double)w->silent_ns / 1e9);
    cd_json_put_flag(&json, "stalled", is_stalled);
    cd_json_put_flag(&json, "dead", cd_watch_is_dead(w));
    cd_json_key(&json, "ranks");
    cd_json_open(&json, '[');
    for (uint32_t i = 0; i < w->rank_count; i++) put_json_rank(w, i, &json);
    cd_json_close(&json, ']');
    if (is_stalled) cd_report_json_hang(&json, &w->verdict);
    cd_json_close(&json, '}');
    cd_text_push(text, "\n");
}
