#include "collectives/selection/select.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>

#include "collectives/selection/choose_costs.hpp"
#include "collectives/selection/measurement_cache.hpp"
#include "core/fail.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

// Settings that change the ranks' joint behaviour, and so must be the same on all ranks.
constexpr const char* common_settings[] = {"STRETTO_ALGO",      "STRETTO_DETERMINISTIC",  "STRETTO_CHECK",
                                           "STRETTO_TRANSPORT", "STRETTO_RANKS_PER_NODE", "STRETTO_NODES_PER_POD",
                                           "STRETTO_LINKS",     "STRETTO_NETWORK",        "STRETTO_CALIBRATE"};

// Every rank sends this to all others.
struct RankSettings {
  std::array<std::string, std::size(common_settings)> common;
  std::string ranks_per_core;
  bool one_host = true;
  // Only rank 0's count:
  std::string tuning_file, tuning;    // its path, which is empty for the tuning that is shipped, and its text
  std::string measured, measured_in;  // the text of its measurement cache, and the path
  bool may_calibrate = false;
};

// One text after the other, each ended by a zero byte, which no setting contains.
Bytes packed(const RankSettings& settings) {
  std::string text;
  for (const std::string& value : settings.common) text += value + '\0';
  text += settings.ranks_per_core + '\0' + (settings.one_host ? '1' : '0') + '\0' + settings.tuning_file + '\0' +
          settings.tuning + '\0';
  text += settings.measured + '\0' + settings.measured_in + '\0' + (settings.may_calibrate ? '1' : '0') + '\0';
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

RankSettings unpacked(const Bytes& bytes) {
  std::string_view rest(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto take = [&] {
    const std::size_t end = rest.find('\0');
    ensure(end != std::string_view::npos, "A rank's settings end early; the builds of Stretto differ.");
    std::string text(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    return text;
  };
  RankSettings settings;
  for (std::string& value : settings.common) value = take();
  settings.ranks_per_core = take();
  settings.one_host = take() == "1";
  settings.tuning_file = take();
  settings.tuning = take();
  settings.measured = take();
  settings.measured_in = take();
  settings.may_calibrate = take() == "1";
  return settings;
}

// In seconds. A message costs a system call at either end, but the fit to calls over loopback may find no cost at all:
// pieces would then seem to be free, however small.
constexpr double least_overhead_between_hosts = 1e-6;

// Adds a route with the speed of a setting; its other costs are those measured on the route `below`. The rules of that route
// are left out, because they hold for its speed only.
std::string add_route(Tuning& tuning, const std::string& below, const char* name, const LinkSpeed& speed) {
  const std::vector<RouteCost> measured = tuning.routes;
  for (RouteCost route : measured) {
    if (route.route != below) continue;
    route.route = name;
    route.cost.alpha = speed.latency;
    route.cost.beta = 1 / speed.bytes_per_second;
    route.cost.lane_gain = 0;
    route.rules.clear();
    route.symmetric_rules.clear();
    tuning.routes.push_back(route);
  }
  return name;
}

// Adds assumed costs of a route that was not measured: a round is one launch of messages and one of a kernel, and bytes go
// over NVLink. They decide between plans if the links do not perform a call as one operation.
void add_gpu_route(Tuning& tuning) {
  const bool known =
      std::any_of(tuning.routes.begin(), tuning.routes.end(), [](const RouteCost& each) { return each.route == "gpu"; });
  if (known) return;
  RouteCost route{.route = "gpu"};
  route.cost = {.alpha = 10e-6, .overhead = 2e-6, .beta = 1 / 150e9, .gamma = 1 / 1.5e12, .quantize = 4 / 1.5e12};
  tuning.routes.push_back(route);
}

// Whether each server, behind the ranks with vectors, is on a node without other ranks.
bool are_servers_apart(const PlanRequest& request, const std::vector<int>& nodes) {
  return std::all_of(nodes.end() - request.servers, nodes.end(),
                     [&](int node) { return std::count(nodes.begin(), nodes.end(), node) == 1; });
}

bool on_several_nodes(const std::vector<int>& nodes) { return *std::max_element(nodes.begin(), nodes.end()) > 0; }

}  // namespace

Selector::Selector(JobControl& job, const Network& network) : explains_(setting("STRETTO_EXPLAIN") == "1") {
  RankSettings mine;
  std::transform(std::begin(common_settings), std::end(common_settings), mine.common.begin(),
                 [](const char* name) { return setting(name); });
  mine.ranks_per_core = fmt::format("{}", network.ranks_per_core());  // with enough digits to identify the number
  mine.one_host = network.one_host();
  const std::string calibrates = setting("STRETTO_CALIBRATE");
  // With STRETTO_DETERMINISTIC=1 no measurement decides, neither on methods nor on the number of chunks of a product.
  const bool deterministic = setting("STRETTO_DETERMINISTIC") == "1";
  require(!deterministic || calibrates != "now",
          "STRETTO_CALIBRATE=now measures what STRETTO_DETERMINISTIC=1 would not use; leave one of them out.");
  if (job.rank() == 0) {
    const std::string named = setting("STRETTO_TUNING");
    mine.tuning_file = Tuning::file_from_environment();
    if (mine.tuning_file != named) {
      log().warn("STRETTO_TUNING={} is not used, since nothing measured decides with STRETTO_DETERMINISTIC=1.", named);
    }
    mine.tuning = Tuning::text_from_environment();
    const bool reads_cache = calibrates == "auto" && mine.tuning_file.empty() && !deterministic;
    mine.may_calibrate = calibrates == "now" || reads_cache;
    if (reads_cache) {
      const MeasurementCache cache(!mine.one_host);
      mine.measured = cache.read();
      mine.measured_in = cache.path();
    }
  }
  const RankSettings first = unpacked(job.exchange(packed(mine))[0]);
  for (std::size_t i = 0; i < mine.common.size(); ++i) {
    require(first.common[i] == mine.common[i], "{}='{}' on rank {}, but '{}' on rank 0; give all ranks the same.",
            common_settings[i], mine.common[i], job.rank(), first.common[i]);
  }
  circumstances_.reads_memory = network.reads_memory();
  const std::string& ranks_per_core = first.ranks_per_core;
  std::from_chars(ranks_per_core.data(), ranks_per_core.data() + ranks_per_core.size(), circumstances_.ranks_per_core);
  circumstances_.route_inside = setting("STRETTO_TRANSPORT") == "ucx" ? "ucx" : "shm";
  circumstances_.route_between = first.one_host ? circumstances_.route_inside : "network";
  one_host_ = first.one_host;
  may_calibrate_ = first.may_calibrate;
  tuning_file_ = first.tuning_file;
  links_ = network.link_setting();
  use(first.tuning, tuning_file_);
  if (!first.measured.empty()) learn(first.measured, first.measured_in);
}

void Selector::use(const std::string& file, const std::string& source) {
  tuning_ = Tuning::with_settings(file, source);
  file_ = file;
  learnt_.clear();
  measured_here_ = 0;
  const auto is_network = [](const RouteCost& route) { return route.route == "network"; };
  if (std::getenv("STRETTO_NETWORK") != nullptr) std::erase_if(tuning_.routes, is_network);  // the setting has precedence
  if (std::none_of(tuning_.routes.begin(), tuning_.routes.end(), is_network)) {
    add_route(tuning_, "ucx", "network", network_speed_from_text(setting("STRETTO_NETWORK")));
    for (RouteCost& route : tuning_.routes) {
      if (is_network(route)) route.cost.overhead = std::max(route.cost.overhead, least_overhead_between_hosts);
    }
  }
  add_gpu_route(tuning_);
  if (links_.inter) circumstances_.route_between = add_route(tuning_, "shm", "modelled inter", *links_.inter);
  if (links_.intra) circumstances_.route_inside = add_route(tuning_, "shm", "modelled intra", *links_.intra);
}

bool Selector::has_measured(const std::string& route, int ranks, int ranks_per_node) const {
  const auto end = tuning_.routes.begin() + static_cast<std::ptrdiff_t>(measured_here_);
  return std::any_of(tuning_.routes.begin(), end, [&](const RouteCost& known) {
    return known.route == route && known.ranks == ranks && known.ranks_per_node == ranks_per_node &&
           std::abs(known.ranks_per_core / circumstances_.ranks_per_core - 1) < 0.01;
  });
}

void Selector::learn(const std::string& tuning, const std::string& source) {
  const std::vector<RouteCost> routes = Tuning::from_json(tuning, source).routes;
  tuning_.routes.insert(tuning_.routes.begin(), routes.begin(), routes.end());
  measured_here_ += routes.size();
  learnt_.push_back(tuning);
}

Selector::WithoutUserRules::WithoutUserRules(Selector& selector)
    : selector_(selector),
      rules_(std::exchange(selector.tuning_.rules, {})),
      explains_(std::exchange(selector.explains_, false)) {}

Selector::WithoutUserRules::~WithoutUserRules() {
  selector_.tuning_.rules = std::move(rules_);
  selector_.explains_ = explains_;
}

Choice Selector::choose(const PlanRequest& request, DType dtype, ReduceOp op, const std::vector<int>& nodes,
                        const Links& links, bool symmetric, bool may_be_plain) const {
  Circumstances circumstances = circumstances_;
  circumstances.several_nodes = on_several_nodes(nodes);
  circumstances.servers_apart = are_servers_apart(request, nodes);
  circumstances.shares_memory = links.shares_memory();
  circumstances.symmetric = symmetric;
  return stretto::choose(request, dtype, op, tuning_, circumstances, may_be_plain);
}

Choice Selector::choose_on_gpus(const PlanRequest& request, DType dtype, ReduceOp op, const std::vector<int>& nodes,
                                bool done_whole, bool may_be_plain) const {
  Circumstances circumstances = circumstances_on_gpus(nodes);
  circumstances.servers_apart = are_servers_apart(request, nodes);
  circumstances.done_whole = done_whole;
  return stretto::choose(request, dtype, op, tuning_, circumstances, may_be_plain);
}

Circumstances Selector::circumstances_on_gpus(const std::vector<int>& nodes) const {
  Circumstances circumstances = circumstances_;
  circumstances.several_nodes = on_several_nodes(nodes);
  circumstances.route_inside = "gpu";
  circumstances.ranks_per_core = 1;
  circumstances.shares_memory = circumstances.symmetric = circumstances.reads_memory = false;
  circumstances.on_gpus = true;
  return circumstances;
}

double Selector::seconds(const PlanRequest& request, DType wire, const std::vector<int>& nodes, bool on_gpus) const {
  Circumstances circumstances = on_gpus ? circumstances_on_gpus(nodes) : circumstances_;
  circumstances.several_nodes = on_several_nodes(nodes);
  const KnownCosts costs = KnownCosts::of(request, tuning_, circumstances);
  if (!has_steps(request.method.algorithm)) return whole_collective_seconds(request, costs.inside.cost, wire);
  if (!is_message(request.collective)) return costs.seconds_of(request, wire);
  const auto node_of = [&](int rank) { return nodes[static_cast<std::size_t>(rank)]; };
  const RouteCost& route = node_of(request.rank) == node_of(request.root) ? costs.inside : costs.between;
  return stretto::seconds(cost_of(request), route.cost, static_cast<double>(size_of(wire)));
}

}  // namespace stretto
