#include "collectives/calibration/sweep.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace stretto {
namespace {

constexpr std::int64_t large = 1 << 20;  // bytes
constexpr double loyalty = 0.9;          // what the library takes so far stays unless another method takes less than this

// The methods that are less than so many times slower than the fastest, best first: where bytes decide, what was far behind
// at one size stays behind at the next.
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

// For each algorithm, its best method, and that method in more lanes or pieces, which may be faster for more bytes.
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

Sweep::Sweep(const Communicator& ranks, const Efforts& efforts, double budget, std::vector<CallTimes> earlier)
    : ranks_(ranks),
      is_of_one_node_(ranks.nodes() == std::vector<int>(ranks.nodes().size(), 0)),
      efforts_(efforts),
      begin_(now_seconds()),
      budget_(budget),
      earlier_(std::move(earlier)) {}

bool Sweep::add(const Size& size, bool symmetric, const std::function<std::vector<Method>(const TimedCall&)>& methods,
                const std::function<double(const TimedCall&)>& least_seconds) {
  for (const Collective collective : timed_collectives()) {
    const double overtime = size.bytes < large ? 2 * budget_ : 0;
    if (seconds_left() + overtime < 0) return false;
    const std::int64_t count = TimedCall::count_of(collective, size.bytes, ranks_.size());
    if (count == 0 || settled_.contains(collective)) continue;
    const TimedCall call(ranks_, collective, count, buffers(size.bytes, symmetric));
    const auto last = last_.find({collective, symmetric});
    const bool decided = size.most > 0 && last != last_.end();
    const std::vector<Method> tried = hopeful(decided ? methods_after(times_[last->second], size) : methods(call), call);
    const Method so_far = call.chosen();
    const double least = least_seconds && size.bytes >= large ? least_seconds(call) : 0;
    CallTimes times = time(call, tried, least);
    // Packets are too small by now, or what was near the fastest at the last size was far behind here earlier.
    if (times.methods.empty()) times = time(call, hopeful(methods(call), call), least);
    if (times.methods.empty()) continue;
    for (MethodTime& time : times.methods) time.seconds *= time.method == so_far ? loyalty : 1;
    last_[{collective, symmetric}] = times_.size();
    times_.push_back(std::move(times));
  }
  return true;
}

const CallTimes* Sweep::earlier_times(const TimedCall& call) const {
  for (const CallTimes& times : earlier_) {
    if (times.request == call.request() && times.symmetric == call.is_symmetric()) return &times;
  }
  return nullptr;
}

// A method that was not timed earlier may be the fastest.
std::vector<Method> Sweep::hopeful(std::vector<Method> methods, const TimedCall& call) const {
  const CallTimes* const known = earlier_times(call);
  if (known == nullptr) return methods;
  const double most = (call.bytes() < large ? 3 : 2) * known->fastest().seconds;
  std::erase_if(methods, [&](const Method& method) {
    const double seconds = known->of(method);
    return std::isfinite(seconds) && seconds > most;
  });
  return methods;
}

std::vector<Method> Sweep::methods_after(const CallTimes& last, const Size& size) const {
  if (is_of_one_node_) return one_of_each_and_finer(promising(last, size.times_slower, last.methods.size()), size.most);
  return promising(last, size.times_slower, size.most);
}

CallTimes Sweep::time(const TimedCall& call, const std::vector<Method>& methods, double least_seconds) {
  const Effort effort = effort_for(call);
  if (least_seconds == 0) return call.time(methods, effort);
  const Method so_far = call.chosen();
  CallTimes times = call.time({so_far}, effort);
  if (!times.methods.empty() && loyalty * times.fastest().seconds < least_seconds) {
    settled_.insert(call.request().collective);
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
    if (seconds_left() < 0) return;
    const TimedCall call(ranks_, times.request.collective, times.request.count, buffers(times.bytes, times.symmetric));
    const CallTimes again = call.time(best, effort_for(call));
    const Method so_far = call.chosen();
    for (MethodTime& time : times.methods) {
      time.seconds = std::min(time.seconds, again.of(time.method) * (time.method == so_far ? loyalty : 1));
    }
  }
}

// Of each kind of memory one pair for all calls; it grows with the sizes.
const TimedBuffers& Sweep::buffers(std::int64_t bytes, bool symmetric) {
  TimedBuffers& kept = symmetric ? symmetric_ : ordinary_;
  if (kept.bytes < bytes) kept = TimedBuffers::of(bytes, symmetric);
  return kept;
}

// Calls with a root overlap: the next one begins while ranks far from the root are still in the last. A few calls in a row
// do not show what each of many takes, nor do those that happened to be the shortest.
bool Sweep::looks_long(Collective collective, std::int64_t bytes) const {
  return is_of_one_node_ && has_root(collective) && bytes < large;
}

Effort Sweep::effort_for(const TimedCall& call) const {
  const Collective collective = call.request().collective;
  Effort effort = call.bytes() < large             ? efforts_.small
                  : earlier_times(call) == nullptr ? efforts_.large
                                                   : efforts_.large_again;
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

double Sweep::seconds_left() const { return on_rank_zero(ranks_, begin_ + budget_ - now_seconds()); }

}  // namespace stretto
