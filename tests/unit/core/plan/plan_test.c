/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/plan.h"

#include "core/base/alloc.h"
#include "core/plan/own_messages.h"
#include "core/plan/zero.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

static cddp_plan *make_plan(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cddp_plan_set(plan, "title", "a test", &err), &err);
    return plan;
}

TEST(plan, starts_with_the_defaults_of_the_key_table)
{
    cddp_plan *plan = make_plan();
    assert_int_equal(plan->world.size, 2);
    assert_string_equal(plan->settings.model.name, "mlp");
    assert_int_equal(plan->settings.model.dtype, CDDP_F32);
    assert_true(plan->settings.ddp.broadcast_buffers);
    assert_false(plan->settings.ddp.find_unused_parameters);
    assert_int_equal(plan->expect.verdict, CDDP_EXPECT_VERIFIED);
    cddp_plan_destroy(plan);
}

TEST(plan, set_reaches_every_type_of_key)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = make_plan();
    assert_ok(cddp_plan_set(plan, "ddp.bucket_cap_mb", "0.001", &err), &err);
    assert_ok(cddp_plan_set(plan, "ddp.static_graph", "true", &err), &err);
    assert_ok(cddp_plan_set(plan, "train.zero_grad", "keep", &err), &err);
    assert_ok(cddp_plan_set(plan, "model.freeze", "a.*,b", &err), &err);
    assert_ok(cddp_plan_set(plan, "when.0.steps", "0,1%2", &err), &err);
    assert_ok(cddp_plan_set(plan, "when.0.sync", "false", &err), &err);
    assert_ok(cddp_plan_set(plan, "expect.finding.0.check", "I-USED", &err), &err);
    assert_true(plan->settings.ddp.bucket_cap_mb == 0.001);
    assert_true(plan->settings.ddp.static_graph);
    assert_int_equal(plan->settings.train.zero_grad, 2);
    assert_int_equal(plan->settings.model.freeze.count, 2);
    assert_string_equal(plan->settings.model.freeze.items[1], "b");
    assert_int_equal(plan->when_count, 1);
    assert_int_equal(plan->whens[0].sync, 0);
    assert_true(plan->whens[0].branch == CDDP_PLAN_UNSET);
    assert_true(cddp_selector_has(&plan->whens[0].steps, 5));
    assert_false(cddp_selector_has(&plan->whens[0].steps, 4));
    assert_string_equal(plan->expect.findings[0].check, "I-USED");
    cddp_plan_destroy(plan);
}

static const struct {
    const char *name, *key, *value, *words;
} refused[] = {
    {"unknown key", "ddp.find_unused", "true", "did you mean 'ddp.find_unused_parameters'?"},
    {"first words of a key", "ddp.first_bucket_mb", "1", "did you mean 'ddp.first_bucket_bytes'?"},
    {"key of an element", "fault.0.step", "1", "unknown key 'fault.0.step'; [fault] has kind, "},
    {"key of a large table", "when.0.unused", "1", "; `cddp-verify list keys when` shows those"},
    {"key of a small table", "schedule.color", "1", "; [schedule] has "},
    {"key of another table", "ddp.steps", "3", "did you mean 'train.steps'?"},
    {"not a number", "train.steps", "three", "not a whole number"},
    {"underscore that stands alone", "train.steps", "1__0", "not a whole number"},
    {"underscore at the end", "train.steps", "10_", "not a whole number"},
    {"prefix without digits", "train.steps", "0x", "not a whole number"},
    {"sign behind a prefix", "train.steps", "0x-1", "not a whole number"},
    {"digit that no base 2 has", "train.steps", "0b12", "not a whole number"},
    {"underscore beside the point", "ddp.bucket_cap_mb", "1_.5", "not a number"},
    {"out of range", "world.size", "0", "out of range: 1 to 4096"},
    {"not a flag", "ddp.static_graph", "yes", "is not true or false"},
    {"no such word", "train.zero_grad", "nil", "one of none|zero|keep"},
    {"no such selection", "when.0.ranks", "3-1", "is not a selection"},
    {"selection of nothing", "when.0.ranks", "[]", "when[].ranks selects nothing"},
    {"selection of an empty text", "when.0.ranks", "[0, \"\"]", "selects nothing"},
    {"selection without a text", "when.0.ranks", "", "selects nothing"},
    {"no ranks behind @", "ddp.static_graph@", "true", "'ddp.static_graph@' names no ranks"},
    {"empty text in a list", "expect.same_with", "[\"\"]", "text 1 of expect.same_with is empty"},
    {"empty text between commas", "model.freeze", "a,,b", "text 2 of model.freeze is empty"},
    {"gap in a table", "when.4.sync", "true", "would leave a gap"},
    {"table that repeats without a number", "when.sync", "true", "say which"},
    {"same for all ranks", "world.size@1", "3", "cannot be changed for some"},
};

TEST(plan, refused_values_are_named_with_what_would_be_accepted)
{
    cddp_plan *plan = make_plan();
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%s", refused[i].name);
        assert_fails(cddp_plan_set(plan, refused[i].key, refused[i].value, &err), CDDP_E_CONFIG,
                     &err, refused[i].words);
    }
    cddp_plan_destroy(plan);
}

TEST(plan, numbers_are_written_as_toml_has_them)
{
    static const struct {
        const char *value;
        int64_t steps;
    } cases[] = {{"+7", 7},    {"1_000", 1000}, {"0x1f", 31}, {"0x1_F", 31},
                 {"0o17", 15}, {"0b101", 5},    {"010", 10}};
    cddp_plan *plan = make_plan();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%s", cases[i].value);
        assert_ok(cddp_plan_set(plan, "train.steps", cases[i].value, &err), &err);
        assert_int_equal(plan->settings.train.steps, cases[i].steps);
    }
    assert_ok(cddp_plan_set(plan, "ddp.bucket_cap_mb", "1_0.2_5", NULL), NULL);
    assert_true(plan->settings.ddp.bucket_cap_mb == 10.25);
    cddp_plan_destroy(plan);
}

