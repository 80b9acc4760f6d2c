// stretto-plan attention: finds the divisions of long sequences over ranks, the cost of each, and the fastest.
#include "plan/plan_attention.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <optional>

#include "apps/common/parse_flags.hpp"
#include "plan/attention_layouts.hpp"
#include "plan/plan_options.hpp"
#include "stretto/layers/attention.hpp"

namespace plan_tool {
namespace {

// Types by the trainer's names.
const std::map<std::string, DType> types = {
    {"fp64", DType::f64}, {"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};

}  // namespace

bool parse(int argc, char** argv, AttentionLine& line) {
  CLI::App app(
      "Plans how long sequences are divided: for each layout of ranks what a rank sends and computes, the balance of the\n"
      "work, memory, and with --links and --flops-per-second the predicted time. With times it chooses the fastest\n"
      "layout, and prints its flags for stretto-train. All figures are of one layer and one microbatch.",
      "stretto-plan attention");
  app.set_help_flag("-h,--help", "Print this help");
  constexpr std::int64_t most_tokens = std::int64_t{1} << 30;
  constexpr int most_ranks = 4096;
  app.add_option("--seq,--seq-length", line.attention.sequence, "Tokens of a sequence")
      ->required()
      ->check(CLI::Range(std::int64_t{1}, most_tokens));
  app.add_option("--heads,--num-attention-heads", line.attention.heads, "Attention heads")
      ->required()
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--hidden,--hidden-size", line.attention.hidden, "Width of the residual stream")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  auto* ranks = app.add_option("--ranks", line.ranks, "Ranks that share a sequence: all pairs of --cp and --ulysses");
  auto* ring = app.add_option("--cp", line.attention.division.ring, "Ranks of a ring; with --ulysses, instead of --ranks");
  auto* ulysses = app.add_option("--ulysses", line.attention.division.ulysses, "Ranks that exchange heads");
  app.add_option("--tp", line.attention.tensor, "Tensor-parallel ranks besides; above 1, with and without --sp")
      ->capture_default_str()
      ->check(CLI::Range(1, most_ranks));
  for (auto* option : {ranks, ring, ulysses}) option->check(CLI::Range(1, most_ranks));
  ranks->excludes(ring)->excludes(ulysses);
  app.add_option("--batch,--micro-batch-size", line.attention.batch, "Sequences of a microbatch")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--dtype", line.dtype, "Of activations: fp64, fp32, bf16 or fp16")
      ->capture_default_str()
      ->check(CLI::IsMember(types));
  app.add_option("--cp-layout", line.layout, "Which tokens a rank of the ring has: zigzag, contiguous, striped, or all")
      ->capture_default_str();
  app.add_option("--attention", line.mask, "The earlier tokens that a token sees, as stretto-train takes them")
      ->capture_default_str();
  auto* links = app.add_option("--links", line.links, "The cluster's links, a JSON file");
  auto* speed = app.add_option("--flops-per-second", line.flops_per_second, "Of a rank, in attention")->needs(links);
  links->needs(speed);
  app.add_option("--json", line.json, "Write the figures to this file");
  if (!apps::parse_flags(app, argc, argv)) return false;
  require(ranks->count() + ring->count() + ulysses->count() > 0,
          "Give --ranks N for all layouts of N ranks, or --cp C and --ulysses U for one.");
  require(speed->count() == 0 || line.flops_per_second > 0,
          "--flops-per-second {} is no speed; give the rate of a rank's attention.", line.flops_per_second);
  require(line.attention.batch * line.attention.sequence <= most_tokens,
          "A microbatch of {} sequences of {} tokens has more than 2^30 tokens; give fewer.", line.attention.batch,
          line.attention.sequence);
  line.attention.dtype = types.at(line.dtype);
  line.attention.mask = attention_mask_from_text(line.mask);
  return true;
}

void plan_attention_of(int argc, char** argv) {
  AttentionLine line;
  if (!parse(argc, argv, line)) return;
  if (!line.json.empty()) perf::check_writable("--json", line.json);
  const AttentionLayouts layouts = attention_layouts(line);
  print(line, layouts);
  if (!line.json.empty()) perf::write_file("--json", line.json, json_of(line, layouts));
}

}  // namespace plan_tool
