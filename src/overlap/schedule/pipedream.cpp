#include "core/fail.hpp"
#include "overlap/schedule/window.hpp"

namespace stretto {

Schedule pipedream_schedule(int stages, int steps) {
  require(stages >= 1 && steps >= stages,
          "A window of pipedream needs at least as many microbatches as stages, not {} on {}; choose another number.", steps,
          stages);
  Schedule window{"pipedream", stages, 1, 1, ChunkPlacement::round_robin, {}, steps};
  for (int stage = 0; stage < stages; ++stage) {
    const int under_way = stages - 1 - stage;  // in front of each backward; so many updates are missing in its version
    std::vector<ActionGroup>& list = window.lists.emplace_back();
    for (int i = 0; i < steps; ++i) {
      const int ends = (i - under_way + steps) % steps;
      list.push_back({{ActionKind::forward, i, 0, i - under_way}});
      list.push_back({{ActionKind::backward, ends, 0, ends - under_way}});
      list.push_back({{ActionKind::update, ends}});
    }
  }
  return window_with_messages(window);
}

}  // namespace stretto
