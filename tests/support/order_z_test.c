/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a second file in one executable follow those of the first by the names of the files. */
#include "tests/support/order.h"

TEST(order, a_second_file_comes_after_the_first) { order_follows(4); }
