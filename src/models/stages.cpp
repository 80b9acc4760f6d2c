#include "stretto/models/stages.hpp"

#include <map>

#include "core/fail.hpp"

namespace stretto {

std::vector<std::int64_t> divide_blocks(std::int64_t blocks, const std::vector<int>& stages, double head_in_blocks) {
  const std::size_t parts = stages.size();
  require(parts >= 1 && blocks >= static_cast<std::int64_t>(parts),
          "{} layers cannot be divided into {} parts; give fewer stages or virtual stages, or more layers.", blocks, parts);
  std::vector<std::int64_t> result(parts, 1);
  std::vector<double> of_part(parts, 1);
  of_part.back() += head_in_blocks;
  std::map<int, double> of_stage;
  for (std::size_t part = 0; part < parts; ++part) of_stage[stages[part]] += of_part[part];
  // Blocks are alike, so that the best division gives each to the place that has least.
  for (std::int64_t left = blocks - static_cast<std::int64_t>(parts); left > 0; --left) {
    std::size_t least = parts - 1;
    const auto cost = [&](std::size_t part) { return std::pair{of_stage[stages[part]], of_part[part]}; };
    for (std::size_t part = parts - 1; part-- > 0;) {
      if (cost(part) < cost(least)) least = part;
    }
    ++result[least];
    ++of_part[least];
    ++of_stage[stages[least]];
  }
  return result;
}

}  // namespace stretto
