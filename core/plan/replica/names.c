/* SPDX-License-Identifier: Apache-2.0 */
/* Names in a plan, looked up where they must be known. */
#include "core/plan/replica/names.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/pattern.h"
#include "core/base/suggest.h"
#include "core/plan/chosen_hook.h"
#include "core/registry/registry.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct names {
    cd_contradiction_fn report;
    void *context;
    size_t count;
    size_t strangers; /* of these: like nothing that is known */
} names;

static void report(names *n, const char *key, const char *format, ...) CDDP_PRINTF(3, 4);
static void report(names *n, const char *key, const char *format, ...)
{
    char message[CDDP_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    cd_vformat(message, sizeof message, format, args);
    va_end(args);
    n->count++;
    n->report(n->context, key, message);
}

static void keep_first(void *context, const char *key, const char *message)
{
    (void)key;
    char *first = context;
    if (first[0] == '\0') snprintf(first, CDDP_ERROR_MESSAGE_BYTES, "%s", message);
}

/* ---- of the model ---- */

static void report_parameter(names *n, const cd_replica *r, const char *key, const char *name)
{
    const cd_module *module = r->model->module;
    const char *bracket = strchr(key, '['), *rest = bracket != NULL ? strchr(bracket, ']') + 1 : "";
    cd_suggestion s;
    cd_suggest_begin(&s, name);
    for (size_t p = 0; p < module->parameter_count; p++)
        cd_suggest_offer(&s, module->parameters[p].name);
    if (s.best != NULL) {
        report(n, key, "%.*s%s: model '%s' has no parameter '%s'; did you mean '%s'?",
               (int)(bracket != NULL ? (size_t)(bracket - key) : strlen(key)), key, rest,
               r->settings.model.name, name, s.best);
        return;
    }
    report(n, key, "%.*s%s: model '%s' has no parameter '%s'; its %zu go from '%s' to '%s'",
           (int)(bracket != NULL ? (size_t)(bracket - key) : strlen(key)), key, rest,
           r->settings.model.name, name, module->parameter_count, module->parameters[0].name,
           module->parameters[module->parameter_count - 1].name);
}

/* Of a name that a table must have cddp_plan_check says that it lacks it. */
static bool is_given(const char *name) { return name != NULL && name[0] != '\0'; }

static void check_patterns(names *n, const cd_replica *r, const char *key,
                           const cddp_text_list *patterns)
{
    const cd_module *module = r->model->module;
    for (size_t i = 0; i < patterns->count; i++) {
        bool has_match = false;
        for (size_t p = 0; !has_match && p < module->parameter_count; p++)
            has_match = cd_pattern_matches(patterns->items[i], module->parameters[p].name);
        for (size_t b = 0; !has_match && b < module->buffer_count; b++)
            has_match = cd_pattern_matches(patterns->items[i], module->buffers[b].name);
        if (!has_match) report_parameter(n, r, key, patterns->items[i]);
    }
}

static void check_parameter(names *n, const cd_replica *r, const char *key, const char *name)
{
    if (name != NULL && name[0] != '\0' && cd_module_find_parameter(r->model->module, name) < 0)
        report_parameter(n, r, key, name);
}

static const char *when_key(char key[64], size_t index, const char *field)
{
    snprintf(key, 64, "when[%zu].%s", index, field);
    return key;
}

static void check_when(names *n, const cd_replica *r, size_t index)
{
    const cddp_plan_when *when = &r->plan->whens[index];
    cddp_error err = CDDP_ERROR_INIT;
    char key[64];
    check_patterns(n, r, when_key(key, index, "freeze"), &when->freeze);
    check_patterns(n, r, when_key(key, index, "unfreeze"), &when->unfreeze);
    check_patterns(n, r, when_key(key, index, "replace_parameters"), &when->replace_parameters);
    check_parameter(n, r, when_key(key, index, "poison_parameter"), when->poison_parameter);
    for (size_t i = 0; i < when->ready_order.count; i++)
        check_parameter(n, r, when_key(key, index, "ready_order"), when->ready_order.items[i]);
    for (size_t i = 0; i < when->uses.count; i++) {
        cd_unit_use use = {0};
        if (cd_replica_read_use(r, when->uses.items[i], &use, &err) != CDDP_OK)
            report(n, when_key(key, index, "uses"), "%s", err.message);
    }
    for (size_t i = 0; i < when->outputs.count; i++) {
        uint32_t output = 0;
        if (cd_replica_find_output(r, when->outputs.items[i], &output, &err) != CDDP_OK)
            report(n, when_key(key, index, "outputs"), "when.outputs: %s", err.message);
    }
}

static void check_outputs(names *n, const cd_replica *r, const cddp_plan *plan)
{
    for (size_t i = 0; i < plan->output_count; i++) {
        char key[48];
        uint32_t output = 0;
        cddp_error err = CDDP_ERROR_INIT;
        if (!is_given(plan->outputs[i].name)) continue;
        snprintf(key, sizeof key, "output[%zu].name", i);
        if (cd_replica_find_output(r, plan->outputs[i].name, &output, &err) != CDDP_OK)
            report(n, key, "output.name: %s", err.message);
    }
}

/* Their form is known to be right: plans with contradictions are not looked at. */
static void check_periods(names *n, const cd_replica *r, const cddp_text_list *periods)
{
    for (size_t i = 0; i < periods->count; i++) {
        char pattern[CD_PLAN_PATTERN_BYTES];
        uint64_t period = 0;
        const char *one = pattern;
        if (cd_plan_read_period(periods->items[i], pattern, &period))
            check_patterns(n, r, "averager.periods", &(cddp_text_list){&one, 1});
    }
}

static void check_settings(names *n, const cd_replica *r)
{
    const cddp_plan_settings *s = &r->settings;
    check_periods(n, r, &s->averager.periods);
    check_patterns(n, r, "model.freeze", &s->model.freeze);
    check_patterns(n, r, "model.ignore", &s->model.ignore);
    check_patterns(n, r, "ddp.delay_all_reduce_named_params",
                   &s->ddp.delay_all_reduce_named_params);
    check_parameter(n, r, "ddp.param_to_hook_all_reduce", s->ddp.param_to_hook_all_reduce);
    for (size_t i = 0; i < r->plan->optimizer_count; i++) {
        char key[64];
        snprintf(key, sizeof key, "optimizer[%zu].parameters", i);
        check_patterns(n, r, key, &r->plan->optimizers[i].parameters);
    }
}

size_t cd_replica_find_unknown_names(const cd_replica *r, cd_contradiction_fn report_fn,
                                     void *context)
{
    names n = {.report = report_fn, .context = context};
    check_settings(&n, r);
    check_outputs(&n, r, r->plan);
    for (size_t i = 0; i < r->plan->when_count; i++) {
        if (cddp_selector_has(&r->plan->whens[i].ranks, r->rank)) check_when(&n, r, i);
    }
    return n.count;
}

cddp_status cd_replica_check_names(const cd_replica *replica, cddp_error *err)
{
    char first[CDDP_ERROR_MESSAGE_BYTES] = "";
    const size_t count = cd_replica_find_unknown_names(replica, keep_first, first);
    return count == 0 ? CDDP_OK : cd_fail(err, CDDP_E_CONFIG, "%s", first);
}

/* ---- of the registry ---- */

static void report_stranger(names *n, const char *key, const char *what, const cd_suggestion *s)
{
    if (s->best != NULL) {
        report(n, key, "there is no %s '%.60s'; did you mean '%s'?", what, s->wanted, s->best);
    } else {
        n->strangers++;
        report(n, key, "there is no %s '%.60s'; a plugin may bring it (--plugin)", what, s->wanted);
    }
}

static void check_check(names *n, const cddp_registry *registry, const char *key, const char *name)
{
    const cddp_check *check;
    cd_suggestion s;
    cd_suggest_begin(&s, name);
    for (size_t i = 0; (check = cddp_registry_check(registry, i)) != NULL; i++) {
        if (strcmp(check->name, name) == 0) return;
        cd_suggest_offer(&s, check->name);
    }
    report_stranger(n, key, "check", &s);
}

static const char *const mark_names[] = {
#define CD_MARK(name, summary) #name,
#include "core/plan/marks.def"
#undef CD_MARK
};

static void check_mark(names *n, const cddp_registry *registry, const char *name)
{
    cd_suggestion s;
    cd_suggest_begin(&s, name);
    for (size_t i = 0; i < sizeof mark_names / sizeof mark_names[0]; i++) {
        if (strcmp(mark_names[i], name) == 0) return;
        cd_suggest_offer(&s, mark_names[i]);
    }
    /* A plugin may emit marks that nobody has declared. */
    if (s.best != NULL || !cd_registry_has_plugin(registry))
        report_stranger(n, "expect.marks", "coverage mark", &s);
}

static void check_expectations(names *n, const cddp_plan_expect *expect,
                               const cddp_registry *registry)
{
    for (size_t i = 0; i < expect->finding_count; i++) {
        char key[64];
        snprintf(key, sizeof key, "expect.finding[%zu].check", i);
        if (is_given(expect->findings[i].check))
            check_check(n, registry, key, expect->findings[i].check);
    }
    for (size_t i = 0; i < expect->also.count; i++)
        check_check(n, registry, "expect.also", expect->also.items[i]);
    for (size_t i = 0; i < expect->exercised.count; i++)
        check_check(n, registry, "expect.exercised", expect->exercised.items[i]);
    for (size_t i = 0; i < expect->marks.count; i++)
        check_mark(n, registry, expect->marks.items[i]);
}

static void check_hook_name(names *n, const cddp_registry *registry, const char *key,
                            const char *name)
{
    const cddp_hook *hook;
    cd_suggestion s;
    if (name == NULL || name[0] == '\0' || cddp_registry_find_hook(registry, name) != NULL) return;
    cd_suggest_begin(&s, name);
    for (size_t i = 0; (hook = cddp_registry_hook(registry, i)) != NULL; i++)
        cd_suggest_offer(&s, hook->name);
    report_stranger(n, key, "comm hook", &s);
}

static void check_hook(names *n, const cddp_plan_settings *settings, const cddp_registry *registry)
{
    cd_chosen_hook chosen;
    cd_choose_hook(settings, &chosen);
    check_hook_name(n, registry, settings->ddp.comm_hook != NULL ? "ddp.comm_hook" : "hook.name",
                    chosen.name);
    check_hook_name(n, registry, "hook.inner", chosen.inner);
}

/* ---- of a plan ---- */

/* Does a [[rank]] table give the rank a setting whose key begins so? */
static bool has_own(const cddp_plan *plan, uint32_t rank, const char *prefix)
{
    for (size_t i = 0; i < plan->override_count; i++) {
        if (strncmp(plan->overrides[i].key, prefix, strlen(prefix)) == 0 &&
            cddp_selector_has(&plan->overrides[i].ranks, rank))
            return true;
    }
    return false;
}

/* Whether the rank differs in settings that names depend on. */
static bool is_special(const cddp_plan *plan, uint32_t rank)
{
    return has_own(plan, rank, "model.") || has_own(plan, rank, "hook.") ||
           has_own(plan, rank, "ddp.comm_hook") ||
           has_own(plan, rank, "ddp.delay_all_reduce_named_params") ||
           has_own(plan, rank, "ddp.param_to_hook_all_reduce");
}

static bool is_model(const char *name)
{
    for (size_t i = 0; cd_model_type_name(i) != NULL; i++) {
        if (strcmp(cd_model_type_name(i), name) == 0) return true;
    }
    return false;
}

/* NULL: the reason was reported, or there is no memory, which the run will report. */
static cd_replica *make_replica(names *n, const cddp_plan *plan, uint32_t rank)
{
    cd_replica *replica = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan_settings settings;
    const cd_replica_options options = {.plan = plan, .rank = rank, .only_names = true};
    const cddp_status status = cd_replica_create(&options, &replica, &err);
    if (status != CDDP_OK && status != CDDP_E_NOMEM &&
        cddp_plan_rank_settings(plan, rank, &settings, NULL) == CDDP_OK) {
        const bool known = is_model(settings.model.name);
        const char *own = known ? "rank.model.options" : "rank.model.name",
                   *common = own + strlen("rank.");
        report(n, has_own(plan, rank, common) ? own : common, "%s", err.message);
    }
    return replica;
}

/* Each [[when]] is looked at once, on the first of the ranks that it is for and that have the
** common settings. */
static void check_common(names *n, const cddp_plan *plan, const cddp_registry *registry,
                         uint32_t first)
{
    cd_replica *replica = make_replica(n, plan, first);
    cddp_plan_settings settings;
    if (cddp_plan_rank_settings(plan, first, &settings, NULL) == CDDP_OK)
        check_hook(n, &settings, registry);
    if (replica != NULL) check_settings(n, replica);
    if (replica != NULL) check_outputs(n, replica, plan);
    for (size_t i = 0; replica != NULL && i < plan->when_count; i++) {
        for (uint32_t rank = first; rank < plan->world.size; rank++) {
            if (cddp_selector_has(&plan->whens[i].ranks, rank) && !is_special(plan, rank)) {
                check_when(n, replica, i);
                break;
            }
        }
    }
    cd_replica_destroy(replica);
}

static void check_special(names *n, const cddp_plan *plan, const cddp_registry *registry,
                          uint32_t rank)
{
    cd_replica *replica = make_replica(n, plan, rank);
    cddp_plan_settings settings;
    if (cddp_plan_rank_settings(plan, rank, &settings, NULL) == CDDP_OK)
        check_hook(n, &settings, registry);
    if (replica != NULL) n->count += cd_replica_find_unknown_names(replica, n->report, n->context);
    cd_replica_destroy(replica);
}

static void find_names(names *n, const cddp_plan *plan, const cddp_registry *registry)
{
    bool has_common = false;
    check_expectations(n, &plan->expect, registry);
    const size_t before = n->count;
    /* Ranks with other settings tend to have the same mistake. */
    for (uint32_t rank = 0; rank < plan->world.size && n->count == before; rank++) {
        if (is_special(plan, rank)) {
            check_special(n, plan, registry, rank);
        } else if (!has_common) {
            has_common = true;
            check_common(n, plan, registry, rank);
        }
    }
}

/* Of one wrapper; self: the registry. */
static size_t search_one(void *self, const cddp_plan *plan, cd_contradiction_fn report_fn,
                         void *context)
{
    names n = {.report = report_fn, .context = context};
    find_names(&n, plan, self);
    return n.count;
}

size_t cd_plan_find_unknown_names(const cddp_plan *plan, const cddp_registry *registry,
                                  cd_contradiction_fn report_fn, void *context)
{
    const cd_plan_search search = {search_one, (void *)(uintptr_t)registry};
    if (plan->wrapper_count == 0) return search_one(search.context, plan, report_fn, context);
    return cd_plan_search_wrappers(plan, &search, report_fn, context);
}

static void report_nobody(void *context, const char *key, const char *message)
{
    (void)context;
    (void)key;
    (void)message;
}

bool cd_plan_lacks_plugin(const cddp_plan *plan, const cddp_registry *registry)
{
    names n = {.report = report_nobody};
    for (size_t i = 0; i < cddp_plan_wrapper_count(plan); i++) {
        cddp_plan *own = NULL;
        if (cddp_plan_of_wrapper(plan, i, NULL, &own, NULL) != CDDP_OK) return false;
        find_names(&n, own, registry);
        cddp_plan_destroy(own);
    }
    return n.count > 0 && n.count == n.strangers;
}
