#include "stretto/models/model_cut.hpp"

#include <fmt/format.h>

#include <map>

namespace stretto {

Parameters::Place ModelCut::place(std::size_t part) const { return {static_cast<int>(part), stages[part] == stage, false}; }

Parameters::Place ModelCut::place_of_tied_table() const {
  const bool is_here = stages.front() == stage || stages.back() == stage;
  return {0, is_here, stages.front() != stages.back()};
}

std::string to_string(const ModelCut& cut) {
  std::map<int, std::vector<std::int64_t>> of_stages;
  for (std::size_t part = 0; part < cut.stages.size(); ++part) of_stages[cut.stages[part]].push_back(cut.blocks[part]);
  std::string text;
  for (const auto& [stage, blocks] : of_stages) {
    text += fmt::format("{}stage {}: {} {}", text.empty() ? "" : ", ", stage, fmt::join(blocks, " + "),
                        blocks == std::vector<std::int64_t>{1} ? "layer" : "layers");
  }
  return text;
}

}  // namespace stretto
