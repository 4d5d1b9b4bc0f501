/* SPDX-License-Identifier: Apache-2.0 */
/* Compositions over the simulator: the battery, planted misuse that check: must name, faults that
** repeat themselves, texts that are refused, memory of a steady state. */
#include "backends/compose/fingerprint.h"
#include "cddp/composition.h"
#include "cddp/process.h"
#include "cddp/self.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "core/comm/conformance.h"
#include "tests/conformance/two_groups.h"
#include "tests/unit/sim/fixture.h"

#include <stdio.h>
#include <string.h>

#define RANKS 4

/* One run: a composition over a simulated world of `size` ranks. */
typedef struct trial {
    const char *spec;
    uint32_t size;
    uint64_t timeout_ns;
    cd_sim_transport transport;
    /* NULL: that of two groups */
    cddp_status (*body)(struct trial *trial, cddp_group *group, cddp_error *err);
    int plant;
    bool guards; /* the simulated backend is said to compare calls itself */
    cddp_status (*find)(void *context, const char *name, const cddp_backend **backend,
                        cddp_error *err); /* NULL: the simulated backend as it is */
    float out[RANKS][64];
    char late[200];
    sim_fixture f;
    cddp_composition *composition;
} trial;

static cddp_status find_in_trial(void *context, const char *name, const cddp_backend **backend,
                                 cddp_error *err)
{
    trial *t = context;
    if (strcmp(name, "sim") != 0)
        return cddp_error_set(err, CDDP_E_ARG, "unknown backend '%s'", name);
    t->f.backend.capabilities.guards |= t->guards;
    *backend = &t->f.backend;
    return CDDP_OK;
}

static void hear_late(void *context, uint32_t rank, const char *message)
{
    trial *t = context;
    if (rank == 0) snprintf(t->late, sizeof t->late, "%s", message);
}

static cddp_status rank_main(cddp_rank *rank, void *argument, cddp_error *err)
{
    trial *t = argument;
    const uint32_t members[] = {0, 1, 2, 3};
    cddp_group *group = NULL;
    cddp_group_options o = {.size = sizeof o,
                            .backend = cddp_composition_backend(t->composition),
                            .rank = rank,
                            .works_max = 64};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = "world",
                               .group_rank = rank->rank,
                               .group_size = rank->world_size,
                               .members = members,
                               .timeout_ns = t->timeout_ns};
    if (t->body == NULL) return CD_PASS(two_groups_run(o.backend, rank, err));
    CD_TRY(cddp_group_create(&o, &group, err));
    cddp_status status = t->body(t, group, err);
    cddp_group_destroy(group);
    return status;
}

static void trial_run(trial *t)
{
    t->f = (sim_fixture){.config = CD_SIM_CONFIG_INIT};
    t->f.config.world_size = t->size;
    t->f.config.transport = t->transport;
    fixture_create(&t->f);
    const cddp_composition_options options = {.size = sizeof options,
                                              .spec = t->spec,
                                              .find = t->find != NULL ? t->find : find_in_trial,
                                              .late = hear_late,
                                              .context = t};
    assert_ok(cddp_composition_open(&options, &t->composition, &t->f.err), &t->f.err);
    assert_ok(cd_sim_ops()->launch(t->f.sim, rank_main, t, t->f.results, &t->f.err), &t->f.err);
    cddp_composition_close(t->composition);
    fixture_destroy(&t->f);
}

static void assert_all_returned(const trial *t)
{
    for (uint32_t r = 0; r < t->size; r++) {
        cd_test_row("%s, rank %u of %u: %s", t->spec, r, t->size, t->f.results[r].error.message);
        assert_int_equal(t->f.results[r].end, CDDP_RANK_RETURNED);
        assert_int_equal(t->f.results[r].status, CDDP_OK);
    }
}

/* ---- the battery ---- */

static void count_failures(void *context, const cd_conformance_row *row)
{
    if (row->failed_count > 0)
        snprintf(context, 300, "%s %s: %s", cddp_op_name(row->op), cddp_dtype_name(row->dtype),
                 row->first_failure);
}

static cddp_status battery(trial *t, cddp_group *group, cddp_error *err)
{
    char first[300] = "";
    /* Floats bring the mean and the larger sizes; integers do for the rest. */
    const uint32_t dtypes = t->plant != 0 ? CDDP_DTYPE_BIT(CDDP_F32) : CDDP_DTYPE_BIT(CDDP_I32);
    cd_conformance_options o = {.device = cddp_device_cpu(),
                                .dtypes = dtypes,
                                .context = first,
                                .row = count_failures};
    CD_TRY(cd_conformance_run(group, &o, err));
    return first[0] == '\0' ? CDDP_OK : cddp_error_set(err, CDDP_E_MISMATCH, "%s", first);
}

/* TI-J-10: a wrapped backend does everything that it did before. */
TEST(composition, every_kind_and_nesting_passes_the_battery)
{
    static const char *const specs[] = {"cpu:sim",
                                        "rr:3:sim",
                                        "hier:sim",
                                        "hier:per=1:sim",
                                        "hier:per=2:sim",
                                        "hier:per=3:sim",
                                        "check:sim",
                                        "check:after:sim",
                                        "fault:seed=3,delay=40us,late=0.5:sim",
                                        "check:rr:2:hier:per=2:sim",
                                        "cpu:check:after:rr:2:sim,symbol:sim",
                                        "hier:per=2:check:sim"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        for (uint32_t size = 1; size <= RANKS; size++) {
            const bool floats = size == RANKS && strstr(specs[i], "hier:per=") != NULL;
            trial t = {.spec = specs[i], .size = size, .body = battery, .plant = floats};
            trial_run(&t);
            assert_all_returned(&t);
        }
    }
}

/* ---- capabilities ---- */

static cddp_status promises(trial *t, cddp_group *group, cddp_error *err)
{
    const cddp_capabilities *k = cddp_group_capabilities(group);
    (void)err;
    t->out[0][0] = (float)k->order;
    t->out[0][1] = k->async;
    return CDDP_OK;
}

