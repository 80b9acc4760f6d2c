#pragma once
#include <map>
#include <string>

#include "stretto/layers/optimizer.hpp"

// A checkpoint is a directory DIR/step_00000200 of two files in the safetensors format (Hugging Face): model.safetensors
// with the parameters, optimizer.safetensors with their moments ("m." and "v." before the name). They hold the whole,
// undivided tensors by global name, in the optimizer's accumulator type: a job of any mesh, ZeRO stage and type can load the
// checkpoint of any other. On the same mesh with the same options, training goes on bit for bit, except where gradients are
// quantized with stochastic rounding or error feedback: random numbers and errors begin anew. A checkpoint appears under its
// name only when it is complete on the disk; DIR/latest names the newest.
//
// In every call, the optimizer must be the one that was made for the parameters.
namespace stretto {

// Collective over the mesh's world, between two steps; returns when the checkpoint is complete. Rank 0 writes, and replaces
// an earlier checkpoint of the same step at once. `notes` are further metadata of both files, UTF-8 texts by name, the same
// on every rank; load_checkpoint() returns them.
// If rank 0 cannot write, for example because the disk is full, it throws Error(io), leaves nothing of the new checkpoint,
// and keeps the previous one; the other ranks wait until it ends the job or aborts the world. Throws Error(invalid_argument)
// for notes named "format", "step" or "optimizer_steps", and on rank 0 for texts that are no UTF-8.
// Cost: a reduce to rank 0 of 3 numbers per element of the model; one parameter at a time is whole in host memory.
STRETTO_API void save_checkpoint(const ShardedParameters& parameters, const AdamWOptimizer& optimizer,
                                 const std::string& directory, std::int64_t step,
                                 const std::map<std::string, std::string>& notes = {});

// Removes all but the newest `keep` checkpoints under the directory, which has one. Checkpoints of later steps than the
// newest one, which a resumed job has yet to replace, stay. Not collective: one rank calls it after save_checkpoint(). A
// checkpoint loses its name before its files go. Throws Error(io) for one that cannot be removed.
STRETTO_API void remove_old_checkpoints(const std::string& directory, int keep);

// The newest checkpoint under the directory, or the directory itself if it is a checkpoint. Throws Error(io) if there is
// none.
STRETTO_API std::string find_checkpoint(const std::string& directory);

struct LoadedCheckpoint {
  std::int64_t step = 0;             // after which it was saved
  std::int64_t optimizer_steps = 0;  // 0 without the optimizer
  std::map<std::string, std::string> notes;
};
// Reads what this rank updates into the optimizer's states. with_optimizer: reads the moments as well, so that training goes
// on as if it had not stopped. Not collective, so that one rank can report an error; afterwards all ranks must call
// optimizer.restore(optimizer_steps), which brings the values to every rank. Throws Error(io) for a file that is missing or
// damaged, and Error(invalid_argument) for a parameter of another shape; the states are then unspecified.
STRETTO_API LoadedCheckpoint load_checkpoint(const ShardedParameters& parameters, AdamWOptimizer& optimizer,
                                             const std::string& checkpoint, bool with_optimizer);

}  // namespace stretto
