#include "collectives/calibration/self_calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/calibration/route_measurement.hpp"
#include "collectives/communicator/group.hpp"
#include "collectives/selection/measurement_cache.hpp"
#include "core/fail.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

// Small calls may take three times as long. A job on several hosts divides its time between the calls within each host and
// those between hosts, which get at least 0.8 s, and small ones 2.4 s.
constexpr Budget budget_of_one_host{1.8}, budget_within_several{0.6, 3.6};
constexpr double seconds_of_several = 2, least_seconds_between = 0.8;
constexpr double patience = 10;  // seconds to wait for another job that measures; a measurement takes at most about six

// Collective: returns rank 0's text.
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
        cache_(several_) {}

  void run() {
    if ((!must_ && !lacks_any()) || !takes_turn()) return;
    if (!must_) {  // another job may have measured since this one began
      learn(is_first() ? cache_.read(false) : "");
      if (!lacks_any()) return;
    }
    const double begin = now_seconds();
    end_ = begin + seconds_of_several;
    info("Measuring this machine with {} ranks.", world_.size());
    {
      const Selector::WithoutUserRules without_rules(selector_);
      if (lacks_node()) measure_node();
      if (lacks_network()) measure_network();
    }
    Communicator::Group::of(world_).forget_plans();  // made without the user's rules
    world_.barrier(Stream::inline_()).wait();        // all have left it
    context_.network().collect_retired();
    context_.ledger().begin_again();
    if (!is_first()) return;
    info("Measured this machine with {} ranks in {:.1f} s: {}.", world_.size(), now_seconds() - begin,
         fmt::join(reached_, "; "));
    if (routes_.empty() || cache_.add(routes_)) return;
    log().warn("{} cannot be written: later jobs measure this machine again.", cache_.path());
  }

 private:
  bool is_first() const { return world_.rank() == 0; }
  bool lacks_node() const { return on_node_ > 1 && !selector_.has_measured("shm", on_node_, 0); }
  bool lacks_network() const { return several_ && !selector_.has_measured("network", world_.size(), on_node_); }
  bool lacks_any() const { return lacks_node() || lacks_network(); }
  template <class... Values>
  void info(fmt::format_string<Values...> text, Values&&... values) const {
    if (is_first()) log().info("{}", fmt::format(text, std::forward<Values>(values)...));
  }

  // Returns whether this job is to measure. Waits for another job that measures, in short steps, since ranks must not wait
  // in one exchange for longer than their time for it.
  bool takes_turn() {
    const double end = now_seconds() + patience;
    while (true) {
      std::string turn;
      if (is_first()) {
        const MeasurementCache::Turn mine = cache_.take_turn();
        turn = mine == MeasurementCache::Turn::mine ? "mine" : mine == MeasurementCache::Turn::nowhere ? "nowhere" : "wait";
        if (turn == "wait" && now_seconds() > end) turn = "late";
      }
      turn = same_text(context_, turn);
      if (turn == "mine") return true;
      if (turn == "wait") {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        continue;
      }
      const std::string why =
          turn == "late"
              ? fmt::format("another job has been measuring this machine for {} s", patience)
              : fmt::format(
                    "its measurements cannot be kept in {}; set STRETTO_CACHE_DIR to a directory that can be written",
                    cache_.path().empty() ? "any directory that STRETTO_CACHE_DIR, XDG_CACHE_HOME or HOME names"
                                          : cache_.path());
      require(!must_, "STRETTO_CALIBRATE=now does not measure this machine: {}.", why);
      info("This machine is not measured: {}.", why);
      return false;
    }
  }

  // All ranks learn the tuning that rank 0 has read or measured, if it has one.
  void learn(const std::string& mine) {
    const std::string tuning = same_text(context_, mine);
    if (tuning.empty()) return;
    selector_.learn(tuning, cache_.path());
    Communicator::Group::of(world_).forget_plans();
  }
  static std::string tuning_of(const MeasuredRoute& route) { return fmt::format(R"({{"routes": [{}]}})", route.to_json()); }

  // Rank 0's route counts. Without times, the route has the costs and tables by which this job already chose, and is kept
  // all the same: later jobs choose as this one does. A measurement that the user asked for replaces no earlier one without
  // times.
  void keep(const MeasuredRoute& route, const std::string& what, const std::vector<CallTimes>& times) {
    learn(is_first() ? tuning_of(route) : "");
    if (!times.empty() || !must_) routes_.push_back(route.to_json());
    reached_.push_back(times.empty() ? fmt::format("{}: too busy, so that the costs stay as they were", what)
                                     : fmt::format("{} up to {} B", what, most_bytes(times)));
  }

  // A new communicator after each learn(): it has no plans by older costs.
  Communicator ranks_that_measure() const { return world_.duplicate("calibration"); }

  void measure_node() {
    const Communicator ranks = ranks_that_measure();
    const std::vector<CallTimes> times =
        several_ ? times_within_node(ranks.node(), budget_within_several) : times_within_node(ranks, budget_of_one_host);
    MeasuredRoute route = unmeasured_route(selector_.tuning(), "shm", on_node_, per_core_);
    if (!times.empty()) {
      const double quantize = route.route.cost.quantize;
      route = measured_route("shm", on_node_, per_core_, times, reach_within);
      route.route.cost.quantize = quantize;
    }
    keep(route, fmt::format("shm, {} ranks, {:.3g} per core", on_node_, per_core_), times);
  }

  void measure_network() {
    const LinkCost assumed = selector_.tuning().nearest("network", world_.size(), per_core_).cost;
    const LinkCost measured = between_nodes(ranks_that_measure(), assumed);
    MeasuredRoute network;
    network.route = {.route = "network",
                     .ranks = world_.size(),
                     .ranks_per_node = on_node_,
                     .ranks_per_core = per_core_,
                     .cost = std::getenv("STRETTO_NETWORK") != nullptr ? assumed : measured};
    learn(tuning_of(network));  // the methods to be timed follow from it
    const Budget budget{std::max(least_seconds_between, end_ - now_seconds())};
    const std::vector<CallTimes> times = times_between_nodes(ranks_that_measure(), selector_, measured.beta, budget);
    network.table = table_of(times, reach_between);
    keep(network, fmt::format("network, {} ranks, {} per host, {:.3g} per core", world_.size(), on_node_, per_core_), times);
  }

  const Communicator& world_;
  RankContext& context_;
  Selector& selector_;
  int on_node_;
  bool several_ = !selector_.one_host();
  double per_core_ = selector_.ranks_per_core();
  bool must_ = setting("STRETTO_CALIBRATE") == "now";  // the user has asked for a measurement
  MeasurementCache cache_;
  std::vector<std::string> routes_;   // of a tuning file
  std::vector<std::string> reached_;  // for the log
  double end_ = 0;
};

