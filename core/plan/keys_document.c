/* SPDX-License-Identifier: Apache-2.0 */
/* docs/formats/scenario.md: the introduction is here, every table comes from the key table. */
#include "core/base/format.h"
#include "core/plan/keys.h"

#include <stdio.h>
#include <string.h>

typedef struct writer {
    void (*write)(void *context, const char *text);
    void *context;
} writer;

static const char *const introduction =
    "# The scenario language\n"
    "\n"
    "```toml\n"
    "schema = 1\n"
    "title = \"two ranks train an MLP\"\n"
    "```\n"
    "\n"
    "This file is a whole scenario, because every key has a default. `cddp-verify` runs it and "
    "prints:\n"
    "\n"
    "    verified: scenario.toml: two ranks train an MLP\n"
    "      run       2 ranks, … steps on sim, seed 1; … events, … invariants exercised; trace …, "
    "plan …\n"
    "\n"
    "A scenario is a TOML file. It says what is trained, on which ranks, under which "
    "circumstances, and what is expected.\n"
    "This page is generated from the reader's table (`include/cddp/keys.def`), so the two always "
    "agree.\n"
    "`cddp-verify list keys` prints the same table.\n"
    "\n"
    "## How it reads\n"
    "\n"
    "* Four mistakes are refused before anything runs: an unknown key, a value of the wrong type, "
    "a value out of range, and\n"
    "  settings that contradict each other. All of them are reported at once, each with file, "
    "line, column and the nearest\n"
    "  known key.\n"
    "* An unknown name is a mistake too: of a model, its options, parameters, units and outputs, "
    "of a hook, of a check.\n"
    "  With `verdict = \"error\"` in `[expect]`, names are not looked up, because the scenario may "
    "be about such a mistake.\n"
    "* A **selection** says which ranks, steps or micro-steps something applies to: `2`, "
    "`\"0-3\"`, `\"1%2\"` (n mod 2 == 1),\n"
    "  `[0, 3]` or `\"0-2,5\"`. Without it, all of them are meant; an empty one is refused. "
    "Steps and micro-steps count from 0.\n"
    "* `[[when]]` tables change single iterations. Several may apply to the same place; the last "
    "one decides each key.\n"
    "* `[[wrapper]]` tables make several DDP wrappers in each rank, as a GAN has a generator and a "
    "discriminator. Each\n"
    "  trains its own model: what one computes is no input of another. They have a `name` and "
    "settings that differ from\n"
    "  those of the scenario:\n"
    "\n"
    "```toml\n"
    "[[wrapper]]\n"
    "name = \"generator\"\n"
    "[[wrapper]]\n"
    "name = \"discriminator\"\n"
    "ddp.find_unused_parameters = true\n"
    "hook.name = \"fp16_compress\"\n"
    "train.micro_steps = 2\n"
    "```\n"
    "\n"
    "  `wrapper = \"generator\"` in `[[optimizer]]`, `[[output]]`, `[[when]]` and "
    "`[[collective]]` says whose they are.\n"
    "  `wrapper.1.ddp.static_graph = true` in a `[[rank]]`, and `--set "
    "wrapper.1.ddp.static_graph=true`, reach the second one.\n"
    "  The seed of each wrapper is `world.seed` plus its position, so that no two have equal "
    "values.\n"
    "  With `join.enable` all join one context, and the first table's wrapper says that the rank "
    "has "
    "inputs. So each iteration\n"
    "  has one forward of every wrapper, that one first: with several micro-steps `schedule.turns "
    "= "
    "\"micro_step\"`.\n"
    "* `[[rank]]` tables change settings for some ranks, as real jobs diverge. They have `ranks` "
    "and any key\n"
    "  marked *per rank* below:\n"
    "\n"
    "```toml\n"
    "[[rank]]\n"
    "ranks = 1\n"
    "ddp.find_unused_parameters = true\n"
    "optimizer.lr = 0.25\n"
    "optimizer.1.momentum = 0.5\n"
    "```\n"
    "\n"
    "* Options of optimizers are per rank as well, but for `name`, `parameters`, `in_backward`, "
    "`overlap` and the\n"
    "  shards, on which ranks agree. `optimizer.lr` is of all optimizers, `optimizer.1.lr` of the "
    "second one,\n"
    "  which counts more.\n"
    "* On the command line `--set ddp.bucket_cap_mb=1` sets a key. `--set "
    "ddp.static_graph@0-3=true` sets it for these\n"
    "  ranks. `--set when.2.sync=false` reaches into a table that repeats.\n"
    "* A **pattern** for parameters is a name in which `*` stands for any text: "
    "`\"generator.*\"`.\n"
    "* A text `key=value,…` may also be written as a table: `comm_state_option = { "
    "matrix_approximation_rank = 2 }`.\n"
    "* `[expect]` says how the run must end. Without it the run must be verified.\n"
    "\n"
    "## Keys\n";