/* What may stand behind = in a scenario may stand behind it in --set. */
TEST(plan, set_takes_lists_and_texts_as_toml_has_them)
{
    static const struct {
        const char *value;
        size_t count; /* SIZE_MAX: refused */
        const char *first, *last;
    } cases[] = {{"a,b", 2, "a", "b"},
                 {"[\"a\", \"b\"]", 2, "a", "b"},
                 {"['a','b',]", 2, "a", "b"},
                 {"[ \"a, b\" ]", 1, "a, b", "a, b"},
                 {"[a, b]", 2, "a", "b"},
                 {"\"a,b\"", 2, "a", "b"},
                 {"[]", 0, NULL, NULL},
                 {"[ ]", 0, NULL, NULL},
                 {"[\"a\"", SIZE_MAX, NULL, NULL},
                 {"[\"a", SIZE_MAX, NULL, NULL},
                 {"[a", SIZE_MAX, NULL, NULL},
                 {"[", SIZE_MAX, NULL, NULL},
                 {"[,]", SIZE_MAX, NULL, NULL},
                 {"[a]b", SIZE_MAX, NULL, NULL},
                 {"[\"a\"] b", SIZE_MAX, NULL, NULL},
                 {"[\"a\" \"b\"]", SIZE_MAX, NULL, NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = NULL;
        cd_test_row("%s", cases[i].value);
        assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
        const cddp_status status = cddp_plan_set(plan, "tags", cases[i].value, &err);
        assert_int_equal(status == CDDP_OK, cases[i].count != SIZE_MAX);
        if (status != CDDP_OK) assert_non_null(strstr(err.message, "is not a list"));
        if (status == CDDP_OK) assert_int_equal(plan->tags.count, cases[i].count);
        if (status == CDDP_OK && cases[i].count > 0) {
            assert_string_equal(plan->tags.items[0], cases[i].first);
            assert_string_equal(plan->tags.items[cases[i].count - 1], cases[i].last);
        }
        assert_ok(cddp_plan_set(plan, "title", "\"quoted\"", &err), &err);
        assert_string_equal(plan->title, "quoted");
        cddp_plan_destroy(plan);
    }
    cddp_plan *plan = make_plan();
    assert_ok(cddp_plan_set(plan, "when.0.ranks", "[0, \"2-3\"]", NULL), NULL);
    for (uint32_t rank = 0; rank < 5; rank++)
        assert_int_equal(cddp_selector_has(&plan->whens[0].ranks, rank), rank != 1 && rank != 4);
    cddp_plan_destroy(plan);
}

TEST(plan, a_list_has_no_limit_of_items_or_bytes)
{
    enum { ITEMS = 1000, WIDTH = 40 };
    char *text = cd_allocate(NULL, ITEMS * WIDTH + 1);
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    for (int i = 0; i < ITEMS; i++) snprintf(text + i * WIDTH, WIDTH + 1, "%039d,", i);
    text[ITEMS * WIDTH - 1] = '\0';
    assert_ok(cddp_plan_set(plan, "model.ignore", text, &err), &err);
    assert_int_equal(plan->settings.model.ignore.count, ITEMS);
    assert_string_equal(plan->settings.model.ignore.items[ITEMS - 1],
                        "000000000000000000000000000000000000999");
    cddp_plan_destroy(plan);
    cd_release(NULL, text, ITEMS * WIDTH + 1);
}

TEST(plan, a_value_that_is_refused_does_no_harm_to_the_next)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    for (int i = 0; i < 20; i++) { /* wherever the list grows */
        assert_fails(cddp_plan_set(plan, "train.steps@1", "0", &err), CDDP_E_CONFIG, &err,
                     "out of range");
        assert_ok(cddp_plan_set(plan, "train.steps@1", "2", &err), &err);
    }
    assert_int_equal(plan->override_count, 20);
    cddp_plan_destroy(plan);
}

TEST(plan, an_override_changes_only_its_ranks)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = make_plan();
    cddp_plan_settings settings;
    assert_ok(cddp_plan_set(plan, "world.size", "4", &err), &err);
    assert_ok(cddp_plan_set(plan, "ddp.find_unused_parameters@1-2", "true", &err), &err);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_ok(cddp_plan_rank_settings(plan, rank, &settings, &err), &err);
        assert_int_equal(settings.ddp.find_unused_parameters, rank == 1 || rank == 2);
    }
    assert_fails(cddp_plan_rank_settings(plan, 4, &settings, &err), CDDP_E_ARG, &err,
                 "rank 4 of a world of 4");
    cddp_plan_destroy(plan);
}

