/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/names.h"

#include "core/base/suggest.h"
#include "core/hooks/hook.h"
#include "sim/algorithm.h"
#include "sim/fault.h"
#include "sim/network.h"

#include <stdio.h>
#include <string.h>

typedef struct examination {
    const cddp_plan *plan;
    cd_contradiction_fn report;
    void *context;
    size_t count;
} examination;

/* "there is no fault 'kil'; did you mean 'kill'?; …" */
static void complain(examination *x, const char *key, const char *words, const cd_suggestion *s)
{
    char message[360];
    const char *at = strchr(words, '|'); /* where the suggestion goes */
    snprintf(message, sizeof message, "%.*s%s%s%s%s", (int)(at - words), words,
             s->best != NULL ? "; did you mean '" : "", s->best != NULL ? s->best : "",
             s->best != NULL ? "'?" : "", at + 1);
    x->report(x->context, key, message);
    x->count++;
}

static void examine_faults(examination *x)
{
    for (size_t i = 0; i < x->plan->fault_count; i++) {
        const char *kind = x->plan->faults[i].kind;
        char key[48],
            words[200] = "a fault needs a kind|: `cddp-verify list faults` shows what there is";
        cd_suggestion s;
        if (kind != NULL && cd_fault_find(kind) >= 0) continue;
        cd_suggest_begin(&s, kind != NULL ? kind : "");
        for (int32_t k = 0; kind != NULL && k < CD_FAULT_KIND_COUNT; k++)
            cd_suggest_offer(&s, cd_fault_name((cddp_event_enum_fault_kind)k));
        if (kind != NULL)
            snprintf(words, sizeof words,
                     "there is no fault '%.60s'|; `cddp-verify list faults` shows what there is",
                     kind);
        snprintf(key, sizeof key, "fault[%zu].kind", i);
        complain(x, key, words, &s);
    }
}

static void examine_algorithm(examination *x)
{
    const char *name = x->plan->network.algorithm;
    char words[200];
    cd_suggestion s;
    if (name == NULL || cd_algorithm_find(name) >= 0) return;
    cd_suggest_begin(&s, name);
    for (int k = 0; k < CD_ALGORITHM_COUNT; k++)
        cd_suggest_offer(&s, cd_algorithm_name((cd_algorithm)k));
    snprintf(words, sizeof words,
             "there is no algorithm '%.60s'|; `cddp-verify list algorithms` shows what there is",
             name);
    complain(x, "network.algorithm", words, &s);
}

static void examine_link(examination *x, const char *key, const char *name)
{
    char words[200];
    cd_suggestion s;
    if (name == NULL || cd_link_find(name) >= 0) return;
    cd_suggest_begin(&s, name);
    for (int k = 0; k < CD_LINK_KIND_COUNT; k++)
        cd_suggest_offer(&s, cd_link_get((cd_link_kind)k)->name);
    snprintf(words, sizeof words,
             "there is no link '%.60s'|; `cddp-verify list links` shows what there is", name);
    complain(x, key, words, &s);
}

/* ---- comm hooks ---- */

typedef struct hook_option {
    const char *hooks, *name;
} hook_option;

static const hook_option hook_options[] = {
#define HOOK_OPTION(hooks, name, initial, doc) {hooks, name},
#include "cli/hook_options.def"
#undef HOOK_OPTION
};

/* Of "powersgd, batched_powersgd". */
static bool is_of_hook(const hook_option *o, const char *hook)
{
    const size_t length = strlen(hook);
    for (const char *at = o->hooks; *at != '\0'; at += strspn(at, ", ")) {
        const size_t word = strcspn(at, ",");
        if (word == length && strncmp(at, hook, length) == 0) return true;
        at += word;
    }
    return false;
}

/* The names in "a=1,b=2". Hooks around others, and of plugins, know theirs alone. */
static void examine_hook_options(examination *x)
{
    const char *hook = x->plan->settings.hook.name, *options = x->plan->settings.hook.options;
    if (hook == NULL || options == NULL || x->plan->settings.hook.inner != NULL) return;
    bool is_known = false;
    for (size_t i = 0; i < sizeof hook_options / sizeof hook_options[0]; i++)
        is_known |= is_of_hook(&hook_options[i], hook);
    for (const char *at = options; is_known && *at != '\0';) {
        const size_t length = strcspn(at, ",");
        char name[64], words[260];
        bool found = false;
        cd_suggestion s;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "=, "), at);
        cd_suggest_begin(&s, name);
        for (size_t i = 0; i < sizeof hook_options / sizeof hook_options[0]; i++) {
            if (!is_of_hook(&hook_options[i], hook)) continue;
            found |= strcmp(hook_options[i].name, name) == 0;
            cd_suggest_offer(&s, hook_options[i].name);
        }
        snprintf(
            words, sizeof words,
            "comm hook %.40s: unknown option '%s'|; `cddp-verify explain %.40s` shows those of it",
            hook, name, hook);
        if (!found && memchr(at, '=', length) != NULL) complain(x, "hook.options", words, &s);
        at += length + (at[length] == ',');
    }
}

size_t cd_names_examine(const cddp_plan *plan, cd_contradiction_fn report, void *context)
{
    examination x = {.plan = plan, .report = report, .context = context};
    examine_faults(&x);
    examine_algorithm(&x);
    examine_link(&x, "network.link", plan->network.link);
    examine_link(&x, "network.intra_link", plan->network.intra_link);
    examine_link(&x, "network.bus", plan->network.bus);
    examine_hook_options(&x);
    return x.count;
}