// A stopped rank holds up others, and these hold up still others: an operation's timeout may name a rank that only waits.
// The job hears every rank, and fails within two seconds after the timeout with a sentence about the silent one.
void wait_for_the_jobs_own_sentence(const JobControl& job) {
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
  // Settings that invent links, nodes or routes hide the machine itself.
  const bool is_real = setting("STRETTO_LINKS").empty() && setting("STRETTO_RANKS_PER_NODE") == "0" &&
                       setting("STRETTO_NODES_PER_POD") == "0" && setting("STRETTO_TRANSPORT") == "auto" &&
                       !context.checks_calls();
  const int on_node = group.planner().request_of({}, {}).ranks_per_node;  // 0: nodes differ
  if (!is_real || on_node == 0) {
    require(setting("STRETTO_CALIBRATE") != "now", "STRETTO_CALIBRATE=now cannot measure this machine{}; leave it out.",
            on_node == 0 ? ": its hosts have different numbers of ranks"
                         : " beside STRETTO_LINKS, STRETTO_RANKS_PER_NODE, STRETTO_NODES_PER_POD, STRETTO_TRANSPORT or "
                           "STRETTO_CHECK");
    return;
  }
  try {
    SelfCalibration(world, on_node).run();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) wait_for_the_jobs_own_sentence(context.job());
    throw;
  }
}

}  // namespace stretto
