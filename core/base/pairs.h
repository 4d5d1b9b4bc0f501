/* SPDX-License-Identifier: Apache-2.0 */
/* Reads options that are written "key=value,key=value".
**
** Errors     a pair without '=' or longer than a pair may be is refused; what keys there are, and
**            whether one may come twice, whoever takes them says.
*/
#pragma once
#include "cddp/status.h"

#define CD_PAIR_BYTES 256

typedef cddp_status cd_pair_take(void *self, const char *key, const char *value, cddp_error *err);
/* Gives each pair to take, in order. text: NULL is "". owner: in messages, "comm hook powersgd". */
cddp_status cd_pairs_read(const char *owner, const char *text, cd_pair_take *take, void *self,
                          cddp_error *err) CDDP_MUST_CHECK;
