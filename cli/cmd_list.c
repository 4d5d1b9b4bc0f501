/* SPDX-License-Identifier: Apache-2.0 */
/* list: the registries of the program, as it runs, plugins included. */
#include "backends/table/builtin.h"
#include "cddp/composition.h"
#include "cddp/plan.h"
#include "cli/catalogue.h"
#include "cli/command.h"
#include "cli/list.h"
#include "verify/conformance/hook_summary.h"
#include "cli/scenarios.h"
#include "core/base/suggest.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"
#include "core/model/model.h"
#include "core/model/optim/optimizer.h"
#include "scenarios/reader/reader.h"
#include "sim/fault.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define LIST_WIDTH 110

/* "name      what it is", folded. */
static void put(cd_text *text, const char *name, size_t width, const char *words)
{
    cd_text_style(text, CD_STYLE_BOLD, "%-*s", (int)width, name);
    cd_text_push(text, "  ");
    cd_text_wrap(text, words, width + 2, LIST_WIDTH);
}

static cddp_status list_hooks(cd_cli *cli, cd_text *text, cddp_error *err)
{
    (void)err;
    const cddp_hook *hook;
    for (size_t i = 0; (hook = cddp_registry_hook(cli->registry, i)) != NULL; i++) {
        char words[512];
        static const struct {
            uint32_t flag;
            const char *word;
        } flags[] = {{CDDP_HOOK_EXACT, "exact"},
                     {CDDP_HOOK_LOSSY, "lossy"},
                     {CDDP_HOOK_ROUNDED_ONCE, "rounded once"},
                     {CDDP_HOOK_STATEFUL, "stateful"},
                     {CDDP_HOOK_LINEAR, "linear"},
                     {CDDP_HOOK_NO_COMM, "no communication"},
                     {CDDP_HOOK_LAW_TOPK, "law of topk"},
                     {CDDP_HOOK_LAW_POWERSGD, "law of powersgd"},
                     {CDDP_HOOK_LAW_QUANTIZE_PER_TENSOR, "law of quantize_per_tensor"},
                     {CDDP_HOOK_LAW_QUANTIZE_PER_CHANNEL, "law of quantize_per_channel"}};
        size_t used = (size_t)snprintf(words, sizeof words, "%s", cd_hook_summary(hook->name));
        for (size_t k = 0, first = 1; k < sizeof flags / sizeof flags[0] && used < sizeof words;
             k++) {
            if ((hook->flags & flags[k].flag) == 0) continue;
            used += (size_t)snprintf(words + used, sizeof words - used, "%s%s", first ? " [" : ", ",
                                     flags[k].word);
            first = 0;
        }
        if (hook->flags != 0 && used < sizeof words)
            snprintf(words + used, sizeof words - used, "]");
        put(text, hook->name, 24, words);
    }
    return CDDP_OK;
}

static cddp_status list_backends(cd_cli *cli, cd_text *text, cddp_error *err)
{
    (void)err;
    const cddp_backend *backend;
    const char *form, *summary;
    for (const cd_backend_row *row = cd_backend_rows; row->name != NULL; row++) {
        char words[512];
        snprintf(words, sizeof words, "%s%s%s", row->summary,
                 row->absent[0] != '\0' ? "; not in this build: " : "", row->absent);
        put(text, row->name, 11, words);
    }
    for (size_t i = 0; (backend = cddp_registry_backend(cli->registry, i)) != NULL; i++)
        if (cd_backend_row_find(backend->name) == NULL)
            put(text, backend->name, 11, "from a plugin");
    cd_text_push(text, "\nand compositions of them, which nest (check:rr:2:hier:gloo):\n");
    for (size_t i = 0; cddp_composition_kind(i, &form, &summary); i++) put(text, form, 24, summary);
    return CDDP_OK;
}

static cddp_status list_checks(cd_cli *cli, cd_text *text, cddp_error *err)
{
    (void)err;
    const cddp_check *check;
    for (size_t i = 0; (check = cddp_registry_check(cli->registry, i)) != NULL; i++)
        put(text, check->name, 10, check->title);
    return CDDP_OK;
}

