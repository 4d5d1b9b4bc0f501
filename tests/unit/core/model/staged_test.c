/* SPDX-License-Identifier: Apache-2.0 */
/* A device whose storage the host cannot touch, as a GPU's: models compute on copies and give the
** same bits, whether the whole tape is a copy or, on a device with layers, what one operation
** needs.
**
** The device is cpu behind a box: a storage is a small record that holds the real one, so that
** whoever takes it for numbers reads nonsense, and the sanitizers say so.
*/
#include "tests/unit/core/model/fixture.h"

#include "core/tensor/cpu.h"

#include <string.h>

typedef struct box {
    uint64_t magic;
    void *storage;
} box;

#define MAGIC UINT64_C(0x5ea1ed5ea1ed)

static cddp_tensor unbox(const cddp_tensor *t)
{
    const box *b = t->storage;
    cddp_tensor inner = *t;
    assert_true(b->magic == MAGIC);
    inner.device = t->device->self;
    inner.storage = b->storage;
    return inner;
}

static cddp_status far_allocate(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                                void **storage, cddp_error *err)
{
    const cddp_device *cpu = device->self;
    box *b = test_malloc(sizeof *b);
    b->magic = MAGIC;
    cddp_status status = cpu->allocate(cpu, dtype, numel, &b->storage, err);
    if (status == CDDP_OK)
        *storage = b;
    else
        test_free(b);
    return status;
}

static void far_release(const cddp_device *device, cddp_dtype dtype, int64_t numel, void *storage)
{
    const cddp_device *cpu = device->self;
    box *b = storage;
    cpu->release(cpu, dtype, numel, b->storage);
    test_free(b);
}

static cddp_status far_read(const cddp_tensor *src, void *host, size_t bytes, cddp_error *err)
{
    cddp_tensor t = unbox(src);
    return t.device->read(&t, host, bytes, err);
}

static cddp_status far_write(const cddp_tensor *dst, const void *host, size_t bytes,
                             cddp_error *err)
{
    cddp_tensor t = unbox(dst);
    return t.device->write(&t, host, bytes, err);
}

static cddp_status far_fill(const cddp_tensor *dst, double value, cddp_stream *stream,
                            cddp_error *err)
{
    cddp_tensor t = unbox(dst);
    return t.device->fill(&t, value, stream, err);
}

static cddp_status far_reduce(cddp_red_op op, const cddp_tensor *dst, const cddp_tensor *src,
                              cddp_stream *stream, cddp_error *err)
{
    cddp_tensor to = unbox(dst), from = unbox(src);
    return to.device->reduce(op, &to, &from, stream, err);
}

static cddp_status far_copy(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                            cddp_error *err)
{
    cddp_tensor to = unbox(dst), from = unbox(src);
    return to.device->copy(&to, &from, stream, err);
}

static cddp_status far_scale(const cddp_tensor *dst, const cddp_tensor *src, double factor,
                             cddp_stream *stream, cddp_error *err)
{
    cddp_tensor to = unbox(dst), from = unbox(src);
    return to.device->scale(&to, &from, factor, stream, err);
}

static cddp_device far_device(const cddp_device *cpu)
{
    cddp_device device = {.size = sizeof device,
                          .abi = CDDP_DEVICE_ABI,
                          .name = "far",
                          .flags = CDDP_DEVICE_VALUES};
    device.dtypes = cpu->dtypes;
    device.self = (void *)(uintptr_t)cpu;
    device.allocate = far_allocate;
    device.release = far_release;
    device.read = far_read;
    device.write = far_write;
    device.fill = far_fill;
    device.reduce = far_reduce;
    device.copy = far_copy;
    device.scale = far_scale;
    return device;
}

static const int64_t ids[4] = {3, 0, 7, 12};

static const struct {
    const char *name, *options;
    cddp_dtype dtype;
} cases[] = {
    {"mlp", "norm=batch,dropout=0.25", CDDP_F32},
    {"mlp", "norm=layer,checkpoint=reentrant,widths=4:4:4:2", CDDP_F64},
    {"mlp", "checkpoint=non_reentrant", CDDP_BF16},
    {"cnn", "norm=batch", CDDP_F32},
    {"transformer", NULL, CDDP_F32},
    {"tied_lm", NULL, CDDP_F16},
    {"gan", "norm=batch", CDDP_F32},
    {"moe", NULL, CDDP_F32},
    {"params", "list=a:3;b:0;c:2x2:uses2;d:3:c64;e:scalar", CDDP_F32},
};

typedef struct outcome {
    unsigned char bytes[1 << 16]; /* of all gradients and buffers */
    size_t count;
    arrivals arrived;
    unsigned char loss[8];
    size_t loss_bytes;
} outcome;

