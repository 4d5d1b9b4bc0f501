/* SPDX-License-Identifier: Apache-2.0 */
/* Consecutive blocks of ranks as groups: the ranks of one node, the levels of a hierarchical
** average. */
#pragma once
#include "cddp/comm.h"

/* The block of `size` ranks that this rank is in; parent's size is a multiple of it. Collective
** over the block: the group's name is made of purpose, size and the first rank, so that blocks of
** one parent never share one. */
cddp_status cd_block_group_create(const cddp_group *parent, const char *purpose, uint32_t size,
                                  cddp_group **group, cddp_error *err);
