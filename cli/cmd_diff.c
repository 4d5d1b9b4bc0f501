/* SPDX-License-Identifier: Apache-2.0 */
/* diff: where two recorded runs first differ, in each dimension by itself.
**
** Runs on different transports happen at different times, so nothing is compared by time: the k-th
** operation that a rank posted in a group is compared with the k-th of the other run. What an order
** may change without being wrong (the order in which operations end) is not looked at.
*/
#include "cddp/store.h"
#include "cli/command.h"
#include "cli/report_card.h"
#include "cli/sources.h"
#include "core/base/error.h"
#include "core/trace/event.h"
#include "core/trace/sink.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dimension {
    DIM_ORDER,
    DIM_SHAPE,
    DIM_DTYPE,
    DIM_CONTENT,
    DIM_RESULT,
    DIM_COUNT
} dimension;
static const char *const dimension_names[DIM_COUNT] = {"order", "shape", "dtype", "content",
                                                       "result"};

typedef struct side {
    char path[1024];
    int64_t run;
    cd_memory_sink events;
    uint32_t level;
} side;

typedef struct difference {
    bool found;
    bool has_a, has_b;
    cddp_event a, b;
} difference;

static cddp_status take_level(void *context, const cddp_stored_run *run, cddp_error *err)
{
    (void)err;
    ((side *)context)->level = run->provenance.level;
    return CDDP_OK;
}

static cddp_status load_shards(side *s, const char *operand, cddp_error *err)
{
    cd_source source;
    snprintf(s->path, sizeof s->path, "%s", operand);
    CD_TRY(cd_source_open(&source, &operand, 1, err));
    s->level = source.level;
    cddp_status status = cd_source_replay(&source, &s->events.sink, err);
    if (status == CDDP_OK) status = s->events.sink.flush(s->events.sink.self, err);
    cd_source_close(&source);
    return CD_PASS(status);
}

/* "runs.db:2" is run 2; a file of that very name wins over the number. */
static cddp_status side_load(side *s, const char *operand, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    if (cd_source_is_shards(operand)) return CD_PASS(load_shards(s, operand, err));
    cddp_store *store = NULL;
    const char *colon = strrchr(operand, ':');
    char *end = NULL;
    s->run = colon != NULL ? strtoll(colon + 1, &end, 10) : 0;
    bool numbered = colon != NULL && end != colon + 1 && *end == '\0' && s->run > 0;
    size_t length = numbered ? (size_t)(colon - operand) : strlen(operand);
    if (length >= sizeof s->path)
        return cd_fail(err, CDDP_E_ARG, "the path '%s' is too long", operand);
    memcpy(s->path, operand, length);
    CD_TRY(cddp_store_open(s->path, CDDP_STORE_READ, NULL, &store, err));
    if (!numbered) CD_TRY_OUT(cddp_store_last_run(store, &s->run, err));
    CD_TRY_OUT(cddp_store_each_run(store, s->run, take_level, s, err));
    CD_TRY_OUT(cddp_store_each_event(store, s->run, CDDP_STORE_RECORDED, &s->events.sink, err));
    CD_TRY_OUT(s->events.sink.flush(s->events.sink.self, err));
out:
    cddp_store_close(store);
    return status;
}

/* An operation is known by kind of event, rank, group and sequence; everything else is compared. */
static bool is_compared(const cddp_event *e)
{
    return e->kind == CDDP_EV_collective_post || e->kind == CDDP_EV_collective_done ||
           e->kind == CDDP_EV_bucket_launch;
}

static void key_of(const cddp_event *e, int64_t key[4])
{
    key[0] = e->kind;
    key[1] = e->rank;
    key[2] = e->kind == CDDP_EV_collective_post   ? e->as.collective_post.group
             : e->kind == CDDP_EV_collective_done ? e->as.collective_done.group
                                                  : e->as.bucket_launch.group;
    key[3] = e->kind == CDDP_EV_collective_post   ? e->as.collective_post.sequence
             : e->kind == CDDP_EV_collective_done ? e->as.collective_done.sequence
                                                  : e->as.bucket_launch.sequence;
}

