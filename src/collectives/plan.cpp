#include "stretto/plan.hpp"

#include <algorithm>
#include <cmath>

#include "collectives/nodes.hpp"
#include "collectives/plans/generators.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

struct Entry {
  Collective collective;
  Algorithm algorithm;
  Plan (*generate)(const PlanRequest&);
  Cost (*cost)(const PlanRequest&);
};

#define STRETTO_ENTRY(collective, algorithm, generator) \
  { Collective::collective, Algorithm::algorithm, plans::generator, plans::generator##_cost }

// The library's whole repertoire.
constexpr Entry repertoire[] = {
    STRETTO_ENTRY(all_reduce, ring, ring_all_reduce),
    STRETTO_ENTRY(all_reduce, bidirectional_ring, ring_all_reduce),
    STRETTO_ENTRY(all_reduce, recursive_halving_doubling, halving_doubling_all_reduce),
    STRETTO_ENTRY(all_reduce, recursive_doubling, recursive_doubling_all_reduce),
    STRETTO_ENTRY(all_reduce, double_binary_tree, double_tree_all_reduce),
    STRETTO_ENTRY(all_reduce, one_shot, one_shot_all_reduce),
    STRETTO_ENTRY(all_reduce, two_shot, two_shot_all_reduce),
    STRETTO_ENTRY(all_reduce, two_level, two_level),
    STRETTO_ENTRY(all_reduce, three_level, two_level),
    STRETTO_ENTRY(all_reduce, packet, packet_all_reduce),
    STRETTO_ENTRY(all_reduce, staged, shared_all_reduce),
    STRETTO_ENTRY(all_reduce, pull, shared_all_reduce),
    STRETTO_ENTRY(all_reduce, push, push_all_reduce),
    STRETTO_ENTRY(reduce_scatter, ring, ring_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, bidirectional_ring, ring_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, recursive_halving_doubling, halving_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, pairwise, pairwise_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, direct, direct_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, two_level, two_level),
    STRETTO_ENTRY(reduce_scatter, three_level, two_level),
    STRETTO_ENTRY(reduce_scatter, packet, shared_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, staged, shared_reduce_scatter),
    STRETTO_ENTRY(reduce_scatter, pull, shared_reduce_scatter),
    STRETTO_ENTRY(all_gather, ring, ring_all_gather),
    STRETTO_ENTRY(all_gather, bidirectional_ring, ring_all_gather),
    STRETTO_ENTRY(all_gather, recursive_halving_doubling, doubling_all_gather),
    STRETTO_ENTRY(all_gather, bruck, bruck_all_gather),
    STRETTO_ENTRY(all_gather, direct, direct_all_gather),
    STRETTO_ENTRY(all_gather, two_level, two_level),
    STRETTO_ENTRY(all_gather, three_level, two_level),
    STRETTO_ENTRY(all_gather, packet, shared_all_gather),
    STRETTO_ENTRY(all_gather, staged, shared_all_gather),
    STRETTO_ENTRY(all_gather, pull, shared_all_gather),
    STRETTO_ENTRY(all_to_all, bruck, bruck_all_to_all),
    STRETTO_ENTRY(all_to_all, pairwise, pairwise_all_to_all),
    STRETTO_ENTRY(all_to_all, direct, direct_all_to_all),
    STRETTO_ENTRY(all_to_all, two_level, two_level),
    STRETTO_ENTRY(all_to_all, three_level, two_level),
    STRETTO_ENTRY(all_to_all, packet, shared_all_to_all),
    STRETTO_ENTRY(all_to_all, staged, shared_all_to_all),
    STRETTO_ENTRY(all_to_all, pull, shared_all_to_all),
    STRETTO_ENTRY(broadcast, binomial, tree_broadcast),
    STRETTO_ENTRY(broadcast, knomial, tree_broadcast),
    STRETTO_ENTRY(broadcast, double_binary_tree, double_tree_broadcast),
    STRETTO_ENTRY(broadcast, chain, chain_broadcast),
    STRETTO_ENTRY(broadcast, scatter_all_gather, scatter_all_gather_broadcast),
    STRETTO_ENTRY(broadcast, direct, direct_broadcast),
    STRETTO_ENTRY(broadcast, two_level, two_level),
    STRETTO_ENTRY(broadcast, three_level, two_level),
    STRETTO_ENTRY(broadcast, packet, shared_broadcast),
    STRETTO_ENTRY(broadcast, staged, shared_broadcast),
    STRETTO_ENTRY(broadcast, pull, shared_broadcast),
    STRETTO_ENTRY(broadcast, push, push_broadcast),
    STRETTO_ENTRY(reduce, binomial, tree_reduce),
    STRETTO_ENTRY(reduce, knomial, tree_reduce),
    STRETTO_ENTRY(reduce, double_binary_tree, double_tree_reduce),
    STRETTO_ENTRY(reduce, chain, chain_reduce),
    STRETTO_ENTRY(reduce, reduce_scatter_gather, reduce_scatter_gather_reduce),
    STRETTO_ENTRY(reduce, direct, direct_reduce),
    STRETTO_ENTRY(reduce, two_level, two_level),
    STRETTO_ENTRY(reduce, three_level, two_level),
    STRETTO_ENTRY(reduce, packet, packet_reduce),
    STRETTO_ENTRY(reduce, staged, shared_reduce),
    STRETTO_ENTRY(reduce, pull, shared_reduce),
    STRETTO_ENTRY(reduce, push, push_reduce),
    STRETTO_ENTRY(gather, binomial, tree_gather),
    STRETTO_ENTRY(gather, knomial, tree_gather),
    STRETTO_ENTRY(gather, direct, direct_gather),
    STRETTO_ENTRY(gather, packet, shared_gather),
    STRETTO_ENTRY(gather, staged, shared_gather),
    STRETTO_ENTRY(gather, pull, shared_gather),
    STRETTO_ENTRY(scatter, binomial, tree_scatter),
    STRETTO_ENTRY(scatter, knomial, tree_scatter),
    STRETTO_ENTRY(scatter, direct, direct_scatter),
    STRETTO_ENTRY(scatter, packet, shared_scatter),
    STRETTO_ENTRY(scatter, staged, shared_scatter),
    STRETTO_ENTRY(scatter, pull, shared_scatter),
    // A barrier is an all-reduce of one element whose value nobody looks at.
    STRETTO_ENTRY(barrier, recursive_doubling, recursive_doubling_all_reduce),
    STRETTO_ENTRY(barrier, packet, packet_all_reduce),
    STRETTO_ENTRY(send, direct, direct_send),
    STRETTO_ENTRY(recv, direct, direct_recv),
};
#undef STRETTO_ENTRY

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
                                           "packet",
                                           "staged",
                                           "pull",
                                           "push"};

