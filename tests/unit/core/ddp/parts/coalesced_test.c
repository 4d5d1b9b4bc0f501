/* SPDX-License-Identifier: Apache-2.0 */
/* Coalesced collectives through their public header: what arrives, in how many operations, and what
** is refused. */
#include "cddp/coalesced.h"

#include "tests/unit/core/ddp/fixture.h"

#define TENSORS 5

static const int64_t numels[TENSORS] = {4, 1, 6, 0, 3};
static const cddp_dtype dtypes[TENSORS] = {CDDP_F32, CDDP_F64, CDDP_F32, CDDP_F32, CDDP_F32};

static void fill(lane *l, cddp_tensor *tensors)
{
    for (size_t i = 0; i < TENSORS; i++)
        CHECK_OK(l->device->fill(&tensors[i], 10.0 * (double)i + l->r, NULL, &l->err));
}

static void make(lane *l, cddp_tensor *tensors)
{
    for (size_t i = 0; i < TENSORS; i++) tensors[i] = lane_tensor(l, dtypes[i], &numels[i], 1, 0.0);
    fill(l, tensors);
}

/* Every element has this value. */
static bool is_all(const cddp_tensor *t, double wanted)
{
    for (int64_t k = 0; k < cddp_tensor_numel(t); k++) {
        const double x = t->dtype == CDDP_F64 ? ((const double *)t->storage)[k]
                                              : (double)((const float *)t->storage)[k];
        if (x != wanted) return false;
    }
    return true;
}

static void body(lane *l)
{
    cddp_tensor tensors[TENSORS];
    make(l, tensors);
    lane_mark(l);
    CHECK_OK(cddp_group_broadcast_coalesced(l->group, tensors, TENSORS, 1, 0, &l->err));
    CHECK(lane_posts(l, CDDP_OP_BROADCAST) == 2); /* one per dtype */
    for (size_t i = 0; i < TENSORS; i++) CHECK(is_all(&tensors[i], 10.0 * (double)i + 1));
    fill(l, tensors);
    lane_mark(l);
    CHECK_OK(cddp_group_allreduce_coalesced(l->group, tensors, TENSORS, CDDP_RED_SUM, 0, &l->err));
    CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == 2);
    for (size_t i = 0; i < TENSORS; i++) CHECK(is_all(&tensors[i], 30.0 * (double)i + 3));
    fill(l, tensors);
    lane_mark(l);
    CHECK_OK(cddp_group_allreduce_coalesced(l->group, tensors, TENSORS, CDDP_RED_MAX, 16, &l->err));
    CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) >= 3); /* small buckets */
    for (size_t i = 0; i < TENSORS; i++) CHECK(is_all(&tensors[i], 10.0 * (double)i + 2));
    fill(l, tensors);
    const uint32_t roots[TENSORS] = {2, 0, 1, 2, 0};
    lane_mark(l);
    CHECK_OK(cddp_group_broadcast_each(l->group, tensors, roots, TENSORS, &l->err));
    CHECK(lane_posts(l, CDDP_OP_BROADCAST) == TENSORS - 1);
    for (size_t i = 0; i < TENSORS; i++) CHECK(is_all(&tensors[i], 10.0 * (double)i + roots[i]));
    CHECK_OK(cddp_group_broadcast_coalesced(l->group, NULL, 0, 0, 0, &l->err));
    for (size_t i = 0; i < TENSORS; i++) lane_release(l, &tensors[i]);
}

TEST(coalesced, tensors_travel_together_and_arrive_one_by_one) /* INI-12, ZRO-02 */
{
    lab_of(3, body, NULL);
}