static void append(outcome *o, const cddp_tensor *t)
{
    cddp_error err;
    size_t bytes = (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
    assert_true(o->count + bytes <= sizeof o->bytes);
    if (bytes > 0) assert_ok(t->device->read(t, o->bytes + o->count, bytes, &err), &err);
    o->count += bytes;
}

/* Two backwards, so that slots are made and then added to. */
static void train(const cddp_device *device, size_t k, outcome *o)
{
    cddp_error err;
    cd_prng prng = cd_prng_seed(5);
    cd_model *model = NULL;
    cd_graph *graph = NULL;
    cd_model_options options = {.name = cases[k].name,
                                .options = cases[k].options,
                                .dtype = cases[k].dtype,
                                .device = device,
                                .prng = &prng};
    assert_ok(cd_model_create(&options, &model, &err), &err);
    assert_ok(cd_graph_create(model->module, NULL, &graph, &err), &err);
    cd_graph_callbacks callbacks = {.context = &o->arrived, .ready = arrivals_ready};
    cd_graph_set_callbacks(graph, &callbacks);
    for (int round = 0; round < 2; round++) {
        cd_batch batch;
        cd_outputs outputs;
        cd_value *loss = NULL;
        cd_graph_begin(graph);
        cd_batch_request request = {.sample_ids = ids, .sample_count = 4, .prng = &prng};
        assert_ok(cd_batch_make(graph, model, &request, &batch, &err), &err);
        assert_ok(cd_model_forward(model, graph, &batch, &outputs, &err), &err);
        assert_ok(cd_model_loss(model, graph, &batch, &outputs, UINT32_MAX, &loss, &err), &err);
        cd_backward_options backward = {.roots = &loss, .root_count = 1};
        assert_ok(cd_graph_backward(graph, &backward, &err), &err);
        o->loss_bytes = cddp_dtype_bytes(loss->tensor.dtype);
        assert_ok(loss->tensor.device->read(&loss->tensor, o->loss, o->loss_bytes, &err), &err);
    }
    for (size_t p = 0; p < model->module->parameter_count; p++)
        if (model->module->parameters[p].grad.kind == CDDP_GRAD_DENSE) {
            assert_ptr_equal(model->module->parameters[p].grad.value.device, device);
            append(o, &model->module->parameters[p].grad.value);
        }
    for (size_t b = 0; b < model->module->buffer_count; b++)
        append(o, &model->module->buffers[b].tensor);
    cd_graph_destroy(graph);
    cd_model_destroy(model);
}

static void compare(const cddp_device *device)
{
    static outcome near, far;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        cd_test_row("%s %s", cases[k].name, cases[k].options != NULL ? cases[k].options : "");
        memset(&near, 0, sizeof near);
        memset(&far, 0, sizeof far);
        train(cddp_device_cpu(), k, &near);
        train(device, k, &far);
        assert_true(near.count > 0 && near.loss_bytes == far.loss_bytes);
        assert_memory_equal(near.loss, far.loss, near.loss_bytes);
        assert_int_equal(near.count, far.count);
        assert_memory_equal(near.bytes, far.bytes, near.count);
        assert_memory_equal(&near.arrived, &far.arrived, sizeof near.arrived);
    }
}

TEST(staged, models_give_the_bits_of_cpu_on_a_device_that_the_host_cannot_touch)
{
    const cddp_device device = far_device(cddp_device_cpu());
    compare(&device);
}

/* The tape is the device's, and every layer is staged by itself. */
TEST(staged, models_give_the_bits_of_cpu_on_a_device_that_has_other_layers)
{
    static const cddp_layers none = {.size = sizeof none, .abi = CDDP_LAYERS_ABI};
    cddp_device device = far_device(cddp_device_cpu());
    device.layers = &none;
    compare(&device);
}

/* A table that was written before there were layers, or for other ones, has none. */
TEST(staged, layers_of_another_size_or_version_are_not_asked)
{
    static const cddp_layers other = {.size = sizeof other, .abi = CDDP_LAYERS_ABI + 1};
    static const cddp_layers none = {.size = sizeof none, .abi = CDDP_LAYERS_ABI};
    cddp_device device = far_device(cddp_device_cpu());
    assert_null(cd_device_layers(&device));
    device.layers = &other;
    assert_null(cd_device_layers(&device));
    device.layers = &none;
    assert_ptr_equal(cd_device_layers(&device), &none);
    device.size = (uint32_t)offsetof(cddp_device, layers);
    assert_null(cd_device_layers(&device));
}

TEST(staged, sparse_gradients_are_refused)
{
    cddp_error err;
    const cddp_device device = far_device(cddp_device_cpu());
    cd_prng prng = cd_prng_seed(5);
    cd_model *model = NULL;
    cd_model_options options = {.name = "embedding_bag",
                                .dtype = CDDP_F32,
                                .device = &device,
                                .prng = &prng};
    assert_fails(cd_model_create(&options, &model, &err), CDDP_E_CONFIG, &err,
                 "need a device that computes, not far");
}

TEST_MAIN()
