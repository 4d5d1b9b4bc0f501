/* SPDX-License-Identifier: Apache-2.0 */
/* explain: what a name in a report means. A name is looked up as invariant, word of a report,
** event, scenario key, law of a hook, exit code, hook and so on; every meaning is printed. A tag
** such as UNU-04 is answered with the scenarios that exercise it. */
#include "cddp/plan.h"
#include "cli/catalogue.h"
#include "cli/command.h"
#include "cli/list.h"
#include "cli/page.h"
#include "verify/conformance/hook_battery.h"
#include "verify/conformance/hook_summary.h"
#include "core/base/suggest.h"
#include "cli/tag.h"
#include "core/base/error.h"
#include "core/trace/event.h"
#include "db/kinds.h"
#include "scenarios/reader/reader.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define FIELD_WORDS_MAX 64 /* more than any field has */
#define EXPLAIN_WIDTH 100
#define NAME_BYTES 256 /* of several words that are one name */

static bool has_item(const cddp_text_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i], name) == 0) return true;
    return false;
}

static bool exercises_tag(const cddp_plan *plan, const char *name)
{
    return has_item(&plan->tags, name);
}

static bool breaks_check(const cddp_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->expect.finding_count; i++)
        if (strcmp(plan->expect.findings[i].check, name) == 0) return true;
    return has_item(&plan->expect.also, name);
}

/* The scenarios of the catalogue that fit; a place without one has none to offer. */
static cddp_status name_scenarios(cd_text *text, const char *name, const char *heading,
                                  bool (*fits)(const cddp_plan *plan, const char *name),
                                  cddp_error *err)
{
    cd_file_list files = {.paths = NULL};
    cd_reader_options options = {.allocator = NULL};
    cddp_error ignored = CDDP_ERROR_INIT;
    bool has_catalogue = false;
    size_t found = 0;
    CD_TRY(cd_catalogue_add(&files, &has_catalogue, err));
    for (size_t i = 0; i < files.count; i++) {
        cddp_plan *plan = NULL;
        if (cd_reader_read_file(&options, files.paths[i], &plan, &ignored) != CDDP_OK) continue;
        if (fits(plan, name)) {
            if (found++ == 0) cd_text_printf(text, "\n%s\n", heading);
            cd_text_printf(text, "  %-44s  %s", files.paths[i], plan->title);
            for (size_t k = 0; fits == breaks_check && k < plan->tags.count; k++)
                cd_text_printf(text, "%s%s%s", k == 0 ? " [" : ", ", plan->tags.items[k],
                               k + 1 == plan->tags.count ? "]" : "");
            cd_text_push(text, "\n");
        }
        cddp_plan_destroy(plan);
    }
    cd_file_list_fini(&files);
    return CDDP_OK;
}

static bool explain_check(cd_cli *cli, cd_text *text, const char *name)
{
    const cddp_check *check = cddp_registry_find_check(cli->registry, name);
    cddp_error ignored = CDDP_ERROR_INIT;
    if (check == NULL) return false;
    cd_text_style(text, CD_STYLE_BOLD, "%s", check->name);
    cd_text_printf(text, ": %s\n\n", check->title);
    cd_text_wrap(text, check->rule, 0, EXPLAIN_WIDTH);
    cd_text_push(text, "\n");
    (void)cd_page_print(check->name, text);
    /* memory that ran out shows in the text */
    (void)name_scenarios(text, check->name,
                         "scenarios that break it, with the statements they exercise", breaks_check,
                         &ignored);
    return true;
}

