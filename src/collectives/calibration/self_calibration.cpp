#include "collectives/calibration/self_calibration.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "collectives/communicator/group.hpp"
#include "collectives/selection/measurement_cache.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"
#include "stretto/calibration.hpp"

namespace stretto {
namespace {

constexpr double budget_within = 1.8, budget_between = 3.5;  // seconds
constexpr Effort small_within{.looks = 3, .most_calls = 10, .seconds = 0},
    large_within{.looks = 2, .most_calls = 1, .seconds = 0};
constexpr Effort small_between{.looks = 2, .most_calls = 3, .seconds = 0};
constexpr Effort large_between{.looks = 1, .most_calls = 2, .most_bytes = 8 << 20, .seconds = 0};
constexpr double most_memory = 1 << 30;         // bytes of all buffers on a host
constexpr std::int64_t large = 1 << 20;         // bytes
constexpr std::int64_t must_reach = 128 << 10;  // bytes: a measurement that ends before is thrown away
constexpr int reach = 4;         // a table speaks of four times as many bytes as were measured; beyond, the model does
constexpr double loyalty = 0.9;  // what the library takes so far stays unless another method takes less than this

double on_rank_zero(const Communicator& ranks, double value) {
  ranks.broadcast(&value, &value, 1, DType::f64, 0, Stream::inline_()).wait();
  return value;
}

// Rank 0's text.
std::string same_text(RankContext& context, const std::string& mine) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(mine.data());
  const Bytes first = context.job().exchange(Bytes(bytes, bytes + mine.size()))[0];
  return {reinterpret_cast<const char*>(first.data()), first.size()};
}

// The methods that are less than so many times slower than the fastest, best first: where bytes decide, what was far behind
// at one size stays behind at the next.
std::vector<Method> promising(const CallTimes& times, double times_slower, std::size_t most) {
  std::vector<MethodTime> known = times.methods;
  std::erase_if(known, [&](const MethodTime& time) { return time.seconds > times_slower * times.fastest().seconds; });
  std::sort(known.begin(), known.end(), [](const MethodTime& a, const MethodTime& b) { return a.seconds < b.seconds; });
  if (known.size() > most) known.resize(most);
  std::vector<Method> methods;
  methods.reserve(known.size());
  for (const MethodTime& time : known) methods.push_back(time.method);
  return methods;
}

struct Size {
  std::int64_t bytes;
  double times_slower;       // than the fastest at the last size: what is left out
  std::size_t most_methods;  // of those that are left
};

// The times of all collectives at growing sizes, until the budget is used up.
class Sweep {
 public:
  Sweep(const Communicator& ranks, const Effort& at_small_sizes, const Effort& at_large_sizes, double budget)
      : ranks_(ranks), small_(at_small_sizes), large_(at_large_sizes), end_(now_seconds() + budget) {}

  // methods(call): those to time as long as nothing is known. Returns false once the budget is used up.
  template <class Methods>
  bool add(const Size& size, bool symmetric, const Methods& methods) {
    for (const Collective collective : timed_collectives()) {
      if (is_over()) return false;
      const std::int64_t count = TimedCall::count_of(collective, size.bytes, ranks_.size());
      if (count == 0) continue;
      const TimedCall call(ranks_, collective, count, symmetric);
      const auto last = last_.find({collective, symmetric});
      const bool decided = size.most_methods > 0 && last != last_.end();
      const std::vector<Method> tried =
          decided ? promising(times_[last->second], size.times_slower, size.most_methods) : methods(call);
      const Method so_far = call.chosen();
      CallTimes times = call.time(tried, effort_for(size.bytes));
      if (times.methods.empty()) times = call.time(methods(call), effort_for(size.bytes));  // packets are too small by now
      if (times.methods.empty()) continue;
      for (MethodTime& time : times.methods) time.seconds *= time.method == so_far ? loyalty : 1;
      last_[{collective, symmetric}] = times_.size();
      times_.push_back(std::move(times));
    }
    return true;
  }

  // Looks once more at each call's best methods, as far as the budget reaches: a machine that other work has slowed down for
  // a moment may be itself again.
  void look_again() {
    for (CallTimes& times : times_) {
      const std::vector<Method> best = promising(times, 2, 4);
      if (best.size() < 2) continue;
      if (is_over()) return;
      const TimedCall call(ranks_, times.request.collective, times.request.count, times.symmetric);
      const CallTimes again = call.time(best, effort_for(times.bytes));
      const Method so_far = call.chosen();
      for (MethodTime& time : times.methods) {
        time.seconds = std::min(time.seconds, again.of(time.method) * (time.method == so_far ? loyalty : 1));
      }
    }
  }
  const std::vector<CallTimes>& times() const { return times_; }

 private:
  const Effort& effort_for(std::int64_t bytes) const { return bytes >= large ? large_ : small_; }
  bool is_over() const { return on_rank_zero(ranks_, end_ - now_seconds()) < 0; }