/* Whether a text has a word in it, in small letters or capitals. */
static bool has_word(const char *text, const char *word)
{
    const size_t length = strlen(word);
    for (; *text != '\0'; text++) {
        size_t same = 0;
        while (same < length &&
               tolower((unsigned char)text[same]) == tolower((unsigned char)word[same]))
            same++;
        if (same == length) return true;
    }
    return length == 0;
}

/* All, or those that have one of the words. */
static cddp_status list_keys(cd_cli *cli, cd_text *text, cddp_error *err)
{
    const cd_args *args = cli->args;
    const size_t before = text->length;
    cddp_key_info key = {.size = sizeof key};
    for (size_t i = 0; cddp_plan_key(i, &key); i++) {
        char words[1024];
        bool is_wanted = args->operand_count < 2;
        for (size_t k = 1; k < args->operand_count; k++)
            is_wanted |= has_word(key.path, args->operands[k]) ||
                         has_word(key.doc, args->operands[k]) ||
                         (key.choices != NULL && has_word(key.choices, args->operands[k]));
        if (!is_wanted) continue;
        snprintf(words, sizeof words, "%s%s%s%s%s%s%s", key.doc,
                 key.choices != NULL ? "; one of " : "", key.choices != NULL ? key.choices : "",
                 key.initial[0] != '\0' ? " (default " : "", key.initial,
                 key.initial[0] != '\0' ? ")" : "", key.per_rank ? " [per rank]" : "");
        put(text, key.path, 34, words);
    }
    if (text->length == before)
        return cd_fail(err, CDDP_E_ARG, "no key has '%.60s' in its name or its words",
                       args->operands[1]);
    return CDDP_OK;
}

static cddp_status list_events(cd_cli *cli, cd_text *text, cddp_error *err)
{
    (void)cli, (void)err;
    const cddp_event_info *info;
    for (uint32_t i = 0; (info = cddp_event_describe(i)) != NULL; i++)
        put(text, info->name, 18, info->doc);
    return CDDP_OK;
}

static cddp_status list_models(cd_cli *cli, cd_text *text, cddp_error *err)
{
    (void)cli, (void)err;
    const char *name, *option, *initial, *doc;
    for (size_t i = 0; (name = cd_model_type_name(i)) != NULL; i++) {
        put(text, name, 16, cd_model_type_summary(i));
        for (size_t k = 0; cd_model_type_option(i, k, &option, &initial, &doc); k++) {
            cd_text_printf(text, "%18s%s=%s  ", "", option, initial);
            cd_text_wrap(text, doc, 22, LIST_WIDTH);
        }
    }
    return CDDP_OK;
}

/* Tables that are only names and summaries come straight from their rows. */
typedef struct named_row {
    const char *name, *summary;
} named_row;

static void put_rows(cd_text *text, const named_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) put(text, rows[i].name, 18, rows[i].summary);
}

