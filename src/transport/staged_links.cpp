#include "transport/staged_links.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "transport/own_messages.hpp"
#include "transport/wait.hpp"

namespace stretto {
namespace {

// How long the end of a copy may go unnoticed.
constexpr std::int64_t nanoseconds_between_looks_at_the_gpu = 50'000;

// The messages of one direction between this rank and one peer.
class OneWay {
 public:
  OneWay(Staging& staging, SideCopies& copies) : staging_(&staging), copies_(&copies) {}
  void add(const GpuMessage& message) { waiting_.push_back(message); }

  bool finished() const { return current_ == nullptr && waiting_.empty(); }
  bool waits_for_gpu() const { return current_ != nullptr && current_->waits_for_gpu(); }
  bool advance() {
    if (finished()) return false;
    if (current_ == nullptr) {
      current_ = staging_->begin(waiting_.front(), *copies_);
      waiting_.pop_front();
    }
    const bool moved = current_->advance();
    if (current_->complete()) current_.reset();
    return moved;
  }

 private:
  Staging* staging_;
  SideCopies* copies_;
  std::deque<GpuMessage> waiting_;
  std::unique_ptr<StagedMessage> current_;
};

}  // namespace

StagedLinks::StagedLinks(Gpu& gpu, Links& links, std::unique_ptr<Staging> staging)
    : gpu_(gpu),
      links_(links),
      staging_(std::move(staging)),
      word_memory_(gpu.allocate_pinned(sizeof *word_)),
      word_(new (word_memory_) std::atomic<std::uint32_t>(0)),
      thread_([this] { work_through(); }) {
  pthread_setname_np(thread_.native_handle(), "staged links");
}

StagedLinks::~StagedLinks() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
  for (const GpuEvent event : events_) gpu_.destroy(event);
  gpu_.release_pinned(word_memory_);
}

GpuEvent StagedLinks::take_event() {
  while (!passing_.empty() && gpu_.reached(passing_.front())) {
    free_events_.push_back(passing_.front());
    passing_.pop_front();
  }
  if (free_events_.empty()) {
    events_.push_back(gpu_.create_event());
    return events_.back();
  }
  const GpuEvent event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void StagedLinks::exchange(const std::vector<GpuMessage>& messages, GpuStream stream) {
  const Membership& members = links_.membership();
  Order order;
  order.messages = without_own(messages, members.rank, static_cast<int>(members.job_ranks.size()), gpu_, stream);
  if (order.messages.empty()) return;
  if (gpu_.is_capturing(stream)) {
    fail(ErrorCode::unavailable,
         "GPUs that reach each other {} cannot communicate in a graph; make the calls without one, or give each rank a GPU "
         "of its own, where NCCL serves.",
         staging_->means());
  }
  std::vector<GpuMemoryHold::Part> parts;
  for (const GpuMessage& message : order.messages) parts.push_back({message.data, message.bytes});
  order.memory = std::make_unique<GpuMemoryHold>(std::move(parts));
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) fail(ErrorCode::peer_gave_up, "{}", failure_);
  order.ready = take_event();
  order.passed = take_event();
  order.number = ++issued_;
  gpu_.record(order.ready, stream);
  gpu_.wait_until(stream, word_, order.number);
  gpu_.record(order.passed, stream);
  orders_.push_back(std::move(order));
  changed_.notify_all();
}

void StagedLinks::perform(const GpuCollective& call, GpuStream /*stream*/) {
  fail(ErrorCode::internal, "Staged links were to do {} by themselves, which does() refuses.", name(call.collective));
}

std::string StagedLinks::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void StagedLinks::abort() {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = fmt::format("Rank {} has aborted the communicator.", links_.network().job().rank());
  aborted_ = true;
  changed_.notify_all();
}

// ---- the thread

void StagedLinks::work_through() {
  try {
    SideCopies copies(gpu_);
    while (const std::optional<Order> order = next_order()) {
      carry(*order, copies);
      let_go(*order);
    }
    if (!aborted_) settle();
  } catch (const std::exception& error) {
    std::unique_lock lock(mutex_);
    if (failure_.empty()) failure_ = error.what();
    changed_.wait(lock, [&] { return aborted_ || closing_; });
  }
  let_all_go();
}

std::optional<StagedLinks::Order> StagedLinks::next_order() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closing_ || aborted_ || !orders_.empty(); });
  if (aborted_ || orders_.empty()) return std::nullopt;
  Order order = std::move(orders_.front());
  orders_.pop_front();
  passing_.push_back(order.passed);  // from now on it is known there, whatever happens
  return order;
}

void StagedLinks::check_going_on() const {
  if (aborted_) fail(ErrorCode::peer_gave_up, "The communicator was aborted.");
  links_.network().job().check();
}

void StagedLinks::carry(const Order& order, SideCopies& copies) {
  wait_for(order.ready);
  std::map<std::pair<bool, int>, OneWay> ways;
  for (const GpuMessage& message : order.messages) {
    ways.try_emplace({message.sends, message.peer}, *staging_, copies).first->second.add(message);
  }
  forget_looks();
  const WaitPolicy policy = links_.wait_policy().in_background();
  Waiter waiter(policy, links_.network().segment().bell());
  while (true) {
    bool moved = false;
    bool finished = true;
    bool on_gpu = false;
    for (auto& [where, way] : ways) {
      moved |= way.advance();
      finished &= way.finished();
      on_gpu |= way.waits_for_gpu();
    }
    if (finished) return;
    if (moved) {
      waiter.moved();
      continue;
    }
    if (waiter.pause_briefly()) continue;
    check_going_on();
    if (on_gpu) look_again_by(steady_nanoseconds() + nanoseconds_between_looks_at_the_gpu);
    waiter.pause();
  }
}

// Peers may still have to take what was sent: before, the communicator cannot end.
void StagedLinks::settle() {
  forget_looks();
  const WaitPolicy policy = links_.wait_policy().in_background();
  Waiter waiter(policy, links_.network().segment().bell());
  while (!staging_->settled()) {
    if (waiter.pause_briefly()) continue;
    check_going_on();
    if (const double waited = waiter.idle_seconds(); waited > links_.network().timeout()) {
      log().error("Rank {} ends a communicator whose ranks have not taken in {:.0f} s what it sent to their GPUs.",
                  links_.network().job().rank(), waited);
      return;
    }
    waiter.pause();
  }
}

// The stream may have much to do before.
void StagedLinks::wait_for(GpuEvent ready) const {
  for (std::int64_t pause = 10; !gpu_.reached(ready); pause = std::min<std::int64_t>(2 * pause, 200)) {
    check_going_on();
    std::this_thread::sleep_for(std::chrono::microseconds(pause));
  }
}

void StagedLinks::let_go(const Order& order) {
  const std::lock_guard lock(mutex_);
  free_events_.push_back(order.ready);
  word_->store(order.number, std::memory_order_release);
}

// The last: what was never carried is behind what has failed. The word stays until nobody looks at it any more.
void StagedLinks::let_all_go() {
  std::unique_lock lock(mutex_);
  word_->store(issued_, std::memory_order_release);
  for (const Order& order : orders_) passing_.push_back(order.passed);
  orders_.clear();
  const std::deque<GpuEvent> passing = std::exchange(passing_, {});
  lock.unlock();
  try {
    for (const GpuEvent event : passing) gpu_.synchronize(event);
  } catch (const std::exception& error) {
    log().error("GPUs that wait for messages {}: {}", staging_->means(), error.what());
  }
}

}  // namespace stretto
