/* SPDX-License-Identifier: Apache-2.0 */
/* The fields link and shape of the `compare` event, which the oracle writes and the checks read, as
** enums of the core: generated from cddp/events.def, which has their words and their order.
**
**   CD_LINK_REDUCTION   what is compared; docs/oracle.md derives the bound of each
**   CD_SHAPE_RATIO      how the wrong values look, tested exactly, the most specific one first
*/
#pragma once
#include "cddp/trace.h"
#include "core/base/hash.h"

/* A row of events.def gives its constants where CD_CODES_<name> is defined, else nothing. */
#define CD_CODES_KEEP(...) __VA_ARGS__
#define CD_CODES_DROP(...)
#define CD_CODES_SECOND(first, second, ...) second
#define CD_CODES_PICK(...) CD_CODES_SECOND(__VA_ARGS__)
#define CD_CODES_ROW(name, ...) CD_CODES_PICK(CD_CODES_##name, CD_CODES_DROP, )(__VA_ARGS__)
#define CDDP_WORD(constant, word) CD_##constant = CDDP_##constant,

/* The ids of the two decisions on the loss of an [[output]], counted from 1, in a forward of a
** micro-step, of which there are at most 8: on its divisor, and on its weight. */
#define CD_OUTPUT_DIVISOR_ID(forward, output) ((int64_t)(forward) + 16 * (int64_t)(output))
#define CD_OUTPUT_WEIGHT_ID(forward, output) (CD_OUTPUT_DIVISOR_ID(forward, output) + 8)

/* The text of `owed` events of the judge of hooks: one for each bucket that returned, with how many
** laws the plan's hook itself states of it, as hook_law events. */
#define CD_STATED_LAWS "laws that a comm hook states"

/* Of bucket_sum: this number and the next one state one mean, with other weights. */
#define CD_LAW_MEANS 0
/* Of bucket_sum: from this number on, what an all-reduce gave, against what the ranks posted. */
#define CD_LAW_COLLECTIVES 8

/* What a reduction is, to one of its members. Its digest goes on with those of what each member
** posted, in their order, and ends with that of the result. */
typedef struct cd_sum_sight {
    bool averages, scatters, gathers;
    int64_t member, members, dtype, numel; /* numel: of what a member posts */
} cd_sum_sight;
#define CD_SUM_SIGHT_BITS ((UINT64_C(1) << 52) - 1) /* of the digest: a mark's value is a count */
static inline uint64_t cd_sum_sight_begin(const cd_sum_sight *sight)
{
    const cd_sum_sight *s = sight;
    const int64_t said[] = {s->averages, s->scatters, s->gathers, s->member,
                            s->members,  s->dtype,    s->numel};
    uint64_t digest = 0;
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++)
        digest = cd_hash_mix(digest, (uint64_t)said[i]);
    return digest;
}

/* The ids of decisions on process groups. Below 0 they stand for a step: the group that the wrapper
** takes, and the one in which buckets are reduced there. From 0 on they are groups of the rank,
** with the digest of their members, and say what each is for. */
#define CD_GROUP_TAKEN (-1)
#define CD_GROUP_OF_BUCKETS (-2)
#define CD_GROUP_OF_WRAPPER 0
#define CD_GROUP_OF_HOOK 1
#define CD_GROUP_OF_PLUGIN 2 /* the beginning of the names of all that a plugin's hook may open */
#define CD_GROUP_OF_SHARDS 3
#define CD_GROUP_OF_REPLICAS 4
#define CD_GROUP_OF_SHARDS_RESUMED 5
#define CD_GROUP_OF_REPLICAS_RESUMED 6
#define CD_GROUP_OF_AVERAGE 8 /* and up, one of each level */
#define CD_GROUP_NAMED 64     /* and up, one of each [[group]] */
/* and up: the group in which the program posts each [[collective]]; without members */
#define CD_GROUP_OF_COLLECTIVE ((int64_t)1 << 20)

#define CD_CODES_link , CD_CODES_KEEP
#define CDDP_EVENT_ENUM(name, ...) CD_CODES_ROW(name, __VA_ARGS__)
typedef enum cd_oracle_link {
#include "cddp/events.def"
    CD_LINK_COUNT
} cd_oracle_link;
#undef CD_CODES_link

#define CD_CODES_shape , CD_CODES_KEEP
#define CDDP_EVENT_ENUM(name, ...) CD_CODES_ROW(name, __VA_ARGS__)
typedef enum cd_shape {
#include "cddp/events.def"
    CD_SHAPE_COUNT
} cd_shape;
#undef CD_CODES_shape

#undef CDDP_WORD
#undef CD_CODES_KEEP
#undef CD_CODES_DROP
#undef CD_CODES_SECOND
#undef CD_CODES_PICK
#undef CD_CODES_ROW
