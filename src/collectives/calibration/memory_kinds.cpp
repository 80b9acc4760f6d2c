// Decides where the tables of the two kinds of memory name one method.
#include "collectives/calibration/memory_kinds.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stretto {
namespace {

// The mean of each method's times in both kinds of memory. Leaves out methods that were timed in one kind only.
CallTimes mean_of(const CallTimes& one, const CallTimes& other) {
  CallTimes mean{one.request, one.bytes, false, {}};
  for (const MethodTime& time : one.methods) {
    const double there = other.of(time.method);
    if (std::isfinite(there)) mean.methods.push_back({time.method, (time.seconds + there) / 2});
  }
  return mean;
}

// Adds interpolated calls between the measured sizes, each twice as large as the one before: the size from which two methods
// are worth an exchange of places may lie between two measured ones.
std::vector<TableCall> with_sizes_between(const std::vector<TableCall>& measured) {
  std::vector<TableCall> calls;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    calls.push_back(measured[i]);
    if (i + 1 == measured.size()) break;
    const CallTimes& here = measured[i].times;
    const CallTimes& next = measured[i + 1].times;
    for (std::int64_t factor = 2; here.bytes * factor < next.bytes; factor *= 2) {
      CallTimes between{here.request, here.bytes * factor, here.symmetric, {}};
      between.request.count *= factor;
      for (const MethodTime& time : here.methods) {
        const double seconds = seconds_between(here, next, time.method, static_cast<double>(between.bytes));
        const bool can = between.bytes <= capacity(time.method, between.request);
        if (can && std::isfinite(seconds)) between.methods.push_back({time.method, seconds});
      }
      if (!between.methods.empty()) calls.push_back({std::move(between), std::nullopt});
    }
  }
  return calls;
}

// Gives the symmetric table the small calls that were timed in ordinary memory only.
void add_small_calls(const std::vector<TableCall>& ordinary, std::vector<TableCall>& symmetric) {
  std::vector<TableCall> small;
  for (const TableCall& call : ordinary) {
    if (call.times.bytes >= symmetric.front().times.bytes || call.times.bytes > alike_up_to) continue;
    small.push_back(call);
    small.back().times.symmetric = true;
  }
  symmetric.insert(symmetric.begin(), small.begin(), small.end());
}

// If the two tables name different methods, ranks tell each other at each call where their buffers lie. A small call is
// shorter than this exchange, so both tables name one method for it. The exchange also keeps calls with a root from
// overlapping, so both tables name one method for these, too, unless two methods save more time than the exchange takes.
// (The estimate counts the exchange for every rank, although ranks with ordinary buffers seldom wait for it.)
void name_one_method(std::vector<TableCall>& ordinary, std::vector<TableCall>& symmetric, double exchange) {
  std::vector<CallTimes> means;
  std::vector<std::pair<TableCall*, TableCall*>> alike;
  for (TableCall& one : ordinary) {
    for (TableCall& other : symmetric) {
      if (one.times.request != other.times.request) continue;
      CallTimes mean = mean_of(one.times, other.times);
      if (mean.methods.empty()) continue;
      const double apart = (one.times.fastest().seconds + other.times.fastest().seconds) / 2 + exchange;
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

}  // namespace

double exchange_seconds(const std::vector<CallTimes>& all) {
  const CallTimes* least = nullptr;
  for (const CallTimes& times : all) {
    const bool is_smaller = least == nullptr || times.bytes < least->bytes;
    if (times.request.collective == Collective::all_gather && is_smaller) least = &times;
  }
  return least == nullptr ? 0 : least->fastest().seconds;
}

void make_alike(std::vector<TableCall>& ordinary, std::vector<TableCall>& symmetric, double exchange) {
  if (ordinary.empty() || symmetric.empty()) return;
  add_small_calls(ordinary, symmetric);
  if (has_root(symmetric.front().times.request.collective)) {
    ordinary = with_sizes_between(ordinary);
    symmetric = with_sizes_between(symmetric);
  }
  name_one_method(ordinary, symmetric, exchange);
}

}  // namespace stretto
