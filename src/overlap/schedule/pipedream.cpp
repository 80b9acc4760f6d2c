#include "core/fail.hpp"
#include "overlap/schedule/window.hpp"

namespace stretto {
namespace {

enum class Reads : std::uint8_t { stashed, of_first_stage, latest };  // the version that a backward reads

Schedule window_of(const char* name, int stages, int steps, Reads reads) {
  require(stages >= 1 && steps >= stages,
          "A window of {} needs at least as many microbatches as stages, not {} on {}; choose another number.", name, steps,
          stages);
  Schedule window{name, stages, 1, 1, ChunkPlacement::round_robin, {}, steps, reads != Reads::latest};
  for (int stage = 0; stage < stages; ++stage) {
    const int under_way = stages - 1 - stage;  // in front of each backward; so many updates cannot be in its version
    const int missing = reads == Reads::of_first_stage ? stages - 1 : under_way;
    const int missing_in_backward = reads == Reads::latest ? 0 : missing;
    std::vector<ActionGroup>& list = window.lists.emplace_back();
    for (int i = 0; i < steps; ++i) {
      const int ends = (i - under_way + steps) % steps;
      list.push_back({{ActionKind::forward, i, 0, i - missing}});
      list.push_back({{ActionKind::backward, ends, 0, ends - missing_in_backward}});
      list.push_back({{ActionKind::update, ends}});
    }
  }
  return window_with_messages(window);
}

}  // namespace

Schedule pipedream_schedule(int stages, int steps) { return window_of("pipedream", stages, steps, Reads::stashed); }

Schedule vertical_pipedream_schedule(int stages, int steps) {
  return window_of("pipedream-vertical", stages, steps, Reads::of_first_stage);
}

Schedule pipemare_schedule(int stages, int steps) { return window_of("pipemare", stages, steps, Reads::latest); }

}  // namespace stretto
