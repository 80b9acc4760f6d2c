#include "method_times.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "buffers.hpp"
#include "measure.hpp"
#include "operation.hpp"
#include "values.hpp"

namespace perf {

using stretto::Algorithm;
using stretto::Collective;
using stretto::Communicator;
using stretto::DType;
using stretto::Method;

namespace {

// Those that the library may choose, and the bidirectional ring, which it takes by a rule only. More pieces than elements
// are as many empty messages.
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

// About as long at every size: small operations many times.
int iterations_for(std::int64_t bytes) {
  return static_cast<int>(std::clamp<std::int64_t>((2 << 20) / (bytes + 1), 2, 200));
}
int repetitions_for(std::int64_t bytes) { return bytes > (4 << 20) ? 3 : 5; }

// The medians of each method, timed in turn so that all share what else the machine does.
std::vector<MethodTime> in_turn(const Communicator& world, const Case& what, const Buffers& buffers,
                                const std::vector<Method>& methods, int repetitions) {
  std::vector<std::vector<double>> seconds(methods.size());
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    for (std::size_t m = 0; m < methods.size(); ++m) {
      const Timing mine =
          measure(world, {1, iterations_for(what.bytes())}, action_of(world, what, methods[m], buffers, false));
      seconds[m].push_back(over_ranks(world, mine, Over::mean).mean);
    }
  }
  std::vector<MethodTime> times;
  for (std::size_t m = 0; m < methods.size(); ++m) times.push_back({methods[m], median(seconds[m])});
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
    for (MethodTime& time : result[i].methods) {
      std::vector<double> seconds;
      for (const auto& run : runs) seconds.push_back(run[i].of(time.method));
      time.seconds = median(seconds);
    }
  }
  return result;
}

std::vector<SizeTimes> time_methods(const Communicator& world, Collective collective, std::int64_t most_bytes, int factor) {
  std::vector<SizeTimes> result;
  std::int64_t last = 0;
  for (std::int64_t next = 8; last < most_bytes; next *= factor) {
    const std::int64_t wanted = std::min(next, most_bytes);
    const Test& test = test_from_name(name(collective));
    const Case what = Case::of_bytes(test, world.size(), 0, DType::f32, stretto::ReduceOp::sum, wanted);
    last = wanted;
    if (what.count == 0) continue;
    const Buffers buffers(what, world.rank(), false, 1, Memory::ordinary);
    buffers.fill(Values(what, 1));

    SizeTimes times;
    times.collective = collective;
    times.ranks = world.size();
    times.bytes = what.bytes();
    times.request = {collective, Algorithm::automatic, 0, world.size(), what.count};
    times.chosen =
        stretto::method_from_text(method_of(world, what, Algorithm::automatic, buffers.input(0), buffers.output(0)));
    std::vector<Method> methods = fixed_methods(collective, what.count);
    if (std::find(methods.begin(), methods.end(), times.chosen) == methods.end()) methods.push_back(times.chosen);
    times.methods = in_turn(world, what, buffers, methods, repetitions_for(what.bytes()));
    result.push_back(std::move(times));
  }
  return result;
}

}  // namespace perf
