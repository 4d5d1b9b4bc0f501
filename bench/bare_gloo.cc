/* SPDX-License-Identifier: Apache-2.0 */
// Gloo as a C++ program calls it: its own rendezvous over files, its ring, its sum.
#include "bench/bare.h"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

struct bare {
    std::shared_ptr<gloo::rendezvous::Context> context;
    uint32_t tag = 0;
};

namespace
{

template <typename Body> bool guarded(Body body) noexcept
{
    try {
        body();
        return true;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "bare gloo: %s\n", e.what());
        return false;
    }
}

} // namespace

extern "C" {

const char *const bare_name = "gloo::allreduce";

bare *bare_open(const char *directory, int rank, int size)
{
    auto library = std::make_unique<bare>();
    const bool ok = guarded([&] {
        gloo::transport::tcp::attr attributes;
        attributes.hostname = "127.0.0.1";
        auto device = gloo::transport::tcp::CreateDevice(attributes);
        gloo::rendezvous::FileStore store(directory);
        library->context = std::make_shared<gloo::rendezvous::Context>(rank, size);
        library->context->connectFullMesh(store, device);
    });
    return ok ? library.release() : nullptr;
}

bool bare_allreduce(bare *library, float *data, size_t count)
{
    return guarded([&] {
        gloo::AllreduceOptions options(library->context);
        options.setOutput(data, count);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        void (*sum)(void *, const void *, const void *, size_t) = gloo::sum<float>;
        options.setReduceFunction(sum);
        options.setTag(library->tag++);
        gloo::allreduce(options);
    });
}

void bare_close(bare *library) { delete library; }

} // extern "C"
