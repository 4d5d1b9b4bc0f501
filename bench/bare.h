/* SPDX-License-Identifier: Apache-2.0 */
/* The transport's library without us: transport_bench.c compares ours with it. One implementation
** per library.
**
** Errors     false or NULL, reported on stderr.
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const char *const bare_name; /* "gloo::allreduce" */

typedef struct bare bare; /* with its own connections */

/* directory: shared by the ranks and empty. NULL when it failed. */
bare *bare_open(const char *directory, int rank, int size);
/* sums in place; blocks the calling thread */
bool bare_allreduce(bare *library, float *data, size_t count);
void bare_close(bare *library);

#ifdef __cplusplus
}
#endif
