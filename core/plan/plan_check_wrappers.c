/* SPDX-License-Identifier: Apache-2.0 */
/* Contradictions of a plan with several wrappers: among them, what they cannot have together, and
** then those of the plan of each.
*/
#include "core/plan/plan_check.h"

#include "core/base/error.h"

#include <stdio.h>
#include <string.h>

/* ---- names ---- */

/* The group of all ranks, unless every wrapper has its own. */
static bool has_world(const cddp_plan *plan)
{
    bool has = plan->wrapper_count == 0;
    for (size_t i = 0; i < plan->wrapper_count; i++) has |= !plan->wrappers[i].own_group;
    return has;
}

static void check_group(cd_contradictions *c, size_t index)
{
    const cddp_plan_group *group = &c->plan->groups[index];
    const bool is_world = group->name != NULL && strcmp(group->name, "world") == 0;
    if (!is_world || !has_world(c->plan) || group->members.count == c->plan->world.size) return;
    cd_plan_enter_table(c, "group", index);
    cd_plan_contradict(c, "group.name", "'world' is the group of all ranks");
}

static void check_name(cd_contradictions *c, size_t index)
{
    const cddp_plan *plan = c->plan;
    const char *name = plan->wrappers[index].name;
    cd_plan_enter_table(c, "wrapper", index);
    if (name == NULL) {
        cd_plan_contradict(c, "wrapper.name", "[[wrapper]] number %zu has no name", index);
    } else if (cd_plan_find_wrapper(plan, name) != index) {
        cd_plan_contradict(c, "wrapper.name", "wrapper.name = \"%s\": two wrappers have that name",
                           name);
    } else if (plan->wrappers[index].own_group &&
               (cd_plan_find_group(plan, name) != NULL ||
                (strcmp(name, "world") == 0 && has_world(plan)))) {
        cd_plan_contradict(c, "wrapper.own_group",
                           "wrapper.own_group: its group would be called '%s' as the wrapper is, "
                           "and there is another group of that name",
                           name);
    }
}

/* Elements of tables that repeat, each of which may be one wrapper's. */
static void check_owner(cd_contradictions *c, cd_key_scope scope, size_t index, const char *name)
{
    const char *table = cd_item_table_get(scope)->name;
    char key[64];
    if (name == NULL || cd_plan_find_wrapper(c->plan, name) < c->plan->wrapper_count) return;
    snprintf(key, sizeof key, "%s.wrapper", table);
    cd_plan_enter_table(c, table, index);
    cd_plan_contradict(c, key, "%s = \"%s\": no [[wrapper]] has that name", key, name);
}

static void check_owners(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    for (size_t i = 0; i < plan->optimizer_count; i++)
        check_owner(c, CD_SCOPE_optimizer, i, plan->optimizers[i].wrapper);
    for (size_t i = 0; i < plan->output_count; i++)
        check_owner(c, CD_SCOPE_output, i, plan->outputs[i].wrapper);
    for (size_t i = 0; i < plan->when_count; i++)
        check_owner(c, CD_SCOPE_when, i, plan->whens[i].wrapper);
    for (size_t i = 0; i < plan->collective_count; i++)
        check_owner(c, CD_SCOPE_collective, i, plan->collectives[i].wrapper);
    for (size_t i = 0; i < plan->expect.finding_count; i++)
        check_owner(c, CD_SCOPE_finding, i, plan->expect.findings[i].wrapper);
    for (size_t i = 0; i < plan->override_count; i++) {
        if (plan->overrides[i].wrapper <= plan->wrapper_count) continue;
        cd_plan_enter_table(c, NULL, 0);
        cd_plan_contradict(c, plan->overrides[i].key, "wrapper.%llu.%s: there are %zu wrappers",
                           (unsigned long long)plan->overrides[i].wrapper - 1,
                           plan->overrides[i].key, plan->wrapper_count);
    }
}

/* ---- turns ---- */

