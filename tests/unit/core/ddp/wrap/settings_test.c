/* SPDX-License-Identifier: Apache-2.0 */
/* What a wrapper says of itself: its options and its comm hooks. A recording has no plan, so the
** judge of recorded programs believes these events. */
#include "core/ddp/wrap/settings.h"

#include "cddp/keys.h"
#include "core/hooks/hook.h"
#include "core/trace/setting.h"
#include "tests/unit/core/ddp/fixture.h"

/* The only item `item` of a key, or NULL. */
static const cddp_event_option *find_option(const lane *l, cddp_key key, int64_t item)
{
    const cddp_event_option *found = NULL;
    for (size_t i = l->since; i < l->sink.count; i++) {
        const cddp_event *e = &l->sink.events[i];
        if (e->kind != CDDP_EV_option || e->as.option.key != cd_setting_id(key)) continue;
        if (e->as.option.item != item) continue;
        CHECK(found == NULL);
        found = &e->as.option;
    }
    return found;
}

static const char *text_of(const lane *l, cddp_key key, int64_t item)
{
    for (size_t i = l->since; i < l->sink.count; i++) {
        const cddp_event e = cd_memory_sink_get(&l->sink, i);
        if (e.kind == CDDP_EV_option && e.as.option.key == cd_setting_id(key) &&
            e.as.option.item == item)
            return e.text;
    }
    return NULL;
}

#define FLAG(name)                                            \
    {                                                         \
        CDDP_KEY_ddp_##name, offsetof(cddp_ddp_options, name) \
    }
static const struct {
    cddp_key key;
    size_t offset;
} flags[] = {
    FLAG(broadcast_buffers),
    FLAG(init_sync),
    FLAG(set_last_bucket_cap),
    FLAG(find_unused_parameters),
    FLAG(gradient_as_bucket_view),
    FLAG(static_graph),
    FLAG(skip_all_reduce_unused_params),
    FLAG(batched_grad_copy),
    FLAG(accumulate_in_hook),
    FLAG(average_contributions),
    FLAG(strict),
};
#define FLAG_COUNT (sizeof flags / sizeof flags[0])

/* One flag is on at a time, so that no two can change places. */
LAB(settings, every_flag_is_said_as_it_is, 1)
{
    for (size_t on = 0; on <= FLAG_COUNT; on++) {
        cddp_ddp_options o = cddp_ddp_options_default();
        for (size_t i = 0; i < FLAG_COUNT; i++) *(bool *)((char *)&o + flags[i].offset) = i == on;
        lane_mark(l);
        cd_ddp_settings_emit(&o, l->tracer);
        for (size_t i = 0; i < FLAG_COUNT; i++) {
            const cddp_event_option *said = find_option(l, flags[i].key, 0);
            CHECK(said != NULL && said->items == 1 && said->value == (i == on));
        }
    }
    cd_ddp_settings_emit(&l->options, NULL); /* nobody listens */
}

LAB(settings, sizes_and_lists_are_said_with_all_their_items, 1)
{
    static const double caps[] = {0.5, 2, 8};
    static const char *const delayed[] = {"fc.weight", "fc.bias"};
    cddp_ddp_options o = cddp_ddp_options_default();
    o.bucket_cap_mb = 3.5;
    o.first_bucket_bytes = 4097;
    o.bucket_cap_mb_list = caps;
    o.bucket_cap_mb_list_count = 3;
    o.delay_all_reduce_named_params = delayed;
    o.delay_all_reduce_count = 2;
    o.param_to_hook_all_reduce = "embed";
    lane_mark(l);
    cd_ddp_settings_emit(&o, l->tracer);
    const cddp_event_option *said = find_option(l, CDDP_KEY_ddp_bucket_cap_mb, 0);
    CHECK(said != NULL && said->items == 1 && cd_f64_of(said->real) == 3.5);
    said = find_option(l, CDDP_KEY_ddp_first_bucket_bytes, 0);
    CHECK(said != NULL && said->items == 1 && said->value == 4097);
    for (int64_t i = 0; i < 3; i++) {
        said = find_option(l, CDDP_KEY_ddp_bucket_cap_mb_list, i);
        CHECK(said != NULL && said->items == 3 && cd_f64_of(said->real) == caps[i]);
    }
    for (int64_t i = 0; i < 2; i++) {
        const cddp_key key = CDDP_KEY_ddp_delay_all_reduce_named_params;
        said = find_option(l, key, i);
        CHECK(said != NULL && said->items == 2 && strcmp(text_of(l, key, i), delayed[i]) == 0);
    }
    CHECK(strcmp(text_of(l, CDDP_KEY_ddp_param_to_hook_all_reduce, 0), "embed") == 0);
    CHECK(find_option(l, CDDP_KEY_ddp_param_to_hook_all_reduce, 0)->items == 1);
}

