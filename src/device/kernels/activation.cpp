// The kernels of each activation, and which of them go with a bias in one pass.
#include "device/kernels/arguments.hpp"
#include "device/kernels/run_kernel.hpp"

namespace stretto::kernels {
namespace {

// x has products_of(activation) times the columns of `activated`.
void check_products(const char* kernel, Activation activation, const Tensor& x, const char* argument,
                    const Tensor& activated) {
  const std::int64_t products = products_of(activation);
  check_there(kernel, argument, activated);
  check_holds(kernel, "x", x, activated.dtype(), products * activated.size());
  if (products > 1) check_columns(kernel, "x", x, products * activated.columns());
}

using Forward = void(const Tensor& x, const Tensor& y);
using GpuForward = void (GpuKernels::*)(const Tensor& x, const Tensor& y, GpuStream stream);
void forward(const char* kernel, Activation activation, Forward on_host, GpuForward there, const Tensor& x,
             const Tensor& y) {
  check_products(kernel, activation, x, "y", y);
  run_kernel(kernel, on_host, there, x, y);
}

using Backward = void(const Tensor& x, const Tensor& dy, const Tensor& dx);
using GpuBackward = void (GpuKernels::*)(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream);
void backward(const char* kernel, Activation activation, Backward on_host, GpuBackward there, const Tensor& x,
              const Tensor& dy, const Tensor& dx) {
  check_products(kernel, activation, x, "dy", dy);
  check_holds(kernel, "dx", dx, x.dtype(), x.size());
  run_kernel(kernel, on_host, there, x, dy, dx);
}

}  // namespace

void activation_forward(Activation activation, const Tensor& x, const Tensor& y) {
  switch (activation) {
    case Activation::gelu_tanh: return gelu_forward(x, y);
    case Activation::gelu:
      return forward("gelu_erf_forward", activation, cpu::gelu_erf_forward, &GpuKernels::gelu_erf_forward, x, y);
    case Activation::silu_gate:
      return forward("silu_gate_forward", activation, cpu::silu_gate_forward, &GpuKernels::silu_gate_forward, x, y);
  }
}

void activation_backward(Activation activation, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  switch (activation) {
    case Activation::gelu_tanh: return gelu_backward(x, dy, dx);
    case Activation::gelu:
      return backward("gelu_erf_backward", activation, cpu::gelu_erf_backward, &GpuKernels::gelu_erf_backward, x, dy, dx);
    case Activation::silu_gate:
      return backward("silu_gate_backward", activation, cpu::silu_gate_backward, &GpuKernels::silu_gate_backward, x, dy, dx);
  }
}

void finish_linear(const Tensor& y, const Tensor& bias, const Epilogue& epilogue) {
  const auto& [activation, activated] = epilogue;
  if (bias && activated && activation == Activation::gelu_tanh) return add_bias_gelu(y, bias, activated);
  if (bias) add_bias(y, bias);
  if (activated) activation_forward(activation, y, activated);
}

void finish_linear_backward(const Tensor& product, const Tensor& dx, const BackwardEpilogue& epilogue) {
  if (epilogue.before) return activation_backward(epilogue.activation, epilogue.before, product, dx);
  if (product.raw() != dx.raw()) convert(product, dx);
}

}  // namespace stretto::kernels
