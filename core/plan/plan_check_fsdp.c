/* SPDX-License-Identifier: Apache-2.0 */
/* Contradictions with a fully sharded model: settings of the wrapper that it replaces, and what no
** rank could do or the judge could not see with shards. Each is refused in words; none is ignored.
*/
#include "core/plan/plan_check.h"

#include "core/plan/unit_precision.h"

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
    {"clip", "group", "squares of shards are added over all of them"},
    {"clip", "place", "gradients of a unit are reduced as one, and clipped behind that"},
    {"model", "ignore",
     "what is not sharded would be trained by each rank alone, and nothing says which is right "
     "(FSD-15)"},
    {"schedule", "ready",
     "units are reduced in the order of backward, which is the same on every rank, and not in the "
     "order in which gradients happen to be ready"},
    {"train", "zero_grad", "shards' gradients are dropped after each step: \"none\""},
    {"optimizer", "shard", "the model is sharded, and so is what each rank steps"},
    {"optimizer", "overlap", "there are no buckets"},
    {"optimizer", "in_backward",
     "gradients are reduced unit by unit, and shards stepped at the end"},
};

/* What a [[when]] may still change. */
static const char *const allowed[] = {"ranks",    "steps",   "micro_steps", "samples",
                                      "branch",   "outputs", "uses",        "compute_us",
                                      "evaluate", "wrapper", "wrappers",    "statistics",
                                      "sync"};

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
    if (s->streams.producers > 0 && f->device_id == CDDP_SHARDING_DEVICE_CPU) {
        cd_plan_contradict(c, "fsdp.device_id",
                           "fsdp.device_id = \"cpu\" with streams.producers: units are computed "
                           "with on the device with streams: \"streams\" (FSD-18)");
    }
    if (s->streams.producers == 0 && f->device_id == CDDP_SHARDING_DEVICE_STREAMS) {
        cd_plan_contradict(c, "fsdp.device_id",
                           "fsdp.device_id = \"streams\" without streams.producers: there is no "
                           "device to move to; \"cpu\" (FSD-18)");
    }
    if (s->streams.producers == 0 && !f->limit_all_gathers) {
        cd_plan_contradict(c, "fsdp.limit_all_gathers",
                           "fsdp.limit_all_gathers = false has no effect without "
                           "streams.producers: every operation is over when it returns (FSH-12)");
    }
    if (s->model.device == CDDP_MODEL_DEVICE_SYMBOL && f->device_id != CDDP_SHARDING_DEVICE_NONE) {
        cd_plan_contradict(c, "fsdp.device_id",
                           "fsdp.device_id with model.device = \"symbol\": forms are on no device "
                           "that they could move to");
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
    if (s->model.device == CDDP_MODEL_DEVICE_SHAPE) {
        cd_plan_contradict(c, "fsdp.enable",
                           "fsdp.enable is judged by numbers or by forms: it needs model.device = "
                           "\"cpu\" or \"symbol\"");
    }
    if (s->model.dtype == CDDP_MODEL_DTYPE_F16 || s->model.dtype == CDDP_MODEL_DTYPE_BF16) {
        cd_plan_contradict(c, "model.dtype",
                           "model.dtype with fsdp.enable is f32 or f64: sums of shards round "
                           "elsewhere than those of buckets");
    }
}

