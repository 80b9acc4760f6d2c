#include "apps/train/measure/timing.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include "stretto/device.hpp"

namespace apps {

using namespace stretto;

namespace {

constexpr int rounds = 9;
constexpr double least_round = 0.02;  // seconds; a rank that shares a core begins milliseconds after another

// The ranks of this machine, which may be several hosts: containers and network namespaces have a kernel in common, and
// share its cores.
Communicator machine_of(const Communicator& world) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(world.size()));
  const auto mine = static_cast<std::int64_t>(std::hash<std::string>()(id));
  world.all_gather(&mine, ids.data(), 1, DType::i64, Stream::inline_(), {.tag = "calibration"}).wait();
  return world.split(static_cast<int>(std::ranges::find(ids, mine) - ids.begin()), world.rank(), "machine");
}

// The cores that the ranks of a group may run on, together.
int cores_of(const Communicator& group) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<float> mine(CPU_SETSIZE);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (std::size_t core = 0; core < mine.size(); ++core) mine[core] = CPU_ISSET(core, &set) ? 1 : 0;
  }
  group
      .all_reduce(mine.data(), mine.data(), CPU_SETSIZE, DType::f32, ReduceOp::max, Stream::inline_(),
                  {.tag = "calibration"})
      .wait();
  return std::max(1, static_cast<int>(std::ranges::count(mine, 1.0F)));
}

}  // namespace

Timing::Timing(const Communicator& world) : world_(world), machine_(machine_of(world)) {
  if (current_device() == Device::cuda) return;
  int cores = cores_of(machine_);
  world.all_reduce(&cores, &cores, 1, DType::i32, ReduceOp::min, Stream::inline_(), {.tag = "calibration"}).wait();
  if (machine_.size() <= cores) return;
  TrainingCluster cluster;
  cluster.shared_cores = shared_cores_ = {machine_.size(), cores};
  turns_ = cluster.turns(world.size());
}

std::vector<double> Timing::slowest_in_turn(const std::vector<Preparation>& works) const {
  std::vector<std::vector<double>> seconds(works.size());
  std::vector<int> calls(works.size(), 1);
  for (int round = 0; round <= rounds; ++round) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      const std::function<void()> work = works[i]();
      work();
      double of_call = seconds_of_call(work, calls[i]);
      if (round > 0) {
        seconds[i].push_back(of_call);
      } else {  // the first one tells how long the others take
        world_.all_reduce(&of_call, &of_call, 1, DType::f64, ReduceOp::max, Stream::inline_(), {.tag = "calibration"})
            .wait();
        calls[i] = std::clamp(static_cast<int>(least_round / of_call), 1, 100);
      }
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& each : seconds) {
    std::ranges::sort(each);
    medians.push_back(each[each.size() / 2]);
  }
  world_
      .all_reduce(medians.data(), medians.data(), static_cast<std::int64_t>(medians.size()), DType::f64, ReduceOp::max,
                  Stream::inline_(), {.tag = "calibration"})
      .wait();
  return medians;
}

double Timing::slowest(const std::function<void()>& work) const {
  return slowest_in_turn({[&] { return work; }}).front();
}

// Ranks that take turns on cores begin one after the other: the time of a machine is then from the first that begins to
// the last that ends.
double Timing::seconds_of_call(const std::function<void()>& work, int calls) const {
  const auto now = [] {
    const Work mark = computation().enqueue([] {});
    mark.wait();
    return mark.times().done;
  };
  world_.barrier(Stream::inline_()).wait();
  double span[] = {0, -now()};
  for (int call = 0; call < calls; ++call) work();
  span[0] = now();
  if (turns_ > 1) {
    machine_.all_reduce(span, span, 2, DType::f64, ReduceOp::max, Stream::inline_(), {.tag = "calibration"}).wait();
  }
  return (span[0] + span[1]) / calls;
}

}  // namespace apps