static bool explain_event(cd_cli *cli, cd_text *text, const char *name)
{
    (void)cli;
    int32_t kind = cd_event_find(name);
    if (kind < 0) return false;
    const cddp_event_info *info = cddp_event_describe((uint32_t)kind);
    cd_text_style(text, CD_STYLE_BOLD, "%s", info->name);
    cd_text_printf(text, ": %s\n\nfields, in a store the columns of the view ev_%s:\n", info->doc,
                   info->name);
    for (uint32_t i = 0; i < info->field_count; i++) {
        cd_text_printf(text, "  %-16s %-8s ", info->fields[i].name,
                       cd_field_type_name(info->fields[i].type));
        cd_text_wrap(text, info->fields[i].doc, 28, EXPLAIN_WIDTH);
    }
    return true;
}

static bool has_word(const cddp_field_info *field, const char *name)
{
    for (int64_t value = -1; value <= FIELD_WORDS_MAX; value++) {
        const char *word = cddp_event_word(field->type, value);
        if (word != NULL && strcmp(word, name) == 0) return true;
    }
    return false;
}

/* What a report shows of an event: "digest=" is a field, "killed" what one says. */
static bool explain_field(cd_cli *cli, cd_text *text, const char *name)
{
    (void)cli;
    const cddp_event_info *info;
    bool found = false;
    for (uint32_t kind = 0; (info = cddp_event_describe(kind)) != NULL; kind++)
        for (uint32_t i = 0; i < info->field_count; i++) {
            const cddp_field_info *field = &info->fields[i];
            char place[64];
            if (strcmp(field->name, name) != 0 && !has_word(field, name)) continue;
            if (!found) {
                cd_text_style(text, CD_STYLE_BOLD, "%s", name);
                cd_text_push(text, " (in events)\n\n");
            }
            snprintf(place, sizeof place, "%s.%s", info->name, field->name);
            cd_text_printf(text, "  %-28s ", place);
            cd_text_wrap(text, field->doc, 31, EXPLAIN_WIDTH);
            found = true;
        }
    return found;
}

/* "bucket_cap_mb" is ddp.bucket_cap_mb; a name that several tables have explains each. */
/* "when.sync" of "when[].sync", of "when.0.sync" and of "when.0.sync@1" as --set has them. */
static void print_plain_key(const char *key, char *plain, size_t plain_bytes)
{
    size_t used = 0;
    for (const char *at = key; *at != '\0' && *at != '@' && used + 1 < plain_bytes;) {
        const size_t digits = at[0] == '.' ? strspn(at + 1, "0123456789") : 0;
        if (digits > 0 && (at[digits + 1] == '.' || at[digits + 1] == '\0'))
            at += digits + 1;
        else if (strncmp(at, "[]", 2) == 0)
            at += 2;
        else
            plain[used++] = *at++;
    }
    plain[used] = '\0';
}

/* "when.0.sync" of "when[].sync" */
static void print_set_key(const char *path, char *text, size_t text_bytes)
{
    const char *item = strstr(path, "[]");
    if (item == NULL)
        snprintf(text, text_bytes, "%s", path);
    else
        snprintf(text, text_bytes, "%.*s.0%s", (int)(item - path), path, item + 2);
}

static bool explain_key(cd_cli *cli, cd_text *text, const char *name)
{
    (void)cli;
    cddp_key_info key = {.size = sizeof key};
    bool found = false;
    char wanted[NAME_BYTES], plain[NAME_BYTES], set[NAME_BYTES];
    print_plain_key(name, wanted, sizeof wanted);
    for (size_t i = 0; cddp_plan_key(i, &key); i++) {
        const char *dot = strrchr(key.path, '.');
        print_plain_key(key.path, plain, sizeof plain);
        print_set_key(key.path, set, sizeof set);
        if (strcmp(plain, wanted) != 0 && (dot == NULL || strcmp(dot + 1, wanted) != 0)) continue;
        if (found) cd_text_push(text, "\n");
        cd_text_style(text, CD_STYLE_BOLD, "%s", key.path);
        cd_text_printf(text, ": %s\n\n", key.doc);
        if (key.choices != NULL) cd_text_printf(text, "values:   %s\n", key.choices);
        if (key.type == CDDP_KEY_INTEGER || key.type == CDDP_KEY_UNSIGNED ||
            key.type == CDDP_KEY_NUMBER)
            cd_text_printf(text, "values:   %.17g to %.17g\n", key.low, key.high);
        cd_text_printf(text, "default:  %s\nper rank: %s\nset with: --set %s=VALUE%s\n",
                       key.initial[0] != '\0' ? key.initial : "none", key.per_rank ? "yes" : "no",
                       set, key.per_rank ? ", or KEY@RANKS=VALUE for some ranks" : "");
        found = true;
    }
    return found;
}

