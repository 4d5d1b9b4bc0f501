/* SPDX-License-Identifier: Apache-2.0 */
/* Both layouts: every element has one owner, gathered shards give the parameters again. */
#include "core/fsdp/layout.h"

#include "cddp/device.h"
#include "tests/support/test.h"

#include <string.h>

#define MEMBERS 4
#define NUMEL_MAX 512

static const struct {
    const char *name;
    uint32_t dims;
    int64_t sizes[2];
} shapes[MEMBERS] = {{"w", 2, {7, 5}}, {"b", 1, {7}}, {"small", 2, {1, 3}}, {"v", 2, {17, 2}}};

static void make(cd_fsdp_layout *l, cd_fsdp_member *members, cddp_fsdp_layout kind, uint32_t world,
                 int64_t alignment)
{
    *l =
        (cd_fsdp_layout){.kind = kind, .world = world, .member_count = MEMBERS, .members = members};
    for (size_t i = 0; i < MEMBERS; i++)
        members[i] = (cd_fsdp_member){.name = shapes[i].name,
                                      .like = cddp_tensor_of(cddp_device_cpu(), NULL, 0, CDDP_F32,
                                                             shapes[i].sizes, shapes[i].dims)};
    cd_fsdp_layout_place(l, alignment);
}

static void assert_one_owner(const cd_fsdp_layout *l)
{
    for (size_t i = 0; i < MEMBERS; i++) {
        int64_t next = 0;
        for (uint32_t r = 0; r < l->world; r++) {
            int64_t offset = 0;
            const cd_range part = cd_fsdp_layout_part(l, i, r, &offset);
            if (cd_range_numel(part) == 0) continue;
            assert_int_equal(part.first, next);
            assert_true(offset >= 0 && offset + cd_range_numel(part) <= l->share);
            next = part.end;
        }
        assert_int_equal(next, l->members[i].numel);
    }
}

/* Elements of each shard are of one member, or in one gap. */
static void assert_gaps(const cd_fsdp_layout *l)
{
    for (uint32_t r = 0; r < l->world; r++) {
        int counts[NUMEL_MAX] = {0};
        for (size_t i = 0; i < MEMBERS; i++) {
            int64_t offset = 0;
            const int64_t numel = cd_range_numel(cd_fsdp_layout_part(l, i, r, &offset));
            for (int64_t e = 0; e < numel; e++) counts[offset + e]++;
        }
        for (cd_fsdp_gap gap = {.index = 0}; cd_fsdp_layout_next_gap(l, r, &gap);)
            for (int64_t e = 0; e < gap.numel; e++) counts[gap.offset + e]++;
        for (int64_t e = 0; e < l->share; e++) assert_int_equal(counts[e], 1);
    }
}

/* Whole members → shards → whole members, and gaps are zero. */
static void assert_round_trip(const cd_fsdp_layout *l)
{
    float whole[NUMEL_MAX], shards[NUMEL_MAX], again[NUMEL_MAX];
    cddp_error err = CDDP_ERROR_INIT;
    const int64_t all = l->share * (int64_t)l->world;
    assert_true(all <= NUMEL_MAX && l->full_numel <= NUMEL_MAX);
    for (int64_t e = 0; e < NUMEL_MAX; e++) {
        whole[e] = (float)e + 1;
        shards[e] = again[e] = -1;
    }
    const cddp_device *cpu = cddp_device_cpu();
    const cddp_tensor from = cddp_tensor_of(cpu, whole, 0, CDDP_F32, &l->full_numel, 1),
                      to = cddp_tensor_of(cpu, again, 0, CDDP_F32, &l->full_numel, 1),
                      packed = cddp_tensor_of(cpu, shards, 0, CDDP_F32, &all, 1);
    assert_ok(cd_fsdp_layout_fill_gaps(l, &packed, &err), &err);
    assert_ok(cd_fsdp_layout_pack(l, &packed, &from, &err), &err);
    assert_ok(cd_fsdp_layout_unpack(l, &packed, &to, &err), &err);
    if (l->kind == CDDP_FSDP_ROWS) {
        assert_memory_equal(whole, again, (size_t)l->full_numel * sizeof(float));
        for (int64_t e = 0; e < all; e++) assert_true(shards[e] >= 0);
        return;
    }
    int64_t gaps = 0;
    for (int64_t e = 0; e < all; e++) gaps += shards[e] == 0;
    int64_t members = 0;
    for (size_t i = 0; i < MEMBERS; i++) members += l->members[i].numel;
    assert_int_equal(gaps, all - members);
}

