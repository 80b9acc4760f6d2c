#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "apps/train/options/relayout_options.hpp"
#include "apps/train/run/stop_request.hpp"
#include "stretto/communicator.hpp"

namespace apps {

// When the layouts of --relayout-at or --relayout-on-signal come.
class LayoutChanges {
 public:
  LayoutChanges(std::vector<Relayout> layouts, StopRequest& requests) : layouts_(std::move(layouts)), requests_(requests) {}

  // The layout in which training goes on behind so many steps, if it changes there. Collective if signals ask for it: one
  // all-reduce of 8 bytes.
  std::optional<Relayout> behind(std::int64_t steps, const stretto::Communicator& ranks) {
    if (layouts_.empty()) return std::nullopt;
    if (!layouts_.front().on_signal) {
      const auto next = std::ranges::find(layouts_, steps, &Relayout::step);
      return next != layouts_.end() ? std::optional(*next) : std::nullopt;
    }
    const auto asked = static_cast<std::size_t>(requests_.agree_on_layouts(ranks));
    const std::size_t before = std::exchange(asked_, asked);
    is_asked_in_vain_ = asked > before && before >= layouts_.size();
    if (asked == before || is_asked_in_vain_) return std::nullopt;
    Relayout next = layouts_[std::min(asked, layouts_.size()) - 1];
    next.step = steps;
    return next;
  }
  // Whether the last call of behind() found a request behind the last layout.
  bool is_asked_in_vain() const { return is_asked_in_vain_; }

 private:
  std::vector<Relayout> layouts_;
  StopRequest& requests_;
  std::size_t asked_ = 0;
  bool is_asked_in_vain_ = false;
};

}  // namespace apps
