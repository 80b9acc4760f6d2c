#include <tuple>

#include "core/fail.hpp"
#include "core/files/text_file.hpp"
#include "stretto/overlap/schedule.hpp"

namespace stretto {
namespace {

Schedule schedule_in_file(const std::string& path) {
  const std::string text = text_of_file(
      path, fmt::format("'{}' is neither a schedule ({}, {}) nor a file: it", path, schedule_names(), window_names()));
  try {
    Schedule schedule = schedule_from_text(text);
    check(schedule);
    return schedule;
  } catch (const Error& error) {
    fail(ErrorCode::invalid_argument, "{}: {}", path, error.what());
  }
}

}  // namespace

Schedule named_schedule(const std::string& name_or_file, int stages, int microbatches, int chunks) {
  for (const ScheduleKind kind : all_schedule_kinds()) {
    if (name_or_file != name(kind)) continue;
    return make_schedule(kind, stages, microbatches, chunks > 0 ? chunks : usual_chunks(kind));
  }
  for (const WindowKind& kind : all_window_kinds()) {
    if (name_or_file != kind.name) continue;
    require(chunks <= 1, "{} has 1 chunk a stage, not {}; leave the number out.", kind.name, chunks);
    return kind.make(stages, microbatches);
  }
  Schedule schedule = schedule_in_file(name_or_file);
  for (const auto& [what, asked, has] : {std::tuple{"stages", stages, schedule.stages},
                                         {"microbatches", microbatches, schedule.all_microbatches()},
                                         {"chunks a stage", chunks, schedule.chunks}}) {
    require(asked == 0 || asked == has, "The schedule in {} is for {} {}, not for {}; choose another, or that number.",
            name_or_file, has, what, asked);
  }
  return schedule;
}

}  // namespace stretto