static void check_order(cd_contradictions *c, size_t index)
{
    const cddp_text_list *names = &c->plan->whens[index].wrappers;
    if (names->count == 0) return;
    cd_plan_enter_table(c, "when", index);
    bool is_whole = names->count == c->plan->wrapper_count;
    for (size_t i = 0; is_whole && i < c->plan->wrapper_count; i++) {
        bool is_named = false;
        for (size_t k = 0; k < names->count; k++)
            is_named |= cd_plan_find_wrapper(c->plan, names->items[k]) == i;
        is_whole = is_named;
    }
    if (!is_whole)
        cd_plan_contradict(c, "when.wrappers",
                           "when.wrappers is the order of all wrappers, each once. One that is to "
                           "do nothing has skip = \"all\" in a [[when]]");
    if (c->plan->whens[index].wrapper != NULL)
        cd_plan_contradict(c, "when.wrappers",
                           "when.wrappers is of all wrappers, when.wrapper of one: drop one");
    if (c->plan->whens[index].micro_steps.term_count > 0)
        cd_plan_contradict(c, "when.wrappers",
                           "when.wrappers is the order of a whole step: drop when.micro_steps");
}

/* ---- what wrappers cannot have together ---- */

static bool has_blocks(const cddp_plan *plan)
{
    cd_plan_level levels[CD_PLAN_LEVELS_MAX];
    const cddp_plan_averager *a = &plan->settings.averager;
    const bool is_any = a->kind == CDDP_AVERAGER_HIERARCHICAL && a->levels != NULL;
    const uint32_t count = is_any ? cd_plan_read_levels(a->levels, levels) : 0;
    for (uint32_t i = 0; i < count; i++)
        if (levels[i].ranks != 0 && levels[i].ranks < plan->world.size) return true;
    return false;
}

/* Groups of some ranks are named after the group that they are part of, and not after a wrapper. */
static void refuse_blocks(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    const cddp_plan_settings *s = &plan->settings;
    const char *options = s->hook.options != NULL ? s->hook.options : "";
    size_t shared = 0;
    for (size_t i = 0; i < plan->wrapper_count; i++) shared += !plan->wrappers[i].own_group;
    if (plan->wrapper_count > 1 && has_blocks(plan))
        cd_plan_contradict(c, "averager.levels",
                           "averager.levels with blocks and several wrappers: each would open "
                           "groups of the same names");
    if (shared > 1 && s->hook.name != NULL && strcmp(s->hook.name, "post_local_sgd") == 0 &&
        strstr(options, "subgroup_size=") != NULL)
        cd_plan_contradict(c, "hook.options",
                           "subgroup_size and several wrappers in one group: each would open "
                           "groups of the same names; give them wrapper.own_group");
    if (plan->wrapper_count > 1 && s->fsdp.enable && s->fsdp.shard_group_size > 0)
        cd_plan_contradict(c, "fsdp.shard_group_size",
                           "fsdp.shard_group_size and several wrappers: each would open groups of "
                           "the same names");
}

static void refuse_modes(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    bool has_own_group = false;
    cd_plan_enter_table(c, NULL, 0);
    refuse_blocks(c);
    if (plan->wrapper_count > CDDP_PLAN_WRAPPERS_MAX)
        cd_plan_contradict(c, "wrapper.name", "%zu wrappers: at most %d", plan->wrapper_count,
                           CDDP_PLAN_WRAPPERS_MAX);
    for (uint32_t rank = 0; rank < plan->world.size; rank++) {
        cddp_plan_settings s;
        if (cddp_plan_rank_settings(plan, rank, &s, NULL) != CDDP_OK) break;
        for (size_t i = 0; s.join.enable && i < plan->wrapper_count; i++)
            has_own_group |= plan->wrappers[i].own_group;
        if (has_own_group && plan->wrapper_count > 1)
            cd_plan_contradict(c, "wrapper.own_group",
                               "wrapper.own_group with join.enable: wrappers that join together "
                               "have one process group (JON-01)");
        if (has_own_group) break;
    }
    for (size_t i = 0; i < plan->when_count; i++) {
        cd_plan_enter_table(c, "when", i);
        if (plan->whens[i].group != NULL)
            cd_plan_contradict(c, "when.group",
                               "when.group with [[wrapper]]: a process group that changes under "
                               "several wrappers is not judged");
    }
    for (size_t i = 0; i < plan->collective_count; i++) {
        cd_plan_enter_table(c, "collective", i);
        if (plan->collectives[i].wrapper == NULL)
            cd_plan_contradict(c, "collective.wrapper",
                               "[[collective]] with [[wrapper]]: collective.wrapper says in whose "
                               "iteration it is issued");
    }
}

