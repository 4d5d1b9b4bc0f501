/* SPDX-License-Identifier: Apache-2.0 */
/* The enums that events carry: each is generated from its words in cddp/events.def.
**
** Headers that use one give it the name that programs know: cddp_rank_end is
** cddp_event_enum_end.
*/
#pragma once

#define CDDP_WORD(constant, word) CDDP_##constant,
#define CDDP_EVENT_ENUM(name, words) \
    typedef enum cddp_event_enum_##name{words} cddp_event_enum_##name;
#include "cddp/events.def"
#undef CDDP_WORD