static bool explain_exit_code(cd_cli *cli, cd_text *text, const char *name)
{
    (void)cli;
    static const char *const words[] = {
        "verified: all that the scenario claims was exercised and held, or exactly the expected "
        "findings came",
        "findings: an invariant was broken; the report names the culprit",
        "error: the command line, a scenario, a store or a plugin is not usable as it is",
        "environment: something that was asked for is not there, such as a backend",
        "inconclusive: the scenario did not exercise what it claims, a budget ran out, or the run "
        "was interrupted",
    };
    static const char *const before[] = {"exit code ", "exit "};
    if (strcmp(name, "exit code") == 0 || strcmp(name, "exit codes") == 0) {
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
            cd_text_style(text, CD_STYLE_BOLD, "exit code %zu", i);
            cd_text_printf(text, ": %s\n", words[i]);
        }
        return true;
    }
    for (size_t i = 0; i < 2; i++)
        if (strncmp(name, before[i], strlen(before[i])) == 0) name += strlen(before[i]);
    if (name[0] < '0' || name[0] > '4' || name[1] != '\0') return false;
    cd_text_style(text, CD_STYLE_BOLD, "exit code %s", name);
    cd_text_printf(text, ": %s\n", words[name[0] - '0']);
    return true;
}

static bool explain_row(cd_cli *cli, cd_text *text, const char *name)
{
    (void)cli;
    return cd_list_explain(text, name);
}

/* A law of the battery for hooks. */
static bool explain_law(cd_cli *cli, cd_text *text, const char *name)
{
    (void)cli;
    for (int law = 0; law < CD_LAW_COUNT; law++) {
        if (strcmp(cd_hook_law_name((cd_hook_law)law), name) != 0) continue;
        cd_text_style(text, CD_STYLE_BOLD, "%s", name);
        cd_text_printf(text, " (law of hook-conformance): %s\n",
                       cd_hook_law_title((cd_hook_law)law));
        return true;
    }
    return false;
}

/* "s1:0.2" */
static bool is_schedule(const char *name)
{
    return name[0] == 's' && isdigit((unsigned char)name[1]) &&
           name[1 + strspn(name + 1, "0123456789")] == ':';
}

/* A word of the report. */
static bool explain_word(cd_cli *cli, cd_text *text, const char *name)
{
    (void)cli;
    if (strncmp(name, "I-", 2) == 0) return false;
    cd_text_style(text, CD_STYLE_BOLD, "%s", name);
    cd_text_push(text, " (in a report)\n");
    return cd_page_print(is_schedule(name) ? "schedule" : name, text);
}

/* "--keep-going" or "keep-going" */
static bool explain_option(cd_cli *cli, cd_text *text, const char *name)
{
    (void)cli;
    if (strncmp(name, "--", 2) == 0) name += 2;
    for (size_t i = 0; i < CD_OPTION_COUNT; i++) {
        if (strcmp(cd_options[i].name, name) != 0) continue;
        cd_text_style(text, CD_STYLE_BOLD, "--%s", name);
        cd_text_push(text, " (option of the command line): ");
        cd_text_wrap(text, cd_options[i].help, 4, EXPLAIN_WIDTH);
        return true;
    }
    return false;
}

