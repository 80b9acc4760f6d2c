#include "collectives/calibration/self_calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/calibration/kept_times.hpp"
#include "collectives/calibration/measuring_turn.hpp"
#include "collectives/calibration/route_measurement.hpp"
#include "collectives/communicator/group.hpp"
#include "collectives/selection/measurement_cache.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

// Two seconds, and three times as long for small calls. On several hosts this is shared between the calls within each host
// and those between hosts, for which 0.8 s are left at least, 2.4 s for small ones.
constexpr Budget budget_of_one_host{1.8}, budget_within_several{0.6, 3.6};
constexpr double seconds_of_several = 2, least_seconds_between = 0.8;
constexpr double patience = 10;        // seconds to wait for another job that measures; a measurement takes a few
constexpr double pause_between = 600;  // seconds until a later job measures once more, when the machine may do other things

// Rank 0's text.
std::string same_text(RankContext& context, const std::string& mine) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(mine.data());
  const Bytes first = context.job().exchange(Bytes(bytes, bytes + mine.size()))[0];
  return {reinterpret_cast<const char*>(first.data()), first.size()};
}

std::int64_t most_bytes(const std::vector<CallTimes>& all) {
  return std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; })->bytes;
}

// A job's measurement at its start: of the ranks of a node, and between nodes.
class SelfCalibration {
 public:
  SelfCalibration(const Communicator& world, int on_node)
      : world_(world),
        context_(Communicator::Group::of(world).context()),
        selector_(context_.selector()),
        on_node_(on_node),
        cache_(several_),
        turn_(cache_.path().empty() ? "" : cache_.path() + ".turn"),
        times_(cache_.path().empty() ? "" : cache_.path() + ".times") {}

  void run() {
    const bool lacks_any = lacks_node() || lacks_network();
    if (!lacks_any && !may_repeat(node_measurements()) && !may_repeat(network_measurements())) return;
    const bool must = setting("STRETTO_CALIBRATE") == "now";
    if (!takes_turn(lacks_any ? patience : 0) && !must) {
      if (lacks_any) {
        info("Another job has been measuring this machine for {} s; this one goes on without measurements.", patience);
      }
      return;
    }
    const double begin = now_seconds();
    // Another job may have measured since this one began.
    if (lacks_any && !must) learn(is_first() ? cache_.read(false) : "");
    const bool measures_node = must ? lacks_node() : is_due(node_name(), node_measurements());
    const bool measures_network = must ? lacks_network() : is_due(network_name(), network_measurements());
    if (!measures_node && !measures_network) return;
    end_ = now_seconds() + seconds_of_several;
    info("Measuring this machine with {} ranks.", world_.size());
    {
      const Selector::Unruled unruled(selector_);
      if (measures_node) measure_node(ranks_that_measure());
      if (measures_network) measure_network();
    }
    Communicator::Group::of(world_).forget_plans();  // made without the user's rules
    world_.barrier(Stream::inline_()).wait();        // all have left it
    context_.network().collect_retired();
    context_.ledger().begin_again();
    if (!is_first()) return;
    const std::string took = fmt::format("with {} ranks in {:.1f} s", world_.size(), now_seconds() - begin);
    const char* const busy = routes_.empty() ? "too busy to be measured" : "too busy for a part of the measurement";
    if (!is_busy_) {
      info("Measured this machine {}: {}.", took, fmt::join(reached_, "; "));
    } else if (pause_ > 0) {
      info("The machine was {} {}; jobs try again in {:.0f} min.", busy, took, pause_ / 60);
    } else {
      info("The machine was {} {}; the next job tries again.", busy, took);
    }
    if (routes_.empty()) return;
    for (const auto& [what, times] : found_) {
      times_.write(what, times);
      if (times.measurements < KeptTimes::enough) turn_.put_off(repetition(what), pause_between);
    }
    cache_.add(routes_);
  }

 private:
  bool is_first() const { return world_.rank() == 0; }
  // How many measurements this job has found; as many as any job makes where nothing is to be measured.
  int node_measurements() const { return on_node_ > 1 ? selector_.measurements("shm", on_node_, 0) : KeptTimes::enough; }
  int network_measurements() const {
    return several_ ? selector_.measurements("network", world_.size(), on_node_) : KeptTimes::enough;
  }
  bool lacks_node() const { return node_measurements() == 0; }
  bool lacks_network() const { return network_measurements() == 0; }
  static bool may_repeat(int measurements) { return measurements > 0 && measurements < KeptTimes::enough; }
  std::string node_name() const { return fmt::format("shm, {} ranks, {:.3g} per core", on_node_, per_core_); }
  std::string network_name() const {
    return fmt::format("network, {} ranks, {} per host, {:.3g} per core", world_.size(), on_node_, per_core_);
  }
  template <class... Values>
  void info(fmt::format_string<Values...> text, Values&&... values) const {
    if (is_first()) log().info("{}", fmt::format(text, std::forward<Values>(values)...));
  }

  // In short steps, since ranks must not wait in one exchange for longer than their time for it.
  bool takes_turn(double seconds) {
    const double end = now_seconds() + seconds;
    while (true) {
      std::string mine;
      if (is_first()) mine = turn_.take(std::min(0.2, seconds)) ? "taken" : now_seconds() < end ? "wait" : "not taken";
      const std::string first = same_text(context_, mine);
      if (first != "wait") return first == "taken";
    }
  }

  static std::string repetition(const std::string& what) { return what + ", once more"; }

  bool is_due(const std::string& what, int measurements) {
    if (measurements >= KeptTimes::enough) return false;
    const double wait = is_first() ? turn_.seconds_to_wait(what) : 0;
    if (wait > 0 && measurements == 0) {
      info("The machine was too busy to be measured ({}); jobs try again in {:.0f} min.", what, std::ceil(wait / 60));
    }
    const bool waits = wait > 0 || (is_first() && measurements > 0 && turn_.seconds_to_wait(repetition(what)) > 0);
    return same_text(context_, waits ? "" : "due") == "due";
  }

