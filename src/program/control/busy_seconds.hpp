#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace stretto {

// How long somebody was busy in the last seconds. Times are of now_seconds().
class BusySeconds {
 public:
  static constexpr int window = 10;

  // It was, for so long until now.
  void add(double now, double seconds) {
    const double begin = std::max(now - seconds, now - window);
    for (double at = begin; at < now;) {
      const auto second = static_cast<std::int64_t>(std::floor(at));
      const double end = std::min(now, static_cast<double>(second + 1));
      Second& its = seconds_[static_cast<std::size_t>(second) % seconds_.size()];
      if (its.number != second) its = {second, 0};
      its.busy += end - at;
      at = end;
    }
  }
  // Of the whole seconds of the window, the share in which it was.
  double share(double now) const {
    const auto this_second = static_cast<std::int64_t>(std::floor(now));
    double busy = 0;
    for (const Second& each : seconds_) {
      if (each.number < this_second && each.number >= this_second - window) busy += each.busy;
    }
    return std::min(1.0, busy / window);
  }

 private:
  struct Second {
    std::int64_t number = -1;
    double busy = 0;
  };
  std::array<Second, window + 1> seconds_{};
};

}  // namespace stretto
