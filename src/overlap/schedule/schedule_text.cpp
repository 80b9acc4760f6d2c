// Schedules as text.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <sstream>

#include "core/fail.hpp"
#include "overlap/schedule/limits.hpp"
#include "stretto/overlap/schedule.hpp"

namespace stretto {
namespace {

// Lines without comments, and without lines that say nothing.
class Lines {
 public:
  explicit Lines(const std::string& text) : stream_(text) {}

  bool next() {
    while (std::getline(stream_, line_)) {
      ++number_;
      line_ = line_.substr(0, line_.find('#'));
      if (!words(line_).empty()) return true;
    }
    return false;
  }
  const std::string& line() const { return line_; }

  std::vector<std::string> words(const std::string& text) const {
    std::istringstream stream(text);
    std::vector<std::string> found;
    for (std::string word; stream >> word;) found.push_back(word);
    return found;
  }
  // The value of a line "key value", which must come next.
  std::string value(const char* key) {
    require(next(), "The schedule ends where '{}' is expected, behind line {}.", key, number_);
    const auto both = words(line_);
    demand(both.size() == 2 && both[0] == key, fmt::format("'{}' and its value are expected", key));
    return both[1];
  }
  int number(const std::string& word) const {
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    demand(error == std::errc() && end == word.data() + word.size(), fmt::format("'{}' is no number", word.substr(0, 40)));
    return value;
  }
  void demand(bool holds, const std::string& why) const {
    require(holds, "Line {} of the schedule cannot be read: {}.", number_, why);
  }

 private:
  std::istringstream stream_;
  std::string line_;
  int number_ = 0;
};

Action action_from(const Lines& lines, const std::string& text) {
  const auto words = lines.words(text);
  lines.demand(words.size() == 3, "an action is a kind, a microbatch and a chunk");
  for (int kind = 0; kind <= static_cast<int>(ActionKind::receive_backward); ++kind) {
    if (words[0] != name(static_cast<ActionKind>(kind))) continue;
    return {static_cast<ActionKind>(kind), lines.number(words[1]), lines.number(words[2])};
  }
  lines.demand(false, fmt::format("'{}' is no kind of action", words[0].substr(0, 40)));
  return {};
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::string text = fmt::format("schedule {}\nstages {}\nmicrobatches {}\nchunks {}\nplacement {}\n", schedule.name,
                                 schedule.stages, schedule.microbatches, schedule.chunks, name(schedule.placement));
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
  Lines lines(text);
  Schedule schedule;
  schedule.name = lines.value("schedule");
  const auto plain = [](unsigned char c) { return c < 128 && (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'); };
  lines.demand(std::all_of(schedule.name.begin(), schedule.name.end(), plain),
               "a name has letters, digits, -, _ and . only");
  schedule.stages = lines.number(lines.value("stages"));
  schedule.microbatches = lines.number(lines.value("microbatches"));
  schedule.chunks = lines.number(lines.value("chunks"));
  const std::string placement = lines.value("placement");
  schedule.placement = placement == name(ChunkPlacement::v_shaped) ? ChunkPlacement::v_shaped : ChunkPlacement::round_robin;
  lines.demand(placement == name(schedule.placement), "the placement is round_robin or v_shaped");
  require_sizes(schedule);
  while (lines.next()) {
    const auto words = lines.words(lines.line());
    if (words[0] == "stage") {
      const int stages = static_cast<int>(schedule.lists.size());
      lines.demand(words.size() == 2 && lines.number(words[1]) == stages && stages < schedule.stages,
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
