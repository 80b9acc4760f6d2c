#include "perf/selection/method_times.hpp"

#include <algorithm>
#include <cmath>

#include "apps/common/median.hpp"

namespace perf {

using stretto::Collective;
using stretto::Communicator;
using stretto::Method;
using stretto::MethodTime;

using apps::median;

std::vector<SizeTimes> median_of(const std::vector<std::vector<SizeTimes>>& runs) {
  std::vector<SizeTimes> result = runs.front();
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::vector<MethodTime> methods;
    for (const MethodTime& time : result[i].methods) {
      std::vector<double> seconds;
      seconds.reserve(runs.size());
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
  std::vector<SizeTimes> result;
  std::vector<Method> hopeless;
  std::int64_t last = 0;
  for (std::int64_t next = 8; last < most_bytes; next *= factor) {
    last = std::min(next, most_bytes);
    const std::int64_t count = stretto::TimedCall::count_of(collective, last, world.size());
    if (count == 0) continue;
    const stretto::TimedCall call(world, collective, count, memory == Memory::symmetric);
    const Method chosen = call.chosen();
    std::vector<Method> methods = stretto::methods_within_node(collective, count);
    std::erase_if(methods, [&](const Method& method) {
      return method == chosen || std::find(hopeless.begin(), hopeless.end(), method) != hopeless.end();
    });
    methods.push_back(chosen);
    SizeTimes times{call.time(methods, {}, {chosen}), chosen};
    for (const MethodTime& time : times.methods) {
      if (times.bytes >= (1 << 20) && time.seconds > 3 * times.fastest().seconds) hopeless.push_back(time.method);
    }
    result.push_back(std::move(times));
  }
  return result;
}

}  // namespace perf
