#include "stretto/plan.hpp"

#include <algorithm>

#include "collectives/plans/generators.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

using Generator = Plan (*)(const PlanRequest&);

struct Entry {
  Collective collective;
  Algorithm algorithm;
  Generator generate;
};

// The library's whole repertoire.
constexpr Entry repertoire[] = {
    {Collective::all_reduce, Algorithm::ring, plans::ring_all_reduce},
    {Collective::all_reduce, Algorithm::recursive_halving_doubling, plans::halving_doubling_all_reduce},
    {Collective::all_reduce, Algorithm::recursive_doubling, plans::recursive_doubling_all_reduce},
    {Collective::reduce_scatter, Algorithm::ring, plans::ring_reduce_scatter},
    {Collective::reduce_scatter, Algorithm::recursive_halving_doubling, plans::halving_reduce_scatter},
    {Collective::all_gather, Algorithm::ring, plans::ring_all_gather},
    {Collective::all_gather, Algorithm::recursive_halving_doubling, plans::doubling_all_gather},
    {Collective::broadcast, Algorithm::binomial, plans::binomial_broadcast},
    {Collective::reduce, Algorithm::binomial, plans::binomial_reduce},
    // A barrier is an all-reduce of one element whose value nobody looks at.
    {Collective::barrier, Algorithm::recursive_doubling, plans::recursive_doubling_all_reduce},
    {Collective::send, Algorithm::direct, plans::direct_send},
    {Collective::recv, Algorithm::direct, plans::direct_recv},
};

constexpr Algorithm all_algorithms[] = {
    Algorithm::automatic,          Algorithm::ring,     Algorithm::recursive_halving_doubling,
    Algorithm::recursive_doubling, Algorithm::binomial, Algorithm::direct,
};

std::string text_of(const Slice& slice) {
  const char* buffer = slice.buffer == Buffer::input ? "input" : slice.buffer == Buffer::output ? "output" : "scratch";
  return fmt::format("{}[{}..{})", buffer, slice.offset, slice.offset + slice.count);
}

std::string text_of(const Step& step) {
  switch (step.kind) {
    case StepKind::send: return fmt::format("send {} to {}", text_of(step.source), step.peer);
    case StepKind::recv: return fmt::format("recv {} from {}", text_of(step.destination), step.peer);
    case StepKind::recv_reduce:
      return fmt::format("recv_reduce {} = {} with {}", text_of(step.destination), text_of(step.source), step.peer);
    case StepKind::copy: return fmt::format("copy {} = {}", text_of(step.destination), text_of(step.source));
  }
  return {};
}

}  // namespace

const char* name(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return "all_reduce";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_gather: return "all_gather";
    case Collective::broadcast: return "broadcast";
    case Collective::reduce: return "reduce";
    case Collective::barrier: return "barrier";
    case Collective::send: return "send";
    case Collective::recv: return "recv";
  }
  return "unknown";
}

const char* name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic: return "auto";
    case Algorithm::ring: return "ring";
    case Algorithm::recursive_halving_doubling: return "recursive_halving_doubling";
    case Algorithm::recursive_doubling: return "recursive_doubling";
    case Algorithm::binomial: return "binomial";
    case Algorithm::direct: return "direct";
  }
  return "unknown";
}

Algorithm algorithm_from_name(const std::string& text) {
  std::vector<std::string> names;
  for (const Algorithm algorithm : all_algorithms) {
    if (text == name(algorithm)) return algorithm;
    names.emplace_back(name(algorithm));
  }
  fail(ErrorCode::invalid_argument, "'{}' is no algorithm; choose one of {}.", text, fmt::join(names, ", "));
}

const std::vector<Algorithm>& algorithms_for(Collective collective) {
  static const auto table = [] {
    std::vector<std::vector<Algorithm>> lists(static_cast<std::size_t>(Collective::recv) + 1);
    for (const Entry& entry : repertoire) lists[static_cast<std::size_t>(entry.collective)].push_back(entry.algorithm);
    return lists;
  }();
  return table[static_cast<std::size_t>(collective)];
}

std::int64_t Plan::elements_sent() const {
  std::int64_t sum = 0;
  for (const Lane& lane : lanes) {
    for (const Step& step : lane.steps) {
      if (step.kind == StepKind::send) sum += step.source.count;
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
  std::string text = fmt::format("{} by {}, rank {} of {}, {} elements, {} of scratch\n", name(collective), name(algorithm),
                                 rank, size, count, scratch_count);
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

Plan make_plan(const PlanRequest& request) {
  require(request.size >= 1 && request.rank >= 0 && request.rank < request.size, "Rank {} is outside a group of {}.",
          request.rank, request.size);
  require(request.root >= 0 && request.root < request.size, "{} with root or peer {} in a group of {}; choose 0..{}.",
          name(request.collective), request.root, request.size, request.size - 1);
  require(request.count >= 0, "{} of {} elements; a count cannot be negative.", name(request.collective), request.count);
  for (const Entry& entry : repertoire) {
    if (entry.collective == request.collective && entry.algorithm == request.algorithm) return entry.generate(request);
  }
  std::vector<std::string> names;
  for (const Algorithm algorithm : algorithms_for(request.collective)) names.emplace_back(name(algorithm));
  fail(ErrorCode::invalid_argument, "{} cannot be done by {}; choose {}.", name(request.collective), name(request.algorithm),
       fmt::join(names, " or "));
}

}  // namespace stretto