TEST(composition, declares_what_its_numerics_are)
{
    static const struct {
        const char *spec;
        cddp_order order;
        bool async;
    } cases[] = {{"sim", CDDP_ORDER_KNOWN, true},
                 {"rr:2:sim", CDDP_ORDER_KNOWN, true},
                 {"hier:per=2:sim", CDDP_ORDER_SAME, false},
                 {"check:sim", CDDP_ORDER_KNOWN, false},
                 {"check:after:sim", CDDP_ORDER_KNOWN, true},
                 {"fault:seed=1:sim", CDDP_ORDER_KNOWN, true},
                 {"cpu:sim,symbol:sim", CDDP_ORDER_KNOWN, true},
                 {"cpu:sim,symbol:hier:sim", CDDP_ORDER_SAME, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trial t = {.spec = cases[i].spec, .size = 1, .body = promises};
        trial_run(&t);
        cd_test_row("%s", cases[i].spec);
        assert_int_equal((int)t.out[0][0], (int)cases[i].order);
        assert_int_equal((int)t.out[0][1], cases[i].async);
    }
}

/* ---- planted misuse ---- */

enum {
    CLEAN,
    OTHER_OP,
    OTHER_REDUCTION,
    OTHER_ROOT,
    OTHER_COUNT,
    OTHER_DTYPE,
    OTHER_BUCKET,
    OTHER_SHARES,
    OTHER_SPLITS,
    PLANTS
};

static const char *const plant_words[PLANTS] = {
    [OTHER_OP] = "rank 2 calls broadcast(root 0, 4 x f32) where rank 0 calls allreduce(sum, 4 x "
                 "f32) (collective 1)",
    [OTHER_REDUCTION] =
        "rank 2 calls allreduce(max, 4 x f32) where rank 0 calls allreduce(sum, 4 x f32)",
    [OTHER_ROOT] =
        "rank 2 calls broadcast(root 1, 4 x f32) where rank 0 calls broadcast(root 0, 4 x f32)",
    [OTHER_COUNT] =
        "rank 2 calls allreduce(sum, 3 x f32) where rank 0 calls allreduce(sum, 4 x f32)",
    [OTHER_DTYPE] =
        "rank 2 calls allreduce(sum, 4 x i32) where rank 0 calls allreduce(sum, 4 x f32)",
    [OTHER_BUCKET] = "rank 2 calls allreduce(sum, 4 x f32, bucket 7) where rank 0 calls "
                     "allreduce(sum, 4 x f32, bucket 4)",
    [OTHER_SHARES] = "rank 2 calls allgather(shares ",
    [OTHER_SPLITS] = "rank 0 sends 2 elements to rank 2, which expects 3",
};

static cddp_status misuse(trial *t, cddp_group *group, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(group);
    const bool odd = me == 2;
    float in[16] = {1, 2, 3, 4}, out[16] = {0};
    int64_t counts[RANKS] = {2, 2, 2, 2}, sends[RANKS] = {2, 2, 2, 2};
    int64_t n = odd && t->plant == OTHER_COUNT ? 3 : 4, total = 8, share = 2;
    cddp_dtype dtype = odd && t->plant == OTHER_DTYPE ? CDDP_I32 : CDDP_F32;
    const cddp_tensor four = cddp_tensor_of(cddp_device_cpu(), out, 0, dtype, &n, 1);
    cddp_work *work = NULL;
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE,
                         .reduce_op =
                             odd && t->plant == OTHER_REDUCTION ? CDDP_RED_MAX : CDDP_RED_SUM,
                         .input = four,
                         .output = four};
    CD_TRY(cddp_group_barrier(group, err));
    if (t->plant == OTHER_ROOT || (odd && t->plant == OTHER_OP))
        c = (cddp_collective){.op = CDDP_OP_BROADCAST,
                              .root = odd && t->plant == OTHER_ROOT,
                              .output = four};
    if (t->plant == OTHER_BUCKET) c.label = odd ? 8 : 5;
    if (t->plant == OTHER_SHARES || t->plant == OTHER_SPLITS) {
        c = (cddp_collective){.op = t->plant == OTHER_SHARES ? CDDP_OP_ALLGATHER : CDDP_OP_ALLTOALL,
                              .counts = counts};
        if (odd) { /* the sum stays right, which is why nothing but a comparison can see it */
            counts[0] = 3;
            counts[1] = 1;
        }
        if (t->plant == OTHER_SPLITS) c.send_counts = sends;
        c.input = cddp_tensor_of(cddp_device_cpu(), in, 0, CDDP_F32,
                                 t->plant == OTHER_SHARES ? &share : &total, 1);
        c.output = cddp_tensor_of(cddp_device_cpu(), out, 0, CDDP_F32, &total, 1);
    }
    CD_TRY(cddp_group_post(group, &c, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    CD_TRY(cddp_group_barrier(group, err));
    return CDDP_OK;
}

/* TI-M-15: other reductions and other roots too, which PyTorch's debug wrapper was seen to miss. */
TEST(check, names_the_rank_that_differs_on_every_rank_before_anything_moves)
{
    for (int plant = 0; plant < PLANTS; plant++) {
        trial t = {.spec = "check:sim", .size = RANKS, .body = misuse, .plant = plant};
        trial_run(&t);
        if (plant == CLEAN) {
            assert_all_returned(&t);
            continue;
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            cd_test_row("plant %d, rank %u", plant, r);
            assert_fails(t.f.results[r].status, CDDP_E_MISMATCH, &t.f.results[r].error,
                         plant_words[plant]);
        }
    }
}

TEST(check, finds_the_same_afterwards)
{
    /* Comparison finds the mistakes that end on every rank; the others fail and are explained. */
    static const int plants[] = {CLEAN, OTHER_REDUCTION, OTHER_DTYPE, OTHER_BUCKET, OTHER_COUNT};
    for (size_t i = 0; i < sizeof plants / sizeof plants[0]; i++) {
        trial t = {.spec = "check:after:sim",
                   .size = RANKS,
                   .body = misuse,
                   .plant = plants[i],
                   .timeout_ns = 1000000000};
        trial_run(&t);
        if (plants[i] == CLEAN) {
            assert_all_returned(&t);
            continue;
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            cd_test_row("plant %d, rank %u", plants[i], r);
            assert_fails(t.f.results[r].status, CDDP_E_MISMATCH, &t.f.results[r].error,
                         plant_words[plants[i]]);
        }
    }
}

/* TI-J-06, TI-J-07: PyTorch's debug wrapper does what check: does. The number of the operation is
** reported, however many went well before. Without the comparison no message says which rank called
** what. */
static cddp_status late_misuse(trial *t, cddp_group *group, cddp_error *err)
{
    float x[4] = {1, 2, 3, 4};
    const int64_t n = 4;
    const cddp_tensor four = cddp_tensor_of(cddp_device_cpu(), x, 0, CDDP_F32, &n, 1);
    for (int k = 0; k < 499; k++) {
        cddp_work *work = NULL;
        CD_TRY(cddp_group_allreduce(group, &four, CDDP_RED_MAX, &work, err));
        CD_TRY(cddp_work_wait(work, 0, err));
    }
    return misuse(t, group, err); /* a barrier first */
}

TEST(check, reports_the_number_of_an_operation_after_five_hundred_good_ones)
{
    static const int plants[] = {OTHER_OP, OTHER_COUNT};
    for (size_t i = 0; i < 2; i++)
        for (int checked = 0; checked < 2; checked++) {
            trial t = {.spec = checked ? "check:sim" : "sim",
                       .size = RANKS,
                       .body = late_misuse,
                       .plant = plants[i],
                       .timeout_ns = 1000000000};
            trial_run(&t);
            for (uint32_t r = 0; r < RANKS; r++) {
                const char *message = t.f.results[r].error.message;
                cd_test_row("%s, plant %d, rank %u: %s", t.spec, plants[i], r, message);
                if (!checked) {
                    assert_null(strstr(message, "calls"));
                    continue;
                }
                assert_fails(t.f.results[r].status, CDDP_E_MISMATCH, &t.f.results[r].error,
                             "(collective 500)");
                assert_non_null(strstr(message, plants[i] == OTHER_OP
                                                    ? "rank 2 calls broadcast(root 0, 4 x f32) "
                                                      "where rank 0 calls allreduce(sum, 4 x f32)"
                                                    : plant_words[OTHER_COUNT]));
            }
        }
}

/* TI-J-01, TI-J-02, TI-J-03, TI-J-05: a barrier that everybody reaches, then one, or a reduction,
** that some do not reach. At the time-out every rank that came names all that did not, by their
** world ranks, also in a group of some of them. A rank that gives up later also misses the ranks
** that gave up before. */
typedef struct absence {
    const char *operation;     /* as a message calls it */
    uint32_t absent;           /* bit per rank */
    bool reduces, in_subgroup; /* the group of the last three ranks */
    const char *first;         /* the ranks that the first one to give up waits for */
} absence;

static const absence absences[] = {
    {"barrier #1 of group 'world'", 0, false, false, NULL},
    /* clang-format off */
                                   {"barrier #1 of group 'world'", 1u << 1, false, false, "it waits for rank 1"},
                                   {"barrier #1 of group 'world'", 1u << 1 | 1u << 3, false, false, "it waits for ranks 1 and 3"},
                                   {"barrier #1 of group 'world'", 1u << 0, false, false, "it waits for rank 0"},
                                   {"allreduce #1 of group 'world'", 1u << 1, true, false, "it waits for rank 1"},
    /* clang-format on */
    {"barrier #0 of group 'three'", 1u << 2, false, true, "it waits for rank 2"}};

static cddp_status stay_away(trial *t, cddp_group *world, cddp_error *err)
{
    static const uint32_t last_three[3] = {1, 2, 3};
    const absence *a = &absences[t->plant];
    const uint32_t me = cddp_group_rank(world);
    const cddp_group_subset subset = {.size = sizeof subset,
                                      .name = "three",
                                      .member_count = 3,
                                      .members = last_three};
    cddp_group *own = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cddp_group_barrier(world, err));
    if (a->in_subgroup && me == 0) return CDDP_OK;
    if (a->in_subgroup) CD_TRY(cddp_group_create_subset(world, &subset, &own, err));
    if ((a->absent >> me & 1u) != 0) {
        /* Not this one. */
    } else if (a->reduces) {
        const int64_t n = 4;
        const cddp_tensor four = cddp_tensor_of(cddp_device_cpu(), t->out[me], 0, CDDP_F32, &n, 1);
        cddp_work *work = NULL;
        status = cddp_group_allreduce(world, &four, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    } else {
        status = cddp_group_barrier(own != NULL ? own : world, err);
    }
    cddp_group_destroy(own);
    return status;
}

/* "ranks 0-2 and 4" names rank 1; ranks have one digit. */
static bool names_rank(const char *text, uint32_t rank)
{
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') continue;
        const uint32_t first = (uint32_t)(*text - '0');
        const uint32_t last = text[1] == '-' ? (uint32_t)(text[2] - '0') : first;
        if (first <= rank && rank <= last) return true;
    }
    return false;
}

static void assert_absent_named(const trial *t, const absence *a, uint32_t r)
{
    const char *message = t->f.results[r].error.message;
    bool is_first = true, is_there = (a->absent >> r & 1u) == 0 && !(a->in_subgroup && r == 0);
    cd_test_row("%s, %s without %x, rank %u: %s", t->spec, a->operation, a->absent, r, message);
    assert_int_equal(t->f.results[r].end, CDDP_RANK_RETURNED);
    assert_int_equal(t->f.results[r].status, is_there && a->absent != 0 ? CDDP_E_TIMEOUT : CDDP_OK);
    if (t->f.results[r].status == CDDP_OK) return;
    assert_non_null(strstr(message, a->operation));
    const char *who = strstr(message, "it waits for rank");
    assert_non_null(who);
    for (uint32_t other = a->in_subgroup; other < RANKS; other++) {
        if ((a->absent >> other & 1u) != 0)
            assert_true(names_rank(who, other));
        else
            is_first = is_first && other >= r;
    }
    if (is_first) assert_string_equal(who, a->first);
}

TEST(composition, every_rank_that_came_names_the_ranks_that_did_not)
{
    static const char *const specs[3] = {"sim", "check:sim", "rr:2:sim"};
    for (int plant = 0; plant < (int)(sizeof absences / sizeof absences[0]); plant++)
        for (int k = 0; k < 3; k++) {
            trial t = {.spec = specs[k],
                       .size = RANKS,
                       .body = stay_away,
                       .plant = plant,
                       .timeout_ns = 100000000};
            trial_run(&t);
            for (uint32_t r = 0; r < RANKS; r++) assert_absent_named(&t, &absences[plant], r);
        }
}

/* A broadcast that one rank labels otherwise is the last operation: only `late` can still get the
** finding. */
static cddp_status last_is_wrong(trial *t, cddp_group *group, cddp_error *err)
{
    const int64_t n = 4;
    const uint32_t me = cddp_group_rank(group);
    const cddp_collective given = {.op = CDDP_OP_BROADCAST,
                                   .label = me == 1 && t->plant != CLEAN ? 9 : 3,
                                   .output = cddp_tensor_of(cddp_device_cpu(), t->out[me], 0,
                                                            CDDP_F32, &n, 1)};
    cddp_collective c = given;
    cddp_work *work = NULL;
    CD_TRY(cddp_group_post(group, &c, &work, err));
    CD_TRY(cddp_work_wait(work, 0, err));
    return CDDP_OK;
}

TEST(check, what_is_found_at_the_end_is_not_lost)
{
    for (int plant = CLEAN; plant <= 1; plant++) {
        trial t = {.spec = "check:after:sim", .size = RANKS, .body = last_is_wrong, .plant = plant};
        trial_run(&t);
        bool reported = t.late[0] != '\0';
        for (uint32_t r = 0; r < RANKS; r++)
            reported = reported || strstr(t.f.results[r].error.message, "bucket 8") != NULL;
        cd_test_row("plant %d: late '%s'", plant, t.late);
        assert_int_equal(reported, plant != CLEAN);
    }
}

static cddp_status three_sums(trial *t, cddp_group *group, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(group);
    for (int k = 0; k < 3; k++) {
        const int64_t n = 16;
        const cddp_tensor x =
            cddp_tensor_of(cddp_device_cpu(), t->out[me] + 16 * k, 0, CDDP_F32, &n, 1);
        cddp_work *work = NULL;
        for (int i = 0; i < 16; i++) t->out[me][16 * k + i] = (float)((int)me + i + k);
        CD_TRY(cddp_group_allreduce(group, &x, CDDP_RED_SUM, &work, err));
        CD_TRY(cddp_work_wait(work, 0, err));
    }
    return CDDP_OK;
}

TEST(check, names_the_rank_whose_result_was_corrupted)
{
    static const char *const specs[] = {"check:fault:seed=5,corrupt=1,rank=3,from=1:sim",
                                        "check:after:fault:seed=5,corrupt=1,rank=3,from=1:sim"};
    for (size_t i = 0; i < 2; i++) {
        trial t = {.spec = specs[i], .size = RANKS, .body = three_sums};
        trial_run(&t);
        for (uint32_t r = 0; r < RANKS; r++) {
            bool ended_well = t.f.results[r].status == CDDP_OK;
            cd_test_row("%s, rank %u: %s", specs[i], r, t.f.results[r].error.message);
            if (i == 0) assert_false(ended_well);
            if (!ended_well)
                assert_non_null(
                    strstr(t.f.results[r].error.message,
                           "after allreduce 1 rank 3 ended with bits that differ from rank 0"));
        }
        assert_true(i == 0 || t.late[0] != '\0' || t.f.results[0].status != CDDP_OK);
    }
    trial clean = {.spec = "check:fault:seed=5:sim", .size = RANKS, .body = three_sums};
    trial_run(&clean);
    assert_all_returned(&clean);
}

/* The first part would lose every rank at its first operation. */
TEST(dispatch, a_tensor_goes_to_the_part_of_its_device)
{
    trial t = {.spec = "symbol:fault:die=0@0:sim,cpu:sim", .size = RANKS, .body = three_sums};
    trial_run(&t);
    assert_all_returned(&t);
}

/* ---- many ranks ---- */

#define MANY 70u

/* Fingerprints of 70 ranks, of which those in [first, first + count) call max in place of sum. */
static void many_calls(unsigned char *all, uint32_t first, uint32_t count)
{
    float x[4] = {0};
    const int64_t n = 4;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), x, 0, CDDP_F32, &n, 1);
    for (uint32_t r = 0; r < MANY; r++) {
        const bool odd = r >= first && r < first + count;
        const cddp_collective c = {.op = CDDP_OP_ALLREDUCE,
                                   .reduce_op = odd ? CDDP_RED_MAX : CDDP_RED_SUM,
                                   .root = 0,
                                   .input = t,
                                   .output = t};
        cd_fingerprint_take(&c, r, MANY,
                            (cd_fingerprint *)(void *)(all + r * cd_fingerprint_bytes(MANY)));
    }
}

