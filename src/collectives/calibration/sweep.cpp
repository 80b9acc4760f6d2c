#include "collectives/calibration/sweep.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace stretto {
namespace {

constexpr std::int64_t large = 1 << 20;  // bytes
constexpr double loyalty = 0.95;  // the library's present choice stays unless another takes less than this part of its time

// The methods that take at most times_slower times as long as the fastest, best first. For large vectors a method that is
// far behind at one size is behind at the next one, too.
std::vector<Method> promising(const CallTimes& times, double times_slower, std::size_t most) {
  std::vector<MethodTime> known = times.methods;
  std::erase_if(known, [&](const MethodTime& time) { return time.seconds > times_slower * times.fastest().seconds; });
  std::sort(known.begin(), known.end(), [](const MethodTime& a, const MethodTime& b) { return a.seconds < b.seconds; });
  if (known.size() > most) known.resize(most);
  std::vector<Method> methods;
  methods.reserve(known.size());
  for (const MethodTime& time : known) methods.push_back(time.method);
  return methods;
}

// For each algorithm its best method and, since more bytes may favour it, the same in more lanes or pieces.
std::vector<Method> one_of_each_and_finer(const std::vector<Method>& best_first, std::size_t most_algorithms) {
  std::set<Algorithm> algorithms;
  std::vector<Method> methods;
  for (const Method& method : best_first) {
    if (algorithms.size() == most_algorithms) break;
    if (!algorithms.insert(method.algorithm).second) continue;
    methods.push_back(method);
    Method in_more = method;
    if (takes_pieces(method.algorithm)) in_more.pieces *= pieces_factor;
    if (method.algorithm == Algorithm::ring) in_more.lanes *= 2;
    if (in_more != method && in_more.lanes <= most_lanes) methods.push_back(in_more);
  }
  return methods;
}

}  // namespace

double on_rank_zero(const Communicator& ranks, double value) {
  ranks.broadcast(&value, &value, 1, DType::f64, 0, Stream::inline_()).wait();
  return value;
}

Sweep::Sweep(const Communicator& ranks, const Efforts& efforts, const Budget& budget)
    : ranks_(ranks),
      is_of_one_node_(ranks.nodes() == std::vector<int>(ranks.nodes().size(), 0)),
      efforts_(efforts),
      begin_(now_seconds()),
      budget_{on_rank_zero(ranks, budget.seconds), on_rank_zero(ranks, budget.of_small)} {}

std::optional<std::int64_t> Sweep::run(const std::vector<Size>& sizes,
                                       const std::function<std::vector<Method>(const TimedCall&)>& methods,
                                       const std::function<double(const TimedCall&)>& least_seconds) {
  std::optional<std::int64_t> least_missed;
  double passed = 0;
  for (const SizedCall& next : calls_of(sizes)) {
    const auto settled = settled_.find(next.collective);
    if (settled != settled_.end() && next.size.bytes >= settled->second) continue;
    if (passed <= budget_.of_small) passed = seconds_passed();  // beyond, no call has time
    if (passed > (next.size.bytes < large ? budget_.of_small : budget_.seconds)) {
      least_missed = std::min(least_missed.value_or(next.size.bytes), next.size.bytes);
      continue;
    }
    const TimedCall call(ranks_, next.collective, next.count, buffers(next.size.bytes, next.symmetric));
    const CallTimes* const smaller = next.size.most > 0 ? times_of_smaller(call) : nullptr;
    const Method so_far = call.chosen();
    const double least = least_seconds && next.size.bytes >= large ? least_seconds(call) : 0;
    CallTimes times = time(call, smaller != nullptr ? methods_after(*smaller, next.size) : methods(call), least);
    // None of the methods that were near the fastest for fewer bytes can do this call: a packet is too small.
    if (times.methods.empty()) times = time(call, methods(call), least);
    if (times.methods.empty()) continue;
    for (MethodTime& each : times.methods) each.seconds *= each.method == so_far ? loyalty : 1;
    times_.push_back(std::move(times));
  }
  return least_missed;
}

