#include "apps/train/measure/calibration.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>

#include "apps/common/fail.hpp"
#include "apps/train/measure/computation.hpp"
#include "apps/train/measure/links.hpp"
#include "apps/train/measure/timing.hpp"
#include "stretto/device.hpp"
#include "stretto/file_rate.hpp"

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

// With all ranks at work. Where some cannot measure, all throw.
double rate_of_files(const Communicator& world, const std::string& directory) {
  world.barrier(Stream::inline_(), {.tag = "calibration"}).wait();
  double rate = 0;  // what a rank that fails says
  std::exception_ptr error;
  try {
    rate = measured_file_rate(directory);
  } catch (...) {
    error = std::current_exception();
  }
  world.all_reduce(&rate, &rate, 1, DType::f64, ReduceOp::min, Stream::inline_(), {.tag = "calibration"}).wait();
  if (error) std::rethrow_exception(error);
  if (rate == 0) fail(ErrorCode::peer_gave_up, "Another rank could not measure the files in {}.", directory);
  return rate;
}

}  // namespace

Calibration calibrate(const Communicator& world, const DecoderShape& model, DType dtype,
                      const std::vector<std::string>& directories) {
  const Timing timing(world);
  Calibration result;
  result.cluster.shared_cores = timing.shared_cores();
  measure_computation(timing, model, dtype, result.cluster);
  measure_links(timing, model, dtype, result.cluster.links, result.system);
  for (const std::string& directory : directories) {
    const double rate = rate_of_files(world, directory);
    double& slowest = result.cluster.file_bytes_per_second;
    slowest = slowest == 0 ? rate : std::min(slowest, rate);
  }
  result.cluster.memory_bytes = memory_of_rank(world);
  result.cluster.narrow_sums = current_device() == Device::cuda;
  return result;
}

}  // namespace apps
