/* SPDX-License-Identifier: Apache-2.0 */
/* Groups and operations of a simulated world, as a backend needs them.
**
** A group is one cd_comm that its members share, and one cd_member per rank. The k-th collective of
** a group is one cd_coll with one cd_part per member; send and receive are cd_colls of two parts. A
** part is the work handle.
**
** Lifetime   members live from open to close, parts from post to release.
** Threads    the world's.
** Errors     messages name the group and the operation.
*/
#pragma once
#include "cddp/backend.h"
#include "sim/state.h"

typedef struct cd_comm cd_comm;
typedef struct cd_member cd_member;
typedef struct cd_coll cd_coll;
typedef struct cd_part cd_part;
typedef struct cd_message cd_message;

cddp_status cd_member_open(cddp_rank *rank, const cddp_group_spec *spec, cd_member **member,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_member_close(cd_member *member); /* accepts NULL */
cddp_status cd_member_post(cd_member *member, const cddp_collective *what, cd_part **part,
                           cddp_error *err) CDDP_MUST_CHECK;
/* Fails every operation of the group on every member. */
cddp_status cd_member_abort(cd_member *member, const char *reason, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_part_test(cd_part *part, bool *done, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_part_wait(cd_part *part, uint64_t timeout_ns, cddp_error *err) CDDP_MUST_CHECK;
/* From now on parts keep a digest of what they read. */
void cd_member_observe(cd_member *member);
/* Of the input, as it was when it was first read; 0: not known. */
uint64_t cd_part_digest_read(const cd_part *part);
void cd_part_release(cd_part *part);
