#include <sched.h>

#include "plan/plan_options.hpp"
#include "stretto/planning/tuning.hpp"

namespace plan_tool {

void explain(const CommandLine& line, const Call& call) {
  PlanRequest request = call.request;
  if (line.algorithm != "all") request.method = named_method(line);
  cpu_set_t allowed;
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  Circumstances circumstances;
  circumstances.ranks_per_core = line.ranks_per_core > 0 ? line.ranks_per_core : static_cast<double>(request.size) / cores;
  circumstances.servers_apart = true;
  circumstances.several_nodes = request.servers > 0 || !request.node_sizes.empty() ||
                                (request.ranks_per_node > 0 && request.size > request.ranks_per_node);
  if (line.algorithm == "all") request.method = Algorithm::automatic;
  const Tuning tuning = Tuning::from_environment();
  const Choice choice = choose(request, call.dtype, ReduceOp::sum, tuning, circumstances, line.only_if_faster);
  const auto wire_text = [&](bool quantized, DType wire) { return quantized ? name(request.quantized) : name(wire); };
  fmt::print("{} of {} elements of {} over {} ranks, {:.3g} a core: {}; {} on the wire\n", name(request.collective),
             request.count, name(call.dtype), request.size, circumstances.ranks_per_core, choice.reason,
             wire_text(choice.quantized, choice.wire));
  const auto print_route = [&](const char* where, const std::string& route) {
    const RouteCost& known = tuning.nearest(route, request.size, circumstances.ranks_per_core);
    fmt::print(
        "{} {}, as measured with {} ranks, {:.3g} a core: alpha {:.3g} us, overhead {:.3g} us, {:.3g} GB/s, local work "
        "{:.3g} GB/s\n",
        where, known.route, known.ranks, known.ranks_per_core, known.cost.alpha * 1e6, known.cost.overhead * 1e6,
        1e-9 / known.cost.beta, 1e-9 / known.cost.gamma);
    if (call.is_quantized()) fmt::print("  {:.3g} ns an element packed or unpacked\n", known.cost.quantize * 1e9);
  };
  print_route("route inside nodes:", circumstances.route_inside);
  if (circumstances.several_nodes) print_route("route between nodes:", circumstances.route_between);
  for (const Candidate& candidate : choice.candidates) {
    fmt::print("  {:<44} {:>12.2f} us  {}\n", to_string(candidate.method), candidate.seconds * 1e6,
               wire_text(candidate.quantized, candidate.wire));
  }
}

}  // namespace plan_tool
