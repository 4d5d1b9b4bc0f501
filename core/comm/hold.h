/* SPDX-License-Identifier: Apache-2.0 */
/* Who keeps a pointer to a group for long holds it. A held group that is destroyed gives back its
** transport, and its record stays until nobody holds it: calls on it fail in words.
**
** Lifetime   hold → let_go, once each. Both accept NULL.
*/
#pragma once
#include "cddp/comm.h"

void cd_group_hold(cddp_group *group);
void cd_group_let_go(cddp_group *group);
