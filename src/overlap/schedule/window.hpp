#pragma once
#include "stretto/overlap/schedule.hpp"

namespace stretto {

bool has_updates(const Schedule& schedule);
// Throws if a stage has an action of a microbatch, step or chunk that is not there.
void require_numbers(const Schedule& schedule, int stage, const Action& action);
// Inserts the messages into a window of computations and updates, in which every stage begins with forward 0 0.
Schedule window_with_messages(const Schedule& computations);
// By stage: the most versions of a chunk's weights that live at a time in the lists, which begin with version 0.
std::vector<int> live_versions(const Schedule& schedule);
// By stage: the most updates that the weights lack that a microbatch reads.
std::vector<int> delays(const Schedule& schedule);

}  // namespace stretto
