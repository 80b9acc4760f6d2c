#include "collectives/selection/select.hpp"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "collectives/communicator/launched_group.hpp"
#include "collectives/selection/choose_costs.hpp"
#include "core/fail.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

// Settings that change what the ranks do together.
constexpr const char* common_settings[] = {"STRETTO_ALGO",      "STRETTO_DETERMINISTIC",  "STRETTO_CHECK",
                                           "STRETTO_TRANSPORT", "STRETTO_RANKS_PER_NODE", "STRETTO_NODES_PER_POD",
                                           "STRETTO_LINKS",     "STRETTO_NETWORK"};

// A route costs what a setting says, and otherwise what was measured of the one below. Rules are of that one, too: none
// holds.
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

// Until somebody has measured one: a round is a launch of NCCL's and one of a kernel, and bytes go over NVLink. It decides
// between plans where NCCL does not do a call by itself.
void add_gpu_route(Tuning& tuning) {
  const bool known =
      std::any_of(tuning.routes.begin(), tuning.routes.end(), [](const RouteCost& each) { return each.route == "gpu"; });
  if (known) return;
  RouteCost route{.route = "gpu"};
  route.cost = {.alpha = 10e-6, .overhead = 2e-6, .beta = 1 / 150e9, .gamma = 1 / 1.5e12, .quantize = 4 / 1.5e12};
  tuning.routes.push_back(route);
}

std::string text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

bool on_several_nodes(const std::vector<int>& nodes) { return *std::max_element(nodes.begin(), nodes.end()) > 0; }

}  // namespace

Selector::Selector(Job& job, const Network& network) : explains_(setting("STRETTO_EXPLAIN") == "1") {
  nlohmann::json mine;
  for (const char* name : common_settings) mine[name] = setting(name);
  mine["ranks_per_core"] = network.ranks_per_core();
  mine["one_host"] = network.one_host();
  mine["tuning"] = "";
  if (job.rank() == 0) mine["tuning"] = Tuning::text_from_environment();
  const std::string text = mine.dump();
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  const std::vector<Bytes> all = job.exchange(Bytes(bytes, bytes + text.size()));
  const auto first = nlohmann::json::parse(text_of(all[0]));
  for (const char* name : common_settings) {
    require(first.at(name) == mine.at(name), "{}='{}' on rank {}, but '{}' on rank 0; give all ranks the same.", name,
            mine.at(name).get<std::string>(), job.rank(), first.at(name).get<std::string>());
  }
  tuning_ = Tuning::from_environment(first.at("tuning"));
  circumstances_.reads_memory = network.reads_memory();
  circumstances_.ranks_per_core = first.at("ranks_per_core");
  circumstances_.route_inside = setting("STRETTO_TRANSPORT") == "ucx" ? "ucx" : "shm";
  circumstances_.route_between = first.at("one_host") ? circumstances_.route_inside : "network";
  const auto is_network = [](const RouteCost& route) { return route.route == "network"; };
  if (std::getenv("STRETTO_NETWORK") != nullptr) std::erase_if(tuning_.routes, is_network);  // what is said goes first
  if (std::none_of(tuning_.routes.begin(), tuning_.routes.end(), is_network)) {
    add_route(tuning_, "ucx", "network", network_speed_from_text(setting("STRETTO_NETWORK")));
  }
  add_gpu_route(tuning_);
  const LinkSetting& links = network.link_setting();
  if (links.inter) circumstances_.route_between = add_route(tuning_, "shm", "modelled inter", *links.inter);
  if (links.intra) circumstances_.route_inside = add_route(tuning_, "shm", "modelled intra", *links.intra);
}

Choice Selector::choose(const PlanRequest& request, DType dtype, ReduceOp op, const std::vector<int>& nodes,
                        const Links& links, bool symmetric, bool may_be_plain) const {
  Circumstances circumstances = circumstances_;
  circumstances.several_nodes = on_several_nodes(nodes);
  circumstances.shares_memory = links.shares_memory();
  circumstances.symmetric = symmetric;
  return stretto::choose(request, dtype, op, tuning_, circumstances, may_be_plain);
}

Choice Selector::choose_on_gpus(const PlanRequest& request, DType dtype, ReduceOp op, const std::vector<int>& nodes,
                                bool nccl_does, bool may_be_plain) const {
  Circumstances circumstances = circumstances_on_gpus(nodes);
  circumstances.nccl_does = nccl_does;
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
  if (request.method.algorithm == Algorithm::nccl) return nccl_seconds(request, costs.inside.cost, wire);
  if (!is_message(request.collective)) return costs.seconds_of(request, wire);
  const auto node_of = [&](int rank) { return nodes[static_cast<std::size_t>(rank)]; };
  const RouteCost& route = node_of(request.rank) == node_of(request.root) ? costs.inside : costs.between;
  return stretto::seconds(cost_of(request), route.cost, static_cast<double>(size_of(wire)));
}

}  // namespace stretto