// The value of an enum whose names are listed in its order.
template <class Enum, std::size_t Count>
Enum value_of(const char* const (&names)[Count], const std::string& text, const char* what) {
  const auto found = std::find(std::begin(names), std::end(names), text);
  require(found != std::end(names), "'{}' is no {}; choose one of {}.", text, what, fmt::join(names, ", "));
  return static_cast<Enum>(found - std::begin(names));
}

const Entry& entry_of(Collective collective, Algorithm algorithm) {
  for (const Entry& entry : repertoire) {
    if (entry.collective == collective && entry.algorithm == algorithm) return entry;
  }
  std::vector<std::string> names;
  for (const Algorithm known : algorithms_for(collective)) names.emplace_back(name(known));
  fail(ErrorCode::invalid_argument, "{} cannot be done by {}; choose {}.", name(collective), name(algorithm),
       fmt::join(names, " or "));
}

// quantized: as a quantized collective may have it.
void check_method(const Method& method, bool quantized) {
  const int each = method.algorithm == Algorithm::bidirectional_ring ? 2 : 1;
  require(method.lanes >= 1 && method.lanes * each <= most_lanes, "{} takes 1 to {} lanes, not {}.", name(method.algorithm),
          most_lanes / each, method.lanes);
  require(method.lanes == 1 || takes_lanes(method.algorithm), "{} has one lane; {} were asked for.", name(method.algorithm),
          method.lanes);
  require(method.pieces >= 1 && (method.pieces == 1 || takes_pieces(method.algorithm, quantized)),
          "{} cannot go in {} pieces; only {}, {}, levels and what is quantized can, in 1 or more.", name(method.algorithm),
          method.pieces, name(Algorithm::chain), name(Algorithm::double_binary_tree));
  require(!needs_nodes(method.algorithm) || method.lanes <= method.pieces,
          "{} in {} lanes needs as many pieces, not {}; choose {}*{}/{}.", name(method.algorithm), method.lanes,
          method.pieces, name(method.algorithm), method.lanes, method.lanes);
  const bool two_parts = method.algorithm != Algorithm::three_level && method.above != Algorithm::automatic;
  require(!two_parts, "{} has nothing above nodes, and {} was asked for there; choose three_level.", name(method.algorithm),
          name(method.above));
}