typedef struct keyed {
    int64_t key[4];
    size_t index;
} keyed;

/* By group, sequence, rank, kind: the order in which a reader looks for the first difference. */
static int compare_keys(const void *pa, const void *pb)
{
    const keyed *a = pa, *b = pb;
    static const int order[4] = {2, 3, 1, 0};
    for (int i = 0; i < 4; i++) {
        int k = order[i];
        if (a->key[k] != b->key[k]) return a->key[k] < b->key[k] ? -1 : 1;
    }
    return a->index < b->index ? -1 : a->index > b->index;
}

static cddp_status keys_make(const side *s, keyed **keys, size_t *count, cddp_error *err)
{
    *keys = malloc((s->events.count + 1) * sizeof **keys);
    if (*keys == NULL) return cd_fail_memory(err, "a comparison of %zu events", s->events.count);
    *count = 0;
    for (size_t i = 0; i < s->events.count; i++) {
        if (!is_compared(&s->events.events[i])) continue;
        key_of(&s->events.events[i], (*keys)[*count].key);
        (*keys)[(*count)++].index = i;
    }
    qsort(*keys, *count, sizeof **keys, compare_keys);
    return CDDP_OK;
}

static void note(difference *d, const cddp_event *a, const cddp_event *b)
{
    if (d->found) return;
    d->found = true;
    d->has_a = a != NULL;
    d->has_b = b != NULL;
    if (a != NULL) d->a = *a;
    if (b != NULL) d->b = *b;
}

static void compare_events(const cddp_event *a, const cddp_event *b, bool digests,
                           difference differences[DIM_COUNT])
{
    if (a->kind == CDDP_EV_collective_post) {
        const cddp_event_collective_post *x = &a->as.collective_post, *y = &b->as.collective_post;
        if (x->op != y->op || x->reduce_op != y->reduce_op || x->root != y->root ||
            x->bucket != y->bucket)
            note(&differences[DIM_ORDER], a, b);
        else if (x->numel != y->numel)
            note(&differences[DIM_SHAPE], a, b);
        else if (x->dtype != y->dtype)
            note(&differences[DIM_DTYPE], a, b);
        else if (digests && x->digest != y->digest)
            note(&differences[DIM_CONTENT], a, b);
    } else if (a->kind == CDDP_EV_bucket_launch) {
        const cddp_event_bucket_launch *x = &a->as.bucket_launch, *y = &b->as.bucket_launch;
        if (x->bucket != y->bucket || x->content != y->content) note(&differences[DIM_ORDER], a, b);
    } else {
        const cddp_event_collective_done *x = &a->as.collective_done, *y = &b->as.collective_done;
        if (x->status != y->status || (digests && x->digest != y->digest))
            note(&differences[DIM_RESULT], a, b);
    }
}

static cddp_status compare_sides(const side *a, const side *b, difference differences[DIM_COUNT],
                                 size_t *compared, cddp_error *err)
{
    keyed *ka = NULL, *kb = NULL;
    size_t na = 0, nb = 0, i = 0, k = 0;
    cddp_status status = CDDP_OK;
    bool digests = a->level >= CDDP_TRACE_DIGEST && b->level >= CDDP_TRACE_DIGEST;
    CD_TRY_OUT(keys_make(a, &ka, &na, err));
    CD_TRY_OUT(keys_make(b, &kb, &nb, err));
    while (i < na || k < nb) {
        keyed x = {{0}, 0}, y = {{0}, 0};
        if (i < na) x = ka[i];
        if (k < nb) y = kb[k];
        x.index = y.index = 0; /* keys alone decide */
        int order = i >= na ? 1 : k >= nb ? -1 : compare_keys(&x, &y);
        const cddp_event *ea = order <= 0 ? &a->events.events[ka[i].index] : NULL,
                         *eb = order >= 0 ? &b->events.events[kb[k].index] : NULL;
        if (order == 0)
            compare_events(ea, eb, digests, differences);
        else
            note(&differences[DIM_ORDER], ea, eb);
        i += order <= 0;
        k += order >= 0;
        ++*compared;
    }
out:
    free(ka);
    free(kb);
    return status;
}