std::vector<Sweep::SizedCall> Sweep::calls_of(const std::vector<Size>& sizes) const {
  std::vector<SizedCall> calls;
  for (const Size& size : sizes) {
    for (const bool symmetric : {true, false}) {
      if (symmetric && !size.also_symmetric) continue;
      for (const Collective collective : timed_collectives()) {
        const std::int64_t count = TimedCall::count_of(collective, size.bytes, ranks_.size());
        if (count > 0) calls.push_back({size, symmetric, collective, count});
      }
    }
  }
  return calls;
}

const CallTimes* Sweep::times_of_smaller(const TimedCall& call) const {
  const CallTimes* largest = nullptr;
  for (const CallTimes& times : times_) {
    const bool is_alike = times.request.collective == call.request().collective && times.symmetric == call.is_symmetric();
    const bool is_larger = largest == nullptr || times.bytes > largest->bytes;
    if (is_alike && times.bytes < call.bytes() && is_larger) largest = &times;
  }
  return largest;
}

std::vector<Method> Sweep::methods_after(const CallTimes& smaller, const Size& size) const {
  if (!is_of_one_node_) return promising(smaller, size.times_slower, size.most);
  return one_of_each_and_finer(promising(smaller, size.times_slower, smaller.methods.size()), size.most);
}

CallTimes Sweep::time(const TimedCall& call, const std::vector<Method>& methods, double least_seconds) {
  const Effort effort = effort_for(call);
  if (least_seconds == 0) return call.time(methods, effort);
  const Method so_far = call.chosen();
  CallTimes times = call.time({so_far}, effort);
  if (!times.methods.empty() && loyalty * times.fastest().seconds < least_seconds) {
    settled_.emplace(call.request().collective, call.bytes());
    return times;
  }
  std::vector<Method> others = methods;
  std::erase(others, so_far);
  const std::vector<MethodTime> more = call.time(others, effort).methods;
  times.methods.insert(times.methods.end(), more.begin(), more.end());
  return times;
}

void Sweep::look_again() {
  for (CallTimes& times : times_) {
    const std::vector<Method> best = promising(times, 2, 4);
    if (best.size() < 2 || looks_long(times.request.collective, times.bytes)) continue;
    if (seconds_passed() > budget_.seconds) return;
    const TimedCall call(ranks_, times.request.collective, times.request.count, buffers(times.bytes, times.symmetric));
    const CallTimes again = call.time(best, effort_for(call));
    const Method so_far = call.chosen();
    for (MethodTime& time : times.methods) {
      time.seconds = std::min(time.seconds, again.of(time.method) * (time.method == so_far ? loyalty : 1));
    }
  }
}

// All calls in one kind of memory share a pair of buffers, which grows with the sizes.
const TimedBuffers& Sweep::buffers(std::int64_t bytes, bool symmetric) {
  TimedBuffers& kept = symmetric ? symmetric_ : ordinary_;
  if (kept.bytes < bytes) kept = TimedBuffers::of(bytes, symmetric);
  return kept;
}

// Calls with a root overlap: the next call begins while ranks far from the root are still in the last one. So neither a
// short loop nor the shortest of several loops shows the time of a call among many; only the median of long loops does.
bool Sweep::looks_long(Collective collective, std::int64_t bytes) const {
  return is_of_one_node_ && has_root(collective) && bytes < large;
}

Effort Sweep::effort_for(const TimedCall& call) const {
  const Collective collective = call.request().collective;
  Effort effort = call.bytes() < large ? efforts_.small : efforts_.large;
  if (looks_long(collective, call.bytes())) {
    effort.looks = 3;
    effort.counts_median = true;
    effort.most_calls = 4000;
    effort.most_bytes = 1 << 30;
    effort.look_seconds = 0.0005;
  } else if (has_root(collective)) {
    effort.most_calls *= 4;
    effort.most_bytes *= 4;
    effort.look_seconds *= 2;
  }
  return effort;
}

double Sweep::seconds_passed() const { return on_rank_zero(ranks_, now_seconds() - begin_); }

}  // namespace stretto
