/* SPDX-License-Identifier: Apache-2.0 */
/* The harness itself: each TEST runs once, in the order of definition. Each is true when run
** alone. */
#include "tests/support/order.h"

static int last;

void order_follows(int place)
{
    assert_true(last < place);
    last = place;
}

/* A TEST inside a macro stands where the macro is used. */
TEST_OF_A_MACRO(order, a_test_made_by_a_macro_runs_first) { order_follows(1); }

TEST(order, the_second_test_runs_second) { order_follows(2); }

#ifdef CDDP_NEVER_DEFINED
TEST(order, what_is_compiled_out_is_absent) { fail_msg("it is registered"); }
#endif

TEST(order, a_name_that_sorts_before_the_others_keeps_its_place) { order_follows(3); }

TEST_MAIN()