  const Communicator& ranks_;
  Effort small_, large_;
  double end_;
  std::map<std::pair<Collective, bool>, std::size_t> last_;  // the place in times_ of the last size
  std::vector<CallTimes> times_;
};

// The methods within a node, without those whose lanes or pieces would have less than a few KiB.
std::vector<Method> sensible_methods(const TimedCall& call) {
  std::vector<Method> methods = methods_within_node(call.request().collective, call.request().count);
  const std::int64_t parts = std::max<std::int64_t>(1, call.bytes() / 8192);
  std::erase_if(methods, [&](const Method& method) { return method.pieces > parts || method.lanes > parts; });
  return methods;
}

// Empty if the machine was too slow, or too busy, to get as far as a table must reach.
std::optional<MeasuredRoute> within_node(const Communicator& node, double ranks_per_core) {
  constexpr Size sizes[] = {{8, 0, 0},           {512, 0, 0},       {4 << 10, 0, 0},   {32 << 10, 0, 0},
                            {256 << 10, 4, 100}, {2 << 20, 2.5, 5}, {16 << 20, 1.3, 2}};
  const double most = on_rank_zero(node, std::min(most_memory / node.size(), number_setting("STRETTO_HEAP_BYTES") / 4));
  Sweep sweep(node, small_within, large_within, budget_within);
  std::int64_t reached = 0;
  for (const Size& size : sizes) {
    if (2 * static_cast<double>(size.bytes) > most) break;  // an input and an output
    if (!sweep.add(size, false, sensible_methods) || !sweep.add(size, true, sensible_methods)) break;
    reached = size.bytes;
  }
  if (reached < must_reach) return std::nullopt;
  sweep.look_again();
  return measured_route("shm", node.size(), ranks_per_core, sweep.times(), reach);
}

// The costs of such a route, with latency and bandwidth as they are between the first ranks of the first two nodes.
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

// The methods that the model expects to be fastest: of each kind one in a single lane, and one in several.
std::vector<Method> best_by_model(const TimedCall& call, Communicator::Group& group, const Selector& selector) {
  const PlanRequest& plain = call.request();
  PlanRequest request = group.planner().request_of({.collective = plain.collective, .count = plain.count}, {});
  request.rank = 0;
  const Choice choice =
      selector.choose(request, DType::f32, ReduceOp::sum, group.planner().nodes(), group.links(), false, false);
  std::set<std::tuple<Algorithm, Algorithm, Algorithm, bool>> kinds;
  std::vector<Method> methods;
  if (choice.candidates.empty()) methods.push_back(choice.method);
  for (const Candidate& candidate : choice.candidates) {
    const Method& method = candidate.method;
    const bool is_new = kinds.insert({method.algorithm, method.inside, method.between, method.lanes > 1}).second;
    if (is_new && methods.size() < 5) methods.push_back(method);
  }
  return methods;
}

std::optional<std::string> table_between_nodes(const Communicator& world, const Selector& selector) {
  constexpr Size sizes[] = {{64, 0, 0}, {8 << 10, 0, 0}, {128 << 10, 0, 0}, {1 << 20, 0, 0}, {8 << 20, 1.5, 3}};
  Communicator::Group& group = Communicator::Group::of(world);
  Sweep sweep(world, small_between, large_between, budget_between);
  std::int64_t reached = 0;
  for (const Size& size : sizes) {
    if (!sweep.add(size, false, [&](const TimedCall& call) { return best_by_model(call, group, selector); })) break;
    reached = size.bytes;
  }
  if (reached < must_reach) return std::nullopt;
  sweep.look_again();
  return table_of(sweep.times(), reach);
}

}  // namespace

void calibrate_if_unknown(const Communicator& world) {
  Communicator::Group& group = Communicator::Group::of(world);
  RankContext& context = group.context();
  Selector& selector = context.selector();
  if (world.size() == 1 || !selector.may_calibrate()) return;
  // On links, nodes and routes that a setting invents, the machine itself is not to be seen.
  const bool is_real = setting("STRETTO_LINKS").empty() && setting("STRETTO_RANKS_PER_NODE") == "0" &&
                       setting("STRETTO_NODES_PER_POD") == "0" && setting("STRETTO_TRANSPORT") == "auto" &&
                       !context.checks_calls();
  const int on_node = group.planner().request_of({}, {}).ranks_per_node;  // 0: nodes differ
  if (!is_real || on_node == 0) return;
  const bool several = !selector.one_host();
  const bool measures_node = on_node > 1 && !selector.knows("shm", on_node, 0);
  const bool measures_network = several && !selector.knows("network", world.size(), on_node);
  if (!measures_node && !measures_network) return;

  const MeasurementCache cache(several);
  const double begin = now_seconds();
  const Selector::Unruled unruled(selector);
  std::vector<std::string> found;
  // All ranks learn the route that rank 0 has measured. Empty: it got nowhere.
  const auto learn = [&](const std::string& mine) {
    std::string route = same_text(context, mine);
    if (!route.empty()) selector.learn(fmt::format(R"({{"routes": [{}]}})", route), cache.path());
    return route;
  };
  const double per_core = selector.ranks_per_core();
  {
    const Communicator ranks = world.duplicate("calibration");
    if (measures_node) {
      std::optional<MeasuredRoute> route = within_node(several ? ranks.node() : ranks, per_core);
      if (route) route->route.cost.quantize = selector.tuning().nearest("shm", on_node, per_core).cost.quantize;
      found.push_back(learn(route ? route->to_json() : ""));
    }
    if (measures_network) {
      const LinkCost told = selector.tuning().nearest("network", world.size(), per_core).cost;
      const LinkCost measured = between_nodes(ranks, told);
      MeasuredRoute network;
      network.route = {.route = "network",
                       .ranks = world.size(),
                       .ranks_per_node = on_node,
                       .ranks_per_core = per_core,
                       .cost = std::getenv("STRETTO_NETWORK") != nullptr ? told : measured};
      learn(network.to_json());
      const std::optional<std::string> table = table_between_nodes(ranks, selector);
      network.table = table.value_or("");
      found.push_back(learn(table ? network.to_json() : ""));
    }
  }
  context.ledger().begin_again();
  if (world.rank() != 0) return;
  const std::string took = fmt::format("with {} ranks in {:.1f} s", world.size(), now_seconds() - begin);
  if (std::erase(found, "") > 0) {
    log().info("The machine was too busy to be measured {}; the next job tries again.", took);
  } else {
    log().info("Measured this machine {}.", took);
  }
  if (!found.empty()) cache.add(found);
}

}  // namespace stretto