TEST(plan, a_stage_of_zero_is_what_other_keys_say)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan_settings settings;
    for (int stage = 0; stage <= 3; stage++) {
        char text[8];
        cddp_plan *plan = make_plan();
        snprintf(text, sizeof text, "%d", stage);
        assert_ok(cddp_plan_set(plan, "zero.stage", text, &err), &err);
        if (stage == 1)
            assert_ok(cddp_plan_set(plan, "zero.reduce_bucket_size", "262144", &err), &err);
        assert_ok(cddp_plan_check(plan, &err), &err);
        assert_ok(cddp_plan_rank_settings(plan, 0, &settings, &err), &err);
        assert_int_equal(settings.fsdp.enable, stage >= 2);
        assert_int_equal(settings.fsdp.sharding_strategy,
                         stage == 2 ? CDDP_SHARDING_GRAD_OP : CDDP_SHARDING_FULL);
        assert_int_equal(settings.fsdp.forward_prefetch, stage == 3);
        assert_true(settings.ddp.bucket_cap_mb == (stage == 1 ? 1.0 : 0.0));
        assert_int_equal(cd_zero_get_shard(plan, 0), stage == 1 ? CDDP_SHARD_FLAT : 0);
        assert_int_equal(cd_zero_shards_model(plan), stage >= 2);
        assert_fails(cddp_plan_set(plan, "zero.sub_group_size", "1", &err), CDDP_E_CONFIG, &err,
                     "has no meaning here: an optimizer steps all of its shards at once");
        assert_fails(cddp_plan_set(plan, "zero.offload_param.device", "cpu", &err), CDDP_E_CONFIG,
                     &err, "has no meaning here: where shards lie");
        assert_fails(cddp_plan_set(plan, "zero.stages", "1", &err), CDDP_E_CONFIG, &err,
                     "did you mean 'zero.stage'?");
        cddp_plan_destroy(plan);
    }
}

TEST(plan, an_optimizer_has_options_of_single_ranks)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = make_plan();
    const uint64_t before = cddp_plan_digest(plan);
    assert_true(cd_plan_optimizer_of(plan, 1, 0).lr == 0.125);
    assert_ok(cddp_plan_set(plan, "optimizer.lr@1", "0.5", &err),
              &err); /* of the one that nobody lists */
    assert_true(cd_plan_optimizer_of(plan, 1, 0).lr == 0.5);
    assert_true(cd_plan_optimizer_of(plan, 0, 0).lr == 0.125);
    assert_int_equal(plan->optimizer_count, 0);
    assert_ok(cddp_plan_set(plan, "optimizer.0.lr@1", "2", &err), &err);
    assert_ok(cddp_plan_set(plan, "optimizer.lr@1", "4", &err), &err);
    assert_true(cd_plan_optimizer_of(plan, 1, 0).lr == 2); /* of one counts more than of all */
    assert_true(cddp_plan_digest(plan) != before);
    assert_ok(cddp_plan_check(plan, &err), &err);
    assert_fails(cddp_plan_set(plan, "optimizer.lr", "0.5", &err), CDDP_E_CONFIG, &err,
                 "say which");
    assert_fails(cddp_plan_set(plan, "optimizer.parameters@1", "a", &err), CDDP_E_CONFIG, &err,
                 "optimizer.parameters is the same for all ranks");
    assert_fails(cddp_plan_set(plan, "when.0.sync@1", "true", &err), CDDP_E_CONFIG, &err,
                 "when.sync is the same for all ranks");
    cddp_plan_destroy(plan);
}

