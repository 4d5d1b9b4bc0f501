/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/core/model/fixture.h"

#include "core/model/type.h"
#include "core/tensor/cpu.h"
#include "core/tensor/dtype.h"

#include <string.h>

void fixture_open(fixture *f)
{
    memset(f, 0, sizeof *f);
    cd_watch_allocator_init(&f->watch, cddp_allocator_default());
    f->device = cd_device_with_allocator(cddp_device_cpu(), &f->watch.table);
    /* Not the test's seed: a kink of relu, a tie of the routing or two orders with the same sum may
    ** lie anywhere. */
    cd_prng prng = cd_prng_seed(20260101);
    assert_ok(cd_module_create(&f->watch.table, &f->device, &prng, &f->module, &f->err), &f->err);
}

uint32_t fixture_parameter(fixture *f, const char *name, cddp_dtype dtype, const int64_t *sizes,
                           uint32_t dim_count)
{
    uint32_t index = 0;
    cd_parameter_spec spec = {.name = name,
                              .dtype = dtype,
                              .dim_count = dim_count,
                              .init = {CD_INIT_UNIFORM, 1}};
    for (uint32_t i = 0; i < dim_count; i++) spec.sizes[i] = sizes[i];
    assert_ok(cd_module_add_parameter(f->module, &spec, &index, &f->err), &f->err);
    /* Thirds have no short binary form: sums of them round, so that their order shows. */
    const cddp_tensor *t = &f->module->parameters[index].tensor;
    for (int64_t i = 0; i < cddp_tensor_numel(t); i++)
        element_set(t, i, element_get(t, i) / 3 * 2.5);
    return index;
}

void fixture_begin(fixture *f)
{
    if (f->graph == NULL)
        assert_ok(cd_graph_create(f->module, &f->watch.table, &f->graph, &f->err), &f->err);
    cd_graph_begin(f->graph);
}

void fixture_close(fixture *f)
{
    if (f->graph != NULL) cd_graph_audit(f->graph);
    cd_graph_destroy(f->graph);
    cd_module_destroy(f->module);
    assert_int_equal(f->watch.live_count, 0);
}

double element_get(const cddp_tensor *t, int64_t i)
{
    return cd_element_get(t->dtype, (unsigned char *)cd_tensor_data(t) +
                                        (size_t)i * cddp_dtype_bytes(t->dtype));
}

void element_set(const cddp_tensor *t, int64_t i, double value)
{
    cd_element_set(t->dtype,
                   (unsigned char *)cd_tensor_data(t) + (size_t)i * cddp_dtype_bytes(t->dtype),
                   value);
}

cddp_status backward_from(fixture *f, cd_value *loss, bool retain_graph)
{
    cd_backward_options options = {.roots = &loss, .root_count = 1, .retain_graph = retain_graph};
    return cd_graph_backward(f->graph, &options, &f->err);
}

cddp_status arrivals_ready(void *context, uint32_t parameter, cddp_grad *grad, cddp_error *err)
{
    arrivals *a = context;
    (void)err;
    assert_true(a->count < 256);
    a->defined[a->count] = grad->kind != CDDP_GRAD_UNDEFINED;
    a->order[a->count++] = parameter;
    return CDDP_OK;
}

void arrivals_listen(fixture *f, arrivals *a)
{
    *a = (arrivals){.count = 0};
    cd_graph_callbacks callbacks = {.context = a, .ready = arrivals_ready};
    cd_graph_set_callbacks(f->graph, &callbacks);
}

void assert_order(const arrivals *a, const uint32_t *wanted, uint32_t count)
{
    assert_int_equal(a->count, count);
    for (uint32_t i = 0; i < count; i++) assert_int_equal(a->order[i], wanted[i]);
}

void model_open(model_fixture *m, const model_case *c)
{
    memset(m, 0, sizeof *m);
    cd_watch_allocator_init(&m->watch, cddp_allocator_default());
    m->device = cd_device_with_allocator(c->device != NULL ? c->device : cddp_device_cpu(),
                                         &m->watch.table);
    m->prng = cd_prng_seed(cd_test_seed());
    cd_model_options options = {.name = c->name,
                                .options = c->options,
                                .dtype = c->dtype,
                                .dyadic = c->dyadic,
                                .device = &m->device,
                                .allocator = &m->watch.table,
                                .prng = &m->prng};
    assert_ok(cd_model_create(&options, &m->model, &m->err), &m->err);
    assert_ok(cd_graph_create(m->model->module, &m->watch.table, &m->graph, &m->err), &m->err);
}

cddp_status model_run(model_fixture *m, const model_step *step, cd_outputs *outputs,
                      cd_value **loss)
{
    cddp_error *err = &m->err;
    cd_batch batch;
    cd_batch_request request = {.sample_ids = step->ids,
                                .sample_count = step->count,
                                .prng = &m->prng,
                                .exact = m->model->module->dyadic};
    CD_TRY(cd_module_zero_grad(m->model->module, CD_ZERO_GRAD_TO_NONE, err));
    cd_graph_begin(m->graph);
    CD_TRY(cd_batch_make(m->graph, m->model, &request, &batch, err));
    batch.branch = step->branch;
    batch.weights = step->weights;
    CD_TRY(cd_model_forward(m->model, m->graph, &batch, outputs, err));
    CD_TRY(cd_model_loss(m->model, m->graph, &batch, outputs,
                         step->mask != 0 ? step->mask : UINT32_MAX, loss, err));
    cd_backward_options options = {.roots = loss, .root_count = 1, .order = step->order};
    CD_TRY(cd_graph_backward(m->graph, &options, err));
    cd_graph_audit(m->graph);
    return CDDP_OK;
}

void model_close(model_fixture *m)
{
    cd_graph_destroy(m->graph);
    cd_model_destroy(m->model);
    assert_int_equal(m->watch.live_count, 0);
}
