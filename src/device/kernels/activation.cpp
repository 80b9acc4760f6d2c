// The kernels of each activation, and which of them go with a bias in one pass.
#include "stretto/kernels.hpp"

namespace stretto::kernels {

void activation_forward(Activation activation, const Tensor& x, const Tensor& y) {
  switch (activation) {
    case Activation::gelu_tanh: return gelu_forward(x, y);
  }
}

void activation_backward(Activation activation, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  switch (activation) {
    case Activation::gelu_tanh: return gelu_backward(x, dy, dx);
  }
}

void finish_linear(const Tensor& y, const Tensor& bias, const Epilogue& epilogue) {
  const auto& [activation, activated] = epilogue;
  if (bias && activated && activation == Activation::gelu_tanh) return add_bias_gelu(y, bias, activated);
  if (bias) add_bias(y, bias);
  if (activated) activation_forward(activation, y, activated);
}

void finish_linear_backward(const Tensor& dx, const BackwardEpilogue& epilogue) {
  if (epilogue.before) activation_backward(epilogue.activation, epilogue.before, dx, dx);
}

}  // namespace stretto::kernels
