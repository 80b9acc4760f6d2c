#include "apps/train/options/sequence_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/common/fail.hpp"

namespace apps {

void add_sequence_options(CLI::App& app, stretto::TrainingOptions& options) {
  app.add_flag("--sequence-parallel,--sp", options.divides_rows,
               "Divide the rows between layers over the tensor-parallel ranks (Megatron-LM's sequence parallelism)");
  app.add_flag("--sp-keep-gathered", options.keeps_gathered,
               "With --sp, keep what layers have gathered in forward, instead of gathering it again in backward");
  app.add_option("--context-parallel-size,--cp", options.mesh[stretto::Axis::ring],
                 "Ranks of a ring, each of which has a part of every sequence")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--ulysses", options.mesh[stretto::Axis::ulysses],
                 "Ranks that have a part of every sequence, and exchange it for heads in attention")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--cp-layout", [&](const std::string& name) { options.sequence_layout = stretto::sequence_layout_from_name(name); },
         "Which tokens a rank of the ring has: zigzag, contiguous, striped")
      ->default_str("zigzag");
  app.add_option_function<std::string>(
         "--attention", [&](const std::string& text) { options.mask = stretto::attention_mask_from_text(text); },
         "The earlier tokens that a token sees: dense, or window:W, strided:S and global:G, joined by +")
      ->default_str("dense");
}

void check_sequence_options(const CLI::App& app, const stretto::TrainingOptions& options) {
  require(
      options.mesh[stretto::Axis::ring] > 1 || app.count("--cp-layout") == 0,
      "--cp-layout {} divides sequences over the ranks of --cp, and --cp {} is a single one; give a larger --cp, or leave "
      "it out.",
      name(options.sequence_layout), options.mesh[stretto::Axis::ring]);
}

}  // namespace apps
