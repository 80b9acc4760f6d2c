// The report of stretto-plan attention: the printed text, and the JSON file.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/size_text.hpp"
#include "plan/attention_layouts.hpp"
#include "plan/plan_options.hpp"
#include "stretto/layers/mesh.hpp"

namespace plan_tool {
namespace {

std::string bytes_text(std::int64_t bytes) { return perf::in_units(static_cast<double>(bytes)); }

nlohmann::ordered_json pass_of(const AttentionPass& pass, std::int64_t tensor_bytes, bool has_times) {
  nlohmann::ordered_json json = {{"sent",
                                  {{group_name(Axis::ring), pass.ring_bytes},
                                   {group_name(Axis::ulysses), pass.ulysses_bytes},
                                   {group_name(Axis::tensor), tensor_bytes}}},
                                 {"flops", pass.flops}};
  if (has_times) {
    json["ms"] = milliseconds(pass.seconds);
    json["computing_ms"] = milliseconds(pass.computing);
    json["exposed_ms"] = milliseconds(pass.exposed());
  }
  return json;
}

}  // namespace

void print(const AttentionLine& line, const AttentionLayouts& layouts) {
  const DividedAttention& attention = line.attention;
  fmt::print("attention {} over {} x {} tokens, {} heads, hidden size {}, {}, tp {}{}\n", line.mask, attention.batch,
             attention.sequence, attention.heads, attention.hidden, line.dtype, attention.tensor,
             line.has_times() ? fmt::format("; {}, {:g} FLOP/s a rank", line.links, line.flops_per_second) : "");
  std::string head =
      fmt::format("{:>4} {:>7} {:<10} {:<3} {:>11} {:>11} {:>10} {:>7} {:>11} {:>11} {:>11}", "cp", "ulysses", "layout",
                  "sp", "sent fwd", "sent bwd", "GFLOP", "balance", "core keeps", "layer keeps", "buffers");
  if (line.has_times()) head += fmt::format(" {:>10} {:>10} {:>10}", "fwd ms", "bwd ms", "exposed ms");
  fmt::print("{}\n", head);
  for (const AttentionLayout& each : layouts.fitting) {
    const SequenceDivision& division = each.attention.division;
    const AttentionCost& cost = each.cost;
    std::string row = fmt::format(
        "{:>4} {:>7} {:<10} {:<3} {:>11} {:>11} {:>10.5g} {:>7.3f} {:>11} {:>11} {:>11}", division.ring, division.ulysses,
        division.ring > 1 ? name(division.layout) : "-", each.own_rows ? "yes" : "no", bytes_text(each.sent_forward()),
        bytes_text(each.sent_backward()), (cost.forward.flops + cost.backward.flops) * 1e-9, cost.balance,
        bytes_text(cost.kept), bytes_text(each.layer_kept), bytes_text(cost.buffers));
    if (line.has_times()) {
      row += fmt::format(" {:>10.3f} {:>10.3f} {:>10.3f}", milliseconds(cost.forward.seconds),
                         milliseconds(cost.backward.seconds), milliseconds(each.exposed()));
    }
    fmt::print("{}\n", row);
  }
  for (const auto& [division, reason] : layouts.refused) {
    fmt::print("not cp {} x ulysses {}: {}\n", division.ring, division.ulysses, reason);
  }
  if (layouts.chosen) fmt::print("choice: stretto-train {}\n", train_flags(line, layouts.fitting.front()));
  fmt::print("{}: {}\n", layouts.chosen && line.has_times() ? "because" : "times", layouts.reason);
}

std::string json_of(const AttentionLine& line, const AttentionLayouts& layouts) {
  const DividedAttention& attention = line.attention;
  nlohmann::ordered_json json = {{"sequence", attention.sequence}, {"heads", attention.heads}, {"hidden", attention.hidden},
                                 {"batch", attention.batch},       {"dtype", line.dtype},      {"attention", line.mask},
                                 {"tp", attention.tensor}};
  for (const AttentionLayout& each : layouts.fitting) {
    const SequenceDivision& division = each.attention.division;
    json["layouts"].push_back({{"cp", division.ring},
                               {"ulysses", division.ulysses},
                               {"cp_layout", name(division.layout)},
                               {"sp", each.own_rows},
                               {"forward", pass_of(each.cost.forward, each.tensor_bytes.forward, line.has_times())},
                               {"backward", pass_of(each.cost.backward, each.tensor_bytes.backward, line.has_times())},
                               {"balance", each.cost.balance},
                               {"core_kept", each.cost.kept},
                               {"layer_kept", each.layer_kept},
                               {"buffers", each.cost.buffers},
                               {"flags", train_flags(line, each)}});
  }
  json["refused"] = nlohmann::ordered_json::array();
  for (const auto& [division, reason] : layouts.refused) {
    json["refused"].push_back(
        {{"cp", division.ring}, {"ulysses", division.ulysses}, {"cp_layout", name(division.layout)}, {"reason", reason}});
  }
  json["choice"] = layouts.chosen ? nlohmann::ordered_json(0) : nlohmann::ordered_json();
  json["reason"] = layouts.reason;
  return json.dump(1) + "\n";
}

}  // namespace plan_tool
