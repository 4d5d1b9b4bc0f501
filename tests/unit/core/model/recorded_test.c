/* SPDX-License-Identifier: Apache-2.0 */
/* Model recorded: gradients come back bit for bit, and a damaged file is refused or read, never
** trusted. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/core/model/fixture.h"

#include "core/model/gradient_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 2
#define ROWS 2

typedef struct image {
    char magic[8];
    uint32_t version, rank, world_size, parameter_count;
    uint64_t initial_begin, row_begin, row_bytes, reserved[2];
    cd_gradient_parameter parameters[2];
    float initial[4]; /* a: 3 and a pad; b: frozen, 0 elements */
    struct row {
        unsigned char present[8];
        float gradient[4];
    } rows[ROWS];
} image;

static char folder[] = "/tmp/cddp_recorded_XXXXXX";

static image make(uint32_t rank)
{
    image f = {.version = 1,
               .rank = rank,
               .world_size = RANKS,
               .parameter_count = 2,
               .initial_begin = offsetof(image, initial),
               .row_begin = offsetof(image, rows),
               .row_bytes = sizeof f.rows[0],
               .parameters = {{.name = "a.weight",
                               .dtype = CDDP_F32,
                               .dim_count = 1,
                               .sizes = {3},
                               .is_trained = 1},
                              {.name = "b", .dtype = CDDP_F32, .dim_count = 1, .sizes = {0}}},
               .initial = {1.5F, -2.0F, 0.1F, 0}};
    memcpy(f.magic, "cddpgrad", 8);
    for (int i = 0; i < ROWS; i++)
        f.rows[i] = (struct row){{1, 0}, {-0.0F, 0.1F * (float)(i + 1), (float)rank - 7.25F, 0}};
    return f;
}

static void write_file(uint32_t rank, const void *bytes, size_t byte_count)
{
    char path[128];
    snprintf(path, sizeof path, "%s/rank.%u.gradients", folder, (unsigned)rank);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, byte_count, file), byte_count);
    assert_int_equal(fclose(file), 0);
}

static void remove_file(uint32_t rank)
{
    char path[128];
    snprintf(path, sizeof path, "%s/rank.%u.gradients", folder, (unsigned)rank);
    unlink(path);
}

static void make_files(void)
{
    if (strstr(folder, "XXXXXX") != NULL) assert_non_null(mkdtemp(folder));
    for (uint32_t r = 0; r < RANKS; r++) {
        const image f = make(r);
        write_file(r, &f, sizeof f);
    }
}

static const char *from(void)
{
    static char options[64];
    snprintf(options, sizeof options, "from=%s", folder);
    return options;
}

TEST(recorded, gives_each_sample_its_gradient_bit_for_bit)
{
    make_files();
    model_fixture m;
    cd_outputs outputs;
    cd_value *loss = NULL;
    model_open(&m, &(model_case){"recorded", from(), CDDP_F32, false, NULL});
    assert_int_equal(m.model->recorded_ranks, RANKS);
    const image first = make(0);
    assert_memory_equal(m.model->module->parameters[0].tensor.storage, first.initial, 12);
    for (int64_t sample = 0; sample < RANKS * ROWS; sample++) {
        const image f = make((uint32_t)sample % RANKS);
        assert_ok(model_run(&m, &(model_step){.ids = &sample, .count = 1}, &outputs, &loss),
                  &m.err);
        const cddp_grad *grad = &m.model->module->parameters[0].grad;
        assert_int_equal(grad->kind, CDDP_GRAD_DENSE);
        assert_memory_equal(grad->value.storage, f.rows[sample / RANKS].gradient, 12);
        assert_int_equal(m.model->module->parameters[1].grad.kind, CDDP_GRAD_UNDEFINED);
    }
    const int64_t beyond = RANKS * ROWS;
    assert_fails(model_run(&m, &(model_step){.ids = &beyond, .count = 1}, &outputs, &loss),
                 CDDP_E_CONFIG, &m.err, "2 backwards; number 3 is asked for");
    model_close(&m);
}

static cddp_status create_with(const cddp_allocator *allocator, bool is_dyadic, const char *options,
                               cddp_error *err)
{
    const cd_prng prng = cd_prng_seed(1);
    cd_model *model = NULL;
    const cd_model_options o = {.name = "recorded",
                                .options = options,
                                .dtype = CDDP_F32,
                                .dyadic = is_dyadic,
                                .device = cddp_device_cpu(),
                                .allocator = allocator,
                                .prng = &prng};
    const cddp_status status = cd_model_create(&o, &model, err);
    cd_model_destroy(model);
    return status;
}

static cddp_status create(bool is_dyadic, const char *options, cddp_error *err)
{
    return create_with(NULL, is_dyadic, options, err);
}

static cddp_status open_and_close(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cd_gradient_file file = {.rank = 0};
    cddp_status status = cd_gradient_file_open(&file, folder, 0, allocator, err);
    if (status == CDDP_OK) status = create_with(allocator, false, from(), err);
    cd_gradient_file_close(&file);
    return status;
}

TEST(recorded, running_out_of_memory_at_any_point_leaks_nothing)
{
    make_files();
    assert_true(cd_test_oom_loop(open_and_close, NULL) > 5);
}

TEST(recorded, refuses_what_is_no_recording_of_all_ranks)
{
    cddp_error err = CDDP_ERROR_INIT;
    make_files();
    assert_fails(create(false, NULL, &err), CDDP_E_CONFIG, &err, "from=DIR");
    assert_fails(create(true, from(), &err), CDDP_E_CONFIG, &err, "model.exact = false");
    assert_fails(create(false, "from=/nowhere", &err), CDDP_E_IO, &err, "--gradients");
    image other = make(1);
    other.parameters[0].sizes[0] = 4; /* 16 bytes in a row, as before */
    write_file(1, &other, sizeof other);
    assert_fails(create(false, from(), &err), CDDP_E_CONFIG, &err, "another shape");
    other = make(1);
    other.world_size = 3;
    write_file(1, &other, sizeof other);
    assert_fails(create(false, from(), &err), CDDP_E_CONFIG, &err, "is of 2 ranks");
    other = make(0);
    write_file(1, &other, sizeof other);
    assert_fails(create(false, from(), &err), CDDP_E_CORRUPT, &err, "is of another rank");
    remove_file(1);
    assert_fails(create(false, from(), &err), CDDP_E_IO, &err, "rank.1.gradients' is not there");
    make_files();
}

TEST(recorded, reads_or_refuses_a_damaged_file_and_leaks_nothing)
{
    make_files();
    for (size_t cut = 0; cut < sizeof(image); cut += 7) {
        cddp_error err = CDDP_ERROR_INIT;
        const image f = make(1);
        write_file(1, &f, cut);
        const cddp_status status = create(false, from(), &err);
        assert_int_equal(status == CDDP_OK, cut >= offsetof(image, rows));
    }
    for (size_t at = 0; at < offsetof(image, initial); at++) {
        cddp_error err = CDDP_ERROR_INIT;
        image f = make(1);
        ((unsigned char *)&f)[at] ^= 0x80;
        write_file(1, &f, sizeof f);
        if (create(false, from(), &err) != CDDP_OK) assert_true(strlen(err.message) > 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) remove_file(r);
    assert_int_equal(rmdir(folder), 0);
}

TEST_MAIN()
