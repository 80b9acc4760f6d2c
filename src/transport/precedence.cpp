#include "transport/precedence.hpp"

#include <algorithm>

namespace stretto {

OperationPrecedence::OperationPrecedence(Precedence& all, Priority priority) : all_(all), priority_(priority) {
  all_.levels_[static_cast<int>(priority_)].under_way.fetch_add(1, std::memory_order_relaxed);
}

OperationPrecedence::~OperationPrecedence() {
  if (goes_first_) let_go();
  all_.levels_[static_cast<int>(priority_)].under_way.fetch_sub(1, std::memory_order_relaxed);
}

void OperationPrecedence::moved() {
  if (!goes_first_) {
    if (to_send_ == 0 || !all_.anybody_below(priority_)) return;
    goes_first_ = true;
    all_.levels_[static_cast<int>(priority_)].go_first.fetch_add(1, std::memory_order_relaxed);
  }
  moved_at_ = steady_nanoseconds();
}

void OperationPrecedence::looked() {
  if (!goes_first_) return;
  const std::int64_t until = moved_at_ + all_.bounds_.patience;
  if (to_send_ == 0 || steady_nanoseconds() >= until) {
    let_go();
  } else {
    look_again_by(until);
  }
}

void OperationPrecedence::let_go() {
  goes_first_ = false;
  all_.levels_[static_cast<int>(priority_)].go_first.fetch_sub(1, std::memory_order_relaxed);
  all_.bell_.ring();
}

void OperationPrecedence::begin_look() {
  held_ = false;
  if (!all_.anybody_goes_before(priority_)) {
    held_since_ = 0;
    return;
  }
  const std::int64_t now = steady_nanoseconds();
  if (held_since_ == 0) held_since_ = now;
  const std::int64_t until = held_since_ + all_.bounds_.longest_hold;
  if (now >= until) return;
  look_again_by(until);
  held_ = true;
}

void OperationPrecedence::handed_over(std::size_t bytes) {
  to_send_ -= bytes;
  if (!held_) held_since_ = 0;
}

bool Precedence::anybody_below(Priority priority) const {
  return std::any_of(levels_.begin(), levels_.begin() + static_cast<int>(priority),
                     [](const PriorityLevel& level) { return level.under_way.load(std::memory_order_relaxed) > 0; });
}

bool Precedence::anybody_goes_before(Priority priority) const {
  return std::any_of(levels_.begin() + static_cast<int>(priority) + 1, levels_.end(),
                     [](const PriorityLevel& level) { return level.go_first.load(std::memory_order_relaxed) > 0; });
}

}  // namespace stretto
