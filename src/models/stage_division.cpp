#include "stretto/models/stage_division.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/fail.hpp"
#include "stretto/models/decoder_cost.hpp"
#include "stretto/models/stages.hpp"

namespace stretto {

Schedule StageDivision::schedule(int stages, std::int64_t microbatches) const {
  require(microbatches <= std::numeric_limits<int>::max(), "A step of {} microbatches cannot be; give fewer.", microbatches);
  return named_schedule(schedule_name, stages, static_cast<int>(microbatches), virtual_stages);
}

ModelCut StageDivision::cut(const DecoderShape& model, const Schedule& schedule, int stage) const {
  ModelCut cut;
  cut.stage = stage;
  for (int part = 0; part < schedule.parts(); ++part) cut.stages.push_back(schedule.stage_of(part));
  if (blocks.empty()) {
    const DecoderOperations operations = forward_operations(model);
    cut.blocks = divide_blocks(model.layers, cut.stages, operations.head / operations.block);
    return cut;
  }
  cut.blocks = blocks;
  const std::int64_t all = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  require(
      static_cast<int>(blocks.size()) == schedule.parts() && all == model.layers && *std::ranges::min_element(blocks) >= 1,
      "The blocks of the pipeline's parts, {}, have {} numbers and the sum {}; give {} numbers of at least 1 with the sum "
      "{}.",
      fmt::join(blocks, ","), blocks.size(), all, schedule.parts(), model.layers);
  return cut;
}

}  // namespace stretto