LAB(settings, dtypes_are_said_by_their_names, 1)
{
    cddp_ddp_options o = cddp_ddp_options_default();
    o.mixed_param_dtype = CDDP_F16;
    o.mixed_reduce_dtype = CDDP_F32;
    o.mixed_buffer_dtype = CDDP_DTYPE_COUNT; /* not set */
    lane_mark(l);
    cd_ddp_settings_emit(&o, l->tracer);
    const struct {
        cddp_key key;
        const char *word;
    } wanted[] = {{CDDP_KEY_mixed_precision_param_dtype, "f16"},
                  {CDDP_KEY_mixed_precision_reduce_dtype, "f32"},
                  {CDDP_KEY_mixed_precision_buffer_dtype, "none"}};
    for (size_t i = 0; i < 3; i++) {
        const cddp_event_option *said = find_option(l, wanted[i].key, 0);
        CHECK(said != NULL && said->items == 1);
        CHECK(strcmp(text_of(l, wanted[i].key, 0), wanted[i].word) == 0);
        CHECK(said->value == cd_setting_find_word(wanted[i].key, wanted[i].word));
    }
    CHECK(find_option(l, CDDP_KEY_ddp_param_to_hook_all_reduce, 0) == NULL);
}

LAB(settings, join_says_by_what_it_divides, 1)
{
    for (int is_initial = 0; is_initial < 2; is_initial++) {
        const cddp_join_options o = {.size = sizeof o,
                                     .divide_by_initial_world_size = is_initial != 0};
        lane_mark(l);
        cd_join_settings_emit(&o, l->tracer);
        const cddp_event_option *said =
            find_option(l, CDDP_KEY_join_divide_by_initial_world_size, 0);
        CHECK(said != NULL && said->items == 1 && said->value == is_initial);
    }
}

/* The n-th hook_in_force event, and its name. */
static cddp_event find_hook(const lane *l, size_t n)
{
    for (size_t i = l->since; i < l->sink.count; i++) {
        const cddp_event e = cd_memory_sink_get(&l->sink, i);
        if (e.kind == CDDP_EV_hook_in_force && n-- == 0) return e;
    }
    CHECK(!"a hook is in force and nothing says so");
    abort();
}

static void wrap_with(lane *l, const cddp_hook *hook, const cddp_hook *inner)
{
    lane_wrap(l);
    lane_mark(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, hook, inner, NULL, &l->err));
}

LAB(hooks, what_is_in_force_is_said_with_what_it_promises_and_casts_to, 1)
{
    cddp_hook lossy = *cd_hook_find("topk"), plain = *cd_hook_find("topk");
    lossy.name = plain.name = "mine";
    plain.flags &= ~(uint32_t)CDDP_HOOK_LOSSY;
    const struct {
        const cddp_hook *hook;
        const char *name;
        cddp_event_enum_promise promise;
        int64_t cast;
    } cases[] = {{cd_hook_find("allreduce"), "allreduce", CDDP_PROMISE_MEAN, 0},
                 {cd_hook_find("noop"), "noop", CDDP_PROMISE_LOCAL, 0},
                 {cd_hook_find("fp16_compress"), "fp16_compress", CDDP_PROMISE_MEAN, CDDP_F16 + 1},
                 {cd_hook_find("bf16_compress"), "bf16_compress", CDDP_PROMISE_MEAN, CDDP_BF16 + 1},
                 {cd_hook_find("reproducible"), "reproducible", CDDP_PROMISE_MEAN, 0},
                 {cd_hook_find("topk"), "topk", CDDP_PROMISE_STATED, 0},
                 {&lossy, "mine", CDDP_PROMISE_OWN, 0},
                 {&plain, "mine", CDDP_PROMISE_UNKNOWN, 0}};
    lane_add(l, "a", CDDP_F32, 4);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        wrap_with(l, cases[i].hook, NULL);
        const cddp_event e = find_hook(l, 0);
        CHECK(strcmp(e.text, cases[i].name) == 0 && e.as.hook_in_force.level == 0);
        CHECK(e.as.hook_in_force.promise == (int64_t)cases[i].promise);
        CHECK(e.as.hook_in_force.cast == cases[i].cast);
        CHECK(lane_count(l, CDDP_EV_hook_in_force, -1) == 1);
        lane_unwrap(l);
    }
}

LAB(hooks, a_wrapped_hook_is_said_one_level_below, 1)
{
    lane_add(l, "a", CDDP_F32, 4);
    wrap_with(l, cd_hook_find("bf16_compress_wrapper"), cd_hook_find("topk"));
    const cddp_event outer = find_hook(l, 0), inner = find_hook(l, 1);
    CHECK(strcmp(outer.text, "bf16_compress_wrapper") == 0 && outer.as.hook_in_force.level == 0);
    CHECK(outer.as.hook_in_force.cast == CDDP_BF16 + 1);
    CHECK(strcmp(inner.text, "topk") == 0 && inner.as.hook_in_force.level == 1);
    CHECK(inner.as.hook_in_force.promise == CDDP_PROMISE_STATED);
    CHECK(inner.as.hook_in_force.cast == 0);
}

TEST_MAIN()
