/* SPDX-License-Identifier: Apache-2.0 */
/* Faults as data: names, scopes, validation, text. */
#include "sim/fault.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *summary;
    cd_fault_scope scope;
} rows[CD_FAULT_KIND_COUNT] = {
#define CD_FAULT(name, scope, summary) {#name, summary, CD_FAULT_##scope},
#include "sim/faults.def"
#undef CD_FAULT
};

const char *cd_fault_name(cd_fault_kind kind)
{
    return (unsigned)kind < CD_FAULT_KIND_COUNT ? rows[kind].name : "?";
}

const char *cd_fault_summary(cd_fault_kind kind)
{
    return (unsigned)kind < CD_FAULT_KIND_COUNT ? rows[kind].summary : "?";
}

cd_fault_scope cd_fault_get_scope(cd_fault_kind kind)
{
    return (unsigned)kind < CD_FAULT_KIND_COUNT ? rows[kind].scope : CD_FAULT_ON_RANK;
}

int32_t cd_fault_find(const char *name)
{
    for (int32_t i = 0; i < CD_FAULT_KIND_COUNT; i++)
        if (strcmp(rows[i].name, name) == 0) return i;
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
    if (fault->kind == CD_FAULT_partition) return fault->side[source] != fault->side[target];
    return fault->kind == CD_FAULT_link_cut && fault->rank == source &&
           (fault->peer == UINT32_MAX || fault->peer == target);
}

cddp_status cd_fault_check(const cd_fault *fault, uint32_t world_size, cddp_error *err)
{
    if ((unsigned)fault->kind >= CD_FAULT_KIND_COUNT)
        return cd_fail(err, CDDP_E_CONFIG, "there is no fault %d", (int)fault->kind);
    const char *name = rows[fault->kind].name;
    cd_fault_scope scope = rows[fault->kind].scope;
    if (fault->rank >= world_size)
        return cd_fail(err, CDDP_E_CONFIG, "fault %s strikes rank %u of a world of %u", name,
                       fault->rank, world_size);
    if (scope == CD_FAULT_ON_LINK && fault->peer != UINT32_MAX &&
        (fault->peer >= world_size || fault->peer == fault->rank))
        return cd_fail(err, CDDP_E_CONFIG,
                       "fault %s: there is no link from rank %u to rank %u in a world of %u", name,
                       fault->rank, fault->peer, world_size);
    if ((fault->kind == CD_FAULT_partition) != (fault->side != NULL))
        return cd_fail(err, CDDP_E_CONFIG, "fault %s %s", name,
                       fault->side != NULL ? "has no sides: they are partition's"
                                           : "needs the ranks of one side");
    if (fault->side != NULL) CD_TRY(check_sides(fault, world_size, err));
    if (fault->when >= CD_FAULT_BEFORE_JOIN && fault->joiner >= world_size)
        return cd_fail(err, CDDP_E_CONFIG, "fault %s waits for a join of rank %u of a world of %u",
                       name, fault->joiner, world_size);
    if (scope == CD_FAULT_ON_DATA && fault->when != CD_FAULT_BEFORE_OP &&
        fault->when != CD_FAULT_INSIDE_OP)
        return cd_fail(
            err, CDDP_E_CONFIG,
            "fault %s needs a collective whose contribution it changes: before_op or inside_op",
            name);
    if (scope == CD_FAULT_ON_STREAM && fault->when != CD_FAULT_INSIDE_OP)
        return cd_fail(err, CDDP_E_CONFIG, "fault %s loses a wait of one collective: inside_op",
                       name);
    if (scope == CD_FAULT_ON_LINK &&
        (fault->when == CD_FAULT_INSIDE_OP || fault->when == CD_FAULT_AFTER_OP))
        return cd_fail(err, CDDP_E_CONFIG,
                       "fault %s acts on a link: at_time, before_op or around a join", name);
    if (fault->kind == CD_FAULT_slow_rank && fault->amount == 0)
        return cd_fail(
            err, CDDP_E_CONFIG,
            "fault slow_rank of rank %u needs a factor in permille, 2000 is twice as slow",
            fault->rank);
    return CDDP_OK;
}

void cd_fault_print(const cd_fault *fault, char *text, size_t text_bytes)
{
    static const char *const words[CD_FAULT_KIND_COUNT] = {
        [CD_FAULT_kill] = "dies",
        [CD_FAULT_hang] = "hangs",
        [CD_FAULT_slow_rank] = "becomes slow",
        [CD_FAULT_link_cut] = "loses its link",
        [CD_FAULT_partition] = "is parted from others",
        [CD_FAULT_link_delay] = "gets a slower link",
        [CD_FAULT_link_reorder] = "has a message overtaken",
        [CD_FAULT_chunk_corrupt] = "sends a corrupt chunk",
        [CD_FAULT_lost_start] = "does not wait for its stream",
        [CD_FAULT_lost_end] = "does not wait for the end",
        [CD_FAULT_bit_flip] = "suffers a bit flip",
        [CD_FAULT_nan] = "contributes a NaN",
    };
    static const char *const moments[] = {"after",
                                          "before its collective",
                                          "inside its collective",
                                          "after its collective",
                                          "before join",
                                          "inside join",
                                          "after join"};
    char peer[32] = "", joiner[32] = "";
    if (fault->kind == CD_FAULT_partition && fault->when == CD_FAULT_AT_TIME) {
        char when[CD_DURATION_BYTES];
        cd_duration_print(fault->at, when, sizeof when);
        snprintf(text, text_bytes, "the network parts into two sides after %s", when);
        return;
    }
    if (rows[fault->kind].scope == CD_FAULT_ON_LINK && fault->peer != UINT32_MAX)
        snprintf(peer, sizeof peer, " to rank %u", fault->peer);
    if (fault->when >= CD_FAULT_BEFORE_JOIN)
        snprintf(joiner, sizeof joiner, " of rank %u", fault->joiner);
    char at[CD_DURATION_BYTES];
    if (fault->when == CD_FAULT_AT_TIME)
        cd_duration_print(fault->at, at, sizeof at);
    else
        snprintf(at, sizeof at, "%llu", (unsigned long long)fault->at);
    snprintf(text, text_bytes, "rank %u %s%s %s %s%s", fault->rank, words[fault->kind], peer,
             moments[fault->when], at, joiner);
}
