/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into the instrumented program of `map`: notes in a shared file which functions were
 * entered.
 *
 * One byte for every 16 bytes of the program's text, behind a count of all entries. The file is
 * shared, so what was noted before a crash, or in a child, is there. CDDP_TOUCHED names it; without
 * it nothing is noted. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern char __executable_start;
extern char etext;

void __cyg_profile_func_enter(void *function, void *caller) __attribute__((no_instrument_function));
void __cyg_profile_func_exit(void *function, void *caller) __attribute__((no_instrument_function));

static uint64_t *entries;
static unsigned char *touched;

__attribute__((constructor, no_instrument_function)) static void open_touched(void)
{
    const char *path = getenv("CDDP_TOUCHED");
    const size_t length = 8 + (size_t)(&etext - &__executable_start) / 16 + 1;
    if (path == NULL) return;
    const int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, (off_t)length) != 0) _exit(126);
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) _exit(126);
    entries = memory;
    touched = (unsigned char *)memory + 8;
}

void __cyg_profile_func_enter(void *function, void *caller)
{
    (void)caller;
    if (touched == NULL) return;
    ++*entries;
    touched[(size_t)((char *)function - &__executable_start) / 16] = 1;
}

void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)function;
    (void)caller;
}
