/* SPDX-License-Identifier: Apache-2.0 */
/* A process that wraps several modules: their parameters and buckets have the same numbers, so the
** trace is judged once for each of them.
**
** A mark "wrapped module" says which of them the events of the rank are about from there on; before
** the first mark it is module 0, and after a mark of -1 nobody knows which. What groups say is
** about all of them. Modules with one number that are wrapped in different groups are
** different ones: they are separated after the events were counted, and only then.
**
** Lifetime   init → for each module: begin, push every event → fini.
** Errors     without memory modules are not separated by their groups.
*/
#pragma once
#include "cddp/trace.h"

#define CD_MODELS_MAX 1024

/* One that the ranks of a group wrapped, under this number. */
typedef struct cd_models_module {
    int64_t number, group;
} cd_models_module;

typedef struct cd_models_home {
    uint32_t rank;
    cd_models_module module;
} cd_models_home;

typedef struct cd_models {
    const cddp_allocator *allocator;
    int64_t *current; /* (rank_count) */
    uint32_t rank_count;
    int64_t shown;     /* which module */
    bool has_own_data; /* each module has its own samples and seeds; false: all have the same */
    int64_t count;     /* how many there are, after all events were pushed once */
    int64_t number_count;
    cd_models_home *homes;     /* (home_count) which of a number a rank means: it wrapped that */
    cd_models_module *modules; /* (module_count) in order */
    size_t home_count, home_capacity, module_count, module_capacity;
    bool is_apart; /* some number is of several modules */
    /* what was seen of a module: gradients that were reduced, and calls of the program about it */
    bool is_reduced[CD_MODELS_MAX], is_named[CD_MODELS_MAX];
    const cddp_trace_sink *where; /* borrowed until the next begin */
} cd_models;

cddp_status cd_models_init(cd_models *models, uint32_t rank_count, const cddp_allocator *allocator,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_models_fini(cd_models *models);
/* From the first event on again, for this module. where may be NULL: to count them. */
void cd_models_begin(cd_models *models, int64_t shown, const cddp_trace_sink *where);
/* A module whose gradients are reduced, and about which the program never says anything, although
** it speaks about another one: what it says may be about both. After all events were pushed
** once. */
bool cd_models_has_unnamed(const cd_models *models);
/* Whether the event says which module the next ones are about. */
bool cd_models_is_mark(const cddp_event *event);
/* Shows the event when it is about the module, or about all. */
void cd_models_push(cd_models *models, const cddp_event *event);