static const struct {
    const char *name, *sets[8], *words;
} contradictions[] = {
    /* clang-format off */
    {"an order of no numbers", {"model.layout=channels_last", "model.device=shape"}, "model.layout orders numbers"},
    {"an evaluation of nothing", {"when.0.evaluate=module", "when.0.skip=all"}, "leaves none"},
    {"an evaluation that is shadowed", {"join.enable=true", "when.0.evaluate=wrapper"}, "would shadow an iteration"},
    {"an evaluation in low precision", {"mixed_precision.param_dtype=bf16", "when.0.evaluate=wrapper_with_grad"}, "low-precision copies"},
    {"losses of several forwards", {"when.0.loss_each=true", "when.0.forwards=2"}, "a backward for each output of one forward"},
    {"an optimizer of one rank that is not there", {"optimizer.0.lr=1", "optimizer.1.lr@1=2"}, "number 1 for some ranks: there is 1"},
    {"an optimizer of one rank without momentum", {"optimizer.nesterov@1=true"}, "optimizer.nesterov needs optimizer.momentum"},
    {"strategies of nothing", {"fsdp.sharding_strategy=SHARD_GRAD_OP"}, "fsdp.sharding_strategy has no effect without fsdp.enable"},
    {"buckets of shards", {"fsdp.enable=true", "ddp.bucket_cap_mb=1"}, "ddp.bucket_cap_mb with fsdp.enable: a sharded model is not wrapped"},
    {"a hook of shards", {"fsdp.enable=true", "hook.name=allreduce"}, "hook.name with fsdp.enable: units are reduced and scattered"},
    {"joining shards", {"fsdp.enable=true", "join.enable=true"}, "would have to serve its shards in every gather"},
    {"a norm of some shards", {"fsdp.enable=true", "clip.max_norm=1", "clip.place=before_reduction"}, "gradients of a unit are reduced as one"},
    {"an evaluation that no unit sees", {"fsdp.enable=true", "when.0.evaluate=module"}, "would read parameters that are not full"},
    {"copies that do not divide", {"fsdp.enable=true", "world.size=5", "fsdp.sharding_strategy=HYBRID_SHARD", "fsdp.shard_group_size=2"}, "that divide world.size = 5"},
    {"copies of one rank", {"fsdp.enable=true", "world.size=4", "fsdp.sharding_strategy=HYBRID_SHARD", "fsdp.shard_group_size=1"}, "several groups of several ranks"},
    {"copies that round twice", {"fsdp.enable=true", "world.size=6", "fsdp.sharding_strategy=HYBRID_SHARD", "fsdp.shard_group_size=2"}, "powers of two"},
    {"copies of nothing", {"fsdp.enable=true", "fsdp.shard_group_size=2"}, "no effect without a hybrid"},
    {"copies of one rank's world", {"fsdp.enable=true", "world.size=4", "fsdp.sharding_strategy@2=HYBRID_SHARD"}, "rank 2: fsdp.shard_group_size is 0"},
    {"dtypes that are none, of one rank", {"fsdp.enable=true", "world.size=3", "fsdp.unit_precision@2=layers.0=int8"}, "rank 2: fsdp.unit_precision: 'layers.0=int8' is not"},
    {"a device of one rank", {"fsdp.enable=true", "fsdp.device_id@1=streams"}, "rank 1: fsdp.device_id"},
    {"a rank that loads nothing", {"train.resume@1=true"}, "rank 1: train.resume needs train.checkpoint_step"},
    {"sizes of shards", {"fsdp.enable=true", "model.device=shape"}, "needs model.device"},
    {"dtypes that are none", {"fsdp.enable=true", "fsdp.unit_precision=layers.0=int8"}, "is not MODULE=PARAM"},
    {"dtypes of nothing", {"fsdp.enable=true", "fsdp.unit_precision=bf16"}, "is not MODULE=PARAM"},
    {"dtypes twice", {"fsdp.enable=true", "fsdp.unit_precision=out=bf16,out=f16/f32"}, "for one unit"},
    {"dtypes of doubles", {"fsdp.enable=true", "model.dtype=f64", "fsdp.unit_precision=out=bf16"}, "computes in f64"},
    {"casts of nothing", {"fsdp.enable=true", "fsdp.cast_forward_inputs=true"}, "no effect without mixed_precision.param_dtype"},
    {"casts of a unit without dtype", {"fsdp.enable=true", "fsdp.unit_precision=out=none keep_low_precision_grads"}, "that has none"},
    {"words of no unit", {"fsdp.enable=true", "fsdp.unit_precision=out=bf16 output_dtype=f32 casts"}, "Words behind that"},
    {"inputs of the root, of another unit", {"fsdp.enable=true", "fsdp.unit_precision=out=bf16 cast_root_forward_inputs=false"}, "Words behind that"},
    {"a norm of several dtypes", {"fsdp.enable=true", "fsdp.keep_low_precision_grads=true", "mixed_precision.param_dtype=bf16", "clip.max_norm=1"}, "is not judged"},
    {"casts of forms", {"fsdp.enable=true", "model.device=symbol", "fsdp.output_dtype=bf16"}, "need cpu"},
    {"dtypes of windows", {"fsdp.enable=true", "fsdp.layout=rows", "train.micro_steps=2", "fsdp.unit_precision=out=bf16"}, "one [mixed_precision]"},
    {"a state that is not saved", {"fsdp.enable=true", "fsdp.rank0_only=true"}, "no effect without train.checkpoint_step"},
    {"shards of rank 0", {"fsdp.enable=true", "train.checkpoint_step=1", "fsdp.rank0_only=true", "fsdp.state_dict_type=LOCAL_STATE_DICT"}, "each rank saves its own"},
    {"a strategy of no resume", {"fsdp.enable=true", "fsdp.resume_strategy=NO_SHARD"}, "no effect without train.resume"},
    {"groups of no resume", {"fsdp.enable=true", "fsdp.resume_shard_group_size=2"}, "without a hybrid fsdp.resume_strategy"},
    {"groups that do not divide", {"fsdp.enable=true", "world.size=5", "train.checkpoint_step=1", "train.resume=true", "fsdp.resume_strategy=HYBRID_SHARD", "fsdp.resume_shard_group_size=2"}, "that divide world.size = 5"},
    {"rows that come aligned", {"fsdp.enable=true", "train.checkpoint_step=1", "train.resume=true", "fsdp.use_orig_params=true", "fsdp.resume_layout=rows"}, "aligns a flat unit"},
    {"windows of two layouts", {"fsdp.enable=true", "train.checkpoint_step=1", "train.resume=true", "train.micro_steps=2", "mixed_precision.param_dtype=bf16", "mixed_precision.reduce_dtype=f32", "fsdp.resume_layout=rows"}, "in different dtypes"},
    {"shards of shards", {"fsdp.enable=true", "optimizer.0.shard=flat"}, "the model is sharded"},
    {"a step that shards cannot follow", {"fsdp.enable=true", "when.0.bypass=true"}, "nothing of a sharded model follows it"},
    {"a module list of nothing", {"fsdp.enable=true", "fsdp.wrap_modules=out"}, "no effect without fsdp.auto_wrap_policy"},
    {"a policy without its list", {"fsdp.enable=true", "fsdp.auto_wrap_policy=modules"}, "needs the names of fsdp.wrap_modules"},
    {"a size without its policy", {"fsdp.enable=true", "fsdp.min_num_params=10"}, "fsdp.min_num_params has no effect"},
    {"rows that are aligned", {"fsdp.enable=true", "fsdp.layout=rows", "fsdp.use_orig_params=true"}, "aligns a flat unit"},
    {"units that move to the host they are on", {"fsdp.enable=true", "streams.producers=1", "fsdp.device_id=cpu"}, "on the device with streams"},
    {"units that move to no device", {"fsdp.enable=true", "fsdp.device_id=streams"}, "there is no device to move to"},
    {"forms that move", {"fsdp.enable=true", "model.device=symbol", "fsdp.device_id=cpu"}, "forms are on no device"},
    {"a limit that nothing needs", {"fsdp.enable=true", "fsdp.limit_all_gathers=false"}, "fsdp.limit_all_gathers = false has no effect"},
    {"a mosaic", {"fsdp.enable=true", "fsdp.sync_module_states=false", "model.init=distinct"}, "a mosaic of all ranks' slices"},
    {"one rank's buckets of shards", {"fsdp.enable=true", "ddp.bucket_cap_mb@1=1"}, "a sharded model is not wrapped"},
    {"micro-steps of one rank's shards", {"fsdp.enable=true", "train.micro_steps@1=3"}, "every micro-step gathers units"},
    {"ready orders of shards", {"fsdp.enable=true", "schedule.ready=reversed"}, "in the order of backward"},
    {"a norm of nothing", {"clip.norm_type=1"}, "clip.norm_type has no effect without clip.max_norm"},
    {"a norm beyond powers", {"clip.max_norm=1", "clip.norm_type=17"}, "powers of small gradients vanish"},
    {"norms of single gradients", {"clip.max_norm=1", "clip.norm_type=1", "clip.place=before_reduction"}, "by its own 2-norm"},
    {"words of no stage", {"zero.mics_shard_size=2"}, "zero.mics_shard_size has no effect without zero.stage"},
    {"words of stage 1", {"zero.stage=3", "zero.reduce_bucket_size=10"}, "reduce whole units"},
    {"words of stage 3", {"zero.stage=2", "zero.stage3_prefetch_bucket_size=10"}, "no effect with zero.stage = 2"},
    {"parameters that are all there", {"zero.stage=1", "zero.stage3_max_live_parameters=10"}, "have all parameters at once"},
    {"a sum that waits", {"zero.stage=2", "zero.overlap_comm=false"}, "always run while backward goes on"},
    {"gradients here and there", {"zero.stage=1", "zero.contiguous_gradients=false"}, "always lie in one buffer"},
    {"a stage and its strategy", {"zero.stage=2", "fsdp.sharding_strategy=NO_SHARD"}, "fsdp.sharding_strategy with zero.stage = 2, which sets it"},
    {"a stage and its model", {"zero.stage=3", "fsdp.enable=true"}, "fsdp.enable with zero.stage = 3"},
    {"a stage and its buckets", {"zero.stage=1", "ddp.bucket_cap_mb=1"}, "ddp.bucket_cap_mb with zero.stage = 1"},
    {"a stage and its optimizer", {"zero.stage=1", "optimizer.0.shard=parameters"}, "optimizer.shard with zero.stage = 1"},
    {"a stage and uneven inputs", {"zero.stage=1", "join.enable=true"}, "optimizer.shard with join.enable"},
    {"steps in backward of a left one", {"optimizer.0.in_backward=true", "train.micro_steps=2", "when.0.abort_after=1"}, "gives up a step that a later micro-step takes"},
    {"two backwards of low copies", {"mixed_precision.param_dtype=bf16", "when.0.backwards=2"}, "gives back the copies"},
    {"a backward of each loss of low copies", {"mixed_precision.param_dtype=bf16", "when.0.loss_each=true"}, "when.loss_each with mixed_precision"},
    {"numbers in buffers of forms", {"model.device=symbol", "when.0.touch_buffers=true"}, "when.touch_buffers adds a number"},
    {"small units of replicas", {"zero.stage=3", "world.size=4", "zero.mics_shard_size=2", "zero.stage3_param_persistence_threshold=9"}, "are all cut"},
    {"groups of stage 3 that do not divide", {"zero.stage=3", "world.size=5", "zero.mics_shard_size=2"}, "that divide world.size = 5"},
    {"hooks of stage 3", {"zero.stage=3", "hook.name=allreduce"}, "units are reduced and scattered"},
    {"what is not a shard", {"fsdp.enable=true", "model.ignore=out.*"}, "trained by each rank alone"},
    {"skip without knowing", {"ddp.skip_all_reduce_unused_params=true"}, "needs ddp.find_unused_parameters"},
    {"two ways to say the size", {"ddp.bucket_cap_mb=1", "ddp.bucket_cap_mb_list=1,2"}, "give one of them"},
    {"options of no hook", {"hook.options=rank=2"}, "no hook.name"},
    {"options without a name", {"ddp.comm_hook=:k=2"}, "options but no name"},
    {"options of none", {"ddp.comm_hook=no:k=2"}, "gives options to no hook"},
    {"contributions that nobody sees", {"ddp.average_contributions=true"}, "no effect without ddp.accumulate_in_hook"},
    {"continuations of nothing", {"hook.continuations=on_completion"}, "no effect without a hook"},
    {"a sum that is kept", {"ddp.accumulate_in_hook=true", "train.zero_grad=keep"}, "would be added again"},
    {"a batch too small", {"world.size=4", "world.batch=3", "data.samples=1"}, "leaves some of 4 ranks"},
    {"a shared card without contention", {"network.nics_per_node=1", "network.ranks_per_node=8", "network.transport=model"},
     /* clang-format on */
     "only network.transport = \"messages\""},
    {"a shared card that nobody shares",
     {"network.nics_per_node=1", "network.transport=messages"},
     "needs network.ranks_per_node"},
    /* clang-format off */
    {"a bus where nothing takes time", {"network.bus=pcie4_x16"}, "network.bus has no effect"},
    {"a connection where nothing takes time", {"network.connection_gb_per_s=1"}, "connection_gb_per_s has no effect"},
    {"a launch where nothing takes time", {"network.launch_us=8"}, "network.launch_us has no effect"},
    {"a host that adds nothing", {"network.host_gb_per_s=320"}, "network.algorithm = \"hfreduce\" adds on hosts"},
    {"two ways to say the batch", {"world.batch=8", "train.micro_steps=2", "data.samples=1"}, "give one of them"},
    {"a batch of several", {"world.batch=8"}, "needs data.samples = 1"},
    {"an excuse where nothing is found", {"expect.also=I-REF"}, "expect.also excuses findings"},
    {"findings to be compared", {"expect.same_with=world.size=3", "expect.verdict=error", "expect.error=no such thing"}, "needs expect.verdict"},
    {"resume from nothing", {"train.resume=true"}, "nothing to load"},
    {"state on exact forms", {"model.device=symbol", "optimizer.0.momentum=0.5"}, "keeps state needs cpu"},
    {"a place for numbers that are none", {"model.device=shape", "model.memory=host"}, "\"shape\" has none"},
    {"saving what holds no numbers", {"model.device=symbol", "train.checkpoint_step=1"}, "no numbers to save"},
    /* clang-format on */
    {"step counts that do not travel",
     /* clang-format off */
     {"join.enable=true", "join.broadcast_optimizer_state=true", "optimizer.0.kind=adam"}, "step counts of adam"},
    {"a group that is not there", {"when.0.group=second"}, "no [[group]] is called so"},
    {"a group for a micro-step", {"group.0.name=second", "when.0.group=second", "when.0.micro_steps=0"}, "applies from the beginning of a step"},
    {"a group without rank 0", {"group.0.name=second", "group.0.members=1", "when.0.group=second"}, "has rank 0 first"},
    {"a group in another order", {"world.size=3", "group.0.name=second", "group.0.members=0,2,1", "when.0.group=second"}, "has rank 0 first"},
    {"another group under join", {"group.0.name=second", "when.0.group=second", "join.enable=true"}, "when.group with join.enable"},
    {"another group and a backward that is left", {"group.0.name=second", "when.0.group=second", "when.0.abort_after=1"}, "both reset the reducer"},
    {"epochs without join", {"join.epochs=3"}, "join.epochs has no effect without join.enable"},
    {"epochs of unequal length", {"join.enable=true", "join.epochs=2"}, "cannot be cut into join.epochs = 2"},
    {"a rank with epochs apart", {"join.enable=true", "train.steps=4", "join.epochs=2", "train.steps@1=2"}, "cuts the train.steps of all ranks"},
    {"an output without a name", {"output.0.weight=2"}, "names no output"},
    {"an output twice", {"output.0.name=a", "output.0.weight=2", "output.1.name=a", "output.1.weight=3"}, "two [[output]] tables"},
    {"an output about which nothing is said", {"output.0.name=a"}, "says nothing"},
    {"a mean of given weights", {"output.0.name=a", "output.0.loss=mean"}, "output.loss of 'a' normalises a loss"},
    {"an objective of given weights", {"output.0.name=a", "output.0.objective=mean"}, "output.objective of 'a' normalises"},
    {"an output's objective under join", {"train.loss=mean", "output.0.name=a", "output.0.objective=mean", "join.enable=true"}, "output.objective counts over all ranks"},
    {"join settings without join", {"join.divide_by_initial_world_size=false"}, "without join.enable"},
    {"a rank that does not exist", {"when.0.ranks=7"}, "selects nothing: world.size is 2"},
    {"an order without saying so", {"when.0.ready_order=a,b"}, "no effect without when.ready"},
    {"a member that is there twice", {"group.0.name=g", "group.0.members=1,0,1"}, "has member 1 twice"},
    {"a member that does not exist", {"group.0.name=g", "group.0.members=0,5"}, "has member 5"},
    {"a collective of nobody", {"group.0.name=g", "group.0.members=0", "collective.0.group=g", "collective.0.ranks=1"},
     /* clang-format on */
     "selects nobody of group 'g'"},
    /* clang-format off */
    {"a reduction of what is not reduced", {"collective.0.op=allgather", "collective.0.reduction=max"}, "no effect on allgather"},
    {"bits of fractions", {"collective.0.reduction=bxor"}, "is of whole numbers, and collective.dtype is f32"},
    {"fractions of whole numbers", {"collective.0.reduction=avg", "collective.0.dtype=i32"}, "is of fractions, and collective.dtype is i32"},
    {"the largest complex number", {"collective.0.reduction=max", "collective.0.dtype=c64"}, "only added and averaged"},
    {"no other place", {"collective.0.op=gather", "collective.0.in_place=false"}, "no effect on gather"},
    {"a tensor of a barrier", {"collective.0.op=barrier", "collective.0.numel=7"}, "a barrier has no tensor: drop collective.numel"},
    {"a root of all", {"collective.0.root=1"}, "no effect on allreduce"},
    {"a root outside the group", {"collective.0.op=reduce", "collective.0.root=2"}, "but the group has 2 ranks"},
    {"everybody sends", {"collective.0.op=send"}, "the rank that sends"},
    {"a message beside others", {"world.size=3", "collective.0.op=recv", "collective.0.ranks=1"}, "needs a group of two ranks"},
    {"nested no_sync around a forward outside it", {"train.micro_steps=2", "when.0.sync=true", "when.0.no_sync_depth=2"},
     /* clang-format on */
     "when.sync = true keeps the forward out of no_sync"},
    {"nested no_sync where nothing accumulates",
     {"when.0.no_sync_depth=2"},
     "no forward runs inside no_sync"},
    {"periods without an averager", {"averager.periods=*=2"}, "averager.periods has no effect"},
    {"periods in blocks",
     {"averager.kind=hierarchical", "averager.levels=2:2/4", "averager.periods=*=2"},
     "levels are of all parameters"},
    {"a period that is none",
     {"averager.kind=periodic", "averager.levels=4", "averager.periods=out.*"},
     "is not pattern=period"},
    {"a period of zero",
     {"averager.kind=periodic", "averager.levels=4", "averager.periods=out.*=0"},
     "is not pattern=period"},
    {"levels without an averager", {"averager.levels=4"}, "no effect without averager.kind"},
    {"an averager without levels", {"averager.kind=periodic"}, "needs averager.levels"},
    {"a periodic averager of two levels",
     {"averager.kind=periodic", "averager.levels=2:2/4"},
     "a periodic averager has one"},
    {"periods that shrink",
     {"averager.kind=hierarchical", "averager.levels=4:2/2"},
     "is not period:ranks"},
    {"blocks that do not nest",
     {"averager.kind=hierarchical", "averager.levels=2:2/4:3/8"},
     "is not period:ranks"},
    {"a level behind the last",
     {"averager.kind=hierarchical", "averager.levels=2/4:4"},
     "is not period:ranks"},
    {"a period of zero", {"averager.kind=periodic", "averager.levels=0"}, "is not period:ranks"},
    {"text behind a level",
     {"averager.kind=periodic", "averager.levels=4x"},
     "is not period:ranks"},
    {"an averager under join",
     {"averager.kind=periodic", "averager.levels=4", "join.enable=true"},
     "takes no steps"},
    {"an averager of sizes",
     {"averager.kind=periodic", "averager.levels=4", "model.device=shape"},
     "on the host: drop model.device"},
    {"a sharded optimizer under join",
     {"optimizer.0.shard=flat", "join.enable=true"},
     "nobody else steps its part (ZRO-09)"},
    {"a sharded optimizer in backward",
     {"optimizer.0.shard=flat", "optimizer.0.in_backward=true"},
     "steps bucket by bucket: drop one"},
    {"a sharded optimizer behind the hook",
     {"optimizer.0.shard=flat", "optimizer.0.overlap=hook_then_optimizer"},
     "optimizer.overlap steps bucket by bucket"},
    {"two ways to step in backward",
     {"optimizer.0.in_backward=true", "optimizer.0.overlap=hook_then_optimizer"},
     "two ways to step in backward"},
    {"two optimizers in two ways",
     {"optimizer.0.in_backward=true", "optimizer.1.overlap=hook_then_optimizer"},
     "only one can be attached"},
    {"a fused optimizer that accumulates",
     {"optimizer.0.overlap=hook_then_optimizer", "train.micro_steps=2"},
     "cannot accumulate (OIB-03)"},
    {"a fused optimizer and a hook",
     {"optimizer.0.overlap=hook_then_optimizer", "ddp.comm_hook=fp16"},
     "drop the comm hook (OIB-03)"},
    {"a fused optimizer that is clipped",
     {"optimizer.0.overlap=hook_then_optimizer", "clip.max_norm=1"},
     "before gradients can be clipped"},
    {"an optimizer in backward beside mixed precision",
     {"optimizer.0.in_backward=true", "mixed_precision.param_dtype=bf16"},
     "drop one (MIX-05)"},
    {"a fused optimizer in some steps",
     {"optimizer.0.overlap=hook_then_optimizer", "optimizer.0.steps=0"},
     "cannot hold it back"},
    {"buckets assigned to two optimizers",
     {"optimizer.0.overlap=hook_with_zero_step", "optimizer.1.overlap=hook_with_zero_step"},
     "it is the only optimizer"},
    {"buckets assigned in part",
     {"optimizer.0.overlap=hook_with_zero_step", "optimizer.0.parameters=[\"*.bias\"]"},
     "owns all parameters (ZRO-10)"},
    {"buckets assigned and never rebuilt",
     {"optimizer.0.overlap=hook_with_zero_step", "ddp.find_unused_parameters=true"},
     "it would never update anything"},
    {"buckets assigned again",
     {"optimizer.0.overlap=hook_with_zero_step", "train.checkpoint_step=1", "train.resume=true"},
     "no resumed training is the uninterrupted one"},
    {"buckets assigned to who has joined",
     {"optimizer.0.overlap=hook_with_zero_step", "join.enable=true"},
     "(ZRO-09)"},
    {"buckets assigned in forms",
     {"optimizer.0.overlap=hook_with_zero_step", "model.device=symbol"},
     "it needs model.device = \"cpu\""},
    {"buckets assigned from streams",
     {"optimizer.0.overlap=hook_with_zero_step", "streams.producers=1"},
     "drop streams.producers"},
    {"buckets assigned and averaged",
     {"optimizer.0.overlap=hook_with_zero_step_interleaved", "averager.kind=periodic",
      "averager.levels=4"},
     "nothing left to average"},
    /* clang-format off */
    {"buckets assigned without every backward", {"optimizer.0.overlap=hook_with_zero_step", "when.0.skip=backward"}, "drop when.skip"},
    {"pieces of nothing", {"optimizer.0.overlap=hook_then_optimizer", "optimizer.0.shard_buckets=true"}, "no effect without optimizer.overlap"},
    {"a sharded optimizer of sizes", {"optimizer.0.shard=parameters", "model.device=shape"}, "needs model.device = \"cpu\""},
    {"a sharded optimizer on streams", {"optimizer.0.shard=parameters", "streams.producers=1"}, "drop streams.producers"},
    /* clang-format on */
    {"a sharded optimizer and an average",
     {"optimizer.0.shard=parameters", "averager.kind=periodic", "averager.levels=4"},
     "nothing left to average"},
    /* clang-format off */
    {"padding of nothing", {"optimizer.0.shard=parameters", "shard.padding@1=dropped"}, "shard.padding has no effect without"},
    {"owners of nothing", {"optimizer.0.shard=flat", "shard.order=registration"}, "shard.order has no effect without"},
    {"a norm that is not asked for", {"clip.group=world"}, "clip.group has no effect without clip.max_norm"},
    {"a norm of what is not unscaled", {"clip.max_norm=1", "amp.enable=true", "optimizer.0.steps=1-3"}, "stay scaled, and would enter the norm"},
    {"a norm of the own part of nothing", {"clip.max_norm=1", "clip.group@0=own"}, "no effect without optimizer.shard"},
    {"a norm over nobody", {"clip.max_norm=1", "clip.group=pair"}, "no [[group]] is called so"},
    /* clang-format on */
    {"a norm over a group before the reduction",
     {"clip.max_norm=1", "clip.group=world", "clip.place=before_reduction"},
     "each gradient is clipped by itself"},
    /* clang-format off */
    {"a norm over a group on streams", {"clip.max_norm=1", "clip.group=world", "streams.producers=1"}, "what the host has computed"},
    {"an agent without a store", {"agent.attempts=3"}, "agent.attempts has no effect without rendezvous.enable"},
    {"a late rank without a store", {"agent.late_ms@1=5"}, "agent.late_ms has no effect without rendezvous.enable"},
    {"a store that is not enabled", {"rendezvous.generations=false"}, "no effect without rendezvous.enable"},
    {"a host that does not exist", {"rendezvous.enable=true", "rendezvous.host=2"}, "but world.size is 2"},
    {"a join without a store", {"fault.0.kind=kill", "fault.0.rank=0", "fault.0.when=before_join"}, "needs rendezvous.enable"},
    {"a joiner at a time", {"rendezvous.enable=true", "fault.0.kind=kill", "fault.0.rank=0", "fault.0.joiner=1"}, "fault.joiner has no effect"},
    {"findings of a verified run", {"expect.finding.0.check=I-USED"}, "contradicts expect.verdict"},
    {"a window over steps", {"train.zero_grad=keep", "when.0.skip=step", "when.0.sync=false"}, "make them micro-steps of one step"},
    {"errors without words", {"expect.verdict=error"}, "needs expect.error"},
    {"replay of nothing", {"schedule.chooser=replay"}, "needs schedule.string"},
    /* clang-format on */
};

