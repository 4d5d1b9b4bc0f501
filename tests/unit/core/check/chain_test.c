/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor followed through the moments of two steps, judged by I-CHAIN: stories as events, each
** with its clean twin. */
#include "core/check/check.h"

#include "cddp/backend.h"
#include "cddp/keys.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <string.h>

#define GROUP 7
#define RANKS 2u
#define SEED_DIGEST 100

/* What happens to a tensor, and where. */
typedef enum kind {
    VALUE,     /* it is shown */
    EXPECTED,  /* the judge says what it must be */
    CLIPS,     /* and what the rank made of it instead */
    FINAL,     /* a gradient: its reduction left it */
    CONSUMED,  /* a gradient: the optimizer took it */
    LEFT_OUT,  /* a gradient: the optimizer did not take it */
    BACKWARD,  /* a backward begins */
    ZEROED,    /* gradients are filled with zeros */
    DROPPED,   /* gradients are dropped */
    STEPPED,   /* an optimizer stepped */
    SENT,      /* the rank broadcasts numbers of this digest */
    ENTERED,   /* the judge says what a broadcast of the buffers would send */
    SYNCED,    /* buffers came from rank 0 */
    JOINED,    /* the rank ended join with rank 0's state */
    COMPARED,  /* the oracle found the buffer equal */
    STATE_BAD, /* the oracle found optimizer state wrong */
    SHAPES,    /* the plan's device has no values */
    STEP       /* the next step begins */
} kind;

typedef struct happening {
    kind kind;
    int64_t moment, digest;
    int64_t presence; /* 0: as the digest says */
} happening;

#define HAPPENINGS_MAX 16
typedef struct story {
    const char *name;
    int64_t what;
    uint32_t ranks; /* a bit for each on whom it happens; the others show nothing */
    happening happenings[HAPPENINGS_MAX];
    const char *words; /* of the first finding's title; NULL: nothing is wrong */
    size_t findings;
} story;

#define V(moment, digest)                      \
    {                                          \
        VALUE, CDDP_MOMENT_##moment, digest, 0 \
    }
#define X(moment, digest)                         \
    {                                             \
        EXPECTED, CDDP_MOMENT_##moment, digest, 0 \
    }
#define P CDDP_WHAT_PARAMETER
#define G CDDP_WHAT_GRADIENT
#define B CDDP_WHAT_BUFFER
#define O CDDP_WHAT_OPTIMIZER

