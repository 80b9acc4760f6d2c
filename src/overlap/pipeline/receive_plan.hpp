#pragma once
#include <cstddef>
#include <map>
#include <vector>

#include "overlap/schedule/actions.hpp"

namespace stretto {

// Messages of one kind from one stage to another.
struct Route {
  int from, to;
  bool forward;
  auto operator<=>(const Route&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

struct ReceivePlan {
  std::vector<Action> receives;  // in their order
  // The schedule lets so many messages arrive before they are used, at most; and one more.
  std::size_t most = 0;
};
// What a stage receives in a step, by route.
std::map<Route, ReceivePlan> receive_plans(const Schedule& schedule, int stage);

}  // namespace stretto
