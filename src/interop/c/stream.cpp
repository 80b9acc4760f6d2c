// Streams of the C interface.
#include "stretto/stream.hpp"

#include "interop/c/answer.hpp"

using namespace stretto::c;
using stretto::require;

strettoResult_t strettoStreamCreate(strettoStream_t* stream, const char* name) {
  return answer([&] {
    require(stream != nullptr, "strettoStreamCreate got NULL for its result.");
    *stream = nullptr;
    const stretto::Stream made(name == nullptr ? "stream" : name, stretto::Priority::normal, stretto::Device::cpu);
    *stream = streams().add(std::make_shared<strettoStream>(made));
  });
}

strettoResult_t strettoStreamFromCuda(strettoStream_t* stream, void* cuda_stream) {
  return answer([&] {
    require(stream != nullptr, "strettoStreamFromCuda got NULL for its result.");
    *stream = nullptr;
    try {
      const stretto::Stream found = stretto::Stream::of_cuda(cuda_stream, "cuda");
      *stream = streams().add(std::make_shared<strettoStream>(found));
    } catch (const stretto::Error& error) {
      if (error.code() == stretto::ErrorCode::unavailable) throw CudaFailure(error);
      throw;
    }
  });
}

strettoResult_t strettoStreamSynchronize(strettoStream_t handle) {
  return answer([&] {
    const auto stream = find_stream(handle);
    if (!stream) return;
    stream->stream.synchronize();
    last_of(*stream).wait();
  });
}

strettoResult_t strettoStreamQuery(strettoStream_t handle) {
  bool done = true;
  const strettoResult_t result = answer([&] {
    const auto stream = find_stream(handle);
    if (!stream) return;
    const stretto::Work last = last_of(*stream);
    done = last.done();
    if (done) last.wait();
  });
  return done ? result : strettoInProgress;
}

strettoResult_t strettoStreamWait(strettoStream_t handle, strettoStream_t other) {
  return answer([&] { stream_of(find_stream(handle)).wait(stream_of(find_stream(other))); });
}

strettoResult_t strettoStreamDestroy(strettoStream_t handle) {
  return answer([&] {
    require(handle != nullptr, "strettoStreamDestroy got NULL, the calling thread, which cannot be destroyed.");
    streams().remove(handle);
  });
}
