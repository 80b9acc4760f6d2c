// Schedules as text.
#include <algorithm>

#include "core/fail.hpp"
#include "core/files/text_lines.hpp"
#include "overlap/schedule/actions.hpp"
#include "overlap/schedule/limits.hpp"
#include "stretto/overlap/schedule.hpp"

namespace stretto {
namespace {

Action action_from(const TextLines& lines, const std::string& text) {
  const auto words = words_of(text);
  lines.demand(words.size() == 3 || words.size() == 4,
               "an action is a kind, a microbatch and a chunk, and the version of the weights that it reads");
  for (int kind = 0; kind <= static_cast<int>(ActionKind::receive_backward); ++kind) {
    if (words[0] != name(static_cast<ActionKind>(kind))) continue;
    const auto found = static_cast<ActionKind>(kind);
    lines.demand(words.size() == 3 || reads_version(found), "sums, updates and messages read no version of the weights");
    return {found, lines.number<int>(words[1]), lines.number<int>(words[2]),
            words.size() == 4 ? lines.number<int>(words[3]) : 0};
  }
  lines.demand(false, fmt::format("'{}' is no kind of action", words[0].substr(0, 40)));
  return {};
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::string text = fmt::format("schedule {}\nstages {}\nmicrobatches {}\nchunks {}\nplacement {}\n", schedule.name,
                                 schedule.stages, schedule.microbatches, schedule.chunks, name(schedule.placement));
  if (schedule.steps != 1) text += fmt::format("steps {}\n", schedule.steps);
  if (!schedule.stashes) text += "stash none\n";
  for (std::size_t stage = 0; stage < schedule.lists.size(); ++stage) {
    text += fmt::format("stage {}\n", stage);
    for (const ActionGroup& group : schedule.lists[stage]) {
      for (std::size_t i = 0; i < group.size(); ++i) text += (i > 0 ? ", " : "") + to_string(group[i]);
      text += '\n';
    }
  }
  return text;
}

Schedule schedule_from_text(const std::string& text) {
  TextLines lines(text, "schedule");
  Schedule schedule;
  schedule.name = lines.value("schedule");
  lines.demand(is_plain_name(schedule.name), "a name has letters, digits, -, _ and . only");
  schedule.stages = lines.number<int>(lines.value("stages"));
  schedule.microbatches = lines.number<int>(lines.value("microbatches"));
  schedule.chunks = lines.number<int>(lines.value("chunks"));
  const std::string placement = lines.value("placement");
  schedule.placement = placement == name(ChunkPlacement::v_shaped) ? ChunkPlacement::v_shaped : ChunkPlacement::round_robin;
  lines.demand(placement == name(schedule.placement), "the placement is round_robin or v_shaped");
  require_sizes(schedule);
  while (lines.next()) {
    const auto words = words_of(lines.line());
    if (words[0] == "steps" && schedule.lists.empty()) {
      lines.demand(words.size() == 2, "'steps' and its value are expected");
      schedule.steps = lines.number<int>(words[1]);
      require_sizes(schedule);
      continue;
    }
    if (words[0] == "stash" && schedule.lists.empty()) {
      lines.demand(words.size() == 2 && words[1] == "none", "'stash none' is all that can be said of stashing");
      schedule.stashes = false;
      continue;
    }
    if (words[0] == "stage") {
      const int stages = static_cast<int>(schedule.lists.size());
      lines.demand(words.size() == 2 && lines.number<int>(words[1]) == stages && stages < schedule.stages,
                   fmt::format("the stages are 0 to {}, in order", schedule.stages - 1));
      schedule.lists.emplace_back();
      continue;
    }
    lines.demand(!schedule.lists.empty(), "'stage 0' is expected");
    ActionGroup group;
    for (std::size_t begin = 0; begin <= lines.line().size();) {
      const std::size_t comma = std::min(lines.line().find(',', begin), lines.line().size());
      group.push_back(action_from(lines, lines.line().substr(begin, comma - begin)));
      begin = comma + 1;
    }
    schedule.lists.back().push_back(std::move(group));
  }
  require(static_cast<int>(schedule.lists.size()) == schedule.stages, "The schedule has {} stages, but lists {}.",
          schedule.stages, schedule.lists.size());
  return schedule;
}

}  // namespace stretto
