/* SPDX-License-Identifier: Apache-2.0 */
/* Contradictions with a fully sharded model: settings of the wrapper that it replaces, and what no
** rank could do or the judge could not see with shards. Each is refused in words; none is ignored.
*/
#include "core/plan/plan_check.h"

#include <stdio.h>
#include <string.h>

/* A key by table, or one field of it, and why a sharded model cannot have it. */
typedef struct refusal {
    const char *table, *field; /* field NULL: all of the table */
    const char *why;
} refusal;

static const refusal refusals[] = {
    {"ddp", NULL, "a sharded model is not wrapped: [ddp] has no effect on it"},
    {"hook", NULL, "units are reduced and scattered, not given to a hook of buckets"},
    {"averager", NULL, "ranks have shards of one model, not replicas that could be averaged"},
    {"join", NULL,
     "a rank that has run out of inputs would have to serve its shards in every gather and "
     "reduction of the others; PyTorch has no join for it either"},
    {"amp", NULL,
     "ranks would decide from their own shards whether a gradient overflowed, and skip different "
     "steps"},
    {"mixed_precision", NULL, "these are the wrapper's dtypes, not those of units"},
    {"clip", "group", "squares of shards are added over all of them"},
    {"clip", "place", "gradients of a unit are reduced as one, and clipped behind that"},
    {"model", "ignore",
     "what is not sharded would be trained by each rank alone, and nothing says which is right "
     "(FSD-15)"},
    {"schedule", "ready",
     "units are reduced in the order of backward, which is the same on every rank, and not in the "
     "order in which gradients happen to be ready"},
    {"train", "zero_grad", "shards' gradients are dropped after each step: \"none\""},
    {"train", "checkpoint_step", "a checkpoint here is of whole parameters"},
    {"train", "resume", "a checkpoint here is of whole parameters"},
    {"optimizer", "shard", "the model is sharded, and so is what each rank steps"},
    {"optimizer", "overlap", "there are no buckets"},
    {"optimizer", "in_backward",
     "gradients are reduced unit by unit, and shards stepped at the end"},
};

/* What a [[when]] may still change. */
static const char *const allowed[] = {"ranks",   "steps", "micro_steps", "samples", "branch",
                                      "outputs", "uses",  "compute_us",  "evaluate"};

static bool is_refused(const cd_key_row *row, const char **why)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *r = &refusals[i];
        if (strcmp(r->table, row->table) != 0) continue;
        if (r->field != NULL && strcmp(r->field, row->field) != 0) continue;
        *why = r->why;
        return true;
    }
    *why = "nothing of a sharded model follows it";
    if (strcmp(row->table, "when") != 0) return false;
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
        if (strcmp(allowed[i], row->field) == 0) return false;
    return true;
}

static bool is_untouched(const cd_key_row *row, const void *field)
{
    union {
        char bytes[512];
        double aligned;
    } initial = {{0}};
    if (row->width > sizeof initial) return true;
    cd_key_parse_initial(row, initial.bytes);
    return memcmp(field, initial.bytes, row->width) == 0;
}

static void look_at(cd_contradictions *c, const cd_key_row *row, const void *field)
{
    char key[96];
    const char *why = NULL;
    if (!is_refused(row, &why) || is_untouched(row, field)) return;
    snprintf(key, sizeof key, "%s.%s", row->table, row->field);
    cd_plan_contradict(c, key, "%s with fsdp.enable: %s", key, why);
}

static void look_at_row(cd_contradictions *c, const cd_key_row *row)
{
    const cd_item_table *table = cd_item_table_get(row->scope);
    if (table == NULL) {
        const char *base =
            row->scope == CD_SCOPE_RANK ? (const char *)&c->plan->settings : (const char *)c->plan;
        look_at(c, row, base + row->offset);
        return;
    }
    const char *elements = NULL;
    memcpy(&elements, (const char *)c->plan + table->items_offset, sizeof elements);
    for (size_t i = 0; i < cd_plan_item_count(c->plan, row->scope); i++) {
        cd_plan_enter_table(c, table->name, i);
        look_at(c, row, elements + i * table->element_bytes + row->offset);
    }
    cd_plan_enter_table(c, NULL, 0);
}

