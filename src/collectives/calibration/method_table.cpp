// Makes a table from times: the method for each range of bytes.
#include "collectives/calibration/method_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "collectives/calibration/three_digits.hpp"

namespace stretto {
namespace {

constexpr double change = 0.05;  // the relative gain that a table's change of method must bring

std::vector<Method> methods_of(const std::vector<TableCall>& calls) {
  std::vector<CallTimes> sizes;
  sizes.reserve(calls.size());
  for (const TableCall& call : calls) {
    sizes.push_back(call.times);
    if (call.settled) sizes.back().methods = {{*call.settled, call.times.of(*call.settled)}};
  }
  return steady_methods(sizes);
}

// The bytes at which the second method overtakes the first. Assumes that the ratio of their times is a power of the bytes.
// If they were not timed at both sizes, it is the geometric mean of these.
double crossing(const CallTimes& here, const CallTimes& next, const Method& first, const Method& second) {
  const double before = std::log(here.of(second) / here.of(first)), after = std::log(next.of(second) / next.of(first));
  const bool known = std::isfinite(before) && std::isfinite(after) && before > after;
  const double part = known ? std::clamp(before / (before - after), 0.0, 1.0) : 0.5;
  return static_cast<double>(here.bytes) * std::pow(static_cast<double>(next.bytes) / static_cast<double>(here.bytes), part);
}

struct Range {
  std::int64_t to;  // bytes behind the last
  Method method;
};

// Adds the ranges between two sizes with different methods. The table changes where the times of the two cross, or at the
// capacity of a packet. A third method that is faster at that point, or the only one with a time there, gets a range of its
// own.
void add_ranges(const CallTimes& here, const CallTimes& next, const Method& first, const Method& second,
                std::vector<Range>& ranges) {
  const auto end_of = [&](const Method& method, const Method& then) {
    const double bytes = three_digits(crossing(here, next, method, then));
    return std::min(static_cast<std::int64_t>(bytes), capacity(method, here.request) + 1);
  };
  const std::int64_t end = end_of(first, second);
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

// Adds the ranges beyond the largest measured size. The number of pieces grows with the bytes, so that their size stays.
void add_last_ranges(const CallTimes& last, Method method, int reach, std::vector<Range>& ranges) {
  if (last.bytes < 1 << 20) reach = std::min(reach, 4);
  const std::int64_t most = reach == 0 ? std::numeric_limits<std::int64_t>::max() - 1 : last.bytes * reach;
  for (std::int64_t end = 2 * last.bytes; method.pieces > 1 && method.pieces * pieces_factor <= most_pieces && end < most;
       end *= pieces_factor) {
    ranges.push_back({end, method});
    method.pieces *= pieces_factor;
  }
  ranges.push_back({std::min(most, capacity(method, last.request)) + 1, method});
}

}  // namespace

std::vector<TableCall> unsettled(const std::vector<CallTimes>& times) {
  std::vector<TableCall> calls;
  calls.reserve(times.size());
  for (const CallTimes& each : times) calls.push_back({each, std::nullopt});
  return calls;
}

std::map<Collective, std::vector<TableCall>> by_collective(const std::vector<TableCall>& all) {
  std::map<Collective, std::vector<TableCall>> parts;
  for (const TableCall& call : all) parts[call.times.request.collective].push_back(call);
  return parts;
}

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

double seconds_between(const CallTimes& here, const CallTimes& next, const Method& method, double bytes) {
  const double before = here.of(method), after = next.of(method);
  if (!std::isfinite(before) || !std::isfinite(after)) return std::numeric_limits<double>::infinity();
  const auto from = static_cast<double>(here.bytes), to = static_cast<double>(next.bytes);
  return before * std::pow(after / before, std::log(bytes / from) / std::log(to / from));
}

std::int64_t capacity(const Method& method, const PlanRequest& request) {
  if (method.algorithm != Algorithm::packet) return std::numeric_limits<std::int64_t>::max() - 1;
  const bool one_share = request.collective == Collective::all_gather || request.collective == Collective::gather;
  return most_packet_bytes * (one_share ? request.size : 1);
}

std::string table(const std::vector<TableCall>& all, int reach) {
  std::string text;
  for (const auto& [collective, calls] : by_collective(all)) {
    const std::vector<Method> methods = methods_of(calls);
    std::vector<Range> ranges;
    for (std::size_t i = 0; i + 1 < calls.size(); ++i) {
      if (methods[i + 1] != methods[i]) add_ranges(calls[i].times, calls[i + 1].times, methods[i], methods[i + 1], ranges);
    }
    add_last_ranges(calls.back().times, methods.back(), reach, ranges);

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

std::string table_of(const std::vector<CallTimes>& times, int reach) { return table(unsettled(times), reach); }

}  // namespace stretto
