/* SPDX-License-Identifier: Apache-2.0 */
/* Registration and running of the common parts. */
#include "core/model/zoo/parts.h"

#include "core/base/error.h"
#include "core/model/layers/activation.h"
#include "core/model/layers/linear.h"
#include "core/model/layers/loss.h"
#include "core/model/op.h"

#include <math.h>

static cd_init uniform(int64_t fan_in)
{
    return (cd_init){CD_INIT_UNIFORM, 1 / sqrt((double)(fan_in > 0 ? fan_in : 1))};
}

static uint64_t positions_of(const cd_linear_spec *spec)
{
    return spec->positions > 0 ? (uint64_t)spec->positions : 1;
}

static uint64_t weight_cost(const cd_linear_spec *spec)
{
    return 2 * (uint64_t)(spec->out * spec->in) * positions_of(spec);
}

static cddp_status register_bias(cd_model *model, const cd_linear_spec *spec, cd_linear_part *made,
                                 cddp_error *err)
{
    cd_parameter_spec p = {.name = "bias",
                           .dtype = model->dtype,
                           .dim_count = 1,
                           .sizes = {spec->out},
                           .init = uniform(spec->in),
                           .forward_cost = (uint64_t)spec->out * positions_of(spec)};
    made->has_bias = spec->bias;
    return spec->bias ? cd_module_add_parameter(model->module, &p, &made->bias, err) : CDDP_OK;
}

cddp_status cd_linear_register(cd_model *model, const cd_linear_spec *spec, cd_linear_part *part,
                               cddp_error *err)
{
    cd_linear_part made = {0};
    CD_TRY(cd_module_push(model->module, err, "%s", spec->name));
    cd_parameter_spec p = {.name = "weight",
                           .dtype = model->dtype,
                           .dim_count = 2,
                           .sizes = {spec->out, spec->in},
                           .init = uniform(spec->in),
                           .forward_cost = weight_cost(spec)};
    CD_TRY(cd_module_add_parameter(model->module, &p, &made.weight, err));
    CD_TRY(register_bias(model, spec, &made, err));
    cd_module_pop(model->module);
    *part = made;
    return CDDP_OK;
}

cddp_status cd_linear_register_tied(cd_model *model, const cd_linear_spec *spec, uint32_t weight,
                                    cd_linear_part *part, cddp_error *err)
{
    cd_linear_part made = {.weight = weight};
    CD_TRY(cd_module_push(model->module, err, "%s", spec->name));
    CD_TRY(cd_module_add_alias(model->module, "weight", weight, err));
    CD_TRY(register_bias(model, spec, &made, err));
    cd_module_pop(model->module);
    model->module->parameters[weight].forward_cost += weight_cost(spec);
    model->module->parameters[weight].backward_cost += 2 * weight_cost(spec);
    *part = made;
    return CDDP_OK;
}

static cddp_status parameter(cd_graph *graph, uint32_t index, bool frozen, cd_value **value,
                             cddp_error *err)
{
    CD_TRY(cd_graph_parameter(graph, index, value, err));
    return frozen ? cd_graph_detach(graph, *value, value, err) : CDDP_OK;
}

static cddp_status linear_run(cd_graph *graph, const cd_linear_part *part, cd_value *x, bool frozen,
                              cd_value **y, cddp_error *err)
{
    cd_value *weight = NULL, *bias = NULL;
    CD_TRY(parameter(graph, part->weight, frozen, &weight, err));
    if (part->has_bias) CD_TRY(parameter(graph, part->bias, frozen, &bias, err));
    return CD_PASS(cd_linear(graph, x, weight, bias, y, err));
}

cddp_status cd_linear_run(cd_graph *graph, const cd_linear_part *part, cd_value *x, cd_value **y,
                          cddp_error *err)
{
    return CD_PASS(linear_run(graph, part, x, false, y, err));
}

cddp_status cd_linear_run_frozen(cd_graph *graph, const cd_linear_part *part, cd_value *x,
                                 cd_value **y, cddp_error *err)
{
    return CD_PASS(linear_run(graph, part, x, true, y, err));
}

cddp_status cd_conv_register(cd_model *model, const cd_conv_spec *spec, cd_conv_part *part,
                             cddp_error *err)
{
    cd_conv_part made = {.parameters.has_bias = true, .conv = {spec->stride, spec->padding}};
    int64_t fan_in = spec->in * spec->kernel * spec->kernel;
    CD_TRY(cd_module_push(model->module, err, "%s", spec->name));
    cd_parameter_spec p = {.name = "weight",
                           .dtype = model->dtype,
                           .dim_count = 4,
                           .sizes = {spec->out, spec->in, spec->kernel, spec->kernel},
                           .init = uniform(fan_in),
                           .forward_cost = 2 * (uint64_t)(spec->out * fan_in * spec->positions)};
    CD_TRY(cd_module_add_parameter(model->module, &p, &made.parameters.weight, err));
    p.name = "bias", p.dim_count = 1, p.forward_cost = (uint64_t)(spec->out * spec->positions);
    CD_TRY(cd_module_add_parameter(model->module, &p, &made.parameters.bias, err));
    cd_module_pop(model->module);
    *part = made;
    return CDDP_OK;
}

