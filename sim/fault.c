/* SPDX-License-Identifier: Apache-2.0 */
/* Faults as data: names, scopes, validation, text. */
#include "sim/fault.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *summary;
    cd_fault_scope scope;
} rows[CD_FAULT_KIND_COUNT] = {
#define CD_FAULT(name, scope, summary) [CDDP_FAULT_##name] = {summary, CD_FAULT_##scope},
#include "sim/faults.def"
#undef CD_FAULT
};

const char *cd_fault_name(cddp_event_enum_fault_kind kind)
{
    const char *name = cddp_event_word(CDDP_FIELD_fault_kind, (int64_t)kind);
    return name != NULL ? name : "?";
}

const char *cd_fault_summary(cddp_event_enum_fault_kind kind)
{
    return (unsigned)kind < CD_FAULT_KIND_COUNT ? rows[kind].summary : "?";
}

cd_fault_scope cd_fault_get_scope(cddp_event_enum_fault_kind kind)
{
    return (unsigned)kind < CD_FAULT_KIND_COUNT ? rows[kind].scope : CD_FAULT_ON_RANK;
}

int32_t cd_fault_find(const char *name)
{
    for (int32_t i = 0; i < CD_FAULT_KIND_COUNT; i++)
        if (strcmp(cd_fault_name((cddp_event_enum_fault_kind)i), name) == 0) return i;
    return -1;
}

static cddp_status check_sides(const cd_fault *fault, uint32_t world_size, cddp_error *err)
{
    uint32_t inside = 0;
    for (uint32_t r = 0; r < world_size; r++) inside += fault->side[r];
    if (inside == 0 || inside == world_size)
        return cd_fail(err, CDDP_E_CONFIG, "fault partition: all %u ranks are on one side",
                       world_size);
    return CDDP_OK;
}

bool cd_fault_cuts(const cd_fault *fault, uint32_t source, uint32_t target)
{
    if (fault->kind == CDDP_FAULT_PARTITION) return fault->side[source] != fault->side[target];
    return fault->kind == CDDP_FAULT_LINK_CUT && fault->rank == source &&
           (fault->peer == UINT32_MAX || fault->peer == target);
}

cddp_status cd_fault_check(const cd_fault *fault, uint32_t world_size, cddp_error *err)
{
    if ((unsigned)fault->kind >= CD_FAULT_KIND_COUNT)
        return cd_fail(err, CDDP_E_CONFIG, "there is no fault %d", (int)fault->kind);
    const char *name = cd_fault_name(fault->kind);
    cd_fault_scope scope = rows[fault->kind].scope;
    if (fault->rank >= world_size)
        return cd_fail(err, CDDP_E_CONFIG, "fault %s strikes rank %u of a world of %u", name,
                       fault->rank, world_size);
    if (scope == CD_FAULT_ON_LINK && fault->peer != UINT32_MAX &&
        (fault->peer >= world_size || fault->peer == fault->rank))
        return cd_fail(err, CDDP_E_CONFIG,
                       "fault %s: there is no link from rank %u to rank %u in a world of %u", name,
                       fault->rank, fault->peer, world_size);
    if ((fault->kind == CDDP_FAULT_PARTITION) != (fault->side != NULL))
        return cd_fail(err, CDDP_E_CONFIG, "fault %s %s", name,
                       fault->side != NULL ? "has no sides: they are partition's"
                                           : "needs the ranks of one side");
    if (fault->side != NULL) CD_TRY(check_sides(fault, world_size, err));
    if (fault->when >= CDDP_FAULT_BEFORE_JOIN && fault->joiner >= world_size)
        return cd_fail(err, CDDP_E_CONFIG, "fault %s waits for a join of rank %u of a world of %u",
                       name, fault->joiner, world_size);
    if (scope == CD_FAULT_ON_DATA && fault->when != CDDP_FAULT_BEFORE &&
        fault->when != CDDP_FAULT_INSIDE)
        return cd_fail(
            err, CDDP_E_CONFIG,
            "fault %s needs a collective whose contribution it changes: before_op or inside_op",
            name);
    if (scope == CD_FAULT_ON_STREAM && fault->when != CDDP_FAULT_INSIDE)
        return cd_fail(err, CDDP_E_CONFIG, "fault %s loses a wait of one collective: inside_op",
                       name);
    if (scope == CD_FAULT_ON_LINK &&
        (fault->when == CDDP_FAULT_INSIDE || fault->when == CDDP_FAULT_AFTER))
        return cd_fail(err, CDDP_E_CONFIG,
                       "fault %s acts on a link: at_time, before_op or around a join", name);
    if (fault->kind == CDDP_FAULT_SLOW_RANK && fault->amount == 0)
        return cd_fail(
            err, CDDP_E_CONFIG,
            "fault slow_rank of rank %u needs a factor in permille, 2000 is twice as slow",
            fault->rank);
    if (fault->kind == CDDP_FAULT_SLOW_RANK && fault->amount == 1000)
        return cd_fail(err, CDDP_E_CONFIG,
                       "fault slow_rank of rank %u: 1000 permille are as fast as before",
                       fault->rank);
    if ((fault->kind == CDDP_FAULT_LINK_DELAY || fault->kind == CDDP_FAULT_LINK_REORDER) &&
        fault->amount == 0)
        return cd_fail(err, CDDP_E_CONFIG, "fault %s of rank %u needs an amount in nanoseconds",
                       name, fault->rank);
    return CDDP_OK;
}

