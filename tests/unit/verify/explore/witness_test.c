/* SPDX-License-Identifier: Apache-2.0 */
/* What makes two runs the same for a judge, and what does not. */
#include "verify/explore/witness.h"

#include "core/base/error.h"
#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

#define RANKS 2

typedef struct script {
    cd_recall *recall;
    cd_witness *witness;
    cd_known known;
} script;

static void begin(script *s)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_recall_begin(s->recall, CD_RECALL_LOOKS);
    free(s->witness);
    assert_ok(cd_witness_create(NULL, s->recall, RANKS, &s->witness, &err), &err);
}

static void script_init(script *s)
{
    cddp_error err = CDDP_ERROR_INIT;
    *s = (script){.recall = NULL};
    assert_ok(cd_recall_create(&s->recall, &err), &err);
    begin(s);
}

static void script_fini(script *s)
{
    cd_known_fini(&s->known);
    free(s->witness);
    cd_recall_destroy(s->recall);
}

static void say(const script *s, const cddp_event *event)
{
    s->witness->sink.event(s->witness->sink.self, event);
}

static void ready(const script *s, uint32_t rank, int64_t parameter, int64_t digest)
{
    cddp_event local = {.kind = CDDP_EV_grad_local, .rank = rank},
               mark = {.kind = CDDP_EV_mark_ready, .rank = rank};
    local.as.grad_local.param = mark.as.mark_ready.param = parameter;
    local.as.grad_local.digest = digest;
    say(s, &local);
    say(s, &mark);
}

static void launch(const script *s, uint32_t rank, uint64_t time_ns, const char *text)
{
    say(s, &(cddp_event){
               .kind = CDDP_EV_bucket_launch, .rank = rank, .time_ns = time_ns, .text = text});
}

typedef struct order {
    int64_t first, second;
    bool launches_between;
} order;

static void backward(const script *s, uint32_t rank, order o)
{
    ready(s, rank, o.first, 10 + o.first);
    if (o.launches_between) launch(s, rank, 5, NULL);
    ready(s, rank, o.second, 10 + o.second);
    if (!o.launches_between) launch(s, rank, 5, NULL);
}

static void run(script *s, order a, order b)
{
    begin(s);
    backward(s, 0, a);
    backward(s, 1, b);
}

static const order straight = {0, 1, false}, turned = {1, 0, false};

TEST(witness, ready_gradients_between_other_events_are_a_set)
{
    script s;
    script_init(&s);
    run(&s, straight, straight);
    assert_false(cd_known_has(&s.known, s.witness));
    cd_known_add(&s.known, s.witness);
    run(&s, straight, turned);
    assert_true(cd_known_has(&s.known, s.witness));
    run(&s, turned, turned);
    assert_true(cd_known_has(&s.known, s.witness));
    script_fini(&s);
}

TEST(witness, what_is_ready_at_another_event_counts)
{
    script s;
    script_init(&s);
    run(&s, straight, straight);
    cd_known_add(&s.known, s.witness);
    run(&s, straight, (order){0, 1, true});
    assert_false(cd_known_has(&s.known, s.witness));
    cd_known_add(&s.known, s.witness);
    run(&s, straight, (order){1, 0, true});
    assert_false(cd_known_has(&s.known, s.witness));
    script_fini(&s);
}

/* Each rank was seen like that, though not both of them at once. */
TEST(witness, places_of_ready_gradients_are_known_rank_by_rank)
{
    const order between = {0, 1, true};
    script s;
    script_init(&s);
    run(&s, straight, straight);
    cd_known_add(&s.known, s.witness);
    run(&s, between, straight);
    cd_known_add(&s.known, s.witness);
    run(&s, straight, between);
    cd_known_add(&s.known, s.witness);
    run(&s, between, between);
    assert_true(cd_known_has(&s.known, s.witness));
    script_fini(&s);
}

TEST(witness, events_of_one_gradient_are_in_their_order)
{
    script s;
    script_init(&s);
    ready(&s, 0, 3, 1);
    ready(&s, 0, 3, 2);
    cd_known_add(&s.known, s.witness);
    begin(&s);
    ready(&s, 0, 3, 2);
    ready(&s, 0, 3, 1);
    assert_false(cd_known_has(&s.known, s.witness));
    begin(&s);
    ready(&s, 0, 3, 1);
    assert_false(cd_known_has(&s.known, s.witness));
    script_fini(&s);
}

