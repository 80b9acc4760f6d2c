#include "apps/train/options/optimizer_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/common/fail.hpp"

namespace apps {

void add_optimizer_options(CLI::App& app, OptimizerFlags& flags) {
  app.add_option("--optimizer", flags.name, "adamw, or sgd: gradient descent with momentum")
      ->check(CLI::IsMember({"adamw", "sgd"}))
      ->capture_default_str();
  app.add_option("--momentum", flags.momentum, "Momentum of --optimizer sgd, which keeps no state with 0")
      ->capture_default_str();
  app.add_option("--weight-decay", flags.weight_decay,
                 "Weight decay of matrices: AdamW takes it from the weights, SGD adds it to the gradient")
      ->capture_default_str();
}

stretto::OptimizerOptions optimizer_of(const CLI::App& app, const OptimizerFlags& flags) {
  require(flags.weight_decay >= 0, "--weight-decay {} cannot be negative.", flags.weight_decay);
  if (flags.name == "adamw") {
    require(app.count("--momentum") == 0,
            "--momentum {} has no effect with --optimizer adamw; leave it out, or give --optimizer sgd.", flags.momentum);
    return stretto::AdamW::Options{.weight_decay = flags.weight_decay};
  }
  require(flags.momentum >= 0 && flags.momentum < 1, "--momentum {} is not from 0 to below 1, so that steps would grow.",
          flags.momentum);
  return stretto::SGD::Options{.momentum = flags.momentum, .weight_decay = flags.weight_decay};
}

}  // namespace apps