TEST(check, names_the_ranks_that_differ_in_a_world_of_seventy)
{
    uint64_t storage[MANY * 16] = {0}, digests[MANY];
    uint32_t members[MANY];
    unsigned char *all = (unsigned char *)storage;
    char text[320];
    assert_true(MANY * cd_fingerprint_bytes(MANY) <= sizeof storage);
    for (uint32_t r = 0; r < MANY; r++) members[r] = r + 100;
    many_calls(all, 0, 0);
    assert_true(cd_fingerprints_agree(all, MANY, members, text, sizeof text));
    many_calls(all, 5, 30);
    assert_false(cd_fingerprints_agree(all, MANY, members, text, sizeof text));
    assert_string_equal(text, "ranks 105-134 call allreduce(max, 4 x f32) where rank 100 calls "
                              "allreduce(sum, 4 x f32) (collective 0)");
    for (uint32_t r = 0; r < MANY; r++) {
        digests[r] = r % 2 == 1 ? 7 + r : 7; /* every other rank, each with other bits */
        ((cd_fingerprint *)(void *)(all + r * cd_fingerprint_bytes(MANY)))->numel = 4 + r % 60;
    }
    assert_false(cd_contents_agree(digests, MANY, members, text, sizeof text));
    assert_string_equal(text, "ranks 101, 103, 105, 107, 109, 111 and 29 more ended with bits that "
                              "differ from rank 100");
    assert_false(cd_fingerprints_agree(all, MANY, members, text, sizeof text));
    assert_non_null(strstr(text, "ranks 101 and 161 call allreduce(sum, 5 x f32), "));
    assert_non_null(strstr(text, ", and other ranks differ too where rank 100 calls"));
    assert_non_null(strstr(text, "(collective 0)"));
}

