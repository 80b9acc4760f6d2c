#include "apps/train/options/precision_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/common/fail.hpp"

namespace apps {

using namespace stretto;

namespace {

const std::vector<std::string> types = {"fp64", "fp32", "bf16", "fp16"};

DType type_of(const std::string& name) { return dtype_from_name(name.c_str()); }

}  // namespace

void add_precision_options(CLI::App& app, TrainingOptions& options) {
  app.add_option_function<std::string>(
         "--dtype", [&](const std::string& name) { options.sharding.dtype = type_of(name); },
         "With bf16 and fp16, master weights in fp32; with fp16, the loss is scaled")
      ->check(CLI::IsMember(types))
      ->default_str("fp32");
  app.add_option_function<std::string>(
         "--grad-dtype", [&](const std::string& name) { options.sharding.gradient_dtype = type_of(name); },
         "Of gradients, in memory and on the link: fp32, or the type of --dtype")
      ->check(CLI::IsMember(types))
      ->default_str("fp32; fp64 with --dtype fp64");
  app.add_option_function<double>(
      "--loss-scale", [&](double scale) { options.loss_scale = {.initial = scale, .fixed = true}; },
      "With --dtype fp16, a fixed scale of the loss; one that adapts when left out");
  app.add_option("--loss-scale-window", options.loss_scale.window,
                 "With --dtype fp16, steps without overflow after which the scale doubles")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--recompute",
         [&](const std::string& name) {
           options.recompute.level = name == "none"        ? Recompute::none
                                     : name == "selective" ? Recompute::selective
                                                           : Recompute::full;
         },
         "What backward computes again instead of keeping it: nothing, norms and GELU (selective), or blocks (full)")
      ->check(CLI::IsMember({"none", "selective", "full"}))
      ->default_str("none");
  app.add_flag("--partition-activations", options.recompute.partition,
               "With --recompute full, divide each block's kept input over the tensor-parallel ranks");
}

void check_precision_options(const CLI::App& app, const TrainingOptions& options) {
  const bool fixed = app.count("--loss-scale") > 0;
  const bool adapts = app.count("--loss-scale-window") > 0;
  require(options.sharding.dtype == DType::f16 || (!fixed && !adapts),
          "--loss-scale and --loss-scale-window have no effect without --dtype fp16; leave them out.");
  require(!fixed || !adapts, "--loss-scale {} is fixed, so that --loss-scale-window {} has no effect; leave one out.",
          options.loss_scale.initial, options.loss_scale.window);
}

}  // namespace apps
