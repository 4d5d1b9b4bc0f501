/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: enter, leave, end; notices to sanitizers; red zones; pages.
**
** Saving registers is in fiber_fcontext.c or fiber_ucontext.c, as the build found it.
*/
#define _DEFAULT_SOURCE
#include "sim/fiber.h"

#include "core/base/assert.h"
#include "sim/fiber_switch.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CD_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define CD_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define CD_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define CD_TSAN 1
#endif

#if defined(CD_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
/* Before a switch to another stack, and after arriving on this one. `fake` keeps ASan's own stack
** meanwhile. */
static void before_switch(void **fake, const void *stack, size_t bytes)
{
    __sanitizer_start_switch_fiber(fake, stack, bytes);
}
static void after_switch(void *fake, const void **stack, size_t *bytes)
{
    __sanitizer_finish_switch_fiber(fake, stack, bytes);
}
#else
static void before_switch(void **fake, const void *stack, size_t bytes)
{
    (void)fake, (void)stack, (void)bytes;
}
static void after_switch(void *fake, const void **stack, size_t *bytes)
{
    (void)fake, (void)stack, (void)bytes;
}
#endif

#if defined(CD_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

#define RED_ZONE_BYTE 0xa5
#define RED_ZONE_WORD (RED_ZONE_BYTE * UINT64_C(0x0101010101010101))
#define LINE_BYTES 64

const char *cd_fiber_mechanism(void) { return cd_switch_name; }

static void body(cd_fiber *fiber)
{
    after_switch(NULL, &fiber->caller_stack, &fiber->caller_stack_bytes);
    fiber->program(fiber->argument);
    fiber->ended = true;
    before_switch(NULL, fiber->caller_stack, fiber->caller_stack_bytes);
    cd_switch_leave(fiber);
    CD_UNREACHABLE("an ended fiber was entered");
}

void cd_fiber_init(cd_fiber *fiber, unsigned char *stack, size_t stack_bytes, cd_fiber_fn program,
                   void *argument)
{
    CD_ASSERT(stack_bytes >= 4 * CD_FIBER_RED_ZONE && (uintptr_t)stack % 64 == 0 &&
              stack_bytes % 64 == 0);
    *fiber = (cd_fiber){.stack = stack,
                        .stack_bytes = stack_bytes,
                        .program = program,
                        .argument = argument};
    memset(stack, RED_ZONE_BYTE, CD_FIBER_RED_ZONE);
#if defined(CD_TSAN)
    fiber->sanitizer = __tsan_create_fiber(0);
#endif
    cd_switch_init(fiber, body);
}

void cd_fiber_fini(cd_fiber *fiber)
{
#if defined(CD_TSAN)
    if (fiber->sanitizer != NULL) __tsan_destroy_fiber(fiber->sanitizer);
#endif
#if defined(CD_ASAN)
    /* Frames that never returned leave their marks, and the memory will be something else. */
    __asan_unpoison_memory_region(fiber->stack, fiber->stack_bytes);
#endif
    fiber->sanitizer = NULL;
    fiber->context = NULL;
}

void cd_fiber_enter(cd_fiber *fiber)
{
    void *fake = NULL;
#if defined(CD_TSAN)
    void *here = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber->sanitizer, 0);
#endif
    before_switch(&fake, fiber->stack, fiber->stack_bytes);
    cd_switch_enter(fiber);
    after_switch(fake, NULL, NULL);
#if defined(CD_TSAN)
    /* The switch back is announced here, on arrival: the fiber does not know who entered it. */
    __tsan_switch_to_fiber(here, 0);
#endif
}

void cd_fiber_leave(cd_fiber *fiber)
{
    void *fake = NULL;
    fiber->low = (unsigned char *)&fake;
    before_switch(&fake, fiber->caller_stack, fiber->caller_stack_bytes);
    cd_switch_leave(fiber);
    after_switch(fake, &fiber->caller_stack, &fiber->caller_stack_bytes);
}

void cd_fiber_abandon(cd_fiber *fiber)
{
    void *fake = NULL;
    fiber->low = fiber->stack + fiber->stack_bytes; /* how deep it was is not known */
    before_switch(&fake, fiber->caller_stack, fiber->caller_stack_bytes);
    cd_switch_leave(fiber);
    CD_UNREACHABLE("an abandoned fiber was entered");
}

/* Each byte as the one before it. */
static bool is_untouched(const unsigned char *zone, size_t bytes)
{
    return zone[0] == RED_ZONE_BYTE && memcmp(zone, zone + 1, bytes - 1) == 0;
}

/* At every switch: without a call. */
static bool is_line_untouched(const unsigned char *line)
{
    uint64_t words[LINE_BYTES / sizeof(uint64_t)], other = 0;
    memcpy(words, line, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) other |= words[i] ^ RED_ZONE_WORD;
    return other == 0;
}

/* While it runs only the line next to the stack is looked at, which costs one cache line per
** switch; at the end all. */
bool cd_fiber_is_intact(const cd_fiber *fiber)
{
    if (fiber->ended) return cd_fiber_kept_within(fiber);
    if (fiber->low < fiber->stack + CD_FIBER_RED_ZONE) return false;
    return is_line_untouched(fiber->stack + CD_FIBER_RED_ZONE - LINE_BYTES);
}

/* Frames are large: one that lies across the line next to the stack may leave it as it was. */
bool cd_fiber_kept_within(const cd_fiber *fiber)
{
    return is_untouched(fiber->stack, CD_FIBER_RED_ZONE);
}

unsigned char *cd_fiber_get_top(const cd_fiber *fiber)
{
    unsigned char *top = cd_switch_top(fiber);
    return top != NULL ? top : fiber->stack;
}

bool cd_fiber_has_shadow(void)
{
#if defined(CD_ASAN) || defined(CD_TSAN)
    return true;
#else
    return false;
#endif
}

void *cd_fiber_map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void cd_fiber_unmap(void *memory, size_t bytes)
{
    if (memory != NULL) munmap(memory, bytes);
}

bool cd_fiber_guard(void *memory, size_t bytes) { return mprotect(memory, bytes, PROT_NONE) == 0; }

bool cd_fiber_unguard(void *memory, size_t bytes)
{
    return mprotect(memory, bytes, PROT_READ | PROT_WRITE) == 0;
}

size_t cd_fiber_page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }
