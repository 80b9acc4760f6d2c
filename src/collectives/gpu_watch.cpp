#include "collectives/gpu_watch.hpp"

#include <chrono>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/stream_queue.hpp"

namespace stretto {
namespace {

// A step of training issues hundreds of operations; nobody misses a tenth of a second when a rank has died.
constexpr std::chrono::milliseconds between_looks{100};

}  // namespace

GpuWatch::GpuWatch(Job& job, GpuLinks& links, double timeout, std::function<void()> on_failure)
    : job_(job), links_(links), timeout_(timeout), on_failure_(std::move(on_failure)), thread_([this] { look_after(); }) {}

GpuWatch::~GpuWatch() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void GpuWatch::add(const Work& work, std::string what) {
  const std::lock_guard lock(mutex_);
  if (failed_) return work.state()->fail_with(failed_);  // it was put in meanwhile
  watched_.push_back({work, std::move(what)});
  if (watched_.size() == 1) changed_.notify_all();
}

std::exception_ptr GpuWatch::trouble() {
  try {
    job_.check();
    const std::string failure = links_.failure();
    if (!failure.empty()) fail(ErrorCode::peer_lost, "{}", failure);
    for (Watched& each : watched_) {
      if (!each.work.state()->has_started()) break;  // nor have those behind it
      if (each.started == 0) each.started = now_seconds();
      const double waited = now_seconds() - each.started;
      if (waited > timeout_)
        fail(ErrorCode::timeout, "Rank {} waited {:.0f} s on the GPU in {}.", job_.rank(), waited, each.what);
    }
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void GpuWatch::look_after() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !watched_.empty(); });
    if (closing_) return;
    watched_.remove_if([](const Watched& each) { return each.work.done(); });
    if (const std::exception_ptr error = trouble(); error && !watched_.empty()) {
      failed_ = error;
      for (const Watched& each : watched_) each.work.state()->fail_with(error);
      on_failure_();
      try {
        links_.abort();
      } catch (const std::exception& why) {
        log().error("GPUs that wait for a lost rank could not be stopped: {}", why.what());
      }
      return;
    }
    changed_.wait_for(lock, between_looks, [&] { return closing_; });
    if (closing_) return;
  }
}

}  // namespace stretto