cddp_status cd_conv_run(cd_graph *graph, const cd_conv_part *part, cd_value *x, bool frozen,
                        cd_value **y, cddp_error *err)
{
    cd_value *operands[3] = {x};
    CD_TRY(parameter(graph, part->parameters.weight, frozen, &operands[1], err));
    CD_TRY(parameter(graph, part->parameters.bias, frozen, &operands[2], err));
    return CD_PASS(cd_conv2d_layer(graph, operands, &part->conv, y, err));
}

cddp_status cd_layer_norm_register(cd_model *model, const char *name, int64_t width,
                                   cd_layer_norm_part *part, cddp_error *err)
{
    cd_layer_norm_part made = {0};
    CD_TRY(cd_module_push(model->module, err, "%s", name));
    cd_parameter_spec p = {.name = "weight",
                           .dtype = model->dtype,
                           .dim_count = 1,
                           .sizes = {width},
                           .init = {CD_INIT_ONE, 0}};
    CD_TRY(cd_module_add_parameter(model->module, &p, &made.weight, err));
    p.name = "bias", p.init.kind = CD_INIT_ZERO;
    CD_TRY(cd_module_add_parameter(model->module, &p, &made.bias, err));
    cd_module_pop(model->module);
    *part = made;
    return CDDP_OK;
}

cddp_status cd_layer_norm_run(cd_graph *graph, const cd_layer_norm_part *part, cd_value *x,
                              cd_value **y, cddp_error *err)
{
    cd_value *weight = NULL, *bias = NULL;
    CD_TRY(cd_graph_parameter(graph, part->weight, &weight, err));
    CD_TRY(cd_graph_parameter(graph, part->bias, &bias, err));
    return CD_PASS(cd_layer_norm(graph, x, weight, bias, y, err));
}

cddp_status cd_table_register(cd_model *model, const char *name, int64_t rows, int64_t width,
                              bool sparse, uint32_t *weight, cddp_error *err)
{
    if (sparse && cd_device_layers(model->module->device) != NULL)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model %s: sparse gradients are made in the host's memory, not on device %s",
                       model->type->name, model->module->device->name);
    if (sparse && !cd_device_is_direct(model->module->device))
        return cd_fail(err, CDDP_E_CONFIG,
                       "model %s: sparse gradients need a device that computes, not %s",
                       model->type->name, model->module->device->name);
    if (sparse && model->dtype != model->compute_dtype)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model %s: sparse gradients need f32 or f64 parameters, not %s",
                       model->type->name, cddp_dtype_name(model->dtype));
    CD_TRY(cd_module_push(model->module, err, "%s", name));
    cd_parameter_spec p = {.name = "weight",
                           .dtype = model->dtype,
                           .dim_count = 2,
                           .sizes = {rows, width},
                           .init = {CD_INIT_UNIFORM, 0.125},
                           .expect_sparse = sparse,
                           .forward_cost = (uint64_t)(width > 0 ? width : 1)};
    CD_TRY(cd_module_add_parameter(model->module, &p, weight, err));
    cd_module_pop(model->module);
    return CDDP_OK;
}

cddp_status cd_activation_run(cd_graph *graph, int64_t activation, cd_value *x, cd_value **y,
                              cddp_error *err)
{
    static cddp_status (*const layers[])(cd_graph *, cd_value *, cd_value **,
                                         cddp_error *) = {NULL, cd_relu, cd_gelu_layer,
                                                          cd_tanh_layer, cd_sigmoid_layer};
    if (layers[activation] != NULL) return CD_PASS(layers[activation](graph, x, y, err));
    *y = x;
    return CDDP_OK;
}

cddp_status cd_loss_run(cd_graph *graph, int64_t loss, cd_value *y, const cddp_tensor *target,
                        cd_value **losses, cddp_error *err)
{
    static cddp_status (*const layers[])(cd_graph *, cd_value *, cd_value *, cd_value **,
                                         cddp_error *) = {cd_squared_error, cd_inner_product,
                                                          cd_bce_with_logits};
    if (loss == CD_LOSS_CE) return CD_PASS(cd_cross_entropy(graph, y, target, losses, err));
    cd_value *wanted = NULL;
    CD_TRY(cd_graph_input(graph, target, &wanted, err));
    return CD_PASS(layers[loss](graph, y, wanted, losses, err));
}

cd_field cd_loss_target(int64_t loss, const char *name, const int64_t *sizes, uint32_t dim_count)
{
    cd_field field = {.name = name, .kind = CD_FIELD_REAL, .dim_count = dim_count};
    for (uint32_t i = 0; i < dim_count; i++) field.sizes[i] = sizes[i];
    if (loss != CD_LOSS_CE) return field;
    field.kind = CD_FIELD_CLASS;
    field.dim_count--;
    field.class_count = sizes[dim_count - 1];
    return field;
}
