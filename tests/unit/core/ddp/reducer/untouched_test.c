/* SPDX-License-Identifier: Apache-2.0 */
/* A recorded program that writes to gradients which are views of buckets, while they are not its
** own. See Note [Who may write to a bucket]. */
#include "core/hooks/hook.h"
#include "tests/unit/core/ddp/fixture.h"

static void watch_entered(cddp_tracer *tracer, int64_t variable, const cddp_tensor *slice)
{
    (void)tracer, (void)variable, (void)slice;
}
static void watch_returned(cddp_tracer *tracer, const cd_tracer_share *share)
{
    (void)tracer, (void)share;
}
static void watch_kept(cddp_tracer *tracer, size_t parameter, const cddp_tensor *tensor,
                       const cddp_grad *grad)
{
    (void)tracer, (void)parameter, (void)tensor, (void)grad;
}
static void watch_posts(cddp_tracer *tracer, const cddp_tensor *tensor)
{
    (void)tracer, (void)tensor;
}
static void watch_left(cddp_tracer *tracer) { (void)tracer; }
static void watch_agreed(cddp_tracer *tracer, uint32_t ranks) { (void)tracer, (void)ranks; }
static void watch_averaged(cddp_tracer *tracer, const cddp_tensor *parameter, uint32_t ranks)
{
    (void)tracer, (void)parameter, (void)ranks;
}
static const cd_tracer_watch watch = {.entered = watch_entered,
                                      .returned = watch_returned,
                                      .written = watch_entered,
                                      .posts = watch_posts,
                                      .kept = watch_kept,
                                      .left = watch_left,
                                      .agreed = watch_agreed,
                                      .averaged = watch_averaged};

typedef enum moment { NEVER, BEFORE_LAUNCH, UNDER_THE_HOOK } moment;

typedef struct writer {
    const char *name, *hook; /* NULL: none */
    moment moment;
    bool views, watched;
    const char *mark; /* that is expected; NULL: none */
} writer;

static void write_to(lane *l, size_t i)
{
    CHECK_OK(l->device->fill(&l->grads[i].value, 7.0, NULL, &l->err));
}

/* The variable that a mark names, or -1 without one. */
static int64_t variable_of(const lane *l, const char *mark)
{
    for (size_t i = 0; i < l->sink.count; i++) {
        const cddp_event e = cd_memory_sink_get(&l->sink, i);
        if (e.kind == CDDP_EV_mark && strcmp(e.text, mark) == 0) return e.as.mark.value;
    }
    return -1;
}

static void writer_body(lane *l)
{
    const writer *w = l->lab->data;
    if (w->watched) l->tracer->watch = &watch;
    l->options.gradient_as_bucket_view = w->views;
    for (int i = 0; i < 3; i++) lane_add(l, (const char *[]){"a", "b", "c"}[i], CDDP_F32, 4);
    lane_wrap(l);
    if (w->hook != NULL)
        CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find(w->hook), NULL, NULL, &l->err));
    lane_iterate(l, 1.0 + l->r);
    lane_zero_grad(l, false);
    lane_forward(l);
    lane_grad(l, 2, 1.0);
    lane_grad(l, 1, 1.0);
    if (w->moment == BEFORE_LAUNCH) write_to(l, 1);
    lane_grad(l, 0, 1.0);
    if (w->moment == UNDER_THE_HOOK) write_to(l, 1);
    lane_end(l);
    CHECK(variable_of(l, CD_TRACER_READY_WRITTEN) ==
          (w->mark != NULL && strcmp(w->mark, CD_TRACER_READY_WRITTEN) == 0 ? 1 : -1));
    CHECK(variable_of(l, CD_TRACER_HOOKED_WRITTEN) ==
          (w->mark != NULL && strcmp(w->mark, CD_TRACER_HOOKED_WRITTEN) == 0 ? 1 : -1));
}

TEST(untouched, names_the_variable_that_was_written)
{
    static const writer rows[] = {
        {"nobody writes", "quantize_per_tensor", NEVER, true, true, NULL},
        {"before the launch", NULL, BEFORE_LAUNCH, true, true, CD_TRACER_READY_WRITTEN},
        {"under the hook", "quantize_per_tensor", UNDER_THE_HOOK, true, true,
         CD_TRACER_HOOKED_WRITTEN},
        {"no views", "quantize_per_tensor", UNDER_THE_HOOK, false, true, NULL},
        {"an operation writes it", "allreduce", UNDER_THE_HOOK, true, true, NULL},
        {"no recorder", "quantize_per_tensor", UNDER_THE_HOOK, true, false, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        writer w = rows[i];
        cd_test_row("%s", w.name);
        lab b = {.world_size = 2, .body = writer_body, .data = &w, .level = CDDP_TRACE_DIGEST};
        lab_run(&b);
    }
}

TEST_MAIN()