void check_request(const PlanRequest& request) {
  check_shape(request);
  check_method(request.method, request.quantized != QuantizedFormat::none);
}

struct OnLink {
  Cost cost;
  LinkCost link;
  double seconds(double bytes_per_element) const { return stretto::seconds(cost, link, bytes_per_element); }
  double busy_seconds(double bytes_per_element) const {
    return stretto::seconds(cost, {0, link.overhead, link.beta, link.gamma}, bytes_per_element);
  }
};

// Two levels, whose pieces go through both in so many lanes: all of one lane's one after the other, so that with L lanes it
// takes an L-th of the sum. But both levels must be gone through as long as each is busy (its latencies aside), and while
// the first piece begins or the last one ends in the other, nothing overlaps. With one lane this is the sum.
double overlapped(const OnLink& inside, const OnLink& between, double bytes_per_element, const Method& method) {
  const double in = inside.seconds(bytes_per_element);
  const double out = between.seconds(bytes_per_element);
  if (in == 0 || out == 0) return in + out;  // one level, in one piece
  return std::max({(in + out) / method.lanes, inside.busy_seconds(bytes_per_element) + out / method.pieces,
                   between.busy_seconds(bytes_per_element) + in / method.pieces});
}

// How much faster bytes go that so many send at once.
double gain_of(const LinkCost& link, double senders) { return std::pow(1 + link.lane_gain, std::log2(senders)); }

std::string text_of(const Slice& slice) {
  if (slice.buffer == Buffer::packed) {
    return fmt::format("{}[{}..{})", name(slice.format), slice.offset, slice.offset + slice.count);
  }
  const char* buffer = slice.buffer == Buffer::input ? "input" : slice.buffer == Buffer::output ? "output" : "scratch";
  return fmt::format("{}[{}..{})", buffer, slice.offset, slice.offset + slice.count);
}

std::string sum_text(const Step& step) {
  return fmt::format("{} vectors, {} apart, from {}", step.vectors, step.apart, text_of(step.source));
}

std::string text_of(const Step& step) {
  switch (step.kind) {
    case StepKind::send: return fmt::format("send {} to {}", text_of(step.source), step.peer);
    case StepKind::recv: return fmt::format("recv {} from {}", text_of(step.destination), step.peer);
    case StepKind::recv_reduce:
      return fmt::format("recv_reduce {} = {} with {}", text_of(step.destination), text_of(step.source), step.peer);
    case StepKind::copy: return fmt::format("copy {} = {}", text_of(step.destination), text_of(step.source));
    case StepKind::reduce:
      return fmt::format("reduce {} = the {} vectors in {}", text_of(step.destination),
                         step.source.count / std::max<std::int64_t>(1, step.destination.count), text_of(step.source));
    case StepKind::quantize: return fmt::format("quantize {} = {}", text_of(step.destination), text_of(step.source));
    case StepKind::dequantize: return fmt::format("dequantize {} = {}", text_of(step.destination), text_of(step.source));
    case StepKind::dequantize_reduce:
      return fmt::format("dequantize_reduce {} = {}", text_of(step.destination), sum_text(step));
    case StepKind::requantize: return fmt::format("requantize {} = {}", text_of(step.destination), sum_text(step));
    case StepKind::signal: return "signal";
    case StepKind::wait: return fmt::format("wait for {}", step.peer);
    case StepKind::read:
      return fmt::format("read {} = {} of {}", text_of(step.destination), text_of(step.source), step.peer);
    case StepKind::read_reduce:
      return fmt::format("read_reduce {} of {} = {} of all", text_of(step.destination),
                         step.peer == everybody ? "everybody" : fmt::format("{}", step.peer), text_of(step.source));
    case StepKind::spread:
      return fmt::format("spread {} of everybody = {} of {}", text_of(step.destination), text_of(step.source), step.peer);
  }
  return {};
}

}  // namespace

