#include <algorithm>

#include "stretto/planning/proof.hpp"

namespace stretto {
namespace {

// Nodes of every equal size; nodes of sizes 1, 2, 3 in turn, and the rest; and one large node with a small one.
std::vector<PlanRequest> with_nodes(const PlanRequest& request) {
  std::vector<PlanRequest> all;
  PlanRequest next = request;
  const bool every_size = request.size <= most_ranks_with_every_parameter;
  for (int ranks = 1; ranks <= request.size; ++ranks) {
    if (request.size % ranks != 0 || (!every_size && ranks != 1 && ranks != 4 && ranks != 8)) continue;
    next.ranks_per_node = ranks;
    all.push_back(next);
  }
  next.ranks_per_node = 0;
  for (int left = request.size; left > 0; left -= next.node_sizes.back()) {
    next.node_sizes.push_back(std::min<int>(left, static_cast<int>(next.node_sizes.size()) % 3 + 1));
  }
  all.push_back(next);
  if (request.size < 4) return all;
  next.node_sizes = {request.size / 2 + 1, request.size - request.size / 2 - 1};
  all.push_back(next);
  return all;
}

// No element, few elements, and an odd number over several groups in each share; the last only if it needs little memory.
std::vector<std::int64_t> quantized_counts_of(const PlanRequest& request) {
  constexpr std::int64_t most_cells = std::int64_t{1} << 22;
  const std::int64_t group = std::max(group_elements(request.quantized), group_elements(request.quantized_result));
  const std::int64_t share = 2 * group + 3;
  const bool shares = counts_shares(request.collective);
  std::vector<std::int64_t> counts{0, 1};
  if (3 * share * request.size * request.size > most_cells) return counts;
  counts.push_back(shares ? share : request.size * share + 1);
  if (!shares && request.size > 1) counts.push_back(request.size * group);
  return counts;
}

}  // namespace

std::vector<ProofCase> quantized_proof_cases(Collective collective, Algorithm algorithm, int size, QuantizedFormat format,
                                             QuantizedFormat result) {
  PlanRequest request{.collective = collective, .method = algorithm, .size = size};
  request.quantized = format;
  if (collective == Collective::all_reduce) request.quantized_result = result;
  std::vector<ProofCase> cases;
  for (PlanRequest& its : algorithm == Algorithm::two_level ? with_nodes(request) : std::vector{request}) {
    for (const int pieces : {1, 3}) {
      its.method.pieces = pieces;
      for (const std::int64_t count : quantized_counts_of(its)) {
        its.count = count;
        cases.push_back({its, false});
        if (counts_shares(collective) && count > 0) cases.push_back({its, true});
      }
    }
  }
  return cases;
}

}  // namespace stretto
