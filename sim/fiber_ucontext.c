/* SPDX-License-Identifier: Apache-2.0 */
/* Switching through POSIX ucontext, where Boost.Context is absent: portable, and two system calls
** per round trip, because swapcontext saves the signal mask. */
#define _XOPEN_SOURCE 700
#include "sim/fiber_switch.h"

#include "core/base/assert.h"

#include <stdint.h>
#include <ucontext.h>

const char *const cd_switch_name = "ucontext";

/* Lies at the highest addresses of the stack, so that a copy of the stack is a copy of the
** fiber. */
typedef struct contexts {
    ucontext_t fiber, caller;
    void (*body)(cd_fiber *fiber);
} contexts;

static contexts *contexts_of(const cd_fiber *fiber)
{
    size_t bytes = (sizeof(contexts) + 63) & ~(size_t)63;
    return (contexts *)(void *)(fiber->stack + fiber->stack_bytes - bytes);
}

/* makecontext passes ints only, so a pointer travels in two halves. */
static void entry(unsigned high, unsigned low)
{
    cd_fiber *fiber = (cd_fiber *)(((uintptr_t)high << 32) | (uintptr_t)low);
    contexts_of(fiber)->body(fiber);
}

void cd_switch_init(cd_fiber *fiber, void (*body)(cd_fiber *fiber))
{
    contexts *c = contexts_of(fiber);
    int failed = getcontext(&c->fiber);
    CD_ASSERT(!failed);
    c->body = body;
    c->fiber.uc_stack.ss_sp = fiber->stack;
    c->fiber.uc_stack.ss_size = (size_t)((unsigned char *)c - fiber->stack);
    c->fiber.uc_link = NULL;
    uintptr_t p = (uintptr_t)fiber;
    makecontext(&c->fiber, (void (*)(void))entry, 2, (unsigned)(p >> 32),
                (unsigned)(p & 0xffffffffu));
    fiber->context = c;
}

void cd_switch_enter(cd_fiber *fiber)
{
    contexts *c = contexts_of(fiber);
    int failed = swapcontext(&c->caller, &c->fiber);
    CD_ASSERT(!failed);
}

void cd_switch_leave(cd_fiber *fiber)
{
    contexts *c = contexts_of(fiber);
    int failed = swapcontext(&c->fiber, &c->caller);
    CD_ASSERT(!failed);
}

unsigned char *cd_switch_top(const cd_fiber *fiber)
{
    (void)fiber;
    return NULL;
}
