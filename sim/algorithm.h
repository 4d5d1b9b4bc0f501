/* SPDX-License-Identifier: Apache-2.0 */
/* Collective algorithms as programs: for each rank, the list of sends and receives that the
** algorithm consists of.
**
** The list is computed entry by entry from an index, so nothing is stored. The same program is
** executed at once (direct), timed as a graph (model) or sent message by message. The summation
** order is the order of receive-and-reduce entries, so it is the same in all three.
**
** Lifetime   plain values. Errors: none; a program of a valid description always exists.
*/
#pragma once
#include "cddp/backend.h"

/* Rows of sim/algorithms.def. */
typedef enum cd_algorithm {
#define CD_ALGORITHM(name, summary) CD_ALGORITHM_##name,
#include "sim/algorithms.def"
#undef CD_ALGORITHM
    CD_ALGORITHM_COUNT
} cd_algorithm;
const char *cd_algorithm_name(cd_algorithm algorithm);
int32_t cd_algorithm_find(const char *name); /* -1 when there is none */

typedef enum cd_action_kind {
    CD_ACTION_SEND,   /* work[begin, begin+count) goes to peer */
    CD_ACTION_REDUCE, /* a message from peer is reduced into work[begin, …) */
    CD_ACTION_STORE   /* a message from peer overwrites work[begin, …) */
} cd_action_kind;

/* hfreduce: which side is not a member's device but its node's host. */
enum { CD_HOST_HERE = 1, CD_HOST_THERE = 2 };

typedef struct cd_action {
    cd_action_kind kind;
    /* rank within the group; UINT32_MAX on receive: whoever comes next (any_order) */
    uint32_t peer;
    int64_t begin, count; /* elements of the work buffer */
    uint8_t channel;      /* between two members only messages of one channel keep their order */
    uint8_t hosts;        /* CD_HOST_…; one byte, since this is read right after it was written */
} cd_action;

/* How a ring cuts the data: `size` chunks of per_chunk segments each; the last ones may be short or
** empty. */
typedef struct cd_ring_segments {
    uint32_t per_chunk;
    int64_t elements; /* of a segment */
} cd_ring_segments;

/* How trees cut the data: each tree's into `count` pieces, the last of which may be short or
** empty. */
typedef struct cd_tree_pieces {
    int64_t elements; /* of a piece */
    uint32_t count;
    /* in either tree: in which round the first piece goes up and comes down (sim/tree.c) */
    uint32_t up[2], down[2];
} cd_tree_pieces;

/* The description of a program. All of it must agree between members for the programs to fit
** together. */
typedef struct cd_program {
    cd_algorithm algorithm;
    cddp_op op;
    uint32_t size; /* members */
    uint32_t rank; /* the member whose program it is */
    uint32_t root;
    uint32_t ranks_per_node; /* two_level, hfreduce */
    uint64_t piece_bytes;    /* trees: at most so many per message; 0: any number */
    int64_t numel;           /* elements of the work buffer */
    uint32_t element_bytes;
    /* allgather, reduce_scatter, alltoall: elements per member, or NULL: equal shares */
    const int64_t *counts;
    const int64_t *send_counts; /* alltoall */
    union {
        cd_ring_segments ring; /* all-reduce in a ring: cd_ring_get_segments of the rest */
        cd_tree_pieces tree;   /* others: cd_tree_get_pieces of the rest */
    };
} cd_program;

cd_ring_segments cd_ring_get_segments(const cd_program *program);
cd_tree_pieces cd_tree_get_pieces(const cd_program *program);
static inline bool cd_algorithm_is_ring(cd_algorithm algorithm)
{
    return algorithm == CD_ALGORITHM_gloo_ring || algorithm == CD_ALGORITHM_ring;
}
static inline bool cd_algorithm_is_tree(cd_algorithm algorithm)
{
    return algorithm == CD_ALGORITHM_binomial_tree || algorithm == CD_ALGORITHM_double_tree ||
           algorithm == CD_ALGORITHM_two_level || algorithm == CD_ALGORITHM_hfreduce;
}

/* The index-th entry; false behind the last. */
bool cd_program_get(const cd_program *program, uint32_t index, cd_action *action);
/* The first entry at or behind *index that is carried out, which leaves out transfers of nothing,
** except in barriers, which consist of them; *index becomes its index. False when there is none. */
bool cd_program_find(const cd_program *program, uint32_t *index, cd_action *action);
