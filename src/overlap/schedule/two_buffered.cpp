#include "core/fail.hpp"
#include "overlap/schedule/window.hpp"

namespace stretto {
namespace {

enum class Updates : std::uint8_t { behind_last_backward, jointly };

Schedule window_of(const char* name, int stages, int microbatches, Updates updates) {
  require(stages >= 1 && microbatches >= stages,
          "{} needs at least as many microbatches as stages, not {} on {}; choose another number, or 1f1b.", name,
          microbatches, stages);
  const int old = stages > 1 ? -1 : 0;  // lacks the update of the step before; a stage alone has nothing under way meanwhile
  const bool jointly = updates == Updates::jointly;
  Schedule window{name, stages, microbatches, 1, ChunkPlacement::round_robin, {}};
  for (int stage = 0; stage < stages; ++stage) {
    const int under_way = stages - 1 - stage;  // in front of each backward
    std::vector<ActionGroup>& list = window.lists.emplace_back();
    for (int i = 0; i < microbatches; ++i) {
      const int ends = (i - under_way + microbatches) % microbatches;
      list.push_back({{ActionKind::forward, i, 0, old}});
      list.push_back({{ActionKind::backward, ends, 0, old}});
      const bool ends_step = ends == microbatches - 1;
      // On the last stage the update is that of the step before, whose gradients must not lie aside any more.
      if (jointly && stages > 1 && i == microbatches - 1) list.push_back({{ActionKind::update, 0}});
      if (ends_step && jointly) list.push_back({{ActionKind::sum, 0}});
      if (ends_step && (!jointly || stages == 1)) list.push_back({{ActionKind::update, 0}});
    }
  }
  return window_with_messages(window);
}

}  // namespace

Schedule two_buffered_schedule(int stages, int microbatches) {
  return window_of("2bw", stages, microbatches, Updates::behind_last_backward);
}

Schedule joint_two_buffered_schedule(int stages, int microbatches) {
  return window_of("2bw-joint", stages, microbatches, Updates::jointly);
}

}  // namespace stretto
