/* SPDX-License-Identifier: Apache-2.0 */
/* The tree of a composition's text, and the kinds of its inner nodes.
**
** Lifetime   made by spec.c, owned by the composition; groups borrow their node.
** Threads    read-only once made, but for the list of ranks: in the simulator all ranks share one
**            tree.
*/
#pragma once
#include "cddp/composition.h"
#include "core/base/arena.h"

#include <pthread.h>

#define CD_NODE_INNER_MAX 8
#define CD_NODE_GROUPS_MAX 16 /* of one composed group */
#define CD_NODE_WORD_BYTES 32

typedef struct cd_node cd_node;

/* Delays are nanoseconds, chances are parts of a million. */
typedef struct cd_fault_plan {
    uint64_t seed;
    uint64_t drop_ppm, corrupt_ppm, late_ppm;
    uint64_t delay_ns;
    int64_t rank;  /* the only rank that is affected; -1: any */
    uint64_t from; /* the first operation that may be affected */
    int plant;     /* cd_plant */
    int64_t die_rank;
    uint64_t die_at;
} cd_fault_plan;

typedef struct cd_kind {
    const char *word; /* "rr"; NULL: dispatch, which starts with a device */
    const char *form, *summary;
    /* (optional) reads the settings between the word and the inner text; advances *at. */
    cddp_status (*parse)(cd_node *node, const char **at, cddp_error *err);
    /* Fills table.capabilities from those of the inner nodes, and refuses unsuitable inner
    ** nodes. */
    cddp_status (*adopt)(cd_node *node, cddp_error *err);
    cddp_status (*open)(const cddp_backend *backend, cddp_rank *rank, const cddp_group_spec *spec,
                        void **group, cddp_error *err);
} cd_kind;

struct cd_node {
    /* the table that callers see; a leaf has the backend's table, with its self */
    cddp_backend table;
    const cd_kind *kind; /* NULL: a leaf */
    const cddp_composition *composition;
    const char *spec; /* the whole text, for messages */
    cd_node *inner[CD_NODE_INNER_MAX];
    char devices[CD_NODE_INNER_MAX][CD_NODE_WORD_BYTES]; /* dispatch */
    uint32_t inner_count;
    uint32_t group_count;    /* rr */
    uint32_t ranks_per_node; /* hier; 0: not given */
    bool after;              /* check: compare afterwards */
    cd_fault_plan fault;
    char *name; /* the node's part of the text */
};

/* Ranks with open groups, each with what it has open: the one part that changes. */
typedef struct cd_step_ranks {
    pthread_mutex_t lock; /* ranks may be threads */
    struct cd_step_rank *first;
} cd_step_ranks;

struct cddp_composition {
    cd_arena arena; /* of the composition itself, its texts and its tree */
    cd_step_ranks *ranks;
    cddp_composition_options options;
    char *spec;
    char *node_name;
    cd_node *root;
};

/* What ranks of an earlier run left open is gone with their memory: whoever uses their world again
** says so first. */
void cd_composition_forget(cddp_composition *composition);

extern const cd_kind cd_kind_dispatch, cd_kind_round_robin, cd_kind_hier, cd_kind_check,
    cd_kind_fault;
/* Ends with NULL; dispatch is first. */
extern const cd_kind *const cd_kinds[];

/* Reads the text into a tree. With find NULL only the form is checked, and visit gets the
** leaves. */
typedef struct cd_spec_reader {
    cd_arena *arena;               /* of the tree */
    cddp_composition *composition; /* NULL: names only go to visit */
    cddp_status (*visit)(void *context, const char *name, cddp_error *err);
    void *context;
} cd_spec_reader;
cddp_status cd_spec_read(const cd_spec_reader *reader, const char *spec, cd_node **root,
                         cddp_error *err);

/* For parse functions: fails with the position in the text. */
cddp_status cd_spec_refuse(const cd_node *node, const char *at, cddp_error *err, const char *format,
                           ...) CDDP_PRINTF(4, 5);
/* Reads the word up to any of `stops`; false when it is too long. */
bool cd_spec_word(const char *at, const char *stops, char word[CD_NODE_WORD_BYTES]);
/* Reads a whole decimal number; leaves *at after it. */
bool cd_spec_number(const char **at, uint64_t *number);
