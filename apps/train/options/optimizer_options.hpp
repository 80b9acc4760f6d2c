#pragma once
#include <CLI/App.hpp>
#include <string>

#include "stretto/layers/optimizers.hpp"

namespace apps {

// The values of the flags for the optimizer.
struct OptimizerFlags {
  std::string name = "adamw";
  double momentum = stretto::SGD::Options().momentum;
  std::string muon_scale = "moonlight";
  double muon_momentum = stretto::Muon::Options().momentum;
  double muon_lr = 0;  // unless given: the lr of the rest, or usual_keller_lr
  bool muon_bf16 = false;
  double weight_decay = stretto::AdamW::Options().weight_decay;
  std::string freeze_step = "auto";
  stretto::DeMo::Options demo = {};
};

// Adds the flags. `flags` must outlive the app's parsing.
void add_optimizer_options(CLI::App& app, OptimizerFlags& flags);
// Call it after the parsing; lr: the highest rate (--lr). Throws Error(invalid_argument) for values that cannot be, and for
// flags that would have no effect.
stretto::OptimizerOptions optimizer_of(const CLI::App& app, const OptimizerFlags& flags, double lr);

}  // namespace apps
