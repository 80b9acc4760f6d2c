#include "apps/train/measure/calibration.hpp"

#include <unistd.h>

#include "apps/train/measure/computation.hpp"
#include "apps/train/measure/links.hpp"
#include "apps/train/measure/timing.hpp"
#include "stretto/device.hpp"

namespace apps {

using namespace stretto;

namespace {

std::int64_t memory_of_rank(const Communicator& world) {
  double bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)) / world.node().size();
  if (current_device() == Device::cuda) bytes = static_cast<double>(gpu_info().value().memory_bytes);
  world.all_reduce(&bytes, &bytes, 1, DType::f64, ReduceOp::min, Stream::inline_(), {.tag = "calibration"}).wait();
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

Calibration calibrate(const Communicator& world, const DecoderShape& model, DType dtype) {
  const Timing timing(world);
  Calibration result;
  result.cluster.shared_cores = timing.shared_cores();
  measure_computation(timing, model, dtype, result.cluster);
  measure_links(timing, model, dtype, result.cluster.links, result.system);
  result.cluster.memory_bytes = memory_of_rank(world);
  result.cluster.narrow_sums = current_device() == Device::cuda;
  return result;
}

}  // namespace apps
