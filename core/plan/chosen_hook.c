/* SPDX-License-Identifier: Apache-2.0 */
/* ddp.comm_hook replaces the whole of [hook], whose options belong to another hook; hook.comm_hook
** and hook.name exclude each other (plan_check.c). Accelerate's words mean the same wherever they
** stand (ACC-01, ACC-03).
*/
#include "core/plan/chosen_hook.h"

#include <string.h>

static const char *const hooks[] = {NULL, "fp16_compress", "bf16_compress", "powersgd",
                                    "batched_powersgd"};
static const char *const words[] = {"no", "fp16", "bf16", "power_sgd", "batched_power_sgd"};

/* ACC-03: "no" registers nothing, even with a wrapper. */
static void translate(const cddp_plan_hook *planned, cd_chosen_hook *chosen)
{
    static const char *const wrappers[] = {NULL, "fp16_compress_wrapper", "bf16_compress_wrapper"};
    const char *hook = hooks[planned->comm_hook], *wrapper = wrappers[planned->comm_wrapper];
    chosen->name = wrapper != NULL ? wrapper : hook;
    chosen->inner = wrapper != NULL ? hook : NULL;
    chosen->options = planned->comm_state_option;
}

/* "NAME" or "NAME:options". A name that is too long is cut, and then nobody's. */
static void parse(const char *text, cd_chosen_hook *chosen)
{
    size_t length = strcspn(text, ":"),
           kept = length < sizeof chosen->own ? length : sizeof chosen->own - 1;
    memcpy(chosen->own, text, kept);
    chosen->own[kept] = '\0';
    chosen->name = chosen->own;
    chosen->options = text[length] == ':' && text[length + 1] != '\0' ? text + length + 1 : NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(chosen->own, words[i]) == 0) chosen->name = hooks[i];
    }
}

void cd_choose_hook(const cddp_plan_settings *settings, cd_chosen_hook *chosen)
{
    *chosen = (cd_chosen_hook){.name = settings->hook.name,
                               .inner = settings->hook.inner,
                               .options = settings->hook.options};
    if (settings->ddp.comm_hook != NULL) {
        chosen->inner = NULL;
        parse(settings->ddp.comm_hook, chosen);
    } else if (settings->hook.comm_hook != CDDP_COMM_HOOK_NO) {
        translate(&settings->hook, chosen);
    }
}
