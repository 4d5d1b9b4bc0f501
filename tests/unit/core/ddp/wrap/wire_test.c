/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that sends what no correct peer sends: every rank that reads it reports it, and nothing is
** read or allocated by a number that was not checked.
**
** The backend is the simulator's with another post: one element of one operand of one rank is
** overwritten on its way.
*/
#include "tests/unit/core/ddp/fixture.h"

#include <math.h>

typedef struct forgery {
    const char *name;
    void (*body)(lane *l);
    uint32_t liar; /* the rank */
    cddp_op op;
    cddp_dtype dtype;
    int nth;        /* of the liar's operations of this kind, from 0 */
    int64_t place;  /* the element of the operand */
    double element; /* what is written there */
    cddp_status status;
    const char *words;
} forgery;

static const forgery *planted;
static int seen;
static void *liars_group;
static cddp_backend honest;

static void overwrite(const cddp_tensor *t)
{
    const int64_t i64 = (int64_t)planted->element;
    const int32_t i32 = t->dtype == CDDP_I32 ? (int32_t)planted->element : 0;
    const float f32 = (float)planted->element;
    const void *bytes = t->dtype == CDDP_I64   ? (const void *)&i64
                        : t->dtype == CDDP_I32 ? (const void *)&i32
                                               : (const void *)&f32;
    const size_t element = cddp_dtype_bytes(t->dtype);
    memcpy((char *)t->storage + (size_t)(t->offset + planted->place) * element, bytes, element);
}

static cddp_status open_group(const cddp_backend *backend, cddp_rank *rank,
                              const cddp_group_spec *spec, void **group, cddp_error *err)
{
    cddp_status status = honest.open(backend, rank, spec, group, err);
    if (status == CDDP_OK && rank->rank == planted->liar) liars_group = *group;
    return status;
}

static cddp_status post(void *group, const cddp_collective *c, void **work, cddp_error *err)
{
    const cddp_tensor *sent = c->op == CDDP_OP_BROADCAST ? &c->output : &c->input;
    const bool is_meant =
        group == liars_group && c->op == planted->op && sent->dtype == planted->dtype;
    if (is_meant && seen++ == planted->nth) overwrite(sent);
    return honest.post(group, c, work, err);
}

static void lie(cddp_backend *backend)
{
    honest = *backend;
    backend->open = open_group;
    backend->post = post;
}

static void check_refused(lane *l, cddp_status status)
{
    if (status == planted->status && strstr(l->err.message, planted->words) != NULL) return;
    fprintf(stderr, "rank %u: %s: \"%s\"\n", l->r, cddp_status_text(status), l->err.message);
    abort();
}

static void run_all(const forgery *rows, size_t count, bool has_no_minimum)
{
    for (size_t i = 0; i < count; i++) {
        cd_test_row("%s", rows[i].name);
        planted = &rows[i];
        seen = 0;
        lab b = {.world_size = 2,
                 .body = rows[i].body,
                 .wrap_backend = lie,
                 .has_no_minimum = has_no_minimum};
        lab_run(&b);
        assert_true(seen > rows[i].nth);
    }
}

/* ---- sparse gradients ---- */

static void sparse_body(lane *l)
{
    static int64_t rows[2][2];
    static float values[2][4];
    const int64_t sizes[2] = {2, 2};
    cddp_parameter *p = lane_add(l, "emb.weight", CDDP_F32, 20);
    p->expect_sparse = true;
    p->tensor.dim_count = 2;
    p->tensor.sizes[0] = 10, p->tensor.sizes[1] = 2;
    p->tensor.strides[0] = 2, p->tensor.strides[1] = 1;
    lane_wrap(l);
    for (int again = 0; again < 2; again++) { /* the second time nobody lies */
        rows[l->r][0] = l->r, rows[l->r][1] = 4;
        for (int i = 0; i < 4; i++) values[l->r][i] = 1.0f;
        lane_forward(l);
        l->grads[0].kind = CDDP_GRAD_SPARSE;
        l->grads[0].value = cddp_tensor_of(l->device, values[l->r], 0, CDDP_F32, sizes, 2);
        l->grads[0].rows = (cddp_rows){l->device, rows[l->r], 0, 2};
        cddp_status status = lane_try_hook(l, 0);
        cddp_status end = cddp_ddp_backward_end(l->ddp, &l->err);
        if (again == 0)
            check_refused(l, status != CDDP_OK ? status : end);
        else
            CHECK(status == CDDP_OK && end == CDDP_OK && l->grads[0].rows.count == 3);
    }
}

#define SPARSE(nth, place, element) \
    sparse_body, 1, CDDP_OP_ALLGATHER, CDDP_I64, nth, place, element,
TEST(wire, counts_and_rows_of_sparse_gradients_are_checked)
{
    static const forgery rows[] = {
        /* clang-format off */
        {"less than none", SPARSE(0, 0, -1) CDDP_E_CORRUPT, "rank 1 sent -1 as its number of rows of 'emb.weight'"},
        {"the largest number", SPARSE(0, 0, 9e18) CDDP_E_CORRUPT, "rank 1 sent 9000000000000000000 as its number"},
        {"a sum that overflows", SPARSE(0, 0, 2e17) CDDP_E_CORRUPT, "rank 1 sent 200000000000000000 as its number"},
        {"a row behind the last", SPARSE(1, 0, 10) CDDP_E_STATE, "row 10 of 'emb.weight', which has 10 rows"},
        {"a row before the first", SPARSE(1, 1, -1) CDDP_E_STATE, "row -1 of 'emb.weight', which has 10 rows"},
        /* clang-format on */
    };
    run_all(rows, sizeof rows / sizeof rows[0], false);
}

