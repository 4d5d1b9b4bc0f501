/* SPDX-License-Identifier: Apache-2.0 */
/* The logging struct, whole: every field has the number or the text that it is to have (LOG-01…03).
** The world's clock is virtual, so that times are exact. */
#include "core/base/error.h"
#include "core/ddp/parts/logger.h"
#include "core/hooks/hook.h"
#include "tests/unit/core/ddp/fixture.h"

#include <inttypes.h>

/* ---- the logger alone ---- */

typedef struct moments {
    const char *name;
    uint64_t forward, backward, compute_end, comm_begin, comm_end;
    uint64_t sums[5]; /* samples, forward, backward compute, communication, overlap */
} moments;

TEST(logger, adds_up_the_times_of_an_iteration)
{
    static const moments rows[] = {
        {"communication ends behind backward", 10, 30, 70, 50, 95, {1, 20, 40, 45, 20}},
        {"communication ends before backward", 10, 30, 70, 50, 62, {1, 20, 40, 12, 12}},
        {"communication begins behind backward", 10, 30, 70, 80, 95, {1, 20, 40, 15, 0}},
        {"no communication", 10, 30, 70, 0, 0, {1, 20, 40, 0, 0}},
        {"no backward", 10, 0, 0, 0, 0, {0, 0, 0, 0, 0}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const moments *m = &rows[i];
        cd_test_row("%s", m->name);
        cd_logger log;
        cd_logger_init(&log, 100, NULL);
        cd_logger_begin_iteration(&log, 1);
        log.forward_begin_ns = m->forward;
        log.backward_begin_ns = m->backward;
        log.backward_compute_end_ns = m->compute_end;
        log.comm_begin_ns = m->comm_begin;
        log.comm_end_ns = m->comm_end;
        for (int twice = 0; twice < 2; twice++) cd_logger_end_iteration(&log);
        const uint64_t sums[5] = {log.sample_count, log.sum_forward_ns, log.sum_backward_compute_ns,
                                  log.sum_comm_ns, log.sum_overlap_ns};
        for (size_t k = 0; k < 5; k++) assert_int_equal(sums[k], m->sums[k]);
        /* Nothing is left of it. */
        cd_logger_begin_iteration(&log, 2);
        assert_int_equal(log.backward_begin_ns, 0);
        assert_int_equal(log.backward_compute_end_ns, 0);
        assert_int_equal(log.comm_begin_ns, 0);
        assert_int_equal(log.comm_end_ns, 0);
        cd_logger_fini(&log);
    }
}

TEST(logger, samples_the_first_ten_iterations_and_then_some)
{
    cd_logger log;
    cd_logger_init(&log, 7, NULL);
    char sampled[32] = "";
    for (uint64_t i = 1; i <= 22; i++) {
        cd_logger_begin_iteration(&log, i);
        sampled[i - 1] = log.is_sampling ? 'x' : '.';
    }
    assert_string_equal(sampled, "xxxxxxxxxx...x......x.");
    cd_logger_fini(&log);
}

static cddp_status writes_texts(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cd_logger log;
    cd_logger_init(&log, 7, allocator);
    cd_logger_text_begin(&log);
    for (int i = 0; i < 40; i++) cd_logger_text_append(&log, "%d, ", i);
    size_t first = cd_logger_text_cut(&log, 0), start = log.text_used;
    cd_logger_text_append(&log, "%s", "second");
    size_t second = cd_logger_text_cut(&log, start);
    bool is_whole = strlen(cd_logger_text_at(&log, first)) == 150 &&
                    strcmp(cd_logger_text_at(&log, second), "second") == 0;
    assert_string_equal(cd_logger_text_at(&log, log.text_used), "");
    cd_logger_fini(&log);
    return is_whole ? CDDP_OK : cd_fail(err, CDDP_E_NOMEM, "memory for a text");
}

TEST(logger, gives_a_shorter_text_where_memory_is_short) { cd_test_oom_loop(writes_texts, NULL); }

/* ---- the struct ---- */

static void check_number(const lane *l, const char *field, uint64_t got, uint64_t wanted)
{
    if (got != wanted)
        fprintf(stderr, "rank %u: %s is %" PRIu64 ", not %" PRIu64 "\n", l->r, field, got, wanted);
    CHECK(got == wanted);
}

static void check_text(const lane *l, const char *field, const char *got, const char *wanted)
{
    if (strcmp(got, wanted) != 0)
        fprintf(stderr, "rank %u: %s is \"%s\", not \"%s\"\n", l->r, field, got, wanted);
    CHECK(strcmp(got, wanted) == 0);
}

static void check_logging(lane *l, const cddp_ddp_logging *wanted)
{
    cddp_ddp_logging log = {.size = sizeof log};
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
#define NUMBER(field) check_number(l, #field, log.field, wanted->field)
#define WORDS(field) check_text(l, #field, log.field, wanted->field)
    NUMBER(world_size);
    NUMBER(rank);
    NUMBER(parameter_tensor_count);
    NUMBER(total_parameter_bytes);
    NUMBER(bucket_cap_bytes);
    NUMBER(first_bucket_bytes);
    NUMBER(iteration);
    NUMBER(unused_parameter_bytes);
    NUMBER(sample_rate);
    NUMBER(broadcast_buffers);
    NUMBER(find_unused_parameters);
    NUMBER(gradient_as_bucket_view);
    NUMBER(static_graph);
    NUMBER(has_rebuilt_buckets);
    NUMBER(can_set_static_graph);
    NUMBER(join_uneven_inputs);
    NUMBER(has_error);
    NUMBER(avg_forward_compute_ns);
    NUMBER(avg_backward_compute_ns);
    NUMBER(avg_backward_comm_ns);
    NUMBER(avg_backward_compute_comm_overlap_ns);
    NUMBER(growth_count);
    WORDS(backend_name);
    WORDS(comm_hook);
    WORDS(error);
    WORDS(dtypes);
    WORDS(bucket_sizes);
    WORDS(rebuilt_bucket_sizes);
    WORDS(rebuilt_per_bucket_param_indices);
    WORDS(prev_iteration_grad_ready_order_indices);
#undef NUMBER
#undef WORDS
}

/* What a wrapper with default options says of two parameters before its first forward. */
static cddp_ddp_logging two_parameters(const lane *l)
{
    return (cddp_ddp_logging){.size = sizeof(cddp_ddp_logging),
                              .world_size = l->w,
                              .rank = l->r,
                              .parameter_tensor_count = 2,
                              .total_parameter_bytes = 44,
                              .bucket_cap_bytes = 26214400,
                              .first_bucket_bytes = 1048576,
                              .sample_rate = 100,
                              .broadcast_buffers = true,
                              .backend_name = "sim",
                              .comm_hook = "",
                              .error = "",
                              .dtypes = "f32, f64",
                              .bucket_sizes = "24, 20",
                              .rebuilt_bucket_sizes = "",
                              .rebuilt_per_bucket_param_indices = "",
                              .prev_iteration_grad_ready_order_indices = ""};
}

static void pass(lane *l, uint64_t ns)
{
    CHECK_OK(l->rank->ops->compute(l->rank, ns, "test", &l->err));
}

/* Rank 1 computes forward twice as long as rank 0, which waits for it. */
static void timed_iteration(lane *l, uint64_t forward)
{
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
    pass(l, forward * (1 + l->r));
    CHECK_OK(cddp_ddp_forward_end(l->ddp, l->reachable, &l->err));
    pass(l, 7);
    lane_grad(l, 1, 1.0);
    pass(l, 5);
    lane_grad(l, 0, 1.0);
    pass(l, 3);
    lane_end(l);
    if (l->r == 0) pass(l, 3); /* rank 1 ended so much later */
}

LAB(logging, has_every_number_and_text, 2)
{
    l->options.sample_rate = 4;
    lane_add(l, "a", CDDP_F32, 5);
    lane_add(l, "b", CDDP_F64, 3);
    lane_wrap(l);
    cddp_ddp_logging wanted = two_parameters(l);
    wanted.sample_rate = 4;
    check_logging(l, &wanted);
    /* Sampled are the first ten and the twelfth. */
    pass(l, 1);
    for (int i = 1; i <= 13; i++) timed_iteration(l, i == 12 ? 1200 : i > 10 ? 5000 : 100);
    wanted.iteration = 13;
    wanted.has_rebuilt_buckets = true;
    wanted.growth_count = 1;
    wanted.rebuilt_bucket_sizes = "24, 20";
    wanted.rebuilt_per_bucket_param_indices = "1, 0";
    wanted.prev_iteration_grad_ready_order_indices = "1 0";
    wanted.avg_forward_compute_ns = l->r == 0 ? 200 : 400;
    wanted.avg_backward_compute_ns = 12;
    wanted.avg_backward_comm_ns = l->r == 0 ? 205 : 8;
    wanted.avg_backward_compute_comm_overlap_ns = 5;
    check_logging(l, &wanted);
}

LAB(logging, has_every_option, 2)
{
    l->options.find_unused_parameters = true;
    l->options.gradient_as_bucket_view = true;
    l->options.broadcast_buffers = false;
    l->options.bucket_cap_mb = 0.001;
    l->options.first_bucket_bytes = 20;
    lane_add(l, "a", CDDP_F32, 5);
    lane_add(l, "b", CDDP_F64, 3);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("allreduce"), NULL, NULL, &l->err));
    cddp_ddp_logging wanted = two_parameters(l);
    wanted.find_unused_parameters = wanted.gradient_as_bucket_view = true;
    wanted.broadcast_buffers = false;
    wanted.bucket_cap_bytes = 1048;
    wanted.first_bucket_bytes = 1048; /* a cap that was given is that of all buckets (BKT-12) */
    wanted.comm_hook = "allreduce";
    wanted.can_set_static_graph = true; /* as far as anybody knows */
    check_logging(l, &wanted);
    lane_reach(l, 1);
    for (int i = 0; i < 2; i++) {
        lane_forward(l);
        lane_grad(l, 0, 1.0);
        lane_end(l);
    }
    wanted.iteration = 2;
    wanted.unused_parameter_bytes = 24;
    wanted.prev_iteration_grad_ready_order_indices = "0";
    check_logging(l, &wanted);
    l->options.static_graph = true;
    l->options.find_unused_parameters = false;
    lane_unwrap(l);
    lane_wrap(l);
    cddp_ddp_logging again = two_parameters(l);
    again.static_graph = again.gradient_as_bucket_view = true;
    again.broadcast_buffers = false;
    again.bucket_cap_bytes = again.first_bucket_bytes = 1048;
    check_logging(l, &again);
}

TEST_MAIN()