TEST(plan, contradictions_are_refused_naming_both_sides)
{
    for (size_t i = 0; i < sizeof contradictions / sizeof contradictions[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = make_plan();
        cd_test_row("%s", contradictions[i].name);
        assert_ok(cddp_plan_check(plan, &err), &err);
        for (size_t k = 0; k < 8 && contradictions[i].sets[k] != NULL; k++) {
            char key[128];
            const char *equals = strchr(contradictions[i].sets[k], '=');
            const size_t length = (size_t)(equals - contradictions[i].sets[k]);
            memcpy(key, contradictions[i].sets[k], length);
            key[length] = '\0';
            assert_ok(cddp_plan_set(plan, key, equals + 1, &err), &err);
        }
        assert_fails(cddp_plan_check(plan, &err), CDDP_E_CONFIG, &err, contradictions[i].words);
        cddp_plan_destroy(plan);
    }
}

TEST(plan, no_expectation_takes_words_of_the_verifier)
{
    for (int i = 0; i < CD_OWN_COUNT; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_plan *plan = make_plan();
        const char *words = cd_own_message_get((cd_own_message)i);
        cd_test_row("%s", words);
        assert_ok(cddp_plan_set(plan, "expect.verdict", "error", &err), &err);
        assert_ok(cddp_plan_set(plan, "expect.error", words, &err), &err);
        assert_fails(cddp_plan_check(plan, &err), CDDP_E_CONFIG, &err, "the verifier itself may");
        cddp_plan_destroy(plan);
    }
}

TEST(plan, the_digest_sees_what_changes_a_run_and_nothing_else)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *a = make_plan(), *b = make_plan();
    assert_true(cddp_plan_digest(a) == cddp_plan_digest(b));
    assert_ok(cddp_plan_set(b, "title", "another", &err), &err);
    assert_ok(cddp_plan_set(b, "expect.also", "I-REF", &err), &err);
    assert_true(cddp_plan_digest(a) == cddp_plan_digest(b));
    assert_ok(cddp_plan_set(b, "when.0.branch", "1", &err), &err);
    assert_false(cddp_plan_digest(a) == cddp_plan_digest(b));
    cddp_plan_destroy(a);
    cddp_plan_destroy(b);
}

