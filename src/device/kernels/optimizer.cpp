#include "device/kernels/arguments.hpp"
#include "device/kernels/frozen_adamw.hpp"
#include "device/kernels/run_kernel.hpp"

namespace stretto::kernels {

namespace {

void check_master(const char* kernel, const Tensor& gradient, const Tensor& master, const Tensor& parameter) {
  const DType wide = accumulator(parameter.dtype());
  check_gradient(kernel, "gradient", gradient, parameter.dtype(), parameter.size());
  check_holds(kernel, "master", master, wide, parameter.size());
  require(parameter.dtype() != wide || parameter.raw() == master.raw(),
          "{} needs parameter and master to be the same tensor, since both are {}.", kernel, name(wide));
}

}  // namespace

void adamw(const AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m, const Tensor& v,
           const Tensor& parameter) {
  check_master("adamw", gradient, master, parameter);
  check_holds("adamw", "m", m, master.dtype(), parameter.size());
  check_holds("adamw", "v", v, master.dtype(), parameter.size());
  require(options.step >= 1, "adamw counts steps from 1, but was given step {}.", options.step);
  run_kernel("adamw", cpu::adamw, &GpuKernels::adamw, options, gradient, master, m, v, parameter);
}

void frozen_adamw(const FrozenAdamWStep& options, const Tensor& master, const Tensor& m, const Tensor& v,
                  const Tensor& parameter) {
  check_master("frozen_adamw", master, master, parameter);
  check_holds("frozen_adamw", "m", m, master.dtype(), parameter.size());
  check_holds("frozen_adamw", "v", v, master.dtype(), parameter.size());
  const KernelScope scope("frozen_adamw");
  if (scope.skipped()) return;
  require(!on_gpu("frozen_adamw", master, m, v, parameter), "frozen_adamw runs on the host; give tensors in host memory.");
  cpu::frozen_adamw(options, master, m, v, parameter);
}

void sgd(const SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b, const Tensor& parameter) {
  check_master("sgd", gradient, master, parameter);
  if (options.momentum != 0) check_holds("sgd", "b", b, master.dtype(), parameter.size());
  require(options.momentum != 0 || !b, "sgd without momentum takes no b; give an empty tensor.");
  const KernelScope scope("sgd");
  if (scope.skipped()) return;
  if (on_gpu("sgd", gradient, master, b ? b : master, parameter))
    return gpu().kernels().sgd(options, gradient, master, b, parameter, gpu_stream());
  cpu::sgd(options, gradient, master, b, parameter);
}

}  // namespace stretto::kernels