/* ---- faults ---- */

static uint64_t results_of(const char *spec)
{
    trial t = {.spec = spec, .size = RANKS, .body = three_sums, .timeout_ns = 1000000};
    trial_run(&t);
    uint64_t h = cd_hash64(t.out, sizeof t.out, 0);
    for (uint32_t r = 0; r < RANKS; r++)
        h = cd_hash_mix(cd_hash_mix(h, t.f.results[r].end),
                        cd_hash_text(t.f.results[r].error.message));
    return h;
}

TEST(fault, the_same_seed_strikes_in_the_same_way)
{
    const uint64_t clean = results_of("sim");
    assert_true(results_of("fault:seed=1:sim") == clean);
    assert_true(results_of("fault:seed=1,corrupt=0.5:sim") != clean);
    assert_true(results_of("fault:seed=1,corrupt=0.5:sim") ==
                results_of("fault:seed=1,corrupt=0.5:sim"));
    assert_true(results_of("fault:seed=1,corrupt=0.5:sim") !=
                results_of("fault:seed=2,corrupt=0.5:sim"));
    assert_true(results_of("fault:seed=4,drop=0.2:sim") == results_of("fault:seed=4,drop=0.2:sim"));
    assert_true(results_of("fault:seed=4,delay=30us:sim") == clean); /* late, and right */
    assert_true(results_of("fault:seed=9,corrupt=1,from=3:sim") == clean);
}

