#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "stretto/communicator.hpp"
#include "stretto/layers/state_move.hpp"
#include "stretto/models/trainer.hpp"

namespace apps {

// A training behind a step, on its way to a job of more ranks.
struct CarriedTraining {
  CarriedTraining() = default;  // of a rank that joins
  explicit CarriedTraining(stretto::Trainer& trainer);

  stretto::StateMove state;
  std::map<std::string, std::string> notes;  // Trainer::notes()
  std::int64_t step = 0, samples = 0;        // done, and consumed
};
// Tells the ranks that join all but the state. Collective.
void share(const stretto::Communicator& ranks, CarriedTraining& training);

}  // namespace apps