static const story stories[] = {
    /* clang-format off */
    {"a step", P, 3, {V(BEGIN, 1), V(AFTER_BACKWARD, 1), V(BEFORE_STEP, 1), {STEPPED, 0, 0, 0}, X(AFTER_UPDATE, 2), V(AFTER_UPDATE, 2), V(AFTER_STEP, 2), {STEP, 0, 0, 0}, X(BEGIN, 3), V(BEGIN, 3), V(END, 3)}, NULL, 0},
    {"moved while backward runs", P, 3, {V(BEGIN, 1), V(AFTER_BACKWARD, 5), V(BEFORE_STEP, 5)}, "all ranks: parameter w changed between the begin of step 0 and after backward of step 0", 1},
    {"moved on one rank", P, 2, {V(BEGIN, 1), V(AFTER_BACKWARD, 5)}, "rank 1: parameter w changed", 1},
    {"moved before the update", P, 3, {V(BEGIN, 1), V(AFTER_BACKWARD, 1), V(BEFORE_STEP, 5)}, "between after backward of step 0 and before step of step 0", 1},
    {"moved though nothing stepped", P, 3, {V(BEGIN, 1), V(BEFORE_STEP, 1), V(AFTER_UPDATE, 2)}, "and after update of step 0", 1},
    {"stepped, and nobody judges", P, 3, {V(BEGIN, 1), V(BEFORE_STEP, 1), {STEPPED, 0, 0, 0}, V(AFTER_UPDATE, 2)}, NULL, 0},
    {"another value than the oracle saw", P, 3, {V(BEGIN, 1), {STEPPED, 0, 0, 0}, X(AFTER_UPDATE, 2), V(AFTER_UPDATE, 5)}, "and after update of step 0", 1},
    {"moved after the update", P, 3, {V(BEGIN, 1), {STEPPED, 0, 0, 0}, X(AFTER_UPDATE, 2), V(AFTER_UPDATE, 2), V(AFTER_STEP, 5)}, "between after update of step 0 and after step of step 0", 1},
    {"moved between two steps", P, 3, {V(BEGIN, 1), V(AFTER_STEP, 1), {STEP, 0, 0, 0}, V(BEGIN, 5)}, "between after step of step 0 and the begin of step 1", 1},
    {"changed by right behind its step", P, 3, {V(BEGIN, 1), {STEPPED, 0, 0, 0}, V(AFTER_STEP, 2), V(AFTER_AVERAGE, 5), {STEP, 0, 0, 0}, V(BEGIN, 5)}, NULL, 0},
    {"changed by right, and then moved", P, 3, {V(BEGIN, 1), {STEPPED, 0, 0, 0}, V(AFTER_STEP, 2), V(AFTER_AVERAGE, 5), {STEP, 0, 0, 0}, V(BEGIN, 6)}, "and the begin of step 1", 1},
    {"changed by right at the begin of its step", P, 3, {V(AFTER_STEP, 1), {STEP, 0, 0, 0}, V(AFTER_AVERAGE, 5), {CONSUMED, 0, 4, 0}, {STEPPED, 0, 0, 0}, V(AFTER_STEP, 2)}, NULL, 0},
    {"changed by right at the begin, and then moved", P, 3, {V(AFTER_STEP, 1), {STEP, 0, 0, 0}, V(AFTER_AVERAGE, 5), V(AFTER_STEP, 2)}, "between after average of step 1 and after step of step 1", 1},
    {"off the grid", P, 3, {V(BEGIN, 1), V(AFTER_STEP, 1), {STEP, 0, 0, 0}, X(BEGIN, 2), V(BEGIN, 5)}, "and the begin of step 1", 1},
    {"moved before the end", P, 3, {V(BEGIN, 1), V(AFTER_STEP, 1), V(END, 5)}, "between after step of step 0 and the end", 1},
    {"joined another's end", P, 2, {V(BEGIN, 1), V(AFTER_STEP, 1), {JOINED, 0, 0, 0}, V(END, 5)}, NULL, 0},
    {"the authority of join ends otherwise", P, 1, {V(BEGIN, 1), V(AFTER_STEP, 1), {JOINED, 0, 0, 0}, V(END, 5)}, "rank 0: parameter w changed", 1},
    {"the plan's start", P, 3, {V(BEFORE_INIT, SEED_DIGEST), V(AFTER_INIT, SEED_DIGEST), X(AFTER_INIT, SEED_DIGEST), V(BEGIN, SEED_DIGEST)}, NULL, 0},
    {"another start", P, 3, {V(BEFORE_INIT, 5), V(AFTER_INIT, 5), X(AFTER_INIT, SEED_DIGEST), V(BEGIN, 5)}, "all ranks: parameter w does not start from the plan's initial values", 1},
    {"moved while it is wrapped", P, 1, {V(BEFORE_INIT, 1), V(AFTER_INIT, 5), V(BEGIN, 5)}, "rank 0: parameter w changed between before init sync", 1},
    {"received while it is wrapped", P, 2, {V(BEFORE_INIT, 1), V(AFTER_INIT, 5), V(BEGIN, 5)}, NULL, 0},
    {"saved and loaded", P, 3, {V(AFTER_STEP, 1), V(CHECKPOINT, 1), V(BEFORE_INIT, 9), V(AFTER_INIT, 9), V(RESUME, 1), {STEP, 0, 0, 0}, V(BEGIN, 1)}, NULL, 0},
    {"loaded otherwise", P, 3, {V(AFTER_STEP, 1), V(CHECKPOINT, 1), V(RESUME, 5), {STEP, 0, 0, 0}, V(BEGIN, 5)}, "between checkpoint of step 0 and resume of step 0", 1},
    {"a reduction and its consumer", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, V(AFTER_BACKWARD, 4), V(BEFORE_STEP, 4), {CONSUMED, 0, 4, 0}, {DROPPED, 0, 0, 0}, {STEP, 0, 0, 0}, {VALUE, CDDP_MOMENT_BEGIN, 0, CDDP_PRESENCE_ABSENT}}, NULL, 0},
    {"not what its reduction left", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, V(AFTER_BACKWARD, 5)}, "all ranks: gradient of w changed between reduction of step 0", 1},
    {"moved before it is consumed", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, V(AFTER_BACKWARD, 4), V(BEFORE_STEP, 5)}, "between after backward of step 0 and before step of step 0", 1},
    {"unscaled", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, V(AFTER_BACKWARD, 4), X(BEFORE_STEP, 2), V(BEFORE_STEP, 2)}, NULL, 0},
    {"unscaled otherwise", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, V(AFTER_BACKWARD, 4), X(BEFORE_STEP, 2), V(BEFORE_STEP, 5)}, "and before step of step 0", 1},
    {"another is consumed", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, V(AFTER_BACKWARD, 4), V(BEFORE_STEP, 4), {CONSUMED, 0, 5, 0}}, "between before step of step 0 and optimizer of step 0", 1},
    {"another is consumed in backward", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, {CONSUMED, 0, 5, 0}}, "between reduction of step 0 and optimizer of step 0", 1},
    {"left out by its consumer", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, V(AFTER_BACKWARD, 4), V(BEFORE_STEP, 4), {LEFT_OUT, 0, 0, 0}}, "between before step of step 0 and optimizer of step 0", 1},
    {"absent, and left out", G, 3, {{VALUE, CDDP_MOMENT_BEGIN, 0, CDDP_PRESENCE_ABSENT}, {VALUE, CDDP_MOMENT_BEFORE_STEP, 0, CDDP_PRESENCE_ABSENT}, {LEFT_OUT, 0, 0, 0}}, NULL, 0},
    {"dropped by its consumer", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, {CONSUMED, 0, 4, 0}, V(AFTER_BACKWARD, 4), {STEP, 0, 0, 0}, {VALUE, CDDP_MOMENT_BEGIN, 0, CDDP_PRESENCE_ABSENT}}, NULL, 0},
    {"dropped, and to be kept", G, 3, {{BACKWARD, 0, 0, 0}, {FINAL, 0, 4, 0}, V(AFTER_BACKWARD, 4), {CONSUMED, 0, 4, 0}, {STEP, 0, 0, 0}, {VALUE, CDDP_MOMENT_BEGIN, 0, CDDP_PRESENCE_ABSENT}}, "between after backward of step 0 and the begin of step 1", 1},
    {"filled with zeros", G, 3, {V(BEFORE_STEP, 4), {ZEROED, 0, 0, 0}, {STEP, 0, 0, 0}, {VALUE, CDDP_MOMENT_BEGIN, 7, CDDP_PRESENCE_ZERO}}, NULL, 0},
    {"filled with zeros after a backward that was left", G, 3, {{VALUE, CDDP_MOMENT_BEGIN, 7, CDDP_PRESENCE_ZERO}, {BACKWARD, 0, 0, 0}, {ZEROED, 0, 0, 0}, {STEP, 0, 0, 0}, {VALUE, CDDP_MOMENT_BEGIN, 7, CDDP_PRESENCE_ZERO}}, NULL, 0},
    {"not filled with zeros after a backward that was left", G, 3, {{VALUE, CDDP_MOMENT_BEGIN, 7, CDDP_PRESENCE_ZERO}, {BACKWARD, 0, 0, 0}, {ZEROED, 0, 0, 0}, {STEP, 0, 0, 0}, V(BEGIN, 4)}, "between zero_grad of step 0 and the begin of step 1", 1},
    {"kept from a backward that was left", G, 3, {V(BEGIN, 4), {BACKWARD, 0, 0, 0}, {STEP, 0, 0, 0}, V(BEGIN, 5)}, NULL, 0},
    {"kept without a backward", G, 3, {V(BEGIN, 4), {STEP, 0, 0, 0}, V(BEGIN, 5)}, "between the begin of step 0 and the begin of step 1", 1},
    {"clipped by another factor", G, 3, {V(AFTER_BACKWARD, 4), {CLIPS, CDDP_MOMENT_BEFORE_STEP, 5, 0}, V(BEFORE_STEP, 6)}, "all ranks: gradient of w is clipped by 2 instead of 1 in step 0", 1},
    {"not filled with zeros", G, 3, {V(BEFORE_STEP, 4), {ZEROED, 0, 0, 0}, {STEP, 0, 0, 0}, V(BEGIN, 4)}, "between zero_grad of step 0 and the begin of step 1", 1},
    {"filled with zeros that no digest shows", G, 3, {{SHAPES, 0, 0, 0}, V(BEFORE_STEP, 4), {ZEROED, 0, 0, 0}, {STEP, 0, 0, 0}, V(BEGIN, 4)}, NULL, 0},
    {"dropped, and to be filled with zeros", G, 3, {{SHAPES, 0, 0, 0}, V(BEFORE_STEP, 4), {ZEROED, 0, 0, 0}, {STEP, 0, 0, 0}, {VALUE, CDDP_MOMENT_BEGIN, 0, CDDP_PRESENCE_ABSENT}}, "between zero_grad of step 0 and the begin of step 1", 1},
    {"not dropped", G, 3, {V(BEFORE_STEP, 4), {DROPPED, 0, 0, 0}, {STEP, 0, 0, 0}, V(BEGIN, 4)}, "between zero_grad of step 0 and the begin of step 1", 1},
    {"kept", G, 3, {V(BEFORE_STEP, 4), {STEP, 0, 0, 0}, V(BEGIN, 4)}, NULL, 0},
    {"of a new model, reduced by nobody", G, 3, {V(AFTER_BACKWARD, 4), {DROPPED, 0, 0, 0}, {VALUE, CDDP_MOMENT_CHECKPOINT, 0, CDDP_PRESENCE_ABSENT}, {VALUE, CDDP_MOMENT_RESUME, 0, CDDP_PRESENCE_ABSENT}, {STEP, 0, 0, 0}, {VALUE, CDDP_MOMENT_BEGIN, 0, CDDP_PRESENCE_ABSENT}, {BACKWARD, 0, 0, 0}, V(AFTER_BACKWARD, 6), V(BEFORE_STEP, 6)}, NULL, 0},
    {"of a new model, moved", G, 3, {V(AFTER_BACKWARD, 4), {DROPPED, 0, 0, 0}, {VALUE, CDDP_MOMENT_CHECKPOINT, 0, CDDP_PRESENCE_ABSENT}, {VALUE, CDDP_MOMENT_RESUME, 0, CDDP_PRESENCE_ABSENT}, {STEP, 0, 0, 0}, {VALUE, CDDP_MOMENT_BEGIN, 0, CDDP_PRESENCE_ABSENT}, {BACKWARD, 0, 0, 0}, V(AFTER_BACKWARD, 6), V(BEFORE_STEP, 7)}, "between after backward of step 1 and before step of step 1", 1},
    {"added to by a backward", G, 3, {V(BEGIN, 4), {BACKWARD, 0, 0, 0}, V(AFTER_BACKWARD, 6)}, NULL, 0},
    {"added to by nobody", G, 3, {V(BEGIN, 4), V(AFTER_BACKWARD, 6)}, "and after backward of step 0", 1},
    {"statistics of a batch", B, 3, {V(BEGIN, 1), V(FORWARD, 1), V(AFTER_FORWARD, 2), {COMPARED, 0, 0, 0}, V(AFTER_BACKWARD, 2), {STEP, 0, 0, 0}, V(BEGIN, 2)}, NULL, 0},
    {"statistics move before the forward", B, 3, {V(BEGIN, 1), V(FORWARD, 5)}, "all ranks: buffer b changed between the begin of step 0 and forward entry of step 0", 1},
    {"statistics move after the forward", B, 3, {V(BEGIN, 1), V(FORWARD, 1), V(AFTER_FORWARD, 2), V(AFTER_BACKWARD, 5)}, "between after forward of step 0 and after backward of step 0", 1},
    {"a layer ran again in the backward", B, 3, {V(BEGIN, 1), V(FORWARD, 1), V(AFTER_FORWARD, 2), {COMPARED, 0, 0, 0}, V(AFTER_BACKWARD, 5)}, NULL, 0},
    {"rank 0's buffers arrive", B, 2, {V(BEGIN, 1), {SYNCED, 0, 0, 0}, V(FORWARD, 5)}, NULL, 0},
    {"a buffer that arrived moves afterwards", B, 2, {V(BEGIN, 1), {SYNCED, 0, 0, 0}, V(FORWARD, 5), V(AFTER_FORWARD, 6), V(AFTER_BACKWARD, 7)}, "rank 1: buffer b changed between after forward of step 0 and after backward of step 0", 1},
    {"a buffer that arrived stays", B, 2, {V(BEGIN, 1), {SYNCED, 0, 0, 0}, V(FORWARD, 5), V(AFTER_FORWARD, 6), V(AFTER_BACKWARD, 6), {STEP, 0, 0, 0}, V(BEGIN, 6), V(END, 6)}, NULL, 0},
    {"rank 0's own buffers move", B, 1, {V(BEGIN, 1), {SYNCED, 0, 0, 0}, V(FORWARD, 5)}, "rank 0: buffer b changed", 1},
    {"buffers move before their broadcast", B, 3, {V(BEGIN, 1), {SENT, 0, 77, 0}, {SYNCED, 0, 0, 0}, {ENTERED, 0, 77, 0}, V(FORWARD, 5)}, "rank 0: buffer b changed", 1},
    {"buffers move behind their broadcast", B, 3, {V(BEGIN, 1), {SENT, 0, 77, 0}, {SYNCED, 0, 0, 0}, {ENTERED, 0, 78, 0}, V(FORWARD, 5)}, "all ranks: buffer b changed between the begin of step 0 and forward entry of step 0", 1},
    {"rank 0's buffers move behind their broadcast", B, 1, {V(BEGIN, 1), {SENT, 0, 77, 0}, {SYNCED, 0, 0, 0}, {ENTERED, 0, 78, 0}, V(FORWARD, 5)}, "rank 0: buffer b changed", 1},
    {"slots and step count", O, 3, {V(BEGIN, 1), V(BEFORE_STEP, 1), {STEPPED, 0, 0, 0}, X(AFTER_UPDATE, 2), V(AFTER_UPDATE, 2), V(AFTER_STEP, 2)}, NULL, 0},
    {"the step count is reset", O, 3, {V(BEGIN, 1), V(BEFORE_STEP, 1), {STEPPED, 0, 0, 0}, X(AFTER_UPDATE, 2), V(AFTER_UPDATE, 5)}, "all ranks: optimizer state 0 changed between before step of step 0", 1},
    {"slots that the oracle has reported", O, 3, {V(BEGIN, 1), V(BEFORE_STEP, 1), {STEPPED, 0, 0, 0}, {STATE_BAD, 0, 0, 0}, X(AFTER_UPDATE, 2), V(AFTER_UPDATE, 5)}, NULL, 0},
    {"slots are zeroed between two steps", O, 3, {V(BEGIN, 1), V(AFTER_STEP, 1), {STEP, 0, 0, 0}, V(BEGIN, 5)}, "and the begin of step 1", 1},
    {"a hook's debts are lost", CDDP_WHAT_HOOK, 3, {V(BEGIN, 1), V(AFTER_STEP, 2), {STEP, 0, 0, 0}, V(BEGIN, 5)}, "all ranks: state of the hook changed between after step of step 0", 1},
    {"a hook's debts grow in a step", CDDP_WHAT_HOOK, 3, {V(BEGIN, 1), V(AFTER_STEP, 2), {STEP, 0, 0, 0}, V(BEGIN, 2)}, NULL, 0},
    {"a scaler's count is lost", CDDP_WHAT_SCALER, 3, {V(AFTER_STEP, 2), {STEP, 0, 0, 0}, V(BEGIN, 5)}, "state of the loss scaler changed", 1},
    {"two breaks are two findings", P, 3, {V(BEGIN, 1), V(AFTER_BACKWARD, 5), V(BEFORE_STEP, 6)}, "and after backward of step 0", 2},
    {"what was found is where it goes on", P, 3, {V(BEGIN, 1), V(AFTER_BACKWARD, 5), V(BEFORE_STEP, 5), V(AFTER_STEP, 5), {STEP, 0, 0, 0}, V(BEGIN, 5)}, "and after backward of step 0", 1},
    /* clang-format on */
};

