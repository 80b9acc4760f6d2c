#include "apps/train/measure/matrix_rate.hpp"

#include <algorithm>

#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/parameter.hpp"

namespace apps {

using namespace stretto;

namespace {

// Numbers as in a model: multiplying zeros takes a GPU less power, so that it would run faster.
Tensor random_matrix(std::int64_t n, DType dtype) {
  constexpr std::int64_t some = 1 << 16;  // divides n * n
  const Tensor numbers({some}, dtype, Device::cpu);
  for (std::int64_t i = 0; i < some; ++i) numbers.set(i, random_normal(1, "matrix rate", static_cast<std::uint64_t>(i)));
  const Tensor here = numbers.on(current_device());
  Tensor result({n, n}, dtype);
  for (std::int64_t first = 0; first < result.size(); first += some) result.view(first, {some}).copy_from(here);
  return result;
}

}  // namespace

double matrix_rate(const Communicator& world, DType dtype) {
  const std::int64_t n = current_device() == Device::cuda ? 8192 : 768;
  const Tensor a = random_matrix(n, dtype);
  const Tensor c({n, n}, dtype);
  double best = 0;
  world.barrier(Stream::inline_()).wait();
  for (int round = 0; round < 6; ++round) {
    const Work product =
        computation().enqueue([&] { kernels::gemm(a, kernels::Transpose::no, a, kernels::Transpose::yes, c); });
    product.wait();
    const WorkTimes times = product.times();
    if (round > 0) best = std::max(best, 2.0 * static_cast<double>(n * n * n) / (times.done - times.started));
  }
  return best;
}

}  // namespace apps
