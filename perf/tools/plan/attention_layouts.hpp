#pragma once
#include <string>
#include <vector>

#include "common/output_file.hpp"
#include "stretto/planning/attention_cost.hpp"

namespace plan_tool {

using namespace stretto;

// The command line of stretto-plan attention.
struct AttentionLine {
  DividedAttention attention;  // its division is that of --cp and --ulysses, without --cp-layout
  int ranks = 0;               // --ranks; 0: not given
  std::string dtype = "bf16", layout = "zigzag", mask = "dense";
  std::string links, json;
  double flops_per_second = 0;
  bool has_times() const { return !links.empty(); }
};

struct AttentionLayout {
  DividedAttention attention;
  bool own_rows = false;  // --sp
  AttentionCost cost;
  AttentionBytes tensor_bytes;  // of the layer's tensor parallelism
  std::int64_t layer_kept = 0;  // bytes of the whole layer between forward and backward

  double seconds() const { return cost.forward.seconds + cost.backward.seconds; }
  double exposed() const { return cost.forward.exposed() + cost.backward.exposed(); }
  std::int64_t sent_forward() const;
  std::int64_t sent_backward() const;
  std::string text() const;  // "cp 4 (zigzag) x ulysses 2"
};

struct AttentionLayouts {
  std::vector<AttentionLayout> fitting;  // the chosen one first, if times are known
  struct Refused {
    SequenceDivision division;
    std::string reason;
  };
  std::vector<Refused> refused;
  bool chosen = false;  // whether the first one is chosen: the fastest, or the only one
  std::string reason;   // why it is chosen, or the options that would give times to choose by
};

// Throws Error if no layout fits, with the reason of the first one.
AttentionLayouts attention_layouts(const AttentionLine& line);

// The flags of stretto-train for this layout; with --train-data and so many ranks the command is complete.
std::string train_flags(const AttentionLine& line, const AttentionLayout& layout);

void print(const AttentionLine& line, const AttentionLayouts& layouts);
std::string json_of(const AttentionLine& line, const AttentionLayouts& layouts);

}  // namespace plan_tool