static void check_precision(cd_contradictions *c, const cddp_plan_settings *s)
{
    const cddp_text_list *units = &s->fsdp.unit_precision;
    if (units->count > 0 && s->fsdp.layout == CDDP_SHARDING_CUT_ROWS && s->train.micro_steps > 1) {
        cd_plan_contradict(c, "fsdp.unit_precision",
                           "fsdp.unit_precision with fsdp.layout = \"rows\" and train.micro_steps: "
                           "some units would add up in reduce_dtype and some in the gradients "
                           "themselves (FMP-04); give all of them one [mixed_precision]");
    }
    for (size_t i = 0; i < units->count; i++) {
        cd_unit_precision own, other;
        if (!cd_unit_precision_read(units->items[i], &own)) {
            cd_plan_contradict(c, "fsdp.unit_precision",
                               "fsdp.unit_precision: '%s' is not MODULE=PARAM or "
                               "MODULE=PARAM/REDUCE, with none, f16, bf16 or f32; the root is "
                               "\"(root)\". Words behind that are cast_forward_inputs, "
                               "keep_low_precision_grads, output_dtype=DTYPE and, of the root, "
                               "cast_root_forward_inputs=false",
                               units->items[i]);
            return;
        }
        for (size_t k = 0; k < i; k++) {
            if (!cd_unit_precision_read(units->items[k], &other) || other.length != own.length ||
                memcmp(other.module, own.module, own.length) != 0)
                continue;
            cd_plan_contradict(c, "fsdp.unit_precision",
                               "fsdp.unit_precision has '%s' and '%s' for one unit",
                               units->items[k], units->items[i]);
        }
        if (s->model.dtype == CDDP_MODEL_DTYPE_F64 && own.param != CDDP_DTYPE_COUNT) {
            cd_plan_contradict(c, "fsdp.unit_precision",
                               "model.dtype = \"f64\" computes in f64: fsdp.unit_precision '%s' "
                               "casts to what computes in f32",
                               units->items[i]);
        }
    }
}

