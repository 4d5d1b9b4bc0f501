/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of gradients do not depend on compiler, optimisation or instruction set: digests of
** every model's gradients, stored. They were made once with GCC 12 -O0 and are the same with Clang
** 14 and -O3. A change that is meant to change numbers changes them here, and says why.
*/
#include "tests/unit/core/model/fixture.h"

#include "core/base/hash.h"

#include <inttypes.h>
#include <stdio.h>

static const int64_t ids[5] = {3, 0, 7, 12, 5};

static const struct {
    const char *name, *options;
    cddp_dtype dtype;
    uint64_t digest;
} cases[] = {
    /* clang-format off */
    {"mlp", "norm=layer,activation=gelu,dropout=0.25,heads=2", CDDP_F32, UINT64_C(0x45bbce2b560f90df)},
    {"mlp", "norm=layer,activation=gelu,loss=bce", CDDP_F64, UINT64_C(0xf3cc98705a23d87b)},
    {"mlp", "norm=batch,activation=tanh,loss=ce", CDDP_F32, UINT64_C(0x12cf80b52b251f77)},
    {"mlp", "activation=sigmoid", CDDP_BF16, UINT64_C(0x93593a4bef01d5bf)},
    {"mlp", "checkpoint=reentrant", CDDP_F16, UINT64_C(0x3dc3b09e285a15f9)},
    {"chain", NULL, CDDP_F32, UINT64_C(0xd66b79d06302c4a9)},
    {"cnn", "norm=batch,channels=3:8:16,size=16", CDDP_F32, UINT64_C(0x9e612b2e2e9e237d)},
    {"cnn", NULL, CDDP_F64, UINT64_C(0xe8ac5618f2e7f6c8)},
    {"transformer", "width=24,heads=3,positions=9", CDDP_F32, UINT64_C(0xd932cb71cb0ee2c8)},
    {"transformer", "ragged=1", CDDP_F64, UINT64_C(0x5dd6ee10cc66e9b8)},
    {"tied_lm", NULL, CDDP_F32, UINT64_C(0xd054d212fb484a85)},
    {"gan", "norm=batch", CDDP_F32, UINT64_C(0x65f08e93ba6066b4)},
    {"moe", NULL, CDDP_F32, UINT64_C(0x8d069b338a35cffb)},
    {"branchy", "loss=mse", CDDP_F32, UINT64_C(0x665a7a25b78881e2)},
    {"embedding_bag", NULL, CDDP_F32, UINT64_C(0xaf54dddfb020136a)},
    {"params", "list=a:33x17;b:7:f16;c:5:c64", CDDP_F32, UINT64_C(0xd896340aed09537f)},
    /* clang-format on */
};

TEST(bits, of_gradients_are_the_stored_ones)
{
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        cddp_error err;
        cd_prng prng = cd_prng_seed(11); /* not the test's seed: the digests are of this one */
        cd_model *model = NULL;
        cd_graph *graph = NULL;
        cd_batch batch;
        cd_outputs outputs;
        cd_value *loss = NULL;
        uint64_t digest = 0;
        cd_model_options options = {.name = cases[k].name,
                                    .options = cases[k].options,
                                    .dtype = cases[k].dtype,
                                    .device = cddp_device_cpu(),
                                    .prng = &prng};
        assert_ok(cd_model_create(&options, &model, &err), &err);
        assert_ok(cd_graph_create(model->module, NULL, &graph, &err), &err);
        cd_batch_request request = {.sample_ids = ids, .sample_count = 5, .prng = &prng};
        assert_ok(cd_batch_make(graph, model, &request, &batch, &err), &err);
        assert_ok(cd_model_forward(model, graph, &batch, &outputs, &err), &err);
        assert_ok(cd_model_loss(model, graph, &batch, &outputs, UINT32_MAX, &loss, &err), &err);
        cd_backward_options backward = {.roots = &loss, .root_count = 1};
        assert_ok(cd_graph_backward(graph, &backward, &err), &err);
        for (size_t p = 0; p < model->module->parameter_count; p++) {
            const cddp_grad *grad = &model->module->parameters[p].grad;
            uint64_t one = 0;
            if (grad->kind == CDDP_GRAD_UNDEFINED) continue;
            assert_ok(grad->value.device->digest(&grad->value, &one, &err), &err);
            digest = cd_hash_mix(digest, one);
        }
        cd_graph_destroy(graph);
        cd_model_destroy(model);
        if (digest != cases[k].digest)
            fail_msg("%s %s %s: digest 0x%016" PRIx64 ", stored 0x%016" PRIx64, cases[k].name,
                     cases[k].options != NULL ? cases[k].options : "",
                     cddp_dtype_name(cases[k].dtype), digest, cases[k].digest);
    }
}

TEST_MAIN()
