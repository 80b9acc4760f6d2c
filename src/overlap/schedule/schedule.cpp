// Names, and where the parts of the model are.
#include "stretto/overlap/schedule.hpp"

#include "core/fail.hpp"
#include "overlap/schedule/actions.hpp"

namespace stretto {
const char* name(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward: return "forward";
    case ActionKind::backward: return "backward";
    case ActionKind::backward_input: return "backward_input";
    case ActionKind::backward_weight: return "backward_weight";
    case ActionKind::sum: return "sum";
    case ActionKind::update: return "update";
    case ActionKind::send_forward: return "send_forward";
    case ActionKind::receive_forward: return "receive_forward";
    case ActionKind::send_backward: return "send_backward";
    default: return "receive_backward";
  }
}

bool is_message(ActionKind kind) { return kind >= ActionKind::send_forward; }

std::string to_string(const Action& action) {
  const std::string version = action.version == 0 ? "" : fmt::format(" {}", action.version);
  return fmt::format("{} {} {}{}", name(action.kind), action.microbatch, action.chunk, version);
}

const char* name(ChunkPlacement placement) { return placement == ChunkPlacement::round_robin ? "round_robin" : "v_shaped"; }

const char* name(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::gpipe: return "gpipe";
    case ScheduleKind::one_forward_one_backward: return "1f1b";
    case ScheduleKind::eager_one_forward_one_backward: return "1f1b-eager";
    case ScheduleKind::interleaved: return "interleaved";
    case ScheduleKind::zb_h1: return "zb-h1";
    case ScheduleKind::zb_h2: return "zb-h2";
    default: return "zb-v";
  }
}

std::vector<ScheduleKind> all_schedule_kinds() {
  std::vector<ScheduleKind> all;
  for (int kind = 0; kind <= static_cast<int>(ScheduleKind::zb_v); ++kind) all.push_back(static_cast<ScheduleKind>(kind));
  return all;
}

ScheduleKind schedule_kind_from_name(const std::string& text) {
  for (const ScheduleKind kind : all_schedule_kinds()) {
    if (text == name(kind)) return kind;
  }
  fail(ErrorCode::invalid_argument, "'{}' is no schedule; choose one of {}.", text, schedule_names());
}

std::string schedule_names() {
  std::string all;
  for (const ScheduleKind kind : all_schedule_kinds()) all += fmt::format("{}{}", all.empty() ? "" : ", ", name(kind));
  return all;
}

const std::vector<WindowKind>& all_window_kinds() {
  static const std::vector<WindowKind> all = {{"pipedream", &pipedream_schedule},
                                              {"pipedream-vertical", &vertical_pipedream_schedule},
                                              {"2bw", &two_buffered_schedule},
                                              {"2bw-joint", &joint_two_buffered_schedule},
                                              {"pipemare", &pipemare_schedule}};
  return all;
}

std::string window_names() {
  std::string all;
  for (const WindowKind& kind : all_window_kinds()) all += fmt::format("{}{}", all.empty() ? "" : ", ", kind.name);
  return all;
}

int usual_chunks(ScheduleKind kind) { return kind == ScheduleKind::interleaved || kind == ScheduleKind::zb_v ? 2 : 1; }

int Schedule::part_of(int stage, int chunk) const {
  if (placement == ChunkPlacement::v_shaped && chunk == 1) return 2 * stages - 1 - stage;
  return chunk * stages + stage;
}

int Schedule::stage_of(int part) const {
  if (placement == ChunkPlacement::v_shaped && part >= stages) return 2 * stages - 1 - part;
  return part % stages;
}

int Schedule::chunk_of(int part) const { return part / stages; }

int Schedule::peer_of(int stage, const Action& message) const {
  const int part = is_send(message.kind) ? part_after(*this, stage, message) : part_before(*this, stage, message);
  return part < 0 || part >= parts() ? -1 : stage_of(part);
}

}  // namespace stretto
