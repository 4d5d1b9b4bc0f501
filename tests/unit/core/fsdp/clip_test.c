/* SPDX-License-Identifier: Apache-2.0 */
/* clip_grad_norm_ over shards, against the norm of the whole gradient. */
#include "tests/unit/core/fsdp/fixture.h"

#include <math.h>

typedef struct clip {
    cddp_fsdp_strategy strategy;
    cddp_fsdp_layout layout;
    double p, max_norm;
    bool mixes; /* unit "a" is NO_SHARD, the others are cut */
} clip;

static double norm_of(const toy *t, const clip *c)
{
    double total = 0;
    for (size_t i = 0; i < TOY_PARAMETERS; i++)
        for (int64_t e = 0; e < toy_numel(i); e++) {
            double sum = 0;
            for (uint32_t r = 0; r < t->l->w; r++) sum += (double)toy_gradient(t, r, i, e, 0);
            sum = fabs((double)(float)(sum / t->l->w));
            total = isinf(c->p) ? fmax(total, sum) : total + pow(sum, c->p);
        }
    return isinf(c->p) ? total : pow(total, 1 / c->p);
}

static void clips(lane *l)
{
    const clip *c = l->lab->data;
    const cddp_fsdp_unit_options whole = {"a", CDDP_FSDP_NO_SHARD,
                                          cddp_fsdp_mixed_precision_default()};
    toy t;
    double total = 0;
    toy_init(&t, l);
    t.options.strategy = c->strategy;
    t.options.layout = c->layout;
    t.options.unit_options = c->mixes ? &whole : NULL;
    t.options.unit_options_count = c->mixes;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    const double wanted = norm_of(&t, c);
    CHECK_OK(cddp_fsdp_clip_grad_norm(t.fsdp, c->max_norm, c->p, &total, &l->err));
    CHECK(fabs(total - wanted) <= 1e-12 * wanted);
    const double factor = c->max_norm / (wanted + 1e-6);
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CHECK_OK(cddp_fsdp_get_piece(t.fsdp, i, &piece, &l->err));
        for (int64_t e = 0; e < piece.count; e++) {
            double sum = 0;
            for (uint32_t r = 0; r < l->w; r++)
                sum += (double)toy_gradient(&t, r, i, piece.first + e, 0);
            const double left = (double)(float)(sum / l->w) * (factor < 1 ? factor : 1);
            /* the factor and the product are rounded to f32: two units of 2^-24 */
            CHECK(fabs(toy_get(l, &piece.gradient.value, e) - left) <= fabs(left) * 0x1p-22);
        }
    }
    toy_fini(&t);
}

TEST(clip, uses_the_norm_of_the_whole_gradient) /* FCL-01, FCL-04, FCL-06, TI-N-03 */
{
    static const double norms[] = {1, 2, 3, INFINITY}, maxima[] = {1, 2.5, 1e9};
    for (uint32_t world = 1; world <= 5; world++) {
        for (int i = 0; i < 4 * 3 * 2 * 4; i++) {
            clip c = {.p = norms[i % 4],
                      .max_norm = maxima[i / 4 % 3],
                      .layout = (cddp_fsdp_layout)(i / 12 % 2),
                      .strategy = i / 24 == 1 ? CDDP_FSDP_NO_SHARD : CDDP_FSDP_FULL_SHARD,
                      .mixes = i / 24 == 2};
            cd_test_row("W %u, p %g, max %g, layout %d, strategy %d%s", world, c.p, c.max_norm,
                        (int)c.layout, (int)c.strategy, c.mixes ? ", mixed" : "");
            lab_of(world, clips, &c);
        }
    }
}

static void refuses(lane *l)
{
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    CHECK_OK(cddp_fsdp_no_sync_begin(t.fsdp, &l->err));
    toy_iterate(&t, 0);
    CHECK_FAILS(cddp_fsdp_clip_grad_norm(t.fsdp, 1, 2, NULL, &l->err), CDDP_E_STATE, "FSY-09");
    CHECK_OK(cddp_fsdp_no_sync_end(t.fsdp, &l->err));
    CHECK_OK(cddp_fsdp_zero_grad(t.fsdp, true, &l->err));
    CHECK_OK(cddp_fsdp_clip_grad_norm(t.fsdp, 1, 2, NULL, &l->err)); /* no gradient: 0 */
    CHECK_FAILS(cddp_fsdp_clip_grad_norm(t.fsdp, 1, 0.5, NULL, &l->err), CDDP_E_ARG, "norm_type");
    CHECK_FAILS(cddp_fsdp_clip_grad_norm(t.fsdp, NAN, 2, NULL, &l->err), CDDP_E_ARG, "max_norm");
    CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err));
    CHECK_FAILS(cddp_fsdp_clip_grad_norm(t.fsdp, 1, 2, NULL, &l->err), CDDP_E_STATE,
                "between iterations");
    toy_fini(&t);
}
TEST(clip, is_refused_inside_of_a_window) { lab_of(2, refuses, NULL); } /* FSY-09 */

TEST_MAIN()
