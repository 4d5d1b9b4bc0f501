/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/turns.h"
#include "tests/support/test.h"

TEST(turns, go_to_all_in_order_and_then_to_whom_something_was_sent)
{
    enum { PARTS = 200 };
    static _Alignas(64) unsigned char block[4096];
    cd_memory memory;
    cd_turns turns;
    uint32_t part = 0;
    cd_memory_init(&memory, block, sizeof block);
    assert_true(cd_turns_init(&turns, &memory, PARTS));
    for (uint32_t i = 0; i < PARTS; i++) {
        assert_true(cd_turns_next(&turns, &part));
        assert_int_equal(part, i);
        if (i == 130) cd_turns_add(&turns, 3), cd_turns_add(&turns, 64), cd_turns_add(&turns, 199);
        /* its own turn goes on by itself */
        if (i == 131) cd_turns_add(&turns, 130), cd_turns_add(&turns, 131);
    }
    assert_true(cd_turns_next(&turns, &part) && part == 3);
    cd_turns_add(&turns, 2); /* comes in the next round */
    assert_true(cd_turns_next(&turns, &part) && part == 64);
    assert_true(cd_turns_next(&turns, &part) && part == 130);
    assert_true(cd_turns_next(&turns, &part) && part == 2);
    assert_false(cd_turns_next(&turns, &part));
    cd_turns_add(&turns, 199);
    assert_true(cd_turns_next(&turns, &part) && part == 199);
    assert_false(cd_turns_next(&turns, &part));
    cd_turns_fini(&turns);
    assert_int_equal(memory.live_bytes, 0);
    cd_memory_fini(&memory);
}

TEST_MAIN()
