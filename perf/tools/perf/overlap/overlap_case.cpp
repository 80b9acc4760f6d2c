#include "perf/overlap/overlap_case.hpp"

#include <map>

#include "common/fail.hpp"
#include "perf/overlap/overlap_cases.hpp"

namespace perf {

namespace {

constexpr int timed_steps = 3;

using Make = std::unique_ptr<OverlapCase> (*)(const stretto::Communicator&, const OverlapSizes&);
const std::map<std::string, Make>& makers() {
  static const std::map<std::string, Make> all{{"dp", make_data_parallel},
                                               {"zero3", make_zero3},
                                               {"tp", make_tensor_parallel},
                                               {"ring_pass", make_ring_pass},
                                               {"all_to_all", make_all_to_all}};
  return all;
}

}  // namespace

double seconds_per_step(const stretto::Communicator& world, OverlapCase& overlap_case, stretto::Rehearsal rehearsal) {
  world.barrier(stretto::Stream::inline_()).wait();
  const stretto::RehearsalScope scope(rehearsal);
  const double from = stretto::now_seconds();
  for (int i = 0; i < timed_steps; ++i) overlap_case.step();
  overlap_case.finish();
  return (stretto::now_seconds() - from) / timed_steps;
}

std::vector<std::string> overlap_cases() {
  std::vector<std::string> names;
  for (const auto& [name, make] : makers()) names.push_back(name);
  return names;
}

std::unique_ptr<OverlapCase> make_overlap_case(const std::string& name, const stretto::Communicator& world,
                                               const OverlapSizes& sizes) {
  const auto place = makers().find(name);
  require(place != makers().end(), "--case {} is none of {}.", name, fmt::join(overlap_cases(), ", "));
  return place->second(world, sizes);
}

}  // namespace perf
