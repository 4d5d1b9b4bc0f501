/* SPDX-License-Identifier: Apache-2.0 */
/* The waiting of a verdict as a graph: an edge leads from a rank that waits to each that it waits
** for.
**
** A rank that others wait for, and that waits for nobody itself, is a root: the cause is there.
** Without a root ranks wait for one another in a cycle.
**
** Errors     the functions allocate nothing and cannot fail.
*/
#pragma once
#include "cddp/run.h"

/* The wait of a rank, or NULL. */
const cddp_wait *cd_hang_find(const cddp_verdict *verdict, uint32_t rank);
/* The rank is a root that the wait leads to. Where one of them died, those that the run gave up
** waiting for are none. */
bool cd_hang_is_root(const cddp_verdict *verdict, const cddp_wait *wait, uint32_t rank);
/* Whether the wait ended with the run or with a time-out; else the rank learnt that a peer was
** gone. */
bool cd_hang_is_endless(const cddp_wait *wait);
/* The wait that leads to the cause: of the lowest rank that waits for a root; else, in a cycle, of
** the lowest rank that waits. NULL: nobody waits. */
const cddp_wait *cd_hang_main(const cddp_verdict *verdict);
/* Without a root: the wait of a rank on the cycle that the main wait leads to; each on it waits for
** its first peer. NULL: there is none. */
const cddp_wait *cd_hang_cycle(const cddp_verdict *verdict);
/* Without a root and a cycle: the finding that names who keeps ranks waiting in what all have
** posted, such as another operation under its number. NULL: there is none. */
const cddp_finding *cd_hang_why(const cddp_verdict *verdict);
/* The finding of ranks that go round in circles, whatever they waited in when they were ended.
** NULL: there is none. */
const cddp_finding *cd_hang_livelock(const cddp_verdict *verdict);
/* With roots that all returned, well or since an exchange failed: the first finding, if it blames
** ranks that wait and no root. Such a rank posted an operation too many, or one of another size,
** which the root refused. NULL: there is none. */
const cddp_finding *cd_hang_odd(const cddp_verdict *verdict);
/* Killed, or crashed. */
bool cd_hang_has_died(const cddp_verdict *verdict, uint32_t rank);
/* Nobody waits, and the first finding says that ranks died, though not all of them: I-FAIL's. */
bool cd_hang_is_death(const cddp_verdict *verdict);
/* The first finding, of order or content, names some ranks that differ from the others. Either
** nobody waits, as the transport refused what they posted, or ranks wait in what all have posted
** and nothing else says why. NULL: there is none. */
const cddp_finding *cd_hang_parting(const cddp_verdict *verdict);
/* Whether a rank stands at the root of what the main wait waits for, or on its cycle, or is named
** by cd_hang_why; or is named by cd_hang_odd, and then no root is; or by one of the two above.
** Where nobody waits and nothing was found: whether the summary names its failure as the cause. */
bool cd_hang_is_culprit(const cddp_verdict *verdict, uint32_t rank);

/* Two runs hang alike when the first finding has the same invariant and the same ranks, and the
** same ranks wait, each in the same operation of the same group for the same peers. How their
** waits ended, texts and times do not count; of ranks that go round in circles, what they waited in
** when they were ended does not either. */
bool cd_hang_is_same(const cddp_verdict *a, const cddp_verdict *b);
/* Nobody waits in either; or the same ranks do, in the same operations for the same peers, and
** `root` is the culprit of both: of a rank that was killed here by somebody and there by a planted
** fault, whatever the rule. */
bool cd_hang_has_same_root(const cddp_verdict *a, const cddp_verdict *b, uint32_t root);

/* Where the transport of one refused what the other waits for, or lets pass: their first findings
** have the same invariant and the same ranks, and so has the first disagreement over an operation
** (I-ORDER), which is about the same operation of the same group. */
bool cd_hang_is_same_refusal(const cddp_verdict *a, const cddp_verdict *b);

/* What stays of the graph when ranks are renamed and ranks that do the same are left out: in which
** kinds of operations ranks wait, and for what kind of end. 0: nobody waits. */
uint64_t cd_hang_shape(const cddp_verdict *verdict);