static void put_side(cd_text *text, const side *s, bool has, const cddp_event *event)
{
    char words[1024];
    if (has) cd_event_print(event, words, sizeof words);
    cd_text_printf(text, s->run > 0 ? "    %s:%" PRId64 "  " : "    %s  ", s->path, s->run);
    cd_text_wrap(text, has ? words : "nothing of the kind", 6, 110);
}

static void fill_card(cd_card *card, const side *a, const side *b,
                      const difference differences[DIM_COUNT], size_t compared)
{
    cd_card_init(card, "diff", b->path, true);
    for (int d = 0; d < DIM_COUNT; d++) {
        cd_text words;
        cd_text_init(&words, false);
        if (differences[d].found) {
            put_side(&words, a, differences[d].has_a, &differences[d].a);
            put_side(&words, b, differences[d].has_b, &differences[d].b);
        }
        cd_card_add_line(card, &(cd_card_line){.state = differences[d].found ? CD_CARD_FAILED
                                                                             : CD_CARD_PASSED,
                                               .name = dimension_names[d],
                                               .title = "both runs are the same in this",
                                               .message = cd_text_get(&words)});
        cd_text_fini(&words);
    }
    cd_card_add_text(card, "against", a->path);
    cd_card_add_number(card, "operations", (double)compared);
}

static int report(cd_cli *cli, const cd_report_target *target, const side *a, const side *b,
                  const difference differences[DIM_COUNT], size_t compared)
{
    cd_text text;
    bool any = false;
    cd_report_card_begin(cli, target, &text);
    for (int d = 0; d < DIM_COUNT; d++) {
        if (!differences[d].found) continue;
        any = true;
        cd_text_style(&text, CD_STYLE_RED, "%s", dimension_names[d]);
        cd_text_push(&text, "  the runs first differ here\n");
        put_side(&text, a, differences[d].has_a, &differences[d].a);
        put_side(&text, b, differences[d].has_b, &differences[d].b);
    }
    if (!any) {
        cd_text_style(&text, CD_STYLE_GREEN, "no difference");
        cd_text_printf(&text, "  in %zu operations of run %" PRId64 " and run %" PRId64 "%s\n",
                       compared, a->run, b->run,
                       a->level < CDDP_TRACE_DIGEST || b->level < CDDP_TRACE_DIGEST
                           ? "; content was not recorded"
                           : "");
    }
    cd_card card;
    fill_card(&card, a, b, differences, compared);
    return cd_report_card_send(cli, target, &card, &text, any ? "different" : "no difference",
                               any ? CD_EXIT_FINDINGS : CD_EXIT_VERIFIED, NULL);
}

int cd_command_diff(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    side sides[2];
    difference differences[DIM_COUNT] = {{0}};
    size_t compared = 0;
    memset(sides, 0, sizeof sides);
    for (int i = 0; i < 2; i++) cd_memory_sink_init(&sides[i].events, NULL);
    cd_report_target target;
    cddp_status status = cd_report_target_read(cli->args, &target, &err);
    if (status == CDDP_OK) status = cd_report_target_check(&target, &err);
    if (status == CDDP_OK && cli->args->operand_count != 2)
        status = cd_fail(&err, CDDP_E_ARG,
                         "diff what? name two stores, each with :RUN when not its last run");
    for (int i = 0; i < 2 && status == CDDP_OK; i++)
        status = side_load(&sides[i], cli->args->operands[i], &err);
    if (status == CDDP_OK)
        status = compare_sides(&sides[0], &sides[1], differences, &compared, &err);
    int exit_code = status == CDDP_OK
                        ? report(cli, &target, &sides[0], &sides[1], differences, compared)
                        : cd_cli_fail(cli, &err);
    for (int i = 0; i < 2; i++) cd_memory_sink_fini(&sides[i].events);
    return exit_code;
}
