/* SPDX-License-Identifier: Apache-2.0 */
/* Switching through Boost.Context's fcontext: some fifteen instructions of assembler, no system
** call. Its two functions have C linkage and are declared here, because Boost ships C++ headers
** only. */
#include "sim/fiber_switch.h"

typedef struct transfer {
    void *context; /* of whoever jumped here */
    void *data;
} transfer;

transfer jump_fcontext(void *to, void *data);
void *make_fcontext(void *stack_end, size_t stack_bytes, void (*entry)(transfer from));

const char *const cd_switch_name = "fcontext";

/* The entry of the first jump: the fiber is passed as data, its body in the place of `program`. */
typedef struct first_entry {
    cd_fiber *fiber;
    void (*body)(cd_fiber *fiber);
} first_entry;

static void entry(transfer from)
{
    first_entry first = *(first_entry *)from.data;
    first.fiber->caller = from.context;
    first.body(first.fiber);
}

void cd_switch_init(cd_fiber *fiber, void (*body)(cd_fiber *fiber))
{
    /* The highest bytes of the stack carry the argument of the first entry. */
    first_entry *first = (first_entry *)(void *)(fiber->stack + fiber->stack_bytes - 64);
    *first = (first_entry){fiber, body};
    fiber->context = make_fcontext(first, fiber->stack_bytes - 64, entry);
    fiber->caller = NULL;
}

void cd_switch_enter(cd_fiber *fiber)
{
    void *argument = fiber->stack + fiber->stack_bytes - 64;
    fiber->context = jump_fcontext(fiber->context, argument).context;
}

void cd_switch_leave(cd_fiber *fiber)
{
    fiber->caller = jump_fcontext(fiber->caller, NULL).context;
}

unsigned char *cd_switch_top(const cd_fiber *fiber)
{
    return fiber->context; /* an fcontext is the stack pointer below its saved registers */
}
