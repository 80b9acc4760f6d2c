#include "core/fail.hpp"
#include "overlap/schedule/window.hpp"

namespace stretto {
namespace {

Schedule window_of(const char* name, int stages, int steps, bool vertical) {
  require(stages >= 1 && steps >= stages,
          "A window of {} needs at least as many microbatches as stages, not {} on {}; choose another number.", name, steps,
          stages);
  Schedule window{name, stages, 1, 1, ChunkPlacement::round_robin, {}, steps};
  for (int stage = 0; stage < stages; ++stage) {
    const int under_way = stages - 1 - stage;  // in front of each backward; so many updates cannot be in its version
    const int missing = vertical ? stages - 1 : under_way;
    std::vector<ActionGroup>& list = window.lists.emplace_back();
    for (int i = 0; i < steps; ++i) {
      const int ends = (i - under_way + steps) % steps;
      list.push_back({{ActionKind::forward, i, 0, i - missing}});
      list.push_back({{ActionKind::backward, ends, 0, ends - missing}});
      list.push_back({{ActionKind::update, ends}});
    }
  }
  return window_with_messages(window);
}

}  // namespace

Schedule pipedream_schedule(int stages, int steps) { return window_of("pipedream", stages, steps, false); }

Schedule vertical_pipedream_schedule(int stages, int steps) { return window_of("pipedream-vertical", stages, steps, true); }

}  // namespace stretto
