#pragma once
#include <algorithm>
#include <functional>
#include <utility>

#include "stretto/stream.hpp"

namespace stretto {

// While it lives, waits of this thread for other ranks, on the inline stream and in mailboxes, call look() about every so
// many seconds. It may throw, which ends the wait. What the thread does in its waits otherwise, and what scopes around this
// one look for, goes on, as often as it did.
class LookScope {
 public:
  explicit LookScope(std::function<void()> look, double seconds = 0.05)
      : look_(std::move(look)), around_(std::exchange(innermost, this)) {
    if (around_ != nullptr) return;
    outside = while_waiting({});
    while_waiting({look_at_all, outside.function != nullptr ? std::min(seconds, outside.seconds) : seconds});
  }
  ~LookScope() {
    innermost = around_;
    if (around_ == nullptr) while_waiting(outside);
  }
  LookScope(const LookScope&) = delete;
  LookScope& operator=(const LookScope&) = delete;

 private:
  static void look_at_all() {
    for (const LookScope* scope = innermost; scope != nullptr; scope = scope->around_) scope->look_();
    if (outside.function != nullptr) outside.function();
  }

  static thread_local inline LookScope* innermost = nullptr;
  static thread_local inline Meanwhile outside;

  std::function<void()> look_;
  LookScope* around_;
};

}  // namespace stretto
