#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/train/options/command_line.hpp"
#include "apps/train/run/run_notes.hpp"
#include "stretto/models/trainer.hpp"

namespace apps {

// A wrong input is wrong for every rank: rank 0 looks first, so that the error is printed once.
void rank0_first(const stretto::Communicator& world, const std::function<void()>& look);

inline constexpr const char* consumed_samples_note = "consumed_samples";  // by training: where it is in the data

// The step and the data at which a run begins.
struct Beginning {
  bool resumed = false;
  std::int64_t step = 0, samples = 0;  // done, and consumed
  std::vector<std::string> to_say;
};
// Gives the trainer what the command line names: the weights of a model, adapters, a checkpoint. run: run_notes(), with
// which a checkpoint that is resumed is compared; replica: of DiLoCo. Collective.
Beginning begin_training(const stretto::Communicator& world, const CommandLine& line, const Notes& run, int replica,
                         stretto::Trainer& trainer);

}  // namespace apps
