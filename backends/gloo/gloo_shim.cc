/* SPDX-License-Identifier: Apache-2.0 */
// The C++ side of gloo_shim.h. Every entry is a try whose catch maps exception types to codes.
#include "backends/gloo/gloo_shim.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include <sched.h>

#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

struct cd_gloo_buffer {
    std::unique_ptr<gloo::transport::UnboundBuffer> unbound;
    int pending = 0; // operations started and not seen to end
};

struct cd_gloo {
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::list<std::unique_ptr<cd_gloo_buffer>> kept; // failed ones, alive until the context is gone
};

namespace {

// Gloo's rendezvous over the caller's callbacks; its own stores have a fixed 30 s wait.
class CallbackStore : public gloo::rendezvous::Store {
public:
    explicit CallbackStore(const cd_gloo_open &open) : open_(open) {}
    void set(const std::string &key, const std::vector<char> &data) override
    {
        if (!open_.store_set(open_.store, key.c_str(), data.data(), data.size()))
            throw gloo::IoException("the rendezvous refused key " + key);
    }
    std::vector<char> get(const std::string &key) override
    {
        std::vector<char> value(65536);
        size_t bytes = value.size();
        if (!open_.store_get(open_.store, key.c_str(), open_.timeout_ms, value.data(), &bytes))
            throw gloo::IoException("Timed out: rendezvous key " + key + " is missing");
        value.resize(bytes);
        return value;
    }
    void wait(const std::vector<std::string> &keys) override
    {
        for (const auto &key : keys) get(key);
    }
    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override { wait(keys); }

private:
    const cd_gloo_open &open_;
};

cd_gloo_code explain(cd_gloo_code code, const char *words, char *text)
{
    // Gloo prefixes its texts with "[file:line] "; the caller wants the sentence.
    const char *start = words;
    if (words[0] == '[')
        if (const char *end = std::strstr(words, "] ")) start = end + 2;
    std::snprintf(text, CD_GLOO_TEXT_BYTES, "%s", start);
    for (char *c = text; *c != '\0'; c++)
        if (*c == '\n') *c = ' ';
    // Only the words tell a time-out from a broken connection.
    bool late = std::strstr(words, "Timed out") != nullptr || std::strstr(words, "timeout") != nullptr;
    return code == CD_GLOO_IO && late ? CD_GLOO_TIMEOUT : code;
}

template <typename Body> cd_gloo_code guarded(char *text, Body body) noexcept
{
    try {
        return body();
    } catch (const gloo::IoException &e) {
        return explain(CD_GLOO_IO, e.what(), text);
    } catch (const std::bad_alloc &) {
        return explain(CD_GLOO_FAILED, "out of memory", text);
    } catch (const std::exception &e) {
        return explain(CD_GLOO_FAILED, e.what(), text);
    } catch (...) {
        return explain(CD_GLOO_FAILED, "unknown exception", text);
    }
}

// The event loop only tries a connection's lock: while the lock's holder cannot run it asks epoll again and again, up to the
// next tick of the scheduler. Most often it is the loop itself that displaced the holder, by waking on its processor. A
// thread of SCHED_BATCH displaces nobody when it wakes; the loop's thread takes that over from the one that creates it.
std::shared_ptr<gloo::transport::Device> device_create(const gloo::transport::tcp::attr &attributes)
{
#if defined(SCHED_BATCH)
    class Batch {
    public:
        Batch() : changed_(sched_getscheduler(0) == SCHED_OTHER && sched_setscheduler(0, SCHED_BATCH, &none_) == 0) {}
        ~Batch()
        {
            if (changed_) (void)sched_setscheduler(0, SCHED_OTHER, &none_);
        }

    private:
        const sched_param none_{};
        const bool changed_;
    } batch;
#endif
    return gloo::transport::tcp::CreateDevice(attributes);
}

} // namespace

