#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/train/options/relayout_options.hpp"
#include "apps/train/run/stop_request.hpp"
#include "stretto/communicator.hpp"

namespace apps {

// When the layouts of --relayout-at or --relayout-on-signal come.
class LayoutChanges {
 public:
  // asked: how often signals have asked for one of these layouts, by --relayout-on-signal; else 0. The job has the last
  // of these: CommandLine::after().
  LayoutChanges(std::vector<Relayout> layouts, StopRequest& requests, std::int64_t asked)
      : layouts_(std::move(layouts)), requests_(requests), asked_(static_cast<std::size_t>(asked)) {
    if (asked_ == 0) return;
    said_.push_back(fmt::format("SIGUSR2 has come {} so far: training begins with {} '{}'.",
                                asked_ == 1 ? "once" : fmt::format("{} times", asked_), layout(asked_).name(),
                                layout(asked_).flags));
  }

  // The layout in which training goes on behind so many steps, if it changes there. Collective if signals ask for it: one
  // all-reduce of 8 bytes.
  std::optional<Relayout> behind(std::int64_t steps, const stretto::Communicator& ranks) {
    said_.clear();
    if (layouts_.empty()) return std::nullopt;
    if (!layouts_.front().on_signal) {
      const auto next = std::ranges::find(layouts_, steps, &Relayout::step);
      return next != layouts_.end() ? std::optional(*next) : std::nullopt;
    }
    const auto asked = static_cast<std::size_t>(requests_.agree_on_layouts(ranks));
    const std::size_t before = std::exchange(asked_, asked), last = std::min(asked, layouts_.size());
    for (std::size_t passed = before + 1; passed < last; ++passed) {
      said_.push_back(fmt::format("SIGUSR2 came again before the step ended: {} '{}' is passed over.", layout(passed).name(),
                                  layout(passed).flags));
    }
    for (std::size_t vain = std::max(before, last); vain < asked; ++vain) {
      said_.emplace_back("SIGUSR2 asks for a further layout, and this is the last one of --relayout-on-signal.");
    }
    if (before >= last) return std::nullopt;
    Relayout next = layout(last);
    next.step = steps;
    return next;
  }
  // Answers to requests, a sentence each, beside the change itself: since the last call of behind(), or the beginning.
  const std::vector<std::string>& said() const { return said_; }

 private:
  const Relayout& layout(std::size_t number) const { return layouts_[std::min(number, layouts_.size()) - 1]; }  // from 1 on

  std::vector<Relayout> layouts_;
  StopRequest& requests_;
  std::size_t asked_;
  std::vector<std::string> said_;
};

}  // namespace apps