const char* name(Collective collective) {
  const auto i = static_cast<std::size_t>(collective);
  return i < std::size(collective_names) ? collective_names[i] : "unknown";
}

const char* name(Algorithm algorithm) {
  const auto i = static_cast<std::size_t>(algorithm);
  return i < std::size(algorithm_names) ? algorithm_names[i] : "unknown";
}

Collective collective_from_name(const std::string& text) {
  return value_of<Collective>(collective_names, text, "collective");
}
Algorithm algorithm_from_name(const std::string& text) { return value_of<Algorithm>(algorithm_names, text, "algorithm"); }

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
  // Without parts, levels mean a quantized collective.
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

const std::vector<Algorithm>& algorithms_for(Collective collective) {
  // Never destroyed: a communicator in a static of the program's still reads it when the program ends.
  static const auto& table = *[] {
    auto* const lists = new std::vector<std::vector<Algorithm>>(std::size(collective_names));
    for (const Entry& entry : repertoire) (*lists)[static_cast<std::size_t>(entry.collective)].push_back(entry.algorithm);
    return lists;
  }();
  const auto i = static_cast<std::size_t>(collective);
  require(i < table.size(), "Collective {} is unknown.", i);
  return table[i];
}

bool can_be_in_place(Collective collective) {
  return collective != Collective::all_to_all && collective != Collective::barrier && collective != Collective::send &&
         collective != Collective::recv;
}

std::int64_t Plan::elements_sent() const {
  std::int64_t sum = 0;
  for (const Lane& lane : lanes) {
    for (const Step& step : lane.steps) {
      const std::int64_t others = request.size - 1;
      if (step.kind == StepKind::send) sum += step.source.count;
      if (step.kind == StepKind::spread) sum += others * step.source.count;  // the owner's copy does not count
      if (step.kind == StepKind::read && step.peer != request.rank) sum += step.source.count;
      if (step.kind != StepKind::read_reduce) continue;
      const std::int64_t owners = step.peer == everybody ? others : step.peer != request.rank ? 1 : 0;
      sum += (others + owners) * step.destination.count;
    }
  }
  return sum;
}

namespace {

std::int64_t bytes_of(const Slice& slice, std::int64_t element_bytes) {
  return slice.buffer == Buffer::packed ? packed_bytes(slice.format, slice.count) : slice.count * element_bytes;
}

// Bytes that a step moves between its rank and others: visit(peer, bytes).
template <class Visit>
void for_each_transfer(const PlanRequest& request, const Step& step, std::int64_t element_bytes, Visit visit) {
  const bool sends = step.kind == StepKind::send;
  if (sends || (step.kind == StepKind::read && step.peer != request.rank)) {
    visit(step.peer, bytes_of(step.source, element_bytes));
  }
  if (step.kind != StepKind::read_reduce) return;
  const std::int64_t bytes = bytes_of(step.destination, element_bytes);
  for (int peer = 0; peer < request.size; ++peer) {
    const bool writes = step.peer == everybody || step.peer == peer;
    if (peer != request.rank) visit(peer, (writes ? 2 : 1) * bytes);
  }
}

}  // namespace

std::int64_t Plan::bytes_sent(std::int64_t element_bytes) const {
  std::int64_t sum = 0;
  for (const Lane& lane : lanes) {
    for (const Step& step : lane.steps) {
      for_each_transfer(request, step, element_bytes, [&](int, std::int64_t bytes) { sum += bytes; });
    }
  }
  return sum;
}

