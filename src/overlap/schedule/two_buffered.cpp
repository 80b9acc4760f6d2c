#include "core/fail.hpp"
#include "overlap/schedule/window.hpp"

namespace stretto {

Schedule two_buffered_schedule(int stages, int microbatches) {
  require(stages >= 1 && microbatches >= stages,
          "2bw needs at least as many microbatches as stages, not {} on {}; choose another number, or 1f1b.", microbatches,
          stages);
  const int old = stages > 1 ? -1 : 0;  // lacks the update of the step before; a stage alone has nothing under way meanwhile
  Schedule window{"2bw", stages, microbatches, 1, ChunkPlacement::round_robin, {}};
  for (int stage = 0; stage < stages; ++stage) {
    const int under_way = stages - 1 - stage;  // in front of each backward
    std::vector<ActionGroup>& list = window.lists.emplace_back();
    for (int i = 0; i < microbatches; ++i) {
      const int ends = (i - under_way + microbatches) % microbatches;
      list.push_back({{ActionKind::forward, i, 0, old}});
      list.push_back({{ActionKind::backward, ends, 0, old}});
      if (ends == microbatches - 1) list.push_back({{ActionKind::update, 0}});
    }
  }
  return window_with_messages(window);
}

}  // namespace stretto
