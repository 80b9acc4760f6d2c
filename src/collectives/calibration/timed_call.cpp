#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "collectives/communicator/group.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "core/fail.hpp"
#include "stretto/memory.hpp"
#include "stretto/planning/calibration.hpp"

namespace stretto {
namespace {

constexpr DType dtype = DType::f32;
constexpr std::int64_t width = sizeof(float);

std::shared_ptr<std::byte> buffer_of(std::int64_t bytes, bool symmetric) {
  const auto size = static_cast<std::size_t>(bytes);
  std::shared_ptr<std::byte> buffer =
      symmetric ? allocate(size) : std::shared_ptr<std::byte>(new std::byte[size], std::default_delete<std::byte[]>());
  // Pages that nobody has written would all be one page of zeros.
  std::fill_n(reinterpret_cast<float*>(buffer.get()), bytes / width, 1.0F);
  return buffer;
}

PlanRequest request_of(const Communicator& communicator, Collective collective, std::int64_t count) {
  require(count > 0, "A call of {} elements takes no time; give 1 or more.", count);
  return {collective, Algorithm::automatic, 0, communicator.size(), count};
}

std::int64_t bytes_of(const PlanRequest& request) { return Shares::of(request).total() * width; }

// Returns one time for all ranks: the mean, or the longest if the collective has a root. Ranks may leave a call with a root
// long before its data has arrived, so their mean would say little.
std::vector<double> joined(const Communicator& communicator, Collective collective, std::vector<double> mine) {
  const auto count = static_cast<std::int64_t>(mine.size());
  const ReduceOp op = has_root(collective) ? ReduceOp::max : ReduceOp::avg;
  communicator.all_reduce(mine.data(), mine.data(), count, DType::f64, op, Stream::inline_()).wait();
  return mine;
}

}  // namespace

double CallTimes::of(const Method& method) const {
  for (const MethodTime& time : methods) {
    if (time.method == method) return time.seconds;
  }
  return std::numeric_limits<double>::infinity();
}

const MethodTime& CallTimes::fastest() const {
  return *std::min_element(methods.begin(), methods.end(),
                           [](const MethodTime& a, const MethodTime& b) { return a.seconds < b.seconds; });
}

std::int64_t TimedCall::count_of(Collective collective, std::int64_t bytes, int ranks) {
  return bytes / width / (counts_shares(collective) ? ranks : 1);
}

TimedBuffers TimedBuffers::of(std::int64_t bytes, bool symmetric) {
  return {buffer_of(bytes, symmetric), buffer_of(bytes, symmetric), bytes, symmetric};
}

TimedCall::TimedCall(const Communicator& communicator, Collective collective, std::int64_t count, bool symmetric)
    : TimedCall(communicator, collective, count,
                TimedBuffers::of(bytes_of(request_of(communicator, collective, count)), symmetric)) {}

TimedCall::TimedCall(const Communicator& communicator, Collective collective, std::int64_t count, TimedBuffers buffers)
    : communicator_(communicator), request_(request_of(communicator, collective, count)), buffers_(std::move(buffers)) {
  require(bytes() <= buffers_.bytes, "The buffers have {} bytes; give a call of {} bytes as many.", buffers_.bytes, bytes());
  call_.collective = collective;
  call_.input = buffers_.input.get();
  call_.output = buffers_.output.get();
  call_.count = count;
  call_.dtype = dtype;
}

std::int64_t TimedCall::bytes() const { return bytes_of(request_); }

Method TimedCall::chosen() const { return communicator_.prepare(call_).method(); }

CallTimes TimedCall::time(const std::vector<Method>& methods, const Effort& effort,
                          const std::vector<Method>& always) const {
  const Stream stream = Stream::inline_();
  CallTimes times{request_, bytes(), is_symmetric(), {}};
  Communicator::Group& group = Communicator::Group::of(communicator_);
  const bool maps = is_symmetric() || group.links().one_process();
  const bool reads = maps || group.context().network().reads_memory();
  const int calls_before = bytes() < (1 << 20) ? 3 : 1;  // each large call takes about as long as a look
  const auto call_by = [&](const Method& method) { communicator_.start(call_, stream, {.method = method}).wait(); };
  // A method that cannot be used is refused on all ranks, before any of them has moved a byte.
  std::vector<double> early_calls;
  const auto can_be_used = [&](const Method& method) {
    if (touches_buffers(method.algorithm) && !(method.algorithm == Algorithm::pull ? reads : maps)) return false;
    try {
      // staged alternates between two areas of the communicator's memory, so that its first two calls touch new pages.
      if (method == Method(Algorithm::staged)) call_by(method);
      for (int i = 0; i < calls_before; ++i) {
        const double begin = now_seconds();
        call_by(method);
        early_calls.push_back(now_seconds() - begin);
      }
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      return false;
    }
  };
  for (const Method& method : methods) {
    if (can_be_used(method)) times.methods.push_back({method, std::numeric_limits<double>::infinity()});
  }
  if (times.methods.empty()) return times;
  const auto mean_of = [&](const Method& method, int calls) {
    communicator_.barrier(stream).wait();
    const double begin = now_seconds();
    for (int i = 0; i < calls; ++i) std::ignore = communicator_.start(call_, stream, {.method = method});
    return (now_seconds() - begin) / calls;
  };
  const double few = static_cast<double>(std::clamp<std::int64_t>(effort.most_bytes / times.bytes, 1, effort.most_calls));
  std::vector<std::vector<double>> looks(times.methods.size());
  // For each method the shortest of its first look and the calls before: other work may have disturbed some of them.
  early_calls = joined(communicator_, request_.collective, std::move(early_calls));
  std::vector<double> at_first;
  for (auto call = early_calls.begin(); call != early_calls.end(); call += calls_before) {
    at_first.push_back(*std::min_element(call, call + calls_before));
  }
  double least = std::numeric_limits<double>::infinity();  // of the first looks
  const auto is_hopeless = [&](std::size_t m) { return !looks[m].empty() && at_first[m] > effort.hopeless * least; };
  for (int look = 0; look < effort.looks; ++look) {
    std::vector<double> means;
    for (std::size_t m = 0; m < looks.size(); ++m) {
      if (is_hopeless(m)) continue;
      const double calls = std::clamp(effort.look_seconds / at_first[m], std::min<double>(effort.least_of_look, few), few);
      means.push_back(mean_of(times.methods[m].method, static_cast<int>(calls)));
    }
    means = joined(communicator_, request_.collective, std::move(means));
    auto mean = means.begin();
    for (std::size_t m = 0; m < looks.size(); ++m) {
      if (!is_hopeless(m)) looks[m].push_back(*mean++);
    }
    if (look > 0) continue;
    for (std::size_t m = 0; m < looks.size(); ++m) at_first[m] = std::min(at_first[m], means[m]);
    least = *std::min_element(means.begin(), means.end());
  }
  for (std::size_t m = 0; m < looks.size(); ++m) {
    if (is_hopeless(m)) looks[m] = {at_first[m]};
    std::sort(looks[m].begin(), looks[m].end());
    times.methods[m].seconds = looks[m][looks[m].size() / (effort.counts_median ? 2 : 4)];
  }
  const double fastest = times.fastest().seconds;
  for (MethodTime& time : times.methods) {
    const bool is_good =
        time.seconds <= 1.5 * fastest || std::find(always.begin(), always.end(), time.method) != always.end();
    const double calls = std::clamp(effort.seconds / time.seconds, static_cast<double>(effort.least_calls), 1e5);
    if (is_good && effort.seconds > 0)
      time.seconds = joined(communicator_, request_.collective, {mean_of(time.method, static_cast<int>(calls))})[0];
  }
  return times;
}

const std::vector<Collective>& timed_collectives() {
  static const std::vector<Collective> list{Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                            Collective::all_to_all, Collective::broadcast,      Collective::reduce,
                                            Collective::gather,     Collective::scatter};
  return list;
}

std::vector<Method> methods_within_node(Collective collective, std::int64_t elements) {
  std::vector<Method> methods;
  for (const Algorithm algorithm : algorithms_for(collective)) {
    if (needs_nodes(algorithm) || uses_servers(algorithm) || !has_steps(algorithm)) continue;
    Method method(algorithm);
    if (takes_pieces(algorithm)) {
      for (; method.pieces <= std::min<std::int64_t>(most_pieces, elements); method.pieces *= pieces_factor)
        methods.push_back(method);
      continue;
    }
    const int lanes = algorithm == Algorithm::ring ? most_lanes : 1;
    for (; method.lanes <= lanes; method.lanes *= 2) methods.push_back(method);
  }
  return methods;
}

}  // namespace stretto