TEST(fault, every_plant_changes_a_result_and_repeats_itself)
{
    /* mistakes that three sums in place can show */
    static const char *const words[] = {"alias", "slot", "early", "root", "share"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char spec[64], later[64];
        cd_test_row("%s", words[i]);
        snprintf(spec, sizeof spec, "fault:plant=%s:sim", words[i]);
        snprintf(later, sizeof later, "fault:plant=%s,from=3:sim", words[i]);
        assert_true(results_of(spec) != results_of("sim"));
        assert_true(results_of(spec) == results_of(spec));
        assert_true(results_of(later) == results_of("sim"));
    }
    /* sixteen are whole fours */
    assert_true(results_of("fault:plant=tail:sim") == results_of("sim"));
    /* nothing is averaged */
    assert_true(results_of("fault:plant=divisor:sim") == results_of("sim"));
    /* nothing goes elsewhere */
    assert_true(results_of("fault:plant=scratch:sim") == results_of("sim"));
}

TEST(fault, a_lost_operation_and_a_death_end_with_words)
{
    trial lost = {.spec = "fault:drop=1,rank=1,from=1:sim",
                  .size = RANKS,
                  .body = three_sums,
                  .timeout_ns = 1000000};
    trial_run(&lost);
    assert_fails(lost.f.results[1].status, CDDP_E_TIMEOUT, &lost.f.results[1].error,
                 "operation 1 of rank 1 was lost (planted by fault:)");
    for (uint32_t r = 0; r < RANKS; r++) assert_int_not_equal(lost.f.results[r].status, CDDP_OK);
    trial dead = {.spec = "fault:die=2@1:sim",
                  .size = RANKS,
                  .body = three_sums,
                  .timeout_ns = 1000000};
    trial_run(&dead);
    assert_fails(dead.f.results[2].status, CDDP_E_BACKEND, &dead.f.results[2].error,
                 "rank 2 died at its operation 1 (planted by fault:)");
    /* The third of three sums is operation 2; there is no operation 3. */
    trial last = {.spec = "fault:die=2@2:sim",
                  .size = RANKS,
                  .body = three_sums,
                  .timeout_ns = 1000000};
    trial_run(&last);
    assert_fails(last.f.results[2].status, CDDP_E_BACKEND, &last.f.results[2].error,
                 "rank 2 died at its operation 2 (planted by fault:)");
    assert_true(results_of("fault:die=2@3:sim") == results_of("sim"));
    for (uint32_t r = 0; r < RANKS; r++) assert_int_not_equal(dead.f.results[r].status, CDDP_OK);
}

/* ---- messages between two ranks, waits in another order than posts ---- */

static cddp_status crossed_waits(trial *t, cddp_group *group, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(group);
    const int64_t n = 8;
    cddp_tensor x[4];
    cddp_work *works[3] = {NULL}, *message = NULL;
    for (int k = 0; k < 4; k++)
        x[k] = cddp_tensor_of(cddp_device_cpu(), t->out[me] + 8 * k, 0, CDDP_F32, &n, 1);
    for (int i = 0; i < 32; i++) t->out[me][i] = 1.0f;
    /* only two ranks know of the message; a receive is posted long before it is sent */
    if (me < 2) {
        cddp_collective c = {.op = me == 0 ? CDDP_OP_RECV : CDDP_OP_SEND,
                             .root = 1 - me,
                             .tag = 4,
                             .input = x[3],
                             .output = x[3]};
        if (me == 0) CD_TRY(cddp_group_post(group, &c, &message, err));
        for (int k = 0; k < 3; k++)
            CD_TRY(cddp_group_allreduce(group, &x[k], CDDP_RED_SUM, &works[k], err));
        for (int k = 2; k >= 0; k--) CD_TRY(cddp_work_wait(works[k], 0, err));
        if (me == 1) CD_TRY(cddp_group_post(group, &c, &message, err));
        CD_TRY(cddp_work_wait(message, 0, err));
    } else {
        for (int k = 0; k < 3; k++) {
            CD_TRY(cddp_group_allreduce(group, &x[k], CDDP_RED_SUM, &works[k], err));
            if (k == 0) CD_TRY(cddp_work_wait(works[k], 0, err));
        }
        CD_TRY(cddp_work_wait(works[1], 0, err));
        CD_TRY(cddp_work_wait(works[2], 0, err));
    }
    for (int i = 0; i < 24; i++)
        if (t->out[me][i] != (float)RANKS)
            return cddp_error_set(err, CDDP_E_CORRUPT, "element %d is %g", i,
                                  (double)t->out[me][i]);
    return CDDP_OK;
}

TEST(composition, works_may_be_waited_for_in_any_order)
{
    static const char *const specs[] = {"rr:2:sim",
                                        "hier:per=2:sim",
                                        "check:sim",
                                        "check:after:sim",
                                        "check:rr:3:hier:per=2:sim",
                                        "hier:per=2:check:after:sim"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        trial t = {.spec = specs[i], .size = RANKS, .body = crossed_waits};
        trial_run(&t);
        assert_all_returned(&t);
    }
}

#define UNDER_WAY 12