void cd_plan_check_wrappers(cd_contradictions *c)
{
    for (size_t i = 0; i < c->plan->wrapper_count; i++) check_name(c, i);
    for (size_t i = 0; i < c->plan->group_count; i++) check_group(c, i);
    check_owners(c);
    if (c->plan->wrapper_count > 0) refuse_modes(c);
    for (size_t i = 0; i < c->plan->when_count; i++) check_order(c, i);
    cd_plan_enter_table(c, NULL, 0);
    const cddp_plan_schedule *schedule = &c->plan->schedule;
    if (c->plan->wrapper_count == 0 && schedule->turns != CDDP_TURNS_STEP)
        cd_plan_contradict(c, "schedule.turns", "schedule.turns has no effect without [[wrapper]]");
}

/* ---- the plans of the wrappers ---- */

typedef struct relay {
    const cddp_plan *plan;
    size_t wrapper;
    cd_plan_search_fn search;
    void *search_context;
    cd_contradiction_fn report;
    void *context;
    size_t count;
} relay;

typedef struct echo {
    const char *message;
    bool is_heard;
} echo;

static void hear(void *context, const char *key, const char *message)
{
    (void)key;
    echo *e = context;
    e->is_heard |= strcmp(e->message, message) == 0;
}

/* Was it found in the plan of an earlier wrapper too? */
static bool is_said(const relay *r, const char *message)
{
    echo e = {message, false};
    for (size_t i = 0; i < r->wrapper && !e.is_heard; i++) {
        cddp_plan *own = NULL;
        if (cddp_plan_of_wrapper(r->plan, i, NULL, &own, NULL) != CDDP_OK) return false;
        (void)r->search(r->search_context, own, hear, &e);
        cddp_plan_destroy(own);
    }
    return e.is_heard;
}

/* "when[1].sync" of the wrapper is "when[3].sync" of the whole plan. */
static const char *translate(const relay *r, const char *key, char *text, size_t text_bytes)
{
    static const cd_key_scope scopes[] = {CD_SCOPE_optimizer, CD_SCOPE_output, CD_SCOPE_collective,
                                          CD_SCOPE_when};
    for (size_t i = 0; i < sizeof scopes / sizeof scopes[0]; i++) {
        const char *table = cd_item_table_get(scopes[i])->name;
        const size_t length = strlen(table);
        unsigned long index;
        int used = 0;
        if (strncmp(key, table, length) != 0 || sscanf(key + length, "[%lu]%n", &index, &used) != 1)
            continue;
        snprintf(text, text_bytes, "%s[%zu]%s", table,
                 cd_plan_place_of(r->plan, r->wrapper, scopes[i], index), key + length + used);
        return text;
    }
    return key;
}

static void pass_on(void *context, const char *key, const char *message)
{
    relay *r = context;
    char words[320], place[96];
    if (is_said(r, message)) return;
    r->count++;
    if (r->report == NULL) return;
    snprintf(words, sizeof words, "wrapper '%s': %s", r->plan->wrappers[r->wrapper].name, message);
    r->report(r->context, translate(r, key, place, sizeof place), words);
}

size_t cd_plan_search_wrappers(const cddp_plan *plan, const cd_plan_search *search,
                               cd_contradiction_fn report, void *context)
{
    relay r = {.plan = plan,
               .search = search->search,
               .search_context = search->context,
               .report = report,
               .context = context};
    for (r.wrapper = 0; r.wrapper < plan->wrapper_count; r.wrapper++) {
        cddp_plan *own = NULL;
        if (cddp_plan_of_wrapper(plan, r.wrapper, NULL, &own, NULL) != CDDP_OK) {
            if (report != NULL) report(context, "wrapper.name", "out of memory");
            return r.count + 1;
        }
        (void)search->search(search->context, own, pass_on, &r);
        cddp_plan_destroy(own);
    }
    return r.count;
}