extern "C" {

cd_gloo_code cd_gloo_context_open(const cd_gloo_open *options, cd_gloo **gloo_out, char *text)
{
    return guarded(text, [&] {
        auto made = std::make_unique<cd_gloo>();
        gloo::transport::tcp::attr attributes;
        attributes.hostname = options->host;
        made->device = device_create(attributes);
        made->context = std::make_shared<gloo::rendezvous::Context>(options->rank, options->size);
        made->context->setTimeout(std::chrono::milliseconds(options->timeout_ms));
        CallbackStore store(*options);
        made->context->connectFullMesh(store, made->device);
        *gloo_out = made.release();
        return CD_GLOO_OK;
    });
}

void cd_gloo_context_close(cd_gloo *gloo)
{
    char text[CD_GLOO_TEXT_BYTES];
    (void)guarded(text, [&] {
        delete gloo;
        return CD_GLOO_OK;
    });
}

cd_gloo_code cd_gloo_allreduce(cd_gloo *gloo, const cd_gloo_call *call, char *text)
{
    return guarded(text, [&] {
        gloo::AllreduceOptions options(gloo->context);
        // The element type only sizes the elements; the reduction is the callback's.
        size_t bytes = call->element_bytes;
        char *data = static_cast<char *>(call->data);
        if (bytes == 8) options.setOutput(reinterpret_cast<uint64_t *>(data), call->element_count);
        else if (bytes == 4) options.setOutput(reinterpret_cast<uint32_t *>(data), call->element_count);
        else if (bytes == 2) options.setOutput(reinterpret_cast<uint16_t *>(data), call->element_count);
        else options.setOutput(reinterpret_cast<uint8_t *>(data), call->element_count);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        auto reduce = call->reduce;
        auto context = call->context;
        options.setReduceFunction([reduce, context](void *out, const void *in1, const void *in2, size_t count) {
            reduce(context, out, in1, in2, count);
        });
        options.setTag(call->tag);
        options.setTimeout(std::chrono::milliseconds(call->timeout_ms));
        gloo::allreduce(options);
        return CD_GLOO_OK;
    });
}

cd_gloo_code cd_gloo_broadcast(cd_gloo *gloo, const cd_gloo_call *call, char *text)
{
    return guarded(text, [&] {
        gloo::BroadcastOptions options(gloo->context);
        options.setOutput(static_cast<uint8_t *>(call->data), call->element_count * call->element_bytes);
        options.setRoot(call->root);
        options.setTag(call->tag);
        options.setTimeout(std::chrono::milliseconds(call->timeout_ms));
        gloo::broadcast(options);
        return CD_GLOO_OK;
    });
}

cd_gloo_code cd_gloo_buffer_create(cd_gloo *gloo, void *data, size_t bytes, cd_gloo_buffer **buffer, char *text)
{
    return guarded(text, [&] {
        auto made = std::make_unique<cd_gloo_buffer>();
        made->unbound = gloo->context->createUnboundBuffer(data, bytes);
        *buffer = made.release();
        return CD_GLOO_OK;
    });
}

void cd_gloo_buffer_destroy(cd_gloo *gloo, cd_gloo_buffer *buffer)
{
    if (buffer == nullptr) return;
    char text[CD_GLOO_TEXT_BYTES];
    (void)guarded(text, [&] {
        std::unique_ptr<cd_gloo_buffer> owned(buffer);
        if (owned->pending != 0) gloo->kept.push_back(std::move(owned));
        return CD_GLOO_OK;
    });
}

cd_gloo_code cd_gloo_send(cd_gloo_buffer *buffer, int peer, uint64_t slot, size_t offset, size_t bytes, char *text)
{
    return guarded(text, [&] {
        buffer->unbound->send(peer, slot, offset, bytes);
        buffer->pending++;
        return CD_GLOO_OK;
    });
}

cd_gloo_code cd_gloo_recv(cd_gloo_buffer *buffer, int peer, uint64_t slot, size_t offset, size_t bytes, char *text)
{
    return guarded(text, [&] {
        buffer->unbound->recv(peer, slot, offset, bytes);
        buffer->pending++;
        return CD_GLOO_OK;
    });
}

cd_gloo_code cd_gloo_wait_send(cd_gloo_buffer *buffer, int64_t timeout_ms, char *text)
{
    return guarded(text, [&] {
        if (!buffer->unbound->waitSend(std::chrono::milliseconds(timeout_ms))) return explain(CD_GLOO_ABORTED, "aborted", text);
        buffer->pending--;
        return CD_GLOO_OK;
    });
}

cd_gloo_code cd_gloo_wait_recv(cd_gloo_buffer *buffer, int64_t timeout_ms, char *text)
{
    return guarded(text, [&] {
        if (!buffer->unbound->waitRecv(std::chrono::milliseconds(timeout_ms))) return explain(CD_GLOO_ABORTED, "aborted", text);
        buffer->pending--;
        return CD_GLOO_OK;
    });
}

void cd_gloo_abort_wait(cd_gloo_buffer *buffer)
{
    char text[CD_GLOO_TEXT_BYTES];
    (void)guarded(text, [&] {
        buffer->unbound->abortWaitRecv();
        buffer->unbound->abortWaitSend();
        return CD_GLOO_OK;
    });
}

} // extern "C"