/* Transposed, and with gaps: what is no straight copy. */
static void strides_body(lane *l)
{
    const int64_t twelve = 12, sizes[2] = {3, 2};
    cddp_tensor room = lane_tensor(l, CDDP_F32, &twelve, 1, -1.0), views[2];
    views[0] = cddp_tensor_of(l->device, room.storage, 0, CDDP_F32, sizes, 2);
    views[0].strides[0] = 1;
    views[0].strides[1] = 3;
    views[1] = cddp_tensor_of(l->device, room.storage, 6, CDDP_F32, &sizes[0], 1);
    views[1].strides[0] = 2;
    for (size_t i = 0; i < 2; i++)
        CHECK_OK(l->device->fill(&views[i], (double)(i + 1) * (l->r + 1), NULL, &l->err));
    CHECK_OK(cddp_group_allreduce_coalesced(l->group, views, 2, CDDP_RED_SUM, 0, &l->err));
    const float *x = room.storage;
    for (int k = 0; k < 6; k++) CHECK(x[k] == 3.0f);
    for (int k = 6; k < 12; k++) CHECK(x[k] == (k % 2 == 0 ? 6.0f : -1.0f));
    for (int k = 0; k < 6; k++) ((float *)room.storage)[k] = (float)(k + 10 * (int)l->r);
    CHECK_OK(cddp_group_broadcast_each(l->group, views, &(uint32_t){1}, 1, &l->err));
    for (int k = 0; k < 6; k++) CHECK(x[k] == (float)(k + 10));
    CHECK_FAILS(cddp_group_broadcast_each(l->group, &views[1], &(uint32_t){1}, 1, &l->err),
                CDDP_E_ARG, "not contiguous");
    lane_release(l, &room);
}

TEST(coalesced, views_keep_their_strides_and_what_lies_between) { lab_of(2, strides_body, NULL); }

#define MANY 200

static void many_body(lane *l)
{
    static uint32_t roots[MANY];
    cddp_tensor tensors[MANY];
    const int64_t one = 1;
    for (uint32_t i = 0; i < MANY; i++) {
        tensors[i] = lane_tensor(l, CDDP_F32, &one, 1, l->r * 1000.0 + i);
        roots[i] = i % l->w;
    }
    CHECK_OK(cddp_group_broadcast_each(l->group, tensors, roots, MANY, &l->err));
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK(is_all(&tensors[i], (i % l->w) * 1000.0 + i));
        lane_release(l, &tensors[i]);
    }
}

TEST(coalesced, more_tensors_than_are_under_way_at_once) { lab_of(3, many_body, NULL); }

static void misuse_body(lane *l)
{
    const int64_t two = 2;
    cddp_tensor t[2] = {lane_tensor(l, CDDP_F32, &two, 1, 1.0), {0}};
    const uint32_t roots[1] = {9};
    cddp_group *g = l->group;
    CHECK_FAILS(cddp_group_broadcast_coalesced(NULL, t, 1, 0, 0, &l->err), CDDP_E_ARG, "group");
    CHECK_FAILS(cddp_group_broadcast_coalesced(g, NULL, 1, 0, 0, &l->err), CDDP_E_ARG, "NULL");
    CHECK_FAILS(cddp_group_broadcast_coalesced(g, t, 1, 2, 0, &l->err), CDDP_E_ARG, "root 2");
    CHECK_FAILS(cddp_group_allreduce_coalesced(g, t, 2, CDDP_RED_SUM, 0, &l->err), CDDP_E_ARG,
                "tensor 1 of 2 is no tensor");
    CHECK_FAILS(cddp_group_broadcast_each(g, t, NULL, 1, &l->err), CDDP_E_ARG, "the roots");
    CHECK_FAILS(cddp_group_broadcast_each(g, t, roots, 1, &l->err), CDDP_E_ARG, "root 9");
    t[1] = t[0];
    t[1].storage = NULL;
    CHECK_FAILS(cddp_group_allreduce_coalesced(g, t, 2, CDDP_RED_SUM, 0, &l->err), CDDP_E_ARG,
                "tensor 1 of 2 has no storage");
    lane_release(l, &t[0]);
}

TEST(coalesced, misuse_is_an_error_in_words) { lab_of(2, misuse_body, NULL); }

TEST_MAIN()
