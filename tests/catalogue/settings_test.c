/* SPDX-License-Identifier: Apache-2.0 */
/* A legal setting does not make a right training wrong. Every scenario that is verified is run
** again with single settings changed. It must be verified, inconclusive or refused in words then.
**
**     settings_test [--seed N] [--part N] SCENARIO…
**
** --part N: every N-th pair of scenario and setting, drawn from the seed, which is printed; 1: all.
** What a setting makes wrong indeed stands in a table, with the reason; of all pairs each row must
** be needed.
*/
#include "core/base/error.h"
#include "core/base/prng.h"
#include "scenarios/reader/reader.h"
#include "verify/worlds/compose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tests/plants/hooks.c: hooks that scenarios/bugs names. */
extern const cddp_plugin cddp_plugin_v1;

typedef struct setting {
    const char *name;
    const char *sets[3];
    size_t count;
} setting;

static const setting settings[] = {
    /* clang-format off */
    {"none", {"train.zero_grad=none"}, 1},
    {"zero", {"train.zero_grad=zero"}, 1},
    {"keep", {"train.zero_grad=keep"}, 1},
    {"checkpoint", {"train.checkpoint_step=2"}, 1},
    {"resume", {"train.checkpoint_step=2", "train.resume=true"}, 2},
    {"resume late", {"train.checkpoint_step=5", "train.resume=true", "train.steps=9"}, 3},
    {"micro 2", {"train.micro_steps=2"}, 1},
    {"micro 3", {"train.micro_steps=3"}, 1},
    {"bf16", {"model.dtype=bf16"}, 1},
    {"f16", {"model.dtype=f16"}, 1},
    {"clip", {"clip.max_norm=0.001"}, 1},
    {"steps 7", {"train.steps=7"}, 1},
    {"world 3", {"world.size=3"}, 1},
    {"world 5", {"world.size=5"}, 1},
    {"view", {"ddp.gradient_as_bucket_view=true"}, 1},
    {"copies", {"ddp.gradient_as_bucket_view=false"}, 1},
    {"small buckets", {"ddp.bucket_cap_mb=0.0001"}, 1},
    {"small first bucket", {"ddp.first_bucket_bytes=64"}, 1},
    {"join", {"join.enable=true"}, 1},
    {"epochs", {"join.enable=true", "train.steps=6", "join.epochs=2"}, 3},
    {"other numbers of micro-steps", {"train.micro_steps=2", "train.micro_steps@1=3"}, 2},
    /* clang-format on */
};
#define SETTINGS (sizeof settings / sizeof settings[0])

/* Where a setting makes the training wrong. An empty setting or path stands for all of them. */
static const struct exception {
    const char *setting, *path, *check, *reason;
} exceptions[] = {
    /* clang-format off */
    {"", "hooks/fp16_compress_near_its_limit", "I-RANGE", "its gradients are near the largest number of f16, and grow"},
    {"", "hooks/topk_in_half_precision", "I-RANGE", "its gradients are near the largest number of f16, and grow"},
    {"f16", "", "I-RANGE", "the eps of Adam and Adagrad is 0 in f16, and 0/0 is no number"},
    {"world 5", "data/epochs_with_shuffle", "I-DATA", "ten samples among four ranks, or twelve among five, are padded"},
    {"world 5", "data/batch_across_two_epochs", "I-DATA", "twelve among five are padded"},
    {"world 5", "no_sync/other_count_on_one_rank", "I-ORDER", "its table of micro-steps names ranks below 3"},
    {"join", "no_sync/other_count_on_one_rank", "I-ORDER", "every forward votes on who has joined, and one rank has twice as many"},
    {"epochs", "no_sync/other_count_on_one_rank", "I-ORDER", "every forward votes on who has joined, and one rank has twice as many"},
    {"other", "wrappers/turns_by_micro_step", "I-LIVE", "one rank takes a third turn of both wrappers, for which the others do not come"},
    {"other", "", "I-ORDER", "what every backward or forward issues (join, a synchronised batch norm, a delayed all-reduce, a rank's own micro-steps) is issued more often by one rank"},
    {"micro", "wrappers/join", "I-ORDER", "a wrapper takes all its micro-steps before the next one, and a rank without inputs shadows one of each in turn"},
    {"keep", "wrappers/join", "I-REF", "as in join/epochs"},
    {"keep", "join/epochs", "I-REF", "a rank without inputs keeps an older gradient than the others, and the next epoch adds it"},
    {"bf16", "hooks/feedback_across_a_rebuild", "", "its planted hook takes f32 alone, and says so"},
    {"f16", "hooks/feedback_across_a_rebuild", "", "its planted hook takes f32 alone, and says so"},
    {"none", "hooks/local_sgd_keeps_zeros", "I-PARAMEQ", "gradients that are not kept as zeros are left out of the average"},
    {"resume", "hooks/local_sgd_keeps_zeros", "I-PARAMEQ", "gradients begin anew, and the next average finds none"},
    {"", "hooks/local_sgd_of_experts", "I-PARAMEQ", "an average leaves out an expert that nobody chose in its step"},
    {"", "hooks/wrapped_local_sgd_of_experts", "I-PARAMEQ", "likewise: what an average leaves out stays as each rank has it"},
    {"other", "static_graph/first_pass_again", "I-CONTENT", "one rank leaves another micro-step of its window than the others"},
    {"micro", "fsdp/experts_on_one_rank", "I-NONE", "a unit that ran under no_sync alone is not reduced by a backward that does not run it"},
    {"world 3", "fsdp/experts_on_one_rank", "I-ORDER", "ranks gather different experts, and nothing compares their order"},
    {"world 5", "fsdp/experts_on_one_rank", "I-FRESH", "likewise: a shard of another expert is what is gathered"},
    {"micro 3", "buffers/evaluation_between_steps", "I-STEP", "a forward with gradients in the middle of a window arms the reducer, and the next backward reduces"},
    /* clang-format on */
};
#define EXCEPTIONS (sizeof exceptions / sizeof exceptions[0])

