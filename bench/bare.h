/* SPDX-License-Identifier: Apache-2.0 */
/* The transport's library without us: what transport_bench.c measures ours against. One implementation per library.
**
** Errors     false, told on stderr.
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const char *const bare_name; /* "gloo::allreduce, ring" */

/* directory: shared by the ranks and ours alone. */
bool bare_open(const char *directory, int rank, int size);
bool bare_allreduce(float *data, size_t count); /* sums in place; blocks the calling thread */
void bare_close(void);

#ifdef __cplusplus
}
#endif