/* All-reduces and broadcasts from drawn roots, all under way at once, and waited for from the last
** one on. Ranks take different steps for them. */
static cddp_status mixed_under_way(trial *t, cddp_group *group, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(group);
    const int64_t n = 4;
    cddp_work *works[UNDER_WAY] = {NULL};
    uint32_t roots[UNDER_WAY]; /* RANKS: an all-reduce */
    cd_prng draws = cd_prng_seed((uint64_t)t->plant);
    for (int k = 0; k < UNDER_WAY; k++) {
        cddp_tensor x = cddp_tensor_of(cddp_device_cpu(), t->out[me] + n * k, 0, CDDP_F32, &n, 1);
        roots[k] = (uint32_t)cd_prng_below(&draws, RANKS + 3);
        roots[k] = roots[k] < RANKS ? roots[k] : RANKS;
        for (int i = 0; i < n; i++) t->out[me][n * k + i] = (float)((uint32_t)k * RANKS + me);
        if (roots[k] < RANKS)
            CD_TRY(cddp_group_broadcast(group, &x, roots[k], &works[k], err));
        else
            CD_TRY(cddp_group_allreduce(group, &x, CDDP_RED_SUM, &works[k], err));
    }
    for (int k = UNDER_WAY - 1; k >= 0; k--) CD_TRY(cddp_work_wait(works[k], 0, err));
    for (int i = 0; i < UNDER_WAY * n; i++) {
        const uint32_t k = (uint32_t)(i / n);
        const uint32_t sum = RANKS * RANKS * k + RANKS * (RANKS - 1) / 2;
        const float wanted = (float)(roots[k] < RANKS ? k * RANKS + roots[k] : sum);
        if (t->out[me][i] != wanted)
            return cddp_error_set(err, CDDP_E_CORRUPT, "operation %u is %g, not %g", k,
                                  (double)t->out[me][i], (double)wanted);
    }
    return CDDP_OK;
}

TEST(hier, operations_of_other_steps_do_not_overtake_each_other)
{
    static const char *const specs[] = {"sim",
                                        "hier:per=1:sim",
                                        "hier:per=2:sim",
                                        "hier:per=3:sim",
                                        "hier:per=4:sim",
                                        "check:hier:per=2:sim",
                                        "hier:per=2:hier:per=1:sim"};
    static const cd_sim_transport transports[] = {CD_SIM_DIRECT, CD_SIM_MESSAGES};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (int seed = 1; seed <= 20; seed++) {
            trial t = {.spec = specs[i],
                       .size = RANKS,
                       .transport = transports[seed % 2],
                       .plant = seed,
                       .guards = seed % 5 == 0,
                       .body = mixed_under_way};
            trial_run(&t);
            assert_all_returned(&t);
        }
}

/* Another rank waits for the other group first: what is open there must go on meanwhile. */
TEST(composition, ranks_wait_for_two_groups_in_opposite_order)
{
    static const char *const specs[] = {"sim",
                                        "rr:2:sim",
                                        "hier:per=1:sim",
                                        "hier:per=2:sim",
                                        "check:sim",
                                        "check:after:sim",
                                        "check:hier:per=2:sim",
                                        "hier:per=2:check:sim",
                                        "check:rr:2:hier:per=1:sim"};
    static const cd_sim_transport transports[] = {CD_SIM_DIRECT, CD_SIM_MESSAGES};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (size_t k = 0; k < 2; k++) {
            trial t = {.spec = specs[i], .size = RANKS, .transport = transports[k]};
            trial_run(&t);
            assert_all_returned(&t);
        }
}

/* ---- guards and aborts ---- */

static cddp_status one_rank_differs(trial *t, cddp_group *group, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(group);
    const int64_t numel = me == (uint32_t)t->plant ? 4 : 8;
    const cddp_tensor mine = cddp_tensor_of(cddp_device_cpu(), t->out[me], 0, CDDP_F32, &numel, 1);
    for (int k = 0; k < 8; k++) t->out[me][k] = 1;
    cddp_work *work = NULL;
    CD_TRY(cddp_group_allreduce(group, &mine, CDDP_RED_SUM, &work, err));
    return CD_PASS(cddp_work_wait(work, 0, err));
}

/* A rank alone in a node could not tell: what differs concerns all nodes. */
TEST(hier, over_a_guard_compares_the_calls_of_all_nodes)
{
    for (int who = -1; who < RANKS; who++) {
        trial t = {.spec = "hier:per=2:sim",
                   .size = RANKS,
                   .body = one_rank_differs,
                   .plant = who,
                   .guards = true};
        cd_test_row("rank %d differs", who);
        trial_run(&t);
        for (uint32_t r = 0; r < RANKS; r++) {
            if (who < 0) {
                assert_ok(t.f.results[r].status, &t.f.results[r].error);
                assert_true(t.out[r][0] == RANKS && t.out[r][7] == RANKS);
                continue;
            }
            char words[64];
            snprintf(words, sizeof words, "rank %d calls allreduce(sum, 4 x f32)", who);
            assert_fails(t.f.results[r].status, CDDP_E_MISMATCH, &t.f.results[r].error,
                         who == 0 ? "calls allreduce(sum, 8 x f32)" : words);
        }
    }
}

static cddp_status aborts(trial *t, cddp_group *group, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(group);
    const int64_t numel = 4;
    const cddp_tensor mine = cddp_tensor_of(cddp_device_cpu(), t->out[me], 0, CDDP_F32, &numel, 1);
    cddp_work *work = NULL;
    cddp_error own = CDDP_ERROR_INIT;
    if (me == 0) {
        CD_TRY(cddp_group_abort(group, "enough of it", err));
        const cddp_status status = cddp_group_allreduce(group, &mine, CDDP_RED_SUM, &work, &own);
        assert_int_equal(status, CDDP_E_ABORTED);
        return CDDP_OK;
    }
    CD_TRY(cddp_group_allreduce(group, &mine, CDDP_RED_SUM, &work, err));
    return CD_PASS(cddp_work_wait(work, 0, err));
}

TEST(composition, an_abort_reaches_every_group_inside)
{
    static const char *const specs[] = {"rr:2:sim",        "check:sim",
                                        "check:after:sim", "fault:seed=1:sim",
                                        "hier:per=2:sim",  "check:hier:per=2:sim",
                                        "hier:per=1:sim",  "hier:per=4:sim"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        trial t = {.spec = specs[i], .size = RANKS, .body = aborts};
        cd_test_row("%s", specs[i]);
        trial_run(&t);
        assert_ok(t.f.results[0].status, &t.f.results[0].error);
        for (uint32_t r = 1; r < RANKS; r++) {
            assert_fails(t.f.results[r].status, CDDP_E_ABORTED, &t.f.results[r].error,
                         "enough of it");
        }
    }
}

