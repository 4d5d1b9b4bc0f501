/* SPDX-License-Identifier: Apache-2.0 */
// The C++ side of gloo_shim.h. Every entry is a try whose catch maps exception types to codes.
#include "backends/gloo/gloo_shim.h"

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

struct cd_gloo_buffer {
    cd_gloo *gloo = nullptr;
    std::unique_ptr<gloo::transport::UnboundBuffer> unbound;
    int pending = 0;                                  // operations that started and have not ended
    cd_gloo_buffer *next = nullptr, **link = nullptr; // links of the context's list
    char failure[CD_GLOO_TEXT_BYTES] = "";            // the result of its wait
};

struct cd_gloo {
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::rendezvous::Context> context;
    // held while connections are closed: a second caller returns when no memory is touched any more
    std::mutex closing;
    std::mutex lock; // guards the fields below
    cd_gloo_buffer *buffers = nullptr;
    std::string why; // why they were closed; empty while they are open
};

namespace
{

// Gloo's rendezvous over the caller's callbacks. Gloo's own stores wait a fixed 30 s.
class CallbackStore : public gloo::rendezvous::Store
{
  public:
    explicit CallbackStore(const cd_gloo_open &open) : open_(open) {}
    void set(const std::string &key, const std::vector<char> &data) override
    {
        const std::vector<char> clean = initialised(data);
        if (!open_.store_set(open_.store, key.c_str(), clean.data(), clean.size()))
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
    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override
    {
        wait(keys);
    }

  private:
    // The value is one address per peer. Gloo fills as much of an address as its family has, and
    // publishes the rest as it was on the stack.
    std::vector<char> initialised(const std::vector<char> &data) const
    {
        using gloo::transport::tcp::Address;
        const size_t one = Address().bytes().size(), peers = static_cast<size_t>(open_.size - 1);
        if (peers == 0 || data.size() != peers * one) return data;
        std::vector<char> clean;
        for (auto at = data.begin(); at != data.end(); at += static_cast<std::ptrdiff_t>(one)) {
            const Address given(std::vector<char>(at, at + static_cast<std::ptrdiff_t>(one)));
            const sockaddr_storage &from = given.getSockaddr();
            sockaddr_storage to = {};
            const size_t bytes =
                from.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : offsetof(sockaddr_in, sin_zero);
            std::memcpy(&to, &from, bytes);
            const std::vector<char> rest = Address(to, given.getSeq()).bytes();
            clean.insert(clean.end(), rest.begin(), rest.end());
        }
        return clean;
    }

    const cd_gloo_open &open_;
};

cd_gloo_code explain(cd_gloo_code code, const char *words, char *text)
{
    // Gloo prefixes its texts with "[file:line] "; the caller needs only the sentence.
    const char *start = words;
    if (words[0] == '[')
        if (const char *end = std::strstr(words, "] ")) start = end + 2;
    std::snprintf(text, CD_GLOO_TEXT_BYTES, "%s", start);
    for (char *c = text; *c != '\0'; c++)
        if (*c == '\n') *c = ' ';
    // Only the text distinguishes a time-out from a broken connection.
    bool late =
        std::strstr(words, "Timed out") != nullptr || std::strstr(words, "timeout") != nullptr;
    // Only the text tells a shortage from other failures of the system.
    for (const char *shortage : {"Too many open files", "Cannot allocate memory",
                                 "Resource temporarily unavailable", "No buffer space available"})
        if (std::strstr(words, shortage) != nullptr) return CD_GLOO_SHORTAGE;
    return code == CD_GLOO_IO && late ? CD_GLOO_TIMEOUT : code;
}

template <typename Body> cd_gloo_code guarded(char *text, Body body) noexcept
{
    try {
        return body();
    } catch (const gloo::IoException &e) {
        return explain(CD_GLOO_IO, e.what(), text);
    } catch (const std::bad_alloc &) {
        return explain(CD_GLOO_SHORTAGE, "out of memory", text);
    } catch (const std::exception &e) {
        return explain(CD_GLOO_FAILED, e.what(), text);
    } catch (...) {
        return explain(CD_GLOO_FAILED, "unknown exception", text);
    }
}

// Every use of a closed connection fails with a text about the closing; the first text is the
// reason.
cd_gloo_code reason(cd_gloo &gloo, cd_gloo_code code, char *text)
{
    if (code == CD_GLOO_OK) return code;
    std::lock_guard<std::mutex> hold(gloo.lock);
    // Gloo's text for the other users of a connection when one of them waited too long.
    if (gloo.why.empty())
        return std::strstr(text, "Application timeout") != nullptr ? CD_GLOO_CLOSED : code;
    std::snprintf(text, CD_GLOO_TEXT_BYTES, "%s", gloo.why.c_str());
    return CD_GLOO_CLOSED;
}

// Closes every connection and wakes all waiting threads. Afterwards Gloo does not touch the memory
// of any buffer. Even a peer that asks late cannot make the event loop write from memory that has
// another owner by then.
void disconnect(cd_gloo &gloo, const char *why)
{
    std::lock_guard<std::mutex> alone(gloo.closing);
    {
        std::lock_guard<std::mutex> hold(gloo.lock);
        if (!gloo.why.empty()) return;
        gloo.why = why[0] != '\0' ? why : "it could not go on";
    }
    // Only a wait that times out closes all connections and wakes the waiting threads. Nobody sends
    // to this buffer.
    try {
        char nothing = 0;
        gloo.context->createUnboundBuffer(&nothing, sizeof nothing)
            ->waitRecv(std::chrono::milliseconds(1));
    } catch (const gloo::IoException &) {
    }
    // It does not wake threads in the middle of a message.
    std::lock_guard<std::mutex> hold(gloo.lock);
    for (cd_gloo_buffer *buffer = gloo.buffers; buffer != nullptr; buffer = buffer->next) {
        buffer->unbound->abortWaitRecv();
        buffer->unbound->abortWaitSend();
    }
}

// The event loop only tries a connection's lock. While the lock's holder cannot run, the loop polls
// epoll until the next tick of the scheduler. Usually the loop itself displaced the holder, by
// waking on its processor. A SCHED_BATCH thread displaces no other thread when it wakes: that saves
// a third of an operation where processors are idle. Beside busy programs it waits for their turn,
// up to milliseconds. So the caller asks for it. The loop's thread inherits the class from its
// creator.
class Batch
{
  public:
    explicit Batch(bool wanted)
    {
#if defined(SCHED_BATCH)
        changed_ = wanted && sched_getscheduler(0) == SCHED_OTHER &&
                   sched_setscheduler(0, SCHED_BATCH, &none_) == 0;
#else
        (void)wanted;
#endif
    }
    ~Batch()
    {
        if (changed_) (void)sched_setscheduler(0, SCHED_OTHER, &none_);
    }
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;

