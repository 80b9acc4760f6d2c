#pragma once
#include "stretto/overlap/schedule.hpp"

namespace stretto {

inline bool is_send(ActionKind kind) { return kind == ActionKind::send_forward || kind == ActionKind::send_backward; }
// Its number is that of a step, not of a microbatch; it takes no time.
inline bool is_of_step(ActionKind kind) { return kind == ActionKind::sum || kind == ActionKind::update; }
// Whether a computation takes what another part has computed; or an action is a message.
inline bool takes_input(ActionKind kind) { return kind != ActionKind::backward_weight && !is_of_step(kind); }
inline bool reads_version(ActionKind kind) { return kind <= ActionKind::backward_weight; }
inline bool adds_weight_gradients(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}
// Whether a computation or a message belongs to forward. The others but backward_weight move gradients towards the first
// part.
inline bool goes_forward(ActionKind kind) {
  return kind == ActionKind::forward || kind == ActionKind::send_forward || kind == ActionKind::receive_forward;
}
// The part of the model that takes the result of a computation, or the contents of a message that is sent. It may be below 0
// or above the last, where nothing is taken.
inline int part_after(const Schedule& schedule, int stage, const Action& action) {
  return schedule.part_of(stage, action.chunk) + (goes_forward(action.kind) ? 1 : -1);
}
// The part that gave a computation its input, or a message that is received its contents; likewise.
inline int part_before(const Schedule& schedule, int stage, const Action& action) {
  return schedule.part_of(stage, action.chunk) + (goes_forward(action.kind) ? -1 : 1);
}

}  // namespace stretto
