#include "collectives/plan/call_signature.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "collectives/plan/plan_builder.hpp"
#include "core/split_mix.hpp"

namespace stretto {

std::string call_text(const PlanRequest& request, DType dtype, ReduceOp op) {
  std::string text = name(request.collective);
  if (request.collective != Collective::barrier) {
    const std::string amount =
        request.counts.empty() ? fmt::format("{}", request.count) : fmt::format("counts {}", request.counts);
    text += fmt::format(" of {} {}", amount, name(dtype));
    if (!request.receive_counts.empty()) text += fmt::format(" for {}", request.receive_counts);
  }
  if (reduces(request.collective)) text += fmt::format(" ({})", name(op));
  if (request.servers > 0) text += fmt::format(" with {} servers", request.servers);
  if (has_root(request.collective)) text += fmt::format(" with root {}", request.root);
  if (is_message(request.collective)) {
    text += fmt::format(" {} rank {}", request.collective == Collective::send ? "to" : "from", request.root);
  }
  return text;
}

std::uint16_t call_signature(const PlanRequest& request, DType dtype, ReduceOp op) {
  std::uint64_t hash = 0;
  const auto add = [&](auto value) { hash = split_mixed(hash * split_mix_step + static_cast<std::uint64_t>(value) + 1); };
  const bool reducing = reduces(request.collective);
  const auto add_count = [&](std::int64_t count) {
    add(reducing ? count : count * static_cast<std::int64_t>(size_of(dtype)));
  };
  add(request.collective);
  if (reducing) {
    add(dtype);
    add(op);
  }
  if (has_root(request.collective)) add(request.root);
  if (request.servers > 0) add(request.servers);
  // In uneven all_to_all each rank has other counts.
  const std::vector<std::int64_t>& counts = request.counts;
  if (counts.empty()) {
    add_count(request.collective == Collective::all_to_all ? 0 : request.count);
  } else if (request.collective == Collective::all_to_all) {
    add_count(0);
  } else if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end()) {
    add_count(counts.front());  // as the even call
  } else {
    for (const std::int64_t count : counts) add_count(count);
  }
  return static_cast<std::uint16_t>(hash);
}

}  // namespace stretto
