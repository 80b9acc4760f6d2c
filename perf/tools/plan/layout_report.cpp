// The report of stretto-plan layout: the printed text, and the JSON file.
#include "plan/layout_report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "common/size_text.hpp"
#include "plan/plan_options.hpp"
#include "plan/train_command.hpp"
#include "stretto/models/decoder_cost.hpp"

namespace plan_tool {
namespace {

std::string amount_text(std::int64_t bytes) { return perf::in_units(static_cast<double>(bytes)); }

std::string exposed_text(const LayoutCost& cost) {
  std::string text;
  for (const auto& [group, seconds] : cost.exposed) {
    text += fmt::format("{}{} {:.1f}", text.empty() ? "" : ", ", group, milliseconds(seconds));
  }
  return text.empty() ? "nothing" : text + " ms";
}

std::string memory_text(const LayoutCost& cost) {
  const TrainingMemory& memory = cost.memory;
  return fmt::format("stage {} needs most: values {}, gradients {}, optimizer {}, activations {}, buffers {}",
                     cost.memory_stage, amount_text(memory.values), amount_text(memory.gradients),
                     amount_text(memory.optimizer), amount_text(memory.activations), amount_text(memory.buffers));
}

nlohmann::ordered_json layout_json(const LayoutLine& line, const FoundLayout& found) {
  const TrainingOptions& layout = found.layout;
  const LayoutCost& cost = found.cost;
  nlohmann::ordered_json exposed = nlohmann::ordered_json::object();
  for (const auto& [group, seconds] : cost.exposed) exposed[group] = milliseconds(seconds);
  return {{"tp", layout.mesh[Axis::tensor]},
          {"pp", layout.mesh[Axis::pipeline]},
          {"cp", layout.mesh[Axis::ring]},
          {"ulysses", layout.mesh[Axis::ulysses]},
          {"dp", layout.mesh[Axis::data]},
          {"sp", layout.divides_rows},
          {"micro_batch", layout.micro_batch},
          {"schedule", layout.stages.schedule_name},
          {"virtual_stages", layout.stages.virtual_stages},
          {"zero", static_cast<int>(layout.sharding.zero)},
          {"recompute", name(layout.recompute.level)},
          {"ms", milliseconds(cost.seconds)},
          {"tokens_per_second", cost.tokens_per_second},
          {"flops_per_second", cost.flops_per_second},
          {"mfu", cost.mfu},
          {"bubble", cost.bubble},
          {"computing_ms", milliseconds(cost.computing)},
          {"update_ms", milliseconds(cost.update)},
          {"exposed_ms", exposed},
          {"memory_stage", cost.memory_stage},
          {"memory",
           {{"values", cost.memory.values},
            {"gradients", cost.memory.gradients},
            {"optimizer", cost.memory.optimizer},
            {"activations", cost.memory.activations},
            {"buffers", cost.memory.buffers},
            {"total", cost.memory.total()}}},
          {"flags", train_flags(line, layout)}};
}

}  // namespace

void print(const LayoutLine& line, const LayoutSearch& search, double seconds_searched) {
  const DecoderShape& model = line.space.model;
  fmt::print("{} parameters: {} layers, {} wide, {} heads, {} tokens a sequence, {}; {} ranks, {} sequences a step; {}\n",
             parameters_of(model), model.layers, model.hidden, model.heads, model.sequence, line.dtype, line.space.ranks,
             line.space.global_batch, line.cluster);
  if (line.assumes_overlaps) {
    fmt::print(
        "assumed: on GPUs communication blocks, but for exchanges of inputs' gradients beside products for weights' "
        "gradients; --system says otherwise\n");
  }
  fmt::print("{:>3} {:>11} {:>12} {:>9} {:>6} {:>7} {:>10}  {}\n", "", "step ms", "tokens/s", "TFLOP/s", "MFU", "bubble",
             "memory", "layout");
  std::size_t number = 0;
  for (const FoundLayout& found : search.best) {
    const LayoutCost& cost = found.cost;
    fmt::print("{:>3} {:>11.2f} {:>12.0f} {:>9.2f} {:>5.1f}% {:>6.1f}% {:>10}  {}\n", ++number, milliseconds(cost.seconds),
               cost.tokens_per_second, cost.flops_per_second * 1e-12, 100 * cost.mfu, 100 * cost.bubble,
               amount_text(cost.memory.total()), to_string(found.layout));
    fmt::print("{:>3} exposes {}; {}\n{:>3} {}\n", "", exposed_text(cost), memory_text(cost), "",
               train_flags(line, found.layout));
  }
  fmt::print("{} layouts in {:.1f} s; {} of them need more than {} of memory\n", search.tried, seconds_searched,
             search.without_memory, amount_text(line.space.memory_bytes));
  for (const auto& [count, sentence] : search.refused) fmt::print("{} refused, such as: {}\n", count, sentence);
  const FoundLayout& best = search.best.front();
  fmt::print("choice: stretto-train {}\n", train_flags(line, best.layout));
  fmt::print("because: it computes for {:.1f} ms, updates for {:.1f} ms, waits {:.1f} ms for other stages, and exposes {}\n",
             milliseconds(best.cost.computing), milliseconds(best.cost.update), milliseconds(best.cost.waiting),
             exposed_text(best.cost));
}

std::string json_of(const LayoutLine& line, const LayoutSearch& search) {
  const DecoderShape& model = line.space.model;
  nlohmann::ordered_json json = {{"model",
                                  {{"layers", model.layers},
                                   {"hidden", model.hidden},
                                   {"heads", model.heads},
                                   {"seq", model.sequence},
                                   {"vocab", model.vocabulary},
                                   {"parameters", parameters_of(model)}}},
                                 {"ranks", line.space.ranks},
                                 {"global_batch", line.space.global_batch},
                                 {"dtype", line.dtype},
                                 {"memory_bytes", line.space.memory_bytes},
                                 {"tried", search.tried},
                                 {"without_memory", search.without_memory}};
  for (const FoundLayout& found : search.best) json["layouts"].push_back(layout_json(line, found));
  json["refused"] = nlohmann::ordered_json::array();
  for (const auto& [count, sentence] : search.refused) json["refused"].push_back({{"count", count}, {"sentence", sentence}});
  return json.dump(1) + "\n";
}

}  // namespace plan_tool
