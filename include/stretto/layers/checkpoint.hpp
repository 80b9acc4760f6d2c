#pragma once
#include <map>
#include <memory>
#include <string>

#include "stretto/layers/optimizer.hpp"

// A checkpoint is a directory DIR/step_00000200. Each rank writes a shard in the safetensors format (Hugging Face),
// rank_00003.safetensors, with what it owns: parameters by global name, and the slots of the optimizer ("m.", "v." and the
// like before the name), as a slice's whole tensor or a flat run of it; with a delay (ShardedParameters::Options::delay)
// also the gradients that the next update takes ("late."), for whose sums it waits; and while a pipeline without a flush
// goes on (ShardedParameters::in_flight) its older versions ("before1." and so on). index.json names the optimizer, and says
// which shard holds what. A job of any mesh, ZeRO stage and type can load the checkpoint of any other, and each of its ranks
// reads only the shards that it needs. On the same mesh with the same options, training goes on bit for bit, on processors
// with the same vector instructions and libraries of matrix products, if the job chooses methods as the one that saved
// (choices_of_checkpoint()). In another layout, quantized sums go on with other random numbers, and with the errors that all
// ranks together have yet to feed back.
//
// With parameter servers (ShardedParameters::servers()) the first worker has each server write a shard with its parts of
// the tables, or read what they need; workers must have met (settle()), and load before the first step. Servers read within
// optimizer.restore(): what they cannot read, it throws on the first worker, and Error(peer_gave_up) on all others.
//
// A checkpoint appears under its name only when it is complete on the disk; DIR/latest names the newest. All ranks must see
// the same directory.
namespace stretto {

// Saves checkpoints of one job, on request while training goes on (as CheckFreq does; Mohan et al. 2021).
class STRETTO_API CheckpointSaver {
 public:
  struct Options {
    // save() copies the state and returns; a thread of low priority writes it while the next steps compute. Costs the memory
    // of one copy of what this rank owns, values and slots, on the host. Not with parameter servers.
    bool in_background = false;
    int keep = 0;  // newest checkpoints that stay when one is complete; 0: all
    // Only what is trained is saved (Parameter::trainable): with adapters they alone, beside the files of the model. Whoever
    // loads such a checkpoint has brought the frozen values before.
    bool trained_only = false;
    // All ranks of a job of replicas (split_into_replicas()), replica by replica, which then save one checkpoint together,
    // and call the functions below together. Empty: the mesh's world. Notes are those of the first.
    Communicator ranks = {};
  };
  // Collective over the mesh's world. All must outlive the object; the optimizer must be the one of the parameters.
  CheckpointSaver(const ShardedParameters& parameters, const Optimizer& optimizer, std::string directory,
                  const Options& options);
  // Waits for the checkpoint that is being written, and logs its error if no wait() has reported it.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Collective, between two steps, on the thread that computes. Waits for the previous checkpoint, as wait(). An earlier
  // checkpoint of the same step is replaced at once. `notes` are UTF-8 texts by name, the same on every rank;
  // load_checkpoint() returns them. Cost: each rank writes values and slots of what it owns, all ranks at the same time.
  // Four messages of a few bytes go between ranks.
  void save(std::int64_t step, const std::map<std::string, std::string>& notes = {});
  // Returns when the last checkpoint is complete. Collective. If a rank cannot write, for example because the disk is full,
  // nothing of the new checkpoint is left, and the previous one stays: the first such rank throws Error(io), and all others
  // throw Error(peer_gave_up). The object can be used again.
  void wait();
  // Tries whether save() could write: makes the directory, writes a byte on each rank, and removes all of it again.
  // Collective. Throws like wait().
  void check_directory();
  // Whether wait() would return at once on this rank, without an error or with one. Never blocks; ranks may differ.
  bool is_idle() const;

 private:
  struct STRETTO_HIDDEN State;
  std::unique_ptr<State> state_;
};

// Collective: saves one checkpoint, and returns when it is complete. Errors as in CheckpointSaver::wait().
STRETTO_API void save_checkpoint(const ShardedParameters& parameters, const Optimizer& optimizer,
                                 const std::string& directory, std::int64_t step,
                                 const std::map<std::string, std::string>& notes = {});

// The checkpoint that DIR/latest names, or, if that one's index.json is missing, the newest older one that has it; or the
// directory itself if it is a checkpoint. A job that is killed may leave its first one without DIR/latest: then the newest
// that has an index.json. Throws Error(io) if there is none. left_out, if given, becomes the one that DIR/latest names if an
// older one is returned instead, or empty.
STRETTO_API std::string find_checkpoint(const std::string& directory, std::string* left_out = nullptr);
// Whether a checkpoint was ever completed there, or the directory is one.
STRETTO_API bool has_checkpoint(const std::string& directory);

// Communicator::choices() of the job that saved it, for Communicator::choose_by(); empty if a version before 0.3 saved it.
// Throws Error(io).
STRETTO_API std::string choices_of_checkpoint(const std::string& checkpoint);

struct STRETTO_API LoadedCheckpoint {
  std::int64_t step = 0;             // after which it was saved
  std::int64_t optimizer_steps = 0;  // 0 without the optimizer
  std::map<std::string, std::string> notes;
  bool trained_only = false;  // CheckpointSaver::Options: values of frozen parameters stayed as they were
  int replicas = 1;           // that the job had which saved it
  // A whole number that save() was given as a note; `otherwise` without it. Throws Error(io) for a text that is none.
  std::int64_t number(const std::string& note, std::int64_t otherwise) const;
};
// Reads what a checkpoint says of itself, so that a program can build the model that it holds. Throws Error(io) as
// load_checkpoint().
STRETTO_API LoadedCheckpoint read_notes(const std::string& checkpoint);
// Reads what this rank updates into the optimizer's states; without the optimizer, adapters that were not saved keep their
// values. with_optimizer: reads the slots and the state of quantized
// sums as well, so that training goes on as if it had not stopped. Not collective, so that one rank can report an error;
// afterwards all ranks must call optimizer.restore(optimizer_steps), which brings the values to every rank, and if
// parameters.in_flight() then share_older_values() of every unit of update_order() and every age, which brings it the older
// versions (Trainer::restore() does). Throws Error(io)
// for a file that is missing, damaged or of another checkpoint, or that has NaN in it, and Error(invalid_argument) for a
// parameter of another shape, and with_optimizer for another kind of optimizer, for gradients of the last step where there
// is no delay, or for older versions where none or another number of them are saved; the states are then unspecified. Each
// shard that the rank needs a part of is read twice: index.json has its XXH3, which is checked first.
//
// Of a checkpoint of several replicas it reads `replica`, and of replicas that agree every so many steps (DiLoCo) these are
// different states: a job of as many replicas goes on with each of them, and another one may begin with the first.
STRETTO_API LoadedCheckpoint load_checkpoint(ShardedParameters& parameters, Optimizer& optimizer,
                                             const std::string& checkpoint, bool with_optimizer, int replica = 0);

}  // namespace stretto