TEST(layout, gives_every_element_one_owner)
{
    for (uint32_t world = 1; world <= 9; world++) {
        for (int kind = 0; kind < 3; kind++) {
            cd_fsdp_layout l;
            cd_fsdp_member members[MEMBERS];
            cd_test_row("W %u, %s", world,
                        kind == 0   ? "flat"
                        : kind == 1 ? "flat, aligned"
                                    : "rows");
            make(&l, members, kind < 2 ? CDDP_FSDP_FLAT : CDDP_FSDP_ROWS, world, kind == 1 ? 4 : 1);
            assert_one_owner(&l);
            assert_gaps(&l);
            assert_round_trip(&l);
        }
    }
}

TEST(layout, aligns_parameters) /* FPM-04 */
{
    cd_fsdp_layout l;
    cd_fsdp_member members[MEMBERS];
    make(&l, members, CDDP_FSDP_FLAT, 3, 4);
    const int64_t wanted[] = {0, 36, 44, 48};
    for (size_t i = 0; i < MEMBERS; i++) assert_int_equal(members[i].offset, wanted[i]);
    assert_int_equal(l.numel, 48 + 34); /* alignment counts in n */
    assert_int_equal(l.share, 28);
}

TEST(layout, cuts_rows_of_each_parameter) /* FS2-01 */
{
    cd_fsdp_layout l;
    cd_fsdp_member members[MEMBERS];
    int64_t offset = 0;
    make(&l, members, CDDP_FSDP_ROWS, 3, 1);
    /* ⌈7/3⌉·5 + ⌈7/3⌉ + 1·3 + ⌈17/3⌉·2 */
    assert_int_equal(l.share, 15 + 3 + 3 + 12);
    const cd_range last = cd_fsdp_layout_part(&l, 0, 2, &offset);
    assert_true(last.first == 30 && last.end == 35 && offset == 0);
    const cd_range none = cd_fsdp_layout_part(&l, 2, 1, &offset);
    assert_int_equal(cd_range_numel(none), 0);
    const cd_range uneven = cd_fsdp_layout_part(&l, 3, 2, &offset);
    assert_true(uneven.first == 24 && uneven.end == 34 && offset == 21);
}

TEST(layout, has_a_digest_of_shapes_and_cut)
{
    cd_fsdp_layout l;
    cd_fsdp_member members[MEMBERS];
    make(&l, members, CDDP_FSDP_FLAT, 3, 1);
    const uint64_t digest = cd_fsdp_layout_digest(&l);
    make(&l, members, CDDP_FSDP_FLAT, 3, 1);
    assert_true(digest == cd_fsdp_layout_digest(&l));
    make(&l, members, CDDP_FSDP_FLAT, 4, 1);
    assert_true(digest != cd_fsdp_layout_digest(&l));
    make(&l, members, CDDP_FSDP_ROWS, 3, 1);
    assert_true(digest != cd_fsdp_layout_digest(&l));
    make(&l, members, CDDP_FSDP_FLAT, 3, 1);
    members[1].like.sizes[0] = 6;
    assert_true(digest != cd_fsdp_layout_digest(&l));
}

/* Ranks compare it: what it leaves out may differ between them. */
TEST(layout, has_a_digest_that_tells_every_member_apart)
{
    enum { NAME, DTYPE, DIMS, LAST_SIZE, OFFSET, SHARE, CHANGES };
    cd_fsdp_layout l;
    cd_fsdp_member members[MEMBERS];
    make(&l, members, CDDP_FSDP_FLAT, 3, 1);
    const uint64_t digest = cd_fsdp_layout_digest(&l);
    for (size_t i = 0; i < l.member_count; i++)
        for (int change = 0; change < CHANGES; change++) {
            cd_test_row("member %zu, change %d", i, change);
            make(&l, members, CDDP_FSDP_FLAT, 3, 1);
            cddp_tensor *like = &members[i].like;
            if (change == NAME) members[i].name = "another";
            if (change == DTYPE) like->dtype = CDDP_F64;
            if (change == DIMS) like->dim_count--;
            if (change == LAST_SIZE) like->sizes[like->dim_count - 1]++;
            if (change == OFFSET) members[i].offset++;
            if (change == SHARE) l.share++;
            assert_true(digest != cd_fsdp_layout_digest(&l));
        }
}

TEST_MAIN()
