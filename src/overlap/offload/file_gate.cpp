#include "stretto/overlap/file_gate.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/fail.hpp"
#include "stretto/stream.hpp"

namespace stretto {

FileGate::~FileGate() = default;

TokenGate::TokenGate(double bytes_per_second) : bytes_per_second_(bytes_per_second) {
  require(bytes_per_second > 0, "A disk cannot move {} bytes a second; give more than 0.", bytes_per_second);
}

void TokenGate::pass(bool /*writes*/, std::int64_t /*offset*/, std::int64_t bytes) {
  double wait = 0;
  {
    const std::lock_guard lock(mutex_);
    const double now = now_seconds();
    free_at_ = std::max(free_at_, now) + static_cast<double>(bytes) / bytes_per_second_;
    wait = free_at_ - now;
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(wait));
}

}  // namespace stretto