void cd_fault_print(const cd_fault *fault, char *text, size_t text_bytes)
{
    static const char *const words[CD_FAULT_KIND_COUNT] = {
        [CDDP_FAULT_KILL] = "dies",
        [CDDP_FAULT_HANG] = "hangs",
        [CDDP_FAULT_SLOW_RANK] = "becomes slow",
        [CDDP_FAULT_LINK_CUT] = "loses its link",
        [CDDP_FAULT_PARTITION] = "is parted from others",
        [CDDP_FAULT_LINK_DELAY] = "gets a slower link",
        [CDDP_FAULT_LINK_REORDER] = "has a message overtaken",
        [CDDP_FAULT_CHUNK_CORRUPT] = "sends a corrupt chunk",
        [CDDP_FAULT_LOST_START] = "does not wait for its stream",
        [CDDP_FAULT_LOST_END] = "does not wait for the end",
        [CDDP_FAULT_BIT_FLIP] = "suffers a bit flip",
        [CDDP_FAULT_NAN] = "contributes a NaN",
    };
    static const char *const moments[] = {"after",
                                          "before its collective",
                                          "inside its collective",
                                          "after its collective",
                                          "before join",
                                          "inside join",
                                          "after join"};
    char peer[32] = "", joiner[32] = "";
    if (fault->kind == CDDP_FAULT_PARTITION && fault->when == CDDP_FAULT_TIME) {
        char when[CD_DURATION_BYTES];
        cd_duration_print(fault->at, when, sizeof when);
        snprintf(text, text_bytes, "the network parts into two sides after %s", when);
        return;
    }
    if (rows[fault->kind].scope == CD_FAULT_ON_LINK && fault->peer != UINT32_MAX)
        snprintf(peer, sizeof peer, " to rank %u", fault->peer);
    if (fault->when >= CDDP_FAULT_BEFORE_JOIN)
        snprintf(joiner, sizeof joiner, " of rank %u", fault->joiner);
    char at[CD_DURATION_BYTES];
    if (fault->when == CDDP_FAULT_TIME)
        cd_duration_print(fault->at, at, sizeof at);
    else
        snprintf(at, sizeof at, "%llu", (unsigned long long)fault->at);
    snprintf(text, text_bytes, "rank %u %s%s %s %s%s", fault->rank, words[fault->kind], peer,
             moments[fault->when], at, joiner);
}
