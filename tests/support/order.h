/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of the harness's own test share. */
#pragma once
#include "tests/support/test.h"

#define TEST_OF_A_MACRO(subject, claim) TEST(subject, claim)

void order_follows(int place); /* asserts that only tests of smaller places ran so far */
