#pragma once
#include <string>

#include "trainer.hpp"

// A checkpoint is a directory DIR/step_00000200 with the whole, undivided tensors of the model and of the optimizer, by
// global name: any layout can load the checkpoint of any other. It appears under its name only when it is complete;
// DIR/latest names the newest.
namespace gpt {

// Collective; rank 0 writes. If the disk is full, throws Error(io), leaves nothing of the new checkpoint, and keeps the
// previous one.
void save_checkpoint(Trainer& trainer, const std::string& directory, std::int64_t step);

// The newest checkpoint under the directory, or the directory itself if it is a checkpoint. Throws Error(io) if there is
// none.
std::string find_checkpoint(const std::string& directory);

struct LoadedCheckpoint {
  std::int64_t step = 0;             // after which it was saved
  std::int64_t optimizer_steps = 0;  // 0 without the optimizer
};
// Reads what this rank updates into the optimizer's state. with_optimizer: reads the moments as well, so that training goes
// on as if it had not stopped. Not collective, so that one rank can report an error; afterwards all ranks must call
// trainer.optimizer().restore(optimizer_steps).
LoadedCheckpoint load_checkpoint(Trainer& trainer, const std::string& checkpoint, bool with_optimizer);

}  // namespace gpt
