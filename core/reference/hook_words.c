/* SPDX-License-Identifier: Apache-2.0 */
/* The hook that a plan names. */
#include "core/reference/hook_words.h"

#include <string.h>

/* Accelerate's word for a hook: NULL where it registers nothing. False: it is no such word. */
static bool find_word(const char *word, const char **name)
{
    static const struct {
        const char *word, *name;
    } rows[] = {{"no", NULL},
                {"fp16", "fp16_compress"},
                {"bf16", "bf16_compress"},
                {"power_sgd", "powersgd"},
                {"batched_power_sgd", "batched_powersgd"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].word, word) == 0) {
            *name = rows[i].name;
            return true;
        }
    }
    return false;
}

/* "NAME" or "NAME:options". */
static void read_line(const char *line, cd_hook_words *w)
{
    const char *colon = strchr(line, ':');
    const size_t length = colon != NULL ? (size_t)(colon - line) : strlen(line);
    const size_t kept = length < sizeof w->own ? length : sizeof w->own - 1;
    memcpy(w->own, line, kept);
    w->own[kept] = '\0';
    w->words.name = w->own;
    w->words.options = colon != NULL ? colon + 1 : NULL;
    find_word(w->own, &w->words.name);
}

static const char *word_of(int64_t hook)
{
    switch (hook) {
    case CDDP_COMM_HOOK_FP16:
        return "fp16";
    case CDDP_COMM_HOOK_BF16:
        return "bf16";
    case CDDP_COMM_HOOK_POWER_SGD:
        return "power_sgd";
    case CDDP_COMM_HOOK_BATCHED_POWER_SGD:
        return "batched_power_sgd";
    default:
        return "no";
    }
}

static void read_words(const cddp_plan_hook *hook, cd_hook_words *w)
{
    const char *name = NULL;
    find_word(word_of(hook->comm_hook), &name);
    w->words = (cd_planned_words){name, NULL, hook->comm_state_option};
    if (name == NULL || hook->comm_wrapper == CDDP_COMM_WRAPPER_NO) return;
    w->words.inner = name;
    w->words.name = hook->comm_wrapper == CDDP_COMM_WRAPPER_FP16 ? "fp16_compress_wrapper"
                                                                 : "bf16_compress_wrapper";
}

void cd_hook_words_read(const cddp_plan_settings *settings, cd_hook_words *w)
{
    *w = (cd_hook_words){
        .words = {settings->hook.name, settings->hook.inner, settings->hook.options}};
    if (settings->ddp.comm_hook != NULL)
        read_line(settings->ddp.comm_hook, w);
    else if (settings->hook.comm_hook != CDDP_COMM_HOOK_NO)
        read_words(&settings->hook, w);
}
