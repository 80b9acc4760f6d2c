#pragma once
#include <CLI/App.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/train/options/model_options.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/models/decoder.hpp"
#include "stretto/require_same.hpp"

// The facts of a run that its checkpoints keep, in their notes by flag: the model's sizes, the data, the course of
// training. A later run takes the sizes from there, and says in which of the others it differs.
namespace apps {

using Notes = std::map<std::string, std::string>;

// The flag that named the files of the model that a checkpoint's adapters adapt; empty if it came from the seed.
inline constexpr const char* base_note = "base";

// Takes the model in the notes of a checkpoint (saved_model), and --attention, which a flag may change. Returns false if the
// notes have no model, so that the flags must say it.
bool take_saved_model(const CLI::App& app, const ModelFlags& flags, const std::string& checkpoint,
                      stretto::DecoderShape& model, stretto::kernels::AttentionMask& mask);
bool has_sizes(const Notes& notes);

// The notes of a run: `values` of all flags, of which some make the run, and what the data contain.
Notes run_notes(const std::vector<stretto::NamedValue>& values, const std::vector<stretto::NamedValue>& data);

// One line that names in which flags a run that goes on after loaded.step differs from the one that saved the checkpoint,
// and what that does to the learning rate; empty if it does not. Unless changes are allowed, throws Error(invalid_argument)
// for another model or other data.
std::string changes_of_run(const stretto::LoadedCheckpoint& loaded, const Notes& now, bool allowed);

}  // namespace apps