static bool explain_command(cd_cli *cli, cd_text *text, const char *name)
{
    (void)cli;
    for (int id = 0; id < CD_COMMAND_COUNT; id++) {
        if (strcmp(cd_commands[id].name, name) != 0) continue;
        cd_text_style(text, CD_STYLE_BOLD, "%s", name);
        cd_text_push(text, " (command): ");
        cd_help_print_command(text, (cd_command_id)id);
        return true;
    }
    return false;
}

typedef struct hook_option {
    const char *hooks, *name, *initial, *doc;
} hook_option;

static const hook_option hook_options[] = {
#define HOOK_OPTION(...) {__VA_ARGS__},
#include "cli/hook_options.def"
#undef HOOK_OPTION
};

#define HOOK_OPTION_COUNT (sizeof hook_options / sizeof hook_options[0])

/* "topk: ratio=0.01  …" */
static void put_hook_option(cd_text *text, const char *owner, const hook_option *o)
{
    cd_text_printf(text, "  %s%s%s%s%s  ", owner, owner[0] != '\0' ? ": " : "", o->name,
                   o->initial[0] != '\0' ? "=" : "", o->initial);
    cd_text_wrap(text, o->doc, 6, EXPLAIN_WIDTH);
}

/* "ratio", with every hook that has it. */
static bool explain_hook_option(cd_cli *cli, cd_text *text, const char *name)
{
    bool found = false;
    (void)cli;
    for (size_t i = 0; i < HOOK_OPTION_COUNT; i++) {
        if (strcmp(hook_options[i].name, name) != 0) continue;
        if (!found) {
            cd_text_style(text, CD_STYLE_BOLD, "%s", name);
            cd_text_push(text, " (option of comm hooks, in hook.options or --hook-options)\n");
        }
        put_hook_option(text, hook_options[i].hooks, &hook_options[i]);
        found = true;
    }
    return found;
}

/* Of "powersgd, batched_powersgd". */
static bool is_hook_of(const char *hooks, const char *name)
{
    for (const char *at = hooks; *at != '\0'; at += strspn(at, ", ")) {
        const size_t length = strcspn(at, ",");
        if (length == strlen(name) && strncmp(at, name, length) == 0) return true;
        at += length;
    }
    return false;
}

static bool explain_hook(cd_cli *cli, cd_text *text, const char *name)
{
    const cddp_hook *hook = cddp_registry_find_hook(cli->registry, name);
    if (hook == NULL) return false;
    cd_text_style(text, CD_STYLE_BOLD, "%s", hook->name);
    cd_text_printf(text, ": %s\n", cd_hook_summary(hook->name));
    bool has_options = false;
    for (size_t i = 0; i < HOOK_OPTION_COUNT; i++) {
        if (!is_hook_of(hook_options[i].hooks, hook->name)) continue;
        if (!has_options) cd_text_push(text, "\noptions, in hook.options or --hook-options:\n");
        put_hook_option(text, "", &hook_options[i]);
        has_options = true;
    }
    return true;
}

/* "UNU-04", "TI-B-03", "ZOO-19": capitals, then groups of capitals or digits behind hyphens. */
static bool is_tag(const char *name)
{
    if (!isupper((unsigned char)name[0]) || strchr(name, '-') == NULL) return false;
    for (const char *at = name; *at != '\0'; at++)
        if (!isupper((unsigned char)*at) && !isdigit((unsigned char)*at) && *at != '-')
            return false;
    return true;
}

static cddp_status explain_tag(cd_text *text, const char *name, cddp_error *err)
{
    cd_tag tag;
    if (!cd_tag_find(name, &tag))
        return cd_fail(err, CDDP_E_ARG,
                       "no document states %.60s; docs/semantics.md lists the tags", name);
    cd_text_style(text, CD_STYLE_BOLD, "%s", name);
    cd_text_printf(text, " (%s)\n\n", tag.document);
    cd_text_wrap(text, tag.words, 0, EXPLAIN_WIDTH);
    return CD_PASS(name_scenarios(text, name, "exercised by", exercises_tag, err));
}