std::int64_t Plan::bytes_between_nodes(std::int64_t element_bytes, const std::vector<int>& nodes) const {
  std::int64_t sum = 0;
  for (const Lane& lane : lanes) {
    for (const Step& step : lane.steps) {
      for_each_transfer(request, step, element_bytes, [&](int peer, std::int64_t bytes) {
        if (nodes[peer] != nodes[request.rank]) sum += bytes;
      });
    }
  }
  return sum;
}

int Plan::rounds() const {
  std::size_t most = 0;
  for (const Lane& lane : lanes) most = std::max(most, lane.round_ends.size());
  return static_cast<int>(most);
}

std::string Plan::to_string() const {
  std::string text =
      fmt::format("{} by {}, rank {} of {}, {} elements, {} of scratch", name(request.collective),
                  stretto::to_string(request.method), request.rank, request.size, request.count, scratch_count);
  for (int format = 0; format < quantized_formats; ++format) {
    const std::int64_t count = packed_counts[static_cast<std::size_t>(format)];
    if (count > 0) text += fmt::format(", {} packed in {}", count, name(static_cast<QuantizedFormat>(format)));
  }
  text += '\n';
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    std::size_t at = 0;
    for (std::size_t round = 0; round < lanes[l].round_ends.size(); ++round) {
      for (; at < lanes[l].round_ends[round]; ++at) {
        text += fmt::format("  lane {} round {}: {}\n", l, round, text_of(lanes[l].steps[at]));
      }
    }
  }
  return text;
}

std::int64_t input_count(const PlanRequest& request) {
  const bool at_root = request.rank == request.root;
  switch (request.collective) {
    case Collective::recv: return 0;
    case Collective::broadcast: return at_root ? request.count : 0;
    case Collective::scatter: return at_root ? Shares::of(request).total() : 0;
    case Collective::reduce_scatter:
    case Collective::all_to_all: return Shares::of(request).total();
    case Collective::all_gather:
    case Collective::gather: return Shares::of(request).length(request.rank);
    default: return request.count;
  }
}

std::int64_t output_count(const PlanRequest& request) {
  const bool at_root = request.rank == request.root;
  switch (request.collective) {
    case Collective::send: return 0;
    case Collective::reduce: return at_root ? request.count : 0;
    case Collective::gather: return at_root ? Shares::of(request).total() : 0;
    case Collective::all_gather: return Shares::of(request).total();
    case Collective::all_to_all:
      return request.counts.empty() ? request.count * request.size : Shares::listed(request.receive_counts).total();
    case Collective::reduce_scatter:
    case Collective::scatter: return Shares::of(request).length(request.rank);
    default: return request.count;
  }
}

bool rounds_once(Algorithm algorithm) {
  return algorithm == Algorithm::one_shot || algorithm == Algorithm::two_shot || algorithm == Algorithm::direct ||
         shares_memory(algorithm);
}

// They all reduce in the order of the ranks.
bool is_deterministic(Algorithm algorithm) { return rounds_once(algorithm); }

void check_shape(const PlanRequest& request) {
  const char* const what = name(request.collective);
  require(request.size >= 1 && request.rank >= 0 && request.rank < request.size, "Rank {} is outside a group of {}.",
          request.rank, request.size);
  require(request.root >= 0 && request.root < request.size, "{} with root or peer {} in a group of {}; choose 0..{}.", what,
          request.root, request.size, request.size - 1);
  require(request.count >= 0, "{} of {} elements; a count cannot be negative.", what, request.count);
  require(request.receive_counts.size() == (request.collective == Collective::all_to_all ? request.counts.size() : 0),
          "{} got {} counts and {} receive counts; only all_to_all takes both, as many of one as of the other.", what,
          request.counts.size(), request.receive_counts.size());
  require(request.counts.empty() || counts_shares(request.collective), "{} has one count, not {}.", what,
          request.counts.size());
  // Offsets of elements and of bytes are computed in 64 bits behind this.
  constexpr std::int64_t most = std::int64_t{1} << 56;
  for (const auto* counts : {&request.counts, &request.receive_counts}) {
    if (counts->empty()) continue;
    require(static_cast<int>(counts->size()) == request.size && request.count == 0,
            "{} got {} counts and the count {} in a group of {}; give one count for each rank, or one for all.", what,
            counts->size(), request.count, request.size);
    std::int64_t sum = 0;
    for (const std::int64_t count : *counts) {
      require(count >= 0, "{} of {} elements; a count cannot be negative.", what, count);
      require(!__builtin_add_overflow(sum, count, &sum) && sum <= most,
              "{} over {} ranks got counts of more than {} elements together, which is more than any memory.", what,
              request.size, most);
    }
  }
  // Some algorithms reduce all ranks' vectors side by side.
  const bool all_ranks = counts_shares(request.collective) || reduces(request.collective);
  std::int64_t together = 0;
  require(!__builtin_mul_overflow(request.count, all_ranks ? request.size : 1, &together) && together <= most,
          "{} of {} elements over {} ranks: that is more than {} elements together, and more than any memory.", what,
          request.count, request.size, most);
}

