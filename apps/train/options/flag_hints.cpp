#include "apps/train/options/flag_hints.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/common/fail.hpp"

namespace apps {

namespace {

// Names in PyTorch's, Hugging Face's, nanoGPT's, llm.c's and Megatron-LM's programs.
constexpr std::pair<std::string_view, const char*> foreign_names[] = {
    {"learning-rate", "--lr"},
    {"max-lr", "--lr"},
    {"bf16", "--dtype bf16"},
    {"bfloat16", "--dtype bf16"},
    {"fp16", "--dtype fp16"},
    {"fp32", "--dtype fp32"},
    {"precision", "--dtype"},
    {"batch-size", "--micro-batch-size"},
    {"per-device-train-batch-size", "--micro-batch-size"},
    {"total-batch-size", "--global-batch-size"},
    {"gradient-accumulation-steps", "--global-batch-size"},
    {"iters", "--train-iters"},
    {"max-iters", "--train-iters"},
    {"steps", "--train-iters"},
    {"max-steps", "--train-iters"},
    {"num-steps", "--train-iters"},
    {"epochs", "--train-iters"},
    {"num-train-epochs", "--train-iters"},
    {"warmup", "--lr-warmup-iters"},
    {"warmup-iters", "--lr-warmup-iters"},
    {"warmup-steps", "--lr-warmup-iters"},
    {"grad-clip", "--clip-grad"},
    {"max-grad-norm", "--clip-grad"},
    {"data", "--train-data"},
    {"data-path", "--train-data"},
    {"dataset", "--train-data"},
    {"input-bin", "--train-data"},
    {"train-file", "--train-data"},
    {"validation-file", "--val-data"},
    {"input-val-bin", "--val-data"},
    {"block-size", "--seq-length"},
    {"max-seq-length", "--seq-length"},
    {"sequence-length", "--seq-length"},
    {"max-position-embeddings", "--seq-length"},
    {"n-layer", "--num-layers"},
    {"layers", "--num-layers"},
    {"n-head", "--num-attention-heads"},
    {"heads", "--num-attention-heads"},
    {"n-embd", "--hidden-size"},
    {"d-model", "--hidden-size"},
    {"tensor-parallel-size", "--tp"},
    {"pipeline-parallel-size", "--pp"},
    {"data-parallel-size", "--dp"},
    {"sgd-momentum", "--momentum"},
    {"sync-every", "--diloco"},
    {"num-fragments", "--diloco-fragments"},
    {"fragment-sync-delay", "--diloco-delay"},
    {"fragment-update-alpha", "--diloco-alpha"},
    {"should-quantize", "--diloco-format int8"},
    {"zero-stage", "--zero"},
    {"use-distributed-optimizer", "--zero 1"},
    {"recompute-activations", "--recompute selective"},
    {"recompute-granularity", "--recompute"},
    {"gradient-checkpointing", "--recompute full"},
    {"num-layers-per-virtual-pipeline-stage", "--virtual-stages"},
    {"output-dir", "--save"},
    {"out-dir", "--save"},
    {"save-steps", "--save-interval"},
    {"eval-steps", "--eval-interval"},
    {"logging-steps", "--log-interval"},
    {"tensorboard-dir", "--log-dir"},
    {"resume-from-checkpoint", "--resume"},
    {"nproc-per-node", "--nproc"},
    {"num-gpus", "--nproc"},
};

// Levenshtein's distance.
std::size_t changes(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

// Empty if nothing is near. flag: as it was given, without dashes.
std::string meant(const CLI::App& app, std::string flag) {
  std::ranges::transform(flag, flag.begin(), [](char c) { return c == '_' ? '-' : CLI::detail::to_lower({c})[0]; });
  const auto* const known = std::ranges::find(foreign_names, flag, &std::pair<std::string_view, const char*>::first);
  const auto has = [&](std::string_view name) {
    return app.get_option_no_throw(std::string(name.substr(0, name.find(' ')))) != nullptr;
  };
  if (known != std::end(foreign_names) && has(known->second)) return known->second;
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, flag.size() / 4) + 1;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const std::size_t distance = changes(flag, name);
      if (distance >= least) continue;
      least = distance;
      nearest = "--" + name;
    }
  }
  return nearest;
}

}  // namespace

void refuse_command_line(const CLI::App& app, const CLI::ParseError& error) {
  for (const std::string& word : app.remaining()) {
    const std::size_t begin = std::min(word.find_first_not_of('-'), word.size());
    const std::string flag = word.substr(0, word.find('='));
    const std::string other = begin > 0 && begin < flag.size() ? meant(app, flag.substr(begin)) : "";
    if (other.empty()) continue;
    fail(stretto::ErrorCode::invalid_argument, "{} is unknown; did you mean {}? --help lists the flags.", flag, other);
  }
  fail(stretto::ErrorCode::invalid_argument, "{}; --help lists the flags.", error.what());
}

bool parse_flags(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    refuse_command_line(app, error);
  }
}

}  // namespace apps
