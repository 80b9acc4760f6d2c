#include "collectives/calibration/self_calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include "collectives/calibration/measuring_turn.hpp"
#include "collectives/calibration/route_measurement.hpp"
#include "collectives/communicator/group.hpp"
#include "collectives/selection/measurement_cache.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

// Seconds for a measurement: on one host; and on several, of which so many are for the ranks of a host.
constexpr double budget_of_one_host = 1.8, budget_of_several = 2, budget_within_several = 0.6, least_budget_between = 0.8;
constexpr double patience = 10;  // seconds to wait for another job that measures; a measurement takes a few

// Rank 0's text.
std::string same_text(RankContext& context, const std::string& mine) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(mine.data());
  const Bytes first = context.job().exchange(Bytes(bytes, bytes + mine.size()))[0];
  return {reinterpret_cast<const char*>(first.data()), first.size()};
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
        turn_(cache_.path().empty() ? "" : cache_.path() + ".turn") {}

  void run() {
    if (!lacks_node() && !lacks_network()) return;
    const bool must = setting("STRETTO_CALIBRATE") == "now";
    if (!takes_turn() && !must) {
      info("Another job has been measuring this machine for {} s; this one goes on without measurements.", patience);
      return;
    }
    const double begin = now_seconds();
    // Another job may have measured since this one began.
    if (!must) learn(is_first() ? cache_.read(false) : "");
    const bool measures_node = lacks_node() && (must || is_due(node_name()));
    const bool measures_network = lacks_network() && (must || is_due(network_name()));
    if (!measures_node && !measures_network) return;
    end_ = now_seconds() + budget_of_several;
    info("Measuring this machine with {} ranks.", world_.size());
    {
      const Selector::Unruled unruled(selector_);
      const Communicator ranks = world_.duplicate("calibration");
      if (measures_node) add(node_name(), node_route(ranks));
      if (measures_network) add(network_name(), network_route(ranks));
    }
    world_.barrier(Stream::inline_()).wait();  // all have left it
    context_.network().collect_retired();
    context_.ledger().begin_again();
    if (!is_first()) return;
    const std::string took = fmt::format("with {} ranks in {:.1f} s", world_.size(), now_seconds() - begin);
    if (!is_busy_) {
      info("Measured this machine {}.", took);
    } else if (pause_ > 0) {
      info("The machine was too busy to be measured {}; jobs try again in {:.0f} min.", took, pause_ / 60);
    } else {
      info("The machine was too busy to be measured {}; the next job tries again.", took);
    }
    if (!found_.empty()) cache_.add(found_);
  }

 private:
  bool is_first() const { return world_.rank() == 0; }
  bool lacks_node() const { return on_node_ > 1 && !selector_.knows("shm", on_node_, 0); }
  bool lacks_network() const { return several_ && !selector_.knows("network", world_.size(), on_node_); }
  std::string node_name() const { return fmt::format("shm, {} ranks, {:.3g} per core", on_node_, per_core_); }
  std::string network_name() const {
    return fmt::format("network, {} ranks, {} per host, {:.3g} per core", world_.size(), on_node_, per_core_);
  }
  template <class... Values>
  void info(fmt::format_string<Values...> text, Values&&... values) const {
    if (is_first()) log().info("{}", fmt::format(text, std::forward<Values>(values)...));
  }

  // In short steps, since ranks must not wait in one exchange for longer than their time for it.
  bool takes_turn() {
    const double end = now_seconds() + patience;
    while (true) {
      std::string mine;
      if (is_first()) mine = turn_.take(0.2) ? "taken" : now_seconds() < end ? "wait" : "not taken";
      const std::string first = same_text(context_, mine);
      if (first != "wait") return first == "taken";
    }
  }

  bool is_due(const std::string& what) {
    const double wait = is_first() ? turn_.seconds_to_wait(what) : 0;
    if (wait > 0)
      info("The machine was too busy to be measured ({}); jobs try again in {:.0f} min.", what, std::ceil(wait / 60));
    return same_text(context_, wait > 0 ? "" : "due") == "due";
  }

  // All ranks learn the tuning that rank 0 has read or measured. Returns false if it has none.
  bool learn(const std::string& mine) {
    const std::string tuning = same_text(context_, mine);
    if (!tuning.empty()) selector_.learn(tuning, cache_.path());
    return !tuning.empty();
  }
  static std::string tuning_of(const MeasuredRoute& route) { return fmt::format(R"({{"routes": [{}]}})", route.to_json()); }

  // route: empty if the machine was too busy. Rank 0's counts.
  void add(const std::string& what, const std::optional<MeasuredRoute>& route) {
    const bool in_vain = !learn(route ? tuning_of(*route) : "");
    if (!is_first()) return;
    if (!in_vain) found_.push_back(route->to_json());
    is_busy_ = is_busy_ || in_vain;
    pause_ = std::max(pause_, turn_.note(what, in_vain));
  }

  std::optional<MeasuredRoute> node_route(const Communicator& ranks) const {
    std::optional<MeasuredRoute> route = several_ ? within_node(ranks.node(), per_core_, budget_within_several)
                                                  : within_node(ranks, per_core_, budget_of_one_host);
    if (route) route->route.cost.quantize = selector_.tuning().nearest("shm", on_node_, per_core_).cost.quantize;
    return route;
  }

  std::optional<MeasuredRoute> network_route(const Communicator& ranks) {
    const LinkCost told = selector_.tuning().nearest("network", world_.size(), per_core_).cost;
    const LinkCost measured = between_nodes(ranks, told);
    MeasuredRoute network;
    network.route = {.route = "network",
                     .ranks = world_.size(),
                     .ranks_per_node = on_node_,
                     .ranks_per_core = per_core_,
                     .cost = std::getenv("STRETTO_NETWORK") != nullptr ? told : measured};
    learn(tuning_of(network));  // the methods to be timed follow from it
    const double budget = std::max(least_budget_between, end_ - now_seconds());
    const std::optional<std::string> table = table_between_nodes(ranks, selector_, measured.beta, budget);
    if (!table) return std::nullopt;
    network.table = *table;
    return network;
  }

  const Communicator& world_;
  RankContext& context_;
  Selector& selector_;
  int on_node_;
  bool several_ = !selector_.one_host();
  double per_core_ = selector_.ranks_per_core();
  MeasurementCache cache_;
  MeasuringTurn turn_;
  std::vector<std::string> found_;  // on rank 0
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
