// From times to a tuning file: costs that fit the formulas, and tables of the fastest methods.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "collectives/calibration/least_squares.hpp"
#include "stretto/calibration.hpp"
#include "stretto/cost.hpp"

namespace stretto {
namespace {

// Every measurement is one equation, cost formula . (alpha, overhead, beta, gamma) = seconds, divided by the seconds.
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

constexpr double change = 0.05;  // what another method must gain for a table to change to it

double three_digits(double value) { return std::stod(fmt::format("{:.3g}", value)); }

// For each size, the method of the sequence with the least product of slowdowns, where a change of method counts as one.
std::vector<Method> steady_methods(const std::vector<CallTimes>& sizes) {
  struct BestSequence {  // the best sequence that ends with a method at a size
    double cost = 0;
    std::size_t before = 0;  // index of its method at the size before
  };
  std::vector<std::vector<BestSequence>> sequences;
  for (const CallTimes& size : sizes) {
    std::vector<BestSequence> here(size.methods.size());
    for (std::size_t m = 0; m < here.size(); ++m) {
      const double own = std::log(size.methods[m].seconds / size.fastest().seconds);
      here[m].cost = sequences.empty() ? own : std::numeric_limits<double>::infinity();
      for (std::size_t b = 0; !sequences.empty() && b < sequences.back().size(); ++b) {
        const bool same = sizes[sequences.size() - 1].methods[b].method == size.methods[m].method;
        const double cost = sequences.back()[b].cost + own + (same ? 0 : change);
        if (cost < here[m].cost) here[m] = {cost, b};
      }
    }
    sequences.push_back(std::move(here));
  }
  std::vector<Method> methods(sizes.size());
  std::size_t last = 0;
  for (std::size_t m = 0; m < sequences.back().size(); ++m) {
    if (sequences.back()[m].cost < sequences.back()[last].cost) last = m;
  }
  for (std::size_t i = sizes.size(); i-- > 0;) {
    methods[i] = sizes[i].methods[last].method;
    last = sequences[i][last].before;
  }
  return methods;
}

// A call that a table tells of.
struct TableCall {
  CallTimes times;
  std::optional<Method> settled;  // the only method that the table may name for so many bytes
};

std::map<Collective, std::vector<TableCall>> by_collective(const std::vector<TableCall>& all) {
  std::map<Collective, std::vector<TableCall>> parts;
  for (const TableCall& call : all) parts[call.times.request.collective].push_back(call);
  return parts;
}

std::vector<Method> steady_methods(const std::vector<TableCall>& calls) {
  std::vector<CallTimes> sizes;
  sizes.reserve(calls.size());
  for (const TableCall& call : calls) {
    sizes.push_back(call.times);
    if (call.settled) sizes.back().methods = {{*call.settled, call.times.of(*call.settled)}};
  }
  return steady_methods(sizes);
}

// The seconds in which ranks tell each other where their buffers lie: those of a small all_gather.
double telling_seconds(const std::vector<CallTimes>& all) {
  const CallTimes* least = nullptr;
  for (const CallTimes& times : all) {
    const bool is_smaller = least == nullptr || times.bytes < least->bytes;
    if (times.request.collective == Collective::all_gather && is_smaller) least = &times;
  }
  return least == nullptr ? 0 : least->fastest().seconds;
}

// Each method's mean over both kinds of memory, if it was timed in both.
CallTimes mean_of(const CallTimes& one, const CallTimes& other) {
  CallTimes mean{one.request, one.bytes, false, {}};
  for (const MethodTime& time : one.methods) {
    const double there = other.of(time.method);
    if (std::isfinite(there)) mean.methods.push_back({time.method, (time.seconds + there) / 2});
  }
  return mean;
}

// If the two tables name different methods, ranks tell each other at each call where their buffers lie. A call of few bytes
// is shorter than that. Calls with a root overlap, but not if ranks tell each other something first. So both tables name one
// method for few bytes, and for calls with a root unless two methods save more time than the telling takes. (Ranks with
// ordinary buffers seldom wait to be told; those with symmetric buffers do, so that this is not counted.)
constexpr std::int64_t alike_up_to = 1024;

void make_alike(std::vector<TableCall>& ordinary, std::vector<TableCall>& symmetric, double telling) {
  std::vector<CallTimes> means;
  std::vector<std::pair<TableCall*, TableCall*>> alike;
  for (TableCall& one : ordinary) {
    for (TableCall& other : symmetric) {
      if (one.times.request != other.times.request) continue;
      CallTimes mean = mean_of(one.times, other.times);
      if (mean.methods.empty()) continue;
      const double apart = (one.times.fastest().seconds + other.times.fastest().seconds) / 2 + telling;
      const bool is_better_alike = has_root(mean.request.collective) && mean.fastest().seconds <= apart;
      if (mean.bytes > alike_up_to && !is_better_alike) continue;
      means.push_back(std::move(mean));
      alike.emplace_back(&one, &other);
    }
  }
  if (alike.empty()) return;
  const std::vector<Method> methods = steady_methods(means);
  for (std::size_t i = 0; i < alike.size(); ++i) *alike[i].first = *alike[i].second = {means[i], methods[i]};
}

// The bytes at which the second method overtakes the first, if the ratio of their times is a power of the bytes; halfway
// between the sizes if they were not timed at both.
double crossing(const CallTimes& here, const CallTimes& next, const Method& first, const Method& second) {
  const double before = std::log(here.of(second) / here.of(first)), after = std::log(next.of(second) / next.of(first));
  const bool known = std::isfinite(before) && std::isfinite(after) && before > after;
  const double part = known ? std::clamp(before / (before - after), 0.0, 1.0) : 0.5;
  return static_cast<double>(here.bytes) * std::pow(static_cast<double>(next.bytes) / static_cast<double>(here.bytes), part);
}

// A method's seconds between two sizes, as a power of the bytes; infinite if it was not timed at both.
double seconds_between(const CallTimes& here, const CallTimes& next, const Method& method, double bytes) {
  const double before = here.of(method), after = next.of(method);
  if (!std::isfinite(before) || !std::isfinite(after)) return std::numeric_limits<double>::infinity();
  const auto from = static_cast<double>(here.bytes), to = static_cast<double>(next.bytes);
  return before * std::pow(after / before, std::log(bytes / from) / std::log(to / from));
}

// The largest vector, in bytes, that a method takes.
std::int64_t capacity(const Method& method, const PlanRequest& request) {
  if (method.algorithm != Algorithm::packet) return std::numeric_limits<std::int64_t>::max() - 1;
  const bool one_share = request.collective == Collective::all_gather || request.collective == Collective::gather;
  return most_packet_bytes * (one_share ? request.size : 1);
}

struct Range {
  std::int64_t to;  // bytes; the range ends before
  Method method;
};

// From one method to another between two sizes: it changes where their times cross, or at the capacity of a packet. A third
// method that is faster there, or known there where they are not, has a range between theirs.
void add_ranges(const CallTimes& here, const CallTimes& next, const Method& first, const Method& second,
                std::vector<Range>& ranges) {
  const auto end_of = [&](const Method& method, const Method& then) {
    const double bytes = three_digits(crossing(here, next, method, then));
    return std::min(static_cast<std::int64_t>(bytes), capacity(method, here.request) + 1);
  };
  const std::int64_t end = end_of(first, second);  // unless there is a third
  const auto seconds = [&](const Method& method) {
    const bool can = end <= capacity(method, here.request);
    return can ? seconds_between(here, next, method, static_cast<double>(end)) : std::numeric_limits<double>::infinity();
  };
  Method third = second;
  double least = (1 - change) * std::min(seconds(first), seconds(second));
  for (const MethodTime& time : here.methods) {
    if (time.method == first || !(seconds(time.method) < least)) continue;
    third = time.method;
    least = seconds(third);
  }
  if (third == second) {
    ranges.push_back({end, first});
    return;
  }
  ranges.push_back({std::min(end, end_of(first, third)), first});
  ranges.push_back({std::max(end, end_of(third, second)), third});
}

std::string table(const std::vector<TableCall>& all, int reach) {
  std::string text;
  for (const auto& [collective, calls] : by_collective(all)) {
    const std::vector<Method> methods = steady_methods(calls);
    std::vector<Range> ranges;
    for (std::size_t i = 0; i + 1 < calls.size(); ++i) {
      if (methods[i + 1] != methods[i]) add_ranges(calls[i].times, calls[i + 1].times, methods[i], methods[i + 1], ranges);
    }
    const CallTimes& last = calls.back().times;
    const std::int64_t reached = reach == 0 ? std::numeric_limits<std::int64_t>::max() : last.bytes * reach + 1;
    ranges.push_back({std::min(reached, capacity(methods.back(), last.request) + 1), methods.back()});

    text += fmt::format("{}{}:", text.empty() ? "" : ";", name(collective));
    std::int64_t from = 0;
    for (const Range& range : ranges) {
      if (range.to <= from) continue;  // the next method takes over where the last one did
      const bool open = range.to == std::numeric_limits<std::int64_t>::max();
      text += fmt::format("{}{}-{}:{}", from == 0 ? "" : ",", from, open ? "inf" : fmt::format("{}", range.to),
                          to_string(range.method));
      from = range.to;
    }
  }
  return text;
}

std::vector<TableCall> unsettled(const std::vector<CallTimes>& times) {
  std::vector<TableCall> calls;
  calls.reserve(times.size());
  for (const CallTimes& each : times) calls.push_back({each, std::nullopt});
  return calls;
}

}  // namespace

std::string table_of(const std::vector<CallTimes>& times, int reach) { return table(unsettled(times), reach); }

MeasuredRoute measured_route(const std::string& route, int ranks, double ranks_per_core, const std::vector<CallTimes>& times,
                             int reach) {
  MeasuredRoute measured;
  measured.route = {.route = route, .ranks = ranks, .ranks_per_core = ranks_per_core, .cost = fitted(times)};
  const double telling = telling_seconds(times);
  std::vector<TableCall> ordinary, symmetric;
  for (auto& [collective, calls] : by_collective(unsettled(times))) {
    std::vector<TableCall> one, other;
    for (const TableCall& each : calls) (each.times.symmetric ? other : one).push_back(each);
    if (!other.empty()) make_alike(one, other, telling);
    ordinary.insert(ordinary.end(), one.begin(), one.end());
    symmetric.insert(symmetric.end(), other.begin(), other.end());
  }
  measured.table = table(ordinary, reach);
  measured.symmetric_table = table(symmetric, reach);
  return measured;
}

std::string MeasuredRoute::to_json() const {
  constexpr double fastest = 1e-13;  // seconds a byte; the cost of anything that was too fast to be measured
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
  if (route.measurements > 1) json["measurements"] = route.measurements;
  if (!table.empty()) json["table"] = table;
  if (!symmetric_table.empty()) json["symmetric_table"] = symmetric_table;
  return json.dump();
}

}  // namespace stretto
