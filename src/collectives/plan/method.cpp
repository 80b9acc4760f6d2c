// Names of collectives and algorithms, and methods as text.
#include "collectives/plan/method.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "core/names.hpp"

namespace stretto {
namespace {

constexpr const char* collective_names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                            "broadcast",  "reduce",         "gather",     "scatter",
                                            "barrier",    "send",           "recv"};
constexpr const char* algorithm_names[] = {"auto",
                                           "ring",
                                           "bidirectional_ring",
                                           "recursive_halving_doubling",
                                           "recursive_doubling",
                                           "bruck",
                                           "pairwise",
                                           "direct",
                                           "one_shot",
                                           "two_shot",
                                           "binomial",
                                           "knomial",
                                           "double_binary_tree",
                                           "chain",
                                           "scatter_all_gather",
                                           "reduce_scatter_gather",
                                           "two_level",
                                           "three_level",
                                           "server_set",
                                           "user",
                                           "nccl",
                                           "packet",
                                           "staged",
                                           "pull",
                                           "push"};

}  // namespace

const char* name(Collective collective) { return name_in(collective_names, collective); }
const char* name(Algorithm algorithm) { return name_in(algorithm_names, algorithm); }

Collective collective_from_name(const std::string& text) {
  return value_in<Collective>(collective_names, text, "collective");
}

void check_method(const Method& method, bool quantized) {
  const int each = method.algorithm == Algorithm::bidirectional_ring ? 2 : 1;
  require(method.lanes >= 1 && method.lanes * each <= most_lanes, "{} takes 1 to {} lanes, not {}.", name(method.algorithm),
          most_lanes / each, method.lanes);
  require(method.lanes == 1 || takes_lanes(method.algorithm), "{} has one lane; {} were asked for.", name(method.algorithm),
          method.lanes);
  require(method.pieces >= 1 && (method.pieces == 1 || takes_pieces(method.algorithm, quantized)),
          "{} cannot go in {} pieces; only {}, {}, {}, levels and what is quantized can, in 1 or more.",
          name(method.algorithm), method.pieces, name(Algorithm::chain), name(Algorithm::double_binary_tree),
          name(Algorithm::server_set));
  require(!needs_nodes(method.algorithm) || method.lanes <= method.pieces,
          "{} in {} lanes needs as many pieces, not {}; choose {}*{}/{}.", name(method.algorithm), method.lanes,
          method.pieces, name(method.algorithm), method.lanes, method.lanes);
  const bool two_parts = method.algorithm != Algorithm::three_level && method.above != Algorithm::automatic;
  require(!two_parts, "{} has nothing above nodes, and {} was asked for there; choose three_level.", name(method.algorithm),
          name(method.above));
}

Algorithm algorithm_from_name(const std::string& text) { return value_in<Algorithm>(algorithm_names, text, "algorithm"); }

std::string to_string(const Method& method) {
  std::string text = name(method.algorithm);
  if (method.inside != Algorithm::automatic) {
    text += fmt::format("({}+{}", name(method.inside), name(method.between));
    if (method.algorithm == Algorithm::three_level) text += fmt::format("+{}", name(method.above));
    text += ")";
  }
  if (method.lanes != 1) text += fmt::format("*{}", method.lanes);
  if (method.pieces != 1) text += fmt::format("/{}", method.pieces);
  return text;
}

Method method_from_text(const std::string& text) {
  const auto demand = [&](bool holds) {
    require(holds,
            "'{}' is no method; write one like ring, ring*4, chain/16, two_level(ring+two_shot)*2/8 or "
            "three_level(direct+ring+ring).",
            text);
  };
  const std::size_t open = text.find('(');
  const std::size_t close = text.find(')');
  demand((open == std::string::npos) == (close == std::string::npos) && (open == std::string::npos || open < close));
  Method method(algorithm_from_name(text.substr(0, text.find_first_of("*/("))));
  const int levels = method.algorithm == Algorithm::two_level ? 2 : method.algorithm == Algorithm::three_level ? 3 : 0;
  // Without parts, a method of levels is one for a quantized collective.
  const bool has_parts = open != std::string::npos;
  demand(!has_parts || (levels > 0 && open == text.find_first_of("*/(")));
  std::string numbers = text.substr(std::min(text.size(), text.find_first_of("*/")));
  if (has_parts) {
    std::vector<std::string> parts{""};
    for (const char letter : text.substr(open + 1, close - open - 1)) {
      if (letter == '+')
        parts.emplace_back();
      else
        parts.back() += letter;
    }
    demand(static_cast<int>(parts.size()) == levels);
    method.inside = algorithm_from_name(parts[0]);
    method.between = algorithm_from_name(parts[1]);
    if (levels == 3) method.above = algorithm_from_name(parts[2]);
    numbers = text.substr(close + 1);
  }
  const auto take_number = [&](char sign, int& number) {
    if (numbers.empty() || numbers.front() != sign) return;
    const std::size_t end = std::min(numbers.size(), numbers.find_first_not_of("0123456789", 1));
    demand(end > 1 && end < 8);
    number = std::stoi(numbers.substr(1, end - 1));
    numbers.erase(0, end);
  };
  take_number('*', method.lanes);
  take_number('/', method.pieces);
  demand(numbers.empty());
  check_method(method, true);
  return method;
}

}  // namespace stretto
