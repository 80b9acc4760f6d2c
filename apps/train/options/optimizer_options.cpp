#include "apps/train/options/optimizer_options.hpp"

#include <CLI/CLI.hpp>
#include <charconv>

#include "apps/common/fail.hpp"

namespace apps {
namespace {

constexpr double usual_keller_lr = 0.02;

void refuse_without_effect(const CLI::App& app, const OptimizerFlags& flags) {
  struct Only {
    const char *flag, *optimizer;
  };
  for (const auto& [flag, optimizer] : {Only{"--momentum", "sgd"},
                                        {"--muon-scale", "muon"},
                                        {"--muon-momentum", "muon"},
                                        {"--muon-lr", "muon"},
                                        {"--muon-bf16", "muon"},
                                        {"--freeze-step", "onebit-adam"},
                                        {"--compression-chunk", "demo"},
                                        {"--compression-topk", "demo"},
                                        {"--compression-decay", "demo"}}) {
    if (app.count(flag) == 0 || flags.name == optimizer) continue;
    const CLI::Option& option = *app[flag];
    const std::string given = option.get_expected_max() == 0 ? flag : fmt::format("{} {}", flag, option.as<std::string>());
    fail(stretto::ErrorCode::invalid_argument, "{} has no effect with --optimizer {}; leave it out, or give --optimizer {}.",
         given, flags.name, optimizer);
  }
}

stretto::Muon::Options muon_of(const CLI::App& app, const OptimizerFlags& flags, double lr) {
  require(flags.muon_momentum >= 0 && flags.muon_momentum < 1,
          "--muon-momentum {} is not from 0 to below 1, so that it makes no mean of gradients.", flags.muon_momentum);
  require(app.count("--muon-lr") == 0 || flags.muon_lr > 0, "--muon-lr {} must be above 0.", flags.muon_lr);
  const bool keller = flags.muon_scale == "keller";
  const double muon_lr = app.count("--muon-lr") > 0 ? flags.muon_lr : keller ? usual_keller_lr : lr;
  return {.momentum = flags.muon_momentum,
          .scale = keller ? stretto::MuonScale::keller : stretto::MuonScale::moonlight,
          .matrix_lr = muon_lr == lr ? 1 : muon_lr / lr,
          .bf16_products = flags.muon_bf16,
          .weight_decay = flags.weight_decay};
}

stretto::DeMo::Options demo_of(const OptimizerFlags& flags) {
  stretto::DeMo::Options options = flags.demo;
  options.weight_decay = flags.weight_decay;
  options.check({});
  return options;
}

std::int64_t freeze_step_of(const std::string& text) {
  if (text == "auto") return 0;
  std::int64_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  require(error == std::errc() && end == text.data() + text.size() && steps >= 1,
          "--freeze-step {} is not auto or a number of steps from 1 on.", text);
  return steps;
}

}  // namespace

void add_optimizer_options(CLI::App& app, OptimizerFlags& flags) {
  app.add_option(
         "--optimizer", flags.name,
         "adamw; sgd: gradient descent with momentum; muon: hidden matrices are orthogonalised, and the rest is "
         "adamw's; onebit-adam: AdamW, and after --freeze-step its momentum in one bit an element; or demo: the signs "
         "of the strongest cosine coefficients of each rank's own momentum")
      ->check(CLI::IsMember({"adamw", "sgd", "muon", "onebit-adam", "demo"}))
      ->capture_default_str();
  app.add_option("--momentum", flags.momentum, "Momentum of --optimizer sgd, which keeps no state with 0")
      ->capture_default_str();
  app.add_option(
         "--freeze-step", flags.freeze_step,
         "With --optimizer onebit-adam, the steps of AdamW after which its variance is frozen and ranks exchange momentum "
         "instead of gradients; auto: when the variance hardly changes")
      ->capture_default_str();
  app.add_option("--compression-chunk", flags.demo.compression_chunk,
                 "With --optimizer demo, the largest side of the chunks of a matrix that are transformed")
      ->capture_default_str();
  app.add_option("--compression-topk", flags.demo.compression_topk,
                 "With --optimizer demo, how many coefficients of each chunk a rank sends")
      ->capture_default_str();
  app.add_option("--compression-decay", flags.demo.compression_decay,
                 "With --optimizer demo, the factor of each rank's momentum in each step")
      ->capture_default_str();
  app.add_option("--muon-scale", flags.muon_scale,
                 "Size of the updates of --optimizer muon: moonlight, 0.2 sqrt(max(rows, columns)), or keller, "
                 "sqrt(max(1, rows / columns))")
      ->check(CLI::IsMember({"moonlight", "keller"}))
      ->capture_default_str();
  app.add_option("--muon-lr", flags.muon_lr,
                 "Highest learning rate of hidden matrices with --optimizer muon; when left out, --lr with moonlight, and "
                 "0.02 with keller");
  app.add_option("--muon-momentum", flags.muon_momentum, "Momentum of hidden matrices with --optimizer muon")
      ->capture_default_str();
  app.add_flag("--muon-bf16", flags.muon_bf16,
               "Products of --optimizer muon in bf16: faster on processors with bf16 instructions, and as in PyTorch");
  app.add_option("--weight-decay", flags.weight_decay,
                 "Weight decay of matrices: AdamW, Muon and DeMo take it from the weights, SGD adds it to the gradient")
      ->capture_default_str();
}

stretto::OptimizerOptions optimizer_of(const CLI::App& app, const OptimizerFlags& flags, double lr) {
  require(flags.weight_decay >= 0, "--weight-decay {} cannot be negative.", flags.weight_decay);
  refuse_without_effect(app, flags);
  if (flags.name == "muon") return muon_of(app, flags, lr);
  if (flags.name == "adamw") return stretto::AdamW::Options{.weight_decay = flags.weight_decay};
  if (flags.name == "demo") return demo_of(flags);
  if (flags.name == "onebit-adam") {
    return stretto::OneBitAdam::Options{.weight_decay = flags.weight_decay,
                                        .freeze_step = freeze_step_of(flags.freeze_step)};
  }
  require(flags.momentum >= 0 && flags.momentum < 1, "--momentum {} is not from 0 to below 1, so that steps would grow.",
          flags.momentum);
  return stretto::SGD::Options{.momentum = flags.momentum, .weight_decay = flags.weight_decay};
}

}  // namespace apps