static const named_row optimizers[] = {
#define CD_OPTIMIZER(name, summary) {#name, summary},
#include "core/model/optim/optimizers.def"
#undef CD_OPTIMIZER
};
static const named_row marks[] = {
#define CD_MARK(name, summary) {#name, summary},
#include "core/plan/marks.def"
#undef CD_MARK
};
static const named_row choosers[] = {
#define CD_CHOOSER(name, summary) {#name, summary},
#include "sim/choosers.def"
#undef CD_CHOOSER
};
static const named_row algorithms[] = {
#define CD_ALGORITHM(name, summary) {#name, summary},
#include "sim/algorithms.def"
#undef CD_ALGORITHM
};
static const named_row links[] = {
#define CD_LINK(id, name, latency, bandwidth, overhead, is_pcie, source) \
    {name, #latency " ns, " #bandwidth " B/s: " source},
#include "sim/links.def"
#undef CD_LINK
};

static const struct {
    const char *topic, *what; /* of one of its rows */
    const named_row *rows;
    size_t count;
} tables[] = {
#define TABLE(rows, what)                               \
    {                                                   \
#rows, what, rows, sizeof rows / sizeof rows[0] \
    }
    TABLE(optimizers, "optimizer"),

    TABLE(marks, "coverage mark"),
    TABLE(choosers, "chooser, of schedule.chooser"),
    TABLE(algorithms, "algorithm, of network.algorithm"),
    TABLE(links, "link, of network.link"),
#undef TABLE
};
#define TABLE_COUNT (sizeof tables / sizeof tables[0])

static cddp_status list_faults(cd_cli *cli, cd_text *text, cddp_error *err)
{
    (void)cli, (void)err;
    named_row rows[CD_FAULT_KIND_COUNT];
    for (uint32_t i = 0; i < CD_FAULT_KIND_COUNT; i++) {
        const cddp_event_enum_fault_kind kind = (cddp_event_enum_fault_kind)i;
        rows[i] = (named_row){cd_fault_name(kind), cd_fault_summary(kind)};
    }
    put_rows(text, rows, CD_FAULT_KIND_COUNT);
    return CDDP_OK;
}

static cddp_status list_table(cd_cli *cli, cd_text *text, cddp_error *err)
{
    (void)err;
    for (size_t i = 0; i < TABLE_COUNT; i++)
        if (strcmp(tables[i].topic, cli->args->operands[0]) == 0)
            put_rows(text, tables[i].rows, tables[i].count);
    return CDDP_OK;
}

/* "widths", with every model that has it. */
static bool explain_model_option(cd_text *text, const char *name)
{
    bool found = false;
    const char *type, *option, *initial, *doc;
    for (size_t i = 0; (type = cd_model_type_name(i)) != NULL; i++)
        for (size_t k = 0; cd_model_type_option(i, k, &option, &initial, &doc); k++) {
            if (strcmp(option, name) != 0) continue;
            if (!found) {
                cd_text_style(text, CD_STYLE_BOLD, "%s", name);
                cd_text_push(text, " (option of models, in model.options)\n");
            }
            cd_text_printf(text, "  %s: %s=%s  ", type, option, initial);
            cd_text_wrap(text, doc, 6, LIST_WIDTH);
            found = true;
        }
    return found;
}

bool cd_list_explain(cd_text *text, const char *name)
{
    bool found = explain_model_option(text, name);
    const char *type, *option, *initial, *doc, *form, *summary;
    for (size_t i = 0; i < TABLE_COUNT; i++)
        for (size_t k = 0; k < tables[i].count; k++) {
            if (strcmp(tables[i].rows[k].name, name) != 0) continue;
            cd_text_style(text, CD_STYLE_BOLD, "%s", name);
            cd_text_printf(text, " (%s): ", tables[i].what);
            cd_text_wrap(text, tables[i].rows[k].summary, 4, LIST_WIDTH);
            found = true;
        }
    for (uint32_t i = 0; i < CD_FAULT_KIND_COUNT; i++) {
        const cddp_event_enum_fault_kind kind = (cddp_event_enum_fault_kind)i;
        if (strcmp(cd_fault_name(kind), name) != 0) continue;
        cd_text_style(text, CD_STYLE_BOLD, "%s", name);
        cd_text_push(text, " (fault, of [[fault]] kind): ");
        cd_text_wrap(text, cd_fault_summary(kind), 4, LIST_WIDTH);
        found = true;
    }
    for (size_t i = 0; (type = cd_model_type_name(i)) != NULL; i++) {
        if (strcmp(type, name) != 0) continue;
        cd_text_style(text, CD_STYLE_BOLD, "%s", name);
        cd_text_push(text, " (model, of model.name): ");
        cd_text_wrap(text, cd_model_type_summary(i), 4, LIST_WIDTH);
        cd_text_push(text, "\noptions, in model.options:\n");
        for (size_t k = 0; cd_model_type_option(i, k, &option, &initial, &doc); k++) {
            cd_text_printf(text, "  %s=%s  ", option, initial);
            cd_text_wrap(text, doc, 6, LIST_WIDTH);
        }
        found = true;
    }
    const cd_backend_row *backend = cd_backend_row_find(name);
    if (backend != NULL) {
        cd_text_style(text, CD_STYLE_BOLD, "%s", name);
        cd_text_printf(text, " (backend, of world.backend or --backend): ");
        cd_text_wrap(text, backend->summary, 4, LIST_WIDTH);
        if (backend->absent[0] != '\0')
            cd_text_printf(text, "not in this build: %s\n", backend->absent);
        cd_text_push(text, "\"cddp-verify doctor\" says whether it works here.\n");
        found = true;
    }
    for (size_t i = 0; cddp_composition_kind(i, &form, &summary); i++) {
        const size_t word = strcspn(form, ":");
        if (word != strlen(name) || strncmp(form, name, word) != 0) continue;
        cd_text_style(text, CD_STYLE_BOLD, "%s", form);
        cd_text_push(text, " (composition of backends): ");
        cd_text_wrap(text, summary, 4, LIST_WIDTH);
        found = true;
    }
    return found;
}

/* Every scenario below the folders given, by default those of the catalogue, with its title. */
static cddp_status list_scenarios(cd_cli *cli, cd_text *text, cddp_error *err)
{
    cd_file_list files = {.paths = NULL};
    cddp_status status = CDDP_OK;
    cd_reader_options options = {.allocator = NULL};
    if (cli->args->operand_count < 2) {
        bool found = false;
        CD_TRY_OUT(cd_catalogue_add(&files, &found, err));
        if (!found)
            CD_TRY_OUT(cd_fail(err, CDDP_E_ARG,
                               "there is no ./scenarios here, and no catalogue beside the program; "
                               "name a folder"));
    }
    for (size_t i = 1; i < cli->args->operand_count; i++)
        CD_TRY_OUT(cd_file_list_add(&files, cli->args->operands[i], err));
    for (size_t i = 0; i < files.count; i++) {
        cddp_plan *plan = NULL;
        cddp_error ignored = CDDP_ERROR_INIT;
        bool readable = cd_reader_read_file(&options, files.paths[i], &plan, &ignored) == CDDP_OK;
        put(text, files.paths[i], 44, readable ? plan->title : "(cannot be read)");
        cddp_plan_destroy(plan);
    }
out:
    cd_file_list_fini(&files);
    return status;
}

static cddp_status list_schema(cd_cli *cli, cd_text *text, cddp_error *err)
{
    (void)cli, (void)err;
    cd_schema_print(text);
    return CDDP_OK;
}

static const struct {
    const char *name;
    cddp_status (*list)(cd_cli *cli, cd_text *text, cddp_error *err);
} topics[] = {
    {"hooks", list_hooks},         {"backends", list_backends}, {"checks", list_checks},
    {"scenarios", list_scenarios}, {"keys", list_keys},         {"events", list_events},
    {"models", list_models},       {"optimizers", list_table},  {"faults", list_faults},
    {"marks", list_table},         {"choosers", list_table},    {"algorithms", list_table},
    {"links", list_table},         {"schema", list_schema},
};
#define TOPIC_COUNT (sizeof topics / sizeof topics[0])

static cddp_status list_topic(cd_cli *cli, cd_text *text, cddp_error *err)
{
    char all[256] = "";
    cd_suggestion s;
    const char *wanted = cli->args->operand_count > 0 ? cli->args->operands[0] : "";
    cd_suggest_begin(&s, wanted);
    for (size_t i = 0; i < TOPIC_COUNT; i++) {
        if (strcmp(topics[i].name, wanted) == 0) return CD_PASS(topics[i].list(cli, text, err));
        cd_suggest_offer(&s, topics[i].name);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i > 0 ? ", " : "",
                 topics[i].name);
    }
    if (wanted[0] == '\0') return cd_fail(err, CDDP_E_ARG, "list what? one of %s", all);
    if (s.best != NULL)
        return cd_fail(err, CDDP_E_ARG, "cannot list '%.60s'; did you mean '%s'?", wanted, s.best);
    return cd_fail(err, CDDP_E_ARG, "cannot list '%.60s'; there are %s", wanted, all);
}

int cd_command_list(cd_cli *cli)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_text text;
    cd_cli_text_begin(cli, &text);
    int exit_code = list_topic(cli, &text, &err) == CDDP_OK
                        ? cd_cli_write(cli, &text, CD_EXIT_VERIFIED)
                        : cd_cli_fail(cli, &err);
    cd_text_fini(&text);
    return exit_code;
}
