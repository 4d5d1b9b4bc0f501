/* SPDX-License-Identifier: Apache-2.0 */
/* What the verifier says of itself: one table for who says it and for who refuses to expect it. */
#pragma once

typedef enum cd_own_message {
#define CD_OWN_MESSAGE(constant, words) CD_OWN_##constant,
#include "core/plan/own_messages.def"
    CD_OWN_COUNT
} cd_own_message;

const char *cd_own_message_get(cd_own_message message);
