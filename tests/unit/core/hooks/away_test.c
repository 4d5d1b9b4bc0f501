/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks on a device whose storage the host may not touch, as a GPU's. They give the bits that they
** give on the host, and go on from a saved state, which is loaded into host memory.
**
** The device is the CPU without CDDP_DEVICE_HOST, whose operations for hooks are written here once
** more, by what include/cddp/device.h says of them.
*/
#include "tests/unit/core/hooks/drive.h"

#include "core/base/prng.h"
#include "core/tensor/linalg.h"
#include "core/tensor/quantizer.h"

#include <math.h>

static cddp_status orthonormalize(const cddp_tensor *matrix, double epsilon, cddp_stream *stream,
                                  cddp_error *err)
{
    double values[DRIVE_NUMEL];
    const cddp_tensor wide = cddp_tensor_of(matrix->device, values, 0, CDDP_F64, matrix->sizes, 2);
    assert_true(cddp_tensor_numel(matrix) <= DRIVE_NUMEL);
    CD_TRY(matrix->device->copy(&wide, matrix, stream, err));
    cd_orthonormalize(values, matrix->sizes[0], matrix->sizes[1], epsilon);
    return CD_PASS(matrix->device->copy(matrix, &wide, stream, err));
}

static cddp_status quantize(const cddp_tensor *codes, const cddp_tensor *rows,
                            const cddp_tensor *values, cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    (void)err;
    const int64_t length = values->sizes[1];
    for (int64_t r = 0; r < values->sizes[0]; r++) {
        const float *row = (const float *)values->storage + r * length;
        cd_quantizer_range range = {0, 0};
        for (int64_t i = 0; i < length; i++) range = cd_quantizer_see(range, row[i]);
        const cd_quantizer q = ((cd_quantizer *)rows->storage)[r] = cd_quantizer_of(range);
        for (int64_t i = 0; i < length; i++)
            ((uint8_t *)codes->storage)[r * length + i] = cd_quantizer_encode(q, row[i]);
    }
    return CDDP_OK;
}

static cddp_status dequantize_sum(const cddp_tensor *dst, const cddp_tensor *codes,
                                  const cddp_tensor *rows, cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    (void)err;
    const int64_t row_count = codes->sizes[1], length = codes->sizes[2];
    assert_true(rows->sizes[0] == codes->sizes[0] && rows->sizes[1] == row_count);
    assert_int_equal(rows->sizes[2], 2);
    for (int64_t i = 0; i < cddp_tensor_numel(dst); i++) {
        float sum = 0;
        for (int64_t part = 0; part < codes->sizes[0]; part++) {
            const int64_t row = part * row_count + i / length;
            sum +=
                cd_quantizer_decode(((const cd_quantizer *)rows->storage)[row],
                                    ((const uint8_t *)codes->storage)[row * length + i % length]);
        }
        ((float *)dst->storage)[dst->offset + i] = sum;
    }
    return CDDP_OK;
}

static cddp_status take_largest(const cddp_tensor *flat, const cddp_tensor *indices,
                                const cddp_tensor *values, cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    (void)err;
    bool is_taken[DRIVE_NUMEL] = {false};
    const int64_t numel = cddp_tensor_numel(flat), k = cddp_tensor_numel(indices);
    float *from = (float *)flat->storage + flat->offset;
    for (int64_t taken = 0; taken < k; taken++) {
        int64_t best = -1;
        for (int64_t i = 0; i < numel; i++)
            if (!is_taken[i] && (best < 0 || fabsf(from[i]) > fabsf(from[best]))) best = i;
        is_taken[best] = true;
    }
    for (int64_t i = 0, at = 0; i < numel; i++) {
        if (!is_taken[i]) continue;
        ((int32_t *)indices->storage)[at] = (int32_t)i;
        ((float *)values->storage)[at++] = from[i];
        from[i] = 0;
    }
    return CDDP_OK;
}

static cddp_status add_at(const cddp_tensor *flat, const cddp_tensor *indices,
                          const cddp_tensor *values, cddp_stream *stream, cddp_error *err)
{
    (void)stream;
    (void)err;
    const int32_t *at = (const int32_t *)indices->storage + indices->offset;
    const float *from = (const float *)values->storage + values->offset;
    for (int64_t i = 0; i < cddp_tensor_numel(indices); i++)
        ((float *)flat->storage)[flat->offset + at[i]] += from[i];
    return CDDP_OK;
}

static void put_away(cddp_device *device)
{
    device->name = "away";
    device->flags &= ~(uint32_t)CDDP_DEVICE_HOST;
    device->orthonormalize = orthonormalize;
    device->quantize = quantize;
    device->dequantize_sum = dequantize_sum;
    device->take_largest = take_largest;
    device->add_at = add_at;
}

static drive d; /* large; one at a time */

static void drive_of(const char *hook, const char *options)
{
    memset(&d, 0, sizeof d);
    d.hook = cd_hook_find(hook);
    d.options = options;
    d.ranks = 2;
    d.steps = 6;
    d.numel = 90;
    cd_prng prng = cd_prng_seed(7);
    for (uint32_t r = 0; r < d.ranks; r++)
        for (uint32_t s = 0; s < d.steps; s++)
            for (int64_t i = 0; i < d.numel; i++)
                d.in[r][s][i] = (float)cd_prng_between(&prng, -1024, 1024) / 64.0f;
}

TEST(away, hooks_give_the_bits_of_the_host_and_go_on_from_a_saved_state)
{
    static const struct {
        const char *hook, *options;
    } cases[] = {{"reproducible", NULL},
                 {"topk", "k=7"},
                 {"topk", "ratio=0.2,error_feedback=false"},
                 {"quantize_per_tensor", NULL},
                 {"quantize_per_channel", "bucket_size=16"},
                 {"powersgd", "start_powerSGD_iter=2"},
                 {"powersgd", "start_powerSGD_iter=1,warm_start=false,use_error_feedback=false"},
                 {"batched_powersgd", "start_powerSGD_iter=2,matrix_approximation_rank=2"},
                 {"fp16_compress", NULL},
                 {"post_local_sgd", "start_localSGD_iter=3,subgroup_size=1"}};
    static float on_host[DRIVE_RANKS][DRIVE_STEPS][DRIVE_NUMEL];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s %s", cases[i].hook, cases[i].options);
        drive_of(cases[i].hook, cases[i].options);
        const bool has_state = d.hook->save != NULL;
        drive_run(&d);
        memcpy(on_host, d.out, sizeof on_host);
        for (uint32_t at = 0; at < (has_state ? 5u : 1u); at++) {
            drive_of(cases[i].hook, cases[i].options);
            d.place = put_away;
            d.swap_at = at;
            drive_run(&d);
            assert_memory_equal(d.out, on_host, sizeof on_host);
        }
    }
}

TEST_MAIN()
