#include "perf/selection/method_times.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "perf/kernel_reads.hpp"
#include "perf/measure.hpp"
#include "perf/operation.hpp"
#include "perf/values.hpp"

namespace perf {

using stretto::Algorithm;
using stretto::Collective;
using stretto::Communicator;
using stretto::DType;
using stretto::Method;

namespace {

// The methods that the library may choose, and the bidirectional ring, which it uses only by a rule. Methods with more
// pieces than elements are left out, since they would send empty messages.
std::vector<Method> fixed_methods(Collective collective, std::int64_t elements) {
  std::vector<Method> methods;
  for (const Algorithm algorithm : algorithms_for(collective)) {
    if (needs_nodes(algorithm)) continue;
    Method method(algorithm);
    if (takes_pieces(algorithm)) {
      for (; method.pieces <= std::min<std::int64_t>(256, elements); method.pieces *= 4) methods.push_back(method);
      continue;
    }
    const int lanes = algorithm == Algorithm::ring ? stretto::most_lanes : 1;
    for (; method.lanes <= lanes; method.lanes *= 2) methods.push_back(method);
  }
  return methods;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds an operation: the mean over all ranks, known to every rank.
double seconds_of(const Communicator& world, const Action& action, int iterations) {
  return from_rank0(world, over_ranks(world, measure(world, {0, iterations, 0}, action), Over::mean).mean);
}

// Times methods in turn, so that other load on the machine affects all of them.
std::vector<MethodTime> in_turn(const Communicator& world, const Case& test_case, const Buffers& buffers,
                                const std::vector<Method>& methods, const Method& chosen) {
  std::vector<Action> actions;
  std::vector<MethodTime> times;
  for (const Method& method : methods) {
    actions.push_back(action_of(world, test_case, method, buffers, false));
    times.push_back({method, std::numeric_limits<double>::infinity()});
  }
  const auto few = static_cast<int>(std::clamp<std::int64_t>((512 << 10) / (test_case.bytes() + 1), 1, 200));
  double fastest = std::numeric_limits<double>::infinity();
  for (int look = 0; look < 2; ++look) {  // the first round also warms up
    for (std::size_t m = 0; m < times.size(); ++m) {
      times[m].seconds = std::min(times[m].seconds, seconds_of(world, actions[m], few));
      fastest = std::min(fastest, times[m].seconds);
    }
  }
  for (std::size_t m = 0; m < times.size(); ++m) {
    if (times[m].seconds > 1.5 * fastest && times[m].method != chosen) continue;
    const double wanted = 10e-3 / times[m].seconds;
    times[m].seconds = seconds_of(world, actions[m], static_cast<int>(std::clamp(wanted, 3.0, 1e5)));
  }
  return times;
}

}  // namespace

double SizeTimes::of(const Method& method) const {
  for (const MethodTime& time : methods) {
    if (time.method == method) return time.seconds;
  }
  return std::numeric_limits<double>::infinity();
}

const MethodTime& SizeTimes::fastest() const {
  return *std::min_element(methods.begin(), methods.end(),
                           [](const MethodTime& a, const MethodTime& b) { return a.seconds < b.seconds; });
}

const std::vector<Collective>& chosen_collectives() {
  static const std::vector<Collective> list{Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                            Collective::all_to_all, Collective::broadcast,      Collective::reduce,
                                            Collective::gather,     Collective::scatter};
  return list;
}

std::vector<SizeTimes> median_of(const std::vector<std::vector<SizeTimes>>& runs) {
  std::vector<SizeTimes> result = runs.front();
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::vector<MethodTime> methods;
    for (const MethodTime& time : result[i].methods) {
      std::vector<double> seconds;
      for (const auto& run : runs) seconds.push_back(run[i].of(time.method));
      if (std::all_of(seconds.begin(), seconds.end(), [](double value) { return std::isfinite(value); })) {
        methods.push_back({time.method, median(seconds)});
      }
    }
    result[i].methods = std::move(methods);
  }
  return result;
}

std::vector<SizeTimes> time_methods(const Communicator& world, Collective collective, Memory memory, std::int64_t most_bytes,
                                    int factor) {
  const Reach reach{memory == Memory::symmetric, ranks_read_each_other(world)};
  std::vector<SizeTimes> result;
  std::vector<Method> hopeless;
  std::int64_t last = 0;
  for (std::int64_t next = 8; last < most_bytes; next *= factor) {
    const std::int64_t wanted = std::min(next, most_bytes);
    const Test& test = test_from_name(name(collective));
    const Case test_case = Case::of_bytes(test, world.size(), 0, DType::f32, stretto::ReduceOp::sum, wanted);
    last = wanted;
    if (test_case.count == 0) continue;
    const Buffers buffers(test_case, world.rank(), false, 1, memory);
    buffers.fill(Values(test_case, 1));

    SizeTimes times;
    times.collective = collective;
    times.ranks = world.size();
    times.bytes = test_case.bytes();
    times.request = {collective, Algorithm::automatic, 0, world.size(), test_case.count};
    times.chosen =
        stretto::method_from_text(method_of(world, test_case, Algorithm::automatic, buffers.input(0), buffers.output(0)));
    std::vector<Method> methods = fixed_methods(collective, test_case.count);
    if (std::find(methods.begin(), methods.end(), times.chosen) == methods.end()) methods.push_back(times.chosen);
    const auto left_out = [&](const Method& method) {
      const bool gave_up = std::find(hopeless.begin(), hopeless.end(), method) != hopeless.end();
      return method != times.chosen && (gave_up || !obstacle_to(world, test_case, method, buffers, reach).empty());
    };
    methods.erase(std::remove_if(methods.begin(), methods.end(), left_out), methods.end());
    times.methods = in_turn(world, test_case, buffers, methods, times.chosen);
    for (const MethodTime& time : times.methods) {
      if (times.bytes >= (1 << 20) && time.seconds > 3 * times.fastest().seconds) hopeless.push_back(time.method);
    }
    result.push_back(std::move(times));
  }
  return result;
}

}  // namespace perf