/* The backend of a trial, of which one call of one rank fails. Ranks are fibers of one thread. */
typedef struct broken_call {
    cddp_backend sound, table;
    void *groups[64];
    uint32_t ranks[64], group_count;
    uint32_t rank;
    bool is_post, is_armed, has_struck;
    uint32_t countdown;
} broken_call;
static broken_call broken;

static bool strikes(const void *group, bool is_post)
{
    uint32_t i = 0;
    while (i < broken.group_count && broken.groups[i] != group) i++;
    if (i == broken.group_count || broken.ranks[i] != broken.rank || broken.is_post != is_post)
        return false;
    if (!broken.is_armed || broken.has_struck || broken.countdown-- > 0) return false;
    return broken.has_struck = true;
}

static cddp_status broken_open(const cddp_backend *backend, cddp_rank *rank,
                               const cddp_group_spec *spec, void **group, cddp_error *err)
{
    (void)backend;
    CD_TRY(broken.sound.open(&broken.sound, rank, spec, group, err));
    assert_true(broken.group_count < 64);
    broken.ranks[broken.group_count] = rank->rank;
    broken.groups[broken.group_count++] = *group;
    return CDDP_OK;
}

static cddp_status broken_post(void *group, const cddp_collective *c, void **work, cddp_error *err)
{
    if (strikes(group, true)) return cddp_error_set(err, CDDP_E_BACKEND, "a planted failure");
    return CD_PASS(broken.sound.post(group, c, work, err));
}

static cddp_status broken_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    CD_TRY(broken.sound.wait(group, work, timeout_ns, err));
    return strikes(group, false) ? cddp_error_set(err, CDDP_E_BACKEND, "a planted failure")
                                 : CDDP_OK;
}

static cddp_status find_broken(void *context, const char *name, const cddp_backend **backend,
                               cddp_error *err)
{
    CD_TRY(find_in_trial(context, name, backend, err));
    broken.sound = broken.table = **backend;
    broken.table.open = broken_open;
    broken.table.post = broken_post;
    broken.table.wait = broken_wait;
    *backend = &broken.table;
    return CDDP_OK;
}

/* Like a program: a rank that cannot begin an operation aborts the group. The step that a rank
** waited for may be its only one, as without hier:, so no further operation follows then. */
static cddp_status loses_a_call(trial *t, cddp_group *group, cddp_error *err)
{
    const uint32_t me = cddp_group_rank(group);
    const int64_t numel = 4;
    const cddp_tensor mine = cddp_tensor_of(cddp_device_cpu(), t->out[me], 0, CDDP_F32, &numel, 1);
    CD_TRY(cddp_group_barrier(group, err)); /* every rank has opened it */
    broken.is_armed = broken.is_armed || me == broken.rank;
    for (int k = 0; k < 1 + broken.is_post; k++) {
        cddp_work *work = NULL;
        cddp_status status = cddp_group_allreduce(group, &mine, CDDP_RED_AVG, &work, err);
        if (status != CDDP_OK) {
            if (me == broken.rank) CD_TRY(cddp_group_abort(group, err->message, NULL));
            return status;
        }
        CD_TRY(cddp_work_wait(work, 0, err));
    }
    return CDDP_OK;
}

/* P7: whichever step fails, on whichever rank, no rank waits for ever: it has its result already,
** or an error that says what failed. */
TEST(hier, a_step_that_fails_ends_every_rank)
{
    static const struct {
        const char *spec;
        bool guards;
    } cases[] = {{"hier:per=2:sim", false},
                 {"hier:per=2:sim", true},
                 {"hier:per=3:sim", false},
                 {"hier:per=1:sim", false},
                 {"check:hier:per=2:sim", false}};
    size_t failures = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] * RANKS * 2; i++) {
        bool has_struck = true;
        for (uint32_t n = 0; has_struck; n++) {
            trial t = {.spec = cases[i / 2 / RANKS].spec,
                       .size = RANKS,
                       .body = loses_a_call,
                       .find = find_broken,
                       .guards = cases[i / 2 / RANKS].guards};
            broken = (broken_call){.rank = i / 2 % RANKS, .is_post = i % 2 == 1, .countdown = n};
            trial_run(&t);
            has_struck = broken.has_struck;
            if (!has_struck) break;
            failures++;
            for (uint32_t r = 0; r < RANKS; r++) {
                const cddp_rank_result *got = &t.f.results[r];
                cd_test_row("%s%s, %s %u of rank %u; rank %u: %d, %s", t.spec,
                            t.guards ? " guarded" : "", broken.is_post ? "post" : "wait", n,
                            broken.rank, r, (int)got->end, got->error.message);
                assert_int_equal(got->end, CDDP_RANK_RETURNED);
                if (r == broken.rank || got->status != CDDP_OK)
                    assert_fails(got->status, got->status, &got->error, "a planted failure");
            }
        }
    }
    assert_true(failures > 100);
}

/* ---- texts ---- */

static cddp_status only_sim_and_gloo(void *context, const char *name, cddp_error *err)
{
    (void)context;
    bool known = strcmp(name, "sim") == 0 || strcmp(name, "gloo") == 0 || strcmp(name, "nccl") == 0;
    return known ? CDDP_OK
                 : cddp_error_set(err, CDDP_E_ARG, "unknown backend '%s'; did you mean 'gloo'?",
                                  name);
}

