#include "collectives/calibration/route_measurement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "collectives/calibration/sweep.hpp"
#include "collectives/communicator/group.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

// Large calls are timed in loops of several calls, which last up to about a rank's turn on a core: the first call after a
// barrier does not show how well calls follow one another.
constexpr Efforts within{
    .small = {.looks = 2, .hopeless = 2.5, .most_calls = 60, .look_seconds = 0.002, .seconds = 0},
    .large = {
        .looks = 1, .most_calls = 8, .most_bytes = 128 << 20, .look_seconds = 0.008, .least_of_look = 3, .seconds = 0}};
constexpr Efforts between{.small = {.looks = 2, .hopeless = 3, .most_calls = 3, .look_seconds = 0.003, .seconds = 0},
                          .large = {.looks = 1, .most_calls = 2, .most_bytes = 8 << 20, .look_seconds = 0.01, .seconds = 0}};
constexpr double most_memory = 1 << 30;            // bytes of all buffers on a host
constexpr std::int64_t needed_within = 256 << 10;  // bytes that a measurement within a node must reach

// The methods within a node whose lanes and pieces have at least 8 KiB.
std::vector<Method> sensible_methods(const TimedCall& call) {
  std::vector<Method> methods = methods_within_node(call.request().collective, call.request().count);
  const std::int64_t parts = std::max<std::int64_t>(1, call.bytes() / 8192);
  std::erase_if(methods, [&](const Method& method) { return method.pieces > parts || method.lanes > parts; });
  return methods;
}

Choice choice_of(const TimedCall& call, Communicator::Group& group, const Selector& selector) {
  const PlanRequest& plain = call.request();
  PlanRequest request = group.planner().request_of({.collective = plain.collective, .count = plain.count}, {});
  request.rank = 0;
  return selector.choose(request, DType::f32, ReduceOp::sum, group.planner().nodes(), group.links(), false, false);
}

// The seconds of the best method for a call on a network of bandwidth 1 / beta where messages, steps and everything within
// a node cost nothing.
class LeastSeconds {
 public:
  LeastSeconds(Selector selector, const Communicator& world, double beta)
      : selector_(std::move(selector)), group_(Communicator::Group::of(world)) {
    std::string routes;
    for (const char* name : {"shm", "network"}) {
      MeasuredRoute route;
      route.route = {.route = name, .ranks = world.size(), .ranks_per_core = selector_.ranks_per_core()};
      route.route.cost.beta = name == std::string("network") ? beta : 0;
      routes += (routes.empty() ? "" : ",") + route.to_json();
    }
    selector_.learn(fmt::format(R"({{"routes": [{}]}})", routes), "costs of bytes alone");
  }
  double operator()(const TimedCall& call) const {
    const Choice choice = choice_of(call, group_, selector_);
    return choice.candidates.empty() ? 0 : choice.candidates.front().seconds;
  }

 private:
  Selector selector_;
  Communicator::Group& group_;
};

// The five methods that the model expects to be fastest, where each algorithm between nodes counts once whole and once in
// lanes or pieces. Below 1 MiB a few methods without levels are added: the model knows least about the messages of small
// calls.
std::vector<Method> best_by_model(const TimedCall& call, Communicator::Group& group, const Selector& selector) {
  const std::size_t most = 5, without_levels = has_root(call.request().collective) ? 8 : 2;
  const Choice choice = choice_of(call, group, selector);
  const auto kind_of = [](const Method& method) {
    return std::tuple(method.algorithm, method.between, method.lanes * method.pieces > 1);
  };
  // The choice is not always the first candidate.
  std::vector<Method> methods{choice.method};
  std::set<std::tuple<Algorithm, Algorithm, bool>> kinds{kind_of(choice.method)};
  const std::size_t wanted_flat = call.bytes() < (1 << 20) ? without_levels : 0;
  std::size_t flat = needs_nodes(choice.method.algorithm) ? 0 : 1;
  for (const Candidate& candidate : choice.candidates) {
    const Method& method = candidate.method;
    const bool is_flat = !needs_nodes(method.algorithm);
    if (methods.size() >= most && (!is_flat || flat >= wanted_flat)) continue;
    if (!kinds.insert(kind_of(method)).second) continue;
    methods.push_back(method);
    flat += is_flat ? 1 : 0;
  }
  return methods;
}