static cddp_status unknown(cd_cli *cli, const char *name, cddp_error *err)
{
    cd_suggestion s;
    const cddp_check *check;
    const cddp_hook *hook;
    const cddp_event_info *info;
    cddp_key_info key = {.size = sizeof key};
    char path[sizeof key.path] = "";
    cd_suggest_begin(&s, name);
    for (size_t i = 0; (check = cddp_registry_check(cli->registry, i)) != NULL; i++)
        cd_suggest_offer(&s, check->name);
    for (size_t i = 0; (hook = cddp_registry_hook(cli->registry, i)) != NULL; i++)
        cd_suggest_offer(&s, hook->name);
    for (int law = 0; law < CD_LAW_COUNT; law++)
        cd_suggest_offer(&s, cd_hook_law_name((cd_hook_law)law));
    for (size_t i = 0; i < CD_OPTION_COUNT; i++) cd_suggest_offer(&s, cd_options[i].name);
    for (size_t i = 0; i < HOOK_OPTION_COUNT; i++) cd_suggest_offer(&s, hook_options[i].name);
    for (uint32_t i = 0; (info = cddp_event_describe(i)) != NULL; i++)
        cd_suggest_offer(&s, info->name);
    for (size_t i = 0; cddp_plan_key(i, &key); i++) {
        const char *dot = strrchr(key.path, '.');
        cd_suggest_offer(&s, key.path);
        if (dot != NULL) cd_suggest_offer(&s, dot + 1);
        if (s.best == key.path || (dot != NULL && s.best == dot + 1)) {
            snprintf(path, sizeof path, "%s", key.path);
            s.best = path;
        }
    }
    if (s.best != NULL)
        return cd_fail(err, CDDP_E_ARG, "nothing is called '%.60s'; did you mean '%s'?", name,
                       s.best);
    return cd_fail(err, CDDP_E_ARG, "nothing is called '%.60s'; see \"cddp-verify help explain\"",
                   name);
}

static cddp_status explain(cd_cli *cli, cd_text *text, cddp_error *err)
{
    static bool (*const lookups[])(cd_cli * cli, cd_text * text, const char *name) = {
        explain_check,       explain_word, explain_event,     explain_field,
        explain_key,         explain_law,  explain_exit_code, explain_hook,
        explain_hook_option, explain_row,  explain_option,    explain_command};
    char name[NAME_BYTES] = "";
    if (cli->args->operand_count == 0)
        return cd_fail(err, CDDP_E_ARG, "explain what? for example: cddp-verify explain I-ORDER");
    /* "still waiting" with and without quotes */
    for (size_t i = 0, used = 0; i < cli->args->operand_count && used < sizeof name; i++)
        used += (size_t)snprintf(name + used, sizeof name - used, "%s%s", i > 0 ? " " : "",
                                 cli->args->operands[i]);
    /* A name may stand for several things: an option and a model, say. */
    bool found = false;
    for (size_t i = 0; i < sizeof lookups / sizeof lookups[0]; i++) {
        cd_text one;
        cd_text_init(&one, text->color);
        if (lookups[i](cli, &one, name)) {
            cd_text_push(text, found ? "\n" : "");
            cd_text_push(text, cd_text_get(&one));
            found = true;
        }
        text->failed |= one.failed;
        cd_text_fini(&one);
    }
    if (found) return CDDP_OK;
    if (is_tag(name) && strncmp(name, "I-", 2) != 0) return CD_PASS(explain_tag(text, name, err));
    return CD_PASS(unknown(cli, name, err));
}

int cd_command_explain(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_text text;
    cd_cli_text_begin(cli, &text);
    int exit_code = explain(cli, &text, &err) == CDDP_OK
                        ? cd_cli_write(cli, &text, CD_EXIT_VERIFIED)
                        : cd_cli_fail(cli, &err);
    cd_text_fini(&text);
    return exit_code;
}