/* ---- join ---- */

static void begin_join(lane *l, bool throws)
{
    cddp_join_options o = cddp_join_options_default();
    o.divide_by_initial_world_size = false;
    o.throw_on_early_termination = throws;
    lane_add(l, "p", CDDP_F64, 2); /* so that f32 is join's */
    lane_wrap(l);
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &o, &l->err));
}

/* Active ranks read how many they are. */
static void active_body(lane *l)
{
    begin_join(l, false);
    lane_forward(l);
    lane_accumulate(l, 0, 1.0);
    check_refused(l, lane_try_hook(l, 0));
    check_refused(l, cddp_ddp_backward_end(l->ddp, &l->err));
}
static void early_body(lane *l)
{
    begin_join(l, true);
    check_refused(l, cddp_ddp_forward_begin(l->ddp, true, &l->err));
}
/* Ranks that joined: nobody is left, and somebody has to send. */
static void end_body(lane *l)
{
    begin_join(l, false);
    check_refused(l, cddp_ddp_join_end(l->ddp, &l->err));
}

#define JOIN(body, dtype, element) body, 1, CDDP_OP_ALLREDUCE, dtype, 0, 0, element, CDDP_E_CORRUPT
TEST(wire, numbers_of_join_are_checked)
{
    const forgery rows[] = {
        {"more ranks than there are", JOIN(active_body, CDDP_F32, 7),
         "join: the number of ranks is 8, in a group of 2"},
        {"less than none", JOIN(active_body, CDDP_F32, -3), "join: the number of ranks is -2"},
        {"half a rank", JOIN(active_body, CDDP_F32, 0.5), "join: the number of ranks is 1.5"},
        {"no number", JOIN(active_body, CDDP_F32, NAN), "join: the number of ranks is"},
        {"far more", JOIN(active_body, CDDP_F32, 1e30), "join: the number of ranks is 1e+30"},
        {"too many ran out", JOIN(early_body, CDDP_I32, 3), "join: the number of ranks is 3"},
        {"less than none ran out", JOIN(early_body, CDDP_I32, -1), "the number of ranks is -1"},
        {"joined, and too many go on", JOIN(end_body, CDDP_F32, 9), "the number of ranks is 9"},
        {"a sender that is not there", JOIN(end_body, CDDP_I32, 2),
         "join: rank 2 is to broadcast buffers, in a group of 2"},
    };
    run_all(rows, sizeof rows / sizeof rows[0], false);
}

/* ---- the rebuilt layout ---- */

static void rebuild_body(lane *l)
{
    lane_add(l, "a", CDDP_F64, 2);
    lane_add(l, "b", CDDP_F64, 2);
    l->options.bucket_cap_mb = 1e-6;
    lane_wrap(l);
    lane_iterate(l, 1.0);
    check_refused(l, cddp_ddp_forward_begin(l->ddp, true, &l->err));
    CHECK(cddp_ddp_backward_end(l->ddp, &l->err) == planted->status); /* leaves the failure */
}

#define LAYOUT(nth, place, element) \
    rebuild_body, 0, CDDP_OP_BROADCAST, CDDP_I32, nth, place, element, CDDP_E_CORRUPT
TEST(wire, a_rebuilt_layout_is_checked)
{
    static const forgery rows[] = {
        {"a variable that is not there", LAYOUT(0, 0, 2), "sent variable 2 in rebuilt bucket 0"},
        {"a variable twice", LAYOUT(0, 0, 0), "sent variable 0 in rebuilt bucket 1"},
        {"a negative variable", LAYOUT(0, 1, -1), "sent variable -1 in rebuilt bucket 1"},
        {"no bucket", LAYOUT(0, 2, 0), "rank 0 sent 0 rebuilt buckets for 2 parameters"},
        {"too many buckets", LAYOUT(0, 2, 3), "rank 0 sent 3 rebuilt buckets for 2 parameters"},
        {"an empty bucket", LAYOUT(1, 0, 0), "sent size 0 for rebuilt bucket 0 of 2"},
        {"a bucket too long", LAYOUT(1, 1, 2), "sent size 2 for rebuilt bucket 1 of 2"},
    };
    run_all(rows, sizeof rows / sizeof rows[0], false);
}

/* ---- the comparison of models ---- */

static void compare_body(lane *l)
{
    lane_add(l, "a", CDDP_F64, 2 + l->r);
    check_refused(l, lane_try_wrap(l));
}

TEST(wire, the_length_of_a_description_is_checked)
{
#define CARD(element, status) compare_body, 1, CDDP_OP_ALLGATHER, CDDP_I64, 0, 2, element, status
    static const forgery rows[] = {
        {"less than none", CARD(-5, CDDP_E_CORRUPT), "rank 1 describes its own in -5 bytes"},
        {"longer than it is", CARD(1e5, CDDP_E_MISMATCH), "rank 1 has parameter 'a' f64 [3]"},
        /* cut to 64 MiB, which this world has not */
        {"all memory", CARD(9e18, CDDP_E_NOMEM), "no memory for a control vector of 67108865 u8"},
    };
    run_all(rows, sizeof rows / sizeof rows[0], true);
}

TEST_MAIN()