  private:
    const sched_param none_{};
    bool changed_ = false;
};

// A native operation. When it fails its messages are abandoned, some of them half sent.
template <typename Body> cd_gloo_code collective(cd_gloo *gloo, char *text, Body body) noexcept
{
    cd_gloo_code code = reason(*gloo, guarded(text, body), text);
    if (code != CD_GLOO_OK) cd_gloo_disconnect(gloo, text);
    return code;
}

template <typename Body>
cd_gloo_code started(cd_gloo_buffer *buffer, char *text, Body body) noexcept
{
    return reason(*buffer->gloo,
                  guarded(text,
                          [&] {
                              body();
                              buffer->pending++;
                              return CD_GLOO_OK;
                          }),
                  text);
}

// The body returns false when the connection was closed before the message was complete.
template <typename Body> cd_gloo_code waited(cd_gloo_buffer *buffer, char *text, Body body) noexcept
{
    cd_gloo_code code = guarded(text, [&] {
        if (!body()) return explain(CD_GLOO_CLOSED, "woken", text);
        buffer->pending--;
        return CD_GLOO_OK;
    });
    code = reason(*buffer->gloo, code, text);
    if (code != CD_GLOO_OK) std::memcpy(buffer->failure, text, sizeof buffer->failure);
    return code;
}

} // namespace

extern "C" {

cd_gloo_code cd_gloo_context_open(const cd_gloo_open *options, cd_gloo **gloo_out, char *text)
{
    return guarded(text, [&] {
        auto made = std::make_unique<cd_gloo>();
        gloo::transport::tcp::attr attributes;
        attributes.hostname = options->host;
        std::memset(&attributes.ai_addr, 0, sizeof attributes.ai_addr);
        {
            const Batch batch(options->batch);
            made->device = gloo::transport::tcp::CreateDevice(attributes);
        }
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

void cd_gloo_disconnect(cd_gloo *gloo, const char *why)
{
    char text[CD_GLOO_TEXT_BYTES];
    (void)guarded(text, [&] {
        disconnect(*gloo, why);
        return CD_GLOO_OK;
    });
}

cd_gloo_code cd_gloo_allreduce(cd_gloo *gloo, const cd_gloo_call *call, char *text)
{
    return collective(gloo, text, [&] {
        gloo::AllreduceOptions options(gloo->context);
        // The element type only gives the size; the callback reduces.
        size_t bytes = call->element_bytes;
        char *data = static_cast<char *>(call->data);
        if (bytes == 8)
            options.setOutput(reinterpret_cast<uint64_t *>(data), call->element_count);
        else if (bytes == 4)
            options.setOutput(reinterpret_cast<uint32_t *>(data), call->element_count);
        else if (bytes == 2)
            options.setOutput(reinterpret_cast<uint16_t *>(data), call->element_count);
        else
            options.setOutput(reinterpret_cast<uint8_t *>(data), call->element_count);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        auto reduce = call->reduce;
        auto context = call->context;
        options.setReduceFunction(
            [reduce, context](void *out, const void *in1, const void *in2, size_t count) {
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
    return collective(gloo, text, [&] {
        gloo::BroadcastOptions options(gloo->context);
        options.setOutput(static_cast<uint8_t *>(call->data),
                          call->element_count * call->element_bytes);
        options.setRoot(call->root);
        options.setTag(call->tag);
        options.setTimeout(std::chrono::milliseconds(call->timeout_ms));
        gloo::broadcast(options);
        return CD_GLOO_OK;
    });
}

cd_gloo_code cd_gloo_buffer_create(cd_gloo *gloo, void *data, size_t bytes, cd_gloo_buffer **buffer,
                                   char *text)
{
    return guarded(text, [&] {
        auto made = std::make_unique<cd_gloo_buffer>();
        made->gloo = gloo;
        made->unbound = gloo->context->createUnboundBuffer(data, bytes);
        std::lock_guard<std::mutex> hold(gloo->lock);
        made->next = gloo->buffers;
        made->link = &gloo->buffers;
        if (made->next != nullptr) made->next->link = &made->next;
        gloo->buffers = made.get();
        *buffer = made.release();
        return CD_GLOO_OK;
    });
}

void cd_gloo_buffer_destroy(cd_gloo_buffer *buffer)
{
    if (buffer == nullptr) return;
    char text[CD_GLOO_TEXT_BYTES];
    (void)guarded(text, [&] {
        if (buffer->pending != 0) disconnect(*buffer->gloo, buffer->failure);
        {
            std::lock_guard<std::mutex> hold(buffer->gloo->lock);
            *buffer->link = buffer->next;
            if (buffer->next != nullptr) buffer->next->link = buffer->link;
        }
        delete buffer;
        return CD_GLOO_OK;
    });
}

void cd_gloo_buffer_forget(cd_gloo_buffer *buffer)
{
    buffer->pending = 0;
    cd_gloo_buffer_destroy(buffer);
}

cd_gloo_code cd_gloo_send(cd_gloo_buffer *buffer, int peer, uint64_t slot, size_t offset,
                          size_t bytes, char *text)
{
    return started(buffer, text, [&] { buffer->unbound->send(peer, slot, offset, bytes); });
}

cd_gloo_code cd_gloo_recv(cd_gloo_buffer *buffer, int peer, uint64_t slot, size_t offset,
                          size_t bytes, char *text)
{
    return started(buffer, text, [&] { buffer->unbound->recv(peer, slot, offset, bytes); });
}

cd_gloo_code cd_gloo_wait_send(cd_gloo_buffer *buffer, int64_t timeout_ms, char *text)
{
    return waited(buffer, text,
                  [&] { return buffer->unbound->waitSend(std::chrono::milliseconds(timeout_ms)); });
}

cd_gloo_code cd_gloo_wait_recv(cd_gloo_buffer *buffer, int64_t timeout_ms, char *text)
{
    return waited(buffer, text,
                  [&] { return buffer->unbound->waitRecv(std::chrono::milliseconds(timeout_ms)); });
}

} // extern "C"