TEST(witness, every_field_counts)
{
    script s;
    script_init(&s);
    launch(&s, 1, 5, "a");
    ready(&s, 1, 0, 7);
    cd_known_add(&s.known, s.witness);
    const struct {
        uint64_t time_ns;
        const char *text;
        int64_t digest;
        uint32_t rank;
        bool equals;
    } rows[] = {{5, "a", 7, 1, true},          {6, "a", 7, 1, false}, {5, "b", 7, 1, false},
                {5, NULL, 7, 1, false},        {5, "a", 8, 1, false}, {5, "a", 7, 0, false},
                {5, "a", 7, UINT32_MAX, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        begin(&s);
        launch(&s, rows[i].rank, rows[i].time_ns, rows[i].text);
        ready(&s, 1, 0, rows[i].digest);
        assert_int_equal(cd_known_has(&s.known, s.witness), rows[i].equals);
    }
    script_fini(&s);
}

TEST(witness, a_closed_one_hears_nothing)
{
    script s;
    script_init(&s);
    launch(&s, 0, 1, NULL);
    const uint64_t before = cd_witness_get_digest(s.witness);
    say(&s, &(cddp_event){.kind = CDDP_EV_choice, .rank = UINT32_MAX});
    assert_true(cd_witness_get_digest(s.witness) == before);
    cd_witness_close(s.witness);
    launch(&s, 0, 2, NULL);
    assert_true(cd_witness_get_digest(s.witness) == before);
    script_fini(&s);
}

static cddp_event value_of(uint32_t rank, int64_t id, int64_t digest)
{
    cddp_event event = {.kind = CDDP_EV_value, .rank = rank, .time_ns = 9, .step = 2};
    event.as.value = (cddp_event_value){.what = CDDP_WHAT_GRADIENT,
                                        .moment = CDDP_MOMENT_BEFORE_STEP,
                                        .id = id,
                                        .presence = CDDP_PRESENCE_VALUE,
                                        .digest = digest,
                                        .param = id,
                                        .nonfinite = -1};
    return event;
}

/* As a rank shows them where nobody else hears. */
static void take(const script *s, const cddp_event *value)
{
    const cd_tracer_values *values = &s->witness->values;
    values->begin(values->self, value);
    values->take(values->self, value);
}

TEST(witness, values_are_the_same_as_events_and_by_themselves)
{
    script s;
    script_init(&s);
    for (int round = 0; round < 2; round++) {
        begin(&s);
        ready(&s, 1, 0, 7);
        for (int64_t i = 0; i < 4; i++) {
            const cddp_event value = value_of(1, i, 10 + i);
            if (round == 0)
                say(&s, &value);
            else
                take(&s, &value);
            if (i == 1) launch(&s, 1, 5, NULL);
            if (i == 2) ready(&s, 1, 1, 8); /* between two values: no event that ends them */
        }
        if (round == 0) cd_known_add(&s.known, s.witness);
    }
    assert_true(cd_known_has(&s.known, s.witness));
    script_fini(&s);
}

TEST(witness, every_field_of_a_value_counts)
{
    script s;
    script_init(&s);
    const cddp_event value = value_of(1, 3, 10);
    say(&s, &value);
    cd_known_add(&s.known, s.witness);
    const size_t fields = sizeof(cddp_event_value) / sizeof(int64_t);
    for (size_t i = 0; i < fields + 5; i++) {
        cddp_event other = value;
        if (i < fields) other.as.field[i] ^= 1;
        if (i == fields) other.time_ns++;
        if (i == fields + 1) other.rank = 0;
        if (i == fields + 2) other.step++;
        if (i == fields + 3) other.micro_step++;
        begin(&s);
        take(&s, &other);
        assert_int_equal(cd_known_has(&s.known, s.witness), i == fields + 4);
    }
    script_fini(&s);
}

TEST(witness, the_order_and_the_number_of_values_count)
{
    static const int64_t scripts[][3] = {{1, 2, -1}, {2, 1, -1}, {1, -1, -1}, {1, 2, 2}};
    script s;
    script_init(&s);
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        begin(&s);
        for (size_t k = 0; k < 3 && scripts[i][k] >= 0; k++) {
            const cddp_event value = value_of(0, 0, scripts[i][k]);
            take(&s, &value);
        }
        assert_false(cd_known_has(&s.known, s.witness));
        cd_known_add(&s.known, s.witness);
        assert_true(cd_known_has(&s.known, s.witness)); /* asked twice: the same */
    }
    script_fini(&s);
}

TEST(witness, every_byte_of_a_text_counts)
{
    char text[40], other[40];
    for (size_t length = 1; length < 36; length++) {
        for (size_t at = 0; at < length; at++) {
            script s;
            script_init(&s);
            memset(text, 'a', length);
            text[length] = '\0';
            memcpy(other, text, sizeof text);
            other[at] = 'b';
            launch(&s, 0, 1, text);
            cd_known_add(&s.known, s.witness);
            begin(&s);
            launch(&s, 0, 1, other);
            cd_test_row("byte %zu of %zu", at, length);
            assert_false(cd_known_has(&s.known, s.witness));
            script_fini(&s);
        }
    }
}

TEST_MAIN()