typedef struct siblings {
    const cddp_registry *registry;
    cd_prng drawn;
    uint64_t part;
    size_t verified, inconclusive, refused, excused, accused;
    bool is_needed[EXCEPTIONS];
} siblings;

static bool begins_with(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool is_excused(siblings *s, const setting *with, const char *path, const cddp_verdict *v)
{
    const char *check = v->finding_count > 0 ? v->findings[0].check : "";
    for (size_t i = 0; i < EXCEPTIONS; i++) {
        const struct exception *x = &exceptions[i];
        if (!begins_with(with->name, x->setting) || strstr(path, x->path) == NULL ||
            (x->check[0] != '\0' && strcmp(check, x->check) != 0))
            continue;
        s->is_needed[i] = true;
        return true;
    }
    return false;
}

static void report(const char *path, const setting *with, const cddp_verdict *v)
{
    printf("FAIL %s with %s: %s\n", path, with->name, v->summary);
    if (v->finding_count == 0) return;
    const cddp_finding *f = &v->findings[0];
    printf("    %s step %u.%u: %s\n      expected: %s\n      actual:   %s\n", f->check, f->step,
           f->micro_step, f->title, f->expected, f->actual);
}

static cddp_status run(const siblings *s, const cddp_plan *plan, cddp_verdict **verdict,
                       cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_compose *compose = NULL;
    const cd_compose_options options = {.plan = plan,
                                        .registry = s->registry,
                                        .level = CDDP_TRACE_DIGEST};
    CD_TRY_OUT(cd_compose_open(&options, &compose, err));
    cddp_run_options how = cddp_run_options_default();
    cd_compose_fill(compose, &how);
    how.registry = s->registry;
    CD_TRY_OUT(cddp_run(&how, verdict, err));
out:
    cd_compose_close(compose);
    return status;
}

static void run_with(siblings *s, const char *path, const setting *with)
{
    const cd_reader_options reader = {.sets = with->sets, .set_count = with->count};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cddp_verdict *v = NULL;
    if (cd_reader_read_file(&reader, path, &plan, &err) != CDDP_OK) {
        s->refused++;
    } else if (run(s, plan, &v, &err) != CDDP_OK) {
        s->refused += err.status == CDDP_E_CONFIG;
        s->accused += err.status != CDDP_E_CONFIG;
        if (err.status != CDDP_E_CONFIG)
            printf("FAIL %s with %s: %s\n", path, with->name, err.message);
    } else if (v->outcome == CDDP_OUTCOME_VERIFIED) {
        s->verified++;
    } else if (v->outcome == CDDP_OUTCOME_INCONCLUSIVE) {
        s->inconclusive++;
    } else if (v->outcome == CDDP_OUTCOME_ERROR) {
        s->refused++;
    } else if (is_excused(s, with, path, v)) {
        s->excused++;
    } else {
        s->accused++;
        report(path, with, v);
    }
    cd_error_reset(&err);
    cddp_verdict_destroy(v);
    cddp_plan_destroy(plan);
}

/* Only what is right as it stands: a scenario that expects findings is wrong by itself. */
static bool is_right(const char *path)
{
    const cd_reader_options reader = {.complain = NULL};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    const bool is = cd_reader_read_file(&reader, path, &plan, &err) == CDDP_OK &&
                    plan->expect.verdict == CDDP_EXPECT_VERIFIED;
    cd_error_reset(&err);
    cddp_plan_destroy(plan);
    return is;
}

static void run_scenario(siblings *s, const char *path)
{
    const bool runs = is_right(path);
    for (size_t i = 0; i < SETTINGS; i++) {
        const bool is_drawn = cd_prng_below(&s->drawn, s->part) == 0;
        if (runs && is_drawn) run_with(s, path, &settings[i]);
    }
}

int main(int argc, char **argv)
{
    siblings s = {.part = 1};
    uint64_t seed = 20260101, idle = 0;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    if (cddp_registry_create(NULL, &registry, &err) != CDDP_OK ||
        cddp_registry_add_plugin(registry, &cddp_plugin_v1, &err) != CDDP_OK) {
        fprintf(stderr, "registry: %s\n", err.message);
        return EXIT_FAILURE;
    }
    s.registry = registry;
    int first = 1;
    for (; first + 1 < argc && begins_with(argv[first], "--"); first += 2) {
        uint64_t *number = strcmp(argv[first], "--seed") == 0 ? &seed : &s.part;
        *number = strtoull(argv[first + 1], NULL, 10);
    }
    s.part = s.part > 0 ? s.part : 1;
    s.drawn = cd_prng_seed(seed);
    printf("seed %llu\n", (unsigned long long)seed);
    for (int i = first; i < argc; i++) run_scenario(&s, argv[i]);
    for (size_t i = 0; s.part == 1 && i < EXCEPTIONS; i++) {
        if (s.is_needed[i]) continue;
        printf("FAIL nothing needs the exception '%s' '%s' '%s'\n", exceptions[i].setting,
               exceptions[i].path, exceptions[i].check);
        idle++;
    }
    printf("%zu verified, %zu inconclusive, %zu refused in words, %zu wrong indeed, %zu accused\n",
           s.verified, s.inconclusive, s.refused, s.excused, s.accused);
    cddp_registry_destroy(registry);
    return s.accused == 0 && idle == 0 && s.verified > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
