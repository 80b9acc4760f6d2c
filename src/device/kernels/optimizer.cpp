#include "device/cpu/host_kernels.hpp"
#include "device/gpu.hpp"
#include "device/kernels/arguments.hpp"
#include "device/stream/kernel_scope.hpp"

namespace stretto::kernels {

void adamw(const AdamW& options, const Tensor& gradient, const Tensor& master, const Tensor& m, const Tensor& v,
           const Tensor& parameter) {
  const DType wide = accumulator(parameter.dtype());
  check_gradient("adamw", "gradient", gradient, parameter.dtype(), parameter.size());
  check_holds("adamw", "master", master, wide, parameter.size());
  check_holds("adamw", "m", m, wide, parameter.size());
  check_holds("adamw", "v", v, wide, parameter.size());
  require(options.step >= 1, "adamw counts steps from 1, but was given step {}.", options.step);
  require(parameter.dtype() != wide || parameter.raw() == master.raw(),
          "adamw needs parameter and master to be the same tensor, since both are {}.", name(wide));
  const KernelScope scope("adamw");
  if (scope.skipped()) return;
  if (on_gpu("adamw", gradient, master, m, v, parameter))
    return gpu().kernels().adamw(options, gradient, master, m, v, parameter, gpu_stream());
  cpu::adamw(options, gradient, master, m, v, parameter);
}

}  // namespace stretto::kernels