static void check_wrapping(cd_contradictions *c, const cddp_plan_settings *s)
{
    const cddp_plan_fsdp *f = &s->fsdp;
    const bool by_modules = f->auto_wrap_policy == CDDP_SHARDING_WRAPS_MODULES;
    if (by_modules != (f->wrap_modules.count > 0)) {
        cd_plan_contradict(c, "fsdp.wrap_modules",
                           by_modules ? "fsdp.auto_wrap_policy = \"modules\" needs the names of "
                                        "fsdp.wrap_modules"
                                      : "fsdp.wrap_modules has no effect without "
                                        "fsdp.auto_wrap_policy = \"modules\"");
    }
    if (f->auto_wrap_policy != CDDP_SHARDING_WRAPS_SIZE && f->min_num_params != 100000000) {
        cd_plan_contradict(c, "fsdp.min_num_params",
                           "fsdp.min_num_params has no effect without fsdp.auto_wrap_policy = "
                           "\"size_based\"");
    }
    if (f->layout == CDDP_SHARDING_CUT_ROWS && f->use_orig_params) {
        cd_plan_contradict(c, "fsdp.use_orig_params",
                           "fsdp.use_orig_params aligns a flat unit; fsdp.layout = \"rows\" has "
                           "none");
    }
    if (!f->sync_module_states && s->model.init == CDDP_MODEL_INIT_DISTINCT) {
        cd_plan_contradict(c, "fsdp.sync_module_states",
                           "fsdp.sync_module_states = false with model.init = \"distinct\": the "
                           "model would be a mosaic of all ranks' slices (FSD-16), which nothing "
                           "is compared with");
    }
    if (s->model.device != CDDP_MODEL_DEVICE_CPU) {
        cd_plan_contradict(c, "fsdp.enable",
                           "fsdp.enable is judged by numbers: it needs model.device = \"cpu\"");
    }
    if (s->model.dtype == CDDP_MODEL_DTYPE_F16 || s->model.dtype == CDDP_MODEL_DTYPE_BF16) {
        cd_plan_contradict(c, "model.dtype",
                           "model.dtype with fsdp.enable is f32 or f64: sums of shards round "
                           "elsewhere than those of buckets");
    }
}

/* A forward that the wrapper does not see would read parameters that are nowhere full; one with
** gradients that no backward follows would leave units full. */
static void check_evaluation(cd_contradictions *c)
{
    for (size_t i = 0; i < c->plan->when_count; i++) {
        const int64_t way = c->plan->whens[i].evaluate;
        if (way != CDDP_EVALUATE_MODULE && way != CDDP_EVALUATE_WITH_GRAD) continue;
        cd_plan_enter_table(c, "when", i);
        cd_plan_contradict(c, "when.evaluate",
                           "when.evaluate with fsdp.enable is \"wrapper\": another forward would "
                           "read parameters that are not full, or leave them so");
        cd_plan_enter_table(c, NULL, 0);
    }
}

static bool is_power_of_two(uint64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/* Each of the two means is rounded once; powers of two do not round, and the mean of means is that
** of all. */
static void check_mesh(cd_contradictions *c, const cddp_plan_fsdp *f)
{
    const uint64_t world = (uint64_t)c->plan->world.size, group = f->shard_group_size;
    const bool is_hybrid = f->sharding_strategy == CDDP_SHARDING_HYBRID ||
                           f->sharding_strategy == CDDP_SHARDING_HYBRID_ZERO2;
    const bool divides = group > 1 && group < world && world % group == 0;
    if (!is_hybrid && group > 0) {
        cd_plan_contradict(c, "fsdp.shard_group_size",
                           "fsdp.shard_group_size has no effect without a hybrid "
                           "fsdp.sharding_strategy");
    } else if (is_hybrid && !divides) {
        cd_plan_contradict(c, "fsdp.shard_group_size",
                           "fsdp.shard_group_size is %llu: a hybrid fsdp.sharding_strategy needs "
                           "several groups of several ranks that divide world.size = %llu (HSD-01, "
                           "HSD-05)",
                           (unsigned long long)group, (unsigned long long)world);
    } else if (is_hybrid && (!is_power_of_two(group) || !is_power_of_two(world / group))) {
        cd_plan_contradict(c, "fsdp.shard_group_size",
                           "fsdp.shard_group_size = %llu of world.size = %llu: judged are groups "
                           "and replicas whose numbers are powers of two; other means of means "
                           "round twice",
                           (unsigned long long)group, (unsigned long long)world);
    }
}

void cd_plan_check_fsdp(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    if (!plan->settings.fsdp.enable) {
        for (size_t i = 0; i < cd_key_count(); i++) {
            const cd_key_row *row = cd_key_row_get(i);
            if (strcmp(row->table, "fsdp") != 0 ||
                is_untouched(row, (const char *)&plan->settings + row->offset))
                continue;
            cd_plan_contradict(c, "fsdp.enable", "fsdp.%s has no effect without fsdp.enable = true",
                               row->field);
            return;
        }
        return;
    }
    for (size_t i = 0; i < cd_key_count(); i++) look_at_row(c, cd_key_row_get(i));
    check_wrapping(c, &plan->settings);
    check_evaluation(c);
    check_mesh(c, &plan->settings.fsdp);
    for (size_t i = 0; i < plan->override_count; i++) {
        const char *why = NULL;
        const cd_key_row *row = cd_key_find_path(plan->overrides[i].key);
        if (strcmp(plan->overrides[i].key, "train.micro_steps") == 0) {
            cd_plan_contradict(c, plan->overrides[i].key,
                               "train.micro_steps of single ranks with fsdp.enable: every "
                               "micro-step gathers units from all ranks");
            continue;
        }
        if (row != NULL && is_refused(row, &why))
            cd_plan_contradict(c, plan->overrides[i].key, "%s with fsdp.enable: %s",
                               plan->overrides[i].key, why);
    }
}