typedef struct reporter {
    const cddp_trace_sink *sink;
    uint64_t sequence;
    uint32_t rank, step;
} reporter;

static void push(reporter *r, cddp_event e)
{
    e.rank = r->rank;
    e.step = r->step;
    e.sequence = r->sequence++;
    e.level = CDDP_TRACE_DIGEST;
    r->sink->event(r->sink->self, &e);
}
#define PUSH(r, name, ...) push((r), (cddp_event){.kind = CDDP_EV_##name, .as.name = {__VA_ARGS__}})

static int64_t presence_of(const happening *h)
{
    return h->presence != 0 || h->digest == 0 ? h->presence : CDDP_PRESENCE_VALUE;
}

static void push_happening(reporter *r, const story *s, const happening *h)
{
    switch (h->kind) {
    case VALUE:
        PUSH(r, value, .what = s->what, .moment = h->moment, .digest = h->digest,
             .presence = presence_of(h));
        return;
    case EXPECTED:
        PUSH(r, expected, .what = s->what, .moment = h->moment, .digest = h->digest,
             .presence = CDDP_PRESENCE_VALUE);
        return;
    case CLIPS:
        push(r, (cddp_event){.kind = CDDP_EV_expected,
                             .text = "as it was judged; here it is clipped by 2 instead of 1",
                             .as.expected = {.what = s->what,
                                             .moment = h->moment,
                                             .digest = h->digest,
                                             .presence = CDDP_PRESENCE_VALUE}});
        return;
    case FINAL:
        PUSH(r, grad_final, .digest = h->digest, .presence = CDDP_PRESENCE_VALUE);
        return;
    case CONSUMED:
        PUSH(r, optimizer_touch, .touched = 1, .gradient = h->digest);
        return;
    case LEFT_OUT:
        PUSH(r, optimizer_touch, .touched = 0);
        return;
    case BACKWARD:
        PUSH(r, backward_begin, .sync = 1);
        return;
    case ZEROED:
    case DROPPED:
        PUSH(r, zero_grad, .optimizer = -1, .to_none = h->kind == DROPPED);
        return;
    case STEPPED:
        PUSH(r, optimizer_step, .skipped = 0);
        return;
    case SENT:
        PUSH(r, collective_post, .op = CDDP_OP_BROADCAST, .group = GROUP, .digest = h->digest);
        return;
    case ENTERED:
        push(r, (cddp_event){.kind = CDDP_EV_mark,
                             .text = CD_TRACER_ENTERED,
                             .as.mark.value = h->digest});
        return;
    case SYNCED:
        PUSH(r, buffer_sync, .authority = 0);
        return;
    case JOINED:
        PUSH(r, join_end, .authority = 0);
        return;
    case COMPARED:
        PUSH(r, compare, .link = CDDP_LINK_BUFFER, .element = -1);
        return;
    case STATE_BAD:
        PUSH(r, compare, .link = CDDP_LINK_OPTIMIZER, .bad = 1);
        return;
    case SHAPES:
        push(r, (cddp_event){.kind = CDDP_EV_option,
                             .text = "shape",
                             .as.option = {.key = cd_setting_id(CDDP_KEY_model_device),
                                           .items = 1,
                                           .value = CDDP_MODEL_DEVICE_SHAPE}});
        return;
    default:
        r->step += h->kind == STEP;
        return;
    }
}