  // All ranks learn the tuning that rank 0 has read or measured, if it has one.
  void learn(const std::string& mine) {
    const std::string tuning = same_text(context_, mine);
    if (tuning.empty()) return;
    selector_.learn(tuning, cache_.path());
    Communicator::Group::of(world_).forget_plans();
  }
  static std::string tuning_of(const MeasuredRoute& route) { return fmt::format(R"({{"routes": [{}]}})", route.to_json()); }

  // All ranks get rank 0's earlier measurements, joined into one.
  std::vector<CallTimes> known(const KeptTimes& kept) {
    KeptTimes joined;
    if (is_first()) joined.add(kept.joined());
    const KeptTimes same = KeptTimes::from_json(same_text(context_, joined.to_json()));
    std::vector<CallTimes> all;
    for (const std::vector<CallTimes>& call : same.calls) all.push_back(call.front());
    return all;
  }
  KeptTimes kept(const std::string& what) const { return is_first() ? times_.read(what) : KeptTimes{}; }

  // route: of these times, which are empty if the machine was too busy. Rank 0's route counts, in which earlier measurements
  // have their part.
  void add(const std::string& what, KeptTimes all, const std::vector<CallTimes>& times,
           const std::function<MeasuredRoute(const std::vector<CallTimes>&)>& route_of) {
    const bool in_vain = times.empty();
    std::string found = is_first() && in_vain ? cache_.read(false) : "";  // what the costs alone would take the place of
    if (is_first() && !in_vain) {
      all.add(times);
      MeasuredRoute route = route_of(all.joined());
      route.route.measurements = all.measurements;
      routes_.push_back(route.to_json());
      found_.emplace_back(what, std::move(all));
      reached_.push_back(fmt::format("{} up to {} B", what, most_bytes(times)));
      found = tuning_of(route);
    }
    learn(found);
    is_busy_ = is_busy_ || in_vain;
    if (is_first()) pause_ = std::max(pause_, turn_.note(what, in_vain));
  }

  // A new communicator after each learn(): it has no plans by older costs.
  Communicator ranks_that_measure() const { return world_.duplicate("calibration"); }

  void measure_node(const Communicator& ranks) {
    const KeptTimes earlier = kept(node_name());
    const std::vector<CallTimes> times = several_ ? times_within_node(ranks.node(), budget_within_several, known(earlier))
                                                  : times_within_node(ranks, budget_of_one_host, known(earlier));
    add(node_name(), earlier, times, [&](const std::vector<CallTimes>& calls) {
      MeasuredRoute route = measured_route("shm", on_node_, per_core_, calls, reach_within);
      route.route.cost.quantize = selector_.tuning().nearest("shm", on_node_, per_core_).cost.quantize;
      return route;
    });
  }

  void measure_network() {
    const LinkCost told = selector_.tuning().nearest("network", world_.size(), per_core_).cost;
    const LinkCost measured = between_nodes(ranks_that_measure(), told);
    MeasuredRoute network;
    network.route = {.route = "network",
                     .ranks = world_.size(),
                     .ranks_per_node = on_node_,
                     .ranks_per_core = per_core_,
                     .cost = std::getenv("STRETTO_NETWORK") != nullptr ? told : measured};
    learn(tuning_of(network));  // the methods to be timed follow from it
    const Budget budget{std::max(least_seconds_between, end_ - now_seconds())};
    const KeptTimes earlier = kept(network_name());
    add(network_name(), earlier, times_between_nodes(ranks_that_measure(), selector_, measured.beta, budget, known(earlier)),
        [&](const std::vector<CallTimes>& calls) {
          network.table = table_of(calls, reach_between);
          return network;
        });
  }

  const Communicator& world_;
  RankContext& context_;
  Selector& selector_;
  int on_node_;
  bool several_ = !selector_.one_host();
  double per_core_ = selector_.ranks_per_core();
  MeasurementCache cache_;
  MeasuringTurn turn_;
  KeptTimesFile times_;
  std::vector<std::string> routes_;                       // on rank 0
  std::vector<std::pair<std::string, KeptTimes>> found_;  // of these routes
  std::vector<std::string> reached_;                      // by this measurement, for the log
  double end_ = 0;
  bool is_busy_ = false;
  double pause_ = 0;
};

// A stopped rank holds up others, and those others still, so that an operation's timeout may name a rank that only waits.
// The job hears of every rank, and fails within two seconds behind the timeout with a sentence about the one that is silent.
void wait_for_the_jobs_own_sentence(const Job& job) {
  const double end = now_seconds() + 3;
  while (now_seconds() < end) {
    job.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

void calibrate_if_unknown(const Communicator& world) {
  Communicator::Group& group = Communicator::Group::of(world);
  RankContext& context = group.context();
  if (world.size() == 1 || !context.selector().may_calibrate()) return;
  // On links, nodes and routes that a setting invents, the machine itself is not to be seen.
  const bool is_real = setting("STRETTO_LINKS").empty() && setting("STRETTO_RANKS_PER_NODE") == "0" &&
                       setting("STRETTO_NODES_PER_POD") == "0" && setting("STRETTO_TRANSPORT") == "auto" &&
                       !context.checks_calls();
  const int on_node = group.planner().request_of({}, {}).ranks_per_node;  // 0: nodes differ
  if (!is_real || on_node == 0) return;
  try {
    SelfCalibration(world, on_node).run();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) wait_for_the_jobs_own_sentence(context.job());
    throw;
  }
}

}  // namespace stretto