// Over all ranks. Collective.
CoreTime sum_since(const CoreTime& before, const Communicator& ranks) {
  const CoreTime now = core_time();
  std::array<double, 2> seconds{now.running - before.running, now.waiting - before.waiting};
  ranks.all_reduce(seconds.data(), seconds.data(), 2, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
  return {seconds[0], seconds[1]};
}

}  // namespace

// Measured on two cores: 0.0 to 0.1 beyond what ranks take from each other if nothing else runs, from 1.6 on beside a single
// program that computes.
bool others_ran(const CoreTime& sum, double ranks_per_core) {
  constexpr double most = 0.35;
  return sum.waiting > (std::max(0.0, ranks_per_core - 1) + most) * sum.running;
}

std::vector<CallTimes> times_within_node(const Communicator& node, const Budget& budget) {
  // There are an input and an output in each kind of memory.
  const double most =
      on_rank_zero(node, std::min(most_memory / (4 * node.size()), number_setting("STRETTO_HEAP_BYTES") / 8));
  if (most < needed_within) return {};
  // The last one is beyond most caches, for all ranks together.
  const std::int64_t largest = std::clamp<std::int64_t>((64 << 20) / node.size(), 4 << 20, 32 << 20);
  std::vector<Sweep::Size> sizes{{8, false},
                                 {512, false},
                                 {4 << 10, true},
                                 {most_packet_bytes, true},
                                 {needed_within, true},
                                 {2 << 20, true, 3, 8},
                                 {largest, true, 1.5, 5}};
  std::erase_if(sizes, [&](const Sweep::Size& size) { return static_cast<double>(size.bytes) > most; });
  const CoreTime before = core_time();
  Sweep sweep(node, within, budget);
  const std::optional<std::int64_t> least_missed = sweep.run(sizes, sensible_methods);
  if (least_missed && *least_missed <= needed_within) return {};
  for (int i = 0; i < 3; ++i) sweep.look_again();  // as far as the budget reaches
  const CoreTime since = sum_since(before, node);
  const double ranks_per_core = Communicator::Group::of(node).context().network().ranks_per_core();
  return others_ran(since, on_rank_zero(node, ranks_per_core)) ? std::vector<CallTimes>{} : sweep.times();
}

LinkCost between_nodes(const Communicator& world, LinkCost cost) {
  const int peer = static_cast<int>(std::find(world.nodes().begin(), world.nodes().end(), 1) - world.nodes().begin());
  const Stream stream = Stream::inline_();
  const auto round_trip = [&](std::vector<std::byte>& there, std::vector<std::byte>& back) {
    const double begin = now_seconds();
    const auto send = [&](const std::vector<std::byte>& what, int to) {
      world.send(what.data(), static_cast<std::int64_t>(what.size()), DType::u8, to, stream).wait();
    };
    const auto receive = [&](std::vector<std::byte>& what, int from) {
      world.recv(what.data(), static_cast<std::int64_t>(what.size()), DType::u8, from, stream).wait();
    };
    if (world.rank() == 0) {
      send(there, peer);
      receive(back, peer);
    } else if (world.rank() == peer) {
      receive(there, 0);
      send(back, 0);
    }
    return now_seconds() - begin;
  };
  std::vector<std::byte> little(8), much(1 << 20);
  double trip = 1, long_trip = 10;
  for (int i = 0; i < 20; ++i) trip = std::min(trip, round_trip(little, little));
  for (int i = 0; i < 3; ++i) long_trip = std::min(long_trip, round_trip(much, little));
  cost.alpha = on_rank_zero(world, trip / 2);
  cost.beta = on_rank_zero(world, std::max(long_trip - trip, 1e-7) / static_cast<double>(much.size()));
  return cost;
}

std::vector<CallTimes> times_between_nodes(const Communicator& world, const Selector& selector, double beta,
                                           const Budget& budget) {
  const std::vector<Sweep::Size> sizes{
      {64, false},        {2 << 10, false},       {12 << 10, false},       {48 << 10, false, 3, 6},
      {160 << 10, false}, {1 << 20, false, 2, 4}, {8 << 20, false, 1.3, 2}};
  Communicator::Group& group = Communicator::Group::of(world);
  const LeastSeconds least_seconds(selector, world, beta);
  Sweep sweep(world, between, budget);
  sweep.run(
      sizes, [&](const TimedCall& call) { return best_by_model(call, group, selector); }, least_seconds);
  sweep.look_again();
  return sweep.times();
}

}  // namespace stretto