TEST(selector, prints_what_it_was_parsed_from)
{
    static const char *const texts[] = {"", "2", "0-3", "1%2", "0-2,5,3%7"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_selector selector;
        char text[128];
        assert_ok(cd_selector_parse(texts[i], &selector, &err), &err);
        cd_selector_print(&selector, text, sizeof text);
        assert_string_equal(text, texts[i]);
    }
}

TEST(keys, every_row_is_found_by_its_own_name_and_has_words)
{
    for (size_t i = 0; i < cd_key_count(); i++) {
        const cd_key_row *row = cd_key_row_get(i);
        cddp_key_info info;
        assert_ptr_equal(cd_key_find(row->table, row->field), row);
        assert_true(cddp_plan_key(i, &info));
        assert_true(strlen(info.doc) > 0 && strlen(info.path) > 0);
    }
    cddp_key_info info;
    assert_false(cddp_plan_key(cd_key_count(), &info));
}

static cddp_status build_and_drop(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cddp_plan *plan = NULL;
    cddp_status status = cddp_plan_create(allocator, &plan, err);
    if (status == CDDP_OK) status = cddp_plan_set(plan, "title", "a test", err);
    if (status == CDDP_OK) status = cddp_plan_set(plan, "ddp.static_graph@1", "true", err);
    cddp_plan_destroy(plan);
    return status;
}

TEST(plan, an_empty_text_does_not_take_the_place_of_a_default)
{
    static const char *const paths[] = {"world.backend", "network.algorithm",  "network.link",
                                        "network.bus",   "network.intra_link", "schedule.chooser",
                                        "model.name"};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        cd_test_row("%s", paths[i]);
        assert_fails(cddp_plan_set(plan, paths[i], "", &err), CDDP_E_CONFIG, &err,
                     "is empty; leave it out for its default");
    }
    assert_ok(cddp_plan_set(plan, "hook.name", "", &err), &err); /* no hook */
    cddp_plan_destroy(plan);
}

TEST(plan, running_out_of_memory_leaves_nothing_behind) { cd_test_oom_loop(build_and_drop, NULL); }

TEST_MAIN()