static const char *type_words(cddp_key_type type)
{
    switch (type) {
    case CDDP_KEY_FLAG:
        return "true or false";
    case CDDP_KEY_INTEGER:
    case CDDP_KEY_UNSIGNED:
        return "whole number";
    case CDDP_KEY_NUMBER:
        return "number";
    case CDDP_KEY_TEXT:
        return "text";
    case CDDP_KEY_CHOICE:
        return "one of";
    case CDDP_KEY_SELECTOR:
        return "selection";
    case CDDP_KEY_TEXTS:
        return "list of texts";
    case CDDP_KEY_NUMBERS:
        return "list of numbers";
    case CDDP_KEY_UNSIGNEDS:
        return "list of whole numbers";
    }
    return "?";
}

static void write_heading(const writer *w, const cd_key_row *row)
{
    char text[160];
    const bool repeats = cd_item_table_get(row->scope) != NULL;
    const char *kind = row->scope == CD_SCOPE_RANK ? " (per rank)"
                       : repeats                   ? " (may appear several times)"
                                                   : "";
    if (row->table[0] == '\0') {
        snprintf(text, sizeof text, "\n### At the top of the file\n\n");
    } else {
        snprintf(text, sizeof text, "\n### `%s%s%s`%s\n\n", repeats ? "[[" : "[", row->table,
                 repeats ? "]]" : "]", kind);
    }
    w->write(w->context, text);
    w->write(w->context, "| key | value | default | meaning |\n|---|---|---|---|\n");
}

/* A bar ends a cell in a Markdown table. */
static void print_choices(const char *choices, char *text, size_t text_bytes)
{
    size_t used = 0;
    for (const char *at = choices; *at != '\0' && used + 8 < text_bytes; at++) {
        const char one[] = {*at, '\0'};
        used += (size_t)snprintf(text + used, text_bytes - used, "%s", *at == '|' ? "`, `" : one);
    }
}

static void write_row(const writer *w, const cd_key_row *row)
{
    char value[384], text[1024];
    const bool is_number = row->type == CDDP_KEY_INTEGER || row->type == CDDP_KEY_UNSIGNED ||
                           row->type == CDDP_KEY_NUMBER || row->type == CDDP_KEY_NUMBERS ||
                           row->type == CDDP_KEY_UNSIGNEDS;
    if (row->type == CDDP_KEY_TEXT && row->choices != NULL) {
        snprintf(value, sizeof value, "text `%s`, or a table", row->choices);
    } else if (row->choices != NULL) {
        char choices[320] = "";
        print_choices(row->choices, choices, sizeof choices);
        snprintf(value, sizeof value, "`%s`", choices);
    } else if (is_number) {
        cd_real_format(value, sizeof value, "%s, %.10g to %.10g", type_words(row->type), row->low,
                       row->high);
    } else {
        snprintf(value, sizeof value, "%s", type_words(row->type));
    }
    const char *tick = row->initial[0] != '\0' ? "`" : "";
    snprintf(text, sizeof text, "| `%s` | %s | %s%s%s | %s |\n", row->field, value, tick,
             row->initial, tick, row->doc);
    w->write(w->context, text);
}

void cd_keys_print_document(void (*write)(void *context, const char *text), void *context)
{
    const writer w = {write, context};
    const char *table = NULL;
    write(context, introduction);
    for (size_t i = 0; i < cd_key_count(); i++) {
        const cd_key_row *row = cd_key_row_get(i);
        if (table == NULL || strcmp(table, row->table) != 0) {
            write_heading(&w, row);
            table = row->table;
        }
        write_row(&w, row);
    }
}
