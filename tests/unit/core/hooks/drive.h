/* SPDX-License-Identifier: Apache-2.0 */
/* A hook driven by hand over simulated ranks: one flat bucket of f32 values per step, results kept
** per rank. */
#pragma once
#include "tests/support/tape.h"
#include "tests/unit/sim/fixture.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"
#include "core/tensor/cpu.h"
#include "core/tensor/saved.h"

#include <string.h>
#include <sys/resource.h>

#define DRIVE_RANKS 8
#define DRIVE_STEPS 8
#define DRIVE_NUMEL 1200

typedef struct drive {
    const cddp_hook *hook;
    const char *options;
    uint32_t ranks, steps;
    int64_t numel;
    uint32_t swap_at; /* save, destroy, create and load before this step; 0: never */
    bool damages;     /* then damaged states are loaded too */
    /* pieces of a saved state that begin a slot: their bytes, and where each has a number of
    ** elements and their dtype; 0: no slots */
    size_t slot_bytes, slot_numel[2], slot_dtype[2];
    /* the last step's bucket is another model's: one parameter has four elements fewer, the other
    ** four more */
    bool resized;
    cddp_status expected;               /* how every rank is to end */
    const char *words;                  /* in its error */
    void (*place)(cddp_device *device); /* makes another device of the CPU; NULL: leaves it */
    /* of each rank's memory, and a CPU that has it: a hook that is gone leaves nothing */
    cd_watch_allocator watches[DRIVE_RANKS];
    cddp_device devices[DRIVE_RANKS];
    float in[DRIVE_RANKS][DRIVE_STEPS][DRIVE_NUMEL], out[DRIVE_RANKS][DRIVE_STEPS][DRIVE_NUMEL];
} drive;

static inline void drive_watch(drive *d, cddp_rank *rank)
{
    cd_watch_allocator *watch = &d->watches[rank->rank];
    cd_watch_allocator_init(watch, rank->allocator);
    d->devices[rank->rank] = cd_device_with_allocator(cddp_device_cpu(), &watch->table);
    if (d->place != NULL) d->place(&d->devices[rank->rank]);
}

static inline cddp_status drive_make(const drive *d, cddp_rank *rank, cddp_group *group,
                                     void **self, cddp_error *err)
{
    cddp_hook_context context = {.size = sizeof context,
                                 .group = group,
                                 .allocator = &d->watches[rank->rank].table,
                                 .options = d->options};
    return d->hook->create(&context, self, err);
}

/* Loads the state on the tape into a hook that is made for it. Nothing is left behind, and no more
** memory is taken than a multiple of what the state has. */
static inline cddp_status drive_load(drive *d, cddp_rank *rank, cddp_group *group, tape *t)
{
    cd_watch_allocator *watch = &d->watches[rank->rank];
    void *self = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_state_reader reader = {t, tape_read};
    struct rusage before, after;
    t->read = 0;
    assert_ok(drive_make(d, rank, group, &self, &err), &err);
    const uint64_t live = watch->peak_bytes = watch->live_bytes;
    getrusage(RUSAGE_SELF, &before);
    const cddp_status status = d->hook->load(self, &reader, &err);
    getrusage(RUSAGE_SELF, &after); /* what is loaded lies in memory that nobody watches */
    assert_true(watch->peak_bytes - live <= 65536 + 32 * t->used);
    assert_true(after.ru_maxrss - before.ru_maxrss <= 16384);
    assert_true(status == CDDP_OK || status == CDDP_E_CORRUPT || status == CDDP_E_MISMATCH);
    d->hook->destroy(self);
    return status;
}

/* Where the pieces of a saved state end; the last one is its seal. */
typedef struct drive_pieces {
    tape *to;
    size_t ends[64], count;
} drive_pieces;

static inline bool drive_write(void *context, const void *bytes, size_t count)
{
    drive_pieces *p = context;
    if (!tape_write(p->to, bytes, count)) return false;
    assert_true(p->count < 64);
    p->ends[p->count++] = p->to->used;
    return true;
}

/* As whoever writes states by himself, and wrongly. */
static inline void drive_seal(const drive_pieces *p)
{
    uint64_t seal = 0;
    for (size_t i = 0; i + 1 < p->count; i++) {
        const size_t begin = i > 0 ? p->ends[i - 1] : 0;
        seal = cd_seal_add(seal, p->to->bytes + begin, p->ends[i] - begin);
    }
    memcpy(p->to->bytes + p->ends[p->count - 1] - sizeof seal, &seal, sizeof seal);
}

/* A dtype that is none, or none of a gradient, is refused though it is sealed. */
static inline void drive_dtypes(drive *d, cddp_rank *rank, cddp_group *group, const drive_pieces *p,
                                const tape *kept)
{
    static const int64_t wrong[] = {CDDP_I32, CDDP_U8, CDDP_DTYPE_COUNT, INT64_C(1) << 32, -1};
    size_t refused = 0;
    for (size_t i = 1; i + 1 < p->count; i++) {
        if (p->ends[i] - p->ends[i - 1] != d->slot_bytes) continue;
        unsigned char *slot = p->to->bytes + p->ends[i - 1];
        for (size_t k = 0; k < 2 * sizeof wrong / sizeof wrong[0]; k++) {
            int64_t numel = 0;
            memcpy(&numel, slot + d->slot_numel[k % 2], sizeof numel);
            if (numel <= 0) continue;
            memcpy(slot + d->slot_dtype[k % 2], &wrong[k / 2], sizeof wrong[0]);
            drive_seal(p);
            assert_int_equal(drive_load(d, rank, group, p->to), CDDP_E_CORRUPT);
            *p->to = *kept;
            refused++;
        }
    }
    assert_true(refused >= sizeof wrong / sizeof wrong[0]);
}