TEST(spec, says_where_and_what_was_meant)
{
    static const struct {
        const char *spec, *words; /* words NULL: it is right */
    } cases[] = {
        /* clang-format off */
        {"gloo", NULL},
        {"rr:3:gloo", NULL},
        {"cpu:gloo,cuda:nccl", NULL},
        {"cpu:fault:seed=7,drop=0.01:gloo,cuda:check:after:nccl", NULL},
        {"check:rr:16:hier:per=4:fault:die=2@5,delay=1s,late=1,corrupt=0.000001,rank=0,from=9:sim", NULL},
        {"", "character 1: the name of a backend is missing here"},
        {"rr:3:glo", "character 6: unknown backend 'glo'; did you mean 'gloo'?"},
        {"rr:3:", "character 6: the name of a backend is missing here"},
        {"rr:0:gloo", "character 4: rr needs a number of groups from 1 to 16"},
        {"rr:17:gloo", "character 4: rr needs a number"},
        {"rr:x:gloo", "character 4: rr needs a number"},
        {"rr:3gloo", "character 4: rr needs a number"},
        {"rr:99999999999999999999:gloo", "character 4: rr needs a number"},
        {"rr", "character 1: unknown backend 'rr'"},
        {"chek:gloo", "character 1: 'chek' is neither a composition nor a device; did you mean 'check'?"},
        {"cpu:gloo,cudda:gloo", "character 10: 'cudda' is neither a composition nor a device; did you mean 'cuda'?"},
        {"cpu:gloo,cpu:sim", "character 10: this device has a backend already"},
        {"cpu:gloo,sim", "character 10: a device and a colon are missing here"},
        {"gloo,sim", "character 5: a comma separates devices"},
        {"rr:2:cpu:gloo", "character 6: devices are allowed only at the beginning"},
        {"hier:per=0:gloo", "character 10: per= needs a number"},
        {"fault:gloo", "character 7: fault: needs settings and a colon"},
        {"fault:drp=1:gloo", "character 7: fault: knows seed, drop, corrupt"},
        {"fault:drop=2:gloo", "character 12: drop= needs a number from 0 to 1"},
        {"fault:drop=1.1:gloo", "character 12: drop= needs a number from 0 to 1"},
        {"fault:drop=0.0000001:gloo", "character 12: drop= needs a number from 0 to 1 with at most six digits"},
        {"fault:drop=0.1gloo", "character 12: drop= needs"},
        {"fault:plant=tial:gloo", "character 13: plant= needs one of divisor op alias"},
        {"fault:plant=op,rank=1:gloo", "plant=op is a mistake of all ranks: drop rank="},
        {"fault:delay=5:gloo", "character 13: delay= needs a time with its unit"},
        {"fault:delay=2h:gloo", "character 13: delay= needs a time with its unit"},
        {"fault:die=3:gloo", "character 11: die= needs a rank and an operation"},
        {"check:check:check:check:check:check:check:check:check:sim", "character 49: compositions nest at most 8 deep"},
        {"gloo:sim", "character 1: 'gloo' is neither a composition"},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_status status = cddp_composition_each(cases[i].spec, only_sim_and_gloo, NULL, &err);
        cd_test_row("'%s': %s", cases[i].spec, err.message);
        if (cases[i].words == NULL)
            assert_int_equal(status, CDDP_OK);
        else
            assert_fails(status, status == CDDP_E_ARG ? CDDP_E_ARG : CDDP_E_CONFIG, &err,
                         cases[i].words);
    }
}

static cddp_status find_self_without(void *context, const char *name, const cddp_backend **backend,
                                     cddp_error *err)
{
    (void)name;
    (void)err;
    *backend = context;
    return CDDP_OK;
}

TEST(composition, refuses_a_backend_that_cannot_serve)
{
    static const struct {
        const char *spec;
        cddp_op missing;
        const char *words;
    } cases[] = {{"hier:self", CDDP_OP_REDUCE,
                  "hier: needs reduce, and backend self does not implement it"},
                 {"hier:self", CDDP_OP_BROADCAST, "hier: needs broadcast"},
                 {"check:rr:2:self", CDDP_OP_ALLGATHER,
                  "check: needs a backend that gathers tensors of the host; self does not"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cddp_backend lacking = *cddp_backend_self();
        lacking.capabilities.ops &= ~(1u << cases[i].missing);
        const cddp_composition_options options = {.size = sizeof options,
                                                  .spec = cases[i].spec,
                                                  .find = find_self_without,
                                                  .context = &lacking};
        cddp_composition *composition = NULL;
        cd_test_row("%s without %s", cases[i].spec, cddp_op_name(cases[i].missing));
        assert_fails(cddp_composition_open(&options, &composition, &err), CDDP_E_UNSUPPORTED, &err,
                     cases[i].words);
    }
}

/* ---- memory ---- */

TEST(composition, a_steady_state_allocates_nothing)
{
    static const char *const specs[] = {"rr:3:self",
                                        "hier:self",
                                        "check:self",
                                        "check:after:self",
                                        "fault:seed=1,delay=1ns:self",
                                        "cpu:check:rr:2:hier:self"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        cd_watch_allocator watch;
        cddp_solo_world *world = NULL;
        cddp_composition *composition = NULL;
        cddp_group *group = NULL;
        cddp_error err = CDDP_ERROR_INIT;
        const uint32_t members[] = {0};
        cddp_backend self = *cddp_backend_self();
        cd_watch_allocator_init(&watch, NULL);
        const cddp_solo_options solo = {.size = sizeof solo,
                                        .world_size = 1,
                                        .allocator = &watch.table};
        const cddp_composition_options options = {.size = sizeof options,
                                                  .spec = specs[i],
                                                  .find = find_self_without,
                                                  .context = &self,
                                                  .allocator = &watch.table};
        assert_ok(cddp_solo_world_open(&solo, &world, &err), &err);
        assert_ok(cddp_composition_open(&options, &composition, &err), &err);
        cddp_group_options o = {.size = sizeof o,
                                .backend = cddp_composition_backend(composition),
                                .rank = cddp_solo_world_rank(world),
                                .spec = {.name = "w", .group_size = 1, .members = members},
                                .works_max = 8};
        assert_ok(cddp_group_create(&o, &group, &err), &err);
        cd_test_row("%s", specs[i]);
        for (int k = 0; k < 12; k++) {
            float x[4] = {0};
            const int64_t n = 4;
            cddp_work *works[2] = {NULL};
            const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), x, 0, CDDP_F32, &n, 1);
            for (int j = 0; j < 2; j++)
                assert_ok(cddp_group_allreduce(group, &t, CDDP_RED_SUM, &works[j], &err), &err);
            for (int j = 0; j < 2; j++) assert_ok(cddp_work_wait(works[j], 0, &err), &err);
            watch.frozen = k >= 1;
        }
        assert_int_equal(watch.growth_count, 0);
        cddp_group_destroy(group);
        cddp_composition_close(composition);
        cddp_solo_world_close(world);
        assert_int_equal(watch.live_count, 0);
    }
}

TEST_MAIN()
