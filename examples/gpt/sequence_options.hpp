#pragma once
#include <CLI/App.hpp>

#include "trainer.hpp"

namespace gpt {

// Adds the flags that divide sequences. The options must outlive the app's parsing; TrainerOptions::check() judges whether
// they go together.
void add_sequence_options(CLI::App& app, stretto::MeshShape& mesh, SequenceOptions& options);

}  // namespace gpt