/* A state of which any byte is another one, or the end is missing, is refused. One whose numbers
** are negative and sealed is refused or loaded, and harms nobody. */
static inline void drive_damage(drive *d, cddp_rank *rank, cddp_group *group, const drive_pieces *p)
{
    static const unsigned char flips[] = {0x01, 0x10, 0x80, 0xff};
    static tape kept;
    tape *t = p->to;
    size_t refused = 0;
    kept = *t;
    for (size_t i = 0; i < kept.used * sizeof flips; i++) {
        t->bytes[i / sizeof flips] ^= flips[i % sizeof flips];
        const cddp_status status = drive_load(d, rank, group, t);
        assert_true(status == CDDP_E_CORRUPT || status == CDDP_E_MISMATCH);
        t->bytes[i / sizeof flips] ^= flips[i % sizeof flips];
    }
    for (t->used = 0; t->used < kept.used; t->used++)
        assert_int_equal(drive_load(d, rank, group, t), CDDP_E_CORRUPT);
    for (size_t at = 0; at + 8 <= kept.used; at += 8) {
        memset(t->bytes + at + 4, 0xff, 4);
        drive_seal(p);
        const cddp_status status = drive_load(d, rank, group, t);
        if (at == 0) assert_int_equal(status, CDDP_E_CORRUPT); /* what it begins with */
        refused += status != CDDP_OK;
        *t = kept;
    }
    assert_true(refused >= 1);
    if (d->slot_bytes > 0) drive_dtypes(d, rank, group, p, &kept);
}

static inline void drive_swap(drive *d, cddp_rank *rank, cddp_group *group, void **self,
                              cddp_error *err)
{
    tape t = {.used = 0};
    drive_pieces pieces = {.to = &t};
    cddp_state_writer writer = {&pieces, drive_write};
    cddp_state_reader reader = {&t, tape_read};
    assert_ok(d->hook->save(*self, &writer, err), err);
    d->hook->destroy(*self);
    *self = NULL;
    assert_ok(drive_make(d, rank, group, self, err), err);
    size_t whole = t.used;
    cddp_error inner = CDDP_ERROR_INIT;
    t.used = whole - 1;
    assert_fails(d->hook->load(*self, &reader, &inner), CDDP_E_CORRUPT, &inner, "ends early");
    t.used = whole;
    if (d->damages) drive_damage(d, rank, group, &pieces);
    t.read = 0;
    assert_ok(d->hook->load(*self, &reader, err), err);
}

static inline cddp_status drive_step(drive *d, cddp_rank *rank, cddp_group *group, void *self,
                                     uint32_t step, cddp_error *err)
{
    float *flat = d->out[rank->rank][step];
    uint32_t ids[2] = {2, 0};
    int64_t first = d->numel / 3 - (d->resized && step + 1 == d->steps ? 4 : 0),
            offsets[2] = {0, first}, lengths[2] = {first, d->numel - first};
    memcpy(flat, d->in[rank->rank][step], (size_t)d->numel * sizeof *flat);
    cddp_tensor buffer = cddp_tensor_of(&d->devices[rank->rank], flat, 0, CDDP_F32, &d->numel, 1);
    cddp_tensor gradients[2] = {cddp_tensor_slice(&buffer, 0, lengths[0]),
                                cddp_tensor_slice(&buffer, first, lengths[1])};
    cddp_grad_bucket bucket = {.size = sizeof bucket,
                               .bucket_count = 1,
                               .is_last = true,
                               .buffer = buffer,
                               .parameter_count = 2,
                               .parameter_ids = ids,
                               .offsets = offsets,
                               .lengths = lengths,
                               .gradients = gradients,
                               .parameters = gradients};
    cddp_future future = {.size = sizeof future};
    cddp_status status = d->hook->run(self, &bucket, group, &future, err);
    for (bool complete = false; status == CDDP_OK && !complete;)
        status = cd_future_advance(&future, self, &bucket, &complete, err);
    if (status == CDDP_OK) assert_ptr_equal(future.result.storage, flat);
    return status;
}

static inline cddp_status drive_train(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    drive *d = f->data;
    cddp_group *group = NULL;
    void *self = NULL;
    drive_watch(d, rank);
    cddp_status status = fixture_group(f, rank, "world", &group, err);
    if (status == CDDP_OK) status = drive_make(d, rank, group, &self, err);
    for (uint32_t step = 0; status == CDDP_OK && step < d->steps; step++) {
        if (d->swap_at != 0 && step == d->swap_at) drive_swap(d, rank, group, &self, err);
        status = drive_step(d, rank, group, self, step, err);
    }
    if (d->expected != CDDP_OK) {
        assert_fails(status, d->expected, err, d->words);
        cd_error_reset(err);
        status = CDDP_OK;
    }
    if (self != NULL) d->hook->destroy(self);
    assert_int_equal(d->watches[rank->rank].live_count, 0);
    cddp_group_destroy(group);
    return status;
}

static inline void drive_run(drive *d)
{
    sim_fixture f;
    memset(&f, 0, sizeof f);
    f.config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    f.config.world_size = d->ranks;
    f.data = d;
    fixture_run(&f, drive_train);
    fixture_destroy(&f);
}
