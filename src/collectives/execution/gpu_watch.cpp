#include "collectives/execution/gpu_watch.hpp"

#include <chrono>
#include <vector>

#include "collectives/execution/give_up.hpp"
#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/stream/stream_queue.hpp"

namespace stretto {
namespace {

// A training step issues hundreds of operations, and it is enough to notice a lost rank within a tenth of a second.
constexpr std::chrono::milliseconds between_looks{100};

}  // namespace

GpuWatch::GpuWatch(Gpu& gpu, JobControl& job, GpuLinks& links, std::vector<int> others, double timeout,
                   std::function<void()> on_failure)
    : gpu_(gpu),
      job_(job),
      links_(links),
      others_(std::move(others)),
      timeout_(timeout),
      on_failure_(std::move(on_failure)),
      thread_([this] { look_after(); }) {}

GpuWatch::~GpuWatch() {
  std::vector<Work> works;
  {
    const std::lock_guard lock(mutex_);
    for (const Watched& each : watched_) works.push_back(each.work);
  }
  for (const Work& work : works) work.state()->wait_until_past();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void GpuWatch::add(const Work& work, std::string what) {
  const std::lock_guard lock(mutex_);
  if (failed_) return work.state()->fail_with(failed_, nullptr);
  watched_.push_back({work, std::move(what)});
  if (watched_.size() == 1) changed_.notify_all();
}

void GpuWatch::give_up(const std::exception_ptr& why) {
  const std::lock_guard lock(mutex_);
  if (!failed_) fail(why);
}

std::exception_ptr GpuWatch::trouble() {
  try {
    job_.check();
    const std::string failure = links_.failure();
    if (!failure.empty()) stretto::fail(ErrorCode::peer_lost, "{}", failure);
    for (Watched& each : watched_) {
      Work::State& state = *each.work.state();
      const bool is_put_in = state.is_being_put_in();
      if (!is_put_in && !state.has_started()) {
        each.waits_since = 0;
        continue;
      }
      if (each.waits_since == 0) each.waits_since = now_seconds();
      const double waited = now_seconds() - each.waits_since;
      if (waited <= timeout_) continue;
      stretto::fail(ErrorCode::timeout, "Rank {} waited {:.0f} s {} in {}{}.", job_.rank(), waited,
                    is_put_in ? "for others before the GPU could begin" : "for others on the GPU", each.what,
                    accounts_of(others_, job_));
    }
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void GpuWatch::fail(const std::exception_ptr& why) {
  failed_ = why;
  std::shared_ptr<Work::State> first;
  for (const Watched& each : watched_) {
    each.work.state()->fail_with(why, first);
    if (!first) first = each.work.state();
  }
  on_failure_();
  try {
    links_.abort();
  } catch (const std::exception& error) {
    log().error("GPUs that wait for a lost rank could not be stopped: {}", error.what());
  }
}

void GpuWatch::look_after() {
  gpu_.enter_thread();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !watched_.empty(); });
    if (closing_) return;
    // Works are not settled here: a task may hold the last handle of a communicator, whose destruction waits for this
    // thread.
    watched_.remove_if([](const Watched& each) { return each.work.state()->is_past(); });
    if (failed_) return;
    if (const std::exception_ptr why = trouble(); why && !watched_.empty()) return fail(why);
    changed_.wait_for(lock, between_looks, [&] { return closing_; });
    if (closing_) return;
  }
}

}  // namespace stretto
