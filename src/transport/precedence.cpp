#include "transport/precedence.hpp"

#include <algorithm>

namespace stretto {

Precedence::Operation::Operation(Precedence& all, Priority priority) : all_(all), priority_(priority) {
  all_.levels_[static_cast<int>(priority_)].under_way.fetch_add(1, std::memory_order_relaxed);
}

Precedence::Operation::~Operation() {
  Level& own = all_.levels_[static_cast<int>(priority_)];
  if (own.under_way.fetch_sub(1, std::memory_order_relaxed) > 1) return;  // another one may be moving: the time will tell
  if (own.goes_first_until.exchange(0, std::memory_order_relaxed) != 0) all_.bell_.ring();
}

void Precedence::Operation::moved() {
  if (!all_.anybody_below(priority_)) return;
  all_.levels_[static_cast<int>(priority_)].goes_first_until.store(steady_nanoseconds() + all_.bounds_.patience,
                                                                   std::memory_order_relaxed);
}

bool Precedence::Operation::held() {
  const std::int64_t until = all_.claimed_until(priority_);
  const std::int64_t now = until == 0 ? 0 : steady_nanoseconds();
  if (until <= now) {
    held_since_ = 0;
    return false;
  }
  if (held_since_ == 0) held_since_ = now;
  if (now - held_since_ >= all_.bounds_.longest_hold) {
    held_since_ = 0;
    return false;
  }
  look_again_at(std::min(until, held_since_ + all_.bounds_.longest_hold));
  return true;
}

bool Precedence::anybody_below(Priority priority) const {
  return std::any_of(levels_.begin(), levels_.begin() + static_cast<int>(priority),
                     [](const Level& level) { return level.under_way.load(std::memory_order_relaxed) > 0; });
}

std::int64_t Precedence::claimed_until(Priority by_more_than) const {
  std::int64_t latest = 0;
  for (int i = static_cast<int>(by_more_than) + 1; i < priorities; ++i) {
    latest = std::max(latest, levels_[i].goes_first_until.load(std::memory_order_relaxed));
  }
  return latest;
}

}  // namespace stretto