static void push_rank(const cddp_trace_sink *sink, const story *s, uint32_t rank)
{
    reporter r = {.sink = sink, .rank = rank};
    PUSH(&r, group, .group = GROUP, .members = RANKS, .group_rank = rank, .order = CDDP_ORDER_SAME);
    push(&r, (cddp_event){.kind = CDDP_EV_param,
                          .text = "w",
                          .as.param = {.numel = 4, .requires_grad = 1}});
    push(&r, (cddp_event){.kind = CDDP_EV_buffer, .text = "b", .as.buffer = {.numel = 4}});
    PUSH(&r, wrap, .params = 1, .group = GROUP, .init_sync = 1);
    for (size_t i = 0; (s->ranks >> rank & 1) != 0 && i < HAPPENINGS_MAX; i++) {
        const happening *h = &s->happenings[i];
        const bool is_over = h->kind == VALUE && h->moment == 0 && h->digest == 0;
        if (is_over) return;
        push_happening(&r, s, h);
    }
}

/* Rank 1 has its start from rank 0's broadcast: it is not wrong by itself. */
TEST(chain, a_wrong_start_that_was_broadcast_is_its_senders)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t own[RANKS];
        const char *words;
    } rows[] = {{"all start as the plan says", {SEED_DIGEST, SEED_DIGEST}, NULL},
                {"rank 0 does not", {5, SEED_DIGEST}, "rank 0: parameter w does not start"},
                {"nobody does", {5, 5}, "all ranks: parameter w does not start"}};
    const cddp_check *checks[] = {cd_check_find("I-CHAIN")};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_judge *judge;
        const cd_judge_options options = {.checks = checks, .check_count = 1};
        cd_test_row("%s", rows[i].name);
        assert_int_equal(cd_judge_create(&options, &judge, NULL), CDDP_OK);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            const story start = {.what = P,
                                 .ranks = 3,
                                 .happenings = {V(BEFORE_INIT, rows[i].own[rank]),
                                                V(AFTER_INIT, rows[i].own[0]),
                                                X(AFTER_INIT, SEED_DIGEST)}};
            push_rank(cd_judge_get_sink(judge), &start, rank);
        }
        assert_int_equal(cd_judge_end(judge, NULL), CDDP_OK);
        assert_int_equal(cd_judge_finding_count(judge), rows[i].words != NULL);
        if (rows[i].words != NULL)
            assert_non_null(strstr(cd_judge_get_finding(judge, 0)->title, rows[i].words));
        cd_judge_destroy(judge);
    }
}

TEST(chain, each_break_is_found_where_it_is_and_its_twin_is_silent)
{
    (void)state;
    const cddp_check *checks[] = {cd_check_find("I-CHAIN")};
    assert_non_null(checks[0]);
    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        const story *s = &stories[i];
        cd_judge *judge;
        const cd_judge_options options = {.checks = checks, .check_count = 1};
        cd_test_row("%s", s->name);
        assert_int_equal(cd_judge_create(&options, &judge, NULL), CDDP_OK);
        for (uint32_t rank = 0; rank < RANKS; rank++) push_rank(cd_judge_get_sink(judge), s, rank);
        assert_int_equal(cd_judge_end(judge, NULL), CDDP_OK);
        assert_int_equal(cd_judge_finding_count(judge), s->findings);
        if (s->words != NULL) {
            const cddp_finding *f = cd_judge_get_finding(judge, 0);
            cd_test_row("%s: %s", s->name, f->title);
            assert_non_null(strstr(f->title, s->words));
        }
        cd_judge_destroy(judge);
    }
}

TEST_MAIN()