/* A cast of what nothing is cast to. */
static void check_casts(cd_contradictions *c, const cddp_plan_settings *s)
{
    const cddp_plan_fsdp *f = &s->fsdp;
    const bool is_mixed = s->mixed_precision.param_dtype != CDDP_PARAM_DTYPE_NONE;
    const struct {
        const char *key;
        bool is_given;
    } casts[] = {{"fsdp.cast_forward_inputs", f->cast_forward_inputs},
                 {"fsdp.cast_root_forward_inputs", !f->cast_root_forward_inputs},
                 {"fsdp.keep_low_precision_grads", f->keep_low_precision_grads}};
    bool keeps = f->keep_low_precision_grads;
    if (s->model.device == CDDP_MODEL_DEVICE_SYMBOL &&
        (f->unit_precision.count > 0 || f->output_dtype != CDDP_SHARDING_OUTPUT_NONE))
        cd_plan_contradict(c, "fsdp.output_dtype",
                           "model.device = \"symbol\" is exact: casts of fsdp.unit_precision and "
                           "fsdp.output_dtype need cpu");
    for (size_t i = 0; !is_mixed && i < sizeof casts / sizeof casts[0]; i++)
        if (casts[i].is_given)
            cd_plan_contradict(c, casts[i].key,
                               "%s has no effect without mixed_precision.param_dtype",
                               casts[i].key);
    for (size_t i = 0; i < f->unit_precision.count; i++) {
        cd_unit_precision own;
        if (!cd_unit_precision_read(f->unit_precision.items[i], &own)) return;
        const bool casts_to_it = own.cast_forward_inputs || own.keep_low_precision_grads ||
                                 !own.cast_root_forward_inputs;
        keeps |= own.keep_low_precision_grads;
        if (own.param == CDDP_DTYPE_COUNT && casts_to_it)
            cd_plan_contradict(c, "fsdp.unit_precision",
                               "fsdp.unit_precision '%s' casts to the param_dtype of a unit that "
                               "has none",
                               f->unit_precision.items[i]);
    }
    if (keeps && s->clip.max_norm > 0)
        cd_plan_contradict(c, "fsdp.keep_low_precision_grads",
                           "clip.max_norm with keep_low_precision_grads: a norm of gradients in "
                           "several dtypes, which are scaled in theirs, is not judged");
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

/* A strategy, with the key of its shard groups. */
typedef struct mesh {
    int64_t strategy; /* cddp_plan_fsdp_sharding_strategy */
    uint64_t group;
    const char *key, *strategy_key;
} mesh;

/* Each of the two means is rounded once; powers of two do not round, and the mean of means is that
** of all. */
static void check_mesh(cd_contradictions *c, const mesh *m)
{
    const uint64_t world = (uint64_t)c->plan->world.size, group = m->group;
    const bool is_hybrid =
        m->strategy == CDDP_SHARDING_HYBRID || m->strategy == CDDP_SHARDING_HYBRID_ZERO2;
    const bool divides = group > 1 && group < world && world % group == 0;
    if (!is_hybrid && group > 0) {
        cd_plan_contradict(c, m->key, "%s has no effect without a hybrid %s", m->key,
                           m->strategy_key);
    } else if (is_hybrid && !divides) {
        cd_plan_contradict(c, m->key,
                           "%s is %llu: a hybrid %s needs several groups of several ranks that "
                           "divide world.size = %llu (HSD-01, HSD-05)",
                           m->key, (unsigned long long)group, m->strategy_key,
                           (unsigned long long)world);
    } else if (is_hybrid && (!is_power_of_two(group) || !is_power_of_two(world / group))) {
        cd_plan_contradict(c, m->key,
                           "%s = %llu of world.size = %llu: judged are groups and replicas whose "
                           "numbers are powers of two; other means of means round twice",
                           m->key, (unsigned long long)group, (unsigned long long)world);
    }
}

static void check_meshes(cd_contradictions *c, const cddp_plan_fsdp *f)
{
    const bool changes = f->resume_strategy != CDDP_SHARDING_RESUMES_SAME;
    check_mesh(c, &(mesh){f->sharding_strategy, f->shard_group_size, "fsdp.shard_group_size",
                          "fsdp.sharding_strategy"});
    check_mesh(c, &(mesh){changes ? f->resume_strategy - 1 : CDDP_SHARDING_FULL,
                          f->resume_shard_group_size, "fsdp.resume_shard_group_size",
                          "fsdp.resume_strategy"});
}

static void check_state(cd_contradictions *c, const cddp_plan_settings *s)
{
    const cddp_plan_fsdp *f = &s->fsdp;
    const bool changes = f->resume_strategy != CDDP_SHARDING_RESUMES_SAME ||
                         f->resume_layout != CDDP_SHARDING_RESUMES_SAME_LAYOUT;
    const bool is_full = f->state_dict_type == CDDP_SHARDING_STATE_FULL;
    if (s->train.checkpoint_step == 0 && (!is_full || f->rank0_only)) {
        cd_plan_contradict(c, "fsdp.state_dict_type",
                           "fsdp.state_dict_type and fsdp.rank0_only have no effect without "
                           "train.checkpoint_step");
    }
    if (!is_full && f->rank0_only) {
        cd_plan_contradict(c, "fsdp.rank0_only",
                           "fsdp.rank0_only is of fsdp.state_dict_type = \"FULL_STATE_DICT\": of "
                           "shards each rank saves its own (FST-02)");
    }
    if (changes && !s->train.resume) {
        cd_plan_contradict(c, "fsdp.resume_strategy",
                           "fsdp.resume_strategy and fsdp.resume_layout have no effect without "
                           "train.resume");
    }
    if (f->resume_layout == CDDP_SHARDING_RESUMES_ROWS && f->use_orig_params) {
        cd_plan_contradict(c, "fsdp.resume_layout",
                           "fsdp.use_orig_params aligns a flat unit; fsdp.resume_layout = \"rows\" "
                           "has none");
    }
    if (f->resume_layout != CDDP_SHARDING_RESUMES_SAME_LAYOUT && s->train.micro_steps > 1 &&
        s->mixed_precision.reduce_dtype > 0) {
        cd_plan_contradict(c, "fsdp.resume_layout",
                           "fsdp.resume_layout with train.micro_steps and "
                           "mixed_precision.reduce_dtype: the two layouts add micro-steps up in "
                           "different dtypes (FMP-04), and no one training is judged by both");
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
    check_precision(c, &plan->settings);
    check_casts(c, &plan->settings);
    check_evaluation(c);
    check_meshes(c, &plan->settings.fsdp);
    check_state(c, &plan->settings);
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