Plan make_plan(const PlanRequest& request) {
  check_request(request);
  if (request.quantized != QuantizedFormat::none) return plans::quantized(request);
  return entry_of(request.collective, request.method.algorithm).generate(request);
}

LevelCost cost_by_level(const PlanRequest& request) {
  check_request(request);
  if (request.quantized != QuantizedFormat::none) {
    LevelCost sum;
    for (const LevelCost& phase : plans::quantized_phases(request)) {
      sum = {sum.inside + phase.inside, sum.between + phase.between};
    }
    return sum;
  }
  const Entry& entry = entry_of(request.collective, request.method.algorithm);
  if (needs_nodes(entry.algorithm)) return plans::two_level_cost_by_level(request);
  return {entry.cost(request), {}};
}

double seconds(const Cost& cost, const LinkCost& link, double bytes_per_element, int lanes) {
  const double beta = link.beta / gain_of(link, lanes);
  return cost.rounds * link.alpha + cost.messages * link.overhead +
         bytes_per_element * (cost.sent * beta + cost.work * link.gamma) + cost.packed * beta +
         cost.quantized * link.quantize;
}

namespace {

// The link between nodes, for one of so many ranks of a node that send at once through its ports.
LinkCost shared(LinkCost link, double ranks, int ports) {
  const double senders = std::max(1.0, ranks / ports);
  link.beta *= senders / gain_of(link, senders);
  link.overhead *= senders;
  return link;
}

// What is slowest, links inside, links between or local work, hides the others, but for the first piece's way through all.
double quantized_seconds(const PlanRequest& request, const LinkCost& inside, const LinkCost& between,
                         double bytes_per_element, int ports) {
  const LinkCost& near = knows_nodes(request) ? inside : between;
  LinkCost far = between;
  if (knows_nodes(request)) {
    const Nodes nodes = Nodes::of(request);
    far = shared(between, static_cast<double>(request.size) / nodes.count(), ports);
  }
  double sum = 0;
  for (LevelCost cost : plans::quantized_phases(request)) {
    const double work = cost.inside.quantized * near.quantize;
    cost.inside.quantized = 0;
    const double parts[] = {work, seconds(cost.inside, near, bytes_per_element),
                            seconds(cost.between, far, bytes_per_element)};
    const double all = parts[0] + parts[1] + parts[2];
    const double slowest = *std::max_element(std::begin(parts), std::end(parts));
    sum += slowest + (all - slowest) / request.method.pieces;
  }
  return sum;
}

}  // namespace

double seconds(const PlanRequest& request, const LinkCost& inside, const LinkCost& between, double bytes_per_element,
               int ports) {
  if (request.quantized != QuantizedFormat::none) {
    return quantized_seconds(request, inside, between, bytes_per_element, ports);
  }
  const LevelCost cost = cost_by_level(request);
  const Method& method = request.method;
  if (!needs_nodes(method.algorithm)) return seconds(cost.inside, between, bytes_per_element, method.lanes);
  return overlapped({cost.inside, inside}, {cost.between, shared(between, cost.senders, ports)}, bytes_per_element, method);
}

Cost cost_of(const PlanRequest& request) {
  const LevelCost cost = cost_by_level(request);
  return cost.inside + cost.between;
}

}  // namespace stretto
