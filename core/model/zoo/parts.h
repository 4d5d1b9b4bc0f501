/* SPDX-License-Identifier: Apache-2.0 */
/* Parts that models are put together from: parameters under PyTorch's names, initialised as
** PyTorch's defaults are (uniform within 1/√fan_in), and how they run.
*/
#pragma once
#include "core/model/layers/conv.h"
#include "core/model/layers/norm.h"
#include "core/model/type.h"

typedef struct cd_linear_part {
    uint32_t weight, bias;
    bool has_bias;
} cd_linear_part;

typedef struct cd_linear_spec {
    const char *name; /* scope: "<name>.weight", "<name>.bias" */
    int64_t in, out;
    bool bias;
    int64_t positions; /* how often it runs per sample, for the cost; 0: once */
} cd_linear_spec;
cddp_status cd_linear_register(cd_model *model, const cd_linear_spec *spec, cd_linear_part *part,
                               cddp_error *err) CDDP_MUST_CHECK;
/* The weight is another layer's of the same sizes, under a second name; the bias is its own. */
cddp_status cd_linear_register_tied(cd_model *model, const cd_linear_spec *spec, uint32_t weight,
                                    cd_linear_part *part, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_linear_run(cd_graph *graph, const cd_linear_part *part, cd_value *x, cd_value **y,
                          cddp_error *err) CDDP_MUST_CHECK;
/* With the parameters as constants: they get no gradient. */
cddp_status cd_linear_run_frozen(cd_graph *graph, const cd_linear_part *part, cd_value *x,
                                 cd_value **y, cddp_error *err) CDDP_MUST_CHECK;

typedef struct cd_conv_part {
    cd_linear_part parameters;
    cd_conv2d conv;
} cd_conv_part;
typedef struct cd_conv_spec {
    const char *name;
    int64_t in, out, kernel, stride, padding;
    int64_t positions; /* of the output plane, for the cost */
} cd_conv_spec;
cddp_status cd_conv_register(cd_model *model, const cd_conv_spec *spec, cd_conv_part *part,
                             cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_conv_run(cd_graph *graph, const cd_conv_part *part, cd_value *x, bool frozen,
                        cd_value **y, cddp_error *err) CDDP_MUST_CHECK;

typedef struct cd_layer_norm_part {
    uint32_t weight, bias;
} cd_layer_norm_part;
cddp_status cd_layer_norm_register(cd_model *model, const char *name, int64_t width,
                                   cd_layer_norm_part *part, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_layer_norm_run(cd_graph *graph, const cd_layer_norm_part *part, cd_value *x,
                              cd_value **y, cddp_error *err) CDDP_MUST_CHECK;

/* "<name>.weight" (rows, width), uniform in [-1/8, 1/8). */
cddp_status cd_table_register(cd_model *model, const char *name, int64_t rows, int64_t width,
                              bool sparse, uint32_t *weight, cddp_error *err) CDDP_MUST_CHECK;

/* "none|relu|gelu|tanh|sigmoid" by position. */
#define CD_ACTIVATIONS "none|relu|gelu|tanh|sigmoid"
cddp_status cd_activation_run(cd_graph *graph, int64_t activation, cd_value *x, cd_value **y,
                              cddp_error *err) CDDP_MUST_CHECK;

/* "mse|dot|bce|ce" by position: real targets but for ce. */
#define CD_LOSSES "mse|dot|bce|ce"
enum { CD_LOSS_MSE, CD_LOSS_DOT, CD_LOSS_BCE, CD_LOSS_CE };
cddp_status cd_loss_run(cd_graph *graph, int64_t loss, cd_value *y, const cddp_tensor *target,
                        cd_value **losses, cddp_error *err) CDDP_MUST_CHECK;
/* The target that goes with it for an output of these sizes (without samples). */
cd_field cd_loss_target(int64_t loss, const char *name, const int64_t *sizes, uint32_t dim_count);
