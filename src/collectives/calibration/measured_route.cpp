// From times to a route of a tuning file: costs that fit the formulas, and tables of the fastest methods.
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "collectives/calibration/least_squares.hpp"
#include "collectives/calibration/memory_kinds.hpp"
#include "collectives/calibration/method_table.hpp"
#include "collectives/calibration/three_digits.hpp"
#include "stretto/planning/calibration.hpp"
#include "stretto/planning/cost.hpp"

namespace stretto {
namespace {

// Each measured time is one equation: the formula's coefficients times (alpha, overhead, beta, gamma) equal the seconds.
// Both sides are divided by the seconds, so that relative errors count.
LinkCost fitted(const std::vector<CallTimes>& all) {
  std::vector<std::array<double, 4>> rows;
  std::vector<double> lane_gains;
  for (const CallTimes& times : all) {
    PlanRequest request = times.request;
    for (const MethodTime& time : times.methods) {
      request.method = time.method;
      // Its formula assumes wires that carry both directions at once, which memory does not.
      if (time.method.algorithm == Algorithm::bidirectional_ring) continue;
      if (time.method.lanes > 1) {
        Method half = time.method;
        half.lanes /= 2;
        const double gain = times.of(half) / time.seconds - 1;
        if (times.bytes >= (1 << 20) && std::isfinite(gain)) lane_gains.push_back(gain);
        continue;
      }
      const Cost cost = cost_of(request);
      constexpr double width = sizeof(float);
      rows.push_back({cost.rounds / time.seconds, cost.messages / time.seconds, cost.sent * width / time.seconds,
                      cost.work * width / time.seconds});
    }
  }
  const std::array<double, 4> x = fit_not_negative(rows);
  std::sort(lane_gains.begin(), lane_gains.end());
  const double lane_gain = lane_gains.empty() ? 0 : std::max(0.0, lane_gains[lane_gains.size() / 2]);
  LinkCost cost{x[0], x[1], x[2], x[3]};
  cost.lane_gain = lane_gain;
  return cost;
}

}  // namespace

MeasuredRoute measured_route(const std::string& route, int ranks, double ranks_per_core, const std::vector<CallTimes>& times,
                             int reach) {
  MeasuredRoute measured;
  measured.route = {.route = route, .ranks = ranks, .ranks_per_core = ranks_per_core, .cost = fitted(times)};
  const double exchange = exchange_seconds(times);
  std::vector<TableCall> ordinary, symmetric;
  for (auto& [collective, calls] : by_collective(unsettled(times))) {
    std::vector<TableCall> one, other;
    for (const TableCall& each : calls) (each.times.symmetric ? other : one).push_back(each);
    make_alike(one, other, exchange);
    ordinary.insert(ordinary.end(), one.begin(), one.end());
    symmetric.insert(symmetric.end(), other.begin(), other.end());
  }
  measured.table = table(ordinary, reach);
  measured.symmetric_table = table(symmetric, reach);
  return measured;
}

MeasuredRoute unmeasured_route(const Tuning& tuning, const std::string& route, int ranks, double ranks_per_core) {
  const RouteCost& known = tuning.nearest(route, ranks, ranks_per_core);
  MeasuredRoute same;
  same.route = {.route = route, .ranks = ranks, .ranks_per_core = ranks_per_core, .cost = known.cost};
  if (known.measured_with(ranks, ranks_per_core)) {
    same.table = to_text(known.rules);
    same.symmetric_table = to_text(known.symmetric_rules);
  }
  return same;
}

std::string MeasuredRoute::to_json() const {
  constexpr double fastest = 1e-13;  // seconds a byte, which stand for a fitted cost of 0: its inverse would be infinite
  nlohmann::ordered_json json{{"route", route.route},
                              {"ranks", route.ranks},
                              {"ranks_per_core", three_digits(route.ranks_per_core)},
                              {"alpha_us", three_digits(route.cost.alpha * 1e6)},
                              {"overhead_us", three_digits(route.cost.overhead * 1e6)},
                              {"bandwidth_gbs", three_digits(1e-9 / std::max(route.cost.beta, fastest))},
                              {"local_gbs", three_digits(1e-9 / std::max(route.cost.gamma, fastest))},
                              {"lane_gain", three_digits(route.cost.lane_gain)}};
  if (route.cost.quantize > 0) json["quantize_ns"] = three_digits(route.cost.quantize * 1e9);
  if (route.ranks_per_node > 0) json["ranks_per_node"] = route.ranks_per_node;
  if (!table.empty()) json["table"] = table;
  if (!symmetric_table.empty()) json["symmetric_table"] = symmetric_table;
  return json.dump();
}

}  // namespace stretto
