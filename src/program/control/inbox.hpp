#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "program/control/control_links.hpp"

namespace stretto {

// What has come for an executor and was not used yet. Listening threads put it in, the executor's own takes it out.
class Inbox {
 public:
  void put(const ReceivedMessage& message) {
    const std::lock_guard lock(mutex_);
    const std::pair run{message.head.table, message.head.clock};
    switch (static_cast<ControlKind>(message.head.kind)) {
      case ControlKind::inputs:
        if (!ended_.contains(message.head.table)) inputs_[{message.head.table, message.head.request}] = message;
        break;
      case ControlKind::go_on: steps_[run] = message.head.part; break;
      case ControlKind::cancel:
        cancels_[message.head.table] = message.head.clock;
        if (message.head.part == 1) end(message.head.table);
        break;
      default: in_order_.push_back(message);
    }
    changed_.notify_all();
  }
  // The job has lost a rank: every wait throws this.
  void lose(const std::exception_ptr& why) {
    const std::lock_guard lock(mutex_);
    loss_ = why;
    changed_.notify_all();
  }

  ReceivedMessage next() {
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return !in_order_.empty(); });
    ReceivedMessage message = std::move(in_order_.front());
    in_order_.pop_front();
    return message;
  }
  std::int64_t cancels(std::uint32_t program) {
    const std::lock_guard lock(mutex_);
    return cancels_of(program);
  }
  // Blocks until the inputs are there, or the program has been cancelled more than `cancels` times: then returns nothing.
  std::optional<Tensor> inputs(std::uint32_t program, std::uint64_t request, std::int64_t cancels) {
    std::unique_lock lock(mutex_);
    const auto found = [&] { return inputs_.find({program, request}); };
    wait_until(lock, [&] { return cancels_of(program) > cancels || found() != inputs_.end(); });
    if (found() == inputs_.end()) return std::nullopt;
    return found()->second.bytes;
  }
  void drop_inputs(std::uint32_t program, std::uint64_t first, std::uint64_t last) {
    const std::lock_guard lock(mutex_);
    inputs_.erase(inputs_.lower_bound({program, first}), inputs_.upper_bound({program, last}));
  }
  // The program has been cancelled for good.
  bool has_ended(std::uint32_t program) {
    const std::lock_guard lock(mutex_);
    return ended_.contains(program);
  }
  // The client has left: also of runs that were given up, and of those that it could not ask for.
  void drop_inputs_of(int client) {
    const std::lock_guard lock(mutex_);
    std::erase_if(inputs_, [&](const auto& each) { return each.second.from == client; });
  }
  // All of a program that has no run any more.
  void drop(std::uint32_t program) {
    const std::lock_guard lock(mutex_);
    const auto is_its = [&](const auto& each) { return each.first.first == program; };
    std::erase_if(inputs_, is_its);
    std::erase_if(steps_, is_its);
    cancels_.erase(program);
  }
  // Blocks until the executor may begin a step of a run, or the program has been cancelled more than `cancels` times.
  void await_step(std::uint32_t program, std::int64_t run, std::int64_t step, std::int64_t cancels) {
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] {
      const auto found = steps_.find({program, run});
      return cancels_of(program) > cancels || step == 0 || (found != steps_.end() && found->second >= step);
    });
  }
  void drop_steps(std::uint32_t program, std::int64_t run) {
    const std::lock_guard lock(mutex_);
    steps_.erase({program, run});
  }

 private:
  std::int64_t cancels_of(std::uint32_t program) const {
    const auto found = cancels_.find(program);
    return found == cancels_.end() ? 0 : found->second;
  }
  // Inputs are dropped, and so are those that are still under way. A run that has taken its own keeps them.
  void end(std::uint32_t program) {
    ended_.insert(program);
    std::erase_if(inputs_, [&](const auto& each) { return each.first.first == program; });
  }
  template <class Done>
  void wait_until(std::unique_lock<std::mutex>& lock, Done done) {
    while (true) {
      if (loss_) std::rethrow_exception(loss_);
      if (done()) return;
      changed_.wait(lock);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ReceivedMessage> in_order_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, ReceivedMessage> inputs_;  // by program and request
  std::map<std::pair<std::uint32_t, std::int64_t>, std::int64_t> steps_;       // by program and run: the last that may begin
  std::map<std::uint32_t, std::int64_t> cancels_;                              // by program
  std::set<std::uint32_t> ended_;                                              // programs, whose numbers do not come again
  std::exception_ptr loss_;
};

}  // namespace stretto
