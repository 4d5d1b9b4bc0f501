/* SPDX-License-Identifier: Apache-2.0 */
/* Compositions: backends made of other backends through the public port, named by a text.
**
**     rr:3:gloo                          three groups of the inner backend, operations go round
**     hier:gloo                          reduce inside a node, all-reduce between nodes, broadcast
**                                        inside
**     check:gloo                         ranks compare each operation before it, and its result
**                                        after it
**     fault:seed=7,drop=0.01:gloo        a transport that loses, delays, corrupts or dies, always
**                                        the same way
**     cpu:gloo,cuda:nccl                 the tensor's device decides
**
** They nest: check:rr:2:hier:gloo. docs/backends.md has the promises of each.
**
** Lifetime   a composition outlives every group opened with its backend; it borrows what `find`
**            returned.
** Threads    read-only once open. Groups as in cddp/backend.h: one thread each. No composition
**            starts threads.
** Errors     an invalid text is refused with the position and, if there is one, the nearest known
**            name.
*/
#pragma once
#include "cddp/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_composition cddp_composition;

typedef struct cddp_composition_options {
    uint32_t size;    /* sizeof(cddp_composition_options) known to the writer */
    const char *spec; /* "check:rr:2:gloo"; the name of a backend alone is fine too */
    /* does: the backend of this name, bound to its rendezvous, as a registry hands it out (no empty
    ** slot). */
    cddp_status (*find)(void *context, const char *name, const cddp_backend **backend,
                        cddp_error *err);
    /* does: receives a result of check:after when no operation is left to report it. (optional) */
    void (*late)(void *context, uint32_t rank, const char *message);
    void *context;
    /* hier: the node of this process; NULL: the name of the host. Copied */
    const char *node;
    /* hier without a number in the text: nodes of so many consecutive ranks; 0: by node */
    uint32_t ranks_per_node;
    /* each rank is a separate process: a rank that dies by fault: is killed */
    bool own_process;
    const cddp_allocator *allocator;
} cddp_composition_options;

CDDP_API cddp_status cddp_composition_open(const cddp_composition_options *options,
                                           cddp_composition **composition,
                                           cddp_error *err) CDDP_MUST_CHECK;
/* Returns borrowed until close. Its name is the text. */
CDDP_API const cddp_backend *cddp_composition_backend(const cddp_composition *composition);
/* accepts NULL; groups are closed before */
CDDP_API void cddp_composition_close(cddp_composition *composition);

/* Does the text name a composition, and not a backend alone? */
CDDP_API bool cddp_composition_is_named(const char *spec);
/* Reads a text and hands every backend it names to visit, whose refusal gets the position. */
CDDP_API cddp_status cddp_composition_each(const char *spec,
                                           cddp_status (*visit)(void *context, const char *name,
                                                                cddp_error *err),
                                           void *context, cddp_error *err) CDDP_MUST_CHECK;

/* The i-th kind: its form ("rr:K:x") and what it does, one line. False past the end. */
CDDP_API bool cddp_composition_kind(size_t index, const char **form, const char **summary);

#ifdef __cplusplus
}
#endif
