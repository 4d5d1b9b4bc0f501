/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: several stacks that take turns on one thread. A switch saves registers and swaps the
** stack pointer.
**
** Lifetime   a fiber lives in the caller's storage, on the caller's stack. fini forgets it. A fiber
**            that has not returned never runs again, so memory that it owned outside its stack
**            stays unfreed.
** Threads    a fiber is entered only by the thread that made it. Every switch notifies
**            AddressSanitizer and ThreadSanitizer.
** Errors     switching cannot fail. Overflow is found by cd_fiber_is_intact after every switch; the
**            guard page below the stack stops what runs further than the red zone.
*/
#pragma once
#include "cddp/status.h"

/* Bytes at the far end of a stack that must stay untouched, see cd_fiber_is_intact. */
#define CD_FIBER_RED_ZONE 4096u

typedef void (*cd_fiber_fn)(void *argument);

/* Which mechanism switches: "fcontext" (Boost.Context) or "ucontext" (POSIX, a system call per
** switch). */
const char *cd_fiber_mechanism(void);

typedef struct cd_fiber {
    void *context;        /* where it continues; NULL before the first entry and after the end */
    unsigned char *stack; /* (stack_bytes) lowest address first */
    size_t stack_bytes;
    cd_fiber_fn program;
    void *argument;
    void *caller;       /* where it switches back to */
    unsigned char *low; /* how deep its stack was when it last left */
    bool ended;
    void *sanitizer; /* TSan's name for it; ASan's fake stack while it is away */
    const void *caller_stack;
    size_t caller_stack_bytes;
} cd_fiber;

void cd_fiber_init(cd_fiber *fiber, unsigned char *stack, size_t stack_bytes, cd_fiber_fn program,
                   void *argument);
void cd_fiber_fini(cd_fiber *fiber); /* accepts a zeroed fiber */
/* Runs the fiber until it leaves or its program returns. Must not be called from inside the same
** fiber. */
void cd_fiber_enter(cd_fiber *fiber);
/* Back to whoever entered. Called from inside the fiber. */
void cd_fiber_leave(cd_fiber *fiber);
/* The same for good, and from a handler of a signal on an extra stack too. */
void cd_fiber_abandon(cd_fiber *fiber);
/* Is the red zone still as init left it? */
bool cd_fiber_is_intact(const cd_fiber *fiber);
/* The whole zone, whether it has ended or not. */
bool cd_fiber_kept_within(const cd_fiber *fiber);
/* The lowest address in use by a fiber that is away: what a snapshot has to keep lies above it. */
unsigned char *cd_fiber_get_top(const cd_fiber *fiber);

/* Does a sanitizer keep books about stacks, so that a copied stack would not be itself? */
bool cd_fiber_has_shadow(void);

/* Memory for stacks and everything else of a world: page-aligned, zero, not counted until touched.
** NULL when exhausted. A page can be made unreachable, so that running into it stops the
** program. */
void *cd_fiber_map(size_t bytes);
void cd_fiber_unmap(void *memory, size_t bytes);
bool cd_fiber_guard(void *memory, size_t bytes);
bool cd_fiber_unguard(void *memory, size_t bytes);
size_t cd_fiber_page_bytes(void);
